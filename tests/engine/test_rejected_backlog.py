"""A long backlog on its way to `rejected/`: the process is killed between the copies and the marks about them."""

from __future__ import annotations

import pytest
from virtual import SPOOL, World

from kafkasafe.maintenance.resend import find_rejected
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.rejected import RejectedStore


class KilledError(Exception):
    """The process ends."""


def test_what_is_packed_when_the_log_is_read_again_does_not_count_as_rejected(monkeypatch):
    """1. The topic of a long backlog is deleted. The first portion is copied to `rejected/`, and the process is killed.
    2. The next incarnation packs the backlog while it reads the log, and delivers it when the topic is there again.
    3. The copies of the packed batches counted as rejected: a resend sent those records a second time.
    """
    monkeypatch.setattr("kafkasafe.delivery.engine.packing._PARCELS", 0)
    monkeypatch.setattr("kafkasafe.journal.packing.UNPACKED", 6)
    world = World()
    world.centre.settings["auto.create.topics.enable"] = "false"
    world.cluster.create_topic("orders", 1)
    life = world.start(blocked_timeout_ms=10_000)
    first = life.send("orders", 0, [b"first"])
    assert world.run(60, lambda: first.done)
    world.cluster.delete_topic("orders")
    values = [b"%04d" % number for number in range(60)]
    for value in values:
        life.send("orders", 0, [value])

    keep = RejectedStore.keep

    def keeps(self, *args, **options):
        keep(self, *args, **options)
        raise KilledError

    monkeypatch.setattr(RejectedStore, "keep", keeps)
    with pytest.raises(KilledError):
        world.run(120)
    monkeypatch.setattr(RejectedStore, "keep", keep)
    world.kill(life)
    world.cluster.create_topic("orders", 1)
    life = world.start()
    assert life.context.own.rejected.records == 0
    assert world.run(120, life.engine.ledger.idle)
    assert world.log("orders", 0) == values
    assert find_rejected(SpoolDirectory.look(SPOOL, files=world.disk.process())).files == []


def test_metadata_that_arrive_between_two_portions_do_not_begin_the_rejection_again(monkeypatch):
    """1. A topic does not exist, so its batches are rejected, 256 at a time. A portion takes a slow disk a while.
    2. Meanwhile metadata arrive, which say once more that the topic does not exist.
    3. The rejection began again, beside the first one. One of them ended while a portion of the other one was being
       copied. The copied batches stayed in the queue, so a resend would have sent records that were delivered, too.
    """
    world = World()
    world.centre.settings["auto.create.topics.enable"] = "false"
    life = world.start(blocked_timeout_ms=10_000)
    parcels = [life.send("orders", -1, [b"%04d" % number]) for number in range(1000)]
    keep = RejectedStore.keep

    def keeps_slowly(self, *args, **options):
        life.context.refresh_topics(["orders"])
        world.time.run_for(0.05)
        return keep(self, *args, **options)

    monkeypatch.setattr(RejectedStore, "keep", keeps_slowly)
    assert world.run(60, lambda: life.context.own.rejected.records)
    assert world.run(5, life.engine.ledger.idle)
    assert all(parcel.error is not None for parcel in parcels)
    assert life.context.own.rejected.records == len(parcels)
