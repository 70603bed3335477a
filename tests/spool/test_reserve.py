"""A disk that others filled to the last byte: decisions go into the reserve, and what they let go makes room again."""

from __future__ import annotations

import contextlib
import errno
import random

import pytest

from kafkasafe import marks as m
from kafkasafe.errors import SpoolWriteError
from kafkasafe.spool import reserve
from kafkasafe.spool.reserve import Reserve
from kafkasafe.testing.disk import Disk, ProcessKilled

from .model import LANE, Group, Owner, encode, open_lane, recover

RESERVE = LANE / "reserve"
SEGMENT = 150_000
DECLARED = m.Destination(1, "topic", 0)


@pytest.fixture
def _real_size(monkeypatch):
    monkeypatch.setattr(reserve, "_MARKS_BYTES", 65_536)


def opened(disk):
    lock, spool, _ = open_lane(disk.process(), lambda: [DECLARED], segment_bytes=SEGMENT)
    return lock, spool


def filled(disk, spool):
    """Data until there is no room left for any; positions of what was written."""
    positions = spool.write_group([DECLARED], [(1, bytearray(encode(1, 1, 40_000)))])
    spool.sync()
    with contextlib.suppress(SpoolWriteError):
        for number in range(2, 100):
            positions += spool.write_group((), [(1, bytearray(encode(number, 1, 40_000)))])
            spool.sync()
    assert 10 < len(positions) < 90
    return positions


def write_marks(spool, positions, count):
    for _ in range(count):
        spool.write_group([committed(positions[:1])], ())
        spool.sync()


def write_batch(spool, number):
    spool.write_group((), [(1, bytearray(encode(number, 1, 1000)))])
    spool.sync()


def ends_with_a_batch(disk, lock, spool):
    """A batch has room again, and the next owner finds it."""
    spool.write_group((), [(1, bytearray(encode(7, 1, 40_000)))])
    spool.sync()
    spool.close()
    lock.release()
    found = recover(disk, segment_bytes=SEGMENT)
    assert found.items[-1][1][0] == "batch"
    found.close()


def committed(positions):
    return m.Committed(1, 0, tuple((position, number) for number, position in enumerate(positions)))


@pytest.mark.usefixtures("_real_size")
def test_marks_are_written_on_a_full_disk_and_room_is_made_again():
    disk = Disk(capacity_bytes=1_000_000)
    lock, spool = opened(disk)
    assert RESERVE not in disk.files()  # nothing was written yet
    positions = filled(disk, spool)
    assert len(disk.files()[RESERVE]) == 65_536
    with contextlib.suppress(SpoolWriteError):
        spool.write_group([m.Rejected(positions[0], 1, "")], ())  # what was written half is cut off by now
        spool.sync()
    disk.capacity_bytes = disk.used_bytes
    mark = [committed(positions)]
    with pytest.raises(SpoolWriteError):
        spool.write_group(mark, ())
    assert RESERVE not in disk.files()
    # The smallest batch would fit now: it must not.
    with pytest.raises(SpoolWriteError, match="No space left"):
        spool.write_group((), [(1, bytearray(encode(7, 1, 1)))])
    spool.write_group(mark, ())
    spool.sync()
    assert spool.release(spool.next_position) > 500_000
    assert len(disk.files()[RESERVE]) == 65_536
    ends_with_a_batch(disk, lock, spool)


@pytest.mark.usefixtures("_real_size")
def test_data_that_waits_for_room_does_not_make_marks_more_expensive():
    """Each mark is followed by another try of the data. A try that writes nothing must not cost a segment, whose
    beginning repeats all that is known of every partition."""
    disk = Disk(capacity_bytes=1_000_000)
    known = [m.Destination(number, "topic", number) for number in range(1, 201)]
    lock, spool, _ = open_lane(disk.process(), lambda: known, segment_bytes=SEGMENT)
    positions = filled(disk, spool)
    with pytest.raises(SpoolWriteError):
        write_marks(spool, positions, count=1000)
    assert RESERVE not in disk.files()
    disk.capacity_bytes = disk.used_bytes + 65_536
    for number in range(100):
        spool.write_group([committed(positions[number % len(positions) :][:1])], ())
        spool.sync()
        with pytest.raises(SpoolWriteError, match="No space left"):
            spool.write_group((), [(1, bytearray(encode(7, 1, 1)))])
    assert spool.release(spool.next_position) > 500_000
    ends_with_a_batch(disk, lock, spool)


