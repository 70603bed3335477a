"""What a client under test reported about each record."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from kafkasafe.errors import KafkaSafeError

CLIENTS: Final = ("kafkasafe", "outbox", "kafka-python", "confluent-kafka")
DURABLE_CLIENTS: Final = frozenset({"kafkasafe", "outbox"})
"""Clients that write a record to disk before they promise its delivery."""

VALUE_BYTES: Final = 100
DIGITS: Final = 12

Plane: TypeAlias = Literal["attempted", "accepted", "durable", "acked", "failed"]
Flags: TypeAlias = npt.NDArray[np.uint8]
PLANES: Final[tuple[Plane, ...]] = ("attempted", "accepted", "durable", "acked", "failed")
_CELLS: Final = 4


class DemoError(KafkaSafeError, RuntimeError):
    """The demo could not be carried out. The error does not mean that records were lost."""


class Ledger:
    """What a client reported about each record, in a file that the demo and the producing process share.

    The file survives kill -9.

    Args:
        path: The file.
        records: Number of records, to create the file; None: open an existing file.
    """

    def __init__(self, path: Path, records: int | None = None) -> None:
        cells = 8 * _CELLS
        if records is not None:
            with path.open("wb") as file:
                file.truncate(cells + len(PLANES) * records)
        self.records = (path.stat().st_size - cells) // len(PLANES)
        self._cells: npt.NDArray[np.int64] = np.memmap(path, np.int64, "r+", 0, (_CELLS,))
        planes: Flags = np.memmap(path, np.uint8, "r+", cells, (len(PLANES), self.records))
        self._planes: dict[Plane, Flags] = {name: planes[row] for row, name in enumerate(PLANES)}

    def __getitem__(self, plane: Plane) -> Flags:
        return self._planes[plane]

    @property
    def limit(self) -> int:
        """The first number that the producing process must not send yet. The demo sets this limit."""
        return int(self._cells[0])

    def set_limit(self, number: int) -> None:
        self._cells[0] = number

    @property
    def settled(self) -> int:
        """The client has reported an outcome for every record with a number below this one. The producing process sets
        the number.
        """
        return int(self._cells[1])

    def settle(self, number: int) -> None:
        self._cells[3] = time.monotonic_ns()
        self._cells[1] = number

    @property
    def settled_at(self) -> float:
        """Time at which `settle` was last called, in seconds of the system's monotonic clock."""
        return int(self._cells[3]) / 1e9

    @property
    def stop(self) -> bool:
        """Whether the producer should close and end."""
        return bool(self._cells[2])

    def ask_stop(self) -> None:
        self._cells[2] = True

    def next_number(self) -> int:
        """Returns the first number that no process of the client has used."""
        # Numbers are used in order and without gaps.
        return int(np.count_nonzero(self["attempted"]))
