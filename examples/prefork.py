"""A web application with several processes (gunicorn), which have a producer each and share one spool directory.

KAFKA=localhost:9092 gunicorn --workers 4 prefork:app    # serve it, in this directory; also with --preload
python examples/prefork.py                               # or see it: starts a Kafka, kills workers with -9
"""

import argparse
import contextlib
import functools
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kafkasafe import SafeProducer


@functools.cache
def opened(pid: int) -> SafeProducer:  # noqa: ARG001  # the key of the cache
    return SafeProducer(bootstrap_servers=os.environ["KAFKA"].split(","), client_id="shop")


def producer() -> SafeProducer:
    """Returns this process's producer. A producer that was opened before a fork belongs to the parent process."""
    return opened(os.getpid())


def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    order = environ["wsgi.input"].read()
    # The order is on disk now. If this worker dies, another worker delivers the order.
    producer().send(os.environ.get("TOPIC", "orders"), order).durable(timeout=10)
    start("202 Accepted", [("Content-Type", "text/plain")])
    return [b"%d" % os.getpid()]


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["-m", "gunicorn", "--workers", "3", "--bind", f"127.0.0.1:{port}", *arguments, "prefork:app"]
    with subprocess.Popen(
        [sys.executable, *command], cwd=Path(__file__).parent, stderr=subprocess.DEVNULL
    ) as gunicorn:
        try:
            yield port
        finally:
            gunicorn.terminate()
            gunicorn.wait(60)


def order(port: int, number: int) -> int | None:
    """Returns the worker that accepted the order; None if no worker answered."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        try:
            connection.request("POST", "/", b"%d" % number)
            reply = connection.getresponse()
            return int(reply.read()) if reply.status == 202 else None
        except (OSError, http.client.HTTPException):
            return None


def serve_and_kill(servers: str, first: int, count: int, *arguments: str) -> set[int]:
    """Sends orders while workers are killed, and returns the numbers of the accepted orders."""
    os.environ["KAFKA"] = servers
    accepted: set[int] = set()
    workers = set()
    with server(*arguments) as port:
        end = time.monotonic() + 120
        while len(accepted) < count and time.monotonic() < end:
            number = first + len(accepted)
            worker = order(port, number)
            if worker is None:
                time.sleep(0.05)
                first += 1  # the order may have been accepted without an answer
                continue
            accepted.add(number)
            workers.add(worker)
            if len(accepted) % 50 == 0:
                os.kill(worker, signal.SIGKILL)
    mode = " ".join(arguments) or "without --preload"
    print(f"{mode}: {len(accepted)} orders accepted by {len(workers)} workers")
    return accepted


def new_topic(servers: str, name: str) -> str:
    """Creates a topic for this run alone, so that it holds no records of other programs or runs."""
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic

    topic = f"{name}-{uuid.uuid4().hex[:6]}"
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers.split(","))) as admin:
        admin.create_topics([NewTopic(topic, 3, 1)])
    return topic


def count(servers: str, topic: str, accepted: set[int]) -> None:
    from kafka import KafkaConsumer, TopicPartition

    # Other workers, or this producer, deliver the records that killed workers left.
    with SafeProducer(bootstrap_servers=servers, client_id="shop") as last:
        last.flush(60)
    with contextlib.closing(KafkaConsumer(bootstrap_servers=servers)) as consumer:
        parts = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(parts)
        consumer.seek_to_beginning()
        ends, values = consumer.end_offsets(parts), []
        while any(consumer.position(tp) < ends[tp] for tp in parts):
            values += [int(record.value) for records in consumer.poll(500).values() for record in records]
    missing = len(accepted - set(values))
    print(f"{missing} of {len(accepted)} accepted orders missing, {len(values) - len(set(values))} twice")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", help="host:port of a cluster; default: the example starts one")
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    if options.count < 1:
        parser.error("--count must be 1 or more")
    with contextlib.ExitStack() as stack:
        servers = options.bootstrap
        if not servers:
            from kafkasafe.testing.broker import KafkaCluster

            cluster = stack.enter_context(KafkaCluster(brokers=1))
            servers = ",".join(cluster.bootstrap_servers)
        topic = os.environ["TOPIC"] = new_topic(servers, "orders")
        os.environ.setdefault("KAFKASAFE_SPOOL_DIR", stack.enter_context(tempfile.TemporaryDirectory()))
        accepted = serve_and_kill(servers, 0, options.count)
        accepted |= serve_and_kill(servers, 1_000_000, options.count, "--preload")
        count(servers, topic, accepted)


if __name__ == "__main__":
    main()
