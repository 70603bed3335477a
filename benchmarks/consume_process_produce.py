"""Runs consume-process-produce programs on real brokers under faults, then counts lost and duplicated records.

    python benchmarks/consume_process_produce.py [--records 30000] [--seconds 120] [--seed N] [--assignor range]
    python benchmarks/consume_process_produce.py --naive        # the control: a program that commits by itself

A group of four members copies the keyed records of a topic with eight partitions to another topic with five partitions.
Each member is a separate process (benchmarks/consume_process_produce_member.py). An atomic batch contains the records,
a note that names the records that were read, and the group's offsets. Each member has up to ten atomic batches whose
outcome is not known yet. Two members use threads, and two use an event loop; one of each kind is a static member
(`group_instance_id`). Meanwhile the harness causes faults, determined by the seed (`--seed`).

- members get SIGKILL, SIGTERM (whose handler calls `close()`), or SIGINT in the middle of any call, and are started
  again at once or later; members are also stopped (SIGSTOP) for longer than their session lasts; so partitions move
  all the time;
- brokers are killed and paused, leaders are moved, connections are cut, and answers are lost;
- the group's coordinator refuses the offsets of a batch, as if they were from an earlier generation: the batch is
  dropped, and its records are read again;
- a record of a batch is too large: the batch is put into `rejected/`;
- a member closes its producer while batches have no outcome, and opens another one.

At the end all faults are repaired, the members continue until the group has read all records, and confluent-kafka reads
the output (`read_committed`). Each record must be in the output once, unless its batch was rejected. The records of
each input partition must be in the order in which they were read. The notes must name each record in the output exactly
once. Meanwhile a watcher checks that no offset of the group goes back. The exit code is 0 if all these checks succeed
and no process hung.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster_faults import ClusterFaults, read_messages, read_values
from consume_process_produce_member import ASSIGNORS, AUDIT, BEGUN, GROUP, OUT, SETTLE_S, SOURCE
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError

from kafkasafe import SafeProducer
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy

PARTITIONS = {SOURCE: 8, OUT: 5, AUDIT: 2}
KEYS = 97
ENDS = ("kill", "kill", "terminate", "terminate", "interrupt")
HANG_S = 60.0
_TOLD = 6000
"""How many characters of a member's log are printed if the member ended with an error."""
SESSION_S = 4.0
MEMBERS = (("threads", False), ("threads", True), ("asyncio", False), ("asyncio", True))
"""Kind of each member, and whether it is a static member."""
MEMBER = Path(__file__).with_name("consume_process_produce_member.py")
WRONG = ("lost", "twice", "out of order", "notes wrong", "offsets back", "hung")


