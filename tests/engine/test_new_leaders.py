"""A pause after a failure ends when another broker leads: that is not the one that failed."""

from __future__ import annotations

import itertools

import pytest
from virtual import World

from kafkasafe.events import DeliveryRetried


@pytest.mark.parametrize("in_doubt", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_pause_ends_when_another_broker_leads(seed, in_doubt):
    made = World(brokers=3, broker_session_timeout_ms=3000 + 170 * seed)
    made.centre.create_topic("orders", 1, 3)
    life = made.start()
    first = life.send("orders", 0, [b"first"])
    assert made.run(60, lambda: first.done)
    before = life.client.topic("orders").partitions[0].leader
    if in_doubt:
        parcel = life.send("orders", 0, [b"second"])
        made.run(0.0005)
        made.cluster.kill(before)
    else:
        made.cluster.kill(before)
        parcel = life.send("orders", 0, [b"second"])
    assert made.run(60, lambda: life.client.topic("orders").partitions[0].leader not in {before, -1})
    assert made.run(0.1, lambda: parcel.done), "without the rest of a pause of up to a second"
    assert made.log("orders", 0) == [b"first", b"second"]


def troubled(*, dead=0, **settings):
    """A producer that has sent a record, and a topic on three live brokers and some dead ones. The first attempt to
    send the record found no topic.
    """
    made = World(brokers=3 + dead, auto_create_topics_enable="false")
    life = made.start(**settings)
    first = life.send("orders", 0, [b"first"])
    made.run(0.5)
    made.centre.create_topic("orders", 1, 3 + dead)
    followers = [node for node in made.cluster.brokers if node != made.cluster.leader("orders")]
    for node in followers[:dead]:
        made.cluster.kill(node)
        assert made.run(60, lambda node=node: node not in made.cluster.partition_state("orders").in_sync)
    assert made.run(60, lambda: first.done)
    made.lines.clear()
    return made, life


def want_the_dead_replica(made) -> None:
    """Each of the three that may lead refuses: too few replicas are in sync."""
    made.cluster.alter_topic("orders", {"min.insync.replicas": 4})
    made.lines.clear()


def tries(made) -> int:
    count = sum("-> Produce" in line for line in made.lines)
    made.lines.clear()
    return count


def elections(made, life, *, seconds: float = 10.0) -> None:
    for _ in range(int(seconds / 0.05)):
        made.cluster.move_leader("orders", 0)
        life.context.refresh_topics(["orders"])
        made.run(0.05)


def test_elections_make_no_storm_of_requests():
    """Nor do metadata that say what is known."""
    made, life = troubled(dead=1)
    want_the_dead_replica(made)
    parcel = life.send("orders", 0, [b"second"])
    elections(made, life)
    assert 20 < tries(made) < 45
    made.run(20)
    assert 20 < tries(made) < 45
    assert not parcel.done


def test_another_leader_refuses_as_the_one_before():
    made, life = troubled()
    made.cluster.deny("write", topic="orders")
    life.send("orders", 0, [b"second"])
    elections(made, life)
    assert tries(made) < 15


def test_a_pause_that_a_new_leader_ended_does_not_end_the_next_one():
    """Its timer fires all the same, later."""
    paused = []
    made, life = troubled(
        dead=1,
        retry_backoff_ms=1000,
        on_event=lambda event: (
            isinstance(event, DeliveryRetried) and paused.append((made.time.monotonic(), event))
        ),
    )
    want_the_dead_replica(made)
    life.send("orders", 0, [b"second"])
    for _ in range(12):
        made.run(0.1)
        made.cluster.move_leader("orders", 0)
        life.context.refresh_topics(["orders"])
        made.run(0.02)
    made.run(8)
    news = [float(line.split()[0]) for line in made.lines if "<- Metadata" in line]
    early = [
        (round(at, 3), event.pause_s)
        for (at, event), (following, _) in itertools.pairwise(paused)
        if following - at < event.pause_s and not any(at <= when <= following for when in news)
    ]
    assert early == []
    assert len(paused) > 15


def test_nothing_pauses_for_a_leader_that_is_none_any_more():
    """The other one was known before the answer came."""
    made, life = troubled(retry_backoff_ms=2000)
    before = made.cluster.leader("orders")
    made.cluster.move_leader("orders", 0)
    made.cluster.delay(0.3, node=before)
    parcel = life.send("orders", 0, [b"second"])
    made.run(0.01)
    life.context.refresh_topics(["orders"])
    assert made.run(0.32, lambda: parcel.done)
