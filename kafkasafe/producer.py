"""SafeProducer: KafkaProducer's interface, on a spool that outlives the process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import inspect
import itertools
import operator
import os
import random
import re
import shlex
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self, Unpack

import kafka.errors as kafka_errors
import numpy as np
from kafka.producer.future import FutureRecordMetadata, RecordMetadata
from kafka.structs import TopicPartition

from kafkasafe._core import batch as codec
from kafkasafe._core.batch import RECORD_OVERHEAD
from kafkasafe._core.partition import partition_for_key, partitions_for_keys
from kafkasafe._core.patience import Patience, timeout_of
from kafkasafe._io.at_exit import at_end_of_child
from kafkasafe._io.awaiting import Fates, LoopWaits
from kafkasafe._io.callbacks import CallbackThread, take
from kafkasafe._io.connect import connect
from kafkasafe._io.engine.parcels import UNCHOSEN, Indexes, Parcel, seems_given
from kafkasafe._io.engine.slips import Slip
from kafkasafe._io.files import Files, OsFiles
from kafkasafe._io.lanes import SpoolDirectory
from kafkasafe._io.memory import MemoryFiles
from kafkasafe._io.one_process import OfOneProcess
from kafkasafe._io.pump import Pump
from kafkasafe._io.refusals import because, counted, error_for_send
from kafkasafe._io.stats import Reading
from kafkasafe.atomic import AtomicBatch, BatchOutcome
from kafkasafe.cluster.api import Broker, Cluster, in_words
from kafkasafe.config import DEFAULTS, DEPRECATED, ProducerConfig, validate, volatile_reason
from kafkasafe.errors import (
    DeliveryTimeoutError,
    ForkedProcessError,
    ProducerClosedError,
    SpoolError,
    SpoolFullError,
    WrongClusterError,
)
from kafkasafe.logs import EventLog, apart, drain, own_threads
from kafkasafe.metrics import flush as flush_metrics
from kafkasafe.metrics import install, producer_readings
from kafkasafe.options import ProducerOptions

if TYPE_CHECKING:
    from kafkasafe.transactional import LastTransaction, Transactions

__all__ = ["RecordFuture", "SafeProducer"]

log = EventLog("producer")

_MAX_RECORDS: Final = 8192
_FEW_RECORDS: Final = 16
"""Room in a new chunk; it grows fourfold."""
_ABSENT: Final[Any] = object()
"""In place of a record that is not there."""
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_MAX_PARTITION: Final = 2**31 - 1
_MAX_TIMESTAMP: Final = 2**63 - 1
_NEVER: Final = float("inf")
_SAY_EVERY_S: Final = 30.0
"""How often who waits without an end says what for."""
_CLOSE_IDLE_S: Final = 5.0
"""How long `close` waits for the next delivery."""
_CLOSE_MEMORY_IDLE_S: Final = 30.0
"""The same with `spool="never"`: what is left then is lost."""
_CLOSE_PAUSES: Final = 2
"""Request timeouts: how much of a pause whose end is known `close` waits for besides."""
_DROPPED_IDLE_S: Final = 1.0
"""How long a producer that was dropped is waited for, and it for the next delivery when another is opened on its
directory."""
_DROPPED_MOST_S: Final = 300.0
_CLOSE_DISK_S: Final = 30.0
_CLOSE_DISK_LEAST_S: Final = 10.0
"""How long a disk that takes nothing holds up `close`, at least: what is not on disk then is lost."""
_LOOK_EVERY_S: Final = 0.25
_LOG_S: Final = 1.0

Headers = Sequence[tuple[str, bytes | None]]
Special = tuple[int | None, Headers, int | None]
"""Given partition, headers and timestamp of a record that has any of them."""
Sizes = int | list[int]
"""Bytes of keys or values by record, -1 for null; one number where all have the same."""


@dataclass(frozen=True, slots=True)
class _Encoded:
    """What became of a chunk's records: `_Chunk` has the same attributes."""

    parcels: list[Parcel]
    head: Parcel | None = None
    count: int = 0
    absent: frozenset[int] = frozenset()
    sizes: tuple[Sizes, Sizes] = (-1, -1)
    parcel_of: Indexes | None = None
    index_in: Indexes | None = None


class _Chunk:
    """Records of one topic that are sealed together.

    Threads add records without a lock, and signal handlers in the middle of that: each takes a number, puts its record
    there, the value last, and then looks whether the chunk is still open. Sealing does it the other way round: the
    chunk is no longer open, then what is there is taken (`close`). So a sender that finds it open knows that its record
    is in it; another one looks at what was taken (`has`).

    Attributes:
        topic: Topic name.
        open: It takes records.
        left: Bytes that it still has room for. Threads may make it too large, which makes a larger batch.
        numbers: The next record's number. Some may never get their record: see `absent`.
        keys, values: By number, with room for some more; `keys` shorter while there are none. Empty once sealed.
        special: (partition, headers, timestamp) of the records that have any of them, by number.
        timestamp_ms: For records without a timestamp of their own: when the first of the chunk came.
        due: When it is sealed at the latest, monotonic seconds.
        encoded: One parcel per partition, while it is being sealed, and where its records are in them.
        parcels: The parcels, once sealed.
        count, absent: Once sealed: numbers below this are its records, but for those that are absent.
        acked: Once one was asked for: topic, partition, both, base offset, timestamp, and sizes of key and value of its
            records' metadata, where only offsets differ.
        parcel_of, index_in: Where record i is; None when there is one parcel with the records in order.
        sizes: Of keys and values.
        firsts: The callbacks that came first to their record, and before the chunk was sealed, by its number; shorter
            while there are none. `RecordFuture.add_callback` says how.
        callbacks, errbacks: What else was added and not looked at yet: record, function, record, function and so on.
            An object for each would cost the garbage collector more than the records do.
        thread: Calls them.
        atomic: The batch that it is a part of, which alone has it sealed.
        watched: Any were added.
    """

    __slots__ = (
        "__weakref__",
        "_first_calls",
        "_first_due",
        "_sorted",
        "_sorted_calls",
        "_taken",
        "absent",
        "acked",
        "atomic",
        "callbacks",
        "count",
        "due",
        "encoded",
        "errbacks",
        "firsts",
        "index_in",
        "keys",
        "left",
        "numbers",
        "open",
        "parcel_of",
        "parcels",
        "sizes",
        "special",
        "thread",
        "timestamp_ms",
        "topic",
        "values",
        "watched",
    )

    def __init__(self, topic: str, timestamp_ms: int, due: float, left: int, thread: CallbackThread) -> None:
        self.topic = topic
        self.open = True
        self.left = left
        self.numbers = itertools.count()
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = [_ABSENT] * _FEW_RECORDS
        self.special: dict[int, Special] = {}
        self.timestamp_ms = timestamp_ms
        self.due = due
        self.encoded: _Encoded | None = None
        self.parcels: list[Parcel] | None = None
        self.count = 0
        self.absent: frozenset[int] = frozenset()
        self.parcel_of: Indexes | None = None
        self.index_in: Indexes | None = None
        self.sizes: tuple[Sizes, Sizes] = (-1, -1)
        self.firsts: list[Any] = []
        self.callbacks: list[Any] = []
        self.errbacks: list[Any] = []
        self.thread = thread
        self.watched = False
        self.atomic: AtomicBatch | None = None
        self.acked: tuple[str, int, TopicPartition, int, int, int, int] | None = None
        self._taken: list[list[bytes | None]] = []
        self._first_calls: list[Sequence[Any]] = []
        self._first_due = -1
        self._sorted: dict[int, tuple[Parcel, list[Any], list[Any]]] = {}
        self._sorted_calls = 0

    def put(self, index: int, key: bytes | None, value: bytes | None, special: Special | None) -> None:
        """A record at its number, for which there may be no room yet. Threads that do it at once make too much room."""
        keys, values = self.keys, self.values  # a signal handler may seal this, and these are forgotten
        for column, blank, wanted in ((keys, None, key is not None), (values, _ABSENT, True)):
            while wanted and len(column) <= index:
                # The last one has no room before it comes: it is put here, by who seals then.
                room = min(max(4 * len(column), _FEW_RECORDS), _MAX_RECORDS - 1)
                column.extend([blank] * max(room - len(column), 1))
        if key is not None:
            keys[index] = key
        if special is not None:
            self.special[index] = special
        values[index] = value

    def close(self) -> list[bytes | None]:
        """Take no more records. With the producer's lock held; a signal handler may call it in the middle of itself.

        Returns:
            The values by number, `_ABSENT` where there is none: the same ones at each call.
        """
        self.open = False
        taken = self._taken  # that one, also where a signal handler comes now, which seals and forgets it
        taken.append(self.values[: next(self.numbers)])
        return taken[0]

    def has(self, index: int) -> bool:
        """Whether a record is in it, which is sealed."""
        return index < self.count and index not in self.absent

    def took(self, index: int) -> bool:
        """Whether a record that was put at its number is in it, which is no longer open: without waiting for its end.

        Without the lock: the thread that seals may have it for as long as encoding takes.
        """
        taken: list[bytes | None] = []
        if self.encoded is None:
            # As that thread does it: what is taken first is what both see. It may be encoded, and forgotten, meanwhile.
            with contextlib.suppress(IndexError):
                taken = self.close()
        encoded = self.encoded
        if encoded is None:
            return index < len(taken) and taken[index] is not _ABSENT
        return index < encoded.count and index not in encoded.absent

    def forget(self) -> None:
        """Let go of the records, which are encoded."""
        self.keys, self.values, self._taken = [], [], []

    def locate(self, index: int) -> tuple[Parcel, int]:
        """The parcel of record `index` and its index there, through every division."""
        if self.parcels is None:
            raise AssertionError("A chunk that is not sealed has no parcels")
        if self.parcel_of is None or self.index_in is None:
            parcel = self.parcels[0]
        else:
            parcel = self.parcels[int(self.parcel_of[index])]
            index = int(self.index_in[index])
        while parcel.children is not None and parcel.error is None:
            for child, indexes in parcel.children:
                at = int(np.searchsorted(indexes, index))
                if at < len(indexes) and indexes[at] == index:
                    parcel, index = child, at + parcel.shift
                    break
            else:
                raise AssertionError(f"No child of the parcel has record {index}")
        return parcel, index

    def metadata(self, index: int) -> RecordMetadata:
        """Of a record that was acknowledged."""
        parcel, at = self.locate(index)
        special = self.special.get(index)
        stamp = self.timestamp_ms
        header_size = -1
        if special is not None:
            stamp = stamp if special[2] is None else special[2]
            if special[1]:
                header_size = sum(len(key.encode()) + len(value or b"") for key, value in special[1])
        if parcel.log_append_time >= 0:
            stamp = parcel.log_append_time
        offset = parcel.base_offset + at if parcel.base_offset >= 0 else -1
        keys, values = self.sizes
        place = TopicPartition(parcel.topic, parcel.partition)
        if (
            self.parcel_of is None
            and parcel.parent is None
            and parcel.base_offset >= 0
            and not self.special
            and isinstance(keys, int)
            and isinstance(values, int)
        ):
            self.acked = parcel.topic, parcel.partition, place, parcel.base_offset, stamp, keys, values
        return RecordMetadata(
            parcel.topic,
            parcel.partition,
            place,
            offset,
            stamp,
            None,
            keys if isinstance(keys, int) else keys[index],
            values if isinstance(values, int) else values[index],
            header_size,
        )

    def all_metadata(self, parcel: Parcel, indexes: Sequence[int]) -> Iterator[RecordMetadata]:
        """The same of many records, which are all in this parcel: without a step in Python for each, as a rule.

        Args:
            parcel: It was acknowledged.
            indexes: The records' numbers; a range is all of them in order.
        """
        if self.special or parcel.parent is not None:
            return map(self.metadata, indexes)
        base, every = parcel.base_offset, isinstance(indexes, range)
        offsets: Iterable[int] = itertools.repeat(-1, len(indexes))
        if base >= 0 and every and self.index_in is None:
            offsets = range(base, base + len(indexes))
        elif base >= 0:
            at = indexes if self.index_in is None else self.index_in[indexes].tolist()
            offsets = map(base.__add__, at)
        place = parcel.topic, parcel.partition, TopicPartition(parcel.topic, parcel.partition)
        stamp = self.timestamp_ms if parcel.log_append_time < 0 else parcel.log_append_time
        keys, values = self.sizes
        fields: Iterable[tuple[Any, ...]]
        if isinstance(keys, int) and isinstance(values, int):
            # Only offsets differ, and a product gives the fields that do not without being asked for each again.
            fields = itertools.product(
                *((field,) for field in place), offsets, (stamp,), (None,), (keys,), (values,), (-1,)
            )
        else:
            fields = zip(
                *map(itertools.repeat, place),
                offsets,
                itertools.repeat(stamp),
                itertools.repeat(None),
                itertools.repeat(keys) if isinstance(keys, int) else map(keys.__getitem__, indexes),
                itertools.repeat(values) if isinstance(values, int) else map(values.__getitem__, indexes),
                itertools.repeat(-1),
                strict=False,
            )
        return map(tuple.__new__, itertools.repeat(RecordMetadata), fields)

    # Callbacks. Callers add to the three lists, the callback thread alone takes from them.

    def put_first(self, index: int, function: Any) -> None:
        """A record's first callback, for which there is no room yet. Threads may do it at the same time."""
        firsts = self.firsts  # the callback thread may replace it
        firsts.extend([None] * (max(len(self.values), index + 1) - len(firsts)))
        firsts[index] = function
        self.thread.start()

    def first_calls(self) -> Sequence[Any]:
        """What was in `firsts` when the chunk, which is sealed, was asked for the first time, by number.

        By any thread, and in the middle of itself. What has been called is there no more, but is not None either.
        """
        if not self._first_calls:
            self._first_calls.append(self.firsts[:])
        return self._first_calls[0]

    def _take_firsts(self) -> tuple[Sequence[int], Sequence[Any]]:
        """Records and their functions, once. On the callback thread, when the chunk is sealed."""
        firsts = self.first_calls()
        if not isinstance(firsts, list):
            return (), ()
        firsts = firsts[: self.count]
        every, self._first_due = self._first_due == len(firsts), 0
        # Functions are let go of when they have been called, though a future may be kept, and with it this.
        self.firsts = []
        if every:
            self._first_calls[0] = range(len(firsts))
            return range(len(firsts)), firsts
        indexes = [i for i, function in enumerate(firsts) if function is not None]
        self._first_calls[0] = tuple(None if function is None else True for function in firsts)
        return indexes, [firsts[i] for i in indexes]

    def watch(self, parcels: Iterable[Parcel]) -> None:
        """Something was added, and the chunk is sealed: look at it when these are done. Twice does no harm."""
        self.watched = True
        if self._first_due < 0:
            firsts = self.first_calls()[: self.count]
            self._first_due = len(firsts) - (0 if _all_there(firsts) else sum(f is None for f in firsts))
        for parcel in parcels:
            parcel.watch(self.on_done)
            # In this order: the pump sets what is looked at here, then looks for the watcher.
            if parcel.children is not None:
                self.watch(child for child, _ in parcel.children)
            if parcel.done:
                parcel.watcher = None
                self.thread.put(self._call_done)

    def on_done(self, parcel: Parcel) -> None:
        """A parcel's fate is final. By the pump, with its lock held."""
        waiting = (
            self._sorted_calls + max(self._first_due, 0) + (len(self.callbacks) + len(self.errbacks)) // 2
        )
        # A share of them where there are several parcels: how many fall due is not counted more exactly than that.
        due = 0 if parcel.children is not None else waiting * parcel.count // max(self.count, 1)
        # Also when none seems to wait: the thread may be sorting them, and have looked at this parcel already.
        self.thread.hand(self._call_done, due)

    def _call_done(self, due: int = 0) -> None:
        """Call what is due, on the callback thread."""
        parcels = self.parcels or []
        if len(parcels) == 1 and parcels[0].children is None:
            if parcels[0].done:
                indexes, functions = self._take_firsts()
                if functions:
                    self._call(parcels[0], indexes, functions, [], due)
                    due = 0
                callbacks, errbacks = take(self.callbacks), take(self.errbacks)
                self._call(parcels[0], callbacks[::2], callbacks[1::2], errbacks[1::2], due)
            return
        indexes, functions = self._take_firsts()
        self._sort([*itertools.chain.from_iterable(zip(indexes, functions, strict=True))], [])
        self._sort(take(self.callbacks), take(self.errbacks))
        for key, (parcel, callbacks, errbacks) in list(self._sorted.items()):
            if not _speaks(parcel):
                del self._sorted[key]
                self._sort(callbacks, errbacks)
        done = [key for key, (parcel, _, _) in self._sorted.items() if parcel.done]
        for key in done:
            parcel, callbacks, errbacks = self._sorted.pop(key)
            self._call(parcel, callbacks[::2], callbacks[1::2], errbacks[1::2], due)
            due = 0
        self._sorted_calls = sum(len(calls) + len(more) for _, calls, more in self._sorted.values()) // 2
        if not done:
            self.thread.call((), (), due)

    def _sort(self, callbacks: list[Any], errbacks: list[Any]) -> None:
        """By the parcels of their records."""
        for calls, which in ((callbacks, 1), (errbacks, 2)):
            if not calls:
                continue
            indexes, functions = np.array(calls[::2]), calls[1::2]
            for parcel, picked in self._by_parcel(indexes):
                mine = [None] * (2 * len(picked))
                mine[::2] = indexes[picked].tolist()
                mine[1::2] = map(functions.__getitem__, picked.tolist())
                found = self._sorted.setdefault(id(parcel), (parcel, [], []))
                (found[1] if which == 1 else found[2]).extend(mine)

    def _by_parcel(self, indexes: Indexes) -> Iterator[tuple[Parcel, Indexes]]:
        """Parcels of records, each with the places of its own in `indexes`.

        Where nothing was divided there is no step in Python for each record.
        """
        if self.parcel_of is None:
            groups = [np.arange(len(indexes))]
        else:
            numbers = self.parcel_of[indexes]
            order = np.argsort(numbers, kind="stable")
            groups = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
        for group in groups:
            parcel, _ = self.locate(int(indexes[group[0]]))
            if parcel.parent is None:
                yield parcel, group
                continue
            for at in group.tolist():
                yield self.locate(int(indexes[at]))[0], np.array([at])

    def _call(
        self,
        parcel: Parcel,
        indexes: Sequence[int],
        callbacks: Sequence[Any],
        errbacks: Sequence[Any],
        due: int,
    ) -> None:
        if parcel.error is None:
            self.thread.call(callbacks, self.all_metadata(parcel, indexes), due)
        else:
            self.thread.call(errbacks, itertools.repeat(parcel.error), due)


