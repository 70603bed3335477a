"""The two-phase journal: each rule alone, and each of them missing. (All of them in storms: tests/simulation.)"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mutation import listed

sys.path.insert(0, str(Path(__file__).parent))
import mutants

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe.history.identity import (
    BatchId,
    BatchKind,
    IdentityVerdict,
    Judgement,
    LogBatch,
    ProducerView,
    judge_by_state,
)
from kafkasafe.history.loss import AckedBatch, Cause, Loss, Survey

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))

# -- each rule alone ---------------------------------------------------------------------------------------------------


class Shell:
    """A journal with a disk that never fails and a cluster that says what the test says."""

    def __init__(self, **of: Any) -> None:
        self.journal = j.Journal(j.Settings(**of))
        self.now = 100.0
        self.now_ms = NOW_MS
        self.position = 0
        self.view: ProducerView | None = None
        """What the leader says of a batch that it refused."""
        self.marks: list[m.Mark] = []
        self.groups: list[j.Persist] = []
        self.sent: list[j.Batch] = []
        self.asks: list[j.OutcomeAsk] = []
        self.waits: list[j.Wait] = []
        self.divides: list[j.Divide] = []
        self.resolved: list[j.Resolution] = []
        self.notices: list[j.Notice] = []
        self.surveys: list[j.SurveyAsk] = []
        self.checks: list[j.EpochCheck] = []
        self.asides: list[j.Aside] = []
        self.put_aside_at: list[int] = []
        self.room = 1000
        """Batches that rejected/ takes at once."""

    def turn(self) -> list[j.Batch]:
        """Everything there is to do; what was sent in it."""
        before = len(self.sent)
        for _ in range(100):
            ready = self.journal.ready(self.now, self.now_ms)
            self.sent += ready.sends
            confirms = [ask for ask in ready.asks if ask.confirm]
            self.asks += [ask for ask in ready.asks if not ask.confirm]
            self.waits += ready.waits
            self.divides += ready.divides
            self.resolved += ready.resolved
            self.notices += ready.notices
            self.surveys += ready.surveys
            self.checks += ready.checks
            for ask in confirms:
                self.journal.confirmed(ask.destination, self.view)
            work = ready.persist or ready.sends or ready.resolved or ready.divides or ready.asides or confirms
            if not work:
                return self.sent[before:]
            for aside in ready.asides:
                self.put_aside(aside)
            if ready.persist:
                self.write(ready.persist)
        raise AssertionError("no rest")

    def put_aside(self, aside: j.Aside) -> None:
        self.asides.append(aside)
        self.put_aside_at += [batch.position for batch in aside.batches]
        self.journal.set_aside(aside, min(self.room, len(aside.batches)), "no room")

    def write(self, persist: j.Persist) -> None:
        self.groups.append(persist)
        self.marks += persist.marks
        self.position += 1 + len(persist.marks)
        positions = []
        for batch in persist.batches:
            positions.append(self.position)
            self.position += batch.count
        self.journal.persisted(persist, positions, self.position)

    def seal(self, *counts: int, partition: int = 0, age_s: float = 0.0) -> list[j.Batch]:
        number = self.journal.destination("t", partition)
        stamp = self.now_ms - int(age_s * 1000)
        return [self.journal.seal(number, count=c, size_bytes=100, max_timestamp=stamp) for c in counts]

    def flowing(self, *counts: int, age_s: float = 0.0) -> list[j.Batch]:
        """The first batch is acknowledged, the others are sent as far as the window goes."""
        self.journal.granted(7, 0)
        batches = self.seal(*counts, age_s=age_s)
        self.turn()
        self.journal.baseline(1, 0, TOPIC_ID)
        self.turn()
        self.acked(batches[0], 0)
        return batches

    def ack(self, batch: j.Batch, offset: int) -> None:
        self.journal.acked(batch, offset, leader_epoch=3, now=self.now, now_ms=self.now_ms)

    def refuse(self, batch: j.Batch, code: int, **of: Any) -> None:
        self.journal.refused(batch, code, "", now=self.now, now_ms=self.now_ms, **of)

    def lose(self, batch: j.Batch, *, sent: bool = True, code: int = 0) -> None:
        self.journal.lost(batch, sent=sent, code=code, message="gone", now=self.now)

    def acked(self, batch: j.Batch, offset: int) -> list[j.Batch]:
        """`ack`, and everything there is to do then."""
        self.ack(batch, offset)
        return self.turn()

    def refused(self, batch: j.Batch, code: int, **of: Any) -> list[j.Batch]:
        self.refuse(batch, code, **of)
        return self.turn()

    def lost(self, batch: j.Batch, *, sent: bool = True, code: int = 0) -> list[j.Batch]:
        self.lose(batch, sent=sent, code=code)
        return self.turn()

    def suspected(self, *of: Any, **more: Any) -> list[j.Batch]:
        self.journal.suspect(*of, **more)
        return self.turn()

    def surveyed(self, *found: Any, **more: Any) -> list[j.Batch]:
        self.journal.surveyed(*found, **more)
        return self.turn()

    def judge(
        self,
        verdict: IdentityVerdict,
        present: int,
        *,
        stable: bool = False,
        offsets: dict[int, int] | None = None,
    ) -> list[j.Batch]:
        judgement = Judgement(verdict, present, "seen", offsets or {})
        self.journal.judged(1, judgement, stable=stable, leader_epoch=3, now=self.now)
        return self.turn()

    def wait(self) -> list[j.Batch]:
        """The pause that was asked for last is over."""
        self.now += self.waits[-1].at_least_s
        self.journal.retry(self.waits[-1].destination)
        return self.turn()

    def ids(self) -> list[tuple[int, int, int] | None]:
        return [
            (b.identity.producer_id, b.identity.producer_epoch, b.identity.base_sequence)
            if b.identity
            else None
            for _, _, b in self.journal.views.batches()
        ]

    def refusals(self) -> list[j.Batch]:
        return [notice.batch for notice in self.notices if isinstance(notice, j.Refusal)]

    def fates(self) -> list[tuple[int, j.Fate]]:
        return [(r.batch.handle, r.fate) for r in self.resolved]

    def reborn(self, clock: j.Moment | None = None) -> Shell:
        """The process dies and comes back on what is durable."""
        heir = type(self)()
        heir.now, heir.now_ms, heir.position = self.now, self.now_ms, self.position
        position = 0
        for group in self.groups:
            heir.journal.recovery.recover_marks(position, group.marks)
            position += 1 + len(group.marks)
            for batch in group.batches:
                heir.journal.recovery.recover_batch(
                    position,
                    batch.destination,
                    count=batch.count,
                    size_bytes=100,
                    max_timestamp=batch.max_timestamp,
                    identity=self.written.get(position),
                )
                position += batch.count
        heir.journal.recovery.recovered_log()
        heir.journal.recovery.recovered(heir.now, clock)
        heir.written = dict(self.written)
        heir.groups = list(self.groups)
        return heir

    @property
    def written(self) -> dict[int, BatchId | None]:
        return self.__dict__.setdefault("_written", {})

    @written.setter
    def written(self, value: dict[int, BatchId | None]) -> None:
        self.__dict__["_written"] = value


def flowing(*counts: int, age_s: float = 0.0) -> tuple[Shell, list[j.Batch]]:
    shell = Shell()
    return shell, shell.flowing(*counts, age_s=age_s)


class Keeps(Shell):
    """Remembers which id was in the bytes when they were written."""

    def write(self, persist: j.Persist) -> None:
        at = [batch.identity for batch in persist.batches]
        super().write(persist)
        for batch, identity in zip(persist.batches, at, strict=True):
            self.written[batch.position] = identity


def test_nothing_is_sent_before_batch_and_baseline_are_durable() -> None:
    shell = Shell()
    shell.journal.granted(7, 0)
    shell.seal(3)
    first = shell.journal.ready(shell.now, NOW_MS)
    assert (first.sends, len(first.persist.batches)) == ([], 1)
    assert first.asks == [j.OutcomeAsk(1, (), -1, acked_before=False, read_log=False, fenced=False)]
    shell.write(first.persist)
    second = shell.journal.ready(shell.now, NOW_MS)
    assert (second.sends, second.asks) == ([], [])
    shell.journal.baseline(1, 50, TOPIC_ID)
    third = shell.journal.ready(shell.now, NOW_MS)
    assert third.sends == []
    assert third.persist.marks == [m.State(1, 50, -1, -1, TOPIC_ID)]
    shell.write(third.persist)
    assert [b.identity for b in shell.journal.ready(shell.now, NOW_MS).sends] == [BatchId(7, 0, 0, 3)]


def test_the_first_batch_of_an_id_goes_alone_then_five() -> None:
    shell = Shell()
    shell.journal.granted(7, 0)
    batches = shell.seal(1, 1, 1, 1, 1, 1, 1, 1)
    shell.turn()
    shell.journal.baseline(1, 0, TOPIC_ID)
    assert shell.turn() == batches[:1]
    assert shell.acked(batches[0], 0) == batches[1:6]
    assert shell.acked(batches[1], 1) == batches[6:7]


def test_an_acknowledgement_makes_no_room_in_the_window_until_its_mark_is_durable() -> None:
    shell = Shell(window=2)
    _, first, second, third = shell.flowing(2, 2, 2, 2)
    assert shell.sent[-2:] == [first, second]
    shell.ack(first, 2)
    ready = shell.journal.ready(shell.now, shell.now_ms)
    assert not ready.sends
    shell.write(ready.persist)
    assert shell.turn() == [third]


def test_what_is_new_is_not_sent_while_it_is_written() -> None:
    shell = Shell()
    shell.flowing(1)
    (batch,) = shell.seal(1)
    first = shell.journal.ready(shell.now, NOW_MS)
    assert (first.sends, first.persist.batches) == ([], [batch])
    shell.write(first.persist)
    assert shell.journal.ready(shell.now, NOW_MS).sends == [batch]


def test_what_is_durable_is_not_sent_before_its_id_is() -> None:
    """A life that has all that it needs but a producer id: with the id it could send at once."""
    shell = Shell()
    shell.flowing(1)
    shell.turn()
    heir = shell.reborn()
    batches = heir.seal(1, 1)
    assert heir.turn() == []
    assert all(batch.durable for batch in batches)
    heir.journal.granted(8, 0)
    first = heir.journal.ready(heir.now, NOW_MS)
    assert first.sends == []
    (mark,) = [mark for mark in first.persist.marks if isinstance(mark, m.Identified)]
    assert [entry.position for entry in mark.entries] == [batch.position for batch in batches]
    heir.write(first.persist)
    assert heir.journal.ready(heir.now, NOW_MS).sends == batches[:1]


def test_a_new_life_has_no_producer_id_until_it_is_given_one() -> None:
    shell = Shell()
    shell.flowing(1)
    heir = shell.reborn()
    heir.seal(1)
    assert heir.journal.ready(heir.now, NOW_MS).wants_producer_id
    assert heir.ids() == [None]


def test_a_future_resolves_when_its_mark_is_durable() -> None:
    shell = Shell()
    first, _ = shell.flowing(2, 2)
    assert shell.fates() == [(first.handle, j.Fate.COMMITTED)]
    shell.ack(shell.sent[-1], 2)
    ready = shell.journal.ready(shell.now, NOW_MS)
    assert ready.resolved == []
    assert ready.persist.marks == [m.Committed(1, 3, ((shell.sent[-1].position, 2),))]
    shell.write(ready.persist)
    assert [r.batch for r in shell.journal.ready(shell.now, NOW_MS).resolved] == [shell.sent[-1]]
    assert shell.journal.views.unfinished == 0


def test_old_batches_go_one_by_one() -> None:
    shell, batches = flowing(1, 1, 1, age_s=7 * 3600)
    assert shell.sent == batches[:2]
    assert shell.acked(batches[1], 1) == batches[2:]


def test_an_old_batch_waits_for_all_that_is_under_way() -> None:
    shell = Shell()
    shell.flowing(1)
    young = shell.seal(1, 1)
    assert shell.turn() == young
    old = shell.seal(1, age_s=7 * 3600)
    assert shell.turn() == []
    assert shell.acked(young[0], 1) == []
    assert shell.acked(young[1], 2) == old


def test_what_is_old_is_so_by_the_clock_of_the_brokers() -> None:
    """Ours, 25 h behind, said that a batch was young; brokers, who go by theirs, had forgotten its producer."""
    day_ms = 86_400_000
    shell, batches = flowing(1, 1, 1, 1, 1)
    assert shell.sent == batches  # our clock alone says nothing
    assert shell.journal.broker_clock(NOW_MS + day_ms, NOW_MS)
    for offset, batch in enumerate(batches[1:], 1):
        shell.ack(batch, offset)
    later = shell.seal(1, 1, 1)
    assert shell.turn() == later[:1]
    assert shell.acked(later[0], 5) == later[1:2]
    # The clock was set right.
    assert not shell.journal.broker_clock(NOW_MS + 3_600_000, NOW_MS)
    shell.acked(later[1], 6)
    shell.ack(later[2], 7)
    more = shell.seal(1, 1, 1)
    assert shell.turn() == more


def test_others_who_are_far_ahead_make_each_batch_wait_until_our_clock_has_caught_up() -> None:
    day_ms = 86_400_000
    shell, batches = flowing(1, 1, 1)
    shell.journal.clock_at_least(NOW_MS + day_ms)
    for offset, batch in enumerate(batches[1:], 1):
        shell.ack(batch, offset)
    later = shell.seal(1, 1, 1)
    assert shell.turn() == later[:1]
    assert shell.acked(later[0], 3) == later[1:2]
    # It was they who were wrong, or our clock was corrected: they are no longer ahead.
    shell.journal.clock_at_least(NOW_MS - 1)
    shell.acked(later[1], 4)
    shell.ack(later[2], 5)
    more = shell.seal(1, 1, 1)
    assert shell.turn() == more


def test_a_broker_that_tells_the_time_is_believed_more_than_others() -> None:
    shell = Shell()
    shell.journal.clock_at_least(NOW_MS + 86_400_000)
    assert not shell.journal.broker_clock(NOW_MS, NOW_MS)
    batches = shell.flowing(1, 1, 1)
    assert shell.sent == batches


def test_an_old_batch_waits_for_what_may_still_arrive_and_is_looked_for_again() -> None:
    shell, batches = flowing(1, 1, age_s=2 * 86400)
    shell.lost(batches[1])
    shell.wait()
    assert shell.asks[-1].read_log
    assert shell.judge(IdentityVerdict.DECIDED, 0, stable=True) == []
    assert 0 < shell.waits[-1].at_least_s <= 30
    assert shell.wait() == []
    assert len(shell.asks) == 3
    assert shell.judge(IdentityVerdict.DECIDED, 0, stable=True) == [batches[1]]


def test_after_a_failure_nothing_new_is_sent_until_all_have_their_answer() -> None:
    shell, batches = flowing(1, 1, 1, 1, 1, 1, 1)
    assert shell.refused(batches[1], 19) == []
    for batch in batches[2:6]:
        shell.refuse(batch, 45)
    assert shell.turn() == []
    assert shell.asks[1:] == []
    assert shell.wait() == batches[1:2]  # alone, under the same id
    assert batches[1].identity == BatchId(7, 0, 1, 1)
    assert shell.acked(batches[1], 1) == batches[2:7]


def test_a_lost_answer_is_asked_about_and_the_same_id_goes_again() -> None:
    shell, batches = flowing(1, 2, 3)
    for batch in batches[1:]:
        shell.lose(batch)
    shell.turn()
    assert shell.wait() == []
    assert shell.asks[-1] == j.OutcomeAsk(
        1, (BatchId(7, 0, 1, 2), BatchId(7, 0, 3, 3)), 1, acked_before=True, read_log=False, fenced=False
    )
    assert shell.judge(IdentityVerdict.DECIDED, 0) == batches[1:2]
    assert batches[1].identity == BatchId(7, 0, 1, 2)


def test_what_the_leader_has_is_probed_before_it_counts() -> None:
    shell, batches = flowing(1, 2, 3)
    for batch in batches[1:]:
        shell.lose(batch)
    shell.turn()
    shell.wait()
    assert shell.judge(IdentityVerdict.DECIDED, 2) == [batches[2]]  # the newest
    assert len(shell.resolved) == 1
    shell.acked(batches[2], 3)
    assert [r.batch for r in shell.resolved] == batches
    assert [b.base_offset for b in batches] == [0, -1, 3]


def test_a_probe_without_answer_leaves_the_doubt() -> None:
    shell, batches = flowing(1, 2)
    shell.lost(batches[1])
    shell.wait()
    assert shell.judge(IdentityVerdict.DECIDED, 1) == [batches[1]]
    shell.refuse(batches[1], 29)  # says nothing about what was appended before
    shell.turn()
    shell.wait()
    assert shell.asks[-1].doubt == (BatchId(7, 0, 1, 2),)


def test_an_answer_that_was_slept_over_is_asked_for_again() -> None:
    shell, batches = flowing(1, 2)
    shell.lost(batches[1])
    shell.wait()
    shell.now += 3600
    assert shell.judge(IdentityVerdict.DECIDED, 1) == []
    assert len(shell.asks) == 3


def test_a_later_ack_is_as_good_as_a_probe_and_the_scan_starts_before_the_doubt() -> None:
    shell, batches = flowing(1, 2, 3)
    shell.refuse(batches[1], 7)
    shell.acked(batches[2], 3)
    shell.wait()
    assert (shell.asks[-1].doubt, shell.asks[-1].from_offset) == ((BatchId(7, 0, 1, 2),), 1)
    assert shell.judge(IdentityVerdict.DECIDED, 1) == []
    assert len(shell.resolved) == 3
    assert shell.notices == []


def test_found_in_the_log_is_committed() -> None:
    shell, batches = flowing(1, 2, 3)
    for batch in batches[1:]:
        shell.lose(batch)
    shell.turn()
    shell.wait()
    assert shell.judge(IdentityVerdict.DECIDED, 1, stable=True, offsets={0: 11}) == [batches[2]]
    assert batches[1].base_offset == 11
    assert m.Committed(1, 3, ((batches[1].position, 11),)) in shell.marks


def test_a_gap_is_a_loss_and_gets_new_ids_when_all_requests_are_dead() -> None:
    shell, batches = flowing(1, 2, 3)
    shell.refuse(batches[1], 45)
    shell.lost(batches[2])
    shell.wait()
    assert shell.judge(IdentityVerdict.GAP, 0) == []
    assert shell.waits[-1].at_least_s == 30.0
    assert shell.notices == []
    shell.wait()
    assert len(shell.asks) == 3  # what may have arrived meanwhile is seen
    assert shell.judge(IdentityVerdict.GAP, 0) == []
    # What the leader misses may be what it had acknowledged: the log is read before anything else is sent.
    (survey,) = shell.surveys
    assert survey.acked == (AckedBatch(BatchId(7, 0, 0, 1), 0),)
    assert shell.surveyed(1, Loss((), -1, -1, 0, {}, oldest_known=False), 1) == batches[1:2]
    assert shell.notices == []
    assert shell.ids() == [(7, 1, 0), (7, 1, 2)]
    assert [x for x in shell.marks if isinstance(x, m.Identified)] == [
        m.Identified(1, m.IdentityReason.REIDENTIFIED, 0, ()),
        m.Identified(
            1,
            m.IdentityReason.FIRST,
            -1,
            (m.Identity(batches[1].position, 7, 1, 0), m.Identity(batches[2].position, 7, 1, 2)),
        ),
    ]


def test_the_last_epoch_is_followed_by_another_producer_id() -> None:
    shell = Shell()
    shell.journal.granted(7, 2**15 - 2)
    (batch,) = shell.seal(1)
    shell.turn()
    shell.journal.baseline(1, 0, TOPIC_ID)
    shell.turn()
    shell.refused(batch, 59)
    shell.wait()
    assert shell.journal.ready(shell.now, NOW_MS).wants_producer_id
    shell.journal.granted(8, 0)
    assert shell.turn() == [batch]
    assert batch.identity == BatchId(8, 0, 0, 1)


def test_an_ack_at_an_old_offset_raises_suspicion_and_the_log_tells_what_is_lost() -> None:
    shell, batches = flowing(5, 5, 1)
    shell.ack(batches[1], 2)
    shell.ack(batches[2], 7)
    shell.seal(1)
    assert shell.turn() == []  # nothing new before the log is read
    (survey,) = shell.surveys
    first = AckedBatch(BatchId(7, 0, 0, 5), 0)
    assert survey.acked == (first, AckedBatch(BatchId(7, 0, 5, 5), 2), AckedBatch(BatchId(7, 0, 10, 1), 7))
    assert shell.surveyed(1, Loss((0,), 0, 4, 5, {}, oldest_known=True), 8) == [
        batches[0]
    ]  # before the new one
    (notice,) = shell.notices
    assert isinstance(notice, j.AckedLoss)
    assert (notice.first_offset, notice.last_offset, notice.records, notice.revived) == (0, 4, 5, 5)
    assert notice.cause is Cause.ACK
    assert m.Revived(1, 8, (batches[0].position,)) in shell.marks
    assert batches[0].identity == BatchId(7, 1, 0, 5)
    assert shell.journal.views.last_acked_offset("t", 0) == 7


def test_what_the_former_life_missed_is_looked_for_by_the_next() -> None:
    """It died between the acknowledgement that raised the suspicion and the answer of the log."""
    shell = Keeps()
    batches = shell.flowing(5, 5)
    shell.acked(batches[1], 2)
    assert len(shell.surveys) == 1
    heir = shell.reborn()
    heir.turn()
    (survey,) = heir.surveys
    assert survey.acked == shell.surveys[0].acked


def test_what_was_put_back_is_unfinished_to_the_next_life() -> None:
    shell = Keeps()
    lost = healing(shell)
    heir = shell.reborn()
    assert [batch.position for _, _, batch in heir.journal.views.batches()] == [
        batch.position for batch in lost
    ]


def test_what_a_topic_that_was_created_again_does_not_have_is_not_sent_to_it() -> None:
    shell = Shell()
    shell.flowing(5)
    shell.suspected(1, Cause.LOG_END, "the log ends at 0", from_offset=0)
    lost = Loss((0,), 0, 4, 5, {}, oldest_known=True)
    assert shell.surveyed(1, lost, 0, topic_id=bytes(15) + b"\1") == []
    (notice,) = [notice for notice in shell.notices if isinstance(notice, j.AckedLoss)]
    assert (notice.cause, notice.recreated, notice.revived) == (Cause.TOPIC_ID, True, 0)


def test_without_healing_a_loss_is_told_and_nothing_is_sent_again() -> None:
    shell = Shell(heal=False)
    batches = shell.flowing(5, 5)
    shell.acked(batches[1], 2)
    assert shell.surveyed(1, Loss((0,), 0, 4, 5, {}, oldest_known=True), 8) == []
    (notice,) = shell.notices
    assert isinstance(notice, j.AckedLoss)
    assert (notice.records, notice.revived) == (5, 0)
    assert shell.journal.views.unfinished == 0


def test_a_forgotten_destination_keeps_its_number_and_goes_on_with_its_sequences() -> None:
    """The topic may be there after all: then no sequence is given twice under an id. Rejected batches name the number."""
    shell, batches = flowing(2, 3)
    shell.acked(batches[1], 2)
    number = shell.journal.destination("t", 0)
    assert shell.journal.forget("t")
    shell.turn()
    assert shell.journal.views.last_acked_offset("t", 0) == -1
    assert shell.journal.destination("t", 0) == number
    (again,) = shell.seal(1)
    shell.turn()
    shell.journal.baseline(number, 0, bytes(16))
    shell.turn()
    assert again.identity == BatchId(7, 0, 5, 1)


def test_the_first_batch_to_a_topic_that_was_deleted_goes_alone() -> None:
    """Its new leader has no state of our producer id, so it accepts any sequence: a second batch could overtake the
    first.
    """
    shell = Shell()
    batches = shell.flowing(5, 5)
    shell.acked(batches[1], 5)
    assert shell.journal.forget("t")
    shell.turn()
    again = shell.seal(1, 1)
    shell.turn()
    shell.journal.baseline(1, 0, bytes(16))
    shell.turn()
    assert [batch.state for batch in again] == [j.BatchState.SENT, j.BatchState.PREPARED]
    shell.acked(again[0], 0)
    assert again[1].state is j.BatchState.SENT


def test_the_first_batch_after_a_loss_goes_alone() -> None:
    """An unclean election cut the log before all our batches, so the new leader has no state of our producer id."""
    shell = Shell(heal=False)
    batches = shell.flowing(5, 5)
    shell.acked(batches[1], 2)
    assert shell.surveyed(1, Loss((0, 1), 0, 9, 10, {}, oldest_known=True), 0) == []
    again = shell.seal(1, 1)
    shell.turn()
    assert [batch.state for batch in again] == [j.BatchState.SENT, j.BatchState.PREPARED]
    shell.acked(again[0], 0)
    assert again[1].state is j.BatchState.SENT


def test_what_is_doubted_is_kept_until_the_log_was_read() -> None:
    shell, batches = flowing(5, 5)
    (other,) = shell.seal(1, partition=1)
    shell.turn()
    assert shell.journal.views.release_position == batches[1].position
    assert shell.journal.views.doubted == []
    shell.acked(batches[1], 2)
    # All of it is finished, and nothing of it goes: what the cluster lost may have to be sent again.
    assert shell.journal.views.doubted == [1]
    assert shell.journal.views.release_position == batches[0].position
    shell.journal.surveyed(1, Loss((), -1, -1, 0, {}, oldest_known=False), 10)
    assert shell.journal.views.doubted == []
    assert shell.journal.views.release_position == other.position


def test_a_doubt_names_no_trouble_that_is_over() -> None:
    """An error of hours ago was given as the reason why something is not known yet."""
    shell, batches = flowing(1, 1, 1)
    shell.refuse(batches[2], 7)
    shell.refused(batches[1], 6)
    shell.wait()
    shell.judge(IdentityVerdict.DECIDED, 0)
    shell.acked(shell.sent[-1], 1)
    shell.journal.suspect(1, Cause.LOG_END, "the log ends at 0", from_offset=0)
    assert shell.journal.views.doubts() == [("t", 0, "the log ends at 0")]
    shell.turn()
    while shell.sent[-1].state is j.BatchState.SENT:
        shell.acked(shell.sent[-1], 2)
    shell.journal.survey_failed(1, "no leader")
    assert shell.journal.views.doubts() == [("t", 0, "the log ends at 0; not known yet: no leader")]


def test_a_check_of_the_leader_before_is_a_doubt_as_well() -> None:
    shell, batches = flowing(5, 5)
    (other,) = shell.seal(1, partition=1)
    shell.journal.acked(batches[1], 30, leader_epoch=4, now=shell.now, now_ms=NOW_MS)
    shell.turn()
    (check,) = shell.checks
    assert shell.journal.views.doubted == [1]
    assert shell.journal.views.release_position == batches[0].position
    shell.journal.checked(check)
    assert shell.journal.views.doubted == []
    assert shell.journal.views.release_position == other.position


def test_a_second_leader_before_the_answer_about_the_first_takes_nothing_from_that_question() -> None:
    shell, batches = flowing(5, 5, 1)
    shell.journal.acked(batches[1], 30, leader_epoch=4, now=shell.now, now_ms=NOW_MS)
    shell.turn()
    shell.journal.acked(batches[2], 35, leader_epoch=5, now=shell.now, now_ms=NOW_MS)
    shell.turn()
    assert shell.checks == [j.EpochCheck(1, 3, 4)]  # one after the other
    shell.journal.checked(shell.checks[0])
    assert shell.journal.views.doubted == [1]
    shell.turn()
    assert shell.checks == [j.EpochCheck(1, 3, 4), j.EpochCheck(1, 4, 34)]
    shell.journal.suspect(1, Cause.LOG_END, "epoch 3 ends at 2", from_offset=2, check=shell.checks[0])
    assert not shell.surveys, "that one is answered"
    shell.journal.checked(shell.checks[1])
    assert shell.journal.views.doubted == []


def test_what_the_leader_before_the_last_one_acknowledged_is_found_missing() -> None:
    shell, batches = flowing(5, 5, 1)
    for batch, offset, epoch in ((batches[1], 30, 4), (batches[2], 35, 5)):
        shell.journal.acked(batch, offset, leader_epoch=epoch, now=shell.now, now_ms=NOW_MS)
        shell.turn()
    check = shell.checks[0]
    shell.suspected(1, Cause.LOG_END, "epoch 3 ends at 2", from_offset=2, check=check)
    (survey,) = shell.surveys
    assert (survey.leader_epoch, survey.from_offset) == (3, 2)


def test_an_owner_that_ends_in_doubt_writes_down_when_its_requests_are_dead() -> None:
    """The next life looks again, and puts back what is lost when nothing can arrive any more."""
    shell, batches = flowing(5, 5)
    clock = j.Moment(NOW_MS, bytes(16), 0)
    shell.acked(batches[1], 5)
    assert shell.journal.quiet(shell.now, clock) is None
    shell.journal.suspect(1, Cause.LOG_END, "the log ends at 2", from_offset=2)
    assert shell.journal.quiet(shell.now, clock) is not None


def test_a_topic_that_is_gone_is_not_doubted_for_ever() -> None:
    shell = Shell()
    shell.flowing(5)
    shell.suspected(1, Cause.LOG_END, "the log ends at 2", from_offset=2)
    assert shell.journal.forget("t")
    assert shell.journal.views.doubted == []


def healing(shell: Shell, *, partly: bool = False) -> list[j.Batch]:
    """Three batches of five are lost, and on their way again."""
    batches = shell.flowing(5, 5, 5)
    shell.ack(batches[1], 5)
    shell.acked(batches[2], 10)
    if partly:
        shell.journal.released(batches[1].position)
    shell.suspected(1, Cause.LOG_END, "the log ends at 0", from_offset=0)
    shell.surveyed(1, Loss((0, 1, 2), 0, 14, 15, {}, oldest_known=True), 0)
    return batches


def test_a_loss_names_what_is_not_sent_again() -> None:
    whole, part = Shell(), Shell()
    healing(whole)
    healing(part, partly=True)
    (all_of_it,) = whole.notices
    (some,) = part.notices
    assert isinstance(all_of_it, j.AckedLoss)
    assert isinstance(some, j.AckedLoss)
    assert (all_of_it.records, all_of_it.revived, all_of_it.gone) == (15, 15, (-1, -1, 0))
    assert (some.records, some.revived, some.gone) == (15, 10, (0, 4, 5))


@pytest.mark.parametrize("lives", [1, 2, 3])
def test_healing_is_told_by_the_life_that_ends_it_with_all_of_it(lives: int) -> None:
    shell: Shell = Keeps()
    first = healing(shell)[0].position
    for life in range(1, lives + 1):
        for offset in range(life, 4 if life == lives else life + 1):
            # What is back may be lost again: it is kept until all of it is back.
            assert shell.journal.views.release_position == first
            (batch,) = [b for b in shell.sent if b.state is j.BatchState.SENT][:1]
            shell.acked(batch, 5 * offset)
        if life < lives:
            shell = shell.reborn()
            shell.journal.granted(7 + life, 0)
            shell.now += 30
            shell.turn()
            for _ in range(3):
                if not shell.sent:
                    shell.judge(IdentityVerdict.DECIDED, 0, stable=True)
    assert [n for n in shell.notices if isinstance(n, j.Healed)] == [j.Healed(1, 15, 5, 19)]
    assert shell.journal.views.release_position > first
    heir = shell.reborn()
    heir.turn()
    assert heir.notices == []


def test_what_is_sent_again_in_parts_or_refused_ends_the_healing_too() -> None:
    shell = Shell()
    first, second, third = healing(shell)
    shell.refused(first, 10)
    parts = shell.journal.replaced(first, [(1, 2, 50, NOW_MS, False), (1, 3, 50, NOW_MS, False)])
    shell.turn()
    for offset, batch in zip((0, 2, 5), (*parts, second), strict=True):
        shell.acked(batch, offset)
    assert [n for n in shell.notices if isinstance(n, j.Healed)] == []
    shell.refused(third, 87)
    shell.journal.replaced(third, [(1, 5, 100, NOW_MS, True)])
    shell.turn()
    assert [n for n in shell.notices if isinstance(n, j.Healed)] == [j.Healed(1, 10, 0, 9)]


def lost_before(first: int, loss: Loss, *, forgotten: int) -> j.AckedLoss:
    """One batch is remembered, and gone; how many of those before `forgotten` are, the end of the epoch tells."""
    shell = Shell()
    shell.flowing(5)
    shell.journal._state.destinations.partitions[1].log.acked[0].place = first
    shell.journal._state.destinations.partitions[1].log.forgotten_offset = forgotten
    shell.journal._state.destinations.partitions[1].log.last_acked_offset = first + 4
    shell.suspected(1, Cause.LOG_END, "cut")
    shell.surveyed(1, loss, 3, epoch_end_offset=3)
    (notice,) = shell.notices
    assert isinstance(notice, j.AckedLoss)
    return notice


def test_a_loss_names_all_that_stood_behind_the_end_of_the_leader_epoch() -> None:
    """It named what was remembered: 320 of 590."""
    counted = lost_before(45, Loss((0,), 45, 49, 5, {}, oldest_known=True), forgotten=45)
    assert (counted.first_offset, counted.last_offset, counted.records) == (3, 49, 47)
    assert (counted.revived, counted.gone) == (5, (3, 44, 42))
    assert "other producers" in counted.evidence
    # What others wrote since is not ours.
    others = lost_before(45, Loss((0,), 45, 49, 5, {}, oldest_known=True), forgotten=13)
    assert (others.first_offset, others.records, others.gone) == (3, 15, (3, 12, 10))
    # All that was ever acknowledged is remembered: nothing of ours was there.
    for forgotten in (-1, 3):
        first = lost_before(45, Loss((0,), 45, 49, 5, {}, oldest_known=True), forgotten=forgotten)
        assert (first.first_offset, first.records, first.gone) == (45, 5, (-1, -1, 0))
    # Where sequences tell how many it were nothing is counted.
    known = lost_before(45, Loss((0,), 20, 49, 30, {}, oldest_known=False), forgotten=45)
    assert (known.first_offset, known.last_offset, known.records) == (20, 49, 30)
    assert known.gone == (20, 44, 25)
    assert "other producers" not in known.evidence


def test_a_log_that_ends_too_early_raises_suspicion() -> None:
    shell, batches = flowing(5, 5)
    shell.lost(batches[1])
    shell.wait()
    shell.journal.judged(
        1, Judgement(IdentityVerdict.DECIDED, 0, "seen"), stable=True, shrunk_to=3, now=shell.now + 40
    )
    assert shell.turn() == []
    assert len(shell.surveys) == 1
    shell.surveyed(1, Loss((0,), 0, 4, 5, {}, oldest_known=True), 3)
    (notice,) = shell.notices
    assert isinstance(notice, j.AckedLoss)
    assert notice.cause is Cause.LOG_END


def test_the_next_life_asks_about_what_was_sent_before_lost_ones_came_back_in_front_of_it() -> None:
    shell = Keeps()
    batches = shell.flowing(*[1] * 8)
    for offset, batch in enumerate(batches[1:6], 1):
        shell.ack(batch, offset)
    shell.turn()
    for batch in batches[6:]:
        shell.lose(batch)
    shell.turn()
    shell.wait()
    shell.journal.judged(
        1, Judgement(IdentityVerdict.DECIDED, 0, "seen"), stable=True, shrunk_to=0, read_from=0, now=shell.now
    )
    shell.turn()
    assert shell.surveys[-1].from_offset == 0
    assert (
        shell.surveyed(1, Loss(tuple(range(6)), 0, 5, 6, {}, oldest_known=True), 0) == []
    )  # what was lost may still arrive
    assert shell.ids() == [None] * 6 + [(7, 0, 6), (7, 0, 7)]
    heir = shell.reborn()
    heir.journal.granted(8, 0)
    assert heir.turn() == []
    assert [identity.base_sequence for identity in heir.asks[-1].doubt] == [6, 7]
    assert heir.ids() == [None] * 6 + [(7, 0, 6), (7, 0, 7)]
    heir.now += 30
    assert heir.judge(IdentityVerdict.DECIDED, 0, stable=True) == []  # what was late may have come
    assert [b.position for b in heir.judge(IdentityVerdict.DECIDED, 0, stable=True)] == [batches[0].position]
    assert heir.ids() == [(8, 0, sequence) for sequence in range(8)]


def test_what_was_sent_to_a_log_that_was_cut_is_looked_for_in_all_of_it() -> None:
    shell, batches = flowing(5, 5, 1)
    shell.acked(batches[1], 5)
    shell.lost(batches[2])
    shell.wait()
    shell.journal.judged(
        1, Judgement(IdentityVerdict.DECIDED, 0, "seen"), stable=True, shrunk_to=4, read_from=2, now=shell.now
    )
    shell.turn()
    shell.surveyed(1, Loss((0, 1), 0, 9, 10, {}, oldest_known=True), 4)
    shell.wait()
    assert (shell.asks[-1].from_offset, shell.asks[-1].read_log) == (0, True)


def test_a_mark_of_new_ids_names_what_is_acknowledged_but_not_marked_yet() -> None:
    shell = Keeps(blocked_timeout_s=0.0)
    batches = shell.flowing(1, 1, 1)
    shell.lose(batches[2], sent=False, code=29)
    shell.acked(batches[1], 1)
    (mark,) = [x for x in shell.marks if isinstance(x, m.Identified)]
    assert mark.entries == (m.Identity(batches[1].position, 7, 0, 1),)
    heir = shell.reborn()
    heir.suspected(1, Cause.LOG_END, "cut")
    assert [acked.identity for acked in heir.surveys[-1].acked] == [BatchId(7, 0, 0, 1), BatchId(7, 0, 1, 1)]


def test_the_first_ack_of_another_leader_has_the_one_before_checked() -> None:
    shell, batches = flowing(5, 5, 1)
    shell.journal.acked(batches[1], 30, leader_epoch=4, now=shell.now, now_ms=NOW_MS)
    shell.turn()
    shell.journal.acked(batches[2], 35, leader_epoch=4, now=shell.now, now_ms=NOW_MS)
    shell.turn()
    (check,) = shell.checks
    assert check == j.EpochCheck(1, 3, 4)
    shell.suspected(1, Cause.LOG_END, "epoch 3 ends at 2", from_offset=2, check=check)
    (survey,) = shell.surveys
    assert (survey.leader_epoch, survey.from_offset) == (3, 2)
    shell.surveyed(1, Loss((0,), 0, 4, 5, {}, oldest_known=True), 36, leader_epoch=4)
    assert [n.records for n in shell.notices if isinstance(n, j.AckedLoss)] == [5]
    # The survey has seen everything: a late answer says nothing new.
    shell.suspected(1, Cause.LOG_END, "epoch 3 ends at 2", from_offset=2, check=check)
    assert len(shell.surveys) == 1


def test_the_next_life_asks_about_each_leader_that_acknowledged_something() -> None:
    shell = Keeps()
    batches = shell.flowing(5, 5, 1)
    for batch, offset, epoch in ((batches[1], 30, 4), (batches[2], 35, 5)):
        shell.journal.acked(batch, offset, leader_epoch=epoch, now=shell.now, now_ms=NOW_MS)
        shell.turn()
    assert shell.checks == [j.EpochCheck(1, 3, 4)], "no answer comes in this life"
    heir = shell.reborn()
    heir.turn()
    assert heir.checks == [j.EpochCheck(1, 3, 4)]
    heir.journal.checked(heir.checks[0])
    heir.turn()
    assert heir.checks[1:] == [j.EpochCheck(1, 4, 34)]
    heir.journal.checked(heir.checks[1])
    assert heir.journal.views.doubted == []


def test_after_a_survey_the_next_life_asks_only_about_the_leaders_since() -> None:
    shell = Keeps()
    batches = shell.flowing(5, 5)
    shell.journal.acked(batches[1], 30, leader_epoch=4, now=shell.now, now_ms=NOW_MS)
    shell.turn()
    shell.suspected(1, Cause.LOG_END, "epoch 3 ends at 2", from_offset=2, check=shell.checks[0])
    assert len(shell.surveys) == 1
    shell.surveyed(1, Loss((), -1, -1, 0, {}, oldest_known=True), 35, leader_epoch=4)
    for epoch in (5, 6):
        (batch,) = shell.seal(1)
        shell.turn()
        shell.journal.acked(batch, 30 + epoch, leader_epoch=epoch, now=shell.now, now_ms=NOW_MS)
        shell.turn()
    heir = shell.reborn()
    for _ in range(3):
        heir.turn()
        if heir.checks:
            heir.journal.checked(heir.checks[-1])
    assert [check.leader_epoch for check in heir.checks] == [4, 5]


def test_a_batch_is_searched_for_again_from_where_a_loss_begins() -> None:
    """The new topic has the batch at offset 0. The journal searched only after the former topic's last offset, 4."""
    shell = Shell(heal_recreated=True)
    batches = shell.flowing(5, 1)
    shell.journal.refused(batches[1], 20, "appended", now=shell.now, now_ms=NOW_MS)
    shell.turn()
    shell.wait()
    assert shell.asks[-1].from_offset == 5
    assert shell.judge(IdentityVerdict.DECIDED, 0) == [batches[1]]
    shell.refused(batches[1], 19)
    shell.suspected(1, Cause.TOPIC_ID, "another topic id", from_offset=0)
    shell.wait()
    asked = len(shell.asks)
    sent = len(shell.sent)
    shell.surveyed(1, Loss((0,), 0, 4, 5, {}, oldest_known=True), 1)
    assert len(shell.sent) == sent, "under another id it would be there twice"
    (ask,) = shell.asks[asked:]
    assert (ask.doubt, ask.from_offset, ask.read_log) == ((BatchId(7, 0, 5, 1),), 0, True)
    shell.judge(IdentityVerdict.DECIDED, 1, stable=True, offsets={0: 0})
    assert batches[1].state is j.BatchState.COMMITTED
    assert shell.sent[sent:] == [batches[0]]


