"""Measures a producer's memory in a long outage: while records wait, at the next start, and during the delivery.

    python benchmarks/backlog.py [--records 10000000] [--partitions 400] [--spool /dev/shm]

A producer sends one record to each partition. Then the benchmark stops the real broker (SIGSTOP), and the producer
sends small records, to one partition after the other. After each million records the producer prints how much its
resident memory has grown since the outage began. Then the producer is killed (SIGKILL), and the next producer opens the
spool. The benchmark prints the duration of this start, and the growth of memory. At last the broker continues. The
benchmark prints records per second and the largest resident memory, and checks that each partition has every record
once and in the order of sending.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

MB = 1024 * 1024
MILLION = 1_000_000


def resident() -> int:
    """Resident memory of this process, bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def shown(**values: object) -> None:
    print(json.dumps(values), flush=True)


def opened(options: argparse.Namespace):
    from kafkasafe import SafeProducer

    return SafeProducer(
        bootstrap_servers=options.servers.split(","),
        spool_dir=options.directory,
        spool_max_bytes=64 << 30,
        **({} if options.batch_size is None else {"batch_size": options.batch_size}),
    )


def fill(options: argparse.Namespace) -> None:
    """The first producer process, which is killed when it reports that all records are durable."""
    producer = opened(options)
    partitions, size = options.partitions, options.size
    for partition in range(partitions):
        producer.send("backlog", b"0".zfill(size), partition=partition)
    producer.flush()
    shown(ready=True)
    sys.stdin.readline()
    before, began, cpu = resident(), time.monotonic(), time.process_time()
    send = producer.send
    for number in range(options.records):
        send("backlog", b"%0*d" % (size, number), partition=number % partitions)
        if not (number + 1) % MILLION:
            producer.durable()
            shown(
                millions=(number + 1) // MILLION,
                growth_mb=round((resident() - before) / MB, 1),
                s=round(time.monotonic() - began, 1),
                cpu_s=round(time.process_time() - cpu, 1),
                batches=producer.metrics(raw=True)["unfinished_batches"],
            )
    producer.durable()
    shown(filled=True, before_mb=round(before / MB))
    sys.stdin.readline()


def deliver(options: argparse.Namespace) -> None:
    """The second producer process."""
    import kafkasafe  # noqa: F401

    before, began, cpu = resident(), time.monotonic(), time.process_time()
    producer = opened(options)
    seconds = time.monotonic() - began
    shown(
        opened_s=round(seconds, 1),
        cpu_s=round(time.process_time() - cpu, 1),
        growth_mb=round((resident() - before) / MB, 1),
        mb=round(resident() / MB),
    )
    sys.stdin.readline()
    most, over = [resident()], threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            most[0] = max(most[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began, cpu = time.monotonic(), time.process_time()
    try:
        producer.flush(timeout=1800)
        seconds = time.monotonic() - began
    finally:
        over.set()
    watcher.join()
    shown(
        delivered_s=round(seconds, 1),
        records_per_s=round(options.records / seconds),
        cpu_s=round(time.process_time() - cpu, 1),
        most_mb=round(most[0] / MB),
        grew_mb=round((most[0] - before) / MB, 1),
    )
    producer.close()


def wrong(servers: list[str], options: argparse.Namespace) -> int:
    """Returns the partitions that do not have each record once and in order."""
    from kafka import TopicPartition

    from kafkasafe import SafeConsumer

    bad = 0
    with SafeConsumer(
        bootstrap_servers=servers, max_poll_records=100_000, fetch_max_bytes=16 * MB
    ) as consumer:
        for partition in range(options.partitions):
            at = TopicPartition("backlog", partition)
            consumer.assign([at])
            consumer.seek_to_beginning(at)
            want = [0, *range(partition, options.records, options.partitions)]
            got: list[int] = []
            until = time.monotonic() + 120
            while len(got) < len(want) and time.monotonic() < until:
                for records in consumer.poll(1000).values():
                    got += [int(record.value) for record in records]
            bad += got != want
    return bad


def start(
    options: argparse.Namespace, life: str, servers: list[str], directory: str
) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, life, "--servers", ",".join(servers), "--directory", directory]
    for name in ("records", "partitions", "size", "batch_size"):
        if getattr(options, name) is not None:
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def until(child: subprocess.Popen[str], key: str) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        print(" ", line.strip(), flush=True)
        if key in json.loads(line):
            return
    raise SystemExit(f"The producer ended with code {child.wait()}")


def go_on(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("life", nargs="?", choices=["fill", "deliver"], help=argparse.SUPPRESS)
    parser.add_argument("--servers", help=argparse.SUPPRESS)
    parser.add_argument("--directory", help=argparse.SUPPRESS)
    parser.add_argument("--records", type=int, default=10 * MILLION)
    parser.add_argument("--partitions", type=int, default=400)
    parser.add_argument("--size", type=int, default=20, help="bytes of a value")
    parser.add_argument("--batch-size", type=int, help="batch_size of the producer; default: its own")
    parser.add_argument("--spool", help="directory for the spool, with room for all records")
    parser.add_argument("--no-check", action="store_true", help="do not read the topic at the end")
    options = parser.parse_args()
    if options.life:
        return fill(options) if options.life == "fill" else deliver(options)
    from kafkasafe.testing import KafkaCluster

    directory = tempfile.mkdtemp(prefix="backlog-", dir=options.spool)
    children: list[subprocess.Popen[str]] = []
    with KafkaCluster(1) as cluster:
        try:
            cluster.create_topic("backlog", partitions=options.partitions)
            servers = cluster.bootstrap_servers
            what = f"{options.records} records of {options.size} bytes, {options.partitions} partitions"
            print(f"{what}; load {os.getloadavg()}", flush=True)
            children.append(start(options, "fill", servers, directory))
            until(children[0], "ready")
            cluster.pause(1)
            go_on(children[0])
            until(children[0], "filled")
            children[0].kill()
            children[0].wait()
            size = sum(file.stat().st_size for file in Path(directory).rglob("*") if file.is_file())
            print(f"killed; the spool has {size / MB:.0f} MB", flush=True)
            children.append(start(options, "deliver", servers, directory))
            until(children[1], "opened_s")
            cluster.resume(1)
            go_on(children[1])
            until(children[1], "delivered_s")
            children[1].wait()
            if not options.no_check:
                print(f"partitions with a record missing, twice or out of order: {wrong(servers, options)}")
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.wait()
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
