"""Compares the logs of leaders with what a query of the source has read from these logs.

End offsets that go backwards (SPARK-26267, SPARK-27281):

1. Broker A leads orders-0. A query reads batches up to offset 500, and the checkpoint stores offset 500.
2. Broker A fails. Broker B becomes the leader, and for a moment it reports that the log ends at 480.
3. A planner that trusts B's answer writes 480 into the checkpoint. The next batch then reads offsets 480 to 499 again.

To avoid reading offsets 480 to 499 again, the planner first gives the checkpoint's offset to the tracker of end offsets
(`kafkasafe.offsets`). Then the tracker checks each end offset that a leader reports. So a range never ends before it
begins. Without the checkpoint's offset, the tracker of a restarted driver would know no end offset, and would accept
B's 480.

Records that were read and then lost (KIP-279):

1. A query reads orders-0 up to offset 500. The checkpoint stores offset 500 and the leader epoch of the records, 3.
2. The leader fails. Broker B, whose log ends at 480, wins an unclean election as leader of epoch 4.
3. Producers append. B's log ends at 600 when the next batch is planned.

To detect such a loss, the planner checks each new leader once, before it plans a range that continues an earlier range.
The planner asks the leader where the checkpoint's epochs end (OffsetForLeaderEpoch). B answers that epoch 3 ends at
480. So the records 480 to 499 that the query has read are lost, and the next range begins at 480. Comparing offsets is
not enough. The new end of the log, 600, is above 500, so a batch from 500 to 600 would look right. But the query would
never read the new records 480 to 499.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafkasafe.cluster.api import EARLIEST, LATEST, EpochEnd, OffsetListed
from kafkasafe.cluster.inquiry import pause_s
from kafkasafe.cluster.lookups import LeaderChangedError, id_of
from kafkasafe.cluster.procedures import Pause, Procedure
from kafkasafe.history.epochs import UNDEFINED, Diverged, EpochWalk, Lineage, LineageError
from kafkasafe.spark.brokers import Brokers, PartitionGoneError
from kafkasafe.spark.marks import Mark
from kafkasafe.spark.marks import Why as Loss
from kafkasafe.spark.positions import Partition, Positions


@dataclass(slots=True)
class LogState:
    """The state of one partition, as the planner found it.

    The range from `begin` to `end` may be read now. `why` and `lost` describe a loss. If retention removed records,
    `log_start` may hold the first offset of the log, which can be after `end`.
    """

    begin: int
    end: int
    leader_epoch: int = UNDEFINED
    why: Loss | None = None
    lost: tuple[int, int] | None = None
    exists: bool = True
    log_start: int | None = None

    def lose(
        self,
        why: Loss,
        lost: tuple[int, int] | None,
        *,
        begin: int | None = None,
        end: int | None = None,
        log_start: int | None = None,
    ) -> None:
        """Stores a loss and the new bounds of the range. A bound that is None does not change."""
        self.why, self.lost = why, lost
        self.begin = self.begin if begin is None else begin
        self.end = self.end if end is None else end
        self.log_start = self.log_start if log_start is None else log_start

    def stop_at(self, end: int) -> None:
        """Shortens the range so that it ends at or before `end`, but not before `begin`."""
        self.end = max(self.begin, min(self.end, end))

    def found_leader(self, epoch: int) -> None:
        """Stores the epoch of a new leader."""
        self.leader_epoch = epoch


class _Settled(NamedTuple):
    """A leader's answer about the end of its log, and the values with which `advance` compared the answer."""

    was: Mark
    topic_id: bytes | None
    now_id: bytes | None
    end: int
    leader_epoch: int


