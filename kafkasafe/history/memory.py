"""Encodes what a consumer has read from each partition as text, for the file `SafeConsumer(lineage_path=...)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafkasafe.history.epochs import BatchMark, Lineage, LineageError
from kafkasafe.history.epochs.lineage import MAX_OFFSET
from kafkasafe.history.sealed import SealError, seal, unseal

_KIND: Final = "lineage"
_VERSION: Final = 1
MAX_MARKS: Final = 128
"""How many batches are remembered for a partition without leader epochs."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """The history of one partition.

    Attributes:
        topic_id: 16 bytes; None if brokers report no topic ids (before 2.8).
        lineage: The history of the records that the consumer returned to the program.
        marks: The batches that the consumer read last, in the order of their offsets; empty if leader epochs suffice.
        skipped: Ranges of offsets that a seek has skipped: the first offset, and the offset after the last. The
            consumer does not know the leader epochs of the skipped records.
    """

    topic_id: bytes | None
    lineage: Lineage
    marks: tuple[BatchMark, ...] = ()
    skipped: tuple[tuple[int, int], ...] = ()


def encode(partitions: Mapping[tuple[str, int], Remembered]) -> str:
    """Encode the histories, by (topic, partition), as text."""
    return seal(
        _KIND,
        _VERSION,
        [
            {
                "topic": topic,
                "partition": partition,
                "topic_id": None if known.topic_id is None else known.topic_id.hex(),
                "lineage": known.lineage.encode(MAX_LINEAGE_BYTES),
                "batches": [
                    [mark.base_offset, mark.last_offset, mark.crc] for mark in known.marks[-MAX_MARKS:]
                ],
                "skipped": [[start, end] for start, end in known.skipped],
            }
            for (topic, partition), known in sorted(partitions.items())
        ],
    )


MAX_LINEAGE_BYTES: Final = 16 * 1024
"""Maximum length of one `Lineage` as text: enough for all epochs that a `Lineage` keeps."""


def decode(text: str) -> dict[tuple[str, int], Remembered]:
    """Read the text of `encode`.

    Raises:
        SealError: The text has another format, was damaged, or is of a newer version.
    """
    return dict(_read(row) for row in unseal(_KIND, _VERSION, text))


def _read(row: Any) -> tuple[tuple[str, int], Remembered]:
    # The checksum was right, so the text is not damaged: another program has written a malformed row.
    try:
        topic, partition, number = row["topic"], row["partition"], row["topic_id"]
        known = Remembered(
            None if number is None else bytes.fromhex(number),
            Lineage.decode(row["lineage"]),
            tuple(BatchMark(*(_whole(value) for value in mark)) for mark in row["batches"]),
            # Files of earlier versions have no skipped ranges.
            tuple((_whole(start), _whole(end)) for start, end in row.get("skipped", ())),
        )
        where = _name(topic), _whole(partition)
    except (KeyError, TypeError, ValueError, LineageError) as error:
        raise SealError(f"malformed row: {type(error).__name__} {error} in {row!r}") from None
    return where, known


def _name(topic: Any) -> str:
    if not isinstance(topic, str):
        raise TypeError(f"the topic {topic!r} is not text")
    return topic


def _whole(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= MAX_OFFSET:
        raise ValueError(f"{number!r} is not an offset or number")
    return number
