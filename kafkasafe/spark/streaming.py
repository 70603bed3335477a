"""The stream reader for PySpark 4.2 and later, which pass the start and maximum size of a micro-batch."""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kafkasafe.spark.positions import Positions
from kafkasafe.spark.source import StreamReader

__all__ = ["LimitedStreamReader"]


class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    """Stream reader with `maxOffsetsPerTrigger`, `minOffsetsPerTrigger` and Trigger.AvailableNow."""

    _first: Positions | None = None  # where a new query begins; None: not looked up yet
    _until_now = False
    _planned_at = float("-inf")  # `time.monotonic()` of the latest micro-batch; the first batch does not wait

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Returns the limit that Spark passes to `latestOffset`.

        If both options are set, returns the minimum; `latestOffset` itself applies the maximum.
        """
        options = self._options
        if options.min_offsets:
            return ReadMinRows(options.min_offsets)
        return ReadMaxRows(options.max_offsets) if options.max_offsets else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Plans where the micro-batch that begins at `start` ends. Returns `start` itself if nothing is new."""
        most = least = 0
        match limit:
            case ReadMaxRows(max_rows=most):
                pass
            case ReadMinRows(min_rows=least):
                most = self._options.max_offsets
                waited_s = time.monotonic() - self._planned_at
                if self._until_now or waited_s >= self._options.max_trigger_delay_s:
                    least = 0
            case _:
                pass
        begin = self._recent.decode(start)
        if begin.initial:
            if self._first is None:
                self._first = self._planner.first()
            begin = self._first
        end = self._planner.latest(begin, most, least)
        if end == begin:
            return start  # unchanged: with another JSON text Spark would run an empty batch
        self._planned_at = time.monotonic()
        return self._recent.encode(end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limits this run to the records that exist now. The next run reads later records."""
        self._until_now = True
        self._planner.stop_at_latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Returns the ends of the logs that the latest plan found. Spark adds them to the query's progress."""
        seen = self._planner.seen
        return None if seen is None else seen.encode()
