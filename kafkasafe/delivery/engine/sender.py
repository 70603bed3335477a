"""Sends batches to the cluster, pauses between attempts, and asks for producer ids."""

from __future__ import annotations

import collections
import logging
from collections.abc import Sequence
from typing import Final

import kafka.errors as kafka_errors

from kafkasafe import events
from kafkasafe import journal as j
from kafkasafe.cluster import api as t
from kafkasafe.cluster.api import MAX_TIMESTAMP, Failure, OffsetListed
from kafkasafe.cluster.procedures import Procedure
from kafkasafe.codes.sets import REFUSED_ID_CODES, TOPIC_CODES
from kafkasafe.codes.verdicts import classify_code, classify_produce
from kafkasafe.delivery.clocks import Clocks
from kafkasafe.delivery.engine.context import EngineContext, another_topic, text
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.leader import LeaderRequests, RunningInquiry, trouble
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.losses import LossWatch
from kafkasafe.delivery.engine.messages import (
    FoundDamaged,
    Inquiry,
    InquiryDue,
    LinkAnswered,
    Produced,
    ProducerIdAnswered,
    ProducerIdDue,
    RetryDue,
    Sent,
)
from kafkasafe.delivery.engine.rejects import Rejects
from kafkasafe.delivery.engine.send_queue import SendQueue
from kafkasafe.delivery.engine.sequence_errors import SequenceErrors
from kafkasafe.delivery.outage import Outage
from kafkasafe.errors import SpoolCorruptError, SpoolError
from kafkasafe.spool.refusals import counted

_CALM: Final = 8
"""For each partition, the engine counts failed requests and requests of inquiries. The engine begins the next attempt
or inquiry for the partition only if it counted at most this many requests in the last `_CALM_S` seconds. Batches in
flight and further requests of a running inquiry may exceed this limit.
"""
_CALM_S: Final = 2.0

_NOT_THE_CLUSTER: Final = (t.StaleFenceError, SpoolError)
"""Errors that delay a batch although the cluster answers: an earlier batch failed, or the disk failed."""

_ID_FAILURES: Final = 3
"""After this many failed attempts to get a producer id, the engine logs further failures as WARNING. Fewer failures are
normal while brokers start.
"""

_TURN_S: Final = 0.01
"""Average time between two inquiries of the producer, in seconds. An inquiry usually takes four or five requests."""
_AT_ONCE_S: Final = 0.5
"""Capacity, in seconds, of the token bucket that limits the rate of inquiries. The bucket fills as time passes, and
each inquiry takes `_TURN_S` from it. If the bucket holds less than `_TURN_S`, the inquiry waits.
"""


class ClockQuestion:
    """Asks for the largest timestamp in a partition. If other producers write to the partition too, this timestamp is
    close to the current time.

    The timestamp is only a hint, so deliveries do not wait for the answer, and the engine asks again later.
    """

    def __init__(self, context: EngineContext, leader: LeaderRequests, clocks: Clocks) -> None:
        self._context = context
        self._leader = leader
        self._clocks = clocks

    def run(self) -> Procedure[None]:
        """The inquiry."""
        result: OffsetListed | Failure = yield self._leader.list_offset(MAX_TIMESTAMP, "newest")
        address = self._leader.address
        if isinstance(result, Failure) or trouble(result)[1]:
            self._clocks.unanswered(address)
            return
        now_ms = self._context.clock.wall_ms()
        far_ahead = self._clocks.listed(address, result.timestamp, self._context.now(), now_ms)
        for lane in self._context.lanes:
            lane.journal.clock_at_least(self._clocks.at_least_ms)
        if far_ahead:
            self._context.log.warning(
                "Records of %s-%d have timestamps %.1f h ahead of this machine's clock. If they are right, brokers may"
                " forget this producer between two batches, so each batch waits for the answer to the previous one."
                " Correct the clock that is wrong: this machine's, or that of the records' producer",
                *address,
                (result.timestamp - now_ms) / 3_600_000,
                topic=address[0],
                partition=address[1],
                event="clock_behind",
            )


