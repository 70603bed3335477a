"""Batches of `delivery="transactional"` that wait for the disk together share a transaction; what belongs together by itself does not."""

from __future__ import annotations

from virtual import World


def commits(world: World) -> int:
    return sum("-> EndTxn commit" in line for line in world.lines)


def started(**options):
    world = World()
    world.centre.create_topic("orders", 2)
    world.centre.create_topic("audit", 1)
    return world, world.start(delivery="transactional", retry_backoff_ms=100, **options)


def test_batches_of_a_topic_that_wait_together_are_committed_together():
    world, life = started()
    names = [b"%d" % number for number in range(12)]
    heads = [life.unit(("orders", 0, [name]), ("orders", 1, [name]), joins="orders")[0] for name in names]
    life.turn()
    assert [len(unit.batches) for unit in life.context.own.journal.units.unfinished] == [10, 10, 4]
    assert world.run(60, lambda: all(head.done for head in heads))
    world.run(1)
    assert world.committed("orders", 0) == world.committed("orders", 1) == names
    assert commits(world) == 1
    assert all(head.durable and head.error is None for head in heads)


def test_nothing_else_is_joined():
    world, life = started()
    heads = [
        life.unit(("orders", 0, [b"1"]), joins="orders")[0],
        life.unit(("audit", 0, [b"1"]), joins="audit")[0],
        life.unit(("orders", 0, [b"2"]))[0],
        life.unit(("orders", 0, [b"3"]), joins="orders")[0],
        life.unit(("orders", 0, [b"4"]), transactional_id="app")[0],
    ]
    life.send("orders", 0, [b"5"])
    heads.append(life.unit(("orders", 0, [b"6"]), joins="orders")[0])
    life.turn()
    assert len(life.context.own.journal.units.unfinished) == 6
    assert world.run(60, lambda: all(head.done for head in heads))
    world.run(1)
    assert world.committed("orders", 0) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_with_a_sync_for_each_batch_there_is_a_unit_for_each():
    world, life = started(spool_sync="each")
    heads = [life.unit(("orders", 0, [b"1"]), joins="orders")[0] for _ in range(3)]
    life.turn()
    assert len(life.context.own.journal.units.unfinished) == 3
    assert world.run(60, lambda: all(head.done for head in heads))


def test_a_crash_after_they_were_joined_loses_and_repeats_nothing():
    world, life = started()
    names = [b"%d" % number for number in range(4)]
    heads = [life.unit(("orders", 0, [name]), joins="orders")[0] for name in names]
    assert world.run(60, lambda: heads[-1].durable)
    assert all(head.durable for head in heads)
    world.kill(life, power=True, seed=1)
    life = world.start(delivery="transactional", retry_backoff_ms=100)
    assert world.run(60, lambda: not life.context.own.journal.views.unfinished)
    world.run(1)
    assert world.committed("orders", 0) == names
