"""Several processes on one spool directory, and forks."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from pathlib import Path

import harness
import pytest

from kafkasafe import SafeProducer, events
from kafkasafe.errors import ForkedProcessError, LaneBusyError

pytestmark = [pytest.mark.kafka, pytest.mark.crash]


def test_each_process_has_a_lane_of_its_own_and_a_dead_ones_lane_is_drained(
    broker, zygote, producers, tmp_path
):
    """The dead one's answers were lost, too: what it had in doubt is decided by who adopts its lane."""
    cluster = broker.cluster
    topic = harness.new_topic(cluster, 1)
    seen: list = []
    survivor = producers(broker.servers, on_event=seen.append, linger_ms=1)
    assert survivor.lane == "lane-000"
    processes = []
    for number in range(2):
        ready, go = tmp_path / f"ready{number}", tmp_path / "go"
        life = zygote.burst(
            tmp_path,
            broker.servers,
            topic,
            ready,
            [1000 * number, 1000 * number + 300],
            spool=survivor.spool_dir,
            go=go,
            first=1,
            batches_of=30,
        )
        life.until(Path(f"{ready}.first"))
        processes.append((life, ready))
    lanes = sorted(path.name for path in Path(survivor.spool_dir).glob("lane-*"))
    assert lanes == ["lane-000", "lane-001", "lane-002"]
    # Each owner is named, and nobody else gets its lane.
    for number, (life, _) in enumerate(processes, 1):
        with pytest.raises(LaneBusyError, match=f"process {life.pid}") as caught:
            producers(broker.servers, spool_lane=number)
        assert caught.value.pid == life.pid
    broker.proxy.drop_responses()
    (tmp_path / "go").touch()
    for life, ready in processes:
        life.until(ready)
        time.sleep(0.1)
        assert life.kill() == -9
    broker.proxy.restore()
    # The survivor goes on with its own records meanwhile.
    for number in range(2000, 2300):
        harness.send(survivor, topic, number)
    survivor.flush(60)
    promised = [*range(300), *range(1000, 1300), *range(2000, 2300)]
    harness.until(
        lambda: broker.end_offset(topic) >= len(promised), 120, "the dead ones' lanes to be drained"
    )
    survivor.flush(60)
    log = harness.read_log(broker.servers, topic)
    harness.audit(log, promised, ordered=False)
    numbers = harness.numbers_of(log[0])
    for begin in (0, 1000, 2000):
        own = [number for number in numbers if begin <= number < begin + 1000]
        assert own == sorted(own)
    assert sorted(event.lane for event in seen if isinstance(event, events.LaneAdopted)) == lanes[1:]
    # Nothing is left for anybody, and the lanes are free again.
    harness.until(lambda: _adoptable(producers, broker, 2), 120, "the adopted lanes to be let go")


def _adoptable(producers, broker, lane: int) -> bool:
    try:
        producer = producers(broker.servers, spool_lane=lane)
    except LaneBusyError:
        return False
    waiting = producer.metrics()["kafkasafe"]["unfinished_batches"]
    producer.close()
    assert waiting == 0
    return True


def test_lanes_never_have_two_owners(kafka, zygote, tmp_path):
    """Processes that start and die all the time, and adopt each other's lanes meanwhile."""
    topic = harness.new_topic(kafka, 2)
    log = tmp_path / "lives.log"
    begin = 0
    promised: list[int] = []
    running: list[tuple[harness.Life, Path, range]] = []
    for round_ in range(24):
        ready = tmp_path / f"ready{round_}"
        numbers = range(begin, begin + 60)
        begin += 60
        life = zygote.burst(
            tmp_path,
            kafka.bootstrap_servers,
            topic,
            ready,
            [numbers.start, numbers.stop],
            options={"request_timeout_ms": 3000},
        )
        running.append((life, ready, numbers))
        if len(running) == 4:
            oldest, file, its = running.pop(0)
            if round_ % 3:
                oldest.until(file)
            else:
                time.sleep(0.05)
            promised += its if file.exists() else ()
            assert oldest.kill() == -9
            _owners_differ(tmp_path / "spool", [other.pid for other, made, _ in running if made.exists()])
    for life, file, its in running:
        life.until(file)
        promised += its
        life.kill()
    with SafeProducer(bootstrap_servers=kafka.bootstrap_servers, spool_dir=tmp_path / "spool") as last:

        def delivered() -> bool:
            last.flush(60)
            found = harness.read_log(kafka.bootstrap_servers, topic)
            return set(promised) <= {n for records in found.values() for n in harness.numbers_of(records)}

        harness.until(delivered, 120, f"everything to be delivered: {log}")
    found = harness.read_log(kafka.bootstrap_servers, topic)
    harness.audit(found, promised, ordered=False, note=log)
    for records in found.values():
        numbers = harness.numbers_of(records)
        for first in range(0, begin, 60):
            own = [number for number in numbers if first <= number < first + 60]
            assert own == sorted(own)


