"""The pump: one thread that owns journals and spools, and carries out what the journal decides.

Callers hand it sealed batches (`Parcel`) through a queue; the network thread hands it replies through the same
queue. Nobody else touches a journal or a spool. A turn of the loop takes everything that is there, lets the journal
decide, sends what may be sent, writes what must be written as one group with one fsync, and sleeps until something
comes or a timer is due. Group commit is nothing but that: whatever came during the last fsync shares the next one.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import heapq
import itertools
import logging
import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Reversible, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import kafka.errors as kafka_errors
import numpy as np
import numpy.typing as npt

from kafkasafe import events
from kafkasafe._core import batch as codec
from kafkasafe._core import journal as j
from kafkasafe._core import marks as m
from kafkasafe._core.codes import classify_code
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
from kafkasafe._core.patience import Patience
from kafkasafe._core.rejected import Refused
from kafkasafe._io.backoff import Backoff
from kafkasafe._io.clock import SleepingClock, read_clock
from kafkasafe._io.files import Files
from kafkasafe._io.inspection import inspect
from kafkasafe._io.lanes import LaneLock, SpoolDirectory
from kafkasafe._io.recovery import LostEntry, replay
from kafkasafe._io.refusals import RefusedDestination, counted, read_needed, refused
from kafkasafe._io.rejected import RejectedStore, data_of, retire, waits_of
from kafkasafe._io.siblings import LeftBehind, Siblings
from kafkasafe._io.spool import Spool
from kafkasafe._io.stats import Stats
from kafkasafe.cluster import api as t
from kafkasafe.config import ProducerConfig
from kafkasafe.errors import (
    DataLossError,
    DeliveryTimeoutError,
    KafkaSafeError,
    LaneBusyError,
    RejectedError,
    SpoolCorruptError,
    SpoolError,
    SpoolWriteError,
    UndecidableError,
    UsageError,
    WrongClusterError,
)
from kafkasafe.logs import EventLog, apart

__all__ = ["UNCHOSEN", "Parcel", "Pump", "given_partitions", "seems_given"]

log = EventLog("producer")

UNCHOSEN: Final = j.UNCHOSEN

_MEMORY_BYTES: Final = 64 * 1024 * 1024
"""Bytes of durable, unfinished batches that are kept in memory; others are read back when they are sent."""
_BACKLOG_BYTES: Final = 32 * 1024 * 1024
"""Bytes that may wait to be written."""
_ADOPT_EVERY_S: Final = 2.0
_LOOK_EVERY_S: Final = 5.0
"""A caller who waits looks by itself this often, should nobody ring."""
_LOOK_AROUND_EVERY_S: Final = 60.0
_TOPIC_POLL_S: Final = 1.0
_REFUSED_PAUSE_S: Final = 30.0
"""Longest pause between two tries while somebody has to mend what the cluster refuses: a right, a topic."""
_MISSING_GRACE_S: Final = 60.0
"""For so long a topic that is missing may only be new: brokers that just came up know none."""
_UNKNOWN_TOPIC: Final = 3
_ASKED_FOR_S: Final = 300.0  # as long as KafkaProducer remembers that a topic was asked for
_FORGET_GONE_S: Final = 600.0  # brokers that have just started answer as if they had no topics
_SPILL_EVERY_S: Final = 0.05
_SCAN_BYTES: Final = 1024 * 1024
_SCAN_PATIENCE: Final = 40  # polls of a log whose replicas lag
_SCAN_POLL_S: Final = 0.25
_CALM: Final = 4
"""A partition in trouble goes on when no more than so many of its requests of the last second failed or were questions.
What it does before it looks at that again takes five at most (epoch, log start, log end, log, send). So it is less than
ten a second, whatever is answered."""
_SEQUENCE_ERRORS: Final = frozenset(
    {
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "DUPLICATE_SEQUENCE_NUMBER",
        "UNKNOWN_PRODUCER_ID",
        "INVALID_PRODUCER_EPOCH",
    }
)
_ASTRAY_S: Final = 2.0
"""Another cluster is believed to have taken the place of ours when no other has answered for so long. Until then it
may be one address that leads astray, and other brokers are tried."""
_LAST_WRITES: Final = 4
"""How often a failing disk is tried at the very end."""
_PORTION_BYTES: Final = 4 * 1024 * 1024
_PORTION_BATCHES: Final = 1000
"""Rejected batches that are written with one fsync."""
_FREE_BYTES: Final = 4 * 1024 * 1024
"""Of the disk: left for marks. When they cannot be written, nothing can ever be deleted."""

_GIVEN: Final = "kafkasafe.partition"
"""Earlier versions kept a given partition in a header of this name."""
_INT32_DIGITS: Final = 10

Indexes = npt.NDArray[np.int64]


class _Bell:
    """An Event in which a signal handler that raises (Ctrl-C) leaves no lock taken: each method is one call into C."""

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # it rings already
            self._silent.release()

    def clear(self) -> None:
        self._silent.acquire(blocking=False)

    def wait(self, timeout_s: float) -> None:
        """Until it rings; silent again on return."""
        self._silent.acquire(timeout=timeout_s)


class _Waiting:
    """Callers who wait, each with a bell of its own: a Condition whose waiters hold no lock while they look.

    A signal handler may run in the middle of any Python code of the main thread. In a Condition's waiter it would find
    the lock taken by the very thread it runs on, and the pump could not get it before the handler returns.
    """

    def __init__(self) -> None:
        self._bells: list[_Bell] = []

    def __bool__(self) -> bool:
        return bool(self._bells)

    def notify_all(self) -> None:
        """What they wait for may have come."""
        for bell in tuple(self._bells):
            bell.set()

    def wait_for(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Until `ready()`; False when the time ended first."""
        end = None if timeout is None else time.monotonic() + timeout
        bell = _Bell()
        self._bells.append(bell)
        try:
            while True:
                bell.clear()
                if ready():
                    return True
                left = _LOOK_EVERY_S if end is None else end - time.monotonic()
                if left <= 0:
                    return False
                bell.wait(min(left, _LOOK_EVERY_S))
        finally:
            self._bells.remove(bell)


@dataclass(slots=True, eq=False)
class Parcel:
    """One encoded batch on its way: what callers see of it.

    Attributes:
        topic: Topic name.
        partition: Partition, UNCHOSEN while it is not known.
        data: The batch; None while it is only in the spool.
        size_bytes: Its size.
        count: Records.
        max_timestamp: Ms since the epoch.
        taken: The pump's thread has it.
        durable: It is on disk (or in the cluster).
        done: Its fate is final: see `error`, `base_offset`, `children`.
        error: Why it was not delivered.
        base_offset: In the partition; -1 if only known to be in the log.
        log_append_time: Ms, -1 unless the broker set it.
        children: It was divided: (child, indexes of its records in this one).
        parent: What it was divided from.
        given: Of records whose partitions are to be chosen, those whose partition was given: see `journal.Batch`.
        watcher: Called with it, and the lock held, when it is done; then no more. What it is divided into inherits it.
    """

    topic: str
    partition: int
    data: bytearray | None
    size_bytes: int
    count: int
    max_timestamp: int
    sealed_at: float = 0.0
    number: int = 0
    taken: bool = False
    durable: bool = False
    done: bool = False
    expired: bool = False
    error: BaseException | None = None
    base_offset: int = -1
    log_append_time: int = -1
    children: list[tuple[Parcel, Indexes]] | None = None
    parent: Parcel | None = None
    given: tuple[tuple[int, int, int], ...] | None = None
    watcher: Callable[[Parcel], None] | None = None
    batch: j.Batch | None = None
    loose: bool = False
    """Its bytes may still be in a socket's queue: changed only in a copy."""


@dataclass(frozen=True, slots=True)
class PumpState:
    """A moment of a pump.

    Attributes:
        gauges: By name.
        last_acked_offsets: By (topic, partition).
        refused: What the cluster refuses, confirmed.
    """

    gauges: Mapping[str, float]
    last_acked_offsets: Mapping[tuple[str, int], int]
    refused: Sequence[RefusedDestination]


@dataclass(slots=True)
class _Healing:
    """Lost acknowledged batches of one partition on their way back."""

    handles: set[int] = field(default_factory=set)
    records: int = 0
    first_offset: int = -1
    last_offset: int = -1


@dataclass(slots=True, eq=False)
class Lane:
    """One lane of the spool: its lock, log, journal, and the parcels in it."""

    name: str
    lock: LaneLock
    spool: Spool
    journal: j.Journal
    own: bool
    rejected: RejectedStore
    parcels: dict[int, Parcel] = field(default_factory=dict)
    kept_in: dict[int, Path | None] = field(default_factory=dict)
    """By handle, where rejected batches are that are not finished yet; None: nowhere (`spool="never"`)."""
    producer_id_wanted: bool = False
    producer_id_failures: int = 0
    released_at: int = -1
    healing: dict[int, _Healing] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    """Leader epoch by destination, when it was last looked whether the log still holds what was acknowledged."""
    unwritten: collections.deque[j.Persist] = field(default_factory=collections.deque)
    """What a failing disk does not take, in the order in which it is tried again."""
    write_attempt: int = 0
    retry_at: float = 0.0
    stopped: dict[int, float] = field(default_factory=dict)
    """Destinations whose next batch is damaged on disk, and when it is looked at again."""
    undivided: list[j.Divide] = field(default_factory=list)
    """What could not be read when it was to be divided."""
    read_attempt: int = 0
    unreadable_until: float = 0.0

    @property
    def held(self) -> bool:
        """A decision is not on disk yet: no other is made before it is. Batches that wait for room hold nothing up."""
        return any(unit.marks or unit.after for unit in self.unwritten)


Choose = Callable[[str, int, Sequence[bytes | None], Sequence[bytes | None]], Indexes]


