"""One segment of a lane: where its batches are, and how many of its bytes are valid."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kafkasafe import marks as m

SEGMENT_NAME: Final = re.compile(r"\d{20}\.log")


@dataclass(frozen=True, slots=True)
class Stored:
    """The place of a data batch: byte offset in its segment, size, and the CRC with which the batch's content is
    checked.
    """

    at: int
    size_bytes: int
    crc: int
    destination: int


class Places(Mapping[int, Stored]):
    """The places of batches by position, ascending. A place takes 28 bytes."""

    __slots__ = ("_at", "_positions", "_rest")

    def __init__(self) -> None:
        self._positions = array("q")
        self._at = array("q")
        self._rest = array("I")

    def add(self, position: int, stored: Stored) -> None:
        """Add a batch, usually after all other batches, or replace the batch at the same position."""
        positions = self._positions
        index = len(positions)
        if index and position <= positions[-1]:
            index = bisect_left(positions, position)
            if positions[index] == position:
                del positions[index], self._at[index], self._rest[3 * index : 3 * index + 3]
        positions.insert(index, position)
        self._at.insert(index, stored.at)
        self._rest[3 * index : 3 * index] = array("I", (stored.size_bytes, stored.crc, stored.destination))

    def cut(self, position: int) -> None:
        """Keep only the batches before `position`."""
        count = bisect_left(self._positions, position)
        del self._positions[count:], self._at[count:], self._rest[3 * count :]

    def _find(self, position: object) -> int:
        if not isinstance(position, int):
            return -1
        index = bisect_left(self._positions, position)
        return index if index < len(self._positions) and self._positions[index] == position else -1

    def __getitem__(self, position: int) -> Stored:
        index = self._find(position)
        if index < 0:
            raise KeyError(position)
        return Stored(self._at[index], *self._rest[3 * index : 3 * index + 3])

    def __contains__(self, position: object) -> bool:
        return self._find(position) >= 0

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[int]:
        return iter(self._positions)


@dataclass(slots=True)
class StoredSegment:
    """One segment file.

    Attributes:
        first_position: Position of the segment's first record, and name of the file.
        size_bytes: Number of valid bytes; later bytes in the file were abandoned.
        batches: The places of the segment's data batches, by position.
        records: Number of records in these batches.
        proven_bytes: All bytes before this byte offset were durable at some time, according to a later spool group or
            to `extent`.
        written_ms: When the segment's last spool group was written, ms since the epoch; 0 if unknown. After the segment
            was read from the disk, this is the largest time of any spool group.
    """

    path: Path
    first_position: int
    size_bytes: int = 0
    batches: Places = field(default_factory=Places)
    records: int = 0
    proven_bytes: int = 0
    written_ms: int = 0

    # -- while it is read ------------------------------------------------------------------------------------------

    def note_written(self, written_ms: int) -> None:
        """Note when one of the segment's spool groups was written. The largest time is kept, so that the segment is
        retained longer, not shorter, if the clock was set back.
        """
        self.written_ms = max(self.written_ms, written_ms)

    def ends_at(self, size_bytes: int) -> None:
        """Note that only the first `size_bytes` of the segment are valid."""
        self.size_bytes = size_bytes

    def add(self, entry: m.ManifestEntry, at: int, records: int) -> None:
        """Add an intact data batch that begins at the byte `at`."""
        self.batches.add(entry.position, Stored(at, entry.size_bytes, entry.crc, entry.destination))
        self.records += records

    def prove(self, end: int) -> None:
        """Note that all bytes before the byte offset `end` were certainly durable at some time."""
        self.proven_bytes = end

    # -- while it is written -----------------------------------------------------------------------------------------

    def append(
        self, control_bytes: int, manifest: Sequence[m.ManifestEntry], end_position: int, written_ms: int
    ) -> None:
        """Add a spool group after the valid bytes: a control batch of `control_bytes`, then data batches."""
        at = self.size_bytes + control_bytes
        for entry in manifest:
            self.batches.add(entry.position, Stored(at, entry.size_bytes, entry.crc, entry.destination))
            at += entry.size_bytes
        self.size_bytes = at
        if manifest:
            self.records += end_position - manifest[0].position
        self.written_ms = written_ms

    def cut(self, position: int, size_bytes: int, records: int) -> None:
        """Keep only the part before `position`. This part has `size_bytes` bytes and `records` records."""
        self.records = records
        self.batches.cut(position)
        self.size_bytes = size_bytes

    def stands_at(self, lane: Path) -> None:
        self.path = lane / self.path.name


def segment_name(first_position: int) -> str:
    """The file name of the segment that begins at a position."""
    return f"{first_position:020d}.log"
