"""Decides whether a consumer's offsets can be part of an atomic batch."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.delivery.first_decision import FirstDecision
from kafkasafe.delivery.readings import Numbers, OffsetClaim, OffsetsFate, ProducerLane, Readings
from kafkasafe.errors import BatchDroppedError, UsageError
from kafkasafe.kafkapython.private_fields import is_closed

_FATES = {
    j.Fate.COMMITTED: OffsetsFate.COMMITTED,
    j.Fate.REJECTED: OffsetsFate.REJECTED,
    j.Fate.DROPPED: OffsetsFate.DROPPED,
}


class BatchFate:
    """The outcome of an atomic batch with offsets from a consumer or from the program. Callable from any thread.

    Args:
        decision: The decision about the batch.
        owner: An object that exists as long as the program can use the batch. Once the owner is garbage-collected, an
            open batch counts as dropped, because no code can commit the batch any more. Ctrl-C at the end of a `with`
            block can leave a batch open.
    """

    __slots__ = ("_decision", "_head", "_late", "_owner", "_replaced")

    def __init__(self, decision: FirstDecision[Any], owner: object) -> None:
        self._decision: FirstDecision[Any] | None = decision
        self._owner = weakref.ref(owner)
        self._head: Any = None
        self._replaced = False
        self._late = False

    def forget(self) -> None:
        """Marks the batch's offsets of this group as replaced or removed by the program."""
        self._replaced = True

    def miss(self) -> None:
        """Marks the batch as too late, because the consumer has moved back in one of the batch's partitions.

        1. A batch has records 5 to 9 of one partition, and 100 to 104 of another.
        2. The consumer moves back in the first partition, and will read records 5 to 9 again. So the batch is not sent,
           and the program discards all of its records.
        3. Without this method, the next batch would commit offset 105 or later for the second partition, and the
           results of records 100 to 104 would be in no output.

        So the consumer must read both partitions again, as if the group had refused the batch.
        """
        self._late = True

    def __call__(self) -> OffsetsFate:
        """Returns the current outcome."""
        if self._decision is not None:
            if self._replaced:
                return OffsetsFate.FORGOTTEN
            if not self._decision.made:
                if self._owner() is not None:
                    return OffsetsFate.OPEN
                self._decision.drop()
            unit = self._decision.accepted
            if unit is None:
                return OffsetsFate.DROPPED if self._late else OffsetsFate.FORGOTTEN
            # Keep only the head of the atomic batch. A consumer holds this `BatchFate`, and the batch may hold a
            # reference to the producer. So a consumer with a reference to the batch could prevent the garbage
            # collection of the producer.
            self._head, self._decision = unit.head, None
        if not self._head.done:
            return OffsetsFate.WAITING
        fate = None if self._head.unit_handle is None else self._head.unit_handle.fate
        return OffsetsFate.LEFT if fate is None else _FATES[fate]


