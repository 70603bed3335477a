"""The unfinished batches of one partition, in order: the first ones as objects, later ones packed.

A long outage leaves many batches, and the state of one that is on disk and was never sent fits into a few bytes. So a
`Backlog` has three parts: the head, which is sent next; the packed batches; and the batches accepted since, some of
which are not on disk yet. While batches are packed, iteration covers only the head: no later batch was ever sent.

`PartitionQueue` knows which batches are in flight, and which are in doubt. `Ordered` is a dict that knows its least
key, regardless of the order of insertion.
"""

from __future__ import annotations

import heapq
import struct
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Final, Generic, SupportsIndex, TypeVar

from kafkasafe.journal.batch import Batch, BatchState, id_fields

__all__ = ["Backlog", "BacklogRow", "Ordered", "PartitionQueue"]

B = TypeVar("B")
_ROW: Final = struct.Struct("=qqqIIiid")
_BLOCK_BYTES: Final = 128 * _ROW.size
_FORMER: Final = 1 << 31
_FASTEST: Final = 1


@dataclass(frozen=True, slots=True)
class BacklogRow:
    """A packed batch.

    Attributes:
        number: The shell's number for it.
        position: In the spool.
        max_timestamp: Ms since the epoch.
        count: Records.
        size_bytes: Total size.
        identity: (producer id, epoch, base sequence), None while it has none.
        sealed_at: Time at which the batch was accepted, seconds, for the shell.
        former_life: Recovery read the batch: an earlier incarnation wrote it.
    """

    number: int
    position: int
    max_timestamp: int
    count: int
    size_bytes: int
    identity: tuple[int, int, int] | None
    sealed_at: float
    former_life: bool = False


class _Packed:
    """Rows, first in, first out; compressed in blocks, to about 13 bytes per row."""

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
        # `_front` is the block being read, from `_at` on; `_blocks` are the compressed blocks after it; `_fresh` grows.
        self._front = b""
        self._at = 0
        self._blocks: deque[bytes] = deque()
        self._fresh = bytearray()
        # For each block: the position of its first row, and the bytes of all batches in it.
        self._sizes: deque[list[int]] = deque()
        self._void = False
        # (producer id, epoch) pairs: there are few, so a row stores an index into this list, or -1 for no id.
        self._ids: list[tuple[int, int]] = []
        self.count = 0
        self.records = 0
        self.with_id = 0
        self.identified = False
        """Whether the last one has an id."""

    def push(self, row: BacklogRow) -> None:
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

    def first(self) -> BacklogRow:
        if not self._front:
            if self._blocks:
                self._front = _whole(self._blocks.popleft())
            else:
                self._front, self._fresh = bytes(self._fresh), bytearray()
        number, position, stamp, count, size, owner, sequence, at = _ROW.unpack_from(self._front, self._at)
        identity = None if owner < 0 or self._void else (*self._ids[owner], sequence)
        return BacklogRow(
            number, position, stamp, count & ~_FORMER, size, identity, at, bool(count & _FORMER)
        )

    def shift(self) -> BacklogRow:
        row = self.first()
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
        index = bisect_right(self._sizes, position, key=itemgetter(0)) - 1
        if index < 0:
            return False
        if self._front:
            index -= 1
        if index < 0:
            rows: bytes | bytearray = self._front[self._at :]
        else:
            rows = _whole(self._blocks[index]) if index < len(self._blocks) else self._fresh
        return any(row[1] == position for row in _ROW.iter_unpack(rows))

    def sizes(self) -> Iterator[tuple[int, int]]:
        return ((position, size) for position, size in self._sizes)

    def forget_identities(self) -> None:
        self._void = True
        self.with_id = 0
        self.identified = False


def _squeezed(rows: bytearray) -> bytes:
    """Compress rows. Rows resemble each other, so they are transposed first: equal bytes then stand side by side."""
    return zlib.compress(b"".join(rows[place :: _ROW.size] for place in range(_ROW.size)), _FASTEST)


def _whole(squeezed: bytes) -> bytes:
    """Decompress the rows."""
    columns = zlib.decompress(squeezed)
    count = len(columns) // _ROW.size
    return b"".join(columns[row::count] for row in range(count))


