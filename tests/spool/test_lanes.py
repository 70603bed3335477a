"""Who owns which lane: on real files, with real processes."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from kafkasafe import marks as m
from kafkasafe.errors import LaneBusyError, SpoolError, SpoolFormatError
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.siblings import Siblings
from kafkasafe.spool.spool import Spool
from kafkasafe.testing.disk import Disk, ProcessKilled

from .model import LANE, ROOT, Owner, encode, recover


def directory(path) -> SpoolDirectory:
    return SpoolDirectory.open(path, files=OsFiles())


def fill(lock) -> None:
    spool, _ = Spool.open(
        lock.path,
        files=lock.files,
        segment_bytes=4096,
        sync="group",
        snapshot=lambda: [m.Destination(1, "topic", 1)],
        clock_ms=lambda: 0,
    )
    spool.write_group((), [(1, bytearray(encode(1, 1, 1)))])
    spool.sync()
    spool.close()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Make room, or free inodes"),
        (errno.EDQUOT, "Make room, or free inodes"),
        (errno.EMFILE, "Raise the limit of open files (ulimit -n)"),
        (errno.EACCES, "It must be writable by this user"),
    ],
)
def test_a_directory_that_cannot_be_made_names_the_remedy(tmp_path, monkeypatch, number, remedy):
    """A volume without inodes, and a process without file handles, "must be writable by this user"."""

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(OsFiles, "make_directory", fail)
    with pytest.raises(SpoolError, match=re.escape(f"{os.strerror(number)}. {remedy}; ")):
        directory(tmp_path / "spool")


@contextlib.contextmanager
def other_process(path, *, lane="None", fill="False"):
    """A process that takes a lane, says so, and waits to be killed."""
    code = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        from kafkasafe import marks as m
        from kafkasafe.spool.files import OsFiles
        from kafkasafe.spool.lanes import SpoolDirectory
        from kafkasafe.spool.spool import Spool
        lock = SpoolDirectory.open(Path({str(path)!r}), files=OsFiles()).take_lane({lane})
        if {fill}:
            spool, _ = Spool.open(lock.path, files=OsFiles(), segment_bytes=4096, sync="group",
                                  snapshot=lambda: [], clock_ms=lambda: 0)
            spool.write_group([m.Granted(1, 1)], [])
            spool.sync()
        print(lock.number, flush=True)
        sys.stdin.read()
        """
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield child, int(child.stdout.readline())
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


def test_the_lowest_free_lane_is_taken(tmp_path):
    spools = directory(tmp_path)
    locks = [spools.take_lane() for _ in range(3)]
    assert [lock.number for lock in locks] == [0, 1, 2]
    assert all(lock.held for lock in locks)
    locks[1].release()
    assert not locks[1].held
    assert spools.take_lane().number == 1
    for lock in locks:
        lock.release()
        lock.release()
    assert spools.lanes() == [0, 1, 2]


def test_a_lane_of_a_live_process_is_refused_and_its_process_named(tmp_path):
    with other_process(tmp_path) as (child, number):
        assert number == 0
        spools = directory(tmp_path)
        with pytest.raises(LaneBusyError, match=f"process {child.pid}") as raised:
            spools.take_lane(0)
        assert raised.value.pid == child.pid
        assert spools.owners.is_owned(0)
        mine = spools.take_lane()
        assert mine.number == 1
        assert spools.dead_lanes() == []
        child.kill()
        child.wait()
        assert not spools.owners.is_owned(0)
        lock = spools.take_lane(0)
        assert spools.owners.owner(0)[0] == os.getpid()
        lock.release()
        assert spools.owners.owner(0) == (0, "")
        mine.release()


def test_two_processes_never_own_the_same_lane(tmp_path):
    with contextlib.ExitStack() as stack:
        numbers = [stack.enter_context(other_process(tmp_path))[1] for _ in range(3)]
        lock = directory(tmp_path).take_lane()
        assert [*numbers, lock.number] == [0, 1, 2, 3]
        lock.release()


def test_lanes_of_dead_processes_are_found_once_and_only_with_content(tmp_path):
    with other_process(tmp_path, fill="True") as (child, _), other_process(tmp_path) as (empty, _):
        spools = directory(tmp_path)
        mine = spools.take_lane()
        assert (mine.number, spools.dead_lanes()) == (2, [])
        for process in (child, empty):
            process.send_signal(signal.SIGKILL)
            process.wait()
        (dead,) = spools.dead_lanes()
        assert dead.number == 0
        assert dead.held
        assert spools.dead_lanes() == [], "owned by now: by us"
        dead.release()
        assert spools.dead_lanes() == [], "offered before, and as it was then"
        again = spools.take_lane(0)
        fill(again)
        again.release()
        (dead,) = spools.dead_lanes()
        dead.release()
        mine.release()


