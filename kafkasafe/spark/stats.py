"""What sinks and writers did, for `kafkasafe.spark.MetricsListener`: Spark's own progress does not tell.

Spark reports -1 rows for a foreachBatch sink, and knows nothing of duplicates that were skipped.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkasafe.spark.session import Outcome

__all__ = ["batches", "done", "failed", "restarts", "retries", "rows", "sent_bytes"]

_lock = threading.Lock()
batches: collections.Counter[tuple[str, str]] = collections.Counter()
"""(query id, outcome) → micro-batches. Outcomes: written, resumed, duplicate, failed."""
rows: collections.Counter[str] = collections.Counter()
"""Query id → rows committed."""
restarts: collections.Counter[str] = collections.Counter()
"""Query id → transactions begun again."""
retries: collections.Counter[str] = collections.Counter()
"""Query id → requests with records that were sent again."""
sent_bytes: collections.Counter[str] = collections.Counter()
"""Query id → bytes of batches that were sent, those of transactions that came to nothing too."""


def done(query_id: str, outcome: Outcome, totals: Mapping[str, int]) -> None:
    """A micro-batch ended.

    Args:
        query_id: Of the streaming query.
        outcome: What became of it.
        totals: `restarts`, `retries`, `bytes`; of those that are missing there were none.
    """
    with _lock:
        batches[query_id, outcome.name] += 1
        rows[query_id] += outcome.rows
        _add(query_id, totals)


def failed(query_id: str, totals: Mapping[str, int]) -> None:
    """A micro-batch ended by an error. Arguments as of `done`."""
    with _lock:
        batches[query_id, "failed"] += 1
        _add(query_id, totals)


def _add(query_id: str, totals: Mapping[str, int]) -> None:
    restarts[query_id] += totals.get("restarts", 0)
    retries[query_id] += totals.get("retries", 0)
    sent_bytes[query_id] += totals.get("bytes", 0)
