"""How long close() waits."""

from __future__ import annotations

import pytest

from kafkasafe._core.patience import Patience

NONE = -1e9


@pytest.mark.parametrize(
    ("began", "progress", "pause_until", "ends"),
    [
        (100.0, 20.0, NONE, 105.0),  # idle for long before: it counts from the call
        (100.0, 103.0, NONE, 108.0),
        (100.0, 20.0, 130.0, 135.0),  # nothing may be sent before 130
        (100.0, 120.0, 110.0, 125.0),  # that pause is over
        (100.0, 20.0, 900.0, 165.0),  # nobody waits for a pause that long
    ],
)
def test_when_it_ends(began, progress, pause_until, ends):
    assert Patience(5.0, 60.0).ends_at(began, progress, pause_until) == ends


def test_pauses_may_be_left_out():
    assert Patience(5.0, 0.0).ends_at(100.0, 20.0, 130.0) == 105.0
