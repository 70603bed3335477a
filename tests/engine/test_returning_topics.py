"""A pause after an error of the metadata for the topic ends when the metadata name the topic again."""

from __future__ import annotations

import random

import pytest
from virtual import StormyCluster, World

from kafkasafe.errors import RejectedError
from kafkasafe.events import AtomicBatchRetried, DeliveryRetried, Event

BLOCKED_S = 20.0


class StaleCluster(StormyCluster):
    """Its metadata may name a topic that was deleted, as those of a broker do that has not heard of it.

    Attributes:
        stale: The topic.
        named: How often metadata name it, from 0 to 1.
    """

    stale = None
    named = 1.0

    def __init__(self, *args) -> None:
        self._turns = random.Random(3)
        super().__init__(*args)

    def _work(self, pipe) -> bool:
        """See `VirtualCluster`."""
        metadata = bool(pipe.requests) and pipe.requests[0][0] == "Metadata"
        if self.stale is None or not metadata or self._turns.random() >= self.named:
            return super()._work(pipe)
        topics = self._handler.centre.topics
        self.stale.partitions[0].leader_epoch += 1
        topics["orders"] = self.stale
        try:
            return super()._work(pipe)
        finally:
            del topics["orders"]


class StaleWorld(World):
    """See `StaleCluster`."""

    cluster_type = StaleCluster


class Orders:
    """A producer, and a topic that is missing now and then.

    Args:
        begun: The producer has delivered a record to the topic before.
    """

    def __init__(self, *, begun: bool) -> None:
        self.pauses: list[float] = []
        self.world = StaleWorld(auto_create_topics_enable="false")
        self.world.centre.create_topic("orders", 1, 1)
        self.life = self.start()
        if begun:
            first = self.life.send("orders", 0, [b"first"])
            assert self.world.run(10, lambda: first.done)

    def start(self):
        return self.world.start(blocked_timeout_ms=int(BLOCKED_S * 1000), on_event=self._note)

    def _note(self, event: Event) -> None:
        if isinstance(event, DeliveryRetried):
            self.pauses.append(event.pause_s)

    def hide(self):
        topic = self.world.centre.topics.pop("orders")
        self.world.cluster.cut()
        return topic

    def show(self, topic) -> None:
        self.world.centre.topics["orders"] = topic
        self.world.centre.controlled()

    def forbid(self, *, on: bool = True) -> None:
        """The user may not even see the topic."""
        self.world.cluster.deny("describe", topic="orders", on=on)
        self.life.context.refresh_topics(["orders"])
        self.world.run(0.1)

    def in_a_pause(self, *, longer_than_s: float) -> None:
        """Until a long pause has begun."""
        seen = len(self.pauses)
        assert self.world.run(
            BLOCKED_S, lambda: any(pause_s > longer_than_s for pause_s in self.pauses[seen:])
        )
        self.world.run(0.1)

    def in_a_long_pause_of(self, what: str) -> None:
        """Until a pause of more than 4.5 s has begun, by the counter `backoff_s` of the stats."""
        paused_s = [0.0]

        def began() -> bool:
            paused_s.append(self.life.context.stats.backoff_s[what])
            return paused_s[-1] - paused_s[-2] > 4.5

        assert self.world.run(BLOCKED_S, began)
        self.world.run(0.1)


@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun"])
def test_a_topic_that_is_there_for_a_few_seconds_takes_what_waits(begun):
    """1. The topic is missing. 2. It is there, for less than the pause. 3. It is missing again, and for long."""
    orders = Orders(begun=begun)
    topic = orders.hide()
    parcel = orders.life.send("orders", 0, [b"second"])
    orders.in_a_pause(longer_than_s=4.5)
    orders.show(topic)
    orders.world.run(4)
    orders.hide()
    orders.world.run(2 * BLOCKED_S)
    orders.show(topic)
    orders.world.run(40)
    assert parcel.done
    assert parcel.error is None
    assert orders.world.log("orders", 0) == [*([b"first"] if begun else []), b"second"]


@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun"])
def test_a_topic_that_is_there_for_a_few_seconds_takes_an_atomic_batch_that_waits(begun):
    """As for other batches: the atomic batch was not tried before its pause was over."""
    orders = Orders(begun=begun)
    topic = orders.hide()
    head = orders.life.unit(("orders", 0, [b"second"]))[0]
    orders.in_a_long_pause_of("transaction")
    orders.show(topic)
    orders.world.run(4)
    assert head.done
    assert head.error is None
    assert orders.world.committed("orders", 0) == [*([b"first"] if begun else []), b"second"]


