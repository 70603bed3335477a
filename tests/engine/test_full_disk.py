"""A full disk, and records whose topic was not known yet: they are divided by partition in the room that there is."""

from __future__ import annotations

import logging
import random

import pytest
from virtual import World

from kafkasafe import events, logs
from kafkasafe import journal as j
from kafkasafe.delivery.engine import disk
from kafkasafe.errors import RejectedError
from kafkasafe.spool import reserve as reserve_module
from kafkasafe.spool import spool
from kafkasafe.spool.reserve import Reserve
from kafkasafe.spool.spool import Spool
from kafkasafe.testing.disk import ProcessKilled

MIB = 1 << 20
PARTITIONS = 6


def fill(world: World, life, topic: str = "t", *, batches: int = 1 << 30, first: int = 0) -> int:
    """Batches of 16 records of 1 kB, as long as there is room for one; how many records were accepted."""
    sent = first
    while life.engine.ledger.room.takes(110_000) and batches > 0:
        parcel = life.send(topic, -1, [b"%06d" % (sent + i) + bytes(1000) for i in range(16)])
        assert world.run(60, until=lambda parcel=parcel: parcel.durable)
        sent += 16
        batches -= 1
    return sent


def delivered(world: World, topic: str = "t") -> list[bytes]:
    """The numbers of what was delivered, sorted; each partition has its own once and in order."""
    found = []
    for partition in range(PARTITIONS):
        values = [value[:6] for value in world.log(topic, partition)]
        assert values == sorted(set(values))
        found += values
    return sorted(found)


