"""Finds the Java objects behind PySpark's objects. PySpark's names for the Java objects are private, so no other module
of kafkasafe uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def java_frame(df: DataFrame) -> Any:
    """Returns the Java object of a data frame; None with Spark Connect."""
    return getattr(df, "_jdf", None)


def java_session(session: SparkSession) -> Any:
    """Returns the Java object of a session; None with Spark Connect."""
    return getattr(session, "_jsparkSession", None)


def spark_context(session: SparkSession) -> SparkContext | None:
    """Returns the context of a session; None with Spark Connect."""
    return getattr(session, "_sc", None)


def jvm_of(session: SparkSession) -> Any:
    """Returns a session's JVM, as an object whose attributes are Java's packages. Not with Spark Connect."""
    context: Any = session.sparkContext
    return context._jvm


def gateway() -> Any:
    """Returns the connection to this process's JVM, or None."""
    from pyspark import SparkContext

    return SparkContext._gateway


def map_in_arrow(
    df: DataFrame,
    function: Callable[[Iterator[Any]], Iterator[Any]],
    schema: str | StructType,
    *,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Does the same as `df.mapInArrow(function, schema)`, but without pandas.

    PySpark's own `mapInArrow` requires pandas to be installed, but does not use pandas.

    Args:
        df: The data frame.
        function: Maps Arrow batches to Arrow batches of the given schema. Spark pickles the function.
        schema: Schema of the result. The JVM has to parse a schema that is given as text.
        columns: The names of the data frame's columns; None: ask the JVM for the names.
    """
    jdf = java_frame(df)
    if jdf is None:  # Spark Connect, whose client needs pandas anyway
        return df.mapInArrow(function, schema)
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    make: Any = UserDefinedFunction
    udf = make(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = udf(*[df[f"`{name}`"] for name in columns or df.columns])
    return ClassicDataFrame(jdf.mapInArrow(column._jc, False, None), df.sparkSession)
