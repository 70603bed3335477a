"""A spool's owner that keeps books: what it wrote, what it was promised, and what may be found after a crash.

The rules that `Owner.check` holds every recovered lane to:

* everything promised is there, at its position, in its order;
* behind it stands nothing but a beginning of what was written since, in order, atomic groups whole or not at all;
* positions have no holes, every destination is declared before it is used, every byte of a batch is what was written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from kafkasafe import marks as m
from kafkasafe.errors import KafkaSafeError, SpoolCorruptError, SpoolError, SpoolWriteError
from kafkasafe.record import batch as codec
from kafkasafe.spool.files import Files
from kafkasafe.spool.lanes import LaneLock, SpoolDirectory
from kafkasafe.spool.log_content import BatchEntry, Entry, LostEntry, MarksEntry, TornEntry
from kafkasafe.spool.recovery import scan
from kafkasafe.spool.spool import Spool
from kafkasafe.testing.disk import CrashState, Disk

T = TypeVar("T")
ROOT = Path("/state/spool")
LANE = ROOT / "lane-000"
DECLARATIONS = m.Topic | m.Destination | m.State | m.Torn


@dataclass(frozen=True)
class Item:
    """One thing in the log that the owner put there: marks, or a batch. `atomic` tells atomic groups apart."""

    what: tuple
    atomic: int = 0
    group: int = 0


@dataclass(frozen=True)
class Group:
    """What is to be written at once."""

    marks: tuple[m.Mark, ...]
    batches: tuple[tuple[int, bytes], ...]
    atomic: int = 0
    number: int = 0

    @property
    def items(self) -> list[Item]:
        own = tuple(mark for mark in self.marks if not isinstance(mark, DECLARATIONS))
        items = [Item(("marks", own), self.atomic, self.number)] if own else []
        return items + [
            Item(("batch", *describe(d, data)), self.atomic, self.number) for d, data in self.batches
        ]


@dataclass(frozen=True)
class Expected:
    """What holds from a moment of the disk's history on."""

    at: int
    promised: int
    released: int
    tails: tuple[tuple[Item, ...], ...]


@dataclass
class Found:
    """A recovered lane."""

    disk: Disk
    files: Files
    lock: LaneLock
    spool: Spool
    entries: list[Entry]
    items: list[tuple[int, tuple]] = field(default_factory=list)

    def close(self) -> None:
        self.spool.close(closed_mark=False)
        self.lock.release()


def describe(destination: int, data: bytes) -> tuple[int, int, int]:
    header = codec.read_header(data)
    return destination, header.crc, header.count


def encode(number: int, count: int, size: int) -> bytes:
    """A batch like no other."""
    values: list[bytes | None] = [b"%d.%d " % (number, i) + bytes(size) for i in range(count)]
    return bytes(codec.encode(None, values, timestamps=1_700_000_000_000 + number))


def open_lane(files: Files, snapshot=list, *, segment_bytes=4096, sync="group", on_corrupt="raise"):
    lock = SpoolDirectory.open(ROOT, files=files).take_lane(0)
    entries: list[Entry] = []
    try:
        spool, rest = Spool.open(
            lock.path,
            files=lock.files,
            segment_bytes=segment_bytes,
            sync=sync,
            snapshot=snapshot,
            on_corrupt=on_corrupt,
            clock_ms=lambda: 1_700_000_000_000,
            each=entries.append,
        )
    except BaseException:
        lock.release()
        raise
    return lock, spool, [*entries, *rest]


def recover(disk: Disk, **options) -> Found:
    """Open a lane as a new process, with nothing but what is on the disk."""
    files = disk.process()
    lock, spool, entries = open_lane(files, **options)
    found = Found(disk, files, lock, spool, entries)
    found.items = items_of(spool, entries)
    return found


