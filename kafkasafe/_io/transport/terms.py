"""What the rooms of the transport have in common: names, codes, errors, and replies that cost nobody theirs.

Nothing here knows a socket or a request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import Failure, Reply
from kafkasafe.logs import EventLog

__all__ = [
    "LEADER_NOT_AVAILABLE",
    "MAX_OFFSET",
    "SILENCE_S",
    "STALE_METADATA",
    "UNKNOWN_TOPIC",
    "NodeId",
    "TopicPartition",
    "absurd",
    "closed_error",
    "error_of",
    "log",
    "not_sent",
    "plausible",
    "safely",
]

log = EventLog("network")

NodeId: TypeAlias = int | str
TopicPartition: TypeAlias = tuple[str, int]

MAX_OFFSET: Final = 2**62  # no log gets there; what is added to an offset still fits into 64 bits
UNKNOWN_TOPIC: Final = 3
LEADER_NOT_AVAILABLE: Final = 5

# UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER, REPLICA_NOT_AVAILABLE, NETWORK_EXCEPTION,
# KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID
STALE_METADATA: Final = frozenset({3, 5, 6, 9, 13, 56, 74, 75, 100, 103})

SILENCE_S: Final = 2.0  # a node with requests in flight that says nothing for so long is suspected


def plausible(number: int | None, limit: int = 2**31) -> int:
    """An offset or epoch; -1 for unknown, and for what cannot be."""
    return number if number is not None and 0 <= number < limit else -1


def error_of(code: int, message: str) -> BaseException:
    error: BaseException = kafka_errors.for_code(code)(message)
    return error


def absurd(offset: int) -> BaseException:
    error: BaseException = kafka_errors.KafkaProtocolError(f"The broker answered offset {offset}")
    return error


def closed_error() -> BaseException:
    error: BaseException = kafka_errors.KafkaConnectionError("The transport is closed")
    return error


def safely(reply: Callable[..., None], *args: Any) -> None:
    try:
        reply(*args)
    except Exception:
        # One callback's error must not cost the others theirs.
        log.exception("A reply callback raised", event="callback_failed")


def not_sent(reply: Reply[Any]) -> Callable[[BaseException], None]:
    return lambda error: safely(reply, Failure(error, sent=False))
