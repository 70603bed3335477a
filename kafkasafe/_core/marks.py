"""The spool's marks ⇄ control batches, exactly as `docs/spool-format.md` says.

A group of the spool begins with one control batch: a GROUP record, which lists the data batches that follow,
and then the marks, in the order in which they were decided. All state of a spool is derived from them, so a
mark is checked when it is written and when it is read: a value without meaning is an error, never a guess.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from kafkasafe._core import batch

__all__ = [
    "FORMAT_VERSION",
    "LANE_ID_BYTES",
    "NO_TOPIC_ID",
    "UNIT_ID_BYTES",
    "After",
    "Begun",
    "Cluster",
    "Committed",
    "Debt",
    "Decision",
    "Destination",
    "Ended",
    "Given",
    "Granted",
    "Group",
    "GroupOffsets",
    "Identified",
    "Identity",
    "IdentityReason",
    "ManifestEntry",
    "Mark",
    "MarkError",
    "Move",
    "Moved",
    "Placed",
    "Position",
    "Quiet",
    "Read",
    "Rejected",
    "Replaced",
    "Resent",
    "Resolved",
    "Revived",
    "Staged",
    "State",
    "Topic",
    "Torn",
    "Undecidable",
    "Unit",
    "UnitOutcome",
    "UnknownFormatError",
    "bytes_of_each",
    "decode_group",
    "encode_group",
]

FORMAT_VERSION: Final = 2
LANE_ID_BYTES: Final = 16
UNIT_ID_BYTES: Final = 16
NO_TOPIC_ID: Final = bytes(16)
"""Topic id of a topic whose id is not known."""


class MarkError(ValueError):
    """A control batch that is damaged, or a mark that the format has no meaning for."""


class UnknownFormatError(MarkError):
    """An intact control batch of a newer kafkasafe: this one must leave the lane alone."""


class IdentityReason(enum.IntEnum):
    """Why batches get a batch id by a mark."""

    FIRST = 0
    REIDENTIFIED = 1


class Decision(enum.IntEnum):
    """The user's decision about an undecidable batch."""

    RESEND = 1
    SKIP = 2


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One data batch of a group. It protects the header fields that Kafka's CRC does not cover.

    Attributes:
        position: Its base offset in the spool.
        destination: Its destination number, ≥ 1.
        size_bytes: Size of the whole batch.
        crc: The CRC32C in its header.
    """

    position: int
    destination: int
    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class Group:
    """The record at the beginning of every group.

    Attributes:
        format_version: 2; 1 before there was an extent.
        lane_id: 16 bytes, random, made with the lane.
        position: Position of this control batch.
        synced_position: Everything before it (exclusive) was durable when the group was written.
        atomic: All of the group counts, or none.
        snapshot: First group of a segment.
        closed: Written by an orderly close.
        manifest: The data batches that follow, in order, without holes in their positions.
    """

    format_version: int
    lane_id: bytes
    position: int
    synced_position: int
    atomic: bool
    snapshot: bool
    closed: bool
    manifest: tuple[ManifestEntry, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """The last known id and partition count of a topic.

    Attributes:
        topic: Name.
        topic_id: 16 bytes, `NO_TOPIC_ID` when unknown.
        partition_count: -1 when unknown.
    """

    topic: str
    topic_id: bytes
    partition_count: int


@dataclass(frozen=True, slots=True)
class Destination:
    """Declares a destination number of this lane.

    Attributes:
        number: ≥ 1.
        topic: Topic name.
        partition: -1 when it is to be chosen at first contact.
    """

    number: int
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class State:
    """The progress of a destination.

    A mark that knows nothing is a reset: from here on, the lane writes to the log of another cluster or another topic,
    which has none of the batches that earlier marks call acknowledged.

    Attributes:
        destination: Its number.
        baseline_offset: The partition's end offset before this lane's first batch; -1 for none.
        last_acked_offset: Offset of the last acknowledged record (inclusive); -1 if there was none.
        leader_epoch: Leader epoch of that offset, -1 when unknown.
        topic_id: 16 bytes: the topic those offsets belong to.
    """

    destination: int
    baseline_offset: int
    last_acked_offset: int
    leader_epoch: int
    topic_id: bytes

    @property
    def knows_nothing(self) -> bool:
        """Neither an offset, nor a leader epoch, nor a topic id."""
        return self == State(self.destination, -1, -1, -1, NO_TOPIC_ID)


@dataclass(frozen=True, slots=True)
class Granted:
    """The cluster granted a producer id."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Identity:
    """The batch at `position` has this batch id from now on."""

    position: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


