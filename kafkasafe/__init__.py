"""Kafka producers that keep every record on disk until Kafka has it, and consumers that notice data loss.

docs/promises.md lists what kafkasafe promises, and under which conditions.
"""

from importlib import import_module as _import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kafkasafe._kafka_version import check as _check_kafka_python

if TYPE_CHECKING:
    # For type checkers and editors. Each public name is imported when a program first uses it: see `__getattr__`.
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
    from kafkasafe.retry import RetryEvent, RetryPolicy, retry_if_kafka_retriable
    from kafkasafe.transactional import LastTransaction

    __version__: str

__all__ = [  # noqa: RUF022 - grouped by purpose
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
    # classification of errors, and retries
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
    # the package
    "__version__",
]


_check_kafka_python()

_MODULES = {
    "kafkasafe.retry": ("RetryEvent", "RetryPolicy", "retry_if_kafka_retriable"),
    "kafkasafe.atomic": ("AtomicBatch", "BatchMetadata", "BatchOutcome"),
    "kafkasafe.classification": ("ErrorAction", "ErrorContext", "Verdict", "classify"),
    "kafkasafe.consumer": ("SafeConsumer",),
    "kafkasafe.health": ("ConsumerHealth", "HealthReason", "ProducerHealth"),
    "kafkasafe.producer": ("RecordFuture", "SafeProducer"),
    "kafkasafe.transactional": ("LastTransaction",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = frozenset(
    {
        "atomic",
        "classification",
        "cluster",
        "config",
        "consumer",
        "errors",
        "events",
        "health",
        "logs",
        "metrics",
        "offsets",
        "options",
        "producer",
        "transactional",
    }
)
"""Modules that `import kafkasafe` makes available, as in `kafkasafe.errors.SpoolError`."""


def __dir__() -> list[str]:
    """List the public names, the public modules that are imported, and the names that every module has."""
    seen = {name for name, value in globals().items() if isinstance(value, ModuleType) and name[0] != "_"}
    return sorted({*__all__, *seen, *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name at its first use (PEP 562).

        A program that uses only the producer thus imports neither the consumer nor the modules that `RetryPolicy` and
        `classify` need.
        """
        if name in _SUBMODULES:
            return _import_module(f"kafkasafe.{name}")
        if name == "__version__":
            # Reading the version takes one or two milliseconds.
            from importlib.metadata import version

            return version("kafkasafe")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Exceptions are the only public names that _HOMES does not contain.
        value = getattr(_import_module(_HOMES.get(name, "kafkasafe.errors")), name)
        globals()[name] = value
        return value
