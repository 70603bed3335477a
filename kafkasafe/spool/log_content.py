"""The content of a lane's log, as recovery reads it: its entries, and its damage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from kafkasafe import marks as m
from kafkasafe.record import batch as codec
from kafkasafe.spool.extent import Extent
from kafkasafe.spool.segment import StoredSegment


@dataclass(frozen=True, slots=True)
class MarksEntry:
    """The marks (entries) of a spool group, with the position of its control batch and the time of writing (ms since
    the epoch).
    """

    position: int
    marks: Sequence[m.Mark]
    written_ms: int = -1


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """A complete data batch whose checksums match."""

    position: int
    destination: int
    header: codec.BatchHeader
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LostEntry:
    """A damaged part of a lane's log.

    Attributes:
        position: Position of the damaged part.
        destination: Destination of the damaged data batch; 0 if a whole spool group is lost, with its marks (entries).
    """

    position: int
    destination: int


@dataclass(frozen=True, slots=True)
class TornEntry:
    """A batch that a crash tore, although later batches of its spool group are complete. The batch was never reported
    as durable.
    """

    position: int
    destination: int


Entry: TypeAlias = MarksEntry | BatchEntry | LostEntry | TornEntry


@dataclass(frozen=True, slots=True)
class Damage:
    """A byte range whose content differs from the bytes that were written.

    Attributes:
        path: The segment, which may be missing.
        start: First byte.
        end: End of the range (exclusive); equal to `start` if bytes are missing.
        position: Position of the damaged batch or group.
        destination: Destination of the data batch; 0 for a spool group.
        end_position: End of the damaged positions (exclusive); -1 if unknown.
        records: Number of damaged data records; -1 if unknown.
        most: Whether `records` is an upper bound, not the exact number.
        name: Topic and partition of the data batch, if known.
        other_lane: Id of the other lane that wrote the segment; None if this lane wrote it. A segment of another lane
            counts as damaged as a whole.
    """

    path: Path
    start: int
    end: int
    position: int
    destination: int
    end_position: int = -1
    records: int = -1
    most: bool = False
    name: str = ""
    other_lane: bytes | None = None

    def __str__(self) -> str:
        many = ""
        if self.records >= 0:
            plural = "" if self.records == 1 else "s"
            many = f" ({'up to ' if self.most else ''}{self.records:,} record{plural})"
        if self.other_lane is not None:
            return f"{self.path.name}: a segment of another lane (id {self.other_lane.hex()}){many}"
        to = f" to {self.end_position - 1}" if self.end_position > self.position + 1 else ""
        if self.destination:
            batch = f"a batch for {self.name}" if self.name else f"a batch of destination {self.destination}"
            what = f"{batch} at position {self.position}{many}"
        elif self.start == self.end:
            where = f"position{'s' if to else ''} {self.position}{to}{many}"
            if self.start == 0:
                return f"{self.path.name}: missing or empty, and with it {where}"
            return f"{self.path.name}: ends at byte {self.end}, where {where} should follow"
        else:
            what = f"a group at position {self.position}{many}"
        if self.start == self.end:
            return f"{self.path.name}: ends at byte {self.end}, where {what} should follow"
        return f"{self.path.name}: bytes {self.start} to {self.end}, {what}"


@dataclass(frozen=True, slots=True)
class Log:
    """The content of a lane.

    Attributes:
        segments: The segments in order, without those after a torn tail.
        entries: The content of the segments, in the order of the log.
        damage: Damage, in the order of the log. A torn tail is not damage.
        torn: (segment, byte offset) where a torn tail begins, or None.
        doomed: Segments after a torn tail. They have to be deleted.
        next_position: Position after the last record.
        synced_position: All records before this position are proven to have been durable.
        lane_id: Id of the lane; None if neither a spool group nor `extent` contains the id.
        closed: Whether the last spool group was written by an orderly close.
        manifest: Maps the (segment, byte offset) of each damaged data batch to the batch's entry in the manifest of its
            spool group.
        skipped: Positions of torn batches that are followed by intact batches of the same spool group.
        extent: The claims of the lane's `extent`.
        records_after_end: Number of records in intact batches after the end that `extent` claims. The claim may be
            older than these batches.
    """

    segments: list[StoredSegment]
    entries: list[Entry]
    damage: list[Damage]
    torn: tuple[Path, int] | None
    doomed: list[Path]
    next_position: int
    synced_position: int
    lane_id: bytes | None
    groups: int
    closed: bool
    manifest: dict[tuple[Path, int], m.ManifestEntry] = field(default_factory=dict)
    skipped: tuple[int, ...] = ()
    extent: Extent = field(default_factory=Extent)
    records_after_end: int = 0
