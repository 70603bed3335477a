"""A batch of a unit that the cluster finds too large is divided, and the unit stays one."""

from __future__ import annotations

import random

import pytest
from virtual import World

from kafkasafe.errors import BatchDroppedError, RejectedError, SpoolCorruptError
from kafkasafe.spool.spool import Spool


def started(**options):
    world = World()
    world.centre.create_topic("orders", 1, settings={"max.message.bytes": 600})
    world.centre.create_topic("audit", 1)
    return world, world.start(retry_backoff_ms=100, **options)


def commits(world: World) -> int:
    return sum("-> EndTxn commit" in line for line in world.lines)


VALUES = [b"%02d" % number + b"x" * 100 for number in range(20)]


def test_what_is_too_large_is_divided_and_all_of_it_is_committed_at_once():
    world, life = started()
    first = life.unit(("orders", 0, VALUES), ("audit", 0, [b"1"]))[0]
    second = life.unit(("orders", 0, [b"behind"]), ("audit", 0, [b"2"]))[0]
    assert world.run(120, lambda: first.done and second.done)
    assert first.error is None
    world.run(1)
    assert world.committed("orders", 0) == [*VALUES, b"behind"]
    assert world.committed("audit", 0) == [b"1", b"2"]
    assert commits(world) == 2


def test_batches_that_share_a_transaction_are_divided_together():
    world, life = started(delivery="transactional")
    heads = [life.unit(("orders", 0, VALUES), joins="orders")[0] for _ in range(5)]
    assert world.run(120, lambda: all(head.done for head in heads))
    world.run(1)
    assert world.committed("orders", 0) == VALUES * 5
    assert commits(world) == 1


@pytest.mark.parametrize("power", [True, False])
def test_the_parts_keep_their_place_through_crashes(power):
    """After each write, and again in the life after it."""
    for after in range(1, 14):
        world, life = started()
        first = life.unit(("orders", 0, VALUES), ("audit", 0, [b"1"]))[0]
        life.unit(("orders", 0, [b"behind"]))
        life.send("orders", 0, [b"plain"])
        for _ in range(2):
            world.run(5, lambda life=life: sum(life.context.stats.fsync.counts) >= after)  # noqa: B023
            durable = first.durable
            world.kill(life, power=power, seed=after)
            life = world.start(retry_backoff_ms=100)
        done(world, life)
        log = world.committed("orders", 0)
        assert log[: len(VALUES)] == (VALUES if durable else log[: len(VALUES)])
        assert log in ([], VALUES, [*VALUES, b"behind"], [*VALUES, b"behind", b"plain"]), after
        assert world.committed("audit", 0) == [b"1"] * (len(log) > 0)


def done(world: World, life) -> None:
    assert world.run(120, lambda: not life.context.own.journal.views.unfinished)
    world.run(1)


def test_one_record_that_is_too_large_gives_the_unit_up_as_a_whole():
    world, life = started()
    head = life.unit(("orders", 0, [*VALUES, b"y" * 700]), ("audit", 0, [b"1"]))[0]
    assert world.run(300, lambda: head.done)
    assert isinstance(head.error, BatchDroppedError)
    later = life.unit(("orders", 0, [b"behind"]), ("audit", 0, [b"2"]))[0]
    assert world.run(120, lambda: later.done)
    world.run(1)
    assert world.committed("orders", 0) == [b"behind"]
    assert world.committed("audit", 0) == [b"2"]


def test_a_damaged_batch_that_is_to_be_divided_ends_its_unit(monkeypatch):
    """It was sent, found too large, and its division waits for room; meanwhile the disk damages it."""
    room, has_room = [False], Spool.has_room
    monkeypatch.setattr(Spool, "has_room", lambda self, size: room[0] and has_room(self, size))
    world, life = started()
    world.set_outage(True)
    values = [random.Random(number).randbytes(100) for number in range(20)]
    life.unit(("orders", 0, values), ("audit", 0, [b"1"]))
    world.run(5)
    world.kill(life)  # the next producer has the batch on disk only
    world.set_outage(False)
    life = world.start(retry_backoff_ms=100, on_corrupt="quarantine")
    lane = life.context.own
    assert world.run(60, lambda: bool(lane.divisions.pending))
    for file in world.disk._tree.files.values():
        at = file.content.find(values[5])
        if at >= 0:
            file.content[at] ^= 1
    room[0] = True
    lane.divisions.end_pause()
    done(world, life)
    assert (world.committed("orders", 0), world.committed("audit", 0)) == ([], [])


