"""The shortest history that still breaks the promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .book import Violation
from .plan import Plan
from .storm import play


def found(plan: Plan, *, trace: bool = False) -> Violation | None:
    """What a history breaks."""
    try:
        play(plan, trace=trace)
    except Violation as violation:
        return violation
    return None


def shrink(
    plan: Plan,
    name: str,
    broken: Callable[[Plan], Violation | None] = found,
    *,
    at_most: int = 600,
) -> list[int]:
    """Which events are needed to break the same promise: none of them can be left out.

    Args:
        plan: Breaks it.
        name: The promise.
        broken: Plays a plan.
        at_most: How many are played.
    """
    keep = list(range(len(plan.events)))
    tries = 0

    def still(wanted: list[int]) -> bool:
        nonlocal tries
        tries += 1
        violation = broken(plan.only(wanted))
        return violation is not None and violation.name == name

    size = max(1, len(keep) // 2)
    while tries < at_most:
        at, fewer = 0, False
        while at < len(keep) and tries < at_most:
            wanted = keep[:at] + keep[at + size :]
            if still(wanted):
                keep, fewer = wanted, True
            else:
                at += size
        if size == 1 and not fewer:
            break
        size = max(1, size // 2)
    return keep


def ranges(numbers: Sequence[int]) -> str:
    """`0-3,7`: as `KEEP=` takes it."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)
