"""Units with offsets of consumer groups: their order, what they share, and what a dropped one takes along."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe import units as u

sys.path.insert(0, str(Path(__file__).parent))
from test_units import Batch, Script, rest_of

GROUP = "g"
UNKNOWN_MEMBER_ID = 25
ILLEGAL_GENERATION = 22


def to(offset: int, partition: int = 0, *, member: str = "me", generation: int = 3, group: str = GROUP):
    """The group is moved to this offset of "in"."""
    positions = (m.Position("in", partition, offset),)
    return m.GroupOffsets(group, member, generation, None, positions)


def of(number: int, start: int = -1, *, partition: int = 0):
    """Of which reading that is."""
    return {(GROUP, "in", partition): u.Reading(number, start)}


def answer_notes(script: Script, kind: int | None = None) -> list[u.CommitOffsets]:
    """Offsets (or with `kind` -1 the marker only) are written."""
    notes = script.take(u.CommitOffsets)
    for note in notes:
        if kind is None or note.index == kind:
            script.units.noted(note)
        else:
            script.actions.append(note)
    return notes


def until_notes(script: Script) -> list[u.CommitOffsets]:
    """All is answered but requests for offsets of the user's groups; those that are asked for."""
    for _ in range(6):
        script.turn()
        script.fence_all()
        for join in script.take(u.AddPartitions):
            script.units.joined(join)
        script.turn()
        for append in script.take(u.Produce):
            script.append(append)
        answer_notes(script, -1)
    script.turn()
    return [note for note in script.actions if isinstance(note, u.CommitOffsets)]


def commit_first(script: Script) -> u.Unit:
    [end] = script.take(u.EndTxn)
    script.ended(end, u.Grant(7, 99, script.protocol))
    [unit] = end.transaction.units
    return unit


def outcomes(marks) -> list[tuple[int, m.UnitOutcome]]:
    return [(mark.unit_id[0], mark.outcome) for mark in marks if isinstance(mark, m.Ended)]


@pytest.mark.parametrize("protocol", [1, 2])
def test_units_that_move_the_same_offset_are_committed_in_order(protocol):
    script = Script(protocol)
    first = script.seal(1, 1, offsets=[to(10)])
    second = script.seal(2, 2, offsets=[to(20)])
    until_notes(script)
    answer_notes(script)
    # The batches of the second are in their log, and nothing else of it is: the first is not committed.
    assert len(second.places) == 1
    script.prepare()
    [end] = [each for each in script.actions if isinstance(each, u.EndTxn)]
    assert end.transaction.units == (first,)
    assert commit_first(script) is first
    script.prepare()
    assert commit_first(script) is second


@pytest.mark.parametrize("protocol", [1, 2])
def test_an_offset_is_written_when_all_before_it_are_committed(protocol):
    """Of two offsets a group keeps the one that was written last, whichever was committed last."""
    script = Script(protocol)
    first = script.seal(1, 1, offsets=[to(10)])
    second = script.seal(2, 2, offsets=[to(20)])
    assert [unit for note in until_notes(script) for unit in note.transaction.units] == [first]
    answer_notes(script)
    script.turn()
    assert script.take(u.CommitOffsets) == []
    commit_first(script)
    script.turn()
    assert [unit for note in script.take(u.CommitOffsets) for unit in note.transaction.units] == [second]


def test_units_that_move_different_partitions_of_a_group_do_not_wait_for_each_other():
    script = Script(2)
    first = script.seal(1, 1, offsets=[to(10, partition=0)])
    second = script.seal(2, 2, offsets=[to(20, partition=1)])
    assert [unit for note in until_notes(script) for unit in note.transaction.units] == [first, second]


def test_a_unit_that_has_nothing_but_offsets_has_its_turn():
    script = Script(2)
    first = script.seal(1, 1, offsets=[to(10)])
    bare = script.seal(2, offsets=[to(20)])
    last = script.seal(3, 1, offsets=[to(30)])
    ended = []
    for _ in range(3):
        script.prepare()
        ended.append(commit_first(script))
    assert ended == [first, bare, last]
    assert len(script.units.lines) == 0


