"""Definitions that the modules of a client share: names, errors, and functions that call `reply` callbacks.

This module uses no sockets and no requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import Failure, Reply
from kafkasafe.logs import EventLog

log = EventLog("network")

NodeId: TypeAlias = int | str
TopicPartition: TypeAlias = tuple[str, int]

MAX_OFFSET: Final = 2**62  # no log reaches this offset; the sum of two such offsets fits into 64 bits

SILENCE_S: Final = 2.0  # a node counts as hung if it is silent for this time while requests are in flight
METADATA_PATIENCE_S: Final = 3.0  # if a node sends no metadata in this time, the client asks another node

LEADERLESS_POLL_MAX_S: Final = 1.0
MISSING_TOPIC_POLL_MAX_S: Final = 5.0


def plausible(number: int | None, limit: int = 2**31) -> int:
    """Returns a valid offset or epoch unchanged, and -1 for an unknown or impossible number."""
    return number if number is not None and 0 <= number < limit else -1


def error_of(code: int, message: str) -> BaseException:
    """Returns kafka-python's error for a code."""
    error: BaseException = kafka_errors.for_code(code)(message)
    return error


def absurd(offset: int) -> BaseException:
    """Returns the error for an answer with an impossible offset."""
    error: BaseException = kafka_errors.KafkaProtocolError(f"The broker answered offset {offset}")
    return error


def closed_error() -> BaseException:
    """Returns the error for requests to a closed client."""
    error: BaseException = kafka_errors.KafkaConnectionError("The transport is closed")
    return error


def safely(reply: Callable[..., None], *args: Any) -> None:
    """Calls a reply or a listener. Logs an exception that it raises."""
    try:
        reply(*args)
    except Exception:
        # An error in one callback must not prevent the calls of other callbacks.
        log.exception("A reply callback raised", event="callback_failed")


def not_sent(reply: Reply[Any]) -> Callable[[BaseException], None]:
    """Returns a function that takes an error, and passes a `Failure` with this error and `sent=False` to `reply`."""
    return lambda error: safely(reply, Failure(error, sent=False))
