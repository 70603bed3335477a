"""Reads the error text of a failed Spark job, and decides whether a worker died or the query's own code failed."""

from __future__ import annotations

import re
from typing import Final

# The words after which Spark puts the reason for a failed task or stage. Elsewhere in the text, the phrases below may
# come from an error in the query's own code. Repeating the batch does not fix such an error.
_REASON: Final = re.compile(
    r"(?:most recent failure: Lost task [^\n]*?\(TID \d+\)(?: \([^)\n]*\))?|Most recent failure reason): *\n?"
)
# Errors that Spark itself raises when a worker dies, so `dead_worker` need not check the stack trace.
_DIED: Final = re.compile(
    r"ExecutorLostFailure|FetchFailed\b|Worker died|Executor heartbeat timed out|Remote RPC client disassociated"
    r"|org\.apache\.spark\.shuffle\.(?:Metadata)?FetchFailedException"
    r"|org\.apache\.spark\.SparkException: Python worker exited unexpectedly"
)
# If an executor dies, the shuffle output of its tasks is lost, and Spark runs these tasks again. If the new shuffle
# output differs, and tasks of the next stage have already finished, Spark fails the job. Since version 4.2, Spark
# compares checksums of the output.
_CHANGED: Final = re.compile(
    r"Job aborted due to stage failure: (A shuffle map stage with indeterminate output was failed and retried[^\n]*)"
)
# Java errors that report a broken connection, either to a worker or to another system that the query uses. The stack
# trace shows which connection broke.
_CUT: Final = re.compile(r"java\.(?:io\.EOFException|(?:io|net)\.\w+: (?:Connection reset|Broken pipe))")
_FRAME: Final = re.compile(r"^\s*at (?:[\w.]+/)?([\w.$]+)\(", re.MULTILINE)
_SPARKS: Final = (
    "org.apache.spark.api.python.",
    "org.apache.spark.sql.execution.python.",
    "org.apache.spark.network.",
    "org.apache.spark.shuffle.",
    "org.apache.spark.storage.",
)


def dead_worker(said: str) -> str | None:
    """Returns the reason if a Python worker, an executor or a machine died; None after any other failure.

    Also returns the reason if Spark gave up a whole stage or job because a worker died.

    Args:
        said: The text of the exception that a Spark job raised.
    """
    changed = _CHANGED.search(said)
    if changed is not None:
        return changed[1]
    found = _REASON.search(said)
    if found is None or "Traceback (most recent call last)" in said:
        return None  # either no task failed, or Python code raised the error
    reason = said[found.end() :]
    head = reason.split("\n", 1)[0].strip()
    if _DIED.match(reason):
        return head
    if _CUT.match(reason):
        thrown = next(
            (name for name in _FRAME.findall(reason) if not name.startswith(("java.", "sun.", "jdk."))), ""
        )
        if thrown.startswith(_SPARKS):
            return head
    return None
