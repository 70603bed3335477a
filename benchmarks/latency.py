"""What waiting for each record costs: p50 and p99 in milliseconds, side by side, on one broker, in one run.

    python benchmarks/latency.py [--records N] [--rounds N] [--spool-parent DIR]

One record of 100 bytes at a time: sent, then waited for, until it is on disk (`durable()`) or acknowledged (`get()`).
The clients take turns, some rounds each; kafka-python and SafeProducer have their defaults.
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


@contextlib.contextmanager
def opened(servers: list[str], topic: str, parent: str | None) -> Iterator[dict[str, Callable[[], Any]]]:
    from kafka import KafkaProducer

    from kafkasafe import SafeProducer

    with contextlib.ExitStack() as stack:

        def safe(spool: str) -> SafeProducer:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kafkasafe-bench-", dir=parent))
            return stack.enter_context(SafeProducer(bootstrap_servers=servers, spool_dir=folder, spool=spool))

        always, on_error = safe("always"), safe("on_error")
        theirs = KafkaProducer(bootstrap_servers=servers)
        stack.callback(theirs.close)
        yield {
            "kafka-python, send + get": lambda: theirs.send(topic, VALUE).get(60),
            "SafeProducer, send + durable": lambda: always.send(topic, VALUE).durable(60),
            "SafeProducer, send + get": lambda: always.send(topic, VALUE).get(60),
            'SafeProducer, spool="on_error", send + get': lambda: on_error.send(topic, VALUE).get(60),
        }


def main() -> None:
    from kafkasafe.testing.broker import KafkaCluster

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=300, help="of each client in each round")
    parser.add_argument("--rounds", type=int, default=5, help="the first one does not count")
    parser.add_argument("--spool-parent", help="directory for the spools: on the disk to be measured")
    options = parser.parse_args()
    with KafkaCluster(brokers=1, java_options=JAVA_OPTIONS) as cluster:
        cluster.create_topic("latency")
        with opened(cluster.bootstrap_servers, "latency", options.spool_parent) as clients:
            taken: dict[str, list[float]] = {name: [] for name in clients}
            for number in range(options.rounds):
                for name, one in clients.items():
                    for _ in range(options.records):
                        began = time.perf_counter()
                        one()
                        if number:
                            taken[name].append((time.perf_counter() - began) * 1000)
            for name, times in taken.items():
                cuts = statistics.quantiles(times, n=100)
                print(f"{name:44} p50 {cuts[49]:6.2f} ms   p99 {cuts[98]:6.2f} ms", flush=True)


if __name__ == "__main__":
    main()
