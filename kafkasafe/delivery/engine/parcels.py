"""Parcels: encoded batches that callers submit and wait for. A parcel can be divided, and can be part of a unit (an
atomic batch).
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Reversible, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.record import batch as codec

UNCHOSEN: Final = j.UNCHOSEN

_GIVEN: Final = "kafkasafe.partition"
"""Name of the header in which earlier versions kept the partition that the caller chose."""
_INT32_DIGITS: Final = 10

Indexes = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class UnitHandle:
    """A unit (atomic batch) as callers see it: batches that are submitted in one call, and delivered together or not at
    all.

    Attributes:
        unit_id: The unit's id: 16 bytes, unique.
        transactional_id: The user's transactional id; empty if the unit uses one of the lane's own ids.
        offsets: The offsets that the unit commits, by consumer group.
        readings: For each partition of a group: the reading (a consumer's run through the partition, see `Reading`) to
            which the offset belongs.
        joins: With `delivery="transactional"`, the topic of the unit's batches, otherwise empty. Other batches of the
            topic may join the unit until the engine writes the unit to disk.
        fate: How the unit ended. The engine sets `fate` once it is durable, before the unit's first parcel is done.
    """

    unit_id: bytes = field(default_factory=lambda: uuid.uuid4().bytes)
    transactional_id: str = ""
    offsets: tuple[m.GroupOffsets, ...] = ()
    readings: Mapping[u.GroupPartition, u.Reading] = field(default_factory=dict)
    joins: str = ""
    fate: j.Fate | None = None

    def end(self, fate: j.Fate) -> None:
        """Set how the unit ended."""
        self.fate = fate


@dataclass(slots=True, eq=False, weakref_slot=True)
class Parcel:
    """One encoded batch, as callers see it.

    Attributes:
        topic: Topic name.
        partition: Partition, UNCHOSEN while it is not known.
        data: The batch's bytes; None while only the spool has them.
        size_bytes: Size of the batch.
        count: Number of records.
        max_timestamp: Largest timestamp of a record, ms since the epoch.
        taken: Whether the pump's thread has taken the parcel.
        durable: Whether the parcel is on disk (or in the cluster).
        done: Whether the parcel's outcome is final: see `error`, `base_offset`, `children`.
        error: Why the parcel was not delivered.
        base_offset: Offset of the parcel's first record; -1 if the parcel is in the log at an unknown offset.
        log_append_time: Timestamp that the broker gave the records, ms since the epoch; -1 if the broker gave none.
        children: The parcels that now contain the records of this parcel: its parts if it was divided, or the parcel
            into which it was joined. Each entry is (child, indexes of the child's records in this parcel).
        parent: The divided parcel to which this part belongs. If small parcels were joined into this parcel, the first
            of `parents`.
        parents: The small pending parcels that were joined into this parcel, if any.
        shift: If this parcel was joined into another parcel, the index of this parcel's first record in the other
            parcel.
        given: The partitions that the caller gave for some of the records (see `journal.Batch`). Used while `partition`
            is UNCHOSEN.
        unit_handle: The handle of the parcel's unit; None if the parcel is not part of a unit. The first parcel of a
            unit has no records, and carries the outcome of the whole unit.
        watcher: A function that the ledger calls once, with the parcel as the argument and the ledger's lock held, when
            the parcel is done. Parts of the parcel inherit the function.
        keeper: A dict of parcels by number, set while the parcel's batch is packed (the journal stores it as a compact
            row). While the batch is packed, only callers refer to the parcel; `watch` adds a parcel with a watcher to
            this dict, to keep the parcel alive.
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
    unit_handle: UnitHandle | None = None
    watcher: Callable[[Parcel], None] | None = None
    batch: j.Batch | None = None
    keeper: dict[int, Parcel] | None = None
    ahead: bool = False
    """Whether `Ledger.ahead` counts the parcel."""
    first_open: int = 0
    """Index of the first child that was not done at the last call of `has_done_children`."""
    loose: bool = False
    """Whether the parcel's bytes may still be in a socket's queue. If so, change only a copy of the bytes."""

    # -- accepted and durable ------------------------------------------------------------------------------------------

    def accept(self, number: int, now: float) -> None:
        """Note that a caller handed over the parcel. A parcel that already has a number keeps this number."""
        self.number = self.number or number
        self.sealed_at = now

    def renumber(self, number: int) -> None:
        """Set the number of a parcel that was read from the spool, or that is sent again after a loss."""
        self.number = number

    def restart(self, now: float) -> None:
        """Count the parcel's age from `now`, because the parcel is sent again after a loss."""
        self.sealed_at = now

    def take(self) -> None:
        """Note that the pump's thread has taken the parcel."""
        self.taken = True

    def be_durable(self) -> None:
        """Note that the parcel is on disk, or in the cluster."""
        self.durable = True

    def count_ahead(self, *, counted: bool) -> None:
        """Set whether `Ledger.ahead` counts the parcel."""
        self.ahead = counted

    # -- its bytes -----------------------------------------------------------------------------------------------------

    def lend(self) -> None:
        """Note that the parcel's bytes are given to a socket."""
        self.loose = True

    def reread(self) -> None:
        """Note that the parcel's bytes were read back from the spool. No socket uses this new copy."""
        self.loose = False

    def writable(self) -> bytearray | None:
        """Returns the parcel's bytes to a caller that changes them in place. If a socket may still use the bytes, this
        method first replaces the parcel's bytes by a copy. Returns None while only the spool has the bytes.
        """
        data = self.data
        if data is not None and self.loose:
            data = self.data = bytearray(data)
            self.loose = False
        return data

    def replace(self, data: bytearray) -> None:
        """Use these new bytes, which no socket has, from now on."""
        self.data = data
        self.loose = False

    def drop(self) -> None:
        """Drop the parcel's bytes, because the spool or the parcel's parts have them."""
        self.data = None

    @property
    def is_written(self) -> bool:
        """Whether the spool has the bytes of this very parcel.

        1. The engine joins small batches of a partition, which are durable, into one batch. The parcel of the joined
           batch counts as durable, because the records are on disk in the small batches.
        2. Before the joined batch is written, the engine writes another spool group, and the batches in memory exceed
           their limit.
        3. The bytes of the joined batch are only in memory, so the engine must not drop them.
        """
        return self.durable and self.batch is not None and self.batch.durable

    # -- its batch -----------------------------------------------------------------------------------------------------

    def assign(self, batch: j.Batch) -> None:
        """Set the batch that represents the parcel in the journal."""
        self.batch = batch

    def pack(self, keeper: dict[int, Parcel]) -> None:
        """Note that the journal stores the parcel's batch as a compact row, not as an object any more."""
        self.batch = None
        self.keeper = keeper

    def unpack(self) -> None:
        """Note that the parcel's batch is an object again, because the journal has unpacked it."""
        self.keeper = None

    def belong_to(self, unit_handle: UnitHandle | None) -> None:
        """Note that the parcel's records are part of a unit (atomic batch)."""
        self.unit_handle = unit_handle

    def adopt(self, children: list[tuple[Parcel, Indexes]]) -> None:
        """Attach the parts of a divided parcel. Callers that wait for the parcel then wait for all parts."""
        for child, _ in children:
            child.follow(self)
        self.children = children
        self.first_open = 0
        # Read the watcher only after setting `children`. A caller sets the watcher, and then reads `children`. So at
        # least one of the two threads sees the other's value.
        for child, _ in children:
            child.inherit_watcher(self)

    def follow(self, parent: Parcel) -> None:
        """Make this parcel a part of another parcel."""
        self.parent = parent
        self.sealed_at = parent.sealed_at

    def inherit_watcher(self, parent: Parcel) -> None:
        """Inherit the parent's watcher: it is called when this parcel is done."""
        self.watcher = parent.watcher

    def join(self, child: Parcel, shift: int) -> None:
        """Note that the parcel was joined into `child`, where the parcel's records begin at the index `shift`."""
        self.shift = shift
        self.children = [(child, np.arange(self.count))]
        self.first_open = 0

    def has_done_children(self) -> bool:
        """Whether all children are done. Each call starts at the first child that was not done in the previous call."""
        children = self.children or ()
        while self.first_open < len(children):
            if not children[self.first_open][0].done:
                return False
            self.first_open += 1
        return True

    # -- its fate ------------------------------------------------------------------------------------------------------

    def deliver(self, base_offset: int) -> None:
        """Set the base offset of the parcel's records; -1 if the records are in the log at an unknown offset."""
        self.base_offset = base_offset

    def stamp_append_time(self, log_append_time: int) -> None:
        """Set the timestamp that the broker gave the parcel's records, ms since the epoch."""
        self.log_append_time = log_append_time

    def fail(self, error: BaseException) -> None:
        """Set the error that prevents the delivery of the parcel."""
        self.error = error

    def expire(self) -> None:
        """Note that `delivery_timeout_ms` has expired."""
        self.expired = True

    @property
    def is_late(self) -> bool:
        """Whether `delivery_timeout_ms` has expired for this parcel, or for the parcel of which it is a part."""
        return self.expired or (self.parent is not None and self.parent.is_late)

    def end(self) -> None:
        """Note that the parcel's outcome is final."""
        self.done = True

    def take_watcher(self) -> Callable[[Parcel], None] | None:
        """Take the watcher, to call it once."""
        watcher, self.watcher = self.watcher, None
        return watcher

    def watch(self, watcher: Callable[[Parcel], None]) -> None:
        """Set the watcher, from any thread."""
        self.watcher = watcher
        # Read the keeper only after setting `watcher`. The pump sets the keeper, and then reads `watcher`. So at least
        # one of the two threads sees the other's value.
        keeper = self.keeper
        if keeper is not None:
            keeper[self.number] = self


Choose = Callable[[str, int, Sequence[bytes | None], Sequence[bytes | None]], Indexes]


def given_partitions(columns: codec.Columns, runs: Sequence[tuple[int, int, int]] | None) -> dict[int, int]:
    """Returns the partitions that the caller gave: index of the record → partition. For batches in which the caller
    gave the partitions of only some records.

    Args:
        columns: The batch. This function removes headers that an earlier version added.
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
    """Whether the last header looks like the header in which old versions of kafkasafe stored the partition that the
    caller gave.
    """
    if not headers or headers[-1][0] != _GIVEN:
        return False
    value = headers[-1][1] or b""
    return value.isdigit() and len(value) <= _INT32_DIGITS and int(value) < 2**31


def leaves(parcel: Parcel) -> list[Parcel]:
    """The undivided parts of a parcel; the parcel itself if it was not divided."""
    if parcel.children is None:
        return [parcel]
    return [leaf for child, _ in parcel.children for leaf in leaves(child)]


def pieces(count: int, bad: set[int], *, halves: bool = True) -> list[Indexes]:
    """Decide how to divide a refused batch. If the broker named some records as bad, the parts are runs of good and of
    bad records. If the broker named no records or all records, the parts have about equal size: two parts if `halves`
    is true, otherwise up to four.
    """
    if (not bad or len(bad) == count) and not halves:
        return np.array_split(np.arange(count), min(4, count))
    if not bad or len(bad) == count:
        half = count // 2
        return [np.arange(half), np.arange(half, count)]
    edges = [0] + [i for i in range(1, count) if (i in bad) != (i - 1 in bad)] + [count]
    return [np.arange(start, end) for start, end in itertools.pairwise(edges)]


def first(numbers: Iterable[int], default: int) -> int:
    """The first key of a dict that another thread may be changing."""
    while True:
        with contextlib.suppress(RuntimeError):  # it was changed between two steps
            return next(iter(numbers), default)


def last(numbers: Reversible[int]) -> int:
    """The last key of a dict that another thread may be changing; 0 if the dict is empty."""
    while True:
        with contextlib.suppress(RuntimeError):
            return next(reversed(numbers), 0)
