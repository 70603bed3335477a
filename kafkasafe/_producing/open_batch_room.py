"""The room of open batches (how many bytes they may hold), and their division into batches of usual size.

An open batch belongs to a topic. When an open batch is full, its records are divided among the partitions of their
keys. Each resulting batch has a fixed cost: an entry in the spool, in the journal and in a request. If an open batch
with `batch_size` bytes of room is divided among 1,000 partitions, each batch has only a few records, and its fixed cost
exceeds the cost of the records by far. So an open batch has more room if the topic's previous open batch was divided
among many partitions. `batch_size` remains the limit of each batch that is sent: a partition with more records gets
several batches, in the order of the records.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

MAX_RECORDS: Final = 8192
"""Largest number of records of a batch."""
MOST_BYTES: Final = 8 * 1024 * 1024
"""Largest room of an open batch, unless `batch_size` is larger. One thread encodes an open batch under a lock, so the
room also limits how long other threads wait for the lock.
"""
_MOST_RECORDS: Final = 8 * MAX_RECORDS
"""Largest number of records of an open batch."""
_USEFUL_BYTES: Final = 32 * 1024
"""Size of a partition's batch, in bytes, above which the fixed cost hardly matters."""

Integers = npt.NDArray[np.int64]


def room_for(batch_bytes: int, spread: int, most_bytes: int) -> int:
    """Return the room of a topic's next open batch, in bytes; at least `batch_bytes`.

    Args:
        batch_bytes: Largest size of a batch.
        spread: Number of partitions among which the topic's last open batch was divided.
        most_bytes: Upper limit of the result, unless `batch_bytes` is larger.
    """
    return max(batch_bytes, min(spread * min(batch_bytes, _USEFUL_BYTES), most_bytes))


def rooms_records(batch_bytes: int, room: int) -> int:
    """Return the maximum number of records in an open batch with `room` bytes of room."""
    return min(MAX_RECORDS * max(room, batch_bytes) // batch_bytes, _MOST_RECORDS)


def fitting_edges(partitions: Integers, sizes: Integers | None, batch_bytes: int) -> list[int]:
    """Divide records into batches. The records are sorted by partition already. Return the indexes at which the batches
    begin.

    A batch has records of only one partition: at most `MAX_RECORDS` records, with at most `batch_bytes` in total. A
    record that is larger than `batch_bytes` has a batch of its own. The order of the records stays, and the number of
    batches is minimal for this order.

    Args:
        partitions: Partition of each record, sorted.
        sizes: Size of each record, in bytes; None if all records together fit into a batch.
        batch_bytes: Largest size of a batch.

    Returns:
        The index of the first record of each batch, except the first batch.
    """
    changes: list[int] = (np.flatnonzero(np.diff(partitions)) + 1).tolist()
    if sizes is None:
        return changes
    ends: Any = np.cumsum(sizes)
    edges: list[int] = []
    begin = 0
    for end in [*changes, len(partitions)]:
        if begin:
            edges.append(begin)
        while True:
            before = int(ends[begin - 1]) if begin else 0
            fits = int(np.searchsorted(ends, before + batch_bytes, "right"))
            begin = min(max(fits, begin + 1), begin + MAX_RECORDS, end)
            if begin == end:
                break
            edges.append(begin)
    return edges
