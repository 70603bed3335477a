"""Storms of units: see unit_storm.py. `make simulate KIND=units SEEDS=10000` plays more of them."""

from __future__ import annotations

import pytest
from tiers import in_tiers
from unit_storm import run_storm
from unit_storm_groups import run_group_storm
from unit_storm_recreated import run_any_storm

from kafkasafe.spool import lanes
from kafkasafe.testing.disk import DiskFiles


@pytest.mark.parametrize("seed", in_tiers(20, fast=8))
def test_units_are_committed_once_whole_and_in_order(seed):
    run_any_storm(seed)


@pytest.mark.parametrize("turn", range(4, 24, 5))
def test_units_in_topics_that_are_deleted_and_created_again(turn):
    """What is lost with them is reported, or put back; all else is there, once, in order, and whole."""
    storms = [run_any_storm(4 * turn + variant) for variant in range(4)]
    assert all(sum(storm.times.values()) for storm in storms)
    assert any(any(storm.gone.values()) for storm in storms)


@pytest.mark.parametrize("seed", in_tiers(12, fast=6))
def test_each_record_that_a_group_is_past_is_in_the_output_once(seed):
    """Whatever becomes of its members, their processes and the group while their batches wait."""
    run_group_storm(seed)


def test_a_late_request_with_what_was_never_durable_is_behind_nothing():
    """A seed in which such a record came after those of the next life: no order was promised to it."""
    storm = run_storm(20291)
    assert any(name not in storm.durable for log in storm.sent.values() for name in log)


def test_an_end_whose_marker_only_a_lost_leader_had_is_written_again():
    """A seed in which the cluster took a transaction for ended before the marker was on every replica in sync."""
    run_storm(84863)


def test_nothing_of_a_storm_stays_in_memory():
    """Each left 0.4 MB: the disks of its dead processes, which close no files."""
    for seed in range(8):
        run_any_storm(seed)
    assert not [files for files, _ in lanes.lock._lockable if isinstance(files, DiskFiles)]
