"""A producer for which nothing is to be done does next to nothing."""

from __future__ import annotations

from virtual import World


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
