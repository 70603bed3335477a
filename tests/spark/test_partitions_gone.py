"""Partitions that a query has read, and that are not there any more, or that it is not to read any more."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from sourcing import Source, offset_of, write

from kafkasafe.errors import DataLossError
from kafkasafe.spark import brokers, query_topics
from kafkasafe.spark.options import Assign
from kafkasafe.spark.query_topics import QueryTopics
from kafkasafe.testing import FakeCluster


def numbered(first: int, behind: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, behind)]


@pytest.mark.parametrize("records", [10, 30])
def test_a_partition_that_a_recreated_topic_gets_later_is_read_from_its_start(records: int) -> None:
    """Its position in the old topic was kept, and counted as one in the new topic. Ten records are fewer than that
    position, thirty are more."""
    with FakeCluster() as cluster:
        cluster.create_topic("t", 2)
        for partition in (0, 1):
            write(cluster, "t", numbered(0, 20), partition)
        with Source(cluster, subscribe="t", startingOffsets="earliest", failOnDataLoss="false") as source:
            end = source.latest(source.planner.first())
            cluster.delete_topic("t")
            cluster.create_topic("t", 1)
            source.restart()
            later = source.latest(end)
            assert [event.reason for event in source.events] == ["recreated", "missing"]
            assert set(later.marks) == {("t", 0)}
            cluster.grow_topic("t", 2)
            write(cluster, "t", numbered(100, 100 + records), 1)
            source.restart()
            last = source.latest(later)
            assert source.values(later, last) == numbered(100, 100 + records)
            assert len(source.events) == 2


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_partition_that_assign_no_longer_names_is_not_read(fail: str) -> None:
    """Its topic is still there, and was read on."""
    with FakeCluster() as cluster:
        cluster.create_topic("t", 2)
        for partition in (0, 1):
            write(cluster, "t", numbered(0, 5), partition)
        with Source(cluster, assign='{"t":[0,1]}', startingOffsets="earliest") as source:
            end = source.latest(source.planner.first())
        for partition in (0, 1):
            write(cluster, "t", numbered(5, 8), partition)
        with Source(cluster, assign='{"t":[0]}', failOnDataLoss=fail) as source:
            if fail == "true":
                with pytest.raises(
                    DataLossError, match="t-1 was read to 5, but the query does not read it any more"
                ):
                    source.latest(end)
                return
            later = source.latest(end)
            assert source.values(end, later) == numbered(5, 8)
            assert [(event.partition, event.reason) for event in source.events] == [(1, "missing")]
        with Source(cluster, assign='{"t":[0,1]}') as source:
            assert source.values(later, source.latest(later)) == numbered(5, 8)


def test_min_offsets_are_waited_for_although_a_topic_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_topics, "MISSING_TOPIC_S", 0.0)
    with FakeCluster() as cluster:
        cluster.create_topic("t", 1)
        cluster.create_topic("gone", 1)
        with Source(
            cluster, subscribe="t,gone", startingOffsets="earliest", failOnDataLoss="false"
        ) as source:
            start = source.latest(source.planner.first())
            cluster.delete_topic("gone")
            source.restart()
            write(cluster, "t", numbered(0, 3))
            assert source.latest(start, at_least=4).encode() == start.encode()
            assert [event.reason for event in source.events] == ["missing"]
            write(cluster, "t", numbered(3, 4))
            assert source.values(start, source.latest(start, at_least=4)) == numbered(0, 4)


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("was_planned", [False, True])
def test_a_topic_that_is_deleted_after_the_metadata_were_read_is_a_loss(
    monkeypatch: pytest.MonkeyPatch, fail: str, was_planned: bool
) -> None:
    """A plan uses metadata that are a few seconds old. It waited two minutes for the leader of a deleted topic, and then
    said that the partition lacks one."""
    monkeypatch.setattr(query_topics, "MISSING_TOPIC_S", 0.0)
    monkeypatch.setattr(brokers, "MISSING_TOPIC_S", 0.0)
    with FakeCluster() as cluster:
        for topic in ("t", "u"):
            cluster.create_topic(topic, 1)
            write(cluster, topic, numbered(0, 5))
        with Source(
            cluster,
            subscribe="t,u",
            startingOffsets="earliest",
            failOnDataLoss=fail,
            kafkaConsumer__pollTimeoutMs="5000",
        ) as source:
            start = source.planner.first()
            end = source.latest(start)
            if was_planned:
                source.restart()
                source.planner.bounds()  # reads the metadata
            cluster.delete_topic("u")
            write(cluster, "t", numbered(5, 8))
            said = "u-0 was (to be read from 0|read to 5), but does not exist any more"
            if fail == "true":
                with pytest.raises(DataLossError, match=said):
                    source.planner.ranges(start, end) if was_planned else source.latest(end)
                return
            if was_planned:
                assert source.values(start, end) == numbered(0, 5)
            else:
                later = source.latest(end)
                assert source.values(end, later) == numbered(5, 8)
                assert offset_of(later, "u") == 5
            assert [(event.topic, event.reason) for event in source.events] == [("u", "missing")]


def test_ten_thousand_assigned_partitions_are_found_quickly() -> None:
    """Each of them was looked up in a set that was made for it alone, in each plan: seconds of CPU time."""
    partitions = tuple(("t", number) for number in range(10_000))

    class Cluster:
        is_open = True
        info = SimpleNamespace(partitions=dict.fromkeys(range(10_000)))

        def gather(self, procedures: object) -> None: ...

        def topic(self, name: str) -> object:
            return self.info

    topics: Any = QueryTopics(Assign(partitions), Cluster())  # type: ignore[arg-type]
    topics._refresh = lambda _: None
    began = time.process_time()
    found = topics.partitions(fresh=True)
    topics.require(found)
    assert time.process_time() - began < 1
    assert tuple(found) == partitions
