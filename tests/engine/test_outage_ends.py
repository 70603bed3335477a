"""Which answers of the cluster count as an outage, and what ends one. In virtual time."""

from __future__ import annotations

import errno
import logging

import pytest
from virtual import World

TOO_LARGE = bytes(5000)
HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def _logged(caplog):
    caplog.set_level(logging.INFO)


def outages(caplog) -> list[float]:
    """The lengths that were logged."""
    return [each.outage_s for each in caplog.records if getattr(each, "event", "") == "delivered_again"]


def delivered(world: World, life, value: bytes, partition: int = 0) -> None:
    parcel = life.send("orders", partition, [value])
    assert world.run(120, until=lambda: parcel.done)
    assert parcel.error is None


def rejected(world: World, life) -> None:
    """Two batches that the leader rejects. They are sent at once, so the second one also waits for the first."""
    two = [life.send("orders", 0, [TOO_LARGE]) for _ in range(2)]
    assert world.run(60, until=lambda: all(each.done for each in two))
    assert all(each.error is not None for each in two)


def opened(**options):
    world = World(brokers=1)
    world.cluster.create_topic("orders", 2, config={"max.message.bytes": 1000})
    life = world.start(**options)
    delivered(world, life, b"first")
    return world, life


def test_a_rejection_begins_no_outage(caplog):
    world, life = opened()
    rejected(world, life)
    world.run(HOUR_S)
    delivered(world, life, b"later", partition=1)
    assert outages(caplog) == []


def test_a_rejection_ends_an_outage(caplog):
    world, life = opened()
    world.set_outage(True)
    batch = life.send("orders", 0, [TOO_LARGE])
    world.run(60)
    world.set_outage(False)
    assert world.run(60, until=lambda: batch.done)
    (length,) = outages(caplog)
    assert 50 <= length <= 120
    world.run(HOUR_S)
    delivered(world, life, b"later", partition=1)
    assert len(outages(caplog)) == 1


def test_a_forbidden_topic_is_no_outage(caplog):
    world, life = opened(blocked_timeout_ms=20_000)
    world.cluster.deny("write", topic="orders")
    batch = life.send("orders", 0, [b"forbidden"])
    assert world.run(300, until=lambda: batch.done)
    assert batch.error is not None
    world.run(HOUR_S)
    world.cluster.deny("write", topic="orders", on=False)
    delivered(world, life, b"later", partition=1)
    assert outages(caplog) == []


@pytest.mark.parametrize("appended", [True, False])
def test_a_lost_answer_is_no_long_outage(caplog, appended):
    world, life = opened()
    cut = world.cluster.drop_responses if appended else world.cluster.drop_requests
    cut()
    batch = life.send("orders", 0, [b"a"])
    world.run(1)
    world.cluster.cut()
    cut(False)
    assert world.run(60, until=lambda: batch.done)
    world.run(HOUR_S)
    delivered(world, life, b"later", partition=1)
    assert outages(caplog) == []


def test_records_of_an_earlier_run_time_out_no_sooner_than_new_ones():
    """They counted as timed out 50 ms after the start, and `flush` and `close` did not wait for them."""
    world = World()
    world.centre.create_topic("orders", 1)
    world.set_outage(True)
    life = world.start()
    parcel = life.send("orders", 0, [b"1", b"2"])
    assert world.run(10, until=lambda: parcel.durable)
    world.run(600)  # the machine has run for longer than the limit
    world.kill(life)
    life = world.start(delivery_timeout_ms=60_000)
    world.run(50)
    records = life.context.stats.records
    assert (len(life.engine.ledger.parcels), records["orders", "timed_out"]) == (1, 0)
    assert not life.engine.ledger.idle()
    world.run(20)
    assert (len(life.engine.ledger.parcels), records["orders", "timed_out"]) == (0, 2)
    world.set_outage(False)
    assert world.run(30, until=lambda: world.log("orders", 0) == [b"1", b"2"])


@pytest.mark.parametrize("denied", [False, True])
def test_a_first_record_whose_topic_is_refused_is_no_outage(caplog, denied):
    world = World(brokers=1, auto_create_topics_enable=False)
    if denied:
        world.cluster.create_topic("orders", 2)
        world.cluster.deny("write", topic="orders")
    life = world.start()
    parcel = life.send("orders", 0, [b"first"])
    assert not world.run(300, until=lambda: parcel.done)
    if denied:
        world.cluster.deny("write", topic="orders", on=False)
    else:
        world.cluster.create_topic("orders", 2)
    assert world.run(120, until=lambda: parcel.done)
    assert parcel.error is None
    assert outages(caplog) == []


def test_a_first_record_whose_disk_fails_is_no_outage(caplog):
    world = World(brokers=1)
    world.cluster.create_topic("orders", 2)
    life = world.start()
    world.run(5)
    world.disk.fail("writev", times=None, error=errno.ENOSPC)
    parcel = life.send("orders", 0, [b"first"])
    assert not world.run(300, until=lambda: parcel.done)
    world.disk.heal()
    assert world.run(120, until=lambda: parcel.done)
    assert parcel.error is None
    assert outages(caplog) == []


def test_a_producer_that_starts_in_an_outage_logs_its_end(caplog):
    world = World(brokers=1)
    world.cluster.create_topic("orders", 2)
    world.set_outage(True)
    life = world.start()
    parcel = life.send("orders", 0, [b"first"])
    world.run(60)
    world.set_outage(False)
    assert world.run(60, until=lambda: parcel.done)
    (length,) = outages(caplog)
    assert 55 <= length <= 100


