"""Tracks refusals that may be temporary: how long each refusal has lasted without a different answer, and which notices
about it are due.

`answers` and `rejecting` decide what happens when a refusal lasts too long.
"""

from __future__ import annotations

from kafkasafe.codes.sets import MISSING_CODES
from kafkasafe.codes.verdicts import Scope
from kafkasafe.journal.destinations import Destination, Partition
from kafkasafe.journal.flow import Flow, FlowEvent
from kafkasafe.journal.notices import Denied, Relented
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.refusal import CONFIRMED_S
from kafkasafe.journal.state import JournalState


class Refusals:
    """Tracks whether the cluster refuses a destination or only the first batch of the destination's queue."""

    def __init__(self, state: JournalState, packer: Packer) -> None:
        self._all = state.destinations.all
        self._partitions = state.destinations.partitions
        self._out = state.out
        self._index = state.index
        self._packer = packer
        self._missing = state.missing
        self._refused_timeout_s = state.settings.blocked_timeout_s
        self._missing_grace_s = state.settings.missing_grace_s

    def deny_unit(self, destination: int, code: int, reason: str, now: float, *, handle: int = -1) -> bool:
        """Note that the cluster refuses a destination of a unit (atomic batch) for a reason that may be temporary.

        Args:
            destination: Destination number.
            code: Kafka's error code.
            reason: Human-readable text.
            now: The current time in seconds.
            handle: The unit's batch, if the cluster refuses only this batch; otherwise -1.

        Returns:
            True if the cluster answered only with refusals for the whole timeout, or the partition is proven not to
            exist.
        """
        scope = Scope.DESTINATION if handle < 0 else Scope.BATCH
        return self.note_refusal(self._all[destination], code, reason, scope, now, handle=handle)

    def note_refusal(
        self,
        partition: Destination,
        code: int,
        reason: str,
        scope: Scope,
        now: float,
        *,
        handle: int = -1,
        asking: bool = False,
    ) -> bool:
        """Note a refusal that may be temporary.

        Returns:
            True if the refusal counts as permanent: the cluster answered only with refusals for the whole timeout, or
            the partition is proven not to exist.
        """
        timer = partition.refusal
        if timer.is_about_other(handle):
            # The journal counts the duration separately for each refused batch, and for the destination as a whole.
            self.clear_refusal(partition, accepted=False)
        denial = timer.refused(code, reason, scope, now, handle=handle, asking=asking)
        absent = False
        if code in MISSING_CODES and isinstance(partition, Partition):
            self._missing.say(partition.number)
            absent = partition.number in self._missing.proven
        limit_s = self._refused_timeout_s
        lasting = limit_s is not None and now - denial.counted_from >= limit_s
        # A single refusal causes no notice yet: the error may occur only once, or the broker may not know a new topic
        # yet.
        patient_s = self._missing_grace_s if code in MISSING_CODES else CONFIRMED_S
        confirmed = denial.answers > 1 and now - denial.counted_from >= patient_s
        if not denial.reported and (lasting or confirmed):
            denial.tell()
            self._out.ready.notices.append(Denied(partition.number, denial))
        return lasting or absent

    def waits_for(self, ms: float) -> bool:
        """Whether the journal waits for at least `ms` milliseconds before it rejects refused batches."""
        return self._refused_timeout_s is None or ms <= self._refused_timeout_s * 1000

    def absent(self, destination: int, reason: str) -> None:
        """Note a proof that a partition does not exist. When a later answer reports the partition as missing again, the
        journal rejects the batches that wait for it.

        The proof holds until `Journal.present` is called. A paused destination tries again at once.

        Args:
            destination: Destination number.
            reason: Human-readable text.
        """
        partition = self._partitions[destination]
        self._missing.prove(destination, reason)
        if partition.progress.flow is Flow.WAITING:
            partition.progress.on(FlowEvent.PAUSE_OVER)
            self._packer.touch(partition)

    def note_answer(self, partition: Destination) -> None:
        """Note that the cluster answered a question. This ends an earlier refusal to answer.

        If the cluster then refuses a batch, the duration of the new refusal begins with the answer about the batch.
        """
        denial = partition.refusal.denial
        if denial is not None and denial.asking:
            self.clear_refusal(partition)

    def clear_refusal(self, partition: Destination, *, accepted: bool = True) -> None:
        """End the refusal, because another answer came, or no batch waits any more."""
        number = partition.number
        if number in self._missing.said and number not in self._index.suspected:
            self._missing.take_back(number)  # while a loss is suspected, only a survey's answer counts
        over = None if partition.refusal.denial is None else partition.refusal.clear()
        if over is not None:
            self._out.ready.notices.append(Relented(number, over, accepted))
