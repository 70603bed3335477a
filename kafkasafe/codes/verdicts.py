"""What an error code of Kafka means for a request, and for a batch that was sent.

`classify_code` decides for `kafkasafe.classify`, and `classify_produce` for the journal after an answer to Produce.
Both functions read the table in the module `rows`, and take the verdict from one of these sources. The first source
that has a verdict decides:

1. the known facts about the failed request (`ErrorContext`);
2. the cell in `BY_API` for this code and this kind of request;
3. for a Produce request, the verdict on answers to Produce in the row of this code;
4. the general verdict in the row of this code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from kafkasafe.codes.context import NO_CONTEXT, ErrorContext, in_context
from kafkasafe.codes.rows import (
    BY_API,
    TABLE,
    UNKNOWN,
    AnswerAction,
    Cell,
    ErrorAction,
    Produce,
    Scope,
)

__all__ = [
    "NO_CONTEXT",
    "AnswerAction",
    "ErrorAction",
    "ErrorContext",
    "ProduceVerdict",
    "Scope",
    "Verdict",
    "classify_code",
    "classify_produce",
    "latest_timestamp",
]


# --- any request ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an error means, and what to do.

    Attributes:
        code: Kafka's error code; None for an exception that has no code.
        name: Kafka's name of the code; `ERROR_<code>` if this version does not know the code; the exception's name if
            the exception has no code.
        api: The kind of request that failed with the error, such as `"list_offsets"`; None for any kind.
        action: What to do.
        data_at_risk: The cluster may have lost acknowledged records, or the consumer may skip records that it has not
            read. An error that puts data at risk needs an operator or a repair; a retry alone is not enough.
        explanation: The fix, in one sentence.
        note: Why the verdict differs from Kafka's own exception class, or what "refresh" means here; often empty.
    """

    code: int | None
    name: str
    api: str | None
    action: ErrorAction
    data_at_risk: bool
    explanation: str
    note: str = ""

    @property
    def retriable(self) -> bool:
        """Whether it makes sense to send the request again, in the way that `action` names."""
        return self.action in _RETRIABLE

    @property
    def refresh_metadata(self) -> bool:
        """The caller has to fetch metadata before the retry (for a group or transaction: to find the coordinator)."""
        return self.action is ErrorAction.RETRY_AFTER_REFRESH

    def as_dict(self) -> dict[str, Any]:
        """All attributes and flags by name, for JSON."""
        return {
            "code": self.code,
            "name": self.name,
            "api": self.api,
            "action": self.action.value,
            "retriable": self.retriable,
            "refresh_metadata": self.refresh_metadata,
            "data_at_risk": self.data_at_risk,
            "explanation": self.explanation,
            "note": self.note,
        }


_RETRIABLE: Final = frozenset(
    {ErrorAction.RETRY, ErrorAction.RETRY_AFTER_REFRESH, ErrorAction.RESET_SEQUENCE}
)


_JOURNAL: Final = (
    "This action is what SafeProducer does if a Produce request gets this code. For other requests, the action is"
    " different."
)
_SAME_BYTES: Final = "; the batch may have been appended, so send the same bytes under the same sequence"


def classify_code(code: int, api: str | None = None, context: ErrorContext = NO_CONTEXT) -> Verdict:
    """The verdict on an error code. Accepts every number."""
    row = TABLE.get(code)
    if row is None:
        cell, name = UNKNOWN, f"ERROR_{code}"
    else:
        cell, name = Cell(row.action, row.fix, row.at_risk, row.note), row.name
        if api == "produce" and row.produce is not None:
            cell = _in_produce(cell, row.produce)
        elif api is not None:
            cell = BY_API.get((api, code), cell)
    cell = in_context(code, cell, api, context) or cell
    # A row's note explains why the row's action differs from Kafka's exception class. So a row's note does not apply to
    # a cell with another action.
    note = cell.note or (row.note if row is not None and cell.action is row.action else "")
    return Verdict(code, name, api, cell.action, cell.at_risk, cell.fix, note)


def _in_produce(cell: Cell, produce: Produce) -> Cell:
    """The cell for an answer to Produce. Its action is what the journal does."""
    match produce.action:
        case AnswerAction.ACK:
            return cell
        case AnswerAction.RETRY:
            fix = cell.fix
            # After KAFKA_STORAGE_ERROR and similar errors, the leader may have failed before or after the append.
            if not produce.absent and "same sequence" not in fix:
                fix = fix.removesuffix(".") + _SAME_BYTES + "."
            action = ErrorAction.RETRY_AFTER_REFRESH if produce.refresh else ErrorAction.RETRY
            return Cell(action, fix, cell.at_risk, "" if action is cell.action else _JOURNAL)
        case AnswerAction.ASK_BROKER:
            # The meaning of errors 46, 47 and 90 is clear, but the journal asks the broker as a precaution.
            return cell
        case AnswerAction.REJECT_BATCH:  # pragma: no branch - the last
            return Cell(
                ErrorAction.REJECT_RECORD,
                cell.fix,
                cell.at_risk,
                "" if cell.action is ErrorAction.REJECT_RECORD else _JOURNAL,
            )


# --- the journal's view -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProduceVerdict:
    """What an answer to Produce means for the batch.

    Attributes:
        code: Kafka's error code.
        name: Kafka's name of the code.
        action: What to do.
        absent: The answer proves that the batch was not appended by this request.
        refresh_metadata: The leader may have moved.
        splittable: A batch of several records may contain good ones, so the journal divides the batch before it rejects
            any record.
        explanation: Human-readable text.
        scope: What the journal rejects if long retries do not help: nothing, this batch, or all batches for the
            destination.
    """

    code: int
    name: str
    action: AnswerAction
    absent: bool
    refresh_metadata: bool
    splittable: bool
    explanation: str
    scope: Scope = Scope.NONE


_PRODUCE: Final[Mapping[int, ProduceVerdict]] = MappingProxyType(
    {
        row.code: ProduceVerdict(
            row.code,
            row.name,
            row.produce.action,
            row.produce.absent,
            row.produce.refresh,
            row.produce.split,
            row.produce.meaning,
            row.produce.scope,
        )
        for row in TABLE.values()
        if row.produce is not None
    }
)

_RANGE: Final = re.compile(r"should be within \[(-?\d+), (-?\d+)\]")


def latest_timestamp(messages: Iterable[str], now_ms: int) -> int:
    """The latest timestamp (ms since the epoch) that a broker accepts now, after it answered with error 32
    (INVALID_TIMESTAMP).

    Args:
        messages: The broker's messages about the records. From Kafka 3.6 on, these messages name the accepted range, by
            the broker's clock.
        now_ms: The time of this machine. It is the result if no message names a range.
    """
    for message in messages:
        named = _RANGE.search(message)
        if named is not None:
            return int(named[2])
    return now_ms


def classify_produce(code: int) -> ProduceVerdict:
    """The verdict on a Produce answer, for the journal.

    Args:
        code: Kafka's error code. Brokers send only some codes in answers to Produce. Any other code does not show
            whether the batch was appended, and its verdict is to retry.
    """
    row = _PRODUCE.get(code)
    if row is None:
        return ProduceVerdict(
            code,
            f"ERROR_{code}",
            AnswerAction.RETRY,
            absent=False,
            refresh_metadata=True,
            splittable=False,
            explanation="an error code this version does not know",
        )
    return row