class GivenOffsets:
    """Tracks the offsets that a program passes to a producer directly or from a KafkaConsumer. Refuses a batch whose
    offsets continue from a dropped batch.

    kafkasafe cannot move the consumer back to the offset where the dropped batch began. So after a batch is dropped,
    `offer` refuses the next batch with an offset for any of the same partitions, unless the program was informed of the
    drop. After a refusal, `offer` assumes that the program has read the dropped records again.

    Args:
        numbers: Draws the numbers of the readings.
    """

    def __init__(self, numbers: Numbers) -> None:
        self._readings: Readings[u.GroupPartition] = Readings(numbers)
        # Draw the first reading's number now, not when the program gives the first offsets. Until then, batches of
        # earlier incarnations may commit offsets, and these commits must count as later than the beginning of the
        # reading.
        self._first = numbers.draw()

    def moves(self, given: m.GroupOffsets) -> bool:
        """Whether any offset in `given` is new: it differs from the partition's offset in the previous batch, or is the
        first offset that the program gives for the partition.
        """
        runs = (self._readings.get((given.group, at.topic, at.partition)) for at in given.positions)
        return any(
            run is None or run.handed != at.offset for run, at in zip(runs, given.positions, strict=True)
        )

    def offer(
        self, fate: Callable[[], OffsetsFate], given: m.GroupOffsets, *, informed: bool
    ) -> tuple[dict[u.GroupPartition, u.Reading], list[OffsetClaim]]:
        """Registers a batch that is about to commit offsets for the group.

        Args:
            fate: Returns the batch's outcome.
            given: The offsets.
            informed: Whether the program was informed of every earlier dropped batch.

        Returns:
            For each partition, the reading (run of the consumer) to which the offset belongs. Also the offsets, as
            `OffsetClaim` objects.

        Raises:
            BatchDroppedError: The batch continues from a dropped batch.
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
        if broken and not informed:
            raise BatchDroppedError(
                "An earlier atomic batch with offsets of this group was dropped. seek() each partition to the offset"
                " that committed() returns, discard the collected records, and continue with poll()."
                " kafkasafe.SafeConsumer does this automatically"
            )
        for at in given.positions:
            claim = OffsetClaim(at.offset, fate)
            found[given.group, at.topic, at.partition].claim(claim)
            claims.append(claim)
        return {line: run.reading for line, run in found.items()}, claims


Offer: TypeAlias = Callable[[Callable[[], OffsetsFate], ProducerLane], tuple[Any, ...]]
"""Type of the functions that pass a consumer's positions to an atomic batch. The first argument is a function that
returns the outcome of the batch. The second argument is the lane of the producer that will write the batch.
"""


@functools.singledispatch
def offering(consumer: object) -> Offer | None:  # noqa: ARG001  # decides by its class
    """Returns the function that passes a consumer's positions to an atomic batch; None if the consumer is not a
    SafeConsumer.

    A module that defines a consumer class registers the class here.
    """
    return None


def check_settings(consumer: Any) -> None:
    """Raises an error if the consumer's settings could make atomic batches lose or repeat records, or if it is closed.

    A closed consumer has left its group. If it had joined the group (`subscribe`), it has no partitions any more, so
    the batch would commit no offsets, and the results of the same records would be in the output again.

    A consumer with automatic commits may commit offsets before the batch with its records is delivered:

    1. The consumer polls records 0 to 9, and a batch with them goes into the spool.
    2. The consumer commits 10.
    3. The batch is dropped, or the machine is lost.
    4. The group continues at offset 10, and the results of records 0 to 9 are in no output.

    A consumer that does not require stable offsets may read records again while an atomic batch with the results of
    these records is still pending:

    1. The batch with records 0 to 9 waits in the spool of another process, or the brokers are writing the batch's
       transaction markers.
    2. The partition is assigned to this consumer, and the group has no offset yet.
    3. The consumer reads records 0 to 9 again, and their results are in the output twice.

    The flag `require_stable` of OffsetFetch (KIP-447) requires stable offsets. kafka-python sets this flag if
    `isolation_level` is "read_committed".

    Args:
        consumer: KafkaConsumer or SafeConsumer.

    Raises:
        UsageError: A setting is wrong (the message names the option), or the consumer is closed.
    """
    if is_closed(consumer):
        raise UsageError(
            "This consumer is closed, so a batch cannot commit its offsets. Call send_offsets() before close(). Discard"
            " the collected records: the group's next member reads them again"
        )
    if consumer.config.get("group_id") is None:
        raise UsageError(
            "This consumer has no group (group_id), so it has no offsets that a batch could commit"
        )
    if consumer.config.get("enable_auto_commit"):
        raise UsageError(
            "This consumer commits automatically, before batches that wait in the spool. If one of them is dropped, the"
            " group would skip its records. Open the consumer with enable_auto_commit=False"
        )
    asks = getattr(
        consumer, "_asks_for_stable_offsets", consumer.config.get("isolation_level") == "read_committed"
    )
    if not asks:
        raise UsageError(
            "This consumer accepts offsets that open transactions are about to change. So it may read records of a"
            ' pending batch again. Open it with isolation_level="read_committed", or use kafkasafe.SafeConsumer'
        )
