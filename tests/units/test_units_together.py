"""Units that share a transaction: who may, in which order, and how they part."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.units.together import transaction_of

sys.path.insert(0, str(Path(__file__).parent))
from test_units import Batch, Script


def in_line(script: Script, destination: int) -> list[u.Unit]:
    """What stands in the line of a partition, with those that share a transaction one by one."""
    line = script.units.lines.at(destination)
    return [
        each
        for entry in line
        for each in getattr(entry, "units", (entry,))
        if destination in each.destinations
    ]


def three(protocol: int = 2, *, destinations=((1,), (1,), (1,))) -> tuple[Script, list[u.Unit]]:
    """Units that all wait when the first transactional id is there."""
    script = Script(protocol, most=16)
    return script, [script.seal(number, *some) for number, some in enumerate(destinations, 1)]


def end_of(script: Script) -> u.EndTxn:
    [end] = script.take(u.EndTxn)
    return end


def number_of(mark) -> int:
    return (mark.begun if isinstance(mark, m.Staged) else mark).unit_id[0]


def go_on(script: Script) -> None:
    """Pauses are over, and each thing is answered until something waits for its end."""
    for _ in range(3):
        script.prepare()
        for again in script.take(u.RetryLater):
            script.units.again(again.action)
    script.prepare()


def go_on_to_appends(script: Script) -> None:
    """Pauses are over, and what is asked before batches are appended is answered."""
    for again in script.take(u.RetryLater):
        script.units.again(again.action)
    script.turn()
    script.fence_all()
    for join in script.take(u.AddPartitions):
        script.units.joined(join)
    script.turn()


@pytest.mark.parametrize("protocol", [1, 2])
def test_what_waits_on_a_partition_shares_a_transaction_and_each_keeps_its_steps(protocol):
    script, units = three(protocol)
    written = script.turn()
    script.fence_all()
    for join in script.take(u.AddPartitions):
        script.units.joined(join)
    written += script.turn()
    appends = script.take(u.Produce)
    assert [append.batch for append in appends] == [batch for unit in units for batch in unit.batches]
    assert [append.base_sequence for append in appends] == [0, 3, 6]
    for append in appends[:2]:
        script.append(append)
    notes = script.take(u.CommitOffsets)
    for note in notes:
        script.units.noted(note)
    assert script.turn() == []
    assert {unit.phase for unit in units} == {u.Phase.APPENDING}
    script.append(appends[2])
    for note in script.take(u.CommitOffsets):
        script.units.noted(note)
        notes.append(note)
    # One marker, with the id of the first.
    assert [note.transaction.unit_id for note in notes] == [units[0].unit_id]
    written += script.turn()
    assert [(type(mark), number_of(mark)) for mark in written] == [
        *((m.Begun, number) for number in (1, 2, 3)),
        *((m.Staged, number) for number in (1, 2, 3)),
    ]
    assert [place.base_offset for mark in written[3:] for place in mark.places] == [0, 3, 6]
    script.units.ended(end_of(script), u.Grant(7, 99, protocol))
    ended = script.turn()
    assert [(type(mark), number_of(mark), mark.outcome) for mark in ended] == [
        (m.Ended, number, m.UnitOutcome.COMMITTED) for number in (1, 2, 3)
    ]
    assert {unit.phase for unit in units} == {u.Phase.OVER}
    assert len(script.units.unfinished) == 0
    assert len(script.units.lines) == 0


def test_the_transactional_id_is_free_when_the_ends_of_all_are_durable():
    script, units = three()
    script.prepare()
    end = end_of(script)
    script.units.ended(end, u.Grant(7, 99, 2))
    script.units.advance()
    for unit in units:
        assert end.tid.transaction is not None
        script.units.over(unit)
    assert end.tid.transaction is None


@pytest.mark.parametrize("which", ["a user's name", "went back before", "not on disk", "a pause", "refused"])
def test_what_is_not_the_lanes_own_or_cannot_go_yet_goes_by_itself(which):
    script = Script(2, most=16)
    units = [script.seal(1, 1)]
    other = script.seal(2, 1, name="app" if which == "a user's name" else "")
    units += [other, script.seal(3, 1)]
    match which:
        case "went back before":
            other.tries = 2
        case "not on disk":
            other.durable = False
        case "a pause":
            other.resting = True
        case "refused":
            other.phase = u.Phase.REFUSED
    assert script.units._schedule._sharing.gather(units[0], script.units._schedule.is_ready) == [units[0]]
    if which in {"a user's name", "offsets of a group", "went back before"}:
        assert script.units._schedule._sharing.gather(other, script.units._schedule.is_ready) == [other]
    other.transactional_id, other.offsets, other.tries = "", (), 0
    other.durable, other.resting, other.phase = True, False, u.Phase.WAITING
    assert script.units._schedule._sharing.gather(units[0], script.units._schedule.is_ready) == units


def test_what_has_a_name_goes_by_itself():
    test_what_is_not_the_lanes_own_or_cannot_go_yet_goes_by_itself("a user's name")


def test_what_is_refused_is_not_begun_with_what_stands_before_it():
    test_what_is_not_the_lanes_own_or_cannot_go_yet_goes_by_itself("refused")


def test_they_are_not_more_than_a_transaction_should_hold():
    script = Script(2, most=16)
    units = [script.seal(number, 1) for number in range(1, 30)]
    assert script.units._schedule._sharing.gather(units[0], script.units._schedule.is_ready) == units[:16]
    for unit in units:
        unit.batches[0].size_bytes = 3 << 20
    assert script.units._schedule._sharing.gather(units[0], script.units._schedule.is_ready) == units[:2]
    units[0].batches[0].size_bytes = 300 << 20
    assert script.units._schedule._sharing.gather(units[0], script.units._schedule.is_ready) == units[:1]


def test_nothing_that_stands_between_is_passed():
    # The third stands behind the second on partition 2, which waits behind the one that is under way there.
    script = Script(2, most=16)
    script.units.fenced(u.InitProducerId(script.units.ids["lane-0"], 0), u.Grant(7, 1, 2))
    script.units.fenced(u.InitProducerId(script.units.ids["lane-1"], 0), u.Grant(7, 2, 2))
    under_way = script.seal(1, 2)
    script.turn()
    assert under_way.phase is u.Phase.APPENDING
    script.seal(2, 1)
    between = script.seal(3, 2)
    behind = script.seal(4, 1, 2)
    last = script.seal(5, 1)
    beside = script.seal(6, 3)
    script.turn()
    began = [tid.transaction for tid in script.units.ids]
    assert [unit.number for each in began for unit in each.units] == [1, 2]
    assert {unit.phase for unit in (between, behind, last, beside)} == {u.Phase.WAITING}


@given(st.lists(st.sets(st.integers(1, 4), min_size=1), min_size=1, max_size=12), st.integers(0, 5))
def test_they_stand_in_line_as_one_and_part_where_they_were(places, under_way):
    script = Script(2, most=4)
    units = [script.seal(number, *sorted(some)) for number, some in enumerate(places, 1)]
    for unit in units[:under_way]:
        unit.phase = u.Phase.STAGED
    lines = set().union(*places)
    before = {at: list(script.units.lines.at(at)) for at in lines}
    for first in script.units.lines.next_units():
        found = script.units._schedule._sharing.gather(first, script.units._schedule.is_ready)
        ahead = {unit for at in first.destinations for unit in before[at][: before[at].index(first)]}
        assert found == sorted(found, key=lambda unit: unit.number)
        whole = transaction_of(found, u.TransactionalId("lane-0"), u.Grant(7, 1, 2))
        script.units.lines.unite(whole)
        assert {at: in_line(script, at) for at in before} == before, "the order is another one"
        for line in before.values():
            mine = [unit for unit in line if unit in found]
            if mine:
                # Nothing that waits, or that the first does not wait for, is in front of any of them.
                front = line[: line.index(mine[0])]
                assert all(unit.phase is u.Phase.STAGED for unit in front)
                assert set(front) <= ahead
        script.units.lines.part(whole)
        assert {at: list(script.units.lines.at(at)) for at in lines} == before


REFUSALS = [(10, "too large"), (87, "invalid"), (29, "no right"), (3, "unknown topic"), (48, "over")]


@pytest.mark.parametrize(("code", "reason"), REFUSALS, ids=[reason for _, reason in REFUSALS])
@pytest.mark.parametrize("lasting", [False, True])
def test_what_is_refused_of_one_is_not_the_others_fate(code, reason, lasting):
    refuse_one(code, reason, lasting=lasting)


def test_what_is_refused_of_one_leaves_the_others_their_turn():
    refuse_one(87, "invalid", lasting=True)


def refuse_one(code, reason, *, lasting):
    script, units = three()
    script.turn()
    script.fence_all()
    _, second, _ = script.take(u.Produce)
    script.failed(second, code, reason, lasting=lasting)
    assert script.take(u.Refuse) == []
    assert script.units.out.too_large == []
    assert {unit.phase for unit in units} == {u.Phase.WAITING}
    assert {unit.code for unit in units} == {0}
    assert in_line(script, 1) == units
    assert [unit.resting for unit in units] == [True, False, False], "the others stand behind it"
    committed = []
    for _ in units:
        go_on(script)
        for end in script.take(u.EndTxn):
            assert len(end.transaction.units) <= 2, "as many share a transaction again"
            committed += end.transaction.units
            script.ended(end, u.Grant(7, 50 + len(committed), 2))
    assert committed == units


def test_an_eighth_as_many_share_after_each_failure():
    script = Script(2, most=16)
    units = [script.seal(number, 1) for number in range(1, 6)]
    refused, shared = units[1].batches[0], []
    for _ in range(8):
        go_on_to_appends(script)
        failed = None
        for append in script.take(u.Produce):
            if append.batch is refused:
                failed = append.transaction
                shared.append(len(failed.units))
                script.units.failed(append, 87, "invalid", lasting=len(failed.units) == 1)
            elif append.transaction is not failed:
                script.append(append)
        for note in script.take(u.CommitOffsets):
            script.units.noted(note)
        script.turn()
        for end in script.take(u.EndTxn):
            script.units.ended(end, u.Grant(7, 50, 2))
        script.turn()
    assert shared == [5, 2, 1]
    assert units[0].phase is u.Phase.OVER
    assert [refuse.unit for refuse in script.take(u.Refuse)] == [units[1]]


@pytest.mark.parametrize("when", ["appending", "staging", "staged", "ending"])
def test_one_that_is_given_up_does_not_take_the_others_with_it(when):
    script = Script(2, most=16)
    ahead = []
    if when == "staged":
        script.seal(9, 1)
        script.prepare()
        ahead = script.take(u.EndTxn)
    units = [script.seal(number, 1) for number in (1, 2, 3)]
    if when in {"appending", "staging"}:
        script.turn()
        script.fence_all()
        if when == "staging":
            script.turn()
            for append in script.take(u.Produce):
                script.append(append)
            script.actions += script.units.advance()
            for note in script.take(u.CommitOffsets):
                script.units.noted(note)
    else:
        script.prepare()
        script.take(u.EndTxn)
    assert {unit.phase.value for unit in units} == {when}
    script.take(u.Produce)
    assert script.units.give_up(units[1], -4, "of the test")
    for look in [action for _ in (script.turn(),) for action in script.take(u.DescribeTxn)]:
        script.units.described(look, False)
    script.turn()
    assert [refuse.unit for refuse in script.take(u.Refuse)] == [units[1]]
    assert [unit.phase for unit in units] == [u.Phase.WAITING, u.Phase.REFUSED, u.Phase.WAITING]
    assert [each for each in in_line(script, 1) if each in units] == units
    for end in ahead:
        script.units.ended(end, u.Grant(7, 40, 2))
    script.units.put_aside(units[1], kept=True)
    committed = []
    for _ in range(4):
        go_on(script)
        for end in script.take(u.EndTxn):
            committed += end.transaction.units
            script.units.ended(end, u.Grant(7, 50 + len(committed), 2))
    assert committed == [units[0], units[2]]


def test_one_that_is_given_up_before_staged_is_durable_leaves_the_others_their_turn():
    test_one_that_is_given_up_does_not_take_the_others_with_it("staging")


def test_one_that_is_given_up_too_late_is_committed_with_the_others():
    script, units = three()
    script.prepare()
    script.take(u.EndTxn)
    assert script.units.give_up(units[1], -4, "of the test")
    script.turn()
    [look] = script.take(u.DescribeTxn)
    script.units.described(look, True)
    assert [(number_of(mark), mark.outcome) for mark in script.turn()] == [
        (number, m.UnitOutcome.COMMITTED) for number in (1, 2, 3)
    ]


def test_what_stands_behind_goes_back_when_one_of_them_is_given_up():
    script, units = three()
    script.turn()
    script.fence_all()
    behind = script.seal(4, 1)
    script.turn()
    script.fence_all()
    assert {unit.phase for unit in (*units, behind)} == {u.Phase.APPENDING}
    assert behind.transaction.units == (behind,)
    assert script.units.give_up(units[1], -4, "of the test")
    assert {unit.phase for unit in (units[0], units[2], behind)} == {u.Phase.WAITING}


def test_what_stands_behind_them_goes_back_when_they_do():
    script, units = three()
    script.prepare()
    end = end_of(script)
    behind = script.seal(4, 1)
    script.prepare()
    assert behind.phase is u.Phase.STAGED
    script.failed(end, 48, "INVALID_TXN_STATE")
    script.fence_all()
    [ask] = script.take(u.FindOutcome)
    script.units.outcome_found(ask, committed=False)
    assert {unit.phase for unit in (*units, behind)} == {u.Phase.WAITING}
    assert in_line(script, 1) == [*units, behind]
    # Fewer go together, so that it shows soon whose fault it was.
    go_on(script)
    [end] = script.take(u.EndTxn)
    assert end.transaction.units == (units[0], units[1])


# -- what earlier lives left -------------------------------------------------------------------------------------------

GRANT = u.Grant(7, 3, 2)


def begun(number: int, name: str = "lane-0", epoch: int = 3) -> m.Begun:
    return m.Begun(bytes([number]) * 16, name, 7, epoch, 2)


def staged(number: int, name: str = "lane-0", epoch: int = 3) -> m.Staged:
    return m.Staged(begun(number, name, epoch), (m.Placed(1, number * 10, 3, number * 3, number * 3),))


def read(*marks: m.Begun | m.Staged | m.Ended) -> tuple[Script, list[u.Unit]]:
    """Three units, and what the log says of them."""
    script = Script(2, most=16)
    units = []
    for number in (1, 2, 3):
        unit = script.units.replay.recover(m.Unit(bytes([number]) * 16, 0, 1), number, number)
        unit.batches.append(Batch(number, 1, 3, number * 10))
        units.append(unit)
    for mark in marks:
        match mark:
            case m.Begun():
                script.units.replay.recover_begun(mark)
            case m.Staged():
                script.units.replay.recover_staged(mark)
            case m.Ended():
                script.units.replay.recover_ended(mark)
    return script, units


ALL = [staged(1), staged(2), staged(3)]


def test_the_next_life_commits_all_of_a_transaction_with_one_end():
    script, units = read(*ALL)
    script.recovered()
    end = end_of(script)
    assert (end.transaction.units, end.transaction.grant, end.transaction.unit_id) == (
        tuple(units),
        GRANT,
        units[0].unit_id,
    )
    assert end.transaction.places == {1: 3, 2: 6, 3: 9}
    script.units.ended(end, u.Grant(7, 4, 2))
    assert [number_of(mark) for mark in script.turn()] == [1, 2, 3]
    assert {unit.phase for unit in units} == {u.Phase.OVER}


@pytest.mark.parametrize(
    "mark",
    [
        begun(1, "lane-1", 5),
        begun(2, "lane-1", 5),
        staged(3, "lane-1", 5),
        m.Ended(bytes([2]) * 16, m.UnitOutcome.DROPPED, "refused"),
        staged(1, "lane-0", 4),
    ],
    ids=str,
)
def test_a_transaction_that_one_of_them_left_is_not_committed(mark):
    """Its end would commit that one a second time, or after it was given up."""
    leave(mark)


def test_a_transaction_that_the_first_of_them_left_is_committed_for_none():
    leave(begun(1, "lane-1", 5))


def test_a_transaction_of_which_one_was_dropped_is_committed_for_none():
    leave(m.Ended(bytes([2]) * 16, m.UnitOutcome.DROPPED, "refused"))


def leave(mark) -> None:
    script, units = read(*ALL, mark)
    script.recovered()
    for end in script.take(u.EndTxn):
        assert end.transaction.grant != GRANT
    left = [unit for unit in units if unit.phase is not u.Phase.OVER and unit.unit_id != _id(mark)]
    assert {unit.phase for unit in left} == {u.Phase.WAITING}


def _id(mark) -> bytes:
    return (mark.begun if isinstance(mark, m.Staged) else mark).unit_id


def test_another_epoch_of_the_same_name_is_another_transaction():
    script, (first, second, third) = read(staged(1), staged(2, epoch=4), staged(3, epoch=4))
    script.units.recovered()
    assert first.phase is u.Phase.WAITING
    assert second.transaction is third.transaction
    assert second.transaction.grant == u.Grant(7, 4, 2)


def test_only_what_is_chosen_as_a_whole_is_committed():
    script, units = read(*ALL)
    script.units.decide(frozenset({units[0].unit_id, units[1].unit_id}), frozenset())
    script.recovered()
    assert script.take(u.EndTxn) == []
    assert all(script.units.held_up(unit) for unit in units)

    script, units = read(*ALL)
    script.units.decide(frozenset(unit.unit_id for unit in units), frozenset())
    script.recovered()
    assert not any(script.units.held_up(unit) for unit in units)
    assert end_of(script).transaction.units == tuple(units)


def test_an_operator_who_gives_one_up_leaves_the_others_to_the_next_producer():
    script, units = read(*ALL)
    script.units.decide(None, frozenset({units[1].unit_id}))
    script.recovered()
    [look] = script.take(u.DescribeTxn)
    script.units.described(look, False)
    script.turn()
    assert [refuse.unit for refuse in script.take(u.Refuse)] == [units[1]]
    assert [unit.phase for unit in units] == [u.Phase.WAITING, u.Phase.REFUSED, u.Phase.WAITING]
    assert script.take(u.EndTxn) == script.take(u.Produce) == []


def test_an_operator_who_gives_two_of_them_up_asks_once():
    script, units = read(*ALL)
    script.units.decide(None, frozenset(unit.unit_id for unit in units[1:]))
    script.recovered()
    [look] = script.take(u.DescribeTxn)
    script.units.described(look, False)
    script.turn()
    assert [refuse.unit for refuse in script.take(u.Refuse)] == units[1:]
