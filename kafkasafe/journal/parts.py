"""Makes all objects of one journal, each from the objects that it uses, so no dependencies are circular."""

from __future__ import annotations

import itertools

from kafkasafe import units as u
from kafkasafe.journal.answers import Answers
from kafkasafe.journal.broker_clock import BrokerClock
from kafkasafe.journal.destinations import Destinations
from kafkasafe.journal.dividing import Divider
from kafkasafe.journal.endings import Durability
from kafkasafe.journal.forward import CopyForward
from kafkasafe.journal.gathering import Gatherer
from kafkasafe.journal.healing import Revivals
from kafkasafe.journal.home import Home
from kafkasafe.journal.ids import Identities
from kafkasafe.journal.lives import Incarnations
from kafkasafe.journal.losses import Losses
from kafkasafe.journal.machine import Machine
from kafkasafe.journal.members import UnitBatches
from kafkasafe.journal.missing import Missing
from kafkasafe.journal.outbox import Outbox
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.precedence import Precedence
from kafkasafe.journal.quiescence import Quiescence
from kafkasafe.journal.recovery import Recovery
from kafkasafe.journal.refusals import Refusals
from kafkasafe.journal.rejecting import Rejecter
from kafkasafe.journal.replay import Replay
from kafkasafe.journal.rounds import Rounds
from kafkasafe.journal.sealing import Sealer
from kafkasafe.journal.sequences import IdSource
from kafkasafe.journal.settings import Settings
from kafkasafe.journal.snapshots import Snapshots
from kafkasafe.journal.spool_index import SpoolIndex
from kafkasafe.journal.suspicions import Suspicions
from kafkasafe.journal.topics import Topics
from kafkasafe.journal.turns import Turns
from kafkasafe.journal.verdicts import Verdicts
from kafkasafe.journal.views import Views

__all__ = ["JournalParts"]


class JournalParts:
    """Makes all objects of the journal. No object gets the parts as a whole: each knows only its arguments."""

    def __init__(self, settings: Settings) -> None:
        handles = itertools.count(1)
        self.out = out = Outbox()
        self.index = index = SpoolIndex()
        self.home = home = Home()
        self.ids = ids = IdSource()
        self.replay = replay = Replay()
        self.revivals = revivals = Revivals()
        self.clock = clock = BrokerClock(settings.state_age_s)
        self.precedence = precedence = Precedence()
        self.quiescence = quiescence = Quiescence()
        self.missing = missing = Missing()
        self.destinations = destinations = Destinations()
        self.snapshots = snapshots = Snapshots(destinations, home, precedence, ids, revivals)
        front = Turns(destinations, precedence).is_in_front
        self.units = units = u.Units(front, newest_reading=settings.newest_reading)
        self.packer = packer = Packer(destinations, out, index, replay, handles)
        self.suspicions = suspicions = Suspicions(destinations, index, packer, missing)
        self.refusals = refusals = Refusals(
            destinations,
            out,
            index,
            packer,
            missing,
            blocked_timeout_s=settings.blocked_timeout_s,
            missing_grace_s=settings.missing_grace_s,
        )
        self.topics = topics = Topics(
            destinations, out, packer, suspicions, refusals, revivals, units, ids, home, missing
        )
        self.losses = losses = Losses(
            destinations,
            out,
            index,
            packer,
            suspicions,
            snapshots,
            revivals,
            quiescence,
            units,
            home,
            missing,
            heal=settings.heal,
            heal_recreated=settings.heal_recreated,
        )
        self.durability = durability = Durability(
            destinations, out, index, packer, quiescence, revivals, units
        )
        self.forward = forward = CopyForward(destinations, out, index, packer, snapshots, revivals)
        self.identities = identities = Identities(
            destinations, out, packer, ids, home, durable_first=settings.durable_first, window=settings.window
        )
        self.sealer = sealer = Sealer(
            destinations, out, packer, ids, units, handles, durable_first=settings.durable_first
        )
        self.divider = Divider(destinations, out, packer, sealer, identities, revivals, units)
        self.gatherer = gatherer = Gatherer(
            destinations, out, packer, sealer, revivals, clock, precedence, gather_bytes=settings.gather_bytes
        )
        self.rejecter = rejecter = Rejecter(
            destinations,
            out,
            index,
            packer,
            refusals,
            identities,
            sealer,
            units,
            missing,
            aside_batches=settings.aside_batches,
        )
        self.verdicts = verdicts = Verdicts(
            destinations,
            out,
            packer,
            suspicions,
            durability,
            replay,
            request_timeout_s=settings.request_timeout_s,
        )
        self.answers = Answers(
            destinations,
            out,
            packer,
            suspicions,
            refusals,
            durability,
            rejecter,
            clock,
            units,
            request_timeout_s=settings.request_timeout_s,
        )
        self.unit_batches = unit_batches = UnitBatches(destinations, out, suspicions, refusals, units)
        self.incarnations = Incarnations(
            destinations,
            out,
            index,
            packer,
            precedence,
            quiescence,
            request_timeout_s=settings.request_timeout_s,
        )
        self.views = Views(destinations, index, units, precedence, revivals, ids, replay)
        self.recovery = Recovery(
            destinations,
            out,
            index,
            packer,
            replay,
            handles,
            suspicions,
            topics,
            losses,
            durability,
            forward,
            verdicts,
            unit_batches,
            revivals,
            precedence,
            quiescence,
            units,
            home,
            window=settings.window,
            request_timeout_s=settings.request_timeout_s,
        )
        machine = Machine(
            destinations,
            out,
            packer,
            identities,
            sealer,
            gatherer,
            rejecter,
            refusals,
            topics,
            losses,
            clock,
            precedence,
            window=settings.window,
        )
        self.rounds = Rounds(out, ids, losses, machine, unit_batches, quiescence, units)
