"""A lane that was moved or deleted while its producer ran, for messages about records that it left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Elsewhere"]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A lane that was not in its place when its producer ended.

    Attributes:
        path: Where it belongs.
        at: Where it is; None: it was deleted.
        records: Number of records that waited in it.
    """

    path: Path
    at: Path | None
    records: int

    def __str__(self) -> str:
        return f"{self.path}, which was deleted" if self.at is None else str(self.at)
