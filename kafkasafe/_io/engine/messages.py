"""What happens to the engine, as data: it can be printed, compared and recorded. `Engine.step` takes one at a time."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from kafkasafe._core import journal as j
from kafkasafe._core import units as u
from kafkasafe._core.order import Owed
from kafkasafe._core.uplink import Ticket
from kafkasafe._io.engine.lane import Lane
from kafkasafe._io.engine.parcels import Parcel
from kafkasafe._io.engine.predecessor import Predecessor
from kafkasafe._io.siblings import LeftBehind
from kafkasafe.cluster.api import Failure, MetadataRefreshed, ProduceReply, ProducerIdGranted, Reached

__all__ = [
    "AdoptAsked",
    "Answered",
    "AsideDue",
    "Chore",
    "ChoreDue",
    "Decided",
    "EpochCheckDue",
    "FoundDamaged",
    "HomeReached",
    "Inquiry",
    "InquiryDue",
    "LaneRead",
    "LanesRead",
    "LinkAnswered",
    "LookAsked",
    "LookedAround",
    "Message",
    "MetadataChanged",
    "Preceded",
    "Produced",
    "ProducerIdAnswered",
    "ProducerIdDue",
    "RetryDue",
    "Sent",
    "SpillAsked",
    "StrangerMet",
    "Submitted",
    "TakeOver",
    "UnitAnswered",
    "UnitDue",
    "WriteDue",
]


class Inquiry(Protocol):
    """Questions to the cluster that belong together; each answer decides which is the next."""

    def go_on(self) -> None:
        """Ask the first question, or again where the answer was not enough."""

    def resume(self, step: str, answer: Any) -> None:
        """The answer to the question of this step."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """Callers hand over parcels, in order."""

    parcels: Sequence[Parcel]


@dataclass(frozen=True, slots=True)
class SpillAsked:
    """Everything that is accepted is to be put on disk now (`spool="on_error"`)."""


@dataclass(frozen=True, slots=True)
class LookAsked:
    """A caller asks whether everything durable is where the next start finds it.

    Attributes:
        number: Number of the question. One check answers all earlier questions too.
    """

    number: int


@dataclass(frozen=True, slots=True)
class Decided:
    """The user decides undecidable batches: they are sent again, or taken as delivered."""

    batches: Sequence[tuple[Lane, j.Batch]]
    resend: bool


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """An answer about metadata came."""

    refreshed: MetadataRefreshed


@dataclass(frozen=True, slots=True)
class StrangerMet:
    """A connection led to another cluster; it was closed, nothing was sent."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class HomeReached:
    """A new connection leads to our cluster."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch on its way. `leader_epoch` is the one of the time of sending; without a ticket it did not get out."""

    lane: Lane
    batch: j.Batch
    leader_epoch: int
    ticket: Ticket | None = None


@dataclass(frozen=True, slots=True)
class LinkAnswered:
    """Whether a broker can be written to for which batches are held; `node` is -1 where no leader was known."""

    node: int
    topic: str
    partition: int
    answer: Reached | Failure


@dataclass(frozen=True, slots=True)
class Produced:
    """What became of a batch that was sent."""

    sent: Sent
    reply: ProduceReply | Failure


@dataclass(frozen=True, slots=True)
class FoundDamaged:
    """A batch that was to be sent is damaged on disk, and is in `quarantine/`."""

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
    """The answer to one question of an inquiry."""

    inquiry: Inquiry
    step: str
    answer: Any


@dataclass(frozen=True, slots=True)
class LookedAround:
    """What was found beside the default directory."""

    found: Sequence[LeftBehind]


@dataclass(frozen=True, slots=True)
class LanesRead:
    """What lanes of other processes still owe was read, or could not be."""

    results: Mapping[Path, Owed | Exception]


@dataclass(frozen=True, slots=True)
class Preceded:
    """Another producer on the directory was dropped, or what is known of one that was dropped changed."""

    predecessor: Predecessor


@dataclass(frozen=True, slots=True)
class LaneRead:
    """A lane whose owner died was read back, to be drained."""

    path: Path


@dataclass(frozen=True, slots=True)
class AdoptAsked:
    """Somebody waits for lanes that were left behind."""


class Chore(enum.Enum):
    """What is done now and then."""

    ADOPT = "adopt"
    ADOPTED = "adopted"
    ORDER = "order"
    LOOK_AROUND = "look_around"
    POLL_TOPICS = "poll_topics"
    CHECK_ACKED = "check_acked"
    SPILL = "spill"
    EXPIRE = "expire"
    LOOK_AGAIN = "look_again"
    """Nothing by itself: a lane that waits for its disk is looked at in each turn."""


@dataclass(frozen=True, slots=True)
class ChoreDue:
    """It is time for it."""

    chore: Chore


@dataclass(frozen=True, slots=True, eq=False)
class RetryDue:
    """The pause of a destination is over: this one, not a later one of the same destination."""

    lane: Lane
    destination: int


@dataclass(frozen=True, slots=True)
class AsideDue:
    """Of what a destination rejects, the next portion is put aside."""

    lane: Lane
    destination: int


@dataclass(frozen=True, slots=True)
class WriteDue:
    """A disk that failed is tried again."""

    lane: Lane


@dataclass(frozen=True, slots=True)
class ProducerIdDue:
    """A producer id is asked for again."""

    lane: Lane


@dataclass(frozen=True, slots=True)
class EpochCheckDue:
    """A check of a leader epoch's end is tried again."""

    lane: Lane
    check: j.EpochCheck


@dataclass(frozen=True, slots=True)
class InquiryDue:
    """An inquiry goes on: its partition has calmed down, or replicas had time to catch up."""

    inquiry: Inquiry


@dataclass(frozen=True, slots=True)
class UnitAnswered:
    """The answer to a request of a unit's transaction. `step`: where one action takes several."""

    lane: Lane
    action: u.Request
    step: str
    answer: Any


@dataclass(frozen=True, slots=True)
class UnitDue:
    """The pause before a unit's next try is over."""

    lane: Lane
    action: u.Request | u.Backoff


@dataclass(frozen=True, slots=True)
class TakeOver:
    """A transactional id that the user gave becomes the own lane's: whoever had it before is fenced."""

    transactional_id: str


Message: TypeAlias = (
    Submitted
    | SpillAsked
    | LookAsked
    | Decided
    | MetadataChanged
    | StrangerMet
    | HomeReached
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
