"""Whether the offsets of a consumer can be part of an atomic batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafkasafe._core import journal as j
from kafkasafe._core import marks as m
from kafkasafe._core import units as u
from kafkasafe._core.readings import Claim, Fate, Numbers, Readings
from kafkasafe.errors import BatchDroppedError, UsageError

__all__ = ["BatchFate", "GivenOffsets", "check_settings"]

_FATES = {j.Fate.COMMITTED: Fate.COMMITTED, j.Fate.REJECTED: Fate.REJECTED, j.Fate.DROPPED: Fate.DROPPED}


class BatchFate:
    """What becomes of an atomic batch whose offsets a consumer, or a program, gave. From any thread.

    Args:
        decided: What the batch decides first: its unit, None once it is dropped; empty while it is open.
    """

    __slots__ = ("_decided", "_head", "_replaced")

    def __init__(self, decided: Mapping[str, Any]) -> None:
        self._decided: Mapping[str, Any] | None = decided
        self._head: Any = None
        self._replaced = False

    def forget(self) -> None:
        """The batch has other offsets of the group by now, or none."""
        self._replaced = True

    def __call__(self) -> Fate:
        """As it is now."""
        if self._decided is not None:
            if self._replaced:
                return Fate.FORGOTTEN
            if not self._decided:
                return Fate.OPEN
            [unit] = self._decided.values()
            if unit is None:
                return Fate.FORGOTTEN
            # The unit may keep the producer; a consumer does not.
            self._head, self._decided = unit.head, None
        if not self._head.done:
            return Fate.WAITING
        fate = None if self._head.slip is None else self._head.slip.fate
        return Fate.LEFT if fate is None else _FATES[fate]


class GivenOffsets:
    """The offsets that a program gave a producer by itself, and those of a KafkaConsumer: where they go on from.

    Such a consumer cannot be moved back from here. So the next batch with offsets of a partition of which a batch was
    dropped is refused once; what comes after that is taken for what was read again.

    Args:
        numbers: Of readings.
    """

    def __init__(self, numbers: Numbers) -> None:
        self._readings: Readings[u.GroupPartition] = Readings(numbers)
        # What earlier incarnations left may be committed before the first offsets are given.
        self._first = numbers.draw()

    def moves(self, given: m.GroupOffsets) -> bool:
        """Whether an offset is another one than that of the batch before, or the first."""
        runs = (self._readings.get((given.group, at.topic, at.partition)) for at in given.positions)
        return any(
            run is None or run.handed != at.offset for run, at in zip(runs, given.positions, strict=True)
        )

    def offer(
        self, fate: Callable[[], Fate], given: m.GroupOffsets, *, told: bool
    ) -> tuple[dict[u.GroupPartition, u.Reading], list[Claim]]:
        """A batch is about to move the group.

        Args:
            fate: What becomes of the batch.
            given: The offsets.
            told: The program has heard of each batch that was dropped, before this one.

        Returns:
            Of which readings they are, and the batch's claims.

        Raises:
            BatchDroppedError: It goes on from one that was dropped.
        """
        found = {}
        claims = []
        broken = False
        for at in given.positions:
            line = given.group, at.topic, at.partition
            run = self._readings.get(line) or self._readings.begin(line, self._first, None)
            run.look()
            if run.broken:
                broken = True
                run = self._readings.begin(line, self._readings.draw(), None)
            found[line] = run
        if broken and not told:
            raise BatchDroppedError(
                "An atomic batch with offsets of this group was dropped before. seek() each partition to what"
                " committed() says, throw away what is collected, and go on with poll(): kafkasafe.SafeConsumer does"
                " that by itself"
            )
        for at in given.positions:
            claim = Claim(at.offset, fate)
            found[given.group, at.topic, at.partition].claim(claim)
            claims.append(claim)
        return {line: run.reading for line, run in found.items()}, claims


def check_settings(consumer: Any) -> None:
    """Raise for a consumer whose settings break what an atomic batch promises.

    A consumer that commits by itself does so ahead of batches that wait in the spool. 1. It polls records 0 to 9, and
    a batch with them goes into the spool. 2. It commits 10. 3. The batch is dropped, or the machine is lost. 4. The
    group goes on at 10, and records 0 to 9 are in no output.

    One that does not ask for stable offsets is placed before records that are in a batch. 1. The batch with records 0
    to 9 waits in the spool of another process, or its markers are on their way. 2. The partition moves here, and the
    group has no offset yet. 3. The records are read again, and are in the output twice. (KIP-447: OffsetFetch with
    `require_stable`; kafka-python asks so where `isolation_level` is "read_committed".)

    Args:
        consumer: KafkaConsumer or SafeConsumer.

    Raises:
        UsageError: The message says which option to set.
    """
    if consumer.config.get("group_id") is None:
        raise UsageError(
            "This consumer is in no group (group_id): there are no offsets to be committed for it"
        )
    if consumer.config.get("enable_auto_commit"):
        raise UsageError(
            "This consumer commits by itself, ahead of batches that wait in the spool: if one of them is dropped, its"
            " group would be past the records. Open it with enable_auto_commit=False"
        )
    asks = getattr(
        consumer, "_asks_for_stable_offsets", consumer.config.get("isolation_level") == "read_committed"
    )
    if not asks:
        raise UsageError(
            "This consumer is given offsets that open transactions are about to change, and would read again what is in"
            ' a batch that is on its way: open it with isolation_level="read_committed", or use kafkasafe.SafeConsumer'
        )
