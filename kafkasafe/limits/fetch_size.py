"""How many bytes of a partition to request from a broker. Has no clock: times are arguments.

Each response has a fixed cost, so large responses cost less per byte. But a response that takes longer than the request
timeout is useless:

1. A consumer asks for 8 MB of each of six partitions, over a network with 10 Mbit/s.
2. The response of 48 MB would take 40 s. After 30 s, the request times out.
3. The consumer connects again and asks for the same 48 MB. It never gets a record.

Rule: begin small. Double the size only after a response that was at least half full, and so fast that a response of
twice the size would also arrive well before the timeout. So a request asks for at most twice the bytes of an answered
request.

Records that the application receives one by one stay in memory longer than batches. So for such an application,
responses have a smaller maximum size:

1. A consumer of 200 partitions processes each record for a millisecond. The consumer cannot keep up, so all responses
   are full.
2. With responses of 4 MB for each of the 200 partitions, 800 MB of records would wait for `poll`.

Rule: divide 32 MiB equally among the partitions, but request at most 4 MiB of each partition, and at least the size of
the first request.
"""

from __future__ import annotations

from typing import Final

LARGE_FETCH_BYTES: Final = 8 * 1024 * 1024
"""The largest size by default."""

_RECORDS_BYTES: Final = 4 * 1024 * 1024
"""The largest size if the application receives records one by one. Larger responses are hardly faster."""
_ALL_RECORDS_BYTES: Final = 32 * 1024 * 1024
"""Total size for all partitions, if the application receives records one by one."""

_SOON_S: Final = 1.0
"""A response is fast enough to double the size if it arrives within this many seconds. A response of twice the size
then takes at most 2 s. This is in time even for a follower, which has at least 3 s for its answer (`ANSWER_S`).
"""
_SOON_SHARE: Final = 8
"""If the request timeout is short, a fast response must arrive within the timeout divided by this number."""


def records_limit(partitions: int) -> int:
    """Return the largest size if the application receives records one by one.

    Args:
        partitions: Number of partitions that the consumer reads.
    """
    return min(_RECORDS_BYTES, _ALL_RECORDS_BYTES // max(partitions, 1))


class FetchSize:
    """The size of the next requests.

    Args:
        least: The size of the first request.
        most: The largest size.
        timeout_s: The request timeout.
    """

    __slots__ = ("_batches", "_least", "_limit", "_most", "_records", "_restarted_at", "_soon_s", "bytes")

    def __init__(self, least: int, most: int, timeout_s: float) -> None:
        self._least = least
        self._most = self._limit = max(least, most)
        self._soon_s = min(_SOON_S, timeout_s / _SOON_SHARE)
        self._restarted_at = float("-inf")
        self.bytes = least
        self._batches = False
        self._records = False

    def asked_for_batches(self) -> None:
        """The application asks for whole batches."""
        self._batches = True

    def returned_records(self) -> None:
        """The application receives records one by one."""
        self._records = True

    def next_bytes(self, partitions: int) -> int:
        """Return how many bytes of each partition to request next.

        If the application reads both records and batches, the result is the size of the first request: each change
        between reading records and reading batches discards fetched data, and larger responses would waste more.

        Args:
            partitions: Number of partitions that the consumer reads.
        """
        if not self._batches:
            self.limit(records_limit(partitions))
        else:
            self.limit(0 if self._records else LARGE_FETCH_BYTES)
        return self.bytes

    def limit(self, most: int) -> None:
        """From now on, request at most `most` bytes. The limit is never below the size of the first request, and never
        above the largest size.
        """
        self._limit = max(self._least, min(self._most, most))
        self.bytes = min(self.bytes, self._limit)

    def answered(self, size: int, sent_at: float, now: float) -> None:
        """Note that a request was answered.

        Args:
            size: Number of bytes of the partition with the most bytes in the response.
            sent_at: Time at which the request was sent, in seconds on the clock of `now`.
            now: When the response came.
        """
        if size * 2 < self.bytes:
            return  # the broker had no more records, so this response time does not predict the next
        if sent_at <= self._restarted_at:
            return  # the request was sent before the restart, with another size
        if now - sent_at < self._soon_s:
            self.bytes = min(self._limit, self.bytes * 2)
        elif now - sent_at > 2 * self._soon_s:
            self.bytes = max(self._least, self.bytes // 2)

    def restart(self, now: float) -> None:
        """Return to the size of the first request, because a request failed or the application called `seek`.

        A request may have failed because its response took too long. A seek discards fetched data, so small responses
        waste less data.

        Args:
            now: Seconds, as for `answered`.
        """
        self._restarted_at = now
        self.bytes = self._least
