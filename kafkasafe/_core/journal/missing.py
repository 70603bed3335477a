"""Destinations of which the cluster says that they are not there."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Missing"]


class Missing:
    """What the journal knows of partitions that may not exist. What proves it is decided in `kafkasafe._core.absence`.

    Written by the journal. Read from its thread.
    """

    __slots__ = ("_proven", "_said")

    def __init__(self) -> None:
        self._said: dict[int, None] = {}
        self._proven: dict[int, str] = {}

    def say(self, destination: int) -> None:
        """An answer said so."""
        self._said[destination] = None

    def take_back(self, destination: int) -> None:
        """Another answer came, or nothing waits for it any more. What was proven stays proven."""
        self._said.pop(destination, None)

    def prove(self, destination: int, reason: str) -> None:
        """It does not exist, until `exists`."""
        self._proven[destination] = reason

    def exists(self, destination: int) -> None:
        """It is there now."""
        self._said.pop(destination, None)
        self._proven.pop(destination, None)

    def clear(self) -> None:
        """Another cluster is spoken to."""
        self._said.clear()
        self._proven.clear()

    @property
    def said(self) -> Sequence[int]:
        """Destinations that may not exist: the latest answer about them said so."""
        return tuple(self._said)

    @property
    def proven(self) -> Sequence[int]:
        """Destinations that do not exist."""
        return tuple(self._proven)

    def reason(self, destination: int) -> str:
        """Why it is known not to exist, for people; nothing where it is not."""
        return self._proven.get(destination, "")
