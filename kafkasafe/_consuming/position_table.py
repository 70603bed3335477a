"""The state of a position (`At`) has two parts: the procedure that runs for the position (`Activity`), and how far the
log confirms the position (`Standing`). Each part has a table of transitions (`ACTIVITY`, `STANDING`).

An event selects one row in each table. The row of `ACTIVITY` must exist: an event without a row is a bug, and raises an
error. `STANDING` has rows only for the events that change the standing. The consumer carries out the actions of the row
in `STANDING` first, then the actions of the row in `ACTIVITY`.

A consumer has read a log up to its position. When another broker becomes the leader, its log may differ. So the
consumer fetches nothing until it knows that the position is valid under the present leader:

1. A position from a commit, a reset or a seek is IDLE and UNCHECKED.
2. If the consumer has read records before the position (event CHECK_DUE), the position is WALKING while the consumer
   compares these records with the leader's log. If the consumer has read no records (event UNREAD), there is no record
   that the log could have lost.
3. If the log still has these records (event AGREED), the position is IDLE and VALID. It stays so until the consumer
   knows of another leader (CHECK_DUE again), or until a fetched batch contradicts the records that were read before
   (CONTRADICTED).
4. If the log no longer has these records (event DIFFERED), the position is DIVERGED until the application chooses a
   position (SOUGHT).

If a broker says that the position is not in the log (OUT_OF_RANGE), the consumer verifies this: the position is RANGING
until the bounds of the log are known. After an error that can mean remote storage, the consumer asks the leader whether
the position is in remote storage (LOCATING). LOCATING is the only procedure during which the consumer continues to
fetch from the partition.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class IllegalEventError(RuntimeError):
    """A bug in kafkasafe: a position got an event that cannot happen in its state."""


class Activity(enum.Enum):
    """The procedure that runs for a position; at most one runs at a time."""

    IDLE = "idle"
    """No procedure runs."""
    WALKING = "walking"
    """The consumer compares the leader's log with the records that were read."""
    RANGING = "ranging"
    """A broker answered that the position is not in the log, and the consumer asks for the bounds of the log."""
    LOCATING = "locating"
    """The consumer asks the leader whether the position is in remote storage."""
    RESETTING = "resetting"
    """The partition has no position, and the consumer looks up the target of a reset."""
    DIVERGED = "diverged"
    """The log no longer has records that the consumer read. The application decides."""
    STRANDED = "stranded"
    """The position is out of range, and no reset is allowed. The application decides."""

    __hash__ = object.__hash__  # Enum's is Python


class Standing(enum.Enum):
    """How far the log confirms a position."""

    UNCHECKED = "unchecked"
    """The position has not been compared with a log yet."""
    VALID = "valid"
    """The records before the position are in the log, as far as the consumer can find out."""
    SUSPECTED = "suspected"
    """A batch or a broker indicates that the log differs from the log that was read."""

    __hash__ = object.__hash__


class PositionEvent(enum.Enum):
    """What can happen to a position."""

    SOUGHT = "sought"
    """The application has chosen a position."""
    MOVED = "moved"
    """The position has changed, but not by the application's choice. A running procedure, or an error that waits for
    the application, is about the former position, and does not apply any more.
    """
    LEADER_UNKNOWN = "leader unknown"
    """The metadata name no leader, or they name a topic that was deleted."""
    UNREAD = "unread"
    """A check is due, and nothing was read before the position."""
    CHECK_DUE = "check due"
    """A check is due, and records were read before the position."""
    AGREED = "agreed"
    """The check found no difference, or could not compare anything."""
    DIFFERED = "differed"
    """The log now has different records, or no records, at offsets that were read."""
    NEW_TOPIC = "new topic"
    """Another topic now has the topic's name, and the consumer has read no record of the former topic."""
    CONTRADICTED = "contradicted"
    """A batch or a broker contradicts the records that were read before."""
    OTHER_TOPIC = "other topic"
    """The broker does not know the topic. If a topic with this name exists later, it may be another topic."""
    OUT_OF_RANGE = "out of range"
    """The broker says that the position is not in the log."""
    IN_RANGE = "in range"
    """The bounds of the log show that the position is in the log."""
    BEFORE_START = "before start"
    """The log begins after the position, and a reset is allowed."""
    AFTER_END = "after end"
    """The log ends before the position, and a reset is allowed."""
    NO_POLICY = "no policy"
    """The position has to be reset, and no reset is allowed."""
    REMOTE_DUE = "remote due"
    """A fetch failed with an error that can mean that remote storage is not ready."""
    LOCATED = "located"
    """The leader has answered whether the position is in remote storage."""
    RESET_DUE = "reset due"
    """The partition has no position."""
    RESET_FOUND = "reset found"
    """The target of the reset is the position now."""
    FAILED = "failed"
    """The procedure failed with an error of Kafka."""
    ENDED = "ended"
    """The procedure has ended, and its result is not used."""

    __hash__ = object.__hash__


