"""Kills a producer, or real brokers, at each step of the producer's protocol, and counts lost and duplicated records.

    python benchmarks/staged_kills.py                                    # everything, about half an hour
    python benchmarks/staged_kills.py --delivery transactional --spool always --victim coordinator --kills 20

The benchmark combines each delivery (`transactional`, and `idempotent` with occasional atomic batches), each mode of
the spool, and each victim. A process sends numbered units to three partitions of one topic and to another topic, and
reports which units are durable. The process stops at each step of its protocol in turn, and then the victim gets
SIGKILL (`--victim`).

- `client`, `timeout`, `commit`: the victim is the process. After `timeout`, the next process starts when the
  coordinator has aborted the open transactions. After `commit`, the command `kafkasafe spool commit` commits the staged
  batches.
- `leader`, `coordinator`: the broker that leads a partition to which the process writes, or the coordinator of the
  process's transactional id. The process continues and must deliver again, or is killed a moment later, too.
- `all`: the process and every broker.

A reader of committed records reads during the whole run, and another one reads everything at the end. Each durable unit
must be in all of its partitions once, in order of acceptance. No unit may be in only some of its partitions, and every
flush must end. The exit code is 0 if all these checks succeed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import TransactionDescription, TransactionState
from kafka.errors import KafkaError

from kafkasafe import SafeProducer
from kafkasafe import marks as m
from kafkasafe.cluster.client import Transport
from kafkasafe.cluster.coordinators import CoordinatorQuestions
from kafkasafe.spool.spool import Spool
from kafkasafe.testing.broker import KafkaCluster

OF_UNITS = (
    "unit written",
    "unit durable",
    "fenced",
    "joined",
    "appended",
    "noted",
    "staged written",
    "staged durable",
    "end sent",
    "end answered",
    "ended written",
    "ended durable",
    "random",
)
OF_BATCHES = (
    "batch written",
    "batch durable",
    "sent",
    "answered",
    "committed written",
    "committed durable",
    "random",
)
STEPS = {"transactional": OF_UNITS, "idempotent": OF_BATCHES}
VICTIMS = ("client", "timeout", "commit", "leader", "coordinator", "all")
PARTITIONS = 3
AUDIT = -1
TRANSACTION_TIMEOUT_MS = 10_000
SHORT_TIMEOUT_MS = 2000
LONG_TIMEOUT_MS = 120_000
STUCK_AFTER_S = 180
"""Time after which an operation counts as stuck. This time is long, because a busy machine is several times slower. It
is longer than a transaction's timeout, after which the coordinator ends the transactions of killed processes.
"""
MOST_OPEN = 40


# -- the process that is killed ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Life:
    """The task of one process.

    Attributes:
        options: Options of its producer.
        topics: The topic with three partitions, and the topic with one partition.
        first: Number of its first unit.
        step: The step at which it stops.
        after: How often the process reaches the step before it stops there.
        dies: Whether the process then kills itself. If false, it only reports the stop, and waits for an answer.
        atomic: One in this number of sends is an atomic batch.
    """

    options: dict[str, Any]
    topics: tuple[str, str]
    first: int
    step: str
    after: int
    dies: bool
    atomic: int


def _stop_at(life: Life, said: Callable[[str], None], answers: Connection) -> None:
    """Makes this process stop when it reaches the step for the `after`th time."""
    left = [life.after]
    last = {"id": "", "topic": life.topics[0], "partition": "0"}

    def passes(name: str) -> None:
        if name != life.step or left[0] <= 0:
            return
        left[0] -= 1
        if not left[0]:
            said(f"S {last['id'] or '-'} {last['topic']} {last['partition']}")
            if life.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            answers.poll(60)

    written: list[str] = []
    write_group, sync = Spool.write_group, Spool.sync
    names = {m.Unit: "unit", m.Staged: "staged", m.Ended: "ended", m.Committed: "committed"}

    def traced_write(self: Spool, marks: Any, batches: Any, **options: Any) -> list[int]:
        positions = write_group(self, marks, batches, **options)
        found = [names[type(mark)] for mark in marks if type(mark) in names]
        if batches and "unit" not in found:
            found.append("batch")
        for name in found:
            written.append(name)
            passes(f"{name} written")
        return positions

    def traced_sync(self: Spool, **options: Any) -> int:
        done = sync(self, **options)
        for name in dict.fromkeys(written):
            passes(f"{name} durable")
        written.clear()
        return done

    def answered(name: str, reply: Callable[..., None]) -> Callable[..., None]:
        def traced(*arguments: Any) -> None:
            passes(name)
            reply(*arguments)

        return traced

    def trace(kind: type, method: str, sent: str, answer: str, place: Callable[..., None]) -> None:
        real = getattr(kind, method)

        def traced(self: Any, *arguments: Any, **options: Any) -> Any:
            # The callback is the only callable argument.
            place(*arguments)
            at = next(n for n, each in enumerate(arguments) if callable(each))
            changed = (*arguments[:at], answered(answer, arguments[at]), *arguments[at + 1 :])
            result = real(self, *changed, **options)
            if sent == life.step and random.random() < 0.5:
                time.sleep(random.random() * 0.005)  # the request is in flight
            passes(sent)
            return result

        setattr(kind, method, traced)

    def of_name(name: str, *_: Any) -> None:
        last["id"] = name

    def of_identity(identity: Any, *_: Any) -> None:
        last["id"] = identity.transactional_id

    def of_requests(requests: Any, *_: Any) -> None:
        last.update(topic=requests[0].topic, partition=str(requests[0].partition))

    trace(CoordinatorQuestions, "init_transactional_id", "", "fenced", of_name)
    trace(CoordinatorQuestions, "add_partitions_to_transaction", "", "joined", of_identity)
    trace(CoordinatorQuestions, "commit_offsets_in_transaction", "", "noted", of_identity)
    trace(CoordinatorQuestions, "end_transaction", "end sent", "end answered", of_identity)
    if life.step in OF_UNITS:
        trace(Transport, "produce", "", "appended", of_requests)
    else:
        trace(Transport, "produce", "sent", "answered", of_requests)
    Spool.write_group, Spool.sync = traced_write, traced_sync  # type: ignore[method-assign]


def live(life: Life, tell: Connection, answers: Connection) -> None:
    """Runs one process, which reports accepted (A), durable (D) and acknowledged (G) units, and where it stops (S)."""
    out = tell.fileno()

    def said(line: str) -> None:
        os.write(out, f"{line}\n".encode())

    if life.step != "random":
        _stop_at(life, said, answers)
    orders, audit = life.topics
    rng = random.Random(life.first)
    producer = SafeProducer(**life.options)
    number = life.first
    fresh: deque[tuple[int, Any]] = deque()
    delivered: deque[tuple[int, Any]] = deque()
    end = time.monotonic() + 2 * STUCK_AFTER_S
    while time.monotonic() < end:
        if len(delivered) < MOST_OPEN:
            if rng.randrange(life.atomic):
                where = rng.randrange(PARTITIONS)
                said(f"A {number} {where}")
                fresh.append((number, producer.send(orders, b"%d" % number, partition=where)))
            else:
                some = rng.sample(range(PARTITIONS), rng.randrange(1, PARTITIONS + 1))
                said(f"A {number} {','.join(map(str, [*some, AUDIT]))}")
                with producer.batch() as batch:
                    for where in some:
                        batch.send(orders, b"%d" % number, partition=where)
                    batch.send(audit, b"%d" % number)
                fresh.append((number, batch.outcome))
            number += 1
        while len(fresh) > 4 or (fresh and len(delivered) >= MOST_OPEN):
            first, future = fresh.popleft()
            try:
                future.durable(STUCK_AFTER_S)
            except KafkaError as error:
                said(f"X {first}: {error!r}".replace("\n", " ")[:400])
            else:
                said(f"D {first}")
            delivered.append((first, future))
        while delivered and _done(delivered[0][1]):
            first, future = delivered.popleft()
            try:
                future.get(STUCK_AFTER_S)
            except KafkaError as error:
                said(f"X {first}: {error!r}".replace("\n", " ")[:400])
            else:
                said(f"G {first}")
        time.sleep(rng.random() * 0.01)


def _done(future: Any) -> bool:
    return bool(future.done() if callable(getattr(future, "done", None)) else future.is_done)


# -- the readers -------------------------------------------------------------------------------------------------------


def _reader(servers: list[str]) -> KafkaConsumer:
    return KafkaConsumer(
        bootstrap_servers=servers,
        isolation_level="read_committed",
        enable_auto_commit=False,
        group_id=None,
        auto_offset_reset="earliest",
    )


def _places(topics: tuple[str, str]) -> list[TopicPartition]:
    return [*(TopicPartition(topics[0], n) for n in range(PARTITIONS)), TopicPartition(topics[1], 0)]


class Seen:
    """The records that readers of committed records have seen in one pair of topics.

    Attributes:
        accepted: Number of a unit → its partitions.
        where: Number of a unit → partition → offset.
        twice: Duplicates, as (number, partition, first offset, second offset).
        order: Partition → numbers in the order of the log.
        halves: Numbers seen in only some of their partitions so far → when they were first seen.
        longest_half_s: Longest time for which a number was in `halves`.
    """

    def __init__(self, accepted: dict[int, frozenset[int]]) -> None:
        self.accepted = accepted
        self.where: dict[int, dict[int, int]] = defaultdict(dict)
        self.twice: list[tuple[int, int, int, int]] = []
        self.order: dict[int, list[int]] = defaultdict(list)
        self.halves: dict[int, float] = {}
        self.longest_half_s = 0.0

    def take(self, part: int, number: int, offset: int) -> None:
        """Takes one record."""
        found = self.where[number]
        if found.get(part) == offset:
            return  # the reader has started again and read the same record
        if part in found:
            self.twice.append((number, part, found[part], offset))
        found[part] = offset
        self.order[part].append(number)
        if found.keys() == self.accepted.get(number):
            self.longest_half_s = max(
                self.longest_half_s, time.monotonic() - self.halves.pop(number, time.monotonic())
            )
        else:
            self.halves.setdefault(number, time.monotonic())

    def still_half(self) -> list[int]:
        """Returns the units that were seen in only some of their partitions. `accepted` must be complete.

        A record may be read before the partitions of its unit are known.
        """
        return [each for each in sorted(self.halves) if self.where[each].keys() != self.accepted[each]]


class Watch(threading.Thread):
    """Reads during the whole run."""

    def __init__(self, servers: list[str], seen: Mapping[tuple[str, str], Seen]) -> None:
        super().__init__(daemon=True)
        self._servers, self._seen = servers, seen
        self.over = False

    def run(self) -> None:
        topics = {name: (seen, n) for pair, seen in self._seen.items() for n, name in enumerate(pair)}
        offsets = dict.fromkeys((place for pair in self._seen for place in _places(pair)), 0)
        while not self.over:
            # Open a new KafkaConsumer after an error: if poll() has raised, a KafkaConsumer may no longer read from
            # some broker.
            try:
                with contextlib.closing(_reader(self._servers)) as consumer:
                    consumer.assign([*offsets])
                    for place, offset in offsets.items():
                        consumer.seek(place, offset)
                    while not self.over:
                        for place, records in consumer.poll(200).items():
                            seen, is_audit = topics[place.topic]
                            for record in records:
                                part = AUDIT if is_audit else place.partition
                                seen.take(part, int(record.value), record.offset)
                                offsets[place] = record.offset + 1
            except Exception as error:
                print("reader:", repr(error), flush=True)
                time.sleep(0.5)


def read_all(servers: list[str], topics: tuple[str, str], accepted: dict[int, frozenset[int]]) -> Seen:
    """Returns what a new reader sees now."""
    seen = Seen(accepted)
    consumer = _reader(servers)
    places = _places(topics)
    consumer.assign(places)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(places)
    until = time.monotonic() + STUCK_AFTER_S
    while any(consumer.position(place) < ends[place] for place in places):
        assert time.monotonic() < until, "the log cannot be read to its end"
        for place, records in consumer.poll(200).items():
            for record in records:
                seen.take(
                    AUDIT if place.topic == topics[1] else place.partition, int(record.value), record.offset
                )
    consumer.close()
    return seen


# -- the kills ---------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """One line of the table, for a delivery, a mode of the spool, and a victim.

    Attributes:
        numbers: First number (inclusive) and end (exclusive) of each process's units.
        steps: How often the victim was killed at each step. `random`: the process did not reach the step in time, or
            the kill was planned for a random moment.
        counts: The printed numbers.
        stuck: Descriptions of operations that did not end.
    """

    delivery: str
    spool: str
    victim: str
    numbers: list[tuple[int, int]] = field(default_factory=list)
    steps: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    stuck: list[str] = field(default_factory=list)

    def has(self, number: int) -> bool:
        return any(first <= number < end for first, end in self.numbers)


class Course:
    """All kills for one delivery and one mode of the spool, with one spool directory and one pair of topics."""

    def __init__(self, cluster: KafkaCluster, delivery: str, spool: str, directory: Path, seed: int) -> None:
        self.cluster, self.delivery, self.spool = cluster, delivery, spool
        self.rng = random.Random(f"{seed} {delivery} {spool}")
        tag = f"{delivery}-{spool}-{self.rng.randrange(10**6)}"
        self.topics = (f"orders-{tag}", f"audit-{tag}")
        cluster.create_topic(self.topics[0], partitions=PARTITIONS)
        cluster.create_topic(self.topics[1], partitions=1)
        self.directory = directory / tag
        self.accepted: dict[int, frozenset[int]] = {}
        self.durable: set[int] = set()
        self.seen = Seen(self.accepted)
        self.number = 0
        self.rows: dict[str, Row] = {}
        self.context = multiprocessing.get_context("forkserver")
        self.errors: list[str] = []
        self.got = -1

    def options(self, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "spool_dir": str(self.directory),
            "delivery": self.delivery,
            "spool": self.spool,
            "spool_after_ms": 20,
            "linger_ms": 1,
            "transaction_timeout_ms": timeout_ms,
            "retry_backoff_ms": 50,
            "request_timeout_ms": 5000,
            "client_id": "kills",
        }

    def row(self, victim: str) -> Row:
        return self.rows.setdefault(victim, Row(self.delivery, self.spool, victim))

    def kill(self, victim: str, step: str) -> None:
        """Runs one process, and kills the victim."""
        row = self.row(victim)
        # `spool commit` has to begin before the transaction of a staged batch times out.
        timeouts = {"timeout": SHORT_TIMEOUT_MS, "commit": LONG_TIMEOUT_MS}
        timeout_ms = timeouts.get(victim, TRANSACTION_TIMEOUT_MS)
        alone = victim in {"client", "timeout", "commit"}
        life = Life(
            self.options(timeout_ms),
            self.topics,
            self.number,
            step,
            self.rng.randrange(1, 6),
            alone,
            3 if self.delivery == "transactional" else 6,
        )
        first = self.number
        here, there = self.context.Pipe(duplex=False)
        theirs, mine = self.context.Pipe(duplex=False)
        process = self.context.Process(target=live, args=(life, there, theirs), daemon=True)
        process.start()
        there.close()
        theirs.close()
        lines = _Lines(here)
        down: list[int] = []
        try:
            # A random moment is either during the process's recovery or after it.
            deadline = time.monotonic() + (self.rng.uniform(0.2, 2) if step == "random" else 20)
            stop = self._listen(lines, deadline, until_stop=True)
            row.steps[step if stop else "random"] += 1
            row.counts["kills"] += 1
            if alone:
                process.kill()
            elif victim == "all":
                down = [1, 2, 3]
                if self.rng.random() < 0.5:
                    process.kill()
                self.cluster.kill_all()
                process.kill()
            else:
                down = [self._node(victim, stop)]
                self.cluster.kill(down[0])
                mine.send_bytes(b"go on")
                self._outlive(row, process, lines, down[0])
            process.kill()
            self._listen(lines, time.monotonic() + 30)
        finally:
            process.kill()
            process.join(30)
            here.close()
            mine.close()
        for node in down:
            self.cluster.start(node, wait=False)
        self.number = max([self.number, *(number + 1 for number in lines.accepted)])
        row.numbers.append((first, self.number))
        self._after(row, victim, down)

    def _outlive(self, row: Row, process: Any, lines: _Lines, node: int) -> None:
        """While a broker is down, either kills the process, too, or waits until it has delivered another unit."""
        restart = time.monotonic() + self.rng.uniform(0, 3)
        lives = self.rng.random() < 0.6
        end = time.monotonic() + (STUCK_AFTER_S if lives else self.rng.uniform(0, 2))
        mark = max(self.accepted, default=-1)
        while time.monotonic() < end and not (lives and self.got > mark):
            self._listen(lines, time.monotonic() + 0.1)
            if restart and time.monotonic() >= restart:
                self.cluster.start(node, wait=False)
                restart = 0.0
            if not process.is_alive():
                row.stuck.append("the process ended by itself")
                return
        row.counts["outlived"] += lives
        if lives and self.got <= mark:
            row.stuck.append(
                f"nothing after {mark} was delivered in {STUCK_AFTER_S} s after broker {node} was killed"
            )

    def _after(self, row: Row, victim: str, down: list[int]) -> None:
        if down:
            self.cluster.wait_ready(timeout_s=STUCK_AFTER_S)
            for number in range(PARTITIONS):
                self.cluster.wait_in_sync(self.topics[0], number, STUCK_AFTER_S)
                self.cluster.wait_in_sync("__transaction_state", number, STUCK_AFTER_S)
        if victim == "timeout":
            self._time_out(row)
        elif victim == "commit":
            self._commit(row)
        if self.rng.random() < 0.3:
            # A unit that is visible in some partitions is committed: it becomes visible in its other partitions even
            # without a running producer.
            end = time.monotonic() + STUCK_AFTER_S
            while (halves := self.seen.still_half()) and time.monotonic() < end:
                time.sleep(0.05)
            if halves:
                row.stuck.append(f"half seen: {halves[:9]}")

    def _time_out(self, row: Row) -> None:
        """Waits until the coordinator has aborted the transactions that the killed process left open."""
        if self.cluster.version < "3":
            time.sleep(SHORT_TIMEOUT_MS / 1000 + 2)  # these brokers cannot list transactions
            return
        end = time.monotonic() + STUCK_AFTER_S
        left: object = None
        looked = False
        with self.cluster.admin() as admin:
            while time.monotonic() < end:
                try:
                    left = _short_ones(admin)
                except KafkaError as error:
                    left = error  # for example, the coordinator has not read its log yet
                else:
                    if not left:
                        return
                    row.counts["timed out"] += not looked
                    looked = True
                time.sleep(0.2)
        row.stuck.append(f"a transaction without a client does not end: {left!r}")

    def _commit(self, row: Row) -> None:
        servers = ",".join(self.cluster.bootstrap_servers)
        done = subprocess.run(
            [Path(sys.executable).parent / "kafkasafe", "spool", "commit", self.directory, "-b", servers, "--json"],
            capture_output=True, text=True, timeout=STUCK_AFTER_S, check=False,
        )  # fmt: skip
        try:
            said = json.loads(done.stdout)
        except ValueError:
            row.stuck.append(f"spool commit: {done.returncode} {done.stdout} {done.stderr}"[:1000])
            return
        row.counts["committed elsewhere"] += said["committed"]
        # Ignore batches with a `reason`: `spool commit` does not commit batches after a batch that is not staged.
        staged = [
            each["batch_id"] for each in said["batches"] if each["step"] in {2, 3} and not each["reason"]
        ]
        if staged:
            row.stuck.append(f"spool commit left {staged}: {done.stderr[:500]}")

    def _node(self, victim: str, stop: list[str] | None) -> int:
        """Returns the broker with which the process is communicating at this step."""
        name, topic, partition = stop or ("-", self.topics[0], str(self.rng.randrange(PARTITIONS)))
        if victim == "leader":
            return self.cluster.leader(topic, int(partition))
        number = _java_hash(name) % 3 if name != "-" else self.rng.randrange(3)
        return self.cluster.leader("__transaction_state", number)

    def _listen(self, lines: _Lines, deadline: float, *, until_stop: bool = False) -> list[str] | None:
        """Records the process's reports until it stops at its step, or has ended."""
        while (line := lines.next(deadline)) is not None:
            kind, _, rest = line.partition(" ")
            if kind == "A":
                number, _, parts = rest.partition(" ")
                self.accepted[int(number)] = frozenset(map(int, parts.split(",")))
                lines.accepted.append(int(number))
            elif kind == "D":
                self.durable.add(int(rest))
            elif kind == "G":
                self.got = max(self.got, int(rest))
                self.durable.add(int(rest))
            elif kind == "X":
                self.errors.append(rest)
            elif until_stop:
                return rest.split(" ")
        return None

    def finish(self) -> None:
        """Lets a last producer deliver the remaining records, and then counts all records."""
        row = next(reversed(self.rows.values()))
        began = time.monotonic()
        with SafeProducer(**self.options()) as producer:
            try:
                producer.flush(STUCK_AFTER_S)
            except KafkaError as error:
                row.stuck.append(f"flush: {error!r}")
            left = [lane.journal.views.unfinished for lane in producer._pump.lanes]
        if any(left):
            row.stuck.append(f"left after flush: {left}")
        if time.monotonic() - began > 2 * STUCK_AFTER_S:
            row.stuck.append("close")
        self.cluster.wait_for_markers() if self.cluster.version >= "3" else time.sleep(2)
        end = time.monotonic() + STUCK_AFTER_S
        while time.monotonic() < end and not self._all_seen():
            time.sleep(0.1)
        last = read_all(self.cluster.bootstrap_servers, self.topics, self.accepted)
        for row in self.rows.values():
            mine = {number for number in self.accepted if row.has(number)}
            row.counts["units"] = len(mine)
            row.counts["promised"] = len(mine & self.durable)
            # Check what both readers saw, the one at the end and the one during the run.
            both = (last, self.seen)
            wrong = {
                "lost": {each for seen in both for each in mine & self.durable if not seen.where.get(each)},
                "twice": {each for seen in both for each, *_ in seen.twice if each in mine},
                "halved": {each for seen in both for each in mine if self._is_half(seen, each)},
                "out of order": {each for seen in both for each in _too_late(seen.order) if each in mine},
            }
            row.counts.update({name: len(found) for name, found in wrong.items()})
            row.counts["half for ms"] = int(self.seen.longest_half_s * 1000)
            row.stuck.extend(each for each in self.errors if row.has(int(each.partition(":")[0])))
            row.counts["stuck"] = len(row.stuck)
        self._say_what_is_wrong(last)

    def _is_half(self, seen: Seen, number: int) -> bool:
        return bool(seen.where.get(number)) and seen.where[number].keys() != self.accepted[number]

    def _all_seen(self) -> bool:
        where, accepted = self.seen.where, self.accepted
        # Check units that were not reported durable, too: the reader may have read only some of their partitions.
        return not self.seen.still_half() and all(
            accepted[each] == where.get(each, {}).keys() for each in self.durable
        )

    def _say_what_is_wrong(self, last: Seen) -> None:
        for name, seen in (("a reader at the end", last), ("the reader meanwhile", self.seen)):
            lost = sorted(each for each in self.durable if not seen.where.get(each))
            halves = sorted(each for each in seen.where if seen.where[each].keys() != self.accepted[each])
            late = _too_late(seen.order)
            for what, found in (("lost", lost), ("twice", seen.twice), ("half", halves), ("late", late)):
                if found:
                    print(f"{self.topics[0]}, {name}: {what}: {found[:20]}", flush=True)
        for row in self.rows.values():
            for what in row.stuck:
                print(f"{self.topics[0]}, {row.victim}: {what}", flush=True)


