"""A topic that was deleted and created again under a consumer that has not decided about it yet.

1. Incarnation 1 reads offsets 0 to 9 and commits 10. The topic is deleted, created again, and gets 15 records.
2. `poll` raises LogDivergedError(recreated). The program ends without a seek: close(), or kill -9.
3. Both logs have leader epoch 0. So offset 10, committed in the meantime, would look good to incarnation 2, which would
   begin there: the new topic's records 0 to 9 would be skipped.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import consuming
import pytest
from consuming import Consumers, collect, kafka_errors, new_topic, told, until
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from kafkasafe import SafeProducer
from kafkasafe._consuming.history import History
from kafkasafe._consuming.log_checks import LogChecks
from kafkasafe.cluster.procedures import Ask, Pause
from kafkasafe.errors import LogDivergedError
from kafkasafe.events import LogDiverged, PositionReset
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.proxy import FaultProxy

OLD = [b"old%d" % number for number in range(10)]
NEW = [b"new%d" % number for number in range(15)]


@pytest.fixture
def cluster():
    # A consumer that asks for the topic between its deletion and its creation must not create it.
    with FakeCluster(brokers=3, config={"auto.create.topics.enable": False}) as running:
        yield running


def options(topic, **more):
    return {
        "group_id": topic,
        "auto_offset_reset": "earliest",
        # `poll_for_commits` says when one is due.
        "auto_commit_interval_ms": 3_600_000,
        "metadata_max_age_ms": 1000,
        **more,
    }


def recreate(cluster, topic, values=NEW, partitions=1):
    cluster.delete_topic(topic)
    cluster.create_topic(topic, partitions)
    consuming.produce(cluster, topic, values)


def recreate_under(consumer, cluster, topic, values=NEW, **more):
    """The metadata tell the consumer before it fetches: until they do, it cannot tell one topic from the other."""
    partitions = consumer.assignment()
    consumer.pause(*partitions)
    recreate(cluster, topic, values, **more)
    consumer.topics()
    consumer.resume(*partitions)


def undecided(cluster, consumers, **more):
    """A consumer that has read the old topic's records, and has raised that they are gone."""
    topic = new_topic(cluster, 1)
    consuming.produce(cluster, topic, OLD)
    consumer = consumers(topic, **options(topic, **more))
    collect(consumer, len(OLD))
    consumer.commit()
    recreate_under(consumer, cluster, topic)
    event = told(consumer)
    assert (event.reason, event.divergent_offset, event.rolled_back) == ("recreated", 0, (0, 9))
    return TopicPartition(topic, 0), consumer


def committed(cluster, tp):
    """As any client sees it."""
    with contextlib.closing(
        KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, group_id=tp.topic)
    ) as plain:
        return plain.committed(tp)


def poll_for_commits(consumer):
    """Polls until an automatic commit was due and has been answered."""
    answered, done = [], consumer._coordinator._commit_offsets_async_on_complete
    consumer._coordinator._commit_offsets_async_on_complete = lambda *of: (answered.append(of), done(*of))
    consumer._coordinator.next_auto_commit_deadline = 0.0

    def polled():
        with contextlib.suppress(LogDivergedError):
            consumer.poll(20)
        return answered

    until(polled)


def wait_for(consumer, future):
    until(lambda: future.is_done)
    assert future.succeeded(), future.exception


