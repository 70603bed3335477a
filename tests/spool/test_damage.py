"""Damage in a closed spool: found, told, copied aside; it costs what it hit and nothing else."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafkasafe._core import batch as codec
from kafkasafe._core import marks as m
from kafkasafe._io.inspection import inspect
from kafkasafe._io.recovery import scan
from kafkasafe.errors import SpoolCorruptError, SpoolError, SpoolFormatError
from kafkasafe.testing.disk import Disk

from .model import LANE, ROOT, Group, Owner, encode, recover

DECLARED = [m.Destination(number, "topic", number) for number in (1, 2, 3)]


@dataclass
class Closed:
    """A closed spool, and what each of its bytes belongs to."""

    disk: Disk
    items: list
    groups: list[tuple[Path, int, int, list[int]]]
    """(segment, start, end, positions) of each control batch and of all its group."""
    batches: list[tuple[Path, int, int, int]]
    end: tuple[Path, int]
    """Where the last group begins: it says only that the spool was closed."""


def closed_spool(seed: int) -> Closed:
    disk = Disk()
    owner = Owner(disk, segment_bytes=1500)
    rng = random.Random(seed)
    owner.declare(DECLARED)
    for _ in range(9):
        owner.commit([owner.group(rng, batches=rng.randint(0, 3), size=200)])
    owner.close()
    disk = disk.copy()
    found = recover(disk)
    assert found.items == owner.promised
    batches = [
        (segment.path, stored.at, stored.at + stored.size_bytes, position)
        for segment in scan(disk.process(), LANE).segments
        for position, stored in segment.batches.items()
    ]
    groups = []
    for path, _, size in found.spool.segments:
        content, at = disk.files()[path], 0
        while at < size:
            header = codec.read_header(content, at)
            group, marks = m.decode_group(content[at : at + header.size_bytes])
            positions = [group.position] * bool(marks) + [entry.position for entry in group.manifest]
            groups.append((path, at, at + header.size_bytes, positions))
            at += header.size_bytes + sum(entry.size_bytes for entry in group.manifest)
    found.close()
    return Closed(disk.copy(), found.items, groups, batches, groups[-1][:2])


@pytest.fixture(scope="module", params=[0, 1])
def closed(request):
    return closed_spool(request.param)


def lost_with(closed: Closed, path: Path, byte: int) -> set[int]:
    """Positions that damage of this byte may cost."""
    for segment, start, end, position in closed.batches:
        if segment == path and start <= byte < end:
            return {position}
    for index, (segment, start, end, positions) in enumerate(closed.groups):
        if segment == path and start <= byte < end:
            lost = set(positions) & {at for at, _ in closed.items}  # not the marks of a snapshot
            if index == 0:
                # The first snapshot declares the destinations; up to the next one nobody knows what they mean.
                for other, _, _, more in closed.groups:
                    if other == path:
                        lost |= set(more)
                lost &= {at for at, what in closed.items if what[0] == "batch"}
            return lost
    raise AssertionError("a byte that belongs to nothing")


def test_every_flipped_bit_is_found_and_costs_what_it_hit(closed):
    rng = random.Random(7)
    segments = [path for path in closed.disk.files() if path.suffix == ".log"]
    assert len(segments) >= 3
    for _ in range(250):
        path = rng.choice(segments)
        byte = rng.randrange(len(closed.disk.files()[path]))
        disk = closed.disk.copy()
        disk.flip(path, byte, 1 << rng.randrange(8))
        damaged = disk.files()
        if path == closed.end[0] and byte >= closed.end[1]:
            # It says only that the spool was closed, and ends with so many zeros that it may look as a crash leaves it.
            with contextlib.suppress(SpoolCorruptError):
                found = recover(disk)
                assert found.items == closed.items
                found.close()
            continue
        with pytest.raises(SpoolCorruptError) as raised:
            recover(disk)
        assert raised.value.damage
        assert path.name in str(raised.value)
        assert {p: c for p, c in disk.files().items() if p.suffix == ".log"} == {
            p: c for p, c in damaged.items() if p.suffix == ".log"
        }, "refusing must not change anything"
        found = recover(disk, on_corrupt="quarantine", snapshot=lambda: DECLARED)
        kept = [item for item in found.items if item[1][0] != "lost"]
        lost = {at for at, _ in closed.items} - {at for at, _ in kept}
        assert kept == [item for item in closed.items if item[0] not in lost], (
            "a record that was never written"
        )
        assert lost == lost_with(closed, path, byte)
        assert len(found.items) > len(kept), "skipped without a word"
        aside = {p: c for p, c in disk.files().items() if p.parent.name == "quarantine"}
        ranges = {p: (int(p.stem.split("-")[1]), c) for p, c in aside.items() if p.name.startswith(path.stem)}
        assert all(c == damaged[path][start : start + len(c)] for start, c in ranges.values())
        assert any(start <= byte < start + len(c) for start, c in ranges.values())
        # Told once: the next life finds the same, and goes on where this one was.
        found.spool.write_group([m.Rejected(1, 1, "after")], [(1, bytearray(encode(1, 2, 3)))])
        found.spool.sync()
        found.close()
        again = recover(disk.crash())
        assert again.items[:-2] == found.items
        assert again.items[-2][1] == ("marks", (m.Rejected(1, 1, "after"),))
        again.close()


def test_a_segment_that_is_missing_is_damage(closed):
    segments = sorted(path for path in closed.disk.files() if path.suffix == ".log")
    disk = closed.disk.copy()
    disk.process().unlink(segments[1])
    with pytest.raises(SpoolCorruptError, match=segments[0].name):
        recover(disk)
    found = recover(disk, on_corrupt="quarantine")
    at = int(segments[1].stem), int(segments[2].stem)
    assert [i for i in found.items if i[1][0] != "lost"] == [
        i for i in closed.items if not at[0] <= i[0] < at[1]
    ]
    found.close()


@pytest.mark.parametrize("cut", [1, 100, 10_000])
def test_a_segment_that_lost_its_end_is_damage(closed, cut):
    path = sorted(path for path in closed.disk.files() if path.suffix == ".log")[1]
    disk = closed.disk.copy()
    content = disk.files()[path]
    disk.put(path, content[: max(0, len(content) - cut)])
    with pytest.raises(SpoolCorruptError, match=path.name):
        recover(disk)
    found = recover(disk, on_corrupt="quarantine")
    kept = [item for item in found.items if item[1][0] != "lost"]
    assert 0 < len(kept) < len(closed.items)
    assert all(item in closed.items for item in kept)
    assert kept[-1] == closed.items[-1]
    found.close()


def test_groups_that_went_with_the_end_of_a_segment_are_told_as_lost_groups(closed):
    """Their marks are gone too: who takes that for one lost batch would decide by what they revoked."""
    path = sorted(path for path in closed.disk.files() if path.suffix == ".log")[1]
    size = len(closed.disk.files()[path])
    groups = [(start, end, positions) for segment, start, end, positions in closed.groups if segment == path]
    for length in range(0, size, 7):
        disk = closed.disk.copy()
        disk.put(path, disk.files()[path][:length])
        found = recover(disk, on_corrupt="quarantine")
        missing = [positions for start, end, positions in groups if end > length]
        blind = [at for at, what in found.items if what == ("lost", 0)]
        assert bool(blind) >= bool(missing), length
        found.close()


def test_a_batch_put_in_the_place_of_another_is_damage():
    disk = Disk()
    owner = Owner(disk)
    one, two = encode(1, 2, 50), encode(2, 2, 50)
    assert len(one) == len(two)
    owner.commit([Group((m.Destination(1, "topic", 1),), ((1, one), (1, two)))])
    owner.commit([Group((), ((1, encode(3, 1, 1)),))])
    owner.close()
    segment = scan(disk.process(), LANE).segments[0]
    (first, stored), (_, other), _ = sorted(segment.batches.items())
    content = bytearray(disk.files()[segment.path])
    moved = content[other.at : other.at + other.size_bytes]
    codec.stamp_address(moved, first, 1)
    content[stored.at : stored.at + stored.size_bytes] = moved
    disk.put(segment.path, bytes(content))
    with pytest.raises(SpoolCorruptError):
        recover(disk)
    found = recover(disk, on_corrupt="quarantine")
    assert [what[0] for _, what in found.items] == ["lost", "batch", "batch"]
    found.close()


def test_damage_while_the_spool_is_open_is_found_when_the_batch_is_read():
    disk = Disk()
    owner = Owner(disk)
    owner.commit([Group((m.Destination(1, "topic", 1),), ((1, encode(1, 2, 50)),))])
    position = owner.promised[-1][0]
    disk.flip(owner.spool.segments[0][0], -1)
    with pytest.raises(SpoolCorruptError) as raised:
        owner.spool.read(position)
    assert len(raised.value.damage) == 1
    with pytest.raises(SpoolError, match="no batch"):
        owner.spool.read(position + 1)
    owner.close()


def killed_spool(batches: list[bytes], *, segment_bytes: int = 1 << 20) -> tuple[Disk, Owner]:
    """Each in a group of its own, made durable, and never closed: of the last one no group says that it is."""
    disk = Disk()
    owner = Owner(disk, segment_bytes=segment_bytes)
    owner.declare(DECLARED)
    for content in batches:
        owner.commit([Group((m.Rejected(1, 7, "why"),), ((1, content),))])
    owner.files.kill()
    return disk.copy(), owner


def text(number: int, size: int, compression: codec.Compression = codec.Compression.NONE) -> bytes:
    value = bytes(random.Random(number).choices(range(1, 256), k=size))
    return bytes(codec.encode(None, [value], timestamps=1_700_000_000_000 + number, compression=compression))


def test_damage_in_the_last_groups_of_a_killed_owner_is_no_torn_tail():
    """What it was promised is told as damaged, also where no later group proves that it was durable."""
    rng = random.Random(3)
    for number, size in enumerate((1, 40, 300, 700, 5000)):
        disk, owner = killed_spool([text(10 * number + i, size) for i in range(2)])
        path = next(path for path in disk.files() if path.suffix == ".log")
        content = disk.files()[path]
        (_, second) = sorted(scan(disk.process(), LANE).segments[0].batches.items())
        for _ in range(40):
            byte = rng.randrange(second[1].at - 60, len(content))
            bit = 1 << rng.randrange(8)
            hurt = disk.copy()
            hurt.flip(path, byte, bit)
            if hurt.files()[path][byte] == 0 or content[byte] == 0:
                continue  # may look like what a crash leaves: see the next test
            with pytest.raises(SpoolCorruptError, match=path.name):
                recover(hurt)
            found = recover(hurt, on_corrupt="quarantine", snapshot=lambda: DECLARED)
            kept = [item for item in found.items if item[1][0] != "lost"]
            assert kept == owner.promised[: len(kept)]
            assert 2 <= len(kept) < 4
            assert len(found.items) > len(kept), "skipped without a word"
            # What comes next has other positions, so that the next life finds the same.
            found.spool.write_group([m.Rejected(1, 1, "after")], [(1, bytearray(encode(1, 2, 3)))])
            found.spool.sync()
            found.close()
            again = recover(hurt.crash())
            assert again.items[:-2] == found.items
            again.close()


def test_sectors_that_are_missing_are_a_torn_write():
    disk, owner = killed_spool([text(1, 100), text(2, 3000)])
    path = next(path for path in disk.files() if path.suffix == ".log")
    whole = disk.files()[path]
    (_, second) = sorted(scan(disk.process(), LANE).segments[0].batches.items())
    rng = random.Random(5)
    sectors = list(range(second[1].at, len(whole), 512))
    for missing in [[at] for at in sectors] + [rng.sample(sectors, rng.randint(1, 6)) for _ in range(20)]:
        content = bytearray(whole)
        for at in missing:
            start = max(at - at % 512, second[1].at)
            end = min(at - at % 512 + 512, len(whole))
            content[start:end] = bytes(end - start)
        torn = disk.copy()
        torn.put(path, bytes(content))
        found = recover(torn)
        assert found.items == owner.promised[:3]
        found.close()


def test_a_segment_overwritten_with_something_else_is_damage():
    disk, _ = killed_spool([text(1, 100)])
    path = next(path for path in disk.files() if path.suffix == ".log")
    for other in (b"something else\n" * 20, random.Random(1).randbytes(1000), b"x" * 30):
        hurt = disk.copy()
        hurt.put(path, other)
        with pytest.raises(SpoolCorruptError, match=path.name):
            recover(hurt)
        assert hurt.files()[path] == other


def test_what_is_cut_off_is_kept():
    """A beginning of a group: nothing was promised of it, but who knows."""
    disk, owner = killed_spool([text(1, 100), text(2, 3000)])
    path = next(path for path in disk.files() if path.suffix == ".log")
    whole = disk.files()[path]
    for cut in (1, 100, 2500, 3150):
        torn = disk.copy()
        torn.put(path, whole[:-cut])
        found = recover(torn)
        assert 2 <= len(found.items) < 4
        assert found.items == owner.promised[: len(found.items)]
        at = found.spool.segments[0][2]
        aside = {p: c for p, c in torn.files().items() if p.parent.name == "quarantine"}
        assert aside == {LANE / "quarantine" / f"{path.stem}-{at}.torn": whole[at:-cut].rstrip(b"\x00")}
        found.close()


def test_a_full_disk_does_not_keep_a_torn_tail_from_being_cut():
    disk, owner = killed_spool([text(1, 100), text(2, 3000)])
    path = next(path for path in disk.files() if path.suffix == ".log")
    torn = disk.copy()
    torn.put(path, disk.files()[path][:-1000])
    torn.capacity_bytes = torn.used_bytes
    found = recover(torn)
    assert found.items == owner.promised[: len(found.items)]
    found.close()


def test_looking_into_a_lane_tells_damage_and_torn_tails_and_changes_nothing():
    disk = Disk()
    owner = Owner(disk, segment_bytes=1500)
    owner.declare(DECLARED)
    for number in range(6):
        owner.commit([Group((), tuple((1, encode(10 * number + i, 3, 100)) for i in range(2)))])
    before = disk.files()
    seen = inspect(LANE, files=disk.process())  # while it is owned
    assert (seen.batches, seen.records, seen.damage, seen.torn_bytes) == (12, 36, (), 0)
    assert not seen.closed
    assert seen.segments == len(owner.spool.segments)
    assert seen.size_bytes == owner.spool.used_bytes
    assert seen.next_position == owner.spool.next_position
    owner.close()
    assert inspect(LANE, files=disk.process()).closed
    last = max(path for path in before if path.suffix == ".log")
    disk.put(last, disk.files()[last][:-1])
    torn = inspect(LANE, files=disk.process())
    assert torn.torn_bytes > 0
    assert torn.damage == ()
    disk.flip(min(path for path in before if path.suffix == ".log"), -1)
    before = disk.files()
    damaged = inspect(LANE, files=disk.process())
    assert len(damaged.damage) == 1
    assert damaged.batches == 11
    assert disk.files() == before


# -- newer formats ---------------------------------------------------------------------------------------------------


def test_a_newer_directory_is_refused(closed):
    disk = closed.disk.copy()
    disk.put(ROOT / "FORMAT", b"kafkasafe-spool 2\n")
    before = disk.files()
    with pytest.raises(SpoolFormatError, match="upgrade kafkasafe"):
        recover(disk)
    assert disk.files() == before


@pytest.mark.parametrize("content", [b"", b"something else\n", b"kafkasafe-spool 1"])
def test_a_directory_of_something_else_is_refused(closed, content):
    disk = closed.disk.copy()
    disk.put(ROOT / "FORMAT", content)
    with pytest.raises(SpoolFormatError, match="not that of a spool"):
        recover(disk)


@pytest.mark.parametrize("where", ["first", "last"])
def test_a_newer_group_refuses_the_lane_and_changes_nothing(closed, where, monkeypatch):
    path, at, end, _ = closed.groups[0 if where == "first" else -1]
    disk = closed.disk.copy()
    content = disk.files()[path]
    group, marks = m.decode_group(content[at:end])
    with monkeypatch.context() as newer:
        newer.setattr(m, "FORMAT_VERSION", 2)
        values = [getattr(group, name) for name in m.Group.__slots__]
        control = bytes(m.encode_group(m.Group(2, *values[1:]), marks, 0))
    assert len(control) == end - at
    disk.put(path, content[:at] + control + content[end:])
    before = disk.files()
    with pytest.raises(SpoolFormatError, match="upgrade kafkasafe"):
        recover(disk, on_corrupt="quarantine")
    assert {p: c for p, c in disk.files().items() if p.name != "lock"} == {
        p: c for p, c in before.items() if p.name != "lock"
    }
