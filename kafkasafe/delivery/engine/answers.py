"""Separates usable answers of the cluster from errors and failed requests."""

from __future__ import annotations

from typing import TypeGuard, TypeVar

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import Answer, Failure
from kafkasafe.delivery.engine.context import text

__all__ = ["NoAnswerError", "good", "trouble", "unsupported"]

A = TypeVar("A", bound=Answer)


class NoAnswerError(Exception):
    """A request of an inquiry got no answer, or an error.

    Attributes:
        reason: Why.
        code: Kafka's, or 0.
    """

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


def good(result: A | Failure) -> A:
    """The answer.

    Raises:
        NoAnswerError: The request failed, or the answer is an error.
    """
    code, reason = trouble(result)
    if reason or isinstance(result, Failure):
        raise NoAnswerError(reason, code)
    return result


def trouble(result: Answer | Failure) -> tuple[int, str]:
    """(Kafka's code or 0, reason) of a failed request or an error answer; (0, "") of a good answer."""
    if isinstance(result, Failure):
        return result.code or 0, text(result.error)
    code = result.error_code
    return (code, kafka_errors.for_code(code).__name__) if code else (0, "")


def unsupported(result: object) -> TypeGuard[Failure]:
    """Whether the brokers are too old for the question."""
    return isinstance(result, Failure) and result.unsupported
