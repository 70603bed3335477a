"""The writers of `format("kafkasafe")`: `df.write` and `writeStream`.

Spark runs the methods of a writer in different processes:

- Short-lived processes on the driver construct the writer.
- The executors' workers run `write`, which encodes rows and has no effect on the target topic.
- A process on the driver runs `commit`, which executes the protocol of `session.py`. No other process appends to the
  target topic. Spark runs later commits in the same process, so the process keeps its connections.

docs/spark-guarantees.md explains this design and lists what happens after a crash.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyspark.sql.datasource
from kafka.errors import KafkaError
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kafkasafe.codes.numbers import UNKNOWN_TOPIC_OR_PARTITION
from kafkasafe.errors import UsageError
from kafkasafe.record.arrow_pack import PackedBatch
from kafkasafe.spark import outcomes, tasks
from kafkasafe.spark.columns import arrow_type
from kafkasafe.spark.option_values import error
from kafkasafe.spark.plans import plan_in_checkpoint
from kafkasafe.spark.session import Outcome, Session
from kafkasafe.spark.sink import app_version, refuse_version, stream_id
from kafkasafe.spark.sink_columns import wanted_columns
from kafkasafe.spark.sink_options import SinkOptions, sink_options, unknown_topic
from kafkasafe.spark.staging import StagedBatch, Stager, fetch_staged
from kafkasafe.spark.tasks import EncodeRows, inline_limit, partition_count, transport_of
from kafkasafe.spark.txn import Report, WriterIdentity
from kafkasafe.spark.workers import spare_collections

log = logging.getLogger(__name__)

_arrow: Any = pa

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_NO_BATCH: Final = -1
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "path", "queryname"})
_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Inline:
    """An encoded batch inside a task's message to `commit`.

    Attributes:
        topic: Target topic.
        partition: Target partition.
        rows: Number of records in the batch.
        data: The encoded batch, still without producer id, epoch and sequence.
    """

    topic: str
    partition: int
    rows: int
    data: bytes


@dataclass(frozen=True)
class Message(WriterCommitMessage):
    """The message that a task sends to `commit`.

    Attributes:
        query_id: Id of the streaming query, from the task's properties; empty for a batch query.
        batch_id: Id of the micro-batch, from the task's properties; -1 for a batch query.
        rows: Number of rows that the task read.
        inline: The task's batches, if they are small; otherwise empty.
        staged: Where the task's batches are in the staging topic; empty if the batches are in `inline`.
    """

    query_id: str
    batch_id: int
    rows: int
    inline: tuple[Inline, ...] = ()
    staged: tuple[StagedBatch, ...] = ()


def batch_writer(options: dict[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """Creates the writer of a batch query. Opens no connection.

    Raises:
        ConfigError: The options, the columns or the mode are invalid.
    """
    if overwrite:
        raise error(
            "INVALID_MODE",
            'mode is overwrite, but the records of a topic cannot be replaced: use .mode("append"). To remove the old'
            " records, delete the topic and create it again first.",
        )
    parsed = _parsed(options)
    app_version(parsed)  # reports invalid options now, before the tasks run
    return BatchWriter(parsed, schema)


def stream_writer(options: dict[str, str], schema: StructType) -> StreamWriter:
    """Creates the writer of a streaming query. Opens no connection.

    Raises:
        ConfigError: The options or the columns are invalid.
    """
    parsed = _parsed(options)
    refuse_version(parsed, "df.write")
    checkpoint = {name.lower(): value for name, value in options.items()}.get("checkpointlocation")
    return StreamWriter(parsed, schema, checkpoint)


def _parsed(options: dict[str, str]) -> SinkOptions:
    return sink_options({name: value for name, value in options.items() if name.lower() not in _SPARKS_OWN})


# --- on executors -----------------------------------------------------------------------------------------------------


class _Writer:
    """The common part of both writers."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._columns = wanted_columns(schema, options)
        self._rows_schema = _arrow.schema(
            [(name, arrow_type(schema[name].dataType)) for name in self._columns.values()]
        )

    def write(self, iterator: Iterator[Any]) -> Message:
        """Encodes the task's rows and puts the batches into the message or into the staging topic.

        Raises:
            ConfigError: A row has an invalid topic, partition or size, or the topic does not exist.
            StagingError: The batches could not be written to the staging topic.
            KafkaError: The cluster failed.
        """
        context = tasks.task_context()
        number = context.getLocalProperty(_BATCH)
        batch_id = _NO_BATCH if number is None else int(number)
        kept = _Kept(self._options, context.partitionId())
        rows = 0

        def counted() -> Iterator[Any]:
            nonlocal rows
            for part in iterator:
                if part.num_rows:
                    rows += part.num_rows
                    yield self._named(part)

        for (topic, partition), count, data in self._encoded(
            counted(), context.partitionId(), max(batch_id, 0)
        ):
            kept.put(topic, partition, count, data)
        inline, staged = kept.finish()
        encoded = sum(piece.rows for piece in inline) + sum(piece.rows for piece in staged)
        if encoded != rows:
            raise RuntimeError(f"A task got {rows} rows but encoded {encoded}: a bug in kafkasafe, report it")
        return Message(context.getLocalProperty(_QUERY) or "", batch_id, rows, inline, staged)

    def _named(self, part: Any) -> Any:
        names = part.schema.names
        return _arrow.RecordBatch.from_arrays(
            [part.column(names.index(name)) for name in self._columns.values()], names=list(self._columns)
        )

    def _encoded(self, parts: Iterator[Any], task: int, turn: int) -> Iterator[PackedBatch]:
        first = next(parts, None)
        if first is None:
            return
        spare_collections()
        topic = self._options.topic
        counts = {} if topic is None else {topic: _partition_count(self._options, topic)}
        encode = EncodeRows(options=self._options, counts=counts, slots=1, turn=turn)
        yield from encode.packed(itertools.chain([first], parts), task=task)


