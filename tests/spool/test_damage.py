"""Damage in a closed spool: found, told, copied aside; it costs what it hit and nothing else."""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kafkasafe import marks as m
from kafkasafe.errors import SpoolCorruptError, SpoolError, SpoolFormatError
from kafkasafe.maintenance.repair import carry_out, plan_repair
from kafkasafe.marks import groups as control_batches
from kafkasafe.record import batch as codec
from kafkasafe.spool.inspection import inspect
from kafkasafe.spool.recovery import read_extent, scan
from kafkasafe.testing.disk import Disk

from .model import LANE, ROOT, Group, Owner, describe, encode, recover
from .test_crash import live

DECLARED = [m.Destination(number, "topic", number) for number in (1, 2, 3)]


@dataclass
class Closed:
    """A closed spool, and what each of its bytes belongs to."""

    disk: Disk
    items: list
    groups: list[tuple[Path, int, int, list[int]]]
    """(segment, start, end, positions) of each control batch and of all its group."""
    batches: list[tuple[Path, int, int, int]]


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
    return Closed(disk.copy(), found.items, groups, batches)


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


def test_damage_is_the_same_when_the_log_is_taken_while_it_is_read(closed):
    rng = random.Random(11)
    segments = [path for path in closed.disk.files() if path.suffix == ".log"]
    taken = 0
    for turn in range(60):
        disk = closed.disk.copy()
        path = rng.choice(segments)
        content = disk.files()[path]
        at = rng.randrange(len(content))
        files = disk.process()
        if turn % 4 == 0:
            files.truncate(files.open(path, write=True), at)
        elif turn % 12 == 1:
            files.unlink(path)
        elif turn % 4 == 2:
            files.writev(files.open(path, write=True), [bytes(min(512, len(content) - at))], at)
        else:
            disk.flip(path, at, 1 << rng.randrange(8))
        log = scan(files, LANE)
        entries = []
        rest = scan(files, LANE, entries.append)
        assert replace(rest, entries=[*entries, *rest.entries]) == log
        taken += len(entries) > 3 and len(rest.entries) > 0
    assert taken > 20


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


@pytest.mark.parametrize("which", ["first", "second", "last", "all"])
def test_a_segment_that_is_missing_is_damage(closed, which):
    segments = sorted(path for path in closed.disk.files() if path.suffix == ".log")
    starts = [int(path.stem) for path in segments] + [1 << 62]
    gone = {"first": [0], "second": [1], "last": [len(segments) - 1], "all": range(len(segments))}[which]
    lost = {
        at: what
        for at, what in closed.items
        if any(starts[index] <= at < starts[index + 1] for index in gone)
    }
    records = sum(what[3] for what in lost.values() if what[0] == "batch")
    disk = closed.disk.copy()
    for index in gone:
        disk.process().unlink(segments[index])
    disk = disk.copy()
    before = disk.files()
    seen = inspect(LANE, files=disk.process())
    assert len(seen.damage) == 1
    with pytest.raises(SpoolCorruptError, match=rf"\D{records:,} records?\b") as raised:
        recover(disk)
    assert raised.value.damage == seen.damage
    assert {p: c for p, c in disk.files().items() if p.name != "lock"} == {
        p: c for p, c in before.items() if p.name != "lock"
    }, "refusing must not change anything"
    found = recover(disk, on_corrupt="quarantine", snapshot=lambda: DECLARED)
    kept = [item for item in found.items if item[1][0] != "lost"]
    assert kept == [item for item in closed.items if item[0] not in lost]
    assert [what for _, what in found.items if what[0] == "lost"] == [("lost", 0)]
    # Told once; what comes next has other positions than what is missing had.
    (position,) = found.spool.write_group([], [(1, bytearray(encode(1, 2, 3)))])
    assert position > max(at for at, _ in closed.items)
    found.spool.sync()
    found.close()
    for state in (disk.copy(), disk.crash()):
        again = recover(state)
        assert again.items[:-1] == found.items
        assert again.items[-1][0] == position
        again.close()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happened_before_a_segment_that_is_missing_is_damage(seed):
    owner = live(1000 + seed, steps=6, faults=0)
    whole = owner.disk.copy()
    recover(whole).close()
    # In a last segment there may be nothing yet that was promised; a first one may be about to be deleted.
    extent = read_extent(whole.process(), LANE)
    segments = [path for path in whole.files() if path.suffix == ".log"]
    segments = [path for path in segments if extent.begin.position <= int(path.stem) < extent.end.position]
    assert segments
    for path in segments:
        disk = whole.copy()
        disk.process().unlink(path)
        with pytest.raises(SpoolCorruptError, match=r"missing|should follow"):
            recover(disk.copy())


