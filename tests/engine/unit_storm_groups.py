"""Storms of consume-process-produce: members of a consumer group whose batches have their offsets, pipelined, in virtual time.

Members come, go, are killed with their process, and keep their partitions through rebalances; the group is rebalanced
while their batches wait, in each phase of them. They are in two processes, each of which has a spool of its own. At the
end each record that the group is past is in the output once, in the order of its key, and no other is.

The consumers are a model: positions, generations and `kafkasafe.delivery.readings`, which is what the real ones decide by.
Batches, producers, disks and the cluster are those of `unit_storm`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fault_schedule import FaultSchedule
from unit_storm import run_storm
from virtual import Life

from kafkasafe import marks as m
from kafkasafe.delivery.engine.parcels import Parcel
from kafkasafe.delivery.readings import NONE, OffsetClaim, OffsetsFate, Readings
from kafkasafe.journal import Fate as UnitFate
from kafkasafe.testing.fake.groups import Group, GroupState, Member
from kafkasafe.units import Phase

GROUP = "g"
INPUTS = 3
OUTPUTS = [("orders", 0), ("orders", 1), ("orders", 2)]
TIMEOUT_MS = 8000
_PHASES = [None, Phase.APPENDING, Phase.STAGING, Phase.ENDING, Phase.ENDING]
_FATES = {
    UnitFate.COMMITTED: OffsetsFate.COMMITTED,
    UnitFate.REJECTED: OffsetsFate.REJECTED,
    UnitFate.DROPPED: OffsetsFate.DROPPED,
}


@dataclass(eq=False)
class Reader:
    """One consumer of the group.

    Attributes:
        life: The process it is in.
        member_id: In the group; empty: it has its partitions by `assign`.
        generation: In which it was given them.
        readings: What it decides by.
        positions: By partition, the next record; None: to be taken from the group.
        held: Positions of partitions whose batches are waited for.
        drawn: By partition without a position, the number of the reading that is about to begin.
        outputs: Of records that it has collected for a batch.
        moved_back: How often it was.
    """

    life: Life
    member_id: str
    generation: int = -1
    readings: Readings[int] = field(init=False)
    positions: dict[int, int | None] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    drawn: dict[int, int] = field(default_factory=dict)
    outputs: list[bytes] = field(default_factory=list)
    moved_back: int = 0

    def __post_init__(self) -> None:
        self.readings = Readings(self.life.numbers)

    def assign(self, generation: int, partitions: set[int]) -> None:
        """What it has kept keeps its position."""
        self.generation = generation
        lost = set(self.positions) - partitions
        if not all(map(self.is_covered, lost)):
            self.throw_away()
        for number in lost:
            for each in (self.positions, self.held, self.drawn):
                each.pop(number, None)
            self.readings.end(number)
        for number in partitions - set(self.positions):
            self.positions[number] = None
        self.readings.suspect()

    def is_covered(self, number: int) -> bool:
        """All that was handed out is in a batch."""
        position = self.held.get(number, self.positions[number])
        run = self.readings.get(number)
        return position is None or run is None or position == (run.handed or 0)

    def throw_away(self) -> None:
        """`poll`, or `send_offsets`, raises: what was handed out and is in no batch comes again."""
        self.outputs.clear()
        for positions in (self.positions, self.held):
            for number, position in positions.items():
                run = self.readings.get(number)
                if position is not None and run is not None:
                    positions[number] = min(position, run.handed or 0)


def fate_of(head: Parcel) -> OffsetsFate:
    """As the program's process knows it."""
    if not head.done or head.unit_handle is None:
        return OffsetsFate.WAITING
    return OffsetsFate.LEFT if head.unit_handle.fate is None else _FATES[head.unit_handle.fate]


