"""The engine takes messages, lets the journal decide, and carries out the decisions: sends requests, writes to the
spool.

The engine has no thread of its own. The engine's owner (`Pump`) first calls `open` and `listen`, and then starts a
thread. On the new thread, the owner calls `begin` first and `shut` at the end. Between these calls, the owner works in
rounds: in each round, it calls `step` for each new message, and then `turn` once. Other threads post messages with
`EngineContext.post`.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kafkasafe import journal as j
from kafkasafe.delivery.engine.absences import Absences
from kafkasafe.delivery.engine.binding import Binding
from kafkasafe.delivery.engine.context import DeletedTopics, EngineContext
from kafkasafe.delivery.engine.disk import SPILL_EVERY_S, DiskWriter
from kafkasafe.delivery.engine.endings import Endings
from kafkasafe.delivery.engine.gathering import Gathering
from kafkasafe.delivery.engine.intake import Intake
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.lane_keeper import LaneKeeper
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.left_at_end import LeftAtEnd
from kafkasafe.delivery.engine.losses import LossWatch
from kafkasafe.delivery.engine.messages import (
    AdoptAsked,
    Answered,
    AsideDue,
    Chore,
    ChoreDue,
    Decided,
    EpochCheckDue,
    FoundDamaged,
    InquiryDue,
    LaneRead,
    LanesRead,
    LinkAnswered,
    LookAsked,
    LookedAround,
    Message,
    MetadataChanged,
    OtherClusterAnswered,
    PinnedClusterReached,
    Preceded,
    Produced,
    ProducerIdAnswered,
    ProducerIdDue,
    RetryDue,
    SpillAsked,
    Submitted,
    TakeOver,
    UnitAnswered,
    UnitDue,
    WriteDue,
)
from kafkasafe.delivery.engine.order import LaneOrder
from kafkasafe.delivery.engine.packing import Packing
from kafkasafe.delivery.engine.parcels import Choose
from kafkasafe.delivery.engine.places import PlaceKeeper
from kafkasafe.delivery.engine.predecessor import Predecessor
from kafkasafe.delivery.engine.questions import Inquiries
from kafkasafe.delivery.engine.rejects import Rejects
from kafkasafe.delivery.engine.room import RoomKeeper
from kafkasafe.delivery.engine.sender import Sender
from kafkasafe.delivery.engine.sequence_errors import SequenceErrors
from kafkasafe.delivery.engine.surroundings import Surroundings
from kafkasafe.delivery.engine.topics import TOPIC_POLL_S, TopicKeeper
from kafkasafe.delivery.engine.transactor import Transactor
from kafkasafe.delivery.engine.unit_endings import UnitEndings
from kafkasafe.errors import DeliveryTimeoutError, SpoolError
from kafkasafe.limits.patience import Patience
from kafkasafe.spool.lanes import LaneLock

_ABORT_IDLE_S: Final = 5.0
"""How long, in seconds, `close` waits for progress if only transactions have to be aborted."""
_LOOK_AGAIN_S: Final = 0.1
"""Time between two checks of a displaced lane while a caller waits until the lane is back in its place."""


class PlaceLooks:
    """Answers callers who ask whether the producer's own lane is in its place.

    Attributes:
        looked: Number of the latest answered question. A check that finds the lane in its place answers all questions
            that were asked before the check. Any thread may read this number.
    """

    def __init__(self, context: EngineContext, ledger: Ledger, disk: DiskWriter) -> None:
        self._context = context
        self._ledger = ledger
        self._disk = disk
        self._asked = 0
        self.looked = 0

    def ask(self, number: int) -> None:
        """Note a caller's question. Later questions have larger numbers."""
        self._asked = max(self._asked, number)

    def answer(self) -> None:
        """Check once for all callers that asked."""
        if self._asked <= self.looked:
            return
        if self._disk.look_at_place(self._context.own):
            self.looked = self._asked
            if self._ledger.waiters:
                self._ledger.waiters.notify_all()
        else:
            self._context.timer(_LOOK_AGAIN_S, ChoreDue(Chore.LOOK_AGAIN))


