"""What Prometheus sees of a consumer; and that what is undecided on one partition stops no other."""

from __future__ import annotations

import time

import consuming
import pytest
from consuming import Consumers, collect, kafka_errors, new_topic, until
from kafka import TopicPartition
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kafkasafe import SafeProducer
from kafkasafe.events import PositionReset
from kafkasafe.metrics import install, uninstall

pytestmark = pytest.mark.kafka


def scrape(registry):
    """Every sample by (name, labels without client_id)."""
    found, names = {}, []
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        names.append(family.name)
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "client_id"}
            found[sample.name, *sorted(labels.values())] = sample.value
    assert len(names) == len(set(names))
    return found


@pytest.fixture
def consumers(kafka):
    with Consumers(kafka) as opened:
        yield opened


def test_an_undecided_partition_does_not_stop_the_others(kafka, consumers):
    topic = new_topic(kafka, 2)
    flowing, stuck = TopicPartition(topic, 0), TopicPartition(topic, 1)
    for tp in (flowing, stuck):
        consuming.produce(kafka, topic, [b"x"] * 10, tp.partition)
    with kafka.admin() as admin:
        admin.delete_records({stuck: 5})
    registry = CollectorRegistry()
    consumer = consumers.assigned(topic, 0, 1, auto_offset_reset="none", max_poll_records=2)
    install(consumer, registry=registry, partitions=True)
    consumer.seek(flowing, 0)
    consumer.seek(stuck, 2)
    told, offsets = [], []
    deadline = time.monotonic() + 60
    while len(offsets) < 10 or len(told) < 3:
        assert time.monotonic() < deadline, (told, offsets)
        try:
            offsets += [record.offset for records in consumer.poll(60_000).values() for record in records]
        except kafka_errors.OffsetOutOfRangeError as error:
            told.append((len(offsets), error))
    assert offsets == list(range(10))
    assert [at for at, _ in told][1:] == [10] * (len(told) - 1)  # at once, then when there is nothing else
    assert consumer.position(flowing) == 10
    with pytest.raises(kafka_errors.OffsetOutOfRangeError):
        consumer.position(stuck)
    seen = scrape(registry)
    assert seen["kafkasafe_stopped_partitions", topic] == 1
    assert (seen["kafkasafe_position", "0", topic], seen["kafkasafe_end_offset", "0", topic]) == (10, 10)
    consumer.pause(flowing)
    began = time.monotonic()
    with pytest.raises(kafka_errors.OffsetOutOfRangeError):
        consumer.poll(60_000)  # no other partition could have a record: said at once
    assert time.monotonic() - began < 50
    consumer.seek(stuck, 6)
    assert [record.offset for record in collect(consumer, 4)] == [6, 7, 8, 9]
    assert scrape(registry)["kafkasafe_stopped_partitions", topic] == 0


def test_a_scrape_counts_what_happened(kafka, consumers, tmp_path):
    topic = new_topic(kafka)
    tp = TopicPartition(topic, 0)
    consuming.produce(kafka, topic, [b"x"] * 20)
    with kafka.admin() as admin:
        admin.delete_records({tp: 12})
    registry = CollectorRegistry()
    consumer = consumers.assigned(topic, auto_offset_reset="earliest", client_id="c", max_poll_records=3)
    with SafeProducer(bootstrap_servers=kafka.bootstrap_servers, spool_dir=tmp_path, client_id="p") as both:
        install(both, consumer, registry=registry)
        consumer.seek(tp, 5)
        until(lambda: consumer.poll(500))
        with pytest.raises(kafka_errors.KafkaTimeoutError):
            consumer.end_offsets([TopicPartition(topic, 9)], timeout_ms=2000)
        assert consumers.of(PositionReset)[0].skipped == (5, 11)
        seen = scrape(registry)
    assert seen["kafkasafe_offset_resets_total", topic, "retention"] == 1
    assert seen["kafkasafe_skipped_records_total", topic] == 7
    assert seen["kafkasafe_lag_records", "", topic] == 5
    assert seen["kafkasafe_not_ready_partitions", topic] == 0
    assert seen["kafkasafe_retries_exhausted_total", "list_offsets"] == 1
    assert sum(count for key, count in seen.items() if key[0] == "kafkasafe_retries_total") >= 1
    assert seen["kafkasafe_retry_backoff_seconds_total", "list_offsets"] > 0
    assert ("kafkasafe_end_offset", "0", topic) not in seen
    uninstall(consumer, registry=registry)
    assert ("kafkasafe_lag_records", "", topic) not in scrape(registry)
    consumers(client_id="by option", prometheus=True)
    assert 'client_id="by option"' not in generate_latest(registry).decode()
    assert any(consumer.client_id == "by option" for consumer in install(registry=REGISTRY).sources)
    with pytest.raises(TypeError, match="have metrics, not 'me'"):
        install("me", registry=registry)
