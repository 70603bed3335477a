"""The settings of a journal, and all of its objects, each made from those that it uses, so nothing is circular."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from kafkasafe import units as u
from kafkasafe.journal.answers import Answers
from kafkasafe.journal.clock import BrokerClock
from kafkasafe.journal.destinations import Destinations
from kafkasafe.journal.dividing import Divider
from kafkasafe.journal.endings import Durability
from kafkasafe.journal.forward import CopyForward
from kafkasafe.journal.gathering import Gatherer
from kafkasafe.journal.healing import Revivals
from kafkasafe.journal.home import Home
from kafkasafe.journal.ids import Identities
from kafkasafe.journal.lives import Incarnations
from kafkasafe.journal.losses import Losses, Suspicions
from kafkasafe.journal.machine import Machine, Rounds
from kafkasafe.journal.members import UnitBatches
from kafkasafe.journal.outbox import Outbox
from kafkasafe.journal.packing import Packer, RereadBacklogs
from kafkasafe.journal.partition import WINDOW
from kafkasafe.journal.precedence import Precedence, Turns
from kafkasafe.journal.quiescence import Quiescence
from kafkasafe.journal.recovery import Recovery
from kafkasafe.journal.refusal import Missing
from kafkasafe.journal.refusals import Refusals
from kafkasafe.journal.rejecting import Rejecter
from kafkasafe.journal.replay import Replay
from kafkasafe.journal.sealing import Sealer
from kafkasafe.journal.sequences import IdSource
from kafkasafe.journal.snapshots import Snapshots
from kafkasafe.journal.spool_index import SpoolIndex
from kafkasafe.journal.topics import Topics
from kafkasafe.journal.verdicts import Verdicts
from kafkasafe.journal.views import Views

__all__ = ["JournalParts", "Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one lane's journal.

    Attributes:
        durable_first: Send only batches that are on disk (`spool="always"`). False: `spill()` selects those to write.
        window: Batches sent without a durable commit mark, per partition.
        state_age_s: How long after a batch's own timestamp a broker is certain to keep the producer state.
        request_timeout_s: After this time, no broker can append a request without an answer any more.
        blocked_timeout_s: How long a destination may be missing, forbidden or invalid, timestamps be too far ahead, or
            the broker fail on one batch, before the journal rejects the affected batches; None: for ever. The time
            counts within this incarnation, and any other answer resets it.
        missing_grace_s: How long a topic may be unknown to the cluster before a notice says so: it may be new.
        heal: Send acknowledged batches that the cluster lost again, as far as the spool still has them.
        heal_recreated: Send lost batches again even to a topic that was deleted and created again.
        aside_batches: At most this many rejected batches are made durable in `rejected/` at a time.
        gather_bytes: Small waiting batches are merged up to this size; 0: never.
        newest_reading: See `units.Units`.
    """

    durable_first: bool = True
    window: int = WINDOW
    state_age_s: float = 6 * 3600.0
    request_timeout_s: float = 30.0
    blocked_timeout_s: float | None = 7 * 86400.0
    missing_grace_s: float = 60.0
    heal: bool = True
    heal_recreated: bool = False
    aside_batches: int = 256
    gather_bytes: int = 0
    newest_reading: Callable[[], int] = lambda: 0


class JournalState:
    """State that no partition owns. The other objects share these."""

    def __init__(self, settings: Settings) -> None:
        self.handles = itertools.count(1)
        self.destinations = Destinations()
        self.out = Outbox()
        self.index = SpoolIndex()
        self.home = Home()
        self.ids = IdSource()
        self.replay = Replay()
        self.revivals = Revivals()
        self.clock = BrokerClock(settings.state_age_s)
        self.precedence = Precedence()
        self.quiescence = Quiescence()
        self.missing = Missing()
        front = Turns(self.destinations, self.precedence).is_in_front
        self.units = u.Units(front, newest_reading=settings.newest_reading)


class QueueParts:
    """Batches in a queue: their ids, their division and merging, and what stays of them in memory."""

    def __init__(self, settings: Settings, state: JournalState) -> None:
        self.packer = Packer(state.destinations, state.out, state.index, state.replay, state.handles)
        self.identities = Identities(
            state.destinations,
            state.out,
            self.packer,
            state.ids,
            state.home,
            durable_first=settings.durable_first,
            window=settings.window,
        )
        self.sealer = Sealer(
            state.destinations,
            state.out,
            self.packer,
            state.ids,
            state.units,
            state.handles,
            durable_first=settings.durable_first,
        )
        self.divider = Divider(
            state.destinations,
            state.out,
            self.packer,
            self.sealer,
            self.identities,
            state.revivals,
            state.units,
        )
        self.gatherer = Gatherer(
            state.destinations,
            state.out,
            self.packer,
            self.sealer,
            state.revivals,
            state.clock,
            state.precedence,
            gather_bytes=settings.gather_bytes,
        )


