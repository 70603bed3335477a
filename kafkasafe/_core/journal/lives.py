"""Other incarnations of the lane, and other lanes: which batches go first, and what the next incarnation has to find.

How marks of earlier incarnations are read back is in `recovery`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafkasafe._core import marks as m
from kafkasafe._core.journal.clock import Clock
from kafkasafe._core.journal.views import Views
from kafkasafe._core.order import Address

__all__ = ["Lives"]


class Lives(Views):
    """Part of `Journal`: order across incarnations, what a new segment repeats, and when all requests are dead."""

    @property
    def afters(self) -> Sequence[m.After]:
        """The debts that come before batches of this lane, as far as these are not known to be delivered."""
        return self._precedence.afters

    def begin_after(self, position: int, debts: Sequence[m.Debt]) -> None:
        """Batches that are written from this position on come after these debts.

        An incarnation begins with this call. It is also made when another producer of the directory was dropped.
        """
        self._out.ready.persist.marks.append(self._precedence.begin_after(position, debts))

    def paid(self, debt: m.Debt) -> None:
        """All batches of this debt are delivered."""
        self._precedence.paid(debt)

    def hold_back(self, held: Mapping[Address | None, int]) -> None:
        """Send nothing of these addresses that was written at these positions or later: see `order.holds`."""
        if self._precedence.hold_back(held):
            self._touch_waiting()

    def halt(self, *, halted: bool) -> None:
        """Send nothing at all: another producer takes the lane over as soon as nothing is in flight."""
        if self._precedence.halt(halted=halted):
            self._touch_waiting()

    def _touch_waiting(self) -> None:
        for partition in self._partitions.values():
            if partition.queue:
                self._touch(partition)

    def held_back(self) -> list[Address]:
        """Addresses for which something waits that is held back. From any thread."""
        return [
            (partition.topic, partition.partition)
            for partition in list(self._partitions.values())
            if (first := partition.queue.first) is not None and self._precedence.is_held(partition, first)
        ]

    def owes(self, before: int) -> frozenset[Address]:
        """Addresses of which something is unfinished that was written in front of this position."""
        return frozenset(
            (partition.topic, partition.partition)
            for partition in self._partitions.values()
            if partition.queue and partition.queue[0].written_at < before
        )

    def snapshot(self) -> list[m.Mark]:
        """What the first group of a new segment must repeat, so that segments before it can go."""
        return self._snapshots.all()

    def tell_newest(self, before_position: int) -> list[m.Mark]:
        """Marks to be durable before what is in front of this position goes: which batch was acknowledged last."""
        return self._snapshots.newest(before_position)

    def slept(self, seconds: float, now: float) -> None:
        """The machine slept; `now` has that in it.

        Brokers went on forgetting meanwhile. Our own sockets slept as well: what was in their buffers is sent only now.
        """
        before = now - seconds
        self._quiescence.sleep(seconds, before)
        for partition in self._partitions.values():
            partition.doubt.sleep(seconds, before)

    def quiet(self, now: float, clock: Clock) -> m.Quiet | None:
        """For the last group of an owner that sends nothing any more: when all its requests are dead.

        None where nothing is unfinished or suspected to be lost, so that the next incarnation will ask nothing, and
        where the log says it already.
        """
        if self._quiescence.is_announced or not (self.unfinished or self._index.suspected):
            return None
        # A request without an answer yet was sent until just now.
        dead_at = [
            now + self._request_timeout_s if partition.queue.in_flight else partition.doubt.dead_at
            for partition in self._partitions.values()
        ]
        return self._quiescence.mark(dead_at, now, clock)
