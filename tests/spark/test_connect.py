"""Spark Connect: in a process of its own, whose client needs packages that kafkasafe does not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest
import quick_spark
from sinks import new_name, numbers, options, values

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.full]

HERE = Path(__file__).parent
# PySpark's extra `connect`. Not among the development packages: tests are to run as without pandas.
PACKAGES = "grpcio grpcio-status googleapis-common-protos protobuf zstandard pandas python-dateutil six typing_extensions"


@pytest.fixture(scope="module")
def packages() -> Path:
    """A directory with them, which later runs use again."""
    home = (
        platformdirs.user_cache_path("kafkasafe-tests")
        / f"connect-{sys.version_info[0]}.{sys.version_info[1]}"
    )
    if not home.exists():
        fresh = home.with_name(f"{home.name}-{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(fresh), *PACKAGES.split()], check=True, timeout=300)
        try:
            fresh.rename(home)
        except OSError:  # another run was first
            shutil.rmtree(fresh)
    return home


def test_batches_micro_batches_and_reads_of_spark_connect(kafka, packages, tmp_path):
    topic, app = new_name(), new_name("app")
    kafka.create_topic(topic, partitions=3)
    servers = options(kafka)["kafka.bootstrap.servers"]
    done = subprocess.run(
        [sys.executable, str(HERE / "connecting.py"), servers, topic, app, str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(packages), str(HERE)]),
            "SPARK_SUBMIT_OPTS": quick_spark.java_options(),
        },
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert said, done.stdout + done.stderr
    found = json.loads(said[-1].removeprefix("SAID "))
    # The same batch again; then one of the same number with other rows, which is all that can be seen there.
    assert found["outcomes"] == ["written", "duplicate", "CheckpointMismatchError"]
    assert found["settings"][0] == found["settings"][1]
    assert (found["ended"], found["error"]) == (True, "")
    assert found["values"] == list(range(200))
    assert values(kafka, topic) == numbers(range(200))
