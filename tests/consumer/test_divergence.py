"""Records that were read and are gone, on real brokers: found to the record, also where other clients see nothing."""

from __future__ import annotations

import itertools
import shutil

import consuming
import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition
from consuming import Consumers, Writer, collect, new_topic, until
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from kafkasafe.errors import LineageFileError, LogDivergedError
from kafkasafe.events import EndOffsetRegressed, LogDiverged
from kafkasafe.history.epochs import Lineage
from kafkasafe.testing.broker import KafkaCluster

pytestmark = pytest.mark.kafka

A, B = 1, 2


@pytest.fixture(scope="module")
def cluster():
    config = {
        "offsets.topic.replication.factor": 2,
        "min.insync.replicas": 1,
        # A consumer that asks for a topic in the moment when it is deleted would make it anew.
        "auto.create.topics.enable": False,
    }
    with KafkaCluster(brokers=2, config=config) as running:
        # The first group makes the topic of the offsets, which needs both brokers.
        consuming.make_offsets_topic(running)
        yield running


@pytest.fixture
def consumers(cluster):
    cluster.recover()
    with Consumers(cluster) as opened:
        yield opened


def unclean_topic(cluster):
    return new_topic(
        cluster,
        assignments={0: [A, B]},
        config={"min.insync.replicas": 1, "unclean.leader.election.enable": True},
    )


class Alternation:
    """A leads, then B without what A wrote, and so on: two histories of one partition."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.topic = unclean_topic(cluster)
        self.written = {A: [], B: []}
        """Of each broker's log, the leader epoch of each record."""
        self.leads(3)
        self.written[B] = list(self.written[A])
        # On a slow machine B may have been out of sync for a moment, and acks=all have meant A alone.
        until(lambda: self.cluster.log_end(self.topic, 0, B) == 3)
        self.cluster.kill(B)

    def leads(self, count):
        with Writer(self.cluster) as writer:
            leader = self.cluster.leader(self.topic)
            writer.write(self.topic, count, acks=1)
            epoch = self.cluster.partition_state(self.topic).leader_epoch
            self.written[leader] += [epoch] * count

    def switch(self, to):
        self.cluster.kill(A if to == B else B)
        self.cluster.start(to)
        until(lambda: self.cluster.leader(self.topic) == to)

    def first_difference(self):
        pairs = itertools.zip_longest(self.written[A], self.written[B])
        return next(offset for offset, (ours, theirs) in enumerate(pairs) if ours != theirs)


# Fetch v11 does not say that a log diverges.
FETCH_V11 = {"api_version": (2, 4)}


def confluent_reads_on(cluster, tp, position, epoch, end):
    """confluent-kafka, asked to stop at a log that was cut: offsets that it returns."""
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": ",".join(cluster.bootstrap_servers),
            "group.id": tp.topic,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([ConfluentPartition(*tp, position, leader_epoch=epoch)])
        found = []
        until(lambda: (found.extend(consumer.consume(100, 0.5)), len(found) >= end - position)[1])
        assert not any(message.error() for message in found)
        return [message.offset() for message in found]
    finally:
        consumer.close()


