"""The journal decides as before: digests of many seeded histories, and some whole tapes."""

from __future__ import annotations

import mutants
import pytest

from kafkasafe.journal import answers

from . import keep
from .histories import FIRST_LATER, KINDS, LATER, play

CHUNKS = 10


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_journal_decides_as_before(chunk):
    """If this was intended: the package's docstring says how to see what changed, and the commit says why."""
    known = keep.digests()
    changed = [
        seed for seed in range(chunk, keep.SEEDS, CHUNKS) if keep.digest(keep.tape_of(seed)) != known[seed]
    ]
    assert changed == []


@pytest.mark.parametrize("name", keep.names())
def test_a_whole_tape_is_decided_as_before(name):
    assert keep.compared(name) == ""


@pytest.mark.parametrize("seed", [*range(len(KINDS)), *range(FIRST_LATER, FIRST_LATER + len(LATER))])
def test_a_history_has_batches_that_end(seed):
    """A history in which nothing happens has a digest as well."""
    history = play(seed, steps=150)
    assert not history.crashed
    assert sum(line.startswith("  resolved") for line in history.lines) > 3


@pytest.mark.parametrize(
    "name",
    ["AsksOnlyOnce", "BlindToAcks", "ForgetsIdentified", "KeepsEpoch", "RejectsFromMemory", "WideWindow"],
)
def test_a_journal_without_a_rule_has_other_tapes(name, monkeypatch):
    mutants.MUTANTS[name](monkeypatch)
    assert any(keep.digest(keep.tape_of(seed)) != known for seed, known in enumerate(keep.digests()[:200]))


def test_a_journal_that_divides_slow_batches_later_has_other_tapes(monkeypatch):
    monkeypatch.setattr(answers, "_TIMEOUTS", 3)
    known = keep.digests()
    seeds = range(FIRST_LATER, FIRST_LATER + 100)
    assert any(keep.digest(keep.tape_of(seed)) != known[seed] for seed in seeds)
