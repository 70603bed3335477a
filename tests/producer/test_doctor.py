"""`kafkasafe doctor` on spools of killed producers: what it says is what the log holds, batch by batch."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import harness
import lives
import pytest
from commands import run
from kafka import TopicPartition
from kafka.record import MemoryRecords

from kafkasafe.demo.ledger import Ledger
from kafkasafe.maintenance.examination import read_content
from kafkasafe.record import batch as codec
from kafkasafe.spool.files import OsFiles

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

KILLS = 10

# To repeat a failure: KAFKASAFE_TEST_SEED=<the seed it names>.
SEED = int(os.environ.get("KAFKASAFE_TEST_SEED", "0")) or random.SystemRandom().getrandbits(31)


def diagnose(capsys, spool, servers, *more):
    # One replica is what these tests have; what is said of it is looked at elsewhere.
    code, out, err = run(capsys, "doctor", spool, "-b", ",".join(servers), "--json", *more)
    assert code in {0, 1}, err
    return json.loads(out)


def batches_in(cluster, topic, partitions):
    """What the broker's files hold, read by kafka-python: where each (partition, id, epoch, sequence) is."""
    found = {}
    for partition in range(partitions):
        for segment in cluster.log_segments(topic, partition, 1):
            records = MemoryRecords(segment.read_bytes())
            while (batch := records.next_batch()) is not None:
                key = partition, batch.producer_id, batch.producer_epoch, batch.base_sequence
                found.setdefault(key, []).append((batch.base_offset, batch.records_count))
    return found


def state_of(directory: Path):
    """Every byte of it, and when it was written."""
    return {
        str(path.relative_to(directory)): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in directory.rglob("*")
    }


def numbers_of(spool: Path):
    """By (lane, position), the numbers of the records in it."""
    found = {}
    for lane in sorted(spool.glob("lane-*")):
        content = read_content(lane, files=OsFiles())
        for batch in content.batches:
            values = codec.decode(content.data(batch)).values
            found[lane.name, batch.position] = [int(value[: lives.DIGITS]) for value in values]
    return found


def options(rnd):
    return {
        "spool": rnd.choice(["always", "always", "on_error"]),
        "compression_type": rnd.choice([None, "gzip"]),
        "linger_ms": rnd.choice([0, 1, 5]),
        "batch_size": rnd.choice([500, 5000, 100_000]),
        "spool_segment_bytes": 2 * 1024 * 1024,
        "spool_max_bytes": 64 * 1024 * 1024,
        "retain_acked_bytes": rnd.choice([0, 1_000_000]),
        "request_timeout_ms": 3000,
        "spool_after_ms": 20,
        "max_request_size": 200_000,
    }


def test_what_the_doctor_says_is_what_the_log_holds(broker, zygote, tmp_path, capsys):
    """Killed with -9 at seeded moments, while the wire loses answers, loses requests, stalls or is cut."""
    rnd = random.Random(SEED)
    note = f"seed {SEED}"
    partitions = 3
    topic = harness.new_topic(broker.cluster, partitions)
    spool, ledger = tmp_path / "spool", Ledger(tmp_path / "ledger", 100_000)
    seen = {"committed": 0, "absent": 0, "not_sent": 0}
    for number in range(KILLS):
        ledger.set_limit(ledger.next_number() + rnd.choice((100, 600, 2000)))
        life = zygote.stream(
            tmp_path, broker.servers, topic, rnd.getrandbits(31), spool=spool, options=options(rnd)
        )
        before = ledger["durable"].sum()
        harness.until(lambda: ledger["durable"].sum() > before or life.ended() is not None, 120, note)  # noqa: B023
        time.sleep(rnd.random() * 0.2)
        fault = rnd.choice(["drop_responses", "drop_requests", "stall", "refuse", ""])
        if fault:
            getattr(broker.proxy, fault)()
            time.sleep(rnd.random() * 0.3)
        assert life.kill() == -9, f"it ended by itself: {note}\n{life.tail()}"
        broker.proxy.cut()
        broker.proxy.restore()
        taken = tmp_path / f"taken-{number}"
        shutil.copytree(spool, taken)
        untouched = state_of(taken)
        for _ in range(20):
            # What was on its way when it was killed may still arrive.
            log = batches_in(broker.cluster, topic, partitions)
            told = diagnose(capsys, taken, broker.servers)
            if log == batches_in(broker.cluster, topic, partitions):
                break
        contents = numbers_of(taken)
        in_log = {n for records in read_numbers(broker, topic).values() for n in records}
        waiting = {
            (lane.name, batch.position)
            for lane in sorted(taken.glob("lane-*"))
            for _, _, batch in read_content(lane, files=OsFiles()).journal.views.batches()
        }
        assert {(row["lane"], row["position"]) for row in told["batches"]} == waiting, note
        for row in told["batches"]:
            where = f"{row} ({note}, kill {number}, {fault or 'no fault'})"
            key = row["partition"], row["producer_id"], row["producer_epoch"], row["base_sequence"]
            held = log.get(key, [])
            seen[row["finding"]] = seen.get(row["finding"], 0) + 1
            if row["finding"] == "committed":
                assert [(offset, row["records"]) for offset in row["offsets"]] == held, where
            else:
                # One broker without compaction or retention: everything can be known.
                assert row["finding"] in {"absent", "not_sent"}, where
                assert not held, where
                assert row["offsets"] == [], where
            there = [n in in_log for n in contents[row["lane"], row["position"]]]
            assert all(there) if row["finding"] == "committed" else not any(there), where
        assert state_of(taken) == untouched, "it wrote"
        shutil.rmtree(taken)
    assert seen["committed"], (seen, note)
    assert seen["absent"], (seen, note)
    # The next producer finds what the doctor found: nothing is lost, nothing twice.
    with harness.Producers(spool) as producers:
        producers(broker.servers, request_timeout_ms=3000).flush(120)
    harness.audit(harness.read_log(broker.servers, topic), (), note=note)


