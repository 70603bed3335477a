"""The columns of the source: their types in Spark and in Arrow."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
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

from kafkasafe.spark.option_values import error
from kafkasafe.spark.reading import COLUMNS

_arrow: Any = pa  # pyarrow's compiled modules have no type information

_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)


def arrow_schema(schema: StructType) -> Any:
    """Checks the columns of a query and converts them to an Arrow schema."""
    fields = []
    for field in schema.fields:
        expected = TYPES.get(field.name)
        if expected is None:
            raise error(
                "UNKNOWN_COLUMN",
                f"format kafkasafe has no column {field.name!r}: use only {', '.join(TYPES)}.",
            )
        # Compare the types as text, which leaves out nullability: users may declare parts of `headers` as not null.
        if field.dataType.simpleString() != expected.simpleString():
            raise error(
                "WRONG_COLUMN_TYPE",
                f"Column {field.name} is {expected.simpleString()}, not {field.dataType.simpleString()}: leave"
                " .schema(...) out, and cast in the query.",
            )
        fields.append(_arrow.field(field.name, arrow_type(field.dataType), nullable=field.nullable))
    return _arrow.schema(fields)


def arrow_type(kind: DataType) -> Any:
    """Returns the Arrow type that Spark itself uses for a Spark type."""
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


_KINDS: Final = (BinaryType(), StringType(), IntegerType(), LongType(), TimestampType(), _HEADERS)
TYPES: Final[dict[str, DataType]] = {
    name: next(kind for kind in _KINDS if arrow_type(kind) == arrow) for name, arrow in COLUMNS.items()
}
"""Column → its type in Spark."""
