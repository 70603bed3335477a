"""The classes of the marks, and the class of the record that begins a spool group."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from kafkasafe.marks.terms import NO_TOPIC_ID


class IdentityReason(enum.IntEnum):
    """Whether an IDENTIFIED mark gives batches their first ids, or new ids."""

    FIRST = 0
    REIDENTIFIED = 1


class Decision(enum.IntEnum):
    """The user's decision about an undecidable batch."""

    RESEND = 1
    SKIP = 2


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """Describes one data batch of a spool group. The entry repeats header fields that Kafka's CRC does not cover, so
    that readers detect damage to these fields.

    Attributes:
        position: Base offset of the batch in the spool.
        destination: Destination number of the batch, ≥ 1.
        size_bytes: Size of the whole batch.
        crc: The CRC32C in the batch's header.
    """

    position: int
    destination: int
    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class Group:
    """The record at the beginning of every spool group.

    Attributes:
        format_version: 2, or 1 if the group is from a version of kafkasafe that wrote no file `extent`.
        lane_id: Random id of the lane, 16 bytes, made together with the lane.
        position: Position of this control batch.
        synced_position: All batches before this position were durable when the spool group was written.
        atomic: Whether readers ignore the whole spool group if any part of it is missing.
        snapshot: Whether the spool group is the first group of a segment.
        closed: Whether an orderly close of the lane wrote the spool group.
        manifest: The data batches that follow, in order, without gaps between their positions.
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
        topic_id: Id of the topic, 16 bytes; `NO_TOPIC_ID` when unknown.
        partition_count: Number of partitions, -1 when unknown.
    """

    topic: str
    topic_id: bytes
    partition_count: int


@dataclass(frozen=True, slots=True)
class Destination:
    """Declares the number by which this lane's log names a topic and partition.

    Attributes:
        number: The number, ≥ 1.
        partition: The partition; -1 for records that get partitions once the topic's partitions are known.
    """

    number: int
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class State:
    """The progress of a destination.

    A STATE mark is a reset if its `knows_nothing` is true. From this mark on, the lane writes to the log of another
    cluster or another topic. That log has none of the batches that earlier marks name as acknowledged.

    Attributes:
        baseline_offset: Offset before which the partition's log contains no batch of this lane; -1 if unknown.
        last_acked_offset: Offset of the last acknowledged record before which no batch is unfinished; -1 if there is no
            such record.
        leader_epoch: Leader epoch of `last_acked_offset`, -1 when unknown.
        topic_id: Id of the topic to which the offsets belong, 16 bytes.
    """

    destination: int
    baseline_offset: int
    last_acked_offset: int
    leader_epoch: int
    topic_id: bytes

    @property
    def knows_nothing(self) -> bool:
        """Whether the mark has neither an offset, nor a leader epoch, nor a topic id."""
        return self == State(self.destination, -1, -1, -1, NO_TOPIC_ID)


@dataclass(frozen=True, slots=True)
class Granted:
    """The cluster granted a producer id."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Identity:
    """An entry of an IDENTIFIED mark: the batch at `position` has this batch id from the mark on."""

    position: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


@dataclass(frozen=True, slots=True)
class Identified:
    """Gives batch ids to batches of one destination, and may void earlier ids of the destination.

    Attributes:
        reason: Whether the batches get ids for the first time, or new ids.
        void_from: The destination's unfinished batches from this position on lose their ids, except those in `entries`.
            -1: no batch loses its id.
        entries: The batches that get an id, each with its batch id.
    """

    destination: int
    reason: IdentityReason
    void_from: int
    entries: tuple[Identity, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """Batches of one destination are in the cluster's log.

    Attributes:
        leader_epoch: Epoch of the leader that acknowledged the batches, -1 when unknown.
        entries: (position, base offset in the partition) of each batch. The offset is -1 if the batch is in the log at
            an unknown offset.
    """

    destination: int
    leader_epoch: int
    entries: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Replaced:
    """Data batches of this spool group hold the records of the batch at `position`. Only in atomic groups.

    Several marks may name the same data batches. The age of these data batches is the age of the batch that the first
    of the marks replaces.

    Attributes:
        position: Position of the replaced batch, which is in an earlier spool group.
        first_child: Index, in this spool group's manifest, of the first data batch that replaces the batch.
        children: Number of data batches that replace the batch, ≥ 1.
    """

    position: int
    first_child: int
    children: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The producer gave up the batch finally, because the cluster refused it, its bytes are damaged, or an operator
    decided so. A message longer than 32,767 bytes is truncated when it is written.
    """

    position: int
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Undecidable:
    """The journal could not determine whether the batch is in the log. Evidence above 32,767 bytes is truncated."""

    position: int
    evidence: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """The user decided about an undecidable batch."""

    position: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Quiet:
    """Says until when a broker may still append a request that an owner of this lane sent before this mark.

    Attributes:
        until_ms: Wall-clock time of the last possible append, ms since the epoch; -1 while the owner still sends
            requests.
        written_ms: Time at which the owner wrote the mark, by the wall clock, in ms since the epoch.
        boot_id: Boot id of the machine at the time of writing, 16 bytes; zeros when unknown.
        boot_ms: Time of writing in ms since the boot with this id, without the time during which the machine was
            suspended.
    """

    until_ms: int
    written_ms: int
    boot_id: bytes
    boot_ms: int


