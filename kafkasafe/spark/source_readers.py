"""The readers of `format("kafkasafe")`, for batch queries and for streams.

`streaming` has the reader of streams for PySpark 4.2 and later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kafkasafe.spark.columns import arrow_schema
from kafkasafe.spark.notices import Notices
from kafkasafe.spark.options import ReadOptions
from kafkasafe.spark.planner import Planner, Range
from kafkasafe.spark.positions import INITIAL, Positions, Recent
from kafkasafe.spark.reading import read
from kafkasafe.spark.workers import spare_collections


class _Reading:
    """The common part of both readers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._notices = Notices(options.on_event)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yields the records of one range, as pyarrow.RecordBatch."""
        spare_collections()
        # If there is nothing to read, Spark passes a partition object of its own, or None in Spark 4.0 and 4.1.
        value: Any = None if partition is None else partition.value
        for piece in value if isinstance(value, tuple) else (value,):
            if isinstance(piece, Range):
                yield from read(self._options, piece, self._schema, self._notices)


class BatchReader(_Reading, DataSourceReader):
    """The reader of a batch query."""

    def partitions(self) -> list[InputPartition]:
        """Divides the query's range into ranges for tasks."""
        planner = Planner(self._options, self._notices)
        try:
            return [InputPartition(piece) for piece in planner.batch()]
        finally:
            planner.close()


class StreamReader(_Reading, DataSourceStreamReader):
    """Reader for PySpark 4.0 and 4.1, which ask for the latest offset without saying where the batch begins.

    For a new query, Spark 4.0 and 4.1 ask for the end of the first batch before they ask for its start. So on the first
    request for an end, the reader looks up the start and the end, and returns both.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._made: Planner | None = None
        self._recent = Recent()
        self._start: Positions | None = None  # end of the latest range; None: nothing was planned yet

    @property
    def _planner(self) -> Planner:
        if self._made is None:
            self._made = Planner(self._options, self._notices)
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Returns an offset without positions. The beginning of the first micro-batch is stored later, together with
        the end of this micro-batch.
        """
        refused = self._planner.refused
        if refused is not None:
            # This query is certainly new: Spark never calls `initialOffset` after `latestOffset` for a restarted query.
            raise refused
        return INITIAL.encode()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - as it was before 4.2
        """Plans where the next micro-batch ends."""
        if self._start is None:
            # The query is new or was restarted. The position of a restarted query is not known yet: Spark passes it
            # later, to `partitions`.
            self._start = self._planner.opening()
        else:
            self._start = self._planner.latest(self._start)
        return self._recent.encode(self._start)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Divides a micro-batch into ranges."""
        begin, until = self._recent.decode(start), self._recent.decode(end)
        if self._start is None:
            # Spark repeats a batch that was planned by the previous run of the query.
            self._start = until
        return self._inputs(self._planner.ranges(begin, until))

    def _inputs(self, ranges: list[Range]) -> list[InputPartition]:
        return [InputPartition(piece) for piece in ranges]

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark's checkpoint keeps the positions, so nothing is committed to the brokers."""

    def stop(self) -> None:
        """Closes the driver's connections."""
        if self._made is not None:
            self._made.close()
