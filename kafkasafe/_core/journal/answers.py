"""What came of a request or a question: acknowledged, lost, refused, damaged, or a pause that is over.

What a batch in doubt is judged to be is in `verdicts`, what a survey finds in `losses`.
"""

from __future__ import annotations

from typing import Final

from kafkasafe._core.codes import DESTINATION_CODES, Action, Scope, classify_produce, latest_timestamp
from kafkasafe._core.identity import ProducerView, shows
from kafkasafe._core.journal.groups import Begun
from kafkasafe._core.journal.partition import UNCHOSEN, Flow, Partition
from kafkasafe._core.journal.states import DAMAGED, TOO_SLOW, Batch, State
from kafkasafe._core.journal.verdicts import Verdicts
from kafkasafe._core.loss import Cause

__all__ = ["Answers"]

_TIMEOUTS: Final = 2
"""After so many time-outs in a row, and once it is proven that the log does not have it, a batch is divided."""

_INVALID_TIMESTAMP: Final = 32


class Answers(Verdicts):
    """Part of `Journal`: answers, and their absence."""

    def acked(self, batch: Batch, base_offset: int, *, leader_epoch: int, now: float, now_ms: int) -> None:
        """The cluster acknowledged a batch.

        Args:
            batch: What was sent.
            base_offset: Offset of its first record, -1 when the broker does not say.
            leader_epoch: Of the leader that answered, -1 when unknown.
            now: Seconds.
            now_ms: Wall clock, ms since the epoch.
        """
        partition = self._partitions[batch.destination]
        partition.in_flight -= 1
        batch.move(State.ACKED)
        batch.base_offset = base_offset
        self._relent(partition)
        self._look_back(partition, base_offset)
        self._leads(partition, leader_epoch)
        if partition.flow is Flow.PROBING:
            # acks=all answers only when the replicas have the batch, and so all before it.
            for earlier in list(partition.queue):
                if earlier is batch:
                    break
                if earlier.state is State.IN_DOUBT:
                    earlier.move(State.ACKED)
                    self._finish(partition, earlier)
            partition.flow = Flow.SETTLING
            partition.rested = True
            partition.doubtful = any(b.state is State.IN_DOUBT for b in partition.queue)
        elif partition.flow is Flow.FLOWING:
            partition.attempt = 0
            partition.reason = ""
            partition.answered = True
        if base_offset >= 0:
            partition.last_acked_offset = base_offset + batch.count - 1
        self._stop_if_suspected(partition)
        self._finish(partition, batch)
        if batch.identity is not None:
            partition.confirmed_id = (batch.identity.producer_id, batch.identity.producer_epoch)
            # A broker forgets a producer by the timestamp of its last batch, not by the time of its append.
            age_s = max(0.0, (self._brokers_ms(now_ms) - batch.max_timestamp) / 1000)
            partition.confirmed_until = now + self._state_age_s - age_s
        self._touch(partition)

    def lost(
        self, batch: Batch, *, sent: bool, code: int, message: str, now: float, timed_out: bool = False
    ) -> None:
        """No answer came.

        Args:
            batch: What was sent.
            sent: It may have reached a broker.
            code: 3, 17 or 29 when the metadata itself says so, else 0.
            message: For people.
            now: Seconds.
            timed_out: The link is slow, or the broker hangs: the next one that times out may be smaller.
        """
        partition = self._partitions[batch.destination]
        partition.in_flight -= 1
        partition.refresh = True
        if sent:
            partition.dead_at = now + self._request_timeout_s
        if timed_out and self._is_head(partition, batch):
            batch.timeouts += 1
            if batch.timeouts >= _TIMEOUTS and batch.count > 1 and partition.flow is not Flow.PROBING:
                batch.condemned, batch.code = True, TOO_SLOW
                batch.message = f"{batch.timeouts} requests with it timed out"
        lasting = False
        if sent or code not in DESTINATION_CODES:
            self._unheard(partition)
        else:
            lasting = self._deny(partition, code, message, Scope.DESTINATION, now)
        if sent or partition.flow is Flow.PROBING or (lasting and batch.unanswered):
            batch.move(State.IN_DOUBT)
            partition.doubtful = True
        elif lasting:
            self._refuse(batch, code, message)
        else:
            batch.move(State.PREPARED)
        self._settle(partition, message)

    def damaged(self, batch: Batch, message: str) -> None:
        """It cannot be sent, or divided: its bytes are damaged on disk. Nothing of it goes to the cluster.

        Args:
            batch: What was to be sent, or divided; its damaged bytes are kept elsewhere, durably.
            message: For people.
        """
        partition = self._partitions[batch.destination]
        batch.code, batch.message = DAMAGED, message
        if partition.partition == UNCHOSEN:
            self._put_aside(partition, (batch,))
            self._touch(partition)
            return
        if batch.state is State.REFUSED:
            self._reject_head(partition, batch)
            self._touch(partition)
            return
        partition.in_flight -= 1
        if batch.unanswered or partition.flow is Flow.PROBING:
            # It may have been appended, when it was whole: the cluster is asked.
            batch.move(State.IN_DOUBT)
            partition.doubtful = True
        else:
            self._refuse(batch, DAMAGED, message)
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
        """The broker answered with an error.

        Args:
            batch: What was sent.
            code: Kafka's error code.
            message: What the broker said.
            bad_records: (index, message) of the records it named.
            log_start_offset: Where the log starts, -1 from brokers that do not say.
            now: Seconds.
            now_ms: Wall clock, ms since the epoch.
        """
        partition = self._partitions[batch.destination]
        partition.in_flight -= 1
        verdict = classify_produce(code)
        partition.refresh = partition.refresh or verdict.refresh_metadata
        text = f"{verdict.name} ({code}): {message or verdict.explanation}"
        scope = verdict.scope
        if code == _INVALID_TIMESTAMP and self._will_be_due(batch, bad_records, now_ms):
            scope = Scope.BATCH
        final = verdict.action is Action.REJECT_BATCH and scope is Scope.NONE
        if batch.gathered and (final or scope is Scope.BATCH):
            self.keep_apart(partition.number)
        # An answer speaks of its own request. While an older one, whose answer was lost, may still be appended, or
        # the leader is said to have the batch, it proves nothing.
        alone = now >= partition.dead_at and partition.flow is not Flow.PROBING
        if code in {47, 90}:
            partition.fenced = True
        if (
            code == 59
            and partition.last_acked_offset >= 0
            and log_start_offset <= partition.last_acked_offset
        ):
            # Retention forgets a producer only with its last record (KAFKA-5793); -1: an old broker does not say.
            evidence = (
                f"the broker does not know the producer, though its log starts at {log_start_offset} and offset"
                f" {partition.last_acked_offset} was acknowledged"
            )
            self._suspect(partition, Cause.UNKNOWN_PRODUCER, evidence)
        lasting = False
        if scope is Scope.DESTINATION:
            lasting = self._deny(partition, code, text, scope, now)
        elif self._is_head(partition, batch):
            if scope is Scope.BATCH:
                lasting = batch.overdue or self._deny(partition, code, text, scope, now, handle=batch.handle)
                batch.overdue = lasting
            else:
                self._relent(partition)
        if alone and not batch.unanswered and verdict.absent and (final or lasting):
            self._refuse(batch, code, text)
            batch.bad_records = bad_records
            batch.unconfirmed = True
        elif alone and (
            (verdict.absent and not final and not lasting)
            # No other request had it, and this one was not appended.
            or (code == 45 and not batch.unanswered and self._behind_failure(partition, batch))
            or (code == 59 and not batch.unanswered)
        ):
            batch.move(State.PREPARED)
            partition.renew = partition.renew or code == 59
            batch.unconfirmed = code == 59
        else:
            partition.sequence_refused = partition.sequence_refused or code in {45, 59}
            batch.move(State.IN_DOUBT)
            partition.doubtful = True
            if lasting and not verdict.absent:
                batch.condemned, batch.code, batch.message = True, code, text
        self._settle(partition, text)

    def retry(self, destination: int) -> None:
        """The pause that a Wait asked for is over."""
        partition = self._partitions[destination]
        if partition.flow is Flow.WAITING:
            partition.flow = Flow.SETTLING
            partition.rested = True
            self._touch(partition)

    def baseline(self, destination: int, end_offset: int, topic_id: bytes) -> None:
        """The end offset of a partition before anything of ours is in it; the first send waits until it is durable."""
        partition = self._partitions[destination]
        if partition.flow is not Flow.ASKING:
            return
        partition.baseline_offset = min([end_offset, *(batch.place for batch in partition.acked)])
        early = partition.last_acked_offset >= 0 or self.units.is_open(destination)
        if not (early and any(partition.topic_id)):
            partition.topic_id = topic_id
        self._relent(partition)
        self._ready.persist.marks.append(self._state_mark(partition))
        self._ready.persist.after.append(Begun(destination))

    def ask_failed(self, destination: int, reason: str, *, code: int, now: float) -> None:
        """The cluster did not answer a question; it is asked again after a pause.

        Args:
            destination: Destination number.
            reason: For people.
            code: Kafka's error code where the cluster gave one, else 0.
            now: Seconds.
        """
        partition = self._partitions[destination]
        if partition.flow is not Flow.ASKING:
            return
        lasting = False
        if code in DESTINATION_CODES:
            lasting = self._deny(partition, code, reason, Scope.DESTINATION, now, asking=partition.doubtful)
        else:
            self._unheard(partition)
        # Not allowed to ask is no proof of anything; a topic that is gone for good holds no batch of ours.
        if lasting and not (partition.doubtful and code in {17, 29}):
            self._reject_all(partition, code, reason)
        else:
            partition.refresh = True
            self._pause(partition, reason)

    def confirmed(self, destination: int, view: ProducerView | None) -> None:
        """The answer to an Ask with `confirm`.

        Args:
            destination: Destination number.
            view: The leader's state of the batch's producer id; None when it has none, or does not tell.
        """
        partition = self._partitions[destination]
        if partition.flow is not Flow.ASKING:
            return
        head = next((b for b in partition.queue if b.state is not State.ACKED), None)
        if head is not None and head.unconfirmed and head.identity is not None:
            head.unconfirmed = False
            if shows(view, head.identity):
                head.move(State.IN_DOUBT)
                partition.doubtful = partition.rested = True
        partition.flow = Flow.SETTLING
        self._touch(partition)

    def _settle(self, partition: Partition, reason: str) -> None:
        if partition.flow in {Flow.FLOWING, Flow.PROBING}:
            partition.flow = Flow.SETTLING
            partition.rested = False
        partition.confirmed_until = 0.0
        partition.answered = False
        partition.reason = reason
        self._touch(partition)

    @staticmethod
    def _refuse(batch: Batch, code: int, message: str) -> None:
        batch.move(State.REFUSED)
        batch.code, batch.message = code, message

    @staticmethod
    def _behind_failure(partition: Partition, batch: Batch) -> bool:
        """A 45 behind a batch that is not in the log: the gap is that one's, nothing is missing."""
        for earlier in partition.queue:
            if earlier is batch:
                return False
            if earlier.state in {State.PREPARED, State.REFUSED}:
                return True
        return False

    @staticmethod
    def _is_head(partition: Partition, batch: Batch) -> bool:
        """Nothing before it waits for an answer: what the broker says is about it, and nothing else."""
        return batch is next((b for b in partition.queue if b.state is not State.ACKED), None)

    def _will_be_due(self, batch: Batch, bad_records: tuple[tuple[int, str], ...], now_ms: int) -> bool:
        """Its timestamps are too far ahead, not too old, and time will cure that within the timeout."""
        ahead_ms = batch.max_timestamp - latest_timestamp((text for _, text in bad_records), now_ms)
        limit_s = self._refused_timeout_s
        return ahead_ms > 0 and (limit_s is None or ahead_ms <= limit_s * 1000)
