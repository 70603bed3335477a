"""Reserves ports and starts child processes, and releases all of them at the end. Does not depend on a cluster."""

from __future__ import annotations

import fcntl
import os
import queue
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kafkasafe.testing._real.values import ClusterError

# This launcher runs in the child process after the fork, until the JVM replaces it (`exec`). Calling prctl in the
# launcher avoids preexec_fn, which is unsafe with threads. If the parent died before prctl took effect, the kernel
# would never send the signal. So the launcher checks the parent after prctl.
_LAUNCHER = (
    "import ctypes,os,sys\n"
    "ctypes.CDLL(None).prctl(1,9,0,0,0)\n"
    "os.getppid()==int(sys.argv[1]) or sys.exit('parent has ended')\n"
    "os.execv(sys.argv[2],sys.argv[2:])\n"
)


class Resources:
    """The child processes, port locks and files of a cluster. The cluster's finalizer refers to this object.
    `Resources` must not refer to the cluster, because the reference would keep the cluster alive.
    """

    def __init__(self) -> None:
        self.processes: set[subprocess.Popen[bytes]] = set()
        self._directory: Path | None = None
        self._logs: Path | None = None
        self._keep_logs = False
        self.released = False
        self._owner = os.getpid()
        self._port_locks: list[int] = []

    def reserve_port(self) -> int:
        port, lock = reserve_port()
        self._port_locks.append(lock)
        return port

    def own_directory(self, directory: Path) -> None:
        """Sets the directory that `release` removes."""
        self._directory = directory

    def own_logs(self, logs: Path) -> None:
        """Sets the directory of the logs, which `release` removes unless `keep` was called."""
        self._logs = logs

    def keep(self) -> None:
        self._keep_logs = True

    def release(self) -> None:
        if self.released or os.getpid() != self._owner:
            return
        self.released = True
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self.processes.clear()
        if self._directory is not None:
            kept = {self._logs} if self._keep_logs else set()
            for entry in self._directory.iterdir():
                if entry not in kept:
                    shutil.rmtree(entry, ignore_errors=True)
            if not kept:
                shutil.rmtree(self._directory, ignore_errors=True)
        for lock in self._port_locks:
            os.close(lock)
        self._port_locks.clear()


def reserve_port() -> tuple[int, int]:
    """Reserves a free port on 127.0.0.1, so that no other cluster of this user takes it. Returns (port, handle of its
    lock file).
    """
    locks = Path(tempfile.gettempdir()) / f"kafkasafe-ports-{os.getuid()}"
    locks.mkdir(mode=0o700, exist_ok=True)
    # Do not use the global random generator: if two test processes seeded it alike, both would try the same ports.
    generator = random.Random()
    for _ in range(1000):
        port = generator.randrange(15_000, 32_000)
        lock = os.open(locks / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        if port_free(port):
            return port, lock
        os.close(lock)
    raise ClusterError("no free port between 15000 and 32000 on 127.0.0.1")


def port_free(port: int) -> bool:
    with socket.socket() as probe:
        # Like a broker, treat the port as free if only connections in TIME_WAIT use it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class _Spawner:
    """The thread that forks all children. This thread never ends, because the kernel sends a child its PR_SET_PDEATHSIG
    signal when the *thread* that forked it ends.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[
            tuple[Callable[[], subprocess.Popen[bytes]], queue.SimpleQueue[Any]]
        ] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="kafkasafe-spawner", daemon=True).start()

    def _run(self) -> None:
        while True:
            work, answer = self._work.get()
            try:
                answer.put(work())
            except Exception as error:
                # Pass the error to the caller, because the spawner's thread must survive every failure.
                answer.put(error)

    def spawn(self, work: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._work.put((work, answer))
        result = answer.get()
        if isinstance(result, Exception):
            raise result
        if not isinstance(result, subprocess.Popen):
            raise TypeError(result)
        return result


_spawner: _Spawner | None = None
_spawner_lock = threading.Lock()


def spawn(command: Sequence[str], directory: Path, log_file: Path) -> subprocess.Popen[bytes]:
    """Starts a child process. The kernel kills the child when this process ends, for whatever reason."""
    global _spawner
    with _spawner_lock:
        if _spawner is None:
            _spawner = _Spawner()
        spawner = _spawner

    def fork() -> subprocess.Popen[bytes]:
        with log_file.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                start_new_session=True,  # Ctrl-C reaches only the test, which then ends its brokers
            )

    return spawner.spawn(fork)


def _forget_spawner() -> None:
    """In a forked child, forgets the spawner, because the spawner's thread does not exist there. The child makes a new
    spawner when needed.
    """
    global _spawner, _spawner_lock
    _spawner, _spawner_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_spawner)
