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
