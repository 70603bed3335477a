"""What holds batches off that would overtake others."""

from __future__ import annotations

from kafkasafe.cluster.api import NO_TOPIC_ID
from kafkasafe.cluster.client.produce import RequestOrder

ONE = "t", 0
OTHER = "t", 1
ID = b"A" * 16
NEW_ID = b"B" * 16


def test_batches_go_to_one_node_until_the_last_one_is_answered() -> None:
    order = RequestOrder()
    assert order.overtaken(ONE, 2, ID) is None
    order.enter(ONE, 1, ID)
    order.enter(ONE, 1, ID)
    order.enter(OTHER, 2, ID)
    order.leave(ONE)
    assert order.overtaken(ONE, 1, ID) is order.overtaken(OTHER, 2, ID) is None
    assert order.overtaken(ONE, 2, ID) == "t-0 has requests outstanding at node 1"
    assert order.overtaken(OTHER, 1, ID) == "t-1 has requests outstanding at node 2"
    order.leave(ONE)
    assert order.overtaken(ONE, 2, ID) is None
    assert order.overtaken(OTHER, 1, ID)


def test_batches_go_to_one_topic_until_the_last_one_is_answered() -> None:
    """1. A batch with the former id is in flight. 2. A batch with the new id is appended. 3. The broker refuses the
    first one.
    """
    order = RequestOrder()
    order.enter(ONE, 1, ID)
    assert "41" * 16 in (order.overtaken(ONE, 1, NEW_ID) or "")
    order.leave(ONE)
    assert order.overtaken(ONE, 1, NEW_ID) is None
    order.enter(ONE, 1, NO_TOPIC_ID)
    assert order.overtaken(ONE, 1, ID) is None, "brokers report ids since their upgrade"


def test_a_fence_only_rises_also_when_connections_begin_anew() -> None:
    order = RequestOrder()
    order.enter(ONE, 1, ID)
    assert [order.fence(ONE), order.raise_fence(ONE), order.raise_fence(ONE), order.fence(ONE)] == [
        0,
        1,
        2,
        2,
    ]
    order.begin_anew()
    assert order.overtaken(ONE, 2, NEW_ID) is None
    assert (order.fence(ONE), order.fence(OTHER)) == (2, 0)
