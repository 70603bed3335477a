"""What the storms are worth: each of these mutants of the engine breaks a promise in one of the first storms."""

from __future__ import annotations

import pytest
from test_storms import Storm

from kafkasafe._core.identity import ProducerView
from kafkasafe._core.journal import IllegalMoveError, Journal
from kafkasafe._io.engine import disk, questions
from kafkasafe._io.engine.disk import DiskWriter
from kafkasafe._io.spool import Spool

SEEDS = 12


def no_sync(patch):
    """What is written is taken for durable."""
    patch.setattr(Spool, "sync", lambda _: None)


def durable_before_the_write(patch):
    write = DiskWriter._write_group

    def told_too_early(self, lane, persist):
        self._ledger.made_durable([lane.parcels[batch.handle] for batch in persist.batches])
        write(self, lane, persist)

    patch.setattr(DiskWriter, "_write_group", told_too_early)


def batches_before_decisions(patch):
    """On a failing disk."""
    apart = disk._apart
    patch.setattr(disk, "_apart", lambda *args, **options: list(reversed(apart(*args, **options))))


def ids_not_in_the_spool(patch):
    patch.setattr(disk, "_stamp", lambda *_: None)


def sent_without_ids(patch):
    patch.setattr(disk, "_differs", lambda *_: False)


def segments_go_too_early(patch):
    """What is spooled is deleted as if all of it had been delivered."""
    patch.setattr(Journal, "release_position", property(lambda _: 2**50))


def all_are_known(patch):
    """The leader's answer about producers is taken as if the newest batch was there."""
    patch.setattr(questions, "_view", lambda *_: ProducerView(0, 2**30, 2**50))


MUTANTS = [
    no_sync,
    durable_before_the_write,
    batches_before_decisions,
    ids_not_in_the_spool,
    sent_without_ids,
    segments_go_too_early,
    all_are_known,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in range(SEEDS):
        storm = Storm(seed)
        try:
            storm.blow(40)
            storm.check()
        except (AssertionError, IllegalMoveError):
            return
    pytest.fail(f"{SEEDS} storms, and nothing was noticed")
