"""What a failed Spark job says: whether a worker died, which is nobody's fault, or the query's own code failed."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["dead_worker"]

# What Spark gives as the reason for a failed task or stage follows these words. Anywhere else the same phrases may be
# part of a message of the query's own code, which no repetition mends.
_REASON: Final = re.compile(
    r"(?:most recent failure: Lost task [^\n]*?\(TID \d+\)(?: \([^)\n]*\))?|Most recent failure reason): *\n?"
)
# Of Spark itself, wherever it is thrown.
_DIED: Final = re.compile(
    r"ExecutorLostFailure|FetchFailed\b|Worker died|Executor heartbeat timed out|Remote RPC client disassociated"
    r"|org\.apache\.spark\.shuffle\.(?:Metadata)?FetchFailedException"
    r"|org\.apache\.spark\.SparkException: Python worker exited unexpectedly"
)
# Of Java: a worker's, or of whatever else the query talks to. What threw it tells.
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
    """The reason, if a Python worker, an executor or a machine died, or a stage was given up for that; else None.

    Args:
        said: The text of what a Spark job raised.
    """
    found = _REASON.search(said)
    if found is None or "Traceback (most recent call last)" in said:
        return None  # not of a task at all, or out of Python
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
