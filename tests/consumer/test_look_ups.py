"""Starts and look-ups by time do not go back without a proof either (KIP-207); what a look-up's time-out says."""

from __future__ import annotations

from types import SimpleNamespace

import consuming
import pytest
from consuming import Consumers, collect, kafka_errors, looks_up, new_topic, tier, until
from kafka import KafkaProducer, TopicPartition
from kafka.structs import OffsetAndTimestamp

from kafkasafe.errors import OffsetNotAvailableError, RemoteStorageNotReadyError, WaitTimeoutError
from kafkasafe.events import EndOffsetHeld, EndOffsetRegressed
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy

EARLIEST = -2


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=pytest.mark.kafka)])
def proxied(request):
    """The same on the fake cluster, which is fast, and on a real broker."""
    if request.param == "fake":
        with FakeCluster() as cluster, FaultProxy(bootstrap=cluster.bootstrap_servers[0]) as proxy:
            yield cluster, proxy
        return
    with FaultProxy() as proxy, KafkaCluster(brokers=1, proxy_ports=proxy.ports) as cluster:
        proxy.connect(cluster)
        yield cluster, proxy


@pytest.fixture
def consumers(proxy):
    with Consumers(SimpleNamespace(bootstrap_servers=proxy.bootstrap_servers)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("timeout_ms", "error"), [(float("nan"), ValueError), ("5", TypeError), ([5], TypeError)]
)
def test_a_time_out_that_is_none_is_refused(fake_kafka, timeout_ms, error):
    fake_kafka.create_topic("t")
    at = TopicPartition("t", 0)
    with Consumers(fake_kafka) as consumers:
        consumer = consumers()
        consumer.assign([at])
        for ask in (
            lambda: consumer.end_offsets([at], timeout_ms),
            lambda: consumer.beginning_offsets([at], timeout_ms),
            lambda: consumer.offsets_for_times({at: 1}, timeout_ms),
            lambda: consumer.position(at, timeout_ms),
        ):
            with pytest.raises(error, match="timeout_ms must be a number of milliseconds, not "):
                ask()
        assert consumer.end_offsets([at], 60_000) == {at: 0}


@pytest.mark.parametrize("timeout_ms", [float("inf"), 1e300])
def test_a_time_out_may_be_without_end(fake_kafka, timeout_ms):
    fake_kafka.create_topic("t")
    at = TopicPartition("t", 0)
    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned("t", auto_offset_reset="earliest")
        assert consumer.end_offsets([at], timeout_ms) == {at: 0}
        assert consumer.beginning_offsets([at], timeout_ms) == {at: 0}
        assert consumer.offsets_for_times({at: 1}, timeout_ms) == {at: None}
        assert consumer.position(at, timeout_ms) == 0


@pytest.mark.parametrize("time_ms", [-1, 2**63, float("inf"), float("nan")])
def test_a_time_that_no_request_can_carry_is_refused(fake_kafka, time_ms):
    fake_kafka.create_topic("t")
    with Consumers(fake_kafka) as consumers, pytest.raises(ValueError):
        consumers().offsets_for_times({TopicPartition("t", 0): time_ms})


def timed(cluster, topic, count=10):
    """Records at 1000000, 1001000, ... ms, which retention would take at its next look."""
    cluster.alter_topic(topic, {"retention.ms": -1})
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    for number in range(count):
        producer.send(topic, b"x", partition=0, timestamp_ms=1_000_000 + 1000 * number)
    producer.flush()
    producer.close()


def delete_before(cluster, topic, offset):
    with cluster.admin() as admin:
        admin.delete_records({TopicPartition(topic, 0): offset})


def recreate(cluster, topic):
    with cluster.admin() as admin:
        admin.delete_topics([topic])
        until(lambda: topic not in admin.list_topics(), what="the topic is gone")
    cluster.create_topic(topic, 1)


def timed_out(look_up, kind):
    """The error at the end of a look-up's time; with more time where the machine is too slow for an answer."""
    for timeout_ms in (500, 2000, 8000, 30_000):
        with pytest.raises(kafka_errors.KafkaTimeoutError) as raised:
            look_up(timeout_ms=timeout_ms)
        if type(raised.value) is kind and raised.value.__cause__ is not None:
            break
    assert type(raised.value) is kind
    return raised.value


