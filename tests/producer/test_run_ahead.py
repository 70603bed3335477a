"""`run_ahead_bytes`: a sender waits for a cluster that answers, and for no other."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from kafkasafe import ConfigError, SafeProducer
from kafkasafe.aio import SafeProducer as AsyncProducer
from kafkasafe.errors import ProducerClosedError
from kafkasafe.testing import FakeCluster

MIB = 1024 * 1024
VALUE = b"x" * 50_000
AHEAD = 2 * MIB
# A batch that is open or being encoded is not counted, and futures hear of a delivery a moment later.
SLACK = AHEAD // 2


def options(cluster: FakeCluster, tmp_path, **more):
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "spool_dir": tmp_path / "spool",
        "run_ahead_bytes": AHEAD,
        "batch_size": 100_000,
        **more,
    }


@pytest.fixture
def cluster():
    with FakeCluster(brokers=2) as running:
        running.create_topic("orders", partitions=2)
        running.move_leader("orders", 0, to=1)
        running.move_leader("orders", 1, to=2)
        yield running


@pytest.fixture
def patient(monkeypatch):
    """A cluster that answers late, on a machine that has other things to do, is still one that answers."""
    monkeypatch.setattr("kafkasafe.limits.run_ahead.PATIENCE_S", 60.0)


def outstanding(futures) -> int:
    return len(VALUE) * sum(not future.is_done for future in futures)


@pytest.mark.parametrize(
    ("spool", "delivery"), [("always", "idempotent"), ("always", "transactional"), ("on_error", "idempotent")]
)
@pytest.mark.usefixtures("patient")
def test_a_sender_runs_no_further_ahead_of_a_cluster_that_answers(cluster, tmp_path, spool, delivery):
    with SafeProducer(**options(cluster, tmp_path, spool=spool, delivery=delivery)) as producer:
        producer.send("orders", VALUE, partition=0).get(30)
        cluster.delay(0.05)
        futures, most = [], 0
        for _ in range(200):
            futures.append(producer.send("orders", VALUE, partition=0))
            most = max(most, outstanding(futures))
        assert AHEAD // 2 < most <= AHEAD + SLACK
        producer.flush(30)
    assert len(cluster.values("orders")) == 201


@pytest.mark.usefixtures("patient")
def test_an_atomic_batch_waits_as_well(cluster, tmp_path):
    with SafeProducer(**options(cluster, tmp_path)) as producer:
        outcomes, most = [], 0
        cluster.delay(0.05)
        for _ in range(100):
            with producer.batch() as batch:
                batch.send("orders", VALUE, partition=0)
                batch.send("orders", VALUE, partition=1)
            outcomes.append(batch.outcome)
            most = max(most, 2 * len(VALUE) * sum(not outcome.is_done for outcome in outcomes))
        assert AHEAD // 2 < most <= AHEAD + SLACK
        producer.flush(30)
    assert len(cluster.values("orders")) == 200


@pytest.mark.usefixtures("patient")
def test_tasks_wait_as_well(cluster, tmp_path):
    async def main() -> int:
        async with AsyncProducer(**options(cluster, tmp_path)) as producer:
            await (await producer.send("orders", VALUE, partition=0))
            cluster.delay(0.05)
            futures, most = [], 0
            for _ in range(200):
                futures.append(await producer.send("orders", VALUE, partition=0))
                most = max(most, len(VALUE) * sum(not future.done() for future in futures))
            await producer.flush(30)
            return most

    most = asyncio.run(main())
    assert AHEAD // 2 < most <= AHEAD + SLACK
    assert len(cluster.values("orders")) == 201


def test_without_the_option_nothing_waits(cluster, tmp_path):
    with SafeProducer(**options(cluster, tmp_path, run_ahead_bytes=None)) as producer:
        cluster.delay(0.3)
        futures = [producer.send("orders", VALUE, partition=0) for _ in range(200)]
        assert outstanding(futures) > 2 * AHEAD
        cluster.delay(0)
        producer.flush(30)


def test_a_sender_that_must_not_wait_does_not(cluster, tmp_path):
    with SafeProducer(**options(cluster, tmp_path, max_block_ms=0)) as producer:
        cluster.delay(0.3)
        futures = [producer.send("orders", VALUE, partition=0) for _ in range(200)]
        assert outstanding(futures) > 2 * AHEAD
        cluster.delay(0)
        producer.flush(30)


def test_a_partition_that_does_not_answer_stops_no_other_and_is_buffered(cluster, tmp_path):
    with SafeProducer(**options(cluster, tmp_path)) as producer:
        # With one replica each, the partition stays with the paused broker, however slow the machine is.
        cluster.create_topic("single", partitions=2, replication_factor=1)
        assert cluster.leader("single", 0) != cluster.leader("single", 1)
        for number in range(2):
            producer.send("single", VALUE, partition=number).get(30)
        paused = cluster.leader("single", 1)
        cluster.pause(paused)
        began = time.monotonic()
        alive, dead = [], []
        for _ in range(200):
            dead.append(producer.send("single", VALUE, partition=1))
            alive.append(producer.send("single", VALUE, partition=0))
        assert time.monotonic() - began < 20  # max_block_ms is 60 s, and a request's timeout 30
        assert outstanding(dead) == 200 * len(VALUE)
        for future in alive:
            future.get(30)
        cluster.resume(paused)
        producer.flush(60)
    assert len(cluster.values("single", 0)) == len(cluster.values("single", 1)) == 201


def test_an_outage_is_buffered_and_a_slow_sender_does_not_wait_for_its_end(cluster, tmp_path):
    with SafeProducer(**options(cluster, tmp_path, retry_backoff_ms=20)) as producer:
        producer.send("orders", VALUE, partition=0).get(30)
        cluster.kill_all()
        began = time.monotonic()
        futures = [producer.send("orders", VALUE, partition=0) for _ in range(400)]
        assert time.monotonic() - began < 20
        assert outstanding(futures) == 400 * len(VALUE)
        producer.durable(30)
        cluster.delay(0.05)
        cluster.start_all()
        futures[0].get(30)
        # One record for every four that are delivered, while megabytes wait.
        longest, delivered = 0.0, 0
        while outstanding(futures) > 2 * AHEAD:
            delivered += 4
            futures[delivered].get(30)
            began = time.monotonic()
            futures.append(producer.send("orders", VALUE, partition=0))
            longest = max(longest, time.monotonic() - began)
        assert len(futures) > 410
        assert longest < 1  # the delivery of what waited took longer
        cluster.delay(0)
        producer.flush(60)
    assert len(cluster.values("orders", 0)) == 1 + len(futures)


def test_a_callback_that_sends_does_not_wait_for_itself(cluster, tmp_path):
    with SafeProducer(**options(cluster, tmp_path)) as producer:
        cluster.delay(0.02)
        more = []

        def send_more(_: object) -> None:
            more.append(producer.send("orders", VALUE, partition=1))

        for _ in range(150):
            producer.send("orders", VALUE, partition=0).add_callback(send_more)
        producer.flush(30)
        producer.flush(30)
        assert len(more) == 150
    assert len(cluster.values("orders", 1)) == 150


def test_ctrl_c_ends_the_wait_and_nothing_is_accepted(cluster, tmp_path):
    with SafeProducer(**options(cluster, tmp_path)) as producer:
        producer.send("orders", VALUE, partition=0).get(30)
        cluster.delay(0.4)
        accepted = 1

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        def send_all() -> None:
            nonlocal accepted
            for _ in range(2000):
                producer.send("orders", VALUE, partition=0)
                accepted += 1

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                send_all()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        cluster.delay(0)
        producer.send("orders", VALUE, partition=0)
        producer.flush(30)
    # The one that was interrupted may have been accepted, if it was not waiting.
    assert len(cluster.values("orders", 0)) in {accepted + 1, accepted + 2}


@pytest.mark.parametrize("wrong", [0, -1, 1000, "much", True])
def test_a_bound_that_cannot_work_is_refused(cluster, tmp_path, wrong):
    with pytest.raises(ConfigError, match="run_ahead_bytes"):
        SafeProducer(**options(cluster, tmp_path, run_ahead_bytes=wrong))


@pytest.mark.usefixtures("patient")
def test_a_coroutine_does_not_wait_for_a_cluster_after_the_close_has_begun(cluster, tmp_path):
    async def main():
        producer = AsyncProducer(**options(cluster, tmp_path))
        await producer.start()
        await (await producer.send("orders", VALUE, partition=0))
        cluster.delay(2.0)
        waiting = None
        while waiting is None or waiting.done():
            waiting = asyncio.ensure_future(producer.send("orders", VALUE, partition=0))
            await asyncio.wait([waiting], timeout=0.5)
        closing = asyncio.ensure_future(producer.close())
        with pytest.raises(ProducerClosedError):
            await asyncio.wait_for(waiting, 1)
        with pytest.raises(ProducerClosedError):
            await asyncio.wait_for(producer.send("orders", VALUE, partition=0), 1)
        assert not closing.done()
        cluster.delay(0.0)
        await closing

    asyncio.run(main())
