"""The engine with one rule taken out each: histories must find every one of them.

`tests/mutants.txt` names them all, with those of the journal and of the spool; `test_mutants.py` compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mutants as journal_mutants
from mutation import HistoryMutant as Mutant
from mutation import nothing, source

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe.cluster.leaders import Leaders
from kafkasafe.delivery.engine import disk, questions
from kafkasafe.delivery.engine import engine as engines
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.endings import Endings
from kafkasafe.delivery.engine.intake import Intake
from kafkasafe.delivery.engine.lane import Lane, WriteBacklog
from kafkasafe.delivery.engine.lane_keeper import LaneKeeper
from kafkasafe.delivery.engine.losses import LossWatch
from kafkasafe.delivery.engine.messages import ChoreDue, RetryDue
from kafkasafe.delivery.engine.order import LaneOrder
from kafkasafe.delivery.engine.room import RoomKeeper
from kafkasafe.delivery.engine.send_queue import SendQueue
from kafkasafe.delivery.engine.sender import Sender
from kafkasafe.history.identity import ProducerView
from kafkasafe.journal.dividing import Divider
from kafkasafe.journal.forward import CopyForward
from kafkasafe.journal.precedence import Precedence
from kafkasafe.journal.recovery import Recovery
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.rejected import RejectedStore
from kafkasafe.spool.spool import Spool

__all__ = ["ENGINE", "EXACT", "HISTORIES", "JOURNAL", "SEEDS", "Mutant"]

SEEDS = 40
"""So many seeds, at most, until a mutant is found."""


# -- those that are more than a line -----------------------------------------------------------------------------------


def _resolves_before_the_mark(patch: Any) -> None:
    produced = Sender.produced

    def ended_at_once(self: Sender, sent: Any, reply: Any) -> None:
        produced(self, sent, reply)
        parcel = sent.lane.parcels.get(sent.batch.handle)
        if not getattr(reply, "error_code", 1) and parcel is not None:
            parcel.base_offset = reply.base_offset
            self._ledger.finish(parcel)

    patch.setattr(Sender, "produced", ended_at_once)


def _believes_without_a_proof(patch: Any) -> None:
    question = questions.OutcomeInquiry
    source(question, "_is_proven", "by_state.present <= 1 or", "True or")(patch)
    # Nor is the log asked.
    source(question, "_locate", "return False", "self._probe(judgement)\n        return True")(patch)


def _reverses_groups(patch: Any) -> None:
    write = Spool.write_group

    def reversed_group(self: Spool, marks: Any, batches: Any, **options: Any) -> list[int]:
        if options.get("atomic") or any(isinstance(mark, m.Given) for mark in marks):
            return write(self, marks, batches, **options)
        return write(self, marks, list(batches)[::-1], **options)[::-1]

    patch.setattr(Spool, "write_group", reversed_group)


def _releases_before_the_copy(patch: Any) -> None:
    copy = RoomKeeper._copy

    def too_early(self: RoomKeeper, lane: Lane, batches: list[j.Batch]) -> bool:
        lane.spool.release(lane.copying.before)
        return copy(self, lane, batches)

    patch.setattr(RoomKeeper, "_copy", too_early)


def _moves_without_mark(patch: Any) -> None:
    marks = j.Journal.move_marks

    def without(self: j.Journal, batches: Any) -> list[m.Mark]:
        return [mark for mark in marks(self, batches) if not isinstance(mark, m.Moved)]

    patch.setattr(j.Journal, "move_marks", without)


def _drops_marks(kind: type[Any]) -> Callable[[Any], None]:
    def change(patch: Any) -> None:
        write = DiskWriter._write_group

        def without(self: DiskWriter, lane: Lane, persist: j.Persist) -> None:
            persist.marks = [mark for mark in persist.marks if not isinstance(mark, kind)]
            write(self, lane, persist)

        patch.setattr(DiskWriter, "_write_group", without)

    return change


def _durable_before_the_write(patch: Any) -> None:
    write = DiskWriter._write_group

    def promised_too_early(self: DiskWriter, lane: Lane, persist: j.Persist) -> None:
        self._ledger.made_durable([lane.parcels[batch.handle] for batch in persist.batches])
        write(self, lane, persist)

    patch.setattr(DiskWriter, "_write_group", promised_too_early)


def _decisions_overtake(patch: Any) -> None:
    """Others are made before the last one is on disk, and written before it."""
    patch.setattr(Lane, "held", property(lambda _: False))
    source(
        WriteBacklog,
        "take",
        "next((i for i, group in enumerate(self._groups) if _decides(group)), 0)",
        "max((i for i, group in enumerate(self._groups) if _decides(group)), default=0)",
    )(patch)


def _batches_before_decisions(patch: Any) -> None:
    apart = disk._apart
    patch.setattr(disk, "_apart", lambda *args, **options: list(reversed(apart(*args, **options))))


def _timers_without(unwanted: Callable[[Any], bool]) -> Callable[[Any], None]:
    def change(patch: Any) -> None:
        timer = EngineContext.timer

        def some(self: EngineContext, delay_s: float, message: Any) -> None:
            if not unwanted(message):
                timer(self, delay_s, message)

        patch.setattr(EngineContext, "timer", some)

    return change


def _keeps_no_copy(patch: Any) -> None:
    def kept(self: RejectedStore, *_: Any, **__: Any) -> Path:
        return self.lane / "rejected" / "nothing"

    patch.setattr(RejectedStore, "keep", kept)


def _no_pauses(patch: Any) -> None:
    patch.setattr(Sender, "_calm_in_s", lambda *_: 0.0)
    timer = EngineContext.timer

    def at_once(self: EngineContext, delay_s: float, message: Any) -> None:
        timer(self, min(delay_s, 0.005) if isinstance(message, RetryDue) else delay_s, message)

    patch.setattr(EngineContext, "timer", at_once)


ENGINE: dict[str, Mutant] = {
    # What is promised of the disk.
    "send before sync": Mutant(source(DiskWriter, "_write_group", "lane.spool.sync()", "pass")),
    "durable before the write": Mutant(_durable_before_the_write),
    "a failed write is taken for done": Mutant(
        source(WriteBacklog, "restore", "self._groups.insert(index, group)", "pass")
    ),
    "group order reversed": Mutant(_reverses_groups, "calm network"),
    "decisions overtake": Mutant(_decisions_overtake, "disk"),
    "batches before decisions": Mutant(_batches_before_decisions),
    "ids not in the spool": Mutant(lambda patch: patch.setattr(disk, "_stamp", lambda *_: None)),
    "sent without ids": Mutant(lambda patch: patch.setattr(disk, "_differs", lambda *_: False)),
    "commit mark dropped": Mutant(_drops_marks(m.Committed)),
    "new ids' mark dropped": Mutant(_drops_marks(m.Identified)),
    "released before committed": Mutant(
        source(DiskWriter, "release", "lane.journal.views.release_position", "lane.spool.next_position")
    ),
    "bytes stay in memory": Mutant(
        source(DiskWriter, "_promise", "self._is_over() or not self.keeps", "not self.keeps")
    ),
    # What is believed of the cluster.
    "resolve before the mark": Mutant(_resolves_before_the_mark),
    "a lost answer is taken for not sent": Mutant(
        source(Sender, "_produced", "sent=reply.sent", "sent=False")
    ),
    "a failure is taken for an acknowledgement": Mutant(
        source(
            Sender, "_produced", "elif reply.error_code:", "elif reply.error_code and reply.error_code != 7:"
        )
    ),
    "no fence": Mutant(
        source(Sender, "_let_out", "self._fences.get((topic, partition), 0)", "None"), "pipeline"
    ),
    "all are known": Mutant(
        lambda patch: patch.setattr(questions, "_view", lambda *_: ProducerView(0, 2**30, 2**50))
    ),
    "ten in flight": Mutant(source(LaneKeeper, "_read_locked", "window=config.window", "window=10")),
    "new id before dead_at": Mutant(
        source(
            LaneKeeper, "_read_locked", "request_timeout_s=config.request_timeout_s", "request_timeout_s=0.0"
        )
    ),
    "an earlier life sent nothing": Mutant(
        source(
            LaneKeeper,
            "_opened",
            "lane.journal.recovery.recovered(self._context.now(), self._context.moment())",
            "pass",
        )
    ),
    # What is refused.
    "rejected before durable in rejected/": Mutant(_keeps_no_copy, "refused"),
    "divided in the wrong order": Mutant(
        source(
            Intake, "_divide", "for child, indexes in children\n", "for child, indexes in children[::-1]\n"
        ),
        "refused",
    ),
    "refused for good at once": Mutant(
        source(
            LaneKeeper, "_read_locked", "blocked_timeout_s=config.blocked_timeout_s", "blocked_timeout_s=0.0"
        ),
        "denied",
    ),
    # Whom it belongs to.
    "wrong-cluster check skipped": Mutant(
        source(engines.Engine, "listen", "context.cluster.pin_cluster(", "(lambda **_: None)("), "strangers"
    ),
    "adoption without a lock": Mutant(
        source(
            SpoolDirectory,
            "_take",
            "if not self._files.lock(handle):",
            "if not self._files.lock(handle) and False:",
        ),
        "lanes",
    ),
    "a younger life does not hold back": Mutant(
        lambda patch: patch.setattr(Precedence, "is_held", lambda *_: False), "lanes"
    ),
    "adoption without a gate": Mutant(
        source(
            LaneOrder,
            "_look_at",
            "if not journal.views.afters:",
            "if not journal.views.afters or not lane.own:",
        ),
        "adopted",
    ),
    "a life does not look for what others owe": Mutant(
        source(LaneOrder, "begin", "if owed.addresses(before):", "if False:"), "lanes"
    ),
    "what a life waits for is forgotten": Mutant(
        source(Recovery, "recover_marks", "self._precedence.read(mark)", "pass"), "adopted"
    ),
    # How much goes out.
    "budget ignored": Mutant(nothing(SendQueue, "_may_read", result=True), "many"),
    # What has to come back by itself.
    "timer never fires": Mutant(_timers_without(lambda message: isinstance(message, RetryDue))),
    "released before the copy is durable": Mutant(_releases_before_the_copy, "room"),
    "a copy is another batch": Mutant(_moves_without_mark, "room"),
    "a copy has the place of its position": Mutant(
        source(
            CopyForward,
            "place",
            "batch.copied(position)",
            "batch.copied(position); batch.rank = (position,)",
        ),
        "room",
    ),
    "the parts of a copy are as old as the copy": Mutant(
        source(Divider, "replaced", "if batch.is_copy and not kept:", "if False:"),
        "adopted in little room",
    ),
    "a copy has the id that was written": Mutant(
        source(DiskWriter, "copy_of", "_stamp(data, batch.identity)", "pass"), "room"
    ),
    "no pause": Mutant(_no_pauses),
    "a failed write is not tried again": Mutant(nothing(DiskWriter, "retry_write"), "calm network"),
    "no producer id is asked for again": Mutant(
        source(Sender, "granted", "self._context.timer(", "(lambda *_: None)(")
    ),
    # What the cluster loses.
    "no check of the leader before": Mutant(nothing(LossWatch, "check_epoch"), "lossy"),
    "losses are not reported": Mutant(nothing(LossWatch, "acked_loss"), "lossy"),
    "a hint at a former topic's leader counts": Mutant(
        source(Leaders, "take_hint", "if info.topic_id != topic_id and any(topic_id):", "if False:"),
        "former topics",
    ),
    "undecidable batches are sent again": Mutant(
        source(Endings, "_park", "policy = self._config.on_undecidable", "policy = 'resend'"), "trimmed"
    ),
}

# Too rare for histories, found by an exact test (of tests/engine/test_non_obvious.py).
EXACT: dict[str, tuple[Callable[[Any], None], str]] = {
    "a state is believed without a proof": (
        _believes_without_a_proof,
        "test_one_late_request_does_not_speak_for_those_before_it",
    ),
    "no look after what was acknowledged": (
        lambda patch: [
            patch.setattr(LossWatch, name, lambda *_: None) for name in ("check_acked", "look_again")
        ],
        "test_callers_wait_for_what_is_sent_again",
    ),
    "another topic of the name is the same": (
        nothing(LossWatch, "compare_topic"),
        "test_another_topic_of_the_name_is_noticed_though_its_log_is_longer",
    ),
    "lanes are looked for only once": (
        _timers_without(lambda message: message == ChoreDue(engines.Chore.ADOPT)),
        "test_a_lane_is_adopted_whose_owner_dies_long_after_its_sibling_began",
    ),
    "records are divided at once though older ones wait": (
        source(Intake, "_parts", "elif not lane.journal.views.waiting(parcel.topic):", "else:"),
        "test_nothing_overtakes_what_cannot_be_divided_yet",
    ),
}

# Found by golden transcripts: "what another leader's log says is believed". By none: "topics are not looked for" (answers about
# metadata and the adoption of a lane do the same), "a timeout counts from the submission" (of the simulated transport).
# "A lane is let go before it is drained" breaks no promise: such a lane is adopted again.

_FIRST = {
    "send before sync": 2,
    "durable before the write": 3,
    "a failed write is taken for done": 20,
    "group order reversed": 7,
    "batches before decisions": 37,
    "commit mark dropped": 2,
    "bytes stay in memory": 75,
    "resolve before the mark": 2,
    "a lost answer is taken for not sent": 56,
    "a failure is taken for an acknowledgement": 3,
    "no fence": 13,
    "new id before dead_at": 56,
    "wrong-cluster check skipped": 13,
    "a failed write is not tried again": 9,
    "a younger life does not hold back": 8,
    "adoption without a gate": 15,
    "no check of the leader before": 7,
    "a hint at a former topic's leader counts": 5,
    "undecidable batches are sent again": 23,
    "what a life waits for is forgotten": 15,
    "budget ignored": 22,
    "all are known": 10,
    "a life does not look for what others owe": 8,
    "released before the copy is durable": 3,
    "the parts of a copy are as old as the copy": 174,
}
"""Where few histories meet it, the search begins at one that does."""

ENGINE = {name: replace(mutant, first=_FIRST.get(name, 0)) for name, mutant in ENGINE.items()}

# Each of them is found by an exact test as well (tests/journal/test_journal.py), and the others only there: `hunt.py` looks for
# histories that find them too.
_FOUND: dict[str, tuple[str, int]] = {
    "SendsBeforeDurable": ("all", 9),
    "SendsBeforeIdDurable": ("refused", 3),
    "ResendsBlindly": ("all", 56),
    "TrustsFormerLife": ("all", 0),
    "NeverSeesGhosts": ("old", 3),
    "BelievesTooEarly": ("late refusals", 0),
    "AsksOnlyOnce": ("old", 3),
    "NeverProbes": ("all", 160),
    "ReusesProducerId": ("all", 0),
    "KeepsEpoch": ("refused", 0),
    "FirstNotAlone": ("all", 3),
    "IgnoresAge": ("old", 3),
    "IgnoresAgeOfTheSent": ("old", 3),
    "WideWindow": ("all", 0),
    "ResolvesEarly": ("all", 2),
    "ScansFromLastAck": ("holes", 64),
    "ForgetsReplaced": ("refused", 19),
    "ForgetsRejected": ("refused", 0),
    "ForgetsCommitted": ("all", 2),
    "ForgetsIdentified": ("all", 0),
    "ForgetsState": ("all", 0),
    "TearsReplaced": ("refused", 0),
    "RejectsWithoutCopy": ("refused", 190),
    "RejectsFromMemory": ("refused", 3),
    "RejectsMissingTopic": ("denied", 0),
    "ContinuesSequence": ("refused", 3),
    "RevivesWithoutMark": ("lossy", 160),
    "ForgetsSurvey": ("lossy", 0),
    "IgnoresTopicId": ("recreated", 10),
}

JOURNAL: dict[str, Mutant] = {
    name: Mutant(change, *_FOUND.get(name, ())) for name, change in journal_mutants.MUTANTS.items()
}
HISTORIES: dict[str, Mutant] = ENGINE | {name: JOURNAL[name] for name in _FOUND}
"""Those that histories find."""
