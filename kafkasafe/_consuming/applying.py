"""Apply the results of procedures: move positions, emit events, raise errors that need the application's decision."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, Literal

import kafka.errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe._consuming.fetched import Fetched
from kafkasafe._consuming.partition import Local, Part, Ranged, ResetTo, Undecided, Walked
from kafkasafe._core.epochs import UNDEFINED, Diverged, Unknown
from kafkasafe._io.inquiry import Inquiry, pause_s
from kafkasafe._io.lookups import OUT_OF_RANGE
from kafkasafe.cluster.api import EARLIEST, LATEST
from kafkasafe.errors import LogDivergedError
from kafkasafe.events import LogDiverged, LossCheckInconclusive, PositionReset

__all__ = ["Applying"]

_STRATEGY: Final[dict[int, Literal["earliest", "latest"]]] = {EARLIEST: "earliest", LATEST: "latest"}


class Applying(Fetched):
    """Part of `SafeConsumer`."""

    seek: Callable[[TopicPartition, int], None]
    """`SafeConsumer.seek`. The policy `on_divergence` uses it, too."""

    def _carry_on(self, only: TopicPartition | None = None) -> None:
        """Apply the results of finished procedures, and raise an error that was not raised before.

        Args:
            only: Raise only the error of this partition, even if it was raised before.
        """
        self._desk.work()
        for tp, part in list(self._parts.items()):
            if part.inquiry is not None and part.inquiry.done:
                inquiry, part.inquiry = part.inquiry, None
                self._apply(tp, part, inquiry)
        undecided = self._undecided(only)
        if only is None and (undecided := [part for part in undecided if not part.told]):
            self._log.debug("%s partitions wait for a decision", len(undecided), event="undecided")
        if undecided:
            raise self._told(undecided)

    def _undecided(self, only: TopicPartition | None = None) -> list[Part]:
        """Return partitions that wait for the application's decision; with `only`, at most this one."""
        found = []
        for tp, part in list(self._parts.items()):
            if only is not None and tp != only:
                continue
            if part.error is None or self._subscription.assignment.get(tp) is not part.state:
                continue
            position = part.state.position
            if position is None or position.offset != part.position:
                # The position moved, but not by a decision: check the new position, too.
                part.error = part.undecided = part.checked = None
                continue
            found.append(part)
        return found

    @staticmethod
    def _told(undecided: list[Part]) -> Exception:
        """Return the error that was raised least recently."""
        part = min(undecided, key=lambda part: part.told)
        part.told = time.monotonic()
        if part.error is None:  # pragma: no cover - that is what `undecided` means
            raise RuntimeError("nothing is undecided")
        # A new traceback each time, instead of one that grows.
        return part.error.with_traceback(None)

    def _has_others(self) -> bool:
        """Return whether records can come from a partition that does not wait for a decision."""
        for tp, state in self._assigned().items():
            part = self._parts.get(tp)
            if not state.paused and (part is None or part.state is not state or part.error is None):
                return True
        return False

    def _apply(self, tp: TopicPartition, part: Part, inquiry: Inquiry[Any]) -> None:
        if self._subscription.assignment.get(tp) is not part.state:
            return
        if isinstance(inquiry.error, kafka_errors.IllegalStateError):  # closed meanwhile
            return
        result = inquiry.result
        if inquiry.error is not None:
            self._on_inquiry_failed(tp, part, inquiry.error)
        elif isinstance(result, ResetTo):
            self._apply_reset(tp, part, result)
        elif part.state.position is None or part.state.position.offset != part.position:
            part.checked = None  # the result is about a former position
        elif isinstance(result, Local):
            self._apply_local(tp, part, result)
        elif isinstance(result, Ranged):
            self._apply_range(tp, part, result)
        elif isinstance(result, Walked):
            self._apply_walk(tp, part, result)

    def _on_inquiry_failed(self, tp: TopicPartition, part: Part, error: Exception) -> None:
        if part.state.awaiting_reset or not isinstance(error, kafka_errors.KafkaError):
            raise error
        # Brokers before 2.3 refuse clients' questions about epochs. If a permission is missing, fetches fail anyway.
        self._log.seldom(
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
        part.suspected = False
        part.checked = self._leadership(tp)
        self._resting[tp] = time.monotonic() + pause_s(part.failures)
        part.state.complete_validation()

    def _apply_reset(self, tp: TopicPartition, part: Part, to: ResetTo) -> None:
        state = part.state
        if not state.awaiting_reset or state.reset_strategy != to.strategy:
            return
        self._subscription.seek(tp, OffsetAndMetadata(to.offset, "", UNDEFINED))
        self._rereading.placed(tp, to.offset)
        part.checked = None
        leadership = self._leadership(tp)
        if leadership is not None:
            # Check before the first fetch: the topic's id must be known then.
            self._check(tp, part, leadership)
        reason, part.reset = part.reset, None
        if reason is None:
            return  # the application asked for it
        why, previous = reason
        begin = to.start if previous is None else previous
        skipped = None
        if why != "beyond_end" and begin is not None and begin < to.offset:
            skipped = (begin, to.offset - 1)
        self._emit(
            PositionReset(tp.topic, tp.partition, why, _STRATEGY[to.strategy], previous, to.offset, skipped)
        )

    def _apply_range(self, tp: TopicPartition, part: Part, ranged: Ranged) -> None:
        if ranged.walked is not None and isinstance(ranged.walked.outcome, Diverged):
            self._apply_walk(tp, part, ranged.walked)
            return
        if ranged.start <= part.position <= ranged.end:
            # The position is in the log (KIP-1007): the broker that denied it has not found a remote segment yet.
            part.state._awaiting_validation = False
            self._rest(
                tp,
                part,
                OUT_OF_RANGE,
                "OFFSET_OUT_OF_RANGE",
                "in the log, but its remote segment is not found (yet)",
            )
            return
        strategy = self._subscription._default_offset_reset_strategy
        if strategy not in _STRATEGY:
            part.error, part.told = kafka_errors.OffsetOutOfRangeError({tp: part.position}), 0.0
            return
        why: Literal["retention", "beyond_end"] = (
            "retention" if part.position < ranged.start else "beyond_end"
        )
        with self._lock:
            if why == "retention":
                part.lineage.forget_before(ranged.start)
            else:
                part.lineage.truncate(ranged.end)
                part.marks.truncate(ranged.end)
        part.reset = (why, part.position)
        self._subscription.request_offset_reset(tp, strategy)

    def _apply_local(self, tp: TopicPartition, part: Part, local: Local) -> None:
        part.remote = local.start is not None and part.position < local.start
        if part.remote and part.failures and part.code != part.failing_code:
            self._emit_not_ready(tp, part)

    def _apply_walk(self, tp: TopicPartition, part: Part, walked: Walked) -> None:
        outcome = walked.outcome
        # If the leader has changed since then, `_begin_checks` finds a newer leadership than this one.
        seen = walked.leadership
        part.checked = None if seen is None else (seen[0], seen[1], walked.epoch)
        if part.topic_id is not None and walked.topic_id != part.topic_id:
            self._manager.cluster.request_update()
        if not isinstance(outcome, Diverged):
            part.adopt(walked.topic_id)
            if part.suspected:
                # The log agrees up to the position, so the suspicion concerns records read after it (before a seek).
                part.suspected = False
                with self._lock:
                    part.lineage.truncate(part.position)
                    part.marks.truncate(part.position)
                part.state.position = OffsetAndMetadata(part.position, "", UNDEFINED)
            if isinstance(outcome, Unknown):
                self._log.seldom(
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
                # A position before the log's start is reset, with an event of its own.
                if start == part.position and walked.epoch > part.lineage.newest_epoch:
                    self._emit(
                        LossCheckInconclusive(tp.topic, tp.partition, part.position, start, outcome.reason)
                    )
            part.state.complete_validation()
            return
        part.suspected = False
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
        part.undecided = Undecided(event, walked.topic_id)
        # Do not fetch before the decision.
        part.state._awaiting_validation = True
        part.error, part.told = _diverged_error(event), 0.0
        self._emit(event)
        policy = self._safe.on_divergence
        target: int | None
        if callable(policy):
            try:
                target = policy(event)
            except Exception as error:
                # Treat it like None, but raise the function's own error, which says more.
                part.error = error
                return
        else:
            target = event.divergent_offset if policy == "seek" else None
        if target is not None:
            self.seek(tp, target)


def _diverged_error(event: LogDiverged) -> LogDivergedError:
    first, last = event.rolled_back
    other = (
        "the log has no records there now"
        if event.replaced is None
        else f"other records are now at {event.replaced[0]} to {event.replaced[1]}"
    )
    what = (
        "the topic was deleted and recreated"
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
