"""The writers of `format("kafkasafe")`: `df.write` and `writeStream`.

Where what runs: construction in short-lived processes on the driver; `write` in the executors' workers, where it has no
effect on the target; `commit` in a process on the driver, which goes through the protocol of `session.py` and is the
only one that appends to the target. docs/spark.md has the reasons and the crash table.

Spark uses the process of `commit` again for later micro-batches: connections are kept there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyspark.sql.datasource
from kafka.errors import KafkaError
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kafkasafe._core.txn import Grant, Report
from kafkasafe._io.appender import Appender
from kafkasafe._io.staging import Staged, Stager, fetch_staged
from kafkasafe._io.transport import Transport
from kafkasafe.errors import UsageError
from kafkasafe.spark import outcomes, tasks
from kafkasafe.spark.options import error
from kafkasafe.spark.plans import plan_in_checkpoint
from kafkasafe.spark.session import Outcome, Session, no_broker, unknown_topic
from kafkasafe.spark.sink import app_version, refuse_version, stream_id, wanted_columns
from kafkasafe.spark.sink_options import SinkOptions, sink_options
from kafkasafe.spark.source import arrow_type
from kafkasafe.spark.tasks import EncodeRows, partition_count, transport_of

__all__ = ["BatchWriter", "Inline", "Message", "StreamWriter", "batch_writer", "stream_writer"]

log = logging.getLogger(__name__)

_arrow: Any = pa

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_NO_BATCH: Final = -1
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "path", "queryname"})
_FIRST_TASKS: Final = (
    64  # may give the driver `inlineBytes` each, all others less: thousands of them are its memory
)
_LATER_INLINE_BYTES: Final = 64 * 1024
_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Inline:
    """An encoded batch in a message.

    Attributes:
        topic: Where it is to go.
        partition: Where it is to go.
        rows: Records in it.
        data: The batch, without an identity.
    """

    topic: str
    partition: int
    rows: int
    data: bytes


@dataclass(frozen=True)
class Message(WriterCommitMessage):
    """What a task tells `commit`.

    Attributes:
        query_id: Of the streaming query, as the task saw it; empty in a batch query.
        batch_id: Of the micro-batch, as the task saw it; -1 in a batch query.
        rows: That the task read.
        inline: Its batches, or
        staged: where they are.
    """

    query_id: str
    batch_id: int
    rows: int
    inline: tuple[Inline, ...] = ()
    staged: tuple[Staged, ...] = ()


def batch_writer(options: dict[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """The writer of a batch query. Nothing is opened.

    Raises:
        ConfigError: Options, columns or the mode cannot work.
    """
    if overwrite:
        raise error(
            "INVALID_MODE",
            'mode is overwrite, but the records of a topic cannot be replaced: use .mode("append"), after deleting'
            " and creating the topic if its records are to go.",
        )
    parsed = _parsed(options)
    app_version(parsed)  # refused now, and not after the tasks
    return BatchWriter(parsed, schema)


def stream_writer(options: dict[str, str], schema: StructType) -> StreamWriter:
    """The writer of a streaming query. Nothing is opened.

    Raises:
        ConfigError: Options or columns cannot work.
    """
    parsed = _parsed(options)
    refuse_version(parsed, "df.write")
    checkpoint = {name.lower(): value for name, value in options.items()}.get("checkpointlocation")
    return StreamWriter(parsed, schema, checkpoint)


def _parsed(options: dict[str, str]) -> SinkOptions:
    return sink_options({name: value for name, value in options.items() if name.lower() not in _SPARKS_OWN})


# --- on executors -----------------------------------------------------------------------------------------------------


class _Writer:
    """What both writers do."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._columns = wanted_columns(schema, options)
        self._rows_schema = _arrow.schema(
            [(name, arrow_type(schema[name].dataType)) for name in self._columns.values()]
        )

    def write(self, iterator: Iterator[Any]) -> Message:
        """Encodes the task's rows; they are in the message then, or in the staging topic.

        Raises:
            ConfigError: A row cannot be written (its topic, its partition, its size), or there is no such topic.
            StagingError: The staging topic failed.
            KafkaError: So did the cluster.
        """
        context = tasks._context()
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

        for part in self._encoded(counted(), max(batch_id, 0)):
            columns = [part.column(name).to_pylist() for name in ("topic", "partition", "rows")]
            for index, (topic, partition, count) in enumerate(zip(*columns, strict=True)):
                kept.put(topic, partition, count, memoryview(part.column("data")[index].as_buffer()))
        inline, staged = kept.finish()
        _check(rows, inline, staged)
        return Message(context.getLocalProperty(_QUERY) or "", batch_id, rows, inline, staged)

    def _named(self, part: Any) -> Any:
        names = part.schema.names
        return _arrow.RecordBatch.from_arrays(
            [part.column(names.index(name)) for name in self._columns.values()], names=list(self._columns)
        )

    def _encoded(self, parts: Iterator[Any], turn: int) -> Iterator[Any]:
        first = next(parts, None)
        if first is None:
            return
        topic = self._options.topic
        counts = {} if topic is None else {topic: _partition_count(self._options, topic)}

        def again() -> Iterator[Any]:
            yield first
            yield from parts

        yield from EncodeRows(options=self._options, counts=counts, slots=1, turn=turn)(again())


