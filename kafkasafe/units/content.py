"""The common base of units and transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkasafe import marks as m
from kafkasafe.units.terms import NO_READING, GroupPartition, Line, Member, Reading


class UnitContent:
    """The common base of units and transactions, which both hold batches and move offsets of consumer groups."""

    __slots__ = ()
    batches: list[Member]
    readings: Mapping[GroupPartition, Reading]
    group_lines: tuple[GroupPartition, ...]

    @property
    def destinations(self) -> dict[int, None]:
        """The destinations of the batches, each once, in the order of the batches."""
        return dict.fromkeys(batch.destination for batch in self.batches)

    @property
    def lines(self) -> dict[Line, None]:
        """The destinations of the batches, and the group partitions (group, topic, partition) of the offsets."""
        lines: dict[Line, None] = dict.fromkeys(batch.destination for batch in self.batches)
        lines.update(dict.fromkeys(self.group_lines))
        return lines

    def reading(self, line: GroupPartition) -> Reading:
        """The reading (one run of a consumer) from which the offset of this group partition comes."""
        return self.readings.get(line, NO_READING)


def lines_of(offsets: Iterable[m.GroupOffsets]) -> tuple[GroupPartition, ...]:
    """The group partitions of these offsets."""
    return tuple((each.group, at.topic, at.partition) for each in offsets for at in each.positions)
