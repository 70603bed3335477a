"""Which batches of ended readings another lane may still commit."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kafkasafe.delivery.readings import Carrier, Earlier, OffsetClaim, OffsetsFate, ReadingRun

ME, LATER, RENAMED = (3, "me"), (4, "me"), (3, "me anew")


@dataclass(frozen=True)
class Lane:
    name: str
    in_memory: bool = field(default=False, compare=False)


ONE, TWO = Lane("one"), Lane("two")


def claim(fate, carrier, offset=10):
    return OffsetClaim(offset, lambda: fate, carrier)


def elsewhere(claims, mine):
    earlier = Earlier()
    earlier.add("in", claims)
    return earlier.elsewhere("in", mine)


@pytest.mark.parametrize("fate", [OffsetsFate.LEFT, OffsetsFate.WAITING, OffsetsFate.OPEN])
def test_an_undecided_batch_of_another_lane_is_in_the_way(fate):
    mine = claim(fate, Carrier(ONE, ME))
    assert elsewhere([mine], Carrier(TWO, ME)) == [mine]
    assert elsewhere([mine], Carrier(Lane("one"), ME)) == [], "its own lane compares it"


@pytest.mark.parametrize(
    "fate", [OffsetsFate.COMMITTED, OffsetsFate.REJECTED, OffsetsFate.DROPPED, OffsetsFate.FORGOTTEN]
)
def test_a_decided_batch_is_not(fate):
    assert elsewhere([claim(fate, Carrier(ONE, ME))], Carrier(TWO, ME)) == []


@pytest.mark.parametrize("now", [LATER, RENAMED])
def test_a_group_refuses_a_former_generation_or_member(now):
    assert elsewhere([claim(OffsetsFate.LEFT, Carrier(ONE, ME))], Carrier(TWO, now)) == []


@pytest.mark.parametrize(("then", "now"), [(None, None), (None, ME), (ME, None)])
def test_without_a_generation_nothing_is_refused(then, now):
    """Of a consumer that uses `assign` now, its group may still have the former member."""
    left = claim(OffsetsFate.LEFT, Carrier(ONE, then))
    assert elsewhere([left], Carrier(TWO, now)) == [left]


def test_what_was_left_in_memory_is_lost():
    assert (
        elsewhere([claim(OffsetsFate.LEFT, Carrier(Lane("one", in_memory=True), None))], Carrier(TWO, None))
        == []
    )


def test_of_what_was_left_together_one_stands_for_all_until_it_is_forgotten():
    earlier = Earlier()
    some = [claim(OffsetsFate.LEFT, Carrier(ONE, None), offset) for offset in (10, 20, 30)]
    other = claim(OffsetsFate.LEFT, Carrier(Lane("three"), None))
    earlier.add("in", some[:2])
    earlier.add("in", [some[2], other])
    assert earlier.elsewhere("in", Carrier(TWO, None)) == [some[0], other]
    earlier.forget("in", some[0])
    assert earlier.elsewhere("in", Carrier(TWO, None)) == [other]
    assert earlier.elsewhere("other", Carrier(TWO, None)) == []


def test_batches_of_another_producer_are_before_those_of_the_same_reading():
    """Also if both had the same lane, one after the other: the later one does not know the batch as its own."""
    run = ReadingRun(1, 0)
    lane = Lane("one")
    for fate, carrier in [
        (OffsetsFate.COMMITTED, Carrier(ONE, ME)),
        (OffsetsFate.WAITING, Carrier(lane, ME)),
        (OffsetsFate.WAITING, Carrier(ONE, ME)),
    ]:
        run.claim(claim(fate, carrier))
    assert [each.carrier.lane for each in run.elsewhere(Carrier(lane, ME))] == [ONE]
    assert [each.carrier.lane for each in run.elsewhere(Carrier(ONE, ME))] == [lane]
