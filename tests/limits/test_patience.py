"""How long close() waits."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from kafkasafe.limits.patience import Patience, seconds_of, timeout_of

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


@pytest.mark.parametrize(
    "given", [0, -1, 5, 2.5, True, math.inf, -math.inf, np.int64(3), np.float32(1.5), Fraction(1, 2)]
)
def test_a_time_out_that_is_a_number_is_one_to_reckon_with(given):
    found = timeout_of(given)
    assert found == given
    assert isinstance(found, (int, float))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (math.nan, ValueError),
        (np.float32("nan"), ValueError),
        (10**400, ValueError),
        ("5", TypeError),
        (b"5", TypeError),
        (np.str_("5"), TypeError),
        (np.array([1, 2]), TypeError),
        ([5], TypeError),
        (1j, TypeError),
    ],
    ids=str,
)
def test_a_time_out_that_is_none_is_refused_by_name(given, error):
    with pytest.raises(error, match="timeout must be a number of seconds, or None, not "):
        timeout_of(given)


@pytest.mark.parametrize(
    "given", [0, -1, 5, 2.5, True, math.inf, np.int64(3), np.float32(1.5), Fraction(1, 2)]
)
def test_milliseconds_may_be_a_number_of_another_package(given):
    """KafkaConsumer's `end_offsets` takes them."""
    found = seconds_of(given)
    assert found == float(given) / 1000
    assert type(found) is float
