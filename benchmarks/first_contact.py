"""Measures the CPU time of a producer's first contact with many topics, for SafeProducer and KafkaProducer.

    python benchmarks/first_contact.py                       # 5,000 topics of one partition, a real broker
    python benchmarks/first_contact.py --topics 500 --fake

In each of two rounds, the client sends one record to each topic and flushes. In the first round, the client knows no
topic. Each client runs in its own process. The benchmark prints the CPU time of the client, and the elapsed time for
comparison.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from typing import Any

ROUNDS = 2


def names(count: int) -> list[str]:
    """Returns the names of the topics."""
    return [f"first-contact-{number:05}" for number in range(count)]


def create(cluster: Any, topics: list[str]) -> None:
    """Creates all topics, some hundreds in each request."""
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers, request_timeout_ms=120_000)
    for start in range(0, len(topics), 500):
        admin.create_topics(
            [NewTopic(name, num_partitions=1, replication_factor=1) for name in topics[start : start + 500]],
            timeout_ms=120_000,
        )
    admin.close()


def opened(options: argparse.Namespace) -> Any:
    if options.client == "KafkaProducer":
        from kafka import KafkaProducer

        return KafkaProducer(bootstrap_servers=options.servers.split(","))
    from kafkasafe import SafeProducer

    return SafeProducer(bootstrap_servers=options.servers.split(","), spool_dir=tempfile.mkdtemp())


def measure(options: argparse.Namespace) -> None:
    """Measures one client, in its own process."""
    producer = opened(options)
    rounds = []
    for _ in range(ROUNDS):
        cpu, clock = time.process_time(), time.monotonic()
        for topic in names(options.topics):
            producer.send(topic, b"one record")
        sent = time.monotonic() - clock
        producer.flush(timeout=600)
        rounds.append(
            {"cpu_s": time.process_time() - cpu, "send_s": sent, "clock_s": time.monotonic() - clock}
        )
    producer.close()
    print(json.dumps(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=5000)
    parser.add_argument("--fake", action="store_true", help="use the fake cluster instead of a real broker")
    parser.add_argument("--clients", default="SafeProducer,KafkaProducer")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--servers", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        measure(options)
        return
    from kafkasafe.testing import FakeCluster, KafkaCluster

    with contextlib.ExitStack() as stack:
        cluster: Any = stack.enter_context(FakeCluster() if options.fake else KafkaCluster(brokers=1))
        create(cluster, names(options.topics))
        print(
            f"{options.topics} topics of one partition, {'fake' if options.fake else 'Kafka'} {cluster.version}"
        )
        for client in options.clients.split(","):
            command = [sys.executable, __file__, "--client", client, "--topics", str(options.topics)]
            command += ["--servers", ",".join(cluster.bootstrap_servers)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            for number, found in enumerate(json.loads(done.stdout), 1):
                print(
                    f"{client:14} round {number}: {found['cpu_s']:6.2f} s CPU, all sent after {found['send_s']:6.2f} s,"
                    f" delivered after {found['clock_s']:6.2f} s"
                )


if __name__ == "__main__":
    main()
