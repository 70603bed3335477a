"""The order of the rules of a partition is load-bearing: each pair of neighbours, swapped, and what is different then."""

from __future__ import annotations

import pytest
from tapes import keep

from kafkasafe import journal as j
from kafkasafe.history.identity import BatchId
from kafkasafe.journal import machine
from kafkasafe.journal.destinations import Partition
from kafkasafe.journal.machine import Machine

RULES = [rule.holds for rule in j.Journal()._machine._quiet_rules()]
DIFFERENT = {
    machine.is_suspected: 179,
    machine.has_late_requests: 257,
    machine.has_unchecked_refusal: 26,
    machine.has_refused_head: 34,
    machine.has_old_ids: 62,
    machine.needs_pause: 2,
}
"""A seeded history that is decided otherwise if the rule and the next one are swapped."""
EQUAL = {machine.has_gap}
"""Nothing depends on their order relative to the next rule."""
IN_DOUBT = {machine.was_asked_early, machine.was_judged}
"""No seed of the tapes needs their order. The two scenarios at the end do."""


def swap(first: object, patch: pytest.MonkeyPatch) -> None:
    ordered = Machine._quiet_rules

    def swapped(self: Machine) -> list[machine._Rule]:
        rules = list(ordered(self))
        at = RULES.index(first)
        rules[at], rules[at + 1] = rules[at + 1], rules[at]
        return rules

    patch.setattr(Machine, "_quiet_rules", swapped)


def test_each_rule_but_the_last_is_tried() -> None:
    assert set(RULES[:-1]) == DIFFERENT.keys() | EQUAL | IN_DOUBT


@pytest.mark.parametrize("rule", DIFFERENT, ids=lambda rule: rule.__name__)
def test_a_history_is_decided_otherwise_with_two_rules_swapped(rule, monkeypatch) -> None:
    swap(rule, monkeypatch)
    assert keep.digest(keep.tape_of(DIFFERENT[rule])) != keep.digests()[DIFFERENT[rule]]


@pytest.mark.parametrize("rule", EQUAL, ids=lambda rule: rule.__name__)
def test_histories_are_decided_as_before_with_two_rules_swapped(rule, monkeypatch) -> None:
    swap(rule, monkeypatch)
    known = keep.digests()
    assert [seed for seed in range(200) if keep.digest(keep.tape_of(seed)) != known[seed]] == []


# -- what the leader said of batches in doubt -------------------------------------------------------------------------


def quiet_partition(*batches: j.Batch) -> tuple[j.Journal, Partition]:
    """A partition that was judged before: the leader had refused the sequence of a batch."""
    journal = j.Journal()
    journal.granted(7, 0)
    number = journal.destination("orders", 0)
    partition = journal._state.destinations.partitions[number]
    for event in (j.FlowEvent.RECOVERED, j.FlowEvent.SUSPECTED):
        partition.progress.on(event)
    assert partition.progress.flow is j.Flow.DECIDING
    for batch in batches:
        partition.queue.append(batch)
    partition.doubt.refuse_sequence()
    journal._state.out.touched[number] = None
    return journal, partition


def batch_in(state: j.BatchState) -> j.Batch:
    return j.Batch(1, 1, 2, 100, 0, identity=BatchId(7, 0, 0, 2), state=state)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_batch_that_was_asked_about_too_early_is_judged_with_all_that_is_known(
    swapped, monkeypatch
) -> None:
    """An old broker cannot report its state. That it refused the sequence is the only sign of a gap before the batch."""
    if swapped:
        swap(machine.was_asked_early, monkeypatch)
    batch = batch_in(j.BatchState.PREPARED)
    batch.may_arrive(possible=True)
    journal, partition = quiet_partition(batch)
    partition.ids.expire()
    [ask] = journal.ready(0.0, 0).asks
    assert ask.doubt == (batch.identity,)
    assert partition.doubt.sequence_refused is not swapped


@pytest.mark.parametrize("swapped", [False, True])
def test_a_refusal_is_checked_without_what_was_said_of_other_batches(swapped, monkeypatch) -> None:
    if swapped:
        swap(machine.was_judged, monkeypatch)
    batch = batch_in(j.BatchState.REFUSED)
    batch.check_absence(wanted=True)
    journal, partition = quiet_partition(batch)
    [ask] = journal.ready(0.0, 0).asks
    assert ask.confirm
    assert partition.doubt.sequence_refused is swapped
