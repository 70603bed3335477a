"""kafka-python's fetcher, changed to ask an `Owner` for decisions, and to return records as Arrow tables if asked.

kafka-python's fetcher wraps the data fetched from a partition in a `PartitionRecords`, takes records from it, and moves
the position past them. kafka-python's fetcher also handles paused, unassigned and sought partitions, errors and
metrics. If the application asks for whole batches, `Fetcher` replaces `PartitionRecords` with a class that returns
RecordBatches, so that the same code moves the positions for records and for batches.

While responses are full, requests ask for more bytes than kafka-python's own requests (`limits/fetch_size`). If the
application reads both records and batches, requests stay as small as kafka-python's own, because each change between
records and batches discards the fetched data.

When the application changes between records and batches (or to other columns), the fetcher discards the data that the
application has not received yet, and fetches the data again from the position.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.consumer.fetcher import Fetcher as KafkaFetcher
from kafka.future import Future
from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe.kafkapython.adapter import unreturned
from kafkasafe.kafkapython.fetching_ahead import FetchingAhead, Sessions
from kafkasafe.kafkapython.given_records import HeldRecords, TakenRecords
from kafkasafe.kafkapython.loop import LoopClosedError
from kafkasafe.kafkapython.owner import Owner
from kafkasafe.kafkapython.records import Kind, Records
from kafkasafe.limits.fetch_ahead import ResponseEnd
from kafkasafe.limits.fetch_size import LARGE_FETCH_BYTES, FetchSize

# Limit for one call, in bytes of decompressed records. (The size limit of a fetch applies to compressed bytes.)
_CALL_BYTES: Final = 256 * 1024 * 1024


class Fetcher(KafkaFetcher):
    """kafka-python's fetcher, which can also return RecordBatches, and asks a SafeConsumer's `Owner` for decisions.

    This class replaces the code with which kafka-python 3.0.12 resets and checks positions. It also fetches ahead while
    records wait for `poll`, and wakes the I/O thread only if a fetch can be sent. This class fixes faults of
    kafka-python:

    - A fetch that could not be sent blocks its broker (see `_create_fetch_requests`).
    - An interrupt loses records (see `send_fetches`).
    - Records that an iterator holds are fetched again (see `HeldRecords`).
    - Damaged data is taken again and again.
    - Records that were fetched for a former assignment of a partition are returned.
    - The data of a paused partition keeps the response of all partitions in memory.
    - A partition is not fetched while the connection to its follower is in back-off. If a consumer reads from the
      leader instead, the leader names the same follower again (KIP-392).
    """

    owner: Owner
    taken: TakenRecords
    """The records that the current poll has taken."""
    _wanted: Kind | None = None  # None: return records
    _left_bytes: int = _CALL_BYTES
    _sends: bool = False  # whether this call of `fetch_records` has begun to send the next fetches
    _found: bool = False  # whether the last search has found records, which are not returned yet
    _size: FetchSize | None = None  # None: the size that the application has set
    _held: HeldRecords
    _ahead: FetchingAhead
    _completed_fetches: Any
    _fetch_futures: Any
    _manager: Any
    _next_partition_records: Any
    _nodes_with_pending_fetch_requests: set[int]
    _paused_completed_fetches: Any
    _paused_partition_records: Any
    _reset_task: Any
    _subscriptions: Any
    _sensors: Any
    _session_handlers: Any

    def serve(self, owner: Owner) -> None:
        """From now on, ask `owner` for decisions, and keep track of the records that a poll takes, and that an iterator
        holds.
        """
        self.owner = owner
        self._held = HeldRecords(self._subscriptions)
        self.taken = TakenRecords(self._subscriptions)
        self._ahead = FetchingAhead(self._subscriptions)
        self._session_handlers = Sessions(self._session_handlers)

    def choose_sizes(self) -> None:
        """From now on, the fetcher chooses `max_partition_fetch_bytes`."""
        config: Any = self.config
        most = min(LARGE_FETCH_BYTES, config["fetch_max_bytes"])
        self._size = FetchSize(config["max_partition_fetch_bytes"], most, config["request_timeout_ms"] / 1000)

    def sought(self, tp: TopicPartition) -> None:
        """Begins with small requests again. A `seek` of the application discards fetched records: the larger the
        requests, the more records are wasted.
        """
        self._held.forget()
        self.taken.forget(tp)
        if self._size is not None:
            self._size.restart(time.monotonic())

    @contextlib.contextmanager
    def giving(self, kind: Kind) -> Iterator[None]:
        """Within this context, `fetched_records` returns lists of RecordBatches of the given kind."""
        self._wanted = kind
        if self._size is not None:
            self._size.asked_for_batches()
        try:
            yield
        finally:
            self._wanted = None

    @property
    def PartitionRecords(self) -> Any:  # noqa: N802  # kafka-python's name
        """The class that kafka-python instantiates for a completed fetch."""
        wanted = self._wanted
        if wanted is None:
            return Records
        from kafkasafe.kafkapython.arrow_records import ArrowRecords

        return functools.partial(ArrowRecords, wanted)

    def reset_offsets_if_needed(self, timeout_ms: float | None = None) -> None:
        """Do nothing, because kafka-python calls `validate_offsets_if_needed` next, which also resets offsets."""

    def maybe_validate_positions(self) -> None:
        """Do nothing; see `reset_offsets_if_needed`."""

    def validate_offsets_if_needed(self, timeout_ms: float | None = None) -> None:  # noqa: ARG002  # kafka-python's signature
        """Reset and check positions."""
        self.owner.results.carry_on()

    # --- what a poll gets ---------------------------------------------------------------------------------------------

    def fetch_records(
        self, max_records: int | None = None, update_offsets: bool = True, timeout_ms: float | None = None
    ) -> Any:
        """See kafka-python's method. Also sends the next fetches, so that brokers answer while the application
        processes the returned records.
        """
        self._sends = False
        records, partial = self.fetched_records(max_records, update_offsets=update_offsets)
        if not partial:
            self.send_fetches()
        if not records:
            if not self._await_response(timeout_ms):
                return records, True
            records, _ = self.fetched_records(max_records, update_offsets=update_offsets)
        if records and not self._sends and not self._completed_fetches:
            self._send_soon()
        return records, False

    def _await_response(self, timeout_ms: float | None) -> bool:
        """Wait for a fetch response or the result of a check, but only until the owner's earliest time limit. Return
        False if no response or result is outstanding.
        """
        awaited = list(self._fetch_futures)
        # The completion of `_reset_task` wakes `poll`.
        if self.owner.parts.is_busy():
            if self._reset_task is None or self._reset_task.is_done:
                self._reset_task = Future()
            awaited.append(self._reset_task)
            if self.owner.runner.has_work:
                self.wake()
        else:
            self._reset_task = None
        if not awaited:
            return False
        if (due_s := self.owner.due_s()) is not None:
            timeout_ms = due_s * 1000 if timeout_ms is None else min(due_s * 1000, timeout_ms)
        with contextlib.suppress(kafka_errors.KafkaTimeoutError):
            self._manager.run(self._await_first, awaited, timeout_ms)
        return True

    def wake(self) -> None:
        """Wake `poll`. Any thread may call this method: the future is completed on kafka-python's own thread."""
        alarm = self._reset_task
        if isinstance(alarm, Future) and not alarm.is_done:
            with contextlib.suppress(RuntimeError):  # kafka-python's loop may have been closed
                self._manager.call_soon(_complete, alarm)

    async def _await_first(self, futures: Iterable[Future], timeout_ms: float | None) -> None:
        """Waits on the I/O thread until the first future is done.

        kafka-python adds callbacks on the caller's thread, where Ctrl-C may leave the lock of a future locked, so that
        the I/O thread and each later call of the consumer wait for the lock for ever.
        """
        first = Future()

        def wake(_: object) -> None:
            if not first.is_done:
                first.success(None)

        for future in futures:
            future.add_both(wake)
        await self._manager.wait_for(first, timeout_ms)

    def give_back_last(self, iterator: Any) -> None:
        """Moves the position back to the last record that `iterator` (`each_record`) yielded, which the application did
        not get.
        """
        found = unreturned(iterator)
        if found is not None:
            self._subscriptions.place(*found)

    def fetched_records(self, max_records: int | None = None, update_offsets: bool = True) -> Any:
        self._drop_other_kinds()
        if self._next_partition_records is not None and not self._next_partition_records:
            # kafka-python stores the remaining records of a paused partition elsewhere, and returns them only if
            # `_next_partition_records` is None.
            self._next_partition_records = None
        self._left_bytes = _CALL_BYTES
        self._held.let_go()
        self._let_resumed_go_on()
        parent: Any = super()
        try:
            records, partial = parent.fetched_records(max_records, update_offsets=update_offsets)
            while not records and self._resumed():
                self._next_partition_records = None
                records, partial = parent.fetched_records(max_records, update_offsets=update_offsets)
        finally:
            if self._held.put_back_postponed(self._completed_fetches):
                partial = True
        self._own_what_is_paused()
        self._found = bool(records)
        if records and self._wanted is None and self._size is not None:
            self._size.returned_records()
        return records, partial

    def _resumed(self) -> list[TopicPartition]:
        """The partitions in `_paused_partition_records` that are not paused any more."""
        return [tp for tp in self._paused_partition_records if not self._subscriptions.is_paused(tp)]

    def _let_resumed_go_on(self) -> None:
        """Makes a resumed partition and the current partition take turns in returning records.

        kafka-python returns records of the resumed partition only when no record of the current partition is left,
        which may never happen while responses of the current partition are fetched ahead.
        """
        current = self._next_partition_records
        if current is not None and (resumed := self._resumed()):
            self._next_partition_records = self._paused_partition_records.pop(resumed[0])
            self._paused_partition_records[current.topic_partition] = current

    def _rest_before(self, completed: Any) -> Any:
        """If records of the partition were kept while it was paused, returns these records, and puts `completed` back
        in the queue of responses. Otherwise returns None.
        """
        rest = self._paused_partition_records.pop(completed.topic_partition, None)
        if rest is not None:
            self._completed_fetches.appendleft(completed)
        return rest

    def send_fetches(self) -> Any:
        """See kafka-python's method, which may wait although records have already been taken. Ctrl-C during the wait
        would lose the taken records.
        """
        if self._found:
            self._send_soon()
            return []
        parent: Any = super()
        return parent.send_fetches()

    def _send_soon(self) -> None:
        """Let the I/O thread send the next fetches, without waiting for it.

        A wait would let Ctrl-C lose the records that `poll` is about to return.
        """
        self._sends = True
        if self._may_send():
            # If a deserializer has closed the consumer, still return the records, like KafkaConsumer.
            with contextlib.suppress(LoopClosedError):
                self._manager.call_soon(self._send_fetches_async)

    def _own_what_is_paused(self) -> None:
        """Copies the data of paused partitions, because a view would keep the response of all partitions in memory.

        Data that cannot be copied is dropped, and fetched again when the partition is resumed.
        """
        for completed in self._paused_completed_fetches.values():
            data = completed.partition_data
            if isinstance(data.records, memoryview):
                data.records = bytes(data.records)
        for tp, part in list(self._paused_partition_records.items()):
            if not self._subscriptions.is_paused(tp):
                continue  # the partition was resumed
            if part.kind is not None and not part.own():
                del self._paused_partition_records[tp]
                part.drain()

    def _drop_other_kinds(self) -> None:
        if self._next_partition_records and self._next_partition_records.kind != self._wanted:
            self._next_partition_records.drain()
        for tp, part in list(self._paused_partition_records.items()):
            if part.kind != self._wanted:
                del self._paused_partition_records[tp]
                part.drain()

    def _append(self, drained: Any, part: Any, max_records: int, update_offsets: bool) -> int:
        tp = part.topic_partition
        state = self._subscriptions.assignment.get(tp)
        self.taken.take(tp, state)
        if state is not part.state:
            # Drop records that were fetched before the partition was assigned again: the consumer's history of the
            # partition begins again, and the log may have changed.
            part.drain()
            return 0
        if part.kind is None:
            parent: Any = super()
            try:
                count = int(parent._append(drained, part, max_records, update_offsets))
            except Exception:
                # Fetch the data again. kafka-python would try for ever to take records from the broken data.
                part.drain()
                raise
            if count and not update_offsets:
                position = OffsetAndMetadata(part.next_fetch_offset, "", part.leader_epoch)
                self._held.hold(tp, drained[tp][-1].offset + 1, position)
            return count
        if state is None or not state.is_fetchable() or state.position.offset != part.next_fetch_offset:
            part.drain()  # the partition is paused, or its position was changed
            return 0
        records = part.take(max_records)
        if state.highwater is not None and self._sensors:
            self._sensors.records_fetch_lag.record(state.highwater - part.next_fetch_offset)
        self._subscriptions.place(state, OffsetAndMetadata(part.next_fetch_offset, "", part.leader_epoch))
        if records is None:
            return 0
        drained[tp].append(records)
        # Views keep whole responses in memory, so count the size of their buffers.
        self._left_bytes -= records.get_total_buffer_size() if part.kind.views else records.nbytes
        return int(records.num_rows) if self._left_bytes > 0 else max_records

    def _parse_fetched_data(self, completed_fetch: Any) -> Any:
        if (rest := self._rest_before(completed_fetch)) is not None:
            return rest
        if self._held.postpones(completed_fetch):
            return None
        if self.owner.responses.accept(completed_fetch):
            parent: Any = super()
            # After an empty response, the fetched offset becomes the position, so convert it from `AheadOffset` to int.
            usual = completed_fetch._replace(fetched_offset=int(completed_fetch.fetched_offset))
            state = self._subscriptions.assignment.get(usual.topic_partition)
            part = parent._parse_fetched_data(usual)
            if part is not None:
                part.belong_to(state)
            return part
        tp = completed_fetch.topic_partition
        if completed_fetch.metric_aggregator:
            completed_fetch.metric_aggregator.record(tp, 0, 0)
        self._subscriptions.move_partition_to_end(tp)  # the next fetches take the other partitions first
        return None

    # --- requests and responses ---------------------------------------------------------------------------------------

    def _may_send(self) -> bool:
        """Return whether a fetch can be sent, so that the caller wakes the I/O thread only if necessary. (A wake-up
        costs as much as decoding 100 records.)
        """
        return any(map(self._is_free, self._without_data())) or any(map(self._is_free, self._fetched_ahead()))

    def _is_free(self, tp: TopicPartition) -> bool:
        """Return whether no request is in flight to the broker (the leader, or a follower by KIP-392) from which this
        partition is fetched.
        """
        state = self._subscriptions.assignment.get(tp)
        node = None if state is None else state.preferred_read_replica()
        if node is None:
            node = self._manager.cluster.leader_for_partition(tp)
        return node not in self._nodes_with_pending_fetch_requests

    def _fetchable_partitions(self) -> Sequence[TopicPartition]:
        return [*self._without_data(), *self._session_handlers.chosen]

    def _without_data(self) -> Sequence[TopicPartition]:
        """Return the partitions to fetch. Leaves out partitions that still have records in a response or an iterator,
        and partitions that wait after an error.
        """
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

    def _create_fetch_requests(self) -> Any:
        """See kafka-python's method. Creates only requests that can be sent. Also creates requests that fetch ahead.

        If sending a request raises an error, kafka-python considers the broker busy forever, and treats the remaining
        brokers as if they had got their requests. So the consumer would silently stop reading the partitions of all
        these brokers, for instance if a fetch response names a leader that is not in the metadata yet.

        If a request contains a partition that was moved from a follower to the leader, the request has no rack id,
        because the leader would otherwise name the follower again.

        Raises:
            SaslAuthenticationFailedError: A broker refused the client. Later calls try again.
        """
        checked, chosen = {}, {}
        for tp, end in self._fetched_ahead().items():
            part = self.owner.parts.get(tp)
            if part is not None and part.checked is not None:
                checked[tp], chosen[tp] = part.checked, end
        followers, now = self.owner.followers, time.monotonic()
        if self.config["client_rack"]:
            self._leave_followers(now)
        if self._size is not None:
            self.config["max_partition_fetch_bytes"] = self._size.next_bytes(
                len(self._subscriptions.assignment)
            )
        parent: Any = super()
        self._session_handlers.choose(chosen)
        try:
            requests: Any = parent._create_fetch_requests()
        finally:
            self._session_handlers.choose({})
        self._drop_unsendable(requests)
        if self.config["client_rack"]:
            leader_of = self._manager.cluster.leader_for_partition
            for node_id, (request, offsets) in requests.items():
                if followers.leaves(offsets, now):
                    request.rack_id = ""
                followers.asked(node_id, [tp for tp in offsets if leader_of(tp) != node_id], now)
        self._ahead.mark(requests, chosen, checked)
        return requests

    def _drop_unsendable(self, requests: dict[int, Any]) -> None:
        for node_id in list(requests):
            try:
                self._manager.get_connection(node_id)
            except kafka_errors.NodeNotReadyError:
                pass  # the request itself fails with this error later
            except kafka_errors.UnknownBrokerIdError as error:
                del requests[node_id]
                self._forget_session(node_id, error)
                self._manager.cluster.request_update()
            except Exception as error:
                for each in requests:
                    self._forget_session(each, error)
                raise

    def _forget_session(self, node_id: int, error: Exception) -> None:
        """Forgets the fetch session with a broker, because a request of the session was not sent. The next request then
        names all partitions.
        """
        if node_id in self._session_handlers:
            self._session_handlers[node_id].handle_error(error)

    def _leave_followers(self, now: float) -> None:
        """Fetch from the leader, and refresh the metadata, if a partition's follower cannot be used."""
        followers = self.owner.followers
        left = set(followers.hang(now))
        for tp, state in self._subscriptions.states().items():
            named = state.preferred_read_replica()
            if named is None:
                continue
            # While the follower's connection is in back-off, kafka-python would not fetch the partition at all.
            is_replica = self._manager.cluster.is_replica_node(tp, named)
            if not is_replica or self._manager.connection_delay(named) > 0:
                left.add(tp)
            if tp in left or followers.leaves([tp], now):
                state.clear_preferred_read_replica()
        if left:
            followers.leave(left, now)
            self._manager.cluster.request_update()

    def _handle_fetch_response(
        self, node_id: int, fetch_offsets: Any, send_time: float, response: Any
    ) -> None:
        """On kafka-python's I/O thread: store a response. Ignore errors of followers from which the consumer no longer
        reads.
        """
        rows = [(topic.topic, row) for topic in response.responses for row in topic.partitions]
        if errors := [
            (TopicPartition(name, row.partition_index), row) for name, row in rows if row.error_code
        ]:
            self.owner.followers.note_errors(node_id, errors)
        self._ahead.arrived(fetch_offsets, response, read_committed=bool(self._isolation_level))
        if self._size is not None:
            largest = max((len(row.records or b"") for _, row in rows), default=0)
            self._size.answered(largest, send_time, time.monotonic())
        # Mark the broker as free before the response is stored. kafka-python does so only afterwards. Then a
        # poll that already takes the response would consider the broker busy, and would not fetch ahead.
        self._nodes_with_pending_fetch_requests.discard(node_id)
        parent: Any = super()
        parent._handle_fetch_response(node_id, fetch_offsets, send_time, response)

    def _handle_fetch_error(self, node_id: int, exception: BaseException) -> None:
        """On kafka-python's I/O thread: handle a failed fetch request."""
        if self._size is not None:
            self._size.restart(time.monotonic())
        parent: Any = super()
        parent._handle_fetch_error(node_id, exception)
        if self.owner.followers.failed(node_id, time.monotonic()):
            self._manager.cluster.request_update()
        self.owner.positions.lost(node_id)

    def _clear_pending_fetch_request(self, node_id: int, result: Any) -> None:
        """On kafka-python's I/O thread: handle the end of a fetch request, successful or not."""
        parent: Any = super()
        self.owner.followers.answered(node_id)
        self._ahead.answered(node_id)
        parent._clear_pending_fetch_request(node_id, result)


def _complete(alarm: Future) -> None:
    if not alarm.is_done:
        alarm.success(None)
