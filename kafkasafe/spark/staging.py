"""The staging topic in Kafka. Tasks store encoded batches in the staging topic. A single process reads the batches,
because only one process may write to the target topic.

A staged batch is the value of one record in the staging topic. The task that stages the batch reports the record's
place (`StagedBatch`) through Spark, not through Kafka. A record that no task reports is garbage, and retention removes
it. So any number of attempts of a task may stage batches.

A reader either finds a staged batch exactly as it was staged, or raises an error: the record at the reported offset
must have the reported size and CRC. So a reader notices if the log was truncated, deleted or replaced.
"""

from __future__ import annotations

import itertools
import queue
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import crc32c

from kafkasafe.classification import classify
from kafkasafe.cluster.api import EARLIEST, Cluster, Failure, OffsetListed, ProducerIdGranted, RecordsFetched
from kafkasafe.cluster.inquiry import pause_s
from kafkasafe.codes.numbers import OFFSET_OUT_OF_RANGE, TOPIC_AUTHORIZATION_FAILED
from kafkasafe.errors import SparkError
from kafkasafe.record import batch
from kafkasafe.spark.appender import Appender, FencedError, RestartError
from kafkasafe.spark.sink_options import SinkOptions
from kafkasafe.spark.transactions import TransactionRequests, call, retry_for
from kafkasafe.spark.txn import WriterIdentity

_PARTITIONS: Final = 8
_RETENTION_MS: Final = 6 * 60 * 60 * 1000
_SEGMENT_MS: Final = 30 * 60 * 1000  # retention removes only closed segments
_SEGMENT_BYTES: Final = 256 * 1024 * 1024
_RECORD_BYTES: Final = 256  # maximum overhead of a record and its batch
_FETCH_BYTES: Final = 4 * 1024 * 1024
_FETCH_WAIT_MS: Final = 100


class StagingError(SparkError):
    """A batch could not be staged, or a staged batch is missing or was changed. Readers see nothing of the
    micro-batch.
    """


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch in the staging topic.

    Attributes:
        topic: Target topic.
        partition: Target partition.
        rows: Number of records in the batch.
        at_partition: Partition of the staging topic.
        at_offset: Offset of the record that contains the batch.
        size: Number of bytes.
        crc: CRC32C of these bytes.
    """

    topic: str
    partition: int
    rows: int
    at_partition: int
    at_offset: int
    size: int
    crc: int


class Stager:
    """Stages the batches of one task, in order, in one partition of the staging topic. Not thread-safe.

    Args:
        transport: A started transport. The caller still owns it.
        options: Options of the writer. The option `stagingTopic` names the topic, which is created if it does not
            exist.

    Raises:
        KafkaError: The topic or a producer id is not available.
    """

    def __init__(self, transport: Cluster, options: SinkOptions) -> None:
        self._topic = options.staging_topic
        self._partition = random.randrange(_ensure(transport, options))
        granted: ProducerIdGranted = retry_for(
            options.api_timeout_s,
            lambda left_s: call(transport.init_producer_id, left_s),
            what="InitProducerId",
            api="InitProducerId",
        )
        self._offsets: list[int] = []
        self._kept: list[tuple[str, int, int, int, int]] = []
        self._appender = Appender(
            transport,
            WriterIdentity("", granted.producer_id, granted.epoch),
            options,
            claims=False,  # no other task has this id
            on_acked=lambda _, __, offset: self._offsets.append(offset),
        )

    def put(self, topic: str, partition: int, rows: int, data: bytes | bytearray) -> None:
        """Stages a batch for (topic, partition). Blocks while too many bytes are pending.

        Raises:
            StagingError: The batch cannot be staged.
            KafkaError: See `Appender.finish`.
        """
        self._kept.append((topic, partition, rows, len(data), crc32c.crc32c(data)))
        record = batch.encode(None, [data], timestamps=int(time.time() * 1000))
        with _reporting(self._topic):
            self._appender.append(self._topic, self._partition, record)

    def finish(self) -> list[StagedBatch]:
        """Waits until all in-sync replicas have the batches. Returns each batch's partition and offset in the staging
        topic, in order.

        Raises:
            StagingError: See `put`.
            KafkaError: See `put`.
        """
        with _reporting(self._topic):
            self._appender.finish()
        return [
            StagedBatch(topic, partition, rows, self._partition, offset, size, crc)
            for (topic, partition, rows, size, crc), offset in zip(self._kept, self._offsets, strict=True)
        ]


class _reporting:  # noqa: N801  # reads as a statement
    """Translates those errors of the appender that mention a transaction, because staging uses no transaction."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, raised: object, _trace: object) -> None:
        if isinstance(raised, RestartError | FencedError):
            raise StagingError(
                f"[KAFKASAFE.STAGING_FAILED] {raised}: the staging topic {self._topic!r} has lost the batches that this"
                " task had written to it (a broker lost its log?). The task can be run again."
            ) from raised