ENDS = {
    "close": lambda consumer: consumer.close(),
    "commit": lambda consumer: consumer.commit(),
    "commit_async": lambda consumer: wait_for(consumer, consumer.commit_async()),
    "interval": poll_for_commits,
    "unsubscribe": lambda consumer: consumer.unsubscribe(),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_undecided_position_is_in_no_commit_of_all_positions(cluster, end):
    with Consumers(cluster) as consumers:
        tp, consumer = undecided(cluster, consumers)
        assert committed(cluster, tp) is None, "the broker forgets it with the topic"
        ENDS[end](consumer)
        assert committed(cluster, tp) is None
        consumer.close(autocommit=False)
        consumers.events.clear()
        again = consumers(tp.topic, **options(tp.topic))
        assert [record.value for record in collect(again, len(NEW))] == NEW
        (reset,) = consumers.of(PositionReset)
        assert (reset.reason, reset.position) == ("no_position", 0)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_it_is_raised_though_the_topic_was_seen_to_be_missing_meanwhile(cluster, reset):
    """The group takes the partition away, and the brokers delete its committed offset. So its position is reset."""
    topic = new_topic(cluster, 1)
    consuming.produce(cluster, topic, OLD)
    with Consumers(cluster) as consumers:
        consumer = consumers(topic, **options(topic, auto_offset_reset=reset))
        until(lambda: consumer.poll(20) is not None and consumer.assignment())
        consumer.seek(TopicPartition(topic, 0), 0)
        collect(consumer, len(OLD))
        consumer.commit()
        cluster.delete_topic(topic)
        until(lambda: not consumer.poll(20) and not consumer.assignment(), 60)
        cluster.create_topic(topic, 1)
        consuming.produce(cluster, topic, NEW)
        event = told(consumer)
        assert (event.reason, event.rolled_back, event.replaced) == ("recreated", (0, 9), (0, 9))
        consumer.seek(TopicPartition(topic, 0), event.divergent_offset)
        assert [record.value for record in collect(consumer, len(NEW))] == NEW


def test_the_positions_of_other_partitions_are_committed_meanwhile(cluster):
    with Consumers(cluster) as consumers:
        tp, consumer = undecided(cluster, consumers)
        other = TopicPartition(new_topic(cluster, 1), 0)
        consuming.produce(cluster, other.topic, OLD)
        consumer.subscribe([tp.topic, other.topic])

        def read_all():
            with contextlib.suppress(LogDivergedError):
                consumer.poll(100)
            return consumer._subscription.assignment.get(
                other
            ) and consumer._objects.commits.committable().get(other)

        until(lambda: (found := read_all()) and found.offset == len(OLD))
        until(lambda: diverged(consumer))
        consumer.commit()
        assert consumer.committed(other) == len(OLD)
        assert consumer.committed(tp) is None


def test_what_was_handed_out_of_an_undecided_partition_is_not_committed_either(cluster):
    """A consumer of asyncio commits up to what it has handed out, which may be less than was fetched."""
    with Consumers(cluster) as consumers:
        tp, consumer = undecided(cluster, consumers)
        assert consumer._objects.commits.committable({tp: 4}) == {}


def test_a_position_that_moves_without_a_decision_is_examined_again(cluster):
    """As one of a consumer of asyncio does, whose `seek` failed: it goes back to what was not handed out."""
    with Consumers(cluster) as consumers:
        tp, consumer = undecided(cluster, consumers)
        KafkaConsumer.seek(consumer, tp, 4)
        assert told(consumer).rolled_back == (0, 3)
        consumer.close()
        assert committed(cluster, tp) is None


def diverged(consumer):
    try:
        consumer.poll(100)
    except LogDivergedError:
        return True
    return False


def test_an_offset_committed_before_the_consumer_knew_says_which_topic_was_read(cluster):
    """The next incarnation finds out."""
    topic = new_topic(cluster, 1)
    tp = TopicPartition(topic, 0)
    with Consumers(cluster) as consumers:
        consuming.produce(cluster, topic, OLD)
        first = consumers(topic, **options(topic, metadata_max_age_ms=3_600_000))
        collect(first, len(OLD))
        recreate(cluster, topic)
        first.commit({tp: OffsetAndMetadata(len(OLD), "", -1)})
        assert committed(cluster, tp) == len(OLD)
        first.close(autocommit=False)
        second = consumers(topic, **options(topic))
        event = told(second)
        assert (event.reason, event.divergent_offset, event.rolled_back) == ("recreated", 0, (0, 9))
        second.close()  # it has not decided either
        third = consumers(topic, **options(topic))
        assert told(third).rolled_back == (0, 9)
        third.seek(tp, 0)
        assert [record.value for record in collect(third, len(NEW))] == NEW
        third.close()
        fourth = consumers(topic, **options(topic))
        consuming.produce(cluster, topic, [b"more"])
        assert [record.value for record in collect(fourth, 1)] == [b"more"]


def test_a_commit_that_comes_while_the_topic_is_examined_leaves_it_out(cluster, monkeypatch):
    """The metadata name another topic, and whether it is one has been asked, but not answered."""
    with Consumers(cluster) as consumers:
        topic = new_topic(cluster, 1)
        tp = TopicPartition(topic, 0)
        consuming.produce(cluster, topic, OLD)
        consumer = consumers(topic, **options(topic))
        collect(consumer, len(OLD))
        before = consumer._cluster.topic_id(topic)
        monkeypatch.setattr(LogChecks, "walk", lambda *_: unanswered())
        recreate(cluster, topic)

        def known():
            consumer.poll(50)
            return consumer._cluster.topic_id(topic) not in {None, before} and tp in consumer.assignment()

        until(known)
        consumer.commit()
        assert consumer.committed(tp) is None


def unanswered():
    while True:
        yield Pause(3600)


def walk_with(read, leads, requested):
    """kafka-python's metadata name the topic in `leads`, and the fresh ones name topic C."""
    metadata = SimpleNamespace(
        leadership=lambda tp: (leads["id"], 1, 5), request=lambda: requested.append(leads["id"])
    )
    info = SimpleNamespace(topic_id=b"C", error_code=0, partitions={0: SimpleNamespace(leader_epoch=0)})
    network = SimpleNamespace(topic=lambda _: info, refresh_metadata=lambda *_: None)
    lookups = SimpleNamespace(listed=lambda *_: iter([Ask(print)]))
    checks = LogChecks(
        network=lambda: network, lookups=lookups, metadata=metadata, reports=SimpleNamespace(stats=None), tracker=None,
        hold_timeout_s=1.0, isolation=0,
    )  # fmt: skip
    return checks.walk(TopicPartition("t", 0), read.read(10), 10)


def test_a_walk_ends_if_all_metadata_name_a_former_topic_for_long(monkeypatch):
    """It has become a former one by mistake, while all metadata were old."""
    leads = {"id": b"B"}
    read = History(None)
    for topic in (b"C", b"B"):
        read.adopt(topic)
    walk = walk_with(read, leads, [])
    for leads["id"] in (b"B", b"C", b"B", b"C", b"C"):
        assert isinstance(next(walk), Ask)  # the fresh metadata
        assert isinstance(walk.send(None), Pause)
    monkeypatch.setattr("kafkasafe._consuming.history.FORMER_TOPIC_S", 0.0)
    assert isinstance(next(walk), Ask)
    assert isinstance(walk.send(None), Ask)  # the end of the log: the walk goes on


@pytest.mark.parametrize("read_topic", [b"A", b"C"])
def test_a_walk_waits_until_both_metadata_name_the_same_topic(read_topic):
    """Topic A was deleted and created again as B, then as C; kafka-python's metadata are from the time of B.

    If C was read, another member of the group has read it, and committed the position.
    """
    leads = {"id": b"B"}
    requested = []
    read = History(None)
    read.adopt(read_topic)
    walk = walk_with(read, leads, requested)
    for _ in range(3):
        assert isinstance(next(walk), Ask)  # the fresh metadata
        assert isinstance(walk.send(None), Pause)
    assert requested == [b"B"] * 3
    leads["id"] = b"C"
    assert isinstance(next(walk), Ask)
    assert isinstance(walk.send(None), Ask)  # the end or the start of the log: the walk goes on
    assert requested == [b"B"] * 3


@pytest.mark.parametrize("commit", ["commit", "commit_async"])
def test_an_offset_of_an_undecided_partition_is_refused(cluster, commit):
    with Consumers(cluster) as consumers:
        tp, consumer = undecided(cluster, consumers)
        other = TopicPartition("other", 0)
        with pytest.raises(LogDivergedError, match="then seek to 0"):
            getattr(consumer, commit)(
                {other: OffsetAndMetadata(3, "", -1), tp: OffsetAndMetadata(10, "mine", -1)}
            )
        assert consumer.committed(tp) is None
        assert consumer.committed(other) is None
        # Where the two logs part nothing is skipped.
        consumer.commit({tp: OffsetAndMetadata(0, "", -1)})
        assert committed(cluster, tp) == 0
        # Decided: any offset is the application's right.
        consumer.seek(tp, 12)
        consumer.commit({tp: OffsetAndMetadata(10, "", -1)})
        consumer.close()
        assert committed(cluster, tp) == 12
        again = consumers(tp.topic, **options(tp.topic))
        assert [record.value for record in collect(again, 3)] == NEW[12:]


def test_what_a_policy_decides_is_committed(cluster):
    with Consumers(cluster) as consumers:
        topic = new_topic(cluster, 1)
        consuming.produce(cluster, topic, OLD)
        consumer = consumers(topic, **options(topic, on_divergence="seek"))
        collect(consumer, len(OLD))
        recreate_under(consumer, cluster, topic)
        assert [record.value for record in collect(consumer, len(NEW))] == NEW
        consumer.close()
        assert committed(cluster, TopicPartition(topic, 0)) == len(NEW)
        assert len(consumers.of(LogDiverged)) == 1


@pytest.mark.parametrize("does", ["seek", "unassign"])
def test_what_a_hook_decides_is_not_replaced_by_the_policy(cluster, does):
    topic = new_topic(cluster, 2)
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)

    def decide(event):
        if isinstance(event, LogDiverged):
            told.append(event)
            if does == "seek":
                consumer.seek(tp, event.resume_offset)
            else:
                consumer.assign([other])

    told = []
    with Consumers(cluster) as consumers:
        consuming.produce(cluster, topic, OLD)
        consumer = consumers.assigned(
            topic,
            auto_offset_reset="earliest",
            metadata_max_age_ms=1000,
            on_divergence="seek",
            on_event=decide,
        )
        collect(consumer, len(OLD))
        recreate_under(consumer, cluster, topic, partitions=2)
        consuming.produce(cluster, topic, [b"other"] * 5, partition=1)
        found = [record.value for record in collect(consumer, 5)]
        assert found == (NEW[10:] if does == "seek" else [b"other"] * 5)
        assert len(told) == 1


