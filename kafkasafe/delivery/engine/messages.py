"""The engine's messages, as data that can be printed, compared and recorded. `Engine.step` takes one at a time."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from kafkasafe import journal as j
from kafkasafe import units as u
from kafkasafe.cluster import transactions as x
from kafkasafe.cluster.api import (
    Failure,
    MetadataRefreshed,
    ProduceReply,
    ProducerIdGranted,
    Reached,
    RecordsFetched,
)
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.parcels import Parcel
from kafkasafe.delivery.engine.predecessor import Predecessor
from kafkasafe.journal.order import Owed
from kafkasafe.limits.uplink import Ticket
from kafkasafe.spool.siblings import LeftBehind


class Inquiry(Protocol):
    """A series of requests to the cluster, in which each answer decides the next request."""

    def go_on(self) -> None:
        """Begin, or continue after a pause."""

    def resume(self, answer: Any) -> None:
        """Handle the answer to the last request."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """Callers have submitted these parcels (encoded batches), in the order of acceptance."""

    parcels: Sequence[Parcel]


@dataclass(frozen=True, slots=True)
class SpillAsked:
    """All accepted records must be written to disk now (`spool="on_error"`)."""


@dataclass(frozen=True, slots=True)
class LookAsked:
    """A caller asks whether the lanes are still at the paths where the next producer looks for them.

    Attributes:
        number: Number of the question. One check also answers all questions with lower numbers.
    """

    number: int


@dataclass(frozen=True, slots=True)
class Decided:
    """The user has decided that undecidable batches are sent again, or that they count as delivered."""

    batches: Sequence[tuple[Lane, j.Batch]]
    resend: bool


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """A metadata answer arrived."""

    refreshed: MetadataRefreshed


@dataclass(frozen=True, slots=True)
class OtherClusterAnswered:
    """A connection led to another cluster, and the transport closed it without sending anything."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class PinnedClusterReached:
    """A new connection leads to the producer's own cluster."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An attempt to send a batch. `leader_epoch` is the leader epoch at the time of the attempt. `ticket` is None if
    the batch was not sent.
    """

    lane: Lane
    batch: j.Batch
    leader_epoch: int
    ticket: Ticket | None = None


@dataclass(frozen=True, slots=True)
class LinkAnswered:
    """Whether the transport can reach a broker for which the send queue holds batches. `node` is -1 if no leader was
    known.
    """

    node: int
    topic: str
    partition: int
    answer: Reached | Failure


@dataclass(frozen=True, slots=True)
class Produced:
    """The reply to a batch, or its failure."""

    sent: Sent
    reply: ProduceReply | Failure


@dataclass(frozen=True, slots=True)
class FoundDamaged:
    """The next batch to be sent is damaged on disk. The damaged bytes are in `quarantine/`."""

    lane: Lane
    batch: j.Batch
    reason: str


@dataclass(frozen=True, slots=True)
class ProducerIdAnswered:
    """The answer to a lane's request for a producer id."""

    lane: Lane
    answer: ProducerIdGranted | Failure


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to one request of an inquiry. `step` names the request in transcripts."""

    inquiry: Inquiry
    step: str
    answer: Any


@dataclass(frozen=True, slots=True)
class LookedAround:
    """The default spool directories that the engine has found next to the producer's own."""

    found: Sequence[LeftBehind]


@dataclass(frozen=True, slots=True)
class LanesRead:
    """For each lane of another process: its undelivered records, or the error that prevented reading it."""

    results: Mapping[Path, Owed | Exception]


@dataclass(frozen=True, slots=True)
class Preceded:
    """The program dropped another producer on the spool directory, or the state of a dropped producer changed."""

    predecessor: Predecessor


@dataclass(frozen=True, slots=True)
class LaneRead:
    """The log of a lane without an owner was read back, so this producer will deliver the lane's records."""

    path: Path


@dataclass(frozen=True, slots=True)
class AdoptAsked:
    """A caller waits for lanes that other producers left."""


class Chore(enum.Enum):
    """Work that the engine does from time to time."""

    ADOPT = "adopt"
    ADOPTED = "adopted"
    ORDER = "order"
    LOOK_AROUND = "look_around"
    POLL_TOPICS = "poll_topics"
    CHECK_ACKED = "check_acked"
    SPILL = "spill"
    EXPIRE = "expire"
    LOOK_AGAIN = "look_again"
    """This chore only starts a turn of the engine, which checks the lanes that wait for their disk."""


@dataclass(frozen=True, slots=True)
class ChoreDue:
    """A chore is due."""

    chore: Chore


@dataclass(frozen=True, slots=True, eq=False)
class RetryDue:
    """A pause of a destination is over. Each pause has its own `RetryDue` object, which cannot end another pause."""

    lane: Lane
    destination: int


@dataclass(frozen=True, slots=True)
class AsideDue:
    """The next portion of a destination's rejected batches is due to be written to `rejected/`."""

    lane: Lane
    destination: int


@dataclass(frozen=True, slots=True)
class WriteDue:
    """The pause after a failed write is over."""

    lane: Lane


@dataclass(frozen=True, slots=True)
class ProducerIdDue:
    """The pause before the next request for a producer id is over."""

    lane: Lane


@dataclass(frozen=True, slots=True)
class EpochCheckDue:
    """A pause is over: check again where a leader epoch ends."""

    lane: Lane
    check: j.EpochCheck


@dataclass(frozen=True, slots=True)
class InquiryDue:
    """An inquiry begins or continues after a pause. Reasons for a pause are the rate limit for inquiries, too many
    failed requests, and replicas that lag.
    """

    inquiry: Inquiry


UnitAnswer: TypeAlias = (
    x.TransactionsInitialized
    | x.PartitionsAdded
    | x.TransactionAnswer
    | x.OffsetsCommitted
    | x.OffsetCommitted
    | x.TransactionEnded
    | x.TransactionDescribed
    | ProduceReply
    | RecordsFetched
)
"""An answer to a request of a unit's transaction."""


@dataclass(frozen=True, slots=True)
class UnitAnswered:
    """The answer to a request of a transaction with units (atomic batches). `step` names the request if the action
    takes several.
    """

    lane: Lane
    action: u.Request
    step: str
    answer: UnitAnswer | Failure


@dataclass(frozen=True, slots=True)
class UnitDue:
    """The pause before the next attempt to deliver a unit (atomic batch) is over."""

    lane: Lane
    action: u.Request | u.UnitPause


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The producer's own lane takes over a user's transactional id, which fences the id's previous owner."""

    transactional_id: str


Message: TypeAlias = (
    Submitted
    | SpillAsked
    | LookAsked
    | Decided
    | MetadataChanged
    | OtherClusterAnswered
    | PinnedClusterReached
    | Produced
    | LinkAnswered
    | FoundDamaged
    | ProducerIdAnswered
    | Answered
    | LookedAround
    | LanesRead
    | LaneRead
    | Preceded
    | AdoptAsked
    | ChoreDue
    | RetryDue
    | AsideDue
    | WriteDue
    | ProducerIdDue
    | EpochCheckDue
    | InquiryDue
    | UnitAnswered
    | UnitDue
    | TakeOver
)
