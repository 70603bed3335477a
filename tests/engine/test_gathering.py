"""Small batches that waited become one: in order, once, and at the right offsets, whatever happens meanwhile."""

from __future__ import annotations

import pytest
from virtual import World, offset_of

from kafkasafe.delivery.engine.gathering import Gathering, joined
from kafkasafe.journal import BatchState
from kafkasafe.limits.capacity import FREE_BYTES
from kafkasafe.record import batch as codec
from kafkasafe.record.batch import Compression

LATENCY_S = 0.05


def world(partitions: int = 1, **settings) -> World:
    made = World(**settings)
    made.centre.create_topic("orders", partitions)
    made.cluster.latency_s = LATENCY_S
    return made


def begun(made: World, **options):
    life = made.start(**options)
    first = life.send("orders", 0, [b"first"])
    assert made.run(60, lambda: first.done)
    made.lines.clear()
    return life


def trickle(made: World, life, count: int, *, pause_s: float = 0.01):
    """Records that come one by one, each a batch of its own."""
    parcels = []
    for number in range(count):
        parcels.append(life.send("orders", 0, [b"%d" % number]))
        made.run(pause_s)
    return parcels


def requests(made: World) -> int:
    return sum("-> Produce" in line for line in made.lines)


def test_what_waited_through_an_outage_goes_in_a_few_requests():
    made = world()
    life = begun(made)
    made.set_outage(True)
    parcels = trickle(made, life, 300)
    made.set_outage(False)
    began = made.time.monotonic()
    assert made.run(60, lambda: all(parcel.done for parcel in parcels))
    assert made.log("orders", 0) == [b"first", *(b"%d" % number for number in range(300))]
    assert [offset_of(parcel) for parcel in parcels] == list(range(1, 301))
    # One goes alone, five at a time while the others are gathered.
    assert requests(made) < 20
    assert made.time.monotonic() - began < 3.0
    assert life.engine.ledger.idle()
    assert life.context.own.journal.views.spooled_records == 0


def test_more_than_a_slow_leader_takes_one_by_one_does_not_pile_up():
    """Five at a time in 0.1 s would be 50 a second; here come 200."""
    made = world()
    life = begun(made)
    parcels = trickle(made, life, 1000, pause_s=0.005)
    assert life.context.own.journal.views.unfinished < 60
    assert made.run(1.0, lambda: all(parcel.done for parcel in parcels))
    assert made.log("orders", 0) == [b"first", *(b"%d" % number for number in range(1000))]
    assert [offset_of(parcel) for parcel in parcels] == list(range(1, 1001))


def test_a_leader_that_keeps_up_gets_every_batch_as_it_is():
    made = world()
    made.cluster.latency_s = 0.001
    life = begun(made)
    parcels = trickle(made, life, 100)
    assert made.run(1.0, lambda: all(parcel.done for parcel in parcels))
    assert not any(parcel.children for parcel in parcels)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("after_s", [0.02, 0.1, 0.11, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5])
def test_the_next_life_delivers_what_was_gathered_once_and_in_its_place(power, after_s):
    made = world()
    life = begun(made)
    made.set_outage(True)
    trickle(made, life, 200)
    made.set_outage(False)
    assert made.run(30, lambda: requests(made) > 0)
    made.run(after_s)
    made.kill(life, power=power)
    successor = made.start()
    last = successor.send("orders", 0, [b"last"])
    assert made.run(120, lambda: last.done and successor.engine.ledger.idle())
    assert made.log("orders", 0) == [b"first", *(b"%d" % number for number in range(200)), b"last"]


def test_a_long_backlog_is_gathered_as_it_comes_back(monkeypatch):
    monkeypatch.setattr("kafkasafe.delivery.engine.packing._PARCELS", 0)
    monkeypatch.setattr("kafkasafe.journal.packing.UNPACKED", 6)
    made = world()
    life = begun(made)
    made.set_outage(True)
    parcels = trickle(made, life, 1500, pause_s=0.001)
    made.run(1.0)
    assert len(life.context.own.parcels) < 100
    made.set_outage(False)
    assert made.run(60, lambda: all(parcel.done for parcel in parcels))
    assert made.log("orders", 0) == [b"first", *(b"%d" % number for number in range(1500))]
    assert [offset_of(parcel) for parcel in parcels] == list(range(1, 1501))
    assert requests(made) < 60


