"""Draws docs/dashboard.png, which shows the board Overview of an outage, in Chromium. The data is from a real Kafka and
Prometheus.

    python examples/dashboard/picture.py [--output docs/dashboard.png] [--outage 240] [--quiet 60] [--scrape 5]

Two producers send, a consumer reads, and Prometheus scrapes them. All brokers are killed. The spools grow, and one of
the programs restarts. The brokers come back, the spools drain to 0, and every record is in its topic. Then
drawing/board.js draws overview.json unchanged, with its panels, units, axes, legends, times and marks, by ECharts,
which npm fetches. Prometheus uses rules.yml with the real waiting times, so no alert fires in an outage below three
minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import json
import logging
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from kafka import TopicPartition
from kafka.errors import KafkaError
from prometheus_client import CollectorRegistry
from run import chromium, wait_for
from tools import HERE, MissingPackageError, Prometheus, exit_code, fetch, find, start

from kafkasafe import SafeConsumer, SafeProducer
from kafkasafe.errors import KafkaSafeError
from kafkasafe.metrics import install, serve
from kafkasafe.testing.broker import KafkaCluster

_DRAWING = HERE / "drawing"
_WIDTH, _HEIGHT = 1280, 815
_RATES = {"orders": 100, "payments": 40}
"""Records per second, by client and topic."""
_READ_PER_S = 1000
_RECORD_BYTES = 1000
_SPOOL_BYTES = 64 << 20
_PATIENCE_S = 300.0


class Outage:
    """Runs clients on a broker that can be killed, and an endpoint with their metrics. A context manager."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._ended = threading.Event()
        self._busy = {name: threading.Lock() for name in _RATES}
        self._producers: dict[str, SafeProducer] = {}
        self._failures: list[Exception] = []
        self.accepted = dict.fromkeys(_RATES, 0)
        """Topic → number of records that send() accepted."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._spools = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafkasafe-picture-")))
            self._cluster = stack.enter_context(KafkaCluster(brokers=1))
            for topic in _RATES:
                self._cluster.create_topic(topic)
            self._registry = CollectorRegistry()
            server = stack.enter_context(serve(registry=self._registry))
            self.target = f"127.0.0.1:{server.port}"
            stack.callback(self._close)
            for name in _RATES:
                self._open(name)
            consumer = stack.enter_context(
                SafeConsumer(
                    *_RATES,
                    bootstrap_servers=self._cluster.bootstrap_servers,
                    client_id="billing",
                    group_id="billing",
                    auto_offset_reset="earliest",
                )
            )
            install(consumer, registry=self._registry)
            for name in _RATES:
                self._start(stack, lambda name=name: self._produce(name))
            self._start(stack, lambda: self._consume(consumer))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()
        if self._failures and not any(raised):
            raise self._failures[0]

    def _close(self) -> None:
        for producer in self._producers.values():
            producer.close(timeout=0)

    def _start(self, stack: contextlib.ExitStack, work: Callable[[], None]) -> None:
        stack.callback(start(work, self._failures).join)
        stack.callback(self._ended.set)

    def _open(self, name: str) -> None:
        producer = SafeProducer(
            bootstrap_servers=self._cluster.bootstrap_servers,
            client_id=name,
            spool_dir=self._spools / name,
            spool_max_bytes=_SPOOL_BYTES,
        )
        install(producer, registry=self._registry)
        self._producers[name] = producer

    def _produce(self, name: str) -> None:
        began, value = time.monotonic(), bytes(_RECORD_BYTES)
        while not self._ended.wait(0.05):
            with self._busy[name]:
                due = int((time.monotonic() - began) * _RATES[name]) - self.accepted[name]
                # After a restart, do not send the records that were missed in the pause.
                for _ in range(min(due, _RATES[name])):
                    self._producers[name].send(name, value)
                    self.accepted[name] += 1
                began += max(0, due - _RATES[name]) / _RATES[name]

    def _consume(self, consumer: SafeConsumer) -> None:
        while not self._ended.is_set():
            try:
                found = consumer.poll(200, max_records=100)
            except (KafkaError, KafkaSafeError):
                found = {}
            # Pause, in place of the consumer's work on each record.
            self._ended.wait(sum(map(len, found.values())) / _READ_PER_S)

    def begin(self) -> None:
        """Kills all brokers."""
        self._cluster.kill_all()

    def end(self) -> None:
        """Starts all brokers."""
        self._cluster.start_all()

    def restart(self, name: str) -> None:
        """Closes a producer and opens it again on the same spool, as if its program was restarted."""
        with self._busy[name]:
            self._producers[name].durable(60)
            self._producers[name].close(timeout=0)
            self._open(name)

    def delivered(self) -> bool:
        """Returns whether the topics have exactly the accepted records. Sends nothing meanwhile."""
        with contextlib.ExitStack() as stack:
            for lock in self._busy.values():
                stack.enter_context(lock)
            for producer in self._producers.values():
                producer.flush(_PATIENCE_S)
            consumer = stack.enter_context(SafeConsumer(bootstrap_servers=self._cluster.bootstrap_servers))
            ends = consumer.end_offsets([TopicPartition(name, 0) for name in _RATES])
            return {tp.topic: end for tp, end in ends.items()} == self.accepted


def total(prometheus: Prometheus, expression: str) -> float:
    """Returns the sum of a query's values; 0 if it has none."""
    return sum(float(sample["value"][1]) for sample in prometheus.query(expression))


