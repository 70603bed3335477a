"""Handles suspicions that a log has lost acknowledged batches: surveys the log, and queues the lost batches again.

The journal sends no new batch to a suspected partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kafkasafe import marks as m
from kafkasafe.codes.sets import MISSING_CODES
from kafkasafe.history.loss import AckedBatch, Cause, Loss
from kafkasafe.journal.acked import ANYWHERE, EpochCheck, Suspicion
from kafkasafe.journal.batch import Batch, BatchState
from kafkasafe.journal.destinations import Partition
from kafkasafe.journal.flow import Flow, FlowEvent
from kafkasafe.journal.notices import AckedLoss
from kafkasafe.journal.outbox import SurveyAsk
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.snapshots import Snapshots
from kafkasafe.journal.state import JournalState


class Suspicions:
    """Raises suspicions, and makes the spool keep the batches that may have to be sent again."""

    def __init__(self, state: JournalState, packer: Packer) -> None:
        self._partitions = state.destinations.partitions
        self._index = state.index
        self._packer = packer
        self._missing = state.missing

    def suspect(
        self,
        destination: int,
        cause: Cause,
        evidence: str,
        *,
        from_offset: int = -1,
        check: EpochCheck | None = None,
    ) -> None:
        """Raise a suspicion that the log has lost acknowledged batches. The journal surveys the log before it sends new
        batches.

        Args:
            destination: Destination number.
            cause: The sign that raised the suspicion.
            evidence: Human-readable text.
            from_offset: The log may have lost the records from this offset on; -1 when unknown.
            check: The failed check that raised the suspicion; if None, the suspicion is about the last acknowledgement.
        """
        partition = self._partitions[destination]
        if check is not None and not partition.loss.is_asked(check):
            return
        self.raise_suspicion(partition, cause, evidence, from_offset=from_offset, check=check)
        self.stop(partition)
        self._packer.touch(partition)

    def checked(self, check: EpochCheck) -> None:
        """Note that a check found no loss (see `EpochCheck`)."""
        partition = self._partitions[check.destination]
        if partition.loss.is_asked(check):
            partition.loss.passed()
            self._packer.touch(partition)
        if not partition.loss.is_open:
            self._index.unpin(partition.number)

    def check_failed(self, check: EpochCheck, *, code: int) -> None:
        """Note that a check had no answer. The engine repeats the check.

        Args:
            check: The check.
            code: Kafka's error code if the cluster gave one, else 0.
        """
        if code in MISSING_CODES:
            self._missing.say(check.destination)

    def recreated(self, destination: int, evidence: str) -> None:
        """Raise a suspicion, because the topic was deleted, with the acknowledged batches, and created again."""
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
        if partition.doubt.is_partial:
            self._doubt_again(partition)
        known = partition.loss.suspicion
        if known is not None:
            partition.loss.add(known, from_offset, overlaps=cause is Cause.ACK)
            return
        last, epoch = partition.log.last_acked_offset, partition.log.leader_epoch
        if check is not None:
            last, epoch = check.last_acked_offset, check.leader_epoch
        partition.loss.open(Suspicion(cause, evidence, last, from_offset, epoch, cause is Cause.ACK))
        self._pin(partition)

    @staticmethod
    def _doubt_again(partition: Partition) -> None:
        """Put batches in doubt again, although an earlier answer reported them as absent. For this answer, the log was
        read only from an offset after the beginning of the suspected loss.
        """
        for batch in partition.queue.near:
            if batch.state is BatchState.SENT or (
                batch.state is BatchState.PREPARED and (batch.tries > 0 or batch.former_life)
            ):
                batch.may_arrive(possible=True)

    def _pin(self, partition: Partition) -> None:
        """Make the spool keep the batches that may have to be sent again."""
        self._index.pin(partition.number, (*partition.log.acked, *partition.queue.near))

    def stop(self, partition: Partition) -> None:
        """Send no new batches to a suspected partition until a survey has ended."""
        if partition.progress.flow is Flow.FLOWING:
            partition.progress.on(FlowEvent.SUSPECTED)
            self._packer.touch(partition)

    def acknowledged(self, partition: Partition, base_offset: int, count: int, leader_epoch: int) -> None:
        """Note an acknowledged batch, and check whether its offset or the leader's epoch suggests that earlier batches
        are lost.
        """
        self.check_offset_order(partition, base_offset)
        self.note_leader_epoch(partition, leader_epoch)
        partition.log.acknowledge(base_offset, count)
        if partition.loss.suspicion is not None:
            self.stop(partition)

    def check_offset_order(self, partition: Partition, base_offset: int) -> None:
        """Raise a suspicion if the offset of a new acknowledgement is known, but is not higher than the last
        acknowledged offset.
        """
        last = partition.log.last_acked_offset
        if base_offset > last or base_offset < 0:
            return
        evidence = f"acknowledged at offset {base_offset}, though offset {last} was acknowledged before"
        self.raise_suspicion(partition, Cause.ACK, evidence, from_offset=base_offset)

    def note_leader_epoch(self, partition: Partition, leader_epoch: int) -> None:
        """Note the leader epoch under which the partition's batches are in the log. It comes from an acknowledgement,
        from a search of the log, or from the spool. After a change of leader, the journal checks for a loss, because
        the new leader may lack records that the former leader acknowledged.
        """
        if 0 <= partition.log.leader_epoch != leader_epoch and partition.log.last_acked_offset >= 0:
            partition.loss.check(
                EpochCheck(partition.number, partition.log.leader_epoch, partition.log.last_acked_offset)
            )
            self._pin(partition)
            self._packer.touch(partition)
        partition.log.lead(leader_epoch)


class Losses:
    """Starts surveys, evaluates their results, and queues lost batches again."""

    def __init__(self, state: JournalState, packer: Packer, snapshots: Snapshots) -> None:
        self._partitions = state.destinations.partitions
        self._out = state.out
        self._index = state.index
        self._packer = packer
        self._snapshots = snapshots
        self._revivals = state.revivals
        self._quiescence = state.quiescence
        self._units = state.units
        self._home = state.home
        self._missing = state.missing
        self._heal = state.settings.heal
        self._heal_recreated = state.settings.heal_recreated

    def released(self, before_position: int) -> None:
        """Note that the spool deleted all batches before this position. They cannot be sent again."""
        if before_position == self._index.released:
            return
        self._index.release(before_position)
        for partition in self._partitions.values():
            partition.log.trim(self._index.released)

    def start_survey(self, partition: Partition, now: float) -> None:
        if any(batch.state is BatchState.ACKED for batch in partition.queue.near):
            return  # the survey begins when the acknowledged batch's mark is durable
        suspicion = partition.loss.suspicion
        evidence = "" if suspicion is None else suspicion.evidence
        if not self._units.vacate(
            partition.number, f"acknowledged records may be missing from the log: {evidence}"
        ):
            self._out.postpone(partition)
            return
        partition.progress.on(FlowEvent.SURVEYS)
        partition.doubt.survey(now)
        epoch, from_offset = (
            (-1, -1) if suspicion is None else (suspicion.leader_epoch, suspicion.from_offset)
        )
        acked = tuple(
            AckedBatch(batch.identity, batch.place, exact=batch.place == batch.base_offset)
            for batch in partition.log.acked
            if batch.identity is not None
        )
        ours = frozenset(self._home.producer_ids).union(
            self._units.ids.own_producer_ids, (batch.identity.producer_id for batch in acked)
        )
        self._out.ready.surveys.append(
            SurveyAsk(
                partition.number,
                acked,
                epoch,
                from_offset,
                partition.log.baseline_offset,
                ours,
                partition.log.released,
            )
        )

    def survey_failed(self, destination: int, reason: str, *, code: int = 0) -> None:
        """Note that the log could not be read; the journal tries again after a pause.

        Args:
            destination: Destination number.
            reason: Human-readable text.
            code: Kafka's error code if the cluster gave one, else 0.
        """
        partition = self._partitions[destination]
        if code in MISSING_CODES:
            self._missing.say(destination)
        if partition.progress.flow is Flow.SURVEYING:
            partition.progress.want_metadata()
            partition.progress.explain(reason)
            self._out.pause(partition, FlowEvent.NOT_ANSWERED, reason)

    def surveyed(
        self,
        destination: int,
        loss: Loss,
        end_offset: int,
        *,
        epoch_end_offset: int = -1,
        topic_id: bytes = m.NO_TOPIC_ID,
        same_topic: bool = True,
        leader_epoch: int = -1,
    ) -> None:
        """Handle the answer to a `SurveyAsk`.

        Args:
            destination: Destination number.
            loss: The result of the survey.
            end_offset: The log's end offset now.
            epoch_end_offset: The offset at which the leader epoch of the last acknowledgement ends in the log, -1 when
                unknown.
            topic_id: The topic's id now.
            same_topic: Topic ids, or a batch that is still in the log, prove that the topic was not recreated.
            leader_epoch: Epoch of the leader whose log was surveyed, -1 when unknown.
        """
        partition = self._partitions[destination]
        suspicion = partition.loss.suspicion
        if partition.progress.flow is not Flow.SURVEYING or suspicion is None:
            return
        log = partition.log
        cause = suspicion.cause
        if any(topic_id) and any(log.topic_id) and topic_id != log.topic_id:
            cause = Cause.TOPIC_ID
        recreated = cause is Cause.TOPIC_ID or not same_topic
        acked = list(log.acked)
        heal = self._heal and (self._heal_recreated or not recreated)
        if heal and self._waits_for_late(partition, [acked[index] for index in loss.indexes]):
            return
        self._end_survey(partition, topic_id, leader_epoch)
        forgotten_offset = log.forgotten_offset
        if forgotten_offset == ANYWHERE and 0 <= log.known_from <= epoch_end_offset:
            # The log has lost nothing before `epoch_end_offset`, and all acknowledged batches that the journal has
            # forgotten are before this offset.
            forgotten_offset = log.known_from
        remembered = _is_remembered(suspicion, loss, acked, forgotten_offset, recreated=recreated)
        moved = self._relocate(acked, loss)
        lost = sorted((acked[index] for index in loss.indexes), key=lambda batch: batch.rank)
        extent = _Extent.of(loss, suspicion.evidence, lost)
        if not remembered:
            extent = extent.up_to(suspicion, epoch_end_offset, end_offset, log.baseline_offset, lost)
        elif loss.oldest_known:
            extent = extent.from_epoch_end(
                epoch_end_offset, log.baseline_offset, forgotten_offset, recreated=recreated
            )
        hole = partition.loss.take_hole()
        if extent.records <= 0:
            if hole is not None:
                self._out.ready.notices.append(hole)
            log.confirm_until(end_offset)
            # Write the REVIVED mark even if every batch is still at the same offset. Without the REVIVED mark, the next
            # incarnation would suspect the same loss again. By then, the spool may have deleted the batch that
            # disproves the loss.
            self._out.ready.persist.marks.append(m.Revived(destination, end_offset, (), (), moved))
            self._out.ready.persist.marks.extend(self._snapshots.states(partition))
            return
        if recreated and cause is not Cause.TOPIC_ID:
            extent = extent.because(
                "; the topic may have been recreated: no topic ids are known, and the log has no acknowledged batch"
            )
        self._report(partition, extent, lost, moved, cause, end_offset, heal=heal, recreated=recreated)

    def _waits_for_late(self, partition: Partition, lost: Sequence[Batch]) -> bool:
        """Pause while a broker may still append a late request with a lost batch. The late request was sent before the
        request that the leader acknowledged. Returns whether the partition pauses.
        """
        late = max((self._quiet_at(partition, batch) for batch in lost), default=0.0)
        pause_s = late - partition.doubt.asked_at
        if pause_s <= 0:
            return False
        suspicion = partition.loss.suspicion
        reason = "" if suspicion is None else suspicion.evidence
        self._out.pause(partition, FlowEvent.LATE_REQUEST, reason, at_least_s=pause_s)
        return True

    def _end_survey(self, partition: Partition, topic_id: bytes, leader_epoch: int) -> None:
        partition.loss.close()
        if leader_epoch >= 0:
            partition.log.lead(leader_epoch)
        if any(topic_id):
            partition.log.name_topic(topic_id)
        self._missing.take_back(partition.number)
        self._index.unpin(partition.number)
        partition.progress.clear_reason()
        partition.progress.on(FlowEvent.SURVEYED)
        self._packer.touch(partition)

    def _relocate(self, acked: Sequence[Batch], loss: Loss) -> tuple[tuple[int, int], ...]:
        """Note the new offsets of batches that the log has at other offsets than before. Returns (position, base
        offset) of the moved batches that are in the spool.
        """
        moved = []
        for index, base_offset in loss.moved.items():
            acked[index].relocate(base_offset)
            if self._index.has(acked[index]):
                moved.append((acked[index].position, base_offset))
        return tuple(moved)

    def _report(
        self,
        partition: Partition,
        extent: _Extent,
        lost: Sequence[Batch],
        moved: tuple[tuple[int, int], ...],
        cause: Cause,
        end_offset: int,
        *,
        heal: bool,
        recreated: bool,
    ) -> None:
        """Report a loss, and queue the lost batches again, except those that are not in the spool or must not be sent
        again.
        """
        # The leader may have lost its state of our producer, too.
        partition.window.close()
        spooled = tuple(batch.position for batch in lost if self._index.has(batch))
        again, given_up = (spooled, ()) if heal else ((), spooled)
        revived = sum(batch.count for batch in lost if batch.position in again)
        partition.log.leave_out({batch.handle for batch in lost if batch.position not in spooled})
        gone = [_span(batch) for batch in lost if batch.position not in again] + extent.more
        self._out.ready.notices.append(
            AckedLoss(
                partition.number,
                extent.first,
                extent.last,
                extent.records,
                cause,
                extent.evidence,
                revived,
                _gone(extent.records - revived, gone),
                recreated,
            )
        )
        self._out.ready.persist.marks.append(m.Revived(partition.number, end_offset, again, given_up, moved))
        self.revive(partition, again, given_up, end_offset)
        self._out.ready.persist.marks.extend(self._snapshots.states(partition))
        if again:
            partition.ids.expire()

    def _quiet_at(self, partition: Partition, batch: Batch) -> float:
        """Until this time, a broker may still append another request with this acknowledged batch."""
        former = self._quiescence.dead_at if batch.former_life else 0.0
        return max(former, partition.doubt.dead_at if batch.unanswered else 0.0)

    def revive(
        self, partition: Partition, positions: Sequence[int], given_up: Sequence[int], end_offset: int
    ) -> None:
        """Put finished batches back into the queue, before all batches that were never finished."""
        back = partition.log.take_out(positions, given_up)
        for batch in reversed(back):
            batch.revive()
            partition.queue.appendleft(batch)
            self._index.place(batch)
        if back:
            self._revivals.add(partition.number, back)
        partition.log.end_at(end_offset)


_OTHERS: Final = (
    "; the batches of this range are no longer in the spool, so the number may include other producers' records and"
    " records that retention had deleted"
)


@dataclass(frozen=True, slots=True)
class _Extent:
    """The lost records of a partition.

    Attributes:
        first: Offset of the first lost record; -1: no lost record is known.
        last: Offset of the last lost record (inclusive).
        records: Number of the lost records.
        evidence: How the loss was found.
        more: (first offset, last offset) of the lost ranges whose batches the journal does not remember.
    """

    first: int
    last: int
    records: int
    evidence: str
    more: list[tuple[int, int]]

    @classmethod
    def of(cls, loss: Loss, evidence: str, lost: Sequence[Batch]) -> _Extent:
        """The extent of the loss that the survey found among the remembered batches."""
        first = loss.first_offset
        more = [(first, min(batch.place for batch in lost) - 1)] if lost else []
        return cls(first, loss.last_offset, loss.records, evidence, more)

    def because(self, reason: str) -> _Extent:
        """The same extent with more evidence."""
        return replace(self, evidence=self.evidence + reason)

    def up_to(
        self,
        suspicion: Suspicion,
        epoch_end_offset: int,
        end_offset: int,
        baseline_offset: int,
        lost: Sequence[Batch],
    ) -> _Extent:
        """The extent of the loss if the journal knows the last acknowledged offset, but has forgotten batches before
        it.
        """
        bounds = (suspicion.from_offset, epoch_end_offset, end_offset)
        begin = min((bound for bound in bounds if bound >= 0), default=end_offset)
        # The baseline is the log's end offset before this lane's first batch, so no batch of this lane is before it.
        begin = max(begin, baseline_offset)
        if begin > suspicion.last_acked_offset:
            return self
        first = begin if self.first < 0 else min(self.first, begin)
        last = max(self.last, suspicion.last_acked_offset)
        records = max(self.records, last - first + 1)
        return _Extent(first, last, records, self.evidence + _OTHERS, _between(first, last, lost))

    def from_epoch_end(
        self, epoch_end_offset: int, baseline_offset: int, forgotten_offset: int, *, recreated: bool
    ) -> _Extent:
        """The extent of the loss if the log lost all records from `epoch_end_offset` on, including those that the
        journal has forgotten.
        """
        until = min(self.first, forgotten_offset)
        begin = max(epoch_end_offset, baseline_offset)
        if recreated and until > max(0, baseline_offset):
            return self.because(
                f"; the journal does not remember which records before offset {until} were acknowledged"
            )
        if epoch_end_offset >= 0 and begin < until and not recreated:
            evidence = f"{self.evidence}; the log of that leader ends at {epoch_end_offset}{_OTHERS}"
            return _Extent(begin, self.last, self.records + until - begin, evidence, [(begin, until - 1)])
        return self


def _is_remembered(
    suspicion: Suspicion, loss: Loss, acked: Sequence[Batch], forgotten_offset: int, *, recreated: bool
) -> bool:
    """Whether the journal remembers the last acknowledged batch, or knows that the log has it."""
    last = suspicion.last_acked_offset
    is_end = any(batch.place + batch.count - 1 == last for batch in acked)
    # From `forgotten_offset` on, no batch is forgotten, so a remembered batch that ends at the last acknowledged offset
    # is the last acknowledged batch. Below `forgotten_offset`, a remembered batch proves nothing: the log may have lost
    # a forgotten batch, and then got the remembered batch at the same offset.
    if last >= forgotten_offset and is_end:
        return True
    if suspicion.leader_epoch < 0 or recreated or suspicion.overlaps:
        return False
    # If batches of this lane cover every suspected offset up to the last acknowledged one, the log has the last
    # acknowledged batch. Otherwise, a remembered batch that ends at the last acknowledged offset may be another batch.
    # The spool may have deleted suspected batches. If the log has a batch of this lane at each of their offsets, the
    # remembered batch is the last acknowledged one.
    return last < loss.ours_until or (loss.released_there and is_end)


def _gone(records: int, spans: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """(first offset, last offset, records) of the lost records that are not sent again."""
    found = [span for span in spans if span[0] <= span[1]]
    if records <= 0 or not found:
        return -1, -1, 0
    return min(at for at, _ in found), max(to for _, to in found), records


def _between(first: int, last: int, lost: Sequence[Batch]) -> list[tuple[int, int]]:
    """The lost ranges, as (first offset, last offset), before and after the lost batches that the journal remembers."""
    if not lost:
        return [(first, last)]
    begin, end = min(batch.place for batch in lost), max(batch.place + batch.count for batch in lost)
    return [(first, begin - 1), (end, last)]


def _span(batch: Batch) -> tuple[int, int]:
    return batch.place, batch.place + batch.count - 1
