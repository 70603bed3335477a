"""Rules of docs/design-consumer.md."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import consuming
import pytest
from consuming import Consumers, Writer, collect, kafka_errors, new_topic, until
from kafka import TopicPartition
from kafka.serializer import Deserializer
from kafka.structs import OffsetAndMetadata

from kafkasafe.errors import LogDivergedError
from kafkasafe.events import LogDiverged
from kafkasafe.history.epochs import Lineage
from kafkasafe.testing.proxy import FaultProxy


def test_the_seek_after_a_divergence_is_the_last_word(fake_kafka):
    """Going on behind the place where the log parted is the application's right; it is not examined again."""
    topic = new_topic(fake_kafka, 1, config={"min.insync.replicas": 1})
    tp = TopicPartition(topic, 0)
    with Consumers(fake_kafka) as consumers, Writer(fake_kafka) as writer:
        consumer = consumers.assigned(topic, auto_offset_reset="earliest")
        writer.write(topic, 10)
        collect(consumer, 10)

        def during():
            writer.write(topic, 10, acks=1)
            collect(consumer, 10)

        fake_kafka.unclean_failover(topic, during=during)
        with pytest.raises(LogDivergedError) as told:
            consumer.poll(120_000)
        assert (told.value.event.divergent_offset, told.value.event.position) == (10, 20)
        writer.write(topic, 20)
        consumer.seek(tp, 15)
        assert [record.offset for record in collect(consumer, 15)] == list(range(15, 30))
        fake_kafka.move_leader(topic)  # its position is examined once more
        writer.write(topic, 1)
        assert [record.offset for record in collect(consumer, 1)] == [30]
        assert len(consumers.of(LogDiverged)) == 1


def test_a_walk_begins_anew_where_the_leader_changed(fake_kafka):
    """Answers of two leaders make no history. So each question says under which epoch its leader is thought to lead."""
    topic = new_topic(fake_kafka)
    epochs = []

    def note(exchange):
        asked = exchange.request.topics[0].partitions[0]
        epochs.append((asked.leader_epoch, asked.current_leader_epoch))

    with FaultProxy(bootstrap=fake_kafka.bootstrap_servers[0]) as proxy:
        cluster = SimpleNamespace(bootstrap_servers=proxy.bootstrap_servers)
        with Consumers(cluster) as consumers, Writer(fake_kafka) as writer:
            consumer = consumers.assigned(topic, auto_offset_reset="earliest")
            writer.write(topic, 5)
            collect(consumer, 5)
            before = fake_kafka.partition_state(topic).leader_epoch
            proxy.on("OffsetForLeaderEpoch", topic=topic).edit(note)
            proxy.on("OffsetForLeaderEpoch", topic=topic).answer(74, times=1)
            fake_kafka.move_leader(topic)
            writer.write(topic, 5)
            assert [record.offset for record in collect(consumer, 5)] == list(range(5, 10))
            assert not consumers.of(LogDiverged)
            until(lambda: len(epochs) >= 2)
    assert set(epochs) == {(before, before + 1)}, "the same question, to the leader of one epoch"


@pytest.mark.parametrize("poll", ["poll", "poll_arrow"])
def test_nothing_waits_between_taking_and_returning(fake_kafka, monkeypatch, poll):
    """What is taken is gone from the position: Ctrl-C in between lost it, and a commit at the end skipped it."""
    topic = new_topic(fake_kafka)
    consuming.produce(fake_kafka, topic, [b"%d" % number for number in range(20)])
    going_on = threading.Event()
    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(topic, auto_offset_reset="earliest")
        until(lambda: getattr(consumer, poll)(100, max_records=5))
        fetcher = consumer._fetcher
        send = fetcher._send_fetches_async

        async def hang():
            # A check of the position, which new metadata may begin at any time, makes poll drop what it has not taken.
            # Then it has nothing in hand, and has to fetch.
            while fetcher._taken and not going_on.is_set():
                await fetcher._manager._net.sleep(0.02)
            return await send()

        taken = []
        monkeypatch.setattr(fetcher, "_send_fetches_async", hang)
        reader = threading.Thread(target=lambda: taken.append(getattr(consumer, poll)(60_000)))
        reader.start()
        reader.join(30)
        returned = not reader.is_alive()
        going_on.set()
        reader.join(60)
        assert returned, "it waits for the next fetch to be sent"
        (found,) = taken
        assert (sum(map(len, found.values())) if poll == "poll" else found.num_rows) == 15


