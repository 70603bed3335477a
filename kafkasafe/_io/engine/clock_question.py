"""Asks for the largest timestamp in a partition. If other producers write too, it shows the current time."""

from __future__ import annotations

from kafkasafe._core.clocks import Clocks
from kafkasafe._io.engine.answers import trouble
from kafkasafe._io.engine.ground import Ground
from kafkasafe._io.engine.lane import Lane
from kafkasafe._io.engine.steps import Steps
from kafkasafe.cluster.api import MAX_TIMESTAMP, Failure, OffsetListed

__all__ = ["ClockQuestion"]


class ClockQuestion(Steps):
    """See the module. The timestamp is only a hint: without an answer, the engine asks again later."""

    def __init__(self, ground: Ground, lane: Lane, topic: str, partition: int, clocks: Clocks) -> None:
        super().__init__(ground, lane, topic, partition)
        self._clocks = clocks

    def go_on(self) -> None:
        """See `Inquiry`."""
        self._ground.cluster.list_offset(self._topic, self._partition, MAX_TIMESTAMP, self._then("newest"))

    def _on_newest(self, result: OffsetListed | Failure) -> None:
        address = self._topic, self._partition
        if isinstance(result, Failure) or trouble(result)[1]:
            self._clocks.unanswered(address)
            return
        now_ms = self._ground.clock.wall_ms()
        far_ahead = self._clocks.listed(address, result.timestamp, self._ground.now(), now_ms)
        for lane in self._ground.lanes:
            lane.journal.clock_at_least(self._clocks.at_least_ms)
        if far_ahead:
            self._ground.log.warning(
                "Records of %s-%d carry a time %.1f h ahead of this machine's clock. If it is right, brokers may forget"
                " this producer between two batches, so each one waits for the answer to the one before. Correct the"
                " clock that is wrong: this one, or that of the records' producer",
                *address,
                (result.timestamp - now_ms) / 3_600_000,
                topic=self._topic,
                partition=self._partition,
                event="clock_behind",
            )
