"""Decides, from the brokers' metadata, whether it is proven that a partition does not exist.

A record may name a partition that its topic does not have, or its topic may be recreated with fewer partitions. Each
broker then reports the partition as missing, and waiting does not help. But a broker that has not heard of a new
partition yet also reports the partition as missing:

1. A topic has partitions 0 and 1. An operator adds partition 2, and the controller confirms the change.
2. A program sends to partition 2. The program's metadata come from broker 1, which has not heard of the change yet.
3. Some milliseconds later broker 1 has heard of the change. But while broker 1 is cut off from the controller, it
   reports only two partitions to every client, maybe for hours.

So one answer proves nothing. The absence is proven if two brokers still report the partition as missing some seconds
after the first report. In a cluster with one broker, the broker's report is the proof. If only one of several brokers
answers, this broker has to report the absence for a minute. A minute is enough, because operators hardly ever add a
partition in the same minute in which a program first sends to it. A wrong proof loses no record, because the directory
`rejected/` keeps rejected records.

This module has no clock: `now` is an argument, in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_SETTLED_S: Final = 2.0
"""Time in which a change of a topic reaches every broker that is connected to the controller."""
_WITNESSES: Final = 2
_AGAIN_S: Final = 1.0
"""Time after which a broker that did not answer is asked again."""
_NEVER: Final = float("-inf")


class Absence:
    """One partition that is missing from the metadata.

    Args:
        partition: Number of the partition.
        now: Time when the partition was first missing.
        grace_s: If only one of several brokers answers: how long, in seconds, this broker must report the partition as
            missing.
    """

    def __init__(self, partition: int, now: float, grace_s: float) -> None:
        self._partition = partition
        self._grace_s = grace_s
        self._since = now
        self._topic_id = b""
        self._witnesses: dict[int, int] = {}
        """For each broker that reports the partition as missing: how many partitions the topic has by its report."""
        self._asked: dict[int, float] = {}

    def due(self, brokers: Sequence[int], now: float) -> list[int]:
        """Returns which of `brokers` to ask now for the topic's number of partitions."""
        if now - self._since < _SETTLED_S:
            return []
        wanted = min(_WITNESSES, len(brokers)) - len(self._witnesses)
        others = [node for node in brokers if node not in self._witnesses]
        able = [node for node in others if now - self._asked.get(node, _NEVER) >= _AGAIN_S]
        under_way = len(others) - len(able)
        # Brokers that have not been asked yet come first.
        able.sort(key=lambda node: self._asked.get(node, _NEVER))
        chosen = able[: max(0, wanted - under_way)]
        self._asked.update(dict.fromkeys(chosen, now))
        return chosen

    def answered(self, node: int, topic_id: bytes, partitions: int, now: float) -> None:
        """Takes the report of broker `node` about the topic: the topic's id, and its number of partitions."""
        if partitions > self._partition or topic_id != (self._topic_id or topic_id):
            # The partition exists, or the topic was recreated: the proof begins again.
            self._since = now
            self._witnesses.clear()
            self._asked.clear()
        self._topic_id = topic_id
        if partitions <= self._partition:
            self._witnesses[node] = partitions

    def proven(self, brokers: Sequence[int], now: float) -> str:
        """The proof that the partition does not exist, as human-readable text; empty without a proof."""
        nodes = sorted(self._witnesses)
        if not nodes:
            return ""
        count = self._witnesses[nodes[-1]]
        has = f"it has {count} partition{'' if count == 1 else 's'}"
        if len(nodes) >= _WITNESSES:
            return f"{has}, according to brokers {nodes[0]} and {nodes[1]}"
        if set(brokers) <= set(nodes):
            return f"{has}, according to broker {nodes[0]}, the only broker"
        if now - self._since >= self._grace_s:
            return f"{has}, according to broker {nodes[0]}; no other broker answered within {self._grace_s:.0f} s"
        return ""
