"""What marks repeat of partitions: how far each is, and which batch was acknowledged last."""

from __future__ import annotations

from itertools import islice

from kafkasafe._core import marks as m
from kafkasafe._core.journal.destinations import Destinations
from kafkasafe._core.journal.healing import Revivals
from kafkasafe._core.journal.home import Home
from kafkasafe._core.journal.partition import WINDOW, Partition
from kafkasafe._core.journal.precedence import Precedence
from kafkasafe._core.journal.sequences import IdSource
from kafkasafe._core.journal.states import Batch, id_fields

__all__ = ["Snapshots", "state_mark"]


class Snapshots:
    """Marks that outlive their segment."""

    def __init__(
        self,
        destinations: Destinations,
        home: Home,
        precedence: Precedence,
        ids: IdSource,
        revivals: Revivals,
    ) -> None:
        self._destinations = destinations
        self._home = home
        self._precedence = precedence
        self._ids = ids
        self._revivals = revivals

    def all(self) -> list[m.Mark]:
        """What the first group of a new segment must repeat, so that segments before it can go."""
        marks: list[m.Mark] = [
            *self._home.marks,
            *self._destinations.topics.values(),
            *self._precedence.afters,
        ]
        if self._ids.is_granted:
            marks.append(m.Granted(self._ids.producer_id, self._ids.epoch))
        for partition in self._destinations.partitions.values():
            marks.append(m.Destination(partition.number, partition.topic, partition.partition))
            marks += _newest_marks(partition)
            marks += self.states(partition)
        return marks

    def newest(self, before_position: int) -> list[m.Mark]:
        """Marks to be durable before what is in front of this position goes: which batch was acknowledged last."""
        marks: list[m.Mark] = []
        for partition in self._destinations.partitions.values():
            newest = _newest(partition)
            if newest is None or newest.position == partition.log.told_position:
                continue
            if 0 <= newest.position < before_position:
                marks += [*_newest_marks(partition), *self.states(partition)]
        return marks

    def states(self, partition: Partition) -> list[m.State]:
        """How far the partition is, to be repeated: none where the mark would be read as a reset, and is none.

        1. The batches of a unit are acknowledged at no offset, by a broker without topic ids and leader epochs.
        2. Nothing else was sent to the partition, so that no baseline is known.
        3. A new segment begins: the mark would know nothing, but the batches are remembered.
        """
        mark = state_mark(partition)
        remembers = bool(partition.log.acked) or partition.number in self._revivals
        return [] if mark.knows_nothing and remembers else [mark]


def state_mark(partition: Partition) -> m.State:
    """How far the partition is."""
    return m.State(
        partition.number,
        partition.log.baseline_offset,
        # Not the last acknowledged one: its mark may not be durable yet, or an earlier batch be in doubt, and a
        # scan that starts behind a batch takes it for absent.
        partition.log.clear_offset,
        partition.log.leader_epoch,
        partition.log.topic_id,
    )


def _newest(partition: Partition) -> Batch | None:
    """The batch that ends where STATE says that everything before it is finished."""
    return next(
        (
            batch
            for batch in islice(reversed(partition.log.acked), WINDOW)
            if batch.identity is not None
            and batch.place == batch.base_offset >= 0
            and batch.place + batch.count - 1 == partition.log.clear_offset
        ),
        None,
    )


def _newest_marks(partition: Partition) -> list[m.Mark]:
    """In front of STATE: the id of the batch that was acknowledged last, which outlives the batch.

    The epoch of the acknowledgement may be an older one than that of its leader. Where the log of that epoch ends
    before it, only the batch itself proves that it is still there.
    """
    newest = _newest(partition)
    if newest is None or newest.identity is None:
        return []
    # What was never in the spool has a position where no batch can be.
    at = newest.position if newest.position >= 0 else newest.rank[-1] if newest.rank else 0
    partition.log.tell(at)
    identity = m.Identity(at, *id_fields(newest.identity))
    return [
        m.Identified(partition.number, m.IdentityReason.FIRST, -1, (identity,)),
        m.Committed(partition.number, partition.log.leader_epoch, ((at, newest.base_offset),)),
    ]
