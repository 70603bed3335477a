"""Compares the latency of clients that wait for each record: p50 and p99 in milliseconds, on one broker, in one run.

    python benchmarks/latency.py [--records N] [--rounds N] [--spool-parent DIR]

Each client sends one record of 100 bytes, waits until it is on disk (`durable()`) or acknowledged (`get()`), and then
sends the next one. The clients take turns for several rounds. kafka-python and SafeProducer have their defaults.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

JAVA_OPTIONS = ("-Xms256m", "-Xmx1g", "-XX:+UseSerialGC")
VALUE = b"x" * 100
WARM_UP = 50


@contextlib.contextmanager
def safe(servers: list[str], parent: str | None, spool: str) -> Iterator[Any]:
    from kafkasafe import SafeProducer

    with (
        tempfile.TemporaryDirectory(prefix="kafkasafe-bench-", dir=parent) as folder,
        SafeProducer(bootstrap_servers=servers, spool_dir=folder, spool=spool) as producer,
    ):
        yield producer


@contextlib.contextmanager
def theirs(servers: list[str]) -> Iterator[Any]:
    from kafka import KafkaProducer

    with contextlib.closing(KafkaProducer(bootstrap_servers=servers)) as producer:
        yield producer


def main() -> None:
    from kafkasafe.testing.broker import KafkaCluster

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--records", type=int, default=300, help="number of records of each client in each round"
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--spool-parent", help="directory for the spools, on the disk to be measured")
    options = parser.parse_args()
    with KafkaCluster(brokers=1, java_options=JAVA_OPTIONS) as cluster:
        cluster.create_topic("latency")
        servers, parent = cluster.bootstrap_servers, options.spool_parent
        clients: dict[str, tuple[Callable[[], Any], str]] = {
            "kafka-python, send + get": (lambda: theirs(servers), "get"),
            "SafeProducer, send + durable": (lambda: safe(servers, parent, "always"), "durable"),
            "SafeProducer, send + get": (lambda: safe(servers, parent, "always"), "get"),
            'SafeProducer, spool="on_error", send + get': (lambda: safe(servers, parent, "on_error"), "get"),
        }
        taken: dict[str, list[float]] = {name: [] for name in clients}
        for _ in range(options.rounds):
            # Only one client exists at a time, because the threads of others would share its interpreter.
            for name, (opened, wait) in clients.items():
                with opened() as producer:
                    for number in range(WARM_UP + options.records):
                        began = time.perf_counter()
                        getattr(producer.send("latency", VALUE), wait)(60)
                        if number >= WARM_UP:
                            taken[name].append((time.perf_counter() - began) * 1000)
        for name, times in taken.items():
            cuts = statistics.quantiles(times, n=100)
            print(f"{name:44} p50 {cuts[49]:6.2f} ms   p99 {cuts[98]:6.2f} ms", flush=True)


if __name__ == "__main__":
    main()
