"""The open batch: records of one topic that are sealed together, with their callbacks.

An open batch depends on the callback thread and on parcels (encoded batches), but not on a producer. Other objects of
the producer decide when an open batch is sealed and where its records go. The docstring of `OpenBatch` explains how
threads and signal handlers use it without a lock.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, TypeVar

import numpy as np
from kafka.producer.future import RecordMetadata
from kafka.structs import TopicPartition

from kafkasafe._producing.open_batch_room import MAX_RECORDS
from kafkasafe.delivery.callbacks import CallbackThread, take
from kafkasafe.delivery.engine.parcels import Indexes, Parcel
from kafkasafe.record.batch import Sizes

_T = TypeVar("_T")
_FEW_RECORDS: Final = 16
"""Size of the lists of a new open batch, in records. Full lists grow fourfold."""
ABSENT: Final[Any] = object()
"""Placeholder for a missing record."""

Headers = Sequence[tuple[str, bytes | None]]
Special = tuple[int | None, Headers, int | None]
"""Partition, headers and timestamp of a record for which the caller gave at least one of the three."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The encoded records of an open batch.

    Attributes:
        parcels: The parcels (encoded batches), each for one partition.
        head: If the parcels are one unit (atomic batch), the parcel that represents all of them; otherwise None.
        count, absent: The records of the open batch have the numbers below `count`, except the numbers in `absent`.
        sizes: Sizes of the keys and of the values.
        parcel_of, index_in: Two arrays, indexed by record number. `parcel_of` has the index in `parcels` of the parcel
            that contains the record, and `index_in` has the record's index in this parcel. Both are None if a single
            parcel contains all records, in the order of their numbers.
    """

    parcels: list[Parcel]
    head: Parcel | None = None
    count: int = 0
    absent: frozenset[int] = frozenset()
    sizes: tuple[Sizes, Sizes] = (-1, -1)
    parcel_of: Indexes | None = None
    index_in: Indexes | None = None


NOT_ENCODED: Final = Encoded([])
"""`OpenBatch.encoded` before sealing."""


@dataclass(slots=True)
class _WaitingCallbacks:
    """Callbacks and errbacks of the records in one parcel (encoded batch).

    Attributes:
        indexes: Arrays of record numbers. Together, the arrays have one record number for each of the `callbacks`, in
            the same order.
        error_indexes: For each of the `errbacks`, the number of its record.
    """

    parcel: Parcel
    indexes: list[Indexes] = field(default_factory=list)
    callbacks: list[Any] = field(default_factory=list)
    error_indexes: list[int] = field(default_factory=list)
    errbacks: list[Any] = field(default_factory=list)

    def add(self, indexes: Indexes, functions: Iterable[Any], *, errors: bool) -> None:
        """Add one callback for each record number in `indexes`. With `errors`, the functions are errbacks."""
        if errors:
            self.error_indexes += indexes.tolist()
            self.errbacks += functions
        else:
            self.indexes.append(indexes)
            self.callbacks += functions

    @property
    def calls(self) -> int:
        """How many callbacks and errbacks wait."""
        return len(self.callbacks) + len(self.errbacks)

    def all_indexes(self) -> Indexes:
        """Return one array with the record number of each of the `callbacks`."""
        return np.concatenate(self.indexes) if self.indexes else np.array([], np.int64)


class OpenBatch:
    """The records of one topic that are sealed together.

    Threads add records without a lock, and signal handlers may interrupt the threads and add records, too. A sender
    takes a number, stores its record at this number in the lists (the value last), and then checks whether the batch is
    still open. Sealing uses the opposite order: it marks the open batch as closed, then takes the stored records
    (`close`). So if a sender finds the batch still open, sealing will take the sender's record. If the sender finds the
    batch closed, it looks for its record among the records that sealing took (`took`).

    Attributes:
        open: Whether the open batch accepts records.
        room: Bytes of room of the empty open batch. If the room is more than `batch_size`, a partition may get several
            batches.
        most: Largest number of records.
        left: Bytes of room left. Concurrent threads may exceed the room, which makes a larger batch.
        numbers: Counter for record numbers. Some record numbers may stay unused: see `Encoded.absent`.
        keys, values: Keys and values by record number. The lists have spare entries at the end. `keys` may be shorter
            than `values`, because only records with a key extend it. Both lists are empty once the open batch is
            sealed.
        special: For each record for which the caller gave a partition, headers or a timestamp, by its number: the three
            values.
        timestamp_ms: Timestamp of records for which the caller gave none: the time when the first record was added.
        due: Monotonic time, in seconds, at which the open batch must be sealed at the latest.
        encoded: The encoded records; `NOT_ENCODED` before the open batch is sealed.
        parcels: The parcels; None before the pump has the parcels.
        acked: If the records' metadata differ only in the offset: the seven shared fields (topic, partition,
            TopicPartition, base offset, timestamp, size of the key, size of the value); otherwise None. `metadata` sets
            this attribute.
        firsts: List of the first callback of each record, by record number. Callbacks that are added after sealing are
            not in this list. The list may be shorter than the list of records. See `RecordFuture.add_callback`.
        callbacks, errbacks: Other callbacks that wait, as a flat list: record number, function, record number, function
            and so on. The garbage collector would need more time for a tuple for each callback than for the records.
        thread: The thread that calls the callbacks.
        guard: Function that raises UsageError while the open batch belongs to an uncommitted atomic batch, because only
            the commit may seal the open batch. The function's optional argument replaces the end of the error message.
            None for any other open batch.
        watched: Whether any callback was added.
    """

    __slots__ = (
        "__weakref__",
        "_first_calls",
        "_first_due",
        "_sorted",
        "_sorted_calls",
        "_taken",
        "acked",
        "callbacks",
        "due",
        "encoded",
        "errbacks",
        "firsts",
        "guard",
        "keys",
        "left",
        "most",
        "numbers",
        "open",
        "parcels",
        "room",
        "special",
        "thread",
        "timestamp_ms",
        "topic",
        "values",
        "watched",
    )

    def __init__(
        self,
        topic: str,
        timestamp_ms: int,
        due: float,
        room: int,
        thread: CallbackThread,
        guard: Callable[..., None] | None = None,
        most: int = MAX_RECORDS,
    ) -> None:
        self.topic = topic
        self.open = True
        self.room = room
        self.most = most
        self.left = room
        self.numbers = itertools.count()
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = [ABSENT] * _FEW_RECORDS
        self.special: dict[int, Special] = {}
        self.timestamp_ms = timestamp_ms
        self.due = due
        self.encoded = NOT_ENCODED
        self.parcels: list[Parcel] | None = None
        self.firsts: list[Any] = []
        self.callbacks: list[Any] = []
        self.errbacks: list[Any] = []
        self.thread = thread
        self.watched = False
        self.guard = guard
        self.acked: tuple[str, int, TopicPartition, int, int, int, int] | None = None
        self._taken: list[list[bytes | None]] = []
        self._first_calls: list[Sequence[Any]] = []
        self._first_due = -1
        self._sorted: dict[int, _WaitingCallbacks] = {}
        self._sorted_calls = 0

    def put(self, index: int, key: bytes | None, value: bytes | None, special: Special | None) -> None:
        """Store a record in the lists, at the index `index`. Extend the lists if necessary. Concurrent calls may extend
        the lists further than necessary.
        """
        # Read each attribute only once: a signal handler may seal the open batch, and sealing stores other lists in the
        # attributes.
        keys, values = self.keys, self.values
        for column, blank, wanted in ((keys, None, key is not None), (values, ABSENT, True)):
            while wanted and len(column) <= index:
                # When the list is extended for an earlier record, it gets no entry for the last possible record. So the
                # sender of the last possible record always gets here, and then seals the open batch.
                room = min(max(4 * len(column), _FEW_RECORDS), self.most - 1)
                column.extend([blank] * max(room - len(column), 1))
        if key is not None:
            keys[index] = key
        if special is not None:
            self.special[index] = special
        values[index] = value

    def close(self) -> list[bytes | None]:
        """Stop accepting records. Called with the producer's lock held. Reentrant: a signal handler may interrupt this
        call and call it again.

        Returns:
            The values by record number, with `ABSENT` for missing values. Each call returns the same list.
        """
        self.open = False
        # Read the attribute only once: a signal handler may seal the open batch now, and sealing stores another list in
        # the attribute.
        taken = self._taken
        taken.append(self.values[: next(self.numbers)])
        return taken[0]

    def enter(self, size: int) -> int:
        """Reserve room for a record of `size` bytes. Return the record's number."""
        self.left -= size
        return next(self.numbers)

    def take_room(self, size: int) -> None:
        """Reserve room for a record that already has a number."""
        self.left -= size

    def fill(self) -> None:
        """Leave no room for other records."""
        self.left = -1

    def make_due(self) -> None:
        """Make the open batch due: the pump seals it in its next turn."""
        self.due = 0.0

    def shut(self) -> None:
        self.open = False

    def keep(self, encoded: Encoded) -> Encoded:
        """Store the encoded records, unless an encoding is stored already. Return the stored encoding.

        A signal handler may interrupt the thread that seals the open batch, and seal the open batch itself. When the
        thread continues, the handler's encoded batches may be submitted already, so the thread must not use its own
        encoding.
        """
        if self.encoded is NOT_ENCODED:
            self.encoded = encoded
        return self.encoded

    def submitted(self) -> None:
        """Note that the pump has the encoded batches. Make them visible to callers, and drop the records."""
        self.parcels = self.encoded.parcels
        self.guard = None
        self.forget()

    @property
    def waiting(self) -> int:
        """Number of records that are not sealed; 0 once the open batch is sealed."""
        if self.parcels is not None:
            return 0
        values = self._taken[0] if self._taken else self.values
        return len(values) - values.count(ABSENT)

    def took(self, index: int) -> bool:
        """Return whether sealing took the record that was stored at `index`. Called after the open batch was closed,
        perhaps before it is sealed.

        This method takes no lock, because the sealing thread may hold the lock during the whole encoding.
        """
        taken: list[bytes | None] = []
        if self.encoded is NOT_ENCODED:
            # The sealing thread calls `close`, too, and each call returns the list that the first call took.
            # IndexError: during the call, the sealing thread has encoded the records and dropped the list.
            with contextlib.suppress(IndexError):
                taken = self.close()
        encoded = self.encoded
        if encoded is NOT_ENCODED:
            return index < len(taken) and taken[index] is not ABSENT
        return index < encoded.count and index not in encoded.absent

    def forget(self) -> None:
        """Drop the unencoded records."""
        self.keys, self.values, self._taken = [], [], []

    def locate(self, index: int) -> tuple[Parcel, int]:
        """Return the parcel (encoded batch) that contains the record `index`, and the record's index in the parcel. If
        the parcel was divided, return the part that contains the record.
        """
        if self.parcels is None:
            raise AssertionError("An open batch that is not sealed has no parcels")
        encoded = self.encoded
        if encoded.parcel_of is None or encoded.index_in is None:
            parcel = encoded.parcels[0]
        else:
            parcel = encoded.parcels[int(encoded.parcel_of[index])]
            index = int(encoded.index_in[index])
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
        keys, values = self.encoded.sizes
        place = TopicPartition(parcel.topic, parcel.partition)
        if (
            self.encoded.parcel_of is None
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

    def all_metadata(self, parcel: Parcel, indexes: Sequence[int] | Indexes) -> Iterator[RecordMetadata]:
        """Return the metadata of many records of one parcel (encoded batch). In the usual case, no Python code runs for
        each record.

        Args:
            parcel: An acknowledged parcel.
            indexes: The records' numbers; a range stands for all records in order.
        """
        if self.special or parcel.parent is not None:
            return map(self.metadata, _as_ints(indexes))
        base, index_in = parcel.base_offset, self.encoded.index_in
        offsets: Iterable[int] = itertools.repeat(-1, len(indexes))
        if base >= 0 and isinstance(indexes, range) and index_in is None:
            offsets = range(base, base + len(indexes))
        elif base >= 0:
            at = np.asarray(indexes) if index_in is None else index_in[indexes]
            offsets = (base + at).tolist()
        place = parcel.topic, parcel.partition, TopicPartition(parcel.topic, parcel.partition)
        stamp = self.timestamp_ms if parcel.log_append_time < 0 else parcel.log_append_time
        keys, values = self.encoded.sizes
        fields: Iterable[tuple[Any, ...]]
        if isinstance(keys, int) and isinstance(values, int):
            # Only offsets differ. `itertools.product` repeats the constant fields in C, so no Python code runs for each
            # record.
            fields = itertools.product(
                *((field,) for field in place), offsets, (stamp,), (None,), (keys,), (values,), (-1,)
            )
        else:
            indexes = _as_ints(indexes)
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

    # Callbacks. Callers append to `firsts`, `callbacks` and `errbacks`; only the callback thread removes entries.

    def put_first(self, index: int, function: Any) -> None:
        """Store a record's first callback, and extend the list if necessary. Thread-safe."""
        firsts = self.firsts  # the callback thread may replace the attribute
        firsts.extend([None] * (max(len(self.values), index + 1) - len(firsts)))
        firsts[index] = function
        self.thread.start()

    def first_calls(self) -> Sequence[Any]:
        """Return a copy of `firsts`, indexed by record number. The first call after the batch was closed makes the
        copy; later calls return the same copy.

        Thread-safe and reentrant. When the callback thread removes a function, it leaves another value that is not
        None. So callers still see which records had a callback.
        """
        if not self._first_calls:
            self._first_calls.append(self.firsts[:])
        return self._first_calls[0]

    def _take_firsts(self) -> tuple[Sequence[int], Sequence[Any]]:
        """Take the first callbacks. Return two sequences: the record number of each callback, and the callbacks. Later
        calls return empty sequences. Called on the callback thread, after the open batch was sealed.
        """
        firsts = self.first_calls()
        if not isinstance(firsts, list):
            return (), ()
        firsts = firsts[: self.encoded.count]
        every, self._first_due = self._first_due == len(firsts), 0
        # Drop the functions: a future that the program keeps refers to this open batch, and would keep the functions in
        # memory.
        self.firsts = []
        if every:
            self._first_calls[0] = range(len(firsts))
            return range(len(firsts)), firsts
        indexes = [i for i, function in enumerate(firsts) if function is not None]
        self._first_calls[0] = tuple(None if function is None else True for function in firsts)
        return indexes, [firsts[i] for i in indexes]

    def watch(self) -> None:
        """Arrange that the callbacks of this open batch, if any, are called when its encoded batches are done. Called
        after sealing. Idempotent.
        """
        if self.firsts or self.callbacks or self.errbacks:
            self._watch(self.parcels or ())

    def watch_record(self, index: int) -> None:
        """Do the same as `watch`, but only for the encoded batch that contains this record."""
        self._watch((self.locate(index)[0],))

    def _watch(self, parcels: Iterable[Parcel]) -> None:
        self.watched = True
        if self._first_due < 0:
            firsts = self.first_calls()[: self.encoded.count]
            self._first_due = len(firsts) - (0 if _all_there(firsts) else sum(f is None for f in firsts))
        for parcel in parcels:
            parcel.watch(self.on_done)
            # Set the watcher before reading the attributes: the pump sets the attributes before it looks for the
            # watcher.
            if parcel.children is not None:
                self._watch(child for child, _ in parcel.children)
            if parcel.done:
                parcel.take_watcher()
                self.thread.put(self._call_done)

    def on_done(self, parcel: Parcel) -> None:
        """Note that a parcel's result is final. The pump calls this method under the pump's lock."""
        waiting = (
            self._sorted_calls + max(self._first_due, 0) + (len(self.callbacks) + len(self.errbacks)) // 2
        )
        # Estimate how many callbacks are due. If this encoded batch has a tenth of the records, assume that a tenth of
        # the waiting callbacks are due.
        due = 0 if parcel.children is not None else waiting * parcel.count // max(self.encoded.count, 1)
        # Hand over the job even if `waiting` is 0, for two reasons. `waiting` does not include callbacks that the
        # callback thread is sorting. And the callback thread may have looked at this encoded batch before the batch was
        # done.
        self.thread.hand(self._call_done, due)

    def _call_done(self, due: int = 0) -> None:
        """Call the due callbacks. Runs on the callback thread."""
        parcels = self.parcels or []
        if len(parcels) == 1 and parcels[0].children is None:
            if parcels[0].done:
                indexes, functions = self._take_firsts()
                if functions:
                    self._call(parcels[0], indexes, functions, [], due)
                    due = 0
                callbacks, errbacks = take(self.callbacks), take(self.errbacks)
                if callbacks or errbacks or due:
                    self._call(parcels[0], callbacks[::2], callbacks[1::2], errbacks[1::2], due)
            return
        self._sort(*self._take_firsts(), errors=False)
        for flat, errors in ((take(self.callbacks), False), (take(self.errbacks), True)):
            self._sort(flat[::2], flat[1::2], errors=errors)
        for key, waiting in list(self._sorted.items()):
            if not _speaks(waiting.parcel):
                del self._sorted[key]
                self._sort(waiting.all_indexes(), waiting.callbacks, errors=False)
                self._sort(waiting.error_indexes, waiting.errbacks, errors=True)
        done = [key for key, waiting in self._sorted.items() if waiting.parcel.done]
        for key in done:
            waiting = self._sorted.pop(key)
            self._call(waiting.parcel, waiting.all_indexes(), waiting.callbacks, waiting.errbacks, due)
            due = 0
        self._sorted_calls = sum(waiting.calls for waiting in self._sorted.values())
        if not done:
            self.thread.call((), (), due)

    def _sort(self, indexes: Sequence[int] | Indexes, functions: Sequence[Any], *, errors: bool) -> None:
        """Group callbacks by the parcels (encoded batches) that contain their records. With `errors`, the functions are
        errbacks.
        """
        if not functions:
            return
        numbers = np.asarray(indexes)
        for parcel, picked in self._by_parcel(numbers):
            waiting = self._sorted.setdefault(id(parcel), _WaitingCallbacks(parcel))
            waiting.add(numbers[picked], pick(functions, picked.tolist()), errors=errors)

    def _by_parcel(self, indexes: Indexes) -> Iterator[tuple[Parcel, Indexes]]:
        """Yield each parcel (encoded batch) that has some of these records, with the positions of the parcel's records
        within `indexes`.

        If no parcel was divided, no Python code runs for each record.
        """
        parcel_of = self.encoded.parcel_of
        if parcel_of is None:
            groups = [np.arange(len(indexes))]
        else:
            numbers = parcel_of[indexes]
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
        indexes: Sequence[int] | Indexes,
        callbacks: Sequence[Any],
        errbacks: Sequence[Any],
        due: int,
    ) -> None:
        if parcel.error is None:
            self.thread.call(callbacks, self.all_metadata(parcel, indexes), due)
        else:
            self.thread.call(errbacks, itertools.repeat(parcel.error), due)


