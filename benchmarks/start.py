"""Measures the time and memory of a producer's start with waiting records in its spool.

    python benchmarks/start.py [--batches 527000] [--partitions 400] [--size 20] [--rounds 3] [--checkout DIR ...]

1. A producer sends one record to each partition of a cluster in memory (`FakeCluster`).
2. The cluster is stopped. The producer accepts --batches batches of one record each, and is killed (SIGKILL).
3. Producers start on copies of that spool, one after the other, each in its own process: with this code, and with the
   code of each DIR. No producer reaches a broker.

For each start, the benchmark prints the time until the constructor returned, until the first `send()` was accepted, and
until that record was durable, and the total CPU time. The benchmark also prints the growth of the resident memory: the
maximum, and the value a second later. With --size 1000000, use a small --batches: then the number of bytes determines
the time, and the page cache may already hold the bytes (--cold drops the page cache before each start, which needs
root).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MB = 1024 * 1024
TOPIC = "backlog"


def resident(field: str) -> float:
    """VmRSS or VmHWM of this process, MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def options_of(servers: list[str], directory: str) -> dict[str, object]:
    return {
        "bootstrap_servers": servers,
        "spool_dir": directory,
        "spool_max_bytes": 64 << 30,
        "max_request_size": 2 * MB,
    }


def quiet() -> None:
    """Turns off warnings about a spool in /tmp and missing brokers, which are intended here."""
    logging.getLogger("kafkasafe").setLevel(logging.ERROR)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)


def fill(options: argparse.Namespace) -> None:
    """Fills a spool like a program that is killed during an outage."""
    from kafkasafe import SafeProducer
    from kafkasafe.testing import FakeCluster

    with FakeCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=options.partitions)
        # Each record has its own batch.
        producer = SafeProducer(**options_of(cluster.bootstrap_servers, options.directory), batch_size=1)
        for partition in range(options.partitions):
            producer.send(TOPIC, b"0".zfill(options.size), partition=partition)
        producer.flush()
    for number in range(options.batches):
        producer.send(TOPIC, b"%0*d" % (options.size, number), partition=number % options.partitions)
    producer.durable()
    print(json.dumps({"batches": producer.metrics(raw=True)["unfinished_batches"]}), flush=True)
    os.kill(os.getpid(), 9)


def begin(options: argparse.Namespace) -> None:
    """Measures one start."""
    from kafkasafe import SafeProducer

    with tempfile.TemporaryDirectory() as empty:
        # Open and close a first producer, so that the modules that it loads do not count.
        SafeProducer(**options_of(["127.0.0.1:1"], empty)).close(timeout=0)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again
    began, cpu = time.monotonic(), time.process_time()
    producer = SafeProducer(**options_of(["127.0.0.1:1"], options.directory))
    opened = time.monotonic() - began
    producer.send(TOPIC, b"first", partition=0)
    accepted, cpu = time.monotonic() - began, time.process_time() - cpu
    producer.durable()
    durable = time.monotonic() - began
    most = resident("VmHWM") - before
    time.sleep(1)
    values = {
        "opened_s": opened,
        "accepted_s": accepted,
        "durable_s": durable,
        "cpu_s": cpu,
        "most_mb": most,
        "later_mb": resident("VmRSS") - before,
        "batches": producer.metrics(raw=True)["unfinished_batches"],
    }
    print(json.dumps({name: round(value, 2) for name, value in values.items()}), flush=True)
    producer.close(timeout=0)


def run(options: argparse.Namespace, role: str, directory: Path, checkout: Path) -> dict[str, float]:
    command = [sys.executable, __file__, role, "--directory", str(directory)]
    for name in ("batches", "partitions", "size"):
        command += [f"--{name}", str(getattr(options, name))]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, env=environment, check=False, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    if not lines:
        raise SystemExit(f"{role} ended with code {done.returncode}")
    return json.loads(lines[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("role", nargs="?", choices=["fill", "begin"], help=argparse.SUPPRESS)
    parser.add_argument("--directory", help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=int, default=527_000)
    parser.add_argument("--partitions", type=int, default=400)
    parser.add_argument("--size", type=int, default=20, help="bytes of a value")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--checkout", type=Path, action="append", default=[], help="another checkout to compare"
    )
    parser.add_argument("--spool", help="directory for the spools, with room for two")
    parser.add_argument("--cold", action="store_true", help="drop the page cache before each start")
    options = parser.parse_args()
    if options.role:
        quiet()
        (fill if options.role == "fill" else begin)(options)
        return
    here = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory(prefix="start-", dir=options.spool) as work:
        spool = Path(work, "spool")
        filled = run(options, "fill", spool, here)
        size = sum(file.stat().st_size for file in spool.rglob("*") if file.is_file())
        print(
            f"{filled['batches']} batches of one record of {options.size} bytes, {options.partitions} partitions,"
            f" {size / MB:.0f} MB; load {os.getloadavg()}",
            flush=True,
        )
        for number in range(options.rounds):
            for checkout in (here, *options.checkout):
                copy = Path(work, "copy")
                shutil.copytree(spool, copy)
                if options.cold:
                    os.sync()
                    Path("/proc/sys/vm/drop_caches").write_text("3")
                shown = run(options, "begin", copy, checkout.resolve())
                print(f"round {number + 1}, {checkout.resolve().name}: {json.dumps(shown)}", flush=True)
                shutil.rmtree(copy)


if __name__ == "__main__":
    main()
