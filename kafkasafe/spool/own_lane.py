"""The lane of an open producer. Consumers use `OwnLane` to find out whether another lane may still commit their
offsets.
"""

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


@dataclass(frozen=True, slots=True)
class OwnLane:
    """A producer's own lane.

    Attributes:
        lane_id: Random id of the lane. All owners of the lane see the same id.
        path: The lane's directory.
        in_memory: Whether the lane exists only in memory, until its producer ends (`spool="never"`).
    """

    lane_id: bytes
    path: Path = field(compare=False)
    in_memory: bool = field(compare=False)

    def adopts(self, other: OwnLane) -> bool:
        """Return whether this lane's producer will deliver the other lane's batches: both lanes are on disk, in the
        same directory.
        """
        return not self.in_memory and not other.in_memory and self.path.parent == other.path.parent

    def may_move(self, lines: Collection[u.GroupPartition]) -> bool:
        """Return whether the lane has an unfinished atomic batch with an offset for at least one of `lines`. Each line
        is a consumer group, and a partition that the group reads.

        Reads the whole lane without its lock, because another process may own the lane and deliver the batch. Returns
        True if the lane cannot be read.
        """
        if self.in_memory:
            return False
        files = OsFiles()
        try:
            if files.identity_of(self.path) is None:
                return False
        except OSError:
            return True  # this process cannot see whether the lane exists
        try:
            log = read_lane(self.path, files=files)
        except SpoolError:
            return True
        if log.lane_id != self.lane_id:
            return False  # another lane has replaced this lane
        journal = Journal()
        replay(log.entries, journal)
        wanted = set(lines)
        return any(not wanted.isdisjoint(unit.group_lines) for unit in journal.units.unfinished)
