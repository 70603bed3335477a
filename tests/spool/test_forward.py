"""Copying forward: what waits is there once, in its place and under its id, whatever moment the machine goes down at."""

from __future__ import annotations

import dataclasses
import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe.delivery.forward import Segment, copy_before
from kafkasafe.journal.order import Owed
from kafkasafe.record import batch as codec
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.recovery import replay, scan
from kafkasafe.spool.spool import Spool
from kafkasafe.testing.disk import Disk

from .model import LANE, ROOT

SEGMENT = 1500
NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))


@dataclass
class Writer:
    """A journal and a spool, and a cluster that acknowledges what the test says. Partition 0 is never answered.

    Attributes:
        promised: By partition, the numbers of the batches that are durable.
        acked: Those that the cluster has.
        history: (operations of the disk, how many are promised, what is acknowledged) at each step.
    """

    disk: Disk
    sync: str = "group"
    promised: list[tuple[int, int]] = field(default_factory=list)
    acked: set[tuple[int, int]] = field(default_factory=set)
    history: list[tuple[int, int, set[tuple[int, int]]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = self.disk.process()
        self.lock = SpoolDirectory.open(ROOT, files=self.files).take_lane(0)
        self.journal = j.Journal(j.Settings(request_timeout_s=1.0))
        self.spool, _ = Spool.open(
            self.lock.path,
            files=self.lock.files,
            segment_bytes=SEGMENT,
            sync=self.sync,
            snapshot=self.journal.snapshot,
            clock_ms=lambda: NOW_MS,
        )
        self.bytes: dict[int, bytearray] = {}
        self.names: dict[int, tuple[int, int]] = {}
        self.numbers = itertools.count()
        self.offsets = itertools.count()
        self.now = 0.0
        self.journal.granted(7, 0)

    def note(self) -> None:
        self.history.append((len(self.disk.operations), len(self.promised), set(self.acked)))

    def send(self, partition: int, size: int = 200) -> None:
        number = next(self.numbers)
        data = codec.encode([None], [b"%d %d " % (partition, number) + bytes(size)], timestamps=NOW_MS)
        batch = self.journal.seal(
            self.journal.destination("t", partition), count=1, size_bytes=len(data), max_timestamp=NOW_MS
        )
        self.bytes[batch.handle], self.names[batch.handle] = data, (partition, number)
        self.drive()

    def drive(self) -> None:
        while True:
            ready = self.journal.ready(self.now, NOW_MS)
            for ask in ready.asks:
                self.journal.baseline(ask.destination, 0, TOPIC_ID)
            for batch in ready.sends:
                if self.names[batch.handle][0] == 0:
                    self.journal.lost(batch, sent=True, code=0, message="gone", now=self.now)
                    continue
                self.acked.add(self.names[batch.handle])
                self.note()
                self.journal.acked(batch, next(self.offsets), leader_epoch=1, now=self.now, now_ms=NOW_MS)
            if ready.persist:
                self.write(ready.persist)
            elif not (ready.asks or ready.sends):
                return

    def write(self, persist: j.Persist) -> None:
        content = []
        for batch in persist.batches:
            data = self.bytes[batch.handle]
            if batch.identity is not None:
                codec.stamp_identity(data, *stamp(batch.identity))
            content.append((batch.destination, data))
        positions = self.spool.write_group(persist.marks, content, atomic=persist.atomic)
        self.spool.sync()
        self.journal.persisted(persist, positions, self.spool.next_position)
        self.promised += [self.names[batch.handle] for batch in persist.batches]
        self.note()

    def copy(self, most_bytes: int) -> int:
        """As the engine does it; how many."""
        batches = self.journal.to_move(self.spool.segments[-1][1], most_bytes)
        copies = []
        for batch in batches:
            data = self.spool.read(batch.position)
            if batch.identity is not None:
                codec.stamp_identity(data, *stamp(batch.identity))
            copies.append((batch.destination, data))
        if batches:
            positions = self.spool.write_group(self.journal.move_marks(batches), copies, atomic=True)
            self.spool.sync(always=True)
            self.journal.moved(batches, positions, self.spool.next_position)
            self.note()
        self.spool.release(self.journal.views.release_position)
        self.journal.released(self.spool.first_position)
        return len(batches)


def stamp(identity: Any) -> tuple[int, int, int]:
    return identity.producer_id, identity.producer_epoch, identity.base_sequence


def found(disk: Disk) -> dict[int, list[tuple[int, Any]]]:
    """By partition, (number, id) of what waits, as the next life sees it."""
    files = disk.process()
    lock = SpoolDirectory.open(ROOT, files=files).take_lane(0)
    journal = j.Journal()
    spool, entries = Spool.open(
        lock.path,
        files=lock.files,
        segment_bytes=SEGMENT,
        sync="group",
        snapshot=journal.snapshot,
        clock_ms=lambda: NOW_MS,
    )
    replay(entries, journal)
    journal.recovery.recovered(0.0)
    waits: dict[int, list[tuple[int, Any]]] = {}
    for _, partition, batch in journal.views.batches():
        value = codec.decode(spool.read(batch.position)).values[0]
        of, number = map(int, value.split()[:2])
        assert of == partition
        waits.setdefault(partition, []).append((number, batch.identity))
    spool.close(closed_mark=False)
    lock.release()
    return waits


def check(writer: Writer, *, samples: int = 1) -> int:
    """After every crash of the history; how many."""
    seen = set()
    for state in writer.disk.crash_states(samples=samples, seed=1):
        noted = [each for each in writer.history if each[0] <= state.at]
        promised, acked = (noted[-1][1], noted[-1][2]) if noted else (0, set())
        later = writer.history[len(noted)][2] if len(noted) < len(writer.history) else writer.acked
        key = len(noted), hash(frozenset(state.disk.files().items()))
        if key in seen:
            continue
        seen.add(key)
        waits = found(state.disk)
        have = [(partition, number) for partition, queue in waits.items() for number, _ in queue]
        assert len(have) == len(set(have)), f"crash at {state.at} ({state.how}): twice"
        missing = set(writer.promised[:promised]) - later - set(have)
        assert not missing, f"crash at {state.at} ({state.how}): {missing} promised, and gone"
        assert not set(have) - set(writer.names.values())
        for queue in waits.values():
            numbers = [number for number, _ in queue]
            assert numbers == sorted(numbers), f"crash at {state.at} ({state.how}): order"
            ids = [identity.base_sequence for _, identity in queue if identity is not None]
            assert ids == sorted(set(ids)), f"crash at {state.at} ({state.how}): ids"
        assert acked <= writer.acked
    return len(seen)


@pytest.mark.parametrize("sync", ["group", "os"])
@pytest.mark.parametrize("seed", range(2))
def test_what_waits_is_there_once_after_every_crash(seed, sync):
    rng = random.Random(seed)
    writer = Writer(Disk(), sync)
    writer.note()
    copied = 0
    for _ in range(16):
        writer.send(rng.choice([0, 1, 1]), rng.randrange(300))
        if rng.random() < 0.4:
            copied += writer.copy(rng.choice([1, 600]))
    for _ in range(4):
        copied += writer.copy(600)
    assert copied > 2
    if sync == "group":
        assert check(writer) > 100
    # What was copied is durable with "os" as well.
    last = found(writer.disk.crash(seed=seed))
    assert [number for number, _ in last[0]] == [n for p, n in writer.promised if p == 0][: len(last[0])]


def test_a_copy_keeps_place_and_id_when_its_old_place_is_gone():
    """Also where a later batch of its partition was acknowledged, or was never moved."""
    writer = Writer(Disk())
    for partition in (0, 0, 0, 1):
        writer.send(partition)
    before = found(writer.disk.crash(seed=1))[0]
    assert [identity is not None for _, identity in before] == [True] * 3
    for _ in range(3):
        while len(writer.spool.segments) == 1:
            writer.send(1)
        assert writer.copy(1)
        writer.send(1)
    assert writer.spool.release(writer.journal.views.release_position) >= 0
    assert scan(writer.disk.crash(seed=1).process(), LANE).segments[0].first_position > 0
    writer.send(0)
    assert found(writer.disk.crash(seed=1))[0][:3] == before
    assert len(found(writer.disk.crash(seed=1))[0]) == 4


def test_what_was_acknowledged_behind_a_copy_says_nothing_of_it():
    """A scan that begins behind its possible place would take it for absent, and it would be in the log twice."""
    journal = j.Journal()
    journal.granted(7, 0)
    number = journal.destination("t", 0)
    batches = [journal.seal(number, count=1, size_bytes=100, max_timestamp=NOW_MS) for _ in range(4)]
    written = journal.ready(0.0, NOW_MS).persist
    journal.persisted(written, [10, 11, 12, 13], 14)
    assert journal.ready(0.0, NOW_MS).asks == []
    journal.baseline(number, 100, TOPIC_ID)
    journal.persisted(journal.ready(0.0, NOW_MS).persist, [], 16)
    begun = journal.snapshot()
    sent: list[j.Batch] = []

    def drive() -> None:
        ready = journal.ready(0.0, NOW_MS)
        sent.extend(ready.sends)
        if ready.persist:
            journal.persisted(ready.persist, [], 20)
            drive()

    drive()
    journal.acked(batches[0], 100, leader_epoch=1, now=0.0, now_ms=NOW_MS)
    drive()
    assert sent == batches
    journal.lost(batches[1], sent=True, code=0, message="gone", now=0.0)
    for batch, offset in ((batches[2], 102), (batches[3], 103)):
        journal.acked(batch, offset, leader_epoch=1, now=0.0, now_ms=NOW_MS)
    drive()
    assert journal.to_move(14, 1000) == [batches[1]]
    marks = journal.move_marks([batches[1]])
    journal.moved([batches[1]], [33], 34)
    assert journal.views.reach(number) == 101
    assert journal.views.release_position == 33

    heir = j.Journal()
    heir.recovery.recover_marks(18, begun)
    # Its batch, and those around it, are gone with their segment.
    heir.recovery.recover_marks(22, [m.Committed(number, 1, ((12, 102),))])
    heir.recovery.recover_marks(30, marks)
    heir.recovery.recover_batch(
        33, number, count=1, size_bytes=100, max_timestamp=NOW_MS, identity=batches[1].identity
    )
    heir.recovery.recover_marks(34, [m.Committed(number, 1, ((13, 103),))])
    heir.recovery.recovered(0.0)
    assert [(batch.position, batch.identity) for _, _, batch in heir.views.batches()] == [
        (33, batches[1].identity)
    ]
    assert heir.views.reach(number) == 101


@pytest.mark.parametrize(
    ("waits", "used", "until"),
    [
        ([], 80, -1),
        ([(0, 1)], 50, -1),  # there is room
        ([(0, 1)], 60, 10),
        ([(0, 9)], 60, 20),  # nine of twenty
        ([(0, 9), (10, 9)], 60, 40),
        ([(0, 10), (10, 10), (20, 10)], 60, -1),  # three of four, half of which would do
        ([(0, 10), (10, 10), (20, 10)], 80, 40),
        ([(0, 10), (10, 10), (20, 10), (30, 1)], 80, -1),
    ],
)
def test_what_is_worth_being_copied(waits, used, until):
    closed = [Segment(end, 10) for end in (10, 20, 30, 40)]
    assert copy_before(closed, waits, used_bytes=used, limit_bytes=100) == until


def test_a_moved_batch_is_owed_where_its_records_stood_first():
    """Another lane that waits for it goes on waiting, also when its old place is gone."""
    owed = Owed()
    entry = m.ManifestEntry(5, 1, 100, 0)
    group = m.Group(2, bytes(16), 3, 3, False, False, False, (entry,))
    owed.group(group, [m.Destination(1, "t", 0)])
    copied = dataclasses.replace(
        group, position=60, atomic=True, manifest=(dataclasses.replace(entry, position=62),)
    )
    owed.group(copied, [m.Moved((m.Move(5, 5, (5,)),))])
    owed.begins(50)
    assert (owed.addresses(5), owed.addresses(6)) == (frozenset(), {("t", 0)})
    owed.group(dataclasses.replace(group, position=70, manifest=()), [m.Committed(1, 0, ((62, 9),))])
    assert not owed.open
