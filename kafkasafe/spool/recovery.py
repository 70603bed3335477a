"""Reads a lane's log: the content of its segments, the torn tail that a crash may have left, and damage.

`scan` reads all segments, and returns their content and the place where the spool must cut off a torn tail. `scan`
changes nothing. `docs/spool-format.md`, section Recovery, has the rules.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from kafkasafe import marks as m
from kafkasafe.history.identity import BatchId
from kafkasafe.journal import Journal
from kafkasafe.record import batch as codec
from kafkasafe.spool.extent import EXTENT_NAME, Extent, decode_extent
from kafkasafe.spool.files import Files, WholeFiles, opened, read_file, read_whole
from kafkasafe.spool.log_content import BatchEntry, Damage, Entry, Log, LostEntry, MarksEntry, TornEntry
from kafkasafe.spool.outline import OutlineReader
from kafkasafe.spool.refusals import place_of
from kafkasafe.spool.segment import SEGMENT_NAME, StoredSegment, segment_name
from kafkasafe.spool.segment_reader import (
    OVERHEAD_BYTES,
    Bad,
    ReadGroup,
    SegmentReader,
    group_at,
)


def replay(entries: Iterable[Entry], journal: Journal) -> None:
    """Passes the entries of a log to a journal. The caller must call `journal.recovery.recovered()` at the end."""
    for entry in entries:
        replay_one(entry, journal)
    journal.recovery.recovered_log()


def journal_of(log: Log) -> Journal:
    """Makes a journal from the lane's log, as a new owner of the lane does."""
    journal = Journal()
    replay(log.entries, journal)
    journal.recovery.recovered(0.0)
    return journal


def replay_one(entry: Entry, journal: Journal) -> None:
    """Passes one entry to a journal. After the last entry in log order, call `Recovery.recovered_log`."""
    match entry:
        case MarksEntry(position, marks, _):
            journal.recovery.recover_marks(position, marks)
        case BatchEntry(position, destination, header, size_bytes):
            identity = None
            if header.producer_id >= 0:
                identity = BatchId(
                    header.producer_id, header.producer_epoch, header.base_sequence, header.count
                )
            journal.recovery.recover_batch(
                position,
                destination,
                count=header.count,
                size_bytes=size_bytes,
                max_timestamp=header.max_timestamp,
                identity=identity,
            )
        case LostEntry(position, destination):
            journal.recovery.recover_lost(position, destination)
        case TornEntry(_, destination):
            journal.recovery.recover_torn(destination)


def scan(files: Files, lane: Path, each: Callable[[Entry], None] | None = None) -> Log:
    """Reads a lane.

    Args:
        files: The disk.
        lane: The lane's directory.
        each: Called, while the log is read, with each entry before the first torn or damaged place. `Log.entries` then
            has only the entries from this place on. With `each`, `scan` skips the content of large batches in segments
            that are certain to be durable. `Spool.read` checks this content later. A caller that passes `each` must
            hold the lane's lock.

    Raises:
        SpoolFormatError: A newer kafkasafe has written the lane.
        OSError: A file cannot be read.
    """
    # The file `extent` claims where the log begins and ends. During the scan, the lane's owner may move both positions
    # forward. So use the end that was claimed before the scan, because the scan certainly reaches it. Use the beginning
    # that is claimed after the scan: then segments that the owner deleted during the scan do not count as missing.
    before = read_extent(files, lane)
    names = sorted(name for name in files.list(lane) if SEGMENT_NAME.fullmatch(name))
    writers = {name: _writer(files, lane / name) for name in names}
    lane_id = _lane_id(list(writers.values()), before)
    # 1. Two processes own two directories. One directory is moved to the path of the other.
    # 2. The process whose directory was replaced creates its next segment by path, so this segment lands among the
    # segments of the other process. Leave the foreign segment out, and report it as damage. Otherwise recovery could
    # conclude, from the foreign segment's first position, that records before it are missing. These records never
    # existed, but recovery would cut off the foreign segment and all later segments as a torn tail.
    others = {name: writer for name, writer in writers.items() if writer not in {None, lane_id}}
    segments = [StoredSegment(lane / name, int(name[:20])) for name in names if name not in others]
    reader = SegmentReader(lane_id)
    whole = _Whole(segments, before.of(lane_id), each)
    if each is not None and (lane_id is None or _missing_front(lane, segments, whole.extent) is not None):
        whole.end()
    contents = WholeFiles(files)
    outlines = OutlineReader(files, lane_id) if lane_id is not None and each is not None else None
    durable_position = 0 if whole.extent.end is None else whole.extent.end.position
    for index, segment in enumerate(segments):
        limit = segments[index + 1].first_position if index + 1 < len(segments) else None
        groups: Iterable[ReadGroup | Bad] | None = None
        if outlines is not None and limit is not None and limit <= durable_position:
            groups = outlines.read(index, segment, limit)
        if groups is None:
            groups = reader.segment(index, segment, contents.read(segment.path), limit, before.end)
        for item in groups:
            whole.take(item)
    extent = Extent(read_extent(files, lane).begin, before.end).of(reader.lane_id)
    log = _judge(lane, whole, reader.lane_id, _synced(segments, whole.synced, extent), extent)
    log.damage.extend(_of_another_lane(files, lane / name, id_) for name, id_ in others.items() if id_)
    return log


