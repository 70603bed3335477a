"""Decodes KafkaConsumer's records, many at a time.

kafka-python's `PartitionRecords` decodes records one by one, in Python. `Records` replaces `PartitionRecords`, and
decodes many records of a batch at once (`record/record_decode`). Everything else is as in kafka-python: positions,
skipped batches, the moment at which each batch is read, and the order of records and errors. kafka-python still decodes
message formats before v2, and also records whose encoding differs from Kafka's own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final

import crc32c
import kafka.errors as kafka_errors
from kafka.consumer.fetcher import ConsumerRecord, Fetcher
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatch
from kafka.structs import TopicPartition

from kafkasafe.kafkapython.record import Record
from kafkasafe.packages import MissingPackageError
from kafkasafe.record.batch import HEADER_BYTES, MAX_BODY_BYTES, BatchHeader, CorruptBatchError
from kafkasafe.record.batch.compression import decompress
from kafkasafe.record.record_decode import NO_HEADERS, Piece, Place, Row, read, read_alike

_PIECE: Final = 2048  # number of records that are decoded at once
TAKING: Final = -1  # no valid offset, so that the data is fetched again after Ctrl-C during `take`
_FIRST_OFFSET: Final = -(1 << 63)
_HEADER: Final = DefaultRecordBatch.HEADER_STRUCT
_MAGIC: Final = 2
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 21
_COMPRESSED: Final = 0x07
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_OFFSET_FIELD: Final = ConsumerRecord._fields.index("offset")
_PARENT: Final[Any] = Fetcher.PartitionRecords
_make_record: Final[Any] = functools.partial(tuple.__new__, Record)


@dataclass(frozen=True, slots=True)
class Kind:
    """The form of RecordBatches: which columns they have, and whether they are copies.

    Attributes:
        columns: Names of the columns to decode.
        views: Whether keys and values are views of the received bytes.
    """

    columns: frozenset[str]
    views: bool = False


class _Decoded:
    """The decoded records of a piece of a batch, with their sizes."""

    __slots__ = ("records", "sizes")

    def __init__(self, records: Iterator[Any], sizes: list[int]) -> None:
        self.records = records
        self.sizes = iter(sizes)

    def give(self, taken: list[Any], most: int | None, part: Records) -> bool:
        """Adds at most `most` records to `taken`. Returns whether the piece is used up."""
        before = len(taken)
        try:
            taken.extend(islice(self.records, most))
        finally:
            count = len(taken) - before
            if count:
                part.passed(count, sum(islice(self.sizes, count)), taken[-1].offset + 1)
        return most is None or count < most


class _Foreign:
    """The rest of a batch, decoded by kafka-python."""

    __slots__ = ("_inner", "_is_old", "_records")

    def __init__(self, inner: Any, *, is_old: bool) -> None:
        self._inner = inner
        self._records = inner.record_iterator
        self._is_old = is_old

    def give(self, taken: list[Any], most: int | None, part: Records) -> bool:
        inner = self._inner
        before = len(taken)
        read_before = inner.records_read, inner.bytes_read
        try:
            taken.extend(islice(self._records, most))
        finally:
            after = taken[-1].offset + 1 if len(taken) > before else None
            part.passed(
                inner.records_read - read_before[0],
                inner.bytes_read - read_before[1],
                inner.next_fetch_offset if self._is_old else after,
            )
        if len(taken) > before:
            part.reached()
        return most is None or len(taken) - before < most


class Records(_PARENT):  # type: ignore[misc]  # kafka-python's says nothing of its types
    """Replaces kafka-python's `PartitionRecords`, which decodes record by record in version 3.0.12.

    Attributes:
        kind: None, because the results are records, not RecordBatches.
        state: kafka-python's state object of the partition when the response was accepted. If kafka-python has a newer
            state object, the partition was assigned again, and the records of this response are not returned.
        working_offset: The value to which `next_fetch_offset` is set when `take` returns.
        skipping: True until `Records` has reached the requested offset.
    """

    kind: Final = None
    state: Any = None
    topic_partition: TopicPartition

    def __init__(
        self,
        fetch_offset: int,
        tp: TopicPartition,
        records: Any,
        key_deserializer: Any = None,
        value_deserializer: Any = None,
        **options: Any,
    ) -> None:
        buffer = records._buffer
        response: Any = buffer.obj if isinstance(buffer, memoryview) else b""
        if 2 * len(buffer) < len(response):
            # Copy a small part of a large response, because a view would keep the whole response in memory until `poll`
            # takes the records.
            records = MemoryRecords(bytes(buffer))
        super().__init__(fetch_offset, tp, records, key_deserializer, value_deserializer, **options)
        self.working_offset = fetch_offset
        self.skipping = True
        self._deserializers = key_deserializer, value_deserializer
        self._is_plain = key_deserializer is None and value_deserializer is None
        self._piece: _Decoded | _Foreign | None = None
        self.record_iterator: Iterator[_Decoded | _Foreign] | None = self._pieces(records)

    def belong_to(self, state: Any) -> None:
        """Stores the state that the partition had when the response was accepted."""
        self.state = state

    def take(self, n: int | None = None) -> list[Any]:
        """Takes the next records, at most `n`; see kafka-python's method.

        Raises:
            Exception: The next record cannot be taken, because its batch is damaged or because a deserializer raised
                the error.
        """
        self._maybe_raise_next_inline_exception()
        taken: list[Any] = []
        # If Ctrl-C interrupts the code below, no record counts as taken.
        self.next_fetch_offset = TAKING
        try:
            while n is None or len(taken) < n:
                if self._piece is None:
                    source = self.record_iterator
                    self._piece = None if source is None else next(source, None)
                    if self._piece is None:
                        break
                if self._piece.give(taken, None if n is None else n - len(taken), self):
                    self._piece = None
        except Exception as error:
            self._piece = None
            self.record_iterator = iter(())  # behave like a generator that has raised an error
            self.next_fetch_offset = self.working_offset
            if not taken:
                raise
            # Raise it in the next call.
            self._next_inline_exception = error
            return taken
        self.next_fetch_offset = self.working_offset
        return taken

    def passed(self, records: int, size_bytes: int, next_offset: int | None) -> None:
        """Counts records that were taken or skipped. The offset of the next record is at least `next_offset`; None
        leaves `working_offset` unchanged.
        """
        self.records_read += records
        self.bytes_read += size_bytes
        if next_offset is not None:
            self.working_offset = next_offset

    def reached(self) -> None:
        """Marks the requested offset as reached."""
        self.skipping = False

    def _pieces(self, records: Any) -> Iterator[_Decoded | _Foreign]:
        """Yields the records batch by batch. Reads a batch only after all earlier records were taken."""
        after = None
        while (view := records._next_slice) is not None:
            if len(view) < HEADER_BYTES or view[_MAGIC_AT] != _MAGIC:
                old = records.next_batch()
                self._check_crc(old)
                yield self._by_kafka_python(old)
                after = None
                continue
            records._cache_next()
            header = BatchHeader(*_HEADER.unpack_from(view))
            if self.check_crcs and crc32c.crc32c(view[_ATTRIBUTES_AT:]) != header.crc:
                self._check_crc(DefaultRecordBatch(view))
            after = header.last_offset + 1
            if self._passes(header, view):
                yield from self._of(header, view)
            else:
                self.working_offset = after
        if after is not None:
            # Even if compaction has removed the last records of a batch, the position moves to the end of the batch.
            self.working_offset = after
        self.drain()

    def _check_crc(self, batch: Any) -> None:
        if self.check_crcs and not batch.validate_crc():
            raise kafka_errors.CorruptRecordError(
                f"Record batch for partition {self.topic_partition} at offset {batch.base_offset} failed crc check"
            )

    def _passes(self, header: BatchHeader, view: memoryview) -> bool:
        """Whether to deliver the batch's records. Must be called for every batch, in order."""
        self.leader_epoch = header.partition_leader_epoch
        if not header.attributes & (_TRANSACTIONAL | _CONTROL):
            return True
        if self.isolation_level and header.producer_id >= 0:  # read_committed
            self._consume_aborted_transactions_up_to(header.last_offset)
            if header.is_control:
                # Compaction may remove the transaction marker from its batch, and leave only the batch header.
                if header.count and self._contains_abort_marker(DefaultRecordBatch(view)):
                    self.aborted_producer_ids.discard(header.producer_id)
            elif header.producer_id in self.aborted_producer_ids:
                return False
        return not header.is_control

    def _of(self, header: BatchHeader, view: memoryview) -> Iterator[_Decoded | _Foreign]:
        """Yields the records of one batch."""
        body: bytes | memoryview = view[HEADER_BYTES:]
        left = header.count
        if not left and not body:
            return
        if header.attributes & _COMPRESSED:
            try:
                body = decompress(bytes(body), header.compression, MAX_BODY_BYTES)
            except CorruptBatchError as error:
                yield self._without_codec(DefaultRecordBatch(view), error)
                return
            except MissingPackageError:
                # kafka-python decompresses with other packages, and raises an error if they are missing too.
                yield self._by_kafka_python(DefaultRecordBatch(view))
                return
            except ValueError:
                yield self._by_kafka_python(DefaultRecordBatch(view))  # kafka-python raises the error
                return
        is_appended = header.is_log_append_time
        topic, partition = self.topic_partition
        place = Place(
            topic,
            partition,
            header.partition_leader_epoch,
            int(is_appended),
            header.base_offset,
            header.base_timestamp,
            header.max_timestamp if is_appended else None,
        )
        at = 0
        while left > 0:
            piece = read_alike(body, at, min(left, _PIECE), place)
            if piece is None:
                body = bytes(body)  # reading single bytes of a memoryview is slow
                piece = read(body, at, min(left, _PIECE), place)
            if piece is None:
                break
            at = piece.end
            left -= len(piece.sizes)
            if not self.skipping or self._reach_start(piece):
                rows = piece.rows
                records = map(_make_record, rows) if self._is_plain else self._deserialized(rows)
                yield _Decoded(records, piece.sizes)
        if left or at != len(body):
            # kafka-python continues after the decoded records, and finds the error.
            batch: Any = DefaultRecordBatch(view)
            batch._buffer = bytearray(body)
            batch._pos = at
            batch._next_record_index = header.count - left
            batch._decompressed = True
            yield self._by_kafka_python(batch)

    def _reach_start(self, piece: Piece) -> bool:
        """Skips records before the requested offset (brokers return whole batches). Returns whether the piece has
        records from this offset on.
        """
        passed = 0
        for row in piece.rows:
            offset = row[_OFFSET_FIELD]
            if offset >= self.fetch_offset:
                self.reached()
                piece.put_back(row)
                break
            passed += 1
            self.working_offset = offset + 1
        self.passed(passed, sum(piece.sizes[:passed]), None)
        del piece.sizes[:passed]
        return not self.skipping

    def _deserialized(self, rows: Iterable[Row]) -> Iterator[Any]:
        key_deserializer, value_deserializer = self._deserializers
        for topic, partition, epoch, offset, timestamp, kind, key, value, found, *rest in rows:
            headers = [] if found is NO_HEADERS else found
            try:
                made_key = self._deserialize(key_deserializer, topic, headers, key)
                made_value = self._deserialize(value_deserializer, topic, headers, value)
            except StopIteration as error:
                # A StopIteration of the deserializer would look like the end of the records.
                raise RuntimeError("StopIteration raised unpacking messageset") from error
            yield ConsumerRecord(
                topic, partition, epoch, offset, timestamp, kind, made_key, made_value, headers, *rest
            )

    def _by_kafka_python(self, batch: Any) -> _Foreign:
        is_old = batch.magic != 2
        key_deserializer, value_deserializer = self._deserializers
        inner = _PARENT(
            self.fetch_offset if self.skipping else _FIRST_OFFSET,
            self.topic_partition,
            SimpleNamespace(next_batch=iter((batch, None)).__next__),
            key_deserializer,
            value_deserializer,
            check_crcs=is_old and self.check_crcs,  # for message format v2, the CRC was already checked
        )
        inner.leader_epoch = self.leader_epoch  # old messages do not have one
        if is_old:
            inner.next_fetch_offset = self.working_offset
        return _Foreign(inner, is_old=is_old)

    def _without_codec(self, batch: Any, error: CorruptBatchError) -> _Foreign:
        try:
            batch._assert_has_codec(batch.compression_type)
        except kafka_errors.UnsupportedCodecError:
            # Replace kafka-python's error, which would name a missing package as the cause.
            raise kafka_errors.CorruptRecordError(
                f"Record batch for partition {self.topic_partition} at offset {batch.base_offset}: {error}"
            ) from error
        return self._by_kafka_python(batch)
