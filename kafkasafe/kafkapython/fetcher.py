"""kafka-python's fetcher, extended to ask an `Owner` for decisions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from kafka.future import Future
from kafka.structs import TopicPartition

from kafkasafe.kafkapython.batches import BatchFetcher
from kafkasafe.kafkapython.fetching_ahead import FetchingAhead, Sessions
from kafkasafe.kafkapython.owner import Owner
from kafkasafe.limits.fetch_ahead import ResponseEnd

__all__ = ["Fetcher"]

_DECIDED_S: Final = 0.1
"""How often to check whether an atomic batch that a partition waits for is decided, seconds."""


class Fetcher(BatchFetcher):
    """kafka-python's fetcher with the decisions of a SafeConsumer.

    This class replaces the code with which kafka-python 3.0.12 resets and checks positions. It also fixes faults in
    reading from followers (KIP-392): kafka-python does not fetch from a partition while its follower's connection is in
    back-off. After kafka-python left a follower, the leader sends it back to that follower.

    This fetcher also fetches ahead while records wait for `poll`, and wakes the I/O thread only if a fetch can be sent.
    """

    owner: Owner
    _lost_nodes: set[int]
    """Brokers to which a fetch failed. kafka-python's I/O thread adds them; the consumer's thread removes them."""
    _ahead: FetchingAhead

    def serve(self, owner: Owner) -> None:
        """Ask this object for decisions from now on."""
        self.owner = owner
        self._lost_nodes = set()
        self.begin_holding()
        self._ahead = FetchingAhead(self._subscriptions)
        self._session_handlers = Sessions(self._session_handlers)

    def take_lost_nodes(self) -> list[int]:
        """Return the brokers to which fetches failed since the last call."""
        found = []
        while self._lost_nodes:
            found.append(self._lost_nodes.pop())
        return found

    def reset_offsets_if_needed(self, timeout_ms: float | None = None) -> None:  # noqa: ARG002  # kafka-python's signature
        """Begin the resets that are due."""
        self.owner.positions.begin_resets()

    def maybe_validate_positions(self) -> None:
        """Begin the checks of positions that are due."""
        self.owner.checking.begin()

    def validate_offsets_if_needed(self, timeout_ms: float | None = None) -> None:  # noqa: ARG002
        """Apply the results of checks and resets."""
        self.owner.results.carry_on()

    def _handle_fetch_error(self, node_id: int, exception: BaseException) -> None:
        """Handle a failed fetch request, on kafka-python's I/O thread."""
        parent: Any = super()
        parent._handle_fetch_error(node_id, exception)
        if self.owner.followers.failed(node_id, time.monotonic()):
            self.owner.port.request_metadata()
        self._lost_nodes.add(node_id)

    def fetch_records(
        self, max_records: int | None = None, update_offsets: bool = True, timeout_ms: float | None = None
    ) -> Any:
        """See kafka-python's method. It also returns when one of the owner's time limits is reached, or when a check
        has a result.
        """
        due_s = self.owner.due_s()
        # This call may send a fetch to a follower, so do not wait longer than a follower may take.
        waits_s = [self.owner.followers.patience_s] if self.config["client_rack"] else []
        if self.owner.rereading.holds:
            waits_s.append(_DECIDED_S)
        for wait_s in waits_s if due_s is None else [*waits_s, due_s]:
            timeout_ms = wait_s * 1000 if timeout_ms is None else min(wait_s * 1000, timeout_ms)
        # kafka-python waits for `_reset_task`, so the completion of this future wakes `poll`.
        if self.owner.parts.is_busy():
            if self._reset_task is None or self._reset_task.is_done:
                self._reset_task = Future()
                if self.owner.runner.has_work:
                    self.owner.port.wake()
        else:
            self._reset_task = None
        parent: Any = super()
        return parent.fetch_records(max_records, update_offsets=update_offsets, timeout_ms=timeout_ms)

    def _fetchable_partitions(self) -> Sequence[TopicPartition]:
        return [*self._without_data(), *self._session_handlers.chosen]

    def _without_data(self) -> Sequence[TopicPartition]:
        """Return the partitions of which no record waits, in a response or an iterator, and that do not rest."""
        parent: Any = super()
        resting = self.owner.parts.resting(time.monotonic())
        return [tp for tp in parent._fetchable_partitions() if tp not in resting and not self._held.has(tp)]

    def _fetched_ahead(self) -> dict[TopicPartition, ResponseEnd]:
        """Return the partitions to fetch ahead, and where their next fetch begins."""
        if not self._enable_incremental_fetch_sessions:
            return {}
        without = self.owner.parts.resting(time.monotonic()).union(
            self._paused_completed_fetches, self._paused_partition_records
        )
        waiting = [each.topic_partition for each in self._completed_fetches.copy()]
        size: Any = self.config["max_partition_fetch_bytes"]
        return self._ahead.choose(waiting, self._next_partition_records, without, size)

    def _may_send(self) -> bool:
        pending = self._nodes_with_pending_fetch_requests
        node_of = self.owner.port.read_from
        return any(node_of(tp) not in pending for tp in (*self._without_data(), *self._fetched_ahead()))

    def _create_fetch_requests(self) -> Any:
        """Create the requests, including those that fetch ahead."""
        checked = {}
        chosen = {}
        for tp, end in self._fetched_ahead().items():
            part = self.owner.parts.get(tp)
            if part is not None and part.checked is not None:
                checked[tp], chosen[tp] = part.checked, end
        self._session_handlers.choose(chosen)
        try:
            requests = self._requests()
        finally:
            self._session_handlers.choose({})
        self._ahead.mark(requests, chosen, checked)
        return requests

    def _requests(self) -> Any:
        """Create the requests. Requests for partitions that left a follower have no rack id: otherwise the leader would
        name the follower again.
        """
        parent: Any = super()
        if not self.config["client_rack"]:
            return parent._create_fetch_requests()
        followers, now = self.owner.followers, time.monotonic()
        self._leave_followers(now)
        requests: Any = parent._create_fetch_requests()
        leader_of = self.owner.port.leader
        for node_id, (request, offsets) in requests.items():
            if followers.leaves(offsets, now):
                request.rack_id = ""
            followers.asked(node_id, [tp for tp in offsets if leader_of(tp) != node_id], now)
        return requests

    def _leave_followers(self, now: float) -> None:
        """Fetch from the leader if a partition's follower cannot be used. Refresh the metadata in this case."""
        followers, port = self.owner.followers, self.owner.port
        left = set(followers.hang(now))
        for tp, state in port.assigned().items():
            named = state.preferred_read_replica()
            if named is None:
                continue
            # While the follower's connection is in back-off, kafka-python would not fetch the partition at all.
            if not port.can_follow(tp, named):
                left.add(tp)
            if tp in left or followers.leaves([tp], now):
                state.clear_preferred_read_replica()
        if left:
            followers.leave(left, now)
            port.request_metadata()

    def _handle_fetch_response(
        self, node_id: int, fetch_offsets: Any, send_time: float, response: Any
    ) -> None:
        """On kafka-python's I/O thread: mark late errors of followers that the consumer has left, so that they are
        ignored.
        """
        parent: Any = super()
        errors = [
            (TopicPartition(topic.topic, row.partition_index), row)
            for topic in response.responses
            for row in topic.partitions
            if row.error_code
        ]
        if errors:
            self.owner.followers.note_errors(node_id, errors)
        self._ahead.arrived(fetch_offsets, response, read_committed=bool(self._isolation_level))
        parent._handle_fetch_response(node_id, fetch_offsets, send_time, response)

    def _clear_pending_fetch_request(self, node_id: int, result: Any) -> None:
        """On kafka-python's I/O thread: note the end of a fetch request, successful or not."""
        parent: Any = super()
        self.owner.followers.answered(node_id)
        self._ahead.answered(node_id)
        parent._clear_pending_fetch_request(node_id, result)

    def _parse_fetched_data(self, completed_fetch: Any) -> Any:
        if (rest := self._rest_before(completed_fetch)) is not None:
            return rest
        if self._held.postpones(completed_fetch):
            return None
        is_late = self.owner.followers.is_late(completed_fetch.partition_data)
        if not is_late and self.owner.responses.accept(completed_fetch):
            parent: Any = super()
            # An empty response makes this offset the position. A later fetch from there is not ahead of the position.
            usual = completed_fetch._replace(fetched_offset=int(completed_fetch.fetched_offset))
            return parent._parse_fetched_data(usual)
        tp = completed_fetch.topic_partition
        if completed_fetch.metric_aggregator:
            completed_fetch.metric_aggregator.record(tp, 0, 0)
        self.owner.port.move_to_end(tp)
        return None
