"""Storms of units in which topics are deleted and created again, under the units that are prepared in them.

What a topic had goes with it. What of that was acknowledged is reported, and put back where the producer may do that; nothing
else is missing, twice, or out of order, and each unit is whole in those of its topics that had nothing of it when they went.
"""

from __future__ import annotations

from typing import Any

from unit_storm import PARTITIONS, PLACES, VARIANTS, Storm, run_storm
from unit_storm_groups import run_group_storm

from kafkasafe import events
from kafkasafe.delivery.engine.messages import Decided
from kafkasafe.journal import BatchState
from kafkasafe.record import batch as codec
from kafkasafe.testing.fake.checks import RefusedError

TOPICS = {"orders": PARTITIONS, "audit": 2}
_COMMIT = b"\0\1"
_NOTICED_S = 45.0
"""`data_loss_check_ms` of these producers is 10 s."""
_PHASES = (None, None, "begun", "appending", "staging", "staged", "ending", "asking", "committed")


class RecreatingStorm(Storm):
    """One schedule.

    Attributes:
        gone: By topic and partition, names of what was in a log that was deleted: committed, or in an open transaction.
        times: How often a topic was deleted.
        reported: By topic and partition, how many records were reported as lost.
        heals: They are sent again.
        unverified: Brokers take whatever comes late into a log that knows nothing of its producer, and of who fenced it;
            the next transaction of its producer id commits it (docs/staged-protocol.md).
        overtaken: Partitions in which the user decided what becomes of a record.
        wrong: What was told and is not so.
    """

    def __init__(self, seed: int, version: str = "4.3.0", *, heals: bool = False, **options) -> None:
        self.heals = heals
        self.unverified = version == "2.8.2"
        self.gone: dict[tuple[str, int], set[bytes]] = {place: set() for place in PLACES}
        self.times = dict.fromkeys(TOPICS, 0)
        self.reported = dict.fromkeys(PLACES, 0.0)
        self.overtaken: set[tuple[str, int]] = set()
        self.wrong: list[str] = []
        if heals:
            options |= {
                "on_data_loss": "restore",
                "restore_recreated_topics": True,
                "retain_acked_bytes": 4 << 20,
            }
        super().__init__(seed, version, on_event=self._on_event, **options)
        self.world.centre.settings["auto.create.topics.enable"] = "false"
        self.faults += [self.recreate] * 3

    def _on_event(self, event: events.Event) -> None:
        match event:
            case events.DataLost() | events.SpoolRecordsMissing():
                place = event.topic, event.partition
                if not self.times[event.topic]:
                    self.wrong.append(f"false alarm: {event}")
                # Of what was acknowledged long ago is known how far it went, not how many records it were.
                self.reported[place] += (
                    float("inf") if "does not remember which records" in event.evidence else event.records
                )
            case events.RecordsUndecidable():
                # A request that came late stands before what belongs before it: the user is asked.
                if not self.times[event.topic] or "a later batch is there" not in event.evidence:
                    self.wrong.append(f"parked for nothing: {event}")
                self.overtaken.add((event.topic, event.partition))
                self.world.time.call_later(35.0, self._decide)

    def _decide(self) -> None:
        """The user looks into the log."""
        ledger = self.life.engine.ledger
        for lane, batch in ledger.errors.take_shown():
            parcel = lane.parcels.get(batch.handle)
            if parcel is not None and batch.state is BatchState.UNDECIDABLE:
                values = codec.decode(self.life.engine.disk.bytes_of(lane, parcel, batch)).values
                there = values[0] in self._standing(parcel.topic, parcel.partition)
                self.life.inbox.append(Decided([(lane, batch)], resend=not there))

    def leader(self) -> None:
        if "orders" in self.world.centre.topics:
            super().leader()

    def recreate(self) -> None:
        """One topic, or both; soon, or in a phase of a unit, or between two lives; it is back at once, or later."""
        topics = self.rng.choice([["orders"], ["audit"], ["orders"], ["audit"], ["orders", "audit"]])
        phase = self.rng.choice(_PHASES)
        if phase is not None:
            self.world.run(3.0, lambda: self._has(phase))
        late_s = self.rng.choice([0.0, 0.0, 0.2, 4.0])
        between = self.rng.random() < 0.2
        if between:
            self.note()
            self.world.disk.heal()
            self.world.kill(self.life, power=self.rng.random() < 0.5, seed=self.rng.randrange(1000))
            self.killed += 1
        for topic in topics:
            self._delete(topic)
        if late_s:
            self.world.time.call_later(late_s, self._create)
        else:
            self._create()
        if between:
            self.life = self.world.start(**self.options)
        elif self.rng.random() < 0.5:
            self.life.context.refresh_topics(topics)

    def _has(self, phase: str) -> bool:
        return any(unit.phase.value == phase for unit in self.life.context.own.journal.units.unfinished)

    def _delete(self, topic: str) -> None:
        if topic not in self.world.centre.topics:
            return
        for number in range(TOPICS[topic]):
            self.gone[topic, number] |= self._standing(topic, number)
        self.times[topic] += 1
        self.world.cluster.delete_topic(topic)
        self.world.say(f"   {topic} is deleted")

    def _create(self) -> None:
        for topic, partitions in TOPICS.items():
            if topic not in self.world.centre.topics:
                try:
                    self.world.centre.create_topic(topic, partitions)
                except RefusedError:  # too few brokers for three replicas
                    self.world.time.call_later(1.0, self._create)
                    return
                self.world.say(f"   {topic} is created again")

    def _standing(self, topic: str, number: int) -> set[bytes]:
        """What is in a log and was not aborted."""
        found = self.world.centre.partition(topic, number)
        names: set[bytes] = set()
        open_: dict[int, set[bytes]] = {}
        for log in found.logs.values():
            for batch in log.batches:
                columns: Any = codec.decode(bytes(batch.data))
                header = columns.header
                if not header.is_control:
                    open_.setdefault(header.producer_id if header.is_transactional else -1, set()).update(
                        columns.values
                    )
                elif (ended := open_.pop(header.producer_id, None)) and columns.keys[0][2:4] == _COMMIT:
                    names |= ended
            names |= set().union(*open_.values())
            open_.clear()
        return names

    def calm(self) -> None:
        super().calm()
        self.world.run(_NOTICED_S)
        super().calm()

    def check(self) -> None:
        assert not self.wrong, self.wrong
        logs = {place: self.world.committed(*place, stale=not self.unverified) for place in PLACES}
        for place, log in logs.items():
            self._check_log(place, log)
        for name, places in self.units.items():
            kept = {place for place in places if name not in self.gone[place]}
            seen = {place for place in kept if name in logs[place]}
            assert seen in (set(), kept), f"half of {name}"

    def _check_log(self, place: tuple[str, int], log: list[bytes]) -> None:
        gone = self.gone[place]
        assert len(log) == len(set(log)), f"twice in {place}: {sorted({v for v in log if log.count(v) > 1})}"
        ranks = {name: at for at, name in enumerate(self.sent[place])}
        order = [ranks[name] for name in log if name in self.durable and name not in gone]
        assert place in self.overtaken or order == sorted(order), f"{place} is not in the order of acceptance"
        missing = self.durable & set(self.sent[place]) - set(log)
        assert missing <= gone, f"promised and not in {place}: {sorted(missing - gone)}"
        if self.options.get("spool") == "on_error":
            missing &= self.units.keys()  # what was acknowledged in time was never on disk
        assert not (self.heals and missing), f"not put back into {place}: {sorted(missing)}"
        # What a life before did, and has released since, may be less in number.
        least = min(1, len(missing)) if self.killed else len(missing)
        assert self.reported[place] >= least, (
            f"lost in {place}: {sorted(missing)}, reported: {self.reported[place]}"
        )


def run_any_storm(seed: int) -> Storm:
    """One schedule from its beginning to its end. Raises AssertionError.

    In one of five topics are recreated, in one of five consumers of a group have their offsets in the units.
    """
    turn = seed // len(VARIANTS)
    match turn % 5:
        case 4:
            return run_storm(seed, kind=RecreatingStorm, heals=bool(turn // 5 % 2))
        case 3:
            return run_group_storm(seed)
    return run_storm(seed)
