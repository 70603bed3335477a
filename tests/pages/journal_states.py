"""The states of a batch in docs/design.md, from the table of `kafkasafe._core.journal.lifecycle`."""

from __future__ import annotations

from typing import Final

from kafkasafe._core.journal.lifecycle import STATE, BatchEvent, State
from tests.pages import DOCS, filled, table

PATH: Final = DOCS / "design.md"


def _row(state: State, follows: dict[BatchEvent, State]) -> tuple[str, str]:
    by_state: dict[State, list[str]] = {}
    for event, to in follows.items():
        by_state.setdefault(to, []).append(event.value)
    return state.name, "; ".join(f"{', '.join(events)} → {to.name}" for to, events in by_state.items())


def text() -> str:
    """The page."""
    rows = [_row(state, follows) for state, follows in STATE.items()]
    return filled(PATH, {"batch states": table(("state", "events → the next state"), rows)})
