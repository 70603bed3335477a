"""What an answer to a Produce request means for the batch.

One row per error code that a broker gives to Produce; every other code, future ones included, is retried as if
nothing were known about the batch. Two questions are answered: what to do, and whether the answer *proves* that
the batch was not appended. Where it does not, nothing is sent again before the broker was asked (facts: a
broker that lost a producer's state appends the same bytes twice).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

__all__ = ["Action", "Verdict", "classify_produce"]


class Action(enum.Enum):
    """What becomes of a batch after an answer."""

    ACK = "ack"
    RETRY = "retry"
    ASK_BROKER = "ask_broker"
    REJECT_BATCH = "reject_batch"
    REJECT_DESTINATION = "reject_destination"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row.

    Attributes:
        code: Kafka's error code.
        name: Kafka's name of it.
        action: What to do.
        absent: The answer proves that the batch was not appended by this request.
        refresh_metadata: The leader may have moved.
        splittable: A batch of several records may hold good ones: divide it before rejecting.
        explanation: For people.
    """

    code: int
    name: str
    action: Action
    absent: bool
    refresh_metadata: bool
    splittable: bool
    explanation: str


def _row(
    code: int,
    name: str,
    action: Action,
    explanation: str,
    *,
    absent: bool = False,
    refresh: bool = False,
    split: bool = False,
) -> Verdict:
    return Verdict(code, name, action, absent, refresh, split, explanation)


_RETRY: Final = Action.RETRY
_ASK: Final = Action.ASK_BROKER
_REJECT: Final = Action.REJECT_BATCH

_PRODUCE: Final[dict[int, Verdict]] = {
    row.code: row
    for row in (
        _row(0, "NONE", Action.ACK, "appended and acknowledged"),
        # 46: an older batch than the window holds; the broker says itself that it has it. Seven broker versions
        # were tried and none sends it, but the meaning is plain: it still has to pass the high watermark.
        _row(46, "DUPLICATE_SEQUENCE_NUMBER", _ASK, "the broker has this batch already"),
        _row(
            45,
            "OUT_OF_ORDER_SEQUENCE_NUMBER",
            _ASK,
            "already committed, or a gap: only the broker's state tells",
        ),
        _row(59, "UNKNOWN_PRODUCER_ID", _ASK, "the broker forgot this producer (brokers before 2.5)"),
        _row(47, "INVALID_PRODUCER_EPOCH", _ASK, "a newer epoch of this producer id wrote to the partition"),
        _row(90, "PRODUCER_FENCED", _ASK, "a newer epoch of this producer id wrote to the partition"),
        # Answers that come before the append.
        _row(
            19, "NOT_ENOUGH_REPLICAS", _RETRY, "fewer in-sync replicas than min.insync.replicas", absent=True
        ),
        _row(2, "CORRUPT_MESSAGE", _RETRY, "the bytes were damaged on the way", absent=True),
        _row(
            3, "UNKNOWN_TOPIC_OR_PARTITION", _RETRY, "the broker does not host it", absent=True, refresh=True
        ),
        _row(31, "CLUSTER_AUTHORIZATION_FAILED", _RETRY, "this user may not write idempotently", absent=True),
        _row(35, "UNSUPPORTED_VERSION", _RETRY, "the broker does not know this version", absent=True),
        _row(89, "THROTTLING_QUOTA_EXCEEDED", _RETRY, "quota exceeded", absent=True),
        # Answers that may come after the append: the leader resigned, a replica was slow, a disk failed.
        _row(5, "LEADER_NOT_AVAILABLE", _RETRY, "an election is going on", refresh=True),
        _row(6, "NOT_LEADER_OR_FOLLOWER", _RETRY, "the leader moved", refresh=True),
        _row(7, "REQUEST_TIMED_OUT", _RETRY, "replicas did not confirm in time"),
        _row(13, "NETWORK_EXCEPTION", _RETRY, "the connection broke", refresh=True),
        _row(20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", _RETRY, "appended, but too few replicas have it"),
        _row(56, "KAFKA_STORAGE_ERROR", _RETRY, "the broker's disk failed", refresh=True),
        _row(72, "LISTENER_NOT_FOUND", _RETRY, "the leader has no such listener yet", refresh=True),
        _row(74, "FENCED_LEADER_EPOCH", _RETRY, "the leader moved", refresh=True),
        _row(75, "UNKNOWN_LEADER_EPOCH", _RETRY, "the broker is behind the metadata", refresh=True),
        _row(
            100,
            "UNKNOWN_TOPIC_ID",
            _RETRY,
            "the broker does not know this topic id",
            absent=True,
            refresh=True,
        ),
        _row(-1, "UNKNOWN_SERVER_ERROR", _RETRY, "the broker failed for a reason it does not name"),
        # What no retry can mend.
        _row(
            10,
            "MESSAGE_TOO_LARGE",
            _REJECT,
            "larger than max.message.bytes of the topic",
            absent=True,
            split=True,
        ),
        _row(
            18, "RECORD_LIST_TOO_LARGE", _REJECT, "larger than the broker's segments", absent=True, split=True
        ),
        _row(
            32,
            "INVALID_TIMESTAMP",
            _REJECT,
            "timestamp outside what the topic allows",
            absent=True,
            split=True,
        ),
        _row(87, "INVALID_RECORD", _REJECT, "a record breaks a rule of the topic", absent=True, split=True),
        _row(21, "INVALID_REQUIRED_ACKS", _REJECT, "acks is neither 0, 1 nor all", absent=True),
        _row(42, "INVALID_REQUEST", _REJECT, "the broker finds the request malformed", absent=True),
        _row(
            43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", _REJECT, "the topic has an old message format", absent=True
        ),
        _row(44, "POLICY_VIOLATION", _REJECT, "a policy of the cluster forbids it", absent=True, split=True),
        _row(
            76,
            "UNSUPPORTED_COMPRESSION_TYPE",
            _REJECT,
            "the broker cannot read this compression",
            absent=True,
        ),
        _row(
            17,
            "INVALID_TOPIC_EXCEPTION",
            Action.REJECT_DESTINATION,
            "a topic of this name cannot exist or takes no writes from clients",
            absent=True,
        ),
        _row(
            29,
            "TOPIC_AUTHORIZATION_FAILED",
            Action.REJECT_DESTINATION,
            "this user may not write to the topic",
            absent=True,
        ),
    )
}


def classify_produce(code: int) -> Verdict:
    """The verdict on a Produce answer.

    Args:
        code: Kafka's error code; unknown ones are retried, and nothing is concluded from them.
    """
    row = _PRODUCE.get(code)
    if row is None:
        return _row(code, f"ERROR_{code}", _RETRY, "an error code this version does not know", refresh=True)
    return row
