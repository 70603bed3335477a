"""The spool is moved, deleted and replaced while its producer works: what was called durable is found by the next start."""

from __future__ import annotations

import contextlib
import errno
import itertools
from pathlib import Path

import pytest
from virtual import SPOOL, World

from kafkasafe import events
from kafkasafe.errors import LaneBusyError, SpoolCorruptError
from kafkasafe.spool.extent import decode_extent
from kafkasafe.testing.disk import ProcessKilled

LANE = SPOOL / "lane-000"
AWAY = Path("/away")
SMALL = {"spool_segment_bytes": 4000}


class Place(World):
    """A producer in an outage, what it was promised, and what the log has in the end."""

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.centre.create_topic("t", 1)
        self.disk.put(AWAY / "other", b"")
        self.set_outage(True)
        self.numbers = itertools.count()
        self.events: list = []
        self.promised: list[bytes] = []

    def begin(self, **options):
        return self.start(on_event=self.events.append, **options)

    def durable(self, life, number: int = 1, within_s: float = 30.0) -> bool:
        """Send some batches; whether each was called durable. Those are promised."""
        for _ in range(number):
            value = b"%05d" % next(self.numbers) + bytes(600)
            parcel = life.send("t", 0, [value])
            if not self.run(within_s, until=lambda parcel=parcel: parcel.durable):
                return False
            self.promised.append(value)
        return True

    def displaced(self) -> list[tuple]:
        return [
            (event.reason, event.restored, event.lost_records)
            for event in self.events
            if isinstance(event, events.SpoolDisplaced)
        ]

    def deliver(self, **options) -> None:
        """The next start, once the outage is over: all that was promised is delivered, once and in order."""
        self.set_outage(False)
        life = self.start(**options)
        assert self.run(300, until=lambda: set(self.log("t", 0)) >= set(self.promised)), (
            "promised, and missing"
        )
        self.run(30)
        log = self.log("t", 0)
        assert len(set(log)) == len(log), "delivered twice"
        assert [value for value in log if value in set(self.promised)] == self.promised
        assert not life.context.own.journal.views.unfinished


def remove(world: Place, *paths: Path) -> None:
    for path in paths:
        world.disk.remove(path)


def segments(world: Place, lane: Path = LANE) -> list[Path]:
    return sorted(path for path in world.disk.files() if path.parent == lane and path.suffix == ".log")


WAYS = {
    "the directory": lambda world: remove(world, SPOOL),
    "the lane": lambda world: remove(world, LANE),
    "what is in the lane": lambda world: remove(world, *(p for p in world.disk.files() if p.parent == LANE)),
    "segments": lambda world: remove(world, *segments(world)),
    "the first segment": lambda world: remove(world, segments(world)[0]),
    "the newest segment": lambda world: remove(world, segments(world)[-1]),
    "the lock": lambda world: remove(world, LANE / "lock"),
    "all files of the directory": lambda world: remove(
        world, *(path for path in world.disk.files() if path.parent == SPOOL)
    ),
    "extent": lambda world: remove(world, LANE / "extent"),
}
MOVES = {
    "the directory is moved": lambda world: world.disk.move(SPOOL, AWAY / "spool"),
    "the lane is moved": lambda world: world.disk.move(LANE, AWAY / "lane"),
    "the lane is renamed": lambda world: world.disk.move(LANE, SPOOL / "old"),
    "segments are renamed": lambda world: [
        world.disk.move(path, path.with_suffix(".log.1")) for path in segments(world)
    ],
}


@pytest.mark.parametrize("idle", [False, True], ids=["while records come", "in between"])
@pytest.mark.parametrize("way", [*WAYS, *MOVES])
def test_what_was_promised_survives_whatever_becomes_of_the_files(way, idle):
    """durable() went on saying yes, and the next start found nothing."""
    world = Place()
    life = world.begin(sizes=SMALL)
    assert world.durable(life, 20)
    life.engine.disk.cannot_send()  # what is on disk is not in memory as well, in an outage
    (WAYS | MOVES)[way](world)
    assert idle or world.durable(life, 5)
    world.run(2.0)
    ((_, restored, lost),) = world.displaced()
    assert (restored, lost) == (True, 0)
    assert world.durable(life, 5)
    assert life.context.stats.spool_displaced.value == 1
    world.kill(life)
    world.deliver(sizes=SMALL)


