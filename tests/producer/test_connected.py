"""What a scrape shows of brokers that are away, of the spool's volume, and of a consumer that is not polled."""

from __future__ import annotations

import shutil
import time

from kafka import TopicPartition
from prometheus_client import CollectorRegistry
from waiting import until

from kafkasafe import SafeConsumer, SafeProducer
from kafkasafe.metric_definitions import CONSUMER, PRODUCER, Definition
from kafkasafe.metrics import install
from kafkasafe.testing import FakeCluster


def gauge(registry, name, client):
    return registry.get_sample_value(f"kafkasafe_{name}", {"client_id": client})


def test_an_outage_is_shown_by_producers_and_consumers_until_it_is_over(tmp_path):
    registry = CollectorRegistry()
    with FakeCluster() as cluster:
        cluster.create_topic("t")
        servers = cluster.bootstrap_servers
        with (
            SafeProducer(bootstrap_servers=servers, client_id="p", spool_dir=tmp_path) as producer,
            SafeConsumer(bootstrap_servers=servers, client_id="c") as consumer,
        ):
            install(producer, consumer, registry=registry)
            consumer.assign([TopicPartition("t", 0)])

            def connected(producer_is, consumer_is):
                """Both try again while they are looked at."""
                consumer.poll(50)
                seen = [gauge(registry, "connected", client) for client in ("p", "c")]
                return seen == [producer_is, consumer_is]

            producer.send("t", b"1").get(30)
            until(lambda: connected(1, 1))
            cluster.kill(1)
            producer.send("t", b"2")
            until(lambda: connected(0, 0))
            cluster.start(1)
            until(lambda: connected(1, 1))
        # What is closed is no outage, and nobody waits for its next poll.
        assert [gauge(registry, "connected", client) for client in ("p", "c")] == [None, None]
        assert gauge(registry, "last_poll_age_seconds", "c") is None


def test_a_consumer_shows_how_long_it_was_not_polled():
    registry = CollectorRegistry()
    with (
        FakeCluster() as cluster,
        SafeConsumer(bootstrap_servers=cluster.bootstrap_servers, client_id="c") as consumer,
    ):
        cluster.create_topic("t")
        install(consumer, registry=registry)
        consumer.assign([TopicPartition("t", 0)])
        assert gauge(registry, "last_poll_age_seconds", "c") is None
        consumer.poll(10)
        until(lambda: gauge(registry, "last_poll_age_seconds", "c") > 0.3)
        consumer.poll(10)
        age = gauge(registry, "last_poll_age_seconds", "c")
        assert 0 <= age == min(age, consumer.health().last_poll_age_s)


def test_free_room_on_the_volume_is_shown_where_there_are_files(tmp_path):
    registry = CollectorRegistry()
    with FakeCluster() as cluster:
        cluster.create_topic("t")
        servers = cluster.bootstrap_servers
        with (
            SafeProducer(bootstrap_servers=servers, client_id="p", spool_dir=tmp_path) as producer,
            SafeProducer(bootstrap_servers=servers, client_id="memory", spool="never") as other,
        ):
            install(producer, other, registry=registry)
            # Others write to the volume meanwhile, and it is measured again every second.
            until(
                lambda: (
                    abs(gauge(registry, "spool_volume_free_bytes", "p") - shutil.disk_usage(tmp_path).free)
                    < 1 << 28
                )
            )
            assert gauge(registry, "spool_volume_free_bytes", "memory") is None


def test_a_restart_of_a_producer_or_consumer_is_shown(tmp_path):
    registry = CollectorRegistry()

    def started(cluster):
        began = time.time()
        servers = cluster.bootstrap_servers
        with (
            SafeProducer(bootstrap_servers=servers, client_id="p", spool_dir=tmp_path) as producer,
            SafeConsumer(bootstrap_servers=servers, client_id="c") as consumer,
        ):
            install(producer, consumer, registry=registry)
            seen = [gauge(registry, "start_time_seconds", client) for client in ("p", "c")]
            # It says when they were started, and not when it was asked.
            assert seen == [gauge(registry, "start_time_seconds", client) for client in ("p", "c")]
        assert all(began <= at <= time.time() for at in seen)
        # A client that is closed did not start at any time.
        assert [gauge(registry, "start_time_seconds", client) for client in ("p", "c")] == [None, None]
        return seen

    with FakeCluster() as cluster:
        first = started(cluster)
        assert all(again > before for before, again in zip(first, started(cluster), strict=True))


class Level:
    """Something that is collected."""

    def __init__(self, definition: Definition, value: float) -> None:
        self.client_id = "c"
        self._reading = definition, (), value

    def metric_samples(self):
        yield self._reading


def test_of_several_with_one_name_the_worst_is_shown():
    registry = CollectorRegistry()
    shown = [
        Level(PRODUCER["connected"], 1),
        Level(CONSUMER["connected"], 0),
        Level(PRODUCER["spool_volume_free_bytes"], 5.0),
        Level(PRODUCER["spool_volume_free_bytes"], 3.0),
        Level(CONSUMER["last_poll_age_seconds"], 9.0),
        Level(CONSUMER["last_poll_age_seconds"], 2.0),
    ]
    install(*shown, registry=registry)
    names = ("connected", "spool_volume_free_bytes", "last_poll_age_seconds")
    assert [gauge(registry, name, "c") for name in names] == [0, 3, 9]
