"""Exceptions: each message says what went wrong, whether the data is safe, and what to do.

Every exception is a `kafka.errors.KafkaError`, so an `except` clause written for kafka-python catches it too. Every
time-out is also a builtin `TimeoutError`, as code written for asyncio expects.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeAlias

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
        # kafka-python puts the class name before the message. Tracebacks and most loggers print that name already.
        return Exception.__str__(self) if self.args else type(self).__name__


class UsageError(KafkaSafeError):
    """The call was wrong. kafkasafe accepted no record and changed nothing."""


class ConfigError(UsageError, KafkaConfigurationError, ValueError):
    """An option is unknown, or a value cannot work. No file and no connection was opened.

    A string that Kafka's protocol cannot encode also raises it, as an option or as an argument of a method.
    """


class SparkError(KafkaSafeError):
    """Base class of the errors that only `kafkasafe.spark` raises."""


class CheckpointMismatchError(SparkError):
    """A Spark query's checkpoint and the marker of its batches in Kafka do not belong together. Nothing was written."""


class ProducerClosedError(UsageError, IllegalStateError):
    """`send` was called after `close`. Records accepted before `close` are delivered or on disk."""


class ForkedProcessError(UsageError):
    """The producer or consumer was opened before a fork and belongs to the parent process. Open one in the child."""


class RejectedError(KafkaSafeError):
    """The cluster rejected this record.

    If the rejection has an error code, the exception is also a `kafka.errors.BrokerResponseError` whose `errno` is the
    code. It is then an instance of kafka-python's exception for the code, too (`MessageSizeTooLargeError` for 10). It
    is never a `RetriableError`.

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
        """Pickle the arguments: the class for the code is created at run time, so pickle cannot import it by name."""
        return _rejected, (self.args[0], self.code, self.reason)


class BatchDroppedError(KafkaSafeError):
    """An atomic batch (`SafeProducer.batch`) was dropped: `read_committed` consumers see none of its records.

    The producer keeps the records in `rejected/`. The exception is a batch with a consumer's offsets whose input is
    read again, for example after the group refused the offsets. The producer keeps nothing of such a batch.

    If `commit_transaction` raises this error with an error code, the exception is also an instance of kafka-python's
    exception for the code, as a `RejectedError` is.

    Attributes:
        code: Kafka's error code; 0 if there is none.
    """

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle message and code: the class for the code is created at run time, so pickle cannot import it."""
        make = dropped_for_code if isinstance(self, BrokerResponseError) else _dropped
        return make, (self.args[0], self.code)


def _dropped(message: str, code: int) -> BatchDroppedError:
    return BatchDroppedError(message, code=code)


def dropped_for_code(message: str, code: int) -> BatchDroppedError:
    """Return a BatchDroppedError that, for a positive code, is also kafka-python's exception for the code."""
    made: BatchDroppedError = (_refusal(BatchDroppedError, code) if code > 0 else BatchDroppedError)(
        message, code=code
    )
    return made


@functools.cache
def _refusal(kind: type[Any], code: int) -> type[Any]:
    theirs = for_code(code)
    # The rejection is permanent, so the new class must not be a RetriableError: callers would send the record again.
    base = BrokerResponseError if issubclass(theirs, RetriableError) else theirs
    if issubclass(kind, BrokerResponseError):
        return kind
    names = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind, base), {**names, "errno": code, "message": theirs.message})


def _rejected(message: str, code: int, reason: str) -> RejectedError:
    return RejectedError(message, code=code, reason=reason)


class DataLossError(KafkaSafeError):
    """The cluster lost records that it had acknowledged, and SafeProducer does not send them again.

    Each loss is raised once, by `send`, `flush` or `close`. If `send` raises this error, it did not accept its own
    record.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        first_offset: First lost offset.
        last_offset: Last lost offset (inclusive).
        records: Number of records in this range that came from this spool; -1 if unknown.
        others: Further losses that no call had raised when `close` raised this error: one exception for each loss.
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

    Accepted records remain accepted and are still delivered, although the call stopped waiting for them.
    """