@pytest.mark.parametrize("way", [*WAYS, *MOVES])
def test_what_is_called_durable_is_there_at_that_moment(way):
    world = Place()
    life = world.begin(sizes=SMALL)
    assert world.durable(life, 8)
    (WAYS | MOVES)[way](world)
    assert world.durable(life, 1)
    world.kill(life)
    world.deliver(sizes=SMALL)


DELETED = {*WAYS, "segments are renamed"} - {"the lock", "all files of the directory", "extent"}
"""What dies with its owner until it is restored. A power cut may leave an `extent` that knows less."""


def put_back(world: Place) -> None:
    """What was moved away, as long as no process fetched it."""
    for source, target in ((AWAY / "spool", SPOOL), (AWAY / "lane", LANE), (SPOOL / "old", LANE)):
        if segments(world, source) or segments(world, source / "lane-000"):
            assert not segments(world), "it is in two places"
            if target in {path.parent for path in world.disk.files()}:
                world.disk.remove(target)
            world.disk.move(source, target)


@pytest.mark.parametrize(
    "power", [False, pytest.param(True, marks=pytest.mark.full)], ids=["killed", "power cut"]
)
@pytest.mark.parametrize("way", [*WAYS, *MOVES])
def test_a_crash_in_a_restoration_loses_nothing_without_a_word(way, power):
    """What is deleted dies with its owner until it is restored; what is restored in part is damage, and says so."""
    for call in itertools.count(step=2):
        world = Place()
        life = world.begin(sizes=SMALL)
        assert world.durable(life, 8)
        (WAYS | MOVES)[way](world)
        fault = world.disk.fail(call=call, kill=True)
        with contextlib.suppress(ProcessKilled):
            world.run(2.0)
        if not fault.hits:
            assert call > 10
            return
        world.lives.remove(life)
        life.client.close(0.0)
        world.disk.heal()
        if power:
            world.disk = world.disk.crash(seed=call)
        if not world.displaced():
            put_back(world)
        files = world.disk.files()
        made_again = segments(world) or decode_extent(files.get(LANE / "extent", b"")).end is not None
        if way in DELETED and not world.displaced() and (power or not made_again):
            continue
        try:
            world.deliver(sizes=SMALL)
        except SpoolCorruptError:
            assert way in DELETED
            assert not world.displaced()


@pytest.mark.parametrize("way", ["the directory", "the lane", "the directory is moved", "the lane is moved"])
def test_two_producers_meet_in_one_directory_and_both_keep_what_they_promised(way):
    """An operator takes the spool of a living producer away, and starts another one on the path."""
    world = Place()
    old = world.begin(sizes=SMALL)
    assert world.durable(old, 10)
    (WAYS | MOVES)[way](world)
    new = world.begin(sizes=SMALL)
    for _ in range(5):
        assert world.durable(new, 3)
        assert world.durable(old, 3)
    world.run(2.0)
    assert {old.context.own.name, new.context.own.name} == {"lane-000", "lane-001"}
    assert old.context.own.lock.path == SPOOL / old.context.own.name
    assert [restored for _, restored, _ in world.displaced()] == [True]
    assert not [path for path in world.disk.files() if path.is_relative_to(AWAY) and path.suffix == ".log"]
    world.kill(old)
    world.kill(new)
    # Producers that live side by side promise no order between them.
    world.promised, promised = [], world.promised
    world.set_outage(False)
    life = world.start(sizes=SMALL)
    assert world.run(300, until=lambda: not life.engine.ledger.lanes.left_behind)
    world.run(60)
    log = world.log("t", 0)
    assert sorted(log) == sorted(promised)


