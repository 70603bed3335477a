"""Other lives of the lane and of its directory: what they left that goes first, and what the next one has to find.

How marks of earlier lives are read back is in `recovery`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from kafkasafe._core import marks as m
from kafkasafe._core.journal.clock import Clock
from kafkasafe._core.journal.groups import SilenceBroken
from kafkasafe._core.journal.messages import Ready
from kafkasafe._core.journal.partition import WINDOW, Partition
from kafkasafe._core.journal.states import Batch, id_fields
from kafkasafe._core.journal.views import Views
from kafkasafe._core.order import Address

__all__ = ["Lives"]


class Lives(Views):
    """Part of `Journal`: order across lives, what a new segment repeats, and when no request is alive any more."""

    @property
    def afters(self) -> Sequence[m.After]:
        """What goes before batches of this lane, as far as that is not known to be delivered."""
        return tuple(self._afters)

    def begin_after(self, position: int, debts: Sequence[m.Debt]) -> None:
        """What is written from this position on comes after these debts.

        An incarnation begins with it; later, another producer of the directory was dropped. Marks of one position are
        one: of several the log remembers the last.
        """
        known = [debt for each in self._afters if each.position == position for debt in each.debts]
        after = m.After(position, (*known, *(debt for debt in debts if debt not in known)))
        self._afters = [each for each in self._afters if each.position != position]
        self._afters.append(after)
        self._ready.persist.marks.append(after)

    def paid(self, debt: m.Debt) -> None:
        """Nothing is left of it."""
        rest = [(after, tuple(each for each in after.debts if each != debt)) for after in self._afters]
        self._afters = [m.After(after.position, debts) for after, debts in rest if debts]

    def hold_back(self, held: Mapping[Address | None, int]) -> None:
        """Send nothing of these addresses that was written at these positions or behind: see `order.holds`."""
        if held == self._holds:
            return
        self._holds = held
        for partition in self._partitions.values():
            if partition.queue:
                self._touch(partition)

    def halt(self, *, halted: bool) -> None:
        """Send nothing at all: somebody else takes the lane over as soon as nothing is in flight."""
        if self._halted is halted:
            return
        self._halted = halted
        for partition in self._partitions.values():
            if partition.queue:
                self._touch(partition)

    def held_back(self) -> list[Address]:
        """Addresses for which something waits that is held back. From any thread."""
        return [
            (partition.topic, partition.partition)
            for partition in list(self._partitions.values())
            if (first := partition.queue.first) is not None and self._is_held(partition, first)
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
        marks: list[m.Mark] = [*self._home.marks, *self._topics.values(), *self._afters]
        if self._producer_id >= 0:
            marks.append(m.Granted(self._producer_id, self._producer_epoch))
        for partition in self._partitions.values():
            marks.append(m.Destination(partition.number, partition.topic, partition.partition))
            marks += self._newest_marks(partition)
            marks += self._state_marks(partition)
        return marks

    def tell_newest(self, before_position: int) -> list[m.Mark]:
        """Marks to be durable before what is in front of this position goes: which batch was acknowledged last."""
        marks: list[m.Mark] = []
        for partition in self._partitions.values():
            newest = self._newest(partition)
            if newest is None or newest.position == partition.told_position:
                continue
            if 0 <= newest.position < before_position:
                marks += [*self._newest_marks(partition), *self._state_marks(partition)]
        return marks

    @staticmethod
    def _newest(partition: Partition) -> Batch | None:
        """The batch that ends where STATE says that everything before it is finished."""
        return next(
            (
                batch
                for batch in islice(reversed(partition.acked), WINDOW)
                if batch.identity is not None
                and batch.place == batch.base_offset >= 0
                and batch.place + batch.count - 1 == partition.clear_offset
            ),
            None,
        )

    def _newest_marks(self, partition: Partition) -> list[m.Mark]:
        """In front of STATE: the id of the batch that was acknowledged last, which outlives the batch.

        The epoch of the acknowledgement may be an older one than that of its leader. Where the log of that epoch ends
        before it, only the batch itself proves that it is still there.
        """
        newest = self._newest(partition)
        if newest is None or newest.identity is None:
            return []
        # What was never in the spool has a position where no batch can be.
        at = newest.position if newest.position >= 0 else newest.rank[-1] if newest.rank else 0
        partition.told_position = at
        identity = m.Identity(at, *id_fields(newest.identity))
        return [
            m.Identified(partition.number, m.IdentityReason.FIRST, -1, (identity,)),
            m.Committed(partition.number, partition.leader_epoch, ((at, newest.base_offset),)),
        ]

    def slept(self, seconds: float, now: float) -> None:
        """The machine slept; `now` has that in it.

        Brokers went on forgetting meanwhile. Our own sockets slept as well: what was in their buffers is sent only now.
        """
        before = now - seconds
        if self._former_dead_at > before:
            self._former_dead_at += seconds
        for partition in self._partitions.values():
            if partition.dead_at > before:
                partition.dead_at += seconds

    def quiet(self, now: float, clock: Clock) -> m.Quiet | None:
        """For the last group of an owner that sends nothing any more: when all that it sent is dead.

        None where nothing is unfinished or doubted, so that nobody will ask, and where the log says it already.
        """
        if self._still or not (self.unfinished or self._doubted):
            return None
        dead_at = self._former_dead_at
        for partition in self._partitions.values():
            # Without an answer yet: sent until just now.
            dead_at = max(
                dead_at, now + self._request_timeout_s if partition.in_flight else partition.dead_at
            )
        left_ms = int(max(0.0, dead_at - now) * 1000) + 1
        return m.Quiet(clock.wall_ms + left_ms, clock.wall_ms, clock.boot_id, clock.boot_ms)

    def _break_silence(self, ready: Ready) -> None:
        """What is to be sent waits until the log does not say any more that nothing is."""
        if self._held is None:
            if not ready.sends and (not ready.persist.batches or ready.persist.atomic):
                return
            self._held = []
            ready.persist.marks.append(m.Quiet(-1, 0, bytes(16), 0))
            ready.persist.after.append(SilenceBroken())
        self._held += ready.sends
        ready.sends.clear()
