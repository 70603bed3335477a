"""The way to the brokers: slow links, and many partitions without one, in virtual time."""

from __future__ import annotations

import collections

import pytest
from virtual import TIMEOUT_S, World

from kafkasafe.delivery.engine.send_queue import SendQueue
from kafkasafe.limits.uplink import MEMORY_BYTES, UplinkBudget
from kafkasafe.spool.spool import Spool


def put_on_disk(world, life, partitions, batches, size):
    """So much waits for each partition, and none of it is in memory."""
    parcels = [
        life.send("orders", number, [b"x" * size]) for _ in range(batches) for number in range(partitions)
    ]
    world.run(1.0)
    assert all(parcel.durable for parcel in parcels)
    for parcel in parcels:
        life.engine.disk.drop(parcel)
    return parcels


@pytest.fixture
def reads(monkeypatch):
    """Positions of the batches that were read from disk."""
    found, read = [], Spool.read

    def counted(self, position):
        found.append(position)
        return read(self, position)

    monkeypatch.setattr(Spool, "read", counted)
    return found


def begun(world, partitions, **options):
    world.centre.create_topic("orders", partitions)
    life = world.start(spool_max_bytes=256 << 20, **options)
    first = [life.send("orders", number, [b"first"]) for number in range(partitions)]
    assert world.run(60, lambda: all(parcel.done for parcel in first))
    return life


def test_requests_that_the_network_drops_do_not_arrive():
    """The cluster of these tests answered them all the same."""
    world = World()
    life = begun(world, 1)
    world.cluster.drop_requests()
    parcel = life.send("orders", 0, [b"dropped"])
    world.run(TIMEOUT_S / 2)
    assert world.log("orders", 0) == [b"first"]
    world.cluster.restore()
    assert world.run(60, lambda: parcel.done)
    assert world.log("orders", 0) == [b"first", b"dropped"]


def test_an_outage_reads_nothing_from_disk(reads):
    world = World()
    life = begun(world, 100)
    world.set_outage(True)
    parcels = put_on_disk(world, life, 100, 3, 1000)
    world.run(30.0)
    assert reads == []
    world.set_outage(False)
    assert world.run(60, lambda: all(parcel.done for parcel in parcels))
    assert len(reads) == len(parcels), "each is read once"


def test_the_system_keeps_its_copy_of_batches_that_will_be_read(monkeypatch):
    """It can drop the copy of a batch whose bytes the producer has, so these need no page cache."""
    dropped = []
    monkeypatch.setattr(Spool, "drop_cache", lambda self: dropped.append(self.next_position))
    world = World()
    life = begun(world, 3)
    assert dropped, "the cluster answers"
    world.set_outage(True)
    parcels = [life.send("orders", 0, [b"notices the outage"])]
    world.run(30.0)
    dropped.clear()
    parcels += [life.send("orders", number, [b"x" * 1000]) for number in range(3)]
    world.run(1.0)
    assert all(parcel.durable for parcel in parcels)
    assert dropped == []
    world.set_outage(False)
    assert world.run(60, lambda: all(parcel.done for parcel in parcels))
    assert dropped


def test_what_is_read_back_stays_within_one_budget(monkeypatch):
    world = World()
    life = begun(world, 40)
    world.set_outage(True)
    parcels = put_on_disk(world, life, 40, 3, 900_000)
    most, sent = 0, SendQueue.sent

    def watched(self, *args, **options):
        nonlocal most
        result = sent(self, *args, **options)
        most = max(most, self.memory_bytes)
        return result

    monkeypatch.setattr(SendQueue, "sent", watched)
    # Nobody answers for a while: everything that may be out is.
    world.cluster.delay(0.5)
    world.set_outage(False)
    assert world.run(600, lambda: all(parcel.done for parcel in parcels))
    assert 10_000_000 < most <= MEMORY_BYTES


def test_what_a_large_run_ahead_keeps_in_memory_holds_up_nothing_that_is_read_back(monkeypatch):
    """With more than 32 MiB in memory, the batches on disk were read and sent one at a time."""
    world = World()
    life = begun(world, 80, run_ahead_bytes=64 << 20)
    world.set_outage(True)
    parcels = put_on_disk(world, life, 40, 1, 900_000)
    life.engine.disk.can_send()
    parcels += [life.send("orders", 40 + number, [b"x" * 900_000]) for number in range(40)]
    world.run(0.1)
    assert life.engine.disk.memory > MEMORY_BYTES
    most, sent = 0, SendQueue.sent

    def watched(self, *args, **options):
        nonlocal most
        result = sent(self, *args, **options)
        if life.engine.disk.memory > MEMORY_BYTES:
            most = max(most, self.reads)
        return result

    monkeypatch.setattr(SendQueue, "sent", watched)
    world.cluster.delay(0.5)
    world.set_outage(False)
    assert world.run(600, lambda: all(parcel.done for parcel in parcels))
    assert most > 10


