"""A log shows both ends of an outage, and not each partition in between."""

from __future__ import annotations

import logging
import time

import pytest
from waiting import until

from kafkasafe import SafeConsumer, SafeProducer
from kafkasafe.testing import FakeCluster

pytestmark = pytest.mark.full

PARTITIONS = 20
OUTAGE_S = 25


def said(caplog, event):
    """Its lines until now."""
    ours = [record for record in caplog.records if record.name.startswith("kafkasafe")]
    return [record for record in ours if record.event == event]


def test_an_outage_has_one_line_at_its_end_and_none_for_each_partition(tmp_path, caplog):
    with FakeCluster() as cluster, caplog.at_level(logging.INFO):
        cluster.create_topic("orders", PARTITIONS)
        servers = cluster.bootstrap_servers
        producer = SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path, client_id="shop")
        consumer = SafeConsumer(
            "orders", bootstrap_servers=servers, auto_offset_reset="earliest", client_id="desk"
        )
        with producer, consumer:
            producer.send("orders", b"0").get(30)
            until(lambda: consumer.poll(100))
            cluster.kill(1)
            for number in range(PARTITIONS * 5):
                producer.send("orders", b"1", partition=number % PARTITIONS)
            producer.durable(30)
            began = time.monotonic()
            while time.monotonic() - began < OUTAGE_S:
                consumer.poll(500)
            caplog.clear()
            cluster.start(1)
            producer.flush(60)
            until(lambda: consumer.poll(100))
            # Records may come before the consumer's look-ups have a connection again.
            until(lambda: len(said(caplog, "cluster_reachable")) >= 2)
    (end,) = said(caplog, "delivered_again")
    assert (end.levelname, end.name, end.client_id) == ("WARNING", "kafkasafe.producer", "shop")
    assert OUTAGE_S - 5 <= end.outage_s <= OUTAGE_S + 30
    # Five records of a partition may be one batch or several.
    assert end.records == PARTITIONS * 5
    assert PARTITIONS <= end.batches <= PARTITIONS * 5
    assert "An outage of %.0f s is over" in end.msg
    assert end.args[0] == pytest.approx(end.outage_s, abs=0.06)
    ends = said(caplog, "cluster_reachable")
    assert {record.levelname for record in ends} == {"WARNING"}
    assert all(record.outage_s > OUTAGE_S / 2 for record in ends)
    assert len(ends) == 2, "the producer's, and the consumer's"


def test_while_no_broker_answers_no_partition_has_a_line(tmp_path, caplog):
    with FakeCluster() as cluster, caplog.at_level(logging.INFO):
        cluster.create_topic("orders", PARTITIONS)
        with SafeProducer(bootstrap_servers=cluster.bootstrap_servers, spool_dir=tmp_path) as producer:
            for number in range(PARTITIONS):
                producer.send("orders", b"0", partition=number)
            producer.flush(30)
            cluster.kill(1)
            for number in range(PARTITIONS):
                producer.send("orders", b"1", partition=number)
            until(lambda: not producer.bootstrap_connected())
            retries = producer._pump.stats.pauses.value
            caplog.clear()
            until(lambda: producer._pump.stats.pauses.value > retries + 10 * PARTITIONS, 60)
            retried = said(caplog, "delivery_retried")
            cluster.start(1)
    assert not retried
