"""What a producer leaves when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kafkasafe.delivery.engine.elsewhere import Elsewhere

__all__ = ["LeftAtEnd"]


@dataclass(frozen=True, slots=True)
class LeftAtEnd:
    """See the module.

    Attributes:
        records: Number of pending records on disk, by spool directory.
        elsewhere: Where the producer's own lane is, if it is not in its place.
        doubted: Partitions for which it is unknown whether they still have all acknowledged records.
    """

    records: Mapping[Path, int] = field(default_factory=dict)
    elsewhere: Elsewhere | None = None
    doubted: Sequence[tuple[str, int]] = ()
