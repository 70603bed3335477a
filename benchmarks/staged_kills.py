"""Kills a producer of atomic batches at each step of its protocol, and brokers beside it, on real brokers.

    python -m benchmarks.staged_kills --kills 200 --delivery staged --spool always --what client
    python -m benchmarks.staged_kills --kills 40 --what leader --brokers 3

Each life of the producer sends numbered units to `orders` (three partitions) and `audit`, says which are durable, and
is killed with SIGKILL: at a step of the protocol in turn, or at a random moment. Meanwhile a reader of committed
records watches for halves. At the end every unit that was durable is in all its partitions once, in order, and no unit
is in some of them only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from kafkasafe import SafeProducer
from kafkasafe._core import marks as m
from kafkasafe._core import units as u
from kafkasafe._io.engine.transactor import Transactor
from kafkasafe._io.spool import Spool
from kafkasafe.testing.broker import KafkaCluster

STEPS = (
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
PARTITIONS = 3
TRANSACTION_TIMEOUT_MS = 10_000


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _arm(step: str, after: int) -> None:
    """Have this process killed when the step comes for the `after`th time."""
    left = [after]

    def passes(name: str) -> None:
        if name == step:
            left[0] -= 1
            if left[0] <= 0:
                _die()

    written: list[str] = []
    write_group, sync = Spool.write_group, Spool.sync
    names = {m.Unit: "unit", m.Staged: "staged", m.Ended: "ended", m.Committed: "ended"}

    def traced_write(self: Spool, marks: Any, batches: Any, **options: Any) -> list[int]:
        positions = write_group(self, marks, batches, **options)
        for mark in marks:
            if type(mark) in names:
                written.append(names[type(mark)])
                passes(f"{written[-1]} written")
        return positions

    def traced_sync(self: Spool) -> int:
        done = sync(self)
        for name in dict.fromkeys(written):
            passes(f"{name} durable")
        written.clear()
        return done

    carry_out, answered = Transactor.carry_out, Transactor.answered

    def traced_carry_out(self: Transactor, lane: Any, actions: Any) -> None:
        carry_out(self, lane, actions)
        if any(isinstance(action, u.End) for action in actions):
            if random.random() < 0.5:
                time.sleep(random.random() * 0.005)  # it is on its way
            passes("end sent")

    def traced_answered(self: Transactor, lane: Any, action: Any, step: str, answer: Any) -> None:
        name = {
            "fenced": "fenced",
            "joined": "joined",
            "appended": "appended",
            "noted": "noted",
            "ended": "end answered",
        }
        passes(name.get(step, ""))
        answered(self, lane, action, step, answer)

    Spool.write_group, Spool.sync = traced_write, traced_sync  # type: ignore[method-assign]
    Transactor.carry_out, Transactor.answered = traced_carry_out, traced_answered  # type: ignore[method-assign]


def life(options: dict[str, Any], first: int, step: str, after: int, plain: bool, out: Any) -> None:
    """One life of the producer: says (number, partitions) of what it accepts, then what is durable."""
    if step != "random":
        _arm(step, after)
    with SafeProducer(**options) as producer:
        end = time.monotonic() + 20
        number = first
        waiting: list[tuple[int, Any]] = []
        dice = random.Random(first)
        while time.monotonic() < end:
            if plain:
                # What one chunk holds is a unit: one partition, one record.
                where = [dice.randrange(PARTITIONS)]
                out.send(("accepted", number, where))
                future: Any = producer.send("orders", b"%d" % number, partition=where[0])
                producer._seal_all()
            else:
                where = sorted(dice.sample(range(PARTITIONS), dice.randrange(1, PARTITIONS + 1)))
                out.send(("accepted", number, [*where, -1]))
                with producer.batch() as batch:
                    for partition in where:
                        batch.send("orders", b"%d" % number, partition=partition)
                    batch.send("audit", b"%d" % number)
                future = batch.outcome
            waiting.append((number, future))
            number += 1
            if len(waiting) >= 3:
                done, future = waiting.pop(0)
                future.durable(20)
                out.send(("durable", done, None))
            time.sleep(dice.random() * 0.01)


class Watch(threading.Thread):
    """Reads committed records all the time, and notes when each part of a unit was first seen."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        self._servers = servers
        self.over = False
        self.seen: dict[int, dict[int, int]] = defaultdict(dict)
        self.first: dict[int, float] = {}
        self.whole_after_s = 0.0
        self.repeated: list[tuple[int, int, int, int]] = []
        self.order: dict[int, list[int]] = defaultdict(list)
        self.units: dict[int, set[int]] = {}

    def run(self) -> None:
        places = [TopicPartition("orders", n) for n in range(PARTITIONS)] + [TopicPartition("audit", 0)]
        consumer = KafkaConsumer(
            bootstrap_servers=self._servers,
            isolation_level="read_committed",
            enable_auto_commit=False,
            group_id=None,
            auto_offset_reset="earliest",
        )
        consumer.assign(places)
        consumer.seek_to_beginning()
        while not self.over:
            try:
                polled = consumer.poll(200)
            except Exception as error:
                print("reader:", repr(error))
                time.sleep(0.5)
                continue
            now = time.monotonic()
            for place, records in polled.items():
                part = place.partition if place.topic == "orders" else -1
                for record in records:
                    number = int(record.value)
                    if self.seen[number].get(part) == record.offset:
                        continue  # the very same record: the reader began anew
                    if part in self.seen[number]:
                        self.repeated.append((number, part, self.seen[number][part], record.offset))
                    self.seen[number][part] = record.offset
                    self.order[part].append(number)
                    began = self.first.setdefault(number, now)
                    if self.units.get(number) == set(self.seen[number]):
                        self.whole_after_s = max(self.whole_after_s, now - began)
        consumer.close()