def items_of(spool: Spool, entries: Sequence[Entry]) -> list[tuple[int, tuple]]:
    """What an owner put there, with positions; everything a reader relies on is asserted on the way."""
    items: list[tuple[int, tuple]] = []
    starts = {first for _, first, _ in spool.segments}
    position = min(starts, default=spool.next_position)
    declared: set[int] = set()
    for entry in entries:
        if isinstance(entry, LostEntry):
            items.append((entry.position, ("lost", entry.destination)))
            position = -1
            continue
        assert position in {entry.position, -1}, "a hole in the positions"
        if isinstance(entry, TornEntry):
            position = -1
            continue
        match entry:
            case MarksEntry(at, marks):
                position = at + 1 + len(marks)
                new = {mark.number for mark in marks if isinstance(mark, m.Destination)}
                assert at not in starts or new >= declared, "a snapshot that does not say everything"
                declared |= new
                own = tuple(mark for mark in marks if not isinstance(mark, DECLARATIONS))
                if own:
                    items.append((at, ("marks", own)))
            case BatchEntry(at, destination, header, size):
                position = at + header.count
                assert destination in declared
                assert header.size_bytes == size
                items.append((at, ("batch", destination, header.crc, header.count)))
    assert position in {spool.next_position, -1}
    for at, what in items:
        if what[0] == "batch":
            header = codec.verify(patiently(lambda at=at: spool.read(at)))
            assert what == ("batch", header.partition_leader_epoch, header.crc, header.count)
    assert spool.used_bytes == sum(size for _, _, size in spool.segments)
    return items


def patiently(action: Callable[[], T], tries: int = 5) -> T:
    """Do it again when the disk says no; damage is no such thing."""
    for _ in range(tries - 1):
        try:
            return action()
        except SpoolCorruptError:
            raise
        except SpoolError:
            pass
    return action()


