"""Asks partition leaders whether the log has the batches in doubt, and which acknowledged batches it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kafkasafe import journal as j
from kafkasafe.cluster import api as t
from kafkasafe.cluster.procedures import Pause, Procedure
from kafkasafe.codes.numbers import TOPIC_AUTHORIZATION_FAILED
from kafkasafe.delivery.engine.context import EngineContext, another_topic
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.leader import (
    LeaderRequests,
    NoAnswerError,
    RunningInquiry,
    good,
    trouble,
    unsupported,
)
from kafkasafe.delivery.engine.sender import Sender
from kafkasafe.delivery.engine.sequence_errors import SequenceErrors
from kafkasafe.history.identity import (
    BatchId,
    BatchKind,
    IdentityVerdict,
    Judgement,
    LogBatch,
    ProducerView,
    Scan,
    judge_by_both,
    judge_by_state,
    judge_located,
    shows,
)
from kafkasafe.history.loss import Survey
from kafkasafe.record.batch import BatchHeader
from kafkasafe.spool.refusals import read_needed

_SCAN_PATIENCE: Final = 40  # maximum number of polls of a log whose replicas lag
_SCAN_POLL_S: Final = 0.25


def _view(described: t.ProducersDescribed, producer_id: int) -> ProducerView | None:
    state = described.producers.get(producer_id)
    return None if state is None else ProducerView(state.epoch, state.last_sequence, state.last_timestamp)


def _read_pages(
    context: EngineContext, leader: LeaderRequests, log: Scan | Survey, *, polls: int
) -> Procedure[bool]:
    """Read the log page by page.

    Args:
        context: See `EngineContext`.
        leader: The leader that has the log.
        log: The log to read.
        polls: Maximum number of times to read again while the replicas have not confirmed further records.

    Returns:
        Whether the log was read to its end. False only if `polls` is 0.

    Raises:
        NoAnswerError: The leader does not answer, or the partition's replicas do not catch up.
    """
    polled = 0
    while not log.done:
        before = log.next_offset
        result: t.HeadersFetched | t.Failure = yield leader.fetch_headers(before, "page")
        page = good(result)
        log.page(
            [_log_batch(header, page.markers) for header in page.headers],
            next_offset=page.next_offset,
            log_start_offset=page.log_start_offset,
        )
        if log.next_offset > before:
            context.progress.note_read(*leader.address, log.next_offset)
            continue
        if not polls:
            return False
        polled += 1
        if polled > polls:
            raise NoAnswerError("the replicas do not catch up")
        yield Pause(_SCAN_POLL_S)
    return True


def _log_batch(header: BatchHeader, markers: Mapping[int, bool]) -> LogBatch:
    kind = BatchKind.TRANSACTIONAL if header.is_transactional else BatchKind.PLAIN
    if header.is_control:
        commits = markers.get(header.base_offset)
        kind = BatchKind.PLAIN if commits is None else BatchKind.COMMIT if commits else BatchKind.ABORT
    return LogBatch(
        header.base_offset,
        header.last_offset,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        kind,
    )


def _scan(doubt: Sequence[BatchId], begin: int, log_start: int, log_end: int) -> Scan:
    """Return a scan of the log that starts at `begin`, or at the log start offset if this offset is higher."""
    scan = Scan(doubt, begin, log_end)
    if log_start > begin:
        scan.page((), next_offset=begin, log_start_offset=log_start)
    return scan


class Baseline:
    """Finds the end of a partition's log before the lane sends the first batch to that partition."""

    def __init__(self, context: EngineContext, lane: Lane, ask: j.OutcomeAsk, leader: LeaderRequests) -> None:
        self._context = context
        self._lane = lane
        self._ask = ask
        self._leader = leader

    def run(self) -> Procedure[None]:
        """The inquiry."""
        ask, journal = self._ask, self._lane.journal
        result: t.OffsetListed | t.Failure = yield self._leader.list_offset(t.LATEST, "listed")
        try:
            listed = good(result)
        except NoAnswerError as failed:
            journal.ask_failed(ask.destination, failed.reason, code=failed.code, now=self._context.now())
            return
        topic_id = self._context.topic_id(self._leader.address[0])
        self._context.progress.note()
        journal.baseline(ask.destination, listed.offset, topic_id)


