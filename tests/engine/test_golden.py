"""Golden transcripts: a script of what happens to a producer in, every message, write, request and end out.

Each file of tests/golden has blocks: commands, a line of dashes, what came of them. `REWRITE_GOLDEN=1 pytest
tests/engine/test_golden.py` writes what comes now into the files; read the difference before it is committed.

Commands:

    topic NAME [partitions=N] [setting=value ...]
    start [option=value ...]         a process opens the lowest lane that nobody owns
    send TOPIC PARTITION VALUE ...   one batch; `-` as partition: to be chosen
    run SECONDS                      time passes
    deliver SECONDS                  the same, until nothing waits
    outage on|off                    no broker can be reached
    swallow N                        so many Produce requests are done, and nobody hears of it
    kill [power]                     the oldest process ends in the middle (with power: the machine)
    lose TOPIC PARTITION OFFSET      the log ends there from now on, under a new leader epoch
    trim TOPIC PARTITION OFFSET      the log starts there from now on
    forget                           the brokers remember no producer
    replace CLUSTER_ID               another cluster answers at the same address: an empty one, or one that did before
    error                            what callers are told
    hold on|off                      followers take nothing: the high watermark stands still
    decide resend|skip               the user decides what cannot be known
    log TOPIC PARTITION              what readers see
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from virtual import World, tracing

from kafkasafe.delivery.engine.messages import Decided
from kafkasafe.spool.spool import Spool

GOLDEN = Path(__file__).parents[1] / "golden"


class Script:
    """Carries out commands in one world."""

    def __init__(self, monkeypatch) -> None:
        self.world = World(brokers=1)
        self.clusters: dict[str, dict] = {}
        for name, traced in tracing(self.world).items():
            monkeypatch.setattr(Spool, name, traced)

    def play(self, commands: list[str]) -> list[str]:
        self.world.lines = []
        for command in commands:
            name, *words = command.split()
            options = dict(word.split("=", 1) for word in words if "=" in word)
            words = [word for word in words if "=" not in word]
            getattr(self, f"do_{name}")(*words, **options)
        return self.world.lines

    @property
    def life(self):
        return self.world.lives[-1]

    def do_topic(self, name, partitions="1", **settings) -> None:
        self.world.centre.create_topic(
            name, int(partitions), settings={key.replace("_", "."): value for key, value in settings.items()}
        )

    def do_start(self, **options) -> None:
        self.world.start(**{key: int(value) if value.isdigit() else value for key, value in options.items()})

    def do_send(self, topic, partition, *values) -> None:
        self.life.send(topic, -1 if partition == "-" else int(partition), [v.encode() for v in values])

    def do_replace(self, cluster_id) -> None:
        handler = self.world.cluster._handler
        self.clusters[self.world.cluster.cluster_id] = dict(vars(handler))
        self.world.cluster.replace(cluster_id)
        vars(handler).update(self.clusters.get(cluster_id, {}))

    def do_error(self) -> None:
        self.world.say(f"wrong cluster: {self.life.engine.ledger.wrong_cluster}")

    def do_run(self, seconds) -> None:
        self.world.run(float(seconds))

    def do_deliver(self, seconds) -> None:
        def delivered() -> bool:
            lanes = [lane for life in self.world.lives for lane in life.context.lanes]
            return not any(
                lane.journal.views.unfinished or life.inbox for life in self.world.lives for lane in lanes
            )

        assert self.world.run(float(seconds), delivered), "not delivered in time"

    def do_outage(self, switch) -> None:
        self.world.set_outage(switch == "on")

    def do_swallow(self, count) -> None:
        self.world.cluster.swallow = int(count)

    def do_kill(self, what="") -> None:
        self.world.kill(self.world.lives[0], power=what == "power")

    def do_lose(self, topic, partition, offset) -> None:
        found = self.world.centre.partition(topic, int(partition))
        found.log.truncate(int(offset))
        found.log.high_watermark = min(found.log.high_watermark, int(offset))
        found.lead(found.leader)
        self.world.cluster.cut()

    def do_trim(self, topic, partition, offset) -> None:
        leader = self.world.centre.partition(topic, int(partition)).leader
        self.world.centre.delete_records(leader, topic, int(partition), int(offset))

    def do_forget(self) -> None:
        self.world.centre.forget_producers(None)

    def do_decide(self, how) -> None:
        decided = self.life.engine.ledger.errors.take_shown()
        self.life.inbox.append(Decided(decided, resend=how == "resend"))

    def do_log(self, topic, partition) -> None:
        self.world.say(
            " ".join(value.decode() for value in self.world.log(topic, int(partition))) or "(empty)"
        )


def blocks(text: str) -> list[tuple[list[str], str]]:
    """(commands with their comments, output) of each block."""
    found = []
    for block in re.split(r"\n\n+", text.strip()):
        commands, _, output = block.partition("\n----\n")
        found.append((commands.split("\n"), output.rstrip()))
    return found


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path, monkeypatch):
    script = Script(monkeypatch)
    played = []
    for commands, _ in blocks(path.read_text(encoding="utf-8")):
        lines = script.play([line for line in commands if line and not line.startswith("#")])
        output = "\n".join(lines)
        played.append("\n".join(commands) + (f"\n----\n{output}" if output else ""))
    text = "\n\n".join(played) + "\n"
    if os.environ.get("REWRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_there_are_transcripts():
    assert len(list(GOLDEN.glob("*.txt"))) >= 10
