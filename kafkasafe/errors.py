"""Exceptions: what went wrong, whether the data is safe, what to do.

Every one is a `kafka.errors.KafkaError`, so that code written for kafka-python catches them where it already
catches its own. Every time-out is also a builtin `TimeoutError`, as code written for asyncio expects.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, Self, TypeAlias

from kafka.errors import (
    BrokerResponseError,
    IllegalStateError,
    KafkaConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    RetriableError,
    for_code,
)

from kafkasafe._core import epochs

__all__ = [
    "BaselineError",
    "BatchDroppedError",
    "CheckpointMismatchError",
    "ConfigError",
    "DataLossError",
    "DeliveryTimeoutError",
    "ForkedProcessError",
    "KafkaSafeError",
    "LaneBusyError",
    "LineageError",
    "LineageFileError",
    "LogDivergedError",
    "OffsetNotAvailableError",
    "ProducerClosedError",
    "RejectedError",
    "RemoteStorageNotReadyError",
    "SparkError",
    "SpoolCorruptError",
    "SpoolError",
    "SpoolFormatError",
    "SpoolFullError",
    "SpoolWriteError",
    "UndecidableError",
    "UsageError",
    "WaitTimeoutError",
    "WrongClusterError",
]


class KafkaSafeError(KafkaError):
    """Root of every error kafkasafe raises."""

    def __str__(self) -> str:
        # kafka-python's begin with the name of the class; a traceback, and most loggers, print that name already.
        return Exception.__str__(self) if self.args else type(self).__name__


class UsageError(KafkaSafeError):
    """The call is wrong; nothing was accepted, nothing changed."""


class ConfigError(UsageError, KafkaConfigurationError, ValueError):
    """An option is unknown or has a value that cannot work. Nothing was opened."""


class SparkError(KafkaSafeError):
    """Root of the errors that only `kafkasafe.spark` raises."""


class CheckpointMismatchError(SparkError):
    """A Spark query's checkpoint and the marker of its batches in Kafka do not belong together. Nothing was written."""


class ProducerClosedError(UsageError, IllegalStateError):
    """`send` after `close`. Records accepted before are delivered or on disk."""


class ForkedProcessError(UsageError):
    """The producer was opened before a fork: the parent owns it. Open a new one in the child."""


class RejectedError(KafkaSafeError):
    """The cluster refused this record for good.

    One with a code is also a `kafka.errors.BrokerResponseError` with its `errno`, and kafka-python's own exception for
    the code (`MessageSizeTooLargeError` for 10), but never a `RetriableError`.

    Attributes:
        code: Kafka's error code.
        reason: Kafka's name of the error and what the broker said.
    """

    retriable = False
    invalid_metadata = False

    def __new__(cls, message: str, *, code: int = -1, reason: str = "") -> Self:  # noqa: ARG004
        """Of a class of its own for each code."""
        kind: Any = cls
        return super().__new__(_refusal(kind, code) if code > 0 else cls)

    def __init__(self, message: str, *, code: int = -1, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        """The class for the code is made, not found by its name."""
        return _rejected, (self.args[0], self.code, self.reason)


class BatchDroppedError(KafkaSafeError):
    """An atomic batch (`SafeProducer.batch`) was given up: nothing of it can be seen by readers of committed records.

    Its records are in `rejected/`, or, where a consumer's offsets were part of it and the consumer is no member of its
    group any more, nowhere: whoever has those partitions now reads the same records again.

    Attributes:
        code: Kafka's error code, 0 where there is none.
    """

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """With its code."""
        return _dropped, (self.args[0], self.code)


def _dropped(message: str, code: int) -> BatchDroppedError:
    return BatchDroppedError(message, code=code)


@functools.cache
def _refusal(kind: type[Any], code: int) -> type[Any]:
    theirs = for_code(code)
    # What was refused for good must not be taken for what may be sent again.
    base = BrokerResponseError if issubclass(theirs, RetriableError) else theirs
    if issubclass(kind, BrokerResponseError):
        return kind
    names = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind, base), {**names, "errno": code, "message": theirs.message})


def _rejected(message: str, code: int, reason: str) -> RejectedError:
    return RejectedError(message, code=code, reason=reason)


