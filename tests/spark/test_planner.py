"""What is planned on the driver and read by tasks, on real brokers, without a JVM: leaders that answer too little,
leader moves under load, unclean elections, retention, topics created again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import sourcing
from sourcing import Load, Source, checkpoint, new_topic, offset_of, until, write

from kafkasafe.errors import ConfigError, DataLossError
from kafkasafe.events import EndOffsetHeld, SourceDataLost
from kafkasafe.spark import query_topics
from kafkasafe.spark.brokers import SourceUnavailableError
from kafkasafe.spark.planner import Range
from kafkasafe.spark.positions import Positions
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import Exchange, FaultProxy

pytestmark = pytest.mark.kafka

LATEST = -1


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[KafkaCluster, FaultProxy]]:
    """Three brokers, each behind the proxy."""
    with FaultProxy((1, 2, 3)) as proxy, KafkaCluster(brokers=3, proxy_ports=proxy.ports) as cluster:
        proxy.connect(cluster)
        yield cluster, proxy


@pytest.fixture
def brokers(proxied: tuple[KafkaCluster, FaultProxy]) -> Iterator[KafkaCluster]:
    cluster, proxy = proxied
    yield cluster
    proxy.clear()
    cluster.recover()


def numbered(first: int, behind: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, behind)]


def asks_for_end(exchange: Exchange) -> bool:
    wanted = [partition for topic in exchange.request.topics for partition in topic.partitions]
    return any(partition.timestamp == LATEST for partition in wanted)


def move(cluster: KafkaCluster, topic: str) -> None:
    state = cluster.wait_in_sync(topic, 0)
    cluster.move_leader(topic, 0, to=next(node for node in state.replicas if node != state.leader))


def test_a_new_leader_that_answers_too_little_makes_no_range_twice(
    brokers: KafkaCluster, proxied: tuple[KafkaCluster, FaultProxy]
) -> None:
    proxy = proxied[1]
    topic = new_topic(brokers)
    write(brokers, topic, numbered(0, 10))
    with Source(brokers, subscribe=topic, startingOffsets="earliest") as source:
        start = source.planner.first()
        seen = source.latest(start)
        assert source.values(start, seen) == numbered(0, 10)
        move(brokers, topic)
        stale = proxy.on("ListOffsets", topic=topic).when(asks_for_end).set(offset=4)
        for life in range(2):
            before = stale.hits
            again = source.latest(seen)
            assert stale.hits > before
            assert again.encode() == seen.encode(), f"life {life}"
            assert source.planner.ranges(checkpoint(seen), checkpoint(again)) == []
            source.restart()
        held = [event for event in source.events if isinstance(event, EndOffsetHeld)]
        assert {(event.offset, event.answered) for event in held} == {(10, 4)}
        proxy.clear()
        write(brokers, topic, numbered(10, 15))
        later = until(lambda: (now := source.latest(seen)).encode() != seen.encode() and now)
        assert source.values(seen, later) == numbered(10, 15)
        assert source.values(start, later) == numbered(0, 15)


def test_without_leader_epochs_a_lower_end_is_held_as_well(
    brokers: KafkaCluster, proxied: tuple[KafkaCluster, FaultProxy]
) -> None:
    """As of brokers before 2.4, and a checkpoint of Spark's own source."""
    topic = new_topic(brokers)
    write(brokers, topic, numbered(0, 10))
    rule = proxied[1].on("ListOffsets", topic=topic).when(asks_for_end)
    rule.set(offset=3, leader_epoch=-1)
    with Source(brokers, subscribe=topic) as source:
        start = Positions.decode({topic: {"0": 8}})
        assert source.latest(start).encode() == checkpoint(start).encode()
        rule.remove()
        end = source.latest(start)
        assert source.values(start, end) == numbered(8, 10)


