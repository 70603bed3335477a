"""Java's objects behind PySpark's. PySpark has them under private names only, which no other module uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["gateway", "java_column", "java_frame", "java_session", "jvm_of"]


def java_frame(df: DataFrame) -> Any:
    """Returns the Java object of a data frame; None with Spark Connect."""
    return getattr(df, "_jdf", None)


def java_session(session: SparkSession) -> Any:
    """Returns the Java object of a session; None with Spark Connect."""
    return getattr(session, "_jsparkSession", None)


def java_column(column: Column) -> Any:
    """Returns the Java object of a column. Not with Spark Connect."""
    column_of_java: Any = column
    return column_of_java._jc


def jvm_of(session: SparkSession) -> Any:
    """Returns the JVM of a session: its attributes are Java's packages. Not with Spark Connect."""
    context: Any = session.sparkContext
    return context._jvm


def gateway() -> Any:
    """Returns the connection to this process's JVM; None if there is none."""
    from pyspark import SparkContext

    return SparkContext._gateway
