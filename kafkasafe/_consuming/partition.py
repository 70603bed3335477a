"""The state of an assigned partition, and the results of procedures about it: plain values, no requests."""

from __future__ import annotations

from typing import Any, Literal

from kafkasafe._core.epochs import BatchMemory, Lineage, Outcome
from kafkasafe._io.inquiry import Inquiry
from kafkasafe.events import LogDiverged

__all__ = ["Leadership", "Local", "Part", "Ranged", "ResetReason", "ResetTo", "Undecided", "Walked"]

Leadership = tuple[bytes | None, int, int]
"""Topic id, leader and leader epoch, from the metadata."""
ResetReason = tuple[Literal["no_position", "retention", "beyond_end", "recreated"], int | None]
"""The reason of a reset, and the position before it."""


class Walked:
    """The result of a walk, with the topic id and the leader epoch of the log that was compared."""

    __slots__ = ("epoch", "leadership", "outcome", "recreated", "round_trips", "topic_id")

    def __init__(self, outcome: Outcome, epoch: int, round_trips: int, *, recreated: bool = False) -> None:
        self.outcome = outcome
        self.epoch = epoch
        self.round_trips = round_trips
        self.recreated = recreated
        self.topic_id: bytes | None = None
        # The leadership in kafka-python's metadata when the walk began: the same value later is not a change.
        self.leadership: Leadership | None = None


class Ranged:
    """The result of checking an offset out of range: the bounds of the log, and the walk if there was one."""

    __slots__ = ("end", "start", "walked")

    def __init__(self, start: int, end: int, walked: Walked | None) -> None:
        self.start = start
        self.end = end
        self.walked = walked


class Local:
    """The start of the leader's local part of the log; None if the log has no remote part."""

    __slots__ = ("start",)

    def __init__(self, start: int | None) -> None:
        self.start = start


class ResetTo:
    """The target of a reset."""

    __slots__ = ("offset", "start", "strategy")

    def __init__(self, strategy: int, offset: int, start: int | None) -> None:
        self.strategy = strategy
        self.offset = offset
        self.start = start


class Undecided:
    """A divergence about which the application has not decided.

    Attributes:
        event: The divergence.
        topic_id: Id of the topic that has the name now. `Part.topic_id` stays that of the topic that was read.
    """

    __slots__ = ("event", "topic_id")

    def __init__(self, event: LogDiverged, topic_id: bytes | None) -> None:
        self.event = event
        self.topic_id = topic_id

    @property
    def is_told_by_epochs(self) -> bool:
        """Whether the leader epoch of a committed offset shows that it belongs to the former log.

        A truncated log goes on under newer epochs. The epochs of a recreated topic begin at 0 again, so any offset
        looks like one of the new log.
        """
        return self.event.reason == "truncated" and bool(self.event.epochs)

    def forbids(self, offset: int) -> bool:
        """Return whether this offset must not be committed, because it would skip unread records of the new log."""
        return offset > self.event.divergent_offset and not self.is_told_by_epochs


class Part:
    """The state of an assigned partition.

    Attributes:
        state: kafka-python's state object. Another object stands for another assignment.
        lineage: History of the records read. Changed under `SafeConsumer._lock`.
        marks: The latest batches that were read, for logs whose leader epochs do not prove enough.
        topic_id: Id of the topic that was read, even while another topic has the name and no decision was made.
        former_ids: Ids of deleted topics of that name. kafka-python's metadata may still have them.
        doubted: The connection to the leader was lost, and no leader epoch shows which broker leads since then.
        checked: The leadership under which the position was found valid; None: it must be checked.
        inquiry: The running procedure; at most one.
        position: Offset for which the procedure was begun.
        suspected: A batch, or the broker, indicates another log than the one that was read.
        undecided: A divergence about which the application has not decided.
        error: The error that `poll` raises until the position changes.
        told: When `poll` last raised it, monotonic seconds; 0: not yet.
        reset: The reason of a coming reset; None if the application asked for it.
        failures: Number of consecutive failed fetches.
        failing_since: When the first of them failed, monotonic seconds.
        failing_code: Error code of the last failed fetch.
        failing_reason: The meaning of this code.
        code: Error code of the last event about failures; 0: none.
        overdue_since: When fetches began to fail, or when `poll` last raised an error about it.
        remote: Whether the position is in remote storage; None: not known yet. Only checked after a failed fetch.
    """

    __slots__ = (
        "checked",
        "code",
        "doubted",
        "error",
        "failing_code",
        "failing_reason",
        "failing_since",
        "failures",
        "former_ids",
        "inquiry",
        "lineage",
        "marks",
        "overdue_since",
        "position",
        "remote",
        "reset",
        "state",
        "suspected",
        "told",
        "topic_id",
        "undecided",
    )

    def __init__(self, state: Any) -> None:
        self.state: Any = state
        self.lineage = Lineage()
        self.marks = BatchMemory()
        self.checked: Leadership | None = None
        self.topic_id: bytes | None = None
        self.former_ids: set[bytes] = set()
        self.doubted = False
        self.inquiry: Inquiry[Any] | None = None
        self.position = -1
        self.suspected = False
        self.undecided: Undecided | None = None
        self.error: Exception | None = None
        self.told = 0.0
        self.reset: ResetReason | None = None
        self.failures = 0
        self.failing_code = 0
        self.failing_reason = ""
        self.failing_since = self.overdue_since = 0.0
        self.code = 0
        self.remote: bool | None = None

    def adopt(self, topic_id: bytes | None) -> None:
        """Note the id of the topic that has the name now; None if the brokers do not report ids."""
        if topic_id is None:
            return
        if self.topic_id is not None and self.topic_id != topic_id:
            self.former_ids.add(self.topic_id)
        self.topic_id = topic_id

    def cancel(self) -> None:
        if self.inquiry is not None:
            self.inquiry.cancel()
            self.inquiry = None
