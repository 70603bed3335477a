"""Journals with one safety rule taken out each: the simulation must find every one of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kafkasafe._core import journal as j
from kafkasafe._core import marks as m
from kafkasafe._core.identity import BatchId, Judgement
from kafkasafe._core.loss import Loss


class SendsBeforeDurable(j.Journal):
    """A batch may be sent while it is being written."""

    def _enqueue(self, batch: j.Batch) -> j.Batch:
        super()._enqueue(batch)
        if batch.identity is not None and batch.state is j.State.SEALED:
            batch.move(j.State.PREPARED)
        return batch


class SendsBeforeIdDurable(j.Journal):
    """A batch may be sent before the mark that gives it its id is durable."""

    def _prepare(self, partition: j.Partition) -> None:
        super()._prepare(partition)
        for batch in partition.queue:
            if batch.state is j.State.SEALED and batch.durable and batch.identity is not None:
                batch.move(j.State.PREPARED)


class ResendsBlindly(j.Journal):
    """A batch whose answer was lost is sent again without asking."""

    def lost(self, batch: j.Batch, *, sent: bool, **of: Any) -> None:
        super().lost(batch, sent=False, **of)


class TrustsFormerLife(j.Journal):
    """What an earlier life may have sent is sent again without asking, under a new id."""

    def recovered(self, *args: Any, **of: Any) -> None:
        for partition in self._partitions.values():
            for batch in partition.queue:
                batch.identity, batch.state = None, j.State.SEALED
        super().recovered(*args, **of)


class NeverSeesGhosts(j.Journal):
    """A request whose answer was lost is taken for dead at once."""

    def _forget_ghosts(self) -> None:
        for partition in self._partitions.values():
            partition.dead_at = 0.0

    def lost(self, *args: Any, **of: Any) -> None:
        super().lost(*args, **of)
        self._forget_ghosts()

    def recovered(self, *args: Any, **of: Any) -> None:
        super().recovered(*args, **of)
        self._forget_ghosts()


class BelievesTooEarly(j.Journal):
    """A refusal counts though another request with the batch may be on its way, or was appended."""

    def refused(self, batch: j.Batch, *args: Any, **of: Any) -> None:
        batch.unanswered = False
        partition = self._partitions[batch.destination]
        kept, partition.dead_at = partition.dead_at, 0.0
        super().refused(batch, *args, **of)
        partition.dead_at = kept


class AsksOnlyOnce(j.Journal):
    """A batch that was looked for while a request with it was on its way gets a new id without another look."""

    def _settled(self, partition: j.Partition, now: float, now_ms: int) -> None:
        for batch in partition.queue:
            batch.unanswered = False
        super()._settled(partition, now, now_ms)


class NeverProbes(j.Journal):
    """What the leader has is taken for committed, replicated or not."""

    def judged(self, destination: int, judgement: Judgement, *, stable: bool, **of: Any) -> None:
        super().judged(destination, judgement, stable=True, **of)


class ReusesProducerId(j.Journal):
    """A new life goes on with the old one's producer id."""

    def recover_marks(self, position: int, recovered: Any) -> None:
        super().recover_marks(position, recovered)
        for mark in recovered:
            if isinstance(mark, m.Granted):
                self._producer_id, self._producer_epoch = mark.producer_id, mark.producer_epoch


class KeepsEpoch(j.Journal):
    """New ids begin at sequence 0 of the same epoch."""

    def _reidentify(self, partition: j.Partition) -> None:
        epoch = partition.producer_epoch
        super()._reidentify(partition)
        partition.producer_epoch = epoch


class FirstNotAlone(j.Journal):
    """The window is filled before the leader is known to know us."""

    def _flow(self, partition: j.Partition, now: float, now_ms: int) -> None:
        for batch in partition.queue:
            if isinstance(batch.identity, BatchId):
                partition.confirmed_id = (batch.identity.producer_id, batch.identity.producer_epoch)
                partition.confirmed_until = math.inf
                break
        super()._flow(partition, now, now_ms)


class IgnoresAge(j.Journal):
    """Old timestamps are taken for new ones."""

    def _is_old(self, batch: j.Batch, now_ms: int) -> bool:
        return False

    def acked(self, batch: j.Batch, *args: Any, now: float, **of: Any) -> None:
        super().acked(batch, *args, now=now, **of)
        self._partitions[batch.destination].confirmed_until = now + self._state_age_s


class IgnoresAgeOfTheSent(j.Journal):
    """An old batch may be sent while a request may still be on its way, and others beside it."""

    def _flow(self, partition: j.Partition, now: float, now_ms: int) -> None:
        self._blind = True
        super()._flow(partition, now, now_ms)
        self._blind = False

    def _is_old(self, batch: j.Batch, now_ms: int) -> bool:
        return not getattr(self, "_blind", False) and super()._is_old(batch, now_ms)


class WideWindow(j.Journal):
    """Ten in flight."""

    def __init__(self, **of: Any) -> None:
        super().__init__(**{**of, "window": 10})


