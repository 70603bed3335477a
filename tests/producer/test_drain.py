"""`kafkasafe spool drain`: what producers left is delivered, in order, once; what is left is told."""

from __future__ import annotations

import json
import re

import harness
import lives
import pytest
from commands import run

from kafkasafe.testing.broker import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.crash]


def leave(broker, zygote, tmp_path, topic, number, count=50):
    """A lane with records that were not delivered when their producer was killed."""
    ready = tmp_path / f"ready-{number}"
    life = zygote.burst(
        tmp_path,
        broker.servers,
        topic,
        ready,
        [number * count, (number + 1) * count],
        options={"spool_lane": number, "client_id": f"left-{number}"},
        partition=0,
    )
    life.until(ready)
    return life


def test_all_lanes_are_drained(broker, zygote, tmp_path, capsys):
    topic = harness.new_topic(broker.cluster, 1)
    broker.proxy.refuse()
    for life in [leave(broker, zygote, tmp_path, topic, number) for number in range(3)]:
        life.kill()
    # Nobody answers: told in time, nothing is lost.
    servers = ",".join(broker.servers)
    code, out, _ = run(
        capsys, "spool", "drain", tmp_path / "spool", "-b", servers, "--timeout", "1s", "--json"
    )
    told = json.loads(out)
    assert (code, told["delivered_records"], told["left_records"]) == (3, 0, 150)
    assert re.match(
        r"not everything was delivered within 1 s \(no broker can be used: .*refused",
        told["trouble"],
        re.IGNORECASE,
    )
    broker.proxy.restore()
    code, out, _ = run(capsys, "spool", "drain", tmp_path / "spool", "-b", servers, "--timeout", "2m")
    assert (code, out) == (0, "150 records delivered, 0 left\n")
    harness.audit(harness.read_log(broker.servers, topic), range(150), ordered=False)
    # Nothing to do is no error, and soon done.
    code, out, _ = run(capsys, "spool", "drain", tmp_path / "spool", "-b", servers)
    assert (code, out) == (0, "0 records delivered, 0 left\n")


def test_a_lane_of_a_living_process_is_its_own(broker, zygote, tmp_path, capsys):
    topic = harness.new_topic(broker.cluster, 1)
    life = leave(broker, zygote, tmp_path, topic, 0)
    code, out, _ = run(capsys, "spool", "drain", tmp_path / "spool", "-b", ",".join(broker.servers), "--json")
    told = json.loads(out)
    assert (code, told["lanes_of_others"]) == (0, ["lane-000"])
    assert life.ended() is None
    life.kill()


def test_a_damaged_lane_is_neither_skipped_nor_touched(broker, zygote, tmp_path, capsys):
    topic = harness.new_topic(broker.cluster, 1)
    broker.proxy.refuse()
    for life in [leave(broker, zygote, tmp_path, topic, number) for number in range(2)]:
        life.kill()
    broker.proxy.restore()
    segments = []
    for number in range(2):
        (segment,) = (tmp_path / "spool" / f"lane-00{number}").glob("*.log")
        content = bytearray(segment.read_bytes())
        if number:
            at = content.index(b"%0*d" % (lives.DIGITS, 50))
            content[at] ^= 1
            segment.write_bytes(content)
        segments.append((segment, bytes(content)))
    servers = ",".join(broker.servers)
    code, out, _ = run(capsys, "spool", "drain", tmp_path / "spool", "-b", servers, "--timeout", "2m")
    assert code == 1
    assert "lane-001 is damaged" in out
    assert "see kafkasafe spool repair" in out
    path, content = segments[1]
    assert path.read_bytes() == content
    # The other lane was delivered.
    log = harness.read_log(broker.servers, topic)
    harness.audit(log, range(50))
    assert len(log[0]) == 50
    # On request the damage is put aside, and what is whole is delivered.
    (tmp_path / "hasty.toml").write_text("request_timeout_ms = 1000")
    code, out, _ = run(
        *(capsys, "spool", "drain", tmp_path / "spool", "-b", servers, "--timeout", "2m"),
        *("--on-corrupt", "quarantine", "--config", tmp_path / "hasty.toml"),
    )
    assert re.match(r"\d+ records delivered, 0 left", out), out
    assert list((tmp_path / "spool" / "lane-001" / "quarantine").iterdir())


def test_why_something_is_left_is_said(broker, zygote, tmp_path, capsys):
    topic = harness.new_topic(broker.cluster, 1)
    broker.proxy.refuse()
    leave(broker, zygote, tmp_path, topic, 0).kill()
    broker.proxy.restore()
    broker.cluster.delete_topic(topic)
    (tmp_path / "kafka.toml").write_text("allow_auto_create_topics = false")
    servers = ("-b", ",".join(broker.servers), "--config", tmp_path / "kafka.toml")
    code, out, _ = run(capsys, "spool", "drain", tmp_path / "spool", *servers, "--timeout", "8s")
    assert code == 1
    assert re.match(
        rf"0 records delivered, 50 left: not everything was delivered within 8 s \(.*{topic}-0", out
    ), out


def test_another_cluster_gets_nothing(broker, zygote, tmp_path, capsys):
    topic = harness.new_topic(broker.cluster, 1)
    life = leave(broker, zygote, tmp_path, topic, 0)
    harness.until((tmp_path / "spool" / "CLUSTER").exists, 120)
    broker.proxy.refuse()
    broker.proxy.cut()
    life.kill()
    life = leave(broker, zygote, tmp_path, topic, 1)
    life.kill()
    with KafkaCluster(brokers=1) as other:
        code, _, err = run(
            capsys, "spool", "drain", tmp_path / "spool", "-b", ",".join(other.bootstrap_servers)
        )
    assert code == 3
    assert "holds records for cluster" in err
