"""What all parts of `Journal` stand on: its settings, its state, and what is said about one batch or one partition.

Nothing is decided in here that another room could decide: only what nearly all of them need.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from kafkasafe._core import units as u
from kafkasafe._core.journal.broker_clock import BrokerClock
from kafkasafe._core.journal.destinations import Destinations
from kafkasafe._core.journal.healing import Revivals
from kafkasafe._core.journal.home import Home
from kafkasafe._core.journal.missing import Missing
from kafkasafe._core.journal.outbox import Outbox
from kafkasafe._core.journal.partition import WINDOW
from kafkasafe._core.journal.precedence import Precedence
from kafkasafe._core.journal.quiescence import Quiescence
from kafkasafe._core.journal.replay import Replay
from kafkasafe._core.journal.sequences import IdSource
from kafkasafe._core.journal.snapshots import Snapshots
from kafkasafe._core.journal.spool_index import SpoolIndex
from kafkasafe._core.journal.turns import Turns

__all__ = ["Ground"]


class Ground:
    """Part of `Journal`: what is known, and small answers from it.

    Args:
        durable_first: Send only what is on disk (`spool="always"`). False: `spill()` says what has to go there.
        window: Batches sent without a durable commit mark, per partition.
        state_age_s: How long after a batch's own timestamp a broker surely remembers the producer.
        request_timeout_s: After this a request without an answer is dead.
        blocked_timeout_s: How long a destination may be missing, forbidden or invalid, timestamps be too far ahead, or
            the broker fail on one batch, before what waits for it is rejected; None: for ever. In this life, without
            another answer in between.
        missing_grace_s: How long a topic may be unknown to the cluster before that is told: it may be new.
        heal: Acknowledged batches that the cluster lost are sent again, as far as the spool still has them.
        heal_recreated: Also into a topic that was deleted and created again.
        aside_batches: How many batches are put aside at a time, at most.
        gather_bytes: Small batches that wait become one of this size at most; 0: never.
        newest_reading: See `units.Units`.
    """

    def __init__(
        self,
        *,
        durable_first: bool = True,
        window: int = WINDOW,
        state_age_s: float = 6 * 3600.0,
        request_timeout_s: float = 30.0,
        blocked_timeout_s: float | None = 7 * 86400.0,
        missing_grace_s: float = 60.0,
        heal: bool = True,
        heal_recreated: bool = False,
        aside_batches: int = 256,
        gather_bytes: int = 0,
        newest_reading: Callable[[], int] = lambda: 0,
    ) -> None:
        self._durable_first = durable_first
        self._gather_bytes = gather_bytes
        self._window = window
        self._clock = BrokerClock(state_age_s)
        self._request_timeout_s = request_timeout_s
        self._refused_timeout_s = blocked_timeout_s
        self._missing_grace_s = missing_grace_s
        self._heal = heal
        self._heal_recreated = heal_recreated
        self._aside_batches = aside_batches
        self._index = SpoolIndex()
        self._home = Home()
        self._destinations = Destinations()
        self._partitions = self._destinations.partitions
        self._handles = itertools.count(1)
        self._ids = IdSource()
        self._replay = Replay()
        self._precedence = Precedence()
        self._quiescence = Quiescence()
        self.missing = Missing()
        self._vacating: dict[int, None] = {}
        """Partitions that are surveyed as soon as nothing of a unit is on its way into them."""
        self._out = Outbox()
        self._revivals = Revivals()
        self._snapshots = Snapshots(
            self._destinations, self._home, self._precedence, self._ids, self._revivals
        )
        self.units = u.Units(
            Turns(self._destinations, self._precedence).is_in_front, newest_reading=newest_reading
        )

    def broker_clock(self, broker_ms: int, now_ms: int) -> bool:
        """A broker told the time, by a timestamp of its own.

        Brokers forget a producer by their clock. Where ours is behind, our batches are older for them than for us.

        Args:
            broker_ms: Its clock, ms since the epoch.
            now_ms: Ours.

        Returns:
            Whether ours is so far behind that brokers may forget us at any moment. Then each batch goes alone.
        """
        return self._clock.show(broker_ms, now_ms)

    def clock_at_least(self, at_least_ms: int) -> None:
        """Others' records say that it is as late as this (ms since the epoch). They may be wrong: be careful."""
        self._clock.show_at_least(at_least_ms)
