"""A batch: which facts about it end with the state that they belong to."""

from __future__ import annotations

import pytest

from kafkasafe import journal as j
from kafkasafe.history.identity import BatchId

CODE = 87


def prepared() -> j.Batch:
    return j.Batch(1, 1, 2, 100, 0, identity=BatchId(7, 0, 0, 2), state=j.BatchState.PREPARED)


def condemned() -> j.Batch:
    """A request with it had no answer, and it would be rejected if the log did not have it."""
    batch = prepared()
    batch.send()
    batch.on(j.BatchEvent.UNCERTAIN)
    batch.condemn(CODE, "refused for a week")
    return batch


def refused() -> j.Batch:
    batch = prepared()
    batch.send()
    batch.refuse(CODE, "INVALID_RECORD", ((1, "no key"),), unconfirmed=True)
    return batch


@pytest.mark.parametrize("how", ["found in the log", "acknowledged as a probe"])
def test_a_batch_that_the_cluster_has_is_not_condemned_any_more(how: str) -> None:
    """The cluster may lose it later. It is sent again then, and a lost answer must not reject it for the old reason."""
    batch = condemned()
    if how == "found in the log":
        batch.on(j.BatchEvent.FOUND)
    else:
        batch.send()
        batch.on(j.BatchEvent.ACKNOWLEDGED)
    assert not batch.fault.condemned


def test_a_condemned_batch_stays_so_while_it_is_searched_for() -> None:
    batch = condemned()
    batch.send()
    batch.on(j.BatchEvent.UNCERTAIN)
    assert batch.fault.condemned


@pytest.mark.parametrize("event", [j.BatchEvent.PASSED_BY, j.BatchEvent.MAY_BE_THERE])
def test_records_that_were_called_bad_are_not_once_the_refusal_is_void(event: j.BatchEvent) -> None:
    """If the batch is divided later because it is too slow, each of its records is sent."""
    batch = refused()
    batch.on(event)
    assert batch.fault.bad_records == ()


def test_a_batch_that_is_sent_again_needs_no_proof_of_the_earlier_refusal() -> None:
    batch = refused()
    batch.on(j.BatchEvent.PASSED_BY)
    assert not batch.fault.unconfirmed


def test_the_producer_state_is_not_asked_about_an_id_that_was_taken_back() -> None:
    batch = prepared()
    batch.send()
    batch.on(j.BatchEvent.NOT_APPENDED)
    batch.check_absence(wanted=True)
    batch.on(j.BatchEvent.ID_TAKEN_BACK)
    batch.take_back_id()
    assert not batch.fault.unconfirmed


def test_an_unknown_outcome_means_that_a_request_may_still_arrive() -> None:
    batch = prepared()
    batch.on(j.BatchEvent.MAY_BE_THERE)
    assert batch.unanswered
