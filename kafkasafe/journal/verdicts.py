"""Decides about batches in doubt. The leader's producer state or the partition's log shows whether a batch was
appended. If neither does, the user decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkasafe import marks as m
from kafkasafe.history.identity import IdentityVerdict, Judgement
from kafkasafe.history.loss import Cause
from kafkasafe.journal.batch import TOO_SLOW, Batch, BatchEvent
from kafkasafe.journal.destinations import Destination, Partition
from kafkasafe.journal.endings import Durability
from kafkasafe.journal.flow import Flow, FlowEvent
from kafkasafe.journal.losses import Suspicions
from kafkasafe.journal.notices import Hole, Undecidable
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.refusals import Refusals
from kafkasafe.journal.state import JournalState


class Verdicts:
    """Applies judgements (answers of the cluster) and decisions of the user to batches in doubt."""

    def __init__(
        self,
        state: JournalState,
        packer: Packer,
        suspicions: Suspicions,
        refusals: Refusals,
        durability: Durability,
    ) -> None:
        self._all = state.destinations.all
        self._partitions = state.destinations.partitions
        self._out = state.out
        self._packer = packer
        self._suspicions = suspicions
        self._refusals = refusals
        self._durability = durability
        self._request_timeout_s = state.settings.request_timeout_s

    def judged(
        self,
        destination: int,
        judgement: Judgement,
        *,
        stable: bool,
        shrunk_to: int = -1,
        read_from: int = 0,
        leader_epoch: int = -1,
        now: float,
    ) -> None:
        """Handle the answer to an `OutcomeAsk` with batches in doubt.

        Args:
            destination: Destination number.
            judgement: The conclusion about the batches in `OutcomeAsk.doubt`, which it identifies by their indexes in
                this list.
            stable: Whether the batches that the engine found are below the high watermark. If so, the journal sends no
                probe.
            shrunk_to: The log's end offset if the log ends before the offset of an acknowledged batch; else -1.
            read_from: The offset from which the log was read, if `shrunk_to` is given.
            leader_epoch: Epoch of the leader whose log was read, -1 when unknown.
            now: The current time in seconds.
        """
        partition = self._partitions[destination]
        if partition.progress.flow is not Flow.ASKING:
            return
        self._refusals.note_answer(partition)
        if partition.doubt.is_partial and shrunk_to < 0:
            # The answer is incomplete: the journal found, after asking, that the log must be read from a lower offset.
            partition.progress.on(FlowEvent.STALE)
            self._packer.touch(partition)
            return
        doubt = partition.queue.doubt
        present, absent = doubt[: judgement.present], doubt[judgement.present :]
        if shrunk_to >= 0:
            evidence = f"the log ends at {shrunk_to}: {judgement.evidence}"
            self._suspicions.raise_suspicion(partition, Cause.LOG_END, evidence, from_offset=shrunk_to)
            partition.doubt.read_again(read_from)
        if present and not stable and not _is_passed(partition, present[-1]):
            self._prove(partition, present[-1], now)
            return
        if present and stable:
            self._suspicions.note_leader_epoch(partition, leader_epoch)
        if present:
            self._finish_present(partition, present, judgement)
        if absent and (judgement.verdict is IdentityVerdict.UNDECIDABLE or partition.doubt.fenced):
            self._stop_at_undecidable(partition, absent[0], judgement.evidence)
            return
        if absent and _is_gap(partition, absent[0], judgement, stable=stable):
            if partition.doubt.is_early:
                # The batch gets no new id while a broker may still append a request under the old id.
                self._out.wait_for_late(partition, now, judgement.evidence)
                return
            self._note_gap(partition, absent[0], judgement)
        if (
            absent
            and absent[0].fault.condemned
            and absent[0].fault.code == TOO_SLOW
            and now < partition.doubt.dead_at
        ):
            # The batch's parts will get new ids. Before dividing the batch, the journal waits until no broker can
            # append a request with the batch, and then searches the log for the batch once more.
            self._out.wait_for_late(partition, now, absent[0].fault.message)
            return
        early = partition.doubt.is_early
        partition.doubt.unfence()
        for batch in absent:
            batch.may_arrive(possible=early)
            given_up = batch.fault.condemned and not batch.unanswered
            batch.on(BatchEvent.ABSENT_CONDEMNED if given_up else BatchEvent.ABSENT)
            batch.pardon()
        partition.progress.on(FlowEvent.JUDGED)
        self._packer.touch(partition)

    def _prove(self, partition: Partition, newest: Batch, now: float) -> None:
        """Send the newest batch that the leader has again, to learn whether the replicas have it, too. While the batch
        is above the high watermark, a change of leader can still remove it.
        """
        if now - partition.doubt.asked_at > self._request_timeout_s:
            # The answer is too old, because the process was suspended. If the leader has dropped our producer state
            # since its answer, it would append the repeated batch as a new one.
            partition.progress.on(FlowEvent.STALE)
            self._packer.touch(partition)
            return
        partition.progress.on(FlowEvent.UNSTABLE)
        self._out.send(partition, newest)

    def _finish_present(self, partition: Partition, present: Sequence[Batch], judgement: Judgement) -> None:
        """Finish the batches that are in the log."""
        for index, batch in enumerate(present):
            batch.locate(judgement.offsets.get(index, -1))
            batch.on(BatchEvent.FOUND)
            if batch.base_offset >= 0:
                partition.loss.find(batch.base_offset, partition.log.last_acked_offset)
                partition.log.find(batch.base_offset, batch.count)
            self._durability.finish(partition, batch)

    def _stop_at_undecidable(self, partition: Partition, first: Batch, evidence: str) -> None:
        if partition.doubt.fenced:
            evidence = (
                f"fenced: something wrote to the partition under a newer epoch of the producer id of {first.identity}."
                f" So these records have another owner too, most likely a copy of this spool directory; {evidence}"
            )
        self._stop_at(partition, first, FlowEvent.UNKNOWABLE, evidence)

    def _note_gap(self, partition: Partition, first: Batch, judgement: Judgement) -> None:
        """Raise the suspicion that the log lost the batches before `first`. The batch `first` later gets a new id."""
        partition.ids.expire()
        if (
            judgement.missing
            and first.former_life
            and not (first.identity and partition.loss.expects(first.identity, judgement.missing))
        ):
            partition.loss.miss(Hole(partition.number, judgement.missing, judgement.evidence))
        # Retention has removed the missing batches, or the log has lost them (KAFKA-5793): the journal may be unable to
        # tell which, if the leader cannot report its producer state.
        evidence = f"{judgement.evidence}; the next batch is {first.identity}"
        self._suspicions.raise_suspicion(partition, Cause.SEQUENCE, evidence)

    def decide(self, batch: Batch, *, resend: bool) -> None:
        """Apply the user's decision about an undecidable batch: send it under a new id, or take it as delivered.

        If the user chooses to send the batch, the log may then contain the batch twice.
        """
        destination = self._all[batch.destination]
        if batch.position >= 0:
            decision = m.Decision.RESEND if resend else m.Decision.SKIP
            self._out.ready.persist.marks.append(m.Resolved(batch.position, decision))
        if not resend:
            batch.on(BatchEvent.SKIPPED)
            self._durability.skip(destination, batch)
            if self.stop_at_unsure(destination):
                return
        elif isinstance(destination, Partition):
            batch.on(BatchEvent.RESENT)
            batch.may_arrive(possible=False)  # the user decided
            batch.pardon()
            destination.end_unsure()
            destination.ids.expire()
        else:
            batch.on(BatchEvent.RESENT_UNCHOSEN)
            destination.end_unsure()
        if isinstance(destination, Partition):
            destination.doubt.unfence()
        destination.progress.on(FlowEvent.USER_DECIDED)
        self._packer.touch(destination)

    def _stop_at(self, partition: Destination, batch: Batch, event: FlowEvent, evidence: str) -> None:
        batch.on(BatchEvent.UNKNOWABLE)
        batch.blame(batch.fault.code, evidence)
        partition.progress.on(event)
        if batch.position >= 0:
            self._out.ready.persist.marks.append(m.Undecidable(batch.position, evidence))
        self._out.ready.notices.append(Undecidable(batch, evidence))

    def stop_at_unsure(self, partition: Destination) -> bool:
        head = partition.queue.head
        if head is None or head.unit is not None or not 0 <= head.position < partition.unsure_before:
            return False
        evidence = f"damage in the spool destroyed marks before position {partition.unsure_before}"
        self._stop_at(partition, head, FlowEvent.MARKS_LOST, evidence)
        return True


def _is_passed(partition: Partition, newest: Batch) -> bool:
    """Whether a later batch is acknowledged. This acknowledgement proves, as a probe would, that the replicas have
    `newest`.
    """
    last = partition.log.last_acked_id
    return newest.identity is not None and last is not None and last.follows(newest.identity)


def _is_gap(partition: Partition, first: Batch, judgement: Judgement, *, stable: bool) -> bool:
    """Whether the leader lacks batches before `first`, and the lane has no explanation for their absence."""
    gap = judgement.verdict is IdentityVerdict.GAP
    # Old brokers cannot report their producer state. If an old broker refuses the sequence, and the log does not have
    # the batch, there is a gap.
    gap = gap or (stable and partition.doubt.sequence_refused and not judgement.of_state)
    return gap and not partition.queue.explains_gap(first)