def _partition_count(options: SinkOptions, topic: str) -> int:
    try:
        return partition_count(options, topic)
    except KafkaError as failed:
        code = getattr(failed, "errno", None)
        if code == UNKNOWN_TOPIC_OR_PARTITION:
            raise unknown_topic(topic) from failed
        if isinstance(code, int) and code > 0:
            raise
        raise options.no_broker("executors", failed) from failed


class _Kept:
    """Holds the encoded batches of a task in memory. Above a size limit, writes the batches to the staging topic
    instead.
    """

    def __init__(self, options: SinkOptions, task: int) -> None:
        self._options = options
        self._limit = inline_limit(options, task)
        self._held: list[Inline] = []
        self._bytes = 0
        self._stager: Stager | None = None

    def put(self, topic: str, partition: int, rows: int, data: bytearray) -> None:
        if self._stager is None:
            self._bytes += len(data)
            self._held.append(Inline(topic, partition, rows, bytes(data)))
            if self._bytes > self._limit:
                self._stage()
        else:
            self._stager.put(topic, partition, rows, bytes(data))

    def finish(self) -> tuple[tuple[Inline, ...], tuple[StagedBatch, ...]]:
        if self._stager is None:
            return tuple(self._held), ()
        return (), tuple(self._stager.finish())

    def _stage(self) -> None:
        self._stager = Stager(transport_of(self._options), self._options)
        for piece in self._held:
            self._stager.put(piece.topic, piece.partition, piece.rows, piece.data)
        self._held.clear()


# --- on the driver ----------------------------------------------------------------------------------------------------


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of a batch query."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Writes the tasks' batches in one transaction, unless this `txnVersion` is already committed."""
        reports = _reports_of(messages)
        options = self._options
        app_id, version, remember = app_version(options)
        session = Session(options, app_id)
        try:
            work = _Work(options, session, reports)
            done = session.write(version, "", work, remember=remember)
        finally:
            session.close()
        _log_outcome(app_id, version, done)


# Spark 4.1 and later pass Arrow batches to a stream writer. Earlier versions pass only rows.
_ArrowStream: Any = getattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter", None)
_Stream: Any = _ArrowStream or DataSourceStreamWriter


