"""Helpers for the Python worker processes of Spark: a check of their interpreter, and cheaper garbage collection."""

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

from kafkasafe.spark.java import spark_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("kafkasafe.spark")

_NEEDED: Final = ("kafkasafe", "kafka", "tenacity", "prometheus_client", "numpy", "pyarrow", "crc32c")
# Spark starts its workers with `python -m pyspark.daemon`, which finds modules in the working directory. Run this code
# with `python -c`, which finds modules there too.
_PROBE: Final = """
import importlib.util, json, sys
print(json.dumps([list(sys.version_info[:2]), [n for n in sys.argv[1:] if importlib.util.find_spec(n) is None]]))
"""
_PROBE_S: Final = 20.0
_REUSED: Final = (
    "SPARK_REUSE_WORKER"  # pyspark.daemon checks this variable to decide whether it reuses workers
)

_is_spared = False  # whether this process has hidden its objects from the garbage collector


def warn_of_other_python(spark: SparkSession) -> None:
    """Logs a warning if Spark's workers on this machine would use a Python interpreter that cannot run kafkasafe.

    The usual cause is `venv/bin/python script.py` without an activated environment: Spark takes `python3` from PATH,
    and the workers fail with `ModuleNotFoundError`.

    Once in each process, the check runs the interpreter that the workers would use. No warning is logged if the
    workers' interpreter has the same version and all modules that kafkasafe needs. The check is made only with a
    `local` master, because this process cannot see the interpreters on a cluster's nodes.
    """
    context = spark_context(spark)
    if context is None or not str(context.master).startswith("local"):
        return
    _warn_of(str(context.pythonExec))


@functools.cache
def _warn_of(name: str) -> None:
    found = shutil.which(name)
    if found is None:
        return  # Spark itself reports this error
    path, own = Path(found), Path(sys.executable)
    try:
        # Compare the directories too: an environment's interpreter may be a link to the interpreter of another
        # environment.
        if path.samefile(own) and path.parent.samefile(own.parent):
            return
        done = subprocess.run(
            [path, "-c", _PROBE, *_NEEDED], capture_output=True, text=True, timeout=_PROBE_S, check=True
        )
        answer: Any = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as failed:
        log.debug("Could not check the version and modules of %s: %s", path, failed)
        return
    version, missing = answer
    wrong = [f"has no {', '.join(missing)}"] if missing else []
    if tuple(version) != sys.version_info[:2]:
        wrong.append(f"is Python {'.'.join(map(str, version))}")
    if wrong:
        log.warning(
            "Spark's workers will run %s, which %s, while this process runs %s: they will fail (ModuleNotFoundError,"
            " PYTHON_VERSION_MISMATCH). Set the environment variable PYSPARK_PYTHON to sys.executable before creating"
            " the SparkSession.",
            path,
            " and ".join(wrong),
            sys.executable,
            extra={"event": "other_worker_python", "path": str(path)},
        )


def spare_collections() -> None:
    """Hides the existing objects of a worker process from the garbage collector.

    Tasks call this function. Only the first call in a process has an effect.

    In a reused worker, `pyspark.daemon` runs a full garbage collection after each task. A garbage collection visits all
    modules of PySpark, pyarrow, kafka-python and kafkasafe. Visiting the modules takes longer than a small task, and is
    useless, because modules are never freed.

    Hiding objects has a drawback: besides the modules, all objects that exist at the time of the call are hidden from
    the collector. If a hidden object is part of a reference cycle, it is never freed, even when nothing uses it any
    more.

    In a process that is not a reused worker, the function does nothing.
    """
    global _is_spared
    # Do not ask `gc.get_freeze_count`: it visits each hidden object, which takes as long as a small task.
    if not _is_spared and TaskContext.get() is not None and os.environ.get(_REUSED):
        _is_spared = True
        gc.collect()
        gc.freeze()
