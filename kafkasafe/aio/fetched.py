"""Records that a consumer has fetched and the program has not received yet."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe.errors import UsageError


class UnassignedError(UsageError, kafka_errors.IllegalStateError, ValueError):
    """The partition is not assigned. Derives from the errors that aiokafka and kafka-python raise in this case."""


class Fetched:
    """The records of one partition that one poll has fetched and that the program has not received yet.

    Attributes:
        records: The records. When the program takes the last record, `RecordQueue` drops this object.
    """

    __slots__ = ("records", "tp")

    def __init__(self, tp: TopicPartition, records: Iterable[Any]) -> None:
        self.tp = tp
        self.records = collections.deque(records)

    @property
    def next_offset(self) -> int:
        """Offset of the first record that has not been returned yet."""
        return int(self.records[0].offset)

    def take(self, count: int) -> list[Any]:
        """Remove and return the first records, at most `count`."""
        records = self.records
        if count < len(records):
            return [records.popleft() for _ in range(count)]
        found = list(records)
        records.clear()
        return found


def first_unhanded(
    in_hand: Mapping[TopicPartition, int], fetched: Iterable[Fetched]
) -> dict[TopicPartition, int]:
    """Return, by partition, the offset of the first record that the program is processing or has not received yet."""
    first = dict(in_hand)
    for each in fetched:
        first[each.tp] = min(first.get(each.tp, each.next_offset), each.next_offset)
    return first
