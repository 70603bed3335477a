"""Inquiries of several requests each: whether batches in doubt are in the log, and which acknowledged ones are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import kafka.errors as kafka_errors

from kafkasafe._core import journal as j
from kafkasafe._core import marks as m
from kafkasafe._core.identity import (
    Judgement,
    ProducerView,
    Scan,
    Verdict,
    judge_by_both,
    judge_by_state,
    judge_located,
    shows,
)
from kafkasafe._core.loss import Survey
from kafkasafe._io.engine.answers import trouble, unsupported
from kafkasafe._io.engine.ground import Ground
from kafkasafe._io.engine.lane import Lane
from kafkasafe._io.engine.messages import InquiryDue
from kafkasafe._io.engine.sender import Sender
from kafkasafe._io.engine.steps import Steps
from kafkasafe._io.refusals import read_needed
from kafkasafe.cluster import api as t

__all__ = ["Baseline", "Confirmation", "Inquest", "Question"]

_SCAN_BYTES: Final = 1024 * 1024
_SCAN_PATIENCE: Final = 40  # maximum number of polls of a log whose replicas lag
_SCAN_POLL_S: Final = 0.25


def _view(described: t.ProducersDescribed, producer_id: int) -> ProducerView | None:
    state = described.producers.get(producer_id)
    return None if state is None else ProducerView(state.epoch, state.last_sequence, state.last_timestamp)


A = TypeVar("A", bound=t.Answer)


class _LogSteps(Steps):
    """Asks the leader of a partition in trouble, and reads its log page by page."""

    def __init__(self, ground: Ground, sender: Sender, lane: Lane, topic: str, partition: int) -> None:
        super().__init__(ground, lane, topic, partition)
        self._sender = sender
        self._polls = 0

    def _failed(self, reason: str, code: int) -> None:
        """Report to the journal that there is no answer, and why."""
        raise NotImplementedError

    def _read(self) -> None:
        """Ask for the next page, or report the result to the journal."""
        raise NotImplementedError

    def _then(self, step: str) -> Callable[[Any], None]:
        self._sender.in_trouble(self._topic, self._partition)
        return super()._then(step)

    def _good(self, result: A | t.Failure) -> A | None:
        """The answer; None after reporting a failure to the journal."""
        code, reason = trouble(result)
        if reason:
            self._failed(reason, code)
        return None if reason or isinstance(result, t.Failure) else result

    def _fetch(self, log: Scan | Survey) -> None:
        self._ground.cluster.fetch_headers(
            self._topic, self._partition, log.next_offset, _SCAN_BYTES, self._then("page")
        )

    def _has_more(self, log: Scan | Survey, page: t.HeadersFetched) -> bool:
        """Add a page to the log read so far. If the page had anything new that replicas confirmed, ask for the next."""
        before = log.next_offset
        log.page(
            [
                (h.base_offset, h.last_offset, h.producer_id, h.producer_epoch, h.base_sequence)
                for h in page.headers
            ],
            next_offset=page.next_offset,
            log_start_offset=page.log_start_offset,
        )
        if log.next_offset <= before:
            return False
        self._ground.progressed()
        self._read()
        return True

    def _poll(self) -> None:
        """Ask for the same page after a pause."""
        self._polls += 1
        if self._polls > _SCAN_PATIENCE:
            self._failed("the replicas do not catch up", 0)
            return
        self._ground.timer(_SCAN_POLL_S, InquiryDue(self))


class Baseline(Steps):
    """Finds the end of a partition's log before the lane sends the first batch to it."""

    def __init__(
        self, ground: Ground, sender: Sender, lane: Lane, ask: j.Ask, topic: str, partition: int
    ) -> None:
        super().__init__(ground, lane, topic, partition)
        self._sender = sender
        self._ask = ask

    def go_on(self) -> None:
        """See `Inquiry`."""
        self._sender.in_trouble(self._topic, self._partition)
        self._ground.cluster.list_offset(self._topic, self._partition, t.LATEST, self._then("listed"))

    def _on_listed(self, result: t.OffsetListed | t.Failure) -> None:
        ask, lane = self._ask, self._lane
        code, reason = trouble(result)
        if isinstance(result, t.Failure) or reason:
            lane.journal.ask_failed(ask.destination, reason, code=code, now=self._ground.now())
            return
        info = self._ground.cluster.topic(self._topic)
        topic_id = info.topic_id if info is not None else t.NO_TOPIC_ID
        self._ground.progressed()
        lane.journal.baseline(ask.destination, result.offset, topic_id)


