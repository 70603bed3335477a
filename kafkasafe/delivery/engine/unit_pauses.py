"""Pauses between two attempts to deliver an atomic batch, or to send one of its requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafkasafe import events
from kafkasafe import units as u
from kafkasafe.codes.sets import DESTINATION_CODES, TRANSACTION_ENDING_CODES
from kafkasafe.delivery.engine.context import EngineContext, another_topic
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.messages import UnitDue

_SOON_S: Final = 0.01
"""While the coordinator or a leader is completing the previous transaction, the pause after attempt n (up to the sixth)
is at most n times this long.
"""

_EARLY_S: Final = 600.0
"""Longest pause of an atomic batch whose timestamps are in the future. Somebody may correct the broker's clock."""
_SURELY: Final = 6
"""From this attempt on, an atomic batch waits until the broker accepts its timestamps. The earlier attempts confirm the
refusal, so that it is reported.
"""


@dataclass(frozen=True, slots=True)
class _TopicPause:
    """The pause of a unit (atomic batch) that the cluster refused because a topic was missing or forbidden.

    Attributes:
        addresses: The unit's partitions.
        former: The ids of the unit's topics at the last attempt.
        there: Whether the metadata contained all `addresses` when the pause began.
    """

    due: UnitDue
    addresses: Sequence[tuple[str, int]]
    former: Mapping[str, bytes]
    there: bool


class UnitPauses:
    """See the module."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._waiting: list[_TopicPause] = []
        """The pauses that metadata may end."""
        self._tried: dict[str, bytes] = {}
        """By topic: the topic's id at the time of the last request with batches for it."""
        self._ended: list[UnitDue] = []
        """The pauses that ended early, until their timers fire."""

    def begin(self, lane: Lane, again: u.RetryLater) -> None:
        """Begin the pause before the next attempt to deliver an atomic batch, or to send one of its requests. At its
        end, `retry` is due.
        """
        backoff = self._context.slow_backoff if again.slow else self._context.backoff
        pause_s = backoff.pause_s(again.attempt)
        if again.code in TRANSACTION_ENDING_CODES and again.attempt <= 6:
            pause_s = min(pause_s, _SOON_S * again.attempt)
        if again.attempt >= _SURELY:
            # Each attempt appends the transaction's batches for other partitions to their logs, and aborts them.
            pause_s = max(pause_s, min(again.early_ms / 1000, _EARLY_S))
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
        if isinstance(again.action, u.UnitPause) and again.code in DESTINATION_CODES:
            addresses = [lane.journal.views.address(number) for number in again.action.unit.destinations]
            former = {topic: self._tried[topic] for topic, _ in addresses if topic in self._tried}
            self._waiting.append(_TopicPause(due, addresses, former, there=self._are_there(addresses)))
        self._context.timer(pause_s, due)

    def tries(self, topic: str) -> None:
        """Note the topic's present id. Call this method before each request with batches for the topic."""
        self._tried[topic] = self._context.topic_id(topic)

    def _are_there(self, addresses: Sequence[tuple[str, int]]) -> bool:
        """Whether all these partitions have leaders in the metadata."""
        leaders = [self._context.leader(*address) for address in addresses]
        return all(leader is not None and leader.leader >= 0 for leader in leaders)

    def _has_news(self, waiting: _TopicPause) -> bool:
        if not self._are_there(waiting.addresses):
            return False
        return not waiting.there or any(
            another_topic(former_id, self._context.topic_id(topic))
            for topic, former_id in waiting.former.items()
        )

    def look_again(self) -> None:
        """If new metadata contain a topic that was missing or forbidden, end the pauses of the atomic batches that the
        cluster refused for this reason.

        As for other batches (see `Sender`), metadata end a pause only if one of the partitions was missing from the
        metadata when the pause began, or a topic was recreated since the last attempt. So attempts stay rare while the
        metadata of a broker still contain a deleted topic.
        """
        for waiting in [each for each in self._waiting if self._has_news(each)]:
            self._end(waiting.due)
            self._ended.append(waiting.due)

    def retry(self, due: UnitDue) -> None:
        """End a pause when its timer fires, unless the pause has already ended early."""
        for index, ended in enumerate(self._ended):
            if ended is due:
                del self._ended[index]
                return
        self._end(due)

    def _end(self, due: UnitDue) -> None:
        self._waiting = [each for each in self._waiting if each.due is not due]
        due.lane.journal.units.again(due.action)
