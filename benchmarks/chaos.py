"""Everything at once, for minutes, and a count of what is left.

    python benchmarks/chaos.py [--minutes 10] [--seed N] [--keep DIR] [--json FILE]

Five programs, each in a process of its own, each started again whenever it ends (benchmarks/chaos_clients.py):

- `plain` sends numbered records to four topics, and one of these is deleted and created again;
- `staged` sends with `delivery="transactional"`, and atomic batches over two topics;
- `member-1` and `member-2`, a consumer group, copy the topic `plain` to another one: ten atomic batches under way,
  the group's offsets in them;
- `mover` sends to an address that leads to one cluster today and to another one tomorrow.

Meanwhile, drawn by the seed:

- a process ends by SIGKILL, by SIGTERM with a handler that calls `close()`, by SIGINT with a handler that calls
  `flush()`, both in the middle of any call, or without `close()`; it is stopped (SIGSTOP) for up to ten seconds;
- its spool's directory (but not that of `mover`) is moved away, deleted, or emptied of its segments, while it lives;
  or the symbolic link that it was opened by leads to another directory, as a deploy does, and the old one is drained
  by `kafkasafe spool drain`;
- brokers are killed, paused, relieved of their leadership, and all killed together;
- answers are lost after the broker appended, connections are cut;
- the right to write to a topic goes away and comes back (code 29 in answers to Produce and Metadata).

At the end all is healed, the programs deliver what their spools have, and confluent-kafka reads every topic. For each
partition: no number twice, numbers ascending, no promised number missing, none that `send()` had refused. A number of
an atomic batch is in both its topics or in none. The copy has what the original has, in the same order. A record of
`mover` is in one of the two clusters, once. Of the recreated topic the records of its earlier incarnations are not
missed; duplicates and order count there too.

A promise that was made before a fault of the directory counts as well: the process lives until it has said once more
that all is durable. The exit code is 0 if all of that holds and no process hung.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chaos_clients import COPY, DERIVED, PARTITIONS, RECORDS, RECREATED, SETTLE_S, SOURCE, TOPICS, number_in
from cluster_faults import ClusterFaults, read_values
from kafka.errors import TopicAlreadyExistsError

from kafkasafe.demo.ledger import Ledger
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy
from kafkasafe.testing.tcp_proxy import TcpProxy

ENDS = ("kill", "kill", "kill", "terminate", "terminate", "interrupt", "leave")
OF_DIRECTORIES = ("move", "delete", "empty", "switch")
HANG_S = 90.0
"""A process that was told to end, or to make a directory's content durable again, has hung after so long."""
STEADY = tuple(topic for topic in TOPICS["plain"] if topic != RECREATED)
STAGED = (*TOPICS["staged"], COPY)
CLIENTS = Path(__file__).with_name("chaos_clients.py")


