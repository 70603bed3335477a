"""At a producer's first contact the brokers of another cluster answer, for a moment or for good."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
from virtual import Life, World

from kafkasafe import events


class TwoClusters(World):
    """Two clusters with the same addresses, which lead to one of them at a time. Both have the topic."""

    def __init__(self, brokers: int = 1) -> None:
        super().__init__(brokers)
        self._states: dict[str, dict[str, object]] = {}
        self.cluster.create_topic("orders", 1)

    def lead_to(self, cluster_id: str) -> None:
        handler = self.cluster._handler
        self._states[self.cluster.cluster_id] = dict(vars(handler))
        self.cluster.replace(cluster_id)
        if cluster_id in self._states:
            vars(handler).update(self._states[cluster_id])
        else:
            self.cluster.create_topic("orders", 1)

    def leave_waiting(self, topic: str) -> None:
        """A record is delivered to `orders`, another one waits for `topic` on disk, and the other cluster answers."""
        life = self.start()
        self.deliver(life, b"0")
        self.set_outage(True)
        life.send(topic, 0, [b"1"])
        self.run(1)
        self.kill(life)
        self.lead_to("other")

    def deliver(self, life: Life, value: bytes) -> None:
        parcel = life.send("orders", 0, [value])
        assert self.run(60, lambda: parcel.done)


@pytest.mark.parametrize("bound", [False, True], ids=["new", "bound"])
@pytest.mark.parametrize("brokers", [1, 3])
def test_brokers_of_another_cluster_that_know_no_brokers_do_not_bar_the_right_ones(brokers, bound):
    """1. The address leads to a broker of another cluster that has just started. It reports its cluster, but no brokers.
    2. The address leads to the right cluster.
    """
    world = TwoClusters(brokers)
    if bound:
        life = world.start()
        world.deliver(life, b"0")
        world.kill(life)
    world.lead_to("other")
    for broker in world.centre.brokers.values():
        broker.fenced = True
    life = world.start()
    parcel = life.send("orders", 0, [b"1"])
    world.run(2)
    assert life.context.own_cluster.cluster_id is None
    world.lead_to("fake-cluster")
    assert world.run(60, lambda: parcel.done)
    assert world.log("orders", 0) == ([b"0", b"1"] if bound else [b"1"])
    assert life.context.own_cluster.cluster_id == life.context.directory.cluster_id() == "fake-cluster"


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("read", ["later", "at the end"])
def test_a_lane_that_is_being_read_bars_another_cluster_only_if_it_has_records(read, waiting):
    """1. A producer's sibling is killed, with or without records that wait. 2. The producer restarts during an outage, and
    begins to read the sibling's lane. 3. The outage ends, and another cluster answers.
    """
    world = TwoClusters()
    own, sibling = world.start(), world.start()
    world.deliver(own, b"own")
    world.deliver(sibling, b"sibling")
    world.run(1)
    world.set_outage(True)
    if waiting:
        sibling.send("orders", 0, [b"waits"])
    world.run(1)
    world.kill(own)
    world.kill(sibling)
    world.lead_to("other")
    heard: list[events.Event] = []
    life = world.start(on_event=heard.append, retain_acked_bytes=1 << 20)
    jobs: list[Callable[[], None]] = []
    life.context.beside = jobs.append
    world.run(10)
    assert jobs
    world.set_outage(False)
    early = life.send("orders", 0, [b"early"])
    world.run(5)
    if read == "later":
        for job in jobs:
            job()
        world.run(20)
    if waiting:
        assert life.context.own_cluster.stranger is not None
        assert world.log("orders", 0) == []
    else:
        assert early.done
        world.deliver(life, b"other")
        assert world.log("orders", 0) == [b"early", b"other"]
        assert life.context.directory.cluster_id() == "other"
        world.run(60)
        if read == "at the end":
            for job in jobs:
                job()
            world.run(60)
        world.deliver(life, b"last")
        assert world.log("orders", 0) == [b"early", b"other", b"last"]
    assert not [each for each in heard if isinstance(each, events.DataLost | events.SpoolRecordsMissing)]


def test_no_producer_id_of_another_cluster_gets_into_the_log():
    """1. Records wait for a cluster. 2. A second producer starts, and the brokers of another cluster answer. The other
    cluster grants the same producer ids. 3. The right cluster answers a third producer.

    With an id of the other cluster, the second producer's record would count as delivered: the right cluster knows a batch
    of the first producer under this id.
    """
    world = TwoClusters()
    first = world.start()
    world.deliver(first, b"0")
    world.set_outage(True)
    first.send("orders", 0, [b"1"])
    world.run(1)
    world.lead_to("other")
    world.set_outage(False)
    second = world.start()
    second.send("orders", 0, [b"2"])
    world.run(5)
    assert second.context.own_cluster.stranger is not None
    world.kill(first)
    world.kill(second)
    world.lead_to("fake-cluster")
    third = world.start()
    world.deliver(third, b"3")
    assert world.run(60, lambda: len(world.log("orders", 0)) == 4)
    assert world.log("orders", 0) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("wait_s", [0, 40])
@pytest.mark.parametrize("atomic", [False, True])
def test_another_cluster_is_asked_for_metadata_only(atomic, wait_s):
    """1. A batch, or an atomic batch, is in doubt. 2. The next producer starts, and the brokers of another cluster answer
    at once or after an outage. 3. The right cluster answers a third producer.
    """
    world = TwoClusters()
    first = world.start()
    world.deliver(first, b"0")
    if atomic:
        first.unit(("orders", 0, [b"1"]))
    else:
        first.send("orders", 0, [b"1"])
    assert world.run(60, lambda: world.log("orders", 0) == [b"0", b"1"])
    world.kill(first)
    world.lead_to("other")
    world.set_outage(True)
    world.run(1)
    world.cluster._handler.counts.clear()
    second = world.start()
    world.run(wait_s)
    world.set_outage(False)
    world.run(60)
    assert second.context.own_cluster.stranger is not None
    assert set(world.cluster._handler.counts) <= {"ApiVersions", "Metadata"}
    world.kill(second)
    world.lead_to("fake-cluster")
    third = world.start()
    world.deliver(third, b"2")
    world.run(60)
    assert world.committed("orders", 0) == [b"0", b"1", b"2"]


def test_another_cluster_creates_no_topics():
    """1. Records for a missing topic wait on disk. 2. The next producer starts, accepts a record for a second missing
    topic, and the brokers of another cluster answer. They create topics automatically.
    """
    world = TwoClusters()
    world.leave_waiting("waits")
    world.set_outage(False)
    second = world.start()
    second.send("new", 0, [b"2"])
    world.run(5)
    assert second.context.own_cluster.stranger is not None
    assert set(world.centre.topics) == {"orders"}
    world.kill(second)
    world.lead_to("fake-cluster")
    third = world.start()
    world.deliver(third, b"3")
    assert world.run(60, lambda: set(world.centre.topics) >= {"waits", "new"})


def test_partitions_of_another_cluster_are_not_chosen():
    """1. Records wait until their topic is known. 2. The brokers of another cluster answer. The transport has their
    metadata, and the engine's timer looks at these before the engine takes the message about them.
    """
    world = TwoClusters()
    world.leave_waiting("orders")
    world.cluster.create_topic("many", 7)
    world.set_outage(False)
    second = world.start()
    second.send("many", -1, [b"2"])
    while second.client.topic("many") is None:
        second.turn()
        world.time.run_until(min(world.time.next_s, second.engine.due))
    assert second.inbox
    second.engine.topics.poll()
    world.run(5)
    assert second.context.own_cluster.stranger is not None
    assert list(second.context.own.journal.views.unchosen_topics()) == ["many"]


def test_requests_of_a_lane_that_was_handed_back_are_not_held():
    """1. A producer's sibling is killed, with a batch in doubt. 2. The producer restarts during an outage, and adopts the
    sibling's lane. 3. The sibling restarts, gets its lane back, and is killed again, many times.
    """
    world = World()
    world.cluster.create_topic("orders", 1)
    own, sibling = world.start(client_id="own"), world.start(client_id="sibling")
    for life in (own, sibling):
        parcel = life.send("orders", 0, [b"0"])
        assert world.run(60, lambda parcel=parcel: parcel.done)
    world.cluster.swallow = 1
    sibling.send("orders", 0, [b"1"])
    assert world.run(60, lambda: len(world.log("orders", 0)) == 3)
    world.set_outage(True)
    world.kill(sibling)
    world.kill(own)
    own = world.start(client_id="own")
    adopted = []
    for _ in range(3):
        assert world.run(60, lambda: len(own.context.lanes) == 2)
        world.run(1)
        adopted.append(weakref.ref(own.context.lanes[1].journal))
        sibling = world.start(client_id="sibling", hand_back=True)
        world.run(1)
        world.kill(sibling)
    gc.collect()
    assert [each for each in adopted if each() is not None] == []
    world.set_outage(False)
    world.run(60)
    assert world.log("orders", 0) == [b"0", b"0", b"1"]
