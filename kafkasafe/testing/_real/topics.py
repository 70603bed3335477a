"""Creates topics, asks for the states of partitions, and waits until partitions have a certain state."""

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

from kafkasafe.kafkapython import frames
from kafkasafe.record.batch import iter_headers
from kafkasafe.testing._real.admin import Admin
from kafkasafe.testing._real.layout import Layout
from kafkasafe.testing._real.node import POLL_S, as_text
from kafkasafe.testing._real.nodes import Nodes
from kafkasafe.testing._real.values import ClusterError, PartitionState
from kafkasafe.testing._real.workspace import Workspace

_METADATA: Final = 4
"""A version of the Metadata API that all supported brokers (0.11 and later) understand."""


class Topics:
    """Creates topics, asks about partitions, and waits for their states. This object has no state of its own.

    `KafkaCluster` describes the methods.
    """

    def __init__(self, layout: Layout, workspace: Workspace, nodes: Nodes, admin: Admin) -> None:
        self._layout = layout
        self._workspace = workspace
        self._nodes = nodes
        self._admin = admin

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
        options: dict[str, object] = {
            "configs": {key: as_text(value) for key, value in (config or {}).items()}
        }
        if assignments is None:
            options["num_partitions"] = partitions
            options["replication_factor"] = replication_factor or min(3, len(self._layout.brokers))
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
                # An earlier attempt of this call succeeded, but its answer was lost.

        deadline = time.monotonic() + timeout_s
        self._admin.run(create, deadline, f"create topic {name}")
        self.until_topic(
            name,
            lambda states: (
                len(states) == count and all(set(s.in_sync) == set(s.replicas) for s in states.values())
            ),
            deadline,
        )
        self._until_led([TopicPartition(name, number) for number in range(count)], deadline)
        self._until_all_tell(name, count, deadline)

    def delete_topic(self, name: str, timeout_s: float = 30.0) -> None:
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

        self._admin.run(delete, deadline, f"delete topic {name}")
        self.until_topic(name, lambda states: not states, deadline, live_leader=False)

    def partition_state(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 30.0
    ) -> PartitionState:
        topic, partition = as_place(topic, partition)
        deadline = time.monotonic() + timeout_s
        states = self.until_topic(topic, lambda found: partition in found, deadline, live_leader=False)
        return states[partition]

    def leader(self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 30.0) -> int:
        topic, partition = as_place(topic, partition)
        deadline = time.monotonic() + timeout_s

        def led(states: Mapping[int, PartitionState]) -> bool:
            return partition in states and self._nodes.lives(states[partition].leader)

        return self.until_topic(topic, led, deadline, live_leader=False)[partition].leader

    def wait_in_sync(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 60.0
    ) -> PartitionState:
        topic, partition = as_place(topic, partition)
        deadline = time.monotonic() + timeout_s

        def synced(states: Mapping[int, PartitionState]) -> bool:
            state = states.get(partition)
            return (
                state is not None
                and set(state.in_sync) == set(state.replicas)
                and self._nodes.lives(state.leader)
            )

        return self.until_topic(topic, synced, deadline, live_leader=False)[partition]

    def wait_for_markers(self, timeout_s: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_s
        with self._admin.client() as admin:
            while any(admin.list_transactions(state_filters=["PrepareCommit", "PrepareAbort"]).values()):
                if time.monotonic() > deadline:
                    raise ClusterError(f"There are transactions without their markers after {timeout_s:g} s")
                time.sleep(0.02)

    def alter_topic(self, name: str, config: Mapping[str, object], timeout_s: float = 30.0) -> None:
        values = {key: as_text(value) for key, value in config.items()}
        self._admin.alter(ConfigResourceType.TOPIC, name, values, time.monotonic() + timeout_s)

    def log_segments(
        self, topic: str | TopicPartition, partition: int = 0, node: int | None = None
    ) -> list[Path]:
        topic, partition = as_place(topic, partition)
        where = self.leader(topic, partition) if node is None else node
        directory = self._nodes.data_dir(where) / f"{topic}-{partition}"
        if not directory.is_dir():
            raise ClusterError(
                f"broker {where} holds no {topic}-{partition}", log_dir=self._workspace.log_dir
            )
        return sorted(directory.glob("*.log"))

    def log_end(self, topic: str | TopicPartition, partition: int = 0, node: int | None = None) -> int:
        last = self.log_segments(topic, partition, node)[-1]
        end = int(last.stem)
        for _, header in iter_headers(last.read_bytes()):
            end = header.last_offset + 1
        return end

    def until_topic(
        self,
        topic: str,
        condition: Callable[[Mapping[int, PartitionState]], bool],
        deadline: float,
        *,
        live_leader: bool = True,
    ) -> Mapping[int, PartitionState]:
        """Polls the topic's metadata until `condition` holds. With `live_leader`, all leaders must be running, too."""
        last: Mapping[int, PartitionState] = {}

        def poll(admin: KafkaAdminClient) -> Mapping[int, PartitionState]:
            nonlocal last
            while True:
                last = _partition_states(admin.describe_topics([topic]), topic)
                if condition(last) and not (
                    live_leader and any(not self._nodes.lives(s.leader) for s in last.values())
                ):
                    return last
                if time.monotonic() > deadline:
                    raise self._workspace.error(
                        f"topic {topic} did not get there in time; it is {dict(last)}", []
                    )
                time.sleep(POLL_S)

        return self._admin.run(poll, deadline, f"read the metadata of {topic}")

    def _until_led(self, partitions: Iterable[TopicPartition], deadline: float) -> None:
        """Returns when the leaders of these partitions know that they lead. Other brokers may name a leader earlier."""
        newest = dict.fromkeys(partitions, OffsetSpec.LATEST)
        # If a broker does not know yet that it leads, it returns a retriable error, and `run` asks again.
        self._admin.run(
            lambda admin: admin.list_partition_offsets(newest, timeout_ms=5000),
            deadline,
            f"ask who leads {newest}",
        )

    def _until_all_tell(self, topic: str, partitions: int, deadline: float) -> None:
        """Returns when all running brokers report `partitions` partitions. Brokers learn of new partitions at different
        times.
        """
        for node in self._layout.brokers:
            while self._nodes.lives(node) and self._partitions_known_to(node, topic) != partitions:
                if time.monotonic() > deadline:
                    raise self._workspace.error(
                        f"broker {node} does not report the current state of {topic}",
                        [self._nodes.find(node)],
                    )
                time.sleep(POLL_S)

    def _partitions_known_to(self, node: int, topic: str) -> int | None:
        """How many partitions a broker reports; None if the broker does not answer, or answers with an error."""
        known = frames.api("Metadata")
        fields = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        try:
            with (
                socket.create_connection(
                    ("127.0.0.1", self._layout.inner_ports[node]), timeout=5.0
                ) as connection,
                connection.makefile("rb") as answers,
            ):
                connection.sendall(frames.request_frame(known, _METADATA, 1, fields))
                answer = answers.read(struct.unpack(">i", answers.read(4))[0])
        except (OSError, struct.error):
            return None
        (found,) = frames.parse_response(known, _METADATA, answer).message.topics
        return None if found.error_code else len(found.partitions)


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
