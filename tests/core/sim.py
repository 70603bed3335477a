"""A deterministic world for the journal: disk, network and partition leaders that misbehave as real ones do.

One `Sim(seed)` is one schedule: a client that accepts records, seals them and obeys its journal as the pump does,
a spool that loses at a crash what was not synced, connections that break before or after the append and let old
requests land late (up to the request timeout), and partition leaders with Kafka 4's rules as they were measured:
five batches remembered per producer (one after a restart), 45 for a gap, 47 for an old epoch, any sequence taken from
a producer it does not know, state forgotten by the age of the batches' own timestamps, a tail above the high
watermark that a clean election may drop.

Faults come in bursts. `run()` heals the world at the end, lets the client drain, and raises `Violation` where a
promise was broken: a record lost, duplicated, out of order, sent before it was durable, resolved before it was
committed and marked, parked without need, a loss reported where nothing was lost, or no end in sight.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kafkasafe._core import journal as j
from kafkasafe._core import marks as m
from kafkasafe._core.identity import (
    BatchId,
    Judgement,
    ProducerView,
    Scan,
    Verdict,
    judge_by_both,
    judge_by_state,
    judge_located,
)
from kafkasafe._core.loss import Cause, Survey

EPOCH_MS = 1_700_000_000_000
DAY_S = 86_400.0
EXPIRY_S = DAY_S
REQUEST_TIMEOUT_S = 30.0
STATE_AGE_S = 6 * 3600.0
REFUSED_TIMEOUT_S = 40.0
SILENCE_S = 300.0
TOPIC = "t"
TOPIC_ID = bytes(range(16))


class Violation(AssertionError):  # noqa: N818
    """A promise was broken."""


class Crash(Exception):  # noqa: N818
    """The client process died here."""


def _last(sequence: int, count: int) -> int:
    return (sequence + count - 1) & (2**31 - 1)


# -- the partition leader ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Logged:
    """A batch in the log."""

    offset: int
    records: tuple[int, ...]
    producer_id: int
    epoch: int
    sequence: int
    timestamp: int

    @property
    def end(self) -> int:
        return self.offset + len(self.records)


@dataclass
class Producer:
    """What a leader knows of one producer id."""

    epoch: int
    last_sequence: int
    timestamp: int
    window: list[tuple[int, int, int, int]] = field(default_factory=list)


class Leader:
    """One partition, seen at its leader.

    Attributes:
        log: Everything ever appended and not dropped by an election; trimmed batches too.
        high_watermark: What every replica has (exclusive).
        start: Log start offset: what is before it was deleted.
    """

    def __init__(self, topic_id: bytes = TOPIC_ID) -> None:
        self.topic_id = topic_id
        self.log: list[Logged] = []
        self.high_watermark = 0
        self.start = 0
        self.producers: dict[int, Producer] = {}
        self.epochs: list[tuple[int, int]] = [(0, 0)]

    @property
    def epoch(self) -> int:
        return self.epochs[-1][0]

    def _elected(self, before: int) -> None:
        """The log as it is now is led by a new leader."""
        self.epochs = [(e, start) for e, start in self.epochs if start < self.end]
        self.epochs.append((before + 1, self.end))

    def epoch_end(self, epoch: int) -> int:
        """As OffsetForLeaderEpoch answers, -1 when nothing of that epoch or an older one is known."""
        if epoch == self.epoch:
            return self.end
        later = [start for e, start in self.epochs if e > epoch]
        older = [e for e, start in self.epochs if e <= epoch]
        return later[0] if older and later else -1

    @property
    def end(self) -> int:
        return self.log[-1].end if self.log else 0

    def append(self, identity: BatchId, records: tuple[int, ...], timestamp: int) -> tuple[int, int, int]:
        """(error code, base offset, end offset) as ProducerStateManager decides."""
        last = _last(identity.base_sequence, len(records))
        known = self.producers.get(identity.producer_id)
        if known is not None:
            if identity.producer_epoch < known.epoch:
                return 47, -1, -1
            if identity.producer_epoch == known.epoch:
                for first, end, offset, count in known.window:
                    if (first, end) == (identity.base_sequence, last):
                        return 0, offset, offset + count
                if identity.base_sequence != (known.last_sequence + 1) & (2**31 - 1):
                    return 45, -1, -1
            elif identity.base_sequence != 0:
                return 45, -1, -1
        batch = Logged(
            self.end,
            records,
            identity.producer_id,
            identity.producer_epoch,
            identity.base_sequence,
            timestamp,
        )
        self.log.append(batch)
        self._remember(batch)
        return 0, batch.offset, batch.end

    def foreign(self, count: int) -> None:
        """Somebody else's records."""
        self.log.append(Logged(self.end, (-1,) * count, -1, -1, -1, 0))

    def _remember(self, batch: Logged) -> None:
        if batch.producer_id < 0:
            return
        known = self.producers.get(batch.producer_id)
        if known is None or known.epoch != batch.epoch:
            known = self.producers[batch.producer_id] = Producer(batch.epoch, -1, -1)
        last = _last(batch.sequence, len(batch.records))
        known.last_sequence, known.timestamp = last, batch.timestamp
        known.window = [*known.window[-4:], (batch.sequence, last, batch.offset, len(batch.records))]

    def expire(self, now_ms: int) -> None:
        """The periodic check."""
        for producer_id, known in list(self.producers.items()):
            if now_ms - known.timestamp >= EXPIRY_S * 1000:
                del self.producers[producer_id]

    def restart(self, now_ms: int) -> None:
        """The snapshot keeps one batch for each producer."""
        for known in self.producers.values():
            known.window = known.window[-1:]
        self.expire(now_ms)

    def fail_over(self, rng: random.Random, now_ms: int) -> None:
        """A clean election: the new leader has at least everything below the high watermark."""
        before = self.epoch
        keep = rng.choice([self.high_watermark, *(b.end for b in self.log if b.end > self.high_watermark)])
        alive = set(self.producers)
        dropped = {b.producer_id for b in self.log if b.end > keep}
        self.log = [b for b in self.log if b.end <= keep]
        self.producers.clear()
        for batch in self.log:
            # What the old leader had forgotten the new one has forgotten as well: the check goes by timestamps.
            if batch.producer_id in alive or batch.producer_id in dropped:
                self._remember(batch)
        self.expire(now_ms)
        self.high_watermark = self.end
        self._elected(before)

    def unclean(self, rng: random.Random) -> None:
        """An unclean election, or a lost disk: what was acknowledged is gone, and with it what is known of producers."""
        before = self.epoch
        keep = rng.choice([0, *(b.end for b in self.log)])
        self.log = [b for b in self.log if b.end <= keep]
        self.producers.clear()
        for batch in self.log:
            self._remember(batch)
        self.high_watermark = self.end
        self.start = min(self.start, self.end)
        self._elected(before)


# -- the disk ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """A data batch in the spool."""

    position: int
    destination: int
    identity: BatchId | None
    records: tuple[int, ...]
    timestamp: int


@dataclass
class Written:
    """A group in the spool."""

    position: int
    marks: list[m.Mark]
    batches: list[Stored]
    atomic: bool
    segment: int