class Action(enum.Enum):
    """What the consumer does after an event. The caller that reports the event supplies the offset or the reset
    strategy.
    """

    HOLD = "hold"
    """Fetch nothing from the partition."""
    RELEASE = "release"
    """Fetch from the partition again."""
    PAUSE = "pause"
    """Do not fetch from the partition for a while."""
    CANCEL = "cancel"
    """End the procedure, and ignore its result."""
    UNCHECK = "uncheck"
    """Forget under which leader the position was found valid."""
    REQUEST_METADATA = "request metadata"
    WALK = "walk"
    """Begin to compare the leader's log with the records that were read."""
    EXAMINE_RANGE = "examine range"
    """Begin to look up the bounds of the log."""
    LOCATE = "locate"
    """Begin to look up the first offset that the leader has on its own disk."""
    FIND_RESET = "find reset"
    """Begin to look up the target of the reset."""
    REQUEST_RESET = "request reset"
    """Drop the position. The next poll begins to look up a new position."""
    REPOSITION = "reposition"
    """Set the position again, without a leader epoch."""
    CUT = "cut"
    """Forget the history from the event's offset on."""
    FORGET_BEFORE = "forget before"
    """Forget the leader epochs before the event's offset."""
    RESTART = "restart"
    """Forget the leader epochs. The consumer reads on at the event's offset."""
    FORGET = "forget"
    """Forget the whole history, except the topic id."""
    ADOPT = "adopt"
    """Note the id of the topic that now has the name, because the consumer reads this topic from now on."""
    FORGET_UNREAD_TOPIC = "forget unread topic"
    """If nothing was read, forget the topic id. Without a topic id, the position applies to the topic that now has the
    name.
    """

    __hash__ = object.__hash__


class At(NamedTuple):
    """The state of a position."""

    activity: Activity
    standing: Standing

    def after(self, event: PositionEvent) -> tuple[At, tuple[Action, ...]]:
        """Return the next state and the actions to carry out.

        Raises:
            IllegalEventError: The event cannot happen in this state.
        """
        row = ACTIVITY[self.activity].get(event)
        if row is None:
            raise IllegalEventError(
                f"{event.name} cannot happen to a position that is {self.activity.name} and {self.standing.name}"
            )
        activity, actions = row
        standing, before = STANDING[self.standing].get(event, (self.standing, ()))
        return At(activity, standing), before + actions


_A: Final = Activity
_S: Final = Standing
_E: Final = PositionEvent

# Reactions to the answer to an earlier fetch. The answer may arrive while a procedure runs.
_CONTRADICTION: Final = (Action.HOLD, Action.REQUEST_METADATA)
_DENIED: Final = (_A.RANGING, (Action.HOLD, Action.EXAMINE_RANGE))
_DENIED_MEANWHILE: Final = (_A.RANGING, (Action.CANCEL, Action.HOLD, Action.EXAMINE_RANGE))
_CHOSEN: Final = (_A.IDLE, (Action.UNCHECK, Action.FORGET_UNREAD_TOPIC))
_CHOSEN_MEANWHILE: Final = (_A.IDLE, (Action.CANCEL, Action.UNCHECK, Action.FORGET_UNREAD_TOPIC))
_OUTDATED: Final = (_A.IDLE, (Action.UNCHECK,))
_IN_VAIN: Final = (_A.IDLE, (Action.PAUSE, Action.RELEASE))

