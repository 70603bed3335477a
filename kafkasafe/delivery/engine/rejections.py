"""The rejected batches of one lane that are not finished yet, and the lane's damaged batches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["Rejections"]


class Rejections:
    """Where the records of rejected batches are kept, and which destinations wait for a damaged batch."""

    __slots__ = ("_paths", "_stopped")

    def __init__(self) -> None:
        self._paths: dict[int, Path | None] = {}
        """By handle of the batch."""
        self._stopped: dict[int, float] = {}
        """Destinations whose next batch is damaged on disk, and when the engine reads it again, monotonic seconds."""

    def __contains__(self, handle: int) -> bool:
        return handle in self._paths

    def keep(self, handles: Iterable[int], path: Path | None) -> None:
        """Record that the records of these batches are kept in this file; None: in none (`spool="never"`)."""
        self._paths.update(dict.fromkeys(handles, path))

    def path(self, handle: int) -> Path | None:
        """The file with the records of a rejected batch."""
        return self._paths[handle]

    def finish(self, handle: int) -> Path | None:
        """Forget a rejected batch: it is finished. Returns the file with its records."""
        return self._paths.pop(handle)

    def stop(self, destination: int, until: float) -> None:
        """Let a destination wait: its next batch is damaged, and the engine reads it again at this time."""
        self._stopped[destination] = until

    def stopped(self, now: float) -> set[int]:
        """The destinations that wait."""
        return {destination for destination, until in self._stopped.items() if until > now}