def test_nothing_is_begun_after_a_unit_of_the_group_that_waits():
    script = Script(2)
    first = script.seal(1, 1, offsets=[to(10)])
    second = script.seal(2, 2, offsets=[to(20)])
    until_notes(script)
    [note] = script.take(u.CommitOffsets)
    script.failed(note, 47, "INVALID_PRODUCER_EPOCH")
    assert (first.phase, second.phase) == (u.Phase.WAITING, u.Phase.WAITING)
    rest_of(script)
    assert not len(script.units.unfinished)


def test_an_offset_that_was_not_answered_is_aborted_where_it_could_come_late():
    """With protocol 1 it would be taken into the next transaction of its producer id."""
    script = Script(1)
    script.seal(1, 1, offsets=[to(10)])
    [note] = until_notes(script)
    script.take(u.CommitOffsets)
    script.failed(note, None, "no answer")
    assert script.take(u.CommitOffsets) == []
    assert [fence.tid for fence in script.take(u.InitProducerId)] == [note.tid]

    script = Script(2)
    unit = script.seal(1, 1, offsets=[to(10)])
    [note] = until_notes(script)
    script.take(u.CommitOffsets)
    script.units.failed(note, None, "no answer")
    [again] = script.take(u.RetryLater) or [
        each for each in script.units.advance() if isinstance(each, u.RetryLater)
    ]
    assert (again.action, unit.phase) == (note, u.Phase.APPENDING)


# -- one transaction ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [1, 2])
def test_units_of_one_consumer_share_a_transaction_with_the_newest_offsets(protocol):
    script = Script(protocol, most=16)
    both = m.GroupOffsets(GROUP, "me", 3, None, (m.Position("in", 0, 10), m.Position("in", 1, 4)))
    units = [
        script.seal(1, 1, offsets=[both]),
        script.seal(2, 2, offsets=[to(20)]),
        script.seal(3, offsets=[to(7, partition=1)]),
        script.seal(4, 1, offsets=[to(30)]),
    ]
    [note] = until_notes(script)
    assert note.transaction.units == tuple(units)
    [offsets] = note.transaction.offsets
    assert {(at.partition, at.offset) for at in offsets.positions} == {(0, 30), (1, 7)}
    assert (offsets.group, offsets.member_id, offsets.generation_id) == (GROUP, "me", 3)
    answer_notes(script)
    marks = script.turn()
    assert [mark.begun.unit_id[0] for mark in marks if isinstance(mark, m.Staged)] == [1, 2, 3, 4]
    [end] = script.take(u.EndTxn)
    script.units.ended(end, u.Grant(7, 99, protocol))
    marks = script.turn()
    assert outcomes(marks) == [(number, m.UnitOutcome.COMMITTED) for number in (1, 2, 3, 4)]
    assert len(script.units.lines) == 0


@pytest.mark.parametrize(
    "other",
    [
        to(20, member="you"),
        to(20, generation=4),
        m.GroupOffsets(GROUP, "me", 3, "static", (m.Position("in", 0, 20),)),
    ],
    ids=["another member", "another generation", "a static member"],
)
def test_offsets_in_another_name_have_their_own_transaction(other):
    script = Script(2, most=16)
    script.seal(1, 1, offsets=[to(10)])
    script.seal(2, 1, offsets=[other])
    [note] = until_notes(script)
    assert not note.transaction.is_shared


def test_offsets_of_another_reading_have_their_own_transaction():
    script = Script(2, most=16)
    script.seal(1, 1, offsets=[to(10)], readings=of(1, 0))
    script.seal(2, 1, offsets=[to(20)], readings=of(2, 10))
    [note] = until_notes(script)
    assert not note.transaction.is_shared


def test_offsets_of_other_groups_go_along():
    script = Script(2, most=16)
    units = [
        script.seal(1, 1, offsets=[to(10)]),
        script.seal(2, 1, offsets=[to(5, group="h", member="her", generation=9)]),
    ]
    [note] = until_notes(script)
    assert note.transaction.units == tuple(units)
    assert [each.group for each in note.transaction.offsets] == ["g", "h"]
    answer_notes(script)
    script.turn()
    [note] = script.take(u.CommitOffsets)
    assert note.index == 1
    script.units.noted(note)
    script.turn()
    assert len(script.take(u.EndTxn)) == 1


