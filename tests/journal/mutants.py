"""The journal with one safety rule taken out each: the tests must find every one of them."""

from __future__ import annotations

from mutation import Change, both, nothing, source

from kafkasafe.history import loss
from kafkasafe.journal import Journal, losses, snapshots
from kafkasafe.journal.acked import AckedLog, LossCase
from kafkasafe.journal.answers import Answers
from kafkasafe.journal.dividing import Divider
from kafkasafe.journal.endings import Durability
from kafkasafe.journal.home import IdSequence
from kafkasafe.journal.losses import Losses, Suspicions
from kafkasafe.journal.machine import Machine
from kafkasafe.journal.outbox import Persist
from kafkasafe.journal.recovery import Recovery
from kafkasafe.journal.refusal import RefusalTimer
from kafkasafe.journal.refusals import Refusals
from kafkasafe.journal.rejecting import Rejecter
from kafkasafe.journal.sealing import Identities, Sealer
from kafkasafe.journal.spool_index import SpoolIndex
from kafkasafe.journal.state import JournalState
from kafkasafe.journal.topics import Topics
from kafkasafe.journal.verdicts import Verdicts
from kafkasafe.journal.window import BrokerClock, SendWindow
from kafkasafe.units.recovery import UnitReplay


def drops(kind: str) -> Change:
    """Marks of one kind never reach the disk."""
    return of_ready(f"ready.persist.marks = [mark for mark in ready.persist.marks if not {kind}]")


def of_ready(words: str) -> Change:
    """Something is done to all that `ready` gives."""
    marks = "from kafkasafe import marks as m"
    return source(Journal, "ready", "    return ready", f"    {marks}\n    {words}\n    return ready")


_FIND = "partition = self._partitions[destination]"
_FIND_ITS = "partition = self._partitions[batch.destination]"


