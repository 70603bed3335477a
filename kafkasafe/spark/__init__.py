"""Kafka for PySpark, without the connector jar. Needs `pip install kafkasafe[spark]`, on every node of a cluster."""

from __future__ import annotations

import importlib
from typing import Any, Final

__all__: list[str] = []

# Name → module. Lazily, so that who uses one part does not need what the others import.
_HOMES: Final[dict[str, str]] = {}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
