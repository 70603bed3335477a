"""Starts, kills and watches the process of a client under test."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kafkasafe.demo.ledger import DemoError, Ledger


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a client: how many records have each state, and whether its process is running."""

    client: str
    accepted: int
    durable: int
    acked: int
    alive: bool


class Worker:
    """The process of one client, which may be killed and started several times."""

    def __init__(
        self,
        client: str,
        topic: str,
        bootstrap_servers: Sequence[str],
        directory: Path,
        *,
        records: int,
        rate: float,
        partitions: int,
    ) -> None:
        self.client = client
        self.keep = False
        self.ledger = Ledger(directory / f"{client}.ledger", records)
        self._log = directory / f"{client}.log"
        self._command = [
            *(sys.executable, "-m", "kafkasafe.demo.clients", client),
            *("--bootstrap", ",".join(bootstrap_servers)),
            *("--topic", topic),
            *("--ledger", str(directory / f"{client}.ledger")),
            *("--spool", str(directory / f"{client}.spool")),
            *("--rate", f"{rate:.3f}"),
            *("--partitions", str(partitions)),
            *("--parent", str(os.getpid())),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process, even after it was killed."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches only the demo, which then ends its children
            )

    def kill(self) -> None:
        """Sends SIGKILL, and returns when the process has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def finish(self, timeout_s: float = 30.0) -> None:
        """Lets the process close its producer and end."""
        self.ledger.ask_stop()
        if self._process is None:
            return
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DemoError(f"{self.client} was not closed after {timeout_s:g} s:\n{self.tail()}") from None
        if code:
            raise DemoError(f"The process of {self.client} ended with code {code}:\n{self.tail()}")

    def keep_files(self) -> None:
        """Keeps the ledger, the log and the spool from being removed at the end of the demo."""
        self.keep = True

    def reached(self) -> int:
        """Returns the first number that was not passed to `send` yet."""
        return self.ledger.next_number()

    def progress(self) -> Progress:
        """Returns what the client has reported until now."""
        ledger = self.ledger
        accepted, durable, acked = (
            int(np.count_nonzero(ledger[plane])) for plane in ("accepted", "durable", "acked")
        )
        return Progress(self.client, accepted, durable, acked, self.alive)

    def tail(self, lines: int = 15) -> str:
        """The end of the process's log."""
        try:
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
        except OSError as error:
            return str(error)
