"""How many more bytes a spool can accept, and which limit it will reach first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FREE_BYTES: Final = 4 * 1024 * 1024
"""Disk space reserved for marks. Without room for marks (log entries about its decisions), the spool could not delete
any segment.
"""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The room of a spool at one moment.

    Attributes:
        limit_bytes: Size limit of the spool.
        used_bytes: Size of the spool on disk.
        backlog_bytes: Accepted bytes that are not on disk yet.
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
        """Bytes until the spool reaches its size limit; negative above the limit."""
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
        """Whether the backlog of unwritten bytes leaves room for `needed` more bytes.

        If no bytes wait for the disk, any size is accepted: even a large atomic batch is already in memory, so a
        refusal would save no memory.
        """
        return not self.backlog_bytes or self.backlog_bytes + needed <= self.backlog_limit_bytes

    def takes(self, needed: int) -> bool:
        """Whether `needed` more bytes can be accepted now."""
        return self.keeps_up(needed) and needed <= self.spool_left and needed <= self.volume_left