def read_numbers(broker, topic):
    return {p: harness.numbers_of(r) for p, r in harness.read_log(broker.servers, topic).items()}


def doubtful(broker, zygote, tmp_path, topic, count=20, **more):
    """A spool whose records are in the log, as the producer that was killed never heard."""
    ready, go = tmp_path / "ready", tmp_path / "go"
    life = zygote.burst(
        tmp_path,
        broker.servers,
        topic,
        ready,
        [0, count],
        first=5,
        go=go,
        partition=0,
        options={"linger_ms": 0},
        **more,
    )
    life.until(Path(f"{ready}.first"))
    broker.proxy.drop_responses()
    go.touch()
    life.until(ready)
    harness.until(lambda: broker.end_offset(topic) >= 10, 120)
    return life


def test_a_trimmed_log_and_a_forgotten_producer_leave_nobody_who_knows(broker, zygote, tmp_path, capsys):
    topic = harness.new_topic(broker.cluster, 1)
    life = doubtful(broker, zygote, tmp_path, topic)
    life.kill()
    broker.proxy.restore()
    end = broker.end_offset(topic)
    rows = diagnose(capsys, tmp_path / "spool", broker.servers)["batches"]
    assert rows[0]["finding"] == "committed"
    assert rows[0]["offsets"] == [5]
    with broker.cluster.admin() as admin:
        admin.delete_records({TopicPartition(topic, 0): end})
    # The leader remembers still.
    rows = diagnose(capsys, tmp_path / "spool", broker.servers)["batches"]
    assert (rows[0]["finding"], rows[0]["offsets"]) == ("committed", [])
    assert "the leader remembers producer id" in rows[0]["evidence"]
    broker.cluster.expire_producers([topic])
    code, out, _ = run(capsys, "doctor", tmp_path / "spool", "-b", ",".join(broker.servers))
    assert code == 1
    assert "UNDECIDABLE" in out
    assert f"the log begins at {end}, the batch could be from 5 on" in out


def test_a_living_producer_is_not_disturbed(broker, zygote, tmp_path, capsys):
    topic = harness.new_topic(broker.cluster, 1)
    life = doubtful(broker, zygote, tmp_path, topic)
    spool = tmp_path / "spool"
    os.kill(life.pid, signal.SIGSTOP)  # it owns the lane, and whatever changes now was not changed by it
    broker.proxy.restore()
    before = state_of(spool)
    told = diagnose(capsys, spool, broker.servers)
    assert told["lanes"][0]["owner_pid"] == life.pid
    assert told["batches"][0]["finding"] == "committed"
    for command in ("ls", "show", "verify"):
        assert run(capsys, "spool", command, spool)[0] == 0
    code, out, _ = run(capsys, "spool", "repair", spool, "--apply")
    assert (code, "belongs to process" in out) == (3, True)
    assert state_of(spool) == before
    life.kill()
    told = diagnose(capsys, spool, broker.servers)
    assert told["lanes"][0]["owner_pid"] is None


def test_offline_nothing_that_may_have_been_sent_is_decided(broker, zygote, tmp_path, capsys):
    topic = harness.new_topic(broker.cluster, 1)
    doubtful(broker, zygote, tmp_path, topic).kill()
    code, out, _ = run(capsys, "doctor", tmp_path / "spool")
    assert code == 0
    assert "NOT KNOWN\n    the cluster was not asked" in out
    # Nobody answers: that is no verdict either.
    code, out, err = run(
        capsys, "doctor", tmp_path / "spool", "-b", harness.dead_address(), "--timeout", "1s"
    )
    assert (code, out) == (3, "")
    assert re.search(r"No broker at \S+ answered within 1 s", err)


def test_settings_that_break_a_promise_are_named(broker, zygote, tmp_path, capsys):
    topic = harness.new_topic(
        broker.cluster, 1, config={"retention.ms": 3_600_000, "unclean.leader.election.enable": "true"}
    )
    doubtful(broker, zygote, tmp_path, topic).kill()
    broker.proxy.restore()
    told = diagnose(capsys, tmp_path / "spool", broker.servers, "--outage", "2d")
    named = {(row["setting"], row["level"]) for row in told["settings"]}
    assert named >= {
        ("replication factor", "breaks"),
        ("min.insync.replicas", "breaks"),
        ("unclean.leader.election.enable", "breaks"),
        ("retention.ms", "breaks"),
        ("producer.id.expiration.ms", "note"),
    }
    assert not told["ok"]
    shorter = diagnose(capsys, tmp_path / "spool", broker.servers, "--outage", "30m")
    assert "retention.ms" not in {row["setting"] for row in shorter["settings"]}
    told = diagnose(capsys, tmp_path / "spool", broker.servers, "--producer-id-expiration", "10d")
    assert ("producer.id.expiration.ms", "breaks") in {(r["setting"], r["level"]) for r in told["settings"]}


def test_another_cluster_is_not_asked(broker, kafka, zygote, tmp_path, capsys):
    topic = harness.new_topic(broker.cluster, 1)
    doubtful(broker, zygote, tmp_path, topic).kill()
    code, out, err = run(capsys, "doctor", tmp_path / "spool", "-b", ",".join(kafka.bootstrap_servers))
    assert (code, out) == (3, "")
    assert f"holds records for cluster {broker.cluster.cluster_id}" in err
