"""Exceptions: what went wrong, whether the data is safe, what to do.

Every one is a `kafka.errors.KafkaError`, so that code written for kafka-python catches them where it already
catches its own. Every time-out is also a builtin `TimeoutError`, as code written for asyncio expects.
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
    """The cluster rejected this record.

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

    Its records are kept in `rejected/`. There is one exception: the batch had a consumer's offsets, and the consumer is
    no longer a member of its group. Then nothing is kept, because the group's next member reads the same records again.

    Raised by `commit_transaction`, one with a code is also kafka-python's own exception for it, as `RejectedError` is.

    Attributes:
        code: Kafka's error code, 0 where there is none.
    """

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """With its code. The class for the code is made, not found by its name."""
        make = dropped_for_code if isinstance(self, BrokerResponseError) else _dropped
        return make, (self.args[0], self.code)


def _dropped(message: str, code: int) -> BatchDroppedError:
    return BatchDroppedError(message, code=code)


def dropped_for_code(message: str, code: int) -> BatchDroppedError:
    """A BatchDroppedError that is also kafka-python's exception for the code, where there is a code."""
    made: BatchDroppedError = (_refusal(BatchDroppedError, code) if code > 0 else BatchDroppedError)(
        message, code=code
    )
    return made


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

    `send`, `flush` and `close` raise each loss once; `send` has not accepted its record then.

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
    """Whether a batch is in the log cannot be known; it is kept in the spool with its evidence.

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

    The record is not dropped. It stays in the spool, and this process or the next one delivers it when the cluster
    takes it. Do not send it again: unlike kafka-python's KafkaTimeoutError, this error is not retriable.
    With `spool="never"` the record stays in memory while the producer is open. `close()` then raises this error for the
    records that it could not deliver, with their number: they are lost.
    """


class SpoolError(KafkaSafeError):
    """The spool on disk cannot be opened, read or written."""


class SpoolWriteError(SpoolError):
    """A write or fsync failed, or there was no memory to encode what was to be written.

    Records that were durable before are still durable. The records of the failed write are not.

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
    """A file of the spool is damaged, and durable records come after the damage. Nothing was deleted.

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
    """The lane asked for belongs to another live process. Retriable: it is free when that process ends.

    Attributes:
        pid: The owner's process id, 0 if it did not say.
    """

    retriable = True

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


