"""One Spark for each module: a JVM takes seconds to start and half a gigabyte."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# sourcing.py is a module beside these tests; pytest's importlib mode adds no path.
sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def spark_session(**settings: str) -> Iterator[SparkSession]:
    """A small Spark of this process, with the source registered, which is gone afterwards."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from kafkasafe.spark import register

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
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
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


@pytest.fixture(scope="session", autouse=True)
def _connections_closed() -> Iterator[None]:
    """Tasks leave their connections open for the next one."""
    yield
    from kafkasafe.spark.reading import close_connections

    close_connections()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Workers import the tests' own modules too."""
    here = str(Path(__file__).parent)
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [before, here]))
    try:
        with spark_session() as session:
            yield session
    finally:
        os.environ["PYTHONPATH"] = before
