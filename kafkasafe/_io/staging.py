"""Encoded batches on their way from tasks to the one process that may write them: in a Kafka topic of their own.

A staged batch is the value of one record. Who staged it tells where (`Staged`), by another way than Kafka; a record
that nobody is told of is garbage, and removed by retention. So it does not matter who else stages, or how often.

What was staged is found again or it is an error: the record at the very offset, of the very size and CRC. Where the log
was cut, deleted from, or is another one, nothing is guessed and nothing is left out.
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

from kafkasafe._core import batch
from kafkasafe._core.txn import Grant
from kafkasafe._io.appender import Appender, FencedError, RestartError
from kafkasafe._io.inquiry import pause_s
from kafkasafe._io.transactions import Coordinator, call, insist
from kafkasafe._io.transport import Transport
from kafkasafe.classification import classify
from kafkasafe.cluster.api import Failure, OffsetListed, ProducerIdGranted, RecordsFetched
from kafkasafe.errors import SparkError

__all__ = ["Staged", "Stager", "StagingError", "fetch_staged"]

_PARTITIONS: Final = 8
_RETENTION_MS: Final = 6 * 60 * 60 * 1000
_SEGMENT_MS: Final = 30 * 60 * 1000  # only closed segments are removed
_SEGMENT_BYTES: Final = 256 * 1024 * 1024
_RECORD_BYTES: Final = 256  # what a record and its batch add to a value, at most
_FETCH_BYTES: Final = 4 * 1024 * 1024
_FETCH_WAIT_MS: Final = 100
_OUT_OF_RANGE: Final = 1
_UNAUTHORIZED: Final = 29
_EARLIEST: Final = -2


class StagingError(SparkError):
    """A batch could not be staged, or what was staged is not there as it was. Nothing of it is visible to readers."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A batch in the staging topic.

    Attributes:
        topic: Where it is to go.
        partition: Where it is to go.
        rows: Records in it.
        at_partition: Of the staging topic.
        at_offset: Of the record that holds it.
        size: Its bytes.
        crc: CRC32C of all of them.
    """

    topic: str
    partition: int
    rows: int
    at_partition: int
    at_offset: int
    size: int
    crc: int


class Stager:
    """Stages the batches of one task, all in one partition, in order. One thread.

    Args:
        transport: Started; stays the caller's.
        topic: The staging topic; made if it is missing.
        delivery_timeout_s: How long one batch may take.
        request_timeout_ms: How long the broker may wait for its replicas.
        api_timeout_s: How long the topic and the producer id may take.
        buffer_bytes: How many bytes may wait before `put` blocks.
        largest_bytes: Of a batch, for the topic's `max.message.bytes`.

    Raises:
        KafkaError: There is no topic, or no producer id.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        *,
        delivery_timeout_s: float,
        request_timeout_ms: int,
        api_timeout_s: float,
        buffer_bytes: int,
        largest_bytes: int,
    ) -> None:
        self._topic = topic
        self._partition = random.randrange(
            _ensure(transport, topic, timeout_s=api_timeout_s, largest_bytes=largest_bytes)
        )
        granted: ProducerIdGranted = insist(
            lambda left_s: call(transport.init_producer_id, left_s),
            deadline=time.monotonic() + api_timeout_s,
            what="InitProducerId",
            api="InitProducerId",
        )
        self._offsets: list[int] = []
        self._kept: list[tuple[str, int, int, int, int]] = []
        self._appender = Appender(
            transport,
            Grant("", granted.producer_id, granted.epoch),
            attempt=0,
            delivery_timeout_s=delivery_timeout_s,
            request_timeout_ms=request_timeout_ms,
            buffer_bytes=buffer_bytes,
            claims=False,  # the id was granted to this task alone
            on_acked=lambda _, __, offset: self._offsets.append(offset),
        )

    def put(self, topic: str, partition: int, rows: int, data: bytes | bytearray) -> None:
        """Takes a batch for (topic, partition); blocks while too much waits.

        Raises:
            StagingError: It cannot be staged.
            KafkaError: As of `Appender.finish`.
        """
        self._kept.append((topic, partition, rows, len(data), crc32c.crc32c(data)))
        record = batch.encode(None, [data], timestamps=int(time.time() * 1000))
        with _told(self._topic):
            self._appender.append(self._topic, self._partition, record)

    def finish(self) -> list[Staged]:
        """Where the batches are, in order. All of them are on all in-sync replicas.

        Raises:
            StagingError: As `put`.
            KafkaError: As `put`.
        """
        with _told(self._topic):
            self._appender.finish()
        return [
            Staged(topic, partition, rows, self._partition, offset, size, crc)
            for (topic, partition, rows, size, crc), offset in zip(self._kept, self._offsets, strict=True)
        ]


