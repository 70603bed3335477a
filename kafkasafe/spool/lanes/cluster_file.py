"""The file CLUSTER of a spool directory contains the id of the only cluster that may get the directory's records."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kafkasafe.errors import SpoolCorruptError, SpoolError
from kafkasafe.spool.files import Files, opened
from kafkasafe.spool.lanes.format import FORMAT_NAME, write_whole
from kafkasafe.spool.lanes.lock import close_lockable, open_lockable

_CLUSTER: Final = re.compile(r"[!-~]{1,200}")
"""Pattern for the id of a cluster. The cluster id is a UUID in base64 in current versions of Kafka, and may be any
printable characters in old versions.
"""
_BIND_TRIES: Final = 250  # 5 s


class ClusterFile:
    """The file CLUSTER of one directory.

    Attributes:
        known: The cluster id that was last read from the file, written to the file, or set by `keep`; empty at first.
    """

    __slots__ = ("_files", "_path", "known")

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self.known = ""

    def write(self, cluster_id: str) -> None:
        """Writes the file durably."""
        write_whole(self._path, "CLUSTER", f"{cluster_id}\n".encode(), self._files)

    def keep(self, cluster_id: str) -> None:
        """Sets `known` to the id that the file must contain, without reading or writing the file."""
        self.known = cluster_id

    def bind(self, cluster_id: str, *, drained: Callable[[], bool]) -> tuple[str | None, bool]:
        """Durably stores the id of the only cluster that may get the records in this directory.

        Args:
            cluster_id: Id of the cluster to which the producer is connected.
            drained: Returns True if no record waits in any lane. Only then may the directory be used for another
                cluster.

        Returns:
            (former, ours). `former` is the id that the file contained before, or None. `ours` says whether the
            directory now belongs to this cluster.

        Raises:
            SpoolCorruptError: The directory's file CLUSTER does not contain an id, and records wait in the directory.
            SpoolError: The directory's file CLUSTER cannot be read or written.
        """
        try:
            handle = open_lockable(self._files, self._path / FORMAT_NAME)
            try:
                # Two processes may make their first contact with different clusters. The lock ensures that one process
                # sees the id that the other process wrote.
                for _ in range(_BIND_TRIES):
                    if self._files.lock(handle):
                        break
                    time.sleep(0.02)
                else:
                    raise SpoolError(f"{self._path / FORMAT_NAME} stays locked by another process")
                try:
                    bound = self.read()
                except SpoolCorruptError:
                    if not drained():
                        raise
                    bound = None
                if bound not in {None, cluster_id} and not drained():
                    return bound, False
                if bound != cluster_id:
                    self.write(cluster_id)
                self.known = cluster_id
            finally:
                close_lockable(self._files, handle)
        except OSError as error:
            raise SpoolError(f"{self._path / 'CLUSTER'} cannot be read or written: {error}") from error
        return bound, True

    def read(self) -> str | None:
        """Id of the cluster to which the records belong; None before the first contact.

        Raises:
            SpoolCorruptError: The file does not contain an id.
            OSError: The file cannot be read.
        """
        try:
            with opened(self._files, self._path / "CLUSTER") as handle:
                raw = self._files.read(handle, 0, 1024)
        except FileNotFoundError:
            return None
        found = raw.decode(errors="replace").strip()
        # kafkasafe always writes the file as a whole. An empty file CLUSTER was truncated later, and may have contained
        # another cluster's id.
        if not _CLUSTER.fullmatch(found):
            raise SpoolCorruptError(
                f"{self._path / 'CLUSTER'} is damaged: it contains {found[:40]!a} instead of the id of the cluster to"
                " which the records belong. Restore it from a copy, or write the id into it (kafka-cluster.sh"
                " cluster-id prints it)"
            )
        self.known = found
        return found
