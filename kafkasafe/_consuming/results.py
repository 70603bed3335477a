"""Apply the results of procedures: move positions, emit events, and raise errors that ask the application to decide."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Literal

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe._consuming.moves import Moves
from kafkasafe._consuming.partition import (
    AssignedPartition,
    LocalStart,
    LogCompared,
    LogRange,
    ResetTo,
    Undecided,
)
from kafkasafe._consuming.parts import AssignedPartitions
from kafkasafe._consuming.pauses import Pauses
from kafkasafe._consuming.ports import Assignments, Metadata
from kafkasafe._consuming.position_table import Activity, PositionEvent
from kafkasafe._consuming.positions import Positions
from kafkasafe._consuming.reports import Reports
from kafkasafe._consuming.rereading import Rereading
from kafkasafe.cluster.api import EARLIEST, LATEST
from kafkasafe.cluster.inquiry import ProcedureRunner, RunningProcedure
from kafkasafe.codes.numbers import OFFSET_OUT_OF_RANGE
from kafkasafe.errors import LogDivergedError
from kafkasafe.events import LogDiverged, LossCheckInconclusive, PositionReset
from kafkasafe.history.epochs import Diverged, Outcome, Unknown

_STRATEGY: Final[dict[int, Literal["earliest", "latest"]]] = {EARLIEST: "earliest", LATEST: "latest"}


class Results:
    """Begins one consumer's procedures in each poll, and applies the results. Only the polling thread uses this object.

    Args:
        policy: The option `on_divergence`.
        seek: The method `SafeConsumer.seek`, called with the offset that `policy` has chosen.
    """

    def __init__(
        self,
        *,
        assignments: Assignments,
        metadata: Metadata,
        runner: ProcedureRunner,
        parts: AssignedPartitions,
        moves: Moves,
        pauses: Pauses,
        positions: Positions,
        rereading: Rereading,
        reports: Reports,
        policy: str | Callable[[LogDiverged], int | None],
        seek: Callable[[TopicPartition, int], None],
    ) -> None:
        self._assignments = assignments
        self._metadata = metadata
        self._runner = runner
        self._parts = parts
        self._moves = moves
        self._pauses = pauses
        self._positions = positions
        self._rereading = rereading
        self._reports = reports
        self._policy = policy
        self._seek = seek

    def carry_on(self, only: TopicPartition | None = None) -> None:
        """Begin the resets and checks that are due, and apply the results of finished resets and checks. Then, if a
        partition has an error that was not raised before, raise this error.

        Args:
            only: Raise only the error of this partition, even if it was raised before.
        """
        self._positions.begin()
        self._runner.work()
        moved = False
        for tp, part in self._parts.items():
            if part.inquiry is None:
                if part.at.activity is not Activity.IDLE:
                    part.mend()
            elif (finished := part.take()) is not None:
                position = part.state.position
                self._apply(tp, part, finished)
                moved |= part.state.position is not position
        if moved:
            # Check new positions before the next fetch: `on_divergence` or an event hook may have called `seek`.
            self._positions.begin_checks()
        due = self._parts.undecided(only)
        if only is None and (due := [part for part in due if not part.raised_at]):
            self._reports.log.debug("%s partitions wait for a decision", len(due), event="undecided")
        if due:
            raise self._parts.error(due)

    def _apply(self, tp: TopicPartition, part: AssignedPartition, inquiry: RunningProcedure[Any]) -> None:
        result = inquiry.result
        is_closed = isinstance(inquiry.error, kafka_errors.IllegalStateError)
        if is_closed or self._assignments.state(tp) is not part.state:
            part.on(PositionEvent.ENDED)
        elif inquiry.error is not None:
            self._on_failed(tp, part, inquiry.error)
        elif result is None:  # an event hook of the procedure cancelled it
            part.on(PositionEvent.ENDED)
        elif isinstance(result, ResetTo):
            self._apply_reset(tp, part, result)
        elif part.state.position is None or part.state.position.offset != part.position:
            part.on(PositionEvent.MOVED)  # the result is about a former position
        elif isinstance(result, LocalStart):
            part.on(PositionEvent.LOCATED)
            self._pauses.located(tp, part, remote=result.start is not None and part.position < result.start)
        elif isinstance(result, LogRange):
            self._apply_range(tp, part, result)
        elif isinstance(result, LogCompared):
            self._apply_walk(tp, part, result)

    def _on_failed(self, tp: TopicPartition, part: AssignedPartition, error: Exception) -> None:
        if part.state.awaiting_reset or not isinstance(error, kafka_errors.KafkaError):
            part.on(PositionEvent.ENDED)
            raise error
        part.check(self._metadata.leadership(tp))
        self._moves.on(tp, part, PositionEvent.FAILED)
        # A log record suffices: if the client lacks a permission, the fetches fail, too, and `poll` raises the fetches'
        # error. `LogChecks.walk` itself handles a broker that refuses OffsetForLeaderEpoch.
        self._reports.log.limited(
            logging.WARNING,
            "not_comparable",
            f"{tp.topic}-{tp.partition}",
            "%s-%s: the records that were read cannot be compared with the log: %r",
            tp.topic,
            tp.partition,
            error,
            topic=tp.topic,
            partition=tp.partition,
            error=type(error).__name__,
        )

    def _apply_reset(self, tp: TopicPartition, part: AssignedPartition, to: ResetTo) -> None:
        state = part.state
        if not state.awaiting_reset or state.reset_strategy != to.strategy:
            part.on(PositionEvent.ENDED)
            return
        leadership = self._metadata.leadership(tp)
        history = part.history
        read_to = history.lineage.end_offset
        has_read = part.reset is not None and part.reset[0] == "no_position" and bool(history.lineage.entries)
        # 1. A topic is deleted. Its partitions are no longer assigned, and the group's offsets are deleted.
        # 2. The topic is created again. A reset of the position would hide that the consumer has read the former topic.
        # 3. So set the position to the end of the records that were read. The check of this position then finds that
        #    the log has lost the records.
        is_gone = has_read and leadership is not None and history.is_of_another(leadership[0])
        # After an unclean election, the log may end before the last record that was read, and the group may have no
        # offset. A check of the position at the log's end would compare only the records below this end, and find no
        # loss. So in this case, too, set the position to the end of the records that were read.
        ends_early = has_read and to.strategy == LATEST and to.offset < read_to
        # 1. A leader answers that its log begins after the position.
        # 2. Another broker becomes leader, whose log begins earlier; or the broker was killed before it had stored the
        #    new start of its log, and starts again.
        # 3. The reset finds a start before the position. From there, the consumer would read records again that it has
        #    read, so keep the position. If this log does not have the position either, the next fetch says so.
        kept = part.reset[1] if part.reset is not None and part.reset[0] == "retention" else None
        if kept is not None and (to.strategy != EARLIEST or kept < to.offset):
            kept = None
        offset = kept if kept is not None else read_to if is_gone or ends_early else to.offset
        self._assignments.place(tp, offset)
        self._rereading.placed(tp, offset)
        part.on(PositionEvent.RESET_FOUND)
        if leadership is not None:
            # Check the position before the first fetch. The check stores the topic's id, which the first fetch needs.
            self._positions.check(tp, part, leadership)
        reason = part.was_reset()
        if reason is None:
            return  # the application asked for the reset
        if kept is not None:
            return  # the position has not moved
        if is_gone:
            return  # the check reports it
        why, previous = reason
        begin = to.start if previous is None else previous
        if why == "recreated":
            begin = 0  # `previous` is a position in the former topic
        skipped = None
        if why != "beyond_end" and begin is not None and begin < to.offset:
            skipped = (begin, to.offset - 1)
        self._reports.emit(
            PositionReset(tp.topic, tp.partition, why, _STRATEGY[to.strategy], previous, offset, skipped)
        )

    def _apply_range(self, tp: TopicPartition, part: AssignedPartition, ranged: LogRange) -> None:
        if ranged.walked is not None and isinstance(ranged.walked.outcome, Diverged):
            self._apply_walk(tp, part, ranged.walked)
            return
        if ranged.start <= part.position <= ranged.end:
            # The position is in the log, although the broker has answered otherwise: the broker has not found the
            # remote segment yet (KIP-1007).
            self._moves.on(tp, part, PositionEvent.IN_RANGE)
            self._pauses.begin(
                tp,
                part,
                OFFSET_OUT_OF_RANGE,
                "OFFSET_OUT_OF_RANGE",
                "in the log, but its remote segment is not found (yet)",
            )
            return
        strategy = self._assignments.strategy
        if strategy not in _STRATEGY:
            error = kafka_errors.OffsetOutOfRangeError({tp: part.position})
            self._moves.carry_out(tp, part, part.strand(error))
        elif part.position < ranged.start:
            part.resets(("retention", part.position))
            self._moves.on(tp, part, PositionEvent.BEFORE_START, offset=ranged.start, strategy=strategy)
        else:
            part.resets(("beyond_end", part.position))
            self._moves.on(tp, part, PositionEvent.AFTER_END, offset=ranged.end, strategy=strategy)

    def _apply_walk(self, tp: TopicPartition, part: AssignedPartition, walked: LogCompared) -> None:
        outcome = walked.outcome
        # If the leader has changed during the comparison of the logs, `Positions` finds a newer leadership than `seen`,
        # and checks the position again.
        seen = walked.leadership
        part.check(None if seen is None else (seen[0], seen[1], walked.epoch))
        topic_id = part.history.topic_id
        if topic_id is not None and walked.topic_id != topic_id:
            self._metadata.request()
        if not part.history.reaches_below(part.position):
            is_another = part.history.is_of_another(walked.topic_id)
            if is_another:
                # Forget the records at and after the position, which belong to the former topic.
                part.history.cut(part.position)
            part.history.adopt(walked.topic_id)
            self._moves.on(tp, part, PositionEvent.AGREED, offset=part.position)
            if is_another and part.position > 0:
                self._positions.begin_at_its_start(tp, part, part.position)
            return
        if isinstance(outcome, Diverged):
            self._on_diverged(tp, part, walked, outcome)
            return
        part.history.adopt(walked.topic_id)
        self._moves.on(tp, part, PositionEvent.AGREED, offset=part.position)
        self._explain(tp, part, outcome, walked.epoch)

    def _explain(self, tp: TopicPartition, part: AssignedPartition, outcome: Outcome, epoch: int) -> None:
        """Report that the leader's log could not be compared with all records that were read."""
        if not isinstance(outcome, Unknown):
            return
        self._reports.log.limited(
            logging.INFO,
            "unknown_lineage",
            f"{tp.topic}-{tp.partition}",
            "%s-%s at %s: %s",
            tp.topic,
            tp.partition,
            part.position,
            outcome.reason,
            topic=tp.topic,
            partition=tp.partition,
            position=part.position,
        )
        start = outcome.log_start_offset
        # If the position is before the log's start, the position is reset, and another event reports the reset.
        if start == part.position and epoch > part.history.lineage.newest_epoch:
            self._reports.emit(
                LossCheckInconclusive(tp.topic, tp.partition, part.position, start, outcome.reason)
            )

    def _on_diverged(
        self, tp: TopicPartition, part: AssignedPartition, walked: LogCompared, outcome: Diverged
    ) -> None:
        event = LogDiverged(
            topic=tp.topic,
            partition=tp.partition,
            position=part.position,
            divergent_offset=outcome.divergent_offset,
            rolled_back=outcome.rolled_back,
            replaced=outcome.replaced,
            epochs=outcome.rolled_back_epochs,
            exact=outcome.exact,
            reason="recreated" if walked.recreated else "truncated",
            round_trips=walked.round_trips,
        )
        # Do not fetch before the decision.
        actions = part.diverged(Undecided(event, walked.topic_id), diverged_error(event))
        self._moves.carry_out(tp, part, actions)
        self._reports.emit(event)
        if part.error is None:
            return  # the event hook has decided
        target: int | None
        if callable(self._policy):
            try:
                target = self._policy(event)
            except Exception as error:
                # Continue as if `on_divergence` had returned None. But let `poll` raise the error of `on_divergence`,
                # not the error about the divergence, which would hide that `on_divergence` has failed.
                if not part.explain(error):
                    raise  # the application has called `seek` meanwhile, so `poll` would not raise this error
                return
        else:
            target = event.divergent_offset if self._policy == "seek" else None
        if target is not None and self._assignments.state(tp) is part.state:  # not unassigned meanwhile
            self._seek(tp, target)


def diverged_error(event: LogDiverged) -> LogDivergedError:
    """Return the error about a divergence. Its message says which records the log has lost."""
    first, last = event.rolled_back
    other = (
        "the log has no records there now"
        if event.replaced is None
        else f"other records are now at {event.replaced[0]} to {event.replaced[1]}"
    )
    what = (
        "the topic was deleted and recreated, or the position is that of another topic or cluster"
        if event.reason == "recreated"
        else "an unclean election or a lost disk"
    )
    choice = (
        f"seek to {event.divergent_offset} to go on"
        if event.resume_offset == event.divergent_offset
        else f"seek to {event.divergent_offset} to read the records that are there now, or to {event.resume_offset} to"
        " skip them"
    )
    return LogDivergedError(
        f"{event.topic}-{event.partition}: offsets {first} to {last}, which this consumer had read, are no longer in"
        f" the log ({what}; {other}). Decide what this means for the results you derived from them, then {choice}.",
        event=event,
    )