def test_one_unclean_election_while_reading(cluster, consumers):
    """By one who is there, one with an old Fetch, and a group that has a restart and a rebalance meanwhile."""
    topic = unclean_topic(cluster)
    tp = TopicPartition(topic, 0)
    consumer = consumers.assigned(topic, auto_offset_reset="earliest")
    old = consumers.assigned(topic, auto_offset_reset="earliest", **FETCH_V11)
    options = {
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "heartbeat_interval_ms": 300,
        # A broker that just started may not know the topic yet; kafka-python asks again only then.
        "metadata_max_age_ms": 1000,
    }
    member = consumers(topic, **options)
    with Writer(cluster) as writer:
        writer.write(topic, 10)
        for each in (consumer, old, member):
            collect(each, 10)

        def during():
            writer.write(topic, 10, acks=1)
            for each in (consumer, old, member):
                collect(each, 10)
            member.commit()
            member.close()

        lost = cluster.unclean_failover(topic, during=during)
        assert lost.offsets == range(10, 20)
        with pytest.raises(LogDivergedError) as told:
            consumer.poll(120_000)
        event = told.value.event
        assert (event.divergent_offset, event.rolled_back, event.replaced, event.position) == (
            10,
            (10, 19),
            None,
            20,
        )
        assert event.exact
        with pytest.raises(LogDivergedError):  # until it is decided about
            consumer.poll(1000)
        assert len(consumers.of(LogDiverged)) == 1
        consumer.seek(tp, event.divergent_offset)
        writer.write(topic, 13)
        assert [record.offset for record in collect(consumer, 13)] == list(range(10, 23))
        assert len(consumers.of(LogDiverged)) == 1
        # The log is longer than it was.
        with pytest.raises(LogDivergedError) as told:
            old.poll(120_000)
        assert (told.value.event.divergent_offset, told.value.event.replaced) == (10, (10, 19))

        # Back with the committed offset; it is not decided about when another member takes over.
        one = consumers(topic, **options)
        until(lambda: diverged(one) == 10)
        two = consumers(topic, **options)
        consuming.join(one, two)
        one.close()
        until(lambda: diverged(two) == 10, 120)
        two.seek(tp, 10)
        assert [record.offset for record in collect(two, 13)] == list(range(10, 23))
        two.commit()
        two.close()
        three = consumers(topic, **options)
        writer.write(topic, 1)
        assert [record.offset for record in collect(three, 1)] == [23]


def diverged(consumer):
    """Where, if that is what `poll` says."""
    try:
        consumer.poll(200)
    except LogDivergedError as error:
        return error.event.divergent_offset
    return None


def test_many_unclean_elections_are_found_from_every_position(cluster, consumers):
    """KIP-279's histories. Nobody else finds them where the first answer ends at or past the position."""
    log = Alternation(cluster)
    log.leads(2)
    consumer = consumers(group_id=log.topic, auto_offset_reset="earliest", enable_auto_commit=False)
    tp = TopicPartition(log.topic, 0)
    consumer.assign([tp])
    collect(consumer, 5)
    for to, count in ((B, 3), (A, 2), (B, 3), (A, 2)):
        log.switch(to)
        log.leads(count)
        if to == A:
            collect(consumer, count)
    read = list(log.written[A])
    lineage = consumer._objects.parts.of(tp).history.lineage
    assert [lineage.epoch_at(offset) for offset in range(9)] == read
    log.switch(B)
    log.leads(3)
    cluster.start(A)
    cluster.wait_in_sync(log.topic)
    first = log.first_difference()
    assert (first, len(read), len(log.written[B])) == (3, 9, 12)

    # The one that was there all the time.
    with pytest.raises(LogDivergedError) as told:
        consumer.poll(120_000)
    event = told.value.event
    assert (event.divergent_offset, event.rolled_back, event.replaced) == (3, (3, 8), (3, 8))
    assert event.epochs == tuple(dict.fromkeys(read[3:]))
    assert event.round_trips == 3

    # Those that come back with a committed offset, from every position of the history.
    setter = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, group_id=log.topic, enable_auto_commit=False
    )
    setter.assign([tp])
    for position in range(1, 10):
        known = lineage.copy()
        known.truncate(position)
        setter.commit({tp: OffsetAndMetadata(position, known.encode(), read[position - 1])})
        fetch = FETCH_V11 if position % 2 else {}
        restarted = consumers(group_id=log.topic, auto_offset_reset="none", enable_auto_commit=False, **fetch)
        restarted.assign([tp])
        if position <= first:
            assert collect(restarted, 12 - position)[0].offset == position
        else:
            with pytest.raises(LogDivergedError) as told:
                restarted.poll(120_000)
            assert (told.value.event.divergent_offset, told.value.event.rolled_back) == (
                first,
                (first, position - 1),
            )
        restarted.close()

    # The controls, where the epoch asked about ends at or behind the position. Nobody says a word.
    for position in (6, 8, 9):
        setter._subscription.seek(tp, OffsetAndMetadata(position, "", read[position - 1]))
        assert [record.offset for record in collect(setter, 12 - position)] == list(range(position, 12))
        assert confluent_reads_on(cluster, tp, position, read[position - 1], 12) == list(range(position, 12))

    # Policies.
    following = consumers(
        group_id=log.topic, auto_offset_reset="none", enable_auto_commit=False, on_divergence="seek"
    )
    following.assign([tp])
    assert [record.offset for record in collect(following, 9)] == list(range(3, 12))
    setter.commit({tp: OffsetAndMetadata(8, known.encode(), read[7])})
    setter.close()
    asked = []
    deciding = consumers(
        group_id=log.topic,
        auto_offset_reset="none",
        enable_auto_commit=False,
        on_divergence=lambda event: asked.append(event) or event.position,
    )
    deciding.assign([tp])
    assert [record.offset for record in collect(deciding, 4)] == list(range(8, 12))
    assert [event.divergent_offset for event in asked] == [3]
    following.commit()
    kept = Lineage.decode(following.committed(tp, metadata=True).metadata)
    assert [kept.epoch_at(offset) for offset in range(12)] == log.written[B]


