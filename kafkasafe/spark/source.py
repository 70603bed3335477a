"""`format("kafkasafe")`: Kafka as a Python Data Source, read and planned without a JVM client.

Where what runs: `KafkaSafeSource`, its readers' construction and `partitions` of a batch in short-lived processes on
the driver; `latestOffset`, `partitions` and `stop` of a stream in one process on the driver that lives as long as the
query; `read` in the executors' workers. So readers are pickled before they have asked anything, and connect late.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafkasafe.spark.notices import Notices
from kafkasafe.spark.options import ReadOptions, error, read_options
from kafkasafe.spark.planner import Planner, Range
from kafkasafe.spark.positions import INITIAL, Positions
from kafkasafe.spark.reading import read
from kafkasafe.spark.workers import spare_collections, warn_of_other_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KafkaSafeSource", "register"]

_arrow: Any = pa  # what it takes from its compiled modules has no types

_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}


class KafkaSafeSource(DataSource):
    """Kafka as a source, and as a sink (`writers.py`). See docs/spark.md for the options."""

    @classmethod
    def name(cls) -> str:
        """As in `format(...)`."""
        return "kafkasafe"

    def schema(self) -> StructType:
        """As of Spark's own Kafka source; `headers` only with `includeHeaders`."""
        headers = str(self.options.get("includeHeaders", "false")).strip().lower() == "true"
        return StructType(
            [StructField(name, kind) for name, kind in _TYPES.items() if headers or name != "headers"]
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """For a batch query."""
        return _BatchReader(read_options(dict(self.options), streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """For a streaming query."""
        options = read_options(dict(self.options), streaming=True)
        try:
            from kafkasafe.spark.streaming import LimitedStreamReader
        except ImportError:
            if options.max_offsets or options.min_offsets:
                name = "maxOffsetsPerTrigger" if options.max_offsets else "minOffsetsPerTrigger"
                raise error(
                    "UNSUPPORTED_OPTION",
                    f"{name} needs PySpark 4.2 or later: older ones do not say where a micro-batch begins.",
                ) from None
            return StreamReader(options, schema)
        return LimitedStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`: one transaction."""
        from kafkasafe.spark.writers import batch_writer

        return batch_writer(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, ARG002 - Spark's
        """For `writeStream`: exactly once for each micro-batch. `overwrite` is output mode complete."""
        from kafkasafe.spark.writers import stream_writer

        return stream_writer(dict(self.options), schema)


class _Reading:
    """What both readers do."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = _arrow_schema(schema)
        self._notices = Notices(options.on_event)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """The records of one range, as pyarrow.RecordBatch."""
        spare_collections()
        # Spark makes a partition of its own when there is nothing to read; 4.0 and 4.1: None.
        if partition is not None and isinstance(partition.value, Range):
            yield from read(self._options, partition.value, self._schema, self._notices)


class _BatchReader(_Reading, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        planner = Planner(self._options, self._notices)
        try:
            return [InputPartition(piece) for piece in planner.batch()]
        finally:
            planner.close()


class StreamReader(_Reading, DataSourceStreamReader):
    """For PySpark 4.0 and 4.1, which ask for the latest offset without saying where the batch begins.

    A new query asks for its first end before it asks for its begin. Both are looked up then, in the right order, and
    both are in the answer.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._made: Planner | None = None
        self._start: Positions | None = None  # where the last range ended; None: nothing was planned yet

    @property
    def _planner(self) -> Planner:
        if self._made is None:
            self._made = Planner(self._options, self._notices)
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """A sign that nothing was read before. Where that is, stands in the end of the first micro-batch."""
        refused = self._planner.refused
        if refused is not None:
            # Only a new query asks for this after it has asked for an end.
            raise refused
        return INITIAL.encode()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - as it was before 4.2
        """Where the next micro-batch ends."""
        if self._start is None:
            # A new query, or one that was restarted: where that one is, is told with its first range.
            self._start = self._planner.opening()
        else:
            self._start = self._planner.latest(self._start)
        return self._start.encode()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges of a micro-batch."""
        until = Positions.decode(end)
        if self._start is None:
            # A batch of the life before that is run again.
            self._start = until
        ranges = self._planner.ranges(Positions.decode(start), until)
        return [InputPartition(piece) for piece in ranges]

    def commit(self, end: dict[str, Any]) -> None:
        """Positions are kept in Spark's checkpoint: there is nothing to tell the brokers."""

    def stop(self) -> None:
        """Closes the driver's connections."""
        if self._made is not None:
            self._made.close()


def _arrow_schema(schema: StructType) -> Any:
    """The columns of a query, checked."""
    fields = []
    for field in schema.fields:
        expected = _TYPES.get(field.name)
        if expected is None:
            raise error(
                "UNKNOWN_COLUMN",
                f"format kafkasafe has no column {field.name!r}; it has {', '.join(_TYPES)}.",
            )
        if field.dataType != expected and field.name != "headers":
            raise error(
                "WRONG_COLUMN_TYPE",
                f"Column {field.name} is {expected.simpleString()}, not {field.dataType.simpleString()}: leave"
                " .schema(...) out, and cast in the query.",
            )
        fields.append(_arrow.field(field.name, arrow_type(field.dataType), nullable=field.nullable))
    return _arrow.schema(fields)


def arrow_type(kind: DataType) -> Any:
    """As Spark itself translates it."""
    match kind:
        case ArrayType():
            return _arrow.list_(
                _arrow.field("element", arrow_type(kind.elementType), nullable=kind.containsNull)
            )
        case StructType():
            return _arrow.struct(
                [
                    _arrow.field(field.name, arrow_type(field.dataType), nullable=field.nullable)
                    for field in kind.fields
                ]
            )
        case BinaryType():
            return _arrow.binary()
        case StringType():
            return _arrow.string()
        case IntegerType():
            return _arrow.int32()
        case LongType():
            return _arrow.int64()
        case TimestampType():
            return _arrow.timestamp("us", "UTC")
        case _:
            raise error("WRONG_COLUMN_TYPE", f"{kind.simpleString()} is no type of this source's columns.")


def register(spark: SparkSession) -> None:
    """Makes `format("kafkasafe")` known to a session. May be called again."""
    warn_of_other_python(spark)
    spark.dataSource.register(KafkaSafeSource)