def test_a_batch_that_a_late_request_put_back_is_not_lost() -> None:
    shell = Shell()
    shell.flowing(5)
    shell.suspected(1, Cause.LOG_END, "the log ends at 0", from_offset=0)
    shell.surveyed(1, Loss((), -1, -1, 0, {0: 7}, oldest_known=False), 12)
    assert shell.notices == []
    assert shell.journal.views.last_acked_offset("t", 0) == 11


def test_an_acknowledged_batch_is_not_put_back_while_an_older_request_with_it_may_arrive() -> None:
    shell, batches = flowing(5, 5)
    shell.lost(batches[1])
    shell.wait()
    assert shell.judge(IdentityVerdict.DECIDED, 0) == [batches[1]]
    shell.acked(batches[1], 5)
    shell.suspected(1, Cause.LOG_END, "the log ends at 0", from_offset=0)
    lost = Loss((0, 1), 0, 9, 10, {}, oldest_known=True)
    assert shell.surveyed(1, lost, 0) == []
    assert shell.waits[-1].at_least_s == 30
    shell.wait()
    assert len(shell.surveys) == 2
    assert shell.surveyed(1, lost, 0) == [batches[0]]


def test_what_was_given_up_stays_given_up() -> None:
    shell = Keeps(heal=False)
    batches = shell.flowing(5)
    shell.suspected(1, Cause.LOG_END, "the log ends at 0", from_offset=0)
    shell.surveyed(1, Loss((0,), 0, 4, 5, {}, oldest_known=True), 0)
    assert m.Revived(1, 0, (), (batches[0].position,)) in shell.marks
    heir = shell.reborn()
    heir.suspected(1, Cause.LOG_END, "again", from_offset=0)
    assert heir.surveys[-1].acked == ()


