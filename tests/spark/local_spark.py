"""A small Spark of this process. There is one at a time: its JVM takes seconds to start and half a gigabyte."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_shared = contextlib.ExitStack()
_session: SparkSession | None = None


@contextlib.contextmanager
def spark_session(**settings: str) -> Iterator[SparkSession]:
    """With the source registered, and gone afterwards. The shared one is stopped first."""
    # Executors import this module with their tests, and do not find quick_spark.py.
    import quick_spark
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from kafkasafe.spark import register

    stop_shared()
    # Workers of an environment that is not activated would be another Python.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    master = settings.pop("spark_master", "local[2]")
    builder = SparkSession.builder.master(master).appName("kafkasafe-tests")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "640m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.driver.extraJavaOptions": quick_spark.java_options(),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    try:
        yield session
    finally:
        gateway = SparkContext._gateway
        session.stop()
        # `stop` leaves the JVM to the end of the process.
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None


def shared() -> SparkSession:
    """The one of all tests that need nothing special. Its workers import the tests' own modules too."""
    global _session
    if _session is None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_workers_import(Path(__file__).parent))
            _session = stack.enter_context(spark_session())
            _shared.push(stack.pop_all())
    return _session


def stop_shared() -> None:
    """Ends the shared one, if it runs; the next test that wants it starts it again."""
    global _session
    _session = None
    _shared.close()


@contextlib.contextmanager
def _workers_import(folder: Path) -> Iterator[None]:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [before, str(folder)]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
