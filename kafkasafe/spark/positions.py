"""The JSON format of positions in the checkpoint of a streaming query.

```json
{"kafkasafe": 1, "topics": {"orders": {"id": "5f…", "partitions": {"0": {"offset": 42, "epochs": "ks1.…"}}}}}
```

`offset` is the next offset to read. `epochs` holds the leader epochs of the records before `offset`
(`kafkasafe.history.epochs.Lineage`). With the leader epochs, the next plan can check that the records are still in the
log.

If records were lost before a micro-batch, the end positions of the batch also describe the loss. After a loss, the
range begins at the offset `begin`, and not at the end of the previous batch. `why` is the reason, and `lost_first` to
`lost_last` (inclusive) are the lost offsets. The fields about a loss ensure that a batch has the same range when Spark
reads the batch again.

A micro-batch begins where the previous one ended. But the first micro-batch of a query has no previous one. If the
checkpoint did not contain the beginning of the first micro-batch, the following could happen:

1. A query starts at "latest". Spark asks for the initial offset and gets 10. Spark plans a first batch that ends
   at 15, and writes this end into the checkpoint.
2. Producers append. Spark asks for the initial offset again before it reads the batch, and again after each restart
   until the batch is finished. By now, "latest" is 20.
3. Spark asks the source to read the range from 20 to 15.

To prevent a range that ends before it begins, the end of the first batch also stores where the batch begins in each
partition (`begin`). So the batch keeps its range even if `startingOffsets` resolves to other offsets later. The initial
offset contains no positions, only `"initial": true`, which means that the query has not read any record. Storing
positions in the initial offset would not help, because Spark does not keep the initial offset of a Python source.

PySpark 4.0 and 4.1 ask where a batch ends without saying where it begins, so the source does not know whether the batch
is the query's first. With PySpark 4.0 and 4.1, the first planned end of each run therefore also contains the field
`first`. If the batch is the query's first, it begins at the offset `first`. For any other batch, the source ignores
`first`.

The fields described so far are version 1 of the format. If a topic has many partitions, its marks are packed
(`packed`), and the JSON has version 2, or version 3 if the packed marks are long. A release of kafkasafe rejects format
versions that are newer than the release. Unknown fields are ignored. So an older release can read the checkpoint of a
newer release if the older release knows the format version.

`Positions.decode` also reads checkpoints of Spark's own Kafka source, such as `{"orders": {"0": 42}}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kafkasafe.errors import ConfigError
from kafkasafe.history.epochs import LineageError
from kafkasafe.spark.marks import UNRESOLVED, Mark, offset_of
from kafkasafe.spark.option_values import error
from kafkasafe.spark.packed import is_dense, pack, unpack

Partition: TypeAlias = tuple[str, int]

_PLAIN: Final = 1
_PACKED: Final = 2
_DENSE: Final = 3
_RECENT: Final = 2  # the start and the end of a micro-batch
_PACKED_FROM: Final = 100  # pack the marks of topics with at least 100 partitions: unpacked, they take 5 kB


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of all partitions of a query.

    Attributes:
        marks: The mark of each partition.
        topic_ids: Known topic ids, by topic name.
        initial: Whether these are the initial positions of a new query. Such a query has not read any record.
    """

    marks: Mapping[Partition, Mark]
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)
    initial: bool = False

    def encode(self) -> dict[str, Any]:
        """Encodes the positions as JSON. Equal positions give equal JSON, with the fields in the same order."""
        by_topic: dict[str, dict[int, Mark]] = {}
        for topic, partition in sorted(self.marks):
            by_topic.setdefault(topic, {})[partition] = self.marks[topic, partition]
        topics: dict[str, Any] = {}
        version = _PLAIN
        for topic, marks in by_topic.items():
            number = self.topic_ids.get(topic)
            topics[topic] = {} if number is None else {"id": number.hex()}
            if len(marks) >= _PACKED_FROM:
                packed = topics[topic]["packed"] = pack(marks)
                version = max(version, _DENSE if is_dense(packed) else _PACKED)
            else:
                topics[topic]["partitions"] = {str(number): mark.encode() for number, mark in marks.items()}
        return {"kafkasafe": version, **({"initial": True} if self.initial else {}), "topics": topics}

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Positions:
        """Decodes positions from JSON.

        Raises:
            ConfigError: The JSON is from another source or a newer version.
        """
        try:
            version = data.get("kafkasafe")
            if not isinstance(version, int):
                return cls(
                    {
                        (topic, int(partition)): Mark(offset_of(offset))
                        for topic, offsets in data.items()
                        for partition, offset in offsets.items()
                    }
                )
            if version not in {_PLAIN, _PACKED, _DENSE}:
                raise error(
                    "CHECKPOINT_VERSION",
                    f"The checkpoint has version {version}, but this kafkasafe reads only {_PLAIN} to {_DENSE}: use"
                    " the newer kafkasafe that wrote it.",
                )
            marks: dict[Partition, Mark] = {}
            ids = {}
            for topic, of_topic in data["topics"].items():
                if "id" in of_topic:
                    ids[topic] = bytes.fromhex(of_topic["id"])
                if version >= _PACKED and "packed" in of_topic:
                    if is_dense(of_topic["packed"]) and version < _DENSE:
                        raise ValueError(f"version {version} has no field dense")  # noqa: TRY301
                    marks |= {(topic, number): mark for number, mark in unpack(of_topic["packed"]).items()}
                    continue
                for partition, entry in of_topic["partitions"].items():
                    marks[topic, int(partition)] = Mark.decode(entry)
        except (AttributeError, KeyError, TypeError, ValueError, LineageError) as wrong:
            if isinstance(wrong, ConfigError):
                raise
            raise error(
                "CHECKPOINT_OF_ANOTHER_SOURCE",
                f"The checkpoint's offsets are not in format kafkasafe or kafka ({type(wrong).__name__}: {wrong}):"
                " check that checkpointLocation does not belong to another query.",
            ) from None
        return cls(marks, ids, data.get("initial") is True)


