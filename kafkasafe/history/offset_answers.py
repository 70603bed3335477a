"""The verdicts of `EndOffsets` on a broker's answer to an offset look-up: accepted, held, unproven or regressed."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

UNDEFINED: Final = -1


class Isolation(enum.IntEnum):
    """Which offset counts as the end: the high watermark, or the last stable offset. The numbers are Kafka's."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class Key:
    """A partition and an isolation level: each pair has its own end offset."""

    topic: str
    partition: int
    isolation: Isolation = Isolation.READ_UNCOMMITTED


class HeldReason(enum.Enum):
    """Why an answer is not accepted yet, or why the broker gave no offset."""

    OFFSET_NOT_AVAILABLE = "offset_not_available"
    """Error 78: the new leader is catching up. Ask the same leader again; new metadata would not help."""
    LEADER_NOT_AVAILABLE = "leader_not_available"
    """Error 5: an election is in progress; or the new leader is catching up (see error 78), and the broker or the
    client is older than KIP-207.
    """
    LOWER = "lower"
    """The answer is lower than an earlier answer. An OffsetForLeaderEpoch request for `Held.ask_epoch` shows whether
    the log lost records.
    """
    CATCHING_UP = "catching_up"
    """The answer is lower than an earlier answer, but the leader still has the records up to the earlier answer."""
    NOT_DELETED = "not_deleted"
    """The start is lower than before, because this leader has not yet deleted records that its predecessor had deleted.
    """
    FORMER_LEADER = "former_leader"
    """A leader with an older epoch gave the answer, which is therefore outdated."""
    FORMER_TOPIC = "former_topic"
    """The answer is about a deleted topic with the same name."""
    NOT_FOUND = "not_found"
    """An earlier look-up of the same timestamp found a record, and nothing shows that the log lost the record. A
    look-up of the earliest offset may show that the record was deleted (`EndOffsets.observe_start`).
    """


class RegressedReason(enum.Enum):
    """Why an offset is lower than before."""

    TRUNCATED = "truncated"
    """The leader's log became shorter, under the same leader epoch or an unknown epoch."""
    UNCLEAN_ELECTION = "unclean_election"
    """A leader with a newer epoch never had the records."""
    RECREATED = "recreated"
    """The topic was deleted and created again."""
    ACCEPTED = "accepted"
    """The caller accepted the lower offset without a proof."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The cluster's evidence for a lower offset.

    Attributes:
        requested_epoch: Epoch in the OffsetForLeaderEpoch request.
        reply_epoch: The leader's largest epoch that is not above the requested epoch.
        end_offset: Where `reply_epoch` ends in the leader's log. The records at and after this offset are lost.
        leader_epoch: The leader's own epoch, -1 when not known.
        old_topic_id: Topic id before.
        topic_id: Topic id now.
    """

    requested_epoch: int = UNDEFINED
    reply_epoch: int = UNDEFINED
    end_offset: int = UNDEFINED
    leader_epoch: int = UNDEFINED
    old_topic_id: bytes | None = None
    topic_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """An accepted answer.

    Attributes:
        offset: The offset; None if no record has the requested timestamp or a later timestamp (look-ups by timestamp
            only).
        leader_epoch: Leader epoch of the answer, -1 when the answer had none.
        recreated: The topic was recreated since the last answer (a lower end would be reported as `Regressed`).
        previous: Log start offset of the deleted topic, if the topic was recreated and this answer is a start offset;
            otherwise None. `previous` may be above `offset`.
    """

    offset: int | None
    leader_epoch: int = UNDEFINED
    recreated: bool = False
    previous: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Held:
    """An answer that is not accepted yet: `offset` stays valid, and the caller asks again.

    Attributes:
        offset: The remembered value; None before the first accepted answer.
        answered: The offset in the answer; None when the broker returned none.
        reason: Why the answer is held.
        since_s: Number of seconds for which answers have been held.
        ask_epoch: An OffsetForLeaderEpoch request for this epoch shows whether the log lost records. Pass the response
            to `EndOffsets.prove` (for a start offset: `prove_start`). None: such a request cannot help.
        refresh_metadata: Request new metadata before asking again, because the leader may have changed.
        leader_epoch: Leader epoch of the record at `offset`, -1 when not known (look-ups by timestamp only).
        timestamp_ms: Timestamp of the record at `offset`, -1 when not known (look-ups by timestamp only).
    """

    offset: int | None
    answered: int | None
    reason: HeldReason
    since_s: float = 0.0
    ask_epoch: int | None = None
    refresh_metadata: bool = False
    leader_epoch: int = UNDEFINED
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class Regressed:
    """The offset is lower than before, for a known reason.

    Attributes:
        offset: The new value.
        previous: The value before.
        reason: For an end offset: what happened to the records from `offset` to `previous` − 1. For a start offset:
            what happened to the log that began at `previous`.
        proof: The evidence; None when `reason` is ACCEPTED.
    """

    offset: int
    previous: int
    reason: RegressedReason
    proof: Proof | None


@dataclass(frozen=True, slots=True)
class Unproven:
    """The answers remain lower than the remembered offset, without epochs that could show why. Either the broker is
    slow to catch up, or the log has lost records.

    The remembered value stays valid until the caller calls `EndOffsets.accept` (for a start offset: `accept_start`).

    Attributes:
        offset: The remembered value.
        answered: The last answer.
        since_s: Number of seconds for which answers have been lower.
    """

    offset: int
    answered: int
    since_s: float


Result = Value | Held | Regressed | Unproven
