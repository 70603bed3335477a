"""The columns that the sink and the writers use: their names, their types, and whether they choose partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructField, StructType

from kafkasafe.spark.option_values import error
from kafkasafe.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS: Final = ("key", "value", "headers", "topic", "partition")


def checked(df: DataFrame, options: SinkOptions) -> tuple[DataFrame, list[str], bool]:
    """Selects the columns that the sink uses, and checks their types.

    Also returns the columns' names, and whether the columns determine the partition of each row.

    Raises:
        ConfigError: A column is missing or has a wrong type, or `exchange=never` does not fit the columns.
    """
    schema = df.schema
    names = wanted_columns(schema, options)
    bound = options.topic is None or "key" in names or "partition" in names
    if bound and options.exchange is False:
        raise error(
            "INVALID_OPTION",
            "exchange=never, but a column key, partition or topic binds rows to partitions: drop the column, or leave"
            " the option out.",
        )
    if len(schema.fields) > len(names) or any(ours != name for ours, name in names.items()):
        df = df.select(*(df[f"`{name}`"].alias(ours) for ours, name in names.items()))
    return df, list(names), bound


def wanted_columns(schema: StructType, options: SinkOptions) -> dict[str, str]:
    """Returns the columns that the sink uses, as a dict: name of the column in the sink → its name in the schema.

    Raises:
        ConfigError: A column is missing or has a wrong type.
    """
    fields = _by_name(schema)
    if "value" not in fields:
        raise error(
            "MISSING_COLUMN",
            f"There is no column value among {', '.join(schema.fieldNames()) or 'no columns'}: add one, for instance"
            ' df.selectExpr("to_json(struct(*)) AS value").',
        )
    if options.topic is None and "topic" not in fields:
        raise error(
            "MISSING_COLUMN", "There is neither an option topic nor a column topic: give one of the two."
        )
    text_or_bytes = (StringType, BinaryType)
    for name, kinds in (
        ("key", text_or_bytes),
        ("value", text_or_bytes),
        ("topic", (StringType,)),
        ("partition", (IntegerType,)),
    ):
        if name in fields and not isinstance(fields[name].dataType, kinds):
            wanted = " or ".join(kind.typeName() for kind in kinds)
            raise error(
                "WRONG_TYPE",
                f"Column {name} is {fields[name].dataType.simpleString()}, but it must be {wanted}: use CAST({name} AS"
                f" {kinds[0].typeName().upper()}).",
            )
    if "headers" in fields and not _are_headers(fields["headers"].dataType):
        raise error(
            "WRONG_TYPE",
            f"Column headers is {fields['headers'].dataType.simpleString()}, but it must be"
            " array<struct<key:string,value:binary>>.",
        )
    wanted_names = ["key", "value", "headers", "partition"] + (["topic"] if options.topic is None else [])
    return {name: fields[name].name for name in wanted_names if name in fields}


def _by_name(schema: StructType) -> dict[str, StructField]:
    """Finds the columns that the sink uses, and returns them by the sink's names. The case of a column's name does not
    matter. If several names in the schema differ only in case, the lower-case name counts.
    """
    found: dict[str, StructField] = {}
    for name in _COLUMNS:
        same = [field for field in schema.fields if field.name.lower() == name]
        exact = [field for field in same if field.name == name] or same
        if len(exact) > 1:
            raise error(
                "AMBIGUOUS_COLUMN",
                f"{' and '.join(field.name for field in exact)} could each be the column {name}: rename or drop columns"
                " until one is left.",
            )
        if exact:
            found[name] = exact[0]
    return found


def _are_headers(kind: Any) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]