class Pump:
    """See the module.

    Args:
        config: Options.
        transport: The network, started by the pump.
        directory: The opened spool directory.
        files: The disk.
        choose: (topic, partitions, keys, values) → partition of each record: for records that came before the
            topic was known.
        seal_due: Called each turn with the time; seals what lingered long enough and returns when to be called next.
        on_topic: Called when a topic's partition count is known and nothing waits for it any more.
        let_go: Entered by a caller that waits: without the locks that its own thread may have, in a signal handler.
    """

    def __init__(
        self,
        config: ProducerConfig,
        transport: t.Cluster,
        directory: SpoolDirectory,
        files: Files,
        *,
        choose: Choose,
        seal_due: Callable[[float], float],
        on_topic: Callable[[str, int], None],
        let_go: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._config = config
        self._transport = transport
        self._directory = directory
        self._files = files
        self._choose = choose
        self._seal_due = seal_due
        self._on_topic = on_topic
        self._let_go = let_go
        self._inbox: collections.deque[Callable[[], None]] = collections.deque()
        self._wake = _Bell()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_numbers = itertools.count()
        self._backoff = Backoff(config.retry_backoff_s, 1.0)
        self._clock = SleepingClock(self._slept)
        self._slow_backoff = Backoff(config.retry_backoff_s, _REFUSED_PAUSE_S)
        self._stop = False
        self._closing = False
        self._abandon = False
        self._retiring: tuple[float, Patience] | None = None
        self._then: Callable[[], None] = lambda: None
        self.left_records = 0
        """At the end: how many records wait on disk."""
        self._fences: dict[tuple[str, int], int] = {}
        self._asked_for: dict[str, float] = {}  # topics a caller wanted to exist, and when
        self._gone: dict[str, float] = {}  # deleted topics that nothing waits for, and since when
        self._troubles: dict[tuple[str, int], collections.deque[float]] = {}
        self._cluster_id: str | None = None
        # Only a default directory has others beside it that may be of the same cluster.
        self._siblings = Siblings(directory.path, files) if config.spool_dir_is_default else None
        self._reported: set[Path] = set()
        self._refused: dict[Path, tuple[tuple[str, int], ...]] = {}
        self._left_behind_records = 0
        self._stranger: WrongClusterError | None = None
        self._astray_since: float | None = None
        self._log = log.bind(client_id=config.client_id)
        self._memory = 0
        self._own: Lane
        self._lanes: list[Lane] = []
        # Shared with callers, under `lock`. It is taken by `with` only: a signal handler that raises (Ctrl-C) right
        # after an acquire() would leave it taken. Callers take it only while they have `SafeProducer._lock`: a signal
        # handler that calls the producer then knows that it comes in the middle of something, takes both once more,
        # and gives them up while it waits (`SafeProducer._let_go`).
        self.lock = threading.RLock()
        self.cond = self._waiters = _Waiting()
        self._numbers = itertools.count(1)
        self._open: OrderedDict[int, Parcel] = OrderedDict()
        self._undurable: OrderedDict[int, Parcel] = OrderedDict()
        self._backlog = 0
        self._used = 0
        self.failure: BaseException | None = None
        self.wrong_cluster: WrongClusterError | None = None
        """Another cluster answers in the place of ours, for which records wait; until ours answers again."""
        self._parked: dict[tuple[Lane, int], tuple[j.Batch, UndecidableError]] = {}
        self._shown: list[tuple[Lane, int]] = []
        """Of them, those that the last error raised speaks of."""
        self._damage: dict[tuple[str, int], SpoolCorruptError] = {}
        """Partitions held up by a batch that is damaged on disk (`on_corrupt="raise"`)."""
        self._losses: collections.deque[DataLossError | SpoolCorruptError] = collections.deque()
        self.counters: collections.Counter[str] = collections.Counter()
        self.stats = Stats()
        self.refused_sends = 0
        self.refused_topics: Mapping[str, RefusedDestination] = {}
        """By name, the topics that the cluster refuses as a whole. Replaced, never changed: read from any thread."""
        self._reasons: dict[tuple[str, int], str] = {}
        self.last_progress = time.monotonic()
        """When the fate of a batch came nearer: an answer that is not the same again, a grant, a topic's metadata."""
        self.pause_until = 0.0
        """The end of the longest pause whose end is known beforehand, monotonic seconds."""
        self._thread = threading.Thread(
            target=self._run, name=f"kafkasafe-pump-{config.client_id}", daemon=True
        )

    # -- callers' side ---------------------------------------------------------------------------------------------

    def open(self, lock: LaneLock) -> None:
        """Open the own lane, on the caller's thread so that its errors are the caller's.

        Raises:
            SpoolError: The lane cannot be opened.
        """
        self._own = self._open_lane(lock, own=True)
        self._lanes.append(self._own)
        self._publish_used()

    def start(self) -> None:
        """Start the threads: from now on nobody else looks into the journal."""
        self._transport.guard(
            on_stranger=lambda cluster_id: self._post(lambda: self._on_stranger(cluster_id)),
            on_home=lambda: self._post(self._on_home),
        )
        self._transport.create_only(self._may_create)
        self._transport.on_metadata(lambda refreshed: self._post(lambda: self._on_metadata(refreshed)))
        self._transport.start()
        self._thread.start()

    @property
    def lane(self) -> str:
        """Name of the own lane."""
        return self._own.name

    def unchosen_topics(self) -> list[str]:
        """Topics of which records wait for their partitions to be chosen."""
        return self._own.journal.unchosen_topics()

    def remembered_topics(self) -> dict[str, int]:
        """Partition counts remembered from an earlier life, for topics nothing waits for."""
        journal = self._own.journal
        return {
            name: topic.partition_count
            for name, topic in journal._topics.items()
            if topic.partition_count > 0 and not journal.waiting(name)
        }

    def poke(self) -> None:
        """Wake the pump."""
        self._wake.set()

    def _post(self, job: Callable[[], None]) -> None:
        self._inbox.append(job)
        self._wake.set()

    def room(self, needed: int) -> bool:
        """Whether `needed` more bytes can be accepted now. Call with `lock` held."""
        if self._config.in_memory:
            return self._backlog + needed <= self._config.spool_max_bytes
        limit = self._config.spool_max_bytes - self._config.spool_segment_bytes
        backlog = max(_BACKLOG_BYTES, 4 * self._config.max_record_bytes)
        if self._backlog + needed > backlog or self._used + self._backlog + needed > limit:
            return False
        try:
            return self._files.free_bytes(self._directory.path) >= self._backlog + needed + _FREE_BYTES
        except OSError:
            return True  # writing will tell

    def submit(self, parcels: Sequence[Parcel]) -> None:
        """Accept parcels, in order. Never blocks; `room` was asked before.

        A caller that was interrupted in here (Ctrl-C) calls again with the same ones, and so does a signal handler that
        comes in the middle: they are accepted once.
        """
        now = time.monotonic()
        with self.lock:
            failure = self.failure
            waiting = failure is None and any(not parcel.taken for parcel in parcels)
            for parcel in parcels if waiting else ():
                if parcel.taken:
                    continue
                if not parcel.number:
                    number = next(self._numbers)
                    # Unless a signal handler came just now and gave it one.
                    parcel.number = parcel.number or number  # type: ignore[redundant-expr]
                    parcel.sealed_at = now
                self._open[parcel.number] = parcel
                if parcel.number not in self._undurable:
                    self._undurable[parcel.number] = parcel
                    self._backlog += parcel.size_bytes
            if waiting:
                self._inbox.append(lambda: self._take(parcels))
            # The same handler may have waited until they were on disk, or delivered.
            for parcel in parcels:
                if parcel.durable and self._undurable.pop(parcel.number, None) is not None:
                    self._backlog -= parcel.size_bytes
                if parcel.done:
                    self._open.pop(parcel.number, None)
        if failure is not None:
            for parcel in parcels:
                self._abort(parcel, failure)
        self._wake.set()

    def wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `ready()`; False when the time ended first.

        It is evaluated on the caller's thread, without `lock`: it only looks, at what changes in one step. On return
        the pump has done with `lock` held all that it does together with what was waited for.
        """
        if timeout is not None:
            timeout = min(timeout, threading.TIMEOUT_MAX)
        if self.is_current_thread():
            if ready():
                return True
            raise UsageError(
                "on_event and dead_letter are called on the producer's own thread: who waits there for its work waits"
                " for himself. Nothing was changed; send() is possible, wait elsewhere"
            )
        with self._let_go():
            done = self.cond.wait_for(lambda: ready() or self.failure is not None, timeout) and ready()
            with self.lock:
                return done

    def flushed(self, number: int) -> bool:
        """Every parcel up to this number has its fate."""
        return _first(self._open, number + 1) > number

    def spooled(self, number: int) -> bool:
        """Every parcel up to this number is durable."""
        return _first(self._undurable, number + 1) > number

    def last_number(self) -> int:
        """Number of the newest parcel that has no fate."""
        return _last(self._open)

    def last_undurable(self) -> int:
        """Number of the newest parcel that is not durable."""
        return _last(self._undurable)

    def spill_all(self) -> None:
        """Put everything that is accepted on disk now (`spool="on_error"`)."""
        self._post(lambda: self._spill(0.0))

    @property
    def kept_bytes(self) -> int:
        """What counts against `spool_max_bytes`: the spool on disk, or (`spool="never"`) what waits in memory."""
        return self._backlog if self._config.in_memory else self._used

    def no_room(self) -> None:
        """A send found no room."""
        self.refused_sends += 1

    def refresh_topic(self, topic: str) -> None:
        """Ask for a topic's metadata; brokers that create topics create it."""
        self._asked_for[topic] = time.monotonic()
        self._transport.refresh_metadata([topic], lambda _: None)

    def state(self) -> PumpState:
        """What a scrape sees, from any thread: numbers that are a moment old."""
        lanes = list(self._lanes)
        journals = [lane.journal for lane in lanes]
        now_ms = _now_ms()
        oldest = self._open.get(_first(self._open, 0))
        age_s = 0.0
        if oldest is not None:
            age_s = time.monotonic() - oldest.sealed_at
            if not oldest.sealed_at:
                # Of an earlier life: when it was sealed is not known.
                age_s = (now_ms - oldest.max_timestamp) / 1000
        gauges: dict[str, float] = {
            "spool_bytes": self.kept_bytes,
            "spool_capacity_bytes": self._config.spool_max_bytes,
            "unfinished_batches": len(self._open),
            "undurable_batches": len(self._undurable),
            "spool_oldest_record_age_seconds": max(0.0, age_s),
        }
        identified = [stamp for journal in journals for stamp in journal.identified_since_ms()]
        gauges["producer_id_age_seconds"] = max((max(0, now_ms - s) / 1000 for s in identified), default=0.0)
        gauges["producer_id_expiration_seconds"] = self._config.state_age_s * 4
        gauges["spool_records"] = (
            0 if self._config.in_memory else sum(journal.spooled_records for journal in journals)
        )
        gauges["spool_left_behind_records"] = self._left_behind_records
        gauges["rejected_kept_records"] = sum(lane.rejected.records for lane in lanes)
        gauges["rejected_kept_bytes"] = sum(lane.rejected.size_bytes for lane in lanes)
        gauges["rejected_capacity_bytes"] = self._config.rejected_max_bytes
        gauges["spool_segments"] = sum(len(lane.spool.segments) for lane in lanes)
        gauges["in_doubt_batches"] = sum(journal.in_doubt for journal in journals)
        offsets = dict(self._own.journal.last_acked_offsets())
        return PumpState(gauges, offsets, [each for each in self.refused() if each.confirmed])

    def refused(self, topic: str | None = None) -> list[RefusedDestination]:
        """What waits because the cluster refuses it, of one topic or all, oldest first. From any thread."""
        found = refused([lane.journal for lane in list(self._lanes)])
        return [each for each in found if topic is None or each.topic == topic]

    def patience_ends(self, patience: Patience, began: float) -> float:
        """When somebody who waits for deliveries since `began` gives up, monotonic seconds."""
        return patience.ends_at(began, self.last_progress, self.pause_until)

    def _progressed(self) -> None:
        self.last_progress = time.monotonic()

    def idle(self) -> bool:
        """Nothing unfinished, in any lane; exact only for the own lane's parcels."""
        return not self._open

    def resume_parked(self, *, resend: bool) -> None:
        """Decide undecidable batches: send them again (they may be twice in the log), or take them as delivered.

        Those that the last error spoke of; where none was raised, all that are there. A batch that was parked since is
        for the next decision.
        """
        # Forgotten at once: the caller's next `send` must not raise what was just decided.
        with self.lock:
            decided = [
                (key[0], self._parked.pop(key)[0])
                for key in self._shown or list(self._parked)
                if key in self._parked
            ]
            self._shown = []

        def decide() -> None:
            for lane, batch in decided:
                if batch.state is j.State.UNDECIDABLE:
                    lane.journal.decide(batch, resend=resend)

        self._post(decide)

    @property
    def parked(self) -> bool:
        """Whether a batch waits for a decision."""
        return bool(self._parked)

    def raise_parked(self) -> None:
        """Raise the error about all batches that wait for a decision, if there are any."""
        if not self._parked:
            return
        with self.lock:
            self._shown = list(self._parked)
            errors = [error for _, error in self._parked.values()]
        if len(errors) > 1:
            more = "; ".join(error.evidence for error in errors[1:4])
            note = f" The same of {len(errors) - 1} more batches: {more}{'; …' if len(errors) > 4 else ''}"
            raise UndecidableError(f"{errors[0].args[0]}.{note}", evidence=errors[0].evidence)
        if errors:
            raise UndecidableError(*errors[0].args, evidence=errors[0].evidence)

    def next_loss(self) -> DataLossError | SpoolCorruptError | None:
        """A loss that was not raised yet, the oldest first; each is given once."""
        if not self._losses:
            return None
        with self.lock:
            return self._losses.popleft() if self._losses else None  # another caller may have taken it

    def stop(self, timeout_s: float) -> bool:
        """End the thread, close lanes and network. What is on disk stays there for the next owner."""
        self._closing = True
        self._stop = True
        self._wake.set()
        if self.is_current_thread():
            return False
        with self._let_go():
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self._abandon = True
                self._wake.set()
                self._thread.join(5.0)
        return not self._thread.is_alive()

    def retire(self, patience: Patience, then: Callable[[], None]) -> None:
        """End by itself when everything is delivered, or patience ends. Takes no lock: the garbage collector may call.

        Args:
            patience: From now on.
            then: Called on the pump's thread at its end.
        """

        def begin() -> None:
            # What the producer itself did not seal.
            self._seal_due(float("inf"))
            if self._config.spool == "on_error":
                self._spill(0.0)
            self._retiring = began, patience

        began = time.monotonic()
        self._then = then
        self._post(begin)

    def hurry(self, patience: Patience, timeout_s: float) -> bool:
        """A pump that retires ends with this patience, counted from when it began to; whether it ended in time."""
        self._post(lambda: self._hurry(patience))
        return self.join(timeout_s)

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; whether it came."""
        self._thread.join(timeout_s)
        return self.ended()

    def _hurry(self, patience: Patience) -> None:
        if self._retiring is not None:
            self._retiring = self._retiring[0], patience

    def _retired(self) -> bool:
        """Whether a pump that retires is at its end."""
        if self._retiring is None:
            return False
        began, patience = self._retiring
        hopeless = self.parked or self.wrong_cluster is not None
        return (
            (self.idle() and not self._inbox)
            or hopeless
            or self.patience_ends(patience, began) <= time.monotonic()
        )

    def is_current_thread(self) -> bool:
        """Whether the caller is the pump's own thread: a hook, or a handler."""
        return threading.current_thread() is self._thread

    def ended(self) -> bool:
        """Whether the thread is over: nothing is resolved any more."""
        return not self._thread.is_alive()

    def nudge(self) -> None:
        """Have callers who wait look again."""
        self.cond.notify_all()

    def forked(self, error: BaseException) -> None:
        """In a forked child: nobody works here, and whoever held the lock is gone."""
        self.lock = threading.RLock()
        self.cond = self._waiters = _Waiting()
        self.failure = error

    # -- the loop --------------------------------------------------------------------------------------------------

    @apart()
    def _run(self) -> None:
        try:
            self._timer(0.0, self._adopt)
            self._timer(_TOPIC_POLL_S, self._poll_topics)
            self._timer(self._config.acked_loss_check_s, self._check_acked)
            if self._config.spool == "on_error":
                self._timer(_SPILL_EVERY_S, self._spill_timer)
            if self._config.delivery_timeout_s is not None:
                self._timer(_SPILL_EVERY_S, self._expire)
            while not self._stop:
                self._turn()
            self._last_turn()
        except SpoolError as error:
            # Not with its traceback: it says what is safe and what to do.
            self._log.error(
                "The producer ended: %s", error, error=type(error).__name__, event="producer_ended"
            )
            self._fail(error)
        except BaseException as error:
            self._log.exception(
                "The producer ended by an error; %s",
                "what was not acknowledged is lost with it, unless the cluster has it"
                if self._config.in_memory
                else "everything durable is safe in the spool",
                event="producer_ended",
            )
            self._fail(error)
        finally:
            self._shut()
            self._then()
            self._then = lambda: None

    def _turn(self) -> None:
        self._wake.clear()
        due = self._seal_due(time.monotonic())
        jobs = len(self._inbox)
        for _ in range(jobs):
            self._inbox.popleft()()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        for lane in list(self._lanes):
            self._drive(lane)
        if self._stranger is not None:
            # What was accepted goes to disk; then this producer ends.
            self._seal_due(float("inf"))
            if not self._inbox:
                if self._config.spool == "on_error":
                    self._spill(0.0)
                    self._drive(self._own)
                raise self._stranger
        if self._retired():
            self._stop = True
        if self._inbox or self._stop:
            return
        if self._retiring is not None:
            due = min(due, self.patience_ends(self._retiring[1], self._retiring[0]))
        if self._timers:
            due = min(due, self._timers[0][0])
        self._wake.wait(max(0.0, min(due - time.monotonic(), 5.0)))

    def _last_turn(self) -> None:
        """What was accepted goes to disk also when `close` was interrupted, or called by a hook."""
        self._seal_due(float("inf"))
        if self._inbox and not self._abandon:
            for _ in range(len(self._inbox)):
                self._inbox.popleft()()
            if self._config.spool == "on_error":
                self._spill(0.0)
            for lane in list(self._lanes):
                self._drive(lane)

    def _timer(self, delay_s: float, job: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._timer_numbers), job))

    def _drive(self, lane: Lane) -> None:
        """Carry out what the journal decides until there is nothing more to do now."""
        while not self._abandon and not lane.held and time.monotonic() >= lane.unreadable_until:
            ready = lane.journal.ready(self._clock.now(), _now_ms())
            for notice in ready.notices:
                self._notice(lane, notice)
            # A spill may name batches that this very turn resolves or divides: written while their bytes are here.
            spilled = bool(ready.persist.batches) and lane.own and self._config.spool != "always"
            if spilled:
                self._persist(lane, ready.persist)
            divided = self._divide_all(lane, ready.divides)
            for aside in ready.asides:
                self._put_aside(lane, aside)
            if self._stranger is None:
                if ready.sends:
                    self._send(lane, ready.sends)
                for ask in ready.asks:
                    self._ask(lane, ask)
                for survey in ready.surveys:
                    topic, partition = lane.journal.address(survey.destination)
                    inquest = _Inquest(self, lane, survey, topic, partition)
                    self._when_calm(topic, partition, inquest.start)
                for check in ready.checks:
                    self._check_epoch(lane, check)
            for wait in ready.waits:
                self._wait(lane, wait)
            if ready.resolved:
                self._resolve(lane, ready.resolved)
            if (
                ready.wants_producer_id
                and not lane.producer_id_wanted
                and (lane.own or lane.journal.unfinished)
            ):
                self._want_producer_id(lane)
            if ready.persist and not spilled:
                self._persist(lane, ready.persist)
            elif not (spilled or divided or ready.resolved or ready.sends or ready.asides):
                break
        self._release(lane)

    # -- lanes -----------------------------------------------------------------------------------------------------

    def _open_lane(self, lock: LaneLock, *, own: bool) -> Lane:
        config = self._config
        journal = j.Journal(
            durable_first=config.spool == "always" or not own,
            window=config.window,
            state_age_s=config.state_age_s,
            request_timeout_s=config.request_timeout_s,
            refused_timeout_s=config.refused_timeout_s,
            missing_grace_s=_MISSING_GRACE_S,
            heal=config.on_acked_loss == "heal",
            heal_recreated=config.heal_recreated_topics,
        )
        try:
            spool, entries = Spool.open(
                lock.path,
                files=self._files,
                segment_bytes=config.spool_segment_bytes,
                sync=config.spool_sync,
                snapshot=journal.snapshot,
                on_corrupt=config.on_corrupt,
                clock_ms=_now_ms,
            )
        except BaseException:
            lock.release()
            raise
        name = self._lane_name(lock.path)
        lane = Lane(name, lock, spool, journal, own, RejectedStore(self._files, lock.path, spool.lane_id))
        self.stats.corrupt += sum(isinstance(entry, LostEntry) for entry in entries)
        replay(entries, journal)
        journal.released(spool.first_position)
        journal.recovered(self._clock.now(), read_clock())
        self._open_rejected(lane)
        waiting = list(journal.batches())
        for topic, partition, batch in waiting:
            parcel = Parcel(
                topic, partition, None, batch.size_bytes, batch.count, batch.max_timestamp, durable=True
            )
            parcel.batch = batch
            self._register(lane, parcel, batch)
            if own:
                with self.lock:
                    parcel.number = next(self._numbers)
                    self._open[parcel.number] = parcel
        if waiting:
            records = sum(batch.count for _, _, batch in waiting)
            doubt = sum(batch.identity is not None for _, _, batch in waiting)
            self.stats.replayed_records += records
            self._log.info(
                "%s: %d batches (%d records) of an earlier life",
                lane.name,
                len(waiting),
                records,
                lane=lane.name,
                batches=len(waiting),
                records=records,
                event="spool_recovered",
            )
            if own:
                self._emit(events.SpoolRecovered(lane.name, len(waiting), records, doubt))
            else:
                self._emit(events.LaneAdopted(lane.name, len(waiting), records))
            self._transport_topics(topic for topic, _, _ in waiting)
        return lane

    def _open_rejected(self, lane: Lane) -> None:
        """What is in `rejected/` never keeps a lane from being opened."""
        self._retire(lane)
        try:
            troubles = lane.rejected.open(waits_of(lane.journal), lane.journal.resent)
        except OSError as error:
            troubles = [f"{lane.name}/rejected: {error}"]
        for trouble in troubles:
            self._log.warning(
                "Rejected records cannot be read: %s", trouble, lane=lane.name, event="rejected_unreadable"
            )
        if lane.rejected.records:
            self._log.warning(
                "%s: %d rejected record%s kept in %s; `kafkasafe spool resend` sends them again",
                lane.name,
                lane.rejected.records,
                " is" if lane.rejected.records == 1 else "s are",
                lane.lock.path / "rejected",
                lane=lane.name,
                records=lane.rejected.records,
                event="rejected_kept",
            )

    def _retire(self, lane: Lane) -> None:
        """Files whose records were put back into this lane are deleted; until then no segment with their mark goes."""
        for mark in lane.journal.resent:
            try:
                retire(self._files, lane.lock.path.parent, mark)
            except OSError as error:
                self._log.seldom(
                    logging.WARNING,
                    "resent_not_deleted",
                    lane.name,
                    "%s/rejected/%s was resent and cannot be deleted: %s",
                    mark.lane,
                    mark.file,
                    error,
                    lane=lane.name,
                    error=type(error).__name__,
                )
                return
            lane.journal.retired(mark)

    def _slept(self, seconds: float, now: float) -> None:
        for lane in list(self._lanes):
            lane.journal.slept(seconds, now)
        self._log.info("This machine slept for %.0f s", seconds, seconds=seconds, event="machine_slept")

    def _transport_topics(self, topics: Iterable[str]) -> None:
        self._transport.refresh_metadata(sorted(set(topics)), lambda _: None)

    def _adopt(self) -> None:
        """Take lanes whose owner died, and let go of those that are drained."""
        for lane in self._lanes:
            self._retire(lane)
            lane.rejected.refresh()
        for lane in [lane for lane in self._lanes if not lane.own]:
            if not lane.journal.unfinished:
                self._lanes.remove(lane)
                self._publish_refused()
                self._close_lane(lane)
        if self._closing:
            return
        try:
            found = self._directory.dead_lanes()
        except SpoolError as error:
            # Too many open files, a directory that cannot be read for a moment: the own lane works all the same.
            self._log.seldom(
                logging.WARNING,
                "lanes_unreadable",
                "",
                "Lanes left behind cannot be looked for: %s",
                error,
                error=type(error).__name__,
            )
            found = []
        for lock in found:
            try:
                lane = self._open_lane(lock, own=False)
            except SpoolError as error:
                self._log.seldom(
                    logging.WARNING,
                    "lane_not_adopted",
                    lock.path.name,
                    "%s was left behind and cannot be adopted: %s",
                    lock.path.name,
                    error,
                    lane=lock.path.name,
                    error=type(error).__name__,
                )
                continue
            self._lanes.append(lane)
        self._publish_used()
        self._timer(_ADOPT_EVERY_S, self._adopt)

    def _lane_name(self, path: Path) -> str:
        """With its directory, where that is another one than this producer's."""
        return path.name if path.parent == self._directory.path else f"{path.parent.name}/{path.name}"

    # -- lanes beside the default directory --------------------------------------------------------------------------

    def _look_around(self) -> None:
        """What was left behind under another spelling of the addresses, or another client id."""
        if self._siblings is None or self._closing:
            return
        siblings = self._siblings

        def look() -> None:
            # Reading may take long: on a thread of its own.
            found = siblings.look(lambda: self._closing)
            self._post(lambda: self._looked_around(found))

        threading.Thread(target=look, name=f"kafkasafe-look-{self._config.client_id}", daemon=True).start()

    def _looked_around(self, found: Sequence[LeftBehind]) -> None:
        if self._closing or self._stranger is not None:
            return
        left = 0
        for sibling in found:
            if sibling.cluster_id not in {None, self._cluster_id}:
                continue  # they wait for another cluster
            # Who has another client id may have other rights; and nothing goes to a cluster by a guess.
            if sibling.same_client and sibling.cluster_id is not None and self._adopt_sibling(sibling):
                continue
            left += sibling.records
            self._report(sibling)
        self._left_behind_records = left
        self._publish_used()
        self._timer(_LOOK_AROUND_EVERY_S, self._look_around)

    def _adopt_sibling(self, sibling: LeftBehind) -> bool:
        """Whether its lanes are drained now, by us or by others."""
        if self._refused.get(sibling.path) == sibling.content:
            return False
        try:
            directory = SpoolDirectory.look(sibling.path, files=self._files)
            for number in sibling.lanes:
                try:
                    lock = directory.take_lane(number)
                except LaneBusyError:
                    continue
                # Under the lock: while a lane is owned its directory does not change to another cluster.
                if directory.cluster_id() != self._cluster_id:
                    lock.release()
                    return False
                self._lanes.append(self._open_lane(lock, own=False))
        except SpoolError as error:
            self._refused[sibling.path] = sibling.content
            self._log.warning(
                "%s was left behind and cannot be adopted: %s",
                sibling.path,
                error,
                path=str(sibling.path),
                error=type(error).__name__,
                event="lane_not_adopted",
            )
            return False
        return True

    def _report(self, sibling: LeftBehind) -> None:
        if sibling.path in self._reported:
            return
        self._reported.add(sibling.path)
        servers = self._config.kafka["bootstrap_servers"]
        address = servers if isinstance(servers, str) else ",".join(sorted(servers))
        command = shlex.join(["kafkasafe", "spool", "drain", str(sibling.path), "-b", address])
        whose = (
            "for a cluster that was never reached; if it is this one, deliver them with"
            if sibling.cluster_id is None
            else "for this cluster, of another client id; deliver them with"
        )
        self._log.warning(
            "%d records wait in %s, which no process owns, %s: %s",
            sibling.records,
            sibling.path,
            whose,
            command,
            path=str(sibling.path),
            records=sibling.records,
            batches=sibling.batches,
            event="spool_left_behind",
        )
        self._emit(
            events.SpoolLeftBehind(
                str(sibling.path), sibling.cluster_id, sibling.batches, sibling.records, command
            )
        )

    def _close_lane(self, lane: Lane) -> None:
        for attempt in range(1, _LAST_WRITES):
            if self._write_out(lane):
                break
            time.sleep(self._backoff.pause_s(attempt))
        try:
            position = lane.journal.release_position
            lane.spool.release(position, self._config.retain_acked_bytes, self._retain_since_ms())
            quiet = None
            if self._transport.closed and self._config.spool_sync != "os":
                quiet = lane.journal.quiet(self._clock.now(), read_clock())
            lane.spool.close(closed_mark=True, marks=() if quiet is None else (quiet,))
        except SpoolError as error:
            self._log.warning(
                "%s could not be closed in order; nothing is lost: %s",
                lane.name,
                error,
                lane=lane.name,
                error=type(error).__name__,
                event="lane_not_closed",
            )
        finally:
            lane.lock.release()

    def _shut(self) -> None:
        if not self._config.in_memory:
            self.left_records = sum(lane.journal.spooled_records for lane in self._lanes)
        # First: what the lanes say of when the last request was sent has to be true.
        self._transport.close(2.0)
        for lane in self._lanes:
            with contextlib.suppress(Exception):
                self._close_lane(lane)
        self._fail(
            DeliveryTimeoutError(
                "The producer was closed before the cluster acknowledged this record. If it was durable it is safe in"
                " the spool, and the next producer on this spool directory delivers it: do not send it again"
            ),
            final=False,
        )

    def _fail(self, error: BaseException, *, final: bool = True) -> None:
        with self.lock:
            if final:
                self.failure = error
            undone = list(self._open.values())
            lost: KafkaSafeError = SpoolWriteError(
                f"{len(self._undurable)} batches of accepted records were not on disk when the producer ended: they are"
                " lost with it unless the cluster has them. Everything that durable(), flush_spool() or get() confirmed"
                " is safe"
            )
            if self._config.in_memory:
                lost = error = self._lost_from_memory(error, final=final)
            if self._undurable and self.failure is None:
                self.failure = lost
            self._open.clear()
            self._undurable.clear()
            self.cond.notify_all()
        for parcel in undone:
            self._abort(parcel, error if parcel.durable or final else lost)

    def _lost_from_memory(self, error: BaseException, *, final: bool) -> DeliveryTimeoutError:
        """`spool="never"`: the end of what no answer came for. Called with `lock` held."""
        leaves = [leaf for parcel in self._undurable.values() for leaf in _leaves(parcel) if not leaf.durable]
        records = sum(leaf.count for leaf in leaves)
        why = f"it ended by an error ({error!r})" if final else "it was closed"
        message = (
            f"{counted(records, 'record')} had not been acknowledged when {why}. With spool='never' nothing else has"
            " them: they are lost, unless the cluster has them and its answer is missing. A program that sends them"
            " again may have those twice"
        )
        if records:
            self._log.error("%s", message, records=records, event="records_lost")
        return DeliveryTimeoutError(message)

    # -- in: parcels -----------------------------------------------------------------------------------------------

    def _take(self, parcels: Sequence[Parcel]) -> None:
        lane = self._own
        with self.lock:
            parcels = [parcel for parcel in parcels if not parcel.taken]
            for parcel in parcels:
                parcel.taken = True
        for parcel in parcels:
            self.counters["records_accepted"] += parcel.count
            self.stats.records[parcel.topic, "accepted"] += parcel.count
            topic = lane.journal.topic(parcel.topic)
            if parcel.partition == UNCHOSEN:
                if topic is None or topic.partition_count < 1:
                    self._transport_topics([parcel.topic])
                elif not lane.journal.waiting(parcel.topic):
                    # Sealed just before the topic became known: divided at once, so that order holds.
                    self._divide_in_memory(lane, parcel, topic.partition_count)
                    continue
            self._seal(lane, parcel)

    def _seal(self, lane: Lane, parcel: Parcel) -> None:
        destination = lane.journal.destination(parcel.topic, parcel.partition)
        batch = lane.journal.seal(
            destination,
            count=parcel.count,
            size_bytes=parcel.size_bytes,
            max_timestamp=parcel.max_timestamp,
            given=parcel.given,
        )
        self._register(lane, parcel, batch)

    def _register(self, lane: Lane, parcel: Parcel, batch: j.Batch) -> None:
        parcel.batch = batch
        lane.parcels[batch.handle] = parcel

    def _divide_in_memory(self, lane: Lane, parcel: Parcel, partitions: int) -> None:
        data = parcel.data
        if data is None:
            raise AssertionError("A parcel that was just accepted has its bytes")
        columns = codec.decode(data)
        given = given_partitions(columns, parcel.given)
        children = self._split_by_partition(parcel, columns, given, partitions)
        self._adopt_children(parcel, children)
        for child, _ in children:
            self._seal(lane, child)
        parcel.data = None

    @staticmethod
    def _adopt_children(parcel: Parcel, children: list[tuple[Parcel, Indexes]]) -> None:
        """Callers who wait for the parent wait for all its children."""
        for child, _ in children:
            child.parent = parcel
            child.sealed_at = parcel.sealed_at
        parcel.children = children
        # In this order: a caller sets the watcher, then looks for children.
        for child, _ in children:
            child.watcher = parcel.watcher

    def _split_by_partition(
        self, parcel: Parcel, columns: codec.Columns, given: Mapping[int, int], partitions: int
    ) -> list[tuple[Parcel, Indexes]]:
        rest = [i for i in range(columns.header.count) if i not in given]
        chosen = np.empty(columns.header.count, np.int64)
        if rest:
            keys, values = [columns.keys[i] for i in rest], [columns.values[i] for i in rest]
            chosen[rest] = self._choose(parcel.topic, partitions, keys, values)
        for index, partition in given.items():
            chosen[index] = partition
        return [
            (self._reencode(parcel, columns, indexes, int(partition)), indexes)
            for partition in np.unique(chosen)
            if (indexes := np.flatnonzero(chosen == partition)).size
        ]

    def _reencode(self, parcel: Parcel, columns: codec.Columns, indexes: Indexes, partition: int) -> Parcel:
        order = indexes.tolist()
        headers = {at: columns.headers[i] for at, i in enumerate(order) if i in columns.headers}
        data = codec.encode(
            [columns.keys[i] for i in order],
            [columns.values[i] for i in order],
            timestamps=[columns.timestamps[i] for i in order],
            headers=headers or None,
            compression=columns.header.compression,
        )
        stamp = max(columns.timestamps[i] for i in order)
        return Parcel(parcel.topic, partition, data, len(data), len(order), stamp, sealed_at=parcel.sealed_at)

    def _divide_all(self, lane: Lane, divides: Sequence[j.Divide]) -> bool:
        """In order; where the spool cannot be read for a moment (too many open files) the lane pauses."""
        # What could not be read the journal may have named again, or given up.
        unique = {divide.batch.handle: divide for divide in (*lane.undivided, *divides)}
        todo = [divide for handle, divide in unique.items() if handle in lane.parcels]
        lane.undivided = []
        stuck: list[j.Divide] = []
        stopped = {destination for destination, until in lane.stopped.items() if until > time.monotonic()}
        progress = False
        for index, divide in enumerate(todo):
            if divide.batch.destination in stopped:
                stuck.append(divide)  # nothing overtakes what is damaged
                continue
            try:
                self._divide(lane, divide)
                progress = True
                if self._damage:
                    self._damage.pop(lane.journal.address(divide.batch.destination), None)
            except SpoolCorruptError as error:
                if self._damaged(lane, divide.batch, error):
                    lane.journal.damaged(divide.batch, str(error))
                    progress = True
                else:
                    stopped.add(divide.batch.destination)
                    stuck.append(divide)
                continue
            except SpoolError as error:
                stuck += todo[index:]
                lane.read_attempt += 1
                pause_s = self._backoff.pause_s(lane.read_attempt)
                lane.unreadable_until = time.monotonic() + pause_s
                self._timer(pause_s, lambda: None)  # wakes
                self._log.seldom(
                    logging.WARNING,
                    "spool_read_failed",
                    lane.name,
                    "%s: a read failed, it is tried again: %s",
                    lane.name,
                    error,
                    lane=lane.name,
                    attempt=lane.read_attempt,
                    error=type(error).__name__,
                )
                break
            lane.read_attempt = 0
        lane.undivided = stuck
        return progress

    def _divide(self, lane: Lane, divide: j.Divide) -> None:
        columns = codec.decode(self._bytes(lane, lane.parcels[divide.batch.handle], divide.batch))
        parent = lane.parcels.pop(divide.batch.handle)
        if divide.refused:
            topic, partition = lane.journal.address(divide.batch.destination)
            bad = {index for index, _ in divide.batch.bad_records if 0 <= index < parent.count}
            children = [
                (self._reencode(parent, columns, indexes, partition), indexes)
                for indexes in _pieces(parent.count, bad)
            ]
            self._log.seldom(
                logging.INFO,
                "batch_divided",
                f"{topic}-{partition}",
                "%s-%d: a batch of %d records is divided: %s",
                topic,
                partition,
                parent.count,
                divide.batch.message,
                lane=lane.name,
                topic=topic,
                partition=partition,
                records=parent.count,
                code=divide.batch.code,
            )
        else:
            known = lane.journal.topic(parent.topic)
            given = given_partitions(columns, divide.batch.given)
            partitions = known.partition_count if known else 1
            children = self._split_by_partition(parent, columns, given, partitions)
            bad = set()
        described = [
            (
                lane.journal.destination(child.topic, child.partition),
                child.count,
                child.size_bytes,
                child.max_timestamp,
                bool(bad) and int(indexes[0]) in bad,
            )
            for child, indexes in children
        ]
        self._progressed()
        made = lane.journal.replaced(divide.batch, described)
        self._adopt_children(parent, children)
        for (child, _), batch in zip(children, made, strict=True):
            child.durable = parent.durable
            self._register(lane, child, batch)
        self._drop(parent)

    # -- out: disk -------------------------------------------------------------------------------------------------

    def _persist(self, lane: Lane, persist: j.Persist) -> None:
        """Write one group and make it durable, now, or as soon as the disk takes it."""
        if lane.unwritten:
            lane.unwritten.extend(_apart(persist))
        else:
            lane.unwritten.append(persist)
        if lane.write_attempt == 0 or persist.marks or persist.after:
            self._write_out(lane)

    def _write_out(self, lane: Lane) -> bool:
        """Write what is unwritten, decisions first: on a full disk they are what makes room. False when it failed."""
        while lane.unwritten:
            index = next((i for i, unit in enumerate(lane.unwritten) if unit.marks or unit.after), 0)
            unit = lane.unwritten[index]
            del lane.unwritten[index]
            try:
                self._write_unit(lane, unit)
            except SpoolWriteError as error:
                for part in reversed(_apart(unit, smaller=True)):
                    lane.unwritten.insert(index, part)
                self._stall(lane, error)
                return False
            lane.write_attempt = 0
        return True

    def _stall(self, lane: Lane, error: SpoolWriteError) -> None:
        lane.write_attempt += 1
        self.counters["spool_write_errors"] += 1
        self._log.seldom(
            logging.WARNING,
            "spool_write_failed",
            lane.name,
            "%s: a write failed (%s). Nothing promised is affected; it is tried again. If the disk is full, make room",
            lane.name,
            error,
            lane=lane.name,
            attempt=lane.write_attempt,
            error=type(error).__name__,
        )
        self._emit(events.SpoolWriteFailed(lane.name, str(error), lane.write_attempt))
        if lane.retry_at <= time.monotonic():
            pause_s = self._backoff.pause_s(lane.write_attempt)
            lane.retry_at = time.monotonic() + pause_s
            self._timer(pause_s, lambda: self._retry_write(lane))

    def _retry_write(self, lane: Lane) -> None:
        lane.retry_at = 0.0
        if lane in self._lanes:
            self._write_out(lane)

    def _write_unit(self, lane: Lane, persist: j.Persist) -> None:
        if self._config.spool_sync != "each" or len(persist.batches) < 2 or persist.atomic:
            self._write_group(lane, persist)
            return
        # One fsync for each batch. A failure leaves in `persist` what was not durable yet.
        while persist:
            first = j.Persist(persist.batches[:1], persist.marks, after=persist.after)
            self._write_group(lane, first)
            del persist.batches[:1]
            persist.marks, persist.after = [], []

    def _write_group(self, lane: Lane, persist: j.Persist) -> None:
        parcels = [lane.parcels[batch.handle] for batch in persist.batches]
        positions: list[int] = []
        if parcels or persist.marks:
            data = [
                (batch.destination, self._stamped(parcel, batch))
                for parcel, batch in zip(parcels, persist.batches, strict=True)
            ]
            started = time.monotonic()
            try:
                for marks, part in _groups(persist, data):
                    positions += lane.spool.write_group(marks, part, atomic=persist.atomic)
                lane.spool.sync()
            finally:
                # Also after a failure: with spool="on_error" the same bytes may go over the wire next.
                for parcel in parcels:
                    if parcel.data is not None:
                        codec.stamp_address(parcel.data, 0, -1)
            self.counters["fsync_count"] += 1
            seconds = time.monotonic() - started
            self.counters["fsync_us"] += int(seconds * 1e6)
            self.stats.fsync.observe(seconds)
        lane.journal.persisted(persist, positions, lane.spool.next_position)
        if self._config.in_memory:
            return  # nothing is safe yet, and the journal's copy is no reason to forget the bytes
        for parcel in parcels:
            self._memory += parcel.size_bytes
        if parcels:
            self._made_durable(parcels)
            if self._memory > _MEMORY_BYTES:
                for parcel in parcels:
                    self._drop(parcel)
        self._publish_used()

    def _stamped(self, parcel: Parcel, batch: j.Batch) -> bytearray:
        """The batch's bytes with its id in them, to be written."""
        data = parcel.data
        if data is None:
            raise AssertionError(f"The bytes of {batch} are gone before they were written")
        if parcel.loose:
            data = parcel.data = bytearray(data)
            parcel.loose = False
        _stamp(data, batch.identity)
        return data

    def _made_durable(self, parcels: Iterable[Parcel]) -> None:
        with self.lock:
            for parcel in parcels:
                self._durable(parcel)
            if self._waiters:
                self.cond.notify_all()

    def _durable(self, parcel: Parcel) -> None:
        parcel.durable = True
        if self._undurable.pop(parcel.number, None) is not None:
            self._backlog -= parcel.size_bytes
            self.stats.durable.observe(time.monotonic() - parcel.sealed_at, parcel.count)
        parent = parcel.parent
        if parent is not None and not parent.durable and all(c.durable for c, _ in parent.children or ()):
            self._durable(parent)

    def _drop(self, parcel: Parcel) -> None:
        """Forget the bytes; the spool has them."""
        if parcel.data is not None:
            if parcel.durable:
                self._memory -= parcel.size_bytes
            parcel.data = None

    def _bytes(self, lane: Lane, parcel: Parcel, batch: j.Batch) -> bytearray:
        """The batch as it goes over the wire."""
        data = parcel.data
        if data is None:
            data = lane.spool.read(batch.position)
            parcel.loose = False
            codec.stamp_address(data, 0, -1)
        if _differs(data, batch.identity):
            if parcel.loose:
                data = bytearray(data)
            _stamp(data, batch.identity)
            if parcel.data is not None:
                parcel.data = data
        return data

    def _release(self, lane: Lane) -> None:
        position = lane.journal.release_position
        if position == lane.released_at:
            return
        lane.released_at = position
        retain = self._config.retain_acked_bytes
        if self._used > self._config.spool_max_bytes // 2:
            retain = 0
        try:
            freed = lane.spool.release(position, retain, self._retain_since_ms())
        except SpoolError as error:
            self._log.seldom(
                logging.WARNING,
                "segments_not_deleted",
                lane.name,
                "%s: old segments cannot be deleted: %s",
                lane.name,
                error,
                lane=lane.name,
                error=type(error).__name__,
            )
            return
        if freed:
            lane.journal.released(lane.spool.first_position)
            self._publish_used()

    def _retain_since_ms(self) -> int:
        retain_s = self._config.retain_acked_s
        if not retain_s or self._used > self._config.spool_max_bytes // 2:
            return 1 << 62
        return _now_ms() - int(retain_s * 1000)

    def _publish_used(self) -> None:
        used = sum(lane.spool.used_bytes for lane in self._lanes)
        if used != self._used:
            with self.lock:
                self._used = used
                if self._waiters:
                    self.cond.notify_all()

    def _spill_timer(self) -> None:
        self._spill(self._config.spool_after_s)
        self._timer(_SPILL_EVERY_S, self._spill_timer)

    def _spill(self, age_s: float) -> None:
        """`spool="on_error"`: what waits too long, or too much of it, goes to disk."""
        before = time.monotonic() - age_s
        with self.lock:
            late = [
                p
                for p in self._undurable.values()
                if p.sealed_at <= before or self._backlog > _BACKLOG_BYTES // 2
            ]
        leaves = (leaf for parcel in late for leaf in _leaves(parcel))
        self._own.journal.spill(leaf.batch for leaf in leaves if leaf.batch is not None)

    # -- out: network ----------------------------------------------------------------------------------------------

    def _send(self, lane: Lane, batches: Sequence[j.Batch]) -> None:
        requests = []
        unread: dict[int, SpoolError] = {}
        for batch in batches:
            topic, partition = lane.journal.address(batch.destination)
            parcel = lane.parcels[batch.handle]
            try:
                if batch.destination in unread:
                    raise unread[batch.destination]  # nothing overtakes
                data = self._bytes(lane, parcel, batch)
            except SpoolCorruptError as error:
                unread[batch.destination] = SpoolError(f"a batch before it is damaged on disk: {error}")
                if self._damaged(lane, batch, error):
                    self._post(functools.partial(lane.journal.damaged, batch, str(error)))
                else:
                    self._on_produced((lane, batch, -1), t.Failure(error, sent=False))
                continue
            except SpoolError as error:
                # Too many open files, a disk that does not answer: tried again, like a leader that does not.
                unread[batch.destination] = error
                self._on_produced((lane, batch, -1), t.Failure(error, sent=False))
                continue
            if self._damage:
                self._damage.pop((topic, partition), None)  # it can be read again
            parcel.loose = True
            fence = self._fences.get((topic, partition), 0)
            epoch = self._leader_epoch(topic, partition)
            requests.append(t.ProduceRequest((lane, batch, epoch), topic, partition, data, fence))
            self.counters["batches_sent"] += 1
            if batch.tries > 1:
                self.counters["batches_resent"] += 1
                self.stats.retries["produce", self._reasons.get((topic, partition), "unknown")] += 1
        self._transport.produce(
            requests, self._config.acks, int(self._config.request_timeout_s * 1000), self._on_produced
        )

    def _on_produced(self, token: Any, reply: t.ProduceReply | t.Failure) -> None:
        """On the network thread."""
        self._inbox.append(lambda: self._produced(token, reply))
        self._wake.set()

    def _produced(self, token: tuple[Lane, j.Batch, int], reply: t.ProduceReply | t.Failure) -> None:
        lane, batch, epoch = token
        address = lane.journal.address(batch.destination)
        self._fences[address] = max(self._fences.get(address, 0), reply.fence)
        now = self._clock.now()
        if isinstance(reply, t.Failure):
            if reply.sent:
                self._in_trouble(*address)
            self.counters["produce_failures"] += 1
            self._count_error(address, type(reply.error).__name__)
            code = reply.code if not reply.sent and reply.code in {3, 17, 29} else 0
            lane.journal.lost(batch, sent=reply.sent, code=code or 0, message=_text(reply.error), now=now)
        elif reply.error_code:
            self._in_trouble(*address)
            self.counters[f"produce_error_{reply.error_code}"] += 1
            self._count_error(address, classify_code(reply.error_code).name)
            lane.journal.refused(
                batch,
                reply.error_code,
                reply.error_message or "",
                bad_records=reply.record_errors,
                log_start_offset=reply.log_start_offset,
                now=now,
                now_ms=_now_ms(),
            )
            if batch.state is j.State.REFUSED:
                self._progressed()
        else:
            self._progressed()
            parcel = lane.parcels.get(batch.handle)
            if parcel is not None:
                parcel.log_append_time = reply.log_append_time
            self._compare_topic(lane, batch.destination, self._transport.topic(address[0]))
            # When it was sent: a leader that came since did not acknowledge it.
            epoch = epoch if epoch >= 0 else self._leader_epoch(*address)
            lane.journal.acked(batch, reply.base_offset, leader_epoch=epoch, now=now, now_ms=_now_ms())

    def _count_error(self, address: tuple[str, int], name: str) -> None:
        self.stats.errors["produce", name] += 1
        self._reasons[address] = name

    def _in_trouble(self, topic: str, partition: int) -> None:
        """A request about this partition failed, or asks about a failure; see `_CALM`."""
        times = self._troubles.get((topic, partition))
        if times is None:
            times = self._troubles[topic, partition] = collections.deque(maxlen=_CALM + 1)
        times.append(time.monotonic())

    def _calm_in_s(self, topic: str, partition: int) -> float:
        times = self._troubles.get((topic, partition))
        return 0.0 if times is None or len(times) <= _CALM else times[0] + 1.0 - time.monotonic()

    def _when_calm(self, topic: str, partition: int, job: Callable[[], None]) -> None:
        pause_s = self._calm_in_s(topic, partition)
        if pause_s > 0:
            self._timer(pause_s, job)
        else:
            job()

    def _leader_epoch(self, topic: str, partition: int) -> int:
        """As the metadata says, -1 while it says nothing."""
        info = self._transport.topic(topic)
        return info.partitions[partition].leader_epoch if info and partition in info.partitions else -1

    def _wait(self, lane: Lane, wait: j.Wait) -> None:
        topic, partition = lane.journal.address(wait.destination)
        backoff_s = (self._slow_backoff if wait.refused else self._backoff).pause_s(wait.attempt)
        pause_s = max(wait.at_least_s, backoff_s, self._calm_in_s(topic, partition))
        if wait.at_least_s > backoff_s:
            self.pause_until = max(self.pause_until, time.monotonic() + pause_s)
        self.counters["retries"] += 1
        self.stats.backoff_s["produce"] += pause_s
        self._log.seldom(
            logging.WARNING if wait.attempt > 3 else logging.INFO,
            "delivery_retried",
            f"{topic}-{partition}",
            "%s-%d: attempt %d failed, next in %.2f s: %s",
            topic,
            partition,
            wait.attempt,
            pause_s,
            wait.reason,
            lane=lane.name,
            topic=topic,
            partition=partition,
            attempt=wait.attempt,
            pause_s=round(pause_s, 3),
            error=self._reasons.get((topic, partition), ""),
        )
        self._emit(events.DeliveryRetried(topic, partition, wait.attempt, pause_s, wait.reason))
        if wait.refresh_metadata:
            self._transport_topics([topic])
        self._timer(pause_s, lambda: lane.journal.retry(wait.destination))

    def _want_producer_id(self, lane: Lane) -> None:
        lane.producer_id_wanted = True

        def granted(result: Any) -> None:
            self._post(lambda: self._on_producer_id(lane, result))

        self._transport.init_producer_id(granted)

    def _on_producer_id(self, lane: Lane, result: Any) -> None:
        if isinstance(result, t.ProducerIdGranted):
            lane.producer_id_wanted = False
            lane.producer_id_failures = 0
            self._progressed()
            lane.journal.granted(result.producer_id, result.epoch)
            return
        lane.producer_id_failures += 1
        self._log.seldom(
            logging.INFO,
            "no_producer_id",
            lane.name,
            "No producer id yet: %s",
            _text(result.error),
            lane=lane.name,
            attempt=lane.producer_id_failures,
            error=type(result.error).__name__,
        )
        pause_s = self._backoff.pause_s(lane.producer_id_failures)
        self._timer(pause_s, lambda: self._want_producer_id(lane))

    # -- questions -------------------------------------------------------------------------------------------------

    def _ask(self, lane: Lane, ask: j.Ask) -> None:
        topic, partition = lane.journal.address(ask.destination)
        if not ask.doubt:
            self._in_trouble(topic, partition)
            self._transport.list_offset(
                topic, partition, -1, lambda result: self._post(lambda: self._on_baseline(lane, ask, result))
            )
            return
        if ask.confirm:
            self._transport.describe_producers(
                topic, partition, lambda result: self._post(lambda: self._on_confirmed(lane, ask, result))
            )
            return
        self.counters["in_doubt_asked"] += len(ask.doubt)
        self._when_calm(topic, partition, _Question(self, lane, ask, topic, partition).start)

    def _on_confirmed(self, lane: Lane, ask: j.Ask, result: Any) -> None:
        """What the leader has of a batch that it refused. Where it does not tell, its answer is believed."""
        code, reason = _trouble(result)
        if reason and not code:
            lane.journal.ask_failed(ask.destination, reason, code=0, now=self._clock.now())
            return
        state = None if reason else result.producers.get(ask.doubt[0].producer_id)
        view = state and ProducerView(state.epoch, state.last_sequence, state.last_timestamp)
        lane.journal.confirmed(ask.destination, view)

    def _on_baseline(self, lane: Lane, ask: j.Ask, result: Any) -> None:
        code, reason = _trouble(result)
        if reason:
            lane.journal.ask_failed(ask.destination, reason, code=code, now=self._clock.now())
            return
        topic, _ = lane.journal.address(ask.destination)
        info = self._transport.topic(topic)
        topic_id = info.topic_id if info is not None else bytes(16)
        self._progressed()
        lane.journal.baseline(ask.destination, result.offset, topic_id)

    def _on_metadata(self, refreshed: t.MetadataRefreshed) -> None:
        if refreshed.cluster_id is not None and refreshed.cluster_id != self._cluster_id:
            self._progressed()
            self._bind(refreshed.cluster_id)
        for name, info in refreshed.topics.items():
            self._learn(name, fresh=True)
            self._see_whether_gone(name, info.error_code)
        self._look_again(refreshed)

    def _may_create(self, topic: str) -> bool:
        """On the network thread: a deleted topic must not come back because we ask whether it is still there."""
        asked_at = self._asked_for.get(topic, -_ASKED_FOR_S)
        return time.monotonic() - asked_at < _ASKED_FOR_S or any(
            lane.journal.wants(topic) for lane in list(self._lanes)
        )

    def _see_whether_gone(self, topic: str, error_code: int) -> None:
        """What is known of a deleted topic is forgotten after a while, and until then asked about now and then only."""
        if not error_code:
            self._asked_for.pop(topic, None)
        if error_code != _UNKNOWN_TOPIC or self._may_create(topic):
            self._gone.pop(topic, None)
            return
        since = self._gone.setdefault(topic, time.monotonic())
        self._transport.unwatch(topic)
        if time.monotonic() - since < _FORGET_GONE_S:
            return
        del self._gone[topic]
        for lane in self._lanes:
            if lane.journal.forget(topic):
                self._log.info(
                    "%s is gone: what was delivered to it is forgotten",
                    topic,
                    topic=topic,
                    lane=lane.name,
                    event="topic_forgotten",
                )

    def _bind(self, cluster_id: str) -> None:
        """Before anything is asked of a cluster or sent to it: are the records in the spool directory for it?"""
        attempt = 0
        while True:
            try:
                bound, ours = self._directory.bind_cluster(cluster_id, drained=self._drained)
                break
            except SpoolError as error:
                if self._stop:
                    raise
                # A disk that fails or is full: nothing may go anywhere before this is known and written down.
                attempt += 1
                self._log.seldom(
                    logging.WARNING,
                    "cluster_not_bound",
                    "",
                    "Nothing is sent yet, it is tried again: %s",
                    error,
                    attempt=attempt,
                    error=type(error).__name__,
                )
                time.sleep(self._backoff.pause_s(attempt))
        if not ours:
            holds = (
                f"{self._directory.path} holds records for cluster {bound}, but these brokers are cluster"
                f" {cluster_id}. Nothing was sent; all accepted records are safe and wait."
            )
            remedy = (
                "Use a spool_dir for each cluster, or let them be delivered to theirs first (kafkasafe spool ls shows"
                " what waits)"
            )
            if self._cluster_id is None:
                self._stranger = WrongClusterError(f"{holds} {remedy}")
            else:
                self._go_astray(cluster_id, f"{holds} They are delivered when theirs answers again. {remedy}")
            return
        if self._cluster_id is None:
            self._timer(0.0, self._look_around)
        else:
            self._transport.move(cluster_id)
        self._cluster_id = cluster_id
        self._astray_since = self.wrong_cluster = None
        if bound is not None and bound != cluster_id:
            self._log.warning(
                "%s was used for cluster %s until now; nothing waited for it",
                self._directory.path,
                bound,
                path=str(self._directory.path),
                event="cluster_changed",
            )
            for lane in self._lanes:
                lane.journal.new_cluster()
                lane.epochs.clear()
                lane.healing.clear()

    def _on_stranger(self, cluster_id: str) -> None:
        """A connection led to another cluster; the transport has closed it, nothing was sent."""
        if self._cluster_id in {None, cluster_id} or self._transport.at_home:
            return
        now = time.monotonic()
        if self._astray_since is None:
            self._astray_since = now
        elif now - self._astray_since >= _ASTRAY_S:
            self._bind(cluster_id)

    def _go_astray(self, cluster_id: str, message: str) -> None:
        self._log.seldom(
            logging.ERROR, "wrong_cluster", cluster_id, "%s", message, path=str(self._directory.path)
        )
        if self.wrong_cluster is None:
            with self.lock:
                self.wrong_cluster = WrongClusterError(message)
                self.cond.notify_all()

    def _on_home(self) -> None:
        """A new connection leads to our cluster."""
        self._astray_since = None
        if self.wrong_cluster is None:
            return
        with self.lock:
            self.wrong_cluster = None
        self._log.info("Cluster %s answers again", self._cluster_id, event="right_cluster")

    def _drained(self) -> bool:
        """Whether nothing waits in the spool directory for the cluster that it is bound to.

        What this process accepted before it met any cluster waits for none in particular.
        """
        ours = {lane.lock.path for lane in self._lanes}
        met = self._cluster_id is not None
        if any(met or batch.former_life for lane in self._lanes for _, _, batch in lane.journal.batches()):
            return False
        with self.lock:
            if met and self._open:
                return False
        for number in self._directory.lanes():
            path = self._directory.lane_path(number)
            if path in ours:
                continue
            if self._directory.is_owned(number) or inspect(path, files=self._files).waiting:
                return False
        return True

    def _poll_topics(self) -> None:
        for lane in self._lanes:
            for topic in lane.journal.unchosen_topics():
                if self._transport.topic(topic) is None:
                    self._transport_topics([topic])
                else:
                    self._learn(topic, fresh=False)
        self._timer(_TOPIC_POLL_S, self._poll_topics)

    def _learn(self, name: str, *, fresh: bool) -> None:
        """What the metadata say of a topic; `fresh`: they came just now."""
        info = self._transport.topic(name)
        if info is None:
            return
        now = self._clock.now()
        for lane in self._lanes:
            if info.error_code in {3, 17, 29} and lane.journal.waiting(name):
                reason = kafka_errors.for_code(info.error_code).__name__
                if fresh:
                    lane.journal.deny_unchosen(
                        name, info.error_code, f"{reason}: the cluster says so of the topic", now
                    )
            elif info.partitions and not info.error_code and (lane.own or lane.journal.waiting(name)):
                if lane.journal.learn_topic(name, info.topic_id, max(info.partitions) + 1):
                    self._progressed()
                self._drive(lane)
        if info.partitions and not info.error_code and not self._own.journal.waiting(name):
            self._on_topic(name, max(info.partitions) + 1)
        with self.lock:
            if self._waiters:
                self.cond.notify_all()

    # -- ends ------------------------------------------------------------------------------------------------------

    def _resolve(self, lane: Lane, resolutions: Sequence[j.Resolution]) -> None:
        finished = []
        for resolution in resolutions:
            batch = resolution.batch
            if resolution.fate is j.Fate.COMMITTED and lane.healing:
                self._heals(lane, batch)
            parcel = lane.parcels.pop(batch.handle, None)
            if parcel is None:
                continue  # divided: its children speak for it
            match resolution.fate:
                case j.Fate.COMMITTED:
                    parcel.base_offset = batch.base_offset
                    self.counters["records_committed"] += batch.count
                    self.stats.records[parcel.topic, "committed"] += batch.count
                    if parcel.sealed_at:
                        self.stats.ack.observe(time.monotonic() - parcel.sealed_at, batch.count)
                    topic, partition = lane.journal.address(batch.destination)
                    if self._config.on_event is not None:
                        self._emit(events.BatchCommitted(topic, partition, batch.base_offset, batch.count))
                case j.Fate.REJECTED if batch.code == j.DAMAGED:
                    self.stats.records[parcel.topic, "damaged"] += batch.count
                    kept = lane.kept_in.pop(batch.handle)
                    parcel.error = SpoolCorruptError(
                        f"The record was damaged on disk before it was delivered: {batch.message}. What is left of its"
                        f" batch is in {kept}",
                        damage=(batch.message,),
                    )
                case j.Fate.REJECTED:
                    self.counters["records_rejected"] += batch.count
                    self.stats.records[parcel.topic, "rejected"] += batch.count
                    kept_where = (
                        "With spool='never' it is kept nowhere: the program has to"
                        if self._config.in_memory
                        else f"It is kept in the spool directory under {lane.name}/rejected; kafkasafe spool resend"
                    )
                    again = (
                        "send it again, once the cause is gone"
                        if self._config.in_memory
                        else "sends it again"
                    )
                    parcel.error = RejectedError(
                        f"The cluster refused the record: {batch.message}. {kept_where} {again}",
                        code=batch.code,
                        reason=batch.message,
                    )
                    self._dead_letter(lane, batch, parcel)
                case j.Fate.REPLACED:
                    continue
            self._drop(parcel)
            finished.append(parcel)
        with self.lock:
            self.last_progress = time.monotonic()
            for parcel in finished:
                self._durable(parcel)
        for parcel in finished:
            self._finish(parcel)

    def _finish(self, parcel: Parcel) -> None:
        """The fate is final: tell everybody."""
        with self.lock:
            if parcel.done:
                return
            parcel.done = True
            self._open.pop(parcel.number, None)
            if self._waiters:
                self.cond.notify_all()
            # Before anybody can see that it is done: callers wait for what is due then.
            watcher, parcel.watcher = parcel.watcher, None
            if watcher is not None:
                watcher(parcel)
        parent = parcel.parent
        if parent is not None and all(child.done for child, _ in parent.children or ()):
            self._finish(parent)

    def _abort(self, parcel: Parcel, error: BaseException) -> None:
        for child, _ in parcel.children or ():
            self._abort(child, error)
        if not parcel.done and not parcel.children:
            parcel.error = error
            self._finish(parcel)

    def _expire(self) -> None:
        limit = self._config.delivery_timeout_s
        if limit is None:
            return
        before = time.monotonic() - limit
        safe_where = (
            "in memory, as long as this producer lives," if self._config.in_memory else "safe in the spool"
        )
        late = []
        with self.lock:
            for parcel in self._open.values():
                if parcel.sealed_at > before:
                    break
                if not parcel.expired and (parcel.durable or self._config.in_memory):
                    late.append(parcel)
            for parcel in late:
                parcel.expired = True
        for parcel in late:
            self.stats.records[parcel.topic, "timed_out"] += parcel.count
            self.stats.exhausted["produce"] += 1
            network = self._transport.last_error
            parcel.error = DeliveryTimeoutError(
                f"Not acknowledged within delivery_timeout_ms={limit * 1000:.0f}. The record is {safe_where} and"
                " is delivered when the cluster takes it: do not send it again"
                + ("" if network is None else f". Brokers cannot be used yet ({t.in_words(network)})")
            )
            self._finish(parcel)
        self._timer(_SPILL_EVERY_S, self._expire)

    def _notice(self, lane: Lane, notice: j.Notice) -> None:
        match notice:
            case j.AckedLoss():
                self._acked_loss(lane, notice)
            case j.Hole():
                self._missing(lane, notice)
            case j.Parked(batch, evidence):
                self._park(lane, batch, evidence)
            case j.Refusal(batch):
                self._rejected(lane, batch)
            case j.Denied(destination, denial):
                self._denied(lane, destination, denial)
            case j.Relented(destination, denial, accepted):
                self._relented(lane, destination, denial, accepted=accepted)

    def _denied(self, lane: Lane, destination: int, denial: j.Denial) -> None:
        """The cluster refuses what waits for a destination, and goes on refusing it."""
        self._publish_refused()
        topic, partition = lane.journal.address(destination)
        waiting = [each for each in lane.journal.denials() if each[0] == destination]
        if not waiting:
            return  # rejected already
        _, _, batches, records = waiting[0]
        limit_s = self._config.refused_timeout_s
        self._log.seldom(
            logging.ERROR,
            "topic_refused",
            topic,
            "%s: the cluster refuses it: %s. What waits (%s) is delivered as soon as the cluster takes"
            " it%s. %s",
            topic if partition == UNCHOSEN else f"{topic}-{partition}",
            denial.reason,
            counted(records, "record"),
            "" if limit_s is None or denial.asking else f", and rejected after {limit_s:.0f} s of this",
            classify_code(denial.code).explanation,
            lane=lane.name,
            topic=topic,
            partition=partition,
            code=denial.code,
            records=records,
            batches=batches,
        )
        self._emit(events.TopicRefused(topic, partition, denial.code, denial.reason, batches, records))

    def _relented(self, lane: Lane, destination: int, denial: j.Denial, *, accepted: bool) -> None:
        self._publish_refused()
        if not accepted:
            return  # rejected, which is told of each batch
        topic, partition = lane.journal.address(destination)
        seconds = self._clock.now() - denial.since
        self._log.seldom(
            logging.WARNING,
            "topic_accepted",
            topic,
            "%s: the cluster takes it again, after %.0f s of error %d",
            topic if partition == UNCHOSEN else f"{topic}-{partition}",
            seconds,
            denial.code,
            lane=lane.name,
            topic=topic,
            partition=partition,
            code=denial.code,
        )
        self._emit(events.TopicAccepted(topic, partition, denial.code, seconds))

    def _publish_refused(self) -> None:
        found: dict[str, RefusedDestination] = {}
        for each in self.refused():
            if each.confirmed and each.whole:
                found.setdefault(each.topic, each)
        self.refused_topics = found

    def _acked_loss(self, lane: Lane, loss: j.AckedLoss) -> None:
        topic, partition = lane.journal.address(loss.destination)
        self.counters["acked_loss_detected"] += 1
        self.counters["acked_lost_records"] += loss.records
        self.stats.losses[loss.cause.value] += 1
        self.stats.lost_records[topic] += loss.records
        message = (
            f"{topic}-{partition}: {loss.records} acknowledged records are gone from the log, offsets"
            f" {loss.first_offset} to {loss.last_offset} (noticed by {loss.cause.value}): {loss.evidence}"
        )
        if loss.revived:
            fate = f"{loss.revived} of them are in the spool and are sent again"
        elif (
            loss.recreated and self._config.on_acked_loss == "heal" and not self._config.heal_recreated_topics
        ):
            fate = "Nothing is sent again into a topic that may have been created again (heal_recreated_topics=False)"
        elif self._config.on_acked_loss == "heal":
            fate = "The spool does not have them any more: retain_acked_bytes or retain_acked_s keep them"
        else:
            fate = f"Nothing is sent again (on_acked_loss={self._config.on_acked_loss!r})"
        self._log.error(
            "%s. %s",
            message,
            fate,
            lane=lane.name,
            topic=topic,
            partition=partition,
            records=loss.records,
            first_offset=loss.first_offset,
            last_offset=loss.last_offset,
            detector=loss.cause.value,
            event="acked_data_lost",
        )
        healing = lane.healing.setdefault(loss.destination, _Healing())
        for at, number, batch in lane.journal.batches():
            if batch.handle not in lane.parcels and (at, number) == (topic, partition):
                parcel = Parcel(
                    topic, partition, None, batch.size_bytes, batch.count, batch.max_timestamp, durable=True
                )
                self._register(lane, parcel, batch)
                healing.handles.add(batch.handle)
        self._emit(
            events.AckedDataLost(
                topic,
                partition,
                loss.first_offset,
                loss.last_offset,
                loss.records,
                loss.cause.value,
                loss.evidence,
                loss.revived,
            )
        )
        if self._config.on_acked_loss == "raise":
            error = DataLossError(
                f"{message}. Raised once; on_acked_loss='heal' with retain_acked_bytes sends lost records again",
                topic=topic,
                partition=partition,
                first_offset=loss.first_offset,
                last_offset=loss.last_offset,
            )
            with self.lock:
                self._losses.append(error)
                self.cond.notify_all()

    def _missing(self, lane: Lane, hole: j.Hole) -> None:
        """Something took records out of the spool, and it was not damage that was found when it was opened."""
        topic, partition = lane.journal.address(hole.destination)
        records = f"{hole.records} record{'' if hole.records == 1 else 's'}"
        message = (
            f"{topic}-{partition}: {records} of {lane.name} in front of what waits there are neither in the log of the"
            f" cluster nor in the spool, and no damage explains it: {hole.evidence}. Somebody deleted segments, or"
            " restored an older copy. What is there is delivered, in order"
        )
        self.counters["spool_missing_records"] += hole.records
        self._log.error(
            "%s",
            message,
            lane=lane.name,
            topic=topic,
            partition=partition,
            records=hole.records,
            event="records_missing",
        )
        self._emit(events.RecordsMissing(lane.name, topic, partition, hole.records, hole.evidence))
        if self._config.on_corrupt == "raise":
            error = SpoolCorruptError(f"{message}. Raised once", damage=(message,))
            with self.lock:
                self._losses.append(error)
                self.cond.notify_all()

    def _heals(self, lane: Lane, batch: j.Batch) -> None:
        """A batch that was sent again is in the log."""
        healing = lane.healing.get(batch.destination)
        if healing is None or batch.handle not in healing.handles:
            return
        healing.handles.remove(batch.handle)
        healing.records += batch.count
        self.counters["acked_healed_records"] += batch.count
        self.stats.healed_records[lane.journal.address(batch.destination)[0]] += batch.count
        if batch.base_offset >= 0:
            healing.first_offset = batch.base_offset if healing.first_offset < 0 else healing.first_offset
            healing.last_offset = batch.base_offset + batch.count - 1
        if healing.handles:
            return
        del lane.healing[batch.destination]
        topic, partition = lane.journal.address(batch.destination)
        self._log.warning(
            "%s-%d: %d lost records are in the log again",
            topic,
            partition,
            healing.records,
            lane=lane.name,
            topic=topic,
            partition=partition,
            records=healing.records,
            event="healed",
        )
        self._emit(
            events.Healed(topic, partition, healing.records, healing.first_offset, healing.last_offset)
        )

    def _check_acked(self) -> None:
        """Is everything that was acknowledged still there? Of idle partitions nobody else notices."""
        # Requests name topics by their names: only metadata tells that one is another now.
        topics = {
            lane.journal.address(number)[0] for lane in self._lanes for number in lane.journal.acknowledged()
        }
        if topics:
            self._transport_topics(topics)
        for lane in self._lanes:
            for destination, last_acked_offset in lane.journal.idle():
                if lane.journal.address(destination)[0] not in self._gone:
                    self._check_end(lane, destination, last_acked_offset)
        self._timer(self._config.acked_loss_check_s, self._check_acked)

    def _check_end(self, lane: Lane, destination: int, last_acked_offset: int) -> None:
        """Does the log still hold what was acknowledged last? Partitions where something is going on notice it."""
        epoch = lane.journal.leader_epoch(destination)
        check = j.EpochCheck(destination, epoch, last_acked_offset)

        def suspect(end_offset: int, what: str) -> None:
            if (destination, last_acked_offset) in lane.journal.idle():
                lane.journal.suspect(destination, Cause.LOG_END, what, from_offset=end_offset)

        self._ask_end(lane, check, suspect, lambda: None)

    def _check_epoch(self, lane: Lane, check: j.EpochCheck) -> None:
        """Another leader acknowledges: did the one before acknowledge more than is left of its log?"""

        def suspect(end_offset: int, what: str) -> None:
            lane.journal.suspect(check.destination, Cause.LOG_END, what, from_offset=end_offset, check=check)

        def again() -> None:
            if lane in self._lanes and not self._closing:
                self._timer(1.0, lambda: self._check_epoch(lane, check))

        self._ask_end(lane, check, suspect, again)

    def _ask_end(
        self,
        lane: Lane,
        check: j.EpochCheck,
        suspect: Callable[[int, str], None],
        failed: Callable[[], None],
    ) -> None:
        """Where does the leader epoch end in the log, and where does the log?"""
        topic, partition = lane.journal.address(check.destination)
        last = f"though offset {check.last_acked_offset} was acknowledged"

        def then(step: Callable[[Any], None]) -> Callable[[Any], None]:
            return lambda result: self._post(lambda: step(result))

        def started(result: Any) -> None:
            if _trouble(result)[1]:
                failed()
            elif 0 <= result.offset <= check.last_acked_offset:
                unknown = f"leader epoch {check.leader_epoch} is unknown to the log, {last}"
                suspect(result.offset, f"{unknown} and the log starts at {result.offset}")

        def listed(result: Any) -> None:
            if _trouble(result)[1]:
                failed()
            elif 0 <= result.offset <= check.last_acked_offset:
                suspect(result.offset, f"the log ends at {result.offset}, {last}")

        def ended(result: Any) -> None:
            if _unsupported(result):
                self._transport.list_offset(topic, partition, -1, then(listed))
            elif _trouble(result)[1]:
                failed()
            elif result.end_offset < 0:
                # Nothing of it is left: deleted by retention, if the log starts behind it.
                self._transport.list_offset(topic, partition, -2, then(started))
            elif result.end_offset <= check.last_acked_offset:
                suspect(
                    result.end_offset,
                    f"leader epoch {check.leader_epoch} ends at {result.end_offset}, {last}",
                )

        if check.leader_epoch >= 0:
            self._transport.offset_for_leader_epoch(topic, partition, check.leader_epoch, then(ended))
        else:
            self._transport.list_offset(topic, partition, -1, then(listed))

    def _look_again(self, refreshed: t.MetadataRefreshed) -> None:
        """After an election, or under another topic id, acknowledged records may be gone."""
        for lane in self._lanes:
            for destination in lane.journal.acknowledged():
                info = refreshed.topics.get(lane.journal.address(destination)[0])
                self._compare_topic(lane, destination, info)
            for destination, last_acked_offset in lane.journal.idle():
                topic, partition = lane.journal.address(destination)
                info = refreshed.topics.get(topic)
                if info is None or info.error_code or partition not in info.partitions:
                    continue
                epoch = info.partitions[partition].leader_epoch
                before = lane.epochs.get(destination)
                lane.epochs[destination] = epoch
                if before is None or epoch > before:
                    self._check_end(lane, destination, last_acked_offset)

    @staticmethod
    def _compare_topic(lane: Lane, destination: int, info: t.TopicInfo | None) -> None:
        """Under another id it is another topic, and what was acknowledged in the old one is gone."""
        known = lane.journal.topic_id(destination)
        if (
            info is not None
            and not info.error_code
            and any(known)
            and any(info.topic_id)
            and known != info.topic_id
            and destination in lane.journal.acknowledged()
        ):
            evidence = f"topic id {known.hex()} became {info.topic_id.hex()}"
            lane.journal.recreated(destination, evidence)

    def _park(self, lane: Lane, batch: j.Batch, evidence: str) -> None:
        topic, partition = lane.journal.address(batch.destination)
        self.counters["batches_undecidable"] += 1
        self._emit(events.BatchParked(topic, partition, batch.count, batch.position, evidence))
        policy = self._config.on_undecidable
        where = "in memory" if self._config.in_memory else f"safe in {lane.name} at position {batch.position}"
        message = (
            f"{topic}-{partition}: whether {batch.count} records are in the log cannot be known: {evidence}. They are"
            f" {where}; the partition waits. Decide with"
            " resume_parked(resend=True) (they may then be twice in the log) or resume_parked(resend=False), or open"
            " the producer with on_undecidable='resend' or 'skip'"
        )
        if policy == "raise":
            self._log.error(
                "%s",
                message,
                lane=lane.name,
                topic=topic,
                partition=partition,
                records=batch.count,
                position=batch.position,
                event="batch_undecidable",
            )
            error = UndecidableError(message, evidence=evidence)
            with self.lock:
                self._parked[lane, batch.handle] = batch, error
                self.cond.notify_all()
            return
        self._log.warning(
            "%s-%d: undecidable batch, policy %r: %s",
            topic,
            partition,
            policy,
            evidence,
            lane=lane.name,
            topic=topic,
            partition=partition,
            records=batch.count,
            position=batch.position,
            event="batch_undecidable",
        )
        lane.journal.decide(batch, resend=policy == "resend")

    def _put_aside(self, lane: Lane, aside: j.Aside) -> None:
        """Before the marks that end them are decided, rejected batches are durable in `rejected/`; or they wait."""
        if self._config.in_memory:
            # There is no place to keep them: their futures and the dead-letter handler get them.
            lane.kept_in.update((batch.handle, None) for batch in aside.batches)
            lane.journal.set_aside(aside, len(aside.batches))
            return
        topic, partition = lane.journal.address(aside.destination)
        destination = m.Destination(aside.destination, topic, partition)
        kept, reason = 0, ""
        while kept < len(aside.batches) and not reason:
            used = sum(each.rejected.size_bytes for each in self._lanes)
            size = 0
            portion: list[Refused] = []
            handles = []
            damaged = False
            try:
                for batch in aside.batches[kept : kept + _PORTION_BATCHES]:
                    size += batch.size_bytes
                    if used + size > self._config.rejected_max_bytes or (portion and size > _PORTION_BYTES):
                        break
                    try:
                        data = bytearray(self._bytes(lane, lane.parcels[batch.handle], batch))
                    except SpoolCorruptError as error:
                        if portion:
                            break  # those before it first
                        damaged = self._damaged(lane, batch, error)
                        reason = "" if damaged else f"they are damaged on disk: {error}"
                        break
                    portion.append(Refused(batch.position, data, batch.code, batch.message, batch.given))
                    handles.append(batch.handle)
                if damaged or reason:
                    kept += damaged
                    continue
                if not portion:
                    reason = (
                        f"rejected/ is full ({used:,} bytes of rejected_max_bytes="
                        f"{self._config.rejected_max_bytes:,}): resend or remove what is there, or raise the limit"
                    )
                    break
                path = lane.rejected.keep(
                    portion, destination, cluster_id=self._cluster_id or "", now_ms=_now_ms()
                )
            except (OSError, SpoolError) as error:
                reason = f"rejected/ cannot be written: {error}"
                break
            lane.kept_in.update(dict.fromkeys(handles, path))
            kept += len(portion)
        if reason:
            self.counters["rejected_not_kept"] += 1
            waiting = aside.batches[kept:]
            records = sum(batch.count for batch in waiting)
            self._log.seldom(
                logging.ERROR,
                "rejected_not_kept",
                f"{topic}-{partition}",
                "%s-%d: refused, and waiting in the spool: %s (%s): %s",
                topic,
                partition,
                "1 record" if records == 1 else f"{records} records",
                waiting[0].message,
                reason,
                lane=lane.name,
                topic=topic,
                partition=partition,
                records=records,
                code=waiting[0].code,
            )
        lane.journal.set_aside(aside, kept, reason)

    def _damaged(self, lane: Lane, batch: j.Batch, error: SpoolCorruptError) -> bool:
        """A batch is damaged on disk. Whether it is in quarantine/ and is given up; else its partition waits."""
        if batch.handle in lane.kept_in:
            return True
        address = lane.journal.address(batch.destination)
        if self._config.on_corrupt == "quarantine":
            try:
                lane.kept_in[batch.handle] = lane.spool.quarantine(batch.position)
            except SpoolError as failure:
                error = SpoolCorruptError(f"{error}; {failure}", damage=error.damage)
            else:
                self.stats.corrupt += 1
                return True
        lane.stopped[batch.destination] = time.monotonic() + 1.0
        self._timer(1.0, lambda: None)  # wakes
        self._log.seldom(
            logging.ERROR,
            "batch_damaged",
            f"{address[0]}-{address[1]}",
            "%s-%d waits, %d records of it are damaged on disk: %s",
            *address,
            batch.count,
            error,
            lane=lane.name,
            topic=address[0],
            partition=address[1],
            records=batch.count,
            position=batch.position,
        )
        with self.lock:
            self._damage[address] = error
            self.cond.notify_all()
        return False

    @property
    def damaged(self) -> bool:
        """Whether a partition is held up by a batch that is damaged on disk."""
        return bool(self._damage)

    def raise_damage(self, topic: str | None = None) -> None:
        """Raise the error of a partition (of the topic) that is held up by a batch damaged on disk."""
        if not self._damage:
            return
        for (name, partition), error in list(self._damage.items()):
            if topic in {None, name}:
                raise SpoolCorruptError(
                    f"{name}{f'-{partition}' if partition >= 0 else ''} waits: {error.args[0]}. Other partitions go on."
                    " Restore the file from a copy, or open with on_corrupt='quarantine': the damaged bytes are then"
                    " copied aside, their records are lost, and everything else is delivered",
                    damage=error.damage,
                ) from error

    def _rejected(self, lane: Lane, batch: j.Batch) -> None:
        """It is durable in `rejected/`: only now is that said."""
        if batch.code == j.DAMAGED:
            return
        topic, partition = lane.journal.address(batch.destination)
        path = lane.kept_in[batch.handle]
        self._log.seldom(
            logging.ERROR,
            "batch_rejected",
            f"{topic}-{partition} {batch.code}",
            "%s-%d: %s refused: %s; %s",
            topic,
            partition,
            "1 record" if batch.count == 1 else f"{batch.count} records",
            batch.message,
            "kept nowhere (spool='never')" if path is None else f"kept in {path}",
            lane=lane.name,
            topic=topic,
            partition=partition,
            records=batch.count,
            code=batch.code,
            path=str(path or ""),
        )
        kept = str(path or "")
        self._emit(events.BatchRejected(topic, partition, batch.count, batch.code, batch.message, kept))

    def _dead_letter(self, lane: Lane, batch: j.Batch, parcel: Parcel) -> None:
        handler = self._config.dead_letter
        path = lane.kept_in.pop(batch.handle)
        if handler is None:
            return
        topic, partition = lane.journal.address(batch.destination)
        try:
            try:
                data = self._bytes(lane, parcel, batch)
            except SpoolError:  # its segment may be gone already
                if path is None:
                    raise
                data = data_of(self._files, path, batch.position)
        except (OSError, ValueError, SpoolError) as error:
            self._log.error(
                "The dead-letter handler is not called for %d records, which are kept in %s: %s",
                batch.count,
                path or "no place",
                error,
                topic=topic,
                partition=partition,
                records=batch.count,
                event="dead_letter_failed",
            )
            return
        columns = codec.decode(data)
        if partition == UNCHOSEN:
            given_partitions(columns, batch.given)
        for index in range(columns.header.count):
            try:
                handler(
                    topic=topic,
                    partition=partition,
                    key=columns.keys[index],
                    value=columns.values[index],
                    headers=columns.headers.get(index, []),
                    timestamp_ms=columns.timestamps[index],
                    error=parcel.error,
                )
            except BaseException as error:
                self._raise_interrupt(error)
                # The handler is the user's; its records are in `rejected/` all the same.
                self._log.exception(
                    "The dead-letter handler failed; the record is kept %s",
                    "nowhere (spool='never')" if path is None else "in the spool directory",
                    topic=topic,
                    partition=partition,
                    event="dead_letter_failed",
                )

    def _emit(self, event: events.Event) -> None:
        if self._config.on_event is None:
            return
        try:
            self._config.on_event(event)
        except BaseException as error:
            self._raise_interrupt(error)
            # The hook is the user's: it must not stop delivery.
            self._log.exception("on_event failed for %s", event, event="hook_failed")

    def _raise_interrupt(self, error: BaseException) -> None:
        """In the constructor Ctrl-C is the caller's; on the own thread it would only end delivery."""
        if not isinstance(error, Exception) and not self.is_current_thread():
            raise error


