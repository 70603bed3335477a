"""`kafkasafe health DIR`: what it says of the spool of a producer that lives, and of one that was killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import commands
import harness
import lives
import pytest

from kafkasafe import SafeProducer
from kafkasafe.errors import SpoolCorruptError, SpoolError, SpoolFullError
from kafkasafe.spool.files import OsFiles
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.proxy import FaultProxy

MIB = 1 << 20


@pytest.fixture
def health(capsys):
    """Runs the command with --json: (exit code, what it printed)."""

    def run(*arguments):
        code, out, _ = commands.run(capsys, "health", *arguments, "--json")
        return code, json.loads(out)

    return run


def names(reasons):
    return [each["name"] for each in reasons]


def test_a_producer_in_an_outage(fake_kafka, producers, health, capsys):
    fake_kafka.create_topic("orders", 1)
    producer = producers(fake_kafka.bootstrap_servers)
    producer.send("orders", b"1").get(60)
    code, found = health(producers.spool)
    assert (code, found["ok"], found["ready"], found["waiting_records"]) == (0, True, True, 0)
    assert found["room_bytes"] > 0
    fake_kafka.refuse()
    fake_kafka.cut()
    producer.send("orders", b"2").durable(60)
    code, found = health(producers.spool)
    assert (code, found["ready"], found["waiting_records"]) == (0, True, 1)
    (lane,) = found["lanes"]
    assert (lane["lane"], lane["owner_pid"], lane["waiting_records"]) == ("lane-000", os.getpid(), 1)
    assert 0 <= lane["oldest_record_age_s"] < 120
    harness.until(lambda: health(producers.spool)[1]["oldest_record_age_s"] > 1)
    code, found = health(producers.spool, "--max-age", "1s")
    assert (code, found["ready"], names(found["warnings"])) == (1, True, ["too_old"])
    assert health(producers.spool, "--max-age", "1h")[0] == 0
    _, told, _ = commands.run(capsys, "health", producers.spool)
    assert told.startswith("READY: a producer can accept records\nlane-000: owned by process ")
    assert "1 record waiting, the oldest for " in told
    producer.close(timeout=0)
    # Nobody delivers it now.
    code, found = health(producers.spool)
    assert (code, found["ready"], names(found["warnings"])) == (1, True, ["no_owner"])
    assert "kafkasafe spool drain" in found["warnings"][0]["text"]


def test_a_full_spool(fake_kafka, producers, health):
    fake_kafka.refuse()
    options = {"spool_max_bytes": 16 * MIB, "spool_segment_bytes": 2 * MIB, "max_request_size": 300_000}
    producer = producers(fake_kafka.bootstrap_servers, max_block_ms=200, **options)
    with contextlib.suppress(SpoolFullError):
        for _ in range(2000):
            producer.send("orders", b"." * 100_000)
        raise AssertionError("2,000 records were accepted")
    producer.durable(60)
    assert health(producers.spool)[0] == 0
    code, found = health(producers.spool, "--spool-max-bytes", 16 * MIB)
    assert (code, found["ready"], names(found["reasons"])) == (1, False, ["spool_full"])


def test_a_full_volume_and_a_read_only_one(fake_kafka, producers, health, monkeypatch):
    producer = producers(fake_kafka.bootstrap_servers)
    producer.send("orders", b"1").durable(60)
    with monkeypatch.context() as patched:
        patched.setattr(OsFiles, "free_bytes", lambda *_, **__: 5 * MIB)
        code, found = health(producers.spool)
    assert (code, names(found["reasons"])) == (1, ["volume_full"])
    real = os.statvfs(producers.spool)
    status = SimpleNamespace(
        f_flag=real.f_flag | os.ST_RDONLY, f_bavail=real.f_bavail, f_frsize=real.f_frsize
    )
    with monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", lambda _: status)
        code, found = health(producers.spool)
    assert (code, names(found["reasons"]), found["room_bytes"]) == (1, ["read_only"], 0)


def test_an_undecidable_batch_until_its_owner_ends(producers, health):
    with FakeCluster() as cluster, FaultProxy(bootstrap=cluster.bootstrap_servers[0]) as proxy:
        cluster.create_topic("orders", 1)
        producer = producers(proxy.bootstrap_servers, request_timeout_ms=1000)
        producer.send("orders", b"0").get(60)
        proxy.on("Produce", topic="orders", partition=0).answer_without_forwarding(47)
        producer.send("orders", b"1").durable(60)
        harness.until(lambda: producer.health().undecidable_batches, what="undecidable")
        harness.until(lambda: health(producers.spool)[0], what="its mark on disk")
        code, found = health(producers.spool)
        assert (code, found["ready"], names(found["reasons"])) == (1, False, ["undecidable"])
        assert found["lanes"][0]["undecidable_batches"] == 1
        producer.close(timeout=0)
        # The next producer asks the cluster again.
        code, found = health(producers.spool)
        assert (code, found["ready"], names(found["warnings"])) == (1, True, ["no_owner"])


def test_rejected_records(fake_kafka, producers, health):
    fake_kafka.create_topic("small", 1, config={"max.message.bytes": 2000})
    with producers(fake_kafka.bootstrap_servers) as producer:
        future = producer.send("small", b"." * 5000)
        harness.until(future.failed)
    code, found = health(producers.spool)
    assert (code, found["ready"], names(found["warnings"])) == (1, True, ["rejected"])


def damage_lane(lane):
    (segment,) = lane.glob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)


def leave_records(producers, servers, **options):
    producer = producers(servers, **options)
    for number in range(3):
        producer.send("orders", b"%d" % number).durable(60)
    return producer


def test_damage_and_a_lane_that_is_none(fake_kafka, producers, health):
    fake_kafka.refuse()
    leave_records(producers, fake_kafka.bootstrap_servers).close(timeout=0)
    damage_lane(producers.spool / "lane-000")
    (producers.spool / "lane-001").write_text("a file")
    code, found = health(producers.spool)
    assert code == 1
    assert {"unreadable", "damaged"} <= {*names(found["warnings"])}


def test_damage_that_a_new_producer_would_meet(fake_kafka, producers, health):
    fake_kafka.refuse()
    servers = fake_kafka.bootstrap_servers
    leave_records(producers, servers, client_id="orders").close(timeout=0)
    damage_lane(producers.spool / "lane-000")
    code, found = health(producers.spool)
    assert (code, found["ready"], names(found["reasons"])) == (1, False, ["start_fails"])
    assert "lane-000: a producer with client_id='orders' would start on" in found["reasons"][0]["text"]
    with pytest.raises(SpoolCorruptError) as raised:
        producers(servers, client_id="orders")
    assert str(raised.value).splitlines()[0] in found["reasons"][0]["text"]
    with producers(servers, client_id="orders", on_corrupt="quarantine") as producer:
        producer.close(timeout=0)
    # The copy in quarantine/ proves that the damage was reported.
    code, found = health(producers.spool)
    assert (code, found["ready"], names(found["reasons"])) == (1, True, [])
    assert "damaged" in names(found["warnings"])


def test_damage_of_a_lane_that_no_new_producer_starts_on(fake_kafka, producers, health):
    fake_kafka.refuse()
    servers = fake_kafka.bootstrap_servers
    first = leave_records(producers, servers, client_id="orders")
    second = leave_records(producers, servers, client_id="orders")
    second.close(timeout=0)
    damage_lane(producers.spool / "lane-001")
    assert names(health(producers.spool)[1]["reasons"]) == ["start_fails"]
    first.close(timeout=0)
    code, found = health(producers.spool)
    assert (code, found["ready"], names(found["reasons"])) == (1, True, [])
    assert "damaged" in names(found["warnings"])
    producers(servers, client_id="orders").close(timeout=0)


def test_an_unreadable_lane_that_a_new_producer_would_meet(fake_kafka, producers, health):
    fake_kafka.refuse()
    leave_records(producers, fake_kafka.bootstrap_servers).close(timeout=0)
    (segment,) = (producers.spool / "lane-000").glob("*.log")
    segment.unlink()
    segment.mkdir()
    code, found = health(producers.spool)
    assert (code, found["ready"], names(found["reasons"])) == (1, False, ["start_fails"])
    with pytest.raises(SpoolError, match="cannot be opened"):
        producers(fake_kafka.bootstrap_servers)


@pytest.fixture
def shared_spool(fake_kafka):
    """A spool directory that every user may read. Users other than its owner cannot reach pytest's directories."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        Path(directory).chmod(0o755)
        spool = Path(directory) / "spool"
        SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=spool).close()
        for path in (spool, *spool.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield spool


@pytest.mark.crash
@pytest.mark.parametrize("place", ["FORMAT", "", "lane-000", "lane-000/lock"])
def test_a_user_who_may_not_write(shared_spool, zygote, tmp_path, health, place):
    """It said READY. A producer that this user started raised `SpoolError`."""
    assert health(shared_spool)[0] == 0
    for path in (shared_spool, *shared_spool.rglob("*")):
        path.chmod(0o777)
    if not place:
        shutil.rmtree(shared_spool / "lane-000")  # so a start makes a lane
    blocked = shared_spool / place
    blocked.chmod(0o555 if blocked.is_dir() else 0o444)
    told = {}
    # With its lock, a lane that cannot be written is opened nevertheless.
    starts = () if place == "lane-000" else (lives.unwritable,)
    for life in (lives.health_of_another_user, *starts):
        result = shared_spool.parent / life.__name__
        result.touch()
        result.chmod(0o666)
        other = zygote.fork(life, tmp_path / "log", spool=str(shared_spool), result=str(result))
        assert other.wait() == 0, other.tail()
        told[life.__name__] = result.read_text()
    (reason,) = json.loads(told["health_of_another_user"])["reasons"]
    assert reason["name"] == "not_writable"
    assert f"the user may not write {blocked}. " in reason["text"]
    assert "must be writable by the producers' user" in reason["text"]
    assert not starts or re.match(r"SpoolError: .*Permission denied", told["unwritable"])


@pytest.mark.crash
@pytest.mark.parametrize("copied", [False, True])
def test_a_spool_that_was_taken_away_from_its_process(fake_kafka, zygote, tmp_path, health, copied):
    """A copy in its place has the lock's text, and not the lock."""
    fake_kafka.refuse()
    spool = tmp_path / "spool"
    life = zygote.fork(
        lives.promise,
        tmp_path / "log",
        servers=fake_kafka.bootstrap_servers,
        topic="orders",
        spool=str(spool),
        book=str(tmp_path / "book"),
        first=0,
        options={},
    )
    try:
        life.until(tmp_path / "book")
        harness.until(lambda: (tmp_path / "book").read_text().count("\n") > 5)
        assert health(spool)[1]["lanes"][0]["owner_pid"] == life.pid
        if copied:
            os.kill(life.pid, 19)  # SIGSTOP: before it fetches its directory
            shutil.move(spool, tmp_path / "away")
            shutil.copytree(tmp_path / "away", spool)
            code, found = health(spool)
            assert (code, found["ready"], names(found["reasons"])) == (1, False, ["spool_displaced"])
            assert found["lanes"][0]["strays_to"] == str(tmp_path / "away" / "lane-000")
            shutil.rmtree(spool)
            shutil.move(tmp_path / "away", spool)
            os.kill(life.pid, 18)
    finally:
        life.kill()
    code, found = health(spool)
    assert (code, found["ready"], names(found["warnings"])) == (1, True, ["no_owner"])
    assert found["lanes"][0]["owner_pid"] is None


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--max-age", "soon"], 2), (["--spool-max-bytes", "1"], 2), ([], 2)],
    ids=["an age", "a size", "no directory"],
)
def test_what_is_wrong_with_the_command_line(tmp_path, health, arguments, code):
    ended, found = health(tmp_path, *arguments)
    assert (ended, found["code"]) == (code, code)
