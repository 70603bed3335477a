"""End offsets through changes of leaders: never lower, no busy loop, soon right (KIP-207)."""

from __future__ import annotations

import collections
import itertools
import threading
import time

import pytest
from consuming import Consumers, Raw, Slowness, Writer, new_topic, until
from kafka import TopicPartition

from kafkasafe.cluster.api import Failure
from kafkasafe.events import EndOffsetRegressed, PositionReset
from kafkasafe.offsets import EndOffsetTracker
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.broker import KafkaCluster


@pytest.fixture(scope="module")
def cluster():
    # A broker that hangs stays in sync: its session, and the time it may lag, are long.
    config = {
        "broker.session.timeout.ms": 60_000,
        "replica.lag.time.max.ms": 60_000,
        "min.insync.replicas": 1,
    }
    with KafkaCluster(brokers=3, config=config) as running:
        yield running


@pytest.fixture
def some_cluster(request):
    """Three brokers, in memory; the real ones in the other run of a test that is `also_real`."""
    if request.param == "real":
        yield request.getfixturevalue("cluster")
        return
    with FakeCluster(brokers=3) as running:
        yield running


@pytest.fixture
def consumers(some_cluster):
    with Consumers(some_cluster) as opened:
        yield opened
    some_cluster.recover()


@pytest.fixture
def asked(mocker):
    """Watches a consumer's ListOffsets, which go to the brokers as ever; gives the list of when each was sent."""

    def watch(consumer):
        times = []
        network = consumer._objects.connections.network()
        real = network.list_offset

        def send(*args, **more):
            times.append(time.monotonic())
            return real(*args, **more)

        mocker.patch.object(network, "list_offset", autospec=True, side_effect=send)
        return times

    return watch


def test_an_answer_is_in_the_file_before_it_is_returned(some_cluster, consumers, tmp_path):
    """After a kill -9 nobody calls close()."""
    topic, path = new_topic(some_cluster), tmp_path / "ends.json"
    tp = TopicPartition(topic, 0)
    consumer = consumers(offsets_path=path)
    with Writer(some_cluster) as writer:
        writer.write(topic, 3)
        assert consumer.end_offsets([tp]) == {tp: 3}
        assert EndOffsetTracker(path).end_offset(topic, 0) == 3
        writer.write(topic, 1)
    assert consumer.end_offsets([tp]) == {tp: 4}
    assert EndOffsetTracker(path).end_offset(topic, 0) == 4


@pytest.mark.also_real
def test_a_leader_that_moves_under_load(some_cluster, consumers, asked, tmp_path):
    """And a restart meanwhile, which remembers."""
    topic = new_topic(some_cluster, assignments={0: [1, 2, 3]})
    tp = TopicPartition(topic, 0)
    current = [consumers(offsets_path=tmp_path / "ends.json")]
    calls = asked(current[0])
    using, stop = threading.Lock(), threading.Event()
    seen, good, failures = [], [], []

    def write():
        with Writer(some_cluster) as writer:
            while not stop.is_set():
                writer.write(topic, 1)

    def probe():
        with Raw(some_cluster) as raw:
            while not stop.is_set():
                answer = raw.ask(topic)
                if not isinstance(answer, Failure) and answer.error_code == 0:
                    good.append((time.monotonic(), answer.leader_epoch))
                time.sleep(0.02)

    def look():
        try:
            while not stop.is_set():
                with using:
                    seen.append((current[0].end_offsets([tp], timeout_ms=60_000)[tp], time.monotonic()))
                time.sleep(0.05)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for work in (write, probe, look)]
    moved, more_calls = [], []
    with Slowness() as slowness:
        for thread in threads:
            thread.start()
        try:
            until(lambda: len(seen) > 5)
            for to in (2, 3, 1):
                some_cluster.move_leader(topic, to=to)
                epoch = some_cluster.partition_state(topic).leader_epoch
                first = until(lambda epoch=epoch: next((at for at, of in good if of >= epoch), None))
                answered = until(lambda first=first: next((at for _, at in seen if at > first), None))
                moved.append((first, answered))
                if to == 2:
                    with using:
                        current[0].close()
                        current[0] = consumers(offsets_path=tmp_path / "ends.json")
                        more_calls.append(asked(current[0]))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert not failures
    ends = [end for end, _ in seen]
    assert ends == sorted(ends)
    assert not consumers.of(EndOffsetRegressed)
    for first, answered in moved:
        assert answered - first < 5.0 + 2 * slowness.seconds
    busiest = max(collections.Counter(int(at) for at in itertools.chain(calls, *more_calls)).values())
    assert busiest <= 25  # the test itself asks up to 20 times a second


def led_by(consumer, tp):
    """Which broker a look-up asks. It may learn of a new one late: from the broker that hangs nothing is learned."""
    consumer.end_offsets([tp], timeout_ms=100, partial=True)
    return consumer._objects.connections.network().topic(tp.topic).partitions[tp.partition].leader


@pytest.mark.kafka
def test_a_new_leader_that_catches_up(cluster, consumers, asked):
    """facts: the window in which the new leader's high watermark is below what consumers have seen (78)."""
    topic = new_topic(cluster, assignments={0: [1, 2, 3]}, config={"min.insync.replicas": 1})
    tp = TopicPartition(topic, 0)
    consumer = consumers()
    with Writer(cluster) as writer, Raw(cluster) as raw, cluster.admin() as admin:
        writer.write(topic, 10)
        admin.alter_partition_reassignments({tp: [2, 1, 3]})
        # Who is to pass on the election must not hang; any broker may be named as the controller.
        admin._controller_id = until(
            lambda: next(iter({admin._manager.run(admin._refresh_controller_id)} - {3}), None)
        )
        assert consumer.end_offsets([tp]) == {tp: 10}
        starter = consumers.assigned(topic, auto_offset_reset="latest")
        cluster.pause(3)
        try:
            writer.write(topic, 5, acks=1)
            until(lambda: cluster.log_end(topic, 0, 2) == 15)
            admin.elect_leaders(0, {topic: [0]})  # 2 leads now, orderly
            until(lambda: raw.code(topic) == 78, what="the window")
            until(lambda: led_by(consumer, tp) == 2)
            calls = asked(consumer)
            began = time.monotonic()
            assert (
                consumer.end_offsets([tp], timeout_ms=1500, partial=True) == {}
            )  # waits, and does not guess
            assert time.monotonic() - began >= 1.4
            assert 3 <= len(calls) <= 16
            # One that starts now: the end that it begins from is not known yet.
            assert starter.position(tp, timeout_ms=700) is None
            answers = []
            late = threading.Thread(
                target=lambda: answers.append(consumer.end_offsets([tp], timeout_ms=30_000))
            )
            late.start()
            time.sleep(0.5)
            assert not answers
        finally:
            cluster.resume(3)
        with Slowness() as slowness:
            until(lambda: raw.code(topic) == 0)
            first = time.monotonic()
            late.join()
            assert time.monotonic() - first < 5.0 + 2 * slowness.seconds
        assert answers == [{tp: 15}]
        assert starter.position(tp) == 15
    assert [type(event) for event in consumers.events] == [PositionReset]
    assert consumers._opened[0]._objects.reports.stats.unavailable_s[topic] >= 1.4
