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

__all__ = ["batches", "count", "restarts", "retries", "rows", "sent_bytes"]

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


def count(query_id: str, outcome: Outcome | None, totals: Mapping[str, int]) -> None:
    """A micro-batch ended.

    Args:
        query_id: Of the streaming query.
        outcome: What became of it, None: it failed.
        totals: `restarts`, `retries`, `bytes`; of those that are missing there were none.
    """
    with _lock:
        batches[query_id, "failed" if outcome is None else outcome.name] += 1
        if outcome is not None:
            rows[query_id] += outcome.rows
        restarts[query_id] += totals.get("restarts", 0)
        retries[query_id] += totals.get("retries", 0)
        sent_bytes[query_id] += totals.get("bytes", 0)
