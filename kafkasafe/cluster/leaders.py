"""What brokers report about topics and their leaders, and which reports a client accepts. Pure.

Metadata answers and their rows are objects of kafka-python, or have the same attributes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import NO_TOPIC_ID, PartitionInfo, TopicInfo, TopicsListed
from kafkasafe.cluster.terms import TopicPartition, error_of, plausible
from kafkasafe.codes.numbers import LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION

_RELIABLE_EPOCHS: Final = 9
"""First version of Metadata with reliable leader epochs. KAFKA-9212: brokers before 2.4 may announce stale epochs."""


def check_metadata(answer: Any) -> None:
    """Raises an error if a metadata answer is unusable as a whole.

    Raises:
        KafkaError: The broker refused the request, or does not know its cluster yet.
    """
    code = getattr(answer, "error_code", 0)
    if code:
        raise error_of(code, "Metadata")
    if not answer.brokers:
        raise kafka_errors.MetadataEmptyBrokerList("The broker does not know its cluster yet")


def topic_at(answer: Any, topic: str, *, version: int) -> TopicInfo:
    """Reads one topic from a metadata answer.

    Raises:
        KafkaError: The answer left the topic out.
    """
    for row in answer.topics:
        if row.name == topic:
            return _topic_info(row, version=version)
    raise error_of(UNKNOWN_TOPIC_OR_PARTITION, f"The answer left {topic} out")


def topics_listed(answer: Any) -> TopicsListed:
    """Returns the topics of a metadata answer, except internal topics and topics with an error."""
    found: dict[str, tuple[int, ...]] = {}
    for row in answer.topics:
        if not (row.error_code or row.is_internal) and row.name is not None:
            numbers = sorted(partition.partition_index for partition in row.partitions)
            found[row.name] = tuple(numbers)
    return TopicsListed(found, getattr(answer, "error_code", 0) or 0)


class Leaders:
    """The topics that a client watches, with the leaders of their partitions.

    Attributes:
        topics: The metadata of the topics, by name. An answer replaces the whole mapping instead of changing it, so
            other threads see only complete answers.
    """

    __slots__ = ("topics",)

    def __init__(self) -> None:
        self.topics: Mapping[str, TopicInfo] = {}

    def learn(self, rows: Iterable[Any], watched: Collection[str], *, version: int) -> dict[str, TopicInfo]:
        """Stores a metadata answer.

        Args:
            rows: The answer's rows, one for each topic.
            watched: Names of the topics to store. Other topics are ignored.
            version: Version of the Metadata request.

        Returns:
            The current metadata of the topics in the answer.
        """
        topics = dict(self.topics)
        learned = {}
        for row in rows:
            name = row.name
            if name is None or name not in watched:
                continue
            topics[name] = learned[name] = _merged(topics.get(name), _topic_info(row, version=version))
        self.topics = topics
        return learned

    def forget(self, topic: str) -> None:
        self.topics = {name: info for name, info in self.topics.items() if name != topic}

    def leader(self, topic: str, partition: int) -> int | BaseException | None:
        """The leader's node id; or the reason why the partition has no leader; or None while the topic is unknown."""
        info = self.topics.get(topic)
        if info is None:
            return None
        if info.error_code:
            return error_of(info.error_code, topic)
        known = info.partitions.get(partition)
        if known is None:
            return error_of(UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no partition {partition}")
        if known.leader < 0:
            return error_of(LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
        return known.leader

    def topic_id(self, topic: str) -> bytes:
        """The topic's id; `NO_TOPIC_ID` if it is unknown (brokers < 2.8)."""
        info = self.topics.get(topic)
        return NO_TOPIC_ID if info is None else info.topic_id

    def leader_id(self, target: TopicPartition) -> int | None:
        """The leader's node id; None if the partition has no leader or is unknown."""
        leader = self.leader(*target)
        return leader if isinstance(leader, int) else None

    def take_hint(
        self, target: TopicPartition, topic_id: bytes, hint: tuple[int, int], brokers: Collection[int]
    ) -> bool:
        """Stores the new leader that a former leader has named (the hint). Ignores a hint that is old, that is about a
        former topic of this name, or that names an unknown broker. (A deleted topic of the same name may have had
        higher epochs. After such a hint, later metadata of the new topic would seem outdated.)

        Args:
            target: The partition.
            topic_id: The topic's id at the time of the request; `NO_TOPIC_ID` if it was unknown.
            hint: The leader's node id, and its epoch.
            brokers: Node ids of the brokers whose addresses are known.

        Returns:
            Whether the leader changed.
        """
        topic, partition = target
        leader, epoch = hint
        info = self.topics.get(topic)
        known = info.partitions.get(partition) if info is not None else None
        if info is None or known is None or epoch <= known.leader_epoch or leader not in brokers:
            return False
        if info.topic_id != topic_id and any(topic_id):
            return False
        partitions = {**info.partitions, partition: PartitionInfo(leader, epoch)}
        self.topics = {**self.topics, topic: replace(info, partitions=partitions)}
        return True


def _merged(old: TopicInfo | None, info: TopicInfo) -> TopicInfo:
    if info.error_code:
        return replace(
            info, topic_id=old.topic_id if old else info.topic_id, partitions=old.partitions if old else {}
        )
    if old is None or not old.topic_id == info.topic_id != NO_TOPIC_ID:
        return info
    # Keep the known leader if its epoch is higher: the answer may come from a broker with older metadata.
    newer = {
        number: known
        for number, known in old.partitions.items()
        if number in info.partitions and known.leader_epoch > info.partitions[number].leader_epoch
    }
    return replace(info, partitions={**info.partitions, **newer}) if newer else info


def _topic_info(row: Any, *, version: int) -> TopicInfo:
    topic_id = NO_TOPIC_ID if row.topic_id is None else row.topic_id.bytes
    epochs = version >= _RELIABLE_EPOCHS
    partitions = {
        each.partition_index: PartitionInfo(each.leader_id, plausible(each.leader_epoch) if epochs else -1)
        for each in row.partitions
    }
    return TopicInfo(row.name, topic_id, partitions, row.error_code)
