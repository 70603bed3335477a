"""The places of a segment's batches: a mapping from positions that takes 28 bytes per batch."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Places", "Stored"]


@dataclass(frozen=True, slots=True)
class Stored:
    """The place of a data batch: byte offset in its segment, size, and the CRC that proves it."""

    at: int
    size_bytes: int
    crc: int
    destination: int


class Places(Mapping[int, Stored]):
    """The places of batches by position, ascending."""

    __slots__ = ("_at", "_positions", "_rest")

    def __init__(self) -> None:
        self._positions = array("q")
        self._at = array("q")
        self._rest = array("I")

    def add(self, position: int, stored: Stored) -> None:
        """Add a batch, usually after all others. It replaces a batch at the same position."""
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
        """Keep only the batches before this position."""
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
