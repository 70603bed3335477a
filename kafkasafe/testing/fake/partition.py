"""One partition: its replicas, its leader, its in-sync replicas, and the leader's answers. Pure.

Followers copy the leader's batches at once, unless they are down, suspended or held back. The high watermark is the
smallest log end of all in-sync replicas. So a test can create every replication state that a slow network causes in a
real cluster, and can keep it for any length of time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafkasafe.record.batch import BatchHeader
from kafkasafe.testing.fake.checks import RefusedError, admit
from kafkasafe.testing.fake.log import Aborted, ReplicaLog

OFFSET_OUT_OF_RANGE: Final = 1
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
NOT_ENOUGH_REPLICAS: Final = 19
INVALID_REQUIRED_ACKS: Final = 21
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
OFFSET_NOT_AVAILABLE: Final = 78

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

_FIRST_WITH_MAX_TIMESTAMP: Final = 7  # ListOffsets
_FIRST_WITH_NOT_AVAILABLE: Final = 5  # ListOffsets
_DEBUGGING_REPLICA: Final = -2
_NO_PRODUCER: Final = -1


@dataclass(frozen=True, slots=True)
class Appended:
    """A batch in the leader's log.

    Attributes:
        base_offset: Offset of the batch. For a duplicate, the offset of the copy that was appended first.
        log_append_time_ms: -1 unless the broker set the timestamps.
        end_offset: When the high watermark reaches this offset, all in-sync replicas have the batch.
    """

    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """A leader's answer to Fetch."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    data: bytes = b""
    aborted: tuple[Aborted, ...] = ()
    diverging: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A leader's answer to ListOffsets."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1


