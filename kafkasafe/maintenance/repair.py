"""Repairs a lane, provided that the repair cannot lose any record whose durability was promised.

`plan_repair` reads the lane and returns the possible steps. `carry_out` copies the files to another directory, then
carries out the steps. The caller must own the lane's lock. Parts that cannot be repaired without a loss stay unchanged
byte by byte, and are reported.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kafkasafe.errors import SpoolError
from kafkasafe.record import batch as codec
from kafkasafe.spool.examine import SpoolFate, SpoolOutcome, fates
from kafkasafe.spool.files import Files, read_file, size_of, write_all
from kafkasafe.spool.inspection import dropped_in, read_lane
from kafkasafe.spool.inspection import steps as steps_in
from kafkasafe.spool.log_content import Damage, Log, LostEntry, MarksEntry
from kafkasafe.spool.quarantine import already_quarantined, copy_aside
from kafkasafe.spool.rejected import read_rejected
from kafkasafe.spool.reserve import NO_ROOM
from kafkasafe.spool.segment_reader import address_bytes
from kafkasafe.spool.tail import cut_tail

_UNFINISHED: Final = "repair-unfinished"
_FINISHED: Final = {
    SpoolOutcome.COMMITTED: "it is delivered",
    SpoolOutcome.REJECTED: "the cluster rejected it, and it is kept in rejected/",
    SpoolOutcome.DROPPED: "its atomic batch was dropped",
    SpoolOutcome.REPLACED: "its records are in other batches now",
    SpoolOutcome.LOST: "it was given up",
}


@dataclass(frozen=True, slots=True)
class RepairStep:
    """One step of a repair.

    Attributes:
        what: "cut": cuts off a torn tail. "address": restores bytes 0 to 20 of a batch. "quarantine": copies the bytes
            to quarantine/. The copy proves that the damage was reported. Therefore the lane can be opened.
        segment: File name.
        start: First byte.
        end: End of the bytes (exclusive).
        reason: Why the step loses nothing.
        content: The bytes to write, for "address".
    """

    what: Literal["cut", "address", "quarantine"]
    segment: str
    start: int
    end: int
    reason: str
    content: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The possible repairs of a lane.

    Attributes:
        refused: Why nothing can be repaired; empty if a repair is possible.
        left: Parts that cannot be repaired, one sentence each.
    """

    refused: str = ""
    steps: tuple[RepairStep, ...] = ()
    left: tuple[str, ...] = ()


def plan_repair(lane: Path, *, files: Files) -> Plan:
    """Finds out what can be repaired, without changing anything.

    Raises:
        SpoolFormatError: A newer kafkasafe has written the lane.
        SpoolError: A file cannot be read.
    """
    found = read_lane(lane, files=files)
    known_fates = fates(
        [(entry.position, entry.marks) for entry in found.entries if isinstance(entry, MarksEntry)],
        {},
        dropped=dropped_in(steps_in(found)[1]),
    )
    kept = {
        entry.position
        for file in read_rejected(files, lane, lane_id=found.lane_id, waits={})
        if file.content is not None and file.is_of(found.lane_id)
        for entry in file.content.entries
    }
    blind = any(isinstance(entry, LostEntry) and not entry.destination for entry in found.entries)
    steps: list[RepairStep] = []
    left: list[str] = []
    for damage in found.damage:
        step = _restored(files, damage, found) or _finished(damage, known_fates, kept, blind=blind)
        if step is None:
            left.append(_why_left(damage))
        elif step.what != "quarantine" or not already_quarantined(files, lane, damage):
            steps.append(step)
    if found.torn is not None and not found.groups:
        # The lane has no intact group. Nothing distinguishes a torn first write from damage to complete bytes.
        left += [
            f"{path.name}: {size} bytes without an intact group. If the lane was ever in use, restore the file from a"
            " copy. A producer that opens the lane assumes that a crash tore the first write: it continues without the"
            " file, and keeps a copy in quarantine/"
            for path in (found.torn[0], *found.doomed)
            if (size := size_of(files, path))
        ]
    elif found.torn is not None:
        path, at = found.torn
        size = size_of(files, path)
        if size > at:
            reason = "a crash leaves such a tail, and nothing proves that its bytes were durable"
            steps.append(RepairStep("cut", path.name, at, size, reason))
        steps += [
            RepairStep("cut", doomed.name, 0, size_of(files, doomed), "it follows a torn tail")
            for doomed in found.doomed
        ]
    return Plan("", tuple(steps), tuple(left))