class _Question:
    """Whether the batches in doubt are in the log: DescribeProducers, then the log itself."""

    def __init__(self, pump: Pump, lane: Lane, ask: j.Ask, topic: str, partition: int) -> None:
        self._pump = pump
        self._lane = lane
        self._ask = ask
        self._topic = topic
        self._partition = partition
        self._view: ProducerView | None = None
        self._scan: Scan | None = None
        self._by_state: Judgement | None = None
        """What the producer state says; the log is only asked where it is."""
        self._polls = 0
        self._leader_epoch = pump._leader_epoch(topic, partition)
        self._log_start = 0
        self._cut_at = -1
        self._shrunk_to = -1
        self._whole = True
        """As far as the leader epoch of the last acknowledgement tells, the log was not cut since."""
        self._read_from = 0

    def start(self) -> None:
        self._pump._transport.describe_producers(self._topic, self._partition, self._then(self._on_described))

    def _then(self, step: Callable[[Any], None]) -> Callable[[Any], None]:
        self._pump._in_trouble(self._topic, self._partition)
        return lambda result: self._pump._post(lambda: step(result))

    def _failed(self, result: Any) -> bool:
        code, reason = _trouble(result)
        if code == kafka_errors.TopicAuthorizationFailedError.errno:
            reason = read_needed(self._topic, len(self._ask.doubt), reason)
        if reason:
            self._lane.journal.ask_failed(
                self._ask.destination, reason, code=code, now=self._pump._clock.now()
            )
        return bool(reason)

    def _on_described(self, result: Any) -> None:
        ask = self._ask
        if not _unsupported(result):
            if self._failed(result):
                return
            state = result.producers.get(ask.doubt[0].producer_id)
            if state is not None:
                self._view = ProducerView(state.epoch, state.last_sequence, state.last_timestamp)
        judgement = judge_by_state(ask.doubt, self._view, acked_before=ask.acked_before)
        if ask.read_log or ask.fenced or judgement.verdict is Verdict.READ_LOG:
            self._read_log()
            return
        epoch = self._lane.journal.leader_epoch(ask.destination)
        if judgement.present > 1 and epoch >= 0 and ask.from_offset > 0:
            # A log that was wiped takes any sequence: a late request alone would speak for those before it.
            self._pump._transport.offset_for_leader_epoch(
                self._topic, self._partition, epoch, self._then(lambda end: self._on_proof(judgement, end))
            )
            return
        self._judged_by_state(judgement)

    def _on_proof(self, judgement: Judgement, result: Any) -> None:
        if _unsupported(result) or (not _trouble(result)[1] and result.end_offset >= self._ask.from_offset):
            self._judged_by_state(judgement)
        elif not self._failed(result):
            self._read_log()

    def _judged_by_state(self, judgement: Judgement) -> None:
        if judgement.present and self._ask.from_offset >= 0:
            # They are in the log: where?
            self._by_state = judgement
            self._read_log()
        else:
            self._probe(judgement)

    def _probe(self, judgement: Judgement) -> None:
        self._count(judgement, "state")
        self._lane.journal.judged(self._ask.destination, judgement, stable=False, now=self._pump._clock.now())

    def _read_log(self) -> None:
        self._pump._transport.list_offset(self._topic, self._partition, -2, self._then(self._on_start))

    def _on_start(self, result: Any) -> None:
        if self._failed(result):
            return
        self._log_start = result.offset
        epoch = self._lane.journal.leader_epoch(self._ask.destination)
        if epoch >= 0 and self._ask.from_offset > 0 and self._by_state is None:
            # A log that was cut and has grown again may hold them before what was acknowledged.
            self._pump._transport.offset_for_leader_epoch(
                self._topic, self._partition, epoch, self._then(self._on_epoch)
            )
        else:
            self._list_end()

    def _on_epoch(self, result: Any) -> None:
        if not _unsupported(result):
            if self._failed(result):
                return
            # Unknown to a log that reaches back that far: it is another one.
            self._cut_at = result.end_offset if result.end_offset >= 0 else self._log_start
            self._whole = result.end_offset >= self._ask.from_offset
        self._list_end()

    def _list_end(self) -> None:
        self._pump._transport.log_end_offset(self._topic, self._partition, self._then(self._on_end))

    def _on_end(self, result: Any) -> None:
        if self._failed(result):
            return
        begin, log_start = self._ask.from_offset, self._log_start
        end = result.offset if self._cut_at < 0 else min(self._cut_at, result.offset)
        if begin > end:
            # The log ends before what it had acknowledged: whatever is left is read.
            self._shrunk_to = end
            begin = self._read_from = log_start
        elif begin < 0:
            begin = 0
        doubt = self._ask.doubt
        if self._by_state is not None:
            if self._shrunk_to >= 0:
                self._probe(self._by_state)  # cut since: the journal has the log looked at before it goes on
                return
            doubt = doubt[: self._by_state.present]
        self._scan = Scan(doubt, begin, result.offset)
        if log_start > begin:
            self._scan.page((), next_offset=begin, log_start_offset=log_start)
        self._read()

    def _read(self) -> None:
        scan = self._scan
        if scan is None:
            raise AssertionError("A scan begins at its start")
        if scan.done:
            self._judge(scan)
            return
        self._pump._transport.fetch_headers(
            self._topic, self._partition, scan.next_offset, _SCAN_BYTES, self._then(self._on_page)
        )

    def _on_page(self, result: Any) -> None:
        scan = self._scan
        if scan is None or self._failed(result):
            return
        before = scan.next_offset
        scan.page(
            [
                (h.base_offset, h.last_offset, h.producer_id, h.producer_epoch, h.base_sequence)
                for h in result.headers
            ],
            next_offset=result.next_offset,
            log_start_offset=result.log_start_offset,
        )
        if scan.next_offset > before:
            self._pump._progressed()
            self._read()
            return
        # Nothing new: replicas have not confirmed the rest yet.
        if self._by_state is not None:
            self._probe(self._by_state)
            return
        self._polls += 1
        if self._polls > _SCAN_PATIENCE:
            self._lane.journal.ask_failed(
                self._ask.destination, "the replicas do not catch up", code=0, now=self._pump._clock.now()
            )
            return
        self._pump._timer(_SCAN_POLL_S, self._read)

    def _count(self, judgement: Judgement, method: str) -> None:
        if judgement.present:
            self._pump._progressed()
        stats = self._pump.stats
        stats.in_doubt_resolved["present", method] += judgement.present
        absent = len(self._ask.doubt) - judgement.present
        verdict = "undecidable" if judgement.verdict is Verdict.UNDECIDABLE else "absent"
        stats.in_doubt_resolved[verdict, method] += absent
        error = self._pump._reasons.get((self._topic, self._partition), "")
        if error in _SEQUENCE_ERRORS:
            stats.sequence_errors[error, judgement.verdict.value] += 1

    def _judge(self, scan: Scan) -> None:
        if self._pump._leader_epoch(self._topic, self._partition) != self._leader_epoch:
            # Nobody knows which one's log this was, and so what of it a later leader must have.
            reason = "another leader came while the log was read"
            self._lane.journal.ask_failed(self._ask.destination, reason, code=0, now=self._pump._clock.now())
            return
        if self._by_state is not None:
            judgement, stable = judge_located(self._by_state, scan)
            if not stable:
                self._probe(judgement)
                return
            self._count(judgement, "state")
            self._lane.journal.judged(
                self._ask.destination,
                judgement,
                stable=True,
                leader_epoch=self._leader_epoch,
                now=time.monotonic(),
            )
            return
        judgement = judge_by_both(
            scan,
            self._view,
            acked_before=self._ask.acked_before,
            whole=self._whole and self._shrunk_to < 0 and not self._ask.cut,
        )
        self._count(judgement, "log")
        self._lane.journal.judged(
            self._ask.destination,
            judgement,
            stable=True,
            shrunk_to=self._shrunk_to,
            read_from=self._read_from,
            leader_epoch=self._leader_epoch,
            now=self._pump._clock.now(),
        )


