"""A KafkaConsumer with changed parts, Arrow tables and a faster iterator."""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import kafka
import kafka.errors as kafka_errors
from kafka import KafkaConsumer
from kafka.structs import TopicPartition
from kafka.version import __version__ as installed

from kafkasafe.errors import ForkedProcessError, UsageError
from kafkasafe.kafkapython.adapter import KafkaPython, each_record
from kafkasafe.kafkapython.coordinator import Coordinator
from kafkasafe.kafkapython.fetcher import Fetcher
from kafkasafe.kafkapython.owner import Owner
from kafkasafe.kafkapython.private_fields import missing_fields
from kafkasafe.kafkapython.records import Kind
from kafkasafe.kafkapython.subscription import Subscription
from kafkasafe.packages import MissingPackageError, pyarrow_for

_WRITTEN_FOR: Final = "3.0.12"
_Made = TypeVar("_Made")


class ExtendedConsumer(KafkaConsumer):
    """A KafkaConsumer whose parts ask the objects of an `Owner` for decisions."""

    config: dict[str, Any]
    _client: Any
    _closed: bool
    _cluster: Any
    _consumer_timeout: float
    _coordinator: Any
    _fetcher: Any
    _iterator: Any
    _manager: Any
    _net: Any
    _subscription: Any
    _owner: Owner

    def _port(self) -> KafkaPython:
        """Return the interface to kafka-python, for the objects that decide for this consumer.

        Raises:
            ImportError: This release of kafka-python has renamed a private field that kafkasafe uses. The message names
                the release and a remedy, in contrast to a later AttributeError.
        """
        missing = missing_fields(self)
        if missing:
            raise ImportError(
                f"kafka-python {installed} does not work with kafkasafe: it has no {', '.join(missing)}. Install a"
                f" release that works: pip install 'kafka-python=={_WRITTEN_FOR}'",
                name="kafka",
                path=kafka.__file__,
            )
        return KafkaPython(self._subscription, self._fetcher, self._coordinator, self._manager)

    def _extend(self, owner: Owner, *, chooses_sizes: bool) -> None:
        """Extend the consumer's fetcher, coordinator and subscription, so that they ask the owner for decisions.

        KafkaConsumer makes these parts itself and offers no hook, so this method replaces their classes.

        Args:
            owner: The objects that decide.
            chooses_sizes: Whether the fetcher chooses `max_partition_fetch_bytes` itself.
        """
        self._owner = owner
        self._fetcher.__class__ = Fetcher
        self._fetcher.serve(owner)
        self._coordinator.__class__ = Coordinator
        self._coordinator.serve(owner)
        if chooses_sizes:
            self._fetcher.choose_sizes()
        # Ask for stable offsets only (KIP-447). The spool of another process may hold a transaction with a newer
        # offset, which is committed even if that process dies. If this consumer used the group's offset from before the
        # commit, it would process the transaction's input again.
        self._coordinator._isolation_level = type(self._coordinator._isolation_level).READ_COMMITTED
        self._subscription.__class__ = Subscription
        self._subscription.commit_from(owner.commits.committable)

    def _abandon(self) -> BaseException | None:
        """Clean up after a failed constructor. Return the error of the last attempt to connect.

        KafkaConsumer leaks a thread and sockets in each failed attempt.
        """
        if hasattr(self, "_client"):
            self._client.close()
        failure: BaseException | None = getattr(getattr(self, "_manager", None), "last_failure", None)
        return failure

    def _leave_to_parent(self) -> bool:
        """In a forked child, mark the consumer as closed. Return whether this process is a forked child."""
        try:
            self._net.check_process()
        except ForkedProcessError:
            self._closed = True
            return True
        return False

    def _check_process(self) -> None:
        """Raise ForkedProcessError in a forked child."""
        self._net.check_process()

    def _refuse_in_listener(self, call: str) -> None:
        """Raise UsageError on kafka-python's I/O thread, where kafka-python would close only a part of the consumer."""
        if self._net.runs_here:
            raise UsageError(
                f"{call}() cannot be called in a rebalance listener, because the call waits for the thread that calls"
                f" listeners. Call {call}() after poll() has returned"
            )

    def _is_closed(self) -> bool:
        return bool(self._closed)

    def _reads(self) -> str | None:
        """Return the pattern of the subscription, or the names of the topics; None before the consumer is open."""
        known = getattr(self, "_subscription", None)
        if known is None:
            return None
        if known.subscribed_pattern is not None:
            return str(known.subscribed_pattern.pattern)
        return ", ".join(sorted(known.subscription or {tp.topic for tp in known.assigned_partitions()}))

    def _take_subscription_at_once(self) -> None:
        """For a consumer without a group, apply a new subscription with the next metadata response.

        If the metadata already contain all topics of a new subscription, KafkaConsumer would apply the subscription
        only after partitions change in the cluster.
        """
        self._coordinator._metadata_snapshot = {}
        self._cluster.request_update()

    def seek(self, partition: Any, offset: int) -> None:
        """See KafkaConsumer's method. A `seek` discards the fetched data, so begin with small requests again."""
        parent: Any = super()
        parent.seek(partition, offset)
        self._fetcher.sought(partition)

    def _begin_poll(self) -> None:
        """Mark the records of earlier polls as returned.

        Raises:
            ForkedProcessError: This process is a forked child, and its parent process reads the records.
        """
        self._net.check_process()
        self._fetcher.taken.begin()

    def _give_back(self) -> None:
        """Move the positions back to where they were before the current poll, because the records of this poll will not
        be returned.
        """
        self._fetcher.taken.give_back()

    # --- the iterator -------------------------------------------------------------------------------------------------

    def __next__(self) -> Any:
        """Return the next record, like KafkaConsumer.

        Raises:
            StopIteration: The consumer is closed, or `consumer_timeout_ms` has passed without a record.
        """
        if self._iterator is not None and not self._closed:
            try:
                return next(self._iterator)
            except StopIteration:
                self._iterator = None
            except BaseException:
                # Ctrl-C. The iterator continues with another poll.
                self._fetcher.give_back_last(self._iterator)
                self._iterator = None
                raise
        parent: Any = super()
        try:
            return parent.__next__()
        except kafka_errors.IllegalStateError:
            if not self._closed:
                raise
            # A deserializer or a hook has closed the consumer during this call.
            raise StopIteration("KafkaConsumer closed") from None

    def _message_generator_v2(self) -> Iterator[Any]:
        """Return an iterator over the records of one poll. kafka-python's `__next__` calls this method."""
        timeout_ms = 1000 * max(0.0, self._consumer_timeout - time.monotonic())
        poll: Any = functools.partial(self.poll, timeout_ms, update_offsets=False)
        return each_record(poll, self._subscription)

    def _begin_iterating_again(self) -> None:
        """Drop kafka-python's iterator, which would continue with the records and positions of its last poll."""
        self._iterator = None

    def _refresh_committed_offsets(self, timeout_ms: float | None = None) -> bool:
        """Find missing positions. kafka-python's `poll` calls this method."""
        return self._owner.positions.refresh_committed(timeout_ms)

    # --- Arrow --------------------------------------------------------------------------------------------------------

    def poll_arrow(
        self,
        timeout_ms: float = 0,
        max_records: int | None = None,
        *,
        columns: Iterable[str] | None = None,
        views: bool = False,
    ) -> Any:
        """Like `poll`, but returns an Arrow table. `poll_arrow` is several times faster, because no record becomes a
        Python object.

        Positions, commits, `isolation_level`, events and errors are the same as for `poll`. You can call `poll` and
        `poll_arrow` alternately. Deserializers and `max_poll_records` do not apply: keys and values are bytes.

        Args:
            timeout_ms: How long to wait for records.
            max_records: Maximum number of records. Default: all records that have been fetched, up to about 256 MB.
            columns: Names of the columns to return, default all: topic, partition, offset, timestamp (ms, UTC; -1:
                none), timestamp_type (0: the producer's, 1: the broker's), key, value, headers (a list of key and
                value), leader_epoch (-1: none). Other columns are not decoded, which saves time.
            views: True: do not copy keys and values. The columns key and value have the type `binary_view`, and refer
                to the received responses or to the decompressed records, so each table, slice or buffer keeps whole
                responses in memory. Few functions of Arrow accept views; `column.cast("binary")` copies a column.

        Returns:
            A pyarrow.Table, empty if the time has run out. The records of a partition are in order.

        Raises:
            UsageError: pyarrow is not installed: `pip install 'kafkasafe[arrow]'`.
            ValueError: A column has an unknown name, or a number is out of range.
            CorruptRecordError: The next batch of a partition is damaged. The partition's position does not change.
            KafkaError: See `poll`.
        """
        form = _arrow_tables("poll_arrow").TableForm(columns, views=views)
        return self._poll_batches(timeout_ms, max_records, form.fetched, form.table, views=views)

    def poll_batches(
        self,
        timeout_ms: float = 0,
        max_records: int | None = None,
        *,
        columns: Iterable[str] | None = None,
        views: bool = False,
    ) -> dict[TopicPartition, Any]:
        """Like `poll_arrow`, but returns a batch for each partition.

        Args:
            timeout_ms: See `poll_arrow`.
            max_records: See `poll_arrow`. The limit is for all partitions together.
            columns: See `poll_arrow`. The columns topic and partition are not available.
            views: See `poll_arrow`.

        Returns:
            A pyarrow.RecordBatch for each partition that has records. The order of the columns is offset, timestamp,
            timestamp_type, leader_epoch, key, value, headers.

        Raises:
            UsageError: See `poll_arrow`.
            ValueError: See `poll_arrow`.
            CorruptRecordError: See `poll_arrow`.
            KafkaError: See `poll`.
        """
        tables = _arrow_tables("poll_batches")
        wanted = tables.columns_of(columns)

        def join(found: Mapping[TopicPartition, list[Any]]) -> dict[TopicPartition, Any]:
            return {tp: tables.joined(batches) for tp, batches in found.items()}

        return self._poll_batches(timeout_ms, max_records, wanted, join, views=views)

    def _poll_batches(
        self,
        timeout_ms: float,
        max_records: int | None,
        columns: frozenset[str],
        make: Callable[[Mapping[TopicPartition, list[Any]]], _Made],
        *,
        views: bool,
    ) -> _Made:
        """Poll, and return the result of `make` for the batches of each partition."""
        poll: Any = self.poll
        self._fetcher.taken.begin()
        try:
            # Drop the records that the iterator still holds, which are fetched again from the position.
            self._iterator = None
            with self._fetcher.giving(Kind(columns, views)):
                found = poll(timeout_ms, sys.maxsize if max_records is None else max_records)
            return make(found)
        except BaseException:
            # The cause is Ctrl-C, or a lack of memory for the joined batches. If `poll` itself failed, no records were
            # taken.
            self._give_back()
            raise


@functools.cache
def _arrow_tables(method: str) -> Any:
    """Return the module `arrow_tables`, which is imported only when a method needs it, because it imports pyarrow.

    Raises:
        UsageError: pyarrow is not installed.
    """
    try:
        pyarrow_for(method)
    except MissingPackageError as error:
        raise UsageError(str(error)) from error
    return importlib.import_module("kafkasafe.kafkapython.arrow_tables")
