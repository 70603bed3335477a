"""The facade of the journal: passes each event to the object that handles it, and collects the resulting actions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.history.identity import Judgement, ProducerView
from kafkasafe.history.loss import Cause, Loss
from kafkasafe.journal.acked import EpochCheck
from kafkasafe.journal.batch import Batch
from kafkasafe.journal.clock import Clock
from kafkasafe.journal.notices import Delivered
from kafkasafe.journal.order import Address
from kafkasafe.journal.outbox import Aside, Persist, Ready
from kafkasafe.journal.parts import JournalParts, Settings

__all__ = ["Journal"]


class Journal:
    """See `kafkasafe.journal`.

    Each method says in one line when it is called, or what it answers. It passes its arguments to an object, whose
    method of the same name tells the rule, and explains the arguments.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._parts = parts = JournalParts(Settings() if settings is None else settings)
        self.units = parts.state.units
        self.missing = parts.state.missing
        self.views = parts.views
        self.recovery = parts.earlier.recovery

    # -- actions that are due ------------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether `ready` would be empty until the next event."""
        return self._parts.rounds.at_rest

    def ready(self, now: float, now_ms: int) -> Ready:
        """Take all actions that are due now; each action is returned once."""
        return self._parts.rounds.take(now, now_ms)

    def broker_clock(self, broker_ms: int, now_ms: int) -> bool:
        """Note a broker's timestamp, in ms. Returns whether our clock is so far behind that the journal sends each
        batch alone.
        """
        return self._parts.state.clock.show(broker_ms, now_ms)

    def clock_at_least(self, at_least_ms: int) -> None:
        """Note a lower bound for the current time, ms since the epoch, from other clients' records. It may be wrong."""
        self._parts.state.clock.show_at_least(at_least_ms)

    # -- new batches, and destinations ---------------------------------------------------------------------------------

    def destination(self, topic: str, partition: int) -> int:
        """A topic and partition as a number."""
        return self._parts.cluster.topics.destination(topic, partition)

    def learn_topic(self, name: str, topic_id: bytes, partition_count: int) -> bool:
        """Metadata: the topic has this id and this many partitions."""
        return self._parts.cluster.topics.learn_topic(name, topic_id, partition_count)

    def bind(self, cluster_id: str, *, assumed: str | None) -> bool:
        """Metadata: this cluster answers."""
        return self._parts.cluster.topics.bind(cluster_id, assumed=assumed)

    def forget(self, topic: str) -> bool:
        """The topic was deleted some time ago."""
        return self._parts.cluster.topics.forget(topic)

    def granted(self, producer_id: int, producer_epoch: int) -> None:
        """The cluster granted a producer id."""
        self._parts.queues.identities.granted(producer_id, producer_epoch)

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
        return self._parts.queues.sealer.seal(
            destination,
            count=count,
            size_bytes=size_bytes,
            max_timestamp=max_timestamp,
            given=given,
            unit=unit,
        )

    def close_unit(self, unit: u.Unit) -> None:
        """All batches of a unit are sealed."""
        self._parts.queues.sealer.close_unit(unit)

    def spill(self, batches: Iterable[Batch]) -> None:
        """The engine wants batches on disk that are only in memory."""
        self._parts.queues.sealer.spill(batches)

    def replaced(self, batch: Batch, children: Sequence[tuple[int, int, int, int, bool]]) -> list[Batch]:
        """The engine divided a batch, as `Ready.divides` asked."""
        return self._parts.queues.divider.replaced(batch, children)

    def gathered(self, batches: Sequence[Batch], size_bytes: int) -> Batch:
        """The engine merged batches, as `Ready.gathers` asked."""
        return self._parts.queues.gatherer.gathered(batches, size_bytes)

    def keep_apart(self, destination: int) -> None:
        """The waiting batches of a destination cannot be merged."""
        self._parts.queues.gatherer.keep_apart(destination)

    # -- durable -------------------------------------------------------------------------------------------------------

    def persisted(self, persist: Persist, positions: Sequence[int], end_position: int) -> None:
        """A group of `Ready.persist` is durable."""
        self._parts.spool.durability.persisted(persist, positions, end_position)

    def released(self, before_position: int) -> None:
        """The spool deleted its oldest segments."""
        self._parts.cluster.losses.released(before_position)

    def to_move(self, before_position: int, most_bytes: int) -> list[Batch]:
        """Room is short: which batches should be copied forward?"""
        return self._parts.spool.forward.to_move(before_position, most_bytes)

    def to_rescue(self, first_position: int, end_position: int) -> list[Batch] | None:
        """A segment is missing: which of its batches can be copied?"""
        return self._parts.spool.forward.to_rescue(first_position, end_position)

    def move_marks(self, batches: Sequence[Batch]) -> list[m.Mark]:
        """The marks of a group of copies."""
        return self._parts.spool.forward.move_marks(batches)

    def moved(self, batches: Sequence[Batch], positions: Sequence[int], end_position: int) -> None:
        """A group of copies is durable."""
        self._parts.spool.forward.moved(batches, positions, end_position)

    def packable(self, destination: int) -> Iterator[Batch]:
        """A backlog is long: which of its batches may be packed?"""
        return self._parts.queues.packer.packable(destination)

    def pack(self, destination: int, shells: Sequence[tuple[int, float]]) -> None:
        """The engine wants the first of these batches packed."""
        self._parts.queues.packer.pack(destination, shells)

    def delivered_before(self, position: int) -> list[Delivered]:
        """The spool deleted everything before this position: what of it was delivered?"""
        return self.views.delivered_before(position)

    # -- answers -------------------------------------------------------------------------------------------------------

    def acked(self, batch: Batch, base_offset: int, *, leader_epoch: int, now: float, now_ms: int) -> None:
        """A request was acknowledged."""
        self._parts.outcomes.answers.acked(
            batch, base_offset, leader_epoch=leader_epoch, now=now, now_ms=now_ms
        )

    def lost(
        self, batch: Batch, *, sent: bool, code: int, message: str, now: float, timed_out: bool = False
    ) -> None:
        """A request had no answer."""
        self._parts.outcomes.answers.lost(
            batch, sent=sent, code=code, message=message, now=now, timed_out=timed_out
        )

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
        self._parts.outcomes.answers.refused(
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
        self._parts.outcomes.answers.damaged(batch, message)

    def retry(self, destination: int) -> None:
        """The pause of a `Wait` is over."""
        self._parts.outcomes.answers.retry(destination)

    def baseline(self, destination: int, end_offset: int, topic_id: bytes) -> None:
        """The answer to an `Ask` without batches."""
        self._parts.outcomes.answers.baseline(destination, end_offset, topic_id)

    def ask_failed(self, destination: int, reason: str, *, code: int, now: float) -> None:
        """An `Ask` had no answer."""
        self._parts.outcomes.answers.ask_failed(destination, reason, code=code, now=now)

    def confirmed(self, destination: int, view: ProducerView | None) -> None:
        """The answer to an `Ask` with `confirm`."""
        self._parts.outcomes.answers.confirmed(destination, view)

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
        """The answer to an `Ask` with batches in doubt."""
        self._parts.outcomes.verdicts.judged(
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
        self._parts.outcomes.verdicts.decide(batch, resend=resend)

    def deny_unit(self, destination: int, code: int, reason: str, now: float) -> bool:
        """The cluster refused a destination of a unit."""
        return self._parts.cluster.refusals.deny_unit(destination, code, reason, now)

    def absent(self, destination: int, reason: str) -> None:
        """`Absences` proved that a partition does not exist."""
        self._parts.cluster.refusals.absent(destination, reason)

    def present(self, destination: int) -> None:
        """The metadata have a partition that was called missing."""
        self._parts.cluster.refusals.present(destination)

    def deny_unchosen(self, topic: str, code: int, reason: str, now: float) -> None:
        """Metadata: the topic is missing or refused, and its partitions were never known."""
        self._parts.outcomes.rejecter.deny_unchosen(topic, code, reason, now)

    def next_aside(self, destination: int) -> None:
        """The engine has time for the next portion of rejected batches."""
        self._parts.outcomes.rejecter.next_aside(destination)

    def set_aside(self, aside: Aside, kept: int, reason: str = "") -> bool:
        """The engine copied batches of an `Aside` to `rejected/`."""
        return self._parts.outcomes.rejecter.set_aside(aside, kept, reason)

    def disown(self, mark: m.Resent) -> None:
        """The engine could not delete a file that was resent from `rejected/`."""
        self._parts.outcomes.rejecter.disown(mark)

    def retired(self, mark: m.Resent) -> None:
        """The engine deleted a file that was resent from `rejected/`."""
        self._parts.outcomes.rejecter.retired(mark)

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
        self._parts.cluster.suspicions.suspect(
            destination, cause, evidence, from_offset=from_offset, check=check
        )

    def checked(self, check: EpochCheck) -> None:
        """An `EpochCheck` has passed."""
        self._parts.cluster.suspicions.checked(check)

    def check_failed(self, check: EpochCheck, *, code: int) -> None:
        """An `EpochCheck` had no answer."""
        self._parts.cluster.suspicions.check_failed(check, code=code)

    def recreated(self, destination: int, evidence: str) -> None:
        """Metadata: the topic has another id."""
        self._parts.cluster.suspicions.recreated(destination, evidence)

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
        self._parts.cluster.losses.surveyed(
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
        self._parts.cluster.losses.survey_failed(destination, reason, code=code)

    # -- other lanes and incarnations ----------------------------------------------------------------------------------

    def begin_after(self, position: int, debts: Sequence[m.Debt]) -> None:
        """Other lanes have records that must be delivered before those of this incarnation."""
        self._parts.earlier.incarnations.begin_after(position, debts)

    def hold_back(self, held: Mapping[Address | None, int]) -> None:
        """Other lanes still owe records of these destinations."""
        self._parts.earlier.incarnations.hold_back(held)

    def halt(self, *, halted: bool) -> None:
        """Another producer wants to take over this lane, or no longer does."""
        self._parts.earlier.incarnations.halt(halted=halted)

    def slept(self, seconds: float, now: float) -> None:
        """The machine slept."""
        self._parts.earlier.incarnations.slept(seconds, now)

    def quiet(self, now: float, clock: Clock) -> m.Quiet | None:
        """The producer ends: the mark for the next incarnation."""
        return self._parts.earlier.incarnations.quiet(now, clock, unfinished=self.views.unfinished)

    def paid(self, debt: m.Debt) -> None:
        """Another lane has delivered what it owed."""
        self._parts.state.precedence.paid(debt)

    def snapshot(self) -> list[m.Mark]:
        """The marks that the first group of a new segment must repeat, so that earlier segments can be deleted."""
        return self._parts.spool.snapshots.all()

    def tell_newest(self, before_position: int) -> list[m.Mark]:
        """The marks of the newest acknowledged batches, which must be durable before the spool deletes up to this
        position.
        """
        return self._parts.spool.snapshots.newest(before_position)
