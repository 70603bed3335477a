"""Commands that ask a cluster: how soon they answer, and in whose words. On a Kafka in memory."""

from __future__ import annotations

import json
import sys
import time
import tomllib
from pathlib import Path

import pytest
import typer
from commands import run

import kafkasafe
from kafkasafe import SafeProducer, cli
from kafkasafe.cli.asking import limits_of
from kafkasafe.cli.common import duration_s
from kafkasafe.consumer import SafeConsumer
from kafkasafe.spark.brokers import SourceUnavailableError
from kafkasafe.testing import FakeCluster


def test_a_topic_that_the_cluster_does_not_have_is_told_long_before_the_timeout(
    fake_kafka, capsys, monkeypatch
):
    monkeypatch.setattr("kafkasafe.cli.offsets._MISSING_S", 0.5)
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

    monkeypatch.setattr("kafkasafe.cli.offsets.SafeConsumer.partitions_for_topic", late)
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


@pytest.mark.parametrize("command", ["drain", "resend"])
def test_the_time_out_bounds_the_whole_command(fake_kafka, capsys, tmp_path, command):
    """At its end the command waited 5 s longer for the brokers, as `close` of a producer does."""
    servers = ",".join(fake_kafka.bootstrap_servers)
    fake_kafka.refuse()
    with SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path) as producer:
        producer.send("orders", b"1")
        producer.close(0)
    began = time.monotonic()
    code, out, _ = run(capsys, "spool", command, tmp_path, "-b", servers, "--timeout", "1s")
    took_s = time.monotonic() - began
    assert (code, "not everything was delivered within 1 s" in out) == (3, True)
    assert took_s < 4, took_s


@pytest.mark.parametrize("command", ["doctor", "offsets", "audit"])
def test_without_a_time_out_brokers_that_do_not_answer_are_told_soon(capsys, mocker, tmp_path, command):
    """It took 30 or 60 s, the time that answers of a working cluster may take."""
    mocker.patch("kafkasafe.cli.asking.FIRST_ANSWER_S", 0.5)
    with SafeProducer(bootstrap_servers="127.0.0.1:1", spool_dir=tmp_path) as producer:
        producer.close(0)
    began = time.monotonic()
    code, out, err = run(capsys, command, tmp_path if command == "doctor" else "orders", "-b", "127.0.0.1:1")
    took_s = time.monotonic() - began
    assert (code, out) == (3, "")
    assert "127.0.0.1:1" in err
    assert took_s < 5, took_s


def test_a_given_time_out_also_limits_the_wait_for_the_first_answer():
    assert limits_of(None, "60s") == (10, 60)
    assert limits_of("2m", "60s") == (120, 120)
    assert limits_of("500ms", "60s") == (0.5, 0.5)


NOT_ITS_OWN = ("KAFKASAFE.", "kafka.bootstrap", "Spark", "query", "kafkaConsumer", "option(")


def test_brokers_that_cannot_be_reached_are_told_in_words_of_the_audit(capsys):
    code, out, err = run(capsys, "audit", "orders", "-b", "127.0.0.1:1", "--timeout", "0.5s")
    assert (code, out) == (3, "")
    assert err.startswith("kafkasafe: No broker at 127.0.0.1:1 answered within 0.5 s.")
    assert "--bootstrap-servers" in err
    assert err.count("KafkaConnectionError") <= 1
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
def test_other_troubles_are_told_in_words_of_the_audit(capsys, mocker, fake_kafka, kind, advice):
    """Their texts as they are where the log is read; the test below has a real one."""
    texts = {
        "NO_ANSWER": "Check that these partitions have leaders, or raise kafkaConsumer.pollTimeoutMs.",
        "NO_RECORDS": "Check that the partition has a leader that the executors reach, or raise kafkaConsumer.x.",
        "REMOTE_STORAGE_NOT_READY": "Check the brokers' remote log manager, or raise kafkaConsumer.x.",
        "DATA_LOSS": 'Start the query again with .option("failOnDataLoss", "false").',
        "FETCH_REFUSED": "orders-0 cannot be read: why",
    }
    raised = SourceUnavailableError(f"[KAFKASAFE.{kind}] What it is. {texts[kind]}")
    mocker.patch("kafkasafe.cli.audit.audit", autospec=True, side_effect=raised)
    code, _, err = run(capsys, "audit", "orders", "-b", ",".join(fake_kafka.bootstrap_servers))
    assert code == 3
    assert err.startswith("kafkasafe: What it is. ")
    assert err.rstrip().endswith(advice)
    assert not [word for word in NOT_ITS_OWN if word in err], err


def test_a_partition_without_a_leader_is_told_in_words_of_the_audit(capsys):
    with FakeCluster(brokers=2) as cluster:
        cluster.create_topic("orders", assignments={0: [2]})
        cluster.stop(2)
        servers = ",".join(cluster.bootstrap_servers)
        code, _, err = run(capsys, "audit", "orders", "-b", servers, "--timeout", "1s")
    assert code == 3
    assert err.startswith("kafkasafe: No usable answer about ")
    assert err.rstrip().endswith("or raise --timeout.")
    assert not [word for word in NOT_ITS_OWN if word in err], err


