"""A topic is deleted and created again while units with records in it are prepared: what vanished is noticed."""

from __future__ import annotations

import pytest
from virtual import World

BROKERS = pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
DELIVERIES = pytest.mark.parametrize("delivery", ["idempotent", "transactional"])


def started(version: str, delivery: str):
    world = World(version=version)
    for topic in "ab":
        world.centre.create_topic(topic, 1)
    options = {
        "delivery": delivery,
        "on_data_loss": "restore",
        "restore_recreated_topics": True,
        "retain_acked_bytes": 1 << 20,
    }
    return world, world.start(**options), options


def recreate(world: World, life=None) -> None:
    world.centre.delete_topic("a")
    world.cluster._handler.groups.topic_deleted("a")
    world.centre.create_topic("a", 1)
    if life is not None:
        life.context.refresh_topics(["a"])


def unit(life, number: int):
    """Two batches in each topic."""
    parts = [(topic, 0, [b"%d.%d" % (number, part)]) for part in range(2) for topic in "ab"]
    return life.unit(*parts)[0]


def values(*numbers: int) -> list[bytes]:
    return [b"%d.%d" % (number, part) for number in numbers for part in range(2)]


def over(world: World, life) -> None:
    assert world.run(600, lambda: not life.context.own.journal.views.unfinished)
    world.run(30)
    assert not life.context.own.journal.views.unfinished


def phases(life) -> set[str]:
    return {each.phase.value for each in life.context.own.journal.units.unfinished}


def all_there(world: World) -> None:
    for topic in "ab":
        log = [value for value in world.committed(topic, 0) if value != OTHERS]
        # What is sent again comes behind what was committed meanwhile.
        assert sorted(log) == sorted(values(1, 2)), topic
    assert world.committed("b", 0) == values(1, 2)


OTHERS = b"others'"
PHASES = ["begun", "appending", "staging", "staged", "ending", "committed"]


@BROKERS
@DELIVERIES
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("before", [True, False], ids=["others before", "the first"])
def test_what_was_prepared_in_the_old_topic_is_missed(version, delivery, phase, before):
    world, life, _ = started(version, delivery)
    first = unit(life, 1)
    if before:
        assert world.run(60, lambda: first.done)
    second = unit(life, 2)
    world.run(5, lambda: phase in phases(life))
    recreate(world, life)
    over(world, life)
    assert second.done
    all_there(world)


@BROKERS
@pytest.mark.parametrize("seen_s", [0.015, 0.03, 2.0])
def test_a_unit_is_committed_before_it_is_known_where_the_log_began(version, seen_s):
    world, life, _ = started(version, "idempotent")
    ask = world.cluster.ask

    def slowly(pipe, name, *rest):
        if name == "ListOffsets" and world.time.monotonic() < began + 1.0:
            world.time.call_later(1.0, lambda: ask(pipe, name, *rest))
            return 0.0
        return ask(pipe, name, *rest)

    began = world.time.monotonic()
    world.cluster.ask = slowly
    unit(life, 1)
    unit(life, 2)
    world.run(seen_s)
    recreate(world, life)
    # What others write there hides that the log is another one.
    other = world.start().send("a", 0, [OTHERS] * 20)
    assert world.run(60, lambda: other.done)
    over(world, life)
    all_there(world)


@pytest.mark.parametrize("crashes", [False, True])
@BROKERS
def test_a_unit_that_is_half_prepared_when_the_other_topic_is_seen(version, crashes):
    """Its other half waits for a leader meanwhile: long enough for whatever is done about what was acknowledged."""
    world, life, options = started(version, "idempotent")
    first = unit(life, 1)
    assert world.run(60, lambda: first.done)
    world.run(1)  # its end is in both logs
    world.centre.partition("b", 0).lead(-1)
    second = unit(life, 2)
    assert world.run(60, lambda: phases(life) == {"appending"})
    world.run(0.01)
    recreate(world, life)
    world.run(0.3)
    if crashes:
        world.kill(life)
        life = world.start(**options)
        world.run(0.3)
    world.centre.partition("b", 0).lead(1)
    over(world, life)
    assert crashes or second.done
    all_there(world)


@pytest.mark.parametrize(("version", "delivery"), [("4.3.0", "transactional"), ("2.8.2", "idempotent")])
@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("before", [True, False], ids=["others before", "the first"])
def test_a_life_that_finds_units_prepared_in_an_older_topic_misses_them(version, delivery, power, before):
    """Whenever the process ends; also after it saw that the topic is another one."""
    for after in range(1, 8):
        for seen_s in (None, 0.002):
            world, life, options = started(version, delivery)
            first = unit(life, 1)
            if before:
                assert world.run(60, lambda: first.done)  # noqa: B023
            second = unit(life, 2)
            writes = sum(life.context.stats.fsync.counts) + after
            world.run(5, lambda life=life: sum(life.context.stats.fsync.counts) >= writes)  # noqa: B023
            kept = second.durable
            recreate(world, life if seen_s is not None else None)
            world.run(seen_s or 0.0)
            world.kill(life, power=power, seed=after)
            life = world.start(**options)
            if not kept:
                continue
            over(world, life)
            assert set(world.committed("a", 0)) == set(values(1, 2)), (after, seen_s)
            assert world.committed("b", 0) == values(1, 2), (after, seen_s)
