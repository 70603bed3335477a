"""The driver's side of the sink protocol: one Kafka transaction for each micro-batch. Does not call Spark.

Each transaction also contains a marker, which names the next batch id. So a later driver knows which batches are
committed.

`kafkasafe.spark.txn` decides the order of the steps, and its docstring explains this order. `Session.write` runs all
steps for one micro-batch. `sink_transaction` and `marker_store` execute the single steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NoReturn, TypeAlias

from kafka.errors import KafkaTimeoutError

from kafkasafe.classification import classify
from kafkasafe.cluster.api import Cluster
from kafkasafe.codes.sets import FENCED_CODES, SPOILT_CODES
from kafkasafe.errors import CheckpointMismatchError, WaitTimeoutError
from kafkasafe.kafkapython.connect import over_sockets
from kafkasafe.spark.appender import FencedError, RestartError
from kafkasafe.spark.marker_store import MarkerStore
from kafkasafe.spark.mismatch import mismatch
from kafkasafe.spark.sink_options import SinkOptions
from kafkasafe.spark.sink_transaction import SinkTransaction
from kafkasafe.spark.transactions import TransactionRequests
from kafkasafe.spark.txn import (
    Event,
    Marker,
    MarkerVerdict,
    MicroBatch,
    Report,
    Step,
    WriterIdentity,
    judge_marker,
    judge_version,
    may_go_on,
)

log = logging.getLogger(__name__)

OutcomeName: TypeAlias = Literal["written", "duplicate", "resumed"]

_OPEN: Final = frozenset({Step.OPEN, Step.WRITE, Step.VERIFY, Step.MARK})  # a transaction may be open
_BRIEF_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a micro-batch.

    Attributes:
        name: `written`: one transaction wrote the batch. `resumed`: the batch needed more than one transaction, or its
            commit was not answered but had succeeded. `duplicate`: an earlier run had committed the batch, so nothing
            was written.
        rows: Number of rows that this call committed.
        restarts: How often the transaction was restarted.
        seconds: Duration in seconds.
    """

    name: OutcomeName
    rows: int
    restarts: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Batch:
    """The arguments of `Session.write`, which describe one micro-batch."""

    number: int
    query_id: str
    work: Callable[[WriterIdentity], Sequence[Report]]
    plan: str
    count: Callable[[], int] | None
    remember: bool