class SimSpool:
    """Groups with `write_group` and `sync`; `crash` tears what was not synced."""

    def __init__(self, groups_per_segment: int) -> None:
        self.groups: list[Written] = []
        self.synced = 0
        self.next_position = 0
        self.segment = 0
        self._room = groups_per_segment
        self._in_segment = 0
        self.snapshot: Callable[[], list[m.Mark]] = list
        # What is durable, derived from the marks a second time, without the journal.
        self.durable_ids: dict[int, dict[int, BatchId | None]] = {}
        self.batches: dict[int, Stored] = {}
        self.finished: set[int] = set()
        self.committed: set[int] = set()
        self.rejected: dict[int, int] = {}

    def write_group(
        self,
        marks: Sequence[m.Mark],
        batches: Sequence[tuple[int, BatchId | None, tuple[int, ...], int]],
        *,
        atomic: bool,
    ) -> list[int]:
        if self._in_segment >= self._room:
            self.segment += 1
            self._in_segment = 0
            self._put(self.snapshot(), (), atomic=False)
        return self._put(list(marks), batches, atomic=atomic)

    def _put(
        self,
        marks: list[m.Mark],
        batches: Sequence[tuple[int, BatchId | None, tuple[int, ...], int]],
        *,
        atomic: bool,
    ) -> list[int]:
        self._in_segment += 1
        group = Written(self.next_position, marks, [], atomic, self.segment)
        self.next_position += 1 + len(marks)
        for destination, identity, records, timestamp in batches:
            group.batches.append(Stored(self.next_position, destination, identity, records, timestamp))
            self.next_position += len(records)
        self.groups.append(group)
        return [b.position for b in group.batches]

    def sync(self) -> None:
        for group in self.groups[self.synced :]:
            self._apply(group)
        self.synced = len(self.groups)

    def _apply(self, group: Written) -> None:
        for mark in group.marks:
            match mark:
                case m.Identified():
                    ids = self.durable_ids.setdefault(mark.destination, {})
                    named = {e.position for e in mark.entries}
                    if mark.void_from >= 0:
                        for position in ids:
                            if position >= mark.void_from and position not in named:
                                ids[position] = None
                    for e in mark.entries:
                        if e.position in self.batches:
                            count = len(self.batches[e.position].records)
                            ids[e.position] = BatchId(e.producer_id, e.producer_epoch, e.base_sequence, count)
                case m.Committed(_, _, entries):
                    for position, _ in entries:
                        self.finished.add(position)
                        self.committed.add(position)
                case m.Rejected(position, code):
                    self.finished.add(position)
                    self.rejected[position] = code
                case m.Replaced(position):
                    self.finished.add(position)
                case m.Revived(destination, _, positions):
                    self.finished.difference_update(positions)
                    self.committed.difference_update(positions)
                    for position in positions:
                        self.durable_ids[destination][position] = None
                case _:
                    pass
        for batch in group.batches:
            self.batches[batch.position] = batch
            self.durable_ids.setdefault(batch.destination, {})[batch.position] = batch.identity

    def crash(self, rng: random.Random) -> None:
        """What was not synced is there, or not, or in part."""
        keep = rng.randint(self.synced, len(self.groups))
        torn = self.groups[keep : keep + 1]
        del self.groups[keep:]
        if torn and not torn[0].atomic and rng.random() < 0.5:
            group = torn[0]
            del group.batches[rng.randint(0, len(group.batches)) :]
            self.groups.append(group)
        self.sync()
        if self.groups:
            end = self.groups[-1]
            self.segment = end.segment
            self.next_position = end.position + 1 + len(end.marks) + sum(len(b.records) for b in end.batches)

    def release(self, before: int) -> set[int]:
        """Delete whole segments from the front; the records that were in them."""
        gone: set[int] = set()
        while self.groups and self.groups[0].segment < self.segment:
            first = self.groups[0].segment
            end = next(g.position for g in self.groups if g.segment > first)
            if end > before:
                return gone
            count = sum(g.segment == first for g in self.groups)
            for group in self.groups[:count]:
                for batch in group.batches:
                    if batch.position not in self.finished:
                        raise Violation(f"unfinished {batch} was released")
                    gone.update(self.batches.pop(batch.position).records)
                    self.durable_ids[batch.destination].pop(batch.position)
            del self.groups[:count]
            self.synced -= count
        return gone

    @property
    def first_position(self) -> int:
        return self.groups[0].position if self.groups else self.next_position

    def recover(self, journal: j.Journal) -> None:
        """Feed a fresh journal, as the pump does."""
        journal.released(self.first_position)
        for group in self.groups:
            journal.recover_marks(group.position, group.marks)
            for b in group.batches:
                journal.recover_batch(
                    b.position,
                    b.destination,
                    count=len(b.records),
                    size_bytes=100,
                    max_timestamp=b.timestamp,
                    identity=b.identity,
                )


# -- the network -------------------------------------------------------------------------------------------------------


@dataclass
class Request:
    """One Produce request, on its way."""

    batch: j.Batch
    partition: int
    identity: BatchId
    records: tuple[int, ...]
    timestamp: int
    leader_epoch: int = -1
    answered: bool = False
    answer: tuple[int, int, tuple[tuple[int, str], ...]] | None = None


@dataclass
class Connection:
    """Requests are read in order; once it is broken, nobody hears the answers."""

    life: int
    partition: int
    queue: deque[Request] = field(default_factory=deque)
    outstanding: list[Request] = field(default_factory=list)
    open: bool = True
    read_until: float = 0.0
    write_until: float = 0.0


@dataclass
class Weather:
    """How likely what is; 0: the sun shines."""

    break_before: float = 0.0
    break_after: float = 0.0
    ghost: float = 0.5
    not_sent: float = 0.0
    code: float = 0.0
    ask_fails: float = 0.0
    latency_s: float = 0.01
    replicate_s: float = 0.01
    crash_within: int = 0
    disk: float = 0.0


CODES = (19, 6, 7, 20, 5, 56, -1, 2, 3, 89)
_APPENDED_FIRST = {6, 7, 20, 56, -1, 5}


@dataclass
class Options:
    """What kind of schedule it is."""

    durable_first: bool = True
    partitions: int = 2
    unknown_topic: bool = False
    old_timestamps: float = 0.0
    describes: bool = True
    trims: bool = False
    poison: float = 0.0
    denies: bool = False
    steps: int = 40
    groups_per_segment: int = 10**9
    window: int = 5
    loses: bool = False
    """The cluster loses what it acknowledged."""
    heals: bool = True
    heals_recreated: bool = False
    releases: bool = False
    """The spool deletes what is acknowledged also where it may be lost."""
    favourite: str = ""
    """The fault that comes most: "limit", "missing", "crash" or "foreign"."""


def options_for(seed: int) -> Options:
    """The kind of schedule a seed stands for."""
    rng = random.Random(seed * 7919 + 1)
    options = Options(
        durable_first=rng.random() < 0.8,
        partitions=rng.choice((1, 1, 2)),
        unknown_topic=rng.random() < 0.25,
        old_timestamps=rng.choice((0.0, 0.0, 0.3, 1.0)),
        describes=rng.random() < 0.85,
        trims=rng.random() < 0.15,
        poison=rng.choice((0.0, 0.0, 0.05, 0.2)),
        denies=rng.random() < 0.15,
        steps=rng.choice((20, 40, 60)),
        groups_per_segment=rng.choice((3, 8, 10**9)),
    )
    if rng.random() < 0.15:
        options = replace(
            options,
            loses=True,
            durable_first=True,
            trims=False,
            denies=False,
            heals=rng.random() < 0.85,
            releases=rng.random() < 0.15,
        )
    return options


