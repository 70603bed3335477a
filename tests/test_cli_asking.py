"""Commands that ask a cluster: how soon they answer, and in whose words. On a Kafka in memory."""

from __future__ import annotations

import json
import time

import pytest

from kafkasafe import SafeProducer, cli
from kafkasafe.consumer import SafeConsumer
from kafkasafe.spark.planner import SourceUnavailableError
from kafkasafe.testing import FakeCluster


def run(capsys, *arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_a_topic_that_the_cluster_does_not_have_is_told_long_before_the_timeout(
    fake_kafka, capsys, monkeypatch
):
    monkeypatch.setattr("kafkasafe.cli_offsets._MISSING_S", 0.5)
    fake_kafka.create_topic("orders", partitions=1)
    servers = ",".join(fake_kafka.bootstrap_servers)
    began = time.monotonic()
    code, out, _ = run(capsys, "offsets", "nosuch", "orders", "norsuch", "-b", servers, "--json")
    assert time.monotonic() - began < 15, "the timeout is 30 s"
    assert code == 3
    rows = {row["topic"]: row for row in json.loads(out)}
    assert rows["orders"]["end_offset"] == 0
    for name in ("nosuch", "norsuch"):
        assert rows[name]["end_offset"] is None
        assert "the cluster does not have it" in rows[name]["note"]


def test_a_topic_that_is_only_new_is_found(fake_kafka, capsys, monkeypatch):
    """Brokers that do not have it yet are asked again."""
    asked = []
    ask = SafeConsumer.partitions_for_topic

    def late(consumer, topic):
        asked.append(topic)
        if len(asked) == 2:
            fake_kafka.create_topic(topic, partitions=3)
        return ask(consumer, topic)

    monkeypatch.setattr("kafkasafe.cli_offsets.SafeConsumer.partitions_for_topic", late)
    servers = ",".join(fake_kafka.bootstrap_servers)
    code, out, _ = run(capsys, "offsets", "new", "-b", servers, "--json")
    assert (code, len(json.loads(out))) == (0, 3)
    assert len(asked) >= 2


def test_where_nothing_waits_a_drain_asks_no_cluster(fake_kafka, capsys, tmp_path):
    """It may be another one, or none: the directory stays bound to its own."""
    fake_kafka.create_topic("orders")
    servers = ",".join(fake_kafka.bootstrap_servers)
    with SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path) as producer:
        producer.send("orders", b"1").get(60)
    bound = (tmp_path / "CLUSTER").read_bytes()
    with FakeCluster() as other:
        others = ",".join(other.bootstrap_servers)
        for name in (others, "127.0.0.1:1"):
            code, out, _ = run(capsys, "spool", "drain", tmp_path, "-b", name)
            assert (code, out) == (0, "0 records delivered, 0 left\n")
        assert (tmp_path / "CLUSTER").read_bytes() == bound

        fake_kafka.refuse()
        with SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path) as producer:
            producer.send("orders", b"2")
            producer.close(0)
        code, _, err = run(capsys, "spool", "drain", tmp_path, "-b", others, "--timeout", "30s")
        assert (code, "holds records for cluster" in err) == (3, True)
        assert (tmp_path / "CLUSTER").read_bytes() == bound
    fake_kafka.restore()
    code, out, _ = run(capsys, "spool", "drain", tmp_path, "-b", servers, "--timeout", "30s")
    assert (code, out) == (0, "1 record delivered, 0 left\n")


NOT_ITS_OWN = ("KAFKASAFE.", "kafka.bootstrap", "Spark", "query", "kafkaConsumer", "option(")


def test_brokers_that_cannot_be_reached_are_told_in_words_of_the_audit(capsys):
    code, out, err = run(capsys, "audit", "--topic", "orders", "-b", "127.0.0.1:1", "--timeout", "0.5s")
    assert (code, out) == (3, "")
    assert err.startswith("kafkasafe: No broker at 127.0.0.1:1 answered within 0.5 s.")
    assert "--bootstrap-servers" in err
    assert not [word for word in NOT_ITS_OWN if word in err], err


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("NO_ANSWER", "or raise --timeout."),
        ("NO_RECORDS", "or raise --timeout."),
        ("REMOTE_STORAGE_NOT_READY", "or raise --timeout."),
        ("DATA_LOSS", "count it again."),
        ("FETCH_REFUSED", "cannot be read: why"),
    ],
)
def test_other_troubles_are_told_in_words_of_the_audit(capsys, mocker, kind, advice):
    """Their texts as they are where the log is read; the test below has a real one."""
    texts = {
        "NO_ANSWER": "Look whether these partitions have leaders, or raise kafkaConsumer.pollTimeoutMs.",
        "NO_RECORDS": "Look whether the partition has a leader that the executors reach, or raise kafkaConsumer.x.",
        "REMOTE_STORAGE_NOT_READY": "Look at the brokers' remote log manager, or raise kafkaConsumer.x.",
        "DATA_LOSS": 'Start the query again with .option("failOnDataLoss", "false").',
        "FETCH_REFUSED": "orders-0 cannot be read: why",
    }
    raised = SourceUnavailableError(f"[KAFKASAFE.{kind}] What it is. {texts[kind]}")
    mocker.patch("kafkasafe.cli_audit.audit", autospec=True, side_effect=raised)
    code, _, err = run(capsys, "audit", "--topic", "orders", "-b", "127.0.0.1:1")
    assert code == 3
    assert err.startswith("kafkasafe: What it is. ")
    assert err.rstrip().endswith(advice)
    assert not [word for word in NOT_ITS_OWN if word in err], err


def test_a_partition_without_a_leader_is_told_in_words_of_the_audit(capsys):
    with FakeCluster(brokers=2) as cluster:
        cluster.create_topic("orders", assignments={0: [2]})
        cluster.stop(2)
        servers = ",".join(cluster.bootstrap_servers)
        code, _, err = run(capsys, "audit", "--topic", "orders", "-b", servers, "--timeout", "1s")
    assert code == 3
    assert err.startswith("kafkasafe: No usable answer about ")
    assert err.rstrip().endswith("or raise --timeout.")
    assert not [word for word in NOT_ITS_OWN if word in err], err
