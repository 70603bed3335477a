"""Sends counts from Spark's helper processes on the driver to the listener in the driver process.

A data source's writer commits in a separate process, and Spark passes no results from that process to the driver
process. But the writer's process and the driver process run on the same machine, as the same user, so they communicate
through a datagram socket:

1. The listener's process binds a socket in the directory for temporary files.
2. When a query starts, the listener creates a symbolic link to the socket, named after the query's id.
3. The committing process resolves the link and sends a datagram to the socket. If the link or its socket is missing,
   the process sends nothing.

The datagrams carry only counts. A datagram that cannot be sent never affects a micro-batch.

The source's planner also runs in a separate process, which does not know the id of its query. But the planner can find
the process id of Spark's JVM, because the JVM is an ancestor of the planner's process. So the listener creates a second
link, named after the JVM's process id.
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

from kafkasafe.process.locks import new_lock
from kafkasafe.spark import stats
from kafkasafe.spark.session import Outcome

log = logging.getLogger("kafkasafe.spark")

_MODE: Final = 0o700
_QUERY_ID: Final = re.compile(r"[0-9a-fA-F-]{1,64}")  # the id becomes a file name
_SEND_S: Final = 0.2  # a driver that does not read must not block a commit
_MOST_BYTES: Final = 4096
_MOST_ANCESTORS: Final = 16


def _directory() -> Path:
    return Path(tempfile.gettempdir()) / f"kafkasafe-spark-{os.getuid()}"


def _is_ours(directory: Path) -> bool:
    """Returns whether only this user can access the directory. In /tmp, another user may have created the directory
    first.
    """
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def tell(query_id: str, outcome: Outcome | None, **totals: int) -> None:
    """Sends the outcome of a micro-batch to the listener, if there is one. Never raises, and waits at most 0.2 s.

    Args:
        query_id: The streaming query's id.
        outcome: The micro-batch's outcome; None: it failed.
        totals: `restarts`, `retries` and `bytes` of the micro-batch.
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
    """Sends an event of the source to the listener of this driver, if there is a listener on this machine. Never
    raises.

    Args:
        topic: The topic's name.
        event: `held`, `regressed` or `lost`.
        reason: The event's reason.
        records: Number of lost offsets; 0 if none were lost or the number is unknown.
    """
    message = {"topic": topic, "event": event, "reason": reason, "records": records}
    for pid in _ancestors():
        if _send(_link_of(pid), message):
            return


def _send(link: str, message: dict[str, Any]) -> bool:
    """Sends a message to the socket to which a link points. Returns whether the socket took the message."""
    try:
        directory = _directory()
        if not _is_ours(directory):
            return False
        # Send to the socket's real path. The link's path may be too long for a socket address.
        to = str(directory / (directory / link).readlink().name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_SEND_S)
            sender.sendto(json.dumps(message).encode(), to)
    except FileNotFoundError:
        return False  # no listener
    except Exception as failed:
        log.debug("The listener was not notified of %s: %r", message, failed)
        return False
    return True


def _link_of(pid: int) -> str:
    return f"jvm-{pid}"


def _ancestors() -> list[int]:
    """Returns the process ids of this process's ancestors, nearest first. Without /proc, returns only the id of the
    parent.
    """
    found = [os.getppid()]
    with contextlib.suppress(OSError, ValueError, IndexError):
        while found[-1] > 1 and len(found) < _MOST_ANCESTORS:
            # The format is "pid (name) state parent …", and a name may contain any character.
            found.append(int(Path(f"/proc/{found[-1]}/stat").read_text().rpartition(")")[2].split()[1]))
    return found


