"""Conditions of a partition whose requests in flight all have an outcome. They change nothing.

`machine.Machine._quiet_rules` has them in their order, each with its action.
"""

from __future__ import annotations

from kafkasafe.journal.flow import Flow
from kafkasafe.journal.partition import Partition
from kafkasafe.journal.states import BatchState

__all__ = [
    "always",
    "has_gap",
    "has_late_requests",
    "has_old_ids",
    "has_refused_head",
    "has_unchecked_refusal",
    "is_decided",
    "is_suspected",
    "needs_pause",
    "was_asked_early",
    "was_judged",
]


def is_suspected(partition: Partition, _now: float) -> bool:
    """The log may have lost acknowledged batches."""
    return partition.loss.suspicion is not None and not partition.queue.has_doubt


def has_late_requests(partition: Partition, now: float) -> bool:
    """The batches need new ids, and a broker may still append a request under the old ones."""
    return _ends_in_new_ids(partition) and now < partition.doubt.dead_at


def was_asked_early(partition: Partition, _now: float) -> bool:
    """The batches need new ids, and a batch was searched for while a broker could still append a request with it."""
    return _ends_in_new_ids(partition) and any(
        batch.state is BatchState.PREPARED and batch.unanswered for batch in partition.queue
    )


def was_judged(partition: Partition, _now: float) -> bool:
    """No batch is in doubt any more."""
    return not partition.queue.has_doubt and (partition.doubt.fenced or partition.doubt.sequence_refused)


def has_unchecked_refusal(partition: Partition, _now: float) -> bool:
    """The broker refused the first batch, and its refusal was not compared with its producer state yet."""
    first = None if partition.queue.has_doubt else partition.queue.head
    return first is not None and first.fault.unconfirmed and first.identity is not None


def has_refused_head(partition: Partition, _now: float) -> bool:
    """The broker refused the first batch."""
    first = None if partition.queue.has_doubt else partition.queue.head
    return first is not None and first.state is BatchState.REFUSED


def has_gap(partition: Partition, _now: float) -> bool:
    """The broker refused a batch, and did not append the one before it either."""
    return not partition.queue.has_doubt and any(
        batch.state is BatchState.REFUSED for batch in partition.queue
    )


def has_old_ids(partition: Partition, _now: float) -> bool:
    """The batches need new ids, and no broker can append a request under the old ones."""
    return not partition.queue.has_doubt and partition.ids.stale


def needs_pause(partition: Partition, _now: float) -> bool:
    """A request failed, and no pause followed yet."""
    return partition.flow is Flow.SETTLING


def is_decided(partition: Partition, _now: float) -> bool:
    """For each batch, it is known whether the log has it."""
    return not partition.queue.has_doubt


def always(_partition: Partition, _now: float) -> bool:
    """The last rule."""
    return True


def _ends_in_new_ids(partition: Partition) -> bool:
    return not partition.queue.has_doubt and (partition.ids.stale or has_refused_head(partition, 0.0))
