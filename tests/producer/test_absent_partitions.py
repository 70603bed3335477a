"""Records for partitions that a topic does not have, as callers and commands see them."""

from __future__ import annotations

import json
import time

import harness
import pytest
from commands import run

from kafkasafe import RejectedError, SafeProducer
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.inspection import inspect
from kafkasafe.testing import FakeCluster

PROMPT_S = 20.0
"""A third of the minute that a topic may be missing before anybody hears of it."""


@pytest.fixture
def cluster():
    with FakeCluster(config={"auto.create.topics.enable": False}) as made:
        made.create_topic("orders", partitions=2)
        yield made


def test_one_wrong_partition_number_stops_nothing_else(cluster, tmp_path):
    """At first contact the number of partitions is not known yet. The whole topic was refused, for a week."""
    with SafeProducer(
        bootstrap_servers=cluster.bootstrap_servers, spool_dir=tmp_path / "spool", client_id="a"
    ) as producer:
        wrong = producer.send("orders", b"wrong", partition=2)
        good = [producer.send("orders", b"%d" % number, partition=number) for number in (0, 1)]
        began = time.monotonic()
        with pytest.raises(RejectedError, match=r"orders has no partition 2: it has 2 partitions") as refused:
            wrong.get(PROMPT_S)
        assert refused.value.code == 3
        producer.flush(PROMPT_S)
        assert time.monotonic() - began < PROMPT_S
        assert [future.get(1).offset for future in good] == [0, 0]
        with pytest.raises(ValueError, match="Unrecognized partition 2 for topic orders: it has 2"):
            producer.send("orders", b"again", partition=2)
        producer.send("orders", b"more", partition=0).get(PROMPT_S)
    assert sorted(cluster.values("orders")) == [b"0", b"1", b"more"]


def test_a_topic_that_grew_between_two_runs_has_its_new_partitions_at_once(cluster, tmp_path):
    """The number of partitions that the spool knows is that of the earlier run."""
    options = {"bootstrap_servers": cluster.bootstrap_servers, "spool_dir": tmp_path / "spool"}
    with SafeProducer(**options) as producer:
        producer.send("orders", b"before", partition=1).get(PROMPT_S)
    cluster.grow_topic("orders", 4)
    with SafeProducer(**options) as producer:
        assert producer.send("orders", b"after", partition=3).get(PROMPT_S).partition == 3
        with pytest.raises(ValueError, match="Unrecognized partition 4 for topic orders: it has 4"):
            producer.send("orders", b"never", partition=4)


def left_behind(cluster, path) -> None:
    """A producer ends before it knows that the partition does not exist; the batch has its id by then."""
    producer = SafeProducer(bootstrap_servers=cluster.bootstrap_servers, spool_dir=path, client_id="a")
    producer.send("orders", b"wrong", partition=2)
    good = producer.send("orders", b"good", partition=0)
    good.get(PROMPT_S)
    assert producer.metrics()["kafkasafe"]["unfinished_batches"] == 1
    producer.close(0)


def test_commands_know_that_no_broker_has_seen_it(cluster, tmp_path, capsys):
    left_behind(cluster, tmp_path / "spool")
    code, out, _ = run(capsys, "spool", "show", tmp_path / "spool", "--json")
    (row,) = json.loads(out)
    assert (code, row["status"], row["step"], row["partition"]) == (0, "not_sent", 2, 2)
    assert row["producer_id"] is not None
    code, out, _ = run(capsys, "spool", "ls", tmp_path / "spool")
    assert "1 record in 1 batch, 0 of them may have been sent" in out
    code, out, _ = run(capsys, "doctor", tmp_path / "spool", "-b", cluster.bootstrap_servers[0])
    assert "NEVER SENT" in out
    where = ["--lane", "0", "--position", row["position"]]
    code, out, err = run(capsys, "spool", "set-aside", tmp_path / "spool", *where)
    assert (code, "orders-2: 1 record set aside into" in out) == (0, True), err
    code, out, _ = run(capsys, "spool", "drain", tmp_path / "spool", "-b", cluster.bootstrap_servers[0])
    assert "0 left" in out


