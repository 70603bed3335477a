"""The columns that a query of the source may name, without Spark's JVM."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from kafkasafe.errors import ConfigError
from kafkasafe.spark.columns import arrow_schema


def headers(*fields: tuple[str, DataType], **more: bool) -> DataType:
    return ArrayType(StructType([StructField(name, kind, **more) for name, kind in fields]))


KEY, VALUE = ("key", StringType()), ("value", BinaryType())


@pytest.mark.parametrize(
    "kind",
    [
        StringType(),
        ArrayType(StringType()),
        headers(KEY),
        headers(VALUE, KEY),
        headers(("key", StringType()), ("value", IntegerType())),
        headers(("name", StringType()), VALUE),
    ],
    ids=str,
)
def test_headers_of_another_type_are_refused(kind: DataType) -> None:
    """They were accepted. Then the tasks failed with an error of Arrow, or fields that Kafka does not have were null."""
    with pytest.raises(ConfigError, match=r"Column headers is array<struct<key:string,value:binary>>, not"):
        arrow_schema(StructType([StructField("headers", kind)]))


@pytest.mark.parametrize(
    "kind",
    [
        headers(KEY, VALUE),
        headers(KEY, VALUE, nullable=False),
        ArrayType(StructType([StructField(*KEY), StructField(*VALUE)]), containsNull=False),
    ],
)
def test_headers_may_say_what_is_never_null(kind: DataType) -> None:
    found = arrow_schema(StructType([StructField("headers", kind)]))
    assert pa.types.is_list(found.field("headers").type)
