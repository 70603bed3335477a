"""Marks of units ⇄ control records, and the order in which `Units` does things."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.journal.queue import PartitionQueue

LANE = b"0123456789abcdef"
ID = st.binary(min_size=16, max_size=16)
NAME = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)
INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(0, 2**62)
POSITION = st.builds(m.Position, NAME, INT32, INT64, st.integers(-1, 9), NAME)
OFFSETS = st.builds(
    m.GroupOffsets,
    NAME,
    NAME,
    st.integers(-1, 9),
    st.none() | NAME,
    st.lists(POSITION, max_size=3).map(tuple),
)
BEGUN = st.builds(m.Begun, ID, NAME, INT64, st.integers(0, 2**15 - 1), st.sampled_from([1, 2]))
PLACED = st.builds(m.Placed, st.integers(1, 9), INT64, st.integers(1, 99), INT32, st.integers(-1, 2**62))
MARKS = st.one_of(
    st.builds(m.Unit, ID, st.just(0), st.just(0), NAME, st.lists(OFFSETS, max_size=2).map(tuple)),
    BEGUN,
    st.builds(m.Staged, BEGUN, st.lists(PLACED, max_size=3).map(tuple)),
    st.builds(m.Ended, ID, st.sampled_from(m.UnitOutcome), NAME),
)


@given(st.lists(MARKS, max_size=4))
def test_what_is_written_of_units_is_read_back(marks):
    group = m.Group(m.FORMAT_VERSION, LANE, 100, 90, True, False, False, ())
    assert m.decode_group(m.encode_group(group, marks, 1)) == (group, marks)


@pytest.mark.parametrize(
    "mark",
    [
        m.Unit(b"short", 0, 0),
        m.Unit(LANE, 0, 1),
        m.Begun(LANE, "", 1, 0, 1),
        m.Begun(LANE, "x", 1, 0, 3),
        m.Staged(m.Begun(LANE, "x", 1, 0, 1), (m.Placed(0, 0, 1, 0, 0),)),
        m.Ended(b"", m.UnitOutcome.COMMITTED),
    ],
)
def test_what_has_no_meaning_is_not_written(mark):
    group = m.Group(m.FORMAT_VERSION, LANE, 100, 90, True, False, False, ())
    with pytest.raises(m.MarkError):
        m.encode_group(group, [mark], 1)


def test_a_unit_stands_in_an_atomic_group_only():
    group = m.Group(m.FORMAT_VERSION, LANE, 100, 90, False, False, False, ())
    with pytest.raises(m.MarkError):
        m.encode_group(group, [m.Unit(LANE, 0, 0)], 1)


@dataclass(eq=False)
class Batch:
    handle: int
    destination: int
    count: int
    position: int
    size_bytes: int = 100


class Script:
    """Answers what it is asked in the order it is told to."""

    def __init__(self, protocol: int, most: int = 1) -> None:
        self.newest_reading = 0
        self.units = u.Units(lambda _: True, pool=2, most=most, newest_reading=lambda: self.newest_reading)
        self.units.name("lane")
        self.protocol = protocol
        self.epoch = 0
        self.actions: list[u.Action] = []
        self.offsets: dict[int, int] = {}
        self.handles = 0

    def seal(
        self, number: int, *destinations: int, name: str = "", offsets=(), readings=(), durable: bool = True
    ) -> u.Unit:
        unit = self.units.seal(bytes([number]) * 16, name, tuple(offsets), dict(readings))
        for destination in destinations:
            self.handles += 1
            unit.batches.append(Batch(self.handles, destination, 3, self.handles * 10))
        self.units.closed(unit)
        if durable:
            self.units.written(unit, number)
        return unit

    def turn(self) -> list[m.Mark]:
        """Whatever is to be done now; what is to be written is durable at once."""
        written = []
        for _ in range(9):
            self.actions += self.units.advance()
            written += self.units.out.take_marks()
            for unit in self.units.out.staging:
                self.units.staged(unit)
            for unit in self.units.out.ending:
                self.units.over(unit)
            self.units.out.staging.clear()
            self.units.out.ending.clear()
        return written

    def take(self, kind):
        found = [action for action in self.actions if isinstance(action, kind)]
        self.actions = [action for action in self.actions if not isinstance(action, kind)]
        return found

    def failed(self, *of, **more) -> list[m.Mark]:
        self.units.failed(*of, **more)
        return self.turn()

    def ended(self, *of, **more) -> list[m.Mark]:
        self.units.ended(*of, **more)
        return self.turn()

    def recovered(self) -> list[m.Mark]:
        self.units.recovered()
        return self.turn()

    def undescribed(self) -> None:
        """The coordinator cannot say what became of what is asked about."""
        for action in self.take(u.DescribeTxn):
            self.units.described(action, None)
        self.turn()

    def fence_all(self) -> None:
        self.undescribed()
        for action in self.take(u.InitProducerId):
            self.epoch += 1
            self.units.fenced(action, u.Grant(7, self.epoch, self.protocol))
        self.turn()

    def append(self, action: u.Produce) -> None:
        at = self.offsets.get(action.batch.destination, 0)
        self.offsets[action.batch.destination] = at + action.batch.count
        self.units.appended(action, at, 0)

    def prepare(self) -> None:
        """Everything up to, and not with, EndTxn."""
        for _ in range(9):
            self.turn()
            self.fence_all()
            for action in self.take(u.AddPartitions):
                self.units.joined(action)
            self.turn()
            for action in self.take(u.Produce):
                self.append(action)
            for action in self.take(u.CommitOffsets):
                self.units.noted(action)


@pytest.mark.parametrize("protocol", [1, 2])
def test_nothing_is_committed_before_the_mark_that_all_of_it_is_there_is_durable(protocol):
    script = Script(protocol)
    unit = script.seal(1, 1, 2)
    script.prepare()
    # Once more, and the mark stays unwritten.
    assert unit.phase is u.Phase.ENDING
    [end] = script.take(u.EndTxn)
    assert end.transaction.units == (unit,)

    late = Script(protocol)
    unit = late.seal(1, 1, 2)
    late.turn()
    late.fence_all()
    for action in late.take(u.AddPartitions):
        late.units.joined(action)
    late.actions += late.units.advance()
    for action in late.take(u.Produce):
        late.append(action)
    for action in late.take(u.CommitOffsets):
        late.units.noted(action)
    late.actions += late.units.advance()
    assert unit.phase is u.Phase.STAGING
    assert late.take(u.EndTxn) == []


def test_units_of_a_partition_are_committed_in_order_and_appended_side_by_side():
    script = Script(2)
    first, second = script.seal(1, 1), script.seal(2, 1)
    script.prepare()
    ends = script.take(u.EndTxn)
    assert [unit for end in ends for unit in end.transaction.units] == [first]
    assert second.phase is u.Phase.STAGED
    script.ended(ends[0], u.Grant(7, 99, 2))
    assert [unit for end in script.take(u.EndTxn) for unit in end.transaction.units] == [second]


def test_what_stands_behind_a_unit_that_is_prepared_again_is_prepared_again():
    script = Script(2)
    first, second = script.seal(1, 1), script.seal(2, 1)
    script.prepare()
    [end] = script.take(u.EndTxn)
    # It timed out; the marker does not say that it was committed.
    script.failed(end, 48, "INVALID_TXN_STATE")
    script.fence_all()
    [ask] = script.take(u.FindOutcome)
    script.units.outcome_found(ask, committed=False)
    script.prepare()
    [end] = script.take(u.EndTxn)
    assert end.transaction.units == (first,)
    script.units.ended(end, u.Grant(7, 99, 2))
    script.prepare()
    for again in script.take(u.RetryLater):
        script.units.again(again.action)
    script.prepare()
    [end] = script.take(u.EndTxn)
    assert end.transaction.units == (second,)
    assert second.places[second.batches[0].handle] > first.places[first.batches[0].handle]


def test_an_outcome_that_the_marker_shows_is_believed():
    script = Script(2)
    unit = script.seal(1, 1)
    script.prepare()
    [end] = script.take(u.EndTxn)
    script.failed(end, 90, "PRODUCER_FENCED")
    script.fence_all()
    [ask] = script.take(u.FindOutcome)
    script.units.outcome_found(ask, committed=True)
    assert [type(mark) for mark in script.turn()] == [m.Ended]
    assert unit.phase is u.Phase.OVER


@pytest.mark.parametrize("committed", [True, False])
def test_who_took_a_users_id_over_in_the_middle_of_a_commit_is_not_fenced_in_turn(committed):
    script = Script(2)
    unit = script.seal(1, 1, name="app")
    script.prepare()
    [end] = script.take(u.EndTxn)
    script.failed(end, 90, "PRODUCER_FENCED")
    assert script.take(u.InitProducerId) == []
    [ask] = script.take(u.FindOutcome)
    script.units.outcome_found(ask, committed=committed)
    marks = script.turn()
    assert script.take(u.InitProducerId) == []
    if committed:
        assert [(type(mark), mark.outcome) for mark in marks] == [(m.Ended, m.UnitOutcome.COMMITTED)]
    else:
        assert [action.unit for action in script.take(u.Refuse)] == [unit]
        assert unit.code == 90


@pytest.mark.parametrize("became", ["committed", "timed out", "taken over"])
def test_an_end_that_is_refused_with_protocol_1_is_asked_about_before_the_name_is(became):
    """The log says whether it was committed. Else it was open, and so nobody was granted the next epoch."""
    script = Script(1)
    unit = script.seal(1, 1, name="app")
    script.prepare()
    [end] = script.take(u.EndTxn)
    grant = unit.grant
    script.failed(end, 90, "PRODUCER_FENCED")
    assert script.take(u.InitProducerId) == []
    [ask] = script.take(u.FindOutcome)
    assert ask.by_log
    script.units.outcome_found(ask, committed=became == "committed")
    marks = script.turn()
    if became == "committed":
        assert [(type(mark), mark.outcome) for mark in marks] == [(m.Ended, m.UnitOutcome.COMMITTED)]
        assert script.take(u.InitProducerId) == []
        return
    [fence] = script.take(u.InitProducerId)
    late = u.Grant(grant.producer_id, grant.epoch + 1, 1)
    assert (fence.keep, fence.timed_out) == (late, True)
    if became == "taken over":
        assert not script.units.aborted(fence, 90)
        script.failed(fence, 90, "PRODUCER_FENCED")
        assert script.take(u.InitProducerId) == []
        assert [action.unit for action in script.take(u.Refuse)] == [unit]
        assert unit.reason == "PRODUCER_FENCED; another producer has taken the transactional id over"
        return
    twice(script, fence)
    script.units.fenced(fence, u.Grant(grant.producer_id, grant.epoch + 2, 1))
    for rest in script.take(u.RetryLater):
        script.units.again(rest.action)
    script.prepare()
    assert [unit for end in script.take(u.EndTxn) for unit in end.transaction.units] == [unit]


def test_an_id_whose_commit_was_once_unanswered_is_fenced_before_it_is_used_again():
    script = Script(1)
    script.seal(1, 1)
    script.prepare()
    [end] = script.take(u.EndTxn)
    script.failed(end, None, "no answer")
    script.units.again(script.take(u.RetryLater)[0].action)
    script.turn()
    [again] = script.take(u.EndTxn)
    script.ended(again, u.Grant(7, 1, 1))
    script.seal(2, 1)
    script.turn()
    assert [action.tid.name for action in script.take(u.InitProducerId)] == ["lane-0"]


def test_the_next_life_sends_the_same_commit():
    begun = m.Begun(LANE, "lane-1", 7, 3, 1)
    units = u.Units(lambda _: True, pool=2)
    units.name("lane")
    unit = units.replay.recover(m.Unit(LANE, 0, 1), 5, 5)
    unit.batches.append(Batch(1, 1, 3, 6))
    units.replay.recover_begun(begun)
    units.replay.recover_staged(m.Staged(begun, (m.Placed(1, 6, 3, 0, 40),)))
    units.recovered()
    actions = units.advance()
    [end] = [action for action in actions if isinstance(action, u.EndTxn)]
    assert (end.tid.name, end.transaction.grant) == ("lane-1", u.Grant(7, 3, 1))
    # What the earlier life may have left open elsewhere is ended at once.
    assert [a.tid.name for a in actions if isinstance(a, u.InitProducerId)] == ["lane-0"]


def test_a_unit_that_no_mark_calls_staged_is_prepared_again_behind_a_fence():
    begun = m.Begun(LANE, "lane-1", 7, 3, 1)
    units = u.Units(lambda _: True, pool=2)
    units.name("lane")
    unit = units.replay.recover(m.Unit(LANE, 0, 1), 5, 5)
    unit.batches.append(Batch(1, 1, 3, 6))
    units.replay.recover_staged(m.Staged(begun, (m.Placed(1, 6, 3, 0, 40),)))
    units.replay.recover_begun(m.Begun(LANE, "lane-0", 8, 0, 1))
    units.recovered()
    actions = units.advance()
    assert {type(action) for action in actions} == {u.InitProducerId}
    assert unit.phase is u.Phase.WAITING


def test_a_consumer_that_is_no_member_any_more_has_the_batch_dropped():
    script = Script(2)
    offsets = m.GroupOffsets("g", "me", 3, None, (m.Position("in", 0, 5),))
    unit = script.units.seal(LANE, "", (offsets,))
    unit.batches.append(Batch(1, 1, 3, 6))
    script.units.closed(unit)
    script.units.written(unit, 1)
    script.turn()
    script.fence_all()
    for action in script.take(u.Produce):
        script.append(action)
    script.turn()
    [marker] = script.take(u.CommitOffsets)
    script.units.noted(marker)
    script.turn()
    [note] = script.take(u.CommitOffsets)
    script.units.failed(note, 25, "UNKNOWN_MEMBER_ID")
    marks = script.turn()
    assert [mark.outcome for mark in marks if isinstance(mark, m.Ended)] == [m.UnitOutcome.DROPPED]
    assert script.take(u.EndTxn) == []
    assert script.take(u.InitProducerId)  # which aborts what was written


def test_a_transactional_id_is_used_again_only_when_the_outcome_before_is_durable():
    script = Script(1)
    script.units = u.Units(lambda _: True, pool=1, most=1)
    script.units.name("lane")
    first, second = script.seal(1, 1), script.seal(2, 1)
    script.prepare()
    [end] = script.take(u.EndTxn)
    script.units.ended(end, u.Grant(7, 1, 1))
    script.units.advance()
    assert first.phase is u.Phase.COMMITTED
    assert second.phase is u.Phase.WAITING
    script.turn()  # its mark is durable
    assert second.phase is not u.Phase.WAITING


def test_what_went_alone_is_in_order_though_its_log_was_cut():
    script = Script(2)
    script.offsets[1] = 1000
    script.seal(1, 1)
    script.prepare()
    script.ended(script.take(u.EndTxn)[0], u.Grant(7, 99, 2))
    script.offsets[1] = 5
    unit = script.seal(2, 1)
    script.prepare()
    assert [unit for end in script.take(u.EndTxn) for unit in end.transaction.units] == [unit]


def test_what_is_in_memory_before_a_unit_goes_to_the_disk_before_it():
    journal = j.Journal(j.Settings(durable_first=False))
    number = journal.destination("orders", 0)
    plain = journal.seal(number, count=1, size_bytes=80, max_timestamp=1)
    assert not journal.ready(0.0, 0).persist.batches
    unit = journal.units.seal(LANE, "", ())
    part = journal.seal(number, count=1, size_bytes=80, max_timestamp=1, unit=unit)
    journal.close_unit(unit)
    later = journal.seal(number, count=1, size_bytes=80, max_timestamp=1)
    journal.spill([later])
    runs = journal.ready(0.0, 0).persist.runs
    assert [batches for _, batches in runs] == [[plain], [part], [later]]


def test_a_new_unit_goes_through_none_of_those_that_wait(monkeypatch):
    """With `spool="on_error"` each commit went through all that waited for its partition."""
    seen = 0

    def counting(queue):
        nonlocal seen
        for batch in (*queue.near, *queue._fresh):
            seen += 1
            yield batch

    monkeypatch.setattr(PartitionQueue, "all", counting)
    journal = j.Journal(j.Settings(durable_first=False))
    number = journal.destination("orders", 0)
    for count in range(500):
        unit = journal.units.seal(count.to_bytes(16), "", ())
        journal.seal(number, count=1, size_bytes=80, max_timestamp=1, unit=unit)
        journal.close_unit(unit)
    assert seen < 500


def test_a_unit_is_not_staged_before_its_marker_is_taken():
    script = Script(2)
    unit = script.seal(1, 1)
    script.turn()
    script.fence_all()
    for action in script.take(u.Produce):
        script.append(action)
    script.turn()
    assert unit.phase is u.Phase.APPENDING
    [marker] = script.take(u.CommitOffsets)
    assert marker.index == -1
    script.units.noted(marker)
    script.turn()
    assert unit.phase is u.Phase.ENDING


def test_what_was_appended_behind_a_failed_unit_is_aborted_with_it():
    script = Script(2)
    first, second = script.seal(1, 1), script.seal(2, 1)
    for _ in range(3):
        script.turn()
        script.fence_all()
    [append, behind] = script.take(u.Produce)
    script.append(behind)
    script.failed(append, 47, "INVALID_PRODUCER_EPOCH")
    assert second.phase is u.Phase.WAITING
    assert {action.tid.name for action in script.take(u.InitProducerId)} == {"lane-0", "lane-1"}
    assert first.transaction is None


def under_way(script: Script, first: u.Unit) -> u.Produce:
    """Whatever can be begun is, and only the first unit goes on: its batch is on its way."""
    for _ in range(4):
        script.turn()
        script.fence_all()
        joins = script.take(u.AddPartitions)
        for join in joins:
            if join.transaction.units == (first,):
                script.units.joined(join)
            else:
                script.actions.append(join)
    [append] = [action for action in script.take(u.Produce) if action.transaction.units == (first,)]
    return append


def rest_of(script: Script) -> None:
    """Everything is answered well until there is nothing more to do; whatever was staged before was not committed."""
    for _ in range(20):
        script.prepare()
        for again in script.take(u.RetryLater):
            script.units.again(again.action)
        for end in script.take(u.EndTxn):
            script.units.ended(end, u.Grant(7, 99, 2))
        for ask in script.take(u.FindOutcome):
            script.units.outcome_found(ask, committed=False)


def test_what_came_into_the_log_before_an_earlier_unit_is_prepared_again():
    script = Script(2)
    first, second = script.seal(1, 1), script.seal(2, 1)
    for _ in range(4):
        script.turn()
        script.fence_all()
    early, late = script.take(u.Produce)
    assert (early.transaction.units, late.transaction.units) == ((first,), (second,))
    script.units.failed(early, 19, "NOT_ENOUGH_REPLICAS")
    script.append(late)
    script.turn()
    [again] = script.take(u.RetryLater)
    script.units.again(again.action)
    script.prepare()
    assert second.places[late.batch.handle] < first.places[early.batch.handle]
    rest_of(script)
    assert not len(script.units.unfinished)
    assert second.places[late.batch.handle] > first.places[early.batch.handle]


@pytest.mark.parametrize("protocol", [1, 2])
def test_what_waits_behind_a_unit_that_is_prepared_again_leaves_it_a_transactional_id(protocol):
    script = Script(protocol)
    first, second, third = script.seal(1, 1), script.seal(2, 1, 2), script.seal(3, 2)
    append = under_way(script, first)
    assert (second.phase, second.transaction.issued, third.phase) == (u.Phase.BEGUN, False, u.Phase.WAITING)
    # The third one would have taken the id of the first one, and the second one keeps the other: nobody could go on.
    script.units.failed(append, 47, "INVALID_PRODUCER_EPOCH")
    rest_of(script)
    assert not len(script.units.unfinished)


def test_a_partition_that_is_away_holds_no_transactional_id_that_others_need():
    script = Script(2)
    away, behind = script.seal(1, 1), script.seal(2, 1, 2)
    append = under_way(script, away)
    other = script.seal(3, 5)
    script.turn()
    assert (behind.phase, other.phase) == (u.Phase.BEGUN, u.Phase.WAITING)
    script.units.failed(append, 3, "UNKNOWN_TOPIC_OR_PARTITION")
    script.prepare()
    assert (away.phase, behind.phase) == (u.Phase.WAITING, u.Phase.WAITING)
    [end] = script.take(u.EndTxn)
    assert end.transaction.units == (other,)


def test_a_life_that_finds_all_ids_behind_a_unit_that_has_none_asks_what_became_of_them():
    script = Script(2)
    ids = [bytes([number]) * 16 for number in (1, 2, 3)]
    for at, unit_id in enumerate(ids):
        unit = script.units.replay.recover(m.Unit(unit_id, 0, 1), at, at)
        unit.batches.append(Batch(at + 1, 1, 3, at * 10))
    for name, at in (("lane-0", 1), ("lane-1", 2)):
        begun = m.Begun(ids[at], name, 7, 3, 2)
        script.units.replay.recover_staged(m.Staged(begun, (m.Placed(1, at * 10, 3, 0, at * 3),)))
    script.units.recovered()
    rest_of(script)
    assert not len(script.units.unfinished)


@pytest.mark.parametrize("released", [True, False])
@pytest.mark.parametrize(("place", "commits"), [(42, False), (43, True)])
def test_what_is_staged_in_front_of_what_was_committed_before_it_is_asked_about(place, commits, released):
    """Of a batch whose segment is gone, its STAGED mark, which was repeated, says where it ends."""
    script = Script(2)
    if not released:
        before = script.units.replay.recover(m.Unit(LANE, 0, 1), 5, 5)
        before.batches.append(Batch(1, 1, 3, 6))
    script.units.replay.recover_staged(
        m.Staged(m.Begun(LANE, "lane-0", 7, 3, 2), (m.Placed(1, 6, 3, 0, 40),))
    )
    assert (script.units.replay.recover_ended(m.Ended(LANE, m.UnitOutcome.COMMITTED, "")) is None) is released
    unit = script.units.replay.recover(m.Unit(bytes([2]) * 16, 0, 1), 20, 20)
    unit.batches.append(Batch(2, 1, 3, 21))
    begun = m.Begun(unit.unit_id, "lane-1", 7, 3, 2)
    script.units.replay.recover_staged(m.Staged(begun, (m.Placed(1, 21, 3, 0, place),)))
    script.recovered()
    assert [unit for end in script.take(u.EndTxn) for unit in end.transaction.units] == [unit] * commits
    assert unit.phase is (u.Phase.ENDING if commits else u.Phase.ASKING)


def test_what_was_divided_keeps_its_turn_in_the_next_life():
    """Its parts stand in the log after what was accepted later."""
    script = Script(2)
    later = script.units.replay.recover(m.Unit(bytes([2]) * 16, 0, 1), 20, 20)
    divided = script.units.replay.recover(m.Unit(bytes([1]) * 16, 0, 1), 30, 10)
    for handle, unit in enumerate((later, divided)):
        unit.batches.append(Batch(handle, 1, 3, unit.position + 1))
    script.units.recovered()
    script.prepare()
    assert [unit for end in script.take(u.EndTxn) for unit in end.transaction.units] == [divided]
    assert divided.number < later.number


def test_a_staged_unit_has_its_batches_in_the_order_in_which_they_were_staged():
    """The first one says where the marker of the transaction is looked for."""
    script = Script(2)
    unit = script.units.replay.recover(m.Unit(LANE, 0, 2), 5, 5)
    unit.batches += [Batch(1, 1, 3, 6), Batch(2, 2, 3, 9)]
    places = (m.Placed(2, 9, 3, 0, 40), m.Placed(1, 6, 3, 0, 70))
    script.units.replay.recover_staged(m.Staged(m.Begun(LANE, "lane-0", 7, 3, 2), places))
    assert [batch.position for batch in unit.batches] == [9, 6]


@pytest.mark.parametrize("committed", [True, False])
def test_what_the_coordinator_knows_is_not_asked_for_behind_a_fence(committed):
    script = Script(2)
    unit = script.seal(1, 1)
    script.prepare()
    [end] = script.take(u.EndTxn)
    script.failed(end, 90, "PRODUCER_FENCED")
    assert script.take(u.InitProducerId) == []
    [look] = script.take(u.DescribeTxn)
    script.units.described(look, committed)
    marks = script.turn()
    assert script.take(u.FindOutcome) == []
    if committed:
        assert [(type(mark), mark.outcome) for mark in marks] == [(m.Ended, m.UnitOutcome.COMMITTED)]
    # In any case its id is used again only under a new grant.
    assert end.tid.fresh
    script.prepare()
    ends = [unit for each in script.take(u.EndTxn) for unit in each.transaction.units]
    assert ends == ([] if committed else [unit])


def test_without_a_description_the_marker_is_asked_behind_a_fence():
    script = Script(2)
    script.seal(1, 1)
    script.prepare()
    [end] = script.take(u.EndTxn)
    script.failed(end, 90, "PRODUCER_FENCED")
    [look] = script.take(u.DescribeTxn)
    script.units.described(look, None)
    script.units.described(look, True)  # too late
    script.turn()
    [fence] = script.take(u.InitProducerId)
    script.units.fenced(fence, u.Grant(7, 99, 2))
    script.turn()
    assert len(script.take(u.FindOutcome)) == 1


def test_the_end_of_another_transaction_decides_nothing():
    for epoch in (4, 5, 7, 8):
        for state in ("CompleteCommit", "CompleteAbort"):
            assert u.outcome_of(u.Grant(7, 5, 2), state, 7, epoch, own=True) is None


@pytest.mark.parametrize(
    ("protocol", "state", "epoch", "own", "told"),
    [
        (2, "CompleteCommit", 6, True, True),
        (2, "PrepareCommit", 6, False, True),
        (2, "CompleteAbort", 6, False, None),
        (2, "PrepareAbort", 6, True, False),
        # Of the transaction before, or one that began since.
        (2, "CompleteCommit", 5, True, None),
        (2, "CompleteCommit", 7, True, None),
        (2, "CompleteAbort", 7, True, None),
        (2, "Ongoing", 5, True, None),
        (2, "Empty", 6, True, None),
        (1, "CompleteAbort", 6, True, False),
        # Who has taken the id over may have aborted a transaction of his own.
        (1, "CompleteAbort", 6, False, None),
        # Perhaps of the transaction before, which had the same epoch.
        (1, "CompleteCommit", 5, True, None),
        (1, "CompleteAbort", 5, True, None),
        (1, "PrepareEpochFence", 6, True, None),
    ],
)
def test_a_description_is_believed_only_where_its_epoch_says_of_which_transaction_it_is(
    protocol, state, epoch, own, told
):
    grant = u.Grant(7, 5, protocol)
    assert u.outcome_of(grant, state, 7, epoch, own=own) is told
    assert u.outcome_of(grant, state, 8, epoch, own=own) is None


def test_what_is_decided_elsewhere_does_not_wait_behind_what_is_left():
    script = Script(2)
    for at in range(3):
        unit = script.units.replay.recover(m.Unit(bytes([at + 1]) * 16, 0, 1), at, at)
        unit.batches.append(Batch(at + 1, (1, 1, 2)[at], 3, at * 10))
    for name, at in (("lane-0", 1), ("lane-1", 2)):
        begun = m.Begun(bytes([at + 1]) * 16, name, 7, 3, 2)
        script.units.replay.recover_staged(m.Staged(begun, (m.Placed(at, at * 10, 3, 0, at * 3),)))
    script.units.decide(None, frozenset())
    script.units.recovered()
    first, behind, alone = script.units.unfinished
    assert [script.units.held_up(unit) for unit in (first, behind, alone)] == [False, True, False]
    script.turn()
    assert [unit for end in script.take(u.EndTxn) for unit in end.transaction.units] == [alone]


def test_a_unit_without_anything_is_committed_without_a_transaction():
    script = Script(2)
    empty = script.units.replay.recover(m.Unit(bytes([1]) * 16, 0, 0), 10, 10)
    other = script.units.replay.recover(m.Unit(bytes([2]) * 16, 0, 0), 20, 20)
    other.batches.append(Batch(1, 1, 3, 30))
    script.units.recovered()
    [ended] = [mark for mark in script.turn() if isinstance(mark, m.Ended)]
    assert (ended.unit_id, ended.outcome) == (empty.unit_id, m.UnitOutcome.COMMITTED)
    script.prepare()
    assert [unit for end in script.take(u.EndTxn) for unit in end.transaction.units] == [other]


def test_a_unit_that_was_staged_a_second_time_is_staged_though_its_first_id_is_anothers():
    script = Script(2)
    moved, other = (bytes([number]) * 16 for number in (1, 2))
    for at, unit_id in enumerate((moved, other)):
        unit = script.units.replay.recover(m.Unit(unit_id, 0, 1), at, at)
        unit.batches.append(Batch(at + 1, at, 3, at * 10))
    for unit_id, name, epoch in ((moved, "lane-0", 3), (moved, "lane-1", 5), (other, "lane-0", 4)):
        begun = m.Begun(unit_id, name, 7, epoch, 2)
        place = m.Placed(unit_id[0] - 1, (unit_id[0] - 1) * 10, 3, 0, epoch * 3)
        script.units.replay.recover_begun(begun)
        script.units.replay.recover_staged(m.Staged(begun, (place,)))
    script.recovered()
    # Both may have been committed: the same EndTxn again, and nothing is prepared again.
    ends = {
        end.transaction.unit_id: (end.tid.name, end.transaction.grant.epoch) for end in script.take(u.EndTxn)
    }
    assert ends == {moved: ("lane-1", 5), other: ("lane-0", 4)}


def twice(script, fence):
    """A successor that has just begun to take over leaves the same epoch, until it comes again."""
    assert script.units.aborted(fence, 0) is None
    script.turn()
    for again in script.take(u.RetryLater):
        script.units.again(again.action)
    script.turn()
    assert script.take(u.InitProducerId) == [fence]
    assert script.units.aborted(fence, 0)


LATE = u.Grant(7, 2, 1)
"""What a time-out makes of the grant of the first unit that is prepared."""


def failed_while_open(protocol, code, *, opened=True):
    """A unit of a name that the user gave, and how its id is asked for again after that."""
    script = Script(protocol)
    unit = script.seal(1, 1, name="app")
    script.turn()
    script.fence_all()
    if opened and protocol == 1:
        [join] = script.take(u.AddPartitions)
        script.units.joined(join)
        script.turn()
    [late] = script.take(u.Produce) or script.take(u.AddPartitions)
    script.failed(late, code, "of the test")
    [fence] = script.take(u.InitProducerId)
    return script, unit, fence


@pytest.mark.parametrize("code", [3, 47, 90])
def test_what_timed_out_is_told_from_what_was_taken_over_by_the_epoch_that_nobody_was_granted(code):
    script, unit, fence = failed_while_open(1, code)
    if code == 3:
        assert (fence.keep, fence.timed_out) == (u.Grant(7, 1, 1), False)
        assert not script.units.aborted(fence, 90)
        script.failed(fence, 90, "PRODUCER_FENCED")
        [fence] = script.take(u.InitProducerId)
    assert (fence.keep, fence.timed_out) == (LATE, True)
    script.units.unanswered(fence, ended=True)
    twice(script, fence)
    script.units.fenced(fence, u.Grant(7, 3, 1))
    for rest in script.take(u.RetryLater):
        script.units.again(rest.action)
    script.turn()
    assert [unit for join in script.take(u.AddPartitions) for unit in join.transaction.units] == [unit]


@pytest.mark.parametrize(("protocol", "code"), [(1, 3), (1, 90), (2, 3), (2, 90)])
def test_who_was_taken_over_asks_no_further(protocol, code):
    """InitProducerId would end the successor's transaction."""
    script, unit, fence = failed_while_open(protocol, code)
    fences = [fence]
    while fences:
        [fence] = fences
        assert not script.units.aborted(fence, 90)
        script.failed(fence, 90, "PRODUCER_FENCED")
        fences = script.take(u.InitProducerId)
    assert [action.unit for action in script.take(u.Refuse)] == [unit]
    assert unit.reason == "PRODUCER_FENCED; another producer has taken the transactional id over"


