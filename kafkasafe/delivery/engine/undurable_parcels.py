"""The accepted parcels that are not on disk yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from kafkasafe.cluster.api import Clock
from kafkasafe.delivery.engine.parcels import Parcel, first, last

__all__ = ["UndurableParcels"]


class UndurableParcels:
    """See the module. `Ledger` changes it, with its lock held; any thread may read it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_number: OrderedDict[int, Parcel] = OrderedDict()
        self.size_bytes = 0
        """Their bytes."""

    def __len__(self) -> int:
        return len(self._by_number)

    def values(self) -> Collection[Parcel]:
        """The parcels, the oldest first."""
        return self._by_number.values()

    def add(self, parcel: Parcel) -> None:
        """Add a parcel, unless it is here."""
        if parcel.number not in self._by_number:
            self._by_number[parcel.number] = parcel
            self.size_bytes += parcel.size_bytes

    def remove(self, parcel: Parcel) -> bool:
        """Remove a parcel. Return whether it was here."""
        if self._by_number.pop(parcel.number, None) is None:
            return False
        self.size_bytes -= parcel.size_bytes
        return True

    def clear(self) -> None:
        """Forget all parcels, at the end of the producer."""
        self._by_number.clear()

    def spooled(self, number: int) -> bool:
        """Whether every parcel up to this number is durable."""
        return first(self._by_number, number + 1) > number

    def last_number(self) -> int:
        """Number of the newest parcel that is not durable."""
        return last(self._by_number)

    def records(self, number: int) -> int:
        """Records that are not on disk, nor in the cluster, in parcels up to this number."""
        waiting = list(self._by_number.values())
        return sum(p.count for p in waiting if p.number <= number and not p.done)

    def age_s(self) -> float:
        """How long the oldest record has waited for the disk, seconds; 0 if none waits."""
        oldest = self._by_number.get(first(self._by_number, 0))
        return 0.0 if oldest is None else max(0.0, self._clock.monotonic() - oldest.sealed_at)
