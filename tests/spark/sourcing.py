"""What the tests of the Spark source share."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from kafka import TopicPartition

from kafkasafe.spark.notices import Notices
from kafkasafe.spark.options import read_options
from kafkasafe.spark.planner import Planner, Range
from kafkasafe.spark.positions import Positions
from kafkasafe.spark.reading import COLUMNS, read
from kafkasafe.testing.broker import KafkaCluster

SCHEMA = pa.schema([pa.field(name, kind) for name, kind in COLUMNS.items()])


def new_topic(cluster: KafkaCluster, partitions: int = 1, **more: Any) -> str:
    name = f"s-{random.SystemRandom().getrandbits(40):010x}"
    cluster.create_topic(name, partitions, **more)
    return name


def until(condition: Callable[[], Any], timeout_s: float = 180.0, what: str = "") -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what or condition}"
        time.sleep(0.05)
    return value


@contextlib.contextmanager
def producing(cluster: KafkaCluster, **options: Any) -> Iterator[Producer]:
    """A producer whose records are all acknowledged at the end."""
    failed: list[Any] = []
    settings = {
        "bootstrap.servers": ",".join(cluster.bootstrap_servers),
        "enable.idempotence": True,
        "linger.ms": 5,
        "on_delivery": lambda error, _: failed.append(error) if error else None,
        **{name.replace("_", "."): value for name, value in options.items()},
    }
    producer = Producer(settings)
    yield producer
    assert producer.flush(120) == 0
    assert not failed


class Load:
    """Numbers, written to a topic until it is stopped."""

    def __init__(self, cluster: KafkaCluster, topic: str, *, pause_s: float) -> None:
        self.count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, args=(cluster, topic, pause_s))

    def _write(self, cluster: KafkaCluster, topic: str, pause_s: float) -> None:
        with producing(cluster) as producer:
            while not self._stop.wait(pause_s):
                producer.produce(topic, b"%d" % self.count, partition=0)
                producer.poll(0)
                self.count += 1

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(120)


def write(
    cluster: KafkaCluster, topic: str, values: Iterable[bytes], partition: int = 0, **more: Any
) -> None:
    with producing(cluster) as producer:
        for value in values:
            producer.produce(topic, value, partition=partition, **more)


def transact(cluster: KafkaCluster, topic: str, values: Sequence[bytes], *, commit: bool) -> None:
    with producing(cluster, transactional_id=f"t-{random.SystemRandom().getrandbits(40):010x}") as producer:
        producer.init_transactions(60)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        if commit:
            producer.commit_transaction(60)
        else:
            # What is not sent is purged by an abort, and reported as failed.
            producer.flush(60)
            producer.abort_transaction(60)
    cluster.wait_for_markers()


def delete_before(cluster: KafkaCluster, topic: str, offset: int, partition: int = 0) -> None:
    """As retention does."""
    with cluster.admin() as admin:
        admin.delete_records({TopicPartition(topic, partition): offset})


class Source:
    """A planner and a reader without Spark, as the data source uses them."""

    def __init__(self, cluster: Any, *, streaming: bool = True, **options: str) -> None:
        given = {"kafka.bootstrap.servers": ",".join(cluster.bootstrap_servers)}
        given |= {name.replace("__", "."): value for name, value in options.items()}
        self.events: list[Any] = []
        self.options = read_options(given, streaming=streaming)
        self.notices = Notices(None)
        self.notices.tell = self.events.append  # type: ignore[method-assign]
        self.planner = Planner(self.options, self.notices)

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.planner.close()

    def restart(self) -> None:
        """A new life, which knows what is in the checkpoint."""
        self.planner.close()
        self.planner = Planner(self.options, self.notices)

    def latest(self, start: Positions, limit: int = 0, at_least: int = 0) -> Positions:
        """By way of the checkpoint's text."""
        text = json.dumps(self.planner.latest(checkpoint(start), limit, at_least).encode())
        return Positions.decode(json.loads(text))

    def records(self, pieces: Iterable[Range]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for piece in pieces:
            for batch in read(self.options, piece, SCHEMA, self.notices):
                rows += batch.to_pylist()
        return rows

    def values(self, start: Positions, end: Positions) -> list[bytes]:
        return [row["value"] for row in self.records(self.planner.ranges(checkpoint(start), checkpoint(end)))]


def checkpoint(positions: Positions) -> Positions:
    return Positions.decode(json.loads(json.dumps(positions.encode())))


def offset_of(positions: Positions, topic: str, partition: int = 0) -> int:
    return positions.marks[topic, partition].offset
