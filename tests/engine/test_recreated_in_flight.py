"""A topic is deleted and created again while several batches are in flight to its leader.

1. Batches 1 and 2 are in flight. The topic is deleted, and the broker refuses batch 1. 2. The topic is created again,
with the same leader. It knows no producer, so it accepts any base sequence. 3. Batch 2 arrives before batch 1 comes
again. A request that names the topic's id cannot get into the new topic (KIP-516).
"""

from __future__ import annotations

from virtual import World

from kafkasafe.testing.fake.checks import RefusedError

UNKNOWN_TOPIC_OR_PARTITION = 3


def recreated_at_next_append(world: World) -> None:
    real = world.centre.append

    def append(*arguments):
        world.centre.append = real
        world.centre.delete_topic("orders")
        world.centre.create_topic("orders", 1)
        raise RefusedError(UNKNOWN_TOPIC_OR_PARTITION)

    world.centre.append = append


def sent_while_recreated(world: World) -> list[bytes]:
    """Sends four batches to a topic that is recreated when the first of them arrives. Returns the new topic's records."""
    world.centre.create_topic("orders", 1)
    life = world.start(on_data_loss="event")
    before = life.send("orders", 0, [b"before"])
    assert world.run(60, until=lambda: before.done)
    recreated_at_next_append(world)
    parcels = [life.send("orders", 0, [b"%d" % number]) for number in range(1, 5)]
    assert world.run(300, until=lambda: all(parcel.done for parcel in parcels))
    assert [parcel.error for parcel in parcels] == [None] * 4
    return world.log("orders", 0)


def test_batches_in_flight_keep_their_order_in_the_new_topic():
    assert sent_while_recreated(World(brokers=1)) == [b"1", b"2", b"3", b"4"]


def test_brokers_before_4_1_know_topics_by_name_only():
    """docs/limits.md says so. Each record is there once, all the same."""
    found = sent_while_recreated(World(brokers=1, version="2.8.2"))
    assert found != sorted(found)
    assert sorted(found) == [b"1", b"2", b"3", b"4"]
