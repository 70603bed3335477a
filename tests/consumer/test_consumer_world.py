"""Seeded histories of a consumer in virtual time, and mutants that they must find: see consumer_world.py."""

from __future__ import annotations

import dataclasses
import os
import sys

import consumer_world
import pytest
from mutation import listed, source
from programs import python
from tiers import in_tiers

from kafkasafe._consuming import position_table
from kafkasafe._consuming.history import History
from kafkasafe._consuming.partition import AssignedPartition, PlaceLeft
from kafkasafe._consuming.position_table import Action, Activity, PositionEvent
from kafkasafe._consuming.rereading import Rereading
from kafkasafe._consuming.responses import Responses
from kafkasafe._consuming.results import Results


@pytest.mark.parametrize("chunk", in_tiers(6, fast=3))
def test_no_promise_is_broken(chunk):
    play(range(10 * chunk, 10 * chunk + 10))


def test_a_seed_is_always_the_same_history():
    assert consumer_world.play(14).digest == consumer_world.play(14).digest


def test_a_seed_is_the_same_history_in_every_process():
    """Sets have another order in each process, and other threads draw from the module `random`."""
    program = "import consumer_world; print(*[consumer_world.play(seed).digest for seed in (11, 66)])"
    digests = {
        python(
            "-c",
            program,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(digests) == 1


def play(seeds):
    for seed in seeds:
        consumer_world.play(seed)


def row(activity, event, *actions, to=None):
    """A change of one row of `ACTIVITY`: other actions, or another activity."""

    def change(patch):
        rows = position_table.ACTIVITY[activity]
        former, _ = rows[event]
        patch.setitem(rows, event, (to or former, actions))

    return change


@dataclasses.dataclass(frozen=True)
class Mutant:
    change: object
    first: int


MUTANTS = {
    "a due check does not hold the partition": Mutant(
        row(Activity.IDLE, PositionEvent.CHECK_DUE, Action.WALK), 0
    ),
    "a divergence is taken for agreement": Mutant(
        row(Activity.WALKING, PositionEvent.DIFFERED, Action.RELEASE, to=Activity.IDLE), 0
    ),
    "a decision does not cut the history": Mutant(
        row(Activity.DIVERGED, PositionEvent.SOUGHT, Action.UNCHECK, Action.ADOPT), 1400
    ),
    "a position is never due": Mutant(source(AssignedPartition, "is_due", "return True", "return False"), 0),
    "a sought position is fetched at once": Mutant(source(Results, "carry_on", "if moved:", "if False:"), 0),
    "a reset is silent": Mutant(source(Results, "_apply_reset", "if reason is None:", "if True:"), 0),
    "records that were read are not noted": Mutant(
        source(
            Responses,
            "accept",
            "contradicts = not part.history.observe(data.records, int(completed.fetched_offset), marked=marked)",
            "contradicts = False",
        ),
        0,
    ),
    "a partition that comes back lower is not reported": Mutant(
        source(Rereading, "resumed", "if left is not None and", "if False and"), 0
    ),
    "a partition that comes back is always reported": Mutant(
        source(Rereading, "resumed", "offset < left.offset", "offset <= left.offset"), 0
    ),
    "a reset to the end of a truncated log hides the loss": Mutant(
        source(Results, "_apply_reset", "to.offset < read_to", "False"), 3001873
    ),
    "a leader without an epoch is never doubted": Mutant(
        source(AssignedPartition, "is_due", "self.doubted or ", ""), 3002695
    ),
    "a position before a rebalance is taken for one in a deleted topic": Mutant(
        source(PlaceLeft, "is_in", "topic_id == self.topic_id", "False"), 920127
    ),
    "history reaches nothing": Mutant(source(History, "reaches_below", "return ", "return False and "), 0),
}
SEEDS = 20


def test_the_list_is_complete():
    assert list(MUTANTS) == listed("consumer")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name, monkeypatch):
    mutant = MUTANTS[name]
    mutant.change(monkeypatch)
    with pytest.raises((consumer_world.Violation, position_table.IllegalEventError)):
        play(range(mutant.first, mutant.first + SEEDS))
