"""The protocol `Cluster` by each of its backends: over the network to a fake or to real brokers, or in virtual time."""

from __future__ import annotations

import itertools
import queue
import threading
import time
import uuid

from kafkasafe.cluster.api import Failure
from kafkasafe.kafkapython.connect import over_sockets
from kafkasafe.testing import FakeCluster, KafkaCluster
from kafkasafe.testing.fake.virtual import VirtualCluster

CURRENT, OLD = "4.3.0", "2.8.2"
AGAIN = {3, 5, 6, 14, 15, 16, 19, 51}
PATIENCE_S = 60

TOO_LARGE = 2_000_000
"""Bytes that no batch has by default."""

numbers = itertools.count(1)


class Backend:
    """A cluster with one broker, a client, and its answers.

    Args:
        kind: "virtual", "fake" or "real".
        version: Which Kafka.
        cluster: One that is there already; it is not closed.
    """

    def __init__(self, kind, version, *, config=None, cluster=None):
        self.kind = kind
        self.version = version
        self.virtual = kind == "virtual"
        self.fake = kind != "real"
        self._opened = cluster is None and not self.virtual
        if self.virtual:
            cluster = cluster or VirtualCluster(version=version)
        elif cluster is None:
            cluster = (
                FakeCluster(version=version)
                if self.fake
                else KafkaCluster(brokers=1, version=version, config=config)
            ).__enter__()
        self.cluster = cluster
        self.client = self.connect()

    def connect(self, pin=None, **options):
        """Another client, started; `pin`: the arguments of `Cluster.pin_cluster`."""
        options = {"bootstrap_servers": self.cluster.bootstrap_servers, **options}
        client = self.cluster.connect(options) if self.virtual else over_sockets(options)
        if pin is not None:
            client.pin_cluster(**pin)
        client.start()
        return client

    def close(self):
        assert self.client.close(60)
        if self._opened:
            self.cluster.close()

    def once(self, call, *arguments, **more):
        found = queue.SimpleQueue()
        call(*arguments, found.put, **more)
        if self.virtual:
            assert self.cluster.time.run_while(found.empty)
        return found.get(timeout=PATIENCE_S)

    def pause(self, seconds=0.05):
        if self.virtual:
            self.cluster.time.run_for(seconds)
        else:
            threading.Event().wait(seconds)

    def ask(self, call, *arguments, **more):
        """The first answer that is no request to try again."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self.once(call, *arguments, **more)
            failed = isinstance(answer, Failure)
            if (failed and answer.unsupported) or (not failed and answer.error_code not in AGAIN):
                return answer
            assert time.monotonic() < deadline, answer
            self.pause()

    def until(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            self.pause()

    def topic(self, partitions=1, **config):
        name = f"t{next(numbers)}-{uuid.uuid4().hex[:6]}"
        self.cluster.create_topic(
            name, partitions, config={k.replace("_", "."): v for k, v in config.items()}
        )
        return name

    def ask_id(self):
        """A producer id; not right after a broker's start."""
        found = []

        def granted():
            found[:] = [self.once(self.client.init_producer_id)]
            return not isinstance(found[0], Failure)

        self.until(granted)
        return found[0]

    @property
    def now_ms(self):
        return self.cluster.now_ms() if self.fake else time.time_ns() // 1_000_000