class _Inquest:
    """Which acknowledged batches are gone: the log is read from where the oldest was."""

    def __init__(self, pump: Pump, lane: Lane, ask: j.SurveyAsk, topic: str, partition: int) -> None:
        self._pump = pump
        self._lane = lane
        self._ask = ask
        self._topic = topic
        self._partition = partition
        self._epoch_end = -1
        self._leader_epoch = -1
        self._from = ask.from_offset
        self._log_start = 0
        self._survey: Survey | None = None
        self._polls = 0

    def start(self) -> None:
        # A topic that was created again has another id: old metadata would not tell.
        self._pump._transport.refresh_metadata([self._topic], self._then(self._on_metadata))

    def _on_metadata(self, result: Any) -> None:
        if isinstance(result, t.Failure):
            self._failed(result)
            return
        transport = self._pump._transport
        self._leader_epoch = self._pump._leader_epoch(self._topic, self._partition)
        if self._ask.leader_epoch >= 0:
            transport.offset_for_leader_epoch(
                self._topic, self._partition, self._ask.leader_epoch, self._then(self._on_epoch)
            )
        else:
            transport.list_offset(self._topic, self._partition, -2, self._then(self._on_start))

    def _then(self, step: Callable[[Any], None]) -> Callable[[Any], None]:
        self._pump._in_trouble(self._topic, self._partition)
        return lambda result: self._pump._post(lambda: step(result))

    def _failed(self, result: Any) -> bool:
        _, reason = _trouble(result)
        if reason:
            self._lane.journal.survey_failed(self._ask.destination, reason)
        return bool(reason)

    def _on_epoch(self, result: Any) -> None:
        # It only sharpens the answer: old brokers cannot tell.
        if not _trouble(result)[1]:
            self._epoch_end = result.end_offset
            # Unknown: of the log that was acknowledged nothing may be left.
            changed = [offset for offset in (self._from, max(0, result.end_offset)) if offset >= 0]
            self._from = min(changed)
        self._pump._transport.list_offset(self._topic, self._partition, -2, self._then(self._on_start))

    def _on_start(self, result: Any) -> None:
        if not self._failed(result):
            self._log_start = max(0, result.offset)
            self._pump._transport.log_end_offset(self._topic, self._partition, self._then(self._on_end))

    def _on_end(self, result: Any) -> None:
        if not self._failed(result):
            self._survey = Survey(self._ask.acked, result.offset, self._log_start, self._from)
            self._read()

    def _read(self) -> None:
        survey = self._survey
        if survey is None:
            raise AssertionError("A survey begins at its start")
        if survey.done:
            info = self._pump._transport.topic(self._topic)
            journal = self._lane.journal
            topic_id = m.NO_TOPIC_ID if info is None else info.topic_id
            # Topics have ids from Kafka 2.8 on. Before, only what is still there tells a log from another topic's.
            comparable = any(topic_id) and any(journal.topic_id(self._ask.destination))
            journal.surveyed(
                self._ask.destination,
                survey.loss(),
                survey.end_offset,
                epoch_end_offset=self._epoch_end,
                topic_id=topic_id,
                same_topic=comparable or survey.any_left,
                leader_epoch=self._leader_epoch,
            )
            return
        self._pump._transport.fetch_headers(
            self._topic, self._partition, survey.next_offset, _SCAN_BYTES, self._then(self._on_page)
        )

    def _on_page(self, result: Any) -> None:
        survey = self._survey
        if survey is None or self._failed(result):
            return
        before = survey.next_offset
        survey.page(
            [
                (h.base_offset, h.last_offset, h.producer_id, h.producer_epoch, h.base_sequence)
                for h in result.headers
            ],
            next_offset=result.next_offset,
            log_start_offset=result.log_start_offset,
        )
        if survey.next_offset > before:
            self._pump._progressed()
            self._read()
            return
        self._polls += 1
        if self._polls > _SCAN_PATIENCE:
            self._lane.journal.survey_failed(self._ask.destination, "the replicas do not catch up")
            return
        self._pump._timer(_SCAN_POLL_S, self._read)


