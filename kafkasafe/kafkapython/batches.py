"""Records as Arrow tables, on the same path as KafkaConsumer's records.

kafka-python's fetcher wraps the data fetched from a partition in a `PartitionRecords`, takes records from it, and moves
the position after them. The fetcher also handles paused, unassigned and sought partitions, errors and metrics. While
the application asks for whole batches, `BatchFetcher` replaces `PartitionRecords` with a class whose records are
RecordBatches. So the same code decides about positions in both cases.

While responses are full, requests become larger than kafka-python's (`limits/fetch_size`). If the application reads
both records and batches, requests keep kafka-python's size: with larger responses, each change between records and
batches would discard more data.

When the application changes between records and batches (or to other columns), the rest of the fetched data is
discarded and fetched again from the position. The application has received none of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.consumer.fetcher import Fetcher
from kafka.future import Future
from kafka.record import MemoryRecords
from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe.kafkapython.adapter import unreturned
from kafkasafe.kafkapython.given_records import HeldRecords, TakenRecords
from kafkasafe.kafkapython.records import Kind, Records
from kafkasafe.limits.fetch_size import LARGE_FETCH_BYTES, FetchSize

__all__ = ["BatchFetcher"]

# Limit for one call, in bytes of decompressed records. The limit of a fetch does not limit its decompressed content.
_CALL_BYTES: Final = 256 * 1024 * 1024


def _records(fetch_offset: int, tp: TopicPartition, records: Any, *more: Any, **options: Any) -> Records:
    """Makes `Records`. They may wait long for `poll`, so they do not keep a large response for a small part of it."""
    buffer = records._buffer
    if isinstance(buffer, memoryview):
        response: Any = buffer.obj
        if 2 * len(buffer) < len(response):
            records = MemoryRecords(bytes(buffer))
    return Records(fetch_offset, tp, records, *more, **options)


class BatchFetcher(Fetcher):
    """kafka-python's fetcher, which can also return RecordBatches.

    It also fixes faults of kafka-python 3.0.12: a fetch that could not be sent blocks its broker (see
    `_create_fetch_requests`), an interrupt loses records (see `send_fetches`), records that an iterator holds are
    fetched again (see `HeldRecords`), damaged data is taken again for ever, and the data of a paused partition keeps
    the response of all partitions in memory.
    """

    _wanted: Kind | None = None  # None: return records
    _left_bytes: int = _CALL_BYTES
    _sends: bool = False  # this call of `fetch_records` sends the next fetches
    _taken: bool = False  # the last look found records, which still have to be returned
    _size: FetchSize | None = None  # None: the size that the application has set
    _held: HeldRecords
    _took: TakenRecords
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

    def begin_holding(self) -> None:
        """Takes note, from now on, of the records that a poll takes and that an iterator holds."""
        self._held = HeldRecords(self._subscriptions)
        self._took = TakenRecords(self._subscriptions)

    def choose_sizes(self) -> None:
        """Chooses `max_partition_fetch_bytes` from now on."""
        config: Any = self.config
        most = min(LARGE_FETCH_BYTES, config["fetch_max_bytes"])
        self._size = FetchSize(config["max_partition_fetch_bytes"], most, config["request_timeout_ms"] / 1000)

    def sought(self, tp: TopicPartition) -> None:
        """Begins with small requests again, because the application sought: what was fetched is discarded."""
        self._held.forget()
        self._took.forget(tp)
        if self._size is not None:
            self._size.restart(time.monotonic())

    @contextlib.contextmanager
    def giving(self, kind: Kind) -> Iterator[None]:
        """Within this context, `fetched_records` returns lists of RecordBatches of this kind."""
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
            return _records
        from kafkasafe.kafkapython.arrow_records import ArrowRecords

        return lambda offset, tp, records, **options: ArrowRecords(wanted, offset, tp, records, **options)

    def fetch_records(
        self, max_records: int | None = None, update_offsets: bool = True, timeout_ms: float | None = None
    ) -> Any:
        """See kafka-python's. Sends the next fetch while the application processes its records."""
        self._sends = False
        records, idle = self._take_or_wait(max_records, update_offsets, timeout_ms)
        if records and not self._sends and not self._completed_fetches:
            self._send_soon()
        return records, idle

    def _take_or_wait(
        self, max_records: int | None, update_offsets: bool, timeout_ms: float | None
    ) -> tuple[Any, bool]:
        """Does the same as kafka-python's `fetch_records`, but waits as Ctrl-C allows (see `_await_first`)."""
        records, partial = self.fetched_records(max_records, update_offsets=update_offsets)
        if not partial:
            self.send_fetches()
        if records:
            return records, False
        awaited = list(self._fetch_futures)
        if self._reset_task is not None and not self._reset_task.is_done:
            awaited.append(self._reset_task)
        if not awaited:
            return records, True
        with contextlib.suppress(kafka_errors.KafkaTimeoutError):
            self._manager.run(self._await_first, awaited, timeout_ms)
        records, _ = self.fetched_records(max_records, update_offsets=update_offsets)
        return records, False

    async def _await_first(self, futures: Iterable[Future], timeout_ms: float | None) -> None:
        """Waits on the I/O thread until the first future is done.

        kafka-python adds its callbacks on the caller's thread. Ctrl-C there can leave the lock of a future taken. Then
        the I/O thread waits for this lock for ever, and so does each later call of the consumer.
        """
        first = Future()

        def wake(_: object) -> None:
            if not first.is_done:
                first.success(None)

        for future in futures:
            future.add_both(wake)
        await self._manager.wait_for(first, timeout_ms)

    def begin_poll(self) -> None:
        """The records that were taken before have been returned."""
        self._took.begin()

    def give_back_last(self, iterator: Any) -> None:
        """Moves the position back before the record that an iterator (`each_record`) has yielded in vain."""
        found = unreturned(iterator)
        if found is not None:
            self._subscriptions.place(*found)

    def give_back(self) -> None:
        """Moves the positions back before the records that this poll has taken, because it will not return them.

        Ctrl-C may come while the records of a partition are decoded, after those of other partitions were taken. The
        records are fetched again.
        """
        self._took.give_back()

    def fetched_records(self, max_records: int | None = None, update_offsets: bool = True) -> Any:
        """See kafka-python's."""
        self._drop_other_kinds()
        if self._next_partition_records is not None and not self._next_partition_records:
            # kafka-python keeps the rest of a paused partition elsewhere, and returns it only if this attribute is
            # None.
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
        self._taken = bool(records)
        if records and self._wanted is None and self._size is not None:
            self._size.returned_records()
        return records, partial

    def _resumed(self) -> list[TopicPartition]:
        """The partitions with records that waited while they were paused, and that may be returned now."""
        return [tp for tp in self._paused_partition_records if not self._subscriptions.is_paused(tp)]

    def _let_resumed_go_on(self) -> None:
        """Lets the rest of a resumed partition and the present one take turns.

        kafka-python waits until nothing is left of the present one. While each next response is fetched ahead, that
        may never be the case.
        """
        current = self._next_partition_records
        if current is not None and (resumed := self._resumed()):
            self._next_partition_records = self._paused_partition_records.pop(resumed[0])
            self._paused_partition_records[current.topic_partition] = current

    def _rest_before(self, completed: Any) -> Any:
        """The rest of the response before this one, if it has waited while the partition was paused; else None."""
        rest = self._paused_partition_records.pop(completed.topic_partition, None)
        if rest is not None:
            self._completed_fetches.appendleft(completed)
        return rest

    def send_fetches(self) -> Any:
        """See kafka-python's method, which waits with records already taken: an interrupt would lose them."""
        if self._taken:
            self._send_soon()
            return []
        parent: Any = super()
        return parent.send_fetches()

    def _send_soon(self) -> None:
        """Let the I/O thread send the next fetches, without waiting for it.

        An interrupt while waiting would lose the records that are about to be returned.
        """
        self._sends = True
        if self._may_send():
            self._manager.call_soon(self._send_fetches_async)

    def _may_send(self) -> bool:
        """Return whether a fetch can be sent. To wake the I/O thread costs as much as decoding a hundred records."""
        return True

    def _create_fetch_requests(self) -> Any:
        """See kafka-python's. Creates only requests that can be sent.

        If sending a request raises an error, kafka-python considers this broker busy forever, and counts the later
        brokers as asked. Then nothing would read their partitions any more, and no error would report it. This happens
        for a leader that a fetch response names before the metadata does.

        Raises:
            SaslAuthenticationFailedError: A broker refused the client. Later calls try it again.
        """
        if self._size is not None:
            self.config["max_partition_fetch_bytes"] = self._size.next_bytes(
                len(self._subscriptions.assignment)
            )
        parent: Any = super()
        requests: Any = parent._create_fetch_requests()
        for node_id in list(requests):
            try:
                self._manager.get_connection(node_id)
            except kafka_errors.NodeNotReadyError:
                pass  # the request then fails with this error, like any other request
            except kafka_errors.UnknownBrokerIdError as error:
                del requests[node_id]
                self._forget_session(node_id, error)
                self._manager.cluster.request_update()
            except Exception as error:
                for each in requests:
                    self._forget_session(each, error)
                raise
        return requests

    def _handle_fetch_response(
        self, node_id: int, fetch_offsets: Any, send_time: float, response: Any
    ) -> None:
        """See kafka-python's."""
        if self._size is not None:
            sizes = [len(part.records or b"") for topic in response.responses for part in topic.partitions]
            self._size.answered(max(sizes, default=0), send_time, time.monotonic())
        # kafka-python does this after it has stored the response. A poll in between would take the response, find its
        # broker busy, and not fetch ahead.
        self._nodes_with_pending_fetch_requests.discard(node_id)
        parent: Any = super()
        parent._handle_fetch_response(node_id, fetch_offsets, send_time, response)

    def _handle_fetch_error(self, node_id: int, exception: BaseException) -> None:
        """See kafka-python's."""
        if self._size is not None:
            self._size.restart(time.monotonic())
        parent: Any = super()
        parent._handle_fetch_error(node_id, exception)

    def _forget_session(self, node_id: int, error: Exception) -> None:
        """Forgets the fetch session, because its request was not sent. The next request names every partition."""
        if node_id in self._session_handlers:
            self._session_handlers[node_id].handle_error(error)

    def _own_what_is_paused(self) -> None:
        """Copies the data that waits for a paused partition. As a view, it would keep the response of all partitions.

        Data that cannot be copied is fetched again when the partition is resumed.
        """
        for completed in self._paused_completed_fetches.values():
            data = completed.partition_data
            if isinstance(data.records, memoryview):
                data.records = bytes(data.records)
        for tp, part in list(self._paused_partition_records.items()):
            if not self._subscriptions.is_paused(tp):
                continue  # it goes on soon
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
        self._took.take(tp, state)
        if part.kind is None:
            parent: Any = super()
            try:
                count = int(parent._append(drained, part, max_records, update_offsets))
            except Exception:
                # kafka-python would try to take from the broken data forever. Fetch it again instead.
                part.drain()
                raise
            if count and not update_offsets:
                position = OffsetAndMetadata(part.next_fetch_offset, "", part.leader_epoch)
                self._held.hold(tp, drained[tp][-1].offset + 1, position)
            return count
        if state is None or not state.is_fetchable() or state.position.offset != part.next_fetch_offset:
            part.drain()  # it was fetched for another kind of result
            return 0
        records = part.take(max_records)
        if state.highwater is not None and self._sensors:
            self._sensors.records_fetch_lag.record(state.highwater - part.next_fetch_offset)
        self._subscriptions.place(state, OffsetAndMetadata(part.next_fetch_offset, "", part.leader_epoch))
        if records is None:
            return 0
        drained[tp].append(records)
        # Views count with all the memory that they keep.
        self._left_bytes -= records.get_total_buffer_size() if part.kind.views else records.nbytes
        return int(records.num_rows) if self._left_bytes > 0 else max_records