def test_a_group_that_refuses_a_consumer_leaves_the_others_of_the_transaction_their_turn():
    script = Script(2, most=16)
    mine = script.seal(1, 1, offsets=[to(10)])
    other = script.seal(2, 1, offsets=[to(5, group="h")])
    plain = script.seal(3, 1)
    [note] = until_notes(script)
    script.take(u.CommitOffsets)
    assert note.transaction.units == (mine, other, plain)
    script.units.failed(note, UNKNOWN_MEMBER_ID, "UNKNOWN_MEMBER_ID")
    marks = script.turn()
    assert outcomes(marks) == [(1, m.UnitOutcome.DROPPED)]
    assert (other.phase, plain.phase) == (u.Phase.WAITING, u.Phase.WAITING)
    rest_of(script)
    assert not len(script.units.unfinished)


# -- what goes on from a unit that was dropped -------------------------------------------------------------------------


def refuse(script: Script, code: int = ILLEGAL_GENERATION) -> list[m.Mark]:
    """The group refuses the offsets that are to be written first."""
    note = until_notes(script)[0]
    script.actions.remove(note)
    script.units.failed(note, code, f"error {code}")
    return script.turn()


@pytest.mark.parametrize("most", [1, 16])
def test_what_goes_on_from_a_dropped_unit_is_dropped_with_it_whatever_its_generation(most):
    script = Script(2, most=most)
    script.seal(1, 1, offsets=[to(10)], readings=of(1, 0))
    script.seal(2, 2, offsets=[to(20, generation=4)], readings=of(1, 0))
    last = script.seal(3, 3, offsets=[to(30, generation=4)], readings=of(1, 0))
    marks = refuse(script)
    # In one group: a crash between them would leave one that goes on from nothing.
    assert outcomes(marks) == [(number, m.UnitOutcome.DROPPED) for number in (1, 2, 3)]
    assert last.code == ILLEGAL_GENERATION
    assert last.reason == "an earlier atomic batch of the same consumer was dropped (error 22)"
    assert not len(script.units.unfinished)
    assert script.take(u.Refuse) == []


def test_what_is_accepted_later_of_the_same_reading_is_dropped_and_of_the_next_one_is_not():
    script = Script(2)
    script.seal(1, 1, offsets=[to(10)], readings=of(4, 0))
    refuse(script)
    late = script.seal(2, 1, offsets=[to(20)], readings=of(4, 0))
    older = script.seal(3, 1, offsets=[to(20)], readings=of(3, 0))
    again = script.seal(4, 1, offsets=[to(10)], readings=of(5, 0))
    assert outcomes(script.turn()) == []  # they were never written
    assert (late.phase, older.phase) == (u.Phase.OVER, u.Phase.OVER)
    script.prepare()
    assert commit_first(script) is again


def test_a_unit_that_is_dropped_before_it_was_written_is_never_written():
    """Else a crash would leave it without a mark that it was dropped, and without the one that it goes on from."""
    script = Script(2)
    script.seal(1, 1, offsets=[to(10)], readings=of(1, 0))
    [note] = until_notes(script)
    script.take(u.CommitOffsets)
    late = script.seal(2, 1, offsets=[to(20)], readings=of(1, 0), durable=False)
    script.units.failed(note, ILLEGAL_GENERATION, "ILLEGAL_GENERATION")
    assert outcomes(script.turn()) == [(1, m.UnitOutcome.DROPPED)]
    assert (late.void, late.phase) == (True, u.Phase.OVER)


def test_the_journal_does_not_write_a_unit_that_is_dropped_before():
    journal = j.Journal()
    number = journal.destination("out", 0)
    journal.units.name("lane")
    first = journal.units.seal(b"1" * 16, "", (to(10),), of(1))
    journal.seal(number, count=1, size_bytes=80, max_timestamp=1, unit=first)
    journal.close_unit(first)
    written = journal.ready(0.0, 0)
    journal.persisted(written.persist, [0], 1)
    late = journal.units.seal(b"2" * 16, "", (to(20),), of(1))
    journal.seal(number, count=1, size_bytes=80, max_timestamp=1, unit=late)
    journal.close_unit(late)
    first.dropped = True
    journal.units.give_up(first, ILLEGAL_GENERATION, "no member")
    ready = journal.ready(0.0, 0)
    assert ready.persist.units == []
    assert outcomes(ready.persist.marks) == [(ord("1"), m.UnitOutcome.DROPPED)]
    journal.persisted(ready.persist, [], 2)
    assert [(unit, fate) for unit, fate in journal.ready(0.0, 0).ended] == [
        (first, j.Fate.DROPPED),
        (late, j.Fate.DROPPED),
    ]
    assert journal.views.unfinished == 0