class _BatchWrite:
    """One call of `Session.write`: carries out the steps until the micro-batch is written, or has failed.

    Args:
        machine: Decides the next step.
        grant: The grant (producer id and epoch) from the driver's last commit; None if the micro-batch needs a new
            grant.
    """

    def __init__(
        self,
        options: SinkOptions,
        app_id: str,
        transaction: SinkTransaction,
        markers: MarkerStore,
        batch: _Batch,
        machine: MicroBatch,
        grant: WriterIdentity | None,
    ) -> None:
        self._options = options
        self._app_id = app_id
        self._transaction = transaction
        self._markers = markers
        self._batch = batch
        self._machine = machine
        self._grant = grant
        self._reports: Sequence[Report] = ()
        self._marker: Marker | None = None
        self._sent: Marker | None = None  # the marker of the transaction whose COMMIT was sent
        self._failure: BaseException = WaitTimeoutError("No transaction could be started")
        self.following: tuple[WriterIdentity, Marker] | None = None
        """After a commit: the grant for the next transaction, and the marker that was committed."""

    def run(self) -> Outcome:
        """Carries out all steps. Raises as `Session.write`."""
        began = time.monotonic()
        machine, batch_id = self._machine, self._batch.number
        while not machine.over:
            step = machine.step
            try:
                event = self._carry_out(step)
            except BaseException as raised:
                event = self._failed(step, raised)
            following = machine.on(event)
            if following is Step.FENCE and event is not Event.LAPSED:
                log.warning("Restarting batch %d of %s: %r", batch_id, self._app_id, self._failure)
            if following is Step.FAILED and step in _OPEN and not _is_fenced(self._failure):
                self._abort()
        if machine.step is Step.FAILED:
            self._raise()
        seconds = time.monotonic() - began
        if machine.step is Step.DUPLICATE and not machine.committed_by_us:
            return Outcome("duplicate", 0, machine.restarts, seconds)
        rows = sum(report.rows for report in self._reports)
        return Outcome("resumed" if machine.resumed else "written", rows, machine.restarts, seconds)

    def _carry_out(self, step: Step) -> Event:
        transaction, batch = self._transaction, self._batch
        if step is Step.FENCE:
            self._grant = None
            self._grant = transaction.fence()
            return Event.DONE
        if step is Step.READ_MARKER:
            # Without `remember`, the application id is new, so no marker exists before the first commit.
            is_new = not batch.remember and not self._machine.resumed
            return Event.DONE if is_new or self._judge() else Event.KNOWN
        grant = self._grant
        assert grant is not None  # noqa: S101  # FENCE is the first step
        match step:
            case Step.OPEN:
                transaction.open(grant, remember=batch.remember)
            case Step.WRITE:
                self._reports = batch.work(grant)
            case Step.VERIFY:
                transaction.verify(grant, self._reports)
            case Step.MARK:
                mark = self._markers.write if batch.remember else self._markers.write_to_group
                rows = sum(report.rows for report in self._reports)
                self._marker = Marker(batch.number + 1, batch.query_id, rows, batch.plan)
                mark(grant, self._marker)
            case _:
                self._sent = self._marker
                following = transaction.commit(grant)
                if following is not None and self._marker is not None:
                    self.following = following, self._marker
        return Event.DONE

    def _judge(self) -> bool:
        """The step READ_MARKER: reads the marker and decides whether the batch must be written.

        Raises:
            CheckpointMismatchError: The marker does not fit the checkpoint, so it cannot be decided whether to write
                the batch. The message names the remedies.
        """
        batch, strict = self._batch, self._options.strict
        marker = self._markers.read()
        # This call of `write` itself wrote the marker, but got no answer to its commit. So the marker is not a
        # mismatch.
        if self._sent is not None and marker == self._sent:
            return False
        if batch.count is None:
            verdict = judge_version(marker, batch.number, strict=strict)
        else:
            verdict = judge_marker(marker, batch.number, batch.query_id, strict=strict, plan=batch.plan)
            if verdict is MarkerVerdict.COUNT:
                verdict = judge_marker(
                    marker, batch.number, batch.query_id, strict=strict, plan=batch.plan, rows=batch.count()
                )
        if verdict in {MarkerVerdict.WRITE, MarkerVerdict.DUPLICATE}:
            if marker is not None and verdict is MarkerVerdict.WRITE and marker.next_batch_id > batch.number:
                log.warning(
                    "Writing batch %d of %s and replacing its marker (onMarkerMismatch=accept): %s",
                    batch.number,
                    self._app_id,
                    marker,
                )
            return verdict is MarkerVerdict.WRITE
        problem = mismatch(
            verdict,
            marker,
            batch.number,
            batch.query_id,
            app_id=self._app_id,
            marker_topic=self._options.marker_topic,
        )
        raise CheckpointMismatchError(f"[KAFKASAFE.CHECKPOINT_MISMATCH] {problem}")

    def _failed(self, step: Step, raised: BaseException) -> Event:
        """Returns the outcome of a step that raised an error."""
        self._failure = raised
        event = self._event(step, raised)
        if event is Event.BROKEN and _is_fenced(raised):
            self._failure = FencedError(
                f"Batch {self._batch.number} of {self._app_id} took longer than kafka.transaction.timeout.ms="
                f"{self._options.transaction_timeout_ms}, so the cluster ended its transaction: raise that"
                " option (up to the brokers' transaction.max.timeout.ms), or make micro-batches smaller."
            )
            self._failure.__cause__ = raised
        return event

    def _abort(self) -> None:
        """Aborts the transaction of a batch that has failed, because readers would otherwise wait until the transaction
        times out.
        """
        if self._grant is not None:
            self._transaction.abort(self._grant)

    def _event(self, step: Step, failure: BaseException) -> Event:
        if step is Step.OPEN and self._machine.is_carried and (_is_fenced(failure) or _is_spoilt(failure)):
            return Event.LAPSED
        if _is_fenced(failure):
            # The coordinator returns the same errors to a driver whose transaction timed out and to a driver that was
            # replaced.
            timed_out = self._transaction.has_timed_out
            return Event.BROKEN if timed_out and step is not Step.FENCE else Event.REFUSED
        if step is Step.FENCE or not isinstance(failure, Exception):
            return Event.REFUSED
        if isinstance(failure, RestartError) or _is_spoilt(failure):
            return Event.BROKEN
        if step is Step.COMMIT and (isinstance(failure, KafkaTimeoutError) or classify(failure).retriable):
            return Event.UNKNOWN
        return Event.REFUSED

    def _raise(self) -> NoReturn:
        """Raises the error that ended the micro-batch."""
        machine, failure, batch_id = self._machine, self._failure, self._batch.number
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


