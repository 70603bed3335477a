"""Units in seeded storms, in virtual time: whatever crashes, readers of committed records see each of them once, whole, in order.

Beside them go plain batches on the same partitions. Lost answers, requests that arrive late (an EndTxn among them),
transactions that time out, coordinators and leaders that go, disks that fail, crashes of the process and of the machine.
"""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

from fault_schedule import FaultSchedule

from kafkasafe import events
from kafkasafe.spool import lanes
from kafkasafe.testing.disk import DiskFiles

PARTITIONS = 3
PLACES = [("orders", 0), ("orders", 1), ("orders", 2), ("audit", 0), ("audit", 1)]
"""Partitions of "audit" are not chosen before the topic is heard of, in whatever life that is."""
TIMEOUT_MS = 8000


class Storm(FaultSchedule):
    """One schedule.

    Attributes:
        units: By name, the partitions that it has records in.
        durable: Names of what was on disk, or delivered, before the process or the machine went down.
        sent: By topic and partition, names in the order in which they were accepted.
        alarms: Losses that were reported. Leaders are in sync here, and nothing is ever lost.
    """

    patience_s = 900.0
    late_s = TIMEOUT_MS / 1000 + 10

    def __init__(self, seed: int, version: str = "4.3.0", **options) -> None:
        self.alarms = []
        options = {"transaction_timeout_ms": TIMEOUT_MS, "on_event": self._note_alarm, **options}
        super().__init__(seed, {"orders": PARTITIONS, "audit": 2}, version, **options)
        self.units = {}
        self.sent = {place: [] for place in PLACES}
        self.durable = set()
        self.faults.append(self.sleep)

    def _note_alarm(self, event: events.Event) -> None:
        if isinstance(event, (events.DataLost, events.SpoolRecordsMissing)):
            self.alarms.append(event)

    def blow(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choice([*[self.send] * 2, *[self.unit] * 3, *[self.wait] * 3, *self.faults])()
        self.calm()

    def _name(self) -> bytes:
        return b"%d" % sum(map(len, self.sent.values()))

    def send(self) -> None:
        number, name = self.rng.randrange(-1, PARTITIONS), b"p" + self._name()
        part = self._audit(name) if number < 0 else ("orders", number, [name])
        places = self._note(part)
        if self.options.get("delivery") == "transactional":
            # As the producer does it: each batch is a unit.
            self.units[name] = places
            self.parcels.append((self.life.unit(part, joins=part[0])[0], [name]))
        else:
            self.parcels.append((self.life.send(*part), [name]))

    def _audit(self, name: bytes) -> tuple[str, int, list[bytes]]:
        """One record, or one for each partition."""
        return "audit", -1, [name] * self.rng.randrange(1, 3)

    def _note(self, part: tuple[str, int, list[bytes]]) -> set[tuple[str, int]]:
        topic, number, values = part
        places = {(topic, number)} if number >= 0 else {(topic, at) for at in range(len(values))}
        for place in places:
            self.sent[place].append(values[0])
        return places

    def unit(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            numbers = self.rng.sample(range(-1, PARTITIONS), self.rng.randrange(1, PARTITIONS + 1))
            name = b"u" + self._name()
            parts = [self._audit(name) if number < 0 else ("orders", number, [name]) for number in numbers]
            self.units[name] = set().union(*map(self._note, parts))
            parcels = self.life.unit(*parts)
            self.parcels.append((parcels[0], [name]))

    def wait(self) -> None:
        self.world.run(self.rng.choice([0.0005, 0.0015, 0.004, 0.01, 0.02, 0.1, 1, 7]))

    def sleep(self) -> None:
        self.world.run(TIMEOUT_MS / 1000 + 3)

    def noted(self, parcel, names: list[bytes]) -> None:
        assert parcel.error is None, parcel.error
        if parcel.durable or parcel.done:
            self.durable.update(names)

    def check(self) -> None:
        assert not self.alarms, f"nothing was lost here: {self.alarms}"
        logs = {place: self.world.committed(*place) for place in PLACES}
        for place, log in logs.items():
            assert len(log) == len(set(log)), (
                f"twice in {place}: {sorted({v for v in log if log.count(v) > 1})}"
            )
            ranks = {name: at for at, name in enumerate(self.sent[place])}
            # What was only in the memory of a process that was killed may still arrive, behind what a later one sent.
            order = [ranks[name] for name in log if name in self.durable]
            assert order == sorted(order), f"{place} is not in the order of acceptance"
            missing = self.durable & set(self.sent[place]) - set(log)
            assert not missing, f"promised and not in {place}: {sorted(missing)}"
        for name, places in self.units.items():
            seen = {place for place in places if name in logs[place]}
            assert seen in (set(), places), f"half of {name}"


VARIANTS = [
    {"version": "4.3.0"},
    {"version": "2.8.2"},
    {"version": "4.3.0", "delivery": "transactional"},
    {"version": "2.8.2", "spool": "on_error"},
]
"""Where each transaction has its own epoch; where epochs stay from one to the next."""


def run_storm(seed: int, steps: int = 40, kind: Any = Storm, variants: Any = VARIANTS, **options) -> Any:
    """One schedule from its beginning to its end, of the variant that is due; raises AssertionError."""
    # The lane's id, and by it the coordinators of its transactional ids, are the same at each run.
    with mock.patch("os.urandom", random.Random(seed).randbytes):
        storm = kind(seed, **variants[seed % len(variants)], **options)
        try:
            storm.blow(steps)
            storm.check()
        except BaseException as error:
            error.add_note("\n".join(storm.world.lines[-300:]))
            raise
        finally:
            _forget_locks()
    return storm


def _forget_locks() -> None:
    """Processes that are dead close no files: each would stay among those that may be locked, and its disk with it."""
    lanes.lock._lockable -= {each for each in lanes.lock._lockable if isinstance(each[0], DiskFiles)}