class Program(threading.Thread):
    """One program: starts it, disturbs it, ends it, and starts it again.

    Args:
        role: Of chaos_clients.py.
        folder: Its books and its spool.
        servers: The address that it is given.
        rng: Its own.
        until: When it is not started any more, `time.monotonic()`.
        options: More of the command line.

    Attributes:
        lives: How its lives ended, and what was done to them.
        wrong: What must not have happened.
    """

    def __init__(
        self,
        role: str,
        folder: Path,
        servers: Sequence[str],
        rng: random.Random,
        until: float,
        *options: str,
    ) -> None:
        super().__init__(name=folder.name)
        self.role, self.folder, self.servers, self.until = role, folder, list(servers), until
        self.lives: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.failure: BaseException | None = None
        self._rng, self._options = rng, options
        self._made = itertools.count(1)
        folder.mkdir()
        for topic in TOPICS.get(role, ()):
            Ledger(folder / topic, RECORDS)
        self._link_new()

    def run(self) -> None:
        try:
            while time.monotonic() < self.until:
                self._live()
        except BaseException as error:
            self.failure = error

    def finish(self) -> None:
        """A last life delivers what is left."""
        last = self._start("--drain", "--seconds", "0")
        if last.wait(SETTLE_S + 60):
            self._say("the last life did not deliver everything")

    # --- one life -----------------------------------------------------------------------------------------------

    def _live(self) -> None:
        how = self._rng.choice(ENDS)
        seconds = self._rng.uniform(1, 15)
        child = self._start(*(("--seconds", str(seconds + 5)) if how == "leave" else ()))
        began = time.monotonic()
        old = None
        try:
            if self._rng.random() < 0.25:
                time.sleep(self._rng.uniform(1, 5))
                old = self._disturb(child)
            if self._rng.random() < 0.2:
                self.lives["paused"] += 1
                child.send_signal(signal.SIGSTOP)
                time.sleep(self._rng.uniform(0, 10))
                child.send_signal(signal.SIGCONT)
            if how != "leave":
                time.sleep(max(0.0, seconds - (time.monotonic() - began)))
            self._end(child, how)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        if old is not None:
            self._drain(old)

    def _start(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(CLIENTS), self.role, "--folder", str(self.folder)]
        command += ["--servers", ",".join(self.servers), "--seed", str(self._rng.getrandbits(31))]
        with (self.folder / "lives.log").open("ab") as output:
            return subprocess.Popen([*command, *self._options, *options], stdout=output, stderr=output)

    def _end(self, child: subprocess.Popen[bytes], how: str) -> None:
        match how:
            case "kill":
                child.kill()
            case "terminate":
                child.terminate()
            case "interrupt":
                child.send_signal(signal.SIGINT)
        self.lives[how] += 1
        try:
            # At the end of a program close() delivers what waits, as long as it makes progress.
            child.wait(2 * SETTLE_S if how == "leave" else HANG_S)
        except subprocess.TimeoutExpired:
            self._say(f"hung after {how}")
            child.send_signal(signal.SIGUSR1)
            time.sleep(1)
        # A signal before the handlers are there ends the process as such.
        if child.returncode not in {None, 0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}:
            self._say(f"a life ended with exit code {child.returncode} ({how})")

    # --- its directory ------------------------------------------------------------------------------------------

    def _disturb(self, child: subprocess.Popen[bytes]) -> Path | None:
        """Disturbs the spool's directory and waits until all is durable again; returns the old one of a switch."""
        kind = self._rng.choice(OF_DIRECTORIES)
        if self.role == "mover":
            # At the first contact with the other cluster its producer ends, and its process goes on. What is deleted
            # then is lost, as whatever is deleted while no producer is there.
            return None
        # What is deleted before a process has opened it is lost, and the process says so and ends.
        deadline = time.monotonic() + HANG_S
        while number_in(self.folder / "open") != child.pid:
            if child.poll() is not None or time.monotonic() > deadline:
                return None
            time.sleep(0.02)
        spool = (self.folder / "spool").resolve()
        self.lives[kind] += 1
        moved = self.folder / "spool-elsewhere"  # not the name of a topic, whose book is in here
        match kind:
            case "move":
                spool.rename(moved)
            case "delete":
                shutil.rmtree(spool, ignore_errors=True)
            case "empty":
                for segment in spool.glob("lane-*/*.log"):
                    segment.unlink(missing_ok=True)
            case "switch":
                self._link_new()
                return spool
        fault = number_in(self.folder / "fault") + 1
        (self.folder / "fault").write_text(str(fault))
        deadline = time.monotonic() + HANG_S
        while number_in(self.folder / "seen") < fault:
            if child.poll() is not None:
                # It left before it could say so: what the directory held is gone by the hand of its operator.
                self._say(f"a life ended before it was durable again ({kind})")
                break
            if time.monotonic() > deadline:
                self._say(f"not durable again within {HANG_S:g} s ({kind})")
                break
            time.sleep(0.02)
        shutil.rmtree(moved, ignore_errors=True)
        return None

    def _link_new(self) -> None:
        """`spool` leads to a new directory, in one step."""
        target, link = self.folder / f"spool-{next(self._made)}", self.folder / "spool"
        target.mkdir()
        (self.folder / "link").symlink_to(target)
        (self.folder / "link").rename(link)

    def _drain(self, spool: Path) -> None:
        """What the old directory still has goes before what the next life sends; in many attempts, amid faults."""
        if not (spool / "FORMAT").exists():
            return  # no life had begun there
        command = [str(Path(sys.executable).with_name("kafkasafe")), "spool", "drain", str(spool)]
        deadline = time.monotonic() + 4 * SETTLE_S
        while True:
            done = subprocess.run(
                [*command, "-b", ",".join(self.servers), "--timeout", f"{HANG_S:g}s"],
                capture_output=True,
                text=True,
                check=False,
                timeout=3 * HANG_S,
            )
            if done.returncode == 0:
                return
            if time.monotonic() > deadline:
                self._say(f"drain of the old directory: {done.returncode} {done.stdout} {done.stderr}")
                return
            time.sleep(1)

    def _say(self, what: str) -> None:
        self.wrong.append(what)
        print(f"{self.name}: {what}; see {self.folder}/lives.log", flush=True)


