"""Units that wait share a transaction, on the cluster in virtual time; what becomes of one of them is no other's fate."""

from __future__ import annotations

import pytest
from test_unit_crashes import Run
from virtual import World

from kafkasafe.errors import BatchDroppedError
from kafkasafe.events import TopicBlocked, TopicUnblocked
from kafkasafe.units.together import MOST

AN_HOUR_MS = 3_600_000
AN_HOUR = {"message.timestamp.after.max.ms": str(AN_HOUR_MS)}


def commits(world: World) -> int:
    return sum("-> EndTxn commit" in line for line in world.lines)


def started(version="4.3.0", **options):
    world = World(version=version)
    world.centre.create_topic("orders", 2)
    world.centre.create_topic("audit", 1)
    return world, world.start(retry_backoff_ms=100, **options)


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_units_that_wait_on_the_same_partitions_share_a_transaction(version):
    world, life = started(version)
    names = [b"%d" % number for number in range(2 * MOST + 8)]
    units = [life.unit(("orders", 0, [name, name + b"b"]), ("audit", 0, [name])) for name in names]
    assert world.run(60, lambda: all(head.done for head, *_ in units))
    world.run(1)
    assert world.committed("audit", 0) == names
    assert world.committed("orders", 0) == [each for name in names for each in (name, name + b"b")]
    assert commits(world) == 3
    places = [parcel.base_offset for _, parcel, _ in units]
    assert places == sorted(set(places))
    assert all(head.error is None for head, *_ in units)


def test_units_that_come_together_go_to_the_disk_in_one_write_and_one_sync():
    world, life = started()
    life.unit(("orders", 0, [b"first"]))
    world.run(1)
    before = world.disk.calls.copy()
    heads = [life.unit(("orders", 0, [b"%d" % number]))[0] for number in range(50)]
    life.turn()
    assert all(head.durable for head in heads)
    spent = world.disk.calls - before
    assert (spent["writev"], spent["sync_data"]) == (2, 1)  # the log and its extent
    assert world.run(60, lambda: all(head.done for head in heads))


def test_a_crash_finds_them_in_one_transaction():
    """The schedule of the crash table: so it has that in it."""
    run = Run("4.3.0", {}, True)
    assert run.live(0, first=True)
    assert len(run.heads) == 3
    assert commits(run.world) == 1


def test_those_with_a_name_or_with_offsets_have_their_own():
    world, life = started()
    heads = [
        life.unit(("orders", 0, [b"1"]))[0],
        life.unit(("orders", 0, [b"2"]), transactional_id="app")[0],
        life.unit(("orders", 0, [b"3"]))[0],
        life.unit(("orders", 0, [b"4"]))[0],
    ]
    assert world.run(60, lambda: all(head.done for head in heads))
    world.run(1)
    assert world.committed("orders", 0) == [b"1", b"2", b"3", b"4"]
    assert commits(world) == 3


def test_one_whose_timestamps_are_ahead_waits_and_those_behind_it_follow():
    """A broker accepts timestamps that are an hour ahead of its clock."""
    world = World()
    world.centre.create_topic("orders", 1, settings=AN_HOUR)
    world.centre.create_topic("audit", 1)
    life = world.start()
    began = world.time.monotonic()
    heads = [
        life.unit(("orders", 0, [b"%d" % number]), ahead_ms=AN_HOUR_MS + 60_000 if number == 1 else 0)[0]
        for number in range(3)
    ]
    other = life.unit(("audit", 0, [b"other"]))[0]
    assert world.run(30, lambda: heads[0].done and other.done)
    assert not heads[1].done
    assert world.run(200, lambda: all(head.done for head in heads))
    assert 60 <= world.time.monotonic() - began <= 65
    assert [head.error for head in heads] == [None] * 3
    world.run(1)
    assert world.committed("orders", 0) == [b"0", b"1", b"2"]


def test_several_batches_of_one_partition_whose_timestamps_are_ahead_are_reported_once():
    """An atomic batch of more than `batch_size` has several. The broker refuses each, but the first refusal counts."""
    world = World()
    world.centre.create_topic("orders", 1, settings=AN_HOUR)
    heard: list[object] = []
    life = world.start(on_event=heard.append)
    parts = [("orders", 0, [b"1"]), ("orders", 0, [b"2"])]
    head = life.unit(*parts, ahead_ms=AN_HOUR_MS + 60_000)[0]
    assert world.run(200, lambda: head.done)
    world.run(1)
    assert world.committed("orders", 0) == [b"1", b"2"]
    [blocked] = [each for each in heard if isinstance(each, TopicBlocked)]
    assert (blocked.code, blocked.batches) == (32, 2)
    [unblocked] = [each for each in heard if isinstance(each, TopicUnblocked)]
    assert unblocked.after_s > 59


def test_one_whose_timestamps_are_hours_ahead_is_tried_rarely():
    """Each attempt appends its batches for the other partitions, and aborts them."""
    world = World()
    world.centre.create_topic("orders", 1, settings=AN_HOUR)
    world.centre.create_topic("audit", 1)
    life = world.start()
    world.run(1)
    world.cluster._handler.counts.clear()
    head = life.unit(("audit", 0, [b"1"]), ("orders", 0, [b"2"]), ahead_ms=4 * AN_HOUR_MS)[0]
    assert world.run(4 * 3600, lambda: head.done)
    assert world.cluster._handler.counts["EndTxn"] == 1
    assert world.cluster._handler.counts["Produce"] <= 60
    world.run(1)
    assert world.committed("orders", 0) == [b"2"]


def test_one_whose_timestamps_are_ahead_for_longer_than_it_may_be_blocked_is_refused():
    world = World()
    world.centre.create_topic("orders", 1, settings=AN_HOUR)
    life = world.start(blocked_timeout_ms=30_000)
    heads = [
        life.unit(("orders", 0, [b"%d" % number]), ahead_ms=AN_HOUR_MS + 60_000 if number == 1 else 0)[0]
        for number in range(3)
    ]
    assert world.run(20, lambda: all(head.done for head in heads))
    assert isinstance(heads[1].error, BatchDroppedError)
    world.run(1)
    assert world.committed("orders", 0) == [b"0", b"2"]


def test_one_that_is_refused_for_good_is_refused_alone():
    world, life = started()
    world.centre.create_topic("small", 1, settings={"max.message.bytes": 1000})
    parts = [
        [("orders", 0, [b"1"])],
        [("orders", 0, [b"2"]), ("small", 0, [bytes(2000)])],
        [("orders", 0, [b"3"])],
    ]
    heads = [life.unit(*some)[0] for some in parts]
    assert world.run(60, lambda: all(head.done for head in heads))
    world.run(1)
    assert [type(head.error) for head in heads] == [type(None), BatchDroppedError, type(None)]
    assert world.committed("orders", 0) == [b"1", b"3"]
    assert world.committed("small", 0) == []


def test_one_that_is_too_large_is_divided_and_all_are_committed_in_order():
    world, life = started()
    world.centre.create_topic("small", 1, settings={"max.message.bytes": 1000})
    large = [bytes([number]) * 400 for number in range(5)]
    parts = [[("small", 0, [b"1"])], [("orders", 0, [b"2"]), ("small", 0, large)], [("small", 0, [b"3"])]]
    heads = [life.unit(*some)[0] for some in parts]
    assert world.run(60, lambda: all(head.done for head in heads))
    world.run(1)
    assert [head.error for head in heads] == [None] * 3
    assert world.committed("small", 0) == [b"1", *large, b"3"]
    assert world.committed("orders", 0) == [b"2"]
