"""Looks up offsets and verifies the answers, for `SafeConsumer` and the planner of the Spark source.

Each public method of `LookUps` is a procedure (`inquiry`) about one partition, which repeats its requests while a retry
can help, and returns the offset to use. An answer without an error can be wrong in two ways:

- A new leader may be behind its predecessor. Then its answer is out of date (KIP-207). So `end`, `start` and `at_time`
  check each answer by the tracker's rules. If the rules require a proof, `end`, `start` and `at_time` ask the leader
  for it. `listed` returns answers without a check.
- If a leader does not find its remote segments, it searches only its own disk for a timestamp (KIP-1007), and answers
  with the first matching record on this disk, or with none. So `at_time` asks whether a part of the log is only in
  remote storage. If so, `at_time` reads the last batch of this part, and then asks again: see `_beside_remote`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka.errors import IllegalStateError, KafkaError, for_code

from kafkasafe.classification import Verdict
from kafkasafe.cluster.api import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    Cluster,
    EpochEnd,
    Failure,
    OffsetListed,
    RecordsFetched,
    Reply,
    TopicInfo,
)
from kafkasafe.cluster.inquiry import ask_until_answered, pause_s
from kafkasafe.cluster.procedures import Ask, Pause, Procedure, Together
from kafkasafe.codes.numbers import NONE, OFFSET_OUT_OF_RANGE, REQUEST_TIMED_OUT, UNKNOWN_SERVER_ERROR
from kafkasafe.codes.sets import NOT_CAUGHT_UP_CODES, OTHER_LEADER_CODES, REMOTE_CODES
from kafkasafe.errors import RemoteStorageNotReadyError
from kafkasafe.events import EndOffsetHeld, EndOffsetRegressed, LookUp
from kafkasafe.history.epochs import UNDEFINED
from kafkasafe.offsets import (
    EndOffsetTracker,
    Held,
    HeldReason,
    IsolationLevel,
    Regressed,
    Result,
    Unproven,
    Value,
)
from kafkasafe.record.batch import iter_headers
from kafkasafe.stats import ConsumerStats

Note = Callable[[Exception], None]
"""Gets the error of each failed attempt."""

_OLD: Final = frozenset({HeldReason.FORMER_LEADER, HeldReason.FORMER_TOPIC})
# An answer may come from a former leader, or from the leader of a deleted topic. From the attempt with this number on,
# the look-up returns the remembered offset, if there is one.
_OLD_ANSWERS: Final = 3
# A value that is larger than any offset.
_NOWHERE: Final = 2**63
# How long a broker may take to read one remote batch before it answers without records.
_REMOTE_READ_MS: Final = 1000


class LeaderChangedError(Exception):
    """The leader changed during a sequence of requests whose answers must all come from one leader.

    This error never leaves the package. This class is no KafkaError, so code that retries KafkaErrors does not catch
    it.
    """


@dataclass(frozen=True, slots=True)
class End:
    """A verified end offset.

    Attributes:
        leader_epoch: The leader's epoch; -1 if the leader does not report it.
    """

    offset: int
    leader_epoch: int


def id_of(info: TopicInfo | None) -> bytes | None:
    """The topic's id; None if the topic is unknown or the brokers have no topic ids."""
    return info.topic_id if info is not None and any(info.topic_id) else None