def _owners_differ(spool: Path, living: list[int]) -> None:
    """The kernel's own list of locks: every living process has a lane, and no lane has two owners."""
    inodes = {path.stat().st_ino: path.parent.name for path in spool.glob("lane-*/lock")}
    owners: dict[str, list[int]] = {}
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if "FLOCK" in fields and "->" not in fields:
            lane = inodes.get(int(fields[5].split(":")[-1]))
            if lane:
                owners.setdefault(lane, []).append(int(fields[4]))
    assert all(len(pids) == 1 for pids in owners.values()), owners
    assert set(living) <= {pid for pids in owners.values() for pid in pids}, (owners, living)


def test_a_forked_child_is_refused_and_the_parent_unharmed(kafka, producers, tmp_path):
    topic = harness.new_topic(kafka, 1)
    producer = producers(kafka.bootstrap_servers, linger_ms=50)
    for number in range(100):
        harness.send(producer, topic, number)
    result = tmp_path / "child"
    read, write = os.pipe()
    stacks = (tmp_path / "stacks").open("w")
    pid = os.fork()
    if not pid:
        # No assertion may escape into pytest's own code in here.
        faulthandler.dump_traceback_later(20, file=stacks)
        texts = []
        for call in (
            lambda: producer.send(topic, b"x"),
            lambda: producer.flush(1),
            lambda: producer.durable(1),
            lambda: producer.partitions_for(topic),
            lambda: producer.resolve_undecidable(resend=True),
        ):
            try:
                call()
                texts.append("nothing raised")
            except ForkedProcessError as error:
                texts.append(f"ForkedProcessError: {error}")
            except BaseException as error:
                texts.append(repr(error))
        try:
            producer.close()
            texts.append("closed")
        except BaseException as error:
            texts.append(repr(error))
        try:
            own = SafeProducer(bootstrap_servers=kafka.bootstrap_servers, spool_dir=producer.spool_dir)
            harness.send(own, topic, 1000).get(60)
            texts.append(own.lane)
            own.close()
        except BaseException as error:
            texts.append(repr(error))
        result.write_text("\n".join(texts))
        os.write(write, b".")
        os._exit(0)
    try:
        # The parent works while the child does.
        for number in range(100, 200):
            harness.send(producer, topic, number)
        producer.flush(60)
    finally:
        os.read(read, 1)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)
        stacks.close()
    *refusals, closed, lane = result.read_text().splitlines()
    assert len(refusals) == 5
    for text in refusals:
        assert text.startswith("ForkedProcessError: "), text
        assert "the parent process owns it" in text
        assert "Open a new SafeProducer in the child" in text
    assert closed == "closed"
    assert lane == "lane-001", (tmp_path / "stacks").read_text()
    for number in range(200, 300):
        harness.send(producer, topic, number)
    producer.close()
    log = harness.read_log(kafka.bootstrap_servers, topic)
    harness.audit(log, [*range(300), 1000], ordered=False)
    numbers = [number for number in harness.numbers_of(log[0]) if number < 1000]
    assert numbers == sorted(numbers)


def test_forks_in_the_midst_of_everything(kafka, producers):
    """A fork at any moment: locks held, a write under way. The children do nothing and leave."""
    topic = harness.new_topic(kafka, 1)
    producer = producers(kafka.bootstrap_servers, linger_ms=0)
    stop = threading.Event()
    sent = 0

    def send() -> None:
        nonlocal sent
        while not stop.is_set():
            harness.send(producer, topic, sent)
            sent += 1
            time.sleep(0.0005)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for _ in range(20):
            pid = os.fork()
            if not pid:
                try:
                    producer.send(topic, b"x")
                except ForkedProcessError:
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0
            time.sleep(0.02)
    finally:
        stop.set()
        sender.join()
    producer.close()
    harness.audit(harness.read_log(kafka.bootstrap_servers, topic), range(sent))
