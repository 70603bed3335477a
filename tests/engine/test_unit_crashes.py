"""The crash table of docs/staged-protocol.md, row by row: a crash before each write, request and answer, then another.

The second one comes in the recovery.

For plain batches and for atomic ones, with both modes of the spool, a power cut and a mere end of the process. On the
cluster in virtual time, and on a disk that loses what was not synced.
"""

from __future__ import annotations

import random
import zlib
from unittest import mock

import pytest
from virtual import World, tracing

from kafkasafe.errors import BatchDroppedError
from kafkasafe.spool.spool import Spool
from kafkasafe.units import Phase

TIMEOUT_MS = 8000
STAGED = {Phase.STAGING, Phase.STAGED, Phase.ENDING}
VALUES = {0: [b"1", b"2", b"3"], 1: [b"1", b"3"]}


class EndsError(BaseException):
    """The process ends here."""


class Run:
    """One schedule: the `n`th thing that happens is a crash, in this life and, with other numbers, in the next."""

    def __init__(self, version, options, atomic) -> None:
        self.world = World(brokers=1, version=version)
        self.world.centre.create_topic("orders", 2)
        self.world.centre.create_topic("audit", 1)
        self.options = {"retry_backoff_ms": 100, "transaction_timeout_ms": TIMEOUT_MS, **options}
        self.atomic = atomic
        self.heads = {}
        self.things = 0
        self.left = 0
        self.durable = set()
        self._watch()

    def _watch(self) -> None:
        """Count each thing that happens, and crash at one of them."""
        ask = self.world.cluster.ask

        def counted(*arguments):
            self._happens()
            return ask(*arguments)

        self.world.cluster.ask = counted

    def _happens(self) -> None:
        self.things += 1
        if self.left:
            self.left -= 1
            if not self.left:
                raise EndsError

    def start(self):
        life = self.world.start(**self.options)
        step = life.engine.step

        def stepped(message):
            self._happens()
            step(message)

        life.engine.step = stepped
        return life

    def writes(self):
        """Have what goes to the disk counted, too: before it is written, before it is durable, and after."""
        write_group, sync = Spool.write_group, Spool.sync

        def written(spool, *arguments, **options):
            self._happens()
            return write_group(spool, *arguments, **options)

        def synced(spool):
            self._happens()
            sync(spool)
            self._happens()

        return mock.patch.multiple(Spool, write_group=written, sync=synced)

    def send(self, life) -> None:
        if self.atomic:
            for number, partitions in ((b"1", (0, 1)), (b"2", (0,)), (b"3", (1, 0))):
                # The partitions of one topic are chosen when it is first heard of, in whatever life that is.
                parts = [("orders", at, [number]) for at in partitions]
                self.heads[number] = life.unit(*parts, ("audit", -1, [number]))
        else:
            for number, partitions in ((b"1", (0, 1)), (b"2", (0,)), (b"3", (1, 0))):
                self.heads[number] = [life.send("orders", at, [number]) for at in partitions]

    def live(self, crash_at: int, *, first: bool) -> bool:
        """One life; whether it came to its end."""
        self.left = crash_at
        life = None
        try:
            life = self.start()
            if first:
                self.send(life)

            def over():
                return not life.inbox and not any(
                    lane.journal.views.unfinished for lane in life.context.lanes
                )

            assert self.world.run(120, over), "it does not come to an end"
        except EndsError:
            self.left = 0
            self.note()
            for each in list(self.world.lives):
                self.world.lives.remove(each)
                each.kill()
            return False
        self.left = 0
        self.note()
        self.world.lives.remove(life)
        life.kill()
        return True

    def note(self) -> None:
        for number, parcels in self.heads.items():
            wanted = parcels[:1] if self.atomic else parcels
            self.durable |= {(number, each.partition) for each in wanted if each.durable or each.done}

    def check(self) -> None:
        self.world.run(TIMEOUT_MS / 1000 + 5)
        logs = {at: self.world.committed("orders", at) for at in (0, 1)}
        for at, log in logs.items():
            assert log == sorted(set(log)), f"partition {at}: {log}"
        for number, partition in self.durable:
            for at in (0, 1) if self.atomic else (partition,):
                if number in VALUES[at]:
                    assert number in logs[at], f"{number} was durable and is not in partition {at}: {logs}"
        if self.atomic:
            assert self.world.committed("audit", 0) == logs[0], f"audit differs from partition 0: {logs}"
            for number in (b"1", b"3"):
                assert (number in logs[0]) == (number in logs[1]), f"half of {number}: {logs}"


