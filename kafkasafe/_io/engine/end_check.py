"""Checks where a leader epoch and the log end, to find lost acknowledged records."""

from __future__ import annotations

import logging

from kafkasafe._core import journal as j
from kafkasafe._core.loss import Cause
from kafkasafe._io.engine.answers import trouble
from kafkasafe._io.engine.ground import Ground
from kafkasafe._io.engine.lane import Lane
from kafkasafe._io.engine.messages import EpochCheckDue
from kafkasafe._io.engine.steps import Steps
from kafkasafe.cluster.api import EARLIEST, LATEST, Answer, EpochEnd, Failure, OffsetListed
from kafkasafe.events import LossCheckInconclusive

__all__ = ["EndCheck"]

_AGAIN_S = 1.0


class EndCheck(Steps):
    """See the module.

    Args:
        ground: See there.
        lane: The lane.
        check: The last acknowledged offset, and its leader epoch.
        idle: The partition is idle: this is a routine check, dropped if the partition becomes active. Otherwise another
            leader acknowledges, and the check repeats until there is an answer.
        elected: Another leader was elected since: it matters whether its log can prove anything.
    """

    def __init__(self, ground: Ground, lane: Lane, check: j.EpochCheck, *, idle: bool, elected: bool) -> None:
        super().__init__(ground, lane, *lane.journal.views.address(check.destination))
        self._check = check
        self._idle = idle
        self._elected = elected
        self._last = f"though offset {check.last_acked_offset} was acknowledged"

    def go_on(self) -> None:
        """See `Inquiry`."""
        gone = self._lane.journal.missing.reason(self._check.destination)
        if gone:
            self._suspect(0, f"{gone}, {self._last}")
            return
        cluster, epoch = self._ground.cluster, self._check.leader_epoch
        if epoch >= 0:
            cluster.offset_for_leader_epoch(self._topic, self._partition, epoch, self._then("ended"))
        else:
            cluster.list_offset(self._topic, self._partition, LATEST, self._then("listed"))

    def _on_ended(self, result: EpochEnd | Failure) -> None:
        cluster = self._ground.cluster
        if isinstance(result, Failure) and result.unsupported:
            cluster.list_offset(self._topic, self._partition, LATEST, self._then("listed"))
        elif isinstance(result, Failure) or trouble(result)[1]:
            self._failed(result)
        elif result.end_offset < 0:
            # The log lacks the epoch. If it starts after the last acknowledged offset, retention deleted the records.
            cluster.list_offset(self._topic, self._partition, EARLIEST, self._then("started"))
        elif result.end_offset <= self._check.last_acked_offset:
            self._suspect(
                result.end_offset,
                f"leader epoch {self._check.leader_epoch} ends at {result.end_offset}, {self._last}",
            )
        else:
            self._passed()

    def _on_started(self, result: OffsetListed | Failure) -> None:
        if isinstance(result, Failure) or trouble(result)[1]:
            self._failed(result)
        elif 0 <= result.offset <= self._check.last_acked_offset:
            unknown = f"leader epoch {self._check.leader_epoch} is unknown to the log, {self._last}"
            self._suspect(result.offset, f"{unknown} and the log starts at {result.offset}")
        else:
            self._passed()

    def _on_listed(self, result: OffsetListed | Failure) -> None:
        if isinstance(result, Failure) or trouble(result)[1]:
            self._failed(result)
        elif 0 <= result.offset <= self._check.last_acked_offset:
            self._suspect(result.offset, f"the log ends at {result.offset}, {self._last}")
        else:
            self._passed()

    def _suspect(self, end_offset: int, what: str) -> None:
        check, journal = self._check, self._lane.journal
        if not self._idle:
            journal.suspect(check.destination, Cause.LOG_END, what, from_offset=end_offset, check=check)
        elif (check.destination, check.last_acked_offset) in journal.views.idle():
            journal.suspect(check.destination, Cause.LOG_END, what, from_offset=end_offset)

    def _passed(self) -> None:
        if not self._idle:
            self._lane.journal.checked(self._check)
        if self._elected:
            # A log that begins after all acknowledged records proves as much as one that has them.
            self._ground.cluster.list_offset(self._topic, self._partition, EARLIEST, self._then("begins"))

    def _on_begins(self, result: OffsetListed | Failure) -> None:
        check, lane = self._check, self._lane
        if isinstance(result, Failure) or trouble(result)[1]:
            if self._topic not in self._ground.gone:
                self._failed(result)
            return
        if result.offset <= check.last_acked_offset:
            return
        if not lane.checks.report_unproven(check.destination, check.last_acked_offset):
            return
        evidence = (
            f"offset {check.last_acked_offset} was acknowledged under leader epoch {check.leader_epoch}, another leader"
            f" was elected, and the log begins at {result.offset}"
        )
        self._ground.stats.history_trimmed[self._topic] += 1
        self._ground.log.seldom(
            logging.INFO,
            "loss_check_inconclusive",
            f"{self._topic}-{self._partition}",
            "%s-%d: whether all that was acknowledged was still there when it was removed cannot be proven: %s",
            self._topic,
            self._partition,
            evidence,
            lane=lane.name,
            topic=self._topic,
            partition=self._partition,
        )
        self._ground.emit(
            LossCheckInconclusive(
                self._topic, self._partition, check.last_acked_offset + 1, result.offset, evidence
            )
        )

    def _failed(self, result: Answer | Failure) -> None:
        if self._idle:
            if self._elected:
                # Forget that this election was checked: later checks of an idle partition ask less.
                self._lane.checks.forget_leader(self._check.destination)
        elif self._lane in self._ground.lanes and not self._ground.closing:
            # Callers wait for the answer: the leader may have moved.
            self._lane.journal.check_failed(self._check, code=trouble(result)[0])
            self._ground.refresh_topics([self._topic])
            self._ground.timer(_AGAIN_S, EpochCheckDue(self._lane, self._check))