ACTIVITY: Final[dict[Activity, dict[PositionEvent, tuple[Activity, tuple[Action, ...]]]]] = {
    _A.IDLE: {
        _E.SOUGHT: _CHOSEN,
        _E.LEADER_UNKNOWN: (_A.IDLE, (Action.HOLD, Action.REQUEST_METADATA)),
        _E.UNREAD: (_A.IDLE, (Action.RELEASE,)),
        _E.CHECK_DUE: (_A.WALKING, (Action.HOLD, Action.WALK)),
        _E.NEW_TOPIC: (_A.IDLE, (Action.FORGET, Action.REQUEST_RESET)),
        _E.NO_POLICY: (_A.STRANDED, (Action.HOLD,)),
        _E.RESET_DUE: (_A.RESETTING, (Action.FIND_RESET,)),
        _E.CONTRADICTED: (_A.IDLE, _CONTRADICTION),
        _E.OTHER_TOPIC: (_A.IDLE, (Action.UNCHECK,)),
        _E.OUT_OF_RANGE: _DENIED,
        _E.REMOTE_DUE: (_A.LOCATING, (Action.LOCATE,)),
    },
    _A.WALKING: {
        _E.SOUGHT: _CHOSEN_MEANWHILE,
        _E.MOVED: _OUTDATED,
        _E.AGREED: (_A.IDLE, (Action.RELEASE,)),
        _E.DIFFERED: (_A.DIVERGED, (Action.HOLD,)),
        _E.FAILED: _IN_VAIN,
        _E.ENDED: (_A.IDLE, ()),
        _E.CONTRADICTED: (_A.WALKING, _CONTRADICTION),
        _E.OTHER_TOPIC: (_A.WALKING, (Action.UNCHECK,)),
        _E.OUT_OF_RANGE: _DENIED_MEANWHILE,
    },
    _A.RANGING: {
        _E.SOUGHT: _CHOSEN_MEANWHILE,
        _E.MOVED: _OUTDATED,
        _E.IN_RANGE: (_A.IDLE, (Action.RELEASE,)),
        _E.BEFORE_START: (_A.IDLE, (Action.FORGET_BEFORE, Action.REQUEST_RESET)),
        _E.AFTER_END: (_A.IDLE, (Action.CUT, Action.REQUEST_RESET)),
        _E.NO_POLICY: (_A.STRANDED, (Action.HOLD,)),
        _E.DIFFERED: (_A.DIVERGED, (Action.HOLD,)),
        _E.FAILED: _IN_VAIN,
        _E.ENDED: (_A.IDLE, ()),
        _E.CONTRADICTED: (_A.RANGING, _CONTRADICTION),
        _E.OTHER_TOPIC: (_A.RANGING, (Action.UNCHECK,)),
        _E.OUT_OF_RANGE: _DENIED_MEANWHILE,
    },
    _A.LOCATING: {
        _E.SOUGHT: _CHOSEN_MEANWHILE,
        _E.MOVED: _OUTDATED,
        _E.LOCATED: (_A.IDLE, ()),
        _E.FAILED: _IN_VAIN,
        _E.ENDED: (_A.IDLE, ()),
        _E.CONTRADICTED: (_A.LOCATING, _CONTRADICTION),
        _E.OTHER_TOPIC: (_A.LOCATING, (Action.UNCHECK,)),
        _E.OUT_OF_RANGE: _DENIED_MEANWHILE,
    },
    _A.RESETTING: {
        _E.SOUGHT: _CHOSEN_MEANWHILE,
        _E.RESET_FOUND: (_A.IDLE, (Action.UNCHECK,)),
        _E.FAILED: _IN_VAIN,
        _E.ENDED: (_A.IDLE, ()),
        _E.CONTRADICTED: (_A.RESETTING, _CONTRADICTION),
        _E.OTHER_TOPIC: (_A.RESETTING, (Action.UNCHECK,)),
        _E.OUT_OF_RANGE: _DENIED_MEANWHILE,
    },
    _A.DIVERGED: {
        # The application knows of this divergence. So the consumer does not report the divergence again, whichever
        # position the application has chosen.
        _E.SOUGHT: (_A.IDLE, (Action.UNCHECK, Action.CUT, Action.ADOPT)),
        _E.MOVED: _OUTDATED,
    },
    _A.STRANDED: {
        _E.SOUGHT: _CHOSEN,
        _E.MOVED: _OUTDATED,
    },
}

STANDING: Final[dict[Standing, dict[PositionEvent, tuple[Standing, tuple[Action, ...]]]]] = {
    _S.UNCHECKED: {
        _E.UNREAD: (_S.VALID, ()),
        _E.AGREED: (_S.VALID, ()),
        _E.DIFFERED: (_S.VALID, ()),
        _E.FAILED: (_S.VALID, ()),
        _E.CONTRADICTED: (_S.SUSPECTED, ()),
    },
    _S.VALID: {
        _E.SOUGHT: (_S.UNCHECKED, ()),
        _E.MOVED: (_S.UNCHECKED, ()),
        _E.RESET_FOUND: (_S.UNCHECKED, ()),
        _E.OTHER_TOPIC: (_S.UNCHECKED, ()),
        _E.CONTRADICTED: (_S.SUSPECTED, ()),
    },
    _S.SUSPECTED: {
        _E.SOUGHT: (_S.UNCHECKED, ()),
        _E.UNREAD: (_S.VALID, (Action.RESTART,)),
        # The log agrees up to the position. So only records after the position can differ. The consumer read them, and
        # then sought to a lower offset.
        _E.AGREED: (_S.VALID, (Action.CUT, Action.REPOSITION)),
        _E.DIFFERED: (_S.VALID, ()),
        _E.FAILED: (_S.VALID, ()),
    },
}

BEGIN: Final = At(Activity.IDLE, Standing.UNCHECKED)
"""The state of a new position."""