INITIAL: Final = Positions({}, initial=True)
"""The initial offset of every query. The initial offset contains no positions, because the planner evaluates the
starting options later.
"""


class Recent:
    """Encodes and decodes positions. Keeps the two latest results, so that the same JSON is not decoded twice.

    Spark passes the end of each micro-batch to the source several times: with the request for the batch's ranges, and
    as the start of the next micro-batch. For 1,000 partitions, decoding takes a third as long as planning.
    """

    def __init__(self) -> None:
        self._known: tuple[tuple[Mapping[str, Any], Positions], ...] = ()

    def encode(self, positions: Positions) -> dict[str, Any]:
        """Does the same as `positions.encode()`."""
        data = positions.encode()
        self._remember(data, positions)
        return data

    def decode(self, data: Mapping[str, Any]) -> Positions:
        """Does the same as `Positions.decode`.

        Raises:
            ConfigError: The JSON is from another source or a newer version.
        """
        for known, positions in self._known:
            if known == data:
                return positions
        positions = Positions.decode(data)
        self._remember(data, positions)
        return positions

    def _remember(self, data: Mapping[str, Any], positions: Positions) -> None:
        self._known = ((data, positions), *self._known[: _RECENT - 1])


# --- dividing work --------------------------------------------------------------------------------------------------


def share(sizes: Mapping[Partition, int], limit: int, turn: int) -> dict[Partition, int]:
    """Decides how many records a micro-batch reads from each partition, within a limit for the whole batch.

    The shares are proportional. Each partition gets at least one record if the limit allows it, so that a small
    partition next to a large one does not starve.

    Args:
        sizes: Number of available records, by partition.
        limit: Maximum number of records in total, at least 1.
        turn: A number that differs for each batch. If there are more partitions than `limit`, the batch reads one
            record from each of `limit` partitions, and `turn` decides from which partitions.
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
        # From each partition, the batch reads one record and a share of the rest of the limit. Rounding down keeps the
        # sum within the limit.
        shares[partition] = 1 + (sizes[partition] - 1) * left // (total - len(waiting))
    spare = limit - sum(shares.values())
    for partition in sorted(waiting, key=lambda partition: shares[partition] - sizes[partition]):
        given = min(spare, sizes[partition] - shares[partition])
        shares[partition] += given
        spare -= given
    return shares


def partition_names(partitions: Iterable[Partition]) -> str:
    """Returns the names of partitions as text, for messages."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in partitions)


def divide(
    ranges: Sequence[tuple[Partition, int, int]], *, at_least: int = 0, max_records: int = 0
) -> Iterator[tuple[Partition, int, int]]:
    """Cuts ranges (partition, begin, end) into contiguous pieces for tasks, in order.

    Args:
        ranges: The ranges. None of them may be empty.
        at_least: Minimum number of pieces from all ranges together, if there are enough records.
        max_records: Maximum number of offsets in a piece; 0: no limit.
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
    """Yields the ranges of a micro-batch as (partition, begin, end), with begin ≤ end.

    Args:
        start: Positions where the batch begins: the end of the previous batch, or initial positions. Initial positions
            must contain each partition whose mark (position) in `end` does not store where the batch begins: `begin` is
            None, and `first` is None or `UNRESOLVED`.
        end: Positions where the batch ends.

    Raises:
        ConfigError: A range ends before it begins. `kafkasafe` never plans such a range.
    """
    for partition in sorted(end.marks):
        mark = end.marks[partition]
        before = start.marks.get(partition)
        topic = partition[0]
        # Old brokers report no topic ids, so an id may be unknown until the brokers are upgraded. An unknown id does
        # not mean that the topic was created again.
        is_same = mark == before and start.topic_ids.get(topic) in {None, end.topic_ids.get(topic)}
        if is_same and not start.initial:
            # The batch reads nothing from this partition. The mark still stores the `begin` of an earlier batch.
            yield partition, mark.offset, mark.offset
            continue
        begin = mark.begin
        if begin is None and start.initial and mark.first != UNRESOLVED:
            begin = mark.first
        if begin is None:
            # No plan has stored where to begin. Without a mark in `start`, the partition is new, so read it from offset
            # 0.
            begin = 0 if before is None else before.offset
        if begin > mark.offset:
            raise error(
                "OFFSETS_GO_BACK",
                f"{partition[0]}-{partition[1]} was read to {begin}, but the checkpoint asks for a batch that ends at"
                f" {mark.offset}: reading it would repeat records. Check whether the checkpoint was changed by hand, or"
                " the topic created again.",
            )
        yield partition, begin, mark.offset
