"""One segment of a lane: where its batches are, and how far its bytes are valid."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kafkasafe.spool.placing import Places

__all__ = ["StoredSegment"]


@dataclass(slots=True)
class StoredSegment:
    """One segment file.

    Attributes:
        path: The file.
        first_position: Position of its first record, which is also its name.
        size_bytes: Valid bytes. Bytes after them were abandoned.
        batches: Its data batches, by position.
        records: Number of records in these batches.
        proven_bytes: A later group states that all bytes before this one were durable.
        written_ms: When its last group was written, ms since the epoch; 0 if unknown.
    """

    path: Path
    first_position: int
    size_bytes: int = 0
    batches: Places = field(default_factory=Places)
    records: int = 0
    proven_bytes: int = 0
    written_ms: int = 0