def test_a_deletion_that_is_not_durable_yet_is_no_missing_segment():
    """The deleted segment was still in the list: the next look at the lane claimed that the log begins with it."""
    disk = Disk()
    owner = Owner(disk, segment_bytes=1500)
    owner.declare(DECLARED)
    for number in range(8):
        owner.commit([Group((), ((1, encode(number, 3, 400)),))])
    spool, (_, first, _) = owner.spool, owner.spool.segments[3]
    disk.fail("sync_directory", error=errno.ENOSPC, times=2)
    for _ in range(2):
        with pytest.raises(SpoolError, match="cannot be deleted"):
            owner.release(first)
    assert spool.in_place
    assert spool.restore() == []
    recover(disk.copy()).close()
    owner.release(first)
    assert spool.segments[0][1] == first
    recover(disk.copy()).close()
    found = recover(power_cut(disk))
    assert found.items == [item for item in owner.promised if item[0] >= found.spool.first_position]


def test_a_lane_of_an_earlier_version_opens_and_is_held_to_its_extent_from_then_on(monkeypatch):
    """It has no such file. Nothing is missing for that."""
    with monkeypatch.context() as older:
        older.setattr(m, "FORMAT_VERSION", 1)
        disk = Disk()
        owner = Owner(disk, segment_bytes=1500)
        owner.declare(DECLARED)
        for number in range(6):
            owner.commit([Group((), ((1, encode(number, 3, 400)),))])
        assert owner.release(owner.spool.segments[2][1]) > 0
        owner.close()
    disk = power_cut(disk)
    assert LANE / "extent" not in disk.files()
    found = recover(disk, snapshot=lambda: DECLARED)
    assert found.items == [item for item in owner.promised if item[0] >= found.spool.first_position]
    found.spool.write_group([], [(1, bytearray(encode(1, 2, 3)))])
    found.spool.sync()
    found.close()
    recover(disk.copy()).close()
    for path in [path for path in disk.files() if path.suffix == ".log"]:
        hurt = disk.copy()
        hurt.process().unlink(path)
        with pytest.raises(SpoolCorruptError):
            recover(hurt.copy())


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


def power_cut(disk: Disk) -> Disk:
    """What `extent` said of the last groups was not on the disk yet."""
    disk = disk.copy()
    disk.process().unlink(LANE / "extent")
    return disk.copy()


def text(number: int, size: int, compression: codec.Compression = codec.Compression.NONE) -> bytes:
    value = bytes(random.Random(number).choices(range(1, 256), k=size))
    return bytes(codec.encode(None, [value], timestamps=1_700_000_000_000 + number, compression=compression))


@pytest.mark.parametrize("power", ["stays", "goes"])
def test_damage_in_the_last_groups_of_a_killed_owner_is_no_torn_tail(power):
    """What it was promised is told as damaged, also where no later group proves that it was durable."""
    rng = random.Random(3)
    for number, size in enumerate((1, 40, 300, 700, 5000)):
        disk, owner = killed_spool([text(10 * number + i, size) for i in range(2)])
        disk = power_cut(disk) if power == "goes" else disk
        path = next(path for path in disk.files() if path.suffix == ".log")
        content = disk.files()[path]
        (_, second) = sorted(scan(disk.process(), LANE).segments[0].batches.items())
        for _ in range(40):
            byte = rng.randrange(second[1].at - 60, len(content))
            bit = 1 << rng.randrange(8)
            hurt = disk.copy()
            hurt.flip(path, byte, bit)
            if power == "goes" and 0 in {hurt.files()[path][byte], content[byte]}:
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


