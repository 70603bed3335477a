"""What is promised, and the checks that it is kept."""

from __future__ import annotations

import bisect
import re
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from kafkasafe import marks as m
from kafkasafe.record import batch as codec
from kafkasafe.spool.log_content import BatchEntry, MarksEntry

_STORM_PER_S: Final = 10
_STORM_S: Final = 2.0
_WINDOW: Final = 5
_NUMBER: Final = re.compile(rb"\d+")
_DECIDES: Final = frozenset({0, 10, 87})
_REFUSALS: Final = frozenset({2, -1, 3, 17, 29})


class Violation(AssertionError):  # noqa: N818
    """A promise was broken.

    Attributes:
        name: Which.
    """

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name = name


@dataclass(slots=True, eq=False)
class LifeEntry:
    """A life of a worker, from its begin to its end."""

    number: int
    worker: int
    began: float
    ended: float = float("inf")


@dataclass(slots=True, eq=False)
class Record:
    """One record that was accepted.

    Attributes:
        doomed: The cluster is right to refuse it.
        durable: It is promised.
        acked: Its future ended well.
        refused: Its future ended with a RejectedError.
        excused: The cluster lost it after it was acknowledged, and nothing of it is kept.
    """

    number: int
    life: LifeEntry
    partition: int
    doomed: bool
    durable: bool = False
    acked: bool = False
    refused: bool = False
    excused: bool = False


@dataclass(slots=True)
class _Written:
    """What is known of one spool that is open: derived from what is written a second time, without the journal."""

    pending: list[tuple[list[m.Mark], list[tuple[int, int, int]]]] = field(default_factory=list)
    committed: set[int] = field(default_factory=set)
    decided: dict[int, m.Mark] = field(default_factory=dict)
    """By id, what was decided and is not durable yet, in this order."""


