"""Finds the undelivered batches of other lanes, without taking a lock.

The owner of a lane may be writing to the lane's log, so each call of `LaneReader.owed` reads the last segment again.
The control batches contain the sizes of the data batches, so this module reads a data batch only to check whether it is
damaged.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import Final

from kafkasafe import marks as m
from kafkasafe.journal.order import Owed
from kafkasafe.process.locks import new_lock
from kafkasafe.record import batch as codec
from kafkasafe.spool.files import Files, opened
from kafkasafe.spool.segment import SEGMENT_NAME
from kafkasafe.spool.segment_reader import OVERHEAD_BYTES

_TRIES: Final = 10
_GUESS_BYTES: Final = 4096
"""Size of the first read, which covers most control batches."""


class LaneReader:
    """Reads one lane. Each call of `owed` reads the segments that no earlier call has read, and reads the last segment
    again. Calls from several threads run one after another.
    """

    def __init__(self, files: Files, lane: Path) -> None:
        self.path = lane
        self._files = files
        self._read: list[str] = []
        """Segments that were read to their end."""
        self._before = Owed()
        """The undelivered batches according to the segments in `_read`."""
        self._where: dict[int, tuple[str, int, m.ManifestEntry]] = {}
        """Maps the position of each batch without an outcome to the batch's segment, byte offset and manifest entry."""
        self._whole: set[int] = set()
        self._once = new_lock()

    def owed(self, *, tail: bool = False) -> Owed:
        """Returns the batches that the lane has not delivered yet: none if the lane does not exist.

        Args:
            tail: Whether to leave out torn batches at the end of the log. The lane's next owner will use their
                positions again. Allowed only for a lane without an owner.

        Raises:
            OSError: The lane cannot be read.
            UnknownFormatError: A newer kafkasafe has written the lane.
        """
        with self._once:
            return self._owed_now(tail=tail)

    def _owed_now(self, *, tail: bool) -> Owed:
        for _ in range(_TRIES):
            first = self._names()[:1]
            found = self._owed()
            self._where = {at: where for at, where in self._where.items() if at in found.open}
            self._whole.intersection_update(self._where)
            self._leave_out(found, tail=tail)
            # Read again if the lane has another first segment now: the owner may have copied batches of the former
            # first segment to the end of the log, and deleted the segment.
            if first == self._names()[:1]:
                return found
        raise OSError(errno.EBUSY, f"The segments of {self.path} keep changing")

    def _leave_out(self, owed: Owed, *, tail: bool) -> None:
        """Removes damaged batches from `owed`. No owner can deliver a damaged batch, so other lanes must not wait for
        it.
        """
        todo = sorted(owed.open)
        if tail:
            for at in todo:
                if at >= owed.synced_position and not self._is_whole(at):
                    owed.drop(at)
        seen = set()
        for at in todo:
            destination = owed.open.get(at, (0, 0))[0]
            if destination and destination not in seen:
                if self._is_whole(at):
                    seen.add(destination)
                else:
                    owed.drop(at)

    def _is_whole(self, position: int) -> bool:
        if position in self._whole or position not in self._where:
            return True
        name, at, entry = self._where[position]
        try:
            with opened(self._files, self.path / name) as handle:
                codec.verify(self._files.read(handle, at, entry.size_bytes))
        except (FileNotFoundError, codec.CorruptBatchError):
            return False
        self._whole.add(position)
        return True

    def _names(self) -> list[str]:
        try:
            return sorted(name for name in self._files.list(self.path) if SEGMENT_NAME.fullmatch(name))
        except FileNotFoundError:
            return []

    def _owed(self) -> Owed:
        names = self._names()
        self._read = [name for name in self._read if name in names]
        if names[: len(self._read)] != self._read or len(self._read) >= len(names):
            # Another lane has replaced this lane, or an owner has cut off the end of the log.
            self._read, self._before = [], Owed()
            self._where.clear()
            self._whole.clear()
        if names:
            self._before.begins(int(names[0][:20]))
        for name, following in zip(names[len(self._read) :], names[len(self._read) + 1 :], strict=False):
            with contextlib.suppress(FileNotFoundError):  # deleted: all batches of the segment are finished
                self._segment(name, int(following[:20]), self._before)
            self._read.append(name)
        now = self._before.copy()
        if names:
            # If the owner has just deleted this segment, the next call of `owed` reads the following segment instead.
            with contextlib.suppress(FileNotFoundError):
                self._segment(names[-1], None, now)
        return now

    def _segment(self, name: str, limit: int | None, owed: Owed) -> None:
        with opened(self._files, self.path / name) as handle:
            size, at, position = self._files.size(handle), 0, int(name[:20])
            while at < size:
                content = self._control(handle, at)
                try:
                    group, marks = m.decode_group(content)
                except m.UnknownFormatError:
                    raise
                except m.MarkError:
                    # An incomplete end of the last segment is not damage: the owner is writing there, or a crash tore
                    # the end.
                    if limit is not None:
                        owed.note_damage()
                    return
                if limit is not None and group.position >= limit:
                    return
                if owed.lane_id not in {b"", group.lane_id}:
                    # Another lane wrote this segment, as the next owner will report when it opens the lane.
                    owed.note_damage()
                    return
                at += len(content)
                places = []
                for entry in group.manifest:
                    places.append((entry.position, (name, at, entry)))
                    at += entry.size_bytes
                if group.position < position or (group.atomic and at > size):
                    return
                position = group.position
                self._where.update(places)
                moves = limit is None and any(isinstance(mark, m.Moved) for mark in marks)
                if moves and not all(self._is_whole(at) for at, _ in places):
                    # Ignore a spool group of copies that a crash tore, because the original batches still exist.
                    for at, _ in places:
                        del self._where[at]
                    return
                owed.group(group, marks)

    def _control(self, handle: int, at: int) -> bytes:
        content = self._files.read(handle, at, _GUESS_BYTES)
        if len(content) < codec.HEADER_BYTES:
            return content
        size = int.from_bytes(content[8:12], "big", signed=True) + OVERHEAD_BYTES
        if size > len(content) and size <= self._files.size(handle) - at:
            content += self._files.read(handle, at + len(content), size - len(content))
        return content[: max(size, codec.HEADER_BYTES)]