def test_the_time_out_bounds_a_round_of_offsets_without_a_leader(capsys, monkeypatch):
    """Look-ups of the logs' starts get what look-ups of their ends left, and at least a second."""
    given_ms = []
    look_up = SafeConsumer.beginning_offsets

    def beginning_offsets(consumer, places, *, timeout_ms, partial):
        given_ms.append(timeout_ms)
        return look_up(consumer, places, timeout_ms=timeout_ms, partial=partial)

    monkeypatch.setattr(SafeConsumer, "beginning_offsets", beginning_offsets)
    with FakeCluster(brokers=2) as cluster:
        cluster.create_topic("orders", assignments={0: [2]})
        cluster.stop(2)
        servers = ",".join(cluster.bootstrap_servers)
        code, out, _ = run(capsys, "offsets", "orders", "-b", servers, "--timeout", "3s", "--json")
    assert (code, json.loads(out)[0]["end_offset"]) == (3, None)
    assert given_ms == [1000]


def test_an_audit_that_cannot_draw_says_so_before_it_counts(fake_kafka, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("kafkasafe.cli.audit.audit", None)
    servers = ",".join(fake_kafka.bootstrap_servers)
    code, _, err = run(capsys, "audit", "orders", "-b", servers, "--plot", "a.svg")
    assert (code, "--plot: needs matplotlib: pip install 'kafkasafe[plot]'" in err) == (2, True)


def commands(at=None, path=()):
    """(path, command) of every command."""
    at = typer.main.get_command(cli.app) if at is None else at
    for name, command in getattr(at, "commands", {}).items():
        yield from commands(command, (*path, name))
    if not hasattr(at, "commands"):
        yield path, at


def test_every_command_takes_the_names_of_kafkas_own_commands():
    asking = 0
    for path, command in commands():
        opts = {name: each for each in command.params for name in each.opts}
        for ours, theirs in (("--bootstrap-servers", "--bootstrap-server"), ("--config", "--command-config")):
            assert (ours in opts) is (theirs in opts), path
            assert opts.get(ours) is opts.get(theirs), path
        asking += "--bootstrap-servers" in opts
    assert asking >= 7


def test_every_time_is_a_duration(capsys, monkeypatch):
    """Also of the settings of brokers, which have them in ms."""
    for path, command in commands():
        for option in command.params:
            assert not any(name.endswith(("-ms", "-s", "-seconds")) for name in option.opts), (
                path,
                option.opts,
            )
    for text, seconds in (
        ("500ms", 0.5),
        ("90", 90),
        ("30s", 30),
        ("5m", 300),
        ("12h", 43_200),
        ("1d", 86_400),
    ):
        assert duration_s(text, "--timeout") == seconds
    for text in ("", "ms", "1w", "nan", "inf", "-1s", "1dd", "1smh"):
        with pytest.raises(typer.BadParameter, match="is not a duration; write 500ms, 30s"):
            duration_s(text, "--timeout")


def test_a_topic_is_asked_about_under_either_name(fake_kafka, capsys, tmp_path):
    fake_kafka.create_topic("orders", partitions=1)
    (tmp_path / "options.toml").write_text("request_timeout_ms = 20000\n")
    answers = []
    for servers, config in (("--bootstrap-servers", "--config"), ("--bootstrap-server", "--command-config")):
        brokers = ",".join(fake_kafka.bootstrap_servers)
        code, out, err = run(
            capsys, "offsets", "orders", servers, brokers, config, str(tmp_path / "options.toml"), "--json"
        )
        assert (code, err) == (0, "")
        answers.append(out)
    assert answers[0] == answers[1]


def test_several_topics_are_audited_one_after_the_other(fake_kafka, capsys, tmp_path):
    for topic in ("orders", "invoices"):
        fake_kafka.create_topic(topic, partitions=1)
    servers = ",".join(fake_kafka.bootstrap_servers)
    with SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path) as producer:
        for topic in ("orders", "invoices", "invoices"):
            producer.send(topic, b"1")
    code, out, err = run(capsys, "audit", "orders", "invoices", "orders", "-b", servers, "--json")
    assert (code, err) == (0, "")
    assert [(each["topic"], each["records"]) for each in json.loads(out)] == [("orders", 1), ("invoices", 2)]
    code, out, _ = run(capsys, "audit", "orders", "invoices", "-b", servers)
    assert code == 0
    assert [line.rstrip() for line in out.splitlines() if ": " in line] == [
        "orders: 1 record",
        "invoices: 2 records",
    ]
    code, out, _ = run(capsys, "audit", "orders", "-b", servers, "--json")
    assert json.loads(out)["records"] == 1
    code, _, err = run(capsys, "audit", "orders", "invoices", "-b", servers, "--plot", "a.svg")
    assert code == 2
    assert "draws one topic" in err


def test_there_is_one_tagline(capsys):
    pyproject = tomllib.loads((Path(kafkasafe.__file__).parent.parent / "pyproject.toml").read_text())
    tagline = kafkasafe.__doc__.splitlines()[0]
    assert pyproject["project"]["description"] == tagline
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert tagline in " ".join(out.split())
