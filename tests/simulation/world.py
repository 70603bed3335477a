"""The world that histories happen in: the one of the golden transcripts, with whims of leaders, frozen and killed processes."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import platform
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from virtual import TIMEOUT_S, Life, StormyCluster, World

from kafkasafe.errors import SpoolError
from kafkasafe.record import batch as codec
from kafkasafe.testing.disk import ProcessKilled
from kafkasafe.testing.fake.centre import UNKNOWN_TOPIC_ID
from kafkasafe.testing.fake.request_handler import handler

from .book import Violation

_MOST_TURNS = 60_000
_MOST_AT_ONCE = 1_000
_METADATA = 9
_PRODUCE_BY_ID = 13


@contextlib.contextmanager
def pinned() -> Iterator[None]:
    """What a process gets from its machine is always the same, and nothing is logged: a run can be repeated anywhere."""
    numbers, rng = itertools.count(1), random.Random(0)
    pins: list[tuple[Any, str, Any]] = [
        (os, "getpid", lambda: 4242),
        (os, "urandom", rng.randbytes),
        (platform, "node", lambda: "machine"),
        (time, "monotonic_ns", lambda: next(numbers)),
        (time, "time_ns", lambda: 1_700_000_000_000_000_000 + next(numbers)),
    ]
    before = [(place, name, getattr(place, name)) for place, name, _ in pins]
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        for place, name, pin in pins:
            setattr(place, name, pin)
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)
        logging.disable(level)


class SimCluster(StormyCluster):
    """Leaders with whims, and what they are asked is watched.

    Attributes:
        hidden: APIs that brokers do not know.
        refuses: Error codes instead of an answer to Produce, of the next requests: (code, appended all the same).
        late: So many Produce requests from now on arrive after their connections ended.
        held: By broker, when the answers arrive that it gives until then.
        former: By broker, topics in Metadata as they were, by name: it has not heard that they were deleted.
        on_out: Gets topic, partition, and how many batches of one producer id are on their way to it.
        whim: Says of a Produce request which code it gets for what is in it, 0 for none.
        on_produce: Gets topic, partition and header of each batch that is sent.
        on_question: Gets topic and partition of each question, and of each batch that failed.
        on_failed: Gets topic, partition and header of each batch that is answered with an error.
        on_refused: Gets topic, partition and error code of each answer to a batch, and to questions about topics (-1).
    """

    swallowed = frozenset({"Produce"})

    def __init__(self, *args: Any) -> None:
        self.hidden: frozenset[str] = frozenset()
        self.refuses: deque[tuple[int, bool]] = deque()
        self.whim: Callable[[bytes], int] = lambda _: 0
        self.on_produce: Callable[[str, int, Any], None] = lambda *_: None
        self.on_question: Callable[[str, int], None] = lambda *_: None
        self.on_refused: Callable[[str, int, int], None] = lambda *_: None
        self.on_failed: Callable[[str, int, Any], None] = lambda *_: None
        self.on_out: Callable[[str, int, int], None] = lambda *_: None
        self.late = 0
        self.held: dict[int, float] = {}
        self.former: dict[int, dict[str, Any]] = {}
        self._unheard: list[tuple[Any, Any]] = []
        self._late: list[Any] = []
        self._out: dict[tuple[str, int, int], list[tuple[Any, Any]]] = {}
        self.traced = False
        super().__init__(*args)

    def speaks(self, name: str) -> tuple[int, int]:
        """See `VirtualCluster`."""
        return (0, -1) if name in self.hidden else super().speaks(name)

    def ask(self, pipe, name, version, message, on_answer) -> float:
        """See `StormyCluster`."""
        addresses = _addresses(name, message)
        headers: dict[tuple[str, int], Any] = {}
        if name == "Produce":
            for topic in message.topic_data:
                for part in topic.partition_data:
                    headers[topic.name, part.index] = header = codec.read_header(part.records)
                    self.on_produce(topic.name, part.index, header)
        else:
            for topic, partition in addresses:
                self.on_question(topic, partition)

        if name == "Produce" and self.late > 0:
            self.late -= 1
            self._late.append(message)
            self.time.call_later(self.latency_s / 2, lambda: self._end(pipe, "The connection was cut"))
        if name == "Produce":
            self._unheard.append((pipe, message))
            for place, header in headers.items():
                self._out.setdefault((*place, header.producer_id), []).append((pipe, message))
                self.on_out(*place, sum(each.open for each, _ in self._out[*place, header.producer_id]))

        def answered(fields) -> None:
            if name == "Produce":
                self._unheard = [each for each in self._unheard if each[1] is not message]
                for place, header in headers.items():
                    key = (*place, header.producer_id)
                    self._out[key] = [e for e in self._out[key] if e[0].open and e[1] is not message]
                # An answer has its topics in the order of the request: by name, or by id.
                for asked, topic in zip(message.topic_data, fields["responses"], strict=True):
                    for row in topic["partition_responses"]:
                        if row["error_code"]:
                            self.on_failed(asked.name, row["index"], headers[asked.name, row["index"]])
                        self.on_refused(asked.name, row["index"], row["error_code"])
            elif name == "Metadata":
                for topic in fields["topics"]:
                    self.on_refused(topic["name"], -1, topic["error_code"])
            on_answer(fields)

        return super().ask(pipe, name, version, message, answered)

    def _arrive_late(self, request) -> None:
        """See `StormyCluster`."""
        late = [each for each in self._late if each is not request.message]
        always = len(late) < len(self._late)
        self._late = late
        self.straggle(request, always=always)

    def keep_former(self, node: int, topic: str) -> None:
        """A broker goes on to name a topic as it is now, until this is taken out of `former`."""
        wanted = SimpleNamespace(name=topic, topic_id=None)
        message = SimpleNamespace(topics=[wanted], allow_auto_topic_creation=False)
        (row,) = handler("Metadata")(self._ask(node, _METADATA, message))["topics"]
        self.former.setdefault(node, {topic: row})

    def is_sending(self) -> bool:
        """Whether a Produce request is on its way, or its answer."""
        return any(pipe.open for pipe, _ in self._unheard)

    def unheard(self) -> list[bytes]:
        """Batches that nobody knows an answer to, and that may still arrive."""
        since_s = self.time.monotonic() - TIMEOUT_S
        self._unheard = [each for each in self._unheard if each[0].ended_s >= since_s]
        return [
            part.records
            for _, message in self._unheard
            for topic in message.topic_data
            for part in topic.partition_data
        ]

    def _deliver(self, pipe, name, answer, on_answer) -> None:
        if name == "Metadata" and (former := self.former.get(pipe.node)):
            answer |= {"topics": [former.get(row["name"], row) for row in answer["topics"]]}
        left_s = self.held.get(pipe.node, 0.0) - self.time.monotonic()
        if left_s <= 0:
            super()._deliver(pipe, name, answer, on_answer)
            return
        deliver = super()._deliver
        self.time.call_later(left_s, lambda: deliver(pipe, name, answer, on_answer))

    def _work(self, pipe) -> bool:
        if (
            pipe.open
            and pipe.held is None
            and pipe.requests
            and pipe.requests[0][0] == "Produce"
            and not self._hangs(pipe.node)
            and self.now_ms() >= pipe.muted_until_ms
        ):
            message = pipe.requests[0][2]
            parts = [part for topic in message.topic_data for part in topic.partition_data]
            code = next((code for part in parts if (code := self.whim(part.records))), 0)
            appended = False
            if not code and self.former.get(pipe.node) and pipe.requests[0][1] >= _PRODUCE_BY_ID:
                code = UNKNOWN_TOPIC_ID
            if not code and self.refuses:
                code, appended = self.refuses.popleft()
            if code:
                name, version, message, on_answer = pipe.requests.popleft()
                if appended:
                    handler(name)(self._ask(pipe.node, version, message))
                if self.traced:
                    self.say(f"   error {code}{', and appended' if appended else ''}")
                self._deliver(pipe, name, _error(message, code), on_answer)
                return True
        return super()._work(pipe)


def _error(message: Any, code: int) -> dict[str, Any]:
    rows = [
        {
            "name": topic.name,
            "topic_id": topic.topic_id,
            "partition_responses": [
                {
                    "index": part.index,
                    "error_code": code,
                    "base_offset": -1,
                    "log_append_time_ms": -1,
                    "log_start_offset": -1,
                    "record_errors": [],
                    "error_message": None,
                }
                for part in topic.partition_data
            ],
        }
        for topic in message.topic_data
    ]
    return {"responses": rows, "node_endpoints": []}


def _addresses(name: str, message: Any) -> list[tuple[str, int]]:
    match name:
        case "DescribeProducers":
            return [(topic.name, number) for topic in message.topics for number in topic.partition_indexes]
        case "Fetch" | "OffsetForLeaderEpoch":
            return [(topic.topic, part.partition) for topic in message.topics for part in topic.partitions]
        case "ListOffsets":
            return [
                (topic.name, part.partition_index) for topic in message.topics for part in topic.partitions
            ]
    return []


class Worker:
    """A program with a producer on the spool directory, which is started again whenever it ended.

    Attributes:
        life: Its producer, None while it is down.
        up_at: When it begins again, while it is down.
        frozen_until: When it goes on, while it is stopped.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.life: Life | None = None
        self.up_at = 0.0
        self.frozen_until = 0.0