def _ensure(transport: Cluster, options: SinkOptions) -> int:
    """Returns the number of the staging topic's partitions. Creates the topic if it does not exist."""
    topic = options.staging_topic
    known = transport.topic(topic)
    if known is not None and known.partitions and not known.error_code:
        return len(known.partitions)  # a second metadata request so soon would be delayed
    coordinator = TransactionRequests(transport, "", timeout_s=options.api_timeout_s)
    # A batch that contains a single record may be slightly larger than the record size limit.
    largest_bytes = 2 * max(options.batch_bytes, options.max_record_bytes)
    # Create the topic before any other request: brokers that create topics automatically would not use our settings.
    try:
        coordinator.create_topic(
            topic,
            partitions=_PARTITIONS,
            config={
                "cleanup.policy": "delete",
                "retention.ms": str(_RETENTION_MS),
                "segment.ms": str(_SEGMENT_MS),
                "segment.bytes": str(_SEGMENT_BYTES),
                # With LogAppendTime, the brokers' clocks, not those of the tasks' machines, determine the age of a
                # record.
                "message.timestamp.type": "LogAppendTime",
                "max.message.bytes": str(largest_bytes + _RECORD_BYTES),
                "compression.type": "producer",
            },
        )
    except Exception as failed:
        if getattr(failed, "errno", None) != TOPIC_AUTHORIZATION_FAILED:
            raise
        # This user is not permitted to create topics. But the topic may exist already.
    return coordinator.partition_count(topic)


# --- reading staged batches -------------------------------------------------------------------------------------------


def fetch_staged(
    transport: Cluster, options: SinkOptions, wanted: Iterable[StagedBatch]
) -> Iterator[tuple[StagedBatch, bytearray]]:
    """Yields each staged batch with its bytes. The order is by partition of the staging topic, then by offset.

    Args:
        transport: A started transport. The caller still owns it.
        options: Options of the writer, with the name of the staging topic. `delivery_timeout_s` is the maximum time
            without progress.
        wanted: The batches, in any order, each once.

    Raises:
        StagingError: A batch does not exist, or was changed.
        KafkaError: A partition of the staging topic cannot be read.
    """
    for partition, pieces in itertools.groupby(
        sorted(wanted, key=lambda piece: (piece.at_partition, piece.at_offset)),
        key=lambda piece: piece.at_partition,
    ):
        yield from _Fetching(transport, options, partition, list(pieces)).run()


