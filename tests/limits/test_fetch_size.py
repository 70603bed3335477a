"""Sizes of fetch requests: they grow only where responses come soon."""

from __future__ import annotations

import pytest

from kafkasafe.limits.fetch_size import FetchSize, records_limit

MB = 1024 * 1024


def test_it_doubles_after_full_responses_that_come_soon():
    size = FetchSize(MB, 8 * MB, 30)
    sizes = []
    for _ in range(5):
        sizes.append(size.bytes)
        size.answered(size.bytes, 0, 0.05)
    assert sizes == [MB, 2 * MB, 4 * MB, 8 * MB, 8 * MB]


def test_small_responses_say_nothing():
    size = FetchSize(MB, 8 * MB, 30)
    size.answered(MB // 2 - 1, 0, 0.01)
    assert size.bytes == MB
    size.answered(MB // 2, 0, 0.01)
    assert size.bytes == 2 * MB
    # No records came until `fetch_max_wait_ms` was over.
    size.answered(0, 0, 20)
    assert size.bytes == 2 * MB


@pytest.mark.parametrize("timeout_s", [0.5, 2, 30])
@pytest.mark.parametrize("partitions", [1, 6, 50])
@pytest.mark.parametrize("bytes_per_s", [100_000, 1_250_000, 50_000_000, 2_000_000_000])
def test_no_request_is_larger_than_the_network_carries_in_time(timeout_s, partitions, bytes_per_s):
    size = FetchSize(MB, 8 * MB, timeout_s)
    for _ in range(50):
        took_s = min(50 * MB, size.bytes * partitions) / bytes_per_s
        assert took_s < timeout_s / 2 or size.bytes == MB
        size.answered(size.bytes, 0, took_s)
    if 50 * MB / bytes_per_s < min(1, timeout_s / 8):
        assert size.bytes == 8 * MB


def test_it_shrinks_when_the_network_becomes_slow_and_does_not_swing():
    size = FetchSize(MB, 8 * MB, 30)
    for _ in range(5):
        size.answered(size.bytes, 0, 0.01)
    sizes = []
    for _ in range(20):
        sizes.append(size.bytes)
        size.answered(size.bytes, 0, size.bytes / 1_500_000)
    assert sizes[:3] == [8 * MB, 4 * MB, 2 * MB]
    assert set(sizes[2:]) == {2 * MB}


def test_a_request_that_fails_begins_again():
    size = FetchSize(MB, 8 * MB, 30)
    for _ in range(5):
        size.answered(size.bytes, 0, 0.01)
    size.restart(1)
    assert size.bytes == MB


def test_a_response_to_an_earlier_request_says_nothing_after_a_restart():
    size = FetchSize(MB, 8 * MB, 30)
    size.answered(MB, 0, 0.1)
    size.restart(1)
    size.answered(2 * MB, 0.9, 1.1)
    assert size.bytes == MB
    size.answered(MB, 1.1, 1.2)
    assert size.bytes == 2 * MB


@pytest.mark.parametrize(("partitions", "most"), [(0, 4), (1, 4), (8, 4), (16, 2), (32, 1), (1000, 1)])
def test_all_partitions_share_a_sum_if_records_are_returned_one_by_one(partitions, most):
    size = FetchSize(MB, 8 * MB, 30)
    for _ in range(5):
        size.limit(records_limit(partitions))
        size.answered(size.bytes, 0, 0.01)
    assert size.bytes == most * MB


def test_a_limit_that_changes_applies_at_once():
    size = FetchSize(MB, 8 * MB, 30)
    sizes = []
    for limit in (8, 8, 8, 8, 2, 0, 16, 16, 16, 16):
        size.limit(limit * MB)
        sizes.append(size.bytes)
        size.answered(size.bytes, 0, 0.01)
    assert sizes == [MB, 2 * MB, 4 * MB, 8 * MB, 2 * MB, MB, MB, 2 * MB, 4 * MB, 8 * MB]


def test_a_slow_response_of_a_limited_size_shrinks_the_next_one():
    size = FetchSize(MB, 8 * MB, 30)
    for _ in range(5):
        size.answered(size.bytes, 0, 0.01)
    size.limit(2 * MB)
    size.answered(2 * MB, 0, 5)
    assert size.bytes == MB


def test_records_keep_a_first_size_above_their_limit():
    size = FetchSize(6 * MB, 8 * MB, 30)
    size.limit(records_limit(1))
    assert size.bytes == 6 * MB


def test_the_first_size_may_be_the_largest():
    size = FetchSize(4 * MB, MB, 30)
    size.answered(4 * MB, 0, 0.01)
    assert size.bytes == 4 * MB


def test_who_reads_records_and_batches_gets_requests_of_the_first_size():
    size = FetchSize(MB, 8 * MB, 30)
    size.asked_for_batches()
    assert size.next_bytes(1) == MB
    for sent_at in range(10):
        size.answered(size.bytes, sent_at, sent_at + 0.1)
    assert size.next_bytes(1) == 8 * MB
    size.returned_records()
    assert size.next_bytes(1) == MB
