"""For all tests."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, settings

# A machine that is busy is no failure: how long an example takes says nothing about whether it is right.
settings.register_profile("kafkasafe", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kafkasafe")


class _Complete:
    """pytest's `caplog`, in which is what was logged until now.

    Threads that deliver records hand what they log to another thread, which may be late on a busy machine.
    """

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __getattr__(self, name: str) -> object:
        _drain()
        return getattr(self._caplog, name)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> _Complete:
    return _Complete(caplog)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """What a test had logged is not in the next one's `caplog`."""
    _drain()


def _drain() -> None:
    if logs := sys.modules.get("kafkasafe.logs"):
        logs.drain(30)
