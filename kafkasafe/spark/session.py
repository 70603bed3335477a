"""The driver's side of the sink protocol: one Kafka transaction for each micro-batch. Does not call Spark.

Each transaction also writes a marker, which names the next batch id. So a later driver knows which batches are
committed.

`kafkasafe.spark.txn` decides the order of the steps and explains it. This module executes the steps. `Session.write`
runs all of them for one micro-batch. Most steps also have a method of their own: `fence`, `judge`, `open`, `verify`,
`mark` and `commit`.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from kafka.errors import KafkaError, KafkaTimeoutError, for_code

from kafkasafe.classification import classify
from kafkasafe.cluster.api import OffsetListed, ProduceReply, ProduceRequest, RecordsFetched, Reply
from kafkasafe.cluster.client import Transport
from kafkasafe.errors import CheckpointMismatchError, ConfigError, WaitTimeoutError
from kafkasafe.kafkapython.connect import over_sockets
from kafkasafe.record import batch
from kafkasafe.spark.appender import Appender, FencedError, RestartError
from kafkasafe.spark.option_values import error
from kafkasafe.spark.sink_options import SinkOptions
from kafkasafe.spark.transactions import Pending, TransactionRequests, call, identity_of, retry_until
from kafkasafe.spark.txn import (
    AppendState,
    Event,
    Marker,
    MarkerLog,
    MarkerVerdict,
    MicroBatch,
    Report,
    Step,
    WriterIdentity,
    judge_marker,
    judge_partitions,
    judge_version,
    may_go_on,
)

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
_NOT_YET: Final = 78  # OFFSET_NOT_AVAILABLE: the high watermark has not caught up yet
_FETCH_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a micro-batch.

    Attributes:
        name: `written`: one transaction wrote the batch. `resumed`: the batch took more than one transaction, or was
            found committed after the answer to its commit was lost. `duplicate`: an earlier run had committed the
            batch, so nothing was written.
        rows: Number of rows that this call committed.
        restarts: How often the transaction was restarted.
        seconds: Duration in seconds.
    """

    name: OutcomeName
    rows: int
    restarts: int
    seconds: float


