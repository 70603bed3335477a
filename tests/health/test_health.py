"""What makes a producer unready, what is only a warning, and what ends it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe.health.states import (
    ConsumerSeen,
    ProducerSeen,
    consumer_health,
    producer_health,
    unopened_producer,
)
from kafkasafe.limits.capacity import FREE_BYTES, Capacity

MIB = 1 << 20
WELL = ProducerSeen(
    closed="",
    forked=False,
    failure="",
    wrong_cluster="",
    undecidable=(),
    disk_trouble="",
    disk_full=False,
    displaced=False,
    undurable_s=0.0,
    disk_patience_s=10.0,
    capacity=Capacity(100 * MIB, 10 * MIB, MIB, 32 * MIB, 1000 * MIB),
    needed_bytes=2 * MIB,
    in_memory=False,
    spool_bytes=10 * MIB,
    spool_max_bytes=120 * MIB,
    callbacks_behind=False,
    blocked=(),
    damaged=(),
    losses=0,
    connected=True,
    network_error=None,
    waiting_records=7,
    oldest_s=1.5,
)


def look(**changes):
    return producer_health(dataclasses.replace(WELL, **changes))


def names(reasons):
    return [each.name for each in reasons]


def test_a_producer_that_is_well():
    health = look()
    assert (health.ready, health.alive, health.connected) == (True, True, True)
    assert (health.reasons, health.warnings) == ((), ())
    assert (health.waiting_records, health.oldest_record_age_s) == (7, 1.5)
    assert (health.spool_bytes, health.spool_max_bytes, health.room_bytes) == (10 * MIB, 120 * MIB, 89 * MIB)


def test_an_outage_is_no_reason():
    health = look(connected=False, network_error="refused")
    assert (health.ready, health.connected, health.network_error) == (True, False, "refused")
    assert (health.reasons, health.warnings) == ((), ())


@pytest.mark.parametrize(
    ("changes", "name", "text"),
    [
        ({"wrong_cluster": "cluster B answers"}, "wrong_cluster", "cluster B answers"),
        ({"undecidable": ["fenced"]}, "undecidable", "1 batch reached the log cannot be determined (fenced)"),
        ({"undecidable": list("abcde")}, "undecidable", "5 batches .* (a; b; c; and 2 more)"),
        ({"disk_trouble": "EIO"}, "disk_failed", "EIO"),
        ({"disk_trouble": "ENOSPC", "disk_full": True}, "volume_full", "ENOSPC"),
        ({"displaced": True, "disk_trouble": "moved"}, "spool_displaced", "moved"),
        ({"displaced": True}, "spool_displaced", "not where its path leads"),
        ({"displaced": True, "disk_trouble": "moved", "disk_full": True}, "spool_displaced", "moved"),
        ({"undurable_s": 10.0}, "disk_stuck", "10 s"),
        ({"capacity": Capacity(100 * MIB, 99 * MIB, 0)}, "spool_full", "spool_max_bytes is 125,829,120"),
        ({"capacity": Capacity(100 * MIB, 90 * MIB, 9 * MIB)}, "spool_full", "2,097,152 bytes"),
        ({"capacity": Capacity(100 * MIB, 0, 0, 32 * MIB, FREE_BYTES + MIB)}, "volume_full", "5,242,880"),
        ({"callbacks_behind": True}, "callbacks_behind", "callbacks"),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_what_stops_it_is_a_reason_and_it_stays_alive(changes, name, text):
    health = look(**changes)
    assert (health.ready, health.alive, names(health.reasons)) == (False, True, [name])
    for part in text.split(" .* "):
        assert part in health.reasons[0].text
    assert str(health.reasons[0]).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"closed": "closed"}, "closed"),
        ({"closed": "of the parent", "forked": True}, "forked"),
        ({"failure": "lane busy"}, "failed"),
        ({"closed": "closed", "failure": "lane busy"}, "closed"),
    ],
)
def test_what_ended_it_is_the_only_reason(changes, name):
    health = look(**changes, disk_trouble="EIO", undecidable=["fenced"], losses=1, blocked=["orders"])
    assert (health.ready, health.alive, health.connected) == (False, False, False)
    assert names(health.reasons) == [name]
    assert (health.warnings, health.room_bytes) == ((), 0)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"losses": 2}, "data_loss"),
        ({"blocked": ["orders: 29"]}, "blocked"),
        ({"damaged": ["orders-1"]}, "damaged"),
    ],
)
def test_what_a_send_to_another_topic_passes_by_is_a_warning(changes, name):
    health = look(**changes)
    assert health.ready
    assert names(health.warnings) == [name]


def test_what_the_disk_is_about_to_write_is_no_reason():
    """The same bytes at the next moment are on disk: a probe would go up and down under load."""
    capacity = Capacity(100 * MIB, 0, 32 * MIB, 32 * MIB, 1000 * MIB)
    assert not capacity.takes(WELL.needed_bytes)
    assert look(capacity=capacity, undurable_s=0.2).ready


def test_memory_that_is_full():
    health = look(in_memory=True, capacity=Capacity(32 * MIB, 0, 31 * MIB), undurable_s=600.0)
    assert names(health.reasons) == ["spool_full"]
    assert "in memory" in health.reasons[0].text


def test_before_the_start_and_after_an_end_without_one():
    before, after = unopened_producer(closed=False), unopened_producer(closed=True)
    assert (before.ready, before.alive, names(before.reasons)) == (False, True, ["not_started"])
    assert (after.ready, after.alive, names(after.reasons)) == (False, False, ["closed"])


def test_it_is_plain_values_for_json():
    health = look(undecidable=["fenced"], losses=1)
    read = json.loads(json.dumps(health.as_dict()))
    assert read["reasons"][0]["name"] == "undecidable"
    assert read["warnings"][0]["name"] == "data_loss"
    assert {*read} == {field.name for field in dataclasses.fields(health)}


_SIZES = st.integers(0, 1 << 40)
_CAPACITIES = st.builds(
    Capacity,
    _SIZES,
    _SIZES,
    _SIZES,
    st.one_of(_SIZES, st.just(float("inf"))),
    st.one_of(_SIZES, st.just(float("inf"))),
)


@given(_CAPACITIES, st.integers(1, 1 << 30))
def test_what_is_taken_fits_below_all_limits(capacity, needed):
    """As it was written before: three comparisons in `Ledger.room`."""
    used, backlog = capacity.used_bytes, capacity.backlog_bytes
    assert capacity.takes(needed) == (
        (not backlog or backlog + needed <= capacity.backlog_limit_bytes)
        and used + backlog + needed <= capacity.limit_bytes
        and capacity.free_bytes >= backlog + needed + FREE_BYTES
    )
    assert capacity.takes(needed) <= (needed <= capacity.room_bytes)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "closed": st.sampled_from(["", "closed"]),
            "forked": st.booleans(),
            "failure": st.sampled_from(["", "failed"]),
            "wrong_cluster": st.sampled_from(["", "other"]),
            "undecidable": st.lists(st.just("fenced"), max_size=5),
            "disk_trouble": st.sampled_from(["", "EIO"]),
            "disk_full": st.booleans(),
            "displaced": st.booleans(),
            "undurable_s": st.floats(0, 100),
            "capacity": _CAPACITIES,
            "callbacks_behind": st.booleans(),
            "losses": st.integers(0, 3),
            "connected": st.booleans(),
        },
    )
)
def test_ready_and_its_reasons_never_contradict_each_other(changes):
    health = look(**changes)
    assert health.ready == (not health.reasons)
    assert health.alive or not health.ready
    assert all(each.text for each in (*health.reasons, *health.warnings))
    # Connections have no part in it.
    assert look(**{**changes, "connected": not health.connected}).reasons == health.reasons


# -- consumers ---------------------------------------------------------------------------------------------------------

READING = ConsumerSeen(
    closed=False, connected=True, last_poll_age_s=1.0, max_poll_interval_s=300.0, stopped={}
)


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, []),
        ({"connected": False}, []),
        ({"last_poll_age_s": None}, []),
        ({"last_poll_age_s": 300.5}, ["poll_overdue"]),
        ({"stopped": {("orders", 2): "truncated"}}, ["partitions_stopped"]),
        ({"last_poll_age_s": 301.0, "stopped": {("orders", 2): "x"}}, ["poll_overdue", "partitions_stopped"]),
        ({"closed": True, "last_poll_age_s": 301.0, "stopped": {("orders", 2): "x"}}, ["closed"]),
    ],
)
def test_a_consumer(changes, reasons):
    health = consumer_health(dataclasses.replace(READING, **changes))
    assert names(health.reasons) == reasons
    assert health.ready == (not reasons)
    assert health.stopped_partitions == tuple(changes.get("stopped", ()))
    assert json.loads(json.dumps(health.as_dict()))["ready"] == health.ready
