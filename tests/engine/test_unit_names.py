"""A transactional id or a group without rights: what waits for it says so, and goes on when the right is there."""

from __future__ import annotations

import pytest
from virtual import World

from kafkasafe import events
from kafkasafe import marks as m
from kafkasafe.cluster.transactions import OffsetsCommitted
from kafkasafe.delivery.engine.transactor import Transactor
from kafkasafe.errors import BatchDroppedError
from kafkasafe.limits.patience import Patience
from kafkasafe.spool.refusals import because


@pytest.mark.parametrize(
    ("denied", "unit", "name"),
    [
        (("write", "transactional_id", "*"), {}, "transactional id kafkasafe-"),
        (("write", "transactional_id", "app"), {"transactional_id": "app"}, "transactional id app"),
        (("read", "group", "*"), {}, "group kafkasafe-"),
        (("read", "group", "app"), {"group": ["app"]}, "group app"),
        (("read", "topic", "orders"), {}, "READ on orders"),
    ],
)
def test_what_is_refused_is_reported_until_it_is_taken(denied, unit, name):
    world = World()
    world.centre.create_topic("orders", 1)
    life = world.start(retry_backoff_ms=100)
    seen = []
    emit = life.context.emit
    life.context.emit = lambda event: (seen.append(event), emit(event))
    world.centre.deny(*denied, on=True)
    position = m.Position("orders", 0, 1, -1, "")
    offsets = [m.GroupOffsets(group, "", -1, None, (position,)) for group in unit.get("group", [])]
    head = life.unit(
        ("orders", 0, [b"1", b"2"]), transactional_id=unit.get("transactional_id", ""), offsets=offsets
    )[0]
    assert world.run(120, lambda: any(isinstance(each, events.TransactionsBlocked) for each in seen))
    [refused] = life.engine.endings.refused()
    assert refused.confirmed
    assert not refused.whole
    assert (refused.records, refused.partition) == (2, -1)
    assert refused.topic.startswith(name)
    assert name in because([refused])
    told = next(each for each in seen if isinstance(each, events.TransactionsBlocked))
    assert (told.name, told.code, told.records) == (refused.topic, refused.code, 2)
    assert not head.done
    world.centre.deny(*denied, on=False)
    assert world.run(120, lambda: head.done)
    assert head.error is None
    assert life.engine.endings.refused() == []
    assert [each.name for each in seen if isinstance(each, events.TransactionsUnblocked)] == [refused.topic]
    assert sum(isinstance(each, events.TransactionsBlocked) for each in seen) == 1
    world.run(1)
    assert world.committed("orders", 0) == [b"1", b"2"]


GONE = m.Position("gone", 0, 7, -1, "")
RECORDS = [("orders", 0, [b"1"])]


def watched(life) -> list:
    """What its hook is told from now on."""
    seen, emit = [], life.context.emit
    life.context.emit = lambda event: (seen.append(event), emit(event))
    return seen


@pytest.mark.parametrize("group", ["*", "app"])
def test_a_group_without_rights_is_tried_twice_a_minute(group):
    """Each try appends the records, and aborts them: the topic grew by the whole batch every three seconds. The answers
    counted as progress, so `close` never ended.
    """
    world = World()
    world.centre.create_topic("orders", 1)
    life = world.start(retry_backoff_ms=100)
    world.centre.deny("read", "group", group, on=True)
    offsets = [m.GroupOffsets("app", "", -1, None, (m.Position("orders", 0, 1, -1, ""),))]
    head = life.unit(("orders", 0, [b"1"]), offsets=offsets if group == "app" else [])[0]
    world.run(60)
    seen = watched(life)
    world.run(600)
    tries = sum(isinstance(each, events.AtomicBatchRetried) for each in seen)
    assert 600 / 45 < tries < 600 / 10
    patience, began = Patience(idle_s=5.0, pause_s=0.0), world.time.monotonic()
    assert world.run(120, lambda: world.time.monotonic() >= life.engine.patience_ends(patience, began))
    world.centre.deny("read", "group", group, on=False)
    assert world.run(31, lambda: head.done)
    assert head.error is None


