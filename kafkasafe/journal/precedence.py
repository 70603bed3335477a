"""Keeps the order across lanes, incarnations and units (atomic batches). Stores *debts* (batches of other lanes that
must be delivered first), and decides which batches of this lane must wait.

`kafkasafe.journal.order` finds the unfinished batches of other lanes, and the batches to hold back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.journal.batch import Batch
from kafkasafe.journal.destinations import Destination, Destinations
from kafkasafe.journal.order import NEVER, Address, held_from


class Precedence:
    """Says which batches of this lane must wait. A batch waits until its debts are paid. All batches wait while the
    lane is halted, for example because another producer wants to take over the lane.

    Only the journal changes this object. Any thread may call `is_held`.
    """

    __slots__ = ("_afters", "_halted", "_holds", "_partitions")

    def __init__(self, destinations: Destinations) -> None:
        self._partitions = destinations.partitions
        self._afters: list[m.After] = []
        self._holds: Mapping[Address | None, int] = {}
        self._halted = False

    # -- debts ---------------------------------------------------------------------------------------------------------

    @property
    def afters(self) -> Sequence[m.After]:
        """The AFTER marks with unpaid debts: batches of other lanes that are perhaps not delivered yet. This lane's
        batches that were first written at or after an AFTER mark's position wait for the mark's debts.
        """
        return tuple(self._afters)

    def begin_after(self, position: int, debts: Sequence[m.Debt]) -> m.After:
        """Make batches at or after `position` wait for `debts` (batches of other lanes), too. Returns the mark that
        names the debts.

        An AFTER mark replaces an earlier mark for the same position, so the new mark repeats the earlier debts.
        """
        known = [debt for each in self._afters if each.position == position for debt in each.debts]
        after = m.After(position, (*known, *(debt for debt in debts if debt not in known)))
        self.read(after)
        return after

    def read(self, after: m.After) -> None:
        """Add an AFTER mark. It replaces an earlier mark for the same position, because some of the batches for which
        the earlier mark waited may be delivered.
        """
        self._afters = [each for each in self._afters if each.position != after.position]
        self._afters.append(after)

    def paid(self, debt: m.Debt) -> None:
        """Note that another lane has delivered the batches for which this lane waits (its debt)."""
        rest = [(after, tuple(each for each in after.debts if each != debt)) for after in self._afters]
        self._afters = [m.After(after.position, debts) for after, debts in rest if debts]

    # -- held batches --------------------------------------------------------------------------------------------------

    def hold_back(self, held: Mapping[Address | None, int]) -> bool:
        """Hold batches back. `held` maps each address to a spool position: the address's batches that were first
        written at or after this position wait. Returns whether anything changed.
        """
        if held == self._holds:
            return False
        self._holds = held
        return True

    def halt(self, *, halted: bool) -> bool:
        """Stop or resume sending. Returns whether anything changed."""
        if self._halted is halted:
            return False
        self._halted = halted
        return True

    def is_held(self, partition: Destination, batch: Batch) -> bool:
        """Whether this batch waits for batches of other lanes."""
        if not self._holds:
            return False
        position = held_from(self._holds, partition.topic, partition.partition)
        return position < NEVER and batch.written_at >= position

    def stops(self, partition: Destination, batch: Batch) -> bool:
        """Whether the journal must not send this batch now."""
        return self._halted or self.is_held(partition, batch)

    def is_in_front(self, batch: u.Member) -> bool:
        """Whether a batch of a unit (atomic batch) may be sent as far as the order is concerned. Nothing must hold the
        batch back, and all earlier batches in its queue must belong to units, too. `units.order` decides the order of
        these batches.
        """
        partition = self._partitions.get(batch.destination)
        if partition is None:
            return False  # the topic's partitions are not known, so the journal divides the batch before sending it
        for other in partition.queue.near:
            if other is batch:
                return partition.loss.suspicion is None and not self.stops(partition, other)
            if other.unit is None:
                return False
        return False
