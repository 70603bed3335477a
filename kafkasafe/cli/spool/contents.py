"""The contents of lanes, batch by batch and record by record."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kafkasafe.cli.common import CODES, lanes_of, note_trouble
from kafkasafe.delivery.engine.parcels import given_partitions
from kafkasafe.errors import SpoolError
from kafkasafe.history.identity import add_sequence
from kafkasafe.maintenance.examination import LaneContent, SpooledBatch, read_content
from kafkasafe.maintenance.held_segments import HeldSegments
from kafkasafe.record import batch as codec
from kafkasafe.spool.inspection import resent_in

DAMAGED: Final = CODES.format(broken="something is damaged")
DAMAGED_OR_REJECTED: Final = CODES.format(broken="something is damaged, or was rejected")

LaneName = Annotated[
    str | None, typer.Option("--lane", metavar="LANE", help="Only this lane: lane-003, or 3.")
]


@contextlib.contextmanager
def contents_of(
    directory: Path, lane: str | None, troubles: list[tuple[str, str]]
) -> Iterator[list[LaneContent]]:
    """Context manager that yields the content of each lane. Rejected records that were sent again do not count as
    rejected.

    Inside the context, records stay readable even if the lane's owner delivers them and deletes their segment.

    Args:
        directory: The spool directory.
        lane: The only lane to read; None reads all of them.
        troubles: Receives the name of each unreadable lane, with the reason.
    """
    contents = []
    with HeldSegments() as files:
        for lanes, number in lanes_of(directory, lane):
            path = lanes.lane_path(number)
            try:
                contents.append(read_content(path, files=files))
            except SpoolError as error:
                note_trouble(path, error, troubles)
        resent = [mark for content in contents for mark in resent_in(content.log)]
        yield [content.without(resent) for content in contents]


def unread_rows(troubles: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """JSON rows for the lanes that cannot be read."""
    return [{"lane": name, "error": reason} for name, reason in troubles]


def records_of(content: LaneContent, batch: SpooledBatch, *, raw: bool = False) -> Iterator[dict[str, Any]]:
    """Yields the records of a batch. With `raw`, keys and values are bytes instead of text."""
    columns = codec.decode(content.data(batch))
    given = given_partitions(columns, batch.given) if batch.partition < 0 else {}
    identity = batch.identity
    as_value = _as_is if raw else _as_text
    for index in range(batch.records):
        offset = batch.known.base_offset
        headers = columns.headers.get(index, [])
        yield {
            "lane": batch.lane,
            "position": batch.position + index,
            "topic": batch.topic,
            "partition": given.get(index, batch.partition),
            "offset": offset + index if offset >= 0 else None,
            "status": batch.known.fate.value,
            "producer_id": None if identity is None else identity.producer_id,
            "producer_epoch": None if identity is None else identity.producer_epoch,
            "sequence": None if identity is None else add_sequence(identity.base_sequence, index),
            "timestamp_ms": columns.timestamps[index],
            "key": as_value(columns.keys[index]),
            "value": as_value(columns.values[index]),
            "headers": [
                {"name": name, "value": as_value(value)} if raw else [name, as_value(value)]
                for name, value in headers
            ],
        }


def _as_is(data: bytes | None) -> bytes | None:
    return data


def _as_text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
