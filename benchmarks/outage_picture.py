"""Draws docs/outage.svg, the picture in the README, from a real run of the demo.

    python benchmarks/outage_picture.py [--seconds 24] [--outage 8] [--seed N] [--output docs/outage.svg]

Three brokers of Apache Kafka run on this machine, and one process sends numbered records with SafeProducer. All brokers
are killed with -9, and some seconds later the process too. Then the brokers and the process are started again. The
picture shows how many records were on disk, and how many were in the topic according to its high watermarks. The title
quotes the demo's audit of the topic.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import threading
import time
from pathlib import Path

import matplotlib as mpl
from kafka import TopicPartition
from kafka.errors import KafkaError
from matplotlib.figure import Figure
from svg import save

from kafkasafe import SafeConsumer
from kafkasafe.demo.audit import Run
from kafkasafe.demo.run import Demo, Settings
from kafkasafe.testing.broker import KafkaCluster

RATE = 1000
"""Records a second."""
SAMPLE_S = 0.1
_BLUE, _GREEN, _RED, _GREY = "#1f6feb", "#2da44e", "#cf222e", "#57606a"


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """Numbers of records until one moment.

    Attributes:
        at: Seconds since the first record.
        durable: Records on disk.
        delivered: Records in the topic.
    """

    at: float
    durable: int
    delivered: int


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """One run of the demo.

    Attributes:
        samples: One sample every `SAMPLE_S`.
        brokers_killed: Seconds since the first record.
        process_killed: Seconds since the first record.
        brokers_back: Seconds since the first record.
        run: The result of the audit.
    """

    samples: list[Sample]
    brokers_killed: float
    process_killed: float
    brokers_back: float
    run: Run


class _Watcher(threading.Thread):
    """Asks the demo and the cluster for their counts every `SAMPLE_S` seconds. While no broker answers, the previous
    answer is repeated.
    """

    def __init__(self, demo: Demo, cluster: KafkaCluster) -> None:
        super().__init__()
        self.samples: list[Sample] = []
        self._demo = demo
        self._servers = cluster.bootstrap_servers
        self._over = threading.Event()
        self._delivered = 0

    def run(self) -> None:
        asking = threading.Thread(target=self._ask)
        asking.start()
        while not self._over.wait(SAMPLE_S):
            for progress in self._demo.progress():
                self.samples.append(Sample(time.monotonic(), progress.durable, self._delivered))
        asking.join()

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _ask(self) -> None:
        with contextlib.closing(SafeConsumer(bootstrap_servers=self._servers)) as consumer:
            while not self._over.wait(SAMPLE_S):
                with contextlib.suppress(KafkaError):
                    topics = [topic for topic in consumer.topics() if topic.startswith("demo-")]
                    partitions = [
                        TopicPartition(topic, partition)
                        for topic in topics
                        for partition in consumer.partitions_for_topic(topic) or ()
                    ]
                    if partitions:
                        self._delivered = sum(consumer.end_offsets(partitions).values())


def record(seconds: float, outage_s: float, seed: int | None) -> Recording:
    """Runs the demo's fault `everything` with SafeProducer only, and records its progress regularly."""
    settings = Settings(
        records=int(RATE * seconds),
        clients=("kafkasafe",),
        stream_s=seconds,
        outage_s=outage_s,
        faults=("everything",),
        seed=seed,
    )
    said: list[tuple[float, str]] = []

    def say(line: str) -> None:
        said.append((time.monotonic(), line))

    with KafkaCluster(brokers=3) as cluster, Demo(settings, say, cluster=cluster) as demo:
        watcher = _Watcher(demo, cluster)
        watcher.start()
        try:
            (run,) = demo.run()
        finally:
            watcher.stop()
    begin = next(sample.at for sample in watcher.samples if sample.durable)
    end = next(sample.at for sample in watcher.samples if sample.delivered >= run.in_log) + 2

    def moment(words: str) -> float:
        return next(at for at, line in said if words in line) - begin

    return Recording(
        [
            dataclasses.replace(sample, at=sample.at - begin)
            for sample in watcher.samples
            if begin <= sample.at <= end
        ],
        moment("FAULT everything"),
        moment("FAULT producer"),
        moment("brokers are back"),
        run,
    )


def draw(recording: Recording, path: Path) -> None:
    """Writes the picture as an SVG file that contains text as text."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "outage", "font.family": "sans-serif"})
    times = [sample.at for sample in recording.samples]
    durable = [sample.durable for sample in recording.samples]
    delivered = [sample.delivered for sample in recording.samples]
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.axvspan(recording.brokers_killed, recording.brokers_back, color=_RED, alpha=0.08, linewidth=0)
    axes.fill_between(times, delivered, durable, color=_BLUE, alpha=0.15, linewidth=0)
    axes.plot(times, durable, color=_BLUE, linewidth=1.8, label="on disk: durable() has returned")
    axes.plot(times, delivered, color=_GREEN, linewidth=1.8, label="in the topic")
    top = max(durable)
    for at, text, height in (
        (recording.brokers_killed, "kill -9 of all brokers", 0.94),
        (recording.process_killed, "kill -9 of the program", 0.84),
        (recording.brokers_back, "brokers answer again", 0.74),
    ):
        axes.axvline(at, color=_GREY, linewidth=0.8, linestyle="--")
        axes.text(at - 0.15, top * height, text, ha="right", color=_GREY, fontsize=9)
    run = recording.run
    axes.set_title(
        f"{run.sent:,} records promised: {run.lost} lost, {run.duplicated} duplicated, {run.out_of_order} out of order",
        loc="left",
        fontsize=11,
    )
    axes.set_xlabel("seconds")
    axes.set_ylabel("records")
    axes.set_xlim(0, times[-1])
    axes.set_ylim(0, top * 1.04)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=24.0, help="how long records are sent")
    parser.add_argument("--outage", type=float, default=8.0, help="minimum seconds without brokers")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "docs" / "outage.svg")
    options = parser.parse_args()
    draw(record(options.seconds, options.outage, options.seed), options.output)


if __name__ == "__main__":
    main()
