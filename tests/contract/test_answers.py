"""Answers that brokers give in rare moments: what clients make of them, through both backends of the fake.

Real brokers cannot be made to give them, so the fake's own answers are changed.
"""

import dataclasses

import pytest
from backends import CURRENT, Backend
from rawclient import make_batch

from kafkasafe.cluster.api import LATEST, Failure, PartitionInfo, ProduceRequest, ProducerIdGranted, Reached
from kafkasafe.cluster.transactions import OffsetToCommit
from kafkasafe.errors import WrongClusterError
from kafkasafe.record.batch import encode
from kafkasafe.spark.appender import Appender
from kafkasafe.spark.sink_options import sink_options
from kafkasafe.spark.transactions import TransactionRequests
from kafkasafe.testing.fake import request_handler
from kafkasafe.testing.fake.settings import profile_of


@pytest.fixture(params=["virtual", "fake"])
def backend(request):
    made = Backend(request.param, CURRENT)
    yield made
    made.close()


@pytest.fixture
def change(monkeypatch):
    """Changes the answers to an API: `changed` gets the request and the fields of its answer."""

    def change(api, changed):
        answer = request_handler.handler(api)
        monkeypatch.setitem(request_handler._HANDLERS, api, lambda ask: changed(ask, answer(ask)))

    return change


def produced(backend, topic):
    """The answer to one batch."""
    batch = ProduceRequest("token", topic, 0, make_batch(b"x", now_ms=backend.now_ms))
    return backend.once(
        lambda reply: backend.client.produce([batch], -1, 30_000, lambda _, answer: reply(answer))
    )


def known(backend, client=None):
    """A topic whose leader the client knows, and is connected to."""
    topic = backend.topic()
    assert not backend.ask((client or backend.client).list_offset, topic, 0, LATEST).error_code
    return topic


def test_a_producer_id_of_minus_one_is_a_failure(backend, change):
    """A broker that just started answers it without an error code."""
    change("InitProducerId", lambda _, answer: answer | {"producer_id": -1, "producer_epoch": -1})
    answer = backend.once(backend.client.init_producer_id)
    assert isinstance(answer, Failure)
    assert (answer.code, answer.sent) == (14, True)


def test_the_newest_version_of_each_request(backend, change):
    """The brokers speak later versions of some."""
    versions = {}

    def seen(api):
        def noted(ask, answer):
            versions[api] = ask.version
            return answer

        return noted

    spoken = {
        "DescribeProducers": 0,
        "Fetch": 12,
        "InitProducerId": 5,
        "ListOffsets": 10,
        "Metadata": 13,
        "OffsetForLeaderEpoch": 4,
        "Produce": 13,
    }
    for api in spoken:
        change(api, seen(api))
    topic, client = backend.topic(), backend.client
    backend.ask(client.list_offset, topic, 0, LATEST)
    backend.ask(client.fetch_records, topic, 0, 0, 1000)
    backend.ask(client.describe_producers, topic, 0)
    backend.ask(client.offset_for_leader_epoch, topic, 0, 0)
    backend.ask_id()
    produced(backend, topic)
    assert versions == spoken


def test_an_answer_that_leaves_something_out_is_a_failure(backend, change):
    change("AddPartitionsToTxn", lambda _, answer: answer | {"results_by_topic_v3_and_below": []})
    topic = backend.topic()
    identity = backend.ask(backend.client.transactions.init_transactional_id, topic, 60_000).identity
    answer = backend.once(backend.client.transactions.add_partitions_to_transaction, identity, [(topic, 0)])
    assert isinstance(answer, Failure)
    assert answer.sent


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"error_code": 129}, "code 129"), ({"brokers": []}, "no brokers")],
    ids=["rebootstrap", "no brokers"],
)
def test_metadata_that_say_nothing_are_a_failure(backend, change, fields, error):
    """What was known before stays as it was."""
    topic, client = known(backend), backend.client
    before = client.topic(topic)
    answers = iter([fields])
    change("Metadata", lambda ask, answer: answer | (next(answers, {}) if ask.message.topics else {}))
    failure = backend.once(client.refresh_metadata, [topic])
    assert isinstance(failure, Failure), error
    assert failure.sent
    assert client.topic(topic) == before
    assert client.brokers()
    assert not isinstance(backend.once(client.refresh_metadata, [topic]), Failure)


