"""A member of the group that benchmarks/consume_process_produce.py disturbs: it reads, changes and writes records.

The member does everything that a program may do: it collects the records of one or several polls, has up to ten atomic
batches without an outcome, pauses partitions, closes its producer and opens another one on the same spool, and is
interrupted during a commit. The seed determines which of these actions the member takes.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kafka.errors import FencedInstanceIdError, MessageSizeTooLargeError

SOURCE, OUT, AUDIT, GROUP = "numbers", "changed", "audit", "changers"
DEPTH = 10
"""Largest number of atomic batches without an outcome."""
SETTLE_S = 300.0
BEGUN = "begun"
"""File in a member's folder with the id of the process that has begun to run."""
LARGE = 200_000
"""Size of a record that is too large for the topic `changed`, in bytes."""
ASSIGNORS = ("cooperative", "range", "sticky")


class Member:
    """The common part of all kinds of members: settings, counts and traces, and the processing of records."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder = Path(options.folder)
        self.options = options
        self.rng = random.Random(options.seed)
        self.servers = options.servers.split(",")
        self.until = time.monotonic() + options.seconds
        self.depth = self.rng.choice((1, DEPTH, DEPTH, DEPTH))
        self.collects = self.rng.choice((1, 1, 400, 2000))
        """The member makes a batch when it has this number of records, or when a poll returns none."""
        self.most = self.rng.choice((20, 100, 500))
        self.ending = False
        self.generation = -2
        self.consumer: Any = None
        signal.signal(signal.SIGUSR1, self.tell)
        (self.folder / BEGUN).write_text(str(os.getpid()))
        self._book = os.open(self.folder / "book", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._trace = os.open(self.folder / "trace", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, what: str, count: int = 1) -> None:
        """Writes a count to a file that survives SIGKILL."""
        os.write(self._book, f"{what}\t{count}\n".encode())

    def trace(self, what: str) -> None:
        """Writes what the member does, and when. The harness prints these lines if a record is lost or duplicated."""
        os.write(self._trace, f"{time.monotonic():.3f} process {os.getpid()}: {what}\n".encode())

    def event(self, event: Any) -> None:
        """Records an event of the consumer."""
        if type(event).__name__ == "PositionRewound":
            self.note(f"rewound, {event.reason}")
        self.trace(str(event))

    def look_at(self, generation: int) -> None:
        """Counts the generations of the group in which the process was a member."""
        if generation != self.generation:
            self.generation = generation
            self.note("generations")
            self.trace(f"generation {generation}")

    def tell(self, *_: object) -> None:
        """Writes the consumer's state to the log, to examine a member that seems to hang (`kill -USR1`)."""
        inner = getattr(self.consumer, "client", self.consumer)
        if inner is None:
            return
        print(inner.group_metadata(), "paused as the program knows it:", self.consumer.paused())
        rereading = inner._reading.rereading
        for tp, state in dict(inner._subscription.assignment).items():
            run = rereading._readings.get(tp)
            waits = None if run is None else (run.waits, run.broken, run.handed)
            print(tp, {name: value for name, value in vars(state).items() if value}, waits)
        print(rereading.__dict__, flush=True)

    def of_consumer(self) -> dict[str, Any]:
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        kinds: Sequence[Any] = (CooperativeStickyAssignor, RangePartitionAssignor, StickyPartitionAssignor)
        return {
            "bootstrap_servers": self.servers,
            "group_id": GROUP,
            "group_instance_id": f"static-{self.folder.name}" if self.options.static else None,
            "client_id": self.folder.name,
            "partition_assignment_strategy": [
                dict(zip(ASSIGNORS, kinds, strict=True))[self.options.assignor]
            ],
            "enable_auto_commit": self.options.kind == "naive",
            "auto_offset_reset": "earliest",
            "max_poll_records": self.most,
            "session_timeout_ms": 4000,
            "heartbeat_interval_ms": 400,
            "on_event": self.event,
        }

    def of_producer(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.servers,
            "spool_dir": self.folder / "spool",
            "spool_max_bytes": 256 * 1024 * 1024,
            "spool_segment_bytes": 2 * 1024 * 1024,
            "request_timeout_ms": 5000,
            "max_block_ms": 5000,
            "linger_ms": self.rng.choice((0, 1, 5)),
            "compression_type": self.rng.choice((None, "gzip", "lz4")),
            "spool": self.rng.choice(("always", "on_error")),
            "transaction_timeout_ms": 10_000,
        }

    def fill(self, batch: Any, records: Sequence[Any]) -> None:
        """Adds each record in changed form, with the same key, and for each partition a note of the records that were
        read.
        """
        runs: dict[int, list[int]] = {}
        for record in records:
            number = int(record.value[:10])
            batch.send(OUT, changed(record), record.key)
            runs.setdefault(record.partition, []).append(number)
        by = (
            f"{self.folder.name}, process {os.getpid()}, generation {self.generation}, {time.monotonic():.2f}"
        )
        for partition, numbers in runs.items():
            note = b"%d %s" % (partition, b" ".join(b"%d" % number for number in numbers))
            batch.send(AUDIT, note, headers=[("by", by.encode())])
        if self.options.poison and self.rng.random() < self.options.poison:
            batch.send(OUT, os.urandom(LARGE), b"large")  # no codec makes it small
            self.note("too large")

    def note_batch(self, records: Sequence[Any], batch: Any) -> None:
        self.note("batches")
        self.note("handed over", len(records))
        inner = getattr(batch, "_batch", batch)
        offsets = {
            each.partition: each.offset for group in inner.offsets.groups.values() for each in group.positions
        }
        readings = {
            line[2]: (reading.number, reading.start) for line, reading in inner.offsets.readings.items()
        }
        self.trace(
            f"batch {batch.outcome.batch_id}: {_runs(records)}; offsets {offsets}; readings {readings}"
        )

    def pause_some(self, consumer: Any) -> None:
        """Sometimes pauses a partition, and more often resumes all partitions."""
        if self.rng.random() < 0.02 and (assigned := consumer.assignment()):
            consumer.pause(self.rng.choice(sorted(assigned)))
            self.note("paused")
        if self.rng.random() < 0.1:
            consumer.resume(*consumer.paused())

    def note_refused(self, error: Any, records: Sequence[Any]) -> None:
        """Notes that a batch was not accepted, so that its records will be read again."""
        self.note("refused, to be read again")
        self.trace(f"refused: {_runs(records)}: {error}")

    def note_outcome(self, outcome: Any, error: Any = None) -> None:
        """Notes the outcome of a batch."""
        self.trace(f"outcome {outcome.batch_id}: {error or 'committed'}")
        if error is None:
            return
        kind = "rejected" if error.code == MessageSizeTooLargeError.errno else "dropped"
        self.note(f"outcomes, {kind}")
        print(f"{time.monotonic():.2f} {kind}: {error}", flush=True)


