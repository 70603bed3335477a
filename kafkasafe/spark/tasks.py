"""What Spark's workers run for the sink: Arrow batches in, records in Kafka, a report out.

Two shapes of a job:

- *direct*, when any row may go to any partition: each task sends what it reads to the one partition that is its own.
- *with an exchange*, when rows are bound to partitions (by key or by the column `partition`): tasks only encode (what
  fails there has no effect and is Spark's to repeat), whole encoded batches change places, and each partition's
  are sent by one task.

Objects here are pickled by name: workers need kafkasafe installed.
"""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext

from kafkasafe._core import arrow_encode
from kafkasafe._core.arrow_encode import Rows
from kafkasafe._core.arrow_pack import Packed, Packer, unpack
from kafkasafe._core.txn import Grant, Report
from kafkasafe._io.appender import CLAIM_ROWS, Appender, FencedError, RestartError, claim_base
from kafkasafe._io.transactions import Coordinator
from kafkasafe._io.transport import Transport
from kafkasafe.spark.options import error
from kafkasafe.spark.sink_options import SinkOptions
from kafkasafe.spark.workers import spare_collections

__all__ = [
    "ENCODED_SCHEMA",
    "FENCED_TAG",
    "REPORT_SCHEMA",
    "RESTART_TAG",
    "DirectWrite",
    "EncodeRows",
    "SendEncoded",
    "reports_of",
    "transport_of",
]

RESTART_TAG: Final = "[KAFKASAFE.RESTART_TRANSACTION]"
FENCED_TAG: Final = "[KAFKASAFE.FENCED]"
REPORT_SCHEMA: Final = (
    "topic string, partition int, rows bigint, attempt int, bytes bigint, retries bigint, stage int"
)
ENCODED_SCHEMA: Final = "slot int, topic string, partition int, rows int, data binary"

_PIECE_BYTES: Final = 8 * 1024 * 1024
# In front of an exchange: smaller beginnings are not worth a batch of their own, the sender cuts its claim out of them.
_HEAD_FROM: Final = 1024

_arrow: Any = pa

# Workers are used again for later tasks: connections are kept, by process (a worker may be forked from one that had
# some) and options.
_transports: dict[tuple[int, str], Transport] = {}


def transport_of(options: SinkOptions) -> Transport:
    """This process's connections for these options."""
    key = os.getpid(), repr(sorted(options.connection.items()))
    transport = _transports.get(key)
    if transport is None or transport.closed:
        for other in [other for other in _transports if other[0] != key[0]]:
            del _transports[other]
        transport = _transports[key] = Transport({"client_id": "kafkasafe-spark-task", **options.connection})
        transport.start()
    return transport


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("There is no TaskContext: this runs in Spark's tasks only")
    return context


@dataclass(frozen=True)
class _Sender:
    """A task's way to Kafka.

    Attributes:
        options: Of the sink.
        grant: Of the transaction.
        add: Partitions are not part of the transaction yet: each is added when it is first used.
    """

    options: SinkOptions
    grant: Grant
    add: bool

    def appender(self, transport: Transport) -> Appender:
        options = self.options
        return Appender(
            transport,
            self.grant,
            attempt=_context().attemptNumber(),
            delivery_timeout_s=options.delivery_timeout_s,
            request_timeout_ms=options.request_timeout_ms,
            buffer_bytes=options.buffer_bytes,
        )

    def added(
        self, transport: Transport, places: set[tuple[str, int]], wanted: Iterable[tuple[str, int]]
    ) -> None:
        """Makes the places part of the transaction, in one request."""
        new = set(wanted) - places
        if new and self.add:
            Coordinator(
                transport, self.grant.transactional_id, timeout_s=self.options.api_timeout_s
            ).add_partitions(self.grant, sorted(new))
        places |= new

    def send(
        self,
        encoded: Iterable[tuple[Sequence[tuple[str, int]], Iterable[tuple[tuple[str, int], bytearray]]]],
        *,
        alone: bool,
    ) -> Iterator[Any]:
        """Sends batches and yields the report.

        Args:
            encoded: Some places, and batches for them with (topic, partition), in order; the first of a place is a
                claim.
            alone: The task writes to one partition at most, whatever it reads.
        """
        spare_collections()
        context = _context()
        transport = transport_of(self.options)
        appender = self.appender(transport)
        places: set[tuple[str, int]] = set()
        try:
            if context.attemptNumber() and not alone:
                # An earlier attempt may still write to partitions that this one has no rows for.
                raise RestartError("A task that writes to several partitions was begun again")  # noqa: TRY301
            for wanted, batches in encoded:
                self.added(transport, places, wanted)
                for place, data in batches:
                    appender.append(*place, data)
            reports = appender.finish()
            if context.attemptNumber() and not reports:
                # The same, where this one has no rows at all and so cannot claim its partition.
                raise RestartError("A task was begun again and has no rows now")  # noqa: TRY301
        except RestartError as spoilt:
            raise RestartError(f"{RESTART_TAG} {spoilt}") from spoilt
        except FencedError as fenced:
            raise FencedError(f"{FENCED_TAG} {fenced}") from fenced
        yield _report_batch(reports, appender, context.stageId())