# --- faults -----------------------------------------------------------------------------------------------------------


class Faults(ClusterFaults):
    """Faults of the first cluster."""

    @property
    def kinds(self) -> Sequence[Callable[[], None]]:
        often: tuple[Callable[[], None], ...] = (
            self.kill_broker,
            self.pause_broker,
            self.move_leader,
            self.lose_answers,
            self.cut,
            self.forbid,
        )
        return (*often, *often, self.kill_all_brokers, self.recreate)

    def kill_all_brokers(self) -> None:
        self.cluster.kill_all()
        time.sleep(self.rng.uniform(0, 5))
        self.cluster.start_all()

    def move_leader(self) -> None:
        self.cluster.move_leader(self.rng.choice((*STEADY, *STAGED, DERIVED)), self.rng.randrange(PARTITIONS))

    def lose_answers(self) -> None:
        self.drop_answers(("Produce", "Produce", "EndTxn", "TxnOffsetCommit", "InitProducerId"), 8)

    def forbid(self) -> None:
        """The right to write comes and goes, with or without Metadata that say so."""
        topic = self.rng.choice((*STEADY, "staged"))
        rules = [self.proxy.on("Produce", topic=topic).answer_without_forwarding(29)]
        if self.rng.random() < 0.5:
            rules.append(self.proxy.on("Metadata", topic=topic).answer(29, level="topic"))
        time.sleep(self.rng.uniform(0.2, 4))
        for rule in rules:
            rule.remove()

    def recreate(self) -> None:
        with self.cluster.admin() as admin:
            admin.delete_topics([RECREATED])
        time.sleep(self.rng.uniform(0, 3))
        # A producer with records for it may have had the broker make it already.
        with contextlib.suppress(TopicAlreadyExistsError):
            self.cluster.create_topic(RECREATED, PARTITIONS, 3)


class Switch(threading.Thread):
    """The address of `mover` leads to one of two clusters, and their brokers restart now and then."""

    def __init__(
        self, address: TcpProxy, clusters: Sequence[KafkaCluster], rng: random.Random, until: float
    ) -> None:
        super().__init__(name="switch")
        self.address, self.clusters, self.rng, self.until = address, clusters, rng, until
        self.done: collections.Counter[str] = collections.Counter()
        self.failure: BaseException | None = None
        self.lead_to(0)

    def lead_to(self, number: int) -> None:
        """New connections, and there are no others, go there."""
        self.here = number
        _, self.address.target_port = self.clusters[number].client_address(1)
        self.address.cut()

    def run(self) -> None:
        try:
            while time.monotonic() < self.until:
                time.sleep(self.rng.uniform(2, 25))
                if self.rng.random() < 0.5:
                    self.lead_to(1 - self.here)
                    self.done["switched"] += 1
                else:
                    self.clusters[self.rng.randrange(2)].restart(1, hard=self.rng.random() < 0.5)
                    self.done["restarted"] += 1
        except BaseException as error:
            self.failure = error


