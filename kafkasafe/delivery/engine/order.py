"""Holds back a lane's batches until records of earlier incarnations in the spool directory are delivered.

`journal/order.py` decides. A lane's *debts* are the records that it has not delivered yet. For lanes of this process,
the journals track the debts. For lanes of other processes, a separate thread reads the debts from the lanes' logs, but
only while held-back batches depend on them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kafkasafe import events
from kafkasafe import marks as m
from kafkasafe.delivery.engine.context import EngineContext, text
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.messages import Chore, ChoreDue, LanesRead
from kafkasafe.delivery.engine.predecessor import Predecessor
from kafkasafe.errors import SpoolError
from kafkasafe.journal.order import NEVER, Address, Owed, holds
from kafkasafe.spool.debts import LaneReader
from kafkasafe.spool.lanes import lane_name
from kafkasafe.spool.refusals import counted

_LOOK_EVERY_S: Final = 0.1
_READ_EVERY_S: Final = 0.5
_STORED_MOST_S: Final = 30.0
"""Maximum time that other producers wait until a dropped producer has written all records that it accepted. After this
time, the other producers assume that the dropped producer's thread hangs.
"""
_NAMED: Final = 5
"""Maximum number of lanes that a log message names."""


class LaneOrder:
    """See the module."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._log = context.log
        self._readers: dict[Path, LaneReader] = {}
        self._views: dict[Path, Owed] = {}
        """For each lane of another process: the records that were undelivered when the lane was last read. A lane that
        could never be read counts as a lane without undelivered records.
        """
        self._unread: set[Path] = set()
        """Lanes of other processes that held-back batches depend on."""
        self._met: set[m.Debt] = set()
        self._outdated: set[Path] = set()
        """Lanes that may have received records after a thread began to read them. The engine ignores the thread's
        results about these lanes.
        """
        self._reading = False
        self._read_at = 0.0
        self._timer = False
        self._given_up: set[Path] = set()
        self._reported: set[Path] = set()
        self._dropped: dict[Predecessor, tuple[int, float]] = {}
        """For each dropped producer that has not yet written all records that it accepted: (position, deadline).
        Batches at or after this position in this producer's own lane wait for the dropped producer, but not longer than
        until the deadline (monotonic seconds).
        """
        self._followed: set[Predecessor] = set()
        """Dropped producers that still own their lanes."""

    def begin(self, lane: Lane) -> Sequence[int]:
        """Begin a new incarnation on the producer's own lane: before accepting records, find the undelivered records of
        earlier incarnations.

        Returns:
            Numbers of the lanes that have pending records but no owner.
        """
        if self._context.config.in_memory:
            return ()
        directory = self._context.directory
        position = lane.spool.next_position
        debts, dead = [], []
        try:
            with directory.births():
                # The code below reads the logs, which already contain all records of earlier incarnations. `begun` is
                # the position where the records of a lane's present owner begin; an owner announces this position
                # before it writes anything.
                others = [
                    (number, directory.owners.begun(number), directory.owners.is_owned(number))
                    for number in directory.lanes()
                    if number != lane.lock.number
                ]
        except OSError as error:
            self._not_kept(directory.path, error)
            others = []
        for number, begun, owned in others:
            path = directory.lane_path(number)
            owed = self._note(path, self._read(path, tail=not owned))
            before = begun if owned and begun >= 0 else owed.end_position
            if owed.addresses(before):
                debts.append(m.Debt(number, owed.lane_id, before))
                if not owned:
                    dead.append(number)
        if debts:
            lane.journal.begin_after(position, debts)
            self.look()
        lane.lock.announce(position)
        return dead

    def follow(self, lane: Lane, predecessor: Predecessor) -> None:
        """Hold back the next batches of the producer's own lane until a dropped producer has delivered its records.

        Unwritten batches are held back too, even if this producer accepted them before the other producer was dropped.
        Producers cannot wait for one another in a circle: a dropped producer waits only for producers that ended
        earlier.
        """
        if self._context.config.in_memory:
            return
        if predecessor not in self._followed:
            self._followed.add(predecessor)
            until = self._context.clock.monotonic() + _STORED_MOST_S
            self._dropped[predecessor] = lane.spool.next_position, until
        if predecessor.over:
            self._followed.discard(predecessor)
            # Read the predecessor's lane at once.
            self._forget_view(self._context.directory.lane_path(predecessor.lane))
            self._read_at = 0.0
        self.look()

    def _owed_by_dropped(self, lane: Lane) -> int:
        """Once a dropped producer has written all records that it accepted, make this producer's own lane wait until
        these records are delivered.

        Returns:
            A position in this producer's own lane. Batches at or after this position wait until each dropped producer
            has written its accepted records. `NEVER` if no batch waits.
        """
        held_from = NEVER
        for predecessor, (position, until) in list(self._dropped.items()):
            before = predecessor.end_position
            if before is None and self._context.clock.monotonic() < until:
                held_from = min(held_from, position)
                continue
            del self._dropped[predecessor]
            path = self._context.directory.lane_path(predecessor.lane)
            if before is None:
                self._not_kept(
                    path,
                    SpoolError("its producer was dropped, and does not write the records that it accepted"),
                )
            elif predecessor.owes:
                debt = m.Debt(predecessor.lane, predecessor.lane_id, before)
                self._met.add(debt)
                self._forget_view(path)
                lane.journal.begin_after(position, (debt,))
        return held_from

    def _forget_view(self, path: Path) -> None:
        """Forget the known undelivered records of a lane, because this knowledge may be outdated."""
        self._views.pop(path, None)
        self._outdated.add(path)

    def look(self) -> None:
        """Decide again which batches are held back."""
        waits = False
        self._unread = set()
        for lane in self._context.lanes:
            waits |= self._look_at(lane, self._unread)
        if waits and not self._timer:
            self._timer = True
            self._context.timer(_LOOK_EVERY_S, ChoreDue(Chore.ORDER))

    def look_again(self) -> None:
        """Decide again which batches to hold back, because the timer of `look` is due. Reads lanes of other processes
        if necessary.
        """
        self._timer = False
        self.look()
        now = self._context.clock.monotonic()
        if (
            self._unread
            and not self._reading
            and now >= self._read_at
            and not self._context.close_state.closing
        ):
            self._reading = True
            self._outdated.clear()
            self._read_at = now + _READ_EVERY_S
            self._context.beside(functools.partial(self._read_all, sorted(self._unread)))

    def read(self, results: Mapping[Path, Owed | Exception]) -> None:
        """Apply the result of `_read_all`: the undelivered records of other lanes."""
        self._reading = False
        for path, result in results.items():
            if path not in self._outdated:
                self._note(path, result)
        self.look()

    def give_up(self, path: Path, error: Exception) -> None:
        """Stop holding back batches for a lane whose records cannot be delivered."""
        self._not_kept(path, error)
        self._given_up.add(path)
        self.look()

    def _look_at(self, lane: Lane, unread: set[Path]) -> bool:
        journal = lane.journal
        unwritten = self._owed_by_dropped(lane) if lane.own else NEVER
        if not journal.views.afters:
            journal.hold_back({} if unwritten == NEVER else {None: unwritten})
            return unwritten < NEVER
        ours = {other.spool.lane_id: other.journal for other in self._context.lanes}
        owed: dict[m.Debt, frozenset[Address] | None] = {}
        for debt in {debt for after in journal.views.afters for debt in after.debts}:
            carried = ours.get(debt.lane_id)
            if carried is not None:
                owed[debt] = carried.views.owes(debt.before)
            else:
                owed[debt] = self._owed_elsewhere(
                    lane.lock.path.parent,
                    debt,
                    unread,
                    fresh=lane.own,  # `begin` has read all other lanes
                )
        held = dict(holds(journal.views.afters, owed))
        if unwritten < NEVER:
            held[None] = min(held.get(None, NEVER), unwritten)
        for debt, addresses in owed.items():
            if addresses is not None and not addresses:
                journal.paid(debt)
        journal.hold_back(held)
        self._tell(lane, sorted({debt.lane for after in journal.views.afters for debt in after.debts}))
        return bool(journal.views.afters) or unwritten < NEVER

    def _owed_elsewhere(
        self, directory: Path, debt: m.Debt, unread: set[Path], *, fresh: bool
    ) -> frozenset[Address] | None:
        path = directory / lane_name(debt.lane)
        if debt not in self._met:
            self._met.add(debt)
            if not fresh:
                self._forget_view(path)
        if path not in self._views:
            unread.add(path)
            return None
        view = self._views[path]
        if path in self._given_up or view.lane_id != debt.lane_id:
            return frozenset()
        addresses = view.addresses(debt.before)
        if addresses:
            unread.add(path)
        return addresses

    def _read_all(self, paths: Sequence[Path]) -> None:
        """Read lanes on a thread other than the engine's."""
        self._context.post(LanesRead({path: self._read(path) for path in paths}))

    def _read(self, path: Path, *, tail: bool = False) -> Owed | Exception:
        reader = self._readers.setdefault(path, LaneReader(self._context.files, path))
        try:
            return reader.owed(tail=tail)
        except NotADirectoryError:
            return Owed()
        except (OSError, m.MarkError) as error:
            return error

    def _note(self, path: Path, result: Owed | Exception) -> Owed:
        if isinstance(result, Exception):
            if path not in self._views:
                self._not_kept(path, result)
            # If the lane was read before, the failure may be temporary. Until the lane can be read again, keep its
            # undelivered records as they were last known.
            result = self._views.get(path, Owed())
        elif result.damaged:
            self._not_kept(path, SpoolError("a part of it cannot be read"))
        self._views[path] = result
        return result

    def _not_kept(self, path: Path, error: Exception) -> None:
        """Report that the order of records is not guaranteed, before the engine sends a record that may overtake
        earlier records.
        """
        if path in self._reported:
            return
        self._reported.add(path)
        self._log.warning(
            "The pending records of earlier producers in %s cannot be determined (%s): later records may overtake them",
            path.name,
            text(error),
            lane=path.name,
            error=type(error).__name__,
            event="order_not_guaranteed",
        )
        self._context.emit(events.OrderNotGuaranteed(path.name, text(error)))

    def _tell(self, lane: Lane, owing: Sequence[int]) -> None:
        waiting = lane.journal.views.held_back()
        if not waiting:
            if lane.held_back and not owing:
                lane.report_held_back(held_back=False)
                self._log.info(
                    "%s: all earlier records are delivered; sending resumes",
                    lane.name,
                    lane=lane.name,
                    event="older_records_delivered",
                )
            return
        if lane.held_back:
            return
        lane.report_held_back(held_back=True)
        names = tuple(map(lane_name, owing))
        self._log.info(
            "%s: %s until the records of earlier producers in %s%s are delivered",
            lane.name,
            f"{counted(len(waiting), 'partition')} {'waits' if len(waiting) == 1 else 'wait'}",
            ", ".join(names[:_NAMED]),
            "" if len(names) <= _NAMED else f" and {len(names) - _NAMED} more",
            lane=lane.name,
            partitions=len(waiting),
            event="waiting_for_older_records",
        )
        self._context.emit(events.WaitingForOlderRecords(lane.name, names, tuple(sorted(waiting))))
