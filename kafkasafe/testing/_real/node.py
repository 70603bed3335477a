"""One process of a cluster, and helpers for its files."""

from __future__ import annotations

import base64
import dataclasses
import subprocess
import time
import uuid
from pathlib import Path
from typing import Literal

from kafkasafe.testing._real.processes import spawn

SESSION_TIMEOUT_MS = 2000
POLL_S = 0.05
MIN_ISR = "min.insync.replicas"


@dataclasses.dataclass(slots=True)
class Node:
    """One process: how to start it, and its current state."""

    id: int
    kind: Literal["broker", "controller", "combined", "zookeeper"]
    directory: Path
    command: list[str]
    ports: tuple[int, ...]  # all ports of the process; requests go to the first one
    process: subprocess.Popen[bytes] | None = None
    paused: bool = False
    killed_at: float = 0.0

    @property
    def log(self) -> Path:
        return self.directory.parent / "logs" / f"{self.name}.log"

    @property
    def name(self) -> str:
        return self.kind if self.kind in {"controller", "zookeeper"} else f"broker-{self.id}"

    @property
    def serves(self) -> bool:
        return self.kind in {"broker", "combined"}

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def state(self) -> str:
        if not self.running:
            return "down"
        return "paused" if self.paused else "up"

    def spawn(self) -> subprocess.Popen[bytes]:
        self.paused = False
        self.process = spawn(self.command, self.directory, self.log)
        return self.process

    def stopped(self) -> None:
        """Stores that the process was shut down in an orderly way."""
        self.process = None
        self.killed_at = 0.0

    def killed(self) -> None:
        """Updates this object after the process has ended without a shutdown."""
        self.process, self.paused, self.killed_at = None, False, time.monotonic()

    def set_paused(self, paused: bool) -> None:
        self.paused = paused

    def run_as(self, command: list[str]) -> None:
        """Sets another command for the next start."""
        self.command = command


def random_id() -> str:
    """Returns an id like Kafka's `Uuid`: 16 bytes in URL-safe base64 that do not start with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def tail(path: Path, lines: int = 15) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"({error})"