def test_a_lock_that_was_deleted_and_taken_ends_its_owner():
    """Both would write into one log. What was promised is in it: the new owner delivers that."""
    world = Place()
    old = world.begin(sizes=SMALL)
    assert world.durable(old, 10)
    world.disk.remove(LANE / "lock")
    new = world.begin(sizes=SMALL)
    parcel = old.send("t", 0, [b"late"])
    with pytest.raises(LaneBusyError, match=r"lock of .* was deleted"):
        world.run(5.0)
    assert not parcel.durable
    world.lives.remove(old)
    before = world.disk.files()
    old.engine.shut()
    assert world.disk.files() == before
    assert old.files.open_handles == 0
    assert world.durable(new, 3)
    world.kill(new)
    world.deliver(sizes=SMALL)


def test_an_adopted_lane_whose_lock_was_taken_is_let_go():
    world = Place()
    old = world.begin(sizes=SMALL, client_id="old")
    assert world.durable(old, 4)
    world.kill(old)
    heir = world.begin(sizes=SMALL)
    assert world.run(30, until=lambda: len(heir.context.lanes) == 2)
    world.disk.remove(LANE / "lock")
    again = world.begin(sizes=SMALL, client_id="old")
    assert again.context.own.name == "lane-000"
    world.set_outage(False)
    assert world.run(60, until=lambda: len(heir.context.lanes) == 1)
    assert world.durable(heir, 1)
    assert world.run(60, until=lambda: len(world.log("t", 0)) == len(world.promised))


def test_an_adopted_lane_is_restored_too():
    world = Place()
    old = world.begin(sizes=SMALL, client_id="old")
    assert world.durable(old, 10)
    world.kill(old)
    heir = world.begin(sizes=SMALL)
    assert world.run(30, until=lambda: len(heir.context.lanes) == 2)
    world.disk.remove(SPOOL)
    world.run(2.0)
    assert sorted(restored for _, restored, _ in world.displaced()) == [True, True]
    world.kill(heir)
    world.deliver(sizes=SMALL)


def test_another_volume_in_its_place_stops_promises_and_not_deliveries(caplog):
    """What is written goes to a directory that the next start does not look into: it is sent, and not called durable."""
    world = Place()
    life = world.begin(sizes=SMALL)
    assert world.durable(life, 5)
    world.disk.mount(SPOOL)
    parcel = life.send("t", 0, [b"on the other volume"])
    assert not world.run(20, until=lambda: parcel.durable)
    assert world.displaced() == [("moved", False, 0)]
    assert life.engine.places.displaced == 1
    trouble = life.engine.ledger.room.disk_trouble
    assert f"another volume is mounted at {SPOOL} or above it" in trouble
    # `umount -l` leaves the path to the volume below, which nobody can unmount.
    assert "or mount the spool's volume again" in trouble
    world.set_outage(False)
    assert world.run(60, until=lambda: parcel.done)
    assert world.log("t", 0) == [*world.promised, b"on the other volume"]
    world.set_outage(True)
    late = life.send("t", 0, [b"late"])
    assert not world.run(20, until=lambda: late.durable)
    world.disk.unmount(SPOOL)
    assert world.run(5, until=lambda: late.durable)
    assert world.displaced() == [("moved", False, 0), ("moved", True, 0)]
    assert life.engine.places.displaced == 0
    assert not life.engine.ledger.room.disk_trouble
    world.promised += [b"on the other volume", b"late"]
    assert world.durable(life, 3)
    world.kill(life)
    world.deliver(sizes=SMALL)


@pytest.mark.parametrize("content", [b"", b"kafkasafe-sp"])
def test_a_file_format_that_is_cut_is_written_again(content):
    """The producer did not notice, and the next start refused the directory."""
    world = Place()
    life = world.begin(sizes=SMALL)
    assert world.durable(life, 8)
    world.disk.put(SPOOL / "FORMAT", content)
    world.run(2.0)
    assert [(restored, lost) for _, restored, lost in world.displaced()] == [(True, 0)]
    assert world.disk.files()[SPOOL / "FORMAT"] == b"kafkasafe-spool 1\n"
    assert world.durable(life, 1)
    world.kill(life)
    world.deliver(sizes=SMALL)


