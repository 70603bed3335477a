"""A topic is recreated, and some brokers have not heard of it: they know the former topic, and lead it."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
from virtual import Life, StormyCluster, World

from kafkasafe.events import DataLost, Event

LEADER = 3
"""The leader of both topics. The client prefers brokers with lower ids for metadata."""


class LaggingCluster(StormyCluster):
    """Some brokers know the former topic.

    Attributes:
        former: The former topic.
        behind: Node ids of these brokers.
    """

    former = None
    behind: frozenset[int] = frozenset()

    def _work(self, pipe) -> bool:
        """See `VirtualCluster`."""
        if self.former is None or not pipe.requests or pipe.node not in self.behind:
            return super()._work(pipe)
        topics = self._handler.centre.topics
        now = topics["orders"]
        topics["orders"] = self.former
        try:
            return super()._work(pipe)
        finally:
            topics["orders"] = now


class LaggingWorld(World):
    """See `LaggingCluster`.

    Args:
        version: Version of the brokers.
    """

    cluster_type = LaggingCluster

    def __init__(self, version: str) -> None:
        super().__init__(3, version)
        self.seen: list[Event] = []
        self.centre.create_topic("orders", 1)
        self._lead()
        self.centre.create_topic("others", 3)

    def begin(self, **options) -> Life:
        """A producer begins that is connected to all brokers."""
        life = self.start(on_event=self.seen.append, **options)
        for number in range(3):
            self.deliver(life, "others", number, b"")
        return life

    def deliver(self, life: Life, topic: str, partition: int, value: bytes) -> None:
        parcel = life.send(topic, partition, [value])
        assert self.run(60, lambda: parcel.done)

    def recreate(self, behind: Iterable[int]) -> None:
        """Recreate the topic; these brokers do not hear of it."""
        self.cluster.former = copy.deepcopy(self.centre.topics["orders"])
        self._again()
        self._lead()
        self.cluster.behind = frozenset(behind)

    def _lead(self) -> None:
        while self.centre.partition("orders", 0).leader != LEADER:
            self._again()

    def _again(self) -> None:
        self.centre.delete_topic("orders")
        self.centre.create_topic("orders", 1)

    @property
    def lost(self) -> list[DataLost]:
        return [event for event in self.seen if isinstance(event, DataLost)]


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("lag_s", [5.0, 15.0, 25.0, 60.0])
@pytest.mark.parametrize("behind", [{1, 2}, {LEADER}], ids=["others", "leader"])
@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_a_survey_does_not_read_the_log_of_another_topic(version, behind, lag_s, restart):
    """Without `restore_recreated_topics`, nothing is sent again.

    1. The topic is recreated. 2. A broker that has not heard of it answers the survey's request for metadata, and the
    leader shows the log of the new topic; or the other way round.
    """
    world = LaggingWorld(version)
    life = world.begin(retain_acked_bytes=1 << 20)
    for number in range(3):
        world.deliver(life, "orders", 0, b"%d" % number)
    world.recreate(behind)
    if restart:
        world.kill(life)
        world.begin(retain_acked_bytes=1 << 20)
    world.run(lag_s)
    world.cluster.behind = frozenset()
    world.run(60)
    assert [(loss.records, loss.reason, loss.restoring_records) for loss in world.lost] == [
        (3, "topic id", 0)
    ]
    assert world.log("orders", 0) == []


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("retain", [0, 1 << 20])
@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_records_of_the_topic_of_now_are_not_lost(version, retain, restart):
    """A producer has delivered records to the new topic, and metadata name the former one for a while."""
    world = LaggingWorld(version)
    options = {
        "retain_acked_bytes": retain,
        "restore_recreated_topics": True,
        "sizes": {"spool_segment_bytes": 1 << 14},
    }
    life = world.begin(**options)
    world.deliver(life, "orders", 0, b"before")
    world.recreate(())
    world.run(40)
    world.seen.clear()
    values = [b"%d" % number * 500 for number in range(110)]
    for value in values[:100]:
        world.deliver(life, "orders", 0, value)
    if restart:
        world.kill(life)
        life = world.begin(**options)
    world.cluster.behind = frozenset({1, 2})
    world.run(60)
    for value in values[100:]:
        life.send("orders", 0, [value])
        world.run(1)
    world.run(60)
    world.cluster.behind = frozenset()
    world.run(120)
    assert world.lost == []
    assert [value for value in world.log("orders", 0) if value != b"before"] == values


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_a_producer_that_meets_the_former_topic_first(version, restart):
    """The first metadata name the former topic, and the leader has the new one."""
    world = LaggingWorld(version)
    world.recreate({1, 2})
    options = {"restore_recreated_topics": True, "sizes": {"spool_segment_bytes": 1 << 14}}
    life = world.begin(**options)
    values = [b"%d" % number * 500 for number in range(110)]
    for value in values[:100]:
        life.send("orders", 0, [value])
        world.run(0.2)
    if restart:
        world.kill(life)
        life = world.begin(**options)
    world.cluster.behind = frozenset()
    world.run(60)
    for value in values[100:]:
        life.send("orders", 0, [value])
        world.run(1)
    world.run(120)
    assert world.lost == []
    assert world.log("orders", 0) == values
