"""Collects the rows of small micro-batches on the driver, which encodes and sends them. No Python worker takes part.

The driver assumes that a micro-batch is small if the previous one was small. If the micro-batch is large after all,
the driver must not run out of memory. So the JVM limits the result of the job, before a row leaves its task:

- A task returns at most one row more than `Bound.rows`. The surplus row shows that the task has more rows.
- A row that is larger than `Bound.row_bytes` arrives without its contents, and is marked as too large.

After a surplus row or a row that is too large, the driver drops the collected rows, and another job writes the
micro-batch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from kafkasafe.spark.java import jvm_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LEAST_ROWS: Final = 256
# The first 64 tasks of a job may each return more bytes than a later task. If all tasks might return as much, thousands
# of tasks would fill the driver's memory. The limit for encoded batches works in the same way (`tasks.inline_limit`).
_FIRST_TASKS: Final = 64
_LATER_SHARE: Final = 16
_PAUSE: Final = 100  # micro-batches
_INDEX: Final = (1 << 33) - 1  # the part of `monotonically_increasing_id()` that numbers the rows of a task
_FITS: Final = "_kafkasafe_fits"
_ROW: Final = "_kafkasafe_row"
_SIZED: Final = ("key", "value", "topic")


class Size(NamedTuple):
    """The size of a micro-batch that was written.

    Attributes:
        rows: Number of rows.
        bytes: Size of the encoded batches, in bytes.
        pause: Number of following micro-batches whose rows the driver does not collect.
    """

    rows: int
    bytes: int
    pause: int = 0


class Bound(NamedTuple):
    """How much a task may return to the driver.

    Attributes:
        rows: Largest number of rows.
        row_bytes: Largest size of a row's key, value and topic together, in bytes. In each task after the first 64
            tasks of a job, a row may have only one sixteenth of `row_bytes`.
    """

    rows: int
    row_bytes: int


class RowTooLargeError(Exception):
    """A collected row is larger than `Bound.row_bytes`."""


def bound_of(previous: Size, inline_bytes: int) -> Bound | None:
    """Decides whether the driver collects the rows of the next micro-batch. If so, returns the limits.

    The bound allows each task at least twice as many rows as the whole previous micro-batch had. The limit for one row
    is at least twice the average size of a row of the previous micro-batch. A task returns at most twice
    `inline_bytes`.

    Args:
        previous: Size of the previous micro-batch.
        inline_bytes: The option `inlineBytes`.

    Returns:
        The bound; None if the driver does not collect the rows.
    """
    if previous.pause:
        return None
    # Spark compiles code for each new bound. So round the number of rows up to a power of two, which rarely changes.
    rows = max(_LEAST_ROWS, 1 << (2 * previous.rows - 1).bit_length() if previous.rows else 0)
    row_bytes = 2 * inline_bytes // rows
    if previous.rows and row_bytes < 2 * previous.bytes // previous.rows:
        return None
    return Bound(rows, row_bytes)


def later_size(previous: Size | None, rows: int, sent_bytes: int, *, was_refused: bool) -> Size:
    """Returns the size of a written micro-batch. `bound_of` needs this size for the next micro-batch.

    If a row is too large to be collected, the micro-batch needs a second job. More large rows may follow, so the driver
    collects no rows for the next 100 micro-batches.

    Args:
        previous: The result for the previous micro-batch; None before the first micro-batch.
        rows: Number of rows.
        sent_bytes: Size of the encoded batches, in bytes.
        was_refused: Whether a row of this micro-batch was too large to be collected.
    """
    left = 0 if previous is None else max(0, previous.pause - 1)
    return Size(rows, sent_bytes, _PAUSE if was_refused else left)


@functools.lru_cache(maxsize=16)
def _guard(_jvm: Any, columns: tuple[str, ...], bound: Bound) -> tuple[tuple[Column, ...], Column]:
    """Returns the columns and the row condition that limit the result of a task.

    The result is cached, because parsing the expressions takes longer than running them.
    """
    from pyspark.sql.functions import expr

    sized = " + ".join(f"coalesce(bigint(octet_length({name})), 0L)" for name in columns if name in _SIZED)
    share = (
        f"IF(spark_partition_id() < {_FIRST_TASKS}, {bound.row_bytes}L, {bound.row_bytes // _LATER_SHARE}L)"
    )
    fits = f"{sized} <= {share}"
    chosen = [f"IF({fits}, {name}, NULL) AS {name}" if name in _SIZED else name for name in columns]
    chosen += [f"{fits} AS {_FITS}", f"monotonically_increasing_id() & {_INDEX}L AS {_ROW}"]
    # Do not use `limit`: Spark compiles new code for each use of `limit`. A `limit` also applies to all tasks together,
    # so Spark runs several jobs, one after the other, until it has found enough rows.
    return tuple(map(expr, chosen)), expr(f"{_ROW} <= {bound.rows}")


def collect_rows(df: DataFrame, columns: Sequence[str], bound: Bound) -> list[Any] | None:
    """Collects the rows of a data frame, in one job without Python workers.

    Args:
        df: The data frame. Not of Spark Connect.
        columns: The names of the data frame's columns: some of `key`, `value`, `topic` and `partition`.
        bound: How much each task may return.

    Returns:
        Arrow batches; None if a task has more rows than the bound.

    Raises:
        RowTooLargeError: A row is larger than `bound.row_bytes`, and no task has more than `bound.rows` rows.
        Exception: The job failed.
    """
    chosen, condition = _guard(jvm_of(df.sparkSession), tuple(columns), bound)
    table = df.select(*chosen).where(condition).toArrow()
    if np.max(table.column(_ROW).to_numpy(), initial=-1) >= bound.rows:
        return None
    if not np.all(table.column(_FITS).to_numpy()):
        raise RowTooLargeError
    parts: list[Any] = table.drop_columns([_FITS, _ROW]).to_batches()
    return parts
