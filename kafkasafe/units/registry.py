"""The units without a fate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkasafe import marks as m
from kafkasafe.units.terms import GroupPartition, Reading
from kafkasafe.units.unit import Unit

__all__ = ["UnitRegistry"]


class UnitRegistry:
    """Units by their ids, in the order in which they were accepted."""

    def __init__(self) -> None:
        self._numbers = 0
        self._units: dict[bytes, Unit] = {}
        self._batchless: dict[bytes, Unit] = {}
        """Of those: whatever is looked at in each turn is not to take longer with each unit that waits."""

    def make(
        self,
        unit_id: bytes,
        transactional_id: str,
        offsets: tuple[m.GroupOffsets, ...],
        readings: Mapping[GroupPartition, Reading],
    ) -> Unit:
        """A new unit, after all others."""
        self._numbers += 1
        unit = Unit(self._numbers, unit_id, transactional_id, offsets, dict(readings))
        self._units[unit_id] = unit
        return unit

    def note_batches(self, unit: Unit) -> None:
        """All its batches are there."""
        if not unit.batches:
            self._batchless[unit.unit_id] = unit

    def pop(self, unit_id: bytes) -> Unit | None:
        """Its fate is durable."""
        self._batchless.pop(unit_id, None)
        return self._units.pop(unit_id, None)

    def renumber(self) -> list[Unit]:
        """The log is read: units stand in the order in which they were accepted. Returns them.

        What was divided may be in the log after what was accepted later.
        """
        ordered = sorted(self._units.values(), key=lambda unit: unit.accepted_at)
        self._units = {unit.unit_id: unit for unit in ordered}
        for number, unit in enumerate(ordered, 1):
            unit.renumber(number)
        return ordered

    def __len__(self) -> int:
        return len(self._units)

    def get(self, unit_id: bytes) -> Unit | None:
        """A unit without a fate."""
        return self._units.get(unit_id)

    @property
    def all(self) -> list[Unit]:
        """All of them, in the order in which they were accepted. From any thread."""
        return list(self._units.values())

    @property
    def bare(self) -> int:
        """How many have no batch."""
        return len(self._batchless)

    @property
    def pinned(self) -> Iterable[int]:
        """Spool positions that are still needed for units without a batch."""
        return (unit.position for unit in self._batchless.values())
