"""One batch becomes several, which stand where it stood: all of them or none, in a group of their own.

Whether it has to be is decided where the reason is known: `machine`, `rejecting`, `members`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kafkasafe._core import marks as m
from kafkasafe._core.journal.groups import Ended, Persist, unit_marks
from kafkasafe._core.journal.sealing import Sealing
from kafkasafe._core.journal.states import Batch, Fate, State

__all__ = ["Dividing"]


class Dividing(Sealing):
    """Part of `Journal`: what a batch is divided into."""

    def replaced(self, batch: Batch, children: Sequence[tuple[int, int, int, int, bool]]) -> list[Batch]:
        """A batch was divided (see `Divide`): its children take its place, all or none.

        Args:
            batch: The divided batch.
            children: (destination, count, size_bytes, max_timestamp, doomed) of each, in order, ≥ 1.

        Returns:
            The children as batches, in order.
        """
        partition = self._partitions[batch.destination]
        persist = self._ready.persist
        made = []
        first = len(persist.batches)
        refused = batch.state is State.REFUSED
        place = partition.queue.index(batch)
        for index, (destination, count, size_bytes, max_timestamp, doomed) in enumerate(children):
            if refused:
                # They stand where their parent stood, in front of all behind it.
                child = self._make(destination, count, size_bytes, max_timestamp)
                child.doomed, child.code, child.message = doomed, batch.code, batch.message
                child.overdue = batch.overdue
                # Only the parent's position tells recovery where they stand: it is kept as long as they are.
                child.parent = batch
                child.owed = batch.durable
                batch.heirs += 1
                partition.queue.insert(place + index, child)
                if batch.durable:
                    self._write(child)
            else:
                child = self._make(destination, count, size_bytes, max_timestamp)
                child.owed = batch.durable
                if batch.rank:
                    child.origin = batch.written_at
                if batch.unit is not None:
                    if destination == batch.destination:
                        # As above: too large, and its parts stand where it stood.
                        child.unit, child.state, child.parent = batch.unit, State.JOINED, batch
                        batch.heirs += 1
                        partition.queue.insert(place + index, child)
                    else:
                        self._join(batch.unit, child)
                    self._write(child)
                else:
                    self._enqueue(child)
            made.append(child)
        if batch.unit is not None:
            self.units.divided(batch.unit, batch, made)
        self._parts_heal(batch, made)
        self._comes_back(batch)
        if batch.position >= 0:
            persist.atomic = True
            persist.marks.append(m.Replaced(batch.position, first, len(made)))
            if batch.unit is not None:
                # The segment with the first one may be gone before these are.
                persist.marks += unit_marks(batch.unit, first, len(made))
        batch.move(State.REPLACED)
        partition.queue.remove(batch)
        persist.after.append(Ended(batch, Fate.REPLACED, kept=refused or batch.heirs > 0))
        if refused:
            self._reidentify(partition)
        partition.rested = True
        self._touch(partition)
        return made

    def _set_apart(self, persist: Persist) -> None:
        """A division is written alone; other batches come with the next group.

        The shell may write decisions before batches that a failing disk did not take: a batch in the same group would
        overtake those before it.
        """
        parts: list[Batch] = []
        places: dict[int, int] = {}
        for index, mark in enumerate(persist.marks):
            if isinstance(mark, m.Replaced):
                # What was gathered is named by several.
                place = places.setdefault(mark.first_child, len(parts))
                if place == len(parts):
                    parts += persist.batches[mark.first_child : mark.first_child + mark.children]
                persist.marks[index] = m.Replaced(mark.position, place, mark.children)
            elif isinstance(mark, m.Unit):
                # Behind the REPLACED mark of the same batches.
                persist.marks[index] = replace(mark, first=len(parts) - mark.batches)
        apart = {batch.handle for batch in parts}
        self._ready.persist.batches += [b for b in persist.batches if b.handle not in apart]
        self._ready.persist.units += persist.units
        persist.units = []
        persist.batches[:] = parts