PAYLOADS = {
    "text": lambda rng: b" ".join(
        rng.choice((b"order", b"shipped", b"%d" % rng.randrange(999))) for _ in range(30)
    ),
    "random": lambda rng: rng.randbytes(200),
    "zeros": lambda rng: rng.randrange(1 << 12).to_bytes(8, "little") * 20,
}


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("compression", codec.Compression)
def test_a_flipped_bit_in_the_last_group_is_damage_and_its_neighbours_are_kept(compression, payload):
    """All in one group, synced, and the process dies: no group behind it says that it was durable."""
    rng = random.Random(11)
    disk = Disk()
    owner = Owner(disk, segment_bytes=1 << 20)
    owner.declare(DECLARED)
    batches = tuple(
        (1, bytes(codec.encode(None, [PAYLOADS[payload](rng) for _ in range(5)], timestamps=1_700_000_000_000 + i,
                               compression=compression)))
        for i in range(5)
    )  # fmt: skip
    owner.commit([Group((), batches)])
    owner.files.kill()
    (segment,) = scan(disk.process(), LANE).segments
    whole = disk.files()[segment.path]
    for number in range(40):
        position, stored = rng.choice(list(segment.batches.items()))
        address = number % 4 == 0
        byte = stored.at + rng.randrange(21 if address else stored.size_bytes)
        # Of the bits of the last byte that is not zero at most one is ever taken for what a crash leaves out.
        if number % 4 == 1:
            byte = stored.at + len(whole[stored.at : stored.at + stored.size_bytes].rstrip(b"\0")) - 1
        hurt = disk.copy()
        hurt.flip(segment.path, byte, 1 << rng.randrange(8))
        with pytest.raises(SpoolCorruptError, match=r"batch for topic-1 at position \d+ \(5 records\)"):
            recover(hurt)
        if address:
            plan = plan_repair(LANE, files=hurt.process())
            assert [step.what for step in plan.steps] == ["address"]
            carry_out(LANE, plan, files=hurt.process())
            assert hurt.files()[segment.path] == whole
            continue
        found = recover(hurt, on_corrupt="quarantine", snapshot=lambda: DECLARED)
        assert [item for item in found.items if item[1][0] != "lost"] == [
            item for item in owner.promised if item[0] != position
        ]
        assert found.spool.next_position == owner.spool.next_position
        found.close()


def damaged_address() -> tuple[Disk, Path]:
    """A lane whose first batch has a damaged byte that a repair restores."""
    disk, _ = killed_spool([text(1, 5000), text(2, 5000)])
    (segment,) = scan(disk.process(), LANE).segments
    stored = segment.batches[min(segment.batches)]
    disk = disk.copy()
    disk.flip(segment.path, stored.at + 3)
    return disk, segment.path


def copies_of_repairs(disk: Disk) -> dict[Path, bytes]:
    return {path: content for path, content in disk.files().items() if path.parent.name.startswith("repair-")}


def test_a_repair_without_room_for_its_copies_leaves_no_part_of_them_and_says_so():
    disk, segment = damaged_address()
    before = disk.files()
    plan = plan_repair(LANE, files=disk.process())
    disk.capacity_bytes = disk.used_bytes + 3000
    for _ in range(3):
        with pytest.raises(
            SpoolError, match=r"no room for copies of its files.*Nothing was changed; make room"
        ) as told:
            carry_out(LANE, plan, files=disk.process())
        assert "as they were are in" not in str(told.value)
        assert disk.files() == before
    assert len([name for name in disk.process().list(LANE) if name.startswith("repair-")]) <= 1
    disk.capacity_bytes = None
    copies = carry_out(LANE, plan, files=disk.process())
    assert copies_of_repairs(disk) == {copies / segment.name: before[segment]}
    assert plan_repair(LANE, files=disk.process()).steps == ()


@pytest.mark.parametrize("operation", ["create", "writev", "sync_data", "rename", "sync_directory"])
def test_a_repair_whose_copies_fail_changes_nothing_and_names_no_copy(operation):
    disk, segment = damaged_address()
    before = disk.files()
    plan = plan_repair(LANE, files=disk.process())
    disk.fail(operation)
    with pytest.raises(SpoolError, match=r"Nothing was changed") as told:
        carry_out(LANE, plan, files=disk.process())
    assert "as they were are in" not in str(told.value)
    assert disk.files()[segment] == before[segment]
    disk.heal()
    carry_out(LANE, plan, files=disk.process())
    assert plan_repair(LANE, files=disk.process()).steps == ()


