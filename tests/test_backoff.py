"""Every pause before another try comes from one wait, and no module reckons one by itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

import kafkasafe
from kafkasafe.cluster.backoff import PAUSES, Backoff

PACKAGE = Path(kafkasafe.__file__).parent
HOME = "cluster/backoff.py"
SLEEPS = {"sleep", "Pause", "call_later", "_timer"}
NO_PAUSE = {("kafkapython/network.py", "random.random")}
"""The numbers that a client takes for the jitter of its Backoff, and to choose among equals."""


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("testing/"):
            yield name, ast.parse(path.read_text())


def called(node):
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def grows(node):
    """Whether an expression becomes larger with each failure."""
    return any(
        isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult | ast.Pow) for each in ast.walk(node)
    )


def test_no_other_module_reckons_a_pause():
    found = set()
    for name, tree in modules():
        if name == HOME:
            continue
        for node in ast.walk(tree):
            call = called(node)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
                if not isinstance(node.right, ast.Constant):
                    found.add((name, ast.unparse(node)))
            elif call in {"random.random", "random.uniform"} or call.startswith("tenacity.wait_"):
                found.add((name, call))
            elif call.rsplit(".", 1)[-1] in SLEEPS and any(map(grows, node.args)):
                found.add((name, ast.unparse(node)))
    assert found == NO_PAUSE


@given(
    first_s=st.floats(0.001, 5),
    max_s=st.floats(0.001, 50),
    least_s=st.floats(0, 1),
    jitter=st.floats(0, 1),
    random_fraction=st.floats(0, 1, exclude_max=True),
    failures=st.integers(1, 10_000),
)
def test_a_pause_is_between_the_least_and_the_bound(
    first_s, max_s, least_s, jitter, random_fraction, failures
):
    pause_s = Backoff(
        first_s, max_s, least_s=least_s, jitter=jitter, random_fraction=lambda: random_fraction
    ).pause_s(failures)
    bound_s = min(first_s * 2.0 ** min(failures - 1, 60), max_s)
    assert least_s * 0.999 <= pause_s <= max(least_s, bound_s) * 1.001
    assert pause_s >= bound_s * (1 - jitter) * 0.999


@pytest.mark.parametrize(("random_fraction", "share"), [(0.0, 0.8), (0.5, 1.0), (0.999999, 1.2)])
def test_reconnects_are_off_by_a_fifth_at_most(mocker, random_fraction, share):
    backoff = Backoff.around(0.05, 1.0)
    mocker.patch.object(backoff, "_random_fraction", return_value=random_fraction)
    expected = [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert [backoff.pause_s(n) for n in range(1, 8)] == pytest.approx([s * share for s in expected], rel=1e-4)


def test_tenacity_takes_it_as_it_is():
    slept = []

    def fails():
        raise OSError

    retrying = tenacity.Retrying(
        wait=Backoff(1, 3, jitter=0), stop=tenacity.stop_after_attempt(4), sleep=slept.append, reraise=True
    )
    with pytest.raises(OSError):
        retrying(fails)
    assert slept == [1, 2, 3]


def test_look_ups_ask_ten_times_a_second_at_most_and_notice_within_a_second():
    pauses = [PAUSES.pause_s(n) for n in range(1, 200)]
    assert pauses[0] == pytest.approx(0.1)
    assert min(pauses) >= 0.1
    assert max(pauses) <= 0.4
    assert max(pauses) - min(pauses) > 0.1, "without jitter all clients ask at the same moment"
