"""Measures how much memory the tasks of the sink and the source need in Spark's Python workers.

    python benchmarks/spark_memory.py [--rows 3000000] [--size 1000]

Spark generates rows in two tasks, writes them with and without keys, and reads them again. A thread of the driver
measures all worker processes every few milliseconds. The result is the largest resident memory of a worker minus that
of a worker that has only imported kafkasafe; pages that a worker shares with its parent process do not count.
"""

from __future__ import annotations

import argparse
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psutil
from spark_harness import spark_and_broker

MB = 1_000_000
KINDS = {"unkeyed": [], "keyed": ["CAST(id AS STRING) AS key"]}


def workers() -> Iterator[psutil.Process]:
    for child in psutil.Process(os.getpid()).children(recursive=True):
        try:
            if any("pyspark" in word for word in child.cmdline()) and "python" in child.name():
                yield child
        except psutil.Error:
            continue


def peak(run: Callable[[], object]) -> tuple[float, float]:
    """Returns the largest memory of a worker and of all workers together, in MB."""
    over = threading.Event()
    most: dict[int, int] = {}

    def watch() -> None:
        while not over.wait(0.01):
            for worker in workers():
                try:
                    size = worker.memory_full_info().uss
                except psutil.Error:
                    continue
                most[worker.pid] = max(most.get(worker.pid, 0), size)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run()
    finally:
        over.set()
        watcher.join()
    return max(most.values()) / MB, sum(most.values()) / MB


def imports(batches: Iterator[Any]) -> Iterator[Any]:
    import kafkasafe.spark.tasks  # noqa: F401

    yield from batches


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--size", type=int, default=1000, help="bytes of a value")
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parser.parse_args()
    # Start a new worker for each task, so that memory of earlier tasks does not count.
    with spark_and_broker(None, spark_python_worker_reuse="false") as (spark, cluster):
        from kafkasafe.spark import register, write_batch
        from kafkasafe.spark.java import map_in_arrow

        register(spark)
        settings = {"kafka.bootstrap.servers": ",".join(cluster.bootstrap_servers)}
        few = spark.range(0, 1000, 1, 2)
        base, _ = peak(lambda: map_in_arrow(few, imports, "id long").collect())
        print(f"a worker with kafkasafe imported: {base:.0f} MB")
        for kind in options.kinds.split(","):
            topic = f"t-{uuid.uuid4().hex}"
            cluster.create_topic(topic, partitions=options.partitions)
            value = f"CAST(LPAD(CAST(id AS STRING), {options.size}, 'x') AS BINARY) AS value"
            rows = spark.range(0, options.rows, 1, 2).selectExpr(*KINDS[kind], value)
            largest, _ = peak(lambda rows=rows, topic=topic: write_batch(rows, topic, **settings))
            print(f"sink, {kind}: {largest - base:.0f} MB above that, at most", flush=True)
            reader = spark.read.format("kafkasafe").options(**settings).option("subscribe", topic)
            frame = reader.option("isolationLevel", "read_committed").load()
            assert frame.count() == options.rows
            largest, _ = peak(lambda frame=frame: frame.write.format("noop").mode("overwrite").save())
            print(f"source, {kind}: {largest - base:.0f} MB above that, at most", flush=True)
            cluster.delete_topic(topic)


if __name__ == "__main__":
    main()
