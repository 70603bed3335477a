"""The facade of the journal: makes its parts, passes each event to one of them, and collects the actions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.history.identity import Judgement, ProducerView
from kafkasafe.history.loss import Cause, Loss
from kafkasafe.journal.acked import EpochCheck
from kafkasafe.journal.answers import Answers
from kafkasafe.journal.batch import Batch
from kafkasafe.journal.dividing import Divider
from kafkasafe.journal.endings import Durability
from kafkasafe.journal.forward import CopyForward
from kafkasafe.journal.gathering import Gatherer
from kafkasafe.journal.lives import Incarnations
from kafkasafe.journal.losses import Losses, Suspicions
from kafkasafe.journal.machine import Machine
from kafkasafe.journal.members import UnitBatches
from kafkasafe.journal.notices import Delivered
from kafkasafe.journal.order import Address
from kafkasafe.journal.outbox import Aside, Persist, Ready
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.quiescence import Moment
from kafkasafe.journal.recovery import Recovery
from kafkasafe.journal.refusals import Refusals
from kafkasafe.journal.rejecting import Rejecter
from kafkasafe.journal.sealing import Identities, Sealer
from kafkasafe.journal.snapshots import Snapshots
from kafkasafe.journal.state import JournalState, Settings
from kafkasafe.journal.topics import Topics
from kafkasafe.journal.verdicts import Verdicts
from kafkasafe.journal.views import Views


class Journal:
    """See `kafkasafe.journal`.

    Each docstring says when the engine calls the method, or which question the method answers. Nearly every method
    passes its arguments on to one of the journal's objects, whose method of the same name states the rule and explains
    the arguments.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._state = state = JournalState(Settings() if settings is None else settings)
        self._out = state.out
        self.units = state.units
        self.missing = state.missing
        self.views = Views(state)
        # Each constructor takes the objects that the new object uses, so the order matters.
        self._packer = packer = Packer(state)
        self._snapshots = Snapshots(state)
        self._identities = Identities(state, packer)
        self._sealer = Sealer(state, packer)
        self._refusals = Refusals(state, packer)
        self._suspicions = Suspicions(state, packer)
        self._losses = Losses(state, packer, self._snapshots)
        self._topics = Topics(state, packer, self._refusals)
        self._durability = Durability(state, packer)
        self._forward = CopyForward(state, packer, self._snapshots)
        self._divider = Divider(state, packer, self._sealer, self._identities)
        self._gatherer = Gatherer(state, packer, self._sealer)
        self._rejecter = Rejecter(state, packer, self._refusals, self._identities, self._sealer)
        self._verdicts = Verdicts(state, packer, self._suspicions, self._refusals, self._durability)
        self._answers = Answers(
            state, packer, self._suspicions, self._refusals, self._durability, self._rejecter
        )
        self._unit_batches = UnitBatches(state, self._suspicions, self._refusals)
        self._incarnations = Incarnations(state, packer)
        self._machine = Machine(
            state,
            packer,
            self._identities,
            self._sealer,
            self._gatherer,
            self._rejecter,
            self._refusals,
            self._topics,
            self._losses,
        )
        self.recovery = Recovery(
            state,
            packer,
            self._suspicions,
            self._topics,
            self._losses,
            self._forward,
            self._verdicts,
            self._unit_batches,
        )

    # -- actions that are due ------------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether `ready` has no actions before the next event."""
        return (
            self._out.is_empty
            and self._state.home.producer_id >= 0
            and self.units.out.is_empty
            and not self._state.quiescence.is_announced
        )

    def ready(self, now: float, now_ms: int) -> Ready:
        """Return each action that is due now, once.

        The objects of the journal decide in a fixed order: partitions first, then units (atomic batches).

        Args:
            now: The current time in seconds.
            now_ms: Wall clock, ms since the epoch.
        """
        out, state = self._out, self._state
        out.touch_postponed()
        if out.touched:
            if self.units.lines.by_id:
                self.units.out.change()  # a batch in front of a unit's batch may have left the queue
            self._machine.turn(now, now_ms)
        if out.ready.persist.units or not self.units.out.is_empty:
            self._unit_batches.advance()
        ready = out.take(wants_producer_id=state.home.producer_id < 0)
        if state.quiescence.is_announced:
            state.quiescence.gate(ready)
        return ready

    def broker_clock(self, broker_ms: int, now_ms: int) -> bool:
        """Note a broker's timestamp, in ms. Returns whether our clock is so slow that the journal sends each batch
        alone.
        """
        return self._state.clock.show(broker_ms, now_ms)

    def clock_at_least(self, at_least_ms: int) -> None:
        """Note a lower bound for the current time (ms since the epoch). The bound comes from the clocks of other
        clients, which may be wrong.
        """
        self._state.clock.show_at_least(at_least_ms)

    # -- new batches, and destinations ---------------------------------------------------------------------------------

    def destination(self, topic: str, partition: int) -> int:
        """The number of a topic and partition."""
        return self._topics.destination(topic, partition)

    def learn_topic(self, name: str, topic_id: bytes, partition_count: int) -> bool:
        """Metadata: the topic has this id and this many partitions."""
        return self._topics.learn_topic(name, topic_id, partition_count)

    def bind(self, cluster_id: str, *, assumed: str | None) -> bool:
        """Metadata: this cluster answers."""
        return self._topics.bind(cluster_id, assumed=assumed)

    def forget(self, topic: str) -> bool:
        """The topic was deleted some time ago."""
        return self._topics.forget(topic)

    def granted(self, producer_id: int, producer_epoch: int) -> None:
        """The cluster granted a producer id."""
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
        """A parcel of a caller becomes a batch."""
        return self._sealer.seal(
            destination,
            count=count,
            size_bytes=size_bytes,
            max_timestamp=max_timestamp,
            given=given,
            unit=unit,
        )

    def close_unit(self, unit: u.Unit) -> None:
        """All batches of a unit are sealed."""
        self._sealer.close_unit(unit)

    def spill(self, batches: Iterable[Batch]) -> None:
        """The engine asks for these batches to be written to disk, if they are only in memory."""
        self._sealer.spill(batches)

    def replaced(self, batch: Batch, children: Sequence[tuple[int, int, int, int, bool]]) -> list[Batch]:
        """The engine divided a batch, as `Ready.divides` asked."""
        return self._divider.replaced(batch, children)

    def gathered(self, batches: Sequence[Batch], size_bytes: int) -> Batch:
        """The engine merged batches, as `Ready.gathers` asked."""
        return self._gatherer.gathered(batches, size_bytes)

    def keep_apart(self, destination: int) -> None:
        """The waiting batches of a destination cannot be merged."""
        self._state.destinations.partitions[destination].keep_apart()

    # -- durable -------------------------------------------------------------------------------------------------------

    def persisted(self, persist: Persist, positions: Sequence[int], end_position: int) -> None:
        """A group of `Ready.persist` is durable."""
        self._durability.persisted(persist, positions, end_position)

    def write_failed(self, batches: Iterable[Batch]) -> None:
        """The engine could not write these batches of `Ready.persist`, and will try again."""
        self._durability.write_failed(batches)
        self._snapshots.doubt()

    def released(self, before_position: int) -> None:
        """The spool deleted its oldest segments."""
        self._losses.released(before_position)

    def to_move(self, before_position: int, most_bytes: int) -> list[Batch]:
        """The spool is short of room. Returns the batches that the engine should copy forward."""
        return self._forward.to_move(before_position, most_bytes)

    def to_rescue(self, first_position: int, end_position: int) -> list[Batch] | None:
        """A segment of the spool is missing. Returns the segment's batches. The engine should write again the batches
        that are still in memory.
        """
        return self._forward.to_rescue(first_position, end_position)

    def move_marks(self, batches: Sequence[Batch]) -> list[m.Mark]:
        """The marks of a group of copies."""
        return self._forward.move_marks(batches)

    def moved(self, batches: Sequence[Batch], positions: Sequence[int], end_position: int) -> None:
        """A group of copies is durable."""
        self._forward.moved(batches, positions, end_position)

    def not_moved(self) -> None:
        """The engine could not write a spool group of copies."""
        self._snapshots.doubt()

    def packable(self, destination: int) -> Iterator[Batch]:
        """Returns the batches of a partition with a long backlog that may be packed into compact rows."""
        return self._packer.packable(destination)

    def pack(self, destination: int, shells: Sequence[tuple[int, float]]) -> None:
        """The engine asks the journal to pack the first batches of `packable`."""
        self._packer.pack(destination, shells)

    def delivered_before(self, position: int) -> list[Delivered]:
        """The spool has deleted everything before this position. Returns the delivered records that were deleted."""
        return self.views.delivered_before(position)

    # -- answers -------------------------------------------------------------------------------------------------------

    def acked(self, batch: Batch, base_offset: int, *, leader_epoch: int, now: float, now_ms: int) -> None:
        """A request was acknowledged."""
        self._answers.acked(batch, base_offset, leader_epoch=leader_epoch, now=now, now_ms=now_ms)

    def lost(
        self, batch: Batch, *, sent: bool, code: int, message: str, now: float, timed_out: bool = False
    ) -> None:
        """A request had no answer."""
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
        """A request was answered with an error code."""
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
        """The bytes of a batch cannot be read back."""
        self._answers.damaged(batch, message)

    def retry(self, destination: int) -> None:
        """The pause of a `Wait` is over."""
        self._answers.retry(destination)

    def baseline(self, destination: int, end_offset: int, topic_id: bytes) -> None:
        """The answer to an `OutcomeAsk` without batches."""
        self._answers.baseline(destination, end_offset, topic_id)

    def ask_failed(self, destination: int, reason: str, *, code: int, now: float) -> None:
        """An `OutcomeAsk` had no answer."""
        self._answers.ask_failed(destination, reason, code=code, now=now)

    def confirmed(self, destination: int, view: ProducerView | None) -> None:
        """The answer to an `OutcomeAsk` with `confirm`."""
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
        """The answer to an `OutcomeAsk` with batches in doubt."""
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
        """The user decided about an undecidable batch."""
        self._verdicts.decide(batch, resend=resend)

    def deny_unit(self, destination: int, code: int, reason: str, now: float, *, handle: int = -1) -> bool:
        """The cluster refused a destination of a unit (atomic batch), or only the unit's batch `handle`."""
        return self._refusals.deny_unit(destination, code, reason, now, handle=handle)

    def early_ms(self, batch: Batch, messages: Iterable[str], now_ms: int) -> int:
        """How long a batch with error 32 (invalid timestamp) has to wait (see `Answers.early_ms`)."""
        return self._answers.early_ms(batch, messages, now_ms)

    def absent(self, destination: int, reason: str) -> None:
        """`Absences` proved that a partition does not exist."""
        self._refusals.absent(destination, reason)

    def present(self, destination: int) -> None:
        """Metadata: a partition that earlier metadata reported as missing exists."""
        self.missing.exists(destination)

    def deny_unchosen(self, topic: str, code: int, reason: str, now: float) -> None:
        """Metadata: a topic whose partitions were never known is missing or refused."""
        self._rejecter.deny_unchosen(topic, code, reason, now)

    def next_aside(self, destination: int) -> None:
        """The engine has time for the next portion of rejected batches."""
        self._rejecter.next_aside(destination)

    def set_aside(self, aside: Aside, kept: int, reason: str = "") -> bool:
        """The engine copied the rejected batches of `aside` to `rejected/`."""
        return self._rejecter.set_aside(aside, kept, reason)

    def disown(self, mark: m.Resent) -> None:
        """The engine could not delete a file of `rejected/`, although its records were sent again."""
        self._rejecter.disown(mark)

    def retired(self, mark: m.Resent) -> None:
        """The engine deleted a file of `rejected/`, because its records were sent again."""
        self._state.index.retire(mark)

    def suspect(
        self,
        destination: int,
        cause: Cause,
        evidence: str,
        *,
        from_offset: int = -1,
        check: EpochCheck | None = None,
    ) -> None:
        """Something suggests that the log has lost acknowledged batches."""
        self._suspicions.suspect(destination, cause, evidence, from_offset=from_offset, check=check)

    def checked(self, check: EpochCheck) -> None:
        """An `EpochCheck` has passed."""
        self._suspicions.checked(check)

    def check_failed(self, check: EpochCheck, *, code: int) -> None:
        """An `EpochCheck` had no answer."""
        self._suspicions.check_failed(check, code=code)

    def recreated(self, destination: int, evidence: str) -> None:
        """Metadata: the topic has another id."""
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
        """The answer to a `SurveyAsk`."""
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
        """A `SurveyAsk` had no answer."""
        self._losses.survey_failed(destination, reason, code=code)

    # -- other lanes and incarnations ----------------------------------------------------------------------------------

    def begin_after(self, position: int, debts: Sequence[m.Debt]) -> None:
        """Other lanes have records that must be delivered before the records of this run of the producer."""
        self._incarnations.begin_after(position, debts)

    def hold_back(self, held: Mapping[Address | None, int]) -> None:
        """Other lanes still hold undelivered records for these destinations."""
        self._incarnations.hold_back(held)

    def halt(self, *, halted: bool) -> None:
        """Stop or resume sending. The lane stops, for example, when another producer wants to take it over."""
        self._incarnations.halt(halted=halted)

    def slept(self, seconds: float, now: float) -> None:
        """The machine slept."""
        self._incarnations.slept(seconds, now)

    def quiet(self, now: float, clock: Moment) -> m.Quiet | None:
        """The producer ends. Returns the mark that says how long a broker may still append this lane's requests."""
        return self._incarnations.quiet(now, clock, unfinished=self.views.unfinished)

    def paid(self, debt: m.Debt) -> None:
        """Note that another lane has delivered batches for which this lane waits (a debt)."""
        self._state.precedence.paid(debt)

    def snapshot(self) -> list[m.Mark]:
        """The marks (log entries) that the first spool group of a new segment must repeat, so that earlier segments can
        be deleted.
        """
        return self._snapshots.all()

    def tell_newest(self, before_position: int) -> list[m.Mark]:
        """The marks of the newest acknowledged batches. These marks must be durable before the spool deletes anything
        before this position.
        """
        return self._snapshots.newest(before_position)