class Confirmation:
    """Asks the leader that refused a batch for the state that it keeps about the producer. If the leader reports no
    such state, the journal trusts the refusal.
    """

    def __init__(
        self,
        context: EngineContext,
        sequence_errors: SequenceErrors,
        lane: Lane,
        ask: j.OutcomeAsk,
        leader: LeaderRequests,
    ) -> None:
        self._context = context
        self._sequence_errors = sequence_errors
        self._lane = lane
        self._ask = ask
        self._leader = leader

    def run(self) -> Procedure[None]:
        """The inquiry."""
        ask, journal = self._ask, self._lane.journal
        result: t.ProducersDescribed | t.Failure = yield self._leader.describe_producers("described")
        code, reason = trouble(result)
        if reason and not code:
            journal.ask_failed(ask.destination, reason, code=0, now=self._context.now())
            return
        view = None
        if isinstance(result, t.ProducersDescribed) and not reason:
            view = _view(result, ask.doubt[0].producer_id)
        if not shows(view, ask.doubt[0]):
            self._sequence_errors.absent(self._leader.address)
        journal.confirmed(ask.destination, view)


class OutcomeInquiry:
    """Finds out whether batches in doubt are in the log: asks for the producer state, then reads the log itself."""

    def __init__(
        self,
        context: EngineContext,
        sender: Sender,
        sequence_errors: SequenceErrors,
        lane: Lane,
        ask: j.OutcomeAsk,
        leader: LeaderRequests,
    ) -> None:
        self._context = context
        self._sender = sender
        self._sequence_errors = sequence_errors
        self._lane = lane
        self._ask = ask
        self._leader = leader
        self._leader_epoch = leader.epoch

    def run(self) -> Procedure[None]:
        """The inquiry."""
        ask = self._ask
        try:
            yield from self._decide()
        except NoAnswerError as failed:
            reason = failed.reason
            if failed.code == TOPIC_AUTHORIZATION_FAILED:
                reason = read_needed(self._leader.address[0], len(ask.doubt), reason)
            self._lane.journal.ask_failed(ask.destination, reason, code=failed.code, now=self._context.now())

    def _decide(self) -> Procedure[None]:
        ask = self._ask
        if self._leader_epoch < 0:
            # A producer that has just started has no metadata yet. The first metadata must not look like an election.
            refreshed: t.MetadataRefreshed | t.Failure = yield self._leader.refresh_metadata("metadata")
            if isinstance(refreshed, t.Failure):
                raise NoAnswerError(trouble(refreshed)[1])
            self._leader_epoch = self._leader.epoch
        view = None
        described: t.ProducersDescribed | t.Failure = yield self._leader.describe_producers("described")
        if not unsupported(described):
            view = _view(good(described), ask.doubt[0].producer_id)
        by_state = judge_by_state(ask.doubt, view, acked_before=ask.acked_before)
        believed = not (ask.read_log or ask.fenced or by_state.verdict is IdentityVerdict.READ_LOG)
        if believed and (yield from self._is_proven(by_state)):
            if not by_state.present or ask.from_offset < 0:
                self._probe(by_state)
                return
            # The log has the batches, so find their offsets.
            if (yield from self._locate(by_state)):
                return
        yield from self._search(view)

    def _is_proven(self, by_state: Judgement) -> Procedure[bool]:
        """Whether to trust the producer state that the leader reports.

        A leader that lost its log accepts any sequence number. If such a leader accepts one late request, its producer
        state looks as if the log had all earlier batches. So if the state contains several batches in doubt, it
        does not suffice. The leader must also report that the last known epoch ends at or after `from_offset`, the
        lowest offset that these batches can have.
        """
        ask = self._ask
        epoch = self._lane.journal.views.leader_epoch(ask.destination)
        if by_state.present <= 1 or epoch < 0 or ask.from_offset <= 0:
            return True
        proof: t.EpochEnd | t.Failure = yield self._leader.offset_for_leader_epoch(epoch, "proof")
        return unsupported(proof) or good(proof).end_offset >= ask.from_offset

    def _locate(self, by_state: Judgement) -> Procedure[bool]:
        """Search the log for the offsets of the batches that the producer state contains.

        Returns:
            False if the log contradicts the producer state. Then the whole log must be searched.
        """
        ask = self._ask
        started: t.OffsetListed | t.Failure = yield self._leader.list_offset(t.EARLIEST, "start")
        log_start = good(started).offset
        ended: t.OffsetListed | t.Failure = yield self._leader.log_end_offset("end")
        log_end = good(ended).offset
        if ask.from_offset > log_end:
            self._probe(by_state)  # the log has been truncated: the journal asks for a survey first
            return True
        scan = _scan(ask.doubt[: by_state.present], ask.from_offset, log_start, log_end)
        if not (yield from _read_pages(self._context, self._leader, scan, polls=0)):
            self._probe(by_state)  # replicas have not confirmed the rest of the log yet
            return True
        self._require_same_leader()
        judgement, stable = judge_located(by_state, scan)
        if not stable:
            # The inquiry has read the log to its end, and the log lacks the batches. So the producer state comes from a
            # late request (see `judge_located`).
            return False
        self._note(judgement, "state", stable=True)
        self._lane.journal.judged(
            ask.destination,
            judgement,
            stable=True,
            leader_epoch=self._leader_epoch,
            now=self._context.now(),
        )
        return True

    def _search(self, view: ProducerView | None) -> Procedure[None]:
        """Read the log for the batches in doubt."""
        ask = self._ask
        started: t.OffsetListed | t.Failure = yield self._leader.list_offset(t.EARLIEST, "start")
        log_start = good(started).offset
        whole, cut_at = True, -1
        epoch = self._lane.journal.views.leader_epoch(ask.destination)
        if epoch >= 0 and ask.from_offset > 0:
            # If the log was truncated and has grown again, the batches in doubt may have lower offsets than the last
            # acknowledged record.
            result: t.EpochEnd | t.Failure = yield self._leader.offset_for_leader_epoch(epoch, "epoch")
            if not unsupported(result):
                end_offset = good(result).end_offset
                # If the log begins before `from_offset` but lacks the leader epoch, it is not the log in which the
                # earlier batches were acknowledged.
                cut_at = end_offset if end_offset >= 0 else log_start
                whole = end_offset >= ask.from_offset
        ended: t.OffsetListed | t.Failure = yield self._leader.log_end_offset("end")
        log_end = good(ended).offset
        begin, read_from, shrunk_to = max(0, ask.from_offset), 0, -1
        if ask.from_offset > (end := log_end if cut_at < 0 else min(cut_at, log_end)):
            # The log no longer reaches the offsets of acknowledged records, so read all of the log.
            begin, read_from, shrunk_to = log_start, log_start, end
        scan = _scan(ask.doubt, begin, log_start, log_end)
        yield from _read_pages(self._context, self._leader, scan, polls=_SCAN_PATIENCE)
        self._require_same_leader()
        judgement = judge_by_both(
            scan,
            view,
            acked_before=ask.acked_before,
            whole=whole and shrunk_to < 0 and not ask.cut,
        )
        self._note(judgement, "log", stable=True)
        self._lane.journal.judged(
            ask.destination,
            judgement,
            stable=True,
            shrunk_to=shrunk_to,
            read_from=read_from,
            leader_epoch=self._leader_epoch,
            now=self._context.now(),
        )

    def _probe(self, judgement: Judgement) -> None:
        self._note(judgement, "state", stable=False)
        self._lane.journal.judged(self._ask.destination, judgement, stable=False, now=self._context.now())

    def _require_same_leader(self) -> None:
        if self._leader.epoch != self._leader_epoch:
            # The inquiry may have read pages of two leaders' logs, so it cannot tell which records every later leader
            # is guaranteed to have.
            raise NoAnswerError("another leader was elected while the log was read")

    def _note(self, judgement: Judgement, method: str, *, stable: bool) -> None:
        if judgement.present:
            self._context.progress.note()
            if stable:  # otherwise a probe follows, and only its acknowledgement ends the outage
                self._sender.found(self._leader.address)
        elif judgement.verdict is IdentityVerdict.UNDECIDABLE:
            self._sender.not_found(self._leader.address)
        stats = self._context.stats
        stats.in_doubt_resolved["present", method] += judgement.present
        absent = len(self._ask.doubt) - judgement.present
        verdict = "undecidable" if judgement.verdict is IdentityVerdict.UNDECIDABLE else "absent"
        stats.in_doubt_resolved[verdict, method] += absent
        self._sequence_errors.judged(self._leader.address, judgement.verdict.value)


