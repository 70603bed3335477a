"""A tiered log in memory, in virtual time, whose remote part cannot be read at some moments (KIP-1007).

The fake cluster has no remote storage. `Tiered` is one of its clients, with the answers of a leader whose first records
are in remote storage only. What such a leader answers in an outage was measured on Kafka 4.3.0: `Outage`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kafkasafe._consuming import look_ups
from kafkasafe.cluster import inquiry, lookups
from kafkasafe.cluster.api import EARLIEST_LOCAL, OffsetListed, ProduceRequest, RecordsFetched
from kafkasafe.kafkapython.connect import announced
from kafkasafe.record import batch
from kafkasafe.spark import brokers, planner, query_topics
from kafkasafe.testing.fake import VirtualCluster

BEGIN_MS = 1_700_000_000_000
STEP_MS = 1000
RECORDS = 10
LOCAL = 6
"""First offset on the leader's own disk."""


@dataclasses.dataclass(frozen=True)
class Outage:
    """From `begin_s` to `end_s` the leader cannot read remote storage.

    `code` is its answer to fetches of the remote part. With 1 (the segments' metadata are not there) a look-up by time
    has no error and the first record of the leader's own disk; with 9, -1 and 7 it has that error as well.
    """

    begin_s: float
    end_s: float
    code: int


def outages_of(rng: random.Random, count: int) -> list[Outage]:
    """Some outages one after the other, the first around the moment 0."""
    found = []
    at = rng.uniform(-0.2, 0.02)
    for _ in range(count):
        end = at + rng.expovariate(1 / rng.choice([0.005, 0.05, 0.5]))
        found.append(Outage(at, end, rng.choice([1, 1, 1, 9, -1, 7])))
        at = end + rng.expovariate(1 / rng.choice([0.002, 0.02, 0.2]))
    return found


class Tiered:
    """A client of a virtual cluster (`Cluster`), with the answers of a leader that has its first records in remote storage.

    Each answer is of one moment, at random between the question and the reply.
    """

    def __init__(self, world: World, client: Any) -> None:
        self._world, self._client = world, client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def list_offset(self, topic: str, partition: int, timestamp: int, reply: Any, **more: Any) -> None:
        def answered(answer: Any) -> None:
            outage = self._world.outage()
            if timestamp == EARLIEST_LOCAL:
                answer = dataclasses.replace(answer, offset=LOCAL)
            elif timestamp >= 0 and outage is not None:
                answer = self._world.missed(timestamp, outage.code)
            self._later(reply, answer)

        self._world.asked += 1
        self._later(lambda _: self._client.list_offset(topic, partition, timestamp, answered, **more), None)

    def fetch_records(
        self, topic: str, partition: int, offset: int, max_bytes: int, reply: Any, **more: Any
    ) -> None:
        def answered(answer: Any) -> None:
            outage = self._world.outage()
            if outage is not None and offset < LOCAL:
                code = 0 if outage.code == 7 else outage.code
                answer = RecordsFetched(code, -1, -1, -1, b"", (), offset)
            self._later(reply, answer)

        self._later(
            lambda _: self._client.fetch_records(topic, partition, offset, max_bytes, answered, **more), None
        )

    def _later(self, work: Any, value: Any) -> None:
        world = self._world
        world.time.call_later(world.rng.expovariate(1 / 0.005), lambda: work(value))


class World:
    """A partition `t-0`: record *i* has the time `BEGIN_MS + times[i] * STEP_MS`, and `LOCAL` records are remote only.

    The first `first_batch` records are one batch, each of the others is a batch of its own.

    Attributes:
        time: Virtual.
        outages: When remote storage cannot be read, in seconds after `begin`.
        believed: How often a look-up by time was answered wrongly, without an error.
    """

    def __init__(self, times: Sequence[int] = range(RECORDS), *, first_batch: int = 1) -> None:
        self.times = times
        self.cluster = VirtualCluster()
        self.time = self.cluster.time
        self.rng = random.Random(0)
        self.outages: Sequence[Outage] = ()
        self.believed = self.asked = 0
        self._began_s = 0.0
        self.cluster.create_topic("t", config={"retention.ms": -1})
        client = self.connect({"bootstrap_servers": self.cluster.bootstrap_servers})
        client.start()
        batches = [list(times[:first_batch]), *([at] for at in times[first_batch:])]
        done: list[Any] = []
        for number, part in enumerate(batches):
            stamps = [BEGIN_MS + at * STEP_MS for at in part]
            data = batch.encode(None, [b"x"] * len(part), timestamps=stamps)
            client.produce([ProduceRequest(number, "t", 0, data)], -1, 30_000, lambda *it: done.append(it))
            assert self.time.run_while(lambda count=number: len(done) <= count)
        assert not any(answer.error_code for _, answer in done)
        client.close(1)

    def connect(self, options: Any) -> Tiered:
        """For `announced`."""
        return Tiered(
            self, self.cluster.connect({**options, "bootstrap_servers": self.cluster.bootstrap_servers})
        )

    def begin(self, seed: int, outages: Sequence[Outage]) -> None:
        """From this moment on."""
        self.rng = random.Random(seed)
        self.outages = outages
        self._began_s = self.time.monotonic()

    def outage(self) -> Outage | None:
        """The one of this moment."""
        now = self.time.monotonic() - self._began_s
        return next((each for each in self.outages if each.begin_s <= now < each.end_s), None)

    def since(self, timestamp: int, first: int = 0) -> int:
        """The first record from an offset on with this time or a later one; -1 for none."""
        return next(
            (at for at in range(first, len(self.times)) if BEGIN_MS + self.times[at] * STEP_MS >= timestamp),
            -1,
        )

    def missed(self, timestamp: int, code: int) -> OffsetListed:
        """What a leader answers in an outage."""
        if code != 1:
            return OffsetListed(code, -1, -1)
        found = self.since(timestamp, LOCAL)
        self.believed += found != self.since(timestamp)
        at = -1 if found < 0 else BEGIN_MS + self.times[found] * STEP_MS
        return OffsetListed(0, found, -1 if found < 0 else 0, at)

    @contextlib.contextmanager
    def instead_of(self, servers: str) -> Iterator[None]:
        """Within it, look-ups by clients of these servers come here, and wait in virtual time."""
        time = self.time

        class VirtualRunner(inquiry.ProcedureRunner):
            def wait(self, timeout_s: float) -> None:
                self._send()
                due = self.due_s()
                end = time.monotonic() + (timeout_s if due is None else min(due, timeout_s))
                time.call_at(end, lambda: None)
                time.run_while(lambda: not self.has_work and time.monotonic() < end)

        with announced(servers, self.connect), pytest.MonkeyPatch.context() as patched:
            for module in (inquiry, lookups, brokers, planner, query_topics, look_ups):
                patched.setattr(module, "time", SimpleNamespace(monotonic=time.monotonic))
            for module in (brokers, look_ups):
                patched.setattr(module, "ProcedureRunner", VirtualRunner)
            yield
