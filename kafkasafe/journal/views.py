"""Read-only queries about the journal's state.

Any thread may call a method if its docstring says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from kafkasafe import marks as m
from kafkasafe.journal import packing
from kafkasafe.journal.batch import Batch, BatchState
from kafkasafe.journal.flow import Flow
from kafkasafe.journal.notices import Delivered, Denial
from kafkasafe.journal.order import Address
from kafkasafe.journal.outbox import Packed
from kafkasafe.journal.queue import BacklogRow
from kafkasafe.journal.state import JournalState


class Views:
    """Queries about waiting batches, batches in doubt and delivered batches."""

    def __init__(self, state: JournalState) -> None:
        self._destinations = state.destinations
        self._all = state.destinations.all
        self._partitions = state.destinations.partitions
        self._index = state.index
        self._units = state.units
        self._precedence = state.precedence
        self._revivals = state.revivals
        self._home = state.home
        self._replay = state.replay

    @property
    def producer_id(self) -> int:
        """The producer id of this run of the producer, -1 until the cluster grants an id."""
        return self._home.producer_id

    @property
    def release_position(self) -> int:
        """The spool position before which all batches are finished, and none is suspected to be lost."""
        others = self._pinned() if self._revivals.by_destination or self._units.lines.by_id else ()
        return self._index.release_position(others)

    def _pinned(self) -> Sequence[int]:
        return *(healing.keep_from for healing in self._revivals.by_destination.values()), *(
            unit.position for unit in self._units.lines.batchless.values()
        )

    @property
    def doubted(self) -> list[int]:
        """Destinations whose log may have lost acknowledged batches, until a survey (a search of the log) or a check of
        a leader epoch has a result. Any thread may read it.
        """
        return list(self._index.suspected)

    def doubts(self) -> list[tuple[str, int, str]]:
        """(topic, partition, human-readable reason) of partitions whose log may have lost acknowledged batches. Any
        thread may call it.
        """
        found = []
        for number in list(self._index.suspected):
            partition = self._partitions[number]
            suspicion = partition.loss.suspicion
            why = "another leader acknowledges" if suspicion is None else suspicion.evidence
            if partition.progress.reason:
                why += f"; not known yet: {partition.progress.reason}"
            found.append((partition.topic, partition.partition, why))
        return found

    @property
    def held_position(self) -> int:
        """The spool keeps all batches at or after this position, even if it copies unfinished batches forward."""
        return self._index.held_position(self._pinned())

    def pinned(self) -> Iterable[tuple[int, int]]:
        """(position, bytes) of the batches that the spool must keep, sorted by position. Each block of packed batches
        (compact rows) counts as one batch. The spool keeps all data from the first of these batches on.
        """
        sizes = self._index.sizes()
        for number in self._index.packed_from:
            sizes += self._all[number].queue.packed.sizes()
        return sorted(sizes)

    def batches(self, *, far: bool | None = None) -> Iterable[tuple[str, int, Batch]]:
        """Every unfinished batch that is an object, not packed into a compact row, with its address.

        Args:
            far: True: only batches that are far back in their queue, and may be packed. False: only the other batches.
                None: all batches.
        """
        first = packing.UNPACKED if far else 0
        last = packing.UNPACKED if far is False else None
        for partition in self._all.values():
            for batch in islice(partition.queue.all(), first, last):
                yield partition.topic, partition.partition, batch

    def packed(self) -> Iterator[Packed]:
        """For each partition with packed batches (compact rows), a summary of these batches."""
        for partition in self._all.values():
            first = partition.queue.packed.first()
            if first is not None:
                queue = partition.queue
                yield Packed(
                    partition.number,
                    first.number,
                    queue.packed.count,
                    queue.packed.records,
                    queue.packed.with_id,
                )

    def packed_at(self, position: int) -> BacklogRow | None:
        """The compact row of the batch at this position in the spool; None if no batch there is packed."""
        for number, first_position in self._index.packed_from.items():
            if first_position <= position:
                row = self._all[number].queue.packed.at(position)
                if row is not None:
                    return row
        return None

    def packed_records(self, first_position: int, end_position: int) -> int:
        """How many records are in the batches from `first_position` to `end_position` that are packed into compact
        rows.
        """
        return sum(
            row.count
            for number, packed_from in self._index.packed_from.items()
            if packed_from < end_position
            for row in self._all[number].queue.packed.rows()
            if first_position <= row.position < end_position
        )

    @property
    def resent(self) -> list[m.Resent]:
        """The files in `rejected/` whose records this lane holds again, as batches. The caller deletes each file, then
        calls `Journal.retired()`.
        """
        return self._index.resent

    @property
    def unfinished(self) -> int:
        """How many batches are not finished. A unit (atomic batch) with offsets but no records counts as one batch."""
        return sum(len(p.queue) for p in self._all.values()) + len(self._units.lines.batchless)

    def topic(self, name: str) -> m.Topic | None:
        """The id and partition count of a topic; None if unknown."""
        return self._destinations.topics.get(name)

    @property
    def topics(self) -> Mapping[str, m.Topic]:
        """All known topics by name."""
        return self._destinations.topics

    @property
    def destinations(self) -> set[int]:
        """The numbers that identify the declared destinations."""
        return set(self._all)

    def address(self, destination: int) -> tuple[str, int]:
        """Topic and partition (UNCHOSEN: not chosen yet) of a destination number."""
        partition = self._all[destination]
        return partition.topic, partition.partition

    def last_acked_offset(self, topic: str, partition: int) -> int:
        """Offset of the last acknowledged record (inclusive), -1 if none was acknowledged."""
        known = self._destinations.find(topic, partition)
        return -1 if known is None else known.log.last_acked_offset

    def last_acked_offsets(self) -> list[tuple[tuple[str, int], int]]:
        """((topic, partition), last acked offset) of partitions with acknowledged records. Any thread may call it."""
        return [
            ((p.topic, p.partition), p.log.last_acked_offset)
            for p in list(self._all.values())
            if p.log.last_acked_offset >= 0
        ]

    @property
    def in_doubt(self) -> int:
        """How many batches are in doubt: the broker may have appended them. Any thread may call it."""
        return sum(
            batch.state is BatchState.IN_DOUBT for p in list(self._all.values()) for batch in p.queue.copy()
        )

    @property
    def spooled_records(self) -> int:
        """How many unfinished records are on disk. Any thread may call it."""
        partitions = list(self._all.values())
        packed = sum(p.queue.packed.records for p in partitions)
        return packed + sum(b.count for p in partitions for b in p.queue.copy() if b.durable)

    def identified_since_ms(self) -> list[int]:
        """For each partition with an unfinished batch that has an id: the largest timestamp in the first such batch.

        Any thread may call this.
        """
        queues = [partition.queue.copy() for partition in list(self._all.values())]
        firsts = (next((b for b in queue if b.identity is not None), None) for queue in queues)
        return [first.max_timestamp for first in firsts if first is not None]

    def denials(self) -> list[tuple[int, Denial, int, int]]:
        """(destination, denial, batches, records) of each refused destination. Any thread may call it."""
        found = []
        for partition in list(self._all.values()):
            denial = partition.refusal.denial
            if denial is not None:
                queue = partition.queue.copy()
                batches = len(queue) + partition.queue.packed.count
                records = sum(batch.count for batch in queue) + partition.queue.packed.records
                found.append((partition.number, denial, batches, records))
        return found

    def waiting(self, topic: str) -> int:
        """How many batches of a topic wait for their partitions to be chosen."""
        known = self._destinations.unassigned.get(topic)
        return 0 if known is None else len(known.queue)

    def unchosen_topics(self) -> list[str]:
        """Topics that have batches waiting for their partitions to be chosen."""
        return [p.topic for p in self._destinations.unassigned.values() if p.queue]

    @property
    def unchosen_bytes(self) -> int:
        """Size of the batches that wait for their partitions to be chosen."""
        return sum(
            batch.size_bytes
            for partition in self._destinations.unassigned.values()
            for batch in partition.queue.all()
        )

    @property
    def has_unchosen(self) -> bool:
        """Whether batches wait for their partitions to be chosen."""
        return any(partition.queue for partition in self._destinations.unassigned.values())

    def portion_bytes(self, topic: str) -> int:
        """Total size of a topic's waiting batches, except those that are packed into compact rows. The engine divides
        these batches first when it knows the topic's partitions.
        """
        known = self._destinations.unassigned.get(topic)
        return 0 if known is None else sum(batch.size_bytes for batch in known.queue.near)

    def chooses(self, destination: int) -> bool:
        """Whether batches of this destination wait for their partitions to be chosen."""
        return destination not in self._partitions

    def rejects(self, destination: int) -> bool:
        """Whether batches of this destination are being copied to `rejected/`."""
        return self._all[destination].progress.flow is Flow.REJECTING

    @property
    def in_flight(self) -> int:
        """How many batches were sent and have no answer yet."""
        return sum(partition.queue.in_flight for partition in self._all.values())

    def wants(self, topic: str) -> bool:
        """Whether a topic has unfinished batches. Any thread may call it."""
        return any(p.queue for p in list(self._all.values()) if p.topic == topic)

    def idle(self) -> list[tuple[int, int]]:
        """(destination, last acked offset) of partitions without requests in flight, doubts or suspicions."""
        return [
            (partition.number, partition.log.last_acked_offset)
            for partition in self._partitions.values()
            if partition.progress.flow is Flow.FLOWING
            and not partition.queue.has_in_flight
            and partition.log.last_acked_offset >= 0
            and partition.loss.suspicion is None
        ]

    def acknowledged(self) -> list[int]:
        """Destinations with acknowledged records and no suspicion of loss."""
        return [
            partition.number
            for partition in self._partitions.values()
            if partition.log.last_acked_offset >= 0 and partition.loss.suspicion is None
        ]

    def leader_epoch(self, destination: int) -> int:
        """Leader epoch of the last acknowledgement, -1 when unknown."""
        return self._all[destination].log.leader_epoch

    def reach(self, destination: int) -> int:
        """The lowest offset at which an unfinished batch can begin; -1 when unknown."""
        return self._all[destination].log.reach

    def may_be_sent(self, batch: Batch) -> bool:
        """Whether a batch that belongs to no unit (atomic batch) may have been sent. The journal sends a batch only if
        the batch has an id and the partition's baseline is known.

        The baseline is the partition's end offset before the first batch of this lane. Outside units, the journal sends
        nothing to the partition until the baseline is durable in the spool. Without a baseline, no broker has seen
        these batches, even if they have ids.
        """
        partition = self._all[batch.destination]
        return batch.identity is not None and (partition.log.has_begun or self._replay.is_blind)

    def topic_id(self, destination: int) -> bytes:
        """Id of the topic to which a destination's offsets belong."""
        return self._all[destination].log.topic_id

    def delivered_before(self, position: int) -> list[Delivered]:
        """The delivered records between the position of the last `Journal.released` call and this position."""
        found = []
        for partition in self._all.values():
            going = [
                batch for batch in partition.log.acked if self._index.released <= batch.position < position
            ]
            if going:
                records = sum(batch.count for batch in going)
                places = [batch.place for batch in going], [batch.place + batch.count - 1 for batch in going]
                found.append(
                    Delivered(partition.topic, partition.partition, min(places[0]), max(places[1]), records)
                )
        return found

    def held_back(self) -> list[Address]:
        """Addresses whose first batch waits for batches of other lanes. Any thread may call it."""
        return [
            (partition.topic, partition.partition)
            for partition in list(self._all.values())
            if (first := partition.queue.first) is not None and self._precedence.is_held(partition, first)
        ]

    @property
    def afters(self) -> Sequence[m.After]:
        """The AFTER marks, each with its unpaid debts: batches of other lanes that must be delivered before batches of
        this lane.
        """
        return self._precedence.afters

    def owes(self, before: int) -> frozenset[Address]:
        """Addresses with unfinished batches whose records were written before this position."""
        return frozenset(
            (partition.topic, partition.partition)
            for partition in self._all.values()
            if partition.queue and partition.queue.near[0].written_at < before
        )
