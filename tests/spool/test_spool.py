"""Writing, reading back, rolling, releasing; and failures of every single call of the disk."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import random
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from programs import python
from tiers import in_tiers

from kafkasafe import marks as m
from kafkasafe.errors import SpoolError, SpoolWriteError
from kafkasafe.spool import files as files_module
from kafkasafe.spool import segment_writer, spool
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.spool import Spool
from kafkasafe.testing.disk import Disk, DiskFiles, ProcessKilled

from .model import Group, Owner, encode, patiently, recover

# -- round trip ------------------------------------------------------------------------------------------------------


def write_some(owner: Owner, commits: int, seed: int = 0) -> None:
    rng = random.Random(seed)
    for _ in range(commits):
        owner.commit([owner.group(rng, batches=rng.randint(0, 3), size=300)])


@pytest.mark.parametrize("sync", ["group", "os"])
def test_what_was_written_is_found_again_over_many_segments(sync):
    disk = Disk()
    owner = Owner(disk, segment_bytes=2000, sync=sync)
    write_some(owner, 30)
    segments = owner.spool.segments
    assert len(segments) > 5
    assert all(path.name == f"{first:020d}.log" for path, first, _ in segments)
    assert owner.spool.used_bytes == sum(len(disk.files()[path]) for path, _, _ in segments)
    owner.close()
    for _ in range(2):
        owner.open()  # compares
        owner.close()
    found = recover(disk)
    assert found.items == owner.promised
    found.close()


def test_the_cache_is_dropped_only_up_to_what_is_synced(monkeypatch):
    monkeypatch.setattr(segment_writer, "_CACHED_BYTES", 1000)
    dropped = []
    monkeypatch.setattr(DiskFiles, "drop_cache", lambda _self, handle, size: dropped.append((handle, size)))
    owner = Owner(Disk(), segment_bytes=10_000)
    rng = random.Random(0)
    owner.commit([owner.group(rng, size=600)])
    owner.spool.drop_cache()
    assert dropped == [], "a system call for each small write would cost more than it gives"
    owner.commit([owner.group(rng, size=600)])
    owner.write(owner.group(rng, size=600))
    owner.spool.drop_cache()
    assert dropped == [], "the last group is not synced"
    owner.sync()
    owner.spool.drop_cache()
    owner.spool.drop_cache()
    assert [size for _, size in dropped] == [owner.spool.used_bytes]
    first = len(owner.spool.segments)
    while len(owner.spool.segments) == first:
        owner.commit([owner.group(rng, batches=3, size=600)])
    owner.spool.drop_cache()
    (_, before), (_, size) = dropped
    assert size < before + 10_000
    assert size == owner.spool.used_bytes - sum(bytes_ for *_, bytes_ in owner.spool.segments[:-1])
    owner.close()


def test_what_the_system_dropped_from_its_cache_is_read_again(tmp_path):
    files = OsFiles()
    handle = files.create(tmp_path / "segment")
    content = bytes(range(256)) * 1000
    files.writev(handle, [content], 0)
    files.drop_cache(handle, len(content))  # a mistake, but nothing is lost
    files.sync_data(handle)
    files.drop_cache(handle, 0)
    files.drop_cache(handle, len(content))
    assert files.read(handle, 0, len(content)) == content
    files.close(handle)
    files.drop_cache(handle, len(content))


def test_a_segment_of_small_batches_ends_before_it_is_large(monkeypatch):
    """What is known of them stays in memory as long as it does."""
    monkeypatch.setattr(spool, "_MOST_BATCHES", 10)
    disk = Disk()
    owner = Owner(disk, segment_bytes=1_000_000)
    write_some(owner, 60)
    counts = [len(segment.batches) for segment in owner.spool._segments]
    assert len(counts) > 5
    assert all(10 <= count < 13 for count in counts[:-1])
    owner.close()
    owner.open()
    owner.close()


def test_every_segment_stands_alone_once_those_before_it_are_released():
    disk = Disk()
    owner = Owner(disk, segment_bytes=2000)
    write_some(owner, 30)
    while len(owner.spool.segments) > 1:
        second = owner.spool.segments[1][1]
        assert owner.release(second - 1) == 0
        assert owner.release(second) > 0
        copy = recover(disk.copy())
        assert copy.items == [item for item in owner.promised if item[0] >= second]
        copy.close()
    assert owner.release(owner.spool.next_position) == 0, "the last segment stays"
    owner.close()


def test_release_retains_at_least_what_it_is_told_to():
    disk = Disk()
    owner = Owner(disk, segment_bytes=2000)
    write_some(owner, 30)
    sizes = [size for _, _, size in owner.spool.segments[:-1]]
    for retain in (10**9, 6000, 2000, 1):
        owner.release(owner.spool.next_position, retain)
        kept = [size for _, _, size in owner.spool.segments[:-1]]
        assert sum(kept) >= min(retain, sum(sizes))
        assert sum(kept[1:]) < retain
    owner.release(owner.spool.next_position)
    assert len(owner.spool.segments) == 1
    owner.close()


def test_a_segment_is_not_released_before_what_replaces_it_is_durable():
    disk = Disk()
    owner = Owner(disk, segment_bytes=700)
    rng = random.Random(0)
    owner.commit([owner.group(rng, size=600)])
    while len(owner.spool.segments) < 2:
        assert owner.write(owner.group(rng, size=600))
    assert owner.release(owner.spool.next_position) == 0
    assert owner.sync()
    assert owner.release(owner.spool.next_position) > 0
    owner.close()


def test_a_group_larger_than_a_segment_is_divided_unless_it_is_atomic():
    disk = Disk()
    owner = Owner(disk, segment_bytes=2000)
    batches = tuple((1, encode(number, 1, 700)) for number in range(8))
    declared = (m.Destination(1, "topic", 1),)
    owner.commit([Group(declared, batches)])
    assert len(owner.spool.segments) > 3
    number = len(owner.spool.segments)
    again = tuple((1, encode(100 + number, 1, 700)) for number in range(8))
    owner.commit([Group((), again, atomic=1)])
    assert len(owner.spool.segments) == number + 1
    owner.close()
    owner.open()
    owner.close()
    owner.check_crashes(samples=2)


@pytest.mark.parametrize("segment_bytes", [1 << 20, 1500])
def test_groups_that_are_written_together_are_the_bytes_of_groups_written_one_by_one(
    segment_bytes, monkeypatch
):
    monkeypatch.setattr("os.urandom", bytes)  # the lane's id
    logs, writes = [], []
    for together in (False, True):
        disk = Disk()
        owner = Owner(disk, segment_bytes=segment_bytes)
        owner.commit([Group((m.Destination(1, "topic", 1),), ())])
        before = disk.calls["writev"]
        for number in range(1, 21):
            data = [(1, bytearray(encode(number, 2, 60)))]
            owner.spool.write_group((), data, atomic=True, more=together and number < 20)
        writes.append(disk.calls["writev"] - before)
        owner.spool.sync()
        owner.close()
        logs.append({path: content for path, content in disk.files().items() if path.suffix == ".log"})
    assert logs[0] == logs[1]
    assert (len(logs[0]) == 1) is (segment_bytes > 1500)
    if segment_bytes > 1500:
        assert writes == [20, 1]


def test_a_group_that_is_to_be_followed_is_not_promised_alone():
    owner = Owner(Disk())
    owner.spool.write_group([m.Destination(1, "topic", 1)], [(1, bytearray(encode(1, 1, 10)))], more=True)
    with pytest.raises(SpoolError, match="to follow"):
        owner.spool.sync()


def test_an_empty_spool_leaves_no_segment_and_says_so():
    disk = Disk()
    owner = Owner(disk)
    assert owner.spool.next_position == 0
    assert owner.spool.sync() == 0
    assert owner.spool.release(5) == 0
    owner.close()
    owner.spool.close()
    with pytest.raises(SpoolError, match="closed"):
        owner.spool.write_group((), ())
    assert [path for path in disk.files() if path.suffix == ".log"] == []


# -- faults at every call --------------------------------------------------------------------------------------------


def scenario(disk: Disk) -> Owner:
    """Several commits, releases and a restart; whatever fails is done again, as the contract says."""
    rng = random.Random(5)
    owner = patiently(lambda: Owner(disk, segment_bytes=1200))
    for number in range(7):
        owner.commit([owner.group(rng, batches=rng.randint(1, 3), size=200)])
        if number in {3, 5}:
            patiently(lambda: owner.release(owner.spool.segments[-1][1]))
        if number == 4:
            with contextlib.suppress(SpoolWriteError):
                owner.spool.close()
            owner.lock.release()
            patiently(owner.open)
    return owner


FAULTS = [
    {"error": errno.EIO, "partial": 0.5},
    {"error": errno.ENOSPC, "partial": 0.0},
    {"error": errno.EIO, "partial": 1.0, "times": 2},
]


def calls() -> int:
    disk = Disk()
    scenario(disk).close()
    return sum(disk.calls.values())


@pytest.mark.parametrize("kind", in_tiers(len(FAULTS), fast=1))
def test_after_a_fault_at_any_call_nothing_is_lost_or_doubled(kind):
    struck = 0
    for call in range(calls() + 10):
        disk = Disk()
        fault = disk.fail(call=call, **FAULTS[kind])
        owner = scenario(disk)
        struck += fault.hits > 0
        disk.heal()
        expected = owner.promised
        after = recover(disk.crash(seed=call))
        assert after.items == [item for item in expected if item[0] >= after.spool.segments[0][1]]
        assert len({what for _, what in after.items}) == len(after.items)
        after.close()
        owner.close()
        assert recover(disk.copy()).items == after.items
    assert struck > 100


def test_short_writes_are_completed():
    for call in range(12):
        disk = Disk()
        disk.fail("writev", call=call, error=0, partial=call / 12, times=3)
        owner = scenario(disk)
        owner.close()
        assert recover(disk.copy()).items[-1] == owner.promised[-1]


def test_a_full_disk_loses_nothing_and_goes_on_when_there_is_room():
    for capacity in range(400, 4000, 150):
        disk = Disk()
        owner = Owner(disk, segment_bytes=1500)
        owner.commit([Group((m.Destination(1, "topic", 1),), ((1, encode(0, 1, 1)),))])
        disk.capacity_bytes = disk.used_bytes + capacity
        failed = None
        for number in range(1, 40):
            group = Group((), ((1, encode(number, 2, 150)),))
            if not (owner.write(group) and owner.sync()):
                failed = group
                break
        assert failed is not None
        for _ in range(3):
            assert not (owner.rewrite() and owner.sync())
        waiting = [group for group, _ in owner.waiting]
        left = recover(disk.copy())
        assert left.items[: len(owner.promised)] == owner.promised
        left.close()
        disk.capacity_bytes += 5000
        assert owner.rewrite()
        assert owner.sync()
        owner.close()
        found = recover(disk.crash())
        assert found.items == owner.promised
        assert [what for _, what in found.items][-len(waiting) :] == [g.items[0].what for g in waiting]
        found.close()


def test_an_error_says_which_lane_why_and_what_to_do():
    disk = Disk()
    owner = Owner(disk)
    disk.fail("writev", error=errno.ENOSPC)
    with pytest.raises(SpoolWriteError, match=r"lane-000.*No space left.*make room"):
        owner.spool.write_group((), [])
    owner.files.kill()
    disk.fail(
        "read", call=2
    )  # after the directory's format, and who had the lane last, which may stay unknown
    with pytest.raises(SpoolError, match=r"lane-000 cannot be opened.*Nothing in it was lost"):
        recover(disk)


# -- real files ------------------------------------------------------------------------------------------------------


def open_real(path):
    return Spool.open(
        path,
        files=OsFiles(),
        segment_bytes=4096,
        sync="group",
        snapshot=lambda: [m.Destination(1, "topic", 1)],
        clock_ms=lambda: 0,
    )


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_what_could_be_reserved_only_in_part_is_given_back(tmp_path, monkeypatch, code):
    """With a quota, it kept what was left of the quota for one segment, and no other file of the user got room."""
    files = OsFiles()
    reserve = files_module._fallocate

    def runs_out(handle, mode, offset, size):
        reserve(handle, mode, offset, size // 2)
        ctypes.set_errno(code)
        return -1

    path = tmp_path / "segment"
    handle = files.create(path)
    files.writev(handle, [b"x" * 4096], 0)
    before = path.stat().st_blocks
    if not files.preallocate(handle, 1 << 20) or path.stat().st_blocks == before:
        pytest.skip("This file system reserves no space")
    files.truncate(handle, 4096)
    monkeypatch.setattr(files_module, "_fallocate", runs_out)
    assert not files.preallocate(handle, 1 << 20)
    assert path.stat().st_blocks == before
    assert files.read(handle, 0, 5000) == b"x" * 4096
    files.close(handle)


def test_real_files_round_trip(tmp_path):
    spool, entries = open_real(tmp_path)
    assert entries == []
    written = {}
    for number in range(50):
        data = bytearray(encode(number, 3, 200))
        (position,) = spool.write_group((), [(1, data)])
        written[position] = bytes(data)
        spool.sync()
    assert len(spool.segments) > 5
    spool.close()
    spool, entries = open_real(tmp_path)
    assert {position: bytes(spool.read(position)) for position in written} == written
    freed = spool.release(spool.segments[-1][1])
    assert freed > 0
    assert len(list(tmp_path.glob("*.log"))) == 1
    spool.close()


def test_a_real_file_size_limit_is_a_write_error_and_loses_nothing(tmp_path):
    """As a quota or a full disk does: the write is short, then refused with an error (not a signal)."""
    code = textwrap.dedent(
        f"""
        import resource, signal, sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from pathlib import Path
        from spool.test_spool import open_real
        from spool.model import encode
        from kafkasafe.errors import SpoolWriteError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        spool, _ = open_real(Path({str(tmp_path)!r}))
        failed = 0
        for number in range(40):
            data = bytearray(encode(number, 1, 300))
            for attempt in range(3):
                try:
                    spool.write_group((), [(1, data)])
                    spool.sync()
                    break
                except SpoolWriteError:
                    failed += 1
            else:
                raise SystemExit("not written")
        print(failed)
        spool.close()
        """
    )
    result = python("-c", code, timeout=60)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 3
    spool, entries = open_real(tmp_path)
    values = [bytes(spool.read(e.position)) for e in entries if hasattr(e, "header")]
    assert len(values) == len(set(values)) == 40
    assert all(size <= 2000 for _, _, size in spool.segments)
    spool.close()


# -- state machine with bursts ---------------------------------------------------------------------------------------


class SpoolMachine(RuleBasedStateMachine):
    """Everything an owner, the disk and fate can do, in any order, in bursts."""

    @initialize(segment_bytes=st.sampled_from([700, 2000, 10_000]), seed=st.integers(0, 1000))
    def start(self, segment_bytes, seed):
        self.rng = random.Random(seed)
        self.owner = Owner(Disk(), segment_bytes=segment_bytes)

    def guarded(self, action):
        """Do it; a process that dies over it is replaced."""
        try:
            action()
        except ProcessKilled:
            self.owner.note()
            self.restart()

    def restart(self):
        self.owner.disk.heal()
        self.owner.files.kill()
        self.owner.open()

    @rule(
        groups=st.lists(st.tuples(st.integers(0, 4), st.sampled_from([5, 300, 1500])), min_size=1, max_size=6)
    )
    def burst(self, groups):
        written = [self.owner.group(self.rng, batches=batches, size=size) for batches, size in groups]
        self.guarded(lambda: self.owner.commit(written))

    @rule(count=st.integers(1, 12))
    def each_with_its_own_sync(self, count):
        for _ in range(count):
            group = self.owner.group(self.rng)
            self.guarded(lambda group=group: self.owner.commit([group]))

    @rule(back=st.integers(0, 200), retain=st.sampled_from([0, 0, 1000]))
    def release(self, back, retain):
        def action():
            with contextlib.suppress(SpoolError):
                self.owner.release(self.owner.spool.next_position - back, retain)

        self.guarded(action)

    @rule(
        operation=st.sampled_from(
            [
                None,
                "writev",
                "writev",
                "sync_data",
                "sync_data",
                "create",
                "sync_directory",
                "unlink",
                "truncate",
            ]
        ),
        call=st.integers(0, 8),
        times=st.integers(1, 3),
        error=st.sampled_from([errno.EIO, errno.ENOSPC]),
    )
    def fault(self, operation, call, times, error):
        if operation is not None:
            self.owner.disk.fail(operation, call=call, times=times, error=error)

    @rule(call=st.integers(0, 15))
    def deadly_fault(self, call):
        self.owner.disk.fail(call=call, kill=True)

    @rule()
    def kill(self):
        self.restart()

    @rule()
    def close_and_reopen(self):
        with contextlib.suppress(SpoolWriteError):
            self.guarded(self.owner.close)
        self.restart()

    @rule(seed=st.integers(0, 100))
    def power_goes(self, seed):
        """The books go on with what is left."""
        old = self.owner
        found = recover(old.disk.crash(seed=seed))
        old.compare(found.items, found.spool, old.expected(len(old.disk.operations)))
        found.close()
        disk = found.disk.copy()
        self.owner = Owner.__new__(Owner)
        self.owner.__dict__ |= old.__dict__
        self.owner.disk = disk
        self.owner.promised = found.items
        self.owner.tails = [()]
        self.owner.history = []
        self.owner.note()
        self.owner.open()

    @invariant()
    def positions_have_no_holes(self):
        if hasattr(self, "owner") and self.owner.spool.segments:
            firsts = [first for _, first, _ in self.owner.spool.segments]
            assert firsts == sorted(set(firsts))
            assert self.owner.spool.synced_position <= self.owner.spool.next_position

    def teardown(self):
        if hasattr(self, "owner"):
            self.restart()
            self.owner.close()


SpoolMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSpoolMachine = SpoolMachine.TestCase
