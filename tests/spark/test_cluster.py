"""The sink on several executors: kill -9 of one of them while it sends, and speculation."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest
import stalling
from local_spark import spark_session
from pyspark import TaskContext
from sinks import new_name, numbers, options, read, values

from kafkasafe.record.partition import partition_for_key
from kafkasafe.spark import foreach_batch_sink, write_batch
from kafkasafe.spark import sink as sink_module
from kafkasafe.spark.java import map_in_arrow
from kafkasafe.spark.sink_transaction import SinkTransaction

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.crash, pytest.mark.full]

HERE = Path(__file__).parent
ROWS = 60_000
EXCHANGE = {False: "never", True: "auto"}
"""With speculation, rows without keys would be exchanged too. The tests' rows are the same in each attempt."""


@contextlib.contextmanager
def process(name: str, *arguments: str, say: str, log: Path) -> Iterator[str]:
    """A daemon of a standalone cluster; gives the line of its log that has `say`."""
    home = Path(pyspark.__file__).parent
    env = {**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "128m", "SPARK_NO_DAEMONIZE": "1"}
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as file, subprocess.Popen(command, env=env, stdout=file, stderr=file) as running:
        try:
            deadline = time.monotonic() + 120
            while not (lines := [line for line in log.read_text().splitlines() if say in line]):
                assert running.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield lines[0]
        finally:
            running.terminate()
            running.wait(60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A standalone cluster with an executor on each of two hosts: Spark speculates only on another host."""
    import quick_spark  # executors import this module, and would not find it

    folder = tmp_path_factory.mktemp("cluster")
    verbose = folder / "log4j2.properties"
    verbose.write_text(
        "rootLogger.level=info\nrootLogger.appenderRef.a.ref=console\nappender.a.type=Console\nappender.a.name=console\n"
        "appender.a.target=SYSTEM_ERR\nappender.a.layout.type=PatternLayout\nappender.a.layout.pattern=%m%n\n"
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv(
            "SPARK_DAEMON_JAVA_OPTS",
            f"-Dlog4j2.configurationFile={verbose} {quick_spark.java_options()}",
        )
        started = stack.enter_context(
            process(
                *("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
                say="Starting Spark master at",
                log=folder / "master",
            )
        )
        master = started.split()[-1]
        for host in ("127.0.0.1", "127.0.0.2"):
            work = str(folder / host)
            resources = ("--cores", "1", "--memory", "1g", "--work-dir", work, "--webui-port", "0")
            stack.enter_context(
                process(
                    *("worker.Worker", "--host", host, *resources, master),
                    say="Successfully registered with master",
                    log=folder / f"worker-{host}",
                )
            )
        yield stack.enter_context(
            spark_session(
                spark_master=master,
                spark_executor_memory="640m",
                spark_executor_cores="1",
                spark_executor_extraJavaOptions=quick_spark.java_options(),
                spark_task_maxFailures="4",
                spark_locality_wait="0",
                spark_speculation="true",
                spark_speculation_interval="50ms",
                spark_speculation_multiplier="1.05",
                spark_speculation_quantile="0.25",
                spark_speculation_minTaskRuntime="200ms",
                spark_executorEnv_PYTHONPATH=os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
            )
        )


def rows(spark, *columns):
    return spark.range(0, ROWS, 1, 4).selectExpr(*(columns or ["CAST(id AS STRING) AS value"]))


def once(flag: str, action):
    """A function of Arrow batches, which does something in one attempt of one task."""

    def through(batches):
        for batch in batches:
            yield batch
            try:
                os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            action()

    return through


def kill_executor() -> None:
    """The JVM that this worker is of, which is no child of the driver's JVM alone."""
    for parent in psutil.Process().parents():
        if "CoarseGrainedExecutorBackend" in " ".join(parent.cmdline()):
            parent.send_signal(signal.SIGKILL)
            return


@pytest.mark.parametrize("keyed", [False, True], ids=["direct", "exchange"])
def test_an_executor_that_is_killed_loses_no_row_and_doubles_none(cluster, kafka, tmp_path, keyed):
    topic, flag = new_name(), tmp_path / "killed"
    kafka.create_topic(topic, partitions=4)
    dying = map_in_arrow(rows(cluster), once(str(flag), kill_executor), "value string")
    if keyed:
        dying = dying.selectExpr("value AS key", "value")
    sink = foreach_batch_sink(topic, **options(kafka, txnAppId=new_name("app"), exchange=EXCHANGE[keyed]))
    try:
        sink(dying, 0)
        assert flag.exists()
        assert sink.last.rows == ROWS
        assert values(kafka, topic) == numbers(range(ROWS))
    finally:
        sink.close()


@pytest.mark.parametrize("keyed", [False, True], ids=["direct", "exchange"])
def test_speculation_doubles_no_row(cluster, kafka, tmp_path, keyed):
    topic = new_name()
    kafka.create_topic(topic, partitions=4)
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    folder = str(attempts)

    def slow(batches):
        from pyspark import TaskContext

        context = TaskContext.get()
        name = f"{context.stageId()}-{context.partitionId()}-{context.attemptNumber()}"
        with (Path(folder) / name).open("w"):
            pass
        # The first attempt of one task is so slow that another is begun beside it.
        late = 60 if context.partitionId() == 0 and context.attemptNumber() == 0 else 0
        for number, batch in enumerate(batches):
            if number == 0:
                time.sleep(late)
            yield batch

    wanted = map_in_arrow(rows(cluster), slow, "value string")
    if keyed:
        wanted = wanted.selectExpr("value AS key", "value")
    assert write_batch(wanted, topic, **options(kafka, exchange=EXCHANGE[keyed])).rows == ROWS
    assert any(not path.name.endswith("-0") for path in attempts.iterdir()), "nothing was tried a second time"
    found = read(kafka, topic)
    assert len(found) == ROWS
    assert {m.value() for m in found} == set(numbers(range(ROWS)))
    assert all(m.partition() == partition_for_key(m.key(), 4) for m in found if keyed)


def test_an_attempt_that_is_late_adds_no_row(cluster, kafka, tmp_path, monkeypatch):
    """Attempt 0 of a task gets no row, and claims nothing. Attempt 1 gets some, and stalls until the driver has verified."""
    topic, folder = new_name(), str(tmp_path)
    kafka.create_topic(topic, partitions=4)

    def changing(batches):
        context = TaskContext.get()
        is_first = context.partitionId() == 0 and context.attemptNumber() == 0
        if is_first:
            stalling.wait_for(Path(folder) / "stalled")
        for batch in batches:
            if not is_first:
                yield batch

    real = SinkTransaction.verify

    def verify(*args):
        real(*args)
        (tmp_path / "verified").touch()
        time.sleep(4)

    monkeypatch.setattr(SinkTransaction, "verify", verify)
    stalled = functools.partial(stalling.StalledWrite, folder=folder)
    monkeypatch.setattr(sink_module, "DirectWrite", stalled)
    written = write_batch(map_in_arrow(rows(cluster), changing, "value string"), topic, **options(kafka)).rows
    assert len(read(kafka, topic)) == written
