"""Exceptions: each message says what went wrong, whether the data is safe, and what to do.

Every exception is a `kafka.errors.KafkaError`, so an `except` clause written for kafka-python catches it too. Every
exception for a time-out is also a builtin `TimeoutError`, as code written for asyncio expects.
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

from kafkasafe.history import epochs

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
    """Base class of every error that kafkasafe raises."""

    def __str__(self) -> str:
        # Leave out the class name that kafka-python puts before the message: tracebacks and most loggers print it
        # already.
        return Exception.__str__(self) if self.args else type(self).__name__


class UsageError(KafkaSafeError):
    """The call was wrong. kafkasafe accepted no record and changed nothing."""


class ConfigError(UsageError, KafkaConfigurationError, ValueError):
    """An option is unknown, or its value cannot work. No file and no connection was opened.

    Also raised if an option, or an argument of a method, is a string that Kafka's protocol cannot encode.
    """


class SparkError(KafkaSafeError):
    """Base class of the errors that only `kafkasafe.spark` raises."""


class CheckpointMismatchError(SparkError):
    """A Spark query's checkpoint does not match the marker that the query wrote to Kafka. Nothing was written."""


class ProducerClosedError(UsageError, IllegalStateError):
    """`send` was called after `close`. Records accepted before `close` are delivered or on disk."""


class ForkedProcessError(UsageError):
    """The producer or consumer was opened before a fork and belongs to the parent process. Open one in the child."""


class RejectedError(KafkaSafeError):
    """The cluster rejected this record.

    If the rejection has an error code, the exception is also a `kafka.errors.BrokerResponseError` whose `errno` is the
    code, and an instance of kafka-python's exception for the code, unless the latter is a `RetriableError`. For
    example, a `RejectedError` with code 10 is a `MessageSizeTooLargeError`.

    Attributes:
        code: Kafka's error code.
        reason: Kafka's name of the error and the broker's message.
    """

    retriable = False
    invalid_metadata = False

    def __new__(cls, message: str, *, code: int = -1, reason: str = "") -> Self:  # noqa: ARG004
        """Make an instance of the class for this error code."""
        kind: Any = cls
        return super().__new__(_refusal(kind, code) if code > 0 else cls)

    def __init__(self, message: str, *, code: int = -1, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the arguments: the class is created at run time for an error code, so pickle cannot import it."""
        return _rejected, (self.args[0], self.code, self.reason)


class BatchDroppedError(KafkaSafeError):
    """An atomic batch (`SafeProducer.batch`) was dropped: `read_committed` consumers see none of its records.

    The producer keeps the records in `rejected/`, with one exception: the batch commits a consumer's offsets, and this
    consumer will read the batch's input again (for example because the group refused the offsets).

    If `commit_transaction` raises this error with an error code, the error is, like a `RejectedError`, also an instance
    of kafka-python's exception for that code.

    Attributes:
        code: Kafka's error code; 0 without one.
    """

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only message and code: the class is created at run time for the code, so pickle cannot import it."""
        make = dropped_for_code if isinstance(self, BrokerResponseError) else _dropped
        return make, (self.args[0], self.code)


def _dropped(message: str, code: int) -> BatchDroppedError:
    return BatchDroppedError(message, code=code)


def dropped_for_code(message: str, code: int) -> BatchDroppedError:
    """Return a BatchDroppedError; for a positive code, it is also an instance of kafka-python's class for the code."""
    made: BatchDroppedError = (_refusal(BatchDroppedError, code) if code > 0 else BatchDroppedError)(
        message, code=code
    )
    return made


@functools.cache
def _refusal(kind: type[Any], code: int) -> type[Any]:
    theirs = for_code(code)
    # The rejection is permanent: if the new class were a RetriableError, callers would send the record again.
    base = BrokerResponseError if issubclass(theirs, RetriableError) else theirs
    if issubclass(kind, BrokerResponseError):
        return kind
    names = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind, base), {**names, "errno": code, "message": theirs.message})


def _rejected(message: str, code: int, reason: str) -> RejectedError:
    return RejectedError(message, code=code, reason=reason)


