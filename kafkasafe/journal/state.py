"""The settings of a journal, and the object that holds its whole state."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from kafkasafe import units as u
from kafkasafe.journal.destinations import WINDOW, Destinations
from kafkasafe.journal.healing import Revivals
from kafkasafe.journal.home import Home
from kafkasafe.journal.outbox import Outbox
from kafkasafe.journal.precedence import Precedence
from kafkasafe.journal.quiescence import Quiescence
from kafkasafe.journal.refusal import Missing
from kafkasafe.journal.replay import Replay
from kafkasafe.journal.spool_index import SpoolIndex
from kafkasafe.journal.window import BrokerClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one lane's journal.

    Attributes:
        durable_first: Send only batches that are on disk (`spool="always"`). False: batches outside units stay in
            memory until `spill()` is called for them, or for later batches of their queues.
        window: Maximum number of sent batches of a partition whose commit mark is not durable yet.
        state_age_s: For this many seconds after a batch's own timestamp, a broker is certain to keep the producer
            state.
        request_timeout_s: After this time, no broker can append an unanswered request any more.
        blocked_timeout_s: How long the journal waits before it rejects refused batches; None: for ever. Applies if the
            destination is missing, forbidden or invalid, if the timestamps are too far in the future, or if the broker
            fails on one particular batch. The time starts again in a new incarnation, after any other answer, and after
            a request without an answer.
        missing_grace_s: How long a topic may be unknown to the cluster, as new topics are for a moment, before a notice
            reports it.
        heal: Resend acknowledged batches that the cluster lost, if the spool still has them.
        heal_recreated: Resend lost batches even to a topic that was deleted and created again.
        aside_batches: At most this many rejected batches are in one portion that the engine copies to `rejected/`.
        gather_bytes: The journal merges small waiting batches into batches of at most this size; 0: never.
        newest_reading: See `units.Units`.
    """

    durable_first: bool = True
    window: int = WINDOW
    state_age_s: float = 6 * 3600.0
    request_timeout_s: float = 30.0
    blocked_timeout_s: float | None = 7 * 86400.0
    missing_grace_s: float = 60.0
    heal: bool = True
    heal_recreated: bool = False
    aside_batches: int = 256
    gather_bytes: int = 0
    newest_reading: Callable[[], int] = lambda: 0


class JournalState:
    """Holds the objects that own the state of a journal. All objects that make decisions share one `JournalState`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.handles = itertools.count(1)
        self.destinations = Destinations()
        self.out = Outbox()
        self.index = SpoolIndex()
        self.home = Home()
        self.replay = Replay()
        self.revivals = Revivals()
        self.clock = BrokerClock(settings.state_age_s)
        self.precedence = Precedence(self.destinations)
        self.quiescence = Quiescence()
        self.missing = Missing()
        self.units = u.Units(self.precedence.is_in_front, newest_reading=settings.newest_reading)
