"""A lane is the directory that was locked, wherever it is moved and whatever has its path since."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kafkasafe.errors import SpoolError, SpoolFormatError
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.lanes import SpoolDirectory
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
    process = Moving(disk, disk._medium)
    directory = SpoolDirectory.open(ROOT, files=process)
    taken = directory.take_lane(0)
    assert process.times == 0
    assert SpoolDirectory.open(ROOT, files=disk.process()).owners.is_owned(0)
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


def test_what_has_the_name_of_a_segment_and_is_another_file_is_never_deleted():
    rng = random.Random(3)
    disk = Disk()
    owner = Owner(disk, segment_bytes=1500)
    commits(owner, rng, 6)
    path, _, size = owner.spool.segments[0]
    disk.move(path, path.with_suffix(".log.1"))  # logrotate
    process = disk.process()
    handle = process.create(path)
    process.writev(handle, [b"not ours"], 0)
    assert not owner.spool.in_place
    assert owner.release(owner.spool.segments[2][1]) > 0
    assert disk.files()[path] == b"not ours"
    # The same where it is restored, and where it has the name of the next segment.
    second = owner.spool.segments[0][0]
    disk.move(second, second.with_suffix(".log.1"))
    process.writev(process.create(second), [b"nor this"], 0)
    assert owner.spool.restore() == []
    assert owner.spool.in_place
    following = LANE / f"{owner.spool.next_position:020d}.log"
    process.writev(process.create(following), [b"nor that"], 0)
    owner.spool._writer.leave()
    commits(owner, rng, 1)
    kept = {content for path, content in disk.files().items() if path.suffix == ".found"}
    assert kept == {b"nor this", b"nor that"}
    assert size > 0
    disk.remove(path)
    owner.close()
    found = recover(disk.copy())
    first = found.spool.first_position
    assert found.items == [item for item in owner.promised if item[0] >= first]
    found.close()


def test_a_segment_that_was_being_written_again_means_nothing():
    disk = Disk()
    owner = Owner(disk)
    commits(owner, random.Random(1), 2)
    disk.put(LANE / f"{7:020d}.new", b"half a segment")
    owner.files.kill()
    owner.open()
    assert LANE / f"{7:020d}.new" not in disk.files()
    owner.close()
    assert recover(disk.copy()).items == owner.promised


def test_a_directory_of_lanes_without_its_format_is_a_spool_directory():
    """`rm DIR/*` deletes its files, and leaves the lanes: no reason to refuse what is in them."""
    disk = Disk()
    owner = Owner(disk)
    commits(owner, random.Random(1), 2)
    owner.close()
    disk.remove(ROOT / "FORMAT")
    assert recover(disk).items == owner.promised
    disk.put(ROOT / "notes.txt", b"")
    disk.remove(ROOT / "FORMAT")
    with pytest.raises(SpoolFormatError, match=r"notes\.txt"):
        recover(disk)
