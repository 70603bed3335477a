"""The lanes of other producers that `flush` and `close` wait for."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path

from kafkasafe.delivery.engine.waits import Guard

__all__ = ["AwaitedLanes"]


class AwaitedLanes:
    """See the module. The engine changes it; any thread may read it."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._left_behind: set[int] = set()
        self._adopted: set[Path] = set()
        self._seeks_siblings = False

    @property
    def left_behind(self) -> AbstractSet[int]:
        """Lanes without an owner that held unfinished records when this producer began, and still do."""
        return self._left_behind

    def expect(self, numbers: Iterable[int]) -> None:
        """Note lanes of earlier producers that hold unfinished records and have no owner."""
        with self._guard.lock:
            self._left_behind.update(numbers)

    def settle(self, number: int) -> None:
        """Record that a lane is drained, or has another owner."""
        if number in self._left_behind:
            with self._guard.lock:
                self._left_behind.discard(number)
                self._guard.waiters.notify_all()

    def seek_siblings(self, *, on: bool) -> None:
        """Note whether directories beside this producer's may hold records for it to adopt."""
        with self._guard.lock:
            self._seeks_siblings = on
            self._guard.waiters.notify_all()

    def adopt(self, lane: Path) -> None:
        """Record that this producer reads and then delivers the lane of a producer that ended."""
        with self._guard.lock:
            self._adopted.add(lane)

    def forget(self, lane: Path) -> None:
        """Record that an adopted lane is delivered, cannot be read, or has another owner."""
        with self._guard.lock:
            self._adopted.discard(lane)
            self._guard.waiters.notify_all()

    @property
    def is_empty(self) -> bool:
        """Whether no lane holds unfinished records, and no other directory can hold records to adopt."""
        return not self._left_behind and not self._seeks_siblings and not self._adopted
