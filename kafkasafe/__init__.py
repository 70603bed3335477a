"""Lossless Kafka producers, and consumers that notice loss; exactly once and in order without transactions.

See docs/promises.md for the conditions under which that holds.
"""

from kafkasafe._io.retry import RetryEvent, RetryPolicy
from kafkasafe.classification import ErrorAction, ErrorContext, Verdict, classify
from kafkasafe.consumer import SafeConsumer
from kafkasafe.errors import (
    ConfigError,
    DataLossError,
    DeliveryTimeoutError,
    ForkedProcessError,
    KafkaSafeError,
    LaneBusyError,
    LogDivergedError,
    ProducerClosedError,
    RejectedError,
    RemoteStorageNotReadyError,
    SpoolCorruptError,
    SpoolError,
    SpoolFormatError,
    SpoolFullError,
    SpoolWriteError,
    UndecidableError,
    UsageError,
    WrongClusterError,
)
from kafkasafe.producer import RecordFuture, SafeProducer

__all__ = [  # noqa: RUF022 - grouped by what they are for
    # producer
    "RecordFuture",
    "SafeProducer",
    # consumer
    "SafeConsumer",
    # what an error means, and when to try again
    "ErrorAction",
    "ErrorContext",
    "RetryEvent",
    "RetryPolicy",
    "Verdict",
    "classify",
    # errors
    "ConfigError",
    "DataLossError",
    "DeliveryTimeoutError",
    "ForkedProcessError",
    "KafkaSafeError",
    "LaneBusyError",
    "LogDivergedError",
    "ProducerClosedError",
    "RejectedError",
    "RemoteStorageNotReadyError",
    "SpoolCorruptError",
    "SpoolError",
    "SpoolFormatError",
    "SpoolFullError",
    "SpoolWriteError",
    "UndecidableError",
    "UsageError",
    "WrongClusterError",
]
