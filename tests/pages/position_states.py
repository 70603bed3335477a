"""The states of a position in docs/epochs.md, from the tables of `kafkasafe._consuming.position_table`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

from kafkasafe._consuming.position_table import ACTIVITY, STANDING, Action
from tests.pages import DOCS, filled, table

PATH: Final = DOCS / "epochs.md"


def _table(head: str, states: Mapping[Any, Mapping[Any, tuple[enum.Enum, tuple[Action, ...]]]]) -> str:
    rows = [
        (state.name, event.value, to.name, ", ".join(action.value for action in actions) or "–")
        for state, follows in states.items()
        for event, (to, actions) in follows.items()
    ]
    return table((head, "event", "next", "actions"), rows)


def text() -> str:
    """The page."""
    return filled(
        PATH,
        {
            "position activities": _table("activity", ACTIVITY),
            "position standings": _table("standing", STANDING),
        },
    )
