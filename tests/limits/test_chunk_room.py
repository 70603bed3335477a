"""The room of an open batch, and where its records are divided into batches."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe._producing.open_batch_room import (
    MAX_RECORDS,
    MOST_BYTES,
    fitting_edges,
    room_for,
    rooms_records,
)

MB = 1_000_000


def test_a_topic_with_few_partitions_has_the_usual_room() -> None:
    assert [room_for(MB, spread, MOST_BYTES) for spread in (1, 3, 12, 30)] == [MB] * 4
    assert rooms_records(MB, MB) == MAX_RECORDS


def test_the_room_grows_with_the_number_of_batches_up_to_its_limit() -> None:
    assert room_for(MB, 100, MOST_BYTES) == 100 * 32 * 1024
    assert room_for(MB, 5000, MOST_BYTES) == MOST_BYTES
    assert room_for(10_000, 40, MOST_BYTES) == 400_000
    assert room_for(16 * MB, 5000, MOST_BYTES) == 16 * MB
    assert room_for(MB, 5000, 0) == MB


@given(st.integers(1, 20 * MB), st.integers(1, 100_000), st.integers(0, 2 * MOST_BYTES))
def test_the_room_is_never_less_than_a_batch(batch_bytes: int, spread: int, most: int) -> None:
    room = room_for(batch_bytes, spread, most)
    assert batch_bytes <= room <= max(batch_bytes, most)
    assert room <= max(batch_bytes, spread * batch_bytes)
    assert MAX_RECORDS <= rooms_records(batch_bytes, room) <= 8 * MAX_RECORDS


def test_a_room_that_is_twice_as_large_takes_twice_the_records() -> None:
    assert rooms_records(MB, 2 * MB) == 2 * MAX_RECORDS
    assert rooms_records(1, MOST_BYTES) == 8 * MAX_RECORDS


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 300)), min_size=1, max_size=60), st.integers(1, 400)
)
def test_each_batch_has_one_partition_and_at_most_its_size(records: list[tuple[int, int]], most: int) -> None:
    partitions = np.sort(np.array([partition for partition, _ in records], np.int64))
    sizes = np.array([size for _, size in records], np.int64)
    edges = fitting_edges(partitions, sizes, most)
    expected, total = [], 0
    for at, (partition, size) in enumerate(zip(partitions.tolist(), sizes.tolist(), strict=True)):
        if at and (partition != partitions[at - 1] or total + size > most):
            expected.append(at)
            total = 0
        total += size
    assert edges == expected


def test_a_batch_has_no_more_records_than_it_may() -> None:
    count = 2 * MAX_RECORDS + 5
    edges = fitting_edges(np.zeros(count, np.int64), np.ones(count, np.int64), 10 * count)
    assert edges == [MAX_RECORDS, 2 * MAX_RECORDS]


def test_without_sizes_only_partitions_divide() -> None:
    assert fitting_edges(np.array([0, 0, 2, 2, 5]), None, 1) == [2, 4]
    assert fitting_edges(np.array([7]), None, 1) == []
