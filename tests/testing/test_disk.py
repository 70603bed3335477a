"""The double of the disk: does what an operating system does, and loses what a disk may lose, and no more."""

from __future__ import annotations

import errno
import itertools
import random
import shutil
from pathlib import Path

import pytest

from kafkasafe.spool.files import DirectoryFiles, Files, OsFiles, WholeFiles
from kafkasafe.spool.memory_files import MemoryFiles
from kafkasafe.testing.disk import SECTOR_BYTES, Disk, Fault, ProcessKilled, SyncData

ROOT = Path("/spool")
FILE = ROOT / "file"


@pytest.fixture
def disk():
    disk = Disk()
    disk.put(FILE, b"old")
    return disk


def states(disk, samples=60):
    return [state.disk.files() for state in disk.crash_states(start=len(disk.operations), samples=samples)]


def contents(disk, samples=60):
    return {files.get(FILE) for files in states(disk, samples)}


def script(files: Files, root: Path, seed: int) -> list[object]:
    """Random calls; what each gave."""
    rng = random.Random(seed)
    seen: list[object] = [files.make_directory(root / "a" / "b"), files.make_directory(root / "a")]
    handles: list[int] = []

    def call(what, *args, **kwargs):
        try:
            result = what(*args, **kwargs)
        except OSError as error:
            result = error.errno
        seen.append(sorted(result) if isinstance(result, list) else result)
        return result

    for _ in range(60):
        path = root / rng.choice("axy")
        number = rng.randrange(100)
        handle = rng.choice(handles) if handles else None
        match rng.randrange(10):
            case 0 | 1:
                opens = (files.create, (path,), {}) if number < 40 else (files.open, (path,), {"write": True})
                try:
                    handles.append(opens[0](*opens[1], **opens[2]))
                    seen.append("open")
                except OSError as error:
                    seen.append(error.errno)
            case 2:
                if path.name != "a":
                    handles.append(files.open(path, write=True, create=True))
            case 3 | 4 if handle is not None:
                call(files.writev, handle, [b"one", bytearray(number), memoryview(b"two")], number)
            case 5 if handle is not None:
                call(files.truncate, handle, number)
                call(files.preallocate, handle, 4096)
            case 6 if handle is not None:
                call(files.read, handle, number, number)
                buffer = bytearray(b"." * number)
                call(files.read_into, handle, number, buffer)
                seen.append(bytes(buffer))
                call(files.size, handle)
                call(files.lock, handle)
            case 7 if handle is not None:
                call(files.sync_data, handle)
                if number < 50:
                    handles.remove(handle)
                    files.close(handle)
            case 8:
                if path.name != "a":
                    call(files.unlink, path)
            case 9:
                call(files.rename, root / "x", root / "y")
                call(files.list, root)
                call(files.list, root / "nothing")
                call(files.sync_directory, root)
            case _:
                pass
    for handle in handles:
        files.close(handle)
    return seen


@pytest.mark.parametrize("seed", range(30))
def test_it_answers_as_the_operating_system_does(tmp_path, seed):
    disk = Disk()
    disk.put(ROOT / "z", b"")
    real = tmp_path / "spool"
    real.mkdir()
    (real / "z").touch()
    assert script(disk.process(), ROOT, seed) == script(OsFiles(), real, seed)
    left = {path.relative_to(ROOT): content for path, content in disk.files().items()}
    assert left == {p.relative_to(real): p.read_bytes() for p in real.rglob("*") if p.is_file()}


