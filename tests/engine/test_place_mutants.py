"""What the tests of where the spool stands are worth: each of these mutants fails the test that is named beside it."""

from __future__ import annotations

import pytest
import test_place
from mutation import listed, run
from place_mutants import MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name, monkeypatch, request):
    mutant = MUTANTS[name]
    mutant.change(monkeypatch)
    with pytest.raises(BaseException):  # noqa: B017  # an assertion, or whatever the mutant breaks before it
        run(mutant.test, (test_place,), mutant.of, request)


def test_the_list_of_mutants_is_whole():
    assert listed("place") == list(MUTANTS)
