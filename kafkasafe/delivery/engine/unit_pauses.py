"""The pauses before the requests of atomic batches, or whole atomic batches, are tried again."""

from __future__ import annotations

import logging
from typing import Final

from kafkasafe import events
from kafkasafe import units as u
from kafkasafe.codes.verdicts import MISSING_CODES
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.messages import UnitDue

_SOON_S: Final = 0.01
"""Pause while the coordinator or a leader still completes the previous transaction, which takes milliseconds."""
_SOON: Final = frozenset({19, 51, 88})


class UnitPauses:
    """See the module."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._waiting: list[UnitDue] = []
        """The pauses that end as soon as the metadata name all topics of the unit."""
        self._ended: list[UnitDue] = []
        """The pauses that ended early, until their timers fire."""

    def begin(self, lane: Lane, again: u.RetryLater) -> None:
        """Begin the pause before a request of a unit, or a whole unit, is tried again. At its end, `retry` is due."""
        backoff = self._context.slow_backoff if again.slow else self._context.backoff
        pause_s = backoff.pause_s(again.attempt)
        if again.code in _SOON and again.attempt <= 6:
            pause_s = min(pause_s, _SOON_S * again.attempt)
        self._context.stats.pauses.add()
        self._context.stats.backoff_s["transaction"] += pause_s
        what = type(again.action).__name__
        if isinstance(again.action, u.UnitPause):
            refused = again.action.unit.phase is u.Phase.REFUSED
            what = "saving the records" if refused else "the transaction"  # in `rejected/`
        self._context.log.limited(
            logging.WARNING if again.attempt > 3 else logging.INFO,
            "atomic_batch_retried",
            f"{lane.name} {what}",
            "%s: %s of an atomic batch: attempt %d failed, next in %.2f s: %s",
            lane.name,
            what,
            again.attempt,
            pause_s,
            again.reason,
            lane=lane.name,
            attempt=again.attempt,
            pause_s=round(pause_s, 3),
            code=again.code,
        )
        if isinstance(again.action, u.UnitPause):
            self._context.emit(
                events.AtomicBatchRetried(again.action.unit.unit_id.hex(), again.attempt, again.reason)
            )
        due = UnitDue(lane, again.action)
        if isinstance(again.action, u.UnitPause) and again.code in MISSING_CODES and not self._is_there(due):
            self._waiting.append(due)
        self._context.timer(pause_s, due)

    def _is_there(self, due: UnitDue) -> bool:
        """Whether the metadata name all partitions of a unit that pauses."""
        unit = due.action.unit if isinstance(due.action, u.UnitPause) else None
        addresses = map(due.lane.journal.views.address, () if unit is None else unit.destinations)
        leaders = [self._context.leader(*address) for address in addresses]
        return all(leader is not None and leader.leader >= 0 for leader in leaders)

    def look_again(self) -> None:
        """Use new metadata: end the pauses of units that were refused because a topic was missing, if it is there now.

        As for other batches, metadata end only the pauses of units whose topics they did not name when the pause began
        (see `Sender`). So attempts stay rare while a broker names a topic that was deleted.
        """
        for due in [due for due in self._waiting if self._is_there(due)]:
            self._end(due)
            self._ended.append(due)

    def retry(self, due: UnitDue) -> None:
        """End a pause whose timer fires, unless it ended early."""
        for index, ended in enumerate(self._ended):
            if ended is due:
                del self._ended[index]
                return
        self._end(due)

    def _end(self, due: UnitDue) -> None:
        self._waiting = [each for each in self._waiting if each is not due]
        due.lane.journal.units.again(due.action)