def test_the_file_keeps_the_topic_that_was_read_until_it_is_decided(cluster, tmp_path):
    """For positions that the application keeps itself."""
    path, topic = tmp_path / "lineage.json", new_topic(cluster, 1)
    tp = TopicPartition(topic, 0)
    keeps = {"lineage_path": path, "auto_offset_reset": "earliest", "metadata_max_age_ms": 1000}
    with Consumers(cluster) as consumers:
        consuming.produce(cluster, topic, OLD)
        first = consumers.assigned(topic, **keeps)
        collect(first, len(OLD))
        recreate_under(first, cluster, topic)
        told(first)
        first.close()
        for _ in range(2):
            again = consumers.assigned(topic, **keeps)
            again.seek(tp, len(OLD))
            assert told(again).rolled_back == (0, 9)
            again.close()
        deciding = consumers.assigned(topic, **keeps)
        deciding.seek(tp, len(OLD))
        told(deciding)
        deciding.seek(tp, 0)
        assert [record.value for record in collect(deciding, len(NEW))] == NEW
        deciding.close()
        last = consumers.assigned(topic, **keeps)
        last.seek(tp, 12)
        assert [record.value for record in collect(last, 3)] == NEW[12:]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_decision_holds_although_nothing_was_read_after_it(cluster, tmp_path, restarted):
    """The partition is assigned again, to this consumer or to the next incarnation."""
    topic = new_topic(cluster, 2)
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    keeps = {
        "lineage_path": tmp_path / "lineage.json",
        "auto_offset_reset": "earliest",
        "metadata_max_age_ms": 1000,
    }
    with Consumers(cluster) as consumers:
        consuming.produce(cluster, topic, OLD)
        consumer = consumers.assigned(topic, **keeps)
        collect(consumer, len(OLD))
        recreate_under(consumer, cluster, topic, partitions=2)
        skips_to = told(consumer).resume_offset
        consumer.seek(tp, skips_to)
        assert consumer.position(tp) == skips_to == len(OLD)
        if restarted:
            consumer.close()
            consumer = consumers.assigned(topic, **keeps)
        else:
            consumer.assign([other])
            consumer.poll()
            consumer.assign([tp])
        consumer.seek(tp, skips_to)
        assert [record.value for record in collect(consumer, 5)] == NEW[10:]
        assert len(consumers.of(LogDiverged)) == 1