class DataLossError(KafkaSafeError):
    """Records that the cluster had acknowledged are gone from the log, and SafeProducer does not send them again.

    `send`, `flush` and `close` raise each loss once; `send` has not accepted its record then. What can be done: produce
    the range again from its source.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        first_offset: First lost offset.
        last_offset: Last lost offset (inclusive).
        records: How many of the records between them were this spool's; -1 when that is not known.
        others: More losses that had not been raised when `close` raised this one, each an error of its own.
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str = "",
        partition: int = -1,
        first_offset: int = -1,
        last_offset: int = -1,
        records: int = -1,
        others: tuple[KafkaSafeError, ...] = (),
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.records = records
        self.others = others


class UndecidableError(KafkaSafeError):
    """Whether a batch is in the log cannot be known; it is parked in the spool with its evidence.

    Attributes:
        evidence: What was asked and what the cluster answered.
    """

    def __init__(self, message: str, *, evidence: str = "") -> None:
        super().__init__(message)
        self.evidence = evidence


class WaitTimeoutError(KafkaSafeError, KafkaTimeoutError, TimeoutError):
    """The time that a call had is over. The call concluded nothing, and nothing was lost: call again to wait on.

    Records that the call waited for stay accepted and are still delivered.
    """


class DeliveryTimeoutError(KafkaSafeError, TimeoutError):
    """`delivery_timeout_ms` ended before the cluster acknowledged the record, or the producer did (`spool="never"`).

    The record is not dropped: it stays in the spool and is delivered when the cluster takes it, in this life of
    the process or the next. Do not send it again. So, other than kafka-python's KafkaTimeoutError, it is not retriable.
    With `spool="never"` it stays in memory as long as the producer lives; the error from `close()`, and of the futures
    that it ends, says how many records are lost.
    """


class SpoolError(KafkaSafeError):
    """Something about the spool on disk."""


class SpoolWriteError(SpoolError):
    """A write or fsync failed, or there was no memory to encode what was to be written.

    What was durable before still is; the failed group was not promised to anybody.

    Attributes:
        full: The disk has no room, or a quota is used up.
    """

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


Limit: TypeAlias = Literal["", "spool_max_bytes", "volume", "disk"]


class SpoolFullError(SpoolError, WaitTimeoutError):
    """No room in the spool (with `spool="never"`: in memory) within `max_block_ms`.

    The record was not accepted; all accepted ones are kept.

    Attributes:
        limit: Which limit was hit: "spool_max_bytes"; "volume" (the file system has no room left); "disk" (it fails, or
            is slower than what is accepted); "" where it is another one, which the message names.
    """

    def __init__(self, message: str, *, limit: Limit = "") -> None:
        super().__init__(message)
        self.limit: Limit = limit


class SpoolCorruptError(SpoolError):
    """Damage inside the log, with durable data behind it. Nothing was deleted.

    Attributes:
        damage: One sentence per damaged range: file, byte range, what it held as far as is known.
    """

    def __init__(self, message: str, *, damage: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.damage = damage


class SpoolFormatError(SpoolError):
    """The directory is not a spool, or was written by a newer kafkasafe. Nothing was changed."""


class WrongClusterError(SpoolError):
    """The spool directory holds records for another cluster. Nothing was sent; they wait for theirs."""


class LaneBusyError(SpoolError):
    """The lane asked for belongs to another live process.

    Attributes:
        pid: The owner's process id, 0 if it did not say.
    """

    def __init__(self, message: str, *, pid: int = 0) -> None:
        super().__init__(message)
        self.pid = pid


class LineageError(KafkaSafeError, epochs.LineageError):
    """What `kafkasafe.lineage` was given is not a history of a log."""


class LineageFileError(KafkaSafeError, ValueError):
    """The file of `lineage_path` cannot be used: damaged, of a newer version, or another consumer's. Unchanged."""


class BaselineError(KafkaSafeError, ValueError):
    """The file of `offsets_path` cannot be used: damaged, of a newer version, or another consumer's. Unchanged."""


class LogDivergedError(KafkaSafeError):
    """Records that this consumer had read are no longer in the log (`on_divergence="raise"`).

    The partition stays where it is, and `poll` raises again whenever it has nothing of other partitions to return,
    until the application decides: `seek` to `event.at` reads what is there now, `seek` to `event.resume_offset`
    leaves that out. (`event.position` may be past the end of the log, where `auto_offset_reset` would decide.)

    Attributes:
        event: The `kafkasafe.events.LogDiverged`: partition, ranges, epochs.
    """

    def __init__(self, message: str, *, event: Any = None) -> None:
        super().__init__(message)
        self.event = event


class OffsetNotAvailableError(WaitTimeoutError):
    """The deadline of a look-up ended while a new leader was catching up (KIP-207, error code 78). Retriable.

    Nothing was concluded: call again.

    Attributes:
        topic: Topic name.
        partition: Partition number.
    """

    retriable = True

    def __init__(self, message: str, *, topic: str = "", partition: int = -1) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition


class RemoteStorageNotReadyError(WaitTimeoutError):
    """The deadline ended while a broker could not read a partition's remote segments (KIP-1007). Retriable.

    Nothing was skipped: positions are where they were.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        code: Kafka's error code of the last answer.
    """

    retriable = True

    def __init__(self, message: str, *, topic: str = "", partition: int = -1, code: int = -1) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.code = code
