"""Asks each broker about partitions that seem to be missing, to find out which partitions the cluster does not have."""

from __future__ import annotations

from typing import Final

from kafkasafe.cluster.absence import Absence
from kafkasafe.cluster.api import Failure, TopicInfo
from kafkasafe.cluster.procedures import Ask, Procedure
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.leader import RunningInquiry

_GRACE_S: Final = 60.0
"""If only one of several brokers answers, a partition counts as missing only after this broker has reported it as
missing for this many seconds.
"""


class Absences:
    """See the module. `kafkasafe.cluster.absence` decides whether the answers prove that a partition does not exist."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._cases: dict[tuple[str, int], Absence] = {}

    def look(self) -> None:
        """Ask brokers, and tell the journals which partitions exist. The engine calls `look` each second, and after new
        metadata.
        """
        found = [
            (lane, dict.fromkeys((*lane.journal.missing.said, *lane.journal.missing.proven)))
            for lane in self._context.lanes
        ]
        if not any(destinations for _, destinations in found):
            self._cases.clear()
            return
        cluster = self._context.cluster
        brokers = [broker.node_id for broker in cluster.brokers()]
        now = self._context.now()
        open_ = set()
        for lane, destinations in found:
            missing = lane.journal.missing
            for destination in destinations:
                address = topic, partition = lane.journal.views.address(destination)
                info = cluster.topic(topic)
                if info is None or info.error_code:
                    continue  # the topic itself is unknown or missing
                if partition in info.partitions:
                    lane.journal.present(destination)
                    continue
                if destination in missing.proven:
                    continue
                open_.add(address)
                case = self._cases.get(address)
                if case is None:
                    case = self._cases[address] = Absence(partition, now, _GRACE_S)
                proof = case.proven(brokers, now)
                if proof:
                    self._context.progress.note()
                    lane.journal.absent(destination, f"{topic} has no partition {partition}: {proof}")
                    continue
                for node in case.due(brokers, now):
                    name = f"_Witness({self._context.own.name} {topic}--1)"
                    RunningInquiry(self._context, name, self._ask(case, topic, node)).go_on()
        for address in self._cases.keys() - open_:
            del self._cases[address]

    def _ask(self, case: Absence, topic: str, node: int) -> Procedure[None]:
        """Ask one broker about a topic."""
        cluster = self._context.cluster
        result: TopicInfo | Failure = yield Ask(lambda reply: cluster.topic_at(node, topic, reply), "seen")
        # Ignore a broker that does not know the topic at all: if the topic is missing, new metadata will show it.
        if isinstance(result, TopicInfo) and not result.error_code and result.partitions:
            case.answered(node, result.topic_id, max(result.partitions, default=-1) + 1, self._context.now())
            self.look()
