"""Two writes of one micro-batch at the same time, without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from kafkasafe.errors import UsageError
from kafkasafe.spark import sink as sinks
from kafkasafe.spark.session import Outcome


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes sinks of one txnAppId, whose sessions call `Session.during` when they write."""

    class Session:
        during: Any = None
        restarts = 0
        transaction = None
        written = 0

        def __init__(self, *_: Any) -> None: ...

        def write(self, *_: Any, **__: Any) -> Outcome:
            Session.written += 1
            during, Session.during = Session.during, None
            if during is not None:
                during()
            return Outcome("written", 1, 0, 0.0)

    properties: dict[str, str | None] = {"spark.jobGroup.id": "run", "sql.streaming.queryId": "query"}
    monkeypatch.setattr(sinks, "Session", Session)
    monkeypatch.setattr(sinks, "_Job", lambda *_: SimpleNamespace(totals={"bytes": 1}, had_large_row=False))
    monkeypatch.setattr(sinks, "_property", lambda _, name: properties[name])
    monkeypatch.setattr(sinks, "plan_of_query", lambda *_: "plan")
    monkeypatch.setattr(sinks, "warn_of_other_python", lambda _: None)
    made: list[Any] = []

    def make() -> Any:
        options = {"kafka.bootstrap.servers": "b:1", "txnAppId": f"app-{id(made)}"}
        made.append(sinks.foreach_batch_sink("t", options))
        return made[-1]

    return SimpleNamespace(make=make, session=Session, properties=properties)


DF: Any = SimpleNamespace(sparkSession=None, count=lambda: 1)


@pytest.mark.parametrize("run", ["run", None])
@pytest.mark.parametrize("is_same", [True, False])
def test_a_second_thread_cannot_write_a_micro_batch_that_is_being_written(
    sink: Any, is_same: bool, run: str | None
) -> None:
    """It waited for the first one, found the marker of the batch, and skipped its own rows without an error."""
    sink.properties["spark.jobGroup.id"] = run
    first = sink.make()
    second = first if is_same else sink.make()
    raised: list[BaseException] = []

    def write() -> None:
        try:
            second(DF, 0)
        except UsageError as refused:
            raised.append(refused)

    thread = threading.Thread(target=write)

    def during() -> None:
        thread.start()
        thread.join(1)

    sink.session.during = during
    first(DF, 0)
    thread.join(10)
    assert "txnAppId of its own" in str(raised)
    assert sink.session.written == 1
    first(DF, 1)


def test_a_micro_batch_that_failed_may_be_written_again(sink: Any) -> None:
    one = sink.make()

    def during() -> None:
        raise ZeroDivisionError

    sink.session.during = during
    with pytest.raises(ZeroDivisionError):
        one(DF, 0)
    one(DF, 0)
    with pytest.raises(UsageError):
        one(DF, 0)


def test_where_the_run_is_not_known_a_later_call_may_be_a_repetition(sink: Any) -> None:
    sink.properties["spark.jobGroup.id"] = None
    one = sink.make()
    one(DF, 0)
    one(DF, 0)
    assert sink.session.written == 2


def test_a_job_group_of_the_user_s_function_is_no_run(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two job groups made two runs of one run: the second write was skipped, as a repetition, without an error. One job
    group made one run of two: a batch that Spark repeated in the same process was refused for ever.
    """
    runs = ["run"]
    monkeypatch.setattr(sinks, "run_of_query", lambda *_: runs[-1])
    one = sink.make()
    sink.properties["spark.jobGroup.id"] = "good rows"
    one(DF, 0)
    sink.properties["spark.jobGroup.id"] = "bad rows"
    with pytest.raises(UsageError):
        one(DF, 0)
    runs.append("after a restart")
    one(DF, 0)
    assert sink.session.written == 2