def test_parts_of_a_divided_batch_come_back_before_what_stood_behind_it() -> None:
    shell, batches = flowing(1, 2, 1)
    shell.refuse(batches[1], 10)
    shell.refused(batches[2], 45)
    parts = shell.journal.replaced(batches[1], [(1, 1, 50, NOW_MS, False)] * 2)
    shell.turn()
    for offset, batch in enumerate((*parts, batches[2]), 1):
        shell.acked(batch, offset)
    shell.suspected(1, Cause.LOG_END, "the log ends at 0", from_offset=0)
    shell.surveyed(1, Loss((0, 1, 2, 3), 0, 3, 4, {}, oldest_known=True), 0)
    revived = [batch for _, _, batch in shell.journal.views.batches()]
    assert revived == [batches[0], *parts, batches[2]]


def test_a_rejected_batch_leaves_no_gap() -> None:
    shell, batches = flowing(1, 1, 2, 3)
    shell.refuse(batches[1], 87)
    shell.refuse(batches[2], 45)
    assert shell.refused(batches[3], 45) == [batches[2]]
    assert shell.ids() == [(7, 1, 0), (7, 1, 2)]
    assert shell.notices == [j.Refusal(batches[1])]
    assert (batches[1].handle, j.Fate.REJECTED) in shell.fates()
    assert m.Rejected(batches[1].position, 87, batches[1].fault.message) in shell.marks
    assert shell.acked(batches[2], 1) == [batches[3]]


def test_a_refusal_decides_nothing_while_an_older_request_may_arrive() -> None:
    shell, batches = flowing(1, 1)
    shell.lost(batches[1])
    shell.wait()
    assert shell.judge(IdentityVerdict.DECIDED, 0) == [batches[1]]
    shell.refused(batches[1], 87)
    shell.wait()
    shell.now += 30
    assert shell.notices == []
    shell.judge(IdentityVerdict.DECIDED, 0)
    assert batches[1].state is j.BatchState.SENT
    shell.refused(batches[1], 87)
    assert shell.notices == []  # it was asked about before the old request was dead: once more
    shell.wait()
    shell.judge(IdentityVerdict.DECIDED, 0)
    shell.refused(batches[1], 87)
    assert shell.notices == [j.Refusal(batches[1])]


def test_a_batch_with_named_records_is_divided_in_place() -> None:
    shell, batches = flowing(1, 4, 2)
    shell.refuse(batches[1], 87, bad_records=((1, "bad"),))
    shell.refused(batches[2], 45)
    (divide,) = shell.divides
    assert (divide.batch, divide.refused) == (batches[1], True)
    good, bad, rest = shell.journal.replaced(
        batches[1], [(1, 1, 50, NOW_MS, False), (1, 1, 50, NOW_MS, True), (1, 2, 50, NOW_MS, False)]
    )
    assert shell.turn() == [good]
    assert shell.groups[-2].atomic
    assert m.Replaced(batches[1].position, 0, 3) in shell.marks
    assert [b for _, _, b in shell.journal.views.batches()] == [good, bad, rest, batches[2]]
    assert shell.journal.views.release_position == batches[1].position  # its place is remembered
    assert shell.acked(good, 1) == [rest, batches[2]]
    assert j.Refusal(bad) in shell.notices
    shell.acked(rest, 2)
    assert shell.journal.views.release_position == batches[2].position
    assert [b.identity for b in shell.sent[-3:]] == [
        BatchId(7, 1, 0, 1),
        BatchId(7, 1, 1, 2),
        BatchId(7, 1, 3, 2),
    ]


def test_divided_batches_come_back_in_place() -> None:
    shell = Keeps()
    batches = shell.flowing(1, 4, 2)
    shell.refuse(batches[1], 10)
    shell.refused(batches[2], 45)
    first, second = shell.journal.replaced(batches[1], [(1, 2, 50, NOW_MS, False)] * 2)
    shell.turn()
    heir = shell.reborn()
    assert [b.position for _, _, b in heir.journal.views.batches()] == [
        first.position,
        second.position,
        batches[2].position,
    ]
    assert heir.ids() == [(7, 1, 0), (7, 1, 2), (7, 1, 4)]
    assert heir.journal.views.release_position == batches[1].position


