"""A start that does not read the content of large batches finds the same, and leaves damage in it to the reader."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from tiers import in_tiers

from kafkasafe import marks as m
from kafkasafe.errors import SpoolCorruptError
from kafkasafe.record import batch as codec
from kafkasafe.spool import extent_file, outline
from kafkasafe.spool.log_content import LostEntry
from kafkasafe.spool.recovery import scan
from kafkasafe.testing.disk import Disk, DiskFiles

from .model import LANE, Group, Owner, encode, open_lane
from .test_crash import live

DECLARED = [m.Destination(number, "topic", number) for number in (1, 2)]
HEADER = {
    "count": 57,
    "producer id": 43,
    "epoch": 51,
    "sequence": 53,
    "attributes": 22,
    "largest timestamp": 35,
}


@pytest.fixture
def everything_is_large(monkeypatch):
    monkeypatch.setattr(outline, "LARGE_BYTES", 1)


def filled(*, ids: bool, batches: int = 12) -> tuple[Disk, list[tuple[Path, int, int, int]]]:
    """A closed lane of several segments. Of each batch: segment, first byte, size and position."""
    disk = Disk()
    owner = Owner(disk, segment_bytes=3000)
    owner.declare(DECLARED)
    sequence = 0
    for number in range(batches):
        data = bytearray(encode(number, 3, 300))
        if ids:
            codec.stamp_identity(data, 4000, 1, sequence)
            sequence += 3
        owner.commit([Group((), ((1, bytes(data)),))])
    owner.close()
    places = [
        (segment.path, stored.at, stored.size_bytes, position)
        for segment in scan(disk.process(), LANE).segments
        for position, stored in segment.batches.items()
    ]
    assert len({path for path, *_ in places}) > 3
    return disk, places


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("seed", in_tiers(4, fast=1))
def test_every_crash_recovers_to_what_was_promised(seed):
    assert live(1000 + seed).check_crashes(seed=seed) > 50


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("ids", [False, True])
def test_an_intact_log_is_found_as_if_it_were_read_whole(ids):
    disk, _ = filled(ids=ids)
    entries = []
    found = scan(disk.process(), LANE, entries.append)
    assert replace(found, entries=entries) == scan(disk.process(), LANE)


@pytest.mark.parametrize("ids", [False, True])
def test_the_content_of_large_batches_is_not_read(ids, monkeypatch):
    monkeypatch.setattr(outline, "LARGE_BYTES", 100_000)
    monkeypatch.setattr(outline, "_FAR_BYTES", 4096)
    disk = Disk()
    owner = Owner(disk, segment_bytes=1_000_000)
    owner.declare(DECLARED)
    for number in range(30):
        data = bytearray(encode(number, 2, 60_000))
        if ids:
            codec.stamp_identity(data, 4000, 1, 2 * number)
        owner.commit([Group((), ((1, bytes(data)),))])
    owner.close()
    sizes: list[int] = []
    read = DiskFiles.read  # also called by `read_into`

    def counted(files, handle, offset, size):
        content = read(files, handle, offset, size)
        sizes.append(len(content))
        return content

    monkeypatch.setattr(DiskFiles, "read", counted)
    found = scan(disk.process(), LANE, lambda _: None)
    last = found.segments[-1].size_bytes
    whole = sum(segment.size_bytes for segment in found.segments)
    # Of the first batch with an id, the content proves the id.
    assert sum(sizes) < last + (whole - last) / 10 + ids * 121_000
    assert whole > 3 * last


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("ids", [False, True])
def test_a_damaged_content_is_found_when_the_batch_is_read(ids):
    disk, places = filled(ids=ids)
    path, at, size, position = places[5]
    disk.flip(path, at + size - 20)
    assert len(scan(disk.process(), LANE).damage) == 1  # what `kafkasafe spool verify` reads
    lock, spool, entries = open_lane(disk.process(), lambda: DECLARED, on_corrupt="raise")
    assert not any(isinstance(entry, LostEntry) for entry in entries)
    with pytest.raises(SpoolCorruptError, match=f"position {position}"):
        spool.read(position)
    for *_, other in places:
        if other != position:
            assert codec.verify(spool.read(other)).count == 3
    spool.close()
    lock.release()


@pytest.mark.usefixtures("everything_is_large")
def test_the_content_of_a_copy_is_read():
    """1. A batch is copied forward. The segment with the original is not deleted yet.

    2. The copy is damaged. Recovery takes the original, and nothing is lost.
    3. A start that does not notice the damage forgets the original, and finds the damage when it is too late.
    """
    disk = Disk()
    owner = Owner(disk, segment_bytes=1500)
    owner.declare(DECLARED)
    for number in range(3):
        owner.commit([Group((), ((1, encode(number, 3, 300)),))])
    (position, original), *_ = _batches(disk)
    copied = m.Moved((m.Move(position, position, (position,)),))
    owner.commit([Group((copied,), ((1, encode(0, 3, 300)),), atomic=1)])
    for number in range(3, 6):
        owner.commit([Group((), ((1, encode(number, 3, 300)),))])
    owner.close()
    at, copy = _batches(disk)[3]
    assert copy[2] == original[2]
    disk.flip(copy[0], copy[1] + copy[2] - 20)
    entries = []
    found = scan(disk.process(), LANE, entries.append)
    assert [damage.position for damage in found.damage] == [at]
    assert LostEntry(at, 1) in found.entries


def _batches(disk: Disk) -> list[tuple[int, tuple[Path, int, int]]]:
    return [
        (position, (segment.path, stored.at, stored.size_bytes))
        for segment in scan(disk.process(), LANE).segments
        for position, stored in segment.batches.items()
    ]


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("field", ["address", *HEADER])
def test_a_damaged_header_never_changes_what_is_found_of_other_batches(field, ids):
    """Its id and its number of records are used before its content is read."""
    rng = random.Random(field)
    intact, places = filled(ids=ids)
    expected = scan(intact.process(), LANE)
    for number in range(4, 8):
        disk = intact.copy()
        path, at, _, position = places[number]
        byte = rng.randrange(21) if field == "address" else HEADER[field] + (field != "attributes")
        disk.flip(path, at + byte, 1 << rng.randrange(2 if field == "attributes" else 8))
        entries = []
        found = scan(disk.process(), LANE, entries.append)
        entries += found.entries
        if field not in {"attributes", "largest timestamp"}:
            assert [damage.position for damage in found.damage] == [position]
        others = [entry for entry in entries if entry.position != position]
        assert others == [entry for entry in expected.entries if entry.position != position]


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("seed", range(3))
def test_damage_outside_the_content_is_the_same_as_if_the_log_were_read_whole(seed):
    rng = random.Random(seed)
    intact, places = filled(ids=seed % 2 == 0)
    contents = {(path, byte) for path, at, size, _ in places for byte in range(at + 21, at + size)}
    segments = sorted({path for path, *_ in places})
    for turn in range(40):
        disk = intact.copy()
        path = rng.choice(segments)
        size = len(disk.files()[path])
        files = disk.process()
        if turn % 4 == 0:
            files.truncate(files.open(path, write=True), rng.randrange(size))
        elif turn % 12 == 1:
            files.unlink(path)
        elif turn % 4 == 2:
            files.writev(files.open(path, write=True), [b"\x07"], size)
        else:
            at = rng.choice([byte for byte in range(size) if (path, byte) not in contents])
            disk.flip(path, at, 1 << rng.randrange(8))
        log = scan(files, LANE)
        entries = []
        rest = scan(files, LANE, entries.append)
        assert replace(rest, entries=[*entries, *rest.entries]) == log


def test_a_damaged_length_asks_for_no_more_than_the_file_has(monkeypatch):
    """A read of the claimed size would take as much memory."""
    disk, places = filled(ids=False)
    path = places[0][0]
    disk.flip(path, 8, 0x40)  # the length of the first control batch: a GiB more
    asked: list[int] = []
    read = DiskFiles.read

    def noted(files, handle, offset, size):
        asked.append(size)
        return read(files, handle, offset, size)

    monkeypatch.setattr(DiskFiles, "read", noted)
    assert scan(disk.process(), LANE, lambda _: None).damage
    assert max(asked) <= max(len(content) for content in disk.files().values())


@pytest.mark.usefixtures("everything_is_large")
def test_what_is_not_certain_to_be_durable_is_read_whole():
    """1. A power cut leaves an `extent` that claims less than is durable.

    2. The segments after that claim may be torn, so their content counts.
    """
    disk, places = filled(ids=False)
    path, at, size, position = places[5]
    disk.flip(path, at + size - 20)
    content = bytearray(disk.files()[LANE / extent_file.EXTENT_NAME])
    content[-512:] = bytes(512)  # the claim about the end
    disk.put(LANE / extent_file.EXTENT_NAME, bytes(content))
    found = scan(disk.process(), LANE, lambda _: None)
    assert [damage.position for damage in found.damage] == [position]
