"""`spool="on_error"` with an outage, and a spool that cannot be written: what is delivered out of memory, and what waits."""

from __future__ import annotations

import errno
import random

import pytest
from virtual import World

OPTIONS = {"spool": "on_error", "spool_after_ms": 200}
COUNT = 12
FAULTS = {
    "the disk is full": ("writev", errno.ENOSPC, 0.0),
    "half is written": ("writev", errno.EIO, 0.5),
    "all is written": ("writev", errno.EIO, 1.0),
    "no fsync": ("sync_data", errno.EIO, 0.0),
    "no new segment": ("create", errno.EROFS, 0.0),
}


def opened(world: World):
    """A producer that has delivered a record."""
    world.centre.create_topic("t", 2)
    life = world.start(**OPTIONS)
    parcel = life.send("t", 0, [b"first"])
    assert world.run(60, until=lambda: parcel.done)
    return life


def broken(world: World, name: str) -> None:
    operation, error, partial = FAULTS[name]
    world.disk.fail(operation, error=error, times=None, partial=partial)
    if operation == "create":
        # After the first write that fails, the next one begins a segment, which cannot be created.
        world.disk.fail("sync_data", error=errno.EIO, times=None)


def values(count: int, first: int = 0) -> list[bytes]:
    return [b"%03d" % number for number in range(first, first + count)]


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("in_flight", [False, True])
def test_what_is_due_for_an_unusable_disk_is_delivered_when_the_cluster_is_back(name, in_flight):
    """It waited until the spool could be written."""
    world = World()
    life = opened(world)
    broken(world, name)
    if in_flight:
        world.cluster.stall()
    else:
        world.set_outage(True)
    parcels = [life.send("t", 0, [value]) for value in values(COUNT)]
    assert not world.run(10, until=lambda: any(parcel.done or parcel.durable for parcel in parcels))
    assert life.engine.ledger.room.disk_trouble
    world.cluster.restore() if in_flight else world.set_outage(False)
    assert world.run(120, until=lambda: all(parcel.done for parcel in parcels))
    assert world.log("t", 0) == [b"first", *values(COUNT)]
    assert [parcel.error for parcel in parcels] == [None] * COUNT
    # What follows goes the same way, and to disk as soon as it works.
    more = life.send("t", 0, [b"more"])
    assert world.run(10, until=lambda: more.done)
    world.disk.heal()
    world.set_outage(True)
    late = life.send("t", 0, [b"late"])
    assert world.run(60, until=lambda: late.durable)
    world.kill(life)
    world.set_outage(False)
    world.start(**OPTIONS)
    wanted = [b"first", *values(COUNT), b"more", b"late"]
    assert world.run(120, until=lambda: world.log("t", 0) == wanted)
    world.run(120)
    assert world.log("t", 0) == wanted


def test_the_disk_is_known_to_work_again_though_nothing_is_left_to_write():
    """All that was due was delivered out of memory, so nothing would have tried the disk again."""
    world = World()
    life = opened(world)
    broken(world, "the disk is full")
    world.set_outage(True)
    parcels = [life.send("t", 0, [value]) for value in values(COUNT)]
    world.run(10)
    world.set_outage(False)
    assert world.run(120, until=lambda: all(parcel.done for parcel in parcels))
    world.run(60)
    assert life.engine.ledger.room.disk_trouble
    world.disk.heal()
    assert world.run(120, until=lambda: not life.engine.ledger.room.disk_trouble)
    world.kill(life)
    world.start(**OPTIONS)
    world.run(60)
    assert world.log("t", 0) == [b"first", *values(COUNT)]


@pytest.mark.parametrize("seed", range(40))
def test_a_copy_that_a_failed_write_left_on_disk_is_not_sent_again(seed):
    """The process is killed after the cluster has acknowledged what the disk refused, or while it does so."""
    rng = random.Random(seed)
    world = World()
    life = opened(world)
    name = rng.choice(list(FAULTS))
    broken(world, name)
    world.set_outage(True)
    parcels = [life.send("t", 0, [value]) for value in values(COUNT)]
    world.run(rng.choice([1, 5]))
    world.set_outage(False)
    world.run(
        rng.choice([0.01, 0.1, 1, 2, 60]), until=lambda: sum(p.done for p in parcels) >= rng.randrange(13)
    )
    if rng.random() < 0.5:
        parcels += [life.send("t", 0, [value]) for value in values(COUNT, COUNT)]
        world.run(rng.choice([0.01, 1, 5]))
    done = sum(parcel.done for parcel in parcels)
    world.kill(life, power=rng.random() < 0.3, seed=seed)
    world.disk.heal()
    world.start(**OPTIONS)
    world.run(120)
    found = world.log("t", 0)
    assert found[0] == b"first"
    assert found[1:] == values(len(found) - 1)
    assert len(found) - 1 >= done
