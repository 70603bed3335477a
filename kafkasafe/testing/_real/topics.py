"""Topics and partitions: made, looked at, waited for."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResourceType, OffsetSpec
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

from kafkasafe.testing import frames
from kafkasafe.testing._real.node import POLL_S, as_text
from kafkasafe.testing._real.running import Running
from kafkasafe.testing._real.values import ClusterError, PartitionState

__all__ = ["Topics", "as_place"]

_METADATA: Final = 4
"""The version of Metadata that all brokers have, from 0.11 on."""


class Topics(Running):
    """Part of `KafkaCluster`."""

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
        *,
        assignments: Mapping[int, Sequence[int]] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Creates a topic; returns when every partition is led, all replicas are in sync, and each broker tells of it.

        Args:
            name: Its name.
            partitions: How many.
            replication_factor: Default min(3, brokers).
            config: Topic settings by Kafka's names.
            assignments: `{partition: [node, …]}`, the preferred leader first, instead of the two numbers.
            timeout_s: Seconds it may take.

        Raises:
            kafka.errors.TopicAlreadyExistsError: There is one of that name.
            kafka.errors.KafkaError: The cluster refused (invalid name, setting …).
            ClusterError: Not ready in time.
        """
        options: dict[str, object] = {
            "configs": {key: as_text(value) for key, value in (config or {}).items()}
        }
        if assignments is None:
            options["num_partitions"] = partitions
            options["replication_factor"] = replication_factor or min(3, len(self.brokers))
        else:
            options["assignments"] = {number: list(nodes) for number, nodes in assignments.items()}
        count = len(assignments) if assignments else partitions
        tries = 0

        def create(admin: KafkaAdminClient) -> None:
            nonlocal tries
            tries += 1
            try:
                admin.create_topics({name: options}, timeout_ms=10_000)
            except TopicAlreadyExistsError:
                if tries == 1:
                    raise
                # An earlier try of ours was done though its answer was lost.

        deadline = time.monotonic() + timeout_s
        self._admin(create, deadline, f"create topic {name}")
        self._until_topic(
            name,
            lambda states: (
                len(states) == count and all(set(s.in_sync) == set(s.replicas) for s in states.values())
            ),
            deadline,
        )
        self._until_led([TopicPartition(name, number) for number in range(count)], deadline)
        self._until_all_tell(name, count, deadline)

    def delete_topic(self, name: str, timeout_s: float = 30.0) -> None:
        """Deletes a topic; returns when the metadata no longer has it."""
        deadline = time.monotonic() + timeout_s
        tries = 0

        def delete(admin: KafkaAdminClient) -> None:
            nonlocal tries
            tries += 1
            try:
                admin.delete_topics([name], timeout_ms=10_000)
            except UnknownTopicOrPartitionError:
                if tries == 1:
                    raise

        self._admin(delete, deadline, f"delete topic {name}")
        self._until_topic(name, lambda states: not states, deadline, live_leader=False)

    def partition_state(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 30.0
    ) -> PartitionState:
        """Leader, epoch, replicas and in-sync replicas, as a living broker tells them now.

        Raises:
            ClusterError: No broker could tell within `timeout_s`, or there is no such partition.
        """
        topic, partition = as_place(topic, partition)
        deadline = time.monotonic() + timeout_s
        states = self._until_topic(topic, lambda found: partition in found, deadline, live_leader=False)
        return states[partition]

    def leader(self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 30.0) -> int:
        """Node id of the partition's leader; waits while there is none or the one named is killed or paused."""
        topic, partition = as_place(topic, partition)
        deadline = time.monotonic() + timeout_s

        def led(states: Mapping[int, PartitionState]) -> bool:
            return partition in states and self._lives(states[partition].leader)

        return self._until_topic(topic, led, deadline, live_leader=False)[partition].leader

    def wait_in_sync(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 60.0
    ) -> PartitionState:
        """Returns when all replicas of the partition are in sync and its leader lives."""
        topic, partition = as_place(topic, partition)
        deadline = time.monotonic() + timeout_s

        def synced(states: Mapping[int, PartitionState]) -> bool:
            state = states.get(partition)
            return (
                state is not None and set(state.in_sync) == set(state.replicas) and self._lives(state.leader)
            )

        return self._until_topic(topic, synced, deadline, live_leader=False)[partition]

    def wait_for_markers(self, timeout_s: float = 120.0) -> None:
        """Returns when each transaction that was committed or aborted before the call is so for every reader.

        A commit is answered when it is decided; its markers are written afterwards, partition by partition. Until then
        a `read_committed` reader ends, for a moment, before the transaction's records.

        Raises:
            ClusterError: There are transactions without their markers after `timeout_s`.
            kafka.errors.UnsupportedVersionError: The brokers are older than 3.0 (KIP-664).
        """
        deadline = time.monotonic() + timeout_s
        with self.admin() as admin:
            while any(admin.list_transactions(state_filters=["PrepareCommit", "PrepareAbort"]).values()):
                if time.monotonic() > deadline:
                    raise ClusterError(f"There are transactions without their markers after {timeout_s:g} s")
                time.sleep(0.02)

    def alter_topic(self, name: str, config: Mapping[str, object], timeout_s: float = 30.0) -> None:
        """Sets topic settings; the others stay as they are."""
        values = {key: as_text(value) for key, value in config.items()}
        self._alter(ConfigResourceType.TOPIC, name, values, time.monotonic() + timeout_s)

    def log_segments(
        self, topic: str | TopicPartition, partition: int = 0, node: int | None = None
    ) -> list[Path]:
        """The partition's `.log` files on a broker, oldest first; what a killed broker left can be read too.

        Args:
            topic: Topic name.
            partition: Its number.
            node: The broker; by default the leader.

        Raises:
            ClusterError: That broker holds no such partition.
        """
        topic, partition = as_place(topic, partition)
        where = self.leader(topic, partition) if node is None else node
        directory = self.data_dir(where) / f"{topic}-{partition}"
        if not directory.is_dir():
            raise ClusterError(f"broker {where} holds no {topic}-{partition}", log_dir=self.log_dir)
        return sorted(directory.glob("*.log"))

    def _until_topic(
        self,
        topic: str,
        condition: Callable[[Mapping[int, PartitionState]], bool],
        deadline: float,
        *,
        live_leader: bool = True,
    ) -> Mapping[int, PartitionState]:
        """Polls the topic's metadata until `condition` holds (and every leader lives, if `live_leader`)."""
        last: Mapping[int, PartitionState] = {}

        def poll(admin: KafkaAdminClient) -> Mapping[int, PartitionState]:
            nonlocal last
            while True:
                last = _partition_states(admin.describe_topics([topic]), topic)
                if condition(last) and not (
                    live_leader and any(not self._lives(s.leader) for s in last.values())
                ):
                    return last
                if time.monotonic() > deadline:
                    raise self._error(f"topic {topic} did not get there in time; it is {dict(last)}", [])
                time.sleep(POLL_S)

        return self._admin(poll, deadline, f"read the metadata of {topic}")

    def _until_led(self, partitions: Iterable[TopicPartition], deadline: float) -> None:
        """Returns when the leaders know that they lead: a broker tells who does before it has heard of it itself."""
        newest = dict.fromkeys(partitions, OffsetSpec.LATEST)
        # What it does not know yet is an error that passes, and asked again.
        self._admin(
            lambda admin: admin.list_partition_offsets(newest, timeout_ms=5000),
            deadline,
            f"ask who leads {newest}",
        )

    def _until_all_tell(self, topic: str, partitions: int, deadline: float) -> None:
        """Returns when each broker that lives tells of so many partitions: they hear of it one after the other."""
        for node in self.brokers:
            while self._lives(node) and self._told(node, topic) != partitions:
                if time.monotonic() > deadline:
                    raise self._error(f"broker {node} does not tell of {topic} as it is", [self._node(node)])
                time.sleep(POLL_S)

    def _told(self, node: int, topic: str) -> int | None:
        """Of how many partitions a broker tells; None if it does not answer, or not now."""
        known = frames.api("Metadata")
        fields = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        try:
            with (
                socket.create_connection(("127.0.0.1", self._inner_ports[node]), timeout=5.0) as connection,
                connection.makefile("rb") as answers,
            ):
                connection.sendall(frames.request_frame(known, _METADATA, 1, fields))
                answer = answers.read(struct.unpack(">i", answers.read(4))[0])
        except (OSError, struct.error):
            return None
        (told,) = frames.parse_response(known, _METADATA, answer).message.topics
        return None if told.error_code else len(told.partitions)


def as_place(topic: str | TopicPartition, partition: int) -> tuple[str, int]:
    return (topic.topic, topic.partition) if isinstance(topic, TopicPartition) else (topic, partition)


def _partition_states(answer: Sequence[Mapping[str, Any]], topic: str) -> dict[int, PartitionState]:
    return {
        row["partition_index"]: PartitionState(
            row["leader_id"],
            row.get("leader_epoch", -1),
            tuple(row["replica_nodes"]),
            tuple(sorted(row["isr_nodes"])),
        )
        for found in answer
        if found["name"] == topic and found["error_code"] == 0
        for row in found["partitions"]
    }
