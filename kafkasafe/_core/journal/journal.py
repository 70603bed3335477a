"""The facade: it makes the objects that the journal consists of, and passes each event to the one that it concerns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kafkasafe._core import marks as m
from kafkasafe._core import units as u
from kafkasafe._core.identity import BatchId, Judgement, ProducerView
from kafkasafe._core.journal.answers import Answers
from kafkasafe._core.journal.broker_clock import BrokerClock
from kafkasafe._core.journal.clock import Clock
from kafkasafe._core.journal.destinations import Destinations
from kafkasafe._core.journal.dividing import Divider
from kafkasafe._core.journal.endings import Durability
from kafkasafe._core.journal.forward import CopyForward
from kafkasafe._core.journal.gathering import Gatherer
from kafkasafe._core.journal.groups import Persist
from kafkasafe._core.journal.healing import Revivals
from kafkasafe._core.journal.home import Home
from kafkasafe._core.journal.ids import Identities
from kafkasafe._core.journal.lives import Incarnations
from kafkasafe._core.journal.losses import Losses
from kafkasafe._core.journal.machine import Machine
from kafkasafe._core.journal.members import UnitBatches
from kafkasafe._core.journal.messages import Aside, EpochCheck, Ready
from kafkasafe._core.journal.missing import Missing
from kafkasafe._core.journal.notices import Delivered
from kafkasafe._core.journal.outbox import Outbox
from kafkasafe._core.journal.packing import Packer
from kafkasafe._core.journal.partition import WINDOW
from kafkasafe._core.journal.precedence import Precedence
from kafkasafe._core.journal.quiescence import Quiescence
from kafkasafe._core.journal.recovery import Recovery
from kafkasafe._core.journal.refusals import Refusals
from kafkasafe._core.journal.rejecting import Rejecter
from kafkasafe._core.journal.replay import Replay
from kafkasafe._core.journal.sealing import Sealer
from kafkasafe._core.journal.sequences import IdSource
from kafkasafe._core.journal.snapshots import Snapshots
from kafkasafe._core.journal.spool_index import SpoolIndex
from kafkasafe._core.journal.states import Batch
from kafkasafe._core.journal.suspicions import Suspicions
from kafkasafe._core.journal.topics import Topics
from kafkasafe._core.journal.turns import Turns
from kafkasafe._core.journal.verdicts import Verdicts
from kafkasafe._core.journal.views import Views
from kafkasafe._core.loss import Cause, Loss
from kafkasafe._core.order import Address

__all__ = ["Journal"]


class Journal:
    """Decides; see the package. What an argument means is in the docstring of the object that gets it.

    Args:
        durable_first: Send only what is on disk (`spool="always"`). False: `spill()` says what has to go there.
        window: Batches sent without a durable commit mark, per partition.
        state_age_s: How long after a batch's own timestamp a broker surely remembers the producer.
        request_timeout_s: After this a request without an answer is dead.
        blocked_timeout_s: How long a destination may be missing, forbidden or invalid, timestamps be too far ahead, or
            the broker fail on one batch, before what waits for it is rejected; None: for ever. Counted within this
            incarnation, without another answer in between.
        missing_grace_s: How long a topic may be unknown to the cluster before a notice says so: it may be new.
        heal: Acknowledged batches that the cluster lost are sent again, as far as the spool still has them.
        heal_recreated: Also into a topic that was deleted and created again.
        aside_batches: How many batches are put aside at a time, at most.
        gather_bytes: Small batches that wait become one of this size at most; 0: never.
        newest_reading: See `units.Units`.
    """

    def __init__(
        self,
        *,
        durable_first: bool = True,
        window: int = WINDOW,
        state_age_s: float = 6 * 3600.0,
        request_timeout_s: float = 30.0,
        blocked_timeout_s: float | None = 7 * 86400.0,
        missing_grace_s: float = 60.0,
        heal: bool = True,
        heal_recreated: bool = False,
        aside_batches: int = 256,
        gather_bytes: int = 0,
        newest_reading: Callable[[], int] = lambda: 0,
    ) -> None:
        handles = itertools.count(1)
        self._out = out = Outbox()
        self._index = index = SpoolIndex()
        self._home = home = Home()
        self._ids = ids = IdSource()
        self._replay = replay = Replay()
        self._revivals = revivals = Revivals()
        self._clock = clock = BrokerClock(state_age_s)
        self._precedence = precedence = Precedence()
        self._quiescence = quiescence = Quiescence()
        self.missing = missing = Missing()
        self._destinations = destinations = Destinations()
        self._snapshots = snapshots = Snapshots(destinations, home, precedence, ids, revivals)
        front = Turns(destinations, precedence).is_in_front
        self.units = units = u.Units(front, newest_reading=newest_reading)
        self._packer = packer = Packer(destinations, out, index, replay, handles)
        self._suspicions = suspicions = Suspicions(destinations, index, packer, missing)
        self._refusals = refusals = Refusals(
            destinations,
            out,
            index,
            packer,
            missing,
            blocked_timeout_s=blocked_timeout_s,
            missing_grace_s=missing_grace_s,
        )
        self._topics = topics = Topics(
            destinations, out, packer, suspicions, refusals, revivals, units, ids, home, missing
        )
        self._losses = losses = Losses(
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
            heal=heal,
            heal_recreated=heal_recreated,
        )
        self._durability = durability = Durability(
            destinations, out, index, packer, quiescence, revivals, units
        )
        self._forward = forward = CopyForward(destinations, out, index, packer, snapshots, revivals)
        self._identities = identities = Identities(
            destinations, out, packer, ids, home, durable_first=durable_first, window=window
        )
        self._sealer = sealer = Sealer(
            destinations, out, packer, ids, units, handles, durable_first=durable_first
        )
        self._divider = Divider(destinations, out, packer, sealer, identities, revivals, units)
        self._gatherer = gatherer = Gatherer(
            destinations, out, packer, sealer, revivals, clock, precedence, gather_bytes=gather_bytes
        )
        self._rejecter = rejecter = Rejecter(
            destinations,
            out,
            index,
            packer,
            refusals,
            identities,
            sealer,
            units,
            missing,
            aside_batches=aside_batches,
        )
        self._verdicts = verdicts = Verdicts(
            destinations, out, packer, suspicions, durability, replay, request_timeout_s=request_timeout_s
        )
        self._answers = Answers(
            destinations,
            out,
            packer,
            suspicions,
            refusals,
            durability,
            rejecter,
            clock,
            units,
            request_timeout_s=request_timeout_s,
        )
        self._unit_batches = unit_batches = UnitBatches(destinations, out, suspicions, refusals, units)
        self._incarnations = Incarnations(
            destinations, out, index, packer, precedence, quiescence, request_timeout_s=request_timeout_s
        )
        self.views = Views(destinations, index, units, precedence, revivals, ids, replay)
        self._recovery = Recovery(
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
            window=window,
            request_timeout_s=request_timeout_s,
        )
        self._machine = Machine(
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
            window=window,
        )

    # -- what is to be done now ----------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether `ready` would give nothing, until something happens."""
        if self._losses.waits_for_units or not (self._ids.is_granted and self._out.is_empty):
            return False
        return self.units.at_rest and not self._quiescence.is_announced

    def ready(self, now: float, now_ms: int) -> Ready:
        """Everything that must be done now; each thing is given once.

        Args:
            now: Seconds.
            now_ms: Wall clock, ms since the epoch.
        """
        self._losses.look_again()
        if self._out.touched:
            self.units.look()
            self._machine.turn(now, now_ms)
        self._unit_batches.advance()
        ready = self._out.take(wants_producer_id=not self._ids.is_granted)
        if self._quiescence.is_announced:
            self._quiescence.gate(ready)
        return ready

    def broker_clock(self, broker_ms: int, now_ms: int) -> bool:
        """A broker's own timestamp, in ms. Whether our clock is so far behind that each batch goes alone."""
        return self._clock.show(broker_ms, now_ms)

    def clock_at_least(self, at_least_ms: int) -> None:
        """Records of other clients say that it is as late as this, in ms since the epoch. They may be wrong."""
        self._clock.show_at_least(at_least_ms)

    # -- new batches, and destinations ---------------------------------------------------------------------------------

    def destination(self, topic: str, partition: int) -> int:
        """The number of a destination, declared if it is new."""
        return self._topics.destination(topic, partition)

    def learn_topic(self, name: str, topic_id: bytes, partition_count: int) -> bool:
        """Remember a topic; batches that wait for its partitions are divided. True when it is news."""
        return self._topics.learn_topic(name, topic_id, partition_count)

    def bind(self, cluster_id: str, *, assumed: str | None) -> bool:
        """A cluster answers. What the lane knows of another one is forgotten, if nothing waits for that one."""
        return self._topics.bind(cluster_id, assumed=assumed)

    def forget(self, topic: str) -> bool:
        """The topic is gone for good and nothing waits for it: its offsets mean nothing now. True when it is news."""
        return self._topics.forget(topic)

    def granted(self, producer_id: int, producer_epoch: int) -> None:
        """A producer id of this life's own."""
        self._identities.granted(producer_id, producer_epoch)

    def seal(
        self,
        destination: int,
        *,
        count: int,
        size_bytes: int,
        max_timestamp: int,
        given: tuple[tuple[int, int, int], ...] | None = None,
        unit: u.Unit | None = None,
    ) -> Batch:
        """A new batch, behind all earlier ones of its destination."""
        return self._sealer.seal(
            destination,
            count=count,
            size_bytes=size_bytes,
            max_timestamp=max_timestamp,
            given=given,
            unit=unit,
        )

    def close_unit(self, unit: u.Unit) -> None:
        """All batches of a new unit are sealed: it is written as one group, and delivered as one."""
        self._sealer.close_unit(unit)

    def spill(self, batches: Iterable[Batch]) -> None:
        """Put batches on disk that are not (`durable_first=False`), and with each all that are before it."""
        self._sealer.spill(batches)

    def replaced(self, batch: Batch, children: Sequence[tuple[int, int, int, int, bool]]) -> list[Batch]:
        """A batch was divided (see `Divide`): its children take its place, all or none."""
        return self._divider.replaced(batch, children)

    def gathered(self, batches: Sequence[Batch], size_bytes: int) -> Batch:
        """Batches that waited (see `Ready.gathers`) become one, with their records, sequences and place."""
        return self._gatherer.gathered(batches, size_bytes)

    def keep_apart(self, destination: int) -> None:
        """Batches of this destination go as they are."""
        self._destinations.partitions[destination].keep_apart()

    # -- what is durable -----------------------------------------------------------------------------------------------

    def persisted(self, persist: Persist, positions: Sequence[int], end_position: int) -> None:
        """The group is durable."""
        self._durability.persisted(persist, positions, end_position)

    def released(self, before_position: int) -> None:
        """The spool deleted everything before this position: it cannot be sent again."""
        self._losses.released(before_position)

    def to_move(self, before_position: int, most_bytes: int) -> list[Batch]:
        """Unfinished batches that hold the front of the spool, to be copied: one at least, unless one cannot be now."""
        return self._forward.to_move(before_position, most_bytes)

    def to_rescue(self, first_position: int, end_position: int) -> list[Batch] | None:
        """Unfinished batches in a part of the spool that was lost, as far as they can be copied; None: ask again."""
        return self._forward.to_rescue(first_position, end_position)

    def move_marks(self, batches: Sequence[Batch]) -> list[m.Mark]:
        """What stands in front of their copies, in one atomic group."""
        return self._forward.move_marks(batches)

    def moved(self, batches: Sequence[Batch], positions: Sequence[int], end_position: int) -> None:
        """The copies are durable: they are the batches from now on."""
        self._forward.moved(batches, positions, end_position)

    def packable(self, destination: int) -> Iterator[Batch]:
        """Batches that may be packed next, in order; the first ones may be given to `pack`."""
        return self._packer.packable(destination)

    def pack(self, destination: int, shells: Sequence[tuple[int, float]]) -> None:
        """Keep of the first ones of `packable` what is needed to send them some day, and nothing else."""
        self._packer.pack(destination, shells)

    def delivered_before(self, position: int) -> list[Delivered]:
        """What was delivered and is in front of this position, where the spool still had it when it last released."""
        return self.views.delivered_before(position)

    # -- answers -------------------------------------------------------------------------------------------------------

    def acked(self, batch: Batch, base_offset: int, *, leader_epoch: int, now: float, now_ms: int) -> None:
        """The cluster acknowledged a batch."""
        self._answers.acked(batch, base_offset, leader_epoch=leader_epoch, now=now, now_ms=now_ms)

    def lost(
        self, batch: Batch, *, sent: bool, code: int, message: str, now: float, timed_out: bool = False
    ) -> None:
        """No answer came."""
        self._answers.lost(batch, sent=sent, code=code, message=message, now=now, timed_out=timed_out)

    def refused(
        self,
        batch: Batch,
        code: int,
        message: str,
        *,
        bad_records: tuple[tuple[int, str], ...] = (),
        log_start_offset: int = -1,
        now: float,
        now_ms: int,
    ) -> None:
        """The broker answered with an error."""
        self._answers.refused(
            batch,
            code,
            message,
            bad_records=bad_records,
            log_start_offset=log_start_offset,
            now=now,
            now_ms=now_ms,
        )

    def damaged(self, batch: Batch, message: str) -> None:
        """It cannot be sent, or divided: its bytes are damaged on disk. Nothing of it goes to the cluster."""
        self._answers.damaged(batch, message)

    def retry(self, destination: int) -> None:
        """The pause that a Wait asked for is over."""
        self._answers.retry(destination)

    def baseline(self, destination: int, end_offset: int, topic_id: bytes) -> None:
        """The end offset of a partition before anything of ours is in it; the first send waits until it is durable."""
        self._answers.baseline(destination, end_offset, topic_id)

    def ask_failed(self, destination: int, reason: str, *, code: int, now: float) -> None:
        """The cluster did not answer a question; it is asked again after a pause."""
        self._answers.ask_failed(destination, reason, code=code, now=now)

    def confirmed(self, destination: int, view: ProducerView | None) -> None:
        """The answer to an Ask with `confirm`."""
        self._answers.confirmed(destination, view)

    def judged(
        self,
        destination: int,
        judgement: Judgement,
        *,
        stable: bool,
        shrunk_to: int = -1,
        read_from: int = 0,
        leader_epoch: int = -1,
        now: float,
    ) -> None:
        """The answer to an Ask with batches in doubt."""
        self._verdicts.judged(
            destination,
            judgement,
            stable=stable,
            shrunk_to=shrunk_to,
            read_from=read_from,
            leader_epoch=leader_epoch,
            now=now,
        )

    def decide(self, batch: Batch, *, resend: bool) -> None:
        """The user's decision about an undecidable batch: send it under a new id, or take it as delivered."""
        self._verdicts.decide(batch, resend=resend)

    def deny_unit(self, destination: int, code: int, reason: str, now: float) -> bool:
        """The cluster refuses a destination of a unit for a reason that may pass."""
        return self._refusals.deny_unit(destination, code, reason, now)

    def absent(self, destination: int, reason: str) -> None:
        """It is proven that a partition does not exist: what waits for it is rejected with its next answer."""
        self._refusals.absent(destination, reason)

    def present(self, destination: int) -> None:
        """It is there after all, or was made."""
        self._refusals.present(destination)

    def deny_unchosen(self, topic: str, code: int, reason: str, now: float) -> None:
        """New metadata says 3, 17 or 29 of a topic whose partitions were never known."""
        self._rejecter.deny_unchosen(topic, code, reason, now)

    def next_aside(self, destination: int) -> None:
        """Go on with what `set_aside` left: the next portion."""
        self._rejecter.next_aside(destination)

    def set_aside(self, aside: Aside, kept: int, reason: str = "") -> bool:
        """As many of the batches as `kept`, the first ones, are durable in `rejected/`, and are so rejected."""
        return self._rejecter.set_aside(aside, kept, reason)

    def disown(self, mark: m.Resent) -> None:
        """A file of `rejected/` counts for nothing, and could not be deleted: its batches are, or wait, here."""
        self._rejecter.disown(mark)

    def retired(self, mark: m.Resent) -> None:
        """The file is gone, durably: its mark may go."""
        self._rejecter.retired(mark)

    def suspect(
        self,
        destination: int,
        cause: Cause,
        evidence: str,
        *,
        from_offset: int = -1,
        check: EpochCheck | None = None,
    ) -> None:
        """Something says that acknowledged batches may be gone; the log is asked before anything new is sent."""
        self._suspicions.suspect(destination, cause, evidence, from_offset=from_offset, check=check)

    def checked(self, check: EpochCheck) -> None:
        """The log of the leader before did not end before what that one acknowledged."""
        self._suspicions.checked(check)

    def check_failed(self, check: EpochCheck, *, code: int) -> None:
        """The log of the leader before could not be asked about; it is asked again."""
        self._suspicions.check_failed(check, code=code)

    def recreated(self, destination: int, evidence: str) -> None:
        """The topic was deleted and created again: what was acknowledged is gone with the old one."""
        self._suspicions.recreated(destination, evidence)

    def surveyed(
        self,
        destination: int,
        loss: Loss,
        end_offset: int,
        *,
        epoch_end_offset: int = -1,
        topic_id: bytes = m.NO_TOPIC_ID,
        same_topic: bool = True,
        leader_epoch: int = -1,
    ) -> None:
        """The answer to a SurveyAsk."""
        self._losses.surveyed(
            destination,
            loss,
            end_offset,
            epoch_end_offset=epoch_end_offset,
            topic_id=topic_id,
            same_topic=same_topic,
            leader_epoch=leader_epoch,
        )

    def survey_failed(self, destination: int, reason: str, *, code: int = 0) -> None:
        """The log could not be read; it is tried again after a pause."""
        self._losses.survey_failed(destination, reason, code=code)

    # -- other lanes and incarnations ----------------------------------------------------------------------------------

    def begin_after(self, position: int, debts: Sequence[m.Debt]) -> None:
        """Batches that are written from this position on come after these debts."""
        self._incarnations.begin_after(position, debts)

    def hold_back(self, held: Mapping[Address | None, int]) -> None:
        """Send nothing of these addresses that was written at these positions or later: see `order.holds`."""
        self._incarnations.hold_back(held)

    def halt(self, *, halted: bool) -> None:
        """Send nothing at all: another producer takes the lane over as soon as nothing is in flight."""
        self._incarnations.halt(halted=halted)

    def slept(self, seconds: float, now: float) -> None:
        """The machine slept; `now` has that in it."""
        self._incarnations.slept(seconds, now)

    def quiet(self, now: float, clock: Clock) -> m.Quiet | None:
        """For the last group of an owner that sends nothing any more: when all its requests are dead."""
        return self._incarnations.quiet(now, clock, unfinished=self.views.unfinished)

    @property
    def afters(self) -> Sequence[m.After]:
        """The debts that come before batches of this lane, as far as these are not known to be delivered."""
        return self._precedence.afters

    def paid(self, debt: m.Debt) -> None:
        """All batches of this debt are delivered."""
        self._precedence.paid(debt)

    def snapshot(self) -> list[m.Mark]:
        """What the first group of a new segment must repeat, so that segments before it can go."""
        return self._snapshots.all()

    def tell_newest(self, before_position: int) -> list[m.Mark]:
        """Marks to be durable before what is in front of this position goes: which batch was acknowledged last."""
        return self._snapshots.newest(before_position)

    # -- the log that is read back -------------------------------------------------------------------------------------

    def recover_batch(
        self,
        position: int,
        destination: int,
        *,
        count: int,
        size_bytes: int,
        max_timestamp: int,
        identity: BatchId | None,
    ) -> None:
        """A data batch found in the log, in log order."""
        self._recovery.recover_batch(
            position,
            destination,
            count=count,
            size_bytes=size_bytes,
            max_timestamp=max_timestamp,
            identity=identity,
        )

    def recover_marks(self, position: int, recovered: Sequence[m.Mark]) -> None:
        """The marks of one group found in the log, in log order."""
        self._recovery.recover_marks(position, recovered)

    def recover_lost(self, position: int, destination: int) -> None:
        """Damage in the log: a data batch, or (destination 0) a whole group with its marks."""
        self._recovery.recover_lost(position, destination)

    def recover_torn(self, destination: int) -> None:
        """A batch that a crash tore, in front of intact ones of its group. It was never promised."""
        self._recovery.recover_torn(destination)

    def recovered_log(self) -> None:
        """The log ends here: nothing follows that would say so of its last group."""
        self._recovery.recovered_log()

    def pack_recovered(self, numbers: Iterator[int]) -> None:
        """Between two groups of the log: long backlogs are packed as far as they are read."""
        self._recovery.pack_recovered(numbers)

    def recovered(self, now: float, clock: Clock | None = None) -> None:
        """The log is read: every batch that has an id may have been sent by an earlier life, and is asked about."""
        self._recovery.recovered(now, clock)