class Book:
    """See the module.

    Attributes:
        records: All that were accepted, by number.
        unclean: Partitions whose log was cut: what is sent again comes behind what came since.
        lossy: The cluster lost something that it had acknowledged, somewhere.
        topic_ids: Requests name topics by their ids.
        recreated: Partitions of topics that were deleted and created again.
        displaced: Records that were in a former topic of the name, or that may change their order with brokers that know no
            topic ids: those on their way when it was deleted or created (docs/limits.md, "Recreated topics").
        misled: A broker has named a former topic. As long as it does, each of its answers, ten a second, leads to a question
            beside the usual ones. With brokers that know no topic ids, a displaced record may be there twice (docs/limits.md).
        trimmed: Partitions whose log does not reach back to its begin.
        overtaken: Partitions in which a late request stands before what belongs before it; the user was asked.
    """

    PROMISES: ClassVar[dict[str, bool]] = {
        "order across lives": True,
        "request storms": True,
    }
    """Promises that can be switched on or off here, as a whole."""

    def __init__(self, *, durable_first: bool, topic_ids: bool = True) -> None:
        self.durable_first = durable_first
        self.topic_ids = topic_ids
        self.records: dict[int, Record] = {}
        self.lives: list[LifeEntry] = []
        self.unclean: set[int] = set()
        self.lossy = False
        self.recreated: set[int] = set()
        self.displaced: set[int] = set()
        self.misled = False
        self.trimmed: set[int] = set()
        self.overtaken: set[int] = set()
        self.told: set[int] = set()
        self.alone = True
        self.losses = self.parked = self.asked = self.sent = 0
        self.seen: Violation | None = None
        """The first one: what a callback raises, others may swallow."""
        self._ids: set[tuple[int, int, int]] = set()
        self._spools: dict[Any, _Written] = {}
        self._asked: dict[tuple[str, int], deque[float]] = {}
        self._failed: dict[tuple[str, int], tuple[int, int, int]] = {}
        self._refusing: dict[int, tuple[float, float]] = {}
        self.most_asked: Counter[int] = Counter()
        self._decoded: dict[bytes, list[int]] = {}

    def broken(self, name: str, what: str) -> None:
        """A promise is broken, in the middle of a call of somebody who may catch that."""
        self.seen = self.seen or Violation(name, what)
        raise self.seen

    # -- records -----------------------------------------------------------------------------------------------------

    def accept(self, life: LifeEntry, partition: int, doomed: bool) -> Record:
        """A record is about to be handed over."""
        record = Record(len(self.records), life, partition, doomed)
        self.records[record.number] = record
        return record

    @staticmethod
    def numbers(values: Iterable[bytes | None]) -> list[int]:
        """Which records these are."""
        return [int(found[0]) if value and (found := _NUMBER.match(value)) else -1 for value in values]

    def numbers_in(self, data: bytes) -> list[int]:
        """Which records are in a batch."""
        found = self._decoded.get(data)
        if found is None:
            found = self._decoded[data] = self.numbers(codec.decode(data).values)
        return found

    # -- what is on disk ---------------------------------------------------------------------------------------------

    def opened(self, spool: Any, entries: Iterable[Any]) -> None:
        """What a spool has that is opened is durable."""
        written = self._spools[spool] = _Written()
        for entry in entries:
            match entry:
                case MarksEntry():
                    self._apply(written, entry.marks, ())
                case BatchEntry():
                    header = entry.header
                    self._ids.add((header.producer_id, header.producer_epoch, header.base_sequence))

    def decided(self, spool: Any, marks: Iterable[m.Mark]) -> None:
        """These are to be written, after all that were decided before."""
        self._spools[spool].decided.update((id(mark), mark) for mark in marks)

    def wrote(self, spool: Any, marks: list[m.Mark], batches: Iterable[tuple[int, bytearray]]) -> None:
        """A group is written, not synced."""
        headers = [codec.read_header(data) for _, data in batches]
        ids = [(each.producer_id, each.producer_epoch, each.base_sequence) for each in headers]
        self._spools[spool].pending.append((marks, ids))

    def synced(self, spool: Any) -> None:
        """All that was written is durable."""
        written = self._spools[spool]
        for marks, ids in written.pending:
            self._apply(written, marks, ids)
            for mark in marks:
                if id(mark) in written.decided:
                    first = next(iter(written.decided))
                    if first != id(mark):
                        self.broken("decisions overtake", f"{mark} before {written.decided[first]}")
                    del written.decided[first]
        written.pending.clear()

    def failed(self, spool: Any) -> None:
        """What was not synced is to be written again."""
        self._spools[spool].pending.clear()

    def _apply(self, written: _Written, marks: Iterable[m.Mark], ids: Iterable[tuple[int, int, int]]) -> None:
        self._ids.update(ids)
        for mark in marks:
            match mark:
                case m.Identified():
                    self._ids.update((e.producer_id, e.producer_epoch, e.base_sequence) for e in mark.entries)
                case m.Committed():
                    written.committed.update(position for position, _ in mark.entries)
                case m.Revived():
                    written.committed.difference_update(mark.positions)

    # -- while it goes on --------------------------------------------------------------------------------------------

    def produced(self, topic: str, partition: int, header: Any) -> None:
        """A batch is sent."""
        self.sent += 1
        identity = header.producer_id, header.producer_epoch, header.base_sequence
        if header.producer_id < 0:
            self.broken("sent too early", f"a batch of {topic}-{partition} has no id")
        if self.durable_first and identity not in self._ids:
            self.broken("sent too early", f"{identity} of {topic}-{partition} is not durable")
        failed = self._failed.get((topic, partition))
        if failed is not None and failed[:2] == identity[:2] and failed[2] < identity[2]:
            self.broken("sent after a failure", f"{identity} of {topic}-{partition}, after {failed} failed")
        self._failed.pop((topic, partition), None)

    def out(self, topic: str, partition: int, batches: int) -> None:
        """Brokers recognise the last five of a producer again."""
        if batches > _WINDOW:
            self.broken("too many at once", f"{batches} batches to {topic}-{partition}")

    def failed_to_send(self, topic: str, partition: int, header: Any) -> None:
        """A batch was answered with an error: nothing follows it before it was asked about, or sent again."""
        identity = header.producer_id, header.producer_epoch, header.base_sequence
        before = self._failed.get((topic, partition))
        self._failed[topic, partition] = min(before, identity) if before else identity

    def question(self, topic: str, partition: int, now: float, lives: int, *, failed: bool = False) -> None:
        """A partition in trouble is asked about, or something failed there."""
        self.asked += 1
        if not failed:
            self._failed.pop((topic, partition), None)
        times = self._asked.setdefault((topic, partition), deque())
        times.append(now)
        while times[0] <= now - _STORM_S:
            times.popleft()
        most = _STORM_PER_S * _STORM_S * max(1, lives) * (1.5 if self.misled else 1.0)
        if self.PROMISES["request storms"] and len(times) > most:
            self.broken("storm", f"{len(times)} requests in {_STORM_S:g} s about {topic}-{partition}")

    def answered(self, topic: str, partition: int, code: int, now: float) -> None:
        """By the cluster, to a batch: for how long does it refuse without a break?"""
        if code in _DECIDES:
            self._asked.pop((topic, partition), None)  # it goes on
        known = self._refusing.get(partition, (now, now))
        if code not in _REFUSALS:
            self._refusing.pop(partition, None)
        else:
            self._refusing[partition] = (now if now - known[1] > 300.0 else known[0]), now

    def refused_for(self, partition: int, now: float) -> float:
        """Seconds, counted from the first answer about the partition or its topic."""
        return now - min(self._refusing.get(at, (now, now))[0] for at in (partition, -1))

    def begun(self, life: LifeEntry) -> None:
        """A process begins: what the one before it asked is no storm of its own."""
        self.lives.append(life)
        self._asked.clear()
        self._failed.clear()

    def done(self, spool: Any, position: int, records: list[Record], error: BaseException | None) -> None:
        """A future ended."""
        if error is None:
            if position >= 0 and self.durable_first and position not in self._spools[spool].committed:
                self.broken("ended too early", f"the mark at {position} is not durable: {records}")
            for record in records:
                record.durable = record.acked = True

    def in_log(self, partition: Any, offset: int, records: list[Record]) -> None:
        """What ended well is where readers can see it."""
        number = partition.number
        if number in self.unclean or number in self.recreated or number in self.trimmed:
            return
        logs = list(partition.logs.values())
        high = max(log.high_watermark for log in logs)
        wanted = [record.number for record in records]
        if offset >= 0:
            for log in logs:
                at = bisect.bisect_left(log.batches, offset, key=lambda each: each.base_offset)
                if at < len(log.batches) and log.batches[at].end_offset <= high:
                    there = self.numbers_in(bytes(log.batches[at].data))
                    if there == wanted:
                        return
            self.broken("acknowledged too early", f"{wanted} is not at {number}:{offset} below {high}")
        seen = {
            each for log in logs for batch in log.batches if batch.end_offset <= high
            for each in self.numbers_in(bytes(batch.data))
        }  # fmt: skip
        if not seen.issuperset(wanted):
            self.broken("acknowledged too early", f"{wanted} is not in the log of {number}")

    # -- when it is over ---------------------------------------------------------------------------------------------

    def close(self, logs: dict[int, list[int]], rejected: set[int]) -> None:
        """Everything that is promised is there, once, in order, or was refused for a reason.

        Args:
            logs: By partition, the records that readers see.
            rejected: Records in `rejected/`.
        """
        seen: set[int] = set()
        for number, log in logs.items():
            mine = [each for each in log if each >= 0]
            if len(set(mine)) != len(mine):
                twice = sorted(each for each, count in Counter(mine).items() if count > 1)
                if self.topic_ids or not self.misled or not self.displaced.issuperset(twice):
                    raise Violation("twice", f"partition {number}: {twice}")
            if both := seen.intersection(mine):
                raise Violation("twice", f"in two partitions: {sorted(both)}")
            seen.update(mine)
            self._order(number, [self.records[each] for each in mine])
        for record in self.records.values():
            there = record.number in seen
            if record.number in rejected and there:
                raise Violation("twice", f"{record.number} is in the log and in rejected/")
            if record.durable and not there and not record.excused and record.number not in rejected:
                raise Violation("lost", f"{record}")

    def _order(self, number: int, log: list[Record]) -> None:
        if number in self.unclean or number in self.overtaken:
            return
        promised = [record for record in log if record.durable and record.number not in self.displaced]
        across = self.alone or self.PROMISES["order across lives"]
        newest: dict[LifeEntry, int] = {}
        for record in promised:
            for life, last in newest.items():
                # A worker begins before another one dies in the same moment: then they lived side by side.
                over = life.began > record.life.ended or life.worker == record.life.worker
                later = life is record.life or (across and over and life.number > record.life.number)
                if later and last > record.number:
                    raise Violation(
                        "order",
                        f"partition {number}: {record.number} of life {record.life.number} is behind {last} of life"
                        f" {life.number}",
                    )
            newest[record.life] = max(record.number, newest.get(record.life, -1))
