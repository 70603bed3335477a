"""The counters of sinks, writers and sources that `MetricsListener` reports. Spark's own progress reports lack these
numbers: Spark reports -1 rows for a foreachBatch sink and does not know which micro-batches were skipped as duplicates.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafkasafe.process.locks import new_lock

if TYPE_CHECKING:
    from kafkasafe.spark.session import Outcome

_lock = new_lock()
batches: collections.Counter[tuple[str, str]] = collections.Counter()
"""(query id, outcome) → number of micro-batches. Outcomes: written, resumed, duplicate, failed."""
rows: collections.Counter[str] = collections.Counter()
"""Query id → number of committed rows."""
restarts: collections.Counter[str] = collections.Counter()
"""Query id → number of transaction restarts."""
retries: collections.Counter[str] = collections.Counter()
"""Query id → number of retries of requests with records."""
sent_bytes: collections.Counter[str] = collections.Counter()
"""Query id → bytes of sent batches, including those of aborted transactions."""
source_events: collections.Counter[tuple[str, str, str]] = collections.Counter()
"""(topic, event, reason) → number of events of the source. Events: held, regressed, lost."""
source_lost_records: collections.Counter[tuple[str, str]] = collections.Counter()
"""(topic, reason) → number of lost offsets that queries skipped."""


def count(query_id: str, outcome: Outcome | None, totals: Mapping[str, int]) -> None:
    """Counts a micro-batch that has ended.

    Args:
        query_id: The streaming query's id.
        outcome: The micro-batch's outcome; None: it failed.
        totals: `restarts`, `retries` and `bytes`; a missing total counts as 0.
    """
    with _lock:
        batches[query_id, "failed" if outcome is None else outcome.name] += 1
        if outcome is not None:
            rows[query_id] += outcome.rows
        restarts[query_id] += totals.get("restarts", 0)
        retries[query_id] += totals.get("retries", 0)
        sent_bytes[query_id] += totals.get("bytes", 0)


def count_source_event(topic: str, event: str, reason: str, records: int) -> None:
    """Counts an event of the source.

    Args:
        topic: The topic's name.
        event: `held`, `regressed` or `lost`.
        reason: The event's reason.
        records: Number of lost offsets; 0 if none were lost or the number is unknown.
    """
    with _lock:
        source_events[topic, event, reason] += 1
        if event == "lost":
            source_lost_records[topic, reason] += records
