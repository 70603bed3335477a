"""A lane is the directory that was locked, wherever it is moved and whatever has its path since."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kafkasafe._io.files import OsFiles
from kafkasafe._io.lanes import SpoolDirectory
from kafkasafe.errors import SpoolError
from kafkasafe.testing.disk import Disk, DiskFiles

from .model import LANE, ROOT, Owner, open_lane, recover

AWAY = Path("/elsewhere")


def commits(owner: Owner, rng: random.Random, number: int) -> None:
    for _ in range(number):
        owner.commit([owner.group(rng, batches=2, size=300)])


def logs_at(disk: Disk, root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in disk.files() if path.is_relative_to(root))


def at_path(disk: Disk, root: Path):
    """Recover what stands in another directory, as its next owner does."""
    disk = disk.copy()
    if root != ROOT:
        disk.remove(ROOT)
        disk.move(root, ROOT)
    return recover(disk)


@pytest.mark.parametrize("seed", range(4))
def test_two_owners_never_write_into_one_directory(seed):
    """A deploy that moves one directory away and puts another one in its place: each owner stays in its own."""
    rng = random.Random(seed)
    disk = Disk()
    disk.put(Path("/other"), b"")
    one = Owner(disk, segment_bytes=1500)
    commits(one, rng, 4)
    disk.move(ROOT, AWAY)
    two = Owner(disk, segment_bytes=1500)
    for _ in range(6):
        commits(one, rng, 1)
        commits(two, rng, 1)
    assert one.spool.release(one.spool.segments[1][1]) > 0
    for owner, root in ((one, AWAY), (two, ROOT)):
        found = at_path(disk, root)
        assert found.spool.lane_id == owner.spool.lane_id
        first = found.spool.first_position
        assert found.items == [item for item in owner.promised if item[0] >= first]
        found.close()
    one.close()
    two.close()
    assert logs_at(disk, ROOT)[0] == logs_at(disk, AWAY)[0] == "FORMAT"


def test_a_lane_that_is_moved_while_it_is_taken_is_not_owned_by_its_path():
    class Moving(DiskFiles):
        times = 1

        def lock(self, handle: int) -> bool:
            if self.times and LANE / "lock" in disk.files():
                self.times -= 1
                disk.move(LANE, ROOT / f"moved-{self.times}")
            return super().lock(handle)

    disk = Disk()
    process = Moving(disk)
    directory = SpoolDirectory.open(ROOT, files=process)
    taken = directory.take_lane(0)
    assert process.times == 0
    assert SpoolDirectory.open(ROOT, files=disk.process()).is_owned(0)
    taken.release()
    process.times = 1000
    with pytest.raises(SpoolError, match="moved or deleted again and again"):
        directory.take_lane(0)
    assert process.open_handles == 0


def test_a_directory_that_is_deleted_takes_no_more_segments():
    disk = Disk()
    lock, spool, _ = open_lane(disk.process())
    disk.remove(ROOT)
    other, _, _ = open_lane(disk.process())
    with pytest.raises(SpoolError, match="No such file"):
        spool.write_group([], [])
    assert [name for name in logs_at(disk, LANE) if name.endswith(".log")] == []
    lock.release()
    other.release()


def test_a_lock_holds_no_directory_open_when_it_is_released(tmp_path):
    files = OsFiles()
    before = len(list(Path("/proc/self/fd").iterdir()))
    lock = SpoolDirectory.open(tmp_path, files=files).take_lane()
    lock.release()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