class Backlog(Generic[B]):
    """The queue of a partition; see the module. Positions and numbers of packed batches ascend."""

    __slots__ = ("_fresh", "_head", "_packed")

    def __init__(self) -> None:
        self._head: deque[B] = deque()
        self._fresh: deque[B] = deque()
        self._packed: _Packed | None = None

    def __len__(self) -> int:
        return len(self._head) + self.packed + len(self._fresh)

    def __bool__(self) -> bool:
        return bool(self._head or self._packed is not None or self._fresh)

    def __iter__(self) -> Iterator[B]:
        return iter(self._head)

    def __getitem__(self, index: SupportsIndex) -> B:
        return self._head[index]

    def __repr__(self) -> str:
        return f"Backlog({list(self._head)}, {self.packed} packed, {list(self._fresh)})"

    @property
    def unpacked(self) -> int:
        """How many batches the head has."""
        return len(self._head)

    @property
    def packed(self) -> int:
        """How many batches are packed."""
        return 0 if self._packed is None else self._packed.count

    @property
    def packed_records(self) -> int:
        """How many records the packed batches have."""
        packed = self._packed
        return 0 if packed is None else packed.records

    @property
    def packed_with_id(self) -> int:
        """How many packed batches have an id."""
        return 0 if self._packed is None else self._packed.with_id

    def has_packed(self, position: int) -> bool:
        """Whether the batch at this position is packed."""
        return self._packed is not None and self._packed.has(position)

    @property
    def packed_sizes(self) -> Iterable[tuple[int, int]]:
        """(position of the first batch, bytes of all batches) for each run of packed batches. The runs cover all of
        them.
        """
        return () if self._packed is None else self._packed.sizes()

    @property
    def first_packed(self) -> BacklogRow | None:
        """The first packed batch."""
        return None if self._packed is None else self._packed.first()

    @property
    def packed_identified(self) -> bool:
        """Whether the last packed batch has an id."""
        return self._packed is not None and self._packed.identified

    @property
    def first(self) -> B | None:
        """The first batch, None if the head is empty. From any thread."""
        try:
            return self._head[0]
        except IndexError:
            return None

    @property
    def last(self) -> B | None:
        """The last batch, None if it is packed or the queue is empty."""
        if self._packed is not None:
            return self._fresh[-1] if self._fresh else None
        return self._head[-1] if self._head else None

    def all(self) -> Iterable[B]:
        """All batches that are not packed, in order: the head, and the batches after the packed ones."""
        return chain(self._head, self._fresh)

    def backwards(self) -> Iterator[B]:
        """The same as `all`, last batch first."""
        return chain(reversed(self._fresh), reversed(self._head))

    def copy(self) -> list[B]:
        """The same as `all`, as a list. From any thread."""
        return [*self._head.copy(), *self._fresh.copy()]

    def append(self, batch: B) -> None:
        """Add a batch at the end."""
        (self._head if self._packed is None else self._fresh).append(batch)

    def appendleft(self, batch: B) -> None:
        """Add a batch at the beginning."""
        self._head.appendleft(batch)

    def popleft(self) -> B:
        """Remove and return the first batch."""
        return self._head.popleft()

    def insert(self, place: int, batch: B) -> None:
        """Insert a batch into the head, at the given index. `index` returns such an index."""
        self._head.insert(place, batch)

    def index(self, batch: B) -> int:
        """The batch's index in the head."""
        return self._head.index(batch)

    def remove(self, batch: B) -> None:
        """Remove a batch."""
        try:
            self._head.remove(batch)
        except ValueError:
            self._fresh.remove(batch)

    def candidates(self, keep: int) -> Iterator[B]:
        """The batches that may be packed next, in order, except the first `keep` batches."""
        if self._packed is not None:
            yield from self._fresh
        else:
            yield from islice(self._head, keep, None)

    def pack(self, rows: Iterable[BacklogRow], keep: int) -> None:
        """Replace the first batches of `candidates` with these rows, one row for each."""
        packed = self._packed
        if packed is None:
            packed = self._packed = _Packed()
            self._fresh.extendleft(self._head.pop() for _ in range(len(self._head) - keep))
        for row in rows:
            self._fresh.popleft()
            packed.push(row)
        self._tidy()

    def unpack(self) -> BacklogRow:
        """Take the first packed batch. The caller passes it to `put_back` before it calls any other method."""
        if self._packed is None:
            raise IndexError("Nothing is packed")
        return self._packed.shift()

    def put_back(self, batch: B) -> None:
        """Add an unpacked batch at the end of the head."""
        self._head.append(batch)
        self._tidy()

    def _tidy(self) -> None:
        if self._packed is not None and not self._packed.count:
            self._packed = None
            self._head += self._fresh
            self._fresh.clear()

    def forget_identities(self) -> None:
        """Void the ids of all packed batches."""
        if self._packed is not None:
            self._packed.forget_identities()