class ResolvesEarly(j.Journal):
    """A future resolves with the answer, not with the mark."""

    def _finish(self, partition: j.Partition, batch: j.Batch) -> None:
        self._passed(partition, batch)
        if batch.position >= 0:
            self._commits(partition, batch)
        self._leave(batch, j.State.COMMITTED, j.Fate.COMMITTED)


class ScansFromLastAck(j.Journal):
    """The scan begins behind the newest acknowledged batch, whatever is in doubt before it."""

    def _settled(self, partition: j.Partition, now: float, now_ms: int) -> None:
        partition.clear_offset = partition.last_acked_offset
        super()._settled(partition, now, now_ms)


class SnapshotsTooMuch(j.Journal):
    """A snapshot tells what is acknowledged, not what is marked."""

    def _state_mark(self, partition: j.Partition) -> m.State:
        kept, partition.clear_offset = partition.clear_offset, partition.last_acked_offset
        mark = super()._state_mark(partition)
        partition.clear_offset = kept
        return mark


class _Drops(j.Journal):
    """Marks of one kind never reach the disk."""

    kind: type[Any]

    def ready(self, now: float, now_ms: int) -> j.Ready:
        ready = super().ready(now, now_ms)
        ready.persist.marks = [mark for mark in ready.persist.marks if not isinstance(mark, self.kind)]
        return ready


class ForgetsReplaced(_Drops):
    kind = m.Replaced


class ForgetsRejected(_Drops):
    kind = m.Rejected


class ForgetsCommitted(_Drops):
    kind = m.Committed


class ForgetsIdentified(_Drops):
    kind = m.Identified


class ForgetsState(_Drops):
    """No baseline: a new life thinks that nothing was ever sent."""

    kind = m.State


class ForgetsVoid(j.Journal):
    """A mark of new ids does not take the old ones back."""

    def ready(self, now: float, now_ms: int) -> j.Ready:
        ready = super().ready(now, now_ms)
        ready.persist.marks = [
            mark
            for mark in ready.persist.marks
            if not (isinstance(mark, m.Identified) and mark.reason is m.IdentityReason.REIDENTIFIED)
        ]
        return ready


class TearsReplaced(j.Journal):
    """A division is not all or nothing."""

    def ready(self, now: float, now_ms: int) -> j.Ready:
        ready = super().ready(now, now_ms)
        ready.persist.atomic = False
        return ready


class LosesPlace(j.Journal):
    """The position of a divided batch is released before its parts are done."""

    def replaced(self, batch: j.Batch, children: Any) -> list[j.Batch]:
        made = super().replaced(batch, children)
        for child in made:
            child.parent = None
        self._spooled.pop(batch.position, None)
        return made


class RejectsWithoutCopy(j.Journal):
    """A batch is rejected though its copy could not be written."""

    def set_aside(self, aside: j.Aside, kept: int, reason: str = "") -> None:
        super().set_aside(aside, len(aside.batches), reason)


class RejectsFromMemory(j.Journal):
    """A batch is rejected that has no place in the spool which its copy could name."""

    def _reject_head(self, partition: j.Partition, head: j.Batch) -> None:
        self._put_aside(partition, (head,))


class RejectsMissingTopic(j.Journal):
    """A topic that is unknown for a moment is taken for deleted."""

    def __init__(self, **of: Any) -> None:
        super().__init__(**{**of, "blocked_timeout_s": 0.0})


class SumsMissingTime(j.Journal):
    """The time without the topic goes on though the cluster gave another answer."""

    def _relent(self, partition: j.Partition, *, accepted: bool = True) -> None:
        pass

    @staticmethod
    def _unheard(partition: j.Partition) -> None:
        pass


class ContinuesSequence(j.Journal):
    """After a rejection the next batch goes on behind the gap."""

    def _reidentify(self, partition: j.Partition) -> None:
        pass


class SkipsSettling(j.Journal):
    """After a failure the others go on being sent."""

    def _settle(self, partition: j.Partition, reason: str) -> None:
        super()._settle(partition, reason)
        if not partition.doubtful:
            partition.flow = j.Flow.FLOWING


# -- lost acknowledged batches -----------------------------------------------------------------------------------------


class RevivesWithoutMark(_Drops):
    """A new life takes what was put back for delivered."""

    kind = m.Revived


class RevivesBehind(j.Journal):
    """Lost batches are put back behind what waits."""

    def _revive(self, partition: j.Partition, positions: Any, given_up: Any, end_offset: int) -> None:
        waiting = len(partition.queue)
        super()._revive(partition, positions, given_up, end_offset)
        partition.queue._head.rotate(waiting - len(partition.queue))


class RevivesAsCommitted(j.Journal):
    """Lost batches are put back as their acknowledgements came, not as their records were accepted."""

    def _revive(self, partition: j.Partition, positions: Any, given_up: Any, end_offset: int) -> None:
        super()._revive(partition, positions[::-1], given_up, end_offset)


class ForgetsSurvey(j.Journal):
    """The log is read, and nothing follows from it."""

    def surveyed(self, destination: int, loss: Loss, end_offset: int, **of: Any) -> None:
        super().surveyed(destination, Loss((), -1, -1, 0, loss.moved, oldest_known=False), end_offset, **of)


