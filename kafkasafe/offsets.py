"""Look-ups of offsets. A result decreases only if it is proven that the log has changed. Works with any Kafka client.

```python
tracker = EndOffsetTracker("ends.json")
ends = tracker.end_offsets(consumer.end_offsets(partitions))  # kafka-python
low, high = consumer.get_watermark_offsets(TopicPartition("orders", 0))  # confluent-kafka
end = tracker.observe("orders", 0, high).offset
tracker.save()
```

`kafkasafe.history.offsets` decides which answers to trust, and explains why. This module also exports its result types.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeVar
from uuid import UUID

from kafkasafe.errors import BaselineError
from kafkasafe.history.offset_answers import (
    Held,
    HeldReason,
    Isolation,
    Key,
    Proof,
    Regressed,
    RegressedReason,
    Result,
    Unproven,
    Value,
)
from kafkasafe.history.offsets import EndOffsets
from kafkasafe.process.locks import new_lock
from kafkasafe.spool.files import Files, OsFiles, read_whole, replace_whole

__all__ = [
    "BaselineError",
    "EndOffsetTracker",
    "Held",
    "HeldReason",
    "IsolationLevel",
    "Proof",
    "Regressed",
    "RegressedReason",
    "Result",
    "Unproven",
    "Value",
]

IsolationLevel = Literal["read_uncommitted", "read_committed"]

_ISOLATION: Final[dict[str, Isolation]] = {level.name.lower(): level for level in Isolation}

_Partition = TypeVar("_Partition", bound=tuple[str, int])
_Judged = TypeVar("_Judged", bound=Result | None)


class EndOffsetTracker:
    """Keeps the highest end offset of each partition and isolation level, and decides whether to trust a lower answer.

    The tracker sends no requests: the caller passes it the answers that any client got. Thread-safe.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        hold_timeout_s: float = 30.0,
        on_result: Callable[[str, int, Held | Regressed | Unproven], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        files: Files | None = None,
    ) -> None:
        """Open a tracker.

        Args:
            path: A file that keeps the offsets across restarts. The constructor reads the file, and `save` and `close`
                write it. None: nothing is stored.
            hold_timeout_s: How many seconds the tracker keeps the old value while brokers give answers that are lower
                than before and have no leader epoch. After that, the result is `Unproven`.
            on_result: Called with (topic, partition, result) for each result that is not a `Value`. The callback runs
                on the thread that passed the answer to the tracker. If the callback raises an exception, the tracker
                stores the answer nevertheless, and passes the exception on to its caller.
            clock: Returns the time in seconds. The time must never decrease.
            files: File system interface, for tests.

        Raises:
            BaselineError: The file is of another kind, is damaged, or comes from a newer version. It was not changed.
            OSError: The file cannot be read.
        """
        self._path = None if path is None else Path(path).absolute()
        self._on_result = on_result
        self._clock = clock
        self._files = OsFiles() if files is None else files
        self._lock = new_lock()
        self._ends = EndOffsets(hold_timeout_s=hold_timeout_s)
        self._saved: str | None = None
        content = None if self._path is None else read_whole(self._files, self._path)
        if content is not None:
            try:
                self._ends.restore(content.decode())
            except ValueError as error:  # base class of BaselineFormatError and UnicodeDecodeError
                raise BaselineError(
                    f"{self._path} cannot be used: {error}. Replace it with a good copy, or move it away. Without the"
                    " file, end offsets are recorded from the next answer on, and an earlier decrease of an end offset"
                    " is not noticed."
                ) from None

    # --- answers ---

    def observe(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        leader_epoch: int = -1,
        topic_id: bytes | UUID | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Result:
        """Store a broker's answer about an end offset.

        Args:
            topic: Topic name.
            partition: Partition number.
            offset: End offset: the next offset to be written (with read_committed: the last stable offset).
            leader_epoch: Leader epoch in the answer. If the answer has none: the epoch of the leader that answered. -1
                if neither is known. Without an epoch, nothing can prove that a lower answer is correct.
            topic_id: Id of the topic, if known.
            isolation_level: Isolation level of the look-up.

        Returns:
            A result whose `offset` is the end offset to use. `Value`: the answer is trusted. `Held`: the answer is
            lower than an earlier one, and is not trusted. Look up again; if `ask_epoch` is set, also send
            OffsetForLeaderEpoch and pass its answer to `prove`. `Regressed`: the answer is lower than an earlier one,
            but is trusted for the given reason. `Unproven`: see `accept`.

        Raises:
            ValueError: `offset` is negative, or the isolation level is unknown.
        """
        key = _key(topic, partition, isolation_level)
        with self._lock:
            result = self._ends.observe(
                key, offset, self._clock(), leader_epoch=leader_epoch, topic_id=_bytes_of(topic_id)
            )
        return self._tell(key, result)

    def end_offsets(
        self,
        answered: Mapping[_Partition, int],
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> dict[_Partition, int]:
        """Store the end offsets that `KafkaConsumer.end_offsets` returned, and return the end offsets to use.

        Both dicts have (topic, partition) as keys. A returned end offset is never lower than before. The only
        exceptions: another method has returned `Regressed` for this partition, or has received another topic id.
        """
        ends: dict[_Partition, int] = {}
        for at, offset in answered.items():
            result = self.observe(at[0], at[1], offset, isolation_level=isolation_level)
            ends[at] = offset if result.offset is None else result.offset
        return ends

    def observe_start(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        leader_epoch: int = -1,
        topic_id: bytes | UUID | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Result:
        """Store a broker's answer about an earliest offset.

        The highest start offset so far counts. A new leader may answer with a lower offset, because it may not yet have
        deleted as many records as the former leader.

        Args:
            topic: Topic name.
            partition: Partition number.
            offset: First offset of the log.
            leader_epoch: Leader epoch of the answer, that is, of the log's first record; -1 if not known. Without an
                epoch, nothing can prove that a lower answer is correct.
            topic_id: Id of the topic, if known. If the id has changed, earlier answers no longer count.
            isolation_level: Isolation level for looking up end offsets. Answers are kept separately for each isolation
                level.

        Returns:
            A result as from `observe`, but for a recreated topic the result is a `Value` whose `recreated` is True. If
            a `Held` result has `ask_epoch`, send OffsetForLeaderEpoch and pass the answer to `prove_start`. `Unproven`:
            see `accept_start`.

        Raises:
            ValueError: `offset` is negative, or the isolation level is unknown.
        """
        key = _key(topic, partition, isolation_level)
        with self._lock:
            result = self._ends.observe_start(
                key, offset, self._clock(), leader_epoch=leader_epoch, topic_id=_bytes_of(topic_id)
            )
        return self._tell(key, result)

    def prove_start(
        self,
        topic: str,
        partition: int,
        *,
        requested_epoch: int,
        reply_epoch: int,
        end_offset: int,
        leader_epoch: int = -1,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Result:
        """Store the answer to the OffsetForLeaderEpoch request for which a `Held` result of `observe_start` asked.

        Arguments: see `prove`.
        """
        key = _key(topic, partition, isolation_level)
        with self._lock:
            result = self._ends.prove_start(
                key, requested_epoch, reply_epoch, end_offset, self._clock(), leader_epoch=leader_epoch
            )
        return self._tell(key, result)

    def accept_start(
        self, topic: str, partition: int, *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> Regressed | None:
        """Accept, without a proof, the lower start offset of a `Held` or `Unproven` result. Return None if there is no
        such result.

        A start offset that is too low does no harm. But if the log was replaced, the old start offset may be too high:
        a reader that begins there misses records.
        """
        key = _key(topic, partition, isolation_level)
        with self._lock:
            regressed = self._ends.accept_start(key)
        return self._tell(key, regressed)

    def observe_timestamp(
        self,
        topic: str,
        partition: int,
        timestamp_ms: int,
        offset: int | None,
        *,
        leader_epoch: int = -1,
        found_timestamp_ms: int = -1,
        topic_id: bytes | UUID | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Value | Held:
        """Store a broker's answer to a look-up by timestamp.

        Args:
            topic: Topic name.
            partition: Partition number.
            timestamp_ms: The timestamp in the request, ms since the epoch.
            offset: Offset of the first record at or after `timestamp_ms`; None if the log has no such record.
            leader_epoch: Leader epoch of the record at `offset`; -1 if not known. A later `Held` result contains this
                epoch.
            found_timestamp_ms: Timestamp of the record at `offset`, ms since the epoch; -1 if not known. A later `Held`
                result contains this timestamp.
            topic_id: See `observe_start`.
            isolation_level: See `observe_start`.

        Returns:
            `Held` if the answer is about a deleted topic, or if this answer finds no record although an earlier answer
            found one at or after the log's start; otherwise `Value`. After a `Held` result, look up again: the broker
            may be a new leader that does not know the record yet (KIP-207).

        Raises:
            ValueError: See `observe_start`.
        """
        key = _key(topic, partition, isolation_level)
        with self._lock:
            result = self._ends.observe_timestamp(
                key,
                timestamp_ms,
                offset,
                self._clock(),
                topic_id=_bytes_of(topic_id),
                leader_epoch=leader_epoch,
                found_timestamp_ms=found_timestamp_ms,
            )
        return self._tell(key, result)

    def unavailable(
        self,
        topic: str,
        partition: int,
        code: int,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Held:
        """Store that a look-up failed with code 78 (OFFSET_NOT_AVAILABLE) or 5 (LEADER_NOT_AVAILABLE): wait and retry.

        Raises:
            ValueError: `code` is another error code.
        """
        key = _key(topic, partition, isolation_level)
        with self._lock:
            held = self._ends.unavailable(key, code, self._clock())
        return self._tell(key, held)

    def prove(
        self,
        topic: str,
        partition: int,
        *,
        requested_epoch: int,
        reply_epoch: int,
        end_offset: int,
        leader_epoch: int = -1,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Result:
        """Store the leader's answer to OffsetForLeaderEpoch for the epoch `Held.ask_epoch`.

        Args:
            topic: Topic name.
            partition: Partition number.
            requested_epoch: The epoch in the request.
            reply_epoch: `leader_epoch` of the response.
            end_offset: `end_offset` of the response.
            leader_epoch: Current epoch of the leader that answered; -1 if not known.
            isolation_level: Isolation level of the held answer.
        """
        key = _key(topic, partition, isolation_level)
        with self._lock:
            result = self._ends.prove(
                key, requested_epoch, reply_epoch, end_offset, self._clock(), leader_epoch=leader_epoch
            )
        return self._tell(key, result)

    def accept(
        self, topic: str, partition: int, *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> Regressed | None:
        """Accept, without a proof, the lower end offset of a `Held` or `Unproven` result. Return None if there is no
        such result.
        """
        key = _key(topic, partition, isolation_level)
        with self._lock:
            regressed = self._ends.accept(key)
        return self._tell(key, regressed)

    def end_offset(
        self, topic: str, partition: int, *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> int | None:
        """Return the recorded end offset; None before the first answer."""
        with self._lock:
            return self._ends.end_offset(_key(topic, partition, isolation_level))

    def _tell(self, key: Key, result: _Judged) -> _Judged:
        if self._on_result is not None and isinstance(result, (Held, Regressed, Unproven)):
            self._on_result(key.topic, key.partition, result)
        return result

    # --- the file ---

    def save(self, *, if_changed: bool = False) -> None:
        """Write the file. On return, all answers recorded so far are durable. Does nothing without a path.

        Args:
            if_changed: Write nothing if the contents have not changed since this tracker's last write.

        Raises:
            OSError: The file could not be written. The former file is unchanged.
        """
        if self._path is None:
            return
        with self._lock:
            text = self._ends.encode()
            if not if_changed or text != self._saved:
                replace_whole(self._files, self._path, text.encode())
                self._saved = text

    def close(self) -> None:
        """Call `save`."""
        self.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<EndOffsetTracker {self._path or 'in memory'}>"


def _key(topic: str, partition: int, isolation_level: str) -> Key:
    level = _ISOLATION.get(isolation_level)
    if level is None:
        raise ValueError(f"isolation_level must be one of {', '.join(_ISOLATION)}, not {isolation_level!r}")
    return Key(topic, partition, level)


def _bytes_of(topic_id: bytes | UUID | None) -> bytes | None:
    return topic_id.bytes if isinstance(topic_id, UUID) else topic_id