class DeliveryTimeoutError(KafkaSafeError, TimeoutError):
    """`delivery_timeout_ms` passed, or a producer with `spool="never"` closed, before the record was acknowledged.

    The record is not dropped. It stays in the spool, and this process or the next one delivers it when the cluster
    accepts it. Do not send it again: unlike kafka-python's KafkaTimeoutError, this error is not retriable.
    With `spool="never"` the record stays in memory while the producer is open. If `close()` cannot deliver all records,
    it raises this error, and the message says how many records are lost.
    """


class SpoolError(KafkaSafeError):
    """The spool on disk cannot be opened, read or written."""


class SpoolWriteError(SpoolError):
    """A write or fsync failed, or there was not enough memory to encode the records.

    Records that were durable before are still durable. The records of the failed write are not durable.

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
    """The content of a file of the spool has changed, or files are missing, and no crash explains it. Nothing was
    deleted.

    Attributes:
        damage: One sentence for each damaged range: the file, the byte range, and its contents as far as known.
    """

    def __init__(self, message: str, *, damage: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.damage = damage


class SpoolFormatError(SpoolError):
    """The directory is not a spool, or was written by a newer kafkasafe. Nothing was changed."""


class WrongClusterError(SpoolError):
    """The spool directory holds records for another cluster. Nothing was sent; the records stay on disk."""


class LaneBusyError(SpoolError):
    """The requested lane belongs to another live process. Retriable: the lane is free when that process ends.

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
    """The file `lineage_path` is damaged, comes from a newer version or is another consumer's. It was not changed."""


class BaselineError(KafkaSafeError, ValueError):
    """The file `offsets_path` is damaged, comes from a newer version or is another consumer's. It was not changed."""


