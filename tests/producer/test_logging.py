"""What a producer logs in an outage: enough to know, not so much that it fills a disk, and no secret."""

from __future__ import annotations

import json
import logging
import threading
import time

import harness
import pytest

from kafkasafe import SafeProducer

pytestmark = pytest.mark.kafka


def of(caplog, prefix):
    return [record for record in caplog.records if record.name.startswith(prefix)]


def test_an_outage_is_told_but_not_again_and_again(broker, producers, caplog):
    """Many partitions, each tried again and again for seconds; kafka-python's own errors of it are limited as well."""
    partitions = 40
    topic = harness.new_topic(broker.cluster, partitions)
    began = time.monotonic()
    # While no broker can be used, what becomes of single partitions is DEBUG.
    with caplog.at_level(logging.INFO), caplog.at_level(logging.DEBUG, "kafkasafe.producer"):
        producer = producers(broker.servers, client_id="shop", retry_backoff_ms=20)
        for partition in range(partitions):
            producer.send(topic, b"0", partition=partition)
        producer.flush(60)
        broker.proxy.refuse()
        broker.proxy.cut()
        for partition in range(partitions):
            producer.send(topic, b"1", partition=partition)
        stats = producer._pump.stats
        harness.until(lambda: stats.pauses.value > 400, 120)
        seconds = time.monotonic() - began
    windows = seconds // 10 + 1
    ours, theirs = of(caplog, "kafkasafe"), of(caplog, "kafka.net")
    retried = [record for record in ours if record.event == "delivery_retried"]
    assert retried
    assert len(retried) <= 10 * windows
    assert len(ours) <= 40 * windows
    assert len(theirs) <= 40 * windows
    for record in retried:
        assert (record.name, record.client_id, record.topic) == ("kafkasafe.producer", "shop", topic)
        assert 0 <= record.partition < partitions
        assert record.attempt >= 1
        assert record.pause_s >= 0  # at once where another broker leads
    assert any(record.event == "cluster_unreachable" for record in ours)
    broker.proxy.restore()
    producer.flush(60)


def test_no_secret_is_logged_and_every_record_is_json(kafka, tmp_path, caplog):
    """Credentials that the broker does not ask for, at all levels, with an error on the way."""
    secret = "hunter2-of-the-test"
    topic = harness.new_topic(kafka, 1, config={"max.message.bytes": "2000"})
    with (
        caplog.at_level(logging.DEBUG, "kafkasafe"),
        SafeProducer(
            bootstrap_servers=kafka.bootstrap_servers,
            spool_dir=tmp_path,
            sasl_plain_username="me",
            sasl_plain_password=secret,
            ssl_password=secret,
        ) as producer,
    ):
        producer.send(topic, b"private-value" * 500, b"private-key")
        producer.flush(60)
    records = of(caplog, "kafkasafe")
    assert {"records_rejected", "spool_volatile"} <= {record.event for record in records}
    for record in records:
        plain = {key: value for key, value in vars(record).items() if key not in {"args", "exc_info"}}
        text = json.dumps({**plain, "message": record.getMessage()})
        assert secret not in text
        assert "private-" not in text


@pytest.mark.parametrize("ends", ["pauses", "refuses"])
def test_a_handler_that_flushes_ends_with_the_outage(broker, producers, ends):
    """It holds its lock until everything is delivered: whatever delivers must not wait for that."""
    topic = harness.new_topic(broker.cluster, 1)
    producer = producers(broker.servers, request_timeout_ms=1000, retry_backoff_ms=20)
    producer.send(topic, b"first").get(60)

    class Shipping(logging.Handler):
        def emit(self, record):
            if record.name == "app":
                producer.send(topic, record.getMessage().encode()).add_errback(failed.append)
                producer.flush()

    failed: list = []
    handler = Shipping()
    root = logging.getLogger()
    root.addHandler(handler)
    if ends == "pauses":
        broker.cluster.pause(1)
    else:
        broker.proxy.refuse()
        broker.proxy.cut()
    try:
        logged: list = []

        def log():
            for number in range(3):
                logging.getLogger("app").error("line %d", number)
                logged.append(number)

        # Where it hangs, the test ends all the same.
        thread = threading.Thread(target=log, daemon=True)
        thread.start()
        time.sleep(4)
        assert not logged
    finally:
        broker.cluster.resume(1)
        broker.proxy.restore()
        thread.join(60)
        root.removeHandler(handler)
    assert logged == [0, 1, 2]
    producer.close()
    assert not failed
    log_of = harness.read_log(broker.servers, topic)[0]
    assert [record.value for record in log_of] == [b"first", *(b"line %d" % number for number in range(3))]
