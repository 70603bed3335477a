"""When a partition is read from its leader alone, in time that is given."""

from __future__ import annotations

import contextlib

from kafkasafe._consuming.followers import ANSWER_S, LEADER_ONLY_S, Followers

HALF_S = 0.5
PATIENCE_S = HALF_S + ANSWER_S


def is_late(known, node, partition):
    """Whether an error that this follower answers now counts as late."""
    row = object()
    known.note_errors(node, [(partition, row)])
    return known.is_late(row)


def test_a_follower_that_was_left_is_tried_again_after_a_while():
    known = Followers(HALF_S, contextlib.nullcontext())
    known.leave(["a"], 100.0)
    assert known.leaves(["a"], 100.0 + LEADER_ONLY_S - 0.1)
    assert not known.leaves(["a"], 100.0 + LEADER_ONLY_S)
    assert not known.leaves(["b"], 100.0)


def test_an_answer_in_time_leaves_nothing():
    known = Followers(HALF_S, contextlib.nullcontext())
    known.asked(2, ["a"], 100.0)
    assert known.due_s(101.0) == PATIENCE_S - 1
    known.answered(2)
    assert known.due_s(101.0) == PATIENCE_S
    assert known.hang(200.0) == set()


def test_a_follower_that_owes_an_answer_for_too_long_is_left_once():
    known = Followers(HALF_S, contextlib.nullcontext())
    known.asked(2, ["a", "b"], 100.0)
    known.asked(3, ["c"], 101.0)
    assert known.hang(100.0 + PATIENCE_S - 0.1) == set()
    assert known.hang(100.0 + PATIENCE_S) == {"a", "b"}
    assert known.leaves(["a"], 110.0)
    assert not known.leaves(["c"], 110.0)
    assert known.due_s(100.0 + PATIENCE_S) == 1
    assert known.hang(101.0 + PATIENCE_S) == {"c"}
    assert known.due_s(200.0) == PATIENCE_S


def test_what_it_answers_later_is_told_apart():
    known = Followers(HALF_S, contextlib.nullcontext())
    known.asked(2, ["a"], 100.0)
    assert not is_late(known, 2, "a")
    known.hang(200.0)
    assert is_late(known, 2, "a")
    assert not is_late(known, 2, "b")
    assert not is_late(known, 3, "a")
    known.answered(2)
    assert not is_late(known, 2, "a")


def test_a_follower_whose_fetch_failed_is_left():
    known = Followers(HALF_S, contextlib.nullcontext())
    known.asked(2, ["a"], 100.0)
    assert known.failed(2, 100.0) == {"a"}
    assert known.leaves(["a"], 101.0)
    assert known.failed(3, 100.0) == set()
    known.asked(4, [], 100.0)  # a leader
    assert known.failed(4, 100.0) == set()
