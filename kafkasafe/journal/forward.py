"""Copies unfinished batches from the front of the spool to the end, so that the first segments can be deleted.

`kafkasafe.delivery.forward` decides how much is worth copying.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kafkasafe import marks as m
from kafkasafe.journal.batch import Batch, BatchState
from kafkasafe.journal.destinations import WINDOW
from kafkasafe.journal.flow import Flow
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.snapshots import Snapshots
from kafkasafe.journal.state import JournalState

_MOVED_BATCHES: Final = 1000
"""How many batches one mark moves at most."""

_MOVABLE: Final = frozenset(
    {
        BatchState.SEALED,
        BatchState.PREPARED,
        BatchState.SENT,
        BatchState.IN_DOUBT,
        BatchState.REFUSED,
        BatchState.UNDECIDABLE,
    }
)
"""The states in which a batch may be copied."""


class CopyForward:
    """Selects the batches to copy, and notes their new positions."""

    def __init__(self, state: JournalState, packer: Packer, snapshots: Snapshots) -> None:
        self._all = state.destinations.all
        self._out = state.out
        self._index = state.index
        self._packer = packer
        self._snapshots = snapshots
        self._revivals = state.revivals

    def to_move(self, before_position: int, most_bytes: int) -> list[Batch]:
        """The unfinished batches to copy now: from the front of the spool to the first batch that cannot be copied now.

        Args:
            before_position: Only batches before this position.
            most_bytes: Upper bound of the total size of the returned batches. If the first batch alone exceeds this
                bound, the list has only this batch.
        """
        if self._out.is_writing:
            return []  # marks that are about to be written may name the batches' positions
        found: dict[int, Batch] = {}
        size = 0
        # Turn batches before `before_position` that are packed (compact rows) into objects again, a limited number in
        # each call.
        for number, first_position in list(self._index.packed_from.items()):
            while first_position < before_position and len(self._out.ready.unpacked) < _MOVED_BATCHES:
                self._packer.unpack(self._all[number], WINDOW)
                first_position = self._index.packed_from.get(number, before_position)
        for position, pinning in self._index.items():
            if position >= before_position or len(found) >= _MOVED_BATCHES:
                break
            # A divided batch stays in the index until its parts are finished.
            parts = [pinning]
            if pinning.state is BatchState.REPLACED:
                parts = [
                    batch for batch in self._all[pinning.destination].queue.near if _is_part(batch, pinning)
                ]
            for batch in parts:
                if batch.handle in found:
                    continue
                size += batch.size_bytes
                if not self._movable(batch) or (found and size > most_bytes):
                    return list(found.values())
                found[batch.handle] = batch
        return list(found.values())

    def to_rescue(self, first_position: int, end_position: int) -> list[Batch] | None:
        """The unfinished batches from `first_position` to `end_position`, whose files are lost. Batches that cannot be
        copied are left out. None if the caller has to call again later.
        """
        if self._out.is_writing:
            return None
        return [
            batch
            for position, batch in self._index.items()
            if first_position <= position < end_position and self._movable(batch)
        ]

    def _movable(self, batch: Batch) -> bool:
        partition = self._all[batch.destination]
        return (
            batch.durable
            and not batch.writing
            and batch.unit is None
            and batch.state in _MOVABLE
            and partition.progress.flow is not Flow.REJECTING
            and partition.number not in self._revivals.by_destination
            and batch.position >= partition.unsure_before
        )

    def move_marks(self, batches: Sequence[Batch]) -> list[m.Mark]:
        """The marks (log entries) to write before the copies of these batches. Marks and copies form one atomic spool
        group.
        """
        numbers = dict.fromkeys(batch.destination for batch in batches)
        marks: list[m.Mark] = [
            mark for number in numbers for mark in self._snapshots.states(self._all[number])
        ]
        marks.append(
            m.Moved(tuple(m.Move(batch.position, batch.written_at, batch.rank) for batch in batches))
        )
        marks += [m.Given(index, b.given) for index, b in enumerate(batches) if b.given is not None]
        return marks

    def moved(self, batches: Sequence[Batch], positions: Sequence[int], end_position: int) -> None:
        """Note that the copies are durable, so they replace the originals."""
        self._index.reach(end_position)
        for batch, position in zip(batches, positions, strict=True):
            self.place(batch, position)

    def place(self, batch: Batch, position: int) -> None:
        """Note a batch's new position. The batch keeps its rank, and therefore its place in the order."""
        self._index.drop(batch)
        batch.copied(position)
        self._index.place(batch)


def _is_part(batch: Batch, of: Batch) -> bool:
    parent = batch.parent
    while parent is not None and parent is not of:
        parent = parent.parent
    return parent is of
