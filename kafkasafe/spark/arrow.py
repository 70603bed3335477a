"""Calls `DataFrame.mapInArrow` without pandas. PySpark's own method requires pandas, although it does not use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kafkasafe.spark.java import java_column, java_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["map_in_arrow"]


def map_in_arrow(
    df: DataFrame,
    function: Callable[[Iterator[Any]], Iterator[Any]],
    schema: str | StructType,
    *,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Does the same as `df.mapInArrow(function, schema)`.

    Args:
        df: The data frame.
        function: Maps Arrow batches to Arrow batches of the given schema. Spark pickles the function.
        schema: Schema of the result. The JVM has to parse a schema that is given as text.
        columns: The names of the data frame's columns, if they are known. Otherwise the JVM is asked for them.
    """
    jdf = java_frame(df)
    if jdf is None:  # Spark Connect, whose client needs pandas anyway
        return df.mapInArrow(function, schema)
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    make: Any = UserDefinedFunction
    udf = make(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = udf(*[df[f"`{name}`"] for name in columns or df.columns])
    return ClassicDataFrame(jdf.mapInArrow(java_column(column), False, None), df.sparkSession)
