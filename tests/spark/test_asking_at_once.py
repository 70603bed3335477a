"""A plan asks each leader once about all its partitions. It finds what it finds by asking about each partition."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sourcing import Source, write

from kafkasafe.events import SourceDataLost
from kafkasafe.spark.positions import Positions
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.proxy import FaultProxy

PARTITIONS = 4


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[FakeCluster, FaultProxy]]:
    with FakeCluster() as cluster, FaultProxy(bootstrap=cluster.bootstrap_servers[0]) as proxy:
        cluster.create_topic("t", PARTITIONS)
        for number in range(PARTITIONS):
            write(cluster, "t", [b"%d" % at for at in range(10 + number)], partition=number)
        yield cluster, proxy


def plan(
    servers: Any, start: Positions | None, spoil: Callable[[], None], *, is_at_once: bool, **options: str
) -> tuple[Any, ...]:
    """What a plan finds: the positions as text, or the error; and the events."""
    with Source(servers, subscribe="t", **options) as source:
        planner: Any = source.planner
        if not is_at_once:
            planner._ask_at_once = lambda *_: {}
        began = planner.first() if start is None else start
        spoil()
        try:
            found = json.dumps(planner.latest(began).encode())
        except Exception as failed:
            found = f"{type(failed).__name__}: {failed}"
        return found, source.events


def same_plans(
    proxied: tuple[FakeCluster, FaultProxy],
    start: Positions | None,
    spoil: Callable[[FaultProxy], None],
    **options: str,
) -> str:
    proxy = proxied[1]
    plans = []
    for is_at_once in (False, True):
        proxy.clear()
        proxy.forget()
        plans.append(plan(proxy, start, lambda: spoil(proxy), is_at_once=is_at_once, **options))
    proxy.clear()
    assert plans[0] == plans[1]
    return str(plans[1][0])


STARTS = {
    "first": None,
    "behind": Positions.decode({"t": {str(number): 3 for number in range(PARTITIONS)}}),
    "at the end": Positions.decode({"t": {str(number): 10 + number for number in range(PARTITIONS)}}),
    "ahead": Positions.decode({"t": {str(number): 50 for number in range(PARTITIONS)}}),
    "lacks one": Positions.decode({"t": {"0": 3, "1": 4, "2": 5}}),
}


@pytest.mark.parametrize(
    ("name", "isolation", "code"),
    [("behind", "read_uncommitted", code) for code in (0, 3, 5, 6, 7, 9, 29, 56, 74, 75, 78)]
    + [(name, "read_committed", code) for name in STARTS for code in (0, 6)],
)
def test_errors_of_one_partition(
    proxied: tuple[FakeCluster, FaultProxy], name: str, isolation: str, code: int
) -> None:
    def spoil(proxy: FaultProxy) -> None:
        if code:
            proxy.on("ListOffsets", topic="t", partition=1).answer(code=code, times=None if code == 29 else 2)

    options = {"startingOffsets": "earliest", "kafka__isolation__level": isolation}
    found = same_plans(proxied, STARTS[name], spoil, **options)
    assert ("Error" in found) == (code == 29)


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize(
    "fields", [{"offset": 5}, {"leader_epoch": -1}, {"leader_epoch": 6}, {"offset": 8, "leader_epoch": -1}]
)
def test_answers_of_other_leaders(
    proxied: tuple[FakeCluster, FaultProxy], name: str, fields: dict[str, int]
) -> None:
    same_plans(
        proxied,
        STARTS[name],
        lambda proxy: proxy.on("ListOffsets", topic="t", partition=2).set(**fields) and None,
        startingOffsets="earliest",
        failOnDataLoss="false",
    )


def test_each_leader_is_asked_once_for_ends_and_once_for_starts(
    proxied: tuple[FakeCluster, FaultProxy],
) -> None:
    proxy = proxied[1]
    with Source(proxy, subscribe="t", startingOffsets="earliest") as source:
        end = source.latest(source.planner.first())
        proxy.forget()
        assert source.latest(end).encode() == end.encode()
        assert [len(call.partitions) for call in proxy.requests("ListOffsets", topic="t")] == [PARTITIONS]
        proxy.forget()
        source.latest(STARTS["behind"] or end)
        asked = [len(call.partitions) for call in proxy.requests("ListOffsets", topic="t")]
        assert asked == [PARTITIONS, PARTITIONS]


@pytest.mark.parametrize("is_at_once", [False, True])
def test_elections_and_retention_between_plans(*, is_at_once: bool) -> None:
    """Leaders move, one loses records, retention removes some: each plan says what it says without shared requests."""
    with FakeCluster(brokers=3) as cluster:
        cluster.create_topic("t", PARTITIONS)
        with Source(cluster, subscribe="t", startingOffsets="earliest", failOnDataLoss="false") as source:
            planner: Any = source.planner
            if not is_at_once:
                planner._ask_at_once = lambda *_: {}
            end = source.latest(planner.first())
            for round_ in range(3):
                for number in range(PARTITIONS):
                    write(cluster, "t", [b"x"] * 5, partition=number)
                    cluster.move_leader("t", number)
                before, end = end, source.latest(end)
                assert len(source.values(before, end)) == 5 * PARTITIONS
                assert {mark.offset for mark in end.marks.values()} == {5 * (round_ + 1)}
                assert all(len(mark.lineage.entries) == round_ + 1 for mark in end.marks.values())
            write(cluster, "t", [b"y"] * 5, partition=0)
            cluster.delete_records("t", 0, 18)
            end = source.latest(end)
            assert (end.marks["t", 0].why, end.marks["t", 0].begin) == ("retention", 18)
            assert [(event.partition, event.lost) for event in source.events] == [(0, (15, 17))]


class Examined:
    """Counts the partitions that a plan examines one by one."""

    def __init__(self, source: Source) -> None:
        self.partitions: list[int] = []
        logs: Any = source.planner._logs
        advance = logs.advance

        def noted(partition: tuple[str, int], *more: Any) -> Any:
            self.partitions.append(partition[1])
            return advance(partition, *more)

        logs.advance = noted

    def by(self, plan: Callable[[], Positions]) -> tuple[list[int], Positions]:
        self.partitions.clear()
        found = plan()
        return sorted(self.partitions), found


def test_only_partitions_about_which_something_changed_are_examined_one_by_one() -> None:
    every = list(range(PARTITIONS))
    with FakeCluster(brokers=3) as cluster:
        cluster.create_topic("t", PARTITIONS)
        for number in every:
            write(cluster, "t", [b"x"] * 5, partition=number)
        with Source(cluster, subscribe="t", startingOffsets="earliest", failOnDataLoss="false") as source:
            examined = Examined(source)
            found, end = examined.by(lambda: source.latest(source.planner.first()))
            assert found == every
            assert examined.by(lambda: source.latest(end)) == (every, end)
            assert examined.by(lambda: source.latest(end)) == ([], end)
            # New records.
            write(cluster, "t", [b"y"] * 5, partition=1)
            found, half = examined.by(lambda: source.latest(end, 2))
            assert (found, half.marks["t", 1].offset) == ([1], 7)
            # The rest of them: the same answer, but another position.
            found, end = examined.by(lambda: source.latest(half))
            assert (found, end.marks["t", 1].offset) == ([1], 10)
            # A new leader, with the same end.
            assert examined.by(lambda: source.latest(end))[0] == [1]
            cluster.move_leader("t", 2)
            source.planner._topics._looked_at = -1e9
            assert examined.by(lambda: source.latest(end)) == ([2], end)
            assert examined.by(lambda: source.latest(end)) == ([], end)
            # Other look-ups may have found newer ends.
            source.planner.bounds()
            assert examined.by(lambda: source.latest(end))[0] == every


def test_retention_is_noticed_where_the_end_is_the_same_as_before() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("t", 2)
        for number in range(2):
            write(cluster, "t", [b"x"] * 5, partition=number)
        with Source(cluster, subscribe="t", startingOffsets="earliest", failOnDataLoss="false") as source:
            examined = Examined(source)
            end = source.latest(source.planner.first())
            write(cluster, "t", [b"x"] * 10, partition=0)
            # Ten records wait for ever, because a plan asks for more.
            assert source.latest(end, 0, 20) == end
            assert examined.by(lambda: source.latest(end, 0, 20)) == ([], end)
            cluster.delete_records("t", 0, 8)
            found, end = examined.by(lambda: source.latest(end, 0, 20))
            assert found == [0]
            assert (end.marks["t", 0].why, end.marks["t", 0].begin) == ("retention", 8)
            assert [(event.partition, event.lost) for event in source.events] == [(0, (5, 7))]


def test_a_topic_that_was_created_again_with_the_same_end_is_noticed() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("t", 1)
        write(cluster, "t", [b"x"] * 5)
        with Source(cluster, subscribe="t", startingOffsets="earliest", failOnDataLoss="false") as source:
            end = source.latest(source.planner.first())
            assert source.latest(end) == source.latest(end) == end
            cluster.delete_topic("t")
            cluster.create_topic("t", 1)
            write(cluster, "t", [b"z"] * 5)
            source.planner._topics._looked_at = -1e9
            again = source.latest(end)
            assert again.marks["t", 0].why == "recreated"
            assert source.values(end, again) == [b"z"] * 5


def test_each_absence_of_a_partition_is_told_and_with_the_range_that_it_cost() -> None:
    """A batch that is planned already ends where it was to end, whatever is read of it."""
    with FakeCluster() as cluster:
        cluster.create_topic("t", 1)
        write(cluster, "t", [b"x"] * 5)
        with Source(cluster, subscribe="t", startingOffsets="earliest", failOnDataLoss="false") as source:
            topic = source.planner._brokers.topic
            end = source.latest(source.planner.first())
            source.planner._brokers.topic = lambda _: None  # type: ignore[method-assign]
            assert source.latest(end) == source.latest(end) == end
            assert source.events == [SourceDataLost("t", 0, "missing", 5, 5, None)]
            source.planner._brokers.topic = topic  # type: ignore[method-assign]
            write(cluster, "t", [b"y"] * 4)
            planned = source.latest(end)
            source.planner._brokers.topic = lambda _: None  # type: ignore[method-assign]
            assert source.values(end, planned) == []
            assert source.events[1:] == [SourceDataLost("t", 0, "missing", 5, 9, (5, 8))]


def test_a_run_until_now_reads_on_although_a_leader_reported_too_low_an_end_at_its_start() -> None:
    """The run ended without a record: its end was below its beginning."""
    with FakeCluster() as cluster, FaultProxy(bootstrap=cluster.bootstrap_servers[0]) as proxy:
        cluster.create_topic("t", 1)
        write(cluster, "t", [b"x"] * 5)
        with Source(proxy, subscribe="t", startingOffsets="earliest") as source:
            end = source.latest(source.planner.first())
            write(cluster, "t", [b"y"] * 4)
            source.restart()
            rule = proxy.on("ListOffsets", topic="t").set(offset=2)
            source.planner.stop_at_latest()
            rule.remove()
            until = source.latest(end, 3)
            assert source.values(end, until) == [b"y"] * 3
            write(cluster, "t", [b"z"] * 4)
            last = source.latest(until)
            assert source.values(until, last) == [b"y"]
            assert source.latest(last) == last
