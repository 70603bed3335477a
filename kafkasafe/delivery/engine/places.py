"""Checks that each lane's directory is in its place, where the next start looks for it, and restores displaced lanes.

A lane is a directory that its owner has locked. While the lane's owner works, an operator or a cleanup job may move the
lane, delete it, or delete some of its files. Without a repair, the next start would not find the lane's records,
although the fsyncs succeeded. So the engine checks a lane after each spool group that it writes there, and checks all
lanes each second. A displaced lane is restored:

1. If the lane was moved, the engine renames it back.
2. If files were deleted, renamed or cut, the engine writes them again from its open files.
3. If the lane was deleted, the engine creates a new directory, and writes all of the lane's files into it.

If the engine cannot restore the lane (for example, another volume is mounted there, or a permission is missing), the
owner continues with its open files: it writes and delivers batches, but reports none as durable. In a deleted lane, the
owner cannot create files: it delivers the batches that were written, and later batches wait in memory.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafkasafe import events
from kafkasafe.delivery.engine.context import EngineContext, text
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.left_at_end import Elsewhere
from kafkasafe.errors import SpoolCorruptError, SpoolError, SpoolWriteError
from kafkasafe.spool.lanes import DirectoryStanding
from kafkasafe.spool.refusals import counted


class _Problem(enum.Enum):
    """The ways in which a lane can be displaced."""

    MOVED = "moved"
    DELETED = "deleted"
    UNLOCKED = "unlocked"
    FILES = "files"
    DIRECTORY = "directory"
    UNSEEN = "unseen"


_WORDS: Final = {
    _Problem.MOVED: "it was moved away",
    _Problem.DELETED: "it was deleted",
    _Problem.UNLOCKED: "its lock was deleted",
    _Problem.FILES: "some of its files were deleted, renamed or truncated",
    _Problem.DIRECTORY: "files of its spool directory were deleted",
    _Problem.UNSEEN: "it cannot be seen",
}
_OF_STANDING: Final = {
    DirectoryStanding.UNLOCKED: _Problem.UNLOCKED,
    DirectoryStanding.MOVED: _Problem.MOVED,
    DirectoryStanding.DELETED: _Problem.DELETED,
}


@dataclass(slots=True)
class _DisplacedLane:
    """A displaced lane: the lane's directory, or a file in it, is not in its place.

    Attributes:
        problem: The problem that was found first.
        next_at: Monotonic time, in seconds, of the engine's next attempt.
        attempts: Number of failed attempts to restore the lane.
    """

    problem: _Problem
    next_at: float = 0.0
    attempts: int = 0

    def fail(self) -> int:
        """Count a failed attempt to restore the lane. Returns the number of failed attempts."""
        self.attempts += 1
        return self.attempts

    def wait(self, until: float) -> None:
        """Set the monotonic time, in seconds, of the engine's next attempt."""
        self.next_at = until


