"""For all tests: what a busy machine may take, when logs are complete, and which tests are quick enough for `make test`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Modules beside these tests (tiers.py, outside.py, waiting.py); pytest's importlib mode adds no path.
sys.path.insert(0, str(Path(__file__).parent))

import outside
import tiers

# A machine that is busy is no failure: how long an example takes says nothing about whether it is right.
settings.register_profile("kafkasafe", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kafkasafe")

HERE = Path(__file__).parent

outside.note_servers()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """The fast tier first, in it what shares a Spark, then what shares a broker, then what shares nothing.

    Markers are set before any are looked at, and the order is made when pytest-randomly has made its own.
    """
    order = {}
    for item in items:
        module = item.path.relative_to(HERE).as_posix()
        for fixture in getattr(item, "fixturenames", ()):
            if mark := tiers.OF_FIXTURES.get(fixture):
                item.add_marker(mark)
        marks = {mark.name for mark in item.iter_markers()}
        function = getattr(item, "originalname", item.name)
        variant = getattr(getattr(item, "callspec", None), "id", "")
        fast = tiers.is_fast(module, function, marks, variant)
        if not fast:
            item.add_marker(pytest.mark.full)
        if tiers.is_quick(module, function, marks):
            item.add_marker(pytest.mark.quick)
        group = tiers.group(module)
        order[item] = not fast, group != "spark", not group
    yield
    items.sort(key=order.__getitem__)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected and imported lives as long as the session: no garbage collection looks for garbage in it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """A fast test that is not `real` neither sleeps nor leaves this process. A quick test connects to nothing at all."""
    marks = {mark.name for mark in item.iter_markers()}
    if tiers.is_real(marks):
        return (yield)
    with outside.nothing_outside(connections="quick" not in marks):
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What stands together in the order above and is of one group goes to one worker."""
    # `--dist loadgroup` does nothing with pytest 9.2 (pytest-xdist 3.8 sets an attribute that is gone).
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def schedule(self) -> None:
            self._scopes: dict[str, str] = {}
            before, number = "", 0
            collection = next(iter(self.registered_collections.values()), [])
            for nodeid in collection:
                group = tiers.group(nodeid.partition("::")[0].removeprefix(f"{HERE.name}/"))
                number += group != before
                before = group
                self._scopes[nodeid] = f"{number} {group}" if group else nodeid
            super().schedule()

        def _split_scope(self, nodeid: str) -> str:
            return self._scopes.get(nodeid, nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How long the tests of each tier took, added up."""
    tiers_of = {False: "fast", True: "full"}
    spent = {name: [0, 0.0] for name in tiers_of.values()}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                entry = spent[tiers_of["full" in report.keywords]]
                entry[0] += report.when == "call"
                entry[1] += report.duration
    for name, (count, seconds) in spent.items():
        if count:
            terminalreporter.write_line(f"{name} tier: {count} tests, {seconds:.0f} s")


EITHER = {"some_kafka", "some_cluster", "some_broker", "some_wire"}
"""Fixtures of a Kafka in memory. With the marker `also_real` a test is run on a real one as well, with `kafka` only there."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name in EITHER & {*metafunc.fixturenames}:
        marked = metafunc.definition.get_closest_marker
        places = [] if marked("kafka") else [pytest.param("fake")]
        if not places or marked("also_real"):
            places.append(pytest.param("real", marks=pytest.mark.kafka))
        metafunc.parametrize(name, places, indirect=True)


@pytest.fixture
def some_kafka(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One broker, in memory; the session's real one in the other run of a test that is `also_real`."""
    if request.param == "real":
        yield request.getfixturevalue("kafka")
        return
    from kafkasafe.testing import FakeCluster

    with FakeCluster() as cluster:
        yield cluster


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
