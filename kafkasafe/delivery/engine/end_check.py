"""Finds signs that a partition lost acknowledged records: the log ends before an acknowledged record, or the record's
leader epoch ends before the record's offset.
"""

from __future__ import annotations

import logging

from kafkasafe import journal as j
from kafkasafe.cluster.api import EARLIEST, LATEST, EpochEnd, Failure, OffsetListed
from kafkasafe.cluster.procedures import Procedure
from kafkasafe.delivery.engine.context import DeletedTopics, EngineContext
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.leader import LeaderRequests, NoAnswerError, RunningInquiry, good, unsupported
from kafkasafe.delivery.engine.messages import EpochCheckDue
from kafkasafe.events import LossCheckInconclusive
from kafkasafe.history.loss import Cause

_AGAIN_S = 1.0


class EndCheck:
    """See the module.

    Args:
        context: See `EngineContext`.
        lane: The lane.
        check: The last acknowledged offset, and the leader epoch under which it was acknowledged.
        idle: True for a routine check of an idle partition, which the engine drops if the partition becomes active.
            False for a check after an acknowledgement from a new leader, which the engine repeats until the leader
            answers.
        elected: Whether a new leader was elected since the offset in `check` was acknowledged. If so, the check also
            reports a log that begins after all acknowledged records.
    """

    def __init__(
        self,
        context: EngineContext,
        deleted: DeletedTopics,
        lane: Lane,
        check: j.EpochCheck,
        *,
        idle: bool,
        elected: bool,
    ) -> None:
        self._context = context
        self._deleted = deleted
        self._lane = lane
        self._topic, self._partition = lane.journal.views.address(check.destination)
        self._leader = LeaderRequests(context, lane, self._topic, self._partition)
        self._check = check
        self._idle = idle
        self._elected = elected
        self._last = f"though offset {check.last_acked_offset} was acknowledged"

    def begin(self) -> None:
        """Start the inquiry."""
        RunningInquiry(self._context, self._leader.name(self), self.run()).go_on()

    def run(self) -> Procedure[None]:
        """The inquiry."""
        try:
            if not (yield from self._has_all()):
                return
            if not self._idle:
                self._lane.journal.checked(self._check)
        except NoAnswerError as failed:
            self._failed(failed.code)
            return
        if self._elected:
            # `_has_all` also returns True if the log begins after all acknowledged records.
            result: OffsetListed | Failure = yield self._leader.list_offset(EARLIEST, "begins")
            try:
                self._compare_begin(good(result).offset)
            except NoAnswerError as failed:
                if self._topic not in self._deleted:
                    self._failed(failed.code)

    def _has_all(self) -> Procedure[bool]:
        """Return True if there is no sign that the log lacks acknowledged records. On such a sign, report the suspicion
        to the journal, and return False.
        """
        check, leader = self._check, self._leader
        gone = self._lane.journal.missing.proven.get(check.destination, "")
        if gone:
            self._suspect(0, f"{gone}, {self._last}")
            return False
        if check.leader_epoch >= 0:
            result: EpochEnd | Failure = yield leader.offset_for_leader_epoch(check.leader_epoch, "ended")
            if not unsupported(result):
                return (yield from self._has_epoch(good(result).end_offset))
        listed: OffsetListed | Failure = yield leader.list_offset(LATEST, "listed")
        end_offset = good(listed).offset
        if not 0 <= end_offset <= check.last_acked_offset:
            return True
        self._suspect(end_offset, f"the log ends at {end_offset}, {self._last}")
        return False

    def _has_epoch(self, end_offset: int) -> Procedure[bool]:
        """Whether the log has all acknowledged records. `end_offset` is the end of the last acknowledged record's
        leader epoch; negative if the log lacks the epoch.
        """
        check = self._check
        if end_offset > check.last_acked_offset:
            return True
        if end_offset >= 0:
            self._suspect(end_offset, f"leader epoch {check.leader_epoch} ends at {end_offset}, {self._last}")
            return False
        # The log lacks the epoch. A log that starts after the last acknowledged offset is no sign of a loss: retention
        # may have deleted the records.
        started: OffsetListed | Failure = yield self._leader.list_offset(EARLIEST, "started")
        log_start = good(started).offset
        if not 0 <= log_start <= check.last_acked_offset:
            return True
        unknown = f"leader epoch {check.leader_epoch} is unknown to the log, {self._last}"
        self._suspect(log_start, f"{unknown} and the log starts at {log_start}")
        return False

    def _suspect(self, end_offset: int, what: str) -> None:
        check, journal = self._check, self._lane.journal
        if not self._idle:
            journal.suspect(check.destination, Cause.LOG_END, what, from_offset=end_offset, check=check)
        elif (check.destination, check.last_acked_offset) in journal.views.idle():
            journal.suspect(check.destination, Cause.LOG_END, what, from_offset=end_offset)

    def _compare_begin(self, log_start: int) -> None:
        """Report a log that begins after all acknowledged records. The producer cannot know whether retention deleted
        these records, or the present leader's log never contained them.
        """
        check, lane = self._check, self._lane
        if log_start <= check.last_acked_offset:
            return
        if not lane.checks.report_unproven(check.destination, check.last_acked_offset):
            return
        evidence = (
            f"offset {check.last_acked_offset} was acknowledged under leader epoch {check.leader_epoch}, another leader"
            f" was elected, and the log begins at {log_start}"
        )
        self._context.stats.history_trimmed[self._topic] += 1
        self._context.log.limited(
            logging.INFO,
            "loss_check_inconclusive",
            f"{self._topic}-{self._partition}",
            "%s-%d: the log now begins after all acknowledged records, and nothing proves that it had them until they"
            " were deleted: %s",
            self._topic,
            self._partition,
            evidence,
            lane=lane.name,
            topic=self._topic,
            partition=self._partition,
        )
        self._context.emit(
            LossCheckInconclusive(
                self._topic, self._partition, check.last_acked_offset + 1, log_start, evidence
            )
        )

    def _failed(self, code: int) -> None:
        if self._idle:
            if self._elected:
                # Forget that the log was checked after this election, so that the next metadata answer causes the same
                # check again.
                self._lane.checks.forget_leader(self._check.destination)
        elif self._lane in self._context.lanes and not self._context.close_state.closing:
            # Ask again, because callers wait for the answer. Refresh the metadata first, because another broker may be
            # the leader now.
            self._lane.journal.check_failed(self._check, code=code)
            self._context.refresh_topics([self._topic])
            self._context.timer(_AGAIN_S, EpochCheckDue(self._lane, self._check))
