from __future__ import annotations

import pytest

from kafkasafe.delivery.clocks import Clocks

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
SHARED, OTHER = ("shared", 0), ("other", 3)


def clocks() -> Clocks:
    """Of a producer that began at 1000 s, at brokers that remember for a day."""
    return Clocks(1000.0, 6 * 3600.0)


def test_it_asks_of_one_partition_a_minute_and_of_each_once_an_hour() -> None:
    known = clocks()
    assert not known.asks(SHARED, 1000.0)
    assert not known.asks(SHARED, 1059.0)
    assert known.asks(SHARED, 1060.0)
    assert not known.asks(OTHER, 1119.0)
    assert not known.asks(SHARED, 1120.0)
    assert known.asks(OTHER, 1120.0)
    assert not known.asks(SHARED, 4659.0)
    assert known.asks(SHARED, 4660.0)


def test_without_an_answer_a_partition_is_asked_again_a_minute_later() -> None:
    known = clocks()
    assert known.asks(SHARED, 1060.0)
    known.unanswered(SHARED)
    assert not known.asks(SHARED, 1119.0)
    assert known.asks(SHARED, 1120.0)


def test_nobody_is_asked_while_a_broker_tells_the_time_and_what_was_heard_does_not_count() -> None:
    known = clocks()
    known.listed(SHARED, NOW_MS + 25 * HOUR_MS, 1060.0, NOW_MS)
    known.stamped(2000.0)
    assert known.at_least_ms == 0
    assert not known.asks(SHARED, 5599.0)
    assert known.asks(SHARED, 5600.0)


def test_the_latest_clock_is_taken_less_the_hour_that_brokers_allow() -> None:
    known = clocks()
    assert known.listed(SHARED, NOW_MS + 25 * HOUR_MS, 1060.0, NOW_MS)
    assert known.at_least_ms == NOW_MS + 24 * HOUR_MS
    known.listed(OTHER, NOW_MS, 1120.0, NOW_MS)
    assert known.at_least_ms == NOW_MS + 24 * HOUR_MS
    # The newest answer about a partition counts.
    known.listed(SHARED, NOW_MS + 2 * HOUR_MS, 4660.0, NOW_MS)
    assert known.at_least_ms == NOW_MS + HOUR_MS


@pytest.mark.parametrize(("ahead_ms", "said"), [(7 * HOUR_MS, False), (7 * HOUR_MS + 1, True)])
def test_it_is_said_where_brokers_may_forget(ahead_ms, said) -> None:
    assert clocks().listed(SHARED, NOW_MS + ahead_ms, 1060.0, NOW_MS) is said


def test_it_is_said_once_an_hour() -> None:
    known, ahead = clocks(), NOW_MS + 25 * HOUR_MS
    assert known.listed(SHARED, ahead, 1060.0, NOW_MS)
    assert not known.listed(OTHER, ahead, 1120.0, NOW_MS)
    assert known.listed(SHARED, ahead, 4660.0, NOW_MS)


def test_what_this_producer_wrote_says_nothing_even_if_the_user_stamped_it() -> None:
    known, ahead = clocks(), NOW_MS + 30 * HOUR_MS
    known.sent(SHARED, ahead)
    known.sent(SHARED, NOW_MS)
    assert not known.listed(SHARED, ahead, 1060.0, NOW_MS)
    assert known.at_least_ms == 0
    assert known.listed(SHARED, ahead + 1, 4660.0, NOW_MS)
    # Written to another partition it says nothing of this one.
    assert known.at_least_ms == ahead + 1 - HOUR_MS


@pytest.mark.parametrize("stamp", [-1, NOW_MS * 1000, 2**63 - 1])
def test_an_empty_partition_and_what_is_no_time_in_ms_say_nothing(stamp) -> None:
    known = clocks()
    assert known.listed(SHARED, NOW_MS + 25 * HOUR_MS, 1060.0, NOW_MS)
    assert not known.listed(SHARED, stamp, 4660.0, NOW_MS)
    assert known.at_least_ms == 0


def test_a_clock_that_starts_in_1970_is_far_behind() -> None:
    assert clocks().listed(SHARED, NOW_MS, 1060.0, 60_000)
