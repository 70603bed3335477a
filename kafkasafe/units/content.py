"""What a unit and a transaction have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkasafe import marks as m
from kafkasafe.units.terms import NO_READING, GroupPartition, Line, Member, Reading

__all__ = ["Content", "lines_of"]


class Content:
    """What a unit and a transaction have in common: they hold batches, and move offsets of groups."""

    __slots__ = ()
    batches: list[Member]
    readings: Mapping[GroupPartition, Reading]
    group_lines: tuple[GroupPartition, ...]

    @property
    def destinations(self) -> dict[int, None]:
        """Of its batches, each once, in order."""
        return dict.fromkeys(batch.destination for batch in self.batches)

    @property
    def lines(self) -> dict[Line, None]:
        """Its destinations, and the offsets of groups that it moves."""
        lines: dict[Line, None] = dict.fromkeys(batch.destination for batch in self.batches)
        lines.update(dict.fromkeys(self.group_lines))
        return lines

    def reading(self, line: GroupPartition) -> Reading:
        """Of which reading its offset is."""
        return self.readings.get(line, NO_READING)


def lines_of(offsets: Iterable[m.GroupOffsets]) -> tuple[GroupPartition, ...]:
    """The offsets of groups, by group, topic and partition."""
    return tuple((each.group, at.topic, at.partition) for each in offsets for at in each.positions)
