"""Where a fetch can begin before the records of the last one were returned."""

from __future__ import annotations

import pytest

from kafkasafe.limits.fetch_ahead import AHEAD_BYTES, AheadOffset, FetchAhead, ResponseEnd

MB = 1024 * 1024


def response(first, after):
    """The end of a response with the records from `first` to the one before `after`."""
    return ResponseEnd(first, after, 3)


@pytest.fixture
def ahead():
    ahead = FetchAhead()
    ahead.arrived("a", response(100, 110), 500)
    return ahead


@pytest.mark.parametrize(
    ("position", "goes"), [(99, False), (100, True), (109, True), (110, False), (120, False)]
)
def test_only_while_the_position_is_in_the_response(ahead, position, goes):
    assert bool(ahead.choose([("a", position)], MB)) is goes


def test_nothing_is_fetched_ahead_at_the_end_of_the_log(ahead):
    ahead.arrived("a", response(110, 120), 120)
    assert not ahead.choose([("a", 110)], MB)
    ahead.arrived("a", response(110, 120), 121)
    assert ahead.choose([("a", 110)], MB) == {"a": ResponseEnd(110, 120, 3)}


def test_a_response_without_records_ends_it(ahead):
    ahead.arrived("a", None, 500)
    assert not ahead.choose([("a", 105)], MB)


def test_the_sum_is_bounded():
    ahead = FetchAhead()
    positions = [(place, 0) for place in range(100)]
    for place, _ in positions:
        ahead.arrived(place, response(0, 10), 500)
    assert list(ahead.choose(positions, MB)) == list(range(AHEAD_BYTES // MB))
    assert list(ahead.choose(positions, 8 * MB)) == [0, 1]
    assert not ahead.choose(positions, AHEAD_BYTES + 1)
    assert list(ahead.choose(positions, MB, count=15)) == [0]
    assert not ahead.choose(positions, MB, count=16)


def test_an_offset_that_knows_its_leadership_is_an_offset():
    leadership = (None, 1, 2)
    offset = AheadOffset(7, leadership)
    assert offset == 7
    assert {7: "x"}[offset] == "x"
    assert offset.checked is leadership


def test_partitions_that_are_no_longer_assigned_are_forgotten(ahead):
    ahead.arrived("b", response(0, 10), 500)
    ahead.keep({"a", "b", "c"})
    assert set(ahead.choose([("a", 105), ("b", 5)], MB)) == {"a", "b"}
    ahead.keep({"b"})
    assert set(ahead.choose([("a", 105), ("b", 5)], MB)) == {"b"}
