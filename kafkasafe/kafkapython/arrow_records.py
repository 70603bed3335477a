"""Records of a fetched partition as Arrow batches. No other module of the fetcher needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import kafka.errors as kafka_errors
import pyarrow as pa
from kafka.consumer.fetcher import Fetcher
from kafka.record import MemoryRecords
from kafka.structs import TopicPartition

from kafkasafe.kafkapython.records import TAKING, Kind
from kafkasafe.record.arrow_decode import Decoder, OldFormatError, schema_of
from kafkasafe.record.batch import CorruptBatchError

_arrow: Any = pa  # names from pyarrow's compiled modules have no types


class ArrowRecords:
    """Replaces kafka-python's `PartitionRecords`, and returns Arrow batches instead of records.

    Attributes:
        kind: The form of the result.
        state: See `Records`.
        next_fetch_offset: Offset after the last record that was taken.
        leader_epoch: Leader epoch of the record directly before `next_fetch_offset`; -1 if unknown.
        bytes_read: Size of the response in bytes; 0 until records are taken.
        records_read: Number of records that were taken.
    """

    state: Any = None

    def __init__(
        self,
        kind: Kind,
        fetch_offset: int,
        topic_partition: TopicPartition,
        records: Any,
        *,
        check_crcs: bool,
        isolation_level: int,
        aborted_transactions: Iterable[Any] | None,
        metric_aggregator: Any,
        on_drain: Any,
        **_: object,
    ) -> None:
        self.kind = kind
        self.topic_partition = topic_partition
        self.next_fetch_offset = fetch_offset
        self.leader_epoch = -1
        self.bytes_read = 0
        self.records_read = 0
        self._buffer = records._buffer
        self._aborted = aborted_transactions
        self._isolation_level = isolation_level
        self._check_crcs = check_crcs
        self._metric_aggregator = metric_aggregator
        self._on_drain = on_drain
        self._old: Any = None
        self._decoder: Decoder | None = Decoder(
            self._buffer,
            from_offset=fetch_offset,
            aborted=[(entry.producer_id, entry.first_offset) for entry in aborted_transactions or ()],
            read_committed=bool(isolation_level),
            columns=kind.columns,
            check_crcs=check_crcs,
            views=kind.views,
        )

    def __bool__(self) -> bool:
        return self._decoder is not None

    def belong_to(self, state: Any) -> None:
        """See `Records`."""
        self.state = state

    def drain(self) -> None:
        """Ends the object. Nothing more can be taken from it."""
        if self._decoder is None:
            return
        self._decoder = self._old = None
        self._buffer = b""  # a view would keep a whole large response in memory
        if self._metric_aggregator:
            self._metric_aggregator.record(self.topic_partition, self.bytes_read, self.records_read)
        self._on_drain(self)

    def own(self) -> bool:
        """Copies the remaining bytes, so that they do not keep the whole response in memory. Returns whether a copy was
        possible.
        """
        if self._decoder is None or self._old is not None or self.kind.views:
            return False
        self._buffer = self._decoder.own_buffer()
        return True

    def take(self, most: int) -> Any:
        """Takes a RecordBatch with at most `most` records. Returns None if no record is left. When the last record is
        taken, the object is drained.

        Raises:
            CorruptRecordError: The next batch is damaged. This object is drained; `next_fetch_offset` has not changed.
        """
        decoder = self._decoder
        if decoder is None:
            return None
        offset, self.next_fetch_offset = self.next_fetch_offset, TAKING
        try:
            records = decoder.read(most) if self._old is None else None
            self.next_fetch_offset, self.leader_epoch = decoder.next_offset, decoder.leader_epoch
        except CorruptBatchError as error:
            self.next_fetch_offset = offset
            self.drain()
            topic, partition = self.topic_partition
            raise kafka_errors.CorruptRecordError(
                f"{topic}-{partition}: {error}. The position stays {self.next_fetch_offset}. If the batch may have been"
                " damaged in transit, poll again; to leave it out, seek past it."
            ) from error
        except OldFormatError:
            # kafka-python reads the message formats of brokers before 0.11.
            self._old = Fetcher.PartitionRecords(
                offset,
                self.topic_partition,
                MemoryRecords(self._buffer),
                check_crcs=self._check_crcs,
                isolation_level=self._isolation_level,
                aborted_transactions=self._aborted,
            )
            records = None
        if self._old is not None:
            records = self._take_old(most)
        if records is None:
            self.drain()
            return None
        self.bytes_read = len(self._buffer)
        self.records_read += records.num_rows
        if decoder.is_at_end:
            self.drain()
        return records

    def _take_old(self, most: int) -> Any:
        rows = self._old.take(most)
        self.next_fetch_offset, self.leader_epoch = self._old.next_fetch_offset, self._old.leader_epoch
        if not rows:
            return None
        made = {
            "offset": [row.offset for row in rows],
            "timestamp": [-1 if row.timestamp is None else row.timestamp for row in rows],
            "timestamp_type": [row.timestamp_type or 0 for row in rows],
            "leader_epoch": [row.leader_epoch for row in rows],
            "key": [row.key for row in rows],
            "value": [row.value for row in rows],
            "headers": [[{"key": name, "value": value} for name, value in row.headers] for row in rows],
        }
        schema = schema_of(self.kind.columns, views=self.kind.views)
        return _arrow.RecordBatch.from_arrays(
            [_arrow.array(made[field.name], field.type) for field in schema], schema=schema
        )