def test_a_batch_of_one_record_is_not_divided() -> None:
    shell, batches = flowing(1, 1)
    shell.refused(batches[1], 10)
    assert shell.divides == []
    assert shell.notices == [j.Refusal(batches[1])]


def test_unchosen_batches_are_divided_when_the_topic_is_known() -> None:
    shell = Shell()
    shell.journal.granted(7, 0)
    (batch,) = shell.seal(4, partition=j.UNCHOSEN)
    assert shell.turn() == []
    assert (shell.journal.views.waiting("t"), shell.journal.views.unchosen_topics()) == (1, ["t"])
    assert shell.journal.learn_topic("t", TOPIC_ID, 2)
    assert not shell.journal.learn_topic("t", TOPIC_ID, 2)
    shell.turn()
    assert shell.divides == [j.Divide(batch, refused=False)]
    children = shell.journal.replaced(
        batch, [(shell.journal.destination("t", p), 2, 50, NOW_MS, False) for p in (0, 1)]
    )
    shell.turn()
    assert shell.journal.views.waiting("t") == 0
    assert [a.destination for a in shell.asks] == [2, 3]
    assert shell.groups[-1].atomic
    assert shell.groups[-1].batches == children
    assert shell.journal.views.topic("t") == m.Topic("t", TOPIC_ID, 2)


def test_a_topic_is_rejected_only_after_it_was_missing_without_a_break() -> None:
    shell = Shell(blocked_timeout_s=60.0)
    batches = shell.flowing(1, 1)
    for _ in range(3):
        shell.refused(batches[1], 3)
        shell.now += 40
        assert shell.wait() == [batches[1]]
        shell.refuse(batches[1], 19)  # it is there
        shell.turn()
        assert shell.wait() == [batches[1]]
    shell.refused(batches[1], 3)
    shell.wait()
    shell.now += 61
    assert shell.refusals() == []
    shell.refused(batches[1], 3)
    assert shell.refusals() == batches[1:]


def test_a_topic_that_was_never_there_is_rejected_after_a_while() -> None:
    shell = Shell(blocked_timeout_s=60.0)
    (batch,) = shell.seal(1, partition=j.UNCHOSEN)
    shell.turn()
    for at in (0.0, 30.0, 59.0):
        shell.journal.deny_unchosen("t", 3, "unknown", 100.0 + at)
        shell.turn()
        assert shell.refusals() == []
    shell.journal.deny_unchosen("t", 3, "unknown", 160.0)
    shell.turn()
    assert shell.fates() == [(batch.handle, j.Fate.REJECTED)]


def test_what_is_rejected_at_once_is_put_aside_in_portions() -> None:
    """Others go on between them. A crash between two leaves the rest unfinished, and in order."""
    shell = Keeps(blocked_timeout_s=0.0, aside_batches=2)
    batches = shell.flowing(1, 1, 1, 1, 1, 1)
    late = shell.seal(1, 1)
    for batch in batches[1:]:
        shell.refuse(batch, 29)
    shell.turn()
    sizes = [len(aside.batches) for aside in shell.asides]
    assert sizes == [2]
    assert shell.fates()[1:] == [(batch.handle, j.Fate.REJECTED) for batch in batches[1:3]]
    heir = shell.reborn()
    assert [batch.position for _, _, batch in heir.journal.views.batches()] == [
        batch.position for batch in batches[3:] + late
    ]
    for _ in range(3):
        behind = shell.seal(1)  # is not of what was refused
        shell.journal.next_aside(1)
        shell.turn()
    assert [len(aside.batches) for aside in shell.asides] == [2, 2, 2, 1]
    assert shell.refusals() == batches[1:] + late
    assert [batch for _, _, batch in shell.journal.views.batches()][-1:] == behind


def test_a_portion_is_bounded_in_bytes() -> None:
    shell = Shell(blocked_timeout_s=0.0)
    number = shell.journal.destination("t", j.UNCHOSEN)
    for size in (600_000, 600_000, 3_000_000, 10):
        shell.journal.seal(number, count=1, size_bytes=size, max_timestamp=NOW_MS)
    shell.turn()
    shell.journal.deny_unchosen("t", 3, "unknown", shell.now)
    for _ in range(4):
        shell.turn()
        shell.journal.next_aside(number)
    assert [[b.size_bytes for b in aside.batches] for aside in shell.asides] == [
        [600_000],
        [600_000],
        [3_000_000],
        [10],
    ]


def test_a_topic_that_comes_into_being_between_two_portions_gets_the_rest() -> None:
    shell = Shell(blocked_timeout_s=0.0, aside_batches=1)
    shell.journal.granted(7, 0)
    batches = shell.seal(1, 1, 1, partition=j.UNCHOSEN)
    shell.turn()
    shell.journal.deny_unchosen("t", 3, "unknown", shell.now)
    shell.turn()
    shell.journal.learn_topic("t", TOPIC_ID, 1)
    shell.journal.next_aside(1)
    shell.turn()
    assert shell.refusals() == batches[:1]
    assert [divide.batch for divide in shell.divides] == batches[1:]


def test_a_rejection_that_cannot_be_kept_waits_and_is_tried_again() -> None:
    """No mark, no fate, no word of it before the copy is durable; the sequence goes on where it was."""
    shell, batches = flowing(1, 1, 1)
    shell.room = 0
    shell.refuse(batches[1], 87)
    shell.refused(batches[2], 45)
    for tries in range(1, 4):
        assert [aside.batches for aside in shell.asides] == [(batches[1],)] * tries
        assert (shell.waits[-1].attempt, shell.waits[-1].reason) == (tries, "no room")
        assert shell.notices == []
        assert not [mark for mark in shell.marks if isinstance(mark, m.Rejected)]
        assert shell.journal.views.release_position == batches[1].position
        (tries == 3) and setattr(shell, "room", 1)
        sent = shell.wait()
    assert sent == [batches[2]]
    assert shell.notices == [j.Refusal(batches[1])]
    assert shell.fates()[-1] == (batches[1].handle, j.Fate.REJECTED)


def test_of_many_rejections_those_that_were_kept_are_finished() -> None:
    shell = Shell(blocked_timeout_s=0.0)
    batches = shell.flowing(1, 1, 1, 1)
    shell.room = 2
    for batch in batches[1:]:
        shell.refuse(batch, 29)
    shell.turn()
    assert shell.refusals() == batches[1:3]
    assert shell.journal.views.release_position == batches[3].position
    assert shell.wait() == [batches[3]]  # under an id without a gap in front of it
    assert batches[3].identity == BatchId(7, 1, 0, 1)
    shell.refused(batches[3], 29)
    assert shell.journal.views.unfinished == 0


def test_records_of_a_topic_that_never_was_wait_for_room_in_rejected() -> None:
    shell = Shell(blocked_timeout_s=60.0)
    (batch,) = shell.seal(1, partition=j.UNCHOSEN)
    shell.turn()
    shell.room = 0
    shell.journal.deny_unchosen("t", 3, "unknown", 100.0)
    shell.journal.deny_unchosen("t", 3, "unknown", 160.0)
    shell.turn()
    assert shell.fates() == []
    shell.room = 1
    shell.journal.deny_unchosen("t", 3, "unknown", 161.0)
    shell.turn()
    assert shell.fates() == [(batch.handle, j.Fate.REJECTED)]


def test_a_mark_of_resent_records_stays_until_their_file_is_gone() -> None:
    journal = j.Journal()
    resent = m.Resent("lane-003", "00000000000000000007.log")
    journal.recovery.recover_marks(0, [m.Destination(1, "t", 0), resent])
    journal.recovery.recover_marks(3, [m.Topic("t", TOPIC_ID, 1)])
    journal.recovery.recovered(0.0)
    assert (journal.views.resent, journal.views.release_position) == ([resent], 0)
    journal.retired(resent)
    assert (journal.views.resent, journal.views.release_position) == ([], 5)


def test_an_unauthorised_topic_rejects_what_waits_and_does_not_continue_its_sequence() -> None:
    shell = Shell(blocked_timeout_s=0.0)
    batches = shell.flowing(1, 1, 1)
    shell.refuse(batches[1], 29)
    shell.refused(batches[2], 29)
    assert [fate for _, fate in shell.fates()] == [j.Fate.COMMITTED, j.Fate.REJECTED, j.Fate.REJECTED]
    (later,) = shell.seal(1)
    assert shell.turn() == [later]
    assert later.identity == BatchId(7, 1, 0, 1)


@pytest.mark.parametrize("code", [3, 17, 29, 100])
def test_a_stray_refusal_of_the_topic_rejects_nothing(code: int) -> None:
    shell, batches = flowing(1, 1, 1)
    shell.refuse(batches[1], code)
    shell.refused(batches[2], code)
    assert shell.waits[-1].refused
    assert shell.wait() == batches[1:2]
    assert shell.acked(batches[1], 1) == batches[2:]
    assert shell.notices == []


def refused_for(shell: Shell, batch: j.Batch, code: int, seconds: float, step_s: float = 30.0) -> None:
    """The same answer, again and again."""
    until = shell.now + seconds
    while True:
        shell.refused(batch, code)
        if shell.now >= until:
            return
        shell.now = min(until, shell.now + step_s)
        if shell.wait() == [] and shell.asks[-1].doubt:
            assert shell.judge(IdentityVerdict.DECIDED, 0) == [batch]


def test_a_refused_batch_that_cannot_be_kept_is_sent_again() -> None:
    """1. A topic may not be written to, and rejected/ is full. 2. The permission is granted: the batch is accepted."""
    shell = Shell(blocked_timeout_s=3600.0)
    shell.room = 0
    batches = shell.flowing(1, 1)
    refused_for(shell, batches[1], 29, 3500.0)
    shell.now += 200
    shell.wait()
    shell.refused(batches[1], 29)
    assert [aside.batches for aside in shell.asides] == [(batches[1],)]
    assert shell.wait() == [batches[1]]
    shell.acked(batches[1], 1)
    assert shell.fates()[-1] == (batches[1].handle, j.Fate.COMMITTED)


@pytest.mark.parametrize("code", [3, 29, -1, 2])
def test_what_lasts_is_told_once_and_rejected_in_the_end(code: int) -> None:
    shell = Shell(blocked_timeout_s=3600.0)
    batches = shell.flowing(1, 1, 1)
    shell.lose(batches[2], sent=False)
    refused_for(shell, batches[1], code, 3500.0)
    (told,) = shell.notices
    assert isinstance(told, j.Denied)
    assert shell.journal.views.denials() == [(1, told.denial, 2, 2)]
    assert (told.denial.code, told.denial.since) == (code, 100.0)
    shell.now += 200
    shell.wait()
    if code == -1:
        shell.judge(IdentityVerdict.DECIDED, 0)
    shell.refused(batches[1], code)
    if code == -1:
        # Only what is proven to be absent is rejected.
        assert shell.refusals() == []
        shell.wait()
        shell.judge(IdentityVerdict.DECIDED, 0)
    everything = code in {3, 29}
    assert shell.refusals() == (batches[1:] if everything else batches[1:2])
    assert shell.journal.views.denials() == []
    if everything:
        # What comes now has its own time.
        (later,) = shell.seal(1)
        assert shell.turn() == [later]
        shell.refused(later, code)
        assert shell.refusals() == batches[1:]
    else:
        assert shell.sent[-1] is batches[2]


def test_a_new_life_begins_the_time_anew() -> None:
    shell = Keeps(blocked_timeout_s=3600.0)
    batches = shell.flowing(1, 1)
    refused_for(shell, batches[1], 29, 3500.0)
    heir = shell.reborn()
    heir.journal._refusals._refused_timeout_s = 3600.0
    heir.turn()
    (asked,) = [batch for _, _, batch in heir.journal.views.batches()]
    assert heir.judge(IdentityVerdict.DECIDED, 0) == [asked]
    heir.now += 200
    refused_for(heir, asked, 29, 3500.0)
    assert heir.refusals() == []


@pytest.mark.parametrize("other", ["answer", "silence", "long sleep"])
def test_a_refusal_with_a_break_has_not_lasted(other: str) -> None:
    shell = Shell(blocked_timeout_s=100.0)
    batches = shell.flowing(1, 1)
    shell.refused(batches[1], 29)
    shell.now += 90
    shell.wait()
    if other == "answer":
        shell.refuse(batches[1], 6)
    elif other == "silence":
        shell.lose(batches[1], sent=False)
    else:
        shell.now += 1000
        shell.refuse(batches[1], 29)
    shell.turn()
    shell.now += 20
    if other == "answer":
        shell.wait()
        shell.judge(IdentityVerdict.DECIDED, 0)
    else:
        shell.wait()
    shell.refused(batches[1], 29)
    assert shell.refusals() == []


def test_a_missing_topic_is_told_after_a_while_and_a_missing_right_at_once() -> None:
    shell, batches = flowing(1, 1)
    refused_for(shell, batches[1], 3, 50.0, step_s=10.0)
    assert shell.notices == []
    shell.now += 15
    shell.wait()
    shell.refused(batches[1], 3)
    assert [type(notice) for notice in shell.notices] == [j.Denied]
    shell.wait()
    shell.acked(batches[1], 1)
    relented = shell.notices[-1]
    assert isinstance(relented, j.Relented)
    assert relented.accepted
    other = Shell()
    batches = other.flowing(1, 1)
    refused_for(other, batches[1], 29, 2.0, step_s=1.0)
    assert [type(notice) for notice in other.notices] == [j.Denied]


def test_a_batch_that_was_refused_for_too_long_is_divided_and_its_good_records_are_delivered() -> None:
    shell = Shell(blocked_timeout_s=60.0)
    batches = shell.flowing(1, 2)
    refused_for(shell, batches[1], 2, 60.0)
    assert shell.divides == [j.Divide(batches[1], refused=True)]
    good, bad = shell.journal.replaced(batches[1], [(1, 1, 50, NOW_MS, False)] * 2)
    assert shell.turn() == [good]
    assert shell.acked(good, 1) == [bad]
    shell.refused(bad, 2)
    assert shell.refusals() == [bad]


def ahead_s(shell: Shell, seconds: float) -> j.Batch:
    """A batch of that timestamp that the broker does not take."""
    batches = shell.flowing(1)
    (batch,) = shell.seal(1, age_s=-seconds)
    shell.turn()
    assert batches
    shell.refused(batch, 32)
    return batch


def test_timestamps_ahead_wait_for_their_time() -> None:
    shell = Shell()
    batch = ahead_s(shell, 7200.0)
    shell.now_ms += 3_700_000
    assert shell.wait() == [batch]
    shell.acked(batch, 1)
    assert shell.notices == []


@pytest.mark.parametrize("seconds", [-7200.0, 8 * 86400.0], ids=["too old", "too far ahead to be waited for"])
def test_timestamps_that_time_does_not_cure_are_rejected(seconds: float) -> None:
    shell = Shell()
    assert shell.refusals() == []
    batch = ahead_s(shell, seconds)
    assert shell.refusals() == [batch]


def test_not_being_allowed_to_ask_proves_nothing() -> None:
    shell, batches = flowing(1, 1)
    shell.lost(batches[1])
    shell.wait()
    shell.journal.ask_failed(1, "no", code=29, now=shell.now)
    shell.turn()
    assert shell.notices == []
    shell.wait()
    assert len(shell.asks) == 3