# --- the start of a log ---------------------------------------------------------------------------------------------------


def test_a_leader_that_has_not_deleted_as_much_does_not_move_the_start_back(cluster, proxy, consumers):
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    timed(cluster, topic)
    delete_before(cluster, topic, 5)
    consumer = consumers(auto_offset_reset="earliest")
    assert consumer.beginning_offsets([tp]) == {tp: 5}
    rule = proxy.on("ListOffsets", topic=topic).when(looks_up(EARLIEST)).set(offset=0)
    assert consumer.beginning_offsets([tp]) == {tp: 5}
    assert rule.hits == 2  # the second one after fresh metadata
    assert consumers.events == [EndOffsetHeld(topic, 0, 5, 0, "not_deleted", "earliest")]
    assert len(proxy.requests("OffsetForLeaderEpoch", topic=topic)) == 1
    proxy.clear()
    delete_before(cluster, topic, 8)
    assert consumer.beginning_offsets([tp]) == {tp: 8}


def test_the_start_of_another_log_is_believed_with_the_proof(cluster, consumers):
    """The leader's disk was lost: what is held in front of it would never be read."""
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    timed(cluster, topic)
    delete_before(cluster, topic, 5)
    consumer = consumers()
    assert consumer.beginning_offsets([tp]) == {tp: 5}
    cluster.lose_log(topic)
    consuming.produce(cluster, topic, [b"y"] * 12)
    assert consumer.beginning_offsets([tp]) == {tp: 0}
    (lowered,) = consumers.events
    assert (lowered.offset, lowered.previous, lowered.look_up) == (0, 5, "earliest")
    assert lowered.reason in {"unclean_election", "truncated"}


def test_the_start_of_a_topic_that_was_recreated(cluster, consumers):
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    timed(cluster, topic)
    delete_before(cluster, topic, 5)
    consumer = consumers()
    assert consumer.beginning_offsets([tp]) == {tp: 5}
    recreate(cluster, topic)
    assert until(lambda: consumer.beginning_offsets([tp])) == {tp: 0}
    assert EndOffsetRegressed(topic, 0, 0, 5, "recreated", "earliest") in consumers.events


def test_without_epochs_a_lower_start_is_held_for_a_while_only(cluster, proxy, consumers):
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    timed(cluster, topic)
    delete_before(cluster, topic, 5)
    starts = proxy.on("ListOffsets", topic=topic).when(looks_up(EARLIEST))
    starts.set(leader_epoch=-1)
    consumer = consumers(offsets_hold_timeout_ms=1500)
    assert consumer.beginning_offsets([tp]) == {tp: 5}
    starts.set(offset=0)
    assert consumer.beginning_offsets([tp]) == {tp: 5}
    until(lambda: consumer.beginning_offsets([tp]) == {tp: 0})
    assert consumers.of(EndOffsetHeld)[0] == EndOffsetHeld(topic, 0, 5, 0, "lower", "earliest")
    assert consumers.of(EndOffsetRegressed) == [EndOffsetRegressed(topic, 0, 0, 5, "accepted", "earliest")]


def test_the_start_is_remembered_from_one_life_to_the_next(cluster, proxy, consumers, tmp_path):
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    timed(cluster, topic)
    delete_before(cluster, topic, 5)
    consumer = consumers(offsets_path=tmp_path / "ends.json")
    assert consumer.beginning_offsets([tp]) == {tp: 5}
    consumer.close()
    proxy.on("ListOffsets", topic=topic).when(looks_up(EARLIEST)).set(offset=0)
    assert consumers(offsets_path=tmp_path / "ends.json").beginning_offsets([tp]) == {tp: 5}
    assert consumers.of(EndOffsetHeld)[0].reason == "not_deleted"


def test_a_position_is_reset_to_what_the_leader_has_now(cluster, proxy, consumers):
    """Records in front of a start that is held can be read: a reset leaves none of them out."""
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    timed(cluster, topic)
    consumer = consumers.assigned(topic, auto_offset_reset="earliest")
    rule = proxy.on("ListOffsets", topic=topic).when(looks_up(EARLIEST)).set(offset=5)
    assert consumer.beginning_offsets([tp]) == {tp: 5}
    rule.remove()
    assert [record.offset for record in collect(consumer, 10)] == list(range(10))


