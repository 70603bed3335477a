"""Handles the outcomes of requests and questions (acknowledged, lost, refused, damaged), and the ends of pauses.

`verdicts` handles answers about batches in doubt, and `losses` the results of surveys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kafkasafe.codes.numbers import INVALID_TIMESTAMP, OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID
from kafkasafe.codes.sets import DESTINATION_CODES, FENCED_CODES, MISSING_CODES, REFUSED_SEQUENCE_CODES
from kafkasafe.codes.verdicts import AnswerAction, Scope, classify_produce, latest_timestamp
from kafkasafe.history.identity import ProducerView, shows
from kafkasafe.history.loss import Cause
from kafkasafe.journal.batch import DAMAGED, TOO_SLOW, Batch, BatchEvent, BatchState
from kafkasafe.journal.destinations import Partition
from kafkasafe.journal.endings import Durability
from kafkasafe.journal.flow import Flow, FlowEvent
from kafkasafe.journal.losses import Suspicions
from kafkasafe.journal.outbox import BaselineDurable
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.refusals import Refusals
from kafkasafe.journal.rejecting import Rejecter
from kafkasafe.journal.snapshots import state_mark
from kafkasafe.journal.state import JournalState

_TIMEOUTS: Final = 2
"""After this many time-outs of a batch, the journal divides the batch as soon as it is proven absent from the log."""


class Answers:
    """Handles the answers to requests and questions, and requests without an answer."""

    def __init__(
        self,
        state: JournalState,
        packer: Packer,
        suspicions: Suspicions,
        refusals: Refusals,
        durability: Durability,
        rejecter: Rejecter,
    ) -> None:
        self._partitions = state.destinations.partitions
        self._out = state.out
        self._packer = packer
        self._suspicions = suspicions
        self._refusals = refusals
        self._durability = durability
        self._rejecter = rejecter
        self._clock = state.clock
        self._units = state.units
        self._request_timeout_s = state.settings.request_timeout_s

    def acked(self, batch: Batch, base_offset: int, *, leader_epoch: int, now: float, now_ms: int) -> None:
        """Note that the cluster acknowledged a batch.

        Args:
            batch: The batch.
            base_offset: Offset of the batch's first record, -1 when the broker does not report it.
            leader_epoch: Epoch of the leader that answered, -1 when unknown.
            now: The current time in seconds.
            now_ms: Wall clock, ms since the epoch.
        """
        partition = self._partitions[batch.destination]
        batch.on(BatchEvent.ACKNOWLEDGED)
        batch.locate(base_offset)
        self._refusals.clear_refusal(partition)
        progress = partition.progress
        if progress.flow is Flow.PROBING:
            # With acks=all, the broker answers only when the replicas have the batch. Replicas that have a batch also
            # have all batches before it.
            for earlier in list(partition.queue.near):
                if earlier is batch:
                    break
                if earlier.state is BatchState.IN_DOUBT:
                    earlier.on(BatchEvent.FOUND)
                    self._durability.finish(partition, earlier)
            progress.on(FlowEvent.PROBED)
        elif progress.flow is Flow.FLOWING:
            progress.succeed()
            partition.window.note_answer()
        if batch.identity is not None:
            until = now + self._clock.state_age_s - self._clock.age_s(batch, now_ms)
            partition.window.open(batch.identity, until)
        self._suspicions.acknowledged(partition, base_offset, batch.count, leader_epoch)
        self._durability.finish(partition, batch)
        self._packer.touch(partition)

    def lost(
        self, batch: Batch, *, sent: bool, code: int, message: str, now: float, timed_out: bool = False
    ) -> None:
        """Note that a request got no answer.

        Args:
            batch: The batch.
            sent: The request may have reached a broker.
            code: Error code 3, 17 or 29 if the metadata has such an error for the destination, else 0.
            message: Human-readable text.
            now: The current time in seconds.
            timed_out: The request timed out, because the link is slow, or the broker hangs.
        """
        partition = self._partitions[batch.destination]
        if sent:
            partition.doubt.may_arrive_until(now + self._request_timeout_s)
        if timed_out and batch is partition.queue.head:
            batch.time_out()
            if (
                batch.timeouts >= _TIMEOUTS
                and batch.count > 1
                and partition.progress.flow is not Flow.PROBING
            ):
                batch.condemn(TOO_SLOW, f"{batch.timeouts} requests with it timed out")
        lasting = False
        if sent or code not in DESTINATION_CODES:
            partition.refusal.no_answer()
        else:
            lasting = self._refusals.note_refusal(partition, code, message, Scope.DESTINATION, now)
        if sent or partition.progress.flow is Flow.PROBING or (lasting and batch.unanswered):
            batch.on(BatchEvent.UNCERTAIN)
        elif lasting:
            batch.refuse(code, message)
        else:
            batch.on(BatchEvent.NOT_APPENDED)
        self._settle(partition, message, refresh=True)

    def damaged(self, batch: Batch, message: str) -> None:
        """Note that a batch's bytes are damaged on disk, so the batch can be neither sent nor divided.

        If the batch belongs to a unit (atomic batch), the unit ends too, because it is delivered as a whole or not at
        all.

        Args:
            batch: The batch. The engine has already saved the damaged bytes elsewhere, durably.
            message: Human-readable text.
        """
        if batch.unit is not None:
            self._units.give_up(batch.unit, DAMAGED, message)
            return
        batch.blame(DAMAGED, message)
        partition = self._partitions.get(batch.destination)
        if partition is None:
            self._rejecter.reject_unassigned(batch)
            return
        if batch.state is BatchState.REFUSED:
            self._rejecter.reject_head(partition, batch, FlowEvent.DAMAGED)
            self._packer.touch(partition)
            return
        if batch.unanswered or partition.progress.flow is Flow.PROBING:
            # The broker may have appended the batch before the bytes in the spool were damaged. So the journal asks
            # the cluster.
            batch.on(BatchEvent.UNCERTAIN)
        else:
            batch.refuse(DAMAGED, message)
        self._settle(partition, message)

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
        """Note that the broker answered with an error.

        Args:
            batch: The batch.
            code: Kafka's error code.
            message: The broker's message.
            bad_records: (index, message) of the records that the broker named.
            log_start_offset: The log start offset, -1 from brokers that do not return it.
            now: The current time in seconds.
            now_ms: Wall clock, ms since the epoch.
        """
        partition = self._partitions[batch.destination]
        verdict = classify_produce(code)
        text = f"{verdict.name} ({code}): {message or verdict.explanation}"
        scope = verdict.scope
        if code == INVALID_TIMESTAMP and self.early_ms(batch, (text for _, text in bad_records), now_ms):
            scope = Scope.BATCH
        final = verdict.action is AnswerAction.REJECT_BATCH and scope is Scope.NONE
        if batch.gathered and (final or scope is Scope.BATCH):
            partition.keep_apart()
        # Each answer is about one request only. While a broker may still append an older, unanswered request with the
        # same batch, an error answer does not prove that the batch will never be in the log. An error answer to a probe
        # does not prove absence, because a probe repeats a batch that is already in the leader's log.
        alone = now >= partition.doubt.dead_at and partition.progress.flow is not Flow.PROBING
        self._note_producer_state(partition, code, log_start_offset)
        lasting = self._note_refusal(partition, batch, code, text, scope, now)
        if alone and not batch.unanswered and verdict.absent and (final or lasting):
            batch.refuse(code, text, bad_records, unconfirmed=True)
        elif alone and (
            (verdict.absent and not final and not lasting)
            # The only request with this batch failed because an earlier batch is missing, so the batch was not
            # appended.
            or (
                code == OUT_OF_ORDER_SEQUENCE_NUMBER
                and not batch.unanswered
                and partition.queue.follows_failure(batch)
            )
            or (code == UNKNOWN_PRODUCER_ID and not batch.unanswered)
        ):
            batch.on(BatchEvent.NOT_APPENDED)
            batch.check_absence(wanted=code == UNKNOWN_PRODUCER_ID)
            if code == UNKNOWN_PRODUCER_ID:
                partition.ids.expire()
        else:
            if code in REFUSED_SEQUENCE_CODES:
                partition.doubt.refuse_sequence()
            batch.on(BatchEvent.UNCERTAIN)
            if lasting and not verdict.absent:
                batch.condemn(code, text)
        self._settle(partition, text, refresh=verdict.refresh_metadata)

    def retry(self, destination: int) -> None:
        """Note that the pause of a `Wait` is over."""
        partition = self._partitions[destination]
        if partition.progress.flow is Flow.WAITING:
            partition.progress.on(FlowEvent.PAUSE_OVER)
            self._packer.touch(partition)

    def baseline(self, destination: int, end_offset: int, topic_id: bytes) -> None:
        """Note where the partition's log ended before our first batch. The journal sends the first batch when this
        offset is durable.
        """
        partition = self._partitions[destination]
        if partition.progress.flow is not Flow.ASKING_BASELINE:
            return
        partition.log.begin(end_offset)
        early = partition.log.last_acked_offset >= 0 or self._units.ids.is_open(destination)
        if not (early and any(partition.log.topic_id)):
            partition.log.name_topic(topic_id)
        self._refusals.clear_refusal(partition)
        self._out.ready.persist.marks.append(state_mark(partition))
        self._out.ready.persist.after.append(BaselineDurable(destination))

    def ask_failed(self, destination: int, reason: str, *, code: int, now: float) -> None:
        """Note that the cluster did not answer a question. The journal asks again after a pause, or rejects the
        destination's batches if the cluster has refused the destination for too long.

        Args:
            destination: Destination number.
            reason: Human-readable text.
            code: Kafka's error code if the cluster gave one, else 0.
            now: The current time in seconds.
        """
        partition = self._partitions[destination]
        if not partition.progress.is_asking:
            return
        lasting = False
        if code in DESTINATION_CODES:
            lasting = self._refusals.note_refusal(
                partition, code, reason, Scope.DESTINATION, now, asking=partition.queue.has_doubt
            )
        else:
            partition.refusal.no_answer()
        # Batches in doubt may be in the log even if the user lacks the permission to ask about them. But if the topic
        # was deleted, our batches were deleted with it.
        if lasting and not (partition.queue.has_doubt and code not in MISSING_CODES):
            self._rejecter.reject_all(partition, code, reason)
        else:
            partition.progress.want_metadata()
            self._out.pause(partition, FlowEvent.NOT_ANSWERED, reason)

    def confirmed(self, destination: int, view: ProducerView | None) -> None:
        """Handle the answer to an `OutcomeAsk` whose `confirm` is set.

        Args:
            destination: Destination number.
            view: The leader's producer state for the batch's producer id; None if the leader has no such state, or
                cannot return it.
        """
        partition = self._partitions[destination]
        if not partition.progress.is_confirming:
            return
        event = FlowEvent.CONFIRMED
        head = partition.queue.head
        if head is not None and head.fault.unconfirmed and head.identity is not None:
            head.check_absence(wanted=False)
            if shows(view, head.identity):
                head.on(BatchEvent.MAY_BE_THERE)
                event = FlowEvent.CONTRADICTED
        partition.progress.on(event)
        self._packer.touch(partition)

    def _settle(self, partition: Partition, reason: str, *, refresh: bool = False) -> None:
        partition.progress.fail(reason, refresh=refresh)
        partition.window.close()
        self._packer.touch(partition)

    def _note_producer_state(self, partition: Partition, code: int, log_start_offset: int) -> None:
        """Note that the producer is fenced, or suspect a loss if the broker has lost its producer state."""
        if code in FENCED_CODES:
            partition.doubt.fence()
        if (
            code == UNKNOWN_PRODUCER_ID
            and partition.log.last_acked_offset >= 0
            and log_start_offset <= partition.log.last_acked_offset
        ):
            # Retention drops the state of a producer only with that producer's last record (KAFKA-5793). Old brokers
            # return -1 as log start offset, so error 59 from an old broker raises a suspicion even if retention caused
            # the error.
            evidence = (
                f"the broker does not know the producer, though its log starts at {log_start_offset} and offset"
                f" {partition.log.last_acked_offset} was acknowledged"
            )
            self._suspicions.raise_suspicion(partition, Cause.UNKNOWN_PRODUCER, evidence)

    def _note_refusal(
        self, partition: Partition, batch: Batch, code: int, text: str, scope: Scope, now: float
    ) -> bool:
        """Note the refusal of the destination or the batch. Returns whether the refusal has lasted for too long."""
        if scope is Scope.DESTINATION:
            return self._refusals.note_refusal(partition, code, text, scope, now)
        if batch is not partition.queue.head:
            return False
        # Any other answer about the first batch ends the refusal.
        if scope is not Scope.BATCH:
            self._refusals.clear_refusal(partition)
            return False
        lasting = batch.fault.overdue or self._refusals.note_refusal(
            partition, code, text, scope, now, handle=batch.handle
        )
        batch.refuse_for_long(overdue=lasting)
        return lasting

    def early_ms(self, batch: Batch, messages: Iterable[str], now_ms: int) -> int:
        """The milliseconds after which the broker will accept a batch that it refused with error 32 (invalid
        timestamp), because the batch's timestamps are too far in the future. 0 if its timestamps are too old, or if the
        journal would reject it before the broker accepts it.

        Args:
            batch: The batch.
            messages: The broker's messages about the batch's records.
            now_ms: Wall clock, ms since the epoch.
        """
        ahead_ms = batch.max_timestamp - latest_timestamp(messages, now_ms)
        return ahead_ms if ahead_ms > 0 and self._refusals.waits_for(ahead_ms) else 0
