"""What the protocol `Cluster` gives: each case through the fake's two backends and on real brokers.

What brokers answer to raw requests is in test_contract.py. Where the backends differ the fake is wrong.
"""

import uuid

import pytest
from backends import CURRENT, OLD, TOO_LARGE, Backend
from kafka.errors import TopicAlreadyExistsError
from rawclient import make_batch

from kafkasafe.cluster.api import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    NO_TOPIC_ID,
    Failure,
    ProduceReply,
    ProduceRequest,
    ProducerState,
    Reached,
)
from kafkasafe.record.batch import iter_headers


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("virtual", CURRENT), id="virtual-4.3"),
        pytest.param(("virtual", OLD), id="virtual-2.8"),
        pytest.param(("fake", CURRENT), id="fake-4.3"),
        pytest.param(("fake", OLD), id="fake-2.8"),
        pytest.param(("real", CURRENT), id="kafka-4.3", marks=pytest.mark.kafka),
        pytest.param(("real", OLD), id="kafka-2.8", marks=[pytest.mark.kafka, pytest.mark.full]),
    ],
)
def backend(request):
    kind, version = request.param
    shared = request.getfixturevalue("kafka") if request.param == ("real", CURRENT) else None
    made = Backend(kind, version, cluster=shared)
    yield made
    made.close()


def append(backend, topic, *values, producer=(-1, -1), seq=-1, acks=-1, partition=0, timestamp=None):
    """The answer to one batch, without another try."""
    data = make_batch(
        *(values or [b"x"]),
        pid=producer[0],
        epoch=producer[1],
        seq=seq,
        now_ms=backend.now_ms if timestamp is None else timestamp,
    )
    return backend.once(
        lambda reply: backend.client.produce(
            [ProduceRequest("token", topic, partition, data)], acks, 30_000, lambda _, answer: reply(answer)
        )
    )


def written(backend, *counts, **config):
    """A topic with batches of so many records, of one producer: (its name, the producer)."""
    topic = backend.topic(**config)
    granted = backend.ask_id()
    producer, seq = (granted.producer_id, granted.epoch), 0
    backend.until(lambda: backend.ask(backend.client.list_offset, topic, 0, LATEST).offset == 0)
    for count in counts:
        answer = append(backend, topic, *[b"x"] * count, producer=producer, seq=seq)
        assert answer.error_code == 0, answer
        seq += count
    return topic, producer


def test_metadata_of_a_topic(backend):
    topic = backend.topic(3)
    refreshed = None

    def known():
        nonlocal refreshed
        refreshed = backend.once(backend.client.refresh_metadata, [topic])
        return not isinstance(refreshed, Failure) and refreshed.topics[topic].error_code == 0

    backend.until(known)
    found = refreshed.topics[topic]
    assert sorted(found.partitions) == [0, 1, 2]
    assert {part.leader for part in found.partitions.values()} == {1}
    assert all(part.leader_epoch >= 0 for part in found.partitions.values())
    assert (found.topic_id == NO_TOPIC_ID, len(found.topic_id)) == (False, 16)
    assert refreshed.brokers == (1,)
    assert refreshed.cluster_id == backend.client.cluster_id
    assert backend.client.topic(topic).partitions == found.partitions
    assert backend.client.connected


def test_a_topic_that_is_not_there(backend):
    backend.client.create_only(lambda _: False)
    found = backend.once(backend.client.refresh_metadata, ["is-not-there"]).topics["is-not-there"]
    assert (found.error_code, found.partitions) == (3, {})
    backend.client.unwatch("is-not-there")
    impossible = backend.once(backend.client.refresh_metadata, ["x" * 300])
    assert (type(impossible.error).__name__, impossible.sent) == ("InvalidTopicError", False)


def test_a_topic_that_is_created(backend):
    name, create = f"created-{uuid.uuid4().hex[:6]}", backend.client.create_topic
    answers = [backend.once(create, name, 2, {"retention.ms": "7000"}, 30_000) for _ in range(2)]
    assert [answer.error_code for answer in answers] == [0, 36]
    assert answers[1].error_message

    def partitions():
        refreshed = backend.once(backend.client.refresh_metadata, [name])
        return set() if isinstance(refreshed, Failure) else set(refreshed.topics[name].partitions)

    backend.until(lambda: partitions() == {0, 1})
    wrong = backend.once(create, f"{name}-wrong", 1, {"no.such.setting": "1"}, 30_000)
    assert wrong.error_code == 40


