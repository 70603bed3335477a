"""Gives the objects that decide for a consumer access to kafka-python's partitions, group and metadata.

`kafkasafe._consuming.ports` defines the interfaces that the classes of this module implement, and documents the
methods.

`each_record`, the consumer's iterator, reads kafka-python's states without a call for each record.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, Literal

from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe.history.epochs import UNDEFINED

_position: Final[Any] = functools.partial(tuple.__new__, OffsetAndMetadata)
"""Makes a position from a tuple. (OffsetAndMetadata's constructor costs as much as all other work for a record.)"""


class KafkaAssignments:
    """The partitions of kafka-python's subscription."""

    __slots__ = ("_fetcher", "_subscription")

    def __init__(self, subscription: Any, fetcher: Any) -> None:
        self._subscription = subscription
        self._fetcher = fetcher

    @property
    def strategy(self) -> int:
        return int(self._subscription._default_offset_reset_strategy)

    def is_subscribed(self) -> bool:
        return bool(self._subscription.partitions_auto_assigned())

    def assigned(self) -> dict[TopicPartition, Any]:
        found: dict[TopicPartition, Any] = self._subscription.states()
        return found

    def state(self, tp: TopicPartition) -> Any:
        return self._subscription.assignment.get(tp)

    def renew(self, tp: TopicPartition, state: Any) -> bool:
        return bool(self._subscription.renew(tp, state))

    def place(self, tp: TopicPartition, offset: int, epoch: int = UNDEFINED) -> None:
        self._fetcher.taken.forget(tp)
        self._subscription.seek(tp, OffsetAndMetadata(offset, "", epoch))

    def reposition(self, state: Any, offset: int) -> None:
        state.position = OffsetAndMetadata(offset, "", UNDEFINED)

    def hold(self, state: Any) -> None:
        state._awaiting_validation = True

    def release(self, state: Any) -> None:
        state.complete_validation()

    def reset(self, tp: TopicPartition, strategy: int) -> None:
        self._subscription.request_offset_reset(tp, strategy)

    def reset_missing(self) -> None:
        self._subscription.reset_missing_positions()

    def consumed(
        self, unhanded: Mapping[TopicPartition, int], is_allowed: Callable[[TopicPartition, int], bool]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        # Under kafka-python's lock, no `seek` changes a position between `is_allowed` and the choice of the offset.
        with self._subscription._lock:
            return dict(self._consumed(unhanded, is_allowed))

    def _consumed(
        self, unhanded: Mapping[TopicPartition, int], is_allowed: Callable[[TopicPartition, int], bool]
    ) -> Iterator[tuple[TopicPartition, OffsetAndMetadata]]:
        for tp, state in self._subscription.assignment.items():
            if not state.has_valid_position:
                continue
            first, position = unhanded.get(tp), state.position
            if first is not None and first < position.offset:
                position = OffsetAndMetadata(first, "", UNDEFINED)
            if is_allowed(tp, position.offset):
                yield tp, position

    def committable(self) -> dict[TopicPartition, OffsetAndMetadata]:
        found: dict[TopicPartition, OffsetAndMetadata] = self._subscription.all_consumed_offsets()
        return found


class KafkaGroup:
    """kafka-python's group coordinator."""

    __slots__ = ("_coordinator",)

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator

    def committed(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        found: Mapping[TopicPartition, OffsetAndMetadata] = self._coordinator.fetch_committed_offsets(
            partitions, timeout_ms=timeout_ms
        )
        return found

    def forget_committed(self) -> None:
        self._coordinator._offset_fetch_futures.clear()

    def generation(self) -> tuple[int, str]:
        generation = self._coordinator._generation
        return generation.generation_id, generation.member_id

    def leave(self, reason: str, timeout_ms: float) -> None:
        self._coordinator.maybe_leave_group(reason, timeout_ms)


class KafkaMetadata:
    """The metadata of kafka-python's client, and its connections."""

    __slots__ = ("_fetcher", "_manager")

    def __init__(self, manager: Any, fetcher: Any) -> None:
        self._manager = manager
        self._fetcher = fetcher

    def leadership(self, tp: TopicPartition) -> tuple[bytes | None, int, int] | None:
        cluster = self._manager.cluster
        leader = cluster.leader_for_partition(tp)
        if leader is None or leader < 0:
            return None
        epoch = cluster.leader_epoch_for_partition(tp)
        topic_id = cluster.topic_id(tp.topic)
        number = None if topic_id is None else topic_id.bytes
        return number, leader, UNDEFINED if epoch is None else epoch

    def learn_leader(self, tp: TopicPartition, data: Any) -> None:
        self._fetcher._maybe_update_current_leader(tp, data)

    def request(self) -> None:
        self._manager.cluster.request_update()

    def may_create(self, topic: str) -> bool:  # noqa: ARG002  # it is the same for all topics
        # With a subscription by pattern, kafka-python requests the metadata of all topics, so that brokers create no
        # topic. A request on another connection could recreate a deleted topic, and the pattern would select it.
        return not self._manager.cluster.need_all_topic_metadata

    def is_connected(self) -> bool:
        return bool(self._manager.has_connection)


class KafkaPython:
    """The parts of one KafkaConsumer that are needed to decide about positions."""

    __slots__ = ("_fetcher", "assignments", "group", "isolation", "metadata")

    def __init__(self, subscription: Any, fetcher: Any, coordinator: Any, manager: Any) -> None:
        self._fetcher = fetcher
        self.assignments = KafkaAssignments(subscription, fetcher)
        self.group = KafkaGroup(coordinator)
        self.metadata = KafkaMetadata(manager, fetcher)
        self.isolation: Literal["read_uncommitted", "read_committed"] = (
            "read_committed" if int(fetcher._isolation_level) else "read_uncommitted"
        )

    def wake(self) -> None:
        self._fetcher.wake()


def each_record(poll: Callable[[], Mapping[TopicPartition, list[Any]]], subscription: Any) -> Iterator[Any]:
    """Poll once, and yield the records like kafka-python's iterator.

    Before a record is yielded, the position of its partition becomes the offset after this record. If the partition is
    paused, reset, checked or newly assigned between two records, its remaining records are dropped, and fetched again
    later.

    Args:
        poll: Function that polls without moving positions.
        subscription: kafka-python's subscription state.
    """
    for tp, records in poll().items():
        state = subscription.assignment.get(tp)
        if state is None:
            continue
        for record in records:
            # Do the same as `is_fetchable` of the subscription, but without its lock, because another thread could make
            # a change right after this check anyway.
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
    """Return the partition's state and the position of the last record that `iterator` (`each_record`) has yielded.

    If Ctrl-C interrupts the iterator's caller before the caller returns the record, the caller moves the position back,
    so that the record is not skipped. The result is None if Ctrl-C ended the iterator before the position moved.
    """
    frame = iterator.gi_frame
    if frame is None:
        return None
    state, record = frame.f_locals.get("state"), frame.f_locals.get("record")
    if record is None or state._position is None or state._position[0] != record[3] + 1:
        return None
    return state, OffsetAndMetadata(record[3], "", UNDEFINED)