# --- by time --------------------------------------------------------------------------------------------------------------


def test_a_record_that_was_found_by_time_stays_found(cluster, proxy, consumers):
    """As brokers before KIP-207 answer while a new leader catches up."""
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    timed(cluster, topic)
    consumer = consumers()
    wanted = {tp: 1_004_500}
    found = {tp: OffsetAndTimestamp(5, 1_005_000, 0)}
    assert consumer.offsets_for_times(wanted) == found
    rule = proxy.on("ListOffsets", topic=topic).when(looks_up(1_004_500))
    rule.set(offset=-1, timestamp=-1, leader_epoch=-1)
    assert consumer.offsets_for_times(wanted) == found
    assert rule.hits == 1
    assert consumers.events == [EndOffsetHeld(topic, 0, 5, -1, "not_found", "timestamp")]
    # Retention explains it.
    delete_before(cluster, topic, 7)
    assert consumer.offsets_for_times(wanted) == {tp: None}
    assert len(consumers.events) == 1


def test_a_record_that_was_found_by_time_and_is_gone(cluster, consumers):
    """With the proof that its log is another one, none is found."""
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    timed(cluster, topic)
    consumer = consumers()
    assert consumer.end_offsets([tp]) == {tp: 10}
    assert consumer.offsets_for_times({tp: 1_004_500})[tp].offset == 5
    cluster.lose_log(topic)
    assert consumer.offsets_for_times({tp: 1_004_500}, timeout_ms=60_000) == {tp: None}
    assert (consumers.of(EndOffsetRegressed)[0].previous, consumers.of(EndOffsetHeld)) == (10, [])


def test_looking_up_what_is_not_there(cluster, consumers):
    topic = new_topic(cluster, 2)
    empty, full = TopicPartition(topic, 1), TopicPartition(topic, 0)
    timed(cluster, topic)
    consumer = consumers()
    for _ in range(2):
        assert consumer.offsets_for_times({empty: 0, full: 2_000_000}) == {empty: None, full: None}
        assert consumer.beginning_offsets([empty, full]) == {empty: 0, full: 0}
    assert not consumers.events


# --- many partitions ----------------------------------------------------------------------------------------------------


class Asked:
    """What ListOffsets of a topic named since the last time this was called."""

    def __init__(self, proxy, topic):
        self.proxy, self.topic = proxy, topic
        self.seen = len(proxy.requests("ListOffsets", topic=topic))

    def __call__(self):
        calls = self.proxy.requests("ListOffsets", topic=self.topic)[self.seen :]
        self.seen += len(calls)
        return [sorted(number for _, number in call.partitions) for call in calls]


def test_partitions_of_one_leader_are_asked_about_in_one_request(cluster, proxy, consumers):
    topic = new_topic(cluster, 200)
    partitions = [TopicPartition(topic, number) for number in range(200)]
    timed(cluster, topic, 3)
    consumer = consumers()
    consumer.end_offsets(partitions)  # now all have a leader, and the consumer knows it
    asked = Asked(proxy, topic)
    assert consumer.end_offsets(partitions) == dict.fromkeys(partitions, 0) | {partitions[0]: 3}
    assert asked() == [list(range(200))]
    assert consumer.beginning_offsets(partitions) == dict.fromkeys(partitions, 0)
    assert asked() == [list(range(200))]
    found = consumer.offsets_for_times(dict.fromkeys(partitions, 1_001_000))
    assert {tp: answer and answer.offset for tp, answer in found.items()} == dict.fromkeys(partitions) | {
        partitions[0]: 1
    }
    # The time; then two starts, of the log and of its part on the leader's disk, in pieces as the first answers come in.
    first, *more = asked()
    assert first == list(range(200))
    assert sum(map(len, more)) == 400
    assert len(more) <= 40
    assert not consumers.events


