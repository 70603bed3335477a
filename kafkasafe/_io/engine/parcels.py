"""What callers hand over and wait for: encoded batches, and what they are divided into."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Reversible, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kafkasafe._core import batch as codec
from kafkasafe._core import journal as j
from kafkasafe._io.engine.slips import Slip

__all__ = [
    "UNCHOSEN",
    "Choose",
    "Indexes",
    "Parcel",
    "first",
    "given_partitions",
    "last",
    "leaves",
    "pieces",
    "seems_given",
]

UNCHOSEN: Final = j.UNCHOSEN

_GIVEN: Final = "kafkasafe.partition"
"""Earlier versions kept a given partition in a header of this name."""
_INT32_DIGITS: Final = 10

Indexes = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Parcel:
    """One encoded batch on its way: what callers see of it.

    Attributes:
        topic: Topic name.
        partition: Partition, UNCHOSEN while it is not known.
        data: The batch; None while it is only in the spool.
        size_bytes: Its size.
        count: Records.
        max_timestamp: Ms since the epoch.
        taken: The pump's thread has it.
        durable: It is on disk (or in the cluster).
        done: Its fate is final: see `error`, `base_offset`, `children`.
        error: Why it was not delivered.
        base_offset: In the partition; -1 if only known to be in the log.
        log_append_time: Ms, -1 unless the broker set it.
        children: It was divided: (child, indexes of its records in this one).
        parent: What it was divided from, or the first of `parents`.
        parents: What it was made of, where small ones that waited became one.
        shift: Where the first record of one of those is in it.
        given: Of records whose partitions are to be chosen, those whose partition was given: see `journal.Batch`.
        slip: Of the unit that it is a part of. The first parcel of a unit has no records: it stands for all of it.
        watcher: Called with it, and the lock held, when it is done; then no more. What it is divided into inherits it.
        keeper: While its batch is packed nobody but callers has it, and `watch` puts it in here, by number.
    """

    topic: str
    partition: int
    data: bytearray | None
    size_bytes: int
    count: int
    max_timestamp: int
    sealed_at: float = 0.0
    number: int = 0
    taken: bool = False
    durable: bool = False
    done: bool = False
    expired: bool = False
    error: BaseException | None = None
    base_offset: int = -1
    log_append_time: int = -1
    children: list[tuple[Parcel, Indexes]] | None = None
    parent: Parcel | None = None
    parents: Sequence[Parcel] = ()
    shift: int = 0
    given: tuple[tuple[int, int, int], ...] | None = None
    slip: Slip | None = None
    watcher: Callable[[Parcel], None] | None = None
    batch: j.Batch | None = None
    keeper: dict[int, Parcel] | None = None
    ahead: bool = False
    """It counts in `Ledger.run_ahead`."""
    loose: bool = False
    """Its bytes may still be in a socket's queue: changed only in a copy."""

    def watch(self, watcher: Callable[[Parcel], None]) -> None:
        """Set the watcher, from any thread."""
        self.watcher = watcher
        # In this order: the pump sets the keeper, then looks for the watcher.
        keeper = self.keeper
        if keeper is not None:
            keeper[self.number] = self


Choose = Callable[[str, int, Sequence[bytes | None], Sequence[bytes | None]], Indexes]


def given_partitions(columns: codec.Columns, runs: Sequence[tuple[int, int, int]] | None) -> dict[int, int]:
    """By record, the partition that was given with it, in a batch whose partitions are to be chosen.

    Args:
        columns: The batch. What an earlier version added to it is taken off.
        runs: See `journal.Batch.given`.
    """
    if runs is not None:
        return {index: partition for first, count, partition in runs for index in range(first, first + count)}
    given = {}
    for index, headers in list(columns.headers.items()):
        if seems_given(headers):
            given[index] = int(headers.pop()[1] or b"")
            if not headers:
                del columns.headers[index]
    return given


def seems_given(headers: Sequence[tuple[str, bytes | None]]) -> bool:
    """Whether an earlier version may have added the last of these headers, to say which partition was given."""
    if not headers or headers[-1][0] != _GIVEN:
        return False
    value = headers[-1][1] or b""
    return value.isdigit() and len(value) <= _INT32_DIGITS and int(value) < 2**31


def leaves(parcel: Parcel) -> list[Parcel]:
    """What a parcel was divided into, in the end; itself when it was not."""
    if parcel.children is None:
        return [parcel]
    return [leaf for child, _ in parcel.children for leaf in leaves(child)]


def pieces(count: int, bad: set[int], *, halves: bool = True) -> list[Indexes]:
    """How a refused batch is divided: runs of good and of named bad records, or equal parts where none is named."""
    if (not bad or len(bad) == count) and not halves:
        return np.array_split(np.arange(count), min(4, count))
    if not bad or len(bad) == count:
        half = count // 2
        return [np.arange(half), np.arange(half, count)]
    edges = [0] + [i for i in range(1, count) if (i in bad) != (i - 1 in bad)] + [count]
    return [np.arange(start, end) for start, end in itertools.pairwise(edges)]


def first(numbers: Iterable[int], default: int) -> int:
    """The first key of a dict that another thread may change meanwhile."""
    while True:
        with contextlib.suppress(RuntimeError):  # it was changed between two steps
            return next(iter(numbers), default)


def last(numbers: Reversible[int]) -> int:
    """The last key of a dict that another thread may change meanwhile; 0 if there is none."""
    while True:
        with contextlib.suppress(RuntimeError):
            return next(reversed(numbers), 0)
