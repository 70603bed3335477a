"""How much goes to a broker before it answers, and how long an answer takes at most on a slow link.

A link is described by what was delivered over it: bytes that the broker answered, per second. What is out at a time is
what the link carries in a part of the request timeout, so that the last of it is answered in time; one batch, or a few
small ones, may always be out, and no more than that while nothing is known of a link.

No clock: `now` is an argument, in seconds.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

__all__ = ["MEMORY_BYTES", "Link", "Ticket"]

_RATE: Final = itemgetter(1)

MEMORY_BYTES: Final = 32 * 1024 * 1024
"""Of batches that are on disk, what one producer has in memory at most: those that were not sent yet, and those that
were read back to be sent. One batch may always be read."""

_SHARE: Final = 0.25
"""What is out takes this part of the request timeout."""
_SAMPLES: Final = 16
_SAMPLES_S: Final = 10.0
"""The fastest of so many answers, and of so many seconds, is what the link carries: most samples are of a link that had
nothing to do."""
_FEW_BYTES: Final = 256 * 1024
"""So much may be out in any case, until something times out: brokers that are slow to answer need not be slow links."""
_SLOWER: Final = 2.0
"""How many times slower than measured the link may have become before a request is given up."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A batch that is out.

    Attributes:
        node: The broker's id, -1 when it is not known.
        size_bytes: Its size.
        read_bytes: How much of that was read from disk for it.
        sent_at: Seconds.
        delivered_bytes: What had been delivered over the link before.
    """

    node: int
    size_bytes: int
    read_bytes: int
    sent_at: float
    delivered_bytes: int


class Link:
    """What is out to one broker.

    Args:
        timeout_s: The request timeout, seconds.
    """

    __slots__ = ("_delivered", "_few_bytes", "_samples", "_timeout_s", "out_bytes", "ready")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._delivered = 0
        self._few_bytes = _FEW_BYTES
        self._samples: collections.deque[tuple[float, float]] = collections.deque(maxlen=_SAMPLES)
        self.out_bytes = 0
        """Bytes without an answer."""
        self.ready = False
        """A request would be written at once, as far as is known."""

    def open(self) -> None:
        """The broker can be written to."""
        self.ready = True

    def close(self) -> None:
        """The broker cannot be reached."""
        self.ready = False

    @property
    def bytes_per_s(self) -> float:
        """What the link carries; 0 while nothing is known."""
        return max(map(_RATE, self._samples), default=0.0)

    @property
    def window_bytes(self) -> float:
        """How much may be out, one batch apart."""
        return max(self._few_bytes, self.bytes_per_s * self._timeout_s * _SHARE)

    def has_room(self, size_bytes: int) -> bool:
        """Whether one more batch of this size may go out."""
        return not self.out_bytes or self.out_bytes + size_bytes <= self.window_bytes

    def patience_s(self, size_bytes: int, timeouts: int) -> float:
        """How much longer than the request timeout the answer to a batch may take.

        It may lie in buffers on its way, behind what is out already, long after the last byte was written.

        Args:
            size_bytes: Of the batch.
            timeouts: How often it timed out before.
        """
        patience_s = self._timeout_s * timeouts
        rate = self.bytes_per_s
        if rate:
            patience_s = max(patience_s, _SLOWER * (self.out_bytes + size_bytes) / rate)
        return patience_s

    def send(self, node: int, size_bytes: int, read_bytes: int, now: float) -> Ticket:
        """A batch goes out."""
        self.out_bytes += size_bytes
        return Ticket(node, size_bytes, read_bytes, now, self._delivered)

    def answered(self, ticket: Ticket, now: float) -> None:
        """The broker has it, whatever it says."""
        self.out_bytes -= ticket.size_bytes
        self._delivered += ticket.size_bytes
        self.ready = True
        self._few_bytes = min(2 * self._few_bytes + 1, _FEW_BYTES)
        took_s = max(now - ticket.sent_at, 1e-4)
        samples = self._samples
        while samples and samples[0][0] < now - _SAMPLES_S and len(samples) > 1:
            samples.popleft()
        samples.append((now, (self._delivered - ticket.delivered_bytes) / took_s))

    def failed(self, ticket: Ticket, *, timed_out: bool) -> None:
        """There is no answer.

        Args:
            ticket: Of what was out.
            timed_out: The link was too slow for what was out, or the broker hangs.
        """
        self.out_bytes -= ticket.size_bytes
        self.ready = False
        if timed_out:
            # What it once carried says nothing any more: again one batch goes alone.
            self._samples.clear()
            self._few_bytes //= 2