def test_leader_epochs_of_an_old_broker_are_not_believed(backend, change, monkeypatch):
    """KAFKA-9212: brokers before 2.4, which speak Metadata up to v8."""
    assert backend.client.close(60)  # it may know the later versions already, and ask with one of them
    profile = backend.cluster._handler.centre.profile
    old = dataclasses.replace(profile, apis=profile.apis | {"Metadata": (0, 8)})
    monkeypatch.setattr(backend.cluster._handler.centre, "profile", old)
    client = backend.connect()
    topic = backend.topic()

    def is_there():
        refreshed = backend.once(client.refresh_metadata, [topic])
        return not isinstance(refreshed, Failure) and not refreshed.topics[topic].error_code

    backend.until(is_there)
    assert client.topic(topic).partitions[0] == PartitionInfo(1, -1)
    assert backend.once(client.topic_at, 1, topic).partitions[0] == PartitionInfo(1, -1)
    assert client.close(60)


def test_brokers_that_are_upgraded_get_the_versions_that_they_speak_now(backend, change, monkeypatch):
    """1. A client connects to brokers of 2.8. 2. They are upgraded, and `transaction.version=2` is enabled. 3. A
    transaction needs versions that only the newer brokers speak.
    """
    assert backend.client.close(60)  # it may know the later versions already
    centre, versions = backend.cluster._handler.centre, []

    def seen(ask, answer):
        versions.append(ask.version)
        return answer

    change("Produce", seen)
    new = centre.profile
    old = dataclasses.replace(new, apis=profile_of("2.8.2").apis)
    monkeypatch.setattr(centre, "profile", old)
    backend.client = backend.connect()
    topic = known(backend)
    assert not produced(backend, topic).error_code
    assert versions == [9]
    monkeypatch.setattr(centre, "profile", new)
    backend.cluster.cut()

    def is_appended():
        answer = produced(backend, topic)
        return not isinstance(answer, Failure) and not answer.error_code

    backend.until(is_appended)
    assert versions[-1] == 13


def test_topics_that_cannot_be_described_are_not_listed(backend, change):
    topic, other = backend.topic(), backend.topic()

    def refused(ask, answer):
        rows = [row | {"error_code": 29} if row["name"] == other else row for row in answer["topics"]]
        return answer | {"topics": rows}

    change("Metadata", refused)
    listed = backend.ask(backend.client.list_topics)
    assert topic in listed.topics
    assert other not in listed.topics


def test_a_topic_that_may_not_be_described_any_more_has_no_leader(backend):
    """Its partitions stay known from before."""
    topic, client = known(backend), backend.client
    before = client.topic(topic)
    backend.cluster.deny("describe", topic=topic)
    assert not isinstance(backend.once(client.refresh_metadata, [topic]), Failure)
    assert client.topic(topic) == dataclasses.replace(before, error_code=29)
    answers = [
        produced(backend, topic),
        backend.once(client.reach, topic, 0),
        backend.once(client.list_offset, topic, 0, LATEST),
    ]
    assert [(isinstance(each, Failure), each.code, each.sent) for each in answers] == [(True, 29, False)] * 3
    backend.cluster.deny("describe", topic=topic, on=False)
    backend.until(lambda: isinstance(backend.once(client.reach, topic, 0), Reached))


def test_any_broker_is_connected_to_without_new_metadata(backend, change):
    """Its address is known from before."""
    client = backend.connect(reconnect_backoff_ms=500, retry_backoff_ms=500)
    topic = known(backend, client)
    assert not isinstance(backend.once(client.refresh_metadata, [topic]), Failure)
    change("Metadata", lambda _, answer: answer | {"error_code": 129})
    backend.cluster.cut()
    backend.until(lambda: not client.connected_to_pinned)
    assert isinstance(backend.once(client.init_producer_id), ProducerIdGranted)
    assert client.close(60)


@pytest.mark.parametrize("known_broker", [False, True])
def test_a_hint_at_a_leader_counts_if_the_broker_is_known(backend, change, known_broker):
    """Also one whose address comes with the hint (KIP-951)."""
    topic, client = known(backend), backend.client
    before = client.topic(topic).partitions[0]
    hint = {"leader_id": 99, "leader_epoch": before.leader_epoch + 1}
    endpoint = {"node_id": 99, "host": "localhost", "port": 9, "rack": None}

    def moved(_, answer):
        for found in answer["responses"]:
            for row in found["partition_responses"]:
                row |= {"error_code": 6, "base_offset": -1, "current_leader": hint}
        return answer | {"node_endpoints": [endpoint] if known_broker else []}

    change("Produce", moved)
    assert produced(backend, topic).leader_hint == tuple(hint.values())
    assert client.topic(topic).partitions[0] == (PartitionInfo(*hint.values()) if known_broker else before)


