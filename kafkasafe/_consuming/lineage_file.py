"""The file in which a consumer stores the histories of the records it has read, for the next run of its process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from kafkasafe._consuming.reports import Reports
from kafkasafe.errors import LineageFileError
from kafkasafe.history.memory import Remembered, decode, encode
from kafkasafe.history.sealed import SealError
from kafkasafe.spool.files import Files, OsFiles, read_whole, replace_whole
from kafkasafe.spool.lanes.lock import close_lockable, open_lockable

# Minimum time between two writes of the file, in seconds: `_SAVE_S` after a successful write, `_SAVE_AGAIN_S` after a
# failed write.
_SAVE_S: Final = 1.0
_SAVE_AGAIN_S: Final = 10.0


class LineageMemory:
    """Keeps the histories of partitions that are not assigned now, or were read in an earlier run. Not thread-safe.

    Args:
        path: The file; None: keep the histories only in memory.
        files: The disk, for tests.

    Raises:
        LineageFileError: The file is damaged or of a newer version, or another consumer uses it. The file was not
            changed.
        OSError: The file, or the lock next to it, cannot be opened.
    """

    def __init__(self, path: Path | None, files: Files | None = None) -> None:
        self._path = path
        self._files = OsFiles() if files is None else files
        self._known: dict[tuple[str, int], Remembered] = {}
        self._saved = ""
        self._save_due = 0.0
        self._lock: int | None = None
        if path is None:
            return
        lock = path.with_name(path.name + ".lock")
        # A forked child does not inherit this lock: an inherited lock would keep the file locked until the child ends.
        self._lock = open_lockable(self._files, lock, create=True)
        try:
            self._claim(path, lock)
            content = read_whole(self._files, path)
            if content is not None:
                self._saved = content.decode()
                self._known = decode(self._saved)
        except BaseException as error:
            self.close()
            if isinstance(error, SealError | UnicodeDecodeError):
                raise LineageFileError(
                    f"{path} cannot be used: {error}. Replace it by an intact copy, or move it away. Without it, the"
                    " consumer cannot find out whether the records that it has read are still in the log. So compare"
                    " them with the log yourself, from positions that you have stored."
                ) from None
            raise

    def _claim(self, path: Path, lock: Path) -> None:
        if self._lock is None or not self._files.lock(self._lock):
            raise LineageFileError(
                f"{path} is in use by another consumer (which holds {lock}): give each consumer its own file"
            )

    def get(self, topic: str, partition: int) -> Remembered | None:
        return self._known.get((topic, partition))

    def keep(self, topic: str, partition: int, known: Remembered) -> None:
        """Remembers the history of a partition, without writing it to disk yet."""
        if known.lineage.entries:
            self._known[topic, partition] = known

    def forget(self, topic: str, partition: int) -> None:
        """Forgets the history of a partition."""
        self._known.pop((topic, partition), None)

    def save(self) -> bool:
        """Writes all remembered histories. They are durable on return. Returns whether anything had changed.

        Raises:
            OSError: The file could not be written. The previous content has not changed.
        """
        if self._path is None or self._lock is None:
            return False
        text = encode(self._known)
        if text == self._saved or not (self._known or self._saved):
            return False
        replace_whole(self._files, self._path, text.encode())
        self._saved = text
        return True

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._save_due

    def save_if_possible(self, reports: Reports) -> None:
        """Writes all remembered histories. If this fails, logs and counts the error."""
        try:
            self.save()
        except OSError:
            # Let the consumer read on: only the program's next run needs the file. `close` raises the error.
            reports.log.exception(
                "%s could not be written",
                self._path,
                path=str(self._path),
                event="lineage_not_written",
            )
            reports.lineage_not_written()
            self._save_due = time.monotonic() + _SAVE_AGAIN_S
        else:
            self._save_due = time.monotonic() + _SAVE_S

    def close(self) -> None:
        """Releases the file without saving. Idempotent. Not for a forked child, which does not have the lock."""
        lock, self._lock = self._lock, None
        if lock is not None:
            close_lockable(self._files, lock)