def test_a_repair_that_fails_behind_its_copies_names_them():
    disk, segment = damaged_address()
    before = disk.files()
    plan = plan_repair(LANE, files=disk.process())
    # The first write is of the copy, the second of the restored bytes.
    disk.fail("writev", call=1)
    with pytest.raises(SpoolError, match=r"Its files as they were are in .*repair-\d{8}T\d{6}Z$"):
        carry_out(LANE, plan, files=disk.process())
    assert list(copies_of_repairs(disk).values()) == [before[segment]]


def test_what_is_whole_behind_a_torn_batch_is_kept_and_the_torn_one_is_never_taken_for_damage():
    disk = Disk()
    owner = Owner(disk, segment_bytes=1 << 20)
    owner.declare(DECLARED)
    owner.commit([Group((), tuple((1, text(number, 1500)) for number in range(4)))])
    owner.files.kill()
    (segment,) = scan(disk.process(), LANE).segments
    (_, first), (lost, second), *_ = sorted(segment.batches.items())
    content = bytearray(disk.files()[segment.path])
    start = second.at - second.at % 512 + 512
    content[start : start + 512] = bytes(512)
    disk = power_cut(disk)
    disk.put(segment.path, bytes(content))
    kept = [item for item in owner.promised if item[0] != lost]
    found = recover(disk)
    assert found.items == kept
    assert first.at in {stored.at for stored in scan(disk.process(), LANE).segments[0].batches.values()}
    found.close()
    for number in range(3):
        # The next groups prove that everything in front of them was durable.
        found = recover(disk, snapshot=lambda: DECLARED)
        assert found.items == kept
        (position,) = found.spool.write_group([], [(1, bytearray(encode(number, 2, 3)))])
        found.spool.sync()
        kept.append((position, ("batch", *describe(1, encode(number, 2, 3)))))
        found.close()
        disk = disk.crash(seed=number)


@pytest.mark.parametrize("missing", [range(4, 21), range(22, 27)], ids=["in it", "behind it"])
def test_an_address_torn_at_a_sectors_end_is_no_damage_before_it_is_promised(missing):
    """The bytes behind an address are zeros in most batches: attributes, and the first bytes of the offset delta."""
    for size in range(400, 520):
        disk, owner = killed_spool([text(1, size), text(2, 700)])
        path = next(path for path in disk.files() if path.suffix == ".log")
        content = bytearray(disk.files()[path])
        (_, stored) = sorted(scan(disk.process(), LANE).segments[0].batches.items())[1]
        boundary = stored.at - stored.at % 512 + 512
        if boundary - stored.at not in missing:
            continue
        content[stored.at : boundary] = bytes(boundary - stored.at)
        disk.put(path, bytes(content))
        with pytest.raises(SpoolCorruptError):
            recover(disk)
        found = recover(power_cut(disk))
        assert found.items == owner.promised[: len(found.items)]
        found.close()
        return
    raise AssertionError("no size puts the address across a sector's end")


def test_sectors_that_are_missing_are_a_torn_write():
    disk, owner = killed_spool([text(1, 100), text(2, 3000)])
    disk = power_cut(disk)
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
    disk = power_cut(disk)
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
    disk = power_cut(disk)
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
    assert inspect(LANE, files=disk.process()).damage != ()
    disk = power_cut(disk)
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
    with pytest.raises(SpoolFormatError, match="does not have the content of a spool"):
        recover(disk)


@pytest.mark.parametrize("where", ["first", "last"])
def test_a_newer_group_refuses_the_lane_and_changes_nothing(closed, where, monkeypatch):
    path, at, end, _ = closed.groups[0 if where == "first" else -1]
    disk = closed.disk.copy()
    content = disk.files()[path]
    group, marks = m.decode_group(content[at:end])
    with monkeypatch.context() as newer:
        newer.setattr(control_batches, "FORMAT_VERSION", 3)
        values = [getattr(group, name) for name in m.Group.__slots__]
        control = bytes(m.encode_group(m.Group(3, *values[1:]), marks, 0))
    assert len(control) == end - at
    disk.put(path, content[:at] + control + content[end:])
    before = disk.files()
    with pytest.raises(SpoolFormatError, match="upgrade kafkasafe"):
        recover(disk, on_corrupt="quarantine")
    assert {p: c for p, c in disk.files().items() if p.name != "lock"} == {
        p: c for p, c in before.items() if p.name != "lock"
    }


