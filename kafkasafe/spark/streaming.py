"""The stream reader for PySpark 4.2 and later, which say where a micro-batch begins and how large it may be."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from kafkasafe.spark.positions import Positions
from kafkasafe.spark.source import StreamReader

__all__ = ["LimitedStreamReader"]


class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    """With `maxOffsetsPerTrigger` and Trigger.AvailableNow."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`maxOffsetsPerTrigger`."""
        limit = self._options.max_offsets
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Where the micro-batch that begins at `start` ends; `start` itself when there is nothing new."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        return self._planner.latest(Positions.decode(start), rows).encode()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What comes from now on is left to the next run."""
        self._planner.stop_at_latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The ends that the last plan saw, for the query's progress."""
        seen = self._planner.seen
        return None if seen is None else seen.encode()