V = TypeVar("V")


class Ordered(dict[int, V]):
    """See the module. Only `[...] =`, `pop` and `clear` change it; `least` can be read from any thread."""

    __slots__ = ("_heap", "least")

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[int] = []
        self.least: int | None = None
        """The least key, None while the dict is empty."""

    def __setitem__(self, key: int, value: V) -> None:
        if key not in self:
            heapq.heappush(self._heap, key)
        super().__setitem__(key, value)
        # A signal handler may have interrupted this method, and waited until another thread removed all keys.
        self.least = next(iter(self._heap), None)

    def pop(self, key: int, default: V | None = None) -> V | None:  # type: ignore[override]  # never raises
        """Remove a key and return its value, or `default` if the key is missing."""
        value = super().pop(key, default)
        heap = self._heap
        if len(heap) > 2 * len(self) + 64:
            heap[:] = list(self)
            heapq.heapify(heap)
        while heap and heap[0] not in self:
            heapq.heappop(heap)
        self.least = heap[0] if heap else None
        return value

    def clear(self) -> None:
        """Remove all keys."""
        super().clear()
        self._heap.clear()
        self.least = None


class PartitionQueue(Backlog[Batch]):
    """Invariant: batches that are SENT, ACKED or REFUSED are among the first `window` ones."""

    __slots__ = ()

    @property
    def in_flight(self) -> int:
        """How many batches were sent and have no answer yet."""
        return sum(batch.state is BatchState.SENT for batch in self)

    @property
    def has_in_flight(self) -> bool:
        """Whether a batch was sent and has no answer yet."""
        return any(batch.state is BatchState.SENT for batch in self)

    @property
    def head(self) -> Batch | None:
        """The first batch that is not acknowledged."""
        return next((batch for batch in self if batch.state is not BatchState.ACKED), None)

    @property
    def last_has_id(self) -> bool:
        """Whether the last batch, which may be packed, has an id."""
        last = self.last
        return self.packed_identified if last is None else last.identity is not None

    @property
    def has_doubt(self) -> bool:
        """Whether a batch is in doubt."""
        return any(batch.state is BatchState.IN_DOUBT for batch in self)

    @property
    def doubt(self) -> list[Batch]:
        """The first batches in doubt that have the same producer id and epoch."""
        doubt: list[Batch] = []
        for batch in self:
            if batch.state is BatchState.IN_DOUBT and batch.identity is not None:
                first = doubt[0].identity if doubt else batch.identity
                if first is not None and id_fields(first)[:2] != id_fields(batch.identity)[:2]:
                    break
                doubt.append(batch)
        return doubt

    def follows_failure(self, batch: Batch) -> bool:
        """Whether a batch before this one was not appended. A sequence gap then does not indicate a loss."""
        return self._has_before(batch, frozenset({BatchState.PREPARED, BatchState.REFUSED}))

    def explains_gap(self, batch: Batch) -> bool:
        """Whether the sequences that the leader lacks may belong to an earlier batch that is refused or still to be
        sent.
        """
        return self._has_before(
            batch, frozenset({BatchState.SEALED, BatchState.PREPARED, BatchState.REFUSED})
        )

    def _has_before(self, batch: Batch, states: frozenset[BatchState]) -> bool:
        for earlier in self:
            if earlier is batch:
                return False
            if earlier.state in states:
                return True
        return False
