"""Records that wait for one cluster never go to another."""

from __future__ import annotations

import random
import time

import harness
import pytest

from kafkasafe import SafeProducer, WrongClusterError
from kafkasafe.events import DataLost, LostRecordsRestored, SpoolRecordsMissing
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy
from kafkasafe.testing.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]


def values(cluster, topic):
    return [record.value for record in harness.read_log(cluster.bootstrap_servers, topic)[0]]


def new_topic(*clusters):
    """A topic of this name in each of them."""
    name = f"t-{random.SystemRandom().getrandbits(32):x}"
    for cluster in clusters:
        cluster.create_topic(name, partitions=1)
    return name


@pytest.fixture(scope="module")
def both():
    with KafkaCluster(brokers=1) as ours, KafkaCluster(brokers=1) as other:
        yield ours, other


@pytest.fixture
def two_clusters(both):
    """Both are up when a test begins."""
    yield both
    for cluster in both:
        cluster.recover()


def test_records_of_an_outage_wait_for_their_own_cluster(two_clusters, tmp_path):
    ours, other = two_clusters
    topic = new_topic(ours, other)
    with SafeProducer(bootstrap_servers=ours.bootstrap_servers, spool_dir=tmp_path) as producer:
        producer.send(topic, b"1").get(60)
        ours.kill(1)
        producer.send(topic, b"2").durable(60)
        producer.close(timeout=0)

    other.pause(1)  # or the producer could end before it has the record
    stranger = SafeProducer(bootstrap_servers=other.bootstrap_servers, spool_dir=tmp_path)
    accepted = stranger.send(topic, b"3")
    other.resume(1)
    with pytest.raises(WrongClusterError, match="Nothing was sent"):
        accepted.get(60)
    with pytest.raises(WrongClusterError):
        stranger.send(topic, b"4")
    with pytest.raises(WrongClusterError):
        stranger.close()
    assert values(other, topic) == []

    ours.restart(1)
    events = []
    with SafeProducer(
        bootstrap_servers=ours.bootstrap_servers, spool_dir=tmp_path, on_event=events.append
    ) as producer:
        producer.flush(60)
    # Also what the stranger had accepted before it learned where it was.
    assert values(ours, topic) == [b"1", b"2", b"3"]
    assert values(other, topic) == []

    # Nothing waits any more: now the directory may change, and what it knew of offsets is forgotten.
    events.clear()
    with SafeProducer(
        bootstrap_servers=other.bootstrap_servers, spool_dir=tmp_path, on_event=events.append
    ) as producer:
        assert producer.send(topic, b"5").get(60).offset == 0
    assert not [event for event in events if type(event).__name__ == "DataLost"]
    assert values(other, topic) == [b"5"]


@pytest.fixture(scope="module")
def one_address():
    """Two clusters with the same address, which leads to one of them at a time."""
    with (
        TcpProxy() as proxy,
        KafkaCluster(brokers=1, proxy_ports={1: proxy.port}) as ours,
        KafkaCluster(brokers=1, proxy_ports={1: proxy.port}) as other,
    ):
        yield proxy, ours, other


@pytest.mark.parametrize("spool", ["always", "on_error"])
def test_a_live_producer_sends_nothing_to_another_cluster_at_its_address(one_address, tmp_path, spool):
    proxy, ours, other = one_address
    topic = f"t-{spool}"
    ports = [cluster.client_address(1)[1] for cluster in (ours, other)]

    def lead_to(port):
        proxy.refuse()
        proxy.target_port = port

    proxy.target_port = ports[0]
    ours.create_topic(topic, partitions=1)
    lead_to(ports[1])
    proxy.restore()
    other.create_topic(topic, partitions=1)
    lead_to(ports[0])
    proxy.restore()

    with SafeProducer(bootstrap_servers=ours.bootstrap_servers, spool_dir=tmp_path, spool=spool) as producer:
        producer.send(topic, b"0").get(60)
        lead_to(ports[1])
        waiting = [producer.send(topic, b"%d" % number) for number in range(1, 4)]
        producer.durable(60)
        proxy.restore()
        with pytest.raises(WrongClusterError, match="Nothing was sent"):
            waiting[0].get(60)
        with pytest.raises(WrongClusterError, match="when their own cluster answers again"):
            producer.flush(60)
        with pytest.raises(WrongClusterError):
            producer.send(topic, b"refused")
        assert not any(future.is_done for future in waiting)
        assert harness.end_offset(other, topic) == 0

        # Theirs is back: it goes on as if nothing had been.
        lead_to(ports[0])
        proxy.restore()
        harness.until(lambda: all(future.is_done for future in waiting), 120)
        assert [future.get(0).offset for future in waiting] == [1, 2, 3]
        assert producer.send(topic, b"4").get(60).offset == 4
        assert values(ours, topic) == [b"0", b"1", b"2", b"3", b"4"]

        # Nothing waits: the producer moves, and what it knew of offsets and ids is forgotten.
        lead_to(ports[1])
        proxy.restore()

        bound = (tmp_path / "CLUSTER").read_text()
        harness.until(lambda: (tmp_path / "CLUSTER").read_text() != bound, 120)
        assert producer.send(topic, b"5").get(60).offset == 0
        assert values(other, topic) == [b"5"]