def test_a_question_that_is_answered_again_ends_the_refusal_to_answer_it() -> None:
    """1. DESCRIBE is missing for nearly the whole time-out, while a batch is in doubt.
    2. DESCRIBE is given back, and the question is answered. WRITE is missing.
    3. The first refusal of the batch counts from its own time. It was rejected at once.
    """
    shell = Shell(blocked_timeout_s=20.0)
    batches = shell.flowing(1, 1)
    shell.lose(batches[1])
    shell.turn()
    shell.wait()
    for _ in range(2):
        shell.journal.ask_failed(1, "may not describe", code=29, now=shell.now)
        shell.turn()
        shell.now += 15.0
        shell.wait()
    assert shell.judge(IdentityVerdict.DECIDED, 0) == [batches[1]]
    shell.refuse(batches[1], 29)
    shell.turn()
    assert shell.refusals() == []
    shell.now += 25.0
    assert shell.wait() == [batches[1]]
    shell.refuse(batches[1], 29)
    shell.turn()
    assert shell.refusals() == [batches[1]]


def test_a_topic_that_may_not_be_asked_about_is_rejected_before_the_first_send() -> None:
    shell = Shell(blocked_timeout_s=0.0)
    shell.journal.granted(7, 0)
    (batch,) = shell.seal(1)
    shell.turn()
    shell.journal.ask_failed(1, "timeout", code=0, now=shell.now)
    shell.turn()
    shell.wait()
    shell.journal.ask_failed(1, "not allowed", code=29, now=shell.now)
    shell.turn()
    assert shell.refusals() == [batch]


def test_old_brokers_that_forgot_us_get_new_ids() -> None:
    shell, batches = flowing(1, 1, 1)
    # Retention has deleted everything of ours: nothing is wrong.
    shell.refuse(batches[1], 59, log_start_offset=1)
    shell.refused(batches[2], 59, log_start_offset=1)
    assert shell.wait() == [batches[1]]
    assert shell.ids() == [(7, 1, 0), (7, 1, 1)]
    assert shell.notices == []
    assert shell.surveys == []


@pytest.mark.parametrize("log_start_offset", [-1, 0])
def test_old_brokers_that_forgot_us_without_a_reason_may_have_lost_what_they_acknowledged(
    log_start_offset: int,
) -> None:
    shell, batches = flowing(1, 1)
    assert shell.refused(batches[1], 59, log_start_offset=log_start_offset) == []
    assert len(shell.surveys) == 1
    shell.surveyed(1, Loss((0,), 0, 0, 1, {}, oldest_known=True), 0)
    (notice,) = shell.notices
    assert isinstance(notice, j.AckedLoss)
    assert notice.cause is Cause.UNKNOWN_PRODUCER
    assert shell.sent[-1] is batches[0]  # it goes before the refused one


def test_old_brokers_that_refuse_a_sequence_the_log_does_not_have_get_new_ids() -> None:
    shell, batches = flowing(1, 1)
    shell.refused(batches[1], 45)
    shell.wait()
    # Retention or a loss: the log tells.
    assert shell.judge(IdentityVerdict.DECIDED, 0, stable=True) == []
    assert [survey.acked[0].identity for survey in shell.surveys] == [BatchId(7, 0, 0, 1)]
    assert shell.surveyed(1, Loss((), -1, -1, 0, {}, oldest_known=False), 1) == [batches[1]]
    assert shell.ids() == [(7, 1, 0)]
    assert not shell.notices


@pytest.mark.parametrize("heal_recreated", [True, False])
def test_a_log_that_may_be_that_of_a_topic_created_again_is_healed_only_if_told_to(
    heal_recreated: bool,
) -> None:
    shell = Shell(heal_recreated=heal_recreated)
    batches = shell.flowing(1, 1)
    shell.refused(batches[1], 59, log_start_offset=0)
    shell.journal.surveyed(1, Loss((0,), 0, 0, 1, {}, oldest_known=True), 0, same_topic=False)
    sent = shell.turn()
    (lost,) = [notice for notice in shell.notices if isinstance(notice, j.AckedLoss)]
    assert (lost.recreated, lost.revived, lost.cause) == (True, int(heal_recreated), Cause.UNKNOWN_PRODUCER)
    assert "the topic may have been recreated" in lost.evidence
    assert sent == batches[not heal_recreated : 2 - heal_recreated]


def test_a_fenced_batch_that_the_log_does_not_show_is_the_users_to_decide() -> None:
    shell, batches = flowing(1, 1, 1)
    shell.refuse(batches[1], 47)
    shell.refused(batches[2], 47)
    shell.wait()
    assert shell.asks[-1].fenced
    shell.judge(IdentityVerdict.DECIDED, 0, stable=True)
    (undecidable,) = shell.notices
    assert undecidable.batch is batches[1]
    assert undecidable.evidence.startswith("fenced: something wrote to the partition under a newer epoch")
    assert undecidable.evidence.endswith("; seen")
    assert m.Undecidable(batches[1].position, undecidable.evidence) in shell.marks


@pytest.mark.parametrize("resend", [True, False])
def test_an_undecidable_batch_stops_the_partition_until_it_is_decided(resend: bool) -> None:
    shell, batches = flowing(1, 1, 1)
    for batch in batches[1:]:
        shell.lose(batch)
    shell.turn()
    shell.wait()
    shell.now += 40
    assert shell.judge(IdentityVerdict.UNDECIDABLE, 0, stable=True) == []
    assert shell.notices == [j.Undecidable(batches[1], "seen")]
    shell.seal(1)
    assert shell.turn() == []
    shell.journal.decide(batches[1], resend=resend)
    shell.turn()
    assert shell.asks[-1].doubt == (BatchId(7, 0, 2, 1),)
    sent = shell.judge(IdentityVerdict.DECIDED, 0, stable=True)
    if resend:
        assert sent == [batches[1]]
        assert batches[1].identity == BatchId(7, 1, 0, 1)
        assert batches[2].identity == BatchId(7, 1, 1, 1)
    else:
        assert sent == [batches[2]]
        assert (batches[1].handle, j.Fate.COMMITTED) in shell.fates()
    decision = m.Decision.RESEND if resend else m.Decision.SKIP
    assert m.Resolved(batches[1].position, decision) in shell.marks


def test_a_new_life_asks_about_the_old_ones_batches_first_and_keeps_their_ids() -> None:
    shell = Keeps()
    old = shell.flowing(1, 1, 1)
    heir = shell.reborn()
    heir.journal.granted(8, 0)
    heir.seal(1)
    assert heir.turn() == []
    assert heir.asks == [
        j.OutcomeAsk(
            1, (BatchId(7, 0, 1, 1), BatchId(7, 0, 2, 1)), 1, acked_before=True, read_log=False, fenced=False
        )
    ]
    (sent,) = heir.judge(IdentityVerdict.DECIDED, 0)
    assert (sent.identity, sent.position) == (BatchId(7, 0, 1, 1), old[1].position)
    heir.ack(sent, 1)
    (sent,) = heir.turn()  # ours waits until theirs are done
    assert sent.identity == BatchId(7, 0, 2, 1)
    heir.ack(sent, 2)
    (sent,) = heir.turn()
    assert sent.identity == BatchId(8, 0, 0, 1)


def test_former_ids_are_left_not_bumped() -> None:
    shell = Keeps()
    shell.flowing(1, 1)
    heir = shell.reborn()
    heir.journal.granted(8, 0)
    heir.turn()
    heir.judge(IdentityVerdict.GAP, 0)
    heir.wait()
    assert heir.judge(IdentityVerdict.GAP, 0) == []
    # The leader misses what the former life saw acknowledged.
    (survey,) = heir.surveys
    heir.journal.surveyed(1, Loss((), -1, -1, 0, {}, oldest_known=False), 1)
    assert survey.acked == (AckedBatch(BatchId(7, 0, 0, 1), 0),)
    heir.turn()
    assert heir.ids() == [(8, 0, 0)]


def test_a_machine_that_slept_waits_for_its_own_sockets_but_not_for_brokers_that_forgot() -> None:
    shell = Shell()
    _, second, third = shell.flowing(1, 1, 1)
    shell.lose(second)
    shell.lost(third)
    shell.wait()
    # Two days later: what was in a socket's buffer is sent only now, so nothing is dead yet.
    shell.now += 2 * 86400
    shell.journal.slept(2 * 86400, shell.now)
    shell.turn()
    shell.judge(IdentityVerdict.GAP, 0)
    assert shell.waits[-1].at_least_s > 15, (
        "no new id while a request under the old one may still be appended"
    )
    shell.wait()
    shell.judge(IdentityVerdict.GAP, 0)
    shell.journal.surveyed(1, Loss((), -1, -1, 0, {}, oldest_known=False), 1)
    assert len(shell.turn()) == 1, "the leader may have forgotten us: one goes alone"


def test_what_was_dead_before_a_sleep_stays_dead() -> None:
    shell = Shell()
    _, second = shell.flowing(1, 1)
    shell.lost(second)
    shell.now += 100
    shell.journal.slept(50, shell.now + 50)
    shell.now += 50
    shell.journal.retry(1)
    shell.turn()
    shell.judge(IdentityVerdict.GAP, 0)
    assert shell.surveys


def holed(**hints: bool) -> Shell:
    """A life wrote 2 + 3 + 4 records and delivered the first two; its heir finds only the last four."""
    heir = Shell()
    heir.journal.recovery.recover_marks(10, [m.Destination(1, "t", 0), m.State(1, 0, -1, -1, TOPIC_ID)])
    if hints.get("damage"):
        heir.journal.recovery.recover_lost(13, 1)
    if hints.get("torn"):
        heir.journal.recovery.recover_torn(1)
    heir.journal.recovery.recover_batch(
        20, 1, count=4, size_bytes=1, max_timestamp=NOW_MS, identity=BatchId(7, 0, 5, 4)
    )
    heir.position = 30
    heir.journal.recovery.recovered(heir.now)
    heir.journal.granted(8, 0)
    heir.turn()
    view = ProducerView(0, 1, NOW_MS)
    for _ in range(2):
        judgement = judge_by_state([BatchId(7, 0, 5, 4)], view, acked_before=False)
        assert judgement.verdict is IdentityVerdict.GAP
        heir.journal.judged(1, judgement, stable=False, now=heir.now)
        heir.turn()
        if not heir.surveys:
            heir.wait()
    return heir


def test_records_that_are_missing_in_front_of_a_former_lifes_are_reported() -> None:
    """They were given new ids without a word."""
    heir = holed()
    heir.surveyed(1, Loss((), -1, -1, 0, {}, oldest_known=False), 2)
    (hole,) = heir.notices
    assert isinstance(hole, j.Hole)
    assert (hole.destination, hole.records) == (1, 3)
    assert "sequence 1" in hole.evidence
    assert heir.ids() == [(8, 0, 0)], "what is there is delivered"


@pytest.mark.parametrize("hint", ["damage", "torn"])
def test_a_hole_that_something_explains_is_not_reported_twice(hint: str) -> None:
    heir = holed(**{hint: True})
    heir.surveyed(1, Loss((), -1, -1, 0, {}, oldest_known=False), 2)
    assert heir.notices == []


def holed_again(*, vanished: bool, group_lost: bool = False) -> Shell:
    """A life delivered 2 records and wrote 1 + 2 + 4: the cluster may have the first of these, a power cut left the
    second incomplete, or its group is damaged. The next life read that, copied the others forward, and died. Its heir finds the copies, or
    only the last one.
    """
    kept, behind = BatchId(7, 0, 2, 1), BatchId(7, 0, 5, 4)

    def find(journal: j.Journal, position: int, identity: BatchId) -> None:
        journal.recovery.recover_batch(
            position, 1, count=identity.count, size_bytes=1, max_timestamp=NOW_MS, identity=identity
        )

    life = Shell()
    life.journal.recovery.recover_marks(10, [m.Destination(1, "t", 0), m.State(1, 0, -1, -1, TOPIC_ID)])
    find(life.journal, 14, kept)
    if group_lost:
        life.journal.recovery.recover_lost(15, 0)
    else:
        life.journal.recovery.recover_torn(1)
    find(life.journal, 20, behind)
    life.journal.recovery.recovered(life.now)
    snapshot = life.journal.snapshot()

    heir = Shell()
    heir.journal.recovery.recover_marks(30, snapshot)
    if not vanished:
        find(heir.journal, 40, kept)
    find(heir.journal, 50, behind)
    heir.position = 60
    heir.journal.recovery.recovered(heir.now)
    heir.journal.granted(8, 0)
    heir.turn()
    doubt, view = (
        ([behind], ProducerView(0, 1, NOW_MS)) if vanished else ([kept, behind], ProducerView(0, 2, NOW_MS))
    )
    for _ in range(2):
        judgement = judge_by_state(doubt, view, acked_before=False)
        assert judgement.verdict is IdentityVerdict.GAP
        heir.journal.judged(1, judgement, stable=True, now=heir.now)
        heir.turn()
        doubt = [behind]
        if not heir.surveys:
            heir.wait()
    heir.surveyed(1, Loss((), -1, -1, 0, {}, oldest_known=False), 3)
    return heir


@pytest.mark.parametrize("group_lost", [False, True])
def test_a_hole_that_is_explained_stays_so_when_the_segment_that_explains_it_is_gone(
    group_lost: bool,
) -> None:
    heir = holed_again(vanished=False, group_lost=group_lost)
    assert [notice for notice in heir.notices if isinstance(notice, j.Hole)] == []
    assert heir.ids() == [(8, 0, 0)], "what is there is delivered"


def test_more_that_is_missing_than_what_is_explained_is_reported() -> None:
    heir = holed_again(vanished=True)
    (hole,) = [notice for notice in heir.notices if isinstance(notice, j.Hole)]
    assert hole.records == 3


def test_an_expected_gap_is_told_as_long_as_the_batch_after_it_waits() -> None:
    """By every snapshot, also that of a later life; and no more when the batch is delivered."""
    behind = BatchId(7, 0, 5, 4)
    entries = (m.Identity(0, 7, 0, 3), m.Identity(0, 7, 0, 5))
    gap = m.Identified(1, m.IdentityReason.REIDENTIFIED, -1, entries)
    told = [m.Destination(1, "t", 0), m.State(1, 0, -1, -1, TOPIC_ID), gap]
    for waits in (True, False):
        heir = Shell()
        heir.journal.recovery.recover_marks(30, told)
        if waits:
            heir.journal.recovery.recover_batch(
                40, 1, count=4, size_bytes=1, max_timestamp=NOW_MS, identity=behind
            )
        heir.journal.recovery.recovered(heir.now)
        assert [mark for mark in heir.journal.snapshot() if isinstance(mark, m.Identified)] == [gap] * waits


def test_a_hole_that_is_a_loss_in_the_cluster_is_reported_as_that() -> None:
    heir = holed()
    heir.surveyed(1, Loss((), 2, 4, 3, {}, oldest_known=False), 2)
    assert [type(notice) for notice in heir.notices] == [j.AckedLoss]


def test_a_former_life_that_never_had_a_baseline_sent_nothing() -> None:
    shell = Keeps()
    shell.journal.granted(7, 0)
    shell.seal(1)
    shell.turn()
    heir = shell.reborn()
    heir.turn()
    assert [ask.doubt for ask in heir.asks] == [()]
    heir.journal.baseline(1, 9, TOPIC_ID)
    assert [b.identity for b in heir.turn()] == [BatchId(7, 0, 0, 1)]


def test_only_the_first_batches_of_a_former_life_are_in_doubt() -> None:
    shell = Keeps()
    shell.flowing(*[1] * 9)
    heir = shell.reborn()
    heir.turn()
    assert [i.base_sequence for i in heir.asks[0].doubt] == [1, 2, 3, 4, 5]


def test_finished_batches_do_not_come_back() -> None:
    shell = Keeps()
    batches = shell.flowing(1, 1, 1, 1)
    shell.ack(batches[1], 1)
    shell.refuse(batches[2], 87)
    shell.refused(batches[3], 45)
    heir = shell.reborn()
    assert [b.position for _, _, b in heir.journal.views.batches()] == [batches[3].position]
    assert heir.ids() == [(7, 1, 0)]
    assert heir.journal.views.last_acked_offset("t", 0) == 1
    assert heir.journal.views.release_position == batches[3].position