class SimWorld(World):
    """See the module."""

    cluster_type = SimCluster
    cluster: SimCluster

    def __init__(
        self,
        brokers: int,
        workers: int,
        open_life: Callable[[Worker], Life],
        on_death: Callable[[Life], None],
        look: Callable[[], None],
        rng: random.Random,
        version: str,
    ) -> None:
        self.rng = rng
        self.turns = 0
        self.workers = [Worker(number) for number in range(workers)]
        self._open_life = open_life
        self._on_death = on_death
        self._look = look
        super().__init__(brokers, version, broker_session_timeout_ms=3000, auto_create_topics_enable="false")

    def say(self, line: str) -> None:
        if not self.silent:
            super().say(line)

    def die(self, life: Life) -> None:
        """The process is dead; its program comes back after a moment, unless that was said already."""
        self._on_death(life)
        self.lives.remove(life)
        life.kill()
        worker = next(each for each in self.workers if each.life is life)
        worker.life = None
        worker.up_at = max(worker.up_at, self.time.monotonic() + 0.1)
        self.say(f"   worker {worker.number} died")

    def _raise_up(self, worker: Worker) -> None:
        worker.up_at = float("inf")  # it may wait, while others go on
        try:
            worker.life = self._open_life(worker)
        except (SpoolError, ProcessKilled, OSError) as error:
            # The program sees an error, or is killed while it begins. It is started again.
            self.say(f"   worker {worker.number} does not begin: {type(error).__name__}")
            worker.up_at = min(worker.up_at, self.time.monotonic() + 1.0)
            return
        self.lives.append(worker.life)

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """See `World`."""
        clock, handler = self.time, self.cluster._handler
        end = clock.monotonic() + seconds
        before, at_once = -1.0, 0
        while True:
            self.turns += 1
            if self.turns > _MOST_TURNS:
                raise Violation("hang", f"{_MOST_TURNS} turns, and no end in sight")
            self._look()
            at_once = at_once + 1 if clock.monotonic() == before else 0
            before = clock.monotonic()
            if at_once > _MOST_AT_ONCE:
                raise Violation("hang", f"{_MOST_AT_ONCE} turns, and no time passes")
            handler.advance(self.cluster.now_ms())
            now = clock.monotonic()
            wakes = []
            for worker in self.workers:
                if worker.life is None and worker.up_at <= now:
                    self._raise_up(worker)
                life = worker.life
                if life is None:
                    wakes.append(worker.up_at)
                    continue
                if worker.frozen_until > now:
                    wakes.append(worker.frozen_until)
                    continue
                try:
                    if life.inbox or life.engine.due <= now:
                        # A thread wakes at any moment: what came may be half of what comes.
                        for _ in range(self.rng.randint(1, len(life.inbox)) if life.inbox else 0):
                            life.engine.step(life.inbox.popleft())
                        life.engine.turn()
                except ProcessKilled:
                    self.die(life)
                    wakes.append(worker.up_at)
                    continue
                wakes.append(now if life.inbox else life.engine.due)
            if until is not None and until():
                return True
            next_s = clock.next_s
            if next_s is not None:
                wakes.append(next_s)
            due = min(wakes)
            if (
                due <= clock.monotonic()
                and due == now
                and any(
                    worker.life is not None and worker.life.inbox and worker.frozen_until <= now
                    for worker in self.workers
                )
            ):
                continue
            if due > end:
                clock.run_until(end)
                return until is None
            clock.run_until(due)
