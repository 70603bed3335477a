"""The tables and batches that `poll_arrow` and `poll_batches` return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
from kafka.structs import TopicPartition

from kafkasafe.record.arrow_decode import COLUMNS, schema_of

_arrow: Any = pa  # names from pyarrow's compiled modules have no types

_PLACE: Final = [
    _arrow.field("topic", _arrow.string(), nullable=False),
    _arrow.field("partition", _arrow.int32(), nullable=False),
]
_ORDER: Final = ("offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch")


class TableForm:
    """The columns of a table.

    Attributes:
        fetched: The columns to read. The offset is always read, because the columns topic and partition are computed
            and need the number of rows.
    """

    def __init__(self, columns: Iterable[str] | None, *, views: bool) -> None:
        """Choose the columns; None stands for all.

        Raises:
            ValueError: A column has an unknown name.
        """
        names = [field.name for field in _PLACE] + list(_ORDER)
        wanted = _known(columns, names)
        known = schema_of(COLUMNS, views=views)
        self._schema = _arrow.schema(
            [field for field in [*_PLACE, *map(known.field, _ORDER)] if field.name in wanted]
        )
        self.fetched = frozenset(wanted & set(COLUMNS) | {"offset"})

    def table(self, found: Mapping[TopicPartition, list[Any]]) -> Any:
        """Return the batches of all partitions as one pyarrow.Table."""
        parts = []
        for tp, batches in found.items():
            for batch in batches:
                places = {
                    "topic": lambda rows, tp=tp: _arrow.repeat(_arrow.scalar(tp.topic), rows),
                    "partition": lambda rows, tp=tp: _arrow.repeat(
                        _arrow.scalar(tp.partition, _arrow.int32()), rows
                    ),
                }
                arrays = [
                    places[name](batch.num_rows) if name in places else batch.column(name)
                    for name in self._schema.names
                ]
                parts.append(_arrow.RecordBatch.from_arrays(arrays, schema=self._schema))
        return _arrow.Table.from_batches(parts, schema=self._schema)


def columns_of(columns: Iterable[str] | None) -> frozenset[str]:
    """Return the columns of a batch; None stands for all.

    Raises:
        ValueError: A column has an unknown name.
    """
    return frozenset(_known(columns, COLUMNS))


def joined(batches: list[Any]) -> Any:
    """Return batches of one partition as a single pyarrow.RecordBatch."""
    if len(batches) == 1:
        return batches[0]
    return _arrow.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _known(columns: Iterable[str] | None, names: Iterable[str]) -> set[str]:
    wanted = set(names if columns is None else columns)
    if unknown := wanted - set(names):
        raise ValueError(f"No columns {sorted(unknown)}; there are {', '.join(names)}")
    return wanted