def test_interrupted_in_the_middle_of_a_take_nothing_is_lost(fake_kafka):
    topic = new_topic(fake_kafka)
    consuming.produce(fake_kafka, topic, [b"%d" % number for number in range(200)])
    interrupts = [b"130", b"30", b"0"]

    class Interrupts(Deserializer):
        def deserialize(self, topic, headers, data):
            if interrupts and data == interrupts[-1]:
                interrupts.pop()
                raise KeyboardInterrupt
            return data

    taken = []

    def take(consumer):
        try:
            for records in consumer.poll(1000, max_records=60).values():
                taken.extend(record.value for record in records)
        except KeyboardInterrupt:
            pass
        return len(taken) >= 200

    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(topic, auto_offset_reset="earliest", value_deserializer=Interrupts())
        until(lambda: take(consumer))
    assert not interrupts
    assert taken == [b"%d" % number for number in range(200)]


def test_metadata_of_the_application_that_are_too_large_concern_that_commit_only(fake_kafka):
    """Later commits carry the history of the records read, as before."""
    topic = new_topic(fake_kafka)
    tp = TopicPartition(topic, 0)
    consuming.produce(fake_kafka, topic, [b"x"] * 10)
    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(
            topic, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False
        )
        collect(consumer, 10)
        with pytest.raises(kafka_errors.OffsetMetadataTooLargeError):
            consumer.commit({tp: OffsetAndMetadata(9, "x" * 5000, -1)})
        consumer.commit()
        committed = consumer.committed(tp, metadata=True)
        assert committed.offset == 10
        assert Lineage.decode(committed.metadata).end_offset == 10


@pytest.mark.parametrize("restarted", [False, True])
def test_records_that_a_seek_has_skipped_are_not_missed(fake_kafka, restarted):
    """The consumer does not know where the epochs between two records that it has read begin and end."""
    topic = new_topic(fake_kafka)
    tp = TopicPartition(topic, 0)
    with Consumers(fake_kafka) as consumers, Writer(fake_kafka) as writer:
        reads = {"group_id": topic, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        consumer = consumers.assigned(topic, **reads)
        writer.write(topic, 10)
        collect(consumer, 10)
        for _ in range(2):
            fake_kafka.move_leader(topic)
            writer.write(topic, 10)
        consumer.seek(tp, 25)
        collect(consumer, 5)
        consumer.seek(tp, 15)
        if restarted:
            consumer.commit()
            consumer.close()
            consumer = consumers.assigned(topic, **reads)
        assert [record.offset for record in collect(consumer, 15)] == list(range(15, 30))
        consumer.seek(tp, 12)
        assert [record.offset for record in collect(consumer, 18)] == list(range(12, 30))
        assert not consumers.of(LogDiverged)


@pytest.mark.parametrize("how", ["assigned_again", "restarted", "committed"])
def test_records_that_a_seek_has_skipped_are_not_missed_later(fake_kafka, tmp_path, how):
    """The history that is kept for the next assignment, in `lineage_path` for the next run, or in a committed offset,
    names them, too.
    """
    topic = new_topic(fake_kafka)
    tp = TopicPartition(topic, 0)
    with Consumers(fake_kafka) as consumers, Writer(fake_kafka) as writer:
        carried = {"group_id": topic} if how == "committed" else {"lineage_path": tmp_path / "lineage"}
        reads = {"auto_offset_reset": "earliest", **carried}
        consumer = consumers.assigned(topic, **reads)
        writer.write(topic, 10)
        collect(consumer, 10)
        for _ in range(2):
            fake_kafka.move_leader(topic)
            writer.write(topic, 10)
        consumer.seek(tp, 25)
        collect(consumer, 5)
        if how != "assigned_again":
            consumer.close()
            consumer = consumers.assigned(topic, **reads)
            if how == "committed":
                assert consumer.position(tp) == 30
        else:
            consumer.unsubscribe()
            consumer.assign([tp])
        consumer.seek(tp, 15)
        assert [record.offset for record in collect(consumer, 15)] == list(range(15, 30))
        assert not consumers.of(LogDiverged)
