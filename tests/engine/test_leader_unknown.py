"""A producer that has just started does not know the leader epochs yet. That is no election."""

from __future__ import annotations

import pytest
from virtual import World

from kafkasafe.events import DeliveryRetried, RecordsCommitted


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_batches_in_doubt_are_found_at_the_first_inquiry(version):
    world = World(version=version)
    world.centre.create_topic("orders", 1)
    life = world.start()
    first = life.send("orders", 0, [b"first"])
    assert world.run(60, lambda: first.done)
    life.send("orders", 0, [b"second"])
    assert world.run(60, lambda: world.log("orders", 0) == [b"first", b"second"])
    world.kill(life)  # before the answer
    heard: list[object] = []
    world.start(on_event=heard.append)
    assert world.run(60, lambda: any(isinstance(event, RecordsCommitted) for event in heard))
    assert [event for event in heard if isinstance(event, DeliveryRetried)] == []
    assert world.log("orders", 0) == [b"first", b"second"]
