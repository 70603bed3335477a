"""Finds the spool directory, and decides whether its files survive a restart."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from kafkasafe.config.values import absolute, nameable
from kafkasafe.errors import ConfigError

# Volatile file systems: their files do not survive a restart of the machine, or vanish with the container.
_VOLATILE: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_TEMPORARY: Final = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108
"""The directories for temporary files that `tempfile` tries, besides those that the environment names."""
_LAYERS: Final = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})


def spool_dir(given: str | os.PathLike[str] | None, client_id: str, servers: Any) -> tuple[Path, bool]:
    """Return the spool directory (absolute) and whether it is the default one.

    The option takes precedence over the environment variable. The default is a directory in the user's state directory.
    The default's name depends on client id and cluster address, because records that were spooled for one cluster must
    never be delivered to another. `siblings.py` finds, by the cluster id, the directory of an earlier producer that
    spelled the same cluster's address differently.
    """
    chosen = given if given is not None else os.environ.get("KAFKASAFE_SPOOL_DIR") or None
    if chosen is not None:
        if not isinstance(chosen, (str, os.PathLike)):
            raise ConfigError(f"spool_dir must be a path, not {chosen!r}")
        if not os.fspath(chosen):
            raise ConfigError(
                "spool_dir is empty; name a directory ('.' for the current one), or leave the option out for the"
                " default one"
            )
        return absolute("spool_dir", chosen), False
    names = [servers] if isinstance(servers, str) else list(servers)
    address = ",".join(sorted(part.strip() for name in names for part in str(name).split(",")))
    digest = hashlib.sha256(address.encode()).hexdigest()[:8]
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in client_id)
    unknown: object = "no home directory"
    try:
        import platformdirs

        state = platformdirs.user_state_path("kafkasafe")
    except (RuntimeError, OSError) as error:
        state, unknown = Path(), error
    if not state.is_absolute():
        raise ConfigError(
            f"There is no default spool directory: {unknown}. Set spool_dir= or KAFKASAFE_SPOOL_DIR"
        )
    return nameable("client_id", state / f"{safe}-{digest}"), True


def resolved(path: Path) -> Path:
    """Resolve symbolic links once: the spool stays in one directory even if a deployment changes a link later."""
    try:
        return without_links(path)
    except OSError as error:
        raise ConfigError(f"spool_dir={path} cannot be resolved: {error}") from None


def without_links(path: Path) -> Path:
    """Resolve symbolic links. The path need not exist.

    `Path.resolve` raises a RuntimeError for a loop of links up to Python 3.12, and none from 3.13 on.

    Raises:
        OSError: The links form a loop (ELOOP), or the path is relative, and the current directory was deleted.
    """
    found = Path(os.path.realpath(path))
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
    return found


def take_locks_early() -> None:
    """Take Python's import lock and the lock in `tempfile` now, not when the first producer is opened. Otherwise a
    forked child could block:

    1. A thread opens a producer, and holds the import lock.
    2. The program forks.
    3. The child opens a producer too, and waits for the import lock for ever, because the thread that holds the lock
       does not exist in the child.
    """
    import platformdirs  # noqa: F401 - the default of spool_dir

    _temporary()


def volatile_reason(path: Path) -> str | None:
    """Return why files in `path` may not survive a restart of the machine or container; None if they should."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        mounts = []
    best = ("", "")
    for line in mounts:
        fields = line.split(" ")
        if len(fields) > 2:
            point = fields[1].replace("\\040", " ")
            if path.is_relative_to(point) and len(point) >= len(best[0]):
                best = (point, fields[2])
    if best[1] in _VOLATILE:
        return f"{best[0]} is a {best[1]}: its files are in memory"
    if best[1] in _LAYERS:
        return f"{best[0]} is a container's own layer ({best[1]}): its files vanish with the container; mount a volume"
    temporary = _temporary()
    if temporary is not None and path.is_relative_to(temporary):
        return f"{temporary} is cleared at a restart on many systems"
    return None


def _temporary() -> str | None:
    """The system's directory for temporary files. None if it has none that is writable, as in many containers.

    Without such a directory, `tempfile` uses the current directory, which is not cleared at a restart, or raises an
    error.
    """
    try:
        found = tempfile.gettempdir()
    except FileNotFoundError:
        return None
    named = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return found if found in map(os.path.abspath, filter(None, (*named, *_TEMPORARY))) else None