def test_a_forked_child_neither_holds_nor_releases_the_lock(tmp_path):
    spools = directory(tmp_path)
    lock = spools.take_lane()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        answer = b"bad"
        try:
            held = lock.held
            lock.release()
            with contextlib.suppress(LaneBusyError):
                spools.take_lane(0)
                held = True
            answer = b"bad" if held else b"ok."
        finally:
            os.write(writing, answer)
            # Wait for the parent to look: the lock must be free once the parent lets go of it.
            signal.alarm(20)
            signal.pause()
            os._exit(0)
    try:
        assert os.read(reading, 3) == b"ok."
        assert spools.owners.owner(0)[0] == os.getpid()
        with pytest.raises(LaneBusyError):
            directory(tmp_path).take_lane(0)
        assert lock.held
        lock.release()
        again = spools.take_lane(0)
        again.release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("where", ["file/spool", "file", "/proc/no-such-directory/spool"])
def test_a_directory_that_cannot_be_used_is_an_error_that_says_what_to_do(tmp_path, where):
    (tmp_path / "file").write_text("a file")
    with pytest.raises(SpoolError, match=r"cannot be used.*KAFKASAFE_SPOOL_DIR.*No record was accepted"):
        directory(tmp_path / where)


def test_a_directory_that_is_not_writable_is_an_error_that_says_what_to_do():
    disk = Disk()
    disk.put(ROOT / "FORMAT", b"kafkasafe-spool 1\n")
    disk.fail("make_directory", call=1, error=13)
    with pytest.raises(
        SpoolError, match=r"No lane .*Permission denied.*writable by this user.*none was lost"
    ):
        recover(disk)
    disk.fail("open", error=13)
    with pytest.raises(SpoolError, match=re.escape("KAFKASAFE_SPOOL_DIR")):
        recover(disk)


def test_a_directory_with_something_else_in_it_is_refused_and_not_touched(tmp_path):
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(SpoolFormatError, match=r"letters\.txt"):
        directory(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]


def test_what_a_new_file_system_holds_does_no_harm(tmp_path):
    (tmp_path / "lost+found").mkdir()
    assert directory(tmp_path).lanes() == []
    assert (tmp_path / "FORMAT").read_bytes() == b"kafkasafe-spool 1\n"


def test_a_process_killed_anywhere_while_a_spool_directory_is_made_leaves_one_that_works():
    """And what the next process writes there survives a loss of power, wherever the first one had got to."""
    for call in range(60):
        disk = Disk()
        fault = disk.fail(call=call, kill=True)
        with contextlib.suppress(ProcessKilled):
            Owner(disk).close()
        if not fault.hits:
            break
        owner = Owner(disk)
        owner.commit([owner.group(random.Random(call))])
        assert owner.check_crashes(samples=3, thorough=4) > 5
    else:
        raise AssertionError("never done")
    assert call > 10


def test_the_lock_is_free_when_opening_fails():
    disk = Disk()
    owner = Owner(disk)
    owner.close()
    disk.fail("truncate", error=13)
    with pytest.raises(SpoolError):
        SpoolDirectory.open(ROOT, files=disk.process()).take_lane()
    lock = SpoolDirectory.open(ROOT, files=disk.process()).take_lane()
    assert lock.path == LANE
    lock.release()


@pytest.mark.parametrize(
    "left",
    ["pid 7 host h since 2026-01-01T00:00:00Z client worker-1", "pid 7 ho", "", "\0" * 60],
    ids=["name", "host", "empty", "zeros"],
)
def test_a_power_cut_that_leaves_half_of_a_name_costs_nobody_a_lane(tmp_path, left):
    """What a lane's lock says is not synced: a beginning of a client id is no other client id."""
    spools = directory(tmp_path)
    spools.take_lane(client="worker-10").release()
    (tmp_path / "lane-000" / "lock").write_text(left)
    lock = spools.take_lane(client="worker-10")
    assert lock.number == 0
    lock.release()


