"""How much more a spool can accept, and which limit is the nearest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FREE_BYTES: Final = 4 * 1024 * 1024
"""Disk space reserved for marks. Without room for marks, the spool could never delete anything."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The room of a spool at one moment.

    Attributes:
        limit_bytes: Size limit of the spool.
        used_bytes: Size of the spool on disk.
        backlog_bytes: Bytes that were accepted and are not on disk yet.
        backlog_limit_bytes: How many bytes may wait to be written.
        free_bytes: Free space of the volume; infinite if unknown.
    """

    limit_bytes: int
    used_bytes: int
    backlog_bytes: int
    backlog_limit_bytes: float = float("inf")
    free_bytes: float = float("inf")

    @property
    def spool_left(self) -> int:
        """Bytes until the spool reaches its size limit; negative if it is larger already."""
        return self.limit_bytes - self.used_bytes - self.backlog_bytes

    @property
    def volume_left(self) -> float:
        """Bytes of the volume that records may still use."""
        return self.free_bytes - self.backlog_bytes - FREE_BYTES

    @property
    def room_bytes(self) -> int:
        """Bytes that can be accepted before a limit is reached, provided that the disk keeps up."""
        return int(max(0, min(self.spool_left, self.volume_left)))

    def keeps_up(self, needed: int) -> bool:
        """Whether the disk is fast enough for `needed` more bytes.

        If no bytes wait for the disk, any size is accepted. Even a large atomic batch is in memory already, so a
        refusal would save no memory.
        """
        return not self.backlog_bytes or self.backlog_bytes + needed <= self.backlog_limit_bytes

    def takes(self, needed: int) -> bool:
        """Whether `needed` more bytes can be accepted now."""
        return self.keeps_up(needed) and needed <= self.spool_left and needed <= self.volume_left
