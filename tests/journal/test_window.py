"""The window of a partition: when batches may be sent while others are in flight."""

from __future__ import annotations

from kafkasafe.history.identity import BatchId
from kafkasafe.journal.window import InFlight, SendWindow

FIRST = BatchId(7, 0, 0, 2)
SECOND = BatchId(7, 0, 2, 2)


def test_the_first_batch_under_an_id_goes_alone():
    assert not SendWindow().is_open(FIRST, 0.0)


def test_an_acknowledgement_opens_the_window_for_a_time():
    window = SendWindow()
    window.open(FIRST, until=10.0)
    assert window.is_open(SECOND, 9.9)
    assert not window.is_open(SECOND, 10.0)


def test_another_id_or_epoch_goes_alone_again():
    window = SendWindow()
    window.open(FIRST, until=10.0)
    assert not window.is_open(BatchId(8, 0, 2, 2), 1.0)
    assert not window.is_open(BatchId(7, 1, 0, 2), 1.0)


def test_after_a_failure_the_next_batch_goes_alone():
    window = SendWindow()
    window.open(FIRST, until=10.0)
    window.note_answer()
    window.close()
    assert not window.is_open(SECOND, 1.0)
    assert not window.answered


def test_another_cluster_has_no_state_of_our_producer():
    window = SendWindow()
    window.open(FIRST, until=10.0)
    window.forget()
    assert not window.is_open(FIRST, 1.0)


def test_a_batch_goes_alone_or_behind_others_in_an_open_window():
    window, flight = SendWindow(), InFlight()
    assert window.takes(FIRST, flight, 1.0)
    flight.add(old=False)
    assert not window.takes(SECOND, flight, 1.0)
    window.open(FIRST, until=10.0)
    assert window.takes(SECOND, flight, 1.0)


def test_nothing_goes_behind_an_old_batch():
    """When the leader appends it, the leader may drop our producer state."""
    window, flight = SendWindow(), InFlight()
    window.open(FIRST, until=10.0)
    flight.add(old=True)
    flight.add(old=False)
    assert not window.takes(SECOND, flight, 1.0)
