"""The real engine in seeded storms, in virtual time: outages, lost answers, late requests, leaders that change, disks that
fail, crashes of the process and of the machine. What was durable is in the log once, in order, when it is over.
"""

from __future__ import annotations

import random

import pytest
from virtual import World

PARTITIONS = 2


class Storm:
    """One schedule.

    Attributes:
        durable: By partition, the values that were on disk or delivered before the process or the machine went down.
        sent: By partition, all values, in the order in which they were accepted.
    """

    def __init__(self, seed: int, **options) -> None:
        self.rng = random.Random(seed)
        self.world = World(brokers=3, broker_session_timeout_ms=3000)
        self.world.cluster.stragglers = self.rng
        self.world.centre.create_topic("orders", PARTITIONS)
        self.options = {"retry_backoff_ms": 100, **options}
        self.life = self.world.start(**self.options)
        self.parcels = []
        self.sent = {number: [] for number in range(PARTITIONS)}
        self.durable = {number: set() for number in range(PARTITIONS)}
        self.killed = 0
        self.faults = [self.outage, self.swallow, self.disk, self.kill, self.leader, self.broker]

    def blow(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choice([*[self.send] * 3, *[self.wait] * 2, *self.faults])()
        self.calm()

    def send(self) -> None:
        for _ in range(self.rng.randrange(1, 9)):
            number = self.rng.randrange(PARTITIONS)
            values = [b"%d" % (len(self.sent[number]) + i) for i in range(self.rng.randrange(1, 4))]
            self.sent[number] += values
            self.parcels.append((self.life.send("orders", number, values), number, values))

    def wait(self) -> None:
        self.world.run(self.rng.choice([0.0005, 0.0015, 0.01, 0.1, 1, 7]))

    def outage(self) -> None:
        self.world.set_outage(not self.world.outage)

    def swallow(self) -> None:
        self.world.cluster.swallow = self.rng.randrange(1, 4)

    def disk(self) -> None:
        self.world.disk.fail(self.rng.choice(["writev", "sync_data"]), times=self.rng.randrange(1, 3))

    def leader(self) -> None:
        found = self.world.centre.partition("orders", self.rng.randrange(PARTITIONS))
        if found.leader >= 0:
            found.lead(
                self.rng.choice(
                    [node for node in found.in_sync if self.world.centre.serves(node)] or [found.leader]
                )
            )

    def broker(self) -> None:
        node = self.rng.choice(list(self.world.centre.brokers))
        if self.world.centre.serves(node):
            self.world.cluster.kill(node)
        else:
            self.world.cluster.start(node)

    def kill(self) -> None:
        self.note()
        self.world.disk.heal()
        self.world.kill(self.life, power=self.rng.random() < 0.5, seed=self.rng.randrange(1000))
        self.killed += 1
        self.life = self.world.start(**self.options)

    def note(self) -> None:
        """What is promised by now. What is not may be lost with the process."""
        for parcel, number, values in self.parcels:
            if parcel.durable or (parcel.done and parcel.error is None):
                self.durable[number].update(values)
        self.parcels = [each for each in self.parcels if not each[0].done]

    def calm(self) -> None:
        self.world.cluster.swallow = 0
        self.world.set_outage(False)
        self.world.disk.heal()
        for node in self.world.centre.brokers:
            self.world.cluster.start(node)

        def over() -> bool:
            return not self.life.inbox and not any(lane.journal.unfinished for lane in self.life.ground.lanes)

        assert self.world.run(600, over), "it does not come to an end"
        self.world.run(10)  # whatever is late
        self.note()

    def check(self) -> None:
        for number in range(PARTITIONS):
            log = self.world.log("orders", number)
            assert len(log) == len(set(log)), "a record is twice in the log"
            missing = self.durable[number] - set(log)
            assert not missing, f"promised and not there: {sorted(missing)}"
            places = {value: at for at, value in enumerate(self.sent[number])}
            order = [places[value] for value in log]
            assert order == sorted(order), "not in the order in which they were accepted"


@pytest.mark.parametrize("seed", range(25))
def test_what_was_durable_is_in_the_log_once_and_in_order(seed):
    storm = Storm(seed)
    storm.blow(40)
    try:
        storm.check()
    except AssertionError as error:
        error.add_note("\n".join(storm.world.lines[-400:]))
        raise


def test_a_storm_with_the_same_seed_is_the_same_storm():
    runs = []
    for _ in range(2):
        storm = Storm(5)
        storm.blow(40)
        runs.append(storm.world.lines)
    assert runs[0] == runs[1]
    assert len(runs[0]) > 50