@pytest.mark.parametrize("other", ["another", ""])
def test_another_cluster_id_is_logged(backend, change, caplog, other):
    """A broker that does not say its cluster is no other cluster."""
    topic, client = known(backend), backend.client
    assert client.cluster_id == backend.cluster.cluster_id
    change("Metadata", lambda _, answer: answer | {"cluster_id": other})
    assert not isinstance(backend.once(client.refresh_metadata, [topic]), Failure)
    assert client.cluster_id == (other or None)
    logged = [record for record in caplog.records if getattr(record, "event", "") == "cluster_changed"]
    assert len(logged) == bool(other)


def test_a_broker_that_does_not_say_its_cluster_any_more_is_no_home(backend, change):
    """It said so when the home cluster was found."""
    strangers, homes = [], []
    client = backend.connect(
        pin={"on_other_cluster": strangers.append, "on_pinned_cluster": lambda: homes.append(1)},
        reconnect_backoff_ms=1,
        retry_backoff_ms=1,
    )
    topic = known(backend, client)
    change("Metadata", lambda _, answer: answer | {"cluster_id": ""})
    backend.cluster.cut()
    backend.until(lambda: not client.connected_to_pinned)
    before = len(homes)
    failure = backend.once(client.list_offset, topic, 0, LATEST)
    assert isinstance(failure, Failure)
    assert not failure.sent
    assert (len(homes), strangers) == (before, [])
    assert client.close(60)


def test_a_connection_that_leads_to_another_cluster_meanwhile_is_given_up(backend, change):
    strangers = []
    client = backend.connect(pin={"on_other_cluster": strangers.append, "on_pinned_cluster": lambda: None})
    topic, home = known(backend, client), client.cluster_id
    change("Metadata", lambda _, answer: answer | {"cluster_id": "another"})
    failure = backend.once(client.refresh_metadata, [topic])
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, WrongClusterError)
    assert set(strangers) == {"another"}
    assert client.cluster_id == home
    backend.until(lambda: not client.connected_to_pinned)
    assert client.close(60)


OF_TRANSACTIONS = ["Produce", "AddOffsetsToTxn", "AddPartitionsToTxn", "TxnOffsetCommit", "EndTxn"]


@pytest.mark.parametrize("level", [1, 2])
def test_the_sink_of_spark_speaks_the_same_versions_as_a_producer(change, monkeypatch, level):
    """Those of the transaction protocol that the brokers speak, whatever they could decode."""
    backend = Backend("fake", CURRENT)
    profile = backend.cluster._handler.centre.profile
    features = profile.features | {"transaction.version": level}
    monkeypatch.setattr(
        backend.cluster._handler.centre, "profile", dataclasses.replace(profile, features=features)
    )
    topic, client, versions = known(backend), backend.client, {}

    def noted(api):
        def note(ask, answer):
            versions[api] = ask.version
            return answer

        return note

    for api in OF_TRANSACTIONS:
        change(api, noted(api))

    coordinator = TransactionRequests(client, "sink", timeout_s=60)
    grant = coordinator.fence(60_000)
    coordinator.add_partitions(grant, [(topic, 0)])
    options = sink_options({"kafka.bootstrap.servers": "none:1", "kafka.buffer.memory": 1000})
    appender = Appender(client, grant, options, claims=False)
    appender.append(topic, 0, encode([None], [b"x"], timestamps=backend.now_ms))
    assert appender.finish()
    coordinator.commit_offset(grant, (topic, 0), 1, "")
    coordinator.end(grant, commit=True)
    of_sink = dict(versions)
    versions.clear()

    identity = backend.ask(client.transactions.init_transactional_id, "producer", 60_000).identity
    assert identity.protocol == level
    assert (
        backend.ask(client.transactions.add_partitions_to_transaction, identity, [(topic, 0)]).error_code == 0
    )
    data = make_batch(
        b"y", pid=identity.producer_id, epoch=identity.epoch, seq=0, now_ms=backend.now_ms, transactional=True
    )
    batch = ProduceRequest("token", topic, 0, data, transaction=identity)
    assert (
        backend.once(
            lambda reply: client.produce([batch], -1, 30_000, lambda _, answer: reply(answer))
        ).error_code
        == 0
    )
    assert backend.ask(client.transactions.add_offsets_to_transaction, identity, "group").error_code == 0
    offsets = {(topic, 0): OffsetToCommit(1)}
    assert (
        backend.ask(client.transactions.commit_offsets_in_transaction, identity, "group", offsets).error_code
        == 0
    )
    assert backend.ask(client.transactions.end_transaction, identity, True).error_code == 0
    # With protocol 2 the group's coordinator adds the group itself.
    assert sorted(versions.keys() - of_sink.keys()) == (["AddOffsetsToTxn"] if level == 2 else [])
    assert of_sink.items() <= versions.items()
    assert sorted(versions) == sorted(OF_TRANSACTIONS)
    backend.close()