class Inbox:
    """Receives the messages for this process and counts them in `stats`. All listeners share one inbox."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._socket: socket.socket | None = None
        self._path = Path()
        self._thread: threading.Thread | None = None
        self._owner = 0
        # Query id → ids of its started runs. Each query id has a link.
        self._runs: dict[str, set[str]] = {}
        self._jvms: set[int] = set()  # process ids of JVMs, each with a link

    def expect_sources(self, jvm: int) -> None:
        """Creates the symbolic link through which a driver's sources find the socket. `jvm` is the process id of the
        driver's JVM.

        Never raises.
        """
        with self._lock:
            try:
                self._link(_link_of(jvm))
                self._jvms.add(jvm)
            except Exception as failed:
                log.warning("Events of Spark sources are not counted: %s", failed)

    def expect(self, query_id: str, run_id: str) -> None:
        """Creates the link through which the writer of a started query finds the socket. Never raises."""
        with self._lock:
            runs = self._runs.setdefault(query_id, set())
            runs.add(run_id)
            # The link may exist already, because Spark may not have reported the end of an earlier run yet.
            if len(runs) > 1 or not _QUERY_ID.fullmatch(query_id):
                return
            try:
                self._link(query_id)
            except Exception as failed:
                log.warning("Outcomes of the writer of query %s are not counted: %s", query_id, failed)

    def _link(self, name: str) -> None:
        if self._bind():
            # The links that this process made for other queries point to an older socket, which no longer exists. A
            # link to an existing socket belongs to another driver.
            others = {query_id for query_id in self._runs if _QUERY_ID.fullmatch(query_id)}
            for other in others | set(map(_link_of, self._jvms)):
                if not (self._path.parent / other).exists():
                    self._link_to_socket(other)
        self._link_to_socket(name)

    def _link_to_socket(self, name: str) -> None:
        link = self._path.parent / name
        fresh = link.with_name(f"{self._path.name}-{name}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(self._path.name)
        fresh.replace(link)  # also replaces the link of a driver that is dead or no longer answers

    def hear(self) -> None:
        """Counts the messages that have arrived so far."""
        with self._lock:
            if self._socket is not None:
                _receive(self._socket)

    def stop_expecting(self, query_id: str, run_id: str) -> None:
        """Adds the last messages of an ended run to the counts. If the query has no other run, removes its link.

        Never raises.
        """
        self.hear()
        with self._lock:
            runs = self._runs.get(query_id, set())
            runs.discard(run_id)
            if not runs and self._runs.pop(query_id, None) is not None:
                self._unlink(query_id)

    def close(self) -> None:
        """Removes this process's socket and links from the directory."""
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
            bound.shutdown(socket.SHUT_RDWR)  # wakes the socket's thread

    def _bind(self) -> bool:
        """Binds a socket, unless there is one. Returns whether the socket is new."""
        # Some systems clean temporary directories regularly, so the socket file may have been removed.
        if self._socket is not None and self._owner == os.getpid() and self._path.is_socket():
            return False
        directory = _directory()
        directory.mkdir(_MODE, exist_ok=True)
        if not _is_ours(directory):
            raise PermissionError(f"{directory} belongs to another user, or others may access it: remove it")
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
        # Read the socket on a separate thread: the kernel buffers only a few datagrams, and Spark may call listeners
        # late.
        self._thread = threading.Thread(
            target=self._listen, args=(bound,), name="kafkasafe-outcomes", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)
        return True

    def _listen(self, bound: socket.socket) -> None:
        # Only this thread closes the socket. If another thread closed the socket, a new file could get the descriptor
        # number that this thread polls.
        with bound:
            poller = select.poll()
            poller.register(bound, select.POLLIN)
            while self._socket is bound:
                poller.poll()
                self.hear()

    def _unlink(self, name: str) -> None:
        """Removes a link, unless it now points to another driver's socket."""
        link = self._path.parent / name
        with contextlib.suppress(OSError):
            if link.readlink().name == self._path.name and self._owner == os.getpid():
                link.unlink()


def _tidy(directory: Path) -> None:
    """Removes sockets and links that killed drivers left in the directory."""
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
"""The inbox of this process."""


def _receive(messages: socket.socket) -> None:
    while True:
        try:
            datagram = messages.recv(_MOST_BYTES)
        except OSError:  # no more messages
            return
        try:
            _count(json.loads(datagram))
        except Exception as failed:
            log.debug("Ignored a malformed message: %r (%r)", datagram[:200], failed)


def _count(report: dict[str, Any]) -> None:
    if "event" in report:
        stats.count_source_event(
            str(report["topic"]), str(report["event"]), str(report["reason"]), int(report["records"])
        )
        return
    query_id = report["query"]
    totals = {name: int(report[name]) for name in ("restarts", "retries", "bytes")}
    name = report["outcome"]
    outcome = None if name is None else Outcome(name, int(report["rows"]), totals["restarts"], 0.0)
    stats.count(query_id, outcome, totals)
