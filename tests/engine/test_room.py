"""Disk and memory are bounded, and nobody waits for others: in virtual time, on the real engine."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from test_storms import Storm
from virtual import World

from kafkasafe import events, logs
from kafkasafe.journal import Journal

MIB = 1 << 20


def test_what_is_refused_at_once_holds_nobody_up():
    """Another topic's records are durable before the rest of 2,000 refused batches is put aside."""
    world = World(auto_create_topics_enable="false")
    world.centre.create_topic("fine", 1)
    life = world.start(blocked_timeout_ms=2000)
    refused = [life.send("gone", 0, [b"%d" % number]) for number in range(2000)]
    assert world.run(60, until=lambda: any(parcel.done for parcel in refused))
    done = sum(parcel.done for parcel in refused)
    other = life.send("fine", 0, [b"x"])
    assert world.run(60, until=lambda: other.durable)
    more = sum(parcel.done for parcel in refused)
    assert done <= more <= done + 512 < 2000
    assert world.run(60, until=lambda: all(parcel.done for parcel in refused))
    assert life.context.own.rejected.records == 2000


def fill(world: World, life, topic: str, partition: int = 0, *, limit: int = 20 * MIB) -> int:
    """Batches of 100 kB as long as there is room for another; how many bytes."""
    taken = 0
    while life.engine.ledger.room.takes(110_000) and taken < limit:
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
    assert world.run(60, until=lambda: not life.context.own.journal.views.unfinished)
    kept = life.context.own.spool.used_bytes
    assert kept > 6 * MIB
    before = life.context.own.journal.views.last_acked_offset("t", 0)
    world.set_outage(True)
    assert fill(world, life, "t") > 11 * MIB
    assert life.context.own.spool.used_bytes <= 16 * MIB
    gone = [event for event in seen if isinstance(event, events.RetainedRecordsDeleted)]
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
    assert world.run(600, until=lambda: not life.context.own.journal.views.unfinished)


def test_what_a_dead_neighbour_left_takes_no_room():
    """A survivor that adopted 11 MB in an outage took nothing more itself."""
    world = World()
    world.centre.create_topic("t", 2)
    dies, lives = world.start(), world.start()
    world.set_outage(True)
    fill(world, dies, "t", 0, limit=11 * MIB)
    world.kill(dies)
    assert world.run(60, until=lambda: len(lives.context.lanes) == 2)
    assert fill(world, lives, "t", 1) > 11 * MIB
    world.set_outage(False)
    assert world.run(
        600, until=lambda: len(lives.context.lanes) == 1 and not lives.context.own.journal.views.unfinished
    )
    assert len(world.log("t", 0)) + len(world.log("t", 1)) >= 220


def stuck(world: World) -> tuple[int, int]:
    """(partition whose leader is down, another one)."""
    world.centre.create_topic("t", 2, replication_factor=1)
    waits = next(n for n in range(2) if world.centre.partition("t", n).leader == 2)
    return waits, 1 - waits


def test_one_record_that_waits_does_not_fill_the_spool():
    """After 12 MB of 16 everything was refused, with one batch unfinished."""
    world = World(brokers=2)
    waits, goes = stuck(world)
    life = world.start()
    first = life.send("t", waits, [b"delivered"])
    assert world.run(60, until=lambda: first.done)
    world.cluster.kill(2)
    held = life.send("t", waits, [b"held"])
    taken, most = 0, 0
    while taken < 40 * MIB:
        assert life.engine.ledger.room.takes(1_000_000), f"full after {taken} bytes"
        parcel = life.send("t", goes, [bytes(900_000)])
        assert world.run(60, until=lambda parcel=parcel: parcel.done)
        taken += parcel.size_bytes
        most = max(most, life.context.own.spool.used_bytes)
    assert not held.done
    assert most <= 10 * MIB
    assert life.context.stats.spool_copied_bytes.value >= held.size_bytes
    # The next life finds it where it is now, asks, and delivers it.
    world.kill(life, power=True)
    world.cluster.start(2)
    life = world.start()
    assert world.run(600, until=lambda: not life.context.own.journal.views.unfinished)
    assert world.log("t", waits) == [b"delivered", b"held"]