def test_other_partitions_and_other_groups_stay():
    script = Script(2)
    script.seal(1, 1, offsets=[to(10)], readings=of(1, 0))
    elsewhere = script.seal(2, 2, offsets=[to(5, partition=1)], readings=of(1, 0, partition=1))
    group = script.seal(3, 3, offsets=[to(10, group="h")])
    refuse(script)
    assert {elsewhere.phase, group.phase}.isdisjoint({u.Phase.REFUSED, u.Phase.OVER})
    rest_of(script)
    assert not len(script.units.unfinished)


def test_what_goes_on_from_one_that_goes_on_from_a_dropped_one_is_dropped_on_all_its_partitions():
    script = Script(2)
    both = m.GroupOffsets(GROUP, "me", 3, None, (m.Position("in", 0, 20), m.Position("in", 1, 4)))
    script.seal(1, 1, offsets=[to(10)], readings=of(1, 0))
    before = script.seal(2, 4, offsets=[to(2, partition=1)], readings=of(1, 0, partition=1))
    script.seal(3, 2, offsets=[both], readings=of(1, 0) | of(1, 0, partition=1))
    script.seal(4, 3, offsets=[to(8, partition=1)], readings=of(1, 0, partition=1))
    assert outcomes(refuse(script)) == [(number, m.UnitOutcome.DROPPED) for number in (1, 3, 4)]
    script.prepare()
    assert commit_first(script) is before


def test_what_is_rejected_and_kept_takes_nothing_along():
    """Its records are in `rejected/`, and its consumer goes on."""
    script = Script(2)
    first = script.seal(1, 1, offsets=[to(10)], readings=of(1, 0))
    second = script.seal(2, 2, offsets=[to(20)], readings=of(1, 0))
    script.turn()
    script.fence_all()
    [append] = [each for each in script.take(u.Produce) if each.transaction.units == (first,)]
    script.failed(append, 87, "INVALID_RECORD")
    [refuse] = script.take(u.Refuse)
    script.units.put_aside(refuse.unit, kept=True)
    rest_of(script)
    assert (first.phase, second.phase) == (u.Phase.OVER, u.Phase.OVER)
    assert second.code == 0


def recovered(script: Script, *units: tuple[int, m.GroupOffsets]) -> list[u.Unit]:
    found = []
    for number, offsets in units:
        unit = script.units.replay.recover(m.Unit(bytes([number]) * 16, 0, 1, "", (offsets,)), number, number)
        unit.batches.append(Batch(number, number, 3, number * 10))
        found.append(unit)
    script.units.recovered()
    return found


def test_the_next_incarnation_drops_what_goes_on_from_a_dropped_unit():
    script = Script(2)
    recovered(script, (1, to(10)), (2, to(20, generation=4)))
    mine = script.seal(3, 3, offsets=[to(10, member="new", generation=5)], readings=of(1, 0))
    assert outcomes(refuse(script)) == [(1, m.UnitOutcome.DROPPED), (2, m.UnitOutcome.DROPPED)]
    script.prepare()
    assert commit_first(script) is mine


@pytest.mark.parametrize(("start", "goes"), [(-1, False), (0, False), (9, False), (10, True), (11, True)])
def test_a_reading_that_began_before_an_earlier_incarnation_moved_the_group_is_void(start, goes):
    """Its consumer was given the offset that the group had before that, and has processed the same records."""
    script = Script(2)
    recovered(script, (1, to(10)))
    script.newest_reading = 1
    mine = script.seal(2, 3, offsets=[to(20)], readings=of(1, start))
    script.prepare()
    commit_first(script)
    script.prepare()
    late = script.seal(3, 3, offsets=[to(30)], readings=of(1, start))
    ends = []
    for _ in range(2):
        script.prepare()
        ends += script.take(u.EndTxn)
        for end in ends[-1:]:
            script.units.ended(end, u.Grant(7, 99, 2))
    assert [unit for end in ends for unit in end.transaction.units] == ([mine, late] if goes else [])
    assert not len(script.units.unfinished) or goes


