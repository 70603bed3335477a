"""Finds out which processes own the lanes of a directory, from the locks and from the text in the lock files."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from kafkasafe.spool.files import Files, opened
from kafkasafe.spool.lanes.lock import LOCK_NAME, close_lockable, open_lockable

NO_CLIENT: Final = "-"
"""Stands for an unknown client id in the lock file of an owner that only drains a lane."""
_MOST_BYTES: Final = 128 * 1024
"""Number of bytes to read from a lock file. This is enough for the longest client id: a client id is quoted as in a
URL, so one byte may become three.
"""


class Owners:
    """Reads the lock files of lanes. The text in a lock file may come from a dead owner. Only `is_owned` tests the
    lock.
    """

    __slots__ = ("_files", "_path_of")

    def __init__(self, files: Files, path_of: Callable[[int], Path]) -> None:
        self._files = files
        self._path_of = path_of

    def owner(self, number: int) -> tuple[int, str]:
        """(pid, text) of a lane's lock file; (0, "") if the file has no text."""
        text = self._lock_text(number).strip()
        match = re.match(r"pid (\d+)\b", text)
        return (int(match[1]) if match else 0), text

    def _lock_text(self, number: int) -> str:
        try:
            with opened(self._files, self._path_of(number) / "lock") as handle:
                return self._files.read(handle, 0, _MOST_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def adopted(self, number: int) -> bool:
        """Whether the lane's owner has written that it only drains the lane."""
        return " adopts " in self.owner(number)[1]

    def begun(self, number: int) -> int:
        """Position where the owner's incarnation begins; -1 if the lock file names no position, or the owner only
        drains the lane.
        """
        match = re.search(r" from (\d+)$", self.owner(number)[1])
        return int(match[1]) if match else -1

    def client(self, number: int) -> str:
        """Client id of the producer that wrote a lane's records; empty if unknown."""
        # Require a separator after the client id, because the text may be incomplete: it is not synced, so a power
        # failure may leave only its beginning.
        match = re.search(r"\b(?:client|adopts) (\S+)\s", self._lock_text(number))
        return unquote(match[1]) if match and match[1] != NO_CLIENT else ""

    def is_owned(self, number: int) -> bool:
        """Whether a process owns the lane now."""
        return self.is_locked(self._path_of(number) / "lock")

    def is_locked(self, path: Path) -> bool:
        """Whether a process holds a lock on this file now."""
        try:
            handle = open_lockable(self._files, path)
        except OSError:
            return False
        try:
            return not self._files.lock(handle)
        finally:
            close_lockable(self._files, handle)

    def seems_owned(self, number: int) -> int:
        """Pid of the process that seems to own the lane, 0 if none does. The result may be wrong, because this method
        does not test the lock. A caller must take the lock before it changes the lane.

        Uses the owner's text in the lock file, and the kernel's list of locks if it exists. `is_owned` would have to
        take the lock for a moment, and a producer that starts at this moment would choose another lane.
        """
        pid, text = self.owner(number)
        if not pid or f"host {platform.node()} " not in text:
            return pid
        try:
            inode = (self._path_of(number) / "lock").stat().st_ino
            locks = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return pid if _lives(pid) else 0
        held = any(
            len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode)
            for fields in map(str.split, locks)
        )
        return pid if held else 0

    def strays_to(self, number: int) -> Path | None:
        """Returns the current path of the lane directory that the process named in the lock file has open; None if the
        path is the lane's own path.

        If the result is a path, the directory was moved or replaced while its producer was running. The result is also
        None for a process of another user or on another host, whose open files the operating system does not show.
        """
        pid, text = self.owner(number)
        if not pid or f"host {platform.node()} " not in text or self.seems_owned(number):
            return None
        with contextlib.suppress(OSError):
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    path = handle.readlink()
                    # Compare the whole text of the lock file, because another process may have the pid now.
                    if (
                        path.name == LOCK_NAME.name
                        and handle.read_bytes().decode(errors="replace").strip() == text
                    ):
                        return path.parent
        return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process belongs to another user
    return True