class Partition:
    """A partition and all its replicas.

    Attributes:
        replicas: Node ids, the preferred leader first.
        in_sync: The in-sync replicas; never empty.
        leader: Node id; -1 while the partition has no leader.
        leader_epoch: Leader epoch, which grows by one with each change of the leader.
        logs: The replicas' logs, by node.
        lagging: Followers that currently do not replicate, but stay in the set of in-sync replicas.
    """

    def __init__(self, topic: str, number: int, replicas: Sequence[int]) -> None:
        self.topic = topic
        self.number = number
        self.replicas = list(replicas)
        self.in_sync = set(replicas)
        self.leader = -1
        self.leader_epoch = -1
        self.logs = {node: ReplicaLog() for node in replicas}
        self.lagging: set[int] = set()

    def __repr__(self) -> str:
        return (
            f"<{self.topic}-{self.number} leader {self.leader} epoch {self.leader_epoch}"
            f" in sync {sorted(self.in_sync)} of {self.replicas}>"
        )

    @property
    def log(self) -> ReplicaLog:
        """The leader's log."""
        return self.logs[self.leader]

    # -- Leaders -----------------------------------------------------------------------------------------------------

    def lead(self, node: int) -> None:
        """Makes a replica the leader (-1: none), with a new leader epoch."""
        self.leader = node
        self.leader_epoch += 1
        if node < 0:
            return
        self.lagging.discard(node)
        self.log.assign_epoch(self.leader_epoch, self.log.end_offset)

    def move(self, node: int) -> None:
        """Makes an in-sync replica the leader, and also the preferred leader."""
        if node != self.leader:
            self.lead(node)
        self.replicas.sort(key=lambda other: other != node)

    def elect(self, able: Callable[[int], bool], *, unclean: bool) -> bool:
        """Elects a leader if the current one is not able to lead. Returns whether anything changed.

        Args:
            able: Function that returns whether the controller considers a node alive.
            unclean: Whether to elect a replica that is not in sync if no other can lead. Records that the elected
                replica lacks are lost.
        """
        if self.leader >= 0 and able(self.leader):
            return False
        for node in self.replicas:
            if able(node) and node in self.in_sync:
                self.lead(node)
                self._shrink(able)
                return True
        if unclean:
            for node in self.replicas:
                if able(node):
                    self.in_sync = {node}
                    self.lead(node)
                    return True
        if self.leader >= 0:
            self.in_sync = {self.leader} if self.leader in self.in_sync else self.in_sync
            self.lead(-1)
            return True
        return False

    def _shrink(self, able: Callable[[int], bool]) -> None:
        self.in_sync = {node for node in self.in_sync if able(node)} or self.in_sync

    def controlled(self, able: Callable[[int], bool], *, unclean: bool) -> None:
        """Lets the controller react to the nodes' state: the controller elects leaders, and removes dead replicas from
        the in-sync replicas.
        """
        self.elect(able, unclean=unclean)
        if self.leader >= 0:
            self._shrink(able)

    def hold_back(self, node: int, *, on: bool) -> None:
        """Stops a follower's replication, but leaves it in the set of in-sync replicas. With `on=False`, it replicates
        again.
        """
        (self.lagging.add if on else self.lagging.discard)(node)

    def release(self) -> None:
        """Lets all followers replicate."""
        self.lagging.clear()

    def wipe(self) -> None:
        """Deletes all replicas' logs. The partition begins at offset 0 again."""
        self.logs = {node: ReplicaLog() for node in self.replicas}
        if self.leader >= 0:
            self.log.assign_epoch(self.leader_epoch, 0)

    def replicate(self, fetching: Callable[[int], bool], *, least_in_sync: int = 1) -> None:
        """Lets followers copy the leader's batches, and advances the high watermark.

        Args:
            fetching: Function that returns whether a broker is running and not suspended.
            least_in_sync: Minimum number of in-sync replicas for the high watermark to advance.
        """
        if self.leader < 0 or not fetching(self.leader):
            return
        leader = self.log
        for _ in range(2):  # in the second round the followers learn the new high watermark
            for node in self.replicas:
                if node != self.leader and node not in self.lagging and fetching(node):
                    self._reconcile(self.logs[node], leader)
                    self.logs[node].copy_from(leader)
                    if self.logs[node].end_offset >= leader.end_offset:
                        self.in_sync.add(node)
            if len(self.in_sync) < least_in_sync:
                continue
            leader.advance_high_watermark(min(self.logs[node].end_offset for node in self.in_sync))

    @staticmethod
    def _reconcile(follower: ReplicaLog, leader: ReplicaLog) -> None:
        """Truncates a follower's log to the part that it shares with the leader's log (KIP-101, KIP-279)."""
        while follower.epochs:
            epoch, end = leader.end_of_epoch(follower.latest_epoch)
            if end < 0:
                follower.truncate(leader.end_offset)  # the leader's log has only older epochs
                epoch, end = leader.latest_epoch, leader.end_offset
            mine = follower.end_of_epoch(epoch)[1]
            before = follower.end_offset, tuple(follower.epochs)
            follower.truncate(min(end, mine) if mine >= 0 else end)
            if follower.latest_epoch <= epoch or before == (follower.end_offset, tuple(follower.epochs)):
                return
        if follower.end_offset > leader.end_offset:
            follower.truncate(leader.end_offset)

    def check_leader(self, node: int, current_leader_epoch: int = -1) -> ReplicaLog:
        """Returns the log, if this node is the leader and the client's leader epoch is right.

        Raises:
            RefusedError: With code 6, 74 or 75.
        """
        self._check_epoch(current_leader_epoch)
        if node != self.leader:
            raise RefusedError(NOT_LEADER_OR_FOLLOWER)
        return self.log

    def _check_epoch(self, current_leader_epoch: int) -> None:
        if current_leader_epoch < 0:
            return
        if current_leader_epoch < self.leader_epoch:
            raise RefusedError(FENCED_LEADER_EPOCH)
        if current_leader_epoch > self.leader_epoch:
            raise RefusedError(UNKNOWN_LEADER_EPOCH)

    def check_replica(self, node: int, current_leader_epoch: int = -1) -> ReplicaLog:
        """Returns the log of this node, leader or follower, if the client's leader epoch is right.

        Raises:
            RefusedError: With code 6, 74 or 75.
        """
        self._check_epoch(current_leader_epoch)
        if node not in self.logs:
            raise RefusedError(NOT_LEADER_OR_FOLLOWER)
        return self.logs[node]

    # -- Requests ----------------------------------------------------------------------------------------------------

    def append(
        self,
        node: int,
        data: bytes,
        *,
        acks: int,
        now_ms: int,
        settings: Mapping[str, str],
        least_in_sync: int,
    ) -> Appended:
        """Appends the batch of a Produce request.

        Raises:
            RefusedError: With the code of the answer.
        """
        if acks not in {-1, 0, 1}:
            raise RefusedError(INVALID_REQUIRED_ACKS)
        log = self.check_leader(node)
        if acks == -1 and len(self.in_sync) < least_in_sync:
            raise RefusedError(NOT_ENOUGH_REPLICAS)
        by_broker = settings["message.timestamp.type"] == "LogAppendTime"
        header = admit(
            data,
            now_ms=now_ms,
            max_bytes=int(settings["max.message.bytes"]),
            log_append_time=by_broker,
            keys_needed="compact" in settings["cleanup.policy"],
            ahead_ms=_limit(settings["message.timestamp.after.max.ms"]),
            behind_ms=_limit(settings["message.timestamp.before.max.ms"]),
        )
        if (seen := self._check_producer(log, header)) is not None:
            return seen
        batch = log.append(data, self.leader_epoch, now_ms if by_broker else None)
        return Appended(batch.base_offset, now_ms if by_broker else -1, log.start_offset, batch.end_offset)

    @staticmethod
    def _check_producer(log: ReplicaLog, header: BatchHeader) -> Appended | None:
        if header.producer_id == _NO_PRODUCER:
            return None
        seen = log.producers.duplicate_of(header)
        if seen is not None:
            return Appended(seen.base_offset, seen.timestamp, log.start_offset, seen.last_offset + 1)
        log.producers.check(header)
        log.producers.check_transaction(header)
        return None

    def fetch(
        self,
        node: int,
        offset: int,
        *,
        max_bytes: int,
        read_committed: bool,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        at_least_one: bool = True,
        any_replica: bool = False,
    ) -> Fetched:
        """Answers a consumer's Fetch request.

        Args:
            node: Node id of the broker that got the request.
            offset: First offset.
            max_bytes: Maximum size of the result in bytes. A larger first batch may exceed it.
            read_committed: Whether to read only up to the last stable offset, and to return the aborted transactions.
            current_leader_epoch: The epoch that the client expects; -1: unknown.
            last_fetched_epoch: Leader epoch of the record before `offset`; -1: unknown.
            at_least_one: Return a larger first batch completely.
            any_replica: Whether followers serve the request as well.

        Raises:
            RefusedError: With the code of the answer.
        """
        check = self.check_replica if any_replica else self.check_leader
        log = check(node, current_leader_epoch)
        high = log.high_watermark
        known = high, log.last_stable_offset, log.start_offset
        if last_fetched_epoch >= 0:
            epoch, end = log.end_of_epoch(last_fetched_epoch)
            if end < 0:
                raise RefusedError(OFFSET_OUT_OF_RANGE)
            if epoch < last_fetched_epoch or end < offset:
                return Fetched(*known, diverging=(epoch, end))
        if not log.start_offset <= offset <= log.end_offset:
            raise RefusedError(OFFSET_OUT_OF_RANGE)
        below = log.last_stable_offset if read_committed else high
        data = log.read(offset, below, max_bytes, at_least_one=at_least_one)
        aborted = tuple(log.aborted_between(offset, below)) if read_committed else ()
        return Fetched(*known, data=data, aborted=aborted)

    def list_offset(
        self,
        node: int,
        timestamp: int,
        *,
        version: int,
        replica_id: int,
        read_committed: bool,
        current_leader_epoch: int = -1,
    ) -> Listed:
        """Answers a ListOffsets request for one partition.

        Args:
            node: Node id of the broker that got the request.
            timestamp: Ms since the epoch, or one of the constants `LATEST` … `EARLIEST_PENDING_UPLOAD`.
            version: API version. After an election, until the high watermark is known, the error code depends on this
                version.
            replica_id: -1: a consumer. -2: a debugging replica. If a debugging replica's request has no leader epoch,
                every replica answers, not only the leader.
            read_committed: Whether this client reads only up to the last stable offset.
            current_leader_epoch: The epoch that the client expects; -1: unknown.

        Raises:
            RefusedError: With the code of the answer.
        """
        if replica_id == _DEBUGGING_REPLICA and node in self.logs and current_leader_epoch < 0:
            log = self.logs[node]
        else:
            log = self.check_leader(node, current_leader_epoch)
        shown = log.last_stable_offset if read_committed else log.high_watermark
        limit = shown if replica_id == -1 else log.end_offset
        stale = replica_id == -1 and log.high_watermark < log.epochs[-1][1] if log.epochs else False
        unsure = RefusedError(
            OFFSET_NOT_AVAILABLE if version >= _FIRST_WITH_NOT_AVAILABLE else LEADER_NOT_AVAILABLE
        )
        if timestamp == LATEST:
            if stale:
                raise unsure
            return Listed(limit, leader_epoch=log.latest_epoch)
        if timestamp in {EARLIEST, EARLIEST_LOCAL}:
            return Listed(log.start_offset, leader_epoch=log.epoch_at(log.start_offset))
        if timestamp in {LATEST_TIERED, EARLIEST_PENDING_UPLOAD}:
            return Listed(-1)
        # In older versions of ListOffsets, the number `MAX_TIMESTAMP` is an ordinary timestamp.
        largest = timestamp == MAX_TIMESTAMP and version >= _FIRST_WITH_MAX_TIMESTAMP
        found = log.latest_record() if largest else log.first_since(timestamp)
        if found is None or found[0] >= limit:
            if stale and not largest:
                raise unsure
            return Listed(-1)
        return Listed(*found)


def _limit(text: str) -> int | None:
    """A number of ms; None for the largest possible number, which means "no limit"."""
    value = int(text)
    return None if value == 2**63 - 1 else value
