"""The flows of a partition in docs/design-delivery.md, from the table of `kafkasafe.journal.flow`."""

from __future__ import annotations

from typing import Final

from kafkasafe.journal.flow import FLOW, UNASSIGNED_FLOW
from tests.pages import DOCS, filled
from tests.pages.journal_states import state_table

PATH: Final = DOCS / "design-delivery.md"


def text() -> str:
    """The page."""
    tables = {"partition flows": FLOW, "unassigned flows": UNASSIGNED_FLOW}
    return filled(PATH, {name: state_table("flow", table) for name, table in tables.items()})