def numbers(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def finished(world: World) -> bool:
    return not any(lane.journal.views.unfinished for life in world.lives for lane in life.context.lanes)


def reserve(world: World) -> list[int]:
    return [len(content) for path, content in world.disk.files().items() if path.name == "reserve"]


def test_a_disk_that_was_filled_before_the_first_contact():
    """The cluster was away from the start, and `spool_max_bytes` is more than the volume has."""
    world = World()
    world.disk.capacity_bytes = 24 * MIB
    life = world.start(spool_max_bytes=64 * MIB)
    world.set_outage(True)
    count = fill(world, life)
    assert life.context.own.spool.used_bytes > 14 * MIB
    world.centre.create_topic("t", PARTITIONS)
    world.set_outage(False)
    assert world.run(600, until=lambda: finished(world))
    assert delivered(world) == numbers(count)
    assert reserve(world) == [65_536]


@pytest.mark.parametrize("batches", [3, 40, 250])
def test_a_disk_that_others_filled_to_the_last_byte(batches):
    """Not one byte is free but the reserve, and a few records or 4 MB wait for their topic."""
    world = World()
    life = world.start(spool_max_bytes=64 * MIB)
    world.set_outage(True)
    count = fill(world, life, batches=batches)
    world.disk.capacity_bytes = world.disk.used_bytes
    world.centre.create_topic("t", PARTITIONS)
    world.set_outage(False)
    assert world.run(600, until=lambda: finished(world))
    assert delivered(world) == numbers(count)


@pytest.fixture
def _small(monkeypatch):
    """Everything that happens every megabyte happens every 64 kB."""
    monkeypatch.setattr(reserve_module, "_MARKS_BYTES", 8192)
    monkeypatch.setattr(reserve_module, "_STEP_BYTES", 4096)
    monkeypatch.setattr(reserve_module, "_LENT_STEP_BYTES", 16_384)
    monkeypatch.setattr(spool, "_DIVIDED_SEGMENT_BYTES", 65_536)
    monkeypatch.setattr(disk, "_MANY_TO_DIVIDE_BYTES", 16_384)


def divided_and_killed(seed: int) -> int:
    """One such history; how many kills."""
    kills = 0
    rng = random.Random(seed)
    world = World()
    life = world.start(spool_max_bytes=64 * MIB)
    world.set_outage(True)
    count = fill(world, life, batches=rng.randrange(10, 30))
    world.disk.capacity_bytes = world.disk.used_bytes + rng.choice([0, 0, 5000, 100_000])
    capacity = world.disk.capacity_bytes
    world.centre.create_topic("t", PARTITIONS)
    world.set_outage(False)
    for _ in range(40):
        world.disk.fail(call=rng.randrange(rng.choice([30, 300])), kill=True)
        try:
            done = world.run(120, until=lambda: finished(world))
        except ProcessKilled:
            done = False
            kills += 1
            world.kill(life, power=rng.random() < 0.3, seed=rng.randrange(1000))
            world.disk.capacity_bytes = capacity
        world.disk.heal()
        if done:
            break
        try:
            life = world.lives[0] if world.lives else world.start(spool_max_bytes=64 * MIB)
        except ProcessKilled:
            world.disk.heal()
    assert world.run(600, until=lambda: finished(world)), f"seed {seed}"
    assert delivered(world) == numbers(count), f"seed {seed}"
    return kills


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("seeds", [range(4), range(4, 8)], ids=str)
def test_kills_while_a_full_disk_is_divided(seeds):
    """`kill -9`, or a power cut, at any call of the disk, again and again: nothing is lost, twice or out of order."""
    kills = sum(map(divided_and_killed, seeds))
    assert kills > len(seeds)


def test_without_room_the_rest_goes_on_and_a_warning_says_how_much_is_needed(monkeypatch, caplog):
    """As a spool of an earlier version is: one large segment, and a reserve for marks only."""
    world = World()
    world.centre.create_topic("known", PARTITIONS)
    seen: list = []
    life = world.start(spool_max_bytes=64 * MIB, on_event=seen.append)
    first = life.send("known", 0, [b"first"])
    assert world.run(60, until=lambda: first.done)
    world.set_outage(True)
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "_limit", lambda self, *, divisible: self._segment_bytes)
        patch.setattr(Reserve, "wanted", lambda *_: reserve_module._MARKS_BYTES)
        count = fill(world, life, batches=100)
        known = life.send("known", 1, [b"known"])
        assert world.run(60, until=lambda: known.durable)
        world.kill(life)
        life = world.start(spool_max_bytes=64 * MIB, on_event=seen.append)
        world.disk.capacity_bytes = world.disk.used_bytes
    world.centre.create_topic("t", PARTITIONS)
    world.set_outage(False)
    assert world.run(60, until=lambda: world.log("known", 1) == [b"known"])
    world.run(30)
    assert not finished(world)
    assert logs.drain(60)
    said = [
        each.getMessage()
        for each in caplog.records
        if getattr(each, "event", "") == "division_waits_for_room"
    ]
    assert said
    assert all(each.levelno == logging.WARNING for each in caplog.records if each.getMessage() in said)
    assert "no room to write the next batch again, divided by partition" in said[0]
    assert any(isinstance(event, events.SpoolWriteFailed) and "no room" in event.error for event in seen)
    assert "no room" in life.engine.ledger.room.disk_trouble
    # As much as it says for all of it.
    enough = int(said[0].split("and the producer continues; about ")[1].split(" ")[0].replace(",", ""))
    world.disk.capacity_bytes += enough
    assert world.run(600, until=lambda: finished(world))
    assert delivered(world) == numbers(count)


def test_a_reserve_for_divisions_goes_with_what_it_is_for():
    world = World()
    life = world.start()
    world.set_outage(True)
    fill(world, life, batches=100)
    (large,) = reserve(world)
    assert large > 65_536
    world.kill(life)
    life = world.start()
    assert reserve(world) == [large]
    world.centre.create_topic("t", PARTITIONS)
    world.set_outage(False)
    assert world.run(600, until=lambda: finished(world))
    assert reserve(world) == [65_536]


@pytest.fixture
def room(monkeypatch) -> list[bool]:
    """Whether the volume has room for parts of divided batches."""
    there, has_room = [False], Spool.has_room
    monkeypatch.setattr(Spool, "has_room", lambda self, size: there[0] and has_room(self, size))
    return there