def test_a_snapshot_is_enough_when_the_segments_before_it_are_gone() -> None:
    shell, batches = flowing(1, 1, 1)
    shell.journal.learn_topic("t", TOPIC_ID, 2)
    shell.ack(batches[1], 1)
    snapshot = shell.journal.snapshot()  # the mark of the second is not durable yet
    assert m.State(1, 0, 0, 3, TOPIC_ID) in snapshot
    heir = j.Journal()
    heir.recovery.recover_marks(50, snapshot)
    heir.recovery.recover_marks(60, [m.Committed(1, 3, ((4, 1),))])
    heir.recovery.recovered(0.0)
    assert heir.views.last_acked_offset("t", 0) == 1
    assert heir.views.topic("t") == m.Topic("t", TOPIC_ID, 2)
    assert heir.views.release_position == 62
    assert heir.destination("t", 0) == 1
    assert heir.destination("t", 1) == 2


def test_what_was_acknowledged_behind_a_batch_in_doubt_is_known_in_the_life_after_the_next() -> None:
    """Each life begins with a snapshot, and its STATE goes no further than the first batch that is not finished."""
    shell, batches = flowing(1, 1, 1)
    shell.lose(batches[1])
    shell.acked(batches[2], 5)
    heir = shell.reborn()
    assert heir.journal.views.last_acked_offset("t", 0) == 5
    heir.journal.granted(8, 0)
    snapshot = heir.journal.snapshot()
    assert m.State(1, 0, 0, 3, TOPIC_ID) in snapshot
    shell.groups.append(j.Persist(marks=snapshot))
    assert shell.reborn().journal.views.last_acked_offset("t", 0) == 5


def test_marks_and_batches_of_nothing_that_was_declared_are_damage() -> None:
    journal = j.Journal()
    with pytest.raises(m.MarkError, match="never declared"):
        journal.recovery.recover_batch(1, 9, count=1, size_bytes=1, max_timestamp=0, identity=None)
    for mark in (
        m.State(9, 0, 0, 0, TOPIC_ID),
        m.Committed(9, 0, ()),
        m.Identified(9, m.IdentityReason.FIRST, -1, ()),
    ):
        with pytest.raises(m.MarkError, match="never declared"):
            journal.recovery.recover_marks(1, [mark])


def test_marks_of_a_destination_whose_declaration_is_lost_are_left_out() -> None:
    """The later declaration of the same number counts, and what follows it."""
    journal = j.Journal()
    journal.recovery.recover_lost(0, 0)
    journal.recovery.recover_torn(9)
    orphans = [
        m.State(9, 0, 0, 0, TOPIC_ID),
        m.Committed(9, 0, ()),
        m.Identified(9, m.IdentityReason.FIRST, -1, ()),
        m.Revived(9, 0, ()),
    ]
    journal.recovery.recover_marks(1, [*orphans, m.Destination(9, "t", 0), m.State(9, 0, 3, 3, TOPIC_ID)])
    assert journal.views.last_acked_offset("t", 0) == 3


def test_a_hole_in_the_spool_stops_what_was_before_it() -> None:
    shell = Keeps()
    shell.flowing(1, 1, 1)
    heir = Shell()
    heir.journal.recovery.recover_marks(0, [m.Destination(1, "t", 0)])
    for position in (2, 3):
        heir.journal.recovery.recover_batch(
            position, 1, count=1, size_bytes=9, max_timestamp=NOW_MS, identity=BatchId(7, 0, position, 1)
        )
    heir.journal.recovery.recover_lost(5, 0)
    heir.journal.recovery.recovered(heir.now)
    heir.turn()
    first = heir.notices[0]
    assert isinstance(first, j.Undecidable)
    assert "destroyed marks" in first.evidence
    heir.journal.decide(first.batch, resend=False)
    heir.turn()
    second = heir.notices[1]
    assert isinstance(second, j.Undecidable)
    assert second.batch.position == 3


@pytest.mark.parametrize("answered", [False, True])
def test_the_baseline_of_a_former_cluster_begins_nothing(answered: bool) -> None:
    """The disk is full while the baseline in A is written, and meanwhile the producer moves to B."""
    shell = Shell()
    shell.journal.bind("A", assumed=None)
    (batch,) = shell.seal(1)
    shell.turn()
    shell.journal.baseline(1, 7, TOPIC_ID)
    of_a = shell.journal.ready(shell.now, NOW_MS).persist
    assert shell.journal.bind("B", assumed=None)
    shell.journal.granted(7, 0)
    ready = shell.journal.ready(shell.now, NOW_MS)
    assert [ask.doubt for ask in ready.asks] == [()]
    if answered:
        shell.journal.baseline(1, 0, TOPIC_ID)
    shell.write(of_a)
    shell.write(ready.persist)
    ready = shell.journal.ready(shell.now, NOW_MS)
    assert ready.sends == []
    if not answered:
        shell.write(ready.persist)
        assert shell.turn() == []
        shell.journal.baseline(1, 0, TOPIC_ID)
        ready = shell.journal.ready(shell.now, NOW_MS)
        assert ready.sends == []
    assert [mark.baseline_offset for mark in ready.persist.marks if isinstance(mark, m.State)] == [0]
    shell.write(ready.persist)
    assert shell.turn() == [batch]


@pytest.mark.parametrize("resend", [False, True])
def test_what_got_an_id_behind_a_skipped_batch_is_undecidable_too(resend: bool) -> None:
    """Whether a batch that has an id only now was sent under another one cannot be determined either."""
    shell = Shell()
    shell.journal.recovery.recover_marks(0, [m.Destination(1, "t", 0)])
    for position, identity in ((2, BatchId(7, 0, 2, 1)), (3, None)):
        shell.journal.recovery.recover_batch(
            position, 1, count=1, size_bytes=9, max_timestamp=NOW_MS, identity=identity
        )
    shell.journal.recovery.recover_lost(5, 0)
    shell.journal.recovery.recovered(shell.now)
    shell.journal.granted(8, 0)
    shell.turn()
    (first,) = shell.notices
    assert isinstance(first, j.Undecidable)
    shell.journal.decide(first.batch, resend=False)
    shell.turn()
    second = shell.notices[-1]
    assert isinstance(second, j.Undecidable)
    assert (second.batch.position, second.batch.state) == (3, j.BatchState.UNDECIDABLE)
    shell.journal.decide(second.batch, resend=resend)
    shell.turn()
    assert second.batch.state is (j.BatchState.PREPARED if resend else j.BatchState.COMMITTED)


def moved_before_the_baseline() -> tuple[Shell, j.Batch]:
    """The lane went to another cluster while the question for the baseline was on its way, so there is a second one."""
    shell = Shell()
    shell.journal.bind("A", assumed=None)
    (batch,) = shell.seal(1)
    shell.turn()
    assert shell.journal.bind("B", assumed=None)
    shell.journal.granted(7, 0)
    shell.turn()
    return shell, batch


def test_the_second_of_two_baselines_begins_nothing() -> None:
    """The question of before a move is answered after it, like the one of after it, and the disk fails twice.

    The partition has sent meanwhile, so its flow is another one when the second baseline would be durable.
    """
    shell, batch = moved_before_the_baseline()
    assert [ask.doubt for ask in shell.asks] == [(), ()]
    shell.journal.baseline(1, 5, TOPIC_ID)
    first = shell.journal.ready(shell.now, NOW_MS).persist
    shell.journal.baseline(1, 6, TOPIC_ID)
    shell.write(first)
    ready = shell.journal.ready(shell.now, NOW_MS)
    assert ready.sends == [batch]
    shell.lose(batch)
    shell.write(ready.persist)
    assert shell.turn() == []
    shell.wait()
    shell.judge(IdentityVerdict.DECIDED, 0)
    assert batch.state is j.BatchState.SENT
    shell.acked(batch, 6)
    assert batch.state is j.BatchState.COMMITTED


@pytest.mark.parametrize("code", [0, 6, 29])
def test_one_answer_is_enough_for_two_questions_for_the_baseline(code: int) -> None:
    """The other question fails before the baseline is durable."""
    shell, batch = moved_before_the_baseline()
    shell.journal.baseline(1, 5, TOPIC_ID)
    shell.journal.ask_failed(1, "gone", code=code, now=shell.now)
    assert shell.turn() == []
    assert shell.wait() == [batch]


def test_only_what_is_allowed_moves() -> None:
    batch = j.Batch(1, 1, 1, 1, 0)
    with pytest.raises(j.IllegalMoveError, match="ACKNOWLEDGED cannot happen to a batch that is SEALED"):
        batch.on(j.BatchEvent.ACKNOWLEDGED)
    assert set(j.STATE) == set(j.BatchState)
    assert {event for events in j.STATE.values() for event in events} == set(j.BatchEvent)


# -- without a disk in between -----------------------------------------------------------------------------------------


def test_on_error_sends_from_memory_and_spills_with_all_before_it() -> None:
    shell = Shell(durable_first=False)
    batches = shell.flowing(1, 1, 1, 1)
    assert [g.batches for g in shell.groups if g.batches] == []
    assert shell.sent == batches
    assert len(shell.resolved) == 1
    shell.journal.spill([batches[2]])
    ready = shell.journal.ready(shell.now, NOW_MS)
    assert ready.persist.batches == batches[1:3]
    shell.ack(batches[1], 1)  # while it is being written
    assert shell.journal.ready(shell.now, NOW_MS).resolved == []
    shell.write(ready.persist)
    shell.turn()
    assert m.Committed(1, 3, ((batches[1].position, 1),)) in shell.marks
    assert [r.batch for r in shell.resolved] == batches[:2]
    shell.ack(batches[2], 2)
    shell.acked(batches[3], 3)
    assert shell.journal.views.unfinished == 0


def test_on_error_what_is_being_written_gets_no_id_in_memory() -> None:
    """A write that failed may have left a copy without an id. The next incarnation would send that under another id."""
    shell = Shell(durable_first=False)
    (batch,) = shell.seal(1)
    shell.journal.spill([batch])
    persist = shell.journal.ready(shell.now, NOW_MS).persist  # its write fails
    shell.journal.granted(7, 0)
    shell.turn()
    shell.journal.baseline(1, 0, TOPIC_ID)
    assert shell.turn() == []
    assert batch.identity is None
    shell.write(persist)
    assert shell.turn() == [batch]
    assert batch.identity == BatchId(7, 0, 0, 1)


@pytest.mark.parametrize("code", [10, 87, 59])
def test_a_refusal_of_what_the_leader_has_is_not_believed(code: int) -> None:
    shell, batches = flowing(1, 2, 1)
    shell.view = ProducerView(0, 2, NOW_MS)
    shell.refuse(batches[1], code, log_start_offset=1)
    shell.lost(batches[2], sent=False)
    assert (shell.divides, shell.refusals()) == ([], [])
    assert shell.asks[-1].doubt == (BatchId(7, 0, 1, 2),)
    shell.judge(IdentityVerdict.DECIDED, 1, stable=True)
    assert shell.fates()[-1] == (batches[1].handle, j.Fate.COMMITTED)


def test_on_error_what_is_refused_in_memory_goes_to_disk_first() -> None:
    shell = Shell(durable_first=False, blocked_timeout_s=0.0)
    batches = shell.flowing(1, 1, 1)
    shell.refuse(batches[1], 29)
    shell.refused(batches[2], 29)
    assert all(b.position >= 0 for aside in shell.asides for b in aside.batches)
    assert [m.Rejected(b.position, 29, b.fault.message) for b in batches[1:]] == [
        mark for mark in shell.marks if isinstance(mark, m.Rejected)
    ]
    assert [fate for _, fate in shell.fates()] == [j.Fate.COMMITTED, j.Fate.REJECTED, j.Fate.REJECTED]


def test_on_error_one_record_that_is_refused_in_memory_goes_to_disk_first() -> None:
    """Its copy in rejected/ names its place in the spool."""
    shell = Shell(durable_first=False)
    batches = shell.flowing(1, 1)
    shell.refused(batches[1], 87)
    (aside,) = shell.asides
    assert aside.batches == (batches[1],)
    assert shell.put_aside_at == [batches[1].position]
    assert batches[1].position >= 0


def test_on_error_what_is_being_written_is_not_divided() -> None:
    """It was to be divided when it was only in memory, and the division had to wait. Then its write failed, and may have
    left a copy. The next incarnation would deliver that copy beside the parts.
    """
    shell = Shell(durable_first=False)
    (batch,) = shell.seal(2, partition=j.UNCHOSEN)
    shell.journal.learn_topic("t", TOPIC_ID, 2)
    (divide,) = shell.journal.ready(shell.now, NOW_MS).divides
    assert divide.is_due
    shell.journal.spill([batch])
    persist = shell.journal.ready(shell.now, NOW_MS).persist
    assert not divide.is_due
    shell.write(persist)
    assert divide.is_due
    assert shell.journal.ready(shell.now, NOW_MS).divides == [divide]


def test_on_error_what_the_disk_refuses_is_finished_when_it_is_acknowledged() -> None:
    """It waited for the disk, and held up the window of its partition."""
    shell = Shell(durable_first=False)
    batches = shell.flowing(1, 1, 1, 1)
    shell.journal.spill(batches[1:])
    persist = shell.journal.ready(shell.now, NOW_MS).persist
    shell.ack(batches[1], 1)
    shell.journal.write_failed(persist.batches)
    shell.turn()
    shell.ack(batches[2], 2)
    shell.turn()
    assert [r.batch for r in shell.resolved] == batches[:3]
    assert not any(isinstance(mark, m.Committed) for mark in shell.marks)
    persist.leave_out_void()
    assert persist.batches == batches[3:]
    shell.write(persist)
    shell.ack(batches[3], 3)
    shell.turn()
    assert m.Committed(1, 3, ((batches[3].position, 3),)) in shell.marks
    assert [r.batch for r in shell.resolved] == batches


def test_on_error_what_is_taken_as_delivered_waits_for_the_disk() -> None:
    """The log may not have it, so the next process would send a copy that the failed write left."""
    shell = Shell(durable_first=False)
    batches = shell.flowing(1, 1)
    shell.lose(batches[1])
    shell.turn()
    shell.wait()
    shell.now += 40
    shell.judge(IdentityVerdict.UNDECIDABLE, 0, stable=True)
    shell.journal.spill(batches[1:])
    persist = shell.journal.ready(shell.now, NOW_MS).persist
    assert persist.batches == batches[1:]
    shell.journal.write_failed(persist.batches)
    shell.journal.decide(batches[1], resend=False)
    shell.turn()
    assert [r.batch for r in shell.resolved] == batches[:1]
    shell.write(persist)
    shell.turn()
    assert [r.batch for r in shell.resolved] == batches
    assert m.Committed(1, 3, ((batches[1].position, -1),)) in shell.marks


def test_on_error_parts_of_a_durable_batch_wait_for_the_disk() -> None:
    shell = Shell(durable_first=False)
    batches = shell.flowing(1, 2)
    shell.journal.spill(batches)
    shell.turn()
    shell.refused(batches[1], 10)
    made = shell.journal.replaced(batches[1], [(1, 1, 50, NOW_MS, False)] * 2)
    ready = shell.journal.ready(shell.now, NOW_MS)
    assert ready.sends == []
    assert ready.persist.atomic
    shell.write(ready.persist)
    assert shell.turn() == made[:1]


def test_on_error_a_refusal_waits_for_the_disk() -> None:
    shell = Shell(durable_first=False)
    batches = shell.flowing(1, 2)
    shell.journal.spill(batches)
    ready = shell.journal.ready(shell.now, NOW_MS)
    shell.refuse(batches[1], 87)
    (ask,) = shell.journal.ready(shell.now, NOW_MS).asks
    assert ask.confirm
    shell.journal.confirmed(1, None)
    assert shell.journal.ready(shell.now, NOW_MS).divides == []
    shell.write(ready.persist)
    shell.turn()
    assert shell.divides == [j.Divide(batches[1], refused=True)]