# -- the schedule ------------------------------------------------------------------------------------------------------


class Sim:
    """One schedule.

    Args:
        seed: Of everything.
        options: What kind; from the seed when None.
        journal: Makes the journal: a mutant's class in tests of the tests.
    """

    def __init__(
        self,
        seed: int,
        options: Options | None = None,
        *,
        journal: Callable[..., j.Journal] = j.Journal,
        trace: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.options = options or options_for(seed)
        self.make_journal = journal
        self.now = 1000.0
        self.events: list[tuple[float, int, int, Callable[[], None]]] = []
        self.ticket = itertools.count()
        self.weather = Weather()
        self.leaders = [Leader() for _ in range(self.options.partitions)]
        self.pending: list[list[tuple[Request, Connection, int, int]]] = [[] for _ in self.leaders]
        self.replicating = [False] * len(self.leaders)
        self.denied: dict[int, int] = {}
        self.refusing: dict[int, tuple[float, float]] = {}
        """By partition: since when this life hears nothing but refusals that may pass, and when the last one."""
        self.stubborn: set[int] = set()
        """Records on which the leader fails whenever it sees them."""
        self.max_count = 10**6
        self.spool = SimSpool(self.options.groups_per_segment)
        self.life = 0
        self.next_pid = 1000
        self.crash_in = -1
        self.trace: list[str] | None = [] if trace else None
        # Truth about records.
        self.next_record = 0
        self.home: dict[int, int] = {}
        self.durable: set[int] = set()
        self.open: dict[int, tuple[int, ...]] = {}
        self.accepted: list[int] = []
        self.gone: set[int] = set()
        self.poisoned: set[int] = set()
        self.huge: set[int] = set()
        self.rejected: dict[int, int] = {}
        self.acked: set[int] = set()
        self.deleted: set[int] = set()
        self.released: set[int] = set()
        self.telling: set[int] = set()
        self.told: set[int] = set()
        self.put_aside: dict[int, tuple[int, ...]] = {}
        self.user_resent: set[int] = set()
        self.sends = 0
        self.crashes = 0
        self.parks = 0
        self.asked = 0
        self.healing = False
        self.unclean: set[int] = set()
        self.overtaken: set[int] = set()
        self.losses = 0
        self.generation = 0
        self._new_life()

    # -- time ------------------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return EPOCH_MS + int(self.now * 1000)

    def log(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:.3f} {text}")

    def at(self, delay_s: float, job: Callable[[], None], *, life: int = -1) -> None:
        """Later; with `life`, only if the client is still that one."""
        heapq.heappush(self.events, (self.now + delay_s, next(self.ticket), life, job))

    def mine(self, delay_s: float, job: Callable[[], None]) -> None:
        self.at(delay_s, job, life=self.life)

    def _turn(self, until: float) -> None:
        """Everything that is due until then; a crash of the client in any of it."""
        while self.events and self.events[0][0] <= until:
            when, _, life, job = heapq.heappop(self.events)
            self.now = max(self.now, when)
            if life not in {-1, self.life}:
                continue
            try:
                job()
                if life >= 0:
                    self.drive()
            except Crash:
                self.crash()
        self.now = max(self.now, until)

    def freeze(self, seconds: float) -> None:
        """The client is dead or stopped; everybody else goes on."""
        until = self.now + seconds
        later = []
        while self.events and self.events[0][0] <= until:
            event = heapq.heappop(self.events)
            if event[2] == -1:
                self.now = max(self.now, event[0])
                event[3]()
            elif event[2] == self.life:
                later.append(event)
        for event in later:
            heapq.heappush(self.events, event)
        self.now = until

    def point(self) -> None:
        """The client may die here."""
        if self.crash_in >= 0:
            self.crash_in -= 1
            if self.crash_in < 0:
                raise Crash

    # -- lives -----------------------------------------------------------------------------------------------------

    def _new_life(self) -> None:
        self.life += 1
        o = self.options
        self.journal = self.make_journal(
            durable_first=o.durable_first,
            window=o.window,
            state_age_s=STATE_AGE_S,
            request_timeout_s=REQUEST_TIMEOUT_S,
            refused_timeout_s=REFUSED_TIMEOUT_S,
            missing_grace_s=10.0,
            heal=o.heals,
            heal_recreated=o.heals_recreated,
            aside_batches=2,
        )
        self.refusing.clear()
        self.parcels: dict[int, tuple[tuple[int, ...], int]] = {}
        self.connections: dict[int, Connection] = {}
        self.pid_wanted = False
        self.unwritten: deque[j.Persist] = deque()
        self.spool.snapshot = self.journal.snapshot
        self.spool.recover(self.journal)
        self.journal.recovered(self.now)
        for _, _, batch in self.journal.batches():
            stored = self.spool.batches[batch.position]
            self.parcels[batch.handle] = (stored.records, stored.timestamp)
        self.log(
            f"life {self.life}: {[(t, p, b.position, b.identity) for t, p, b in self.journal.batches()]}"
        )
        if not o.unknown_topic or self.healing:
            self.learn()
        try:
            self.drive()
        except Crash:
            self.crash()

    def learn(self) -> None:
        self.journal.learn_topic(TOPIC, TOPIC_ID, self.options.partitions)

    def crash(self) -> None:
        """kill -9: requests that left the process may still arrive."""
        self.crashes += 1
        self.crash_in = -1
        self.life += 1  # nothing that the dead client had planned happens
        self.log("CRASH")
        for connection in self.connections.values():
            self._hang_up(connection)
        self.spool.crash(self.rng)
        there = {r for b in self.spool.batches.values() for r in b.records}
        for handle, records in list(self.open.items()):
            for record in records:
                if record in there:
                    self.durable.add(record)
                else:
                    self.gone.add(record)
            del self.open[handle]
        if self.weather.crash_within:
            self.crash_in = self.rng.randint(0, self.weather.crash_within)
        if not self.healing:
            self.freeze(self.rng.choice((0.01, 0.5, 5.0, 29.0, 31.0)))
            if self.rng.random() < 0.1:
                self.freeze(30 * 3600.0)
                self.expire()
        self._new_life()

    def _hang_up(self, connection: Connection) -> None:
        """Nobody listens any more; what was not read yet is lost, or arrives late."""
        connection.open = False
        if self.rng.random() >= self.weather.ghost:
            connection.queue.clear()
            return
        late = sorted(self.rng.uniform(0, REQUEST_TIMEOUT_S - 0.1) for _ in connection.queue)
        for delay in late:
            self.at(delay, lambda c=connection: self._read(c))

    # -- the client's work -----------------------------------------------------------------------------------------

    def accept(self, count: int, *, unchosen: bool = False) -> None:
        """Records are sealed into a batch, as the producer's callers do."""
        partition = self.rng.randrange(self.options.partitions)
        records = []
        for _ in range(count):
            record = self.next_record
            self.next_record += 1
            records.append(record)
            if self.rng.random() < self.options.poison:
                kind = self.rng.random()
                (self.poisoned if kind < 0.7 else self.stubborn if kind < 0.8 else self.huge).add(record)
            if not unchosen:
                self.home[record] = partition
        self.accepted += records
        age = (
            self.rng.choice((2 * DAY_S, 7 * 3600.0, DAY_S))
            if self.rng.random() < self.options.old_timestamps
            else 0
        )
        timestamp = self.now_ms - int(age * 1000)
        if unchosen:
            topic = self.journal.topic(TOPIC)
            if topic is not None and topic.partition_count > 0 and not self.journal.waiting(TOPIC):
                for number, part in self._by_partition(tuple(records)):
                    self._seal(number, part, timestamp)
                return
            for record in records:
                self.home[record] = record % self.options.partitions
            self._seal(j.UNCHOSEN, tuple(records), timestamp)
            return
        self._seal(partition, tuple(records), timestamp)

    def _by_partition(self, records: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
        parts: dict[int, list[int]] = {}
        for record in records:
            number = record % self.options.partitions
            self.home[record] = number
            parts.setdefault(number, []).append(record)
        return [(number, tuple(part)) for number, part in sorted(parts.items())]

    def _seal(self, partition: int, records: tuple[int, ...], timestamp: int) -> None:
        destination = self.journal.destination(TOPIC, partition)
        batch = self.journal.seal(destination, count=len(records), size_bytes=100, max_timestamp=timestamp)
        self.parcels[batch.handle] = (records, timestamp)
        self.open[batch.handle] = records

    def spill(self) -> None:
        """`spool="on_error"`: what waits goes to disk."""
        late = [b for _, _, b in self.journal.batches() if not b.durable]
        self.journal.spill(late[: self.rng.randint(0, len(late))])

    def drive(self) -> None:
        """What the pump does in a turn."""
        for _ in range(10_000):
            if any(unit.marks or unit.after for unit in self.unwritten):
                break  # a decision is not on disk: no other before it
            self.point()
            ready = self.journal.ready(self.now, self.now_ms)
            for notice in ready.notices:
                self._notice(notice)
            for divide in ready.divides:
                self._divide(divide)
            for aside in ready.asides:
                self._put_aside(aside)
            for batch in ready.sends:
                self._send(batch)
                self.point()
            for ask in ready.asks:
                self._ask(ask)
            for survey in ready.surveys:
                Inquest(self, survey).start()
            for check in ready.checks:
                self.mine(self._delay(), lambda c=check: self._check_epoch(c))
            for wait in ready.waits:
                self._wait(wait)
            for resolution in ready.resolved:
                self._resolve(resolution)
            if ready.wants_producer_id and not self.pid_wanted:
                self.pid_wanted = True
                self.mine(self._delay(), self._grant)
            if ready.persist:
                self._persist(ready.persist)
            elif not (ready.divides or ready.resolved or ready.sends or ready.asides):
                break
        else:
            raise Violation("the journal does not come to rest")
        if not self.options.loses or self.options.releases:
            self.released |= self.spool.release(self.journal.release_position)
            self.journal.released(self.spool.first_position)
        self._check_round_trip()

    def _delay(self) -> float:
        return self.rng.expovariate(1 / self.weather.latency_s)

    def _grant(self) -> None:
        if self.rng.random() < self.weather.ask_fails:
            self.mine(1.0, self._grant)
            return
        self.pid_wanted = False
        self.next_pid += 1
        self.journal.granted(self.next_pid, 0)

    def _persist(self, persist: j.Persist) -> None:
        """What a failing disk does not take is tried again, decisions before batches."""
        if self.unwritten:
            self.unwritten.extend(_apart(persist))
        else:
            self.unwritten.append(persist)
        self._write_out()

    def _write_out(self) -> None:
        while self.unwritten:
            index = next((i for i, unit in enumerate(self.unwritten) if unit.marks or unit.after), 0)
            unit = self.unwritten[index]
            del self.unwritten[index]
            if (unit.batches or unit.marks) and self.rng.random() < self.weather.disk:
                for part in reversed(_apart(unit)):
                    self.unwritten.insert(index, part)
                self.mine(0.3, self._write_out)
                return
            self._write(unit)

    def _write(self, persist: j.Persist) -> None:
        data = []
        for batch in persist.batches:
            records, timestamp = self.parcels[batch.handle]
            data.append((batch.destination, batch.identity, records, timestamp))
        positions: list[int] = []
        if data or persist.marks:
            positions = self.spool.write_group(persist.marks, data, atomic=persist.atomic)
            self.point()
            self.spool.sync()
            self.point()
        if any(isinstance(mark, m.Revived) for mark in persist.marks):
            # Who dies before that tells it again.
            self.told |= self.telling
        self.journal.persisted(persist, positions, self.spool.next_position)
        for batch in persist.batches:
            self.open.pop(batch.handle, None)
            self.durable.update(self.parcels[batch.handle][0])

    def _divide(self, divide: j.Divide) -> None:
        batch = divide.batch
        records, timestamp = self.parcels.pop(batch.handle)
        self.open.pop(batch.handle, None)
        bad: set[int] = set()
        if divide.refused:
            bad = {i for i, _ in batch.bad_records}
            edges = [0, len(records) // 2, len(records)]
            if bad and len(bad) < len(records):
                edges = [
                    0,
                    *(i for i in range(1, len(records)) if (i in bad) != (i - 1 in bad)),
                    len(records),
                ]
            pieces = [(batch.destination, records[a:b], a in bad) for a, b in itertools.pairwise(edges)]
        else:
            pieces = [
                (self.journal.destination(TOPIC, number), part, False)
                for number, part in self._by_partition(records)
            ]
        children = [(d, len(part), 100, timestamp, doomed) for d, part, doomed in pieces]
        made = self.journal.replaced(batch, children)
        self.log(f"divide {batch.position} {records} -> {pieces}")
        for (_, part, _), child in zip(pieces, made, strict=True):
            self.parcels[child.handle] = (part, timestamp)
            if not batch.durable:
                self.open[child.handle] = part

    def _notice(self, notice: j.Notice) -> None:
        self.log(f"notice {notice}")
        match notice:
            case j.AckedLoss():
                partition = self.journal.address(notice.destination)[1]
                if partition not in self.unclean and not self.deleted:
                    raise Violation(f"a loss is reported where nothing was lost: {notice}")
                self._loss(notice, partition)
            case j.Hole():
                partition = self.journal.address(notice.destination)[1]
                if partition not in self.unclean and not self.deleted:
                    raise Violation(f"records are said to be missing where none are: {notice}")
            case j.Parked(batch, evidence):
                self._parked(batch, evidence)
            case j.Refusal(batch):
                partition = self._partition(batch)
                if batch.position not in self.put_aside:
                    raise Violation(f"{batch} is rejected, and kept nowhere")
                stubborn = self.stubborn.intersection(self.parcels[batch.handle][0])
                for record in self.parcels[batch.handle][0]:
                    allowed = (
                        (record in self.poisoned | self.huge and batch.code in {10, 87})
                        or (batch.code in {2, -1} and (stubborn or batch.overdue))
                        or self._refused_long(partition)
                    )
                    if not allowed:
                        raise Violation(f"record {record} is rejected for nothing: {batch}")

    def _put_aside(self, aside: j.Aside) -> None:
        """What is rejected is made durable elsewhere; or a failing disk, or one that is full, takes a part of it."""
        kept = len(aside.batches)
        if self.rng.random() < self.weather.disk:
            kept = self.rng.randrange(kept)
        for batch in aside.batches:
            if not batch.durable:
                raise Violation(f"{batch} has no place in the spool that its copy could name")
        for batch in aside.batches[:kept]:
            self.put_aside[batch.position] = self.parcels[batch.handle][0]
        self.point()
        if self.journal.set_aside(aside, kept, "the disk is full"):
            self.mine(self._delay(), lambda: self.journal.next_aside(aside.destination))

    def _answered(self, partition: int, code: int) -> None:
        since, last = self.refusing.get(partition, (self.now, self.now))
        if code not in {2, -1, 3, 17, 29}:
            self.refusing.pop(partition, None)
        elif self.now - last > SILENCE_S:
            self.refusing[partition] = self.now, self.now
        else:
            self.refusing[partition] = since, self.now

    def _refused_long(self, partition: int) -> bool:
        """It was refused for as long as anything is waited for, give or take the answers to what was sent behind."""
        since, _ = self.refusing.get(partition, (self.now, self.now))
        return self.now - since >= 0.75 * REFUSED_TIMEOUT_S

    def _loss(self, notice: j.AckedLoss, partition: int) -> None:
        self.losses += 1
        options = self.options
        recreated = bool(self.deleted) and options.denies
        if notice.revived and not (options.heals and (options.heals_recreated or not recreated)):
            raise Violation(f"what must stay lost is put back: {notice}")
        has_all = options.durable_first and not options.releases
        if options.heals and not recreated and has_all and not notice.revived:
            raise Violation(f"nothing is put back, though the spool has everything: {notice}")
        if not options.heals:
            self._given_up(notice, partition)
        queue = [batch for _, number, batch in self.journal.batches() if number == partition]
        back = [batch for batch in queue if batch.handle not in self.parcels]
        if queue[: len(back)] != back:
            raise Violation(f"lost ones are put back behind others: {queue}")
        for batch in back:
            stored = self.spool.batches[batch.position]
            self.parcels[batch.handle] = (stored.records, stored.timestamp)
        order = [self.parcels[batch.handle][0] for batch in back]
        # Where the parts of a divided batch stood, only the whole one in the spool tells.
        if order != sorted(order) and not options.releases:
            raise Violation(f"lost ones are put back out of order: {order}")

    def _given_up(self, notice: j.AckedLoss, partition: int) -> None:
        there = {r for b in self.leaders[partition].log for r in b.records}
        gone = {
            record
            for position in self.spool.committed
            if (batch := self.spool.batches.get(position)) is not None
            and self.journal.address(batch.destination)[1] == partition
            for record in batch.records
        }
        gone -= there
        if not gone - self.told and not self.options.releases:
            raise Violation(f"the same loss is told again: {notice}")
        self.deleted |= gone
        self.telling |= gone

    def _parked(self, batch: j.Batch, evidence: str) -> None:
        self.parks += 1
        leader = self.leaders[self._partition(batch)]
        # A leader that lost what it knew takes a late request though the one before it never came: order is broken in
        # the log itself, and what to do about that is the user's to say.
        lossy = self._partition(batch) in self.unclean or bool(self.deleted)
        overtaken = lossy and "a later batch is there" in evidence
        if overtaken:
            self.overtaken.add(self._partition(batch))
        if leader.start == 0 and not overtaken:
            raise Violation(f"{batch} is parked though the whole log is there: {evidence}")

        def decide() -> None:
            if batch.state is not j.State.UNDECIDABLE:
                return
            records = self.parcels[batch.handle][0]
            there = {r for b in leader.log for r in b.records}
            self.journal.decide(batch, resend=records[0] not in there)

        self.mine(35.0, decide)

    def _partition(self, batch: j.Batch) -> int:
        return self.journal.address(batch.destination)[1]

    def _resolve(self, resolution: j.Resolution) -> None:
        batch = resolution.batch
        entry = self.parcels.pop(batch.handle, None)
        if entry is None:
            return
        records = entry[0]
        self.open.pop(batch.handle, None)
        if resolution.fate is j.Fate.COMMITTED:
            leader = self.leaders[self._partition(batch)]
            there = {r for b in leader.log if b.end <= leader.high_watermark for r in b.records}
            lossy = self._partition(batch) in self.unclean
            if not lossy and not there.issuperset(set(records) - self.deleted):
                raise Violation(f"{batch} with {records} is resolved but not committed")
            if self.options.durable_first and batch.position not in self.spool.committed:
                raise Violation(f"{batch} is resolved before its mark is durable")
            self.acked.update(records)
            self.durable.update(records)
        elif resolution.fate is j.Fate.REJECTED:
            if batch.position >= 0 and batch.position not in self.spool.finished:
                raise Violation(f"{batch} is rejected before its mark is durable")
            for record in records:
                self.rejected[record] = batch.code
            self.durable.update(records)

    def _wait(self, wait: j.Wait) -> None:
        self.log(f"wait {wait}")
        pause = max(wait.at_least_s, min(0.05 * 2 ** min(wait.attempt, 9), 1.0) * self.rng.uniform(0.5, 1))
        self.mine(pause, lambda: self.journal.retry(wait.destination))

    def _check_round_trip(self) -> None:
        """A new life on what is durable now would know what this one knows."""
        if self.rng.random() > 0.05 or self.unwritten:
            return
        twin = self.make_journal(durable_first=self.options.durable_first)
        self.spool.recover(twin)
        twin.recovered(self.now)
        mine: dict[tuple[str, int], list[tuple[int, BatchId | None]]] = {}
        for topic, partition, batch in self.journal.batches():
            if batch.durable:
                mine.setdefault((topic, partition), []).append((batch.position, batch.identity))
        theirs: dict[tuple[str, int], list[tuple[int, BatchId | None]]] = {}
        for topic, partition, batch in twin.batches():
            theirs.setdefault((topic, partition), []).append((batch.position, batch.identity))
        if mine != theirs:
            raise Violation(f"recovery would know {theirs}, not {mine}")

    # -- the network -----------------------------------------------------------------------------------------------

    def _send(self, batch: j.Batch) -> None:
        self.sends += 1
        records, timestamp = self.parcels[batch.handle]
        identity = batch.identity
        partition = self._partition(batch)
        self.log(f"send {batch.position} {identity} {records}")
        if identity is None or identity.count != len(records):
            raise Violation(f"{batch} is sent without an id")
        if self.options.durable_first or batch.durable or batch.owed:
            ids = self.spool.durable_ids.get(batch.destination, {})
            if batch.position not in ids or ids[batch.position] != identity:
                raise Violation(f"{batch} is sent before it and its id are durable")
        connection = self.connections.get(partition)
        if connection is None or not connection.open:
            connection = self.connections[partition] = Connection(self.life, partition)
        epoch = self.leaders[partition].epoch
        request = Request(batch, partition, identity, records, timestamp, epoch)
        if self.rng.random() < self.weather.not_sent:
            self.mine(self._delay(), lambda: self._lost(request, sent=False))
            return
        connection.queue.append(request)
        connection.outstanding.append(request)
        if len(connection.outstanding) > self.options.window:
            raise Violation(f"{len(connection.outstanding)} batches in flight")
        connection.read_until = max(connection.read_until, self.now) + self._delay()
        self.at(connection.read_until - self.now, lambda: self._read(connection))

    def _lost(self, request: Request, *, sent: bool) -> None:
        self.log(f"lost {request.identity} sent={sent}")
        self.refusing.pop(request.partition, None)
        self.journal.lost(request.batch, sent=sent, code=0, message="connection", now=self.now)

    def break_connection(self, connection: Connection) -> None:
        """Both ends notice, the client a little later."""
        if not connection.open:
            return
        self._hang_up(connection)
        if connection.life != self.life:
            return
        for request in connection.outstanding:
            self.mine(self._delay(), lambda r=request: self._lost(r, sent=True))
        connection.outstanding = []

    def _read(self, connection: Connection) -> None:
        """The leader reads the next request of a connection."""
        if not connection.queue:
            return
        if connection.open and self.rng.random() < self.weather.break_before:
            self.break_connection(connection)
            return
        request = connection.queue.popleft()
        leader = self.leaders[request.partition]
        code = self.denied.get(request.partition, 0)
        bad: tuple[tuple[int, str], ...] = ()
        if not code:
            poison = [i for i, r in enumerate(request.records) if r in self.poisoned]
            if len(request.records) > self.max_count or any(r in self.huge for r in request.records):
                code = 10
            elif stubborn := self.stubborn.intersection(request.records):
                code = -1 if min(stubborn) % 2 else 2
            elif poison:
                code = 87
                if self.rng.random() < 0.7:
                    bad = tuple((i, "poison") for i in poison)
        if code:
            self._reply(connection, request, code, -1, bad)
            return
        if connection.open and request.leader_epoch != leader.epoch:
            # It was sent to the leader before. (What comes late can meet a leader that it did not know.)
            self._reply(connection, request, 6, -1)
            return
        if self.rng.random() < self.weather.code:
            code = self.rng.choice(CODES)
            if code not in _APPENDED_FIRST or self.rng.random() < 0.5:
                self._reply(connection, request, code, -1)
                return
            appended, _, _ = leader.append(request.identity, request.records, request.timestamp)
            self._replicate(request.partition)
            self._reply(connection, request, appended or code, -1)
            return
        code, offset, end = leader.append(request.identity, request.records, request.timestamp)
        self.log(f"append {request.identity} {request.records} -> {code} at {offset} open={connection.open}")
        if connection.open and self.rng.random() < self.weather.break_after:
            self.break_connection(connection)
            self._replicate(request.partition)
            return
        if code:
            self._reply(connection, request, code, -1)
            return
        self.pending[request.partition].append((request, connection, offset, end))
        self._replicate(request.partition)

    def _reply(
        self,
        connection: Connection,
        request: Request,
        code: int,
        offset: int,
        bad: tuple[tuple[int, str], ...] = (),
    ) -> None:
        if not connection.open or connection.life != self.life:
            return

        request.answer = (code, offset, bad)
        # Answers leave in the order of their requests.
        for first in connection.outstanding:
            if first.answer is None:
                return
            if not first.answered:
                first.answered = True
                connection.write_until = max(connection.write_until, self.now) + self._delay()
                self.mine(connection.write_until - self.now, lambda r=first: self._deliver(connection, r))

    def _deliver(self, connection: Connection, request: Request) -> None:
        if request not in connection.outstanding or request.answer is None:
            return  # the connection broke before
        connection.outstanding.remove(request)
        code, offset, bad = request.answer
        self.log(f"reply {request.identity} {code} at {offset}")
        self._answered(request.partition, code)
        if code:
            self.journal.refused(request.batch, code, "", bad_records=bad, now=self.now, now_ms=self.now_ms)
        else:
            self.journal.acked(
                request.batch, offset, leader_epoch=request.leader_epoch, now=self.now, now_ms=self.now_ms
            )

    def _replicate(self, partition: int) -> None:
        if self.replicating[partition]:
            return
        self.replicating[partition] = True

        def advance() -> None:
            self.replicating[partition] = False
            leader = self.leaders[partition]
            leader.high_watermark = leader.end
            self._answer(partition)

        self.at(self.rng.expovariate(1 / self.weather.replicate_s), advance)

    def _answer(self, partition: int) -> None:
        waiting, self.pending[partition] = self.pending[partition], []
        for request, connection, offset, end in waiting:
            if end <= self.leaders[partition].high_watermark:
                self._reply(connection, request, 0, offset)
            else:
                self.pending[partition].append((request, connection, offset, end))

    # -- questions -------------------------------------------------------------------------------------------------

    def _ask(self, ask: j.Ask) -> None:
        self.log(f"ask {ask}")
        if not ask.doubt:
            self.mine(self._delay(), lambda: self._baseline(ask))
            return
        if ask.confirm:
            self.mine(self._delay(), lambda: self._confirm(ask))
            return
        self.asked += 1
        Question(self, ask).start()

    def _confirm(self, ask: j.Ask) -> None:
        if self.rng.random() < self.weather.ask_fails:
            self.journal.ask_failed(ask.destination, "no answer", code=0, now=self.now)
            return
        leader = self.leaders[self.journal.address(ask.destination)[1]]
        known = leader.producers.get(ask.doubt[0].producer_id) if self.options.describes else None
        view = known and ProducerView(known.epoch, known.last_sequence, known.timestamp)
        self.journal.confirmed(ask.destination, view)

    def _fails(self, ask: j.Ask) -> bool:
        partition = self.journal.address(ask.destination)[1]
        code = self.denied.get(partition, 0)
        if code:
            self._answered(partition, code)
        if code or self.rng.random() < self.weather.ask_fails:
            self.journal.ask_failed(ask.destination, "no answer", code=code, now=self.now)
            return True
        return False

    def _baseline(self, ask: j.Ask) -> None:
        if not self._fails(ask):
            leader = self.leaders[self.journal.address(ask.destination)[1]]
            self.journal.baseline(ask.destination, leader.high_watermark, leader.topic_id)

    # -- faults ----------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        for leader in self.leaders:
            leader.expire(self.now_ms)

    def _restart(self, partition: int) -> None:
        self.log(f"restart {partition}")
        for connection in [c for c in self.connections.values() if c.partition == partition]:
            self.break_connection(connection)
        self.pending[partition].clear()
        self.leaders[partition].restart(self.now_ms)
        self._replicate(partition)

    def _fail_over(self, partition: int) -> None:
        leader = self.leaders[partition]
        leader.fail_over(self.rng, self.now_ms)
        self.log(f"fail over {partition}: end {leader.end}")
        waiting, self.pending[partition] = self.pending[partition], []
        for request, connection, offset, end in waiting:
            if self.rng.random() < 0.5:
                self._reply(connection, request, 6, -1)
            elif end <= leader.high_watermark and self.rng.random() < 0.5:
                self._reply(connection, request, 0, offset)
            else:
                self.break_connection(connection)

    def _unclean(self, partition: int) -> None:
        for connection in [c for c in self.connections.values() if c.partition == partition]:
            self.break_connection(connection)
        self.pending[partition].clear()
        leader = self.leaders[partition]
        leader.unclean(self.rng)
        self.unclean.add(partition)
        self.generation += 1
        self.log(f"UNCLEAN {partition}: end {leader.end}")
        if self.rng.random() < 0.5:
            # The metadata tells of another leader epoch.
            self.mine(self._delay(), self.look)

    def look(self) -> None:
        """What the pump's periodic check does."""
        for destination, last_acked_offset in self.journal.idle():
            epoch = self.journal.leader_epoch(destination)
            self._ask_end(j.EpochCheck(destination, epoch, last_acked_offset), None)

    def _check_epoch(self, check: j.EpochCheck) -> None:
        if self.rng.random() < self.weather.ask_fails:
            self.mine(1.0, lambda: self._check_epoch(check))
        else:
            self._ask_end(check, check)

    def _ask_end(self, check: j.EpochCheck, about: j.EpochCheck | None) -> None:
        leader = self.leaders[self.journal.address(check.destination)[1]]
        known = leader.epoch_end(check.leader_epoch) if check.leader_epoch >= 0 else leader.end
        end = leader.start if known < 0 else known
        if end <= check.last_acked_offset:
            evidence = f"leader epoch {check.leader_epoch} ends at {known}"
            self.journal.suspect(check.destination, Cause.LOG_END, evidence, from_offset=end, check=about)

    def _fault(self) -> None:
        partition = self.rng.randrange(self.options.partitions)
        kind = self.rng.random()
        if self.options.favourite and self.rng.random() < 0.6:
            kind = {"limit": 0.68, "missing": 0.64, "crash": 0.8, "foreign": 0.52}[self.options.favourite]
        if self.options.loses and self.rng.random() < 0.3:
            self._unclean(partition)
        elif kind < 0.15:
            self._restart(partition)
        elif kind < 0.3:
            self._fail_over(partition)
        elif kind < 0.4:
            self.expire()
        elif kind < 0.5:
            connection = self.connections.get(partition)
            if connection is not None:
                self.break_connection(connection)
        elif kind < 0.55:
            self.leaders[partition].foreign(self.rng.randint(1, 3))
            self._replicate(partition)
        elif kind < 0.6 and self.options.trims:
            leader = self.leaders[partition]
            ends = [b.end for b in leader.log if b.end <= leader.high_watermark]
            if ends:
                leader.start = max(leader.start, self.rng.choice(ends))
        elif kind < 0.65 and self.options.denies:
            self._deny(partition)
        elif kind < 0.7:
            self.max_count = self.rng.choice((1, 2, 10**6))
        elif kind < 0.75:
            self.freeze(self.rng.choice((20.0, 7 * 3600.0, 30 * 3600.0)))
        elif kind < 0.85:
            self.crash_in = self.rng.randint(0, 8)
        elif kind < 0.9:
            self.crash()

    def _deny(self, partition: int) -> None:
        """Not authorised, or invalid; or the topic is unknown, for a moment or because it was deleted."""
        if partition in self.denied:
            return
        code = 3 if self.options.favourite == "missing" else self.rng.choice((29, 17, 3, 3))
        lasting = not self.options.favourite and self.rng.random() < 0.5
        deleted = lasting and code == 3
        self.log(f"deny {partition} {code} lasting={lasting}")
        self.denied[partition] = code
        if deleted:
            self.deleted.update(r for b in self.leaders[partition].log for r in b.records)
            for connection in [c for c in self.connections.values() if c.partition == partition]:
                self.break_connection(connection)
            self.pending[partition].clear()
            self.leaders[partition] = Leader(self.rng.randbytes(16))
        seconds = 100.0 if lasting else self.rng.choice((1.0, 20.0))
        self.at(seconds, lambda: self.denied.pop(partition, None))

    def _burst(self) -> None:
        """What the next while is like."""
        r = self.rng
        self.weather = Weather(
            break_before=r.choice((0, 0, 0.1, 0.5)),
            break_after=r.choice((0, 0, 0.1, 0.5)),
            ghost=r.choice((0, 0.5, 1)),
            not_sent=r.choice((0, 0, 0.2)),
            code=r.choice((0, 0, 0.2, 0.7)),
            ask_fails=r.choice((0, 0, 0.3)),
            latency_s=r.choice((0.001, 0.05, 2.0)),
            replicate_s=r.choice((0.001, 0.05, 5.0)),
            disk=r.choice((0, 0, 0, 0.5)),
            crash_within=r.choice((0, 0, 0, 20, 60)),
        )
        if self.weather.crash_within:
            self.crash_in = r.randint(0, self.weather.crash_within)

    # -- the whole schedule ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play it, heal, and check."""
        r = self.rng
        for step in range(self.options.steps):
            if step % 5 == 0:
                self._burst()
            for _ in range(r.choice((0, 1, 1, 2, 4, 9))):
                self.mine(0, lambda: self.accept(r.randint(1, 4), unchosen=self.options.unknown_topic))
            if not self.options.durable_first and r.random() < 0.5:
                self.mine(0, self.spill)
            if self.options.unknown_topic and r.random() < 0.1:
                self.mine(0, self.learn)
            if r.random() < 0.5:
                self._fault()
            self._turn(self.now + r.choice((0.001, 0.02, 0.2, 1.0, 5.0)))
        self.heal()
        self.check()

    def heal(self) -> None:
        """The sun shines; everything drains."""
        self.log("HEAL")
        self.healing = True
        self.weather = Weather(ghost=0)
        self.crash_in = -1
        self.denied.clear()
        self.max_count = 10**6
        self.mine(0, self.learn)
        until, left = self.now + 600, self.journal.unfinished
        while self.now < until:
            self._turn(self.now + 5.0)
            if self.journal.unfinished < left:
                until, left = self.now + 600, self.journal.unfinished
            self.mine(0, self.look)
            self._turn(self.now)
            if not self.journal.unfinished:
                self._turn(self.now + REQUEST_TIMEOUT_S)  # what still comes late
                self.mine(0, self.look)
                self._turn(self.now + 1.0)
                if not self.journal.unfinished:
                    return
        left = [(t, p, b) for t, p, b in self.journal.batches()]
        flows = {n: p.flow for n, p in self.journal._partitions.items()}
        raise Violation(f"no end in sight: {left[:3]} {flows}")

    def check(self) -> None:
        """Every accepted record: once, in order, or rejected for a reason."""
        for position, code in self.spool.rejected.items():
            # Also where the client died before it could tell.
            self.rejected.update(dict.fromkeys(self.put_aside[position], code))
        for number, leader in enumerate(self.leaders):
            seen: list[int] = [r for b in leader.log for r in b.records if r >= 0]
            promised = [r for r in seen if r in self.durable]
            if len(set(seen)) != len(seen):
                twice = sorted({r for r in seen if seen.count(r) > 1})
                raise Violation(f"in the log twice: {twice}")
            # What is put back comes behind what was appended since the loss.
            if promised != sorted(promised) and number not in self.unclean | self.overtaken:
                raise Violation(f"out of order in partition {number}: {promised}")
            expected = {
                r for r in self.durable if self.home[r] == number and r not in self.rejected
            } - self.deleted
            if self.options.loses:
                expected -= self.released
            if missing := expected - set(seen):
                raise Violation(f"lost: {sorted(missing)}")
            if self.options.durable_first and (extra := set(seen) & self.gone - self.durable):
                raise Violation(f"sent though it was never durable: {sorted(extra)}")
            if both := set(seen) & set(self.rejected):
                raise Violation(f"rejected and in the log: {sorted(both)}")
        if undone := set(self.accepted) - self.durable - self.gone:
            raise Violation(f"accepted and forgotten: {sorted(undone)}")


def _apart(persist: j.Persist) -> list[j.Persist]:
    if persist.atomic or not persist.batches or not (persist.marks or persist.after):
        return [persist]
    return [j.Persist(marks=persist.marks, after=persist.after), j.Persist(persist.batches)]


class Question:
    """As the pump asks: DescribeProducers, then the log itself."""

    def __init__(self, sim: Sim, ask: j.Ask) -> None:
        self.sim = sim
        self.ask = ask
        self.leader = sim.leaders[sim.journal.address(ask.destination)[1]]
        self.view: ProducerView | None = None
        self.polls = 0
        self.shrunk_to = -1
        self.whole = True
        self.by_state: Judgement | None = None
        self.read_from = 0
        self.leader_epoch = self.leader.epoch

    def start(self) -> None:
        self._next(self._describe if self.sim.options.describes else self._to_log)

    def _next(self, step: Callable[[], Any]) -> None:
        self.sim.mine(self.sim._delay(), step)

    def _describe(self) -> None:
        if self.sim._fails(self.ask):
            return
        known = self.leader.producers.get(self.ask.doubt[0].producer_id)
        if known is not None:
            self.view = ProducerView(known.epoch, known.last_sequence, known.timestamp)
        self._to_log()

    def _to_log(self) -> None:
        ask = self.ask
        judgement = judge_by_state(ask.doubt, self.view, acked_before=ask.acked_before)
        if ask.read_log or ask.fenced or judgement.verdict is Verdict.READ_LOG:
            self._next(self._begin)
            return
        epoch = self.sim.journal.leader_epoch(ask.destination)
        if judgement.present > 1 and epoch >= 0 and ask.from_offset > 0:
            self._next(lambda: self._prove(judgement, epoch))
        else:
            self._locate(judgement)

    def _prove(self, judgement: Judgement, epoch: int) -> None:
        if self.sim._fails(self.ask):
            return
        if self.leader.epoch_end(epoch) >= self.ask.from_offset:
            self._locate(judgement)
        else:
            self._next(self._begin)

    def _locate(self, judgement: Judgement) -> None:
        if judgement.present and self.ask.from_offset >= 0:
            self.by_state = judgement
            self._next(self._begin)
        else:
            self._judged(judgement, stable=False)

    def _begin(self) -> None:
        if self.sim._fails(self.ask):
            return
        begin, end = self.ask.from_offset, self.leader.end
        cut = end
        epoch = self.sim.journal.leader_epoch(self.ask.destination)
        if epoch >= 0 and begin > 0 and self.by_state is None:
            known = self.leader.epoch_end(epoch)
            cut = self.leader.start if known < 0 else min(end, known)
            self.whole = known >= begin
        if begin > cut:
            self.shrunk_to = cut
            begin = self.read_from = self.leader.start
        elif begin < 0:
            begin = 0
        doubt = self.ask.doubt
        if self.by_state is not None:
            if self.shrunk_to >= 0:
                self.shrunk_to, self.read_from = -1, 0
                self._judged(self.by_state, stable=False)
                return
            doubt = doubt[: self.by_state.present]
        self.scan = Scan(doubt, begin, end)
        if self.leader.start > begin:
            self.scan.page((), next_offset=begin, log_start_offset=self.leader.start)
        self._read()

    def _read(self) -> None:
        if self.scan.done:
            self._conclude()
        else:
            self._next(self._page)

    def _page(self) -> None:
        if self.sim._fails(self.ask):
            return
        scan, leader = self.scan, self.leader
        before = scan.next_offset
        visible = [
            b
            for b in leader.log
            if b.end > max(before, leader.start)
            and b.end <= leader.high_watermark
            and b.offset >= leader.start
        ][:3]
        scan.page(
            [(b.offset, b.end - 1, b.producer_id, b.epoch, b.sequence) for b in visible],
            next_offset=visible[-1].end if visible else before,
            log_start_offset=leader.start,
        )
        if scan.next_offset > before:
            self._read()
            return
        if self.by_state is not None:
            self._judged(self.by_state, stable=False)
            return
        self.polls += 1
        if self.polls > 100:
            self.sim.journal.ask_failed(self.ask.destination, "replicas lag", code=0, now=self.sim.now)
            return
        self.sim.mine(0.1, self._read)

    def _conclude(self) -> None:
        if self.leader_epoch != self.leader.epoch:
            self.sim.journal.ask_failed(self.ask.destination, "another leader", code=0, now=self.sim.now)
            return
        if self.by_state is not None:
            judgement, stable = judge_located(self.by_state, self.scan)
            self._judged(judgement, stable=stable)
            return
        whole = self.whole and self.shrunk_to < 0 and not self.ask.cut
        judgement = judge_by_both(self.scan, self.view, acked_before=self.ask.acked_before, whole=whole)
        self._judged(judgement, stable=True)

    def _judged(self, judgement: Judgement, *, stable: bool) -> None:
        self.sim.log(f"judged {judgement} stable={stable}")
        self.sim.journal.judged(
            self.ask.destination,
            judgement,
            stable=stable,
            shrunk_to=self.shrunk_to,
            leader_epoch=self.leader_epoch,
            read_from=self.read_from,
            now=self.sim.now,
        )


class Inquest:
    """As the pump surveys: where the log ends, then batch headers from the oldest acknowledged one on."""

    def __init__(self, sim: Sim, ask: j.SurveyAsk) -> None:
        self.sim = sim
        self.ask = ask
        self.leader = sim.leaders[sim.journal.address(ask.destination)[1]]
        self.polls = 0
        self.generation = sim.generation

    def start(self) -> None:
        self.sim.log(f"survey {self.ask.destination}")
        self.sim.mine(self.sim._delay(), self._begin)

    def _fails(self) -> bool:
        if self.sim.rng.random() < self.sim.weather.ask_fails:
            self.sim.journal.survey_failed(self.ask.destination, "no answer")
            return True
        return False

    def _begin(self) -> None:
        if not self._fails():
            self.leader_epoch = self.leader.epoch
            self.epoch_end, changed = -1, self.ask.from_offset
            if self.ask.leader_epoch >= 0:
                self.epoch_end = self.leader.epoch_end(self.ask.leader_epoch)
                changed = min(at for at in (changed, max(0, self.epoch_end)) if at >= 0)
            self.survey = Survey(self.ask.acked, self.leader.end, self.leader.start, changed)
            self._read()

    def _read(self) -> None:
        if not self.survey.done:
            self.sim.mine(self.sim._delay(), self._page)
            return
        loss = self.survey.loss()
        self.sim.log(f"surveyed {loss}")
        self._is_exact(loss)
        self.sim.journal.surveyed(
            self.ask.destination,
            loss,
            self.survey.end_offset,
            epoch_end_offset=self.epoch_end,
            topic_id=self.leader.topic_id,
            leader_epoch=self.leader_epoch,
        )

    def _is_exact(self, loss: Any) -> None:
        if self.generation != self.sim.generation:
            return  # it changed while it was read: the next one will tell
        there = {(b.producer_id, b.epoch, b.sequence) for b in self.leader.log}
        truth = tuple(
            i
            for i, b in enumerate(self.ask.acked)
            if (b.identity.producer_id, b.identity.producer_epoch, b.identity.base_sequence) not in there
            and b.next_offset > self.leader.start
        )
        if loss.indexes != truth:
            raise Violation(f"the survey says {loss.indexes} are lost, but {truth} are")

    def _page(self) -> None:
        if self._fails():
            return
        survey, leader = self.survey, self.leader
        before = survey.next_offset
        visible = [
            b
            for b in leader.log
            if b.end > max(before, leader.start)
            and b.end <= leader.high_watermark
            and b.offset >= leader.start
        ][:3]
        survey.page(
            [(b.offset, b.end - 1, b.producer_id, b.epoch, b.sequence) for b in visible],
            next_offset=visible[-1].end if visible else before,
            log_start_offset=leader.start,
        )
        if survey.next_offset > before:
            self._read()
            return
        self.polls += 1
        if self.polls > 100:
            self.sim.journal.survey_failed(self.ask.destination, "replicas lag")
            return
        self.sim.mine(0.1, self._read)
