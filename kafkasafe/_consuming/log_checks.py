"""Procedures that examine the leader's log: its bounds, and whether it still contains the records that were read.

The procedures are generators of requests and pauses. They change no position.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe._consuming.history import HistoryCopy, headers
from kafkasafe._consuming.partition import LocalStart, LogCompared, LogRange, ResetReason, ResetTo
from kafkasafe._consuming.ports import Metadata
from kafkasafe._consuming.reports import Reports
from kafkasafe.classification import Verdict
from kafkasafe.cluster.api import (
    EARLIEST,
    Cluster,
    Failure,
    OffsetListed,
    RecordsFetched,
    Reply,
    TopicInfo,
)
from kafkasafe.cluster.inquiry import ask_until_answered, pause_s
from kafkasafe.cluster.lookups import LeaderChangedError, LookUps, Note
from kafkasafe.cluster.procedures import Ask, Pause, Procedure
from kafkasafe.codes.numbers import OFFSET_OUT_OF_RANGE
from kafkasafe.codes.sets import OTHER_LEADER_CODES
from kafkasafe.codes.verdicts import classify_code
from kafkasafe.events import EndOffsetRegressed
from kafkasafe.history.epochs import (
    UNDEFINED,
    BatchWalk,
    Diverged,
    EpochWalk,
    Lineage,
    Outcome,
    Same,
    Unknown,
)
from kafkasafe.offsets import EndOffsetTracker, IsolationLevel

_NOTHING: Final = Unknown("nothing was asked")
# If an end offset is lower than an earlier end offset, the consumer waits this many seconds and looks it up again.
_SETTLE_S: Final = 0.5


class LogChecks:
    """Makes the procedures with which one consumer checks logs.

    Args:
        metadata: kafka-python's metadata, which are separate from the metadata of our connections.
        hold_timeout_s: For this many seconds, the consumer does not accept an end offset that is lower than an earlier
            end offset.
        isolation: Isolation level. With 1 (read_committed), the end of a log is its last stable offset.
    """

    def __init__(
        self,
        *,
        network: Callable[[], Cluster],
        lookups: LookUps,
        metadata: Metadata,
        reports: Reports,
        tracker: EndOffsetTracker,
        hold_timeout_s: float,
        isolation: IsolationLevel,
    ) -> None:
        self._network = network
        self._lookups = lookups
        self._metadata = metadata
        self._reports = reports
        self._tracker = tracker
        self._hold_timeout_s = hold_timeout_s
        self._isolation = isolation

    def reset(self, tp: TopicPartition, strategy: int, reason: ResetReason | None) -> Procedure[ResetTo]:
        start = None
        if strategy == EARLIEST or (reason is not None and reason[0] == "no_position"):
            start = yield from self._start(tp)
        if strategy == EARLIEST and start is not None:
            return ResetTo(strategy, start, start)
        end = yield from self._settled_end(tp)
        return ResetTo(strategy, end, start)

    def _settled_end(self, tp: TopicPartition) -> Procedure[int]:
        """Find an end offset from which the consumer can continue. The result is never beyond the leader's log end,
        because a position beyond the log end would be out of range at once.
        """
        began = time.monotonic()
        while True:
            end = yield from self._end(tp, ignore)
            if end <= (yield from self._log_end(tp)):
                return end
            if time.monotonic() - began >= self._hold_timeout_s:
                lowered = self._tracker.accept(tp.topic, tp.partition, isolation_level=self._isolation)
                if lowered is not None:
                    event = EndOffsetRegressed(
                        tp.topic, tp.partition, lowered.offset, lowered.previous, lowered.reason.value
                    )
                    self._reports.emit(event)
                    return lowered.offset
            yield Pause(_SETTLE_S)

    def local(self, tp: TopicPartition) -> Procedure[LocalStart]:
        """Look up the first offset that the leader has on its own disk, not in remote storage."""
        return LocalStart((yield from self._lookups.local_start(*tp)))

    def examine_range(self, tp: TopicPartition, read: HistoryCopy, position: int) -> Procedure[LogRange]:
        """Look up the bounds of the log. If the position is outside the bounds, compare the log with the history. A log
        that begins after the position is compared, too, because it may belong to a new topic with the same name.
        """
        start = yield from self._start(tp)
        end = yield from self._log_end(tp)
        walked = None
        is_outside = position > end or (position < start and read.topic_id is not None)
        if is_outside and read.lineage.entries and read.lineage.start_offset < position:
            walked = yield from self.walk(tp, read, position)
        return LogRange(start, end, walked)

    def _start(self, tp: TopicPartition) -> Procedure[int]:
        """Look up where the leader's log begins now, regardless of earlier answers."""
        return (yield from self._lookups.listed(*tp, EARLIEST)).offset

    def _end(self, tp: TopicPartition, note: Note) -> Procedure[int]:
        return (yield from self._lookups.end(*tp, note)).offset

    def walk(self, tp: TopicPartition, read: HistoryCopy, position: int) -> Procedure[LogCompared]:
        """Compare the leader's log with the records that were read before `position`.

        This procedure requests new metadata. The new metadata and kafka-python's metadata may contain different topic
        ids. Ids do not show which topic is newer. So the procedure waits until both contain the same id. Otherwise, the
        consumer could stop reading for ever:

        1. The consumer has read the topic with id A. The topic is deleted and created again with id B, and again with
           id C.
        2. kafka-python's metadata still contain id B. The new metadata contain id C. Suppose the procedure accepts
           topic C.
        3. The next check would use kafka-python's metadata, conclude that B is newer than C, and treat C as a former
           topic. All later metadata contain id C and would count as outdated, so the consumer would never read the
           partition again.

        The procedure also waits if one of the two different ids is the id of the topic that was read. For instance,
        another member of the group has read the new topic and committed the position, but some metadata of this
        consumer still contain the former id.

        The procedure also waits while both contain the same id of a deleted topic. `FormerTopics` limits this wait.
        """
        topic_id = read.topic_id
        tries = 0
        while True:
            leadership = self._metadata.leadership(tp)
            # kafka-python's metadata may be minutes old.
            info = yield from self._fresh(tp.topic)
            leader = info.partitions.get(tp.partition)
            # But kafka-python's metadata may also be newer than `info`, which may come from another broker.
            fresh_id = info.topic_id if any(info.topic_id) else None
            ids = {fresh_id, leadership[0] if leadership else None} - {None}
            named = next(iter(ids)) if len(ids) == 1 else None
            if read.former.name(named, time.monotonic()) or len(ids) > 1:
                self._metadata.request()
                yield Pause(pause_s(tries))
                tries += 1
                continue
            other = None if named == topic_id else named
            try:
                if topic_id is not None and other is not None:
                    end = yield from self._log_end(tp)
                    epoch = UNDEFINED if leader is None else leader.leader_epoch
                    walked = LogCompared(_all_gone(read.lineage, position, end), epoch, 0, recreated=True)
                else:
                    current = self._newest_epoch(tp)
                    walked = yield from self._walk_one_leader(tp, read, position, current)
            except LeaderChangedError:
                self._metadata.request()
                yield Pause(pause_s(tries))
                tries += 1
                continue
            return walked._replace(topic_id=other or topic_id, leadership=leadership)

    def _fresh(self, topic: str) -> Procedure[TopicInfo]:
        """Request fresh metadata of a topic, and retry until the topic exists."""
        transport = self._network()
        tries = 0
        while True:
            answer = yield Ask(functools.partial(transport.refresh_metadata, [topic]))
            info = transport.topic(topic)
            if not isinstance(answer, Failure) and info is not None:
                if not info.error_code:
                    return info
                verdict = classify_code(info.error_code, "metadata")
                if not verdict.retriable:
                    raise code_error(info.error_code, f"{topic}: {verdict.explanation}")
            yield Pause(pause_s(tries))
            tries += 1

    def _walk_one_leader(
        self, tp: TopicPartition, read: HistoryCopy, position: int, current: int
    ) -> Procedure[LogCompared]:
        lineage = read.lineage
        start = yield from self._start(tp)
        walk = EpochWalk(lineage, position=position, log_start_offset=start)
        outcome: Outcome | None
        try:
            while (epoch := walk.query()) is not None:
                answer = yield from self._lookups.epoch_end(*tp, epoch, current)
                walk.answer(answer.leader_epoch, answer.end_offset)
        except kafka_errors.IllegalStateError:  # the consumer was closed meanwhile
            raise
        except kafka_errors.KafkaError as error:
            # Brokers before 2.3 refuse OffsetForLeaderEpoch to clients without the permission ClusterAction.
            outcome = Unknown(f"the broker does not answer questions about epochs: {error!r}")
        else:
            outcome = walk.outcome
        if read.marks and not (isinstance(outcome, Diverged) and outcome.exact):
            compared = yield from self._compare(tp, read, position, start, current)
            rounds = walk.round_trips + compared.round_trips
            match outcome, compared.outcome:
                case (Diverged() as by_epochs, Diverged() as found) if (
                    found.divergent_offset <= by_epochs.divergent_offset
                ):
                    epochs = by_epochs.rolled_back_epochs
                    return LogCompared(dataclasses.replace(found, rolled_back_epochs=epochs), current, rounds)
                case ((Unknown() | Same() | None), (Same() | Diverged()) as found):
                    return LogCompared(found, current, rounds)
                case _:
                    pass  # keep the result of the epoch walk
        if isinstance(outcome, Unknown) and walk.steps:
            ours = lineage.copy()
            ours.truncate(position)
            if 0 <= current < ours.newest_epoch:
                # The leader's own epoch is older than the epochs that were read. Epochs never decrease in one topic.
                end = yield from self._log_end(tp)
                return LogCompared(
                    _all_gone(lineage, position, end), current, walk.round_trips, recreated=True
                )
        if isinstance(outcome, Diverged):
            end = yield from self._log_end(tp)
            again = EpochWalk(lineage, position=position, log_start_offset=start, log_end_offset=end)
            for step in walk.steps:
                again.answer(step.reply_epoch, step.reply_end_offset)
            outcome = again.outcome
        return LogCompared(outcome or _NOTHING, current, walk.round_trips)

    def _compare(
        self, tp: TopicPartition, read: HistoryCopy, position: int, start: int, current: int
    ) -> Procedure[BatchWalk]:
        """Compare batches that were read with the leader's batches."""
        end = yield from self._log_end(tp)
        walk = BatchWalk(read.marks, position=position, log_start_offset=start, log_end_offset=end)
        tries = 0
        while (offset := walk.query()) is not None:
            answer = yield from self._batch_at(tp, offset, current)
            found = next((each for each in headers(answer.records) if each.last_offset >= offset), None)
            if found is None:
                # The batch is above the high watermark of a new leader that is catching up, so fetches do not return
                # the batch yet.
                yield Pause(pause_s(tries))
                tries += 1
                continue
            rewritten = found.rewritten or found.base_offset > offset
            walk.answer(found.last_offset, found.crc, rewritten=rewritten)
        return walk

    def _batch_at(self, tp: TopicPartition, offset: int, current: int) -> Procedure[RecordsFetched]:
        transport = self._network()

        def send(reply: Reply[Any]) -> None:
            # Brokers return the whole first batch, even if it is larger than the requested size.
            transport.fetch_records(tp.topic, tp.partition, offset, 1, reply, current_leader_epoch=current)

        def failed(_: Exception, verdict: Verdict) -> None:
            if verdict.code in OTHER_LEADER_CODES or verdict.code == OFFSET_OUT_OF_RANGE:
                raise LeaderChangedError

        answer: RecordsFetched = yield from ask_until_answered(
            transport, tp.topic, "fetch", send, failed, stats=self._reports.stats
        )
        return answer

    def _log_end(self, tp: TopicPartition) -> Procedure[int]:
        transport = self._network()

        def send(reply: Reply[Any]) -> None:
            transport.log_end_offset(tp.topic, tp.partition, reply)

        answer: OffsetListed = yield from ask_until_answered(
            transport, tp.topic, "list_offsets", send, stats=self._reports.stats
        )
        return answer.offset

    def _newest_epoch(self, tp: TopicPartition) -> int:
        """Return the newest leader epoch in kafka-python's metadata and in the metadata of our connections."""
        leadership = self._metadata.leadership(tp)
        info = self._network().topic(tp.topic)
        leader = info.partitions.get(tp.partition) if info is not None else None
        return max(
            UNDEFINED if leadership is None else leadership[2],
            UNDEFINED if leader is None else leader.leader_epoch,
        )


def _all_gone(lineage: Lineage, position: int, log_end: int) -> Diverged:
    """Return the divergence after a topic was replaced by another topic with the same name: all records that were read
    are gone.
    """
    ours = lineage.copy()
    ours.truncate(position)
    first, last = ours.start_offset, ours.end_offset - 1
    standing = min(log_end - 1, last)
    epochs = tuple(epoch for epoch, _ in ours.entries if epoch != UNDEFINED)
    return Diverged(0, (first, last), (first, standing) if standing >= first else None, None, epochs)


def ignore(_: object) -> None:
    """Ignore failed attempts of a procedure."""


def code_error(code: int, message: str) -> Exception:
    error: Exception = kafka_errors.for_code(code)(message)
    return error
