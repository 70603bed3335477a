"""The code that Spark's workers run for the sink.

A task takes Arrow batches, appends their records to Kafka, and returns a report.

A job has one of three shapes:

- *Inline*, if the previous micro-batch was small. The tasks only encode rows into batches, and return them to the
  driver, which sends them.
- *Direct*, if any row may go to any partition. Each task sends its rows to one partition, which no other task uses.
- *With an exchange*, if rows are bound to partitions by a key or by the column `partition`. The tasks of a first stage
  only encode rows into batches. A failure in the first stage has no effect in Kafka, and Spark repeats the task. Then
  Spark moves the encoded batches between tasks, so that one task sends all batches of a partition.

Spark pickles the classes of this module by name, so kafkasafe must be installed on the workers.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from kafkasafe.cluster.api import Cluster
from kafkasafe.kafkapython.connect import over_sockets
from kafkasafe.record import arrow_encode
from kafkasafe.record.arrow_encode import Rows
from kafkasafe.record.arrow_pack import ArrowPacker, PackedBatch, unpack
from kafkasafe.spark.appender import CLAIM_ROWS, Appender, FencedError, RestartError, claim_base
from kafkasafe.spark.connections import kept
from kafkasafe.spark.option_values import error
from kafkasafe.spark.sink_options import SinkOptions
from kafkasafe.spark.transactions import TransactionRequests
from kafkasafe.spark.txn import Report, WriterIdentity
from kafkasafe.spark.workers import spare_collections

RESTART_TAG: Final = "[KAFKASAFE.RESTART_TRANSACTION]"
FENCED_TAG: Final = "[KAFKASAFE.FENCED]"
# These schemas are built in Python. If a schema were given as text, Spark would parse the text in the JVM for each job.
REPORT_SCHEMA: Final = (
    StructType()
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("rows", LongType())
    .add("bytes", LongType())
    .add("retries", LongType())
    .add("stage", IntegerType())
)
ENCODED_SCHEMA: Final = (
    StructType()
    .add("slot", IntegerType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("rows", IntegerType())
    .add("data", BinaryType())
)

_PIECE_BYTES: Final = 8 * 1024 * 1024
# The first batch that a task appends to a partition is small: it is the task's claim (see `kafkasafe.spark.appender`).
# If the batches go through an exchange, the encoder makes a small first batch only for partitions with more than
# `_HEAD_FROM` rows. With fewer rows, it is cheaper to let the sender split the first batch.
_HEAD_FROM: Final = 1024
# Each of the first 64 tasks may send up to `inlineBytes` to the driver. Each later task may send at most 64 KiB,
# because otherwise thousands of tasks would fill the driver's memory.
_FIRST_TASKS: Final = 64
_LATER_INLINE_BYTES: Final = 64 * 1024
_TOO_LARGE: Final = -1  # in the column `slot` of the only row of a task whose batches are too large

_arrow: Any = pa


def transport_of(options: SinkOptions) -> Cluster:
    """Returns this process's connections for these options."""
    return kept({"client_id": "kafkasafe-spark-task", **options.connection}, over_sockets)


def task_context() -> TaskContext:
    """The context of the task that runs here.

    Raises:
        RuntimeError: This is not a task of Spark.
    """
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("There is no TaskContext: call this only in a task of Spark")
    return context


@dataclass(frozen=True)
class _Sender:
    """Sends the batches of a task to Kafka.

    Attributes:
        options: Options of the sink.
        grant: The producer id and epoch that the coordinator granted for the transaction.
        add: Whether the task itself must add each partition to the transaction, before its first request to that
            partition.
    """

    options: SinkOptions
    grant: WriterIdentity
    add: bool

    def send(
        self,
        encoded: Iterable[tuple[Sequence[tuple[str, int]], Iterable[tuple[tuple[str, int], bytearray]]]],
        *,
        alone: bool,
    ) -> Iterator[Any]:
        """Sends batches and yields the report.

        Args:
            encoded: Pairs (places, batches), in order. A place is a (topic, partition). Each batch is a pair (place,
                bytes), and `places` lists the places of all these batches. The first batch for a place is a claim.
            alone: Whether the task can only write to a single partition, whatever its rows are.

        Raises:
            RestartError: The driver must restart the transaction.
            FencedError: Another driver has taken over.
        """
        spare_collections()
        context = task_context()
        options, grant = self.options, self.grant
        transport = transport_of(options)
        requests = TransactionRequests(transport, grant.transactional_id, timeout_s=options.api_timeout_s)
        appender = Appender(transport, grant, options)
        added: set[tuple[str, int]] = set()
        try:
            if context.attemptNumber() and not alone:
                # An earlier attempt may still write to partitions for which this attempt has no rows.
                raise RestartError("A task that writes to several partitions was started again")  # noqa: TRY301
            for wanted, batches in encoded:
                if self.add and (new := set(wanted) - added):
                    requests.add_partitions(grant, sorted(new))
                    added |= new
                for place, data in batches:
                    appender.append(*place, data)
            reports = appender.finish()
            if context.attemptNumber() and not reports:
                # This attempt has no rows, so it claims no partition. An earlier attempt may still write to the task's
                # partition.
                raise RestartError("A task was started again and now has no rows")  # noqa: TRY301
        except RestartError as spoilt:
            raise RestartError(f"{RESTART_TAG} {spoilt}") from spoilt
        except FencedError as fenced:
            raise FencedError(f"{FENCED_TAG} {fenced}") from fenced
        yield _report_batch(reports, appender, context.stageId())


