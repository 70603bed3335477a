"""What sinks and writers did and sources noticed, for `MetricsListener`: Spark's progress has none of it.

Spark reports -1 rows for a foreachBatch sink, and knows nothing of duplicates that were skipped.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkasafe.spark.session import Outcome

__all__ = [
    "batches",
    "count",
    "count_source_event",
    "restarts",
    "retries",
    "rows",
    "sent_bytes",
    "source_events",
    "source_lost_records",
]

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
source_events: collections.Counter[tuple[str, str, str]] = collections.Counter()
"""(topic, event, reason) → what the source noticed. Events: held, lowered, lost."""
source_lost_records: collections.Counter[tuple[str, str]] = collections.Counter()
"""(topic, reason) → offsets that a query went on without."""


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


def count_source_event(topic: str, event: str, reason: str, records: int) -> None:
    """The source noticed something.

    Args:
        topic: Where.
        event: `held`, `lowered` or `lost`.
        reason: Why.
        records: Offsets that a query went on without, as far as that is known.
    """
    with _lock:
        source_events[topic, event, reason] += 1
        if event == "lost":
            source_lost_records[topic, reason] += records
