"""The unfinished units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkasafe import marks as m
from kafkasafe.units.terms import GroupPartition, Reading
from kafkasafe.units.unit import Unit

__all__ = ["UnitRegistry"]


class UnitRegistry:
    """Unfinished units by their ids, in the order in which they were accepted."""

    def __init__(self) -> None:
        self._numbers = 0
        self._units: dict[bytes, Unit] = {}
        self._batchless: dict[bytes, Unit] = {}
        """The units without batches, in a separate dict: each turn examines these, and must not have to examine all
        units.
        """

    def make(
        self,
        unit_id: bytes,
        transactional_id: str,
        offsets: tuple[m.GroupOffsets, ...],
        readings: Mapping[GroupPartition, Reading],
    ) -> Unit:
        """Add a new unit, after all others."""
        self._numbers += 1
        unit = Unit(self._numbers, unit_id, transactional_id, offsets, dict(readings))
        self._units[unit_id] = unit
        return unit

    def note_batches(self, unit: Unit) -> None:
        """Record that all batches of the unit are known."""
        if not unit.batches:
            self._batchless[unit.unit_id] = unit

    def pop(self, unit_id: bytes) -> Unit | None:
        """Remove a unit whose fate is durable."""
        self._batchless.pop(unit_id, None)
        return self._units.pop(unit_id, None)

    def renumber(self) -> list[Unit]:
        """Number the units of a log in the order in which they were accepted. Returns them.

        The log may have another order: a divided unit may come after units that were accepted later.
        """
        ordered = sorted(self._units.values(), key=lambda unit: unit.accepted_at)
        self._units = {unit.unit_id: unit for unit in ordered}
        for number, unit in enumerate(ordered, 1):
            unit.renumber(number)
        return ordered

    def __len__(self) -> int:
        return len(self._units)

    def get(self, unit_id: bytes) -> Unit | None:
        """An unfinished unit."""
        return self._units.get(unit_id)

    @property
    def all(self) -> list[Unit]:
        """All units, in the order in which they were accepted. Any thread may call it."""
        return list(self._units.values())

    @property
    def bare(self) -> int:
        """The number of units without a batch."""
        return len(self._batchless)

    @property
    def pinned(self) -> Iterable[int]:
        """The spool positions of units without a batch, which must not be released."""
        return (unit.position for unit in self._batchless.values())
