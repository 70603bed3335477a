"""Losses that happened before several elections, and that the killed process had not heard of."""

from __future__ import annotations

import pytest
from virtual import World

from kafkasafe import events


@pytest.mark.parametrize("elections", [1, 2, 3])
@pytest.mark.parametrize("loses", [True, False], ids=["unclean", "clean"])
def test_a_loss_that_another_leader_came_after_is_found_by_the_next_life(elections, loses, monkeypatch):
    """All replicas lose the log. No leader tells this process where the epochs before it end."""
    world = World(3)
    world.centre.create_topic("t", 1, 3)
    heard: list[events.Event] = []
    options = {"retry_backoff_ms": 100, "on_event": heard.append}
    life = world.start(**options)
    for number in range(6):
        life.send("t", 0, [b"%d" % number])
        world.run(0.5)
    ask = world.cluster.ask

    def unheard(pipe, name, version, message, on_answer):
        if name == "OffsetForLeaderEpoch":
            return ask(pipe, name, version, message, lambda _: None)
        return ask(pipe, name, version, message, on_answer)

    monkeypatch.setattr(world.cluster, "ask", unheard)
    if loses:
        world.cluster.lose_log("t", 0)  # the leader knows no producer any more, and takes any sequence
    for _ in range(10):
        world.write_foreign("t", 0)
    for number in range(elections):
        world.cluster.move_leader("t", 0)
        parcel = life.send("t", 0, [b"after %d" % number])
        assert world.run(30, until=lambda parcel=parcel: parcel.done)
    world.run(0.5)
    assert not any(isinstance(event, events.DataLost) for event in heard), "no leader has answered"
    world.kill(life)
    monkeypatch.setattr(world.cluster, "ask", ask)
    world.start(**options)
    world.run(40.0)
    found_lost = [event for event in heard if isinstance(event, events.DataLost)]
    assert [(event.first_offset, event.last_offset) for event in found_lost] == ([(0, 5)] if loses else [])
