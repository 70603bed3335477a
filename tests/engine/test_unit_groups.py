"""Units with offsets of a consumer group, on the cluster in virtual time: where the group is, and what is in the output."""

from __future__ import annotations

import pytest
from virtual import World

from kafkasafe import marks as m
from kafkasafe.errors import BatchDroppedError
from kafkasafe.limits.patience import Patience
from kafkasafe.spool.spool import Spool
from kafkasafe.testing.fake.checks import RefusedError
from kafkasafe.testing.fake.groups import Group, GroupState, Member
from kafkasafe.testing.fake.transactions import TransactionMetadata, TxnState

PLACE = ("in", 0)


def started(version: str, **options):
    world = World(brokers=3, version=version, broker_session_timeout_ms=3000)
    world.centre.create_topic("orders", 2)
    world.centre.create_topic("in", 2)
    group = world.cluster._handler.groups._groups.setdefault("g", Group("g"))
    group.members["me"] = Member("me", "app", 1 << 40, 1 << 40, [], 1 << 50, joined=True, waiting=True)
    group.state, group.generation, group.rebalance_by_ms = GroupState.STABLE, 1, 1 << 50
    return world, world.start(retry_backoff_ms=100, **options), group


def to(offset: int, *, generation: int = 1, partition: int = 0) -> tuple[m.GroupOffsets, ...]:
    return (m.GroupOffsets("g", "me", generation, None, (m.Position("in", partition, offset),)),)


def transactions(world: World) -> list[TransactionMetadata]:
    known = world.cluster._handler.transactions._known
    assert known
    return list(known.values())


def offset_of(group: Group) -> int:
    found = group.offsets.get(PLACE)
    return -1 if found is None else found.offset


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_the_offset_of_a_group_never_goes_back_while_a_leader_is_away(version):
    world, life, group = started(version)
    leader = world.centre.partition("orders", 0).leader
    away = [each for each in (1, 2, 3) if each != leader]
    # Only the partition of the first unit has no leader: nobody else is in sync there.
    world.centre.partition("orders", 0).lead(leader)
    world.centre.partition("orders", 1).lead(away[0])
    world.cluster.kill(leader)
    first = life.unit(("orders", 0, [b"1"]), offsets=to(10))[0]
    second = life.unit(("orders", 1, [b"2"]), offsets=to(20))[0]
    seen = [offset_of(group)]

    def over() -> bool:
        if offset_of(group) != seen[-1]:
            seen.append(offset_of(group))
        return first.done and second.done

    world.run(1.0, over)
    world.cluster.start(leader)
    assert world.run(120, over)
    world.run(1.0, lambda: over() and False)
    assert seen == sorted(seen)
    assert seen[-1] == 20
    assert (first.error, second.error) == (None, None)


