"""The table of marks. A row has the number, the layout, the valid values and the readers of a mark.

A script generates the table in docs/spool-format.md from these rows.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from kafkasafe.marks.kinds import (
    After,
    Begun,
    Cluster,
    Committed,
    Debt,
    Decision,
    Destination,
    Ended,
    Given,
    Granted,
    Group,
    GroupOffsets,
    Identified,
    Identity,
    IdentityReason,
    Mark,
    Move,
    Moved,
    Placed,
    Position,
    Quiet,
    Read,
    Rejected,
    Replaced,
    Resent,
    Resolved,
    Revived,
    Staged,
    State,
    Topic,
    Torn,
    Undecidable,
    Unit,
    UnitOutcome,
)
from kafkasafe.marks.layout import (
    Layout,
    Lists,
    Nested,
    OptionalText,
    Part,
    Text,
    bytes16,
    each,
    int8,
    int16,
    int32,
    int64,
)
from kafkasafe.marks.terms import LANE_ID_BYTES, NO_TOPIC_ID, UNIT_ID_BYTES

M = TypeVar("M")


class Reader(enum.Flag):
    """The modules that read all marks of a log. mypy checks that each of these modules has a case for every mark."""

    JOURNAL = enum.auto()
    """`journal/recovery.py`: the state of earlier incarnations."""
    ORDER = enum.auto()
    """`journal/order.py`: which batches of other lanes are unfinished."""
    FATES = enum.auto()
    """`spool/examine.py`: the outcome of each batch."""
    STEPS = enum.auto()
    """`spool/steps.py`, `steps_of`: when a batch reached each step of KAFKA-156."""
    UNDECIDABLE = enum.auto()
    """`spool/steps.py`, `undecidable_in`: which batches wait for an operator's decision."""


class MarkRow(Generic[M]):
    """A row of the table: one kind of mark.

    Args:
        number: The type of the mark's control record.
        mark: The mark's class.
        parts: The parts of the mark's body, in the order of the attributes.
        readers: The readers that use the mark. All other readers skip it.
        valid: Called with a mark and its group. Returns whether the mark's values are valid in this spool group.
        means: The text that docs/spool-format.md adds after its description of the body.

    Attributes:
        name: The mark's name, as docs/spool-format.md spells it.
        key: Key of the mark's control record.
    """

    __slots__ = ("key", "layout", "mark", "means", "name", "number", "readers", "valid")

    def __init__(
        self,
        number: int,
        mark: type[M],
        *parts: Part,
        readers: Reader,
        valid: Callable[[M, Group], bool],
        means: str = "",
    ) -> None:
        self.number = number
        self.mark = mark
        self.name = mark.__name__.upper()
        self.key = b"\0\0" + number.to_bytes(2)
        self.layout = Layout(mark, *parts)
        self.readers = readers
        self.valid = valid
        self.means = means


ATOMIC_ONLY: Final = "Only in atomic groups"
DESTINATION: Final = int32("destination", "destination")
POSITION: Final = int64("position", "position")
UNIT_ID: Final = bytes16("unit_id", "atomic batch id")
ADDRESS: Final = (POSITION, int64("base_offset", "base offset"))
GROUP_OFFSETS: Final = (
    Text("group", "group"),
    Text("member_id", "member id"),
    int32("generation_id", "generation"),
    OptionalText("group_instance_id", "group instance id", "1 if static"),
    Lists(
        each(
            "positions",
            "n",
            Text("topic", "topic"),
            int32("partition", "partition"),
            int64("offset", "offset"),
            int32("leader_epoch", "leader epoch"),
            Text("metadata", "metadata"),
            make=Position,
        )
    ),
)
BEGUN: Final = (
    UNIT_ID,
    Text("transactional_id", "transactional id"),
    int64("producer_id", "producer id"),
    int16("producer_epoch", "epoch"),
    int8("protocol", "protocol (1 or 2)"),
)


# -- validity of the marks whose rows are long -------------------------------------------------------------------------


def _valid_topic(mark: Topic, _: Group) -> bool:
    return bool(mark.topic) and len(mark.topic_id) == len(NO_TOPIC_ID) and mark.partition_count >= -1


def _valid_state(mark: State, _: Group) -> bool:
    known = min(mark.baseline_offset, mark.last_acked_offset, mark.leader_epoch)
    return mark.destination >= 1 and known >= -1 and len(mark.topic_id) == len(NO_TOPIC_ID)


