"""The marks (log entries) that new segments repeat: each partition's progress, and its newest acknowledged batch."""

from __future__ import annotations

from itertools import islice

from kafkasafe import marks as m
from kafkasafe.journal.batch import Batch
from kafkasafe.journal.destinations import WINDOW, Destination, Partition
from kafkasafe.journal.state import JournalState


class Snapshots:
    """Makes the marks that each new segment repeats, so that the spool can delete old segments."""

    def __init__(self, state: JournalState) -> None:
        self._destinations = state.destinations
        self._home = state.home
        self._precedence = state.precedence
        self._revivals = state.revivals

    def all(self) -> list[m.Mark]:
        """The marks that a new segment's first spool group must repeat, so that earlier segments can be deleted."""
        home = self._home
        marks: list[m.Mark] = [m.Cluster(home.cluster_id)] if home.cluster_id else []
        marks += [*self._destinations.topics.values(), *self._precedence.afters]
        if home.producer_id >= 0:
            marks.append(m.Granted(home.producer_id, home.epoch))
        for partition in self._destinations.all.values():
            marks.append(m.Destination(partition.number, partition.topic, partition.partition))
            marks += _newest_marks(partition)
            marks += self.states(partition)
            marks += _gap_marks(partition)
        return marks

    def newest(self, before_position: int) -> list[m.Mark]:
        """The marks of the newest acknowledged batches. These marks must be durable before the spool deletes everything
        before this position.
        """
        marks: list[m.Mark] = []
        for partition in self._destinations.partitions.values():
            newest = _newest(partition)
            if newest is None or newest.position == partition.log.told_position:
                continue
            if 0 <= newest.position < before_position:
                marks += [*_newest_marks(partition), *self.states(partition)]
        return marks

    def doubt(self) -> None:
        """Let `newest` return its marks again. A spool group could not be written, and it may have contained these
        marks.
        """
        for partition in self._destinations.partitions.values():
            partition.log.tell(-1)

    def states(self, partition: Destination) -> list[m.State]:
        """The STATE mark to repeat for the partition. Recovery reads an empty STATE mark as a reset of the partition.
        So this method returns no mark if the mark would be empty although the journal remembers batches. For example:

        1. A broker without topic ids and leader epochs acknowledges the batches of a unit (atomic batch), but reports
           no offsets.
        2. The lane sent nothing else to the partition, so no baseline (end offset before the first batch) is known.
        3. A new segment begins. The journal remembers the unit's batches, but has no data for the STATE mark.
        """
        mark = state_mark(partition)
        remembers = bool(partition.log.acked) or partition.number in self._revivals.by_destination
        return [] if mark.knows_nothing and remembers else [mark]


def state_mark(partition: Destination) -> m.State:
    """The STATE mark of the partition's progress."""
    return m.State(
        partition.number,
        partition.log.baseline_offset,
        # The last acknowledged offset would be wrong here: the commit mark of the last acknowledged batch may not be
        # durable yet, and a scan from this offset on would not find an earlier batch in doubt.
        partition.log.clear_offset,
        partition.log.leader_epoch,
        partition.log.topic_id,
    )


def _newest(partition: Destination) -> Batch | None:
    """The batch that ends at `clear_offset`, up to which every batch is finished."""
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


def _newest_marks(partition: Destination) -> list[m.Mark]:
    """The marks before the STATE mark. They keep the id of the newest acknowledged batch when the spool deletes the
    batch.

    The recorded leader epoch may be older than the epoch of the leader that acknowledged the batch. If the recorded
    epoch ends before the batch's offset, only a search for the batch's id shows whether the log still has the batch.
    """
    newest = _newest(partition)
    if newest is None or newest.identity is None:
        return []
    # A batch that was never in the spool gets position 0, which no data batch can have.
    at = newest.position if newest.position >= 0 else newest.rank[-1] if newest.rank else 0
    partition.log.tell(at)
    identity = m.Identity(at, *newest.identity.fields)
    return [
        m.Identified(partition.number, m.IdentityReason.FIRST, -1, (identity,)),
        m.Committed(partition.number, partition.log.leader_epoch, ((at, newest.base_offset),)),
    ]


def _gap_marks(partition: Destination) -> list[m.Identified]:
    """The mark that names the expected sequence gaps. Other marks or torn batches also explain the gaps, but the spool
    may delete the segment with these marks and batches:

    1. A power cut leaves a batch incomplete. Later batches of the same spool group are intact.
    2. The next incarnation copies the intact batches forward, and deletes the segment. The process is killed before the
       copied batches get new ids.
    3. Without the mark, the following incarnation would wrongly report the incomplete batch as missing, although the
       batch was never durable.
    """
    gaps = partition.loss.gaps if isinstance(partition, Partition) else {}
    # Each entry describes a gap, and has position 0, which no data batch has, so recovery gives the entry's id to no
    # batch.
    entries = [
        m.Identity(0, producer_id, epoch, sequence)
        for (producer_id, epoch, end), begin in gaps.items()
        for sequence in (begin, end)
    ]
    return (
        [m.Identified(partition.number, m.IdentityReason.REIDENTIFIED, -1, tuple(entries))] if entries else []
    )