def test_a_log_that_was_cut_is_told_again_after_a_restart(cluster):
    """Its epochs tell it, so this position is committed: else the next incarnation would not know what was read."""
    topic = new_topic(cluster, 1, config={"min.insync.replicas": 1})
    with Consumers(cluster) as consumers, consuming.Writer(cluster) as writer:
        writer.write(topic, 5)
        first = consumers(topic, **options(topic))
        collect(first, 5)
        cluster.unclean_failover(topic, during=lambda: (writer.write(topic, 5, acks=1), collect(first, 5)))
        writer.write(topic, 15)
        assert told(first).rolled_back == (5, 9)
        first.close()
        second = consumers(topic, **options(topic))
        event = told(second)
        assert (event.reason, event.divergent_offset, event.rolled_back) == ("truncated", 5, (5, 9))
        second.commit({TopicPartition(topic, 0): OffsetAndMetadata(9, "", -1)})
        second.close(autocommit=False)
        third = consumers(topic, **options(topic))
        assert told(third).rolled_back == (5, 8)


@pytest.mark.parametrize("go_back", ["seek", "seek_to_beginning"])
def test_what_was_read_of_the_former_topic_does_not_count_in_the_new_one_after_a_seek_to_its_start(
    cluster, go_back
):
    """The former topic has changed its leader. Its later epochs would contradict the log of the new topic."""
    topic = new_topic(cluster, 1)
    tp = TopicPartition(topic, 0)
    with Consumers(cluster) as consumers:
        consuming.produce(cluster, topic, OLD[:5])
        for _ in range(3):
            cluster.move_leader(topic)
        consuming.produce(cluster, topic, OLD[5:])
        consumer = consumers.assigned(topic, auto_offset_reset="earliest", metadata_max_age_ms=1000)
        collect(consumer, len(OLD))
        if go_back == "seek":
            consumer.seek(tp, 0)
        else:
            consumer.seek_to_beginning(tp)
        recreate_under(consumer, cluster, topic)
        assert [record.value for record in collect(consumer, len(NEW))] == NEW
        cluster.move_leader(topic)
        consuming.produce(cluster, topic, [b"more"])
        assert [record.value for record in collect(consumer, 1)] == [b"more"]
        assert consumers.of(LogDiverged) == []


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("count", [15, 5], ids=["longer", "shorter"])
def test_where_nothing_was_read_the_new_topic_is_read_from_its_start(cluster, reset, count):
    """The consumer began at the end of the former one: offset 10 of the new one is another place."""
    topic = new_topic(cluster, 1)
    tp = TopicPartition(topic, 0)
    with Consumers(cluster) as consumers:
        consuming.produce(cluster, topic, OLD)
        consumer = consumers.assigned(topic, auto_offset_reset=reset, metadata_max_age_ms=1000)
        consumer.seek_to_end(tp)
        # From here on a fetch waits at the broker.
        until(lambda: consumer.poll(10) is not None and consumer._objects.parts.of(tp).checked)
        recreate_under(consumer, cluster, topic, NEW[:count])
        assert [record.value for record in collect(consumer, count)] == NEW[:count]
        last = consumers.of(PositionReset)[-1]
        assert (last.reason, last.strategy, last.position, last.skipped) == ("recreated", "earliest", 0, None)