class Owner:
    """A process that owns lane 0 and writes to it."""

    def __init__(self, disk: Disk, *, segment_bytes: int = 4096, sync: str = "group") -> None:
        self.disk = disk
        self.options = {"segment_bytes": segment_bytes, "sync": sync}
        self.promised: list[tuple[int, tuple]] = []
        self.released = 0
        self.history = [Expected(0, 0, 0, ((),))]
        self.declared: dict[int, m.Destination] = {}
        self.waiting: list[tuple[Group, list[int]]] = []  # written since the last promise, with positions
        self.tails: list[tuple[Item, ...]] = [()]
        self.number = 0
        self.note()
        self.open()

    # -- what it does ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """As a new process. What it finds is promised to it, and is from now on."""
        self.waiting.clear()
        self.files = self.disk.process()
        self.lock, self.spool, entries = open_lane(self.files, self.snapshot, **self.options)
        items = items_of(self.spool, entries)
        self.promised += self.compare(items, self.spool, self.history[-1])
        for entry in entries:
            self.declare(entry.marks if isinstance(entry, MarksEntry) else ())
        self.tails = [()]
        self.note()

    def declare(self, marks: Sequence[m.Mark]) -> None:
        self.declared |= {mark.number: mark for mark in marks if isinstance(mark, m.Destination)}

    def snapshot(self) -> list[m.Mark]:
        return list(self.declared.values())

    def group(self, rng: random.Random, *, batches: int = 1, size: int = 100) -> Group:
        self.number += 1
        marks: list[m.Mark] = []
        if rng.random() < 0.5:
            marks.append(m.Rejected(self.number, 7, "x" * rng.randrange(40)))
        destinations = [rng.randint(1, 3) for _ in range(batches)]
        new = sorted(set(destinations) - self.declared.keys())
        marks += [m.Destination(destination, "topic", destination) for destination in new]
        content = [
            encode(self.number * 100 + i, rng.randint(1, 4), rng.randrange(size)) for i in range(batches)
        ]
        atomic = self.number if rng.random() < 0.3 else 0
        return Group(tuple(marks), tuple(zip(destinations, content, strict=True)), atomic, self.number)

    def write(self, group: Group, *, more: bool = False) -> bool:
        """Whether it went well. If not, all that waits must be written again: `rewrite`."""
        self.declare(group.marks)  # the journal's snapshot also has what is only about to be written
        self.tails[-1] += tuple(group.items)
        self.note()
        data = [(destination, bytearray(content)) for destination, content in group.batches]
        try:
            positions = self.spool.write_group(group.marks, data, atomic=bool(group.atomic), more=more)
        except SpoolWriteError:
            self.waiting.append((group, []))
            self.tails.append(())
            self.note()
            return False
        assert positions == sorted(positions)
        if len(group.items) > len(positions):
            first = positions[0] if positions else self.spool.next_position
            self.waiting.append((group, [first - 1 - len(group.marks), *positions]))
        else:
            self.waiting.append((group, positions))
        for position, (_, content) in () if more else zip(positions, data, strict=True):
            assert patiently(lambda at=position: self.spool.read(at)) == content
        return True

    def sync(self) -> bool:
        try:
            synced = self.spool.sync()
        except SpoolWriteError:
            self.tails.append(())
            self.note()
            return False
        assert synced == self.spool.next_position == self.spool.synced_position
        for group, positions in self.waiting:
            self.promised += zip(positions, (item.what for item in group.items), strict=True)
        self.waiting.clear()
        self.tails = [()]
        self.note()
        return True

    def rewrite(self) -> bool:
        """What the contract asks for after a failure: write again what was not promised."""
        again = [group for group, _ in self.waiting]
        for done, group in enumerate(again):
            self.waiting = self.waiting[:done] if done else []
            if not self.write(group):
                self.waiting = [(group, []) for group in again]
                return False
        return True

    def commit(self, groups: Sequence[Group], *, tries: int = 20) -> None:
        """Write and sync, until it is promised."""
        ok = True
        for number, group in enumerate(groups, 1):
            if ok:
                # Several go to the disk in one write, or each in its own.
                ok = self.write(group, more=number < len(groups) and len(self.history) % 3 > 0)
            else:
                self.waiting.append((group, []))
        for _ in range(tries):
            if not ok:
                ok = self.rewrite()
            if ok and (ok := self.sync()):
                return
        raise AssertionError(f"not written in {tries} tries")

    def release(self, before: int, retain: int = 0) -> int:
        self.released = max(self.released, before)
        self.note()
        return self.spool.release(before, retain)

    def close(self) -> None:
        self.spool.close()
        self.lock.release()
        assert getattr(self.files, "open_handles", 0) == 0

    # -- what may be found ---------------------------------------------------------------------------------------------

    def note(self) -> None:
        at = len(self.disk.operations)
        self.history.append(Expected(at, len(self.promised), self.released, tuple(self.tails)))

    def expected(self, at: int) -> Expected:
        return [expected for expected in self.history if expected.at <= at][-1]

    def compare(self, items: list[tuple[int, tuple]], spool: Spool, expected: Expected):
        """What of `items` was not promised yet."""
        first = min((first for _, first, _ in spool.segments), default=spool.next_position)
        promised = self.promised[: expected.promised]
        # Only what is in front of the log may be missing, and only after a release.
        skipped = sum(at < first for at, _ in promised)
        assert first <= expected.released or skipped == 0, "released too much"
        kept = promised[skipped:]
        assert items[: len(kept)] == kept, "something promised is gone, or not what it was"
        rest = [what for _, what in items[len(kept) :]]
        for tail in expected.tails:
            whole = next((i for i, item in enumerate(tail) if rest[i : i + 1] != [item.what]), len(tail))
            if whole == len(rest):
                torn = 0 < len(rest) < len(tail) and tail[len(rest) - 1].atomic
                assert not (torn and torn == tail[len(rest)].atomic), "half an atomic group"
                return items[len(kept) :]
            # Of the group that was torn, what is whole behind what is not.
            others = iter(item.what for item in tail[whole + 1 :] if item.group == tail[whole].group)
            torn = whole < len(tail) and not tail[whole].atomic and tail[whole].what[0] == "batch"
            if torn and all(any(what == other for other in others) for what in rest[whole:]):
                return items[len(kept) :]
        raise AssertionError(f"found what was not written: {rest} is no beginning of any of {expected.tails}")

    def check_crashes(
        self, *, samples: int = 3, seed: int = 0, thorough: int = 8, start: int = 0, stop: int | None = None
    ) -> int:
        """Check every crash between these operations; one in `thorough` with crashes in its recovery. How many differ."""
        seen = set()
        for state in self.disk.crash_states(samples=samples, seed=seed, start=start, stop=stop):
            expected = self.expected(state.at)
            key = (id(expected), hash(frozenset(state.disk.files().items())))
            if key in seen:
                continue
            seen.add(key)
            try:
                self.check(state, expected, thorough=len(seen) % thorough == 0)
            except (AssertionError, KafkaSafeError) as error:
                raise AssertionError(f"crash at {state.at} ({state.how}): {error}") from error
        return len(seen)

    def check(self, state: CrashState, expected: Expected, *, thorough: bool) -> None:
        """Recover from a crash, and from crashes in that recovery and behind it."""
        disk = state.disk
        found = recover(disk)
        self.compare(found.items, found.spool, expected)
        if thorough:
            # What recovery gave is durable: whatever comes, the same is found again.
            for middle in disk.crash_states(samples=2, seed=state.at):
                other = recover(middle.disk)
                assert other.items == found.items, f"after a crash in recovery: {middle.at} {middle.how}"
                other.close()
            left = scan(disk.process(), LANE)
            assert left.damage == []
            assert left.doomed == []
            # Of a torn group the leading batches stay, so the place of the others is still marked: nothing is there.
            assert left.torn is None or len(disk.files()[left.torn[0]]) == left.torn[1]
        found.close()
