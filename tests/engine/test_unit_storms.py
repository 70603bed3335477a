"""Storms of units: see unit_storm.py. `make simulate KIND=units SEEDS=10000` plays more of them."""

from __future__ import annotations

import pytest
from unit_storm import weather


@pytest.mark.parametrize("seed", range(20))
def test_units_are_committed_once_whole_and_in_order(seed):
    weather(seed)