def test_another_cluster_knows_nothing_of_the_old_offsets() -> None:
    shell = Keeps()
    batches = shell.flowing(5, 5)
    shell.acked(batches[1], 5)
    heir = shell.reborn()
    move(heir)
    heir.journal.granted(8, 0)
    heir.seal(1)
    heir.turn()
    assert heir.journal.views.last_acked_offset("t", 0) == -1
    assert heir.asks == [j.OutcomeAsk(1, (), -1, acked_before=False, read_log=False, fenced=False)]
    assert m.State(1, -1, -1, -1, bytes(16)) in heir.marks
    heir.journal.baseline(1, 1, TOPIC_ID)
    (sent,) = heir.turn()
    heir.lost(sent)
    heir.wait()
    assert heir.asks[-1].from_offset == 1


def remembered(shell: Shell) -> list[tuple[int, int]]:
    """(position, offset) of what is known to be in the log of the one partition."""
    return [
        (batch.position, batch.place) for batch in shell.journal._state.destinations.partitions[1].log.acked
    ]


def on_another_cluster(shell: Shell, offset: int = 0) -> j.Batch:
    """One batch, delivered to a log of which nothing is known."""
    shell.journal.granted(8, 0)
    (batch,) = shell.seal(1)
    shell.turn()
    shell.journal.baseline(1, offset, bytes(16))
    assert shell.turn() == [batch]
    shell.journal.acked(batch, offset, leader_epoch=0, now=shell.now, now_ms=NOW_MS)
    shell.turn()
    return batch


def two_leaders(shell: Shell) -> None:
    """Two batches are acknowledged, each by another leader, and the first leader's log was as it should be."""
    batches = shell.flowing(5, 5)
    shell.journal.acked(batches[1], 5, leader_epoch=4, now=shell.now, now_ms=NOW_MS)
    shell.turn()
    shell.journal.checked(shell.checks[0])
    shell.turn()


def move(shell: Shell) -> None:
    assert shell.journal.bind("B", assumed="A")


def forget(shell: Shell) -> None:
    assert shell.journal.forget("t")


@pytest.mark.parametrize("reset", [move, forget])
@pytest.mark.parametrize("restart", [False, True], ids=["alive", "restarted"])
def test_what_was_forgotten_stays_forgotten(reset: Callable[[Shell], None], restart: bool) -> None:
    """It was remembered by the next incarnation, which missed it in the new log, and sent it there."""
    shell: Shell = Keeps()
    two_leaders(shell)
    if restart:
        shell = shell.reborn()
    reset(shell)
    shell.turn()
    batch = on_another_cluster(shell)
    assert remembered(shell) == [(batch.position, 0)]
    for _ in range(2):
        shell = shell.reborn()
        shell.turn()
        assert remembered(shell) == [(batch.position, 0)]
        assert (shell.checks, shell.surveys, shell.journal.views.doubted) == ([], [], [])
        assert shell.journal.views.last_acked_offset("t", 0) == 0


@pytest.mark.parametrize("reset", [move, forget])
def test_what_was_forgotten_is_not_doubted_by_the_next_incarnation(reset: Callable[[Shell], None]) -> None:
    """A leader check that was never answered kept its segment, and asked the new log about the old leader."""
    shell = Keeps()
    batches = shell.flowing(5, 5)
    shell.journal.acked(batches[1], 5, leader_epoch=4, now=shell.now, now_ms=NOW_MS)
    shell.turn()
    assert shell.journal.views.doubted == [1]
    reset(shell)
    assert shell.journal.views.doubted == []
    shell.turn()
    heir = shell.reborn()
    heir.turn()
    assert (heir.checks, heir.journal.views.doubted) == ([], [])
    assert heir.journal.views.release_position == heir.position


def test_a_segment_that_begins_at_a_move_forgets_as_well() -> None:
    """Its snapshot is written before the group that says so, and may be all that a crash leaves."""
    shell = Keeps()
    two_leaders(shell)
    shell = shell.reborn()
    move(shell)
    shell.write(j.Persist(marks=shell.journal.snapshot()))
    heir = shell.reborn()
    heir.turn()
    assert (remembered(heir), heir.checks) == ([], [])
    assert heir.journal.views.last_acked_offset("t", 0) == -1


def test_a_lane_knows_by_itself_which_cluster_it_was_delivered_to() -> None:
    """The directory names the other one already: the lane was not open when it moved, or died in that moment."""
    shell = Keeps()
    assert not shell.journal.bind("A", assumed=None)
    two_leaders(shell)
    heir = shell.reborn()
    assert heir.journal.bind("B", assumed="B")
    heir.turn()
    assert remembered(heir) == []
    batch = on_another_cluster(heir)
    heir = heir.reborn()
    assert not heir.journal.bind("B", assumed="B")
    assert remembered(heir) == [(batch.position, 0)]


def test_a_new_segment_names_the_cluster_again() -> None:
    shell = Shell()
    assert shell.journal.snapshot() == []
    shell.journal.bind("A", assumed=None)
    assert shell.journal.snapshot() == [m.Cluster("A")]
    shell.turn()
    shell.journal.bind("A", assumed="A")
    shell.turn()
    assert shell.marks == [m.Cluster("A")], "once"


def test_what_waits_for_a_cluster_keeps_what_is_known_of_it() -> None:
    """Until it is delivered: the next incarnation forgets."""
    shell = Keeps()
    shell.journal.bind("A", assumed=None)
    batches = shell.flowing(5, 5)
    heir = shell.reborn()
    assert not heir.journal.bind("B", assumed="B")
    assert remembered(heir) == [(batches[0].position, 0)]
    heir.turn()
    heir.judge(IdentityVerdict.DECIDED, 1, stable=True, offsets={0: 5})
    assert heir.journal.views.unfinished == 0
    assert heir.reborn().journal.bind("B", assumed="B")


def test_what_was_accepted_before_any_cluster_was_met_goes_to_the_one_that_is() -> None:
    shell = Keeps()
    shell.journal.bind("A", assumed=None)
    two_leaders(shell)
    heir = shell.reborn()
    (batch,) = heir.seal(1)
    heir.turn()
    assert heir.journal.bind("B", assumed="A")
    heir.journal.granted(8, 0)
    heir.turn()
    heir.journal.baseline(1, 0, TOPIC_ID)
    assert heir.turn() == [batch]


def test_a_survey_of_the_old_log_says_nothing_of_the_new_one() -> None:
    shell = Keeps()
    batches = shell.flowing(5, 5)
    shell.acked(batches[1], 2)
    assert len(shell.surveys) == 1
    move(shell)
    shell.turn()
    assert shell.surveyed(1, Loss((0, 1), 0, 9, 10, {}, oldest_known=True), 0) == []
    assert shell.notices == []


def test_the_deleted_topics_id_is_forgotten_where_nothing_was_acknowledged_yet() -> None:
    """What a unit was prepared for is the topic that was there then."""
    shell = Shell()
    number = shell.journal.destination("t", 0)
    shell.journal.learn_topic("t", TOPIC_ID, 1)
    assert shell.journal.views.topic_id(number) == TOPIC_ID
    assert shell.journal.forget("t")
    assert not shell.journal.forget("t")
    other = bytes(15) + b"\1"
    shell.journal.learn_topic("t", other, 1)
    assert shell.journal.views.topic_id(number) == other


def test_a_partition_of_which_only_batches_are_known_is_remembered_by_later_segments() -> None:
    """Without offset, leader epoch or topic id its STATE would say that nothing was acknowledged."""
    shell = Shell()
    shell.journal.recovery.recover_marks(0, [m.Destination(1, "t", 0)])
    shell.journal.recovery.recover_batch(
        2, 1, count=3, size_bytes=9, max_timestamp=NOW_MS, identity=BatchId(7, 0, 0, 3)
    )
    shell.journal.recovery.recover_marks(5, [m.Committed(1, -1, ((2, -1),))])
    assert remembered(shell) == [(2, 0)]
    shell.journal.recovery.recover_marks(7, shell.journal.snapshot())
    assert remembered(shell) == [(2, 0)]


def test_answers_to_questions_that_nobody_asked_change_nothing() -> None:
    shell, batches = flowing(1, 1)
    shell.journal.baseline(1, 99, TOPIC_ID)
    shell.journal.ask_failed(1, "late", code=0, now=shell.now)
    shell.journal.judged(1, Judgement(IdentityVerdict.DECIDED, 1, "late"), stable=True, now=shell.now)
    shell.journal.retry(1)
    assert shell.turn() == []
    assert batches[1].state is j.BatchState.SENT
    assert shell.journal.views.producer_id == 7


def test_a_topic_that_the_metadata_does_not_know_is_rejected_after_a_while() -> None:
    shell = Shell(blocked_timeout_s=60.0)
    batches = shell.flowing(1, 1)
    shell.lost(batches[1], sent=False, code=3)
    shell.now += 61
    assert shell.wait() == [batches[1]]
    shell.lost(batches[1], sent=False, code=3)
    assert shell.refusals() == batches[1:]


def test_a_batch_in_doubt_is_not_rejected_by_missing_metadata_alone() -> None:
    shell, batches = flowing(1, 1)
    shell.lost(batches[1])
    shell.wait()
    assert shell.judge(IdentityVerdict.DECIDED, 0) == [batches[1]]
    shell.lost(batches[1], sent=False, code=17)
    shell.wait()
    assert shell.notices == []
    assert shell.asks[-1].doubt == (BatchId(7, 0, 1, 1),)


def test_unchosen_batches_before_a_hole_are_the_users_to_decide() -> None:
    shell = Shell()
    shell.journal.recovery.recover_marks(0, [m.Destination(1, "t", j.UNCHOSEN), m.Topic("t", TOPIC_ID, 1)])
    shell.journal.recovery.recover_batch(3, 1, count=1, size_bytes=9, max_timestamp=NOW_MS, identity=None)
    shell.journal.recovery.recover_lost(4, 1)
    shell.journal.recovery.recover_lost(5, 0)
    shell.journal.recovery.recovered(shell.now)
    shell.turn()
    (undecidable,) = shell.notices
    assert isinstance(undecidable, j.Undecidable)
    assert shell.divides == []
    shell.journal.decide(undecidable.batch, resend=True)
    ready = shell.journal.ready(shell.now, NOW_MS)
    assert ready.divides == [j.Divide(undecidable.batch, refused=False)]


# -- what a log that is read back says ---------------------------------------------------------------------------------


def test_a_batch_that_was_found_late_says_nothing_of_a_later_one() -> None:
    """It stands in front of the one that was acknowledged meanwhile: the next incarnation suspected a loss."""
    shell = Keeps()
    batches = shell.flowing(1, 1, 1)
    shell.ack(batches[2], 12)
    shell.lost(batches[1])
    shell.wait()
    shell.judge(IdentityVerdict.DECIDED, 1, stable=True, offsets={0: 11})
    assert shell.journal.views.last_acked_offset("t", 0) == 12
    heir = shell.reborn()
    heir.turn()
    assert (heir.surveys, heir.journal.views.doubted) == ([], [])
    assert heir.journal.views.last_acked_offset("t", 0) == 12


def test_an_ack_before_an_earlier_ones_is_suspected_by_the_next_incarnation_too() -> None:
    """Brokers without leader epochs: nothing else would tell that the log was cut."""
    shell = Keeps()
    batches = shell.flowing(1, 1, 1)
    for batch, offset in ((batches[2], 12), (batches[1], 5)):
        shell.journal.acked(batch, offset, leader_epoch=-1, now=shell.now, now_ms=NOW_MS)
    shell.turn()
    heir = shell.reborn()
    heir.turn()
    assert len(heir.surveys) == 1


def read_back(*groups: list[m.Mark | tuple[int, int]]) -> Shell:
    """A journal that read these: marks, and data batches as (records, base sequence), of destination 1."""
    shell = Shell()
    position = 0
    for group in groups:
        marks = [each for each in group if not isinstance(each, tuple)]
        shell.journal.recovery.recover_marks(position, marks)
        position += 1 + len(marks)
        for each in group:
            if isinstance(each, tuple):
                count, sequence = each
                identity = BatchId(7, 0, sequence, count)
                shell.journal.recovery.recover_batch(
                    position, 1, count=count, size_bytes=9, max_timestamp=NOW_MS, identity=identity
                )
                position += count
    shell.position = position
    return shell


HERE = m.Destination(1, "t", 0)


def test_a_snapshot_names_the_newest_finished_batch_and_says_nothing_of_later_ones() -> None:
    """Those were acknowledged while one between them is in doubt: the next incarnation took them for unsent offsets."""
    shell = read_back(
        [HERE, m.State(1, 0, -1, 3, TOPIC_ID), (2, 0), (3, 2), (4, 5)],
        [m.Committed(1, 3, ((3, 0),))],
        [m.Committed(1, 3, ((8, 5),))],
        [
            HERE,
            m.Identified(1, m.IdentityReason.FIRST, -1, (m.Identity(3, 7, 0, 0),)),
            m.Committed(1, 3, ((3, 0),)),
            m.State(1, 0, 1, 3, TOPIC_ID),
        ],
    )
    assert shell.journal.views.last_acked_offset("t", 0) == 8
    assert shell.journal.views.reach(1) == 2


def test_a_unit_of_which_only_the_place_is_left_says_nothing_of_the_one_that_ended_with_it() -> None:
    """Both ended in one group. The first one's segment is gone, so it is read only after the second."""
    unit = bytes(15) + b"\2"
    begun = m.Begun(unit, "name", 7, 0, 2)
    shell = read_back(
        [HERE, m.Unit(unit, 0, 1), (2, 0)],
        [m.Staged(begun, (m.Placed(1, 3, 2, 0, 6),))],
        [
            m.Ended(bytes(15) + b"\1", m.UnitOutcome.COMMITTED),
            m.Ended(unit, m.UnitOutcome.COMMITTED),
            m.Committed(1, 3, ((1, 5),)),
            m.Committed(1, 3, ((3, 6),)),
        ],
    )
    assert shell.journal.views.last_acked_offset("t", 0) == 7
    assert shell.journal.views.reach(1) == 8


def test_what_was_lost_and_had_left_the_spool_is_not_lost_again() -> None:
    """REVIVED names batches by their places in the spool. The newest one is known without: it was reported twice."""
    newest = m.Identity(3, 7, 0, 0)
    shell = read_back(
        [
            HERE,
            m.Identified(1, m.IdentityReason.FIRST, -1, (newest,)),
            m.Committed(1, 3, ((3, 4),)),
            m.State(1, 0, 7, 3, TOPIC_ID),
        ],
        [m.Revived(1, 2, ()), m.State(1, 0, -1, 4, TOPIC_ID)],
    )
    assert remembered(shell) == []
    assert shell.journal.views.last_acked_offset("t", 0) == -1


def test_the_newest_batch_is_told_though_the_one_before_stands_behind_it() -> None:
    """That one was copied forward while it waited: of the newest one nothing was left when its segment went."""
    shell = Shell()
    _, copied, last = shell.flowing(1, 1, 1)
    shell.journal.moved([copied], [shell.position], shell.position + 1)
    shell.position += 1
    shell.acked(copied, 1)
    assert m.Committed(1, 3, ((copied.position, 1),)) in shell.journal.tell_newest(shell.position)
    shell.acked(last, 2)
    assert last.position < copied.position
    assert m.Committed(1, 3, ((last.position, 2),)) in shell.journal.tell_newest(shell.position)
    assert shell.journal.tell_newest(shell.position) == [], "once"


@pytest.mark.parametrize("told", ["by a new segment", "separately"])
def test_what_the_disk_did_not_take_is_told_again(told: str) -> None:
    """The marks were made for a group that could not be written, and the spool deleted their batch afterwards."""
    shell, (_, last) = flowing(1, 1)
    shell.acked(last, 1)
    if told == "separately":
        assert shell.journal.tell_newest(shell.position)
    else:
        shell.journal.snapshot()
    assert shell.journal.tell_newest(shell.position) == []
    for fails in (lambda: shell.journal.write_failed([]), shell.journal.not_moved):
        fails()
        assert m.Committed(1, 3, ((last.position, 1),)) in shell.journal.tell_newest(shell.position)
        assert shell.journal.tell_newest(shell.position) == []


