"""What is raised once for each: losses, and batches that wait for a decision."""

from __future__ import annotations

import harness
import pytest
from kafka.admin import NewTopic

from kafkasafe import DataLossError, UndecidableError
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def wire():
    config = {"auto.create.topics.enable": False}
    with FaultProxy() as proxy, KafkaCluster(1, config=config, proxy_ports=proxy.ports) as cluster:
        proxy.connect(cluster)
        yield proxy, cluster


def test_every_loss_is_raised(wire, producers):
    """Of several, one partition each, only the last one was."""
    proxy, cluster = wire
    topic = harness.new_topic(cluster, 3)
    events = []
    producer = producers(
        proxy.bootstrap_servers, on_acked_loss="raise", acked_loss_check_ms=100, on_event=events.append
    )
    for partition in range(3):
        producer.send(topic, b"0", partition=partition).get(60)
    with cluster.admin() as admin:
        admin.delete_topics([topic])
        harness.until(lambda: topic not in admin.list_topics())
        admin.create_topics([NewTopic(topic, 3, 1)])
    harness.until(lambda: sum(type(event).__name__ == "AckedDataLost" for event in events) == 3)
    lost = []
    for _ in range(6):
        try:
            producer.flush(60)
        except DataLossError as error:
            lost.append(error.partition)
    assert sorted(lost) == [0, 1, 2]


def test_a_decision_is_about_what_was_known(wire, producers):
    """It was also about batches that were parked after the error which the caller had seen."""
    proxy, cluster = wire
    topic = harness.new_topic(cluster, 3)
    events = []
    producer = producers(proxy.bootstrap_servers, request_timeout_ms=1000, on_event=events.append)
    for partition in range(3):
        producer.send(topic, b"0", partition=partition).get(60)
    fenced = [proxy.on("Produce", topic=topic, partition=partition) for partition in range(3)]
    for rule in fenced:
        rule.answer_without_forwarding(47)

    def parked():
        return sum(type(event).__name__ == "BatchParked" for event in events)

    early = [producer.send(topic, b"1", partition=partition) for partition in (0, 1)]
    late = producer.send(topic, b"1", partition=2)
    fenced[2].remove()
    stall = proxy.on("Produce", topic=topic, partition=2).drop(mute=False, forward=False)
    harness.until(lambda: parked() == 2)
    with pytest.raises(UndecidableError, match="The same of 1 more"):
        producer.flush(60)
    stall.remove()
    proxy.on("Produce", topic=topic, partition=2).answer_without_forwarding(47)
    harness.until(lambda: parked() == 3)
    proxy.clear()
    producer.resume_parked(resend=True)
    assert [future.get(60).offset for future in early] == [1, 1]
    assert not late.is_done
    with pytest.raises(UndecidableError, match=f"{topic}-2"):
        producer.flush(60)
    producer.resume_parked(resend=False)
    late.get(60)
    assert harness.end_offset(cluster, topic, 2) == 1
