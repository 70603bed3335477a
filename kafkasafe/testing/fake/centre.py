"""The state of the whole cluster: brokers, topics, and the controller's actions. Pure.

This module uses no I/O, threads or clock. Methods that depend on time get the time as an argument, in ms since the
epoch. `advance` does everything that has become due. The cluster's topics consist of the objects of `partition.py`. The
handlers of clients' requests, `groups.py` and `transactions.py` also use these partitions. Methods raise `RefusedError`
with the error code that a broker would answer. If a test requests something impossible, methods raise ordinary
exceptions.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kafkasafe.errors import UsageError
from kafkasafe.testing.fake.checks import RefusedError
from kafkasafe.testing.fake.log import ReplicaLog
from kafkasafe.testing.fake.partition import OFFSET_OUT_OF_RANGE, Appended, Partition
from kafkasafe.testing.fake.settings import (
    RACK_AWARE,
    Profile,
    broker_settings,
    effective,
    topic_settings,
)

UNKNOWN_TOPIC_OR_PARTITION: Final = 3
INVALID_TOPIC: Final = 17
TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
CLUSTER_AUTHORIZATION_FAILED: Final = 31
TOPIC_ALREADY_EXISTS: Final = 36
TOPIC_DELETION_DISABLED: Final = 73
INVALID_PARTITIONS: Final = 37
INVALID_REPLICATION_FACTOR: Final = 38
INVALID_REPLICA_ASSIGNMENT: Final = 39
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
UNKNOWN_TOPIC_ID: Final = 100

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state"})

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_DENIED: Final = {
    "topic": TOPIC_AUTHORIZATION_FAILED,
    "group": GROUP_AUTHORIZATION_FAILED,
    "cluster": CLUSTER_AUTHORIZATION_FAILED,
    "transactional_id": TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
OPERATIONS: Final = frozenset({"read", "write", "describe", "describe_configs", "create", "delete", "alter"})


@dataclass(slots=True)
class Broker:
    """One broker.

    Attributes:
        rack: The broker's rack; None if it does not report one.
        up: Whether the broker's process is running.
        paused: Whether the broker's process is running but suspended.
        fenced: Whether the controller considers the broker dead.
        fence_at: Time at which the controller will consider the broker dead, in ms; None: never.
    """

    node: int
    rack: str | None = None
    up: bool = True
    paused: bool = False
    fenced: bool = False
    fence_at: int | None = None

    @property
    def serves(self) -> bool:
        """Whether the broker answers requests."""
        return self.up and not self.paused

    def end(self) -> None:
        """Marks the broker's process as ended."""
        self.up = self.paused = False

    def pause(self) -> None:
        """Marks the broker's process as suspended."""
        self.paused = True

    def resume(self) -> None:
        """Marks the suspended process as running again. The broker sends heartbeats to the controller again."""
        self.paused = self.fenced = False
        self.fence_at = None

    def register(self) -> None:
        """Marks the broker's process as started, and the broker as registered with the controller."""
        self.up, self.fenced, self.fence_at = True, False, None

    def lose_session(self, fence_at: int) -> None:
        """Marks the broker as no longer sending heartbeats. `fence_at` is the time at which the controller will fence
        the broker.
        """
        self.fence_at = fence_at

    def fence(self) -> None:
        """Marks the broker as dead from the controller's view."""
        self.fenced, self.fence_at = True, None


@dataclass(slots=True)
class Topic:
    """A topic. If a topic is deleted and created again, the new topic is another object with another id."""

    name: str
    topic_id: uuid.UUID
    partitions: dict[int, Partition]
    settings: dict[str, str] = field(default_factory=dict)

    def alter(self, changes: Mapping[str, object | None], profile: Profile) -> None:
        """Changes settings; None restores a default.

        Raises:
            RefusedError: With code 40.
        """
        kept = {key: value for key, value in self.settings.items() if key not in changes}
        wanted = {key: value for key, value in changes.items() if value is not None}
        self.settings = kept | topic_settings(profile, wanted)


