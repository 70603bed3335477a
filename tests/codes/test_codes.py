"""What each answer to a Produce request means."""

from __future__ import annotations

import kafka.errors as kafka_errors
import pytest

from kafkasafe.codes import numbers, sets
from kafkasafe.codes.rows import TABLE
from kafkasafe.codes.verdicts import _PRODUCE, AnswerAction, Scope, classify_produce, latest_timestamp

# Answers that a broker gives before it touches its log. Everything else may come after the append.
BEFORE_APPEND = {2, 3, 10, 17, 18, 19, 21, 29, 31, 32, 35, 42, 43, 44, 76, 87, 89, 100}


@pytest.mark.parametrize("code", [*range(-2, 140), 9999])
def test_only_an_answer_from_before_the_append_proves_absence(code: int) -> None:
    verdict = classify_produce(code)
    assert verdict.code == code
    assert verdict.absent == (code in BEFORE_APPEND)
    assert verdict.explanation
    assert verdict.name


@pytest.mark.parametrize("code", [45, 46, 47, 59, 90])
def test_the_broker_is_asked_about_its_doubts_in_our_sequence(code: int) -> None:
    assert classify_produce(code).action is AnswerAction.ASK_BROKER


@pytest.mark.parametrize("code", [10, 18, 21, 32, 42, 43, 44, 76, 87])
def test_what_no_retry_can_mend_is_rejected(code: int) -> None:
    verdict = classify_produce(code)
    assert verdict.action is AnswerAction.REJECT_BATCH
    assert verdict.absent


@pytest.mark.parametrize(
    ("scope", "codes"),
    [(Scope.DESTINATION, {3, 17, 29, 100}), (Scope.BATCH, {-1, 2})],
)
def test_what_somebody_may_mend_is_waited_for(scope: Scope, codes: set[int]) -> None:
    verdicts = [classify_produce(code) for code in range(-1, 140)]
    assert {verdict.code for verdict in verdicts if verdict.scope is scope} == codes
    assert all(classify_produce(code).action is AnswerAction.RETRY for code in codes)


def test_a_broker_names_the_timestamps_it_takes_by_its_own_clock() -> None:
    said = (
        "Timestamp 9000 of message with offset 0 is out of range. The timestamp should be within [-5, 7000]"
    )
    assert latest_timestamp(["", said], 1000) == 7000
    assert latest_timestamp(["no range", "[1, 2]"], 1000) == 1000


@pytest.mark.parametrize("code", [10, 18, 32, 44, 87])
def test_a_batch_with_good_records_in_it_is_divided_first(code: int) -> None:
    assert classify_produce(code).splittable


@pytest.mark.parametrize("code", [3, 5, 6, 13, 56, 72, 74, 75, 100, 12345])
def test_a_leader_that_moved_is_looked_for(code: int) -> None:
    verdict = classify_produce(code)
    assert verdict.action is AnswerAction.RETRY
    assert verdict.refresh_metadata


def test_success_is_the_only_ack() -> None:
    acks = [code for code in range(-2, 200) if classify_produce(code).action is AnswerAction.ACK]
    assert acks == [0]


def test_an_unknown_code_is_retried_and_proves_nothing() -> None:
    verdict = classify_produce(4711)
    assert (verdict.name, verdict.action, verdict.absent, verdict.splittable) == (
        "ERROR_4711",
        AnswerAction.RETRY,
        False,
        False,
    )


def test_names_are_kafkas() -> None:
    for code, verdict in _PRODUCE.items():
        theirs = kafka_errors.for_code(code)
        if theirs is not kafka_errors.UnknownError and code not in {0, -1}:
            assert theirs.errno == code, verdict.name


def test_codes_that_are_handled_alike_are_named_once() -> None:
    assert {3, 100} == sets.MISSING_CODES
    assert {47, 90} == sets.FENCED_CODES
    assert {22, 25, 82} == sets.NOT_A_MEMBER_CODES
    assert {45, 46, 48, 49, 59, 120} == sets.SPOILT_CODES
    assert {3, 17, 29} == sets.TOPIC_CODES
    assert sets.MISSING_CODES < sets.DESTINATION_CODES
    every = [each for name, each in vars(sets).items() if name.endswith("_CODES")]
    assert len(every) == len(set(every))
    assert set().union(*every) <= TABLE.keys()


def test_a_numbers_name_is_kafkas() -> None:
    named = {name: each for name, each in vars(numbers).items() if isinstance(each, int)}
    assert named == {TABLE[code].name: code for code in named.values()}