def headers_bytes(headers: Headers) -> int:
    """Return how many bytes a `Special` with these headers adds to the size of a record (`RecordForm.prepare`)."""
    return 8 + sum(len(name.encode()) + len(content or b"") + 10 for name, content in headers)


def pick(items: Sequence[_T], indexes: list[int]) -> Sequence[_T]:
    """Return the items with these indexes. There is at least one index."""
    if len(indexes) == 1:
        return [items[indexes[0]]]
    picked: tuple[_T, ...] = itemgetter(*indexes)(items)  # takes half the time of a comprehension
    return picked


def _as_ints(indexes: Sequence[int] | Indexes) -> Sequence[int]:
    """Return the numbers as Python integers, because a record's metadata must not contain numpy integers."""
    numbers: Sequence[int] = indexes.tolist() if isinstance(indexes, np.ndarray) else indexes
    return numbers


def _all_there(firsts: Sequence[Any]) -> bool:
    """Return whether `firsts` contains no None. The result may wrongly be False, but never wrongly True."""
    try:
        # Fast for functions. But an application's callable object may count as false, or raise an error in `bool()`.
        return all(firsts)
    except Exception:
        return False


def _speaks(parcel: Parcel) -> bool:
    """Return whether this parcel (encoded batch) itself stores the result of its records. Otherwise, its parts or its
    parent do.
    """
    if parcel.children is not None and parcel.error is None:
        return False
    above = parcel.parent
    while above is not None:
        if above.error is not None:
            return False
        above = above.parent
    return True
