"""Measures how a producer's time and memory grow with the work. Writes the tables and plots of docs/performance.md.

    python benchmarks/growth.py [--rounds 3] [--quick] [--only records,sizes]    # measures, then renders
    python benchmarks/growth.py --render                                         # renders benchmarks/growth.json again

Each of the five series has a new broker. SafeProducer (with its defaults) and confluent-kafka (with the settings of
produce.py) take turns, and each measurement runs in its own process.

- records: 10,000 to 10 million records of 100 bytes to one partition.
- partitions: keyed records of 100 bytes to a topic with 1 to 10,000 partitions.
- producers: 1 to 64 processes, which share one spool directory and start to send at the same moment.
- sizes: values of 1 byte to 1 MB. For comparison, this series also measures the limits of the machine: sending
  ready-made batches through a plain socket with five requests in flight; one fdatasync for each batch of 1 MB; a copy
  in memory.
- codecs: JSON values of about 300 bytes, with each compression.

The clock starts after a short warm-up, and stops when `flush()` has returned. CPU time is that of the client only.
Memory is the largest resident memory during the measurement minus the resident memory before it.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from kafka.errors import KafkaTimeoutError
from produce import CONFLUENT, JAVA_OPTIONS, end_offsets, machine
from start import resident

HERE = Path(__file__).parent
RESULTS = HERE / "growth.json"
DOCS = HERE.parent / "docs"
PAGE = DOCS / "performance.md"
MB = 1_000_000
BATCH_BYTES = 1_000_000
WARM_UP = 500
LARGEST_MESSAGE = 1_048_576
"""SafeProducer's default, which allows a value of 1 MB, unlike librdkafka's default of 1,000,000 bytes."""
MOST_PARTITIONS = 5000
"""Largest number of partitions in one request that creates a topic. Brokers refuse 10,000."""
CLIENTS = {"safe": "SafeProducer", "confluent": "confluent-kafka"}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CEILINGS = {
    "socket": "ready batches, plain socket",
    "disk": "1 MB and fdatasync",
    "memory": "copy in memory",
}


# --- one measurement, in a process of its own -------------------------------------------------------------------------


def values_of(size: int, *, json_values: bool) -> list[bytes]:
    """Returns 1,024 values, which are not all the same."""
    if json_values:
        names = [uuid.UUID(bytes=os.urandom(16)).hex for _ in range(1024)]
        return [
            json.dumps({
                "order": number,
                "customer": names[number % 200],
                "state": ["new", "paid", "sent"][number % 3],
                "lines": [{"article": names[(number + i) % 50], "count": i + 1, "price": 9.99 * i} for i in range(3)],
            }).encode()
            for number in range(1024)
        ]  # fmt: skip
    noise = os.urandom(size + 65_536)
    return [noise[i * 61 % 65_536 :][:size] for i in range(1024)]


def safe(options: argparse.Namespace) -> tuple[Callable[[bytes, bytes | None], object], Callable[[], object]]:
    from kafkasafe import SafeProducer

    producer = SafeProducer(
        bootstrap_servers=options.servers.split(","),
        spool_dir=options.spool,
        compression_type=None if options.codec == "none" else options.codec,
    )
    send, topic = producer.send, options.topic
    return (lambda value, key: send(topic, value, key)), producer.flush


def confluent(
    options: argparse.Namespace,
) -> tuple[Callable[[bytes, bytes | None], object], Callable[[], object]]:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": options.servers,
            "compression.type": options.codec,
            "message.max.bytes": LARGEST_MESSAGE,
            **CONFLUENT,
        }
    )
    produce, poll, topic = producer.produce, producer.poll, options.topic

    def send(value: bytes, key: bytes | None) -> None:
        while True:
            try:
                return produce(topic, value, key)
            except BufferError:
                poll(0.01)

    def flush() -> None:
        if producer.flush(300):
            sys.exit("confluent-kafka did not deliver everything")

    return send, flush


def measure(options: argparse.Namespace) -> None:
    values = values_of(options.size, json_values=options.json_values)
    keys = [b"customer-%06d" % i for i in range(50_000)] if options.keyed else [None]
    send, flush = (safe if options.client == "safe" else confluent)(options)
    many = len(keys)

    def run(count: int) -> None:
        for number in range(count):
            send(values[number & 1023], keys[number * 7919 % many])
        flush()

    run(max(1, min(WARM_UP, options.records, 20 * MB // max(1, options.size))))
    print("ready", flush=True)
    sys.stdin.readline()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins again
    before, cpu, began = resident("VmRSS"), time.process_time(), time.perf_counter()
    run(options.records)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    grown = max(0, resident("VmHWM") - before)
    print(json.dumps({"seconds": seconds, "cpu_s": cpu, "memory_mb": grown}), flush=True)


# --- limits of the machine --------------------------------------------------------------------------------------------


def through_socket(server: str, topic: str, size: int, total_bytes: int) -> float:
    """Returns how many MB of values per second a plain socket can send, in batches that are already encoded."""
    from kafkasafe.kafkapython.wire import encode_produce
    from kafkasafe.record import batch as codec

    values = values_of(size, json_values=False)
    count = max(1, min(100_000, BATCH_BYTES // (size + 12)))
    batch = codec.encode(None, [values[i & 1023] for i in range(count)], timestamps=int(time.time() * 1000))
    frame = b"".join(bytes(part) for part in encode_produce(7, 0, "growth", 1, 30_000, [(topic, 0, batch)]))
    requests = max(6, total_bytes // len(batch))
    host, port = server.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = link.makefile("rb")

        def answered() -> None:
            answer = answers.read(int.from_bytes(answers.read(4), "big"))
            # The response has the correlation id, one topic with its name, one partition with its number, and the
            # error code.
            code = int.from_bytes(answer[4 + 4 + 2 + len(topic) + 4 + 4 :][:2], "big", signed=True)
            if code:
                sys.exit(f"The broker refused a batch with error {code}")

        def run(number: int) -> None:
            in_flight = 0
            for _ in range(number):
                link.sendall(frame)
                in_flight += 1
                if in_flight == 5:
                    answered()
                    in_flight -= 1
            for _ in range(in_flight):
                answered()

        run(6)
        began = time.perf_counter()
        run(requests)
        return requests * count * size / MB / (time.perf_counter() - began)


def to_disk(parent: str | None, count: int = 100) -> float:
    """Returns how many MB per second can be appended to a file, with one fdatasync for each MB."""
    data = os.urandom(MB)
    with tempfile.NamedTemporaryFile(dir=parent) as file:
        began = time.perf_counter()
        for _ in range(count):
            os.write(file.fileno(), data)
            os.fdatasync(file.fileno())
        return count / (time.perf_counter() - began)


def in_memory(count: int = 300) -> float:
    """Returns how many MB per second can be copied, 1 MB at a time, to memory that was used before."""
    data, target = os.urandom(MB), bytearray(MB)
    began = time.perf_counter()
    for _ in range(count):
        target[:] = data
    return count / (time.perf_counter() - began)


# --- series -----------------------------------------------------------------------------------------------------------


class Bench:
    """Measures on one broker.

    Args:
        cluster: The broker.
        options: Options of the command line.
    """

    def __init__(self, cluster: Any, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._options = options

    def series(
        self,
        points: Iterable[Any],
        given: Callable[[Any], dict[str, Any]],
        *,
        processes: Callable[[Any], int] = lambda _: 1,
    ) -> list[dict[str, Any]]:
        """Measures each point with both clients, in turns.

        Args:
            points: The values of the axis.
            given: Returns the settings of a point: records (of all processes), size, partitions, codec, keyed,
                json_values.
            processes: Returns how many processes send at the same time at a point of a series.
        """
        rows = []
        for point in points:
            of = {"size": 100, "partitions": 1, "codec": "none", "keyed": False, "json_values": False}
            of |= given(point)
            topic = f"growth-{uuid.uuid4().hex[:8]}"
            self._create(topic, of["partitions"])
            found: dict[str, list[dict[str, float]]] = {client: [] for client in CLIENTS}
            for _ in range(self._options.rounds):
                for client in CLIENTS:
                    found[client].append(self._once(client, topic, of, processes(point)))
            self._cluster.delete_topic(topic)
            row: dict[str, Any] = {"point": point}
            for client, runs in found.items():
                row[client] = {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}
            print(
                f"  {point!s:>10}  " + "   ".join(f"{client} {row[client]}" for client in CLIENTS), flush=True
            )
            rows.append(row)
        return rows

    def _create(self, topic: str, partitions: int) -> None:
        self._cluster.create_topic(topic, partitions=min(partitions, MOST_PARTITIONS), timeout_s=300)
        if partitions > MOST_PARTITIONS:
            with self._cluster.admin() as admin:
                admin.create_partitions({topic: partitions}, timeout_ms=120_000)
            self._wait_for_leaders(topic, partitions)

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        """Waits until all partitions have leaders, so that the first client does not wait for leaders."""
        for attempt in range(10):
            try:
                end_offsets(self._cluster.bootstrap_servers, topic, partitions)
            except KafkaTimeoutError:
                if attempt == 9:
                    raise
            else:
                return

    def _once(self, client: str, topic: str, of: dict[str, Any], processes: int) -> dict[str, float]:
        records = max(1, of["records"] // processes)
        spool = tempfile.mkdtemp(prefix="kafkasafe-growth-", dir=self._options.spool_parent)
        command = [
            *(sys.executable, __file__, "--client", client, "--topic", topic, "--spool", spool),
            *("--size", str(of["size"]), "--records", str(records), "--codec", of["codec"]),
            *("--servers", ",".join(self._cluster.bootstrap_servers)),
            *(["--keyed"] if of["keyed"] else []),
            *(["--json-values"] if of["json_values"] else []),
        ]
        children: list[subprocess.Popen[str]] = []
        try:
            for _ in range(processes):
                child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                children.append(child)
            for child in children:
                if child.stdout.readline() != "ready\n":  # type: ignore[union-attr]
                    sys.exit(f"{client} failed with exit code {child.wait(10)}")
            for child in children:
                child.stdin.write("\n")  # type: ignore[union-attr]
                child.stdin.flush()  # type: ignore[union-attr]
            runs = [json.loads(child.communicate(timeout=600)[0]) for child in children]
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                child.wait()
            shutil.rmtree(spool, ignore_errors=True)
        sent = records * processes
        seconds = max(run["seconds"] for run in runs)
        return {
            "per_s": sent / seconds,
            "mb_per_s": sent * of["size"] / MB / seconds,
            "cpu_us": sum(run["cpu_s"] for run in runs) / sent * 1e6,
            "memory_mb": statistics.mean(run["memory_mb"] for run in runs),
        }


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    from kafkasafe.testing.broker import KafkaCluster

    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if options.only else {}
    share = 0.02 if options.quick else 1.0
    wanted = options.only or ["records", "partitions", "producers", "sizes", "codecs"]
    config = {
        "file.delete.delay.ms": 0,
        "log.initial.task.delay.ms": 1000,
        "log.index.size.max.bytes": 65_536,
    }
    for name in wanted:
        print(name, flush=True)
        with KafkaCluster(brokers=1, config=config, java_options=JAVA_OPTIONS) as cluster:
            bench = Bench(cluster, options)
            # Warm up the broker: its compiler must have seen each kind of request before the first measurement.
            bench.series([0], lambda _: {"records": int(1_000_000 * share), "partitions": 3, "keyed": True})
            match name:
                case "records":
                    points = [10_000, 100_000, 1_000_000, 10_000_000][: 3 if options.quick else 4]
                    rows = bench.series(points, lambda point: {"records": point})
                case "partitions":
                    points = [1, 10, 100, 1000, 5000, 10_000][: 3 if options.quick else 6]
                    rows = bench.series(
                        points,
                        lambda point: {"records": int(200_000 * share), "partitions": point, "keyed": True},
                    )
                case "producers":
                    points = [1, 4, 16, 64][: 2 if options.quick else 4]
                    rows = bench.series(
                        points, lambda _: {"records": int(1_280_000 * share)}, processes=lambda point: point
                    )
                case "sizes":
                    points = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000]
                    rows = bench.series(
                        points,
                        lambda point: {
                            "size": point,
                            "records": max(20, int(min(1_000_000, 300 * MB // point) * share)),
                        },
                    )
                    for row in rows:
                        row["socket"] = ceiling(cluster, row["point"], int(300 * MB * share))
                    found["ceilings"] = {
                        "disk": round(to_disk(options.spool_parent)),
                        "memory": round(in_memory()),
                    }
                case _:
                    sample = values_of(0, json_values=True)
                    size = round(statistics.mean(map(len, sample)))
                    rows = bench.series(
                        CODECS,
                        lambda codec, size=size: {
                            "records": int(300_000 * share),
                            "codec": codec,
                            "json_values": True,
                            "size": size,
                        },
                    )
            found[name] = rows
    found["machine"] = machine()
    return found


def ceiling(cluster: Any, size: int, total_bytes: int) -> int:
    """Returns the median of three runs of `through_socket`."""
    rates = []
    for _ in range(3):
        topic = f"growth-{uuid.uuid4().hex[:8]}"
        cluster.create_topic(topic, partitions=1)
        rates.append(through_socket(cluster.bootstrap_servers[0], topic, size, total_bytes))
        cluster.delete_topic(topic)
    return round(statistics.median(rates))


# --- the page ---------------------------------------------------------------------------------------------------------


def shown(number: float) -> str:
    """Formats a number with at most three significant digits, and with separators."""
    if number >= 100:
        digits = max(0, len(str(int(number))) - 3)
        return f"{round(number, -digits):,.0f}"
    return f"{number:.3g}"


def table(name: str, found: dict[str, Any]) -> str:
    """Returns one series as a Markdown table."""
    first = {
        "records": "records",
        "partitions": "partitions",
        "producers": "processes",
        "sizes": "bytes of a value",
        "codecs": "compression",
    }[name]
    rate = "mb_per_s" if name == "sizes" else "per_s"
    unit = "MB/s" if name == "sizes" else "records/s"
    head = [
        first,
        f"{unit}: SafeProducer, confluent-kafka",
        "ratio",
        "CPU time of a record",
        "memory" + (" of a process" if name == "producers" else ""),
        *(["plain socket"] if name == "sizes" else []),
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in found[name]:
        safe_row, other = row["safe"], row["confluent"]
        point = row["point"] if isinstance(row["point"], str) else f"{row['point']:,}"
        cells = [
            point,
            f"{shown(safe_row[rate])}, {shown(other[rate])}",
            f"{safe_row['per_s'] / other['per_s']:.2f}×",
            f"{shown(safe_row['cpu_us'])}, {shown(other['cpu_us'])} µs",
            f"{shown(safe_row['memory_mb'])}, {shown(other['memory_mb'])} MB",
            *([f"{shown(row['socket'])} MB/s"] if name == "sizes" else []),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(text: str, found: dict[str, Any]) -> str:
    """Returns the page with new tables between their markers."""
    tables = {name: table(name, found) for name in ("records", "partitions", "producers", "sizes", "codecs")}
    facts = found["machine"]
    tables["machine"] = (
        f"{facts['cores']} cores ({facts['cpu']}), Linux {facts['kernel']}, Python {facts['python']}; one fdatasync"
        f" after each MB: {shown(found['ceilings']['disk'])} MB/s; a copy in memory:"
        f" {shown(found['ceilings']['memory'])} MB/s."
    )
    for name, content in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, rest = text.split(begin)
        text = head + begin + content + "\n" + end + rest.split(end, 1)[1]
    return text


def draw(found: dict[str, Any]) -> None:
    """Draws the plots as SVG files that contain text as text."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from svg import save

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "growth", "font.family": "sans-serif"})
    colors = {"safe": "#1f6fb4", "confluent": "#888888"}
    plots: dict[str, tuple[str, Sequence[tuple[str, str]]]] = {
        "records": ("records", (("cpu_us", "CPU time of a record, µs"), ("memory_mb", "memory, MB"))),
        "partitions": ("partitions", (("cpu_us", "CPU time of a record, µs"), ("memory_mb", "memory, MB"))),
        "producers": ("processes", (("per_s", "records/s together"), ("cpu_us", "CPU time of a record, µs"))),
        "sizes": ("bytes of a value", (("mb_per_s", "MB/s"), ("cpu_us", "CPU time of a record, µs"))),
    }
    for name, (label, columns) in plots.items():
        figure = Figure(figsize=(8.4, 3.2), layout="constrained")
        points = [row["point"] for row in found[name]]
        for axes, (column, title) in zip(figure.subplots(1, 2), columns, strict=True):
            for client, text in CLIENTS.items():
                axes.plot(points, [row[client][column] for row in found[name]], marker="o", markersize=3,
                          color=colors[client], label=text)  # fmt: skip
            if column == "mb_per_s":
                axes.plot(points, [row["socket"] for row in found[name]], color="#2a9d5c", linestyle="--",
                          label=CEILINGS["socket"])  # fmt: skip
                for key, style in (("disk", ":"), ("memory", "-.")):
                    axes.axhline(
                        found["ceilings"][key], color="#bbbbbb", linestyle=style, label=CEILINGS[key]
                    )
            axes.set_xscale("log")
            if column != "per_s":
                axes.set_yscale("log")
            axes.set_xlabel(label)
            axes.set_title(title, loc="left", fontsize=10)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=7)
        save(figure, DOCS / f"performance-{name}.svg")


def render(found: dict[str, Any]) -> None:
    """Writes the page and its plots."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    draw(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="do a fiftieth of the work, and write nothing")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), help="measure only these series; keep the others"
    )
    parser.add_argument("--render", action="store_true", help="only write the page and the plots again")
    parser.add_argument("--spool-parent", help="directory for the spools, on the disk to be measured")
    child = parser.add_argument_group("one measurement (used by this program itself)")
    child.add_argument("--client", choices=CLIENTS)
    for name in ("--topic", "--servers", "--spool"):
        child.add_argument(name)
    child.add_argument("--size", type=int)
    child.add_argument("--records", type=int)
    child.add_argument("--codec", choices=CODECS, default="none")
    child.add_argument("--keyed", action="store_true")
    child.add_argument("--json-values", action="store_true")
    options = parser.parse_args()
    if options.client:
        measure(options)
        return
    if options.render:
        render(json.loads(RESULTS.read_text(encoding="utf-8")))
        return
    found = run_all(options)
    if not options.quick:
        ordered = collections.OrderedDict(sorted(found.items()))
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
        render(found)


if __name__ == "__main__":
    main()
