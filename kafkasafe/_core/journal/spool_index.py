"""Which positions of the spool are still needed, and what for.

How much of the spool is worth being copied forward is decided in `kafkasafe._core.forward`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from kafkasafe._core import marks as m
from kafkasafe._core.backlog import Ordered
from kafkasafe._core.journal.acked import ANYWHERE
from kafkasafe._core.journal.states import Batch

__all__ = ["SpoolIndex"]


class SpoolIndex:
    """Unfinished batches by their positions, and what else must not be deleted.

    Attributes:
        end: The spool's next position.
        released: The spool has nothing before this position any more.
        first_packed: The least position of a packed batch; `ANYWHERE` where nothing is packed.
        suspected: By destination that may have lost batches, where those begin that may have to be sent again. It may
            be read from any thread.
    """

    __slots__ = ("_batches", "_packed_from", "_resent", "end", "first_packed", "released", "suspected")

    def __init__(self) -> None:
        self.end = 0
        self.released = 0
        self.first_packed = ANYWHERE
        # But for those that are packed.
        self._batches: Ordered[Batch] = Ordered()
        # By destination, where the first one is that is packed.
        self._packed_from: dict[int, int] = {}
        # Files of `rejected/` that count for nothing, by the position of their mark.
        self._resent: dict[m.Resent, int] = {}
        self.suspected: dict[int, int] = {}

    # -- batches -------------------------------------------------------------------------------------------------------

    def __contains__(self, position: int) -> bool:
        return position in self._batches

    def at(self, position: int) -> Batch | None:
        """The unfinished batch at this position, or the divided one whose parts are not finished."""
        return self._batches.get(position)

    def items(self) -> list[tuple[int, Batch]]:
        """(position, batch) of them, by position."""
        return sorted(self._batches.items(), key=itemgetter(0))

    def sizes(self) -> list[tuple[int, int]]:
        """(position, bytes) of them, in any order."""
        return [(position, batch.size_bytes) for position, batch in self._batches.items()]

    def place(self, batch: Batch) -> None:
        """It is at its position, and has to be kept there."""
        self._batches[batch.position] = batch

    def drop(self, batch: Batch) -> None:
        """It may be released; and with the last of its parts, the divided batch in whose place they stand."""
        gone: Batch | None = batch
        while gone is not None:
            self._batches.pop(gone.position, None)
            gone = gone.parent
            if gone is not None and gone.lose_heir():
                break

    def pack(self, batch: Batch) -> None:
        """It is kept as one of those that are packed."""
        self._batches.pop(batch.position)

    def note_packed(self, destination: int, position: int | None) -> None:
        """The first packed batch of a destination is at this position; None: it has none."""
        known = self._packed_from.get(destination)
        if position == known:
            return
        if position is None:
            del self._packed_from[destination]
        else:
            self._packed_from[destination] = position
        if known is None and position is not None:
            self.first_packed = min(self.first_packed, position)
        elif known == self.first_packed:
            self.first_packed = min(self._packed_from.values(), default=ANYWHERE)

    @property
    def packed_from(self) -> Mapping[int, int]:
        """By destination, where the first one is that is packed."""
        return self._packed_from

    # -- the spool -----------------------------------------------------------------------------------------------------

    def reach(self, end: int) -> None:
        """The spool goes on at this position, or behind it."""
        self.end = max(self.end, end)

    def release(self, before_position: int) -> None:
        """The spool deleted everything before this position."""
        self.released = before_position

    def has(self, batch: Batch) -> bool:
        """Whether the spool still has this batch, finished or not."""
        return batch.position >= max(self.released, 0)

    # -- what else is kept ---------------------------------------------------------------------------------------------

    @property
    def resent(self) -> list[m.Resent]:
        """Files of `rejected/` that count for nothing, and are not deleted."""
        return list(self._resent)

    def is_disowned(self, mark: m.Resent) -> bool:
        """Whether the log says already that this file counts for nothing."""
        return mark in self._resent

    def disown(self, mark: m.Resent, position: int) -> None:
        """The mark at this position says that a file counts for nothing: it is needed until the file is gone."""
        self._resent[mark] = position

    def retire(self, mark: m.Resent) -> None:
        """The file is gone."""
        self._resent.pop(mark, None)

    def pin(self, destination: int, batches: Iterable[Batch]) -> None:
        """These batches may have to be sent again: what the spool still has of them is kept."""
        if destination in self.suspected:
            return
        self.suspected[destination] = min(
            (batch.position for batch in batches if self.has(batch)), default=self.end
        )

    def unpin(self, destination: int) -> None:
        """None of them has to be sent again."""
        self.suspected.pop(destination, None)

    def pin_everything(self) -> None:
        """A check may follow from a leader epoch in the first segment: it stays until there is an answer."""
        self.suspected = dict.fromkeys(self.suspected, 0)

    # -- what may be released ------------------------------------------------------------------------------------------

    def release_position(self, others: Sequence[int]) -> int:
        """Everything before this position is finished, and not needed.

        Args:
            others: Positions from which on something else is needed.
        """
        least = self._batches.least
        first = min(self.end if least is None else least, self.first_packed)
        if not (self.suspected or self._resent or others):
            return first
        return min((first, *self._resent.values(), *self.suspected.values(), *others))

    def held_position(self, others: Sequence[int]) -> int:
        """The same, where finished batches alone are looked at."""
        return min((*self._resent.values(), *self.suspected.values(), *others), default=self.end)
