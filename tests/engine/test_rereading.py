"""A log that is packed while it is read back leaves the journal that it leaves unpacked: over the logs of storms."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import fields

import pytest
from test_storms import Storm
from unit_storm import Storm as UnitStorm
from unit_storm import run_storm
from unit_storm_recreated import RecreatingStorm

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe.delivery.engine.lane_keeper import LaneKeeper
from kafkasafe.delivery.engine.packing import LogReplay
from kafkasafe.history.identity import BatchId
from kafkasafe.journal.acked import ANYWHERE, AckedLog
from kafkasafe.journal.destinations import Partition
from kafkasafe.spool.recovery import replay, scan


def told_of(batch):
    return None if batch is None else (batch.position, batch.state, batch.base_offset)


def shown(batch):
    values = {
        name: getattr(batch, name)
        for name in (
            "position",
            "count",
            "size_bytes",
            "max_timestamp",
            "identity",
            "state",
            "durable",
            "rank",
        )
    }
    values |= {
        name: getattr(batch, name)
        for name in ("origin", "given", "fault", "former_life", "heirs", "tries", "unanswered", "revived")
    }
    return values | {"unit": batch.unit and batch.unit.unit_id, "parent": told_of(batch.parent)}


def known(partition):
    values = {}
    for owner, each in [
        *((partition, each) for each in fields(Partition) if each.name != "log"),
        *((partition.log, each) for each in fields(AckedLog)),
    ]:
        value = getattr(owner, each.name)
        if each.name == "queue":
            value = [shown(batch) for batch in value.all()]
        elif each.name == "acked":
            value = [(shown(batch), batch.place) for batch in value]
        elif each.name == "released":
            value = [getattr(value, name) for name in value.__slots__]
        values[each.name] = repr(value)
    return values


def remembered(journal):
    for partition in journal._state.destinations.partitions.values():
        journal.recovery._backlogs.reach(partition, ANYWHERE)
        assert not partition.queue.packed.count
    assert not journal._state.index.packed_from
    return {
        "partitions": {
            number: known(each) for number, each in journal._state.destinations.partitions.items()
        },
        "spooled": [position for position, _ in journal._state.index.items()],
        "doubted": journal._state.index.suspected,
        "units": [(unit.unit_id, unit.phase, unit.position) for unit in journal.units.unfinished],
        "afters": journal.views.afters,
        "resent": journal._state.index._resent,
        "blind": journal._state.replay.blind_before,
        "end": journal._state.index.end,
        "release": journal.views.release_position,
        "still": journal._state.quiescence.is_announced,
        "snapshot": journal.snapshot(),
    }


def differences(one, other, path=""):
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [line for key in one for line in differences(one[key], other[key], f"{path}/{key}")]
    return [] if one == other else [f"{path}: {one} is not {other}"]


@pytest.fixture
def compared(monkeypatch):
    """Each lane that is opened is read in both ways before that: how many batches were packed meanwhile, and stayed it."""
    packed = Counter()
    read = LaneKeeper._read

    def each_way(self, lock, *, own):
        compare(lock, packed)
        return read(self, lock, own=own)

    monkeypatch.setattr(LaneKeeper, "_read", each_way)
    monkeypatch.setattr("kafkasafe.delivery.engine.packing._PARCELS", 0)
    # As few as may be: more is packed.
    monkeypatch.setattr("kafkasafe.journal.packing.UNPACKED", 6)
    return packed


def compare(lock, packed):
    # Before its extent is made, or a torn tail is cut, the log is what the next incarnation finds.
    log = scan(lock.files, lock.path)
    for begins in (False, True):
        plain, streamed = j.Journal(), j.Journal()
        replay(log.entries, plain)
        packed["ever"] += same_in_a_stream(lock, log, streamed)
        for each in streamed.views.packed():
            queue = streamed._state.destinations.partitions[each.destination].queue
            assert (each.batches, each.records, each.with_id) == (
                queue.packed.count,
                queue.packed.records,
                queue.packed.with_id,
            )
            packed["stayed"] += each.batches
            packed["with id"] += each.with_id
        assert not streamed._state.out.ready.unpacked
        if begins:
            # What may have been sent is in doubt, so nothing of it may be packed.
            for journal in (plain, streamed):
                journal.released(log.segments[0].first_position if log.segments else log.next_position)
                journal.recovery.recovered(1.0)
        assert differences(remembered(streamed), remembered(plain)) == []


def same_in_a_stream(lock, log, journal):
    """The log is read into the journal while it is scanned. How many batches were packed, some of them again."""
    some, numbers = [], itertools.count()
    rereading = LogReplay(journal, numbers)

    def take(entry):
        some.append(entry)
        rereading.take(entry)

    rest = scan(lock.files, lock.path, take)
    for entry in rest.entries:
        rereading.take(entry)
    rereading.end()
    assert [*some, *rest.entries] == log.entries
    for each in fields(log):
        if each.name not in {"segments", "entries"}:
            assert getattr(rest, each.name) == getattr(log, each.name), each.name
    found = [
        [
            (s.path, s.size_bytes, s.proven_bytes, s.records, s.written_ms, dict(s.batches))
            for s in of.segments
        ]
        for of in (rest, log)
    ]
    assert found[0] == found[1]
    return next(numbers)


@pytest.mark.parametrize("seeds", [range(6), range(6, 12)])
def test_storms(compared, monkeypatch, seeds):
    send_more(monkeypatch, Storm, 6)
    for seed in seeds:
        storm = Storm(seed)
        storm.blow(40)
        storm.check()
    assert min(compared.values()) > 50


@pytest.mark.parametrize("heals", [False, True])
def test_storms_of_atomic_batches(compared, monkeypatch, heals):
    """With `heals` topics are created again, and what they had is sent again."""
    send_more(monkeypatch, UnitStorm, 40)
    for seed in range(8):
        if heals:
            run_storm(seed, kind=RecreatingStorm, heals=True)
        else:
            run_storm(seed)
    assert min(compared.values()) > 50


def send_more(monkeypatch, storm, times):
    send = storm.send
    monkeypatch.setattr(storm, "send", lambda self: [send(self) for _ in range(times)])


class Groups:
    """A log, group by group, that two journals read: one packs after each group."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr("kafkasafe.journal.packing.UNPACKED", 6)
        self.plain, self.packs = j.Journal(), j.Journal()
        self.position, self.numbers = 0, itertools.count(1)
        self.group(m.Destination(1, "orders", 0), m.Destination(2, "orders", 1))

    def group(self, *marks, batches=(), packs=True):
        """Its batches are (destination, identity or None) of one record each. Their positions."""
        first = self.position + 1 + len(marks)
        if packs:
            self.packs.recovery.pack_recovered(self.numbers)
        for journal in (self.plain, self.packs):
            journal.recovery.recover_marks(self.position, marks)
            for at, (destination, identity) in enumerate(batches, first):
                journal.recovery.recover_batch(
                    at, destination, count=1, size_bytes=100, max_timestamp=at, identity=identity
                )
        self.position = first + len(batches)
        return range(first, self.position)

    def backlog(self, destination, count, *, sequence=None):
        ids = [None if sequence is None else BatchId(7, 0, sequence + at, 1) for at in range(count)]
        return self.group(batches=[(destination, each) for each in ids])

    def packed(self):
        return {each.destination: each.batches for each in self.packs.views.packed()}

    def check(self):
        for journal in (self.plain, self.packs):
            journal.recovery.recovered_log()
            journal.released(0)
            journal.recovery.recovered(1.0)
        assert differences(remembered(self.packs), remembered(self.plain)) == []


