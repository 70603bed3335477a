"""Decides how many batches at the front of a lane's log are worth copying to the log's end ("copying forward").

The spool deletes a log only from the front, so one waiting batch prevents the deletion of all later batches. As in
log-structured stores, kafkasafe writes the waiting batches of the first segments again at the log's end, and deletes
the segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """A closed segment.

    Attributes:
        end_position: Position where the next segment begins.
        size_bytes: Size of the segment.
    """

    end_position: int
    size_bytes: int


def copy_before(
    closed: Sequence[Segment], waiting: Iterable[tuple[int, int]], *, used_bytes: int, limit_bytes: int
) -> int:
    """Returns the position before which to copy waiting batches to the log's end; -1: copy none.

    The size of the log decides how many batches are copied:

    - If the log uses at most half of its limit, nothing is copied.
    - If the log uses more than half, the waiting batches of its first segments are copied. From the first segment on,
      kafkasafe adds segments until waiting batches make up at most half of the segments' bytes.
    - If the log uses more than three quarters of its limit, "at most half" becomes "at most three quarters".

    Args:
        closed: The closed segments at the beginning of the log. A segment can be deleted once it has no waiting batch.
        waiting: (position, bytes) of the waiting batches, by ascending position.
        used_bytes: Size of the log.
        limit_bytes: Limit of the log's size.
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
