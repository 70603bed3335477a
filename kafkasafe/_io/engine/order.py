"""What earlier lives of the spool directory still owe goes first: which destinations a lane holds back, and until when.

`_core/order.py` decides. What lanes of this process owe their journals know; what others owe is read from their logs,
beside the engine's thread, as long as something depends on it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kafkasafe import events
from kafkasafe._core import marks as m
from kafkasafe._core.order import NEVER, Address, Owed, holds
from kafkasafe._io.debts import LaneReader
from kafkasafe._io.engine.ground import Ground, text
from kafkasafe._io.engine.lane import Lane
from kafkasafe._io.engine.messages import Chore, ChoreDue, LanesRead
from kafkasafe._io.engine.predecessor import Predecessor
from kafkasafe._io.lanes import lane_name
from kafkasafe._io.refusals import counted
from kafkasafe.errors import SpoolError

__all__ = ["Order"]

_LOOK_EVERY_S: Final = 0.1
_READ_EVERY_S: Final = 0.5
_STORED_MOST_S: Final = 30.0
"""A dropped producer that does not write what it accepted within this time is not waited for: its thread may hang."""
_NAMED: Final = 5
"""So many lanes are named in a message."""


class Order:
    """See the module."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._log = ground.log
        self._readers: dict[Path, LaneReader] = {}
        self._views: dict[Path, Owed] = {}
        """What other processes' lanes owed when they were read last; nothing of one that cannot be read."""
        self._unread: set[Path] = set()
        """Lanes of others on which something depends."""
        self._met: set[m.Debt] = set()
        self._outdated: set[Path] = set()
        """Of what is being read: the debt that asks for it was met since, and may be newer."""
        self._reading = False
        self._read_at = 0.0
        self._timer = False
        self._given_up: set[Path] = set()
        self._told: set[Path] = set()
        self._dropped: dict[Predecessor, tuple[int, float]] = {}
        """Dropped producers whose lane may not hold everything yet that they accepted: position in the own lane from
        which on it waits for them, and until when at most, monotonic seconds."""
        self._followed: set[Predecessor] = set()
        """Dropped producers whose lanes are still theirs."""

    def begin(self, lane: Lane) -> Sequence[int]:
        """A life begins, on its own lane: find out what earlier ones owe, before anything is accepted.

        Returns:
            Numbers of the lanes that no process owns and where something waits.
        """
        if self._ground.config.in_memory:
            return ()
        directory = self._ground.directory
        position = lane.spool.next_position
        debts, dead = [], []
        try:
            with directory.births():
                # In this order: an owner says where its life begins before it writes.
                others = [
                    (number, directory.begun(number), directory.is_owned(number))
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
        """Another producer was dropped, or what is known of it changed: what it accepted goes first.

        What the own lane has not written yet is held back as well, though it may have been accepted before. That makes
        no circle: the other producer waits only for those that were over before it.
        """
        if self._ground.config.in_memory:
            return
        if predecessor not in self._followed:
            self._followed.add(predecessor)
            until = self._ground.clock.monotonic() + _STORED_MOST_S
            self._dropped[predecessor] = lane.spool.next_position, until
        if predecessor.over:
            self._followed.discard(predecessor)
            # Read its lane at once.
            self._forget_view(self._ground.directory.lane_path(predecessor.lane))
            self._read_at = 0.0
        self.look()

    def _owed_by_dropped(self, lane: Lane) -> int:
        """Begin the debts of dropped producers that have written everything.

        Returns:
            From which position on the others are waited for, `NEVER` where there are none.
        """
        held_from = NEVER
        for predecessor, (position, until) in list(self._dropped.items()):
            before = predecessor.end_position
            if before is None and self._ground.clock.monotonic() < until:
                held_from = min(held_from, position)
                continue
            del self._dropped[predecessor]
            path = self._ground.directory.lane_path(predecessor.lane)
            if before is None:
                self._not_kept(
                    path, SpoolError("its producer was dropped, and does not write what it accepted")
                )
            elif predecessor.owes:
                debt = m.Debt(predecessor.lane, predecessor.lane_id, before)
                self._met.add(debt)
                self._forget_view(path)
                lane.journal.begin_after(position, (debt,))
        return held_from

    def _forget_view(self, path: Path) -> None:
        """It may be older than what is asked for."""
        self._views.pop(path, None)
        self._outdated.add(path)

    def look(self) -> None:
        """What is held back now, and what not any more."""
        waits = False
        self._unread = set()
        for lane in self._ground.lanes:
            waits |= self._look_at(lane, self._unread)
        if waits and not self._timer:
            self._timer = True
            self._ground.timer(_LOOK_EVERY_S, ChoreDue(Chore.ORDER))

    def look_again(self) -> None:
        """It is time for it."""
        self._timer = False
        self.look()
        now = self._ground.clock.monotonic()
        if self._unread and not self._reading and now >= self._read_at and not self._ground.closing:
            self._reading = True
            self._outdated.clear()
            self._read_at = now + _READ_EVERY_S
            self._ground.beside(functools.partial(self._read_all, sorted(self._unread)))

    def read(self, results: Mapping[Path, Owed | Exception]) -> None:
        """What other lanes owe was read."""
        self._reading = False
        for path, result in results.items():
            if path not in self._outdated:
                self._note(path, result)
        self.look()

    def give_up(self, path: Path, error: Exception) -> None:
        """Nobody can deliver what is in a lane: it is not waited for."""
        self._not_kept(path, error)
        self._given_up.add(path)
        self.look()

    def _look_at(self, lane: Lane, unread: set[Path]) -> bool:
        journal = lane.journal
        unwritten = self._owed_by_dropped(lane) if lane.own else NEVER
        if not journal.afters:
            journal.hold_back({} if unwritten == NEVER else {None: unwritten})
            return unwritten < NEVER
        ours = {other.spool.lane_id: other.journal for other in self._ground.lanes}
        owed: dict[m.Debt, frozenset[Address] | None] = {}
        for debt in {debt for after in journal.afters for debt in after.debts}:
            carried = ours.get(debt.lane_id)
            if carried is not None:
                owed[debt] = carried.views.owes(debt.before)
            else:
                owed[debt] = self._owed_elsewhere(
                    lane.lock.path.parent,
                    debt,
                    unread,
                    fresh=lane.own,  # all others were read when its life began
                )
        held = dict(holds(journal.afters, owed))
        if unwritten < NEVER:
            held[None] = min(held.get(None, NEVER), unwritten)
        for debt, addresses in owed.items():
            if addresses is not None and not addresses:
                journal.paid(debt)
        journal.hold_back(held)
        self._tell(lane, sorted({debt.lane for after in journal.afters for debt in after.debts}))
        return bool(journal.afters) or unwritten < NEVER

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
        """On a thread beside the engine's."""
        self._ground.post(LanesRead({path: self._read(path) for path in paths}))

    def _read(self, path: Path, *, tail: bool = False) -> Owed | Exception:
        reader = self._readers.setdefault(path, LaneReader(self._ground.files, path))
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
            # Else for a moment: what it owed then it owes until it can be read again.
            result = self._views.get(path, Owed())
        elif result.damaged:
            self._not_kept(path, SpoolError("a part of it cannot be read"))
        self._views[path] = result
        return result

    def _not_kept(self, path: Path, error: Exception) -> None:
        """Before anything is sent that might overtake."""
        if path in self._told:
            return
        self._told.add(path)
        self._log.warning(
            "What earlier producers left in %s cannot be determined (%s): records sent now may come before it",
            path.name,
            text(error),
            lane=path.name,
            error=type(error).__name__,
            event="order_not_guaranteed",
        )
        self._ground.emit(events.OrderNotGuaranteed(path.name, text(error)))

    def _tell(self, lane: Lane, owing: Sequence[int]) -> None:
        waiting = lane.journal.views.held_back()
        if not waiting:
            if lane.held_back and not owing:
                lane.held_back = False
                self._log.info(
                    "%s: all earlier records are delivered; sending resumes",
                    lane.name,
                    lane=lane.name,
                    event="older_records_delivered",
                )
            return
        if lane.held_back:
            return
        lane.held_back = True
        names = tuple(map(lane_name, owing))
        self._log.info(
            "%s: %s until what earlier producers left in %s%s is delivered",
            lane.name,
            f"{counted(len(waiting), 'partition')} {'waits' if len(waiting) == 1 else 'wait'}",
            ", ".join(names[:_NAMED]),
            "" if len(names) <= _NAMED else f" and {len(names) - _NAMED} more",
            lane=lane.name,
            partitions=len(waiting),
            event="waiting_for_older_records",
        )
        self._ground.emit(events.WaitingForOlderRecords(lane.name, names, tuple(sorted(waiting))))
