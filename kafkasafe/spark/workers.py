"""What is to know of the Python processes that are Spark's workers."""

from __future__ import annotations

import functools
import gc
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spare_collections", "warn_of_other_python"]

log = logging.getLogger("kafkasafe.spark")

_NEEDED: Final = ("kafkasafe", "kafka", "tenacity", "prometheus_client", "numpy", "pyarrow", "crc32c")
# Run with `-c`, which finds modules of the working directory, as the workers (`-m pyspark.daemon`) do.
_PROBE: Final = """
import importlib.util, json, sys
print(json.dumps([list(sys.version_info[:2]), [n for n in sys.argv[1:] if importlib.util.find_spec(n) is None]]))
"""
_PROBE_S: Final = 20.0
_REUSED: Final = "SPARK_REUSE_WORKER"  # as pyspark.daemon asks whether workers are used again


def warn_of_other_python(spark: SparkSession) -> None:
    """Logs a warning where workers on this machine would run a Python that cannot run kafkasafe.

    `venv/bin/python script.py` without an activated environment does that: Spark takes `python3` from PATH, and the
    workers fail with `ModuleNotFoundError`. The other interpreter is asked, once in a process: one with the same
    version and all that kafkasafe needs is no reason to warn. Only with a `local` master: what a cluster's nodes have
    cannot be seen from here.
    """
    context = getattr(spark, "_sc", None)  # none with Spark Connect
    if context is None or not str(context.master).startswith("local"):
        return
    _warn_of(str(context.pythonExec))


@functools.cache
def _warn_of(name: str) -> None:
    found = shutil.which(name)
    if found is None:
        return  # Spark itself says so
    path, own = Path(found), Path(sys.executable)
    try:
        # Beside each other, too: an environment's interpreter is a link to another's.
        if path.samefile(own) and path.parent.samefile(own.parent):
            return
        done = subprocess.run(
            [path, "-c", _PROBE, *_NEEDED], capture_output=True, text=True, timeout=_PROBE_S, check=True
        )
        answer: Any = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as failed:
        log.debug("%s could not be asked what it has: %s", path, failed)
        return
    version, missing = answer
    wrong = [f"has no {', '.join(missing)}"] if missing else []
    if tuple(version) != sys.version_info[:2]:
        wrong.append(f"is Python {'.'.join(map(str, version))}")
    if wrong:
        log.warning(
            "Spark's workers will run %s, which %s, while this is %s: they will fail (ModuleNotFoundError,"
            " PYTHON_VERSION_MISMATCH). Set the environment variable PYSPARK_PYTHON to sys.executable before the"
            " SparkSession is made.",
            path,
            " and ".join(wrong),
            sys.executable,
            extra={"event": "other_worker_python", "path": str(path)},
        )


def spare_collections() -> None:
    """Takes what is in a worker's memory now out of the garbage collector's sight, once; to be called by its tasks.

    After each task `pyspark.daemon` has a worker that it uses again run a full collection before it takes the next
    one. Over the modules of PySpark, pyarrow, kafka-python and kafkasafe, which never go away, that costs more than a
    small task itself. What else is there at that moment stays too: if it is in a cycle and is dropped later, it is
    never freed. In any other process than such a worker nothing is done.
    """
    if TaskContext.get() is not None and os.environ.get(_REUSED) and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
