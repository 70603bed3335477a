"""What has come out of procedures is applied: positions change, events are made, and what is undecided is raised."""

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
    """The application's, which policies for divergence use, too."""

    def _carry_on(self, only: TopicPartition | None = None) -> None:
        """Applies what has come out, and raises what the application has not heard of yet.

        Args:
            only: Raise what is to be said of this partition, also once more, and of no other.
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
        """Partitions with an error that only the application can end; `only` this one if it is such."""
        found = []
        for tp, part in list(self._parts.items()):
            if only is not None and tp != only:
                continue
            if part.error is None or self._subscription.assignment.get(tp) is not part.state:
                continue
            position = part.state.position
            if position is None or position.offset != part.position:
                # Moved, but not by a decision: the new position is examined as well.
                part.error = part.undecided = part.checked = None
                continue
            found.append(part)
        return found

    @staticmethod
    def _told(undecided: list[Part]) -> Exception:
        """The error that was raised the longest time ago."""
        part = min(undecided, key=lambda part: part.told)
        part.told = time.monotonic()
        if part.error is None:  # pragma: no cover - that is what `undecided` means
            raise RuntimeError("nothing is undecided")
        # A new traceback each time, instead of one that grows.
        return part.error.with_traceback(None)

    def _has_others(self) -> bool:
        """Whether records can come from a partition that is not undecided."""
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
            part.checked = None  # it was about another position
        elif isinstance(result, Local):
            self._apply_local(tp, part, result)
        elif isinstance(result, Ranged):
            self._apply_range(tp, part, result)
        elif isinstance(result, Walked):
            self._apply_walk(tp, part, result)

    def _on_inquiry_failed(self, tp: TopicPartition, part: Part, error: Exception) -> None:
        if part.state.awaiting_reset or not isinstance(error, kafka_errors.KafkaError):
            raise error
        # Brokers before 2.3 do not let clients ask about epochs; without the right to ask, fetching fails by itself.
        self._log.seldom(
            logging.WARNING,
            "not_comparable",
            f"{tp.topic}-{tp.partition}",
            "%s-%s: what was read cannot be compared with the log: %r",
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
        part.checked = None
        leadership = self._leadership(tp)
        if leadership is not None:
            # Before anything is fetched: which topic it is must be known then.
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
            # It is in the log (KIP-1007): whoever said it is not does not find a remote segment yet.
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
        # Another leader since then will be newer than this.
        seen = walked.leadership
        part.checked = None if seen is None else (seen[0], seen[1], walked.epoch)
        if part.topic_id is not None and walked.topic_id != part.topic_id:
            self._manager.cluster.request_update()
        if not isinstance(outcome, Diverged):
            part.adopt(walked.topic_id)
            if part.suspected:
                # Up to the position all is well, so it is what was read behind it before that is gone.
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
            at=outcome.at,
            rolled_back=outcome.rolled_back,
            replaced=outcome.replaced,
            epochs=outcome.rolled_back_epochs,
            exact=outcome.exact,
            reason="recreated" if walked.recreated else "truncated",
            round_trips=walked.round_trips,
        )
        part.undecided = Undecided(event, walked.topic_id)
        # Until it is decided about, nothing is fetched.
        part.state._awaiting_validation = True
        part.error, part.told = _diverged_error(event), 0.0
        self._emit(event)
        policy = self._safe.on_divergence
        target: int | None
        if callable(policy):
            try:
                target = policy(event)
            except Exception as error:
                # As if it had said None, but its own error tells more.
                part.error = error
                return
        else:
            target = event.at if policy == "seek" else None
        if target is not None:
            self.seek(tp, target)


def _diverged_error(event: LogDiverged) -> LogDivergedError:
    first, last = event.rolled_back
    other = (
        "nothing is there now"
        if event.replaced is None
        else f"other records are now at {event.replaced[0]} to {event.replaced[1]}"
    )
    what = (
        "the topic was deleted and recreated"
        if event.reason == "recreated"
        else "an unclean election or a lost disk"
    )
    choice = (
        f"seek to {event.at} to go on"
        if event.resume_offset == event.at
        else f"seek to {event.at} to read what is there now, or to {event.resume_offset} to leave that out"
    )
    return LogDivergedError(
        f"{event.topic}-{event.partition}: offsets {first} to {last}, which this consumer had read, are no longer in"
        f" the log ({what}; {other}). Decide what that means for the results you derived from them, then {choice}.",
        event=event,
    )
