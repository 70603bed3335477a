"""What Prometheus sees of a producer."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import harness
import pytest
from kafka import TopicPartition
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from kafkasafe import SafeConsumer, SafeProducer
from kafkasafe.errors import RejectedError, SpoolFullError
from kafkasafe.metric_definitions import PRODUCER, Definition
from kafkasafe.metrics import Collector, install, serve, uninstall
from kafkasafe.stats import Histogram
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.proxy import FaultProxy

pytestmark = pytest.mark.kafka

NAMES = [
    "records_total",
    "durable_latency_seconds",
    "ack_latency_seconds",
    "last_acked_offset",
    "in_doubt_batches",
    "in_doubt_resolved_total",
    "sequence_errors_total",
    "producer_id_age_seconds",
    "data_loss_detected_total",
    "data_loss_records_total",
    "data_loss_restored_records_total",
    "spool_records",
    "spool_bytes",
    "spool_capacity_bytes",
    "spool_volume_free_bytes",
    "connected",
    "start_time_seconds",
    "spool_oldest_record_age_seconds",
    "spool_segments",
    "rejected_kept_records",
    "rejected_kept_bytes",
    "rejected_capacity_bytes",
    "spool_fsync_duration_seconds",
    "spool_replayed_records_total",
    "spool_corrupt_total",
    "spool_write_errors_total",
    "spool_displaced_total",
    "spool_displaced_lanes",
    "spool_full_total",
    "spool_copied_bytes_total",
    "waiting_for_older_partitions",
    "retries_total",
    "retry_backoff_seconds_total",
    "retries_exhausted_total",
]


def scrape(registry):
    """Every sample by (name, labels without client_id)."""
    return parse(generate_latest(registry).decode())


def parse(text):
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "client_id"}
            key = (sample.name, *sorted(labels.values()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def test_every_documented_name_is_defined():
    defined = {name + ("_total" if d.kind == "counter" else "") for name, d in PRODUCER.items()}
    assert set(NAMES) <= defined
    assert all(text.text.endswith(".") for text in PRODUCER.values())


def test_a_scrape_counts_what_happened(kafka, tmp_path):
    topic = harness.new_topic(kafka, 1, config={"max.message.bytes": "2000"})
    registry = CollectorRegistry()
    with SafeProducer(bootstrap_servers=kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        install(producer, registry=registry, partitions=True)
        for number in range(100):
            producer.send(topic, b"%d" % number)
        producer.flush(60)
        with pytest.raises(RejectedError):
            producer.send(topic, b"x" * 5000).get(60)
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
        assert (seen["kafkasafe_spool_records",], seen["kafkasafe_producer_id_age_seconds",]) == (0, 0)
        assert seen["kafkasafe_producer_id_expiration_seconds",] == 86_400
        assert seen["kafkasafe_undecidable_batches_total",] == 0
        assert any(key[0] == "kafkasafe_build_info" for key in seen)


def test_an_outage_is_seen_and_the_next_life_counts_what_it_found(broker, producers):
    topic = harness.new_topic(broker.cluster, 1, config={"retention.ms": -1})
    registry = CollectorRegistry()
    options = {
        "spool_max_bytes": 16 << 20,
        "max_block_ms": 50,
        "max_request_size": 500_000,
        "request_timeout_ms": 1000,
    }
    producer = producers(broker.servers, delivery_timeout_ms=300, retry_backoff_ms=20, **options)
    install(producer, registry=registry)
    producer.send(topic, b"0").get(60)
    broker.proxy.refuse()
    broker.proxy.cut()
    old = 1_600_000_000_000
    for number in range(1, 11):
        producer.send(topic, b"%d" % number, timestamp_ms=old)
    producer.durable(60)
    harness.until(lambda: ("kafkasafe_retries_exhausted_total", "produce") in scrape(registry), 120)
    harness.until(lambda: ("kafkasafe_retry_backoff_seconds_total", "produce") in scrape(registry), 120)

    def fill():
        for _ in range(200):
            producer.send(topic, b"." * 400_000)

    with pytest.raises(SpoolFullError):
        fill()
    seen = scrape(registry)
    assert seen["kafkasafe_spool_full_total",] >= 1
    assert seen["kafkasafe_spool_records",] >= 10
    # The first one has an id, and by its own timestamp it is years old: no broker remembers such a producer.
    assert seen["kafkasafe_producer_id_age_seconds",] > 86_400
    assert seen["kafkasafe_spool_oldest_record_age_seconds",] < 600
    assert seen["kafkasafe_records_total", topic, "timed_out"] >= 10
    producer.close(timeout=0)
    producer = producers(broker.servers, **options)
    install(producer, registry=registry)
    seen = scrape(registry)
    assert seen["kafkasafe_spool_replayed_records_total",] >= 10
    assert seen["kafkasafe_spool_oldest_record_age_seconds",] > 86_400
    broker.proxy.restore()
    producer.flush(60)
    assert scrape(registry)["kafkasafe_spool_records",] == 0


def test_sequence_errors_are_counted_by_what_was_proven(kafka, producers):
    """45 is answered for a batch that is there and for one that is not, 46 for one that is: each is asked about, once."""
    topic = harness.new_topic(kafka, 1)
    registry = CollectorRegistry()
    with FaultProxy(bootstrap=kafka.bootstrap_servers[0]) as proxy:
        producer = producers(proxy.bootstrap_servers)
        install(producer, registry=registry)
        producer.send(topic, b"0").get(60)
        assert not [key for key in scrape(registry) if key[0] == "kafkasafe_sequence_errors_total"]
        proxy.on("Produce", topic=topic).answer(45, base_offset=-1, times=1)
        assert producer.send(topic, b"1").get(60).offset == 1
        proxy.on("Produce", topic=topic).answer_without_forwarding(45, base_offset=-1, times=1)
        assert producer.send(topic, b"2").get(60).offset == 2
        proxy.on("Produce", topic=topic).answer(46, base_offset=-1, times=1)
        assert producer.send(topic, b"3").get(60).offset == 3
        seen = scrape(registry)
        producer.close()
    of = "kafkasafe_sequence_errors_total"
    assert {key[1:]: value for key, value in seen.items() if key[0] == of} == {
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", "decided"): 2,
        ("DUPLICATE_SEQUENCE_NUMBER", "decided"): 1,
    }
    # Of the three batches the brokers' producer state knew two.
    of = "kafkasafe_in_doubt_resolved_total"
    resolved = {key[1:]: value for key, value in seen.items() if key[0] == of and value}
    assert resolved == {("present", "state"): 2, ("absent", "state"): 1}


def test_an_unknown_producer_is_counted_by_what_it_meant(kafka, producers):
    """59 puts nothing in doubt: what it says of acknowledged records (KAFKA-5793) is its verdict."""
    registry = CollectorRegistry()
    of = "kafkasafe_sequence_errors_total"

    def verdicts():
        found = {key[1:]: value for key, value in scrape(registry).items() if key[0] == of}
        assert {error for error, _ in found} <= {"UNKNOWN_PRODUCER_ID"}
        return {verdict: value for (_, verdict), value in found.items()}

    with FaultProxy(bootstrap=kafka.bootstrap_servers[0]) as proxy:

        def refuse(topic, log_start_offset):
            rule = proxy.on("Produce", topic=topic)
            rule.answer_without_forwarding(59, times=1, log_start_offset=log_start_offset)

        producer = producers(proxy.bootstrap_servers, restore_recreated_topics=True)
        install(producer, registry=registry)
        topic = harness.new_topic(kafka, 1)
        refuse(topic, 0)
        assert producer.send(topic, b"0").get(60).offset == 0, "nothing was acknowledged yet"
        assert verdicts() == {"none": 1}
        refuse(topic, 0)
        assert producer.send(topic, b"1").get(60).offset == 1, "the log has what was acknowledged"
        assert verdicts() == {"none": 2}
        refuse(topic, 100)
        assert producer.send(topic, b"2").get(60).offset == 2, "as if retention had removed it"
        assert verdicts() == {"none": 2, "retention": 1}
        kafka.delete_topic(topic)
        kafka.create_topic(topic, 1)
        refuse(topic, 0)
        producer.send(topic, b"3").get(60)
        assert verdicts() == {"none": 2, "retention": 1, "loss": 1}
        # The batch is in the log, whatever the broker says of it.
        other = harness.new_topic(kafka, 1)
        proxy.on("Produce", topic=other).answer(59, base_offset=-1, times=1)
        assert producer.send(other, b"4").get(60).offset == 0
        assert verdicts() == {"none": 2, "retention": 1, "loss": 1, "decided": 1}
        producer.close()


def test_installing_twice_is_once_and_what_is_gone_leaves(kafka, tmp_path):
    registry = CollectorRegistry()
    one = SafeProducer(
        bootstrap_servers=kafka.bootstrap_servers, spool_dir=tmp_path, client_id="one", prometheus=True
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

    def gone():
        # A thread that is about to end may hold it for a moment.
        gc.collect()
        return 'client_id="one"' not in generate_latest(REGISTRY).decode()

    harness.until(gone, 120)
    uninstall()
    uninstall(registry=registry)
    assert "kafkasafe" not in generate_latest(registry).decode()


class Counting:
    """Something else that is collected."""

    COUNT = Definition("things", "counter", "Things.", ("kind",))
    LEVEL = Definition("level", "gauge", "Level.", merge="max")
    TIME = Definition("time_seconds", "histogram", "Time.")

    def __init__(self, client_id, count, level):
        self.client_id = client_id
        self.count, self.level = count, level
        self.time = Histogram()
        self.time.observe(0.003, count)

    def metric_samples(self):
        yield self.COUNT, ("a",), self.count
        yield self.LEVEL, (), self.level
        yield self.TIME, (), self.time


def test_others_with_the_same_name_are_added_up_and_counters_do_not_go_back_when_one_leaves():
    registry = CollectorRegistry()
    one, two = Counting("c", 5, 1.0), Counting("c", 3, 7.0)
    collector = install(one, two, registry=registry)
    seen = scrape(registry)
    assert (seen["kafkasafe_things_total", "a"], seen["kafkasafe_level",]) == (8, 7)
    assert (seen["kafkasafe_time_seconds_count",], seen["kafkasafe_time_seconds_bucket", "0.0025"]) == (8, 0)
    del two
    gc.collect()
    one.count += 1
    seen = scrape(registry)
    assert (seen["kafkasafe_things_total", "a"], seen["kafkasafe_level",]) == (9, 1)
    assert seen["kafkasafe_time_seconds_count",] == 8
    # Other families of the same things.
    collector.views.append(lambda sources: [GaugeMetricFamily("others", "Others.", value=len(sources))])
    assert scrape(registry)["others",] == 1


def test_over_http():
    registry = CollectorRegistry()
    source = Counting("c", 5, 1.0)
    with (
        serve(source, registry=registry) as server,
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as answer,
    ):
        seen = parse(answer.read().decode())
    assert seen["kafkasafe_things_total", "a"] == 5
    server.close()
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30)


WORKERS = """
import json, os, sys
from kafkasafe import SafeConsumer, SafeProducer
from kafkasafe.metrics import flush, serve
servers, topic, spool = json.loads(sys.argv[1])

