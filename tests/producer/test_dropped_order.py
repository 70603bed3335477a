"""Producers that are made again without `close()`: what a dropped one accepted goes before what later ones send."""

from __future__ import annotations

import asyncio
import gc
import threading

import harness
import pytest

from kafkasafe import SafeProducer, aio
from kafkasafe.record.partition import partition_for_key
from kafkasafe.testing import FakeCluster

pytestmark = pytest.mark.filterwarnings("ignore:.*was dropped without close:ResourceWarning")
KEY = b"k"


@pytest.fixture
def cluster():
    with FakeCluster(brokers=1) as made:
        made.create_topic("orders", partitions=2)
        yield made


def wait_for(cluster: FakeCluster, count: int) -> list[int]:
    """The values in the log, once so many are there."""
    harness.until(lambda: len(cluster.values("orders")) >= count, 90, f"{count} records to be delivered")
    return [int(value) for value in cluster.values("orders")]


def overtaken(values: list[int]) -> int:
    """How many records come after a newer one."""
    newest, late = -1, 0
    for value in values:
        late += value < newest
        newest = max(newest, value)
    return late


class Outage:
    """No broker can be reached."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def begin(self) -> None:
        self._cluster.refuse()
        self._cluster.cut()

    def end(self) -> None:
        self._cluster.restore()


class Stall(Outage):
    """Brokers take requests and do not answer."""

    def begin(self) -> None:
        self._cluster.stall()


CELLS, RECORDS = 3, 10


@pytest.fixture(params=[Outage, Stall])
def trouble(request, cluster):
    made = request.param(cluster)
    yield made
    made.end()


def run_cells(cluster, trouble, tmp_path, cell, **options) -> None:
    """Run a notebook's cell again and again: each run makes the producer again before it drops the one before."""
    options = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "spool_dir": tmp_path / "spool",
        "linger_ms": 0,
        **options,
    }
    # The first contact is over: nothing waits for a partition to be chosen.
    with SafeProducer(**options) as first:
        first.send("orders", b"0", key=KEY).get(30)
    trouble.begin()
    ender = threading.Timer(CELLS - 0.5, trouble.end)
    ender.start()
    producer = None
    for number in range(CELLS):
        producer = SafeProducer(**options)
        cell(producer, range(number * RECORDS + 1, (number + 1) * RECORDS + 1))
        producer.durable(30)
    values = wait_for(cluster, CELLS * RECORDS + 1)
    producer.close()
    ender.join()
    del producer
    gc.collect()
    assert sorted(values) == list(range(CELLS * RECORDS + 1))
    assert overtaken(values) == 0


def send_all(producer: SafeProducer, numbers: range) -> None:
    for number in numbers:
        producer.send("orders", b"%d" % number, key=KEY)


def test_a_cell_that_is_run_again_in_an_outage(cluster, tmp_path):
    run_cells(cluster, Outage(cluster), tmp_path, send_all)


@pytest.mark.full
def test_a_cell_that_is_run_again_while_brokers_stall(cluster, tmp_path):
    run_cells(cluster, Stall(cluster), tmp_path, send_all)


@pytest.mark.full
def test_a_cell_of_atomic_batches_that_is_run_again(cluster, trouble, tmp_path):
    def cell(producer, numbers):
        for number in numbers:
            with producer.batch() as batch:
                batch.send("orders", b"%d" % number, key=KEY)

    run_cells(cluster, trouble, tmp_path, cell)


@pytest.mark.full
def test_a_cell_of_staged_records_that_is_run_again(cluster, trouble, tmp_path):
    run_cells(cluster, trouble, tmp_path, send_all, delivery="transactional")


@pytest.mark.full
def test_a_cell_that_spools_late_is_run_again(cluster, trouble, tmp_path):
    run_cells(cluster, trouble, tmp_path, send_all, spool="on_error")


@pytest.mark.full
def test_coroutines_that_make_their_producer_again(cluster, trouble, tmp_path):
    options = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "spool_dir": tmp_path / "spool",
        "linger_ms": 0,
    }

    async def run() -> None:
        producer = None
        for number in range(CELLS):
            after = aio.SafeProducer(**options)
            await after.start()
            producer = after
            for value in range(number * RECORDS + 1, (number + 1) * RECORDS + 1):
                await producer.send("orders", b"%d" % value, key=KEY)
            await producer.durable(30)
        await asyncio.to_thread(wait_for, cluster, CELLS * RECORDS + 1)
        await producer.close()

    with SafeProducer(**options) as first:
        first.send("orders", b"0", key=KEY).get(30)
    trouble.begin()
    ender = threading.Timer(CELLS - 0.5, trouble.end)
    ender.start()
    asyncio.run(run())
    ender.join()
    values = wait_for(cluster, CELLS * RECORDS + 1)
    assert sorted(values) == list(range(CELLS * RECORDS + 1))
    assert overtaken(values) == 0


@pytest.mark.full
def test_one_producer_for_each_request_in_several_threads(cluster, trouble, tmp_path):
    """Each thread's records are in its order; those of different threads have none."""
    threads, requests = 3, 3

    def serve(thread: int) -> None:
        for request in range(requests):
            producer = SafeProducer(
                bootstrap_servers=cluster.bootstrap_servers, spool_dir=tmp_path / "spool", linger_ms=0
            )
            for record in range(RECORDS):
                producer.send("orders", b"%d%03d" % (thread, request * RECORDS + record), key=KEY)
            producer.durable(30)
            del producer

    with SafeProducer(bootstrap_servers=cluster.bootstrap_servers, spool_dir=tmp_path / "spool") as first:
        first.send("orders", b"0", key=KEY).get(30)
    trouble.begin()
    ender = threading.Timer(5, trouble.end)
    ender.start()
    running = [threading.Thread(target=serve, args=(number,)) for number in range(1, threads + 1)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(120)
        assert not thread.is_alive()
    ender.join()
    with SafeProducer(bootstrap_servers=cluster.bootstrap_servers, spool_dir=tmp_path / "spool") as last:
        last.flush(90)
    values = wait_for(cluster, threads * requests * RECORDS + 1)
    for number in range(1, threads + 1):
        mine = [value % 1000 for value in values if value // 1000 == number]
        assert mine == list(range(requests * RECORDS))


@pytest.mark.kafka
@pytest.mark.parametrize("how", ["refuse", "stall"])
def test_eight_runs_of_a_cell_on_a_real_broker(broker, tmp_path, how):
    """A broker that cannot be reached, or that takes requests and does not answer, for eight runs of fifty records."""
    topic = harness.new_topic(broker.cluster, 2)
    options = {"bootstrap_servers": broker.servers, "spool_dir": tmp_path / "spool", "linger_ms": 0}
    with SafeProducer(**options) as first:
        first.send(topic, b"0", key=KEY).get(60)
    if how == "refuse":
        broker.proxy.refuse()
        broker.proxy.cut()
    else:
        broker.proxy.stall()
    ender = threading.Timer(12, broker.proxy.restore)
    ender.start()
    producer = None
    for run in range(8):
        producer = SafeProducer(**options)
        for number in range(run * 50 + 1, run * 50 + 51):
            producer.send(topic, b"%d" % number, key=KEY)
        producer.durable(60)
    ender.join()
    harness.until(lambda: broker.end_offset(topic, 0) + broker.end_offset(topic, 1) >= 401, 120, "delivery")
    producer.close()
    del producer
    gc.collect()
    log = harness.numbers_of(harness.read_log(broker.servers, topic)[partition_for_key(KEY, 2)])
    assert sorted(log) == list(range(401))
    assert overtaken(log) == 0