def test_one_partition_that_is_not_available_costs_the_others_nothing(cluster, proxy, consumers):
    topic = new_topic(cluster, 20)
    partitions = [TopicPartition(topic, number) for number in range(20)]
    consumer = consumers()
    consumer.end_offsets(partitions)
    asked = Asked(proxy, topic)
    proxy.on("ListOffsets", topic=topic, partition=7).answer(code=78, times=2)
    proxy.on("ListOffsets", topic=topic, partition=8).leave_out()
    found = consumer.end_offsets(partitions, partial=True)
    assert set(found) == {*partitions} - {partitions[8]}
    assert set(found.missing) == {partitions[8]}
    assert isinstance(found.missing[partitions[8]], kafka_errors.KafkaProtocolError)
    assert asked() == [list(range(20)), [7], [7]]


# --- when time is over --------------------------------------------------------------------------------------------------


def test_a_time_out_in_the_window_of_a_new_leader_has_its_own_class(cluster, proxy, consumers):
    topic = new_topic(cluster, 2)
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer = consumers()
    rule = proxy.on("ListOffsets", topic=topic, partition=0).answer(code=78)
    for look_up in (
        lambda **more: consumer.end_offsets([tp, other], **more),
        lambda **more: consumer.beginning_offsets([tp, other], **more),
        lambda **more: consumer.offsets_for_times({tp: 5, other: 5}, **more),
    ):
        error = timed_out(look_up, OffsetNotAvailableError)
        assert error.retriable
        assert (error.topic, error.partition) == (topic, 0)
        assert isinstance(error.__cause__, kafka_errors.OffsetNotAvailableError)
        answered = look_up(timeout_ms=2000, partial=True)
        assert set(answered) == {other}
        assert isinstance(answered.missing[tp], OffsetNotAvailableError)
    # Another code that is over as well, without a class of its own: the code is in the text and in the cause.
    rule.remove()
    proxy.on("ListOffsets", topic=topic, partition=0).answer(code=5)
    late = timed_out(lambda **more: consumer.end_offsets([tp], **more), WaitTimeoutError)
    assert late.__cause__.errno == 5
    assert "error code 5" in str(late)


def test_records_are_read_while_no_look_up_is_answered(cluster, proxy, consumers):
    """KIP-207: meanwhile "we will be able to fetch records from the new leader"."""
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    consumer = consumers.assigned(topic, auto_offset_reset="none")
    consumer.seek(tp, 0)
    rule = proxy.on("ListOffsets", topic=topic).answer(code=78)
    timed(cluster, topic)
    until(lambda: consumer.end_offsets([tp], timeout_ms=300, partial=True) == {} and rule.hits)
    assert [record.offset for record in collect(consumer, 10)] == list(range(10))
    assert consumer.position(tp) == 10
    rule.remove()
    assert consumer.end_offsets([tp]) == {tp: 10}


@pytest.mark.parametrize("code", [9, -1, 7])
def test_only_a_log_with_a_remote_part_waits_for_remote_storage(cluster, proxy, consumers, code):
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    timed(cluster, topic)
    consumer = consumers()
    proxy.on("ListOffsets", topic=topic).when(looks_up(1_004_500)).answer(code=code)

    def look_up(**more):
        return consumer.offsets_for_times({tp: 1_004_500}, **more)

    plain = timed_out(look_up, WaitTimeoutError)
    assert plain.__cause__.errno == code
    assert f"error code {code}" in str(plain)
    tier(proxy, topic, 2)
    tiered = timed_out(look_up, RemoteStorageNotReadyError)
    assert (tiered.topic, tiered.partition, tiered.code) == (topic, 0, code)
    assert "Remote storage is not ready" in str(tiered)


def test_finding_none_is_not_believed_either_without_the_remote_part(cluster, proxy, consumers):
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    timed(cluster, topic)
    consumer = consumers()
    tier(proxy, topic, 6)
    missing = proxy.on("ListOffsets", topic=topic).when(looks_up(1_004_500)).set(offset=-1, timestamp=-1)
    broken = proxy.on("Fetch", topic=topic).answer(code=1, high_watermark=-1, records=None)
    error = timed_out(
        lambda **more: consumer.offsets_for_times({tp: 1_004_500}, **more), RemoteStorageNotReadyError
    )
    assert error.code == 1
    missing.remove()
    broken.remove()
    assert consumer.offsets_for_times({tp: 1_004_500})[tp].offset == 5