class _Fetching:
    """Reads one partition of the staging topic. Sends the next request while the caller uses the current response."""

    def __init__(
        self,
        transport: Cluster,
        options: SinkOptions,
        partition: int,
        pieces: Sequence[StagedBatch],
    ) -> None:
        self._transport = transport
        self._topic = options.staging_topic
        self._partition = partition
        self._pieces = pieces
        self._timeout_s = options.delivery_timeout_s
        self._answers: queue.SimpleQueue[RecordsFetched | Failure] = queue.SimpleQueue()

    def run(self) -> Iterator[tuple[StagedBatch, bytearray]]:
        at, failures = 0, 0
        deadline = time.monotonic() + self._timeout_s
        self._ask(at)
        while at < len(self._pieces):
            answer = self._answers.get()
            found = [] if isinstance(answer, Failure) or answer.error_code else self._found(answer, at)
            if not found:
                self._wait(answer, self._pieces[at], failures, deadline)
                failures += 1
                self._ask(at)
                continue
            at += len(found)
            if at < len(self._pieces):
                self._ask(at)
            yield from found
            # Restart the time limit here, because the time that the caller needed is not a stall of the brokers.
            failures, deadline = 0, time.monotonic() + self._timeout_s

    def _ask(self, at: int) -> None:
        self._transport.fetch_records(
            self._topic,
            self._partition,
            self._pieces[at].at_offset,
            _FETCH_BYTES,
            self._answers.put,
            max_wait_ms=_FETCH_WAIT_MS,
        )

    def _found(self, answer: RecordsFetched, at: int) -> list[tuple[StagedBatch, bytearray]]:
        """Returns the wanted batches in a response. The response may also contain batches of other tasks."""
        found: list[tuple[StagedBatch, bytearray]] = []
        for begin, header in batch.iter_headers(answer.records):
            if at == len(self._pieces):
                break
            piece = self._pieces[at]
            if header.base_offset < piece.at_offset:
                continue
            if header.base_offset > piece.at_offset:
                raise self._lost(piece, f"the next batch has offset {header.base_offset}")
            found.append((piece, self._value(answer.records, begin, piece)))
            at += 1
        return found

    def _value(self, records: Any, begin: int, piece: StagedBatch) -> bytearray:
        try:
            values = batch.decode(records, begin).values
        except batch.CorruptBatchError as damaged:
            raise self._lost(piece, f"it is damaged: {damaged}") from damaged
        value = values[0]
        if len(values) != 1 or value is None or len(value) != piece.size or crc32c.crc32c(value) != piece.crc:
            raise self._lost(piece, "that offset contains other records")
        return bytearray(value)

    def _wait(
        self, answer: RecordsFetched | Failure, piece: StagedBatch, failures: int, deadline: float
    ) -> None:
        """Pauses before the next request. Raises an error if the deadline has passed, or if a retry cannot help."""
        late = time.monotonic() > deadline
        if isinstance(answer, Failure):
            if late or not classify(answer.error, "fetch").retriable:
                raise answer.error
        elif answer.error_code == OFFSET_OUT_OF_RANGE:
            start = self._start_of_log()
            if start is not None and start > piece.at_offset:
                raise self._lost(piece, f"the log now begins at {start} (retention?)")
        elif answer.error_code:
            verdict = classify(answer.error_code, "fetch")
            if late or not verdict.retriable:
                raise self._lost(piece, f"{verdict.name}: {verdict.explanation}")
        if late:
            # The leader should have had the batch long ago, because all in-sync replicas have acknowledged it.
            raise self._lost(piece, f"the log did not reach to it within {self._timeout_s:g} s")
        if not isinstance(answer, Failure) and answer.error_code:
            self._transport.refresh_metadata([self._topic], lambda _: None)
        time.sleep(pause_s(failures))

    def _start_of_log(self) -> int | None:
        try:
            listed: OffsetListed = call(
                lambda reply: self._transport.list_offset(self._topic, self._partition, EARLIEST, reply),
                self._timeout_s,
            )
        except Exception:  # the caller asks again
            return None
        return None if listed.error_code else listed.offset

    def _lost(self, piece: StagedBatch, why: str) -> StagingError:
        return StagingError(
            f"[KAFKASAFE.STAGED_BATCH_LOST] {piece.rows} rows for {piece.topic}-{piece.partition} were staged in"
            f" {self._topic}-{self._partition} at offset {piece.at_offset} ({piece.size} bytes), but are not there"
            f" unchanged: {why}. Nothing of this batch was committed; run it again. If that is not enough, give the"
            " staging topic a longer retention.ms and min.insync.replicas of at least 2."
        )
