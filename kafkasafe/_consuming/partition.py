"""The state of an assigned partition, and the results of procedures about the partition. This module sends no
requests.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal, NamedTuple

from kafkasafe._consuming.history import History
from kafkasafe._consuming.ports import AssignmentState, Leadership
from kafkasafe._consuming.position_table import BEGIN, Action, Activity, At, PositionEvent, Standing
from kafkasafe.cluster.inquiry import RunningProcedure
from kafkasafe.events import LogDiverged
from kafkasafe.history.epochs import Outcome
from kafkasafe.history.memory import Remembered

ResetReason = tuple[Literal["no_position", "retention", "beyond_end", "recreated"], int | None]
"""The reason for a reset, and the position before the reset."""

_RUNNING: Final = frozenset({Activity.WALKING, Activity.RANGING, Activity.LOCATING, Activity.RESETTING})
_DECIDING: Final = frozenset({Activity.DIVERGED, Activity.STRANDED})


class PlaceLeft(NamedTuple):
    """A position, and the known facts about its topic.

    Attributes:
        offset: Offset of the next record for the application.
        topic_id: Id of the topic; None if it is not known.
        was_read: Whether the consumer had a history of the partition.
    """

    offset: int
    topic_id: bytes | None
    was_read: bool

    def is_in(self, topic_id: bytes | None) -> bool:
        """Return whether this position belongs to the topic with this id (None: unknown).

        If one of the two ids is not known, return whether the consumer had read records. If no record was read before
        the position, it may belong to a deleted topic with the same name.
        """
        if None in {topic_id, self.topic_id}:
            return self.was_read
        return topic_id == self.topic_id


class LogCompared(NamedTuple):
    """The result of a comparison of the leader's log with the records that were read.

    Attributes:
        outcome: The result of the comparison.
        epoch: Epoch of the leader whose log was compared.
        round_trips: Number of answers that the comparison needed.
        recreated: Whether the topic's name now belongs to another topic.
        topic_id: Id of the topic whose log was compared.
        leadership: Topic id, leader and leader epoch in kafka-python's metadata when the comparison began.
    """

    outcome: Outcome
    epoch: int
    round_trips: int
    recreated: bool = False
    topic_id: bytes | None = None
    leadership: Leadership | None = None


class LogRange(NamedTuple):
    """The result of a check after the error OFFSET_OUT_OF_RANGE: the bounds of the log. If the check also compared the
    log with the records that were read, `walked` is the result of the comparison; otherwise None.
    """

    start: int
    end: int
    walked: LogCompared | None


class LocalStart(NamedTuple):
    """The first offset that the leader has on its own disk; None if the log has no remote part."""

    start: int | None


class ResetTo(NamedTuple):
    """The target of a reset."""

    strategy: int
    offset: int
    start: int | None


class Undecided(NamedTuple):
    """A divergence about which the application has not decided.

    Attributes:
        topic_id: Id of the topic that now has the name. `History.topic_id` is still the id of the topic that was read.
    """

    event: LogDiverged
    topic_id: bytes | None

    @property
    def is_known_by_epochs(self) -> bool:
        """Whether the leader epoch of a committed offset shows that the offset belongs to the former log.

        A truncated log continues with newer epochs, so an offset of the former log has an older epoch. The epochs of a
        recreated topic begin at 0 again, so its records may have the same epochs as the records of the former topic.
        """
        return self.event.reason == "truncated" and bool(self.event.epochs)

    def forbids(self, offset: int) -> bool:
        """Return whether a commit of this offset is forbidden: it could make the group skip unread records of the new
        log.
        """
        return offset > self.event.divergent_offset and not self.is_known_by_epochs


class Failures:
    """Consecutive failed fetches of a partition. Times are monotonic seconds.

    Attributes:
        count: Number of consecutive failed fetches.
        since: When the first of these fetches failed.
        code: Error code of the last failed fetch.
        reason: The meaning of this code.
        reported_code: Error code in the latest event about these failures; 0 if no event has reported them.
        overdue_since: Start of the time-out for the next error: when the fetches began to fail, or when `poll` last
            raised an error about these failures.
        remote: Whether the position is in remote storage; None: not known. The consumer asks the leader only after a
            failed fetch.
        rest_until: When the partition may be fetched again.
    """

    __slots__ = ("code", "count", "overdue_since", "reason", "remote", "reported_code", "rest_until", "since")

    def __init__(self) -> None:
        self.count = 0
        self.since = self.overdue_since = self.rest_until = 0.0
        self.code = self.reported_code = 0
        self.reason = ""
        self.remote: bool | None = None

    def failed(self, code: int, reason: str, now: float) -> None:
        if self.count == 0:
            self.since = self.overdue_since = now
        self.count += 1
        self.code, self.reason = code, reason

    def ended(self) -> None:
        """Note that a fetch has succeeded. The pause after failures ends."""
        self.count = self.reported_code = 0
        self.remote = None
        self.rest_until = 0.0

    def rest(self, until: float) -> None:
        """Do not fetch the partition before the time `until`."""
        self.rest_until = until

    def reported(self) -> None:
        """Note that an event has reported the failures so far."""
        self.reported_code = self.code

    def raised(self, now: float) -> None:
        """Note that `poll` raises an error about the failures at the time `now`."""
        self.overdue_since = now

    def located(self, *, remote: bool) -> None:
        """Note the leader's answer: whether the position is in remote storage."""
        self.remote = remote

    def moved(self) -> None:
        """Note a new position. It is not known whether the new position is in remote storage."""
        self.remote = None


