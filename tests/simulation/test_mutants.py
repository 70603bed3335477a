"""What the histories are worth: each of these mutants breaks a promise in one of the first histories of its kind."""

from __future__ import annotations

import pytest
import test_non_obvious
from mutation import listed

from .mutants import ENGINE, EXACT, HISTORIES, SEEDS
from .plan import plan_of
from .shrink import found


@pytest.mark.parametrize("name", HISTORIES)
def test_a_mutant_is_found(name, monkeypatch):
    mutant = HISTORIES[name]
    mutant.change(monkeypatch)
    for seed in range(mutant.first, mutant.first + SEEDS):
        if found(plan_of(seed, mutant.kind)) is not None:
            return
    pytest.fail(f"{SEEDS} histories of the kind {mutant.kind!r}, and nothing was noticed")


@pytest.mark.parametrize("name", EXACT)
def test_a_mutant_is_found_by_an_exact_test(name, monkeypatch):
    change, test = EXACT[name]
    change(monkeypatch)
    with pytest.raises(AssertionError):
        getattr(test_non_obvious, test)()


def test_the_list_of_mutants_is_whole():
    assert listed("engine") == [*ENGINE, *EXACT]