def _runs(records: Sequence[Any]) -> dict[int, tuple[int, int, int]]:
    """Returns, for each partition, the first and the last offset of the records, and their number."""
    offsets: dict[int, list[int]] = {}
    for record in records:
        offsets.setdefault(record.partition, []).append(record.offset)
    return {partition: (min(some), max(some), len(some)) for partition, some in offsets.items()}


def changed(record: Any) -> bytes:
    """Returns the output value of a record: its partition, and its value in upper case."""
    made: bytes = b"%02d %s" % (record.partition, record.value.upper())
    return made


# --- with threads -----------------------------------------------------------------------------------------------------


def threaded(member: Member) -> None:
    from kafkasafe import SafeConsumer, SafeProducer
    from kafkasafe.errors import BatchDroppedError

    def end(*_: object) -> None:
        member.ending = True

    producer = SafeProducer(**member.of_producer())
    consumer = member.consumer = SafeConsumer(SOURCE, **member.of_consumer())
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    outcomes: collections.deque[Any] = collections.deque()
    collected: list[Any] = []
    rng = member.rng
    try:
        while not member.ending and time.monotonic() < member.until:
            records = [each for some in consumer.poll(100).values() for each in some]
            collected += records
            member.look_at(consumer.group_metadata().generation_id)
            if collected and (len(collected) >= member.collects or not records):
                try:
                    with producer.batch() as batch:
                        member.fill(batch, collected)
                        batch.send_offsets(consumer)
                    member.note_batch(collected, batch)
                    outcomes.append(batch.outcome)
                except BatchDroppedError as error:
                    member.note_refused(error, collected)
                collected = []
            while outcomes and (len(outcomes) >= member.depth or outcomes[0].is_done):
                outcome = outcomes.popleft()
                try:
                    outcome.get(SETTLE_S)
                except BatchDroppedError as error:
                    member.note_outcome(outcome, error)
                else:
                    member.note_outcome(outcome)
            member.pause_some(consumer)
            if rng.random() < member.options.reopen:
                # The next producer delivers the batches that this producer leaves in the spool. Their outcomes are not
                # reported here.
                producer.close(timeout=rng.choice((0, 0.05, 2)))
                outcomes.clear()
                member.trace("closed its producer")
                producer = SafeProducer(**member.of_producer())
                member.note("reopened")
                member.trace("opened another producer")
    except KeyboardInterrupt:
        member.note("interrupted")
        producer.close(timeout=5)
        sys.exit(0)
    for each in rng.sample((consumer, producer), 2):
        each.close(timeout=10)


# --- in an event loop -------------------------------------------------------------------------------------------------


