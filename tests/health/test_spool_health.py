"""What an outsider says of a spool directory."""

from __future__ import annotations

import dataclasses

import pytest

from kafkasafe import marks as m
from kafkasafe.health.spool import NEEDED_BYTES, LaneSeen, SpoolSeen, spool_health
from kafkasafe.limits.capacity import FREE_BYTES
from kafkasafe.spool.steps import undecidable_in

MIB = 1 << 20
LANE = LaneSeen(
    name="lane-000",
    owner_pid=7,
    strays_to="",
    size_bytes=10 * MIB,
    waiting_records=5,
    oldest_s=60.0,
    in_doubt_batches=1,
    undecidable_batches=0,
    rejected_records=0,
    damaged=0,
)
WELL = SpoolSeen(
    lanes=(LANE,),
    unreadable=(),
    failing_starts=(),
    free_bytes=500 * MIB,
    read_only=False,
    not_writable="",
    limit_bytes=None,
    max_age_s=None,
)


def look(lane=None, **changes):
    seen = dataclasses.replace(WELL, lanes=(dataclasses.replace(LANE, **(lane or {})),))
    return spool_health(dataclasses.replace(seen, **changes))


def names(reasons):
    return [each.name for each in reasons]


def test_records_that_wait_are_what_a_spool_is_for():
    health = look()
    assert (health.ready, health.reasons, health.warnings) == (True, (), ())
    assert (health.waiting_records, health.oldest_record_age_s) == (5, 60.0)
    assert health.room_bytes == 500 * MIB - FREE_BYTES


@pytest.mark.parametrize(
    ("lane", "changes", "name"),
    [
        ({}, {"read_only": True}, "read_only"),
        ({}, {"not_writable": "/spool/FORMAT"}, "not_writable"),
        ({}, {"free_bytes": FREE_BYTES + NEEDED_BYTES - 1}, "volume_full"),
        ({}, {"limit_bytes": 11 * MIB}, "spool_full"),
        ({"strays_to": "/away"}, {}, "spool_displaced"),
        ({"undecidable_batches": 2}, {}, "undecidable"),
        ({}, {"failing_starts": ["lane-001: damaged"]}, "start_fails"),
    ],
)
def test_what_keeps_a_producer_from_accepting(lane, changes, name):
    health = look(lane, **changes)
    assert (health.ready, names(health.reasons)) == (False, [name])


@pytest.mark.parametrize(
    ("lane", "changes", "name"),
    [
        ({}, {"unreadable": ["lane-001: a file"]}, "unreadable"),
        ({"damaged": 1}, {}, "damaged"),
        ({"rejected_records": 3}, {}, "rejected"),
        ({"owner_pid": 0}, {}, "no_owner"),
        ({"owner_pid": 0, "same_lane_id": ["lane-001"]}, {}, "copied"),
        ({}, {"max_age_s": 59.0}, "too_old"),
    ],
)
def test_what_needs_an_operator_and_keeps_none_from_accepting(lane, changes, name):
    health = look(lane, **changes)
    assert (health.ready, names(health.warnings)) == (True, [name])


@pytest.mark.parametrize(
    ("lane", "changes"),
    [
        ({}, {"free_bytes": FREE_BYTES + NEEDED_BYTES}),
        ({}, {"limit_bytes": 12 * MIB}),
        (
            {"owner_pid": 0, "waiting_records": 0},
            {"limit_bytes": 10 * MIB},
        ),  # the next one makes room at its start
        ({}, {"max_age_s": 60.0}),
        ({"waiting_records": 0}, {"max_age_s": 1.0}),
        ({"undecidable_batches": 1, "owner_pid": 0, "waiting_records": 0}, {}),  # the next one asks again
    ],
)
def test_what_is_just_well(lane, changes):
    health = look(lane, **changes)
    assert (health.reasons, health.warnings) == ((), ())


def test_the_room_is_that_of_the_fullest_lane():
    lanes = (LANE, dataclasses.replace(LANE, name="lane-001", size_bytes=90 * MIB))
    assert look(lanes=lanes, limit_bytes=100 * MIB).room_bytes == 10 * MIB
    assert look(lanes=(), limit_bytes=100 * MIB).room_bytes == 100 * MIB
    assert look(read_only=True).room_bytes == 0


def test_a_decision_and_a_copy_of_what_waits_for_one():
    groups = [
        (0, (), [(11, True), (12, True)]),
        (20, (m.Undecidable(11, "fenced"), m.Undecidable(12, "fenced")), []),
        (30, (m.Resolved(12, m.Decision.SKIP),), []),
    ]
    assert undecidable_in(groups) == {11: 20}
    moved = (40, (m.Moved((m.Move(11, 11, (11,)),)),), [(41, True)])
    assert undecidable_in([*groups, moved]) == {41: 20}
