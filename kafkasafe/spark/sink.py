"""The sink for `foreachBatch` and for batch queries."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kafkasafe.errors import ConfigError, UsageError
from kafkasafe.process.locks import new_lock
from kafkasafe.spark import stats
from kafkasafe.spark.appender import FencedError, RestartError
from kafkasafe.spark.collected import RowTooLargeError, Size, bound_of, collect_rows, later_size
from kafkasafe.spark.failures import dead_worker
from kafkasafe.spark.java import java_frame, map_in_arrow, spark_context
from kafkasafe.spark.option_values import error
from kafkasafe.spark.plans import commits_are_validated, plan_of_query, run_of_query
from kafkasafe.spark.session import Outcome, Session
from kafkasafe.spark.session_settings import exchange_settings, limits_arrow_bytes, speculates, with_settings
from kafkasafe.spark.sink_columns import checked
from kafkasafe.spark.sink_options import SinkOptions, sink_options
from kafkasafe.spark.tasks import (
    ENCODED_SCHEMA,
    FENCED_TAG,
    REPORT_SCHEMA,
    RESTART_TAG,
    DirectWrite,
    EncodeInline,
    EncodeRows,
    SendEncoded,
    inline_of,
    reports_of,
)
from kafkasafe.spark.txn import Report, WriterIdentity
from kafkasafe.spark.workers import warn_of_other_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_QUERY: Final = "sql.streaming.queryId"
_RUN: Final = "spark.jobGroup.id"  # the run id of a streaming query, unless its function set another group
_TRACKER_S: Final = 2.0
_TRACKER_POLL_S: Final = 0.002
_MAX_SLOTS: Final = 256  # maximum number of sending tasks if the number of cores is unknown
_SMALL_BATCH: Final = 64 * 1024


def foreach_batch_sink(
    topic: str | None = None, options: Mapping[str, Any] | None = None, /, **named: Any
) -> ForeachBatchSink:
    """Creates a function for `writeStream.foreachBatch` that writes each micro-batch to Kafka exactly once.

    ```python
    sink = foreach_batch_sink("orders", {"kafka.bootstrap.servers": "b1:9092,b2:9092"})
    df.writeStream.foreachBatch(sink).option("checkpointLocation", "/chk/orders").start()
    ```

    Readers with `isolation.level=read_committed` see the records of each (`txnAppId`, batch id) exactly once, under the
    conditions of docs/spark-guarantees.md. When the function returns, the records are committed. Before the commit, no
    record of the micro-batch is visible.

    The data frame has the columns of Spark's own Kafka sink: `value` (string or binary), and optionally `key` (string
    or binary), `headers` (array of structs of key and value), `topic` (string) and `partition` (int). The sink ignores
    other columns.

    Args:
        topic: Topic for all rows, like the option `topic`. None: the topic of each row is in the column `topic`.
        options: `kafka.bootstrap.servers` and other `kafka.*`, `txnAppId` (default: the query's id and the topic),
            `markerTopic`, `onMarkerMismatch`, `exchange`, `maxRestarts`. docs/spark-sink.md describes them.
        named: Further options, as keyword arguments. Their names must be Python identifiers.

    Raises:
        ConfigError: An option is unknown (the message names the most similar one) or invalid. No connection was opened.
    """
    parsed = sink_options(_given(topic, options, named))
    refuse_version(parsed, "write_batch")
    return ForeachBatchSink(parsed)


def _given(topic: str | None, options: Mapping[str, Any] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """Merges all options of a call. Like Spark, ignores the case of the options' names.

    Raises:
        ConfigError: An option is given twice, or `options` is not a mapping.
    """
    if options is not None and not isinstance(options, Mapping):
        raise error("INVALID_OPTION", f"options must be a mapping of names to values, not {options!r}.")
    found = dict(options or {})
    twice = {name.lower() for name in found} & {name.lower() for name in named}
    if twice:
        raise error("INVALID_OPTION", f"{min(twice)} is given in the mapping and by name: give it once.")
    for each in (found, named):
        times = Counter(name.lower() for name in each).most_common(1)
        if times and times[0][1] > 1:
            raise error(
                "INVALID_OPTION", f"{times[0][0]} is given twice, in upper and lower case: give it once."
            )
    found.update(named)
    if topic is None:
        return found
    return {**{name: value for name, value in found.items() if name.lower() != "topic"}, "topic": topic}


def refuse_version(options: SinkOptions, batch_use: str) -> None:
    """Rejects the option `txnVersion`, because a streaming query does not use it.

    Raises:
        ConfigError: The option is given. The message says when to use it.
    """
    if options.version is not None:
        raise error(
            "INVALID_OPTION",
            f"txnVersion is for batch use ({batch_use}): leave it out, since a streaming query uses Spark's batch id.",
        )


def stream_id(options: SinkOptions, query_id: str | None, unseen: str) -> str:
    """Returns the `txnAppId` of a streaming query.

    The sink and the writer have the same default, so a query may switch between them.

    Args:
        options: Options of the sink or the writer.
        query_id: The query id from Spark; empty or None if it is not available.
        unseen: The part of the error message that says in which cases the query id is not available.

    Raises:
        ConfigError: There is neither a `txnAppId` nor a query id.
    """
    if options.app_id is not None:
        return options.app_id
    if not query_id:
        raise error("MISSING_OPTION", f"The streaming query's id is not available {unseen}: set txnAppId.")
    return f"{query_id}-{options.topic or '*'}"


def app_version(options: SinkOptions) -> tuple[str, int, bool]:
    """Returns a batch query's application id, its version, and whether a later call may need the marker of this call.

    Raises:
        ConfigError: One of the options is given without the other.
    """
    if (options.app_id is None) is not (options.version is None):
        raise error("MISSING_OPTION", "txnAppId and txnVersion belong together: set both or neither.")
    if options.app_id is None or options.version is None:
        # No later call needs the marker. The id is unique, so that concurrent writers do not fence each other.
        return f"once-{uuid.uuid4()}", 0, False
    return options.app_id, options.version, True


def write_batch(
    df: DataFrame,
    topic: str | None = None,
    options: Mapping[str, Any] | None = None,
    /,
    **named: Any,
) -> Outcome:
    """Writes a data frame to Kafka in one transaction: all rows or none.

    With the options `txnAppId` and `txnVersion`, a job can be repeated safely, as in Delta. If the same `txnVersion` or
    a higher one is already committed under this `txnAppId`, the call writes nothing. Without `txnAppId` and
    `txnVersion`, each call writes all rows.

    Args:
        df: As for `foreach_batch_sink`.
        topic: As for `foreach_batch_sink`.
        options: The options of `foreach_batch_sink`, and `txnVersion`.
        named: As for `foreach_batch_sink`.

    Returns:
        The outcome. When the call returns, the rows are committed.

    Raises:
        ConfigError: An option is invalid (see `foreach_batch_sink`), or a column is missing or has a wrong type.
        FencedError: Another call with this `txnAppId` took over. Either all rows of this call are visible or none.
        KafkaError: The rows could not be written. None of them is visible.
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
    """The function that `foreach_batch_sink` returns. Spark calls the sink with a data frame and a batch id.

    Attributes:
        last: Outcome of the latest micro-batch; None before the first one.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._lock = new_lock()
        self._sessions: dict[str, Session] = {}
        self._sizes: dict[str, Size] = {}  # application id → size of the latest micro-batch
        self.last: Outcome | None = None

    def __repr__(self) -> str:
        return f"<ForeachBatchSink topic={self._options.topic} servers={self._options.servers}>"

    def __getstate__(self) -> SinkOptions:
        return self._options  # connections cannot be pickled

    def __setstate__(self, options: SinkOptions) -> None:
        self.__init__(options)  # type: ignore[misc]

    def close(self) -> None:
        """Closes the driver's connections. The sink stays usable: its next call opens new connections."""
        with self._lock:
            for session in self._sessions.values():
                session.close()
            self._sessions.clear()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Writes a micro-batch, unless it is already committed.

        In each micro-batch, Spark expects the state of joins, aggregations and deduplications to be committed
        (SPARK-52008). Computing the data frame commits this state. So if the query has state, the sink computes the
        data frame even of a duplicate micro-batch, without writing it.

        Raises:
            ConfigError: A column is missing or has a wrong type, or the query's id is not available.
            CheckpointMismatchError: The marker in Kafka does not fit the checkpoint.
            KafkaError: The micro-batch could not be written. No row is visible. After a restart, Spark repeats the
                micro-batch.
        """
        warn_of_other_python(df.sparkSession)
        query_id = _property(df, _QUERY)
        app_id = stream_id(
            self._options, query_id, "here (Spark Connect, or a call from outside of foreachBatch)"
        )
        run = run_of_query(df.sparkSession, query_id) or _property(df, _RUN)
        with _turns.of(app_id, run, batch_id, self), self._lock:
            session = self._sessions.get(app_id)
            if session is None:
                session = self._sessions[app_id] = Session(self._options, app_id)
            previous = self._sizes.pop(app_id, None)
            job = _Job(self._options, df, batch_id, session, previous)
            done: Outcome | None = None
            try:
                plan = plan_of_query(df.sparkSession, query_id, batch_id)
                done = self.last = session.write(batch_id, query_id or "", job, plan=plan, count=df.count)
                if done.name == "duplicate" and commits_are_validated(df.sparkSession, query_id):
                    df.write.format("noop").mode("overwrite").save()
                if done.name == "written":
                    self._sizes[app_id] = later_size(
                        previous, done.rows, job.totals["bytes"], was_refused=job.had_large_row
                    )
            finally:
                stats.count(query_id or app_id, done, {**job.totals, "restarts": session.restarts})
        log.info(
            "Batch %d of %s: %s, %d rows in %.2f s",
            batch_id,
            app_id,
            self.last.name,
            self.last.rows,
            self.last.seconds,
        )


class _Turns:
    """Rejects a second write of the same micro-batch under the same id. Without the check, the sink would lose rows as
    follows:

    1. A function for foreachBatch splits batch 7 into two data frames. The function writes both data frames with one
       `txnAppId`, one after the other or in two threads.
    2. The first write commits, and its marker says that batch 7 is committed.
    3. The second write finds that marker. The sink mistakes the second write for a repetition, and skips its rows.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        # Application id → (run id, batch id) of the latest micro-batch that this process has written or is writing.
        self._latest: dict[str, tuple[str, int]] = {}

    @contextmanager
    def of(self, app_id: str, run: str | None, batch_id: int, sink: ForeachBatchSink) -> Iterator[None]:
        """Context for one write. If the write fails, the micro-batch may be written again.

        Raises:
            UsageError: The micro-batch is being written, or was written, in this run of the query.
        """
        mine = run or "", batch_id
        with self._lock:
            if self._latest.get(app_id) == mine:
                raise UsageError(
                    f"[KAFKASAFE.SAME_BATCH_TWICE] Batch {batch_id} was already written under txnAppId {app_id!r} in"
                    f" this run of the query, or is being written, but {sink!r} is called again: use a second sink,"
                    " with a txnAppId of its own, for a second data frame in the same foreachBatch."
                )
            self._latest[app_id] = mine
        is_kept = False
        try:
            yield
            # If the run id is not known, do not keep the entry: a later call may repeat the batch in another run.
            is_kept = bool(run)
        finally:
            with self._lock:
                if not is_kept and self._latest.get(app_id) == mine:
                    del self._latest[app_id]


_turns: Final = _Turns()


def _property(df: DataFrame, name: str) -> str | None:
    """Returns a local property of the thread that runs the query; None if it is not set, or with Spark Connect."""
    context = spark_context(df.sparkSession)
    return None if context is None else context.getLocalProperty(name)


class _Job:
    """Runs the tasks that write a data frame under a grant (the transaction's producer id and epoch).

    Args:
        options: Options of the sink.
        df: The data frame.
        batch_id: Chooses partitions for rows that are not bound to a partition.
        session: The driver's session.
        previous: Size of the previous micro-batch; None if it is unknown. If the previous micro-batch was small, this
            micro-batch probably has few rows, too. Then the tasks return their rows or batches to the driver, which
            sends them, so one stage of Spark is enough. No partition needs a claim, because no other process sends (see
            `appender`). If there are more rows than expected, the first job sends nothing, and a second job writes the
            rows.

    Attributes:
        totals: `bytes` and `retries` of all transactions of the micro-batch.
        had_large_row: Whether the driver gave up collecting the rows, because one of them is too large.
    """

    def __init__(
        self,
        options: SinkOptions,
        df: DataFrame,
        batch_id: int,
        session: Session,
        previous: Size | None = None,
    ) -> None:
        self._options = options
        self._batch_id = batch_id
        self._transaction = session.transaction
        self._previous = previous
        self._is_small = (
            previous is not None and previous.bytes < options.inline_bytes and options.exchange is not True
        )
        self._df, self._columns, self._bound = checked(df, options)
        self.totals: Counter[str] = Counter()
        self.had_large_row = False

    def __call__(self, grant: WriterIdentity) -> Sequence[Report]:
        if self._is_small:
            batches = self._returned()
            if batches is not None:
                return self._send(grant, batches)
            self._is_small = False
        job, exchange = self._plan(grant)
        with with_settings(job, exchange_settings(self._df) if exchange else {}) as job:
            try:
                rows = job.collect()
            except Exception as failed:
                raise _translated(failed) from failed
        for name in ("bytes", "retries"):
            self.totals[name] += sum(row[name] for row in rows)
        self._check_stages(rows)
        return reports_of(rows)

    def _returned(self) -> list[tuple[str, int, bytearray]] | None:
        """Lets the tasks return the rows. Returns (topic, partition, batch) tuples; None if there are too many rows.

        Spark may run a task or a stage several times: the attempts change nothing outside of Spark, and Spark returns
        the result of only one attempt of each task.
        """
        options, previous = self._options, self._previous
        # The driver does not collect headers, because an SQL expression for their size would be slow.
        bound = (
            None
            if previous is None or "headers" in self._columns
            else bound_of(previous, options.inline_bytes)
        )
        if bound is None or java_frame(self._df) is None:
            return self._encoded_by_tasks()
        try:
            parts = collect_rows(self._df, self._columns, bound)
        except RowTooLargeError:
            self.had_large_row = True
            return None
        except Exception as failed:
            raise _translated(failed) from failed
        return None if parts is None else self._encoded(parts)

    def _encoder(self, counts: Mapping[str, int]) -> EncodeRows:
        return EncodeRows(options=self._options, counts=counts, slots=1, turn=self._batch_id)

    def _encoded_by_tasks(self) -> list[tuple[str, int, bytearray]] | None:
        topic = self._options.topic
        encode = self._encoder({} if topic is None else {topic: self._transaction.partitions})
        job = map_in_arrow(self._df, EncodeInline(encode), ENCODED_SCHEMA, columns=self._columns)
        try:
            return inline_of(job.collect())
        except Exception as failed:
            raise _translated(failed) from failed

    def _encoded(self, parts: Sequence[Any]) -> list[tuple[str, int, bytearray]]:
        """Encodes Arrow batches on the driver."""
        topic = self._options.topic
        if topic is None:
            named = {name for part in parts for name in part.column("topic").unique().to_pylist()}
            counts = {name: self._transaction.partition_count(name) for name in named if name is not None}
        else:
            counts = {topic: self._transaction.partitions}
        return [(*packed.place, packed.data) for packed in self._encoder(counts).packed(iter(parts), task=0)]

    def _send(self, grant: WriterIdentity, batches: Sequence[tuple[str, int, bytearray]]) -> Sequence[Report]:
        places = {(topic, partition) for topic, partition, _ in batches}
        return self._transaction.append(grant, places, batches, self.totals)

    def _plan(self, grant: WriterIdentity) -> tuple[DataFrame, bool]:
        options, df = self._options, self._df
        topic = options.topic
        count = self._transaction.partitions  # partitions in the transaction; the topic may have more by now
        context = spark_context(df.sparkSession)
        cores = None if context is None else int(context.defaultParallelism)  # tasks that can run at once
        parallelism = cores or 2
        # Without an exchange, the stage that computes the rows runs at most one task for each Kafka partition. So if
        # there are fewer partitions than cores, use an exchange: otherwise some cores would be idle.
        exchange = (
            self._bound
            or options.exchange is True
            or (options.exchange is None and (count < parallelism or speculates(df)))
        )
        if not exchange and topic is not None:
            write = DirectWrite(
                options=options, grant=grant, add=False, topic=topic, partitions=count, turn=self._batch_id
            )
            return map_in_arrow(df.coalesce(count), write, REPORT_SCHEMA, columns=self._columns), False
        # With more sending tasks than cores, some tasks would run only after the others. The last few tasks would not
        # keep the brokers busy.
        slots = min(count, cores or _MAX_SLOTS) if topic is not None else max(2, parallelism)
        counts = {} if topic is None else {topic: count}
        if not limits_arrow_bytes(df):
            options = replace(options, batch_bytes=min(options.batch_bytes, _SMALL_BATCH))
        encode = EncodeRows(options=options, counts=counts, slots=slots, turn=self._batch_id)
        send = SendEncoded(
            options=options, grant=grant, add=topic is None, alone=topic is not None and slots == count
        )
        encoded = map_in_arrow(df, encode, ENCODED_SCHEMA, columns=self._columns)
        if hasattr(encoded, "repartitionById"):
            moved = encoded.repartitionById(slots, "slot")
        else:
            # `repartition` hashes the column `slot`, so one task may get the batches of several slots and partitions.
            moved, send = encoded.repartition(slots, "slot"), replace(send, alone=False)
        return map_in_arrow(moved, send, REPORT_SCHEMA, columns=ENCODED_SCHEMA.names), True

    def _check_stages(self, rows: Sequence[Any]) -> None:
        """Restarts the transaction if a stage ran more than once.

        Tasks of the stage's earlier attempts may still be running. Nothing stops them from writing to a partition for
        which the latest attempt has no rows, because this attempt does not claim the partition.

        Raises:
            RestartError: A stage ran more than once.
        """
        context = spark_context(self._df.sparkSession)
        if context is None:
            return
        tracker = context.statusTracker()
        deadline = time.monotonic() + _TRACKER_S
        for stage in {row["stage"] for row in rows}:
            info = tracker.getStageInfo(stage)
            # The status tracker receives events after a short delay, and it forgets old stages.
            while info is not None and info.numActiveTasks and time.monotonic() < deadline:
                time.sleep(_TRACKER_POLL_S)
                info = tracker.getStageInfo(stage)
            if info is not None and info.currentAttemptId > 0:
                raise RestartError(f"Stage {stage} was run {info.currentAttemptId + 1} times")


def _translated(failed: Exception) -> Exception:
    """Turns the failure of a Spark job into RestartError, FencedError or ConfigError if its text names the cause."""
    said = str(failed)
    if RESTART_TAG in said:
        return RestartError(_line(said, RESTART_TAG))
    if FENCED_TAG in said:
        return FencedError(_line(said, FENCED_TAG))
    if (reason := dead_worker(said)) is not None:
        return RestartError(f"A Spark worker died: {reason[:300]}")
    found = re.search(r"ConfigError: (\[KAFKASAFE\.[^\n]*)", said)
    return ConfigError(found.group(1)) if found else failed


def _line(said: str, tag: str) -> str:
    return said[said.index(tag) :].splitlines()[0][:500]
