"""The stream reader for PySpark 4.2 and later, which say where a micro-batch begins and how large it may be."""

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
    """With `maxOffsetsPerTrigger`, `minOffsetsPerTrigger` and Trigger.AvailableNow."""

    _first: Positions | None = None  # where a new query begins
    _until_now = False
    _planned_at = float("-inf")  # `time.monotonic` of the latest micro-batch; the first one waits for nothing

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`minOffsetsPerTrigger` or `maxOffsetsPerTrigger`. Spark has no limit for both: the reader knows its own."""
        options = self._options
        if options.min_offsets:
            return ReadMinRows(options.min_offsets)
        return ReadMaxRows(options.max_offsets) if options.max_offsets else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Where the micro-batch that begins at `start` ends; `start` itself when there is nothing new."""
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
        begin = Positions.decode(start)
        if begin.initial:
            if self._first is None:
                self._first = self._planner.first()
            begin = self._first
        end = self._planner.latest(begin, most, least)
        if end == begin:
            return start  # as it was written: another text would be an empty batch
        self._planned_at = time.monotonic()
        return end.encode()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What comes from now on is left to the next run."""
        self._until_now = True
        self._planner.stop_at_latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The ends that the last plan saw, for the query's progress."""
        seen = self._planner.seen
        return None if seen is None else seen.encode()
