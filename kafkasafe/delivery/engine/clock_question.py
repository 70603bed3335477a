"""Asks for the largest timestamp in a partition. If other producers write too, that timestamp shows the
current time.
"""

from __future__ import annotations

from kafkasafe.cluster.api import MAX_TIMESTAMP, Failure, OffsetListed
from kafkasafe.cluster.procedures import Procedure
from kafkasafe.delivery.clocks import Clocks
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.leader import Leader, trouble

__all__ = ["ClockQuestion"]


class ClockQuestion:
    """See the module. The timestamp is only a hint: without an answer, the engine asks again later."""

    def __init__(self, context: EngineContext, leader: Leader, clocks: Clocks) -> None:
        self._context = context
        self._leader = leader
        self._clocks = clocks

    def run(self) -> Procedure[None]:
        """The inquiry."""
        result: OffsetListed | Failure = yield self._leader.list_offset(MAX_TIMESTAMP, "newest")
        address = self._leader.address
        if isinstance(result, Failure) or trouble(result)[1]:
            self._clocks.unanswered(address)
            return
        now_ms = self._context.clock.wall_ms()
        far_ahead = self._clocks.listed(address, result.timestamp, self._context.now(), now_ms)
        for lane in self._context.lanes:
            lane.journal.clock_at_least(self._clocks.at_least_ms)
        if far_ahead:
            self._context.log.warning(
                "Records of %s-%d have timestamps %.1f h ahead of this machine's clock. If they are right, brokers may"
                " forget this producer between two batches, so each batch waits for the answer to the previous one."
                " Correct the clock that is wrong: this machine's, or that of the records' producer",
                *address,
                (result.timestamp - now_ms) / 3_600_000,
                topic=address[0],
                partition=address[1],
                event="clock_behind",
            )