def test_a_damaged_batch_that_waits_for_its_partitions_ends_its_unit():
    """Else the other batches of the unit, and all later ones of their partitions, would wait for it for ever."""
    world = World(auto_create_topics_enable="false")
    world.centre.create_topic("audit", 1)
    life = world.start(retry_backoff_ms=100)
    world.set_outage(True)
    values = [random.Random(number).randbytes(100) for number in range(20)]
    life.unit(("orders", -1, values), ("audit", 0, [b"1"]))
    life.unit(("audit", 0, [b"2"]))
    life.send("audit", 0, [b"3"])
    world.run(5)
    world.kill(life)  # the next producer has the batch on disk only
    world.set_outage(False)
    life = world.start(retry_backoff_ms=100, on_corrupt="quarantine")
    world.run(3)
    for file in world.disk._tree.files.values():
        at = file.content.find(values[5])
        if at >= 0:
            file.content[at] ^= 1
    world.centre.create_topic("orders", 1)
    done(world, life)
    assert (world.committed("orders", 0), world.committed("audit", 0)) == ([], [b"2", b"3"])


def flip(world: World, value: bytes) -> None:
    """Damage the first copy of a value on the disk."""
    for file in world.disk._tree.files.values():
        at = file.content.find(value)
        if at >= 0:
            file.content[at] ^= 1
            return
    raise AssertionError("It is not there")


def test_damage_beside_a_batch_that_was_just_divided_ends_the_unit():
    """1. Two batches of a unit wait for their topic, and the second one is damaged.

    2. The topic is created. The first one is divided, and the damage of the second one ends the unit in the same turn.
    3. The parts of the first one have no position yet, but `rejected/` names it: the producer ended with MarkError.
    """
    world = World(auto_create_topics_enable="false")
    world.centre.create_topic("audit", 1)
    life = world.start(retry_backoff_ms=100)
    world.set_outage(True)
    values = [random.Random(number).randbytes(100) for number in range(20)]
    life.unit(("orders", -1, values[:10]), ("orders", -1, values[10:]), ("audit", 0, [b"1"]))
    life.unit(("audit", 0, [b"2"]))
    world.run(5)
    world.kill(life)  # the next producer has the batches on disk only
    world.set_outage(False)
    life = world.start(retry_backoff_ms=100, on_corrupt="quarantine")
    world.run(3)
    flip(world, values[15])
    world.centre.create_topic("orders", 2)
    done(world, life)
    assert (world.committed("orders", 0), world.committed("audit", 0)) == ([], [b"2"])
    kept = b"".join(content for path, content in world.disk.files().items() if "rejected" in path.parts)
    assert all(value in kept for value in values[:10])


def test_two_damaged_batches_of_one_unit_are_both_in_quarantine():
    """1. The first damaged batch is found when it is to be divided, which gives its unit up.

    2. The second one is found when the unit is copied to `rejected/`. It was read again for ever, and no later batch of
       the unit's partitions was delivered.
    """
    world = World(auto_create_topics_enable="false")
    for topic in ("audit", "other"):
        world.centre.create_topic(topic, 1)
    life = world.start(retry_backoff_ms=100)
    world.set_outage(True)
    values = [random.Random(number).randbytes(100) for number in range(3)]
    life.unit(("orders", -1, values[:1]), ("audit", 0, values[1:2]), ("other", 0, values[2:]))
    life.unit(("audit", 0, [b"2"]), ("other", 0, [b"2"]))
    world.run(5)
    world.kill(life)
    world.set_outage(False)
    life = world.start(retry_backoff_ms=100, on_corrupt="quarantine")
    world.run(3)
    flip(world, values[0])
    flip(world, values[2])
    world.centre.create_topic("orders", 1)
    done(world, life)
    assert [world.committed(topic, 0) for topic in ("orders", "audit", "other")] == [[], [b"2"], [b"2"]]
    files = world.disk.files()
    kept = b"".join(content for path, content in files.items() if "rejected" in path.parts)
    assert values[1] in kept
    assert sum("quarantine" in path.parts for path in files) == 2


