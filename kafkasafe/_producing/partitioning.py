"""Finds the partition of a record.

The caller of `send` may give the partition. Otherwise, the application's partitioner chooses the partition. Without a
partitioner, this module chooses as KafkaProducer does.

This module neither seals open batches nor waits.
"""

from __future__ import annotations

import inspect
import operator
import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
from kafka.structs import TopicPartition

from kafkasafe.cluster.api import Broker, Cluster, TopicInfo
from kafkasafe.config import ProducerConfig
from kafkasafe.delivery.engine.parcels import Indexes
from kafkasafe.logs import EventLog, apart
from kafkasafe.record.batch import Sizes, sizes_of
from kafkasafe.record.partition import partitions_for_keys

log = EventLog("producer")

_MAX_PARTITION: Final = 2**31 - 1


class Partitioning:
    """Stores the partition counts of topics, and chooses each record's partition.

    A thread that seals an open batch holds the producer's lock while it chooses the partitions of the batch's records.
    The pump chooses the partitions of records that were accepted before their topic was known, and reports each topic's
    partition count (`learned`).

    Args:
        partition_by: From `partitioner_of`.

    Attributes:
        asks: Whether the application has its own partitioner, which this object calls for each record.
    """

    def __init__(self, config: ProducerConfig, cluster: Cluster, partition_by: Callable[..., Any]) -> None:
        self.asks = config.custom_partitioner
        self._partition_by = partition_by
        given = config.partitioner
        self._on_new_batch = given.on_new_batch if hasattr(given, "on_new_batch") else None
        self._told: set[str] = set()
        """Topics for which `on_new_batch` was called since their last open batch was sealed."""
        self._client_id = config.client_id
        self._cluster = cluster
        self._counts: dict[str, int] = {}
        """Maps a topic to its partition count. A topic has no entry while one of its records has no chosen partition
        yet.
        """
        self._recalled: set[str] = set()
        """Topics whose partition count comes from an earlier run, and was not confirmed yet. These topics may have more
        partitions now.
        """
        self._unchosen: set[str] = set()
        """Topics that have records without a chosen partition, or had such records earlier."""
        self._rotation = random.randrange(1 << 16)

    def recall(self, counts: Mapping[str, int], unchosen: Iterable[str]) -> None:
        """Start with the information from earlier runs: partition counts, and the topics that have records without a
        chosen partition.
        """
        self._unchosen.update(unchosen)
        self._counts.update(counts)
        self._recalled.update(counts)

    def knows(self, topic: str) -> bool:
        """Return whether the number of partitions is known, and no record waits until its partition is chosen."""
        return topic in self._counts

    def count(self, topic: str) -> int:
        """Return the number of partitions from which to choose; 0 if it is not known yet."""
        return self._counts.get(topic, 0)

    def learned(self, topic: str, partitions: int) -> None:
        """Note the number of a topic's partitions."""
        if self._counts.get(topic) != partitions:
            self._counts[topic] = partitions
        self._recalled.discard(topic)

    def leave_open(self, topic: str) -> None:
        """Note that this topic has records without a chosen partition."""
        self._unchosen.add(topic)

    def left_open(self, topic: str) -> bool:
        """Return whether this topic has records without a chosen partition, or had such records earlier."""
        return topic in self._unchosen

    def checked(self, topic: str, partition: Any) -> int:
        """Return the partition that a caller gives, as an int.

        Raises:
            TypeError: The partition is not a number.
            ValueError: The topic has no such partition.
        """
        number = as_int(partition, "partition", _MAX_PARTITION)
        known = None if topic in self._recalled else self._counts.get(topic)
        if known is None and (info := self._cluster.topic(topic)) is not None and info.partitions:
            # Use the metadata: `_counts` has no entry for a topic that has records without a chosen partition, and a
            # count from an earlier run may be out of date.
            known = max(info.partitions) + 1
        if known is not None and number >= known:
            raise ValueError(f"Unrecognized partition {number} for topic {topic}: it has {known}")
        return number

    def batch_ended(self, topic: str) -> None:
        """Note that an open batch of this topic is sealed, so the next record begins a new open batch."""
        self._told.discard(topic)

    def ask(
        self, topic: str, key: Any, key_bytes: bytes | None, value: Any, value_bytes: bytes | None
    ) -> int | None:
        """Call the application's partitioner at once, while the key and the value are available as objects and not only
        as bytes. If the partitioner has a method `on_new_batch`, call this method when a record without a key begins a
        batch, as KafkaProducer does. Then call the partitioner again, which may choose another partition (KIP-480).

        Return None if the topic is not known yet. `choose` then calls the partitioner later, with bytes instead of the
        objects.
        """
        count = self._counts.get(topic)
        if count is None:
            return None
        view = _ClusterView(topic, count, self._cluster)
        chosen = self._partition_by(topic, key, key_bytes, value, value_bytes, view)
        if self._on_new_batch is not None and key_bytes is None and topic not in self._told:
            self._told.add(topic)  # before the call: `on_new_batch` may itself send a record
            self._on_new_batch(topic, view, chosen)
            chosen = self._partition_by(topic, key, key_bytes, value, value_bytes, view)
        return as_int(chosen, f"the partitioner's choice for topic {topic}", count - 1)

    def next_partition(self, topic: str, partitions: int) -> int:
        """Return the partition for the next batch of records without keys. All keyless records of the batch go to this
        partition (KIP-480).

        As in KafkaProducer, the result is a partition with a leader, if any partition has a known leader. In a
        partition without a leader, the records would wait, although another partition could take the records.
        """
        self._rotation += 1
        chosen = self._rotation % partitions
        info = self._cluster.topic(topic)
        if info is None or _has_leader(info, chosen):
            return chosen
        led = [number for number in range(partitions) if _has_leader(info, number)]
        return led[self._rotation % len(led)] if led else chosen

    def choose(
        self,
        topic: str,
        partitions: int,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        key_sizes: Sizes | None = None,
    ) -> Indexes:
        """Choose the partition of each record. The application's partitioner chooses. Without a partitioner, or if the
        partitioner fails, this method chooses as KafkaProducer does.

        Args:
            topic: Name of the topic.
            partitions: Number of its partitions.
            keys: Key of each record.
            values: Value of each record.
            key_sizes: Sizes of the keys, if the caller knows them.
        """
        if self.asks:
            view = _ClusterView(topic, partitions, self._cluster)
            try:
                return np.array(
                    [
                        as_int(
                            self._partition_by(topic, key, key, value, value, view),
                            "the partitioner's choice",
                            partitions - 1,
                        )
                        for key, value in zip(keys, values, strict=True)
                    ],
                    np.int64,
                )
            except Exception:
                # The records are accepted already, so use the default partitioner instead of the failed partitioner.
                with apart():  # a log handler may send through this producer, whose lock is held
                    log.exception(
                        "%s: the partitioner failed; KafkaProducer's default partitioner is used instead",
                        topic,
                        client_id=self._client_id,
                        topic=topic,
                        event="partitioner_failed",
                    )
        # All keyless records of a batch go to one partition, and the next batch goes to another partition (KIP-480).
        rotated = self.next_partition(topic, partitions)
        if key_sizes is None:
            key_sizes = sizes_of(keys)
        one_size = key_sizes if isinstance(key_sizes, int) else None
        if one_size != -1 and (isinstance(key_sizes, int) or -1 not in key_sizes):
            return partitions_for_keys(cast("Sequence[bytes]", keys), partitions, one_size)
        chosen = np.full(len(keys), rotated, np.int64)
        if one_size == -1:
            return chosen
        keyed = [i for i, key in enumerate(keys) if key is not None]
        if keyed:
            chosen[keyed] = partitions_for_keys([keys[i] or b"" for i in keyed], partitions)
        return chosen


