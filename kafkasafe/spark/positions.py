"""What a streaming query's checkpoint says of each partition, as JSON.

```json
{"kafkasafe": 1, "topics": {"orders": {"id": "5f…", "partitions": {"0": {"offset": 42, "epochs": "ks1.…"}}}}}
```

`offset` is the next to be read. `epochs` is the history of leader epochs of what was read before it
(`kafkasafe._core.epochs.Lineage`), by which the next plan knows whether that is still in the log. Where records were
lost before a micro-batch, its end says so: `begin` is where its range begins instead of where the one before ended,
with `why` and the lost range (`lost_first` to `lost_last`, inclusive). So a batch read again has the same range.

A query's first micro-batch has no batch before it:

1. Spark asks for the initial offset, "latest" is 10, and plans a first batch that ends at 15. It writes down the 15.
2. It asks for the initial offset again, before it reads the batch, and after each restart in that batch. Records have
   come, "latest" is 20.
3. Spark asks for the partitions of the range from 20 to 15.

Spark keeps no initial offset of a Python source. So the initial offset is only a sign (`"initial": true`) that nothing
was read before, and the end of the first batch has the `begin` of each partition: what `startingOffsets` means later
changes nothing. PySpark 4.0 and 4.1 ask for an end without saying where the batch begins, so each first end of a run
has what it would be as `first`; it counts after an initial offset only.

That is version 1. A topic with many partitions has its marks packed (`packed`); JSON with such a topic is version 2. A
kafkasafe that knows version 1 only refuses it, and reads all that is written for smaller topics: it passes over fields
that it does not know.

Checkpoints of Spark's own Kafka source, `{"orders": {"0": 42}}`, are read as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kafkasafe._core.epochs import LineageError
from kafkasafe.errors import ConfigError
from kafkasafe.spark.marks import UNRESOLVED, Mark, offset_of
from kafkasafe.spark.options import error
from kafkasafe.spark.packed import pack, unpack

__all__ = [
    "INITIAL",
    "Partition",
    "Positions",
    "divide",
    "ranges_between",
    "share",
]

Partition: TypeAlias = tuple[str, int]

_PLAIN: Final = 1
_PACKED: Final = 2
_PACKED_FROM: Final = 100  # partitions of a topic: some 5 kB for each micro-batch


@dataclass(frozen=True, slots=True)
class Positions:
    """Of all partitions of a query.

    Attributes:
        marks: By partition.
        topic_ids: Id of each topic, as far as it is known.
        initial: Nothing was read before these.
    """

    marks: Mapping[Partition, Mark]
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)
    initial: bool = False

    def encode(self) -> dict[str, Any]:
        """As JSON. Equal positions give equal JSON, in the same order."""
        by_topic: dict[str, dict[int, Mark]] = {}
        for topic, partition in sorted(self.marks):
            by_topic.setdefault(topic, {})[partition] = self.marks[topic, partition]
        topics: dict[str, Any] = {}
        version = _PLAIN
        for topic, marks in by_topic.items():
            number = self.topic_ids.get(topic)
            topics[topic] = {} if number is None else {"id": number.hex()}
            if len(marks) >= _PACKED_FROM:
                version = _PACKED
                topics[topic]["packed"] = pack(marks)
            else:
                topics[topic]["partitions"] = {str(number): mark.encode() for number, mark in marks.items()}
        return {"kafkasafe": version, **({"initial": True} if self.initial else {}), "topics": topics}

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Positions:
        """Of JSON.

        Raises:
            ConfigError: It is another source's, or of a newer version.
        """
        version = data.get("kafkasafe")
        try:
            if not isinstance(version, int):
                return cls(
                    {
                        (topic, int(partition)): Mark(offset_of(offset))
                        for topic, offsets in data.items()
                        for partition, offset in offsets.items()
                    }
                )
            if version not in {_PLAIN, _PACKED}:
                raise error(
                    "CHECKPOINT_VERSION",
                    f"The checkpoint has version {version}, this kafkasafe reads {_PLAIN} and {_PACKED}: use the newer"
                    " one.",
                )
            marks: dict[Partition, Mark] = {}
            ids = {}
            for topic, of_topic in data["topics"].items():
                if "id" in of_topic:
                    ids[topic] = bytes.fromhex(of_topic["id"])
                if version == _PACKED and "packed" in of_topic:
                    marks |= {(topic, number): mark for number, mark in unpack(of_topic["packed"]).items()}
                    continue
                for partition, entry in of_topic["partitions"].items():
                    marks[topic, int(partition)] = Mark.decode(entry)
        except (AttributeError, KeyError, TypeError, ValueError, LineageError) as wrong:
            if isinstance(wrong, ConfigError):
                raise
            raise error(
                "CHECKPOINT_OF_ANOTHER_SOURCE",
                f"The checkpoint's offsets are not of format kafkasafe or kafka ({type(wrong).__name__}: {wrong}):"
                " was the checkpointLocation of another query given?",
            ) from None
        return cls(marks, ids, data.get("initial") is True)


INITIAL: Final = Positions({}, initial=True)
"""Where a query begins, before the starting options were looked at."""


# --- dividing work --------------------------------------------------------------------------------------------------


def share(sizes: Mapping[Partition, int], limit: int, turn: int) -> dict[Partition, int]:
    """How many records of each partition come into a micro-batch.

    Proportional, but at least one of each where that is possible, so that a small partition beside a large one does
    not wait for ever.

    Args:
        sizes: How many there are.
        limit: How many there may be altogether, at least 1.
        turn: Any number that differs from batch to batch: who is first when there are more partitions than `limit`.
    """
    waiting = sorted(partition for partition, size in sizes.items() if size > 0)
    total = sum(sizes[partition] for partition in waiting)
    if total <= limit:
        return dict(sizes)
    shares = dict.fromkeys(sizes, 0)
    if len(waiting) >= limit:
        first = turn % len(waiting)
        for partition in (waiting[first:] + waiting[:first])[:limit]:
            shares[partition] = 1
        return shares
    left = limit - len(waiting)
    for partition in waiting:
        # One record is given already; rounding down cannot exceed the limit.
        shares[partition] = 1 + (sizes[partition] - 1) * left // (total - len(waiting))
    spare = limit - sum(shares.values())
    for partition in sorted(waiting, key=lambda partition: shares[partition] - sizes[partition]):
        given = min(spare, sizes[partition] - shares[partition])
        shares[partition] += given
        spare -= given
    return shares


def divide(
    ranges: Sequence[tuple[Partition, int, int]], *, at_least: int = 0, max_records: int = 0
) -> Iterator[tuple[Partition, int, int]]:
    """Ranges (partition, begin, end) cut into pieces for tasks, each without holes and in order.

    Args:
        ranges: None of them is empty.
        at_least: How many pieces there are to be altogether, where there are records enough.
        max_records: How many offsets a piece may have; 0: any number.
    """
    total = sum(end - begin for _, begin, end in ranges)
    for partition, begin, end in ranges:
        size = end - begin
        pieces = 1
        if at_least > len(ranges):
            pieces = -(-at_least * size // total)
        if max_records:
            pieces = max(pieces, -(-size // max_records))
        pieces = min(pieces, size)
        for number in range(pieces):
            yield partition, begin + size * number // pieces, begin + size * (number + 1) // pieces


def ranges_between(start: Positions, end: Positions) -> Iterable[tuple[Partition, int, int]]:
    """What a micro-batch reads: (partition, begin, end), begin ≤ end.

    Args:
        start: Where the batch before it ended. An initial one has a mark for each partition whose mark in `end` has
            neither `begin` nor `first`.
        end: Where it ends.

    Raises:
        ConfigError: A range goes backwards: such offsets were not planned by `kafkasafe`.
    """
    for partition in sorted(end.marks):
        mark = end.marks[partition]
        before = start.marks.get(partition)
        topic = partition[0]
        is_same = mark == before and start.topic_ids.get(topic) == end.topic_ids.get(topic)
        if is_same and not start.initial:
            # Nothing new: where the range of an earlier batch began says nothing of this one.
            yield partition, mark.offset, mark.offset
            continue
        begin = mark.begin
        if begin is None and start.initial and mark.first != UNRESOLVED:
            begin = mark.first
        if begin is None:
            # A partition that no plan has told the begin of is read from its first record.
            begin = 0 if before is None else before.offset
        if begin > mark.offset:
            raise error(
                "OFFSETS_GO_BACK",
                f"{partition[0]}-{partition[1]} was read to {begin}, and the checkpoint asks for a batch that ends at"
                f" {mark.offset}: reading it would repeat records. Was the checkpoint changed by hand, or the topic"
                " created again?",
            )
        yield partition, begin, mark.offset