def _writer(files: Files, path: Path) -> bytes | None:
    """The id of the lane that wrote a segment, from the segment's first spool group; None if the group is not intact.

    Raises:
        SpoolFormatError: A newer version of kafkasafe has written the segment.
        OSError: The file cannot be read.
    """
    with opened(files, path) as handle:
        header = files.read(handle, 0, codec.HEADER_BYTES)
        size = int.from_bytes(header[8:12], "big", signed=True) + OVERHEAD_BYTES
        if len(header) < codec.HEADER_BYTES or not codec.HEADER_BYTES < size <= files.size(handle):
            return None
        content = files.read(handle, 0, size)
    read = group_at(content, 0)
    return None if read is None else read[0].lane_id


def _lane_id(writers: Sequence[bytes | None], extent: Extent) -> bytes | None:
    """Id of the lane to which this log belongs: the id in the file `extent` if a segment has the same id, otherwise the
    id in the first segment that names one.
    """
    known = [writer for writer in writers if writer is not None]
    return extent.lane_id if extent.lane_id in known else next(iter(known), None)


def _of_another_lane(files: Files, path: Path, writer: bytes) -> Damage:
    content = read_file(files, path)
    groups = list(
        SegmentReader(writer).segment(0, StoredSegment(path, int(path.name[:20])), content, None, None)
    )
    records = sum(
        header.count
        for group in groups
        if isinstance(group, ReadGroup)
        for _, _, header in group.batches
        if header is not None
    )
    return Damage(path, 0, len(content), int(path.name[:20]), 0, records=records, other_lane=writer)


def _synced(segments: list[StoredSegment], stated: int, extent: Extent) -> int:
    """The position up to which the log was durable: the largest such position in the spool groups and in the extent."""
    synced = segments[0].first_position if segments else 0
    synced = max(synced, 0 if extent.end is None else extent.end.position)
    return max(synced, stated, 0)


def read_extent(files: Files, lane: Path) -> Extent:
    """What a lane's file `extent` claims about the log's beginning and end; empty if the file does not exist.

    Raises:
        OSError: The file cannot be read.
    """
    return decode_extent(read_whole(files, lane / EXTENT_NAME) or b"")


