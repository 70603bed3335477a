"""A table of a consumer's events: the level at which each event is logged, and the metrics that it changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from kafkasafe.events import (
    ConsumerEvent,
    EndOffsetHeld,
    EndOffsetRegressed,
    LogDiverged,
    LossCheckInconclusive,
    PartitionNotReady,
    PartitionReady,
    PositionReset,
    PositionRewound,
)
from kafkasafe.stats import ConsumerStats

_Event = TypeVar("_Event", bound=ConsumerEvent)


@dataclass(frozen=True, slots=True)
class Row(Generic[_Event]):
    """How `Reports` handles the events of one class.

    Attributes:
        level: Logging level of an event, or a function that returns the level. docs/log-events.md lists the levels.
        count: Function that changes the event's metrics; None if the event has no metric.
    """

    level: int | Callable[[_Event], int]
    count: Callable[[ConsumerStats, _Event], None] | None

    def level_of(self, event: _Event) -> int:
        return self.level if isinstance(self.level, int) else self.level(event)


def _row(
    event: type[_Event],
    level: int | Callable[[_Event], int],
    count: Callable[[ConsumerStats, _Event], None] | None,
) -> tuple[type[Any], Row[Any]]:
    """Make a row. This function exists so that mypy checks `level` and `count` against the event's class."""
    return event, Row(level, count)


def _divergence(stats: ConsumerStats, event: LogDiverged) -> None:
    first, last = event.rolled_back
    stats.divergences[event.topic] += 1
    stats.diverged_records[event.topic] += last - first + 1


def _inconclusive(stats: ConsumerStats, event: LossCheckInconclusive) -> None:
    stats.history_trimmed[event.topic] += 1


def _reset(stats: ConsumerStats, event: PositionReset) -> None:
    stats.resets[event.topic, event.reason] += 1
    if event.skipped is not None:
        first, last = event.skipped
        stats.skipped_records[event.topic] += last - first + 1


def _level_of_reset(event: PositionReset) -> int:
    return logging.INFO if event.skipped is None else logging.WARNING


def _ready(stats: ConsumerStats, event: PartitionReady) -> None:
    stats.not_ready_s[event.topic] += event.after_s


def _held(stats: ConsumerStats, event: EndOffsetHeld) -> None:
    if event.look_up == "latest":  # other look-ups have no metric
        stats.held[event.topic, event.reason] += 1


def _regression(stats: ConsumerStats, event: EndOffsetRegressed) -> None:
    if event.look_up == "latest":
        stats.regressions[event.topic, event.reason] += 1


ROWS: Final[Mapping[type[Any], Row[Any]]] = dict(
    (
        _row(LogDiverged, logging.ERROR, _divergence),
        _row(LossCheckInconclusive, logging.INFO, _inconclusive),
        _row(PositionReset, _level_of_reset, _reset),
        # When a position is rewound, the consumer neither loses nor skips a record. The producer has a metric for
        # dropped batches.
        _row(PositionRewound, logging.INFO, None),
        _row(PartitionNotReady, logging.INFO, None),  # `PartitionReady` has the metric
        _row(PartitionReady, logging.INFO, _ready),
        _row(EndOffsetHeld, logging.INFO, _held),
        _row(EndOffsetRegressed, logging.ERROR, _regression),
    )
)
"""Each class of the union `ConsumerEvent` has a row."""
