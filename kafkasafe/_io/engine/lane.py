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
    """By handle, where rejected batches are that are not finished yet; None: nowhere (`spool="never"`)."""
    held_back: bool = False
    """It was reported that something of it waits for what other lanes owe."""
    handover: Handover = field(default_factory=Handover)
    producer_id: ProducerIdRequest = field(default_factory=ProducerIdRequest)
    released_at: int = -1
    """The release position when it was last looked what can be deleted."""
    released_excess: int = 0
    """By how many bytes it was more than half full then, without what was deleted; less than 0: it was not."""
    copying: Copying = field(default_factory=Copying)
    checks: LossChecks = field(default_factory=LossChecks)
    unwritten: collections.deque[j.Persist] = field(default_factory=collections.deque)
    """What a failing disk does not take, in the order in which it is tried again."""
    write_attempt: int = 0
    retry_at: float = 0.0
    stopped: dict[int, float] = field(default_factory=dict)
    """Destinations whose next batch is damaged on disk, and when it is looked at again."""
    reads: Reads = field(default_factory=Reads)
    divided_bytes: int = 0
    """Of batches that were divided, what is not on disk yet."""
    to_divide_bytes: int = 0
    """What is on disk and waits for its partitions; counted anew when segments go."""
    room_at: float = 0.0
    """When it is looked again whether a division has room, monotonic seconds."""

    @property
    def held(self) -> bool:
        """A decision is not on disk yet: no other is made before it is. Batches that wait for room hold nothing up."""
        return bool(self.unwritten) and any(unit.marks or unit.after for unit in self.unwritten)

    @property
    def undivided(self) -> Sequence[j.Divide]:
        """What could not be read when it was to be divided, or has no room for that yet."""
        return self.reads.undivided

    def bind(self, cluster_id: str, assumed: str | None) -> None:
        """A cluster answers (see `Journal.bind`): what is known of another one goes."""
        if self.journal.bind(cluster_id, assumed=assumed):
            self.checks.clear()

    def stands(self) -> None:
        """Its lock says where it stands now, after it was displaced."""
        path = self.lock.path
        self.name = f"{self.name.rpartition('/')[0]}/{path.name}".lstrip("/")
        self.spool.stands_at(path)
        self.rejected.stands_at(path)

    def disown(self) -> None:
        """What is in `rejected/` and not rejected, and cannot be deleted, must not be resent once it is delivered."""
        for name in self.rejected.undeleted():
            self.journal.disown(m.Resent(self.lock.path.name, name))
