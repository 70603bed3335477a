"""One refusal: how long it has lasted without another answer in between."""

from __future__ import annotations

from kafkasafe.codes.verdicts import Scope
from kafkasafe.journal.notices import Denial
from kafkasafe.journal.refusal import SILENCE_S, RefusalTimer


def refuse(timer: RefusalTimer, now: float, code: int = 29, handle: int = -1) -> Denial:
    return timer.refused(code, "not authorized", Scope.DESTINATION, now, handle=handle, asking=False)


def test_a_refusal_counts_from_its_first_answer() -> None:
    timer = RefusalTimer()
    for now in (10.0, 20.0, 200.0):
        denial = refuse(timer, now)
    assert (denial.since, denial.counted_from, denial.answers) == (10.0, 10.0, 3)


def test_the_newest_answer_says_why() -> None:
    timer = RefusalTimer()
    refuse(timer, 1.0, code=3)
    assert refuse(timer, 2.0, code=29).code == 29


def test_a_long_silence_may_hide_another_answer() -> None:
    timer = RefusalTimer()
    refuse(timer, 0.0)
    assert refuse(timer, SILENCE_S).counted_from == 0.0
    late = 2 * SILENCE_S + 0.1
    assert refuse(timer, late).counted_from == late


def test_a_request_without_an_answer_ends_a_refusal_that_was_not_reported() -> None:
    timer = RefusalTimer()
    refuse(timer, 0.0)
    timer.no_answer()
    assert timer.denial is None


def test_a_reported_refusal_goes_on_and_counts_anew() -> None:
    """A broker that has just started knows no topics or permissions. Its end is reported, too."""
    timer = RefusalTimer()
    refuse(timer, 0.0).tell()
    timer.no_answer()
    denial = refuse(timer, 50.0)
    assert (denial.since, denial.counted_from, denial.reported) == (0.0, 50.0, True)


def test_only_a_reported_refusal_has_an_end_to_report() -> None:
    timer = RefusalTimer()
    refuse(timer, 0.0)
    assert timer.clear() is None
    denial = refuse(timer, 0.0)
    denial.tell()
    assert timer.clear() is denial
    assert timer.clear() is None


def test_another_batch_and_the_whole_destination_are_refused_separately() -> None:
    timer = RefusalTimer()
    assert not timer.is_about_other(5)
    refuse(timer, 0.0, handle=5)
    assert [timer.is_about_other(handle) for handle in (5, 6, -1)] == [False, True, True]
