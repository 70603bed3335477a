"""Brokers that restart, forget, fail over or are not there, and answers that never arrive."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path

import harness
import numpy as np
import pytest
from kafka import KafkaProducer

from kafkasafe import events
from kafkasafe.demo.ledger import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

TWO_DAYS_MS = 2 * 24 * 3600 * 1000


def nothing(broker: harness.Proxied, topic: str) -> None:
    """The broker stays as it is."""


def restart(broker: harness.Proxied, topic: str) -> None:
    """Afterwards it knows one batch per producer instead of five."""
    broker.cluster.restart(1)


def crash(broker: harness.Proxied, topic: str) -> None:
    broker.cluster.restart(1, hard=True)


def expire(broker: harness.Proxied, topic: str) -> None:
    """It takes any sequence from anybody now: what is sent again blindly is there twice."""
    broker.cluster.expire_producers([topic])


def old(broker: harness.Proxied, topic: str) -> None:
    """A restart drops the state of producers whose batches carry old timestamps, whenever they were appended."""
    broker.cluster.restart(1, hard=True)


FAULTS = [nothing, restart, crash, expire, old]


class Doubt:
    """A producing process whose records get into the log while none of the answers arrives."""

    def __init__(self, broker, zygote, tmp_path: Path, topic: str, fault) -> None:
        self.broker, self.zygote, self.tmp_path, self.topic, self.fault = (
            broker,
            zygote,
            tmp_path,
            topic,
            fault,
        )
        self.stamp = int(time.time() * 1000) - TWO_DAYS_MS if fault is old else None
        self.sent = 0
        self.lives = 0

    def life(self, *, batches: int = 12, arriving: int = 5) -> None:
        """The process is killed when its first `arriving` batches, five records each, are in the log.

        It has made all its batches durable by then; before answers are lost one record of it is acknowledged.
        """
        self.lives += 1
        ready, go = self.tmp_path / f"ready{self.lives}", self.tmp_path / f"go{self.lives}"
        begin, end = self.sent, self.sent + 1 + 5 * batches
        life = self.zygote.burst(
            self.tmp_path,
            self.broker.servers,
            self.topic,
            ready,
            [begin, end],
            go=go,
            first=1,
            timestamp_ms=self.stamp,
            options={"linger_ms": 60_000},  # however slow the machine is: five records are one batch
        )
        life.until(Path(f"{ready}.first"))
        before = self.broker.end_offset(self.topic)
        self.broker.proxy.drop_responses()
        go.touch()
        life.until(ready)
        # Of an old batch a broker may forget the producer any time: such ones go one by one.
        wanted = before + 5 * (1 if self.stamp else arriving)
        harness.until(
            lambda: self.broker.end_offset(self.topic) == wanted, 120, "the batches to be in the log"
        )
        self.sent = end
        assert life.kill() == -9

    def resume(self, producers, **options) -> dict:
        """The next life delivers everything, once, in order. Returns its counters."""
        producer = producers(self.broker.servers, **options)
        producer.flush(60)
        counters = producer.metrics()["kafkasafe"]
        last = harness.send(producer, self.topic, self.sent).get(60)
        self.sent += 1
        producer.close()
        assert last.offset == self.sent - 1
        harness.audit(harness.read_log(self.broker.servers, self.topic), range(self.sent))
        return counters


@pytest.mark.parametrize("fault", FAULTS)
def test_killed_while_answers_are_lost(broker, zygote, producers, tmp_path, fault):
    doubt = Doubt(broker, zygote, tmp_path, harness.new_topic(broker.cluster, 1), fault)
    doubt.life()
    fault(broker, doubt.topic)
    broker.proxy.restore()
    counters = doubt.resume(producers, request_timeout_ms=3000)
    assert counters["in_doubt_asked"] >= 5


def test_killed_again_and_again_while_answers_are_lost(broker, zygote, producers, tmp_path):
    """Several lives' batches in doubt at once, each under an id of its own, in a log that forgot them all."""
    doubt = Doubt(broker, zygote, tmp_path, harness.new_topic(broker.cluster, 1), crash)
    doubt.life(batches=7)
    broker.proxy.restore()
    doubt.life(batches=9)
    crash(broker, doubt.topic)
    broker.proxy.restore()
    doubt.life(batches=4, arriving=4)
    expire(broker, doubt.topic)
    broker.proxy.restore()
    doubt.resume(producers, request_timeout_ms=3000)