@pytest.mark.parametrize(
    ("parts", "position"),
    [
        pytest.param(RECORDS, GONE, id="topic"),
        pytest.param(RECORDS, m.Position("orders", 9, 7, -1, ""), id="partition"),
        pytest.param([], GONE, id="nothing-but-offsets"),
    ],
)
@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_the_offset_of_a_partition_that_is_gone_is_waited_for_as_records_are(version, parts, position):
    """It was for ever, and nobody was told; nor was anything delivered that stood behind it on its partitions."""
    world = World(version=version)
    world.centre.create_topic("orders", 1)
    life = world.start(retry_backoff_ms=100, blocked_timeout_ms=120_000)
    seen = watched(life)
    there = m.Position("orders", 0, 3, -1, "")
    began = world.time.monotonic()
    head = life.unit(*parts, offsets=[m.GroupOffsets("app", "", -1, None, (there, position))])[0]
    behind = life.send("orders", 0, [b"behind"])
    assert world.run(60, lambda: any(isinstance(each, events.TransactionsBlocked) for each in seen))
    [refused] = life.engine.endings.refused()
    assert (refused.code, refused.confirmed, refused.whole) == (3, True, False)
    assert f"the offset of {position.topic}-{position.partition}" in refused.reason
    if parts:
        assert not behind.done
        assert life.engine.endings.refused("orders") == [refused]
    assert world.run(300, lambda: head.done)
    assert isinstance(head.error, BatchDroppedError)
    assert head.error.code == 3
    assert world.time.monotonic() - began >= 120
    assert world.run(60, lambda: behind.done)
    assert behind.error is None
    world.run(1)
    assert world.committed("orders", 0) == [b"behind"]
    assert not world.cluster._handler.groups.get("app").offsets


def test_offsets_go_on_when_their_topic_is_there():
    world = World()
    world.centre.create_topic("orders", 1)
    life = world.start(retry_backoff_ms=100, blocked_timeout_ms=None)
    seen = watched(life)
    head = life.unit(*RECORDS, offsets=[m.GroupOffsets("app", "", -1, None, (GONE,))])[0]
    assert world.run(60, lambda: any(isinstance(each, events.TransactionsBlocked) for each in seen))
    assert not world.run(3600, lambda: head.done)
    world.centre.create_topic("gone", 1)
    assert world.run(60, lambda: head.done)
    assert head.error is None
    assert [each.code for each in seen if isinstance(each, events.TransactionsUnblocked)] == [3]
    assert life.engine.endings.refused() == []


def test_what_is_true_of_the_whole_group_counts_where_a_topic_is_gone_as_well():
    """Else the topic would be waited for with offsets that are refused when it is there."""
    answer = OffsetsCommitted(3, {("gone", 0): 3, ("orders", 0): 22, ("orders", 1): 0})
    assert Transactor._refused_offset(answer) == (22, "the offset of orders-0")
    assert Transactor._refused_offset(OffsetsCommitted(3, {("gone", 0): 3})) == (3, "the offset of gone-0")


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_a_group_without_a_coordinator_is_asked_again(version):
    """The cluster has none yet for the first group: no partition is named in that answer, and the producer ended by it."""
    world = World(version=version)
    world.centre.create_topic("orders", 1)
    life = world.start(retry_backoff_ms=100)
    commit, answers = life.client.transactions.commit_offsets_in_transaction, [OffsetsCommitted(15)] * 3

    def commit_offsets(identity, group, offsets, reply, **options):
        if answers:
            reply(answers.pop())
        else:
            commit(identity, group, offsets, reply, **options)

    life.client.transactions.commit_offsets_in_transaction = commit_offsets
    position = m.Position("orders", 0, 3, -1, "")
    head = life.unit(*RECORDS, offsets=[m.GroupOffsets("app", "", -1, None, (position,))])[0]
    assert world.run(60, lambda: head.done)
    assert head.error is None
    assert not answers


@pytest.mark.parametrize(
    ("group", "metadata", "code"),
    [("", "", 24), ("app", "m" * 5000, 12)],
    ids=["no-name", "metadata"],
)
@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_offsets_that_are_never_taken_are_not_waited_for(version, group, metadata, code):
    """They were, for ever."""
    world = World(version=version)
    world.centre.create_topic("orders", 1)
    life = world.start(retry_backoff_ms=100)
    position = m.Position("orders", 0, 3, -1, metadata)
    head = life.unit(*RECORDS, offsets=[m.GroupOffsets(group, "", -1, None, (position,))])[0]
    behind = life.send("orders", 0, [b"behind"])
    assert world.run(30, lambda: head.done)
    assert isinstance(head.error, BatchDroppedError)
    assert head.error.code == code
    assert life.context.own.rejected.size_bytes
    assert world.run(30, lambda: behind.done)
    assert behind.error is None


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
    journal = life.context.own.journal
    assert journal.views.release_position < 10
    assert journal.views.unfinished == 1
    world.kill(life)
    world.centre.deny("read", "group", "app", on=False)
    life = world.start(**options)
    noted = world.cluster._handler.groups.get("app").offsets
    assert world.run(60, until=lambda: ("orders", 0) in noted)
    assert noted["orders", 0].offset == 7
    for number in range(40):
        life.send("orders", 0, [b"%d" % number + bytes(200)])
    assert world.run(60, until=life.engine.ledger.idle)
    assert life.context.own.journal.views.release_position > 40