@pytest.mark.usefixtures("_real_size")
def test_marks_are_written_on_in_the_segment_in_which_batches_found_no_room():
    """1. The disk has room for marks, and none for the next batch. 2. Each try of the batch is followed by a mark.
    3. A new segment for each mark would take 4 KiB of the disk and of the reserve, until nothing is left for marks.
    """
    disk = Disk(capacity_bytes=1_000_000)
    lock, spool = opened(disk)
    positions = filled(disk, spool)
    disk.capacity_bytes = disk.used_bytes + 30_000
    segments = len(spool.segments)
    for number in range(50):
        with pytest.raises(SpoolWriteError, match="No space left"):
            spool.write_group((), [(1, bytearray(encode(7, 1, 40_000)))])
        spool.write_group([committed(positions[number % len(positions) :][:1])], ())
        spool.sync()
    assert len(spool.segments) <= segments + 1
    assert len(disk.files()[RESERVE]) == 65_536
    promised = spool.next_position
    spool.close()
    lock.release()
    found = recover(disk.crash(), segment_bytes=SEGMENT)
    assert found.spool.next_position > promised
    assert sum(item[0] == "batch" for _, item in found.items) == len(positions)
    found.close()


@pytest.mark.parametrize(("call", "same"), [("writev", True), ("sync_data", False)])
def test_a_segment_whose_sync_failed_is_not_written_on(call, same):
    """Some file systems find that there is no room only at the sync. Then the kernel may have dropped what it cached."""
    disk = Disk()
    lock, spool = opened(disk)
    spool.write_group([DECLARED], [(1, bytearray(encode(1, 1, 1000)))])
    spool.sync()
    disk.fail(call, error=errno.ENOSPC)
    with pytest.raises(SpoolWriteError, match="No space left"):
        write_batch(spool, 2)
    write_batch(spool, 2)
    assert len(spool.segments) == (1 if same else 2)
    spool.close()
    lock.release()
    found = recover(disk.crash(), segment_bytes=SEGMENT)
    assert sum(item[0] == "batch" for _, item in found.items) == 2
    found.close()


@pytest.mark.usefixtures("_real_size")
@pytest.mark.parametrize("left", [b"", b"x" * 100])
def test_a_reserve_that_is_short_is_none(left):
    disk = Disk()
    lock, spool = opened(disk)
    spool.close()
    lock.release()
    disk.put(RESERVE, left)
    lock, spool = opened(disk)
    spool.write_group([DECLARED], [(1, bytearray(encode(1, 1, 10)))])
    assert len(disk.files()[RESERVE]) == 65_536
    spool.close()
    lock.release()


@pytest.mark.usefixtures("_real_size")
@pytest.mark.parametrize("operation", ["open", "writev", "sync_data", "truncate"])
def test_a_disk_that_cannot_make_the_reserve_for_another_reason_still_takes_data(operation):
    disk = Disk()
    lock, spool = opened(disk)
    disk.fail(operation, times=1)
    spool.write_group([DECLARED], [(1, bytearray(encode(1, 1, 10)))])
    spool.sync()
    assert RESERVE not in disk.files()
    spool.write_group((), [(1, bytearray(encode(2, 1, 10)))])
    spool.sync()
    assert len(disk.files()[RESERVE]) == 65_536
    spool.close()
    lock.release()


@pytest.mark.parametrize("seed", range(2))
def test_every_crash_on_a_full_disk_recovers_to_what_was_promised(seed):
    """Histories in which others take and give back the rest of the disk, with deaths in between."""
    rng = random.Random(seed)
    disk = Disk()
    owner = Owner(disk, segment_bytes=1500)
    for _ in range(9):
        full = rng.random() < 0.6
        disk.capacity_bytes = disk.used_bytes + rng.choice((0, 0, 300)) if full else None
        dies = rng.random() < 0.3
        if dies:
            disk.fail(call=rng.randrange(10), kill=True)
        try:
            decision = Group((m.Rejected(owner.number, 7, "x"),), ())
            if full:
                # Marks get through by themselves; then there is room again.
                with contextlib.suppress(AssertionError):
                    owner.commit([decision], tries=3)
                    owner.release(rng.randint(0, owner.spool.next_position))
                disk.capacity_bytes = None
                for _ in range(5):
                    if not owner.waiting or (owner.rewrite() and owner.sync()):
                        break
            owner.commit([owner.group(rng, batches=rng.randint(1, 3), size=300)])
        except ProcessKilled:
            owner.note()
        while dies:
            disk.heal()
            disk.capacity_bytes = None
            owner.files.kill()
            try:
                owner.open()
                dies = False
            except ProcessKilled:
                pass
    assert owner.check_crashes(seed=seed) > 30