class Engine:
    """See the module.

    Args:
        context: The state that all parts of the engine share.
        choose: Chooses the partitions of records that were accepted before the topic was known: (topic, partitions,
            keys, values) → partition of each record.
        on_topic: Called with a topic and its partition count, once a partition is chosen for every accepted record of
            the topic.
        newest_reading: Returns the number of the newest reading (a consumer's run through a partition) in this process.
    """

    def __init__(
        self,
        context: EngineContext,
        *,
        choose: Choose,
        on_topic: Callable[[str, int], None],
        newest_reading: Callable[[], int],
    ) -> None:
        self._context = context
        self._config = context.config
        self.ledger = ledger = Ledger(context)
        self.places = PlaceKeeper(context, ledger)
        self.disk = disk = DiskWriter(context, ledger, self.places)
        self._rejects = Rejects(context, ledger, disk)
        self._room = RoomKeeper(context, ledger, disk, self.places)
        self.intake = intake = Intake(context, ledger, disk, self._rejects, choose=choose)
        self._gathering = Gathering(context, ledger, disk, intake)
        sequence_errors, deleted = SequenceErrors(context.stats), DeletedTopics()
        self._losses = LossWatch(context, ledger, intake, sequence_errors, deleted)
        self._packing = Packing(context, ledger, disk)
        self._sender = Sender(context, ledger, disk, self._rejects, self._losses, sequence_errors)
        self._unit_endings = UnitEndings(context, ledger, self._rejects)
        self._transactor = Transactor(context, ledger, disk, self._rejects, self._unit_endings)
        self._inquiries = Inquiries(context, self._sender, sequence_errors)
        self._absences = Absences(context)
        self.endings = Endings(context, ledger, disk, self._losses)
        self._order = LaneOrder(context)
        self._lanes = LaneKeeper(
            context, ledger, disk, intake, self.endings, self._order, newest_reading=newest_reading
        )
        self.surroundings = Surroundings(context, ledger, disk, self._lanes)
        self._binding = Binding(context, ledger, disk, reading=self._lanes.reading)
        self.topics = TopicKeeper(
            context, ledger, self._losses, self._binding, deleted, drive=self.drive, on_topic=on_topic
        )
        self.looks = PlaceLooks(context, ledger, disk)
        self.left = LeftAtEnd()
        self.predecessor: Predecessor
        """What other producers on the same spool directory learn about this producer after the program dropped it."""

    def open(self, lock: LaneLock) -> None:
        """Open the producer's own lane.

        Raises:
            SpoolError: The lane cannot be opened.
        """
        own = self._lanes.open_lane(lock, own=True)
        self._context.open(own)
        self.predecessor = Predecessor(lock.number, own.spool.lane_id)
        self._lanes.expect(self._order.begin(own))
        self._losses.publish_doubted(own)
        # Pass a generator, because a list would keep the batch objects in memory after the journal has packed them.
        self._packing.pack(own, (batch for _, _, batch in own.journal.views.batches()))
        self.disk.publish_used()

    def listen(self) -> None:
        """Register for news about the cluster's metadata and connections. Call this method before the cluster client
        starts.
        """
        context = self._context
        context.cluster.pin_cluster(
            on_other_cluster=lambda cluster_id: context.post(OtherClusterAnswered(cluster_id)),
            on_pinned_cluster=lambda: context.post(PinnedClusterReached()),
        )
        context.cluster.create_only(self.topics.may_create)
        context.cluster.on_metadata(lambda refreshed: context.post(MetadataChanged(refreshed)))

    def begin(self) -> None:
        """Set the first timers. Call it before the first turn."""
        self.surroundings.begin()
        config, timer = self._context.config, self._context.timer
        timer(0.0, ChoreDue(Chore.ADOPT))
        timer(TOPIC_POLL_S, ChoreDue(Chore.POLL_TOPICS))
        timer(config.data_loss_check_s, ChoreDue(Chore.CHECK_ACKED))
        if config.delivery_timeout_s is not None:
            timer(SPILL_EVERY_S, ChoreDue(Chore.EXPIRE))

    def step(self, message: Message) -> None:
        """Take a message. The next `turn` carries out the resulting decisions."""
        match message:
            case Submitted(parcels):
                self.intake.take(parcels)
            case Produced(sent, reply):
                self._sender.produced(sent, reply)
            case LinkAnswered():
                self._sender.link_answered(message)
            case Answered(inquiry, _, answer):
                inquiry.resume(answer)
            case InquiryDue(inquiry):
                inquiry.go_on()
            case UnitAnswered(lane, action, step, answer):
                # Ignore answers about a lane that was handed back: the lane's new owner may already have an open
                # transaction.
                if lane in self._context.lanes:
                    self._transactor.answered(lane, action, step, answer)
            case UnitDue():
                self._transactor.pauses.retry(message)
            case TakeOver(transactional_id):
                self._context.own.journal.units.take_over(transactional_id)
            case RetryDue():
                self._sender.retry(message)
            case AsideDue(lane, destination):
                lane.journal.next_aside(destination)
            case MetadataChanged(refreshed):
                self.topics.on_metadata(refreshed)
                self._absences.look()
                self.endings.look_again()
                self._sender.let_out()
                self._transactor.pauses.look_again()
            case ProducerIdAnswered(lane, granted):
                self._sender.granted(lane, granted)
            case ProducerIdDue(lane):
                if lane in self._context.lanes:
                    self._sender.want_producer_id(lane)
            case WriteDue(lane):
                self.disk.retry_write(lane)
            case EpochCheckDue(lane, check):
                self._losses.check_epoch(lane, check)
            case FoundDamaged(lane, batch, reason):
                lane.journal.damaged(batch, reason)
            case Decided(batches, resend):
                self._decide(batches, resend=resend)
            case SpillAsked():
                self.disk.spill(0.0)
            case LookAsked(number):
                self.looks.ask(number)
            case OtherClusterAnswered(cluster_id):
                self._binding.on_other_cluster(cluster_id)
            case PinnedClusterReached():
                self._binding.on_pinned_cluster()
            case LookedAround(found):
                self.surroundings.looked_around(found)
            case LanesRead(results):
                self._order.read(results)
            case Preceded(predecessor):
                self._follow(predecessor)
            case LaneRead(path):
                failure = self._lanes.read(path)
                if failure is not None:
                    self.surroundings.refused(path.parent, failure)
                if not self._lanes.reads(path.parent):
                    self.surroundings.read(path.parent)
            case AdoptAsked():
                self._lanes.adopt_now()
            case ChoreDue(chore):
                self._do(chore)

    def _do(self, chore: Chore) -> None:
        match chore:
            case Chore.ADOPT:
                self._lanes.adopt()
            case Chore.ADOPTED:
                self._lanes.look_at_adopted()
            case Chore.ORDER:
                self._order.look_again()
            case Chore.LOOK_AROUND:
                self.surroundings.look_around()
            case Chore.POLL_TOPICS:
                self.topics.poll()
                self._absences.look()
            case Chore.CHECK_ACKED:
                self._losses.check_acked()
            case Chore.SPILL:
                self.disk.spill_late()
            case Chore.EXPIRE:
                self.endings.expire()
            case Chore.LOOK_AGAIN:
                pass

    def turn(self) -> None:
        """Send waiting batches, if replies have made room in a connection. Then process due timers and all lanes."""
        self._sender.use_room()
        timers = self._context.timers
        now = self._context.clock.monotonic()
        while (message := timers.take(now)) is not None:
            self.step(message)
        for lane in list(self._context.lanes):
            self.drive(lane)
        self.looks.answer()
        if self.predecessor.is_dropped and not self.ledger.undurable:
            own = self._context.own
            end_position = own.spool.next_position
            self.predecessor.stored(end_position, owes=bool(own.journal.views.owes(end_position)))

    def drop(self) -> None:
        """Note that the program dropped this producer. A dropped producer accepts no records; later producers wait for
        its accepted records.
        """
        self.predecessor.drop()

    def _follow(self, predecessor: Predecessor) -> None:
        self._order.follow(self._context.own, predecessor)
        if predecessor.over and predecessor.owes:
            # Make `flush` and `close` wait for the dropped producer's lane, just as for lanes that had no owner when
            # this producer began.
            self._lanes.expect((predecessor.lane,))
            if self.ledger.waiters:
                self._lanes.adopt_now()

    def idle(self) -> bool:
        """Whether `close` has nothing left to wait for: see `Ledger.idle`. `close` also waits until the cluster has
        aborted the transactions of atomic batches that were given up, because consumers with `read_committed` stop at
        an open transaction. Any thread may call this method.
        """
        return self.ledger.idle() and not any(
            lane.journal.units.aborts for lane in tuple(self._context.lanes)
        )

    def patience_ends(self, patience: Patience, began: float) -> float:
        """The deadline, in monotonic seconds, of a caller that began to wait at `began`. Any thread may call this
        method.

        While the engine reads spools, deliveries count as paused: reading gigabytes can take a long time, during which
        nothing is delivered. If only transactions have to be aborted, no record can be lost, so a longer patience
        (`spool="never"`) does not apply.
        """
        if self.ledger.idle():
            patience = Patience(min(patience.idle_s, _ABORT_IDLE_S), patience.pause_s)
        reads = self._lanes.reads() or self.surroundings.looking
        return self._context.progress.patience_ends(patience, began, paused=reads)

    @property
    def due(self) -> float:
        """Monotonic time, in seconds, of the next turn if no message arrives."""
        return self._context.timers.next_at

    @staticmethod
    def _decide(decided: Sequence[tuple[Lane, j.Batch]], *, resend: bool) -> None:
        for lane, batch in decided:
            if batch.state is j.BatchState.UNDECIDABLE:
                lane.journal.decide(batch, resend=resend)

    def shut(self, *, orderly: bool = True) -> None:
        """Close network and lanes. Callers of batches without an outcome get an error; batches on disk stay for the
        next owner.

        Args:
            orderly: False if an error interrupted a step of the engine. The interrupted step may have changed only the
                spool or only the journal, so `shut` writes and deletes no files.
        """
        lanes = self._context.lanes
        self.left = left = self._left_at_end(look=orderly)
        # Close the network first. Closing a lane writes the time of the lane's last request to its log, so no request
        # may be sent afterwards.
        self._context.cluster.close(2.0)
        for lane in lanes:
            with contextlib.suppress(Exception):
                if orderly:
                    self._lanes.close_lane(lane)
                else:
                    self._lanes.abandon_lane(lane)
        self._lanes.end()
        own = self._context.own
        self.predecessor.ended(own.spool.next_position, owes=bool(own.journal.views.unfinished))
        self.ledger.fail(
            DeliveryTimeoutError(
                "The producer was closed before the cluster acknowledged this record. If the record was durable, it is"
                " in the spool, and the next producer on this spool directory delivers it: do not send it again"
            ),
            final=False,
            elsewhere=left.elsewhere,
        )

    def _left_at_end(self, *, look: bool) -> LeftAtEnd:
        elsewhere, records = None, {}
        if not self._context.config.in_memory:
            if look:
                with contextlib.suppress(SpoolError):
                    self.disk.look_at_places()
            elsewhere = self.places.at_end(self._context.own)
            records = self._left_on_disk()
        doubted = [
            lane.journal.views.address(number)
            for lane in self._context.lanes
            for number in lane.journal.views.doubted
        ]
        return LeftAtEnd(records, elsewhere, doubted)

    def _left_on_disk(self) -> dict[Path, int]:
        left: collections.Counter[Path] = collections.Counter()
        for lane in self._context.lanes:
            left[lane.lock.path.parent] += lane.journal.views.spooled_records
        # For lanes that are not open yet, use the number of records that the engine counted when it found their
        # directory.
        for directory, records in self.surroundings.unread.items():
            left[directory] = max(left[directory], records)
        return {directory: records for directory, records in left.items() if records}

    def drive(self, lane: Lane) -> None:
        """Carry out the journal's decisions until the journal has no further decisions for now."""
        self.intake.settle()
        while (
            not self._context.close_state.abandon
            and not lane.held
            and self._context.clock.monotonic() >= lane.divisions.unreadable_until
        ):
            if lane.journal.at_rest and not lane.divisions.pending:
                self._losses.publish_doubted(lane)
                break
            ready = lane.journal.ready(self._context.now(), self._context.clock.wall_ms())
            if ready.unpacked:
                self._packing.unpack(lane, ready.unpacked)
            for notice in ready.notices:
                self.endings.notice(lane, notice)
            # Publish which partitions may have lost records. Do this after the notices above, which report losses, and
            # before callers see that a batch is done.
            self._losses.publish_doubted(lane)
            # Write spilled batches first: this turn may resolve or divide some of them, which drops their bytes.
            spilled = (
                bool(ready.persist.batches or ready.persist.units)
                and lane.own
                and self._config.spool != "always"
            )
            if spilled:
                written = ready.persist.batches.copy()
                self.disk.persist(lane, ready.persist)
                self._packing.pack(lane, written)
            divided = False
            if ready.divides or lane.divisions.pending:
                divided = self.intake.divide_all(lane, ready.divides)
            if ready.gathers:
                divided |= self._gathering.gather_all(lane, ready.gathers.values())
            for aside in ready.asides:
                self._rejects.put_aside(lane, aside)
            self._ask_cluster(lane, ready)
            for wait in ready.waits:
                self._sender.wait(lane, wait)
            if ready.resolved:
                self.endings.resolve(lane, ready.resolved)
            if ready.ended:
                self._unit_endings.resolve(lane, ready.ended)
            if (
                ready.wants_producer_id
                and self._context.own_cluster.answered
                and not lane.producer_id.is_open
                and (lane.own or lane.journal.views.unfinished)
            ):
                self._sender.want_producer_id(lane)
            if ready.persist and not spilled:
                written = ready.persist.batches.copy()
                self.disk.persist(lane, ready.persist)
                self._packing.pack(lane, written)
            elif not (spilled or divided or ready.resolved or ready.sends or ready.asides or ready.units):
                break
            if ready.persist.atomic:
                # Segments of divided batches can be deleted, which makes space for the next division.
                self.disk.release(lane)
        self._room.keep(lane)
        self.disk.release(lane)

    def _ask_cluster(self, lane: Lane, ready: j.Ready) -> None:
        """Send what the journal has decided to send, once the brokers have turned out to be those of the producer's
        own cluster.

        1. A batch is in doubt. The next producer's address leads to another cluster, which has a topic of this name.
        2. If the producer asked at once, the other cluster would answer that it has no such batch.
        """
        own_cluster = self._context.own_cluster
        if own_cluster.stranger is not None or lane not in self._context.lanes:
            return
        if not own_cluster.answered:
            if ready.sends or ready.asks or ready.surveys or ready.checks or ready.units:
                own_cluster.hold(lane, lambda: self._ask_cluster(lane, ready))
                about: list[j.OutcomeAsk | j.SurveyAsk | j.EpochCheck] = [
                    *ready.asks,
                    *ready.surveys,
                    *ready.checks,
                ]
                self._context.refresh_topics(
                    {lane.journal.views.address(each.destination)[0] for each in about}
                )
            return
        if ready.sends:
            self._sender.send(lane, ready.sends)
        for ask in ready.asks:
            self._inquiries.ask(lane, ask)
        for survey in ready.surveys:
            self._inquiries.survey(lane, survey)
        for check in ready.checks:
            self._losses.check_epoch(lane, check)
        if ready.units:
            self._transactor.carry_out(lane, ready.units)
