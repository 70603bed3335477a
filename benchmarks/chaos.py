"""Runs producers and consumers under all kinds of faults for minutes, then counts lost, duplicated and reordered
records.

    python benchmarks/chaos.py [--minutes 10] [--seed N] [--keep DIR] [--json FILE]

Five programs run in separate processes (benchmarks/chaos_clients.py). The harness restarts each program that has ended
(also after a kill).

- `plain` sends numbered records to four topics, and one of these is deleted and created again;
- `staged` sends with `delivery="transactional"`, and sends atomic batches to two topics;
- `member-1` and `member-2`, a consumer group, copy the topic `plain` to another one, in up to ten concurrent atomic
  batches, which contain the group's offsets;
- `mover` sends to an address that leads to one cluster at first, and to another one later.

Meanwhile the harness causes faults, determined by the seed (`--seed`).

- a process ends by SIGKILL, by SIGTERM (whose handler calls `close()`), by SIGINT (whose handler calls `flush()`), or
  without `close()`; the signals may interrupt any call; a process is also stopped (SIGSTOP) for up to ten seconds;
- the spool directory of a running process (except `mover`) is moved or deleted, or its segments are deleted; or the
  symbolic link to the directory is switched to another one, as in a deployment, and `kafkasafe spool drain` delivers
  the records in the old directory;
- brokers are killed, are paused, lose the leadership of a partition, or are all killed together;
- answers are lost after the broker has appended, and connections are cut;
- the permission to write to a topic is revoked and granted again (code 29 in answers to Produce and Metadata).

At the end all faults are repaired, the programs deliver the records in their spools, and confluent-kafka reads every
topic. In each partition, the numbers must ascend without duplicates. No number that was reported as durable may be
missing, and no number that `send()` refused may be in the log. A number of an atomic batch must be in both of its
topics or in neither. The copy of `plain` must have the original's records in the same order. Each record of `mover`
must be in one of the two clusters, once. In the recreated topic, records may be missing, but duplicates and order are
checked.

Records that were durable before a fault of the spool directory count, too: the process continues at least until it has
reported again that all its records are durable. The exit code is 0 if all these checks succeed and no process hung.
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
"""Time within which a process must end, or make all records durable again; after that, it counts as hung."""
STEADY = tuple(topic for topic in TOPICS["plain"] if topic != RECREATED)
STAGED = (*TOPICS["staged"], COPY)
CLIENTS = Path(__file__).with_name("chaos_clients.py")


class Program(threading.Thread):
    """Starts a program, disturbs it, ends it, and starts it again.

    Args:
        role: The role in chaos_clients.py.
        folder: Directory of its ledgers and its spool.
        servers: Its bootstrap servers.
        rng: The program's own random numbers.
        until: Time of `time.monotonic()` after which the program is not started again.
        options: Further arguments of the command line.

    Attributes:
        lives: How often the program's processes were disturbed or ended, by kind.
        wrong: Descriptions of violations.
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
        """Starts a last process, which delivers the remaining records."""
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
            # At the end of the program, close() may take long, because it waits as long as records are delivered.
            child.wait(2 * SETTLE_S if how == "leave" else HANG_S)
        except subprocess.TimeoutExpired:
            self._say(f"hung after {how}")
            child.send_signal(signal.SIGUSR1)
            time.sleep(1)  # the printed stacks show what the process waits for
            self._print_log()
        # A signal that arrives before the process has set its handlers ends the process directly. If Python's own start
        # is interrupted (`init_import_site`), the exit code is 1.
        started = number_in(self.folder / "open") == child.pid
        expected = {None, 0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
        if child.returncode not in (expected if started or how != "interrupt" else {*expected, 1}):
            self._say(f"a life ended with exit code {child.returncode} ({how})")
            self._print_log()

    # --- its directory ------------------------------------------------------------------------------------------

    def _disturb(self, child: subprocess.Popen[bytes]) -> Path | None:
        """Disturbs the spool directory, and waits until all records are durable again. After a switch, returns the old
        one.
        """
        kind = self._rng.choice(OF_DIRECTORIES)
        if self.role == "mover":
            # Delete no files of `mover`: at the first contact with the other cluster its producer ends, but its process
            # continues, and no open producer would write the deleted records again.
            return None
        # Wait until a process has opened the spool: it cannot restore files that are deleted earlier, and would report
        # the loss and end.
        deadline = time.monotonic() + HANG_S
        while number_in(self.folder / "open") != child.pid:
            if child.poll() is not None or time.monotonic() > deadline:
                return None
            time.sleep(0.02)
        spool = (self.folder / "spool").resolve()
        self.lives[kind] += 1
        moved = self.folder / "spool-elsewhere"  # not a topic's name: ledgers are in this folder
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
                # The process ended before it could write the records again, so the deletion by the harness has lost
                # them.
                self._say(f"a life ended before it was durable again ({kind})")
                break
            if time.monotonic() > deadline:
                self._say(f"not durable again within {HANG_S:g} s ({kind})")
                break
            time.sleep(0.02)
        shutil.rmtree(moved, ignore_errors=True)
        return None

    def _link_new(self) -> None:
        """Lets the link `spool` lead to a new directory, in one atomic step."""
        target, link = self.folder / f"spool-{next(self._made)}", self.folder / "spool"
        target.mkdir()
        (self.folder / "link").symlink_to(target)
        (self.folder / "link").rename(link)

    def _drain(self, spool: Path) -> None:
        """Delivers the records in the old directory before the next process sends. Tries repeatedly, because faults
        continue.
        """
        if not (spool / "FORMAT").exists():
            return  # no process has opened this directory
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

    def _print_log(self) -> None:
        """Prints the end of the log, because the folder of the run may be removed."""
        print((self.folder / "lives.log").read_text(errors="replace")[-5000:], flush=True)

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
        """Revokes the permission to write for a while. Metadata answers report this at random."""
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
        # A producer with records for the topic may have caused the broker to create it already.
        with contextlib.suppress(TopicAlreadyExistsError):
            self.cluster.create_topic(RECREATED, PARTITIONS, 3)


class Switch(threading.Thread):
    """Switches the address of `mover` between two clusters, and restarts their brokers now and then."""

    def __init__(
        self, address: TcpProxy, clusters: Sequence[KafkaCluster], rng: random.Random, until: float
    ) -> None:
        super().__init__(name="switch")
        self.address, self.clusters, self.rng, self.until = address, clusters, rng, until
        self.done: collections.Counter[str] = collections.Counter()
        self.failure: BaseException | None = None
        self.lead_to(0)

    def lead_to(self, number: int) -> None:
        """Cuts all connections, so that new connections lead to this cluster."""
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
    """Returns the numbers in each partition, in the log's order, as librdkafka's consumer reads them."""
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
    """Compares a copy with the original, partition by partition: records and order must be the same."""
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
        # A program that a shell starts in the background ignores SIGINT. Restore the handler: child processes would
        # inherit this setting until they set their own handlers.
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
    """Lets the last processes deliver the remaining records, then reads and counts all records."""
    plain.finish()
    staged.finish()
    for where in (0, 1):  # waiting records are for one of the two clusters, so try both
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
        switch.lead_to(where)  # both clusters advertise the same address
        moved += read(each.bootstrap_servers, "moved")
    results["two clusters"] = judge(moved, Ledger(mover.folder / "moved"))
    results[f"{SOURCE}, copied"] = copied(cluster, members)
    return results


def copied(cluster: KafkaCluster, members: Sequence[Program]) -> dict[str, int]:
    """Lets the members run until the copy is complete, or no record has been added for a while."""
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