# --- the count --------------------------------------------------------------------------------------------------------


def read(servers: Sequence[str], topic: str, level: str = "read_uncommitted") -> list[list[int]]:
    """Numbers by partition, in the log's order, as librdkafka's consumer sees them."""
    logs = read_values(servers, topic, PARTITIONS, level, 120)
    return [[int(value[:12]) for value in log] for log in logs]


def judge(logs: list[list[int]], book: Ledger, *, recreated: bool = False) -> dict[str, int]:
    every = [number for log in logs for number in log]
    there = set(every)
    numbers = range(book.next_number())
    durable, refused = book["durable"], book["failed"]
    promised = {number for number in numbers if durable[number]}
    return {
        "attempted": len(numbers),
        "promised": len(promised),
        "in the log": len(every),
        "lost": 0 if recreated else len(promised - there),
        "twice": len(every) - len(there),
        "out of order": sum(a > b for log in logs for a, b in itertools.pairwise(log)),
        "refused, yet there": sum(bool(refused[number]) for number in there),
    }


def compare(original: list[list[int]], copy: list[list[int]]) -> dict[str, int]:
    """The copy has the records of the original, in their order, partition by partition."""
    counts: collections.Counter[str] = collections.Counter()
    for source, derived in zip(original, copy, strict=True):
        there = set(derived)
        counts["attempted"] += len(source)
        counts["promised"] += len(source)
        counts["in the log"] += len(derived)
        counts["lost"] += len(set(source) - there)
        counts["twice"] += len(derived) - len(there)
        counts["out of order"] += sum(a > b for a, b in itertools.pairwise(derived))
        counts["refused, yet there"] += len(there - set(source))
    return dict(counts)


# --- the run ----------------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace, folder: Path) -> int:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell starts jobs in the background. A life would not notice a signal before it has its handlers.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    made = {
        "num.partitions": PARTITIONS,
        "default.replication.factor": 3,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    }
    with (
        FaultProxy((1, 2, 3)) as proxy,
        TcpProxy() as address,
        KafkaCluster(brokers=3, proxy_ports=proxy.ports, config=made) as cluster,
        KafkaCluster(brokers=1, proxy_ports={1: address.port}) as first,
        KafkaCluster(brokers=1, proxy_ports={1: address.port}) as second,
    ):
        proxy.connect(cluster)
        settings = {
            "gzipped": {"compression.type": "gzip"},
            "stamped": {"message.timestamp.type": "LogAppendTime"},
        }
        for topic in (*TOPICS["plain"], *STAGED, DERIVED):
            cluster.create_topic(topic, PARTITIONS, 3, settings.get(topic, {}))
        for each in (first, second):
            each.create_topic(TOPICS["mover"][0], PARTITIONS, 1)
        until = time.monotonic() + options.minutes * 60
        servers = proxy.bootstrap_servers

        def program(role: str, name: str, where: Sequence[str], *more: str) -> Program:
            return Program(role, folder / name, where, random.Random(f"{options.seed} {name}"), until, *more)

        plain = program("plain", "plain", servers, "--burst", "10")
        staged = program("staged", "staged", servers, "--burst", "10")
        mover = program("mover", "mover", [f"127.0.0.1:{address.port}"], "--burst", "20")
        members = [program("member", f"member-{number}", servers) for number in (1, 2)]
        programs = [plain, staged, mover, *members]
        faults = Faults(cluster, proxy, random.Random(f"{options.seed} faults"), until)
        switch = Switch(address, (first, second), random.Random(f"{options.seed} switch"), until)
        threads = [*programs, faults, switch]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
            if thread.failure is not None:
                raise thread.failure
        proxy.clear()
        cluster.recover()
        results = settle(cluster, (first, second), switch, plain, staged, mover, members)
    return report(options, programs, {**faults.done, **switch.done}, results)


