"""What an answer of the cluster says besides its content."""

from __future__ import annotations

from typing import TypeGuard

import kafka.errors as kafka_errors

from kafkasafe._io.engine.ground import text
from kafkasafe.cluster.api import Answer, Failure

__all__ = ["trouble", "unsupported"]


def trouble(result: Answer | Failure) -> tuple[int, str]:
    """(Kafka's code or 0, reason) of a failed request or an error answer; (0, "") of a good answer."""
    if isinstance(result, Failure):
        return result.code or 0, text(result.error)
    code = result.error_code
    return (code, kafka_errors.for_code(code).__name__) if code else (0, "")


def unsupported(result: object) -> TypeGuard[Failure]:
    """Whether the brokers are too old for the question."""
    return isinstance(result, Failure) and result.unsupported
