"""What the tests of batches that wait are worth: each of these mutants fails the test that is named beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import test_gathering
import test_new_leaders
import test_on_error
import test_rereading
import test_returning_topics
from mutation import FOUND, listed, run
from wait_mutants import MUTANTS

sys.path.insert(0, str(Path(__file__).parents[1] / "journal"))
import test_journal_gathers
import test_origins

_TESTS = (
    test_journal_gathers,
    test_origins,
    test_gathering,
    test_new_leaders,
    test_on_error,
    test_rereading,
    test_returning_topics,
)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name, monkeypatch, request):
    mutant = MUTANTS[name]
    mutant.change(monkeypatch)
    with pytest.raises(FOUND):
        run(mutant.test, _TESTS, mutant.of, request)


def test_without_a_mutant_they_pass(request):
    for mutant in {(each.test, *each.of.values()): each for each in MUTANTS.values()}.values():
        run(mutant.test, _TESTS, mutant.of, request)


def test_the_list_of_mutants_is_whole():
    assert listed("waits") == list(MUTANTS)
