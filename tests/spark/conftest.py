from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# sourcing.py is a module beside these tests; pytest's importlib mode adds no path.
sys.path.insert(0, str(Path(__file__).parent))

import local_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def _connections_closed() -> Iterator[None]:
    """Tasks leave their connections open for the next one."""
    yield
    from kafkasafe.spark.connections import close_connections

    close_connections()


@pytest.fixture(scope="session")
def _one_spark() -> Iterator[None]:
    yield
    local_spark.stop_shared()


@pytest.fixture(scope="module")
def spark(_one_spark: None) -> SparkSession:
    """The Spark of the whole session, unless a module needed another one meanwhile."""
    return local_spark.shared()
