"""In all histories of the simulation a journal that reads its log back remembers what the living one does."""

from __future__ import annotations

import pytest
from memory import differences, is_written

from kafkasafe.testing.disk import ProcessKilled

from .plan import plan_of
from .storm import Storm, play

SEEDS = 6


@pytest.fixture
def compared(monkeypatch):
    """How often the two were compared, after each event."""
    seen = []
    bounds = Storm._bounds

    def compare(storm):
        bounds(storm)
        if storm.settings.spool != "always":
            return  # what was acknowledged before it had to be written is in memory only
        for life in storm.world.lives:
            for lane in life.context.lanes:
                if is_written(lane):
                    try:
                        wrong = differences(storm.world, lane)
                    except (OSError, ProcessKilled):
                        continue  # that disk fails
                    assert wrong == []
                    seen.append(lane)

    monkeypatch.setattr(Storm, "_bounds", compare)
    return seen


@pytest.mark.parametrize("kind", ["all", "adopted", "refused", "lossy", "recreated", "room", "many"])
def test_a_log_read_back_says_what_the_living_journal_knows(kind, compared):
    for seed in range(SEEDS):
        play(plan_of(seed, kind))
    assert len(compared) > 10 * SEEDS
