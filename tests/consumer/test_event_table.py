"""Each event of a consumer has a row: its log level, and the metrics that it moves."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from kafkasafe import events
from kafkasafe._consuming.event_table import ROWS
from kafkasafe._consuming.reports import Reports

OF_CONSUMERS = typing.get_args(events.ConsumerEvent)


def some(kind, **fields):
    """An event of a class. Each field that is not given has a number."""
    return kind(**({field.name: 1 for field in dataclasses.fields(kind)} | {"topic": "t"} | fields))


def moved(event):
    """The counters that an event moves: by name, what was added."""
    reports = Reports("me", None)
    reports.emit(event)
    found = {name: dict(now) for name, now in vars(reports.stats).items() if isinstance(now, dict) and now}
    assert found.pop("events") == {type(event).__name__: 1}
    return found


def test_each_event_has_a_row():
    assert set(OF_CONSUMERS) == ROWS.keys()


@pytest.mark.parametrize(
    ("event", "counters"),
    [
        (
            some(events.LogDiverged, rolled_back=(5, 9)),
            {"divergences": {"t": 1}, "diverged_records": {"t": 5}},
        ),
        (some(events.LossCheckInconclusive), {"history_trimmed": {"t": 1}}),
        (
            some(events.PositionReset, reason="retention", skipped=(5, 9)),
            {"resets": {("t", "retention"): 1}, "skipped_records": {"t": 5}},
        ),
        (some(events.PositionReset, reason="retention", skipped=None), {"resets": {("t", "retention"): 1}}),
        (some(events.PositionRewound), {}),
        (some(events.PartitionNotReady), {}),
        (some(events.PartitionReady, after_s=1.5), {"not_ready_s": {"t": 1.5}}),
        (some(events.EndOffsetHeld, reason="lower", look_up="latest"), {"held": {("t", "lower"): 1}}),
        (some(events.EndOffsetHeld, reason="lower", look_up="earliest"), {}),
        (
            some(events.EndOffsetRegressed, reason="truncated", look_up="latest"),
            {"regressions": {("t", "truncated"): 1}},
        ),
        (some(events.EndOffsetRegressed, reason="truncated", look_up="earliest"), {}),
    ],
)
def test_which_counters_an_event_moves(event, counters):
    assert moved(event) == counters


def test_a_moved_counter_is_tried_for_each_event():
    """The table of the test above has each event."""
    (mark,) = [each for each in test_which_counters_an_event_moves.pytestmark if each.name == "parametrize"]
    assert {type(event) for event, _ in mark.args[1]} == set(OF_CONSUMERS)


def test_named_counters():
    reports = Reports("me", None)
    assert reports.stats.named() == {}
    reports.emit(some(events.PositionRewound))
    reports.lineage_not_written()
    assert reports.stats.named() == {"PositionRewound": 1, "lineage_write_errors": 1}
    reports.stats.named().clear()
    assert reports.stats.named()
