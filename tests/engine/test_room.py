"""Disk and memory are bounded, and nobody waits for others: in virtual time, on the real engine."""

from __future__ import annotations

import logging

from virtual import World

from kafkasafe import events, logs

MIB = 1 << 20


def test_what_is_refused_at_once_holds_nobody_up():
    """Another topic's records are durable before the rest of 2,000 refused batches is put aside."""
    world = World(auto_create_topics_enable="false")
    world.centre.create_topic("fine", 1)
    life = world.start(refused_timeout_ms=2000)
    refused = [life.send("gone", 0, [b"%d" % number]) for number in range(2000)]
    assert world.run(60, until=lambda: any(parcel.done for parcel in refused))
    done = sum(parcel.done for parcel in refused)
    other = life.send("fine", 0, [b"x"])
    assert world.run(60, until=lambda: other.durable)
    more = sum(parcel.done for parcel in refused)
    assert done <= more <= done + 512 < 2000
    assert world.run(60, until=lambda: all(parcel.done for parcel in refused))
    assert life.ground.own.rejected.records == 2000


def fill(world: World, life, topic: str, partition: int = 0, *, limit: int = 20 * MIB) -> int:
    """Batches of 100 kB as long as there is room for another; how many bytes."""
    taken = 0
    while life.engine.ledger.room(110_000) and taken < limit:
        parcel = life.send(topic, partition, [bytes(100_000)])
        assert world.run(60, until=lambda parcel=parcel: parcel.durable)
        taken += parcel.size_bytes
    return taken


def test_what_is_delivered_gives_way_to_what_waits(caplog):
    """In an outage nothing is delivered, and what `retain_acked_bytes` kept stayed: 6 MB of 16."""
    world = World()
    world.centre.create_topic("t", 1)
    seen = []
    life = world.start(retain_acked_bytes=6 * MIB, on_event=seen.append)
    fill(world, life, "t", limit=8 * MIB)
    assert world.run(60, until=lambda: not life.ground.own.journal.unfinished)
    kept = life.ground.own.spool.used_bytes
    assert kept > 6 * MIB
    before = life.ground.own.journal.last_acked_offset("t", 0)
    world.set_outage(True)
    assert fill(world, life, "t") > 11 * MIB
    assert life.ground.own.spool.used_bytes <= 16 * MIB
    gone = [event for event in seen if isinstance(event, events.RetentionGaveWay)]
    assert gone[0].topic == "t"
    assert gone[-1].last_offset <= before
    # One after the other, without a hole, and only as much as was needed at the time.
    assert [event.first_offset for event in gone[1:]] == [event.last_offset + 1 for event in gone[:-1]]
    assert len(gone) >= 2
    assert logs.drain(60)
    assert "cannot be sent again" in "".join(
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    )
    world.set_outage(False)
    assert world.run(600, until=lambda: not life.ground.own.journal.unfinished)


def test_what_a_dead_neighbour_left_takes_no_room():
    """A survivor that adopted 11 MB in an outage took nothing more itself."""
    world = World()
    world.centre.create_topic("t", 2)
    dies, lives = world.start(), world.start()
    world.set_outage(True)
    fill(world, dies, "t", 0, limit=11 * MIB)
    world.kill(dies)
    assert world.run(60, until=lambda: len(lives.ground.lanes) == 2)
    assert fill(world, lives, "t", 1) > 11 * MIB
    world.set_outage(False)
    assert world.run(
        600, until=lambda: len(lives.ground.lanes) == 1 and not lives.ground.own.journal.unfinished
    )
    assert len(world.log("t", 0)) + len(world.log("t", 1)) >= 220
