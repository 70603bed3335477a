"""The lane of an open producer, as consumers know it: they compare where their batches are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from kafkasafe import units as u
from kafkasafe.errors import SpoolError
from kafkasafe.journal import Journal
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.inspection import read_lane
from kafkasafe.spool.recovery import replay

__all__ = ["OwnLane"]


@dataclass(frozen=True, slots=True)
class OwnLane:
    """A producer's own lane.

    Attributes:
        lane_id: Random, made with the lane. A lane keeps it for all its owners.
        path: The lane's directory.
        in_memory: It ends with its producer (`spool="never"`).
    """

    lane_id: bytes
    path: Path = field(compare=False)
    in_memory: bool = field(compare=False)

    def adopts(self, other: OwnLane) -> bool:
        """Return whether its producer will deliver another lane's batches, because both lanes are in one directory."""
        return not self.in_memory and not other.in_memory and self.path.parent == other.path.parent

    def may_move(self, lines: Collection[u.GroupPartition]) -> bool:
        """Return whether an atomic batch without an outcome is in the lane that moves one of these offsets.

        The whole lane is read, without its lock: another process may own it, and deliver the batch.

        Args:
            lines: Offsets of groups.
        """
        if self.in_memory or not self.path.is_dir():
            return False
        try:
            log = read_lane(self.path, files=OsFiles())
        except SpoolError:
            return True
        if log.lane_id != self.lane_id:
            return False  # another lane has its place
        journal = Journal()
        replay(log.entries, journal)
        wanted = set(lines)
        return any(not wanted.isdisjoint(unit.group_lines) for unit in journal.units.unfinished)
