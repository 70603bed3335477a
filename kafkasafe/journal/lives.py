"""Keeps this lane's batches in order relative to batches of other lanes, and makes the marks for the next incarnation.

`recovery` reads the marks of earlier incarnations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafkasafe import marks as m
from kafkasafe.journal.order import Address
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.quiescence import Moment
from kafkasafe.journal.state import JournalState


class Incarnations:
    """Holds batches back until earlier batches of other lanes are delivered. Also makes the QUIET mark, which says
    until when brokers may still append this lane's requests.
    """

    def __init__(self, state: JournalState, packer: Packer) -> None:
        self._all = state.destinations.all
        self._partitions = state.destinations.partitions
        self._out = state.out
        self._index = state.index
        self._packer = packer
        self._precedence = state.precedence
        self._quiescence = state.quiescence
        self._request_timeout_s = state.settings.request_timeout_s

    def begin_after(self, position: int, debts: Sequence[m.Debt]) -> None:
        """Hold back batches that were first written at or after spool position `position`, until `debts` (batches of
        other lanes) are delivered.

        The engine calls this at the beginning of an incarnation. The engine calls this method again when the program
        drops another producer of the same spool directory, if the dropped producer still has undelivered batches.
        """
        self._out.ready.persist.marks.append(self._precedence.begin_after(position, debts))

    def hold_back(self, held: Mapping[Address | None, int]) -> None:
        """Hold batches back. `held` maps each address to a spool position; the address's batches that were first
        written at or after the position wait (see `order.holds`).
        """
        if self._precedence.hold_back(held):
            self._touch_waiting()

    def halt(self, *, halted: bool) -> None:
        """Stop or resume sending. Another producer takes over a halted lane as soon as no request is in flight."""
        if self._precedence.halt(halted=halted):
            self._touch_waiting()

    def _touch_waiting(self) -> None:
        for partition in self._all.values():
            if partition.queue:
                self._packer.touch(partition)

    def slept(self, seconds: float, now: float) -> None:
        """Note that the machine slept for `seconds`, until `now`.

        Requests that were in socket buffers during the sleep are sent only now, so brokers may append them later.
        """
        before = now - seconds
        self._quiescence.sleep(seconds, before)
        for partition in self._partitions.values():
            partition.doubt.sleep(seconds, before)

    def quiet(self, now: float, clock: Moment, *, unfinished: int) -> m.Quiet | None:
        """The QUIET mark of a producer that has stopped sending. The mark says until when brokers may still append
        requests of this lane.

        Returns None if the lane's log already contains the mark, or if the next incarnation will have no questions to
        the cluster. There are no questions if every batch is finished and no batch is suspected to be lost.
        """
        if self._quiescence.is_announced or not (unfinished or self._index.suspected):
            return None
        # A request in flight may have been sent just now, so a broker may still append it within one full request
        # timeout.
        dead_at = [
            now + self._request_timeout_s if partition.queue.has_in_flight else partition.doubt.dead_at
            for partition in self._partitions.values()
        ]
        return self._quiescence.mark(dead_at, now, clock)