def test_a_batch_in_doubt_that_waits_for_a_topic_is_no_outage_of_that_length(caplog):
    """A request has no answer, and the topic is then refused for five minutes."""
    world, life = opened()
    world.set_outage(True)
    parcel = life.send("orders", 0, [b"later"])
    world.run(3)
    world.cluster.deny("write", topic="orders")
    world.set_outage(False)
    world.run(300)
    world.cluster.deny("write", topic="orders", on=False)
    assert world.run(120, until=lambda: parcel.done)
    assert parcel.error is None
    assert outages(caplog) == []


@pytest.mark.parametrize("until_s", [30, 600])
def test_records_that_time_out_in_an_outage_do_not_shorten_it(caplog, until_s):
    """Their futures fail, but they wait for the cluster as before. The program sends for 30 s, or all the time."""
    world, life = opened(delivery_timeout_ms=60_000)
    world.set_outage(True)
    sent = 0
    for second in range(0, 600, 5):
        if second < until_s:
            life.send("orders", 0, [b"later"])
            sent += 1
        world.run(5)
    world.set_outage(False)
    assert world.run(60, until=lambda: len(world.log("orders", 0)) == 1 + sent)
    (length,) = outages(caplog)
    assert 595 <= length <= 660
    (told,) = [each for each in caplog.records if getattr(each, "event", "") == "delivered_again"]
    assert (told.records, told.batches) == (sent, sent)


def test_a_timed_out_record_that_is_delivered_does_not_lengthen_a_later_outage(caplog):
    world, life = opened(delivery_timeout_ms=60_000)
    world.set_outage(True)
    life.send("orders", 0, [b"later"])
    world.run(100)
    world.set_outage(False)
    assert world.run(60, until=lambda: len(world.log("orders", 0)) == 2)
    world.run(HOUR_S)
    world.set_outage(True)
    world.run(600)  # nothing waits
    parcel = life.send("orders", 0, [b"later"])
    world.run(20)
    world.set_outage(False)
    assert world.run(60, until=lambda: parcel.done)
    first, second = outages(caplog)
    assert 95 <= first <= 130
    assert 15 <= second <= 40


def test_a_lost_answer_after_a_topic_was_refused_does_not_hide_the_outage(caplog):
    world, life = opened()
    world.set_outage(True)
    parcel = life.send("orders", 0, [b"later"])
    world.run(300)
    world.cluster.deny("write", topic="orders")
    world.set_outage(False)
    world.run(300)
    world.set_outage(True)
    world.run(5)
    world.cluster.deny("write", topic="orders", on=False)
    world.set_outage(False)
    assert world.run(120, until=lambda: parcel.done)
    (length,) = outages(caplog)
    assert 295 <= length <= 330


def test_one_record_is_not_called_one_records(caplog):
    world, life = opened()
    world.set_outage(True)
    parcel = life.send("orders", 0, [b"1"])
    world.run(60)
    world.kill(life)
    life = world.start()
    world.run(60)
    world.set_outage(False)
    assert world.run(60, until=lambda: world.log("orders", 0) == [b"first", b"1"])
    assert not parcel.done, "it was its earlier life's"
    world.run(5)
    said = caplog.text
    assert "1 record (1 batch) of an earlier incarnation will be delivered" in said
    assert "1 record in 1 batch is pending and being delivered" in said


def test_partitions_of_brokers_that_work_end_no_outage_of_another_broker(caplog):
    """Each of their batches logged an end of the outage."""
    world = World(brokers=2)
    world.cluster.create_topic("orders", 2, replication_factor=1)
    life = world.start()
    for partition in range(2):
        delivered(world, life, b"first", partition)
    down = world.cluster.leader("orders", 0)
    world.cluster.kill(down)
    parcel = life.send("orders", 0, [b"later"])
    for _ in range(10):
        world.run(60)
        delivered(world, life, b"later", partition=1)
    assert outages(caplog) == []
    world.cluster.start(down)
    assert world.run(120, until=lambda: parcel.done)
    (length,) = outages(caplog)
    assert 595 <= length <= 660
    assert "orders-0 was the first partition to answer" in caplog.text


def test_a_refused_topic_of_another_broker_does_not_shorten_an_outage(caplog):
    """The refusals seemed to end the outage of the broker that hung."""
    world = World(brokers=2)
    world.cluster.create_topic("orders", 1, replication_factor=1)
    world.cluster.create_topic("other", 2, replication_factor=1)
    life = world.start()
    delivered(world, life, b"first")
    down = world.cluster.leader("orders", 0)
    (works,) = (partition for partition in range(2) if world.cluster.leader("other", partition) != down)
    world.cluster.deny("write", topic="other")
    life.send("other", works, [b"refused"])
    world.run(60)
    world.cluster.stall(True, node=down)
    parcel = life.send("orders", 0, [b"later"])
    world.run(600)
    world.cluster.stall(False, node=down)
    assert world.run(120, until=lambda: parcel.done)
    (length,) = outages(caplog)
    assert 560 <= length <= 660


def test_records_that_timed_out_before_their_partition_was_known_are_counted(caplog):
    """It logged "0 records in 0 batches": the time-out is one of the batch that was divided among the partitions."""
    world = World(brokers=1)
    world.cluster.create_topic("orders", 2)
    world.set_outage(True)
    life = world.start(delivery_timeout_ms=20_000)
    parcels = [life.send("orders", -1, [b"a", b"b"]) for _ in range(3)]
    world.run(100)
    assert all(parcel.done for parcel in parcels)
    world.set_outage(False)
    assert world.run(
        60, until=lambda: sum(len(world.log("orders", partition)) for partition in range(2)) == 6
    )
    (told,) = [each for each in caplog.records if getattr(each, "event", "") == "delivered_again"]
    assert told.records == 6
