"""The driver's side of the protocol: one Kafka transaction per micro-batch. Knows nothing of Spark.

What follows what, and why, is in `kafkasafe._core.txn`; here each step is carried out. Who has another way to run the
tasks (a data source's writer) calls the steps one by one: `fence`, `judge`, `open`, then `verify`, `mark`, `commit`.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from kafka.errors import KafkaError, KafkaTimeoutError, for_code

from kafkasafe._core import batch
from kafkasafe._core.txn import (
    Appended,
    Event,
    Grant,
    Marker,
    MarkerLog,
    MarkerVerdict,
    MicroBatch,
    Report,
    Step,
    judge_marker,
    judge_partitions,
    judge_version,
)
from kafkasafe._io.appender import FencedError, RestartError
from kafkasafe._io.transactions import Coordinator, call, insist
from kafkasafe._io.transport import Transport
from kafkasafe.classification import classify
from kafkasafe.cluster.api import Failure, OffsetListed, ProduceReply, ProduceRequest, RecordsFetched
from kafkasafe.errors import CheckpointMismatchError, ConfigError, WaitTimeoutError
from kafkasafe.spark.options import error
from kafkasafe.spark.sink_options import SinkOptions

__all__ = ["Outcome", "Session", "no_broker", "unknown_topic"]

log = logging.getLogger(__name__)

OutcomeName: TypeAlias = Literal["written", "duplicate", "resumed"]

_OPEN: Final = frozenset({Step.OPEN, Step.WRITE, Step.VERIFY, Step.MARK})  # a transaction may be open
_MARKER_PARTITIONS: Final = 8
_FENCED: Final = frozenset({47, 90})
_SPOILT: Final = frozenset({45, 46, 48, 49, 59, 120})
_NOT_LET_IN: Final = frozenset({33, 34, 58})
_BRIEF_S: Final = 5.0
_LATEST: Final = -1
_EARLIEST: Final = -2
_NOT_YET: Final = 78  # OFFSET_NOT_AVAILABLE: the high watermark is not there yet
_FETCH_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a micro-batch.

    Attributes:
        name: `written`; `resumed`: written, with more than one transaction, or found committed after its commit had not
            been answered; `duplicate`: an earlier run had committed it, nothing was written.
        rows: Rows that this call committed.
        restarts: How often the transaction was begun again.
        seconds: How long it took.
    """

    name: OutcomeName
    rows: int
    restarts: int
    seconds: float