def directories_script(files: Files, root: Path, move, remove, seed: int) -> list[object]:
    """Random calls relative to directories that are held open, while others move and delete them; what each gave."""
    rng = random.Random(seed)
    seen: list[object] = []
    for name in ("a", "b"):
        files.make_directory(root / name)
    held = [files.open_directory(root / name) for name in ("a", "b")]
    opened: list[int] = []

    def call(what, *args, **kwargs):
        try:
            result = what(*args, **kwargs)
        except OSError as error:
            result = error.errno
        seen.append((what.__name__, sorted(result) if isinstance(result, list) else result))
        return result

    def same(*names: object) -> None:
        """Which of these names lead to the same file or directory, and which of them to one that is held."""
        at = rng.choice(held)
        found = [files.identity_of(path, at=at) for path in (Path("x"), Path("y"), Path("d"), Path())]
        found += [files.identity_of(root / name) for name in ("a", "b", "c", "a/x", "b/x", "c/d/x")]
        found += [files.identity(handle) for handle in (*held, *opened)]
        at_path = [files.path_of(handle) for handle in held]
        seen.append([path and path.relative_to(root) for path in at_path])
        seen.append([found.index(each) if each is not None else None for each in found])

    for _ in range(50):
        at, other = rng.choice(held), rng.choice(held)
        names = [Path(name) for name in ("x", "y", "d/x")]
        source, target = rng.choice(names), rng.choice(names)
        match rng.randrange(14):
            case 0 | 1:
                handle = call_open(seen, files.create, source, at=at)
                opened += [handle] if handle is not None else []
            case 2:
                handle = call_open(seen, files.open, source, write=True, create=True, at=at)
                opened += [handle] if handle is not None else []
            case 3:
                call(files.unlink, source, at=at)
            case 4:
                call(files.rename, source, target, at=at, to=other)
            case 5:
                call(files.list, Path(), at=at)
                call(files.list, root)
            case 6:
                call(files.make_directory, Path("d"), at=at)
            case 7:
                call(files.sync_directory, Path(), at=at)
            case 8 if opened:
                handle = rng.choice(opened)
                call(files.writev, handle, [b"some"], files.size(handle))
                call(files.sync_data, handle)
                call(files.read, handle, 0, 99)
            case 9 | 10:
                call(move, root / rng.choice("abc"), root / rng.choice("abc"))
            case 11:
                call(remove, root / rng.choice(["a", "b", "c", "a/x", "b/d"]))
            case 12:
                handle = call_open(seen, files.open_directory, root / rng.choice("abc"))
                held += [handle] if handle is not None else []
            case 13:
                call(files.rename, root / rng.choice("abc"), Path("d"), to=at)
            case _:
                pass
        same()
    for handle in (*held, *opened):
        files.close(handle)
    return seen


def call_open(seen, what, *args, **kwargs):
    try:
        handle = what(*args, **kwargs)
    except OSError as error:
        seen.append(error.errno)
        return None
    seen.append("open")
    return handle


@pytest.mark.parametrize("seed", range(60))
def test_directories_are_moved_and_deleted_as_the_operating_system_does_it(tmp_path, seed):
    def move(source, target):
        source.rename(target)

    def remove(path):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    disk = Disk()
    disk.put(ROOT / "z", b"")
    real = tmp_path / "spool"
    real.mkdir()
    (real / "z").touch()
    expected = directories_script(OsFiles(), real, move, remove, seed)
    assert directories_script(disk.process(), ROOT, disk.move, disk.remove, seed) == expected
    left = {path.relative_to(ROOT): content for path, content in disk.files().items()}
    assert left == {p.relative_to(real): p.read_bytes() for p in real.rglob("*") if p.is_file()}


@pytest.mark.parametrize("seed", range(30))
def test_files_in_memory_answer_as_the_operating_system_does(tmp_path, seed):
    memory = MemoryFiles()
    memory.make_directory(ROOT)
    for files, root in ((memory, ROOT), (OsFiles(), tmp_path)):
        files.close(files.create(root / "z"))
    assert script(memory, ROOT, seed) == script(OsFiles(), tmp_path, seed)


@pytest.mark.parametrize("files", [OsFiles(), MemoryFiles()])
def test_whole_files_are_read_into_the_same_memory_and_views_of_a_former_one_stay_as_they_are(
    tmp_path, files
):
    reader, whole = WholeFiles(files), {}
    files.make_directory(tmp_path)
    for number, size in enumerate((3, 1_000_000, 0, 999_999, 2, 1_000_001, 1_100_000, 1_000_000)):
        path = tmp_path / str(number)
        whole[path] = random.Random(number).randbytes(size)
        handle = files.create(path)
        files.writev(handle, [whole[path]], 0)
        files.close(handle)
    used = set()
    for path, content in whole.items():
        found = reader.read(path)
        assert found == content
        used.add(id(found))
    assert len(used) < len(whole)
    with memoryview(reader.read(tmp_path / "3")) as former:
        assert reader.read(tmp_path / "7") == whole[tmp_path / "7"]
        assert former == whole[tmp_path / "3"]
    with pytest.raises(FileNotFoundError):
        reader.read(tmp_path / "missing")
    assert reader.read(tmp_path / "1") == whole[tmp_path / "1"]


