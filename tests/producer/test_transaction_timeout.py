"""A transaction of the user's own name that times out at the broker while its end does not get there."""

from __future__ import annotations

import threading

import harness
import kafka.errors as kafka_errors
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from waiting import until

from kafkasafe import SafeProducer
from kafkasafe.testing import FakeCluster, KafkaCluster
from kafkasafe.testing.proxy import FaultProxy

ABORTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
VALUES = [b"%d" % number for number in range(20)]
TOPIC = "orders"


@pytest.fixture(
    params=[
        pytest.param((kind, version), id=f"{name}-{version}", marks=marks)
        for kind, name, marks in ((FakeCluster, "fake", ()), (KafkaCluster, "kafka", pytest.mark.kafka))
        for version in ("4.3.0", "2.8.2")
    ]
)
def cluster_and_proxy(request):
    kind, version = request.param
    if kind is FakeCluster:
        with (
            FakeCluster(brokers=1, version=version) as cluster,
            FaultProxy(bootstrap=cluster.bootstrap_servers[0]) as proxy,
        ):
            cluster.create_topic(TOPIC, 1)
            yield cluster, proxy
        return
    with (
        FaultProxy() as proxy,
        KafkaCluster(brokers=1, version=version, config=ABORTS, proxy_ports=proxy.ports) as cluster,
    ):
        proxy.connect(cluster)
        cluster.create_topic(TOPIC, 1)
        yield cluster, proxy


def read(cluster, isolation):
    return harness.read_values(cluster.bootstrap_servers, TOPIC, isolation_level=isolation)[0]


def committing(producer) -> tuple[threading.Thread, list[BaseException]]:
    """The thread that commits, and what that raises."""
    failed: list[BaseException] = []

    def commit() -> None:
        try:
            producer.commit_transaction()
        except BaseException as error:  # for the thread that waits
            failed.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    return thread, failed


def test_it_is_prepared_again_and_seen_once(cluster_and_proxy, tmp_path):
    cluster, proxy = cluster_and_proxy
    ends = proxy.on("EndTxn").drop(forward=False)
    with SafeProducer(
        bootstrap_servers=proxy.bootstrap_servers,
        spool_dir=tmp_path / "spool",
        transactional_id="payments",
        transaction_timeout_ms=1000,
        request_timeout_ms=2000,
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        futures = [producer.send(TOPIC, value) for value in VALUES]

        thread, failed = committing(producer)
        ends.wait(timeout_s=60)
        # The coordinator aborts it: what readers have to step over is in the log, and nothing is seen.
        until(lambda: read(cluster, "read_uncommitted") and end_of(cluster) > len(VALUES))
        assert read(cluster, "read_committed") == []
        ends.remove()
        thread.join(120)
        assert not thread.is_alive()
        assert not failed, failed
        assert [future.get(60).offset for future in futures] == sorted(
            future.get().offset for future in futures
        )
        producer.begin_transaction()
        producer.send(TOPIC, b"next")
        producer.commit_transaction()
    harness.until_decided(cluster.bootstrap_servers, TOPIC)
    assert read(cluster, "read_committed") == [*VALUES, b"next"]


def end_of(cluster) -> int:
    place = TopicPartition(TOPIC, 0)
    with KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, group_id=None, kafka_client=harness.tidy_client
    ) as reader:
        return reader.end_offsets([place])[place]


def test_after_a_takeover_it_is_not(cluster_and_proxy, tmp_path):
    """Another producer of the name came meanwhile: its transactions are not aborted for ours."""
    cluster, proxy = cluster_and_proxy
    ends = proxy.on("EndTxn").drop(forward=False)
    producer = SafeProducer(
        bootstrap_servers=proxy.bootstrap_servers,
        spool_dir=tmp_path / "spool",
        transactional_id="payments",
        request_timeout_ms=2000,
    )
    producer.init_transactions()
    producer.begin_transaction()
    for value in VALUES:
        producer.send(TOPIC, value)

    thread, failed = committing(producer)
    ends.wait(timeout_s=60)
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="payments") as other:
        other.init_transactions()
        other.begin_transaction()
        other.send(TOPIC, b"others").get(60)
        ends.remove()
        thread.join(120)
        assert not thread.is_alive()
        assert failed, (read(cluster, "read_committed"), read(cluster, "read_uncommitted"))
        assert isinstance(failed[0], kafka_errors.ProducerFencedError), failed
        other.commit_transaction()
    producer.close(timeout=10)
    harness.until_decided(cluster.bootstrap_servers, TOPIC)
    assert read(cluster, "read_committed") == [b"others"]