class _told:  # noqa: N801  # reads as a statement
    """The appender's words for a spoilt transaction, where there is none."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, raised: object, _trace: object) -> None:
        if isinstance(raised, RestartError | FencedError):
            raise StagingError(
                f"[KAFKASAFE.STAGING_FAILED] {raised}: the staging topic {self._topic!r} forgot what this task had"
                " written to it (a broker lost its log?). The task can be run again."
            ) from raised


def _ensure(transport: Transport, topic: str, *, timeout_s: float, largest_bytes: int) -> int:
    """How many partitions the staging topic has, which is made if it is missing."""
    known = transport.topic(topic)
    if known is not None and known.partitions and not known.error_code:
        return len(known.partitions)  # asking again soon after would wait for its turn
    coordinator = Coordinator(transport, "", timeout_s=timeout_s)
    # First of all: brokers that create topics by themselves would make one without our settings.
    try:
        coordinator.create_topic(
            topic,
            partitions=_PARTITIONS,
            config={
                "cleanup.policy": "delete",
                "retention.ms": str(_RETENTION_MS),
                "segment.ms": str(_SEGMENT_MS),
                "segment.bytes": str(_SEGMENT_BYTES),
                # The brokers' clocks decide when it is old, not those of the tasks' machines.
                "message.timestamp.type": "LogAppendTime",
                "max.message.bytes": str(largest_bytes + _RECORD_BYTES),
                "compression.type": "producer",
            },
        )
    except Exception as failed:
        if getattr(failed, "errno", None) != _UNAUTHORIZED:
            raise
        # Who may not make topics may still use one that is there.
    return len(coordinator.topics([topic])[topic].partitions)


# --- finding them again -----------------------------------------------------------------------------------------------


def fetch_staged(
    transport: Transport, topic: str, wanted: Iterable[Staged], *, timeout_s: float
) -> Iterator[tuple[Staged, bytearray]]:
    """The staged batches, those of one partition in the order of their offsets.

    Args:
        transport: Started; stays the caller's.
        topic: The staging topic.
        wanted: In any order, each once.
        timeout_s: How long nothing may come.

    Raises:
        StagingError: One is not there, or not as it was.
        KafkaError: Its partition cannot be read.
    """
    for partition, pieces in itertools.groupby(
        sorted(wanted, key=lambda piece: (piece.at_partition, piece.at_offset)),
        key=lambda piece: piece.at_partition,
    ):
        yield from _Fetching(transport, topic, partition, list(pieces), timeout_s).run()


class _Fetching:
    """Reads one partition of the staging topic, the next answer on its way while this one is used."""

    def __init__(
        self, transport: Transport, topic: str, partition: int, pieces: Sequence[Staged], timeout_s: float
    ) -> None:
        self._transport = transport
        self._topic = topic
        self._partition = partition
        self._pieces = pieces
        self._timeout_s = timeout_s
        self._answers: queue.SimpleQueue[RecordsFetched | Failure] = queue.SimpleQueue()

    def run(self) -> Iterator[tuple[Staged, bytearray]]:
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
            # Who is slow behind us is no stall of the brokers.
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

    def _found(self, answer: RecordsFetched, at: int) -> list[tuple[Staged, bytearray]]:
        """What is wanted of an answer; between them lies what others staged."""
        found: list[tuple[Staged, bytearray]] = []
        for begin, header in batch.iter_headers(answer.records):
            if at == len(self._pieces):
                break
            piece = self._pieces[at]
            if header.base_offset < piece.at_offset:
                continue
            if header.base_offset > piece.at_offset:
                raise self._lost(piece, f"behind it follows offset {header.base_offset}")
            found.append((piece, self._value(answer.records, begin, piece)))
            at += 1
        return found

    def _value(self, records: Any, begin: int, piece: Staged) -> bytearray:
        try:
            values = batch.decode(records, begin).values
        except batch.CorruptBatchError as damaged:
            raise self._lost(piece, f"it is damaged: {damaged}") from damaged
        value = values[0]
        if len(values) != 1 or value is None or len(value) != piece.size or crc32c.crc32c(value) != piece.crc:
            raise self._lost(piece, "other records stand there")
        return bytearray(value)

    def _wait(self, answer: RecordsFetched | Failure, piece: Staged, failures: int, deadline: float) -> None:
        """Until it is worth asking again."""
        late = time.monotonic() > deadline
        if isinstance(answer, Failure):
            if late or not classify(answer.error, "fetch").retriable:
                raise answer.error
        elif answer.error_code == _OUT_OF_RANGE:
            start = self._start_of_log()
            if start is not None and start > piece.at_offset:
                raise self._lost(piece, f"the log begins at {start} by now (retention?)")
        elif answer.error_code:
            verdict = classify(answer.error_code, "fetch")
            if late or not verdict.retriable:
                raise self._lost(piece, f"{verdict.name}: {verdict.explanation}")
        if late:
            # A leader that does not have it yet will have it: its replicas acknowledged it.
            raise self._lost(piece, f"the log did not reach to it within {self._timeout_s:g} s")
        if not isinstance(answer, Failure) and answer.error_code:
            self._transport.refresh_metadata([self._topic], lambda _: None)
        time.sleep(pause_s(failures))

    def _start_of_log(self) -> int | None:
        try:
            listed: OffsetListed = call(
                lambda reply: self._transport.list_offset(self._topic, self._partition, _EARLIEST, reply),
                self._timeout_s,
            )
        except Exception:  # asked again by whoever waits
            return None
        return None if listed.error_code else listed.offset

    def _lost(self, piece: Staged, why: str) -> StagingError:
        return StagingError(
            f"[KAFKASAFE.STAGED_BATCH_LOST] {piece.rows} rows for {piece.topic}-{piece.partition} were staged in"
            f" {self._topic}-{self._partition} at offset {piece.at_offset} ({piece.size} bytes), and are not there as"
            f" they were: {why}. Nothing of this batch was committed; run it again. If that is not enough, give the"
            " staging topic a longer retention.ms and min.insync.replicas of at least 2."
        )
