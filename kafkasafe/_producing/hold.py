"""The producers of this process, as others know them: their pumps, the end of the process, a fork.

What the producers of a process share is here, and nothing of a single one but its `Hold`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from kafkasafe._core.patience import Patience
from kafkasafe._io.engine.parcels import Indexes
from kafkasafe._io.pump import Pump
from kafkasafe.errors import ForkedProcessError

if TYPE_CHECKING:
    from kafkasafe._producing.closing import Closing

__all__ = [
    "DROPPED",
    "DROPPED_IDLE_S",
    "LIVE",
    "PRODUCERS",
    "SUCCEEDED",
    "Hold",
    "await_dropped",
    "exit_hook",
    "goes_first",
    "goes_live",
]

DROPPED_IDLE_S: Final = 1.0
"""How long a producer that was dropped is waited for, and it for the next delivery when another is opened on its
directory."""
_DROPPED_MOST_S: Final = 300.0

LIVE: dict[Pump, str] = {}
"""Pumps of producers that accept records, and the directories of their spools; of none without a directory."""
PRODUCERS: weakref.WeakSet[Closing] = weakref.WeakSet()
DROPPED: dict[Pump, str] = {}
"""Pumps of producers that were dropped without `close()`, until their end, and the directories of their spools."""
SUCCEEDED: set[Pump] = set()
"""Those of them whose lanes a new producer takes over."""


class Hold:
    """A producer as its pump knows it: the application's, which may drop it; then the pump's until the end."""

    def __init__(self, producer: Closing) -> None:
        self._seen = weakref.ref(producer)
        self._kept: Closing | None = None

    def keep(self, producer: Closing | None) -> None:
        self._kept = producer

    def keeps(self) -> bool:
        return self._kept is not None

    def _producer(self) -> Closing | None:
        return self._kept or self._seen()

    def seal_due(self, now: float) -> float:
        producer = self._producer()
        # While it is being collected: soon.
        return now + 0.01 if producer is None else producer._seal_due(now)

    def on_topic(self, topic: str, partitions: int) -> None:
        producer = self._producer()
        if producer is not None:
            producer._on_topic(topic, partitions)

    def choose(
        self, topic: str, partitions: int, keys: Sequence[bytes | None], values: Sequence[bytes | None]
    ) -> Indexes:
        while (producer := self._producer()) is None:
            time.sleep(0.001)  # the garbage collector is about to keep it
        return producer._choose(topic, partitions, keys, values)

    def let_go(self) -> contextlib.AbstractContextManager[None]:
        producer = self._producer()
        return contextlib.nullcontext() if producer is None else producer._let_go()


def goes_live(pump: Pump, path: str) -> None:
    """A producer accepts records from now on. It comes after those that were dropped while it was made."""
    LIVE[pump] = path
    # In this order: one that is dropped from now on sees this one.
    for other, directory in DROPPED.copy().items():
        if directory == path:
            pump.come_after(other)


def goes_first(pump: Pump, path: str) -> None:
    """A producer is dropped: it accepts nothing more, and what it accepted goes before what others send from now on.

    Takes no lock: the garbage collector may call. May be called again, for those that went live since.
    """
    LIVE.pop(pump, None)
    for other, directory in LIVE.copy().items():
        if directory == path:
            other.come_after(pump)


def await_dropped(spool_dir: os.PathLike[str]) -> None:
    """Producers on the same directory that were dropped end first: what they accepted comes before anything newer.

    What they cannot deliver soon is taken over with their lanes.
    """
    path = os.path.realpath(spool_dir)
    for pump, directory in list(DROPPED.items()):
        if directory == path and not pump.is_current_thread():
            SUCCEEDED.add(pump)
            pump.hurry(Patience(DROPPED_IDLE_S, 0.0), _DROPPED_MOST_S)


def exit_hook(reference: weakref.ref[Closing]) -> Callable[[], None]:
    def close() -> None:
        producer = reference()
        if producer is not None:
            with contextlib.suppress(Exception):
                producer._close(None, Patience(producer._idle_s, 0.0))

    return close


@atexit.register
def _await_all_dropped() -> None:
    for pump in list(DROPPED):
        pump.join(_DROPPED_MOST_S)


def _forked() -> None:
    LIVE.clear()
    DROPPED.clear()
    SUCCEEDED.clear()
    # All are kept alive meanwhile: one that ended in here, before it is marked, would end as the parent's does.
    for producer in list(PRODUCERS):
        producer._closed = ForkedProcessError(
            "This producer was opened before os.fork(): the parent process owns it and delivers what it accepted. Open"
            " a new SafeProducer in the child"
        )
        producer._new_lock()
        producer._chunks = {}
        producer._units = {}
        producer._pump.forked(producer._closed)
        producer._callbacks = producer._callback_thread()


os.register_at_fork(after_in_child=_forked)
