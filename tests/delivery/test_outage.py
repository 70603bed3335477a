"""When an outage began, and that it is over."""

import pytest

from kafkasafe.codes.verdicts import classify_produce
from kafkasafe.delivery.outage import Outage


def test_an_outage_is_told_once_with_its_length():
    outage = Outage(0.0)
    assert outage.acked(1.0, 0.9) == 0
    outage.failed(100.0)
    outage.failed(250.0)
    assert outage.acked(400.0, 90.0) == 300
    assert outage.acked(401.0, 90.0) == 0


def test_what_is_over_soon_is_not_told():
    outage = Outage(0.0)
    outage.failed(100.0)
    assert outage.acked(109.9, 99.0) == 0
    outage.failed(200.0)
    assert outage.acked(210.0, 99.0) == 10


def test_a_producer_that_starts_in_an_outage_has_no_failure():
    assert Outage(1000.0).acked(1060.0, 1010.0) == 50, "since something waited"
    assert Outage(1000.0).acked(1060.0, 20.0) == 60, (
        "a batch of an earlier producer waits longer than this one lives"
    )
    assert Outage(1000.0).acked(9000.0, 8999.5) == 0, "it was idle"


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
    outage = Outage(0.0)
    outage.acked(1.0, 0.9)
    assert outage.refused(classify_produce(code), 100.0) == 0
    assert outage.acked(400.0, 399.0) == 300


@pytest.mark.parametrize("code", [10, 32, 87])  # MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, INVALID_RECORD
def test_a_rejection_ends_an_outage_and_begins_none(code):
    outage = Outage(0.0)
    outage.acked(1.0, 0.9)
    outage.failed(100.0)
    assert outage.refused(classify_produce(code), 150.0) == 50
    assert outage.refused(classify_produce(code), 150.0) == 0
    assert outage.acked(400.0, 399.0) == 0


@pytest.mark.parametrize(
    "code",
    [
        3,  # UNKNOWN_TOPIC_OR_PARTITION
        29,  # TOPIC_AUTHORIZATION_FAILED
        45,  # OUT_OF_ORDER_SEQUENCE_NUMBER
    ],
)
def test_what_says_nothing_about_a_batch_neither_begins_nor_ends_an_outage(code):
    outage = Outage(0.0)
    outage.acked(1.0, 0.9)
    outage.refused(classify_produce(code), 100.0)
    assert outage.acked(400.0, 399.0) == 0
    outage.failed(500.0)
    assert outage.refused(classify_produce(code), 550.0) == 0
    assert outage.acked(600.0, 599.0) == 100


def test_a_producer_that_starts_is_in_no_outage_that_a_found_batch_could_end():
    outage = Outage(0.0)
    assert outage.decided(3600.0) == 0, "a batch of another lane, long after"
    assert outage.acked(3660.0, 3610.0) == 50
