"""One lane of the spool, as the engine has it."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kafkasafe._core import journal as j
from kafkasafe._core import marks as m
from kafkasafe._io.engine.copying import Copying
from kafkasafe._io.engine.handover import Handover
from kafkasafe._io.engine.loss_checks import LossChecks
from kafkasafe._io.engine.parcels import Parcel
from kafkasafe._io.engine.producer_id import ProducerIdRequest
from kafkasafe._io.engine.reads import Reads
from kafkasafe._io.lanes import LaneLock
from kafkasafe._io.rejected import RejectedStore
from kafkasafe._io.spool import Spool

if TYPE_CHECKING:
    from kafkasafe._io.engine.names import RefusedName

__all__ = ["Lane"]


@dataclass(slots=True, eq=False)
class Lane:
    """One lane of the spool: its lock, log, journal, and the parcels in it."""

    name: str
    lock: LaneLock
    spool: Spool
    journal: j.Journal
    own: bool
    rejected: RejectedStore
    parcels: dict[int, Parcel] = field(default_factory=dict)
    heads: dict[bytes, list[Parcel]] = field(default_factory=dict)
    """By unit id, the parcel without records that stands for the unit as a whole."""
    refused_names: dict[str, RefusedName] = field(default_factory=dict)
    """Transactional ids and groups that the cluster refuses, by their names in words."""
    kept_in: dict[int, Path | None] = field(default_factory=dict)
    """By handle, the file of each rejected batch that is not finished yet; None: it has none (`spool="never"`)."""
    held_back: bool = False
    """Whether it was reported that batches of this lane wait for what other lanes owe."""
    handover: Handover = field(default_factory=Handover)
    producer_id: ProducerIdRequest = field(default_factory=ProducerIdRequest)
    released_at: int = -1
    """The release position when the engine last checked which segments can be deleted."""
    released_excess: int = 0
    """Bytes by which the lane exceeded half of `spool_max_bytes` then, after the deletion; negative if it did not."""
    copying: Copying = field(default_factory=Copying)
    checks: LossChecks = field(default_factory=LossChecks)
    unwritten: collections.deque[j.Persist] = field(default_factory=collections.deque)
    """Groups that a failing disk does not take, in the order in which the engine tries them again."""
    write_attempt: int = 0
    retry_at: float = 0.0
    stopped: dict[int, float] = field(default_factory=dict)
    """Destinations whose next batch is damaged on disk, and when the engine reads it again."""
    reads: Reads = field(default_factory=Reads)
    divided_bytes: int = 0
    """Bytes of parts of divided batches that are not on disk yet."""
    to_divide_bytes: int = 0
    """Bytes on disk that wait for their partitions. Recounted when segments are deleted."""
    room_at: float = 0.0
    """When the engine checks again whether a division has space, monotonic seconds."""

    @property
    def held(self) -> bool:
        """Whether a decision is not on disk yet. The journal then makes no other. Pending batches hold up nothing."""
        return bool(self.unwritten) and any(unit.marks or unit.after for unit in self.unwritten)

    @property
    def undivided(self) -> Sequence[j.Divide]:
        """Divisions whose batch could not be read, or that have no space yet."""
        return self.reads.undivided

    def bind(self, cluster_id: str, assumed: str | None) -> None:
        """Bind the lane to the cluster that answers (see `Journal.bind`). Forgets the checks of another cluster."""
        if self.journal.bind(cluster_id, assumed=assumed):
            self.checks.clear()

    def stands(self) -> None:
        """Use the path that the lock has now, after the lane was displaced."""
        path = self.lock.path
        self.name = f"{self.name.rpartition('/')[0]}/{path.name}".lstrip("/")
        self.spool.stands_at(path)
        self.rejected.stands_at(path)

    def disown(self) -> None:
        """Mark files in `rejected/` that do not count but may still exist: their records must not be resent."""
        for name in self.rejected.undeleted():
            self.journal.disown(m.Resent(self.lock.path.name, name))
