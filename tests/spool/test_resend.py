"""Rejected records come back once, in order, whatever a crash does."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from kafkasafe import marks as m
from kafkasafe.errors import LaneBusyError, SpoolCorruptError, SpoolError, UsageError
from kafkasafe.maintenance.resend import bring_back, find_rejected, set_aside
from kafkasafe.record import batch as codec
from kafkasafe.spool.inspection import missing
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.rejected import data_of, read_rejected, retire
from kafkasafe.spool.rejected_format import Refused
from kafkasafe.spool.rejected_notes import read_notes
from kafkasafe.testing.disk import Disk, ProcessKilled

from .test_rejected import ROOT, Owner, encoded

ORDERS, OTHER = m.Destination(1, "orders", 0), m.Destination(2, "other", -1)
WAITING = [b"w"]
REJECTED = [b"a", b"b", b"x", b"c", b"z"]


def prepared() -> Disk:
    """Two lanes without an owner: one record waits, two topics have rejected ones."""
    disk = Disk()
    directory = SpoolDirectory.open(ROOT, files=disk.process())
    directory.bind_cluster("c1", drained=lambda: True)
    for number, batches in enumerate(([(1, b"a"), (1, b"b"), (2, b"x"), (1, b"w"), (1, b"c")], [(1, b"z")])):
        lock = directory.take_lane(number)
        owner = Owner(directory.files, lock.path)
        positions = owner.spool.write_group([ORDERS, OTHER], [(to, encoded(v)) for to, v in batches])
        owner.spool.sync()
        for count, which in ((2, [0, 1]), (1, [2]), (1, [4])) if number == 0 else ((1, [0]),):
            kept = [Refused(positions[i], owner.spool.read(positions[i]), 29, "no") for i in which]
            assert len(kept) == count
            to = ORDERS if batches[which[0]][0] == 1 else OTHER
            owner.store.keep(kept, to, cluster_id="c1", now_ms=1)
            owner.spool.write_group([m.Rejected(positions[i], 29, "no") for i in which], ())
            owner.spool.sync()
        owner.spool.close()
        lock.release()
    return disk


def life(disk: Disk) -> tuple[list[bytes], list[bytes]]:
    """The next owner of every lane: what it would deliver, in the order of its lanes, and what stays rejected."""
    files = disk.process()
    directory = SpoolDirectory.open(ROOT, files=files)
    waiting, rejected = [], []
    owners = []
    for number in directory.lanes():
        lock = directory.take_lane(number)
        owner = Owner(files, lock.path)
        owners.append(owner)
        for mark in owner.journal.views.resent:
            retire(files, ROOT, mark)
            owner.journal.retired(mark)
        for position in sorted(batch.position for _, _, batch in owner.journal.views.batches()):
            waiting += codec.decode(owner.spool.read(position)).values
    for owner in owners:
        lane = owner.spool._lane
        assert missing(files, lane, read_notes(files, lane), ()) == (), (
            "what was resent is not called deleted"
        )
        for kept in read_rejected(files, owner.spool._lane, lane_id=owner.spool.lane_id, waits=owner.waits):
            assert not kept.error
            rejected += [codec.decode(data_of(files, kept.path, e.position)).values[0] for e in kept.entries]
        owner.spool.close()
    files.kill()
    return waiting, rejected


def resend(disk: Disk, **of):
    return bring_back(SpoolDirectory.look(ROOT, files=disk.process()), clock_ms=lambda: 5, **of)


def test_what_was_rejected_comes_back_in_order():
    disk = prepared()
    assert life(disk) == (WAITING, REJECTED)
    directory = SpoolDirectory.look(ROOT, files=disk.process())
    dry = find_rejected(directory)
    assert [(each.lane, each.topic, each.partition, each.kept.records) for each in dry.files] == [
        ("lane-000", "orders", 0, 2),
        ("lane-000", "other", -1, 1),
        ("lane-000", "orders", 0, 1),
        ("lane-001", "orders", 0, 1),
    ]
    some = resend(disk, topics=["other"])
    assert (some.lane, some.records, some.left) == ("lane-000", 1, [])
    assert life(disk) == ([b"w", b"x"], [b"a", b"b", b"c", b"z"])
    assert resend(disk).records == 4
    assert life(disk) == ([b"w", b"x", b"a", b"b", b"c", b"z"], [])
    assert resend(disk).files == []


def test_what_several_lanes_rejected_comes_back_in_the_order_of_the_rejection():
    """What a lane with a lower number rejected later came first."""
    disk = Disk()
    directory = SpoolDirectory.open(ROOT, files=disk.process())
    locks = [directory.take_lane(number) for number in range(2)]
    owners = [Owner(directory.files, lock.path) for lock in locks]
    for number, value in ((1, b"a"), (0, b"b"), (1, b"c")):
        owner = owners[number]
        owner.reject(*owner.accept(value))
    for lock, owner in zip(locks, owners, strict=True):
        owner.spool.close()
        lock.release()
    directory.bind_cluster("c1", drained=lambda: True)
    assert resend(disk).records == 3
    assert life(disk) == ([b"a", b"b", b"c"], [])


def test_a_crash_at_any_moment_leaves_each_record_in_one_place():
    disk = prepared()
    before = len(disk.operations)
    resend(disk)
    states = 0
    for state in disk.crash_states(start=before, samples=3):
        states += 1
        again = state.disk.copy()
        waiting, rejected = life(state.disk)
        assert sorted(waiting + rejected) == sorted(WAITING + REJECTED), state
        assert life(state.disk) == (waiting, rejected), state
        # The operator tries again, also before the lane was opened.
        resend(again)
        waiting, rejected = life(again)
        assert (sorted(waiting), rejected) == (sorted(WAITING + REJECTED), []), state
        assert [v for v in waiting if v in {b"a", b"b", b"c"}] == [b"a", b"b", b"c"], state
    assert states > 60


def test_killed_at_any_call_it_goes_on_where_it_was():
    call = 0
    while True:
        disk = prepared()
        disk.fail(call=call, kill=True)
        files = disk.process()
        try:
            bring_back(SpoolDirectory.look(ROOT, files=files))
        except ProcessKilled:
            pass
        else:
            break
        disk.heal()
        files.kill()
        resend(disk)
        waiting, rejected = life(disk)
        assert (sorted(waiting), rejected) == (sorted(WAITING + REJECTED), []), call
        call += 1
    assert call > 50


@pytest.mark.parametrize("operation", ["writev", "sync_data", "unlink", "sync_directory", "create", "read"])
def test_a_disk_that_fails_loses_and_doubles_nothing(operation):
    for call in range(6):
        disk = prepared()
        disk.fail(operation, call=call)
        with contextlib.suppress(SpoolError):  # not every call has a fault to meet
            resend(disk)
        disk.heal()
        resend(disk)
        waiting, rejected = life(disk)
        assert (sorted(waiting), rejected) == (sorted(WAITING + REJECTED), []), call


def test_what_is_not_rejected_yet_is_not_resent():
    """Between the copy and its mark the owner may die, and deliver it after all."""
    disk = prepared()
    directory = SpoolDirectory.look(ROOT, files=disk.process())
    lock = directory.take_lane(1)
    owner = Owner(directory.files, lock.path)
    (position,) = owner.accept(b"n")
    owner.store.keep(
        [Refused(position, owner.spool.read(position), 29, "no")], ORDERS, cluster_id="c1", now_ms=1
    )
    found = resend(disk)
    assert (found.lane, found.records) == ("lane-000", 5)
    directory.files.kill()
    waiting, rejected = life(disk)
    assert (sorted(waiting), rejected) == (sorted([*WAITING, *REJECTED, b"n"]), [])


def test_partitions_that_were_given_come_back_with_the_records():
    disk = Disk()
    directory = SpoolDirectory.open(ROOT, files=disk.process())
    lock = directory.take_lane(3)
    owner = Owner(directory.files, lock.path)
    to = m.Destination(1, "orders", -1)
    data = [encoded(b"1", b"2"), encoded(b"3")]
    positions = owner.spool.write_group([to], [(1, each) for each in data])
    refused = [
        Refused(p, owner.spool.read(p), 3, "no topic", given)
        for p, given in zip(positions, [None, ((0, 1, 7),)], strict=True)
    ]
    owner.store.keep(refused, to, cluster_id="", now_ms=1)
    owner.spool.write_group([m.Rejected(p, 3, "no topic") for p in positions], ())
    owner.spool.sync()
    directory.files.kill()
    assert resend(disk).lane == "lane-000"
    heir = Owner(disk.process())
    assert [batch.given for _, _, batch in heir.journal.views.batches()] == [None, ((0, 1, 7),)]


def test_records_for_another_cluster_stay_where_they_are():
    disk = prepared()
    directory = SpoolDirectory.look(ROOT, files=disk.process())
    assert directory.bind_cluster("c2", drained=lambda: True) == ("c1", True)
    found = resend(disk)
    assert (found.files, len(found.left)) == ([], 4)
    assert "for cluster c1, not c2" in found.left[0]


def test_one_at_a_time():
    disk = prepared()
    with SpoolDirectory.look(ROOT, files=disk.process()).resending(), pytest.raises(LaneBusyError):
        resend(disk)


def test_where_a_mark_may_be_lost_nothing_is_resent():
    disk = prepared()
    (segment,) = [path for path in disk.files() if path.parent.name == "lane-001" and path.suffix == ".log"]
    disk.flip(segment, 70)
    with pytest.raises(SpoolCorruptError, match="Nothing was changed"):
        resend(disk)


def test_a_damaged_batch_keeps_nothing_rejected_from_coming_back():
    """A lane of its own is made for it."""
    disk = prepared()
    segment = next(
        path for path in sorted(disk.files()) if path.parent.name == "lane-000" and path.suffix == ".log"
    )
    at = disk.files()[segment].index(b"\x01\x02w\x00")  # no key, one byte, no headers
    disk.flip(segment, at)
    found = resend(disk)
    assert (found.lane, found.records) == ("lane-002", 5)


def test_what_is_not_whole_stays_and_is_named():
    disk = prepared()
    name = next(path for path in sorted(disk.files()) if path.parent.name == "rejected")
    disk.put(name, disk.files()[name][:-1])
    found = resend(disk)
    assert (found.records, len(found.left)) == (3, 1)
    assert str(Path(name)) in found.left[0]


# -- setting a batch aside ---------------------------------------------------------------------------------------------


def stuck() -> tuple[Disk, list[int]]:
    """Three batches with ids, which may have been sent."""
    disk = Disk()
    directory = SpoolDirectory.open(ROOT, files=disk.process())
    lock = directory.take_lane()
    owner = Owner(directory.files, lock.path)
    batches = [encoded(b"a"), encoded(b"b"), encoded(b"c")]
    for number, data in enumerate(batches):
        codec.stamp_identity(data, 7, 0, number)
    declared = [ORDERS, m.State(1, 0, -1, -1, bytes(16))]
    positions = owner.spool.write_group(declared, [(1, data) for data in batches])
    owner.spool.sync()
    directory.files.kill()
    return disk, positions


def found_in(disk: Disk) -> tuple[list[tuple[bytes, int]], list[bytes]]:
    """(value, base sequence of its id or -1) of what waits; and what is rejected."""
    owner = Owner(disk.process())
    waiting = [
        (
            codec.decode(owner.spool.read(b.position)).values[0],
            -1 if b.identity is None else b.identity.base_sequence,
        )
        for _, _, b in owner.journal.views.batches()
    ]
    lane = ROOT / "lane-000"
    kept = read_rejected(owner.files, lane, lane_id=owner.spool.lane_id, waits=owner.waits)
    assert {entry.reason for file in kept for entry in file.entries} <= {"set aside by an operator"}
    rejected = [
        codec.decode(data_of(owner.files, file.path, entry.position)).values[0]
        for file in kept
        for entry in file.entries
    ]
    owner.files.kill()
    return waiting, rejected


def aside(disk: Disk, position: int, absent: list[int]):
    directory = SpoolDirectory.look(ROOT, files=disk.process())
    return set_aside(
        directory, 0, position, lambda _t, _p, sent: [p for p in sent if p in absent], clock_ms=lambda: 5
    )


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_batch_is_set_aside_and_those_after_it_get_new_ids(which):
    """Or not, after a crash: at each moment it is in one place, and no sequence is missing before the next one."""
    disk, positions = stuck()
    before = len(disk.operations)
    path, topic, partition, records = aside(disk, positions[which], positions[which:])
    assert (path.parent.name, topic, partition, records) == ("rejected", "orders", 0, 1)
    values = [b"a", b"b", b"c"]
    untouched = ([(b"a", 0), (b"b", 1), (b"c", 2)], [])
    done = (
        [(v, n if n < which else -1) for n, v in enumerate(values) if n != which],
        [values[which]],
    )
    assert found_in(disk) == done
    seen = []
    for state in disk.crash_states(start=before, samples=3):
        seen.append(found_in(state.disk))
        assert seen[-1] in (untouched, done), state
    assert untouched in seen
    assert done in seen
    assert resend(disk).records == 1


def test_what_may_be_in_the_log_is_not_set_aside():
    disk, positions = stuck()
    for absent, why in (
        ([], "it may be in the cluster's log"),
        (positions[:2], f"the batch after it, at position {positions[2]}, may be"),
    ):
        with pytest.raises(SpoolError, match=f"stays where it is: {why}"):
            aside(disk, positions[0], absent)
    with pytest.raises(UsageError, match="no unfinished batch at position 77"):
        aside(disk, 77, positions)
    assert found_in(disk) == ([(b"a", 0), (b"b", 1), (b"c", 2)], [])
    lock = SpoolDirectory.look(ROOT, files=disk.process()).take_lane(0)
    with pytest.raises(LaneBusyError):
        aside(disk, positions[0], positions)
    lock.release()


def test_a_batch_of_an_atomic_batch_is_not_set_aside():
    """The other batches of the atomic batch waited for it for ever. If the brokers had all of them, they committed its
    records, and a resend sent these records again.
    """
    disk = Disk()
    directory = SpoolDirectory.open(ROOT, files=disk.process())
    lock = directory.take_lane()
    owner = Owner(directory.files, lock.path)
    marks = [ORDERS, m.State(1, 0, -1, -1, bytes(16)), m.Unit(bytes(16), 0, 2, "", ())]
    positions = owner.spool.write_group(marks, [(1, encoded(b"a")), (1, encoded(b"b"))], atomic=True)
    owner.spool.sync()
    directory.files.kill()
    with pytest.raises(SpoolError, match=r"belongs to an atomic batch.*spool abort"):
        aside(disk, positions[0], positions)
    assert found_in(disk) == ([(b"a", -1), (b"b", -1)], [])


@pytest.mark.parametrize("when", ["written", "opened", "opened, with a draft"])
def test_a_copy_that_cannot_be_deleted_is_not_resent_once_its_batch_is_delivered(when):
    """It was not rejected in the end, but its file looked so as soon as the log had no such batch any more."""
    disk = Disk()
    directory = SpoolDirectory.open(ROOT, files=disk.process())
    directory.bind_cluster("c1", drained=lambda: True)
    owner = Owner(directory.files, ROOT / "lane-000")
    (position,) = owner.accept(b"n")
    if when == "written":
        disk.fail("sync_directory", call=2)  # after those for the name of the new directory
        disk.fail("unlink", call=1, times=None)
        with pytest.raises(OSError, match="Input"):
            owner.keep(position)
    else:
        path = owner.keep(position)
        owner.files.kill()
        if when != "opened":  # the process died while it wrote the next portion
            disk.put(path.with_name(f"{int(path.stem) + 1:020d}.new"), b"half")
        disk.fail("unlink", times=None)
        owner = Owner(disk.process(), ROOT / "lane-000")
    assert [path for path in disk.files() if path.parent.name == "rejected" and path.suffix == ".log"]
    for name in owner.store.undeleted():
        owner.journal.disown(m.Resent("lane-000", name))
    marks = owner.journal.ready(0.0, 0).persist.marks
    owner.spool.write_group(marks, ())
    owner.spool.write_group([m.Committed(1, 0, ((position, 0),))], ())
    owner.spool.sync()
    owner.files.kill()
    disk.heal()
    found = resend(disk)
    assert (found.files, found.left) == ([], [])
    assert life(disk) == ([], [])
    assert not [path for path in disk.files() if path.parent.name == "rejected"]
    # What is rejected later has another name.
    owner = Owner(disk.process(), ROOT / "lane-000")
    owner.reject(*owner.accept(b"r"))
    assert len(marks) == 1
    owner.files.kill()
    assert life(disk) == ([], [b"r"])