def test_a_mark_brings_back_what_it_speaks_of_and_no_other_partition(monkeypatch):
    log = Groups(monkeypatch)
    first, second = log.backlog(1, 20), log.backlog(2, 20)
    log.group()
    assert log.packed() == {1: 14, 2: 14}
    log.group(m.Rejected(second[9], 10, "too large"), packs=False)
    assert log.packed() == {1: 14, 2: 10}
    log.group(m.Committed(1, 3, ((first[8], 100),)), packs=False)
    assert log.packed() == {1: 11, 2: 10}
    log.group(m.Identified(1, m.IdentityReason.FIRST, -1, (m.Identity(first[12], 7, 0, 0),)), packs=False)
    assert log.packed() == {1: 7, 2: 10}
    log.group(m.Resolved(second[14], m.Decision.SKIP), packs=False)
    assert log.packed() == {1: 7, 2: 5}
    log.group(m.Replaced(second[18], 0, 2), batches=[(2, None), (2, None)], packs=False)
    assert log.packed() == {1: 7, 2: 1}
    log.check()


def test_a_mark_of_what_is_not_there_brings_nothing_back(monkeypatch):
    log = Groups(monkeypatch)
    first = log.backlog(1, 20)
    log.group()
    log.group(
        m.Rejected(first[-1] + 1, 10, "too large"), m.Committed(1, 3, ((first[-1] + 1, 100),)), packs=False
    )
    assert log.packed() == {1: 14}
    log.check()


