"""How much goes out to a broker before it answers: pure."""

import pytest

from kafkasafe.limits.uplink import UplinkBudget

MIB = 1024 * 1024


def deliver(link, bytes_per_s, batches, size):
    """Send whatever there is room for over a way that carries so much; returns (most that was out, seconds)."""
    now, most, out, free_at = 0.0, 0, [], 0.0
    while batches or out:
        while batches and link.has_room(size):
            free_at = max(free_at, now) + size / bytes_per_s
            out.append((free_at, link.send(1, size, 0, now)))
            most = max(most, link.out_bytes)
            batches -= 1
        now, ticket = out.pop(0)
        link.answered(ticket, now)
    assert link.out_bytes == 0
    return most, now


def test_a_slow_link_has_one_large_batch_out_at_a_time():
    link = UplinkBudget(30.0)
    most, _ = deliver(link, 30_000, 10, MIB)
    assert most == MIB
    assert link.bytes_per_s == pytest.approx(30_000, rel=0.01)


def test_a_slow_link_is_kept_busy():
    link = UplinkBudget(30.0)
    most, took_s = deliver(link, 150_000, 300, 16_000)
    assert took_s == pytest.approx(300 * 16_000 / 150_000)
    assert most <= 150_000 * 30 / 3, "all of it is answered long before a request times out"


def test_a_fast_link_soon_has_much_out():
    most, _ = deliver(UplinkBudget(30.0), 100e6, 200, MIB)
    assert most > 64 * MIB


def test_of_an_unknown_link_small_batches_go_together_and_large_ones_alone():
    link = UplinkBudget(30.0)
    for _ in range(10):
        assert link.has_room(10_000)
        link.send(1, 10_000, 0, 0.0)
    assert not link.has_room(MIB)
    assert UplinkBudget(30.0).has_room(100 * MIB)


def test_what_timed_out_goes_alone_and_has_longer():
    link = UplinkBudget(30.0)
    deliver(link, 100e6, 50, MIB)
    tickets = [link.send(1, MIB, 0, 10.0) for _ in range(5)]
    for ticket in tickets:
        link.failed(ticket, timed_out=True)
    assert not link.ready
    assert link.patience_s(MIB, timeouts=0) == 0
    assert link.patience_s(MIB, timeouts=1) == 30.0
    link.send(1, 1000, 0, 50.0)
    assert not link.has_room(100_000)


def test_the_answer_to_a_batch_behind_others_may_take_as_long_as_all_of_them_need():
    link = UplinkBudget(3.0)
    deliver(link, 150_000, 5, 100_000)
    assert link.patience_s(MIB, timeouts=0) > MIB / 150_000
