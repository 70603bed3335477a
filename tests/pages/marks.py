"""The table of marks in docs/spool-format.md, from the rows of `kafkasafe.marks.table`."""

from __future__ import annotations

from typing import Any, Final

from kafkasafe.marks.table import ROWS, MarkRow
from tests.pages import DOCS, filled, table

PATH: Final = DOCS / "spool-format.md"


def _body(row: MarkRow[Any]) -> str:
    return f"{row.layout.text}. {row.means}" if row.means else row.layout.text


def text() -> str:
    """The page."""
    rows = [(f"0x{row.number:04X}", row.name, _body(row)) for row in ROWS]
    return filled(PATH, {"marks": table(("type", "mark", "body"), rows)})
