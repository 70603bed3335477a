"""The slow path of `send`: check a record, find or open a chunk for it, wait for room."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

import kafka.errors as kafka_errors

from kafkasafe._core.batch import RECORD_OVERHEAD
from kafkasafe._io.refusals import error_for_send
from kafkasafe._producing.chunk import MAX_RECORDS, Chunk, Headers, Special
from kafkasafe._producing.partitioning import as_int
from kafkasafe._producing.state import State
from kafkasafe.errors import SpoolFullError, WaitTimeoutError

if TYPE_CHECKING:
    from kafkasafe.producer import RecordFuture

__all__ = ["STEP_S", "Accepting"]

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_MAX_TIMESTAMP: Final = 2**63 - 1
_LOOK_EVERY_S: Final = 0.25
STEP_S: Final = 0.05
"""A partition stops counting by itself when it does not answer: look this often."""
_FRAMES: Final = 40
"""More stack frames than accepting and sealing a record need, not counting a partitioner of the application."""
_WAYS_OUT: Final = {
    "spool_max_bytes": "Raise spool_max_bytes, or wait for the cluster.",
    "volume": "Make room on the disk, or wait for the cluster.",
    "disk": "Look at the disk.",
    "": "",
}


class Accepting(State):
    """Part of `SafeProducer`."""

    def _checked(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: list[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> tuple[bytes | None, bytes | None, Special | None, int]:
        """Check and serialize a record. Return key and value as bytes, its special fields, and its size."""
        given_key, given_value = key, value
        if self._serializes:
            if value is None and key is None:
                # Check before serializing: a serializer may turn None into bytes such as `null`.
                raise ValueError("Need at least one: key or value")
            self._lifecycle.raise_closed()  # do not call serializers of a closed producer
            headers = [] if headers is None else headers  # a serializer may add some
            key, value = self._serialize(topic, headers, key, value)
        size = RECORD_OVERHEAD
        if value is not None:
            value = _as_bytes(value, "value", "value_serializer")
            size += len(value)
        elif key is None:
            raise ValueError("Need at least one: key or value")
        if key is not None:
            key = _as_bytes(key, "key", "key_serializer")
            size += len(key)
        if self._partitioning.asks and partition is None:
            partition = self._partitioning.ask(topic, given_key, key, given_value, value)
        special: Special | None = None
        if headers or partition is not None or timestamp_ms is not None:
            if timestamp_ms is not None:
                timestamp_ms = as_int(timestamp_ms, "timestamp_ms", _MAX_TIMESTAMP)
            if partition is not None:
                partition = self._check_partition(topic, partition)
            special = (partition, _check_headers(headers), timestamp_ms)
            size += 8 + sum(len(name.encode()) + len(content or b"") + 10 for name, content in special[1])
        return key, value, special, size

    def _accept(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        special: Special | None,
        size: int,
        chunk: Chunk | None = None,
        index: int = -1,
    ) -> RecordFuture:
        """Finish `send` if the chunk is missing or full, was sealed meanwhile, or has no list entry for the record yet.

        Args:
            topic: Topic of the record.
            key: Bytes or None.
            value: Bytes or None.
            special: The record's own partition, headers and timestamp, if it has any.
            size: See `_checked`.
            chunk: The chunk that `send` tried, if there is one.
            index: The record's number in it; negative if it got none.
        """
        if size > self._accumulator.max_record_bytes:
            raise kafka_errors.MessageSizeTooLargeError(self._too_large(size))
        if chunk is not None and index >= 0 and not chunk.open:
            future = self._future(chunk, index)
            with self._accumulator.lock:
                self._accumulator.seal_or_leave(chunk)
            if chunk.took(index):
                return future
        # If the stack is nearly exhausted, raise now, before the record is accepted.
        _probe(_FRAMES)
        if self._accumulator.interrupted():
            return self._send_apart(topic, key, value, special)
        deadline: float | None = None
        may_wait = self._pump.ledger.ahead.is_far
        while True:
            # Use `with`: if a signal handler raised (Ctrl-C) right after an acquire(), the lock would stay locked.
            with self._accumulator.lock:
                if chunk is None or index < 0 or not chunk.open:
                    chunk = self._accumulator.chunks.get(topic)
                    if chunk is None or not chunk.open or chunk.left < size:
                        chunk = None if may_wait else self._open_chunk(topic)
                    if chunk is not None:
                        chunk.left -= size
                        index = next(chunk.numbers)
                if chunk is not None:
                    future = self._future(chunk, index)
                    if index < MAX_RECORDS:
                        chunk.put(index, key, value, special)
                    if index >= MAX_RECORDS - 1 or not chunk.open:
                        self._accumulator.seal_or_leave(chunk)
                    if chunk.open or chunk.took(index):
                        return future
                    # A signal handler interrupted this and sealed the chunk without this record.
                    chunk = None
                    continue
            if may_wait:
                may_wait = False
                self._wait_for_deliveries()
                continue
            deadline = self._wait_for_room(deadline)

    def _too_large(self, size: int) -> str:
        return (
            f"The record has {size} bytes, more than max_request_size={self._config.max_record_bytes} allows."
            " It was not accepted"
        )

    def _send_apart(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        special: Special | None,
    ) -> RecordFuture:
        """Accept a record in a signal handler that interrupted another call of this thread.

        The state of that call's work on the open chunk is unknown. So the open chunk is sealed as it is, and the record
        gets a chunk of its own after it, which is sealed at once. The interrupted call notices this (`Chunk.open`).
        """
        deadline: float | None = None
        while True:
            with self._accumulator.lock:
                chunk = self._new_chunk(topic)
                if chunk is not None:
                    future = self._future(chunk, 0)
                    chunk.put(next(chunk.numbers), key, value, special)
                    self._accumulator.seal(chunk)
                    return future
            deadline = self._wait_for_room(deadline)

    def _check_partition(self, topic: str, partition: Any) -> int:
        number = self._partitioning.checked(topic, partition)
        refused = self._pump.refused_partitions.get((topic, number))
        if refused is not None and self._config.on_blocked_topic == "raise":
            raise error_for_send(refused, self._config.spool_dir, of_topic=False)
        return number

    def _serialize(self, topic: str, headers: Any, key: Any, value: Any) -> tuple[Any, Any]:
        if self._key_serializer is not None:
            key = self._key_serializer(topic, headers, key)
        if self._value_serializer is not None:
            value = self._value_serializer(topic, headers, value)
        return key, value

    def _open_chunk(self, topic: str) -> Chunk | None:
        """Open a chunk. Return None while the spool has no room. Called with the lock held."""
        while (chunk := self._new_chunk(topic)) is not None:
            # Fails if a signal handler came just now, and another thread opened a chunk while it waited. Then repeat.
            if self._accumulator.chunks.setdefault(topic, chunk) is chunk:
                if self._lifecycle.closed is not None:
                    self._accumulator.seal(chunk)
                    self._lifecycle.raise_closed()
                self._pump.poke()
                break
        return chunk

    def _begin_chunk(self, topic: str) -> Chunk | None:
        """Open a chunk for a topic that had none a moment ago. Return None while the spool has no room.

        This takes no lock and does not wait. It is safe: a former chunk was submitted before it was removed from the
        open ones, and threads that open a chunk at the same time get the same one.
        """
        self._check_usable(topic)
        chunk = self._made_chunk(topic)
        if chunk is None:
            return None
        chunk = self._accumulator.chunks.setdefault(topic, chunk)
        if self._lifecycle.closed is not None:
            self._accumulator.seal_one(chunk)
            self._lifecycle.raise_closed()
        self._pump.poke()
        return chunk

    def _new_chunk(self, topic: str) -> Chunk | None:
        """Seal the topic's open chunk and make a new one. Return None while the spool has no room."""
        self._check_usable(topic)
        chunk = self._accumulator.chunks.get(topic)
        if chunk is not None:
            self._accumulator.seal(chunk)
        return self._made_chunk(topic)

    def _check_usable(self, topic: str) -> None:
        """Raise an error if the producer accepts no records at all, or none for this topic."""
        pump = self._pump
        self._lifecycle.raise_closed()
        pump.ledger.raise_undecidable()
        pump.ledger.raise_damage(topic)
        self._delivery.raise_wrong_cluster()
        self._delivery.raise_loss()
        self._delivery.raise_failure()
        refused = pump.refused_topics.get(topic)
        if refused is not None and self._config.on_blocked_topic == "raise":
            raise error_for_send(refused, self._config.spool_dir)

    def _made_chunk(self, topic: str) -> Chunk | None:
        """Make a new chunk. Return None while the spool has no room."""
        if self._delivery.callbacks.full():
            return None
        needed, ledger = self._accumulator.needed_bytes(), self._pump.ledger
        with ledger.lock:
            if not ledger.room(needed):
                return None
        self._check_topic(topic)
        due = time.monotonic() + self._config.linger_s
        return Chunk(
            topic, time.time_ns() // 1_000_000, due, self._accumulator.chunk_bytes, self._delivery.callbacks
        )

    def _check_topic(self, topic: str) -> None:
        if not self._partitioning.knows(topic):
            if not isinstance(topic, str):
                raise TypeError(f"topic must be a string, not {type(topic).__name__}")
            if not _TOPIC_NAME.fullmatch(topic) or topic in {".", ".."}:
                raise ValueError(
                    f"Topic {topic!r} cannot exist: a name has 1 to 249 characters of a-z A-Z 0-9 . _ -, and is not ."
                    " or .."
                )

    def _wait_for_room(self, deadline: float | None, size: int = 0) -> float:
        """Wait a while for room in the spool, without the lock. Return the deadline, to be passed to the next call.

        `size` is the size of an atomic batch, in addition to the open chunks.
        """
        now = time.monotonic()
        if deadline is None:
            deadline = now + self._config.max_block_s
        if now >= deadline or self._pump.is_current_thread():
            self._raise_no_room(size + self._accumulator.needed_bytes())
        pump = self._pump
        # Lingering batches also occupy room.
        self._accumulator.seal_all()
        needed = size + self._accumulator.needed_bytes()
        # Poll: nothing notifies the producer when another process frees disk space.
        pump.wait(
            lambda: not self._delivery.callbacks.full() and pump.ledger.room(needed),
            min(_LOOK_EVERY_S, deadline - now),
        )
        return deadline

    def _wait_for_deliveries(self) -> None:
        """Give a cluster that answers time to acknowledge (`run_ahead_bytes`), without holding the lock.

        This serves only speed. So the wait ends after `max_block_ms` at the latest, and then the record is accepted.
        """
        pump = self._pump
        ledger = pump.ledger
        if pump.is_current_thread():
            return
        with self._accumulator.lock:
            # Seal the open batches: the cluster may have nothing else to do.
            for chunk in list(self._accumulator.chunks.values()):
                self._accumulator.seal_or_leave(chunk)
        end = time.monotonic() + self._config.max_block_s
        while (left := end - time.monotonic()) > 0:
            if pump.wait(lambda: ledger.ahead.has_eased, min(STEP_S, left), choosy=True):
                return
            if self._lifecycle.closed is not None or ledger.failure is not None:
                return
            with ledger.lock:
                ledger.ahead.expire()

    def _raise_no_room(self, needed: int) -> NoReturn:
        """Raise the error for a record that found no room in time."""
        self._pump.no_room()
        if self._delivery.callbacks.full():
            raise WaitTimeoutError(
                f"{self._delivery.callbacks.due()} callbacks are due and have not run within max_block_ms="
                f"{self._config.max_block_s * 1000:.0f}: they are slower than the cluster. The record was not"
                " accepted. Make callbacks shorter"
            )
        where = (
            f"memory (spool='never', spool_max_bytes={self._config.spool_max_bytes})"
            if self._config.in_memory
            else f"the spool {self._config.spool_dir}"
        )
        limit, why = self._pump.ledger.lacks(needed)
        raise SpoolFullError(
            f"No room in {where} within max_block_ms={self._config.max_block_s * 1000:.0f}: {why}. The record was not"
            f" accepted; all accepted records are kept. {_WAYS_OUT[limit]}{self._delivery.network_cause()}",
            limit=limit,
        )


def _probe(frames: int) -> None:
    """Raise RecursionError if the stack has no room for this many frames."""
    if frames:
        _probe(frames - 1)


def _as_bytes(item: Any, what: str, option: str) -> bytes:
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    raise TypeError(f"Unsupported type for serialized {what}: {type(item)}; pass bytes, or set {option}")


def _check_headers(headers: Any) -> Headers:
    if headers is None:
        return ()
    if not isinstance(headers, list):
        raise TypeError(f"headers must be a list of (str, bytes) tuples, not {headers!r}")
    for index, item in enumerate(headers):
        if not (
            isinstance(item, tuple)
            and len(item) == 2
            and isinstance(item[0], str)
            and (item[1] is None or isinstance(item[1], bytes))
        ):
            raise TypeError(f"headers[{index}] must be a tuple (str, bytes) or (str, None), not {item!r}")
    return tuple(headers)