def settle(
    cluster: KafkaCluster,
    others: Sequence[KafkaCluster],
    switch: Switch,
    plain: Program,
    staged: Program,
    mover: Program,
    members: Sequence[Program],
) -> dict[str, dict[str, int]]:
    """The last lives deliver what is left; then everything is read and counted."""
    plain.finish()
    staged.finish()
    for where in (0, 1):  # what waits is for one of them, or both have it all
        switch.lead_to(where)
        last = mover._start("--drain", "--seconds", "0")
        if last.wait(SETTLE_S) and where:
            print(
                f"mover: the last lives did not deliver everything: see {mover.folder}/lives.log", flush=True
            )
            mover.wrong.append("not delivered")
    servers = cluster.bootstrap_servers
    results = {
        topic: judge(read(servers, topic), Ledger(plain.folder / topic), recreated=topic == RECREATED)
        for topic in TOPICS["plain"]
    }
    cluster.wait_for_markers()
    committed = {topic: read(servers, topic, "read_committed") for topic in STAGED}
    for topic in TOPICS["staged"]:
        results[topic] = judge(committed[topic], Ledger(staged.folder / topic))
    results[f"{COPY} beside pair"] = compare(committed["pair"], committed[COPY])
    moved: list[list[int]] = []
    for where, each in enumerate(others):
        switch.lead_to(where)  # both advertise the one address
        moved += read(each.bootstrap_servers, "moved")
    results["two clusters"] = judge(moved, Ledger(mover.folder / "moved"))
    results[f"{SOURCE}, copied"] = copied(cluster, members)
    return results


def copied(cluster: KafkaCluster, members: Sequence[Program]) -> dict[str, int]:
    """The members go on until the copy has everything, or nothing more comes."""
    original = read(cluster.bootstrap_servers, SOURCE)
    children = [member._start("--seconds", "100000") for member in members]
    try:
        deadline = time.monotonic() + SETTLE_S
        before = -1
        while True:
            cluster.wait_for_markers()
            counts = compare(original, read(cluster.bootstrap_servers, DERIVED, "read_committed"))
            if not counts["lost"] or (time.monotonic() > deadline and counts["lost"] == before):
                return counts
            before = counts["lost"]
            time.sleep(5)
    finally:
        for child in children:
            child.kill()
            child.wait()


def report(
    options: argparse.Namespace,
    programs: Sequence[Program],
    faults: dict[str, int],
    results: dict[str, dict[str, int]],
) -> int:
    print(f"seed {options.seed}, {options.minutes:g} minutes; faults {faults}")
    for each in programs:
        print(f"  {each.name}: {dict(each.lives)}")
    names = list(next(iter(results.values())))
    print(f"{'':22}" + "".join(f"{name:>20}" for name in names))
    for topic, counts in results.items():
        print(f"{topic:22}" + "".join(f"{counts[name]:>20,}" for name in names))
    wrong = [f"{each.name}: {what}" for each in programs for what in each.wrong]
    bad = len(wrong) + sum(
        counts[name]
        for counts in results.values()
        for name in ("lost", "twice", "out of order", "refused, yet there")
    )
    print("0 lost, 0 twice, 0 out of order, nothing hung" if not bad else f"{bad} VIOLATIONS", flush=True)
    if options.json:
        about = {"seed": options.seed, "minutes": options.minutes, "faults": faults, "wrong": wrong}
        lives: dict[str, Any] = {each.name: each.lives for each in programs}
        options.json.write_text(json.dumps({**about, "lives": lives, "topics": results}, indent=1) + "\n")
    return int(bool(bad))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--keep", type=Path, help="work in this directory and leave it there")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True)
        sys.exit(run(options, options.keep.resolve()))
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(run(options, Path(scratch).resolve()))


if __name__ == "__main__":
    main()