def two_lanes_in_one_directory(short: int = 1) -> tuple[Disk, list, list[Path]]:
    """The log of one owner, and among its segments those of another, which lost its own directory.

    Returns:
        The disk, what the first one was promised, and the other one's segments.
    """
    disk = Disk()
    rng = random.Random(5)
    owner = Owner(disk, segment_bytes=1500)
    owner.declare(DECLARED)
    for _ in range(3):
        owner.commit([owner.group(rng, batches=2, size=300)])
    owner.close()
    stray = Disk()
    other = Owner(stray, segment_bytes=1500)
    other.declare(DECLARED)
    for _ in range(8):
        other.commit([other.group(rng, batches=2, size=300)])
    other.close()
    mine = {path.name for path in disk.files() if path.suffix == ".log"}
    later = [p for p in sorted(stray.files()) if p.suffix == ".log" and p.name not in mine][-short:]
    assert int(later[0].stem) > int(max(mine)[:20])
    for path in later:
        disk.put(path, stray.files()[path])
    return disk.copy(), owner.promised, later


@pytest.mark.parametrize("short", [1, 2])
def test_a_segment_of_another_lane_is_damage_and_never_a_torn_tail(short):
    """It was taken for the next segment: the end of the own one for torn, and all of the other lane's cut with it."""
    disk, promised, strays = two_lanes_in_one_directory(short)
    before = disk.files()
    for _ in range(2):
        with pytest.raises(SpoolCorruptError, match="of another lane") as raised:
            recover(disk.copy())
        assert len(raised.value.damage) == short
        assert all(path.name in str(raised.value) for path in strays)
        # The files themselves are fine: nothing is to be restored.
        assert "Move the segments of each other lane into a new directory" in str(raised.value)
        assert "Restore" not in str(raised.value)
    seen = inspect(LANE, files=disk.process())
    assert seen.damage == raised.value.damage
    assert seen.torn_bytes == 0
    assert disk.files() == before
    found = recover(disk, on_corrupt="quarantine", snapshot=lambda: DECLARED)
    assert found.items == promised
    # Nothing of it is lost: it can be moved into a lane of its own.
    aside = {p: c for p, c in disk.files().items() if p.parent.name == "quarantine"}
    assert sorted(aside.values()) == sorted(before[path] for path in strays)
    # The name is free for a segment of this lane.
    for number in range(12):
        found.spool.write_group([], [(1, bytearray(encode(number, 2, 400)))])
        found.spool.sync()
    found.close()
    again = recover(disk.crash())
    assert len(again.items) == len(promised) + 12
    again.close()


def test_a_segment_of_another_lane_is_read_in_a_directory_of_its_own():
    disk, promised, strays = two_lanes_in_one_directory(2)
    files = disk.process()
    files.make_directory(ROOT / "lane-001")
    for path in strays:
        files.rename(path, ROOT / "lane-001" / path.name)
    assert recover(disk).items == promised
    other = scan(disk.process(), ROOT / "lane-001")
    assert other.damage == []
    assert [segment.first_position for segment in other.segments] == [int(path.stem) for path in strays]


def test_the_extent_says_which_of_two_lanes_this_is():
    """Of an earlier version there is none: then it is the lane of the first segment."""
    disk, _, strays = two_lanes_in_one_directory(1)
    front = ROOT / "lane-000" / f"{0:020d}.log"
    first, last = disk.files()[front], disk.files()[strays[0]]
    disk.put(front, last)
    with pytest.raises(SpoolCorruptError, match="of another lane") as raised:
        recover(disk.copy())
    assert any(f"{front.name}: a segment of another lane" in damage for damage in raised.value.damage)
    disk.put(front, first)
    disk.process().unlink(LANE / "extent")
    with pytest.raises(SpoolCorruptError, match="of another lane") as raised:
        recover(disk.copy())
    assert [damage.partition(":")[0] for damage in raised.value.damage] == [strays[0].name]
