"""What is known of an assigned partition, and what the procedures about it find: plain values, no requests."""

from __future__ import annotations

from typing import Any, Literal

from kafkasafe._core.epochs import BatchMemory, Lineage, Outcome
from kafkasafe._io.inquiry import Inquiry
from kafkasafe.events import LogDiverged

__all__ = ["Leadership", "Local", "Part", "Ranged", "ResetReason", "ResetTo", "Undecided", "Walked"]

Leadership = tuple[bytes | None, int, int]
"""Topic id, leader, leader epoch; as the metadata have it."""
ResetReason = tuple[Literal["no_position", "retention", "beyond_end", "recreated"], int | None]
"""Why, and the position before."""


class Walked:
    """What a walk found, in the log of which topic, and under which leader epoch."""

    __slots__ = ("epoch", "leadership", "outcome", "recreated", "round_trips", "topic_id")

    def __init__(self, outcome: Outcome, epoch: int, round_trips: int, *, recreated: bool = False) -> None:
        self.outcome = outcome
        self.epoch = epoch
        self.round_trips = round_trips
        self.recreated = recreated
        self.topic_id: bytes | None = None
        # What kafka-python's metadata said when it began: the same again is no news.
        self.leadership: Leadership | None = None


class Ranged:
    """What is behind an offset out of range: the log's bounds, and the walk if there was one."""

    __slots__ = ("end", "start", "walked")

    def __init__(self, start: int, end: int, walked: Walked | None) -> None:
        self.start = start
        self.end = end
        self.walked = walked


class Local:
    """Where the leader's own part of the log begins; None: it has no other."""

    __slots__ = ("start",)

    def __init__(self, start: int | None) -> None:
        self.start = start


class ResetTo:
    """Where a reset leads."""

    __slots__ = ("offset", "start", "strategy")

    def __init__(self, strategy: int, offset: int, start: int | None) -> None:
        self.strategy = strategy
        self.offset = offset
        self.start = start


class Undecided:
    """A divergence that the application has not decided about.

    Attributes:
        event: What was found.
        topic_id: Of the topic that has the name now. `Part.topic_id` stays that of the topic that was read.
    """

    __slots__ = ("event", "topic_id")

    def __init__(self, event: LogDiverged, topic_id: bytes | None) -> None:
        self.event = event
        self.topic_id = topic_id

    @property
    def is_told_by_epochs(self) -> bool:
        """Whether a committed offset of the former log is recognised as such by its leader epoch.

        A log that was cut goes on under newer epochs. The epochs of a recreated topic begin at 0 again: any offset
        looks like one of the new log.
        """
        return self.event.reason == "truncated" and bool(self.event.epochs)

    def forbids(self, offset: int) -> bool:
        """Whether this offset must not be committed: it would skip records of the new log that were never read."""
        return offset > self.event.at and not self.is_told_by_epochs


class Part:
    """What is known of an assigned partition.

    Attributes:
        state: kafka-python's; another one stands for another assignment.
        lineage: What was read. Changed under `SafeConsumer._lock`.
        marks: The newest batches that were read, where leader epochs do not tell enough.
        topic_id: Of the topic that was read; also while it is undecided that another topic has the name.
        former_ids: Of topics of that name that are gone. kafka-python's metadata may still have them.
        doubted: A connection to the leader was lost, and no leader epoch tells who leads since.
        checked: Under whom the position was found good; None: it has to be checked.
        inquiry: The procedure under way, one at a time.
        position: Offset for which it was begun.
        suspected: A batch, or the broker, spoke of another log than the one that was read.
        undecided: A divergence that was found, and not decided about yet.
        error: What `poll` raises until the position changes.
        told: When it was raised last; 0: not yet.
        reset: Why the position is about to be reset; None: the application asked for it.
        failures: Fetches that failed one after the other.
        failing_since: When the first of them did.
        failing_code: Error code of the last one.
        failing_reason: What that means.
        code: Error code that was told of last, 0: none.
        overdue_since: When fetches began to fail, or `poll` last said that it takes too long.
        remote: Whether the position lies in remote storage; None: not known yet. Only looked at when a fetch failed.
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
        """This topic has the name from here on; None: the brokers do not say which."""
        if topic_id is None:
            return
        if self.topic_id is not None and self.topic_id != topic_id:
            self.former_ids.add(self.topic_id)
        self.topic_id = topic_id

    def cancel(self) -> None:
        if self.inquiry is not None:
            self.inquiry.cancel()
            self.inquiry = None