def recreate(backend, topic):
    """Deletes a topic and creates it again. The backend's client does not learn of it."""
    watcher = backend.connect()
    watcher.create_only(lambda _: False)
    before = None

    def topic_id():
        refreshed = backend.once(watcher.refresh_metadata, [topic])
        return before if isinstance(refreshed, Failure) else refreshed.topics[topic].topic_id

    backend.until(lambda: topic_id() is not None)
    before = topic_id()
    backend.cluster.delete_topic(topic)

    def created():
        try:
            backend.cluster.create_topic(topic, 1)
        except TopicAlreadyExistsError:  # a controller of 2.8 takes a moment longer than its brokers
            return False
        return True

    backend.until(created)
    backend.until(lambda: topic_id() not in {before, NO_TOPIC_ID})
    watcher.close(60)


def test_a_batch_for_a_former_topic_gets_into_the_new_one_only_by_name(backend):
    """KIP-516: brokers from 4.1 on refuse the former topic's id."""
    topic, producer = written(backend, 1)
    recreate(backend, topic)
    answer = append(backend, topic, producer=producer, seq=1)
    appended = backend.ask(backend.client.list_offset, topic, 0, LATEST).offset
    assert (answer.error_code, appended) == ((100, 0) if backend.version == CURRENT else (0, 1))

    def taken():
        return append(backend, topic, producer=producer, seq=appended + 1).error_code == 0

    backend.until(taken)  # the refused batch made the client ask for metadata


def test_batches_and_their_repetition(backend):
    topic, producer = written(backend, 2, 3)
    answer = append(backend, topic, b"x", producer=producer, seq=5)
    assert isinstance(answer, ProduceReply)
    assert (answer.error_code, answer.base_offset, answer.log_append_time, answer.log_start_offset) == (
        0,
        5,
        -1,
        0,
    )
    again = append(backend, topic, *[b"x"] * 3, producer=producer, seq=2)
    assert (again.error_code, again.base_offset, again.fence) == (0, 2, answer.fence)
    assert backend.ask(backend.client.list_offset, topic, 0, LATEST).offset == 6


def test_what_is_refused_raises_the_fence(backend):
    topic, producer = written(backend, 1)
    gap = append(backend, topic, producer=producer, seq=7)
    assert (gap.error_code, gap.base_offset, gap.fence) == (45, -1, 1)
    fenced = append(backend, topic, producer=(producer[0], producer[1] + 1), seq=9)
    assert (fenced.error_code, fenced.fence) == (45, 2)
    large = append(backend, topic, b"x" * TOO_LARGE)
    assert (large.error_code, large.fence) == (10, 3)
    assert append(backend, topic, producer=producer, seq=1).fence == 3


def test_broker_time(backend):
    topic, producer = written(backend, message_timestamp_type="LogAppendTime")
    before = backend.now_ms
    answer = append(backend, topic, producer=producer, seq=0, timestamp=1_700_000_000_000)
    assert before - 1000 <= answer.log_append_time <= backend.now_ms + 1000


def test_nothing_is_written_without_acknowledgement(backend):
    topic, _ = written(backend)
    with pytest.raises(ValueError, match="acks must be -1 or 1, not 0"):
        append(backend, topic, acks=0)
    assert append(backend, topic, acks=1).error_code == 0


def test_what_a_leader_remembers(backend):
    topic, producer = written(backend, 2, 3)
    described = backend.ask(backend.client.describe_producers, topic, 0)
    state = described.producers[producer[0]]
    assert (state.epoch, state.last_sequence) == (producer[1], 4)
    assert isinstance(state, ProducerState)
    assert abs(state.last_timestamp - backend.now_ms) < 600_000
    empty = backend.ask(backend.client.describe_producers, backend.topic(), 0)
    assert (empty.error_code, empty.producers) == (0, {})


def test_where_a_log_begins_and_ends(backend):
    topic, _ = written(backend, 2, 3)
    epoch = backend.client.topic(topic).partitions[0].leader_epoch
    first = backend.ask(backend.client.list_offset, topic, 0, EARLIEST)
    assert (first.offset, first.leader_epoch) == (0, epoch)
    last = backend.ask(backend.client.list_offset, topic, 0, LATEST)
    assert (last.error_code, last.offset, last.leader_epoch, last.timestamp) == (0, 5, epoch, -1)
    assert backend.ask(backend.client.log_end_offset, topic, 0).offset == 5
    none = backend.ask(backend.client.list_offset, topic, 0, backend.now_ms + 3_600_000)
    assert (none.error_code, none.offset, none.timestamp) == (0, -1, -1)
    newest = backend.once(backend.client.list_offset, topic, 0, MAX_TIMESTAMP)
    if backend.version == OLD:
        assert newest.unsupported
    else:
        assert (newest.error_code, newest.offset >= 0, newest.timestamp > 0) == (0, True, True)


def test_where_an_epoch_ends(backend):
    topic, _ = written(backend, 2, 3)
    epoch = backend.client.topic(topic).partitions[0].leader_epoch
    ended = backend.ask(backend.client.offset_for_leader_epoch, topic, 0, epoch)
    assert (ended.error_code, ended.leader_epoch, ended.end_offset) == (0, epoch, 5)
    newer = backend.ask(backend.client.offset_for_leader_epoch, topic, 0, epoch + 5)
    assert (newer.error_code, newer.leader_epoch, newer.end_offset) == (0, -1, -1)
    unknown = backend.once(
        backend.client.offset_for_leader_epoch, topic, 0, epoch, current_leader_epoch=epoch + 5
    )
    assert unknown.error_code == 75