class AssignedPartition:
    """The state of an assigned partition. Only the methods of this object change the state, on the polling thread.

    Attributes:
        state: kafka-python's state object. A new object means a new assignment.
        at: The state of the position (`kafkasafe._consuming.position_table`).
        history: The records that were read.
        failures: The failed fetches.
        doubted: Whether the leader may have changed since the last check: the connection to the leader was lost, or the
            leader answered NOT_LEADER_OR_FOLLOWER. Used only if the metadata have no leader epochs.
        checked: Topic id, leader and leader epoch for which the position was found valid; None: the position must be
            checked.
        inquiry: The running procedure, if any.
        position: The position when the procedure began, or when the error was raised.
        undecided: A divergence about which the application has not decided.
        error: The error that `poll` raises until the position changes.
        raised_at: Monotonic time, in seconds, at which `poll` last raised `error`; 0 if `poll` has not raised `error`
            yet.
        reset: The reason for the next reset; None if the application requested the reset.
    """

    __slots__ = (
        "_left",
        "at",
        "checked",
        "doubted",
        "error",
        "failures",
        "history",
        "inquiry",
        "position",
        "raised_at",
        "reset",
        "state",
        "undecided",
    )

    def __init__(self, state: AssignmentState, known: Remembered | None = None) -> None:
        self.state = state
        self.at: At = BEGIN
        self.history = History(known)
        self.failures = Failures()
        self.doubted = False
        self.checked: Leadership | None = None
        self.inquiry: RunningProcedure[Any] | None = None
        self.position = -1
        self.undecided: Undecided | None = None
        self.error: Exception | None = None
        self.raised_at = 0.0
        self.reset: ResetReason | None = None
        self._left: PlaceLeft | None = None
        """During a reset for the reason "no_position": the position before the rebalance."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is pending: no procedure runs, and the application does not have to decide anything."""
        return self.at.activity is Activity.IDLE

    def is_due(self, leadership: Leadership) -> bool:
        """Return whether the position must be checked under the present leadership."""
        then = self.checked
        if then is None or self.at.standing is not Standing.VALID:
            return True
        if then[0] != leadership[0] and then[0] is not None and leadership[0] is not None:
            return True  # the topic was recreated
        if leadership[2] >= 0:
            return leadership[2] > then[2]
        # The present metadata contain no epoch, because brokers before 2.4 do not report epochs. But while brokers are
        # upgraded, the last check may have got an epoch from a newer broker.
        return self.doubted or leadership[1] != then[1]

    def on(self, event: PositionEvent, offset: int = 0) -> list[Action]:
        """Apply an event. Carry out the actions that concern only this object, and return the others.

        Args:
            event: What happened.
            offset: Offset of the event, if the event changes the history.

        Raises:
            IllegalEventError: The event cannot happen in this state.
        """
        at, actions = self.at.after(event)
        others = [action for action in actions if not self._carry_out(action, offset)]
        if at.activity is not self.at.activity:
            self.inquiry = None  # the procedure belonged to the former activity
        self.at = at
        if at.activity not in _DECIDING:
            self.error = self.undecided = None
        return others

    def _carry_out(self, action: Action, offset: int) -> bool:
        match action:
            case Action.CANCEL:
                self._cancel()
            case Action.UNCHECK:
                self.checked = None
            case Action.CUT:
                self.history.cut(offset)
            case Action.FORGET_BEFORE:
                self.history.forget_before(offset)
            case Action.RESTART:
                self.history.restart(offset)
            case Action.FORGET:
                self.history.forget()
            case Action.ADOPT if self.undecided is not None:
                self.history.adopt(self.undecided.topic_id)
            case Action.FORGET_UNREAD_TOPIC:
                self.history.forget_unread_topic()
            case _:
                return False
        return True

    def begin(self, inquiry: RunningProcedure[Any]) -> None:
        """Note the procedure that runs now. The event that started the procedure has set the state already.

        If a signal handler has called `seek` since this event, the procedure concerns a former position, and is
        cancelled.
        """
        if self.at.activity in _RUNNING:
            self.inquiry = inquiry
        else:
            inquiry.cancel()

    def take(self) -> RunningProcedure[Any] | None:
        """Return the finished procedure, and forget it. Return None if no procedure has finished, or if the position is
        in a state without procedures.
        """
        inquiry = self.inquiry
        if inquiry is None or not inquiry.done:
            return None
        # Forget the procedure before the caller uses its result, so that the next poll cannot use the result again even
        # if the caller raises an error.
        self.inquiry = None
        return inquiry if self.at.activity in _RUNNING else None

    def cancel(self) -> None:
        """End the procedure, if one runs, and ignore its result."""
        self._cancel()
        self.mend()

    def mend(self) -> None:
        """If the position is in a state in which a procedure should run, but no procedure runs, leave this state. The
        cause may be an interrupt between the event and the start of the procedure.
        """
        if self.inquiry is None and self.at.activity in _RUNNING:
            self.on(PositionEvent.ENDED)

    def _cancel(self) -> None:
        if self.inquiry is not None:
            self.inquiry.cancel()
            self.inquiry = None

    def remembered(self, least: int = 0) -> Remembered:
        """Return the history up to the position, to keep it for a later assignment.

        Args:
            least: Minimum end offset of the history: all records below this offset were returned to the application, or
                are about to be returned.
        """
        position = self.state.position
        # Without a position (during a reset) keep the whole history.
        return self.history.remembered(None if position is None else max(position.offset, least))

    @property
    def place_left(self) -> PlaceLeft | None:
        """The position; during a reset, the position before the reset. None without a position, or if the position was
        in a deleted topic.
        """
        position = self.state.position
        offset = None if position is None else int(position.offset)
        if position is None and self.reset is not None:
            why, offset = self.reset
            if why == "no_position":
                return self._left
            if why == "recreated":
                return None
        if offset is None:
            return None
        return PlaceLeft(offset, self.history.topic_id, bool(self.history.lineage.entries))

    @property
    def is_reset_by_application(self) -> bool:
        """Whether the application has requested a reset that has not ended yet."""
        return self.reset is None and bool(self.state.awaiting_reset)

    def place(self, position: int) -> None:
        """Note the position for which a procedure begins or an error is raised."""
        self.position = position

    def sought(self) -> list[Action]:
        """Note that the application has chosen a position. Return the actions to carry out."""
        self.reset = None
        self.failures.moved()
        return self.on(
            PositionEvent.SOUGHT, 0 if self.undecided is None else self.undecided.event.divergent_offset
        )

    def doubt(self, nodes: Collection[int]) -> None:
        """If the position was found valid under one of these leaders, and the metadata have no leader epochs, check the
        position again.
        """
        if self.checked is not None and self.checked[1] in nodes:
            self.doubted = True

    def doubt_leader(self) -> None:
        """If the metadata have no leader epochs, check the position again."""
        self.doubted = True

    def looked(self) -> None:
        """Note that a check begins. From now on, `doubted` is false."""
        self.doubted = False

    def check(self, leadership: Leadership | None) -> None:
        """Note that the position is valid under this leadership; None: the metadata named no leader."""
        self.checked = leadership

    def diverged(self, undecided: Undecided, error: Exception) -> list[Action]:
        """Note that the log no longer contains the records that were read. Return the actions to carry out."""
        # Store the error first: an interrupt must not leave a held partition without an error.
        self.undecided = undecided
        self.stop(error)
        return self.on(PositionEvent.DIFFERED)

    def strand(self, error: Exception) -> list[Action]:
        """Note that the position has to be reset, but no reset is allowed. Return the actions to carry out."""
        self.stop(error)
        return self.on(PositionEvent.NO_POLICY)

    def stop(self, error: Exception) -> None:
        """Make `poll` raise this error until the position changes."""
        self.error, self.raised_at = error, 0.0

    def explain(self, error: Exception) -> bool:
        """If `poll` will raise an error about this partition, replace the pending error with `error` and return True.
        Otherwise return False.
        """
        if self.error is None:
            return False
        self.error = error
        return True

    def raised(self, now: float) -> None:
        self.raised_at = now

    def resets(self, reason: ResetReason, left: PlaceLeft | None = None) -> None:
        """Note the reason for a reset that the application did not request.

        Args:
            reason: The reason.
            left: The position before a rebalance, if the reason is "no_position".
        """
        self.reset, self._left = reason, left

    def was_reset(self) -> ResetReason | None:
        """Note that the position was reset. Return the reason; None if the application requested the reset."""
        reason, self.reset = self.reset, None
        return reason
