"""Histories without a `Plan`: events are drawn while the history is played, so the seed is all that describes it.

Such a history cannot be shrunk. `PLAYERS` has the kinds: storms of atomic batches, and histories of a consumer.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import consumer_world
from unit_storm_recreated import run_any_storm

from .plan import is_of_units
from .world import pinned

UNITS: Final = "units"
CONSUMER: Final = "consumer"

Player = Callable[[int, "Counter[str]", bool], None]
"""Gets a seed, what happened in the histories so far, and whether to print the history. It raises what is broken."""


def _play_units(seed: int, counts: Counter[str], _show: bool) -> None:
    """A storm of atomic batches (tests/engine/unit_storm_recreated.py). A violation has what happened as its notes."""
    with pinned():
        storm = run_any_storm(seed)
    counts["lives"] += 1 + storm.killed
    counts["units"] += storm.world.units
    # Storms of consumers' offsets promise none by name: they compare what is read with what was written.
    counts["promised"] += len(getattr(storm, "durable", ()))


def _play_consumer(seed: int, counts: Counter[str], show: bool) -> None:
    """A history of a consumer (tests/consumer/consumer_world.py)."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        counts += consumer_world.play(seed, show=show).counts
    finally:
        logging.disable(level)


PLAYERS: Final[Mapping[str, Player]] = {UNITS: _play_units, CONSUMER: _play_consumer}


def player_of(seed: int, kind: str) -> tuple[str, Player] | None:
    """The kind of an unplanned history, and what plays it; None for a history that has a plan."""
    name = kind or (UNITS if is_of_units(seed) else "")
    return (name, PLAYERS[name]) if name in PLAYERS else None
