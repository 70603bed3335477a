"""Each row of the states of a position, and what holds in all states that can be reached."""

from __future__ import annotations

import itertools

import pytest

from kafkasafe._consuming.position_table import (
    ACTIVITY,
    BEGIN,
    STANDING,
    Action,
    Activity,
    At,
    IllegalEventError,
    PositionEvent,
    Standing,
)

RUNNING = {Activity.WALKING, Activity.RANGING, Activity.LOCATING, Activity.RESETTING}
BEGINS = {
    Action.WALK: Activity.WALKING,
    Action.EXAMINE_RANGE: Activity.RANGING,
    Action.LOCATE: Activity.LOCATING,
    Action.FIND_RESET: Activity.RESETTING,
}

# One row of ACTIVITY a line: the activity, the event, the next activity, what is done.
ROWS = """
IDLE       SOUGHT          IDLE       UNCHECK FORGET_UNREAD_TOPIC
IDLE       LEADER_UNKNOWN  IDLE       HOLD REQUEST_METADATA
IDLE       UNREAD          IDLE       RELEASE
IDLE       CHECK_DUE       WALKING    HOLD WALK
IDLE       NEW_TOPIC       IDLE       FORGET REQUEST_RESET
IDLE       NO_POLICY       STRANDED   HOLD
IDLE       RESET_DUE       RESETTING  FIND_RESET
IDLE       CONTRADICTED    IDLE       HOLD REQUEST_METADATA
IDLE       OTHER_TOPIC     IDLE       UNCHECK
IDLE       OUT_OF_RANGE    RANGING    HOLD EXAMINE_RANGE
IDLE       REMOTE_DUE      LOCATING   LOCATE
WALKING    SOUGHT          IDLE       CANCEL UNCHECK FORGET_UNREAD_TOPIC
WALKING    MOVED           IDLE       UNCHECK
WALKING    AGREED          IDLE       RELEASE
WALKING    DIFFERED        DIVERGED   HOLD
WALKING    FAILED          IDLE       PAUSE RELEASE
WALKING    ENDED           IDLE
WALKING    CONTRADICTED    WALKING    HOLD REQUEST_METADATA
WALKING    OTHER_TOPIC     WALKING    UNCHECK
WALKING    OUT_OF_RANGE    RANGING    CANCEL HOLD EXAMINE_RANGE
RANGING    SOUGHT          IDLE       CANCEL UNCHECK FORGET_UNREAD_TOPIC
RANGING    MOVED           IDLE       UNCHECK
RANGING    IN_RANGE        IDLE       RELEASE
RANGING    BEFORE_START    IDLE       FORGET_BEFORE REQUEST_RESET
RANGING    AFTER_END       IDLE       CUT REQUEST_RESET
RANGING    NO_POLICY       STRANDED   HOLD
RANGING    DIFFERED        DIVERGED   HOLD
RANGING    FAILED          IDLE       PAUSE RELEASE
RANGING    ENDED           IDLE
RANGING    CONTRADICTED    RANGING    HOLD REQUEST_METADATA
RANGING    OTHER_TOPIC     RANGING    UNCHECK
RANGING    OUT_OF_RANGE    RANGING    CANCEL HOLD EXAMINE_RANGE
LOCATING   SOUGHT          IDLE       CANCEL UNCHECK FORGET_UNREAD_TOPIC
LOCATING   MOVED           IDLE       UNCHECK
LOCATING   LOCATED         IDLE
LOCATING   FAILED          IDLE       PAUSE RELEASE
LOCATING   ENDED           IDLE
LOCATING   CONTRADICTED    LOCATING   HOLD REQUEST_METADATA
LOCATING   OTHER_TOPIC     LOCATING   UNCHECK
LOCATING   OUT_OF_RANGE    RANGING    CANCEL HOLD EXAMINE_RANGE
RESETTING  SOUGHT          IDLE       CANCEL UNCHECK FORGET_UNREAD_TOPIC
RESETTING  RESET_FOUND     IDLE       UNCHECK
RESETTING  FAILED          IDLE       PAUSE RELEASE
RESETTING  ENDED           IDLE
RESETTING  CONTRADICTED    RESETTING  HOLD REQUEST_METADATA
RESETTING  OTHER_TOPIC     RESETTING  UNCHECK
RESETTING  OUT_OF_RANGE    RANGING    CANCEL HOLD EXAMINE_RANGE
DIVERGED   SOUGHT          IDLE       UNCHECK CUT ADOPT
DIVERGED   MOVED           IDLE       UNCHECK
STRANDED   SOUGHT          IDLE       UNCHECK FORGET_UNREAD_TOPIC
STRANDED   MOVED           IDLE       UNCHECK
"""
LISTED = [line.split() for line in ROWS.strip().splitlines()]