class SpoolParts:
    """The spool: marks that it repeats, groups that became durable, and copies of batches."""

    def __init__(self, state: JournalState, packer: Packer) -> None:
        self.snapshots = Snapshots(
            state.destinations, state.home, state.precedence, state.ids, state.revivals
        )
        self.durability = Durability(
            state.destinations,
            state.out,
            state.index,
            packer,
            state.quiescence,
            state.revivals,
            state.units,
        )
        self.forward = CopyForward(
            state.destinations, state.out, state.index, packer, self.snapshots, state.revivals
        )


class ClusterParts:
    """The cluster: its topics, the destinations that it refuses, and what its logs may have lost."""

    def __init__(self, settings: Settings, state: JournalState, packer: Packer, snapshots: Snapshots) -> None:
        self.suspicions = Suspicions(state.destinations, state.index, packer, state.missing)
        self.refusals = Refusals(
            state.destinations,
            state.out,
            state.index,
            packer,
            state.missing,
            blocked_timeout_s=settings.blocked_timeout_s,
            missing_grace_s=settings.missing_grace_s,
        )
        self.topics = Topics(
            state.destinations,
            state.out,
            packer,
            self.suspicions,
            self.refusals,
            state.revivals,
            state.units,
            state.ids,
            state.home,
            state.missing,
        )
        self.losses = Losses(
            state.destinations,
            state.out,
            state.index,
            packer,
            self.suspicions,
            snapshots,
            state.revivals,
            state.quiescence,
            state.units,
            state.home,
            state.missing,
            heal=settings.heal,
            heal_recreated=settings.heal_recreated,
        )


class OutcomeParts:
    """Outcomes: of requests, of batches in doubt, of batches that are finally refused, and of batches in units."""

    def __init__(
        self,
        settings: Settings,
        state: JournalState,
        queues: QueueParts,
        cluster: ClusterParts,
        durability: Durability,
    ) -> None:
        self.rejecter = Rejecter(
            state.destinations,
            state.out,
            state.index,
            queues.packer,
            cluster.refusals,
            queues.identities,
            queues.sealer,
            state.units,
            state.missing,
            aside_batches=settings.aside_batches,
        )
        self.verdicts = Verdicts(
            state.destinations,
            state.out,
            queues.packer,
            cluster.suspicions,
            durability,
            state.replay,
            request_timeout_s=settings.request_timeout_s,
        )
        self.answers = Answers(
            state.destinations,
            state.out,
            queues.packer,
            cluster.suspicions,
            cluster.refusals,
            durability,
            self.rejecter,
            state.clock,
            state.units,
            request_timeout_s=settings.request_timeout_s,
        )
        self.unit_batches = UnitBatches(
            state.destinations, state.out, cluster.suspicions, cluster.refusals, state.units
        )


class IncarnationParts:
    """Earlier incarnations and other lanes: what the log says of them, and which batches go first."""

    def __init__(
        self,
        settings: Settings,
        state: JournalState,
        packer: Packer,
        spool: SpoolParts,
        cluster: ClusterParts,
        outcomes: OutcomeParts,
    ) -> None:
        self.incarnations = Incarnations(
            state.destinations,
            state.out,
            state.index,
            packer,
            state.precedence,
            state.quiescence,
            request_timeout_s=settings.request_timeout_s,
        )
        backlogs = RereadBacklogs(
            state.destinations.all, state.index, packer, state.out, window=settings.window
        )
        self.recovery = Recovery(
            state.destinations,
            state.index,
            packer,
            backlogs,
            state.replay,
            state.handles,
            cluster.suspicions,
            cluster.topics,
            cluster.losses,
            spool.durability,
            spool.forward,
            outcomes.verdicts,
            outcomes.unit_batches,
            state.revivals,
            state.precedence,
            state.quiescence,
            state.units,
            state.home,
            request_timeout_s=settings.request_timeout_s,
        )


class JournalParts:
    """Makes all objects of the journal. No object gets the parts as a whole: each knows only its arguments."""

    def __init__(self, settings: Settings) -> None:
        self.state = state = JournalState(settings)
        self.queues = queues = QueueParts(settings, state)
        packer = queues.packer
        self.spool = spool = SpoolParts(state, packer)
        self.cluster = cluster = ClusterParts(settings, state, packer, spool.snapshots)
        self.outcomes = outcomes = OutcomeParts(settings, state, queues, cluster, spool.durability)
        self.earlier = IncarnationParts(settings, state, packer, spool, cluster, outcomes)
        self.views = Views(
            state.destinations,
            state.index,
            state.units,
            state.precedence,
            state.revivals,
            state.ids,
            state.replay,
        )
        machine = Machine(
            state.destinations,
            state.out,
            packer,
            queues.identities,
            queues.sealer,
            queues.gatherer,
            outcomes.rejecter,
            cluster.refusals,
            cluster.topics,
            cluster.losses,
            state.clock,
            state.precedence,
            window=settings.window,
        )
        self.rounds = Rounds(
            state.out,
            state.ids,
            cluster.losses,
            machine,
            outcomes.unit_batches,
            state.quiescence,
            state.units,
        )