class LossInquiry:
    """Reads the log from the offset of the oldest acknowledged batch, to find acknowledged batches that are missing."""

    def __init__(self, context: EngineContext, lane: Lane, ask: j.SurveyAsk, leader: LeaderRequests) -> None:
        self._context = context
        self._lane = lane
        self._ask = ask
        self._leader = leader

    def run(self) -> Procedure[None]:
        """The inquiry."""
        try:
            yield from self._survey()
        except NoAnswerError as failed:
            self._lane.journal.survey_failed(self._ask.destination, failed.reason, code=failed.code)

    def _survey(self) -> Procedure[None]:
        ask, journal = self._ask, self._lane.journal
        # If the topic was created again, only fresh metadata contain its new id.
        refreshed: t.MetadataRefreshed | t.Failure = yield self._leader.refresh_metadata("metadata")
        if isinstance(refreshed, t.Failure):
            raise NoAnswerError(trouble(refreshed)[1])
        topic_id, leader_epoch, epoch_end = self._id_now(), -1, -1
        if ask.destination in journal.missing.proven:
            # The partition was deleted with its topic, so all of its log is lost.
            survey = Survey(ask.acked, 0, 0, 0)
        else:
            leader_epoch = self._leader.epoch
            survey, epoch_end = yield from self._begin()
            yield from _read_pages(self._context, self._leader, survey, polls=_SCAN_PATIENCE)
            yield from self._require_same_topic(topic_id)
        if topic_id != self._id_now():
            # The survey may have found batches in the log of the former topic.
            raise NoAnswerError("the topic was created again meanwhile")
        # Topics have ids since Kafka 2.8. On older brokers, only an acknowledged batch that is still in the log proves
        # that the topic was not recreated.
        comparable = any(topic_id) and any(journal.views.topic_id(ask.destination))
        journal.surveyed(
            ask.destination,
            survey.loss(),
            survey.end_offset,
            epoch_end_offset=epoch_end,
            topic_id=topic_id,
            same_topic=comparable or survey.any_left,
            leader_epoch=leader_epoch,
        )

    def _require_same_topic(self, topic_id: bytes) -> Procedure[None]:
        """Check that the survey read the log of the topic with this id.

        Requests refer to the topic by name. If the topic was recreated, the leader may have read the log of the new
        topic, while the metadata came from a broker that knew only the former topic's id. So ask the leader for the
        topic's id after the survey: a broker knows a topic's id before it answers requests for the topic's log.
        """
        if not any(topic_id):
            return
        seen: t.TopicInfo | t.Failure = yield self._leader.topic("topic")
        if another_topic(topic_id, good(seen).topic_id):
            raise NoAnswerError("the leader has another topic of this name than the metadata")

    def _begin(self) -> Procedure[tuple[Survey, int]]:
        """Prepare the survey. Return the survey, and the end offset of the leader epoch under which the last batch was
        acknowledged (-1 if this offset is unknown).
        """
        ask, begin, epoch_end = self._ask, self._ask.from_offset, -1
        if ask.leader_epoch >= 0:
            ended: t.EpochEnd | t.Failure = yield self._leader.offset_for_leader_epoch(
                ask.leader_epoch, "epoch"
            )
            # Ignore an error, because the end of the epoch only makes the result more precise. Old brokers do not
            # support the request.
            if not isinstance(ended, t.Failure) and not ended.error_code:
                epoch_end = ended.end_offset
                # If the leader does not know the epoch (-1), the log may lack all acknowledged records, so read the
                # whole log.
                begin = min(offset for offset in (begin, max(0, epoch_end)) if offset >= 0)
        started: t.OffsetListed | t.Failure = yield self._leader.list_offset(t.EARLIEST, "start")
        log_start = max(0, good(started).offset)
        listed: t.OffsetListed | t.Failure = yield self._leader.log_end_offset("end")
        log_end = good(listed).offset
        doubted_from = begin if begin < 0 else max(begin, ask.baseline_offset)
        released = ask.released.since(doubted_from) if doubted_from >= 0 else None
        return Survey(ask.acked, log_end, log_start, begin, ask.ours, doubted_from, released), epoch_end

    def _id_now(self) -> bytes:
        return self._context.topic_id(self._leader.address[0])


