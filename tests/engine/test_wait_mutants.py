"""What the tests of batches that wait are worth: each of these mutants fails the test that is named beside it."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
import test_gathering
import test_new_leaders
import test_rereading
from wait_mutants import MUTANTS, Mutant

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
import test_journal_gathers

_TESTS = test_journal_gathers, test_gathering, test_new_leaders, test_rereading


def _run(mutant: Mutant, patch: pytest.MonkeyPatch) -> None:
    test = next(getattr(each, mutant.test) for each in _TESTS if hasattr(each, mutant.test))
    more = {"monkeypatch": patch} if "monkeypatch" in inspect.signature(test).parameters else {}
    test(**mutant.of, **more)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name, monkeypatch):
    mutant = MUTANTS[name]
    mutant.change(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017  # an assertion, or whatever the mutant breaks before it
        _run(mutant, monkeypatch)


def test_without_a_mutant_they_pass(monkeypatch):
    for mutant in {(each.test, *each.of.values()): each for each in MUTANTS.values()}.values():
        _run(mutant, monkeypatch)


def test_the_list_of_mutants_is_whole():
    """Whoever takes one out has to take its name out of the list, for all to see."""
    lines = (Path(__file__).parents[1] / "mutants.txt").read_text(encoding="utf-8").splitlines()
    assert [line.removeprefix("waits: ") for line in lines if line.startswith("waits: ")] == list(MUTANTS)
