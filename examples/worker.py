"""A worker that reads orders and writes invoices. On SIGTERM, the worker finishes its current batch before it ends.

python examples/worker.py --bootstrap localhost:9092 --work    # run it; kill -TERM ends it
python examples/worker.py                                      # or see it: starts a Kafka of its own, and ends it twice
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import uuid

from kafkasafe.aio import SafeConsumer, SafeProducer


async def work(servers: str, orders: str, invoices: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with (
        SafeProducer(bootstrap_servers=servers, client_id="invoices") as producer,
        SafeConsumer(
            orders,
            bootstrap_servers=servers,
            group_id=invoices,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):
        if not await consumer.partitions_for_topic(orders):
            print(f"waiting for the topic {orders}, which does not exist yet", file=sys.stderr)
        while not stop.is_set():
            # Wait at most half a second, then check whether to end.
            batch = await consumer.getmany(timeout_ms=500, max_records=50)
            for record in (record for records in batch.values() for record in records):
                future = await producer.send(invoices, b"invoice of " + record.value, key=record.key)
            if batch:
                # Make the invoices durable before the commit. A crash in between repeats the batch, but loses nothing.
                await future.durable()
                await producer.durable()
                await consumer.commit()
                print(f"did {sum(map(len, batch.values()))}", flush=True)


def new_topic(servers: str, name: str) -> str:
    """Creates a topic for this run alone, so that it holds no records of other programs or runs."""
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic

    topic = f"{name}-{uuid.uuid4().hex[:6]}"
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers.split(","))) as admin:
        admin.create_topics([NewTopic(topic, 3, 1)])
    return topic


async def read(servers: str, topic: str, count: int) -> list[bytes]:
    async with SafeConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        return [(await consumer.getone()).value for _ in range(count)]


def run_and_end(servers: str, orders: str, invoices: str, count: int) -> int:
    """Runs a worker, ends it after about this number of orders, and returns how many orders it did."""
    topics = ["--orders", orders, "--invoices", invoices]
    command = [sys.executable, __file__, "--bootstrap", servers, "--work", *topics]
    done = batches = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            done += int(line.removeprefix("did "))
            batches += 1
            if done >= count:
                worker.send_signal(signal.SIGTERM)
    print(f"worker ended with code {worker.returncode} after {batches} batches")
    return done


async def produce(servers: str, topic: str, count: int) -> None:
    async with SafeProducer(bootstrap_servers=servers) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, key=b"%d" % (number % 7))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", help="host:port of a cluster; default: the example starts one")
    parser.add_argument("--work", action="store_true", help="run as the worker")
    parser.add_argument("--orders", default="orders", help="with --work: the topic to read")
    parser.add_argument(
        "--invoices", default="invoices", help="with --work: the topic to write, and the group"
    )
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    if options.count < 1:
        parser.error("--count must be 1 or more")
    if options.work:
        if not options.bootstrap:
            parser.error("--work needs --bootstrap")
        asyncio.run(work(options.bootstrap, options.orders, options.invoices))
        return
    with contextlib.ExitStack() as stack:
        servers = options.bootstrap
        if not servers:
            from kafkasafe.testing.broker import KafkaCluster

            cluster = stack.enter_context(KafkaCluster(brokers=1))
            servers = ",".join(cluster.bootstrap_servers)
        os.environ.setdefault("KAFKASAFE_SPOOL_DIR", stack.enter_context(tempfile.TemporaryDirectory()))
        orders, invoices = new_topic(servers, "orders"), new_topic(servers, "invoices")
        asyncio.run(produce(servers, orders, options.count))
        left = options.count
        left -= run_and_end(servers, orders, invoices, left // 4)
        left -= run_and_end(servers, orders, invoices, left // 2)
        if left > 0:
            run_and_end(servers, orders, invoices, left)
        found = asyncio.run(read(servers, invoices, options.count))
        print(f"{options.count} orders, {len(found)} invoices, {len(set(found))} different ones")


if __name__ == "__main__":
    main()
