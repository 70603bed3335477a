"""What an answer of the cluster says besides its content."""

from __future__ import annotations

from typing import Any

import kafka.errors as kafka_errors

from kafkasafe._io.engine.ground import text
from kafkasafe.cluster import api as t

__all__ = ["trouble", "unsupported"]


def trouble(result: Any) -> tuple[int, str]:
    """(Kafka's code or 0, reason or nothing) of an answer that is none."""
    if isinstance(result, t.Failure):
        return result.code or 0, text(result.error)
    code: int = result.error_code
    return (code, kafka_errors.for_code(code).__name__) if code else (0, "")


def unsupported(result: Any) -> bool:
    return isinstance(result, t.Failure) and isinstance(result.error, kafka_errors.UnsupportedVersionError)
