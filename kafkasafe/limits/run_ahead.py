"""How far `send` may run ahead of deliveries while the cluster answers.

A program that only sends is faster than any cluster. Without a limit, more and more batches would wait in the spool.
The producer would have to read nearly every batch back from disk to send it, and the kernel would need new page cache
for each batch. With a limit, a batch is still in memory when the producer sends it.

The limit exists only to make deliveries faster. In an outage, the limit cannot make deliveries faster, and must not
make a sender wait. Therefore the outstanding bytes of a partition count only while the partition answers:

1. Brokers 1 and 2 each lead half of the partitions. 14 MB are outstanding, so the sender waits.
2. Broker 2 hangs, and broker 1 acknowledges the rest of its batches. Then nothing is acknowledged for half a second, so
   the partitions of broker 2 no longer count.
3. The sender continues. The records that it sends to broker 2 are buffered on disk. The outstanding records for broker
   1 stay within the limit.

A partition still counts while it waits for its turn. Otherwise the limit would have no effect on a topic with very many
partitions:

1. A topic has 5,000 partitions, each with a batch of a few kilobytes. The cluster acknowledges 2,500 batches a second.
2. So a partition gets its acknowledgement after up to two seconds. If a partition no longer counted after half a
   second, the sender would run far ahead, and the producer would have to read most batches back from disk.

When a partition answers again after an outage, 1 GB of its records may be outstanding. If a sender had to wait until
all but 14 MB are acknowledged, it would wait for almost the whole delivery. So the partition's outstanding bytes are
added to the limit, which then falls by one byte for every two delivered bytes. A sender that adds at most half as many
bytes per second as the cluster acknowledges need not wait. A faster sender is slowed down to this rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RUN_AHEAD_BYTES: Final = 14 * 1024 * 1024
"""The default limit, which is below the number of bytes that the producer keeps in memory, so that it need not read
waiting batches back from disk.
"""

_EASED_BYTES: Final = 1024 * 1024
"""A waiting sender continues once about this many bytes (one large batch) have been delivered."""

PATIENCE_S: Final = 0.5
"""A partition with waiting batches does not count after this many seconds without an acknowledgement, unless it waits
for its turn: other partitions get acknowledgements.
"""
_TURN_S: Final = 5.0
"""Longest time that a partition may wait for its turn, in seconds."""
_TURN_LIMITS: Final = 2
"""A partition's turn is over when the other partitions got acknowledgements for this multiple of the limit: all bytes
that were outstanding when the partition's turn began are then acknowledged, except for the partition's own bytes.
"""

Address = tuple[str, int]


@dataclass(slots=True)
class _Outstanding:
    """The outstanding batches of one partition.

    Attributes:
        since: When the partition last acknowledged a batch or, before the first acknowledgement, when its first batch
            was accepted. Monotonic seconds.
        turn_ends: The partition's turn is over when the cluster has acknowledged this many bytes in all.
        counts: Whether the partition answers, or waits for its turn.
    """

    since: float
    turn_ends: int
    size_bytes: int = 0
    counts: bool = True

    def accepted(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes

    def released(self, size_bytes: int) -> None:
        self.size_bytes -= size_bytes

    def answered(self, now: float, turn_ends: int) -> bool:
        """Note an answer. Return whether the partition counts again because of the answer."""
        began, self.counts, self.since, self.turn_ends = not self.counts, True, now, turn_ends
        return began

    def expired(self, now: float, answered_at: float, answered_bytes: int) -> bool:
        """Stop counting if the partition does not answer. Return whether this call stopped the counting.

        Args:
            now: Monotonic time, in seconds.
            answered_at: When any partition last acknowledged a batch.
            answered_bytes: How many bytes all partitions have acknowledged.
        """
        waited_s = now - self.since
        waits_for_turn = (
            now - answered_at < PATIENCE_S and answered_bytes < self.turn_ends and waited_s < _TURN_S
        )
        stopped = self.counts and waited_s >= PATIENCE_S and not waits_for_turn
        self.counts = self.counts and not stopped
        return stopped


class RunAhead:
    """Counts outstanding bytes (accepted, but not acknowledged), and decides whether a sender should wait.

    Args:
        limit_bytes: How many bytes may be outstanding while the cluster answers.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: dict[Address, _Outstanding] = {}
        self._outstanding_bytes = 0
        self._ceiling_bytes: float = limit_bytes
        self._answered_bytes = 0
        self._answered_at = float("-inf")
        self._look_at = 0.0
        """The earliest time at which a partition can stop counting."""

    def is_reached(self, more_bytes: int = 0) -> bool:
        """Return whether a sender should wait. `more_bytes` is the number of accepted bytes that are not counted yet.
        Any thread may call this method.
        """
        return self._outstanding_bytes + more_bytes >= self._ceiling_bytes

    def has_eased(self, more_bytes: int = 0) -> bool:
        """Return whether a waiting sender should continue.

        The threshold is lower than the threshold of `is_reached`: with equal thresholds, each small delivery would wake
        senders, which would soon wait again. The difference is small, so senders do not wait for long: a waiting sender
        encodes no records, and the cluster might have to wait for encoded batches.
        """
        return self._outstanding_bytes + more_bytes < self._ceiling_bytes - min(
            self._limit_bytes // 4, _EASED_BYTES
        )

    def accepted(self, address: Address, size_bytes: int, now: float) -> None:
        """Count a batch that was accepted for a partition."""
        waiting = self._waiting.get(address)
        if waiting is None:
            waiting = self._waiting[address] = _Outstanding(now, self._turn_ends())
            self._look_at = min(self._look_at, now + PATIENCE_S)
        waiting.accepted(size_bytes)
        if waiting.counts:
            self._outstanding_bytes += size_bytes

    def answered(self, address: Address, size_bytes: int, now: float) -> None:
        """Stop counting a batch whose outcome is known. The outcome shows that the partition's leader answers."""
        waiting = self._waiting[address]
        self._answered_bytes += size_bytes
        self._answered_at = now
        if waiting.answered(now, self._turn_ends()):
            self._outstanding_bytes += waiting.size_bytes
            self._ceiling_bytes += waiting.size_bytes
            self._look_at = min(self._look_at, now + PATIENCE_S)
        self._leave(address, waiting, size_bytes)
        self._lower(size_bytes // 2)

    def withdrawn(self, address: Address, size_bytes: int) -> None:
        """Stop counting a batch that has left memory, or that the program no longer waits for. This is no answer."""
        waiting = self._waiting[address]
        self._leave(address, waiting, size_bytes)
        if waiting.counts:
            self._lower(size_bytes)

    def expire(self, now: float) -> None:
        """Stop counting partitions that do not answer (`PATIENCE_S`). Call it repeatedly while a sender waits."""
        if now < self._look_at:
            return
        self._look_at = now + PATIENCE_S
        for waiting in self._waiting.values():
            if waiting.expired(now, self._answered_at, self._answered_bytes):
                self._outstanding_bytes -= waiting.size_bytes
                self._lower(waiting.size_bytes)
            elif waiting.counts:
                self._look_at = min(self._look_at, max(waiting.since, self._answered_at) + PATIENCE_S)

    @property
    def silent(self) -> frozenset[Address]:
        """Partitions that do not count, because they do not answer. `expire` updates the set."""
        return frozenset(address for address, waiting in self._waiting.items() if not waiting.counts)

    def clear(self) -> None:
        """Forget all batches."""
        self._waiting.clear()
        self._outstanding_bytes = 0
        self._ceiling_bytes = self._limit_bytes

    def _turn_ends(self) -> int:
        return self._answered_bytes + _TURN_LIMITS * self._limit_bytes

    def _leave(self, address: Address, waiting: _Outstanding, size_bytes: int) -> None:
        waiting.released(size_bytes)
        if waiting.counts:
            self._outstanding_bytes -= size_bytes
        if not waiting.size_bytes:
            del self._waiting[address]

    def _lower(self, by_bytes: int) -> None:
        """Lower the ceiling by `by_bytes`. The ceiling is at most the sum of the outstanding bytes and the limit, and
        never below the limit.
        """
        ceiling = min(self._ceiling_bytes - by_bytes, self._outstanding_bytes + self._limit_bytes)
        self._ceiling_bytes = max(self._limit_bytes, ceiling)
