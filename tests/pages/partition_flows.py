"""The flows of a partition in docs/design-delivery.md, from the table of `kafkasafe._core.journal.flow`."""

from __future__ import annotations

from typing import Final

from kafkasafe._core.journal.flow import FLOW
from tests.pages import DOCS, filled
from tests.pages.journal_states import state_table

PATH: Final = DOCS / "design-delivery.md"


def text() -> str:
    """The page."""
    return filled(PATH, {"partition flows": state_table("flow", FLOW)})