def work(count):
    with SafeProducer(bootstrap_servers=servers, spool_dir=spool, prometheus=True, client_id="w") as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)
        producer.flush(60)
        flush()

work(3)
child = os.fork()
if not child:
    # What the parent counted is the parent's.
    work(4)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
if sys.argv[2] == "show":
    import urllib.request
    with serve() as server, urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        print(answer.read().decode())
"""


def test_processes_that_are_scraped_as_one(kafka, tmp_path):
    """Two processes, each with a forked child, as workers of a web server: whoever is asked shows all of them."""
    topic = harness.new_topic(kafka, 1)
    (tmp_path / "multi").mkdir()
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "multi")}
    arguments = json.dumps([kafka.bootstrap_servers, topic, str(tmp_path / "spool")])

    def worker(what):
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", WORKERS, arguments, what]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    done = worker("silent")
    assert done.returncode == 0, done.stderr
    done = worker("show")
    assert done.returncode == 0, done.stderr
    seen = parse(done.stdout)
    assert seen["kafkasafe_records_total", "committed", topic] == 14
    assert seen["kafkasafe_ack_latency_seconds_count",] == 14
    assert seen["kafkasafe_ack_latency_seconds_bucket", "+Inf"] == 14
    # They are closed: no level is left standing.
    assert (seen["kafkasafe_spool_segments",], seen["kafkasafe_spool_capacity_bytes",]) == (0, 0)
    # And nothing that would be an outage, or a full volume.
    assert (seen["kafkasafe_connected",], seen["kafkasafe_spool_volume_free_bytes",]) == (1, float("inf"))
    assert any(key[0] == "kafkasafe_build_info" for key in seen)
    assert list(Path(tmp_path / "multi").glob("counter_*.db"))


def test_sources_that_are_gone_leave_where_nobody_scrapes():
    """A program that opens a producer for each of its jobs kept something of every one of them."""

    class Source:
        client_id = "job"

        def metric_samples(self):
            return []

    collector = Collector()
    for _ in range(50):
        collector.add(Source())
    assert len(collector._sources) <= 1


def jobs_with_a_producer(fake, path, end):
    """Two jobs, each with a producer of its own, between two scrapes."""
    for _ in range(2):
        producer = SafeProducer(bootstrap_servers=fake.bootstrap_servers, spool_dir=path)
        yield producer
        for _ in range(10):
            producer.send("t", b"x")
        producer.flush(60)
        end(producer)


def jobs_with_a_consumer(fake, path, end):
    """Two jobs whose consumers begin behind the end of the log."""
    for _ in range(2):
        consumer = SafeConsumer(bootstrap_servers=fake.bootstrap_servers, client_id="kafkasafe")
        yield consumer
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek(TopicPartition("t", 0), 10)
        while not consumer.metrics()["kafkasafe-consumer"]:
            consumer.poll(100)
        end(consumer)


@pytest.mark.parametrize(
    ("jobs", "end", "name", "labels", "count"),
    [
        (jobs_with_a_producer, SafeProducer.close, "records", {"outcome": "committed"}, 20),
        (jobs_with_a_producer, lambda _: None, "records", {"outcome": "committed"}, 20),
        (jobs_with_a_consumer, SafeConsumer.close, "offset_resets", {"reason": "beyond_end"}, 2),
    ],
    ids=["producer-closed", "producer-dropped", "consumer-closed"],
)
@pytest.mark.filterwarnings("ignore:SafeProducer kafkasafe was dropped")
def test_what_a_client_counted_after_the_last_scrape_is_not_forgotten(
    tmp_path, jobs, end, name, labels, count
):
    """A program that opens a client for each of its jobs; nobody scrapes while one of them is open."""
    registry = CollectorRegistry()
    with FakeCluster(brokers=1) as fake:
        fake.create_topic("t")
        for source in jobs(fake, tmp_path, end):
            install(source, registry=registry)
        del source
        gc.collect()
        with SafeProducer(bootstrap_servers=fake.bootstrap_servers, spool_dir=tmp_path) as another:
            install(another, registry=registry)
            found = registry.get_sample_value(
                f"kafkasafe_{name}_total", {"client_id": "kafkasafe", "topic": "t", **labels}
            )
    assert found == count