async def looped(member: Member) -> None:
    from kafkasafe.aio import SafeConsumer, SafeProducer
    from kafkasafe.errors import BatchDroppedError, UsageError

    def end() -> None:
        member.ending = True

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
    rng = member.rng
    outcomes: collections.deque[Any] = collections.deque()
    collected: list[Any] = []
    producer = SafeProducer(**member.of_producer())
    await producer.start()
    consumer = member.consumer = SafeConsumer(SOURCE, **member.of_consumer())
    await consumer.start()

    async def some() -> list[Any]:
        """Returns the next records, many at once or one after the other. A cancelled call takes no record."""
        found: list[Any] = []
        with contextlib.suppress(TimeoutError):
            if rng.random() < 0.5:
                got = await asyncio.wait_for(
                    consumer.getmany(timeout_ms=100, max_records=member.most), rng.choice((0.02, 5))
                )
                found = [each for records in got.values() for each in records]
            else:
                for _ in range(rng.randint(1, member.most)):
                    found.append(await asyncio.wait_for(consumer.getone(), 0.05))
        return found

    async def deliver(records: list[Any]) -> None:
        batch = producer.batch()
        member.fill(batch, records)
        await batch.send_offsets(consumer)
        if rng.random() < 0.1:
            try:
                await asyncio.wait_for(batch.commit(), rng.choice((0.0001, 0.001)))
            except TimeoutError:
                try:
                    batch.outcome  # noqa: B018
                except UsageError:
                    # The whole batch was dropped.
                    member.note("commits cancelled")
                    await deliver(records)
                    return
        else:
            await batch.commit()
        member.note_batch(records, batch)
        outcomes.append(batch.outcome)

    # Before Python 3.12, `asyncio.wait_for` loses a cancellation (here by SIGINT) that comes together with the result.
    task = asyncio.current_task()
    while not member.ending and time.monotonic() < member.until and not (task and task.cancelling()):
        records = await some()
        collected += records
        member.look_at(consumer.client.group_metadata().generation_id)
        if collected and (len(collected) >= member.collects or not records):
            try:
                await deliver(collected)
            except BatchDroppedError as error:
                member.note_refused(error, collected)
            collected = []
        while outcomes and (len(outcomes) >= member.depth or outcomes[0].done()):
            outcome = outcomes.popleft()
            try:
                await asyncio.wait_for(_of(outcome), SETTLE_S)
            except BatchDroppedError as error:
                member.note_outcome(outcome, error)
            else:
                member.note_outcome(outcome)
        member.pause_some(consumer)
        if rng.random() < member.options.reopen:
            await producer.close(timeout=rng.choice((0, 0.05, 2)))
            outcomes.clear()
            member.trace("closed its producer")
            producer = SafeProducer(**member.of_producer())
            await producer.start()
            member.note("reopened")
            member.trace("opened another producer")
    for each in rng.sample((consumer, producer), 2):
        await each.close(timeout=10)


async def _of(outcome: Any) -> Any:
    return await outcome


# --- the control ------------------------------------------------------------------------------------------------------


def naive(member: Member) -> None:
    """The obvious program, which loses or duplicates records: it commits offsets separately from the records.

    A kill by the harness rarely comes between the records and their offsets. So the first process of each member that
    gets records kills itself there.
    """
    from kafkasafe import SafeConsumer, SafeProducer

    killed = member.folder / "killed"

    def end(*_: object) -> None:
        member.ending = True

    signal.signal(signal.SIGTERM, end)
    producer = SafeProducer(**member.of_producer())
    consumer = member.consumer = SafeConsumer(SOURCE, **member.of_consumer())
    try:
        while not member.ending and time.monotonic() < member.until:
            records = [each for some in consumer.poll(100).values() for each in some]
            member.look_at(consumer.group_metadata().generation_id)
            for record in records:
                producer.send(OUT, changed(record), record.key)
            if records:
                member.note("batches")
                member.note("handed over", len(records))
                if not killed.exists():
                    producer.durable(SETTLE_S)
                    killed.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
    except KeyboardInterrupt:
        member.note("interrupted")
        producer.close(timeout=5)
        sys.exit(0)
    consumer.close(timeout=10)
    producer.close(timeout=10)


def run(member: Member, kind: str) -> None:
    """Runs one process of the member."""
    match kind:
        case "threads":
            threaded(member)
        case "naive":
            naive(member)
        case "asyncio":
            try:
                asyncio.run(looped(member))
            except KeyboardInterrupt:
                member.note("interrupted")


def main() -> None:
    """Runs one process. benchmarks/consume_process_produce.py starts it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("threads", "asyncio", "naive"))
    parser.add_argument("--folder", required=True)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--assignor", choices=ASSIGNORS, default="cooperative")
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument(
        "--poison", type=float, default=0.0, help="share of the batches that get a record that is too large"
    )
    parser.add_argument(
        "--reopen", type=float, default=0.0, help="probability of opening another producer after a poll"
    )
    options = parser.parse_args()
    member = Member(options)
    with contextlib.suppress(FencedInstanceIdError):
        # A delayed join of the previous process has taken this process's place in the group. End, as a program would.
        run(member, options.kind)


if __name__ == "__main__":
    main()
