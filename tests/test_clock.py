"""A clock that counts the machine's sleep."""

from __future__ import annotations

import time

from kafkasafe.delivery.clock import SleepingClock, elapsed_s


def test_sleep_is_in_the_time_and_reported_once_before_the_first_time_with_it():
    times = {"awake": 50.0, "slept": 1000.0}
    told = []
    clock = SleepingClock(
        lambda seconds, now: told.append((seconds, now)),
        elapsed=lambda: times["awake"] + times["slept"],
        awake=lambda: times["awake"],
    )
    assert clock.now() == 1050
    times["awake"] += 5
    assert (clock.now(), told) == (1055, [])
    times["slept"] += 7200
    assert (clock.now(), told) == (8255, [(7200, 8255)])
    times["awake"] += 1
    assert clock.now() == 8256
    assert len(told) == 1


def test_the_clock_is_the_one_that_goes_on_in_sleep():
    kind = time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC
    before = time.clock_gettime(kind)
    assert before <= elapsed_s() <= time.clock_gettime(kind)