def test_what_is_large_and_what_the_user_times_goes_as_it_is():
    made = world()
    life = begun(made, delivery_timeout_ms=60_000)
    parcels = trickle(made, life, 100, pause_s=0.001)
    assert made.run(10.0, lambda: all(parcel.done for parcel in parcels))
    assert not any(parcel.children for parcel in parcels)
    made.kill(life)
    life = made.start()
    large = [life.send("orders", 0, [b"x" * 20_000]) for _ in range(100)]
    assert made.run(10.0, lambda: all(parcel.done for parcel in large))
    assert not any(parcel.children for parcel in large)


@pytest.mark.parametrize(("size_bytes", "most"), [(90_000, 11), (400_000, 1)])
def test_what_compression_makes_small_does_not_become_a_batch_that_readers_cannot_hold(size_bytes, most):
    """Without its compression it is at most as large as any batch may be (`batch_size`)."""
    made = world()
    life = begun(made)
    made.set_outage(True)
    parcels = [
        life.send("orders", 0, [b"%d " % number + b"x" * size_bytes], Compression.ZSTD)
        for number in range(80)
    ]
    made.run(1.0)
    made.set_outage(False)
    assert made.run(60, lambda: all(parcel.done for parcel in parcels))
    assert [value.split()[0] for value in made.log("orders", 0)[1:]] == [
        b"%d" % number for number in range(80)
    ]
    counts = [child.count for parcel in parcels for child, _ in parcel.children or ()]
    assert max(counts, default=1) == most


def test_a_disk_with_little_room_gathers_nothing():
    made = world()
    life = begun(made)
    made.disk.capacity_bytes = made.disk.used_bytes + (8 << 20)
    parcels = trickle(made, life, 100, pause_s=0.001)
    assert made.run(10.0, lambda: all(parcel.done for parcel in parcels))
    assert not any(parcel.children for parcel in parcels)


def test_a_topic_that_takes_no_large_batches_gets_the_records_all_the_same():
    """What was gathered is refused and divided; from then on each batch goes as it is."""
    made = World()
    made.centre.create_topic("orders", 1, settings={"max.message.bytes": "500"})
    made.cluster.latency_s = LATENCY_S
    life = begun(made)
    parcels = trickle(made, life, 300, pause_s=0.002)
    assert made.run(120, lambda: all(parcel.done for parcel in parcels))
    assert not any(parcel.error for parcel in parcels)
    assert made.log("orders", 0) == [b"first", *(b"%d" % number for number in range(300))]
    later = trickle(made, life, 60, pause_s=0.002)
    assert made.run(120, lambda: all(parcel.done for parcel in later))
    assert not any(parcel.children for parcel in later)


@pytest.mark.parametrize("compression", list(Compression))
def test_records_are_what_they_were(compression):
    batches = [
        codec.encode(
            [b"k%d" % number, None],
            [b"v%d" % number, None],
            timestamps=[1000 + number, 900],
            headers={number % 2: [("h", b"%d" % number), ("n", None)]},
            compression=compression,
        )
        for number in range(20)
    ]
    before = [codec.decode(batch) for batch in batches]
    after = codec.decode(joined(before))
    assert after.header.compression is compression
    for column in ("keys", "values", "timestamps"):
        assert getattr(after, column) == [item for each in before for item in getattr(each, column)]
    assert after.headers == {2 * n + n % 2: [("h", b"%d" % n), ("n", None)] for n in range(20)}


def waiting(made: World, life, count: int = 20) -> list:
    """On disk behind the five that are under way: a run as the journal offers it."""
    parcels = [life.send("orders", 0, [b"%d" % number, b"more"]) for number in range(count)]
    made.run(0.02)
    return [parcel.batch for parcel in parcels if parcel.batch.state is BatchState.PREPARED]