@dataclass(frozen=True, slots=True)
class Identified:
    """Gives batches of one destination their batch id.

    Attributes:
        destination: Its number.
        reason: First id, or a new one.
        void_from: Every unfinished batch of the destination at or after this position that `entries` does
            not list loses its id; -1 for none.
        entries: Which batch gets which id.
    """

    destination: int
    reason: IdentityReason
    void_from: int
    entries: tuple[Identity, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """Batches of one destination are in the cluster's log.

    Attributes:
        destination: Its number.
        leader_epoch: Leader epoch that acknowledged them, -1 when unknown.
        entries: (position, base offset in the partition) of each; offset -1 if it is in the log at an unknown offset.
    """

    destination: int
    leader_epoch: int
    entries: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Replaced:
    """Data batches of this group hold the records of the batch at `position`. Only in atomic groups.

    Attributes:
        position: The replaced batch, in an earlier group.
        first_child: Index of the first child in this group's manifest.
        children: Number of children, ≥ 1.
    """

    position: int
    first_child: int
    children: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The cluster refused the batch for good. A message above 32,767 bytes is cut when written."""

    position: int
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Undecidable:
    """Whether the batch is in the log cannot be known. Evidence above 32,767 bytes is cut when written."""

    position: int
    evidence: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """The user decided about an undecidable batch."""

    position: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Quiet:
    """The time from which on no broker can append the last request of this lane's owners, or an earlier one.

    Attributes:
        until_ms: By the wall clock, ms since the epoch; -1: not known, because the owner sends requests from here on.
        written_ms: When this was written, by the same clock.
        boot_id: 16 bytes, of the run of the machine in which it was written; zeros when unknown.
        boot_ms: When it was written, ms since that run began, without the time it slept.
    """

    until_ms: int
    written_ms: int
    boot_id: bytes
    boot_ms: int


@dataclass(frozen=True, slots=True)
class Revived:
    """The cluster lost batches that it had acknowledged; they are unfinished again.

    Attributes:
        destination: Its number.
        end_offset: The log's end when the journal noticed the loss (exclusive): acknowledged records from there on are
            lost.
        positions: The batches that are sent again, in this order; empty if the spool no longer has any of them.
        given_up: Lost batches that are not sent again although the spool has them.
        moved: (position, base offset) of batches that the log holds at another offset than the acknowledged one.
    """

    destination: int
    end_offset: int
    positions: tuple[int, ...]
    given_up: tuple[int, ...] = ()
    moved: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Resent:
    """The lane's log holds the records of a file in `rejected/`.

    The data batches of this group hold them, if the group is atomic; otherwise earlier batches do.

    Attributes:
        lane: Name of the lane's directory.
        file: Name of the file in its `rejected/`.
    """

    lane: str
    file: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster to which a lane's offsets belong from here on; in `rejected/`, the one that the batches were for."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class Torn:
    """A crash tore these batches before any caller was promised their durability: their remains are not damage."""

    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """The partitions that callers gave with records of a data batch of this group; the batch is for partition -1.

    Attributes:
        index: Of the batch in this group's manifest.
        runs: (index of the first record, number of records, partition), ascending. The partitions of all other records
            are to be chosen.
    """

    index: int
    runs: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Debt:
    """How far ended incarnations wrote another lane of the directory.

    Attributes:
        lane: Its number.
        lane_id: Its id.
        before: Position after their last batch (exclusive).
    """

    lane: int
    lane_id: bytes
    before: int


@dataclass(frozen=True, slots=True)
class After:
    """An incarnation began: per topic-partition, its batches follow the unfinished ones of earlier incarnations.

    Attributes:
        position: Positions from here on were written by this incarnation or a later one.
        debts: The parts of other lanes that are delivered first.
    """

    position: int
    debts: tuple[Debt, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a consumer group continues in one partition.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        offset: Of the next record to be read.
        leader_epoch: Of the last one that was read, -1 when unknown.
        metadata: Kept with it.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Offsets of a consumer group that are committed in a unit's transaction.

    Attributes:
        group: Its name.
        member_id: The member that commits; empty: none.
        generation_id: The generation in which it got its partitions, -1 for none.
        group_instance_id: Of a static member.
        positions: By partition.
    """

    group: str
    member_id: str
    generation_id: int
    group_instance_id: str | None
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """Batches of this group are delivered together or not at all. Only in atomic groups.

    Attributes:
        unit_id: 16 bytes, never reused.
        first: Index of the first batch in this group's manifest.
        batches: How many, ≥ 0.
        transactional_id: Of its transaction; empty: one of the lane's own.
        offsets: Of consumer groups, part of it.
    """

    unit_id: bytes
    first: int
    batches: int
    transactional_id: str = ""
    offsets: tuple[GroupOffsets, ...] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """Which readings of consumers the offsets of a unit come from.

    Attributes:
        unit_id: The unit's.
        entries: (number, start) for each position of its UNIT mark, in their order. Units with the same number continue
            one another's reading. Start is the group's offset when the reading began, -1 when that is not known.
    """

    unit_id: bytes
    entries: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """A transaction began for a unit. It voids an earlier `Staged` of the unit.

    Attributes:
        unit_id: The unit's.
        transactional_id: Of the transaction.
        producer_id: Granted by the coordinator.
        producer_epoch: Granted by the coordinator.
        protocol: 1, or 2 (KIP-890).
    """

    unit_id: bytes
    transactional_id: str
    producer_id: int
    producer_epoch: int
    protocol: int


@dataclass(frozen=True, slots=True)
class Placed:
    """The place of a unit's batch in the spool and in the log, whether committed or not.

    Attributes:
        destination: Its number.
        position: Of the batch in the spool.
        count: Records in it.
        base_sequence: Of its first record.
        base_offset: Of its first record in the partition, -1 where the broker did not say.
    """

    destination: int
    position: int
    count: int
    base_sequence: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class Staged:
    """The logs of a unit's partitions have all of its batches. Any reader of this mark may commit the transaction.

    Attributes:
        begun: The transaction.
        places: Of all its batches.
    """

    begun: Begun
    places: tuple[Placed, ...]


class UnitOutcome(enum.IntEnum):
    """How a unit ended."""

    COMMITTED = 1
    DROPPED = 2


@dataclass(frozen=True, slots=True)
class Ended:
    """The fate of a unit is final. A reason above 32,767 bytes is cut when written."""

    unit_id: bytes
    outcome: UnitOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """One batch of MOVED.

    Attributes:
        position: Its position before.
        origin: The position where its records were first written, for AFTER.
        rank: Sorts the batches of its destination.
    """

    position: int
    origin: int
    rank: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """The data batches of this group are copies of earlier batches and replace them. Only in atomic groups.

    Attributes:
        moves: One for each data batch, in their order.
    """

    moves: tuple[Move, ...]


Mark: TypeAlias = (
    Topic
    | Destination
    | State
    | Granted
    | Identified
    | Committed
    | Replaced
    | Rejected
    | Undecidable
    | Resolved
    | Revived
    | Resent
    | Cluster
    | Torn
    | Given
    | Quiet
    | After
    | Unit
    | Read
    | Begun
    | Staged
    | Ended
    | Moved
)


class _Type(enum.IntEnum):
    """Control record types: far from Kafka's own, which count from 0."""

    GROUP = 0x4B00
    TOPIC = 0x4B01
    DESTINATION = 0x4B02
    STATE = 0x4B03
    GRANTED = 0x4B04
    IDENTIFIED = 0x4B05
    COMMITTED = 0x4B06
    REPLACED = 0x4B07
    REJECTED = 0x4B08
    UNDECIDABLE = 0x4B09
    RESOLVED = 0x4B0A
    REVIVED = 0x4B0B
    TORN = 0x4B0C
    RESENT = 0x4B0E
    CLUSTER = 0x4B0F
    GIVEN = 0x4B10
    QUIET = 0x4B11
    AFTER = 0x4B12
    UNIT = 0x4B16
    BEGUN = 0x4B17
    STAGED = 0x4B18
    ENDED = 0x4B19
    READ = 0x4B1A
    MOVED = 0x4B14


_Member = TypeVar("_Member", bound=enum.IntEnum)

_CONTROL_ONLY: Final = 0x20  # the attributes of an uncompressed control batch
_KEY: Final = struct.Struct(">hh")
_KEY_VERSION: Final = 0

_VERSION: Final = struct.Struct(">h")
_GROUP: Final = struct.Struct(">h16sqqii")
_MANIFEST_ENTRY: Final = struct.Struct(">qiiI")
_AROUND: Final = 20
"""The most bytes that a record has besides key and value: five numbers, attributes, the count of headers."""
_SHORT: Final = struct.Struct(">h")
_TOPIC: Final = struct.Struct(">16si")
_NUMBER: Final = struct.Struct(">i")
_STATE: Final = struct.Struct(">iqqi16s")
_GRANTED: Final = struct.Struct(">qh")
_IDENTIFIED: Final = struct.Struct(">ibqi")
_IDENTITY: Final = struct.Struct(">qqhi")
_COMMITTED: Final = struct.Struct(">iii")
_COMMITTED_ENTRY: Final = struct.Struct(">qq")
_REPLACED: Final = struct.Struct(">qii")
_REJECTED: Final = struct.Struct(">qh")
_POSITION: Final = struct.Struct(">q")
_RESOLVED: Final = struct.Struct(">qb")
_QUIET: Final = struct.Struct(">qq16sq")
_REVIVED: Final = struct.Struct(">iqiii")
_GIVEN: Final = struct.Struct(">ii")
_MOVE: Final = struct.Struct(">qqi")
_RUN: Final = struct.Struct(">iii")
_AFTER: Final = struct.Struct(">qi")
_DEBT: Final = struct.Struct(">i16sq")
_UNIT: Final = struct.Struct(">16sii")
_UNIT_ID: Final = struct.Struct(">16s")
_MEMBER: Final = struct.Struct(">ib")
_OFFSET: Final = struct.Struct(">iqi")
_READING: Final = struct.Struct(">qq")
_GRANT: Final = struct.Struct(">qhb")
_PLACED: Final = struct.Struct(">iqiiq")
_OUTCOME: Final = struct.Struct(">b")

_ATOMIC: Final = 1
_SNAPSHOT: Final = 2
_CLOSED: Final = 4

_STR16_MAX: Final = 2**15 - 1


def encode_group(group: Group, marks: Sequence[Mark], timestamp: int) -> bytearray:
    """The control batch that begins a group, with its address (position, destination 0) in it.

    It takes 1 + len(marks) positions: the manifest's first batch is at `group.position` + 1 + len(marks).

    Args:
        group: The group record.
        marks: The marks, in the order in which they were decided.
        timestamp: Ms since the epoch.

    Raises:
        MarkError: A value has no meaning in the format. `decode_group` would refuse it, so it is not written.
    """
    _check(group, marks)
    try:
        records = [(_KEY.pack(_KEY_VERSION, _Type.GROUP), _write_group(group))]
        for mark in marks:
            kind, body = _write_mark(mark)
            records.append((_KEY.pack(_KEY_VERSION, kind), body))
        buf = batch.encode_control(records, timestamp=timestamp)
        batch.stamp_address(buf, group.position, 0)
    except (struct.error, ValueError) as error:
        raise MarkError(f"A value that does not fit into the spool format: {error}") from error
    return buf


def bytes_of_each(message: str, given: Sequence[tuple[int, int, int]] | None) -> int:
    """Upper bound of the bytes that a rejected batch takes in the control batch of the group that keeps it.

    Args:
        message: Of its `Rejected`.
        given: Runs of its `Given`, None where it has none.
    """
    marks: list[Mark] = [Rejected(0, 0, message)]
    if given is not None:
        marks.append(Given(0, tuple(given)))
    return _MANIFEST_ENTRY.size + sum(_AROUND + _KEY.size + len(_write_mark(mark)[1]) for mark in marks)


def decode_group(buf: batch.Buffer) -> tuple[Group, list[Mark]]:
    """The group record and the marks of a control batch, after all checks.

    Args:
        buf: The control batch; bytes after it are ignored.

    Raises:
        MarkError: Not an intact control batch of a spool.
        UnknownFormatError: Intact, but of a newer format.
    """
    try:
        columns = batch.decode(buf)
    except batch.CorruptBatchError as error:
        raise MarkError(f"Not an intact control batch: {error}") from error
    header = columns.header
    if (
        header.attributes != _CONTROL_ONLY
        or (header.producer_id, header.producer_epoch, header.base_sequence) != (-1, -1, -1)
        or not header.count
        or columns.headers
        or not isinstance(columns.offsets, range)
    ):
        raise MarkError(f"The batch at position {header.base_offset} is not a control batch of a spool")
    bodies = list(map(_Body, columns.keys, columns.values))
    if bodies[0].kind is not _Type.GROUP:
        raise MarkError(f"The control batch at position {header.base_offset} does not begin with a group")
    group = _read_group(bodies[0])
    if (header.base_offset, header.partition_leader_epoch) != (group.position, 0):
        raise MarkError(
            f"The control batch of position {group.position} has the address {header.base_offset},"
            f" destination {header.partition_leader_epoch}"
        )
    marks = [_read_mark(body) for body in bodies[1:]]
    _check(group, marks)
    return group, marks


def _write_group(group: Group) -> bytes:
    flags = _ATOMIC * group.atomic | _SNAPSHOT * group.snapshot | _CLOSED * group.closed
    pieces = [
        _GROUP.pack(
            group.format_version,
            group.lane_id,
            group.position,
            group.synced_position,
            flags,
            len(group.manifest),
        )
    ]
    pieces += [_MANIFEST_ENTRY.pack(e.position, e.destination, e.size_bytes, e.crc) for e in group.manifest]
    return b"".join(pieces)


def _read_group(body: _Body) -> Group:
    # Whatever else a newer version changed, it begins with its number.
    (version,) = _VERSION.unpack(body.peek(_VERSION.size))
    if version > FORMAT_VERSION:
        raise UnknownFormatError(
            f"The spool has format {version}, this kafkasafe reads up to {FORMAT_VERSION}: upgrade kafkasafe"
        )
    version, lane_id, position, synced_position, flags, count = body.take(_GROUP)
    if flags & ~(_ATOMIC | _SNAPSHOT | _CLOSED):
        raise UnknownFormatError(f"A group with unknown flags {flags:#x}: written by a newer kafkasafe")
    manifest = tuple(ManifestEntry(*entry) for entry in body.take_all(_MANIFEST_ENTRY, count))
    body.finish()
    return Group(
        version,
        lane_id,
        position,
        synced_position,
        bool(flags & _ATOMIC),
        bool(flags & _SNAPSHOT),
        bool(flags & _CLOSED),
        manifest,
    )


def _write_mark(mark: Mark) -> tuple[int, bytes]:
    match mark:
        case Topic(topic, topic_id, partition_count):
            return _Type.TOPIC, _str16(topic) + _TOPIC.pack(topic_id, partition_count)
        case Destination(number, topic, partition):
            return _Type.DESTINATION, _NUMBER.pack(number) + _str16(topic) + _NUMBER.pack(partition)
        case State(destination, baseline_offset, last_acked_offset, leader_epoch, topic_id):
            body = _STATE.pack(destination, baseline_offset, last_acked_offset, leader_epoch, topic_id)
            return _Type.STATE, body
        case Granted(producer_id, producer_epoch):
            return _Type.GRANTED, _GRANTED.pack(producer_id, producer_epoch)
        case Identified(destination, reason, void_from, entries):
            pieces = [_IDENTIFIED.pack(destination, reason, void_from, len(entries))]
            pieces += [
                _IDENTITY.pack(e.position, e.producer_id, e.producer_epoch, e.base_sequence) for e in entries
            ]
            return _Type.IDENTIFIED, b"".join(pieces)
        case Committed(destination, leader_epoch, committed):
            pieces = [_COMMITTED.pack(destination, leader_epoch, len(committed))]
            pieces += [_COMMITTED_ENTRY.pack(position, offset) for position, offset in committed]
            return _Type.COMMITTED, b"".join(pieces)
        case Replaced(position, first_child, children):
            return _Type.REPLACED, _REPLACED.pack(position, first_child, children)
        case Rejected(position, code, message):
            return _Type.REJECTED, _REJECTED.pack(position, code) + _str16(_cut(message))
        case Undecidable(position, evidence):
            return _Type.UNDECIDABLE, _POSITION.pack(position) + _str16(_cut(evidence))
        case Resolved(position, decision):
            return _Type.RESOLVED, _RESOLVED.pack(position, decision)
        case Resent(lane, file):
            return _Type.RESENT, _str16(lane) + _str16(file)
        case Cluster(cluster_id):
            return _Type.CLUSTER, _str16(cluster_id)
        case Torn(positions):
            pieces = [_NUMBER.pack(len(positions)), *(_POSITION.pack(position) for position in positions)]
            return _Type.TORN, b"".join(pieces)
        case Given(index, runs):
            return _Type.GIVEN, _GIVEN.pack(index, len(runs)) + b"".join(_RUN.pack(*run) for run in runs)
        case Quiet(until_ms, written_ms, boot_id, boot_ms):
            return _Type.QUIET, _QUIET.pack(until_ms, written_ms, boot_id, boot_ms)
        case After(position, debts):
            pieces = [_AFTER.pack(position, len(debts))]
            pieces += [_DEBT.pack(debt.lane, debt.lane_id, debt.before) for debt in debts]
            return _Type.AFTER, b"".join(pieces)
        case Unit(unit_id, first, batches, transactional_id, offsets):
            head = _UNIT.pack(unit_id, first, batches) + _str16(transactional_id) + _NUMBER.pack(len(offsets))
            return _Type.UNIT, head + b"".join(map(_group_offsets, offsets))
        case Read(unit_id, readings):
            pieces = [_UNIT_ID.pack(unit_id), _NUMBER.pack(len(readings))]
            pieces += [_READING.pack(number, start) for number, start in readings]
            return _Type.READ, b"".join(pieces)
        case Begun():
            return _Type.BEGUN, _begun(mark)
        case Staged(begun, places):
            pieces = [_begun(begun), _NUMBER.pack(len(places))]
            pieces += [
                _PLACED.pack(p.destination, p.position, p.count, p.base_sequence, p.base_offset)
                for p in places
            ]
            return _Type.STAGED, b"".join(pieces)
        case Ended(unit_id, outcome, reason):
            return _Type.ENDED, _UNIT_ID.pack(unit_id) + _OUTCOME.pack(outcome) + _str16(_cut(reason))
        case Moved(moves):
            pieces = [_NUMBER.pack(len(moves))]
            for move in moves:
                pieces.append(_MOVE.pack(move.position, move.origin, len(move.rank)))
                pieces += [_POSITION.pack(number) for number in move.rank]
            return _Type.MOVED, b"".join(pieces)
        case Revived(destination, end_offset, positions, given_up, moved):  # pragma: no branch
            pieces = [_REVIVED.pack(destination, end_offset, len(positions), len(given_up), len(moved))]
            pieces += [_POSITION.pack(position) for position in (*positions, *given_up)]
            pieces += [_COMMITTED_ENTRY.pack(position, offset) for position, offset in moved]
            return _Type.REVIVED, b"".join(pieces)


def _begun(mark: Begun) -> bytes:
    grant = _GRANT.pack(mark.producer_id, mark.producer_epoch, mark.protocol)
    return _UNIT_ID.pack(mark.unit_id) + _str16(mark.transactional_id) + grant


def _read_begun(body: _Body) -> Begun:
    (unit_id,) = body.take(_UNIT_ID)
    return Begun(unit_id, body.take_str(), *body.take(_GRANT))


def _group_offsets(offsets: GroupOffsets) -> bytes:
    static = offsets.group_instance_id is not None
    pieces = [
        _str16(offsets.group),
        _str16(offsets.member_id),
        _MEMBER.pack(offsets.generation_id, static),
        _str16(offsets.group_instance_id or ""),
        _NUMBER.pack(len(offsets.positions)),
    ]
    for at in offsets.positions:
        pieces += [
            _str16(at.topic),
            _OFFSET.pack(at.partition, at.offset, at.leader_epoch),
            _str16(at.metadata),
        ]
    return b"".join(pieces)


def _read_group_offsets(body: _Body) -> GroupOffsets:
    group, member_id = body.take_str(), body.take_str()
    generation_id, static = body.take(_MEMBER)
    instance_id = body.take_str()
    (count,) = body.take(_NUMBER)
    positions = []
    for _ in range(count):
        topic = body.take_str()
        partition, offset, leader_epoch = body.take(_OFFSET)
        positions.append(Position(topic, partition, offset, leader_epoch, body.take_str()))
    return GroupOffsets(group, member_id, generation_id, instance_id if static else None, tuple(positions))


def _read_mark(body: _Body) -> Mark:
    mark: Mark
    match body.kind:
        case _Type.TOPIC:
            mark = Topic(body.take_str(), *body.take(_TOPIC))
        case _Type.DESTINATION:
            mark = Destination(body.take(_NUMBER)[0], body.take_str(), body.take(_NUMBER)[0])
        case _Type.STATE:
            mark = State(*body.take(_STATE))
        case _Type.GRANTED:
            mark = Granted(*body.take(_GRANTED))
        case _Type.IDENTIFIED:
            destination, reason, void_from, count = body.take(_IDENTIFIED)
            identities = tuple(Identity(*entry) for entry in body.take_all(_IDENTITY, count))
            mark = Identified(destination, body.member(IdentityReason, reason), void_from, identities)
        case _Type.COMMITTED:
            destination, leader_epoch, count = body.take(_COMMITTED)
            mark = Committed(destination, leader_epoch, tuple(body.take_all(_COMMITTED_ENTRY, count)))
        case _Type.REPLACED:
            mark = Replaced(*body.take(_REPLACED))
        case _Type.REJECTED:
            position, code = body.take(_REJECTED)
            mark = Rejected(position, code, body.take_str())
        case _Type.UNDECIDABLE:
            mark = Undecidable(body.take(_POSITION)[0], body.take_str())
        case _Type.RESOLVED:
            position, decision = body.take(_RESOLVED)
            mark = Resolved(position, body.member(Decision, decision))
        case _Type.REVIVED:
            destination, end_offset, count, others, elsewhere = body.take(_REVIVED)
            revived = tuple(p for (p,) in body.take_all(_POSITION, count))
            given_up = tuple(p for (p,) in body.take_all(_POSITION, others))
            moved = tuple(body.take_all(_COMMITTED_ENTRY, elsewhere))
            mark = Revived(destination, end_offset, revived, given_up, moved)
        case _Type.RESENT:
            mark = Resent(body.take_str(), body.take_str())
        case _Type.CLUSTER:
            mark = Cluster(body.take_str())
        case _Type.TORN:
            (count,) = body.take(_NUMBER)
            mark = Torn(tuple(p for (p,) in body.take_all(_POSITION, count)))
        case _Type.GIVEN:
            index, count = body.take(_GIVEN)
            mark = Given(index, tuple(body.take_all(_RUN, count)))
        case _Type.QUIET:
            mark = Quiet(*body.take(_QUIET))
        case _Type.AFTER:
            position, count = body.take(_AFTER)
            mark = After(position, tuple(Debt(*entry) for entry in body.take_all(_DEBT, count)))
        case _Type.UNIT:
            unit_id, first, batches = body.take(_UNIT)
            transactional_id = body.take_str()
            (count,) = body.take(_NUMBER)
            groups = tuple(_read_group_offsets(body) for _ in range(count))
            mark = Unit(unit_id, first, batches, transactional_id, groups)
        case _Type.READ:
            (unit_id,) = body.take(_UNIT_ID)
            (count,) = body.take(_NUMBER)
            mark = Read(unit_id, tuple(body.take_all(_READING, count)))
        case _Type.BEGUN:
            mark = _read_begun(body)
        case _Type.STAGED:
            begun = _read_begun(body)
            (count,) = body.take(_NUMBER)
            mark = Staged(begun, tuple(Placed(*entry) for entry in body.take_all(_PLACED, count)))
        case _Type.ENDED:
            (unit_id,) = body.take(_UNIT_ID)
            (outcome,) = body.take(_OUTCOME)
            mark = Ended(unit_id, body.member(UnitOutcome, outcome), body.take_str())
        case _Type.MOVED:
            (count,) = body.take(_NUMBER)
            moves = []
            for _ in range(count):
                position, origin, numbers = body.take(_MOVE)
                moves.append(Move(position, origin, tuple(n for (n,) in body.take_all(_POSITION, numbers))))
            mark = Moved(tuple(moves))
        case _Type.GROUP:  # pragma: no branch
            raise MarkError("A second group record in one control batch")
    body.finish()
    return mark


def _check(group: Group, marks: Sequence[Mark]) -> None:
    """Check the values against the format, in the same way for writing and for reading."""
    position = group.position + 1 + len(marks)
    _demand(1 <= group.format_version <= FORMAT_VERSION, group)
    _demand(len(group.lane_id) == LANE_ID_BYTES and 0 <= group.synced_position <= group.position, group)
    for index, entry in enumerate(group.manifest):
        # Each batch has at least one record, so positions ascend. The first batch follows this group's marks directly.
        _demand(entry.position == position if index == 0 else entry.position > position, entry)
        _demand(entry.destination >= 1 and entry.size_bytes > batch.HEADER_BYTES, entry)
        position = entry.position
    for mark in marks:
        match mark:
            case Topic(topic, topic_id, partition_count):
                valid = bool(topic) and len(topic_id) == len(NO_TOPIC_ID) and partition_count >= -1
            case Destination(number, topic, partition):
                valid = number >= 1 and bool(topic) and partition >= -1
            case State(destination, baseline_offset, last_acked_offset, leader_epoch, topic_id):
                valid = destination >= 1 and min(baseline_offset, last_acked_offset, leader_epoch) >= -1
                valid = valid and len(topic_id) == len(NO_TOPIC_ID)
            case Granted(producer_id, producer_epoch):
                valid = producer_id >= 0 and producer_epoch >= 0
            case Identified(destination, _, void_from, entries):
                valid = destination >= 1 and void_from >= -1
                valid = valid and all(
                    min(e.position, e.producer_id, e.producer_epoch, e.base_sequence) >= 0 for e in entries
                )
            case Committed(destination, leader_epoch, committed):
                valid = destination >= 1 and leader_epoch >= -1
                valid = valid and all(position >= 0 and offset >= -1 for position, offset in committed)
            case Replaced(position, first_child, children):
                valid = group.atomic and 0 <= position < group.position
                valid = valid and 0 <= first_child < first_child + children <= len(group.manifest)
            case Rejected(position) | Undecidable(position) | Resolved(position):
                valid = position >= 0
            case Resent(lane, file):
                valid = bool(lane) and bool(file) and "/" not in lane + file
            case Cluster(cluster_id):
                valid = bool(cluster_id)
            case Torn(positions):
                valid = bool(positions) and min(positions) >= 0
            case Quiet(until_ms, written_ms, boot_id, boot_ms):
                valid = until_ms == -1 or 0 <= written_ms <= until_ms
                valid = valid and len(boot_id) == len(NO_TOPIC_ID) and boot_ms >= 0
            case After(position, debts):
                valid = position >= 0 and bool(debts)
                valid = valid and all(
                    debt.lane >= 0 and len(debt.lane_id) == LANE_ID_BYTES and debt.before > 0
                    for debt in debts
                )
            case Given(index, runs):
                ends = [0, *(first + count for first, count, _ in runs)]
                valid = 0 <= index < len(group.manifest) and all(
                    first >= end and count >= 1 and partition >= 0
                    for end, (first, count, partition) in zip(ends, runs, strict=False)
                )
            case Unit(unit_id, first, batches):
                valid = group.atomic and len(unit_id) == UNIT_ID_BYTES and first >= 0 and batches >= 0
                valid = valid and first + batches <= len(group.manifest)
            case Read(unit_id, readings):
                valid = group.atomic and len(unit_id) == UNIT_ID_BYTES and bool(readings)
                valid = valid and all(number >= 0 and start >= -1 for number, start in readings)
            case Begun():
                valid = _valid_begun(mark)
            case Staged(begun, places):
                valid = _valid_begun(begun) and all(
                    p.destination >= 1 and min(p.position, p.base_sequence) >= 0 and p.count >= 1
                    for p in places
                )
            case Ended(unit_id):
                valid = len(unit_id) == UNIT_ID_BYTES
            case Moved(moves):
                valid = group.atomic and len(moves) == len(group.manifest) > 0
                stood = [number for move in moves for number in (move.position, move.origin, *move.rank)]
                valid = valid and all(move.rank for move in moves)
                valid = valid and all(0 <= place < group.position for place in stood)
                valid = valid and len({move.position for move in moves}) == len(moves)
            case Revived(destination, end_offset, positions, given_up, moved):  # pragma: no branch
                named = (*positions, *given_up, *(position for position, _ in moved))
                valid = destination >= 1 and end_offset >= 0 and len(set(named)) == len(named)
                valid = valid and all(0 <= position < group.position for position in named)
                valid = valid and all(offset >= 0 for _, offset in moved)
        _demand(valid, mark)


def _valid_begun(mark: Begun) -> bool:
    valid = len(mark.unit_id) == UNIT_ID_BYTES and bool(mark.transactional_id)
    return valid and mark.producer_id >= 0 and mark.producer_epoch >= 0 and mark.protocol in {1, 2}


def _demand(valid: bool, what: object) -> None:
    if not valid:
        raise MarkError(f"The spool format has no meaning for {what}")


def _str16(text: str) -> bytes:
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded


def _cut(text: str) -> str:
    """Free text from elsewhere, made to fit: a mark must not fail because a broker had much to say."""
    encoded = text.encode(errors="backslashreplace")[:_STR16_MAX]
    return encoded.decode(errors="ignore")


class _Body:
    """Reads one control record from the front to its exact end."""

    __slots__ = ("_at", "_value", "kind")

    def __init__(self, key: bytes | None, value: bytes | None) -> None:
        if key is None or len(key) != _KEY.size or value is None:
            raise MarkError(f"Not a control record of a spool: key {key!r}")
        version, kind = _KEY.unpack(key)
        try:
            self.kind = _Type(kind)
        except ValueError:
            version = -1
        if version != _KEY_VERSION:
            raise UnknownFormatError(f"Unknown mark type {kind:#06x}: written by a newer kafkasafe")
        self._value = value
        self._at = 0

    def peek(self, size: int) -> bytes:
        """The next bytes, without moving on."""
        content = self._value[self._at : self._at + size]
        if len(content) != size:
            raise MarkError(f"A {self.kind.name} mark of {len(self._value)} bytes is too short")
        return content

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next fields."""
        content = self.peek(layout.size)
        self._at += layout.size
        return layout.unpack(content)

    def take_all(self, layout: struct.Struct, count: int) -> Iterator[tuple[Any, ...]]:
        """`count` times the same fields."""
        if count < 0:
            raise MarkError(f"A {self.kind.name} mark with {count} entries")
        content = self.peek(count * layout.size)
        self._at += len(content)
        return layout.iter_unpack(content)

    def take_str(self) -> str:
        """A str16."""
        (size,) = self.take(_SHORT)
        if size < 0:
            raise MarkError(f"A {self.kind.name} mark with a text of {size} bytes")
        content = self.peek(size)
        self._at += size
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise MarkError(f"A {self.kind.name} mark with a text that is not UTF-8") from error

    def member(self, kind: type[_Member], number: int) -> _Member:
        """One of the values that an enumeration has."""
        try:
            return kind(number)
        except ValueError as error:
            raise MarkError(f"A {self.kind.name} mark with unknown {kind.__name__} {number}") from error

    def finish(self) -> None:
        """All of it was read."""
        if self._at != len(self._value):
            raise MarkError(f"A {self.kind.name} mark with {len(self._value) - self._at} bytes too many")