@pytest.mark.parametrize("seed", range(10))
def test_paths_below_a_directory_that_is_held_lead_to_it_wherever_it_is(tmp_path, seed):
    plain, held = tmp_path / "plain", tmp_path / "held"
    for root in (plain, held):
        root.mkdir()
        (root / "z").touch()
    below = OsFiles()
    files = DirectoryFiles(below, held, below.open_directory(held))
    held.rename(tmp_path / "elsewhere")
    held.mkdir()  # another one has the name
    assert script(files, held, seed) == script(below, plain, seed)
    assert [p.name for p in held.iterdir()] == []
    moved = {p.relative_to(tmp_path / "elsewhere") for p in (tmp_path / "elsewhere").rglob("*")}
    assert moved == {p.relative_to(plain) for p in plain.rglob("*")}
    # What is not below it is where it is.
    assert files.identity_of(plain / "z") == below.identity_of(plain / "z")
    assert files.identity_of(held) == below.identity_of(tmp_path / "elsewhere")
    assert files.free_bytes(held) > 0


def test_synced_data_is_there_in_every_state(disk):
    files = disk.process()
    handle = files.open(FILE, write=True)
    files.writev(handle, [b"new!"], 0)
    files.sync_data(handle)
    assert contents(disk) == {b"new!"}
    assert len(states(disk)) == 1


def test_unsynced_data_is_there_or_not_in_any_combination_of_sectors(disk):
    disk.put(FILE, b"a" * 3 * SECTOR_BYTES)
    files = disk.process()
    handle = files.open(FILE, write=True)
    files.writev(handle, [b"b" * 3 * SECTOR_BYTES], 0)
    whole = {
        "".join(chr(content[at]) for at in range(0, len(content), SECTOR_BYTES))
        for content in contents(disk, 300)
        if len({content[at : at + SECTOR_BYTES] for at in range(0, len(content), SECTOR_BYTES)}) <= 2
    }
    assert whole == {"".join(some) for some in itertools.product("ab", repeat=3)}


def test_the_size_is_updated_or_not_whatever_the_data_does(disk):
    files = disk.process()
    handle = files.open(FILE, write=True)
    files.writev(handle, [b"new"], 3)
    assert {b"old", b"oldnew", b"old\0\0\0"} <= contents(disk, 200)
    assert all(content.startswith(b"old") for content in contents(disk))


def test_a_write_is_torn_at_any_byte(disk):
    files = disk.process()
    handle = files.open(FILE, write=True)
    files.writev(handle, [b"456789"], 3)
    assert {b"old456789"[:n] for n in range(3, 10)} <= contents(disk, 300)


def test_what_was_cut_off_may_be_back(disk):
    files = disk.process()
    handle = files.open(FILE, write=True)
    files.truncate(handle, 1)
    assert contents(disk) == {b"o", b"old"}
    files.sync_data(handle)
    assert contents(disk) == {b"o"}


@pytest.mark.parametrize("synced", [False, True])
def test_a_new_name_is_there_for_sure_only_after_its_directory_was_synced(disk, synced):
    files = disk.process()
    files.sync_data(files.create(ROOT / "new"))
    if synced:
        files.sync_directory(ROOT)
    assert {ROOT / "new" in found for found in states(disk)} == ({True} if synced else {True, False})


@pytest.mark.parametrize("synced", [False, True])
def test_a_deleted_name_is_gone_for_sure_only_after_its_directory_was_synced(disk, synced):
    files = disk.process()
    files.unlink(FILE)
    if synced:
        files.sync_directory(ROOT)
    assert contents(disk) == ({None} if synced else {None, b"old"})


def test_a_rename_is_atomic(disk):
    disk.put(ROOT / "draft", b"new")
    files = disk.process()
    files.rename(ROOT / "draft", FILE)
    found = states(disk)
    assert {frozenset(state.items()) for state in found} == {
        frozenset({(FILE, b"new")}),
        frozenset({(FILE, b"old"), (ROOT / "draft", b"new")}),
    }


@pytest.mark.parametrize("synced", [ROOT, Path("/other")])
def test_a_move_between_directories_is_atomic_and_durable_when_one_of_them_is_synced(disk, synced):
    other = Path("/other")
    disk.put(other / "there", b"")
    disk.put(ROOT / "d" / "inside", b"kept")
    files = disk.process()
    files.rename(ROOT / "d", other / "e")
    at = {frozenset(path for path in state if path.name == "inside") for state in states(disk)}
    before, after = frozenset({ROOT / "d" / "inside"}), frozenset({other / "e" / "inside"})
    assert at == {before, after}
    files.sync_directory(synced)
    assert {after} == {frozenset(p for p in s if p.name == "inside") for s in states(disk)}


