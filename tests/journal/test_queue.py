"""The queue of a partition: its head, what is in flight, and what is in doubt."""

from __future__ import annotations

import pytest

from kafkasafe import journal as j
from kafkasafe.history.identity import BatchId
from kafkasafe.journal.queue import PartitionQueue

S = j.BatchState


def queue_of(*states: S, epochs: tuple[int, ...] = ()) -> PartitionQueue:
    queue = PartitionQueue()
    for at, state in enumerate(states):
        identity = None if state is S.SEALED else BatchId(7, epochs[at] if epochs else 0, 2 * at, 2)
        queue.append(j.Batch(at, 1, 2, 100, 0, identity=identity, state=state))
    return queue


def test_an_empty_queue_has_nothing() -> None:
    queue = PartitionQueue()
    assert (queue.head, queue.in_flight, queue.doubt) == (None, 0, [])
    assert (queue.has_in_flight, queue.has_doubt) == (False, False)


@pytest.mark.parametrize("first", [S.SEALED, S.PREPARED, S.SENT, S.REFUSED, S.IN_DOUBT, S.UNDECIDABLE])
def test_the_head_is_the_first_batch_that_is_not_acknowledged(first: S) -> None:
    queue = queue_of(S.ACKED, S.ACKED, first, S.SENT)
    assert queue.head is queue.near[2]


def test_acknowledged_batches_only_have_no_head() -> None:
    assert queue_of(S.ACKED, S.ACKED).head is None


def test_a_batch_is_in_flight_until_it_has_an_answer() -> None:
    queue = queue_of(S.ACKED, S.SENT, S.IN_DOUBT, S.SENT, S.PREPARED)
    assert (queue.in_flight, queue.has_in_flight) == (2, True)


# -- in doubt


def test_all_batches_in_doubt_are_asked_about_at_once() -> None:
    queue = queue_of(S.ACKED, S.IN_DOUBT, S.PREPARED, S.IN_DOUBT)
    assert queue.has_doubt
    assert queue.doubt == [queue.near[1], queue.near[3]]


def test_only_those_of_one_epoch_are_asked_about() -> None:
    """The broker has a separate state for each producer id, and the newest epoch of it."""
    queue = queue_of(S.IN_DOUBT, S.IN_DOUBT, S.IN_DOUBT, epochs=(0, 0, 1))
    assert queue.doubt == [queue.near[0], queue.near[1]]


# -- gaps

BEFORE = [
    # The state of the batch before, whether a gap is its failure, whether it may explain the missing sequences.
    (S.SEALED, False, True),
    (S.PREPARED, True, True),
    (S.REFUSED, True, True),
    (S.SENT, False, False),
    (S.ACKED, False, False),
    (S.IN_DOUBT, False, False),
]


@pytest.mark.parametrize(("before", "failed", "explains"), BEFORE)
def test_a_gap_may_be_due_to_an_earlier_batch(before: S, failed: bool, explains: bool) -> None:
    queue = queue_of(S.ACKED, before, S.SENT, S.PREPARED)
    assert queue.follows_failure(queue.near[2]) is failed
    assert queue.explains_gap(queue.near[2]) is explains


@pytest.mark.parametrize("state", [S.SEALED, S.PREPARED])
def test_the_last_batch_has_an_id_or_not(state: S) -> None:
    assert queue_of(S.SENT, state).ids_reach_end is (state is S.PREPARED)
