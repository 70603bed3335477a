"""Adapts the verdict on an error code to the known facts about the failed request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafkasafe.codes.rows import NOT_READY, Cell, ErrorAction

_MAX_OFFSET: Final = 2**63 - 1
_PRODUCER_RETRIES: Final = (
    "In Kafka, the class of this error is not retriable. But Kafka's producer retries in this case (see `canRetry`"
    " in Kafka 2.3.1)."
)


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """Further facts about the failed request. None means that a fact is unknown, except in `last_acked_offset`.

    Attributes:
        last_acked_offset: Last offset of the partition that was acknowledged to this producer. None means that no
            record was ever acknowledged; some clients write a negative number instead.
        log_start_offset: First offset of the partition's log, from the answer; −1 if the protocol version of the answer
            lacks the field.
        resend: True if the batch had been sent before; False if this request was the first one with the batch.
        tiered: Whether the topic keeps older segments in remote storage.
        position: The offset that was to be read (Fetch).
        in_log: The result of DescribeProducers or of a scan of the log. True: the log has the batch. False: the log has
            neither the batch nor its predecessors.
    """

    last_acked_offset: int | None = None
    log_start_offset: int | None = None
    resend: bool | None = None
    tiered: bool | None = None
    position: int | None = None
    in_log: bool | None = None


NO_CONTEXT: Final = ErrorContext()


def in_context(code: int, cell: Cell, api: str | None, context: ErrorContext) -> Cell | None:
    """The verdict that follows from the context; None if the context does not decide."""
    if api in {None, "produce"}:
        if context.in_log is True and cell.action is not ErrorAction.FENCE:
            return Cell(ErrorAction.SUCCESS, "Nothing to do: the broker's log has this batch.")
        if code == 45:
            return _out_of_order(context)
        if code == 46 and context.in_log is False:
            return Cell(
                ErrorAction.FATAL,
                "Stop and find out which client shares this producer id: the broker says that this batch is a"
                " duplicate, but the broker's log does not contain the batch.",
                at_risk=True,
            )
        if code == 59:
            return _unknown_producer(context)
    if api in {None, "fetch"} and code == 1:
        return _out_of_range(context)
    if api in {None, "fetch", "list_offsets"} and code == 9 and context.tiered:
        # The answering broker is the leader, so refreshing metadata before each retry would only add load
        # (KAFKA-19599).
        return Cell(
            ErrorAction.RETRY,
            f"Retry only this partition, at the same leader, with back-off, and keep the position: {NOT_READY}.",
            note=(
                "In Kafka, this error asks for a metadata refresh. For a tiered partition, error 9 is about remote"
                " storage, not about the leader."
            ),
        )
    return None


def _out_of_order(context: ErrorContext) -> Cell | None:
    """If a batch is sent again, the broker may answer with error 45 although the log has the batch.

    For each producer, a broker remembers only the last five batches, and after a restart only the last one.
    """
    if context.in_log is False:
        return Cell(
            ErrorAction.FATAL,
            "Data loss: records before this batch are missing from the log; send them again, in order, from wherever"
            " they are kept, then send this batch.",
            at_risk=True,
        )
    if context.resend is None:
        return None
    if context.resend:
        return Cell(
            ErrorAction.ASK_BROKER,
            "Ask DescribeProducers (or read the log) before sending again: usually the batch is committed already; if"
            " not, the broker expected a lower sequence, so records before this batch are missing.",
        )
    return Cell(
        ErrorAction.ASK_BROKER,
        "Ask DescribeProducers (or read the log): this batch was not appended, because records before it are missing;"
        " this is data loss if the missing records were acknowledged, but not if they failed without an acknowledgement"
        " and will still be sent.",
        at_risk=True,
    )


def _unknown_producer(context: ErrorContext) -> Cell | None:
    """Error 59 (KAFKA-5793, brokers before 2.5): has retention removed the producer's records, or were they lost?

    This function follows Kafka 2.3.1's `TransactionManager.canRetry`. If no record was ever acknowledged, the producer
    sends all its records again, so none is lost.
    """
    start, acked = context.log_start_offset, context.last_acked_offset
    if start is None:
        return None
    if not 0 <= start <= _MAX_OFFSET:
        return Cell(
            ErrorAction.RETRY,
            "Retry the same bytes under the same sequence; if the error persists, treat it as data loss, because the"
            " response has no log start offset (Produce before v5) that would show whether records were lost.",
            note=_PRODUCER_RETRIES,
        )
    if acked is None or acked < 0:
        return Cell(
            ErrorAction.RESET_SEQUENCE,
            "Wait until no older request can arrive, then send all unacknowledged records again, in order, under a new"
            " epoch from sequence 0: nothing is lost, because no record was ever acknowledged.",
            note=_PRODUCER_RETRIES,
        )
    if start > acked:
        return Cell(
            ErrorAction.RESET_SEQUENCE,
            f"Send the batch again under a new epoch from sequence 0: the log starts at {start}, so retention removed"
            f" everything up to {acked}, the last acknowledged offset; nothing was lost.",
            note=_PRODUCER_RETRIES,
        )
    return Cell(
        ErrorAction.FATAL,
        f"Data loss: the log starts at {start}, so it should contain the record acknowledged at offset {acked}, but the"
        " broker does not know the producer; send the lost records again from wherever they are kept.",
        at_risk=True,
    )


def _out_of_range(context: ErrorContext) -> Cell | None:
    """Error 1 in Fetch. The cause is retention or a truncation. In a tiered topic, it may also be that the broker
    cannot find the segment in remote storage yet.
    """
    start, position = context.log_start_offset, context.position
    if start is not None and position is not None and 0 <= start <= _MAX_OFFSET and position >= 0:
        if position < start:
            return Cell(
                ErrorAction.FATAL,
                f"Offsets {position} to {start - 1} were deleted unread: seek to {start} deliberately, and report"
                " which records were skipped.",
                at_risk=True,
            )
        if context.tiered:
            return Cell(
                ErrorAction.RETRY,
                f"Keep the position {position} and retry with back-off: the log starts at {start}, so the record"
                " is in remote storage, but the broker cannot find it there yet (KIP-1007); do not reset.",
                note="In Kafka, this error is not retriable. In a tiered topic, it is temporary if the offset is"
                " before the log's end (KIP-1007).",
            )
    if context.tiered:
        return Cell(
            ErrorAction.ASK_BROKER,
            "Do not reset the position, but ask for the log start offset: if that offset is at or before the position,"
            " remote storage is merely not ready yet (KIP-1007), so retry.",
            at_risk=True,
        )
    return None
