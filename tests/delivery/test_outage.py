"""When an outage began, and that it is over."""

import pytest

from kafkasafe.codes.verdicts import classify_produce
from kafkasafe.delivery.outage import Outage


def running() -> Outage:
    """Of a producer that has delivered something."""
    outage = Outage(0.0)
    outage.connected(0.5)
    assert outage.decided(1.0, 0.9) == 0
    return outage


def test_an_outage_is_told_once_with_its_length():
    outage = running()
    outage.failed(100.0)
    outage.failed(250.0)
    assert outage.decided(400.0, 90.0) == 300
    assert outage.decided(401.0, 90.0) == 0


def test_what_is_over_soon_is_not_told():
    outage = running()
    outage.failed(100.0)
    assert outage.decided(109.9, 99.0) == 0
    outage.failed(200.0)
    assert outage.decided(210.0, 99.0) == 10


@pytest.mark.parametrize(("since", "length"), [(1010.0, 50), (20.0, 60), (0.0, 60), (1059.5, 0)])
def test_a_producer_that_starts_in_an_outage_has_no_failure(since, length):
    """It counts while something waits, and not before the producer lives."""
    outage = Outage(1000.0)
    outage.connected(1060.0)
    assert outage.decided(1060.0, since) == length


@pytest.mark.parametrize("since", [0.0, 1001.0])
def test_a_wait_of_a_first_batch_after_the_cluster_has_answered_is_no_outage(since):
    """For a topic, the disk, a decision, or the batch of another lane."""
    outage = Outage(1000.0)
    outage.connected(1000.5)
    outage.connected(1300.0)
    assert outage.decided(9000.0, since) == 0


def test_a_producer_that_starts_before_its_cluster_is_ready():
    outage = Outage(1000.0)
    outage.connected(1040.0)
    outage.failed(1041.0)  # no producer id yet
    outage.connected(1050.0)
    outage.failed(1099.0)
    assert outage.decided(1100.0, 1000.0) == 100


@pytest.mark.parametrize(
    "code",
    [
        5,  # LEADER_NOT_AVAILABLE
        6,  # NOT_LEADER_OR_FOLLOWER
        7,  # REQUEST_TIMED_OUT
        19,  # NOT_ENOUGH_REPLICAS
        -1,  # UNKNOWN_SERVER_ERROR
        999,  # unknown
    ],
)
def test_a_cluster_that_is_not_ready_is_an_outage(code):
    outage = running()
    assert outage.refused(classify_produce(code), 100.0, 99.0) == 0
    assert outage.decided(400.0, 99.0) == 300


@pytest.mark.parametrize("code", [10, 32, 87])  # MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, INVALID_RECORD
def test_a_rejection_ends_an_outage_and_begins_none(code):
    outage = running()
    outage.failed(100.0)
    assert outage.refused(classify_produce(code), 150.0, 99.0) == 50
    assert outage.refused(classify_produce(code), 150.0, 99.0) == 0
    assert outage.decided(400.0, 99.0) == 0


@pytest.mark.parametrize(
    "code",
    [
        3,  # UNKNOWN_TOPIC_OR_PARTITION
        29,  # TOPIC_AUTHORIZATION_FAILED
        45,  # OUT_OF_ORDER_SEQUENCE_NUMBER
    ],
)
def test_an_answer_that_does_not_decide_ends_an_outage_that_a_later_decision_tells(code):
    outage = running()
    outage.refused(classify_produce(code), 100.0, 99.0)
    assert outage.decided(400.0, 99.0) == 0, "it begins none"
    outage.failed(500.0)
    assert outage.refused(classify_produce(code), 550.0, 499.0) == 0
    assert outage.refused(classify_produce(code), 580.0, 499.0) == 0
    assert outage.decided(3600.0, 499.0) == 50


@pytest.mark.parametrize(("again", "length"), [(555.0, 110), (3600.0, 50)])
def test_failures_with_a_short_pause_between_them_are_one_outage(again, length):
    outage = running()
    outage.failed(500.0)
    outage.answered(550.0)
    outage.failed(again)
    assert outage.decided(max(610.0, again + 10), 499.0) == length


def test_a_time_in_which_nothing_waited_is_no_outage():
    outage = running()
    outage.failed(500.0)  # its records were given up
    assert outage.decided(4000.0, 3999.0) == 0


def test_only_a_partition_that_failed_ends_the_outage():
    outage = running()
    outage.failed(100.0, ("orders", 0))
    assert outage.decided(200.0, 99.0, ("orders", 1)) == 0
    assert outage.begun
    assert outage.decided(300.0, 99.0, ("orders", 0)) == 200
    outage.failed(400.0, ("orders", 0))
    outage.failed(401.0)  # no producer id, so no partition can send
    assert outage.decided(500.0, 399.0, ("orders", 1)) == 100


def test_an_answer_about_another_partition_does_not_end_the_outage():
    outage = running()
    outage.failed(100.0, ("orders", 0))
    outage.answered(110.0, ("other", 0))
    assert outage.decided(700.0, 99.0, ("orders", 0)) == 600


@pytest.mark.parametrize(("since", "length"), [(99.0, 300), (350.0, 50), (2015.0, 0)])
def test_a_lost_answer_after_an_outage_does_not_hide_it(since, length):
    """The topic is refused after the outage, so no batch is decided before the next failure."""
    outage = running()
    outage.failed(100.0)
    outage.answered(400.0)
    outage.failed(2000.0)
    outage.answered(2020.0)
    outage.failed(3000.0)
    assert outage.decided(3001.0, since) == length
