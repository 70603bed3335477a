"""The forms in which fetched records are returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Kind", "kind_of"]


@dataclass(frozen=True, slots=True)
class Kind:
    """The form in which fetched records are returned.

    Attributes:
        columns: Names of the columns.
        views: Whether keys and values are views of the received bytes.
    """

    columns: frozenset[str]
    views: bool = False


def kind_of(part: Any) -> Kind | None:
    """Return the form of a partition's fetched records; None if they are records, not batches."""
    return getattr(part, "kind", None)