class LeaderLogs:
    """Remembers which leaders' logs contain all records that the query has read, and the leader epochs in these logs.
    Not thread-safe.

    Args:
        brokers: The brokers to ask.
    """

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._lookups = brokers.lookups
        # (topic id, leader epoch) of the latest leader whose log was found to contain all records that the query has
        # read.
        self._checked: dict[Partition, tuple[bytes | None, int]] = {}
        # Partition → the findings of the last plan, only for partitions without a loss. See `unchanged`.
        self._settled: dict[Partition, _Settled] = {}
        # The epochs that a leader reported: (the leader's own epoch, [(epoch, first offset)], lowest offset that these
        # epochs cover).
        self._runs: dict[Partition, tuple[int, list[tuple[int, int]], int]] = {}

    def unchanged(
        self,
        start: Positions,
        ends: Mapping[Partition, OffsetListed],
        starts: Mapping[Partition, OffsetListed],
    ) -> dict[Partition, LogState]:
        """Finds the partitions for which `advance` need not be called: it would find no loss, and would return the same
        result as last time.

        Leaving partitions out only saves CPU time: most partitions of a large topic have no new records between two
        plans. The result contains a partition if nothing has changed since the last call of `advance`: neither the
        leader's answer, nor the values with which `advance` would compare the answer. If there are records to read, the
        leader must also have answered that the log still holds them.

        Args:
            start: Where the micro-batch begins.
            ends: The leaders' answers about the ends of the logs.
            starts: The leaders' answers about the beginnings of those logs that have new records.
        """
        found = {}
        now_ids: dict[str, bytes | None] = {}
        for partition, end in ends.items():
            settled = self._settled.get(partition)
            if settled is None or (end.offset, end.leader_epoch) != (settled.end, settled.leader_epoch):
                continue
            topic = partition[0]
            if topic not in now_ids:
                now_ids[topic] = id_of(self._brokers.topic(topic))
            was, mark = settled.was, start.marks.get(partition)
            if (
                (mark is not was and mark != was)
                or start.topic_ids.get(topic) != settled.topic_id
                or now_ids[topic] != settled.now_id
                or self._checked.get(partition) != (settled.now_id, settled.leader_epoch)
            ):
                continue
            if settled.end > was.offset:
                first = starts.get(partition)
                if first is None or first.offset > was.offset:
                    continue
            found[partition] = LogState(was.offset, settled.end, settled.leader_epoch)
        return found

    def forget_unchanged(self) -> None:
        """Makes the next plan examine all partitions, because other look-ups may have found newer end offsets."""
        self._settled.clear()

    def advance(self, partition: Partition, was: Mark | None, topic_id: bytes | None) -> Procedure[LogState]:
        """Finds how far a partition may be read, and whether its log still contains the records that the query has
        read.
        """
        self._settled.pop(partition, None)
        info = self._brokers.topic(partition[0])
        if info is not None and partition[1] in info.partitions:
            try:
                return (yield from self._advance(partition, was, topic_id, id_of(info)))
            except PartitionGoneError:
                pass
        begin = 0 if was is None else was.offset
        return LogState(begin, begin, why="missing", exists=False)

    def _advance(
        self, partition: Partition, was: Mark | None, topic_id: bytes | None, now_id: bytes | None
    ) -> Procedure[LogState]:
        note = self._brokers.watch(partition)
        if was is None:
            end = yield from self._lookups.end(*partition, note)
            first = (yield from self._lookups.listed(*partition, EARLIEST, note)).offset
            found = LogState(first, max(first, end.offset), end.leader_epoch)
            if first > 0:
                found.lose("new_partition", (0, first - 1))
        elif topic_id is not None and now_id is not None and now_id != topic_id:
            self._checked.pop(partition, None)
            self._runs.pop(partition, None)
            end = yield from self._lookups.end(*partition, note)
            first = (yield from self._lookups.listed(*partition, EARLIEST, note)).offset
            found = LogState(first, max(first, end.offset), end.leader_epoch, "recreated")
        else:
            self._brokers.observe(partition, was, now_id)
            end = yield from self._lookups.end(*partition, note)
            found = LogState(was.offset, max(was.offset, end.offset), end.leader_epoch)
            if self._checked.get(partition) != (now_id, end.leader_epoch):
                yield from self._compare(partition, was.lineage, was.offset, found)
            if found.why is None and end.offset < was.offset:
                # The tracker has accepted a lower end offset. It does so only if a loss of records is proven, or if
                # `accept` was called.
                found.lose("truncated", (end.offset, was.offset - 1), begin=end.offset, end=end.offset)
            if found.end > found.begin:
                first = (yield from self._lookups.listed(*partition, EARLIEST, note)).offset
                if first > found.begin:
                    lost = (found.begin, first - 1)
                    found.lose("retention", lost, begin=first, end=max(first, found.end))
        if found.why is None:
            self._checked[partition] = (now_id, end.leader_epoch)
        if found.end > found.begin:
            yield from self._learn(partition, found, None if was is None else was.lineage)
        if (
            was is not None
            and found.why is None
            and found.end == end.offset
            and (found.end == found.begin or self._runs.get(partition, (UNDEFINED,))[0] == end.leader_epoch)
        ):
            self._settled[partition] = _Settled(was, topic_id, now_id, end.offset, end.leader_epoch)
        return found

    def recheck(
        self, partition: Partition, begin: int, last: int, lineage: Lineage, topic_id: bytes | None
    ) -> Procedure[LogState]:
        """Checks that the log still holds a planned range. A range needs the check if an earlier run planned the range,
        or if the partition has a new leader.
        """
        info = self._brokers.topic(partition[0])
        if info is not None and partition[1] in info.partitions:
            try:
                return (yield from self._recheck(partition, begin, last, lineage, topic_id, id_of(info)))
            except PartitionGoneError:
                pass
        return LogState(last, last, why="missing", lost=(begin, last - 1), exists=False)

    def _recheck(
        self,
        partition: Partition,
        begin: int,
        last: int,
        lineage: Lineage,
        topic_id: bytes | None,
        now_id: bytes | None,
    ) -> Procedure[LogState]:
        note = self._brokers.watch(partition)
        answer = yield from self._lookups.listed(*partition, LATEST, note)
        found = LogState(begin, last, answer.leader_epoch)
        if topic_id is not None and now_id is not None and topic_id != now_id:
            return LogState(begin, begin, answer.leader_epoch, "recreated", (begin, last - 1))
        before = found.end
        yield from self._compare(partition, lineage, last, found)
        if found.why is not None:
            # The rest of the range is lost. The next plan finds the same divergence, and the next batch reads the
            # records that replaced the lost ones.
            lost_from = max(begin, found.begin)
            found.lose(found.why, (lost_from, last - 1), begin=begin, end=min(before, lost_from))
        first = (yield from self._lookups.listed(*partition, EARLIEST, note)).offset
        if first > begin:
            lost = (begin, min(first, last) - 1)
            begin = min(first, last)
            found.lose("retention", lost, begin=begin, end=max(begin, found.end), log_start=first)
        if found.why is None:
            self._checked[partition] = (now_id, found.leader_epoch)
        return found

    def is_checked(self, partition: Partition) -> bool:
        """Returns whether a check has shown that the current leader's log contains all records of the partition that
        the query has read.
        """
        info = self._brokers.topic(partition[0])
        leader = None if info is None else info.partitions.get(partition[1])
        checked = self._checked.get(partition)
        if info is None or leader is None or checked is None:
            return False
        return checked[0] == id_of(info) and checked[1] >= leader.leader_epoch

    def lineage(self, partition: Partition, known: Lineage, found: LogState) -> Lineage:
        """Returns the leader epochs of the records before `found.end`. Leaves out epochs that are not certain."""
        if found.why in {"diverged", "truncated", "recreated", "retention"}:
            known = known.copy()
            known.truncate(found.begin)
            if found.why in {"recreated", "retention"}:
                known = Lineage()
        leader_epoch, runs, down_to = self._runs.get(partition, (UNDEFINED, [], -1))
        if leader_epoch != found.leader_epoch or not runs:
            return known
        if known.entries and known.end_offset < down_to:
            return known
        entries = [entry for entry in known.entries if entry[0] < runs[0][0] and entry[1] < runs[0][1]]
        entries += [(epoch, max(begin, 0)) for epoch, begin in runs if begin < found.end]
        try:
            return Lineage(entries, found.end)
        except LineageError:
            # The epochs in the checkpoint contradict the leader's epochs. Only the leader's epochs are proven.
            return Lineage([run for run in runs if run[1] < found.end], found.end)

    def _compare(
        self, partition: Partition, lineage: Lineage, position: int, found: LogState
    ) -> Procedure[None]:
        """Checks that the leader's log contains the records before `position`. Stores a loss in `found`."""
        if not lineage.entries or lineage.start_offset >= position:
            return
        tries = 0
        while True:
            try:
                outcome = yield from self._walk(partition, lineage, position, found.leader_epoch)
            except LeaderChangedError:
                self._brokers.network().refresh_metadata([partition[0]], _ignore)
                yield Pause(pause_s(tries))
                tries += 1
                found.found_leader((yield from self._lookups.listed(*partition, LATEST)).leader_epoch)
                continue
            break
        if isinstance(outcome, Diverged) and outcome.divergent_offset < position:
            log_end = (yield from self._lookups.listed(*partition, LATEST)).offset
            begin = outcome.divergent_offset
            found.lose("diverged", outcome.rolled_back, begin=begin, end=max(begin, min(found.end, log_end)))

    def _walk(self, partition: Partition, lineage: Lineage, position: int, current: int) -> Procedure[Any]:
        first = (yield from self._lookups.listed(*partition, EARLIEST)).offset
        walk = EpochWalk(lineage, position=position, log_start_offset=first)
        while (epoch := walk.query()) is not None:
            answer = yield from self._lookups.epoch_end(*partition, epoch, current)
            walk.answer(answer.leader_epoch, answer.end_offset)
        return walk.outcome

    def _learn(self, partition: Partition, found: LogState, history: Lineage | None) -> Procedure[None]:
        """Asks the leader for its epochs, from the newest back to the epoch at the range's begin (or at the end of
        `history`, if that is lower). Each epoch takes one request.
        """
        current = found.leader_epoch
        if current < 0:
            return
        known = self._runs.get(partition)
        keep = history is not None and bool(history.entries) and found.why not in {"recreated", "retention"}
        down_to = min(history.end_offset, found.begin) if keep and history is not None else found.begin
        if known is not None and known[0] == current and known[2] <= down_to:
            return
        runs: list[tuple[int, int]] = []
        epoch = current
        try:
            while True:
                below = (
                    yield from self._lookups.epoch_end(*partition, epoch - 1, current)
                    if epoch > 0
                    else _none_below()
                )
                begin = max(below.end_offset, 0) if below.leader_epoch >= 0 else 0
                runs.append((epoch, begin))
                if begin <= down_to or below.leader_epoch < 0 or below.leader_epoch >= epoch:
                    break
                epoch = below.leader_epoch
        except LeaderChangedError:
            # There is another leader, whose epochs stay unknown until the next plan asks it.
            return
        runs.reverse()
        self._runs[partition] = (current, runs, max(runs[0][1], 0))


def _none_below() -> Procedure[EpochEnd]:
    """Returns offset 0 as the end of all epochs below epoch 0. Sends no request, because no such epoch exists."""
    yield from ()
    return EpochEnd(0, UNDEFINED, UNDEFINED)


def _ignore(_: object) -> None:
    """Ignores the reply, because the refresh itself updates the metadata."""
