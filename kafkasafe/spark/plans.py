"""Identifies the input of a micro-batch by the micro-batch's entry in Spark's offset log.

Spark writes the entry of a batch before it runs the batch, and repeats the batch from that entry. So a repeated batch
has the same entry. If the checkpoint has lost the entry, Spark plans the batch again and writes a different entry.

A sink in the driver gets the entry from the running query. A writer commits in a process without a JVM. This process
reads the entry from the checkpoint, if the checkpoint is a directory on the same machine.
"""

from __future__ import annotations

import functools
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkasafe.spark.java import java_session, jvm_of
from kafkasafe.spark.txn import plan_digest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VALIDATION: Final = "spark.sql.streaming.stateStore.commitValidation.enabled"

log = logging.getLogger("kafkasafe.spark")


def _running_query(session: SparkSession, query_id: str | None) -> Any:
    """Returns Spark's Java object for a query that runs in this process's JVM; None if it is not available."""
    jsession = java_session(session)
    if jsession is None or not query_id:
        return None
    # A micro-batch runs in a cloned session, which does not list the running queries. The shared state lists them.
    queries = jsession.sharedState().activeStreamingQueries()
    return queries.get(_names(jvm_of(session)).uuid(query_id))


class _Names(NamedTuple):
    """The Java functions that this module calls. Finding a function by its name takes several calls into the JVM."""

    uuid: Any
    bytes: Any


@functools.lru_cache(maxsize=1)
def _names(jvm: Any) -> _Names:
    return _Names(jvm.java.util.UUID.fromString, jvm.java.io.ByteArrayOutputStream)


def plan_of_query(session: SparkSession, query_id: str | None, batch_id: int) -> str:
    """Returns the `plan_digest` of a micro-batch whose query runs in this process's JVM; "" if not available.

    Args:
        session: The data frame's session. With Spark Connect, the digest is not available.
        query_id: The query's id; None or empty if it is unknown.
        batch_id: The id of the running micro-batch.
    """
    try:
        query = _running_query(session, query_id)
        if query is None:
            return ""
        entries = query.offsetLog()
        found = entries.get(batch_id)
        if not found.isDefined():
            return ""
        buffer = _names(jvm_of(session)).bytes()
        entries.serialize(found.get(), buffer)
        return plan_digest(str(buffer.toString("UTF-8")))
    except Exception as failed:  # another version of Spark may have other internals
        log.debug("The plan of batch %d of %s is not available: %r", batch_id, query_id, failed)
        return ""


def run_of_query(session: SparkSession, query_id: str | None) -> str:
    """Returns the id of the current run of a query in this process's JVM; "" if not available.

    Spark sets the job group to the id of the run, but a function for `foreachBatch` may set another job group.
    """
    try:
        query = _running_query(session, query_id)
        return "" if query is None else str(query.runId().toString())
    except Exception as failed:  # another version of Spark may have other internals
        log.debug("The run of query %s is not available: %r", query_id, failed)
        return ""


def commits_are_validated(session: SparkSession, query_id: str | None) -> bool:
    """Returns whether Spark ends the query with an error if `foreachBatch` has not committed the state of this
    micro-batch.

    When Spark computes the data frame, it also commits the state of a streaming join, aggregation or deduplication.
    Since SPARK-52008 Spark also checks, after `foreachBatch`, that each state store has committed.

    The query's plan shows whether the query has state. If Spark checks the commits, but the plan is not available, the
    function returns True.
    """
    try:
        if session.conf.get(_VALIDATION) != "true":
            return False
    except Exception:  # this version of Spark has no such check
        return False
    try:
        query = _running_query(session, query_id)
        # The plan's text shows the state info of each operator that keeps state.
        return query is None or "state info [" in query.lastExecution().executedPlan().toString()
    except Exception as failed:  # Spark's internals may differ
        log.debug("The plan of query %s is not available: %r", query_id, failed)
        return True


def plan_in_checkpoint(location: str | None, batch_id: int) -> str:
    """Reads the `plan_digest` of a micro-batch from the checkpoint.

    Returns an empty string if the checkpoint is not a directory on this machine.

    Args:
        location: The option `checkpointLocation`; None if it was not given.
        batch_id: The id of the running micro-batch.
    """
    if not location:
        return ""
    local = re.fullmatch(r"(?:file:(?://)?)?(/.*|[^:]*)", location)
    if local is None:
        return ""
    try:
        return plan_digest((Path(local[1]) / "offsets" / str(batch_id)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
