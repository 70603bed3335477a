"""Decides the next step of each partition that changed.

For a partition without requests in flight, an ordered list of rules decides. Each rule has a condition (a function
without effects) and an action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import Final, NamedTuple

from kafkasafe.journal.batch import Batch, BatchEvent, BatchState
from kafkasafe.journal.destinations import Partition, UnassignedTopic
from kafkasafe.journal.flow import Flow, FlowEvent
from kafkasafe.journal.gathering import Gatherer
from kafkasafe.journal.losses import Losses
from kafkasafe.journal.outbox import Divide, OutcomeAsk
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.refusals import Refusals
from kafkasafe.journal.rejecting import Rejecter
from kafkasafe.journal.sealing import Identities, Sealer
from kafkasafe.journal.state import JournalState
from kafkasafe.journal.topics import Topics
from kafkasafe.journal.window import InFlight, SendDecision


class Turn(NamedTuple):
    """A partition to which the rules apply, without requests in flight and without batches in doubt.

    Attributes:
        partition: The partition.
        head: The first batch that is not acknowledged; None if no such batch exists.
        now: The current time in seconds.
        now_ms: Wall clock, ms since the epoch.
    """

    partition: Partition
    head: Batch | None
    now: float
    now_ms: int


def is_suspected(turn: Turn) -> bool:
    """The log may have lost acknowledged batches."""
    return turn.partition.loss.suspicion is not None


def has_late_requests(turn: Turn) -> bool:
    """The batches need new ids, and a request with the old ids may still arrive at a broker."""
    return turn.now < turn.partition.doubt.dead_at and _ends_in_new_ids(turn)


def was_asked_early(turn: Turn) -> bool:
    """The batches need new ids, but the journal searched the log too early for one of them: a broker could still append
    a request with this batch.
    """
    return _ends_in_new_ids(turn) and any(
        batch.state is BatchState.PREPARED and batch.unanswered for batch in turn.partition.queue.near
    )


def was_judged(turn: Turn) -> bool:
    """No batch is in doubt any more, but `partition.doubt` still has answers about batches that were in doubt."""
    return turn.partition.doubt.fenced or turn.partition.doubt.sequence_refused


def has_unchecked_refusal(turn: Turn) -> bool:
    """The broker refused the first batch, and the journal has not compared the refusal with the broker's producer
    state.
    """
    return turn.head is not None and turn.head.fault.unconfirmed and turn.head.identity is not None


def has_refused_head(turn: Turn) -> bool:
    """The broker refused the first batch."""
    return turn.head is not None and turn.head.state is BatchState.REFUSED


def has_gap(turn: Turn) -> bool:
    """The broker refused a batch that is not the first one. (An earlier rule handles a refused first batch.)"""
    return any(batch.state is BatchState.REFUSED for batch in turn.partition.queue.near)


def has_old_ids(turn: Turn) -> bool:
    """The batches need new ids, and no broker can append a request under the old ids."""
    return turn.partition.ids.stale


def needs_pause(turn: Turn) -> bool:
    """A request failed, and no pause has followed yet."""
    return turn.partition.progress.flow is Flow.SETTLING


def is_decided(_turn: Turn) -> bool:
    """The journal knows for each batch whether the log has it. This is always true here: otherwise, an earlier rule has
    ended the turn.
    """
    return True


def _ends_in_new_ids(turn: Turn) -> bool:
    return turn.partition.ids.stale or has_refused_head(turn)


_SETTLING: Final = frozenset({Flow.SETTLING, Flow.DECIDING})
"""The flows in which the journal decides the next step as soon as no request is in flight."""


class _Rule(NamedTuple):
    """A rule: an action, and the condition under which the action applies to a partition.

    Attributes:
        holds: The condition.
        then: The action.
        ends: Whether the turn ends with this rule, so that no later rule applies.
    """

    holds: Callable[[Turn], bool]
    then: Callable[[Turn], None]
    ends: bool = True


class Machine:
    """Advances each partition that changed."""

    def __init__(
        self,
        state: JournalState,
        packer: Packer,
        identities: Identities,
        sealer: Sealer,
        gatherer: Gatherer,
        rejecter: Rejecter,
        refusals: Refusals,
        topics: Topics,
        losses: Losses,
    ) -> None:
        self._destinations = state.destinations
        self._all = state.destinations.all
        self._out = state.out
        self._packer = packer
        self._identities = identities
        self._sealer = sealer
        self._gatherer = gatherer
        self._rejecter = rejecter
        self._refusals = refusals
        self._topics = topics
        self._losses = losses
        self._clock = state.clock
        self._precedence = state.precedence
        self._window = state.settings.window

    def turn(self, now: float, now_ms: int) -> None:
        """Take every step that is possible now, for each partition that changed."""
        touched = self._out.touched
        while touched:
            number = next(iter(touched))
            del touched[number]
            destination = self._all[number]
            if isinstance(destination, Partition):
                self._advance(destination, now, now_ms)
            elif isinstance(destination, UnassignedTopic):
                self._divide(destination)

    def _divide(self, unassigned: UnassignedTopic) -> None:
        """Request the division of the next batches if the partitions of their topic are known."""
        if not unassigned.queue:
            self._refusals.clear_refusal(unassigned, accepted=False)
        topic = self._destinations.topics.get(unassigned.topic)
        if topic is None or topic.partition_count <= 0 or not unassigned.may_divide:
            return
        for batch in takewhile(self._sealer.rests, unassigned.divisible()):
            self._out.ready.divides.append(Divide(batch, refused=False))

    def _advance(self, partition: Partition, now: float, now_ms: int) -> None:
        if not partition.queue.near:
            self._refusals.clear_refusal(partition, accepted=False)
            partition.window.use_answer()
        progress = partition.progress
        if progress.flow is Flow.REJECTING:
            return
        if partition.loss.due and partition.loss.asked is None:
            self._out.ready.checks.append(partition.loss.next_check())
        self._prepare(partition)
        if progress.flow in _SETTLING:
            self._settle(partition, now, now_ms)
        if not partition.queue.near:
            return
        if progress.flow is Flow.NEW:
            progress.on(FlowEvent.BATCH_QUEUED)
            self._topics.note_topic(partition)
            self._out.ready.asks.append(
                OutcomeAsk(partition.number, (), -1, acked_before=False, read_log=False, fenced=False)
            )
        elif progress.flow is Flow.FLOWING:
            head = partition.queue.near[0]
            if head.fault.doomed:
                self._rejecter.reject_head(partition, head)
            else:
                self._flow(partition, now, now_ms)

    def _prepare(self, partition: Partition) -> None:
        """If a batch within the window has no id, give ids to the next batches that have none."""
        if any(batch.identity is None for batch in islice(partition.queue.near, self._window)):
            self._identities.prepare(partition)

    def _quiet_rules(self) -> Sequence[_Rule]:
        """The rules for a partition without requests in flight and without batches in doubt, in order. The turn ends
        with the first rule that applies and has `ends=True`.

        The comment before each rule says why the rule comes before the next one. tests/journal/test_rule_order.py swaps
        neighbours.
        """
        return (
            # The survey may put lost batches into the queue before all waiting batches, so the journal surveys the log
            # before it decides about the waiting batches. The survey needs no pause before it: if lost batches must be
            # sent again, the journal pauses after the survey, until no broker can append a late request with a lost
            # batch.
            _Rule(is_suspected, self._survey),
            # While a broker may still append a late request, any answer may already be out of date, and the next rule
            # would ask again and again.
            _Rule(has_late_requests, self._wait_for_late),
            # The next rule must not reset `partition.doubt` (whether the leader refused a sequence, and whether a newer
            # epoch exists), because the journal needs it to judge the batches that this rule puts in doubt again.
            _Rule(was_asked_early, self._ask_again),
            # Forget the leader's answers now: a later rule may put another batch in doubt, and they are not about it.
            _Rule(was_judged, self._end_doubt, ends=False),
            # A refused batch must be proven absent before it is rejected or divided.
            _Rule(has_unchecked_refusal, self._confirm),
            # The broker refused the first batch itself, so the next rule must not send this batch again.
            _Rule(has_refused_head, self._give_up_head),
            # The order of this rule and the next rule does not matter: the next rule, too, lets the refused batches be
            # sent again, under new ids.
            _Rule(has_gap, self._take_again, ends=False),
            # The next rule ends the turn. The journal writes the mark with the new ids during the pause, not after it.
            _Rule(has_old_ids, self._give_new_ids, ends=False),
            # After a failure, the journal pauses before it sends further batches.
            _Rule(needs_pause, self._rest),
            # The last rule always applies.
            _Rule(is_decided, self._go_on),
        )

    def _settle(self, partition: Partition, now: float, now_ms: int) -> None:
        """Decide the next step of a partition, unless it still has a request in flight."""
        if partition.queue.has_in_flight:
            return
        turn = Turn(partition, partition.queue.head, now, now_ms)
        if partition.queue.has_doubt:
            # After a failure, the journal pauses before it asks about batches in doubt, just as before it sends
            # batches.
            (self._rest if needs_pause(turn) else self._ask_about_doubt)(turn)
            return
        for rule in self._quiet_rules():
            if rule.holds(turn):
                rule.then(turn)
                if rule.ends:
                    return

    def _survey(self, turn: Turn) -> None:
        self._losses.start_survey(turn.partition, turn.now)

    def _wait_for_late(self, turn: Turn) -> None:
        self._out.wait_for_late(turn.partition, turn.now, turn.partition.progress.reason)

    def _ask_again(self, turn: Turn) -> None:
        """Put batches in doubt again if the journal judged them while a broker could still append them."""
        for batch in turn.partition.queue.near:
            if batch.state is BatchState.PREPARED and batch.unanswered:
                batch.on(BatchEvent.MAY_BE_THERE)
        turn.partition.progress.on(FlowEvent.JUDGED_EARLY)
        self._ask_about_doubt(turn)

    @staticmethod
    def _end_doubt(turn: Turn) -> None:
        turn.partition.doubt.end()

    def _confirm(self, turn: Turn) -> None:
        """Ask the broker for its producer state, to confirm that it did not append the refused batch."""
        if turn.head is None or turn.head.identity is None:
            return
        turn.partition.progress.on(FlowEvent.CONFIRMS)
        self._out.ready.asks.append(
            OutcomeAsk(
                turn.partition.number,
                (turn.head.identity,),
                -1,
                acked_before=False,
                read_log=False,
                fenced=False,
                confirm=True,
            )
        )

    def _give_up_head(self, turn: Turn) -> None:
        if turn.head is not None:
            self._rejecter.handle_refusal(turn.partition, turn.head)

    @staticmethod
    def _take_again(turn: Turn) -> None:
        """Send refused batches again in their turn. Perhaps the broker refused them only because an earlier batch is
        missing.
        """
        for batch in turn.partition.queue.near:
            if batch.state is BatchState.REFUSED:
                batch.on(BatchEvent.PASSED_BY)

    def _give_new_ids(self, turn: Turn) -> None:
        self._identities.reidentify(turn.partition)
        self._prepare(turn.partition)

    def _rest(self, turn: Turn) -> None:
        self._out.pause(turn.partition, FlowEvent.PAUSE_DUE, turn.partition.progress.reason)

    def _go_on(self, turn: Turn) -> None:
        partition = turn.partition
        if not any(batch.unanswered for batch in islice(partition.queue.near, self._window)):
            partition.doubt.forget_cut()
        if partition.log.has_begun:
            partition.progress.on(FlowEvent.DECIDED)
        else:
            partition.progress.on(FlowEvent.DECIDED_UNBEGUN)
        partition.progress.clear_reason()

    def _ask_about_doubt(self, turn: Turn) -> None:
        partition = turn.partition
        doubt = partition.queue.doubt
        asked = {batch.identity.producer for batch in doubt[:1] if batch.identity is not None}
        for batch in partition.queue.near:
            if (
                batch.state is BatchState.PREPARED
                and batch.unanswered
                and batch.identity is not None
                and batch.identity.producer in asked
            ):
                # Since the last answer, the broker may have appended a late request with this batch, or a request with
                # a later batch.
                batch.on(BatchEvent.MAY_BE_THERE)
        doubt = partition.queue.doubt
        partition.progress.on(FlowEvent.IN_DOUBT)
        first = doubt[0].identity
        last = partition.log.last_acked_id
        start = partition.doubt.begin_at(partition.log.reach)
        cut = partition.doubt.is_cut
        partition.doubt.ask(turn.now, start)
        self._out.ready.asks.append(
            OutcomeAsk(
                partition.number,
                tuple(batch.identity for batch in doubt if batch.identity is not None),
                start,
                acked_before=last is not None and first is not None and last.producer == first.producer,
                # After a truncation, the leader may have appended a late request out of order. Then the producer state
                # wrongly suggests that the log has the earlier batches.
                read_log=cut or any(self._clock.is_old(batch, turn.now_ms) for batch in doubt),
                fenced=partition.doubt.fenced,
                cut=cut,
            )
        )

    def _flow(self, partition: Partition, now: float, now_ms: int) -> None:
        """Send the batches that the window and the order allow.

        An acknowledged batch keeps its place in the window until its commit mark is durable. If the process dies before
        the mark is durable, the next incarnation has to find the batch among the last five batches in the broker's
        producer state.
        """
        in_flight = InFlight()
        for batch in islice(partition.queue.near, self._window):
            if batch.state is BatchState.ACKED:
                continue
            if batch.state is BatchState.SENT:
                in_flight.add(old=self._clock.is_old(batch, now_ms))
                continue
            if batch.state is not BatchState.PREPARED or batch.identity is None:
                break
            if self._precedence.stops(partition, batch):
                break
            old = self._clock.is_old(batch, now_ms)
            late = now < partition.doubt.dead_at or batch.unanswered
            admission = partition.window.admit(batch.identity, in_flight, now, old=old, late=late)
            if admission is not SendDecision.SENDS:
                if admission is SendDecision.HOLDS:
                    self._hold(partition, batch, now)
                break
            in_flight.add(old=old)
            self._out.send(partition, batch)
        if partition.window.answered and in_flight.any:
            partition.window.use_answer()
            self._gatherer.gather(partition, now_ms)

    def _hold(self, partition: Partition, batch: Batch, now: float) -> None:
        """Send nothing until no broker can append a late request; then search the log for the batch once more."""
        if now < partition.doubt.dead_at:
            self._out.wait_for_late(partition, now, "a request whose answer was lost may still arrive")
            return
        batch.on(BatchEvent.MAY_BE_THERE)
        partition.progress.on(FlowEvent.OLD_HEAD)
        self._packer.touch(partition)
