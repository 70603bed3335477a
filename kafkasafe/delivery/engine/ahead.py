"""Measures how far callers run ahead of the cluster, by passing their parcels to `limits/run_ahead.py`.

Only the pump's thread changes the counts, because a Ctrl-C in a caller could interrupt an addition and leave a wrong
sum. A caller only registers its parcels. Batches that earlier runs of the program left in the spool are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkasafe.cluster.api import Clock
from kafkasafe.delivery.engine.parcels import Parcel
from kafkasafe.limits.run_ahead import RunAhead

__all__ = ["Ahead"]


class Ahead:
    """Counts the bytes of parcels from `submit` until their fate is known.

    Call the methods with the ledger's lock held. Any thread may read `is_far` and `has_eased` without the lock.

    Args:
        limit_bytes: The option `run_ahead_bytes`. None: no caller ever waits.
        clock: Gives the monotonic time.
    """

    def __init__(self, limit_bytes: int | None, clock: Clock) -> None:
        self._clock = clock
        self._counts = None if limit_bytes is None else RunAhead(limit_bytes)
        self._untaken: dict[int, Parcel] = {}

    @property
    def is_far(self) -> bool:
        """Whether a sender should wait until more is delivered."""
        return self._counts is not None and self._counts.is_reached(self._untaken_bytes())

    @property
    def has_eased(self) -> bool:
        """Whether a waiting sender should continue."""
        return self._counts is None or self._counts.has_eased(self._untaken_bytes())

    def submit(self, parcel: Parcel) -> None:
        """Register a parcel that a caller submits. An interrupted caller may submit it twice."""
        self._untaken[parcel.number] = parcel

    def take(self, parcels: Iterable[Parcel]) -> None:
        """Count parcels that the pump has taken over."""
        now = self._clock.monotonic()
        for parcel in parcels:
            self._untaken.pop(parcel.number, None)
            if self._counts is not None and parcel.size_bytes and not parcel.done and not parcel.ahead:
                parcel.count_ahead(counted=True)
                self._counts.accepted((parcel.topic, parcel.partition), parcel.size_bytes, now)

    def withdraw(self, parcel: Parcel) -> None:
        """Release a parcel whose batch was packed, and so is not in memory."""
        if parcel.ahead and self._counts is not None:
            parcel.count_ahead(counted=False)
            self._counts.withdrawn((parcel.topic, parcel.partition), parcel.size_bytes)

    def finish(self, parcel: Parcel) -> None:
        """Release a parcel whose fate is known."""
        if parcel.ahead and self._counts is not None:
            parcel.count_ahead(counted=False)
            now = self._clock.monotonic()
            self._counts.answered((parcel.topic, parcel.partition), parcel.size_bytes, now)

    def expire(self) -> None:
        """Stop counting partitions that have not answered for a moment. Call it repeatedly while a sender waits."""
        if self._counts is not None:
            self._counts.expire(self._clock.monotonic())

    @property
    def silent(self) -> frozenset[tuple[str, int]]:
        """Partitions that are not counted, as of the last `expire`."""
        return frozenset() if self._counts is None else self._counts.silent

    def clear(self, parcels: Iterable[Parcel]) -> None:
        """Forget all parcels, at the end of the producer."""
        self._untaken.clear()
        for parcel in parcels:
            parcel.count_ahead(counted=False)
        if self._counts is not None:
            self._counts.clear()

    def _untaken_bytes(self) -> int:
        return sum(parcel.size_bytes for parcel in tuple(self._untaken.values()))