class Inquiries:
    """Runs the journal's inquiries. An inquiry that may read a log begins only when few requests about the partition
    have failed recently (see `Sender.when_calm`).
    """

    def __init__(self, context: EngineContext, sender: Sender, sequence_errors: SequenceErrors) -> None:
        self._context = context
        self._sender = sender
        self._sequence_errors = sequence_errors

    def survey(self, lane: Lane, ask: j.SurveyAsk) -> None:
        """Find acknowledged batches that the log of a destination lacks."""
        address = lane.journal.views.address(ask.destination)
        self._sender.tries(*address)
        leader = LeaderRequests(self._context, lane, *address, self._sender.in_trouble)
        self._sender.when_calm(*address, self._running(LossInquiry(self._context, lane, ask, leader), leader))

    def ask(self, lane: Lane, ask: j.OutcomeAsk) -> None:
        """Run the inquiry that the journal requested about one destination."""
        context, sender = self._context, self._sender
        address = lane.journal.views.address(ask.destination)
        sender.tries(*address)
        leader = LeaderRequests(context, lane, *address, sender.in_trouble)
        if not ask.doubt:
            self._running(Baseline(context, lane, ask, leader), leader).go_on()
        elif ask.confirm:
            # Do not call `in_trouble` for this request, because the refused batch is counted already.
            leader = LeaderRequests(context, lane, *address)
            confirmation = Confirmation(context, self._sequence_errors, lane, ask, leader)
            self._running(confirmation, leader).go_on()
        else:
            context.stats.in_doubt_asked.add(len(ask.doubt))
            inquiry = OutcomeInquiry(context, sender, self._sequence_errors, lane, ask, leader)
            sender.when_calm(*address, self._running(inquiry, leader))

    def _running(
        self, inquiry: Baseline | Confirmation | OutcomeInquiry | LossInquiry, leader: LeaderRequests
    ) -> RunningInquiry:
        return RunningInquiry(self._context, leader.name(inquiry), inquiry.run())
