"""A task of the sink that stalls between its rows and its first request. Importable by Spark's workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafkasafe.spark.tasks import DirectWrite, task_context

PATIENCE_S = 60.0


def wait_for(flag: Path) -> None:
    """Waits until a file is there, or for a minute."""
    deadline = time.monotonic() + PATIENCE_S
    while not flag.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


@dataclass(frozen=True)
class StalledWrite(DirectWrite):
    """Attempt 1 of task 0 has rows, makes the file `stalled`, and goes on when there is a file `verified`."""

    folder: str

    def __call__(self, rows: Iterator[Any]) -> Iterator[Any]:
        context = task_context()

        def late() -> Iterator[Any]:
            for part in rows:
                if context.partitionId() == 0 and context.attemptNumber() == 1:
                    (Path(self.folder) / "stalled").touch()
                    wait_for(Path(self.folder) / "verified")
                yield part

        yield from super().__call__(late())
