"""`format("kafkasafe")`: Kafka as a Python data source, planned and read without a JVM client.

Spark runs the parts of the source in different processes:

- Short-lived processes on the driver run `KafkaSafeSource`, construct the readers, and run `partitions` of a batch
  reader.
- One process on the driver, which exists as long as the query runs, executes `latestOffset`, `partitions` and `stop` of
  a stream reader.
- The executors' workers run `read`.

Spark pickles a reader to pass it to these processes, and an open connection cannot be pickled. So a reader connects
only when it first asks the cluster something.
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
from kafkasafe.spark.option_values import error
from kafkasafe.spark.options import ReadOptions, read_options
from kafkasafe.spark.planner import Planner, Range
from kafkasafe.spark.positions import INITIAL, Positions, Recent
from kafkasafe.spark.reading import read
from kafkasafe.spark.workers import spare_collections, warn_of_other_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KafkaSafeSource", "register"]

_arrow: Any = pa  # pyarrow's compiled modules have no type information

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
    """Kafka as a source, and as a sink (`writers.py`). See docs/spark-source.md for the options."""

    @classmethod
    def name(cls) -> str:
        """Returns the name for `format(...)`."""
        return "kafkasafe"

    def schema(self) -> StructType:
        """Returns the columns of Spark's own Kafka source. `headers` is included only with `includeHeaders`."""
        headers = str(self.options.get("includeHeaders", "false")).strip().lower() == "true"
        return StructType(
            [StructField(name, kind) for name, kind in _TYPES.items() if headers or name != "headers"]
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Creates the reader of a batch query."""
        return _BatchReader(read_options(dict(self.options), streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Creates the reader of a streaming query."""
        options = read_options(dict(self.options), streaming=True)
        try:
            from kafkasafe.spark.streaming import LimitedStreamReader
        except ImportError:
            if options.max_offsets or options.min_offsets:
                name = "maxOffsetsPerTrigger" if options.max_offsets else "minOffsetsPerTrigger"
                raise error(
                    "UNSUPPORTED_OPTION",
                    f"{name} needs PySpark 4.2 or later, because older versions do not say where a micro-batch begins:"
                    " upgrade PySpark, or leave the option out.",
                ) from None
            return StreamReader(options, schema)
        return LimitedStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Creates the writer for `df.write`, which uses one transaction."""
        from kafkasafe.spark.writers import batch_writer

        return batch_writer(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, ARG002 - Spark's
        """Creates the writer for `writeStream`, which writes each micro-batch exactly once.

        Spark sets `overwrite` in output mode complete. The writer ignores it.
        """
        from kafkasafe.spark.writers import stream_writer

        return stream_writer(dict(self.options), schema)


class _Reading:
    """The common part of both readers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = _arrow_schema(schema)
        self._notices = Notices(options.on_event)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yields the records of one range, as pyarrow.RecordBatch."""
        spare_collections()
        # If there is nothing to read, Spark passes a partition object of its own, or None in Spark 4.0 and 4.1.
        value: Any = None if partition is None else partition.value
        for piece in value if isinstance(value, tuple) else (value,):
            if isinstance(piece, Range):
                yield from read(self._options, piece, self._schema, self._notices)


class _BatchReader(_Reading, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        planner = Planner(self._options, self._notices)
        try:
            return [InputPartition(piece) for piece in planner.batch()]
        finally:
            planner.close()


class StreamReader(_Reading, DataSourceStreamReader):
    """Reader for PySpark 4.0 and 4.1, which ask for the latest offset without saying where the batch begins.

    For a new query, these versions ask where the first batch ends before they ask where it begins. So on the first
    request for an end, the reader looks up the beginning, then the end, and returns both.
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
        """Returns an offset without positions. The end of the first micro-batch records where that batch begins."""
        refused = self._planner.refused
        if refused is not None:
            # The query must be new, because only then does Spark call `initialOffset` after `latestOffset`.
            raise refused
        return INITIAL.encode()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - as it was before 4.2
        """Plans where the next micro-batch ends."""
        if self._start is None:
            # The query is new or was restarted. Spark passes the position of a restarted query only later, with its
            # first range.
            self._start = self._planner.opening()
        else:
            self._start = self._planner.latest(self._start)
        return self._recent.encode(self._start)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Divides a micro-batch into ranges."""
        begin, until = self._recent.decode(start), self._recent.decode(end)
        if self._start is None:
            # Spark repeats a batch that the previous run of the query planned.
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


def _arrow_schema(schema: StructType) -> Any:
    """Checks the columns of a query and converts them to an Arrow schema."""
    fields = []
    for field in schema.fields:
        expected = _TYPES.get(field.name)
        if expected is None:
            raise error(
                "UNKNOWN_COLUMN",
                f"format kafkasafe has no column {field.name!r}: use only {', '.join(_TYPES)}.",
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
    """Returns the Arrow type to which Spark itself converts a Spark type."""
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
            raise error(
                "WRONG_COLUMN_TYPE",
                f"No column of this source has type {kind.simpleString()}: cast it in the query.",
            )


def register(spark: SparkSession) -> None:
    """Registers `format("kafkasafe")` in a session. Registering again has no effect."""
    warn_of_other_python(spark)
    spark.dataSource.register(KafkaSafeSource)
