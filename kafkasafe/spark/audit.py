"""Computes the counts of `kafkasafe.audit` in Spark's tasks."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from kafkasafe.history.audit import IdCount, SequenceRun, runs
from kafkasafe.spark.java import map_in_arrow
from kafkasafe.spark.notices import Notices
from kafkasafe.spark.option_values import INT32
from kafkasafe.spark.options import ReadOptions, Subscribe
from kafkasafe.spark.planner import Range
from kafkasafe.spark.reading import read_headers
from kafkasafe.spark.source import register

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_arrow: Any = pa  # pyarrow's compiled modules have no type information


class _Ids(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...


class _FindRuns:
    """A task that finds runs of batches in some of the offset ranges.

    In a run (`SequenceRun`), the batches come from one producer, and their sequence numbers have no gap. The result of
    the task is small even for large ranges.
    """

    def __init__(self, options: ReadOptions, pieces: Sequence[Range]) -> None:
        self._options = options
        self._pieces = pieces

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                piece = self._pieces[number]
                found = runs(read_headers(self._options, piece, Notices(None)))
                columns = [
                    _arrow.array([piece.partition], _arrow.int32()),
                    _arrow.array([pickle.dumps(found)], _arrow.binary()),
                ]
                yield _arrow.RecordBatch.from_arrays(columns, names=["partition", "runs"])


def find_runs(
    spark: SparkSession, options: ReadOptions, pieces: Sequence[Range]
) -> dict[int, list[SequenceRun]]:
    """Returns the runs (see `SequenceRun`) that Spark's tasks found in the ranges, by partition."""
    found: dict[int, list[SequenceRun]] = {}
    if not pieces:
        return found
    numbers = spark.range(0, len(pieces), 1, len(pieces))
    task: Any = _FindRuns(options, pieces)
    for row in map_in_arrow(numbers, task, "partition INT, runs BINARY").collect():
        found.setdefault(row.partition, []).extend(pickle.loads(bytes(row.runs)))  # noqa: S301 - our own task wrote it
    return found


def count_ids(spark: SparkSession, options: ReadOptions, ids: _Ids, *, committed: bool) -> IdCount:
    """Counts how many ids of records are distinct, repeated or missing.

    An id of more than 38 digits does not count as a number.
    """
    from pyspark.sql import functions as f

    assert isinstance(options.what, Subscribe)  # noqa: S101  # audit always passes topics
    register(spark)
    connection = {
        f"kafka.{name}": ",".join(value) if isinstance(value, list) else str(value)
        for name, value in options.connection.items()
        if value is not None
    }
    frame = (
        spark.read.format("kafkasafe")
        .options(**connection)
        .option("subscribe", ",".join(options.what.topics))
        .option("includeHeaders", str(options.include_headers).lower())
        .option("isolationLevel", "read_committed" if committed else "read_uncommitted")
        .option("kafkaConsumer.pollTimeoutMs", str(max(1, min(INT32, round(1000 * options.stall_timeout_s)))))
        .load()
    )
    counts = frame.groupBy(_column(ids).alias("id")).count().persist()
    named = counts.where("id IS NOT NULL")
    number = f.expr("try_cast(id AS DECIMAL(38, 0))")
    # `is_number` is null for a record without an id, and `min` ignores nulls.
    is_number = f.when(f.col("id").isNotNull(), f.col("id").rlike(r"^-?[0-9]+\z") & number.isNotNull())
    total = counts.agg(
        f.sum(f.when(f.col("id").isNull(), 0).otherwise(f.col("count"))).alias("records"),
        f.sum(f.when(f.col("id").isNull(), f.col("count")).otherwise(0)).alias("without"),
        f.count("id").alias("distinct"),
        f.min(is_number.cast("int")).alias("numbers"),
        f.min(number).alias("least"),
        f.max(number).alias("largest"),
        f.count_distinct(number).alias("different"),
    ).first()
    assert total is not None  # noqa: S101  # an aggregate has one row
    examples = named.where("count > 1").orderBy(f.desc("count"), "id").limit(10).collect()
    counts.unpersist()
    missing = None
    if total["numbers"] == 1:
        missing = int(total["largest"]) - int(total["least"]) + 1 - int(total["different"])
    source = f"{ids.kind}:{ids.name}" if ids.name else ids.kind
    return IdCount(
        source,
        int(total["records"] or 0),
        int(total["without"] or 0),
        int(total["distinct"]),
        missing,
        [(row["id"], row["count"]) for row in examples],
    )


def _column(ids: _Ids) -> Column:
    from pyspark.sql import functions as f

    match ids.kind:
        case "header":
            mine = f.filter(
                "headers", lambda header: (header["key"] == ids.name) & header["value"].isNotNull()
            )
            return f.get(mine, f.lit(0))["value"].cast("string")
        case "json":
            path = ids.name.replace("'", "\\'")
            return f.get_json_object(f.col("value").cast("string"), f"$['{path}']")
        case _:
            return f.col(ids.kind).cast("string")
