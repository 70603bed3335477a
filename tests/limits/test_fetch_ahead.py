"""Where a fetch can begin before the records of the last one were returned."""

from __future__ import annotations

import pytest

from kafkasafe.limits.fetch_ahead import AHEAD_BYTES, AheadOffset, FetchAhead, ResponseEnd, end_of
from kafkasafe.record import batch

MB = 1024 * 1024


def made(base_offset, count, leader_epoch=3, **options):
    """A batch as a broker returns it."""
    data = bytearray(batch.encode(None, [b"v"] * count, timestamps=1_000, **options))
    data[0:8] = base_offset.to_bytes(8, "big")
    data[12:16] = leader_epoch.to_bytes(4, "big")
    return bytes(data)


def test_a_response_ends_after_its_last_whole_batch():
    response = made(100, 10) + made(110, 5, leader_epoch=4)
    assert end_of(response, 103) == ResponseEnd(103, 115, 4)
    assert end_of(memoryview(response), 103) == ResponseEnd(103, 115, 4)
    for cut in range(1, len(made(110, 5))):
        assert end_of(response[:-cut], 103) == ResponseEnd(103, 110, 3)


@pytest.mark.parametrize("response", [b"", made(0, 5)[:-1], b"\0" * 100, b"\xff" * 100, made(0, 1)[:16]])
def test_what_is_not_a_batch_has_no_end(response):
    assert end_of(response, 0) is None


def test_an_older_message_format_has_no_end():
    old = bytearray(made(0, 5))
    old[16] = 1
    assert end_of(bytes(old), 0) is None


def test_the_end_is_where_every_reader_continues():
    """Batches lose records by compaction, but their headers keep the last offset."""
    response = made(7, 3) + made(40, 1)
    (*_, (_, last)) = batch.iter_headers(response)
    assert end_of(response, 7).end_offset == last.last_offset + 1 == 41


@pytest.fixture
def ahead():
    ahead = FetchAhead()
    ahead.arrived("a", 100, made(100, 10), 500)
    return ahead


@pytest.mark.parametrize(
    ("position", "goes"), [(99, False), (100, True), (109, True), (110, False), (120, False)]
)
def test_only_while_the_position_is_in_the_response(ahead, position, goes):
    assert bool(ahead.choose([("a", position)], MB)) is goes


def test_nothing_is_fetched_ahead_at_the_end_of_the_log(ahead):
    ahead.arrived("a", 110, made(110, 10), 120)
    assert not ahead.choose([("a", 110)], MB)
    ahead.arrived("a", 110, made(110, 10), 121)
    assert ahead.choose([("a", 110)], MB) == {"a": ResponseEnd(110, 120, 3)}


def test_a_response_without_records_ends_it(ahead):
    ahead.arrived("a", 110, None, 500)
    assert not ahead.choose([("a", 105)], MB)


def test_the_sum_is_bounded():
    ahead = FetchAhead()
    positions = [(place, 0) for place in range(100)]
    for place, _ in positions:
        ahead.arrived(place, 0, made(0, 10), 500)
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
