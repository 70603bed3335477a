"""The stream reader for PySpark 4.2 and later, which pass the start and maximum size of a micro-batch.

For small micro-batches, this reader also hands over the records themselves. Spark normally runs a task for each range
of the plan, in a Python worker. For a small micro-batch, starting the tasks takes longer than reading the records. But
Spark has a second way, for its `SimpleDataSourceStreamReader`: with the plan, the process on the driver sends the
records to the JVM, where a task needs no Python worker. The reader uses this way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kafkasafe.spark.planner import Range
from kafkasafe.spark.positions import Positions
from kafkasafe.spark.reading import read_at_once
from kafkasafe.spark.source_readers import StreamReader

try:
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as _HandsOver
except ImportError:  # a later PySpark
    _HandsOver = None  # type: ignore[assignment,misc]

# The largest micro-batch whose records the reader hands over with the plan. Spark keeps such records as single rows,
# serialized one by one, so with 5000 records tasks are faster.
_FEW_RANGES: Final = 16
_FEW_OFFSETS: Final = 2000
_AT_ONCE_S: Final = 1.0
# If more than `_SHORT_S` seconds pass until the next plan, or the records cannot be handed over, the next `_PAUSE`
# micro-batches use tasks.
_SHORT_S: Final = 2.0
_PAUSE: Final = 100  # micro-batches


class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    """Stream reader with `maxOffsetsPerTrigger`, `minOffsetsPerTrigger` and Trigger.AvailableNow."""

    _first: Positions | None = None  # where a new query begins; None: not looked up yet
    _until_now = False
    _planned_at = float("-inf")  # `time.monotonic()` of the latest micro-batch; the first batch does not wait
    _handed_at: float | None = None  # when records were handed over for the running micro-batch
    _pause = 0  # number of following micro-batches that use tasks in any case
    _records: list[Any] = []  # noqa: RUF012 - replaced, never changed

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Returns the limit that Spark passes to `latestOffset`.

        If both `minOffsetsPerTrigger` and `maxOffsetsPerTrigger` are set, returns the minimum; `latestOffset` itself
        applies the maximum.
        """
        options = self._options
        if options.min_offsets:
            return ReadMinRows(options.min_offsets)
        return ReadMaxRows(options.max_offsets) if options.max_offsets else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Plans where the micro-batch that begins at `start` ends. Returns `start` itself if nothing is new."""
        self._after_hand_over()
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

    def _inputs(self, ranges: list[Range]) -> list[InputPartition]:
        """Divides a micro-batch into tasks. If it is small, reads its records here and hands them over as one task."""
        records = self._read(ranges)
        if records is None:
            return super()._inputs(ranges)
        self._records, self._handed_at = records, time.monotonic()
        self.__class__ = _Handing
        # Spark reads these ranges in a task if it loses the records.
        return [InputPartition(tuple(ranges))]

    def _after_hand_over(self) -> None:
        """Decides, after a micro-batch whose records were handed over, whether the next ones use tasks."""
        # False only if a later PySpark does not call `getCache`.
        was_taken = type(self) is LimitedStreamReader
        if (self._handed_at is not None and time.monotonic() - self._handed_at > _SHORT_S) or not was_taken:
            self._pause = _PAUSE
        if not was_taken:
            self.__class__ = LimitedStreamReader
            self._records = []
        self._handed_at = None

    def _read(self, ranges: list[Range]) -> list[Any] | None:
        options = self._options
        if (
            _HandsOver is None
            or not 0 < len(ranges) <= _FEW_RANGES
            or not options.inline_bytes
            or sum(piece.end - piece.begin for piece in ranges) > _FEW_OFFSETS
            or options.min_partitions
            or options.max_records
        ):
            return None
        if self._pause:
            self._pause -= 1
            return None
        records = read_at_once(
            self._planner.network(),
            options,
            ranges,
            self._schema,
            max_bytes=options.inline_bytes,
            timeout_s=_AT_ONCE_S,
        )
        if records is None:
            self._pause = _PAUSE
        return records


if _HandsOver is not None:

    class _Handing(LimitedStreamReader, _HandsOver):
        """A reader that has just planned a micro-batch whose records it hands over.

        After `partitions`, Spark asks a reader for records only if it is an instance of `_HandsOver`, a private class
        of PySpark.
        """

        def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:  # noqa: N802, ARG002 - Spark's
            records, self._records = self._records, []
            self.__class__ = LimitedStreamReader  # type: ignore[assignment]
            return iter(records)
