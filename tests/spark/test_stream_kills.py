"""kill -9 of drivers and executors of a stateful stream from Kafka to Kafka: a short run of benchmarks/spark_stream_kills.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import quick_spark

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.crash, pytest.mark.timeout(1200)]

KILLS = Path(__file__).parents[2] / "benchmarks" / "spark_stream_kills.py"


def test_join_window_and_drop_duplicates_lose_no_row_and_double_none(tmp_path):
    """The driver dies in the first micro-batch, between the sink's commit and Spark's; an executor dies while rows are written."""
    said = tmp_path / "results"
    done = subprocess.run(
        [sys.executable, str(KILLS), "--drivers", "1", "--executors", "1", "--timeout", "1000", "--json", str(said)],
        capture_output=True,
        text=True,
        timeout=1150,
        check=False,
        env={**os.environ, "SPARK_SUBMIT_OPTS": quick_spark.java_options()},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(said.read_text())
    assert result["kills"] == {"driver between": 1, "executor writing": 1}
    assert result["began_at_the_end"]
    assert result["wanted"] > 1000
    assert (result["lost"], result["twice"], result["wrong"], result["unwanted"]) == (0, 0, 0, 0)
