"""What the tests of where the spool stands are worth: each of these mutants fails the test that is named beside it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import test_place
from place_mutants import MUTANTS, Mutant


def _run(mutant: Mutant, request: pytest.FixtureRequest) -> None:
    test = getattr(test_place, mutant.test)
    fixtures = [name for name in ("caplog", "monkeypatch") if name in inspect.signature(test).parameters]
    test(**mutant.of, **{name: request.getfixturevalue(name) for name in fixtures})


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name, monkeypatch, request):
    mutant = MUTANTS[name]
    mutant.change(monkeypatch)
    with pytest.raises(BaseException):  # noqa: B017  # an assertion, or whatever the mutant breaks before it
        _run(mutant, request)


def test_the_list_of_mutants_is_whole():
    """Whoever takes one out has to take its name out of the list, for all to see."""
    lines = (Path(__file__).parents[1] / "mutants.txt").read_text(encoding="utf-8").splitlines()
    assert [line.removeprefix("place: ") for line in lines if line.startswith("place: ")] == list(MUTANTS)