MUTANTS: dict[str, Change] = {
    # A batch may be sent while it is being written.
    "SendsBeforeDurable": source(
        Sealer, "enqueue", "elif batch.identity is not None:", "if batch.identity is not None and batch.state is BatchState.SEALED:"
    ),
    # A batch may be sent before the mark that gives it its id is durable.
    "SendsBeforeIdDurable": source(
        Identities, "prepare", "moved.append((batch, identity))", "moved.append((batch, identity)); batch.on(BatchEvent.ID_IN_MEMORY)"
    ),
    # A batch gets an id while a failed write may have left a copy of it without one.
    "NamesWhatIsWritten": source(Identities, "prepare", "or batch.writing", "or False"),
    # What the disk does not take waits for it, though the cluster has it.
    "WaitsForABrokenDisk": source(Durability, "finish", " and (not self._writes_fail or batch in self._skipped)", ""),
    # What is delivered is written when the disk works again, and the next process finds it in doubt.
    "WritesWhatIsDelivered": source(
        Persist, "leave_out_void", "self.batches = [batch for batch in self.batches if batch.state is not BatchState.COMMITTED]", "pass"
    ),
    # What the user took as delivered is finished, though a failed write may have left a copy.
    "SkipsWhatIsWritten": source(Durability, "skip", "if batch.writing:", "if False:"),
    # A batch whose answer was lost is sent again without asking.
    "ResendsBlindly": source(Answers, "lost", _FIND_ITS, f"sent = False; {_FIND_ITS}"),
    # What an earlier incarnation may have sent is sent again without asking, under a new id.
    "TrustsFormerLife": source(
        Recovery, "recovered", "self._units.recovered()",
        "self._units.recovered()\n"
        "    for batch in [batch for each in self._all.values() for batch in each.queue.near]:\n"
        "        batch.identity, batch.state = None, BatchState.SEALED",
    ),
    # A request whose answer was lost is taken for dead at once.
    "NeverSeesGhosts": both(
        source(Answers, "lost", "may_arrive_until(now + self._request_timeout_s)", "may_arrive_until(0.0)"),
        source(Recovery, "recovered", "may_arrive_until(now + pause_s)", "may_arrive_until(0.0)"),
    ),
    # A refusal counts though another request with the batch may be on its way, or was appended.
    "BelievesTooEarly": source(
        Answers, "refused", _FIND_ITS, f"batch.unanswered = False; {_FIND_ITS}", "now >= partition.doubt.dead_at", "True"
    ),
    # A batch that was looked for while a request with it was on its way gets a new id without another look.
    "AsksOnlyOnce": source(
        Machine, "_settle", "    for rule in",
        "    for batch in partition.queue.near:\n        batch.unanswered = False\n    for rule in",
    ),
    # What the leader has is taken for committed, replicated or not.
    "NeverProbes": source(Verdicts, "judged", _FIND, f"stable = True; {_FIND}"),
    # A new incarnation goes on with the old one's producer id.
    "ReusesProducerId": source(
        Recovery, "recover_marks", "self._home.read_grant(producer_id)",
        "self._home.grant(producer_id, mark.producer_epoch)",
    ),
    # New ids begin at sequence 0 of the same epoch.
    "KeepsEpoch": source(IdSequence, "renew", "self.epoch += 1", "pass"),
    # The window is filled before the leader is known to know us.
    "FirstNotAlone": source(SendWindow, "admit", " or not self.is_open(identity, now)", ""),
    # Old timestamps are taken for new ones.
    "IgnoresAge": both(
        nothing(BrokerClock, "is_old", result=False),
        source(Answers, "acked", "now + self._clock.state_age_s - self._clock.age_s(batch, now_ms)", "now + self._clock.state_age_s"),
    ),
    # An old batch may be sent while a request may still be on its way, and others beside it.
    "IgnoresAgeOfTheSent": source(Machine, "_flow", "self._clock.is_old(batch, now_ms)", "False"),
    # Ten in flight.
    "WideWindow": source(
        JournalState, "__init__", "self.settings = settings", "from dataclasses import replace; self.settings = replace(settings, window=10)"
    ),
    # A future resolves with the answer, not with the mark.
    "ResolvesEarly": source(
        Durability, "finish", "self._out.ready.persist.after.append(BatchEnded(batch, Fate.COMMITTED))",
        "self._leave(batch)",
    ),
    # The scan begins behind the newest acknowledged batch, whatever is in doubt before it.
    "ScansFromLastAck": source(
        Machine, "_ask_about_doubt", "start = partition.doubt",
        "partition.log.clear_offset = partition.log.last_acked_offset; start = partition.doubt",
    ),
    # A snapshot tells what is acknowledged, not what is marked.
    "SnapshotsTooMuch": source(snapshots, "state_mark", "partition.log.clear_offset,", "partition.log.last_acked_offset,"),
    "ForgetsReplaced": drops("isinstance(mark, m.Replaced)"),
    "ForgetsRejected": drops("isinstance(mark, m.Rejected)"),
    "ForgetsCommitted": drops("isinstance(mark, m.Committed)"),
    "ForgetsIdentified": drops("isinstance(mark, m.Identified)"),
    # No baseline: a new incarnation thinks that nothing was ever sent.
    "ForgetsState": drops("isinstance(mark, m.State)"),
    # A mark of new ids does not take the old ones back.
    "ForgetsVoid": drops("(isinstance(mark, m.Identified) and mark.reason is m.IdentityReason.REIDENTIFIED)"),
    # A division is not all or nothing.
    "TearsReplaced": of_ready("ready.persist.atomic = False"),
    # The position of a divided batch is released before its parts are done.
    "LosesPlace": source(
        Divider, "replaced", "    return made",
        "    for child in made:\n        child.parent = None\n    self._packer._index._batches.pop(batch.position, None)\n    return made",
    ),
    # A batch is rejected though its copy could not be written.
    "RejectsWithoutCopy": source(
        Rejecter, "set_aside", "partition = self._all[aside.destination]",
        "kept, partition = len(aside.batches), self._all[aside.destination]",
    ),
    # A batch is rejected that has no place in the spool which its copy could name.
    "RejectsFromMemory": source(Rejecter, "reject_head", "if head.durable:", "if True:"),
    # A topic that is unknown for a moment is taken for deleted.
    "RejectsMissingTopic": source(Refusals, "__init__", "self._refused_timeout_s = state.settings.blocked_timeout_s", "self._refused_timeout_s = 0.0"),
    # The time without the topic goes on though the cluster gave another answer.
    "SumsMissingTime": both(nothing(Refusals, "clear_refusal"), nothing(RefusalTimer, "no_answer")),
    "CountsUnansweredQuestions": nothing(Refusals, "note_answer"),
    # After a rejection the next batch goes on behind the gap.
    "ContinuesSequence": nothing(Identities, "reidentify"),
    # After a failure the others go on being sent.
    "SkipsSettling": source(
        Answers, "_settle", "    self._packer.touch(partition)",
        "    self._packer.touch(partition)\n    if not partition.queue.has_doubt:\n        partition.progress.flow = Flow.FLOWING",
    ),
    # -- lost acknowledged batches
    # A new incarnation takes what was put back for delivered.
    "RevivesWithoutMark": drops("isinstance(mark, m.Revived)"),
    # Lost batches are put back behind what waits.
    "RevivesBehind": source(
        Losses, "revive", "partition.queue.appendleft(batch)", "partition.queue.append(batch)", "reversed(back)", "back"
    ),
    # Lost batches are put back as their acknowledgements came, not as their records were accepted.
    "RevivesAsCommitted": source(AckedLog, "take_out", "for position in positions if", "for position in positions[::-1] if"),
    # The log is read, and nothing follows from it.
    "ForgetsSurvey": source(
        Losses, "surveyed", _FIND, f"loss = Loss((), -1, -1, 0, loss.moved, oldest_known=False); {_FIND}"
    ),
    # A topic that was created again is taken for one that lost its records.
    "IgnoresTopicId": source(Losses, "surveyed", _FIND, f"topic_id = m.NO_TOPIC_ID; {_FIND}"),
    # What the spool deleted is put back.
    "RevivesReleased": source(SpoolIndex, "release", "self.released = before_position", "self.released = 0"),
    # A new incarnation does not look for what its forerunner missed.
    "ForgetsSuspicion": source(
        Recovery, "recovered", "self._units.recovered()",
        "self._units.recovered()\n"
        "    for each in self._destinations.partitions.values():\n"
        "        each.loss.close()",
    ),
    # An acknowledgement before the one before it is nothing special, nor is the first one of another leader.
    "BlindToAcks": both(
        source(Suspicions, "note_leader_epoch", "if 0 <= partition.log.leader_epoch != leader_epoch and", "if False and"),
        nothing(Suspicions, "check_offset_order"),
    ),
    # A new incarnation asks only about the newest change of leader.
    "AsksAboutTheNewestLeader": source(LossCase, "check", "self.due.append(check)", "self.due = [check]"),
    # A batch that was searched for only after the beginning of a loss counts as absent.
    "BelievesTheFirstSearch": nothing(Suspicions, "_doubt_again"),
    # A lost batch is sent again while an older request with it may still be appended.
    "HealsAtOnce": nothing(Losses, "_quiet_at", result=0.0),
    # What was put back gets ids behind those of what waits behind it.
    "ContinuesBehindRevived": source(Identities, "prepare", " or partition.ids.stale:", ":"),
    # A new incarnation tells, or puts back, what was given up.
    "ForgetsGivenUp": of_ready(
        "ready.persist.marks = [m.Revived(each.destination, each.end_offset, each.positions, (), each.moved)"
        " if isinstance(each, m.Revived) else each for each in ready.persist.marks]"
    ),
    # A new incarnation remembers what an earlier one forgot.
    "RemembersTheForgotten": source(
        Recovery, "recover_marks", "self._topics.forget_acknowledged(self._destinations.declared(mark.destination))", "pass"
    ),
    # A lane is of the cluster that its directory names.
    "BelievesTheDirectory": source(
        Recovery, "recover_marks", "self._home.move(mark, forgets=forgets)", "pass"
    ),
    # What is known by its offset alone is taken to be there.
    "TrustsOffsets": source(losses, "_is_remembered", "(loss.released_there and", "(True and"),
    # Transactions of earlier incarnations, of another cluster, and aborted ones.
    "ForgetsItsTransactions": source(UnitReplay, "recover_begun", "self._ids.note(mark.transactional_id, mark.producer_id)", "pass"),
    "RemembersOtherTransactions": source(Recovery, "recover_marks", "self._units.ids.forget_producer_ids()", "pass"),
    "TrustsTheAborted": source(
        loss._Transactions, "see", "self._aborted += self._open.pop(producer_id, ())", "self._open.pop(producer_id, ())"
    ),
    # Two batches that were acknowledged at one place are taken for one.
    "TrustsItsOwn": both(
        source(LossCase, "add", "overlaps=known.overlaps or overlaps", "overlaps=False"),
        source(Suspicions, "raise_suspicion", "from_offset, epoch, cause is Cause.ACK)", "from_offset, epoch, False)"),
    ),
    # A gap that marks or torn batches explain is explained no more when their segment is gone.
    "ForgetsGaps": source(snapshots, "_gap_marks", "for sequence in (begin, end)", "for sequence in ()"),
    # An expected gap hides whatever else is missing in it.
    "ExpectsEveryGap": source(LossCase, "expects", "missing <= sequence_distance(begin, identity.base_sequence)", "True"),
    # What was acknowledged in a topic that is gone is remembered beside what is in the one that has its name.
    "RemembersOtherTopics": source(
        Topics, "forget_acknowledged", "partition.forget_acknowledged()",
        "kept = list(partition.log.acked); partition.forget_acknowledged(); partition.log.acked.extend(kept)",
    ),
}  # fmt: skip
