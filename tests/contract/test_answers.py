"""Answers that brokers give in rare moments: what clients make of them, through both doors of the fake.

Real brokers cannot be made to give them, so the fake's own answers are changed.
"""

import pytest
from doors import CURRENT, Door
from rawclient import make_batch

from kafkasafe.cluster.api import LATEST, Failure, ProduceRequest
from kafkasafe.testing.fake import desk


@pytest.fixture(params=["virtual", "fake"])
def door(request):
    made = Door(request.param, CURRENT)
    yield made
    made.close()


@pytest.fixture
def change(monkeypatch):
    """Changes the answers to an API: `changed` gets the request and the fields of its answer."""

    def change(api, changed):
        answer = desk.handler(api)
        monkeypatch.setitem(desk._HANDLERS, api, lambda ask: changed(ask, answer(ask)))

    return change


def test_a_producer_id_of_minus_one_is_a_failure(door, change):
    """A broker that just started answers it without an error code."""
    change("InitProducerId", lambda _, answer: answer | {"producer_id": -1, "producer_epoch": -1})
    answer = door.once(door.client.init_producer_id)
    assert isinstance(answer, Failure)
    assert (answer.code, answer.sent) == (14, True)


def test_the_newest_version_of_each_request(door, change):
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
        "Produce": 12,
    }
    for api in spoken:
        change(api, seen(api))
    topic, client = door.topic(), door.client
    door.ask(client.list_offset, topic, 0, LATEST)
    door.ask(client.fetch_records, topic, 0, 0, 1000)
    door.ask(client.describe_producers, topic, 0)
    door.ask(client.offset_for_leader_epoch, topic, 0, 0)
    door.ask_id()
    batch = ProduceRequest("token", topic, 0, make_batch(b"x", now_ms=door.now_ms))
    door.once(lambda reply: client.produce([batch], -1, 30_000, lambda _, answer: reply(answer)))
    assert versions == spoken


def test_an_answer_that_leaves_something_out_is_a_failure(door, change):
    change("AddPartitionsToTxn", lambda _, answer: answer | {"results_by_topic_v3_and_below": []})
    topic = door.topic()
    identity = door.ask(door.client.init_transactional_id, topic, 60_000).identity
    answer = door.once(door.client.add_partitions_to_transaction, identity, [(topic, 0)])
    assert isinstance(answer, Failure)
    assert answer.sent