class Centre:
    """The state of a cluster.

    Args:
        settings: The brokers' settings by Kafka's names.
        racks: The racks (`broker.rack`), by node id. Brokers without a rack are missing.

    Attributes:
        cluster_id: The cluster's id, as brokers report it.
        brokers: The brokers, by node id.
        topics: The topics, by name.
        denied: The forbidden operations: (operation, kind of resource, name).
        replication_factor: Replication factor of topics that are created without one.
    """

    def __init__(
        self,
        brokers: int,
        profile: Profile,
        settings: Mapping[str, object],
        racks: Mapping[int, str],
        *,
        cluster_id: str,
        now_ms: int,
    ) -> None:
        self.profile = profile
        self.settings = broker_settings(profile, settings)
        self.cluster_id = cluster_id
        self.brokers = {node: Broker(node, racks.get(node)) for node in range(1, brokers + 1)}
        self.topics: dict[str, Topic] = {}
        self.denied: set[tuple[str, str, str]] = set()
        self.replication_factor = min(3, brokers)
        self._producer_ids = 0
        self._topic_ids = 0
        self._next_leader = 0
        self.now_ms = now_ms
        self._expired_at = now_ms
        self._retained_at = now_ms

    # -- Time --------------------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """Does everything that is due: the controller notices dead brokers, and brokers forget expired producers and
        remove old records.
        """
        self.now_ms = max(self.now_ms, now_ms)
        for broker in self.brokers.values():
            if broker.fence_at is not None and broker.fence_at <= self.now_ms and self._watched():
                broker.fence()
                self.controlled()
        if self.now_ms - self._expired_at >= int(self.settings["producer.id.expiration.check.interval.ms"]):
            self._expired_at = self.now_ms
            self.expire_producers()
        if self.now_ms - self._retained_at >= int(self.settings["log.retention.check.interval.ms"]):
            self._retained_at = self.now_ms
            self.retain()

    def next_due_ms(self) -> int | None:
        """Time at which `advance` next has something to do; None: never."""
        if not self._watched():
            return None
        return min(
            (broker.fence_at for broker in self.brokers.values() if broker.fence_at is not None), default=None
        )

    def _watched(self) -> bool:
        """Whether a controller is running. Without a controller, dead brokers are not noticed."""
        return not self.profile.brokers_control or any(broker.serves for broker in self.brokers.values())

    def expire_producers(self) -> None:
        """Forgets producers that have not written for `producer.id.expiration.ms`."""
        self._expire(log for partition in self.partitions() for log in partition.logs.values())

    def _expire(self, logs: Iterable[ReplicaLog]) -> None:
        after = int(self.settings["producer.id.expiration.ms"])
        for log in logs:
            log.producers.expire(self.now_ms, after)

    def forget_producers(self, topics: Sequence[str] | None) -> None:
        """Forgets all idempotent producers, as after a day without a write. Open transactions stay."""
        for partition in self.partitions():
            if topics is None or partition.topic in topics:
                for log in partition.logs.values():
                    log.producers.expire(2**62, 0)

    def retain(self) -> None:
        """Applies the topics' retention by time and size: removes old segments from each log."""
        for topic in self.topics.values():
            settings = self.settings_of(topic)
            if "delete" not in settings["cleanup.policy"]:
                continue
            keep_ms, keep_bytes = int(settings["retention.ms"]), int(settings["retention.bytes"])
            for partition in topic.partitions.values():
                if partition.leader < 0:
                    continue
                log, size = partition.log, partition.log.size_bytes
                start = log.start_offset
                for segment in log.segments(int(settings["segment.bytes"])):
                    newest = max(batch.header.max_timestamp for batch in segment)
                    segment_bytes = sum(len(batch.data) for batch in segment)
                    old = 0 <= keep_ms < self.now_ms - newest
                    too_much = 0 <= keep_bytes <= size - segment_bytes
                    if not (old or too_much) or segment[-1].end_offset > log.high_watermark:
                        break
                    size -= segment_bytes
                    start = segment[-1].end_offset
                log.advance_start(start)
        self.replicate()

    # -- Brokers -----------------------------------------------------------------------------------------------------

    def able(self, node: int) -> bool:
        """Whether a broker may be a leader, from the controller's view."""
        return not self.brokers[node].fenced

    def serves(self, node: int) -> bool:
        """Whether a broker is active: it answers requests, and it replicates."""
        return self.brokers[node].serves

    @property
    def controller(self) -> int:
        """Node id of the broker that metadata names as the controller."""
        return next((node for node, broker in self.brokers.items() if not broker.fenced), -1)

    def kill(self, node: int) -> None:
        """Ends the broker's process. The controller notices the broker's death after the session timeout."""
        broker = self.brokers[node]
        if broker.up:
            broker.end()
            self._lose_session(broker)

    def stop(self, node: int) -> None:
        """Shuts a broker down in an orderly way: first brings its followers up to date. Then other leaders are elected
        at once.
        """
        broker = self.brokers[node]
        self.replicate()
        broker.end()
        if self._watched():
            broker.fence()
        else:
            broker.lose_session(self.now_ms)
        self.controlled()

    def pause(self, node: int) -> None:
        """Suspends the broker's process. The controller notices the suspension after the session timeout."""
        broker = self.brokers[node]
        if broker.up and not broker.paused:
            broker.pause()
            self._lose_session(broker)

    def _lose_session(self, broker: Broker) -> None:
        broker.lose_session(self.now_ms + int(self.settings["broker.session.timeout.ms"]))
        self.advance(self.now_ms)

    def resume(self, node: int) -> None:
        """Resumes a suspended process."""
        broker = self.brokers[node]
        if broker.paused:
            broker.resume()
            self.controlled()

    def fence(self, node: int) -> None:
        """Lets the controller notice at once that a broker's process has ended."""
        self.brokers[node].fence()
        self.controlled()

    def start(self, node: int) -> None:
        """Starts a broker whose process has ended. It still has its data."""
        broker = self.brokers[node]
        if broker.up:
            return
        if self._watched():
            # If the controller has not noticed that the broker's process ended, it notices when the broker registers
            # again.
            self.fence(node)
        logs = [partition.logs[node] for partition in self.partitions() if node in partition.logs]
        for log in logs:
            log.producers.restarted()
        self._expire(logs)
        broker.register()
        self.controlled()

    def controlled(self) -> None:
        """Lets the controller act on the state of the brokers, and lets followers fetch."""
        for topic in self.topics.values():
            unclean = self.settings_of(topic)["unclean.leader.election.enable"] == "true"
            for partition in topic.partitions.values():
                partition.controlled(self.able, unclean=unclean)
        self.replicate()

    def replicate(self) -> None:
        """Lets followers copy the batches of their leaders."""
        for partition in self.partitions():
            self._replicate(partition)

    def _replicate(self, partition: Partition) -> None:
        least = self.least_in_sync(partition) if self.profile.caps_in_sync else 1
        partition.replicate(self.serves, least_in_sync=least)

    # -- Topics ------------------------------------------------------------------------------------------------------

    def partitions(self) -> Iterator[Partition]:
        """All partitions."""
        for topic in self.topics.values():
            yield from topic.partitions.values()

    def settings_of(self, topic: Topic) -> dict[str, str]:
        """All settings of a topic, including defaults."""
        return effective(self.settings, topic.settings)

    def least_in_sync(self, partition: Partition) -> int:
        """Number of replicas that must be in sync for acks=all; 1 if the topic was deleted."""
        topic = self.topics.get(partition.topic)
        if topic is None:
            return 1
        wanted = int(self.settings_of(topic)["min.insync.replicas"])
        return min(wanted, len(partition.replicas)) if self.profile.caps_in_sync else wanted

    def topic(self, name: str) -> Topic:
        """Returns a topic.

        Raises:
            RefusedError: With code 3.
        """
        try:
            return self.topics[name]
        except KeyError:
            raise RefusedError(UNKNOWN_TOPIC_OR_PARTITION) from None

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic:
        """Returns a topic by its id.

        Raises:
            RefusedError: With code 100.
        """
        for topic in self.topics.values():
            if topic.topic_id == topic_id:
                return topic
        raise RefusedError(UNKNOWN_TOPIC_ID)

    def partition(self, name: str, number: int) -> Partition:
        """Returns a partition.

        Raises:
            RefusedError: With code 3.
        """
        try:
            return self.topic(name).partitions[number]
        except KeyError:
            raise RefusedError(UNKNOWN_TOPIC_OR_PARTITION) from None

    def check_name(self, name: str) -> None:
        """Checks a topic's name.

        Raises:
            RefusedError: With code 17.
        """
        if not _NAME.fullmatch(name) or name in {".", ".."}:
            raise RefusedError(INVALID_TOPIC, f"The topic name {name!r} is illegal")

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        settings: Mapping[str, object] | None = None,
        assignments: Mapping[int, Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> Topic:
        """Creates a topic.

        Raises:
            RefusedError: With code 17, 36, 37, 38, 39 or 40.
        """
        self.check_name(name)
        if name in self.topics:
            raise RefusedError(TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        alike = name.replace(".", "_")
        if near := next((one for one in self.topics if one.replace(".", "_") == alike), None):
            raise RefusedError(INVALID_TOPIC, f"Topic '{name}' collides with existing topic: {near}")
        own = topic_settings(self.profile, settings or {})
        if assignments is None:
            count = int(self.settings["num.partitions"]) if partitions == -1 else partitions
            placed = self._placed(range(count), replication_factor)
        else:
            placed = {number: list(nodes) for number, nodes in assignments.items()}
        if not placed:
            raise RefusedError(
                INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        self._check_placed(placed, range(len(placed)))
        self._topic_ids += 1
        topic = Topic(name, uuid.uuid5(uuid.NAMESPACE_OID, f"{self.cluster_id}/{self._topic_ids}"), {}, own)
        self._add_partitions(topic, placed)
        if not validate_only:
            self.topics[name] = topic
        return topic

    def _placed(self, numbers: Sequence[int], replication_factor: int) -> dict[int, list[int]]:
        copies = self.replication_factor if replication_factor == -1 else replication_factor
        nodes = [node for node in self.brokers if self.able(node)]
        if not 1 <= copies <= len(nodes):
            raise RefusedError(
                INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {copies} time(s): {len(nodes)} broker(s) are registered.",
            )
        placed = {}
        for number in numbers:
            first = self._next_leader % len(nodes)
            self._next_leader += 1
            placed[number] = [nodes[(first + k) % len(nodes)] for k in range(copies)]
        return placed

    def _check_placed(self, placed: Mapping[int, Sequence[int]], numbers: Sequence[int]) -> None:
        for nodes in placed.values():
            if not nodes or len(set(nodes)) != len(nodes) or not set(nodes) <= set(self.brokers):
                raise RefusedError(INVALID_REPLICA_ASSIGNMENT, f"Invalid replica assignment {list(nodes)}")
        if sorted(placed) != list(numbers):
            raise RefusedError(INVALID_REPLICA_ASSIGNMENT, "Partitions are numbered without a hole")

    def _add_partitions(self, topic: Topic, placed: Mapping[int, Sequence[int]]) -> None:
        for number, nodes in sorted(placed.items()):
            partition = topic.partitions[number] = Partition(topic.name, number, nodes)
            partition.elect(self.able, unclean=False)
            partition.controlled(self.able, unclean=False)

    def grow_topic(self, name: str, count: int, assignments: Sequence[Sequence[int]] | None = None) -> None:
        """Adds partitions to a topic.

        Raises:
            RefusedError: With code 3, 37 or 39.
        """
        topic = self.topic(name)
        known = len(topic.partitions)
        if count <= known:
            raise RefusedError(
                INVALID_PARTITIONS, f"Topic currently has {known} partition(s), {count} is not more."
            )
        numbers = range(known, count)
        if assignments is None:
            placed = self._placed(numbers, len(topic.partitions[0].replicas))
        else:
            placed = {known + at: list(nodes) for at, nodes in enumerate(assignments)}
        self._check_placed(placed, numbers)
        self._add_partitions(topic, placed)

    def delete_topic(self, name: str) -> Topic:
        """Deletes a topic with all its records.

        Raises:
            RefusedError: With code 3 or 73.
        """
        self.topic(name)
        if self.settings["delete.topic.enable"] == "false":
            raise RefusedError(TOPIC_DELETION_DISABLED)
        return self.topics.pop(name)

    def alter_topic(self, name: str, changes: Mapping[str, object | None]) -> None:
        """Changes settings; None restores a default.

        Raises:
            RefusedError: With code 3 or 40.
        """
        self.topic(name).alter(changes, self.profile)
        self.controlled()

    def wipe(self, name: str, number: int) -> None:
        """Deletes a partition's records, and everything derived from them, on all replicas. The partition begins at
        offset 0 again.
        """
        self.partition(name, number).wipe()

    def delete_records(self, node: int, name: str, number: int, before: int) -> int:
        """DeleteRecords. Returns the new first offset.

        Raises:
            RefusedError: With code 1, 3 or 6.
        """
        partition = self.partition(name, number)
        log = partition.check_leader(node)
        wanted = log.high_watermark if before == -1 else before
        if not 0 <= wanted <= log.high_watermark:
            raise RefusedError(OFFSET_OUT_OF_RANGE)
        log.advance_start(wanted)
        self.replicate()
        return log.start_offset

    # -- Clients -----------------------------------------------------------------------------------------------------

    def new_producer_id(self) -> int:
        """Returns an unused id."""
        self._producer_ids += 1
        return self._producer_ids - 1

    def append(self, node: int, name: str, number: int, data: bytes, acks: int) -> Appended:
        """Appends the batch of a Produce request to one partition. See `Partition.append`."""
        self.check_allowed("write", "topic", name)
        partition = self.partition(name, number)
        answer = partition.append(
            node,
            data,
            acks=acks,
            now_ms=self.now_ms,
            settings=self.settings_of(self.topic(name)),
            least_in_sync=self.least_in_sync(partition),
        )
        self._replicate(partition)
        return answer

    def preferred_replica(self, node: int, partition: Partition, offset: int, rack: str) -> int | None:
        """Returns the follower from which a consumer in this rack should read (KIP-392); None: from the leader. The
        follower is an in-sync replica in the same rack, and has the offset. If the leader is in the consumer's rack,
        too, the result is None.
        """
        if not rack or node != partition.leader or self.settings["replica.selector.class"] != RACK_AWARE:
            return None
        able = {other for other in partition.in_sync if self.able(other)}
        near = [other for other in partition.replicas if other in able and self.brokers[other].rack == rack]
        near = [other for other in near if partition.logs[other].has(offset)]
        if not near or node in near:
            return None
        return max(near, key=lambda other: partition.logs[other].end_offset)

    def check_allowed(self, operation: str, kind: str, name: str) -> None:
        """Checks whether clients may do `operation` on a resource.

        Raises:
            RefusedError: With code 29, 30, 31 or 53.
        """
        wanted = {(operation, kind, name), (operation, kind, "*")}
        if wanted & self.denied:
            raise RefusedError(_DENIED[kind])

    def deny(self, operation: str, kind: str, name: str, *, on: bool) -> None:
        """Forbids an operation to all clients, or permits it again.

        Raises:
            UsageError: No such operation or kind of resource.
        """
        if operation not in OPERATIONS or kind not in _DENIED:
            raise UsageError(
                f"Rights are {', '.join(sorted(OPERATIONS))} on {', '.join(_DENIED)}, not {operation} on {kind}"
            )
        change: Callable[[tuple[str, str, str]], None] = self.denied.add if on else self.denied.discard
        change((operation, kind, name))
