"""The decision about an atomic batch: accepted or dropped."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

_Unit = TypeVar("_Unit")

_KEY: Final = "decision"


class FirstDecision(Generic[_Unit]):
    """The decision about an atomic batch. The first call of `accept` or `drop` decides; later calls change nothing.

    Any thread may call the methods. `dict.setdefault`, a single call into C, makes the decision. So the first decision
    counts, even if Ctrl-C, a signal handler or another thread interrupts a commit at any moment.

    Attributes:
        made: A dict that is empty while the batch is open. Only `accept` and `drop` may change it. Testing whether the
            dict is empty is faster than calling a method.
    """

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made: dict[str, _Unit | None] = {}

    def accept(self, unit: _Unit) -> None:
        """Accepts the batch with this unit."""
        self.made.setdefault(_KEY, unit)

    def drop(self) -> None:
        """Drops the batch."""
        self.made.setdefault(_KEY, None)

    @property
    def accepted(self) -> _Unit | None:
        """The unit of the accepted batch; None if the batch is open or was dropped."""
        return self.made.get(_KEY)

    @property
    def is_dropped(self) -> bool:
        """Whether the batch was dropped."""
        return bool(self.made) and self.accepted is None