class IgnoresTopicId(j.Journal):
    """A topic that was created again is taken for one that lost its records."""

    def surveyed(self, destination: int, loss: Loss, end_offset: int, **of: Any) -> None:
        super().surveyed(destination, loss, end_offset, **{**of, "topic_id": m.NO_TOPIC_ID})


class RevivesReleased(j.Journal):
    """What the spool deleted is put back."""

    def released(self, before_position: int) -> None:
        super().released(0)


class ForgetsSuspicion(j.Journal):
    """A new life does not look for what its forerunner missed."""

    def recovered(self, *args: Any, **of: Any) -> None:
        for partition in self._partitions.values():
            partition.suspicion = None
            partition.checks.clear()
        super().recovered(*args, **of)


class BlindToAcks(j.Journal):
    """An acknowledgement before the one before it is nothing special, nor is the first one of another leader."""

    def _leads(self, partition: j.Partition, leader_epoch: int) -> None:
        partition.leader_epoch = leader_epoch

    def _look_back(self, partition: j.Partition, base_offset: int) -> None:
        pass


class HealsAtOnce(j.Journal):
    """A lost batch is sent again while an older request with it may still be appended."""

    def _quiet_at(self, partition: j.Partition, batch: j.Batch) -> float:
        return 0.0


class ContinuesBehindRevived(j.Journal):
    """What was put back gets ids behind those of what waits behind it."""

    def _prepare(self, partition: j.Partition) -> None:
        renew, partition.renew = partition.renew, False
        super()._prepare(partition)
        partition.renew = renew


class ForgetsGivenUp(j.Journal):
    """A new life tells, or puts back, what was given up."""

    def ready(self, now: float, now_ms: int) -> j.Ready:
        ready = super().ready(now, now_ms)
        for index, mark in enumerate(ready.persist.marks):
            if isinstance(mark, m.Revived):
                ready.persist.marks[index] = m.Revived(
                    mark.destination, mark.end_offset, mark.positions, (), mark.moved
                )
        return ready


class RemembersTheForgotten(j.Journal):
    """A new incarnation remembers what an earlier one forgot."""

    def recover_marks(self, position: int, recovered: Any) -> None:
        known = [mark for mark in recovered if not (isinstance(mark, m.State) and mark.knows_nothing)]
        super().recover_marks(position, known)
        self._end_position = max(self._end_position, position + len(recovered) + 1)


class BelievesTheDirectory(j.Journal):
    """A lane is of the cluster that its directory names."""

    def recover_marks(self, position: int, recovered: Any) -> None:
        super().recover_marks(position, recovered)
        self._home = type(self._home)()


class TrustsOffsets(j.Journal):
    """What is known by its offset alone is taken to be there."""

    def surveyed(self, destination: int, loss: Loss, end_offset: int, **of: Any) -> None:
        super().surveyed(destination, replace(loss, released_there=True), end_offset, **of)


class TrustsItsOwn(j.Journal):
    """Two batches that were acknowledged at one place are taken for one."""

    def _suspect(self, partition: j.Partition, *args: Any, **of: Any) -> None:
        super()._suspect(partition, *args, **of)
        if partition.suspicion is not None:
            partition.suspicion = replace(partition.suspicion, overlaps=False)


class RemembersOtherTopics(j.Journal):
    """What was acknowledged in a topic that is gone is remembered beside what is in the one that has its name."""

    def _forget_acknowledged(self, partition: j.Partition) -> None:
        kept = list(partition.acked)
        super()._forget_acknowledged(partition)
        partition.acked.extend(kept)


MUTANTS: list[type[j.Journal]] = [
    SendsBeforeDurable,
    SendsBeforeIdDurable,
    ResendsBlindly,
    TrustsFormerLife,
    NeverSeesGhosts,
    BelievesTooEarly,
    AsksOnlyOnce,
    NeverProbes,
    ReusesProducerId,
    KeepsEpoch,
    FirstNotAlone,
    IgnoresAge,
    IgnoresAgeOfTheSent,
    WideWindow,
    ResolvesEarly,
    ScansFromLastAck,
    SnapshotsTooMuch,
    ForgetsReplaced,
    ForgetsRejected,
    ForgetsCommitted,
    ForgetsIdentified,
    ForgetsState,
    ForgetsVoid,
    TearsReplaced,
    LosesPlace,
    RejectsWithoutCopy,
    RejectsFromMemory,
    RejectsMissingTopic,
    SumsMissingTime,
    ContinuesSequence,
    SkipsSettling,
    RevivesWithoutMark,
    RevivesBehind,
    RevivesAsCommitted,
    ForgetsSurvey,
    IgnoresTopicId,
    RevivesReleased,
    ForgetsSuspicion,
    BlindToAcks,
    HealsAtOnce,
    ContinuesBehindRevived,
    ForgetsGivenUp,
    RemembersTheForgotten,
    BelievesTheDirectory,
    TrustsOffsets,
    TrustsItsOwn,
    RemembersOtherTopics,
]