def record(outage: Outage, prometheus: Prometheus, quiet_s: float, outage_s: float) -> tuple[float, float]:
    """Causes one outage. Returns the time range that the picture shows."""
    wait_for(
        lambda: (
            total(prometheus, "count(kafkasafe_ack_latency_seconds_count > 0)") == len(_RATES)
            and total(prometheus, "count(kafkasafe_lag_records)") == len(_RATES)
        ),
        lambda: f"scrapes of {outage.target}",
    )
    wait_for(lambda: not prometheus.alerts("pending"), lambda: prometheus.alerts("pending"))
    # Wait until all new counters have a rate.
    time.sleep(6 * prometheus.every_s)
    began = time.time()
    time.sleep(quiet_s)
    outage.begin()
    print(f"all brokers are killed; {outage_s:.0f} s without them", flush=True)
    time.sleep(outage_s * 2 / 3)
    outage.restart("payments")
    print("the program that sends payments is restarted", flush=True)
    time.sleep(outage_s / 3)
    peak = total(prometheus, "sum(kafkasafe_spool_records)")
    print(f"{peak:.0f} records are in the spools; the brokers start", flush=True)
    outage.end()
    # The producers continue to send, so a few records are always in flight.
    wait_for(
        lambda: (
            total(prometheus, "max(kafkasafe_spool_oldest_record_age_seconds)") < 2
            and total(prometheus, "sum(kafkasafe_lag_records)") < sum(_RATES.values())
        ),
        lambda: f"the spools to drain: {total(prometheus, 'sum(kafkasafe_spool_records)'):.0f} records",
        _PATIENCE_S,
    )
    print("the spools are drained", flush=True)
    time.sleep(quiet_s)
    assert outage.delivered(), f"accepted {outage.accepted}, and not as many in the topics"
    assert total(prometheus, "sum(kafkasafe_data_loss_records_total)") == 0
    wait_for(
        lambda: total(prometheus, "sum(kafkasafe_spool_records)") < sum(_RATES.values()),
        lambda: "the last scrape",
    )
    print(f"{sum(outage.accepted.values())} records were accepted, as many are in the topics", flush=True)
    return began, time.time()


def fetch_echarts(into: Path) -> Path:
    """Fetches the version of the chart library that package-lock.json pins, and returns its path.

    Raises:
        MissingPackageError: npm is missing, or it cannot fetch the package.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise MissingPackageError(
            "npm is not installed: it fetches ECharts, which draws the board. Install Node.js"
        )
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_DRAWING / name, into)
    fetch([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=into, timeout=300)
    return into / "node_modules" / "echarts" / "dist" / "echarts.min.js"


@contextlib.contextmanager
def page(board: dict[str, Any], prometheus: Prometheus, begin: float, end: float) -> Iterator[str]:
    """Yields the address of a page that draws a board."""
    with tempfile.TemporaryDirectory(prefix="kafkasafe-board-") as directory:
        here = Path(directory)
        shutil.move(fetch_echarts(here), here / "echarts.min.js")
        for name in ("board.html", "board.js"):
            shutil.copy(_DRAWING / name, here)
        data = {
            "BOARD": board,
            "PROMETHEUS": prometheus.url,
            "FROM": begin,
            "TO": end,
            "SCRAPE_S": prometheus.every_s,
        }
        (here / "data.js").write_text(
            "".join(f"const {name} = {json.dumps(value)};\n" for name, value in data.items())
        )
        yield (here / "board.html").as_uri()


def sections(drawn: str) -> list[dict[str, str]]:
    """Returns what the page reports about each panel: its title, and its number of series or its error."""
    return [
        {key: html.unescape(value) for key, value in re.findall(r'data-(\w+)="([^"]*)"', tag)}
        for tag in re.findall(r"<section [^>]*>", drawn)
    ]


def draw(prometheus: Prometheus, begin: float, end: float, file: Path) -> None:
    """Draws the picture of the board Overview.

    Raises:
        AssertionError: A panel could not be drawn, or has nothing to show.
    """
    board = json.loads((HERE / "overview.json").read_text())
    with page(board, prometheus, begin, end) as address:
        drawn = chromium("--dump-dom", address)
        assert f'data-drawn="{len(board["panels"])}"' in drawn, drawn[-3000:]
        shown = sections(drawn)
        assert [section["title"] for section in shown] == [panel["title"] for panel in board["panels"]]
        for section in shown:
            assert "error" not in section, section
            # The panel of alerts is empty if no alert fired.
            assert section["series"] != "0" or section["title"].startswith("Alerts"), section
        assert re.search(r'data-annotation="Restarts" data-times="1"', drawn), drawn[:3000]
        chromium(
            "--hide-scrollbars",
            "--force-device-scale-factor=1.5",
            f"--window-size={_WIDTH},{_HEIGHT}",
            f"--screenshot={file.resolve()}",
            address,
        )
    print(f"{len(shown)} panels are in {file}", flush=True)


def main() -> int:
    """Returns 0 if the picture is drawn, 1 if a check failed, 3 if a program is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, metavar="PNG", default=HERE.parents[1] / "docs" / "dashboard.png"
    )
    parser.add_argument("--outage", type=float, metavar="SECONDS", default=240.0)
    parser.add_argument(
        "--quiet", type=float, metavar="SECONDS", default=60.0, help="time before and after the outage"
    )
    parser.add_argument("--scrape", type=int, metavar="SECONDS", default=5, help="time between two scrapes")
    options = parser.parse_args()
    # The outage is intended, so do not log it.
    logging.getLogger("kafkasafe").setLevel(logging.CRITICAL)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)

    def work() -> None:
        # Find missing programs before the run, which takes minutes.
        find("chromium", "chromium")
        with tempfile.TemporaryDirectory(prefix="kafkasafe-board-") as directory:
            fetch_echarts(Path(directory))
        with (
            Outage() as outage,
            Prometheus(outage.target, every_s=options.scrape, patient=True) as prometheus,
        ):
            begin, end = record(outage, prometheus, options.quiet, options.outage)
            draw(prometheus, begin, end, options.output)

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
