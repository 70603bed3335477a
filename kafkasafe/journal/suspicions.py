"""Raises suspicions that a log has lost acknowledged batches. The journal sends no new batch to a suspected partition.

`losses` surveys the log and sends lost batches again.
"""

from __future__ import annotations

from kafkasafe.codes.verdicts import MISSING_CODES
from kafkasafe.history.loss import Cause
from kafkasafe.journal.destinations import Destinations
from kafkasafe.journal.flow import Flow, FlowEvent
from kafkasafe.journal.messages import EpochCheck
from kafkasafe.journal.missing import Missing
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.partition import Partition, Suspicion
from kafkasafe.journal.spool_index import SpoolIndex

__all__ = ["Suspicions"]


class Suspicions:
    """Raises suspicions, and pins the batches in the spool that may have to be sent again."""

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
        """Raise a suspicion that the log has lost acknowledged batches; a survey runs before any new batch is sent.

        Args:
            destination: Destination number.
            cause: The sign that raised the suspicion.
            evidence: Human-readable text.
            from_offset: If the log lost records, it lost those from this offset on; -1 when unknown.
            check: The failed check that raised the suspicion, if it is not about the last acknowledgement.
        """
        partition = self._partitions[destination]
        if check is not None and not partition.loss.is_asked(check):
            return
        self.raise_suspicion(partition, cause, evidence, from_offset=from_offset, check=check)
        self.stop_if_suspected(partition)
        self._packer.touch(partition)

    def checked(self, check: EpochCheck) -> None:
        """Note a passed check: the former leader's epoch does not end before its last acknowledgement."""
        partition = self._partitions[check.destination]
        if partition.loss.is_asked(check):
            partition.loss.passed()
            self._packer.touch(partition)
        self.keep_suspected(partition)

    def check_failed(self, check: EpochCheck, *, code: int) -> None:
        """Note that a check had no answer. The journal repeats the check.

        Args:
            check: The check.
            code: Kafka's error code if the cluster gave one, else 0.
        """
        if code in MISSING_CODES:
            self._missing.say(check.destination)

    def recreated(self, destination: int, evidence: str) -> None:
        """Raise a suspicion: the topic was recreated, so the acknowledged batches were deleted with the old topic."""
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
        """Pin batches that may have to be sent again. Call it after each change of `suspicion` or `checks`."""
        if not partition.loss.is_open:
            self._index.unpin(partition.number)
        else:
            self._index.pin(partition.number, (*partition.log.acked, *partition.queue))

    def stop_if_suspected(self, partition: Partition) -> None:
        """Stop sending new batches if the log is suspected: a survey runs first."""
        if partition.loss.suspicion is not None and partition.flow is Flow.FLOWING:
            partition.progress.on(FlowEvent.SUSPECTED)
            self._packer.touch(partition)

    def check_offset_order(self, partition: Partition, base_offset: int) -> None:
        """Compare an acknowledged offset with the last one. A lower offset raises a suspicion."""
        last = partition.log.last_acked_offset
        if base_offset > last:
            partition.log.know_from(base_offset)
            return
        if base_offset < 0:
            return
        evidence = f"acknowledged at offset {base_offset}, though offset {last} was acknowledged before"
        self.raise_suspicion(partition, Cause.ACK, evidence, from_offset=base_offset)

    def note_leader_epoch(self, partition: Partition, leader_epoch: int) -> None:
        """Note the leader epoch of an acknowledgement or its mark. A new leader may lack its predecessor's records."""
        if 0 <= partition.log.leader_epoch != leader_epoch and partition.log.last_acked_offset >= 0:
            partition.loss.check(
                EpochCheck(partition.number, partition.log.leader_epoch, partition.log.last_acked_offset)
            )
            self.keep_suspected(partition)
            self._packer.touch(partition)
        partition.log.lead(leader_epoch)