class _Whole:
    """Processes the intact spool groups before the first damaged or torn group. Nothing in later groups changes how
    these groups are processed.

    So `_Whole` processes the intact spool groups while the log is read, and passes their entries to `each`, if given,
    without keeping them. `_Whole` keeps all later groups until it is known up to which position the log was durable.

    Attributes:
        extent: What the file `extent` claimed about the log's beginning and end before the log was read.
        entries: The entries of the processed spool groups; empty if `each` is given.
        rest: The first spool group that is not intact, and all later groups.
        ended: Whether all further spool groups belong to `rest`.
        synced: Each spool group states a position before which the log was durable. This is the largest of these
            positions so far.
        known_torn: Positions of torn batches that earlier recoveries skipped, according to marks in the log.
        declared: Maps each destination's number to a text that names its topic and partition.
        closed: Whether the last group was written by an orderly close.
        end_position: Position after the last group, or -1.
        between: Number of records that were passed to `each`, and are between the beginning and the end that `extent`
            claims.
        after: Number of records that were passed to `each`, and are after the end that `extent` claims.
    """

    def __init__(
        self, segments: list[StoredSegment], extent: Extent, each: Callable[[Entry], None] | None
    ) -> None:
        self.segments = segments
        self.extent = extent
        self.entries: list[Entry] = []
        self._each = self.entries.append if each is None else each
        self._counts = each is not None
        self.rest: list[ReadGroup | Bad] = []
        self.ended = False
        self.synced = 0
        self.known_torn: set[int] = set()
        self.declared: dict[int, str] = {}
        self.groups = 0
        self.closed = False
        self.end_position = -1
        self.between = self.after = 0
        # (segment, end position, end byte) of each spool group that is not yet proven to have been durable.
        self._unproven: deque[tuple[int, int, int]] = deque()

    def end(self) -> None:
        """Keeps all further groups in `rest`."""
        self.ended = True

    def take(self, item: ReadGroup | Bad) -> None:
        """Processes the next group of the log."""
        if isinstance(item, ReadGroup):
            self.synced = max(self.synced, item.group.synced_position)
            for mark in item.marks:
                if isinstance(mark, m.Torn):
                    self.known_torn.update(mark.positions)
        if not self.ended and isinstance(item, ReadGroup) and self._is_whole(item):
            self._take(item)
        else:
            self.ended = True
            self.rest.append(item)

    def _is_whole(self, item: ReadGroup) -> bool:
        if item.torn or any(header is None for _, _, header in item.batches):
            return False
        new = {mark.number for mark in item.marks if isinstance(mark, m.Destination)}
        return all(
            entry.destination in self.declared or entry.destination in new for _, entry, _ in item.batches
        )

    def _take(self, item: ReadGroup) -> None:
        self.groups += 1
        self._unproven.append((item.segment, item.end_position, item.end))
        self.prove(self.synced)
        self.closed = item.group.closed
        self.declared.update(_declared(item.marks))
        self._each(MarksEntry(item.group.position, item.marks, item.written_ms))
        segment = self.segments[item.segment]
        for at, entry, header in item.batches:
            if header is None:
                continue
            segment.add(entry, at, header.count)
            self._count(entry.position, header.count)
            self._each(BatchEntry(entry.position, entry.destination, header, entry.size_bytes))
        self.end_position = item.end_position

    def _count(self, position: int, records: int) -> None:
        begin, end = self.extent.begin, self.extent.end
        if not self._counts or end is None:
            return
        if position >= end.position:
            self.after += records
        elif begin is not None and position >= begin.position:
            self.between += records

    def prove(self, synced: int) -> None:
        """Marks everything before the position `synced` as durable."""
        while self._unproven and self._unproven[0][1] <= synced:
            segment, _, end = self._unproven.popleft()
            self.segments[segment].prove(end)


def _declared(marks: Iterable[m.Mark]) -> dict[int, str]:
    return {
        mark.number: place_of(mark.topic, mark.partition) for mark in marks if isinstance(mark, m.Destination)
    }


