"""kill -9 of the driver, of Python workers and of brokers while the sink writes: a short run of benchmarks/spark_chaos.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import quick_spark

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.crash, pytest.mark.timeout(600)]

CHAOS = Path(__file__).parents[2] / "benchmarks" / "spark_chaos.py"


def test_each_row_is_there_once_after_kill_9_of_everything(tmp_path):
    said = tmp_path / "results"
    done = subprocess.run(
        [sys.executable, str(CHAOS), "--rows", "40000", "--files", "5", "--kills", "1", "--sinks", "exact",
         "--first", "1", "--json", str(said)],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
        env={**os.environ, "SPARK_SUBMIT_OPTS": quick_spark.java_options()},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(said.read_text())
    assert result["read_committed"] == {"distinct": 40000, "duplicates": 0, "missing": 0}
    assert sum(result["kills"].values()) >= 1