def test_a_topic_made_anew(cluster, consumers):
    topic = unclean_topic(cluster)
    tp = TopicPartition(topic, 0)
    consumer = consumers(
        group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False, metadata_max_age_ms=1000
    )
    consumer.assign([tp])
    consuming.produce(cluster, topic, [b"x"] * 6)
    collect(consumer, 6)
    before = consumer._cluster.topic_id(topic)
    cluster.delete_topic(topic)
    cluster.create_topic(topic, assignments={0: [A, B]})
    consuming.produce(cluster, topic, [b"y"] * 9)
    until(lambda: consumer._cluster.topic_id(topic) not in {None, before})
    with pytest.raises(LogDivergedError, match="recreated") as told:
        consumer.poll(120_000)
    event = told.value.event
    assert (event.reason, event.divergent_offset, event.rolled_back) == ("recreated", 0, (0, 5))
    consumer.seek(tp, 0)
    assert [record.value for record in collect(consumer, 9)] == [b"y"] * 9


def test_positions_that_the_application_keeps(cluster, consumers, tmp_path):
    """In no group: the file tells the next life what was read, however it was."""
    topic = new_topic(cluster, replication_factor=1)
    tp = TopicPartition(topic, 0)
    path = tmp_path / "lineage.json"
    consuming.produce(cluster, topic, [b"x"] * 12)
    first = consumers.assigned(topic, auto_offset_reset="earliest", lineage_path=path, max_poll_records=3)
    assert [next(first).offset for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(LineageFileError, match="in use by another consumer"):
        consumers(lineage_path=path)
    until(lambda: first.poll_arrow(500, 3).num_rows)
    first.save_lineage()
    crashed = tmp_path / "crashed.json"
    shutil.copy(path, crashed)
    collect(first, 5)
    first.close()
    cluster.lose_log(topic)
    consuming.produce(cluster, topic, [b"y"] * 20)
    found = {}
    for file, position in ((path, 12), (crashed, 7), (crashed, 2), (None, 12)):
        again = consumers.assigned(topic, auto_offset_reset="none", lineage_path=file)
        again.seek(tp, position)
        try:
            found[file, position] = collect(again, 1)[0].offset
        except LogDivergedError as error:
            found[file, position] = error.event.rolled_back
        again.close()
    assert found == {(path, 12): (0, 11), (crashed, 7): (0, 6), (crashed, 2): (0, 1), (None, 12): 12}
    path.write_text(path.read_text().replace(topic, topic[::-1]))
    with pytest.raises(LineageFileError, match="checksum does not match"):
        consumers(lineage_path=path)


def test_a_log_that_lost_its_end_is_lower_with_a_proof(cluster, consumers, tmp_path):
    """And over a restart of the consumer: the file remembers."""
    topic = new_topic(cluster, replication_factor=1)
    tp = TopicPartition(topic, 0)
    consuming.produce(cluster, topic, [b"x"] * 12)
    before = consumers(offsets_path=tmp_path / "ends.json")
    assert before.end_offsets([tp]) == {tp: 12}
    before.close()
    leader = cluster.leader(topic)
    cluster.lose_log(topic)
    assert cluster.leader(topic) == leader
    after = consumers(offsets_path=tmp_path / "ends.json")
    with Writer(cluster) as writer:
        writer.write(topic, 4)
    assert after.end_offsets([tp]) == {tp: 4}
    (lowered,) = consumers.of(EndOffsetRegressed)
    assert (lowered.offset, lowered.previous, lowered.reason) == (4, 12, "unclean_election")
    assert after.end_offsets([tp]) == {tp: 4}
    assert len(consumers.events) == 1
