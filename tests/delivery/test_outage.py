"""When an outage began, and that it is over."""

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
