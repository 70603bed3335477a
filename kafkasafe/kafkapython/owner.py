"""The interface to the objects that one consumer's fetcher and coordinator ask for decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe.logs import EventLog


class _Followers(Protocol):
    def asked(self, node: int, partitions: Iterable[TopicPartition], now: float) -> None: ...
    def answered(self, node: int) -> None: ...
    def failed(self, node: int, now: float) -> Collection[TopicPartition]: ...
    def hang(self, now: float) -> Collection[TopicPartition]: ...
    def leave(self, partitions: Iterable[TopicPartition], now: float) -> None: ...
    def leaves(self, partitions: Iterable[TopicPartition], now: float) -> bool: ...
    def note_errors(self, node: int, rows: Iterable[tuple[TopicPartition, Any]]) -> None: ...


class _Positions(Protocol):
    def lost(self, node: int) -> None: ...
    def refresh_committed(self, timeout_ms: float | None = None) -> bool: ...


class _Results(Protocol):
    def carry_on(self) -> None: ...


class _Part(Protocol):
    @property
    def checked(self) -> object: ...


class _Parts(Protocol):
    def get(self, tp: TopicPartition) -> _Part | None: ...
    def is_busy(self) -> bool: ...
    def resting(self, now: float) -> set[TopicPartition]: ...


class _ProcedureRunner(Protocol):
    @property
    def has_work(self) -> bool: ...


class _Responses(Protocol):
    def accept(self, completed: Any) -> bool: ...


class _Commits(Protocol):
    def described(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]: ...
    def stop_describing(self) -> None: ...
    def committable(self, unhanded: Mapping[TopicPartition, int] = ...) -> dict[TopicPartition, Any]: ...


class _Reports(Protocol):
    @property
    def log(self) -> EventLog: ...


class Owner(Protocol):
    """The objects that decide for one consumer, for example from which broker to fetch."""

    @property
    def followers(self) -> _Followers:
        """Decides which partitions are read from followers."""

    @property
    def positions(self) -> _Positions:
        """Finds positions."""

    @property
    def results(self) -> _Results:
        """Resets and checks positions."""

    @property
    def parts(self) -> _Parts:
        """The assigned partitions."""

    @property
    def runner(self) -> _ProcedureRunner:
        """Runs the checks."""

    @property
    def responses(self) -> _Responses:
        """Inspects fetch responses."""

    @property
    def commits(self) -> _Commits:
        """Decides about commits."""

    @property
    def reports(self) -> _Reports:
        """Takes log records."""

    def due_s(self) -> float | None:
        """Return the seconds until the owner's first time limit; None if no time limit is set."""
