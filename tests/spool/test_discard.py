"""Rejected records that are given up, and those that something deleted: whatever a crash does, one is told from the other."""

from __future__ import annotations

import pytest

import kafkasafe.maintenance.discard as discarding
from kafkasafe.errors import SpoolError
from kafkasafe.maintenance.resend import bring_back
from kafkasafe.spool.inspection import inspect, missing
from kafkasafe.spool.lanes import SpoolDirectory, lane_name
from kafkasafe.spool.rejected_notes import FOLDER, mark_discarded, read_notes
from kafkasafe.testing.disk import Disk

from .test_rejected import ROOT, Owner
from .test_resend import REJECTED, WAITING, life, prepared


def given_up(disk: Disk, *topics: str) -> None:
    directory = SpoolDirectory.look(ROOT, files=disk.process())
    with directory.resending():
        discarding.discard(directory, discarding.find_discardable(directory, directory.lanes(), topics))


def told(disk: Disk) -> tuple[int, int, int]:
    """(records rejected, discarded, missing) of all lanes, as `kafkasafe spool ls` tells them."""
    directory = SpoolDirectory.look(ROOT, files=disk.process())
    found = [inspect(directory.lane_path(number), files=directory.files) for number in directory.lanes()]
    lanes = [directory.lane_path(number) for number in directory.lanes()]
    lost = [missing(directory.files, lane, read_notes(directory.files, lane), ()) for lane in lanes]
    assert [len(each.rejected_missing) for each in found] == [len(each) for each in lost]
    return (
        sum(each.records for lane in found for each in lane.rejected),
        sum(each.rejected_discarded for each in found),
        sum(len(each) for each in lost),
    )


def test_what_is_discarded_is_neither_rejected_nor_missing():
    disk = prepared()
    assert told(disk) == (5, 0, 0)
    given_up(disk, "other")
    assert told(disk) == (4, 1, 0)
    given_up(disk)
    assert told(disk) == (0, 5, 0)
    assert life(disk) == (WAITING, [])
    given_up(disk)
    assert told(disk) == (0, 5, 0)


def test_a_crash_at_any_moment_of_a_discard_leaves_a_record_rejected_or_discarded():
    disk = prepared()
    before = len(disk.operations)
    given_up(disk)
    states = 0
    for state in disk.crash_states(samples=4):
        if state.at < before:
            continue
        states += 1
        rejected, _, lost = told(state.disk)
        assert lost == 0, state
        waiting, kept = life(state.disk)
        assert (waiting, len(kept)) == (WAITING, rejected), state
        given_up(state.disk)
        assert told(state.disk) == (0, 5, 0), state
    assert states > 30
    assert told(disk.crash()) == (0, 5, 0), "durable on return"


def test_a_file_that_something_deleted_is_missing_until_that_is_discarded():
    disk = prepared()
    files = disk.process()
    for path in sorted(disk.files()):
        if path.parent.name == "rejected":
            files.unlink(path)
            files.sync_directory(path.parent)
    assert told(disk) == (0, 0, 4)
    for number in range(2):  # a producer that opens the lane changes nothing about that
        Owner(disk.process(), ROOT / lane_name(number)).spool.close()
    assert told(disk) == (0, 0, 4)
    given_up(disk)
    assert told(disk) == (0, 5, 0)


def test_what_an_earlier_version_rejected_has_no_note_until_a_producer_starts():
    disk = prepared()
    files = disk.process()
    for path in sorted(disk.files()):
        if path.parent.name == FOLDER:
            files.unlink(path)
    (first, *others) = [path for path in sorted(disk.files()) if path.parent.name == "rejected"]
    files.unlink(first)
    assert told(disk) == (3, 0, 0)
    life(disk)
    files.unlink(others[0])
    assert told(disk)[2] == 1
    given_up(disk)
    assert told(disk) == (0, 3, 0)


def test_what_is_discarded_half_can_still_be_resent():
    disk = prepared()
    directory = SpoolDirectory.look(ROOT, files=disk.process())
    for each in discarding.find_discardable(directory, directory.lanes()):
        mark_discarded(directory.files, each.lane, each.name, each.records)
    assert told(disk)[0] == 5
    bring_back(directory, clock_ms=lambda: 5)
    assert sorted(life(disk)[0]) == sorted(WAITING + REJECTED)
    assert told(disk) == (0, 0, 0)


def test_what_is_resent_is_not_missing_before_anything_else_is_done():
    disk = prepared()
    bring_back(SpoolDirectory.look(ROOT, files=disk.process()), clock_ms=lambda: 5)
    assert told(disk) == (0, 0, 0)


def test_what_a_discard_cannot_write_is_kept():
    disk = prepared()
    disk.fail("rename", call=1)
    with pytest.raises(SpoolError, match=r"cannot be discarded: .* The remaining files are kept"):
        given_up(disk)
    disk.heal()
    rejected, _, lost = told(disk)
    assert (rejected > 0, lost) == (True, 0)


def test_what_its_log_has_unfinished_is_not_discarded():
    """Between the file and its mark: the batch is not rejected yet."""
    disk = Disk()
    directory = SpoolDirectory.open(ROOT, files=disk.process())
    lock = directory.take_lane(0)
    owner = Owner(directory.files, lock.path)
    (position,) = owner.accept(b"a")
    path = owner.keep(position)
    assert discarding.find_discardable(directory, [0]) == []
    given_up(disk)
    assert path in disk.files()


def test_a_lane_that_is_gone_has_nothing_to_discard():
    """Another command has pruned it since the lanes were listed."""
    disk = prepared()
    directory = SpoolDirectory.look(ROOT, files=disk.process())
    numbers = [*directory.lanes(), 77]
    found = discarding.find_discardable(directory, numbers)
    assert found == discarding.find_discardable(directory, directory.lanes())
