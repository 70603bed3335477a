"""The real engine in seeded storms, in virtual time: outages, lost answers, late requests, leaders that change, disks that
fail, crashes of the process and of the machine. What was durable is in the log once, in order, when it is over.
"""

from __future__ import annotations

import pytest
from fault_schedule import FaultSchedule

PARTITIONS = 2


class Storm(FaultSchedule):
    """One schedule.

    Attributes:
        durable: By partition, the values that were on disk or delivered before the process or the machine went down.
        sent: By partition, all values, in the order in which they were accepted.
    """

    def __init__(self, seed: int, **options) -> None:
        super().__init__(seed, {"orders": PARTITIONS}, "4.3.0", **options)
        self.sent = {number: [] for number in range(PARTITIONS)}
        self.durable = {number: set() for number in range(PARTITIONS)}

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

    def noted(self, parcel, number: int, values: list[bytes]) -> None:
        if parcel.durable or (parcel.done and parcel.error is None):
            self.durable[number].update(values)

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
