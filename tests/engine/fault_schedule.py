"""What happens to a producer in a storm, whatever it delivers: the faults, the end of a process, and the calm after it."""

from __future__ import annotations

import random
from collections.abc import Mapping

from virtual import World


class FaultSchedule:
    """One schedule; what is sent and promised in it is the subclass's.

    Attributes:
        parcels: What was handed over and has no end yet, as the subclass keeps it, the parcel first.
        faults: What may happen.
    """

    patience_s = 600.0
    """So long it may take until all is delivered."""
    late_s = 10.0
    """After that whatever is late has come."""

    def __init__(self, seed: int, topics: Mapping[str, int], version: str, **options) -> None:
        self.rng = random.Random(seed)
        self.world = World(brokers=3, version=version, broker_session_timeout_ms=3000)
        self.world.cluster.stragglers = self.rng
        for name, partitions in topics.items():
            self.world.centre.create_topic(name, partitions)
        self.options = {"retry_backoff_ms": 100, **options}
        self.life = self.world.start(**self.options)
        self.parcels = []
        self.killed = 0
        self.faults = [self.outage, self.swallow, self.disk, self.kill, self.leader, self.broker]

    def outage(self) -> None:
        self.world.set_outage(not self.world.outage)

    def swallow(self) -> None:
        self.world.cluster.swallow = self.rng.randrange(1, 4)

    def disk(self) -> None:
        self.world.disk.fail(self.rng.choice(["writev", "sync_data"]), times=self.rng.randrange(1, 3))

    def leader(self) -> None:
        numbers = self.world.centre.topics["orders"].partitions
        found = self.world.centre.partition("orders", self.rng.randrange(len(numbers)))
        if found.leader >= 0:
            serving = [node for node in found.in_sync if self.world.centre.serves(node)]
            found.lead(self.rng.choice(serving or [found.leader]))

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
        for each in self.parcels:
            self.noted(*each)
        self.parcels = [each for each in self.parcels if not each[0].done]

    def noted(self, parcel, *what) -> None:
        """What of one parcel is promised by now."""
        raise NotImplementedError

    def calm(self) -> None:
        self.world.cluster.swallow = 0
        self.world.set_outage(False)
        self.world.disk.heal()
        for node in self.world.centre.brokers:
            self.world.cluster.start(node)

        def over() -> bool:
            return not self.life.inbox and not any(
                lane.journal.views.unfinished for lane in self.life.context.lanes
            )

        assert self.world.run(self.patience_s, over), "it does not come to an end"
        self.world.run(self.late_s)
        self.note()