def test_a_batch_that_is_sent_again_meanwhile_is_not_divided(room):
    """A topic is created again while a batch that is too large waits for room.

    What the old topic had comes first, so the large one is refused a second time after it. There is room for its parts
    while the second request with it is under way.
    """
    world = World()
    world.centre.create_topic("orders", 1, settings={"max.message.bytes": 500})
    life = world.start(retain_acked_bytes=MIB, restore_recreated_topics=True)
    first = life.send("orders", 0, [b"first"])
    assert world.run(60, until=lambda: first.done)
    values = [b"%06d" % number + random.Random(number).randbytes(30) for number in range(40)]
    large = life.send("orders", 0, values)
    lane = life.context.own
    assert world.run(60, until=lambda: bool(lane.divisions.pending))
    (divide,) = lane.divisions.pending
    world.cluster.delete_topic("orders")
    world.centre.create_topic("orders", 1, settings={"max.message.bytes": 500})
    assert world.run(60, until=lambda: divide.batch.state is j.BatchState.SENT)
    room[0] = True
    lane.divisions.end_pause()
    last = life.send("orders", 0, [b"last"])
    assert world.run(60, until=lambda: large.done and last.done)
    assert (large.error, last.error) == (None, None)
    assert world.log("orders", 0) == [b"first", *values, b"last"]


def test_a_batch_that_is_rejected_meanwhile_is_not_divided(room, monkeypatch):
    """A topic is deleted while a batch for it waits for room, and there is room once the batch is in rejected/."""
    world = World()
    world.centre.settings["auto.create.topics.enable"] = "false"
    life = world.start(blocked_timeout_ms=90_000)
    parcel = life.send("orders", -1, [b"1"])
    assert world.run(60, until=lambda: parcel.durable)
    world.cluster.create_topic("orders", 1)
    lane = life.context.own
    assert world.run(60, until=lambda: bool(lane.divisions.pending))
    world.cluster.delete_topic("orders")
    set_aside = j.Journal.set_aside

    def makes_room(self, aside, kept, reason=""):
        room[0] = True
        lane.divisions.end_pause()
        return set_aside(self, aside, kept, reason)

    monkeypatch.setattr(j.Journal, "set_aside", makes_room)
    assert world.run(600, until=lambda: parcel.done)
    assert isinstance(parcel.error, RejectedError)
    assert not lane.divisions.pending


def test_batches_that_are_on_their_way_to_rejected_are_not_divided(room, monkeypatch):
    """There is room for the parts when the first of two portions is in rejected/: the producer ended with a KeyError."""
    world = World()
    world.centre.settings["auto.create.topics.enable"] = "false"
    life = world.start(blocked_timeout_ms=90_000)
    parcels = [life.send("orders", -1, [bytes(600_000)]) for _ in range(2)]
    assert world.run(60, until=lambda: parcels[1].durable)
    world.cluster.create_topic("orders", 1)
    lane = life.context.own
    assert world.run(60, until=lambda: bool(lane.divisions.pending))
    world.cluster.delete_topic("orders")
    set_aside = j.Journal.set_aside
    portions = []

    def makes_room(self, aside, kept, reason=""):
        room[0] = True
        lane.divisions.end_pause()
        portions.append(kept)
        return set_aside(self, aside, kept, reason)

    monkeypatch.setattr(j.Journal, "set_aside", makes_room)
    assert world.run(600, until=lambda: all(parcel.done for parcel in parcels))
    assert portions == [1, 1]
    assert all(isinstance(parcel.error, RejectedError) for parcel in parcels)
    assert not lane.divisions.pending


@pytest.mark.usefixtures("room")
def test_what_lacks_room_is_named_and_not_what_is_damaged():
    """The first batch of another topic is damaged on disk, so its division waits, too."""
    world = World()
    world.centre.settings["auto.create.topics.enable"] = "false"
    life = world.start()
    parcels = [life.send(topic, -1, [b"1"]) for topic in ("damaged", "whole")]
    assert world.run(60, until=lambda: all(parcel.durable for parcel in parcels))
    lane = life.context.own
    number = next(batch.destination for topic, _, batch in lane.journal.views.batches() if topic == "damaged")
    lane.rejections.stop(number, world.time.monotonic() + 600)
    for topic in ("damaged", "whole"):
        world.cluster.create_topic(topic, 1)
    assert world.run(60, until=lambda: bool(life.engine.ledger.room.disk_trouble))
    assert "for whole were spooled" in life.engine.ledger.room.disk_trouble
