"""The flows of a partition: what the table allows, and what it does not."""

from __future__ import annotations

import ast
import inspect
import itertools

import pytest

from kafkasafe import journal as j
from kafkasafe import units as u
from kafkasafe.journal.flow import Progress

PAIRS = list(itertools.product(j.Flow, j.FlowEvent))


WAITS = {j.Flow.NEW, j.Flow.UNDECIDABLE, j.Flow.REJECTING}
"""The flows of a topic whose partitions are not known."""
UNASSIGNED_PAIRS = [pair for pair in PAIRS if pair[0] in WAITS]


def reached(
    begin: j.Flow, without: frozenset[j.FlowEvent], table: dict[j.Flow, dict[j.FlowEvent, j.Flow]] = j.FLOW
) -> set[j.Flow]:
    """The flows that can follow, however many events happen in between."""
    found, todo = {begin}, [begin]
    while todo:
        for event, to in table[todo.pop()].items():
            if event not in without and to not in found:
                found.add(to)
                todo.append(to)
    return found


@pytest.mark.parametrize(
    ("table", "flow", "event"),
    [(j.FLOW, *pair) for pair in PAIRS] + [(j.UNASSIGNED_FLOW, *pair) for pair in UNASSIGNED_PAIRS],
    ids=lambda each: "unassigned" if each is j.UNASSIGNED_FLOW else getattr(each, "name", "partition"),
)
def test_an_event_has_a_row_or_raises(
    table: dict[j.Flow, dict[j.FlowEvent, j.Flow]], flow: j.Flow, event: j.FlowEvent
) -> None:
    progress = Progress(flow, table=table)
    to = table[flow].get(event)
    if to is None:
        with pytest.raises(
            j.IllegalMoveError, match=f"^{event.name} cannot happen to a partition that is {flow.name}: "
        ):
            progress.on(event)
        assert progress.flow is flow
    else:
        progress.on(event)
        assert progress.flow is to


def test_the_table_has_each_flow_and_each_event() -> None:
    assert set(j.FLOW) == set(j.Flow)
    both = [*j.FLOW.values(), *j.UNASSIGNED_FLOW.values()]
    assert {event for follows in both for event in follows} == set(j.FlowEvent)
    assert reached(j.Flow.NEW, frozenset()) == set(j.Flow)


def test_a_topic_without_partitions_waits_rejects_or_asks_the_user() -> None:
    assert set(j.UNASSIGNED_FLOW) == WAITS == reached(j.Flow.NEW, frozenset(), j.UNASSIGNED_FLOW)
    for flow in WAITS:
        assert j.Flow.NEW in reached(flow, frozenset({j.FlowEvent.FORGOTTEN}), j.UNASSIGNED_FLOW)


@pytest.mark.parametrize("flow", j.Flow, ids=lambda flow: flow.name)
def test_no_flow_is_a_dead_end(flow: j.Flow) -> None:
    assert j.Flow.FLOWING in reached(flow, frozenset({j.FlowEvent.FORGOTTEN}))


def test_new_batches_are_sent_only_after_a_decision() -> None:
    """A question, a pause, a survey or a failure is followed by a decision before the partition flows again."""
    before = {
        (flow, event)
        for flow, follows in j.FLOW.items()
        for event, to in follows.items()
        if to is j.Flow.FLOWING and flow is not to
    }
    assert before == {
        (j.Flow.NEW, j.FlowEvent.RECOVERED),
        (j.Flow.ASKING_BASELINE, j.FlowEvent.BASELINE_DURABLE),
        (j.Flow.DECIDING, j.FlowEvent.DECIDED),
    }


def test_only_an_event_changes_the_flow() -> None:
    """tests/test_ownership.py looks for writes from outside."""
    writes = {
        method.name
        for method in ast.walk(ast.parse(inspect.getsource(Progress)))
        if isinstance(method, ast.FunctionDef)
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and node.attr == "flow" and isinstance(node.ctx, ast.Store)
    }
    assert writes == {"on"}


def test_a_pause_is_due_once_after_a_failure() -> None:
    progress = Progress(j.Flow.FLOWING)
    for event in (j.FlowEvent.FAILED, j.FlowEvent.FAILED, j.FlowEvent.CONFIRMS, j.FlowEvent.CONFIRMED):
        progress.on(event)
    assert progress.flow is j.Flow.SETTLING
    for event in (j.FlowEvent.PAUSE_DUE, j.FlowEvent.PAUSE_OVER, j.FlowEvent.CONFIRMS, j.FlowEvent.CONFIRMED):
        progress.on(event)
    assert progress.flow is j.Flow.DECIDING
    assert j.FlowEvent.PAUSE_DUE not in j.FLOW[j.Flow.DECIDING]


@pytest.mark.parametrize(
    ("partition", "flow"),
    [(0, flow) for flow in j.FLOW] + [(j.UNCHOSEN, flow) for flow in j.UNASSIGNED_FLOW],
    ids=lambda each: each.name if isinstance(each, j.Flow) else f"partition {each}",
)
def test_damage_in_a_unit_ends_the_whole_unit_whatever_its_partition_does(
    partition: int, flow: j.Flow
) -> None:
    journal = j.Journal()
    journal.units.name("lane")
    unit = journal.units.seal(b"1" * 16, "", ())
    batches = [
        journal.seal(journal.destination(topic, number), count=1, size_bytes=80, max_timestamp=1, unit=unit)
        for topic, number in (("a", partition), ("b", 0))
    ]
    journal.close_unit(unit)
    journal.persisted(journal.ready(0.0, 0).persist, [0, 1], 2)
    progress = journal._state.destinations.all[batches[0].destination].progress
    progress.flow = flow
    journal.damaged(batches[0], "damaged")
    assert progress.flow is flow
    assert {batch.state for batch in batches} == {j.BatchState.JOINED}
    assert (unit.phase, unit.code, unit.reason) == (u.Phase.REFUSED, j.DAMAGED, "damaged")
    [refuse] = journal.ready(0.0, 0).units
    assert isinstance(refuse, u.Refuse)
    assert [batch.fault.code for batch in batches] == [j.DAMAGED] * 2
    journal.damaged(batches[0], "damaged")  # found once more, before the unit's end is durable
    assert unit.phase is u.Phase.REFUSED
