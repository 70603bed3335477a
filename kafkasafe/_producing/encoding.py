"""Encode the records of an open batch into parcels. A parcel is one encoded batch of one partition.

The encoding does not wait. After an interruption (Ctrl-C, lack of memory), the encoding can be repeated: it changes
only the state of the `Partitioning`, and repeating these changes does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kafkasafe._producing.open_batch import (
    ABSENT,
    NOT_ENCODED,
    Encoded,
    Headers,
    OpenBatch,
    Special,
    headers_bytes,
    pick,
)
from kafkasafe._producing.open_batch_room import fitting_edges
from kafkasafe._producing.partitioning import Partitioning
from kafkasafe.delivery.engine.parcels import UNCHOSEN, Indexes, Parcel, seems_given
from kafkasafe.errors import SpoolWriteError
from kafkasafe.record import batch as codec
from kafkasafe.record.batch import Sizes, sizes_of

_INT16_MAX: Final = 0x7FFF


@dataclass(frozen=True, slots=True)
class _RecordRun:
    """Records whose numbers have no gaps.

    Attributes:
        keys: None if no record has a key.
        key_sizes, value_sizes: Sizes of the keys and of the values.
        special: For each record for which the caller gave a partition, headers or a timestamp, by its number: the three
            values.
    """

    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    key_sizes: Sizes
    value_sizes: Sizes
    special: dict[int, Special]

    def picked(self, numbers: list[int]) -> _RecordRun:
        """Return the records with these numbers, in this order."""
        special: dict[int, Special] = {}
        if self.special:
            special = {at: self.special[i] for at, i in enumerate(numbers) if i in self.special}
        return _RecordRun(
            None if self.keys is None else pick(self.keys, numbers),
            pick(self.values, numbers),
            self.key_sizes if isinstance(self.key_sizes, int) else pick(self.key_sizes, numbers),
            self.value_sizes if isinstance(self.value_sizes, int) else pick(self.value_sizes, numbers),
            special,
        )

    def weights(self) -> Indexes:
        """Return the size of each record, as `RecordForm.prepare` counts it."""
        weights = np.full(len(self.values), codec.RECORD_OVERHEAD, np.int64)
        for sizes in (self.key_sizes, self.value_sizes):
            weights += np.maximum(sizes, 0)
        for index, (_, headers, _) in self.special.items():
            weights[index] += headers_bytes(headers)
        return weights


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
        """Encode an open batch. This may be repeated.

        Raises:
            SpoolWriteError: There is not enough memory.
        """
        try:
            return self._encode(open_batch)
        except (MemoryError, OSError) as error:
            # pyarrow's codecs raise OSError if memory is short. This code uses no files, so an OSError always means
            # that memory is short.
            raise SpoolWriteError(
                f"There is no memory to encode records of topic {open_batch.topic} ({type(error).__name__}: {error})."
                " While this producer is open, no accepted record is lost: the next call, or the producer's own thread,"
                " encodes them. Free memory, and call again"
            ) from error

    @staticmethod
    def lost(open_batch: OpenBatch, error: BaseException) -> Encoded:
        """Return a substitute for the encoding of records that cannot be encoded: a parcel (encoded batch) without
        bytes, which has failed with this error.
        """
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
        if keys:
            keys += [None] * (count - len(keys))
        key_sizes = sizes_of(keys)
        special = open_batch.special.copy() if open_batch.special else {}  # late senders may add to the dict
        records = _RecordRun(
            None if key_sizes == -1 else keys,
            values,
            key_sizes,
            sizes_of(values),
            {i: given for i, given in special.items() if i < count},
        )
        sizes = records.key_sizes, records.value_sizes
        absent: frozenset[int] = frozenset()
        if sizes[1] == -1 or (not isinstance(sizes[1], int) and -1 in sizes[1]):
            absent = frozenset(i for i, value in enumerate(values) if value is ABSENT)
        if not absent:
            return replace(self._encoded_all(open_batch, records), count=count, sizes=sizes)
        # Some senders took a number but stored no record: a signal handler or Ctrl-C interrupted `send`.
        present = [i for i in range(count) if i not in absent]
        if not present:
            return Encoded([], None, count, absent, sizes)
        encoded = self._encoded_all(open_batch, records.picked(present))
        parcel_of, index_in = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        parcel_of[present] = 0 if encoded.parcel_of is None else encoded.parcel_of
        index_in[present] = np.arange(len(present)) if encoded.index_in is None else encoded.index_in
        return Encoded(encoded.parcels, None, count, absent, sizes, parcel_of, index_in)

    def _encoded_all(self, open_batch: OpenBatch, records: _RecordRun) -> Encoded:
        partitions = self.partitioning.count(open_batch.topic)
        chosen = sum(partition is not None for partition, _, _ in records.special.values())
        if not partitions and chosen < len(records.values):
            self.partitioning.leave_open(open_batch.topic)
        if not partitions and chosen and self.partitioning.left_open(open_batch.topic):
            # Some records wait until their partitions are chosen. Records whose partition the caller chose must not
            # overtake records without a partition.
            return Encoded([self._parcel(open_batch, UNCHOSEN, records)])
        by_record = records.keys is not None or self.partitioning.asks
        if chosen or (partitions > 1 and by_record) or self._may_divide(open_batch):
            return self._encoded_scattered(open_batch, records, partitions)
        partition = UNCHOSEN
        if partitions:
            partition = self.partitioning.next_partition(open_batch.topic, partitions)
        return Encoded([self._parcel(open_batch, partition, records)])

    def _encoded_scattered(self, open_batch: OpenBatch, records: _RecordRun, partitions: int) -> Encoded:
        values = records.values
        given = {i: partition for i, (partition, _, _) in records.special.items() if partition is not None}
        chosen = np.full(len(values), UNCHOSEN, np.int64)
        if partitions and not given:
            chosen = self._chosen(open_batch.topic, partitions, records)
        elif partitions and len(given) < len(values):
            # Do not ask the application's partitioner about the same record twice: a partitioner may count its calls.
            rest = [i for i in range(len(values)) if i not in given]
            chosen[rest] = self._chosen(open_batch.topic, partitions, records.picked(rest))
        for index, partition in given.items():
            chosen[index] = partition
        # numpy sorts 16-bit numbers fastest.
        order = np.argsort(chosen.astype(np.int16) if chosen.max() <= _INT16_MAX else chosen, kind="stable")
        ordered = chosen[order]
        weights = records.weights()[order] if self._may_divide(open_batch) else None
        edges = fitting_edges(ordered, weights, self.batch_bytes)
        parcels = []
        parcel_of = np.empty(len(values), np.int64)
        index_in = np.empty(len(values), np.int64)
        for number, indexes in enumerate(np.split(order, edges)):
            parcel_of[indexes] = number
            index_in[indexes] = np.arange(len(indexes))
            parcels.append(
                self._parcel(open_batch, int(chosen[indexes[0]]), records.picked(indexes.tolist()))
            )
        return Encoded(parcels, parcel_of=parcel_of, index_in=index_in)

    def _chosen(self, topic: str, partitions: int, records: _RecordRun) -> Indexes:
        keys = [None] * len(records.values) if records.keys is None else records.keys
        return self.partitioning.choose(topic, partitions, keys, records.values, records.key_sizes)

    def _may_divide(self, open_batch: OpenBatch) -> bool:
        """Return whether the records of one partition may need several batches."""
        return open_batch.room > self.batch_bytes

    def _parcel(self, open_batch: OpenBatch, partition: int, records: _RecordRun) -> Parcel:
        timestamps: int | list[int] = open_batch.timestamp_ms
        headers: dict[int, Headers] | None = None
        given: tuple[tuple[int, int, int], ...] | None = None
        if records.special:
            found = sorted(records.special.items())
            headers = {at: special[1] for at, special in found if special[1]}
            if partition == UNCHOSEN:
                runs = _runs((at, special[0]) for at, special in found)
                if runs or any(map(seems_given, headers.values())):
                    given = runs
            headers = headers or None
            if any(special[2] is not None for _, special in found):
                timestamps = [open_batch.timestamp_ms] * len(records.values)
                for at, special in found:
                    if special[2] is not None:
                        timestamps[at] = special[2]
        data = codec.encode(
            records.keys,
            records.values,
            timestamps=timestamps,
            headers=headers,
            compression=self.compression,
            sizes=(records.key_sizes, records.value_sizes),
        )
        newest = timestamps if isinstance(timestamps, int) else max(timestamps)
        return Parcel(open_batch.topic, partition, data, len(data), len(records.values), newest, given=given)


def _runs(given: Iterable[tuple[int, int | None]]) -> tuple[tuple[int, int, int], ...]:
    """Convert pairs (index, the caller's partition or None), sorted by index, to runs (first index, number of records,
    partition).
    """
    runs: list[tuple[int, int, int]] = []
    for index, partition in given:
        if partition is None:
            continue
        if runs and runs[-1][0] + runs[-1][1] == index and runs[-1][2] == partition:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, partition)
        else:
            runs.append((index, 1, partition))
    return tuple(runs)
