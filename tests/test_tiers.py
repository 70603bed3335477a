"""The lists of `tiers.py` name what there is."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiers

HERE = Path(__file__).parent


@pytest.mark.parametrize("module", tiers.WORTH_IT)
def test_what_is_named_fast_is_there(module):
    source = (HERE / module).read_text()
    assert [name for name in tiers.WORTH_IT[module] if f"def {name}(" not in source] == []


@pytest.mark.parametrize(
    ("module", "function", "marks", "fast"),
    [
        ("core/test_batch.py", "test_x", set(), True),
        ("producer/test_lanes.py", "test_x", {"kafka", "crash"}, False),
        ("consumer/test_drop_in.py", "test_x", {"kafka"}, True),
        ("producer/test_kill.py", "test_nothing_is_lost_by_killing_the_process_a_few_times", {"kafka"}, True),
        ("producer/test_kill.py", "test_x", {"kafka", "crash"}, False),
        ("dashboard/test_dashboard.py", "test_x", set(), False),
        ("core/test_batch.py", "test_x", {"full"}, False),
    ],
)
def test_a_test_is_fast_by_rule(module, function, marks, fast):
    assert tiers.is_fast(module, function, marks) is fast
