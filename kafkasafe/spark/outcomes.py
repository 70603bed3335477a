"""How a process that commits tells the driver's listener what became of a micro-batch.

A data source's writer commits in a process of its own, and Spark passes nothing on from there. Both are on the driver's
machine and of one user, so a file lies between them: the listener makes one for each query that starts, the committing
process appends a line where there is one, the listener takes the lines out with each progress event. Nobody listens: no
file, nothing is written. Counts are all that goes this way: a line that is lost, or damaged, changes nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import logging
import os
import re
import stat
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from kafkasafe.spark import stats
from kafkasafe.spark.session import Outcome

__all__ = ["expect", "hear", "stop_expecting", "tell"]

log = logging.getLogger("kafkasafe.spark")

_MODE: Final = 0o700
_QUERY_ID: Final = re.compile(r"[0-9a-fA-F-]{1,64}")  # it becomes a file's name
_FAILED: Final = "failed"


def _directory() -> Path:
    return Path(tempfile.gettempdir()) / f"kafkasafe-spark-{os.getuid()}"


def _is_ours(directory: Path) -> bool:
    """The directory for temporary files is everybody's: one that another user made under our name is not used."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


# --- the committing process -------------------------------------------------------------------------------------------


def tell(query_id: str, outcome: Outcome | None, **totals: int) -> None:
    """Says what became of a micro-batch, if somebody listens. Never raises.

    Args:
        query_id: Of the streaming query.
        outcome: Of the micro-batch, None: it failed.
        totals: `retries` and `bytes`.
    """
    if not _QUERY_ID.fullmatch(query_id):
        return
    directory = _directory()
    line = {
        "outcome": _FAILED if outcome is None else outcome.name,
        "rows": 0 if outcome is None else outcome.rows,
        "restarts": 0 if outcome is None else outcome.restarts,
        **totals,
    }
    if not _is_ours(directory):
        return
    try:
        handle = os.open(directory / query_id, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # the reader empties the file
        os.write(handle, json.dumps(line).encode() + b"\n")
    except OSError as failed:
        log.debug("The listener was not told of %s: %s", query_id, failed)
    finally:
        os.close(handle)


# --- the driver -------------------------------------------------------------------------------------------------------

_lock = threading.Lock()
# Query id → its runs that some listener of this process has seen start. There is a file for it.
_runs: dict[str, set[str]] = {}


def expect(query_id: str, run_id: str) -> None:
    """Makes the file of a query that starts, once for all listeners of this process."""
    directory = _directory()
    with _lock:
        if query_id in _runs:  # the end of the run before is not told yet
            _runs[query_id].add(run_id)
            return
        if not _QUERY_ID.fullmatch(query_id):
            return
        try:
            directory.mkdir(_MODE, exist_ok=True)
            if not _is_ours(directory):
                log.warning(
                    "%s is another user's or open to others: what the writers of streaming queries do is not counted."
                    " Remove it, or set TMPDIR.",
                    directory,
                )
                return
            path = directory / query_id
            path.unlink(missing_ok=True)  # of a driver that died
            path.touch(0o600, exist_ok=False)
        except OSError as failed:
            log.warning("What the writer of query %s does is not counted: %s", query_id, failed)
            return
        if not _runs:
            atexit.register(_remove_all)
        _runs[query_id] = {run_id}


def hear(query_id: str) -> None:
    """Counts what was told since the last call."""
    with _lock:
        told = _take(query_id) if query_id in _runs else b""
    for line in told.splitlines():
        try:
            _count(query_id, json.loads(line))
        except (ValueError, TypeError, KeyError) as failed:
            log.debug("Not understood of the writer of %s: %r (%r)", query_id, line[:200], failed)


def stop_expecting(query_id: str, run_id: str) -> None:
    """Counts the rest, and removes the file, unless the query runs again already."""
    hear(query_id)
    with _lock:
        runs = _runs.get(query_id)
        if runs is None:
            return
        runs.discard(run_id)
        if not runs:
            del _runs[query_id]
            (_directory() / query_id).unlink(missing_ok=True)


def _take(query_id: str) -> bytes:
    try:
        with (_directory() / query_id).open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            told = file.read()
            file.truncate(0)
    except OSError as failed:
        log.debug("What became of batches of %s cannot be read: %s", query_id, failed)
        return b""
    return told


def _remove_all() -> None:
    for query_id in _runs:
        with contextlib.suppress(OSError):
            (_directory() / query_id).unlink()


def _count(query_id: str, told: dict[str, Any]) -> None:
    totals = {name: int(told[name]) for name in ("retries", "bytes")}
    if told["outcome"] == _FAILED:
        stats.failed(query_id, totals)
    else:
        outcome = Outcome(told["outcome"], int(told["rows"]), int(told["restarts"]), 0.0)
        stats.done(query_id, outcome, totals)
