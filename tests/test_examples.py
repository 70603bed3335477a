"""Every example runs, by itself and on a cluster that is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import quick_spark
from programs import python

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parent.parent / "examples"
SAYS = {
    "drop_in.py": "orders holds 1000 records",
    "outage.py": "the topic holds 3001 records: each once, in order",
    "own_calls.py": "Prometheus sees",
    "spark_exactly_once.py": "each total is correct and exists once",
    "fastapi_app.py": "200 orders accepted, 200 in the topic",
    "worker.py": "1000 orders, 1000 invoices, 1000 different ones",
    "prefork.py": "0 of 400 accepted orders missing, 0 twice",
    "dead_letter.py": "dead letter: key 'large', 50000 bytes",
}


def run(tmp_path, name, *arguments, timeout_s=240, **environment):
    done = python(
        "-W",
        "error::ResourceWarning",
        EXAMPLES / name,
        *arguments,
        timeout=timeout_s,
        cwd=tmp_path,
        env=os.environ | {"KAFKASAFE_SPOOL_DIR": str(tmp_path / "spool")} | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_no_example_is_forgotten():
    assert {path.name for path in EXAMPLES.glob("*.py")} == SAYS.keys()


@pytest.mark.parametrize("name", [name for name in SAYS if not name.startswith("spark")])
def test_an_example_runs_by_itself(tmp_path, name):
    assert SAYS[name] in run(tmp_path, name)


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in SAYS if name.startswith("spark")])
def test_an_example_with_spark_runs_by_itself(tmp_path, name):
    # Two drivers, one after the other: on a busy machine a JVM takes a minute to start.
    java = quick_spark.java_options()
    assert SAYS[name] in run(tmp_path, name, timeout_s=570, SPARK_SUBMIT_OPTS=java)


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("drop_in.py", ["--count", "0"], "--count must be 1 or more"),
        ("fastapi_app.py", ["--count", "-1"], "--count must be 1 or more"),
        ("prefork.py", ["--count", "0"], "--count must be 1 or more"),
        ("worker.py", ["--count", "0"], "--count must be 1 or more"),  # its worker waited without end
        ("worker.py", ["--work"], "--work needs --bootstrap"),
        ("spark_exactly_once.py", ["--clicks", "0"], "--clicks must be 1 or more"),
        ("dashboard/run.py", ["--screenshot", "page.png"], "--screenshot needs --once"),
    ],
)
def test_an_example_refuses_arguments_that_it_cannot_use(tmp_path, name, arguments, says):
    done = python(EXAMPLES / name, *arguments, timeout=60, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr


def test_drop_in_runs_on_a_given_cluster(tmp_path, kafka):
    kafka.create_topic("drop-in-orders", partitions=3)
    out = run(
        tmp_path,
        "drop_in.py",
        "--bootstrap",
        ",".join(kafka.bootstrap_servers),
        "--topic",
        "drop-in-orders",
        "--count",
        "50",
    )
    assert "drop-in-orders holds 50 records" in out


def test_dead_letter_runs_on_a_given_cluster(tmp_path, kafka):
    assert SAYS["dead_letter.py"] in run(
        tmp_path, "dead_letter.py", "--bootstrap", ",".join(kafka.bootstrap_servers)
    )


@pytest.mark.parametrize(
    "name", ["drop_in.py", "prefork.py", "fastapi_app.py", "worker.py", "own_calls.py", "dead_letter.py"]
)
def test_an_example_runs_twice_on_a_cluster_where_others_ran(tmp_path, kafka, name):
    """Several count the records of the topic orders, which also held those of the other examples and runs."""
    servers = ",".join(kafka.bootstrap_servers)
    said = SAYS[name] if name != "drop_in.py" else "orders holds "
    for _ in range(2):
        assert said in run(tmp_path, name, "--bootstrap", servers)


def test_own_calls_runs_on_a_given_cluster(tmp_path, kafka):
    servers = ",".join(kafka.bootstrap_servers)
    out = run(tmp_path, "own_calls.py", "--bootstrap", servers, "--topic", "own-calls-topic")
    tries = [line for line in out.splitlines() if "UNKNOWN_TOPIC_OR_PARTITION, again in" in line]
    assert tries, out
    assert f"Prometheus sees {len(tries)} retries" in out
    assert "try 1: TOPIC_ALREADY_EXISTS, given up (verdict)" in out


def test_outage_runs_on_a_given_cluster(tmp_path, kafka):
    kafka.create_topic("outage-topic")
    servers = ",".join(kafka.bootstrap_servers)
    out = run(tmp_path, "outage.py", "--bootstrap", servers, "--topic", "outage-topic", "--seconds", "2")
    assert "records are in outage-topic" in out
