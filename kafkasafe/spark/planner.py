"""Plans on Spark's driver which offsets a query reads.

A `Planner` queries the cluster and turns the answers into `Positions`. It never reads records.

`leader_logs` has the rules for end offsets that go backwards, and for records that were read and then lost. Further
rules:

- Two kinds of records count as lost: records that disappear from the log after they were read, and records that
  retention removed before they were read. Depending on `failOnDataLoss`, a loss ends the query, or the planner reports
  it and writes it into the checkpoint (`Mark.begin`). The planner never skips records silently.
- The planner does not plan with incomplete information. A partition's range is empty if the partition has no leader, or
  if the reported end offset is so low that the tracker does not accept it. The next plan tries again.
- The planner evaluates the starting options once for each query. The offset that Spark stores as the end of
  the first micro-batch also says where each range of the first micro-batch begins (`positions`). So the first
  micro-batch keeps its ranges when Spark runs it again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafkasafe.cluster.api import EARLIEST, LATEST, Cluster
from kafkasafe.errors import ConfigError
from kafkasafe.history.epochs import Lineage
from kafkasafe.spark.brokers import Brokers, SourceUnavailableError
from kafkasafe.spark.leader_logs import LeaderLogs, LogState
from kafkasafe.spark.marks import UNRESOLVED, Mark
from kafkasafe.spark.notices import Notices
from kafkasafe.spark.option_values import error
from kafkasafe.spark.options import ReadOptions
from kafkasafe.spark.positions import Partition, Positions, divide, partition_names, ranges_between, share
from kafkasafe.spark.query_bounds import QueryBounds
from kafkasafe.spark.query_topics import QueryTopics
from kafkasafe.spark.source_losses import SourceLosses


@dataclass(frozen=True, slots=True)
class Range:
    """A part of one partition that one task reads.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        begin: First offset (inclusive).
        end: Offset after the last one (exclusive).
        epochs: The leader epochs of the records before `end`, as far as they are known (`Lineage.encode`); "" if none
            is known.
    """

    topic: str
    partition: int
    begin: int
    end: int
    epochs: str = ""


class Planner:
    """Asks the cluster which offsets can be read. Connects on first use. Not thread-safe.

    Args:
        options: Options of the reader.
        notices: Receives the events, such as losses.
    """

    def __init__(self, options: ReadOptions, notices: Notices) -> None:
        self._options = options
        self._brokers = Brokers(options, notices)
        self._topics = QueryTopics(options.what, self._brokers)
        self._bounds = QueryBounds(options, self._brokers)
        self._logs = LeaderLogs(self._brokers)
        self._losses = SourceLosses(self._topics, notices, fail_on_data_loss=options.fail_on_data_loss)
        self._target: dict[Partition, int] | None = None
        self._seen: tuple[Mapping[Partition, int], Mapping[str, bytes]] | None = None
        self.refused: Exception | None = None
        """The error that prevented `opening` from evaluating the starting options, or None."""

    @property
    def seen(self) -> Positions | None:
        """The end of each log, as the latest plan found it; None before the first plan."""
        if self._seen is None:
            return None
        ends, ids = self._seen
        unknown = Lineage()
        return Positions({partition: Mark(end, unknown) for partition, end in ends.items()}, ids)

    def close(self) -> None:
        """Closes the connections. A later call opens them again."""
        self._brokers.close()

    def network(self) -> Cluster:
        """Returns the connections. Opens them if they are closed."""
        return self._brokers.network()

    def first(self) -> Positions:
        """Evaluates the starting options. Returns where a new streaming query begins.

        Raises:
            ConfigError: `startingOffsets` does not match the existing partitions, or the starting time is after the
                last record.
            SourceUnavailableError: The brokers do not answer.
        """
        self._logs.forget_unchanged()
        partitions = self._topics.partitions(fresh=True)
        self._topics.require(partitions)
        begins = self._bounds.begins(partitions)
        marks = {partition: Mark(begins[partition]) for partition in partitions}
        return Positions(marks, self._topics.ids(partitions), initial=True)

    def batch(self) -> list[Range]:
        """Plans the ranges that a batch query reads."""
        partitions = self._topics.partitions(fresh=True)
        self._topics.require(partitions)
        begins = self._bounds.begins(partitions)
        ends = self._bounds.ends(partitions)
        starts = self._brokers.starts(partitions)
        ranges = []
        for partition in partitions:
            begin, end, log_start = begins[partition], ends[partition], starts[partition]
            if begin > end and self._bounds.begin_was_chosen(partition):
                raise error(
                    "OFFSETS_DO_NOT_MATCH",
                    f"{partition_names([partition])} would be read from {begin} to {end}: the starting options give a"
                    " higher offset than the ending options. Correct one of them.",
                )
            if begin < log_start and begin < end:
                lost = (begin, min(log_start, end) - 1)
                self._losses.tell_one(partition, "retention", begin, min(log_start, end), lost)
                begin = log_start
            ranges.append((partition, begin, max(begin, end)))
        return self._tasks([found for found in ranges if found[1] < found[2]], {})

    def bounds(self) -> dict[Partition, tuple[int, int]]:
        """Returns the first offset and the end of each partition's log."""
        self._logs.forget_unchanged()
        partitions = self._topics.partitions(fresh=False)
        starts, ends = self._brokers.starts(partitions), self._brokers.ends(partitions)
        return {partition: (starts[partition], ends[partition]) for partition in partitions}

    def latest(self, start: Positions, limit: int = 0, at_least: int = 0) -> Positions:
        """Plans where the next micro-batch ends.

        Args:
            start: Where the micro-batch begins. For the first batch of a query, pass the result of `first`.
            limit: Maximum number of offsets in the batch; 0: no limit.
            at_least: Minimum number of offsets. If fewer offsets are available, the result is the same as without new
                records. A loss is reported in any case.

        Returns:
            The positions where the batch ends. If there are no new records, the result equals `start`, unless the batch
            is the query's first. For each partition, the end position of a query's first batch also stores the offset
            where this batch begins.

        Raises:
            DataLossError: Records were lost, and `failOnDataLoss` is true. The message names all losses.
            SourceUnavailableError: The brokers do not answer.
        """
        partitions = self._topics.partitions(fresh=False)
        ids = {**start.topic_ids, **self._topics.ids(partitions)}
        began = time.monotonic()
        found = self._ask_at_once(partitions, start)
        found |= self._unwanted(start, partitions)
        procedures = {
            partition: self._logs.advance(
                partition, start.marks.get(partition), start.topic_ids.get(partition[0])
            )
            for partition in {*partitions, *start.marks}
            if partition not in found
        }
        try:
            found |= self._brokers.gather(procedures, began)
        finally:
            self._brokers.lookups.forget_given()
        positions = {partition: mark.offset for partition, mark in start.marks.items()}
        self._losses.tell(positions, found, is_first=start.initial)
        self._seen = {partition: state.end for partition, state in found.items()}, ids
        if self._target is not None:
            for partition, state in found.items():
                if self._target.get(partition, state.begin) < state.begin:
                    # When `stop_at_latest` set the target, a leader reported an end offset that was too low. Without
                    # the checkpoint's offsets, the tracker of end offsets could not notice this.
                    self._target[partition] = state.end
                state.stop_at(self._target.get(partition, state.begin))
        # A missing partition is reported, but needs no micro-batch.
        has_loss = any(state.why is not None and state.exists for state in found.values())
        sizes = {partition: state.end - state.begin for partition, state in found.items()}
        if sum(sizes.values()) < at_least and not has_loss:
            if not start.initial:
                return Positions(start.marks, start.topic_ids)
            for state in found.values():
                state.stop_at(state.begin)
        elif limit:
            turn = sum(mark.offset for mark in start.marks.values())
            for partition, size in share(sizes, limit, turn).items():
                found[partition].stop_at(found[partition].begin + size)
        marks = {
            partition: self._mark(partition, start, state)
            for partition, state in found.items()
            # If the topic was created again with fewer partitions, the positions of the partitions that no longer exist
            # are dropped.
            if state.exists or start.topic_ids.get(partition[0]) in {None, ids.get(partition[0])}
        }
        before = start.marks
        if not (start.initial or has_loss) and all(
            before.get(partition) is mark or before.get(partition) == mark
            for partition, mark in marks.items()
        ):
            return Positions(start.marks, start.topic_ids)
        return Positions(marks, ids)

    def stop_at_latest(self) -> None:
        """Limits all later plans to the current end of each partition (Trigger.AvailableNow)."""
        self._logs.forget_unchanged()
        self._target = self._brokers.ends(self._topics.partitions(fresh=True))

    def opening(self) -> Positions:
        """Plans where the first micro-batch of a run ends, for Spark versions that do not say where a batch begins.

        `opening` cannot know whether the query is new or restarted. For a new query, the field `first` of each mark
        stores the offset to which the starting options resolve. For a restarted query, the starting options have no
        effect, so an error in these options must not end the query. `opening` stores the error in `refused` instead of
        raising it.

        Raises:
            SourceUnavailableError: The brokers do not answer.
        """
        self._logs.forget_unchanged()
        begins: Mapping[Partition, Mark] | None = None
        try:
            begins = self.first().marks
        except (ConfigError, SourceUnavailableError) as problem:
            if isinstance(problem, SourceUnavailableError) and not self._brokers.network().connected:
                raise  # requests for end offsets would fail too
            self.refused = problem
        partitions = self._topics.partitions(fresh=False)
        marks = {}
        for partition, end in self._brokers.ends(partitions).items():
            # If a partition was created between the two requests, `begins` does not contain it. A partition that is not
            # in `begins` is read from its first record.
            begin = UNRESOLVED if begins is None else begins.get(partition, Mark(0)).offset
            marks[partition] = Mark(end, first=begin)
        return Positions(marks, self._topics.ids(partitions))

    def ranges(self, start: Positions, end: Positions) -> list[Range]:
        """Divides a micro-batch into ranges for tasks. The batch may be new, or Spark may run it again.

        Raises:
            DataLossError: A log has lost records of the planned ranges, and `failOnDataLoss` is true.
            ConfigError: A range ends before it begins. Or the query's first batch was planned by an older
                kafkasafe or by Spark's own source, which did not store where the batch begins.
        """
        if start.initial:
            start = self._begun(start, end)
        elif _is_opening(start, end):
            start = self._compared(start, end)
        wanted = [found for found in ranges_between(start, end) if found[1] < found[2]]
        if not wanted:
            return []
        self._topics.partitions(fresh=False)
        epochs = {partition: end.marks[partition].lineage for partition, _, _ in wanted}
        unchecked = {
            partition: self._logs.recheck(
                partition, begin, last, epochs[partition], end.topic_ids.get(partition[0])
            )
            for partition, begin, last in wanted
            if not self._logs.is_checked(partition)
        }
        found = self._brokers.gather(unchecked)
        begins = {partition: begin for partition, begin, _ in wanted}
        self._losses.tell(begins, found, is_first=start.initial)
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
        """Finds the first offset of a query's first micro-batch, for each partition whose mark does not store this
        offset.

        Older versions of this source, and Spark's own source, stored only the end offsets of the first micro-batch. If
        the starting options still resolve to the same offset as when the batch was planned, the batch begins at that
        offset. But "latest" now resolves to another offset, and retention may have moved the start of the log. Then the
        user has to name the beginning of the batch. With `failOnDataLoss=false`, a start of the log that may have moved
        counts as the beginning.
        """
        unknown = [
            partition
            for partition, mark in end.marks.items()
            if mark.begin is None and mark.first in {None, UNRESOLVED}
        ]
        if not unknown:
            return start
        begins = dict((start if start.marks else self.first()).marks)
        trimmed: set[Partition] = set()
        if self._options.fail_on_data_loss:
            planned = [each for each in unknown if each in begins and end.marks[each].first != UNRESOLVED]
            trimmed = self._bounds.trimmed({partition: begins[partition].offset for partition in planned})
        unsure = []
        for partition in unknown:
            mark = end.marks[partition]
            begin = begins.get(partition, Mark(0)).offset
            if mark.first == UNRESOLVED:
                # The batch has no records of this partition. Records that were appended later belong to the next batch.
                begins[partition] = Mark(min(begin, mark.offset))
            elif begin > mark.offset or not self._bounds.is_fixed(partition, begin, mark.offset):
                unsure.append(partition)
                trimmed.discard(partition)
        unsure += sorted(trimmed)
        if unsure:
            given: dict[str, dict[str, int]] = {}
            for (topic, number), mark in sorted(end.marks.items()):
                given.setdefault(topic, {})[str(number)] = mark.offset
            remedy = (
                f" Retention may have removed records of the batch from the log of {partition_names(sorted(trimmed))}:"
                ' to read from the first record that exists, set .option("failOnDataLoss", "false").'
                if trimmed
                else ""
            )
            raise error(
                "FIRST_BATCH_UNKNOWN",
                f"The checkpoint has an unfinished first micro-batch and does not record where that batch begins in"
                f" {partition_names(unsure)}: an older kafkasafe or Spark's format 'kafka' planned it. Start the query"
                f" once with .option(\"startingOffsets\", '{json.dumps(given)}') or with lower offsets. The offsets"
                " shown here are the ends of the batch: with these offsets, the query skips the batch's records and"
                f" continues after the batch. With lower offsets, it reads from those offsets on.{remedy}",
            )
        return Positions(begins, start.topic_ids, initial=True)

    def _compared(self, start: Positions, end: Positions) -> Positions:
        """For a batch that `opening` planned, checks that the logs still contain the records that an earlier run has
        read. `opening` could not check this, because it does not know the start of the batch.

        Returns:
            A copy of `start`. For a partition that lost records, the copy holds the offset of the first record that
            differs.

        Raises:
            DataLossError: The logs have lost records that the query has read, and `failOnDataLoss` is true.
        """
        partitions = self._topics.partitions(fresh=False)
        found = self._unwanted(start, partitions)
        found |= self._brokers.gather(
            {
                partition: self._logs.advance(partition, mark, start.topic_ids.get(partition[0]))
                for partition, mark in start.marks.items()
                if partition not in found
            }
        )
        marks = dict(start.marks)
        lost = {}
        for partition, state in found.items():
            planned = end.marks.get(partition)
            if planned is None:
                lost[partition] = state
            elif state.exists and state.why is not None:
                was_read = state.begin < marks[partition].offset
                if state.why == "recreated" or was_read:
                    lost[partition] = state
                    begin = min(state.begin, planned.offset) if state.why == "recreated" else state.begin
                    marks[partition] = Mark(begin)
                # If only unread records are lost, retention has removed them. Then `recheck` finds out which of them
                # are in the batch.
        self._losses.tell({at: mark.offset for at, mark in start.marks.items()}, lost, is_first=False)
        return Positions(marks, start.topic_ids)

    def _unwanted(self, start: Positions, partitions: Sequence[Partition]) -> dict[Partition, LogState]:
        """Returns a state for each partition in `start` that the options no longer name. Such a partition counts as
        missing, even if it still exists.
        """
        found = {}
        for partition in start.marks.keys() - set(partitions):
            if not self._topics.is_wanted(partition):
                position = start.marks[partition].offset
                found[partition] = LogState(position, position, why="missing", exists=False)
        return found

    def _tasks(
        self, ranges: list[tuple[Partition, int, int]], epochs: Mapping[Partition, Lineage]
    ) -> list[Range]:
        options = self._options
        pieces = divide(ranges, at_least=options.min_partitions, max_records=options.max_records)
        encoded = {partition: lineage.encode() for partition, lineage in epochs.items() if lineage.entries}
        return [Range(*partition, begin, end, encoded.get(partition, "")) for partition, begin, end in pieces]

    def _mark(self, partition: Partition, start: Positions, found: LogState) -> Mark:
        before = start.marks.get(partition)
        if start.initial:
            lineage = self._logs.lineage(partition, Lineage(), found) if found.exists else Lineage()
            why, lost = (found.why, found.lost) if found.exists else (None, None)
            return Mark(found.end, lineage, found.begin, why, lost)
        if not found.exists:
            return Mark(found.begin) if before is None else before
        if before is not None and found.why is None and found.end == before.offset:
            # Without new records, keep the JSON text identical: otherwise Spark would run an empty batch.
            return before
        known = Lineage() if before is None else before.lineage
        moved = before is None or found.why is not None
        lineage = self._logs.lineage(partition, known, found)
        return Mark(found.end, lineage, found.begin if moved else None, found.why, found.lost)

    def _ask_at_once(self, partitions: Sequence[Partition], start: Positions) -> dict[Partition, LogState]:
        """Asks each leader for the ends of all its partitions with one request. Then asks for the log start offsets
        that `LeaderLogs.advance` needs.

        Asking at once only saves CPU time: `advance` uses the answers instead of sending its first requests. If a
        leader did not answer about a partition, or answered with an error, `advance` sends its own request.

        Returns:
            The state of the partitions that `advance` need not examine, because nothing changed since the last plan.
        """
        ends = self._brokers.at_once(partitions, LATEST)
        # `advance` asks where a log begins only after it knows where the log ends. Keep that order.
        nowhere = Mark(-1)
        moved = [
            partition
            for partition, end in ends.items()
            if end.offset > start.marks.get(partition, nowhere).offset
        ]
        starts = self._brokers.at_once(moved, EARLIEST) if moved else {}
        found = self._logs.unchanged(start, ends, starts)
        for bound, answers in ((LATEST, ends), (EARLIEST, starts)):
            left = {partition: answer for partition, answer in answers.items() if partition not in found}
            self._brokers.lookups.give(bound, left)
        return found


def _is_opening(start: Positions, end: Positions) -> bool:
    """Returns True for a batch that `Planner.opening` planned, unless the batch is the query's first one."""
    if start.marks and not end.marks:
        return True
    ids = end.topic_ids
    return any(
        mark.first is not None
        and (
            mark != start.marks.get(partition)
            or start.topic_ids.get(partition[0]) not in {None, ids.get(partition[0])}
        )
        for partition, mark in end.marks.items()
    )