def _short_ones(admin: KafkaAdminClient) -> dict[str, TransactionDescription]:
    """Returns the open transactions with the short timeout. Other open transactions may last for minutes."""
    # Pass a text: kafka-python 3.0.12 would send its TransactionState.ONGOING as "TransactionState.ONGOING", which
    # matches no transaction.
    found = admin.list_transactions(state_filters=["Ongoing"])
    names = [
        each.transactional_id
        for some in found.values()
        for each in some
        if each.transactional_id.startswith("kafkasafe-")
    ]
    return {
        name: each
        for name, each in admin.describe_transactions(names).items()
        if each.state is TransactionState.ONGOING and each.transaction_timeout_ms == SHORT_TIMEOUT_MS
    }


class _Lines:
    """The lines that a process writes."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._rest, self._over = pipe, b"", False
        self._ready: deque[str] = deque()
        self.accepted: list[int] = []

    def next(self, deadline: float) -> str | None:
        while not self._ready:
            left = deadline - time.monotonic()
            if self._over or not self._pipe.poll(max(0.0, left)):
                return None
            some = os.read(self._pipe.fileno(), 65536)
            self._over = not some
            *whole, self._rest = (self._rest + some).split(b"\n")
            self._ready.extend(line.decode() for line in whole)
        return self._ready.popleft()


def _too_late(order: Mapping[int, list[int]]) -> list[int]:
    """Returns the numbers that come after a higher number."""
    found = []
    for numbers in order.values():
        highest = -1
        for number in numbers:
            if number < highest:
                found.append(number)
            highest = max(highest, number)
    return found


def _java_hash(name: str) -> int:
    """Computes the hash by which brokers choose the partition of `__transaction_state`."""
    value = 0
    for each in name:
        value = (31 * value + ord(each)) & 0xFFFFFFFF
    value -= (value & 0x80000000) << 1
    return abs(value) & 0x7FFFFFFF


COLUMNS = ("kills", "outlived", "timed out", "committed elsewhere", "units", "promised")
WRONG = ("lost", "twice", "halved", "out of order", "stuck")


def table(rows: list[Row]) -> str:
    """Returns the results as a Markdown table."""
    names = ("delivery", "spool", "victim", *COLUMNS, *WRONG, "half for ms")
    lines = [names, ("---",) * len(names)]
    lines += [
        (row.delivery, row.spool, row.victim, *(f"{row.counts[name]:,}" for name in names[3:]))
        for row in rows
    ]
    total = Counter({name: sum(row.counts[name] for row in rows) for name in (*COLUMNS, *WRONG)})
    total["half for ms"] = max((row.counts["half for ms"] for row in rows), default=0)
    lines.append(("all", "", "", *(f"{total[name]:,}" for name in names[3:])))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def run(args: argparse.Namespace, directory: Path) -> list[Row]:
    """Runs all kills, and prints the results."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["kafkasafe", "kafkasafe.producer"])
    where = {"version": args.version} if args.version else {}
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 500}
    began = time.monotonic()
    with KafkaCluster(brokers=3, config=settings, **where) as cluster:
        courses = [
            Course(cluster, delivery, spool, directory, args.seed)
            for delivery in args.delivery
            for spool in args.spool
        ]
        watch = Watch(cluster.bootstrap_servers, {course.topics: course.seen for course in courses})
        watch.start()
        with SafeProducer(
            bootstrap_servers=cluster.bootstrap_servers, spool_dir=str(directory / "first")
        ) as producer:
            # Create `__transaction_state`.
            with producer.batch() as batch:
                batch.send("first", b"0")
            batch.outcome.get(STUCK_AFTER_S)
        kills = [
            (course, victim, STEPS[course.delivery][n % len(STEPS[course.delivery])])
            for course in courses
            for victim in args.victim
            for n in range(args.first, args.first + (args.kills or len(STEPS[course.delivery])))
        ]
        # Mix the kills of all courses, so that a run that is stopped early covers each course.
        if args.mix:
            random.Random(args.seed).shuffle(kills)
        for done, (course, victim, step) in enumerate(kills, 1):
            if time.monotonic() - began > args.minutes * 60:
                print(f"stopped after {args.minutes:g} minutes", flush=True)
                break
            course.kill(victim, step)
            if done % 10 == 0 or done == len(kills):
                seconds = time.monotonic() - began
                units = sum(each.number for each in courses)
                print(
                    f"{done} of {len(kills)} kills, {units:,} units, {seconds:.0f} s: last {course.topics[0]}"
                    f" {victim} at {step}",
                    flush=True,
                )
        for course in courses:
            if course.rows:
                course.finish()
        watch.over = True
        watch.join(30)
    rows = [row for course in courses for row in course.rows.values()]
    print(table(rows))
    steps: Counter[str] = sum((row.steps for row in rows), Counter())
    print("killed at:", ", ".join(f"{name} {count}" for name, count in sorted(steps.items())))
    print(f"{time.monotonic() - began:.0f} s")
    return rows


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--delivery", nargs="+", choices=[*STEPS], default=[*STEPS])
    parser.add_argument("--spool", nargs="+", choices=["always", "on_error"], default=["always", "on_error"])
    parser.add_argument("--victim", nargs="+", choices=VICTIMS, default=[*VICTIMS])
    parser.add_argument(
        "--kills", type=int, default=0, help="number of kills of each victim; 0: one at each step"
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first step")
    parser.add_argument("--minutes", type=float, default=45.0, help="no further kills after this time")
    parser.add_argument("--mix", action="store_true", help="kill in random order")
    parser.add_argument("--version", help="version of Kafka")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--keep", type=Path, help="work in this directory and leave it there")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="kafkasafe-kills-") as scratch:
        rows = run(args, args.keep or Path(scratch))
    if args.json:
        fields = [
            {
                "delivery": row.delivery,
                "spool": row.spool,
                "victim": row.victim,
                "steps": row.steps,
                **row.counts,
            }
            for row in rows
        ]
        args.json.write_text(json.dumps(fields, indent=1))
    return int(any(row.counts[name] for row in rows for name in WRONG))


if __name__ == "__main__":
    sys.exit(main())
