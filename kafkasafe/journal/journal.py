"""The facade of the journal: passes each event to the object that handles it, and collects the resulting actions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.history.identity import Judgement, ProducerView
from kafkasafe.history.loss import Cause, Loss
from kafkasafe.journal.clock import Clock
from kafkasafe.journal.groups import Persist
from kafkasafe.journal.messages import Aside, EpochCheck, Ready
from kafkasafe.journal.notices import Delivered
from kafkasafe.journal.order import Address
from kafkasafe.journal.parts import JournalParts
from kafkasafe.journal.settings import Settings
from kafkasafe.journal.states import Batch

__all__ = ["Journal"]


class Journal:
    """See `kafkasafe.journal`. Each method passes its arguments to an object, whose docstring explains them."""

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
        """Note a lower bound of the time, in ms since the epoch, from other clients' records. It may be wrong."""
        self._parts.state.clock.show_at_least(at_least_ms)

    # -- new batches, and destinations ---------------------------------------------------------------------------------

    def destination(self, topic: str, partition: int) -> int:
        """The number of a destination, declared if it is new."""
        return self._parts.cluster.topics.destination(topic, partition)

    def learn_topic(self, name: str, topic_id: bytes, partition_count: int) -> bool:
        """Remember a topic, and divide batches that wait for its partitions. Returns whether anything was new."""
        return self._parts.cluster.topics.learn_topic(name, topic_id, partition_count)

    def bind(self, cluster_id: str, *, assumed: str | None) -> bool:
        """Note the cluster that answers. Forgets a former cluster's offsets and ids, unless batches wait for that
        cluster.
        """
        return self._parts.cluster.topics.bind(cluster_id, assumed=assumed)

    def forget(self, topic: str) -> bool:
        """Forget the offsets of a deleted topic, unless batches wait for it. Returns whether any were forgotten."""
        return self._parts.cluster.topics.forget(topic)

    def granted(self, producer_id: int, producer_epoch: int) -> None:
        """Note the producer id that the cluster granted to this incarnation."""
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
        """Add a new batch, after all earlier ones of its destination."""
        return self._parts.queues.sealer.seal(
            destination,
            count=count,
            size_bytes=size_bytes,
            max_timestamp=max_timestamp,
            given=given,
            unit=unit,
        )

    def close_unit(self, unit: u.Unit) -> None:
        """Close a new unit, all of whose batches are sealed: it is written as one group, and delivered as a whole."""
        self._parts.queues.sealer.close_unit(unit)

    def spill(self, batches: Iterable[Batch]) -> None:
        """Write batches to disk that are only in memory (`durable_first=False`), with all batches before them."""
        self._parts.queues.sealer.spill(batches)

    def replaced(self, batch: Batch, children: Sequence[tuple[int, int, int, int, bool]]) -> list[Batch]:
        """Note that a batch was divided (see `Divide`): its children take its place, all or none."""
        return self._parts.queues.divider.replaced(batch, children)

    def gathered(self, batches: Sequence[Batch], size_bytes: int) -> Batch:
        """Merge waiting batches (see `Ready.gathers`) into one, with their records, sequences and place."""
        return self._parts.queues.gatherer.gathered(batches, size_bytes)

    def keep_apart(self, destination: int) -> None:
        """Stop merging batches of this destination."""
        self._parts.state.destinations.partitions[destination].keep_apart()

    # -- durable -------------------------------------------------------------------------------------------------------

    def persisted(self, persist: Persist, positions: Sequence[int], end_position: int) -> None:
        """Note that the group is durable."""
        self._parts.spool.durability.persisted(persist, positions, end_position)

    def released(self, before_position: int) -> None:
        """Note that the spool deleted everything before this position: the journal cannot send it again."""
        self._parts.cluster.losses.released(before_position)

    def to_move(self, before_position: int, most_bytes: int) -> list[Batch]:
        """Unfinished batches at the front of the spool to copy now, up to the first batch that cannot be copied now."""
        return self._parts.spool.forward.to_move(before_position, most_bytes)

    def to_rescue(self, first_position: int, end_position: int) -> list[Batch] | None:
        """Unfinished batches in a lost part of the spool that can be copied; None: call again later."""
        return self._parts.spool.forward.to_rescue(first_position, end_position)

    def move_marks(self, batches: Sequence[Batch]) -> list[m.Mark]:
        """The marks to write before the copies of these batches, in one atomic group."""
        return self._parts.spool.forward.move_marks(batches)

    def moved(self, batches: Sequence[Batch], positions: Sequence[int], end_position: int) -> None:
        """Note that the copies are durable: they replace the originals."""
        self._parts.spool.forward.moved(batches, positions, end_position)

    def packable(self, destination: int) -> Iterator[Batch]:
        """Batches that may be packed next, in order; the first ones may be given to `pack`."""
        return self._parts.queues.packer.packable(destination)

    def pack(self, destination: int, shells: Sequence[tuple[int, float]]) -> None:
        """Reduce the first batches of `packable` to the data that is needed to send them later."""
        self._parts.queues.packer.pack(destination, shells)

    def delivered_before(self, position: int) -> list[Delivered]:
        """Delivered records before this position that were still in the spool after its last release."""
        return self.views.delivered_before(position)

    # -- answers -------------------------------------------------------------------------------------------------------

    def acked(self, batch: Batch, base_offset: int, *, leader_epoch: int, now: float, now_ms: int) -> None:
        """Note that the cluster acknowledged a batch."""
        self._parts.outcomes.answers.acked(
            batch, base_offset, leader_epoch=leader_epoch, now=now, now_ms=now_ms
        )

    def lost(
        self, batch: Batch, *, sent: bool, code: int, message: str, now: float, timed_out: bool = False
    ) -> None:
        """Note that a request got no answer."""
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
        """Note that the broker answered with an error."""
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
        """Note that a batch's bytes are damaged on disk: it can be neither sent nor divided."""
        self._parts.outcomes.answers.damaged(batch, message)

    def retry(self, destination: int) -> None:
        """Note that the pause of a `Wait` is over."""
        self._parts.outcomes.answers.retry(destination)

    def baseline(self, destination: int, end_offset: int, topic_id: bytes) -> None:
        """Note a partition's end offset before our first batch; the first send waits until it is durable."""
        self._parts.outcomes.answers.baseline(destination, end_offset, topic_id)

    def ask_failed(self, destination: int, reason: str, *, code: int, now: float) -> None:
        """Note that the cluster did not answer a question; the journal asks again after a pause."""
        self._parts.outcomes.answers.ask_failed(destination, reason, code=code, now=now)

    def confirmed(self, destination: int, view: ProducerView | None) -> None:
        """Take the answer to an `Ask` with `confirm`."""
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
        """Take the answer to an `Ask` with batches in doubt."""
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
        """Take the user's decision about an undecidable batch: send it under a new id, or take it as delivered."""
        self._parts.outcomes.verdicts.decide(batch, resend=resend)

    def deny_unit(self, destination: int, code: int, reason: str, now: float) -> bool:
        """Note that the cluster refuses a destination of a unit for a reason that may be temporary."""
        return self._parts.cluster.refusals.deny_unit(destination, code, reason, now)

    def absent(self, destination: int, reason: str) -> None:
        """Note a proof that a partition does not exist: the next answer rejects the batches that wait for it."""
        self._parts.cluster.refusals.absent(destination, reason)

    def present(self, destination: int) -> None:
        """Note that the partition exists after all, or was created."""
        self._parts.cluster.refusals.present(destination)

    def deny_unchosen(self, topic: str, code: int, reason: str, now: float) -> None:
        """Note that new metadata has error 3, 17 or 29 for a topic whose partitions were never known."""
        self._parts.outcomes.rejecter.deny_unchosen(topic, code, reason, now)

    def next_aside(self, destination: int) -> None:
        """Continue with the next portion after `set_aside`."""
        self._parts.outcomes.rejecter.next_aside(destination)

    def set_aside(self, aside: Aside, kept: int, reason: str = "") -> bool:
        """Reject the first `kept` batches, which are durable in `rejected/` now."""
        return self._parts.outcomes.rejecter.set_aside(aside, kept, reason)

    def disown(self, mark: m.Resent) -> None:
        """Void a file in `rejected/` that could not be deleted: this lane's log has its batches, or their records."""
        self._parts.outcomes.rejecter.disown(mark)

    def retired(self, mark: m.Resent) -> None:
        """Note that the file is durably deleted: its mark may be dropped."""
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
        """Raise a suspicion that the log has lost acknowledged batches; a survey runs before any new batch is sent."""
        self._parts.cluster.suspicions.suspect(
            destination, cause, evidence, from_offset=from_offset, check=check
        )

    def checked(self, check: EpochCheck) -> None:
        """Note a passed check: the former leader's epoch does not end before its last acknowledgement."""
        self._parts.cluster.suspicions.checked(check)

    def check_failed(self, check: EpochCheck, *, code: int) -> None:
        """Note that a check had no answer. The journal repeats the check."""
        self._parts.cluster.suspicions.check_failed(check, code=code)

    def recreated(self, destination: int, evidence: str) -> None:
        """Raise a suspicion: the topic was recreated, so the acknowledged batches were deleted with the old topic."""
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
        """Take the answer to a `SurveyAsk`."""
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
        """Note that the log could not be read; the journal tries again after a pause."""
        self._parts.cluster.losses.survey_failed(destination, reason, code=code)

    # -- other lanes and incarnations ----------------------------------------------------------------------------------

    def begin_after(self, position: int, debts: Sequence[m.Debt]) -> None:
        """Hold back batches that are written from this position on, until these debts (batches of other lanes) are
        delivered.
        """
        self._parts.earlier.incarnations.begin_after(position, debts)

    def hold_back(self, held: Mapping[Address | None, int]) -> None:
        """For each of these addresses, hold back batches that were written at its position or later:
        see `order.holds`.
        """
        self._parts.earlier.incarnations.hold_back(held)

    def halt(self, *, halted: bool) -> None:
        """Stop sending, or resume: another producer takes over a halted lane as soon as nothing is in flight."""
        self._parts.earlier.incarnations.halt(halted=halted)

    def slept(self, seconds: float, now: float) -> None:
        """Note for how long the machine slept; `now` includes that time."""
        self._parts.earlier.incarnations.slept(seconds, now)

    def quiet(self, now: float, clock: Clock) -> m.Quiet | None:
        """The mark with which a producer that has stopped sending announces when all its requests are dead."""
        return self._parts.earlier.incarnations.quiet(now, clock, unfinished=self.views.unfinished)

    def paid(self, debt: m.Debt) -> None:
        """Note that all batches of this debt are delivered."""
        self._parts.state.precedence.paid(debt)

    def snapshot(self) -> list[m.Mark]:
        """The marks that the first group of a new segment must repeat, so that earlier segments can be deleted."""
        return self._parts.spool.snapshots.all()

    def tell_newest(self, before_position: int) -> list[m.Mark]:
        """The marks of the newest acknowledged batches, which must be durable before the spool deletes up to this
        position.
        """
        return self._parts.spool.snapshots.newest(before_position)