@pytest.mark.parametrize("doubt", ["not opened", "end unanswered", "end carried out"])
def test_where_the_next_epoch_may_be_anothers_it_is_not_tried(doubt):
    opened = doubt != "not opened"
    script, unit, fence = failed_while_open(1, 3 if opened else 47, opened=opened)
    assert not fence.timed_out
    if doubt == "end unanswered":
        script.units.unanswered(fence, ended=True)
    elif doubt == "end carried out":
        assert script.units.aborted(fence, 0)
    script.failed(fence, 90, "PRODUCER_FENCED")
    assert script.take(u.InitProducerId) == []
    assert [action.unit for action in script.take(u.Refuse)] == [unit]
    assert "another producer has taken" in unit.reason
    assert "longer than transaction_timeout_ms" in unit.reason


def test_a_new_epoch_whose_answer_was_lost_is_asked_for_again():
    script, _, fence = failed_while_open(1, 3)
    assert script.units.aborted(fence, 0)
    script.units.unanswered(fence, ended=False)
    script.units.failed(fence, None, "no answer")
    assert script.units.aborted(fence, 90)


def test_a_pause_that_ends_after_the_unit_was_refused_does_not_refuse_it_again():
    script, unit, fence = failed_while_open(2, 90)
    [rest] = [again.action for again in script.take(u.RetryLater)]
    script.failed(fence, 90, "PRODUCER_FENCED")
    assert [action.unit for action in script.take(u.Refuse)] == [unit]
    script.units.again(rest)
    script.turn()
    assert script.take(u.Refuse) == []
    script.units.put_aside(unit, kept=False, reason="the disk is full")
    script.turn()
    [later] = [again.action for again in script.take(u.RetryLater)]
    script.units.again(later)
    script.turn()
    assert [action.unit for action in script.take(u.Refuse)] == [unit]


def test_each_time_that_the_records_cannot_be_saved_counts():
    """The next pauses are longer, and the log says which attempt it was."""
    script, _, fence = failed_while_open(2, 90)
    [rest] = [again.action for again in script.take(u.RetryLater)]
    script.units.again(rest)
    script.failed(fence, 90, "PRODUCER_FENCED")
    attempts = []
    for _ in range(3):
        [refuse] = script.take(u.Refuse)
        script.units.put_aside(refuse.unit, kept=False, reason="the disk is full")
        script.turn()
        [later] = script.take(u.RetryLater)
        attempts.append(later.attempt)
        script.units.again(later.action)
        script.turn()
    assert attempts == [attempts[0], attempts[0] + 1, attempts[0] + 2]
