"""What the tests of atomic batches are worth: each of these mutants fails the test that is named beside it, or a storm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import test_unit_crashes
import test_unit_groups
from mutation import FOUND, Mutant, listed, run
from unit_mutants import MUTANTS, SEEDS
from unit_storm import run_storm
from unit_storm_groups import run_group_storm
from unit_storm_recreated import RecreatingStorm

sys.path.insert(0, str(Path(__file__).parents[1] / "units"))
import test_units
import test_units_groups
import test_units_together

_TESTS = (test_units, test_units_groups, test_units_together, test_unit_crashes, test_unit_groups)


def _judge(mutant: Mutant, request: pytest.FixtureRequest) -> None:
    if mutant.test:
        run(mutant.test, _TESTS, mutant.of, request)
    else:
        for seed in range(mutant.first, mutant.first + SEEDS):
            if mutant.groups:
                run_group_storm(seed)
            elif mutant.recreated:
                run_storm(seed, kind=RecreatingStorm, heals=bool(seed // 4 % 2))
            else:
                assert not run_storm(seed).alarms


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name, monkeypatch, request):
    mutant = MUTANTS[name]
    mutant.change(monkeypatch)
    with pytest.raises(FOUND):
        _judge(mutant, request)


@pytest.mark.parametrize("seed", sorted({mutant.first for mutant in MUTANTS.values() if mutant.recreated}))
def test_without_a_mutant_the_storm_is_weathered(seed):
    run_storm(seed, kind=RecreatingStorm, heals=bool(seed // 4 % 2))


@pytest.mark.parametrize("seed", sorted({mutant.first for mutant in MUTANTS.values() if mutant.groups}))
def test_without_a_mutant_the_storm_of_a_group_is_weathered(seed):
    run_group_storm(seed)


@pytest.mark.parametrize("name", sorted({mutant.test for mutant in MUTANTS.values() if mutant.test}))
def test_without_a_mutant_it_passes(name, request):
    run(name, _TESTS, {}, request)


def test_the_list_of_mutants_is_whole():
    assert listed("unit") == list(MUTANTS)