def test_nothing_of_the_batches_in_doubt_arrived(broker, zygote, producers, tmp_path):
    """Requests are swallowed: the broker never saw what the process was killed with."""
    topic = harness.new_topic(broker.cluster, 1)
    ready, go = tmp_path / "ready", tmp_path / "go"
    life = zygote.burst(tmp_path, broker.servers, topic, ready, [0, 60], go=go, first=3)
    life.until(Path(f"{ready}.first"))
    broker.proxy.drop_requests()
    go.touch()
    life.until(ready)
    life.kill()
    broker.proxy.restore()
    producer = producers(broker.servers)
    producer.flush(60)
    harness.audit(harness.read_log(broker.servers, topic), range(60))


@pytest.mark.parametrize("fault", FAULTS)
def test_answers_lost_to_a_living_producer(broker, producers, fault):
    topic = harness.new_topic(broker.cluster, 1)
    stamp = int(time.time() * 1000) - TWO_DAYS_MS if fault is old else None
    producer = producers(
        broker.servers, request_timeout_ms=1500, linger_ms=60_000
    )  # five records are one batch
    harness.send(producer, topic, 0, timestamp_ms=stamp).get(60)
    broker.proxy.drop_responses()
    futures = []
    for number in range(1, 61):
        futures.append(harness.send(producer, topic, number, timestamp_ms=stamp))
        if number % 5 == 0:
            futures[-1].durable(60)
    wanted = 1 + 5 * (1 if stamp else 5)
    harness.until(lambda: broker.end_offset(topic) >= wanted, 120, "the batches to be in the log")
    fault(broker, topic)
    broker.proxy.restore()
    producer.flush(60)
    # The answers that named the offsets are lost; the log has them.
    assert [future.get(0).offset for future in futures] == list(range(1, 61))
    producer.close()
    harness.audit(harness.read_log(broker.servers, topic), range(61))


def test_a_wire_that_does_everything_wrong(broker, zygote, tmp_path):
    """Cuts, stalls, delays and lost bytes at random, and a process that is killed meanwhile."""
    rnd = random.Random(seed := random.SystemRandom().getrandbits(31))
    topic = harness.new_topic(broker.cluster, 3)
    ledger = Ledger(tmp_path / "ledger", 400_000)
    ledger.set_limit(400_000)
    note = f"seed {seed}, {tmp_path / 'lives.log'}"

    def live() -> harness.Life:
        return zygote.stream(
            tmp_path,
            broker.servers,
            topic,
            rnd.getrandbits(31),
            pause_s=0.002,
            options={"request_timeout_ms": 700, "batch_size": 20_000, "linger_ms": 1},
        )

    proxy = broker.proxy
    faults = [
        proxy.drop_responses,
        proxy.drop_requests,
        proxy.stall,
        proxy.cut,
        proxy.refuse,
        lambda: proxy.delay(response_s=0.2),
        lambda: proxy.cut_after(rnd.randrange(1, 100_000)),
    ]
    life = live()
    for round_ in range(16):
        rnd.choice(faults)()
        time.sleep(rnd.uniform(0.05, 0.8))
        if round_ % 4 == 3:
            assert life.kill() == -9, f"it ended by itself: {note}\n{life.tail()}"
            life = live()
        proxy.restore()
        time.sleep(rnd.uniform(0.05, 0.3))
    settle(ledger, life, note)
    harness.audit(harness.read_log(broker.servers, topic), promised(ledger), note=note)


def settle(ledger: Ledger, life: harness.Life, note: str) -> None:
    """No more records; everything sent gets its fate, and the process ends in order."""
    ledger.set_limit(ledger.next_number())
    # A record or two may have been on its way past the limit.
    harness.until(lambda: ledger.settled == ledger.next_number() or life.ended() is not None, 150, note)
    ledger.ask_stop()
    assert life.wait() == 0, f"{note}\n{life.tail()}"
    assert not ledger["failed"].any()


def promised(ledger: Ledger) -> list[int]:
    numbers = np.flatnonzero(ledger["durable"] | ledger["acked"]).tolist()
    assert len(numbers) > 1000
    return numbers