class _ClusterView:
    """The part of kafka-python's ClusterMetadata that partitioners use.

    Args:
        topic: The topic of the record.
        partitions: The topic's number of partitions. The number may come from an earlier run, and be out of date.
        transport: Has the cluster's metadata of this run.
    """

    def __init__(self, topic: str, partitions: int, transport: Cluster) -> None:
        self._topic = topic
        self._partitions = set(range(partitions))
        self._transport = transport

    def topics(self, exclude_internal_topics: bool = True) -> set[str]:
        names = {self._topic, *self._transport.topics()}
        return {name for name in names if not (exclude_internal_topics and name.startswith("__"))}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        if topic == self._topic:
            return set(self._partitions)
        info = self._transport.topic(topic)
        return set(info.partitions) if info is not None and info.partitions else None

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions with a known leader; without any, all partitions, because records can wait for a
        leader.
        """
        known = self.partitions_for_topic(topic)
        if known is None:
            return None
        return {number for number in known if self._leader(topic, number)[0] != -1} or known

    def leader_for_partition(self, partition: TopicPartition) -> int | None:
        """Return the node id of the leader; -1 without a leader, None if the partition is unknown."""
        known = self.partitions_for_topic(partition.topic)
        if known is None or partition.partition not in known:
            return None
        return self._leader(*partition)[0]

    def leader_epoch_for_partition(self, partition: TopicPartition) -> int | None:
        """Return the leader's epoch; -1 if the epoch is not known, None if the partition is not known."""
        known = self.partitions_for_topic(partition.topic)
        if known is None or partition.partition not in known:
            return None
        return self._leader(*partition)[1]

    def partitions_for_broker(self, broker_id: int) -> set[TopicPartition] | None:
        """Return the partitions that a broker leads; None if the broker leads no partition."""
        led = {
            TopicPartition(topic, number)
            for topic in self.topics(exclude_internal_topics=False)
            for number in self.partitions_for_topic(topic) or ()
            if self._leader(topic, number)[0] == broker_id
        }
        return led or None

    def brokers(self) -> list[Broker]:
        return list(self._transport.brokers())

    def broker_metadata(self, broker_id: int) -> Broker | None:
        """Return one broker; None if it is not known."""
        return next((broker for broker in self._transport.brokers() if broker.node_id == broker_id), None)

    def _leader(self, topic: str, partition: int) -> tuple[int, int]:
        info = self._transport.topic(topic)
        known = None if info is None else info.partitions.get(partition)
        return (-1, -1) if known is None else (known.leader, known.leader_epoch)