# Of STANDING: what was known, the event, what is known then, what is done first.
CHANGES = """
UNCHECKED  UNREAD          VALID
UNCHECKED  AGREED          VALID
UNCHECKED  DIFFERED        VALID
UNCHECKED  FAILED          VALID
UNCHECKED  CONTRADICTED    SUSPECTED
VALID      SOUGHT          UNCHECKED
VALID      MOVED           UNCHECKED
VALID      RESET_FOUND     UNCHECKED
VALID      OTHER_TOPIC     UNCHECKED
VALID      CONTRADICTED    SUSPECTED
SUSPECTED  SOUGHT          UNCHECKED
SUSPECTED  UNREAD          VALID      RESTART
SUSPECTED  AGREED          VALID      CUT REPOSITION
SUSPECTED  DIFFERED        VALID
SUSPECTED  FAILED          VALID
"""
CHANGED = {
    (known, event): (then, actions)
    for known, event, then, *actions in map(str.split, CHANGES.strip().splitlines())
}


@pytest.mark.parametrize("row", LISTED, ids=lambda row: f"{row[0]}-{row[1]}")
@pytest.mark.parametrize("standing", Standing, ids=lambda standing: standing.name)
def test_a_row(row, standing):
    activity, event, then, *actions = row
    known, first = CHANGED.get((standing.name, event), (standing.name, []))
    at, done = At(Activity[activity], standing).after(PositionEvent[event])
    assert (at.activity.name, at.standing.name) == (then, known)
    assert [action.name for action in done] == first + actions


def test_every_row_is_listed():
    assert {(activity.name, event.name) for activity in ACTIVITY for event in ACTIVITY[activity]} == {
        (activity, event) for activity, event, *_ in LISTED
    }
    assert {(known.name, event.name) for known in STANDING for event in STANDING[known]} == CHANGED.keys()


def illegal():
    legal = {(activity, event) for activity, event, *_ in LISTED}
    return [
        each
        for each in itertools.product(Activity, PositionEvent)
        if tuple(at.name for at in each) not in legal
    ]


@pytest.mark.parametrize(("activity", "event"), illegal(), ids=lambda each: each.name)
def test_any_other_event_names_itself_and_the_state(activity, event):
    at = At(activity, Standing.SUSPECTED)
    said = f"{event.name} cannot happen to a position that is {activity.name} and SUSPECTED"
    with pytest.raises(IllegalEventError, match=said):
        at.after(event)


class Fetching:
    """What the client does by the actions: whether it fetches, and which procedure runs."""

    def __init__(self, held=False, running=None):
        self.held = held
        self.running = running

    def after(self, event, activity, actions):
        # A seek ends whatever held the partition.
        held = self.held and event not in {PositionEvent.SOUGHT, PositionEvent.MOVED}
        # The result of a procedure is its end.
        running = self.running if activity is self.running else None
        for action in actions:
            match action:
                case Action.HOLD:
                    held = True
                case Action.RELEASE | Action.REQUEST_RESET:  # without a position nothing is fetched either
                    held = False
                case Action.CANCEL:
                    assert self.running is not None
                case _ if action in BEGINS:
                    running = BEGINS[action]
        return Fetching(held, running)

    def key(self):
        return self.held, self.running


def reachable():
    """Every state with what the client does then, and the events that lead there."""
    begun = Fetching()
    found = {(BEGIN, begun.key()): (begun, [])}
    due = [(BEGIN, begun, [])]
    while due:
        at, client, path = due.pop()
        for event in PositionEvent:
            try:
                then, actions = at.after(event)
            except IllegalEventError:
                continue
            after = client.after(event, then.activity, actions)
            if (then, after.key()) not in found:
                found[then, after.key()] = after, [*path, event.name]
                due.append((then, after, [*path, event.name]))
    return found


def test_in_every_state_that_can_be_reached_its_own_procedure_runs_and_no_other():
    for (at, _), (client, path) in reachable().items():
        assert client.running is (at.activity if at.activity in RUNNING else None), path


def test_nothing_is_fetched_while_a_log_is_compared_or_a_decision_is_due():
    seen = set()
    for (at, _), (client, path) in reachable().items():
        seen.add(at.activity)
        if at.activity in {Activity.WALKING, Activity.RANGING, Activity.DIVERGED, Activity.STRANDED}:
            assert client.held, path
    assert seen == set(Activity)


def test_what_the_application_decides_is_the_last_word():
    for at, _ in reachable():
        then, actions = at.after(PositionEvent.SOUGHT)
        assert then == BEGIN
        assert Action.UNCHECK in actions
        assert Action.RELEASE not in actions  # the seek itself has done so
        assert (Action.ADOPT in actions) is (at.activity is Activity.DIVERGED)


def test_a_suspicion_ends_with_a_look_at_the_log_or_a_decision_only():
    ends = {
        event
        for at, _ in reachable()
        if at.standing is Standing.SUSPECTED
        for event in ACTIVITY[at.activity]
        if at.after(event)[0].standing is not Standing.SUSPECTED
    }
    assert ends == {
        PositionEvent.SOUGHT,
        PositionEvent.UNREAD,
        PositionEvent.AGREED,
        PositionEvent.DIFFERED,
        PositionEvent.FAILED,
    }
