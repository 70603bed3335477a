"""The engine's state of one lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe.delivery.engine.copying import Copying
from kafkasafe.delivery.engine.divisions import Divisions
from kafkasafe.delivery.engine.handover import Handover
from kafkasafe.delivery.engine.loss_checks import LossChecks
from kafkasafe.delivery.engine.parcels import Parcel
from kafkasafe.delivery.engine.producer_id import ProducerIdRequest
from kafkasafe.delivery.engine.refused_name import NameRefusals
from kafkasafe.delivery.engine.rejections import Rejections
from kafkasafe.delivery.engine.release_check import ReleaseCheck
from kafkasafe.delivery.engine.write_backlog import WriteBacklog
from kafkasafe.spool.lanes import LaneLock
from kafkasafe.spool.rejected import RejectedStore
from kafkasafe.spool.spool import Spool

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
    names: NameRefusals = field(default_factory=NameRefusals)
    rejections: Rejections = field(default_factory=Rejections)
    handover: Handover = field(default_factory=Handover)
    producer_id: ProducerIdRequest = field(default_factory=ProducerIdRequest)
    release: ReleaseCheck = field(default_factory=ReleaseCheck)
    copying: Copying = field(default_factory=Copying)
    checks: LossChecks = field(default_factory=LossChecks)
    write_backlog: WriteBacklog = field(default_factory=WriteBacklog)
    divisions: Divisions = field(default_factory=Divisions)
    held_back: bool = False
    """Whether it was reported that batches of this lane wait for what other lanes owe."""

    @property
    def held(self) -> bool:
        """Whether a decision is not on disk yet. The journal then makes no other. Pending batches hold up nothing."""
        return self.write_backlog.has_decision

    @property
    def undivided(self) -> Sequence[j.Divide]:
        """Divisions whose batch could not be read, or that have no space yet."""
        return self.divisions.pending

    def report_held_back(self, *, held_back: bool) -> None:
        """Note the last report: whether batches of this lane wait for batches of other lanes."""
        self.held_back = held_back

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