@pytest.mark.usefixtures("_real_size")
def test_a_division_has_the_reserve_and_marks_have_theirs_afterwards():
    disk = Disk()
    disk.fail("preallocate", times=100)
    lock, spool = opened(disk)
    spool.keep_room(40_000)
    (first,) = spool.write_group([DECLARED], [(1, bytearray(encode(1, 1, 40_000)))], divisible=True)
    spool.sync()
    large = len(disk.files()[RESERVE])
    assert large >= 65_536 + 2 * 40_000
    disk.capacity_bytes = disk.used_bytes
    assert spool.has_room(large - 65_536)
    assert not spool.has_room(large)
    assert len(disk.files()[RESERVE]) == large
    parts = [(1, bytearray(encode(number, 1, 20_000))) for number in (2, 3)]
    mark = m.Replaced(first, 0, 2)
    with pytest.raises(SpoolWriteError):
        spool.write_group([mark], parts, atomic=True)
    # A unit is data: it gets nothing of the reserve.
    assert len(disk.files()[RESERVE]) == large
    with pytest.raises(SpoolWriteError):
        spool.write_group([mark], parts, atomic=True, makes_room=True)
    assert RESERVE not in disk.files()
    positions = spool.write_group([mark], parts, atomic=True, makes_room=True)
    spool.sync()
    spool.write_group([committed(positions)], ())
    spool.sync()
    disk.capacity_bytes = None
    spool.keep_room(0)
    spool.write_group((), [(1, bytearray(encode(4, 1, 1)))])
    assert len(disk.files()[RESERVE]) == 65_536
    spool.close()
    lock.release()


@pytest.mark.usefixtures("_real_size")
def test_room_for_a_division_is_seen_where_the_reserve_is_small():
    disk = Disk()
    lock, spool = opened(disk)
    spool.write_group([DECLARED], [(1, bytearray(encode(1, 1, 10)))])
    spool.sync()
    disk.capacity_bytes = disk.used_bytes + 500_000
    assert not spool.has_room(2_000_000)
    assert spool.has_room(300_000)
    # Until it is written: then the room is free again.
    assert len(disk.files()[RESERVE]) > 300_000
    spool.write_group((), [(1, bytearray(encode(2, 1, 300_000)))], atomic=True, makes_room=True)
    assert len(disk.files()[RESERVE]) == 65_536
    spool.close()
    lock.release()


@pytest.mark.usefixtures("_real_size")
def test_without_the_reserve_a_full_disk_stays_full(monkeypatch):
    monkeypatch.setattr(Reserve, "give_up", lambda *_: None)
    with pytest.raises((AssertionError, SpoolWriteError)):
        test_marks_are_written_on_a_full_disk_and_room_is_made_again()


@pytest.mark.usefixtures("_real_size")
def test_if_data_took_the_reserve_a_full_disk_would_stay_full(monkeypatch):
    monkeypatch.setattr(Reserve, "ensure", lambda *_: True)
    with pytest.raises((AssertionError, SpoolWriteError, KeyError)):
        test_marks_are_written_on_a_full_disk_and_room_is_made_again()


@pytest.mark.parametrize("partial", [0.3, 0.6, 0.95, 1.0])
@pytest.mark.parametrize(("batches", "size"), [(1, 700), (3, 700), (2, 5000)])
def test_power_goes_after_a_mark_was_written_in_the_place_of_a_batch(batches, size, partial):
    """What was cut off must not be found after the mark: it would be taken for damage."""
    disk = Disk()
    lock, spool = opened(disk)
    positions = spool.write_group([DECLARED], [(1, bytearray(encode(1, 1, 300)))])
    spool.sync()
    disk.fail("writev", error=errno.ENOSPC, partial=partial)
    with pytest.raises(SpoolWriteError):
        spool.write_group((), [(1, bytearray(encode(2 + number, 1, size))) for number in range(batches)])
    begin = len(disk.operations)
    spool.write_group([committed(positions)], ())
    assert len(spool.segments) == 1
    states = list(disk.crash_states(start=begin, samples=30))
    assert states
    for state in states:
        found = recover(state.disk, segment_bytes=SEGMENT)
        assert "batch" in {item[0] for _, item in found.items}
        found.close()
    spool.sync()
    spool.close()
    lock.release()
