"""The sink for `foreachBatch` and for batch queries."""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

from kafkasafe._core.txn import Grant, Report
from kafkasafe._io.appender import FencedError, RestartError
from kafkasafe.errors import ConfigError, UsageError
from kafkasafe.spark import stats
from kafkasafe.spark.arrow import map_in_arrow
from kafkasafe.spark.failures import dead_worker
from kafkasafe.spark.options import error
from kafkasafe.spark.plans import plan_of_query
from kafkasafe.spark.session import Outcome, Session
from kafkasafe.spark.sink_options import SinkOptions, sink_options
from kafkasafe.spark.tasks import (
    ENCODED_SCHEMA,
    FENCED_TAG,
    REPORT_SCHEMA,
    RESTART_TAG,
    DirectWrite,
    EncodeRows,
    SendEncoded,
    reports_of,
)
from kafkasafe.spark.workers import warn_of_other_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ForeachBatchSink", "foreach_batch_sink", "write_batch"]

log = logging.getLogger(__name__)

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"  # a streaming query's run
_TRACKER_S: Final = 2.0
_MAX_SLOTS: Final = 256  # senders, where nobody says how many tasks can run at once
_MAX_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_MAX_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"
_EXCHANGE_BYTES: Final = 16 * 1024 * 1024
_SMALL_BATCH: Final = 64 * 1024
_FEW_RECORDS: Final = 1000


def foreach_batch_sink(
    topic: str | None = None, options: Mapping[str, Any] | None = None, /, **named: Any
) -> ForeachBatchSink:
    """A function for `writeStream.foreachBatch` that writes each micro-batch to Kafka exactly once.

    ```python
    sink = foreach_batch_sink("orders", {"kafka.bootstrap.servers": "b1:9092,b2:9092"})
    df.writeStream.foreachBatch(sink).option("checkpointLocation", "/chk/orders").start()
    ```

    Exactly once per (`txnAppId`, batch id) for readers with `isolation.level=read_committed`, under the conditions of
    docs/spark.md. Records are committed when the function returns; nothing of a micro-batch is visible before.

    The data frame has the columns of Spark's own Kafka sink: `value` (string or binary), and optionally `key` (string
    or binary), `headers` (array of structs of key and value), `topic` (string), `partition` (int). Others are ignored.

    Args:
        topic: As the option `topic`: where all rows go. None: the column `topic` says.
        options: `kafka.bootstrap.servers` and other `kafka.*`, `txnAppId` (default: the query's id and the topic),
            `markerTopic`, `onMarkerMismatch`, `exchange`, `maxRestarts`; docs/spark.md describes them.
        named: More of them, those whose names are identifiers.

    Raises:
        ConfigError: An option is unknown (the message names the nearest) or cannot work. Nothing was opened.
    """
    parsed = sink_options(_given(topic, options, named))
    refuse_version(parsed, "write_batch")
    return ForeachBatchSink(parsed)