class StreamWriter(_Writer, _Stream):  # type: ignore[misc]
    """The writer of a streaming query."""

    def __init__(self, options: SinkOptions, schema: StructType, checkpoint: str | None = None) -> None:
        super().__init__(options, schema)
        self._checkpoint = checkpoint

    def write(self, iterator: Iterator[Any]) -> Message:
        """Does the same as `_Writer.write`, for Arrow batches or for Spark's rows."""
        return super().write(
            iterator if _ArrowStream is not None else parts_of_rows(iterator, self._rows_schema)
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Writes the tasks' batches exactly once for each (query, batch id).

        Raises:
            CheckpointMismatchError: The marker does not fit the checkpoint. Nothing was written.
            StagingError: A staged batch is lost. No row of the micro-batch is visible.
            FencedError: Another driver has taken over.
            KafkaError: The micro-batch could not be written. No row is visible. After a restart, Spark repeats the
                micro-batch.
        """
        reports = _reports_of(messages)
        queries, batches = (
            {message.query_id for message in reports},
            {message.batch_id for message in reports},
        )
        if len(queries) > 1 or batches != {batchId}:
            raise UsageError(
                f"[KAFKASAFE.MIXED_BATCHES] Spark commits batch {batchId} with results of batches {sorted(batches)} of"
                f" the queries {sorted(queries)}: nothing was written. Use foreach_batch_sink on this version of Spark."
            )
        (query_id,) = queries
        app_id = stream_id(self._options, query_id, "in its tasks")
        session = _session(self._options, app_id)
        work = _Work(self._options, session, reports)
        done: Outcome | None = None
        try:
            plan = plan_in_checkpoint(self._checkpoint, batchId)
            done = session.write(batchId, query_id, work, plan=plan, count=lambda: work.rows)
        finally:
            outcomes.tell(
                query_id,
                done,
                restarts=session.restarts,
                retries=work.totals["retries"],
                bytes=work.totals["bytes"],
            )
        _log_outcome(app_id, batchId, done)


def parts_of_rows(rows: Iterator[Any], schema: Any) -> Iterator[Any]:
    """Converts Spark's rows into Arrow batches with the columns of `schema`."""
    held: list[dict[str, Any]] = []
    for row in rows:
        held.append(row.asDict(recursive=True))
        if len(held) == _ROWS:
            yield _arrow.RecordBatch.from_pylist(held, schema=schema)
            held = []
    if held:
        yield _arrow.RecordBatch.from_pylist(held, schema=schema)


def _reports_of(messages: Sequence[WriterCommitMessage | None]) -> list[Message]:
    reports = [message for message in messages if isinstance(message, Message)]
    if messages and not reports and all(message is None for message in messages):
        # All messages are None if the query has a continuous trigger: Spark then calls `commit`, although it has never
        # called `write` (observed with Spark 4.2). No other cause is known.
        raise UsageError(
            "[KAFKASAFE.CONTINUOUS_TRIGGER] Spark commits an epoch but passed none of its rows to the tasks. The"
            " cause is trigger(continuous=...), which does not work with Python data sources. Nothing was written. Use"
            " trigger(processingTime=...)."
        )
    if not reports or len(reports) < len(messages):
        raise UsageError(
            f"[KAFKASAFE.NO_MESSAGE] {len(messages) - len(reports)} of {len(messages)} tasks did not report their"
            " batches: nothing was written. Check that all nodes have the same version of kafkasafe."
        )
    return reports


def _log_outcome(app_id: str, batch_id: int, done: Outcome) -> None:
    log.info("Batch %d of %s: %s, %d rows in %.2f s", batch_id, app_id, done.name, done.rows, done.seconds)


class _Work:
    """Carries out the step WRITE: appends the batches of the messages. Can be called several times, each time with the
    grant (producer id and epoch) of another transaction.

    Attributes:
        rows: Number of rows that the tasks read.
        totals: `bytes` and `retries` of all transactions.
    """

    def __init__(self, options: SinkOptions, session: Session, reports: Sequence[Message]) -> None:
        self._options = options
        self._session = session
        self._inline = [piece for message in reports for piece in message.inline]
        self._staged = [piece for message in reports for piece in message.staged]
        self.rows = sum(message.rows for message in reports)
        self.totals: Counter[str] = Counter()

    def __call__(self, grant: WriterIdentity) -> Sequence[Report]:
        pieces: list[Inline | StagedBatch] = [*self._inline, *self._staged]
        places = {(piece.topic, piece.partition) for piece in pieces}
        reports = self._session.transaction.append(grant, places, self._batches(), self.totals)
        if (sent := sum(report.rows for report in reports)) != self.rows:
            raise RuntimeError(
                f"Tasks encoded {self.rows} rows, {sent} were sent: a bug in kafkasafe, report it"
            )
        return reports

    def _batches(self) -> Iterator[tuple[str, int, bytearray]]:
        for piece in self._inline:
            yield piece.topic, piece.partition, bytearray(piece.data)
        for place, data in fetch_staged(self._session.transport, self._options, self._staged):
            yield place.topic, place.partition, data


_sessions: dict[tuple[int, str, str], Session] = {}
_MOST_SESSIONS: Final = 8


def _session(options: SinkOptions, app_id: str) -> Session:
    """Returns this process's session for an application id.

    Spark uses this process for many micro-batches, and for other queries as well.
    """
    key = os.getpid(), app_id, repr(options)
    session = _sessions.pop(key, None) or Session(options, app_id)
    _sessions[key] = session  # moves the session to the end: the dict is in order of last use
    for old in list(_sessions)[:-_MOST_SESSIONS]:
        _sessions.pop(old).close()
    return session
