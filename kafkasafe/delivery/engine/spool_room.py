"""The accepted batches that are not on disk yet, and whether the spool has room for more."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Final

from kafkasafe.cluster.api import Clock
from kafkasafe.config import ProducerConfig
from kafkasafe.delivery.engine.parcels import Parcel, first, last
from kafkasafe.delivery.engine.waits import Guard
from kafkasafe.errors import Limit
from kafkasafe.limits.capacity import FREE_BYTES, Capacity

BACKLOG_BYTES: Final = 32 * 1024 * 1024
"""Bytes that may wait to be written."""


class UndurableParcels:
    """The accepted batches that are not on disk yet, as `Parcel` objects.

    `Ledger` changes this object, with the ledger's lock held. Any thread may read it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_number: OrderedDict[int, Parcel] = OrderedDict()
        self.size_bytes = 0
        """Total size of the batches."""

    def __len__(self) -> int:
        return len(self._by_number)

    def values(self) -> Collection[Parcel]:
        """The batches, the oldest first."""
        return self._by_number.values()

    def add(self, parcel: Parcel) -> None:
        """Add a batch, unless it was added before."""
        if parcel.number not in self._by_number:
            self._by_number[parcel.number] = parcel
            self.size_bytes += parcel.size_bytes

    def remove(self, parcel: Parcel) -> bool:
        """Remove a batch. Return whether the object contained it."""
        if self._by_number.pop(parcel.number, None) is None:
            return False
        self.size_bytes -= parcel.size_bytes
        return True

    def clear(self) -> None:
        """Forget all batches, at the end of the producer."""
        self._by_number.clear()

    def spooled(self, number: int) -> bool:
        """Whether every batch up to `number` is durable."""
        return first(self._by_number, number + 1) > number

    def last_number(self) -> int:
        """The number of the newest batch that is not durable; 0 if all batches are durable."""
        return last(self._by_number)

    def records(self, number: int) -> int:
        """How many records of the batches up to `number` are neither on disk nor in the cluster."""
        waiting = list(self._by_number.values())
        return sum(p.count for p in waiting if p.number <= number and not p.done)

    def age_s(self) -> float:
        """Number of seconds for which the oldest record has waited for the disk; 0 if no record waits."""
        oldest = self._by_number.get(first(self._by_number, 0))
        return 0.0 if oldest is None else max(0.0, self._clock.monotonic() - oldest.sealed_at)


class SpoolRoom:
    """The last known state of the disk. Any thread may read this object, which does not access the disk."""

    def __init__(self, config: ProducerConfig, guard: Guard, undurable: UndurableParcels) -> None:
        self._config = config
        self._guard = guard
        self._undurable = undurable
        self.used = 0
        """Bytes that the producer's own lane takes on disk."""
        self.free: float = float("inf")
        """Free bytes of the disk at the last measurement; infinite if the number is unknown."""
        self.disk_trouble = ""
        """Why accepted records cannot become durable; empty while the disk works."""
        self.disk_full = False
        """Whether `disk_trouble` is a lack of space."""

    def disk_failed(self, why: str, *, full: bool = False) -> None:
        """Note that accepted records cannot become durable for now. `full`: the reason is a lack of space."""
        self.disk_full = full
        self.disk_trouble = why

    def disk_works(self) -> None:
        """Note that the disk works again: a spool group was written and is durable."""
        self.disk_trouble = ""

    def publish_used(self, used: int, *, more_room: bool) -> None:
        """Publish the size of the producer's own lane. If there is more space than before, wake callers that wait for
        space.
        """
        if used == self.used and not more_room:
            return
        with self._guard.lock:
            more_room = more_room or used < self.used
            self.used = used
        if more_room and self._guard.waiters:
            self._guard.waiters.notify_all()

    def measure_free(self, free: float) -> bool:
        """Note the number of free bytes on the disk (infinity if unknown). Returns whether the number has grown."""
        before, self.free = self.free, free
        return free > before

    def takes(self, needed: int) -> bool:
        """Whether `needed` more bytes can be accepted now. Call with the ledger's lock held."""
        return self.capacity.takes(needed)

    @property
    def capacity(self) -> Capacity:
        """The capacity of the producer's own lane, from the last published sizes."""
        config = self._config
        backlog = self._undurable.size_bytes
        if config.in_memory:
            return Capacity(config.spool_max_bytes, 0, backlog)
        return Capacity(
            config.spool_max_bytes - config.spool_segment_bytes,
            self.used,
            backlog,
            max(BACKLOG_BYTES, 4 * config.max_record_bytes),
            self.free,
        )

    @property
    def kept_bytes(self) -> int:
        """Bytes that count against `spool_max_bytes`: the size of the spool on disk or, with `spool="never"`, of the
        pending batches.
        """
        return self._undurable.size_bytes if self._config.in_memory else self.used

    def lacks(self, needed: int) -> tuple[Limit, str]:
        """Why there is no space for `needed` more bytes: which limit prevents it, and an explanation for users."""
        config = self._config
        backlog = self._undurable.size_bytes
        limit: Limit = "spool_max_bytes"
        if config.in_memory:
            return limit, f"{backlog:,} bytes wait, and spool_max_bytes is {config.spool_max_bytes:,}"
        if self.disk_trouble:
            waiting = f"{backlog:,} bytes wait to be written"
            return (
                "volume" if self.disk_full else "disk",
                f"{waiting}, and the spool takes nothing for now: {self.disk_trouble}",
            )
        now = self.capacity
        if needed > now.spool_left:
            used = now.used_bytes + now.backlog_bytes
            return limit, f"{used:,} bytes are taken, spool_max_bytes is {config.spool_max_bytes:,}"
        if needed > now.volume_left:
            kept = f"{FREE_BYTES:,} are kept for what delivery needs"
            return "volume", f"the volume has {now.free_bytes:,.0f} bytes left, of which {kept}"
        return "disk", f"{backlog:,} bytes wait to be written, the disk does not keep up"
