"""Definitions that all modules for units share: phases and their transitions, grants, readings."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

GIVEN_UP: Final = -4
"""The code of a unit that an operator gave up. Not a code of Kafka."""

SUPERSEDED: Final = -5
"""The code of a unit that is dropped because its consumer did not start from the group's present offset. Not a code of
Kafka.
"""

GroupPartition: TypeAlias = tuple[str, str, int]
"""(group, topic, partition): stands for a consumer group's offset in one partition."""

Line: TypeAlias = int | GroupPartition
"""Names a line of units: the units of a destination, or the units that move a consumer group's offset for one
partition. Each line has its own order.
"""

POOL: Final = 4
"""Number of a lane's own transactional ids, and so the maximum number of concurrent transactions without a user's id.
"""


class IllegalStepError(RuntimeError):
    """A bug in kafkasafe: a unit's phase does not allow the step."""


class Phase(enum.Enum):
    """The state of a unit, from its acceptance to its end."""

    WAITING = "waiting"
    """The unit waits for its turn, or is being written to the spool."""
    BEGUN = "begun"
    """The unit has a transactional id."""
    APPENDING = "appending"
    """The unit's batches, and its marker (a committed offset), are being written to the cluster."""
    STAGING = "staging"
    """The unit is completely appended, and its STAGED mark is being written."""
    STAGED = "staged"
    """The unit may be committed when its turn comes."""
    ENDING = "ending"
    """EndTxn was sent, or may have been sent."""
    ASKING = "asking"
    """The outcome is unknown: the engine asks the cluster for it."""
    COMMITTED = "committed"
    """The unit is committed, and its ENDED mark is being written."""
    REFUSED = "refused"
    """The unit is given up, and readers of committed records cannot see it. The unit's records are being saved, or its
    ENDED mark is being written.
    """
    OVER = "over"


TRANSITIONS: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.WAITING: frozenset({Phase.BEGUN, Phase.REFUSED}),
    Phase.BEGUN: frozenset({Phase.APPENDING, Phase.WAITING, Phase.REFUSED}),
    Phase.APPENDING: frozenset({Phase.STAGING, Phase.WAITING, Phase.REFUSED}),
    # The unit goes back to WAITING if an earlier unit must be prepared again, and no EndTxn was sent for this unit.
    Phase.STAGING: frozenset({Phase.STAGED, Phase.WAITING}),
    Phase.STAGED: frozenset({Phase.ENDING, Phase.WAITING, Phase.ASKING}),
    Phase.ENDING: frozenset({Phase.COMMITTED, Phase.ASKING}),
    Phase.ASKING: frozenset({Phase.COMMITTED, Phase.WAITING, Phase.REFUSED}),
    Phase.COMMITTED: frozenset({Phase.OVER}),
    Phase.REFUSED: frozenset({Phase.OVER}),
    Phase.OVER: frozenset(),
}


class Member(Protocol):
    """A batch of a unit, with the attributes that this package uses."""

    handle: int
    destination: int
    count: int
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A producer id and epoch, as the coordinator granted them.

    Attributes:
        producer_id: The producer id.
        epoch: The producer epoch.
        protocol: The version of Kafka's transaction protocol, 1 or 2. With version 2 (KIP-890), each transaction has
            its own epoch, and needs no AddPartitionsToTxn.
    """

    producer_id: int
    epoch: int
    protocol: int


@dataclass(frozen=True, slots=True)
class Reading:
    """One run of a consumer through a partition. Each unit of a reading begins at the offset where the previous unit
    ended.

    A consumer that seeks (except to the end of its last accepted unit), or gets the partition assigned again, begins
    another reading.

    Attributes:
        number: Later readings have larger numbers; readings of earlier incarnations have negative numbers.
        start: The group's offset when the reading began; -1 if unknown.
    """

    number: int
    start: int = -1


NO_READING: Final = Reading(0)
"""The reading of a unit whose consumer is unknown."""
OLDEST: Final = -(1 << 62)
"""The number of the reading (a consumer's run) in units that old versions of kafkasafe wrote. Those versions did not
distinguish readings.
"""
