"""The facade of the journal: it passes each event to the object that it concerns, and collects what is to be done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kafkasafe._core import marks as m
from kafkasafe._core import units as u
from kafkasafe._core.identity import BatchId, Judgement, ProducerView
from kafkasafe._core.journal.clock import Clock
from kafkasafe._core.journal.groups import Persist
from kafkasafe._core.journal.messages import Aside, EpochCheck, Ready
from kafkasafe._core.journal.notices import Delivered
from kafkasafe._core.journal.parts import Parts
from kafkasafe._core.journal.settings import Settings
from kafkasafe._core.journal.states import Batch
from kafkasafe._core.loss import Cause, Loss
from kafkasafe._core.order import Address

__all__ = ["Journal"]


class Journal:
    """Decides; see the package. What an argument means is in the docstring of the object that gets it."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._parts = parts = Parts(Settings() if settings is None else settings)
        self.units = parts.units
        self.missing = parts.missing
        self.views = parts.views

    # -- what is to be done now ----------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether `ready` would give nothing, until something happens."""
        parts = self._parts
        if parts.losses.waits_for_units or not (parts.ids.is_granted and parts.out.is_empty):
            return False
        return self.units.at_rest and not parts.quiescence.is_announced

    def ready(self, now: float, now_ms: int) -> Ready:
        """Everything that must be done now; each thing is given once.

        Args:
            now: Seconds.
            now_ms: Wall clock, ms since the epoch.
        """
        parts = self._parts
        parts.losses.look_again()
        if parts.out.touched:
            self.units.look()
            parts.machine.turn(now, now_ms)
        parts.unit_batches.advance()
        ready = parts.out.take(wants_producer_id=not parts.ids.is_granted)
        if parts.quiescence.is_announced:
            parts.quiescence.gate(ready)
        return ready

    def broker_clock(self, broker_ms: int, now_ms: int) -> bool:
        """A broker's own timestamp, in ms. Whether our clock is so far behind that each batch goes alone."""
        return self._parts.clock.show(broker_ms, now_ms)

    def clock_at_least(self, at_least_ms: int) -> None:
        """Records of other clients say that it is as late as this, in ms since the epoch. They may be wrong."""
        self._parts.clock.show_at_least(at_least_ms)

    # -- new batches, and destinations ---------------------------------------------------------------------------------

    def destination(self, topic: str, partition: int) -> int:
        """The number of a destination, declared if it is new."""
        return self._parts.topics.destination(topic, partition)

    def learn_topic(self, name: str, topic_id: bytes, partition_count: int) -> bool:
        """Remember a topic; batches that wait for its partitions are divided. True when it is news."""
        return self._parts.topics.learn_topic(name, topic_id, partition_count)

    def bind(self, cluster_id: str, *, assumed: str | None) -> bool:
        """A cluster answers. What the lane knows of another one is forgotten, if nothing waits for that one."""
        return self._parts.topics.bind(cluster_id, assumed=assumed)

    def forget(self, topic: str) -> bool:
        """The topic is gone for good and nothing waits for it: its offsets mean nothing now. True when it is news."""
        return self._parts.topics.forget(topic)

    def granted(self, producer_id: int, producer_epoch: int) -> None:
        """A producer id of this life's own."""
        self._parts.identities.granted(producer_id, producer_epoch)

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
        return self._parts.sealer.seal(
            destination,
            count=count,
            size_bytes=size_bytes,
            max_timestamp=max_timestamp,
            given=given,
            unit=unit,
        )

    def close_unit(self, unit: u.Unit) -> None:
        """All batches of a new unit are sealed: it is written as one group, and delivered as one."""
        self._parts.sealer.close_unit(unit)

    def spill(self, batches: Iterable[Batch]) -> None:
        """Put batches on disk that are not (`durable_first=False`), and with each all that are before it."""
        self._parts.sealer.spill(batches)

    def replaced(self, batch: Batch, children: Sequence[tuple[int, int, int, int, bool]]) -> list[Batch]:
        """A batch was divided (see `Divide`): its children take its place, all or none."""
        return self._parts.divider.replaced(batch, children)

    def gathered(self, batches: Sequence[Batch], size_bytes: int) -> Batch:
        """Batches that waited (see `Ready.gathers`) become one, with their records, sequences and place."""
        return self._parts.gatherer.gathered(batches, size_bytes)

    def keep_apart(self, destination: int) -> None:
        """Batches of this destination go as they are."""
        self._parts.destinations.partitions[destination].keep_apart()

    # -- what is durable -----------------------------------------------------------------------------------------------

    def persisted(self, persist: Persist, positions: Sequence[int], end_position: int) -> None:
        """The group is durable."""
        self._parts.durability.persisted(persist, positions, end_position)

    def released(self, before_position: int) -> None:
        """The spool deleted everything before this position: it cannot be sent again."""
        self._parts.losses.released(before_position)

    def to_move(self, before_position: int, most_bytes: int) -> list[Batch]:
        """Unfinished batches that hold the front of the spool, to be copied: one at least, unless one cannot be now."""
        return self._parts.forward.to_move(before_position, most_bytes)

    def to_rescue(self, first_position: int, end_position: int) -> list[Batch] | None:
        """Unfinished batches in a part of the spool that was lost, as far as they can be copied; None: ask again."""
        return self._parts.forward.to_rescue(first_position, end_position)

    def move_marks(self, batches: Sequence[Batch]) -> list[m.Mark]:
        """What stands in front of their copies, in one atomic group."""
        return self._parts.forward.move_marks(batches)

    def moved(self, batches: Sequence[Batch], positions: Sequence[int], end_position: int) -> None:
        """The copies are durable: they are the batches from now on."""
        self._parts.forward.moved(batches, positions, end_position)

    def packable(self, destination: int) -> Iterator[Batch]:
        """Batches that may be packed next, in order; the first ones may be given to `pack`."""
        return self._parts.packer.packable(destination)

    def pack(self, destination: int, shells: Sequence[tuple[int, float]]) -> None:
        """Keep of the first ones of `packable` what is needed to send them some day, and nothing else."""
        self._parts.packer.pack(destination, shells)

    def delivered_before(self, position: int) -> list[Delivered]:
        """What was delivered and is in front of this position, where the spool still had it when it last released."""
        return self.views.delivered_before(position)

    # -- answers -------------------------------------------------------------------------------------------------------

    def acked(self, batch: Batch, base_offset: int, *, leader_epoch: int, now: float, now_ms: int) -> None:
        """The cluster acknowledged a batch."""
        self._parts.answers.acked(batch, base_offset, leader_epoch=leader_epoch, now=now, now_ms=now_ms)

    def lost(
        self, batch: Batch, *, sent: bool, code: int, message: str, now: float, timed_out: bool = False
    ) -> None:
        """No answer came."""
        self._parts.answers.lost(batch, sent=sent, code=code, message=message, now=now, timed_out=timed_out)

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
        self._parts.answers.refused(
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
        self._parts.answers.damaged(batch, message)

    def retry(self, destination: int) -> None:
        """The pause that a Wait asked for is over."""
        self._parts.answers.retry(destination)

    def baseline(self, destination: int, end_offset: int, topic_id: bytes) -> None:
        """The end offset of a partition before anything of ours is in it; the first send waits until it is durable."""
        self._parts.answers.baseline(destination, end_offset, topic_id)

    def ask_failed(self, destination: int, reason: str, *, code: int, now: float) -> None:
        """The cluster did not answer a question; it is asked again after a pause."""
        self._parts.answers.ask_failed(destination, reason, code=code, now=now)

    def confirmed(self, destination: int, view: ProducerView | None) -> None:
        """The answer to an Ask with `confirm`."""
        self._parts.answers.confirmed(destination, view)

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
        self._parts.verdicts.judged(
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
        self._parts.verdicts.decide(batch, resend=resend)

    def deny_unit(self, destination: int, code: int, reason: str, now: float) -> bool:
        """The cluster refuses a destination of a unit for a reason that may pass."""
        return self._parts.refusals.deny_unit(destination, code, reason, now)

    def absent(self, destination: int, reason: str) -> None:
        """It is proven that a partition does not exist: what waits for it is rejected with its next answer."""
        self._parts.refusals.absent(destination, reason)

    def present(self, destination: int) -> None:
        """It is there after all, or was made."""
        self._parts.refusals.present(destination)

    def deny_unchosen(self, topic: str, code: int, reason: str, now: float) -> None:
        """New metadata says 3, 17 or 29 of a topic whose partitions were never known."""
        self._parts.rejecter.deny_unchosen(topic, code, reason, now)

    def next_aside(self, destination: int) -> None:
        """Go on with what `set_aside` left: the next portion."""
        self._parts.rejecter.next_aside(destination)

    def set_aside(self, aside: Aside, kept: int, reason: str = "") -> bool:
        """As many of the batches as `kept`, the first ones, are durable in `rejected/`, and are so rejected."""
        return self._parts.rejecter.set_aside(aside, kept, reason)

    def disown(self, mark: m.Resent) -> None:
        """A file of `rejected/` counts for nothing, and could not be deleted: its batches are, or wait, here."""
        self._parts.rejecter.disown(mark)

    def retired(self, mark: m.Resent) -> None:
        """The file is gone, durably: its mark may go."""
        self._parts.rejecter.retired(mark)

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
        self._parts.suspicions.suspect(destination, cause, evidence, from_offset=from_offset, check=check)

    def checked(self, check: EpochCheck) -> None:
        """The log of the leader before did not end before what that one acknowledged."""
        self._parts.suspicions.checked(check)

    def check_failed(self, check: EpochCheck, *, code: int) -> None:
        """The log of the leader before could not be asked about; it is asked again."""
        self._parts.suspicions.check_failed(check, code=code)

    def recreated(self, destination: int, evidence: str) -> None:
        """The topic was deleted and created again: what was acknowledged is gone with the old one."""
        self._parts.suspicions.recreated(destination, evidence)

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
        self._parts.losses.surveyed(
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
        self._parts.losses.survey_failed(destination, reason, code=code)

    # -- other lanes and incarnations ----------------------------------------------------------------------------------

    def begin_after(self, position: int, debts: Sequence[m.Debt]) -> None:
        """Batches that are written from this position on come after these debts."""
        self._parts.incarnations.begin_after(position, debts)

    def hold_back(self, held: Mapping[Address | None, int]) -> None:
        """Send nothing of these addresses that was written at these positions or later: see `order.holds`."""
        self._parts.incarnations.hold_back(held)

    def halt(self, *, halted: bool) -> None:
        """Send nothing at all: another producer takes the lane over as soon as nothing is in flight."""
        self._parts.incarnations.halt(halted=halted)

    def slept(self, seconds: float, now: float) -> None:
        """The machine slept; `now` has that in it."""
        self._parts.incarnations.slept(seconds, now)

    def quiet(self, now: float, clock: Clock) -> m.Quiet | None:
        """For the last group of an owner that sends nothing any more: when all its requests are dead."""
        return self._parts.incarnations.quiet(now, clock, unfinished=self.views.unfinished)

    @property
    def afters(self) -> Sequence[m.After]:
        """The debts that come before batches of this lane, as far as these are not known to be delivered."""
        return self._parts.precedence.afters

    def paid(self, debt: m.Debt) -> None:
        """All batches of this debt are delivered."""
        self._parts.precedence.paid(debt)

    def snapshot(self) -> list[m.Mark]:
        """What the first group of a new segment must repeat, so that segments before it can go."""
        return self._parts.snapshots.all()

    def tell_newest(self, before_position: int) -> list[m.Mark]:
        """Marks to be durable before what is in front of this position goes: which batch was acknowledged last."""
        return self._parts.snapshots.newest(before_position)

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
        self._parts.recovery.recover_batch(
            position,
            destination,
            count=count,
            size_bytes=size_bytes,
            max_timestamp=max_timestamp,
            identity=identity,
        )

    def recover_marks(self, position: int, recovered: Sequence[m.Mark]) -> None:
        """The marks of one group found in the log, in log order."""
        self._parts.recovery.recover_marks(position, recovered)

    def recover_lost(self, position: int, destination: int) -> None:
        """Damage in the log: a data batch, or (destination 0) a whole group with its marks."""
        self._parts.recovery.recover_lost(position, destination)

    def recover_torn(self, destination: int) -> None:
        """A batch that a crash tore, in front of intact ones of its group. It was never promised."""
        self._parts.recovery.recover_torn(destination)

    def recovered_log(self) -> None:
        """The log ends here: nothing follows that would say so of its last group."""
        self._parts.recovery.recovered_log()

    def pack_recovered(self, numbers: Iterator[int]) -> None:
        """Between two groups of the log: long backlogs are packed as far as they are read."""
        self._parts.recovery.pack_recovered(numbers)

    def recovered(self, now: float, clock: Clock | None = None) -> None:
        """The log is read: every batch that has an id may have been sent by an earlier life, and is asked about."""
        self._parts.recovery.recovered(now, clock)