def test_a_process_with_too_many_open_files_still_promises():
    """The check of FORMAT opens the file. Its failure says nothing about the directory."""
    world = Place()
    life = world.begin(sizes=SMALL)
    assert world.durable(life, 1)
    world.disk.fail("open", error=errno.EMFILE, times=None)
    world.run(3.0)
    assert world.durable(life, 1, within_s=1.0)
    assert not world.displaced()


def test_a_directory_of_another_cluster_in_its_place_gets_no_records():
    world = Place()
    world.set_outage(False)
    life = world.begin(sizes=SMALL)
    assert world.durable(life, 3)
    world.run(5)
    assert (SPOOL / "CLUSTER") in world.disk.files()
    world.set_outage(True)
    assert world.durable(life, 3)
    world.disk.move(SPOOL, AWAY / "spool")
    world.disk.put(SPOOL / "FORMAT", b"kafkasafe-spool 1\n")
    world.disk.put(SPOOL / "CLUSTER", b"another\n")
    assert not world.durable(life, 1, within_s=10)
    assert "another cluster" in life.engine.ledger.room.disk_trouble
    assert not segments(world)
    world.disk.remove(SPOOL)
    world.disk.move(AWAY / "spool", SPOOL)
    assert world.durable(life, 1)


def test_a_segment_that_is_cut_is_never_written_to_again(caplog):
    """logrotate with copytruncate: a write behind the new end would leave zeros, and the size would be right again."""
    world = Place()
    life = world.begin(sizes=SMALL)
    assert world.durable(life, 3)
    life.engine.disk.cannot_send()  # what is on disk is not in memory as well
    kept, world.promised = world.promised, []
    (segment,) = segments(world)
    cut(world, segment)
    assert world.durable(life, 3)
    ((problem, restored, lost),) = world.displaced()
    assert (problem, restored) == ("files", True)
    assert lost == len(kept)
    loss = life.engine.ledger.errors.next_loss()
    assert isinstance(loss, SpoolCorruptError)
    assert "3 records that waited there could not be read" in str(loss)
    assert "3 records could not be read any more" in caplog.text
    assert world.disk.files()[segment] == b""
    world.kill(life)
    with pytest.raises(SpoolCorruptError, match="missing or empty"):
        world.start(sizes=SMALL)
    world.deliver(sizes=SMALL, on_corrupt="quarantine")


def cut(world: Place, segment: Path) -> None:
    outsider = world.disk.process()
    outsider.truncate(outsider.open(segment, write=True), 0)


def test_what_is_in_memory_is_written_once_more_where_its_segment_was_cut():
    world = Place()
    life = world.begin(sizes=SMALL)
    assert world.durable(life, 10)
    cut(world, segments(world)[0])
    world.run(2.0)
    cut(world, segments(world)[-1])
    assert world.durable(life, 2)
    world.run(2.0)
    assert [lost for _, _, lost in world.displaced()] == [0, 0]
    assert life.engine.ledger.errors.next_loss() is None
    world.kill(life)
    with pytest.raises(SpoolCorruptError):
        world.start(sizes=SMALL)  # what was cut is no log, though nothing in it is missing elsewhere
    world.deliver(sizes=SMALL, on_corrupt="quarantine")


def test_more_segments_than_are_held_open_are_lost_with_their_names_and_counted(monkeypatch):
    monkeypatch.setattr("kafkasafe.spool.segment_files._HELD", 3)
    world = Place()
    life = world.begin(sizes=SMALL)
    assert world.durable(life, 40)
    life.engine.disk.cannot_send()
    number = len(segments(world))
    assert number > 6
    assert life.files.open_handles < 12
    world.disk.remove(SPOOL)
    world.run(2.0)
    ((problem, restored, lost),) = world.displaced()
    assert (problem, restored) == ("deleted", True)
    assert 0 < lost < 40
    assert str(lost) in str(life.engine.ledger.errors.next_loss())
    world.kill(life)
    with pytest.raises(SpoolCorruptError):
        world.start(sizes=SMALL)
    life = world.start(sizes=SMALL, on_corrupt="quarantine")
    assert life.context.own.journal.views.spooled_records == 40 - lost


