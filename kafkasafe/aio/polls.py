"""Notes of the consumer's thread about its polls, and about fetched records that are not on the loop yet."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka.structs import TopicPartition


class Seen(NamedTuple):
    """Which fetched records were on the loop, and which the program had finished, at the time of the program's request.

    Attributes:
        unhanded: By partition, the offset of the first record that the program has not finished.
        kept: Number of the latest poll whose records had arrived on the loop.
    """

    unhanded: dict[TopicPartition, int]
    kept: int


class HandedOut(NamedTuple):
    """The records that the program had received when an atomic batch took their offsets.

    Attributes:
        late: Whether the program received records of a partition while a running poll revoked the partition or moved
            its position back.
        partitions: Partitions from which the program has received records since the request for the latest poll.
        kept: Number of the latest poll whose records had arrived on the loop.
    """

    late: bool
    partitions: set[TopicPartition]
    kept: int


@dataclass(frozen=True)
class PollRequest:
    """The input of a poll.

    Attributes:
        left_out: Partitions from which the poll fetches nothing, because they have enough fetched records.
        paused: The live set of partitions that the program has paused. The set may change while the poll runs.
        move: Number of the program's latest move: a change of positions, of the subscription or of the assignment.
    """

    left_out: frozenset[TopicPartition]
    paused: Collection[TopicPartition]
    move: int


@dataclass(frozen=True)
class PollResult:
    """The result of a poll.

    Attributes:
        assigned: All assigned partitions.
        gone: Partitions that were revoked since the previous poll, and perhaps assigned again.
        paused: Partitions of `gone` that kafka-python has paused.
        joined: Whether the assignment fits the subscription.
    """

    number: int
    records: Mapping[TopicPartition, list[Any]]
    assigned: frozenset[TopicPartition]
    gone: list[TopicPartition]
    paused: frozenset[TopicPartition]
    joined: bool


class PollNotes:
    """Notes about the polls of one consumer. Only the consumer's thread may use this object, except for `lost`.

    Attributes:
        number: Number of the latest poll.
        unhanded: By partition, the offset of the first record that was fetched but not returned to the program.
    """

    def __init__(self) -> None:
        self.number = 0
        self.unhanded: dict[TopicPartition, int] = {}
        self._sent: collections.deque[tuple[int, dict[TopicPartition, int]]] = collections.deque()
        """Polls whose records may still be on their way to the loop: (number, first offset by partition)."""
        self._lost: collections.deque[tuple[int, frozenset[TopicPartition]]] = collections.deque(maxlen=16)
        """For each of the newest polls: (number, partitions that were revoked or whose position moved back)."""
        self._states: dict[TopicPartition, object] = {}
        """kafka-python's states of the assigned partitions, after the last poll."""

    def lost(self, states: Mapping[TopicPartition, object]) -> list[TopicPartition]:
        """Return the partitions that were revoked since the last poll, and perhaps assigned again."""
        return [tp for tp, state in self._states.items() if states.get(tp) is not state]

    def ended(
        self,
        states: dict[TopicPartition, object],
        gone: Collection[TopicPartition],
        records: Mapping[TopicPartition, list[Any]],
    ) -> None:
        """Store the result of a poll that has ended, perhaps with an error.

        Args:
            states: kafka-python's states of the assigned partitions.
            gone: The partitions that were revoked during the poll: `lost(states)`.
            records: The records that the poll returned.
        """
        self.number += 1
        self.forget(gone)
        self._states = states
        self._lost.append((self.number, frozenset(gone)))
        if records:
            first = {tp: found[0].offset for tp, found in records.items()}
            self._sent.append((self.number, first))
            self.unhanded = {**first, **self.unhanded}

    def know(self, seen: Seen) -> None:
        """Store which records have arrived on the loop, and which records the program has finished."""
        unhanded, kept = dict(seen.unhanded), seen.kept
        while self._sent and self._sent[0][0] <= kept:
            self._sent.popleft()
        for _, first in self._sent:
            for tp, offset in first.items():
                unhanded.setdefault(tp, offset)
        self.unhanded = unhanded

    def lost_after(self, kept: int, partitions: set[TopicPartition]) -> bool:
        """Return whether one of these partitions was revoked in a poll whose number is above `kept`."""
        return any(number > kept and not partitions.isdisjoint(lost) for number, lost in self._lost)

    def on_their_way(self, kept: int) -> list[dict[TopicPartition, int]]:
        """For each poll with a number above `kept`, return a dict from partitions to their first fetched offsets."""
        return [first for number, first in self._sent if number > kept]

    def stop(
        self, partitions: Collection[TopicPartition], dropped: Mapping[TopicPartition, int], kept: int
    ) -> None:
        """Store which records of these partitions the program has received, because the partitions' positions move. All
        received records count as finished, even records that the program is still processing.

        Args:
            partitions: The partitions.
            dropped: By partition, the first offset of the records that arrived on the loop but were not returned.
            kept: Number of the latest poll whose records had arrived on the loop.
        """
        others = {tp: offset for tp, offset in self.unhanded.items() if tp not in partitions}
        self.know(Seen({**others, **dropped}, kept))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the fetched records of these partitions."""
        for tp in partitions:
            for first in (self.unhanded, *(first for _, first in self._sent)):
                first.pop(tp, None)
