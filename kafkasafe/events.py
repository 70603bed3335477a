"""Facts for hooks: what a SafeProducer noticed. Frozen; `on_event` gets each one, on the producer's own thread."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "AckedDataLost",
    "BatchCommitted",
    "BatchParked",
    "BatchRejected",
    "DeliveryRetried",
    "Event",
    "Healed",
    "LaneAdopted",
    "SpoolRecovered",
    "SpoolWriteFailed",
]


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """A batch is in the cluster's log and its commit mark is durable."""

    topic: str
    partition: int
    first_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class BatchRejected:
    """The cluster refused records for good; they are kept aside in the spool directory."""

    topic: str
    partition: int
    records: int
    code: int
    reason: str
    kept_in: str


@dataclass(frozen=True, slots=True)
class BatchParked:
    """Nobody can know whether a batch is in the log; the policy `on_undecidable` decides."""

    topic: str
    partition: int
    records: int
    position: int
    evidence: str


@dataclass(frozen=True, slots=True)
class AckedDataLost:
    """Records that the cluster had acknowledged are gone from its log.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        first_offset: First lost offset.
        last_offset: Last lost offset (inclusive).
        records: How many of the records between them were this spool's.
        detector: What noticed it: "ack", "sequence", "log end" or "topic id".
        evidence: What was seen.
        healing_records: How many of them the spool still has and sends again. They come behind whatever was appended
            since the loss, in their own order.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int
    detector: str
    evidence: str
    healing_records: int


@dataclass(frozen=True, slots=True)
class Healed:
    """Lost acknowledged records are in the log again, once, in order.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        records: How many.
        first_offset: Where the first of them is now.
        last_offset: Where the last of them is now (inclusive).
    """

    topic: str
    partition: int
    records: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class DeliveryRetried:
    """A partition failed and is tried again after a pause."""

    topic: str
    partition: int
    attempt: int
    pause_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class SpoolRecovered:
    """A lane with records of an earlier life was opened."""

    lane: str
    batches: int
    records: int
    in_doubt_batches: int


@dataclass(frozen=True, slots=True)
class LaneAdopted:
    """A lane whose owner died is drained by this process."""

    lane: str
    batches: int
    records: int


@dataclass(frozen=True, slots=True)
class SpoolWriteFailed:
    """A write to the spool failed and is tried again; nothing that was promised is affected."""

    lane: str
    error: str
    attempt: int


Event = (
    BatchCommitted
    | BatchRejected
    | BatchParked
    | AckedDataLost
    | Healed
    | DeliveryRetried
    | SpoolRecovered
    | LaneAdopted
    | SpoolWriteFailed
)
