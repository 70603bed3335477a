"""What other lanes owe is read beside the engine: what a debt is about is not older than the debt."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

from kafkasafe import marks as m
from kafkasafe.delivery.engine.order import LaneOrder
from kafkasafe.journal.order import Owed

LANE = Path("/spool/lane-001")


def test_a_read_that_began_before_a_lane_was_adopted_says_nothing_about_its_debts():
    """The lane was empty when it was read; a life that came and went meanwhile owes to what was written since."""
    jobs: list = []
    context = Mock(close_state=Mock(closing=False), lanes=[], beside=jobs.append)
    context.clock.monotonic.side_effect = [100.0, 200.0]
    order = LaneOrder(context)

    def adopt(number: int, *debts: m.Debt) -> Mock:
        journal = Mock(views=Mock(afters=[SimpleNamespace(debts=debts, position=0)]))
        journal.views.held_back.return_value = []
        path = LANE.with_name(f"lane-{number:03}")
        context.lanes.append(
            SimpleNamespace(
                journal=journal,
                own=False,
                lock=SimpleNamespace(path=path),
                spool=SimpleNamespace(lane_id=bytes([number])),
                held_back=False,
                name=path.name,
            )
        )
        order.look()
        return journal

    adopt(2, m.Debt(1, b"one", 10))
    order.look_again()
    assert len(jobs) == 1
    empty = Owed()
    empty.lane_id = b"one"
    journal = adopt(3, m.Debt(1, b"one", 500))
    order.read({LANE: empty})
    journal.paid.assert_not_called()
    order.look_again()
    assert len(jobs) == 2
    order.read({LANE: empty})  # read since, and nothing is owed any more
    journal.paid.assert_called_once_with(m.Debt(1, b"one", 500))
