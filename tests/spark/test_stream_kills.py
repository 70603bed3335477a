"""kill -9 of drivers and executors of a stateful stream from Kafka to Kafka: a short run of benchmarks/spark_stream_kills.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.crash, pytest.mark.timeout(1200)]

KILLS = Path(__file__).parents[2] / "benchmarks" / "spark_stream_kills.py"


def test_join_window_and_drop_duplicates_lose_no_row_and_double_none(tmp_path):
    """Two kills of each kind, one between the sink's commit and Spark's and one while rows are written."""
    said = tmp_path / "results"
    done = subprocess.run(
        [sys.executable, str(KILLS), "--drivers", "2", "--executors", "2", "--timeout", "1000", "--json", str(said)],
        capture_output=True,
        text=True,
        timeout=1150,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(said.read_text())
    assert set(result["kills"].values()) == {1}
    assert len(result["kills"]) == 4
    assert result["began_at_the_end"]
    assert result["wanted"] > 1000
    assert (result["lost"], result["twice"], result["wrong"], result["unwanted"]) == (0, 0, 0, 0)