def _check(rows: int, inline: Sequence[Inline], staged: Sequence[Staged]) -> None:
    pieces: list[Inline | Staged] = [*inline, *staged]
    encoded = sum(piece.rows for piece in pieces)
    if encoded != rows:
        raise RuntimeError(f"{rows} rows were given, {encoded} are in batches: a bug of kafkasafe")


def _partition_count(options: SinkOptions, topic: str) -> int:
    try:
        return partition_count(options, topic)
    except KafkaError as failed:
        code = getattr(failed, "errno", None)
        if code == 3:
            raise unknown_topic(topic) from failed
        if isinstance(code, int) and code > 0:
            raise
        raise no_broker(options, "executors", failed) from failed


class _Kept:
    """The encoded batches of a task: held while they are few, else staged."""

    def __init__(self, options: SinkOptions, task: int) -> None:
        self._options = options
        limit = options.inline_bytes
        self._limit = limit if task < _FIRST_TASKS else min(limit, _LATER_INLINE_BYTES)
        self._held: list[Inline] = []
        self._bytes = 0
        self._stager: Stager | None = None

    def put(self, topic: str, partition: int, rows: int, data: memoryview) -> None:
        if self._stager is None:
            self._bytes += len(data)
            self._held.append(Inline(topic, partition, rows, bytes(data)))
            if self._bytes > self._limit:
                self._stage()
        else:
            self._stager.put(topic, partition, rows, bytes(data))

    def finish(self) -> tuple[tuple[Inline, ...], tuple[Staged, ...]]:
        if self._stager is None:
            return tuple(self._held), ()
        return (), tuple(self._stager.finish())

    def _stage(self) -> None:
        options = self._options
        self._stager = Stager(
            transport_of(options),
            options.staging_topic,
            delivery_timeout_s=options.delivery_timeout_s,
            request_timeout_ms=options.request_timeout_ms,
            api_timeout_s=options.api_timeout_s,
            buffer_bytes=options.buffer_bytes,
            # A batch of one record may be that large, and a little more.
            largest_bytes=2 * max(options.batch_bytes, options.max_record_bytes),
        )
        for piece in self._held:
            self._stager.put(piece.topic, piece.partition, piece.rows, piece.data)
        self._held.clear()


# --- on the driver ----------------------------------------------------------------------------------------------------


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Of a batch query."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Writes what the tasks made, in one transaction, unless this `txnVersion` is committed already."""
        told = _told(messages)
        options = self._options
        app_id, version, remember = app_version(options)
        session = Session(options, app_id)
        try:
            work = _Work(options, session, told)
            done = session.write(version, "", work, remember=remember)
        finally:
            session.close()
        _log_outcome(app_id, version, done)


# Spark 4.1 and later; before it there are rows only.
_ArrowStream: Any = getattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter", None)
_Stream: Any = _ArrowStream or DataSourceStreamWriter


