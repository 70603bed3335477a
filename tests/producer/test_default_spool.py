"""The default spool directory is found again, whatever the address was written like; and nothing goes to another cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import threading
from pathlib import Path

import harness
import pytest
from kafka import KafkaConsumer, TopicPartition
from programs import python
from typer.testing import CliRunner

from kafkasafe import SafeProducer, cli, events, logs
from kafkasafe.errors import ConfigError, WrongClusterError
from kafkasafe.spool.spool import Spool


@pytest.fixture
def lives(some_broker, tmp_path, monkeypatch):
    """Opens producers without spool_dir; closes what a failed test leaves open."""
    monkeypatch.delenv("KAFKASAFE_SPOOL_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    opened: list[SafeProducer] = []

    def life(servers=None, **options) -> SafeProducer:
        opened.append(SafeProducer(bootstrap_servers=servers or some_broker.servers, **options))
        return opened[-1]

    yield life
    for producer in opened:
        producer.close(timeout=0)


def left_behind(broker, lives, topic: str, *, known: bool = True, waiting: str = "", **options) -> Path:
    """A default directory with 20 durable records that did not reach the cluster; `known`: its id is known there.

    They are for the topic `waiting`, if it is given.
    """
    if not known:
        broker.proxy.refuse()
    producer = lives(**options)
    if known:
        producer.send(topic, b"first").get(60)
        broker.proxy.refuse()
        broker.proxy.cut()
    for number in range(20):
        producer.send(waiting or topic, b"%d" % number)
        producer.durable(30)
    producer.close(timeout=0)
    broker.proxy.restore()
    return Path(producer.spool_dir)


def records_left(caplog) -> list:
    return [record for record in caplog.records if getattr(record, "event", "") == "records_left"]


def localhost(broker) -> list[str]:
    return [f"localhost:{broker.servers[0].rpartition(':')[2]}"]


@pytest.mark.also_real
def test_another_spelling_of_the_address_delivers_what_the_former_left(some_broker, lives, monkeypatch):
    topic = harness.new_topic(some_broker.cluster, 1)
    former = left_behind(some_broker, lives, topic)
    readers: list[str] = []
    read = Spool.open.__func__

    def noted(cls, lane, **options):
        if lane.parent == former:
            readers.append(threading.current_thread().name)
        return read(cls, lane, **options)

    monkeypatch.setattr(Spool, "open", classmethod(noted))
    seen: list = []
    again = lives(localhost(some_broker), on_event=seen.append)
    assert Path(again.spool_dir) != former
    harness.until(lambda: some_broker.end_offset(topic) == 21, 120, "the other directory's records")
    values = [record.value for record in harness.read_log(some_broker.servers, topic)[0]]
    assert values == [b"first", *(b"%d" % number for number in range(20))]
    (adopted,) = [event for event in seen if isinstance(event, events.LaneAdopted)]
    assert (adopted.lane, adopted.records) == (f"{former.name}/lane-000", 20)
    # Callers wait for the engine's thread: reading may take minutes.
    assert [name.partition("-look-")[0] for name in readers] == ["kafkasafe"]
    assert not [event for event in seen if isinstance(event, events.OrphanedSpoolFound)]


def test_a_short_job_delivers_what_another_spelling_left_before_it_ends(some_broker, lives, caplog):
    topic = harness.new_topic(some_broker.cluster, 1)
    left_behind(some_broker, lives, topic)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "kafkasafe"):
        job = lives(localhost(some_broker))
        job.send(topic, b"own").get(60)
        job.close()
    assert logs.drain(60)
    assert some_broker.end_offset(topic) == 22
    assert not records_left(caplog)


def test_a_job_that_sends_nothing_delivers_what_another_spelling_left(some_broker, lives):
    topic = harness.new_topic(some_broker.cluster, 1)
    left_behind(some_broker, lives, topic)
    lives(localhost(some_broker)).close()
    assert some_broker.end_offset(topic) == 21


def test_another_spelling_commits_offsets_that_the_former_left_without_records(some_broker, lives):
    topic = harness.new_topic(some_broker.cluster, 1)
    former = lives()
    former.send(topic, b"first").get(60)
    some_broker.proxy.refuse()
    some_broker.proxy.cut()
    with former.batch() as batch:
        batch.send_offsets({TopicPartition(topic, 0): 1}, topic)
    batch.outcome.durable(30)
    former.close(timeout=0)
    some_broker.proxy.restore()
    lives(localhost(some_broker)).close()
    with contextlib.closing(KafkaConsumer(bootstrap_servers=some_broker.servers, group_id=topic)) as reader:
        assert reader.committed(TopicPartition(topic, 0)) == 1


def test_what_another_spelling_left_and_is_not_delivered_is_named_with_its_own_directory(
    some_broker, lives, caplog
):
    topic = f"{harness.new_topic(some_broker.cluster, 1)}-missing"
    former = left_behind(some_broker, lives, topic.removesuffix("-missing"), waiting=topic)
    seen: list = []
    caplog.clear()
    with caplog.at_level(logging.WARNING, "kafkasafe"):
        job = lives(localhost(some_broker), on_event=seen.append, allow_auto_create_topics=False)
        job.send(topic, b"own")
        job.durable(60)
        harness.until(lambda: any(isinstance(e, events.LaneAdopted) for e in seen), 60, "the adoption")
        job.close(timeout=0)
    assert logs.drain(60)
    some_broker.cluster.create_topic(topic, 1)
    lines = records_left(caplog)
    assert {line.path: line.records for line in lines} == {str(former): 20, str(job.spool_dir): 1}
    for line in lines:
        # As the message says.
        command = shlex.split(line.getMessage().rpartition("or run ")[2])
        assert command[3] == line.path
        result = CliRunner().invoke(cli.app, [*command[1:], "--timeout", "60s"])
        assert (result.exit_code, f"{line.records} record" in result.output) == (0, True), result.output
    assert some_broker.end_offset(topic) == 21


def test_in_an_outage_the_directory_of_another_spelling_is_named_as_well(
    some_broker, lives, caplog, monkeypatch
):
    topic = harness.new_topic(some_broker.cluster, 1)
    with lives(localhost(some_broker)) as job:  # from now on its directory knows its cluster
        job.send(topic, b"own").get(60)
    former = left_behind(some_broker, lives, topic)
    monkeypatch.setattr("kafkasafe._producing.shutdown._CLOSE_IDLE_S", 0.2)
    some_broker.proxy.refuse()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "kafkasafe"):
        lives(localhost(some_broker)).close()
        with lives(localhost(some_broker), client_id="another") as job:
            job.send(topic, b"another's")
    assert logs.drain(60)
    assert [(line.path, line.records) for line in records_left(caplog)] == [
        (str(former), 20),
        (str(job.spool_dir), 1),
    ]


@pytest.mark.parametrize("known", [True, False])
def test_what_is_not_delivered_by_itself_is_reported_with_the_command_that_does(
    some_broker, lives, caplog, known
):
    """Of another client id, or of a cluster that was never reached."""
    topic = harness.new_topic(some_broker.cluster, 1)
    former = left_behind(
        some_broker, lives, topic, known=known, client_id="shop-7f9c" if known else "kafkasafe"
    )
    before = some_broker.end_offset(topic)
    seen: list = []
    with caplog.at_level(logging.WARNING, "kafkasafe"):
        producer = lives(localhost(some_broker), on_event=seen.append)
        harness.until(lambda: any(isinstance(e, events.OrphanedSpoolFound) for e in seen), 120, "the report")
    (event,) = [event for event in seen if isinstance(event, events.OrphanedSpoolFound)]
    assert (event.directory, event.records) == (str(former), 20)
    assert (event.cluster_id is not None) is known
    assert logs.drain(60)
    assert f"20 records are pending in {former}" in caplog.text
    assert event.command in caplog.text
    harness.until(
        lambda: ("orphaned_spool_records", 20) in [(d.name, n) for d, _, n in producer.metric_samples()], 60
    )
    producer.send(topic, b"own").get(60)
    assert some_broker.end_offset(topic) == before + 1
    producer.close()
    # As the message says.
    result = CliRunner().invoke(cli.app, [*shlex.split(event.command)[1:], "--timeout", "60s"])
    assert result.exit_code == 0, result.output
    assert some_broker.end_offset(topic) == before + 21


def test_what_waits_for_another_cluster_is_left_alone(some_broker, lives):
    topic = harness.new_topic(some_broker.cluster, 1)
    former = left_behind(some_broker, lives, topic)
    (former / "CLUSTER").write_text("of-another-one\n")
    other = left_behind(some_broker, lives, topic, client_id="other")
    seen: list = []
    producer = lives(localhost(some_broker), on_event=seen.append)
    # It looks at all of them before it reports one.
    harness.until(lambda: any(isinstance(e, events.OrphanedSpoolFound) for e in seen), 120, "the report")
    assert [e.directory for e in seen if isinstance(e, events.OrphanedSpoolFound)] == [str(other)]
    producer.send(topic, b"own").get(60)
    assert some_broker.end_offset(topic) == 3


@pytest.mark.parametrize("content", [b"\x00\xff", b""])
def test_where_the_file_of_the_cluster_is_damaged_nothing_is_sent(some_broker, lives, content):
    topic = harness.new_topic(some_broker.cluster, 1)
    directory = left_behind(some_broker, lives, topic)
    known = (directory / "CLUSTER").read_bytes()
    (directory / "CLUSTER").write_bytes(content)
    producer = lives()
    with pytest.raises(WrongClusterError, match=r"CLUSTER is damaged: .* Nothing was sent"):
        producer.flush(60)
    with pytest.raises(WrongClusterError):
        producer.close()
    assert some_broker.end_offset(topic) == 1
    (directory / "CLUSTER").write_bytes(known)
    with lives() as producer:
        producer.flush(60)
    assert some_broker.end_offset(topic) == 21


def test_where_the_locale_has_no_name_for_a_directory_the_error_says_so(tmp_path):
    """It was a bare UnicodeEncodeError."""
    code = """if True:
        from kafkasafe import SafeConsumer, SafeProducer
        for kind, option, value in (
            (SafeProducer, "spool_dir", "/tmp/d\\u00e4ta"),
            (SafeProducer, "client_id", "caf\\u00e9"),
            (SafeConsumer, "lineage_path", "/tmp/d\\u00e4ta"),
        ):
            try:
                kind(bootstrap_servers="127.0.0.1:1", **{option: value})
            except Exception as error:
                print(type(error).__name__, error)
    """
    done = python(
        "-c",
        code,
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "XDG_STATE_HOME": str(tmp_path)},
        check=True,
    )
    said = done.stdout.splitlines()
    assert [line.split(": '/")[0] for line in said] == [
        f"ConfigError {name}" for name in ("spool_dir", "client_id", "lineage_path")
    ]
    assert all("PYTHONUTF8=1" in line for line in said)
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_cannot_be_determined_is_named(monkeypatch, mocker):
    """As in a container that runs as a user without an entry in /etc/passwd."""
    for name in ("KAFKASAFE_SPOOL_DIR", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    looked = mocker.patch("pwd.getpwuid", autospec=True, side_effect=KeyError)
    with pytest.raises(ConfigError, match="Set spool_dir= or KAFKASAFE_SPOOL_DIR"):
        SafeProducer(bootstrap_servers=harness.dead_address())
    looked.assert_called_with(os.getuid())
