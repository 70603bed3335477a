"""Where the records of a batch were first written: the lane's owner, the reader of its whole log, and a reader of what the
spool still has of the log must agree, because the order across lanes depends on it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_journal import NOW_MS, TOPIC_ID, Shell

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe.history.identity import BatchId
from kafkasafe.journal.order import Owed

LANE = bytes(16)
Row = tuple[int, int, int, BatchId | None]
"""Position, destination, count and id of a batch in the log."""
Group = tuple[int, list[m.Mark], list[Row]]
"""Position, marks and batches of a group."""


class Logged(Shell):
    """Remembers the groups of the log."""

    def __init__(self) -> None:
        super().__init__(gather_bytes=65_536)
        self.log: list[Group] = []
        self.segments = [0]
        self.journal.granted(7, 0)

    def group(self, marks: Sequence[m.Mark], batches: Sequence[j.Batch]) -> list[int]:
        begin, ends = self.position, [self.position + 1 + len(marks)]
        ends.extend(itertools.accumulate((batch.count for batch in batches), initial=ends.pop()))
        rows = [
            (at, batch.destination, batch.count, batch.identity)
            for at, batch in zip(ends, batches, strict=False)
        ]
        self.log.append((begin, list(marks), rows))
        self.position = ends[-1]
        return ends[:-1]

    def write(self, persist: j.Persist) -> None:
        self.marks += persist.marks
        self.groups.append(persist)
        self.journal.persisted(persist, self.group(persist.marks, persist.batches), self.position)

    def copy(self) -> None:
        """Copies forward everything that waits, and begins a segment: the log before may be deleted."""
        self.segment()
        batches = self.journal.to_move(self.position, 1 << 20)
        assert batches
        positions = self.group(self.journal.move_marks(batches), batches)
        self.journal.moved(batches, positions, self.position)
        self.segment()

    def segment(self) -> None:
        self.segments.append(self.position)
        self.group(self.journal.snapshot(), [])

    def divide(self, *counts: int) -> list[j.Batch]:
        """Divides the batch that the journal asks for."""
        divide = self.divides.pop(0)
        number = divide.batch.destination if divide.refused else self.journal.destination("t", 0)
        return self.journal.replaced(divide.batch, [(number, count, 50, NOW_MS, False) for count in counts])

    def send(self) -> None:
        """The partition is there, and everything is sent that may be."""
        self.turn()
        self.journal.baseline(self.journal.destination("t", 0), 0, TOPIC_ID)
        self.turn()

    def places(self) -> list[tuple[int, int]]:
        """(position, position where its records were first written) of each batch that waits, as its owner has it."""
        return sorted((batch.position, batch.written_at) for _, _, batch in self.journal.views.batches())

    def copy_before(self, position: int) -> None:
        """Copies forward what keeps the log before this position, and begins a segment."""
        batches = self.journal.to_move(position, 1 << 20)
        assert batches
        positions = self.group(self.journal.move_marks(batches), batches)
        self.journal.moved(batches, positions, self.position)
        self.segment()

    def order(self) -> list[int]:
        """The positions of the batches that wait, in the order in which they are delivered."""
        return [batch.position for _, _, batch in self.journal.views.batches()]

    def rest(self) -> list[Group]:
        """What is left of the log when all segments are deleted that may be."""
        begin = max(at for at in self.segments if at <= self.journal.views.release_position)
        return [group for group in self.log if group[0] >= begin]


def owed(log: Sequence[Group]) -> list[tuple[int, int]]:
    """`Logged.places` as another lane reads it."""
    read = Owed()
    read.begins(log[0][0])
    for position, marks, rows in log:
        manifest = tuple(m.ManifestEntry(at, number, 100, 0) for at, number, _, _ in rows)
        read.group(m.Group(2, LANE, position, 0, True, False, False, manifest), marks)
    return sorted((position, origin) for position, (_, origin) in read.open.items())


def heir_of(log: Sequence[Group]) -> Shell:
    """The lane's next owner, who has read this log."""
    heir = Shell()
    for position, marks, rows in log:
        heir.journal.recovery.recover_marks(position, marks)
        for at, number, count, identity in rows:
            heir.journal.recovery.recover_batch(
                at, number, count=count, size_bytes=100, max_timestamp=NOW_MS, identity=identity
            )
    heir.journal.recovery.recovered_log()
    heir.journal.recovery.recovered(0.0)
    return heir


