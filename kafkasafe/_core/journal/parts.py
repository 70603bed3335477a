"""All objects of one journal, each made from those that it uses: so the dependencies are a tree."""

from __future__ import annotations

import itertools

from kafkasafe._core import units as u
from kafkasafe._core.journal.answers import Answers
from kafkasafe._core.journal.broker_clock import BrokerClock
from kafkasafe._core.journal.destinations import Destinations
from kafkasafe._core.journal.dividing import Divider
from kafkasafe._core.journal.endings import Durability
from kafkasafe._core.journal.forward import CopyForward
from kafkasafe._core.journal.gathering import Gatherer
from kafkasafe._core.journal.healing import Revivals
from kafkasafe._core.journal.home import Home
from kafkasafe._core.journal.ids import Identities
from kafkasafe._core.journal.lives import Incarnations
from kafkasafe._core.journal.losses import Losses
from kafkasafe._core.journal.machine import Machine
from kafkasafe._core.journal.members import UnitBatches
from kafkasafe._core.journal.missing import Missing
from kafkasafe._core.journal.outbox import Outbox
from kafkasafe._core.journal.packing import Packer
from kafkasafe._core.journal.precedence import Precedence
from kafkasafe._core.journal.quiescence import Quiescence
from kafkasafe._core.journal.recovery import Recovery
from kafkasafe._core.journal.refusals import Refusals
from kafkasafe._core.journal.rejecting import Rejecter
from kafkasafe._core.journal.replay import Replay
from kafkasafe._core.journal.rounds import Rounds
from kafkasafe._core.journal.sealing import Sealer
from kafkasafe._core.journal.sequences import IdSource
from kafkasafe._core.journal.settings import Settings
from kafkasafe._core.journal.snapshots import Snapshots
from kafkasafe._core.journal.spool_index import SpoolIndex
from kafkasafe._core.journal.suspicions import Suspicions
from kafkasafe._core.journal.topics import Topics
from kafkasafe._core.journal.turns import Turns
from kafkasafe._core.journal.verdicts import Verdicts
from kafkasafe._core.journal.views import Views

__all__ = ["Parts"]


class Parts:
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