class LookUps:
    """Asks leaders, retries, and checks answers by the tracker's rules.

    Args:
        network: Function that returns the connections; called for each request.
        tracker: Knows earlier answers.
        stats: Counts retries, and the time during which leaders were not ready.
        emit: Gets events.
        isolation: With 1 (read_committed), the end of a log is its last stable offset.
        note: Called with the error of each failed attempt, unless the method got its own `note`.
    """

    def __init__(
        self,
        network: Callable[[], Cluster],
        tracker: EndOffsetTracker,
        stats: ConsumerStats,
        emit: Callable[[EndOffsetHeld | EndOffsetRegressed], None],
        isolation: int,
        note: Note,
    ) -> None:
        self._network = network
        self._tracker = tracker
        self._stats = stats
        self._emit = emit
        self._isolation = isolation
        self._level: IsolationLevel = "read_committed" if isolation else "read_uncommitted"
        self._note = note
        self._given: dict[tuple[str, int, int], OffsetListed] = {}

    def ask_at_once(
        self, partitions: Sequence[tuple[str, int]], timestamp: int
    ) -> Procedure[Mapping[tuple[str, int], OffsetListed]]:
        """Asks about many partitions with one request for each leader. Leaves out partitions without an offset."""
        transport = self._network()
        answer: Mapping[tuple[str, int], OffsetListed] | Failure = yield Ask(
            lambda reply: transport.list_offsets(
                partitions, timestamp, reply, isolation_level=self._isolation
            )
        )
        return {} if isinstance(answer, Failure) else answer

    def give(self, timestamp: int, answers: Mapping[tuple[str, int], OffsetListed]) -> None:
        """Keeps answers for `listed`. The next call of `listed` for the same partition and `timestamp` returns the kept
        answer and sends no request.
        """
        for (topic, partition), answer in answers.items():
            self._given[topic, partition, timestamp] = answer

    def forget_given(self) -> None:
        """Drops the answers from `give` that `listed` has not returned yet."""
        self._given.clear()

    def listed(
        self, topic: str, partition: int, timestamp: int, note: Note | None = None
    ) -> Procedure[OffsetListed]:
        """The leader's unchecked answer to ListOffsets.

        Raises:
            KafkaError: An error that is not retriable.
        """
        if self._given:
            given = self._given.pop((topic, partition, timestamp), None)
            if given is not None:
                return given
        transport = self._network()
        since: float | None = None

        def send(reply: Reply[Any]) -> None:
            transport.list_offset(topic, partition, timestamp, reply, isolation_level=self._isolation)

        def failed(error: Exception, verdict: Verdict) -> None:
            nonlocal since
            # Do not count look-ups of the first offset on the leader's own disk, which only help other look-ups.
            if verdict.code in NOT_CAUGHT_UP_CODES and timestamp != EARLIEST_LOCAL:
                since = time.monotonic() if since is None else since
            self._noted(note, error, verdict)

        try:
            answer: OffsetListed = yield from ask_until_answered(
                transport, topic, "list_offsets", send, failed, stats=self._stats
            )
        finally:  # also runs if the procedure is cancelled at a time-out
            if since is not None:
                self._stats.unavailable_s[topic] += time.monotonic() - since
        if answer.offset < 0 and timestamp in {EARLIEST, LATEST}:
            wrong: Exception = for_code(UNKNOWN_SERVER_ERROR)(
                f"{topic}-{partition}: the broker answered offset {answer.offset} without an error"
            )
            raise wrong
        return answer

    def _noted(self, note: Note | None, error: Exception, verdict: Verdict) -> None:
        if verdict.retriable:  # otherwise the error is raised
            (self._note if note is None else note)(error)

    def epoch_end(
        self, topic: str, partition: int, epoch: int, current: int, note: Note | None = None
    ) -> Procedure[EpochEnd]:
        """Asks the leader where `epoch` ends in its log. `current` is the leader's current epoch.

        Raises:
            LeaderChangedError: The leader has another epoch, or the broker has lost the leadership.
            KafkaError: An error that is not retriable.
        """
        transport = self._network()

        def send(reply: Reply[Any]) -> None:
            transport.offset_for_leader_epoch(topic, partition, epoch, reply, current_leader_epoch=current)

        def failed(error: Exception, verdict: Verdict) -> None:
            self._noted(note, error, verdict)
            if verdict.code in OTHER_LEADER_CODES:
                raise LeaderChangedError

        answer: EpochEnd = yield from ask_until_answered(
            transport, topic, "offset_for_leader_epoch", send, failed, stats=self._stats
        )
        return answer

    # --- through the tracker's rules ----------------------------------------------------------------------------

    def end(self, topic: str, partition: int, note: Note | None = None) -> Procedure[End]:
        """The verified end of the log. Reports answers that needed verification."""
        tries = 0
        while True:
            answer = yield from self.listed(topic, partition, LATEST, note)
            result = self._tracker.observe(
                topic,
                partition,
                answer.offset,
                leader_epoch=answer.leader_epoch,
                topic_id=id_of(self._network().topic(topic)),
                isolation_level=self._level,
            )
            if isinstance(result, Held) and result.ask_epoch is not None:
                try:
                    proof = yield from self.epoch_end(
                        topic, partition, result.ask_epoch, answer.leader_epoch, note
                    )
                except LeaderChangedError:
                    yield Pause(pause_s(tries))
                    tries += 1
                    continue
                result = self._tracker.prove(
                    topic,
                    partition,
                    requested_epoch=result.ask_epoch,
                    reply_epoch=proof.leader_epoch,
                    end_offset=proof.end_offset,
                    leader_epoch=answer.leader_epoch,
                    isolation_level=self._level,
                )
            tries += 1
            offset = self._settled(topic, partition, "latest", answer.offset, result, tries)
            if offset is not None:
                return End(offset, answer.leader_epoch)
            yield from self._elsewhere(topic, tries)

    def start(self, topic: str, partition: int, note: Note | None = None) -> Procedure[int]:
        """The verified start of the log. Reports answers that needed verification.

        A start that is lower than the remembered start has to be proven. If no proof is possible, the lower start is
        accepted after a while. Accepting a lower start does no harm, because the records from this start on can be
        read. If the log has been replaced, the remembered start would hide records.
        """
        tries = 0
        is_fresh = False
        while True:
            answer = yield from self.listed(topic, partition, EARLIEST, note)
            info = self._network().topic(topic)
            result = self._tracker.observe_start(
                topic,
                partition,
                answer.offset,
                leader_epoch=answer.leader_epoch,
                topic_id=id_of(info),
                isolation_level=self._level,
            )
            tries += 1
            if isinstance(result, Held) and not is_fresh:
                # If the metadata are outdated, the start of a recreated topic would pass for the deleted topic's start.
                yield Ask(functools.partial(self._network().refresh_metadata, [topic]))
                is_fresh = True
                continue
            if isinstance(result, Held) and result.ask_epoch is not None:
                # The answer has the epoch of the first record, not the leader's epoch.
                partition_info = None if info is None else info.partitions.get(partition)
                current = UNDEFINED if partition_info is None else partition_info.leader_epoch
                try:
                    proof = yield from self.epoch_end(topic, partition, result.ask_epoch, current, note)
                except LeaderChangedError:
                    yield from self._elsewhere(topic, tries)
                    continue
                except IllegalStateError:  # the client was closed meanwhile
                    raise
                except KafkaError:
                    # Brokers before 2.3 do not permit every client to ask about epochs.
                    proof = EpochEnd(0, UNDEFINED, UNDEFINED)
                result = self._tracker.prove_start(
                    topic,
                    partition,
                    requested_epoch=result.ask_epoch,
                    reply_epoch=proof.leader_epoch,
                    end_offset=proof.end_offset,
                    leader_epoch=current,
                    isolation_level=self._level,
                )
            if isinstance(result, Unproven):
                accepted = self._tracker.accept_start(topic, partition, isolation_level=self._level)
                result = result if accepted is None else accepted
            offset = self._settled(topic, partition, "earliest", answer.offset, result, tries)
            if offset is not None:
                return offset
            yield from self._elsewhere(topic, tries)

    def at_time(
        self, topic: str, partition: int, timestamp: int, note: Note | None = None
    ) -> Procedure[OffsetListed]:
        """The verified first record at or after a time. Reports answers that needed verification.

        Args:
            topic: Topic name.
            partition: Partition number.
            timestamp: Ms since the epoch.
            note: Gets the error of each failed attempt.

        Returns:
            The record's offset, timestamp and leader epoch; offset -1 if the log has no such record.
        """
        tries = misses = 0
        while True:
            answer = yield from self.listed(topic, partition, timestamp, note)
            local, start = yield Together(
                (
                    self.local_start(topic, partition, note),
                    self.listed(topic, partition, EARLIEST, note),
                )
            )
            # Check even an answer below `local`: after the answer, the start of the local part may have moved.
            if local is not None and start.offset < local:
                sure = yield from self._beside_remote(
                    topic, partition, timestamp, answer, range(start.offset, local), note
                )
                if sure is None:
                    yield Pause(pause_s(misses))
                    misses += 1
                    continue
                answer = sure
            result = self._observe_time(topic, partition, timestamp, answer)
            if isinstance(result, Held) and result.reason is HeldReason.NOT_FOUND:
                # Retention or a truncation may have removed the record. `start` and `end` find out the cause.
                yield from self.start(topic, partition, note)
                yield from self.end(topic, partition, note)
                result = self._observe_time(topic, partition, timestamp, answer)
            tries += 1
            if isinstance(result, Value):
                return answer
            offset = self._settled(topic, partition, "timestamp", answer.offset, result, tries)
            if offset is not None:
                return OffsetListed(0, offset, result.leader_epoch, result.timestamp_ms)
            yield from self._elsewhere(topic, tries)

    def _beside_remote(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        answer: OffsetListed,
        remote: range,
        note: Note | None,
    ) -> Procedure[OffsetListed | None]:
        """A verified answer to a look-up by time, for a log that is partly in remote storage. None: no answer can be
        trusted now.

        1. Records 2 to 5 are remote, and the leader cannot find them. A look-up for record 2 returns 6, the first
           record on the leader's own disk, without an error.
        2. Remote storage becomes ready.
        3. A fetch of offset 5 succeeds.

        The successful fetch does not prove that remote storage was ready at the time of the first answer. So the leader
        is asked again after the fetch, and the lower of the two answers counts. A single outage that falsified both
        answers would also make the fetch between them fail. But remote storage may fail twice, once for each look-up.
        After two failures of remote storage, the fetched batch can show that the answer is wrong: if the batch has a
        record that is at least as new as `timestamp`, the correct answer is in the batch or before it. This check needs
        a complete batch. If timestamps are out of order, the check may miss a wrong answer.
        """
        fetched = yield from self._read_remote(topic, partition, remote[-1], note)
        if fetched is None:
            return None
        again = yield from self.listed(topic, partition, timestamp, note)
        answer = min(answer, again, key=lambda found: found.offset if found.offset >= 0 else _NOWHERE)
        for _, header in iter_headers(fetched.records):
            is_whole = header.base_offset in remote and header.last_offset in remote
            if (
                is_whole
                and header.max_timestamp >= timestamp
                and not 0 <= answer.offset <= header.last_offset
            ):
                problem = f"the look-up by time missed a record in remote storage, at or before {header.last_offset}"
                self._not_ready(topic, partition, problem, OFFSET_OUT_OF_RANGE, note)
                return None
        return answer

    def _observe_time(self, topic: str, partition: int, timestamp: int, answer: OffsetListed) -> Value | Held:
        return self._tracker.observe_timestamp(
            topic,
            partition,
            timestamp,
            None if answer.offset < 0 else answer.offset,
            leader_epoch=answer.leader_epoch,
            found_timestamp_ms=answer.timestamp,
            topic_id=id_of(self._network().topic(topic)),
            isolation_level=self._level,
        )

    def _settled(
        self, topic: str, partition: int, look_up: LookUp, answered: int, result: Result, tries: int
    ) -> int | None:
        """The offset to use; None: ask again. Reports answers that needed verification."""
        match result:
            case Value(offset=int(offset), recreated=recreated, previous=previous):
                if recreated and previous is not None and offset < previous:
                    self._emit(EndOffsetRegressed(topic, partition, offset, previous, "recreated", look_up))
                return offset
            case Regressed(offset=offset, previous=previous, reason=reason):
                self._emit(EndOffsetRegressed(topic, partition, offset, previous, reason.value, look_up))
                return offset
            case Held(offset=int(offset), reason=reason) if reason not in _OLD or tries >= _OLD_ANSWERS:
                self._emit(EndOffsetHeld(topic, partition, offset, answered, reason.value, look_up))
                return offset
            case Unproven(offset=offset):
                self._emit(EndOffsetHeld(topic, partition, offset, answered, "unproven", look_up))
                return offset
            case _:
                return None

    def _elsewhere(self, topic: str, tries: int) -> Procedure[None]:
        """Refreshes the metadata after an answer from a former leader, or from the leader of a deleted topic."""
        self._network().refresh_metadata([topic], _ignore)
        yield Pause(pause_s(tries))

    # --- remote storage -----------------------------------------------------------------------------------------

    def local_start(self, topic: str, partition: int, note: Note | None = None) -> Procedure[int | None]:
        """Asks for the first offset on the leader's own disk, without reading remote storage. None: the whole log is
        local.
        """
        try:
            answer = yield from self.listed(topic, partition, EARLIEST_LOCAL, note)
        except IllegalStateError:  # the client was closed meanwhile
            raise
        except KafkaError:
            return None  # brokers before 3.4 have no remote storage
        return answer.offset if answer.offset >= 0 else None

    def has_remote_part(self, topic: str, partition: int) -> Procedure[bool | None]:
        """Whether a part of the log is in remote storage only; None: the leader did not answer. Asks once."""
        local = yield from self._asked_once(topic, partition, EARLIEST_LOCAL)
        if local is None or local <= 0:
            return None if local is None else False
        start = yield from self._asked_once(topic, partition, EARLIEST)
        return None if start is None else start < local

    def _asked_once(self, topic: str, partition: int, timestamp: int) -> Procedure[int | None]:
        transport = self._network()
        answer: OffsetListed | Failure = yield Ask(
            lambda reply: transport.list_offset(topic, partition, timestamp, reply)
        )
        return None if isinstance(answer, Failure) or answer.error_code else answer.offset

    def _read_remote(
        self, topic: str, partition: int, offset: int, note: Note | None
    ) -> Procedure[RecordsFetched | None]:
        """The batch in remote storage that contains an offset; None: it cannot be read now."""
        transport = self._network()

        def send(reply: Reply[Any]) -> None:
            transport.fetch_records(topic, partition, offset, 1, reply, max_wait_ms=_REMOTE_READ_MS)

        answer: RecordsFetched | Failure = yield Ask(send)
        if not isinstance(answer, Failure) and not answer.error_code and answer.records:
            return answer
        noted = self._note if note is None else note
        if isinstance(answer, Failure):
            problem: Any = answer.error
            noted(problem)
        elif answer.error_code not in {NONE, *REMOTE_CODES, OFFSET_OUT_OF_RANGE}:
            noted(for_code(answer.error_code)(f"{topic}-{partition} at {offset}"))
        else:
            # An answer without records and without an error: the broker did not receive the records from remote storage
            # in time.
            code = answer.error_code or REQUEST_TIMED_OUT
            reason = f"offset {offset}, which is in remote storage, cannot be read (error code {code})"
            self._not_ready(topic, partition, reason, code, note)
        return None

    def _not_ready(self, topic: str, partition: int, what: str, code: int, note: Note | None) -> None:
        noted = self._note if note is None else note
        noted(
            RemoteStorageNotReadyError(
                f"{topic}-{partition}: {what}", topic=topic, partition=partition, code=code
            )
        )


def _ignore(_: object) -> None:
    """Ignores the answer, because the `Cluster` stores new metadata itself."""
