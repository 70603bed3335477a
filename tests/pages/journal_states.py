"""The states of a batch in docs/design.md, from the table of `kafkasafe.journal.batch`."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kafkasafe.journal.batch import STATE
from tests.pages import DOCS, filled, table

PATH: Final = DOCS / "design.md"


def _follows(follows: Iterable[tuple[enum.Enum, str]]) -> str:
    by_state: dict[str, list[str]] = {}
    for event, to in follows:
        by_state.setdefault(to, []).append(event.value)
    return "; ".join(f"{', '.join(events)} → {to}" for to, events in by_state.items())


def state_table(head: str, states: Mapping[Any, Mapping[Any, enum.Enum]]) -> str:
    """One row a state. An event that is possible in each state is in the last row, unless it leads elsewhere."""
    anywhere: dict[enum.Enum, str] = {}
    for event in next(iter(states.values())):
        if all(event in follows for follows in states.values()):
            ends = {follows[event].name for follows in states.values()}
            anywhere[event] = ends.pop() if len(ends) == 1 else "the same"
    rows = [
        (
            state.name,
            _follows(
                (event, to.name)
                for event, to in follows.items()
                if anywhere.get(event) not in ({to.name, "the same"} if to is state else {to.name})
            ),
        )
        for state, follows in states.items()
    ]
    if anywhere:
        rows.append(("any", _follows(anywhere.items())))
    return table((head, f"events → the next {head}"), rows)


def text() -> str:
    """The page."""
    return filled(PATH, {"batch states": state_table("state", STATE)})