def test_a_damaged_part_of_a_divided_batch_ends_its_unit():
    """1. A batch of a unit waits for its topic, and is divided among its partitions.

    2. The process ends, and one of the parts is damaged: the next start finds that, and its other parts were delivered.
    """
    world = World(auto_create_topics_enable="false")
    world.centre.create_topic("audit", 1)
    life = world.start(retry_backoff_ms=100)
    world.run(1)
    values = [random.Random(number).randbytes(100) for number in range(2)]
    life.unit(("orders", -1, values), ("audit", 0, [b"1"]))
    life.unit(("audit", 0, [b"2"]))
    world.run(1)
    world.centre.create_topic("orders", 2)
    assert world.run(60, lambda: _copies(world, values[0]) == 2)  # its part is written
    world.kill(life)
    assert world.committed("orders", 0) == []
    for file in world.disk._tree.files.values():
        at = file.content.rfind(values[0])
        if at >= 0:
            file.content[at] ^= 1
    life = world.start(retry_backoff_ms=100, on_corrupt="quarantine")
    done(world, life)
    assert [world.committed("orders", at) for at in (0, 1)] == [[], []]
    assert world.committed("audit", 0) == [b"2"]


def _copies(world: World, value: bytes) -> int:
    return sum(file.content.count(value) for file in world.disk._tree.files.values())


def test_the_intact_batches_of_a_damaged_unit_are_rejected_ones():
    """Their futures said that they were damaged, and no dead-letter handler got them."""
    letters = []
    world, life = started(
        on_corrupt="quarantine", on_rejected=lambda **letter: letters.append(letter["value"])
    )
    world.set_outage(True)
    values = [random.Random(number).randbytes(100) for number in range(3)]
    head, damaged, intact = life.unit(("orders", 0, values), ("audit", 0, [b"1"]))
    assert world.run(30, lambda: head.durable)
    life.engine.disk.cannot_send()  # what is on disk is not in memory as well
    flip(world, values[1])
    world.set_outage(False)
    assert world.run(60, lambda: head.done and damaged.done and intact.done)
    assert isinstance(head.error, BatchDroppedError)
    assert isinstance(damaged.error, SpoolCorruptError)
    assert isinstance(intact.error, RejectedError)
    assert "part of an atomic batch that was rejected as a whole" in str(intact.error)
    assert letters == [b"1"]
    records = life.context.stats.records
    assert (records["orders", "damaged"], records["audit", "rejected"], records["audit", "damaged"]) == (
        3,
        1,
        0,
    )


def test_a_batch_whose_division_waited_for_room_is_not_divided_while_it_is_being_sent_again(monkeypatch):
    """1. A batch is too large, and the disk has no room for its parts. After a pause, the unit is tried again.
    2. There is room as soon as a request with the batch is in flight.
    3. The answer to the request was about a batch that the unit did not have any more, and the producer ended.
    """
    world, life = started()
    units = life.context.own.journal.units
    monkeypatch.setattr(Spool, "has_room", lambda self, size: bool(units.ids.under_way))
    head = life.unit(("orders", 0, VALUES), ("audit", 0, [b"1"]))[0]
    lane = life.context.own
    assert world.run(60, lambda: bool(lane.divisions.pending))
    assert world.run(60, lambda: bool(units.ids.under_way))
    monkeypatch.setattr(Spool, "has_room", lambda self, size: True)
    lane.divisions.end_pause()
    done(world, life)
    assert head.error is None
    assert world.committed("orders", 0) == VALUES
    assert world.committed("audit", 0) == [b"1"]