def _has_leader(info: TopicInfo, partition: int) -> bool:
    known = info.partitions.get(partition)
    return known is not None and known.leader >= 0


def partitioner_of(given: Any) -> Callable[..., Any]:
    """Return the function that chooses a partition. `opened` calls this function before it opens the spool.

    Warns: DeprecationWarning: The partitioner has the three parameters of earlier versions of kafka-python.
    """
    partition = given.partition
    if not takes(partition, 6) and takes(partition, 3):
        warnings.warn(
            "partitioner does not implement kafka.partitioner.Partitioner", DeprecationWarning, stacklevel=4
        )
        return lambda topic, _key, key_bytes, _value, _value_bytes, cluster: partition(
            topic, key_bytes, cluster
        )
    return partition  # type: ignore[no-any-return]


def as_int(item: Any, what: str, most: int) -> int:
    try:
        number = operator.index(item)
    except TypeError:
        raise TypeError(f"{what} must be an int, not {type(item).__name__}") from None
    if not 0 <= number <= most:
        raise ValueError(f"{what} must be >= 0 and <= {most}, not {number}")
    return number


def takes(function: Callable[..., Any], arguments: int) -> bool:
    """Return whether a function of the application accepts this number of positional arguments. Older versions of
    kafka-python's interfaces have fewer parameters than newer versions.
    """
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:  # functions written in C may have no signature
        return True
    return True