def test_what_retention_removed_of_the_new_topic_begins_at_its_own_start(cluster):
    """The event named only the records after the position, which was one in the former topic."""
    topic = new_topic(cluster, 1)
    tp = TopicPartition(topic, 0)
    with Consumers(cluster) as consumers:
        consuming.produce(cluster, topic, OLD)
        consumer = consumers.assigned(topic, auto_offset_reset="latest", metadata_max_age_ms=1000)
        until(lambda: consumer.poll(10) is not None and consumer._objects.parts.of(tp).checked)
        consumer.pause(tp)
        recreate(cluster, topic)
        cluster.delete_records(topic, before=12)
        consumer.topics()
        consumer.resume(tp)
        assert [record.value for record in collect(consumer, 3)] == NEW[12:]
        last = consumers.of(PositionReset)[-1]
        assert (last.reason, last.previous, last.position, last.skipped) == ("recreated", 10, 12, (0, 11))


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_position_before_the_start_of_the_new_topic_is_not_one_that_retention_overtook(cluster, reset):
    """Fetches of brokers before 3.1 name no topic id, so such a broker only answers that the offset is out of range."""

    def limit(exchange):
        for key in exchange.response.api_keys:
            if key.api_key == 1:
                key.max_version = 12

    topic = new_topic(cluster, 1)
    with FaultProxy(bootstrap=cluster.bootstrap_servers[0]) as proxy, Consumers(cluster) as consumers:
        proxy.on("ApiVersions").edit(limit)
        consuming.produce(cluster, topic, OLD)
        consumer = consumers.assigned(
            topic, auto_offset_reset=reset, bootstrap_servers=proxy.bootstrap_servers
        )
        consumer.seek(TopicPartition(topic, 0), 0)
        collect(consumer, len(OLD))
        consumer.pause(*consumer.assignment())
        # No fetch is in flight whose answer would say that the topic was deleted.
        until(lambda: not (consumer.poll(100) or consumer._fetcher._nodes_with_pending_fetch_requests))
        recreate(cluster, topic)
        cluster.delete_records(topic, before=12)
        consumer.resume(*consumer.assignment())
        event = told(consumer)
        assert (event.reason, event.divergent_offset, event.rolled_back) == ("recreated", 0, (0, 9))
        assert consumers.of(PositionReset) == []
        consumer.seek(TopicPartition(topic, 0), 12)
        assert [record.value for record in collect(consumer, 3)] == NEW[12:]


