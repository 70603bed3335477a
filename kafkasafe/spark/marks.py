"""The position of one partition in a query's checkpoint. See `positions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from kafkasafe.history.epochs import Lineage

Why: TypeAlias = Literal["retention", "diverged", "truncated", "recreated", "new_partition", "missing"]

UNRESOLVED: Final = -1
"""Value of `Mark.first` if the starting options could not be evaluated when the first micro-batch was planned."""

_EPOCH_BYTES: Final = 256
_WHY: Final = frozenset({"retention", "diverged", "truncated", "recreated", "new_partition", "missing"})


@dataclass(frozen=True, slots=True)
class Mark:
    """The position of one partition.

    A mark also describes the range of offsets that one micro-batch reads from the partition: the range ends at the
    mark's position. The range normally begins where the range of the previous micro-batch ended.

    Attributes:
        offset: Next offset to read.
        lineage: Leader epochs of the records before `offset`; empty if they are unknown.
        begin: First offset of the range; None: the range begins where the previous range ended.
        why: Reason why records directly before the range were lost; None: no records were lost.
        lost: First and last lost offset (inclusive), if they are known.
        first: First offset of the range. Used only in a query's first micro-batch, and only if `begin` is None.
            `UNRESOLVED`: the starting options could not be evaluated when the range was planned. None: the plan did not
            store where the range begins.
    """

    offset: int
    lineage: Lineage = field(default_factory=Lineage)
    begin: int | None = None
    why: Why | None = None
    lost: tuple[int, int] | None = None
    first: int | None = None

    def encode(self) -> dict[str, Any]:
        """Encodes the mark as JSON."""
        entry: dict[str, Any] = {"offset": self.offset}
        if self.lineage.entries:
            entry["epochs"] = self.lineage.encode(_EPOCH_BYTES)
        if self.begin is not None:
            entry["begin"] = self.begin
        if self.why is not None:
            entry["why"] = self.why
        if self.lost is not None:
            entry["lost_first"], entry["lost_last"] = self.lost
        if self.first is not None:
            entry["first"] = self.first
        return entry

    @classmethod
    def decode(cls, entry: Mapping[str, Any]) -> Mark:
        """Decodes a mark from JSON.

        Raises:
            KeyError: A field is missing.
            ValueError: A field has an invalid value.
        """
        epochs = entry.get("epochs")
        why = entry.get("why")
        first = entry.get("first")
        return cls(
            offset_of(entry["offset"]),
            Lineage() if epochs is None else Lineage.decode(epochs),
            None if entry.get("begin") is None else offset_of(entry["begin"]),
            why if why in _WHY else None,
            (offset_of(entry["lost_first"]), offset_of(entry["lost_last"]))
            if "lost_first" in entry
            else None,
            first if first in {None, UNRESOLVED} else offset_of(first),
        )


def offset_of(number: Any) -> int:
    """Checks that a value from JSON is an offset.

    Raises:
        ValueError: The value is not an offset.
    """
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is not an offset")
    return number