def recovered(log: Sequence[Group]) -> list[tuple[int, int]]:
    """`Logged.places` as the lane's next owner reads it."""
    heir = heir_of(log)
    return sorted((batch.position, batch.written_at) for _, _, batch in heir.journal.views.batches())


def agreed(shell: Logged) -> list[int]:
    """Where the records that wait were first written, after all agreed."""
    waits, rest = shell.places(), shell.rest()
    assert owed(shell.log) == waits, "the whole log, read by another lane"
    assert owed(rest) == waits, "the rest of the log, read by another lane"
    assert recovered(shell.log) == waits, "the whole log, read by the next owner"
    assert recovered(rest) == waits, "the rest of the log, read by the next owner"
    return [origin for _, origin in waits]


def unassigned(*counts: int) -> tuple[Logged, list[int]]:
    """Batches whose partitions are not known, and where they were written."""
    shell = Logged()
    batches = shell.seal(*counts, partition=j.UNCHOSEN)
    shell.turn()
    return shell, [batch.position for batch in batches]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("copies", [0, 1, 2])
def test_the_parts_of_a_batch_that_was_copied_forward_are_as_old_as_its_records(
    copies: int, together: bool
) -> None:
    """Only the position of the copy was named, so the parts were as old as the copy when its segment was deleted."""
    shell, (first, second) = unassigned(4, 2)
    for _ in range(copies):
        shell.copy()
    shell.journal.learn_topic("t", TOPIC_ID, 1)
    shell.segment()
    shell.turn()
    shell.divide(3, 1)
    if not together:
        shell.turn()
    shell.divide(2)
    shell.turn()
    assert shell.rest()[0][0] > second, "the segment of the batches that were divided is gone"
    assert agreed(shell) == [first, first, second]
    shell.copy()
    assert agreed(shell) == [first, first, second]


def test_a_part_that_was_copied_and_is_divided_says_nothing_of_the_batch_that_it_was_part_of() -> None:
    """That batch still has another part, and must not be replaced once more."""
    shell = Logged()
    (whole,) = shell.seal(6)
    shell.send()
    shell.refused(whole, 10)
    part, other = shell.divide(4, 2)
    shell.turn()
    shell.segment()
    (copied,) = shell.journal.to_move(other.position, 1)
    assert copied is part
    positions = shell.group(shell.journal.move_marks([part]), [part])
    shell.journal.moved([part], positions, shell.position)
    shell.refused(part, 10)
    shell.divide(3, 1)
    shell.turn()
    assert agreed(shell) == [whole.position] * 3


@pytest.mark.parametrize("copies", [0, 1])
def test_the_parts_of_a_refused_part_are_as_old_as_its_records(copies: int) -> None:
    """Their owner took them for as old as the part, and held them back for batches that waited for them."""
    shell, (first,) = unassigned(6)
    for _ in range(copies):
        shell.copy()
    shell.journal.learn_topic("t", TOPIC_ID, 1)
    shell.turn()
    (part,) = shell.divide(6)
    shell.send()
    shell.segment()
    shell.refused(part, 10)
    shell.divide(4, 2)
    shell.turn()
    assert agreed(shell) == [first, first]
    shell.copy()
    assert agreed(shell) == [first, first]


def test_parts_that_were_copied_are_before_later_batches_though_the_segment_of_the_whole_is_gone() -> None:
    """The next owner appended the parts where they were first read, behind the later batch, and delivered that first."""
    shell = Logged()
    first, second = shell.seal(4, 2)
    shell.send()
    shell.segment()
    shell.copy_before(second.position)
    shell.copy_before(second.position + 1)
    shell.refused(first, 10)
    parts = shell.divide(3, 1)
    shell.turn()
    shell.segment()
    shell.copy_before(first.position + 1)
    assert shell.rest()[0][0] > first.position, "the segment of the batch that was divided is gone"
    expected = [*(part.position for part in parts), second.position]
    assert shell.order() == expected
    for log in (shell.log, shell.rest()):
        heir = heir_of(log)
        assert [batch.position for _, _, batch in heir.journal.views.batches()] == expected
