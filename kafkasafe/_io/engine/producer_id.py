"""The producer id that a lane asks for."""

from __future__ import annotations

__all__ = ["ProducerIdRequest"]


class ProducerIdRequest:
    """Whether a producer id is being asked for, and how often that failed.

    Attributes:
        is_open: It was asked for, and none was granted since.
        failures: In a row.
    """

    __slots__ = ("failures", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self.failures = 0

    def ask(self) -> None:
        """A request goes out."""
        self.is_open = True

    def granted(self) -> None:
        """A producer id was granted."""
        self.is_open = False
        self.failures = 0

    def failed(self) -> None:
        """The request was refused, or not answered; it is repeated after a pause."""
        self.failures += 1
