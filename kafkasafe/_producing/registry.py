"""Registers this process's producers, for two purposes. Other producers on the same directory send their later records
only after the records of a dropped producer. And a forked child ends the producers that it inherited.
"""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Final, Protocol

from kafkasafe.delivery.pump import Pump
from kafkasafe.errors import ForkedProcessError
from kafkasafe.limits.patience import Patience

DROPPED_IDLE_S: Final = 1.0
"""`__del__` waits for the dropped producer's deliveries for at most this many seconds. If a new producer is opened on
the directory, the dropped producer ends after this many seconds without a delivery.
"""
_DROPPED_MOST_S: Final = 300.0


class Forked(Protocol):
    """An object that must end in a forked child."""

    def forked(self, error: BaseException) -> None:
        """End this object in a forked child: all further calls raise this error."""


LIVE: dict[Pump, str] = {}
"""The spool directory of each producer that accepts records, by the producer's pump. Producers without a directory are
left out.
"""
PRODUCERS: weakref.WeakKeyDictionary[object, weakref.ref[Forked]] = weakref.WeakKeyDictionary()
"""Maps each open producer to the object that ends the producer in a forked child. Both references are weak, because the
object may refer to the producer.
"""
DROPPED: dict[Pump, str] = {}
"""For each pump that still runs although its producer was dropped without `close()`: the spool directory."""
SUCCEEDED: set[Pump] = set()
"""The pumps in `DROPPED` whose lanes a new producer takes over."""


def goes_live(pump: Pump, path: str) -> None:
    """Register a producer that accepts records from now on. If dropped producers on the same directory still have
    records, the new producer sends its own records after them.
    """
    LIVE[pump] = path
    # Write `LIVE` before reading `DROPPED`. If another producer is dropped after this read, the other producer calls
    # `goes_first`, which finds this producer in `LIVE`.
    for other, directory in DROPPED.copy().items():
        if directory == path:
            pump.come_after(other)


def goes_first(pump: Pump, path: str) -> None:
    """Note that a producer is dropped. Other producers on the directory then send their later records only after the
    dropped producer's records.

    Takes no lock, because the garbage collector may call this function. May be called again, to include producers that
    were opened later.
    """
    LIVE.pop(pump, None)
    for other, directory in LIVE.copy().items():
        if directory == path:
            other.come_after(pump)


def await_dropped(spool_dir: os.PathLike[str]) -> None:
    """Wait for the end of dropped producers on the same directory, so that their records are sent before newer ones.

    If dropped producers cannot deliver all of their records soon, the new producer takes over their lanes with the
    remaining records.
    """
    path = os.path.realpath(spool_dir)
    for pump, directory in list(DROPPED.items()):
        if directory == path and not pump.is_current_thread():
            SUCCEEDED.add(pump)
            pump.set_patience(Patience(DROPPED_IDLE_S, 0.0), _DROPPED_MOST_S)


@atexit.register
def _await_all_dropped() -> None:
    for pump in list(DROPPED):
        pump.join(_DROPPED_MOST_S)


def _forked() -> None:
    LIVE.clear()
    DROPPED.clear()
    SUCCEEDED.clear()
    # The list keeps all producers alive until `forked` has been called for each producer. A producer that is
    # garbage-collected earlier would close itself as in the parent process.
    for _, reference in list(PRODUCERS.items()):
        ends = reference()
        if ends is not None:
            ends.forked(
                ForkedProcessError(
                    "This producer was opened before os.fork(): the parent process owns it and delivers its records."
                    " Open a new SafeProducer in the child"
                )
            )


os.register_at_fork(after_in_child=_forked)