def test_headers_and_records(backend):
    topic, producer = written(backend, 2, 3)
    page = backend.ask(backend.client.fetch_headers, topic, 0, 1, 1 << 20)
    assert [(h.base_offset, h.last_offset, h.producer_id, h.base_sequence) for h in page.headers] == [
        (0, 1, producer[0], 0),
        (2, 4, producer[0], 2),
    ]
    assert (page.next_offset, page.high_watermark, page.last_stable_offset, page.log_start_offset) == (
        5,
        5,
        5,
        0,
    )
    read = backend.ask(backend.client.fetch_records, topic, 0, 2, 1 << 20)
    assert [header.base_offset for _, header in iter_headers(read.records)] == [2]
    assert (read.next_offset, read.aborted, read.diverging) == (5, (), None)
    end = backend.ask(backend.client.fetch_headers, topic, 0, 5, 1 << 20)
    assert (end.error_code, end.headers, end.next_offset) == (0, [], 5)
    assert backend.once(backend.client.fetch_headers, topic, 0, 6, 1 << 20).error_code == 1


def test_the_markers_of_transactions_are_read_with_the_headers(backend):
    topic, _ = written(backend, 1)
    for commits in (True, False):
        identity = backend.ask(backend.client.transactions.init_transactional_id, topic, 60_000).identity
        added = backend.ask(backend.client.transactions.add_partitions_to_transaction, identity, [(topic, 0)])
        assert added.error_code == 0
        data = make_batch(
            b"x",
            pid=identity.producer_id,
            epoch=identity.epoch,
            seq=0,
            now_ms=backend.now_ms,
            transactional=True,
        )
        batch = ProduceRequest("token", topic, 0, data, transaction=identity)
        answer = backend.once(
            lambda reply, batch=batch: backend.client.produce([batch], -1, 30_000, lambda _, it: reply(it))
        )
        assert answer.error_code == 0
        assert backend.ask(backend.client.transactions.end_transaction, identity, commits).error_code == 0

    def read():
        return backend.ask(backend.client.fetch_headers, topic, 0, 0, 1 << 20)

    # The last marker is in the log before it is below the high watermark.
    backend.until(lambda: read().high_watermark == 5)
    page = read()
    assert [(h.is_control, h.is_transactional) for h in page.headers] == [
        (False, False),
        (False, True),
        (True, True),
        (False, True),
        (True, True),
    ]
    assert page.markers == {2: True, 4: False}


def test_questions_about_partitions_that_are_not_there(backend):
    topic, _ = written(backend, 1)
    for question in (
        lambda reply: backend.client.list_offset(topic, 9, LATEST, reply),
        lambda reply: backend.client.describe_producers(topic, 9, reply),
        lambda reply: backend.client.fetch_headers(topic, 9, 0, 1 << 20, reply),
    ):
        failure = backend.once(question)
        assert isinstance(failure, Failure)
        assert (failure.code, failure.sent) == (3, False)


def test_what_one_broker_knows_of_a_topic(backend):
    """Whatever others say: it is not watched for that."""
    topic = backend.topic(2)
    written(backend, 1)
    (node, *_) = (broker.node_id for broker in backend.client.brokers())
    seen = backend.once(lambda reply: backend.client.topic_at(node, topic, reply))
    assert (seen.name, seen.error_code, set(seen.partitions)) == (topic, 0, {0, 1})
    assert (seen.topic_id != NO_TOPIC_ID) is (len(seen.topic_id) == 16)
    assert backend.client.topic(topic) is None
    missing = backend.once(lambda reply: backend.client.topic_at(node, "not-there", reply))
    assert (missing.error_code, dict(missing.partitions)) == (3, {})
    strange = backend.once(lambda reply: backend.client.topic_at(4711, topic, reply))
    assert isinstance(strange, Failure)
    assert not strange.sent


def test_a_leader_is_reached_without_a_request(backend):
    topic, _ = written(backend, 1)
    reached = backend.once(backend.client.reach, topic, 0)
    assert reached == Reached(backend.client.topic(topic).partitions[0].leader)
    failure = backend.once(backend.client.reach, topic, 9)
    assert (failure.code, failure.sent) == (3, False)


def test_topics_are_listed_apart_from_internal_ones(backend):
    topic = backend.topic(2)
    backend.until(lambda: topic in backend.once(backend.client.list_topics).topics)
    listed = backend.once(backend.client.list_topics)
    assert listed.topics[topic] == (0, 1)
    assert not [name for name in listed.topics if name.startswith("__")]