def test_no_broker_for_the_whole_first_life(broker, zygote, producers, tmp_path):
    """Records wait without even a partition; who delivers them puts them where KafkaProducer would."""
    topic = harness.new_topic(broker.cluster, 7)
    reference = harness.new_topic(broker.cluster, 7)
    broker.cluster.kill_all()
    sent = 0
    for number in range(3):
        ready = tmp_path / f"ready{number}"
        life = zygote.burst(
            tmp_path,
            broker.servers,
            topic,
            ready,
            [sent, sent + 500],
            batches_of=50,
            options={"compression_type": [None, "gzip", None][number]},
        )
        life.until(ready)
        assert life.kill() == -9
        sent += 500
    # An orderly life that had no broker either.
    with producers(broker.servers) as producer:
        futures = [harness.send(producer, topic, number) for number in range(sent, sent + 500)]
        futures[-1].durable(60)
        assert not producer.bootstrap_connected()
        with pytest.raises(harness.kafka_errors.KafkaTimeoutError, match="in the spool"):
            producer.flush(0.5)
        producer.close(timeout=0)
    sent += 500
    broker.cluster.start_all()
    producer = producers(broker.servers)
    futures = [harness.send(producer, topic, number) for number in range(sent, sent + 500)]
    sent += 500
    producer.flush(60)
    assert all(future.succeeded() for future in futures)
    producer.close()
    log = harness.read_log(broker.servers, topic)
    harness.audit(log, range(sent))
    keys = {record.key: partition for partition, records in log.items() for record in records if record.key}
    assert len(keys) == 61
    plain = KafkaProducer(bootstrap_servers=broker.servers)
    theirs = {key: plain.send(reference, b"x", key) for key in keys}
    plain.flush(60)
    assert keys == {key: future.get(60).partition for key, future in theirs.items()}
    plain.close()


def test_leaders_fail_over_while_records_flow(kafka_cluster, zygote, tmp_path):
    topic = harness.new_topic(kafka_cluster, 3)
    ledger = Ledger(tmp_path / "ledger", 400_000)
    ledger.set_limit(400_000)
    log = tmp_path / "lives.log"
    seeds = itertools.count(1)

    def live() -> harness.Life:
        return zygote.stream(
            tmp_path,
            kafka_cluster.bootstrap_servers,
            topic,
            next(seeds),
            pause_s=0.02,
            options={"request_timeout_ms": 3000, "batch_size": 20_000},
        )

    def more(records: int) -> None:
        wanted = int(ledger["acked"].sum()) + records
        harness.until(
            lambda: ledger["acked"].sum() >= wanted or life.ended() is not None,
            600,  # on a busy machine what waits for the disks of three brokers grows by tens of thousands
            f"acknowledgements: {log}",
        )
        assert life.ended() is None, life.tail()

    life = live()
    more(300)
    # kill -9 of a leader; the process stays.
    leader = kafka_cluster.leader(topic, 0)
    kafka_cluster.kill(leader)
    more(300)
    kafka_cluster.start(leader)
    kafka_cluster.wait_in_sync(topic, 0)
    # A leader that hangs, is replaced, and comes back believing that it still leads.
    leader = kafka_cluster.leader(topic, 1)
    kafka_cluster.pause(leader)
    more(300)
    kafka_cluster.resume(leader)
    kafka_cluster.wait_in_sync(topic, 1)
    # An orderly move, in which the process is killed.
    kafka_cluster.move_leader(topic, 2)
    life.kill()
    life = live()
    more(300)
    # Everything at once.
    kafka_cluster.kill_all()
    life.kill()
    life = live()
    kafka_cluster.start_all()
    more(300)
    settle(ledger, life, str(log))
    harness.audit(harness.read_log(kafka_cluster.bootstrap_servers, topic), promised(ledger), note=log)


def test_acknowledged_records_that_are_lost_are_noticed_and_put_back(broker, producers):
    """An acknowledgement at an offset that was acknowledged before: the log that had it is gone."""
    topic = harness.new_topic(broker.cluster, 1)
    seen: list = []
    producer = producers(broker.servers, on_event=seen.append, request_timeout_ms=3000)
    for number in range(10):
        harness.send(producer, topic, number).get(60)
    broker.cluster.lose_log(topic)
    harness.send(producer, topic, 10)
    producer.flush(60)
    healed: list = []

    def told() -> bool:
        healed[:] = [event for event in seen if isinstance(event, events.LostRecordsRestored)]
        return bool(healed)

    harness.until(told, what="the records to be put back")
    (lost,) = [event for event in seen if isinstance(event, events.DataLost)]
    assert (lost.topic, lost.partition, lost.first_offset, lost.last_offset) == (topic, 0, 0, 9)
    producer.close()
    # Behind what noticed it, or before: once each, and in their own order.
    numbers = harness.numbers_of(harness.read_log(broker.servers, topic)[0])
    assert sorted(numbers) == list(range(11))
    assert [number for number in numbers if number < 10] == list(range(10))