def _valid_identified(mark: Identified, _: Group) -> bool:
    return (
        mark.destination >= 1
        and mark.void_from >= -1
        and all(
            each.position >= 0
            and each.producer_id >= 0
            and each.producer_epoch >= 0
            and each.base_sequence >= 0
            for each in mark.entries
        )
    )


def _valid_committed(mark: Committed, _: Group) -> bool:
    known = mark.destination >= 1 and mark.leader_epoch >= -1
    return known and all(position >= 0 and offset >= -1 for position, offset in mark.entries)


def _valid_replaced(mark: Replaced, group: Group) -> bool:
    first, end = mark.first_child, mark.first_child + mark.children
    return group.atomic and 0 <= mark.position < group.position and 0 <= first < end <= len(group.manifest)


def _valid_revived(mark: Revived, group: Group) -> bool:
    named = (*mark.positions, *mark.given_up, *(position for position, _ in mark.moved))
    return (
        mark.destination >= 1
        and mark.end_offset >= 0
        and len(set(named)) == len(named)
        and all(0 <= position < group.position for position in named)
        and all(offset >= 0 for _, offset in mark.moved)
    )


def _valid_resent(mark: Resent, _: Group) -> bool:
    return bool(mark.lane) and bool(mark.file) and "/" not in mark.lane + mark.file


def _valid_given(mark: Given, group: Group) -> bool:
    end = 0
    for first, count, partition in mark.runs:
        if first < end or count < 1 or partition < 0:
            return False
        end = first + count
    return 0 <= mark.index < len(group.manifest)


def _valid_quiet(mark: Quiet, _: Group) -> bool:
    known = mark.until_ms == -1 or 0 <= mark.written_ms <= mark.until_ms
    return known and len(mark.boot_id) == len(NO_TOPIC_ID) and mark.boot_ms >= 0


def _valid_after(mark: After, _: Group) -> bool:
    return (
        mark.position >= 0
        and bool(mark.debts)
        and all(
            debt.lane >= 0 and len(debt.lane_id) == LANE_ID_BYTES and debt.before > 0 for debt in mark.debts
        )
    )


def _valid_moved(mark: Moved, group: Group) -> bool:
    moves = mark.moves
    stood = [number for move in moves for number in (move.position, move.origin, *move.rank)]
    return (
        group.atomic
        and len(moves) == len(group.manifest) > 0
        and all(move.rank for move in moves)
        and all(0 <= place < group.position for place in stood)
        and len({move.position for move in moves}) == len(moves)
    )


def _valid_unit(mark: Unit, group: Group) -> bool:
    known = group.atomic and len(mark.unit_id) == UNIT_ID_BYTES and mark.first >= 0 and mark.batches >= 0
    return known and mark.first + mark.batches <= len(group.manifest)


def _valid_begun(mark: Begun, _: Group) -> bool:
    known = len(mark.unit_id) == UNIT_ID_BYTES and bool(mark.transactional_id)
    return known and mark.producer_id >= 0 and mark.producer_epoch >= 0 and mark.protocol in {1, 2}


def _valid_staged(mark: Staged, group: Group) -> bool:
    return _valid_begun(mark.begun, group) and all(
        place.destination >= 1 and place.position >= 0 and place.base_sequence >= 0 and place.count >= 1
        for place in mark.places
    )


def _valid_read(mark: Read, group: Group) -> bool:
    known = group.atomic and len(mark.unit_id) == UNIT_ID_BYTES and bool(mark.entries)
    return known and all(number >= 0 and start >= -1 for number, start in mark.entries)


# -- the table ---------------------------------------------------------------------------------------------------------


