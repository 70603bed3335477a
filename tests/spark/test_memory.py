"""What a task holds is bounded, however much goes through it and to however many partitions."""

from __future__ import annotations

import tracemalloc
import types

import pyarrow as pa
import pytest

from kafkasafe.spark import tasks
from kafkasafe.spark.sink_options import sink_options

pytestmark = pytest.mark.spark

MB = 1 << 20


@pytest.mark.parametrize("partitions", [3, 400])
def test_a_task_in_front_of_an_exchange_holds_its_buffer_and_an_arrow_batch(monkeypatch, partitions):
    # All that it wants of Spark.
    monkeypatch.setattr(tasks, "task_context", lambda: types.SimpleNamespace(partitionId=lambda: 0))
    options = sink_options(
        {"kafka.bootstrap.servers": "none:1", "topic": "t", "kafka.buffer.memory": str(8 * MB)}
    )
    encode = tasks.EncodeRows(options=options, counts={"t": partitions}, slots=2, turn=0)
    total = 0

    def batches():
        nonlocal total
        for number in range(50):
            keys = pa.array([b"%d" % (number * 2000 + row) for row in range(2000)])
            part = pa.record_batch({"key": keys, "value": pa.array([bytes(1000)] * 2000)})
            total += part.nbytes
            yield part

    before = pa.total_allocated_bytes()
    arrow = rows = 0
    tracemalloc.start()
    try:
        for made in encode(batches()):
            arrow = max(arrow, pa.total_allocated_bytes() - before)
            rows += made.column("rows")[0].as_py()
        _, python = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == 50 * 2000
    assert total > 90 * MB
    # The buffer; an Arrow batch of 2 MB as it came, sorted, and as records; a batch that is being made.
    assert python + arrow < 8 * MB + 16 * MB
