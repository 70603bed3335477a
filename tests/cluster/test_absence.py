"""What proves that a partition does not exist."""

from __future__ import annotations

import pytest

from kafkasafe.cluster import absence
from kafkasafe.cluster.absence import Absence

ID, OTHER = b"1" * 16, b"2" * 16


def settled(partition: int = 2, at: float = 0.0) -> Absence:
    return Absence(partition, at, 60.0)


def test_nobody_is_asked_before_each_broker_can_know():
    case = settled()
    assert case.due([1, 2, 3], 1.9) == []
    assert case.due([1, 2, 3], 2.0) == [1, 2]


def test_two_brokers_prove_it_and_no_third_is_asked():
    case = settled()
    case.due([1, 2, 3], 2.0)
    case.answered(1, ID, 2, 2.1)
    assert case.proven([1, 2, 3], 2.1) == ""
    assert case.due([1, 2, 3], 2.2) == [], "the other one was asked"
    case.answered(2, ID, 2, 2.2)
    assert case.proven([1, 2, 3], 2.2) == "it has 2 partitions, according to brokers 1 and 2"


def test_the_only_broker_proves_it():
    case = settled()
    assert case.due([4], 2.0) == [4]
    case.answered(4, ID, 1, 2.1)
    assert case.proven([4], 2.1) == "it has 1 partition, according to broker 4, the only broker"


def test_one_that_does_not_answer_is_asked_after_the_others():
    case = settled()
    assert case.due([1, 2, 3], 2.0) == [1, 2]
    case.answered(2, ID, 2, 2.1)
    assert case.due([1, 2, 3], 2.5) == []
    assert case.due([1, 2, 3], 3.0) == [3]
    assert case.due([1, 2, 3], 4.0) == [1]
    assert case.due([1, 2, 3], 5.0) == [3]


def test_one_of_several_proves_it_after_a_minute():
    case = settled(at=100.0)
    case.due([1, 2], 102.0)
    case.answered(1, ID, 2, 102.1)
    assert case.proven([1, 2], 159.9) == ""
    assert case.proven([1, 2], 160.0).endswith("according to broker 1; no other broker answered within 60 s")


def test_a_broker_that_knows_the_partition_begins_it_again():
    """The first answer may have come from one that had not heard of it."""
    case = settled()
    case.due([1, 2], 2.0)
    case.answered(1, ID, 2, 2.1)
    case.answered(2, ID, 3, 2.2)
    assert case.proven([1, 2], 500.0) == ""
    assert case.due([1, 2], 4.0) == []
    assert case.due([1, 2], 4.2) == [1, 2]


def test_another_topic_of_the_name_begins_it_again():
    case = settled()
    case.due([1, 2], 2.0)
    case.answered(1, ID, 2, 2.1)
    case.answered(2, OTHER, 2, 2.2)
    assert case.proven([1, 2], 2.2) == ""


def test_without_a_broker_nothing_is_proven():
    case = settled()
    assert case.due([], 100.0) == []
    assert case.proven([], 100.0) == ""


@pytest.mark.parametrize(
    ("rule", "value", "test"),
    [
        ("_WITNESSES", 1, test_two_brokers_prove_it_and_no_third_is_asked),
        ("_SETTLED_S", 0.0, test_nobody_is_asked_before_each_broker_can_know),
        ("_SETTLED_S", 0.0, test_a_broker_that_knows_the_partition_begins_it_again),
    ],
)
def test_the_checks_see_a_rule_that_is_taken_out(monkeypatch, rule, value, test):
    monkeypatch.setattr(absence, rule, value)
    with pytest.raises((AssertionError, IndexError)):
        test()