def carry_out(lane: Path, plan: Plan, *, files: Files) -> Path:
    """Copies the lane's segments, then carries out the steps. The caller must own the lane.

    Returns:
        The directory of the copies, which are durable before anything is changed.

    Raises:
        SpoolError: The segments could not be copied, and nothing was changed. Or a step failed; then the message names
            the directory of the copies.
    """
    copies = _copied(lane, sorted({step.segment for step in plan.steps}), files=files)
    try:
        for step in plan.steps:
            if step.what == "address":
                handle = files.open(lane / step.segment, write=True)
                _write(files, handle, bytes.fromhex(step.content), step.start)
        found = read_lane(lane, files=files)
        quarantined = {(step.segment, step.start) for step in plan.steps if step.what == "quarantine"}
        copy_aside(files, lane, [d for d in found.damage if (d.path.name, d.start) in quarantined])
        if any(step.what == "cut" for step in plan.steps):
            cut_tail(files, lane, found)
    except OSError as error:
        raise SpoolError(
            f"{lane} could not be repaired: {error}. Its files as they were are in {copies}"
        ) from error
    return copies


def _copied(lane: Path, segments: list[str], *, files: Files) -> Path:
    """Copies segments to a new directory of the lane. The directory gets its final name only when all copies are
    durable.

    Raises:
        SpoolError: Not everything could be copied. No part of the copies is left.
    """
    draft = lane / _UNFINISHED
    copies = lane / time.strftime("repair-%Y%m%dT%H%M%SZ", time.gmtime())
    try:
        _make_empty(files, draft)
        for name in segments:
            _write(files, files.create(draft / name), read_file(files, lane / name), 0)
        files.sync_directory(draft)
        taken = set(files.list(lane))
        number = 1
        while copies.name in taken:
            number += 1
            copies = lane / f"{copies.name.partition('.')[0]}.{number}"
        files.rename(draft, copies)
        files.sync_directory(lane)
    except OSError as error:
        with contextlib.suppress(OSError):
            _make_empty(files, draft)
        if error.errno in NO_ROOM:
            raise SpoolError(
                f"{lane} could not be repaired: there is no room for copies of its files: {error}. Nothing was changed;"
                " make room and repair again"
            ) from error
        raise SpoolError(
            f"{lane} could not be repaired: its files could not be copied: {error}. Nothing was changed"
        ) from error
    return copies


def _make_empty(files: Files, directory: Path) -> None:
    """Makes an empty directory. If an interrupted repair left files in the directory, deletes them."""
    if not files.make_directory(directory):
        for name in files.list(directory):
            files.unlink(directory / name)


def _restored(files: Files, damage: Damage, found: Log) -> RepairStep | None:
    """A step that restores bytes 0 to 20 of a batch from its manifest entry. None if the CRC in the manifest entry does
    not match the batch's other bytes.
    """
    entry = found.manifest.get((damage.path, damage.start)) if damage.destination else None
    if entry is None or damage.end - damage.start != entry.size_bytes:
        return None
    data = bytearray(read_file(files, damage.path, damage.start, damage.end))
    meant = address_bytes(entry)
    before = bytes(data[: len(meant)])
    data[: len(meant)] = meant
    try:
        codec.verify(data)
    except codec.CorruptBatchError:
        return None
    if before == meant:
        return None  # this is another kind of damage: the destination was never declared
    return RepairStep(
        "address",
        damage.path.name,
        damage.start,
        damage.start + len(meant),
        f"the body of the batch at position {entry.position} has the CRC that the manifest names",
        meant.hex(),
    )


def _finished(
    damage: Damage, known_fates: dict[int, SpoolFate], kept: Collection[int], *, blind: bool
) -> RepairStep | None:
    known = known_fates.get(damage.position)
    if not damage.destination or known is None or known.fate not in _FINISHED:
        return None
    if blind:
        return None  # some marks are lost, and one of them may say that the batch is unfinished again
    if known.fate is SpoolOutcome.REJECTED and damage.position not in kept:
        return None
    at = f", at offset {known.base_offset} of its partition" if known.base_offset >= 0 else ""
    reason = f"a later mark says that {_FINISHED[known.fate]}{at}"
    return RepairStep("quarantine", damage.path.name, damage.start, damage.end, reason)


def _why_left(damage: Damage) -> str:
    if damage.other_lane is not None:
        return (
            f"{damage}: kafkasafe delivers nothing of it from here. Move it into its own lane directory (lane-NNN);"
            " use one directory for all segments with this id"
        )
    what = "its records are not delivered" if damage.destination else "its marks are not known"
    if not damage.destination and damage.start == damage.end:
        what = "undelivered records there are lost unless they are restored"
    return (
        f"{damage}: {what}. Restore the file from a copy; on_corrupt='quarantine' gives it up and delivers everything"
        " else"
    )


def _write(files: Files, handle: int, content: bytes, at: int) -> None:
    try:
        write_all(files, handle, [content], at)
        files.sync_data(handle)
    finally:
        files.close(handle)
