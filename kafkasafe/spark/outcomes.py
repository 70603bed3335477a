"""How a process that commits tells the driver's listener what became of a micro-batch.

A data source's writer commits in a process of its own, and Spark passes nothing on from there. Both are on the driver's
machine and of one user: the listener's process binds a datagram socket in the directory for temporary files, and puts a
link to it under the id of each query that starts; the committing process sends a datagram to where the link leads.
Nobody listens: there is no link, or a dead one, and nothing is sent. Counts are all that goes this way; whatever goes
wrong with them, the micro-batch is none of it.

The source's planner, a process of its own as well, does not know its query. Spark's JVM is its ancestor, so the
listener puts a link under the JVM's process id too.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import secrets
import select
import socket
import stat
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from kafkasafe.spark import stats
from kafkasafe.spark.session import Outcome

__all__ = ["Inbox", "inbox", "tell", "tell_source_event"]

log = logging.getLogger("kafkasafe.spark")

_MODE: Final = 0o700
_QUERY_ID: Final = re.compile(r"[0-9a-fA-F-]{1,64}")  # it becomes a file's name
_SEND_S: Final = 0.2  # a driver that does not read must not hold up a commit
_MOST_BYTES: Final = 4096
_MOST_ANCESTORS: Final = 16


def _directory() -> Path:
    return Path(tempfile.gettempdir()) / f"kafkasafe-spark-{os.getuid()}"


def _is_ours(directory: Path) -> bool:
    """The directory for temporary files is everybody's: one that another user made under our name is not used."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def tell(query_id: str, outcome: Outcome | None, **totals: int) -> None:
    """Says what became of a micro-batch, if somebody listens. Never raises, and waits 0.2 s at most.

    Args:
        query_id: Of the streaming query.
        outcome: Of the micro-batch, None: it failed.
        totals: `restarts`, `retries` and `bytes`.
    """
    message = {
        "query": query_id,
        "outcome": None if outcome is None else outcome.name,
        "rows": 0 if outcome is None else outcome.rows,
        **totals,
    }
    if _QUERY_ID.fullmatch(query_id):
        _send(query_id, message)


def tell_source_event(topic: str, event: str, reason: str, records: int = 0) -> None:
    """Says what the source noticed, if a listener of this driver is on this machine. Never raises, as `tell`.

    Args:
        topic: Where.
        event: `held`, `lowered` or `lost`.
        reason: Why.
        records: Offsets that a query goes on without, as far as that is known.
    """
    message = {"topic": topic, "event": event, "reason": reason, "records": records}
    for pid in _ancestors():
        if _send(_link_of(pid), message):
            return


def _send(link: str, message: dict[str, Any]) -> bool:
    """Whether somebody listens there."""
    try:
        directory = _directory()
        if not _is_ours(directory):
            return False
        # By the name that the link holds: a path by way of the link may be too long for a socket's address.
        to = str(directory / (directory / link).readlink().name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_SEND_S)
            sender.sendto(json.dumps(message).encode(), to)
    except FileNotFoundError:
        return False  # nobody listens
    except Exception as failed:
        log.debug("The listener was not notified of %s: %r", message, failed)
        return False
    return True


def _link_of(pid: int) -> str:
    return f"jvm-{pid}"


def _ancestors() -> list[int]:
    """Processes that this one descends from, nearest first; where there is no /proc, its parent alone."""
    found = [os.getppid()]
    with contextlib.suppress(OSError, ValueError, IndexError):
        while found[-1] > 1 and len(found) < _MOST_ANCESTORS:
            # "pid (name) state parent …", and a name may hold anything.
            found.append(int(Path(f"/proc/{found[-1]}/stat").read_text().rpartition(")")[2].split()[1]))
    return found


