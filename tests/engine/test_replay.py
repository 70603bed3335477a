"""Whatever happened to a journal: one that reads its log back remembers the same.

The histories here have clusters and topics that come and go. tests/simulation/test_replay.py compares the two in those of
the simulation.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from unittest import mock

import pytest
from memory import differences, is_written
from virtual import World

from kafkasafe.spool import lanes
from kafkasafe.testing.disk import DiskFiles

sys.path.insert(0, str(Path(__file__).parents[1] / "journal"))
import mutants

PARTITIONS = 2
STEPS = 40
HOME, OTHER = "fake-cluster", "other"


class History:
    """One producer after the other on a lane.

    Attributes:
        compared: How often the two were compared.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        version = rng.choice(["4.3.0", "4.3.0", "2.8.2"])
        self.world = World(brokers=3, version=version, auto_create_topics_enable="false")
        self.world.cluster.create_topic("orders", PARTITIONS)
        self.handlers: dict[str, dict] = {}
        self.options = {
            "retain_acked_bytes": rng.choice([0, 1 << 20]),
            "restore_recreated_topics": rng.choice([False, True]),
            "sizes": {"spool_segment_bytes": rng.choice([700, 2000, 4 << 20])},
        }
        self.life = self.world.start(**self.options)
        self.compared = 0

    def play(self) -> None:
        """Each step is one of these; after each the two are compared."""
        often = [self.send, self.wait] * 6 + [self.restart, self.elect] * 3 + [self.unit, self.swallow] * 2
        for _ in range(STEPS):
            step = self.rng.choice([*often, self.outage, self.lose, self.trim, self.move, self.delete])
            self.world.say(f"** {step.__name__}")
            step()
            for lane in self.life.context.lanes:
                if is_written(lane):
                    self.compared += 1
                    assert differences(self.world, lane) == []

    def send(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            self.life.send("orders", self.rng.randrange(PARTITIONS), [b"v"] * self.rng.randrange(1, 4))

    def unit(self) -> None:
        self.life.unit(
            *(("orders", number, [b"u"]) for number in range(self.rng.randrange(1, PARTITIONS + 1)))
        )

    def wait(self) -> None:
        self.world.run(self.rng.choice([0.0005, 0.0015, 0.01, 0.02, 0.1, 1.0, 7.0, 40.0]))

    def restart(self) -> None:
        self.world.kill(self.life, power=self.rng.random() < 0.5, seed=self.rng.randrange(1000))
        self.life = self.world.start(**self.options)

    def swallow(self) -> None:
        self.world.cluster.swallow = self.rng.randrange(1, 4)

    def outage(self) -> None:
        self.world.set_outage(not self.world.outage)

    def elect(self) -> None:
        found = self._partition()
        if found is not None:
            found.lead(self.rng.choice([found.leader, *found.in_sync]))
            self.world.centre.replicate()

    def lose(self) -> None:
        """An unclean election."""
        found = self._partition()
        if found is not None:
            end = self.rng.choice([0, *(batch.end_offset for batch in found.log.batches)])
            for log in found.logs.values():
                log.truncate(min(end, log.end_offset))
                log.high_watermark = min(log.high_watermark, end)
            found.lead(found.leader)
            self.world.centre.replicate()
            self.world.cluster.cut()

    def trim(self) -> None:
        found = self._partition()
        if found is not None:
            self.world.centre.delete_records(found.leader, "orders", found.number, found.log.high_watermark)

    def move(self) -> None:
        """The address leads to the other cluster. Where nothing waits, the producer goes with it."""
        self._drain()
        handler = self.world.cluster._handler
        self.handlers[self.world.cluster.cluster_id] = dict(vars(handler))
        name = OTHER if self.world.cluster.cluster_id == HOME else HOME
        self.world.cluster.replace(name)
        vars(handler).update(self.handlers.get(name, {}))
        self._create()

    def delete(self) -> None:
        """The topic is gone for a moment, or for so long that it is forgotten."""
        drained = self._drain()
        self.world.cluster.delete_topic("orders")
        self.world.run(self.rng.choice([0.01, 3.0, 700.0] if drained else [0.01, 3.0]))
        self._create()

    def _partition(self):
        topic = self.world.centre.topics.get("orders")
        return None if topic is None else topic.partitions[self.rng.randrange(PARTITIONS)]

    def _create(self) -> None:
        if "orders" not in self.world.centre.topics:
            self.world.cluster.create_topic("orders", PARTITIONS)

    def _drain(self) -> bool:
        """Sometimes all is delivered first. Whether it is."""
        if self.rng.random() < 0.5:
            self.world.set_outage(False)
            self.world.run(60.0, until=lambda: not self.life.context.own.journal.views.unfinished)
        return not self.life.context.own.journal.views.unfinished


def played(seed: int) -> History:
    with mock.patch("os.urandom", random.Random(seed).randbytes):
        history = History(seed)
        try:
            history.play()
        except BaseException as error:
            error.add_note("\n".join(history.world.lines[-200:]))
            raise
        finally:
            lanes.lock._lockable -= {each for each in lanes.lock._lockable if isinstance(each[0], DiskFiles)}
    return history


@pytest.mark.parametrize("chunk", range(4))
def test_a_log_read_back_says_what_the_living_journal_knows(chunk):
    assert sum(played(seed).compared for seed in range(chunk * 6, chunk * 6 + 6)) > 60


@pytest.mark.parametrize(
    "name", ["RemembersTheForgotten", "BelievesTheDirectory", "ForgetsCommitted", "RevivesWithoutMark"]
)
def test_a_mark_that_is_not_written_or_not_read_is_missed(name, monkeypatch):
    mutants.MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError, match=r"lives, .* was read"):
        list(map(played, range(24)))
