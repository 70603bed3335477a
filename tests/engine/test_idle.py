"""A producer for which nothing is to be done does next to nothing."""

from __future__ import annotations

import pytest
from virtual import World

from kafkasafe.journal import Journal


def test_a_producer_with_nothing_in_memory_does_not_look_for_what_to_spill():
    """With `spool="on_error"` it woke up twenty times a second for as long as it lived."""
    world = World()
    world.centre.create_topic("t", 1)
    life = world.start(spool="on_error", spool_after_ms=200)
    life.send("t", 0, [b"one"])
    world.run(5.0)
    assert world.log("t", 0) == [b"one"]
    turns, turn = [], life.engine.turn
    life.engine.turn = lambda: (turns.append(world.time.monotonic()), turn())
    world.run(60.0)
    assert len(turns) < 300


def test_what_comes_after_a_pause_is_spilled_in_time():
    world = World()
    life = world.start(spool="on_error", spool_after_ms=200)
    world.set_outage(True)
    world.run(10.0)
    parcel = life.send("t", 0, [b"one"])
    world.run(0.15)
    assert not parcel.durable
    world.run(0.15)
    assert parcel.durable


@pytest.mark.parametrize("spool", ["always", "on_error"])
def test_the_journal_is_asked_what_to_do_only_when_it_has_something(monkeypatch, spool):
    """Once more in each turn it built a list of nothing, a quarter of all that a lone record cost the engine."""
    world = World()
    world.centre.create_topic("t", 1)
    life = world.start(spool=spool)
    life.send("t", 0, [b"first"])
    world.run(5.0)
    answers, ready = [], Journal.ready
    monkeypatch.setattr(Journal, "ready", lambda *args: answers.append(ready(*args)) or answers[-1])
    for _ in range(10):
        life.send("t", 0, [b"next"])
        world.run(0.1)
    assert len(world.log("t", 0)) == 11
    # What was acknowledged is looked at once more: whether it lets the next one go.
    assert len(answers) <= 10 * (4 if spool == "always" else 3)
