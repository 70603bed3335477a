"""Acknowledged batches: remembered, looked for in the log where one may be gone, and sent again where it is.

Why one may be gone is decided in `doubts`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from kafkasafe._core import marks as m
from kafkasafe._core.codes import MISSING_CODES
from kafkasafe._core.journal.messages import SurveyAsk
from kafkasafe._core.journal.notices import AckedLoss, Healed
from kafkasafe._core.journal.partition import ANYWHERE, Flow, Healing, Partition
from kafkasafe._core.journal.states import Batch, State
from kafkasafe._core.journal.topics import Topics
from kafkasafe._core.loss import AckedBatch, Cause, Loss

__all__ = ["Losses"]

_REMEMBERED: Final = 64
"""Acknowledged batches of a partition that are remembered at least."""


class Losses(Topics):
    """Part of `Journal`: surveys of a log, what is lost, and its way back."""

    def released(self, before_position: int) -> None:
        """The spool deleted everything before this position: it cannot be sent again."""
        self._released = before_position
        for partition in self._partitions.values():
            self._trim(partition)

    def _remember(self, partition: Partition, batch: Batch) -> None:
        if batch.identity is None or batch.state is not State.COMMITTED:
            return
        batch.place = batch.base_offset
        if batch.place < 0:
            # Only known to be there: somewhere behind the one before it.
            before = partition.acked[-1] if partition.acked else None
            batch.place = max(partition.baseline_offset, 0) if before is None else before.place + before.count
        partition.acked.append(batch)
        self._trim(partition)

    def _trim(self, partition: Partition) -> None:
        """Some that are gone from the spool are remembered too: they tell where a loss begins."""
        acked = partition.acked
        while len(acked) > _REMEMBERED and acked[0].position < self._released:
            batch = acked.popleft()
            partition.forgotten_offset = max(partition.forgotten_offset, batch.place + batch.count)
            partition.known_from = max(partition.known_from, batch.place + batch.count)

    def _look(self, partition: Partition, now: float) -> None:
        if any(batch.state is State.ACKED for batch in partition.queue):
            return  # when its mark is durable
        suspicion = partition.suspicion
        evidence = "" if suspicion is None else suspicion.evidence
        if not self.units.vacate(partition.number, f"what was acknowledged before may be gone: {evidence}"):
            self._vacating[partition.number] = None
            return
        partition.flow = Flow.SURVEYING
        partition.asked_at = now
        epoch, from_offset = (
            (-1, -1) if suspicion is None else (suspicion.leader_epoch, suspicion.from_offset)
        )
        acked = tuple(
            AckedBatch(batch.identity, batch.place, exact=batch.place == batch.base_offset)
            for batch in partition.acked
            if batch.identity is not None
        )
        ours = self._home.producer_ids.union(batch.identity.producer_id for batch in acked)
        self._ready.surveys.append(
            SurveyAsk(
                partition.number,
                acked,
                epoch,
                from_offset,
                partition.baseline_offset,
                ours,
                partition.released,
            )
        )

    def survey_failed(self, destination: int, reason: str, *, code: int = 0) -> None:
        """The log could not be read; it is tried again after a pause.

        Args:
            destination: Destination number.
            reason: For people.
            code: Kafka's error code where the cluster gave one, else 0.
        """
        partition = self._partitions[destination]
        if code in MISSING_CODES:
            self.missing.say(destination)
        if partition.flow is Flow.SURVEYING:
            partition.refresh = True
            partition.reason = reason
            self._pause(partition, reason)

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
        """The answer to a SurveyAsk.

        Args:
            destination: Destination number.
            loss: What is gone.
            end_offset: Where the log ends now.
            epoch_end_offset: Where the leader epoch of the last acknowledgement ends in the log, -1 when unknown.
            topic_id: The topic's id now.
            same_topic: False where neither topic ids nor a batch that is still there prove that the topic was not
                created again.
            leader_epoch: Under which the log is as it was found, -1 when unknown.
        """
        partition = self._partitions[destination]
        if partition.flow is not Flow.SURVEYING or partition.suspicion is None:
            return
        suspicion = partition.suspicion
        cause = suspicion.cause
        if any(topic_id) and any(partition.topic_id) and topic_id != partition.topic_id:
            cause = Cause.TOPIC_ID
        recreated = cause is Cause.TOPIC_ID or not same_topic
        acked = list(partition.acked)
        heal = self._heal and (self._heal_recreated or not recreated)
        late = max((self._quiet_at(partition, acked[index]) for index in loss.indexes), default=0.0)
        if heal and partition.asked_at < late:
            # A request with it, older than the one that was acknowledged, may still be appended in its place.
            self._pause(partition, suspicion.evidence, at_least_s=late - partition.asked_at)
            return
        partition.suspicion = None
        self.missing.take_back(destination)
        partition.reason = ""
        partition.forget_checks()
        self._doubt_or_not(partition)
        if leader_epoch >= 0:
            partition.leader_epoch = leader_epoch
        partition.topic_id = topic_id if any(topic_id) else partition.topic_id
        partition.flow = Flow.SETTLING
        partition.rested = True
        self._touch(partition)
        # What ends there may be what has taken the place of one that is not remembered.
        forgotten_offset = partition.forgotten_offset
        if forgotten_offset == ANYWHERE and 0 <= partition.known_from <= epoch_end_offset:
            forgotten_offset = partition.known_from  # it has all that is not remembered
        ends = {batch.place + batch.count - 1 for batch in acked}
        remembered = suspicion.last_acked_offset >= forgotten_offset and suspicion.last_acked_offset in ends
        if suspicion.leader_epoch >= 0 and not (recreated or suspicion.overlaps):
            # All that is there is ours, or all of ours that is not remembered is where it was acknowledged.
            remembered = remembered or suspicion.last_acked_offset < loss.ours_until
            remembered = remembered or (loss.released_there and suspicion.last_acked_offset in ends)
        moved = []
        for index, base_offset in loss.moved.items():
            acked[index].base_offset = acked[index].place = base_offset
            if acked[index].position >= max(self._released, 0):
                moved.append((acked[index].position, base_offset))
        lost = sorted((acked[index] for index in loss.indexes), key=lambda batch: batch.rank)
        first, last, records = loss.first_offset, loss.last_offset, loss.records
        evidence = suspicion.evidence
        others = (
            "; what was there is not in the spool any more, so others' records, and what retention had removed, may be"
            " counted too"
        )
        # Lost offsets whose batches are not remembered.
        more = [(first, min(batch.place for batch in lost) - 1)] if lost else []
        if not remembered:
            # The last ones are not remembered; how far they went is.
            bounds = (suspicion.from_offset, epoch_end_offset, end_offset)
            begin = min((bound for bound in bounds if bound >= 0), default=end_offset)
            # Before that nothing of ours was ever there.
            begin = max(begin, partition.baseline_offset)
            if begin <= suspicion.last_acked_offset:
                first = begin if first < 0 else min(first, begin)
                last = max(last, suspicion.last_acked_offset)
                records = max(records, last - first + 1)
                more = _between(first, last, lost)
                evidence += others
        elif loss.oldest_known:
            # What was acknowledged behind the end of that leader epoch is gone, remembered or not.
            until = min(first, forgotten_offset)
            begin = max(epoch_end_offset, partition.baseline_offset)
            if recreated and until > max(0, partition.baseline_offset):
                evidence += f"; what was acknowledged before {until} is not remembered"
            elif epoch_end_offset >= 0 and begin < until and not recreated:
                records += until - begin
                first = begin
                more = [(begin, until - 1)]
                evidence += f"; the log of that leader ends at {epoch_end_offset}{others}"
        hole, partition.hole = partition.hole, None
        if records <= 0:
            if hole is not None:
                self._ready.notices.append(hole)
            self._go_on(partition, end_offset)
            # Also where nothing moved: or the next life, whose batches may be gone from the spool, finds the same cause
            # to suspect a loss in its marks, and nothing that speaks against it.
            self._ready.persist.marks.append(m.Revived(destination, end_offset, (), (), tuple(moved)))
            self._ready.persist.marks += self._state_marks(partition)
            return
        if recreated and cause is not Cause.TOPIC_ID:
            evidence += "; nothing of it is left, and without topic ids it may be a recreated topic"
        spooled = tuple(batch.position for batch in lost if batch.position >= max(self._released, 0))
        again, given_up = (spooled, ()) if heal else ((), spooled)
        revived = sum(batch.count for batch in lost if batch.position in again)
        forgotten = {batch.handle for batch in lost if batch.position not in spooled}
        partition.acked = deque(batch for batch in partition.acked if batch.handle not in forgotten)
        gone = records - revived, [_span(batch) for batch in lost if batch.position not in again] + more
        self._ready.notices.append(
            AckedLoss(destination, first, last, records, cause, evidence, revived, _gone(*gone), recreated)
        )
        self._ready.persist.marks.append(m.Revived(destination, end_offset, again, given_up, tuple(moved)))
        self._revive(partition, again, given_up, end_offset)
        self._ready.persist.marks += self._state_marks(partition)
        partition.renew = partition.renew or bool(again)

    def _quiet_at(self, partition: Partition, batch: Batch) -> float:
        """From then on no request with this acknowledged batch can be appended any more."""
        former = self._former_dead_at if batch.former_life else 0.0
        return max(former, partition.dead_at if batch.unanswered else 0.0)

    def _go_on(self, partition: Partition, end_offset: int) -> None:
        """Nothing is lost: what was acknowledged is where the log says."""
        known = max(
            (b.base_offset + b.count - 1 for b in partition.acked), default=partition.last_acked_offset
        )
        partition.last_acked_offset = min(known, end_offset - 1)

    def _revive(
        self, partition: Partition, positions: Sequence[int], given_up: Sequence[int], end_offset: int
    ) -> None:
        """Batches that were finished are unfinished again, in front of all that never were."""
        lost = {batch.position: batch for batch in partition.acked if batch.position >= 0}
        back = [lost[position] for position in positions if position in lost]
        gone = {*positions, *given_up}
        partition.acked = deque(batch for batch in partition.acked if batch.position not in gone)
        for batch in reversed(back):
            batch.move(State.SEALED)
            batch.identity = None
            batch.base_offset = -1
            batch.unanswered = False
            batch.parent = None
            batch.unit = None
            batch.revived = True
            partition.queue.appendleft(batch)
            self._spooled[batch.position] = batch
        if back:
            keep_from = min(batch.position for batch in back)
            healing = self._healing.setdefault(partition.number, Healing(keep_from))
            healing.keep_from = min(healing.keep_from, keep_from)
            healing.left += len(back)
        last = max((b.place + b.count - 1 for b in partition.acked), default=-1)
        partition.last_acked_offset = partition.clear_offset = min(last, end_offset - 1)
        if all(batch.identity != partition.last_acked_id for batch in partition.acked):
            partition.last_acked_id = None
        partition.baseline_offset = min(partition.baseline_offset, end_offset)

    def _parts_heal(self, parent: Batch, parts: Sequence[Batch]) -> None:
        """What was to be sent again is sent in parts."""
        healing = self._healing.get(parent.destination)
        if parent.revived and healing is not None:
            healing.left += len(parts)
            for part in parts:
                part.revived = True

    def _tell_healed(self, batch: Batch) -> None:
        healed = self._comes_back(batch)
        if healed is not None:
            self._ready.notices.append(healed)

    def _comes_back(self, batch: Batch) -> Healed | None:
        """A batch is finished. If it was sent again after a loss, and is the last of them: what is in the log again."""
        healing = self._healing.get(batch.destination)
        if not batch.revived or healing is None:
            return None
        healing.left -= 1
        if batch.state is State.COMMITTED:
            healing.records += batch.count
            if batch.base_offset >= 0:
                if healing.first_offset < 0:
                    healing.first_offset = batch.base_offset
                healing.last_offset = batch.base_offset + batch.count - 1
        if healing.left:
            return None
        del self._healing[batch.destination]
        if not healing.records:
            return None
        return Healed(batch.destination, healing.records, healing.first_offset, healing.last_offset)


def _gone(records: int, spans: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """(first offset, last offset, records) of what is lost and not sent again."""
    found = [span for span in spans if span[0] <= span[1]]
    if records <= 0 or not found:
        return -1, -1, 0
    return min(at for at, _ in found), max(to for _, to in found), records


def _between(first: int, last: int, lost: Sequence[Batch]) -> list[tuple[int, int]]:
    """(first offset, last offset) of what no lost batch that is remembered stands for, before and after them."""
    if not lost:
        return [(first, last)]
    begin, end = min(batch.place for batch in lost), max(batch.place + batch.count for batch in lost)
    return [(first, begin - 1), (end, last)]


def _span(batch: Batch) -> tuple[int, int]:
    return batch.place, batch.place + batch.count - 1