def test_leaders_that_move_under_load_give_each_record_once(brokers: KafkaCluster) -> None:
    topic = new_topic(brokers)
    with (
        Load(brokers, topic, pause_s=0.0005) as load,
        Source(brokers, subscribe=topic, startingOffsets="earliest") as source,
    ):
        position = source.planner.first()
        read: list[bytes] = []

        def step() -> int:
            nonlocal position
            end = source.latest(position)
            assert offset_of(end, topic) >= offset_of(position, topic)
            read.extend(source.values(position, end))
            position = end
            return len(read)

        for round_number in range(4):
            before = len(read)
            move(brokers, topic)
            until(lambda least=before + 50: step() >= least)
            if round_number == 1:
                source.restart()
        load.stop()
        until(lambda: step() >= load.count)
        assert read == numbered(0, load.count)
        lineage = position.marks[topic, 0].lineage
        assert len(lineage.entries) >= 3


@pytest.mark.parametrize("fail", ["true", "false"])
def test_records_that_were_read_and_are_gone(brokers: KafkaCluster, fail: str) -> None:
    topic = new_topic(brokers)
    write(brokers, topic, numbered(0, 10))
    with Source(brokers, subscribe=topic, startingOffsets="earliest", failOnDataLoss=fail) as source:
        start = source.planner.first()
        middle = source.latest(start)
        gone: list[Positions] = []
        pieces: list[Range] = []

        def only_the_leader_has_it() -> None:
            write(brokers, topic, numbered(10, 17))
            gone.append(until(lambda: (now := source.latest(middle)).encode() != middle.encode() and now))
            pieces.extend(source.planner.ranges(middle, gone[0]))

        lost = brokers.unclean_failover(topic, during=only_the_leader_has_it)
        assert list(lost.offsets) == list(range(10, 17))
        # More than was there before: nothing but the epochs tells.
        write(brokers, topic, [b"other-%d" % number for number in range(12)])
        source.restart()
        if fail == "true":
            with pytest.raises(
                DataLossError, match="differs from 10 on: it no longer holds offsets 10 to 16"
            ) as raised:
                source.latest(gone[0])
            assert "failOnDataLoss" in str(raised.value)
            assert (raised.value.first_offset, raised.value.last_offset) == (10, 16)
            with pytest.raises(DataLossError):
                source.planner.ranges(checkpoint(middle), checkpoint(gone[0]))
            # A task that had its range before notices it as well.
            with pytest.raises(DataLossError, match="from 10 on its log now holds other records"):
                source.records(pieces)
            return
        after = source.latest(gone[0])
        assert source.values(gone[0], after) == [b"other-%d" % number for number in range(12)]
        mark = after.marks[topic, 0]
        assert (mark.begin, mark.why, mark.lost) == (10, "diverged", (10, 16))
        told = [event for event in source.events if isinstance(event, SourceDataLost)]
        assert told == [SourceDataLost(topic, 0, "diverged", 17, 10, (10, 16))]
        # The batch that was planned before and had not been read: nothing of what replaced it.
        assert source.values(middle, gone[0]) == []
        assert source.events[-1].lost == (10, 16)
        assert source.records(pieces) == []
        assert source.events[-1].resumed_at == 10
        # And its own range again, in another life.
        source.restart()
        assert source.values(gone[0], after) == [b"other-%d" % number for number in range(12)]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_records_that_retention_removed_unread(brokers: KafkaCluster, fail: str) -> None:
    topic = new_topic(brokers)
    write(brokers, topic, numbered(0, 20))
    with Source(brokers, subscribe=topic, startingOffsets="earliest", failOnDataLoss=fail) as source:
        start = source.planner.first()
        first = source.latest(start, 5)
        assert source.values(start, first) == numbered(0, 5)
        planned = source.latest(first, 6)
        pieces = source.planner.ranges(first, planned)
        sourcing.delete_before(brokers, topic, 8)
        if fail == "true":
            with pytest.raises(DataLossError, match=r"now begins at 8.*removed offsets 5 to 7 unread"):
                source.latest(first)
            with pytest.raises(DataLossError, match="removed offsets 5 to 7 before they were read"):
                source.records(pieces)
            return
        end = source.latest(first)
        assert source.values(first, end) == numbered(8, 20)
        assert end.marks[topic, 0].lost == (5, 7)
        assert source.events == [SourceDataLost(topic, 0, "retention", 5, 8, (5, 7))]
        # Removed between plan and read: the task says so.
        assert [row["value"] for row in source.records(pieces)] == numbered(8, 11)
        assert source.events[1] == SourceDataLost(topic, 0, "retention", 5, 8, (5, 7))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_that_was_created_again(brokers: KafkaCluster, fail: str) -> None:
    topic = new_topic(brokers)
    write(brokers, topic, numbered(0, 10))
    with Source(brokers, subscribe=topic, startingOffsets="earliest", failOnDataLoss=fail) as source:
        start = source.planner.first()
        end = source.latest(start)
        brokers.delete_topic(topic)
        brokers.create_topic(topic)
        write(brokers, topic, numbered(100, 130))
        source.restart()
        if fail == "true":
            with pytest.raises(DataLossError, match="deleted and created again"):
                source.latest(end)
            return
        after = source.latest(end)
        assert source.values(end, after) == numbered(100, 130)
        assert [event.reason for event in source.events if isinstance(event, SourceDataLost)] == ["recreated"]


