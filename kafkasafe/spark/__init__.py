"""Kafka for PySpark, without the connector jar. Requires `pip install kafkasafe[spark]` on every node of a cluster.

```python
from kafkasafe.spark import register

register(spark)
orders = spark.read.format("kafkasafe").options(**{"kafka.bootstrap.servers": "b:9092", "subscribe": "orders"}).load()
```
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kafkasafe.errors import CheckpointMismatchError, SparkError
    from kafkasafe.spark.appender import FencedError, RestartError
    from kafkasafe.spark.brokers import SourceUnavailableError
    from kafkasafe.spark.listener import MetricsListener
    from kafkasafe.spark.sink import foreach_batch_sink, write_batch
    from kafkasafe.spark.source import KafkaSafeSource, register
    from kafkasafe.spark.staging import StagingError

__all__ = [
    "CheckpointMismatchError",
    "FencedError",
    "KafkaSafeSource",
    "MetricsListener",
    "RestartError",
    "SourceUnavailableError",
    "SparkError",
    "StagingError",
    "foreach_batch_sink",
    "register",
    "write_batch",
]

# Public name → the module that defines it. A module is imported when one of its names is first used. So a program needs
# only the dependencies of the parts that it uses.
_HOMES: Final = {
    "CheckpointMismatchError": "kafkasafe.errors",
    "FencedError": "kafkasafe.spark.appender",
    "KafkaSafeSource": "kafkasafe.spark.source",
    "MetricsListener": "kafkasafe.spark.listener",
    "RestartError": "kafkasafe.spark.appender",
    "SourceUnavailableError": "kafkasafe.spark.brokers",
    "SparkError": "kafkasafe.errors",
    "StagingError": "kafkasafe.spark.staging",
    "foreach_batch_sink": "kafkasafe.spark.sink",
    "register": "kafkasafe.spark.source",
    "write_batch": "kafkasafe.spark.sink",
}


def __dir__() -> list[str]:
    """Returns the public names and the standard attributes that every module has."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name in {"pyarrow", "pyspark"}:
            from kafkasafe.errors import UsageError

            raise UsageError(f"kafkasafe.spark needs {error.name}: pip install 'kafkasafe[spark]'") from error
        raise
