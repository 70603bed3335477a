"""What holds batches off that would overtake others."""

from __future__ import annotations

from kafkasafe.cluster.client.produce import RequestOrder

ONE = "t", 0
OTHER = "t", 1


def test_a_node_owes_until_the_last_batch_is_answered() -> None:
    order = RequestOrder()
    assert order.owing(ONE) is None
    order.enter(ONE, 1)
    order.enter(ONE, 1)
    order.enter(OTHER, 2)
    order.leave(ONE)
    assert (order.owing(ONE), order.owing(OTHER)) == (1, 2)
    order.leave(ONE)
    assert (order.owing(ONE), order.owing(OTHER)) == (None, 2)


def test_a_fence_only_rises_also_when_connections_begin_anew() -> None:
    order = RequestOrder()
    order.enter(ONE, 1)
    assert [order.fence(ONE), order.raise_fence(ONE), order.raise_fence(ONE), order.fence(ONE)] == [
        0,
        1,
        2,
        2,
    ]
    order.begin_anew()
    assert order.owing(ONE) is None
    assert (order.fence(ONE), order.fence(OTHER)) == (2, 0)
