"""Copying forward: how much of the front of a log is worth it.

A log is deleted from the front only, so one batch that waits holds all that was written after it. The way out is that
of log-structured stores: what still waits in the first segments is written once more at the end, and the segments go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Segment", "copy_before"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A closed segment.

    Attributes:
        end_position: Where the next one begins.
        size_bytes: Its size.
    """

    end_position: int
    size_bytes: int


def copy_before(
    closed: Sequence[Segment], waiting: Iterable[tuple[int, int]], *, used_bytes: int, limit_bytes: int
) -> int:
    """The position up to which what waits is to be copied to the log's end; -1: nothing is.

    The less room there is the more is copied for it: while more than half is used, for the shortest front of the log
    of which at most half waits; at most three quarters, while more than three quarters are used.

    Args:
        closed: The log's segments from the first on that can go when nothing in them waits, without the last.
        waiting: (position, bytes) of what keeps them, in order.
        used_bytes: What the log takes.
        limit_bytes: What it may take.
    """
    if 2 * used_bytes <= limit_bytes:
        return -1
    dear = 4 * used_bytes > 3 * limit_bytes
    size = live = 0
    left = iter(waiting)
    following = next(left, None)
    for segment in closed:
        size += segment.size_bytes
        while following is not None and following[0] < segment.end_position:
            live += following[1]
            following = next(left, None)
        if live and (4 * live <= 3 * size if dear else 2 * live <= size):
            return segment.end_position
    return -1