def test_the_newest_batches_leave_the_memory_to_what_is_read_back(monkeypatch):
    """They are sent last. Up to 24 MiB of them stayed in memory until all the batches on disk were sent, so only 8 MiB
    of these could be in flight: over a far link, the end of an outage took longer.
    """
    world = World()
    life = begun(world, 40)
    disk = life.engine.disk
    world.set_outage(True)
    parcels = put_on_disk(world, life, 40, 3, 900_000)
    disk.can_send()
    for number in range(26):
        parcels.append(life.send("orders", number, [b"x" * 900_000]))
        world.run(0.001)
    assert disk.memory > MEMORY_BYTES * 2 // 3
    most, memory, sent = 0, [], SendQueue.sent

    def watched(self, *args, **options):
        nonlocal most
        result = sent(self, *args, **options)
        most = max(most, self.read_bytes)
        memory.append(self.memory_bytes)
        return result

    monkeypatch.setattr(SendQueue, "sent", watched)
    world.cluster.delay(0.5)
    world.set_outage(False)
    assert world.run(600, lambda: all(parcel.done for parcel in parcels))
    assert max(memory) <= MEMORY_BYTES
    assert most > MEMORY_BYTES // 2 - 1_000_000
    assert disk.memory == 0


@pytest.mark.parametrize("buffer_bytes", [0, 16 << 20])
def test_a_slow_uplink_delivers_and_sends_hardly_anything_twice(buffer_bytes):
    """3 MB in batches of 1 MB at 0.15 MB/s, with a time-out of 3 s: one batch takes 7 s."""
    world = World()
    life = begun(world, 1, request_timeout_ms=3000)
    world.cluster.slow_down(150_000, buffer_bytes=buffer_bytes)
    parcels = [life.send("orders", 0, [b"x" * 1000] * 1000) for _ in range(3)]
    began = world.time.monotonic()
    assert world.run(600, lambda: all(parcel.done for parcel in parcels))
    took_s = world.time.monotonic() - began
    assert [parcel.error for parcel in parcels] == [None] * 3
    assert len(world.log("orders", 0)) == 3001
    sent = life.context.stats.sent_batches.value
    if buffer_bytes == 0:
        # Written slowly, and answered: nothing timed out.
        assert (sent, life.context.stats.produce_failures.value) == (4, 0)
        assert took_s < 30
    else:
        assert took_s < 90


def test_a_batch_that_times_out_again_and_again_is_divided():
    world = World()
    life = begun(world, 1, request_timeout_ms=1000)
    # One batch takes 14 s, its quarters 3.5 s; all of it seems written at once.
    world.cluster.slow_down(70_000, buffer_bytes=16 << 20)
    parcel = life.send("orders", 0, [b"%04d" % i + b"x" * 996 for i in range(1000)])
    assert world.run(600, lambda: parcel.done)
    assert parcel.children is not None
    assert parcel.error is None
    assert [value[:4] for value in world.log("orders", 0)[1:]] == [b"%04d" % i for i in range(1000)]


def test_a_hung_broker_divides_nothing():
    world = World()
    life = begun(world, 1, request_timeout_ms=1000)
    world.cluster.stall()
    parcel = life.send("orders", 0, [b"x"] * 10)
    world.run(30.0)
    world.cluster.restore()
    assert world.run(60, lambda: parcel.done)
    assert (parcel.error, parcel.children) == (None, None)


def test_many_partitions_in_trouble_ask_one_after_the_other(monkeypatch):
    world = World()
    life = begun(world, 300)
    world.cluster.drop_responses()
    parcels = [life.send("orders", number, [b"x"]) for number in range(300)]
    world.run(1.0)
    seconds, ask = collections.Counter(), world.cluster.ask

    def counted(*args):
        seconds[int(world.time.monotonic())] += 1
        return ask(*args)

    monkeypatch.setattr(world.cluster, "ask", counted)
    world.cluster.restore()
    world.cluster.cut()
    assert world.run(60, lambda: all(parcel.done for parcel in parcels))
    assert sum(seconds.values()) > 900
    assert max(seconds.values()) < 700


def test_partitions_take_turns():
    world = World()
    life = begun(world, 10)
    world.cluster.slow_down(150_000)
    order = []
    for _ in range(3):
        for number in range(10):
            parcel = life.send("orders", number, [b"x" * 200_000])
            parcel.watcher = lambda parcel: order.append(parcel.partition)
    assert world.run(600, lambda: len(order) == 30)
    assert collections.Counter(order[:10]) == collections.Counter(range(10))


def test_replies_that_arrive_together_make_room_for_one_request(monkeypatch):
    """One request for each reply: with many partitions, brokers and client are busy with tiny requests."""
    world = World()
    life = begun(world, 64)
    requests, produce = [], life.client.produce

    def counted(batches, *arguments):
        requests.append(len(batches))
        produce(batches, *arguments)

    monkeypatch.setattr(life.client, "produce", counted)
    monkeypatch.setattr(UplinkBudget, "window_bytes", 1_010_000)  # ten batches
    parcels = [life.send("orders", number, [b"x" * 100_000]) for number in range(64) for _ in range(4)]
    assert world.run(60, lambda: all(parcel.done for parcel in parcels))
    assert sum(requests) == len(parcels)
    assert max(requests) == 10
    assert len(requests) <= len(parcels) / 10 + 2, requests