def test_a_topic_without_a_leader_fills_no_spool_of_workers_that_die_again_and_again():
    """Two of one directory: each life, and each adoption, finds what waits for that topic in front of all else."""
    world = World(brokers=2)
    waits, goes = stuck(world)
    world.start(client_id="a"), world.start(client_id="b")
    for life in world.lives:
        first = life.send("t", waits, [b"first"])
        assert world.run(60, until=lambda first=first: first.done)
    world.cluster.kill(2)
    sent = 0
    for turn in range(6):
        for life in world.lives:
            held = life.send("t", waits, [b"%d" % turn + bytes(300_000)])
            for _ in range(16):
                assert life.engine.ledger.room.takes(1_000_000), f"full in turn {turn}"
                parcel = life.send("t", goes, [bytes(900_000)])
                assert world.run(60, until=lambda parcel=parcel: parcel.done)
                sent += 1
            assert held.durable
            assert not held.done
        dies = world.lives[turn % 2]
        client_id = dies.context.config.client_id
        world.kill(dies)
        world.run(turn % 3 * 2.0)
        world.start(client_id=client_id)
    world.cluster.start(2)
    assert world.run(
        600,
        until=lambda: (
            not any(lane.journal.views.unfinished for life in world.lives for lane in life.context.lanes)
        ),
    )
    assert len(world.log("t", goes)) == sent
    values = [value for value in world.log("t", waits) if value != b"first"]
    assert sorted(value[:1] for value in values) == sorted(
        b"%d" % turn for turn in range(6) for _ in range(2)
    )


class SmallRoom(Storm):
    """A spool of 64 kB in segments of 8 kB, topics without replicas: whatever waits is copied again and again."""

    def __init__(self, seed: int) -> None:
        sizes = {"spool_max_bytes": 64 << 10, "spool_segment_bytes": 8 << 10, "rejected_max_bytes": 64 << 10}
        super().__init__(seed, sizes=sizes)
        self.faults = [self.outage, self.swallow, self.disk, self.kill, self.broker, self.broker, self.broker]

    def send(self) -> None:
        for _ in range(self.rng.randrange(1, 12)):
            if self.life.engine.ledger.room.takes(2000):
                number = self.rng.randrange(2)
                at = len(self.sent[number])
                values = [
                    b"%d " % (at + i) + bytes(self.rng.randrange(400))
                    for i in range(self.rng.randrange(1, 4))
                ]
                self.sent[number] += values
                self.parcels.append((self.life.send("orders", number, values), number, values))
            self.world.run(self.rng.choice([0, 0.02, 0.2]))
            assert self.life.context.own.spool.used_bytes <= (64 + 8) << 10


@pytest.mark.parametrize("seeds", [range(4), range(4, 8)], ids=str)
def test_what_is_copied_forward_is_there_once_and_in_order(seeds, monkeypatch):
    seen = Counter()
    moved = Journal.moved

    def counted(journal, batches, *args):
        seen["moved"] += len(batches)
        moved(journal, batches, *args)

    monkeypatch.setattr(Journal, "moved", counted)
    for seed in seeds:
        storm = SmallRoom(seed)
        storm.blow(150)
        try:
            storm.check()
        except AssertionError as error:
            error.add_note(f"seed {seed}\n" + "\n".join(storm.world.lines[-400:]))
            raise
    assert seen["moved"] > 20


def test_segments_that_could_not_be_deleted_are_deleted_later():
    """The spool was full, everything in it was delivered, and `send` waited for room for ever."""
    world = World()
    world.centre.create_topic("t", 1)
    life = world.start()
    world.set_outage(True)
    fill(world, life, "t")
    assert not life.engine.ledger.room.takes(110_000)
    world.disk.fail("unlink", times=None)
    world.set_outage(False)
    assert world.run(60, until=lambda: not life.context.own.journal.views.unfinished)
    world.run(60)
    world.disk.heal()
    assert world.run(60, until=lambda: life.engine.ledger.room.takes(110_000))
