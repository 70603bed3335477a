"""Which batch was acknowledged last is known after its segment is gone."""

from __future__ import annotations

import pytest
from virtual import World

from kafkasafe import events


def _elected_again(world: World) -> None:
    """An election that keeps the leader: clients that were there before do not notice."""
    found = world.centre.partition("t", 0)
    found.lead(found.leader)
    world.centre.replicate()


@pytest.mark.parametrize("released", ["at work", "by the next life"])
def test_an_ack_under_an_earlier_epoch_is_no_loss_when_its_batch_is_gone_from_the_spool(released):
    """The log of the epoch in the mark ends before it, and nothing in the spool said which batch it was."""
    world = World(3)
    world.centre.create_topic("t", 2)
    heard: list[events.Event] = []
    sizes = {"spool_segment_bytes": 700}
    life = world.start(sizes=sizes, on_event=heard.append)
    life.send("t", 0, [b"one"])
    world.run(0.5)
    _elected_again(world)
    life.send("t", 0, [b"two", b"three"])
    world.run(0.5)
    if released == "at work":
        before = life.ground.own.spool.first_position
        for _ in range(12):
            life.send("t", 1, [b"x" * 100])
            world.run(0.05)
        assert life.ground.own.spool.first_position > before
    world.kill(life)
    if released == "by the next life":
        life = world.start(sizes=sizes, on_event=heard.append)
        for _ in range(4):
            life.send("t", 0, [b"y" * 200])
        world.run(0.005)
        world.kill(life)
    life = world.start(sizes=sizes, on_event=heard.append)
    life.send("t", 0, [b"four"])
    world.run(40.0)
    assert [value for value in world.log("t", 0) if value[:1] != b"y"] == [b"one", b"two", b"three", b"four"]
    assert not [event for event in heard if isinstance(event, events.AckedDataLost | events.RecordsMissing)]


def test_that_the_newest_batch_is_gone_is_seen_after_its_segment_went():
    """Its id is what is looked for: another batch in its place is none of ours."""
    world = World(3)
    world.centre.create_topic("t", 2)
    heard: list[events.Event] = []
    sizes = {"spool_segment_bytes": 700}
    life = world.start(sizes=sizes, on_event=heard.append)
    life.send("t", 0, [b"one"])
    life.send("t", 0, [b"two", b"three"])
    world.run(0.5)
    for _ in range(12):
        life.send("t", 1, [b"x" * 100])
        world.run(0.05)
    world.kill(life)
    found = world.centre.partition("t", 0)
    for log in found.logs.values():
        log.truncate(1)
        log.high_watermark = min(log.high_watermark, 1)
    _elected_again(world)
    life = world.start(sizes=sizes, on_event=heard.append)
    world.run(40.0)
    (loss,) = [event for event in heard if isinstance(event, events.AckedDataLost)]
    assert (loss.first_offset, loss.last_offset, loss.records) == (1, 2, 2)