@dataclass(frozen=True, slots=True)
class Revived:
    """The cluster lost acknowledged batches, so the batches at `positions` are unfinished again.

    Attributes:
        end_offset: The log's end offset when the journal noticed the loss. Acknowledged records at this offset or later
            are lost.
        positions: Positions of the lost batches that are sent again, in this order. Lost batches that the spool has
            deleted are not listed.
        given_up: Positions of lost batches that are not sent again, although they are still in the spool.
        moved: (position, base offset) of batches that are in the log, but not at the offset that was acknowledged.
    """

    destination: int
    end_offset: int
    positions: tuple[int, ...]
    given_up: tuple[int, ...] = ()
    moved: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Resent:
    """This lane's log now contains the records of a file in `rejected/` of this lane or of another lane.

    If the mark's spool group is atomic, its own data batches have the records; otherwise, batches of earlier groups
    have them.

    Attributes:
        lane: Name of the lane's directory.
        file: Name of the file in `rejected/` of the lane `lane`.
    """

    lane: str
    file: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """From this mark on, the lane's offsets are offsets of this cluster. In a file of `rejected/`, the mark names the
    cluster for which the file's batches were meant.
    """

    cluster_id: str


@dataclass(frozen=True, slots=True)
class Torn:
    """A crash left these batches incomplete in the spool. The remaining bytes do not count as damage, because the
    batches were not reported as durable.
    """

    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """The partitions that callers chose for some records of a data batch. The batch is in the mark's spool group, and
    its destination has partition -1.

    Attributes:
        index: Index of the batch in this spool group's manifest.
        runs: (index of the first record, number of records, partition), ascending. kafkasafe still has to choose the
            partitions of all other records.
    """

    index: int
    runs: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Debt:
    """Batches in another lane of the same directory, by incarnations that have ended or were dropped.

    Attributes:
        before: Upper bound (exclusive) of the batches' positions.
    """

    lane: int
    lane_id: bytes
    before: int


@dataclass(frozen=True, slots=True)
class After:
    """An incarnation began, or the program dropped another producer. In each topic-partition, this lane's batches that
    were first written at `position` or later are delivered after the unfinished batches of other lanes in `debts`.

    Attributes:
        position: Lowest position in this lane of a batch that waits for `debts`.
        debts: The batches of other lanes that are delivered first.
    """

    position: int
    debts: tuple[Debt, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """The offset at which a consumer group continues in one partition.

    Attributes:
        offset: Offset of the next record to be read.
        leader_epoch: Leader epoch of the last record that was read, -1 when unknown.
        metadata: Text that is committed with the offset.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Offsets of a consumer group that the transaction of a unit (atomic batch) commits.

    Attributes:
        member_id: Id of the group member that commits the offsets; empty: none.
        generation_id: The generation in which the member got its partitions, -1 for none.
        group_instance_id: Instance id of a static member.
        positions: The offsets, one for each partition.
    """

    group: str
    member_id: str
    generation_id: int
    group_instance_id: str | None
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """Declares a unit (atomic batch): batches of this spool group that are delivered together or not at all. Only in
    atomic groups.

    Attributes:
        unit_id: Id of the unit, 16 bytes, never reused.
        first: Index of the unit's first batch in this spool group's manifest.
        batches: Number of the unit's batches in this spool group, ≥ 0.
        transactional_id: Transactional id of the unit's transaction; empty: one of the lane's own ids.
        offsets: The offsets that the unit's transaction commits, by consumer group.
    """

    unit_id: bytes
    first: int
    batches: int
    transactional_id: str = ""
    offsets: tuple[GroupOffsets, ...] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """Says from which readings the offsets of a unit (atomic batch) come. A reading is a consumer's uninterrupted pass
    through a partition.

    Attributes:
        entries: For each offset in the UNIT mark of this unit, in the same order: (number of the reading, start).
            `start` is the group's offset when the reading began; -1 when unknown.
    """

    unit_id: bytes
    entries: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """A transaction began for a unit (atomic batch). The mark voids an earlier `Staged` mark of the unit.

    Attributes:
        producer_id: The producer id that the coordinator granted.
        producer_epoch: The producer epoch that the coordinator granted.
        protocol: 1, or 2 (KIP-890).
    """

    unit_id: bytes
    transactional_id: str
    producer_id: int
    producer_epoch: int
    protocol: int


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one batch of a unit (atomic batch) is: its position in the spool, and its offset in the partition's log.
    The batch may still be uncommitted.

    Attributes:
        position: Position of the batch in the spool.
        base_sequence: Sequence of the batch's first record.
        base_offset: Offset of the batch's first record in the partition, -1 if the broker did not report it.
    """

    destination: int
    position: int
    count: int
    base_sequence: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class Staged:
    """All batches of a unit (atomic batch) are in the logs of their partitions, so any process that reads this mark may
    commit the transaction.
    """

    begun: Begun
    places: tuple[Placed, ...]


class UnitOutcome(enum.IntEnum):
    """How a unit (atomic batch) ended."""

    COMMITTED = 1
    DROPPED = 2


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a unit (atomic batch) is final. The log stores at most 32,767 bytes of the reason."""

    unit_id: bytes
    outcome: UnitOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """One batch in a MOVED mark.

    Attributes:
        position: Position of the batch before the move.
        origin: The position at which the records were first written. This position decides their order across lanes
            (see `After`).
        rank: Sort key: the batches of a destination are delivered in the order of their ranks.
    """

    position: int
    origin: int
    rank: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """Each data batch of this spool group is a copy of an earlier batch, and replaces the earlier batch. Only in atomic
    groups.

    Attributes:
        moves: One entry for each data batch, in the order of the batches.
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
