"""A unit as callers see it: parcels that are delivered together, in one transaction, or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe import units as u

__all__ = ["UnitHandle"]


@dataclass(slots=True, eq=False)
class UnitHandle:
    """One unit on its way. All parcels with the same unit handle are handed over in one call.

    Attributes:
        unit_id: 16 bytes, never given twice.
        transactional_id: Given by the user; empty: one of the lane's own.
        offsets: Offsets of consumer groups that are part of the unit.
        readings: For each partition of a group: the consumer's reading (`Reading`) to which the offset belongs.
        joins: The topic of a batch of `delivery="transactional"`; other batches of the topic may join the same unit
            until the engine writes it to disk.
        fate: How the unit ended, once that is durable. Set before its first parcel is done.
    """

    unit_id: bytes = field(default_factory=lambda: uuid.uuid4().bytes)
    transactional_id: str = ""
    offsets: tuple[m.GroupOffsets, ...] = ()
    readings: Mapping[u.GroupPartition, u.Reading] = field(default_factory=dict)
    joins: str = ""
    fate: j.Fate | None = None

    def end(self, fate: j.Fate) -> None:
        """Set how the unit ended."""
        self.fate = fate
