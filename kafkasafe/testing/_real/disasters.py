"""What is done to a cluster on purpose: leaders that move, logs that lose their ends, producers that are forgotten."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResourceType

from kafkasafe._core.batch import iter_headers
from kafkasafe.errors import UsageError
from kafkasafe.testing._real.node import MIN_ISR, POLL_S
from kafkasafe.testing._real.topics import Topics, as_place
from kafkasafe.testing._real.values import LostRecords, PartitionState, UnsupportedByVersionError

__all__ = ["Disasters"]

_UNCLEAN = "unclean.leader.election.enable"
_EXPIRATION = "producer.id.expiration.ms"


class Disasters(Topics):
    """Part of `KafkaCluster`."""

    def move_leader(
        self, topic: str | TopicPartition, partition: int = 0, to: int | None = None, timeout_s: float = 30.0
    ) -> int:
        """Moves a partition's leadership to another in-sync replica, orderly: nothing is lost, no node stops.

        Args:
            topic: Topic name.
            partition: Its number.
            to: The new leader's node id; by default the next in-sync replica.
            timeout_s: Seconds it may take.

        Returns:
            The new leader's node id.

        Raises:
            UnsupportedByVersionError: Kafka before 2.4.
            UsageError: There is no such in-sync replica, or no other one.
            ClusterError: Not moved in time.
        """
        self._require((2, 4), "move_leader")
        topic, partition = as_place(topic, partition)
        deadline = time.monotonic() + timeout_s
        state = self.wait_in_sync(topic, partition, timeout_s)
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
            self._admin(move, deadline, f"move {topic}-{partition} to broker {target}")

        def moved(states: Mapping[int, PartitionState]) -> bool:
            now = states.get(partition)
            return now is not None and now.leader == target and now.replicas[0] == target

        self._until_topic(topic, moved, deadline, live_leader=False)
        return target

    def unclean_failover(
        self,
        topic: str | TopicPartition,
        partition: int = 0,
        during: Callable[[], object] | None = None,
        timeout_s: float = 60.0,
    ) -> LostRecords:
        """Makes a replica leader that missed writes: acknowledged records are lost, the log is truncated.

        Kills the followers, calls `during` (what it writes is acknowledged by the leader alone), kills the leader,
        starts a follower, which is elected uncleanly, and then all the others, which truncate their logs to its.
        For the time of the call the topic has `min.insync.replicas=1` and `unclean.leader.election.enable=true`;
        other partitions on the same brokers suffer the same kills, but not the election. Afterwards, also after an
        exception, all nodes are up and the topic's settings are what they were.

        Args:
            topic: Topic name; at least two replicas.
            partition: Its number.
            during: Called once while the leader is the only in-sync replica. Without it only what others write
                meanwhile is lost.
            timeout_s: Seconds it may take, `during` included.

        Returns:
            The lost offsets, and the new leader. All replicas are in sync with it again.

        Raises:
            UsageError: The partition has one replica.
            ClusterError: A step did not happen in time.
        """
        topic, partition = as_place(topic, partition)
        deadline = time.monotonic() + timeout_s
        before = self.wait_in_sync(topic, partition, timeout_s)
        followers = [node for node in before.replicas if node != before.leader]
        if not followers:
            raise UsageError(
                f"{topic}-{partition} has one replica: there is no other replica to fail over to"
            )
        former = self._settings_of(ConfigResourceType.TOPIC, topic, deadline)
        self._alter(ConfigResourceType.TOPIC, topic, {_UNCLEAN: "true", MIN_ISR: "1"}, deadline)
        try:
            self._kill([self._node(node) for node in followers])
            kept = self._log_end(followers[0], topic, partition)

            def alone(states: Mapping[int, PartitionState]) -> bool:
                return partition in states and states[partition].in_sync == (before.leader,)

            self._until_topic(topic, alone, deadline, live_leader=False)
            if during is not None:
                during()
            self.kill(before.leader)
            end = self._log_end(before.leader, topic, partition)
            self.start(followers[0], max(1.0, deadline - time.monotonic()))

            def taken(states: Mapping[int, PartitionState]) -> bool:
                return partition in states and states[partition].leader == followers[0]

            self._until_topic(topic, taken, deadline, live_leader=False)
        finally:
            # What a failed step left down would fail everything after it, and hide why.
            deadline = max(deadline, time.monotonic() + 20.0)
            self.start_all(deadline - time.monotonic())
            restored = {key: former.get(key) for key in (_UNCLEAN, MIN_ISR)}
            self._alter(ConfigResourceType.TOPIC, topic, restored, deadline)
        self.wait_in_sync(topic, partition, deadline - time.monotonic())
        return LostRecords(topic, partition, min(kept, end), end, self.leader(topic, partition))

    def lose_log(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 60.0
    ) -> LostRecords:
        """Wipes a partition on all its replicas, as a lost disk would: it starts again at offset 0.

        Kills the brokers that hold it, removes the partition's directory on each, starts them again. No client
        is told of this by an error code; an acknowledgement with a lower offset is all there is to see.

        Returns:
            The lost offsets, and the leader of the empty partition.
        """
        topic, partition = as_place(topic, partition)
        deadline = time.monotonic() + timeout_s
        replicas = self.wait_in_sync(topic, partition, timeout_s).replicas
        self._kill([self._node(node) for node in replicas])
        first = min(int(self.log_segments(topic, partition, node)[0].stem) for node in replicas)
        end = max(self._log_end(node, topic, partition) for node in replicas)
        for node in replicas:
            shutil.rmtree(self.data_dir(node) / f"{topic}-{partition}")
        self._start([self._node(node) for node in replicas], deadline, wait=True)
        state = self.wait_in_sync(topic, partition, max(1.0, deadline - time.monotonic()))
        return LostRecords(topic, partition, first, end, state.leader)

    def _log_end(self, node: int, topic: str, partition: int) -> int:
        """End offset of a replica whose broker is down, from its files."""
        last = self.log_segments(topic, partition, node)[-1]
        end = int(last.stem)
        for _, header in iter_headers(last.read_bytes()):
            end = header.last_offset + 1
        return end

    def expire_producers(self, topics: Iterable[str] | None = None, timeout_s: float = 30.0) -> None:
        """Makes the brokers forget all idempotent producers, as they do after 24 h without a write.

        Afterwards a batch sent again is appended again: the deduplication state is gone, the records stay.
        Returns when no replica of the topics knows a producer any more and the 24 h are in force again; what is
        written meanwhile may be forgotten too.

        Args:
            topics: Topics to wait for (default: all but the internal ones). Expiry itself is cluster-wide.
            timeout_s: Seconds it may take: one or two are usual.

        Raises:
            UnsupportedByVersionError: Kafka before 3.5 can change the setting only at start: pass
                `config={"transactional.id.expiration.ms": …}` there.
            ClusterError: Producers were still known in the end: an open transaction keeps its producer, and so
                does a `producer.id.expiration.check.interval.ms` that you set longer than `timeout_s`.
        """
        self._require((3, 5), "expire_producers")
        deadline = time.monotonic() + timeout_s
        up = [node for node in self.brokers if self._lives(node)]
        normal = {
            node: self._settings_of(ConfigResourceType.BROKER, str(node), deadline, "all")[_EXPIRATION]
            for node in up
        }
        for node in up:
            self._alter(ConfigResourceType.BROKER, str(node), {_EXPIRATION: "1"}, deadline)
        try:
            self._admin(
                lambda admin: self._until_forgotten(admin, topics, deadline), deadline, "expire producers"
            )
        finally:
            deadline = max(deadline, time.monotonic() + 10)
            for node in up:
                self._alter(ConfigResourceType.BROKER, str(node), {_EXPIRATION: normal[node]}, deadline)
            for node in up:
                while (
                    self._settings_of(ConfigResourceType.BROKER, str(node), deadline, "all")[_EXPIRATION]
                    != normal[node]
                ):
                    if time.monotonic() > deadline:
                        raise self._error(
                            f"broker {node} did not take {_EXPIRATION} back", [self._node(node)]
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
                    if self._lives(node):
                        where = TopicPartition(topic["name"], row["partition_index"])
                        hosted.setdefault(node, []).append(where)
        for node, partitions in hosted.items():
            while any(
                s.active_producers for s in admin.describe_producers(partitions, broker_id=node).values()
            ):
                if time.monotonic() > deadline:
                    raise self._error(f"broker {node} still knows producers", [])
                time.sleep(POLL_S)

    def recover(self, timeout_s: float = 60.0) -> None:
        """Resumes what is paused, starts what is down, and returns when all brokers serve. Cheap if all do."""
        for node in self._nodes.values():
            if node.paused:
                self.resume(node.id)
        if not all(node.running for node in self._nodes.values()):
            self.start_all(timeout_s)

    def _require(self, version: tuple[int, ...], what: str) -> None:
        if self._number < version:
            raise UnsupportedByVersionError(
                f"{what} needs Kafka {'.'.join(map(str, version))} or later; this is {self.version}"
            )
