"""A lane's request for a producer id."""

from __future__ import annotations

__all__ = ["ProducerIdRequest"]


class ProducerIdRequest:
    """Whether a request for a producer id is open, and how often it failed.

    Attributes:
        is_open: A request was sent, and no id was granted since.
        failures: Number of consecutive failures.
        refusal: Why the last request failed; empty if none has failed since an id was granted.
    """

    __slots__ = ("failures", "is_open", "refusal")

    def __init__(self) -> None:
        self.is_open = False
        self.failures = 0
        self.refusal = ""

    def ask(self) -> None:
        """Record that a request is sent."""
        self.is_open = True

    def granted(self) -> None:
        """Record that a producer id was granted."""
        self.is_open = False
        self.failures = 0
        self.refusal = ""

    def failed(self, reason: str) -> None:
        """Record that the request was refused, or not answered. It is repeated after a pause."""
        self.failures += 1
        self.refusal = reason