def test_a_topic_that_is_gone_is_a_loss(brokers: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_topics, "MISSING_TOPIC_S", 1.0)
    topic, other = new_topic(brokers), new_topic(brokers)
    write(brokers, topic, numbered(0, 3))
    with Source(brokers, subscribe=f"{topic},{other}", startingOffsets="earliest") as source:
        start = source.planner.first()
        end = source.latest(start)
        brokers.delete_topic(other)
        source.restart()
        with pytest.raises(DataLossError, match=f"{other}-0 was read to 0, but does not exist any more"):
            source.latest(end)
        with Source(brokers, subscribe=f"{topic},{other}", failOnDataLoss="false") as lenient:
            assert lenient.latest(end).encode() == end.encode()
            assert [event.reason for event in lenient.events] == ["missing"]


def test_new_partitions_and_topics_are_read_from_their_first_record(brokers: KafkaCluster) -> None:
    topic = new_topic(brokers)
    with Source(brokers, subscribePattern=topic + ".*") as source:
        start = source.planner.first()
        brokers.create_topic(topic + "-b", partitions=2)
        write(brokers, topic + "-b", numbered(0, 3), 1)
        source.restart()
        end = source.latest(start)
        assert source.values(start, end) == numbered(0, 3)
        assert source.values(end, source.latest(end)) == []
        assert set(end.marks) == {(topic, 0), (topic + "-b", 0), (topic + "-b", 1)}


def test_a_pattern_that_matches_nothing_yet_waits(brokers: KafkaCluster) -> None:
    topic = new_topic(brokers) + "-later"
    with Source(brokers, subscribePattern=topic + ".*") as source:
        start = source.latest(source.planner.first())
        assert source.latest(start).encode() == start.encode()
        brokers.create_topic(topic)
        write(brokers, topic, numbered(0, 4))
        source.restart()
        assert source.values(start, source.latest(start)) == numbered(0, 4)
    with Source(brokers, streaming=False, subscribePattern="nothing-like-that") as batch:
        assert batch.planner.batch() == []


def test_a_topic_that_is_not_subscribed_to_any_more_is_named_as_that(brokers: KafkaCluster) -> None:
    topic, other = new_topic(brokers), new_topic(brokers)
    write(brokers, other, numbered(0, 3))
    with Source(brokers, subscribe=f"{topic},{other}", startingOffsets="earliest") as source:
        end = source.latest(source.planner.first())
    with (
        Source(brokers, subscribe=topic) as source,
        pytest.raises(
            DataLossError, match=f"{other}-0 was read to 3, but the query does not read it any more"
        ),
    ):
        source.latest(end)


