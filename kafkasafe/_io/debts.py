"""What other lanes of a directory still owe, read from their control batches, without their locks.

A lane that somebody owns is written meanwhile: what cannot be read yet at its end is read next time. Data batches are
skipped, by the sizes that the group in front of them names.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from pathlib import Path
from typing import Final

from kafkasafe._core import batch as codec
from kafkasafe._core import marks as m
from kafkasafe._core.order import Owed
from kafkasafe._io.files import Files
from kafkasafe._io.recovery import SEGMENT_NAME

__all__ = ["LaneReader"]

_TRIES: Final = 10
_GUESS_BYTES: Final = 4096
"""Most control batches are smaller."""
_OVERHEAD_BYTES: Final = 12  # what a batch's length does not count


class LaneReader:
    """Reads one lane, and later only what is new in it. From one thread at a time.

    Args:
        files: The disk.
        lane: The lane's directory.
    """

    def __init__(self, files: Files, lane: Path) -> None:
        self.path = lane
        self._files = files
        self._read: list[str] = []
        """Segments that are read to their end."""
        self._before = Owed()
        """What they say."""
        self._where: dict[int, tuple[str, int, m.ManifestEntry]] = {}
        """By position, segment and byte offset of what is open."""
        self._whole: set[int] = set()
        self._once = threading.Lock()

    def owed(self, *, tail: bool = False) -> Owed:
        """What the lane owes now; nothing where there is no such lane.

        Args:
            tail: Also leave out what a crash may have torn at the end, whose positions the next owner uses again. For
                a lane that nobody writes.

        Raises:
            OSError: It cannot be read.
            UnknownFormatError: It was written by a newer kafkasafe.
        """
        with self._once:
            for _ in range(_TRIES):
                first = self._names()[:1]
                found = self._owed()
                self._where = {at: where for at, where in self._where.items() if at in found.open}
                self._whole.intersection_update(self._where)
                self._leave_out(found, tail=tail)
                # What its owner deleted meanwhile may have been moved, behind where this has read.
                if first == self._names()[:1]:
                    return found
            raise OSError(errno.EBUSY, f"The segments of {self.path} keep changing")

    def _leave_out(self, owed: Owed, *, tail: bool) -> None:
        """Nobody delivers what is damaged: it must not be waited for."""
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
            handle = self._files.open(self.path / name)
        except FileNotFoundError:
            return False
        try:
            codec.verify(self._files.read(handle, at, entry.size_bytes))
        except codec.CorruptBatchError:
            return False
        finally:
            self._files.close(handle)
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
            # Another lane took its place, or a tail was cut off.
            self._read, self._before = [], Owed()
            self._where.clear()
            self._whole.clear()
        if names:
            self._before.begins(int(names[0][:20]))
        for name, following in zip(names[len(self._read) :], names[len(self._read) + 1 :], strict=False):
            with contextlib.suppress(FileNotFoundError):  # all of it is finished
                self._segment(name, int(following[:20]), self._before)
            self._read.append(name)
        now = self._before.copy()
        if names:
            # Its owner may have released it just now: the next look sees the one behind it.
            with contextlib.suppress(FileNotFoundError):
                self._segment(names[-1], None, now)
        return now

    def _segment(self, name: str, limit: int | None, owed: Owed) -> None:
        handle = self._files.open(self.path / name)
        try:
            size, at, position = self._files.size(handle), 0, int(name[:20])
            while at < size:
                content = self._control(handle, at)
                try:
                    group, marks = m.decode_group(content)
                except m.UnknownFormatError:
                    raise
                except m.MarkError:
                    # At the end it is being written, or a crash tore it.
                    owed.damaged = owed.damaged or limit is not None
                    return
                if limit is not None and group.position >= limit:
                    return
                if owed.lane_id not in {b"", group.lane_id}:
                    owed.damaged = True  # a segment of another lane: its owner is told when it opens the lane
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
                    # Torn by a crash it does not count: what it speaks of is where it was.
                    for at, _ in places:
                        del self._where[at]
                    return
                owed.group(group, marks)
        finally:
            self._files.close(handle)

    def _control(self, handle: int, at: int) -> bytes:
        content = self._files.read(handle, at, _GUESS_BYTES)
        if len(content) < codec.HEADER_BYTES:
            return content
        size = int.from_bytes(content[8:12], "big", signed=True) + _OVERHEAD_BYTES
        if size > len(content) and size <= self._files.size(handle) - at:
            content += self._files.read(handle, at + len(content), size - len(content))
        return content[: max(size, codec.HEADER_BYTES)]
