"""Disk and memory are bounded, and nobody waits for others: in virtual time, on the real engine."""

from __future__ import annotations

from virtual import World


def test_what_is_refused_at_once_holds_nobody_up():
    """Another topic's records are durable before the rest of 2,000 refused batches is put aside."""
    world = World(auto_create_topics_enable="false")
    world.centre.create_topic("fine", 1)
    life = world.start(refused_timeout_ms=2000)
    refused = [life.send("gone", 0, [b"%d" % number]) for number in range(2000)]
    first = world.run(60, until=lambda: any(parcel.done for parcel in refused))
    assert first
    done = sum(parcel.done for parcel in refused)
    other = life.send("fine", 0, [b"x"])
    assert world.run(60, until=lambda: other.durable)
    more = sum(parcel.done for parcel in refused)
    assert done <= more <= done + 512 < 2000
    assert world.run(60, until=lambda: all(parcel.done for parcel in refused))
    assert life.ground.own.rejected.records == 2000