def _all_there(firsts: Sequence[Any]) -> bool:
    """Whether none of these is None. False also where that would take a closer look."""
    try:
        # Of a function that is quick. An object of the application's may have a truth of its own, or none.
        return all(firsts)
    except Exception:
        return False


def _as_unit(parcels: Sequence[Parcel]) -> Parcel:
    """Have them delivered together (`delivery="staged"`): the parcel that stands for all of them."""
    slip = Slip(joins=parcels[0].topic)
    for parcel in parcels:
        parcel.slip = slip
    return Parcel("", -1, None, 0, 0, 0, slip=slip)


def _speaks(parcel: Parcel) -> bool:
    """Whether its fate is that of its records, and not that of what it was divided into or from."""
    if parcel.children is not None and parcel.error is None:
        return False
    above = parcel.parent
    while above is not None:
        if above.error is not None:
            return False
        above = above.parent
    return True


class RecordFuture(FutureRecordMetadata):
    """The result of one `send`. All of `FutureRecordMetadata`, and `durable`.

    It costs next to nothing until it is asked.
    """

    __slots__ = ("_chunk", "_first", "_index", "_producer")

    # Not the base class's, whose lock and lists no future needs. `send` sets the four, without the call of a Python
    # function for each record.
    __init__ = object.__init__
    _producer: SafeProducer
    _chunk: _Chunk
    _index: int
    _first: bool
    """No callback was added yet. Whoever deletes it, which one thread can, adds the first one."""

    def _parcel(self) -> Parcel | None:
        return None if self._chunk.parcels is None else self._chunk.locate(self._index)[0]

    # kafka-python assigns these three; here they are computed when asked.
    @property
    def is_done(self) -> bool:  # type: ignore[override]
        """Whether the record was acknowledged (and its commit mark is durable), or refused, or given up."""
        chunk = self._chunk
        return chunk.parcels is not None and chunk.locate(self._index)[0].done

    @property
    def value(self) -> RecordMetadata | None:  # type: ignore[override]
        """The metadata, None while there is none."""
        return self._metadata() if self.succeeded() else None

    @property
    def exception(self) -> BaseException | None:  # type: ignore[override]
        """Why the record was not delivered, None while that is open or when it was."""
        parcel = self._parcel()
        return parcel.error if parcel is not None and parcel.done else None

    def durable(self, timeout: float | None = None) -> RecordFuture:
        """Wait until the record is on disk (fsynced, with its batch id if it has one) or in the cluster.

        With `spool="never"` only the cluster makes a record durable: this waits for its acknowledgement.

        Args:
            timeout: Seconds, None for ever.

        Returns:
            The future itself. From here on a crash of this process, of brokers, or of both cannot lose the record.

        Raises:
            KafkaTimeoutError: Not durable in time. It may still become so.
            SpoolError: The spool failed for good.
        """
        if timeout is not None:
            timeout = timeout_of(timeout)
        self._producer._seal_chunk(self._chunk)
        self._producer._pump.wait(self._durable_or_never, timeout)
        return self._made_durable(timeout)

    def _durable_or_never(self) -> bool:
        """Whether `durable` has something to say."""
        producer = self._producer
        in_memory = producer._config.in_memory
        ledger = producer._pump.ledger
        return (
            self._is_durable()
            or self.is_done
            or (in_memory and ledger.wrong_cluster is not None)
            or ledger.failure is not None
        )

    def _made_durable(self, timeout: float | None) -> RecordFuture:
        """The end of `durable`: itself, or the error."""
        in_memory = self._producer._config.in_memory
        if not self._is_durable():
            self._producer._raise_failure()
            if in_memory and not self.is_done:
                self._producer._raise_wrong_cluster()
            error = self.exception
            if error is not None:
                raise error
            cause = self._producer._network_cause() if in_memory else ""
            raise kafka_errors.KafkaTimeoutError(
                f"The record was not durable after {timeout} s.{cause}{self._because()}"
            )
        return self

    def _is_durable(self) -> bool:
        parcel = self._parcel()
        if parcel is None:
            return False
        kept = parcel.durable and not self._producer._config.in_memory
        return kept or (parcel.done and parcel.error is None)

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the cluster's acknowledgement, and for the record's callbacks.

        Args:
            timeout: Seconds, None for ever. What is known of the record is returned or raised at the end, even if
                callbacks take longer.

        Raises:
            KafkaTimeoutError: Not acknowledged in time. The record stays in the spool and is still delivered.
            RejectedError: The cluster refused it.
            WrongClusterError: Another cluster answers instead of the one that the record is for. It is delivered when
                that one answers again.
        """
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        self._producer._seal_chunk(self._chunk)
        self._producer._pump.wait(self._done_or_never, timeout, choosy=True)
        if self.is_done:
            self._producer._called(self._chunk, deadline)
        return self._result(timeout)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """In a coroutine: `await future` is `get()` that blocks no thread. It does not wait for callbacks.

        A coroutine that is cancelled meanwhile costs the record nothing.
        """
        if not self.is_done:
            if self._chunk.parcels is None:
                # By the pump: whoever seals chooses partitions and encodes, which takes a loop too long.
                self._chunk.due = 0.0
                self._producer._pump.poke()
            waits = LoopWaits.of(self._producer._pump.ledger.waiters, asyncio.get_running_loop())
            yield from self._wait_in_loop(waits)
        return self._result(None)

    def _wait_in_loop(
        self, waits: LoopWaits, timeout_s: float | None = None, *, durable: bool = False
    ) -> Any:
        """To be awaited, or yielded from: until `_result` or `_made_durable` has something to say."""
        chunk, producer = self._chunk, self._producer
        ledger, kept = producer._pump.ledger, durable and not producer._config.in_memory
        return waits.until(
            (chunk, True) if kept else chunk,
            self._index,
            lambda: Fates(chunk, ledger, durable=kept),
            timeout_s,
        )

    def _done_or_never(self) -> bool:
        """Whether `get` has something to say."""
        ledger = self._producer._pump.ledger
        return self.is_done or ledger.wrong_cluster is not None or ledger.failure is not None

    def _result(self, timeout: float | None) -> RecordMetadata:
        """The end of `get`: the metadata, or the error."""
        parcel = self._parcel()
        if parcel is not None and parcel.done and parcel.error is None:
            return self._metadata()
        if not self.is_done:
            self._producer._raise_failure()
            self._producer._raise_wrong_cluster()
            cause = self._producer._network_cause()
            raise kafka_errors.KafkaTimeoutError(
                f"Timeout after waiting for {timeout} secs.{cause}{self._because()}"
            )
        error = self.exception
        if error is not None:
            raise error
        return self._metadata()

    def _because(self) -> str:
        return because(self._producer._pump.refused(self._chunk.topic))

    def _metadata(self) -> RecordMetadata:
        return self._chunk.metadata(self._index)

    def succeeded(self) -> bool:
        """The record was acknowledged."""
        return self.is_done and self.exception is None

    def failed(self) -> bool:
        """The record was refused or given up."""
        return self.is_done and self.exception is not None

    def retriable(self) -> bool:
        """Never: what can be retried is retried."""
        return False

    def add_callback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `f(*args, metadata, **kwargs)` when the record is acknowledged.

        On the producer's own callback thread, or at once if it is already. `flush()`, `get()` and `close()` return
        after it. It does not end a batch.
        """
        if args or kwargs:
            f = functools.partial(f, *args, **kwargs)
        chunk = self._chunk
        if chunk.open:
            # The common case, without a lock, as `_Chunk` does it: put it there, then look whether the chunk is still
            # open. The place is the record's own, and the first one's who adds anything: deleting succeeds once.
            try:
                del self._first
                chunk.firsts[self._index] = f
            except AttributeError:
                return self._add_callback(f)
            except IndexError:
                chunk.put_first(self._index, f)
            if chunk.open:
                return self
            firsts = chunk.first_calls()
            if self._index < len(firsts) and firsts[self._index] is not None:
                if chunk.parcels is not None:
                    chunk.watch((chunk.locate(self._index)[0],))
                return self
        return self._add_callback(f)

    def _add_callback(self, call: Callable[[RecordMetadata], Any]) -> RecordFuture:
        """It is not the record's first, or comes when the chunk is or may be sealed."""
        if not self._enlisted(self._chunk.callbacks, call) and self.succeeded():
            _safely(lambda: call(self._metadata()))
        return self

    def add_errback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `f(*args, exception, **kwargs)` when the record is refused or given up."""
        call = functools.partial(f, *args, **kwargs) if args or kwargs else f
        if not self._enlisted(self._chunk.errbacks, call) and self.failed():
            _safely(lambda: call(self.exception))
        return self

    def _enlisted(self, calls: list[Any], call: Callable[..., Any]) -> bool:
        """Leave a call to the callback thread, unless the record's fate is final."""
        chunk = self._chunk
        if chunk.parcels is not None and self.is_done:
            return False
        if not calls:
            chunk.thread.start()
        calls += (self._index, call)
        # In this order: the list is looked at after the chunk was sealed.
        if chunk.parcels is not None:
            chunk.watch((chunk.locate(self._index)[0],))
        return True

    def add_both(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `f` with the metadata or the exception when the fate of the record is final."""
        self.add_callback(f, *args, **kwargs)
        self.add_errback(f, *args, **kwargs)
        return self

    def _add_cb_eb(self, cb: Callable[..., Any], eb: Callable[..., Any]) -> None:
        self.add_callback(cb)
        self.add_errback(eb)

    def __repr__(self) -> str:
        if not self.is_done:
            return f"<RecordFuture {self._chunk.topic} pending{', durable' if self._is_durable() else ''}>"
        return f"<RecordFuture {self.exception or self._metadata()}>"


class SafeProducer(OfOneProcess):
    """A KafkaProducer that loses nothing: what `send` accepted is on disk before it is promised.

    Takes KafkaProducer's options under their names; unknown ones are refused. Defaults that differ: `linger_ms=5`,
    `batch_size=1000000`, `delivery_timeout_ms=None` (nothing is given up), `reconnect_backoff_max_ms=1000`. Its own:

    Args:
        spool_dir (str or Path): Where records wait. One directory per cluster; any number of processes may share it.
            Default: `KAFKASAFE_SPOOL_DIR`, else the user's state directory.
        spool (str): "always": every record is on disk before it is sent. "on_error": only what the cluster does not
            acknowledge within `spool_after_ms`, when the buffer fills, and at close; a crash of this process before
            that loses those records. "never": there are no files; whatever the cluster has not acknowledged is lost
            when this process ends.
        spool_max_bytes (int): Largest size of the spool on disk, or of what waits in memory (`spool="never"`). When it
            is full `send` blocks up to `max_block_ms`, then raises SpoolFullError. Default: 1 GiB, of memory 32 MiB.
        spool_segment_bytes (int): Size of one file. Default: an eighth of that, at most 64 MiB.
        spool_sync (str): "group": one fsync for all batches that wait. "each": one per batch. "os": none; a crash of
            the machine (not of the process) may lose what is not acknowledged.
        delivery (str): "idempotent": each batch goes to its partition by itself, once, for readers of any kind.
            "staged": in a transaction, committed in a step of its own, by this process or by another one; exactly once
            for readers with `isolation_level="read_committed"`. See docs/staged.md.
        spool_lane (int): Ask for this lane; LaneBusyError if another process has it. Default: the lowest free one.
        retain_acked_bytes (int): Keep so many bytes of delivered records on disk. Default: 0.
        delivery_timeout_ms (int): When it ends a future fails, but the record stays in the spool and is delivered.
        retain_acked_s (float): Keep delivered records on disk for so many seconds. Default: 0.
        on_acked_loss (str): What to do about acknowledged records that the cluster lost. "heal": send again what the
            spool still has, in order, before anything newer; what it does not have is a DataLossError of the next
            `send`, `flush` or `close`. "raise": send nothing again, DataLossError for all of it. Each loss is raised
            once. "event": neither. `AckedDataLost`, the log and the counters tell of it in any case.
        heal_recreated_topics (bool): Send it again also into a topic that was deleted and created again.
            Default: no.
        acked_loss_check_ms (int): How often idle partitions are checked for such a loss. Default: 30000.
        on_undecidable (str): What to do with a batch of which nobody knows whether it is in the log: "raise" (from
            `send` and `flush`, until `resume_parked`), "resend" (it may be there twice) or "skip".
        on_corrupt (str): "raise" SpoolCorruptError on a damaged spool, or "quarantine" what is damaged and go on.
            Damage found while sending stops its partition only ("raise": until the file is restored).
        dead_letter (callable): Called with topic, partition, key, value, headers, timestamp_ms and error of each
            record that the cluster refused for good.
        on_event (callable): Called with each event of `kafkasafe.events`, on the producer's own thread.
        metrics (bool): Be collected by prometheus-client's default registry; `kafkasafe.metrics.install` does it for
            others. Default: no.
        refused_timeout_ms (int): How long the cluster may refuse a topic that is missing, forbidden or invalid, or
            timestamps that are too far ahead, or fail on one batch, before what waits for it is rejected. Counted in
            this life of the producer, without a break. None: for ever. Default: seven days.
        on_refused_topic (str): What `send` does meanwhile for a topic that is missing, forbidden or invalid: "raise"
            kafka-python's exception for the code (the record is not accepted), or "accept" more records, which wait.
        producer_id_expiration_ms (int): As on the brokers. Default: 86400000.

    Raises:
        ConfigError: An option is unknown or cannot work.
        SpoolError: The spool cannot be opened; the message says what is safe and what to do.
    """

    DEFAULT_CONFIG: ClassVar[Mapping[str, Any]] = dict(DEFAULTS)
    """Options and their defaults."""
    DEPRECATED_CONFIGS: ClassVar[Iterable[str]] = tuple(DEPRECATED)
    _opened = False
    _new_future: Final = RecordFuture

    def __init__(self, **configs: Unpack[ProducerOptions]) -> None:
        self._closed: BaseException | None = None
        config = self._config = self._validated(configs)
        self.config: Mapping[str, Any] = config.kafka
        # Taken by `with` only. A signal handler that calls this producer in the middle of one of its calls, on the same
        # thread, takes it once more: see `_send_apart` and `_seal`.
        self._new_lock()
        self._asks_partitioner = config.custom_partitioner
        self._started = time.monotonic()
        self._chunks: dict[str, _Chunk] = {}
        self._units: dict[BatchOutcome, None] = {}
        """Atomic batches on their way from their callers to the pump, in order."""
        self._partition_counts: dict[str, int] = {}
        self._unchosen: set[str] = set()
        """Topics of which records wait, or did, for their partitions to be chosen."""
        self._rotation = random.randrange(1 << 16)
        self._key_serializer = _serializer(config.key_serializer)
        self._value_serializer = _serializer(config.value_serializer)
        self._partition_by = _partitioner(config.partitioner)
        self._serializes = self._key_serializer is not None or self._value_serializer is not None
        # What `send` looks at first: bytes are taken as they are.
        self._plain = not self._serializes and not self._asks_partitioner
        self._max_record_bytes = config.max_record_bytes - 2 * codec.HEADER_BYTES
        self._chunk_bytes = min(config.batch_bytes, self._max_record_bytes)
        files: Files = MemoryFiles() if config.in_memory else OsFiles()
        directory = SpoolDirectory.open(config.spool_dir, files=files)
        if config.in_memory:
            log.info(
                "spool='never': records that the cluster has not acknowledged are lost when this process ends",
                client_id=config.client_id,
                event="spool_never",
            )
        elif config.spool_dir_is_default:
            log.info(
                "Records wait in %s (spool_dir or KAFKASAFE_SPOOL_DIR change it)",
                config.spool_dir,
                client_id=config.client_id,
                path=str(config.spool_dir),
                event="spool_directory",
            )
        reason = None if config.in_memory else volatile_reason(config.spool_dir)
        if reason is not None:
            log.warning(
                "The spool %s may not survive a restart: %s",
                config.spool_dir,
                reason,
                client_id=config.client_id,
                path=str(config.spool_dir),
                event="spool_volatile",
            )
        if not config.in_memory:
            _await_dropped(config.spool_dir)
        lock = directory.take_lane(config.spool_lane, client=config.client_id, wait=time.sleep)
        self._hold = _Hold(self)
        try:
            self._transport: Cluster = connect(config.kafka)
            try:
                self._pump = Pump(
                    config,
                    self._transport,
                    directory,
                    files,
                    choose=self._hold.choose,
                    seal_due=self._hold.seal_due,
                    on_topic=self._hold.on_topic,
                    let_go=self._hold.let_go,
                )
                self._callbacks = self._callback_thread()
                self._pump.open(lock)
                # Before the threads start: then the journal is the pump's.
                self._unchosen.update(self._pump.unchosen_topics())
                self._partition_counts.update(self._pump.remembered_topics())
                self._transactions: Transactions | None = None
                if config.transactional_id is not None:
                    from kafkasafe.transactional import Transactions

                    self._transactions = Transactions(self, config.transactional_id)
                    self.send = self._transactions.send  # type: ignore[method-assign]
                self._pump.start()
            except BaseException:
                self._transport.close(0.0)
                raise
        except BaseException:
            lock.release()
            raise
        if config.metrics:
            install(self)
        _PRODUCERS.add(self)
        self._at_exit = _exit_hook(weakref.ref(self))
        atexit.register(self._at_exit)
        self._not_at_end_of_child = at_end_of_child(self._at_exit)
        self._opened = True

    def _validated(self, options: Mapping[str, Any]) -> ProducerConfig:
        return validate(options)

    # -- send ------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: list[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Accept a record.

        It is on disk soon after (`future.durable()`, `flush_spool()`), and in the cluster as soon as that takes it.

        Args:
            topic: Topic name.
            value: Bytes, or what `value_serializer` takes. None deletes the key from a compacted topic.
            key: Bytes, or what `key_serializer` takes. Decides the partition as KafkaProducer does.
            headers: (str, bytes) tuples; a value may be None.
            partition: Partition number, instead of the partitioner's choice.
            timestamp_ms: Ms since the epoch. Default: when the first record of its batch was accepted, at most
                `linger_ms` ago.

        Returns:
            A future for the record's metadata.

        Raises:
            SpoolFullError: No room within `max_block_ms`. The record was not accepted.
            KafkaTimeoutError: Callbacks of earlier records were not called within `max_block_ms`, because they are too
                slow. The record was not accepted.
            TopicAuthorizationFailedError, UnknownTopicOrPartitionError, InvalidTopicError: The cluster refuses the
                topic, confirmed (a missing one for a minute: it may be new), and records wait for it. This one was not
                accepted; those are delivered when the cluster takes them (`on_refused_topic="raise"`).
            ProducerClosedError: After `close`.
            DataLossError: The cluster lost acknowledged records that are not sent again (see `on_acked_loss`); once for
                each loss. The record was not accepted: send it again.
            TypeError: Key or value is not bytes and there is no serializer for it; headers of another shape.
            ValueError: Neither key nor value; a topic that cannot exist; a partition the topic does not have.
            MessageSizeTooLargeError: Larger than `max_request_size`.
        """
        special: Special | None = None
        if (
            self._plain
            and type(value) is bytes
            and headers is None
            and partition is None
            and timestamp_ms is None
            and (key is None or type(key) is bytes)
        ):
            size = RECORD_OVERHEAD + len(value)
            if key is not None:
                size += len(key)
        else:
            key, value, special, size = self._checked(topic, value, key, headers, partition, timestamp_ms)
        # Without the lock, which costs more than all the rest: see `_Chunk`.
        chunk: _Chunk | None = None
        index = -1
        try:
            chunk = self._chunks[topic]
            chunk.left = left = chunk.left - size
            if left >= 0:
                index = next(chunk.numbers)
                if key is not None:
                    chunk.keys[index] = key
                if special is not None:
                    chunk.special[index] = special
                chunk.values[index] = value
                if chunk.open:
                    future: RecordFuture = RecordFuture()
                    # One by one: of four at once a tuple is made, which takes as long as the rest of them.
                    future._producer = self
                    future._chunk = chunk
                    future._index = index
                    future._first = True
                    return future
        except LookupError:
            pass
        return self._accept(topic, key, value, special, size, chunk, index)

    def batch(self, *, transactional_id: str = "") -> AtomicBatch:
        """Records of any topics and partitions that are delivered together or not at all.

            with producer.batch() as batch:
                batch.send("orders", order)
                batch.send("audit", entry)
            batch.outcome.get()

        An exception in the block: nothing of it is sent. At the end of the block the batch goes into the spool as one
        unit, and from there to the cluster in one transaction: readers with `isolation_level="read_committed"` see all
        of it or nothing, exactly once, whatever crashes. It waits there through an outage.

        Args:
            transactional_id: Of the transaction; by default one of this producer's own.
        """
        self._check_fork()
        if self._closed is not None:
            raise self._closed
        return AtomicBatch(self, transactional_id)

    def _send_into(
        self,
        batch: AtomicBatch,
        topic: str,
        value: Any,
        key: Any,
        headers: list[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int | None,
        chunk: _Chunk | None = None,
        index: int = -1,
    ) -> tuple[RecordFuture, int]:
        """A record into an atomic batch, which nobody else looks at yet; and its size.

        In `chunk` it has a number (`index`) already if that is not negative, but there was no room for it.
        """
        key, value, special, size = self._checked(topic, value, key, headers, partition, timestamp_ms)
        self._check_topic(topic)
        if size > self._max_record_bytes:
            raise kafka_errors.MessageSizeTooLargeError(
                f"The record has {size} bytes, more than max_request_size={self._config.max_record_bytes} allows"
            )
        if size > batch._room:
            most = batch._most
            raise SpoolFullError(
                f"An atomic batch may hold {most:,} bytes (spool_segment_bytes): this record was not added. Commit what"
                " is there, or raise spool_segment_bytes"
            )
        if index < 0:
            chunk = batch._open.get(topic)
            if chunk is not None and chunk.open and chunk.left >= size:
                index = next(chunk.numbers)
        if chunk is None or not 0 <= index < _MAX_RECORDS - 1:
            chunk = _Chunk(topic, time.time_ns() // 1_000_000, _NEVER, self._chunk_bytes, self._callbacks)
            chunk.atomic = batch
            # In this order: Ctrl-C between them leaves an empty one, not one that is forgotten.
            batch._chunks.append(chunk)
            batch._open[topic] = chunk
            index = next(chunk.numbers)
        chunk.left -= size
        chunk.put(index, key, value, special)
        return self._future(chunk, index), size

    def _submit_unit(self, outcome: BatchOutcome, size: int) -> None:
        """An atomic batch becomes one unit, unless it was dropped meanwhile. What was accepted before goes before it.

        A signal handler may raise anywhere in here (Ctrl-C), or wait, or close the producer. Until it is accepted, in
        one step, nothing has happened; from then on it is among `_units` until it is handed over, by anybody.
        """
        self._check_fork()
        pump = self._pump
        deadline: float | None = None
        while True:
            if self._closed is not None:
                raise self._closed
            pump.ledger.raise_parked()
            self._raise_wrong_cluster()
            self._raise_loss()
            self._raise_failure()
            with pump.ledger.lock:
                if pump.ledger.room(size + self._needed()):
                    break
            deadline = self._wait_for_room(deadline, size)
        slip = outcome._head.slip
        with self._lock:
            for topic in dict.fromkeys(chunk.topic for chunk in outcome._chunks):
                earlier = self._chunks.get(topic)
                if earlier is not None:
                    self._seal(earlier)
            for chunk in outcome._chunks:
                chunk.open = False
                chunk.encoded = chunk.encoded or self._encoded(chunk)
                outcome._parcels += chunk.encoded.parcels
            for parcel in outcome._parcels:
                parcel.slip = slip
            try:
                self._units[outcome] = None
                # In this order: `close` sets it, then drops those that are not accepted.
                if self._closed is not None:
                    raise self._closed
                outcome._accept()
                self._hand_over_units()
            finally:
                if not outcome._accepted:
                    self._units.pop(outcome, None)
            if self._closed is not None and not outcome._accepted:
                raise self._closed

    def _hand_over_units(self) -> None:
        """Those that are accepted. In the middle of itself too: a signal handler."""
        if not self._units:
            return
        with self._lock:
            for outcome in list(self._units):
                if outcome._accepted:
                    self._hand_over(outcome)
                    self._units.pop(outcome, None)

    def _hand_over(self, outcome: BatchOutcome) -> None:
        head, parcels = outcome._head, outcome._parcels
        if outcome._callbacks:
            outcome._watch()
        if parcels or (head.slip is not None and head.slip.offsets):
            self._pump.submit([head, *parcels])
        elif not head.done:
            outcome._settle_empty()
        for chunk in outcome._chunks:
            encoded = chunk.encoded
            if chunk.parcels is None and encoded is not None:
                chunk.count, chunk.absent, chunk.sizes = encoded.count, encoded.absent, encoded.sizes
                chunk.parcel_of, chunk.index_in = encoded.parcel_of, encoded.index_in
                chunk.parcels = encoded.parcels
            chunk.forget()
            if chunk.firsts or chunk.callbacks or chunk.errbacks:
                chunk.watch(chunk.parcels or ())

    def _checked(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: list[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> tuple[bytes | None, bytes | None, Special | None, int]:
        """Of any record: key and value as bytes, what is special about it, and its size."""
        given_key, given_value = key, value
        if self._serializes:
            if value is None and key is None:
                # Not what a serializer makes of None: `null`.
                raise ValueError("Need at least one: key or value")
            headers = [] if headers is None else headers  # a serializer may add some
            key, value = self._serialize(topic, headers, key, value)
        size = RECORD_OVERHEAD
        if value is not None:
            value = _as_bytes(value, "value", "value_serializer")
            size += len(value)
        elif key is None:
            raise ValueError("Need at least one: key or value")
        if key is not None:
            key = _as_bytes(key, "key", "key_serializer")
            size += len(key)
        if self._asks_partitioner and partition is None:
            partition = self._ask_partitioner(topic, given_key, key, given_value, value)
        special: Special | None = None
        if headers or partition is not None or timestamp_ms is not None:
            if timestamp_ms is not None:
                timestamp_ms = _as_int(timestamp_ms, "timestamp_ms", _MAX_TIMESTAMP)
            if partition is not None:
                partition = self._check_partition(topic, partition)
            special = (partition, _check_headers(headers), timestamp_ms)
            size += 8 + sum(len(name.encode()) + len(content or b"") + 10 for name, content in special[1])
        return key, value, special, size

    def _accept(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        special: Special | None,
        size: int,
        chunk: _Chunk | None = None,
        index: int = -1,
    ) -> RecordFuture:
        """The rest of `send`: a chunk that is full, or sealed meanwhile, or has no room made yet.

        Args:
            topic: Its topic.
            key: Bytes or null.
            value: Bytes or null.
            special: Its own partition, headers and timestamp, if it has any.
            size: See `_checked`.
            chunk: Where it was to go, if there is one.
            index: Its number there, negative if it got none.
        """
        if size > self._max_record_bytes:
            raise kafka_errors.MessageSizeTooLargeError(self._too_large(size))
        if chunk is not None and index >= 0 and not chunk.open:
            with self._lock:
                self._seal(chunk)
            if chunk.has(index):
                return self._future(chunk, index)
        if self._interrupted():
            return self._send_apart(topic, key, value, special)
        deadline: float | None = None
        while True:
            # `with`: a signal handler that raises (Ctrl-C) right behind an acquire() would leave the lock taken.
            with self._lock:
                if chunk is None or index < 0 or not chunk.open:
                    chunk = self._chunks.get(topic)
                    if chunk is None or not chunk.open or chunk.left < size:
                        chunk = self._open_chunk(topic)
                    if chunk is not None:
                        chunk.left -= size
                        index = next(chunk.numbers)
                if chunk is not None:
                    if index < _MAX_RECORDS:
                        chunk.put(index, key, value, special)
                    if index >= _MAX_RECORDS - 1 or not chunk.open:
                        self._seal(chunk)
                    if chunk.open or chunk.has(index):
                        return self._future(chunk, index)
                    # A signal handler in the middle of this had it sealed, without this record.
                    chunk = None
                    continue
            deadline = self._wait_for_room(deadline)

    def _too_large(self, size: int) -> str:
        return (
            f"The record has {size} bytes, more than max_request_size={self._config.max_record_bytes} allows."
            " It was not accepted"
        )

    def _future(self, chunk: _Chunk, index: int) -> RecordFuture:
        future: RecordFuture = RecordFuture()
        future._producer, future._chunk, future._index, future._first = self, chunk, index, True
        return future

    def _new_lock(self) -> None:
        self._lock = threading.RLock()
        # Whether this thread has it already.
        self._interrupted: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]

    def _send_apart(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        special: Special | None,
    ) -> RecordFuture:
        """`send` in a signal handler that came in the middle of another call of this thread.

        What that call was doing to the open chunk is not known: it is sealed as it is, and the record gets a chunk of
        its own after it, sealed at once. The other call notices (`_Chunk.open`).
        """
        deadline: float | None = None
        while True:
            with self._lock:
                chunk = self._new_chunk(topic)
                if chunk is not None:
                    chunk.put(next(chunk.numbers), key, value, special)
                    self._seal(chunk)
                    return self._future(chunk, 0)
            deadline = self._wait_for_room(deadline)

    def _serialize(self, topic: str, headers: Any, key: Any, value: Any) -> tuple[Any, Any]:
        if self._key_serializer is not None:
            key = self._key_serializer(topic, headers, key)
        if self._value_serializer is not None:
            value = self._value_serializer(topic, headers, value)
        return key, value

    def _check_partition(self, topic: str, partition: Any) -> int:
        number = _as_int(partition, "partition", _MAX_PARTITION)
        known = self._partition_counts.get(topic)
        if known is None and (info := self._transport.topic(topic)) is not None and info.partitions:
            known = max(info.partitions) + 1  # records that wait for their partition to be chosen go first
        if known is not None and number >= known:
            raise ValueError(f"Unrecognized partition {number} for topic {topic}: it has {known}")
        return number

    def _ask_partitioner(
        self, topic: str, key: Any, key_bytes: bytes | None, value: Any, value_bytes: bytes | None
    ) -> int | None:
        """A partitioner of the user's is asked at once, while there are the key and value that it was written for.

        None where the topic is not known yet: then it is asked at first contact, for bytes.
        """
        count = self._partition_counts.get(topic)
        if count is None:
            return None
        cluster = _Cluster(topic, count, self._transport)
        chosen = self._partition_by(topic, key, key_bytes, value, value_bytes, cluster)
        return _as_int(chosen, f"the partitioner's choice for topic {topic}", count - 1)

    def _open_chunk(self, topic: str) -> _Chunk | None:
        """A chunk with room for one more record; None while there is no room. Called with the lock held."""
        while (chunk := self._new_chunk(topic)) is not None:
            # Unless a signal handler came just now, and while it waited another thread opened one: then after that.
            if self._chunks.setdefault(topic, chunk) is chunk:
                if self._closed is not None:
                    self._seal(chunk)
                    raise self._closed
                self._pump.poke()
                break
        return chunk

    def _begin_chunk(self, topic: str) -> _Chunk | None:
        """A topic's open chunk where there was none a moment ago; None while there is no room.

        Without the lock, so without a wait: the one before is submitted when it is no longer among the open ones, and
        who else begins one at the same time gets the same.
        """
        self._check_usable(topic)
        chunk = self._made_chunk(topic)
        if chunk is None:
            return None
        chunk = self._chunks.setdefault(topic, chunk)
        if self._closed is not None:
            self._seal_chunk(chunk)
            raise self._closed
        self._pump.poke()
        return chunk

    def _new_chunk(self, topic: str) -> _Chunk | None:
        """A chunk behind the one that is open, which is sealed; None while there is no room."""
        self._check_usable(topic)
        chunk = self._chunks.get(topic)
        if chunk is not None:
            self._seal(chunk)
        return self._made_chunk(topic)

    def _check_usable(self, topic: str) -> None:
        """Raises what ends the acceptance of records, of all or of a topic."""
        pump = self._pump
        if self._closed is not None:
            raise self._closed
        pump.ledger.raise_parked()
        pump.ledger.raise_damage(topic)
        self._raise_wrong_cluster()
        self._raise_loss()
        self._raise_failure()
        refused = pump.refused_topics.get(topic)
        if refused is not None and self._config.on_refused_topic == "raise":
            raise error_for_send(refused, self._config.spool_dir)

    def _made_chunk(self, topic: str) -> _Chunk | None:
        """A new chunk; None while there is no room."""
        if self._callbacks.full():
            return None
        needed, ledger = self._needed(), self._pump.ledger
        with ledger.lock:
            if not ledger.room(needed):
                return None
        self._check_topic(topic)
        due = time.monotonic() + self._config.linger_s
        return _Chunk(topic, time.time_ns() // 1_000_000, due, self._chunk_bytes, self._callbacks)

    def _check_topic(self, topic: str) -> None:
        if topic not in self._partition_counts:
            if not isinstance(topic, str):
                raise TypeError(f"topic must be a string, not {type(topic).__name__}")
            if not _TOPIC_NAME.fullmatch(topic) or topic in {".", ".."}:
                raise ValueError(
                    f"Topic {topic!r} cannot exist: 1 to 249 characters of a-z A-Z 0-9 . _ -, and not . or .."
                )

    def _needed(self) -> int:
        """Bytes that a new chunk and those that are open may need."""
        size = sum(self._chunk_bytes - max(chunk.left, 0) for chunk in list(self._chunks.values()))
        return 2 * self._max_record_bytes + size

    def _wait_for_room(self, deadline: float | None, size: int = 0) -> float:
        """Wait a while for room in the spool, without the lock; returns when to give up, to be passed in again.

        With `size` for that of an atomic batch, beside what is open.
        """
        now = time.monotonic()
        if deadline is None:
            deadline = now + self._config.max_block_s
        if now >= deadline or self._pump.is_current_thread():
            self._raise_no_room()
        pump = self._pump
        # What lingers takes room as well.
        self._seal_all()
        needed = size + self._needed()
        # In steps: nobody tells when somebody else makes room on the disk.
        pump.wait(
            lambda: not self._callbacks.full() and pump.ledger.room(needed),
            min(_LOOK_EVERY_S, deadline - now),
        )
        return deadline

    def _raise_no_room(self) -> NoReturn:
        """A record that found no room in time."""
        self._pump.no_room()
        if self._callbacks.full():
            raise kafka_errors.KafkaTimeoutError(
                f"{self._callbacks.due()} callbacks are due and have not run within max_block_ms="
                f"{self._config.max_block_s * 1000:.0f}: they take longer than the cluster. The record was not"
                " accepted. Let callbacks do less"
            )
        where = (
            f"memory (spool='never', spool_max_bytes={self._config.spool_max_bytes})"
            if self._config.in_memory
            else f"the spool {self._config.spool_dir}"
        )
        room = "" if self._config.in_memory else " make room on the disk,"
        raise SpoolFullError(
            f"No room in {where} within max_block_ms="
            f"{self._config.max_block_s * 1000:.0f}. The record was not accepted; everything accepted before is"
            f" kept. Raise spool_max_bytes,{room} or wait for the cluster."
            f"{self._network_cause()}"
        )

    def _seal_due(self, now: float) -> float:
        """Seal what lingered long enough; returns when the next one is due. On the pump's thread."""
        if not self._chunks and not self._units:
            return _NEVER
        # A caller that seals, or waits for room, holds the lock: then there is nothing to do here.
        if not self._lock.acquire(timeout=0.05):
            return now
        try:
            due = _NEVER
            self._hand_over_units()
            for chunk in list(self._chunks.values()):
                if chunk.due <= now:
                    # Also one without a record, which a Ctrl-C left.
                    self._seal(chunk)
                else:
                    due = min(due, chunk.due)
            return due
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def _let_go(self) -> Iterator[None]:
        """Without the locks that this thread has: in a signal handler, which came in the middle of another call.

        What it waits for needs them. That call goes on where it was, so everything open is sealed before another thread
        may look at it; it notices that (`_Chunk.open`).
        """
        held: list[Any] = []
        for lock in (self._pump.ledger.lock, self._lock):
            while lock._is_owned():  # type: ignore[attr-defined]
                if not held:
                    self._seal_all()
                lock.release()
                held.append(lock)
        try:
            yield
        finally:
            for lock in reversed(held):
                lock.acquire()

    def _seal_chunk(self, chunk: _Chunk) -> None:
        if chunk.parcels is None:
            if chunk.atomic is not None:
                chunk.atomic._cannot_wait()
            with self._lock:
                if chunk.parcels is None:
                    self._seal(chunk)

    def _seal_all(self) -> None:
        with self._lock:
            self._hand_over_units()
            for chunk in list(self._chunks.values()):
                self._seal(chunk)

    def _seal(self, chunk: _Chunk) -> None:
        """Choose partitions and encode. Called with the lock held: order of sealing is order of delivery.

        A signal handler may raise anywhere in here (Ctrl-C). Then the chunk is still among the open ones, takes no
        more records, and the next call goes on: nothing that was accepted is forgotten, and nothing submitted twice. It
        may as well call this in the middle of itself, or of `send`: what was encoded first is what counts.
        """
        chunk.open = False
        if self._units:
            self._hand_over_units()  # accepted before, by a commit that was interrupted
        if chunk.parcels is None:
            encoded = chunk.encoded or self._encoded(chunk)
            if chunk.encoded is None:
                if self._config.delivery == "staged" and encoded.parcels:
                    encoded = replace(encoded, head=_as_unit(encoded.parcels))
                chunk.encoded = encoded
                chunk.count, chunk.absent, chunk.sizes = encoded.count, encoded.absent, encoded.sizes
                chunk.parcel_of, chunk.index_in = encoded.parcel_of, encoded.index_in
            # Before anybody can wait for them.
            head = chunk.encoded.head
            parcels = chunk.encoded.parcels
            self._pump.submit(parcels if head is None else [head, *parcels])
            chunk.parcels = chunk.encoded.parcels
            if any(parcel.durable or parcel.done for parcel in chunk.parcels):
                self._pump.nudge()  # by now: callers who wait could not see that it is of theirs
            chunk.forget()
        if chunk.firsts or chunk.callbacks or chunk.errbacks:
            chunk.watch(chunk.parcels)
        if self._chunks.get(chunk.topic) is chunk:
            other = self._chunks.pop(chunk.topic, None)
            if (
                other is not None
                and other is not chunk
                and self._chunks.setdefault(chunk.topic, other) is not other
            ):
                # A signal handler came just now, and while it waited another thread opened it.
                self._seal(other)

    def _encoded(self, chunk: _Chunk) -> _Encoded:
        values, keys = chunk.close(), chunk.keys
        if chunk.encoded is not None:
            return chunk.encoded
        count = len(values)
        if not count:
            return _Encoded([])
        keys = keys[:count]
        keys = [] if keys.count(None) == len(keys) else keys + [None] * (count - len(keys))
        sizes = _sizes(keys), _sizes(values)
        absent: frozenset[int] = frozenset()
        if sizes[1] == -1 or (isinstance(sizes[1], list) and -1 in sizes[1]):
            absent = frozenset(i for i, value in enumerate(values) if value is _ABSENT)
        special = chunk.special.copy() if chunk.special else {}  # late ones may still come
        if not absent:
            special = {i: given for i, given in special.items() if i < count}
            return replace(self._encoded_all(chunk, keys, values, special), count=count, sizes=sizes)
        # Some took their number and did not get further: a signal handler, or Ctrl-C, came in the middle of `send`.
        present = [i for i in range(count) if i not in absent]
        if not present:
            return _Encoded([], None, count, absent, sizes)
        encoded = self._encoded_all(
            chunk,
            [keys[i] for i in present] if keys else [],
            [values[i] for i in present],
            {at: special[i] for at, i in enumerate(present) if i in special},
        )
        parcel_of, index_in = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        parcel_of[present] = 0 if encoded.parcel_of is None else encoded.parcel_of
        index_in[present] = np.arange(len(present)) if encoded.index_in is None else encoded.index_in
        return _Encoded(encoded.parcels, None, count, absent, sizes, parcel_of, index_in)

    def _encoded_all(
        self,
        chunk: _Chunk,
        keys: list[bytes | None],
        values: list[bytes | None],
        special: dict[int, Special],
    ) -> _Encoded:
        """Records of a chunk, each of which is there; no keys where none has one."""
        partitions = self._partition_counts.get(chunk.topic, 0)
        chosen = sum(partition is not None for partition, _, _ in special.values())
        if not partitions and chosen < len(values):
            self._unchosen.add(chunk.topic)
        if not partitions and chosen and chunk.topic in self._unchosen:
            # Some wait for their partition to be chosen. What goes to a given one must not overtake them.
            return _Encoded([self._parcel(chunk, UNCHOSEN, keys or None, values, special, None)])
        if chosen or (partitions > 1 and (keys or self._config.custom_partitioner)):
            return self._encoded_scattered(chunk, keys or [None] * len(values), values, special, partitions)
        partition = UNCHOSEN
        if partitions:
            self._rotation += 1
            partition = self._rotation % partitions
        return _Encoded([self._parcel(chunk, partition, keys or None, values, special, None)])

    def _encoded_scattered(
        self,
        chunk: _Chunk,
        keys: list[bytes | None],
        values: list[bytes | None],
        special: dict[int, Special],
        partitions: int,
    ) -> _Encoded:
        chosen = (
            self._choose(chunk.topic, partitions, keys, values)
            if partitions
            else np.full(len(values), UNCHOSEN, np.int64)
        )
        for index, (partition, _, _) in special.items():
            if partition is not None:
                chosen[index] = partition
        order = np.argsort(chosen, kind="stable")
        ordered = chosen[order]
        edges = np.flatnonzero(np.diff(ordered)) + 1
        parcels = []
        parcel_of = np.empty(len(values), np.int64)
        index_in = np.empty(len(values), np.int64)
        for number, indexes in enumerate(np.split(order, edges)):
            parcel_of[indexes] = number
            index_in[indexes] = np.arange(len(indexes))
            picked = indexes.tolist()
            parcels.append(
                self._parcel(
                    chunk,
                    int(chosen[indexes[0]]),
                    [keys[i] for i in picked],
                    [values[i] for i in picked],
                    special,
                    picked,
                )
            )
        return _Encoded(parcels, parcel_of=parcel_of, index_in=index_in)

    def _parcel(
        self,
        chunk: _Chunk,
        partition: int,
        keys: list[bytes | None] | None,
        values: list[bytes | None],
        own: dict[int, Special],
        picked: list[int] | None,
    ) -> Parcel:
        timestamps: int | list[int] = chunk.timestamp_ms
        headers: dict[int, Headers] | None = None
        given: tuple[tuple[int, int, int], ...] | None = None
        if own:
            indexes: Sequence[int] = range(len(values)) if picked is None else picked
            found = [(at, own[i]) for at, i in enumerate(indexes) if i in own]
            headers = {at: special[1] for at, special in found if special[1]}
            if partition == UNCHOSEN:
                runs = _runs((at, special[0]) for at, special in found)
                if runs or any(map(seems_given, headers.values())):
                    given = runs
            headers = headers or None
            if any(special[2] is not None for _, special in found):
                timestamps = [chunk.timestamp_ms] * len(indexes)
                for at, special in found:
                    if special[2] is not None:
                        timestamps[at] = special[2]
        data = codec.encode(
            keys, values, timestamps=timestamps, headers=headers, compression=self._config.compression
        )
        newest = timestamps if isinstance(timestamps, int) else max(timestamps)
        return Parcel(chunk.topic, partition, data, len(data), len(values), newest, given=given)

    def _choose(
        self, topic: str, partitions: int, keys: Sequence[bytes | None], values: Sequence[bytes | None]
    ) -> Indexes:
        """Partition of each record, as KafkaProducer's partitioner would choose it."""
        if self._config.custom_partitioner:
            cluster = _Cluster(topic, partitions, self._transport)
            try:
                return np.array(
                    [
                        _as_int(
                            self._partition_by(topic, key, key, value, value, cluster),
                            "the partitioner's choice",
                            partitions - 1,
                        )
                        for key, value in zip(keys, values, strict=True)
                    ],
                    np.int64,
                )
            except Exception:
                # The partitioner is the user's, the records are accepted: they go where the default one puts them.
                with apart():  # whose handler may send through this producer, which is locked
                    log.exception(
                        "%s: the partitioner failed; records go where KafkaProducer's puts them",
                        topic,
                        client_id=self.client_id,
                        topic=topic,
                        event="partitioner_failed",
                    )
        # Records without a key go together: to one partition per batch, another one each time (KIP-480).
        self._rotation += 1
        if None not in keys:
            if len(keys) == 1:
                return np.array([partition_for_key(keys[0] or b"", partitions)], np.int64)
            return np.asarray(partitions_for_keys([key or b"" for key in keys], partitions), np.int64)
        chosen = np.full(len(keys), self._rotation % partitions, np.int64)
        keyed = [i for i, key in enumerate(keys) if key is not None]
        if keyed:
            chosen[keyed] = partitions_for_keys([keys[i] or b"" for i in keyed], partitions)
        return chosen

    def _on_topic(self, topic: str, partitions: int) -> None:
        if self._partition_counts.get(topic) != partitions:
            self._partition_counts[topic] = partitions

    # -- waiting ---------------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record accepted before has its fate (acknowledged, refused, or given up), and its callbacks.

        Where something says that the cluster lost acknowledged records, it also waits until that is known, and until
        what is sent again is back. In a callback it waits for no callbacks. While it waits, a WARNING (`flush_waits`)
        says every 30 s for what.

        Args:
            timeout: Seconds, None for ever.

        Raises:
            KafkaTimeoutError: Not everything in time. It is on disk and will be delivered; callbacks will be called.
            UndecidableError: A batch is parked (`on_undecidable="raise"`).
            WrongClusterError: Another cluster answers instead of the one that the records are for. They are on disk
                and are delivered when theirs answers again.
            DataLossError: The cluster lost acknowledged records that are not sent again (see `on_acked_loss`); once for
                each loss, the next one by the next call. What waits is delivered all the same.
        """
        self._check_fork()
        pump = self._pump
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        self._seal_all()
        pump.adopt_now()
        number = pump.ledger.last_number()
        finished = self._await_settled(number, deadline)
        self._raise_unsettled(number, timeout, finished=finished)
        if not self._called(None, deadline):
            raise kafka_errors.KafkaTimeoutError(
                f"Every record was delivered, but not every callback had run after {timeout} s; they go on"
            )

    def _await_settled(self, number: int, deadline: float | None) -> bool:
        """Wait for what `flush` waits for, and say now and then for what; whether it is there."""
        pump = self._pump
        began = time.monotonic()
        while True:
            now = time.monotonic()
            left = _SAY_EVERY_S if deadline is None else min(_SAY_EVERY_S, max(0.0, deadline - now))
            if pump.wait(lambda: self._settled_or_never(number), left):
                return True
            now = time.monotonic()
            if pump.ledger.failure is not None or (deadline is not None and deadline <= now):
                return False
            waiting = pump.ledger.unfinished_records(number)
            what = [counted(waiting, "record") + " without an acknowledgement"] if waiting else []
            what += [f"whether {doubt}" for doubt in pump.doubts()[:3]]
            with apart():
                log.warning(
                    "flush() has waited for %.0f s, for: %s.%s%s",
                    now - began,
                    "; ".join(what) or "what is sent again after a loss",
                    self._network_cause(),
                    because(pump.refused()),
                    client_id=self._config.client_id,
                    records=waiting,
                    event="flush_waits",
                )

    def _settled_or_never(self, number: int) -> bool:
        """Whether `flush` has something to say."""
        ledger = self._pump.ledger
        return ledger.settled(number) or ledger.parked or ledger.damaged or ledger.wrong_cluster is not None

    def _raise_unsettled(self, number: int, timeout: float | None, *, finished: bool) -> None:
        """The end of `flush`: nothing, or the error."""
        pump = self._pump
        pump.ledger.raise_parked()
        delivered = pump.ledger.flushed(number)
        if not delivered:
            pump.ledger.raise_damage()
            self._raise_wrong_cluster()
        self._raise_loss()
        # Also where nothing is left to wait for: then it was given up.
        self._raise_failure()
        if not finished:
            where = "in memory, as long as this producer lives," if self._config.in_memory else "in the spool"
            doubted = self._doubted()
            what = "Not every record was acknowledged"
            if delivered and doubted:
                what = f"Whether {doubted} still has all acknowledged records was not known"
            raise kafka_errors.KafkaTimeoutError(
                f"{what} within {timeout} s; they are {where} and will be delivered."
                f"{self._network_cause()}{because(pump.refused())}"
            )

    def flush_spool(self, timeout: float | None = None) -> None:
        """Wait until every record accepted before is durable: fsynced in the spool, or in the cluster.

        With `spool="never"` only the cluster makes a record durable: this is `flush`, and also waits for what
        `delivery_timeout_ms` gave up.

        Args:
            timeout: Seconds, None for ever.

        Raises:
            KafkaTimeoutError: Not everything in time.
            SpoolError: The spool failed for good.
        """
        self._check_fork()
        pump = self._pump
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        self._seal_all()
        number = pump.ledger.last_undurable()
        if self._config.in_memory:
            self.flush(timeout)
            self._await_given_up(number, timeout, deadline)
            return
        if self._config.spool == "on_error":
            pump.spill_all()
        pump.wait(lambda: pump.ledger.spooled(number), timeout)
        self._raise_unspooled(number, timeout)

    def _await_given_up(self, number: int, timeout: float | None, deadline: float | None) -> None:
        """`spool="never"`: `flush` returned, which does not wait for what `delivery_timeout_ms` gave up."""
        pump, ledger = self._pump, self._pump.ledger
        pump.wait(
            lambda: ledger.spooled(number) or ledger.parked or ledger.wrong_cluster is not None,
            None if deadline is None else max(0.0, deadline - time.monotonic()),
        )
        self._raise_unspooled(number, timeout)

    def _raise_unspooled(self, number: int, timeout: float | None) -> None:
        """The end of `flush_spool`: nothing, or the error."""
        ledger = self._pump.ledger
        spooled = ledger.spooled(number)
        # Also where nothing is left to wait for: then it was given up.
        self._raise_failure()
        if spooled:
            return
        if not self._config.in_memory:
            raise kafka_errors.KafkaTimeoutError(f"Not every record was on disk within {timeout} s")
        ledger.raise_parked()
        self._raise_wrong_cluster()
        raise kafka_errors.KafkaTimeoutError(
            f"Not every record was acknowledged within {timeout} s; what delivery_timeout_ms gave up is in memory as"
            f" well, and will be delivered while this producer lives.{self._network_cause()}"
        )

    def close(self, timeout: float | None = None) -> None:
        """Make everything durable, deliver what can be delivered, and let go of the spool.

        What is not delivered by then stays on disk; the next producer on the directory delivers it, and a warning says
        how many records those are. With `spool="never"` it is lost, and that is raised. Calling it again does nothing.
        At the end of the interpreter it is called for those who did not.

        Args:
            timeout: Seconds to wait for deliveries. Default: as long as some are made, and 5 s more (30 s with
                `spool="never"`); where something
                has to wait before it may be sent, and until when is known, until then, at most two request timeouts.

        Raises:
            SpoolError: Not everything that was accepted could be made durable, or the spool failed for good. It is
                closed all the same.
            DeliveryTimeoutError: With `spool="never"`: records were accepted that the cluster has not acknowledged.
                Their futures have the same error. It is closed all the same.
            WrongClusterError: Another cluster answers instead of the one that records wait for. It is closed all the
                same, and they are on disk.
            DataLossError: As of `flush`; all losses that were not raised yet in one (`others`). It is closed all the
                same. Where the answer did not come in time a WARNING says so (`acked_loss_unknown`), and the next
                producer on the directory asks again.
            ValueError: A negative timeout, or nan.
        """
        if timeout is not None and (timeout := timeout_of(timeout)) < 0:
            raise ValueError(f"Invalid timeout: {timeout}")
        self._close(timeout, Patience(self._idle_s, _CLOSE_PAUSES * self._config.request_timeout_s))

    @property
    def _idle_s(self) -> float:
        """How long `close` waits for the next delivery."""
        return _CLOSE_MEMORY_IDLE_S if self._config.in_memory else _CLOSE_IDLE_S

    def _close(self, timeout: float | None, patience: Patience) -> None:
        if self._closed is not None:
            return
        self._check_fork()
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        pump = self._pump
        # First: what another thread still adds is sealed below, and no chunk is opened any more.
        self._closed = ProducerClosedError(
            "The producer is closed. What was accepted before is delivered or on disk"
        )
        for outcome in list(self._units):
            outcome._refuse()
        if self._transactions is not None:
            self._transactions.close()
        if pump.is_current_thread():
            # Called by a hook or a handler: waiting here would never end. What was accepted is written on the way.
            self._seal_all()
            pump.stop(0.0)
            self._closed_down(0.0)
            return
        with self._let_go():
            try:
                self._seal_all()
                if not self._config.in_memory:
                    self._flush_disk(_CLOSE_DISK_S if timeout is None else max(timeout, _CLOSE_DISK_LEAST_S))
                pump.adopt_now()
                self._await_deliveries(timeout, patience)
            finally:
                pump.stop(10.0)
                self._closed_down(deadline)
                self._tell_left()
        loss = pump.ledger.losses_left()
        try:
            if loss is not None:
                raise loss
        finally:
            self._raise_failure()
            self._raise_wrong_cluster()

    def _await_deliveries(self, timeout: float | None, patience: Patience) -> None:
        """Until everything is delivered, for `timeout` seconds, or for as long as there is something to hope for."""
        pump = self._pump
        began = time.monotonic()

        def end() -> float:
            return pump.patience_ends(patience, began) if timeout is None else began + timeout

        while True:
            if (
                pump.wait(pump.ledger.idle, max(0.0, end() - time.monotonic()))
                or pump.ledger.failure is not None
                or pump.ledger.parked
                or pump.ledger.wrong_cluster is not None
                or time.monotonic() >= end()
            ):
                return

    def _tell_left(self) -> None:
        """What is on disk at the end and not in the cluster, and what is not known to be there still."""
        doubted = self._doubted(self._pump.left_doubted)
        if doubted:
            then = f": the next producer on {self._config.spool_dir} asks again"
            log.warning(
                "Whether %s still has all acknowledged records was not known at the end%s",
                doubted,
                "" if self._config.in_memory else then,
                client_id=self.client_id,
                event="acked_loss_unknown",
            )
        records = self._pump.left_records
        if not records:
            return
        servers = self._config.kafka["bootstrap_servers"]
        directory = str(self._config.spool_dir)
        log.warning(
            "%d record%s not delivered, waiting in %s: the next producer on that directory delivers what waits, or"
            " kafkasafe spool drain %s -b %s",
            records,
            " is" if records == 1 else "s are",
            directory,
            shlex.quote(directory),
            servers if isinstance(servers, str) else ",".join(servers),
            client_id=self.client_id,
            lane=self.lane,
            records=records,
            path=directory,
            event="records_left",
        )

    def __del__(self) -> None:
        """Dropped without `close()`: its pump goes on until everything is delivered, as `close()` would wait for that.

        This waits a second at most, as KafkaProducer's does: what the next producer sends comes later. It takes no
        lock: the garbage collector calls it at any place.
        """
        if self._closed is not None or not self._opened:
            return
        self._closed = ProducerClosedError("The producer was collected by the garbage collector")
        self._hold.keep(self)
        _DROPPED[self._pump] = "" if self._config.in_memory else os.path.realpath(self._config.spool_dir)
        self._pump.retire(Patience(self._idle_s, 0.0), self._dropped)
        if (
            not threading.current_thread().name.startswith("kafkasafe-")
            and threading.get_ident() not in own_threads
        ):
            self._pump.join(_DROPPED_IDLE_S)
        if self._pump.ended():
            self._dropped()
        with contextlib.suppress(Exception):
            # An application may make an error of it, which nobody could catch here.
            text = f"SafeProducer {self.client_id} was dropped without close(); it goes on until all is delivered"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def _dropped(self) -> None:
        """The end of a dropped producer, on the pump's thread."""
        if not self._hold.keeps():
            return  # said before
        if self._pump not in _SUCCEEDED:
            self._tell_left()
        self._closed_down(time.monotonic() + _DROPPED_IDLE_S)
        self._hold.keep(None)
        _DROPPED.pop(self._pump, None)
        _SUCCEEDED.discard(self._pump)

    def _closed_down(self, deadline: float | None) -> None:
        atexit.unregister(self._at_exit)
        self._not_at_end_of_child()
        left = self._callbacks.stop(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if left:
            log.warning(
                "%d callbacks had not run when close() returned; they go on, unless the process ends",
                left,
                client_id=self.client_id,
                event="callbacks_left",
            )
        for serializer in (self._config.key_serializer, self._config.value_serializer):
            # As KafkaProducer does.
            if hasattr(serializer, "serialize") and hasattr(serializer, "close"):
                _safely(serializer.close)
        flush_metrics()
        # What its threads had to say; a handler that waits for this very close() is not waited for.
        drain(_LOG_S)
        _PRODUCERS.discard(self)

    def _flush_disk(self, limit_s: float) -> None:
        pump = self._pump
        number = pump.ledger.last_undurable()
        if self._config.spool == "on_error":
            pump.spill_all()
        if not pump.wait(lambda: pump.ledger.spooled(number), limit_s) and pump.ledger.failure is None:
            log.error(
                "Not everything could be made durable within %.0f s of close()",
                limit_s,
                client_id=self.client_id,
                event="not_durable",
            )

    def resume_parked(self, *, resend: bool) -> None:
        """Decide about the undecidable batches that the last UndecidableError spoke of; about all, if none was raised.

        What is parked after that error is for another decision: the next `send` or `flush` raises it.

        Args:
            resend: True: send it under a new id; it may then be in the log twice. False: take it as delivered.

        Raises:
            TypeError: `resend` is neither: "no" is no answer to be taken for a yes.
        """
        if not isinstance(resend, bool):
            raise TypeError(f"resend must be True or False, not {resend!r}: nothing was decided")
        self._check_fork()
        self._pump.resume_parked(resend=resend)

    def _raise_failure(self) -> None:
        failure = self._pump.ledger.failure
        if isinstance(failure, ForkedProcessError):
            raise failure
        if isinstance(failure, (SpoolError, DeliveryTimeoutError)):
            raise type(failure)(str(failure)) from failure
        if failure is not None:
            raise SpoolError(f"The producer ended by an error: {failure!r}") from failure

    def _raise_wrong_cluster(self) -> None:
        error = self._pump.ledger.wrong_cluster
        if error is not None:
            raise WrongClusterError(*error.args) from error

    def _doubted(self, partitions: Sequence[tuple[str, int]] | None = None) -> str:
        """Partitions where acknowledged records may be gone, for people; by default those of now."""
        found = self._pump.ledger.doubted if partitions is None else partitions
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return ", ".join(f"{topic}-{partition}" for topic, partition in found[:3]) + more

    def _raise_loss(self) -> None:
        """Of acknowledged records that are not sent again, or of records that are missing in the spool: each once."""
        loss = self._pump.ledger.next_loss()
        if loss is not None:
            raise loss

    def _check_fork(self) -> None:
        if isinstance(self._closed, ForkedProcessError):
            raise self._closed

    # -- callbacks -------------------------------------------------------------------------------------------------

    def _callback_thread(self) -> CallbackThread:
        pump = self._pump
        return CallbackThread(
            f"kafkasafe-callbacks-{self._config.client_id}", wake_senders=pump.nudge, ended=pump.ended
        )

    def _called(self, chunk: _Chunk | None, deadline: float | None) -> bool:
        """Wait for what is due, of this chunk or at all; False when the time ended first."""
        if chunk is not None:
            if chunk.firsts or chunk.callbacks or chunk.errbacks:
                # Sealed by another thread, which may have got no further.
                chunk.watch(chunk.parcels or ())
            if not chunk.watched:
                return True
        if self._pump.is_current_thread():
            return True
        with self._let_go():
            return self._callbacks.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    # -- looking ---------------------------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> set[int]:
        """Partitions of a topic.

        Raises:
            ProducerClosedError: After `close`.
            KafkaTimeoutError: Not known within `max_block_ms`.
        """
        if self._closed is not None:
            raise self._closed
        known = self._transport.topic(topic)
        if known is None or not known.partitions:
            self._pump.refresh_topic(topic)

            def answered() -> bool:
                info = self._transport.topic(topic)
                return info is not None and bool(info.partitions)

            if not self._pump.wait(answered, self._config.max_block_s):
                raise kafka_errors.KafkaTimeoutError(
                    f"Failed to update metadata after {self._config.max_block_s:.1f} secs.{self._network_cause()}"
                )
            known = self._transport.topic(topic)
        return set(known.partitions) if known is not None else set()

    @classmethod
    def max_usable_produce_magic(cls, api_version: tuple[int, ...]) -> int:  # noqa: ARG003  # KafkaProducer's signature
        """The record format: 2, since SafeProducer speaks to brokers since 0.11 alone."""
        return 2

    # -- transactions ----------------------------------------------------------------------------------------------

    def init_transactions(self) -> LastTransaction | None:
        """Take the transactional id over. Call it once, before the first transaction.

        Older producers with the same id are fenced. A transaction that `commit_transaction` was called for, by an
        earlier producer on this spool, is brought to its end first, whatever stopped that one.

        Returns:
            What became of the last such transaction, as far as this spool knows one; else None: what an earlier
            producer had not decided to commit was never sent. A second call does nothing and returns None.

        Raises:
            IllegalStateError: No `transactional_id`.
            KafkaTimeoutError: Not done within `max_block_ms`. Nothing is lost; another call waits on.
            TransactionalIdAuthorizationFailedError, InvalidTransactionTimeoutError: The cluster refuses it.
        """
        return self._in_transactions().init()

    def begin_transaction(self) -> None:
        """From now on `send` and `send_offsets_to_transaction` are part of one transaction.

        Raises:
            IllegalStateError: No `transactional_id`.
            KafkaError: Before `init_transactions`, in a transaction, fenced, or after an error and before its abort.
        """
        self._in_transactions().begin()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, Any],
        group_metadata: Any,
    ) -> None:
        """Commit a consumer's offsets in the transaction. The group's answer comes with `commit_transaction`.

        Args:
            offsets: `{TopicPartition: OffsetAndMetadata}`; the offset is that of the next record to be read.
            group_metadata: The consumer's `group_metadata()`, or the name of a group that has no members.

        Raises:
            IllegalStateError: No `transactional_id`.
            KafkaError: Not in a transaction.
            TypeError, ValueError: `group_metadata` is neither, or makes no sense.
        """
        self._in_transactions().send_offsets(offsets, group_metadata)

    def commit_transaction(self) -> None:
        """Commit: from the moment that it is on disk it is decided, and survives whatever crashes.

        Returns when readers of committed records can see it. It waits for as long as that takes; interrupted, it may be
        called again, and a later producer's `init_transactions` goes on with it.

        Raises:
            IllegalStateError: No `transactional_id`.
            ProducerFencedError: Another producer has taken the id over. Nothing of the transaction is delivered, and
                this producer can only be closed.
            CommitFailedError: The consumer whose offsets are part of it is not in its group any more. Nothing of it is
                delivered: call `abort_transaction`.
            BatchDroppedError: The cluster refused it for good, its records are in `rejected/`: call
                `abort_transaction`.
            SpoolFullError: No room within `max_block_ms`. It is still open.
            KafkaError: Not in a transaction.
        """
        self._in_transactions().commit()

    def abort_transaction(self) -> None:
        """Forget it. Nothing of it was sent; its futures have a TransactionAbortedError.

        Raises:
            IllegalStateError: No `transactional_id`.
            KafkaError: Not in a transaction, or fenced.
        """
        self._in_transactions().abort()

    def _in_transactions(self) -> Transactions:
        self._check_fork()
        if self._transactions is None:
            raise kafka_errors.IllegalStateError(
                "Transactional method invoked on a non-transactional producer: set transactional_id"
            )
        if self._closed is not None:
            raise self._closed
        return self._transactions

    def bootstrap_connected(self) -> bool:
        """Whether the cluster answers: use it as readiness probe.

        The constructor does not fail where no broker can be used, since records wait on disk; with a wrong password, CA
        or address this stays False, and `last_network_error` says why.
        """
        return self._transport.connected

    @property
    def last_network_error(self) -> BaseException | None:
        """Why no broker can be used (wrong password, certificate, address …), as of the latest try.

        None while the cluster answers, and before the first try.
        """
        return self._transport.last_error

    def _network_cause(self) -> str:
        """For the end of a message."""
        error = self._transport.last_error
        return "" if error is None else f" Brokers cannot be used yet ({in_words(error)})"

    def metrics(self, raw: bool = False) -> dict[str, Any]:
        """Counters since the start: {"kafkasafe": {name: value}}; and a few values under KafkaProducer's names.

        Those are in "producer-metrics", and rates and averages since the start; KafkaProducer's are of the last minute.
        """
        pump = self._pump
        values: dict[str, Any] = dict(pump.counters)
        values["spool_bytes"] = pump.ledger.kept_bytes
        values["unfinished_batches"] = pump.ledger.unfinished
        values["batches_not_durable"] = len(pump.ledger.undurable)
        if raw:
            return values
        seconds = max(time.monotonic() - self._started, 1e-3)
        sent = values.get("records_committed", 0)
        theirs = {
            "record-send-rate": sent / seconds,
            "record-error-rate": values.get("records_rejected", 0) / seconds,
            "records-per-request-avg": sent / max(values.get("batches_sent", 0), 1),
        }
        return {"kafkasafe": values, "producer-metrics": theirs}

    def _readings(self) -> Iterable[Reading]:
        """For `kafkasafe.metrics`."""
        return producer_readings(self._pump, closed=self._closed is not None)

    @property
    def client_id(self) -> str:
        """As given, or "kafkasafe"."""
        return self._config.client_id

    @property
    def spool_dir(self) -> os.PathLike[str] | None:
        """Where records wait; None with `spool="never"`."""
        return None if self._config.in_memory else self._config.spool_dir

    @property
    def lane(self) -> str:
        """Name of this producer's lane in the spool directory."""
        return self._pump.lane

    def __enter__(self) -> Self:
        """Usable in `with`: closes at the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close, as `close()`. After an exception of the block nothing else is raised, but logged, and noted there."""
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as own:
            error.add_note(f"And when the SafeProducer was closed: {type(own).__name__}: {own}")
            log.error(  # noqa: TRY400  # what it says matters, not where it was raised
                "Not raised after a %s: %s",
                type(error).__name__,
                own,
                client_id=self.client_id,
                error=type(own).__name__,
                event="close_failed",
            )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        where = "never" if self._config.in_memory else self._config.spool_dir
        return f"<SafeProducer {self._config.client_id} {state} spool={where}>"


class _Cluster:
    """What a partitioner may ask of the cluster: kafka-python's ClusterMetadata, as far as it is about partitions.

    Args:
        topic: The topic at hand, of which `partitions` partitions are known, maybe since an earlier life.
        partitions: See there.
        transport: Knows what the cluster said in this life.
    """

    def __init__(self, topic: str, partitions: int, transport: Cluster) -> None:
        self._topic = topic
        self._partitions = set(range(partitions))
        self._transport = transport

    def topics(self, exclude_internal_topics: bool = True) -> set[str]:
        """Topics that this producer writes to."""
        names = {self._topic, *self._transport.topics()}
        return {name for name in names if not (exclude_internal_topics and name.startswith("__"))}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Its partitions, None if it is not known."""
        if topic == self._topic:
            return set(self._partitions)
        info = self._transport.topic(topic)
        return set(info.partitions) if info is not None and info.partitions else None

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        """Those that have a leader. All while none is known to have one: records wait in the spool."""
        known = self.partitions_for_topic(topic)
        if known is None:
            return None
        return {number for number in known if self._leader(topic, number)[0] != -1} or known

    def leader_for_partition(self, partition: TopicPartition) -> int | None:
        """Node id of the leader, -1 if there is none now, None if the partition is not known."""
        known = self.partitions_for_topic(partition.topic)
        if known is None or partition.partition not in known:
            return None
        return self._leader(*partition)[0]

    def leader_epoch_for_partition(self, partition: TopicPartition) -> int | None:
        """Its epoch, -1 if that is not known, None if the partition is not."""
        known = self.partitions_for_topic(partition.topic)
        if known is None or partition.partition not in known:
            return None
        return self._leader(*partition)[1]

    def partitions_for_broker(self, broker_id: int) -> set[TopicPartition] | None:
        """Partitions that it leads, None if there are none."""
        led = {
            TopicPartition(topic, number)
            for topic in self.topics(exclude_internal_topics=False)
            for number in self.partitions_for_topic(topic) or ()
            if self._leader(topic, number)[0] == broker_id
        }
        return led or None

    def brokers(self) -> list[Broker]:
        """The brokers, each with node_id, host, port and rack."""
        return list(self._transport.brokers())

    def broker_metadata(self, broker_id: int) -> Broker | None:
        """One of them, None if it is not known."""
        return next((broker for broker in self._transport.brokers() if broker.node_id == broker_id), None)

    def _leader(self, topic: str, partition: int) -> tuple[int, int]:
        info = self._transport.topic(topic)
        known = None if info is None else info.partitions.get(partition)
        return (-1, -1) if known is None else (known.leader, known.leader_epoch)


def _takes(function: Callable[..., Any], arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:  # of a function written in C nothing may be known
        return True
    return True


def _serializer(given: Any) -> Callable[[str, Any, Any], Any] | None:
    if given is None:
        return None
    if hasattr(given, "serialize"):
        serialize = given.serialize
        if not _takes(serialize, 3) and _takes(serialize, 2):
            warnings.warn(
                "serializer does not implement serialize(topic, headers, data)",
                DeprecationWarning,
                stacklevel=3,
            )
            return lambda topic, _headers, data: serialize(topic, data)
        return serialize  # type: ignore[no-any-return]
    if callable(given):
        return lambda _topic, _headers, data: given(data)
    raise TypeError(
        f"A serializer is a function or has a method serialize(topic, headers, data), not {given!r}"
    )


def _partitioner(given: Any) -> Callable[..., Any]:
    partition = given.partition
    if not _takes(partition, 6) and _takes(partition, 3):
        warnings.warn(
            "partitioner does not implement kafka.partitioner.Partitioner", DeprecationWarning, stacklevel=3
        )
        return lambda topic, _key, key_bytes, _value, _value_bytes, cluster: partition(
            topic, key_bytes, cluster
        )
    return partition  # type: ignore[no-any-return]


def _sizes(items: list[bytes | None]) -> Sizes:
    if not items:
        return -1
    try:
        sizes = list(map(len, items))  # type: ignore[arg-type]  # of None it raises
    except TypeError:
        sizes = [len(item) if isinstance(item, bytes) else -1 for item in items]
    return sizes[0] if sizes.count(sizes[0]) == len(sizes) else sizes


def _as_bytes(item: Any, what: str, option: str) -> bytes:
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    raise TypeError(f"Unsupported type for serialized {what}: {type(item)}; pass bytes, or set {option}")


def _as_int(item: Any, what: str, most: int) -> int:
    try:
        number = operator.index(item)
    except TypeError:
        raise TypeError(f"{what} must be an int, not {type(item).__name__}") from None
    if not 0 <= number <= most:
        raise ValueError(f"{what} must be >= 0 and <= {most}, not {number}")
    return number


def _runs(given: Iterable[tuple[int, int | None]]) -> tuple[tuple[int, int, int], ...]:
    """(index, given partition or None) of records, ascending → (first index, number of records, partition)."""
    runs: list[tuple[int, int, int]] = []
    for index, partition in given:
        if partition is None:
            continue
        if runs and runs[-1][0] + runs[-1][1] == index and runs[-1][2] == partition:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, partition)
        else:
            runs.append((index, 1, partition))
    return tuple(runs)


def _check_headers(headers: Any) -> Headers:
    if headers is None:
        return ()
    if not isinstance(headers, list):
        raise TypeError(f"headers must be a list of (str, bytes) tuples, not {headers!r}")
    for index, item in enumerate(headers):
        if not (
            isinstance(item, tuple)
            and len(item) == 2
            and isinstance(item[0], str)
            and (item[1] is None or isinstance(item[1], bytes))
        ):
            raise TypeError(
                f"headers[{index}] must be a tuple (str, bytes), its value may be None; not {item!r}"
            )
    return tuple(headers)


def _safely(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        # The callback is the user's.
        log.exception("Error processing callback", event="callback_failed")


_PRODUCERS: weakref.WeakSet[SafeProducer] = weakref.WeakSet()


_DROPPED: dict[Pump, str] = {}
"""Pumps of producers that were dropped without `close()`, until their end, and the directories of their spools."""
_SUCCEEDED: set[Pump] = set()
"""Those of them whose lanes a new producer takes over."""


class _Hold:
    """A producer as its pump knows it: the application's, which may drop it; then the pump's until the end."""

    def __init__(self, producer: SafeProducer) -> None:
        self._seen = weakref.ref(producer)
        self._kept: SafeProducer | None = None

    def keep(self, producer: SafeProducer | None) -> None:
        self._kept = producer

    def keeps(self) -> bool:
        return self._kept is not None

    def _producer(self) -> SafeProducer | None:
        return self._kept or self._seen()

    def seal_due(self, now: float) -> float:
        producer = self._producer()
        # While it is being collected: soon.
        return now + 0.01 if producer is None else producer._seal_due(now)

    def on_topic(self, topic: str, partitions: int) -> None:
        producer = self._producer()
        if producer is not None:
            producer._on_topic(topic, partitions)

    def choose(
        self, topic: str, partitions: int, keys: Sequence[bytes | None], values: Sequence[bytes | None]
    ) -> Indexes:
        while (producer := self._producer()) is None:
            time.sleep(0.001)  # the garbage collector is about to keep it
        return producer._choose(topic, partitions, keys, values)

    def let_go(self) -> contextlib.AbstractContextManager[None]:
        producer = self._producer()
        return contextlib.nullcontext() if producer is None else producer._let_go()


def _await_dropped(spool_dir: os.PathLike[str]) -> None:
    """Producers on the same directory that were dropped end first: what they accepted comes before anything newer.

    What they cannot deliver soon is taken over with their lanes.
    """
    path = os.path.realpath(spool_dir)
    for pump, directory in list(_DROPPED.items()):
        if directory == path and not pump.is_current_thread():
            _SUCCEEDED.add(pump)
            pump.hurry(Patience(_DROPPED_IDLE_S, 0.0), _DROPPED_MOST_S)


def _exit_hook(reference: weakref.ref[SafeProducer]) -> Callable[[], None]:
    def close() -> None:
        producer = reference()
        if producer is not None:
            with contextlib.suppress(Exception):
                producer._close(None, Patience(producer._idle_s, 0.0))

    return close


@atexit.register
def _await_all_dropped() -> None:
    for pump in list(_DROPPED):
        pump.join(_DROPPED_MOST_S)


def _forked() -> None:
    _DROPPED.clear()
    _SUCCEEDED.clear()
    for producer in _PRODUCERS:
        producer._closed = ForkedProcessError(
            "This producer was opened before os.fork(): the parent process owns it and delivers what it accepted. Open"
            " a new SafeProducer in the child"
        )
        producer._new_lock()
        producer._chunks = {}
        producer._units = {}
        producer._pump.forked(producer._closed)
        producer._callbacks = producer._callback_thread()


os.register_at_fork(after_in_child=_forked)
