"""What Prometheus sees of a producer."""

from __future__ import annotations

import gc

import harness
import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kafkasafe import SafeProducer
from kafkasafe.errors import RejectedError
from kafkasafe.metrics import install, uninstall

pytestmark = pytest.mark.kafka


def scrape(registry):
    """Every sample by (name, labels without client_id)."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "client_id"}
            found[sample.name, *sorted(labels.values())] = sample.value
    return found


def test_a_scrape_counts_what_happened(kafka, tmp_path):
    topic = harness.new_topic(kafka, 1, config={"max.message.bytes": "2000"})
    registry = CollectorRegistry()
    with SafeProducer(bootstrap_servers=kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        install(producer, registry=registry, partitions=True)
        for number in range(100):
            producer.send(topic, b"%d" % number)
        producer.flush(30)
        with pytest.raises(RejectedError):
            producer.send(topic, b"x" * 5000).get(30)
        seen = scrape(registry)
        assert seen["kafkasafe_records_total", "accepted", topic] == 101
        assert seen["kafkasafe_records_total", "committed", topic] == 100
        assert seen["kafkasafe_records_total", "rejected", topic] == 1
        assert seen["kafkasafe_request_errors_total", "MESSAGE_TOO_LARGE", "produce"] >= 1
        assert seen["kafkasafe_last_acked_offset", "0", topic] == 99
        assert seen["kafkasafe_durable_latency_seconds_count",] == 101
        assert seen["kafkasafe_ack_latency_seconds_bucket", "+Inf"] == 100
        assert seen["kafkasafe_spool_fsync_duration_seconds_sum",] > 0
        assert 0 < seen["kafkasafe_spool_bytes",] < seen["kafkasafe_spool_capacity_bytes",]
        assert (seen["kafkasafe_unfinished_batches",], seen["kafkasafe_in_doubt_batches",]) == (0, 0)
        assert seen["kafkasafe_undecidable_batches_total",] == 0


def test_installing_twice_is_once_and_what_is_gone_leaves(kafka, tmp_path):
    registry = CollectorRegistry()
    one = SafeProducer(
        bootstrap_servers=kafka.bootstrap_servers, spool_dir=tmp_path, client_id="one", metrics=True
    )
    install(one, registry=registry)
    with SafeProducer(bootstrap_servers=kafka.bootstrap_servers, spool_dir=tmp_path, client_id="two") as two:
        install(two, one, registry=registry)
        for where in (registry, REGISTRY):
            text = generate_latest(where).decode()
            assert text.count('kafkasafe_spool_segments{client_id="one"}') == 1
            assert text.count('kafkasafe_spool_segments{client_id="two"}') == (where is registry)
    one.close()
    uninstall(one, registry=registry)
    assert 'client_id="one"' not in generate_latest(registry).decode()
    del one
    gc.collect()
    assert 'client_id="one"' not in generate_latest(REGISTRY).decode()
    uninstall()
    uninstall(registry=registry)
    assert "kafkasafe" not in generate_latest(registry).decode()
