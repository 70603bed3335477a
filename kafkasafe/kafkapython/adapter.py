"""Access to kafka-python's state of partitions, group and metadata, for the objects that make a consumer's decisions.

`each_record` is the consumer's iterator. It reads kafka-python's states without a call for each record.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from kafka.future import Future
from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe.history.epochs import UNDEFINED

Leadership: TypeAlias = tuple[bytes | None, int, int]
"""Topic id, leader and leader epoch, from the metadata."""
_IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]

_position: Final[Any] = functools.partial(tuple.__new__, OffsetAndMetadata)
"""Make a position from a tuple. OffsetAndMetadata's own constructor costs as much as all other work for a record."""


class KafkaPython:
    """The parts of kafka-python that are used in decisions about positions. A *state* is kafka-python's object for one
    assignment of a partition.
    """

    __slots__ = ("_coordinator", "_fetcher", "_manager", "_subscription", "isolation")

    def __init__(self, subscription: Any, fetcher: Any, coordinator: Any, manager: Any) -> None:
        self._subscription = subscription
        self._fetcher = fetcher
        self._coordinator = coordinator
        self._manager = manager
        self.isolation: _IsolationLevel = (
            "read_committed" if int(fetcher._isolation_level) else "read_uncommitted"
        )

    # --- positions ----------------------------------------------------------------------------------------------------

    @property
    def strategy(self) -> int:
        """The option `auto_offset_reset`, as a timestamp for ListOffsets (-1 or -2). Any other number means that resets
        are forbidden.
        """
        return int(self._subscription._default_offset_reset_strategy)

    def assigned(self) -> dict[TopicPartition, Any]:
        """Return a copy of the assignment: states by partition. Any thread may call this method.

        The copy is made under kafka-python's lock, because kafka-python's I/O thread changes the assignment.
        """
        with self._subscription._lock:
            return dict(self._subscription.assignment)

    def state(self, tp: TopicPartition) -> Any:
        """Return the state of a partition; None if it is not assigned."""
        return self._subscription.assignment.get(tp)

    def place(self, tp: TopicPartition, offset: int, epoch: int = UNDEFINED) -> None:
        """Set the position of a partition, and end its reset. If Ctrl-C interrupts this poll, the position is kept."""
        self._fetcher.taken.forget(tp)
        self._subscription.seek(tp, OffsetAndMetadata(offset, "", epoch))

    def hold(self, state: Any) -> None:
        """Fetch nothing for this assignment until `release`, or until the assignment gets another position."""
        state._awaiting_validation = True

    def release(self, state: Any) -> None:
        state.complete_validation()

    def reposition(self, state: Any, offset: int) -> None:
        """Set the position of this assignment, without a leader epoch. A held assignment stays held."""
        state.position = OffsetAndMetadata(offset, "", UNDEFINED)

    def reset(self, tp: TopicPartition, strategy: int) -> None:
        """Drop the position of a partition. Until `place` is called, `resetting` returns this partition."""
        self._subscription.request_offset_reset(tp, strategy)

    def resetting(self) -> Collection[TopicPartition]:
        """Return the partitions that need a reset."""
        found: Collection[TopicPartition] = self._subscription.partitions_needing_reset()
        return found

    def missing(self) -> Collection[TopicPartition]:
        """Return the partitions that have no position, and no requested reset."""
        found: Collection[TopicPartition] = self._subscription.missing_fetch_positions()
        return found

    def reset_missing(self) -> bool:
        """Mark the `missing` partitions as needing a reset. Return whether all assigned partitions have a position.

        Raises:
            NoOffsetForPartitionError: No reset is allowed.
        """
        self._subscription.reset_missing_positions()
        return self.is_placed()

    def is_placed(self) -> bool:
        """Return whether all partitions have a position."""
        return bool(self._subscription.has_all_fetch_positions())

    def consumed(
        self, unhanded: Mapping[TopicPartition, int], is_allowed: Callable[[TopicPartition, int], bool]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return positions for a commit. Any thread may call this method.

        Args:
            unhanded: Partition -> first offset that the commit must not cover. Not every partition has an entry.
            is_allowed: Returns whether the offset of a partition may be committed. It is called under kafka-python's
                lock, so that no `seek` can change the position between this check and the choice of the offset.
        """
        found = {}
        with self._subscription._lock:
            for tp, state in self._subscription.assignment.items():
                if not state.has_valid_position:
                    continue
                first, position = unhanded.get(tp), state.position
                if first is not None and first < position.offset:
                    position = OffsetAndMetadata(first, "", UNDEFINED)
                if is_allowed(tp, position.offset):
                    found[tp] = position
        return found

    def committable(self) -> dict[TopicPartition, Any]:
        """Return the offsets for a commit without explicit offsets."""
        found: dict[TopicPartition, Any] = self._subscription.all_consumed_offsets()
        return found

    def renew(self, tp: TopicPartition, state: Any) -> bool:
        """If `state` is the partition's current state, treat the partition as newly assigned. Return whether it was the
        current state.
        """
        with self._subscription._lock:
            if self._subscription.assignment.get(tp) is not state:
                return False
            fresh = type(state)()
            if state.paused:
                fresh.pause()
            self._subscription.assignment[tp] = fresh
        return True

    # --- the group ----------------------------------------------------------------------------------------------------

    def committed(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None
    ) -> Mapping[Any, Any]:
        """Fetch the group's committed offsets of these partitions.

        Raises:
            KafkaTimeoutError: The coordinator did not answer in time.
        """
        found: Mapping[Any, Any] = self._coordinator.fetch_committed_offsets(
            partitions, timeout_ms=timeout_ms
        )
        return found

    def forget_committed(self) -> None:
        """Ignore answers to earlier requests for the group's offsets, so that the next `committed` sends a new request.

        Otherwise kafka-python would keep a request after its time-out, and use the late answer.
        """
        self._coordinator._offset_fetch_futures.clear()

    def generation(self) -> tuple[Any, Any]:
        """Return the id of the group's generation, and the consumer's member id in this generation."""
        generation = self._coordinator._generation
        return generation.generation_id, generation.member_id

    def is_subscribed(self) -> bool:
        """Return whether the group assigns partitions."""
        return bool(self._subscription.partitions_auto_assigned())

    def leave_group(self, reason: str, timeout_ms: float) -> None:
        """Leave the group, and join it again as another member with the next poll. The consumer loses its partitions.

        A static member sends no request. When it joins again under the same instance id, the group gives it a new
        member id and its former place (KIP-345).

        Args:
            reason: For the broker's log (KIP-800).
            timeout_ms: How long to wait for the answer. If no answer comes, the group keeps the former member until
                that member's session times out. The new join cannot complete before that.
        """
        self._coordinator.maybe_leave_group(reason, timeout_ms)

    # --- brokers ------------------------------------------------------------------------------------------------------

    def leadership(self, tp: TopicPartition) -> Leadership | None:
        """Return a partition's leadership according to the metadata; None if the partition has no leader. Any thread
        may call this method.
        """
        cluster = self._manager.cluster
        leader = cluster.leader_for_partition(tp)
        if leader is None or leader < 0:
            return None
        epoch = cluster.leader_epoch_for_partition(tp)
        topic_id = cluster.topic_id(tp.topic)
        number = None if topic_id is None else topic_id.bytes
        return number, leader, UNDEFINED if epoch is None else epoch

    def learn_leader(self, tp: TopicPartition, data: Any) -> None:
        """Store the leader that a fetch response names (KIP-951)."""
        self._fetcher._maybe_update_current_leader(tp, data)

    def may_create(self, _: str) -> bool:
        """Return whether the brokers may create a missing topic that the consumer needs. Any thread may call this.

        With a subscription by pattern, kafka-python requests the metadata of all topics. Brokers create no topic then.
        If a request on another connection recreated a deleted topic, the pattern would select the new topic.
        """
        return not self._manager.cluster.need_all_topic_metadata

    def request_metadata(self) -> None:
        self._manager.cluster.request_update()

    def is_connected(self) -> bool:
        """Return whether a connection to a broker is open. Any thread may call this method."""
        return bool(self._manager.has_connection)

    def wake(self) -> None:
        """Wake `poll`. Our network thread calls this method, but only kafka-python's own thread may complete
        kafka-python's futures.
        """
        alarm = self._fetcher._reset_task
        if isinstance(alarm, Future) and not alarm.is_done:
            with contextlib.suppress(RuntimeError):  # kafka-python's loop was closed meanwhile
                self._manager.call_soon(_complete, alarm)


def _complete(alarm: Future) -> None:
    if not alarm.is_done:
        alarm.success(None)


def each_record(poll: Callable[[], Mapping[TopicPartition, list[Any]]], subscription: Any) -> Iterator[Any]:
    """Poll once, and yield the records like kafka-python's iterator.

    Before a record is yielded, the position of its partition becomes the offset after this record. If, between two
    records, the partition is paused, reset, checked or newly assigned, the remaining records are dropped. kafka-python
    fetches them again later.

    Args:
        poll: Function that polls without moving positions.
        subscription: kafka-python's subscription state.
    """
    for tp, records in poll().items():
        state = subscription.assignment.get(tp)
        if state is None:
            continue
        for record in records:
            # Does the same as `is_fetchable` of the subscription, but without its lock. The lock would not help,
            # because another thread could make a change right after this line.
            if (
                state.paused
                or state._pending_revocation
                or state._position is None
                or state._awaiting_validation
                or subscription.assignment.get(tp) is not state
            ):
                break
            state._position = _position((record[3] + 1, "", record[2]))
            yield record


def unreturned(iterator: Any) -> tuple[Any, OffsetAndMetadata] | None:
    """Return the partition's state, and the position of the record that `iterator` (`each_record`) yielded last.

    Ctrl-C may interrupt the iterator's caller before the caller returns this record. Then the caller moves the position
    back to the record, which would be skipped otherwise. The result is None if Ctrl-C ended the iterator before the
    iterator had moved the position.
    """
    frame = iterator.gi_frame
    if frame is None:
        return None
    state, record = frame.f_locals.get("state"), frame.f_locals.get("record")
    if record is None or state._position is None or state._position[0] != record[3] + 1:
        return None
    return state, OffsetAndMetadata(record[3], "", UNDEFINED)