def test_packed_batches_whose_segments_are_lost_are_counted(monkeypatch):
    """It said that nothing is lost, and no call raised an error."""
    monkeypatch.setattr("kafkasafe.spool.segment_files._HELD", 3)
    monkeypatch.setattr("kafkasafe.delivery.engine.packing._PARCELS", 0)
    monkeypatch.setattr("kafkasafe.journal.packing.UNPACKED", 6)
    world = Place()
    life = world.begin(sizes=SMALL)
    assert world.durable(life, 40)
    life.engine.disk.cannot_send()
    assert sum(each.batches for each in life.context.own.journal.views.packed()) == 34
    world.disk.remove(SPOOL)
    world.run(2.0)
    ((_, restored, lost),) = world.displaced()
    assert restored
    world.kill(life)
    life = world.start(sizes=SMALL, on_corrupt="quarantine")
    assert life.context.own.journal.views.spooled_records == 40 - lost


def test_batches_that_are_unpacked_while_reads_fail_are_not_looked_for_in_memory(monkeypatch):
    """Somebody cuts their segment in the meantime. The producer ended with a KeyError."""
    monkeypatch.setattr("kafkasafe.delivery.engine.packing._PARCELS", 0)
    monkeypatch.setattr("kafkasafe.journal.packing.UNPACKED", 6)
    world = Place()
    life = world.begin(sizes=SMALL)
    assert world.durable(life, 20)
    lane = life.context.own
    lane.divisions.wait(world.time.monotonic() + 10)  # a division found too many open files
    lane.journal.to_move(lane.spool.next_position, 1 << 20)  # `RoomKeeper` unpacks the first batches
    assert lane.journal.views.unfinished == 20
    cut(world, segments(world)[-2])
    world.run(2.0)
    ((_, restored, _),) = world.displaced()
    assert restored
    parcel = life.send("t", 0, [b"later"])
    assert world.run(20, until=lambda: parcel.durable)


def test_a_lane_of_another_owner_that_died_is_no_place_for_ours():
    world = Place()
    old = world.begin(sizes=SMALL)
    assert world.durable(old, 6)
    world.disk.remove(SPOOL)
    world.lives.remove(old)  # it does nothing for a while
    new = world.begin(sizes=SMALL, client_id="other")
    assert world.durable(new, 6)
    world.kill(new)
    world.lives.append(old)
    promised, world.promised = world.promised, []
    assert world.durable(old, 1)
    assert old.context.own.name == "lane-001"
    world.kill(old)
    world.set_outage(False)
    world.start(sizes=SMALL)
    assert world.run(300, until=lambda: sorted(world.log("t", 0)) == sorted(promised + world.promised))


@pytest.mark.parametrize("way", ["the directory", "the directory is moved"])
def test_an_atomic_batch_is_durable_where_the_next_start_finds_it(way):
    world = Place()
    life = world.begin(sizes=SMALL)
    assert world.durable(life, 2)
    head, *_ = life.unit(("t", 0, [b"one"]), ("t", 0, [b"two"]))
    assert world.run(30, until=lambda: head.durable)
    (WAYS | MOVES)[way](world)
    later, *_ = life.unit(("t", 0, [b"three"]))
    assert world.run(30, until=lambda: later.durable)
    world.disk.mount(SPOOL)
    never, *_ = life.unit(("t", 0, [b"four"]))
    assert not world.run(10, until=lambda: never.durable)
    world.disk.unmount(SPOOL)
    assert world.run(10, until=lambda: never.durable)
    world.kill(life)
    world.set_outage(False)
    world.start(sizes=SMALL)
    wanted = [*world.promised, b"one", b"two", b"three", b"four"]
    assert world.run(300, until=lambda: world.committed("t", 0) == wanted)


