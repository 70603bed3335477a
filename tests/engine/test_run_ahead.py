"""How far senders run ahead (`run_ahead_bytes`), in virtual time."""

from __future__ import annotations

from virtual import World


def test_a_time_out_is_no_answer() -> None:
    """In an outage with `delivery_timeout_ms`, each time-out counted as an answer of the partition: senders waited for
    a cluster that was gone, so a producer accepted about `run_ahead_bytes` per `delivery_timeout_ms`.
    """
    world = World()
    world.centre.create_topic("orders", 1)
    life = world.start(spool_max_bytes=64 << 20, run_ahead_bytes=1 << 20, delivery_timeout_ms=2000)
    first = life.send("orders", 0, [b"first"])
    assert world.run(60, lambda: first.done)
    world.set_outage(True)
    ahead, parcels = life.engine.ledger.ahead, []
    for number in range(200):
        parcels.append(life.send("orders", 0, [b"x" * 100_000]))
        world.run(0.1)
        ahead.expire()
        assert number < 20 or not ahead.is_far
    assert sum(parcel.expired for parcel in parcels) > 100
    world.set_outage(False)
    assert world.run(600, lambda: not life.context.own.parcels)
    assert not ahead.is_far
    assert len(world.log("orders", 0)) == 201