def test_what_a_process_owns_itself_it_does_not_look_into():
    """Its own lane was listed, each of its files opened, and its lock tried, once a second."""
    disk = Disk()
    spools = SpoolDirectory.open(ROOT, files=disk.process())
    mine = spools.take_lane()
    before = disk.calls.copy()
    assert spools.dead_lanes(now=5.0, grace_s=1.0) == []
    assert disk.calls - before == {"list": 1}
    mine.release()
    assert not spools.owners.is_owned(mine.number)


def test_a_second_producer_that_asks_for_an_adopted_lane_does_not_take_back_the_first_ones_request():
    """The second one deleted the file with which the first one asked. So the first one did not get its lane: with
    `spool_lane` it failed after 20 s.
    """
    disk = Disk()
    owner = Owner(disk)
    owner.commit([owner.group(random.Random(1))])
    owner.close()
    sibling = SpoolDirectory.open(ROOT, files=disk.process())
    (adopted,) = sibling.dead_lanes()
    others = []

    def wait(_):
        if not others:
            second = SpoolDirectory.open(ROOT, files=disk.process())
            others.append(second.take_lane(client="app", wait=lambda _: None).number)
        if sibling.wanted(0):
            adopted.release()

    mine = SpoolDirectory.open(ROOT, files=disk.process()).take_lane(0, client="app", wait=wait)
    assert (mine.number, others) == (0, [1])
    assert not sibling.wanted(0)
    mine.release()


def test_lanes_that_could_not_be_adopted_have_no_owner_and_are_adopted_later():
    """The directory could be listed until a lane was locked, and then not: nobody drained the lane any more."""
    call = failures = 0
    while True:
        disk = Disk()
        spools = SpoolDirectory.open(ROOT, files=disk.process())
        for lock in [spools.take_lane(), spools.take_lane()]:
            fill(lock)
            lock.release()
        fault = disk.fail("list", call=call)
        try:
            found = spools.dead_lanes()
        except SpoolError:
            failures += 1
            disk.heal()
            assert not any(map(spools.owners.is_owned, (0, 1))), call
            found = spools.dead_lanes()
        disk.heal()
        found += spools.dead_lanes()
        assert sorted(lock.number for lock in found) == [0, 1], call
        for lock in found:
            lock.release()
        if not fault.hits:
            break
        call += 1
    assert failures > 4


def test_a_directory_that_this_user_may_not_enter_hides_no_records_in_others(tmp_path, monkeypatch):
    """`sudo` makes it, for example. Then nothing beside it was found, and its records waited for ever."""
    for name in ("shop-1", "shop-3"):
        lock = directory(tmp_path / name).take_lane()
        fill(lock)
        lock.release()
    directory(tmp_path / "shop-2")
    stat = Path.stat

    def refused(path, **options):
        if path.parent == tmp_path / "shop-2":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)
    found = Siblings(tmp_path / "shop-0", OsFiles()).look()
    assert [each.path.name for each in found] == ["shop-1", "shop-3"]


def test_the_longest_client_id_belongs_to_its_lane(tmp_path):
    """Only the first kilobyte of the text was read. So other clients took the lane."""
    spools = directory(tmp_path)
    client = "\N{SNOWMAN}" * 10_000
    lock = spools.take_lane(client=client)
    lock.announce(7)
    assert (spools.owners.client(0), spools.owners.begun(0)) == (client, 7)
    lock.release(drained=False)
    assert spools.owners.client(0) == client


def test_a_glance_at_the_owner_of_a_lane_refuses_the_lane_to_nobody(tmp_path):
    """1. A process finds out whether a lane has an owner: it locks the lane for a moment. 2. A producer takes it."""
    glances, tried = threading.Event(), threading.Event()

    class Slow(OsFiles):
        def lock(self, handle):
            taken = super().lock(handle)
            if Path(f"/proc/self/fd/{handle}").readlink().match("lane-000/lock"):
                glances.set()
                assert tried.wait(10)
            return taken

    class Seen(OsFiles):
        def lock(self, handle):
            taken = super().lock(handle)
            if not taken:
                tried.set()
            return taken

    lock = directory(tmp_path).take_lane(0)
    fill(lock)
    lock.release(drained=False)
    owners = SpoolDirectory.open(tmp_path, files=Slow()).owners
    glance = threading.Thread(target=owners.is_owned, args=(0,))
    glance.start()
    assert glances.wait(10)
    try:
        SpoolDirectory.open(tmp_path, files=Seen()).take_lane(0).release()
    finally:
        tried.set()
        glance.join()
