"""Parcels that are divided: the callers of the whole wait for all parts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe.delivery.engine.parcels import Parcel


def parcel() -> Parcel:
    return Parcel("t", 0, None, 0, 1, 0)


@given(st.permutations(range(6)))
def test_a_divided_parcel_has_done_children_once_the_last_one_is_done(order):
    whole, parts = parcel(), [parcel() for _ in order]
    whole.adopt([(part, np.arange(1)) for part in parts])
    for number, index in enumerate(order, start=1):
        parts[index].end()
        assert whole.has_done_children() is (number == len(parts))
    assert whole.has_done_children(), "asked again"


def test_a_parcel_that_is_divided_again_waits_for_its_new_children():
    whole, part, again = parcel(), parcel(), parcel()
    whole.adopt([(part, np.arange(1))])
    part.end()
    assert whole.has_done_children()
    whole.adopt([(again, np.arange(1))])
    assert not whole.has_done_children()
    again.end()
    assert whole.has_done_children()