def test_what_is_spooled_on_error_is_durable_where_the_next_start_finds_it():
    world = Place()
    life = world.begin(sizes=SMALL, spool="on_error")
    assert world.durable(life, 4)
    world.disk.move(SPOOL, AWAY / "spool")
    assert world.durable(life, 4)
    world.disk.remove(SPOOL)
    assert world.durable(life, 4)
    assert [problem for problem, _, _ in world.displaced()] == ["moved", "deleted"]
    world.kill(life)
    world.deliver(sizes=SMALL)


def test_with_on_error_what_cannot_be_written_is_delivered_when_the_cluster_is_back():
    """The directory was deleted and cannot be created again: the records waited until it could."""
    world = Place()
    world.set_outage(False)
    life = world.begin(spool="on_error")
    first = life.send("t", 0, [b"first"])
    assert world.run(30, until=lambda: first.done)
    world.disk.remove(SPOOL)
    world.disk.fail("make_directory", error=errno.EACCES, times=None)
    world.set_outage(True)
    parcels = [life.send("t", 0, [b"%d" % number]) for number in range(5)]
    assert not world.run(20, until=lambda: any(each.durable for each in parcels))
    world.set_outage(False)
    assert world.run(60, until=lambda: all(each.done for each in parcels))
    assert [each.error for each in parcels] == [None] * 5
    assert world.log("t", 0) == [b"first", *(b"%d" % number for number in range(5))]
    world.disk.heal()
    world.set_outage(True)
    assert world.durable(life, 1)


def test_a_disk_that_fails_while_files_are_restored_is_tried_again():
    world = Place()
    life = world.begin(sizes=SMALL)
    assert world.durable(life, 10)
    world.disk.remove(SPOOL)
    world.disk.fail("make_directory", error=errno.EACCES, times=None)
    assert not world.durable(life, 1, within_s=10)
    assert world.displaced() == [("deleted", False, 0)]
    assert "Permission denied" in life.engine.ledger.room.disk_trouble
    world.disk.heal()
    world.run(5)
    assert world.displaced() == [("deleted", False, 0), ("deleted", True, 0)]
    assert world.durable(life, 1)
    for call in range(60):
        world.disk.remove(SPOOL)
        world.disk.fail(call=call, error=errno.EIO, times=1 + (call + 2) % 3)
        world.run(8.0)
        world.disk.heal()
    assert world.durable(life, 1)
    world.kill(life)
    world.deliver(sizes=SMALL)


def test_a_disk_that_fails_while_lanes_are_listed_ends_no_producer():
    """An error of `list` ended the engine's thread."""
    for call in range(40):
        world = Place()
        life = world.begin(sizes=SMALL)
        assert world.durable(life, 3)
        world.disk.fail("list", call=call, error=errno.EIO, times=1 + call % 3)
        world.run(20.0)
        world.disk.heal()
        assert world.durable(life, 1)
        world.deliver(sizes=SMALL)


def test_what_is_closed_is_where_the_next_start_finds_it():
    world = Place()
    life = world.begin(sizes=SMALL)
    assert world.durable(life, 5)
    world.disk.remove(SPOOL)
    world.lives.remove(life)
    life.engine.shut()
    assert life.files.open_handles == 0
    world.deliver(sizes=SMALL)


def test_a_deleted_lane_whose_new_directory_cannot_be_listed_at_first_keeps_its_number():
    """The new directory stayed locked by nobody's lock, and the lane moved on to the next number."""
    for call in range(8):
        world = Place()
        life = world.begin(sizes=SMALL)
        assert world.durable(life, 3)
        world.disk.remove(LANE)
        world.disk.fail("list", call=call, error=errno.EIO)
        world.run(8.0)
        world.disk.heal()
        assert world.displaced()[-1][:2] == ("deleted", True)
        assert life.context.own.name == "lane-000", call
