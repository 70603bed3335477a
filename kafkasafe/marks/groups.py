"""Converts the head of a spool group (the group record and the marks after it) to a control batch and back."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any, Final

from kafkasafe.marks.kinds import Given, Group, ManifestEntry, Mark, Rejected
from kafkasafe.marks.layout import Body
from kafkasafe.marks.table import ROW_OF, ROWS, MarkRow
from kafkasafe.marks.terms import FORMAT_VERSION, LANE_ID_BYTES, MarkError, UnknownFormatError
from kafkasafe.record import batch

_GROUP_KEY: Final = b"\0\0\x4b\0"
_ROW_OF_KEY: Final[dict[bytes, MarkRow[Any]]] = {row.key: row for row in ROWS}

_CONTROL_ONLY: Final = 0x20  # the attributes of an uncompressed control batch
_KEY: Final = struct.Struct(">hh")
_VERSION: Final = struct.Struct(">h")
_GROUP: Final = struct.Struct(">h16sqqii")
_MANIFEST_ENTRY: Final = struct.Struct(">qiiI")
_AROUND: Final = 20
"""Upper bound of the bytes of a record apart from its key and value: five numbers, the attributes, the count of
headers.
"""

_ATOMIC: Final = 1
_SNAPSHOT: Final = 2
_CLOSED: Final = 4


def encode_group(group: Group, marks: Sequence[Mark], timestamp: int) -> bytearray:
    """The control batch that begins a spool group, with its spool address (position, destination 0) in the header.

    The control batch takes 1 + len(marks) positions, so the manifest's first batch is at `group.position` + 1 +
    len(marks).

    Args:
        group: The group record.
        marks: The marks, in the order in which they were decided.
        timestamp: Ms since the epoch.

    Raises:
        MarkError: A value in `group` or in one of the `marks` is not valid in the spool format. `decode_group` would
            refuse a spool group with this value.
    """
    _check(group, marks)
    try:
        records = [(_GROUP_KEY, _write_group(group))]
        for mark in marks:
            row = ROW_OF[type(mark)]
            records.append((row.key, row.layout.write(mark)))
        buf = batch.encode_control(records, timestamp=timestamp)
        batch.stamp_address(buf, group.position, 0)
    except (struct.error, ValueError) as error:
        raise MarkError(f"A value that does not fit into the spool format: {error}") from error
    return buf


def bytes_of_each(message: str, given: Sequence[tuple[int, int, int]] | None) -> int:
    """Maximum number of bytes that a rejected batch adds to the control batch of its spool group in a file of
    `rejected/`.

    Args:
        message: The message of the batch's REJECTED mark.
        given: The runs of the batch's GIVEN mark; None if the batch has no such mark.
    """
    marks: list[Mark] = [Rejected(0, 0, message)]
    if given is not None:
        marks.append(Given(0, tuple(given)))
    bodies = (ROW_OF[type(mark)].layout.write(mark) for mark in marks)
    return _MANIFEST_ENTRY.size + sum(_AROUND + _KEY.size + len(body) for body in bodies)


def decode_group(buf: batch.Buffer) -> tuple[Group, list[Mark]]:
    """Returns the group record and the marks of a control batch, after all checks.

    Args:
        buf: The control batch; bytes after it are ignored.

    Raises:
        MarkError: `buf` does not begin with an intact control batch of a spool.
        UnknownFormatError: The control batch is intact, but has a newer format.
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
    records = list(map(_opened, columns.keys, columns.values))
    row, body = records[0]
    if row is not None:
        raise MarkError(f"The control batch at position {header.base_offset} does not begin with a group")
    group = _read_group(body)
    if (header.base_offset, header.partition_leader_epoch) != (group.position, 0):
        raise MarkError(
            f"The control batch of position {group.position} has the address {header.base_offset},"
            f" destination {header.partition_leader_epoch}"
        )
    marks = list(itertools.starmap(_read_mark, records[1:]))
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


def _read_group(body: Body) -> Group:
    # In every version of the format, a group record begins with the version number.
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


def _opened(key: bytes | None, value: bytes | None) -> tuple[MarkRow[Any] | None, Body]:
    """Return the table row of the mark in a control record, and a reader of the record's value. The row is None if the
    record is a group record.
    """
    if key is None or len(key) != _KEY.size or value is None:
        raise MarkError(f"Not a control record of a spool: key {key!r}")
    if key == _GROUP_KEY:
        return None, Body("GROUP", value)
    row = _ROW_OF_KEY.get(key)
    if row is None:
        kind = _KEY.unpack(key)[1]
        raise UnknownFormatError(f"Unknown mark type {kind:#06x}: written by a newer kafkasafe")
    return row, Body(row.name, value)


def _read_mark(row: MarkRow[Any] | None, body: Body) -> Mark:
    if row is None:
        raise MarkError("A second group record in one control batch")
    mark: Mark = row.layout.read(body)
    body.finish()
    return mark


def _check(group: Group, marks: Sequence[Mark]) -> None:
    """Check the values against the format, both for writing and after reading."""
    position = group.position + 1 + len(marks)
    _demand(1 <= group.format_version <= FORMAT_VERSION, group)
    _demand(len(group.lane_id) == LANE_ID_BYTES and 0 <= group.synced_position <= group.position, group)
    for index, entry in enumerate(group.manifest):
        # Positions ascend, because each batch has at least one record. The first batch follows the spool group's marks
        # directly.
        _demand(entry.position == position if index == 0 else entry.position > position, entry)
        _demand(entry.destination >= 1 and entry.size_bytes > batch.HEADER_BYTES, entry)
        position = entry.position
    for mark in marks:
        _demand(ROW_OF[type(mark)].valid(mark, group), mark)


def _demand(valid: bool, what: object) -> None:
    if not valid:
        raise MarkError(f"The spool format has no meaning for {what}")