def test_where_nothing_was_read_and_nothing_may_be_reset_it_is_raised(cluster):
    topic = new_topic(cluster, 1)
    tp = TopicPartition(topic, 0)
    with Consumers(cluster) as consumers:
        consuming.produce(cluster, topic, OLD)
        consumer = consumers.assigned(topic, auto_offset_reset="none", metadata_max_age_ms=1000)
        consumer.seek(tp, 10)
        until(lambda: consumer.poll(10) is not None and consumer._objects.parts.of(tp).checked)
        recreate_under(consumer, cluster, topic)

        def refused():
            try:
                assert not consumer.poll(100)
            except kafka_errors.OffsetOutOfRangeError:
                return True
            return False

        until(refused)
        consumer.seek(tp, 12)
        assert [record.value for record in collect(consumer, 3)] == NEW[12:]


def test_what_was_committed_where_nothing_was_read_says_which_topic_it_is_of(cluster):
    topic = new_topic(cluster, 1)
    with Consumers(cluster) as consumers:
        consuming.produce(cluster, topic, OLD)
        first = consumers(topic, **options(topic, auto_offset_reset="latest", metadata_max_age_ms=3_600_000))
        consuming.join(first)
        until(lambda: first.poll(10) is not None and first._objects.commits.committable())
        recreate(cluster, topic)
        tp = TopicPartition(topic, 0)
        first.commit({tp: OffsetAndMetadata(10, "", -1)})
        first.close(autocommit=False)
        assert committed(cluster, tp) == 10
        consumers.events.clear()
        again = consumers(topic, **options(topic, auto_offset_reset="latest"))
        assert [record.value for record in collect(again, len(NEW))] == NEW
        (reset,) = consumers.of(PositionReset)
        assert (reset.reason, reset.previous, reset.position) == ("recreated", 10, 0)


def test_the_offset_of_an_atomic_batch_names_the_topic_that_was_read(cluster, tmp_path):
    """It was committed without the topic's id: the next incarnation skipped the new topic's first records unnoticed."""
    topic, out = new_topic(cluster, 1), new_topic(cluster, 1)
    tp = TopicPartition(topic, 0)
    consuming.produce(cluster, topic, OLD)
    with (
        Consumers(cluster) as consumers,
        SafeProducer(bootstrap_servers=cluster.bootstrap_servers, spool_dir=tmp_path) as producer,
    ):
        consumer = consumers(topic, **options(topic, enable_auto_commit=False))
        collect(consumer, len(OLD))
        with producer.batch() as batch:
            batch.send(out, b"sum")
            batch.send_offsets(consumer)
            # Before the batch is delivered, the topic is recreated.
            recreate(cluster, topic)
        batch.outcome.get(60)
        assert committed(cluster, tp) == len(OLD)
        consumer.close(autocommit=False)
        again = consumers(topic, **options(topic, enable_auto_commit=False))
        event = told(again)
        assert (event.reason, event.divergent_offset, event.rolled_back) == ("recreated", 0, (0, 9))
        again.seek(tp, event.divergent_offset)
        assert [record.value for record in collect(again, len(NEW))] == NEW
