"""Faults of a cluster, and a plain reader. chaos.py and consume_process_produce.py share this module."""

from __future__ import annotations

import collections
import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy


class ClusterFaults(threading.Thread, ABC):
    """Causes a random fault, waits, and repairs it, again and again until the time is over.

    Args:
        cluster: The cluster whose brokers are disturbed.
        proxy: The proxy between clients and brokers.
        rng: The thread's own random numbers.
        until: Time of `time.monotonic()` at which the thread ends.

    Attributes:
        done: How often each fault was drawn.
        failure: The error that ended it early.
    """

    PAUSE_S = 3.0
    """Longest time between two faults."""
    HANG_S = 7.0
    """Longest time for which a broker is paused."""
    CUTS = 5
    START_S = 60.0
    """Time limit for the start of a broker."""

    def __init__(self, cluster: KafkaCluster, proxy: FaultProxy, rng: random.Random, until: float) -> None:
        super().__init__(name="faults", daemon=True)
        self.cluster, self.proxy, self.rng, self.until = cluster, proxy, rng, until
        self.done: collections.Counter[str] = collections.Counter()
        self.failure: BaseException | None = None

    @property
    @abstractmethod
    def kinds(self) -> Sequence[Callable[[], None]]:
        """The possible faults. A fault that is listed twice is twice as likely."""

    def run(self) -> None:
        try:
            while time.monotonic() < self.until:
                time.sleep(self.rng.uniform(0, self.PAUSE_S))
                kind = self.rng.choice(self.kinds)
                try:
                    kind()
                finally:
                    self.proxy.clear()
                self.done[kind.__name__] += 1
        except BaseException as error:
            self.failure = error

    def kill_broker(self) -> None:
        node = self.rng.choice(self.cluster.brokers)
        self.cluster.kill(node)
        time.sleep(self.rng.uniform(0, 4))
        self.cluster.start(node, timeout_s=self.START_S)

    def pause_broker(self) -> None:
        node = self.rng.choice(self.cluster.brokers)
        self.cluster.pause(node)
        time.sleep(self.rng.uniform(0, self.HANG_S))
        self.cluster.resume(node)

    def drop_answers(self, apis: Sequence[str], most: int) -> None:
        """Drops answers to one kind of request, after the broker has carried out the request."""
        rule = self.proxy.on(self.rng.choice(apis)).drop(times=self.rng.randint(1, most))
        time.sleep(self.rng.uniform(0.5, 3))
        rule.remove()

    def cut(self) -> None:
        for _ in range(self.rng.randint(1, self.CUTS)):
            self.proxy.cut()
            time.sleep(self.rng.uniform(0, 0.5))


def read_values(
    servers: Sequence[str], topic: str, partitions: int, level: str, within_s: float
) -> Iterator[list[bytes]]:
    """Yields the values of each partition, in the log's order, as librdkafka reads them."""
    for partition in range(partitions):
        yield [each.value() for each in read_messages(servers, topic, partition, level, within_s)]


def read_messages(
    servers: Sequence[str], topic: str, partition: int, level: str, within_s: float
) -> list[Any]:
    """Returns the messages of one partition, as librdkafka reads them."""
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka import KafkaError as Code

    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(servers),
            "group.id": "count",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": level,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[Any] = []
    deadline = time.monotonic() + within_s
    while True:
        messages = consumer.consume(10_000, 1.0)
        found += [message for message in messages if not message.error()]
        if any(message.error() and message.error().code() == Code._PARTITION_EOF for message in messages):
            break
        if time.monotonic() > deadline:
            sys.exit(f"{topic}-{partition}: its end was not reached, {len(found)} records were read")
    consumer.close()
    return found
