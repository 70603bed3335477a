"""What a program written for KafkaConsumer finds: the same methods, values and errors."""

from __future__ import annotations

import contextlib
import threading

import consuming
import pytest
from consuming import Consumers, collect, kafka_errors, new_topic, until
from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.serializer import Deserializer
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp

from kafkasafe.consumer import SafeConsumer
from kafkasafe.errors import ConfigError, LogDivergedError
from kafkasafe.events import PositionReset


@pytest.fixture
def consumers(some_kafka):
    with Consumers(some_kafka) as opened:
        yield opened


class TestAssigned:
    @pytest.mark.also_real
    def test_reads_what_kafkaconsumer_reads(self, some_kafka, consumers):
        topic = new_topic(some_kafka, 2)
        consuming.produce(some_kafka, topic, [b"%d" % n for n in range(50)], 0, compression_type="gzip")
        consuming.produce(some_kafka, topic, [b"%d" % n for n in range(30)], 1)
        ours = consumers.assigned(topic, 0, 1, auto_offset_reset="earliest", max_poll_records=7)
        plain = KafkaConsumer(
            bootstrap_servers=some_kafka.bootstrap_servers,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        plain.assign(ours.assignment())
        try:
            assert sorted(collect(ours, 80)) == sorted(collect(plain, 80))
        finally:
            plain.close()

    def test_iterates_and_ends_after_consumer_timeout(self, some_kafka, consumers):
        topic = new_topic(some_kafka)
        consuming.produce(some_kafka, topic, [b"%d" % n for n in range(20)])
        consumer = consumers.assigned(topic, auto_offset_reset="earliest", consumer_timeout_ms=3000)
        assert [int(record.value) for record in consumer] == list(range(20))
        assert consumer.position(TopicPartition(topic, 0)) == 20

    def test_seek_pause_resume_position_highwater(self, some_kafka, consumers):
        topic, tp = new_topic(some_kafka, 2), None
        consuming.produce(some_kafka, topic, [b"%d" % n for n in range(10)], 0)
        consuming.produce(some_kafka, topic, [b"%d" % n for n in range(10)], 1)
        consumer = consumers.assigned(topic, 0, 1, auto_offset_reset="earliest")
        tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
        collect(consumer, 20)
        assert (consumer.position(tp), consumer.highwater(tp)) == (10, 10)
        consumer.pause(other)
        assert consumer.paused() == {other}
        consumer.seek(tp, 4)
        consumer.seek(other, 4)
        assert [record.offset for record in collect(consumer, 6)] == list(range(4, 10))
        consumer.resume(other)
        assert [record.offset for record in collect(consumer, 6)] == list(range(4, 10))
        consumer.seek_to_beginning(tp)
        assert consumer.position(tp) == 0
        consumer.seek_to_end()
        assert (consumer.position(tp), consumer.position(other)) == (10, 10)
        with pytest.raises(ValueError):
            consumer.seek(tp, -1)
        with pytest.raises(ValueError):
            consumer.seek(TopicPartition(topic, 7), 1)

    @pytest.mark.also_real
    def test_offsets(self, some_kafka, consumers):
        topic = new_topic(some_kafka, 2)
        consuming.produce(some_kafka, topic, [b"x"] * 5, 0)
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        consumer = consumers()
        assert consumer.end_offsets([first, second]) == {first: 5, second: 0}
        assert consumer.beginning_offsets([first, second]) == {first: 0, second: 0}
        found = consumer.offsets_for_times({first: 0, second: 0})
        assert found[second] is None
        assert isinstance(found[first], OffsetAndTimestamp)
        assert found[first].offset == 0
        assert found[first].timestamp > 0
        assert consumer.offsets_for_times({first: 2**50}) == {first: None}
        assert consumer.end_offsets([]) == {}
        with pytest.raises(ValueError):
            consumer.offsets_for_times({first: -1})

    def test_one_missing_partition_does_not_hide_the_others(self, some_kafka, consumers):
        topic = new_topic(some_kafka)
        consuming.produce(some_kafka, topic, [b"x"] * 3)
        there, missing = TopicPartition(topic, 0), TopicPartition(topic, 9)
        consumer = consumers()
        answered = consumer.end_offsets([there, missing], timeout_ms=1000, partial=True)
        assert answered == {there: 3}
        assert set(answered.missing) == {missing}
        with pytest.raises(kafka_errors.KafkaTimeoutError, match=f"{topic}-9"):
            consumer.end_offsets([there, missing], timeout_ms=500)


class TestWithoutAGroup:
    """KafkaConsumer goes on with what it read before, or reads nothing, until partitions change in the cluster."""

    @pytest.mark.also_real
    def test_subscribes_to_other_topics_that_it_knows(self, some_kafka, consumers):
        one, other = (new_topic(some_kafka, 1) for _ in range(2))

        def write(topic, value):
            consuming.produce(some_kafka, topic, [value], 0)

        write(one, b"1.0")
        write(other, b"2.0")
        consumer = consumers(one, other, auto_offset_reset="earliest", metadata_max_age_ms=300_000)
        assert {value for *_, value in collected(consumer, 2)} == {b"1.0", b"2.0"}
        consumer.subscribe([other])
        until(
            lambda: not consumer.poll(50) and consumer.assignment() == {TopicPartition(other, 0)},
            what="the other alone",
        )
        write(one, b"1.1")
        write(other, b"2.1")
        # It goes on where it was: this was assigned all the time.
        assert collected(consumer, 1) == [(other, 1, b"2.1")]
        consumer.subscribe([other, one])
        assert collected(consumer, 2) == [(one, 0, b"1.0"), (one, 1, b"1.1")]
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        consumer.subscribe([one])
        assert collected(consumer, 2) == [(one, 0, b"1.0"), (one, 1, b"1.1")]


def collected(consumer, count):
    return [(record.topic, record.offset, record.value) for record in collect(consumer, count)]


class TestInAGroup:
    @pytest.mark.also_real
    def test_commits_and_resumes(self, some_kafka, consumers):
        topic = new_topic(some_kafka)
        tp = TopicPartition(topic, 0)
        consuming.produce(some_kafka, topic, [b"%d" % n for n in range(30)])
        options = {
            "group_id": topic,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "max_poll_records": 10,
        }
        one = consumers(topic, **options)
        assert [record.offset for record in collect(one, 10)] == list(range(10))
        one.commit()
        assert one.committed(tp) == 10
        collect(one, 10)
        one.commit({tp: OffsetAndMetadata(15, "mine", -1)})
        assert one.committed(tp, metadata=True).metadata == "mine"
        one.close()
        two = consumers(topic, **options)
        assert collect(two, 5)[0].offset == 15
        done = threading.Event()
        two.commit_async(callback=lambda offsets, answer: done.set())
        until(lambda: two.poll(20) is not None and done.is_set())  # poll calls it
        assert two.committed(tp) > 15

    def test_auto_commit(self, some_kafka, consumers):
        topic = new_topic(some_kafka)
        consuming.produce(some_kafka, topic, [b"%d" % n for n in range(10)])
        one = consumers(topic, group_id=topic, auto_offset_reset="earliest")
        collect(one, 10)
        one.close()
        two = consumers(topic, group_id=topic, auto_offset_reset="earliest")
        assert until(lambda: two.poll(500) or two.assignment()) is not None
        assert two.position(TopicPartition(topic, 0)) == 10

    def test_a_rebalance_hands_partitions_over(self, some_kafka, consumers):
        topic = new_topic(some_kafka, 2)
        for number in (0, 1):
            consuming.produce(some_kafka, topic, [b"%d" % n for n in range(10)], number)
        revoked = []

        class Listener(ConsumerRebalanceListener):
            def on_partitions_revoked(self, partitions):
                revoked.extend(partitions)

            def on_partitions_assigned(self, partitions):
                pass

        options = {
            "group_id": topic,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 300,
            "session_timeout_ms": 6000,
        }
        one = consumers(**options)
        one.subscribe([topic], listener=Listener())
        collect(one, 20)
        two = consumers(topic, **options)

        def both():
            one.poll(300)
            two.poll(300)
            return len(one.assignment()) == len(two.assignment()) == 1

        until(both)
        assert len(revoked) == 2
        for number in (0, 1):
            consuming.produce(some_kafka, topic, [b"new"] * 3, number)
        assert [record.value for record in collect(one, 3)] == [b"new"] * 3
        assert [record.value for record in collect(two, 3)] == [b"new"] * 3

    @pytest.mark.also_real
    def test_a_listener_commits_with_commit_async(self, some_kafka, consumers):
        """A listener cannot wait for `commit()`. The commit was sent after the join had begun, and failed with a
        RebalanceInProgressError: the next owner of the partition read the records again.
        """
        topic = new_topic(some_kafka)
        consuming.produce(some_kafka, topic, [b"%d" % n for n in range(10)])
        options = {
            "group_id": topic,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 300,
            "session_timeout_ms": 6000,
        }
        answers = []

        class Listener(ConsumerRebalanceListener):
            def on_partitions_revoked(self, partitions):
                if partitions:
                    one.commit_async(callback=lambda offsets, answer: answers.append(answer))

            def on_partitions_assigned(self, partitions):
                pass

        one = consumers(**options)
        one.subscribe([topic], listener=Listener())
        collect(one, 10)
        two = consumers(topic, **options)

        def is_rebalanced():
            two.poll(100)
            one.poll(100)
            return answers and len(one.assignment() | two.assignment()) == 1

        until(is_rebalanced)
        assert answers == [None]
        assert two.committed(TopicPartition(topic, 0)) == 10


class TestOptions:
    def test_an_unknown_one_names_the_nearest(self):
        with pytest.raises(ConfigError, match="did you mean 'on_divergence'"):
            SafeConsumer(bootstrap_servers="127.0.0.1:9", on_divergance="seek")

    @pytest.mark.parametrize("option", [{"group_protocol": "consumer"}, {"group_remote_assignor": "uniform"}])
    def test_the_newer_group_protocol_is_named_as_missing(self, option):
        """The nearest name was security_protocol."""
        with pytest.raises(
            ConfigError, match=r"Unknown option 'group_\w+': kafka-python lacks the group protocol of KIP-848"
        ):
            SafeConsumer(bootstrap_servers="127.0.0.1:9", group_id="g", **option)

    @pytest.mark.parametrize(
        "option",
        [
            {"on_divergence": "sek"},
            {"auto_offset_reset": "erliest"},
            {"remote_storage_timeout_ms": 0},
            {"on_event": 7},
            {"offsets_hold_timeout_ms": -1000},
            {"offsets_path": "/"},
            {"offsets_path": "/nowhere/ends.json"},
            {"lineage_path": "/nowhere/lineage.json"},
            {"offsets_path": "/tmp/one.json", "lineage_path": "/tmp/one.json"},
            {"group_id": 5},
            {"group_instance_id": 5},
            {"isolation_level": "commited"},
            {"max_poll_records": 0},
            {"key_deserializer": "utf-8"},
            {"value_deserializer": 5},
        ],
    )
    def test_values_that_cannot_work(self, option):
        with pytest.raises(ConfigError, match=next(iter(option))):
            SafeConsumer(**{"bootstrap_servers": "127.0.0.1:9", "on_event": None, **option})


class TestResets:
    def test_none_committed_and_latest_says_what_is_skipped(self, some_kafka, consumers):
        topic = new_topic(some_kafka)
        consuming.produce(some_kafka, topic, [b"x"] * 8)
        consumer = consumers(topic, group_id=topic)
        until(lambda: consumer.poll(500) or consumers.of(PositionReset))
        assert consumers.of(PositionReset) == [
            PositionReset(topic, 0, "no_position", "latest", None, 8, (0, 7))
        ]
        assert consumer.counters["PositionReset"] == 1
        assert consumer.metrics()["kafkasafe-consumer"] == {"PositionReset": 1}

    @pytest.mark.parametrize(
        ("policy", "position", "skipped"), [("earliest", 12, (3, 11)), ("latest", 20, (3, 19))]
    )
    def test_retention_overtakes_a_paused_consumer(self, some_kafka, consumers, policy, position, skipped):
        topic = new_topic(some_kafka)
        tp = TopicPartition(topic, 0)
        consuming.produce(some_kafka, topic, [b"x"] * 20)
        consumer = consumers.assigned(topic, auto_offset_reset=policy, max_poll_records=3)
        consumer.seek(tp, 0)
        collect(consumer, 3)
        consumer.pause(tp)
        consumer.poll(100)
        with some_kafka.admin() as admin:
            admin.delete_records({tp: 12})
        consumer._fetcher._paused_partition_records.clear()  # what was fetched before would still be handed out
        consumer._fetcher._next_partition_records = None
        consumer.resume(tp)
        until(lambda: consumer.poll(500) or consumers.of(PositionReset))
        assert consumers.of(PositionReset) == [
            PositionReset(topic, 0, "retention", policy, 3, position, skipped)
        ]

    @pytest.mark.also_real
    def test_retention_overtakes_a_group_that_was_away(self, some_kafka, consumers):
        topic = new_topic(some_kafka)
        tp = TopicPartition(topic, 0)
        consuming.produce(some_kafka, topic, [b"x"] * 10)
        options = {
            "group_id": topic,
            "auto_offset_reset": "earliest",
            "max_poll_records": 4,
            "enable_auto_commit": False,
        }
        one = consumers(topic, **options)
        collect(one, 4)
        one.commit()
        one.close()
        with some_kafka.admin() as admin:
            admin.delete_records({tp: 7})
        two = consumers(topic, **options)
        assert collect(two, 3)[0].offset == 7
        assert PositionReset(topic, 0, "retention", "earliest", 4, 7, (4, 6)) in consumers.events

    def test_retention_overtakes_a_paused_member_and_a_rebalance(self, some_kafka, consumers):
        topic = new_topic(some_kafka)
        tp = TopicPartition(topic, 0)
        consuming.produce(some_kafka, topic, [b"x"] * 20)
        options = {
            "group_id": topic,
            "auto_offset_reset": "earliest",
            "max_poll_records": 3,
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 300,
        }
        one = consumers(topic, **options)
        collect(one, 3)
        one.commit()
        one.pause(tp)
        with some_kafka.admin() as admin:
            admin.delete_records({tp: 12})
        told = []
        two = consumers(topic, on_event=told.append, **options)
        consuming.join(one, two)
        one.close()
        until(lambda: two.poll(500) and two.position(tp) >= 15)
        # Once more if it had the partition before the other one left as well: nobody has committed since.
        resets = [event for event in told if isinstance(event, PositionReset)]
        assert 1 <= len(resets) <= 2
        assert set(resets) == {PositionReset(topic, 0, "retention", "earliest", 3, 12, (3, 11))}

    def test_members_that_are_polled_in_turns_come_to_an_end(self, some_kafka, consumers):
        """The answer to who waits for the others comes between two polls; some_kafka-python would ask to join anew."""
        for _ in range(4):
            topic = new_topic(some_kafka)
            consuming.produce(some_kafka, topic, [b"x"])
            one, two = (
                consumers(topic, group_id=topic, heartbeat_interval_ms=300, auto_offset_reset="earliest")
                for _ in "12"
            )
            collect(one, 1)
            consuming.join(one, two)
            assert one.assignment() ^ two.assignment() == {TopicPartition(topic, 0)}
            generation = one._coordinator._generation.generation_id
            for _ in range(5):
                for member in (one, two):
                    member.poll(100)
            assert [member._coordinator._generation.generation_id for member in (one, two)] == [
                generation
            ] * 2

    def test_without_a_policy_it_is_an_error_until_a_seek(self, some_kafka, consumers):
        topic = new_topic(some_kafka)
        tp = TopicPartition(topic, 0)
        consuming.produce(some_kafka, topic, [b"x"] * 10)
        with some_kafka.admin() as admin:
            admin.delete_records({tp: 5})
        consumer = consumers.assigned(topic, auto_offset_reset="none")
        consumer.seek(tp, 2)
        for _ in range(2):
            with pytest.raises(kafka_errors.OffsetOutOfRangeError):
                consumer.poll(60_000)
        consumer.seek(tp, 5)
        assert collect(consumer, 5)[0].offset == 5

    @pytest.mark.also_real
    def test_position_raises_the_error_that_poll_raises(self, some_kafka, consumers):
        """KafkaConsumer's `position` returns the offset that is out of range."""
        topic = new_topic(some_kafka)
        tp = TopicPartition(topic, 0)
        consuming.produce(some_kafka, topic, [b"x"] * 10)
        ours = consumers.assigned(topic, auto_offset_reset="none")
        plain = KafkaConsumer(bootstrap_servers=some_kafka.bootstrap_servers, auto_offset_reset="none")
        with contextlib.closing(plain):
            plain.assign([tp])
            for consumer in (ours, plain):
                consumer.seek(tp, 50)
                until(lambda consumer=consumer: is_out_of_range(lambda: consumer.poll(500)))
            assert plain.position(tp) == 50
            assert is_out_of_range(lambda: ours.position(tp))
            ours.seek(tp, 5)
            assert ours.position(tp) == 5

    @pytest.mark.also_real
    @pytest.mark.parametrize("metadata", ["", "mine"])
    def test_a_committed_epoch_that_the_log_never_had_is_a_divergence(self, some_kafka, consumers, metadata):
        """KafkaConsumer reads from the offset."""
        topic = new_topic(some_kafka)
        tp = TopicPartition(topic, 0)
        consuming.produce(some_kafka, topic, [b"x"] * 10)
        options = {"group_id": topic, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        plain = KafkaConsumer(bootstrap_servers=some_kafka.bootstrap_servers, **options)
        with contextlib.closing(plain):
            plain.assign([tp])
            plain.commit({tp: OffsetAndMetadata(5, metadata, 7)})
            assert collect(plain, 5)[0].offset == 5
        ours = consumers.assigned(topic, **options)
        with pytest.raises(LogDivergedError) as raised:
            ours.poll(60_000)
        assert raised.value.event.epochs == (7,)
        ours.seek(tp, 5)
        assert collect(ours, 5)[0].offset == 5

    @pytest.mark.also_real
    def test_a_position_beyond_the_end(self, some_kafka, consumers):
        topic = new_topic(some_kafka)
        consuming.produce(some_kafka, topic, [b"x"] * 10)
        consumer = consumers.assigned(topic, auto_offset_reset="latest")
        consumer.seek(TopicPartition(topic, 0), 50)
        until(lambda: consumer.poll(500) or consumers.of(PositionReset))
        assert consumers.of(PositionReset) == [PositionReset(topic, 0, "beyond_end", "latest", 50, 10, None)]


def is_out_of_range(call):
    try:
        call()
    except kafka_errors.OffsetOutOfRangeError:
        return True
    return False


@pytest.mark.parametrize("wrong", [2**63, -1, 1.5, "5"])
def test_what_is_no_offset_is_refused_before_anything_is_done(fake_kafka, wrong):
    """One that the protocol has no room for was taken, and each commit afterwards failed in kafka-python's encoding."""
    topic = new_topic(fake_kafka)
    at = TopicPartition(topic, 0)
    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(topic, group_id=topic, auto_offset_reset="earliest")
        given = {at: OffsetAndMetadata(wrong, "", -1)}
        for call in (
            lambda: consumer.seek(at, wrong),
            lambda: consumer.commit(given, timeout_ms=1000),
            lambda: consumer.commit_async(given),
        ):
            with pytest.raises(ValueError, match="Not an offset: "):
                call()
        consumer.seek(at, 2**63 - 1)
        consumer.commit()
        assert consumer.committed(at) == 2**63 - 1


@pytest.mark.parametrize(
    "wrong", [["orders"], TopicPartition("orders", 0), "orders", [None], [("orders", "0")]]
)
def test_what_is_no_partition_is_refused_at_once(fake_kafka, wrong):
    """A bare one, or a topic's name: the look-up went on until its time was over."""
    fake_kafka.create_topic("orders")
    with contextlib.closing(SafeConsumer(bootstrap_servers=fake_kafka.bootstrap_servers)) as consumer:
        for call in (
            lambda: consumer.end_offsets(wrong, timeout_ms=300),
            lambda: consumer.beginning_offsets(wrong, timeout_ms=300),
            lambda: consumer.offsets_for_times(dict.fromkeys(wrong, 1)),
        ):
            with pytest.raises(TypeError, match="is not a TopicPartition"):
                call()
        with pytest.raises(TypeError, match="Not a timestamp: '1'"):
            consumer.offsets_for_times({TopicPartition("orders", 0): "1"})


class Number(Deserializer):
    def deserialize(self, topic, headers, data):
        return int(data)


def test_a_deserializer_that_raises_does_so_until_a_seek(fake_kafka):
    topic = new_topic(fake_kafka)
    at = TopicPartition(topic, 0)
    consuming.produce(fake_kafka, topic, [b"0", b"bad", b"2"])
    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(topic, auto_offset_reset="earliest", value_deserializer=Number())
        assert [value for *_, value in collected(consumer, 1)] == [0]
        for _ in range(3):
            with pytest.raises(ValueError, match="bad"):
                consumer.poll(5000)
            assert consumer.position(at) == 1
        consumer.seek(at, 2)
        assert [value for *_, value in collected(consumer, 1)] == [2]