def close_waits_for_the_abort(world: World, life, dropped) -> None:
    assert world.run(60, lambda: dropped.done)
    assert type(dropped.error) is BatchDroppedError
    assert not life.engine.idle()
    assert world.run(60, life.engine.idle)
    assert all(known.state is not TxnState.ONGOING for known in transactions(world))


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_close_waits_until_the_transaction_of_a_dropped_unit_is_aborted(version):
    """It ended before it asked: consumers with `read_committed` got nothing for `transaction_timeout_ms`."""
    world, life, group = started(version)
    dropped = life.unit(("orders", 0, [b"1"]), offsets=to(10))[0]
    group.generation = 2
    close_waits_for_the_abort(world, life, dropped)


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_close_waits_until_the_transaction_of_dropped_offsets_is_aborted(version):
    """Without batches, it ended before it asked: the members of a group waited for an offset that was pending."""
    world, life, _ = started(version)
    other = world.cluster._handler.groups._groups.setdefault("other", Group("other"))
    other.state, other.generation, other.rebalance_by_ms = GroupState.STABLE, 2, 1 << 50
    theirs = m.GroupOffsets("other", "me", 1, None, (m.Position("in", 1, 5),))
    dropped = life.unit(offsets=(*to(10), theirs))[0]
    close_waits_for_the_abort(world, life, dropped)


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
@pytest.mark.parametrize("successor", [False, True])
def test_close_is_woken_when_the_transaction_of_a_dropped_unit_is_over(version, successor):
    """It slept for five seconds more if another producer had taken the transactional id over."""
    world, life, group = started(version)
    dropped = life.unit(("orders", 0, [b"1"]), offsets=to(10), transactional_id="mine")[0]
    group.generation = 2
    assert world.run(60, lambda: dropped.done)
    assert not life.engine.idle()
    if successor:
        handler = world.cluster._handler.transactions
        handler.markers_take_ms = 0
        handler.init("mine", 60_000, (-1, -1), old_epoch=90, now_ms=world.cluster.now_ms())
    woken = []

    class Caller:
        def set(self) -> None:
            woken.append(life.engine.idle())

    life.engine.ledger.waiters.add(Caller())
    assert world.run(60, life.engine.idle)
    assert woken[-1:] == [True]


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
@pytest.mark.parametrize("code", [14, 15, 16])
def test_close_does_not_wait_for_a_group_whose_coordinator_is_away(version, code, monkeypatch):
    """The steps of the transactions, which were repeated every few seconds, counted as progress: `close` never ended."""
    world, life, _ = started(version)

    def refuse(group, *_):
        if group == "g":
            raise RefusedError(code)

    with monkeypatch.context() as patch:
        patch.setattr(world.cluster._handler.transactions, "check_log_of_offsets", refuse)
        heads = [life.unit(("orders", number, [b"1"]), offsets=to(10 + number))[0] for number in (0, 1)]
        world.run(20)
        patience, began = Patience(idle_s=5.0, pause_s=0.0), world.time.monotonic()
        assert world.run(60, lambda: world.time.monotonic() >= life.engine.patience_ends(patience, began))
        assert not life.engine.idle()
    assert world.run(60, lambda: all(head.done for head in heads))
    assert [head.error for head in heads] == [None, None]
    assert world.run(60, life.engine.idle)


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_close_waits_for_the_second_attempt_of_a_large_unit(version, monkeypatch):
    """Its steps were no progress until it had come further than the first attempt: that takes longer than `close` waits
    without progress.
    """
    world, life, _ = started(version)
    check = world.cluster._handler.transactions.check_log_of_offsets
    refusals = [48]

    def refuse_once(group, *rest):
        if group == "g" and refusals:
            raise RefusedError(refusals.pop())
        return check(group, *rest)

    monkeypatch.setattr(world.cluster._handler.transactions, "check_log_of_offsets", refuse_once)
    world.cluster.slow_down(500_000)
    values = [b"x" * 100_000]
    head = life.unit(*[("orders", number % 2, values) for number in range(80)], offsets=to(10))[0]
    patience, began = Patience(idle_s=5.0, pause_s=10.0), world.time.monotonic()
    world.run(60, lambda: head.done or world.time.monotonic() >= life.engine.patience_ends(patience, began))
    assert not refusals
    assert head.done
    assert head.error is None


def test_a_late_answer_about_a_dropped_unit_is_forgotten():
    world, life, _ = started("4.3.0")
    first, second = (world.centre.partition("orders", number) for number in (0, 1))
    if first.leader == second.leader:
        second.lead(first.leader % 3 + 1)
    before = [life.send("orders", number, [b"first"]) for number in (0, 1)]
    assert world.run(30, lambda: all(each.done for each in before))
    world.centre.topic("orders").settings["max.message.bytes"] = "5000"
    world.cluster.weather[second.leader].response_delay_ms = 2000
    head = life.unit(("orders", 0, [b"x" * 6000]), ("orders", 1, [b"1"]))[0]
    assert world.run(60, lambda: head.done)
    assert type(head.error) is BatchDroppedError
    world.run(10)
    assert not life.context.own.unit_progress._attempts


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_the_transaction_of_a_dropped_unit_of_an_adopted_lane_is_aborted(version):
    """The lane was released first, and nobody repeated the request to abort the transaction, whose answer got lost."""
    world, sibling, group = started(version, client_id="b")
    worker = world.start(client_id="a")
    world.set_outage(True)
    head = worker.unit(("orders", 0, [b"1"]), offsets=to(10))[0]
    assert world.run(10, lambda: head.durable)
    world.kill(worker)
    assert world.run(30, lambda: len(sibling.context.lanes) == 2)
    adopted = sibling.context.lanes[1].journal
    group.generation = 2
    world.set_outage(False)
    assert world.run(60, lambda: not adopted.views.unfinished)
    world.set_outage(True)
    world.run(3)
    assert not sibling.engine.idle()
    assert sibling.engine.ledger.settled(sibling.engine.ledger.last_number()), "flush waits only for records"
    world.set_outage(False)
    assert world.run(20, sibling.engine.idle)
    assert len(sibling.context.lanes) == 1
    assert all(known.state is not TxnState.ONGOING for known in transactions(world))


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_what_a_dropped_unit_would_have_moved_the_group_over_is_not_passed(version):
    """The consumer has kept its partition, and its next batch is of the generation that the group is in."""
    world, life, group = started(version)
    first = life.unit(("orders", 0, [b"1"]), offsets=to(10))[0]
    group.generation = 2
    second = life.unit(("orders", 0, [b"2"]), offsets=to(20, generation=2))[0]
    elsewhere = life.unit(("orders", 1, [b"3"]), offsets=to(5, generation=2, partition=1))[0]
    assert world.run(60, lambda: first.done and second.done and elsewhere.done)
    world.run(1.0)
    assert type(first.error) is BatchDroppedError
    assert offset_of(group) == -1
    assert world.committed("orders", 0) == []
    assert type(second.error) is BatchDroppedError
    assert "an earlier atomic batch of the same consumer was dropped" in str(second.error)
    assert elsewhere.error is None


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
@pytest.mark.parametrize("power", [False, True])
def test_the_next_incarnation_does_not_pass_it_either(version, power):
    world, life, group = started(version)
    world.set_outage(True)
    heads = [
        life.unit(("orders", 0, [b"%d" % number]), offsets=to(number * 10, generation=number))[0]
        for number in (1, 2)
    ]
    assert world.run(10, lambda: all(head.durable for head in heads))
    world.kill(life, power=power)
    group.generation = 2
    world.set_outage(False)
    life = world.start(retry_backoff_ms=100)
    assert world.run(60, lambda: not life.context.own.journal.views.unfinished)
    world.run(1.0)
    assert offset_of(group) == -1
    assert world.committed("orders", 0) == []


