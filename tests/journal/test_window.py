"""The window of a partition: when batches may be sent while others are in flight."""

from __future__ import annotations

import pytest

from kafkasafe.history.identity import BatchId
from kafkasafe.journal.window import InFlight, SendDecision, SendWindow

FIRST = BatchId(7, 0, 0, 2)
SECOND = BatchId(7, 0, 2, 2)


def test_the_first_batch_under_an_id_goes_alone() -> None:
    assert not SendWindow().is_open(FIRST, 0.0)


def test_an_acknowledgement_opens_the_window_for_a_time() -> None:
    window = SendWindow()
    window.open(FIRST, until=10.0)
    assert window.is_open(SECOND, 9.9)
    assert not window.is_open(SECOND, 10.0)


def test_another_id_or_epoch_goes_alone_again() -> None:
    window = SendWindow()
    window.open(FIRST, until=10.0)
    assert not window.is_open(BatchId(8, 0, 2, 2), 1.0)
    assert not window.is_open(BatchId(7, 1, 0, 2), 1.0)


def test_after_a_failure_the_next_batch_goes_alone() -> None:
    window = SendWindow()
    window.open(FIRST, until=10.0)
    window.note_answer()
    window.close()
    assert not window.is_open(SECOND, 1.0)
    assert not window.answered


def test_another_cluster_has_no_state_of_our_producer() -> None:
    window = SendWindow()
    window.open(FIRST, until=10.0)
    window.forget()
    assert not window.is_open(FIRST, 1.0)


# -- what is in flight


def test_one_old_batch_is_enough() -> None:
    flight = InFlight()
    for old in (False, True, False):
        flight.add(old=old)
    assert (flight.any, flight.old) == (True, True)


# -- the next batch

SENDS, WAITS, HOLDS = SendDecision.SENDS, SendDecision.WAITS, SendDecision.HOLDS
ROWS = [
    # What is in flight, whether the window is open, whether the batch is old, whether a request may arrive late.
    ("nothing", False, False, False, SENDS),
    ("nothing", False, False, True, SENDS),  # at worst, the leader has the batch already, and says so
    ("nothing", True, True, False, SENDS),
    ("nothing", True, True, True, HOLDS),
    ("a batch", False, False, False, WAITS),
    ("a batch", True, False, False, SENDS),
    ("a batch", True, False, True, SENDS),
    ("a batch", True, True, False, WAITS),
    ("a batch", True, True, True, WAITS),
    ("an old batch", True, False, False, WAITS),
    ("an old batch", True, True, True, WAITS),
]


@pytest.mark.parametrize(("before", "is_open", "old", "late", "admission"), ROWS)
def test_a_batch_goes_alone_or_behind_others_in_an_open_window(
    before: str, is_open: bool, old: bool, late: bool, admission: SendDecision
) -> None:
    window, flight = SendWindow(), InFlight()
    if before != "nothing":
        flight.add(old=before == "an old batch")
    if is_open:
        window.open(FIRST, until=10.0)
    assert window.admit(SECOND, flight, 1.0, old=old, late=late) is admission


def test_an_open_window_is_of_no_use_to_a_batch_with_another_id() -> None:
    window, flight = SendWindow(), InFlight()
    window.open(FIRST, until=10.0)
    flight.add(old=False)
    assert window.admit(BatchId(7, 1, 0, 2), flight, 1.0, old=False, late=False) is WAITS
