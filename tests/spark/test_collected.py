"""Whether the driver collects the rows of a micro-batch, and within which bound."""

from __future__ import annotations

import pytest

from kafkasafe.spark.collected import Bound, Size, bound_of, later_size

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("previous", "expected"),
    [
        (Size(0, 0), Bound(256, 8192)),
        (Size(1, 100), Bound(256, 8192)),
        (Size(128, 12_800), Bound(256, 8192)),
        (Size(129, 12_900), Bound(512, 4096)),
        (Size(1000, 100_000), Bound(2048, 1024)),
        (Size(1000, 512_000), Bound(2048, 1024)),
        (Size(1000, 513_000), None),  # a row of twice the average size would not fit
        (Size(1000, 1000, pause=1), None),
    ],
)
def test_the_bound_has_room_for_twice_the_rows_and_rows_of_twice_the_size(previous, expected):
    assert bound_of(previous, MIB) == expected


@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 5000, 100_000])
@pytest.mark.parametrize("inline_bytes", [0, 1, 4000, MIB])
def test_a_task_returns_at_most_twice_the_option(rows, inline_bytes):
    bound = bound_of(Size(rows, rows), inline_bytes)
    if bound is not None:
        assert bound.rows * bound.row_bytes <= 2 * inline_bytes
        assert bound.rows >= 2 * rows


def test_a_row_that_is_too_large_ends_the_collecting_for_a_while():
    size = later_size(Size(10, 1000), 10, 900_000, was_refused=True)
    for _ in range(100):
        assert bound_of(size, MIB) is None
        size = later_size(size, 10, 1000, was_refused=False)
    assert size == Size(10, 1000)
    assert bound_of(size, MIB) is not None
    assert later_size(None, 10, 1000, was_refused=False) == Size(10, 1000)
