"""Encodes and decodes files of `rejected/`, exactly as `docs/spool-format.md` specifies."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kafkasafe import marks as m
from kafkasafe.journal import Batch
from kafkasafe.record import batch as codec

OPERATOR = -2
"""The code of a batch that an operator set aside. Kafka does not use this code."""

SET_ASIDE: Final = "set aside by an operator"


class Waits(Protocol):
    """The unfinished batches of a lane, for example a dict."""

    def get(self, position: int, /) -> tuple[int, int, int] | None:
        """(number of records, size in bytes, newest timestamp) of the unfinished batch at this position, or None."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A batch to store in `rejected/`.

    Attributes:
        position: Position in the lane's log.
        data: Bytes of the batch. `encode` writes the position and the destination number into the batch's header.
        code: Kafka's error code, or `OPERATOR`.
        reason: Human-readable text.
        given: See `journal.Batch`.
    """

    position: int
    data: bytearray
    code: int
    reason: str
    given: tuple[tuple[int, int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A batch in a file of `rejected/`.

    Attributes:
        position: Position that the batch had in the lane's log.
        at: Byte offset in the file.
        code: Kafka's error code, `OPERATOR`, or -1 when it is not known.
        reason: Human-readable text; empty if unknown.
        given: See `journal.Batch`.
    """

    position: int
    header: codec.BatchHeader
    at: int
    code: int = -1
    reason: str = ""
    given: tuple[tuple[int, int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class RejectedContent:
    """The content of a file of `rejected/`.

    Attributes:
        entries: The batches, all of one destination, in delivery order.
        number: Destination number in the lane.
        topic: Topic name; empty in files of earlier versions of kafkasafe. The lane's log then has the topic name,
            under the destination number.
        partition: Partition; -1 if it was never chosen.
        cluster_id: Id of the cluster that the batches were for, empty if unknown.
        lane_id: Id of the lane; empty in files of earlier versions of kafkasafe.
    """

    entries: tuple[Entry, ...]
    number: int
    topic: str = ""
    partition: int = -1
    cluster_id: str = ""
    lane_id: bytes = b""


def is_full(used_bytes: int, limit_bytes: int) -> str:
    """Human-readable reason why `rejected/` accepts no more batches."""
    return (
        f"rejected/ is full ({used_bytes:,} bytes of rejected_max_bytes={limit_bytes:,}):"
        " resend or remove what is there, or raise the limit"
    )


def most_bytes(batch: Batch) -> int:
    """Maximum number of bytes that a batch adds to its file: the bytes of the batch, and of the marks about it."""
    return batch.size_bytes + m.bytes_of_each(batch.fault.message, batch.given)


def encode(
    batches: Sequence[Refused], destination: m.Destination, *, lane_id: bytes, cluster_id: str, now_ms: int
) -> list[bytearray]:
    """Returns the content of a file with batches of one destination, in pieces. Writes the position and the destination
    number of each batch into the header in `Refused.data`.
    """
    marks: list[m.Mark] = [destination]
    marks += [m.Rejected(batch.position, batch.code, batch.reason) for batch in batches]
    marks += [m.Given(i, batch.given) for i, batch in enumerate(batches) if batch.given is not None]
    if cluster_id:
        marks.append(m.Cluster(cluster_id))
    position = 1 + len(marks)
    manifest = []
    for batch in batches:
        codec.stamp_address(batch.data, position, destination.number)
        header = codec.read_header(batch.data)
        manifest.append(m.ManifestEntry(position, destination.number, header.size_bytes, header.crc))
        position += header.count
    group = m.Group(
        m.FORMAT_VERSION,
        lane_id,
        0,
        0,
        atomic=True,
        snapshot=False,
        closed=False,
        manifest=tuple(manifest),
    )
    return [m.encode_group(group, marks, now_ms), *(batch.data for batch in batches)]


def decode(content: codec.Buffer, name_position: int) -> RejectedContent:
    """Read a file, and check every byte of it.

    Args:
        content: The whole file.
        name_position: The number in the file's name. In files of earlier versions, this is the batch's position.

    Raises:
        ValueError: The file is incomplete, or has another format.
    """
    header = codec.verify(content)
    if not header.is_control:
        if header.size_bytes != len(content):
            raise ValueError(f"{len(content) - header.size_bytes} bytes too many")
        return RejectedContent((Entry(name_position, header, 0),), header.partition_leader_epoch)
    group, marks = m.decode_group(memoryview(content)[: header.size_bytes])
    (destination,) = [mark for mark in marks if isinstance(mark, m.Destination)]
    why = [mark for mark in marks if isinstance(mark, m.Rejected)]
    cluster = next((mark.cluster_id for mark in marks if isinstance(mark, m.Cluster)), "")
    given = {mark.index: mark.runs for mark in marks if isinstance(mark, m.Given)}
    at = header.size_bytes
    entries = []
    for index, (promised, rejected) in enumerate(zip(group.manifest, why, strict=True)):
        found = codec.verify(memoryview(content)[at : at + promised.size_bytes])
        address = (found.base_offset, found.partition_leader_epoch, found.size_bytes, found.crc)
        if address != (promised.position, promised.destination, promised.size_bytes, promised.crc):
            raise ValueError(f"the batch at byte {at} is not the one that the file promises")
        entries.append(Entry(rejected.position, found, at, rejected.code, rejected.message, given.get(index)))
        at += promised.size_bytes
    if at != len(content):
        raise ValueError(f"{len(content) - at} bytes too many")
    return RejectedContent(
        tuple(entries),
        destination.number,
        destination.topic,
        destination.partition,
        cluster,
        group.lane_id,
    )


def marks_to_set_aside(queue: Sequence[Batch], position: int, absent: Collection[int]) -> list[m.Mark] | str:
    """Returns the marks that end an unfinished batch and give new ids to the later batches, or a text that says why
    this is impossible.

    Args:
        queue: The unfinished batches of the batch's destination, in order.
        position: Position of the batch.
        absent: Positions of batches that are proven to be absent from the cluster's log, now and for ever.
    """
    index = next(i for i, batch in enumerate(queue) if batch.position == position)
    for batch in queue[index:]:
        if batch.identity is not None and batch.position not in absent:
            what = (
                "it" if batch.position == position else f"the batch after it, at position {batch.position},"
            )
            return f"{what} may be in the cluster's log"
    batch = queue[index]
    marks: list[m.Mark] = [m.Rejected(position, OPERATOR, SET_ASIDE)]
    if batch.identity is not None:
        # The later batches need new ids: their present sequences continue this batch's sequences, so without this
        # batch, the leader would find a gap, and refuse the later batches.
        kept = tuple(
            m.Identity(
                b.position, b.identity.producer_id, b.identity.producer_epoch, b.identity.base_sequence
            )
            for b in queue[:index]
            if b.identity is not None
        )
        marks.append(m.Identified(batch.destination, m.IdentityReason.REIDENTIFIED, 0, kept))
    return marks


def still_rejected(content: RejectedContent, lane_id: bytes | None, waits: Waits) -> tuple[Entry, ...]:
    """The entries that count as rejected. An entry whose batch is still unfinished in the lane's log does not count,
    because the batch's REJECTED mark did not become durable.
    """
    if content.lane_id and content.lane_id != lane_id:
        return content.entries
    return tuple(
        entry
        for entry in content.entries
        if waits.get(entry.position)
        != (entry.header.count, entry.header.size_bytes, entry.header.max_timestamp)
    )
