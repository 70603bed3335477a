"""Copies damaged and torn bytes of a lane to the lane's directory `quarantine`."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from kafkasafe.errors import SpoolCorruptError
from kafkasafe.logs import EventLog
from kafkasafe.spool.files import Files, read_file, read_whole, write_whole
from kafkasafe.spool.log_content import Damage, Log

log = EventLog("spool")


def quarantine_damage(files: Files, lane: Path, found: Log, on_corrupt: str) -> None:
    """Copy damaged bytes to quarantine/ if `on_corrupt` is "quarantine"; otherwise raise. Damage that already has a
    copy in quarantine/ was reported before, and is skipped.

    Raises:
        SpoolCorruptError: There is unreported damage, and `on_corrupt` is "raise".
        OSError: A file cannot be read or written.
    """
    new = [damage for damage in found.damage if not already_quarantined(files, lane, damage)]
    if not new:
        return
    texts = tuple(map(str, new))
    if on_corrupt != "quarantine":
        raise SpoolCorruptError(
            f"{lane} is damaged in {len(texts)} place{'' if len(texts) == 1 else 's'}, not by a crash:"
            f" {'; '.join(texts[:5])}{'; ...' if len(texts) > 5 else ''}. Nothing was deleted or changed. The rest"
            f" of the lane is safe. {_ways_out(lane, new)}",
            damage=texts,
        )
    copy_aside(files, lane, new)


def _ways_out(lane: Path, damaged: Sequence[Damage]) -> str:
    ways = []
    if any(damage.other_lane is not None for damage in damaged):
        ways.append(
            "Move the segments of each other lane into a new directory lane-NNN beside this one. Their records are"
            f" delivered from there. on_corrupt='quarantine' moves them to {lane / 'quarantine'} instead, and their"
            " records are not delivered"
        )
    if any(damage.other_lane is None for damage in damaged):
        ways.append(
            "Restore the files from a copy, or open with on_corrupt='quarantine': the damaged bytes are then copied to"
            f" {lane / 'quarantine'}, their records are lost, and the rest is delivered,"
            " after a decision where the damage destroyed marks (on_undecidable)"
        )
    return ". ".join(ways)


def copy_aside(files: Files, lane: Path, damaged: Sequence[Damage]) -> None:
    """Durably copy damaged ranges to quarantine/. A copy proves that the damage was reported.

    A segment that another lane wrote is moved to quarantine/, not copied.

    Raises:
        OSError: A file cannot be read or written.
    """
    for damage in damaged:
        path = copy_of(lane, damage)
        log.error(
            "%s: %s; %s to %s",
            lane,
            damage,
            "copied" if damage.other_lane is None else "moved",
            path,
            lane=lane.name,
            position=damage.position,
            path=str(path),
            event="damage_quarantined",
        )
        if damage.other_lane is None:
            _set_aside(files, path, _bytes_of(files, damage))
        else:
            # Move the file away: this lane's next segment may need its name.
            files.make_directory(path.parent)
            files.rename(damage.path, path)
            files.sync_directory(path.parent)
            files.sync_directory(lane)


def keep_torn(files: Files, lane: Path, found: Log) -> None:
    """Copy a torn tail to quarantine/ before it is cut off: what looks like the result of a crash may be damage to
    durable data.
    """
    if found.torn is None:
        return
    for path, at in (found.torn, *((doomed, 0) for doomed in found.doomed)):
        content = read_file(files, path, at).rstrip(b"\x00")
        if not content:
            continue
        kept = lane / "quarantine" / f"{path.stem}-{at}.torn"
        try:
            _set_aside(files, kept, content)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            # Open the lane without the copy. The bytes are lost, but if a crash tore them, they were never reported as
            # durable.
            log.warning(
                "%s: no room for a copy of the torn tail of %s",
                lane,
                path.name,
                lane=lane.name,
                event="torn_tail_gone",
            )


def _set_aside(files: Files, path: Path, content: bytes) -> None:
    files.make_directory(path.parent)
    write_whole(files, path, content)
    files.sync_directory(path.parent)


def copy_of(lane: Path, damage: Damage) -> Path:
    """Path of the copy of damaged bytes in quarantine/."""
    if damage.other_lane is not None:
        return lane / "quarantine" / f"{damage.path.stem}-{damage.other_lane.hex()}.log"
    return lane / "quarantine" / f"{damage.path.stem}-{damage.start}.bad"


def already_quarantined(files: Files, lane: Path, damage: Damage) -> bool:
    """Whether quarantine/ has a copy of exactly these bytes.

    Raises:
        OSError: A file cannot be read.
    """
    # Reporting a segment of another lane moves the segment to quarantine/, so a segment that is still here was not
    # reported yet.
    return damage.other_lane is None and read_whole(files, copy_of(lane, damage)) == _bytes_of(files, damage)


def _bytes_of(files: Files, damage: Damage) -> bytes:
    """The damaged bytes. A missing segment has no bytes, and its copy is an empty file."""
    return read_file(files, damage.path, damage.start, damage.end) if damage.start < damage.end else b""