def given_partitions(columns: codec.Columns, runs: Sequence[tuple[int, int, int]] | None) -> dict[int, int]:
    """By record, the partition that was given with it, in a batch whose partitions are to be chosen.

    Args:
        columns: The batch. What an earlier version added to it is taken off.
        runs: See `journal.Batch.given`.
    """
    if runs is not None:
        return {index: partition for first, count, partition in runs for index in range(first, first + count)}
    given = {}
    for index, headers in list(columns.headers.items()):
        if seems_given(headers):
            given[index] = int(headers.pop()[1] or b"")
            if not headers:
                del columns.headers[index]
    return given


def seems_given(headers: Sequence[tuple[str, bytes | None]]) -> bool:
    """Whether an earlier version may have added the last of these headers, to say which partition was given."""
    if not headers or headers[-1][0] != _GIVEN:
        return False
    value = headers[-1][1] or b""
    return value.isdigit() and len(value) <= _INT32_DIGITS and int(value) < 2**31


def _leaves(parcel: Parcel) -> list[Parcel]:
    """What a parcel was divided into, in the end; itself when it was not."""
    if parcel.children is None:
        return [parcel]
    return [leaf for child, _ in parcel.children for leaf in _leaves(child)]


def _first(numbers: Iterable[int], default: int) -> int:
    """The first key of a dict that another thread may change meanwhile."""
    while True:
        with contextlib.suppress(RuntimeError):  # it was changed between two steps
            return next(iter(numbers), default)