class Session:
    """Writes the micro-batches of one application id. Only one thread at a time may use a session.

    Args:
        options: Options of the sink.
        app_id: The application id. Markers are stored under this id.
    """

    def __init__(self, options: SinkOptions, app_id: str) -> None:
        self._options = options
        self._app_id = app_id
        self._id = f"kafkasafe-spark-{app_id}"
        self._transport = over_sockets(
            {**options.connection, "client_id": options.connection.get("client_id", "kafkasafe-spark-driver")}
        )
        self._coordinator = TransactionRequests(self._transport, self._id, timeout_s=options.api_timeout_s)
        self._started = False
        self._marker_partition = 0
        self._opened_at = 0.0
        self._partitions = 0
        self._machine = MicroBatch(options.max_restarts)
        # After a commit: the grant for the next transaction, and the marker that was committed.
        self._carried: tuple[WriterIdentity, Marker] | None = None
        self._kept: WriterIdentity | None = None  # the grant under which only this process appends

    def __repr__(self) -> str:
        return f"<Session {self._id}>"

    @property
    def transport(self) -> Transport:
        """The driver's connections, for code that appends in the driver's process."""
        return self._transport

    @property
    def partitions(self) -> int:
        """The number of the topic's partitions in the open transaction; 0 if the option `topic` is not set."""
        return self._partitions

    @property
    def restarts(self) -> int:
        """How often the latest `write` restarted its transaction, even if the call failed in the end."""
        return self._machine.restarts

    def close(self) -> None:
        """Closes the connections. An open transaction stays open until the next driver ends it, or it times out."""
        self._transport.close(_BRIEF_S)

    # --- all steps ---

    def write(
        self,
        batch_id: int,
        query_id: str,
        work: Callable[[WriterIdentity], Sequence[Report]],
        *,
        plan: str = "",
        count: Callable[[], int] | None = None,
        remember: bool = True,
    ) -> Outcome:
        """Writes one micro-batch, unless it is committed already.

        Args:
            batch_id: Spark's batch id; for a batch query, its `txnVersion`.
            query_id: Spark's query id; empty for a batch query, or if it is unknown.
            work: Runs the tasks that append records, with the transaction's producer id and epoch (a grant). Returns
                the reports of these tasks.
                `write` calls it again for each new transaction. If it raises RestartError, the transaction is
                restarted. If it raises FencedError, another driver has taken over. After any other exception the batch
                fails.
            plan: `plan_digest` of the micro-batch; empty if it is unknown.
            count: Returns the number of rows of the micro-batch. `count` is called only if the other fields of the
                marker do not show whether the batch is committed. None in a batch query, where `txnVersion` alone
                decides whether to write.
            remember: Whether to keep the marker forever. If false, the application id must be new, and the marker is
                stored only as a committed offset of a consumer group, which expires. In that case `write` reads the
                marker only after a restart of its transaction, for example because a commit was not answered.

        Raises:
            CheckpointMismatchError: The marker does not fit the checkpoint. Nothing was written.
            FencedError: Another driver has taken over. Either all rows of this call are committed, or none is visible.
            KafkaError: A step failed permanently.
            Exception: The exception that `work` raised. The transaction is aborted.
        """
        began = time.monotonic()
        carried, self._carried = self._carried, None
        grant: WriterIdentity | None = None
        if carried is not None and count is not None and may_go_on(carried[1], batch_id, query_id, plan=plan):
            grant = carried[0]
        machine = self._machine = MicroBatch(self._options.max_restarts, goes_on=grant is not None)
        sent: Marker | None = None
        marker: Marker | None = None
        reports: Sequence[Report] = ()
        failure: BaseException = WaitTimeoutError("No transaction could be started")
        while not machine.over:
            step = machine.step
            try:
                event = Event.DONE
                match step:
                    case Step.FENCE:
                        grant = None
                        grant = self.fence()
                    case Step.READ_MARKER:
                        # If this call itself wrote the marker but got no answer to its commit, that is not a mismatch.
                        # Without `remember` the id is new, so no marker exists before the first commit.
                        is_new = not remember and not machine.resumed
                        if not is_new and not self.judge(batch_id, query_id, plan, count, sent):
                            event = Event.KNOWN
                    case _:
                        assert grant is not None  # noqa: S101  # FENCE is the first step
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
                                following = self.commit(grant)
                                if following is not None and marker is not None:
                                    self._carried = following, marker
            except BaseException as raised:
                failure = raised
                event = self._event(step, raised, is_carried=machine.is_carried)
                if event is Event.REFUSED and step in _OPEN and grant is not None and not _is_fenced(raised):
                    self.abort(grant)
                if event is Event.BROKEN and _is_fenced(raised):
                    failure = FencedError(
                        f"Batch {batch_id} of {self._app_id} took longer than kafka.transaction.timeout.ms="
                        f"{self._options.transaction_timeout_ms}, so the cluster ended its transaction: raise that"
                        " option (up to the brokers' transaction.max.timeout.ms), or make micro-batches smaller."
                    )
                    failure.__cause__ = raised
            if machine.on(event) is Step.FENCE and event is not Event.LAPSED:
                log.warning("Restarting batch %d of %s: %r", batch_id, self._app_id, failure)
        if machine.step is Step.FAILED:
            if machine.restarts > self._options.max_restarts > 0 and isinstance(failure, Exception):
                failure.add_note(
                    f"kafkasafe: batch {batch_id} of {self._app_id} was started {machine.restarts} times (maxRestarts)"
                )
            if _is_fenced(failure) and not isinstance(failure, FencedError):
                raise FencedError(
                    f"Another driver began a transaction for {self._app_id} while batch {batch_id} was being"
                    " written: only one driver at a time may use a txnAppId. Only rows that were committed before are"
                    " visible. Give each driver a txnAppId of its own, or stop the other driver and start again."
                ) from failure
            raise failure
        seconds = time.monotonic() - began
        if machine.step is Step.DUPLICATE and not machine.committed_by_us:
            return Outcome("duplicate", 0, machine.restarts, seconds)
        rows = sum(report.rows for report in reports)
        return Outcome("resumed" if machine.resumed else "written", rows, machine.restarts, seconds)

    def _event(self, step: Step, failure: BaseException, *, is_carried: bool) -> Event:
        if step is Step.OPEN and is_carried and (_is_fenced(failure) or _is_spoilt(failure)):
            return Event.LAPSED
        if _is_fenced(failure):
            # The coordinator returns the same errors to a driver whose transaction timed out and to a driver that was
            # replaced.
            timed_out = time.monotonic() - self._opened_at > 0.9 * self._options.transaction_timeout_ms / 1000
            return Event.BROKEN if timed_out and step is not Step.FENCE else Event.REFUSED
        if step is Step.FENCE or not isinstance(failure, Exception):
            return Event.REFUSED
        if isinstance(failure, RestartError) or _is_spoilt(failure):
            return Event.BROKEN
        if step is Step.COMMIT and (isinstance(failure, KafkaTimeoutError) or classify(failure).retriable):
            return Event.UNKNOWN
        return Event.REFUSED

    # --- the steps ---

    def fence(self) -> WriterIdentity:
        """FENCE: fences older drivers and their tasks, and ends the transaction that they left open."""
        self._start()
        try:
            return self._coordinator.fence(self._options.transaction_timeout_ms)
        except KafkaError as failed:
            if getattr(failed, "errno", None) == 50:
                raise error(
                    "INVALID_OPTION",
                    f"kafka.transaction.timeout.ms is {self._options.transaction_timeout_ms}, more than the brokers'"
                    " transaction.max.timeout.ms: lower the option, or raise the brokers' limit.",
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
        """READ_MARKER: reads the marker and decides whether the batch must be written.

        Args:
            batch_id: As in `write`.
            query_id: As in `write`.
            plan: As in `write`.
            count: As in `write`.
            sent: The marker of this call's transaction, if its COMMIT was sent but not answered.

        Raises:
            CheckpointMismatchError: The marker does not fit the checkpoint, so whether to write cannot be decided. The
                message names the remedies.
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
                    "Writing batch %d of %s and replacing its marker (onMarkerMismatch=accept): %s",
                    batch_id,
                    self._app_id,
                    marker,
                )
            return verdict is MarkerVerdict.WRITE
        raise CheckpointMismatchError(
            f"[KAFKASAFE.CHECKPOINT_MISMATCH] {self._mismatch(verdict, marker, batch_id, query_id)}"
        )

    def _mismatch(self, verdict: MarkerVerdict, marker: Marker | None, batch_id: int, query_id: str) -> str:
        """Describes the mismatch and what to do about it. None of the remedies loses rows."""
        app, following = self._app_id, 0 if marker is None else marker.next_batch_id
        held = "" if marker is None or marker.rows is None else f" ({marker.rows} rows)"
        owner = "" if marker is None else marker.query_id
        accept = (
            f"start once with onMarkerMismatch=accept: then the sink writes everything from batch {batch_id} on and"
            " replaces the marker. It skips nothing, so rows that were committed before are written a second time."
        )
        restore = (
            f" Nothing was written. If the newest checkpoint still exists, restore it. Otherwise {accept}"
        )
        match verdict:
            case MarkerVerdict.MISSING:
                return (
                    f"There is no marker for txnAppId {app!r}, but batches before {batch_id} must have written one:"
                    " another sink wrote them, txnAppId was changed, or the marker topic"
                    f" {self._options.marker_topic!r} was deleted. Nothing was written. Start once with"
                    f" onMarkerMismatch=accept: then the sink writes batch {batch_id} and the marker. If an earlier run"
                    " committed this very batch, its rows are written a second time."
                )
            case MarkerVerdict.OTHER_QUERY:
                owner = f"query {owner!r}" if owner else "no known streaming query (perhaps a batch job)"
                mine = f"this is query {query_id!r}" if query_id else "this is a batch job, or Spark Connect"
                return (
                    f"The marker of txnAppId {app!r} belongs to {owner}, but {mine}: the checkpoint was deleted or"
                    " belongs to another query. Batch ids of different queries cannot be compared. Nothing was written."
                    " Use a new txnAppId with a new checkpoint. Or start once with onMarkerMismatch=accept, which"
                    " assigns the marker to this query and writes all rows that it reads. Rows that the old query wrote"
                    " and this one reads again are written a second time."
                )
            case MarkerVerdict.GAP:
                return (
                    f"The marker of txnAppId {app!r} says that batch {following} comes next, but Spark runs {batch_id}:"
                    " this sink never wrote the batches in between. Nothing was written. Call the sink for every"
                    " micro-batch, even an empty one. onMarkerMismatch=accept for one start writes from batch"
                    f" {batch_id} on; you must then write batches {following} to {batch_id - 1} yourself."
                )
            case MarkerVerdict.ROLLED_BACK:
                return (
                    f"Batches up to {following - 1} of txnAppId {app!r} are committed, but Spark runs {batch_id}: the"
                    " checkpoint is older than the topic, perhaps restored from a copy. Its batches may hold other rows"
                    f" than those committed under these batch ids.{restore}"
                )
            case MarkerVerdict.OTHER_ROWS:
                return (
                    f"Batch {batch_id} of txnAppId {app!r} is committed{held}, but Spark runs a batch {batch_id} with"
                    " other rows: the checkpoint lost its last batch (restored from a copy, or its storage lost it),"
                    " and Spark planned the batch again from the records that exist now. Or, if only the number of rows"
                    f" could be compared, the query produces a different number each time.{restore}"
                )
            case _:
                return (
                    f"A batch {batch_id} of txnAppId {app!r} is committed, but by an older kafkasafe that did not"
                    " record its rows. So it cannot be determined whether Spark now runs the same rows or others under"
                    " this batch id. Nothing was written. If this checkpoint wrote the batch and was never restored"
                    " from a copy, run this batch once with the kafkasafe that wrote the marker, which skips it."
                    f" Otherwise {accept}"
                )

    def open(self, grant: WriterIdentity, *, remember: bool = True) -> None:
        """OPEN: begins the transaction."""
        self._opened_at = time.monotonic()
        places = {(self._options.marker_topic, self._marker_partition)} if remember else set()
        topic = self._options.topic
        if topic is not None:
            self._partitions = self.partition_count(topic)
            places |= {(topic, number) for number in range(self._partitions)}
        self.add(grant, places)

    def add(self, grant: WriterIdentity, places: Collection[tuple[str, int]]) -> None:
        """Adds partitions to the transaction. Adding a partition again has no effect."""
        self._coordinator.add_partitions(grant, places)

    def appender(self, grant: WriterIdentity, places: Collection[tuple[str, int]]) -> Appender:
        """An appender for a step WRITE in this process. It needs no claims, because the grant never leaves the process.

        Args:
            grant: Grant of the transaction. No other process may get it.
            places: The partitions to which it appends. If the option `topic` is set, the transaction already contains
                the topic's partitions, except those that were created after it began. Adds the others.
        """
        known = {(self._options.topic, number) for number in range(self.partitions)}
        if new := set(places) - known:
            self.add(grant, new)
        self._kept = grant
        options = self._options
        return Appender(
            self._transport,
            grant,
            attempt=0,
            delivery_timeout_s=options.delivery_timeout_s,
            request_timeout_ms=options.request_timeout_ms,
            buffer_bytes=options.buffer_bytes,
            claims=False,
        )

    def partition_count(self, topic: str) -> int:
        """Asks the brokers how many partitions a topic has.

        Raises:
            ConfigError: The topic does not exist.
            KafkaError: No broker answers.
        """
        self._start()
        try:
            return len(self._coordinator.topics([topic])[topic].partitions)
        except KafkaError as failed:
            if getattr(failed, "errno", None) == 3:
                raise unknown_topic(topic) from failed
            raise

    def verify(self, grant: WriterIdentity, reports: Sequence[Report]) -> None:
        """VERIFY: checks that the leaders hold exactly the rows that the tasks reported.

        If tasks had the grant, a task that Spark gave up may have appended to any partition of the transaction, so all
        of them are checked. If only this process had it (`appender`), the partitions without reports have no records.
        The others are checked, because a leader may have lost acknowledged records.

        Raises:
            RestartError: The leaders hold other rows. No row of the transaction is visible.
        """
        places = {(report.topic, report.partition) for report in reports}
        known = None if grant == self._kept else self._coordinator.partitions(grant)
        if known is not None:
            if missing := places - known:
                raise RestartError(f"{sorted(missing)} are not in the transaction")
            places |= {place for place in known if place[0] != "__consumer_offsets"}
        places.discard((self._options.marker_topic, self._marker_partition))
        answers = self._coordinator.producers(places)
        appended: dict[tuple[str, int], AppendState | None] = {}
        for place, answer in answers.items():
            state = answer.producers.get(grant.producer_id)
            appended[place] = None if state is None else AppendState(state.epoch, state.last_sequence)
        if wrong := judge_partitions(grant, reports, appended):
            raise RestartError(wrong)

    def mark(self, grant: WriterIdentity, marker: Marker) -> None:
        """MARK: writes the marker in the transaction. It is visible if and only if the transaction is committed.

        The marker topic and the group get the marker at the same time. Both have answered when the method ends. If the
        group refuses it, the method waits for the marker topic's answer for a few seconds: a request that arrives after
        the transaction was aborted could begin a new one (before KIP-890).
        """
        send = self._send_to_topic(grant, marker)
        first = Pending(send)
        try:
            self._mark_group(grant, marker)
        except BaseException:
            first.wait(_BRIEF_S)
            raise
        self._settle_topic(first, send)

    def _mark_group(self, grant: WriterIdentity, marker: Marker) -> None:
        self._coordinator.commit_offset(
            grant, (self._options.marker_topic, 0), marker.next_batch_id, marker.encode()
        )

    def _send_to_topic(self, grant: WriterIdentity, marker: Marker) -> Callable[[Reply[ProduceReply]], None]:
        """Returns the function that sends the marker to the marker topic, each time it is called."""
        topic, number = self._options.marker_topic, self._marker_partition
        data = batch.encode(
            [self._id.encode()], [marker.encode().encode()], timestamps=int(time.time() * 1000)
        )
        batch.stamp_identity(data, grant.producer_id, grant.epoch, 0, transactional=True)

        def send(reply: Reply[ProduceReply]) -> None:
            self._transport.produce(
                [ProduceRequest(None, topic, number, data, transaction=identity_of(grant))],
                -1,
                self._options.request_timeout_ms,
                lambda _, answer: reply(answer),
            )

        return send

    def _settle_topic(self, first: Pending, send: Callable[[Reply[ProduceReply]], None]) -> None:
        """Waits until the marker topic has the marker. Sends it again if the first attempt failed."""
        topic, number = self._options.marker_topic, self._marker_partition
        attempts = [first]

        def append(left_s: float) -> None:
            answer: ProduceReply = (attempts.pop() if attempts else Pending(send)).answer(left_s)
            if answer.error_code:
                raise _coded(answer.error_code, f"{topic}-{number}: {answer.error_message or 'Produce'}")

        deadline = time.monotonic() + self._options.delivery_timeout_s
        retry_until(append, deadline=deadline, what=f"The marker in {topic}", api="produce")

    def commit(self, grant: WriterIdentity) -> WriterIdentity | None:
        """COMMIT: commits the transaction. If the call fails, only FENCE and the marker show the outcome.

        Returns:
            The grant for the next transaction; None if only FENCE grants one.
        """
        return self._coordinator.end(grant, commit=True)

    def abort(self, grant: WriterIdentity) -> None:
        """Aborts a failed transaction, so that it does not block readers. Tries for only a few seconds."""
        try:
            self._coordinator.end(grant, commit=False, timeout_s=_BRIEF_S)
        except Exception as failed:
            log.warning(
                "Could not abort the transaction of %s, which times out later: %r", self._app_id, failed
            )

    # --- the marker ---

    def marker(self) -> Marker | None:
        """Reads the marker of the last committed batch. Call this only after `fence`: until then the marker may change.

        Raises:
            CheckpointMismatchError: The marker cannot be decoded.
        """
        self._start()
        found = self._coordinator.committed_offset((self._options.marker_topic, 0))
        # Offsets of groups without members expire (offsets.retention.minutes). Then read the marker topic instead.
        content = self._from_topic() if found is None else found[1]
        if content is None:
            return None
        try:
            return Marker.decode(content)
        except ValueError as failed:
            raise CheckpointMismatchError(
                f"[KAFKASAFE.CHECKPOINT_MISMATCH] The marker of txnAppId {self._app_id!r} cannot be read: {failed}."
                " Check whether a newer kafkasafe wrote it, or whether another program commits offsets for this group."
            ) from failed

    def _from_topic(self) -> str | None:
        """Returns the newest committed marker in the marker topic; None if there is none."""
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
                " another process uses this txnAppId. Try again after that process has ended."
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
                raise _coded(_NOT_YET, f"{topic}-{number} returned no records at {at}")
            return answer

        deadline = time.monotonic() + self._options.api_timeout_s
        return retry_until(attempt, deadline=deadline, what=f"The markers in {topic}-{number}", api="fetch")

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
        return retry_until(
            attempt, deadline=deadline, what="The bounds of the marker topic", api="ListOffsets"
        )

    def _start(self) -> None:
        """Connects to the cluster and finds or creates the marker topic. Later calls do nothing."""
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
                    f"The brokers at {self._options.servers} rejected this user ({failed}): check kafka.sasl.* and"
                    " kafka.security.protocol.",
                ) from failed
            if isinstance(code, int) and code > 0 and not classify(failed).retriable:
                raise error(
                    "MARKER_TOPIC",
                    f"The marker topic {topic!r} cannot be created or described ({failed}): create it by hand with"
                    " cleanup.policy=compact, or set markerTopic to another topic.",
                ) from failed
            raise no_broker(self._options, "the driver", failed) from failed
        self._marker_partition = zlib.crc32(self._id.encode()) % count
        self._started = True


def unknown_topic(topic: str) -> ConfigError:
    """Creates the error for a topic that does not exist."""
    return error(
        "UNKNOWN_TOPIC", f"Topic {topic!r} does not exist and the brokers do not create it: create it."
    )


def no_broker(options: SinkOptions, who: str, failed: BaseException) -> ConfigError:
    """Creates the error for a cluster that does not answer. `who` is "the driver" or "executors"."""
    return error(
        "NO_BROKER",
        f"No broker of kafka.bootstrap.servers={options.servers} answered within {options.api_timeout_s:g} s"
        f" ({failed}): check host and port, kafka.security.protocol, and that {who} can reach the brokers.",
    )


def _is_fenced(failure: BaseException) -> bool:
    return isinstance(failure, FencedError) or getattr(failure, "errno", None) in _FENCED


def _is_spoilt(failure: BaseException) -> bool:
    return getattr(failure, "errno", None) in _SPOILT


def _coded(code: int, message: str) -> KafkaError:
    made: Any = for_code(code)(message)
    made.errno = code
    coded: KafkaError = made
    return coded
