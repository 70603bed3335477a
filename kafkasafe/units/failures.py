"""Decides what to do after a failed request of a transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafkasafe.codes.numbers import CONCURRENT_TRANSACTIONS
from kafkasafe.codes.sets import (
    BLOCKING_CODES,
    COORDINATOR_BUSY_CODES,
    FENCED_CODES,
    LOST_TRANSACTION_CODES,
    NOT_A_MEMBER_CODES,
    TOO_LARGE_CODES,
    UNACCEPTABLE_OFFSETS_CODES,
)
from kafkasafe.codes.verdicts import AnswerAction, Scope, classify_produce
from kafkasafe.units.ids import TransactionalIds
from kafkasafe.units.outbox import UnitOutbox
from kafkasafe.units.requests import (
    AddPartitions,
    CommitOffsets,
    DescribeTxn,
    EndTxn,
    FindOutcome,
    InitProducerId,
    Produce,
    Request,
    RetryLater,
)
from kafkasafe.units.transitions import Transitions

_PATIENCE: Final = 8
"""After a request has failed this many times, the transaction is aborted, because an open transaction delays readers of
committed records.
"""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """The failure of a request.

    Attributes:
        code: Kafka's error code; None without an answer.
        reason: Human-readable.
        sent: Whether the request may have reached a broker.
        lasting: Whether the request has failed with the same answer for longer than `blocked_timeout_ms`.
        early_ms: If the broker refused a batch because its timestamps are in the future: after how many milliseconds
            the broker will accept the batch. Otherwise 0.
    """

    code: int | None
    reason: str
    sent: bool
    lasting: bool
    early_ms: int


class FailurePolicy:
    """Decides whether to repeat a failed request, to abort its transaction, or to ask for the transaction's outcome.

    Args:
        ids: The transactional ids.
        transitions: Changes units.
        out: Receives the decisions.
    """

    def __init__(self, ids: TransactionalIds, transitions: Transitions, out: UnitOutbox) -> None:
        self._ids = ids
        self._transitions = transitions
        self._out = out

    def failed(self, request: Request, failure: RequestFailure) -> None:
        """Decide about a request that failed in the current turn of its transactional id."""
        attempt = request.tid.count_failure(request)
        if isinstance(request, InitProducerId):
            self._not_fenced(request, attempt, failure)
            return
        request.transaction.explain(failure.reason)
        match request:
            case DescribeTxn():
                self._ids.fence(request.tid)
            case FindOutcome():
                self._again(request, attempt, failure)
            case EndTxn():
                self._not_ended(request, attempt, failure)
            case CommitOffsets():
                self._no_offsets(request, attempt, failure)
            case Produce():
                self._not_appended(request, attempt, failure)
            case AddPartitions():
                self._inside(request, attempt, failure, lasting=failure.lasting)

    def _again(self, request: Request, attempt: int, failure: RequestFailure, *, slow: bool = False) -> None:
        self._out.ask(RetryLater(request, attempt, failure.code, failure.reason, slow=slow))

    def _not_fenced(self, request: InitProducerId, attempt: int, failure: RequestFailure) -> None:
        code, keep = failure.code, request.keep
        if keep is None or code not in FENCED_CODES or request.tid.transaction is not None:
            self._again(request, attempt, failure, slow=code is not None)
        elif not self._ids.fence_late(request):
            sure = request.timed_out or keep.protocol >= 2
            self._transitions.taken_over(request.tid, failure.reason, sure=sure)

    def _not_ended(self, request: EndTxn, attempt: int, failure: RequestFailure) -> None:
        code = failure.code
        if code in FENCED_CODES and self._ids.may_be_anothers(request.tid):
            self._transitions.ask_unfenced(request.transaction, request.tid, failure.reason)
            return
        if code in LOST_TRANSACTION_CODES:
            self._transitions.ask_outcome(request.transaction)
            return
        if code is None and not failure.sent:
            request.tid.forget_failures(request)
            attempt = 1
        self._again(request, attempt, failure, slow=code is not None and code not in COORDINATOR_BUSY_CODES)

    def _no_offsets(self, request: CommitOffsets, attempt: int, failure: RequestFailure) -> None:
        transaction, code, reason = request.transaction, failure.code, failure.reason
        if request.index < 0:
            self._inside(request, attempt, failure, lasting=failure.lasting)
        elif code is not None and code in NOT_A_MEMBER_CODES:
            self._transitions.leave_group(transaction, transaction.offsets[request.index].group, code, reason)
        elif code is None and failure.sent and transaction.grant.protocol < 2:
            # The request may still arrive late. If the producer id's next transaction had the same epoch, the broker
            # would add the late request's contents to that transaction. So do not repeat the request, but abort the
            # current transaction, which raises the epoch.
            self._transitions.abort_and_requeue(transaction, code, reason)
        else:
            self._inside(
                request, attempt, failure, lasting=failure.lasting or code in UNACCEPTABLE_OFFSETS_CODES
            )

    def _not_appended(self, request: Produce, attempt: int, failure: RequestFailure) -> None:
        transaction, code, lasting = request.transaction, failure.code, failure.lasting
        if code is not None:
            verdict, unit = classify_produce(code), transaction.units[0]
            if (
                code in TOO_LARGE_CODES
                and request.batch.count > 1
                and unit.durable
                and not transaction.is_shared
            ):
                self._transitions.abort_and_requeue(transaction, code, failure.reason)
                # Dividing the batch is progress.
                unit.forget_tries()
                self._out.divide(unit, request.batch)
                return
            if failure.early_ms and not lasting:
                self._transitions.abort_and_requeue(
                    transaction, code, failure.reason, early_ms=failure.early_ms
                )
                return
            if verdict.action is AnswerAction.REJECT_BATCH and verdict.scope is Scope.NONE:
                lasting = True
            elif verdict.action is not AnswerAction.RETRY and code != CONCURRENT_TRANSACTIONS:
                self._transitions.abort_and_requeue(transaction, code, failure.reason)
                return
        self._inside(request, attempt, failure, lasting=lasting)

    def _inside(
        self,
        request: AddPartitions | Produce | CommitOffsets,
        attempt: int,
        failure: RequestFailure,
        *,
        lasting: bool,
    ) -> None:
        """Decide about a request that failed before its transaction was staged."""
        transaction, code, reason = request.transaction, failure.code, failure.reason
        if lasting and not transaction.is_shared:
            self._transitions.give_up(transaction.units[0], code or 0, reason)
        elif lasting or code in LOST_TRANSACTION_CODES or code in BLOCKING_CODES or attempt >= _PATIENCE:
            # If several units share this transaction, the next transactions have fewer units, until the unit that
            # causes the failure is alone.
            self._transitions.abort_and_requeue(transaction, code, reason)
        else:
            self._again(request, attempt, failure)