def _last(numbers: Reversible[int]) -> int:
    """The last key of a dict that another thread may change meanwhile; 0 if there is none."""
    while True:
        with contextlib.suppress(RuntimeError):
            return next(reversed(numbers), 0)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _trouble(result: Any) -> tuple[int, str]:
    """(Kafka's code or 0, reason or nothing) of an answer that is none."""
    if isinstance(result, t.Failure):
        return result.code or 0, _text(result.error)
    code: int = result.error_code
    return (code, kafka_errors.for_code(code).__name__) if code else (0, "")


def _unsupported(result: Any) -> bool:
    return isinstance(result, t.Failure) and isinstance(result.error, kafka_errors.UnsupportedVersionError)


def _differs(data: bytearray, identity: BatchId | None) -> bool:
    header = codec.read_header(data)
    wanted = (-1, -1, -1)
    if identity is not None:
        wanted = (identity.producer_id, identity.producer_epoch, identity.base_sequence)
    return (header.producer_id, header.producer_epoch, header.base_sequence) != wanted


def _stamp(data: bytearray, identity: BatchId | None) -> None:
    if not _differs(data, identity):
        return
    if identity is None:
        codec.stamp_identity(data, -1, -1, -1)
    else:
        codec.stamp_identity(data, identity.producer_id, identity.producer_epoch, identity.base_sequence)


