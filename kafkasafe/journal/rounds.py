"""Rounds: each evaluates what changed since the last one, and takes the actions that are due."""

from __future__ import annotations

from kafkasafe import units as u
from kafkasafe.journal.losses import Losses
from kafkasafe.journal.machine import Machine
from kafkasafe.journal.members import UnitBatches
from kafkasafe.journal.messages import Ready
from kafkasafe.journal.outbox import Outbox
from kafkasafe.journal.quiescence import Quiescence
from kafkasafe.journal.sequences import IdSource

__all__ = ["Rounds"]


class Rounds:
    """Has each object of the journal decide, in a fixed order: partitions first, then units."""

    def __init__(
        self,
        out: Outbox,
        ids: IdSource,
        losses: Losses,
        machine: Machine,
        unit_batches: UnitBatches,
        quiescence: Quiescence,
        units: u.Units,
    ) -> None:
        self._out = out
        self._ids = ids
        self._losses = losses
        self._machine = machine
        self._unit_batches = unit_batches
        self._quiescence = quiescence
        self._units = units

    @property
    def at_rest(self) -> bool:
        """Whether the next round would find nothing until the next event."""
        if self._losses.waits_for_units or not (self._ids.is_granted and self._out.is_empty):
            return False
        return self._units.at_rest and not self._quiescence.is_announced

    def take(self, now: float, now_ms: int) -> Ready:
        """Take all actions that are due now; each action is returned once.

        Args:
            now: Seconds.
            now_ms: Wall clock, ms since the epoch.
        """
        self._losses.look_again()
        if self._out.touched:
            self._units.look()
            self._machine.turn(now, now_ms)
        self._unit_batches.advance()
        ready = self._out.take(wants_producer_id=not self._ids.is_granted)
        if self._quiescence.is_announced:
            self._quiescence.gate(ready)
        return ready