def test_a_batch_that_would_end_before_it_begins_is_refused(brokers: KafkaCluster) -> None:
    topic = new_topic(brokers, 2)
    for partition in (0, 1):
        write(brokers, topic, numbered(0, 20), partition)
    given = {
        "startingOffsets": json.dumps({topic: {"0": 10, "1": 10}}),
        "endingOffsets": json.dumps({topic: {"0": 20, "1": 5}}),
    }
    with (
        Source(brokers, streaming=False, subscribe=topic, **given) as source,
        pytest.raises(ConfigError, match=f"{topic}-1 would be read from 10 to 5"),
    ):
        source.planner.batch()
    # What is there begins behind what was asked for: nobody's mistake.
    sourcing.delete_before(brokers, topic, 8)
    given["endingOffsets"] = json.dumps({topic: {"0": 5, "1": 20}})
    with Source(brokers, streaming=False, subscribe=topic, endingOffsets=given["endingOffsets"]) as source:
        assert [piece.partition for piece in source.planner.batch()] == [1]


def test_a_micro_batch_waits_for_min_offsets(brokers: KafkaCluster) -> None:
    topic = new_topic(brokers)
    write(brokers, topic, numbered(0, 5))
    with Source(brokers, subscribe=topic, startingOffsets="earliest") as source:
        begin = source.planner.first()
        start = source.latest(begin, at_least=6)
        assert source.values(begin, start) == []
        assert source.latest(start, at_least=6).encode() == start.encode()
        assert source.planner.seen is not None
        assert offset_of(source.planner.seen, topic) == 5  # reported all the same
        write(brokers, topic, numbered(5, 9))
        end = until(lambda: (now := source.latest(start, 8, 6)).encode() != start.encode() and now)
        assert source.values(start, end) == numbered(0, 8)


def test_limits_and_pieces(brokers: KafkaCluster) -> None:
    topic = new_topic(brokers, 2)
    write(brokers, topic, numbered(0, 90), 0)
    write(brokers, topic, numbered(90, 100), 1)
    given = {"subscribe": topic, "startingOffsets": "earliest", "minPartitions": "5"}
    with Source(brokers, **given) as source:
        position = source.planner.first()
        source.planner.stop_at_latest()
        write(brokers, topic, [b"later"])
        read, sizes = [], []
        while (end := source.latest(position, 30)).encode() != position.encode():
            pieces = source.planner.ranges(position, end)
            assert len(pieces) >= 5
            batch = [row["value"] for row in source.records(pieces)]
            sizes.append(len(batch))
            read += batch
            position = end
        assert sizes == [30, 30, 30, 10]
        assert sorted(read, key=int) == numbered(0, 100)


def test_begin_and_end_by_offset_and_by_time(brokers: KafkaCluster) -> None:
    topic = new_topic(brokers, 2)
    timed(brokers, topic)
    with Source(
        brokers,
        streaming=False,
        subscribe=topic,
        startingOffsets=f'{{"{topic}":{{"0":2,"1":-2}}}}',
        endingOffsets=f'{{"{topic}":{{"0":5,"1":-1}}}}',
    ) as source:
        assert [row["value"] for row in source.records(source.planner.batch())] == numbered(2, 5)
    by_time = {
        "startingOffsetsByTimestamp": f'{{"{topic}":{{"0":1003000,"1":1003000}}}}',
        "endingTimestamp": "1006500",
    }
    with (
        Source(brokers, streaming=False, subscribe=topic, **by_time) as source,
        pytest.raises(ConfigError, match=f"{topic}-1 has no record at or after 1003000 ms"),
    ):
        source.planner.batch()
    by_time["startingOffsetsByTimestampStrategy"] = "latest"
    with Source(brokers, streaming=False, subscribe=topic, **by_time) as source:
        assert [row["value"] for row in source.records(source.planner.batch())] == numbered(3, 7)
    with (
        Source(brokers, subscribe=topic, startingOffsets=f'{{"{topic}":{{"0":2}}}}') as source,
        pytest.raises(ConfigError, match=f"lacks {topic}-1"),
    ):
        source.planner.first()
    with (
        Source(brokers, assign=f'{{"{topic}":[0]}}', startingOffsets=f'{{"{topic}":{{"0":11}}}}') as source,
        pytest.raises(ConfigError, match="ends at 10"),
    ):
        source.planner.first()


