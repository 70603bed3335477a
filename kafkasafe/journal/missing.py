"""Destinations that, according to the cluster, do not exist."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Missing"]


class Missing:
    """Partitions that may not exist, and those that provably do not. `kafkasafe.cluster.absence` decides what counts as
    a proof.

    Written by the journal. Read from its thread.
    """

    __slots__ = ("_proven", "_said")

    def __init__(self) -> None:
        self._said: dict[int, None] = {}
        self._proven: dict[int, str] = {}

    def say(self, destination: int) -> None:
        """Note an answer that a destination does not exist."""
        self._said[destination] = None

    def take_back(self, destination: int) -> None:
        """Withdraw `say`: another answer came, or no batch waits for the destination. Proofs stay valid."""
        self._said.pop(destination, None)

    def prove(self, destination: int, reason: str) -> None:
        """Note a proof that the destination does not exist; it holds until `exists` is called."""
        self._proven[destination] = reason

    def exists(self, destination: int) -> None:
        """Note that the destination exists now."""
        self._said.pop(destination, None)
        self._proven.pop(destination, None)

    def clear(self) -> None:
        """Drop everything: the lane writes to another cluster."""
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
        """The proof that it does not exist, as human-readable text; empty without a proof."""
        return self._proven.get(destination, "")
