"""What identifies the input of a micro-batch: the entries of Spark's offset log, wherever they can be seen from.

Spark writes the entry of a batch before it runs it, and repeats the batch from there: one that comes again has the same
entry; one that was planned again, after the checkpoint had lost its entry, has another. A sink in the driver asks the
query; the process of a writer's commit sees no JVM, and reads the checkpoint where it is a directory of this machine.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkasafe._core.txn import plan_digest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["plan_in_checkpoint", "plan_of_query"]

log = logging.getLogger("kafkasafe.spark")


def plan_of_query(session: SparkSession, query_id: str | None, batch_id: int) -> str:
    """`plan_digest` of a micro-batch of a query that runs in this process' JVM; empty: it cannot be seen.

    Args:
        session: Of the data frame (classic; of Spark Connect nothing can be seen).
        query_id: Of the query; None or empty: not known.
        batch_id: Of the micro-batch that runs.
    """
    jsession: Any = getattr(session, "_jsparkSession", None)
    if jsession is None or not query_id:
        return ""
    try:
        jvm: Any = session.sparkContext._jvm
        # The session of a micro-batch is a clone, which knows no queries; what it shares with its origin does.
        queries = jsession.sharedState().activeStreamingQueries()
        query = queries.get(jvm.java.util.UUID.fromString(query_id))
        if query is None:
            return ""
        entries = query.offsetLog()

        found = entries.get(batch_id)
        if not found.isDefined():
            return ""
        buffer = jvm.java.io.ByteArrayOutputStream()
        entries.serialize(found.get(), buffer)
        return plan_digest(str(buffer.toString("UTF-8")))
    except Exception as failed:  # another Spark's insides: the number of rows is what is left
        log.debug("The plan of batch %d of %s cannot be seen: %r", batch_id, query_id, failed)
        return ""


def plan_in_checkpoint(location: str | None, batch_id: int) -> str:
    """The same from a checkpoint's directory; empty where it is none of this machine.

    Args:
        location: The option `checkpointLocation`; None: it was not given.
        batch_id: Of the micro-batch that runs.
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
