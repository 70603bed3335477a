"""Order belongs to the directory: what its earlier lives still have to deliver goes first, per topic-partition.

A *life* is one owner of a lane, from its opening to its end. When a life begins, the other lanes may hold batches of
lives that are over. It writes down (mark AFTER) how far each of those lanes reached; its own batches wait, per
topic-partition, until nothing of the same topic-partition in front of those positions is unfinished.

Nothing waits in a circle: a life waits only for what was written before it began, and its own batches are written
after that. The same holds inside a lane, which is first in, first out. So each wait leads further back in time, whoever
carries which lane. What an owner writes that goes on living beside a new one is not waited for: lanes whose owners live
side by side promise no order between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from kafkasafe._core import marks as m

__all__ = ["NEVER", "Address", "Owed", "held_from", "holds"]

Address: TypeAlias = tuple[str, int]
"""Topic and partition; partition -1 while it is not chosen."""

NEVER: Final = 1 << 62
"""A position that no batch has: nothing is held back."""
_UNCHOSEN: Final = -1


class Owed:
    """What a lane's owner, or whoever comes after it, still has to deliver: told by the control batches alone.

    Attributes:
        lane_id: Of the lane, empty before the first group.
        damaged: Something in it cannot be read, and nobody knows what that was.
        synced_position: What stands before it was durable; a crash may have torn what stands behind it.
        open: By position, what is not finished: its destination, and where its records stood first.
    """

    def __init__(self) -> None:
        self.lane_id = b""
        self.damaged = False
        self.synced_position = 0
        self.open: dict[int, tuple[int, int]] = {}
        self._addresses: dict[int, Address] = {}
        self._units: dict[bytes, set[int]] = {}
        """Positions of units that are not finished."""

    def copy(self) -> Owed:
        """Another one that knows the same."""
        other = Owed()
        other.lane_id, other.damaged, other.synced_position = self.lane_id, self.damaged, self.synced_position
        other._addresses, other.open = dict(self._addresses), dict(self.open)
        other._units = {unit_id: set(positions) for unit_id, positions in self._units.items()}
        return other

    def begins(self, position: int) -> None:
        """What stood in front of this is finished, and was deleted."""
        for old in [at for at in self.open if at < position]:
            del self.open[old]

    def group(self, group: m.Group, marks: Sequence[m.Mark]) -> None:
        """The next group of the log."""
        self.lane_id = group.lane_id
        self.synced_position = max(self.synced_position, group.synced_position)
        origins: dict[int, int] = {}
        members: dict[int, bytes] = {}
        for mark in marks:
            match mark:
                case m.Destination(number, topic, partition):
                    self._addresses[number] = topic, partition
                case m.Committed(_, _, entries):
                    for at, _ in entries:
                        self.open.pop(at, None)
                case m.Rejected(at):
                    self.open.pop(at, None)
                case m.Replaced(at, first, count):
                    origin = self.open.pop(at, (0, at))[1]
                    for index in range(first, first + count):
                        origins.setdefault(index, origin)  # of those that became one, the first
                    for unit_id, positions in self._units.items():
                        if at in positions:
                            members.update(dict.fromkeys(range(first, first + count), unit_id))
                case m.Moved(moves):
                    for index, move in enumerate(moves):
                        self.open.pop(move.position, None)
                        origins[index] = move.origin
                case m.Unit(unit_id, first, count):
                    self._units.setdefault(unit_id, set())
                    members.update(dict.fromkeys(range(first, first + count), unit_id))
                case m.Ended(unit_id):
                    for at in self._units.pop(unit_id, ()):
                        self.open.pop(at, None)
                case m.Revived(destination, _, positions):
                    self.open.update((at, (destination, at)) for at in positions)
                case m.Torn(positions):
                    for at in positions:
                        self.open.pop(at, None)
                case (
                    m.After()
                    | m.Begun()
                    | m.Cluster()
                    | m.Given()
                    | m.Granted()
                    | m.Identified()
                    | m.Quiet()
                    | m.Read()
                    | m.Resent()
                    | m.Resolved()
                    | m.Staged()
                    | m.State()
                    | m.Topic()
                    | m.Undecidable()
                ):
                    pass  # says nothing of what is finished
        for index, entry in enumerate(group.manifest):
            self.open[entry.position] = entry.destination, origins.get(index, entry.position)
            if index in members:
                self._units[members[index]].add(entry.position)

    def drop(self, position: int) -> None:
        """It is damaged: nobody delivers it."""
        del self.open[position]

    @property
    def end_position(self) -> int:
        """Behind the last batch that is not finished, 0 if none is."""
        return max(self.open, default=-1) + 1

    def addresses(self, before: int) -> frozenset[Address]:
        """Of what is owed of the records that stood in front of a position."""
        numbers = {number for number, origin in self.open.values() if origin < before}
        return frozenset(self._addresses[number] for number in numbers if number in self._addresses)


def holds(
    afters: Iterable[m.After], owed: Mapping[m.Debt, frozenset[Address] | None]
) -> Mapping[Address | None, int]:
    """What a lane holds back.

    Args:
        afters: The lane's marks.
        owed: What is still owed of each debt; None while that is not known.

    Returns:
        By address, from which position on nothing is sent; by None, the same for every address.
    """
    held: dict[Address | None, int] = {}
    for after in afters:
        for debt in after.debts:
            addresses = owed[debt]
            for address in (None,) if addresses is None else addresses:
                held[address] = min(held.get(address, NEVER), after.position)
    return held


def held_from(held: Mapping[Address | None, int], topic: str, partition: int) -> int:
    """From which position on nothing is sent to a partition, `NEVER` if everything may be.

    Records whose partition is not chosen yet may be for any.
    """
    return min(
        held.get((topic, partition), NEVER),
        held.get((topic, _UNCHOSEN), NEVER),
        held.get(None, NEVER),
    )