def _report_batch(reports: list[Report], appender: Appender, stage: int) -> Any:
    count = len(reports)
    first = [1] + [0] * (count - 1) if count else []  # totals of the task stand in its first row only
    return _arrow.record_batch(
        {
            "topic": _arrow.array([report.topic for report in reports], _arrow.string()),
            "partition": _arrow.array([report.partition for report in reports], _arrow.int32()),
            "rows": _arrow.array([report.rows for report in reports], _arrow.int64()),
            "attempt": _arrow.array([report.attempt for report in reports], _arrow.int32()),
            "bytes": _arrow.array([appender.bytes * one for one in first], _arrow.int64()),
            "retries": _arrow.array([appender.retries * one for one in first], _arrow.int64()),
            "stage": _arrow.array([stage] * count, _arrow.int32()),
        }
    )


def reports_of(rows: Iterable[Any]) -> list[Report]:
    """The reports that came back as rows of `REPORT_SCHEMA`."""
    return [Report(row["topic"], row["partition"], row["rows"], row["attempt"]) for row in rows]


# --------------------------------------------------------------------------------------------------------------


def _packer(options: SinkOptions, **head: Any) -> Packer:
    return Packer(
        batch_bytes=options.batch_bytes,
        held_bytes=options.buffer_bytes,
        head_rows=CLAIM_ROWS,
        compression=options.compression,
        compression_level=options.compression_level,
        **head,
    )


def _now_ms() -> int:
    return int(time.time() * 1000)


