"""`format("kafkasafe")`: Kafka as a Python data source, planned and read without a JVM client.

Spark runs the parts of the source in different processes:

- Short-lived processes on the driver run `KafkaSafeSource`, construct the readers, and run `partitions` of a batch
  reader.
- One process on the driver, which exists while the query runs, runs `latestOffset`, `partitions` and `stop` of a stream
  reader.
- The executors' workers run `read`.

Spark pickles a reader to pass it to another process, and an open connection cannot be pickled. So a reader connects
only when it sends its first request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

from kafkasafe.spark.columns import TYPES
from kafkasafe.spark.option_values import error
from kafkasafe.spark.options import read_options
from kafkasafe.spark.source_readers import BatchReader, StreamReader
from kafkasafe.spark.workers import warn_of_other_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
            [StructField(name, kind) for name, kind in TYPES.items() if headers or name != "headers"]
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Creates the reader of a batch query."""
        return BatchReader(read_options(dict(self.options), streaming=False), schema)

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

        Spark sets `overwrite` in the output mode `complete`. The writer ignores it.
        """
        from kafkasafe.spark.writers import stream_writer

        return stream_writer(dict(self.options), schema)


def register(spark: SparkSession) -> None:
    """Registers `format("kafkasafe")` in a session. Registering again has no effect."""
    warn_of_other_python(spark)
    spark.dataSource.register(KafkaSafeSource)
