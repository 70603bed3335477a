"""Finds other spool directories with undelivered records, in the parent directory of the default spool directory.

The name of the default directory depends on the client id and on the exact text of the brokers' addresses. If the
client id or an address changes, the program uses another directory. Without this module, undelivered records in the
former directory would wait forever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kafkasafe.errors import SpoolError
from kafkasafe.spool.files import Files
from kafkasafe.spool.inspection import inspect
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.lanes.format import FORMAT_NAME

_Content = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """A spool directory with undelivered records in lanes that no process owns.

    Attributes:
        path: The spool directory.
        cluster_id: Id of the cluster to which the records belong; None if no producer in the directory ever reached a
            cluster.
        same_client: Whether the client id in the directory's name is the client id of the searching producer.
        lanes: Numbers of the lanes with undelivered records.
        batches: Number of undelivered batches. An atomic batch with offsets but without records counts as one batch.
        records: Number of undelivered records.
        content: Names and sizes of the lanes' segments, to recognise that the directory has changed.
    """

    path: Path
    cluster_id: str | None
    same_client: bool
    lanes: tuple[int, ...]
    batches: int
    records: int
    content: _Content


class Siblings:
    """The directories next to `own`. `Siblings` only reads them, without locks.

    Args:
        own: A default spool directory.
    """

    def __init__(self, own: Path, files: Files) -> None:
        self._own = own
        self._files = files
        self._known: dict[Path, tuple[_Content, tuple[int, int]]] = {}
        """For each lane that was read: its content, and the number of undelivered (batches, records)."""

    def look(
        self, stop: Callable[[], bool] = lambda: False, *, same_client: bool = False
    ) -> list[LeftBehind]:
        """Returns all directories where earlier processes left undelivered records, sorted by path. If `stop` ends the
        search early, the next search finds the missing directories.

        Args:
            stop: Returns whether to end early.
            same_client: Whether to skip the directories of other client ids.
        """
        try:
            names = sorted(self._files.list(self._own.parent))
        except OSError:
            return []
        found = []
        for name in names:
            if stop():
                break
            path = self._own.parent / name
            if same_client and _client(path) != _client(self._own):
                continue
            if path == self._own:
                continue
            try:
                if not (path / FORMAT_NAME).is_file():
                    continue
                one = self._look_into(path)
            except (SpoolError, OSError):
                continue  # not readable for this user, or written by a newer version: unknown content
            if one is not None:
                found.append(one)
        return found

    def _look_into(self, path: Path) -> LeftBehind | None:
        directory = SpoolDirectory.look(path, files=self._files)
        lanes, batches, records = [], 0, 0
        content: list[tuple[str, int]] = []
        for number in directory.lanes():
            if directory.owners.seems_owned(number):
                continue
            waiting = self._waiting(directory, number)
            if waiting[0]:
                lanes.append(number)
                content += directory.content(number)
                batches += waiting[0]
                records += waiting[1]
        if not lanes:
            return None
        same = _client(path) == _client(self._own)
        return LeftBehind(path, directory.cluster_id(), same, tuple(lanes), batches, records, tuple(content))

    def _waiting(self, directory: SpoolDirectory, number: int) -> tuple[int, int]:
        """Undelivered (batches, records). An atomic batch with offsets but without records counts as a batch. Reads the
        lane again only if its files have changed.
        """
        lane = directory.lane_path(number)
        content = directory.content(number)
        known = self._known.get(lane)
        if known is not None and known[0] == content:
            return known[1]
        counts = 0, 0
        if content:
            found = inspect(lane, files=self._files)
            counts = found.unfinished, sum(each.records for each in found.waiting)
        self._known[lane] = content, counts
        return counts


def _client(path: Path) -> str:
    """The client id in a default directory's name: the part before the last dash. (The rest is a digest of the
    addresses.)
    """
    return path.name.rpartition("-")[0]
