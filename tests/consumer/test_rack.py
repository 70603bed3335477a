"""Reading from a follower in the consumer's rack (KIP-392) that dies, hangs, comes back, or moves.

1. A consumer with `client_rack` reads from a follower. The follower is killed; metadata say that it is offline.
2. It is started again, and the leader names it in answer to a Fetch, without records.
3. For the stale metadata it is still offline, so the consumer asks the leader, with the same rack id. Back to 2., some
   500 times a second, until metadata come by their age: without a record for five minutes.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
import time

import pytest
from consuming import Writer, new_topic, until
from kafka import TopicPartition

from kafkasafe import SafeConsumer, aio
from kafkasafe._consuming import followers
from kafkasafe.kafkapython.fetcher import Fetcher
from kafkasafe.testing import FakeCluster, KafkaCluster
from kafkasafe.testing.fake.log import ReplicaLog
from kafkasafe.testing.fake.settings import RACK_AWARE

LEADER, FOLLOWER, OTHER = 1, 2, 3


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=pytest.mark.kafka)])
def running(request):
    racks = {LEADER: "a", FOLLOWER: "b", OTHER: "b"}
    with (FakeCluster if request.param == "fake" else KafkaCluster)(
        brokers=3,
        config={"replica.selector.class": RACK_AWARE, "min.insync.replicas": 1},
        broker_config={node: {"broker.rack": rack} for node, rack in racks.items()},
    ) as cluster:
        yield cluster


@pytest.fixture
def cluster(running):
    running.recover()
    return running


@pytest.fixture
def fetches(monkeypatch):
    """How many Fetch requests were sent to each broker."""
    counts: collections.Counter[int] = collections.Counter()
    create = Fetcher._create_fetch_requests

    def counted(self):
        requests = create(self)
        counts.update(list(requests))
        return requests

    monkeypatch.setattr(Fetcher, "_create_fetch_requests", counted)
    return counts


def by_polls(options, tp, reading):
    with contextlib.closing(SafeConsumer(**options)) as consumer:
        consumer.assign([tp])
        reading.consumer = consumer
        while not reading.stopped:
            for records in consumer.poll(60_000 if reading.patient else 100).values():
                reading.offsets += [record.offset for record in records]


def by_arrow(options, tp, reading):
    with contextlib.closing(SafeConsumer(**options)) as consumer:
        consumer.assign([tp])
        reading.consumer = consumer
        while not reading.stopped:
            reading.offsets += consumer.poll_arrow(100, columns=["offset"])["offset"].to_pylist()


def by_coroutines(options, tp, reading):
    async def main():
        async with aio.SafeConsumer(**options) as consumer:
            consumer.assign([tp])
            reading.consumer = consumer.client
            while not reading.stopped:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    reading.offsets += [record.offset for record in records]

    asyncio.run(main())


class Reading:
    """A program in the rack of the follower."""

    def __init__(self, cluster, how, patient=False):
        self.topic = new_topic(cluster, assignments={0: [LEADER, FOLLOWER]})
        self.tp = TopicPartition(self.topic, 0)
        self.offsets, self.written, self.stopped, self.patient = [], 0, False, patient
        self.consumer = None
        self._writer = Writer(cluster)
        self._failed = []
        options = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "client_rack": "b",
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": 50,
            "request_timeout_ms": 60_000,
        }
        self._thread = threading.Thread(target=self._run, args=(how, options))
        self._thread.start()

    def _run(self, how, options):
        try:
            how(options, self.tp, self)
        except BaseException as error:
            self._failed.append(error)

    def reads_on(self, count=5):
        """So many records more, one at a time."""
        for _ in range(count):
            self._writer.write(self.topic, 1)
            self.written += 1
            until(lambda: self._failed or len(self.offsets) >= self.written, 50)
        assert not self._failed
        assert self.offsets == list(range(self.written)), "each record once, in order"

    def takes_for_offline(self, node):
        """Whether its metadata, which may come at any moment, say that a replica cannot be used."""
        self.consumer._cluster.request_update()
        return self.consumer._cluster.is_replica_node(self.tp, node) is None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stopped = True
        self._thread.join(60)
        self._writer.close()
        assert not self._thread.is_alive()


HOW = pytest.mark.parametrize("how", [by_polls, by_arrow, by_coroutines])


@pytest.fixture
def soon(monkeypatch):
    """A follower that was left is tried again soon."""
    monkeypatch.setattr(followers, "LEADER_ONLY_S", 0.3)


@pytest.fixture
def impatient(monkeypatch):
    """A follower that hangs is left soon."""
    monkeypatch.setattr(followers, "ANSWER_S", 0.3)


def from_follower(reading, fetches, node=FOLLOWER):
    """Returns once records come from a follower."""

    def read():
        before = fetches[node]
        reading.reads_on(1)
        return fetches[node] > before

    until(read)


def restarted(cluster, reading):
    """The follower was killed, metadata say so, and it is back."""
    cluster.kill(FOLLOWER)
    reading.reads_on()
    until(lambda: reading.takes_for_offline(FOLLOWER))
    cluster.start(FOLLOWER)


@HOW
def test_a_follower_that_comes_back_stops_nothing(cluster, fetches, how):
    with Reading(cluster, how) as reading:
        from_follower(reading, fetches)
        restarted(cluster, reading)
        before = fetches.copy()
        reading.reads_on(10)
        spent = sum((fetches - before).values())
    # A request that waits for each record, and some that wait 50 ms in vain.
    assert spent < 200, fetches


@HOW
def test_a_follower_that_came_back_is_read_from_again(cluster, fetches, soon, how):
    with Reading(cluster, how) as reading:
        from_follower(reading, fetches)
        restarted(cluster, reading)
        from_follower(reading, fetches)


@HOW
def test_a_follower_that_dies_stops_nothing(cluster, fetches, how):
    with Reading(cluster, how) as reading:
        from_follower(reading, fetches)
        before = fetches.copy()
        cluster.kill(FOLLOWER)
        reading.reads_on(10)
        spent = sum((fetches - before).values())
    assert spent < 200, fetches


@HOW
def test_a_follower_that_hangs_is_left(cluster, fetches, impatient, how):
    with Reading(cluster, how, patient=how is by_polls) as reading:
        from_follower(reading, fetches)
        before, began = fetches.copy(), time.monotonic()
        cluster.pause(FOLLOWER)
        reading.reads_on(10)
        spent = sum((fetches - before).values())
        assert time.monotonic() - began < 50, "less than request_timeout_ms"
        cluster.resume(FOLLOWER)  # what it had not answered it answers now
        reading.reads_on()
        reading.patient = False
        reading.reads_on(1)
    assert spent < 200, fetches


def test_an_error_that_a_follower_answers_after_it_was_left_means_nothing(
    cluster, fetches, impatient, monkeypatch
):
    """The leader is read from by then, and has no such trouble."""
    answered, handle = [], Fetcher._handle_fetch_response

    def spoilt(self, node, offsets, sent_at, response):
        if node == FOLLOWER and cluster.is_running(FOLLOWER) and paused:
            for topic in response.responses:
                for row in topic.partitions:
                    row.error_code = 29  # of the leader it would end `poll`
                    answered.append(row)
        handle(self, node, offsets, sent_at, response)

    paused = False
    monkeypatch.setattr(Fetcher, "_handle_fetch_response", spoilt)
    with Reading(cluster, by_polls) as reading:
        from_follower(reading, fetches)
        paused = True
        cluster.pause(FOLLOWER)
        reading.reads_on()
        cluster.resume(FOLLOWER)
        until(lambda: answered)
        reading.reads_on()


@HOW
def test_replicas_move(cluster, fetches, soon, how):
    with Reading(cluster, how) as reading:
        from_follower(reading, fetches)
        cluster.move_leader(reading.topic, to=FOLLOWER)
        reading.reads_on()
        cluster.move_leader(reading.topic, to=LEADER)
        reading.reads_on()
        from_follower(reading, fetches)
        reassign(cluster, reading.topic)
        reading.reads_on()
        from_follower(reading, fetches, OTHER)


def reassign(cluster, topic):
    """The follower's replica is deleted, and another broker of the rack has one."""
    if isinstance(cluster, KafkaCluster):
        with cluster.admin() as admin:
            admin.alter_partition_reassignments({TopicPartition(topic, 0): [LEADER, OTHER]})
        until(lambda: set(cluster.partition_state(topic).in_sync) == {LEADER, OTHER})
        return
    partition = cluster._partition(topic, 0)
    with cluster._acting() as handler:
        partition.logs[OTHER] = ReplicaLog()
        partition.replicas = [LEADER, OTHER]
        handler.centre.replicate()
        partition.in_sync = {LEADER, OTHER}
        del partition.logs[FOLLOWER]