ROWS: Final[tuple[MarkRow[Any], ...]] = (
    MarkRow(
        0x4B01,
        Topic,
        Text("topic", "topic"),
        bytes16("topic_id", "topic id (0: unknown)"),
        int32("partition_count", "partition count (−1: unknown)"),
        readers=Reader.JOURNAL,
        valid=_valid_topic,
    ),
    MarkRow(
        0x4B02,
        Destination,
        int32("number", "number (≥ 1)"),
        Text("topic", "topic"),
        int32("partition", "partition (−1: to be chosen at first contact)"),
        readers=Reader.JOURNAL | Reader.ORDER,
        valid=lambda mark, _: mark.number >= 1 and bool(mark.topic) and mark.partition >= -1,
    ),
    MarkRow(
        0x4B03,
        State,
        DESTINATION,
        int64("baseline_offset", "baseline offset (−1: none)"),
        int64("last_acked_offset", "last acked offset (−1: nothing acked)"),
        int32("leader_epoch", "leader epoch of it (−1: unknown)"),
        bytes16("topic_id", "topic id"),
        readers=Reader.JOURNAL,
        valid=_valid_state,
    ),
    MarkRow(
        0x4B04,
        Granted,
        int64("producer_id", "producer id"),
        int16("producer_epoch", "epoch"),
        readers=Reader.JOURNAL,
        valid=lambda mark, _: mark.producer_id >= 0 and mark.producer_epoch >= 0,
    ),
    MarkRow(
        0x4B05,
        Identified,
        DESTINATION,
        int8("reason", "reason (0 first id, 1 re-identified)", IdentityReason),
        int64("void_from", "void-from position (−1: none)"),
        Lists(
            each(
                "entries",
                "n",
                POSITION,
                int64("producer_id", "producer id"),
                int16("producer_epoch", "epoch"),
                int32("base_sequence", "base sequence"),
                make=Identity,
            )
        ),
        readers=Reader.JOURNAL | Reader.STEPS,
        valid=_valid_identified,
    ),
    MarkRow(
        0x4B06,
        Committed,
        DESTINATION,
        int32("leader_epoch", "leader epoch (−1: unknown)"),
        Lists(
            each(
                "entries",
                "n",
                POSITION,
                int64("base_offset", "base offset, −1: known committed, offset unknown"),
            )
        ),
        readers=Reader.JOURNAL | Reader.ORDER | Reader.FATES | Reader.STEPS,
        valid=_valid_committed,
    ),
    MarkRow(
        0x4B07,
        Replaced,
        POSITION,
        int32("first_child", "index of the first child in this group's manifest"),
        int32("children", "number of children"),
        readers=Reader.JOURNAL | Reader.ORDER | Reader.FATES | Reader.STEPS,
        valid=_valid_replaced,
        means=ATOMIC_ONLY,
    ),
    MarkRow(
        0x4B08,
        Rejected,
        POSITION,
        int16(
            "code",
            "error code (Kafka's, or −3: the bytes were found damaged when the batch was to be sent; they are in"
            " `quarantine/`; −4: given up by an operator)",
        ),
        Text("message", "message", cut=True),
        readers=Reader.JOURNAL | Reader.ORDER | Reader.FATES,
        valid=lambda mark, _: mark.position >= 0,
    ),
    MarkRow(
        0x4B09,
        Undecidable,
        POSITION,
        Text("evidence", "evidence", cut=True),
        readers=Reader.UNDECIDABLE,
        valid=lambda mark, _: mark.position >= 0,
    ),
    MarkRow(
        0x4B0A,
        Resolved,
        POSITION,
        int8("decision", "decision (1 resend, 2 skip)", Decision),
        readers=Reader.JOURNAL | Reader.UNDECIDABLE,
        valid=lambda mark, _: mark.position >= 0,
    ),
    MarkRow(
        0x4B0B,
        Revived,
        DESTINATION,
        int64("end_offset", "end offset"),
        Lists(
            each("positions", "n", POSITION),
            each("given_up", "k", POSITION),
            each("moved", "m", *ADDRESS),
        ),
        readers=Reader.JOURNAL | Reader.ORDER | Reader.FATES,
        valid=_valid_revived,
    ),
    MarkRow(
        0x4B0C,
        Torn,
        Lists(each("positions", "n", POSITION)),
        readers=Reader.ORDER,
        valid=lambda mark, _: bool(mark.positions) and min(mark.positions) >= 0,
    ),
    MarkRow(
        0x4B0E,
        Resent,
        Text("lane", "lane"),
        Text("file", "file"),
        readers=Reader.JOURNAL,
        valid=_valid_resent,
        means="This lane's log has the records of the named file, which is in the named lane's `rejected/`. They are in"
        " the data batches of this group if it is atomic, otherwise in earlier batches",
    ),
    MarkRow(
        0x4B0F,
        Cluster,
        Text("cluster_id", "cluster id"),
        readers=Reader.JOURNAL,
        valid=lambda mark, _: bool(mark.cluster_id),
        means="In a lane's log: the cluster to which its offsets, leader epochs and ids belong from here on. In a file"
        " of `rejected/`: the cluster that its batches were for",
    ),
    MarkRow(
        0x4B10,
        Given,
        int32("index", "index in this group's manifest of a batch for partition −1"),
        Lists(
            each(
                "runs",
                "n",
                int32("first", "index of the first record"),
                int32("count", "number of records"),
                int32("partition", "partition"),
            )
        ),
        readers=Reader.JOURNAL,
        valid=_valid_given,
        means="The runs of records ascend",
    ),
    MarkRow(
        0x4B11,
        Quiet,
        int64("until_ms", "until (ms since the epoch, −1: not known)"),
        int64("written_ms", "time of writing (ms since the epoch)"),
        bytes16("boot_id", "boot id (0: unknown)"),
        int64("boot_ms", "time of writing (ms since that boot, without the time it slept)"),
        readers=Reader.JOURNAL,
        valid=_valid_quiet,
    ),
    MarkRow(
        0x4B12,
        After,
        POSITION,
        Lists(
            each(
                "debts",
                "n",
                int32("lane", "lane"),
                bytes16("lane_id", "lane id"),
                int64("before", "before"),
                make=Debt,
            )
        ),
        readers=Reader.JOURNAL,
        valid=_valid_after,
        means="In each topic-partition, this lane's batches at this position or later are delivered after the other"
        " lanes' unfinished batches that are before the given positions (see Order across runs)",
    ),
    MarkRow(
        0x4B14,
        Moved,
        Lists(
            each(
                "moves",
                "n",
                POSITION,
                int64("origin", "origin"),
                Lists(each("rank", "k", int64("rank", "rank"))),
                make=Move,
            )
        ),
        readers=Reader.JOURNAL | Reader.ORDER | Reader.FATES | Reader.STEPS | Reader.UNDECIDABLE,
        valid=_valid_moved,
        means="One entry for each data batch of this group, in their order. Only in atomic groups",
    ),
    MarkRow(
        0x4B16,
        Unit,
        UNIT_ID,
        int32("first", "index in this group's manifest of its first batch"),
        int32("batches", "number of its batches"),
        Text("transactional_id", "transactional id (empty: one of the lane's own)"),
        Lists(each("offsets", "g", *GROUP_OFFSETS, make=GroupOffsets)),
        readers=Reader.JOURNAL | Reader.ORDER | Reader.STEPS,
        valid=_valid_unit,
        means=ATOMIC_ONLY,
    ),
    MarkRow(
        0x4B17,
        Begun,
        *BEGUN,
        readers=Reader.JOURNAL | Reader.STEPS,
        valid=_valid_begun,
    ),
    MarkRow(
        0x4B18,
        Staged,
        Nested("begun", Layout(Begun, *BEGUN), "as BEGUN"),
        Lists(
            each(
                "places",
                "n",
                DESTINATION,
                POSITION,
                int32("count", "number of records"),
                int32("base_sequence", "base sequence"),
                int64("base_offset", "base offset"),
                make=Placed,
            )
        ),
        readers=Reader.JOURNAL | Reader.FATES | Reader.STEPS,
        valid=_valid_staged,
    ),
    MarkRow(
        0x4B19,
        Ended,
        UNIT_ID,
        int8("outcome", "outcome (1 committed, 2 dropped)", UnitOutcome),
        Text("reason", "reason", cut=True),
        readers=Reader.JOURNAL | Reader.ORDER | Reader.FATES | Reader.STEPS,
        valid=lambda mark, _: len(mark.unit_id) == UNIT_ID_BYTES,
    ),
    MarkRow(
        0x4B1A,
        Read,
        UNIT_ID,
        Lists(each("entries", "n", int64("number", "reading"), int64("start", "start"))),
        readers=Reader.JOURNAL,
        valid=_valid_read,
        means="One entry for each partition of the UNIT mark's offsets, in their order. Only in atomic groups",
    ),
)
"""All marks, in the order of their numbers. A number is never reused for another mark, because existing spools contain
it.
"""

ROW_OF: Final[Mapping[type[Mark], MarkRow[Any]]] = {row.mark: row for row in ROWS}