@pytest.mark.parametrize("atomic", [False, True], ids=["batch", "atomic batch"])
def test_a_topic_that_is_allowed_for_a_few_seconds_takes_what_waits(atomic):
    """1. The user may not see the topic. 2. The user may, for less than the pause. 3. The permission is withdrawn for
    long. The batch was rejected, as if the topic had been forbidden all the time.
    """
    orders = Orders(begun=True)
    orders.forbid()
    life = orders.life
    parcel = life.unit(("orders", 0, [b"second"]))[0] if atomic else life.send("orders", 0, [b"second"])
    orders.in_a_long_pause_of("transaction" if atomic else "produce")
    orders.forbid(on=False)
    orders.world.run(4)
    orders.forbid()
    orders.world.run(2 * BLOCKED_S)
    assert parcel.done
    assert parcel.error is None


def test_the_pauses_of_all_lanes_end():
    """One lane was adopted, and both have records for the topic."""
    orders = Orders(begun=True)
    life = orders.start()
    topic = orders.hide()
    orders.life.send("orders", 0, [b"of the other"])
    orders.world.run(1)
    orders.world.kill(orders.life)
    assert orders.world.run(30, lambda: len(life.context.lanes) == 2)
    life.send("orders", 0, [b"own"])
    orders.in_a_pause(longer_than_s=4.5)
    orders.in_a_pause(longer_than_s=4.5)
    orders.show(topic)
    orders.world.run(1)
    assert sorted(orders.world.log("orders", 0)) == [b"first", b"of the other", b"own"]


@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun"])
@pytest.mark.parametrize("named", [1.0, 0.5, 0.1])
def test_metadata_of_a_stale_broker_end_few_pauses_and_count_for_no_answer(named, begun):
    """The topic was deleted. Stale brokers still name it and different leaders, and no leader knows it."""
    orders = Orders(begun=begun)
    cluster, time = orders.world.cluster, orders.world.time
    cluster.named, cluster.stale = named, orders.hide()
    began_s = time.monotonic()
    parcel = orders.life.send("orders", 0, [b"second"])
    for _ in range(int(2.5 * BLOCKED_S / 0.1)):
        orders.life.context.refresh_topics(["orders"])
        if orders.world.run(0.1, lambda: parcel.done):
            break
    assert isinstance(parcel.error, RejectedError)
    assert time.monotonic() - began_s >= BLOCKED_S
    assert len(orders.pauses) <= 15  # 10 if no metadata name it


def test_a_topic_that_may_be_seen_but_not_written_ends_one_pause():
    """The leader refuses the next request, and metadata that have named the topic before are no news."""
    orders = Orders(begun=True)
    orders.forbid()
    orders.life.send("orders", 0, [b"second"])
    orders.in_a_pause(longer_than_s=4.5)
    before = len(orders.pauses)
    orders.world.cluster.deny("write", topic="orders")
    orders.world.cluster.deny("describe", topic="orders", on=False)
    for _ in range(40):
        orders.life.context.refresh_topics(["orders"])
        orders.world.run(0.1)
    assert len(orders.pauses) > before
    assert sum(orders.pauses[before:-1]) <= 4.0  # these pauses took their whole time


def test_the_log_says_which_step_of_an_atomic_batch_is_tried_again(caplog):
    """A pause before the next try was logged as one before its records are saved in `rejected/`."""
    orders = Orders(begun=True)
    orders.hide()
    orders.life.unit(("orders", 0, [b"second"]))
    assert orders.world.run(10, lambda: "of an atomic batch: attempt" in caplog.text)
    assert "saving the records" not in caplog.text


@pytest.mark.parametrize("atomic", [False, True], ids=["batch", "atomic batch"])
def test_what_was_refused_for_a_former_topic_goes_to_the_new_one_at_once(atomic):
    """1. This client may not write, so the pauses have grown. 2. The topic is recreated, and the client may write. 3. The
    next request names the former topic's id, and is refused. 4. Metadata name the new topic, so the pause ends.
    """
    world = World(auto_create_topics_enable="false")
    world.centre.create_topic("orders", 1, 1)
    reasons: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, (DeliveryRetried, AtomicBatchRetried)):
            reasons.append(event.reason)

    life = world.start(on_data_loss="event", on_event=note)

    def send(value: bytes):
        if atomic:
            return life.unit(("orders", 0, [value]))[0]
        return life.send("orders", 0, [value])

    first = send(b"first")
    assert world.run(60, lambda: first.done)
    world.cluster.deny("write", topic="orders")
    second = send(b"second")
    world.run(90)
    world.centre.delete_topic("orders")
    world.centre.create_topic("orders", 1, 1)
    world.cluster.deny("write", topic="orders", on=False)
    assert world.run(60, lambda: "UNKNOWN_TOPIC_ID (100)" in reasons[-1])
    assert world.run(1, lambda: second.done)
    assert second.error is None
    world.run(1)  # the markers of an atomic batch
    assert world.committed("orders", 0) == [b"second"]
