"""Binds the spool directory to its cluster, so that records for one cluster never go to another cluster."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.messages import Chore, ChoreDue
from kafkasafe.errors import SpoolCorruptError, SpoolError, WrongClusterError
from kafkasafe.spool.inspection import inspect

_ASTRAY_S: Final = 2.0
"""If only brokers of another cluster answer for this many seconds, the engine concludes that the other cluster has
replaced the producer's cluster. Until then, perhaps only a single address is wrong, so the transport tries other
brokers.
"""


class Binding:
    """See the module.

    Args:
        context: The engine's state.
        ledger: What callers see.
        disk: Writes to the disk.
        reading: Returns the paths of the lanes that are being read from disk now. A lane that is still being read is
            not in `EngineContext.lanes`, and may be in another spool directory.
    """

    def __init__(
        self,
        context: EngineContext,
        ledger: Ledger,
        disk: DiskWriter,
        *,
        reading: Callable[[], Collection[Path]],
    ) -> None:
        self._context = context
        self._log = context.log
        self._ledger = ledger
        self._disk = disk
        self._reading = reading
        self._astray_since: float | None = None
        self._begun_again = False
        """Whether another cluster has replaced the first cluster that answered (see `_begin_again`)."""

    def bind(self, cluster_id: str) -> None:
        """Before anything is sent to a cluster, check that the records in the spool directory are for that cluster."""
        attempt = 0
        while True:
            try:
                bound, ours = self._context.directory.bind_cluster(cluster_id, drained=self._drained)
                break
            except SpoolCorruptError as error:
                self._refuse(cluster_id, f"{error}. Nothing was sent; all accepted records are safe and wait")
                return
            except SpoolError as error:
                if self._context.close_state.stop:
                    raise
                # The disk fails or is full. Nothing may be sent before the cluster id is known and durable. While this
                # thread retries, the engine writes no records.
                attempt += 1
                self._ledger.room.disk_failed(str(error), full=_is_full(error))
                if isinstance(error.__cause__, OSError):
                    self._context.own.spool.give_room(error.__cause__)
                # During this loop, no other code restores a deleted directory.
                self._disk.look_at_places()
                self._log.limited(
                    logging.WARNING,
                    "cluster_not_bound",
                    "",
                    "The spool directory cannot be bound to the cluster, so nothing is sent. kafkasafe tries again: %s",
                    error,
                    attempt=attempt,
                    error=type(error).__name__,
                )
                self._context.sleep(self._context.backoff.pause_s(attempt))
        if attempt:
            self._ledger.room.disk_works()
        if not ours:
            holds = (
                f"{self._context.directory.path} holds records for cluster {bound}, but these brokers are cluster"
                f" {cluster_id}. Nothing was sent; all accepted records are safe and wait."
            )
            remedy = (
                "If this producer ends before they are delivered, they are lost (spool='never')"
                if self._context.config.in_memory
                else "Use a separate spool_dir for each cluster, or first let these records be delivered to their own"
                " cluster (kafkasafe spool ls shows what waits)"
            )
            self._refuse(
                cluster_id,
                f"{holds} {remedy}",
                f"{holds} They are delivered when their own cluster answers again. {remedy}",
            )
            return
        first = self._context.own_cluster.cluster_id is None
        if first:
            self._context.timer(0.0, ChoreDue(Chore.LOOK_AROUND))
        if not first or self._begun_again:
            self._context.cluster.repin(cluster_id)
        self._context.own_cluster.bind(cluster_id)
        self._astray_since = None
        self._ledger.accept_cluster()
        if bound is not None and bound != cluster_id:
            self._log.warning(
                "%s was used for cluster %s before, and had no pending records for it",
                self._context.directory.path,
                bound,
                path=str(self._context.directory.path),
                event="cluster_changed",
            )
        for lane in self._context.lanes:
            lane.bind(cluster_id, bound)

    def _refuse(self, cluster_id: str, message: str, later: str = "") -> None:
        """Refuse a cluster. If the producer's own cluster has answered before, the producer waits until that cluster
        answers again. Otherwise, the producer ends.
        """
        if self._context.own_cluster.cluster_id is None:
            self._context.own_cluster.meet_stranger(WrongClusterError(message))
        else:
            self._go_astray(cluster_id, later or message)

    def on_other_cluster(self, cluster_id: str) -> None:
        """Handle a connection to another cluster. The transport has closed the connection without sending anything."""
        if self._context.own_cluster.cluster_id == cluster_id or self._context.cluster.connected_to_pinned:
            return
        now = self._context.clock.monotonic()
        if self._astray_since is None:
            self._astray_since = now
        elif now - self._astray_since >= _ASTRAY_S:
            if self._context.own_cluster.cluster_id is None:
                self._begin_again(cluster_id)
            else:
                self.bind(cluster_id)

    def _begin_again(self, cluster_id: str) -> None:
        """Pin this cluster in place of the first cluster that answered, which no longer answers. The directory is not
        bound to the first cluster: the brokers of that cluster reported their cluster id, but no list of brokers.

        If metadata of the first cluster still arrives, `bind` binds the directory to the first cluster after all, and
        tells the transport to accept only connections to the first cluster.
        """
        self._astray_since = None
        self._begun_again = True
        self._context.cluster.repin(cluster_id)

    def _go_astray(self, cluster_id: str, message: str) -> None:
        self._log.limited(
            logging.ERROR, "wrong_cluster", cluster_id, "%s", message, path=str(self._context.directory.path)
        )
        if self._ledger.wrong_cluster is None:
            self._ledger.refuse_cluster(WrongClusterError(message))

    def on_pinned_cluster(self) -> None:
        """Handle a new connection to the producer's own cluster."""
        self._astray_since = None
        if self._ledger.wrong_cluster is None:
            return
        self._ledger.accept_cluster()
        self._log.info(
            "Cluster %s answers again", self._context.own_cluster.cluster_id, event="right_cluster"
        )

    def _drained(self) -> bool:
        """Whether the spool directory has no pending records for the cluster that it is bound to.

        Until a cluster has answered, this method ignores records that this process accepted, because they can still go
        to any cluster.
        """
        directory = self._context.directory
        met = self._context.own_cluster.cluster_id is not None
        reading = self._reading()
        if any(met or path.parent != directory.path for path in reading):
            return False  # the lane's records may be for the bound cluster
        ours = {lane.lock.path for lane in self._context.lanes}
        if any(
            met or batch.former_life
            for lane in self._context.lanes
            for _, _, batch in lane.journal.views.batches()
        ):
            return False
        # Even an atomic batch without records has offsets of a consumer group, which belongs to one cluster.
        if any(
            met or unit.accepted_at >= 0  # an earlier incarnation accepted it
            for lane in self._context.lanes
            for unit in lane.journal.units.unfinished
        ):
            return False
        with self._ledger.lock:
            if met and self._ledger.parcels:
                return False
        for number in directory.lanes():
            path = directory.lane_path(number)
            if path in ours:
                continue
            # A lane that is being read back is owned by this process, but its records are from another producer.
            others = path not in reading and directory.owners.is_owned(number)
            if others or inspect(path, files=self._context.files).unfinished:
                return False
        return True


def _is_full(error: SpoolError) -> bool:
    """Whether the error is a lack of disk space."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in {errno.ENOSPC, errno.EDQUOT}