class DataLossError(KafkaSafeError):
    """The cluster lost records that it had acknowledged, and SafeProducer does not send them again.

    Each loss is raised once, by `send`, `flush` or `close`. If `send` raises this error, `send` did not accept its
    record.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        first_offset: First lost offset.
        last_offset: Last lost offset (inclusive).
        records: Number of records in this range that came from this spool; -1 if unknown.
        others: If `close` raised this error: the other losses that were not raised yet, one exception for each loss.
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
    """The producer cannot determine whether a batch is in the log. The spool keeps the batch with the evidence.

    Attributes:
        evidence: The producer's requests and the cluster's answers.
    """

    def __init__(self, message: str, *, evidence: str = "") -> None:
        super().__init__(message)
        self.evidence = evidence


class WaitTimeoutError(KafkaSafeError, KafkaTimeoutError, TimeoutError):
    """A call reached its time-out without a result. Nothing was lost; call again to wait longer.

    The call stopped waiting, but accepted records are still delivered.
    """


class DeliveryTimeoutError(KafkaSafeError, TimeoutError):
    """The record was not acknowledged within `delivery_timeout_ms`, or before a producer with `spool="never"` closed.

    The record is not dropped: it stays in the spool, and this process or the next one delivers it when the cluster
    accepts it. Do not send the record again: unlike kafka-python's KafkaTimeoutError, this error is not retriable. With
    `spool="never"` the record stays in memory while the producer is open. If `close()` cannot deliver all records,
    `close()` raises this error, and the message says how many records are lost.
    """


class SpoolError(KafkaSafeError):
    """The spool on disk cannot be opened, read or written."""


class SpoolWriteError(SpoolError):
    """A write or fsync failed, or there was not enough memory to encode the records.

    Records that were durable before are still durable; the records of the failed write are not.

    Attributes:
        full: True if the disk has no room or a quota is exhausted.
    """

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


Limit: TypeAlias = Literal["", "spool_max_bytes", "volume", "disk"]


class SpoolFullError(SpoolError, WaitTimeoutError):
    """The spool (with `spool="never"`: the memory) had no room for the record within `max_block_ms`.

    The record was not accepted. All accepted records are kept.

    Attributes:
        limit: The limit that was reached: "spool_max_bytes"; "volume" (the file system has no room left); "disk" (the
            disk fails, or writes more slowly than records arrive); "" for another limit, which the message names.
    """

    def __init__(self, message: str, *, limit: Limit = "") -> None:
        super().__init__(message)
        self.limit: Limit = limit


class SpoolCorruptError(SpoolError):
    """A file of the spool has changed or is missing, and no crash explains it. Nothing was deleted.

    Attributes:
        damage: One sentence for each damaged range: the file, the byte range, and what the range contains, if known.
    """

    def __init__(self, message: str, *, damage: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.damage = damage


class SpoolFormatError(SpoolError):
    """The directory is not a spool, or was written by a newer kafkasafe. Nothing was changed."""


class WrongClusterError(SpoolError):
    """The spool directory holds records for another cluster. Nothing was sent; the records stay on disk."""


class LaneBusyError(SpoolError):
    """The lane `spool_lane` belongs to another live process. Retriable: the lane is free when that process ends.

    Attributes:
        pid: The owner's process id; 0 if unknown.
    """

    retriable = True

    def __init__(self, message: str, *, pid: int = 0) -> None:
        super().__init__(message)
        self.pid = pid


class LineageError(KafkaSafeError, epochs.LineageError):
    """The arguments given to `kafkasafe.lineage` do not describe a possible history of a log."""


class LineageFileError(KafkaSafeError, ValueError):
    """The file `lineage_path` is damaged, comes from a newer version or is in use. It was not changed."""


class BaselineError(KafkaSafeError, ValueError):
    """The file `offsets_path` is damaged, of another kind or from a newer version. It was not changed."""


class LogDivergedError(KafkaSafeError):
    """The log has lost records that this consumer had read (`on_divergence="raise"`).

    The partition's position does not move. Until the application calls `seek`, `poll` raises this error again whenever
    it has no records of other partitions to return. Use `seek` to `event.divergent_offset` to read the records that the
    log contains there now, or to `event.resume_offset` to skip these records. Do not seek to `event.position`: this
    offset may be past the end of the log, and then `auto_offset_reset` would set the position.

    Attributes:
        event: The `kafkasafe.events.LogDiverged` with the partition, the ranges of offsets and the epochs.
    """

    def __init__(self, message: str, *, event: Any = None) -> None:
        super().__init__(message)
        self.event = event


class OffsetNotAvailableError(WaitTimeoutError):
    """A look-up of offsets timed out while a new leader was catching up (KIP-207, error code 78). Retriable.

    The look-up has no result: call again.

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
    """A call timed out while a broker could not read a partition's remote segments (KIP-1007). Retriable.

    No record was skipped, and no position moved.

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
