"""A pause after a failure ends when another broker leads: that is not the one that failed."""

from __future__ import annotations

import pytest
from virtual import World


@pytest.mark.parametrize("in_doubt", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_pause_ends_when_another_broker_leads(seed, in_doubt):
    made = World(brokers=3, broker_session_timeout_ms=3000 + 170 * seed)
    made.centre.create_topic("orders", 1, 3)
    life = made.start()
    first = life.send("orders", 0, [b"first"])
    assert made.run(60, lambda: first.done)
    before = life.client.topic("orders").partitions[0].leader
    if in_doubt:
        parcel = life.send("orders", 0, [b"second"])
        made.run(0.0005)
        made.cluster.kill(before)
    else:
        made.cluster.kill(before)
        parcel = life.send("orders", 0, [b"second"])
    assert made.run(60, lambda: life.client.topic("orders").partitions[0].leader not in {before, -1})
    assert made.run(0.1, lambda: parcel.done), "without the rest of a pause of up to a second"
    assert made.log("orders", 0) == [b"first", b"second"]
