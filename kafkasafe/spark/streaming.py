"""The stream reader for PySpark 4.2 and later. PySpark 4.2 tells the reader where a micro-batch begins, and its maximum
size.

For small micro-batches, this reader returns not only the plan, but also the records. Spark normally runs a task for
each range of the plan, in a Python worker. For a small micro-batch, starting the tasks takes longer than reading the
records. So this reader does the same as Spark's `SimpleDataSourceStreamReader`: the process on the driver sends the
records to the JVM together with the plan, and the task needs no Python worker.
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

# The largest micro-batch whose records the reader hands over with the plan. Spark serializes handed-over records one by
# one, so for 5000 records a plan with tasks is faster.
_FEW_RANGES: Final = 16
_FEW_OFFSETS: Final = 2000
_AT_ONCE_S: Final = 1.0
# If a hand-over of records fails, or more than `_SHORT_S` seconds pass until the next plan, tasks read the records of
# the next `_PAUSE` micro-batches.
_SHORT_S: Final = 2.0
_PAUSE: Final = 100  # micro-batches


class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    """Stream reader with `maxOffsetsPerTrigger`, `minOffsetsPerTrigger` and Trigger.AvailableNow."""

    _first: Positions | None = None  # where a new query begins; None: not looked up yet
    _until_now = False
    _planned_at = float("-inf")  # `time.monotonic()` of the latest micro-batch; the first batch does not wait
    _handed_at: float | None = None  # when the records of the running micro-batch were handed over
    _pause = 0  # number of further micro-batches whose records are read by tasks, not by this reader
    _records: list[Any] = []  # noqa: RUF012 - replaced, never changed

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Returns the limit that Spark passes to `latestOffset`.

        If both `minOffsetsPerTrigger` and `maxOffsetsPerTrigger` are set, the returned limit contains only
        `minOffsetsPerTrigger`. `latestOffset` itself then applies `maxOffsetsPerTrigger`.
        """
        options = self._options
        if options.min_offsets:
            return ReadMinRows(options.min_offsets)
        return ReadMaxRows(options.max_offsets) if options.max_offsets else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Plans the end of the micro-batch that begins at `start`. Returns `start` itself if nothing is new."""
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
            return start  # exactly the same JSON text: if the text differed, Spark would run an empty batch
        self._planned_at = time.monotonic()
        return self._recent.encode(end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limits this run to the records that exist now. Later records are left to the next run."""
        self._until_now = True
        self._planner.stop_at_latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Returns the log end offsets that the latest plan found, which Spark adds to the query's progress."""
        seen = self._planner.seen
        return None if seen is None else seen.encode()

    def _inputs(self, ranges: list[Range]) -> list[InputPartition]:
        """Divides a micro-batch into tasks. If the micro-batch is small, this method itself reads the records for
        Spark, and returns a single task.
        """
        records = self._read(ranges)
        if records is None:
            return super()._inputs(ranges)
        self._records, self._handed_at = records, time.monotonic()
        self.__class__ = _Handing
        # If Spark loses the records, a task reads these ranges.
        return [InputPartition(tuple(ranges))]

    def _hand_over(self) -> list[Any]:
        """Returns the records that this reader holds for Spark, and forgets them."""
        records, self._records = self._records, []
        self.__class__ = LimitedStreamReader
        return records

    def _after_hand_over(self) -> None:
        """Checks whether Spark quickly took the records of the last micro-batch from this reader. If Spark did not,
        tasks read the records of the next micro-batches.
        """
        # Whether Spark took the records from this reader. False only if a future PySpark does not call `getCache`.
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
        """A reader's class is `_Handing` while the reader holds the records of a micro-batch for Spark.

        Spark first calls `partitions`. Then Spark asks the reader for records, but only if the reader is an instance of
        `_HandsOver`, a private class of PySpark.
        """

        def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:  # noqa: N802, ARG002 - Spark's
            return iter(self._hand_over())
