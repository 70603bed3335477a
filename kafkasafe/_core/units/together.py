"""Units that share a transaction, as long as they do: in their places stands one that is all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kafkasafe._core.units.order import Order
from kafkasafe._core.units.terms import Unit

__all__ = ["MOST", "Together"]

MOST: Final = 16
"""So many units share a transaction at most."""
_MOST_BYTES: Final = 8 * 1024 * 1024
"""Of all of them: what is prepared again when it has to be, and what is copied to be sent."""


class Together(Order):
    """What is in line, and what of it goes together.

    Whoever goes in line behind a unit that shares a transaction finds the whole there, which is in all lines of its
    units, with nothing between them. So what is true of the order of single units is true of it.
    """

    _most: int

    def _gather(self, unit: Unit, fits: Callable[[Unit], bool]) -> list[Unit]:
        """The unit whose turn it is, and those right behind it that may share its transaction, in order.

        Args:
            unit: Nothing that waits stands before it.
            fits: Whether another may be begun, but for its turn.
        """
        found = [unit]
        if not _shares(unit):
            return found
        room = _MOST_BYTES - _size(unit)
        lines: dict[int, Iterator[Unit]] = {}
        heads: dict[int, Unit | None] = {}
        for destination in unit.destinations:
            lines[destination] = iter(self._lines[destination])
            while next(lines[destination]) is not unit:
                pass
            heads[destination] = next(lines[destination], None)
        while len(found) < self._most:
            behind = [head for head in heads.values() if head is not None]
            if not behind:
                break
            other = min(behind, key=lambda head: head.number)
            if (
                _size(other) <= room
                and _shares(other)
                and fits(other)
                # Nothing else stands between, nor before it where the others are not.
                and all(heads.get(at, self._lines[at][0]) is other for at in other.destinations)
            ):
                found.append(other)
                room -= _size(other)
                for destination in other.destinations:
                    if destination not in lines:
                        lines[destination] = iter(self._lines[destination])
                        next(lines[destination])
                    heads[destination] = next(lines[destination], None)
                continue
            for destination, head in heads.items():
                if head is other:
                    heads[destination] = None
        return found

    def _lead(self, units: Sequence[Unit]) -> Unit:
        """They share a transaction from here on: what stands for all of them, in their places."""
        first = units[0]
        if len(units) == 1:
            return first
        whole = Unit(
            first.number,
            first.unit_id,
            first.transactional_id,
            first.offsets,
            [batch for each in units for batch in each.batches],
            durable=True,
            phase=first.phase,
            together=tuple(units),
        )
        for each in units:
            each.within = whole
            for mine, all_of_them in (
                (each.sequences, whole.sequences),
                (each.places, whole.places),
                (each.epochs, whole.epochs),
            ):
                all_of_them.update(mine)
            each.sequences, each.places, each.epochs = whole.sequences, whole.places, whole.epochs
        for destination in whole.destinations:
            line = self._lines[destination]
            mine_here = [each for each in units if destination in each.destinations]
            line[line.index(mine_here[0])] = whole
            for each in mine_here[1:]:
                line.remove(each)
        return whole

    def _part(self, whole: Unit) -> None:
        """Each goes by itself again, in its place."""
        for destination in whole.destinations if whole.together else ():
            line = self._lines[destination]
            at = line.index(whole)
            del line[at]
            for each in reversed(whole.together):
                if destination in each.destinations:
                    line.insert(at, each)
        for each in whole.together:
            each.within = None
            each.sequences, each.places, each.epochs = {}, {}, {}


def _shares(unit: Unit) -> bool:
    """Under a name, or with offsets, it is somebody else's as well; what went back to the line may do so again."""
    return bool(unit.batches) and not (unit.transactional_id or unit.offsets or unit.tries)


def _size(unit: Unit) -> int:
    return sum(batch.size_bytes for batch in unit.batches)
