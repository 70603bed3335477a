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
        before = life.context.own.spool.first_position
        for _ in range(12):
            life.send("t", 1, [b"x" * 100])
            world.run(0.05)
        assert life.context.own.spool.first_position > before
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
    assert not [event for event in heard if isinstance(event, events.DataLost | events.SpoolRecordsMissing)]


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
    (loss,) = [event for event in heard if isinstance(event, events.DataLost)]
    assert (loss.first_offset, loss.last_offset, loss.records) == (1, 2, 2)


def _acked_under_the_epoch_before(*, between: bool) -> tuple[World, list[events.Event], dict]:
    """A backlog is delivered while an election keeps the leader; the producer dies before it hears of that.

    Of seven batches two are still in the spool. Of the five before them only the marks are: the segment that follows
    theirs began before anything was acknowledged.
    """
    world = World(3)
    world.centre.create_topic("t", 1)
    heard: list[events.Event] = []
    options = {"sizes": {"spool_segment_bytes": 2500}, "on_event": heard.append}
    world.set_outage(True)
    life = world.start(**options)
    for _ in range(7):
        life.send("t", 0, [b"x" * 250])
        world.run(0.01)
    world.set_outage(False)
    journal = life.context.own.journal
    assert world.run(20, until=lambda: journal.views.last_acked_offset("t", 0) >= 0)
    _elected_again(world)
    found = world.centre.partition("t", 0)
    if between:
        assert world.run(1, until=lambda: found.log.end_offset > 1)
        world.write_foreign("t", 0)
    world.run(0.5)
    assert not journal.views.unfinished
    assert journal.views.leader_epoch(1) < found.leader_epoch
    assert [
        batch.position < life.context.own.spool.first_position
        for batch in journal._state.destinations.partitions[1].log.acked
    ] == [
        *[True] * 5,
        *[False] * 2,
    ]
    world.kill(life)
    return world, heard, options


@pytest.mark.parametrize("between", [False, True], ids=["alone", "others between"])
def test_batches_of_which_only_the_offsets_are_known_are_no_loss_where_they_are(between):
    """The log of the epoch that they were noted under ends before them: they were reported as lost, and were there."""
    world, heard, options = _acked_under_the_epoch_before(between=between)
    world.start(**options)
    world.run(40.0)
    assert len([value for value in world.log("t", 0) if value != b"foreign"]) == 7
    assert not [event for event in heard if isinstance(event, events.DataLost | events.SpoolRecordsMissing)]


def test_batches_of_which_only_the_offsets_are_known_are_lost_where_others_are():
    """An unclean election: others' records took the places of four, and our last two came after them."""
    world, heard, options = _acked_under_the_epoch_before(between=False)
    found = world.centre.partition("t", 0)
    ours = [bytes(batch.data) for batch in found.log.batches[5:]]
    for log in found.logs.values():
        log.truncate(1)
        log.high_watermark = min(log.high_watermark, 1)
    for _ in range(4):
        world.write_foreign("t", 0)
    for data in ours:
        found.log.append(data, found.leader_epoch, None)
    world.centre.replicate()
    world.start(**options)
    world.run(40.0)
    (loss,) = [event for event in heard if isinstance(event, events.DataLost)]
    assert (loss.first_offset, loss.last_offset) == (1, 6)
    assert "other producers" in loss.evidence
