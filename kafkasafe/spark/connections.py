"""Keeps the connections of a Spark process from one task to the next.

Spark reuses Python workers for later tasks, and connecting takes longer than a small task.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from kafkasafe.cluster.api import Cluster
from kafkasafe.process.locks import new_lock

# The process id is part of each key, because a worker may be forked from a process that had connections.
_kept: dict[tuple[int, Callable[..., Cluster], str], Cluster] = {}
_lock: Final = new_lock()


def kept(options: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Cluster]) -> Cluster:
    """Returns this process's connections for these options.

    Args:
        options: The options of the connections.
        make: Function that creates the connections. If this process has no connections for these options, `kept` calls
            the function, and starts the new connections.
    """
    key = os.getpid(), make, repr(sorted(options.items()))
    with _lock:
        cluster = _kept.get(key)
        if cluster is None or cluster.closed:
            for other in tuple(other for other in _kept if other[0] != key[0]):
                del _kept[other]
            cluster = _kept[key] = make(options)
            cluster.start()
        return cluster


def close_connections() -> None:
    """Closes this process's connections. The next task opens new ones."""
    with _lock:
        clusters = [_kept.pop(key) for key in tuple(key for key in _kept if key[0] == os.getpid())]
    for cluster in clusters:
        cluster.close(5.0)


atexit.register(close_connections)
