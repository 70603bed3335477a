"""What the tests of atomic batches are worth: each of these mutants fails the test that is named beside it, or a storm."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import test_unit_crashes
from unit_mutants import MUTANTS, SEEDS, Mutant
from unit_storm import weather
from unit_storm_groups import group_weather
from unit_storm_recreated import RecreatingStorm

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
import test_units
import test_units_groups
import test_units_together


def _run(name: str) -> None:
    places = (test_units, test_units_groups, test_units_together, test_unit_crashes)
    tests = next(each for each in places if hasattr(each, name))
    test = getattr(tests, name)
    for case in _cases(test):
        test(**case)


def _cases(test: Any) -> list[dict[str, Any]]:
    """What `pytest.mark.parametrize` says."""
    cases: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        names = [mark.args[0]] if isinstance(mark.args[0], str) else mark.args[0]
        rows = mark.args[1] if len(names) > 1 else [(value,) for value in mark.args[1]]
        cases = [{**case, **dict(zip(names, row, strict=True))} for case in cases for row in rows]
    return cases


def _judge(mutant: Mutant) -> None:
    if mutant.test:
        _run(mutant.test)
    else:
        for seed in range(mutant.first, mutant.first + SEEDS):
            if mutant.groups:
                group_weather(seed)
            elif mutant.recreated:
                weather(seed, kind=RecreatingStorm, heals=bool(seed // 4 % 2))
            else:
                assert not weather(seed).alarms


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name, monkeypatch):
    mutant = MUTANTS[name]
    mutant.change(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017  # an assertion, or whatever the mutant breaks before it
        _judge(mutant)


@pytest.mark.parametrize("seed", sorted({mutant.first for mutant in MUTANTS.values() if mutant.recreated}))
def test_without_a_mutant_the_storm_is_weathered(seed):
    weather(seed, kind=RecreatingStorm, heals=bool(seed // 4 % 2))


@pytest.mark.parametrize("seed", sorted({mutant.first for mutant in MUTANTS.values() if mutant.groups}))
def test_without_a_mutant_the_storm_of_a_group_is_weathered(seed):
    group_weather(seed)


@pytest.mark.parametrize("name", sorted({mutant.test for mutant in MUTANTS.values() if mutant.test}))
def test_without_a_mutant_it_passes(name):
    _run(name)


def test_the_list_of_mutants_is_whole():
    """Whoever takes one out has to take its name out of the list, for all to see."""
    lines = (Path(__file__).parents[1] / "mutants.txt").read_text(encoding="utf-8").splitlines()
    assert [line.removeprefix("unit: ") for line in lines if line.startswith("unit: ")] == list(MUTANTS)