def test_one_address_that_leads_astray_and_brokers_that_do_not_say(tmp_path):
    """An address given to another cluster's broker is no broker of ours; the others go on. No id is no stranger."""
    with FaultProxy(nodes=(1, 2)) as proxy, KafkaCluster(brokers=2, proxy_ports=proxy.ports) as cluster:
        proxy.connect(cluster)
        cluster.create_topic("t", partitions=2, replication_factor=1)
        proxy.on("Metadata").set(cluster_id=None)
        with SafeProducer(
            bootstrap_servers=proxy.bootstrap_servers, spool_dir=tmp_path / "unsaid"
        ) as producer:
            assert [producer.send("t", b"0", partition=p).get(60).offset for p in (0, 1)] == [0, 0]
        assert not (tmp_path / "unsaid" / "CLUSTER").exists()

        proxy.clear()
        with SafeProducer(bootstrap_servers=proxy.bootstrap_servers, spool_dir=tmp_path / "said") as producer:
            assert [producer.send("t", b"1", partition=p).get(60).offset for p in (0, 1)] == [1, 1]
            proxy.on("Metadata").when(lambda exchange: exchange.call.node == 2).set(cluster_id="another")
            proxy.forget()
            proxy.cut()
            waiting = [producer.send("t", b"2", partition=p) for p in (0, 1)]
            harness.until(lambda: any(future.is_done for future in waiting))
            # Longer than it takes to believe that the whole cluster is another one.
            harness.until(lambda: sum(call.node == 2 for call in proxy.requests("Metadata")) > 8)
            # Its partition waits, without an error: the cluster is there.
            done = [future.is_done for future in waiting]
            assert sorted(done) == [False, True]
            assert producer.send("t", b"3", partition=done.index(True)).get(60).offset == 3
            proxy.clear()
            assert sorted(future.get(60).offset for future in waiting) == [2, 2]


def remembering(cluster, directory, events, *, check_ms):
    """A producer that keeps what was acknowledged, and looks whether the log still has it."""
    return SafeProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        spool_dir=directory,
        on_event=events.append,
        data_loss_check_ms=check_ms,
        restore_recreated_topics=True,
        retain_acked_bytes=1 << 20,
    )


def deliver(cluster, topic, directory, sent, events):
    """One start of a program: the values are delivered, and every check of what was acknowledged is made twice."""
    with remembering(cluster, directory, events, check_ms=500) as producer:
        for value in sent:
            producer.send(topic, value).get(60)
        time.sleep(1.25)
        producer.flush(60)


def losses(events):
    return [
        event for event in events if isinstance(event, DataLost | SpoolRecordsMissing | LostRecordsRestored)
    ]


def test_what_one_cluster_acknowledged_is_never_missed_in_another(two_clusters, tmp_path):
    """A start after the move remembered it, asked the other cluster about the first one's leaders, and sent it there."""
    ours, other = two_clusters
    events = []
    topic = new_topic(ours, other)
    deliver(ours, topic, tmp_path, [b"1", b"2", b"3"], events)
    ours.restart(1)
    deliver(ours, topic, tmp_path, [b"4"], events)
    ours.kill(1)
    for value in (b"other 1", b"other 2", b"other 3"):
        deliver(other, topic, tmp_path, [value], events)
    assert values(other, topic) == [b"other 1", b"other 2", b"other 3"]
    assert losses(events) == []


def test_what_a_deleted_topic_had_is_never_missed_in_a_later_one(tmp_path, monkeypatch):
    monkeypatch.setattr("kafkasafe.delivery.engine.topics._FORGET_GONE_S", 1.0)
    events = []
    with KafkaCluster(brokers=1, config={"auto.create.topics.enable": "false"}) as cluster:
        cluster.create_topic("t", partitions=1)
        deliver(cluster, "t", tmp_path, [b"1", b"2", b"3"], events)
        cluster.restart(1)
        with remembering(cluster, tmp_path, events, check_ms=500) as producer:
            producer.send("t", b"4").get(60)
            cluster.delete_topic("t")
            journal = producer._pump._context.own.journal
            harness.until(lambda: journal.views.last_acked_offset("t", 0) < 0)
            cluster.create_topic("t", partitions=1)
            producer.send("t", b"later 1").get(60)
        for value in (b"later 2", b"later 3"):
            deliver(cluster, "t", tmp_path, [value], events)
        assert values(cluster, "t") == [b"later 1", b"later 2", b"later 3"]
        assert losses(events) == []
