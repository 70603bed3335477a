"""A transactional id or a group without rights: what waits for it says so, and goes on when the right is there."""

from __future__ import annotations

import pytest
from virtual import World

from kafkasafe import events
from kafkasafe._core import marks as m
from kafkasafe._io.refusals import because


@pytest.mark.parametrize(
    ("denied", "unit", "name"),
    [
        (("write", "transactional_id", "*"), {}, "transactional id kafkasafe-"),
        (("write", "transactional_id", "app"), {"transactional_id": "app"}, "transactional id app"),
        (("read", "group", "*"), {}, "group kafkasafe-"),
        (("read", "group", "app"), {"group": ["app"]}, "group app"),
    ],
)
def test_what_is_refused_is_reported_until_it_is_taken(denied, unit, name):
    world = World()
    world.centre.create_topic("orders", 1)
    life = world.start(retry_backoff_ms=100)
    seen = []
    emit = life.ground.emit
    life.ground.emit = lambda event: (seen.append(event), emit(event))
    world.centre.deny(*denied, on=True)
    position = m.Position("orders", 0, 1, -1, "")
    offsets = [m.GroupOffsets(group, "", -1, None, (position,)) for group in unit.get("group", [])]
    head = life.unit(
        ("orders", 0, [b"1", b"2"]), transactional_id=unit.get("transactional_id", ""), offsets=offsets
    )[0]
    assert world.run(120, lambda: any(isinstance(each, events.TransactionsRefused) for each in seen))
    [refused] = life.engine.endings.refused()
    assert refused.confirmed
    assert not refused.whole
    assert (refused.records, refused.partition) == (2, -1)
    assert refused.topic.startswith(name)
    assert name in because([refused])
    told = next(each for each in seen if isinstance(each, events.TransactionsRefused))
    assert (told.name, told.code, told.records) == (refused.topic, refused.code, 2)
    assert not head.done
    world.centre.deny(*denied, on=False)
    assert world.run(120, lambda: head.done)
    assert head.error is None
    assert life.engine.endings.refused() == []
    assert [each.name for each in seen if isinstance(each, events.TransactionsAccepted)] == [refused.topic]
    assert sum(isinstance(each, events.TransactionsRefused) for each in seen) == 1
    world.run(1)
    assert world.committed("orders", 0) == [b"1", b"2"]


def test_a_unit_of_offsets_alone_keeps_its_place_on_the_disk():
    """Of a unit without records the spool has one mark: the file with it stays until the unit is over."""
    world = World()
    world.centre.create_topic("orders", 1)
    options = {"sizes": {"spool_segment_bytes": 2000}, "retry_backoff_ms": 100}
    life = world.start(**options)
    world.centre.deny("read", "group", "app", on=True)
    position = m.Position("orders", 0, 7, -1, "")
    life.unit(offsets=[m.GroupOffsets("app", "", -1, None, (position,))])
    for number in range(40):
        parcel = life.send("orders", 0, [b"%d" % number + bytes(200)])
        assert world.run(60, until=lambda parcel=parcel: parcel.done)
    world.run(5)
    journal = life.ground.own.journal
    assert journal.release_position < 10
    assert journal.unfinished == 1
    world.kill(life)
    world.centre.deny("read", "group", "app", on=False)
    life = world.start(**options)
    noted = world.cluster._desk.groups.get("app").offsets
    assert world.run(60, until=lambda: ("orders", 0) in noted)
    assert noted["orders", 0].offset == 7
    for number in range(40):
        life.send("orders", 0, [b"%d" % number + bytes(200)])
    assert world.run(60, until=life.engine.ledger.idle)
    assert life.ground.own.journal.release_position > 40