def test_what_others_delete_is_gone_for_sure_only_when_its_directories_are_synced(disk):
    disk.put(ROOT / "d" / "inside", b"kept")
    files = disk.process()
    handle, folder = files.open(ROOT / "d" / "inside"), files.open_directory(ROOT / "d")
    disk.remove(ROOT)
    assert disk.files() == {}
    assert {frozenset(state) for state in states(disk)} >= {
        frozenset(),
        frozenset({FILE, ROOT / "d" / "inside"}),
    }
    # A process that has it open reads it, and can create nothing there.
    assert files.read(handle, 0, 9) == b"kept"
    for call in (files.create, files.make_directory):
        with pytest.raises(FileNotFoundError):
            call(Path("new"), at=folder)
    assert files.list(Path(), at=folder) == []


def test_a_volume_that_is_mounted_hides_what_was_there(disk):
    files = disk.process()
    handle, folder = files.open(FILE, write=True), files.open_directory(ROOT)
    disk.mount(ROOT)
    assert files.list(ROOT) == []
    assert files.list(Path(), at=folder) == ["file"]
    files.writev(handle, [b"new"], 0)
    files.sync_data(handle)
    with pytest.raises(OSError) as raised:
        files.rename(Path("file"), ROOT / "file", at=folder)
    assert raised.value.errno == errno.EXDEV
    handle = files.create(ROOT / "on the volume")
    files.sync_directory(ROOT)
    assert files.identity_of(ROOT) != files.identity(folder)
    assert states(disk) == [{ROOT / "on the volume": b""}]
    disk.unmount(ROOT)
    assert files.identity_of(ROOT) == files.identity(folder)
    assert states(disk) == [{FILE: b"new"}]


def test_names_are_lost_in_any_combination(disk):
    files = disk.process()
    for name in "abc":
        files.create(ROOT / name)
    found = {"".join(sorted(p.name for p in state if p != FILE)) for state in states(disk, 300)}
    assert found == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}


def test_a_new_directory_goes_with_all_that_is_in_it():
    disk = Disk()
    files = disk.process()
    disk.fail("sync_directory", call=1, kill=True)
    with pytest.raises(ProcessKilled):
        files.make_directory(ROOT)
    files = disk.process()
    handle = files.create(FILE)
    files.sync_data(handle)
    files.sync_directory(ROOT)
    assert {} in states(disk)
    files.make_directory(ROOT)
    assert states(disk) == [{FILE: b""}]


def test_data_stays_in_doubt_after_a_failed_sync_until_it_is_written_again(disk):
    files = disk.process()
    handle = files.open(FILE, write=True)
    files.writev(handle, [b"new"], 0)
    disk.fail("sync_data")
    with pytest.raises(OSError) as raised:
        files.sync_data(handle)
    assert raised.value.errno == errno.EIO
    assert files.read(handle, 0, 9) == b"new"
    files.sync_data(handle)
    assert {b"old", b"new"} <= contents(disk)
    files.writev(handle, [b"x"], 0)
    files.sync_data(handle)
    assert {b"xld", b"xew"} <= contents(disk)
    files.writev(handle, [b"new"], 0)
    files.sync_data(handle)
    assert contents(disk) == {b"new"}
    assert [op.ok for op in disk.operations if isinstance(op, SyncData)] == [False, True, True, True]


