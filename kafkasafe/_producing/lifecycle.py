"""Stores whether a producer is open, or how it ended: it was closed, dropped, or inherited by a forked child."""

from __future__ import annotations

from kafkasafe.errors import ForkedProcessError


class Lifecycle:
    """Keeps the error that all calls raise after the end of a producer.

    Attributes:
        closed: The error that later calls raise; None while the producer is open.
    """

    __slots__ = ("closed",)

    def __init__(self) -> None:
        self.closed: BaseException | None = None

    def end(self, error: BaseException) -> None:
        """Make all later calls raise this error."""
        self.closed = error

    def raise_closed(self) -> None:
        """Raise the error of a closed producer, without the traceback of earlier raises."""
        if self.closed is not None:
            raise self.closed.with_traceback(None)

    def check_fork(self) -> None:
        """Raise ForkedProcessError if this is a child of the process that opened the producer."""
        if isinstance(self.closed, ForkedProcessError):
            self.raise_closed()