class Confirmation(Steps):
    """Asks a leader for the producer state of a batch that it refused. Without one, the journal trusts the refusal."""

    def __init__(self, ground: Ground, lane: Lane, ask: j.Ask, topic: str, partition: int) -> None:
        super().__init__(ground, lane, topic, partition)
        self._ask = ask

    def go_on(self) -> None:
        """See `Inquiry`."""
        self._ground.cluster.describe_producers(self._topic, self._partition, self._then("described"))

    def _on_described(self, result: t.ProducersDescribed | t.Failure) -> None:
        ask, lane = self._ask, self._lane
        code, reason = trouble(result)
        if reason and not code:
            lane.journal.ask_failed(ask.destination, reason, code=0, now=self._ground.now())
            return
        view = None
        if isinstance(result, t.ProducersDescribed) and not reason:
            view = _view(result, ask.doubt[0].producer_id)
        if not shows(view, ask.doubt[0]):
            self._ground.sequence_errors.absent((self._topic, self._partition))
        lane.journal.confirmed(ask.destination, view)


class Question(_LogSteps):
    """Finds out whether batches in doubt are in the log: asks for the producer state, then reads the log itself."""

    def __init__(
        self, ground: Ground, sender: Sender, lane: Lane, ask: j.Ask, topic: str, partition: int
    ) -> None:
        super().__init__(ground, sender, lane, topic, partition)
        self._ask = ask
        self._view: ProducerView | None = None
        self._scan: Scan | None = None
        self._by_state: Judgement | None = None
        """The verdict of the producer state. The log is then read only for the offsets of the batches."""
        self._unproven: Judgement | None = None
        """The same, while the inquiry checks whether the state can be believed."""
        self._leader_epoch = ground.leader_epoch(topic, partition)
        self._log_start = 0
        self._cut_at = -1
        self._shrunk_to = -1
        self._whole = True
        """Whether the log was not truncated since the last acknowledgement, judged by the leader epoch of that."""
        self._read_from = 0

    def go_on(self) -> None:
        """See `Inquiry`."""
        if self._scan is not None:
            self._read()
            return
        self._ground.cluster.describe_producers(self._topic, self._partition, self._then("described"))

    def _failed(self, reason: str, code: int) -> None:
        if code == kafka_errors.TopicAuthorizationFailedError.errno:
            reason = read_needed(self._topic, len(self._ask.doubt), reason)
        self._lane.journal.ask_failed(self._ask.destination, reason, code=code, now=self._ground.now())

    def _on_described(self, result: t.ProducersDescribed | t.Failure) -> None:
        ask = self._ask
        if not unsupported(result):
            described = self._good(result)
            if described is None:
                return
            self._view = _view(described, ask.doubt[0].producer_id)
        judgement = judge_by_state(ask.doubt, self._view, acked_before=ask.acked_before)
        if ask.read_log or ask.fenced or judgement.verdict is Verdict.READ_LOG:
            self._read_log()
            return
        epoch = self._lane.journal.views.leader_epoch(ask.destination)
        if judgement.present > 1 and epoch >= 0 and ask.from_offset > 0:
            # An empty log accepts any sequence number: the state of one late request would vouch for earlier batches.
            self._unproven = judgement
            self._ground.cluster.offset_for_leader_epoch(
                self._topic, self._partition, epoch, self._then("proof")
            )
            return
        self._judged_by_state(judgement)

    def _on_proof(self, result: t.EpochEnd | t.Failure) -> None:
        judgement = self._unproven
        if judgement is None:
            raise AssertionError("A proof is asked for a judgement")
        if unsupported(result):
            self._judged_by_state(judgement)
            return
        proof = self._good(result)
        if proof is None:
            return
        if proof.end_offset >= self._ask.from_offset:
            self._judged_by_state(judgement)
        else:
            self._read_log()

    def _judged_by_state(self, judgement: Judgement) -> None:
        if judgement.present and self._ask.from_offset >= 0:
            # The batches are in the log: find their offsets.
            self._by_state = judgement
            self._read_log()
        else:
            self._probe(judgement)

    def _probe(self, judgement: Judgement) -> None:
        self._count(judgement, "state")
        self._lane.journal.judged(self._ask.destination, judgement, stable=False, now=self._ground.now())

    def _read_log(self) -> None:
        self._ground.cluster.list_offset(self._topic, self._partition, t.EARLIEST, self._then("start"))

    def _on_start(self, result: t.OffsetListed | t.Failure) -> None:
        start = self._good(result)
        if start is None:
            return
        self._log_start = start.offset
        epoch = self._lane.journal.views.leader_epoch(self._ask.destination)
        if epoch >= 0 and self._ask.from_offset > 0 and self._by_state is None:
            # A log that was truncated and has grown again may hold the batches before the last acknowledged offset.
            self._ground.cluster.offset_for_leader_epoch(
                self._topic, self._partition, epoch, self._then("epoch")
            )
        else:
            self._list_end()

    def _on_epoch(self, result: t.EpochEnd | t.Failure) -> None:
        if not unsupported(result):
            ended = self._good(result)
            if ended is None:
                return
            # A log that reaches back that far and does not know the epoch is another log.
            self._cut_at = ended.end_offset if ended.end_offset >= 0 else self._log_start
            self._whole = ended.end_offset >= self._ask.from_offset
        self._list_end()

    def _list_end(self) -> None:
        self._ground.cluster.log_end_offset(self._topic, self._partition, self._then("end"))

    def _on_end(self, result: t.OffsetListed | t.Failure) -> None:
        listed = self._good(result)
        if listed is None:
            return
        begin, log_start = self._ask.from_offset, self._log_start
        end = listed.offset if self._cut_at < 0 else min(self._cut_at, listed.offset)
        if begin > end:
            # The log ends before records that it acknowledged: read everything that is left.
            self._shrunk_to = end
            begin = self._read_from = log_start
        elif begin < 0:
            begin = 0
        doubt = self._ask.doubt
        if self._by_state is not None:
            if self._shrunk_to >= 0:
                self._probe(self._by_state)  # truncated since: the journal first has the log checked
                return
            doubt = doubt[: self._by_state.present]
        self._scan = Scan(doubt, begin, listed.offset)
        if log_start > begin:
            self._scan.page((), next_offset=begin, log_start_offset=log_start)
        self._read()

    def _read(self) -> None:
        scan = self._scan
        if scan is None:
            raise AssertionError("A scan begins at its start")
        if scan.done:
            self._judge(scan)
            return
        self._fetch(scan)

    def _on_page(self, result: t.HeadersFetched | t.Failure) -> None:
        scan = self._scan
        page = self._good(result)
        if scan is None or page is None or self._has_more(scan, page):
            return
        # The page had nothing new: replicas have not confirmed the rest yet.
        if self._by_state is not None:
            self._probe(self._by_state)
        else:
            self._poll()

    def _count(self, judgement: Judgement, method: str) -> None:
        if judgement.present:
            self._ground.progressed()
        stats = self._ground.stats
        stats.in_doubt_resolved["present", method] += judgement.present
        absent = len(self._ask.doubt) - judgement.present
        verdict = "undecidable" if judgement.verdict is Verdict.UNDECIDABLE else "absent"
        stats.in_doubt_resolved[verdict, method] += absent
        self._ground.sequence_errors.judged((self._topic, self._partition), judgement.verdict.value)

    def _judge(self, scan: Scan) -> None:
        if self._ground.leader_epoch(self._topic, self._partition) != self._leader_epoch:
            # It is unknown which leader's log this was, and so which of its records a later leader must have.
            self._failed("another leader came while the log was read", 0)
            return
        if self._by_state is not None:
            judgement, stable = judge_located(self._by_state, scan)
            if not stable:
                # The log was read to its end and lacks the batches: the state is of a late request (`judge_located`).
                self._by_state = None
                self._read_log()
                return
            self._count(judgement, "state")
            self._lane.journal.judged(
                self._ask.destination,
                judgement,
                stable=True,
                leader_epoch=self._leader_epoch,
                now=self._ground.now(),
            )
            return
        judgement = judge_by_both(
            scan,
            self._view,
            acked_before=self._ask.acked_before,
            whole=self._whole and self._shrunk_to < 0 and not self._ask.cut,
        )
        self._count(judgement, "log")
        self._lane.journal.judged(
            self._ask.destination,
            judgement,
            stable=True,
            shrunk_to=self._shrunk_to,
            read_from=self._read_from,
            leader_epoch=self._leader_epoch,
            now=self._ground.now(),
        )