def _report_batch(reports: list[Report], appender: Appender, stage: int) -> Any:
    """Makes rows of `REPORT_SCHEMA`. A task that sent nothing reports only its stage, in a row without a topic."""
    places: list[tuple[str | None, int, int]] = [
        (report.topic, report.partition, report.rows) for report in reports
    ]
    topics, partitions, rows = zip(*(places or [(None, -1, 0)]), strict=True)
    first = [1] + [0] * (len(topics) - 1)  # only the first row holds the totals of the task
    return _arrow.record_batch(
        {
            "topic": _arrow.array(topics, _arrow.string()),
            "partition": _arrow.array(partitions, _arrow.int32()),
            "rows": _arrow.array(rows, _arrow.int64()),
            "bytes": _arrow.array([appender.bytes * one for one in first], _arrow.int64()),
            "retries": _arrow.array([appender.retries * one for one in first], _arrow.int64()),
            "stage": _arrow.array([stage] * len(topics), _arrow.int32()),
        }
    )


def reports_of(rows: Iterable[Any]) -> list[Report]:
    """Converts rows of `REPORT_SCHEMA` into reports. Tasks that sent nothing get no report."""
    return [Report(row["topic"], row["partition"], row["rows"]) for row in rows if row["topic"] is not None]


# --------------------------------------------------------------------------------------------------------------


