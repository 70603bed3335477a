"""Deliberate damage to a cluster: leaders move, logs lose their ends, and brokers forget producers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResourceType

from kafkasafe.errors import UsageError
from kafkasafe.testing._real.admin import Admin
from kafkasafe.testing._real.layout import Layout
from kafkasafe.testing._real.node import MIN_ISR, POLL_S
from kafkasafe.testing._real.nodes import Nodes
from kafkasafe.testing._real.release import Release
from kafkasafe.testing._real.topics import Topics, as_place
from kafkasafe.testing._real.values import LostRecords, PartitionState
from kafkasafe.testing._real.workspace import Workspace

_UNCLEAN = "unclean.leader.election.enable"
_EXPIRATION = "producer.id.expiration.ms"


class Disasters:
    """Damages a cluster in precise ways, and repairs it. `KafkaCluster` describes the methods.

    The object has no state of its own.
    """

    def __init__(
        self,
        layout: Layout,
        release: Release,
        workspace: Workspace,
        nodes: Nodes,
        admin: Admin,
        topics: Topics,
    ) -> None:
        self._layout = layout
        self._release = release
        self._workspace = workspace
        self._nodes = nodes
        self._admin = admin
        self._topics = topics

    def move_leader(
        self, topic: str | TopicPartition, partition: int = 0, to: int | None = None, timeout_s: float = 30.0
    ) -> int:
        self._release.require((2, 4), "move_leader")
        topic, partition = as_place(topic, partition)
        deadline = time.monotonic() + timeout_s
        state = self._topics.wait_in_sync(topic, partition, timeout_s)
        others = [node for node in state.replicas if node != state.leader]
        target = to if to is not None else next(iter(others), -1)
        if target not in state.replicas:
            raise UsageError(f"{topic}-{partition} has no other replica to move to; it is {state}")
        order = [target, *(node for node in state.replicas if node != target)]
        where = TopicPartition(topic, partition)

        def move(admin: KafkaAdminClient) -> None:
            if problem := admin.alter_partition_reassignments({where: order})[where]:
                raise problem
            admin.elect_leaders(0, {topic: [partition]})

        if target != state.leader:
            self._admin.run(move, deadline, f"move {topic}-{partition} to broker {target}")

        def moved(states: Mapping[int, PartitionState]) -> bool:
            now = states.get(partition)
            return now is not None and now.leader == target and now.replicas[0] == target

        self._topics.until_topic(topic, moved, deadline, live_leader=False)
        return target

    def unclean_failover(
        self,
        topic: str | TopicPartition,
        partition: int = 0,
        during: Callable[[], object] | None = None,
        timeout_s: float = 60.0,
    ) -> LostRecords:
        topic, partition = as_place(topic, partition)
        deadline = time.monotonic() + timeout_s
        before = self._topics.wait_in_sync(topic, partition, timeout_s)
        followers = [node for node in before.replicas if node != before.leader]
        if not followers:
            raise UsageError(
                f"{topic}-{partition} has one replica: there is no other replica to fail over to"
            )
        former = self._admin.settings_of(ConfigResourceType.TOPIC, topic, deadline)
        self._admin.alter(ConfigResourceType.TOPIC, topic, {_UNCLEAN: "true", MIN_ISR: "1"}, deadline)
        try:
            self._nodes.kill_together([self._nodes.find(node) for node in followers])
            kept = self._topics.log_end(topic, partition, followers[0])

            def alone(states: Mapping[int, PartitionState]) -> bool:
                return partition in states and states[partition].in_sync == (before.leader,)

            self._topics.until_topic(topic, alone, deadline, live_leader=False)
            if during is not None:
                during()
            self._nodes.kill(before.leader)
            end = self._topics.log_end(topic, partition, before.leader)
            self._nodes.start(followers[0], max(1.0, deadline - time.monotonic()))

            def taken(states: Mapping[int, PartitionState]) -> bool:
                return partition in states and states[partition].leader == followers[0]

            self._topics.until_topic(topic, taken, deadline, live_leader=False)
        finally:
            # Nodes that stay down after a failed step would make all later steps of the test fail too, and hide the
            # cause.
            deadline = max(deadline, time.monotonic() + 20.0)
            self._nodes.start_all(deadline - time.monotonic())
            restored = {key: former.get(key) for key in (_UNCLEAN, MIN_ISR)}
            self._admin.alter(ConfigResourceType.TOPIC, topic, restored, deadline)
        self._topics.wait_in_sync(topic, partition, deadline - time.monotonic())
        return LostRecords(topic, partition, min(kept, end), end, self._topics.leader(topic, partition))

    def lose_log(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 60.0
    ) -> LostRecords:
        topic, partition = as_place(topic, partition)
        deadline = time.monotonic() + timeout_s
        replicas = self._topics.wait_in_sync(topic, partition, timeout_s).replicas
        self._nodes.kill_together([self._nodes.find(node) for node in replicas])
        first = min(int(self._topics.log_segments(topic, partition, node)[0].stem) for node in replicas)
        end = max(self._topics.log_end(topic, partition, node) for node in replicas)
        for node in replicas:
            shutil.rmtree(self._nodes.data_dir(node) / f"{topic}-{partition}")
        self._nodes.start_together([self._nodes.find(node) for node in replicas], deadline, wait=True)
        state = self._topics.wait_in_sync(topic, partition, max(1.0, deadline - time.monotonic()))
        return LostRecords(topic, partition, first, end, state.leader)

    def expire_producers(self, topics: Iterable[str] | None = None, timeout_s: float = 30.0) -> None:
        self._release.require((3, 5), "expire_producers")
        deadline = time.monotonic() + timeout_s
        up = [node for node in self._layout.brokers if self._nodes.lives(node)]
        normal = {
            node: self._admin.settings_of(ConfigResourceType.BROKER, str(node), deadline, "all")[_EXPIRATION]
            for node in up
        }
        for node in up:
            self._admin.alter(ConfigResourceType.BROKER, str(node), {_EXPIRATION: "1"}, deadline)
        try:
            self._admin.run(
                lambda admin: self._until_forgotten(admin, topics, deadline), deadline, "expire producers"
            )
        finally:
            deadline = max(deadline, time.monotonic() + 10)
            for node in up:
                self._admin.alter(ConfigResourceType.BROKER, str(node), {_EXPIRATION: normal[node]}, deadline)
            for node in up:
                while (
                    self._admin.settings_of(ConfigResourceType.BROKER, str(node), deadline, "all")[
                        _EXPIRATION
                    ]
                    != normal[node]
                ):
                    if time.monotonic() > deadline:
                        raise self._workspace.error(
                            f"broker {node} did not take {_EXPIRATION} back", [self._nodes.find(node)]
                        )
                    time.sleep(POLL_S)

    def _until_forgotten(
        self, admin: KafkaAdminClient, topics: Iterable[str] | None, deadline: float
    ) -> None:
        wanted = None if topics is None else list(topics)
        hosted: dict[int, list[TopicPartition]] = {}
        for topic in admin.describe_topics(wanted):
            if wanted is None and topic["is_internal"]:
                continue
            for row in topic["partitions"]:
                for node in row["replica_nodes"]:
                    if self._nodes.lives(node):
                        where = TopicPartition(topic["name"], row["partition_index"])
                        hosted.setdefault(node, []).append(where)
        for node, partitions in hosted.items():
            while any(
                s.active_producers for s in admin.describe_producers(partitions, broker_id=node).values()
            ):
                if time.monotonic() > deadline:
                    raise self._workspace.error(f"broker {node} still knows producers", [])
                time.sleep(POLL_S)
