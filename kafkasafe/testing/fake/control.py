"""The methods with which tests control a fake cluster, over sockets or in virtual time."""

from __future__ import annotations

import contextlib
import uuid
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kafka import TopicPartition
from kafka.errors import KafkaError, for_code

from kafkasafe.errors import ConfigError, UsageError
from kafkasafe.record.batch import Columns, decode
from kafkasafe.testing.broker import ClusterError, LostRecords, PartitionState
from kafkasafe.testing.fake.checks import RefusedError
from kafkasafe.testing.fake.partition import Partition
from kafkasafe.testing.fake.request_handler import RequestHandler
from kafkasafe.testing.fake.settings import profile_of, racks_of
from kafkasafe.testing.fake.weather import Network

_MAX_BROKERS = 999


class Control(Network):
    """Brokers, topics, leaders and disasters. The methods have the same names as the methods of `KafkaCluster`."""

    def __init__(
        self,
        brokers: int,
        version: str,
        config: Mapping[str, object] | None,
        cluster_id: str,
        broker_config: Mapping[int, Mapping[str, object]] | None = None,
    ) -> None:
        count: object = brokers
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= brokers <= _MAX_BROKERS:
            raise ConfigError(f"brokers must be a whole number from 1 to {_MAX_BROKERS}, not {brokers!r}")
        self.version = version
        self.brokers = tuple(range(1, brokers + 1))
        """Node ids of the brokers."""
        for node in broker_config or {}:
            self._check_node(node)
        self._handler = RequestHandler(
            brokers,
            profile_of(version),
            {"min.insync.replicas": 2 if brokers >= 3 else 1} | dict(config or {}),
            racks_of(broker_config or {}),
            cluster_id=cluster_id,
            now_ms=self.now_ms(),
        )

    def __repr__(self) -> str:
        states = ", ".join(
            f"{broker.node} {'paused' if broker.paused else 'up' if broker.up else 'down'}"
            for broker in self._handler.centre.brokers.values()
        )
        return f"<{type(self).__name__} {self.version} [{states}]>"

    # --- what subclasses implement ----------------------------------------------------------------------------------

    @abstractmethod
    def now_ms(self) -> int:
        """The current time of the cluster, in ms since the epoch."""

    @abstractmethod
    def _until(self, condition: Callable[[], bool], timeout_s: float, message: str) -> None:
        """Lets time pass until `condition` holds. Raises `ClusterError` after `timeout_s`."""

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Context for a change of the cluster's state. Other threads cannot use the state during the change. When the
        context ends, all requests that can be answered now are answered, and connections to dead brokers are closed.
        """
        yield

    @property
    def cluster_id(self) -> str:
        """The cluster's id, as brokers report it."""
        return self._handler.centre.cluster_id

    # --- brokers ----------------------------------------------------------------------------------------------------

    def is_running(self, node: int) -> bool:
        """Whether the broker's process exists, even if it is paused."""
        self._check_node(node)
        return self._handler.centre.brokers[node].up

    def kill(self, node: int) -> None:
        """Like SIGKILL: connections end, and new ones are refused. Leaders move after `broker.session.timeout.ms`."""
        with self._acting(node) as handler:
            handler.centre.kill(node)

    def kill_all(self) -> None:
        """Like SIGKILL to all brokers at once. Data stays."""
        with self._acting() as handler:
            for node in self.brokers:
                handler.centre.kill(node)

    def stop(self, node: int) -> None:
        """Shuts a broker down in an orderly way: its partitions get other leaders at once."""
        with self._acting(node) as handler:
            handler.centre.stop(node)

    def start(self, node: int) -> None:
        """Starts a broker on its data. Does nothing if it is running."""
        with self._acting(node) as handler:
            handler.centre.start(node)

    def start_all(self) -> None:
        """Starts all brokers that are not running."""
        with self._acting() as handler:
            for node in self.brokers:
                handler.centre.start(node)

    def restart(self, node: int, *, hard: bool = False) -> None:
        """Calls `stop` (with `hard=True`, `kill`) and `start`."""
        (self.kill if hard else self.stop)(node)
        self.start(node)

    def pause(self, node: int) -> None:
        """Like SIGSTOP: connections stay open, but nothing answers. Leaders move after the session timeout."""
        with self._acting(node) as handler:
            handler.centre.pause(node)

    def resume(self, node: int) -> None:
        """Resumes a paused broker. Does nothing if it is not paused."""
        with self._acting(node) as handler:
            handler.centre.resume(node)

    def recover(self) -> None:
        """Repairs everything: resumes paused brokers, starts brokers that are down, and ends network faults."""
        self.restore()
        with self._acting() as handler:
            for node in self.brokers:
                handler.centre.resume(node)
                handler.centre.start(node)
            for partition in handler.centre.partitions():
                partition.release()
            handler.centre.controlled()

    def wait_ready(self) -> None:
        """Returns at once, because a started broker serves at once."""

    # --- topics -----------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
        *,
        assignments: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """Creates a topic.

        Args:
            name: Topic name.
            partitions: Number of partitions.
            replication_factor: Default min(3, brokers).
            config: Topic settings by Kafka's names.
            assignments: `{partition: [node, …]}`, preferred leaders first. Replaces `partitions` and
                `replication_factor`.

        Raises:
            kafka.errors.TopicAlreadyExistsError: The topic exists.
            kafka.errors.KafkaError: The cluster refused to create the topic (invalid name, setting …).
        """
        with self._acting() as handler:
            handler.centre.create_topic(name, partitions, replication_factor or -1, config, assignments)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic with its records. A new topic with the same name gets another id."""
        with self._acting() as handler:
            handler.centre.delete_topic(name)
            handler.groups.topic_deleted(name)

    def alter_topic(self, name: str, config: Mapping[str, object]) -> None:
        """Changes settings of a topic; its other settings stay."""
        with self._acting() as handler:
            handler.centre.alter_topic(name, config)

    def grow_topic(self, name: str, partitions: int) -> None:
        """Adds partitions to a topic, up to `partitions` partitions in total."""
        with self._acting() as handler:
            handler.centre.grow_topic(name, partitions)

    def delete_records(self, topic: str | TopicPartition, partition: int = 0, before: int = -1) -> int:
        """Removes the records before an offset (-1: the high watermark). Returns the new first offset."""
        found = self._partition(topic, partition)
        with self._acting() as handler:
            return handler.centre.delete_records(found.leader, found.topic, found.number, before)

    def records(self, topic: str | TopicPartition, partition: int = 0) -> list[Columns]:
        """The records of a partition up to the high watermark, decoded, batch by batch. The first batch is complete,
        even if it begins before the log start offset.
        """
        return self._shown(topic, partition)[1]

    def _shown(self, topic: str | TopicPartition, partition: int) -> tuple[int, list[Columns]]:
        """A partition's log start offset, and the records that `records` returns for the partition."""
        found = self._partition(topic, partition)
        with self._acting():
            log = self._led(found).log
            return log.start_offset, [
                decode(batch.data)
                for batch in log.batches
                if log.start_offset < batch.end_offset <= log.high_watermark
            ]

    def values(self, topic: str, partition: int | None = None) -> list[bytes | None]:
        """The values of the records up to the high watermark, of one partition, or of all partitions in sequence.

        The result includes records of aborted and open transactions.
        """
        with self._acting() as handler:
            numbers = [partition] if partition is not None else sorted(handler.centre.topic(topic).partitions)
        found: list[bytes | None] = []
        for number in numbers:
            start, batches = self._shown(topic, number)
            for columns in batches:
                if not columns.header.is_control:
                    # The log start offset may be in the middle of the first batch.
                    found += columns.values[max(0, start - columns.header.base_offset) :]
        return found

    # --- leaders ----------------------------------------------------------------------------------------------------

    def partition_state(self, topic: str | TopicPartition, partition: int = 0) -> PartitionState:
        """Leader, epoch, replicas and in-sync replicas.

        Raises:
            ClusterError: The partition does not exist.
        """
        found = self._partition(topic, partition)
        with self._acting():
            return PartitionState(
                found.leader, found.leader_epoch, tuple(found.replicas), tuple(sorted(found.in_sync))
            )

    def leader(self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 30.0) -> int:
        """Node id of the partition's leader. Waits for a leader that is neither killed nor paused."""
        found = self._partition(topic, partition)
        brokers = self._handler.centre.brokers
        self._until(
            lambda: found.leader >= 0 and brokers[found.leader].serves,
            timeout_s,
            f"{found!r} has no living leader",
        )
        return found.leader

    def wait_in_sync(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 60.0
    ) -> PartitionState:
        """Returns when all replicas of the partition are in sync and its leader is running."""
        found = self._partition(topic, partition)
        self._until(
            lambda: found.leader >= 0 and found.in_sync == set(found.replicas), timeout_s, f"{found!r}"
        )
        return self.partition_state(topic, partition)

    def wait_for_markers(self, timeout_s: float = 120.0) -> None:
        """Returns when all readers see the end of each transaction that was committed or aborted before this call.

        Raises:
            ClusterError: After `timeout_s` some transactions still lack markers.
        """
        transactions = self._handler.transactions
        self._until(
            lambda: not transactions.ending, timeout_s, "There are transactions without their markers"
        )

    def move_leader(self, topic: str | TopicPartition, partition: int = 0, to: int | None = None) -> int:
        """Moves a partition's leadership to another in-sync replica without a loss. Returns the new leader's node id.

        Raises:
            UsageError: `to` is not an in-sync replica, or the leader is the only in-sync replica.
        """
        found = self._partition(topic, partition)
        with self._acting() as handler:
            others = [n for n in found.replicas if n != found.leader and n in found.in_sync]
            target = to if to is not None else next(iter(others), -1)
            if target not in found.in_sync or not handler.centre.able(target):
                raise UsageError(f"{found!r} has no such in-sync replica to move to")
            found.move(target)
            handler.centre.replicate()
        return target

    def hold_back(
        self, node: int, topic: str | TopicPartition, partition: int = 0, *, on: bool = True
    ) -> None:
        """Stops a follower's replication, but leaves it in the set of in-sync replicas. So the high watermark does not
        advance. With `on=False`, the follower replicates again. Only the fake has this method.
        """
        found = self._partition(topic, partition)
        if node not in found.logs:
            raise UsageError(f"Broker {node} has no replica of {found!r}")
        with self._acting() as handler:
            found.hold_back(node, on=on)
            handler.centre.replicate()

    # --- disasters --------------------------------------------------------------------------------------------------

    def unclean_failover(
        self,
        topic: str | TopicPartition,
        partition: int = 0,
        during: Callable[[], object] | None = None,
    ) -> LostRecords:
        """Elects a leader that lacks the latest writes, so acknowledged records are lost, and logs are truncated.

        Like `KafkaCluster.unclean_failover`: ends the followers, calls `during`, kills the leader, and starts a
        follower, which wins an unclean election. Then starts the other replicas. During the call the topic has
        `min.insync.replicas=1` and `unclean.leader.election.enable=true`.

        Raises:
            UsageError: The partition has only one replica.
        """
        found = self._partition(topic, partition)
        self.leader(topic, partition)
        former = found.leader
        followers = [node for node in found.replicas if node != former]
        if not followers:
            raise UsageError(f"{found!r} has one replica: there is no other replica to fail over to")
        with self._acting() as handler:
            before = dict(handler.centre.topic(found.topic).settings)
            handler.centre.alter_topic(
                found.topic, {"min.insync.replicas": 1, "unclean.leader.election.enable": "true"}
            )
        try:
            with self._acting() as handler:
                for node in followers:
                    handler.centre.stop(node)
                kept = found.logs[followers[0]].end_offset
            if during is not None:
                during()
            with self._acting() as handler:
                handler.centre.kill(former)
                end = found.logs[former].end_offset
                handler.centre.start(followers[0])
                handler.centre.fence(former)
        finally:
            with self._acting() as handler:
                for node in self.brokers:
                    handler.centre.start(node)
                restored = {
                    name: before.get(name)
                    for name in ("min.insync.replicas", "unclean.leader.election.enable")
                }
                handler.centre.alter_topic(found.topic, restored)
        return LostRecords(found.topic, found.number, min(kept, end), end, found.leader)

    def lose_log(self, topic: str | TopicPartition, partition: int = 0) -> LostRecords:
        """Deletes a partition's log on all its replicas, as if their disks were lost. It starts again at offset 0."""
        found = self._partition(topic, partition)
        self.leader(topic, partition)
        with self._acting() as handler:
            first, end = found.log.start_offset, found.log.end_offset
            up = [node for node in found.replicas if handler.centre.brokers[node].up]
            for node in up:
                handler.centre.kill(node)
        with self._acting() as handler:
            handler.centre.wipe(found.topic, found.number)
            for node in up:
                handler.centre.start(node)
        return LostRecords(found.topic, found.number, first, end, found.leader)

    def expire_producers(self, topics: Iterable[str] | None = None) -> None:
        """Makes the brokers forget all idempotent producers, as after 24 h without a write."""
        with self._acting() as handler:
            handler.centre.forget_producers(None if topics is None else list(topics))

    def replace(self, cluster_id: str | None = None) -> None:
        """Replaces the cluster with a new, empty cluster at the same addresses. Only the fake has this method."""
        with self._acting() as handler:
            handler.reset(cluster_id or random_id(), self.now_ms())
        self.cut()

    def deny(
        self,
        operation: str,
        *,
        topic: str | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        on: bool = True,
    ) -> None:
        """Forbids an operation to all clients. With `on=False`, permits it again.

        Args:
            operation: "read", "write", "describe", "describe_configs", "create", "delete" or "alter".
            topic: Name of the topic; "*" for all.
            group: Name of the consumer group; "*" for all.
            transactional_id: The transactional id; "*" for all. Without `topic`, `group` and `transactional_id`, the
                resource is the cluster. If "write" is forbidden for the cluster, a client without a transactional id
                gets no producer id.
            on: True: forbid. False: permit.

        Raises:
            UsageError: The operation does not exist, or you passed more than one resource.
        """
        named = {"topic": topic, "group": group, "transactional_id": transactional_id}
        given = {kind: name for kind, name in named.items() if name is not None} or {
            "cluster": "kafka-cluster"
        }
        if len(given) > 1:
            raise UsageError(f"deny() takes one kind of resource, not {' and '.join(given)}")
        with self._acting() as handler:
            for kind, name in given.items():
                handler.centre.deny(operation, kind, name, on=on)

    def throttle(self, seconds: float, api: str | None = None, *, times: int | None = None) -> None:
        """Makes brokers throttle clients. An answer tells the client to pause, and the broker does not read from the
        connection during the pause.

        Args:
            seconds: Length of the pause; 0 ends the throttling.
            api: `"Produce"` …; None: all except ApiVersions.
            times: Number of answers; None: no limit.

        Raises:
            UsageError: `seconds` is negative.
        """
        if seconds < 0:
            raise UsageError(f"No time is negative: {seconds:g} s")
        with self._acting() as handler:
            handler.throttle(int(seconds * 1000), api, times)

    def _nodes(self, node: int | None) -> list[int]:
        if node is None:
            return list(self.brokers)
        self._check_node(node)
        return [node]

    @property
    def requests(self) -> Counter[str]:
        """Number of requests so far, by API name. A copy."""
        return Counter(self._handler.counts)

    @property
    def errors(self) -> list[BaseException]:
        """One error for each use of a feature that the fake does not have. The list is a copy."""
        return list(self._handler.errors)

    # --- helpers ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _acting(self, node: int | None = None) -> Iterator[RequestHandler]:
        """Context for one action. First brings the cluster up to the current time (`advance`). Converts a
        `RefusedError` to kafka-python's error for its code.
        """
        if node is not None:
            self._check_node(node)
        try:
            with self._held():
                self._handler.advance(self.now_ms())
                yield self._handler
        except RefusedError as refused:
            error: KafkaError = for_code(refused.code)(refused.message or "")
            raise error from None

    def _check_node(self, node: int) -> None:
        if node not in self.brokers:
            raise UsageError(f"there is no broker {node!r}; the brokers are {list(self.brokers)}")

    def _partition(self, topic: str | TopicPartition, partition: int) -> Partition:
        name, number = (topic, partition) if isinstance(topic, str) else (topic.topic, topic.partition)
        with self._held():
            try:
                return self._handler.centre.partition(name, number)
            except RefusedError:
                raise ClusterError(f"there is no {name}-{number}") from None

    @staticmethod
    def _led(partition: Partition) -> Partition:
        if partition.leader < 0:
            raise ClusterError(f"{partition!r} has no leader")
        return partition


def random_id() -> str:
    """Returns a new cluster id."""
    return f"fake-{uuid.uuid4().hex[:16]}"