def _packer(options: SinkOptions, **head: Any) -> ArrowPacker:
    return ArrowPacker(
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
    """Splits Arrow batches into slices of bounded size, because encoding takes several times as much memory as the
    rows.
    """
    for part in batches:
        rows = len(part)
        step = max(1, rows // (part.nbytes // _PIECE_BYTES + 1))
        for at in range(0, rows, step):
            yield part.slice(at, step)


def _rows(options: SinkOptions, part: Any) -> Rows:
    """Extracts keys, values and headers of an Arrow batch, and checks them."""
    names = part.schema.names
    columns = [part.column(name) if name in names else None for name in ("key", "value", "headers")]
    try:
        rows = Rows.of(*columns)
    except ValueError as wrong:
        raise error(
            "INVALID_ROW",
            f"A row cannot be written: {wrong}. Headers are array<struct<key:string,value:binary>> without null"
            " entries, each with a key. Correct the column, or drop such rows.",
        ) from wrong
    if (largest := int(rows.sizes().max(initial=0))) > options.max_record_bytes:
        raise error(
            "RECORD_TOO_LARGE",
            f"A row of about {largest} bytes is above kafka.max.request.size={options.max_record_bytes}:"
            " raise that option and the topic's max.message.bytes, or drop the row.",
        )
    return rows


@dataclass(frozen=True)
class DirectWrite(_Sender):
    """`mapInArrow` function of a job without an exchange. Task *i* writes to partition `(i + turn) % partitions`.

    Attributes:
        topic: Topic name.
        partitions: Number of partitions, and maximum number of the job's tasks.
        turn: A number that differs between batches. Without `turn`, jobs with fewer tasks than partitions would always
            write to the same partitions.
    """

    topic: str
    partitions: int
    turn: int

    def __call__(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Sends all rows of the task and yields its report."""
        topic, partition = place = self.topic, (task_context().partitionId() + self.turn) % self.partitions

        def encoded() -> Iterator[tuple[tuple[str, int], bytearray]]:
            packer = _packer(self.options, head_base=claim_base)
            for part in _pieces(rows):
                for packed in packer.add(topic, partition, _rows(self.options, part), _now_ms()):
                    yield place, packed.data
            for packed in packer.rest():
                yield place, packed.data

        yield from self.send([([place], encoded())], alone=True)


def inline_limit(options: SinkOptions, task: int) -> int:
    """Returns how many bytes of encoded batches a task may send to the driver."""
    return options.inline_bytes if task < _FIRST_TASKS else min(options.inline_bytes, _LATER_INLINE_BYTES)


def partition_count(options: SinkOptions, topic: str) -> int:
    """Asks the brokers how many partitions a topic has. Only tasks call this function.

    Raises:
        KafkaError: The topic does not exist, or no broker answers.
    """
    requests = TransactionRequests(transport_of(options), "", timeout_s=options.api_timeout_s)
    return requests.partition_count(topic)


@dataclass(frozen=True)
class EncodeRows:
    """`mapInArrow` function before an exchange. Maps rows to encoded batches, each with its topic and partition.

    Attributes:
        options: Options of the sink.
        counts: Topic → number of its partitions, if already known. The task asks the brokers about other topics.
        slots: Number of sending tasks. One task sends all batches with the same slot.
        turn: A number that determines the partition of rows with neither a key nor a partition.
    """

    options: SinkOptions
    counts: Mapping[str, int]
    slots: int
    turn: int

    def __call__(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Encodes all rows of the task and yields the batches."""
        spare_collections()
        for (topic, partition), count, data in self.packed(rows, task=task_context().partitionId()):
            # With several topics, begin at a slot that depends on the topic's name, so that not all partitions 0 go to
            # one task.
            first = 0 if topic in self.counts else zlib.crc32(topic.encode())
            yield encoded_batch((partition + first) % self.slots, topic, partition, count, data)

    def packed(self, rows: Iterator[Any], *, task: int) -> Iterator[PackedBatch]:
        """Encodes all rows of a task. The choice of partitions depends on `turn` and on the task's number `task`."""
        packer = _packer(self.options, head_from=_HEAD_FROM)
        counts = dict(self.counts)
        turn = self.turn + task
        for part in _pieces(rows):
            columns = _rows(self.options, part)
            for topic, chosen in self._topics(part):
                of_topic = columns if chosen is None else columns.take(chosen)
                if topic not in counts:
                    counts[topic] = partition_count(self.options, topic)
                numbers = self._numbers(part, chosen, of_topic.keys, topic, counts[topic], turn)
                turn += 1
                yield from packer.add(topic, numbers, of_topic, _now_ms())
        yield from packer.rest()

    def _topics(self, part: Any) -> Iterator[tuple[str, Any]]:
        """Divides an Arrow batch by topic. Yields (topic, indices of its rows); None as indices means all rows."""
        if self.options.topic is not None:
            yield self.options.topic, None
            return
        column = part.column("topic")
        if column.null_count:
            raise error(
                "NULL_TOPIC",
                "A row's topic is null: fill the column topic, or set the option topic for all rows.",
            )
        coded = column.dictionary_encode()
        indices = np.asarray(coded.indices)
        for number, name in enumerate(coded.dictionary.to_pylist()):
            yield name, np.flatnonzero(indices == number)

    def _numbers(
        self, part: Any, chosen: Any, keys: Any, topic: str, count: int, turn: int
    ) -> npt.NDArray[np.int64]:
        """Returns each row's partition: from the column `partition`, otherwise from the key, otherwise from `turn`."""
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
                    f"A row's partition is {wanted[wrong][0]}, but topic {topic!r} has 0 to {count - 1}: correct the"
                    " column, or leave it null to let Kafka's partitioner choose.",
                )
            numbers[fixed] = wanted[fixed]
        return numbers


@dataclass(frozen=True)
class EncodeInline:
    """The function that `mapInArrow` runs if the tasks only encode batches, and the driver collects and sends the
    batches.

    If a task's batches are larger than `inline_limit`, the task yields only one row, with -1 in the column `slot`. This
    limits the driver's memory. The row tells the driver that another job must write the rows.

    Attributes:
        encode: Encodes the rows.
    """

    encode: EncodeRows

    def __call__(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Encodes all rows of the task. Yields the batches; if they are too large for the driver, only one row."""
        limit = inline_limit(self.encode.options, task_context().partitionId())
        held = []
        size = 0
        for encoded in self.encode(rows):
            size += encoded.nbytes
            if size > limit:
                for _ in rows:
                    pass  # Spark reuses a worker only if the worker has read all rows of its task.
                yield encoded_batch(_TOO_LARGE, "", -1, 0, b"")
                return
            held.append(encoded)
        yield from held


def inline_of(rows: Iterable[Any]) -> list[tuple[str, int, bytearray]] | None:
    """Converts rows of `EncodeInline` into (topic, partition, batch); None if a task's batches were too large."""
    found = []
    for row in rows:
        if row["slot"] == _TOO_LARGE:
            return None
        found.append((row["topic"], row["partition"], bytearray(row["data"])))
    return found


def encoded_batch(slot: int, topic: str, partition: int, rows: int, data: Any) -> Any:
    """Makes a row of `ENCODED_SCHEMA`."""
    # Wrap the batch without copying it. `_arrow.array([data])` would copy it.
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
    """The function that `mapInArrow` runs in the second stage, after the exchange. Sends the batches that `EncodeRows`
    encoded.

    Attributes:
        alone: Whether each task gets the batches of at most one partition.
    """

    alone: bool

    def __call__(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Sends all batches of the task and yields its report."""
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
        """Divides an encoded batch into a claim (a small first batch, see `kafkasafe.spark.appender`) and the rest.

        Only the sending task can do this, because the claim identifies the attempt that sends it.
        """
        _, rows = unpack(data)
        packer = _packer(self.options, head_base=claim_base)
        for packed in itertools.chain(packer.add("", 0, rows, _now_ms()), packer.rest()):
            yield packed.data
