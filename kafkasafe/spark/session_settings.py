"""Reads the settings of a Spark session that matter to the sink, and runs a job with settings of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kafkasafe.process.locks import new_lock
from kafkasafe.spark.java import java_frame, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.conf import RuntimeConfig

_MAX_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_MAX_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"
_SPECULATION: Final = "spark.speculation"
# With 16 MiB instead of 4 MiB, the sending tasks took 1.5 times as much CPU time in the JVM. Spark seems to copy an
# Arrow batch whenever the batch outgrows its allocated memory.
_EXCHANGE_BYTES: Final = 4 * 1024 * 1024
_FEW_RECORDS: Final = 1000


def limits_arrow_bytes(df: DataFrame) -> bool:
    """Returns whether Spark limits the bytes of an Arrow batch, and not only its rows."""
    try:
        # Do not pass a default: `get` would return the default even if Spark does not know the setting.
        return df.sparkSession.conf.get(_MAX_BYTES) is not None
    except Exception:  # an older Spark does not know the setting
        return False


def speculates(df: DataFrame) -> bool:
    """Returns whether Spark may run two attempts of a task at once. Two attempts at once are not safe without an
    exchange (a shuffle):

    1. Attempt 0 of a task computes no rows, claims no partition, and ends.
    2. Attempt 1 has computed other rows, because the data frame is not deterministic. Spark ends the attempt, but its
       Python worker has not noticed that yet.
    3. The driver compares the logs with the reports. Between the comparison and the commit, the worker of attempt 1
       sends its rows.

    After an exchange, all attempts of a task get the same rows.
    """
    return str(df.sparkSession.conf.get(_SPECULATION, "false")).lower() == "true"


def exchange_settings(df: DataFrame) -> dict[str, str]:
    """Returns the settings for a job that moves encoded batches between tasks.

    Each encoded batch is one large row. If an Arrow batch had Spark's default number of rows, it would take gigabytes.
    """
    settings = (
        {_MAX_BYTES: str(_EXCHANGE_BYTES)} if limits_arrow_bytes(df) else {_MAX_RECORDS: str(_FEW_RECORDS)}
    )
    if not _is_adaptive(df):
        # The sink's exchange has a fixed number of partitions, so adaptive planning would cost 0.1 s without benefit.
        settings[_ADAPTIVE] = "false"
    return settings


def _is_adaptive(df: DataFrame) -> bool:
    """Returns whether adaptive execution may change the query's own plan. A plan without an exchange is never
    changed.
    """
    jdf = java_frame(df)
    if jdf is None:
        return True
    if df.sparkSession.conf.get(_ADAPTIVE) == "false":
        return False  # no need to compute the plan, which takes time
    return str(jdf.queryExecution().executedPlan().nodeName()).startswith("AdaptiveSparkPlan")


@contextmanager
def with_settings(df: DataFrame, settings: dict[str, str]) -> Iterator[DataFrame]:
    """Yields the data frame, set up to run with the given settings.

    Other queries of the session keep their own settings, except with Spark Connect.
    """
    jdf = java_frame(df)
    if not settings:
        yield df
    elif jdf is None:
        with _shared_settings(df, settings):
            yield df
    else:
        from pyspark.sql import SparkSession
        from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

        # Settings belong to a session, and other queries use the session at the same time. So the job uses a copy of
        # the session. Copying takes milliseconds.
        session = df.sparkSession
        copy = jdf.sparkSession().cloneSession()
        for name, value in settings.items():
            copy.conf().set(name, value)
        plan = jvm_of(session).org.apache.spark.sql.classic.Dataset.ofRows(copy, jdf.logicalPlan())
        yield ClassicDataFrame(plan, SparkSession(session.sparkContext, copy))


# (session, setting) → (number of current users, original value). Only for Spark Connect, which cannot copy a session.
_shared: dict[tuple[str, str], tuple[int, str | None]] = {}
_shared_lock: Final = new_lock()


@contextmanager
def _shared_settings(df: DataFrame, settings: dict[str, str]) -> Iterator[None]:
    """Changes settings of the session itself. If several threads use the context at once, the last thread restores the
    original values.
    """
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
                _restore(conf, mine, name)


def _restore(conf: RuntimeConfig, session: str, name: str) -> None:
    count, before = _shared.pop((session, name))
    if count > 1:
        _shared[session, name] = count - 1, before
    elif before is None:
        conf.unset(name)
    else:
        conf.set(name, before)