@pytest.mark.parametrize("what", ["state", "tries", "missing", "done", "error", "unreadable"])
def test_what_is_no_longer_as_the_journal_offered_it_stays_as_it_is(what):
    made = world()
    life = begun(made)
    lane, gathering = life.context.own, life.engine._gathering
    run = waiting(made, life)
    assert len(run) == 15
    parcel = lane.parcels[run[10].handle]
    match what:
        case "state":
            run[10].state = BatchState.IN_DOUBT
        case "tries":
            run[10].tries = 1
        case "missing":
            del lane.parcels[run[10].handle]
        case "done":
            parcel.done = True
        case "error":
            parcel.error = ValueError("of the test")
        case "unreadable":
            life.engine.disk.drop(parcel)
            made.disk.fail("read", times=1000)
    before = dict(lane.parcels)
    assert not gathering.gather_all(lane, [run])
    assert lane.parcels == before
    assert not any(batch.state is BatchState.REPLACED for batch in run)


def test_what_little_room_there_is_is_left_to_what_is_new():
    made = world()
    life = begun(made)
    lane, ledger, gathering = life.context.own, life.engine.ledger, life.engine._gathering
    run = waiting(made, life)
    used, free = ledger.room.used, ledger.room.free
    ledger.room.used = life.config.spool_max_bytes // 2
    assert not gathering.gather_all(lane, [run])
    ledger.room.used, ledger.room.free = used, 4 * FREE_BYTES
    assert not gathering.gather_all(lane, [run])
    ledger.room.free = free
    lane.write_backlog.fail()
    assert not gathering.gather_all(lane, [run])
    lane.write_backlog.succeed()
    assert gathering.gather_all(lane, [run])


def test_each_finds_its_records_in_what_they_became():
    made = world()
    life = begun(made)
    lane = life.context.own
    run = waiting(made, life)
    parcels = [lane.parcels[batch.handle] for batch in run]
    run[5].max_timestamp = parcels[5].max_timestamp = run[0].max_timestamp + 1000
    assert life.engine._gathering.gather_all(lane, [run])
    child = parcels[0].children[0][0]
    assert [parcel.shift for parcel in parcels] == [2 * at for at in range(15)]
    assert all(each is child for parcel in parcels for each, _ in parcel.children)
    assert all(indexes.tolist() == [0, 1] for parcel in parcels for _, indexes in parcel.children)
    assert (child.count, child.max_timestamp) == (30, parcels[5].max_timestamp)
    assert child.durable, "so are their records"
    assert not any(batch.handle in lane.parcels for batch in run)
    assert made.run(10, life.engine.ledger.idle)
    assert [offset_of(parcel) for parcel in parcels] == [11 + 2 * at for at in range(15)]
    assert life.context.stats.named()["records_committed"] == 41
    assert life.engine.disk.memory == 0
    assert not lane.parcels


def test_what_shows_its_size_when_it_is_read_is_read_once(monkeypatch):
    made = world()
    life = begun(made)
    tried = []
    read = Gathering._decoded
    monkeypatch.setattr(Gathering, "_decoded", lambda *args: tried.append(1) or read(*args))
    parcels = [life.send("orders", 0, [b"x" * 400_000], Compression.ZSTD) for _ in range(60)]
    assert made.run(60, lambda: all(parcel.done for parcel in parcels))
    assert len(tried) == 1


@pytest.mark.parametrize("where", ["keys", "values", "headers"])
def test_keys_values_and_headers_count(where):
    made = world()
    life = begun(made)
    gathering, lane = life.engine._gathering, life.context.own
    run = waiting(made, life)
    large = b"x" * 200_000
    data = codec.encode(
        [large if where == "keys" else None],
        [large if where == "values" else None],
        timestamps=0,
        headers={0: [("h", large)]} if where == "headers" else None,
    )
    parcels = [lane.parcels[batch.handle] for batch in run]
    for parcel in parcels:
        parcel.data = data
    assert len(gathering._decoded(lane, parcels, run)) == 5