class _Rest:
    """Processes the first spool group that is not intact and all later groups, and distinguishes a torn tail from
    damage.

    Attributes:
        entries: The spool groups' entries, up to the torn tail.
        damage: Damage, in log order.
        manifest: See `Log`.
        skipped: See `Log`.
        torn: (number of the segment, byte offset) where a torn tail begins, or None.
        groups: Number of intact groups of the log.
        closed: Whether the last group was written by an orderly close.
        next_position: Position after the last spool group, whether that group is intact or damaged.
    """

    def __init__(self, whole: _Whole, synced: int, next_position: int) -> None:
        self._segments = whole.segments
        self._synced = synced
        self._known_torn = whole.known_torn
        self._declared = dict(whole.declared)
        self.entries: list[Entry] = []
        self.damage: list[Damage] = []
        self.manifest: dict[tuple[Path, int], m.ManifestEntry] = {}
        self.skipped: list[int] = []
        self.torn: tuple[int, int] | None = None
        self.groups = whole.groups
        self.closed = whole.closed
        self.next_position = next_position

    def read(self, items: Iterable[ReadGroup | Bad]) -> None:
        """Processes the spool groups up to the torn tail."""
        for item in items:
            if isinstance(item, Bad):
                self._bad(item)
            else:
                self._group(item)
            if self.torn is not None:
                return

    def _bad(self, item: Bad) -> None:
        if item.position >= self._synced and item.torn:
            self.torn, self.next_position = (item.segment, item.at), item.position
            return
        path = self._segments[item.segment].path
        self.damage.append(Damage(path, item.at, item.end, item.position, 0, item.end_position))
        self.entries.append(LostEntry(item.position, 0))
        # Do not give the position of a damaged spool group to a later batch, so that the next incarnation finds the
        # damage again.
        self.next_position = max(item.position + 1, item.end_position)

    def _group(self, item: ReadGroup) -> None:
        gone = [
            (at, e) for at, e in item.torn if e.position >= self._synced or e.position in self._known_torn
        ]
        new = [(at, entry) for at, entry in gone if entry.position not in self._known_torn]
        if new and item.group.atomic:
            self.torn, self.next_position = (item.segment, item.at), item.group.position
            return
        self.groups += 1
        if item.end_position <= self._synced:
            self._segments[item.segment].prove(item.end)
        self.closed = item.group.closed
        self._declared.update(_declared(item.marks))
        self.entries.append(MarksEntry(item.group.position, item.marks, item.written_ms))
        cut = _cut_at(item, new)
        self._batches(item, {at for at, _ in gone}, None if cut is None else cut[0])
        if cut is None:
            self.next_position = item.end_position
        else:
            self.torn, self.next_position = (item.segment, cut[0]), cut[1]

    def _batches(self, item: ReadGroup, missing: set[int], cut: int | None) -> None:
        """Adds the batches of a spool group that begin before the byte offset `cut`. `missing` has the byte offsets of
        torn batches.
        """
        segment = self._segments[item.segment]
        for at, entry, header in item.batches:
            if cut is not None and at >= cut:
                break
            if at in missing:
                self.skipped.append(entry.position)
                self.entries.append(TornEntry(entry.position, entry.destination))
                continue
            if header is None or entry.destination not in self._declared:
                end = min(at + entry.size_bytes, item.end)
                name = self._declared.get(entry.destination, "")
                damage = Damage(segment.path, at, end, entry.position, entry.destination, name=name)
                self.damage.append(damage)
                self.manifest[segment.path, at] = entry
                self.entries.append(LostEntry(entry.position, entry.destination))
                continue
            segment.add(entry, at, header.count)
            self.entries.append(BatchEntry(entry.position, entry.destination, header, entry.size_bytes))


