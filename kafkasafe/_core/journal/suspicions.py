"""Suspicions that acknowledged batches are gone: what raises one, and that nothing new is sent meanwhile.

What the log says about it, and what is sent again, is in `losses`.
"""

from __future__ import annotations

from kafkasafe._core.codes import MISSING_CODES
from kafkasafe._core.journal.destinations import Destinations
from kafkasafe._core.journal.messages import EpochCheck
from kafkasafe._core.journal.missing import Missing
from kafkasafe._core.journal.packing import Packer
from kafkasafe._core.journal.partition import Flow, Partition, Suspicion
from kafkasafe._core.journal.spool_index import SpoolIndex
from kafkasafe._core.loss import Cause

__all__ = ["Suspicions"]


class Suspicions:
    """What was acknowledged and may be gone."""

    def __init__(
        self,
        destinations: Destinations,
        index: SpoolIndex,
        packer: Packer,
        missing: Missing,
    ) -> None:
        self._partitions = destinations.partitions
        self._index = index
        self._packer = packer
        self._missing = missing

    def suspect(
        self,
        destination: int,
        cause: Cause,
        evidence: str,
        *,
        from_offset: int = -1,
        check: EpochCheck | None = None,
    ) -> None:
        """Something says that acknowledged batches may be gone; the log is asked before anything new is sent.

        Args:
            destination: Destination number.
            cause: What raised the suspicion.
            evidence: For people.
            from_offset: From here on it is gone, if it is; -1 when unknown.
            check: What the suspicion is about, when it is not about the last acknowledgement.
        """
        partition = self._partitions[destination]
        if check is not None and not partition.loss.is_asked(check):
            return
        self.raise_suspicion(partition, cause, evidence, from_offset=from_offset, check=check)
        self.stop_if_suspected(partition)
        self._packer.touch(partition)

    def checked(self, check: EpochCheck) -> None:
        """The log of the leader before did not end before what that one acknowledged."""
        partition = self._partitions[check.destination]
        if partition.loss.is_asked(check):
            partition.loss.passed()
            self._packer.touch(partition)
        self.keep_suspected(partition)

    def check_failed(self, check: EpochCheck, *, code: int) -> None:
        """The log of the leader before could not be asked about; it is asked again.

        Args:
            check: What was asked.
            code: Kafka's error code where the cluster gave one, else 0.
        """
        if code in MISSING_CODES:
            self._missing.say(check.destination)

    def recreated(self, destination: int, evidence: str) -> None:
        """The topic was deleted and created again: what was acknowledged is gone with the old one."""
        self.suspect(destination, Cause.TOPIC_ID, evidence, from_offset=0)

    def raise_suspicion(
        self,
        partition: Partition,
        cause: Cause,
        evidence: str,
        *,
        from_offset: int = -1,
        check: EpochCheck | None = None,
    ) -> None:
        partition.doubt.cut(from_offset)
        known = partition.loss.suspicion
        if known is not None:
            partition.loss.add(known, from_offset, overlaps=cause is Cause.ACK)
            return
        last, epoch = partition.log.last_acked_offset, partition.log.leader_epoch
        if check is not None:
            last, epoch = check.last_acked_offset, check.leader_epoch
        partition.loss.open(Suspicion(cause, evidence, last, from_offset, epoch, cause is Cause.ACK))
        self.keep_suspected(partition)

    def keep_suspected(self, partition: Partition) -> None:
        """After each change of its `suspicion` or `checks`. What may have to be sent again stays in the spool."""
        if not partition.loss.is_open:
            self._index.unpin(partition.number)
        else:
            self._index.pin(partition.number, (*partition.log.acked, *partition.queue))

    def stop_if_suspected(self, partition: Partition) -> None:
        """Nothing new is sent while acknowledged batches may be gone: the log is asked first."""
        if partition.loss.suspicion is not None and partition.flow is Flow.FLOWING:
            partition.progress.decide()
            self._packer.touch(partition)

    def check_offset_order(self, partition: Partition, base_offset: int) -> None:
        """A batch was acknowledged: behind all that was acknowledged before, or that is gone."""
        last = partition.log.last_acked_offset
        if base_offset > last:
            partition.log.know_from(base_offset)
            return
        if base_offset < 0:
            return
        evidence = f"acknowledged at offset {base_offset}, though offset {last} was acknowledged before"
        self.raise_suspicion(partition, Cause.ACK, evidence, from_offset=base_offset)

    def note_leader_epoch(self, partition: Partition, leader_epoch: int) -> None:
        """An acknowledgement came, or its mark was found: what the leader before acknowledged may be gone."""
        if 0 <= partition.log.leader_epoch != leader_epoch and partition.log.last_acked_offset >= 0:
            partition.loss.check(
                EpochCheck(partition.number, partition.log.leader_epoch, partition.log.last_acked_offset)
            )
            self.keep_suspected(partition)
            self._packer.touch(partition)
        partition.log.lead(leader_epoch)
