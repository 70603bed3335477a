"""`DataFrame.mapInArrow` without pandas: PySpark asks for pandas there, and uses nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["map_in_arrow"]


def map_in_arrow(df: DataFrame, function: Callable[[Iterator[Any]], Iterator[Any]], schema: str) -> DataFrame:
    """As `df.mapInArrow(function, schema)`.

    Args:
        df: A data frame.
        function: Arrow batches in, Arrow batches of the schema out; is pickled.
        schema: Of the result.
    """
    jdf: Any = getattr(df, "_jdf", None)
    if jdf is None:  # Spark Connect, whose client needs pandas anyhow
        return df.mapInArrow(function, schema)
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    make: Any = UserDefinedFunction
    udf = make(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = udf(*[df[f"`{name}`"] for name in df.columns])
    return ClassicDataFrame(jdf.mapInArrow(column._jc, False, None), df.sparkSession)
