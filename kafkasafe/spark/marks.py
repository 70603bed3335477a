"""What a checkpoint says of one partition. See `positions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from kafkasafe._core.epochs import Lineage

__all__ = ["UNRESOLVED", "Mark", "Why", "offset_of"]

Why: TypeAlias = Literal["retention", "diverged", "truncated", "recreated", "new_partition", "missing"]

UNRESOLVED: Final = -1
"""The begin of a first micro-batch that was planned while the starting options had no answer."""

_EPOCH_BYTES: Final = 256
_WHY: Final = frozenset({"retention", "diverged", "truncated", "recreated", "new_partition", "missing"})


@dataclass(frozen=True, slots=True)
class Mark:
    """Of one partition.

    Attributes:
        offset: Next offset to be read.
        lineage: Leader epochs of what was read before it; empty where nothing is known.
        begin: Where the range that ends here begins; None: where the range before it ended.
        why: Why that is elsewhere.
        lost: First and last offset (inclusive) of what is gone, as far as that is known.
        first: Where the range that ends here begins if it is the query's first one and `begin` is None. `UNRESOLVED`:
            the starting options had no answer then. None: the plan does not say.
    """

    offset: int
    lineage: Lineage = field(default_factory=Lineage)
    begin: int | None = None
    why: Why | None = None
    lost: tuple[int, int] | None = None
    first: int | None = None

    def encode(self) -> dict[str, Any]:
        """As JSON."""
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
        """Of JSON.

        Raises:
            KeyError: A field is missing.
            ValueError: A field is not what it should be.
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
    """An offset in JSON.

    Raises:
        ValueError: It is none.
    """
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is no offset")
    return number
