"""Offsets of look-ups that never go backwards without a proof, around any Kafka client.

```python
tracker = EndOffsetTracker("ends.json")
ends = tracker.end_offsets(consumer.end_offsets(partitions))  # kafka-python
low, high = consumer.get_watermark_offsets(TopicPartition("orders", 0))  # confluent-kafka
end = tracker.observe("orders", 0, high).offset
tracker.save()
```

What an answer is worth, and why, is in `kafkasafe._core.offsets`; its types are exported here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeVar
from uuid import UUID

from kafkasafe._core.offsets import (
    EndOffsets,
    Held,
    HeldReason,
    Isolation,
    Key,
    Lowered,
    LoweredReason,
    Proof,
    Result,
    Undecidable,
    Value,
)
from kafkasafe._io.files import Files, OsFiles, read_whole, replace_whole
from kafkasafe.errors import BaselineError

__all__ = [
    "BaselineError",
    "EndOffsetTracker",
    "Held",
    "HeldReason",
    "IsolationLevel",
    "Lowered",
    "LoweredReason",
    "Proof",
    "Result",
    "Undecidable",
    "Value",
]

IsolationLevel = Literal["read_uncommitted", "read_committed"]

_ISOLATION: Final[dict[str, Isolation]] = {level.name.lower(): level for level in Isolation}

_Partition = TypeVar("_Partition", bound=tuple[str, int])


class EndOffsetTracker:
    """Remembers the highest end offset of each partition and isolation level; tells what to believe of a new answer.

    Asks nobody: the caller does, with whatever client, and gives the answers. Thread-safe.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        hold_timeout_s: float = 30.0,
        on_result: Callable[[str, int, Held | Lowered | Undecidable], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        files: Files | None = None,
    ) -> None:
        """Open a tracker.

        Args:
            path: A file that remembers from one life of the process to the next; read now, written by `save` and
                `close`. None: nothing is stored.
            hold_timeout_s: How long a lower answer without leader epochs is held before it is undecidable, seconds.
            on_result: Gets (topic, partition, result) of every answer that was not simply believed, in the thread
                that gave the answer. What it raises goes to that caller; the answer counts all the same.
            clock: Seconds; must not go back.
            files: The disk, for tests.

        Raises:
            BaselineError: The file is not one of these, was damaged, or is of a newer version. It was not changed.
            OSError: It cannot be read.
        """
        self._path = None if path is None else Path(path).absolute()
        self._on_result = on_result
        self._clock = clock
        self._files = OsFiles() if files is None else files
        self._lock = threading.Lock()
        self._ends = EndOffsets(hold_timeout_s=hold_timeout_s)
        self._saved: str | None = None
        content = None if self._path is None else read_whole(self._files, self._path)
        if content is not None:
            try:
                self._ends.restore(content.decode())
            except ValueError as error:  # BaselineFormatError and UnicodeDecodeError are kinds of it
                raise BaselineError(
                    f"{self._path} cannot be used: {error}. Put a good copy in its place. Or move it away: then ends"
                    " are remembered from the next answer on, and one that went back before that is not noticed."
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
        """An end offset was answered.

        Args:
            topic: Topic name.
            partition: Partition number.
            offset: Next offset to be written (or last stable offset, with read_committed).
            leader_epoch: Of the answer, or of the leader that gave it; -1 when not known. Without it a lower answer
                cannot be proven.
            topic_id: Of the topic that was asked, when known.
            isolation_level: With which it was asked.

        Returns:
            A result whose `offset` is the end to work with. Value: the answer was believed. Held: it was not;
            ask again, and if `ask_epoch` is set, ask OffsetForLeaderEpoch and give the answer to `prove`. Lowered:
            it was, and why. Undecidable: see `accept`.

        Raises:
            ValueError: `offset` is negative, or the isolation level is none.
        """
        key = _key(topic, partition, isolation_level)
        number = topic_id.bytes if isinstance(topic_id, UUID) else topic_id
        with self._lock:
            result = self._ends.observe(
                key, offset, self._clock(), leader_epoch=leader_epoch, topic_id=number
            )
        return self._tell(key, result)

    def end_offsets(
        self,
        answered: Mapping[_Partition, int],
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> dict[_Partition, int]:
        """Of end offsets by (topic, partition), as `KafkaConsumer.end_offsets` returns them, what to work with.

        A value is never below the one that this method, or `observe`, gave for the partition before.
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
        """An earliest offset was answered. The highest one stands: a new leader may not have deleted as much yet.

        Args:
            topic: Topic name.
            partition: Partition number.
            offset: First offset of the log.
            leader_epoch: Of the answer, which is that of the first record; -1 when not known. Without it a lower answer
                cannot be proven.
            topic_id: Of the topic that was asked, when known; another one makes what was before void.
            isolation_level: With which ends are asked for; what is remembered is apart.

        Returns:
            As `observe`, but the start of a topic that was recreated is a Value, with `recreated`. Held with
            `ask_epoch`: ask OffsetForLeaderEpoch and give the answer to `prove_start`. Undecidable: see `accept_start`.

        Raises:
            ValueError: `offset` is negative, or the isolation level is none.
        """
        key = _key(topic, partition, isolation_level)
        number = topic_id.bytes if isinstance(topic_id, UUID) else topic_id
        with self._lock:
            result = self._ends.observe_start(
                key, offset, self._clock(), leader_epoch=leader_epoch, topic_id=number
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
        """The leader's answer to OffsetForLeaderEpoch of the `Held.ask_epoch` of a start. Arguments: see `prove`."""
        key = _key(topic, partition, isolation_level)
        with self._lock:
            result = self._ends.prove_start(
                key, requested_epoch, reply_epoch, end_offset, self._clock(), leader_epoch=leader_epoch
            )
        return self._tell(key, result)

    def accept_start(
        self, topic: str, partition: int, *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> Lowered | None:
        """Believe the lower start that is held, without a proof. None when none is held.

        Other than an end, a start that is too low does no harm; one that is held although the log is another one hides
        records.
        """
        key = _key(topic, partition, isolation_level)
        with self._lock:
            lowered = self._ends.accept_start(key)
        if lowered is not None:
            self._tell(key, lowered)
        return lowered

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
        """A look-up by time was answered.

        Args:
            topic: Topic name.
            partition: Partition number.
            timestamp_ms: What was looked for, ms since the epoch.
            offset: First record at or after it; None when there is none.
            leader_epoch: Of that record, -1 when not known. It and the next come back in `Held`.
            found_timestamp_ms: Timestamp of that record, ms since the epoch, -1 when not known.
            topic_id: See `observe_start`.
            isolation_level: See `observe_start`.

        Returns:
            Held when such a record was found before, none is now, and no earliest offset shows that it was deleted: a
            new leader may not be ready to tell (KIP-207). Ask again.

        Raises:
            ValueError: See `observe_start`.
        """
        key = _key(topic, partition, isolation_level)
        number = topic_id.bytes if isinstance(topic_id, UUID) else topic_id
        with self._lock:
            result = self._ends.observe_timestamp(
                key,
                timestamp_ms,
                offset,
                topic_id=number,
                leader_epoch=leader_epoch,
                found_timestamp_ms=found_timestamp_ms,
            )
        self._tell(key, result)
        return result

    def unavailable(
        self,
        topic: str,
        partition: int,
        code: int,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Held:
        """A look-up was refused with 78 (OFFSET_NOT_AVAILABLE) or 5 (LEADER_NOT_AVAILABLE). Wait, ask again.

        Raises:
            ValueError: Another error code.
        """
        key = _key(topic, partition, isolation_level)
        with self._lock:
            held = self._ends.unavailable(key, code, self._clock())
        self._tell(key, held)
        return held

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
        """The leader's answer to OffsetForLeaderEpoch of `Held.ask_epoch`.

        Args:
            topic: Topic name.
            partition: Partition number.
            requested_epoch: The epoch asked about.
            reply_epoch: `leader_epoch` of the response.
            end_offset: `end_offset` of the response.
            leader_epoch: Current epoch of the leader that answered, -1 when not known.
            isolation_level: Of the answer that is held.
        """
        key = _key(topic, partition, isolation_level)
        with self._lock:
            result = self._ends.prove(
                key, requested_epoch, reply_epoch, end_offset, self._clock(), leader_epoch=leader_epoch
            )
        return self._tell(key, result)

    def accept(
        self, topic: str, partition: int, *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> Lowered | None:
        """Believe the lower answer that is held, without a proof. None when none is held."""
        key = _key(topic, partition, isolation_level)
        with self._lock:
            lowered = self._ends.accept(key)
        if lowered is not None:
            self._tell(key, lowered)
        return lowered

    def end_offset(
        self, topic: str, partition: int, *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> int | None:
        """The remembered end; None before the first answer."""
        with self._lock:
            return self._ends.end_offset(_key(topic, partition, isolation_level))

    def _tell(self, key: Key, result: Result) -> Result:
        if self._on_result is not None and not isinstance(result, Value):
            self._on_result(key.topic, key.partition, result)
        return result

    # --- the file ---

    def save(self, *, if_changed: bool = False) -> None:
        """Write the file; what was answered before is durable on return. Does nothing without a path.

        Args:
            if_changed: Do nothing where this tracker wrote the same before.

        Raises:
            OSError: It could not be written; the former file is as it was.
        """
        if self._path is None:
            return
        with self._lock:
            text = self._ends.encode()
            if not if_changed or text != self._saved:
                replace_whole(self._files, self._path, text.encode())
                self._saved = text

    def close(self) -> None:
        """`save`."""
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
        raise ValueError(f"isolation_level is {isolation_level!r}; it is one of {', '.join(_ISOLATION)}")
    return Key(topic, partition, level)