def run(
    *,
    kills: int,
    delivery: str,
    spool: str,
    what: str,
    brokers: int,
    version: str | None,
    seed: int,
    atomic: bool,
    directory: Path,
) -> dict[str, Any]:
    """Everything; raises AssertionError where something is lost, repeated, out of order, or half."""
    dice = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kafkasafe", "kafkasafe.producer"])
    where = {} if version is None else {"version": version}
    with KafkaCluster(brokers=brokers, **where) as cluster:  # type: ignore[arg-type]
        cluster.create_topic("orders", partitions=PARTITIONS)
        cluster.create_topic("audit", partitions=1)
        servers = cluster.bootstrap_servers
        watch = Watch(servers)
        watch.start()
        options = {
            "bootstrap_servers": servers,
            "spool_dir": str(directory),
            "delivery": delivery,
            "spool": spool,
            "spool_after_ms": 50,
            "linger_ms": 1,
            "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
            "retry_backoff_ms": 50,
            "client_id": "kills",
        }
        durable: set[int] = set()
        accepted: dict[int, set[int]] = watch.units
        number, killed, steps = 0, 0, defaultdict(int)
        began = time.monotonic()
        down: list[int] = []
        while killed < kills:
            step = STEPS[killed % len(STEPS)] if what == "client" else "random"
            here, there = context.Pipe(duplex=False)
            process = context.Process(
                target=life,
                args=(options, number, step, dice.randrange(1, 6), not atomic, there),
                daemon=True,
            )
            process.start()
            there.close()
            deadline = time.monotonic() + (dice.uniform(0.3, 1.5) if step == "random" else 15)
            struck = False
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    process.kill()
                    deadline = time.monotonic() + 30
                try:
                    if here.poll(max(0.0, min(left, 0.2))):
                        kind, which, parts = here.recv()
                        if kind == "accepted":
                            accepted[which] = set(parts)
                            number = max(number, which + 1)
                        else:
                            durable.add(which)
                except EOFError:
                    break
                if what != "client" and not struck and left < 0.3:
                    struck = True
                    for node in down:
                        cluster.start(node)
                    down = _victims(cluster, what, dice)
                    for node in down:
                        cluster.kill(node)
            process.join()
            here.close()
            killed += 1
            steps[step] += 1
            if killed % 20 == 0:
                print(
                    f"{killed} kills, {number} units, {len(durable)} durable, {time.monotonic() - began:.0f} s",
                    flush=True,
                )
        for node in down:
            cluster.start(node)
        # The last life delivers what is left.
        with SafeProducer(**{**options, "delivery": "idempotent"}) as producer:
            producer.flush(180)
            waits = [lane.journal.unfinished for lane in producer._pump.lanes]
        assert not any(waits), waits
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if all(accepted[each] == set(watch.seen.get(each, ())) for each in durable):
                break
            time.sleep(0.2)
        time.sleep(1)
        watch.over = True
        watch.join(20)
        if watch.repeated:
            # Once more, from the beginning: is it the log, or the reader?
            print("repeated (unit, partition, offset, offset):", watch.repeated[:9])
            again = Watch(servers)
            again.start()
            time.sleep(10)
            again.over = True
            again.join(20)
            print("a reader from the beginning sees:", again.repeated[:9])
            watch.repeated = again.repeated
            watch.order = again.order
        lost = [each for each in durable if not watch.seen.get(each)]
        halves = [each for each in watch.seen if set(watch.seen[each]) != accepted[each]]
        disorder = [part for part, order in watch.order.items() if order != sorted(order)]
        result = {
            "kills": killed,
            "steps": dict(steps),
            "units": number,
            "durable": len(durable),
            "seen": len(watch.seen),
            "lost": len(lost),
            "repeated": len(watch.repeated),
            "halves": len(halves),
            "out_of_order": len(disorder),
            "half_seen_for_s": round(watch.whole_after_s, 2),
            "seconds": round(time.monotonic() - began, 1),
        }
    print(json.dumps(result))
    wrong = [*lost[:9], *watch.repeated[:9], *halves[:9], *disorder]
    assert not wrong, wrong
    return result


def _victims(cluster: KafkaCluster, what: str, dice: random.Random) -> list[int]:
    nodes = list(range(1, 4))
    if what == "leader":
        return [cluster.leader("orders", dice.randrange(PARTITIONS))]
    if what == "coordinator":
        return [cluster.leader("__transaction_state", dice.randrange(3))]
    return nodes if what == "all" else [dice.choice(nodes)]


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--delivery", choices=["staged", "idempotent"], default="idempotent")
    parser.add_argument("--spool", choices=["always", "on_error"], default="always")
    parser.add_argument("--what", choices=["client", "leader", "coordinator", "all"], default="client")
    parser.add_argument("--plain", action="store_true", help="send(), instead of batch()")
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--version")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kafkasafe-kills-") as directory:
        run(
            kills=given.kills,
            delivery=given.delivery,
            spool=given.spool,
            what=given.what,
            brokers=3 if given.what != "client" else given.brokers,
            version=given.version,
            seed=given.seed,
            atomic=not given.plain,
            directory=Path(directory),
        )


if __name__ == "__main__":
    main()
