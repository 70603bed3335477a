"""Order across the lanes of a directory. In each topic-partition, batches of earlier incarnations are delivered before
batches of later incarnations.

An *incarnation* is one run of a producer on a lane, from opening the lane to closing it or to a crash. When an
incarnation begins, other lanes may still hold batches of incarnations that have ended. For each of the other lanes, the
new incarnation writes into its own log the position in the other lane at which the batches of ended incarnations end
(mark AFTER). In each topic-partition, the new incarnation's batches wait until the other lanes have finished every
batch before these positions.

Circular waits are impossible, because every batch waits only for batches that were written earlier. Within a lane,
batches are delivered in the order in which they were written. Across lanes, an incarnation waits only for batches that
were written before it began, and so before any of its own batches. Any producer may deliver the earlier batches. An
incarnation does not wait for batches of incarnations that are still running, because kafkasafe promises no order
between producers that run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from kafkasafe import marks as m

Address: TypeAlias = tuple[str, int]
"""Topic and partition; partition -1 while it is not chosen."""

NEVER: Final = 1 << 62
"""A spool position after every other position. Nothing is held back if batches wait only from NEVER on."""
_UNCHOSEN: Final = -1


@dataclass(eq=False, slots=True)
class Owed:
    """The unfinished batches of a lane, as the marks in the lane's files show them. The lane's owner, or a later owner,
    still has to deliver these batches.

    Attributes:
        lane_id: Id of the lane, empty before the first spool group.
        damaged: Whether a part of the lane cannot be read. The batches in this part are unknown.
        synced_position: Everything in the lane before this position is known to be durable; a crash may have torn later
            batches.
        open: For each unfinished batch, by its position: (destination, position where its records were first written).
    """

    lane_id: bytes = b""
    damaged: bool = False
    synced_position: int = 0
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    _addresses: dict[int, Address] = field(default_factory=dict)
    _units: dict[bytes, set[int]] = field(default_factory=dict)
    """By the id of an unfinished unit (atomic batch): the positions of its batches."""

    def copy(self) -> Owed:
        """An independent copy."""
        units = {unit_id: set(positions) for unit_id, positions in self._units.items()}
        return replace(self, open=dict(self.open), _addresses=dict(self._addresses), _units=units)

    def begins(self, position: int) -> None:
        """Note where the lane begins: the owner has finished and deleted all batches before this position."""
        for old in [at for at in self.open if at < position]:
            del self.open[old]

    def note_damage(self) -> None:
        """Note that a part of the lane cannot be read."""
        self.damaged = True

    def group(self, group: m.Group, marks: Sequence[m.Mark]) -> None:
        """Apply the next group of the lane's log."""
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
                        # A merged batch gets the origin (first spool position) of the first batch that it replaces.
                        origins.setdefault(index, origin)
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
                    pass  # does not finish batches
        for index, entry in enumerate(group.manifest):
            self.open[entry.position] = entry.destination, origins.get(index, entry.position)
            if index in members:
                self._units[members[index]].add(entry.position)

    def drop(self, position: int) -> None:
        """Drop a damaged batch: it will not be delivered."""
        del self.open[position]

    @property
    def end_position(self) -> int:
        """The position after the last unfinished batch, 0 if all are finished."""
        return max(self.open, default=-1) + 1

    def addresses(self, before: int) -> frozenset[Address]:
        """Addresses of the unfinished batches whose records were first written at positions below `before`."""
        numbers = {number for number, origin in self.open.values() if origin < before}
        return frozenset(self._addresses[number] for number in numbers if number in self._addresses)


def holds(
    afters: Iterable[m.After], owed: Mapping[m.Debt, frozenset[Address] | None]
) -> Mapping[Address | None, int]:
    """For each address, find out which batches of the lane are held back.

    Args:
        afters: The lane's AFTER marks.
        owed: For each debt (batches of another lane), the addresses of the unfinished batches; None while the addresses
            are not known.

    Returns:
        For each address, a position: the lane's batches for this address that were first written at this position or
        later are not sent yet. The key None applies to every address.
    """
    held: dict[Address | None, int] = {}
    for after in afters:
        for debt in after.debts:
            addresses = owed[debt]
            for address in (None,) if addresses is None else addresses:
                held[address] = min(held.get(address, NEVER), after.position)
    return held


def held_from(held: Mapping[Address | None, int], topic: str, partition: int) -> int:
    """A spool position: batches first written at or after it are not sent to the partition. `NEVER` if all may be sent.

    Records whose partition is not chosen yet may go to any partition of the topic.
    """
    return min(
        held.get((topic, partition), NEVER),
        held.get((topic, _UNCHOSEN), NEVER),
        held.get(None, NEVER),
    )