class PlaceKeeper:
    """See the module."""

    def __init__(self, context: EngineContext, ledger: Ledger) -> None:
        self._context = context
        self._log = context.log
        self._config = context.config
        self._ledger = ledger
        self._troubles: dict[Lane, _DisplacedLane] = {}
        self._gone: dict[Lane, Sequence[tuple[int, int]]] = {}
        self._link_switched = False

    @property
    def displaced(self) -> int:
        """Number of displaced lanes. New batches in a displaced lane do not count as durable."""
        return len(self._troubles)

    def confirm(self, lane: Lane) -> bool:
        """Restores the lane if it is displaced. Returns whether the next start would find the spool group that was just
        synced.

        Raises:
            LaneBusyError: Another process owns the producer's own lane now, so the producer may no longer write or send
                records.
            SpoolWriteError: Another process owns this adopted lane now.
        """
        if lane not in self._troubles:
            try:
                if lane.lock.standing is DirectoryStanding.HERE:
                    return True
            except OSError:
                pass  # `_restore` checks again, and reports the error
        return self._restore(lane)

    def is_displaced(self, lane: Lane) -> bool:
        """Whether the lane, or one of its files, is not in its place."""
        return not self._config.in_memory and self._problem(lane) is not None

    def in_trouble(self, lane: Lane) -> bool:
        """Whether the lane is displaced and the engine could not restore it yet."""
        return lane in self._troubles

    def take_lost(self, lane: Lane) -> Sequence[tuple[int, int]]:
        """Return the ranges of log positions (first, end) that were in lost files, and forget the ranges."""
        return self._gone.pop(lane, ())

    def look(self, lane: Lane) -> bool:
        """Restores the lane if it is displaced. Returns whether the lane and its files are in their places.

        Call this method only while no write is under way. Raises the same errors as `confirm`.
        """
        if self._config.in_memory or lane.lock.lost:
            return not lane.lock.lost
        return self._problem(lane) is None or self._restore(lane)

    def at_end(self, lane: Lane) -> Elsewhere | None:
        """The present place of a lane that could not be restored before its producer ended; None for a lane in its
        place.
        """
        if lane not in self._troubles:
            return None
        return Elsewhere(lane.lock.path, lane.lock.found_at, lane.journal.views.spooled_records)

    def look_at_link(self) -> None:
        """Report if `spool_dir` now leads to another directory: a deployment may have switched a symbolic link."""
        given, path = self._config.spool_dir_given, self._context.directory.path
        if given == path or self._config.in_memory:
            return
        try:
            leads = self._context.files.identity_of(given)
            switched = leads != self._context.files.identity_of(path)
        except OSError:
            return
        if switched and not self._link_switched:
            self._context.stats.spool_displaced.add()
            self._log.warning(
                "spool_dir=%s leads to another directory now. This producer stays in %s, and the next start does not"
                " deliver the records that it leaves there. Keep the spool outside of the directory that a deployment"
                " replaces",
                given,
                path,
                path=str(path),
                event="spool_link_switched",
            )
            lane = self._context.own.name
            self._context.emit(events.SpoolDisplaced(lane, str(path), "link", restored=False, lost_records=0))
        self._link_switched = switched

    def forget(self, lane: Lane) -> None:
        """Drop the state of a lane that is closed."""
        self._troubles.pop(lane, None)
        self._gone.pop(lane, None)

    def _problem(self, lane: Lane) -> _Problem | None:
        """Why a lane is displaced; None if it is in place."""
        if lane in self._troubles:
            return self._troubles[lane].problem
        try:
            standing = lane.lock.standing
            if standing is not DirectoryStanding.HERE:
                return _OF_STANDING[standing]
            whole, in_place = lane.lock.home.whole, lane.spool.in_place
        except OSError:
            return _Problem.UNSEEN
        if not whole:
            return _Problem.DIRECTORY
        return None if in_place else _Problem.FILES

    def _restore(self, lane: Lane) -> bool:
        """Restore a lane. Returns False if this fails."""
        now = self._context.clock.monotonic()
        trouble = self._troubles.get(lane)
        if trouble is None:
            problem = self._problem(lane)
            if problem is None:
                return True
            if lane.own:  # set the reason first, because health() may run before `_troubles` is set
                self._ledger.room.disk_failed(f"{lane.lock.path}: {_WORDS[problem]}")
            trouble = self._troubles[lane] = _DisplacedLane(problem)
            self._context.stats.spool_displaced.add()
        if now < trouble.next_at:
            return False
        before = lane.lock.path
        rejected = lane.rejected.records
        try:
            lane.lock.home.restore(lane.lock)
            lane.stands()
            lost = lane.spool.restore()
        except SpoolError as error:
            if lane.lock.lost:
                self._lost(lane, error)
            lane.stands()
            self._failed(lane, trouble, error)
            return False
        del self._troubles[lane]
        if lane.own:
            self._ledger.room.disk_works()
        if lost:
            self._gone[lane] = lost
        lane.rejected.refresh()
        self._tell(lane, trouble, before, lost, rejected - lane.rejected.records)
        return True

    def _failed(self, lane: Lane, trouble: _DisplacedLane, error: SpoolError) -> None:
        pause_s = self._context.backoff.pause_s(trouble.fail())
        trouble.wait(self._context.clock.monotonic() + pause_s)
        if lane.own:
            self._ledger.room.disk_failed(f"{lane.lock.path}: {_WORDS[trouble.problem]}, and {error}")
        at = lane.lock.found_at
        self._log.limited(
            logging.ERROR,
            "spool_displaced",
            lane.name,
            "%s: %s while its producer was running (%s%s), and cannot be restored: %s. Until it is restored, no record"
            " counts as durable. kafkasafe tries again",
            lane.name,
            _WORDS[trouble.problem],
            lane.lock.path,
            "" if at in {None, lane.lock.path} else f" is {at} now",
            error,
            lane=lane.name,
            path=str(lane.lock.path),
            attempt=trouble.attempts,
            error=type(error).__name__,
        )
        if trouble.attempts == 1:
            self._context.emit(
                events.SpoolDisplaced(
                    lane.name, str(lane.lock.path), trouble.problem.value, restored=False, lost_records=0
                )
            )

    def _tell(
        self,
        lane: Lane,
        trouble: _DisplacedLane,
        before: Path,
        lost: Sequence[tuple[int, int]],
        rejected: int,
    ) -> None:
        """Report that a lane is restored, and which records were lost."""
        gone = [
            batch
            for _, _, batch in lane.journal.views.batches()
            if any(first <= batch.position < end for first, end in lost)
            and not ((parcel := lane.parcels.get(batch.handle)) and parcel.data)
        ]
        records = sum(batch.count for batch in gone) + rejected
        records += sum(lane.journal.views.packed_records(first, end) for first, end in lost)
        now_at = "" if lane.lock.path == before else f", as {lane.lock.path}"
        left = f"{counted(records, 'record')} could not be read any more" if records else "nothing is lost"
        self._log.error(
            "%s: %s while its producer was running (%s). It is restored%s: %s",
            before.name,
            _WORDS[trouble.problem],
            before,
            now_at,
            left,
            lane=lane.name,
            path=str(lane.lock.path),
            records=records,
            event="spool_displaced",
        )
        self._context.emit(
            events.SpoolDisplaced(
                lane.name, str(lane.lock.path), trouble.problem.value, restored=True, lost_records=records
            )
        )
        if records:
            self._ledger.errors.lose(
                SpoolCorruptError(
                    f"{lane.lock.path}: {_WORDS[trouble.problem]} while its producer was running, and"
                    f" {counted(records, 'record')} that waited there could not be read any more. Restore the files"
                    " from a copy, or produce those records again",
                    damage=tuple(f"positions {first} to {end - 1}" for first, end in lost),
                )
            )

    def _lost(self, lane: Lane, error: SpoolError) -> None:
        if lane.own:
            raise error
        raise SpoolWriteError(text(error)) from error