class Inquest(_LogSteps):
    """Finds acknowledged batches that the log lacks: reads it from where the oldest batch was."""

    def __init__(
        self, ground: Ground, sender: Sender, lane: Lane, ask: j.SurveyAsk, topic: str, partition: int
    ) -> None:
        super().__init__(ground, sender, lane, topic, partition)
        self._ask = ask
        self._epoch_end = -1
        self._leader_epoch = -1
        self._from = ask.from_offset
        self._log_start = 0
        self._topic_id = m.NO_TOPIC_ID
        self._survey: Survey | None = None

    def go_on(self) -> None:
        """See `Inquiry`."""
        if self._survey is not None:
            self._read()
            return
        # If the topic was created again, only fresh metadata show its new id.
        self._ground.cluster.refresh_metadata([self._topic], self._then("metadata"))

    def _on_metadata(self, result: t.MetadataRefreshed | t.Failure) -> None:
        if isinstance(result, t.Failure):
            self._failed(trouble(result)[1], 0)
            return
        transport = self._ground.cluster
        self._topic_id = self._id_now()
        if self._lane.journal.missing.reason(self._ask.destination):
            # The partition was deleted with its topic: nothing is left of its log.
            self._survey = Survey(self._ask.acked, 0, 0, 0)
            self._read()
            return
        self._leader_epoch = self._ground.leader_epoch(self._topic, self._partition)
        if self._ask.leader_epoch >= 0:
            transport.offset_for_leader_epoch(
                self._topic, self._partition, self._ask.leader_epoch, self._then("epoch")
            )
        else:
            transport.list_offset(self._topic, self._partition, t.EARLIEST, self._then("start"))

    def _id_now(self) -> bytes:
        info = self._ground.cluster.topic(self._topic)
        return m.NO_TOPIC_ID if info is None else info.topic_id

    def _failed(self, reason: str, code: int) -> None:
        self._lane.journal.survey_failed(self._ask.destination, reason, code=code)

    def _on_epoch(self, result: t.EpochEnd | t.Failure) -> None:
        # The epoch's end only makes the result more precise. Old brokers do not support the request.
        if not isinstance(result, t.Failure) and not result.error_code:
            self._epoch_end = result.end_offset
            # If the leader does not know the epoch (-1), nothing of the acknowledged log may be left.
            changed = [offset for offset in (self._from, max(0, result.end_offset)) if offset >= 0]
            self._from = min(changed)
        self._ground.cluster.list_offset(self._topic, self._partition, t.EARLIEST, self._then("start"))

    def _on_start(self, result: t.OffsetListed | t.Failure) -> None:
        start = self._good(result)
        if start is not None:
            self._log_start = max(0, start.offset)
            self._ground.cluster.log_end_offset(self._topic, self._partition, self._then("end"))

    def _on_end(self, result: t.OffsetListed | t.Failure) -> None:
        listed = self._good(result)
        if listed is not None:
            doubted_from = self._from if self._from < 0 else max(self._from, self._ask.baseline_offset)
            self._survey = Survey(
                self._ask.acked,
                listed.offset,
                self._log_start,
                self._from,
                self._ask.ours,
                doubted_from,
                self._ask.released.since(doubted_from) if doubted_from >= 0 else None,
            )
            self._read()

    def _read(self) -> None:
        survey = self._survey
        if survey is None:
            raise AssertionError("A survey begins at its start")
        if survey.done:
            journal = self._lane.journal
            topic_id = self._topic_id
            if topic_id != self._id_now():
                # The batches found may be in the log of the earlier topic.
                self._failed("The topic was created again meanwhile", 0)
                return
            # Topics have ids since Kafka 2.8. Before, only a batch that is still there proves that the log is the same.
            comparable = any(topic_id) and any(journal.views.topic_id(self._ask.destination))
            journal.surveyed(
                self._ask.destination,
                survey.loss(),
                survey.end_offset,
                epoch_end_offset=self._epoch_end,
                topic_id=topic_id,
                same_topic=comparable or survey.any_left,
                leader_epoch=self._leader_epoch,
            )
            return
        self._fetch(survey)

    def _on_page(self, result: t.HeadersFetched | t.Failure) -> None:
        survey = self._survey
        page = self._good(result)
        if survey is not None and page is not None and not self._has_more(survey, page):
            self._poll()