def test_every_moment_of_the_history_is_visited(disk):
    files = disk.process()
    handle = files.open(FILE, write=True)
    for number in range(5):
        files.writev(handle, [b"%d" % number], number)
        files.sync_data(handle)
    seen = list(disk.crash_states(samples=1))
    assert sorted({state.at for state in seen}) == list(range(11))
    assert all(state.disk.files()[FILE].startswith(b"01234"[: state.at // 2]) for state in seen)
    assert [s.disk.files() for s in seen] == [s.disk.files() for s in disk.crash_states(samples=1)]
    assert all(state.disk.operations == [] for state in seen)


def test_what_a_state_goes_through_does_not_touch_the_others(disk):
    files = disk.process()
    files.writev(files.open(FILE, write=True), [b"new"], 0)
    for state in disk.crash_states():
        process = state.disk.process()
        process.unlink(FILE)
    assert disk.files() == {FILE: b"new"}
    assert disk.crash(seed=1).files().keys() == {FILE}
    copy = disk.copy()
    assert states(copy) == [{FILE: b"new"}]


def test_faults_strike_the_nth_call_and_as_often_as_they_say(disk):
    files = disk.process()
    handle = files.open(FILE, write=True)
    fault = disk.fail("writev", call=1, error=errno.ENOSPC, times=2, partial=0.5)
    assert files.writev(handle, [b"abcd"], 0) == 4
    for _ in range(2):
        with pytest.raises(OSError) as raised:
            files.writev(handle, [b"ABCD"], 0)
        assert raised.value.errno == errno.ENOSPC
    assert fault.hits == 2
    assert disk.files()[FILE] == b"ABcd"
    assert files.writev(handle, [b"abcd"], 0) == 4
    disk.fail("writev", error=0, partial=0)
    assert files.writev(handle, [b"xyz"], 0) == 1
    disk.fail(times=None)
    for _ in range(3):
        with pytest.raises(OSError):
            files.list(ROOT)
    assert not files.preallocate(handle, 10)
    disk.heal()
    assert files.list(ROOT) == ["file"]
    assert disk.calls["writev"] == 5
    assert Fault().error == errno.EIO
    with pytest.raises(ValueError, match="writev"):
        disk.fail(error=0)


def test_a_killed_process_lets_go_of_all_and_runs_no_more(disk):
    files = disk.process()
    handle = files.open(FILE, write=True)
    assert files.lock(handle)
    disk.fail("writev", kill=True)
    with pytest.raises(ProcessKilled):
        files.writev(handle, [b"xyz!"], 0)
    for call in (files.close, files.sync_data, files.size, lambda h: files.truncate(h, 0)):
        with pytest.raises(ProcessKilled):
            call(handle)
    assert files.open_handles == 0
    other = disk.process()
    again = other.open(FILE, write=True)
    assert other.lock(again)
    assert other.read(again, 0, 9) == b"xyd"
    assert b"old" in contents(disk)


def test_a_lock_belongs_to_one_handle(disk):
    one, two = disk.process(), disk.process()
    first, second, third = one.open(FILE), one.open(FILE), two.open(FILE)
    assert one.lock(first)
    assert one.lock(first)
    assert not one.lock(second)
    assert not two.lock(third)
    one.close(second)
    assert not two.lock(third)
    one.close(first)
    assert two.lock(third)


def test_a_full_disk_takes_what_fits_and_then_nothing(disk):
    disk.capacity_bytes = 10
    files = disk.process()
    handle = files.open(FILE, write=True)
    assert files.free_bytes(ROOT) == 7
    assert not files.preallocate(handle, 11)
    assert files.preallocate(handle, 10)
    assert files.free_bytes(ROOT) == 0
    other = files.create(ROOT / "other")
    with pytest.raises(OSError) as raised:
        files.writev(other, [b"x"], 0)
    assert raised.value.errno == errno.ENOSPC
    assert files.writev(handle, [b"0123456789abc"], 0) == 10
    assert files.writev(handle, [b"9876543210"], 0) == 10
    files.unlink(FILE)
    assert disk.used_bytes == 10
    files.close(handle)
    assert disk.used_bytes == 0
    assert files.writev(other, [b"x"], 0) == 1


def test_damage_is_durable(disk):
    disk.flip(FILE, 0, 0xFF)
    assert contents(disk) == {bytes([ord("o") ^ 0xFF]) + b"ld"}


def test_wrong_use_is_an_error_of_the_operating_system(disk):
    disk.put(Path("/volume/hidden"), b"")
    disk.mount(Path("/volume"))
    files = disk.process()
    handle = files.open(FILE)
    for code, call in [
        (errno.EBADF, lambda: files.writev(handle, [b"x"], 0)),
        (errno.EBADF, lambda: files.read(99, 0, 1)),
        (errno.EBADF, lambda: files.close(99)),
        (errno.ENOENT, lambda: files.open(ROOT / "none")),
        (errno.EISDIR, lambda: files.open(ROOT)),
        (errno.EEXIST, lambda: files.create(FILE)),
        (errno.ENOTDIR, lambda: files.make_directory(FILE / "x")),
        (errno.EXDEV, lambda: files.rename(FILE, Path("/volume/file"))),
        (errno.EISDIR, lambda: files.rename(FILE, Path("/volume"))),
        (errno.EINVAL, lambda: disk.move(ROOT, ROOT / "spool")),
        (errno.ENOTDIR, lambda: files.open_directory(FILE)),
        (errno.ENOTDIR, lambda: files.open(Path("file"), at=handle)),
        (errno.EBADF, lambda: files.open(Path("file"), at=99)),
    ]:
        with pytest.raises(OSError) as raised:
            call()
        assert raised.value.errno == code
