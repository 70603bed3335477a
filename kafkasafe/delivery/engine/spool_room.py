"""How much room the spool has for more records, and why it has none."""

from __future__ import annotations

from typing import Final

from kafkasafe.config import ProducerConfig
from kafkasafe.delivery.engine.guard import Guard
from kafkasafe.delivery.engine.undurable_parcels import UndurableParcels
from kafkasafe.errors import Limit
from kafkasafe.limits.capacity import FREE_BYTES, Capacity

__all__ = ["BACKLOG_BYTES", "SpoolRoom"]

BACKLOG_BYTES: Final = 32 * 1024 * 1024
"""Bytes that may wait to be written."""


class SpoolRoom:
    """The state of the disk, as the engine saw it last. Any thread may read it. It does not access the disk."""

    def __init__(self, config: ProducerConfig, guard: Guard, undurable: UndurableParcels) -> None:
        self._config = config
        self._guard = guard
        self._undurable = undurable
        self.used = 0
        """Bytes that the producer's own lane takes on disk."""
        self.free: float = float("inf")
        """Free bytes of the disk at the last measurement; infinite if they cannot be measured."""
        self.disk_trouble = ""
        """Why nothing becomes durable for now; empty while the disk works."""
        self.disk_full = False
        """Whether the disk trouble is a lack of space."""

    def disk_failed(self, why: str, *, full: bool = False) -> None:
        """Record that accepted records cannot become durable for now; `full`: for lack of space."""
        self.disk_full = full
        self.disk_trouble = why

    def disk_works(self) -> None:
        """Record that a group was written and is durable."""
        self.disk_trouble = ""

    def publish_used(self, used: int, *, more_room: bool) -> None:
        """Publish the size of the producer's own lane, and wake callers that wait for space if there is more of it."""
        if used == self.used and not more_room:
            return
        with self._guard.lock:
            more_room = more_room or used < self.used
            self.used = used
        if more_room and self._guard.waiters:
            self._guard.waiters.notify_all()

    def measure_free(self, free: float) -> bool:
        """Note the disk's free bytes, infinite if they cannot be measured. Returns whether they grew."""
        before, self.free = self.free, free
        return free > before

    def takes(self, needed: int) -> bool:
        """Whether `needed` more bytes can be accepted now. Call with the ledger's lock held."""
        return self.capacity.takes(needed)

    @property
    def capacity(self) -> Capacity:
        """The capacity of the producer's own lane, as it was a moment ago."""
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
        """Bytes that count against `spool_max_bytes`: those of the spool on disk, or with `spool="never"` the pending
        ones.
        """
        return self._undurable.size_bytes if self._config.in_memory else self.used

    def lacks(self, needed: int) -> tuple[Limit, str]:
        """The limit that leaves no space for `needed` more bytes, and a text for humans."""
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
