"""Encode the records of an open batch into parcels, each for one partition.

Encoding has no side effects and does not wait, so it may be repeated after a Ctrl-C, or after memory was short.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kafkasafe._producing.open_batch import (
    ABSENT,
    NOT_ENCODED,
    Encoded,
    Headers,
    OpenBatch,
    Sizes,
    Special,
    headers_bytes,
)
from kafkasafe._producing.open_batch_room import fitting_edges
from kafkasafe._producing.partitioning import Partitioning
from kafkasafe.delivery.engine.parcels import UNCHOSEN, Indexes, Parcel, seems_given
from kafkasafe.errors import SpoolWriteError
from kafkasafe.record import batch as codec


@dataclass(frozen=True, slots=True)
class Encoder:
    """Encodes the open batches of one producer.

    Attributes:
        batch_bytes: Largest size of a batch before compression. The limit matters only if an open batch has more room
            than `batch_bytes`.
    """

    partitioning: Partitioning
    compression: codec.Compression
    batch_bytes: int

    def encoded(self, open_batch: OpenBatch) -> Encoded:
        """Encode an open batch. Encoding has no side effects, so it may be repeated.

        Raises:
            SpoolWriteError: There is not enough memory.
        """
        try:
            return self._encode(open_batch)
        except (MemoryError, OSError) as error:
            # pyarrow's codecs raise OSError if memory is short. This code uses no files, so OSError has no other cause.
            raise SpoolWriteError(
                f"There is no memory to encode records of topic {open_batch.topic} ({type(error).__name__}: {error})."
                " While this producer is open, no accepted record is lost: the next call, or the producer's own thread,"
                " encodes them. Free memory, and call again"
            ) from error

    @staticmethod
    def lost(open_batch: OpenBatch, error: BaseException) -> Encoded:
        """Return an encoding without bytes for records that cannot be encoded. It has ended with this error."""
        values = open_batch.close()
        absent = frozenset(i for i, value in enumerate(values) if value is ABSENT)
        parcel = Parcel(open_batch.topic, UNCHOSEN, None, 0, len(values) - len(absent), 0)
        parcel.fail(error)
        parcel.end()
        return Encoded([parcel], None, len(values), absent)

    def _encode(self, open_batch: OpenBatch) -> Encoded:
        values, keys = open_batch.close(), open_batch.keys
        if open_batch.encoded is not NOT_ENCODED:
            return open_batch.encoded
        self.partitioning.batch_ended(open_batch.topic)
        count = len(values)
        if not count:
            return Encoded([])
        keys = keys[:count]
        keys = [] if keys.count(None) == len(keys) else keys + [None] * (count - len(keys))
        sizes = _sizes(keys), _sizes(values)
        absent: frozenset[int] = frozenset()
        if sizes[1] == -1 or (isinstance(sizes[1], list) and -1 in sizes[1]):
            absent = frozenset(i for i, value in enumerate(values) if value is ABSENT)
        special = open_batch.special.copy() if open_batch.special else {}  # late senders may add to the dict
        if not absent:
            special = {i: given for i, given in special.items() if i < count}
            return replace(self._encoded_all(open_batch, keys, values, special), count=count, sizes=sizes)
        # Some senders took a number but stored no record: a signal handler or Ctrl-C interrupted `send`.
        present = [i for i in range(count) if i not in absent]
        if not present:
            return Encoded([], None, count, absent, sizes)
        encoded = self._encoded_all(
            open_batch,
            [keys[i] for i in present] if keys else [],
            [values[i] for i in present],
            {at: special[i] for at, i in enumerate(present) if i in special},
        )
        parcel_of, index_in = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        parcel_of[present] = 0 if encoded.parcel_of is None else encoded.parcel_of
        index_in[present] = np.arange(len(present)) if encoded.index_in is None else encoded.index_in
        return Encoded(encoded.parcels, None, count, absent, sizes, parcel_of, index_in)

    def _encoded_all(
        self,
        open_batch: OpenBatch,
        keys: list[bytes | None],
        values: list[bytes | None],
        special: dict[int, Special],
    ) -> Encoded:
        """Encode records whose numbers have no gaps. `keys` is empty if no record has a key."""
        partitions = self.partitioning.count(open_batch.topic)
        chosen = sum(partition is not None for partition, _, _ in special.values())
        if not partitions and chosen < len(values):
            self.partitioning.leave_open(open_batch.topic)
        if not partitions and chosen and self.partitioning.left_open(open_batch.topic):
            # Some records wait until their partitions are chosen. Records with a given partition must not overtake
            # them.
            return Encoded([self._parcel(open_batch, UNCHOSEN, keys or None, values, special, None)])
        if chosen or (partitions > 1 and (keys or self.partitioning.asks)) or self._may_divide(open_batch):
            return self._encoded_scattered(
                open_batch, keys or [None] * len(values), values, special, partitions
            )
        partition = UNCHOSEN
        if partitions:
            partition = self.partitioning.next_partition(open_batch.topic, partitions)
        return Encoded([self._parcel(open_batch, partition, keys or None, values, special, None)])

    def _encoded_scattered(
        self,
        open_batch: OpenBatch,
        keys: list[bytes | None],
        values: list[bytes | None],
        special: dict[int, Special],
        partitions: int,
    ) -> Encoded:
        given = {i: partition for i, (partition, _, _) in special.items() if partition is not None}
        chosen = np.full(len(values), UNCHOSEN, np.int64)
        if partitions and not given:
            chosen = self.partitioning.choose(open_batch.topic, partitions, keys, values)
        elif partitions and len(given) < len(values):
            # Do not ask the application's partitioner about records that it has placed already: it may count its calls.
            rest = [i for i in range(len(values)) if i not in given]
            chosen[rest] = self.partitioning.choose(
                open_batch.topic, partitions, [keys[i] for i in rest], [values[i] for i in rest]
            )
        for index, partition in given.items():
            chosen[index] = partition
        order = np.argsort(chosen, kind="stable")
        ordered = chosen[order]
        sizes = _weights(keys, values, special)[order] if self._may_divide(open_batch) else None
        edges = fitting_edges(ordered, sizes, self.batch_bytes)
        parcels = []
        parcel_of = np.empty(len(values), np.int64)
        index_in = np.empty(len(values), np.int64)
        for number, indexes in enumerate(np.split(order, edges)):
            parcel_of[indexes] = number
            index_in[indexes] = np.arange(len(indexes))
            picked = indexes.tolist()
            parcels.append(
                self._parcel(
                    open_batch,
                    int(chosen[indexes[0]]),
                    [keys[i] for i in picked],
                    [values[i] for i in picked],
                    special,
                    picked,
                )
            )
        return Encoded(parcels, parcel_of=parcel_of, index_in=index_in)

    def _may_divide(self, open_batch: OpenBatch) -> bool:
        """Return whether the records of one partition may need several batches."""
        return open_batch.room > self.batch_bytes

    def _parcel(
        self,
        open_batch: OpenBatch,
        partition: int,
        keys: list[bytes | None] | None,
        values: list[bytes | None],
        own: dict[int, Special],
        picked: list[int] | None,
    ) -> Parcel:
        timestamps: int | list[int] = open_batch.timestamp_ms
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
                timestamps = [open_batch.timestamp_ms] * len(indexes)
                for at, special in found:
                    if special[2] is not None:
                        timestamps[at] = special[2]
        data = codec.encode(
            keys, values, timestamps=timestamps, headers=headers, compression=self.compression
        )
        newest = timestamps if isinstance(timestamps, int) else max(timestamps)
        return Parcel(open_batch.topic, partition, data, len(data), len(values), newest, given=given)


def _sizes(items: list[bytes | None]) -> Sizes:
    if not items:
        return -1
    try:
        sizes = list(map(len, items))  # type: ignore[arg-type]  # raises for None
    except TypeError:
        sizes = [len(item) if isinstance(item, bytes) else -1 for item in items]
    return sizes[0] if sizes.count(sizes[0]) == len(sizes) else sizes


def _weights(keys: list[bytes | None], values: list[bytes | None], special: dict[int, Special]) -> Indexes:
    """Return the size of each record, as `RecordForm.prepare` counts it."""
    sizes = np.full(len(values), codec.RECORD_OVERHEAD, np.int64)
    for column in (keys, values):
        sizes += np.maximum(_sizes(column), 0)
    for index, (_, headers, _) in special.items():
        sizes[index] += headers_bytes(headers)
    return sizes


def _runs(given: Iterable[tuple[int, int | None]]) -> tuple[tuple[int, int, int], ...]:
    """Convert ascending (index, given partition or None) to runs (first index, number of records, partition)."""
    runs: list[tuple[int, int, int]] = []
    for index, partition in given:
        if partition is None:
            continue
        if runs and runs[-1][0] + runs[-1][1] == index and runs[-1][2] == partition:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, partition)
        else:
            runs.append((index, 1, partition))
    return tuple(runs)