class Session:
    """Writes micro-batches of one application id. One thread at a time.

    Args:
        options: Of the sink.
        app_id: Under which markers are kept.
    """

    def __init__(self, options: SinkOptions, app_id: str) -> None:
        self._options = options
        self._app_id = app_id
        self._id = f"kafkasafe-spark-{app_id}"
        self._transport = Transport(
            {**options.connection, "client_id": options.connection.get("client_id", "kafkasafe-spark-driver")}
        )
        self._coordinator = Coordinator(self._transport, self._id, timeout_s=options.api_timeout_s)
        self._started = False
        self._marker_partition = 0
        self._opened_at = 0.0
        self._partitions = 0
        self._machine = MicroBatch(options.max_restarts)

    def __repr__(self) -> str:
        return f"<Session {self._id}>"

    @property
    def transport(self) -> Transport:
        """The driver's connections, for who appends in its process."""
        return self._transport

    @property
    def partitions(self) -> int:
        """How many partitions of the option `topic` are in the open transaction; 0 without that option."""
        return self._partitions

    @property
    def restarts(self) -> int:
        """How often the latest `write` began its transaction again, also if it failed."""
        return self._machine.restarts

    def close(self) -> None:
        """Closes the connections; an open transaction stays open until the next driver, or its time-out, ends it."""
        self._transport.close(_BRIEF_S)

    # --- the whole ---

    def write(
        self,
        batch_id: int,
        query_id: str,
        work: Callable[[Grant], Sequence[Report]],
        *,
        plan: str = "",
        count: Callable[[], int] | None = None,
        remember: bool = True,
    ) -> Outcome:
        """Writes one micro-batch, unless it is committed already.

        Args:
            batch_id: Spark's, or the version in batch use.
            query_id: Spark's, empty in batch use and where it is not known.
            work: Has tasks append under a grant and returns what they report. It is called again for each new
                transaction. RestartError and FencedError out of it mean what they say; anything else ends the batch.
            plan: `plan_digest` of the micro-batch; empty: not known.
            count: Says how many rows it has; asked where a marker cannot be judged otherwise. None: batch use, where
                the version alone decides.
            remember: Keep the marker for ever. Else it is only for this call, which asks for it when its commit is not
                answered (the group's offset, which expires), and the application id must be new.

        Raises:
            CheckpointMismatchError: The marker does not fit the checkpoint. Nothing was written.
            FencedError: Another driver has taken over. Nothing of this call is visible, or what is, is committed.
            KafkaError: A step failed for good.
            Exception: What `work` raised. Its transaction is aborted.
        """
        began = time.monotonic()
        machine = self._machine = MicroBatch(self._options.max_restarts)
        sent: Marker | None = None
        grant: Grant | None = None
        marker: Marker | None = None
        reports: Sequence[Report] = ()
        failure: BaseException = WaitTimeoutError("No transaction could be begun")
        while not machine.over:
            step = machine.step
            try:
                event = Event.DONE
                match step:
                    case Step.FENCE:
                        grant = None
                        grant = self.fence()
                    case Step.READ_MARKER:
                        # What an unanswered commit of this very call wrote is no mismatch. Where nobody will ask later,
                        # nobody wrote before either: the id is new.
                        is_new = not remember and not machine.resumed
                        if not is_new and not self.judge(batch_id, query_id, plan, count, sent):
                            event = Event.KNOWN
                    case _:
                        assert grant is not None  # noqa: S101  # FENCE comes before
                        match step:
                            case Step.OPEN:
                                self.open(grant, remember=remember)
                            case Step.WRITE:
                                reports = work(grant)
                            case Step.VERIFY:
                                self.verify(grant, reports)
                            case Step.MARK:
                                mark = self.mark if remember else self._mark_group
                                rows = sum(report.rows for report in reports)
                                marker = Marker(batch_id + 1, query_id, rows, plan)
                                mark(grant, marker)
                            case _:
                                sent = marker
                                self.commit(grant)
            except BaseException as raised:
                failure = raised
                event = self._event(step, raised)
                if event is Event.REFUSED and step in _OPEN and grant is not None and not _is_fenced(raised):
                    self.abort(grant)
                if event is Event.BROKEN and _is_fenced(raised):
                    failure = FencedError(
                        f"Batch {batch_id} of {self._app_id} took longer than kafka.transaction.timeout.ms="
                        f"{self._options.transaction_timeout_ms}, so the cluster ended its transaction: raise that (the"
                        " brokers' transaction.max.timeout.ms is the bound), or make micro-batches smaller."
                    )
                    failure.__cause__ = raised
            if machine.on(event) is Step.FENCE:
                log.warning("Batch %d of %s is begun again: %r", batch_id, self._app_id, failure)
        if machine.step is Step.FAILED:
            if machine.restarts > self._options.max_restarts > 0 and isinstance(failure, Exception):
                failure.add_note(
                    f"kafkasafe: batch {batch_id} of {self._app_id} was begun {machine.restarts} times (maxRestarts)"
                )
            if _is_fenced(failure) and not isinstance(failure, FencedError):
                raise FencedError(
                    f"Another driver has begun a transaction for {self._app_id} while batch {batch_id} was"
                    " written: only one at a time may use a txnAppId. Nothing is visible that was not committed"
                    " before. Give each a txnAppId of its own, or stop the other one and start again."
                ) from failure
            raise failure
        seconds = time.monotonic() - began
        if machine.step is Step.DUPLICATE and not machine.committed_by_us:
            return Outcome("duplicate", 0, machine.restarts, seconds)
        rows = sum(report.rows for report in reports)
        return Outcome("resumed" if machine.resumed else "written", rows, machine.restarts, seconds)

    def _event(self, step: Step, failure: BaseException) -> Event:
        if _is_fenced(failure):
            # The coordinator locks out a driver whose transaction timed out in the same way as one that was replaced.
            timed_out = time.monotonic() - self._opened_at > 0.9 * self._options.transaction_timeout_ms / 1000
            return Event.BROKEN if timed_out and step is not Step.FENCE else Event.REFUSED
        if step is Step.FENCE or not isinstance(failure, Exception):
            return Event.REFUSED
        if isinstance(failure, RestartError) or getattr(failure, "errno", None) in _SPOILT:
            return Event.BROKEN
        if step is Step.COMMIT and (isinstance(failure, KafkaTimeoutError) or classify(failure).retriable):
            return Event.UNKNOWN
        return Event.REFUSED

    # --- the steps ---

    def fence(self) -> Grant:
        """FENCE: after it no older driver or task can append, and no older transaction is open."""
        self._start()
        try:
            return self._coordinator.fence(self._options.transaction_timeout_ms)
        except KafkaError as failed:
            if getattr(failed, "errno", None) == 50:
                raise error(
                    "INVALID_OPTION",
                    f"kafka.transaction.timeout.ms is {self._options.transaction_timeout_ms}, more than the brokers'"
                    " transaction.max.timeout.ms: lower it, or raise theirs.",
                ) from failed
            raise

    def judge(
        self,
        batch_id: int,
        query_id: str,
        plan: str,
        count: Callable[[], int] | None,
        sent: Marker | None = None,
    ) -> bool:
        """READ_MARKER: whether the batch is to be written.

        Args:
            batch_id: As of `write`.
            query_id: As of `write`.
            plan: As of `write`.
            count: As of `write`.
            sent: The marker of a transaction whose COMMIT was sent and not answered.

        Raises:
            CheckpointMismatchError: Nobody can say; the message names the ways out.
        """
        marker, strict = self.marker(), self._options.strict
        if sent is not None and marker == sent:
            return False
        if count is None:
            verdict = judge_version(marker, batch_id, strict=strict)
        else:
            verdict = judge_marker(marker, batch_id, query_id, strict=strict, plan=plan)
            if verdict is MarkerVerdict.COUNT:
                verdict = judge_marker(marker, batch_id, query_id, strict=strict, plan=plan, rows=count())
        if verdict in {MarkerVerdict.WRITE, MarkerVerdict.DUPLICATE}:
            if marker is not None and verdict is MarkerVerdict.WRITE and marker.next_batch_id > batch_id:
                log.warning(
                    "Batch %d of %s is written and its marker replaced (onMarkerMismatch=accept): %s",
                    batch_id,
                    self._app_id,
                    marker,
                )
            return verdict is MarkerVerdict.WRITE
        raise CheckpointMismatchError(
            f"[KAFKASAFE.CHECKPOINT_MISMATCH] {self._mismatch(verdict, marker, batch_id, query_id)}"
        )

    def _mismatch(self, verdict: MarkerVerdict, marker: Marker | None, batch_id: int, query_id: str) -> str:
        """What does not fit, and ways out of which none loses a row."""
        app, following = self._app_id, 0 if marker is None else marker.next_batch_id
        held = "" if marker is None or marker.rows is None else f" ({marker.rows} rows)"
        owner = "" if marker is None else marker.query_id
        accept = (
            f"start once with onMarkerMismatch=accept: everything from batch {batch_id} on is written and the marker"
            " replaced; nothing is skipped, and rows that were committed before come a second time."
        )
        restore = f" Nothing was written. If the newest checkpoint still exists, put it back. Else {accept}"
        match verdict:
            case MarkerVerdict.MISSING:
                return (
                    f"There is no marker for txnAppId {app!r}, but batches before {batch_id} must have written one:"
                    " another sink wrote them, txnAppId was changed, or the marker topic"
                    f" {self._options.marker_topic!r} was deleted. Nothing was written. Start once with"
                    f" onMarkerMismatch=accept: batch {batch_id} is written and the marker made. If an earlier run may"
                    " have committed this very batch, its rows come a second time."
                )
            case MarkerVerdict.OTHER_QUERY:
                owner = f"query {owner!r}" if owner else "no streaming query that is known (a batch job?)"
                mine = f"this is query {query_id!r}" if query_id else "this is a batch job, or Spark Connect"
                return (
                    f"The marker of txnAppId {app!r} belongs to {owner}, {mine}: the checkpoint was deleted or is"
                    " another query's. Their batch numbers cannot be compared. Nothing was written. Give a new"
                    " checkpoint a new txnAppId; or start once with onMarkerMismatch=accept, which makes the marker"
                    " this query's and writes all that it reads: what the old one wrote and this one reads again comes"
                    " a second time."
                )
            case MarkerVerdict.GAP:
                return (
                    f"The marker of txnAppId {app!r} says that batch {following} comes next, Spark runs {batch_id}:"
                    " those between were never written by this sink. Nothing was written. Call the sink for every"
                    " micro-batch, also for empty ones. onMarkerMismatch=accept for one start writes from batch"
                    f" {batch_id} on; batches {following} to {batch_id - 1} have then to be written by you."
                )
            case MarkerVerdict.ROLLED_BACK:
                return (
                    f"Batches up to {following - 1} of txnAppId {app!r} are committed, Spark runs {batch_id}: the"
                    " checkpoint is older than the topic (restored from a copy?), and its batches may hold other rows"
                    f" than those that were written under these numbers.{restore}"
                )
            case MarkerVerdict.OTHER_ROWS:
                return (
                    f"Batch {batch_id} of txnAppId {app!r} is committed{held}, and Spark runs a batch {batch_id} with"
                    " other rows: the checkpoint lost its last batch (restored from a copy, or its storage lost it),"
                    " and Spark planned it again from what there is now. Or, where nothing but the number of rows could"
                    f" be compared, the query makes another number each time.{restore}"
                )
            case _:
                return (
                    f"A batch {batch_id} of txnAppId {app!r} is committed, by a kafkasafe that did not keep which rows"
                    " it held, so it cannot be determined whether Spark now runs the same rows or others under this"
                    " number. Nothing was written. If the checkpoint is the one that wrote it (never restored from a"
                    " copy), run this batch once with the kafkasafe that wrote the marker, which skips it."
                    f" Else {accept}"
                )

    def open(self, grant: Grant, *, remember: bool = True) -> None:
        """OPEN: begins the transaction."""
        self._opened_at = time.monotonic()
        places = {(self._options.marker_topic, self._marker_partition)} if remember else set()
        topic = self._options.topic
        if topic is not None:
            self._partitions = self._partition_count(topic)
            places |= {(topic, number) for number in range(self._partitions)}
        self.add(grant, places)

    def add(self, grant: Grant, places: Collection[tuple[str, int]]) -> None:
        """Adds partitions to the transaction; more than once does no harm."""
        self._coordinator.add_partitions(grant, places)

    def _partition_count(self, topic: str) -> int:
        self._start()
        try:
            return len(self._coordinator.topics([topic])[topic].partitions)
        except KafkaError as failed:
            if getattr(failed, "errno", None) == 3:
                raise unknown_topic(topic) from failed
            raise

    def verify(self, grant: Grant, reports: Sequence[Report]) -> None:
        """VERIFY: what the leaders hold is what the tasks reported.

        Raises:
            RestartError: It is not. Nothing of it is visible.
        """
        places = {(report.topic, report.partition) for report in reports}
        known = self._coordinator.partitions(grant)
        if known is not None:
            if missing := places - known:
                raise RestartError(f"{sorted(missing)} are not in the transaction")
            places |= {place for place in known if place[0] != "__consumer_offsets"}
        places.discard((self._options.marker_topic, self._marker_partition))
        answers = self._coordinator.producers(places)
        appended: dict[tuple[str, int], Appended | None] = {}
        for place, answer in answers.items():
            state = answer.producers.get(grant.producer_id)
            appended[place] = None if state is None else Appended(state.epoch, state.last_sequence)
        if wrong := judge_partitions(grant, reports, appended):
            raise RestartError(wrong)

    def mark(self, grant: Grant, marker: Marker) -> None:
        """MARK: writes the marker, visible if and only if the transaction is committed."""
        self._mark_topic(grant, marker)
        self._mark_group(grant, marker)

    def _mark_group(self, grant: Grant, marker: Marker) -> None:
        self._coordinator.commit_offset(
            grant, (self._options.marker_topic, 0), marker.next_batch_id, marker.encode()
        )

    def _mark_topic(self, grant: Grant, marker: Marker) -> None:
        topic, number = self._options.marker_topic, self._marker_partition
        data = batch.encode(
            [self._id.encode()], [marker.encode().encode()], timestamps=int(time.time() * 1000)
        )
        batch.stamp_identity(data, grant.producer_id, grant.epoch, 0, transactional=True)

        def append(left_s: float) -> None:
            answer: ProduceReply | Failure = call(
                lambda reply: self._transport.produce(
                    [ProduceRequest(None, topic, number, data)],
                    -1,
                    self._options.request_timeout_ms,
                    lambda _, answer: reply(answer),
                    transactional_id=self._id,
                ),
                left_s,
            )
            if isinstance(answer, ProduceReply) and answer.error_code:
                raise _coded(answer.error_code, f"{topic}-{number}: {answer.error_message or 'Produce'}")

        deadline = time.monotonic() + self._options.delivery_timeout_s
        insist(append, deadline=deadline, what=f"The marker in {topic}", api="produce")

    def commit(self, grant: Grant) -> None:
        """COMMIT. When it raises, only FENCE and the marker tell whether it was carried out."""
        self._coordinator.end(grant, commit=True)

    def abort(self, grant: Grant) -> None:
        """Ends a transaction that came to nothing, so that it does not hold up readers. Tries only briefly."""
        try:
            self._coordinator.end(grant, commit=False, timeout_s=_BRIEF_S)
        except Exception as failed:
            log.warning("The transaction of %s stays open until its time-out: %r", self._app_id, failed)

    # --- the marker ---

    def marker(self) -> Marker | None:
        """What is known of the last committed batch. Only after `fence`: before it may still change.

        Raises:
            CheckpointMismatchError: It cannot be read.
        """
        self._start()
        found = self._coordinator.committed_offset((self._options.marker_topic, 0))
        # Offsets of groups without members expire (offsets.retention.minutes): then the topic still knows.
        content = self._from_topic() if found is None else found[1]
        if content is None:
            return None
        try:
            return Marker.decode(content)
        except ValueError as failed:
            raise CheckpointMismatchError(
                f"[KAFKASAFE.CHECKPOINT_MISMATCH] The marker of txnAppId {self._app_id!r} cannot be read: {failed}. Was"
                " it written by a newer kafkasafe, or did others commit offsets under this group's name?"
            ) from failed

    def _from_topic(self) -> str | None:
        """The newest committed marker in the marker topic."""
        topic, number = self._options.marker_topic, self._marker_partition
        found = MarkerLog(self._id.encode())
        end, at = self._bound_of_markers(_LATEST), self._bound_of_markers(_EARLIEST)
        while at < end:
            answer = self._fetch_markers(at)
            records = bytes(answer.records)
            for begin, header in batch.iter_headers(records):
                if header.base_offset >= end:
                    break
                columns = batch.decode(records, begin)
                if header.is_control:
                    kind = columns.keys[0]
                    found.outcome(header.producer_id, committed=kind is not None and kind[2:4] == b"\0\1")
                    continue
                for key, value in zip(columns.keys, columns.values, strict=True):
                    found.record(header.producer_id, key, value, transactional=header.is_transactional)
            at = answer.next_offset
        if found.undecided:
            raise WaitTimeoutError(
                f"{topic}-{number} holds a marker of {self._id} whose transaction has no outcome, though it was ended:"
                " another process uses this txnAppId. Try again when that is over."
            )
        return found.content

    def _fetch_markers(self, at: int) -> RecordsFetched:
        topic, number = self._options.marker_topic, self._marker_partition

        def attempt(left_s: float) -> RecordsFetched:
            answer: RecordsFetched = call(
                lambda reply: self._transport.fetch_records(
                    topic, number, at, _FETCH_BYTES, reply, max_wait_ms=100
                ),
                left_s,
            )
            if answer.error_code:
                raise _coded(answer.error_code, f"Fetch of {topic}-{number}")
            if answer.next_offset <= at:
                raise _coded(_NOT_YET, f"{topic}-{number} gave nothing at {at}")
            return answer

        deadline = time.monotonic() + self._options.api_timeout_s
        return insist(attempt, deadline=deadline, what=f"The markers in {topic}-{number}", api="fetch")

    def _bound_of_markers(self, which: int) -> int:
        def attempt(left_s: float) -> int:
            answer: OffsetListed = call(
                lambda reply: self._transport.list_offset(
                    self._options.marker_topic, self._marker_partition, which, reply
                ),
                left_s,
            )
            if answer.error_code:
                raise _coded(answer.error_code, f"ListOffsets of {self._options.marker_topic}")
            return answer.offset

        deadline = time.monotonic() + self._options.api_timeout_s
        return insist(attempt, deadline=deadline, what="The bounds of the marker topic", api="ListOffsets")

    def _start(self) -> None:
        """Finds the cluster and the marker topic, once."""
        if self._started:
            return
        self._transport.start()
        topic = self._options.marker_topic
        try:
            self._coordinator.create_topic(
                topic, partitions=_MARKER_PARTITIONS, config={"cleanup.policy": "compact"}
            )
            count = len(self._coordinator.topics([topic])[topic].partitions)
        except KafkaError as failed:
            code = getattr(failed, "errno", None)
            if code in _NOT_LET_IN:
                raise error(
                    "AUTHENTICATION_FAILED",
                    f"The brokers at {self._options.servers} do not let this user in ({failed}): check kafka.sasl.* and"
                    " kafka.security.protocol.",
                ) from failed
            if isinstance(code, int) and code > 0 and not classify(failed).retriable:
                raise error(
                    "MARKER_TOPIC",
                    f"The marker topic {topic!r} cannot be made or seen ({failed}): create it by hand, with"
                    " cleanup.policy=compact, or name another one by markerTopic.",
                ) from failed
            raise no_broker(self._options, "the driver", failed) from failed
        self._marker_partition = zlib.crc32(self._id.encode()) % count
        self._started = True


def unknown_topic(topic: str) -> ConfigError:
    """The error for a topic that is not there."""
    return error(
        "UNKNOWN_TOPIC", f"Topic {topic!r} is not there and is not created by the brokers: create it."
    )


def no_broker(options: SinkOptions, who: str, failed: BaseException) -> ConfigError:
    """The error for a cluster that does not answer `who`."""
    return error(
        "NO_BROKER",
        f"No broker of kafka.bootstrap.servers={options.servers} answered within {options.api_timeout_s:g} s"
        f" ({failed}): check host and port, that {who} can reach them, and kafka.security.protocol.",
    )


def _is_fenced(failure: BaseException) -> bool:
    return isinstance(failure, FencedError) or getattr(failure, "errno", None) in _FENCED


def _coded(code: int, message: str) -> KafkaError:
    made: Any = for_code(code)(message)
    made.errno = code
    coded: KafkaError = made
    return coded
