"""A long backlog: what is far from its turn is packed, and comes back in order, to whoever still looks at it."""

from __future__ import annotations

import gc
import weakref

import pytest
from test_storms import Storm
from virtual import Life, World, offset_of

from kafkasafe.journal.spool_index import Ordered


@pytest.fixture
def eager(monkeypatch):
    """Whatever can be packed is."""
    monkeypatch.setattr("kafkasafe.delivery.engine.packing._PARCELS", 0)
    monkeypatch.setattr("kafkasafe.journal.packing.UNPACKED", 6)
    send = Life.send

    def unwatched(self, *args):
        parcel = send(self, *args)
        parcel.watcher = None
        return parcel

    monkeypatch.setattr(Life, "send", unwatched)


def backlog(partitions=2, batches=200):
    world = World()
    world.centre.create_topic("orders", partitions)
    life = world.start()
    first = life.send("orders", 0, [b"first"])
    assert world.run(60, lambda: first.done)
    world.set_outage(True)
    parcels = []
    for number in range(batches):
        parcels += [life.send("orders", partition, [b"%04d" % number]) for partition in range(partitions)]
        if not number % 20:
            world.run(0.01)
    world.run(1.0)
    return world, life, parcels


def test_a_long_backlog_is_packed_and_delivered_in_order(eager):
    world, life, parcels = backlog()
    lane = life.context.own
    assert len(lane.parcels) < 40
    assert (len(life.engine.ledger.parcels), lane.journal.views.unfinished) == (400, 400)
    assert lane.journal.views.spooled_records == 400
    position = lane.journal.views.release_position
    world.set_outage(False)
    assert world.run(60, life.engine.ledger.idle)
    for partition in range(2):
        values = [value for value in world.log("orders", partition) if value != b"first"]
        assert values == [b"%04d" % number for number in range(200)]
    assert [parcel.done for parcel in parcels] == [True] * 400
    assert sorted(offset_of(p) for p in parcels if p.partition == 1) == list(range(200))
    assert lane.journal.views.release_position > position
    assert life.engine.ledger.parcels.open.least is None


def test_nothing_of_what_nobody_looks_at_is_in_memory(eager):
    world, life, parcels = backlog()
    waits = [weakref.ref(parcel) for parcel in parcels if not parcel.done]
    kept, parcels[:] = parcels[300], ()
    gc.collect()
    assert sum(each() is not None for each in waits) < 50
    world.set_outage(False)
    assert world.run(60, life.engine.ledger.idle)
    assert kept.done
    assert kept.error is None


def test_one_that_is_watched_when_it_is_packed_already_is_kept_for_that(eager):
    world, life, parcels = backlog()
    ended = []
    number = parcels[-3].number
    assert parcels[-3].keeper is not None
    parcels[-3].watch(lambda parcel: ended.append(parcel.number))
    parcels.clear()
    gc.collect()
    world.set_outage(False)
    assert world.run(60, life.engine.ledger.idle)
    assert number in ended


def test_who_waits_for_a_record_waits_for_no_later_one(eager):
    world, life, parcels = backlog()
    ledger = life.engine.ledger
    middle = parcels[200].number
    assert not ledger.parcels.flushed(middle)
    world.set_outage(False)
    assert world.run(60, lambda: ledger.parcels.flushed(middle))
    assert all(parcel.done for parcel in parcels[:201])
    assert not ledger.parcels.flushed(ledger.last_number()) or ledger.idle()


class Unlooked(Ordered):
    """Nobody goes through it."""

    __slots__ = ()

    def __iter__(self):
        raise AssertionError("Thousands of parcels are looked at, under the lock")


def test_who_flushes_goes_through_nothing(eager):
    world, life, parcels = backlog(batches=20)
    ledger = life.engine.ledger
    ledger.parcels.open.__class__ = Unlooked
    number = ledger.last_number()
    ledger.parcels.open.__class__ = Ordered
    later = life.send("orders", 0, [b"later"])
    assert parcels[-1].number < number < later.number
    world.set_outage(False)
    assert world.run(60, lambda: ledger.parcels.flushed(number))
    assert all(parcel.done for parcel in parcels)


def test_a_producer_that_ends_tells_those_who_wait_for_what_is_packed(eager):
    _, life, parcels = backlog()
    life.engine.shut()
    assert all(parcel.error is not None for parcel in parcels if parcel.number > 1)
    assert list(life.engine.left.records.values()) == [400]


def test_the_next_life_delivers_it(eager):
    world, life, _ = backlog()
    world.kill(life)
    world.set_outage(False)
    heir = world.start()
    assert world.run(120, heir.engine.ledger.idle)
    assert list(world.log("orders", 1)) == [b"%04d" % number for number in range(200)]


def test_the_next_life_packs_what_it_finds(eager):
    world, life, _ = backlog()
    world.kill(life)
    heir = world.start()
    lane = heir.context.own
    assert len(lane.parcels) < 40
    assert (len(heir.engine.ledger.parcels), lane.journal.views.unfinished) == (400, 400)
    # They were made before all that are packed: else each would keep a megabyte of those from being given back.
    numbers = [parcel.number for parcel in lane.parcels.values()]
    assert max(numbers) - min(numbers) < 40
    number = heir.engine.ledger.last_number()
    # As `flush()` says what it waits for.
    assert heir.engine.ledger.parcels.records(number) == 400
    for partition in range(2):
        heir.send("orders", partition, [b"later"])
    world.set_outage(False)
    assert world.run(120, heir.engine.ledger.idle)
    assert heir.engine.ledger.parcels.flushed(number)
    assert heir.engine.ledger.parcels.records(number) == 0
    for partition in range(2):
        values = [value for value in world.log("orders", partition) if value != b"first"]
        assert values == [*(b"%04d" % number for number in range(200)), b"later"]


@pytest.mark.parametrize("seed", range(8))
def test_storms(eager, seed):
    storm = Storm(1000 + seed)
    storm.blow(40)
    storm.check()


def test_nothing_is_packed_behind_what_came_back_and_is_not_told_yet(eager, monkeypatch):
    """The shell took what was packed last for the end of all that is packed: the producer ended with a KeyError."""
    world, life, parcels = backlog(partitions=1, batches=9)
    lane, ledger = life.context.own, life.engine.ledger
    partition = lane.journal._state.destinations.partitions[parcels[0].batch.destination]
    monkeypatch.setattr("kafkasafe.delivery.engine.packing._PARCELS", 1000)
    later = [life.send("orders", 0, [b"%04d" % number]) for number in (9, 10)]
    world.run(1.0)
    assert partition.queue.packed.count
    assert not any(parcel.batch is None for parcel in later)
    monkeypatch.setattr("kafkasafe.delivery.engine.packing._PARCELS", 0)
    monkeypatch.setattr("kafkasafe.journal.packing.UNPACKED", 10)
    lane.journal._packer.unpack(partition, partition.queue.packed.count)
    life.engine._packing.pack(lane, [later[-1].batch])
    world.set_outage(False)
    assert world.run(60, ledger.idle)
    assert [value for value in world.log("orders", 0) if value != b"first"] == [
        b"%04d" % number for number in range(11)
    ]