def _given(topic: str | None, options: Mapping[str, Any] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a call; names are the same in any case, as Spark has it.

    Raises:
        ConfigError: One is given twice, or `options` is not a mapping.
    """
    if options is not None and not isinstance(options, Mapping):
        raise error("INVALID_OPTION", f"options must be a mapping of names to values, not {options!r}.")
    found = dict(options or {})
    twice = {name.lower() for name in found} & {name.lower() for name in named}
    if twice:
        raise error("INVALID_OPTION", f"{min(twice)} is given in the mapping and by name: give it once.")
    found.update(named)
    if topic is None:
        return found
    return {**{name: value for name, value in found.items() if name.lower() != "topic"}, "topic": topic}


def refuse_version(options: SinkOptions, batch_use: str) -> None:
    """A streaming query has no `txnVersion`.

    Raises:
        ConfigError: One is given; the message names what it is for.
    """
    if options.version is not None:
        raise error(
            "INVALID_OPTION",
            f"txnVersion is for batch use ({batch_use}): here Spark's batch id takes its place.",
        )


def stream_id(options: SinkOptions, query_id: str | None, unseen: str) -> str:
    """The `txnAppId` of a streaming query: sink and writer have the same default, so a query may change between them.

    Args:
        options: Of the sink or the writer.
        query_id: As Spark tells it; empty or None: it does not.
        unseen: Why not, for the error.

    Raises:
        ConfigError: Neither is known.
    """
    if options.app_id is not None:
        return options.app_id
    if not query_id:
        raise error("MISSING_OPTION", f"The streaming query's id cannot be seen {unseen}: give txnAppId.")
    return f"{query_id}-{options.topic or '*'}"


def app_version(options: SinkOptions) -> tuple[str, int, bool]:
    """`txnAppId` and `txnVersion` of a batch query, and whether anybody will ask for their marker.

    Raises:
        ConfigError: One of them is given without the other.
    """
    if (options.app_id is None) is not (options.version is None):
        raise error("MISSING_OPTION", "txnAppId and txnVersion belong together: give both, or neither.")
    if options.app_id is None or options.version is None:
        # Nobody will ask for its marker; the id is new, so that writers do not shut each other out.
        return f"once-{uuid.uuid4()}", 0, False
    return options.app_id, options.version, True


def write_batch(
    df: DataFrame,
    topic: str | None = None,
    options: Mapping[str, Any] | None = None,
    /,
    **named: Any,
) -> Outcome:
    """Writes a data frame to Kafka in one transaction: all of it or nothing.

    With `txnAppId` and `txnVersion`, as in Delta: a version at or below one that was committed under this id is not
    written again, so a job may be repeated. Without them each call writes.

    Args:
        df: As for `foreach_batch_sink`.
        topic: As there.
        options: As there, and `txnVersion`.
        named: As there.

    Returns:
        What became of it. The rows are committed.

    Raises:
        ConfigError: As `foreach_batch_sink`; or a column is missing or has a wrong type.
        FencedError: Another call with this `txnAppId` took over; nothing of this one is visible, or all.
        KafkaError: It could not be written; nothing of it is visible.
    """
    parsed = sink_options(_given(topic, options, named))
    app_id, version, remember = app_version(parsed)
    warn_of_other_python(df.sparkSession)
    session = Session(parsed, app_id)
    try:
        job = _Job(parsed, df, version, session)
        return session.write(version, "", job, remember=remember)
    finally:
        session.close()


class ForeachBatchSink:
    """What `foreach_batch_sink` returns; call it with a data frame and a batch id.

    Attributes:
        last: What became of the latest micro-batch; None before the first.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self.last: Outcome | None = None

    def __repr__(self) -> str:
        return f"<ForeachBatchSink topic={self._options.topic} servers={self._options.servers}>"

    def __getstate__(self) -> SinkOptions:
        return self._options  # connections stay with the process

    def __setstate__(self, options: SinkOptions) -> None:
        self.__init__(options)  # type: ignore[misc]

    def close(self) -> None:
        """Closes the driver's connections. The sink can still be used: it opens them again."""
        with self._lock:
            for session in self._sessions.values():
                session.close()
            self._sessions.clear()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Writes a micro-batch, unless it is committed already.

        Raises:
            ConfigError: A column is missing or has a wrong type, or the query's id cannot be known.
            CheckpointMismatchError: The marker in Kafka does not fit the checkpoint.
            KafkaError: It could not be written. Nothing of it is visible; Spark repeats it after a restart.
        """
        warn_of_other_python(df.sparkSession)
        properties = _Properties(df)
        query_id = properties.get(_QUERY)
        app_id = stream_id(
            self._options, query_id, "from here (Spark Connect, or a call that is not foreachBatch's)"
        )
        run = properties.get(_RUN)
        _claim_turn(app_id, run, batch_id, self)
        with self._lock:
            session = self._sessions.get(app_id)
            if session is None:
                session = self._sessions[app_id] = Session(self._options, app_id)
            job = _Job(self._options, df, batch_id, session)
            done: Outcome | None = None
            try:
                plan = plan_of_query(df.sparkSession, query_id, batch_id)
                done = self.last = session.write(batch_id, query_id or "", job, plan=plan, count=job.count)
            finally:
                stats.count(query_id or app_id, done, {**job.totals, "restarts": session.restarts})
        _served[app_id] = (run, batch_id)
        log.info(
            "Batch %d of %s: %s, %d rows in %.2f s",
            batch_id,
            app_id,
            self.last.name,
            self.last.rows,
            self.last.seconds,
        )


# (run, batch id) that was served last under an application id, in this process.
_served: dict[str, tuple[str | None, int]] = {}


def _claim_turn(app_id: str, run: str | None, batch_id: int, sink: ForeachBatchSink) -> None:
    """Two writes of one micro-batch under one id: the second would be taken for a repetition, and skipped."""
    if run and _served.get(app_id) == (run, batch_id):
        raise UsageError(
            f"[KAFKASAFE.SAME_BATCH_TWICE] Batch {batch_id} was already written under txnAppId {app_id!r} in this run"
            f" of the query, now {sink!r} is called again: a second data frame in the same foreachBatch needs a sink"
            " with a txnAppId of its own."
        )


class _Properties:
    """Local properties of the thread that runs the query."""

    def __init__(self, df: DataFrame) -> None:
        self._context = getattr(df.sparkSession, "_sc", None)

    def get(self, name: str) -> str | None:
        value = None if self._context is None else self._context.getLocalProperty(name)
        return None if value is None else str(value)


class _Job:
    """Has tasks write a data frame under a grant."""

    def __init__(self, options: SinkOptions, df: DataFrame, batch_id: int, session: Session) -> None:
        self._options = options
        self._batch_id = batch_id
        self._session = session
        self._df, self._bound = _checked(df, options)
        self.totals: dict[str, int] = {}

    def __call__(self, grant: Grant) -> Sequence[Report]:
        job, exchange = self._plan(grant)
        with _with_settings(job, _exchange_settings(self._df) if exchange else {}) as job:
            try:
                rows = job.collect()
            except Exception as failed:
                raise _translated(failed) from failed
        for name in ("bytes", "retries"):
            self.totals[name] = self.totals.get(name, 0) + sum(row[name] for row in rows)
        self._check_stages(rows)
        return reports_of(rows)

    def count(self) -> int:
        """How many rows the data frame has."""
        return self._df.count()

    def _plan(self, grant: Grant) -> tuple[DataFrame, bool]:
        options, df = self._options, self._df
        topic = options.topic
        count = self._session.partitions  # those that are in the transaction, whatever the topic has by now
        cores = _cores(df)
        parallelism = cores or 2
        # Fewer tasks than the machine could run would slow down everything that feeds them.
        exchange = (
            self._bound or options.exchange is True or (options.exchange is None and count < parallelism)
        )
        if not exchange and topic is not None:
            write = DirectWrite(
                options=options, grant=grant, add=False, topic=topic, partitions=count, turn=self._batch_id
            )
            return map_in_arrow(df.coalesce(count), write, REPORT_SCHEMA), False
        # More senders than can run at once would be a second wave, which has the brokers to itself and cannot use them.
        slots = min(count, cores or _MAX_SLOTS) if topic is not None else max(2, parallelism)
        counts = {} if topic is None else {topic: count}
        if not _has(df, _MAX_BYTES):
            options = replace(options, batch_bytes=min(options.batch_bytes, _SMALL_BATCH))
        encode = EncodeRows(options=options, counts=counts, slots=slots, turn=self._batch_id)
        send = SendEncoded(
            options=options, grant=grant, add=topic is None, alone=topic is not None and slots == count
        )
        encoded = map_in_arrow(df, encode, ENCODED_SCHEMA)
        if hasattr(encoded, "repartitionById"):
            moved = encoded.repartitionById(slots, "slot")
        else:
            # By hash: some tasks get several partitions.
            moved, send = encoded.repartition(slots, "slot"), replace(send, alone=False)
        return map_in_arrow(moved, send, REPORT_SCHEMA), True

    def _check_stages(self, rows: Sequence[Any]) -> None:
        """A stage that was run again may have left tasks behind that still write, to partitions nobody claimed."""
        context = getattr(self._df.sparkSession, "_sc", None)
        if context is None:
            return
        tracker = context.statusTracker()
        deadline = time.monotonic() + _TRACKER_S
        for stage in {row["stage"] for row in rows}:
            info = tracker.getStageInfo(stage)
            # It hears of everything a little later than we do; of an old stage it knows nothing any more.
            while info is not None and info.numActiveTasks and time.monotonic() < deadline:
                time.sleep(0.01)
                info = tracker.getStageInfo(stage)
            if info is not None and info.currentAttemptId > 0:
                raise RestartError(f"Stage {stage} was run {info.currentAttemptId + 1} times")


def _checked(df: DataFrame, options: SinkOptions) -> tuple[DataFrame, bool]:
    """The columns that matter, of the right types; and whether rows are bound to partitions."""
    names = wanted_columns(df.schema, options)
    bound = options.topic is None or "key" in names or "partition" in names
    if bound and options.exchange is False:
        raise error(
            "INVALID_OPTION",
            "exchange=never, but a column key, partition or topic binds rows to partitions: drop the column, or leave"
            " the option out.",
        )
    return df.select(*(df[f"`{name}`"].alias(ours) for ours, name in names.items())), bound


def wanted_columns(schema: StructType, options: SinkOptions) -> dict[str, str]:
    """The columns that matter: our names for them, and those of the schema.

    Raises:
        ConfigError: One is missing or has a wrong type.
    """
    fields = {field.name.lower(): field for field in schema.fields}
    if "value" not in fields:
        raise error(
            "MISSING_COLUMN",
            f"There is no column value among {', '.join(schema.fieldNames()) or 'no columns'}: add one, for instance"
            ' df.selectExpr("to_json(struct(*)) AS value").',
        )
    if options.topic is None and "topic" not in fields:
        raise error(
            "MISSING_COLUMN", "There is neither an option topic nor a column topic: where are the rows to go?"
        )
    text_or_bytes = (StringType, BinaryType)
    for name, kinds in (
        ("key", text_or_bytes),
        ("value", text_or_bytes),
        ("topic", (StringType,)),
        ("partition", (IntegerType,)),
    ):
        if name in fields and not isinstance(fields[name].dataType, kinds):
            wanted = " or ".join(kind.typeName() for kind in kinds)
            raise error(
                "WRONG_TYPE",
                f"Column {name} is {fields[name].dataType.simpleString()}, it must be {wanted}: CAST({name} AS"
                f" {kinds[0].typeName().upper()}).",
            )
    if "headers" in fields and not _are_headers(fields["headers"].dataType):
        raise error(
            "WRONG_TYPE",
            f"Column headers is {fields['headers'].dataType.simpleString()}, it must be"
            " array<struct<key:string,value:binary>>.",
        )
    wanted_names = ["key", "value", "headers", "partition"] + (["topic"] if options.topic is None else [])
    return {name: fields[name].name for name in wanted_names if name in fields}


def _are_headers(kind: Any) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


def _cores(df: DataFrame) -> int | None:
    """How many tasks can run at once; None: nobody says (Spark Connect)."""
    context = getattr(df.sparkSession, "_sc", None)
    return None if context is None else int(context.defaultParallelism)


def _has(df: DataFrame, name: str) -> bool:
    try:
        # With a default of ours it would be that, whether Spark knows the name or not.
        return df.sparkSession.conf.get(name) is not None
    except Exception:  # an older Spark does not know it
        return False


def _exchange_settings(df: DataFrame) -> dict[str, str]:
    # Encoded batches are large rows: as many as Spark puts into one Arrow batch would be gigabytes.
    settings = (
        {_MAX_BYTES: str(_EXCHANGE_BYTES)} if _has(df, _MAX_BYTES) else {_MAX_RECORDS: str(_FEW_RECORDS)}
    )
    if not _is_adaptive(df):
        # Our own exchange has its number of partitions: there is nothing to adapt, and planning in between costs 0.1 s.
        settings[_ADAPTIVE] = "false"
    return settings


def _is_adaptive(df: DataFrame) -> bool:
    """Whether adaptive execution may have something to do in the query itself; it leaves alone what has no exchange."""
    jdf: Any = getattr(df, "_jdf", None)
    if jdf is None:
        return True
    return str(jdf.queryExecution().executedPlan().nodeName()).startswith("AdaptiveSparkPlan")


@contextmanager
def _with_settings(df: DataFrame, settings: dict[str, str]) -> Iterator[DataFrame]:
    """The data frame, so that it runs under these settings, and nothing else of its session does."""
    jdf: Any = getattr(df, "_jdf", None)
    if not settings:
        yield df
    elif jdf is None:
        with _shared_settings(df, settings):
            yield df
    else:
        from pyspark.sql import SparkSession
        from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

        # Settings are a session's, and others use it at the same time: the plan runs in a copy, made in milliseconds.
        context: Any = df.sparkSession.sparkContext
        copy = jdf.sparkSession().cloneSession()
        for name, value in settings.items():
            copy.conf().set(name, value)
        plan = context._jvm.org.apache.spark.sql.classic.Dataset.ofRows(copy, jdf.logicalPlan())
        yield ClassicDataFrame(plan, SparkSession(context, copy))


# Of Spark Connect, whose sessions cannot be copied: (session, name) → how many need it, and what it was before.
_shared: dict[tuple[str, str], tuple[int, str | None]] = {}
_shared_lock: Final = threading.Lock()


@contextmanager
def _shared_settings(df: DataFrame, settings: dict[str, str]) -> Iterator[None]:
    """Settings of the session itself, until the last of those that need them at the same time is done."""
    session = df.sparkSession
    conf, mine = session.conf, str(getattr(session, "session_id", id(session)))
    with _shared_lock:
        for name, value in settings.items():
            count, before = _shared.get((mine, name)) or (0, conf.get(name, None))
            conf.set(name, value)
            _shared[mine, name] = count + 1, before
    try:
        yield
    finally:
        with _shared_lock:
            for name in settings:
                count, before = _shared.pop((mine, name))
                if count > 1:
                    _shared[mine, name] = count - 1, before
                elif before is None:
                    conf.unset(name)
                else:
                    conf.set(name, before)


def _translated(failed: Exception) -> Exception:
    """What a failed job means to the transaction."""
    said = str(failed)
    if RESTART_TAG in said:
        return RestartError(_line(said, RESTART_TAG))
    if FENCED_TAG in said:
        return FencedError(_line(said, FENCED_TAG))
    if (reason := dead_worker(said)) is not None:
        return RestartError(f"A worker of Spark died: {reason[:300]}")
    found = re.search(r"ConfigError: (\[KAFKASAFE\.[^\n]*)", said)
    return ConfigError(found.group(1)) if found else failed


def _line(said: str, tag: str) -> str:
    return said[said.index(tag) :].splitlines()[0][:500]
