"""The directory of a cluster, its logs, and errors that name the log files."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kafkasafe.errors import ConfigError, UsageError
from kafkasafe.testing._real.node import POLL_S, Node, tail
from kafkasafe.testing._real.processes import Resources
from kafkasafe.testing._real.values import ClusterError, log


class Workspace:
    """The directory of a cluster. `Resources` removes the directory at the end."""

    def __init__(self, resources: Resources, given: Path | None) -> None:
        self._resources = resources
        self._given = given
        self._directory: Path | None = None

    @property
    def opened(self) -> bool:
        """True after `open` was called, and after the cluster was closed without being opened."""
        return self._directory is not None or self._resources.released

    def open(self) -> Path:
        """Creates the directory, with an empty directory for logs in it."""
        if self._given is None:
            self._directory = Path(tempfile.mkdtemp(prefix="kafkasafe-"))
            self._resources.own_directory(self._directory)
        else:
            self._given.mkdir(parents=True, exist_ok=True)
            if any(self._given.iterdir()):
                raise ConfigError(
                    f"data_dir {self._given} is not empty; a cluster starts with no data, name another directory"
                )
            self._directory = self._given.absolute()
        (self._directory / "logs").mkdir()
        self._resources.own_logs(self._directory / "logs")
        return self._directory

    @property
    def directory(self) -> Path:
        """The directory. Raises `UsageError` before `open`."""
        if self._directory is None:
            raise UsageError("the cluster is not open")
        return self._directory

    @property
    def log_dir(self) -> Path:
        return self.directory / "logs"

    def keep_logs(self, reason: str = "") -> Path:
        self._resources.keep()
        logs = self.log_dir
        if reason:
            log.info("logs of the Kafka nodes are kept in %s: %s", logs, reason)
        return logs

    def error(self, message: str, nodes: Sequence[Node]) -> ClusterError:
        """Makes an error whose message contains the last lines of the first three nodes' logs. Keeps all logs."""
        logs = self.keep_logs()
        ends = "".join(f"\n--- end of {node.log}:\n{tail(node.log)}" for node in nodes[:3])
        return ClusterError(f"{message}; logs: {logs}{ends}", log_dir=logs)

    def until(self, condition: Callable[[], bool], timeout_s: float, message: str) -> None:
        """Polls until `condition` holds. Raises `ClusterError` after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise self.error(message, [])
            time.sleep(POLL_S)