def _judge(lane: Path, whole: _Whole, lane_id: bytes | None, synced: int, extent: Extent) -> Log:
    """Distinguishes a torn tail from damage, and returns the content of the log before the tail."""
    whole.prove(synced)
    segments, entries = whole.segments, whole.entries
    damage: list[Damage] = []
    next_position = segments[0].first_position if segments else 0
    front = _missing_front(lane, segments, extent)
    if front is not None:
        damage.append(front)
        entries.insert(0, LostEntry(front.position, 0))
        next_position = max(next_position, front.end_position)
    elif not segments and extent.begin is not None:
        next_position = extent.begin.position
    if whole.end_position >= 0:
        next_position = whole.end_position
    rest = _Rest(whole, synced, next_position)
    rest.read(whole.rest)
    damage += rest.damage
    entries += rest.entries
    next_position = rest.next_position
    doomed: list[Path] = []
    tail = None
    if rest.torn is not None:
        index, at = rest.torn
        tail = (segments[index].path, at)
        segments[index].ends_at(at)
        doomed = [segment.path for segment in segments[index + 1 :]]
        segments = segments[: index + 1]
    else:
        if segments:
            next_position = max(next_position, segments[-1].first_position)
        if extent.end is not None:
            next_position = max(next_position, extent.end.position)
    after = 0
    if extent.end is not None:
        after = sum(
            entry.header.count
            for entry in entries
            if isinstance(entry, BatchEntry) and entry.position >= extent.end.position
        )
    return Log(
        segments,
        entries,
        _counted(damage, entries, extent, whole.between),
        tail,
        doomed,
        next_position,
        synced,
        lane_id or extent.lane_id,
        rest.groups,
        rest.closed,
        rest.manifest,
        tuple(rest.skipped),
        extent,
        whole.after + after,
    )


def _cut_at(item: ReadGroup, torn: list[tuple[int, m.ManifestEntry]]) -> tuple[int, int] | None:
    """(byte, position) at which to cut a torn spool group, after its last complete batch; None if nothing is torn."""
    if not torn:
        return None
    last = max((at for at, _, header in item.batches if header is not None), default=-1)
    after = next(((at, entry.position) for at, entry in torn if at > last), None)
    return (item.end, item.end_position) if after is None else after


def _missing_front(lane: Path, segments: list[StoredSegment], extent: Extent) -> Damage | None:
    """Returns the damage if the log's first segments, or all of its segments, are missing; otherwise None. The file
    `extent` says where the log must begin: the lane's owner has deleted the segments before this position.
    """
    begin, end = extent.begin, extent.end
    if segments:
        if begin is None or begin.position >= segments[0].first_position:
            return None
        first, end_position = begin.position, segments[0].first_position
    else:
        first = 0 if begin is None else begin.position
        end_position = max(0 if end is None else end.position, first)
        # The owner never deletes the last segment. So if the lane ever had a segment but has none now, files are
        # missing.
        if end_position == first and (begin is None or not begin.records):
            return None
    return Damage(lane / segment_name(first), 0, 0, first, 0, end_position)


def _counted(damage: list[Damage], entries: list[Entry], extent: Extent, before: int) -> list[Damage]:
    """Returns the damage with the number of records in each damaged range, calculated from positions, or from the
    totals in `extent`.

    `before` counts records that are not in `entries`, because they were passed to a callback. It counts only records
    between the two positions that `extent` claims.
    """
    follows = {entry.position: following.position for entry, following in itertools.pairwise(entries)}
    counted = []
    for item in damage:
        end_position = item.end_position
        if end_position < 0:
            end_position = follows.get(item.position, -1 if extent.end is None else extent.end.position)
        records = end_position - item.position
        if records <= 0:
            counted.append(item)
            continue
        # The range may contain more control batches, which also take positions. So this count is an upper bound.
        certain = item.destination > 0 and item.position in follows
        counted.append(replace(item, records=records if item.destination else records - 1, most=not certain))
    unsure = [index for index, item in enumerate(counted) if item.records < 0 or item.most]
    begin, end = extent.begin, extent.end
    if len(unsure) == 1 and begin is not None and end is not None:
        there = before + sum(
            entry.header.count
            for entry in entries
            if isinstance(entry, BatchEntry) and begin.position <= entry.position < end.position
        )
        there += sum(item.records for index, item in enumerate(counted) if index != unsure[0])
        item = counted[unsure[0]]
        missing = end.records - begin.records - there
        if missing >= 0 and (item.records < 0 or missing <= item.records):
            counted[unsure[0]] = replace(item, records=missing, most=False)
    return counted