@dataclass(frozen=True, slots=True)
class Facts:
    """What a caller needs to know about an error, beside the docstring of its class.

    Attributes:
        calls: The calls that raise it.
        data: What is known about the records.
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
        (*_START, "classify", "RetryPolicy"),
        "Safe. No file and no connection was opened.",
        "Correct the option. The message names the nearest known option, or the values that can work.",
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
        ("producer.send", "producer.batch", "producer.flush", "producer.close", "future.get"),
        "Safe. The parent process still delivers what it accepted. The child's record was not accepted.",
        "Open a producer in the child process.",
    ),
    "RejectedError": Facts(
        ("future.get", "future.exception"),
        "The record is not in the topic. It is kept in `rejected/` of the spool directory, except with"
        ' `spool="never"`.',
        "Read `reason`, remove the cause, then run `kafkasafe spool resend`. `on_rejected` gets each such record.",
    ),
    "BatchDroppedError": Facts(
        ("outcome.get", "outcome.durable", "future.get"),
        "Readers of committed records see nothing of the batch. Its records are in `rejected/`; if the batch had a"
        " consumer's offsets, they may be in Kafka only, where the group reads them again.",
        "Read the message. For records in `rejected/`: remove the cause, then run `kafkasafe spool resend`.",
    ),
    "DataLossError": Facts(
        ("producer.send", "producer.flush", "producer.close", "batch.commit", "spark.KafkaSafeSource"),
        "**Records are lost.** The cluster had acknowledged them and does not have them any more, and they are not"
        " sent again. `send` did not accept its own record.",
        "Produce the range from `first_offset` to `last_offset` again from its source. Then repeat the `send`. Look for"
        " an unclean election or a lost disk in the cluster. A Spark source raises it for records that it cannot read"
        " any more.",
    ),
    "UndecidableError": Facts(
        ("producer.send", "producer.flush", "producer.durable", "batch.commit"),
        "Nothing is lost. The batch is in the spool; it may also be in the topic. `send` did not accept its own"
        " record.",
        "Look at the topic, then call `producer.resolve_undecidable(resend=True)` (the batch may be there twice) or"
        " `resend=False` (it may be missing). `on_undecidable` decides without asking.",
    ),
    "DeliveryTimeoutError": Facts(
        ("future.get", "future.exception", "producer.close"),
        'Safe: the record is in the spool and will be delivered. **With `spool="never"`** the record is in memory'
        " only, and the error of `close` says how many records are lost.",
        "Do not send the record again. Wait, or leave `delivery_timeout_ms` out.",
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
        "Call again to wait longer. Do not send the record again. The message has the reason.",
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
        "Records that `durable` or `get` confirmed are safe. The message says what is known of the others.",
        "Read the message: it names the file and the cause (rights, disk, a lock).",
    ),
    "SpoolWriteError": Facts(
        ("producer.send", "producer.durable", "producer.close", "future.durable"),
        "Records that `durable`, `durable` or `get` confirmed are safe. Records of the failed write are not on disk"
        " yet.",
        "Make room on the disk (`full` is True then), or free memory. An open producer tries again by itself; after"
        " `close` the records named in the message are lost.",
    ),
    "SpoolFullError": Facts(
        ("producer.send", "batch.send", "batch.commit"),
        "This record was not accepted. All accepted records are kept.",
        "Send the record again later. If the cluster is away, wait for it; else raise `spool_max_bytes`, or make room"
        " on the volume. `limit` says which limit was reached.",
    ),
    "SpoolCorruptError": Facts(
        ("SafeProducer", "producer.send", "producer.flush", "producer.close", "future.get"),
        "**Records on disk are damaged.** Nothing was deleted. Undamaged records are kept; an open producer goes on"
        " delivering those of other partitions.",
        'Restore the file from a copy. Or open the producer with `on_corrupt="quarantine"`: it copies the damaged'
        " bytes aside and delivers the rest.",
    ),
    "SpoolFormatError": Facts(
        ("SafeProducer",),
        "Safe. Nothing was changed.",
        "Set `spool_dir` to a spool directory or an empty one, or use the newer kafkasafe that wrote it.",
    ),
    "WrongClusterError": Facts(
        ("producer.send", "producer.flush", "producer.close", "future.get", "outcome.get", "batch.commit"),
        'Safe. Nothing was sent to the other cluster; the records stay on disk for their own. With `spool="never"`'
        " they are in memory only.",
        "Correct `bootstrap_servers`, or give each cluster a `spool_dir` of its own.",
    ),
    "LaneBusyError": Facts(
        ("SafeProducer", "producer.send", "producer.flush", "producer.close", "future.get"),
        "Safe. The other process has the records of that lane, and delivers them.",
        "From the constructor: leave `spool_lane` out, or stop the process `pid`. From an open producer: the lock file"
        " of its lane was deleted, and another process took the lane. Find out what deletes files there, and open a new"
        " producer.",
    ),
    "LineageFileError": Facts(
        ("SafeConsumer",),
        "Safe. The file was not changed.",
        "Give each consumer a file of its own. A damaged file: restore a copy, or move it away; then a change of the"
        " log before this start stays unnoticed.",
    ),
    "BaselineError": Facts(
        ("SafeConsumer",),
        "Safe. The file of `offsets_path` was not changed.",
        "Restore a copy, or move the file away; then an end offset that went back before this start stays unnoticed.",
    ),
    "LogDivergedError": Facts(
        ("consumer.poll", "consumer.poll_arrow", "consumer.poll_batches"),
        "**The cluster lost records that this consumer had read.** The position did not move.",
        "Decide where to go on: `seek` to `event.at` or to `event.resume_offset`. `on_divergence` decides without"
        " asking.",
    ),
    "OffsetNotAvailableError": Facts(
        ("consumer.end_offsets", "consumer.beginning_offsets", "consumer.offsets_for_times"),
        "Safe. Nothing was concluded.",
        "Call again. A new leader is catching up, mostly for less than a second.",
    ),
    "RemoteStorageNotReadyError": Facts(
        ("consumer.poll", "consumer.offsets_for_times", "consumer.beginning_offsets", "consumer.end_offsets"),
        "Safe. No record was skipped, and the position did not move.",
        "Call again. If it lasts, look at the brokers' remote storage.",
    ),
    "LineageError": Facts(
        ("lineage.Lineage",),
        "Safe. Nothing was compared.",
        "Give offsets and epochs that ascend, as a consumer saw them.",
    ),
    "UnassignedError": Facts(
        ("aio.SafeConsumer.seek", "aio.SafeConsumer.position", "aio.SafeConsumer.getone"),
        "Safe. Nothing was read.",
        "Use partitions that are assigned: see `consumer.assignment()`.",
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
        "Start the query again: Spark repeats the micro-batch. If it lasts, read the message.",
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
"""By the name of the class. `docs/generate.py` makes docs/kafkasafe-errors.md of it."""