class StreamWriter(_Writer, _Stream):  # type: ignore[misc]
    """Of a streaming query."""

    def __init__(self, options: SinkOptions, schema: StructType, checkpoint: str | None = None) -> None:
        super().__init__(options, schema)
        self._checkpoint = checkpoint

    def write(self, iterator: Iterator[Any]) -> Message:
        """As `_Writer.write`, of Arrow batches or of Spark's rows."""
        return super().write(
            iterator if _ArrowStream is not None else parts_of_rows(iterator, self._rows_schema)
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Writes what the tasks made, exactly once for each (query, batch id).

        Raises:
            CheckpointMismatchError: The marker does not fit the checkpoint. Nothing was written.
            StagingError: A staged batch is lost. Nothing of the micro-batch is visible.
            FencedError: Another driver has taken over.
            KafkaError: It could not be written. Nothing of it is visible; Spark repeats it after a restart.
        """
        told = _told(messages)
        queries, batches = {message.query_id for message in told}, {message.batch_id for message in told}
        if len(queries) > 1 or batches != {batchId}:
            raise UsageError(
                f"[KAFKASAFE.MIXED_BATCHES] Spark commits batch {batchId} with results of batches {sorted(batches)} of"
                f" the queries {sorted(queries)}: nothing was written. Use foreach_batch_sink on this version of Spark."
            )
        (query_id,) = queries
        app_id = stream_id(self._options, query_id, "by its tasks")
        session = _session(self._options, app_id)
        work = _Work(self._options, session, told)
        done: Outcome | None = None
        try:
            plan = plan_in_checkpoint(self._checkpoint, batchId)
            done = session.write(batchId, query_id, work, plan=plan, count=work.count)
        finally:
            outcomes.tell(query_id, done, restarts=session.restarts, retries=work.retries, bytes=work.bytes)
        _log_outcome(app_id, batchId, done)


def parts_of_rows(rows: Iterator[Any], schema: Any) -> Iterator[Any]:
    """Spark's rows as Arrow batches with the columns of `schema`."""
    held: list[dict[str, Any]] = []
    for row in rows:
        held.append(row.asDict(recursive=True))
        if len(held) == _ROWS:
            yield _arrow.RecordBatch.from_pylist(held, schema=schema)
            held = []
    if held:
        yield _arrow.RecordBatch.from_pylist(held, schema=schema)


def _told(messages: Sequence[WriterCommitMessage | None]) -> list[Message]:
    told = [message for message in messages if isinstance(message, Message)]
    if messages and not told and all(message is None for message in messages):
        # Seen with Spark 4.2 only there: it calls no Python writer's `write` then, and `commit` all the same.
        raise UsageError(
            "[KAFKASAFE.CONTINUOUS_TRIGGER] Spark commits an epoch of which it gave no rows to the tasks, as it does"
            " with trigger(continuous=...), which does not work with Python data sources: nothing is written. Use"
            " trigger(processingTime=...)."
        )
    if not told or len(told) < len(messages):
        raise UsageError(
            f"[KAFKASAFE.NO_MESSAGE] {len(messages) - len(told)} of {len(messages)} tasks did not report what they"
            " made: nothing was written. Have all nodes the same version of kafkasafe?"
        )
    return told


def _log_outcome(app_id: str, batch_id: int, done: Outcome) -> None:
    log.info("Batch %d of %s: %s, %d rows in %.2f s", batch_id, app_id, done.name, done.rows, done.seconds)


class _Work:
    """WRITE: appends the batches of the messages. May be called again, for another grant."""

    def __init__(self, options: SinkOptions, session: Session, told: Sequence[Message]) -> None:
        self._options = options
        self._session = session
        self._inline = [piece for message in told for piece in message.inline]
        self._staged = [piece for message in told for piece in message.staged]
        self._rows = sum(message.rows for message in told)
        self.retries = 0
        self.bytes = 0

    def count(self) -> int:
        """How many rows the tasks read."""
        return self._rows

    def __call__(self, grant: Grant) -> Sequence[Report]:
        options, transport = self._options, self._session.transport
        pieces: list[Inline | Staged] = [*self._inline, *self._staged]
        places = {(piece.topic, piece.partition) for piece in pieces}
        if places:
            # Those of the option `topic` are there already, unless it grew since.
            self._session.add(grant, places)
        appender = Appender(
            transport,
            grant,
            attempt=0,
            delivery_timeout_s=options.delivery_timeout_s,
            request_timeout_ms=options.request_timeout_ms,
            buffer_bytes=options.buffer_bytes,
            claims=False,  # the grant never leaves this process
        )
        try:
            for piece in self._inline:
                appender.append(piece.topic, piece.partition, bytearray(piece.data))
            for place, data in self._fetched(transport):
                appender.append(place.topic, place.partition, data)
            reports = appender.finish()
        finally:
            self.retries += appender.retries
            self.bytes += appender.bytes
        _check(self._rows, self._inline, self._staged)
        if (sent := sum(report.rows for report in reports)) != self._rows:
            raise RuntimeError(f"Tasks made {self._rows} rows, {sent} were sent: a bug of kafkasafe")
        return reports

    def _fetched(self, transport: Transport) -> Iterator[tuple[Staged, bytearray]]:
        options = self._options
        return fetch_staged(
            transport, options.staging_topic, self._staged, timeout_s=options.delivery_timeout_s
        )


_sessions: dict[tuple[int, str, str], Session] = {}
_MOST_SESSIONS: Final = 8


def _session(options: SinkOptions, app_id: str) -> Session:
    """This process's session of a query: Spark uses the process for many micro-batches, and for other queries."""
    key = os.getpid(), app_id, repr(options)
    session = _sessions.pop(key, None) or Session(options, app_id)
    _sessions[key] = session  # the one used last is the last
    for old in list(_sessions)[:-_MOST_SESSIONS]:
        _sessions.pop(old).close()
    return session


def close_sessions() -> None:
    """Closes what this process keeps open. The next commit opens it again."""
    while _sessions:
        _sessions.popitem()[1].close()
