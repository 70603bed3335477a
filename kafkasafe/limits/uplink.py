"""Limits the bytes in flight to a broker, and extends the wait for an answer on a slow link.

`UplinkBudget` measures the rate of a link: the bytes of answered requests per second. `UplinkBudget` limits the bytes
in flight to the bytes that the link carries in a fraction of the request timeout, so that the broker can answer even
the last request in time. One batch, or a few small batches, may always be in flight. Before the first measurement, no
further batch may be in flight.

The module has no clock: `now` is an argument, in seconds.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

_RATE: Final = itemgetter(1)

MEMORY_BYTES: Final = 32 * 1024 * 1024
"""Maximum memory that one producer uses for batches that are also on disk: batches that are not sent yet, and batches
that were read back to be sent. One batch may always be read back.
"""

_SHARE: Final = 0.25
"""Sending all bytes in flight may take at most this fraction of the request timeout."""
_SAMPLES: Final = 16
_SAMPLES_S: Final = 10.0
"""The rate of a link is the highest rate among its last `_SAMPLES` samples; most samples include time in which the link
was idle, so their rates are too low. Before a sample is added, samples older than `_SAMPLES_S` seconds are dropped, but
the newest sample always stays.
"""
_FEW_BYTES: Final = 256 * 1024
"""Until a request has timed out, this many bytes may be in flight even if the measured rate is low: a slow broker also
causes a low rate, and the link may be fast.
"""
_SLOWER: Final = 2.0
"""For a response, the producer waits for the request timeout, plus at least this multiple of the time in which the
link carries all bytes in flight at the measured rate.
"""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A batch in flight.

    Attributes:
        node: The broker's id; -1 when unknown.
        size_bytes: Size of the batch.
        read_bytes: Number of the batch's bytes that were read back from disk.
        sent_at: When the batch was sent, seconds.
        delivered_bytes: Number of bytes that the link had delivered before the batch was sent.
    """

    node: int
    size_bytes: int
    read_bytes: int
    sent_at: float
    delivered_bytes: int


class UplinkBudget:
    """The bytes in flight to one broker, and the rate of the link.

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
        """Bytes in flight, for which no answer has arrived."""
        self.ready = False
        """Whether the connection can probably write a request immediately."""

    def open(self) -> None:
        self.ready = True

    def close(self) -> None:
        self.ready = False

    @property
    def bytes_per_s(self) -> float:
        """The rate of the link; 0 before the first measurement."""
        return max(map(_RATE, self._samples), default=0.0)

    @property
    def window_bytes(self) -> float:
        """How many bytes may be in flight. A single batch may exceed this limit."""
        return max(self._few_bytes, self.bytes_per_s * self._timeout_s * _SHARE)

    def has_room(self, size_bytes: int) -> bool:
        """Whether another batch of this size may be sent."""
        return not self.out_bytes or self.out_bytes + size_bytes <= self.window_bytes

    def patience_s(self, size_bytes: int, timeouts: int) -> float:
        """Number of seconds that the answer to a batch may take in addition to the request timeout.

        Even after its last byte was written to the socket, the batch may wait in buffers for a long time, because
        earlier bytes are sent first.

        Args:
            size_bytes: Size of the batch.
            timeouts: Number of earlier time-outs of the batch.
        """
        patience_s = self._timeout_s * timeouts
        rate = self.bytes_per_s
        if rate:
            patience_s = max(patience_s, _SLOWER * (self.out_bytes + size_bytes) / rate)
        return patience_s

    def send(self, node: int, size_bytes: int, read_bytes: int, now: float) -> Ticket:
        """Note that a batch is sent."""
        self.out_bytes += size_bytes
        return Ticket(node, size_bytes, read_bytes, now, self._delivered)

    def answered(self, ticket: Ticket, now: float) -> None:
        """Note that the broker answered. Even an error shows that the broker has received the batch."""
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
        """Note that a batch got no answer.

        Args:
            ticket: Ticket of the batch.
            timed_out: Whether the request timed out, because the link was too slow for the bytes in flight, or the
                broker hangs.
        """
        self.out_bytes -= ticket.size_bytes
        self.ready = False
        if timed_out:
            # Forget all measurements. Until the next one, only one batch or a few small batches can then be in flight.
            self._samples.clear()
            self._few_bytes //= 2
