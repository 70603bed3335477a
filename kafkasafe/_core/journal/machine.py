"""The machine: events in, what is to be done out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import Final

from kafkasafe._core import marks as m
from kafkasafe._core import units as u
from kafkasafe._core.backlog import Backlog, Ordered, Row
from kafkasafe._core.codes import Action, Scope, classify_produce, latest_timestamp
from kafkasafe._core.identity import BatchId, Judgement, ProducerView, Verdict, add_sequence, shows
from kafkasafe._core.journal.clock import Clock, alive_s
from kafkasafe._core.journal.groups import (
    Begun,
    Consequence,
    Ended,
    Identified,
    Persist,
    SilenceBroken,
    UnitEnded,
    UnitGroup,
    UnitStaged,
)
from kafkasafe._core.journal.messages import (
    Aside,
    Ask,
    Divide,
    EpochCheck,
    Ready,
    Resolution,
    SurveyAsk,
    Unpacked,
    Wait,
)
from kafkasafe._core.journal.notices import (
    AckedLoss,
    Delivered,
    Denial,
    Denied,
    Healed,
    Hole,
    Parked,
    Refusal,
    Relented,
)
from kafkasafe._core.journal.partition import (
    _ANYWHERE,
    UNCHOSEN,
    WINDOW,
    _Flow,
    _Healing,
    _Partition,
    _Suspicion,
)
from kafkasafe._core.journal.states import DAMAGED, TOO_SLOW, Batch, Fate, State, _follows, _id_fields
from kafkasafe._core.loss import AckedBatch, Cause, Loss
from kafkasafe._core.order import NEVER, Address, held_from

__all__ = ["GATHER_LEAST", "Journal"]

_PREPARE_AHEAD: Final = 64
"""How many waiting batches get their id with one mark."""

_DIVIDE_BYTES: Final = 1024 * 1024
"""How much is divided at a time: what waited through a long outage does not fit into memory, nor twice on disk."""

_ASIDE_BYTES: Final = 1024 * 1024
"""How much is put aside at a time: others are delivered in between."""

_MOVED_BATCHES: Final = 1000
"""How many batches are moved with one mark."""

GATHER_LEAST: Final = 8
"""So many batches that wait behind those under way are worth a group in the spool, to become one."""
_GATHER_MOST: Final = 256
_GATHERED_SHARE: Final = 8
"""A batch that takes more than this part of the room for all of them is large enough by itself."""

_UNPACKED: Final = 10
"""So many of the first batches of a partition are never packed; more than `WINDOW`."""

_REMEMBERED: Final = 64
"""Acknowledged batches of a partition that are remembered at least."""

_MAX_EPOCH: Final = 2**15 - 2

_MISSING: Final = frozenset({3, 100})

_TIMEOUTS: Final = 2
"""After so many time-outs in a row, and once it is proven that the log does not have it, a batch is divided."""

_DESTINATION_CODES: Final = frozenset({3, 17, 29, 100})
"""What metadata and questions may say of a destination, that may pass."""

_INVALID_TIMESTAMP: Final = 32

_SILENCE_S: Final = 300.0
"""Two refusals further apart than this are not one that lasts: what was in between nobody heard."""

_CONFIRMED_S: Final = 1.0
"""A refusal that lasts for so long is no stray answer."""

_MOVABLE: Final = frozenset(
    {State.SEALED, State.PREPARED, State.SENT, State.IN_DOUBT, State.REFUSED, State.UNDECIDABLE}
)
"""In these a batch may be copied to another place in the spool."""


class Journal:
    """Decides; see the module.

    Args:
        durable_first: Send only what is on disk (`spool="always"`). False: `spill()` says what has to go there.
        window: Batches sent without a durable commit mark, per partition.
        state_age_s: How long after a batch's own timestamp a broker surely remembers the producer.
        request_timeout_s: After this a request without an answer is dead.
        refused_timeout_s: How long a destination may be missing, forbidden or invalid, timestamps be too far ahead, or
            the broker fail on one batch, before what waits for it is rejected; None: for ever. In this life, without
            another answer in between.
        missing_grace_s: How long a topic may be unknown to the cluster before that is told: it may be new.
        heal: Acknowledged batches that the cluster lost are sent again, as far as the spool still has them.
        heal_recreated: Also into a topic that was deleted and created again.
        aside_batches: How many batches are put aside at a time, at most.
        gather_bytes: Small batches that wait become one of this size at most; 0: never.
    """

    def __init__(
        self,
        *,
        durable_first: bool = True,
        window: int = WINDOW,
        state_age_s: float = 6 * 3600.0,
        request_timeout_s: float = 30.0,
        refused_timeout_s: float | None = 7 * 86400.0,
        missing_grace_s: float = 60.0,
        heal: bool = True,
        heal_recreated: bool = False,
        aside_batches: int = 256,
        gather_bytes: int = 0,
    ) -> None:
        self._durable_first = durable_first
        self._gather_bytes = gather_bytes
        self._window = window
        self._state_age_s = state_age_s
        self._behind_ms = 0
        self._at_least_ms = 0
        self._request_timeout_s = request_timeout_s
        self._refused_timeout_s = refused_timeout_s
        self._missing_grace_s = missing_grace_s
        self._heal = heal
        self._heal_recreated = heal_recreated
        self._aside_batches = aside_batches
        self._released = 0
        self._partitions: dict[int, _Partition] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._topics: dict[str, m.Topic] = {}
        self._next_handle = 0
        self._producer_id = -1
        self._producer_epoch = -1
        # Batches that are not finished, by position, but for those that are packed.
        self._spooled: Ordered[Batch] = Ordered()
        # By destination, where the first one is that is packed; and the least of these.
        self._packed_from: dict[int, int] = {}
        self._first_packed = _ANYWHERE
        self._end_position = 0
        self._parents: list[tuple[Batch, range]] = []
        self._resent: dict[m.Resent, int] = {}
        self._origins: list[tuple[int, range]] = []
        self._afters: list[m.After] = []
        self._holds: Mapping[Address | None, int] = {}
        self._halted = False
        self._given: dict[int, tuple[tuple[int, int, int], ...]] = {}
        self._units_read: list[tuple[u.Unit, range]] = []
        self.units = u.Units(self._in_front)
        self._vacating: dict[int, None] = {}
        """Partitions that are surveyed as soon as nothing of a unit is on its way into them."""
        self._moves: tuple[m.Move, ...] = ()
        self._group_index = 0
        self._blind_before = -1
        self._former_dead_at = 0.0
        self._quiet: m.Quiet | None = None
        self._still = False
        """The log says when all requests are dead: that has to be taken back before one is sent."""
        self._held: list[Batch] | None = None
        """To be sent when it is taken back; None before that began."""
        self._ready = self._fresh()
        self._touched: dict[int, None] = {}
        self._committing: dict[int, None] = {}
        # By destination that is doubted, where in the spool what it may have to send again begins.
        self._doubted: dict[int, int] = {}
        # By destination, what is on its way back.
        self._healing: dict[int, _Healing] = {}

    @staticmethod
    def _fresh() -> Ready:
        return Ready(Persist(), [], [], [], [], [], [], [], [], [], [], [], wants_producer_id=False)

    def _touch(self, partition: _Partition) -> None:
        if partition.queue.packed and partition.queue.unpacked <= WINDOW:
            self._unpack(partition, _UNPACKED - WINDOW)
        self._touched[partition.number] = None

    # -- what is there ---------------------------------------------------------------------------------------------

    @property
    def producer_id(self) -> int:
        """This life's producer id, -1 until one is granted."""
        return self._producer_id

    @property
    def release_position(self) -> int:
        """Everything before this spool position is finished, and not doubted."""
        least = self._spooled.least
        first = min(self._end_position if least is None else least, self._first_packed)
        if not (self._doubted or self._healing or self._resent or len(self.units)):
            return first
        pinned = (*self._doubted.values(), *self._healing_from(), *self.units.pinned)
        return min((first, *self._resent.values(), *pinned))

    def _healing_from(self) -> Iterable[int]:
        return (healing.keep_from for healing in self._healing.values())

    @property
    def doubted(self) -> list[int]:
        """Destinations where what was acknowledged may be gone: the answer is on its way. From any thread."""
        return list(self._doubted)

    def doubts(self) -> list[tuple[str, int, str]]:
        """(topic, partition, why) of the same, for people. From any thread."""
        found = []
        for number in list(self._doubted):
            partition = self._partitions[number]
            suspicion = partition.suspicion
            why = "another leader acknowledges" if suspicion is None else suspicion.evidence
            if partition.reason:
                why += f"; not known yet: {partition.reason}"
            found.append((partition.topic, partition.partition, why))
        return found

    def _doubt_or_not(self, partition: _Partition) -> None:
        """After each change of its `suspicion` or `check`. What may have to be sent again stays in the spool."""
        if partition.suspicion is None and not partition.checks:
            self._doubted.pop(partition.number, None)
        elif partition.number not in self._doubted:
            spooled = (batch.position for batch in (*partition.acked, *partition.queue))
            least = max(self._released, 0)
            self._doubted[partition.number] = min(
                (position for position in spooled if position >= least), default=self._end_position
            )

    # -- copying forward -------------------------------------------------------------------------------------------

    @property
    def held_position(self) -> int:
        """From here on the spool keeps what is finished too, whatever is moved."""
        pinned = (*self._doubted.values(), *self._healing_from(), *self.units.pinned)
        return min((*self._resent.values(), *pinned), default=self._end_position)

    def pinned(self) -> Iterable[tuple[int, int]]:
        """(position, bytes) of what keeps all behind it in the spool, in order; what is packed, many at once."""
        sizes = [(position, batch.size_bytes) for position, batch in self._spooled.items()]
        for number in self._packed_from:
            sizes += self._partitions[number].queue.packed_sizes
        return sorted(sizes)

    def to_move(self, before_position: int, most_bytes: int) -> list[Batch]:
        """Unfinished batches that hold the front of the spool, to be copied: one at least, unless one cannot be now.

        Args:
            before_position: Those in front of it.
            most_bytes: Not more than this, or one.
        """
        if self._ready.persist or self._committing:
            return []  # what is about to be written speaks of their positions
        found: dict[int, Batch] = {}
        size = 0
        # What is packed there is needed, a part of it now.
        for number, first_position in list(self._packed_from.items()):
            while first_position < before_position and len(self._ready.unpacked) < _MOVED_BATCHES:
                self._unpack(self._partitions[number], WINDOW)
                first_position = self._packed_from.get(number, before_position)
        for position, pinning in sorted(self._spooled.items(), key=itemgetter(0)):
            if position >= before_position or len(found) >= _MOVED_BATCHES:
                break
            # The place of a divided batch is kept for its parts.
            parts = [pinning]
            if pinning.state is State.REPLACED:
                parts = [
                    batch for batch in self._partitions[pinning.destination].queue if _is_part(batch, pinning)
                ]
            for batch in parts:
                if batch.handle in found:
                    continue
                size += batch.size_bytes
                if not self._movable(batch) or (found and size > most_bytes):
                    return list(found.values())
                found[batch.handle] = batch
        return list(found.values())

    def _movable(self, batch: Batch) -> bool:
        partition = self._partitions[batch.destination]
        return (
            batch.durable
            and not batch.writing
            and batch.unit is None
            and batch.state in _MOVABLE
            and partition.flow is not _Flow.REJECTING
            and partition.number not in self._healing
            and batch.position >= partition.unsure_before
        )

    def move_marks(self, batches: Sequence[Batch]) -> list[m.Mark]:
        """What stands in front of their copies, in one atomic group."""
        numbers = dict.fromkeys(batch.destination for batch in batches)
        marks: list[m.Mark] = [self._state_mark(self._partitions[number]) for number in numbers]
        marks.append(
            m.Moved(tuple(m.Move(batch.position, batch.written_at, batch.rank) for batch in batches))
        )
        marks += [m.Given(index, b.given) for index, b in enumerate(batches) if b.given is not None]
        return marks

    def moved(self, batches: Sequence[Batch], positions: Sequence[int], end_position: int) -> None:
        """The copies are durable: they are the batches from now on."""
        self._end_position = max(self._end_position, end_position)
        for batch, position in zip(batches, positions, strict=True):
            self._place(batch, position)

    def _place(self, batch: Batch, position: int) -> None:
        """It stands somewhere else, and its rank tells that it is as old as it was."""
        self._forget(batch)
        batch.parent = None
        batch.position = position
        self._spooled[position] = batch

    @property
    def resent(self) -> list[m.Resent]:
        """Files of `rejected/` whose records are batches of this lane: to be deleted, then `retired()`."""
        return list(self._resent)

    def disown(self, mark: m.Resent) -> None:
        """A file of `rejected/` counts for nothing, and could not be deleted: its batches are, or wait, here."""
        if mark not in self._resent:
            self._resent[mark] = self._end_position
            self._ready.persist.marks.append(mark)

    def retired(self, mark: m.Resent) -> None:
        """The file is gone, durably: its mark may go."""
        self._resent.pop(mark, None)

    @property
    def unfinished(self) -> int:
        """Batches that are not finished."""
        return sum(len(p.queue) for p in self._partitions.values()) + self.units.bare

    def topic(self, name: str) -> m.Topic | None:
        """What is remembered of a topic."""
        return self._topics.get(name)

    @property
    def destinations(self) -> set[int]:
        """Numbers of all destinations that were declared."""
        return set(self._partitions)

    def address(self, destination: int) -> tuple[str, int]:
        """Topic and partition (UNCHOSEN: not chosen yet) of a destination number."""
        partition = self._partitions[destination]
        return partition.topic, partition.partition

    def last_acked_offset(self, topic: str, partition: int) -> int:
        """Offset of the last acknowledged record (inclusive), -1 when nothing was."""
        number = self._numbers.get((topic, partition))
        return -1 if number is None else self._partitions[number].last_acked_offset

    def last_acked_offsets(self) -> list[tuple[tuple[str, int], int]]:
        """((topic, partition), last acked offset) of every partition that has one. From any thread."""
        return [
            ((p.topic, p.partition), p.last_acked_offset)
            for p in list(self._partitions.values())
            if p.last_acked_offset >= 0
        ]

    @property
    def in_doubt(self) -> int:
        """Batches that may have been appended without our knowing. From any thread."""
        return sum(
            batch.state is State.IN_DOUBT
            for p in list(self._partitions.values())
            if p.doubtful
            for batch in p.queue.copy()
        )

    @property
    def spooled_records(self) -> int:
        """Records on disk that are not finished. From any thread."""
        partitions = list(self._partitions.values())
        packed = sum(p.queue.packed_records for p in partitions)
        return packed + sum(b.count for p in partitions for b in p.queue.copy() if b.durable)

    def identified_since_ms(self) -> list[int]:
        """Of each partition, the newest timestamp in its oldest unfinished batch that has an id. From any thread."""
        queues = [partition.queue.copy() for partition in list(self._partitions.values())]
        firsts = (next((b for b in queue if b.identity is not None), None) for queue in queues)
        return [first.max_timestamp for first in firsts if first is not None]

    def denials(self) -> list[tuple[int, Denial, int, int]]:
        """(destination, denial, batches, records) of what waits for the cluster to take it. From any thread."""
        found = []
        for partition in list(self._partitions.values()):
            denial = partition.denial
            if denial is not None:
                queue = partition.queue.copy()
                batches = len(queue) + partition.queue.packed
                records = sum(batch.count for batch in queue) + partition.queue.packed_records
                found.append((partition.number, denial, batches, records))
        return found

    def waiting(self, topic: str) -> int:
        """Batches of a topic that wait for their partitions to be chosen."""
        number = self._numbers.get((topic, UNCHOSEN))
        return 0 if number is None else len(self._partitions[number].queue)

    def unchosen_topics(self) -> list[str]:
        """Topics that have batches waiting for their partitions to be chosen."""
        return [p.topic for p in self._partitions.values() if p.partition == UNCHOSEN and p.queue]

    def batches(self, *, far: bool | None = None) -> Iterable[tuple[str, int, Batch]]:
        """Every unfinished batch with its address, but for those that are packed.

        Args:
            far: Only those that are far from their turn, which may be packed; or only the others.
        """
        first = _UNPACKED if far else 0
        last = _UNPACKED if far is False else None
        for partition in self._partitions.values():
            for batch in islice(partition.queue.all(), first, last):
                yield partition.topic, partition.partition, batch

    # -- order across the lives of a directory ---------------------------------------------------------------------

    @property
    def afters(self) -> Sequence[m.After]:
        """What goes before batches of this lane, as far as that is not known to be delivered."""
        return tuple(self._afters)

    def begin_after(self, position: int, debts: Sequence[m.Debt]) -> None:
        """A life begins: what it writes from this position on comes after these debts. Before anything is sealed."""
        after = m.After(position, tuple(debts))
        self._afters.append(after)
        self._ready.persist.marks.append(after)

    def paid(self, debt: m.Debt) -> None:
        """Nothing is left of it."""
        rest = [(after, tuple(each for each in after.debts if each != debt)) for after in self._afters]
        self._afters = [m.After(after.position, debts) for after, debts in rest if debts]

    def hold_back(self, held: Mapping[Address | None, int]) -> None:
        """Send nothing of these addresses that was written at these positions or behind: see `order.holds`."""
        if held == self._holds:
            return
        self._holds = held
        for partition in self._partitions.values():
            if partition.queue:
                self._touch(partition)

    def halt(self, *, halted: bool) -> None:
        """Send nothing at all: somebody else takes the lane over as soon as nothing is in flight."""
        if self._halted is halted:
            return
        self._halted = halted
        for partition in self._partitions.values():
            if partition.queue:
                self._touch(partition)

    @property
    def in_flight(self) -> int:
        """Batches that were sent and have no answer yet."""
        return sum(partition.in_flight for partition in self._partitions.values())

    def held_back(self) -> list[Address]:
        """Addresses for which something waits that is held back. From any thread."""
        return [
            (partition.topic, partition.partition)
            for partition in list(self._partitions.values())
            if (first := partition.queue.first) is not None and self._is_held(partition, first)
        ]

    def owes(self, before: int) -> frozenset[Address]:
        """Addresses of which something is unfinished that was written in front of this position."""
        return frozenset(
            (partition.topic, partition.partition)
            for partition in self._partitions.values()
            if partition.queue and partition.queue[0].written_at < before
        )

    def _is_held(self, partition: _Partition, batch: Batch) -> bool:
        if not self._holds:
            return False
        position = held_from(self._holds, partition.topic, partition.partition)
        return position < NEVER and batch.written_at >= position

    def snapshot(self) -> list[m.Mark]:
        """What the first group of a new segment must repeat, so that segments before it can go."""
        marks: list[m.Mark] = [*self._topics.values(), *self._afters]
        if self._producer_id >= 0:
            marks.append(m.Granted(self._producer_id, self._producer_epoch))
        for partition in self._partitions.values():
            marks.append(m.Destination(partition.number, partition.topic, partition.partition))
            marks += self._newest_marks(partition)
            marks.append(self._state_mark(partition))
        return marks

    def tell_newest(self, before_position: int) -> list[m.Mark]:
        """Marks to be durable before what is in front of this position goes: which batch was acknowledged last."""
        marks: list[m.Mark] = []
        for partition in self._partitions.values():
            newest = self._newest(partition)
            if newest is not None and partition.told_position < newest.position < before_position:
                marks += [*self._newest_marks(partition), self._state_mark(partition)]
        return marks

    @staticmethod
    def _newest(partition: _Partition) -> Batch | None:
        """The batch that ends where STATE says that everything before it is finished."""
        return next(
            (
                batch
                for batch in islice(reversed(partition.acked), WINDOW)
                if batch.identity is not None
                and batch.place == batch.base_offset >= 0
                and batch.place + batch.count - 1 == partition.clear_offset
            ),
            None,
        )

    def _newest_marks(self, partition: _Partition) -> list[m.Mark]:
        """In front of STATE: the id of the batch that was acknowledged last, which outlives the batch.

        The epoch of the acknowledgement may be an older one than that of its leader. Where the log of that epoch ends
        before it, only the batch itself proves that it is still there.
        """
        newest = self._newest(partition)
        if newest is None or newest.identity is None:
            return []
        # What was never in the spool has a position where no batch can be.
        at = newest.position if newest.position >= 0 else newest.rank[-1] if newest.rank else 0
        partition.told_position = max(partition.told_position, at)
        identity = m.Identity(at, *_id_fields(newest.identity))
        return [
            m.Identified(partition.number, m.IdentityReason.FIRST, -1, (identity,)),
            m.Committed(partition.number, partition.leader_epoch, ((at, newest.base_offset),)),
        ]

    def _state_mark(self, partition: _Partition) -> m.State:
        return m.State(
            partition.number,
            partition.baseline_offset,
            # Not the last acknowledged one: its mark may not be durable yet, or an earlier batch be in doubt, and a
            # scan that starts behind a batch takes it for absent.
            partition.clear_offset,
            partition.leader_epoch,
            partition.topic_id,
        )

    # -- recovery --------------------------------------------------------------------------------------------------

    def recover_batch(
        self,
        position: int,
        destination: int,
        *,
        count: int,
        size_bytes: int,
        max_timestamp: int,
        identity: BatchId | None,
    ) -> None:
        """A data batch found in the log, in log order."""
        if destination not in self._partitions:
            raise m.MarkError(
                f"The batch at position {position} is for destination {destination}, never declared"
            )
        moved = self._moves[self._group_index] if self._group_index < len(self._moves) else None
        known = None if moved is None else self._spooled.get(moved.position)
        if moved is not None and known is not None and known.destination == destination:
            self._place(known, position)
            known.rank, known.origin = moved.rank, moved.origin
            known.identity = identity
            known.state = State.SEALED if identity is None else State.PREPARED
            self._group_index += 1
            self._end_position = max(self._end_position, position + count)
            return
        self._next_handle += 1
        batch = Batch(
            self._next_handle,
            destination,
            count,
            size_bytes,
            max_timestamp,
            position,
            identity,
            State.SEALED if identity is None else State.PREPARED,
            durable=True,
            former_life=True,
        )
        unit = next((unit for unit, members in self._units_read if self._group_index in members), None)
        if unit is not None:
            unit.batches.append(batch)
        queue = self._partitions[destination].queue
        batch.origin = next((at for at, children in self._origins if self._group_index in children), -1)
        parent = next((p for p, children in self._parents if self._group_index in children), None)
        if moved is not None:
            # Where it was is gone: it stands in front of what was accepted after it.
            queue.insert(sum(other.rank < moved.rank for other in queue), batch)
        elif parent is not None and parent.destination == destination:
            # Divided because it was too large: its records keep their place.
            queue.insert(queue.index(parent), batch)
            batch.parent = parent
            parent.heirs += 1
            self._parts_heal(parent, (batch,))
        else:
            queue.append(batch)
        if parent is not None and parent.unit is not None:
            unit = parent.unit
            unit.batches.insert(unit.batches.index(parent), batch)
        if unit is not None:
            batch.unit, batch.state = unit, State.JOINED
        batch.settle_at(position)
        if moved is not None:
            batch.rank, batch.origin = moved.rank, moved.origin
        batch.given = self._given.get(self._group_index)
        self._group_index += 1
        self._spooled[position] = batch
        self._end_position = max(self._end_position, position + count)

    def recover_marks(self, position: int, recovered: Sequence[m.Mark]) -> None:
        """The marks of one group found in the log, in log order.

        A mark about a batch that is not there any more is about a deleted segment, or repeats what is known.
        """
        self._end_position = max(self._end_position, position + len(recovered) + 1)
        self._drop_parents()
        ended: set[int] = set()
        for index, mark in enumerate(recovered):
            match mark:
                case m.Topic():
                    self._topics[mark.topic] = mark
                case m.Destination(number, topic, partition):
                    if number not in self._partitions:
                        self._partitions[number] = _Partition(number, topic, partition)
                        self._numbers[topic, partition] = number
                case m.State():
                    known = self._declared(mark.destination)
                    known.baseline_offset = mark.baseline_offset
                    known.clear_offset = mark.last_acked_offset
                    if mark.baseline_offset < 0 > mark.last_acked_offset:
                        known.last_acked_offset = -1  # the topic, or the cluster, is another one
                    else:
                        # What stands behind a batch that is not finished was acknowledged all the same.
                        known.last_acked_offset = max(known.last_acked_offset, mark.last_acked_offset)
                    known.leader_epoch = mark.leader_epoch
                    known.topic_id = mark.topic_id
                    if not known.acked:
                        known.forgotten_offset = mark.last_acked_offset + 1
                    self._recall(known, recovered[max(0, index - 2) : index])
                case m.Granted():
                    pass  # each life takes its own id: a copied spool must never reuse one
                case m.Identified():
                    self._recover_identities(mark)
                case m.Committed():
                    known = self._declared(mark.destination)
                    self._leads(known, mark.leader_epoch)
                    for at, base_offset in mark.entries:
                        done = self._spooled.get(at)
                        if done is not None and done.state is not State.REPLACED:
                            self._forget(done)
                            done.base_offset = base_offset
                            self._dequeue(known, done)
                            self._look_back(known, base_offset)
                            if base_offset >= 0:
                                known.last_acked_offset = base_offset + done.count - 1
                            self._passed(known, done)
                            done.state = State.COMMITTED
                            self._remember(known, done)
                            self._comes_back(done)
                        elif done is None and base_offset >= 0 and at not in ended:
                            # Released: it, and all before it but what was moved, was finished. Its size is gone.
                            self._begins_at(known, base_offset)
                            known.last_acked_offset = base_offset
                            if not known.queue or known.queue[0].rank > (at,):
                                known.clear_offset = base_offset
                            known.known_from = -1
                            if not known.acked:
                                known.forgotten_offset = _ANYWHERE
                case m.Replaced(at, first_child, children):
                    parent = self._spooled.get(at)
                    origin = at if parent is None else parent.written_at
                    self._origins.append((origin, range(first_child, first_child + children)))
                    if parent is not None:
                        self._parents.append((parent, range(first_child, first_child + children)))
                case m.Rejected(at):
                    done = self._spooled.get(at)
                    if done is not None and done.state is not State.REPLACED:
                        self._forget(done)
                        self._partitions[done.destination].queue.remove(done)
                        self._partitions[done.destination].explained = True
                        done.state = State.REJECTED
                        self._comes_back(done)
                case m.Revived(destination, end_offset, positions, given_up, moved):
                    known = self._declared(destination)
                    places = dict(moved)
                    for done in known.acked:
                        if done.position in places:
                            done.base_offset = done.place = places[done.position]
                    known.suspicion = None
                    known.forget_checks()
                    self._doubt_or_not(known)
                    self._revive(known, positions, given_up, end_offset)
                    known.explained = known.explained or bool(positions or given_up)
                case m.Resent():
                    self._resent[mark] = position
                case m.Torn():
                    pass  # what was left out was left out when the log was read
                case m.Given(index, runs):
                    self._given[index] = runs
                case m.After():
                    # The first group of a later segment repeats it, less what was paid meanwhile.
                    self._afters = [each for each in self._afters if each.position != mark.position]
                    self._afters.append(mark)
                case m.Unit(_, first, batches):
                    if not any(
                        parent.unit is not None and children.start == first
                        for parent, children in self._parents
                    ):
                        read = self.units.get(mark.unit_id) or self.units.recover(
                            mark,
                            position,
                            # Divided, and the segment with the first UNIT mark is gone: where that was says its turn.
                            next((at for at, children in self._origins if children.start == first), position),
                        )
                        self._units_read.append((read, range(first, first + batches)))
                case m.Begun():
                    self.units.recover_begun(mark)
                case m.Staged():
                    self.units.recover_staged(mark)
                case m.Ended():
                    ended.update(batch.position for batch in self._recover_ended(mark, recovered[index:]))
                case m.Moved(moves):
                    self._moves = moves
                case m.Quiet():
                    self._quiet = mark if mark.until_ms >= 0 else None
                case m.Resolved(at, m.Decision.SKIP) if at in self._spooled:
                    self._declared(self._spooled[at].destination).explained = True
                case m.Undecidable() | m.Resolved() | m.Cluster():
                    pass  # asked again: the cluster may know more today; a decision is asked for again as well

    def _recover_ended(self, mark: m.Ended, behind: Sequence[m.Mark]) -> list[Batch]:
        """Of the marks behind it, COMMITTED alone tells under which leader its batches were appended."""
        unit = self.units.recover_ended(mark)
        if unit is None:
            return []
        epochs = {
            at: each.leader_epoch
            for each in behind
            if isinstance(each, m.Committed)
            for at, _ in each.entries
        }
        members = self._members(unit)
        for batch in members:
            partition = self._partitions[batch.destination]
            self._forget(batch)
            if mark.outcome is m.UnitOutcome.COMMITTED:
                unit.epochs.setdefault(batch.handle, epochs.get(batch.position, -1))
                self._unit_place(partition, unit, batch)
                self._dequeue(partition, batch)
                batch.state = State.COMMITTED
                self._remember(partition, batch)
            else:
                partition.queue.remove(batch)
                partition.explained = True
                batch.state = State.REJECTED
        return members

    def _declared(self, destination: int) -> _Partition:
        if destination not in self._partitions:
            raise m.MarkError(f"A mark speaks of destination {destination}, never declared")
        return self._partitions[destination]

    def recover_lost(self, position: int, destination: int) -> None:
        """Damage in the log: a data batch, or (destination 0) a whole group with its marks.

        A lost mark may have given a batch its id, or a new one, or replaced it. So what was unfinished before the
        group cannot be decided: neither its old id nor its having none says that it was not sent.
        """
        if destination:
            unit = next((unit for unit, members in self._units_read if self._group_index in members), None)
            if unit is not None:
                unit.code, unit.reason = DAMAGED, "a part of it is damaged on disk"
            self._group_index += 1
            if destination in self._partitions:
                self._partitions[destination].explained = True
        else:
            self._blind_before = position

    def recover_torn(self, destination: int) -> None:
        """A batch that a crash tore, in front of intact ones of its group. It was never promised."""
        self._group_index += 1
        self._declared(destination).explained = True

    def recovered_log(self) -> None:
        """The log ends here: nothing follows that would say so of its last group."""
        self._drop_parents()

    def _drop_parents(self) -> None:
        """The group with their children is read: the parents' records live on in them."""
        for parent, _ in self._parents:
            if not parent.heirs:
                self._forget(parent)
            self._partitions[parent.destination].queue.remove(parent)
            parent.state = State.REPLACED
            if parent.unit is not None:
                parent.unit.batches.remove(parent)
            self._comes_back(parent)
        self._parents.clear()
        self._origins.clear()
        self._units_read.clear()
        self._given.clear()
        self._moves = ()
        self._group_index = 0

    def _recall(self, partition: _Partition, told: Sequence[m.Mark]) -> None:
        """The newest acknowledged batch is gone from the spool, but not which one it was: see `_newest_marks`."""
        match told:
            case [m.Identified(entries=(identity,)), m.Committed(entries=((position, base_offset),))]:
                pass
            case _:
                return
        count = partition.clear_offset - base_offset + 1
        if identity.position != position or base_offset < 0 or count < 1:
            return
        partition.told_position = max(partition.told_position, position)
        if any(batch.position >= 0 for batch in partition.acked):
            return  # it is among them
        self._next_handle += 1
        batch = Batch(
            self._next_handle,
            partition.number,
            count,
            size_bytes=0,
            max_timestamp=0,
            identity=BatchId(identity.producer_id, identity.producer_epoch, identity.base_sequence, count),
            state=State.COMMITTED,
            durable=True,
            former_life=True,
            base_offset=base_offset,
            place=base_offset,
            rank=(position,),
        )
        partition.acked = deque((batch,))
        partition.forgotten_offset = base_offset

    def _recover_identities(self, mark: m.Identified) -> None:
        partition = self._declared(mark.destination)
        if mark.void_from >= 0:
            named = {entry.position for entry in mark.entries}
            # What was sent before is where it was looked for, or nowhere.
            partition.rescan_from = -1
            for batch in partition.queue:
                if batch.state is State.JOINED:
                    continue  # its ids are those of its unit
                if batch.position >= mark.void_from and batch.position not in named:
                    batch.identity = None
                    batch.state = State.SEALED
        for entry in mark.entries:
            known = self._spooled.get(entry.position)
            if known is not None and known.state is not State.JOINED:
                known.identity = BatchId(
                    entry.producer_id, entry.producer_epoch, entry.base_sequence, known.count
                )
                known.state = State.PREPARED

    def recovered(self, now: float, clock: Clock | None = None) -> None:
        """The log is read: every batch that has an id may have been sent by an earlier life, and is asked about.

        Args:
            now: Seconds.
            clock: What time it is, for how long ago an earlier life sent its last request; without it, just now.
        """
        self._drop_parents()
        quiet = self._quiet if self._blind_before < 0 else None
        self._still = quiet is not None
        pause_s = alive_s(quiet, clock, self._request_timeout_s)
        self._former_dead_at = now + pause_s
        for unit in self.units.unfinished:
            if unit.phase is u.Phase.WAITING and unit.position < self._blind_before:
                unit.code = unit.code or DAMAGED
                unit.reason = unit.reason or (
                    "marks that may have spoken of it are lost to damage in the spool: readers may have it already"
                )
        self.units.recovered()
        for partition in self._partitions.values():
            # Earlier lives had answers about the leaders before.
            del partition.checks[:-1]
            if partition.baseline_offset >= 0 or partition.last_acked_offset >= 0:
                partition.flow = _Flow.FLOWING
            elif self._blind_before < 0:
                # Nothing was ever sent: that waits for a durable baseline.
                self._note_topic(partition)
                self._touch(partition)
                continue
            # Only the first ones of a queue are ever sent, and what was put in front of them since has no id. Where
            # marks are lost, nobody knows what was in front.
            near = max(self._window, WINDOW) if self._blind_before < 0 else None
            doubt = list(islice((batch for batch in partition.queue if batch.identity is not None), near))
            for batch in doubt:
                batch.move(State.IN_DOUBT)
            if doubt and partition.queue[0].identity is None:
                # Lost ones came back in front of it: behind them it needs another id.
                partition.renew = True
            if doubt:
                # An earlier life's last requests may still be on their way into the broker.
                partition.dead_at = now + pause_s
                partition.doubtful = True
                partition.rested = True
                partition.flow = _Flow.SETTLING
            self._stop_if_suspected(partition)
            if self._blind_before >= 0:
                partition.unsure_before = self._blind_before
                self._park_unsure(partition)
            self._touch(partition)

    def slept(self, seconds: float, now: float) -> None:
        """The machine slept; `now` has that in it.

        Brokers went on forgetting meanwhile. Our own sockets slept as well: what was in their buffers is sent only now.
        """
        before = now - seconds
        if self._former_dead_at > before:
            self._former_dead_at += seconds
        for partition in self._partitions.values():
            if partition.dead_at > before:
                partition.dead_at += seconds

    def _park_unsure(self, partition: _Partition) -> bool:
        head = next((batch for batch in partition.queue if batch.state is not State.ACKED), None)
        if head is None or head.unit is not None or not 0 <= head.position < partition.unsure_before:
            return False
        evidence = f"marks are lost to damage in the spool before position {partition.unsure_before}"
        self._park(partition, head, evidence)
        return True

    # -- events: what happened -------------------------------------------------------------------------------------

    def learn_topic(self, name: str, topic_id: bytes, partition_count: int) -> bool:
        """Remember a topic; batches that wait for its partitions are divided. True when it is news."""
        topic = m.Topic(name, topic_id, partition_count)
        number = self._numbers.get((name, UNCHOSEN))
        if number is not None:
            self._relent(self._partitions[number])
            self._partitions[number].rejecting.clear()
        if self._topics.get(name) == topic:
            return False
        self._topics[name] = topic
        for index in range(partition_count):
            if (name, index) in self._numbers:
                self._note_topic(self._partitions[self._numbers[name, index]])
        self._ready.persist.marks.append(topic)
        if number is not None:
            self._touch(self._partitions[number])
        return True

    def new_cluster(self) -> None:
        """What was delivered before went to another cluster: its offsets and ids say nothing about this one.

        Only while nothing waits, but what was sealed before any cluster was asked.
        """
        self._producer_id = -1
        self.units.moved()
        self._healing.clear()
        for partition in self._partitions.values():
            partition.producer_id = partition.producer_epoch = -1
            partition.confirmed_id, partition.confirmed_until = (-1, -1), 0.0
            partition.renew = False
            partition.baseline_offset = partition.last_acked_offset = partition.clear_offset = -1
            partition.leader_epoch = -1
            partition.topic_id = m.NO_TOPIC_ID
            partition.forgotten_offset = -1
            partition.last_acked_id = None
            partition.suspicion = None
            partition.forget_checks()
            self._doubt_or_not(partition)
            partition.acked.clear()
            partition.flow = _Flow.NEW
            self._ready.persist.marks.append(self._state_mark(partition))
            self._touch(partition)

    def wants(self, topic: str) -> bool:
        """Whether anything of a topic is unfinished. From any thread."""
        return any(p.queue for p in list(self._partitions.values()) if p.topic == topic)

    def forget(self, topic: str) -> bool:
        """The topic is gone for good and nothing waits for it: its offsets mean nothing any more. True when it is news.

        Ids go on where they were: should the topic be there after all, none is given twice.
        """
        partitions = [p for p in self._partitions.values() if p.topic == topic]
        if any(p.queue or p.commits for p in partitions):
            return False
        known = [p for p in partitions if p.baseline_offset >= 0 or p.last_acked_offset >= 0]
        for partition in known:
            partition.baseline_offset = partition.last_acked_offset = partition.clear_offset = -1
            partition.leader_epoch = partition.rescan_from = -1
            partition.topic_id = m.NO_TOPIC_ID
            partition.forgotten_offset = -1
            # There is no log to look at.
            partition.suspicion = None
            partition.forget_checks()
            self._doubt_or_not(partition)
            partition.acked.clear()
            partition.flow = _Flow.NEW
            self._ready.persist.marks.append(self._state_mark(partition))
            self._touch(partition)
        if topic in self._topics:
            self._topics[topic] = m.Topic(topic, m.NO_TOPIC_ID, -1)
            self._ready.persist.marks.append(self._topics[topic])
        return bool(known)

    def destination(self, topic: str, partition: int) -> int:
        """The number of a destination, declared if it is new."""
        number = self._numbers.get((topic, partition))
        if number is None:
            number = max(self._partitions, default=0) + 1
            self._numbers[topic, partition] = number
            self._partitions[number] = _Partition(number, topic, partition)
            self._ready.persist.marks.append(m.Destination(number, topic, partition))
        return number

    def seal(
        self,
        destination: int,
        *,
        count: int,
        size_bytes: int,
        max_timestamp: int,
        given: tuple[tuple[int, int, int], ...] | None = None,
        unit: u.Unit | None = None,
    ) -> Batch:
        """A new batch, behind all earlier ones of its destination.

        Args:
            destination: Its number.
            count: Records.
            size_bytes: Of all of it.
            max_timestamp: Newest, ms since the epoch.
            given: See `Batch`.
            unit: Made by `units.seal`: the batch is a part of it. It ends with `close_unit`.

        Returns:
            The batch. The shell stamps its `identity`, if it has one by then, into the bytes when it writes them.
        """
        batch = self._make(destination, count, size_bytes, max_timestamp)
        batch.given = given
        if unit is not None:
            self._join(unit, batch)
            unit.batches.append(batch)
            batch.writing = True
            return batch
        return self._enqueue(batch)

    def _join(self, unit: u.Unit, batch: Batch) -> None:
        # The next life goes by the order on the disk: what is only in memory and stands before it goes there first.
        queue = self._partitions[batch.destination].queue
        if not self._durable_first:
            self.spill(
                [other for other in queue.all() if other.unit is None and not self._rests_on_disk(other)][-1:]
            )
        batch.unit, batch.state = unit, State.JOINED
        self._partitions[batch.destination].queue.append(batch)

    def close_unit(self, unit: u.Unit) -> None:
        """All batches of a new unit are sealed: it is written as one group, and delivered as one."""
        self.units.closed(unit)
        self._next_handle += 1
        self._ready.persist.units.append(UnitGroup(unit, tuple(self._members(unit)), self._next_handle))

    @staticmethod
    def _members(unit: u.Unit) -> list[Batch]:
        return [batch for batch in unit.batches if isinstance(batch, Batch)]

    @staticmethod
    def _rests_on_disk(batch: Batch) -> bool:
        return batch.durable or batch.writing

    def _in_front(self, batch: u.Member) -> bool:
        partition = self._partitions[batch.destination]
        if partition.partition == UNCHOSEN:
            return False  # it is divided first
        for other in partition.queue:
            if other is batch:
                return partition.suspicion is None and not (self._halted or self._is_held(partition, other))
            if other.unit is None:
                return False
        return False

    def _enqueue(self, batch: Batch) -> Batch:
        partition = self._partitions[batch.destination]
        # Sequences ascend in queue order: behind a batch without an id there is none with one.
        if (
            self._producer_id >= 0
            and partition.partition != UNCHOSEN
            and (not partition.queue or self._last_has_id(partition.queue))
        ):
            self._identify(partition, batch)
        partition.queue.append(batch)
        if self._durable_first or batch.owed:
            self._write(batch)
        elif batch.identity is not None:
            batch.move(State.PREPARED)
        return batch

    @staticmethod
    def _last_has_id(queue: Backlog[Batch]) -> bool:
        last = queue.last
        return queue.packed_identified if last is None else last.identity is not None

    def _write(self, batch: Batch) -> None:
        batch.writing = True
        self._ready.persist.batches.append(batch)

    def _rests(self, batch: Batch) -> bool:
        """On disk, or only in memory where that is allowed, and not on its way between the two."""
        return batch.durable or not (self._durable_first or batch.writing)

    def _make(self, destination: int, count: int, size_bytes: int, max_timestamp: int) -> Batch:
        self._next_handle += 1
        self._touch(self._partitions[destination])
        return Batch(self._next_handle, destination, count, size_bytes, max_timestamp)

    def _identify(self, partition: _Partition, batch: Batch) -> None:
        if partition.producer_id != self._producer_id:
            partition.producer_id = self._producer_id
            partition.producer_epoch = self._producer_epoch
            partition.next_sequence = 0
        batch.identity = BatchId(
            partition.producer_id, partition.producer_epoch, partition.next_sequence, batch.count
        )
        partition.next_sequence = add_sequence(partition.next_sequence, batch.count)

    def spill(self, batches: Iterable[Batch]) -> None:
        """Put batches on disk that are not (`durable_first=False`), and with each all that are before it."""
        for batch in batches:
            if batch.durable or batch.state in {State.COMMITTED, State.REJECTED, State.REPLACED}:
                continue
            for earlier in self._partitions[batch.destination].queue.all():
                if not (earlier.durable or earlier.writing):
                    self._write(earlier)
                if earlier is batch:
                    break

    def granted(self, producer_id: int, producer_epoch: int) -> None:
        """A producer id of this life's own."""
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._ready.persist.marks.append(m.Granted(producer_id, producer_epoch))
        for partition in self._partitions.values():
            if partition.queue:
                self._touch(partition)

    def persisted(self, persist: Persist, positions: Sequence[int], end_position: int) -> None:
        """The group is durable.

        Args:
            persist: What `ready()` gave.
            positions: Position of each of its batches.
            end_position: The spool's next position.
        """
        self._end_position = max(self._end_position, end_position)
        for batch, position in zip(persist.everything, positions, strict=True):
            batch.settle_at(position)
            batch.durable = True
            batch.writing = False
            self._spooled[position] = batch
            if batch.state is State.SEALED and batch.identity is not None:
                batch.move(State.PREPARED)
            self._touch(self._partitions[batch.destination])
            if batch.acked_early:
                batch.acked_early = False
                self._finish(self._partitions[batch.destination], batch)
        for group in persist.units:
            self.units.written(group.unit, min((b.position for b in group.batches), default=end_position - 1))
        for consequence in persist.after:
            self._follow(consequence)

    def _follow(self, consequence: Consequence) -> None:
        match consequence:
            case Ended(batch, Fate.COMMITTED):
                self._leave(batch, State.COMMITTED, Fate.COMMITTED)
            case Ended(batch, fate, kept):
                if not kept:
                    self._forget(batch)
                self._ready.resolved.append(Resolution(batch, fate))
                if fate is Fate.REJECTED:
                    self._tell_healed(batch)
            case Begun(destination):
                partition = self._partitions[destination]
                partition.flow = _Flow.FLOWING if partition.suspicion is None else _Flow.SETTLING
                partition.rested = True
                partition.attempt = 0
                self._touch(partition)
            case Identified(destination, batches):
                for batch, identity in batches:
                    # Unless it was taken back meanwhile.
                    if batch.state is State.SEALED and batch.identity is identity:
                        batch.move(State.PREPARED)
                self._touch(self._partitions[destination])
            case UnitStaged(unit):
                self.units.staged(unit)
            case UnitEnded(unit, fate):
                for batch in self._members(unit):
                    if fate is Fate.COMMITTED:
                        self._leave(batch, State.COMMITTED, fate)
                    else:
                        self._partitions[batch.destination].queue.remove(batch)
                        self._forget(batch)
                        self._ready.resolved.append(Resolution(batch, fate))
                    self._touch(self._partitions[batch.destination])
                self.units.over(unit)
                self._ready.ended.append((unit, fate))
            case SilenceBroken():
                self._still = False
                self._ready.sends += self._held or ()

    def acked(self, batch: Batch, base_offset: int, *, leader_epoch: int, now: float, now_ms: int) -> None:
        """The cluster acknowledged a batch.

        Args:
            batch: What was sent.
            base_offset: Offset of its first record, -1 when the broker does not say.
            leader_epoch: Of the leader that answered, -1 when unknown.
            now: Seconds.
            now_ms: Wall clock, ms since the epoch.
        """
        partition = self._partitions[batch.destination]
        partition.in_flight -= 1
        batch.move(State.ACKED)
        batch.base_offset = base_offset
        self._relent(partition)
        self._look_back(partition, base_offset)
        self._leads(partition, leader_epoch)
        if partition.flow is _Flow.PROBING:
            # acks=all answers only when the replicas have the batch, and so all before it.
            for earlier in list(partition.queue):
                if earlier is batch:
                    break
                if earlier.state is State.IN_DOUBT:
                    earlier.move(State.ACKED)
                    self._finish(partition, earlier)
            partition.flow = _Flow.SETTLING
            partition.rested = True
            partition.doubtful = any(b.state is State.IN_DOUBT for b in partition.queue)
        elif partition.flow is _Flow.FLOWING:
            partition.attempt = 0
            partition.answered = True
        if base_offset >= 0:
            partition.last_acked_offset = base_offset + batch.count - 1
        self._stop_if_suspected(partition)
        self._finish(partition, batch)
        if batch.identity is not None:
            partition.confirmed_id = (batch.identity.producer_id, batch.identity.producer_epoch)
            # A broker forgets a producer by the timestamp of its last batch, not by the time of its append.
            age_s = max(0.0, (self._brokers_ms(now_ms) - batch.max_timestamp) / 1000)
            partition.confirmed_until = now + self._state_age_s - age_s
        self._touch(partition)

    def broker_clock(self, broker_ms: int, now_ms: int) -> bool:
        """A broker told the time, by a timestamp of its own.

        Brokers forget a producer by their clock. Where ours is behind, our batches are older for them than for us.

        Args:
            broker_ms: Its clock, ms since the epoch.
            now_ms: Ours.

        Returns:
            Whether ours is so far behind that brokers may forget us at any moment. Then each batch goes alone.
        """
        self._behind_ms = max(0, broker_ms - now_ms)
        self._at_least_ms = 0
        return self._behind_ms > self._state_age_s * 1000

    def clock_at_least(self, at_least_ms: int) -> None:
        """Others' records say that it is as late as this (ms since the epoch). They may be wrong: be careful."""
        self._at_least_ms = at_least_ms

    def _brokers_ms(self, now_ms: int) -> int:
        return max(now_ms + self._behind_ms, self._at_least_ms)

    def _leads(self, partition: _Partition, leader_epoch: int) -> None:
        """An acknowledgement came, or its mark was found: what the leader before acknowledged may be gone."""
        if 0 <= partition.leader_epoch != leader_epoch and partition.last_acked_offset >= 0:
            # Also while one about an earlier leader has no answer: what that one acknowledged may be gone as well.
            partition.checks.append(
                EpochCheck(partition.number, partition.leader_epoch, partition.last_acked_offset)
            )
            self._doubt_or_not(partition)
            self._touch(partition)
        partition.leader_epoch = leader_epoch

    def _finish(self, partition: _Partition, batch: Batch) -> None:
        """An acknowledged batch is finished when its commit mark is durable."""
        self._passed(partition, batch)
        if batch.writing:
            # Acknowledged while its spill is being written: the mark needs its position.
            batch.acked_early = True
            return
        if batch.position < 0:
            self._leave(batch, State.COMMITTED, Fate.COMMITTED)
            return
        self._commits(partition, batch)
        self._ready.persist.after.append(Ended(batch, Fate.COMMITTED))

    @staticmethod
    def _passed(partition: _Partition, batch: Batch) -> None:
        last = partition.last_acked_id
        if batch.identity is not None and not (last is not None and _follows(last, batch.identity)):
            partition.last_acked_id = batch.identity

    @staticmethod
    def _dequeue(partition: _Partition, batch: Batch) -> None:
        """It is in the log, and that is durable."""
        if partition.queue[0] is not batch:
            partition.queue.remove(batch)
            return
        partition.queue.popleft()
        if batch.base_offset >= 0:
            partition.clear_offset = batch.base_offset + batch.count - 1

    def _commits(self, partition: _Partition, batch: Batch) -> None:
        partition.commits.append((batch.position, batch.base_offset))
        self._committing[partition.number] = None

    def _forget(self, batch: Batch) -> None:
        """It may be released; and with the last of its parts the batch whose place they stood in."""
        gone: Batch | None = batch
        while gone is not None:
            self._spooled.pop(gone.position, None)
            gone = gone.parent
            if gone is not None:
                gone.heirs -= 1
                if gone.heirs:
                    break

    def _leave(self, batch: Batch, state: State, fate: Fate) -> None:
        """A batch is finished."""
        batch.move(state)
        partition = self._partitions[batch.destination]
        self._dequeue(partition, batch)
        self._forget(batch)
        self._remember(partition, batch)
        self._ready.resolved.append(Resolution(batch, fate))
        self._tell_healed(batch)
        self._touch(partition)

    def lost(
        self, batch: Batch, *, sent: bool, code: int, message: str, now: float, timed_out: bool = False
    ) -> None:
        """No answer came.

        Args:
            batch: What was sent.
            sent: It may have reached a broker.
            code: 3, 17 or 29 when the metadata itself says so, else 0.
            message: For people.
            now: Seconds.
            timed_out: The link is slow, or the broker hangs: the next one that times out may be smaller.
        """
        partition = self._partitions[batch.destination]
        partition.in_flight -= 1
        partition.refresh = True
        if sent:
            partition.dead_at = now + self._request_timeout_s
        if timed_out and self._is_head(partition, batch):
            batch.timeouts += 1
            if batch.timeouts >= _TIMEOUTS and batch.count > 1 and partition.flow is not _Flow.PROBING:
                batch.condemned, batch.code = True, TOO_SLOW
                batch.message = f"{batch.timeouts} requests with it timed out"
        lasting = False
        if sent or code not in _DESTINATION_CODES:
            self._unheard(partition)
        else:
            lasting = self._deny(partition, code, message, Scope.DESTINATION, now)
        if sent or partition.flow is _Flow.PROBING or (lasting and batch.unanswered):
            batch.move(State.IN_DOUBT)
            partition.doubtful = True
        elif lasting:
            self._refuse(batch, code, message)
        else:
            batch.move(State.PREPARED)
        self._settle(partition, message)

    def damaged(self, batch: Batch, message: str) -> None:
        """It cannot be sent, or divided: its bytes are damaged on disk. Nothing of it goes to the cluster.

        Args:
            batch: What was to be sent, or divided; its damaged bytes are kept elsewhere, durably.
            message: For people.
        """
        partition = self._partitions[batch.destination]
        batch.code, batch.message = DAMAGED, message
        if partition.partition == UNCHOSEN:
            self._put_aside(partition, (batch,))
            self._touch(partition)
            return
        if batch.state is State.REFUSED:
            self._reject_head(partition, batch)
            self._touch(partition)
            return
        partition.in_flight -= 1
        if batch.unanswered or partition.flow is _Flow.PROBING:
            # It may have been appended, when it was whole: the cluster is asked.
            batch.move(State.IN_DOUBT)
            partition.doubtful = True
        else:
            self._refuse(batch, DAMAGED, message)
        self._settle(partition, message)

    def refused(
        self,
        batch: Batch,
        code: int,
        message: str,
        *,
        bad_records: tuple[tuple[int, str], ...] = (),
        log_start_offset: int = -1,
        now: float,
        now_ms: int,
    ) -> None:
        """The broker answered with an error.

        Args:
            batch: What was sent.
            code: Kafka's error code.
            message: What the broker said.
            bad_records: (index, message) of the records it named.
            log_start_offset: Where the log starts, -1 from brokers that do not say.
            now: Seconds.
            now_ms: Wall clock, ms since the epoch.
        """
        partition = self._partitions[batch.destination]
        partition.in_flight -= 1
        verdict = classify_produce(code)
        partition.refresh = partition.refresh or verdict.refresh_metadata
        text = f"{verdict.name} ({code}): {message or verdict.explanation}"
        scope = verdict.scope
        if code == _INVALID_TIMESTAMP and self._will_be_due(batch, bad_records, now_ms):
            scope = Scope.BATCH
        final = verdict.action is Action.REJECT_BATCH and scope is Scope.NONE
        if batch.gathered and (final or scope is Scope.BATCH):
            self.keep_apart(partition.number)
        # An answer speaks of its own request. While an older one, whose answer was lost, may still be appended, or
        # the leader is said to have the batch, it proves nothing.
        alone = now >= partition.dead_at and partition.flow is not _Flow.PROBING
        if code in {47, 90}:
            partition.fenced = True
        if (
            code == 59
            and partition.last_acked_offset >= 0
            and log_start_offset <= partition.last_acked_offset
        ):
            # Retention forgets a producer only with its last record (KAFKA-5793); -1: an old broker does not say.
            evidence = (
                f"the broker does not know the producer, though its log starts at {log_start_offset} and offset"
                f" {partition.last_acked_offset} was acknowledged"
            )
            self._suspect(partition, Cause.UNKNOWN_PRODUCER, evidence)
        lasting = False
        if scope is Scope.DESTINATION:
            lasting = self._deny(partition, code, text, scope, now)
        elif self._is_head(partition, batch):
            if scope is Scope.BATCH:
                lasting = batch.overdue or self._deny(partition, code, text, scope, now, handle=batch.handle)
                batch.overdue = lasting
            else:
                self._relent(partition)
        if alone and not batch.unanswered and verdict.absent and (final or lasting):
            self._refuse(batch, code, text)
            batch.bad_records = bad_records
            batch.unconfirmed = True
        elif alone and (
            (verdict.absent and not final and not lasting)
            # No other request had it, and this one was not appended.
            or (code == 45 and not batch.unanswered and self._behind_failure(partition, batch))
            or (code == 59 and not batch.unanswered)
        ):
            batch.move(State.PREPARED)
            partition.renew = partition.renew or code == 59
            batch.unconfirmed = code == 59
        else:
            partition.sequence_refused = partition.sequence_refused or code in {45, 59}
            batch.move(State.IN_DOUBT)
            partition.doubtful = True
            if lasting and not verdict.absent:
                batch.condemned, batch.code, batch.message = True, code, text
        self._settle(partition, text)

    @staticmethod
    def _refuse(batch: Batch, code: int, message: str) -> None:
        batch.move(State.REFUSED)
        batch.code, batch.message = code, message

    @staticmethod
    def _behind_failure(partition: _Partition, batch: Batch) -> bool:
        """A 45 behind a batch that is not in the log: the gap is that one's, nothing is missing."""
        for earlier in partition.queue:
            if earlier is batch:
                return False
            if earlier.state in {State.PREPARED, State.REFUSED}:
                return True
        return False

    @staticmethod
    def _is_head(partition: _Partition, batch: Batch) -> bool:
        """Nothing before it waits for an answer: what the broker says is about it, and nothing else."""
        return batch is next((b for b in partition.queue if b.state is not State.ACKED), None)

    def _will_be_due(self, batch: Batch, bad_records: tuple[tuple[int, str], ...], now_ms: int) -> bool:
        """Its timestamps are too far ahead, not too old, and time will cure that within the timeout."""
        ahead_ms = batch.max_timestamp - latest_timestamp((text for _, text in bad_records), now_ms)
        limit_s = self._refused_timeout_s
        return ahead_ms > 0 and (limit_s is None or ahead_ms <= limit_s * 1000)

    def _deny(
        self,
        partition: _Partition,
        code: int,
        reason: str,
        scope: Scope,
        now: float,
        *,
        handle: int = -1,
        asking: bool = False,
    ) -> bool:
        """An answer that may pass; True when it came, and no other, for as long as anything is waited for."""
        denial = partition.denial
        if denial is not None and denial.handle != handle:
            # Another thing is refused now, and has its own time.
            self._relent(partition, accepted=False)
            denial = None
        if denial is None:
            denial = partition.denial = Denial(code, reason, scope, handle, now, now, now)
        if denial.counted_from < 0 or now - denial.last_at > _SILENCE_S:
            denial.counted_from = now
        denial.code, denial.reason, denial.last_at, denial.asking = code, reason, now, asking
        denial.answers += 1
        limit_s = self._refused_timeout_s
        lasting = limit_s is not None and now - denial.counted_from >= limit_s
        # A topic that is missing may only be new to this broker; and nobody is told of a single stray answer.
        patient_s = self._missing_grace_s if code in _MISSING else _CONFIRMED_S
        confirmed = denial.answers > 1 and now - denial.counted_from >= patient_s
        if not denial.told and (lasting or confirmed):
            denial.told = True
            self._ready.notices.append(Denied(partition.number, denial))
        return lasting

    @staticmethod
    def _unheard(partition: _Partition) -> None:
        """No answer: a broker that comes back knows no topic and no rule for a moment, so the time begins anew."""
        denial = partition.denial
        if denial is None:
            return
        if denial.told:
            denial.counted_from = -1.0
        else:
            partition.denial = None

    def _relent(self, partition: _Partition, *, accepted: bool = True) -> None:
        """Another answer came, or nothing waits any more."""
        denial, partition.denial = partition.denial, None
        if denial is not None and denial.told:
            self._ready.notices.append(Relented(partition.number, denial, accepted))

    def _settle(self, partition: _Partition, reason: str) -> None:
        if partition.flow in {_Flow.FLOWING, _Flow.PROBING}:
            partition.flow = _Flow.SETTLING
            partition.rested = False
        partition.confirmed_until = 0.0
        partition.answered = False
        partition.reason = reason
        self._touch(partition)

    def retry(self, destination: int) -> None:
        """The pause that a Wait asked for is over."""
        partition = self._partitions[destination]
        if partition.flow is _Flow.WAITING:
            partition.flow = _Flow.SETTLING
            partition.rested = True
            self._touch(partition)

    def baseline(self, destination: int, end_offset: int, topic_id: bytes) -> None:
        """The end offset of a partition before anything of ours is in it; the first send waits until it is durable."""
        partition = self._partitions[destination]
        if partition.flow is not _Flow.ASKING:
            return
        partition.baseline_offset = min([end_offset, *(batch.place for batch in partition.acked)])
        early = partition.last_acked_offset >= 0 or self.units.is_open(destination)
        if not (early and any(partition.topic_id)):
            partition.topic_id = topic_id
        self._relent(partition)
        self._ready.persist.marks.append(self._state_mark(partition))
        self._ready.persist.after.append(Begun(destination))

    def ask_failed(self, destination: int, reason: str, *, code: int, now: float) -> None:
        """The cluster did not answer a question; it is asked again after a pause.

        Args:
            destination: Destination number.
            reason: For people.
            code: Kafka's error code where the cluster gave one, else 0.
            now: Seconds.
        """
        partition = self._partitions[destination]
        if partition.flow is not _Flow.ASKING:
            return
        lasting = False
        if code in _DESTINATION_CODES:
            lasting = self._deny(partition, code, reason, Scope.DESTINATION, now, asking=partition.doubtful)
        else:
            self._unheard(partition)
        # Not allowed to ask is no proof of anything; a topic that is gone for good holds no batch of ours.
        if lasting and not (partition.doubtful and code in {17, 29}):
            self._reject_all(partition, code, reason)
        else:
            partition.refresh = True
            self._pause(partition, reason)

    def confirmed(self, destination: int, view: ProducerView | None) -> None:
        """The answer to an Ask with `confirm`.

        Args:
            destination: Destination number.
            view: The leader's state of the batch's producer id; None when it has none, or does not tell.
        """
        partition = self._partitions[destination]
        if partition.flow is not _Flow.ASKING:
            return
        head = next((b for b in partition.queue if b.state is not State.ACKED), None)
        if head is not None and head.unconfirmed and head.identity is not None:
            head.unconfirmed = False
            if shows(view, head.identity):
                head.move(State.IN_DOUBT)
                partition.doubtful = partition.rested = True
        partition.flow = _Flow.SETTLING
        self._touch(partition)

    def deny_unchosen(self, topic: str, code: int, reason: str, now: float) -> None:
        """New metadata says 3, 17 or 29 of a topic whose partitions were never known."""
        partition = self._partitions[self._numbers[topic, UNCHOSEN]]
        if partition.queue and self._deny(partition, code, reason, Scope.DESTINATION, now):
            for unit in {batch.unit.number: batch.unit for batch in partition.queue if batch.unit}.values():
                if unit.durable and unit.phase is u.Phase.WAITING:
                    self.units.give_up(unit, code, reason)
            self._reject_all(partition, code, reason)

    def _reject_all(self, partition: _Partition, code: int, reason: str) -> None:
        """Nothing of this destination can be delivered."""
        ended = {State.SEALED, State.PREPARED, State.REFUSED, State.IN_DOUBT}
        self._unpack(partition, partition.queue.packed)
        doomed = [batch for batch in partition.queue if batch.state in ended]
        self.spill(doomed)
        durable = [batch for batch in doomed if batch.durable]
        for batch in durable:
            batch.code, batch.message = code, reason
        if durable:
            self._put_aside(partition, durable)
        elif partition.flow is _Flow.ASKING:
            # In memory only: asked again, and rejected when it is on disk.
            self._pause(partition, reason)

    def _put_aside(self, partition: _Partition, batches: Sequence[Batch]) -> None:
        partition.flow = _Flow.REJECTING
        partition.rejecting = deque(batches)
        self.next_aside(partition.number)

    def next_aside(self, destination: int) -> None:
        """Go on with what `set_aside` left: the next portion."""
        partition = self._partitions[destination]
        if partition.flow is not _Flow.REJECTING:
            return
        if not partition.rejecting:
            # The topic came into being meanwhile.
            partition.flow = _Flow.NEW
            self._touch(partition)
            return
        portion: list[Batch] = []
        size = 0
        while partition.rejecting and len(portion) < self._aside_batches:
            size += partition.rejecting[0].size_bytes
            if portion and size > _ASIDE_BYTES:
                break
            portion.append(partition.rejecting.popleft())
        self._ready.asides.append(Aside(partition.number, tuple(portion)))

    def set_aside(self, aside: Aside, kept: int, reason: str = "") -> bool:
        """As many of the batches as `kept`, the first ones, are durable in `rejected/`, and are so rejected.

        Args:
            aside: What `ready()` gave.
            kept: How many; the others wait, and are tried again after a pause.
            reason: Why not all of them.

        Returns:
            True: there is more. Call `next_aside`, after what other partitions have to do.
        """
        partition = self._partitions[aside.destination]
        if partition.flow is not _Flow.REJECTING:
            return False
        for batch in aside.batches[:kept]:
            self._reject(batch)
        if any(batch.identity is not None for batch in aside.batches[:kept]):
            # What comes now must not continue the sequence of what was rejected.
            self._reidentify(partition)
        if kept < len(aside.batches):
            partition.rejecting.clear()
        elif partition.rejecting:
            return True
        else:
            # What comes now has its own time.
            self._relent(partition, accepted=False)
        partition.doubtful = any(batch.state is State.IN_DOUBT for batch in partition.queue)
        if partition.partition == UNCHOSEN:
            partition.flow = _Flow.NEW
        elif kept < len(aside.batches):
            self._pause(partition, reason)
        else:
            partition.flow = _Flow.SETTLING
            partition.rested = True
        self._touch(partition)
        return False

    def judged(
        self,
        destination: int,
        judgement: Judgement,
        *,
        stable: bool,
        shrunk_to: int = -1,
        read_from: int = 0,
        leader_epoch: int = -1,
        now: float,
    ) -> None:
        """The answer to an Ask with batches in doubt.

        Args:
            destination: Destination number.
            judgement: About the batches of the Ask, in its order.
            stable: The present ones were read below the high watermark: no probe is needed.
            shrunk_to: The log's end, where it is before what was acknowledged; else -1.
            read_from: Where the log was read from then.
            leader_epoch: Of the leader whose log was read, -1 when unknown.
            now: Seconds.
        """
        partition = self._partitions[destination]
        if partition.flow is not _Flow.ASKING:
            return
        if 0 <= partition.rescan_from < partition.asked_from and shrunk_to < 0:
            # What was learned meanwhile says that the answer is not about all of the log.
            partition.flow = _Flow.SETTLING
            partition.rested = True
            self._touch(partition)
            return
        doubt = self._doubt(partition)
        present, absent = doubt[: judgement.present], doubt[judgement.present :]
        if shrunk_to >= 0:
            evidence = f"the log ends at {shrunk_to}: {judgement.evidence}"
            self._suspect(partition, Cause.LOG_END, evidence, from_offset=shrunk_to)
            partition.rescan_from = (
                read_from if partition.rescan_from < 0 else min(partition.rescan_from, read_from)
            )
        newest = present[-1].identity if present else None
        last = partition.last_acked_id
        # What was acknowledged behind it says as much as a probe would.
        passed = newest is not None and last is not None and _follows(last, newest)
        if present and not stable and not passed and now - partition.asked_at > self._request_timeout_s:
            # This process slept over the answer: the leader may have forgotten us, and would append the probe.
            partition.flow = _Flow.SETTLING
            partition.rested = True
            self._touch(partition)
            return
        if present and not stable and not passed:
            # Above the high watermark an append can still be undone by a leader change.
            partition.flow = _Flow.PROBING
            self._send(partition, present[-1])
            return
        if present and stable:
            self._leads(partition, leader_epoch)
        for index, batch in enumerate(present):
            batch.base_offset = judgement.offsets.get(index, -1)
            batch.move(State.ACKED)
            if batch.base_offset >= 0:
                partition.last_acked_offset = max(
                    partition.last_acked_offset, batch.base_offset + batch.count - 1
                )
            self._finish(partition, batch)
        if absent and (judgement.verdict is Verdict.UNDECIDABLE or partition.fenced):
            evidence = judgement.evidence
            if partition.fenced:
                evidence = (
                    f"fenced: a newer epoch of the producer id of {absent[0].identity} wrote to the partition, so"
                    f" something else owns these records too, most likely a copy of this spool directory; {evidence}"
                )
            self._park(partition, absent[0], evidence)
            return
        # Brokers that cannot tell their state: the sequence is refused and the log does not have it.
        gap = judgement.verdict is Verdict.GAP
        gap = gap or (stable and partition.sequence_refused and not judgement.of_state)
        if absent and gap and not self._explained(partition, absent[0]):
            if partition.asked_at < partition.dead_at:
                # No new id while a request under the old one may still be appended.
                self._pause(partition, judgement.evidence, at_least_s=max(0.0, partition.dead_at - now))
                return
            partition.renew = True
            first = absent[0]
            if judgement.missing and first.former_life and not partition.explained and self._blind_before < 0:
                partition.explained = True
                partition.hole = Hole(partition.number, judgement.missing, judgement.evidence)
            # A leader that cannot be asked for its state says no more than that: retention, or a loss (KAFKA-5793).
            evidence = f"{judgement.evidence}; the next batch is {absent[0].identity}"
            self._suspect(partition, Cause.SEQUENCE, evidence)
        if absent and absent[0].condemned and absent[0].code == TOO_SLOW and now < partition.dead_at:
            # Its parts get new ids: it is looked for once more when no request with it can still be appended.
            self._pause(partition, absent[0].message, at_least_s=partition.dead_at - now)
            return
        for batch in absent:
            batch.unanswered = partition.asked_at < partition.dead_at
            batch.move(State.REFUSED if batch.condemned and not batch.unanswered else State.PREPARED)
            batch.condemned = False
        partition.doubtful = any(batch.state is State.IN_DOUBT for batch in partition.queue)
        partition.fenced = False
        partition.flow = _Flow.SETTLING
        partition.rested = True
        self._touch(partition)

    @staticmethod
    def _explained(partition: _Partition, absent: Batch) -> bool:
        """What the leader misses before this batch is still to be sent, or was refused."""
        for earlier in partition.queue:
            if earlier is absent:
                return False
            if earlier.state in {State.SEALED, State.PREPARED, State.REFUSED}:
                return True
        return False

    # -- acknowledged batches that are gone ------------------------------------------------------------------------

    def suspect(
        self,
        destination: int,
        cause: Cause,
        evidence: str,
        *,
        from_offset: int = -1,
        check: EpochCheck | None = None,
    ) -> None:
        """Something says that acknowledged batches may be gone; the log is asked before anything new is sent.

        Args:
            destination: Destination number.
            cause: What raised the suspicion.
            evidence: For people.
            from_offset: From here on it is gone, if it is; -1 when unknown.
            check: What the suspicion is about, when it is not about the last acknowledgement.
        """
        partition = self._partitions[destination]
        if check is not None and check not in partition.checks[:1]:
            return
        self._suspect(partition, cause, evidence, from_offset=from_offset, check=check)
        self._stop_if_suspected(partition)
        self._touch(partition)

    def checked(self, check: EpochCheck) -> None:
        """The log of the leader before did not end before what that one acknowledged."""
        partition = self._partitions[check.destination]
        if check in partition.checks[:1]:
            del partition.checks[0]
            partition.check_asked = False
            self._touch(partition)
        self._doubt_or_not(partition)

    def _suspect(
        self,
        partition: _Partition,
        cause: Cause,
        evidence: str,
        *,
        from_offset: int = -1,
        check: EpochCheck | None = None,
    ) -> None:
        if from_offset >= 0 and not 0 <= partition.rescan_from <= from_offset:
            partition.rescan_from = from_offset
        known = partition.suspicion
        if known is not None:
            if from_offset >= 0 and not 0 <= known.from_offset <= from_offset:
                partition.suspicion = replace(known, from_offset=from_offset)
            return
        last, epoch = partition.last_acked_offset, partition.leader_epoch
        if check is not None:
            last, epoch = check.last_acked_offset, check.leader_epoch
        partition.suspicion = _Suspicion(cause, evidence, last, from_offset, epoch)
        self._doubt_or_not(partition)

    def _stop_if_suspected(self, partition: _Partition) -> None:
        """Nothing new is sent while acknowledged batches may be gone: the log is asked first."""
        if partition.suspicion is not None and partition.flow is _Flow.FLOWING:
            partition.flow = _Flow.SETTLING
            partition.rested = True
            self._touch(partition)

    def _look_back(self, partition: _Partition, base_offset: int) -> None:
        """A batch was acknowledged: behind all that was acknowledged before, or that is gone."""
        last = partition.last_acked_offset
        if base_offset > last:
            if partition.known_from < 0:
                partition.known_from = base_offset
            return
        if base_offset < 0:
            return
        evidence = f"acknowledged at offset {base_offset}, though offset {last} was acknowledged before"
        self._suspect(partition, Cause.ACK, evidence, from_offset=base_offset)

    def recreated(self, destination: int, evidence: str) -> None:
        """The topic was deleted and created again: what was acknowledged is gone with the old one."""
        self.suspect(destination, Cause.TOPIC_ID, evidence, from_offset=0)

    def idle(self) -> list[tuple[int, int]]:
        """(destination, last acked offset) of the partitions where nothing is going on."""
        return [
            (partition.number, partition.last_acked_offset)
            for partition in self._partitions.values()
            if partition.flow is _Flow.FLOWING
            and not partition.in_flight
            and partition.last_acked_offset >= 0
            and partition.suspicion is None
        ]

    def acknowledged(self) -> list[int]:
        """Destinations to which something was acknowledged, and of which nobody suspects yet that it is gone."""
        return [
            partition.number
            for partition in self._partitions.values()
            if partition.last_acked_offset >= 0 and partition.suspicion is None
        ]

    def leader_epoch(self, destination: int) -> int:
        """Leader epoch of the last acknowledgement, -1 when unknown."""
        return self._partitions[destination].leader_epoch

    def reach(self, destination: int) -> int:
        """Where in the log an unfinished batch can begin at the earliest; -1 when not even that is known."""
        partition = self._partitions[destination]
        return partition.clear_offset + 1 if partition.clear_offset >= 0 else partition.baseline_offset

    def topic_id(self, destination: int) -> bytes:
        """Id of the topic that a destination's offsets belong to."""
        return self._partitions[destination].topic_id

    def delivered_before(self, position: int) -> list[Delivered]:
        """What was delivered and is in front of this position, where the spool still had it when it last released."""
        found = []
        for partition in self._partitions.values():
            going = [batch for batch in partition.acked if self._released <= batch.position < position]
            if going:
                records = sum(batch.count for batch in going)
                places = [batch.place for batch in going], [batch.place + batch.count - 1 for batch in going]
                found.append(
                    Delivered(partition.topic, partition.partition, min(places[0]), max(places[1]), records)
                )
        return found

    def released(self, before_position: int) -> None:
        """The spool deleted everything before this position: it cannot be sent again."""
        self._released = before_position
        for partition in self._partitions.values():
            self._trim(partition)

    def _remember(self, partition: _Partition, batch: Batch) -> None:
        if batch.identity is None or batch.state is not State.COMMITTED:
            return
        batch.place = batch.base_offset
        if batch.place < 0:
            # Only known to be there: somewhere behind the one before it.
            before = partition.acked[-1] if partition.acked else None
            batch.place = max(partition.baseline_offset, 0) if before is None else before.place + before.count
        partition.acked.append(batch)
        self._trim(partition)

    def _trim(self, partition: _Partition) -> None:
        """Some that are gone from the spool are remembered too: they tell where a loss begins."""
        acked = partition.acked
        while len(acked) > _REMEMBERED and acked[0].position < self._released:
            batch = acked.popleft()
            partition.forgotten_offset = max(partition.forgotten_offset, batch.place + batch.count)
            partition.known_from = max(partition.known_from, batch.place + batch.count)

    def _look(self, partition: _Partition, now: float) -> None:
        if any(batch.state is State.ACKED for batch in partition.queue):
            return  # when its mark is durable
        suspicion = partition.suspicion
        evidence = "" if suspicion is None else suspicion.evidence
        if not self.units.vacate(partition.number, f"what was acknowledged before may be gone: {evidence}"):
            self._vacating[partition.number] = None
            return
        partition.flow = _Flow.SURVEYING
        partition.asked_at = now
        epoch, from_offset = (
            (-1, -1) if suspicion is None else (suspicion.leader_epoch, suspicion.from_offset)
        )
        acked = tuple(
            AckedBatch(batch.identity, batch.place, exact=batch.place == batch.base_offset)
            for batch in partition.acked
            if batch.identity is not None
        )
        self._ready.surveys.append(SurveyAsk(partition.number, acked, epoch, from_offset))

    def survey_failed(self, destination: int, reason: str) -> None:
        """The log could not be read; it is tried again after a pause."""
        partition = self._partitions[destination]
        if partition.flow is _Flow.SURVEYING:
            partition.refresh = True
            partition.reason = reason
            self._pause(partition, reason)

    def surveyed(
        self,
        destination: int,
        loss: Loss,
        end_offset: int,
        *,
        epoch_end_offset: int = -1,
        topic_id: bytes = m.NO_TOPIC_ID,
        same_topic: bool = True,
        leader_epoch: int = -1,
    ) -> None:
        """The answer to a SurveyAsk.

        Args:
            destination: Destination number.
            loss: What is gone.
            end_offset: Where the log ends now.
            epoch_end_offset: Where the leader epoch of the last acknowledgement ends in the log, -1 when unknown.
            topic_id: The topic's id now.
            same_topic: False where neither topic ids nor a batch that is still there prove that the topic was not
                created again.
            leader_epoch: Under which the log is as it was found, -1 when unknown.
        """
        partition = self._partitions[destination]
        if partition.flow is not _Flow.SURVEYING or partition.suspicion is None:
            return
        suspicion = partition.suspicion
        cause = suspicion.cause
        if any(topic_id) and any(partition.topic_id) and topic_id != partition.topic_id:
            cause = Cause.TOPIC_ID
        recreated = cause is Cause.TOPIC_ID or not same_topic
        acked = list(partition.acked)
        heal = self._heal and (self._heal_recreated or not recreated)
        late = max((self._quiet_at(partition, acked[index]) for index in loss.indexes), default=0.0)
        if heal and partition.asked_at < late:
            # A request with it, older than the one that was acknowledged, may still be appended in its place.
            self._pause(partition, suspicion.evidence, at_least_s=late - partition.asked_at)
            return
        partition.suspicion = None
        partition.forget_checks()
        self._doubt_or_not(partition)
        if leader_epoch >= 0:
            partition.leader_epoch = leader_epoch
        partition.topic_id = topic_id if any(topic_id) else partition.topic_id
        partition.flow = _Flow.SETTLING
        partition.rested = True
        self._touch(partition)
        # What ends there may be what has taken the place of one that is not remembered.
        forgotten_offset = partition.forgotten_offset
        if forgotten_offset == _ANYWHERE and 0 <= partition.known_from <= epoch_end_offset:
            forgotten_offset = partition.known_from  # it has all that is not remembered
        remembered = suspicion.last_acked_offset >= forgotten_offset and suspicion.last_acked_offset in {
            batch.place + batch.count - 1 for batch in acked
        }
        moved = []
        for index, base_offset in loss.moved.items():
            acked[index].base_offset = acked[index].place = base_offset
            if acked[index].position >= max(self._released, 0):
                moved.append((acked[index].position, base_offset))
        lost = sorted((acked[index] for index in loss.indexes), key=lambda batch: batch.rank)
        first, last, records = loss.first_offset, loss.last_offset, loss.records
        evidence = suspicion.evidence
        others = (
            "; what was there is not in the spool any more, so others' records, and what retention had removed, may be"
            " counted too"
        )
        # Lost offsets whose batches are not remembered.
        more = [(first, min(batch.place for batch in lost) - 1)] if lost else []
        if not remembered:
            # The last ones are not remembered; how far they went is.
            bounds = (suspicion.from_offset, epoch_end_offset, end_offset)
            begin = min((bound for bound in bounds if bound >= 0), default=end_offset)
            # Before that nothing of ours was ever there.
            begin = max(begin, partition.baseline_offset)
            if begin <= suspicion.last_acked_offset:
                first = begin if first < 0 else min(first, begin)
                last = max(last, suspicion.last_acked_offset)
                records = max(records, last - first + 1)
                more = _between(first, last, lost)
                evidence += others
        elif loss.oldest_known:
            # What was acknowledged behind the end of that leader epoch is gone, remembered or not.
            until = min(first, forgotten_offset)
            begin = max(epoch_end_offset, partition.baseline_offset)
            if recreated and until > max(0, partition.baseline_offset):
                evidence += f"; what was acknowledged before {until} is not remembered"
            elif epoch_end_offset >= 0 and begin < until and not recreated:
                records += until - begin
                first = begin
                more = [(begin, until - 1)]
                evidence += f"; the log of that leader ends at {epoch_end_offset}{others}"
        hole, partition.hole = partition.hole, None
        if records <= 0:
            if hole is not None:
                self._ready.notices.append(hole)
            self._go_on(partition, end_offset)
            # Also where nothing moved: or the next life, whose batches may be gone from the spool, finds the same cause
            # to suspect a loss in its marks, and nothing that speaks against it.
            self._ready.persist.marks.append(m.Revived(destination, end_offset, (), (), tuple(moved)))
            self._ready.persist.marks.append(self._state_mark(partition))
            return
        if recreated and cause is not Cause.TOPIC_ID:
            evidence += "; nothing of it is left, and without topic ids it may be a recreated topic"
        spooled = tuple(batch.position for batch in lost if batch.position >= max(self._released, 0))
        again, given_up = (spooled, ()) if heal else ((), spooled)
        revived = sum(batch.count for batch in lost if batch.position in again)
        forgotten = {batch.handle for batch in lost if batch.position not in spooled}
        partition.acked = deque(batch for batch in partition.acked if batch.handle not in forgotten)
        gone = records - revived, [_span(batch) for batch in lost if batch.position not in again] + more
        self._ready.notices.append(
            AckedLoss(destination, first, last, records, cause, evidence, revived, _gone(*gone), recreated)
        )
        self._ready.persist.marks.append(m.Revived(destination, end_offset, again, given_up, tuple(moved)))
        self._revive(partition, again, given_up, end_offset)
        self._ready.persist.marks.append(self._state_mark(partition))
        partition.renew = partition.renew or bool(again)

    def _quiet_at(self, partition: _Partition, batch: Batch) -> float:
        """From then on no request with this acknowledged batch can be appended any more."""
        former = self._former_dead_at if batch.former_life else 0.0
        return max(former, partition.dead_at if batch.unanswered else 0.0)

    def _go_on(self, partition: _Partition, end_offset: int) -> None:
        """Nothing is lost: what was acknowledged is where the log says."""
        known = max(
            (b.base_offset + b.count - 1 for b in partition.acked), default=partition.last_acked_offset
        )
        partition.last_acked_offset = min(known, end_offset - 1)

    def _revive(
        self, partition: _Partition, positions: Sequence[int], given_up: Sequence[int], end_offset: int
    ) -> None:
        """Batches that were finished are unfinished again, in front of all that never were."""
        lost = {batch.position: batch for batch in partition.acked if batch.position >= 0}
        back = [lost[position] for position in positions if position in lost]
        gone = {*positions, *given_up}
        partition.acked = deque(batch for batch in partition.acked if batch.position not in gone)
        for batch in reversed(back):
            batch.move(State.SEALED)
            batch.identity = None
            batch.base_offset = -1
            batch.unanswered = False
            batch.parent = None
            batch.unit = None
            batch.revived = True
            partition.queue.appendleft(batch)
            self._spooled[batch.position] = batch
        if back:
            keep_from = min(batch.position for batch in back)
            healing = self._healing.setdefault(partition.number, _Healing(keep_from))
            healing.keep_from = min(healing.keep_from, keep_from)
            healing.left += len(back)
        last = max((b.place + b.count - 1 for b in partition.acked), default=-1)
        partition.last_acked_offset = partition.clear_offset = min(last, end_offset - 1)
        partition.last_acked_id = None
        partition.baseline_offset = min(partition.baseline_offset, end_offset)

    def _parts_heal(self, parent: Batch, parts: Sequence[Batch]) -> None:
        """What was to be sent again is sent in parts."""
        healing = self._healing.get(parent.destination)
        if parent.revived and healing is not None:
            healing.left += len(parts)
            for part in parts:
                part.revived = True

    def _tell_healed(self, batch: Batch) -> None:
        healed = self._comes_back(batch)
        if healed is not None:
            self._ready.notices.append(healed)

    def _comes_back(self, batch: Batch) -> Healed | None:
        """A batch is finished. If it was sent again after a loss, and is the last of them: what is in the log again."""
        healing = self._healing.get(batch.destination)
        if not batch.revived or healing is None:
            return None
        healing.left -= 1
        if batch.state is State.COMMITTED:
            healing.records += batch.count
            if batch.base_offset >= 0:
                if healing.first_offset < 0:
                    healing.first_offset = batch.base_offset
                healing.last_offset = batch.base_offset + batch.count - 1
        if healing.left:
            return None
        del self._healing[batch.destination]
        if not healing.records:
            return None
        return Healed(batch.destination, healing.records, healing.first_offset, healing.last_offset)

    def _park(self, partition: _Partition, batch: Batch, evidence: str) -> None:
        batch.move(State.UNDECIDABLE)
        batch.message = evidence
        partition.flow = _Flow.PARKED
        if batch.position >= 0:
            self._ready.persist.marks.append(m.Undecidable(batch.position, evidence))
        self._ready.notices.append(Parked(batch, evidence))

    def decide(self, batch: Batch, *, resend: bool) -> None:
        """The user's decision about an undecidable batch: send it under a new id, or take it as delivered.

        With `resend` it may be in the log twice.
        """
        partition = self._partitions[batch.destination]
        if batch.position >= 0:
            decision = m.Decision.RESEND if resend else m.Decision.SKIP
            self._ready.persist.marks.append(m.Resolved(batch.position, decision))
        if not resend:
            batch.move(State.ACKED)
            self._finish(partition, batch)
            if self._park_unsure(partition):
                return
        elif partition.partition == UNCHOSEN:
            batch.move(State.SEALED)
            partition.unsure_before = -1
        else:
            batch.move(State.PREPARED)
            batch.unanswered = batch.condemned = False  # decided
            partition.unsure_before = -1
            partition.renew = True
        if partition.partition == UNCHOSEN:
            partition.flow = _Flow.NEW
            self._touch(partition)
            return
        partition.doubtful = any(b.state is State.IN_DOUBT for b in partition.queue)
        partition.fenced = False
        partition.flow = _Flow.SETTLING
        partition.rested = True
        self._touch(partition)

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
                unit = batch.unit
                persist.marks.append(
                    m.Unit(unit.unit_id, first, len(made), unit.transactional_id, unit.offsets)
                )
        batch.move(State.REPLACED)
        partition.queue.remove(batch)
        persist.after.append(Ended(batch, Fate.REPLACED, kept=refused or batch.heirs > 0))
        if refused:
            self._reidentify(partition)
        partition.rested = True
        self._touch(partition)
        return made

    def gathered(self, batches: Sequence[Batch], size_bytes: int) -> Batch:
        """Batches that waited (see `Ready.gathers`) become one: it has their records, their sequences and their place.

        None of them was ever sent, and none is from now on: the new one is sent when the group that says so is durable.

        Args:
            batches: The batches, in order.
            size_bytes: Of the new one.

        Returns:
            The new one.
        """
        first = batches[0]
        if first.identity is None:
            raise AssertionError("What was prepared has an id")
        partition = self._partitions[first.destination]
        persist = self._ready.persist
        count = sum(batch.count for batch in batches)
        made = self._make(first.destination, count, size_bytes, max(batch.max_timestamp for batch in batches))
        made.identity = BatchId(*_id_fields(first.identity), count)
        made.gathered = made.owed = True
        # As with the parts of a refused one: the first one's position tells recovery where it stands.
        made.parent = first
        first.heirs += 1
        partition.queue.insert(partition.queue.index(first), made)
        place = len(persist.batches)
        self._write(made)
        persist.atomic = True
        for batch in batches:
            persist.marks.append(m.Replaced(batch.position, place, 1))
            batch.move(State.REPLACED)
            partition.queue.remove(batch)
            persist.after.append(Ended(batch, Fate.REPLACED, kept=batch is first))
        self._touch(partition)
        return made

    def keep_apart(self, destination: int) -> None:
        """Batches of this destination go as they are."""
        self._partitions[destination].gathers = False

    def _reject(self, batch: Batch) -> None:
        """Refused for good; it is finished when its mark is durable."""
        batch.move(State.REJECTED)
        self._ready.notices.append(Refusal(batch))
        partition = self._partitions[batch.destination]
        partition.queue.remove(batch)
        if batch.position >= 0:
            self._ready.persist.marks.append(m.Rejected(batch.position, batch.code, batch.message))
        self._ready.persist.after.append(Ended(batch, Fate.REJECTED))
        self._touch(partition)

    def _reidentify(self, partition: _Partition) -> None:
        """Every waiting batch gives its id back: each is proven absent, or was never sent.

        What takes their place begins at sequence 0 of the next epoch, which fences this epoch (47) at the broker. Ids
        of former lives are not bumped but left: two copies of a spool must never make the same new id.
        """
        partition.renew = False
        kept = []
        partition.queue.forget_identities()
        for batch in partition.queue.all():
            if batch.state in {State.PREPARED, State.REFUSED}:
                # A refused one is refused again in its turn, or not: the answer was to another id.
                if batch.state is State.REFUSED:
                    batch.move(State.PREPARED)
                batch.move(State.SEALED)
                batch.identity = None
                batch.unanswered = False
            elif batch.state is State.SEALED:
                batch.identity = None
            elif batch.identity is not None and batch.position >= 0:
                # Acknowledged ones too: their commit mark comes behind this one, and they may have to be found again.
                kept.append(m.Identity(batch.position, *_id_fields(batch.identity)))
        self._ready.persist.marks.append(
            m.Identified(partition.number, m.IdentityReason.REIDENTIFIED, 0, tuple(kept))
        )
        if partition.producer_id != self._producer_id:
            return
        partition.next_sequence = 0
        if partition.producer_epoch >= _MAX_EPOCH:
            self._producer_id = -1
        else:
            partition.producer_epoch += 1

    # -- what to do now --------------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether `ready` would give nothing, until something happens."""
        if self._touched or self._vacating or self._committing or self._still or self._producer_id < 0:
            return False
        return self.units.at_rest and not self._ready

    def ready(self, now: float, now_ms: int) -> Ready:
        """Everything that must be done now; each thing is given once.

        Args:
            now: Seconds.
            now_ms: Wall clock, ms since the epoch.
        """
        for number in self._vacating:
            self._touch(self._partitions[number])
        self._vacating.clear()
        if self._touched:
            self.units.look()
        while self._touched:
            number = next(iter(self._touched))
            del self._touched[number]
            self._advance(self._partitions[number], now, now_ms)
        self._advance_units()
        ready, self._ready = self._ready, self._fresh()
        if ready.persist.atomic:
            self._set_apart(ready.persist)
        for number in self._committing:
            partition = self._partitions[number]
            ready.persist.marks.append(m.Committed(number, partition.leader_epoch, tuple(partition.commits)))
            partition.commits.clear()
        self._committing.clear()
        ready.wants_producer_id = self._producer_id < 0
        if self._still:
            self._break_silence(ready)
        return ready

    def _advance_units(self) -> None:
        units, persist = self.units, self._ready.persist
        self._ready.units += units.advance()
        for unit, refused in units.too_large:
            self._divide_members(unit, refused)
        units.too_large = []
        for action in self._ready.units:
            if isinstance(action, u.Refuse):
                for batch in self._members(action.unit):
                    batch.code, batch.message = action.unit.code, action.unit.reason
        persist.marks += self._topics_of(units.ending)
        persist.marks += units.take_marks()
        persist.after += map(UnitStaged, units.staging)
        for unit in units.ending:
            committed = unit.phase is u.Phase.COMMITTED
            for batch in self._members(unit):
                if committed:
                    batch.move(State.ACKED)
                    self._unit_place(self._partitions[batch.destination], unit, batch)
                    self._relent(self._partitions[batch.destination])
                else:
                    batch.move(State.REJECTED)
            if committed:
                persist.marks += self._places(unit)
            fate = Fate.COMMITTED if committed else Fate.DROPPED if unit.dropped else Fate.REJECTED
            persist.after.append(UnitEnded(unit, fate))
        units.staging, units.ending = [], []

    def _topics_of(self, units: Iterable[u.Unit]) -> list[m.Mark]:
        """Before their ENDED marks: of which topics partitions are whose baseline is not known yet."""
        partitions = {
            destination: self._partitions[destination]
            for unit in units
            if unit.phase is u.Phase.COMMITTED
            for destination in unit.destinations
        }
        return [
            self._state_mark(partition)
            for partition in partitions.values()
            if partition.baseline_offset < 0 and partition.clear_offset < 0 and any(partition.topic_id)
        ]

    def _places(self, unit: u.Unit) -> list[m.Mark]:
        """Behind its ENDED mark: where its batches are, for lives that find neither them nor the STAGED mark."""
        entries: dict[int, list[tuple[int, int]]] = {}
        for batch in self._members(unit):
            if batch.base_offset >= 0:
                entries.setdefault(batch.destination, []).append((batch.position, batch.base_offset))
        return [
            m.Committed(destination, self._partitions[destination].leader_epoch, tuple(of_it))
            for destination, of_it in entries.items()
        ]

    def _divide_members(self, unit: u.Unit, refused: u.Member) -> None:
        """The cluster finds a batch of a unit too large: so are those of its topic that are about as large."""
        members = {batch.handle: batch for batch in self._members(unit)}
        topic = self._partitions[refused.destination].topic
        too_large = members[refused.handle].size_bytes
        for batch in members.values():
            if (
                batch.count > 1
                and self._partitions[batch.destination].topic == topic
                and batch.size_bytes * 4 > too_large * 3
            ):
                batch.code, batch.message = 10, unit.reason
                self._ready.divides.append(Divide(batch, refused=True))

    def _unit_place(self, partition: _Partition, unit: u.Unit, batch: Batch) -> None:
        """A batch of a unit is committed: it may be lost, and found, by its id and its offset as any other."""
        base_offset = unit.places.get(batch.handle, -1)
        batch.base_offset = base_offset
        grant = unit.grant
        if grant is not None and batch.handle in unit.sequences:
            batch.identity = BatchId(
                grant.producer_id, grant.epoch, unit.sequences[batch.handle], batch.count
            )
        self._begins_at(partition, base_offset)
        self._look_back(partition, base_offset)
        # Unknown where an earlier life staged it: that of what was acknowledged before would be a false one.
        self._leads(partition, unit.epochs.get(batch.handle, -1))
        if base_offset >= 0:
            partition.last_acked_offset = base_offset + batch.count - 1
        topic = self._topics.get(partition.topic)
        known, now = partition.topic_id, m.NO_TOPIC_ID if topic is None else topic.topic_id
        if any(known) and any(now) and known != now:
            # It was prepared before that was known, perhaps in the old one.
            self.recreated(partition.number, f"topic id {known.hex()} became {now.hex()}")
        self._stop_if_suspected(partition)

    @staticmethod
    def _begins_at(partition: _Partition, first_offset: int) -> None:
        """Units do not wait for the baseline either: it may be told when the first of them is in the log."""
        if partition.last_acked_offset < 0 <= first_offset < partition.baseline_offset:
            partition.baseline_offset = first_offset

    def _note_topic(self, partition: _Partition) -> None:
        """Units do not wait for the answer about the baseline: they are prepared in this topic, or a later one."""
        topic = self._topics.get(partition.topic)
        if topic is not None and not any(partition.topic_id) and partition.last_acked_offset < 0:
            partition.topic_id = topic.topic_id

    def deny_unit(self, destination: int, code: int, reason: str, now: float) -> bool:
        """The cluster refuses a destination of a unit for a reason that may pass.

        Returns:
            True when it did, and answered nothing else, for as long as anything is waited for.
        """
        return self._deny(self._partitions[destination], code, reason, Scope.DESTINATION, now)

    def _break_silence(self, ready: Ready) -> None:
        """What is to be sent waits until the log does not say any more that nothing is."""
        if self._held is None:
            if not ready.sends and (not ready.persist.batches or ready.persist.atomic):
                return
            self._held = []
            ready.persist.marks.append(m.Quiet(-1, 0, bytes(16), 0))
            ready.persist.after.append(SilenceBroken())
        self._held += ready.sends
        ready.sends.clear()

    def quiet(self, now: float, clock: Clock) -> m.Quiet | None:
        """For the last group of an owner that sends nothing any more: when all that it sent is dead.

        None where nothing is unfinished or doubted, so that nobody will ask, and where the log says it already.
        """
        if self._still or not (self.unfinished or self._doubted):
            return None
        dead_at = self._former_dead_at
        for partition in self._partitions.values():
            # Without an answer yet: sent until just now.
            dead_at = max(
                dead_at, now + self._request_timeout_s if partition.in_flight else partition.dead_at
            )
        left_ms = int(max(0.0, dead_at - now) * 1000) + 1
        return m.Quiet(clock.wall_ms + left_ms, clock.wall_ms, clock.boot_id, clock.boot_ms)

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

    # -- long backlogs: what is far from its turn is packed ----------------------------------------------------------

    def packable(self, destination: int) -> Iterator[Batch]:
        """Batches that may be packed next, in order; the first ones may be given to `pack`."""
        partition = self._partitions[destination]
        if partition.partition == UNCHOSEN or partition.flow is _Flow.REJECTING:
            return
        if any(each.batch.destination == destination for each in self._ready.unpacked):
            return  # the shell does not know yet that they came back: that has to be before others go
        blind = self._blind_before >= 0
        queue = partition.queue
        for batch in queue.candidates(_UNPACKED):
            # With an id: durably so. Without: none is on its way to it.
            named = batch.state is State.PREPARED and not partition.renew
            if not (
                batch.durable
                and (named or (batch.state is State.SEALED and batch.identity is None))
                and not (batch.tries or batch.unanswered or batch.code or batch.revived)
                and not (batch.former_life and blind)
                and not (batch.heirs or batch.origin >= 0)
                and batch.rank == (batch.position,)
                and batch.parent is None
                and batch.given is None
                and batch.unit is None
            ):
                return
            yield batch

    def pack(self, destination: int, shells: Sequence[tuple[int, float]]) -> None:
        """Keep of the first ones of `packable` what is needed to send them some day, and nothing else.

        They come back as `Ready.unpacked`, as other objects.

        Args:
            destination: Its number.
            shells: What the shell needs of each: a number, ascending, and when it was accepted.
        """
        partition = self._partitions[destination]
        queue = partition.queue
        rows = []
        for batch, (number, sealed_at) in zip(queue.candidates(_UNPACKED), shells, strict=False):
            identity = None if batch.identity is None else _id_fields(batch.identity)
            rows.append(
                Row(
                    number,
                    batch.position,
                    batch.max_timestamp,
                    batch.count,
                    batch.size_bytes,
                    identity,
                    sealed_at,
                    batch.former_life,
                )
            )
            self._spooled.pop(batch.position)
        queue.pack(rows, min(len(queue), _UNPACKED))
        self._note_packed(partition)

    def _note_packed(self, partition: _Partition) -> None:
        row = partition.queue.first_packed
        known = self._packed_from.get(partition.number)
        position = None if row is None else row.position
        if position == known:
            return
        if position is None:
            del self._packed_from[partition.number]
        else:
            self._packed_from[partition.number] = position
        if known is None and position is not None:
            self._first_packed = min(self._first_packed, position)
        elif known == self._first_packed:
            self._first_packed = min(self._packed_from.values(), default=_ANYWHERE)

    def _unpack(self, partition: _Partition, count: int) -> None:
        queue = partition.queue
        for _ in range(min(count, queue.packed)):
            row = queue.unpack()
            self._next_handle += 1
            batch = Batch(
                self._next_handle,
                partition.number,
                row.count,
                row.size_bytes,
                row.max_timestamp,
                identity=None if row.identity is None else BatchId(*row.identity, row.count),
                state=State.SEALED if row.identity is None else State.PREPARED,
                durable=True,
                former_life=row.former_life,
            )
            batch.settle_at(row.position)
            self._spooled[row.position] = batch
            queue.put_back(batch)
            first = queue.first_packed
            self._ready.unpacked.append(
                Unpacked(batch, row.number, row.sealed_at, -1 if first is None else first.number)
            )
        self._note_packed(partition)

    def _advance(self, partition: _Partition, now: float, now_ms: int) -> None:
        if partition.queue.packed and partition.queue.unpacked <= WINDOW:
            self._unpack(partition, _UNPACKED - WINDOW)
        if not partition.queue:
            self._relent(partition, accepted=False)
            partition.answered = False
        if partition.flow is _Flow.REJECTING:
            return
        if partition.partition == UNCHOSEN:
            topic = self._topics.get(partition.topic)
            if topic is not None and topic.partition_count > 0 and partition.flow is not _Flow.PARKED:
                size = 0
                for batch in partition.queue:
                    if batch.state not in {State.SEALED, State.JOINED} or not self._rests(batch):
                        break  # nothing overtakes it
                    self._ready.divides.append(Divide(batch, refused=False))
                    size += batch.size_bytes
                    if size >= _DIVIDE_BYTES:
                        break
            return
        if partition.checks and not partition.check_asked:
            partition.check_asked = True
            self._ready.checks.append(partition.checks[0])
        self._prepare(partition)
        if partition.flow is _Flow.SETTLING and not partition.in_flight:
            self._settled(partition, now, now_ms)
        if not partition.queue:
            return
        if partition.flow is _Flow.NEW:
            partition.flow = _Flow.ASKING
            self._note_topic(partition)
            self._ready.asks.append(
                Ask(partition.number, (), -1, acked_before=False, read_log=False, fenced=False)
            )
        elif partition.flow is _Flow.FLOWING:
            head = partition.queue[0]
            if head.doomed:
                self._reject_head(partition, head)
            else:
                self._flow(partition, now, now_ms)

    def _prepare(self, partition: _Partition) -> None:
        """Give ids to the next batches that have none; they may be sent when the mark is durable."""
        if self._producer_id < 0 or partition.renew:
            # Sequences ascend in queue order: what stands behind still has ids that are to be given back.
            return
        near = list(islice(partition.queue, self._window))
        if all(batch.identity is not None for batch in near):
            return
        entries: list[m.Identity] = []
        moved: list[tuple[Batch, BatchId]] = []
        for batch in islice(partition.queue, _PREPARE_AHEAD):
            if batch.identity is not None:
                continue
            if (
                batch.unit is not None
                or batch.doomed
                or ((self._durable_first or batch.owed) and not batch.durable)
            ):
                break
            self._identify(partition, batch)
            if batch.durable and batch.identity is not None:
                entries.append(m.Identity(batch.position, *_id_fields(batch.identity)))
                moved.append((batch, batch.identity))
            else:
                batch.move(State.PREPARED)
        if not entries:
            return
        self._ready.persist.marks.append(
            m.Identified(partition.number, m.IdentityReason.FIRST, -1, tuple(entries))
        )
        self._ready.persist.after.append(Identified(partition.number, tuple(moved)))

    def _settled(self, partition: _Partition, now: float, now_ms: int) -> None:
        """Every request in flight has an outcome: what now?"""
        if partition.suspicion is not None and not partition.doubtful:
            self._look(partition, now)
            return
        head = next((b for b in partition.queue if b.state is not State.ACKED), None)
        refused = head is not None and head.state is State.REFUSED
        if not partition.doubtful and (refused or partition.renew):
            # Both end in new ids: not while a request under the old ones may still be appended, and not for a
            # batch that was looked for before that was certain.
            if now < partition.dead_at:
                self._pause(partition, partition.reason, at_least_s=partition.dead_at - now)
                return
            for batch in partition.queue:
                if batch.state is State.PREPARED and batch.unanswered:
                    batch.move(State.IN_DOUBT)
                    partition.doubtful = partition.rested = True
        if not partition.doubtful:
            partition.fenced = partition.sequence_refused = False
            if head is not None and head.unconfirmed and head.identity is not None:
                # New ids follow, or a fate: what the broker says is checked once against what it has.
                partition.flow = _Flow.ASKING
                self._ready.asks.append(
                    Ask(
                        partition.number,
                        (head.identity,),
                        -1,
                        acked_before=False,
                        read_log=False,
                        fenced=False,
                        confirm=True,
                    )
                )
                return
            if refused and head is not None:
                self._handle_refusal(partition, head)
                return
            for batch in partition.queue:
                if batch.state is State.REFUSED:
                    # What is before it was not appended either: it is sent again in its turn.
                    batch.move(State.PREPARED)
            if partition.renew:
                self._reidentify(partition)
                self._prepare(partition)
        if not partition.rested:
            self._pause(partition, partition.reason)
            return
        partition.rested = False
        if not partition.doubtful:
            if not any(batch.unanswered for batch in islice(partition.queue, self._window)):
                partition.rescan_from = -1
            started = partition.baseline_offset >= 0 or partition.last_acked_offset >= 0
            partition.flow = _Flow.FLOWING if started else _Flow.NEW
            return
        doubt = self._doubt(partition)
        asked = {_id_fields(batch.identity)[:2] for batch in doubt[:1] if batch.identity is not None}
        for batch in partition.queue:
            if (
                batch.state is State.PREPARED
                and batch.unanswered
                and batch.identity is not None
                and _id_fields(batch.identity)[:2] in asked
            ):
                # What was late may have come, as what is behind it may have.
                batch.move(State.IN_DOUBT)
        doubt = self._doubt(partition)
        if not doubt:
            partition.doubtful = False
            partition.rested = True
            self._touch(partition)
            return
        partition.flow = _Flow.ASKING
        partition.asked_at = now
        first = doubt[0].identity
        last = partition.last_acked_id
        start = self.reach(partition.number)
        if 0 <= partition.rescan_from < start:
            start = partition.rescan_from
        partition.asked_from = start
        self._ready.asks.append(
            Ask(
                partition.number,
                tuple(batch.identity for batch in doubt if batch.identity is not None),
                start,
                acked_before=last is not None
                and first is not None
                and (last.producer_id, last.producer_epoch) == (first.producer_id, first.producer_epoch),
                # A log that was cut may have taken a late request out of order: its leader would speak for the others.
                read_log=partition.rescan_from >= 0 or any(self._is_old(batch, now_ms) for batch in doubt),
                fenced=partition.fenced,
                cut=partition.rescan_from >= 0,
            )
        )

    @staticmethod
    def _doubt(partition: _Partition) -> list[Batch]:
        """The first batches in doubt that share a producer id and epoch."""
        doubt: list[Batch] = []
        for batch in partition.queue:
            if batch.state is State.IN_DOUBT and batch.identity is not None:
                if (
                    doubt
                    and doubt[0].identity is not None
                    and (
                        doubt[0].identity.producer_id,
                        doubt[0].identity.producer_epoch,
                    )
                    != (batch.identity.producer_id, batch.identity.producer_epoch)
                ):
                    break
                doubt.append(batch)
        return doubt

    def _handle_refusal(self, partition: _Partition, head: Batch) -> None:
        if not self._rests(head):
            return  # when it is written
        if head.code in _DESTINATION_CODES:
            self._reject_all(partition, head.code, head.message)
            return
        self._relent(partition, accepted=False)
        if head.count > 1 and (
            head.overdue or head.code == TOO_SLOW or classify_produce(head.code).splittable
        ):
            self._ready.divides.append(Divide(head, refused=True))
            partition.flow = _Flow.SETTLING
            return
        self._reject_head(partition, head)

    def _reject_head(self, partition: _Partition, head: Batch) -> None:
        if head.durable:
            self._put_aside(partition, (head,))
        else:
            self.spill((head,))  # it comes back here when it is on disk

    def _pause(self, partition: _Partition, reason: str, *, at_least_s: float = 0.0) -> None:
        partition.flow = _Flow.WAITING
        partition.attempt += 1
        denial = partition.denial
        refused = denial is not None and denial.counted_from >= 0
        attempt = denial.answers if denial is not None and refused else partition.attempt
        self._ready.waits.append(
            Wait(partition.number, attempt, partition.refresh, at_least_s, reason, refused)
        )
        partition.refresh = False

    def _flow(self, partition: _Partition, now: float, now_ms: int) -> None:
        """Send what the window and the order allow."""
        old_in_flight = False
        for batch in islice(partition.queue, self._window):
            if batch.state in {State.SENT, State.ACKED}:
                old_in_flight |= batch.state is State.SENT and self._is_old(batch, now_ms)
                continue
            if batch.state is not State.PREPARED or batch.identity is None:
                break
            if self._halted or self._is_held(partition, batch):
                break
            ours = (batch.identity.producer_id, batch.identity.producer_epoch)
            if partition.in_flight and (
                old_in_flight or partition.confirmed_id != ours or now >= partition.confirmed_until
            ):
                break
            old = self._is_old(batch, now_ms)
            if old and (partition.in_flight or now < partition.dead_at or batch.unanswered):
                # Once it is appended the leader may forget us, and would then append what is still on its way: what was
                # lost, and what may get lost together with this one.
                if not partition.in_flight:
                    self._hold(partition, batch, now)
                break
            self._send(partition, batch)
            old_in_flight |= old
        if partition.answered and partition.in_flight:
            partition.answered = False
            self._gather(partition, now_ms)

    def _gather(self, partition: _Partition, now_ms: int) -> None:
        """A leader takes one batch after the other, each when the replicas have it: so few go faster."""
        if not (self._gather_bytes and partition.gathers):
            return
        queue = partition.queue
        while (
            (row := queue.first_packed) and queue.unpacked < _GATHER_MOST and self._is_small(row.size_bytes)
        ):
            self._unpack(partition, 1)
        run: list[Batch] = []
        room = self._gather_bytes
        for batch in queue:
            if not run and batch.state in {State.SENT, State.ACKED}:
                continue
            room -= batch.size_bytes
            if room < 0 or len(run) == _GATHER_MOST or not self._may_gather(partition, batch, now_ms):
                break
            if run and not _goes_on(run[-1], batch):
                break
            run.append(batch)
        if len(run) >= GATHER_LEAST:
            self._ready.gathers[partition.number] = run

    def _may_gather(self, partition: _Partition, batch: Batch, now_ms: int) -> bool:
        """It waits on disk under its id, was never sent, and is nothing but a batch."""
        return (
            batch.state is State.PREPARED
            and batch.durable
            and not (batch.writing or batch.former_life or batch.revived)
            and not (batch.tries or batch.unanswered or batch.code)
            and not (batch.heirs or batch.origin >= 0)
            and batch.rank == (batch.position,)
            and batch.unit is None
            and self._is_small(batch.size_bytes)
            and partition.number not in self._healing
            and not self._is_old(batch, now_ms)
            and not self._is_held(partition, batch)
        )

    def _hold(self, partition: _Partition, batch: Batch, now: float) -> None:
        """Nothing is sent before all that is on its way is dead; the batch is then looked for once more."""
        if now < partition.dead_at:
            reason = "a request whose answer was lost may still arrive"
            self._pause(partition, reason, at_least_s=partition.dead_at - now)
            return
        batch.move(State.IN_DOUBT)
        partition.doubtful = True
        partition.flow = _Flow.SETTLING
        partition.rested = True
        self._touch(partition)

    def _is_old(self, batch: Batch, now_ms: int) -> bool:
        """A leader forgets a producer by the timestamp of its last batch: after this one any moment."""
        return self._brokers_ms(now_ms) - batch.max_timestamp > self._state_age_s * 1000

    def _is_small(self, size_bytes: int) -> bool:
        return size_bytes * _GATHERED_SHARE <= self._gather_bytes

    def _send(self, partition: _Partition, batch: Batch) -> None:
        self._ready.gathers.pop(partition.number, None)
        batch.move(State.SENT)
        batch.tries += 1
        partition.in_flight += 1
        self._ready.sends.append(batch)


def _gone(records: int, spans: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """(first offset, last offset, records) of what is lost and not sent again."""
    found = [span for span in spans if span[0] <= span[1]]
    if records <= 0 or not found:
        return -1, -1, 0
    return min(at for at, _ in found), max(to for _, to in found), records


def _between(first: int, last: int, lost: Sequence[Batch]) -> list[tuple[int, int]]:
    """(first offset, last offset) of what no lost batch that is remembered stands for, before and after them."""
    if not lost:
        return [(first, last)]
    begin, end = min(batch.place for batch in lost), max(batch.place + batch.count for batch in lost)
    return [(first, begin - 1), (end, last)]


def _span(batch: Batch) -> tuple[int, int]:
    return batch.place, batch.place + batch.count - 1


def _goes_on(batch: Batch, following: Batch) -> bool:
    """Whether the sequences of the one go on where those of the other end."""
    a, b = batch.identity, following.identity
    return (
        a is not None
        and b is not None
        and _id_fields(b) == (a.producer_id, a.producer_epoch, add_sequence(a.last_sequence, 1))
    )


def _is_part(batch: Batch, of: Batch) -> bool:
    parent = batch.parent
    while parent is not None and parent is not of:
        parent = parent.parent
    return parent is of
