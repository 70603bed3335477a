"""Fetch from partitions whose last response still waits for `poll` (`kafkasafe.limits.fetch_ahead`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kafka.consumer.fetcher import FetchSessionHandler
from kafka.structs import TopicPartition

from kafkasafe.limits.fetch_ahead import AheadOffset, FetchAhead, ResponseEnd
from kafkasafe.record.batch import last_header


def end_of(records: Any, fetch_offset: int) -> ResponseEnd | None:
    """Return the end of the batches in a response; None if the response contains no complete batch, or an older message
    format.

    Args:
        records: The batches of the response, as bytes; None if the response has none. The CRCs are not checked.
        fetch_offset: Offset from which the response was fetched.
    """
    last = last_header(records or b"")
    return (
        None if last is None else ResponseEnd(fetch_offset, last.last_offset + 1, last.partition_leader_epoch)
    )


class Sessions(dict[int, Any]):
    """kafka-python's fetch sessions, by broker, changed so that a fetch can begin at a higher offset than the position.

    Before its first request to a broker, kafka-python adds a session to this dict. For each request, kafka-python asks
    the session which partitions the request must contain.

    Attributes:
        chosen: Partition to fetch ahead -> where to begin. Empty unless the I/O thread is making requests.
    """

    def __init__(self, sessions: Mapping[int, Any]) -> None:
        super().__init__()
        self.chosen: Mapping[TopicPartition, ResponseEnd] = {}
        for node in sessions:
            self[node] = sessions[node]

    def choose(self, chosen: Mapping[TopicPartition, ResponseEnd]) -> None:
        """Set the partitions that the next requests fetch ahead."""
        self.chosen = chosen

    def __setitem__(self, node: int, session: Any) -> None:
        super().__setitem__(node, session if isinstance(session, _Session) else _Session(node, self))


class _Session(FetchSessionHandler):
    def __init__(self, node: int, sessions: Sessions) -> None:
        parent: Any = super()
        parent.__init__(node)
        self._sessions = sessions

    def build_next(self, next_partitions: Mapping[TopicPartition, Any]) -> Any:
        """See kafka-python's method. Each value of `next_partitions` describes a partition in the request."""
        for tp, end in self._sessions.chosen.items():
            asked = next_partitions.get(tp)
            if asked is not None:
                asked.fetch_offset, asked.last_fetched_epoch = end.end_offset, end.leader_epoch
        parent: Any = super()
        return parent.build_next(next_partitions)


class FetchingAhead:
    """Chooses the partitions that a consumer fetches ahead."""

    def __init__(self, subscriptions: Any) -> None:
        self._subscriptions = subscriptions
        self._ahead: FetchAhead[TopicPartition] = FetchAhead()
        self._in_flight: dict[int, int] = {}
        """For each broker with a request in flight: how many partitions the request fetches ahead."""

    def arrived(
        self, fetch_offsets: Mapping[TopicPartition, int], response: Any, *, read_committed: bool
    ) -> None:
        """Store where the batches of a response end. Called on kafka-python's I/O thread."""
        for topic in response.responses:
            for row in topic.partitions:
                tp = TopicPartition(topic.topic, row.partition_index)
                available = row.last_stable_offset if read_committed else row.high_watermark
                end = None if row.error_code else end_of(row.records, fetch_offsets[tp])
                self._ahead.arrived(tp, end, available)
        self._ahead.keep(self._subscriptions.assignment)

    def choose(
        self,
        waiting: Iterable[TopicPartition],
        current: Any,
        without: Collection[TopicPartition],
        fetch_bytes: int,
    ) -> dict[TopicPartition, ResponseEnd]:
        """Return the partitions to fetch ahead. Any thread may call this method.

        Args:
            waiting: One item for each response from which `poll` has taken nothing yet: the response's partition.
            current: The response from which `poll` takes records now; None or false if no records are left in it.
            without: Partitions that are not fetched ahead.
            fetch_bytes: Number of bytes that a request asks for, for each partition.
        """
        counts = Counter(waiting)
        if current:
            counts[current.topic_partition] += 1
        positions = []
        for tp, count in counts.items():
            state = self._subscriptions.assignment.get(tp)
            if count == 1 and tp not in without and state is not None and state.is_fetchable():
                positions.append((tp, state.position.offset))
        ahead = sum(counts.values()) - len(counts) + sum(self._in_flight.copy().values())
        return self._ahead.choose(positions, fetch_bytes, count=ahead)

    def mark(
        self,
        requests: Mapping[int, tuple[Any, dict[TopicPartition, int]]],
        chosen: Mapping[TopicPartition, ResponseEnd],
        checked: Mapping[TopicPartition, Any],
    ) -> None:
        """For each partition that a request fetches ahead, store the leader for which the position was checked."""
        for node, (_, offsets) in requests.items():
            ahead = offsets.keys() & chosen.keys()
            self._in_flight[node] = len(ahead)
            for tp in ahead:
                offsets[tp] = AheadOffset(offsets[tp], checked[tp])

    def answered(self, node: int) -> None:
        """Forget a request that has ended, successfully or not."""
        self._in_flight.pop(node, None)
