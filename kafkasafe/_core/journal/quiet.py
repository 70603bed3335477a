"""When all that was in flight has an outcome: what may be so of a partition then. Nothing in here changes anything.

`machine.Machine._quiet_rules` has these in their order, each with what is done.
"""

from __future__ import annotations

from kafkasafe._core.journal.partition import Partition
from kafkasafe._core.journal.states import State

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
    """Acknowledged batches may be gone."""
    return partition.loss.suspicion is not None and not partition.queue.has_doubt


def has_late_requests(partition: Partition, now: float) -> bool:
    """New ids are needed, and a request under the old ones may still be appended."""
    return _ends_in_new_ids(partition) and now < partition.doubt.dead_at


def was_asked_early(partition: Partition, _now: float) -> bool:
    """New ids are needed, and a batch was looked for when a request with it could still be appended."""
    return _ends_in_new_ids(partition) and any(
        batch.state is State.PREPARED and batch.unanswered for batch in partition.queue
    )


def was_judged(partition: Partition, _now: float) -> bool:
    """Nothing is in doubt any more."""
    return not partition.queue.has_doubt and (partition.doubt.fenced or partition.doubt.sequence_refused)


def has_unchecked_refusal(partition: Partition, _now: float) -> bool:
    """New ids follow, or a fate: what the broker says of the first batch was not compared with what it has."""
    first = None if partition.queue.has_doubt else partition.queue.head
    return first is not None and first.unconfirmed and first.identity is not None


def has_refused_head(partition: Partition, _now: float) -> bool:
    """The first batch is refused."""
    first = None if partition.queue.has_doubt else partition.queue.head
    return first is not None and first.state is State.REFUSED


def has_gap(partition: Partition, _now: float) -> bool:
    """A batch was refused behind one that was not appended either."""
    return not partition.queue.has_doubt and any(batch.state is State.REFUSED for batch in partition.queue)


def has_old_ids(partition: Partition, _now: float) -> bool:
    """New ids are needed, and nothing can be appended under the old ones."""
    return not partition.queue.has_doubt and partition.ids.stale


def needs_pause(partition: Partition, _now: float) -> bool:
    """A request failed, and there was no pause since."""
    return not partition.progress.rested


def is_decided(partition: Partition, _now: float) -> bool:
    """Of each batch it is known whether it is in the log."""
    return not partition.queue.has_doubt


def always(_partition: Partition, _now: float) -> bool:
    """The last rule."""
    return True


def _ends_in_new_ids(partition: Partition) -> bool:
    return not partition.queue.has_doubt and (partition.ids.stale or has_refused_head(partition, 0.0))