def test_only_what_is_stable_is_read_committed(brokers: KafkaCluster) -> None:
    topic = new_topic(brokers)
    sourcing.transact(brokers, topic, [b"gone"] * 3, commit=False)
    sourcing.transact(brokers, topic, [b"kept"] * 2, commit=True)
    with sourcing.producing(brokers, transactional_id=topic) as producer:
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(topic, b"open", partition=0)
        producer.flush(60)
        options = {"subscribe": topic, "startingOffsets": "earliest"}
        with (
            Source(brokers, **options, kafka__isolation__level="read_committed") as committed,
            Source(brokers, **options) as plain,
        ):
            start = committed.planner.first()
            # The end is the first offset of the open transaction, once the markers before it are written.
            stable = until(lambda: offset_of(now := committed.latest(start), topic) == 7 and now)
            assert committed.values(start, stable) == [b"kept"] * 2
            assert plain.values(start, plain.latest(start)) == [b"gone"] * 3 + [b"kept"] * 2 + [b"open"]
            producer.commit_transaction(60)
            later = until(lambda: offset_of(now := committed.latest(stable), topic) == 9 and now)
            assert committed.values(stable, later) == [b"open"]


def test_headers_nulls_and_times_are_as_sparks_own_source_gives_them(brokers: KafkaCluster) -> None:
    topic = new_topic(brokers, config={"retention.ms": -1})
    with sourcing.producing(brokers) as producer:
        producer.produce(topic, None, key=b"k", partition=0, timestamp=1_700_000_000_123)
        producer.produce(
            topic, b"v", partition=0, timestamp=1_700_000_000_124, headers=[("a", b"1"), ("a", None)]
        )
    with Source(brokers, streaming=False, subscribe=topic) as source:
        one, two = source.records(source.planner.batch())
    assert (one["key"], one["value"], one["headers"]) == (b"k", None, None)
    assert (two["key"], two["value"]) == (None, b"v")
    assert two["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert one["timestamp"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert [one["timestampType"], one["topic"], one["partition"], one["offset"]] == [0, topic, 0, 0]


def test_what_is_not_there_is_named(brokers: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_topics, "MISSING_TOPIC_S", 1.0)
    with (
        Source(brokers, subscribe="no-such-topic") as source,
        pytest.raises(ConfigError, match=r"does not have no-such-topic: create it, or correct subscribe"),
    ):
        source.planner.first()


def test_brokers_that_do_not_answer_are_named() -> None:
    class Nowhere:
        bootstrap_servers = ("127.0.0.1:1",)

    with (
        Source(Nowhere, subscribe="orders", kafkaConsumer__pollTimeoutMs="700") as source,
        pytest.raises(SourceUnavailableError, match=r"No broker at 127.0.0.1:1 .* kafka.bootstrap.servers"),
    ):
        source.planner.first()


def timed(cluster: KafkaCluster, topic: str) -> None:
    """Ten records, at 1000000, 1001000, ... ms, which retention would take at its next look."""
    cluster.alter_topic(topic, {"retention.ms": -1})
    with sourcing.producing(cluster) as producer:
        for number in range(10):
            producer.produce(topic, b"%d" % number, partition=0, timestamp=1_000_000 + 1000 * number)


def asks(timestamp: int) -> Callable[[Exchange], bool]:
    return lambda exchange: exchange.request.topics[0].partitions[0].timestamp == timestamp


def tier(proxy: FaultProxy, topic: str, local_start: int) -> None:
    """The leader says that it has on its own disk only what comes from an offset on."""
    proxy.on("ListOffsets", topic=topic).when(asks(-4)).set(offset=local_start)


@pytest.mark.parametrize("missed", [6, -1])
def test_a_bound_by_time_that_missed_remote_storage_is_waited_for(
    brokers: KafkaCluster, proxied: tuple[KafkaCluster, FaultProxy], missed: int
) -> None:
    """Facts of 4.3.0: a leader that does not find its remote segments answers with a record of its own disk."""
    proxy, topic = proxied[1], new_topic(brokers)
    timed(brokers, topic)
    given = {"subscribe": topic, "kafkaConsumer__pollTimeoutMs": "1200"}
    starting = {"startingOffsetsByTimestamp": f'{{"{topic}":{{"0":1002000}}}}', **given}
    ending = {"startingOffsets": "earliest", "endingTimestamp": "1002000", **given}
    tier(proxy, topic, 6)
    proxy.on("ListOffsets", topic=topic).when(asks(1_002_000)).set(offset=missed)
    proxy.on("Fetch", topic=topic).answer(code=1, high_watermark=-1, records=None)
    for options, is_streaming in ((starting, True), (starting, False), (ending, False)):
        with Source(brokers, streaming=is_streaming, **options) as source:
            plan = source.planner.first if is_streaming else source.planner.batch
            with pytest.raises(
                SourceUnavailableError, match=r"REMOTE_STORAGE_NOT_READY.*Nothing was skipped"
            ):
                plan()
            assert source.events == []
    proxy.clear()
    tier(proxy, topic, 6)  # and it can be read
    with Source(brokers, streaming=False, **starting) as source:
        assert source.records(source.planner.batch())[0]["offset"] == 2
    with Source(brokers, streaming=False, **ending) as source:
        assert [row["value"] for row in source.records(source.planner.batch())] == numbered(0, 2)


def test_bounds_do_not_go_back_in_one_life_of_a_query(
    brokers: KafkaCluster, proxied: tuple[KafkaCluster, FaultProxy]
) -> None:
    proxy, topic = proxied[1], new_topic(brokers)
    timed(brokers, topic)
    sourcing.delete_before(brokers, topic, 2)
    by_time = {"startingTimestamp": "1004500"}
    with Source(brokers, streaming=False, subscribe=topic, **by_time) as source:
        assert source.planner.batch() == [Range(topic, 0, 5, 10)]
        proxy.on("ListOffsets", topic=topic).when(asks(1_004_500)).set(offset=-1, timestamp=-1)
        assert source.planner.batch() == [Range(topic, 0, 5, 10)]
        assert source.events == [EndOffsetHeld(topic, 0, 5, -1, "not_found", "timestamp")]
    with Source(brokers, streaming=False, subscribe=topic) as source:
        assert source.planner.batch() == [Range(topic, 0, 2, 10)]
        proxy.on("ListOffsets", topic=topic).when(asks(-2)).set(offset=0)
        assert source.planner.batch() == [Range(topic, 0, 2, 10)]
        assert source.events == [EndOffsetHeld(topic, 0, 2, 0, "not_deleted", "earliest")]


def test_a_partition_that_gives_nothing_ends_the_task_in_time(
    brokers: KafkaCluster, proxied: tuple[KafkaCluster, FaultProxy]
) -> None:
    topic = new_topic(brokers)
    write(brokers, topic, numbered(0, 5))
    given = {"subscribe": topic, "startingOffsets": "earliest", "kafkaConsumer__pollTimeoutMs": "1000"}
    with Source(brokers, **given) as source:
        start = source.planner.first()
        pieces = source.planner.ranges(start, source.latest(start))
        rule = proxied[1].on("Fetch", topic=topic).answer(code=9)
        with pytest.raises(
            SourceUnavailableError, match=r"gave no records at offset 0 .to be read to 5.*REPLICA_NOT"
        ):
            source.records(pieces)
        rule.remove()
        # Others fail for a moment, and the task goes on.
        proxied[1].on("Fetch", topic=topic).answer(code=6, times=2)
        proxied[1].on("Fetch", topic=topic).answer(code=-1, times=1)
        assert [row["value"] for row in source.records(pieces)] == numbered(0, 5)