class Sender:
    """See the module."""

    def __init__(
        self,
        context: EngineContext,
        ledger: Ledger,
        disk: DiskWriter,
        rejects: Rejects,
        losses: LossWatch,
        sequence_errors: SequenceErrors,
    ) -> None:
        self._context = context
        self._log = context.log
        self._config = context.config
        self._ledger = ledger
        self._disk = disk
        self._rejects = rejects
        self._losses = losses
        self._sequence_errors = sequence_errors
        self._send_queue = SendQueue(context, disk)
        self._has_room = False
        """Whether a reply has made room in a connection since the last batches left the send queue."""
        self._outage = Outage(context.clock.monotonic())
        self._turn = 0.0
        """Earliest start of the last scheduled inquiry, from which `when_calm` computes the next inquiry's start."""
        self._clocks = Clocks(context.now(), context.config.state_age_s)
        self._fences: dict[tuple[str, int], int] = {}
        self._troubles: dict[tuple[str, int], collections.deque[float]] = {}
        # Maps a partition to its leader and its topic's id at the time of the last request.
        self._tried: dict[tuple[str, int], tuple[t.PartitionInfo | None, bytes]] = {}
        # Maps a destination of a lane to its current pause.
        self._pauses: dict[tuple[Lane, int], RetryDue] = {}
        # The current pauses that new metadata can end early. The metadata may show that another broker leads the
        # partition, that the partition exists again, or that the topic was recreated. The flag says whether the cluster
        # refused the destination.
        self._waiting: dict[tuple[Lane, int], tuple[RetryDue, bool]] = {}
        self.reasons: dict[tuple[str, int], str] = {}
        """Maps a partition to the name of its last error."""

    def send(self, lane: Lane, batches: Sequence[j.Batch]) -> None:
        """Send batches in this order, as soon as the send queue has room. The replies arrive as `Produced`."""
        for batch in batches:
            address = lane.journal.views.address(batch.destination)
            self._send_queue.hold(address, self.tries(*address), lane, batch)
        self._let_out()

    def let_out(self) -> None:
        """Use new metadata: held batches may have to go to another broker, and paused partitions may have another
        leader.
        """
        if self._context.own_cluster.answered:
            self._outage.connected(self._context.clock.monotonic())
        self._send_queue.find_leaders()
        for (lane, destination), (due, refused) in list(self._waiting.items()):
            address = lane.journal.views.address(destination)
            if self._has_news(address, refused=refused) and self._calm_in_s(*address) <= 0:
                del self._waiting[lane, destination]
                self._context.post(due)
        self._let_out()

    def tries(self, topic: str, partition: int) -> t.PartitionInfo | None:
        """Note the partition's leader and topic id before a request. Returns the leader; None if it is unknown."""
        leader = self._context.leader(topic, partition)
        self._tried[topic, partition] = leader, self._context.topic_id(topic)
        return leader

    def _has_news(self, address: tuple[str, int], *, refused: bool) -> bool:
        """Whether the metadata have changed since the partition's last, failed request: the topic was recreated, the
        leader has changed, or a missing leader has become known.

        After a refusal, a known leader counts as a change only if the leader was unknown at the refused attempt. In
        that case, the metadata refused the partition as missing or forbidden. For example:

        1. A topic has been missing for an hour, so the pauses have grown to half a minute.
        2. The topic exists for some seconds. The metadata contain the topic, so the pause ends, and the leader accepts
           the batches.
        3. The topic is deleted, but the metadata of one broker still contain it. The pause ends early once, and the
           leader refuses the batch, as before. At this attempt, the metadata contained the topic. So from now on the
           metadata show no change, and the next pause does not end early. So attempts stay rare, and
           `blocked_timeout_ms` continues to run.
        """
        leader, topic_id = self._context.leader(*address), self._context.topic_id(address[0])
        if leader is None or leader.leader < 0:
            return False
        tried, former_id = self._tried.get(address, (leader, topic_id))
        if another_topic(former_id, topic_id):
            return True
        return leader != tried and (tried is None or not refused)

    def link_answered(self, message: LinkAnswered) -> None:
        """Send held batches once the connection to their leader is ready. If the connection failed, the held batches
        count as failed.
        """
        failure = message.answer
        for address in self._send_queue.reached(message):
            if isinstance(failure, t.Failure):
                self._fail_held(address, failure)
        self._let_out()

    def _fail_held(self, address: tuple[str, int], failure: t.Failure) -> None:
        for lane, batch in self._send_queue.take_back(address):
            self.produced(Sent(lane, batch, -1), failure)

    def _let_out(self) -> None:
        """Send held batches while connections and memory have room. Reads their bytes from disk if necessary."""
        self._has_room = False
        if self._context.own_cluster.stranger is not None:
            return
        requests = []
        for (topic, partition), (lane, batch), node in self._send_queue.due():
            parcel = lane.parcels.get(batch.handle)
            if parcel is None or lane not in self._context.lanes:
                continue  # its lane was closed
            read = parcel.data is None
            try:
                data = self._disk.bytes_of(lane, parcel, batch)
            except SpoolCorruptError as error:
                if self._rejects.damaged(lane, batch, error):
                    self._context.post(FoundDamaged(lane, batch, str(error)))
                else:
                    self._on_produced(Sent(lane, batch, -1), t.Failure(error, sent=False))
                # No later batch of the partition may overtake the damaged batch.
                damaged = SpoolError(f"an earlier batch of the partition is damaged on disk: {error}")
                for other, later in self._send_queue.take_back((topic, partition)):
                    self._on_produced(Sent(other, later, -1), t.Failure(damaged, sent=False))
                continue
            except SpoolError as error:
                # Too many open files, or a disk that does not answer: retry, as with a leader that does not answer.
                self._on_produced(Sent(lane, batch, -1), t.Failure(error, sent=False))
                for other, later in self._send_queue.take_back((topic, partition)):
                    self._on_produced(Sent(other, later, -1), t.Failure(error, sent=False))
                continue
            self._ledger.errors.unblock(lane, (topic, partition))
            parcel.lend()
            self._clocks.sent((topic, partition), batch.max_timestamp)
            fence = self._fences.get((topic, partition), 0)
            ticket, patience_s = self._send_queue.sent(node, len(data), read=read, timeouts=batch.timeouts)
            sent = Sent(lane, batch, self._context.leader_epoch(topic, partition), ticket)
            requests.append(t.ProduceRequest(sent, topic, partition, data, fence, patience_s))
            self._context.stats.sent_batches.add()
            if batch.tries > 1:
                self._context.stats.resent_batches.add()
                self._context.stats.retries["produce", self.reasons.get((topic, partition), "unknown")] += 1
        if requests:
            self._context.cluster.produce(
                requests, self._config.acks, int(self._config.request_timeout_s * 1000), self._on_produced
            )

    def _on_produced(self, sent: Sent, reply: t.ProduceReply | t.Failure) -> None:
        """Post the reply to the engine. Called on the network thread."""
        self._context.post(Produced(sent, reply))

    def produced(self, sent: Sent, reply: t.ProduceReply | t.Failure) -> None:
        """Handle the reply to a batch."""
        self._produced(sent, reply)
        if sent.ticket is None:
            return
        if isinstance(reply, t.Failure) or reply.error_code:
            # No batch may overtake a failed batch of its partition. The fence stops later requests, and `_fail_held`
            # fails the batches in the send queue.
            address = sent.lane.journal.views.address(sent.batch.destination)
            error = t.StaleFenceError("an earlier batch of the partition failed")
            self._fail_held(address, t.Failure(error, sent=False))
        self._has_room = True

    def use_room(self) -> None:
        """Send held batches if replies have made room since the last call. The engine calls this method once, after all
        replies of a turn, so that the batches leave in one request.
        """
        if self._has_room:
            self._let_out()

    def _produced(self, sent: Sent, reply: t.ProduceReply | t.Failure) -> None:
        lane, batch, epoch = sent.lane, sent.batch, sent.leader_epoch
        address = lane.journal.views.address(batch.destination)
        self._fences[address] = max(self._fences.get(address, 0), reply.fence)
        now = self._context.now()
        timed_out = isinstance(reply, t.Failure) and isinstance(
            reply.error, kafka_errors.RequestTimedOutError
        )
        if sent.ticket is not None:
            failure = reply if isinstance(reply, t.Failure) else None
            self._send_queue.answered(sent.ticket, failure, timed_out=timed_out)
        if isinstance(reply, t.Failure):
            if reply.sent:
                self.in_trouble(*address)
            self._context.stats.produce_failures.add()
            self._count_error(address, type(reply.error).__name__)
            code = reply.code if not reply.sent and reply.code in TOPIC_CODES else 0
            if code:
                self._outage.answered(self._context.clock.monotonic(), address)
            elif not isinstance(reply.error, _NOT_THE_CLUSTER):
                self._outage.failed(self._context.clock.monotonic(), address)
            lane.journal.lost(
                batch,
                sent=reply.sent,
                code=code or 0,
                message=text(reply.error),
                now=now,
                timed_out=timed_out,
            )
        elif reply.error_code:
            self.in_trouble(*address)
            self._context.stats.produce_errors[reply.error_code] += 1
            self._count_error(
                address,
                classify_code(reply.error_code).name,
                log_start_offset=reply.log_start_offset,
                last_acked=lane.journal.views.last_acked_offset(*address),
            )
            verdict = classify_produce(reply.error_code)
            monotonic = self._context.clock.monotonic()
            self._report_outage(
                address,
                self._outage.refused(verdict, monotonic, self._waiting_since(monotonic, address), address),
            )
            lane.journal.refused(
                batch,
                reply.error_code,
                reply.error_message or "",
                bad_records=reply.record_errors,
                log_start_offset=reply.log_start_offset,
                now=now,
                now_ms=self._context.clock.wall_ms(),
            )
            if batch.state is j.BatchState.REFUSED:
                self._context.progress.note()
        else:
            self._context.progress.note()
            parcel = lane.parcels.get(batch.handle)
            monotonic = self._context.clock.monotonic()
            self._report_outage(
                address, self._outage.decided(monotonic, self._waiting_since(monotonic, address), address)
            )
            if parcel is not None:
                parcel.stamp_append_time(reply.log_append_time)
            if reply.log_append_time >= 0:
                self._clocks.stamped(now)
                self._compare_clocks(reply.log_append_time)
            else:
                lane.journal.clock_at_least(
                    self._clocks.at_least_ms
                )  # the engine may have opened the lane after it made the estimate
                if self._clocks.asks(address, now) and not self._context.close_state.closing:
                    self._ask_clock(lane, *address)
            self._losses.compare_topic(lane, batch.destination, self._context.cluster.topic(address[0]))
            # Use the leader epoch at the time of sending, if known: a leader that was elected later did not acknowledge
            # the batch.
            epoch = epoch if epoch >= 0 else self._context.leader_epoch(*address)
            lane.journal.acked(
                batch, reply.base_offset, leader_epoch=epoch, now=now, now_ms=self._context.clock.wall_ms()
            )

    def _ask_clock(self, lane: Lane, topic: str, partition: int) -> None:
        leader = LeaderRequests(self._context, lane, topic, partition)
        question = ClockQuestion(self._context, leader, self._clocks)
        RunningInquiry(self._context, leader.name(question), question.run()).go_on()

    def found(self, address: tuple[str, int]) -> None:
        """Note that the log of a partition has a batch that was in doubt."""
        monotonic = self._context.clock.monotonic()
        self._report_outage(
            address, self._outage.decided(monotonic, self._waiting_since(monotonic, address), address)
        )

    def not_found(self, address: tuple[str, int]) -> None:
        """Note that a leader has answered about a batch in doubt, but nothing shows whether its log has the batch."""
        self._outage.answered(self._context.clock.monotonic(), address)

    def _waiting_since(self, now: float, address: tuple[str, int]) -> float:
        """When the oldest waiting batch was submitted, in monotonic seconds; 0 if an earlier run submitted the batch,
        and `now` if no batch waits, or the partition's leader can end no outage.

        A batch whose `delivery_timeout_ms` is over still waits. Only its lane has it then, not the ledger.
        """
        if not (self._outage.begun and self._outage.concerns(address)):
            return now
        oldest = self._ledger.parcels.oldest
        waiting = [next(iter(lane.parcels.values())) for lane in self._context.lanes if lane.parcels]
        if oldest is not None:
            waiting.append(oldest)
        return min((parcel.sealed_at for parcel in waiting), default=now)

    def _report_outage(self, address: tuple[str, int], outage_s: float) -> None:
        """Log the end of an outage, unless `outage_s` is 0."""
        if not outage_s:
            return
        # Only its lane has a batch whose `delivery_timeout_ms` is over, not the ledger.
        late = [p.count for lane in self._context.lanes for p in lane.parcels.values() if p.is_late]
        batches = len(self._ledger.parcels) + len(late)
        records = self._ledger.parcels.records(self._ledger.last_number()) + sum(late)
        self._log.warning(
            "An outage of %.0f s is over: %s-%d was the first partition to answer. %s in %s%s pending and"
            " being delivered",
            outage_s,
            *address,
            counted(records, "record"),
            counted(batches, "batch", "batches"),
            " is" if records == 1 else " are",
            topic=address[0],
            partition=address[1],
            outage_s=round(outage_s, 1),
            records=records,
            batches=batches,
            event="delivered_again",
        )

    def _compare_clocks(self, broker_ms: int) -> None:
        now_ms = self._context.clock.wall_ms()
        late = [lane.journal.broker_clock(broker_ms, now_ms) for lane in list(self._context.lanes)]
        if any(late):
            self._log.limited(
                logging.WARNING,
                "clock_behind",
                "",
                "This machine's clock is %.1f h behind the brokers' clocks: they may forget this producer between two"
                " batches, so each batch waits for the answer to the previous one. Correct the clock",
                (broker_ms - now_ms) / 3_600_000,
            )

    def _count_error(
        self, address: tuple[str, int], name: str, *, log_start_offset: int = -1, last_acked: int = -1
    ) -> None:
        self._context.stats.errors["produce", name] += 1
        self._sequence_errors.answered(
            address, name, log_start_offset=log_start_offset, last_acked=last_acked
        )
        self.reasons[address] = name

    def in_trouble(self, topic: str, partition: int) -> None:
        """Count a failed request for this partition, or a request of an inquiry; see `_CALM`."""
        times = self._troubles.get((topic, partition))
        if times is None:
            times = self._troubles[topic, partition] = collections.deque(maxlen=_CALM + 1)
        times.append(self._context.clock.monotonic())

    def _calm_in_s(self, topic: str, partition: int) -> float:
        times = self._troubles.get((topic, partition))
        if times is None or len(times) <= _CALM:
            return 0.0
        return times[0] + _CALM_S - self._context.clock.monotonic()

    def when_calm(self, topic: str, partition: int, inquiry: Inquiry) -> None:
        """Begin an inquiry, if necessary after a pause. The pause keeps the rate of all inquiries (`_TURN_S`) and the
        number of recent failed requests for the partition (`_CALM`) within their limits.
        """
        now = self._context.clock.monotonic()
        self._turn = max(self._turn + _TURN_S, now - _AT_ONCE_S)
        pause_s = max(self._calm_in_s(topic, partition), self._turn - now)
        if pause_s > 0:
            self._context.timer(pause_s, InquiryDue(inquiry))
        else:
            inquiry.go_on()

    def wait(self, lane: Lane, wait: j.Wait) -> None:
        """Begin the pause of a destination before its next attempt."""
        topic, partition = lane.journal.views.address(wait.destination)
        backoff_s = (self._context.slow_backoff if wait.refused else self._context.backoff).pause_s(
            wait.attempt
        )
        due = self._pauses[lane, wait.destination] = RetryDue(lane, wait.destination)
        self._waiting.pop((lane, wait.destination), None)
        if not wait.at_least_s:
            if self._has_news((topic, partition), refused=wait.refused):
                backoff_s = 0.0
            else:
                self._waiting[lane, wait.destination] = due, wait.refused
        pause_s = max(wait.at_least_s, backoff_s, self._calm_in_s(topic, partition))
        if wait.at_least_s > backoff_s:
            self._context.progress.pause(self._context.clock.monotonic() + pause_s)
        self._context.stats.pauses.add()
        self._context.stats.backoff_s["produce"] += pause_s
        # If no broker is connected, the transport logs the reason, and a line for each partition would only repeat it.
        connected = self._context.cluster.connected
        self._log.limited(
            logging.DEBUG if not connected else logging.WARNING if wait.attempt > 3 else logging.INFO,
            "delivery_retried",
            f"{topic}-{partition}",
            "%s-%d: attempt %d failed, next in %.2f s: %s",
            topic,
            partition,
            wait.attempt,
            pause_s,
            wait.reason,
            lane=lane.name,
            topic=topic,
            partition=partition,
            attempt=wait.attempt,
            pause_s=round(pause_s, 3),
            error=self.reasons.get((topic, partition), ""),
        )
        self._context.emit(events.DeliveryRetried(topic, partition, wait.attempt, pause_s, wait.reason))
        if wait.refresh_metadata:
            self._context.refresh_topics([topic])
        self._context.timer(pause_s, due)

    def retry(self, due: RetryDue) -> None:
        """End a pause.

        1. A broker does not answer, and the partition pauses for a second.
        2. After a tenth of a second, another broker is the leader, so the pause ends early (`let_out`).
        3. The new leader fails too, and the partition pauses again.
        4. The timer of the first pause fires, and must not end the second pause.
        """
        if self._pauses.get((due.lane, due.destination)) is due:
            del self._pauses[due.lane, due.destination]
            self._waiting.pop((due.lane, due.destination), None)
            due.lane.journal.retry(due.destination)

    def want_producer_id(self, lane: Lane) -> None:
        """Ask for a producer id. The answer arrives as `ProducerIdAnswered`."""
        lane.producer_id.ask()
        self._context.cluster.init_producer_id(
            lambda answer: self._context.post(ProducerIdAnswered(lane, answer))
        )

    def granted(self, lane: Lane, result: t.ProducerIdGranted | t.Failure) -> None:
        """Handle the answer to a request for a producer id."""
        if self._context.own_cluster.stranger is not None:
            return  # the id of another cluster; this producer ends
        if isinstance(result, t.ProducerIdGranted):
            lane.producer_id.granted()
            self._context.progress.note()
            lane.journal.granted(result.producer_id, result.epoch)
            return
        if result.code in REFUSED_ID_CODES:
            self._outage.answered(self._context.clock.monotonic())
        else:
            self._outage.failed(self._context.clock.monotonic())
        reason = _with_remedy(result.error)
        lane.producer_id.failed(reason)
        repeated = self._context.cluster.connected and lane.producer_id.failures > _ID_FAILURES
        self._log.limited(
            logging.WARNING if repeated else logging.INFO,
            "no_producer_id",
            lane.name,
            "No producer id yet, so nothing can be sent: %s",
            reason,
            lane=lane.name,
            attempt=lane.producer_id.failures,
            error=type(result.error).__name__,
        )
        pause_s = self._context.backoff.pause_s(lane.producer_id.failures)
        self._context.timer(pause_s, ProducerIdDue(lane))


def _with_remedy(error: BaseException) -> str:
    """The name and message of an error, as text. For an error code from a broker, the text also has the remedy."""
    if not isinstance(error, kafka_errors.BrokerResponseError) or error.errno is None:
        return text(error)
    return f"{text(error)}. {classify_code(error.errno).explanation}"
