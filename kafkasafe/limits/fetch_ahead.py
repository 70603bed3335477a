"""Decides from which partitions to fetch ahead, that is, before the application has received all records of the last
response.

kafka-python fetches from a partition only after the application has received all records of the last response. So
kafka-python alternates between decoding and waiting. To fetch ahead means to fetch from the offset where the waiting
response ends, so that the next response arrives while the application still receives the earlier records:

1. A consumer at offset 100 receives a response with the records 100 to 199. The log continues after them.
2. `poll` returns the records 100 to 149. At the same time, the consumer fetches from offset 200 on.
3. `poll` returns the records 150 to 199. The position is 200 now, and the response that begins at 200 is already
   waiting.
4. If the application seeks to 120 instead of step 3, the waiting response does not begin at the position, and is
   discarded.

Rule: fetch ahead from a partition only if its last response shows that the log has more records. A fetch at the end of
the log would wait at the broker for new records, and would delay the broker's other partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeVar

AHEAD_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of all responses that are fetched ahead at the same time. A response counts with the number of
requested bytes, not with its real size.
"""

_Place = TypeVar("_Place", bound=Hashable)


class AheadOffset(int):
    """Offset from which the consumer fetched ahead: the consumer sent the fetch before its position reached this
    offset.

    Attributes:
        checked: An object that stands for the leader and the leader epoch for which the position was checked before
            the fetch. If the partition has another such object when the response is used, the position was checked
            again meanwhile, and the response may come from a former leader.
    """

    checked: Any

    def __new__(cls, offset: int, checked: Any) -> Self:
        self = super().__new__(cls, offset)
        self.checked = checked
        return self


@dataclass(frozen=True, slots=True)
class ResponseEnd:
    """The end of a response.

    Attributes:
        fetch_offset: Offset from which the response was fetched.
        end_offset: Offset after the response's last complete batch.
        leader_epoch: Leader epoch of the last complete batch.
    """

    fetch_offset: int
    end_offset: int
    leader_epoch: int


class FetchAhead(Generic[_Place]):
    """Knows, for each partition, the end of the response whose records the application is still receiving. Only one
    thread may use this object.
    """

    def __init__(self) -> None:
        self._ends: dict[_Place, ResponseEnd] = {}

    def arrived(self, place: _Place, end: ResponseEnd | None, available_offset: int) -> None:
        """Note that a response of a partition has arrived.

        Args:
            place: The partition.
            end: End of the response; None if the response has no complete batch.
            available_offset: The high watermark, or the last stable offset if the consumer reads only committed
                records.
        """
        if end is None or end.end_offset >= available_offset:
            self._ends.pop(place, None)
        else:
            self._ends[place] = end

    def keep(self, places: Collection[_Place]) -> None:
        """Forget all partitions except `places`, the assigned partitions."""
        if len(self._ends) > len(places):
            self._ends = {place: end for place, end in self._ends.items() if place in places}

    def choose(
        self, positions: Iterable[tuple[_Place, int]], fetch_bytes: int, *, count: int = 0
    ) -> dict[_Place, ResponseEnd]:
        """Return the partitions from which to fetch ahead, each with the end of its last response.

        Args:
            positions: The positions of the partitions with exactly one waiting response.
            fetch_bytes: Requested size per partition.
            count: Number of partitions for which a response was already fetched ahead.
        """
        chosen: dict[_Place, ResponseEnd] = {}
        left = AHEAD_BYTES - count * fetch_bytes
        for place, position in positions:
            end = self._ends.get(place)
            # If the position is outside the response's offsets, the application has called `seek`, and the response
            # will be discarded.
            if end is not None and end.fetch_offset <= position < end.end_offset and left >= fetch_bytes:
                chosen[place] = end
                left -= fetch_bytes
        return chosen