class Inbox:
    """Counts what is told to this process, in `stats`; one for all listeners."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._path = Path()
        self._thread: threading.Thread | None = None
        self._owner = 0
        # Query id → its runs that some listener has seen start. There is a link for it.
        self._runs: dict[str, set[str]] = {}
        self._jvms: set[int] = set()  # Invariant: there is a link for each.

    def expect_sources(self, jvm: int) -> None:
        """Sources of the driver whose JVM is this process may have something to say. Never raises."""
        with self._lock:
            try:
                self._link(_link_of(jvm))
                self._jvms.add(jvm)
            except Exception as failed:
                log.warning("What sources notice is not counted: %s", failed)

    def expect(self, query_id: str, run_id: str) -> None:
        """A query has started. Never raises."""
        with self._lock:
            runs = self._runs.setdefault(query_id, set())
            runs.add(run_id)
            # More than one: the end of the run before is not told yet.
            if len(runs) > 1 or not _QUERY_ID.fullmatch(query_id):
                return
            try:
                self._link(query_id)
            except Exception as failed:
                log.warning("What the writer of query %s does is not counted: %s", query_id, failed)

    def _link(self, name: str) -> None:
        self._bind()
        link = self._path.parent / name
        fresh = link.with_name(f"{self._path.name}-{name}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(self._path.name)
        fresh.replace(link)  # also that of a driver which died, or hangs

    def hear(self) -> None:
        """Counts what was told by now."""
        with self._lock:
            if self._socket is None:
                return
            while True:
                try:
                    told = self._socket.recv(_MOST_BYTES)
                except OSError:  # nothing more
                    return
                try:
                    _count(json.loads(told))
                except Exception as failed:
                    log.debug("Not understood: %r (%r)", told[:200], failed)

    def stop_expecting(self, query_id: str, run_id: str) -> None:
        """A run has ended: counts the rest. Never raises."""
        self.hear()
        with self._lock:
            runs = self._runs.get(query_id, set())
            runs.discard(run_id)
            if not runs and self._runs.pop(query_id, None) is not None:
                self._unlink(query_id)

    def close(self) -> None:
        """Removes what this process has in the directory."""
        with self._lock:
            if self._socket is None or self._owner != os.getpid():
                return
            for name in (*self._runs, *map(_link_of, self._jvms)):
                self._unlink(name)
            self._runs.clear()
            self._jvms.clear()
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._leave(self._socket)
            self._socket, thread = None, self._thread
        if thread is not None:
            thread.join(_SEND_S)

    @staticmethod
    def _leave(bound: socket.socket) -> None:
        with contextlib.suppress(OSError):
            bound.shutdown(socket.SHUT_RDWR)  # wakes its thread

    def _bind(self) -> None:
        # Directories for temporary files are cleaned at times, whoever still uses them.
        if self._socket is not None and self._owner == os.getpid() and self._path.is_socket():
            return
        directory = _directory()
        directory.mkdir(_MODE, exist_ok=True)
        if not _is_ours(directory):
            raise PermissionError(f"{directory} is another user's, or open to others: remove it")
        _tidy(directory)
        path = directory / secrets.token_hex(8)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            bound.bind(str(path))
        except BaseException:
            bound.close()
            raise
        bound.setblocking(False)
        if self._socket is not None and self._owner == os.getpid():
            self._leave(self._socket)
        self._socket, self._path, self._owner = bound, path, os.getpid()
        # The kernel holds few datagrams, and Spark may be slow to call its listeners.
        self._thread = threading.Thread(
            target=self._listen, args=(bound,), name="kafkasafe-outcomes", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

    def _listen(self, bound: socket.socket) -> None:
        # Closed here alone: its number may be another file's as soon as it is.
        with bound:
            told = select.poll()
            told.register(bound, select.POLLIN)
            while self._socket is bound:
                told.poll()
                self.hear()

    def _unlink(self, name: str) -> None:
        """Unless the link leads to another driver by now."""
        link = self._path.parent / name
        with contextlib.suppress(OSError):
            if link.readlink().name == self._path.name and self._owner == os.getpid():
                link.unlink()


def _tidy(directory: Path) -> None:
    """Removes what drivers that were killed have left."""
    for path in directory.iterdir():
        with contextlib.suppress(OSError):
            if path.is_socket() and not path.is_symlink():
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                    try:
                        probe.connect(str(path))
                    except ConnectionRefusedError:
                        path.unlink()
    for path in directory.iterdir():
        with contextlib.suppress(OSError):
            if path.is_symlink() and not path.exists():
                path.unlink()


inbox: Final = Inbox()
"""Of this process."""


def _count(told: dict[str, Any]) -> None:
    if "event" in told:
        stats.count_source_event(
            str(told["topic"]), str(told["event"]), str(told["reason"]), int(told["records"])
        )
        return
    query_id = told["query"]
    totals = {name: int(told[name]) for name in ("restarts", "retries", "bytes")}
    name = told["outcome"]
    outcome = None if name is None else Outcome(name, int(told["rows"]), totals["restarts"], 0.0)
    stats.count(query_id, outcome, totals)
