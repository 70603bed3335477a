"""What units are made of, and what they may become."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

__all__ = [
    "GIVEN_UP",
    "NO_READING",
    "OLDEST",
    "POOL",
    "SUPERSEDED",
    "TRANSITIONS",
    "Grant",
    "GroupPartition",
    "IllegalStepError",
    "Line",
    "Member",
    "Phase",
    "Reading",
]

GIVEN_UP: Final = -4
"""The code of what an operator gave up: none of Kafka's."""

SUPERSEDED: Final = -5
"""The code of a unit whose consumer did not start from the group's offset: none of Kafka's."""

GroupPartition: TypeAlias = tuple[str, str, int]
"""(group, topic, partition): where a consumer group's offset of one partition is."""

Line: TypeAlias = int | GroupPartition
"""What units have an order on: a destination, or a group's offset of a partition."""

POOL: Final = 4
"""Transactional ids of a lane: so many of its units are under way at once."""


class IllegalStepError(RuntimeError):
    """A bug in kafkasafe: a unit was about to do what its phase does not allow."""


class Phase(enum.Enum):
    """Where a unit is between the spool and the end."""

    WAITING = "waiting"
    """In line, or on its way to the disk."""
    BEGUN = "begun"
    """A transactional id is its own."""
    APPENDING = "appending"
    """Its batches and its marker are under way."""
    STAGING = "staging"
    """All of it is appended; the mark that says so is on its way to the disk."""
    STAGED = "staged"
    """It may be committed when its turn comes."""
    ENDING = "ending"
    """EndTxn was, or may have been, sent."""
    ASKING = "asking"
    """The outcome is not known."""
    COMMITTED = "committed"
    """The mark that says so is on its way to the disk."""
    REFUSED = "refused"
    """For good; nothing of it can be seen by readers. Its mark is on its way, or what it holds is being put aside."""
    OVER = "over"


TRANSITIONS: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.WAITING: frozenset({Phase.BEGUN, Phase.REFUSED}),
    Phase.BEGUN: frozenset({Phase.APPENDING, Phase.WAITING, Phase.REFUSED}),
    Phase.APPENDING: frozenset({Phase.STAGING, Phase.WAITING, Phase.REFUSED}),
    # Waiting: one before it has to be prepared again, and this one after it. No EndTxn was sent.
    Phase.STAGING: frozenset({Phase.STAGED, Phase.WAITING}),
    Phase.STAGED: frozenset({Phase.ENDING, Phase.WAITING, Phase.ASKING}),
    Phase.ENDING: frozenset({Phase.COMMITTED, Phase.ASKING}),
    Phase.ASKING: frozenset({Phase.COMMITTED, Phase.WAITING, Phase.REFUSED}),
    Phase.COMMITTED: frozenset({Phase.OVER}),
    Phase.REFUSED: frozenset({Phase.OVER}),
    Phase.OVER: frozenset(),
}


class Member(Protocol):
    """A batch, as far as a unit needs to know it."""

    handle: int
    destination: int
    count: int
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Under what a transaction is written.

    Attributes:
        producer_id: Granted by the coordinator.
        epoch: Granted by the coordinator.
        protocol: 1, or 2 (KIP-890): each transaction has its own epoch, and partitions add themselves.
    """

    producer_id: int
    epoch: int
    protocol: int


@dataclass(frozen=True, slots=True)
class Reading:
    """One run of a consumer through a partition: units of one reading go on from one another.

    A consumer that is moved back, or is assigned the partition again, begins another reading.

    Attributes:
        number: Ascending in the order in which readings began; below 0: in an earlier incarnation.
        start: The group's offset when it began, -1 when that is not known.
    """

    number: int
    start: int = -1


NO_READING: Final = Reading(0)
"""Of a unit whose consumer is not known."""
OLDEST: Final = -(1 << 62)
"""The number of readings that earlier versions did not distinguish."""