def crash(points, *, version, options, atomic, power) -> int:
    """Crashes at these points, one in each life; how many things happened in the first."""
    seed = sum(points) + 7 * len(points)
    happened = 0
    with mock.patch("os.urandom", random.Random(1).randbytes):
        run = Run(version, options, atomic)
    with mock.patch("os.urandom", random.Random(1).randbytes), run.writes():
        try:
            for number, point in enumerate([*points, 0]):
                run.things = 0
                ended = run.live(point, first=not number)
                happened = happened or run.things
                if power:
                    run.world.disk = run.world.disk.crash(seed=seed)
                if ended and number >= len(points):
                    break
            run.check()
        except AssertionError as error:
            error.add_note(f"points {points}\n" + "\n".join(run.world.lines[-150:]))
            raise
    return happened


VARIANTS = [
    pytest.param(
        version, {"spool": spool, "delivery": delivery}, atomic, power, id=f"{name}-{spool}-{version}-{end}"
    )
    for name, delivery, atomic in (
        ("atomic", "idempotent", True),
        ("staged", "transactional", True),
        ("plain", "idempotent", False),
    )
    for spool in ("always", "on_error")
    for version in ("4.3.0", "2.8.2")
    for power, end in ((False, "kill"), (True, "power"))
    if (name, version) != ("staged", "2.8.2")
]


