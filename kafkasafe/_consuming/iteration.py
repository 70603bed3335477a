"""The consumer as an iterator: records one by one, each of which moves the position as it is returned."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kafka.structs import OffsetAndMetadata, TopicPartition

__all__ = ["each_record"]

_position: Final[Any] = functools.partial(tuple.__new__, OffsetAndMetadata)
"""Make a position from a tuple. OffsetAndMetadata's own constructor costs as much as the rest of a step."""


def each_record(poll: Callable[[], Mapping[TopicPartition, list[Any]]], subscription: Any) -> Iterator[Any]:
    """Poll once, and yield the records like kafka-python's iterator.

    Before a record is yielded, the position becomes the offset after it. If the partition was paused, reset, checked or
    assigned again meanwhile, its other records are dropped. kafka-python fetches them again when their turn comes.

    Args:
        poll: Poll without moving positions.
        subscription: kafka-python's subscription state.
    """
    for tp, records in poll().items():
        state = subscription.assignment.get(tp)
        if state is None:
            continue
        for record in records:
            # `is_fetchable` of the subscription, without its lock, which would not keep another thread from making a
            # change right after this line.
            if (
                state.paused
                or state._pending_revocation
                or state._position is None
                or state._awaiting_validation
                or subscription.assignment.get(tp) is not state
            ):
                break
            state._position = _position((record[3] + 1, "", record[2]))
            yield record
