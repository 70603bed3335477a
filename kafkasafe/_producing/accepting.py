"""The rest of `send`: a record is checked, and finds a chunk, or waits for room for one."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

import kafka.errors as kafka_errors

from kafkasafe._core.batch import RECORD_OVERHEAD
from kafkasafe._io.refusals import error_for_send
from kafkasafe._producing.chunk import MAX_RECORDS, Chunk, Headers, Special
from kafkasafe._producing.placing import as_int
from kafkasafe._producing.sealing import Sealing
from kafkasafe.errors import SpoolFullError, WaitTimeoutError

if TYPE_CHECKING:
    from kafkasafe.producer import RecordFuture

__all__ = ["Accepting"]

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_MAX_TIMESTAMP: Final = 2**63 - 1
_LOOK_EVERY_S: Final = 0.25
_FRAMES: Final = 40
"""More than accepting and sealing a record take, but for a partitioner of the user's."""
_WAYS_OUT: Final = {
    "spool_max_bytes": "Raise spool_max_bytes, or wait for the cluster.",
    "volume": "Make room on the disk, or wait for the cluster.",
    "disk": "Look at the disk.",
    "": "",
}


class Accepting(Sealing):
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
        """Of any record: key and value as bytes, what is special about it, and its size."""
        given_key, given_value = key, value
        if self._serializes:
            if value is None and key is None:
                # Not what a serializer makes of None: `null`.
                raise ValueError("Need at least one: key or value")
            self._raise_closed()  # which a serializer need not know
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
        if self._asks_partitioner and partition is None:
            partition = self._ask_partitioner(topic, given_key, key, given_value, value)
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
        """The rest of `send`: a chunk that is full, or sealed meanwhile, or has no room made yet.

        Args:
            topic: Its topic.
            key: Bytes or null.
            value: Bytes or null.
            special: Its own partition, headers and timestamp, if it has any.
            size: See `_checked`.
            chunk: Where it was to go, if there is one.
            index: Its number there, negative if it got none.
        """
        if size > self._max_record_bytes:
            raise kafka_errors.MessageSizeTooLargeError(self._too_large(size))
        if chunk is not None and index >= 0 and not chunk.open:
            future = self._future(chunk, index)
            with self._lock:
                self._seal_or_leave(chunk)
            if chunk.took(index):
                return future
        # What raises raises before the record is accepted.
        _probe(_FRAMES)
        if self._interrupted():
            return self._send_apart(topic, key, value, special)
        deadline: float | None = None
        while True:
            # `with`: a signal handler that raises (Ctrl-C) right behind an acquire() would leave the lock taken.
            with self._lock:
                if chunk is None or index < 0 or not chunk.open:
                    chunk = self._chunks.get(topic)
                    if chunk is None or not chunk.open or chunk.left < size:
                        chunk = self._open_chunk(topic)
                    if chunk is not None:
                        chunk.left -= size
                        index = next(chunk.numbers)
                if chunk is not None:
                    future = self._future(chunk, index)
                    if index < MAX_RECORDS:
                        chunk.put(index, key, value, special)
                    if index >= MAX_RECORDS - 1 or not chunk.open:
                        self._seal_or_leave(chunk)
                    if chunk.open or chunk.took(index):
                        return future
                    # A signal handler in the middle of this had it sealed, without this record.
                    chunk = None
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
        """`send` in a signal handler that came in the middle of another call of this thread.

        What that call was doing to the open chunk is not known: it is sealed as it is, and the record gets a chunk of
        its own after it, sealed at once. The other call notices (`Chunk.open`).
        """
        deadline: float | None = None
        while True:
            with self._lock:
                chunk = self._new_chunk(topic)
                if chunk is not None:
                    future = self._future(chunk, 0)
                    chunk.put(next(chunk.numbers), key, value, special)
                    self._seal(chunk)
                    return future
            deadline = self._wait_for_room(deadline)

    def _serialize(self, topic: str, headers: Any, key: Any, value: Any) -> tuple[Any, Any]:
        if self._key_serializer is not None:
            key = self._key_serializer(topic, headers, key)
        if self._value_serializer is not None:
            value = self._value_serializer(topic, headers, value)
        return key, value

    def _open_chunk(self, topic: str) -> Chunk | None:
        """A chunk with room for one more record; None while there is no room. Called with the lock held."""
        while (chunk := self._new_chunk(topic)) is not None:
            # Unless a signal handler came just now, and while it waited another thread opened one: then after that.
            if self._chunks.setdefault(topic, chunk) is chunk:
                if self._closed is not None:
                    self._seal(chunk)
                    self._raise_closed()
                self._pump.poke()
                break
        return chunk

    def _begin_chunk(self, topic: str) -> Chunk | None:
        """A topic's open chunk where there was none a moment ago; None while there is no room.

        Without the lock, so without a wait: the one before is submitted when it is no longer among the open ones, and
        who else begins one at the same time gets the same.
        """
        self._check_usable(topic)
        chunk = self._made_chunk(topic)
        if chunk is None:
            return None
        chunk = self._chunks.setdefault(topic, chunk)
        if self._closed is not None:
            self._seal_chunk(chunk)
            self._raise_closed()
        self._pump.poke()
        return chunk

    def _new_chunk(self, topic: str) -> Chunk | None:
        """A chunk behind the one that is open, which is sealed; None while there is no room."""
        self._check_usable(topic)
        chunk = self._chunks.get(topic)
        if chunk is not None:
            self._seal(chunk)
        return self._made_chunk(topic)

    def _check_usable(self, topic: str) -> None:
        """Raises what ends the acceptance of records, of all or of a topic."""
        pump = self._pump
        self._raise_closed()
        pump.ledger.raise_parked()
        pump.ledger.raise_damage(topic)
        self._raise_wrong_cluster()
        self._raise_loss()
        self._raise_failure()
        refused = pump.refused_topics.get(topic)
        if refused is not None and self._config.on_blocked_topic == "raise":
            raise error_for_send(refused, self._config.spool_dir)

    def _made_chunk(self, topic: str) -> Chunk | None:
        """A new chunk; None while there is no room."""
        if self._callbacks.full():
            return None
        needed, ledger = self._needed(), self._pump.ledger
        with ledger.lock:
            if not ledger.room(needed):
                return None
        self._check_topic(topic)
        due = time.monotonic() + self._config.linger_s
        return Chunk(topic, time.time_ns() // 1_000_000, due, self._chunk_bytes, self._callbacks)

    def _check_topic(self, topic: str) -> None:
        if topic not in self._partition_counts:
            if not isinstance(topic, str):
                raise TypeError(f"topic must be a string, not {type(topic).__name__}")
            if not _TOPIC_NAME.fullmatch(topic) or topic in {".", ".."}:
                raise ValueError(
                    f"Topic {topic!r} cannot exist: 1 to 249 characters of a-z A-Z 0-9 . _ -, and not . or .."
                )

    def _needed(self) -> int:
        """Bytes that a new chunk and those that are open may need."""
        size = sum(self._chunk_bytes - max(chunk.left, 0) for chunk in list(self._chunks.values()))
        return 2 * self._max_record_bytes + size

    def _wait_for_room(self, deadline: float | None, size: int = 0) -> float:
        """Wait a while for room in the spool, without the lock; returns when to give up, to be passed in again.

        With `size` for that of an atomic batch, beside what is open.
        """
        now = time.monotonic()
        if deadline is None:
            deadline = now + self._config.max_block_s
        if now >= deadline or self._pump.is_current_thread():
            self._raise_no_room(size + self._needed())
        pump = self._pump
        # What lingers takes room as well.
        self._seal_all()
        needed = size + self._needed()
        # In steps: nobody tells when somebody else makes room on the disk.
        pump.wait(
            lambda: not self._callbacks.full() and pump.ledger.room(needed),
            min(_LOOK_EVERY_S, deadline - now),
        )
        return deadline

    def _raise_no_room(self, needed: int) -> NoReturn:
        """A record that found no room in time."""
        self._pump.no_room()
        if self._callbacks.full():
            raise WaitTimeoutError(
                f"{self._callbacks.due()} callbacks are due and have not run within max_block_ms="
                f"{self._config.max_block_s * 1000:.0f}: they take longer than the cluster. The record was not"
                " accepted. Let callbacks do less"
            )
        where = (
            f"memory (spool='never', spool_max_bytes={self._config.spool_max_bytes})"
            if self._config.in_memory
            else f"the spool {self._config.spool_dir}"
        )
        limit, why = self._pump.ledger.lacks(needed)
        raise SpoolFullError(
            f"No room in {where} within max_block_ms={self._config.max_block_s * 1000:.0f}: {why}. The record was not"
            f" accepted; everything accepted before is kept. {_WAYS_OUT[limit]}{self._network_cause()}",
            limit=limit,
        )


def _probe(frames: int) -> None:
    """Raises RecursionError where the stack has no room for so many frames."""
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
            raise TypeError(
                f"headers[{index}] must be a tuple (str, bytes), its value may be None; not {item!r}"
            )
    return tuple(headers)