def test_units_of_a_consumer_share_a_transaction():
    world, life, group = started("4.3.0")
    heads = [
        life.unit(("orders", number % 2, [b"%d" % number]), offsets=to(number))[0] for number in range(1, 301)
    ]
    assert world.run(60, lambda: all(head.done for head in heads))
    world.run(1.0)
    assert all(head.error is None for head in heads)
    assert offset_of(group) == 300
    assert world.committed("orders", 0) == [b"%d" % number for number in range(2, 301, 2)]
    # At most 128 of them share one.
    assert sum("-> EndTxn commit" in line for line in world.lines) == 3


@pytest.mark.parametrize("power", [False, True])
def test_offsets_without_records_stay_in_the_spool_until_the_group_has_them(power):
    """The batches of one turn filled several segments, and the spool deleted the one with the offsets."""
    world, life, group = started("4.3.0", sizes={"spool_segment_bytes": 4000})
    first = life.send("orders", 0, [b"first"])
    assert world.run(30, lambda: first.done)
    world.centre.deny("read", "group", "*", on=True)
    head = life.unit(offsets=to(10))[0]
    more = [life.unit(("orders", number, [b"x" * 3000]))[0] for number in (0, 1)]
    assert world.run(30, lambda: all(each.durable for each in (head, *more)))
    world.run(5)
    world.kill(life, power=power)
    world.centre.deny("read", "group", "*", on=False)
    life = world.start(retry_backoff_ms=100)
    assert world.run(60, lambda: not life.context.own.journal.views.unfinished)
    world.run(1.0)
    assert offset_of(group) == 10
    assert world.committed("orders", 0) == [b"first", b"x" * 3000]


def test_batches_after_offsets_without_records_are_a_group_of_their_own(monkeypatch):
    """They were in the group of the offsets, which is atomic: so they were written into the room for marks."""
    groups = []
    write = Spool.write_group

    def watched(self, marks, batches, *, atomic=False, **options):
        groups.append(([type(mark) for mark in marks], len(batches), atomic))
        return write(self, marks, batches, atomic=atomic, **options)

    world, life, _ = started("4.3.0")
    first = [life.send("orders", number, [b"first"]) for number in (0, 1)]
    assert world.run(30, lambda: all(each.done for each in first))
    monkeypatch.setattr(Spool, "write_group", watched)
    head = life.unit(offsets=to(10))[0]
    after = [life.send("orders", number, [b"after"]) for number in (0, 1)]
    assert world.run(30, lambda: all(each.done for each in (head, *after)))
    [unit] = [group for group in groups if m.Unit in group[0]]
    assert unit == ([m.Unit], 0, True)
    assert [group for group in groups if group[1]] == [([], 2, False)]


@pytest.mark.parametrize("idle_s", [5.0, 30.0])
def test_close_waits_no_longer_for_an_abort_without_a_spool_than_with_one(idle_s):
    """It waited for 30 s (`spool="never"`), although an abort loses no record."""
    world, life, group = started("4.3.0")
    dropped = life.unit(("orders", 0, [b"1"]), offsets=to(10))[0]
    group.generation = 2
    assert world.run(60, lambda: dropped.done)
    assert not life.engine.idle()
    began = world.time.monotonic()
    assert life.engine.patience_ends(Patience(idle_s, 0.0), began) == began + 5
    life.send("orders", 1, [b"2"])
    life.turn()
    assert life.engine.patience_ends(Patience(idle_s, 0.0), began) == began + idle_s