def offsets_alone(*, cause: Cause = Cause.LOG_END) -> Shell:
    """Of five batches the first three have left the spool; the log of their leader ends before the second."""
    shell = read_back(
        [HERE, m.State(1, 0, -1, 3, TOPIC_ID), (2, 6), (2, 8)],
        [m.Committed(1, 3, ((1, 0), (2, 2), (8, 4)))],
        [m.Committed(1, 3, ((3, 6), (5, 8)))],
    )
    shell.journal.recovery.recovered(shell.now)
    shell.suspected(1, cause, "epoch 3 ends at 2", from_offset=2)
    (survey,) = shell.surveys
    assert survey.ours == {7}
    assert list(survey.released.since(2) or ()) == [2, 4]
    return shell


def losses_told(shell: Shell, loss: Loss, **of: Any) -> list[tuple[int, int]]:
    shell.surveyed(1, loss, 10, epoch_end_offset=2, leader_epoch=5, **of)
    return [(each.first_offset, each.last_offset) for each in shell.notices if isinstance(each, j.AckedLoss)]


NOTHING = Loss((), -1, -1, 0, {}, oldest_known=False)


def test_what_is_known_by_its_offset_alone_is_lost_unless_it_is_seen_there() -> None:
    assert losses_told(offsets_alone(), NOTHING) == [(2, 9)]
    assert losses_told(offsets_alone(), replace(NOTHING, released_there=True)) == []
    assert losses_told(offsets_alone(), replace(NOTHING, ours_until=9)) == [(2, 9)]
    assert losses_told(offsets_alone(), replace(NOTHING, ours_until=10)) == []


def test_a_survey_knows_the_producer_ids_of_the_lanes_own_transactions() -> None:
    """A transactional id that a user gave may belong to another producer by now."""
    own, given = (m.Begun(bytes(16), name, number, 0, 1) for name, number in (("lane-0", 77), ("given", 78)))
    shell = read_back(
        [HERE, m.State(1, 0, -1, 3, TOPIC_ID), own, given, (2, 6)], [m.Committed(1, 3, ((5, 0),))]
    )
    shell.journal.units.name("lane")
    shell.journal.recovery.recovered(shell.now)
    shell.suspected(1, Cause.LOG_END, "epoch 3 ends at 0", from_offset=0)
    (survey,) = shell.surveys
    assert survey.ours == {7, 77}


def test_a_survey_takes_no_producer_id_of_another_cluster_for_its_own() -> None:
    own = m.Begun(bytes(16), "lane-0", 77, 0, 1)
    forgotten = m.State(1, -1, -1, -1, bytes(16))
    shell = read_back(
        [HERE, m.Cluster("A"), own],
        [forgotten, m.Cluster("B")],
        [m.State(1, 0, -1, 3, TOPIC_ID), (2, 6)],
        [m.Committed(1, 3, ((9, 0),))],
    )
    shell.journal.units.name("lane")
    shell.journal.recovery.recovered(shell.now)
    shell.suspected(1, Cause.LOG_END, "epoch 3 ends at 0", from_offset=0)
    (survey,) = shell.surveys
    assert survey.ours == {7}


def test_an_aborted_batch_at_the_offset_of_an_acknowledged_one_proves_nothing() -> None:
    survey = Survey((), 20, 10, 10, frozenset({7}), 10, [10])
    batch = LogBatch(10, 14, 7, 0, 0, BatchKind.TRANSACTIONAL)
    survey.page([batch, LogBatch(15, 15, 7, 0, -1, BatchKind.ABORT)], next_offset=20, log_start_offset=10)
    loss = survey.loss()
    assert (loss.ours_until, loss.released_there) == (-1, False)


def test_what_has_the_place_of_another_proves_nothing_of_that_one() -> None:
    """Batches of ours cover it all: in a topic that was created again, or behind an ack at an offset of before."""
    whole = replace(NOTHING, ours_until=10, released_there=True)
    assert losses_told(offsets_alone(cause=Cause.TOPIC_ID), whole) == [(2, 9)]
    assert losses_told(offsets_alone(), whole, same_topic=False) == [(2, 9)]
    assert losses_told(offsets_alone(cause=Cause.ACK), whole) == [(2, 9)]
    later = offsets_alone()
    later.journal._suspicions.check_offset_order(later.journal._state.destinations.partitions[1], 5)
    assert losses_told(later, whole) == [(2, 9)]


def test_what_a_check_follows_from_is_kept_until_it_is_answered() -> None:
    """The leader epoch before may stand in the first segment only, long before the batches that the log still has."""
    shell = read_back(
        [HERE, m.State(1, 0, 9, 3, TOPIC_ID)],
        [m.Topic("t", TOPIC_ID, 1)],
        [m.Committed(1, 4, ((1, 10),))],
    )
    shell.journal.recovery.recovered(shell.now)
    shell.turn()
    (check,) = shell.checks
    assert (check.leader_epoch, shell.journal.views.release_position) == (3, 0)
    shell.journal.checked(check)
    assert shell.journal.views.release_position == shell.position


# -- when an earlier life sent its last request ------------------------------------------------------------------------

BOOT = bytes(range(16))


def test_how_long_requests_of_an_earlier_life_may_still_be_appended() -> None:
    quiet = m.Quiet(1_030_000, 1_000_000, BOOT, 500_000)

    def alive(wall_ms: int, boot_id: bytes, boot_ms: int) -> float:
        return j.alive_s(quiet, j.Moment(wall_ms, boot_id, boot_ms), 30.0)

    assert j.alive_s(None, j.Moment(9_000_000, BOOT, 9_000_000), 30.0) == 30.0, "killed"
    assert j.alive_s(quiet, None, 30.0) == 30.0
    # The same boot: whatever was done to the wall clock.
    assert alive(0, BOOT, 510_000) == alive(9_000_000, BOOT, 510_000) == 20.0
    assert alive(1_010_000, BOOT, 600_000) == 0.0
    assert alive(9_000_000, BOOT, 400_000) == 30.0, "that clock went back"
    # Another boot, or machine: by the wall clock, which may be a minute off.
    other = bytes(16)
    assert alive(1_045_000, other, 9_000_000) == 30.0
    assert alive(1_070_000, other, 0) == 20.0
    assert alive(1_090_000, other, 0) == 0.0
    assert alive(900_000, other, 9_000_000) == 30.0, "it went back"
    unknown = m.Quiet(1_030_000, 1_000_000, other, 500_000)
    assert j.alive_s(unknown, j.Moment(1_045_000, other, 600_000), 30.0) == 30.0, "two unknown boots"
    assert j.alive_s(quiet, j.Moment(900_000, other, 0), 60.0) == 60.0


def test_a_life_that_closed_in_order_says_when_its_requests_are_dead() -> None:
    """Each life waited for a request timeout of its own: one that was shorter never delivered an old batch."""
    shell = Keeps()
    batches = shell.flowing(1, 1, age_s=7 * 3600.0)
    assert shell.sent == batches
    # The answer to the second is not there yet.
    quiet = shell.journal.quiet(shell.now, j.Moment(NOW_MS, BOOT, 1000))
    assert quiet is not None
    assert quiet.until_ms - quiet.written_ms == pytest.approx(30_000, abs=1)
    shell.write(j.Persist(marks=[quiet]))

    soon = shell.reborn(j.Moment(NOW_MS + 10_000, BOOT, 11_000))
    soon.turn()
    assert soon.judge(IdentityVerdict.DECIDED, 0) == []
    assert soon.waits[-1].at_least_s == pytest.approx(20, abs=0.1)
    assert soon.journal.quiet(soon.now, j.Moment(NOW_MS + 10_000, BOOT, 11_000)) is None, "what it said holds"

    later = shell.reborn(j.Moment(NOW_MS + 60_000, BOOT, 61_000))
    later.turn()
    before = len(later.marks)
    assert [batch.position for batch in later.judge(IdentityVerdict.DECIDED, 0)] == [batches[1].position]
    assert later.marks[before:] == [m.Quiet(-1, 0, bytes(16), 0)], "before anything is sent"

    # Killed now, it may have sent until then.
    heir = later.reborn(j.Moment(NOW_MS + 600_000, BOOT, 601_000))
    heir.turn()
    heir.judge(IdentityVerdict.DECIDED, 0)
    assert heir.waits[-1].at_least_s == pytest.approx(30)


def test_nothing_is_sent_before_the_log_stops_saying_that_nothing_is() -> None:
    shell = Keeps()
    batches = shell.flowing(1, 1, age_s=7 * 3600.0)
    quiet = shell.journal.quiet(shell.now, j.Moment(NOW_MS, BOOT, 1000))
    assert quiet is not None
    shell.write(j.Persist(marks=[quiet]))
    heir = shell.reborn(j.Moment(NOW_MS + 60_000, BOOT, 61_000))
    heir.turn()
    judgement = Judgement(IdentityVerdict.DECIDED, 0, "seen", {})
    heir.journal.judged(1, judgement, stable=False, leader_epoch=3, now=heir.now)
    ready = heir.journal.ready(heir.now, heir.now_ms)
    assert ready.sends == []
    assert [type(mark) for mark in ready.persist.marks] == [m.Quiet]
    assert heir.journal.ready(heir.now, heir.now_ms).sends == [], "not written yet"
    heir.write(ready.persist)
    assert [batch.position for batch in heir.turn()] == [batches[1].position]
    assert heir.journal.quiet(heir.now, j.Moment(NOW_MS + 60_000, BOOT, 61_000)) is not None


# -- each rule missing -------------------------------------------------------------------------------------------------

# By the name of the journal without a rule, the test above that misses it. Most are found by histories of the real engine
# as well: tests/simulation/mutants.py.
MISSED_BY: dict[str, Callable[[], None]] = {
    "SendsBeforeDurable": test_what_is_new_is_not_sent_while_it_is_written,
    "SendsBeforeIdDurable": test_what_is_durable_is_not_sent_before_its_id_is,
    "NamesWhatIsWritten": test_on_error_what_is_being_written_gets_no_id_in_memory,
    "WaitsForABrokenDisk": test_on_error_what_the_disk_refuses_is_finished_when_it_is_acknowledged,
    "WritesWhatIsDelivered": test_on_error_what_the_disk_refuses_is_finished_when_it_is_acknowledged,
    "SkipsWhatIsWritten": test_on_error_what_is_taken_as_delivered_waits_for_the_disk,
    "ResendsBlindly": test_a_lost_answer_is_asked_about_and_the_same_id_goes_again,
    "TrustsFormerLife": test_a_new_life_asks_about_the_old_ones_batches_first_and_keeps_their_ids,
    "NeverSeesGhosts": test_a_refusal_decides_nothing_while_an_older_request_may_arrive,
    "BelievesTooEarly": test_a_refusal_decides_nothing_while_an_older_request_may_arrive,
    "AsksOnlyOnce": test_an_old_batch_waits_for_what_may_still_arrive_and_is_looked_for_again,
    "NeverProbes": test_what_the_leader_has_is_probed_before_it_counts,
    "ReusesProducerId": test_a_new_life_has_no_producer_id_until_it_is_given_one,
    "KeepsEpoch": test_a_rejected_batch_leaves_no_gap,
    "FirstNotAlone": test_the_first_batch_of_an_id_goes_alone_then_five,
    "IgnoresAge": test_old_batches_go_one_by_one,
    "IgnoresAgeOfTheSent": test_an_old_batch_waits_for_what_may_still_arrive_and_is_looked_for_again,
    "WideWindow": test_the_first_batch_of_an_id_goes_alone_then_five,
    "ResolvesEarly": test_a_future_resolves_when_its_mark_is_durable,
    "ScansFromLastAck": test_a_later_ack_is_as_good_as_a_probe_and_the_scan_starts_before_the_doubt,
    "SnapshotsTooMuch": test_a_snapshot_is_enough_when_the_segments_before_it_are_gone,
    "ForgetsReplaced": test_divided_batches_come_back_in_place,
    "ForgetsRejected": test_finished_batches_do_not_come_back,
    "ForgetsCommitted": test_finished_batches_do_not_come_back,
    "ForgetsIdentified": test_divided_batches_come_back_in_place,
    "ForgetsState": test_nothing_is_sent_before_batch_and_baseline_are_durable,
    "ForgetsVoid": test_a_gap_is_a_loss_and_gets_new_ids_when_all_requests_are_dead,
    "TearsReplaced": test_a_batch_with_named_records_is_divided_in_place,
    "LosesPlace": test_parts_of_a_divided_batch_come_back_before_what_stood_behind_it,
    "RejectsWithoutCopy": test_a_rejection_that_cannot_be_kept_waits_and_is_tried_again,
    "RejectsFromMemory": test_on_error_one_record_that_is_refused_in_memory_goes_to_disk_first,
    "RejectsMissingTopic": test_a_topic_is_rejected_only_after_it_was_missing_without_a_break,
    "SumsMissingTime": test_a_missing_topic_is_told_after_a_while_and_a_missing_right_at_once,
    "ContinuesSequence": test_a_rejected_batch_leaves_no_gap,
    "SkipsSettling": test_after_a_failure_nothing_new_is_sent_until_all_have_their_answer,
    "RevivesWithoutMark": test_what_was_put_back_is_unfinished_to_the_next_life,
    "RevivesBehind": test_an_ack_at_an_old_offset_raises_suspicion_and_the_log_tells_what_is_lost,
    "RevivesAsCommitted": test_parts_of_a_divided_batch_come_back_before_what_stood_behind_it,
    "ForgetsSurvey": test_an_ack_at_an_old_offset_raises_suspicion_and_the_log_tells_what_is_lost,
    "IgnoresTopicId": test_what_a_topic_that_was_created_again_does_not_have_is_not_sent_to_it,
    "RevivesReleased": test_a_loss_names_what_is_not_sent_again,
    "ForgetsSuspicion": test_what_the_former_life_missed_is_looked_for_by_the_next,
    "BlindToAcks": test_the_first_ack_of_another_leader_has_the_one_before_checked,
    "AsksAboutTheNewestLeader": test_the_next_life_asks_about_each_leader_that_acknowledged_something,
    "BelievesTheFirstSearch": test_a_batch_is_searched_for_again_from_where_a_loss_begins,
    "HealsAtOnce": test_an_acknowledged_batch_is_not_put_back_while_an_older_request_with_it_may_arrive,
    "ContinuesBehindRevived": test_the_next_life_asks_about_what_was_sent_before_lost_ones_came_back_in_front_of_it,
    "ForgetsGivenUp": test_what_was_given_up_stays_given_up,
    "RemembersTheForgotten": functools.partial(test_what_was_forgotten_stays_forgotten, move, restart=False),
    "BelievesTheDirectory": test_a_lane_knows_by_itself_which_cluster_it_was_delivered_to,
    "TrustsOffsets": test_what_is_known_by_its_offset_alone_is_lost_unless_it_is_seen_there,
    "ForgetsItsTransactions": test_a_survey_knows_the_producer_ids_of_the_lanes_own_transactions,
    "RemembersOtherTransactions": test_a_survey_takes_no_producer_id_of_another_cluster_for_its_own,
    "TrustsTheAborted": test_an_aborted_batch_at_the_offset_of_an_acknowledged_one_proves_nothing,
    "TrustsItsOwn": test_what_has_the_place_of_another_proves_nothing_of_that_one,
    "ForgetsGaps": functools.partial(
        test_a_hole_that_is_explained_stays_so_when_the_segment_that_explains_it_is_gone, group_lost=False
    ),
    "ExpectsEveryGap": test_more_that_is_missing_than_what_is_explained_is_reported,
    "RemembersOtherTopics": functools.partial(test_what_was_forgotten_stays_forgotten, forget, restart=True),
}


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_a_journal_without_the_rule_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutants.MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, j.IllegalMoveError, LookupError, ValueError)):
        MISSED_BY[name]()


def test_the_list_of_mutants_is_whole() -> None:
    assert listed("journal") == [*mutants.MUTANTS]
