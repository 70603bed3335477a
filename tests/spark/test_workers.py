"""What tasks do to the process that runs them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TASK = """
import gc, sys
from pyspark import TaskContext
from kafkasafe.spark import tasks
from kafkasafe.spark.sink_options import sink_options

if sys.argv[1] == "task":
    TaskContext._getOrCreate()._partitionId = 0
else:
    # In any other process a task's context is not there.
    tasks.task_context = lambda: type("None", (), {"partitionId": lambda self: 0})()
options = sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
encode = tasks.EncodeRows(options=options, counts={"t": 1}, slots=1, turn=0)
assert list(encode(iter(()))) == []
first = gc.get_freeze_count()
later = [[] for _ in range(1000)]
assert list(encode(iter(()))) == []
print(first, gc.get_freeze_count() - first)
"""


@pytest.mark.parametrize(
    ("where", "reused", "spared"),
    [("task", "1", True), ("task", None, False), ("elsewhere", "1", False)],
    ids=["reused worker", "worker of one task", "no worker"],
)
def test_what_a_worker_imported_is_searched_once_for_garbage(where, reused, spared):
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    if reused:
        environment["SPARK_REUSE_WORKER"] = reused
    done = subprocess.run(
        [sys.executable, "-c", TASK, where],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    first, more = map(int, done.stdout.split())
    assert (first > 10_000) is spared
    assert first == 0 or spared
    assert more <= 0  # once, and objects of later are not among them
