"""Plans on Spark's driver which offsets a query reads.

A `Planner` queries the cluster and turns the answers into `Positions`. It never reads records.

End offsets that go backwards (SPARK-26267, SPARK-27281):

1. Broker A leads orders-0. A query reads batches up to offset 500, and the checkpoint stores offset 500.
2. Broker A fails. Broker B becomes the leader, and for a moment it reports that the log ends at 480.
3. A planner that trusts this answer writes 480 into the checkpoint. The next batch then reads offsets 480 to 499 again.

To prevent this repetition, the planner first gives the checkpoint's offset to the tracker of `kafkasafe.offsets`. Then
the tracker checks each end offset. So a range never ends below the offset where it begins. The tracker alone would not
be enough. After a restart of the driver it knows no end offset, so it would accept B's 480 as the first answer.

Records that were read and then lost (KIP-279):

1. A query reads orders-0 up to offset 500. All these records have leader epoch 3, which the checkpoint stores too.
2. The leader fails. Broker B, whose log ends at 480, wins an unclean election as leader of epoch 4.
3. Producers append. B's log ends at 600 when the next batch is planned.

To detect this loss, the planner checks each new leader once, before it plans a range that continues from offsets
already read. It asks the leader where the checkpoint's epochs end. B answers that epoch 3 ends at 480. So the records
480 to 499 that the query has read are lost, and the next range begins at 480. Comparing offsets is not enough. The new
end of the log, 600, is above 500, so a batch from 500 to 600 would look right. But the query would never read the new
records 480 to 499.

Further rules:

- Two kinds of records count as lost: records that disappear from the log after they were read, and records that
  retention removed before they were read. Depending on `failOnDataLoss`, a loss ends the query, or the planner reports
  it and writes it into the checkpoint (`Mark.begin`). The planner never skips records silently.
- The planner does not plan on incomplete knowledge. While a partition has no leader, or while the tracker holds back a
  lower answer, the partition's range is empty. The next plan tries again.
- The planner evaluates the starting options once for each query. The end of the first micro-batch records where each of
  its ranges begins (`positions`). So the batch keeps its ranges when Spark runs it again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kafkasafe.classification import Verdict, classify
from kafkasafe.cluster.api import Cluster, EpochEnd, Failure, OffsetListed, TopicInfo, TopicsListed
from kafkasafe.cluster.inquiry import ProcedureRunner, RunningProcedure, ask_until_answered, pause_s
from kafkasafe.cluster.lookups import LeaderChangedError, LookUps, id_of
from kafkasafe.cluster.procedures import Ask, Pause, Procedure
from kafkasafe.errors import ConfigError, DataLossError, RemoteStorageNotReadyError, SparkError
from kafkasafe.events import SourceDataLost
from kafkasafe.history.epochs import UNDEFINED, Diverged, EpochWalk, Lineage, LineageError
from kafkasafe.kafkapython.connect import connect
from kafkasafe.offsets import EndOffsetTracker, IsolationLevel
from kafkasafe.spark.marks import UNRESOLVED, Mark
from kafkasafe.spark.marks import Why as Loss
from kafkasafe.spark.notices import Notices
from kafkasafe.spark.option_values import error
from kafkasafe.spark.options import (
    EARLIEST,
    LATEST,
    Assign,
    Bound,
    Offsets,
    Pattern,
    ReadOptions,
    Subscribe,
    Times,
)
from kafkasafe.spark.positions import Partition, Positions, divide, ranges_between, share
from kafkasafe.stats import ConsumerStats

__all__ = ["Planner", "Range", "SourceUnavailableError"]

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_UNKNOWN_TOPIC: Final = 3
# Shortly after its start, a broker answers UNKNOWN_TOPIC even for topics that exist. So a topic counts as missing only
# after this number of seconds.
_MISSING_TOPIC_S: Final = 5.0
_METADATA_AGE_S: Final = 5.0
# How long a plan waits for answers about all partitions at once. After that, it asks about each partition.
_AT_ONCE_S: Final = 5.0


class SourceUnavailableError(SparkError, TimeoutError):
    """The brokers did not answer in time. Nothing was read or skipped, so the query can be started again."""


@dataclass(frozen=True, slots=True)
class Range:
    """A part of one partition that one task reads.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        begin: First offset (inclusive).
        end: Offset after the last one (exclusive).
        epochs: Known leader epochs of the records before `end` (`Lineage.encode`); "" if none is known.
    """

    topic: str
    partition: int
    begin: int
    end: int
    epochs: str = ""


@dataclass(slots=True)
class _Found:
    """The state of one partition, as the planner found it.

    The range from `begin` to `end` may be read now. `why` and `lost` describe a loss. After a loss to retention,
    `log_start` may hold the first offset of the log, which can be after `end`.
    """

    begin: int
    end: int
    leader_epoch: int = UNDEFINED
    why: Loss | None = None
    lost: tuple[int, int] | None = None
    exists: bool = True
    log_start: int | None = None


class Planner:
    """Asks the cluster which offsets can be read. Connects when it first needs an answer. Not thread-safe.

    Args:
        options: Options of the reader.
        notices: Receives the events, such as losses.
    """

    def __init__(self, options: ReadOptions, notices: Notices) -> None:
        self._options = options
        self._notices = notices
        self._transport: Cluster | None = None
        self._tracker = EndOffsetTracker()
        self._stats = ConsumerStats()
        self._lookups = LookUps(
            self._network, self._tracker, self._stats, notices.tell, options.isolation, self._note
        )
        self._isolation: IsolationLevel = "read_committed" if options.isolation else "read_uncommitted"
        # (topic id, leader epoch) of the latest leader whose log was found to hold all records that the query has read.
        self._checked: dict[Partition, tuple[bytes | None, int]] = {}
        # The epochs that a leader reported: (its own epoch, [(epoch, first offset)], lowest offset that they cover).
        self._runs: dict[Partition, tuple[int, list[tuple[int, int]], int]] = {}
        self._looked_at = -1e9
        self._missing: set[str] = (
            set()
        )  # topics that did not appear within _MISSING_TOPIC_S; do not wait for them again
        self._gone: set[Partition] = set()  # missing partitions whose loss is already reported
        self._matching: tuple[str, ...] = ()
        self._target: Mapping[Partition, int] | None = None
        self.seen: Positions | None = None
        """The ends of the logs that the latest plan found; None before the first plan."""
        self.refused: Exception | None = None
        """The error that kept `opening` from evaluating the starting options; None if it had none."""

    def close(self) -> None:
        """Closes the connections. A later call opens them again."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close(10.0)

    # --- questions of a query -----------------------------------------------------------------------------------------

    def first(self) -> Positions:
        """Evaluates the starting options. Returns where a new streaming query begins.

        Raises:
            ConfigError: `startingOffsets` does not match the existing partitions, or the starting time is after the
                last record.
            SourceUnavailableError: The brokers do not answer.
        """
        partitions = self._partitions(fresh=True)
        self._require(partitions)
        begins = self._resolve(self._options.starting, "starting", partitions)
        marks = {partition: Mark(begins[partition]) for partition in partitions}
        return Positions(marks, self._ids(partitions), initial=True)

    def batch(self) -> list[Range]:
        """Plans the ranges that a batch query reads."""
        partitions = self._partitions(fresh=True)
        self._require(partitions)
        begins = self._resolve(self._options.starting, "starting", partitions)
        ends = self._resolve(self._options.ending, "ending", partitions)
        starts = self._gather(
            {partition: self._lookups.listed(*partition, EARLIEST) for partition in partitions}
        )
        ranges = []
        for partition in partitions:
            begin, end, log_start = begins[partition], ends[partition], starts[partition].offset
            if begin > end and self._begin_was_chosen(partition):
                raise error(
                    "OFFSETS_DO_NOT_MATCH",
                    f"{_names([partition])} would be read from {begin} to {end}: the starting options give a higher"
                    " offset than the ending options. Correct one of them.",
                )
            if begin < log_start and begin < end:
                lost = (begin, min(log_start, end) - 1)
                self._lose(partition, "retention", begin, min(log_start, end), lost)
                begin = log_start
            ranges.append((partition, begin, max(begin, end)))
        return self._tasks([found for found in ranges if found[1] < found[2]], {})

    def _begin_was_chosen(self, partition: Partition) -> bool:
        """Returns whether the user chose a first offset other than the start or the end of the log."""
        starting = self._options.starting
        value = starting.everywhere if starting.each is None else starting.each[partition]
        if isinstance(starting, Offsets):
            return value != EARLIEST
        # A starting time after the last record resolves to the end of the log.
        ending = self._options.ending
        return not (isinstance(ending, Offsets) and ending.everywhere == LATEST)

    def bounds(self) -> dict[Partition, tuple[int, int]]:
        """Returns the first offset and the end of each partition's log."""
        partitions = self._partitions(fresh=False)
        starts = self._gather(
            {partition: self._lookups.listed(*partition, EARLIEST) for partition in partitions}
        )
        ends = self._gather({partition: self._lookups.end(*partition) for partition in partitions})
        return {partition: (starts[partition].offset, ends[partition].offset) for partition in partitions}

    def latest(self, start: Positions, limit: int = 0, at_least: int = 0) -> Positions:
        """Plans where the next micro-batch ends.

        Args:
            start: Where the micro-batch begins. For the first batch of a query, pass the result of `first`.
            limit: Maximum number of offsets in the batch; 0: no limit.
            at_least: Minimum number of offsets. If fewer are available, the result is the same as without new
                records. A loss is reported in any case.

        Returns:
            The positions where the batch ends. They are equal to `start` without new records, unless the batch is the
            query's first. The end of the first batch also holds the offset where the batch begins in each partition.

        Raises:
            DataLossError: Records were lost, and `failOnDataLoss` is true. The message names all losses.
            SourceUnavailableError: The brokers do not answer.
        """
        partitions = self._partitions(fresh=False)
        ids = {**start.topic_ids, **self._ids(partitions)}
        procedures = {
            partition: self._advance(partition, start.marks.get(partition), start.topic_ids.get(partition[0]))
            for partition in {*partitions, *start.marks}
        }
        began = time.monotonic()
        self._ask_at_once(partitions, start)
        try:
            found = self._gather(procedures, began)
        finally:
            self._lookups.forget_given()
        positions = {partition: mark.offset for partition, mark in start.marks.items()}
        self._tell_losses(positions, found, is_first=start.initial)
        self.seen = Positions({partition: Mark(state.end) for partition, state in found.items()}, ids)
        if self._target is not None:
            for partition, state in found.items():
                state.end = max(state.begin, min(state.end, self._target.get(partition, state.begin)))
        sizes = {partition: state.end - state.begin for partition, state in found.items()}
        if sum(sizes.values()) < at_least and all(state.why is None for state in found.values()):
            if not start.initial:
                return Positions(start.marks, start.topic_ids)
            for state in found.values():
                state.end = state.begin
        elif limit:
            turn = sum(mark.offset for mark in start.marks.values())
            for partition, size in share(sizes, limit, turn).items():
                found[partition].end = found[partition].begin + size
        marks = {partition: self._mark(partition, start, found[partition]) for partition in found}
        new = start.initial or any(state.why is not None and state.exists for state in found.values())
        if not new and all(start.marks.get(partition) == mark for partition, mark in marks.items()):
            return Positions(start.marks, start.topic_ids)
        return Positions(marks, ids)

    def stop_at_latest(self) -> None:
        """Limits all later plans to the current end of each partition (Trigger.AvailableNow)."""
        partitions = self._partitions(fresh=True)
        ends = self._gather({partition: self._lookups.end(*partition) for partition in partitions})
        self._target = {partition: end.offset for partition, end in ends.items()}

    def opening(self) -> Positions:
        """Plans where the first micro-batch of a run ends, for Spark versions that do not say where it begins.

        This method cannot know whether the query is new or restarted. For a new query, each mark stores the offset
        where the starting options begin, as `first`. For a restarted query, the starting options have no effect, so an
        error in them must not end the query. This method therefore stores such an error in `refused` instead of raising
        it.

        Raises:
            SourceUnavailableError: The brokers do not answer.
        """
        begins: Mapping[Partition, Mark] | None = None
        try:
            begins = self.first().marks
        except (ConfigError, SourceUnavailableError) as problem:
            if isinstance(problem, SourceUnavailableError) and not self._network().connected:
                raise  # the requests for the ends would fail too
            self.refused = problem
        partitions = self._partitions(fresh=False)
        ends = self._gather({partition: self._lookups.end(*partition) for partition in partitions})
        marks = {}
        for partition, end in ends.items():
            # A partition created between the two requests is read from its first record.
            begin = UNRESOLVED if begins is None else begins.get(partition, Mark(0)).offset
            marks[partition] = Mark(end.offset, first=begin)
        return Positions(marks, self._ids(partitions))

    def ranges(self, start: Positions, end: Positions) -> list[Range]:
        """Divides a micro-batch into ranges for tasks. The batch may be new, or one that Spark runs again.

        Raises:
            DataLossError: The log no longer holds planned records, and `failOnDataLoss` is true.
            ConfigError: A range ends before it begins. Or the batch is the first one of its query, and an older version
                planned it without recording where it begins.
        """
        if start.initial:
            start = self._begun(start, end)
        wanted = [found for found in ranges_between(start, end) if found[1] < found[2]]
        if not wanted:
            return []
        self._partitions(fresh=False)
        epochs = {partition: end.marks[partition].lineage for partition, _, _ in wanted}
        unchecked = {
            partition: self._recheck(
                partition, begin, last, epochs[partition], end.topic_ids.get(partition[0])
            )
            for partition, begin, last in wanted
            if not self._is_checked(partition)
        }
        found = self._gather(unchecked)
        begins = {partition: begin for partition, begin, _ in wanted}
        self._tell_losses(begins, found, is_first=start.initial)
        bounds = {partition: (state.begin, state.end) for partition, state in found.items() if state.exists}
        tasks = []
        for partition, begin, last in wanted:
            if partition in found and not found[partition].exists:
                continue
            first, log_end = bounds.get(partition, (begin, last))
            if max(first, begin) < min(log_end, last):
                tasks.append((partition, max(first, begin), min(log_end, last)))
        return self._tasks(tasks, epochs)

    def _begun(self, start: Positions, end: Positions) -> Positions:
        """Finds where a query's first micro-batch begins, in the partitions whose mark does not record it.

        Marks that older versions or Spark's own source wrote do not record where the batch begins. If the starting
        options resolve to the same offset now as when the batch was planned, the batch begins there. But "latest" now
        resolves to another offset. Then the beginning of the batch cannot be determined, so the user has to give it.
        """
        unknown = [
            partition
            for partition, mark in end.marks.items()
            if mark.begin is None and mark.first in {None, UNRESOLVED}
        ]
        if not unknown:
            return start
        begins = dict((start if start.marks else self.first()).marks)
        unsure = []
        for partition in unknown:
            mark = end.marks[partition]
            begin = begins.get(partition, Mark(0)).offset
            if mark.first == UNRESOLVED:
                # This batch planned no records. Records that were appended later belong to the next batch.
                begins[partition] = Mark(min(begin, mark.offset))
            elif begin > mark.offset or not self._is_fixed(partition, begin, mark.offset):
                unsure.append(partition)
        if unsure:
            given: dict[str, dict[str, int]] = {}
            for (topic, number), mark in sorted(end.marks.items()):
                given.setdefault(topic, {})[str(number)] = mark.offset
            raise error(
                "FIRST_BATCH_UNKNOWN",
                f"The checkpoint has an unfinished first micro-batch and does not record where that batch begins in"
                f" {_names(unsure)}: an older kafkasafe or format kafka planned it. Start the query once with"
                f" .option(\"startingOffsets\", '{json.dumps(given)}') or with lower offsets. The offsets shown here"
                " are the ends of the batch: with them the query continues after the batch and skips its records. With"
                " lower offsets it reads from those offsets on.",
            )
        return Positions(begins, start.topic_ids, initial=True)

    def _is_fixed(self, partition: Partition, begin: int, end: int) -> bool:
        """Returns whether the starting options already resolved to `begin` when the batch up to `end` was planned."""
        starting = self._options.starting
        if isinstance(starting, Offsets):
            return (starting.everywhere if starting.each is None else starting.each.get(partition)) != LATEST
        # The start is given as a time. If a record at or after this time was found before `end`, it existed when the
        # batch was planned. Otherwise `begin` may be the end of the log, which moves with each appended record.
        return begin < end

    def _tasks(
        self, ranges: list[tuple[Partition, int, int]], epochs: Mapping[Partition, Lineage]
    ) -> list[Range]:
        options = self._options
        pieces = divide(ranges, at_least=options.min_partitions, max_records=options.max_records)
        encoded = {partition: lineage.encode() for partition, lineage in epochs.items() if lineage.entries}
        return [Range(*partition, begin, end, encoded.get(partition, "")) for partition, begin, end in pieces]

    # --- marks --------------------------------------------------------------------------------------------------------

    def _mark(self, partition: Partition, start: Positions, found: _Found) -> Mark:
        before = start.marks.get(partition)
        if start.initial:
            lineage = self._lineage(partition, Lineage(), found) if found.exists else Lineage()
            why, lost = (found.why, found.lost) if found.exists else (None, None)
            return Mark(found.end, lineage, found.begin, why, lost)
        if not found.exists:
            return Mark(found.begin) if before is None else before
        if before is not None and found.why is None and found.end == before.offset:
            # Without new records, keep the JSON text identical: otherwise Spark would run an empty batch.
            return before
        known = Lineage() if before is None else before.lineage
        moved = before is None or found.why is not None
        lineage = self._lineage(partition, known, found)
        return Mark(found.end, lineage, found.begin if moved else None, found.why, found.lost)

    def _lineage(self, partition: Partition, known: Lineage, found: _Found) -> Lineage:
        """Returns the leader epochs of the records before `found.end`, as far as they are certain."""
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

    def _tell_losses(
        self, positions: Mapping[Partition, int], found: Mapping[Partition, _Found], *, is_first: bool
    ) -> None:
        """Raises an error for the losses that were found, or reports them as events.

        Args:
            positions: Next offset to read, by partition; new partitions have no entry.
            found: State of each partition.
            is_first: Whether the query has not read any record yet, because it begins at these positions.
        """
        lost = {partition: state for partition, state in found.items() if state.why is not None}
        if not lost:
            return
        if self._options.fail_on_data_loss:
            unwanted = {partition for partition in lost if not self._is_wanted(partition)}
            raise _data_loss(positions, lost, unwanted, is_first=is_first)
        for partition, state in sorted(lost.items()):
            if not state.exists:
                if partition in self._gone:
                    continue
                self._gone.add(partition)
            position = positions.get(partition, 0)
            assert state.why is not None  # noqa: S101  # `lost` holds only such states
            self._notices.tell(SourceDataLost(*partition, state.why, position, state.begin, state.lost))

    def _lose(
        self, partition: Partition, why: Loss, position: int, resumed_at: int, lost: tuple[int, int] | None
    ) -> None:
        if self._options.fail_on_data_loss:
            raise _loss_error([(partition, why, position, resumed_at, lost)], is_first=True)
        self._notices.tell(SourceDataLost(*partition, why, position, resumed_at, lost))

    # --- all partitions at once ---------------------------------------------------------------------------------------

    def _ask_at_once(self, partitions: Sequence[Partition], start: Positions) -> None:
        """Asks each leader once for the ends of all its partitions, and then for the starts that `_advance` needs.

        This only saves CPU: `_advance` decides, and it uses these answers instead of its first requests. It sends a
        request of its own for each partition about which a leader did not answer, or answered with an error.
        """
        ends = self._at_once(partitions, LATEST)
        self._lookups.give(LATEST, ends)
        # `_advance` asks where a log begins only after it knows where the log ends. Keep that order.
        nowhere = Mark(-1)
        moved = [
            partition
            for partition, end in ends.items()
            if end.offset > start.marks.get(partition, nowhere).offset
        ]
        if moved:
            self._lookups.give(EARLIEST, self._at_once(moved, EARLIEST))

    def _at_once(self, partitions: Sequence[Partition], timestamp: int) -> Mapping[Partition, OffsetListed]:
        runner = ProcedureRunner()
        inquiry = runner.begin(self._lookups.ask_at_once(partitions, timestamp))
        deadline = time.monotonic() + min(_AT_ONCE_S, self._options.stall_timeout_s / 4)
        if not _all_done(runner, [inquiry], deadline):
            inquiry.cancel()
        return inquiry.result or {}

    # --- procedures: one partition ------------------------------------------------------------------------------------

    def _advance(self, partition: Partition, was: Mark | None, topic_id: bytes | None) -> Procedure[_Found]:
        """Finds how far a partition may be read, and whether the log still holds the records already read."""
        info = self._info(partition[0])
        if info is None or partition[1] not in info.partitions:
            begin = 0 if was is None else was.offset
            return _Found(begin, begin, why="missing", exists=False)
        now_id = id_of(info)
        if was is None:
            end = yield from self._lookups.end(*partition)
            first = (yield from self._lookups.listed(*partition, EARLIEST)).offset
            found = _Found(first, max(first, end.offset), end.leader_epoch)
            if first > 0:
                found.why, found.lost = "new_partition", (0, first - 1)
        elif topic_id is not None and now_id is not None and now_id != topic_id:
            self._checked.pop(partition, None)
            self._runs.pop(partition, None)
            end = yield from self._lookups.end(*partition)
            first = (yield from self._lookups.listed(*partition, EARLIEST)).offset
            found = _Found(first, max(first, end.offset), end.leader_epoch, "recreated")
        else:
            self._seed(partition, was, now_id)
            end = yield from self._lookups.end(*partition)
            found = _Found(was.offset, max(was.offset, end.offset), end.leader_epoch)
            if self._checked.get(partition) != (now_id, end.leader_epoch):
                yield from self._compare(partition, was.lineage, was.offset, found)
            if found.why is None and end.offset < was.offset:
                # The tracker has accepted a lower end offset. It does so only if a loss of records is proven, or after
                # an explicit decision. It holds back all other lower end offsets.
                found.begin = found.end = end.offset
                found.why, found.lost = "truncated", (end.offset, was.offset - 1)
            if found.end > found.begin:
                first = (yield from self._lookups.listed(*partition, EARLIEST)).offset
                if first > found.begin:
                    found.lost = (found.begin, first - 1)
                    found.begin, found.end, found.why = first, max(first, found.end), "retention"
        if found.why is None:
            self._checked[partition] = (now_id, end.leader_epoch)
        if found.end > found.begin:
            yield from self._learn(partition, found, None if was is None else was.lineage)
        return found

    def _seed(self, partition: Partition, was: Mark, topic_id: bytes | None) -> None:
        """Gives the checkpoint's offset to the tracker, which knows no end offset after a restart of the driver."""
        known = self._tracker.end_offset(*partition, isolation_level=self._isolation)
        if known is None or known < was.offset:
            self._tracker.observe(
                *partition,
                was.offset,
                leader_epoch=was.lineage.newest_epoch,
                topic_id=topic_id,
                isolation_level=self._isolation,
            )

    def _compare(
        self, partition: Partition, lineage: Lineage, position: int, found: _Found
    ) -> Procedure[None]:
        """Checks that the leader's log holds the records before `position`. Stores a loss in `found`."""
        if not lineage.entries or lineage.start_offset >= position:
            return
        tries = 0
        while True:
            try:
                outcome = yield from self._walk(partition, lineage, position, found.leader_epoch)
            except LeaderChangedError:
                self._network().refresh_metadata([partition[0]], _ignore)
                yield Pause(pause_s(tries))
                tries += 1
                found.leader_epoch = (yield from self._lookups.listed(*partition, LATEST)).leader_epoch
                continue
            break
        if isinstance(outcome, Diverged) and outcome.divergent_offset < position:
            found.why, found.lost = "diverged", outcome.rolled_back
            found.begin = outcome.divergent_offset
            found.end = max(
                outcome.divergent_offset,
                min(found.end, (yield from self._lookups.listed(*partition, LATEST)).offset),
            )

    def _walk(self, partition: Partition, lineage: Lineage, position: int, current: int) -> Procedure[Any]:
        first = (yield from self._lookups.listed(*partition, EARLIEST)).offset
        walk = EpochWalk(lineage, position=position, log_start_offset=first)
        while (epoch := walk.query()) is not None:
            answer = yield from self._lookups.epoch_end(*partition, epoch, current)
            walk.answer(answer.leader_epoch, answer.end_offset)
        outcome = walk.outcome
        if (
            isinstance(outcome, Diverged)
            and outcome.divergent_offset == first
            and first > 0
            and outcome.common_epoch is None
        ):
            # Retention removed all records already read. That is not a divergence; the caller checks for retention.
            return None
        return outcome

    def _learn(self, partition: Partition, found: _Found, history: Lineage | None) -> Procedure[None]:
        """Asks the leader for its epochs, newest first, down to the known ones. Each new epoch takes one request."""
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
            # The next plan asks the new leader. Until then, the leader's epochs are unknown.
            return
        runs.reverse()
        self._runs[partition] = (current, runs, max(runs[0][1], 0))

    def _recheck(
        self, partition: Partition, begin: int, last: int, lineage: Lineage, topic_id: bytes | None
    ) -> Procedure[_Found]:
        """Checks that the log still holds a range that an earlier run planned, or that has a new leader since then."""
        info = self._info(partition[0])
        if info is None or partition[1] not in info.partitions:
            return _Found(begin, begin, why="missing", exists=False)
        now_id = id_of(info)
        answer = yield from self._lookups.listed(*partition, LATEST)
        found = _Found(begin, last, answer.leader_epoch)
        if topic_id is not None and now_id is not None and topic_id != now_id:
            return _Found(begin, begin, answer.leader_epoch, "recreated", (begin, last - 1))
        before = found.end
        yield from self._compare(partition, lineage, last, found)
        if found.why is not None:
            # The rest of the range is lost. The next plan finds the same divergence, and the next batch reads the
            # records that replaced the lost ones.
            lost_from = max(begin, found.begin)
            found.begin, found.end = begin, min(before, lost_from)
            found.lost = (lost_from, last - 1)
        first = (yield from self._lookups.listed(*partition, EARLIEST)).offset
        if first > begin:
            found.why, found.lost, found.log_start = "retention", (begin, min(first, last) - 1), first
            found.begin = min(first, last)
            found.end = max(found.begin, found.end)
        if found.why is None:
            self._checked[partition] = (now_id, found.leader_epoch)
        return found

    def _is_checked(self, partition: Partition) -> bool:
        info = self._info(partition[0])
        leader = None if info is None else info.partitions.get(partition[1])
        checked = self._checked.get(partition)
        if info is None or leader is None or checked is None:
            return False
        return checked[0] == id_of(info) and checked[1] >= leader.leader_epoch

    # --- bounds given by the user -------------------------------------------------------------------------------------

    def _resolve(self, bound: Bound, which: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
        partitions = list(partitions)
        each = bound.each
        if each is not None:
            missing, unknown = sorted(set(partitions) - set(each)), sorted(set(each) - set(partitions))
            if missing or unknown:
                problems = [f"names {_names(unknown)}, which does not exist"] if unknown else []
                problems += [f"lacks {_names(missing)}"] if missing else []
                name = f"{which}Offsets" + ("ByTimestamp" if isinstance(bound, Times) else "")
                raise error(
                    "OFFSETS_DO_NOT_MATCH",
                    f"{name} {' and '.join(problems)}: it must name every partition that is read, and no other.",
                )
        return self._gather(
            {
                partition: self._bound(partition, bound, which, each[partition] if each else bound.everywhere)
                for partition in partitions
            }
        )

    def _bound(self, partition: Partition, bound: Bound, which: str, value: int | None) -> Procedure[int]:
        assert value is not None  # noqa: S101  # a bound has `everywhere` or `each`
        if isinstance(bound, Offsets):
            if value == EARLIEST:
                return (yield from self._lookups.start(*partition))
            end = (yield from self._lookups.end(*partition)).offset
            if value == LATEST:
                return end
            if value > end:
                raise error(
                    "OFFSETS_DO_NOT_MATCH",
                    f"{which}Offsets has {value} for {_names([partition])}, which ends at {end}: give an offset that"
                    " is not after the end.",
                )
            return value
        found = (yield from self._lookups.at_time(*partition, value)).offset
        if found >= 0:
            return found
        if which == "starting" and self._options.time_without_record == "error":
            raise error(
                "NO_RECORD_THAT_NEW",
                f"{_names([partition])} has no record at or after {value} ms: choose an earlier time, or set"
                ' .option("startingOffsetsByTimestampStrategy", "latest").',
            )
        return (yield from self._lookups.end(*partition)).offset

    # --- topics and partitions ----------------------------------------------------------------------------------------

    def _partitions(self, *, fresh: bool) -> list[Partition]:
        """Returns all partitions to read, in order. Uses metadata that is at most a few seconds old."""
        now = time.monotonic()
        topics = self._topics_named()
        if fresh or now - self._looked_at > _METADATA_AGE_S or self._transport is None:
            if topics is None:
                self._matching = self._match()
            names = self._matching if topics is None else topics
            if names:
                self._gather({"metadata": self._refresh(names)})
            self._looked_at = now
        names = self._matching if topics is None else topics
        what = self._options.what
        found = []
        for name in names:
            info = self._info(name)
            if info is not None:
                found += [(name, number) for number in sorted(info.partitions)]
        if isinstance(what, Assign):
            return [partition for partition in what.partitions if partition in set(found)]
        return found

    def _topics_named(self) -> tuple[str, ...] | None:
        what = self._options.what
        if isinstance(what, Subscribe):
            return what.topics
        if isinstance(what, Assign):
            return tuple(dict.fromkeys(topic for topic, _ in what.partitions))
        return None

    def _match(self) -> tuple[str, ...]:
        listed: TopicsListed = self._gather({"topics": self._list_topics()})["topics"]
        pattern = getattr(self._options.what, "pattern", "")
        return tuple(sorted(topic for topic in listed.topics if re.fullmatch(pattern, topic)))

    def _require(self, partitions: Iterable[Partition]) -> None:
        """Checks that all topics and partitions named in the options exist. A pattern may match no topic.

        Raises:
            ConfigError: A topic or partition does not exist.
        """
        found = list(partitions)
        what = self._options.what
        if isinstance(what, Assign):
            missing = [_names([partition]) for partition in what.partitions if partition not in set(found)]
        elif isinstance(what, Subscribe):
            missing = [topic for topic in what.topics if topic not in {name for name, _ in found}]
        else:
            missing = []  # matching topics may be created later
        if missing:
            raise error(
                "TOPIC_NOT_FOUND",
                f"The cluster at {self._servers} does not have {', '.join(missing)}: create it, or correct subscribe,"
                " subscribePattern or assign.",
            )

    def _is_wanted(self, partition: Partition) -> bool:
        match self._options.what:
            case Subscribe(topics):
                return partition[0] in topics
            case Assign(partitions):
                return partition in partitions
            case Pattern(pattern):
                return re.fullmatch(pattern, partition[0]) is not None

    def _refresh(self, names: tuple[str, ...]) -> Procedure[None]:
        transport = self._network()
        began = time.monotonic()
        tries = 0
        while True:
            answer = yield Ask(lambda reply: transport.refresh_metadata(names, reply))
            if isinstance(answer, Failure):
                problem: Any = answer.error
                self._note(problem)
                if not classify(problem, "metadata").retriable and not isinstance(problem, OSError):
                    raise problem
            else:
                infos = [transport.topic(name) for name in names]
                waiting = [info for info in infos if info is None or info.error_code]
                for info in waiting:
                    if info is not None and info.error_code != _UNKNOWN_TOPIC:
                        verdict = classify(info.error_code, "metadata")
                        if not verdict.retriable:
                            raise _topic_error(info.name, verdict)
                missing = {info.name for info in waiting if info is not None}
                if not waiting or missing == self._missing or time.monotonic() - began > _MISSING_TOPIC_S:
                    # The caller decides what a missing topic means.
                    self._missing = missing
                    return
            yield Pause(pause_s(tries))
            tries += 1

    def _list_topics(self) -> Procedure[TopicsListed]:
        transport = self._network()
        answer: TopicsListed = yield from ask_until_answered(
            transport,
            "",
            "metadata",
            transport.list_topics,
            lambda problem, _: self._note(problem),
            stats=self._stats,
        )
        return answer

    def _info(self, topic: str) -> TopicInfo | None:
        """Returns the metadata of a topic; None if the topic is unknown or does not exist."""
        info = self._network().topic(topic)
        return None if info is None or info.error_code == _UNKNOWN_TOPIC else info

    def _ids(self, partitions: Iterable[Partition]) -> dict[str, bytes]:
        infos = {topic: self._info(topic) for topic in {topic for topic, _ in partitions}}
        ids = {topic: id_of(info) for topic, info in infos.items() if info is not None}
        return {topic: number for topic, number in ids.items() if number is not None}

    # --- the network --------------------------------------------------------------------------------------------------

    @property
    def _servers(self) -> str:
        return ",".join(self._options.connection["bootstrap_servers"])

    def _network(self) -> Cluster:
        if self._transport is None:
            self._transport = connect({**self._options.connection, "allow_auto_create_topics": False})
            self._transport.start()
        return self._transport

    def _note(self, problem: Exception) -> None:
        self._last_problem = problem

    _last_problem: Exception | None = None

    def _gather(self, procedures: Mapping[K, Procedure[T]], began: float | None = None) -> dict[K, T]:
        """Runs the procedures concurrently and returns their results under the same keys.

        Args:
            procedures: The procedures.
            began: Moment from which the timeout counts; None: now.

        Raises:
            SourceUnavailableError: A procedure did not finish in time.
            Exception: The error of the first procedure that failed.
        """
        runner = ProcedureRunner()
        self._last_problem = None
        deadline = (time.monotonic() if began is None else began) + self._options.stall_timeout_s
        inquiries = dict(zip(procedures, runner.begin_all(procedures.values()), strict=True))
        if not _all_done(runner, inquiries.values(), deadline):
            open_keys = [str(key) for key, inquiry in inquiries.items() if not inquiry.done]
            for inquiry in inquiries.values():
                inquiry.cancel()
            raise self._too_late(open_keys)
        for inquiry in inquiries.values():
            if inquiry.error is not None:
                raise inquiry.error
        results: Any = {key: inquiry.result for key, inquiry in inquiries.items()}
        found: dict[K, T] = results
        return found

    def _too_late(self, waiting: list[str]) -> SourceUnavailableError:
        places = ", ".join(waiting[:5]) + (", ..." if len(waiting) > 5 else "")
        problem = self._last_problem
        last = f" The last answer was {type(problem).__name__}: {problem}." if problem else ""
        connected = self._transport is not None and self._transport.connected
        if connected and isinstance(problem, RemoteStorageNotReadyError):
            return SourceUnavailableError(
                f"[KAFKASAFE.REMOTE_STORAGE_NOT_READY] No reliable answer about {places} within"
                f" {self._options.stall_timeout_s:g} s: {problem}. An answer that ignores the remote part of the log"
                " would leave out records. Check the brokers' remote log manager, or raise"
                " kafkaConsumer.pollTimeoutMs. Nothing was skipped."
            )
        if connected:
            return SourceUnavailableError(
                f"[KAFKASAFE.NO_ANSWER] No usable answer about {places} within"
                f" {self._options.stall_timeout_s:g} s.{last} Check that these partitions have leaders, or raise"
                " kafkaConsumer.pollTimeoutMs. Nothing was skipped."
            )
        return SourceUnavailableError(
            f"[KAFKASAFE.BROKERS_UNREACHABLE] No broker at {self._servers} answered within"
            f" {self._options.stall_timeout_s:g} s.{last} Check kafka.bootstrap.servers, kafka.security.protocol and"
            " the network between Spark's driver and the brokers' advertised listeners. Nothing was skipped."
        )


def _none_below() -> Procedure[EpochEnd]:
    """Returns the answer for the epoch before epoch 0, which does not exist, without a request."""
    yield from ()
    return EpochEnd(0, UNDEFINED, UNDEFINED)


def _ignore(_: object) -> None:
    """Ignores the reply, because the refresh itself updates the metadata."""


def _all_done(runner: ProcedureRunner, inquiries: Collection[RunningProcedure[Any]], deadline: float) -> bool:
    """Runs procedures until all inquiries are done. Returns whether that was before the deadline."""
    while any(not inquiry.done for inquiry in inquiries):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        runner.wait(min(left, 1.0))
        runner.work()
    return True


def _names(partitions: Iterable[Partition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in partitions)


def _topic_error(topic: str, verdict: Verdict) -> Exception:
    return error("TOPIC_REFUSED", f"The cluster refuses topic {topic}: {verdict.explanation}")


_WORDS: Final[Mapping[Loss, str]] = {
    "retention": "{was}, but its log now begins at {now}: retention or DeleteRecords removed {lost} unread",
    "diverged": "{was}, but the log differs from {now} on: it no longer holds {lost} (unclean leader election)",
    "truncated": "{was}, but the log now ends at {now}: {lost} are lost",
    "recreated": "{was}, but the topic was deleted and created again since then; it begins at {now}",
    "new_partition": "is new, but its first records are already removed: {lost}",
    "missing": "{was}, but does not exist any more",
}
_NOT_WANTED: Final = (
    "{was}, but the query does not read it any more (subscribe, subscribePattern or assign was changed)"
)


def _data_loss(
    positions: Mapping[Partition, int],
    lost: Mapping[Partition, _Found],
    unwanted: Collection[Partition],
    *,
    is_first: bool,
) -> DataLossError:
    losses = []
    for partition, state in sorted(lost.items()):
        assert state.why is not None  # noqa: S101  # `lost` holds only such states
        now = state.begin if state.log_start is None else state.log_start
        losses.append((partition, state.why, positions.get(partition, 0), now, state.lost))
    return _loss_error(losses, unwanted, is_first=is_first)


def _loss_error(
    lost: list[tuple[Partition, Loss, int, int, tuple[int, int] | None]],
    unwanted: Collection[Partition] = (),
    *,
    is_first: bool,
) -> DataLossError:
    sentences = []
    for partition, why, position, now, gone in lost:
        offsets = "some records" if gone is None else f"offsets {gone[0]} to {gone[1]}"
        was = f"was to be read from {position}" if is_first else f"was read to {position}"
        words = _NOT_WANTED if partition in unwanted else _WORDS[why]
        sentences.append(f"{_names([partition])} {words.format(was=was, now=now, lost=offsets)}.")
    partition, _, _, _, gone = lost[0]
    return DataLossError(
        f"[KAFKASAFE.DATA_LOSS] {' '.join(sentences)} To continue with the records that exist, start the query again"
        ' with .option("failOnDataLoss", "false"): each loss is then logged, given to onEvent, and written into the'
        " checkpoint.",
        topic=partition[0],
        partition=partition[1],
        first_offset=-1 if gone is None else gone[0],
        last_offset=-1 if gone is None else gone[1],
    )
