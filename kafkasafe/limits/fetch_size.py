"""How many bytes of a partition to ask a broker for. Pure: times are arguments.

Each response has a fixed cost, so large ones are cheaper. But a response that needs longer than the request timeout is
worth nothing:

1. A consumer asks for 8 MB of each of six partitions, over a network with 10 Mbit/s.
2. The response of 48 MB would take 40 s. After 30 s, the request times out.
3. The consumer connects again and asks for the same 48 MB. It never gets a record.

Rule: begin small, and double the size only after a full response that came so soon that one of twice the size would
still come early. So no request is much larger than one that was answered.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LARGE_FETCH_BYTES", "FetchSize"]

LARGE_FETCH_BYTES: Final = 8 * 1024 * 1024
"""The largest size by default."""

_SOON_S: Final = 1.0
"""Followers must answer within `ANSWER_S` (3 s): twice this time is still early."""
_SOON_SHARE: Final = 8
"""For short timeouts, "soon" means within the timeout divided by this."""


class FetchSize:
    """The size of the next requests.

    Args:
        least: The first size.
        most: The largest size.
        timeout_s: The request timeout.

    Attributes:
        bytes: The size now.
    """

    __slots__ = ("_least", "_most", "_soon_s", "bytes")

    def __init__(self, least: int, most: int, timeout_s: float) -> None:
        self._least = least
        self._most = max(least, most)
        self._soon_s = min(_SOON_S, timeout_s / _SOON_SHARE)
        self.bytes = least

    def answered(self, size: int, took_s: float) -> None:
        """A request of this size was answered.

        Args:
            size: Bytes of the partition with the most bytes in the response.
            took_s: Time from the request to the response.
        """
        if size * 2 < self.bytes:
            return  # the broker had no more, so the time says nothing about the next response
        if took_s < self._soon_s:
            self.bytes = min(self._most, self.bytes * 2)
        elif took_s > 2 * self._soon_s:
            self.bytes = max(self._least, self.bytes // 2)

    def failed(self) -> None:
        """A request failed, perhaps because its response took too long."""
        self.bytes = self._least
