"""Connections to the brokers of a cluster in virtual time, and the requests in transit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kafkasafe.testing.fake.asking import Fields, Later
from kafkasafe.testing.fake.centre import Centre

HeldRequest: TypeAlias = tuple[Later, str, Callable[[Fields], None]]
"""(the answer that is not available yet, the name of the API, the function to call with the answer)"""


@dataclass(slots=True, eq=False)
class Pipe:
    """One connection, as its broker sees it.

    Attributes:
        on_end: Called with the reason when the connection ends.
        ended_s: Time in seconds at which the connection ended.
    """

    node: int
    on_end: Callable[[str], None]
    open: bool = True
    ended_s: float = float("inf")
    requests: deque[tuple[str, int, Any, Callable[[Fields], None]]] = field(default_factory=deque)
    held: HeldRequest | None = None
    muted_until_ms: int = 0

    def end(self, now_s: float) -> None:
        """Ends the connection."""
        self.open, self.ended_s = False, now_s

    def hold(self, request: HeldRequest | None) -> None:
        """Keeps a request whose answer is not available yet. None: the request has been answered."""
        self.held = request

    def mute(self, until_ms: int) -> None:
        """Reads no further request before this time."""
        self.muted_until_ms = until_ms


@dataclass(frozen=True, slots=True, eq=False)
class InTransit:
    """One request on its way to a broker.

    Attributes:
        pipe: The connection that it was written to.
        centre: The cluster to which the connection belonged when the request was written.
        name: Kafka's name of the API.
        message: The request's fields, as attributes.
        on_answer: Called with the fields of the answer.
        written_s: Time in seconds at which the connection accepts the request's last byte.
    """

    pipe: Pipe
    centre: Centre
    name: str
    version: int
    message: Any
    on_answer: Callable[[Fields], None]
    written_s: float


@dataclass(slots=True)
class Way:
    """The simulated bandwidth to one broker."""

    bytes_per_s: float = 0.0
    buffer_bytes: int = 0
    free_s: float = 0.0

    def pass_through(self, now_s: float, size: int) -> tuple[float, float]:
        """Sends `size` bytes. Returns (seconds until the buffer has taken all bytes, seconds until all bytes have
        arrived).
        """
        if not self.bytes_per_s:
            return 0.0, 0.0
        self.free_s = max(self.free_s, now_s) + size / self.bytes_per_s
        through_s = self.free_s - now_s
        return max(0.0, through_s - self.buffer_bytes / self.bytes_per_s), through_s
