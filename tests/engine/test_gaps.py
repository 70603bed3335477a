"""A gap in the ids of the records that wait: a power cut that left batches incomplete explains it, a loss does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual import SPOOL, World

from kafkasafe import events
from kafkasafe.spool.log_content import BatchEntry
from kafkasafe.spool.recovery import scan
from kafkasafe.testing.disk import Disk, ProcessKilled

LANE = SPOOL / "lane-000"
SIZES = {"spool_segment_bytes": 3000, "spool_max_bytes": 15_000}
LARGE = 1600
"""More than half a segment: two such batches are copied forward one by one, into two segments."""
SECTOR = 512


def waiting(disk: Disk) -> dict[int, tuple[Path, int]]:
    """By sequence, the batches for t-0 that have an id, in the order of the log: (segment, byte)."""
    log = scan(disk.process(), LANE)
    placed = {
        position: (each.path, stored.at) for each in log.segments for position, stored in each.batches.items()
    }
    return {
        entry.header.base_sequence: placed[entry.position]
        for entry in log.entries
        if isinstance(entry, BatchEntry) and entry.destination == 1 and entry.header.producer_id >= 0
    }


def tear(world: World, sequence: int) -> None:
    """The machine loses power, and one sector of an unsynced batch never reached the disk."""
    disk = world.disk.copy()
    path, at = waiting(disk)[sequence]
    content = bytearray(disk.files()[path])
    lost = (at // SECTOR + 1) * SECTOR
    content[lost : lost + SECTOR] = bytes(SECTOR)
    disk.put(path, bytes(content))
    world.disk = disk


def moved_and_killed(heard: list[events.Event]) -> World:
    """A power cut tears a batch that nobody was promised. The next life copies forward the two that follow it, deletes
    the segment that said so, and is killed before it may give them other ids.
    """
    world = World(3)
    world.centre.create_topic("t", 2)
    life = world.start(on_event=heard.append)
    life.send("t", 0, [b"0"])
    world.run(0.5)
    world.set_outage(True)
    world.disk.fail("sync_data", kill=True)
    for number in (1, 2, 3):
        life.send("t", 0, [b"%d" % number + b"x" * LARGE])
    with pytest.raises(ProcessKilled):
        world.run(1.0)
    world.disk.heal()
    world.lives.remove(life)
    life.kill()
    tear(world, 1)
    world.set_outage(False)
    life = world.start(sizes=SIZES, on_event=heard.append)
    (skipped,) = scan(world.disk.process(), LANE).skipped
    spool = life.context.own.spool
    for _ in range(60):
        life.send("t", 1, [b"x" * 300])
        world.run(0.05)
        if spool.first_position > skipped + 2:
            break
    assert spool.first_position > skipped + 2, "the torn batch's segment is gone"
    world.kill(life)
    return world


def missing(heard: list[events.Event]) -> list[events.SpoolRecordsMissing]:
    assert not [event for event in heard if isinstance(event, events.DataLost)]
    return [event for event in heard if isinstance(event, events.SpoolRecordsMissing)]


def test_a_gap_that_a_power_cut_left_is_no_loss_when_the_segment_that_said_so_is_gone():
    heard: list[events.Event] = []
    world = moved_and_killed(heard)
    world.start(sizes=SIZES, on_event=heard.append)
    world.run(40.0)
    assert [value[:1] for value in world.log("t", 0)] == [b"0", b"2", b"3"]
    assert missing(heard) == []


def test_a_promised_batch_that_vanished_behind_such_a_gap_is_reported():
    """Only the gap that the power cut left is explained, not every gap of its partition."""
    heard: list[events.Event] = []
    world = moved_and_killed(heard)
    copies = waiting(world.disk)
    (second, _), (third, _) = copies[2], copies[3]
    assert second < third, "each in a segment of its own"
    world.disk.remove(LANE / "extent")
    for path in sorted(world.disk.files()):
        if path.parent == LANE and path.suffix == ".log" and path < third:
            world.disk.remove(path)
    world.start(sizes=SIZES, on_event=heard.append)
    world.run(40.0)
    assert [value[:1] for value in world.log("t", 0)] == [b"0", b"3"]
    (event,) = missing(heard)
    assert (event.topic, event.partition, event.records) == ("t", 0, 2)