class GroupStorm(FaultSchedule):
    """One schedule.

    Attributes:
        assigns: There is one consumer, which has its partitions by `assign`: no generation protects the group from it.
        far: The other process.
        dropped: How many batches were.
    """

    patience_s = 900.0
    late_s = TIMEOUT_MS / 1000 + 10

    def __init__(self, seed: int, version: str = "4.3.0", *, assigns: bool = False, **options) -> None:
        self.assigns = assigns
        self.readers: list[Reader] = []
        self.dropped = 0
        self._members = 0
        self._assignment: dict[str, set[int]] = {}
        options = {"transaction_timeout_ms": TIMEOUT_MS, **options}
        super().__init__(seed, {"orders": len(OUTPUTS), "in": INPUTS}, version, **options)
        self.faults.append(self.sleep)
        self.far = None if assigns else self._start_far()
        if assigns:
            self._restart_readers()
        else:
            self.faults += [self.join] * 2 + [self.leave] * 2 + [self.rebalance] * 2 + [self.miss] * 2
            self.join()

    # -- the group -------------------------------------------------------------------------------------------------

    @property
    def group(self) -> Group:
        groups = self.world.cluster._handler.groups
        return groups._groups.setdefault(GROUP, Group(GROUP))

    def join(self) -> None:
        self._members += 1
        reader = Reader(self.rng.choice([self.life, self.far or self.life]), f"member-{self._members}")
        self.readers.append(reader)
        self.group.members[reader.member_id] = Member(
            reader.member_id, "app", 1 << 40, 1 << 40, [], 1 << 50, joined=True, waiting=True
        )
        self.rebalance()

    def leave(self) -> None:
        """In order, or without a word."""
        if not self.readers:
            return
        reader = self.rng.choice(self.readers)
        self.readers.remove(reader)
        if self.rng.random() < 0.5:
            del self.group.members[reader.member_id]
            self.rebalance()

    def miss(self) -> None:
        """One of them does not hear of a generation, in which others have its partitions, and move the group on."""
        if len(self.readers) < 2:
            self.join()
        deaf = self.rng.choice(self.readers)
        self.rebalance(deaf)
        for _ in range(self.rng.randrange(8)):
            self.work(deaf)
        self.world.run(self.rng.choice([0.02, 0.3]))
        self.rebalance()

    def rebalance(self, deaf: Reader | None = None) -> None:
        """Those that are not there are removed."""
        self.group.state = GroupState.PREPARING
        self.group.rebalance_by_ms = 1 << 50
        self.world.run(self.rng.choice([0.0, 0.003, 0.05, 0.5]))
        there = {reader.member_id for reader in self.readers}
        for member_id in set(self.group.members) - there:
            del self.group.members[member_id]
        self.group.generation += 1
        self.group.state = GroupState.COMPLETING
        self.world.run(self.rng.choice([0.0, 0.003, 0.05]))
        self.group.state = GroupState.STABLE if self.readers else GroupState.EMPTY
        shares: dict[str, set[int]] = {reader.member_id: set() for reader in self.readers}
        # As sticky as an assignor is: what one has it mostly keeps.
        for number in range(INPUTS if self.readers else 0):
            owners = [name for name, share in self._assignment.items() if number in share and name in there]
            others = [reader.member_id for reader in self.readers if reader is not deaf] or list(shares)
            kept = owners and owners[0] in others and self.rng.random() < 0.7
            shares[owners[0] if kept else self.rng.choice(others)].add(number)
        if deaf is None or self.rng.random() < 0.5:
            # Else those who have lost them to others have them back in the next generation.
            self._assignment = shares
        for reader in self.readers:
            if reader is not deaf:
                reader.assign(self.group.generation, shares[reader.member_id])

    # -- the consumers ---------------------------------------------------------------------------------------------

    def _stable(self, number: int) -> int | None:
        """The group's offset; None while a transaction may change it."""
        place = "in", number
        if any(place in offsets for offsets in self.group.pending.values()):
            return None
        found = self.group.offsets.get(place)
        return NONE if found is None else found.offset

    def _settle(self, reader: Reader) -> None:
        """As SafeConsumer does it in `poll`."""
        readings = reader.readings
        for number in readings.look(list(reader.positions)):
            position = reader.positions[number]
            if number not in reader.held and position is not None:
                reader.held[number] = position
                reader.positions[number] = None
            if readings.waits(number) or number not in reader.held:
                continue
            drawn = readings.draw()
            self._ask()
            offset = self._stable(number)
            if offset is None:
                continue
            covered = reader.is_covered(number)
            position = reader.held.pop(number)
            run = readings.get(number)
            assert run is not None
            self.world.say(
                f"   {reader.member_id} compares in-{number}: the group has {offset}, it is at {position}, {run.reading}"
                f" reached {run.reached}, broken: {run.broken}"
            )
            if readings.goes_on(number, offset):
                reader.positions[number] = position
                continue
            readings.begin(number, drawn, offset)
            reader.positions[number] = max(offset, 0)
            reader.moved_back += 1
            if not covered:
                reader.throw_away()
        for number, position in list(reader.positions.items()):
            if position is None and number not in reader.held:
                drawn = readings.draw()
                self._ask()
                offset = self._stable(number)
                if offset is not None:
                    readings.begin(number, drawn, offset)
                    reader.positions[number] = max(offset, 0)

    def _ask(self) -> None:
        """A request takes its time."""
        if self.rng.random() < 0.2:
            self.world.run(0.003)

    def poll(self, reader: Reader) -> None:
        """It reads."""
        self._settle(reader)
        for number, position in reader.positions.items():
            if position is None or self.rng.random() < 0.3:
                continue
            end = position + self.rng.randrange(1, 4)
            reader.outputs += [b"%d:%d" % (number, each) for each in range(position, end)]
            reader.positions[number] = end

    def unit(self, reader: Reader) -> None:
        """It makes a batch of what it has collected."""
        readings = reader.readings
        if any(number in reader.held or position is None for number, position in reader.positions.items()):
            return  # `send_offsets` waits
        readings.used = True
        if readings.look(list(reader.positions)):
            # `send_offsets` raises, and moves it back.
            reader.throw_away()
            self._settle(reader)
            return
        moved = {
            number: position
            for number, position in reader.positions.items()
            if (run := readings.get(number)) is not None and run.handed != position and position
        }
        if not moved:
            return
        positions = tuple(m.Position("in", number, position) for number, position in moved.items())
        offsets = m.GroupOffsets(GROUP, reader.member_id, reader.generation, None, positions)
        runs = {number: readings.get(number) for number in moved}
        parts: dict[tuple[str, int], list[bytes]] = {}
        for value in reader.outputs:
            parts.setdefault(OUTPUTS[_key(value) % len(OUTPUTS)], []).append(value)
        self.world.say(
            f"   {reader.member_id} in {reader.generation} moves {moved} by {[(n, r.reading) for n, r in runs.items()]}:"
            f" {reader.outputs}"
        )
        head = reader.life.unit(
            *((*place, values) for place, values in parts.items()),
            offsets=(offsets,),
            readings={(GROUP, "in", number): run.reading for number, run in runs.items()},
        )[0]
        reader.outputs = []
        for number, position in moved.items():
            runs[number].claim(OffsetClaim(position, lambda: fate_of(head)))
        self.parcels.append((head, {value for some in parts.values() for value in some}))

    def work(self, idle: Reader | None = None) -> None:
        """Several in a row: nobody waits for what becomes of a batch before the next poll."""
        for _ in range(self.rng.randrange(1, 9)):
            busy = [reader for reader in self.readers if reader is not idle]
            if busy:
                self.rng.choice([self.poll, self.unit])(self.rng.choice(busy))

    # -- the faults ------------------------------------------------------------------------------------------------

    def blow(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choice([*[self.work] * 8, *[self.wait] * 4, *self.faults])()
        self.calm()

    def wait(self) -> None:
        self.world.run(self.rng.choice([0.0005, 0.0015, 0.004, 0.01, 0.02, 0.1, 1, 7]))

    def sleep(self) -> None:
        self.world.run(TIMEOUT_MS / 1000 + 3)

    def kill(self) -> None:
        """With the process go its consumers. The group notices it later, and takes their offsets until then."""
        phase = self.rng.choice(_PHASES)
        if phase is not None:
            self.work()
            units = self.rng.choice([self.life, self.far or self.life]).context.own.journal.units
            self.world.run(1.0, lambda: any(unit.phase is phase for unit in units.unfinished))
        if self.far is not None and self.rng.random() < 0.4:
            self.note()
            self.world.disk.heal()
            self.world.kill(self.far)
            self.readers = [reader for reader in self.readers if reader.life is not self.far]
            if self.rng.random() < 0.7:
                # Others have its partitions before what it has left in its spool goes on.
                self.far = None
                self.join()
                for _ in range(3):
                    self.work()
                self.wait()
            self.far = self._start_far()
        else:
            disk, killed = self.world.disk, self.life
            super().kill()
            self.readers = [reader for reader in self.readers if reader.life is not killed]
            if self.far is not None and self.world.disk is not disk:
                # The machine went down, and both with it.
                self.world.lives.remove(self.far)
                self.far.client.close(0.0)
                self.readers.clear()
                self.far = self._start_far()
        if self.assigns:
            self._restart_readers()
        elif self.rng.random() < 0.7:
            self.join()
            self.work()

    def _start_far(self) -> Life:
        return self.world.start(**self.options, spool_dir="/far")

    def _restart_readers(self) -> None:
        reader = Reader(self.life, "")
        self.readers.append(reader)
        reader.assign(-1, set(range(INPUTS)))

    def noted(self, parcel, values) -> None:
        if parcel.error is not None:
            self.dropped += 1

    def calm(self) -> None:
        self._calm()
        # What was dropped at the end is read again.
        if not self.assigns:
            self.join()
        end = self.world.time.monotonic() + 60.0
        while not self._is_even() and self.world.time.monotonic() < end:
            for reader in self.readers:
                self._settle(reader)
                self.unit(reader)
            self.world.run(0.2)
        assert self._is_even(), "the group does not come to where its members are"
        self._calm()

    def _calm(self) -> None:
        super().calm()

        far = self.far
        if far is None:
            return

        def over() -> bool:
            return not far.inbox and not any(lane.journal.views.unfinished for lane in far.context.lanes)

        assert self.world.run(self.patience_s, over), "it does not come to an end"
        self.world.run(self.late_s)
        self.note()

    def _is_even(self) -> bool:
        """The group is where its members are. Who has `assign`ed partitions may be behind, and is told by the next batch."""
        for reader in self.readers:
            for number, position in reader.positions.items():
                offset = self._stable(number)
                if position is None or offset is None or position > max(offset, 0):
                    return False
                if position < offset and not self.assigns:
                    return False
        return True

    def check(self) -> None:
        logs = [self.world.committed(*place) for place in OUTPUTS]
        found: dict[int, list[int]] = {number: [] for number in range(INPUTS)}
        for log in logs:
            newest: dict[int, int] = {}
            for value in log:
                number, at = map(int, value.split(b":"))
                found[number].append(at)
                assert newest.get(number, -1) < at, f"{value!r} stands after {newest[number]}"
                newest[number] = at
        for number, seen in found.items():
            offset = self.group.offsets.get(("in", number))
            end = 0 if offset is None else offset.offset
            twice = sorted({at for at in seen if seen.count(at) > 1})
            assert not twice, f"twice of in-{number}: {twice}"
            lost = sorted(set(range(end)) - set(seen))
            assert not lost, f"the group is at {end} of in-{number}, and these are nowhere: {lost}"
            early = sorted(set(seen) - set(range(end)))
            assert not early, f"the group is at {end} of in-{number}, and these are in the output: {early}"


def _key(value: bytes) -> int:
    """Records with the same key go to the same partition."""
    return int(value.split(b":")[1]) % 7


VARIANTS = [
    {"version": "4.3.0"},
    {"version": "2.8.2"},
    {"version": "4.3.0", "assigns": True},
    {"version": "2.8.2", "spool": "on_error"},
]


def run_group_storm(seed: int) -> GroupStorm:
    """One schedule from its beginning to its end, of the variant that is due; raises AssertionError."""
    storm: GroupStorm = run_storm(seed, steps=60, kind=GroupStorm, variants=VARIANTS)
    return storm
