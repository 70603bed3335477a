"""Admission: the checks and waits of the producer before it accepts records.

The slow path of `send`, atomic batches, transactions and coroutines use this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

import kafka.errors as kafka_errors

from kafkasafe._producing.accumulator import NEVER, AcceptedUnit, Accumulator
from kafkasafe._producing.delivery import Delivery
from kafkasafe._producing.lifecycle import Lifecycle
from kafkasafe._producing.open_batch import OpenBatch, Special
from kafkasafe._producing.open_batch_room import rooms_records
from kafkasafe._producing.partitioning import Partitioning
from kafkasafe.config import ProducerConfig
from kafkasafe.config.values import is_topic_name
from kafkasafe.errors import SpoolFullError, WaitTimeoutError
from kafkasafe.health.states import ProducerHealth, producer_health
from kafkasafe.spool.refusals import error_for_send

_LOOK_EVERY_S: Final = 0.25
_GIVE_WAY_S: Final = 1.0
"""A commit waits at most this many seconds until the pump has taken earlier batches."""
STEP_S: Final = 0.05
"""Interval, in seconds, at which a waiting sender checks how many bytes the cluster has not acknowledged yet. The
sender has to poll, because no event reports that a partition has stopped answering.
"""
_FRAMES: Final = 40
"""Upper bound for the number of stack frames that are necessary to accept and seal a record. Frames of the
application's partitioner do not count.
"""
_WAYS_OUT: Final = {
    "spool_max_bytes": "Raise spool_max_bytes, or wait for the cluster.",
    "volume": "Make room on the disk, or wait for the cluster.",
    "disk": "Look at the disk.",
    "": "",
}


class Admission:
    """Accepts records and atomic batches, and makes open batches. Each of these operations comes after the same checks,
    in the same order.
    """

    def __init__(
        self,
        config: ProducerConfig,
        lifecycle: Lifecycle,
        partitioning: Partitioning,
        accumulator: Accumulator,
        delivery: Delivery,
    ) -> None:
        self._config = config
        self._lifecycle = lifecycle
        self._partitioning = partitioning
        self._accumulator = accumulator
        self._delivery = delivery
        self._pump = delivery.pump

    # -- checks ------------------------------------------------------------------------------------------------------

    def check(self, topic: str | None = None) -> None:
        """Raise an error if the producer accepts no records at all, or no records of this topic."""
        pump = self._pump
        self._lifecycle.raise_closed()
        pump.ledger.errors.raise_undecidable()
        if topic is not None:
            pump.ledger.errors.raise_damage(topic)
        self._delivery.raise_wrong_cluster()
        self._delivery.raise_loss()
        self._delivery.raise_failure()
        refused = None if topic is None else pump.refused_topics.get(topic)
        if refused is not None and self._config.on_blocked_topic == "raise":
            raise error_for_send(refused, self._config.spool_dir)

    def check_topic(self, topic: str) -> None:
        """Raise an error if Kafka permits no topic of this name.

        Raises:
            TypeError: The name is not a string, or is a member of an enum whose `str` is not its value.
            ValueError: A topic cannot have this name.
        """
        if not self._partitioning.knows(topic):
            if not isinstance(topic, str):
                raise TypeError(f"topic must be a string, not {type(topic).__name__}")
            if str(topic) != topic:
                # kafka-python encodes `str(topic)`, which is the name of a member of an enum of strings.
                raise TypeError(f"topic {topic!r} would be {str(topic)!r} in requests; pass its value")
            if not is_topic_name(topic):
                raise ValueError(
                    f"Topic {topic!r} cannot exist: a name has 1 to 249 characters of a-z A-Z 0-9 . _ -, and is not ."
                    " or .."
                )

    def checked_partition(self, topic: str, partition: Any) -> int:
        """Return the partition that a caller gives, as an int. With `on_blocked_topic="raise"`, raise an error if the
        cluster refuses that partition.
        """
        number = self._partitioning.checked(topic, partition)
        refused = self._pump.refused_partitions.get((topic, number))
        if refused is not None and self._config.on_blocked_topic == "raise":
            raise error_for_send(refused, self._config.spool_dir, of_topic=False)
        return number

    def check_size(self, size: int) -> None:
        """Raise MessageSizeTooLargeError for a record that is larger than `max_request_size`."""
        if size > self._accumulator.max_record_bytes:
            raise kafka_errors.MessageSizeTooLargeError(
                f"The record has {size} bytes, more than max_request_size={self._config.max_record_bytes} allows."
                " It was not accepted"
            )

    def health(self) -> ProducerHealth:
        closed = self._lifecycle.closed
        late = closed is None and self._delivery.callbacks.full()
        needed = self._accumulator.needed_bytes()
        return producer_health(self._pump.seen(closed, needed_bytes=needed, callbacks_behind=late))

    # -- records -----------------------------------------------------------------------------------------------------

    def accept(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        special: Special | None,
        size: int,
        open_batch: OpenBatch | None = None,
        index: int = -1,
    ) -> tuple[OpenBatch, int]:
        """Finish a `send` that could not use an open batch of its topic: the topic has no open batch, the open batch is
        full or sealed, or its lists are too short.

        Args:
            topic: Topic of the record.
            key: Bytes or None.
            value: Bytes or None.
            special: Partition, headers and timestamp, if the caller gave any of them; otherwise None.
            size: See `RecordForm.prepare`.
            open_batch: The open batch that `send` tried, if any.
            index: The record's number in `open_batch`; negative if the record got no number.

        Returns:
            The open batch that has the record, and the record's number there.
        """
        self.check_size(size)
        if open_batch is not None and index >= 0 and not open_batch.open:
            with self._accumulator.lock:
                self._accumulator.seal_or_leave(open_batch)
            if open_batch.took(index):
                return open_batch, index
        # If the stack is nearly exhausted, raise now, before the record is accepted.
        _probe(_FRAMES)
        if self._accumulator.interrupted():
            return self._send_apart(topic, key, value, special)
        deadline: float | None = None
        may_wait = self._pump.ledger.ahead.is_far
        while True:
            # Use `with`: if a signal handler raised (Ctrl-C) right after an acquire(), the lock would stay locked.
            with self._accumulator.lock:
                if open_batch is None or index < 0 or not open_batch.open:
                    open_batch = self._accumulator.open_batches.get(topic)
                    if open_batch is None or not open_batch.open or open_batch.left < size:
                        open_batch = None if may_wait else self.add_open_batch(topic)
                    if open_batch is not None:
                        index = open_batch.enter(size)
                if open_batch is not None:
                    if index < open_batch.most:
                        open_batch.put(index, key, value, special)
                    if index >= open_batch.most - 1 or not open_batch.open:
                        self._accumulator.seal_or_leave(open_batch)
                    if open_batch.open or open_batch.took(index):
                        return open_batch, index
                    # The open batch lacks this record, because a signal handler interrupted this call and sealed the
                    # open batch.
                    open_batch = None
                    continue
            if may_wait:
                may_wait = False
                self._wait_for_deliveries()
                continue
            deadline = self._wait_for_room(deadline)

    def _send_apart(
        self, topic: str, key: bytes | None, value: bytes | None, special: Special | None
    ) -> tuple[OpenBatch, int]:
        """Accept a record in a signal handler that interrupted another call of this thread.

        The interrupted call may be in the middle of its work on an open batch. So this method seals the interrupted
        open batch, puts the record into a new open batch, and seals the new open batch at once. When the interrupted
        call continues, it finds that its open batch is sealed (`OpenBatch.open`).
        """
        deadline: float | None = None
        while True:
            with self._accumulator.lock:
                open_batch = self._new_open_batch(topic)
                if open_batch is not None:
                    open_batch.put(next(open_batch.numbers), key, value, special)
                    self._accumulator.seal(open_batch)
                    return open_batch, 0
            deadline = self._wait_for_room(deadline)

    def add_open_batch(self, topic: str) -> OpenBatch | None:
        """Begin an open batch. Return None while the spool has no room. Called with the lock held."""
        while (open_batch := self._new_open_batch(topic)) is not None:
            # If a signal handler has interrupted this call, another thread may have begun an open batch while the
            # handler waited. In this case, `setdefault` returns the other thread's open batch, and the loop starts
            # again.
            if self._accumulator.open_batches.setdefault(topic, open_batch) is open_batch:
                if self._lifecycle.closed is not None:
                    self._accumulator.seal(open_batch)
                    self._lifecycle.raise_closed()
                self._pump.wake()
                break
        return open_batch

    def add_open_batch_now(self, topic: str) -> OpenBatch | None:
        """Begin an open batch for a topic that had no open batch a moment ago. Return None while the spool has no room.

        This method takes no lock and does not wait. It needs no lock for two reasons. An earlier open batch was
        submitted before it was removed from `open_batches`. And if several threads begin an open batch at the same
        time, all of them get the same open batch.
        """
        self.check(topic)
        open_batch = self._make_open_batch(topic)
        if open_batch is None:
            return None
        open_batch = self._accumulator.open_batches.setdefault(topic, open_batch)
        if self._lifecycle.closed is not None:
            self._accumulator.seal_one(open_batch)
            self._lifecycle.raise_closed()
        self._pump.wake()
        return open_batch

    def _new_open_batch(self, topic: str) -> OpenBatch | None:
        """Seal the topic's open batch and make a new one. Return None while the spool has no room."""
        self.check(topic)
        open_batch = self._accumulator.open_batches.get(topic)
        if open_batch is not None:
            self._accumulator.seal(open_batch)
        return self._make_open_batch(topic)

    def _make_open_batch(self, topic: str) -> OpenBatch | None:
        """Make a new open batch. Return None while the spool has no room."""
        if self._delivery.callbacks.full():
            return None
        needed, ledger = self._accumulator.needed_bytes(), self._pump.ledger
        usual, room = self._accumulator.open_batch_bytes, self._accumulator.next_room(topic)
        with ledger.lock:
            if not ledger.room.takes(needed):
                return None
            if room > usual and not ledger.room.takes(needed + usual + self._accumulator.most_room):
                room = usual
        self.check_topic(topic)
        due = time.monotonic() + self._config.linger_s
        most = rooms_records(usual, room)
        return OpenBatch(topic, time.time_ns() // 1_000_000, due, room, self._delivery.callbacks, most=most)

    def make_separate_batch(self, topic: str, guard: Callable[..., None]) -> OpenBatch:
        """Make an open batch for an atomic batch. No other thread adds records to this open batch, and only the commit
        seals it.
        """
        return OpenBatch(
            topic,
            time.time_ns() // 1_000_000,
            NEVER,
            self._accumulator.open_batch_bytes,
            self._delivery.callbacks,
            guard,
        )

    def _wait_for_room(self, deadline: float | None, size: int = 0) -> float:
        """Wait a while for room in the spool. Called without the lock. Return the deadline, which the caller passes to
        the next call of this method.

        `size` is the number of bytes that an atomic batch needs in addition to the open batches.
        """
        now = time.monotonic()
        if deadline is None:
            deadline = now + self._config.max_block_s
        if now >= deadline or self._pump.is_current_thread():
            self.raise_no_room(size + self._accumulator.needed_bytes())
        pump = self._pump
        # Seal the open batches that linger, because they also occupy room.
        self._accumulator.seal_all()
        needed = size + self._accumulator.needed_bytes()
        # Poll: nothing notifies the producer when another process frees disk space.
        pump.wait(
            lambda: not self._delivery.callbacks.full() and pump.ledger.room.takes(needed),
            min(_LOOK_EVERY_S, deadline - now),
        )
        return deadline

    def _wait_for_deliveries(self) -> None:
        """Wait until the cluster has acknowledged enough of the outstanding bytes (`run_ahead_bytes`). Partitions that
        do not answer do not count. Called without the lock.

        The wait only makes deliveries faster: with a short backlog, the producer sends batches from memory, and need
        not read them back from disk. So the wait ends after `max_block_ms` at the latest, and the producer accepts the
        record even if the backlog is still long.
        """
        pump = self._pump
        ledger = pump.ledger
        if pump.is_current_thread():
            return
        with self._accumulator.lock:
            # Seal the open batches, so that their records can be sent: the cluster acknowledges only records that were
            # sent.
            for open_batch in list(self._accumulator.open_batches.values()):
                self._accumulator.seal_or_leave(open_batch)
        end = time.monotonic() + self._config.max_block_s
        while (left := end - time.monotonic()) > 0:
            if pump.wait(lambda: ledger.ahead.has_eased, min(STEP_S, left), choosy=True):
                return
            if self._lifecycle.closed is not None or ledger.failure is not None:
                return
            with ledger.lock:
                ledger.ahead.expire()

    def submit_unit(self, unit: AcceptedUnit, size: int) -> None:
        """Wait for room for an atomic batch. Then accept the whole batch, unless the batch was dropped meanwhile."""
        self._lifecycle.check_fork()
        pump = self._pump
        if pump.is_backlogged() and not pump.is_current_thread():
            # Without this wait, a program that commits in a loop would take nearly all of the interpreter's time, and
            # the pump would deliver no batch.
            pump.wait(lambda: not pump.is_backlogged(), min(_GIVE_WAY_S, self._config.max_block_s))
        if pump.ledger.ahead.is_far:
            self._wait_for_deliveries()
        deadline: float | None = None
        while True:
            self.check()
            with pump.ledger.lock:
                if pump.ledger.room.takes(size + self._accumulator.needed_bytes()):
                    break
            deadline = self._wait_for_room(deadline, size)
        self._accumulator.accept_unit(unit)

    def raise_no_room(self, needed: int) -> NoReturn:
        """Raise the error for a record or batch for which there was no room in time."""
        if self._delivery.callbacks.full():
            raise WaitTimeoutError(
                f"{self._delivery.callbacks.due()} callbacks are due and have not run within max_block_ms="
                f"{self._config.max_block_s * 1000:.0f}: they are slower than the cluster. The record was not"
                " accepted. Make callbacks shorter"
            )
        self._pump.no_room()
        where = (
            f"memory (spool='never', spool_max_bytes={self._config.spool_max_bytes})"
            if self._config.in_memory
            else f"the spool {self._config.spool_dir}"
        )
        limit, why = self._pump.ledger.room.lacks(needed)
        raise SpoolFullError(
            f"No room in {where} within max_block_ms={self._config.max_block_s * 1000:.0f}: {why}. The record was not"
            f" accepted; all accepted records are kept. {_WAYS_OUT[limit]}{self._delivery.network_cause()}",
            limit=limit,
        )


def _probe(frames: int) -> None:
    """Raise RecursionError if the stack has no room for this many frames."""
    if frames:
        _probe(frames - 1)
