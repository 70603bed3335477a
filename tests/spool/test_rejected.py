"""rejected/: durable before its mark, in one place only whatever a crash does, and never in the way of a lane."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kafkasafe import marks as m
from kafkasafe.journal import Batch, Journal
from kafkasafe.journal.batch import Fault
from kafkasafe.record import batch as codec
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.inspection import missing, read_lane
from kafkasafe.spool.recovery import replay
from kafkasafe.spool.rejected import RejectedStore, data_of, read_rejected, retire, waits_of
from kafkasafe.spool.rejected_format import Refused, encode, most_bytes
from kafkasafe.spool.rejected_notes import read_notes
from kafkasafe.spool.spool import Spool
from kafkasafe.testing.disk import Disk

ROOT = Path("/spool")
LANE = ROOT / "lane-000"
TO = m.Destination(1, "orders", 2)
NOW = 1_700_000_000_000


def encoded(*values: bytes) -> bytearray:
    return codec.encode([None] * len(values), list(values), timestamps=NOW)


class Owner:
    """What the pump does with a lane, as far as rejecting goes."""

    def __init__(self, files, lane: Path = LANE) -> None:
        self.files = files
        files.make_directory(lane)
        self.journal = Journal()
        self.spool, entries = Spool.open(
            lane,
            files=files,
            segment_bytes=1 << 16,
            sync="group",
            snapshot=self.journal.snapshot,
            clock_ms=lambda: NOW,
        )
        replay(entries, self.journal)
        self.journal.recovery.recovered(0.0)
        self.waits = waits_of(self.journal)
        self.store = RejectedStore(files, lane, self.spool.lane_id)
        self.store.open(self.waits)

    def accept(self, *values: bytes) -> list[int]:
        positions = self.spool.write_group([TO], [(1, encoded(value)) for value in values])
        self.spool.sync()
        return positions

    def keep(self, *positions: int) -> Path:
        refused = [Refused(p, self.spool.read(p), 87, f"no key at {p}") for p in positions]
        return self.store.keep(refused, TO, cluster_id="c1", now_ms=NOW)

    def reject(self, *positions: int) -> None:
        self.keep(*positions)
        self.spool.write_group([m.Rejected(p, 87, f"no key at {p}") for p in positions], ())
        self.spool.sync()


def places(disk: Disk) -> tuple[list[bytes], list[bytes]]:
    """Values of the records that wait in the log, and of those that are rejected, after a recovery."""
    owner = Owner(disk.process())
    unfinished = sorted(batch.position for _, _, batch in owner.journal.views.batches())
    waiting = [codec.decode(owner.spool.read(p)).values[0] for p in unfinished]
    kept = read_rejected(owner.files, LANE, lane_id=owner.spool.lane_id, waits=owner.waits)
    rejected = []
    for file in kept:
        assert file.content is not None, file.error
        assert (file.content.topic, file.content.partition, file.content.cluster_id) == ("orders", 2, "c1")
        for entry in file.entries:
            assert (entry.code, entry.reason) == (87, f"no key at {entry.position}")
            rejected.append(codec.decode(data_of(owner.files, file.path, entry.position)).values[0])
    assert owner.store.records == len(rejected)
    assert missing(owner.files, LANE, read_notes(owner.files, LANE), ()) == ()
    assert not [p for p in disk.files() if p.suffix == ".new"]
    return waiting, rejected


def test_a_crash_at_any_moment_leaves_a_batch_in_one_place():
    disk = Disk()
    owner = Owner(disk.process())
    a, b, c = owner.accept(b"a", b"b", b"c")
    promised = len(disk.operations)
    owner.reject(b)
    first = len(disk.operations)
    owner.reject(a, c)
    ends = [(promised, set()), (first, {b"b"}), (len(disk.operations), {b"a", b"b", b"c"})]
    states = 0
    for state in disk.crash_states(samples=4):
        if state.at < promised:
            continue
        states += 1
        waiting, rejected = places(state.disk)
        assert sorted(waiting + rejected) == [b"a", b"b", b"c"], state
        said = next(kept for at, kept in reversed(ends) if state.at >= at)
        assert said <= set(rejected), state
        assert places(state.disk) == (waiting, rejected)  # looking again changes nothing
    assert states > 60


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("operation", ["create", "writev", "sync_data", "rename", "sync_directory", "unlink"])
def test_what_could_not_be_kept_is_not_said_to_be(operation, code):
    """It is tried again, and is there once."""
    for call in range(4):
        disk = Disk()
        owner = Owner(disk.process())
        (position,) = owner.accept(b"a")
        disk.fail(operation, call=call, error=code)
        failed = False
        try:
            owner.keep(position)
        except OSError as error:
            failed = True
            assert error.errno == code  # noqa: PT017 - not every call has a fault to meet
            assert owner.store.records == 0
        disk.heal()
        if failed:
            owner.store.tidy()
            assert not [p for p in disk.files() if p.suffix == ".log" and p.parent.name == "rejected"]
            for state in disk.crash_states(samples=2):
                if state.at == len(disk.operations):
                    assert places(state.disk) == ([b"a"], [])
            owner.keep(position)
        owner.spool.write_group([m.Rejected(position, 87, "")], ())
        owner.spool.sync()
        assert owner.store.records == 1
        assert places(disk.crash()) == ([], [b"a"])


def test_names_ascend_and_are_not_used_again():
    disk = Disk()
    owner = Owner(disk.process())
    first, second, third = owner.accept(b"a", b"b", b"c")
    one = owner.keep(first)
    disk.put(LANE / "rejected" / "08999999999999999999.log", b"")  # later than the clock
    two = owner.keep(second)
    owner.files.unlink(one)
    three = owner.keep(third)
    assert one.name < two.name < three.name
    assert two.name.startswith("0900000")


def test_the_name_of_a_file_that_a_mark_makes_void_is_not_used_again():
    """The clock was set back, so the name follows from the newest file. Then the disk fails."""
    disk = Disk()
    owner = Owner(disk.process())
    first, second = owner.accept(b"a", b"b")
    owner.files.make_directory(LANE / "rejected")
    disk.put(LANE / "rejected" / "08999999999999999999.log", b"")  # later than the clock
    owner.keep(first)
    disk.fail("sync_directory", call=1, times=None)  # the file may have its name, and may not be gone
    with pytest.raises(OSError, match="Input/output"):
        owner.keep(second)
    (void,) = owner.store.undeleted()
    disk.heal()
    assert owner.keep(second).name > void


def test_the_name_of_a_file_that_was_resent_is_not_used_again():
    """The lane that got its records back deletes the file of this name once more, if it is opened again."""
    disk = Disk()
    owner = Owner(disk.process())
    first, second = owner.accept(b"a", b"b")
    owner.files.make_directory(LANE / "rejected")
    disk.put(LANE / "rejected" / "08999999999999999999.log", b"")  # later than the clock
    resent = owner.keep(first)
    owner.files.unlink(resent)
    owner.store.refresh()
    assert owner.keep(second).name > resent.name


def test_the_name_of_a_file_that_was_resent_is_not_used_again_by_the_next_owner():
    """1. The clock is behind, and a file of an earlier time is left. Another file is kept, and resent to another lane.
    2. The lane's next owner keeps a file. Its clock is behind as well.
    3. The owner of the other lane deletes the file that was resent once more, because its mark is still there.
    """
    disk = Disk()
    owner = Owner(disk.process())
    first, second = owner.accept(b"a", b"b")
    owner.files.make_directory(LANE / "rejected")
    disk.put(LANE / "rejected" / "08999999999999999999.log", b"")  # later than the clock
    mark = m.Resent(LANE.name, owner.keep(first).name)
    retire(disk.process(), ROOT, mark)
    kept = Owner(disk.process()).keep(second)
    retire(disk.process(), ROOT, mark)
    assert kept in disk.files()


def test_what_is_not_whole_is_reported_and_in_nobodys_way(tmp_path):
    files = OsFiles()
    lane = tmp_path / "lane-000"
    owner = Owner(files, lane)
    a, b, c = owner.accept(b"a", b"b", b"c")
    for position in (a, b, c):
        owner.reject(position)
    whole, half, flipped = sorted((lane / "rejected").iterdir())
    assert whole.stat().st_mode & 0o777 == 0o600
    assert whole.parent.stat().st_mode & 0o777 == 0o700
    half.write_bytes(half.read_bytes()[:-20])
    content = bytearray(flipped.read_bytes())
    content[-3] ^= 1
    flipped.write_bytes(content)
    (lane / "rejected" / "00000000000000000007.log").write_bytes(b"")
    log = read_lane(lane, files=files)
    found = read_rejected(files, lane, lane_id=log.lane_id, waits={})
    assert [bool(kept.error) for kept in found] == [True, False, True, True]
    assert [kept.records for kept in found] == [0, 1, 0, 0]
    assert len(RejectedStore(files, lane, owner.spool.lane_id).open({})) == 3
    # Something else in its place.
    other = tmp_path / "other"
    stranger = Owner(files, other)
    (other / "rejected").write_bytes(b"")
    (position,) = stranger.accept(b"a")
    with pytest.raises(OSError, match="rejected"):
        stranger.keep(position)
    (found,) = read_rejected(files, other, lane_id=None, waits={})
    assert "NotADirectoryError" in found.error


def test_a_directory_that_was_made_anew_does_not_hide_what_an_old_one_rejected():
    """Positions begin again; a batch at the same one is another."""
    disk = Disk()
    owner = Owner(disk.process())
    (position,) = owner.accept(b"a")
    owner.reject(position)
    for path in disk.files():
        if path.parent == LANE:
            owner.files.unlink(path)
    heir = Owner(disk.process())
    assert heir.accept(b"b") == [position]
    assert places(disk) == ([b"b"], [b"a"])


def test_given_partitions_go_along():
    owner = Owner(Disk().process())
    position, other = owner.accept(b"1", b"2")
    refused = [
        Refused(other, owner.spool.read(other), 3, "no topic"),
        Refused(position, owner.spool.read(position), 3, "no topic", ((0, 1, 7),)),
    ]
    owner.store.keep(refused, m.Destination(1, "orders", -1), cluster_id="", now_ms=NOW)
    (file,) = read_rejected(owner.files, LANE, lane_id=owner.spool.lane_id, waits={})
    assert [entry.given for entry in file.entries] == [None, ((0, 1, 7),)]


@pytest.mark.parametrize("reason", ["", "x", "Fehler: größer" * 40, "x" * 70_000])
@pytest.mark.parametrize("given", [None, (), tuple((i * 7, 3, 2**31 - 1) for i in range(300))])
@pytest.mark.parametrize("count", [1, 300])
def test_no_batch_takes_more_of_its_file_than_is_counted(reason, given, count):
    def file(number: int) -> int:
        refused = [Refused(2**62, encoded(b"v"), 2**15 - 1, reason, given) for _ in range(number)]
        return sum(map(len, encode(refused, TO, lane_id=b"x" * 16, cluster_id="c" * 100, now_ms=NOW)))

    batch = Batch(1, 1, 1, len(encoded(b"v")), NOW, 2**62, given=given, fault=Fault(message=reason))
    assert file(count) - file(0) <= count * most_bytes(batch) <= (file(count) - file(0)) * 1.3
