"""Measures the cost of metrics: the throughput of SafeProducer with and without metrics, in turns, on a real broker.

    python benchmarks/metrics.py

The same program runs in three kinds of processes. `none` counts nothing, because counters that do nothing replace its
own. `counted` is a normal producer. `scraped` has prometheus=True and is scraped over HTTP every second (Prometheus's
default is 15 seconds). The kinds take turns, so that other load on the machine affects all of them. The benchmark
compares medians of records per second, and of the client's CPU time per record, which other load affects less.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path

KINDS = ("none", "counted", "scraped")
SCRAPE_EVERY_S = 1.0
WARM_UP = 20_000


class _Deaf(collections.Counter):
    """A counter that counts nothing."""

    def __setitem__(self, key: object, value: object) -> None: ...


def _do_not_count() -> None:
    from kafkasafe import stats

    class Silent(stats.Stats):
        def __init__(self) -> None:
            super().__init__()
            for name, value in vars(self).items():
                if isinstance(value, collections.Counter):
                    setattr(self, name, _Deaf())

    from kafkasafe.delivery.engine import context

    context.Stats = Silent
    stats.Histogram.observe = lambda *_: None


def measure(options: argparse.Namespace) -> None:
    if options.kind == "none":
        _do_not_count()
    from kafkasafe import SafeProducer
    from kafkasafe.metrics import serve

    values = [b"%0100d" % number for number in range(options.records)]
    scrapes = 0
    with SafeProducer(bootstrap_servers=options.servers.split(","), spool_dir=options.spool) as producer:
        topic, send = options.topic, producer.send
        for value in values[:WARM_UP]:
            send(topic, value)
        producer.flush()
        server = scraper = None
        if options.kind == "scraped":
            # Another process scrapes, because Prometheus's own work is not part of the client's.
            server = serve(producer, partitions=True)
            code = (
                f"import time, urllib.request\nwhile True:\n time.sleep({SCRAPE_EVERY_S})\n"
                f" urllib.request.urlopen('http://127.0.0.1:{server.port}/metrics').read()"
            )
            scraper = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
            url = f"http://127.0.0.1:{server.port}/metrics"
            assert b"kafkasafe_records_total" in urllib.request.urlopen(url).read()
        cpu, began = time.process_time(), time.perf_counter()
        for value in values:
            send(topic, value)
        producer.flush()
        seconds = time.perf_counter() - began
        cpu = time.process_time() - cpu
        if scraper is not None and server is not None:
            scraper.kill()
            scraper.wait()
            server.close()
        scrapes = int(seconds / SCRAPE_EVERY_S) if options.kind == "scraped" else 0
    print(json.dumps({"rate": len(values) / seconds, "cpu_us": cpu / len(values) * 1e6, "scrapes": scrapes}))


def one(cluster: object, kind: str, records: int, spool_parent: str | None) -> dict[str, float]:
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, partitions=1)
    spool = tempfile.mkdtemp(prefix="kafkasafe-bench-", dir=spool_parent)
    command = [
        *(sys.executable, __file__, "--kind", kind, "--records", str(records), "--topic", topic),
        *("--servers", ",".join(cluster.bootstrap_servers), "--spool", spool),
    ]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
        return json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(spool, ignore_errors=True)
        cluster.delete_topic(topic)


def run_all(options: argparse.Namespace) -> int:
    from kafkasafe.testing.broker import KafkaCluster

    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    config = {"file.delete.delay.ms": 0, "log.initial.task.delay.ms": 1000}
    with KafkaCluster(brokers=1, config=config) as cluster:
        one(cluster, "none", options.records // 4, options.spool_parent)  # warm up the broker
        for turn in range(options.repeats):
            for kind in KINDS[turn % 3 :] + KINDS[: turn % 3]:
                found[kind].append(one(cluster, kind, options.records, options.spool_parent))
                print(f"{kind:8} {found[kind][-1]['rate']:>12,.0f} records/s", flush=True)
    medians = {
        kind: {name: statistics.median(run[name] for run in runs) for name in ("rate", "cpu_us")}
        for kind, runs in found.items()
    }
    base = medians["none"]
    print(f"\n{'':8}{'records/s':>12}{'lost':>9}{'CPU us':>9}{'more':>9}   load {os.getloadavg()[0]:.1f}")
    for kind in KINDS:
        rate, cpu = medians[kind]["rate"], medians[kind]["cpu_us"]
        lost, more = (1 - rate / base["rate"]) * 100, (cpu / base["cpu_us"] - 1) * 100
        print(f"{kind:8}{rate:>12,.0f}{lost:>8.1f}%{cpu:>9.3f}{more:>8.1f}%")
    if options.json:
        options.json.write_text(json.dumps({"medians": medians, "runs": found}, indent=1) + "\n")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000, help="records per run (100 B each)")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--spool-parent", help="directory for the spools, on the disk to be measured")
    parser.add_argument("--json", type=Path)
    child = parser.add_argument_group("one run (used by this program itself)")
    child.add_argument("--kind", choices=KINDS)
    for name in ("--topic", "--servers", "--spool"):
        child.add_argument(name)
    options = parser.parse_args()
    if options.kind:
        measure(options)
        return 0
    return run_all(options)


if __name__ == "__main__":
    sys.exit(main())
