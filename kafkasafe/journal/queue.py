"""The queue of one partition's unfinished batches: the first batches as objects, later batches packed into a few bytes
each.

A long outage leaves many batches. The state of a batch that is on disk and was never sent fits into a few bytes. A
`PartitionQueue` has three parts: the near batches, which are sent next; the packed batches; and the fresh batches,
which the journal accepted later, and which may not be on disk yet. Only near batches may have been sent.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final

from kafkasafe.history.identity import BatchId
from kafkasafe.journal.batch import Batch, BatchState

_ROW: Final = struct.Struct("=qqqIIiid")
_BLOCK_BYTES: Final = 128 * _ROW.size
_FORMER: Final = 1 << 31
_FASTEST: Final = 1


@dataclass(frozen=True, slots=True)
class BacklogRow:
    """A packed batch.

    Attributes:
        number: The engine's number for the batch.
        position: Position in the spool.
        max_timestamp: Ms since the epoch.
        count: Number of records.
        size_bytes: Size of the whole batch.
        identity: (producer id, epoch, base sequence), None while the batch has no id.
        sealed_at: When the engine accepted the batch (seconds), for the engine's own use.
        former_life: Recovery read the batch, which an earlier incarnation wrote.
    """

    number: int
    position: int
    max_timestamp: int
    count: int
    size_bytes: int
    identity: tuple[int, int, int] | None
    sealed_at: float
    former_life: bool = False


class PackedRows:
    """The packed batches of a queue, as rows: first in, first out. Compressed blocks of rows take about 13 bytes per
    row.

    Attributes:
        count: How many batches are packed.
        records: How many records are in the packed batches.
        with_id: How many packed batches have an id.
        identified: Whether the last packed batch has an id.
    """

    __slots__ = (
        "_at",
        "_blocks",
        "_fresh",
        "_front",
        "_ids",
        "_sizes",
        "_void",
        "count",
        "identified",
        "records",
        "with_id",
    )

    def __init__(self) -> None:
        # `_front` is the uncompressed block at the front, with its first unread row at `_at`. `_blocks` are the later,
        # compressed blocks. `_fresh` has the newest rows.
        self._front = b""
        self._at = 0
        self._blocks: deque[bytes] = deque()
        self._fresh = bytearray()
        # For each block: the position of the block's first row, and the total size in bytes of the batches in the
        # block.
        self._sizes: deque[list[int]] = deque()
        self._void = False
        # The (producer id, epoch) pairs of the rows: consecutive rows with the same pair share an entry. A row stores
        # an index into this list, or -1 for no id.
        self._ids: list[tuple[int, int]] = []
        self.count = 0
        self.records = 0
        self.with_id = 0
        self.identified = False

    def push(self, row: BacklogRow) -> None:
        """Add a row at the end."""
        owner, sequence = -1, -1
        if row.identity is not None:
            producer_id, epoch, sequence = row.identity
            if not self._ids or self._ids[-1] != (producer_id, epoch):
                self._ids.append((producer_id, epoch))
            owner = len(self._ids) - 1
        if not self._fresh:
            self._sizes.append([row.position, 0])
        self._fresh += _ROW.pack(
            row.number,
            row.position,
            row.max_timestamp,
            row.count | (_FORMER if row.former_life else 0),
            row.size_bytes,
            owner,
            sequence,
            row.sealed_at,
        )
        self._sizes[-1][1] += row.size_bytes
        if len(self._fresh) >= _BLOCK_BYTES:
            self._blocks.append(_squeezed(self._fresh))
            self._fresh = bytearray()
        self.count += 1
        self.records += row.count
        self.with_id += row.identity is not None
        self.identified = row.identity is not None

    def first(self) -> BacklogRow | None:
        """The first row, or None."""
        return self._read() if self.count else None

    def _read(self) -> BacklogRow:
        if not self._front:
            if self._blocks:
                self._front = _whole(self._blocks.popleft())
            else:
                self._front, self._fresh = bytes(self._fresh), bytearray()
        return self._row(_ROW.unpack_from(self._front, self._at))

    def _row(self, fields: tuple[Any, ...]) -> BacklogRow:
        number, position, stamp, count, size, owner, sequence, at = fields
        identity = None if owner < 0 or self._void else (*self._ids[owner], sequence)
        return BacklogRow(
            number, position, stamp, count & ~_FORMER, size, identity, at, bool(count & _FORMER)
        )

    def shift(self) -> BacklogRow:
        """Take the first row. The caller must pass the row's batch to `PartitionQueue.put_back` before it makes any
        other call.
        """
        row = self._read()
        self._at += _ROW.size
        self._sizes[0][0] = row.position
        self._sizes[0][1] -= row.size_bytes
        if self._at >= len(self._front):
            self._sizes.popleft()
            self._front, self._at = b"", 0
        self.count -= 1
        self.records -= row.count
        self.with_id -= row.identity is not None
        return row

    def has(self, position: int) -> bool:
        """Whether the batch at this position is packed."""
        return self.at(position) is not None

    def at(self, position: int) -> BacklogRow | None:
        """The row of the packed batch at this position; None if no batch there is packed."""
        index = bisect_right(self._sizes, position, key=itemgetter(0)) - 1
        if index < 0:
            return None
        if self._front:
            index -= 1
        if index < 0:
            rows: bytes | bytearray = self._front[self._at :]
        else:
            rows = _whole(self._blocks[index]) if index < len(self._blocks) else self._fresh
        found = next((row for row in _ROW.iter_unpack(rows) if row[1] == position), None)
        return None if found is None else self._row(found)

    def rows(self) -> Iterator[BacklogRow]:
        """All rows, in order. They stay packed."""
        for rows in chain((self._front[self._at :],), map(_whole, self._blocks), (bytes(self._fresh),)):
            yield from map(self._row, _ROW.iter_unpack(rows))

    def sizes(self) -> Iterator[tuple[int, int]]:
        """(position of the first batch, bytes of all batches) for each block of consecutive rows. The blocks cover all
        rows.
        """
        return ((position, size) for position, size in self._sizes)

    def forget_identities(self) -> None:
        """Make the ids of all packed batches void."""
        self._void = self.count > 0
        self.with_id = 0
        self.identified = False


def _squeezed(rows: bytearray) -> bytes:
    """Compress rows, transposed first: rows resemble each other, so transposing puts equal bytes side by side."""
    return zlib.compress(b"".join(rows[place :: _ROW.size] for place in range(_ROW.size)), _FASTEST)


def _whole(squeezed: bytes) -> bytes:
    """Decompress the rows."""
    columns = zlib.decompress(squeezed)
    count = len(columns) // _ROW.size
    return b"".join(columns[row::count] for row in range(count))


_NOTHING: Final = PackedRows()
"""An empty object that is the value of `packed` in all queues without packed batches."""


class PartitionQueue:
    """The unfinished batches of one partition, in three parts (see the module). Positions and numbers of packed batches
    ascend.

    Invariant: batches that are SENT, ACKED or REFUSED are among the first `window` batches.

    Attributes:
        near: The first batches. Only the queue's methods change it.
        packed: The packed batches, which follow the near ones.
    """

    __slots__ = ("_fresh", "near", "packed")

    def __init__(self) -> None:
        self.near: deque[Batch] = deque()
        self.packed = _NOTHING
        self._fresh: deque[Batch] = deque()

    def __len__(self) -> int:
        return len(self.near) + self.packed.count + len(self._fresh)

    def __bool__(self) -> bool:
        return bool(self.near or self.packed.count or self._fresh)

    def __repr__(self) -> str:
        return f"PartitionQueue({list(self.near)}, {self.packed.count} packed, {list(self._fresh)})"

    @property
    def first(self) -> Batch | None:
        """The first batch, None if the queue is empty. Any thread may call it."""
        try:
            return self.near[0]
        except IndexError:
            return None

    def all(self) -> Iterable[Batch]:
        """All batches that are not packed, in queue order: the near batches, then the batches after the packed ones."""
        return chain(self.near, self._fresh)

    def identities(self) -> Iterator[BatchId]:
        """The ids of all batches with an id, in queue order. Packed batches stay packed."""
        near = (batch.identity for batch in self.near)
        packed = (row.identity and BatchId(*row.identity, row.count) for row in self.packed.rows())
        fresh = (batch.identity for batch in self._fresh)
        return (identity for identity in chain(near, packed, fresh) if identity is not None)

    def backwards(self) -> Iterator[Batch]:
        """The same as `all`, last batch first."""
        return chain(reversed(self._fresh), reversed(self.near))

    def copy(self) -> list[Batch]:
        """The same as `all`, as a list. Any thread may call it."""
        return [*self.near.copy(), *self._fresh.copy()]

    def append(self, batch: Batch) -> None:
        """Add a batch at the end."""
        (self._fresh if self.packed.count else self.near).append(batch)

    def appendleft(self, batch: Batch) -> None:
        """Add a batch at the beginning."""
        self.near.appendleft(batch)

    def insert(self, place: int, batch: Batch) -> None:
        """Insert a batch at this index in `near`."""
        self.near.insert(place, batch)

    def remove(self, batch: Batch) -> bool:
        """Remove a batch. Returns whether the batch was the first in the queue."""
        if self.near and self.near[0] is batch:
            self.near.popleft()
            return True
        try:
            self.near.remove(batch)
        except ValueError:
            self._fresh.remove(batch)
        return False

    # -- packed batches ------------------------------------------------------------------------------------------------

    def candidates(self, keep: int) -> Iterator[Batch]:
        """The batches that may be packed next, in queue order, without the first `keep` batches of the queue."""
        if self.packed.count:
            yield from self._fresh
        else:
            yield from islice(self.near, keep, None)

    def pack(self, rows: Iterable[BacklogRow], keep: int) -> None:
        """Replace the first batches that `candidates` yields with these rows. Each row replaces one batch."""
        if not self.packed.count:
            self.packed = PackedRows()
            self._fresh.extendleft(self.near.pop() for _ in range(len(self.near) - keep))
        for row in rows:
            self._fresh.popleft()
            self.packed.push(row)
        self._tidy()

    def put_back(self, batch: Batch) -> None:
        """Append the batch of the first packed row to the near batches."""
        self.near.append(batch)
        self._tidy()

    def _tidy(self) -> None:
        if not self.packed.count:
            self.packed = _NOTHING
            self.near += self._fresh
            self._fresh.clear()

    # -- the states of the near batches --------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """How many batches were sent and have no answer yet."""
        return sum(batch.state is BatchState.SENT for batch in self.near)

    @property
    def has_in_flight(self) -> bool:
        """Whether a batch was sent and has no answer yet."""
        return any(batch.state is BatchState.SENT for batch in self.near)

    @property
    def head(self) -> Batch | None:
        """The first batch that is not acknowledged."""
        return next((batch for batch in self.near if batch.state is not BatchState.ACKED), None)

    @property
    def ids_reach_end(self) -> bool:
        """Whether the last batch, which may be packed, has an id; True for an empty queue."""
        if self.packed.count and not self._fresh:
            return self.packed.identified
        last = next(self.backwards(), None)
        return last is None or last.identity is not None

    @property
    def has_doubt(self) -> bool:
        """Whether a batch is in doubt."""
        return any(batch.state is BatchState.IN_DOUBT for batch in self.near)

    @property
    def doubt(self) -> list[Batch]:
        """The batches in doubt, in queue order, up to the first batch that has another producer id or epoch."""
        doubt: list[Batch] = []
        for batch in self.near:
            if batch.state is BatchState.IN_DOUBT and batch.identity is not None:
                first = doubt[0].identity if doubt else batch.identity
                if first is not None and first.producer != batch.identity.producer:
                    break
                doubt.append(batch)
        return doubt

    def follows_failure(self, batch: Batch) -> bool:
        """Whether there is an earlier batch in the queue that the broker did not append. Such a batch explains a
        sequence gap before this batch.
        """
        return self._has_before(batch, frozenset({BatchState.PREPARED, BatchState.REFUSED}))

    def explains_gap(self, batch: Batch) -> bool:
        """Whether an earlier batch that was refused, or is still to be sent, may explain the sequences that the leader
        lacks.
        """
        return self._has_before(
            batch, frozenset({BatchState.SEALED, BatchState.PREPARED, BatchState.REFUSED})
        )

    def _has_before(self, batch: Batch, states: frozenset[BatchState]) -> bool:
        for earlier in self.near:
            if earlier is batch:
                return False
            if earlier.state in states:
                return True
        return False