@pytest.mark.parametrize("under_way", [False, True])
def test_what_another_reading_has_processed_again_ends_with_the_commit_in_one_group(under_way):
    """If the process ends in between, the next incarnation does not know how far the group was moved."""
    script = Script(2)
    script.newest_reading = 2
    script.seal(1, 1, offsets=[to(10)], readings=of(1, 0))
    if under_way:
        script.seal(2, 2, offsets=[to(20)], readings=of(2, 0))
    else:
        script.seal(2, 1, offsets=[to(20)], readings=of(2, 0))
    script.seal(3, 1, offsets=[to(30)], readings=of(2, 0))
    elsewhere = script.seal(4, 2, offsets=[to(9, partition=1)], readings=of(2, 0, partition=1))
    until_notes(script)
    answer_notes(script)
    script.turn()
    ends = {end.transaction.unit_id[0]: end for end in script.take(u.EndTxn)}
    script.units.ended(ends[1], u.Grant(7, 99, 2))
    assert outcomes(script.turn()) == [
        (1, m.UnitOutcome.COMMITTED),
        (2, m.UnitOutcome.DROPPED),
        (3, m.UnitOutcome.DROPPED),
    ]
    assert elsewhere.phase is not u.Phase.OVER


def test_what_another_reading_has_processed_again_is_never_written_if_it_comes_after_the_commit():
    script = Script(2)
    script.seal(1, 1, offsets=[to(10)], readings=of(1, 0))
    script.prepare()
    script.newest_reading = 2
    commit_first(script)
    late = script.seal(2, 1, offsets=[to(20)], readings=of(2, 0))
    assert outcomes(script.turn()) == []
    assert late.phase is u.Phase.OVER


def test_a_reading_that_began_after_a_commit_is_good_wherever_it_starts():
    """Somebody has set the group back, say."""
    script = Script(2)
    script.newest_reading = 1
    script.seal(1, 1, offsets=[to(10)], readings=of(1, 0))
    script.prepare()
    commit_first(script)
    again = script.seal(2, 1, offsets=[to(4)], readings=of(2, 0))
    script.prepare()
    assert commit_first(script) is again


def test_offsets_that_an_earlier_version_wrote_out_of_order_are_asked_about():
    script = Script(2)
    for number, name in ((1, "lane-0"), (2, "lane-1")):
        mark = m.Unit(bytes([number]) * 16, 0, 1, "", (to(number * 10),))
        unit = script.units.replay.recover(mark, number, number)
        unit.batches.append(Batch(number, number, 3, number * 10))
        begun = m.Begun(mark.unit_id, name, 7, 3, 2)
        script.units.replay.recover_staged(m.Staged(begun, (m.Placed(number, number * 10, 3, 0, 40),)))
    script.recovered()
    assert [end.transaction.unit_id[0] for end in script.take(u.EndTxn)] == [1]
    assert [look.transaction.unit_id[0] for look in script.take(u.DescribeTxn)] == [2]


def test_a_name_that_another_producer_took_over_takes_along_what_goes_on_from_it():
    script = Script(2)
    named = script.seal(1, 1, name="app", offsets=[to(10)], readings=of(1, 0))
    script.turn()
    script.fence_all()
    script.turn()
    script.seal(2, 2, offsets=[to(20)], readings=of(1, 0))
    [append] = script.take(u.Produce)
    script.failed(append, 90, "PRODUCER_FENCED")
    [fence] = [each for each in script.take(u.InitProducerId) if each.keep is not None]
    script.units.failed(fence, 90, "PRODUCER_FENCED")
    assert outcomes(script.turn()) == [(1, m.UnitOutcome.DROPPED), (2, m.UnitOutcome.DROPPED)]
    assert named.code == 90