def _groups(
    persist: j.Persist, data: Sequence[tuple[int, bytearray]]
) -> list[tuple[list[m.Mark], list[tuple[int, bytearray]]]]:
    """A batch among whose records some have a given partition is the first of its group, whose mark says which.

    The spool writes what is too large as several groups, and marks with the first batch.
    """
    groups: list[tuple[list[m.Mark], list[tuple[int, bytearray]]]] = [(list(persist.marks), [])]
    for batch, content in zip(persist.batches, data, strict=True):
        if batch.given is not None:
            if groups[-1][1]:
                groups.append(([], []))
            groups[-1][0].append(m.Given(0, batch.given))
        groups[-1][1].append(content)
    return groups


def _apart(persist: j.Persist, *, smaller: bool = False) -> list[j.Persist]:
    """A group that could not be written as a whole: its decisions, then its batches, which speak of nothing else.

    With `smaller` batches that are alone already come in halves: together they may never fit on the disk.
    """
    if persist.atomic or not persist.batches:
        return [persist]
    if not (persist.marks or persist.after):
        half = len(persist.batches) // 2
        if not smaller or not half:
            return [persist]
        return [j.Persist(persist.batches[:half]), j.Persist(persist.batches[half:])]
    return [j.Persist(marks=persist.marks, after=persist.after), j.Persist(persist.batches)]


def _pieces(count: int, bad: set[int]) -> list[Indexes]:
    """How a refused batch is divided: runs of good and of named bad records, or halves where none is named."""
    if not bad or len(bad) == count:
        half = count // 2
        return [np.arange(half), np.arange(half, count)]
    edges = [0] + [i for i in range(1, count) if (i in bad) != (i - 1 in bad)] + [count]
    return [np.arange(start, end) for start, end in itertools.pairwise(edges)]