class LogDivergedError(KafkaSafeError):
    """The log has lost records that this consumer had read (`on_divergence="raise"`).

    The partition's position does not move. `poll` raises this error again whenever it has no records of other
    partitions to return, until the application calls `seek`. `seek` to `event.divergent_offset` reads the records
    that the log has there now; `seek` to `event.resume_offset` skips them. (Do not seek to `event.position`: it may be
    past the end of the log, and then `auto_offset_reset` would set the position.)

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


@dataclass(frozen=True, slots=True)
class Facts:
    """What a caller needs to know about an error, in addition to the docstring of its class.

    Attributes:
        calls: The calls that raise it.
        data: What happened to the records.
        action: What to do.
    """

    calls: tuple[str, ...]
    data: str
    action: str


_START: Final = ("SafeProducer", "SafeConsumer")

FACTS: Final[dict[str, Facts]] = {
    "KafkaSafeError": Facts(
        (),
        "See the class that was raised.",
        "Use it in `except` to catch every error of kafkasafe.",
    ),
    "UsageError": Facts(
        ("batch.send", "batch.commit", "batch.outcome", "batch.send_offsets", "future.get", "producer.flush"),
        "Safe. The call changed nothing.",
        "Correct the program. A common cause: a hook or a partitioner waits for its own producer.",
    ),
    "ConfigError": Facts(
        (*_START, "classify", "RetryPolicy", "producer.batch", "batch.send_offsets"),
        "Safe. No file and no connection was opened.",
        "Correct the option or the argument. The message names the nearest known option, or the values that can work.",
    ),
    "SparkError": Facts(
        (),
        "See the class that was raised.",
        "Use it in `except` to catch every error that only `kafkasafe.spark` raises.",
    ),
    "CheckpointMismatchError": Facts(
        ("spark.foreach_batch_sink", "spark.write_batch"),
        "Safe. The micro-batch was not written.",
        "Start the query with the checkpoint that belongs to this `txnAppId`, or choose a new `txnAppId`.",
    ),
    "ProducerClosedError": Facts(
        (
            "producer.send",
            "producer.batch",
            "producer.partitions_for",
            "batch.commit",
            "aio.SafeProducer.start",
        ),
        "This record was not accepted. Records accepted before `close` are delivered or on disk.",
        "Open a new producer, and send the record there.",
    ),
    "ForkedProcessError": Facts(
        (
            "producer.send",
            "producer.batch",
            "producer.flush",
            "producer.close",
            "future.get",
            "consumer.poll",
        ),
        "Safe. The parent process still delivers what it accepted. The child's record was not accepted.",
        "Open a producer or consumer in the child process.",
    ),
    "RejectedError": Facts(
        ("future.get", "future.exception"),
        "The record is not in the topic. It is kept in `rejected/` of the spool directory, except with"
        ' `spool="never"`.',
        "Read `reason`, remove the cause, then run `kafkasafe spool resend`. `on_rejected` gets each such record.",
    ),
    "BatchDroppedError": Facts(
        ("outcome.get", "outcome.durable", "future.get"),
        "`read_committed` consumers see nothing of the batch. Its records are kept in `rejected/`, unless the batch had"
        " a consumer's offsets and the same input records are read again.",
        "Read the message. If the records are in `rejected/`, remove the cause, then run `kafkasafe spool resend`.",
    ),
    "DataLossError": Facts(
        ("producer.send", "producer.flush", "producer.close", "batch.commit", "spark.KafkaSafeSource"),
        "**Records are lost.** The cluster had acknowledged them and no longer has them, and the producer does not"
        " send them again. `send` did not accept its own record.",
        "Produce the records from `first_offset` to `last_offset` again from their source. Then repeat the `send`."
        " Look for an unclean election or a lost disk in the cluster. A Spark source raises this error for records that"
        " it can no longer read.",
    ),
    "UndecidableError": Facts(
        ("producer.send", "producer.flush", "producer.durable", "batch.commit"),
        "Nothing is lost. The batch is in the spool; it may also be in the topic. `send` did not accept its own"
        " record.",
        "Look at the topic. Then call `producer.resolve_undecidable(resend=True)` (the batch may then be in the topic"
        " twice) or `resend=False` (the batch may then be missing). The option `on_undecidable` makes this choice in"
        " advance.",
    ),
    "DeliveryTimeoutError": Facts(
        ("future.get", "future.exception", "producer.close"),
        'Safe: the record is in the spool and will be delivered. **With `spool="never"`** the record is in memory'
        " only, and the error that `close` raises says how many records are lost.",
        "Do not send the record again. Wait, or do not set `delivery_timeout_ms`.",
    ),
    "WaitTimeoutError": Facts(
        (
            "future.get",
            "future.durable",
            "producer.flush",
            "producer.durable",
            "outcome.get",
            "outcome.durable",
            "consumer.end_offsets",
        ),
        "Safe. A record stays in the spool or in memory, and is still delivered. A consumer's position did not move.",
        "Call again to wait longer. Do not send the record again. The message names the reason.",
    ),
    "SpoolError": Facts(
        (
            "SafeProducer",
            "future.durable",
            "future.get",
            "outcome.durable",
            "producer.flush",
            "producer.durable",
        ),
        "Records that `durable` or `get` confirmed are safe. The message says what is known about the others.",
        "Read the message: it names the file and the cause (permissions, the disk, a lock).",
    ),
    "SpoolWriteError": Facts(
        ("producer.send", "producer.durable", "producer.close", "future.durable"),
        "Records that `durable` or `get` confirmed are safe. Records of the failed write are not on disk yet.",
        "Make room on the disk (if `full` is True), or free memory. An open producer tries again by itself; after"
        " `close` the records named in the message are lost.",
    ),
    "SpoolFullError": Facts(
        ("producer.send", "batch.send", "batch.commit"),
        "This record was not accepted. All accepted records are kept.",
        "Send the record again later. If the cluster is down, wait for it. Otherwise raise `spool_max_bytes`, or make"
        " room on the volume. `limit` says which limit was reached.",
    ),
    "SpoolCorruptError": Facts(
        ("SafeProducer", "producer.send", "producer.flush", "producer.close", "future.get"),
        "**Records on disk are damaged.** Nothing was deleted. Undamaged records are kept; an open producer still"
        " delivers those of other partitions.",
        'Restore the file from a copy. Or open the producer with `on_corrupt="quarantine"`: it copies the damaged'
        " bytes to another file and delivers the rest.",
    ),
    "SpoolFormatError": Facts(
        ("SafeProducer",),
        "Safe. Nothing was changed.",
        "Set `spool_dir` to a spool directory or an empty one, or use the newer kafkasafe that wrote it.",
    ),
    "WrongClusterError": Facts(
        ("producer.send", "producer.flush", "producer.close", "future.get", "outcome.get", "batch.commit"),
        "Safe. Nothing was sent to the other cluster. The records stay on disk for their own cluster; with"
        ' `spool="never"` they are in memory only.',
        "Correct `bootstrap_servers`, or give each cluster a `spool_dir` of its own.",
    ),
    "LaneBusyError": Facts(
        ("SafeProducer", "producer.send", "producer.flush", "producer.close", "future.get"),
        "Safe. The other process owns the records of that lane, and delivers them.",
        "From the constructor: leave `spool_lane` unset, or stop the process `pid`. From an open producer: the lock"
        " file of its lane was deleted, and another process took the lane. Find out what deletes files there, and open"
        " a new producer.",
    ),
    "LineageFileError": Facts(
        ("SafeConsumer",),
        "Safe. The file was not changed.",
        "Give each consumer a file of its own. If the file is damaged, restore a copy or move it away. Without the"
        " file, the consumer cannot notice that the log changed before this start.",
    ),
    "BaselineError": Facts(
        ("SafeConsumer",),
        "Safe. The file of `offsets_path` was not changed.",
        "Restore a copy, or move the file away. Without the file, the consumer cannot notice that an end offset went"
        " back before this start.",
    ),
    "LogDivergedError": Facts(
        ("consumer.poll", "consumer.poll_arrow", "consumer.poll_batches"),
        "**The cluster lost records that this consumer had read.** The position did not move.",
        "Decide where to continue: `seek` to `event.divergent_offset` or to `event.resume_offset`. The option"
        " `on_divergence` makes this choice in advance.",
    ),
    "OffsetNotAvailableError": Facts(
        ("consumer.end_offsets", "consumer.beginning_offsets", "consumer.offsets_for_times"),
        "Safe. The look-up has no result.",
        "Call again. A new leader is catching up, which usually takes less than a second.",
    ),
    "RemoteStorageNotReadyError": Facts(
        ("consumer.poll", "consumer.offsets_for_times", "consumer.beginning_offsets", "consumer.end_offsets"),
        "Safe. No record was skipped, and the position did not move.",
        "Call again. If the error persists, look at the brokers' remote storage.",
    ),
    "LineageError": Facts(
        ("lineage.Lineage",),
        "Safe. Nothing was compared.",
        "Pass offsets and epochs in ascending order, as a consumer saw them.",
    ),
    "UnassignedError": Facts(
        ("aio.SafeConsumer.seek", "aio.SafeConsumer.position", "aio.SafeConsumer.getone"),
        "Safe. Nothing was read.",
        "Use only assigned partitions: `consumer.assignment()` returns them.",
    ),
    "SourceUnavailableError": Facts(
        ("spark.KafkaSafeSource",),
        "Safe. Nothing was read or skipped.",
        "Start the query again when the brokers answer.",
    ),
    "NoSuchTopicError": Facts(
        ("audit.audit",),
        "Safe. Nothing was read.",
        "Correct the name of the topic.",
    ),
    "StagingError": Facts(
        ("spark.foreach_batch_sink", "spark.write_batch"),
        "Safe. Nothing of the micro-batch is visible to readers.",
        "Start the query again: Spark repeats the micro-batch. If the error persists, read the message.",
    ),
    "RestartError": Facts(
        ("spark.foreach_batch_sink", "spark.write_batch"),
        "Safe. Nothing of the transaction is visible to readers.",
        "Start the query again: Spark repeats the micro-batch in a new transaction.",
    ),
    "FencedError": Facts(
        ("spark.foreach_batch_sink", "spark.write_batch"),
        "Safe. This query's open transaction was aborted by a newer owner of the same `txnAppId`.",
        "Stop the older query. Give each query a `txnAppId` of its own.",
    ),
}
"""Facts by class name. `python -m tests.pages` generates docs/kafkasafe-errors.md from them."""