class Slot(threading.Thread):
    """Starts a member, disturbs it, ends it, and starts it again.

    Attributes:
        done: Number of disturbances of each kind.
        wrong: Descriptions of violations.
    """

    def __init__(
        self, folder: Path, command: Sequence[str], faults: Sequence[str], rng: random.Random, until: float
    ) -> None:
        super().__init__(name=folder.name, daemon=True)
        self.folder, self.until = folder, until
        self.done: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.failure: BaseException | None = None
        self._command, self._faults, self._rng = [*command, "--folder", str(folder)], faults, rng
        folder.mkdir()

    def run(self) -> None:
        try:
            while time.monotonic() < self.until:
                self._live()
        except BaseException as error:
            self.failure = error

    def _live(self) -> None:
        child = self.start_member(*self._faults)
        try:
            self._rest(self._rng.uniform(2, 15))
            if self._rng.random() < 0.25:
                self.done["stopped for longer than its session"] += 1
                child.send_signal(signal.SIGSTOP)
                time.sleep(self._rng.uniform(SESSION_S + 1, SESSION_S + 4))
                child.send_signal(signal.SIGCONT)
                self._rest(self._rng.uniform(0, 4))
            self.end_member(child, self._rng.choice(ENDS))
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        if self._rng.random() < 0.4:
            self._rest(self._rng.uniform(0, 8))

    def _rest(self, seconds: float) -> None:
        time.sleep(max(0.0, min(seconds, self.until - time.monotonic())))

    def start_member(self, *options: str) -> subprocess.Popen[bytes]:
        """Starts another process of the member."""
        seed = str(self._rng.getrandbits(31))
        with (self.folder / "log").open("ab") as output:
            return subprocess.Popen([*self._command, "--seed", seed, *options], stdout=output, stderr=output)

    def end_member(self, child: subprocess.Popen[bytes], how: str) -> None:
        """Ends the process in the given way, or reports that it hangs."""
        signals = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "interrupt": signal.SIGINT}
        if how == "interrupt":
            # Wait, because Python itself ends with exit code 1 if SIGINT arrives while it starts.
            deadline = time.monotonic() + HANG_S
            while not self._has_begun(child) and child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
        if child.poll() is None:
            self.done[how] += 1
            child.send_signal(signals[how])
        try:
            child.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self._say(f"hung after {how}")
            return
        # A signal that arrives before the process has set its handlers ends the process directly.
        if child.returncode not in {0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 130}:
            self._say(f"a process ended with exit code {child.returncode} ({how})")
            print((self.folder / "log").read_text(errors="replace")[-_TOLD:], flush=True)

    def _has_begun(self, child: subprocess.Popen[bytes]) -> bool:
        try:
            return (self.folder / BEGUN).read_text() == str(child.pid)
        except FileNotFoundError:
            return False

    def _say(self, what: str) -> None:
        self.wrong.append(what)
        print(f"{self.name}: {what}; see {self.folder}/log", flush=True)

    def books(self) -> collections.Counter[str]:
        """Returns the counts that the member's processes have written down."""
        found: collections.Counter[str] = collections.Counter()
        with contextlib.suppress(FileNotFoundError):
            for line in (self.folder / "book").read_text().splitlines():
                what, _, count = line.partition("\t")
                found[what] += int(count)
        return found

    def rejected(self) -> list[tuple[int, int]]:
        """Returns the output records in `rejected/`, by partition and number of the input."""
        spool, out = self.folder / "spool", self.folder / "rejected.jsonl"
        if not (spool / "FORMAT").exists():
            return []
        tool = Path(sys.executable).with_name("kafkasafe")
        done = subprocess.run(
            [str(tool), "spool", "export", str(spool), "-o", str(out), "--status", "rejected"],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if done.returncode or not out.exists():
            self._say(f"spool export: {done.returncode} {done.stdout} {done.stderr}")
            return []
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        # The record that is too large is not text.
        return [
            place_of(row["value"].encode())
            for row in rows
            if row["topic"] == OUT and isinstance(row["value"], str)
        ]


class Faults(ClusterFaults):
    """Faults of the cluster and of the group."""

    PAUSE_S = 2.0
    HANG_S = 6.0
    CUTS = 4
    START_S = 180.0

    @property
    def kinds(self) -> Sequence[Callable[[], None]]:
        own: tuple[Callable[[], None], ...] = (
            self.lose_answers,
            self.cut,
            self.refuse_offsets,
            self.refuse_offsets,
            self.forbid,
            self.pause_broker,
            self.kill_broker,
        )
        return (*own, self.move_leader, self.move_leader) if len(self.cluster.brokers) > 1 else own

    def move_leader(self) -> None:
        topic = self.rng.choice((SOURCE, OUT, AUDIT))
        self.cluster.move_leader(topic, self.rng.randrange(PARTITIONS[topic]))

    def lose_answers(self) -> None:
        names = (
            "Produce",
            "EndTxn",
            "TxnOffsetCommit",
            "OffsetFetch",
            "JoinGroup",
            "SyncGroup",
            "Heartbeat",
            "Fetch",
        )
        self.drop_answers(names, 5)

    def refuse_offsets(self) -> None:
        """Refuses offsets, as if the member had left the group or its generation had ended, so that the batch is
        dropped.
        """
        code = self.rng.choice((22, 25))
        rule = self.proxy.on("TxnOffsetCommit", topic=SOURCE).answer_without_forwarding(
            code, times=self.rng.randint(1, 3)
        )
        time.sleep(self.rng.uniform(0.3, 1.5))
        rule.remove()

    def forbid(self) -> None:
        """Revokes the permission to write for a moment."""
        rule = self.proxy.on("Produce", topic=self.rng.choice((OUT, AUDIT))).answer_without_forwarding(29)
        time.sleep(self.rng.uniform(0.2, 2))
        rule.remove()


class Feeder(threading.Thread):
    """Sends the records that the members copy: numbers that ascend in each partition."""

    def __init__(self, servers: Sequence[str], folder: Path, records: int, seconds: float) -> None:
        super().__init__(name="feeder", daemon=True)
        self.servers, self.folder, self.records, self.seconds = servers, folder, records, seconds
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            began = time.monotonic()
            with SafeProducer(
                bootstrap_servers=list(self.servers),
                spool_dir=self.folder / "feeder",
                request_timeout_ms=5000,
            ) as producer:
                for number in range(self.records):
                    producer.send(SOURCE, b"%010d abc" % number, b"k%d" % (number % KEYS))
                    if number % 50 == 0:
                        time.sleep(max(0.0, began + self.seconds * number / self.records - time.monotonic()))
                producer.flush(SETTLE_S)
        except BaseException as error:
            self.failure = error


class Watcher(threading.Thread):
    """Asks for the group's offsets regularly, and records each offset that goes back."""

    def __init__(self, servers: Sequence[str]) -> None:
        super().__init__(name="watcher", daemon=True)
        self.servers = list(servers)
        self.over = threading.Event()
        self.seen: dict[TopicPartition, int] = {}
        self.back: list[str] = []
        self.asked = 0

    def run(self) -> None:
        admin: KafkaAdminClient | None = None
        while not self.over.wait(0.3):
            try:
                if admin is None:
                    admin = KafkaAdminClient(bootstrap_servers=self.servers, request_timeout_ms=3000)
                self._look(offsets_of(admin))
                self.asked += 1
            except KafkaError:
                if admin is not None:
                    admin.close()
                admin = None
        if admin is not None:
            admin.close()

    def _look(self, found: Mapping[TopicPartition, int]) -> None:
        for tp, offset in found.items():
            if offset < self.seen.get(tp, 0):
                self.back.append(f"{tp.topic}-{tp.partition}: from {self.seen[tp]} to {offset}")
                print(self.back[-1], flush=True)
            self.seen[tp] = offset


def offsets_of(admin: KafkaAdminClient) -> dict[TopicPartition, int]:
    """Returns the group's offsets."""
    found = admin.list_group_offsets(GROUP)
    if GROUP in found:
        found = found[GROUP]
    return {tp: each.offset for tp, each in found.items() if each.offset >= 0}


# --- the count --------------------------------------------------------------------------------------------------------


def place_of(value: bytes) -> tuple[int, int]:
    """Returns the input partition and number of an output record."""
    return int(value[:2]), int(value[3:13])


def read(servers: Sequence[str], topic: str) -> list[list[bytes]]:
    """Returns the committed values of each partition, in the log's order, as librdkafka's consumer reads them."""
    return list(read_values(servers, topic, PARTITIONS[topic], "read_committed", SETTLE_S))


def judge(
    source: Sequence[Sequence[bytes]],
    out: Sequence[Sequence[bytes]],
    audit: Sequence[Sequence[bytes]],
    rejected: Sequence[tuple[int, int]],
    *,
    notes: bool,
) -> dict[str, int]:
    """Counts the records that are lost, duplicated, out of order, or missing in the notes."""
    wanted = {(partition, int(value[:10])) for partition, log in enumerate(source) for value in log}
    every = [place_of(value) for log in out for value in log]
    there = set(every)
    back = 0
    for log in out:
        last: dict[int, int] = {}
        for partition, number in map(place_of, log):
            # A duplicate counts only as a duplicate, not as out of order as well.
            back += number < last.get(partition, -1)
            last[partition] = max(number, last.get(partition, -1))
    noted = [
        (int(partition), int(number))
        for log in audit
        for partition, *numbers in (value.split() for value in log)
        for number in numbers
    ]
    return {
        "records": len(wanted),
        "lost": len(wanted - there - set(rejected)) + len(there - wanted),
        "twice": len(every) - len(there),
        "out of order": back,
        "notes wrong": len(set(noted) ^ there) + len(noted) - len(set(noted)) if notes else 0,
        "rejected only": len(set(rejected) & wanted - there),
    }


def tell_doubles(servers: Sequence[str], most: int = 12) -> None:
    """Prints, for duplicated records, the notes that name them, with the position and time of each note."""
    named: dict[tuple[int, int], str] = {}
    told: set[tuple[str, str]] = set()
    for partition in range(PARTITIONS[AUDIT]):
        for message in read_messages(servers, AUDIT, partition, "read_committed", SETTLE_S):
            of, *numbers = map(int, message.value().split())
            by = dict(message.headers() or ())["by"].decode()
            note = f"{AUDIT}-{partition}, offset {message.offset()}, {message.timestamp()[1]}: {by}"
            note += f": {len(numbers)} records of partition {of}, {numbers[0]} to {numbers[-1]}"
            for number in numbers:
                before = named.setdefault((of, number), note)
                if before is not note and (before, note) not in told and len(told) < most:
                    told.add((before, note))
                    print(f"twice: {number} of partition {of}\n  {before}\n  {note}", flush=True)


def tell_lost(
    source: Sequence[Sequence[bytes]],
    out: Sequence[Sequence[bytes]],
    rejected: Sequence[tuple[int, int]],
    most: int = 12,
) -> None:
    """Prints the numbers of lost records, and the offsets under which the members' traces list these records."""
    there = {place_of(value) for log in out for value in log} | set(rejected)
    for partition, log in enumerate(source):
        lost = [
            (offset, number)
            for offset, number in enumerate(int(value[:10]) for value in log)
            if (partition, number) not in there
        ]
        for offset, number in lost[:most]:
            print(f"lost: {number} of partition {partition}, about offset {offset}", flush=True)


def tell_traces(slots: Sequence[Slot]) -> None:
    """Prints the traces of all members in chronological order. With `--keep`, the traces are also in the members'
    folders.
    """
    lines = [
        (line, slot.name)
        for slot in slots
        for line in (slot.folder / "trace").read_text(errors="replace").splitlines()
    ]
    for line, name in sorted(lines, key=lambda each: float(each[0].split()[0])):
        print(f"{name} {line}", flush=True)


# --- the run ----------------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace, folder: Path) -> int:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A program that a shell starts in the background ignores SIGINT. Restore the handler: the members would inherit
        # this setting until they set their own handlers.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    rng = random.Random(f"{options.seed} run")
    assignor = options.assignor or rng.choice(ASSIGNORS)
    brokers = tuple(range(1, options.brokers + 1))
    config = {
        "group.min.session.timeout.ms": 1000,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    }
    print(f"seed {options.seed}, {assignor}{', naive' if options.naive else ''}", flush=True)
    with (
        FaultProxy(brokers) as proxy,
        KafkaCluster(
            brokers=len(brokers), proxy_ports=proxy.ports, config=config, start_timeout_s=180
        ) as cluster,
    ):
        proxy.connect(cluster)
        for topic, partitions in PARTITIONS.items():
            more = {"max.message.bytes": 100_000} if topic == OUT else {}
            cluster.create_topic(topic, partitions, min(3, len(brokers)), more)
        servers = ",".join(proxy.bootstrap_servers)
        until = time.monotonic() + options.seconds
        faults = Faults(cluster, proxy, random.Random(f"{options.seed} faults"), until)
        slots = []
        for number, (kind, static) in enumerate(MEMBERS):
            command = [sys.executable, str(MEMBER), "naive" if options.naive else kind, "--servers", servers]
            command += ["--assignor", assignor, *(["--static"] if static else [])]
            own = random.Random(f"{options.seed} {number}")
            more_of = [] if options.naive else ["--poison", "0.01", "--reopen", "0.005"]
            slots.append(Slot(folder / f"member-{number}-{kind}", command, more_of, own, until))
        feeder = Feeder(cluster.bootstrap_servers, folder, options.records, options.seconds * 0.9)
        watcher = Watcher(cluster.bootstrap_servers)
        threads = [*slots, faults, feeder]
        for thread in [*threads, watcher]:
            thread.start()
        for thread in threads:
            thread.join()
            if thread.failure is not None:
                raise thread.failure
        proxy.clear()
        cluster.recover()
        settled = settle(cluster, slots)
        watcher.over.set()
        watcher.join()
        cluster.wait_for_markers()
        source, out, audit = (read(cluster.bootstrap_servers, topic) for topic in PARTITIONS)
        tell_doubles(cluster.bootstrap_servers)
    rejected = [place for slot in slots for place in slot.rejected()]
    counts = judge(source, out, audit, rejected, notes=not options.naive)
    if (counts["lost"] or counts["twice"]) and not options.naive:
        tell_traces(slots)
    if counts["lost"] and not options.naive:
        tell_lost(source, out, rejected)
    counts["offsets back"] = len(watcher.back)
    counts["hung"] = len(settled) + sum(len(slot.wrong) for slot in slots)
    wrong = [*settled, *(f"{slot.name}: {what}" for slot in slots for what in slot.wrong), *watcher.back]
    return report(options, assignor, slots, {**faults.done}, counts, wrong)


def settle(cluster: KafkaCluster, slots: Sequence[Slot]) -> list[str]:
    """Lets the members run without faults until the group has read all records. Returns descriptions of violations."""
    ends = {TopicPartition(SOURCE, partition): -1 for partition in range(PARTITIONS[SOURCE])}
    children = [slot.start_member("--seconds", "100000") for slot in slots]
    wrong = []
    try:
        deadline = time.monotonic() + SETTLE_S
        with cluster.admin() as admin:
            for tp, each in admin.list_partition_offsets(dict.fromkeys(ends, -1)).items():
                ends[tp] = each.offset
            wanted = {tp: end for tp, end in ends.items() if end > 0}
            found: dict[TopicPartition, int] = {}
            while found != wanted:
                if time.monotonic() > deadline:
                    wrong.append(f"the group did not come to the end: {found}, not {wanted}")
                    for child in children:
                        child.send_signal(signal.SIGUSR1)
                    time.sleep(2)
                    break
                time.sleep(0.5)
                with contextlib.suppress(KafkaError):  # the group's coordinator moves
                    found = offsets_of(admin)
        for slot, child in zip(slots, children, strict=True):
            slot.end_member(child, "terminate")
    finally:
        for child in children:
            child.kill()
            child.wait()
    return wrong


def report(
    options: argparse.Namespace,
    assignor: str,
    slots: Sequence[Slot],
    faults: dict[str, int],
    counts: dict[str, int],
    wrong: Sequence[str],
) -> int:
    done: collections.Counter[str] = collections.Counter()
    books: collections.Counter[str] = collections.Counter()
    for slot in slots:
        done.update(slot.done)
        books.update(slot.books())
    about: dict[str, Any] = {
        "seed": options.seed,
        "assignor": assignor,
        "faults": faults,
        "members": dict(done),
        "books": dict(books),
        "counts": counts,
        "wrong": list(wrong),
    }
    for name in ("faults", "members", "books", "counts"):
        print(f"{name}: " + ", ".join(f"{what} {count:,}" for what, count in sorted(about[name].items())))
    bad = sum(counts[name] for name in WRONG)
    for each in wrong:
        print(each)
    print("0 lost, 0 twice, 0 out of order, nothing hung" if not bad else f"{bad} VIOLATIONS", flush=True)
    if options.json:
        with options.json.open("a") as file:
            file.write(json.dumps(about) + "\n")
    return int(bool(bad))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=30_000)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long faults are caused")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--assignor", choices=ASSIGNORS, help="default: the seed chooses one")
    parser.add_argument(
        "--naive", action="store_true", help="the control: a program that commits by itself, which must fail"
    )
    parser.add_argument("--keep", type=Path, help="work in this directory and leave it there")
    parser.add_argument("--json", type=Path, help="append the result to this file, as one line")
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True)
        sys.exit(run(options, options.keep.resolve()))
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(run(options, Path(scratch).resolve()))


if __name__ == "__main__":
    main()
