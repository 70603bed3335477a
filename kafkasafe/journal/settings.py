"""The settings of a journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kafkasafe.journal.partition import WINDOW

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one lane's journal.

    Attributes:
        durable_first: Send only batches that are on disk (`spool="always"`). False: `spill()` selects those to write.
        window: Batches sent without a durable commit mark, per partition.
        state_age_s: How long after a batch's own timestamp a broker surely keeps the producer state.
        request_timeout_s: After this time, no broker can append a request without an answer any more.
        blocked_timeout_s: How long a destination may be missing, forbidden or invalid, timestamps be too far ahead, or
            the broker fail on one batch, before the journal rejects the affected batches; None: for ever. The time
            counts within this incarnation, and any other answer resets it.
        missing_grace_s: How long a topic may be unknown to the cluster before a notice says so: it may be new.
        heal: Send acknowledged batches that the cluster lost again, as far as the spool still has them.
        heal_recreated: Send lost batches again even to a topic that was deleted and created again.
        aside_batches: At most this many rejected batches are made durable in `rejected/` at a time.
        gather_bytes: Small waiting batches are merged up to this size; 0: never.
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
