"""Histories, and what they are worth."""

from __future__ import annotations

from collections import Counter

import pytest
from tiers import in_tiers

from .mutants import ENGINE
from .plan import KINDS, plan_of
from .shrink import found, ranges, shrink
from .storm import play
from .unplanned import CONSUMER, PLAYERS, UNITS, player_of

CHUNK = 15


@pytest.mark.parametrize("chunk", in_tiers(16, fast=6))
def test_no_history_breaks_a_promise(chunk):
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        try:
            play(plan_of(seed))
        except AssertionError as violation:
            violation.add_note(f"make simulate SEED={seed} tells more, and shrinks it")
            raise


@pytest.mark.parametrize("chunk", range(2))
def test_a_spool_in_which_partitions_are_stuck_is_bounded(chunk):
    """And what is copied forward in it is delivered once, in order."""
    for seed in range(chunk * 6, (chunk + 1) * 6):
        play(plan_of(seed, "room"))


@pytest.mark.parametrize(
    "kind",
    ["late refusals", "holes", "first lives", "broken", "former topics", "adopted in little room"],
)
def test_histories_of_what_is_rare_elsewhere_break_no_promise(kind):
    for seed in range(8):
        play(plan_of(seed, kind))


def test_a_history_with_the_same_seed_is_the_same_history():
    plan = plan_of(3, "lanes")
    runs = [play(plan, trace=True).world.lines for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) > 50


@pytest.mark.parametrize("kind", KINDS)
def test_events_of_all_kinds_do_something(kind):
    """Records are accepted and promised, producers begin anew, and it is not all the same."""
    storms = [play(plan_of(seed, kind)) for seed in range(6)]
    assert sum(len(storm.book.records) for storm in storms) > 20
    assert all(record.durable for storm in storms for record in storm.book.records.values() if record.acked)
    assert sum(record.durable for storm in storms for record in storm.book.records.values()) > 10


def test_what_is_shrunk_breaks_the_same_promise(monkeypatch):
    mutant = ENGINE["send before sync"]
    mutant.change(monkeypatch)
    plan = next(
        plan for seed in range(20) if (violation := found(plan := plan_of(seed, mutant.kind))) is not None
    )
    violation = found(plan)
    keep = shrink(plan, violation.name)
    assert 1 <= len(keep) <= 4 < len(plan.events)
    assert found(plan.only(keep)).name == violation.name


def test_ranges_are_as_keep_takes_them():
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


@pytest.mark.parametrize(("kind", "counted"), [(UNITS, "units"), (CONSUMER, "records returned")])
def test_unplanned_histories_are_played_and_counted(kind, counted):
    counts = Counter()
    for seed in range(3):
        PLAYERS[kind](seed, counts, False)
    assert counts[counted] > 10


def test_only_a_kind_asks_for_histories_of_a_consumer():
    assert player_of(5, CONSUMER) == (CONSUMER, PLAYERS[CONSUMER])
    assert {found[0] for seed in range(100) if (found := player_of(seed, ""))} == {UNITS}
    assert player_of(5, "lanes") is None
