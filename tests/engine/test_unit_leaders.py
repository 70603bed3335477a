"""Units under one leader after the other: what was acknowledged under which of them is no loss to the next life."""

from __future__ import annotations

import pytest
from virtual import World

from kafkasafe import events

DELIVERIES = pytest.mark.parametrize("delivery", ["idempotent", "transactional"])


@DELIVERIES
@pytest.mark.parametrize("retained", [0, 1 << 20], ids=["nothing kept", "all kept"])
@pytest.mark.parametrize("phase", ["staged", "ending", "committed", None])
@pytest.mark.parametrize("plain", [False, True], ids=["units", "plain records between"])
def test_what_was_appended_under_a_later_leader_is_no_loss(delivery, retained, phase, plain):
    world = World(brokers=3)
    world.centre.create_topic("a", 1)
    lost = []

    def note(event):
        if isinstance(event, events.DataLost):
            lost.append(event)

    options = {"delivery": delivery, "retain_acked_bytes": retained, "on_event": note}
    life = world.start(sizes={"spool_segment_bytes": 1000}, **options)
    sent = []

    def delivered(journal):
        return world.run(600, lambda: not journal.views.unfinished)

    def comes_to(journal):
        world.run(5, lambda: phase in {unit.phase.value for unit in journal.units.unfinished})

    for number in range(6):
        for more in range(3):
            sent.append(b"%d.%d" % (number, more))
            if plain:
                life.send("a", 0, [sent[-1]])
            else:
                life.unit(("a", 0, [sent[-1]]))
            assert delivered(life.context.own.journal)
        world.cluster.move_leader("a", 0)
        sent.append(b"%d" % number)
        life.unit(("a", 0, [sent[-1]]))
        if phase is None:
            assert delivered(life.context.own.journal)
        else:
            comes_to(life.context.own.journal)
        world.kill(life, power=number % 2 == 1, seed=number)
        life = world.start(sizes={"spool_segment_bytes": 1000}, **options)
    assert delivered(life.context.own.journal)
    world.run(120)
    assert world.committed("a", 0) == sent
    assert not lost
