"""A clock that counts the machine's sleep."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import uuid

import pytest

from kafkasafe.delivery.clock import SleepingClock, boot_id_of, elapsed_s, read_clock


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


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare")
def test_in_another_time_namespace_the_boot_has_another_id():
    """The kernel's boot id is the same there, but the time since the boot is another."""
    program = "from kafkasafe.delivery.clock import read_clock; print(read_clock().boot_id.hex())"
    here = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    away = ["unshare", "--user", "--map-root-user", "--time", "--monotonic", "100000"]
    there = [
        subprocess.run(
            [*away, sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
        for _ in range(2)
    ]
    if any(each.returncode for each in there):
        pytest.skip(f"no time namespace: {there[0].stderr}")
    assert here.stdout == read_clock().boot_id.hex() + "\n"
    assert there[0].stdout == there[1].stdout != here.stdout


@pytest.mark.parametrize(
    ("offsets", "is_same"),
    [
        ("monotonic           0         0\nboottime            0         0\n", True),
        ("", True),
        ("monotonic      100000         0\nboottime            0         0\n", False),
        ("monotonic           0         5\nboottime            0         0\n", False),
    ],
)
def test_the_boot_id_depends_on_the_offset_of_the_clock(offsets: str, is_same: bool):
    boot = uuid.uuid4()
    assert (boot_id_of(f"{boot}\n", offsets) == boot.bytes) is is_same