def test_a_drain_ends(cluster, tmp_path, capsys):
    left_behind(cluster, tmp_path / "spool")
    began = time.monotonic()
    code, out, _ = run(
        capsys, "spool", "drain", tmp_path / "spool", "-b", cluster.bootstrap_servers[0], "--timeout", "50s"
    )
    assert time.monotonic() - began < 2 * PROMPT_S
    assert code == 1
    assert "0 records delivered, 0 left" in out
    assert "orders has no partition 2" in out


def test_the_next_incarnation_accepts_and_delivers(cluster, tmp_path):
    left_behind(cluster, tmp_path / "spool")
    with SafeProducer(
        bootstrap_servers=cluster.bootstrap_servers, spool_dir=tmp_path / "spool", client_id="a"
    ) as producer:
        producer.send("orders", b"next", partition=1).get(PROMPT_S)
        producer.flush(PROMPT_S)
    assert sorted(cluster.values("orders")) == [b"good", b"next"]


@pytest.mark.full
def test_what_was_in_doubt_for_a_partition_that_went_can_be_set_aside(cluster, tmp_path, capsys):
    """The topic was made again with fewer partitions after the producer ended."""
    spool = tmp_path / "spool"
    producer = SafeProducer(
        bootstrap_servers=cluster.bootstrap_servers, spool_dir=spool, client_id="a", request_timeout_ms=1000
    )
    producer.send("orders", b"first", partition=1).get(PROMPT_S)
    cluster.stall()
    producer.send("orders", b"in doubt", partition=1).durable(PROMPT_S)
    producer.close(0.5)
    cluster.restore()
    cluster.delete_topic("orders")
    cluster.create_topic("orders", partitions=1)
    code, out, _ = run(capsys, "spool", "show", spool, "--json")
    (row,) = json.loads(out)
    assert row["status"] == "in_doubt"
    config = tmp_path / "client.json"
    config.write_text(json.dumps({"request_timeout_ms": 1000}))
    where = ["--lane", "0", "--position", row["position"], "-b", cluster.bootstrap_servers[0]]
    code, out, err = run(capsys, "spool", "set-aside", spool, *where, "--config", config)
    assert (code, "1 record set aside into" in out) == (0, True), err
    assert "orders has no partition 1: it has 1 partition, according to broker 1, the only broker" in err


@pytest.mark.kafka
def test_wrong_partitions_on_real_brokers(kafka_cluster, tmp_path):
    """Three of them, two of which are asked; then the topic is made again with fewer partitions in an outage."""
    topic = harness.new_topic(kafka_cluster, 6)
    options = {"bootstrap_servers": kafka_cluster.bootstrap_servers, "spool_dir": tmp_path / "spool"}
    with SafeProducer(**options) as producer:
        wrong = producer.send(topic, b"wrong", partition=6)
        good = [producer.send(topic, b"%d" % number, partition=number) for number in range(2)]
        with pytest.raises(RejectedError, match=r"it has 6 partitions, according to brokers \d and \d"):
            wrong.get(60)
        for future in good:
            future.get(60)
    kafka_cluster.kill_all()
    producer = SafeProducer(**options)
    for number in range(6):
        producer.send(topic, b"1%d" % number, partition=number)
    producer.close(0)
    kafka_cluster.start_all()
    kafka_cluster.delete_topic(topic)
    kafka_cluster.create_topic(topic, partitions=2)
    with SafeProducer(**options, on_data_loss="event") as producer:
        began = time.monotonic()
        producer.send(topic, b"20", partition=0).get(60)
        producer.send(topic, b"21", partition=1).get(60)
        producer.flush(60)
        assert time.monotonic() - began < 30
    log = harness.read_log(kafka_cluster.bootstrap_servers, topic)
    assert [[int(record.value) for record in log[number]] for number in (0, 1)] == [[10, 20], [11, 21]]
    (kept,) = {each.name for each in (tmp_path / "spool").iterdir() if (each / "rejected").is_dir()}
    assert sum(each.records for each in inspect(tmp_path / "spool" / kept, files=OsFiles()).rejected) == 5
