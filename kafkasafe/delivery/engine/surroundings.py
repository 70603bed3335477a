"""Looks for other default spool directories, whose names have other spellings of the addresses or another client id."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kafkasafe import events
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.lane_keeper import LaneKeeper
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.messages import Chore, ChoreDue, LookedAround
from kafkasafe.errors import LaneBusyError, SpoolError
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.refusals import counted
from kafkasafe.spool.siblings import LeftBehind, Siblings

_LOOK_AROUND_EVERY_S: Final = 60.0


class Surroundings:
    """See the module."""

    def __init__(self, context: EngineContext, ledger: Ledger, disk: DiskWriter, lanes: LaneKeeper) -> None:
        self._context = context
        self._ledger = ledger
        self._log = context.log
        self._config = context.config
        self._disk = disk
        self._lanes = lanes
        # Search for other directories of the same cluster only if this producer's directory has a default name.
        self._siblings = (
            Siblings(context.directory.path, context.files) if context.config.spool_dir_is_default else None
        )
        self._reported: set[Path] = set()
        self._refused: dict[Path, tuple[tuple[str, int], ...]] = {}
        # By directory: the directory's content at the time when this producer took its lanes.
        self._taken: dict[Path, tuple[tuple[str, int], ...]] = {}
        self._looks_first = False
        self.looking = False
        """Whether a thread is reading the directories next to this producer's spool directory."""
        self.left_behind_records = 0
        self.unread: dict[Path, int] = {}
        """Directories of this cluster and client id whose lanes are not all open yet: path → number of undelivered
        records.
        """

    def begin(self) -> None:
        """Before a broker answers, look for records that a producer of this cluster would adopt.

        `close` waits for the found records. Without this wait, a program that always ends as soon as its own records
        are acknowledged would never adopt the found records.
        """
        if self._siblings is not None:
            self._looks_first = True
            self._ledger.lanes.seek_siblings(on=True)
            self._look(self._siblings, same_client=True)

    def look_around(self) -> None:
        """Look for spool directories whose default names spell the brokers' addresses differently, or have another
        client id.
        """
        # If a broker answers during the first search, begin no second search here: `looked_around` begins it later.
        if self._siblings is not None and not (self.looking or self._context.close_state.closing):
            self._look(self._siblings, same_client=False)

    def _look(self, siblings: Siblings, *, same_client: bool) -> None:
        self.looking = True

        def look() -> None:
            found: Sequence[LeftBehind] = ()
            try:
                found = siblings.look(lambda: self._context.close_state.closing, same_client=same_client)
            finally:
                self._context.post(LookedAround(found))

        self._context.beside(look)

    def looked_around(self, found: Sequence[LeftBehind]) -> None:
        """Adopt directories of this producer's client id and cluster, and report the others."""
        self.looking = False
        self._context.progress.note()
        self._ledger.waiters.notify_all()
        if self._context.close_state.closing or self._context.own_cluster.stranger is not None:
            return
        if self._looks_first:
            self._looks_first = False
            if self._context.own_cluster.cluster_id is None:
                self._expect(found)
            else:
                self.look_around()
            return
        left = 0
        self.unread.clear()
        for sibling in found:
            if sibling.cluster_id not in {None, self._context.own_cluster.cluster_id}:
                continue  # its records are for another cluster
            # Adopt only directories of this client id that have a cluster id, and report the others. Producers of
            # another client id may have other permissions. A directory without a cluster id may be for another cluster.
            if sibling.same_client and sibling.cluster_id is not None and self._adopt_sibling(sibling):
                continue
            left += sibling.records
            self._report(sibling)
        self.left_behind_records = left
        self._ledger.lanes.seek_siblings(on=False)
        self._disk.publish_used()
        self._context.timer(_LOOK_AROUND_EVERY_S, ChoreDue(Chore.LOOK_AROUND))

    def _expect(self, found: Sequence[LeftBehind]) -> None:
        """Before a broker has answered, make `close` wait if the found records may be for this producer's cluster."""
        try:
            own = self._context.directory.cluster_id()
        except SpoolError:
            own = None  # `Binding` reports the error later
        known = [sibling for sibling in found if sibling.cluster_id is not None]
        self.unread = {each.path: each.records for each in known if each.cluster_id == own}
        if not any(own in {None, each.cluster_id} for each in known):
            self._ledger.lanes.seek_siblings(on=False)

    def read(self, path: Path) -> None:
        """Note that every lane of a directory is open, or cannot be read."""
        self.unread.pop(path, None)

    def _adopt_sibling(self, sibling: LeftBehind) -> bool:
        """Adopt a directory. Returns whether the directory's lanes are being drained, by this producer or by others.
        Passes errors to `refused`.
        """
        if self._refused.get(sibling.path) == sibling.content:
            return False
        try:
            directory = SpoolDirectory.look(sibling.path, files=self._context.files)
            for number in sibling.lanes:
                try:
                    lock = directory.take_lane(number)
                except LaneBusyError:
                    continue
                # Check the cluster while holding the lane, because a directory keeps its cluster while one of its lanes
                # has an owner.
                try:
                    ours = directory.cluster_id() == self._context.own_cluster.cluster_id
                except BaseException:
                    lock.release(drained=False)
                    raise
                if not ours:
                    lock.release()
                    return False
                self._taken[sibling.path] = sibling.content
                self.unread[sibling.path] = sibling.records
                self._lanes.adopt_lane(lock)
        except SpoolError as error:
            self._taken[sibling.path] = sibling.content
            self.refused(sibling.path, error)
            return False
        return True

    def refused(self, path: Path, error: SpoolError) -> None:
        """Note a directory that cannot be adopted. The engine tries again after the directory's content changes."""
        content = self._taken.get(path)
        if content is not None:
            self._refused[path] = content
        self._log.warning(
            "%s has no owner and cannot be adopted: %s",
            path,
            error,
            path=str(path),
            error=type(error).__name__,
            event="lane_not_adopted",
        )

    def _report(self, sibling: LeftBehind) -> None:
        if sibling.path in self._reported:
            return
        self._reported.add(sibling.path)
        servers = self._config.kafka["bootstrap_servers"]
        address = servers if isinstance(servers, str) else ",".join(sorted(servers))
        command = shlex.join(["kafkasafe", "spool", "drain", str(sibling.path), "-b", address])
        whose = (
            "for a cluster that was never reached. If they are for this cluster, deliver them with"
            if sibling.cluster_id is None
            else "for this cluster, with another client id. Deliver them with"
        )
        self._log.warning(
            "%s pending in %s, which no process owns, %s: %s",
            f"{counted(sibling.records, 'record')} {'is' if sibling.records == 1 else 'are'}"
            if sibling.records
            else "Offsets of consumers are",
            sibling.path,
            whose,
            command,
            path=str(sibling.path),
            records=sibling.records,
            batches=sibling.batches,
            event="orphaned_spool_found",
        )
        self._context.emit(
            events.OrphanedSpoolFound(
                str(sibling.path), sibling.cluster_id, sibling.batches, sibling.records, command
            )
        )
