"""Topics and headers that are almost what `send` takes."""

from __future__ import annotations

import enum

import harness
import pytest


class Topic(str, enum.Enum):  # noqa: UP042 - str() of a StrEnum's member is its text
    ORDERS = "orders"


def test_a_topic_that_has_two_names(producers):
    """kafka-python's requests have the name of the member. So the records waited for a topic that does not exist, and
    later records for `"orders"` waited with them.
    """
    with (
        producers(harness.dead_address()) as producer,
        pytest.raises(TypeError, match=r"'Topic.ORDERS' in requests; pass its value"),
    ):
        producer.send(Topic.ORDERS, b"x")


class Adding:
    """A serializer that adds a header."""

    def serialize(self, _topic, headers, data):
        headers.append(("added", b"1"))
        return data


@pytest.mark.parametrize("headers", [None, [], (), {}, ""])
def test_a_serializer_gets_a_list_of_headers(fake_kafka, producers, headers):
    """`append` of an empty tuple or dict raised AttributeError."""
    producer = producers(fake_kafka.bootstrap_servers, value_serializer=Adding())
    producer.send("orders", b"1", headers=headers).get(30)
    [found] = fake_kafka.records("orders")
    assert list(map(tuple, found.headers[0])) == [("added", b"1")]


class Name(str, enum.Enum):  # noqa: UP042 - str() of a StrEnum's member is its text
    APP = "app-7"


def test_the_transactional_id_of_an_atomic_batch_may_be_a_member_of_an_enum(fake_kafka, producers):
    """kafka-python's requests had the name of the member, and the coordinator knew no such id in the next request."""
    producer = producers(fake_kafka.bootstrap_servers)
    fake_kafka.create_topic("orders")
    with producer.batch(transactional_id=Name.APP) as batch:
        batch.send("orders", b"1")
    batch.outcome.get(60)
    assert fake_kafka.records("orders")[0].values == [b"1"]