def _pieces(batches: Iterator[Any]) -> Iterator[Any]:
    """Arrow batches of a bounded size: what is made of one is several times as large for a moment."""
    for part in batches:
        rows = len(part)
        step = max(1, rows // (part.nbytes // _PIECE_BYTES + 1))
        for at in range(0, rows, step):
            yield part.slice(at, step)


def _rows(options: SinkOptions, part: Any) -> Rows:
    """Keys, values and headers of an Arrow batch."""
    names = part.schema.names
    columns = [part.column(name) if name in names else None for name in ("key", "value", "headers")]
    try:
        rows = Rows.of(*columns)
    except ValueError as wrong:
        raise error(
            "INVALID_ROW",
            f"A row cannot be written: {wrong}. Headers are array<struct<key:string,value:binary>> without null"
            " entries, each with a key; correct the column, or leave such rows out.",
        ) from wrong
    if (largest := int(rows.sizes().max(initial=0))) > options.max_record_bytes:
        raise error(
            "RECORD_TOO_LARGE",
            f"A row of about {largest} bytes is above kafka.max.request.size={options.max_record_bytes}:"
            " raise it, and the topic's max.message.bytes, or drop the row.",
        )
    return rows


@dataclass(frozen=True)
class DirectWrite(_Sender):
    """`mapInArrow` of a job without an exchange: task *i* writes to partition `(i + turn) % partitions`.

    Attributes:
        topic: The topic.
        partitions: How many it has; the job has at most as many tasks.
        turn: So that it is not always the same partitions when there are fewer tasks.
    """

    topic: str
    partitions: int
    turn: int

    def __call__(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Sends all rows of the task, yields its report."""
        place = self.topic, (_context().partitionId() + self.turn) % self.partitions

        topic, partition = place

        def encoded() -> Iterator[tuple[tuple[str, int], bytearray]]:
            packer = _packer(self.options, head_base=claim_base)
            for part in _pieces(rows):
                for packed in packer.add(topic, partition, _rows(self.options, part), _now_ms()):
                    yield place, packed.data
            for packed in packer.rest():
                yield place, packed.data

        yield from self.send([([place], encoded())], alone=True)


def partition_count(options: SinkOptions, topic: str) -> int:
    """How many partitions a topic has, as a task sees it.

    Raises:
        KafkaError: It is not there, or no broker says.
    """
    coordinator = Coordinator(transport_of(options), "", timeout_s=options.api_timeout_s)
    return len(coordinator.topics([topic])[topic].partitions)


@dataclass(frozen=True)
class EncodeRows:
    """`mapInArrow` in front of an exchange: rows in, encoded batches out, each with its place.

    Attributes:
        options: Of the sink.
        counts: Partitions of the topics that are known; of others the task asks.
        slots: How many tasks send.
        turn: Where rows go that are bound to nothing.
    """

    options: SinkOptions
    counts: Mapping[str, int]
    slots: int
    turn: int

    def __call__(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Encodes all rows of the task."""
        spare_collections()
        packer = _packer(self.options, head_from=_HEAD_FROM)
        counts = dict(self.counts)
        turn = self.turn + _context().partitionId()
        for part in _pieces(rows):
            columns = _rows(self.options, part)
            for topic, chosen in self._topics(part):
                of_topic = columns if chosen is None else columns.take(chosen)
                if topic not in counts:
                    counts[topic] = partition_count(self.options, topic)
                numbers = self._numbers(part, chosen, of_topic.keys, topic, counts[topic], turn)
                turn += 1
                for packed in packer.add(topic, numbers, of_topic, _now_ms()):
                    yield self._out(packed)
        for packed in packer.rest():
            yield self._out(packed)

    def _topics(self, part: Any) -> Iterator[tuple[str, Any]]:
        """(topic, which rows) of an Arrow batch; None: all."""
        if self.options.topic is not None:
            yield self.options.topic, None
            return
        column = part.column("topic")
        if column.null_count:
            raise error(
                "NULL_TOPIC",
                "A row's topic is null: fill the column topic, or give the option topic for all rows.",
            )
        coded = column.dictionary_encode()
        indices = np.asarray(coded.indices)
        for number, name in enumerate(coded.dictionary.to_pylist()):
            yield name, np.flatnonzero(indices == number)

    def _numbers(
        self, part: Any, chosen: Any, keys: Any, topic: str, count: int, turn: int
    ) -> npt.NDArray[np.int64]:
        """The partition of each row: its own, else its key's, else any."""
        total = len(part) if chosen is None else len(chosen)
        numbers = np.full(total, -1, np.int64) if keys is None else arrow_encode.partitions_of(keys, count)
        numbers[numbers < 0] = turn % count
        if "partition" in part.schema.names:
            given = part.column("partition")
            if chosen is not None:
                given = given.take(_arrow.array(chosen))
            fixed = ~np.asarray(given.is_null())
            wanted = np.asarray(given.fill_null(0), dtype=np.int64)
            wrong = fixed & ((wanted < 0) | (wanted >= count))
            if wrong.any():
                raise error(
                    "INVALID_PARTITION",
                    f"A row's partition is {wanted[wrong][0]}, topic {topic!r} has 0 to {count - 1}: correct the"
                    " column, or leave it null for Kafka's own choice.",
                )
            numbers[fixed] = wanted[fixed]
        return numbers

    def _out(self, packed: Packed) -> Any:
        (topic, partition), rows, data = packed
        slot = (partition if topic in self.counts else partition + zlib.crc32(topic.encode())) % self.slots
        # Around the batch as it is: `_arrow.array([data])` would copy it.
        ends = _arrow.py_buffer(np.array([0, len(data)], np.int32))
        buffers = [None, ends, _arrow.py_buffer(data)]
        return _arrow.record_batch(
            {
                "slot": _arrow.array([slot], _arrow.int32()),
                "topic": _arrow.array([topic], _arrow.string()),
                "partition": _arrow.array([partition], _arrow.int32()),
                "rows": _arrow.array([rows], _arrow.int32()),
                "data": _arrow.Array.from_buffers(_arrow.binary(), 1, buffers),
            }
        )


@dataclass(frozen=True)
class SendEncoded(_Sender):
    """`mapInArrow` behind the exchange: sends what `EncodeRows` made.

    Attributes:
        alone: Each task gets the batches of one partition at most.
    """

    alone: bool

    def __call__(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Sends all batches of the task, yields its report."""
        claimed: set[tuple[str, int]] = set()

        def encoded() -> Iterator[
            tuple[Sequence[tuple[str, int]], Iterator[tuple[tuple[str, int], bytearray]]]
        ]:
            for part in rows:
                topics = part.column("topic").to_pylist()
                places = list(zip(topics, part.column("partition").to_pylist(), strict=True))
                yield places, of_part(part, places)

        def of_part(
            part: Any, places: Sequence[tuple[str, int]]
        ) -> Iterator[tuple[tuple[str, int], bytearray]]:
            for index, place in enumerate(places):
                data = bytearray(memoryview(part.column("data")[index].as_buffer()))
                if place in claimed:
                    yield place, data
                else:
                    claimed.add(place)
                    for piece in self._claimed(data):
                        yield place, piece

        yield from self.send(encoded(), alone=self.alone)

    def _claimed(self, data: bytearray) -> Iterator[bytearray]:
        """A batch made anew: a claim and the rest. Its encoder does not know which attempt sends it."""
        _, rows = unpack(data)
        packer = _packer(self.options, head_base=claim_base)
        for packed in itertools.chain(packer.add("", 0, rows, _now_ms()), packer.rest()):
            yield packed.data
