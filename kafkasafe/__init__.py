"""Kafka producers that keep every record on disk until Kafka has it, and consumers that notice loss.

See docs/promises.md for the conditions under which that holds.
"""

from types import ModuleType
from typing import TYPE_CHECKING

from kafkasafe._io.retry import RetryEvent, RetryPolicy, retry_if_kafka_retriable
from kafkasafe.atomic import AtomicBatch, BatchMetadata, BatchOutcome
from kafkasafe.classification import ErrorAction, ErrorContext, Verdict, classify
from kafkasafe.consumer import SafeConsumer
from kafkasafe.errors import (
    BaselineError,
    BatchDroppedError,
    CheckpointMismatchError,
    ConfigError,
    DataLossError,
    DeliveryTimeoutError,
    ForkedProcessError,
    KafkaSafeError,
    LaneBusyError,
    LineageError,
    LineageFileError,
    LogDivergedError,
    OffsetNotAvailableError,
    ProducerClosedError,
    RejectedError,
    RemoteStorageNotReadyError,
    SparkError,
    SpoolCorruptError,
    SpoolError,
    SpoolFormatError,
    SpoolFullError,
    SpoolWriteError,
    UndecidableError,
    UsageError,
    WaitTimeoutError,
    WrongClusterError,
)
from kafkasafe.health import ConsumerHealth, HealthReason, ProducerHealth
from kafkasafe.producer import RecordFuture, SafeProducer
from kafkasafe.transactional import LastTransaction

if TYPE_CHECKING:
    __version__: str

__all__ = [  # noqa: RUF022 - grouped by what they are for
    # producer
    "AtomicBatch",
    "BatchMetadata",
    "BatchOutcome",
    "LastTransaction",
    "RecordFuture",
    "SafeProducer",
    # consumer
    "SafeConsumer",
    # health
    "ConsumerHealth",
    "HealthReason",
    "ProducerHealth",
    # what an error means, and when to try again
    "ErrorAction",
    "ErrorContext",
    "RetryEvent",
    "RetryPolicy",
    "Verdict",
    "classify",
    "retry_if_kafka_retriable",
    # errors
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
    "ProducerClosedError",
    "RejectedError",
    "OffsetNotAvailableError",
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
    # of the package
    "__version__",
]


def __dir__() -> list[str]:
    """What is public, the public modules that are imported, and what every module has."""
    seen = {name for name, value in globals().items() if isinstance(value, ModuleType) and name[0] != "_"}
    return sorted({*__all__, *seen, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> str:
    if name == "__version__":
        # Reading it takes a millisecond or two: only for those who ask.
        from importlib.metadata import version

        return version("kafkasafe")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
