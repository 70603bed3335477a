"""Refusals that may pass: how long one lasts, without another answer in between, and who is told.

What is done when one lasted for too long is decided by those who ask, in `answers` and `rejecting`.
"""

from __future__ import annotations

from kafkasafe._core.codes import MISSING_CODES, Scope
from kafkasafe._core.journal.destinations import Destinations
from kafkasafe._core.journal.missing import Missing
from kafkasafe._core.journal.notices import Denied, Relented
from kafkasafe._core.journal.outbox import Outbox
from kafkasafe._core.journal.packing import Packer
from kafkasafe._core.journal.partition import UNCHOSEN, Flow, Partition
from kafkasafe._core.journal.refusal import CONFIRMED_S
from kafkasafe._core.journal.spool_index import SpoolIndex

__all__ = ["Refusals"]


class Refusals:
    """A destination, or the batch at its head, that the cluster does not take for the moment."""

    def __init__(
        self,
        destinations: Destinations,
        out: Outbox,
        index: SpoolIndex,
        packer: Packer,
        missing: Missing,
        *,
        blocked_timeout_s: float | None,
        missing_grace_s: float,
    ) -> None:
        self._partitions = destinations.partitions
        self._out = out
        self._index = index
        self._packer = packer
        self._missing = missing
        self._refused_timeout_s = blocked_timeout_s
        self._missing_grace_s = missing_grace_s

    def deny_unit(self, destination: int, code: int, reason: str, now: float) -> bool:
        """The cluster refuses a destination of a unit for a reason that may pass.

        Returns:
            True when it did, and answered nothing else, for as long as anything is waited for; or the partition is
            known not to exist.
        """
        return self.note_refusal(self._partitions[destination], code, reason, Scope.DESTINATION, now)

    def note_refusal(
        self,
        partition: Partition,
        code: int,
        reason: str,
        scope: Scope,
        now: float,
        *,
        handle: int = -1,
        asking: bool = False,
    ) -> bool:
        """An answer that may pass.

        Returns:
            True when it will not: it came, and no other, for as long as anything is waited for, or the partition is
            known not to exist.
        """
        timer = partition.refusal
        if timer.is_about_other(handle):
            # It has its own time.
            self.clear_refusal(partition, accepted=False)
        denial = timer.refused(code, reason, scope, now, handle=handle, asking=asking)
        absent = False
        if code in MISSING_CODES and partition.partition != UNCHOSEN:
            self._missing.say(partition.number)
            absent = bool(self._missing.reason(partition.number))
        limit_s = self._refused_timeout_s
        lasting = limit_s is not None and now - denial.counted_from >= limit_s
        # A topic that is missing may only be new to this broker; and nobody is told of a single stray answer.
        patient_s = self._missing_grace_s if code in MISSING_CODES else CONFIRMED_S
        confirmed = denial.answers > 1 and now - denial.counted_from >= patient_s
        if not denial.told and (lasting or confirmed):
            denial.tell()
            self._out.ready.notices.append(Denied(partition.number, denial))
        return lasting or absent

    def waits_for(self, ms: float) -> bool:
        """Whether a refusal may last so many ms before what it concerns is rejected."""
        return self._refused_timeout_s is None or ms <= self._refused_timeout_s * 1000

    def absent(self, destination: int, reason: str) -> None:
        """It is proven that a partition does not exist: what waits for it, or will, is rejected with its next answer.

        Until `present`. A destination that waits for its next try has it now.

        Args:
            destination: Destination number.
            reason: For people.
        """
        partition = self._partitions[destination]
        self._missing.prove(destination, reason)
        if partition.flow is Flow.WAITING:
            partition.progress.decide()
            self._packer.touch(partition)

    def present(self, destination: int) -> None:
        """It is there after all, or was made."""
        self._missing.exists(destination)

    def clear_refusal(self, partition: Partition, *, accepted: bool = True) -> None:
        """Another answer came, or nothing waits any more."""
        over = partition.refusal.clear()
        if partition.number not in self._index.suspected:
            self._missing.take_back(partition.number)  # else the question about it had that answer
        if over is not None:
            self._out.ready.notices.append(Relented(partition.number, over, accepted))