def _is_fenced(failure: BaseException) -> bool:
    """Returns whether the coordinator or a leader refused the epoch, because a newer epoch exists."""
    return isinstance(failure, FencedError) or getattr(failure, "errno", None) in FENCED_CODES


def _is_spoilt(failure: BaseException) -> bool:
    """Returns True if this transaction can no longer be committed, but a new transaction may succeed."""
    return getattr(failure, "errno", None) in SPOILT_CODES


class Session:
    """Writes the micro-batches of one application id. Only one thread at a time may use a session.

    Args:
        options: Options of the sink.
        app_id: The application id. Markers are stored under this id.

    Attributes:
        transport: The driver's connections. Code that appends in the driver's process uses them too.
        transaction: The transaction of the micro-batch that is being written.
        markers: The markers of the application id.
    """

    def __init__(self, options: SinkOptions, app_id: str) -> None:
        self._options = options
        self._app_id = app_id
        self._id = f"kafkasafe-spark-{app_id}"
        self.transport: Cluster = over_sockets(
            {**options.connection, "client_id": options.connection.get("client_id", "kafkasafe-spark-driver")}
        )
        requests = TransactionRequests(self.transport, self._id, timeout_s=options.api_timeout_s)
        self.markers = MarkerStore(self.transport, requests, options, app_id, self._id)
        self.transaction = SinkTransaction(self.transport, requests, self.markers, options, app_id)
        self._machine = MicroBatch(options.max_restarts)
        # After a commit: the grant for the next transaction, and the marker that was committed.
        self._carried: tuple[WriterIdentity, Marker] | None = None

    def __repr__(self) -> str:
        return f"<Session {self._id}>"

    @property
    def restarts(self) -> int:
        """How often the latest `write` restarted its transaction, even if the call failed in the end."""
        return self._machine.restarts

    def close(self) -> None:
        """Closes the connections. An open transaction stays open until the next driver ends it, or it times out."""
        self.transport.close(_BRIEF_S)

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
            work: Gets a grant (the transaction's producer id and epoch), runs the tasks that append records under this
                grant, and returns their reports. `write` calls `work` again for each new transaction. If the function
                raises RestartError, the transaction is restarted. If the function raises FencedError, another driver
                has taken over. After any other exception the batch fails.
            plan: `plan_digest` of the micro-batch; empty if it is unknown.
            count: Returns the number of rows of the micro-batch. `write` calls `count` only if the marker's other
                fields do not show whether the batch is committed. None in a batch query, where `txnVersion` alone
                decides whether to write.
            remember: Whether to keep the marker forever. If False, the marker is stored only as a committed offset of a
                consumer group, which expires, and the application id must be new. `write` then reads the marker only if
                it has to restart its transaction, for example after a commit that was not answered.

        Raises:
            CheckpointMismatchError: The marker does not fit the checkpoint. Nothing was written.
            FencedError: Another driver has taken over. Either all rows of this call are committed, or none is visible.
            KafkaError: A step failed permanently.
            Exception: The exception that `work` raised. The transaction is aborted.
        """
        carried, self._carried = self._carried, None
        grant: WriterIdentity | None = None
        if carried is not None and count is not None and may_go_on(carried[1], batch_id, query_id, plan=plan):
            grant = carried[0]
        self._machine = MicroBatch(self._options.max_restarts, goes_on=grant is not None)
        writing = _BatchWrite(
            self._options,
            self._app_id,
            self.transaction,
            self.markers,
            _Batch(batch_id, query_id, work, plan, count, remember),
            self._machine,
            grant,
        )
        outcome = writing.run()
        self._carried = writing.following
        return outcome
