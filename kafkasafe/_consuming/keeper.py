"""Keep the histories of partitions that are not assigned any more, and write them to the file `lineage_path`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from kafka.structs import TopicPartition

from kafkasafe._consuming.lineage_file import LineageMemory
from kafkasafe._consuming.partition import AssignedPartition
from kafkasafe._consuming.reports import Reports, log
from kafkasafe.history.memory import Remembered

__all__ = ["HistoryKeeper"]

# Shortest time between two writes of the file, in seconds: first after a successful write, then after a failed one.
_SAVE_S: Final = 1.0
_SAVE_AGAIN_S: Final = 10.0


class HistoryKeeper:
    """Keeps the histories of one consumer. Only the polling thread calls this object.

    Args:
        path: The option `lineage_path`.
        memory: The histories in the file at `path`; only in memory without a path.
        client_id: The consumer's client id, for the log.
        reports: Counts failed writes.
    """

    __slots__ = ("_client_id", "_memory", "_path", "_reports", "_save_due")

    def __init__(self, path: Path | None, memory: LineageMemory, client_id: str, reports: Reports) -> None:
        self._path = path
        self._memory = memory
        self._client_id = client_id
        self._reports = reports
        self._save_due = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the file should be written now."""
        return self._path is not None and time.monotonic() >= self._save_due

    def known(self, tp: TopicPartition) -> Remembered | None:
        """Return the history of an earlier assignment, or of an earlier incarnation."""
        return self._memory.get(tp.topic, tp.partition)

    def keep(self, tp: TopicPartition, part: AssignedPartition, least: int = 0) -> None:
        """Keep the history of a partition, up to its position.

        Args:
            tp: The partition.
            part: State of the partition.
            least: Keep at least the history up to this offset: all records before it were returned to the application.
        """
        position = part.state.position
        # Without a position (during a reset) keep the whole history.
        end = None if position is None else max(position.offset, least)
        self._memory.keep(tp.topic, tp.partition, part.history.remembered(end))

    def save(
        self,
        parts: Iterable[tuple[TopicPartition, AssignedPartition]],
        records: Mapping[TopicPartition, list[Any]],
    ) -> None:
        """Write the file. It is durable on return.

        Args:
            parts: All partitions.
            records: Records that are about to be returned. The positions do not include them.

        Raises:
            OSError: The file could not be written. It keeps its former contents.
        """
        for tp, part in parts:
            some = records.get(tp)
            self.keep(tp, part, some[-1].offset + 1 if some else 0)
        self._memory.save()

    def save_if_possible(
        self,
        parts: Iterable[tuple[TopicPartition, AssignedPartition]],
        records: Mapping[TopicPartition, list[Any]],
    ) -> None:
        """Write the file, and log the error if that fails."""
        try:
            self.save(parts, records)
        except OSError:
            # Continue to read: without the file, only the next run knows less. `close` raises the error.
            log.exception(
                "%s could not be written",
                self._path,
                client_id=self._client_id,
                path=str(self._path),
                event="lineage_not_written",
            )
            self._reports.lineage_not_written()
            self._save_due = time.monotonic() + _SAVE_AGAIN_S
        else:
            self._save_due = time.monotonic() + _SAVE_S