def test_what_was_moved_brings_back_what_comes_before_it(monkeypatch):
    log = Groups(monkeypatch)
    first = log.backlog(1, 20)
    log.group()
    # One is known, and one is not any more: its segment is gone.
    moves = m.Move(first[3], first[3], (first[3],)), m.Move(first[10] + 1000, first[10], (first[10], 0))
    log.group(m.Moved(moves), batches=[(1, None), (1, None)], packs=False)
    assert log.packed() == {1: 9}
    log.check()


def test_ids_that_are_taken_back_are_taken_back_from_what_is_packed(monkeypatch):
    log = Groups(monkeypatch)
    first = log.backlog(1, 20, sequence=0)
    log.group()
    assert [(each.batches, each.with_id) for each in log.packs.views.packed()] == [(14, 14)]
    log.group(m.Identified(1, m.IdentityReason.REIDENTIFIED, 0, (m.Identity(first[1], 8, 0, 0),)))
    assert [(each.batches, each.with_id) for each in log.packs.views.packed()] == [(14, 0)]
    log.backlog(1, 10)
    # These have new ids, and are not packed after others that have none.
    log.backlog(1, 10, sequence=30)
    log.group()
    assert [(each.batches, each.with_id) for each in log.packs.views.packed()] == [(24, 0)]
    log.check()


def test_ids_that_are_taken_back_from_a_position_on(monkeypatch):
    log = Groups(monkeypatch)
    first = log.backlog(1, 20, sequence=0)
    log.group()
    log.group(m.Identified(1, m.IdentityReason.REIDENTIFIED, first[10], (m.Identity(first[11], 8, 0, 0),)))
    log.check()


def test_what_may_have_been_sent_is_in_doubt_though_lost_ones_come_before_it(monkeypatch):
    log = Groups(monkeypatch)
    lost = log.backlog(1, 6, sequence=0)
    log.group(m.Committed(1, 3, tuple((at, place) for place, at in enumerate(lost))))
    log.backlog(1, 20, sequence=6)
    log.group(m.Revived(1, 0, tuple(lost)), m.State(1, 0, -1, 3, bytes(range(16))))
    log.group()
    assert log.packed() == {1: 20}
    log.check()
    assert log.plain.views.in_doubt == log.packs.views.in_doubt == 5
    assert log.packs._state.destinations.partitions[1].ids.stale


def test_a_lost_group_brings_back_everything(monkeypatch):
    log = Groups(monkeypatch)
    log.backlog(1, 20, sequence=0)
    log.backlog(2, 20)
    log.group()
    for journal in (log.plain, log.packs):
        journal.recovery.recover_lost(log.position, 0)
    assert log.packed() == {}
    log.position += 1
    log.backlog(1, 20, sequence=20)
    log.group()
    assert log.packed() == {}
    log.check()


_STARTED = """
    import resource, sys
    from pathlib import Path
    from kafkasafe import SafeProducer
    from kafkasafe.record import batch
    from kafkasafe import marks
    from kafkasafe.spool.files import OsFiles
    from kafkasafe.spool.spool import Spool

    directory, batches = sys.argv[1], int(sys.argv[2])
    options = {"bootstrap_servers": "127.0.0.1:1", "spool_dir": directory}
    SafeProducer(**options).close(timeout=0)
    (lane,) = (each for each in Path(directory).glob("lane-*") if each.is_dir())
    told = [marks.Topic("orders", bytes(range(16)), 400)]
    told += [marks.Destination(1 + number, "orders", number) for number in range(400)]
    spool, _ = Spool.open(
        lane, files=OsFiles(), segment_bytes=64 << 20, sync="os", snapshot=lambda: told, clock_ms=lambda: 1
    )
    spool.write_group(told, [])
    data = batch.encode([None] * 10, [b"%020d" % number for number in range(10)], timestamps=1)
    for first in range(0, batches, 40):
        spool.write_group([], [(1 + each % 400, bytearray(data)) for each in range(first, first + 40)])
    spool.close()

    def most():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    before = most()
    producer = SafeProducer(**options)
    producer.send("orders", b"new", partition=7)
    assert producer.metrics(raw=True)["unfinished_batches"] >= batches
    print("grew", most() - before)
    producer.close(timeout=0)
"""


def test_the_start_with_a_long_backlog_takes_little_memory(tmp_path):
    """It took 71 MB when each batch took 1.3 kB until all were read."""
    command = [sys.executable, "-c", textwrap.dedent(_STARTED), str(tmp_path / "spool"), "60000"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (grew,) = (line.split()[1] for line in done.stdout.splitlines() if line.startswith("grew"))
    assert float(grew) < 40
