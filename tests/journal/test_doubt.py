"""Requests without an answer: until when they may arrive, and from where the log is read."""

from __future__ import annotations

import pytest

from kafkasafe.journal.doubt import Doubt

# -- late requests


def test_no_request_can_arrive_at_first() -> None:
    doubt = Doubt()
    doubt.ask(0.0, 5)
    assert not doubt.is_early


@pytest.mark.parametrize(("asked_at", "is_early"), [(9.9, True), (10.0, False)])
def test_an_answer_is_early_if_it_was_asked_for_before_all_requests_were_dead(
    asked_at: float, is_early: bool
) -> None:
    doubt = Doubt()
    doubt.may_arrive_until(10.0)
    doubt.ask(asked_at, 0)
    assert doubt.is_early is is_early


def test_a_survey_is_early_in_the_same_way() -> None:
    doubt = Doubt()
    doubt.may_arrive_until(10.0)
    doubt.survey(5.0)
    assert doubt.is_early


def test_requests_that_were_alive_live_longer_by_the_time_the_machine_slept() -> None:
    """The sockets slept as well, and send their buffers only now."""
    doubt = Doubt()
    doubt.may_arrive_until(10.0)
    doubt.sleep(3600.0, before=9.0)
    assert doubt.dead_at == 3610.0


def test_requests_that_were_dead_stay_dead() -> None:
    doubt = Doubt()
    doubt.may_arrive_until(10.0)
    doubt.sleep(3600.0, before=10.0)
    assert doubt.dead_at == 10.0


def test_a_later_request_does_not_shorten_the_life_of_an_earlier_one() -> None:
    """The earlier incarnation had a longer `request_timeout_ms`, and its QUIET mark says until when it waits."""
    doubt = Doubt()
    doubt.may_arrive_until(300.0)
    doubt.may_arrive_until(31.0)
    assert doubt.dead_at == 300.0


# -- where the log is read


def test_the_log_is_read_from_the_end_of_what_is_acknowledged() -> None:
    assert Doubt().begin_at(100) == 100


def test_a_log_that_was_cut_is_read_from_there() -> None:
    doubt = Doubt()
    doubt.cut(40)
    assert (doubt.is_cut, doubt.begin_at(100), doubt.begin_at(30)) == (True, 40, 30)


def test_the_lowest_cut_counts() -> None:
    doubt = Doubt()
    for offset in (40, 60, 30, -1):
        doubt.cut(offset)
    assert doubt.begin_at(100) == 30
    doubt.read_again(20)
    doubt.read_again(25)
    assert doubt.begin_at(100) == 20


def test_an_answer_is_partial_if_the_log_was_cut_below_what_was_read() -> None:
    doubt = Doubt()
    doubt.ask(0.0, 100)
    assert not doubt.is_partial
    doubt.cut(100)
    assert not doubt.is_partial
    doubt.cut(40)
    assert doubt.is_partial
    doubt.ask(1.0, 40)
    assert not doubt.is_partial


def test_a_cut_is_forgotten_once_nothing_sent_before_it_is_open() -> None:
    doubt = Doubt()
    doubt.cut(40)
    doubt.forget_cut()
    assert (doubt.is_cut, doubt.begin_at(100)) == (False, 100)


# -- what the leader said


def test_a_verdict_ends_the_fence_but_not_the_refused_sequence() -> None:
    """The next batches in doubt are judged by the refused sequence as well; `end` follows when none is left."""
    doubt = Doubt()
    doubt.fence()
    doubt.refuse_sequence()
    doubt.unfence()
    assert (doubt.fenced, doubt.sequence_refused) == (False, True)
    doubt.end()
    assert (doubt.fenced, doubt.sequence_refused) == (False, False)