@pytest.mark.parametrize(("version", "options", "atomic", "power"), VARIANTS)
def test_a_crash_between_some_steps(version, options, atomic, power):
    variant = {"version": version, "options": options, "atomic": atomic, "power": power}
    total = crash((), **variant)
    assert total > 20
    # Others in each variant.
    begin = 1 + zlib.crc32(repr(variant).encode()) % 17
    for point in range(begin, total + 1, 17):
        crash((point,), **variant)
    crash((begin + total // 3, begin), **variant)


def test_what_a_unit_was_divided_into_is_a_part_of_it_when_its_first_segment_is_gone():
    # The first life accepts, the second divides and commits and deletes what the first wrote, then it dies.
    crash((22, 84), version="4.3.0", options={"spool": "always"}, atomic=True, power=False)


def test_what_was_divided_keeps_its_turn_when_its_first_segment_is_gone():
    world = World()
    world.centre.create_topic("audit", 1)
    world.set_outage(True)
    options = {"retry_backoff_ms": 100}
    world.centre.create_topic("orders", 1)
    for parts in ([("audit", -1, [b"1"])], [("audit", -1, [b"2"]), ("orders", 0, [b"2"])]):
        life = world.start(**options)
        life.unit(*parts)
        world.run(5)  # much longer than a write takes
        world.kill(life)
    life = world.start(**options)
    lane = life.context.own
    world.set_outage(False)
    assert world.run(
        60,
        lambda: (
            all(b.position >= 0 for unit in lane.journal.units.unfinished for b in unit.batches)
            and lane.journal.views.topic("audit")
            and not lane.journal.views.waiting("audit")
        ),
    )
    world.set_outage(True)
    world.kill(life)
    life = world.start(**options)
    world.set_outage(False)
    assert world.run(60, lambda: not life.context.own.journal.views.unfinished)
    world.run(1)
    assert world.committed("audit", 0) == [b"1", b"2"]


def test_what_comes_to_disk_when_its_topic_is_known_is_divided_before_it_is_begun():
    world = World()
    world.centre.create_topic("orders", 1)
    world.centre.create_topic("audit", 2)
    life = world.start(retry_backoff_ms=100)
    first = life.unit(("orders", 0, [b"1"]))
    assert world.run(60, lambda: first[0].done)
    world.disk.fail("sync_data", times=4)
    life.unit(("audit", -1, [b"2", b"2"]))
    assert world.run(60, lambda: not life.inbox and not life.context.own.journal.views.unfinished)
    world.run(1)
    assert world.committed("audit", 1) == world.committed("audit", 0) == [b"2"]


def test_a_unit_of_a_topic_that_stays_missing_is_given_up_as_a_whole():
    world = World(auto_create_topics_enable="false")
    world.centre.create_topic("orders", 1)
    life = world.start(retry_backoff_ms=100, blocked_timeout_ms=20_000)
    parcels = life.unit(("orders", 0, [b"1"]), ("missing", -1, [b"1"]))
    assert world.run(600, lambda: parcels[0].done)
    assert isinstance(parcels[0].error, BatchDroppedError)
    assert world.run(60, lambda: not life.context.own.journal.views.unfinished)
    assert not any("-> AddPartitionsToTxn" in line or "-> Produce " in line for line in world.lines)
    later = life.unit(("orders", 0, [b"2"]))
    assert world.run(60, lambda: later[0].done)
    world.run(1)
    assert world.committed("orders", 0) == [b"2"]


@pytest.mark.crash
@pytest.mark.parametrize(("version", "options", "atomic", "power"), VARIANTS)
def test_a_crash_between_any_two_steps(version, options, atomic, power):
    variant = {"version": version, "options": options, "atomic": atomic, "power": power}
    total = crash((), **variant)
    for point in range(1, total + 1):
        crash((point,), **variant)


@pytest.mark.crash
@pytest.mark.parametrize(("version", "options", "atomic", "power"), VARIANTS)
def test_twice_also_during_recovery(version, options, atomic, power):
    variant = {"version": version, "options": options, "atomic": atomic, "power": power}
    total = crash((), **variant)
    for point in range(2, total + 1, 6):
        for again in range(1 + point % 5, 60, 7):
            crash((point, again), **variant)


def test_a_unit_is_done_when_the_mark_that_says_so_is_durable():
    world = World()
    world.centre.create_topic("orders", 1)
    life = world.start(retry_backoff_ms=100)
    parcels = life.unit(("orders", 0, [b"1"]))
    assert world.run(60, lambda: any("-> EndTxn commit" in line for line in world.lines))
    world.disk.fail("sync_data", times=1000)
    world.run(3)
    assert world.committed("orders", 0) == [b"1"]
    assert not parcels[0].done
    world.disk.heal()
    assert world.run(60, lambda: parcels[0].done)


def test_what_timed_out_is_committed_only_if_its_own_marker_says_so():
    world = _time_out("2.8.2")
    assert any("-> OffsetFetch" in line for line in world.lines)


def test_what_timed_out_is_committed_only_if_the_coordinator_says_so():
    world = _time_out("4.3.0")
    assert any("-> DescribeTransactions" in line for line in world.lines)
    assert not any("-> OffsetFetch" in line for line in world.lines)


def _time_out(version):
    world = World(version=version)
    world.centre.create_topic("orders", 1)
    life = world.start(retry_backoff_ms=100, transaction_timeout_ms=TIMEOUT_MS)
    units = life.context.own.journal.units
    wanted = []
    for number in range(6):  # more than there are transactional ids
        name = b"%d" % number
        parcels = life.unit(("orders", 0, [name]))
        wanted.append(name)
        if number == 5:
            assert world.run(60, lambda: any(unit.phase in STAGED for unit in units.unfinished))
            world.set_outage(True)  # before EndTxn arrives
            world.run(TIMEOUT_MS / 1000 + 15)
            world.set_outage(False)
        assert world.run(60, lambda parcels=parcels: parcels[0].done)
    world.run(1)
    assert world.committed("orders", 0) == wanted
    assert life.context.stats.atomic_batches_asked.value == 1
    return world


def test_an_end_whose_answer_was_lost_is_found_out_without_a_fence():
    world = World()
    world.centre.create_topic("orders", 1)
    life = world.start(retry_backoff_ms=100, transaction_timeout_ms=TIMEOUT_MS)
    head = life.unit(("orders", 0, [b"1"]))[0]
    units = life.context.own.journal.units
    assert world.run(60, lambda: any("-> EndTxn commit" in line for line in world.lines))
    [unit] = units.unfinished
    assert unit.phase is Phase.ENDING
    before = sum("-> InitProducerId" in line for line in world.lines)
    assert units.give_up(unit, 0, "nobody waits for it")
    assert world.run(60, lambda: head.done)
    assert head.error is None
    world.run(1)
    assert world.committed("orders", 0) == [b"1"]
    assert sum("-> InitProducerId" in line for line in world.lines) == before


def test_a_unit_without_anything_in_an_older_spool_does_no_harm():
    world = World()
    world.centre.create_topic("orders", 1)
    life = world.start(retry_backoff_ms=100)
    world.set_outage(True)
    empty = life.unit()[0]
    assert world.run(60, lambda: empty.durable)
    world.kill(life, power=True, seed=1)
    world.set_outage(False)
    life = world.start(retry_backoff_ms=100)
    later = life.unit(("orders", 0, [b"1"]))[0]
    assert world.run(60, lambda: later.done and not life.context.own.journal.views.unfinished)
    world.run(1)
    assert world.committed("orders", 0) == [b"1"]


def test_where_the_batches_of_a_unit_are_stands_behind_its_end():
    """In the same write: for lives that find neither them nor the STAGED mark."""
    world = World(brokers=1)
    world.centre.create_topic("orders", 2)
    life = world.start()
    with mock.patch.object(Spool, "write_group", tracing(world)["write_group"]):
        life.unit(("orders", 0, [b"1", b"2"]), ("orders", 1, [b"3"]))
        assert world.run(60, life.engine.ledger.idle)
    [written] = [line for line in world.lines if "ENDED(" in line]
    _, behind = written.split("ENDED(", 1)
    assert behind.count("COMMITTED(destination=") == 2, behind
