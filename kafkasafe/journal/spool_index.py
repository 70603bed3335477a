"""The positions of the spool that are still needed, with the reasons.

`kafkasafe.delivery.forward` decides how much of the spool is worth copying forward.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TypeVar

from kafkasafe import marks as m
from kafkasafe.journal.acked import ANYWHERE
from kafkasafe.journal.batch import Batch

V = TypeVar("V")


class Ordered(dict[int, V]):
    """A dict that knows its least key, regardless of the order of insertion.

    Only `[...] =`, `pop` and `clear` change it; any thread may read `least`.
    """

    __slots__ = ("_heap", "least")

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[int] = []
        self.least: int | None = None
        """The least key, None while the dict is empty."""

    def __setitem__(self, key: int, value: V) -> None:
        if key not in self:
            heapq.heappush(self._heap, key)
        super().__setitem__(key, value)
        # A signal handler may have interrupted this method, and another thread may have removed all keys.
        self.least = next(iter(self._heap), None)

    def pop(self, key: int, default: V | None = None) -> V | None:  # type: ignore[override]  # never raises
        """Remove a key and return its value, or `default` if the key is missing."""
        value = super().pop(key, default)
        heap = self._heap
        if len(heap) > 2 * len(self) + 64:
            heap[:] = list(self)
            heapq.heapify(heap)
        while heap and heap[0] not in self:
            heapq.heappop(heap)
        self.least = heap[0] if heap else None
        return value

    def clear(self) -> None:
        """Remove all keys."""
        super().clear()
        self._heap.clear()
        self.least = None


class SpoolIndex:
    """Unfinished batches by their spool positions, and other positions that the spool must keep.

    Attributes:
        end: The spool's next position.
        released: The spool has deleted everything before this position.
        first_packed: The least position of a packed batch; `ANYWHERE` if none is packed.
        suspected: For each destination whose log may have lost batches: the position of the first batch that may have
            to be sent again. Any thread may read it.
    """

    __slots__ = ("_batches", "_packed_from", "_resent", "end", "first_packed", "released", "suspected")

    def __init__(self) -> None:
        self.end = 0
        self.released = 0
        self.first_packed = ANYWHERE
        # The unfinished batches, by position, except those that are packed.
        self._batches: Ordered[Batch] = Ordered()
        # By destination: the position of the first batch that is packed.
        self._packed_from: dict[int, int] = {}
        # The files of `rejected/` that no longer count, because the lane's log has the same records. Maps the mark that
        # says so to its position.
        self._resent: dict[m.Resent, int] = {}
        self.suspected: dict[int, int] = {}

    # -- batches -------------------------------------------------------------------------------------------------------

    def __contains__(self, position: int) -> bool:
        return position in self._batches

    def at(self, position: int) -> Batch | None:
        """The batch at this position if it is unfinished, or is divided and has unfinished parts; otherwise None."""
        return self._batches.get(position)

    def items(self) -> list[tuple[int, Batch]]:
        """(position, batch) of the batches that are not packed, by position."""
        return sorted(self._batches.items(), key=itemgetter(0))

    def sizes(self) -> list[tuple[int, int]]:
        """(position, bytes) of the batches that are not packed, in any order."""
        return [(position, batch.size_bytes) for position, batch in self._batches.items()]

    def place(self, batch: Batch) -> None:
        """Note that the spool must keep this batch."""
        self._batches[batch.position] = batch

    def drop(self, batch: Batch) -> None:
        """Drop a batch from the index. If the batch is the last unfinished part of a divided batch, drop the divided
        batch, too.
        """
        gone: Batch | None = batch
        while gone is not None:
            self._batches.pop(gone.position, None)
            gone = gone.parent
            if gone is not None and gone.lose_heir():
                break

    def pack(self, batch: Batch) -> None:
        """Remove a batch that was packed. For each destination, the index stores only the position of the first packed
        batch (`note_packed`).
        """
        self._batches.pop(batch.position)

    def note_packed(self, destination: int, position: int | None) -> None:
        """Note the position of a destination's first packed batch; None if the destination has no packed batch."""
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
        """By destination: the position of the first batch that is packed."""
        return self._packed_from

    # -- the spool -----------------------------------------------------------------------------------------------------

    def reach(self, end: int) -> None:
        """Note that the spool's next position is `end` or later."""
        self.end = max(self.end, end)

    def release(self, before_position: int) -> None:
        """Note that the spool deleted everything before this position."""
        self.released = before_position

    def has(self, batch: Batch) -> bool:
        """Whether this batch, finished or not, is still in the spool."""
        return batch.position >= max(self.released, 0)

    # -- what else is kept ---------------------------------------------------------------------------------------------

    @property
    def resent(self) -> list[m.Resent]:
        """The void files of `rejected/` that are not deleted yet."""
        return list(self._resent)

    def is_disowned(self, mark: m.Resent) -> bool:
        """Whether the lane's log already has a mark (entry) that voids this file of `rejected/`."""
        return mark in self._resent

    def disown(self, mark: m.Resent, position: int) -> None:
        """Note that the lane's log has a mark (entry) that voids a file of `rejected/`. The spool keeps the mark until
        the file is deleted.
        """
        self._resent[mark] = position

    def retire(self, mark: m.Resent) -> None:
        """Note that the void file that this mark (log entry) names is deleted."""
        self._resent.pop(mark, None)

    def pin(self, destination: int, batches: Iterable[Batch]) -> None:
        """Keep these batches, if the spool still has them, because they may have to be sent again."""
        if destination in self.suspected:
            return
        self.suspected[destination] = min(
            (batch.position for batch in batches if self.has(batch)), default=self.end
        )

    def unpin(self, destination: int) -> None:
        """Note that no batch of this destination has to be sent again."""
        self.suspected.pop(destination, None)

    def pin_everything(self) -> None:
        """Delete nothing from the spool while checks of leader epochs are pending. If the process dies, the next
        incarnation repeats the checks. It then needs the mark with the leader epoch, which may be in the first segment.
        """
        self.suspected = dict.fromkeys(self.suspected, 0)

    # -- what may be released ------------------------------------------------------------------------------------------

    def release_position(self, others: Sequence[int]) -> int:
        """The position before which the spool may delete everything, because nothing before it is unfinished or needed.

        Args:
            others: Other positions that the spool must keep.
        """
        least = self._batches.least
        first = min(self.end if least is None else least, self.first_packed)
        if not (self.suspected or self._resent or others):
            return first
        return min((first, *self._resent.values(), *self.suspected.values(), *others))

    def held_position(self, others: Sequence[int]) -> int:
        """The position before which the spool may delete everything, if all unfinished batches before it are copied
        forward.
        """
        return min((*self._resent.values(), *self.suspected.values(), *others), default=self.end)
