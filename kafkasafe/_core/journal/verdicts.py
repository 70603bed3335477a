"""Batches in doubt: what the cluster's state, or its log, says of them, and what the user does where nobody knows."""

from __future__ import annotations

from dataclasses import replace

from kafkasafe._core import marks as m
from kafkasafe._core.identity import Judgement, Verdict
from kafkasafe._core.journal.notices import Hole, Parked
from kafkasafe._core.journal.partition import UNCHOSEN, Flow, Partition
from kafkasafe._core.journal.rejecting import Rejecting
from kafkasafe._core.journal.states import TOO_SLOW, Batch, State, follows
from kafkasafe._core.loss import Cause

__all__ = ["Verdicts"]


class Verdicts(Rejecting):
    """Part of `Journal`: what became of batches whose answer was lost."""

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
        """The answer to an Ask with batches in doubt.

        Args:
            destination: Destination number.
            judgement: About the batches of the Ask, in its order.
            stable: The present ones were read below the high watermark: no probe is needed.
            shrunk_to: The log's end, where it is before what was acknowledged; else -1.
            read_from: Where the log was read from then.
            leader_epoch: Of the leader whose log was read, -1 when unknown.
            now: Seconds.
        """
        partition = self._partitions[destination]
        if partition.flow is not Flow.ASKING:
            return
        if 0 <= partition.rescan_from < partition.asked_from and shrunk_to < 0:
            # What was learned meanwhile says that the answer is not about all of the log.
            partition.flow = Flow.SETTLING
            partition.rested = True
            self._touch(partition)
            return
        doubt = self._doubt(partition)
        present, absent = doubt[: judgement.present], doubt[judgement.present :]
        if shrunk_to >= 0:
            evidence = f"the log ends at {shrunk_to}: {judgement.evidence}"
            self._suspect(partition, Cause.LOG_END, evidence, from_offset=shrunk_to)
            partition.rescan_from = (
                read_from if partition.rescan_from < 0 else min(partition.rescan_from, read_from)
            )
        newest = present[-1].identity if present else None
        last = partition.last_acked_id
        # What was acknowledged behind it says as much as a probe would.
        passed = newest is not None and last is not None and follows(last, newest)
        if present and not stable and not passed and now - partition.asked_at > self._request_timeout_s:
            # This process slept over the answer: the leader may have forgotten us, and would append the probe.
            partition.flow = Flow.SETTLING
            partition.rested = True
            self._touch(partition)
            return
        if present and not stable and not passed:
            # Above the high watermark an append can still be undone by a leader change.
            partition.flow = Flow.PROBING
            self._send(partition, present[-1])
            return
        if present and stable:
            self._leads(partition, leader_epoch)
        for index, batch in enumerate(present):
            batch.base_offset = judgement.offsets.get(index, -1)
            batch.move(State.ACKED)
            if batch.base_offset >= 0:
                if partition.suspicion is not None and batch.base_offset <= partition.last_acked_offset:
                    partition.suspicion = replace(partition.suspicion, overlaps=True)
                partition.last_acked_offset = max(
                    partition.last_acked_offset, batch.base_offset + batch.count - 1
                )
            self._finish(partition, batch)
        if absent and (judgement.verdict is Verdict.UNDECIDABLE or partition.fenced):
            evidence = judgement.evidence
            if partition.fenced:
                evidence = (
                    f"fenced: a newer epoch of the producer id of {absent[0].identity} wrote to the partition, so"
                    f" something else owns these records too, most likely a copy of this spool directory; {evidence}"
                )
            self._park(partition, absent[0], evidence)
            return
        # Brokers that cannot tell their state: the sequence is refused and the log does not have it.
        gap = judgement.verdict is Verdict.GAP
        gap = gap or (stable and partition.sequence_refused and not judgement.of_state)
        if absent and gap and not self._explained(partition, absent[0]):
            if partition.asked_at < partition.dead_at:
                # No new id while a request under the old one may still be appended.
                self._pause(partition, judgement.evidence, at_least_s=max(0.0, partition.dead_at - now))
                return
            partition.renew = True
            first = absent[0]
            if judgement.missing and first.former_life and not partition.explained and self._blind_before < 0:
                partition.explained = True
                partition.hole = Hole(partition.number, judgement.missing, judgement.evidence)
            # A leader that cannot be asked for its state says no more than that: retention, or a loss (KAFKA-5793).
            evidence = f"{judgement.evidence}; the next batch is {absent[0].identity}"
            self._suspect(partition, Cause.SEQUENCE, evidence)
        if absent and absent[0].condemned and absent[0].code == TOO_SLOW and now < partition.dead_at:
            # Its parts get new ids: it is looked for once more when no request with it can still be appended.
            self._pause(partition, absent[0].message, at_least_s=partition.dead_at - now)
            return
        for batch in absent:
            batch.unanswered = partition.asked_at < partition.dead_at
            batch.move(State.REFUSED if batch.condemned and not batch.unanswered else State.PREPARED)
            batch.condemned = False
        partition.doubtful = any(batch.state is State.IN_DOUBT for batch in partition.queue)
        partition.fenced = False
        partition.flow = Flow.SETTLING
        partition.rested = True
        self._touch(partition)

    def decide(self, batch: Batch, *, resend: bool) -> None:
        """The user's decision about an undecidable batch: send it under a new id, or take it as delivered.

        With `resend` it may be in the log twice.
        """
        partition = self._partitions[batch.destination]
        if batch.position >= 0:
            decision = m.Decision.RESEND if resend else m.Decision.SKIP
            self._ready.persist.marks.append(m.Resolved(batch.position, decision))
        if not resend:
            batch.move(State.ACKED)
            self._finish(partition, batch)
            if self._park_unsure(partition):
                return
        elif partition.partition == UNCHOSEN:
            batch.move(State.SEALED)
            partition.unsure_before = -1
        else:
            batch.move(State.PREPARED)
            batch.unanswered = batch.condemned = False  # decided
            partition.unsure_before = -1
            partition.renew = True
        if partition.partition == UNCHOSEN:
            partition.flow = Flow.NEW
            self._touch(partition)
            return
        partition.doubtful = any(b.state is State.IN_DOUBT for b in partition.queue)
        partition.fenced = False
        partition.flow = Flow.SETTLING
        partition.rested = True
        self._touch(partition)

    @staticmethod
    def _doubt(partition: Partition) -> list[Batch]:
        """The first batches in doubt that share a producer id and epoch."""
        doubt: list[Batch] = []
        for batch in partition.queue:
            if batch.state is State.IN_DOUBT and batch.identity is not None:
                if (
                    doubt
                    and doubt[0].identity is not None
                    and (
                        doubt[0].identity.producer_id,
                        doubt[0].identity.producer_epoch,
                    )
                    != (batch.identity.producer_id, batch.identity.producer_epoch)
                ):
                    break
                doubt.append(batch)
        return doubt

    @staticmethod
    def _explained(partition: Partition, absent: Batch) -> bool:
        """What the leader misses before this batch is still to be sent, or was refused."""
        for earlier in partition.queue:
            if earlier is absent:
                return False
            if earlier.state in {State.SEALED, State.PREPARED, State.REFUSED}:
                return True
        return False

    def _park(self, partition: Partition, batch: Batch, evidence: str) -> None:
        batch.move(State.UNDECIDABLE)
        batch.message = evidence
        partition.flow = Flow.PARKED
        if batch.position >= 0:
            self._ready.persist.marks.append(m.Undecidable(batch.position, evidence))
        self._ready.notices.append(Parked(batch, evidence))

    def _park_unsure(self, partition: Partition) -> bool:
        head = next((batch for batch in partition.queue if batch.state is not State.ACKED), None)
        if head is None or head.unit is not None or not 0 <= head.position < partition.unsure_before:
            return False
        evidence = f"marks are lost to damage in the spool before position {partition.unsure_before}"
        self._park(partition, head, evidence)
        return True
