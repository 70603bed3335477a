"""examples/dashboard: a real Prometheus, real clients, real faults."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import grafana
import psutil
import pytest
import run
import tools
import workload
import yaml

from kafkasafe._io.stats import CONSUMER, PRODUCER
from kafkasafe.spark.listener import _Collector

EXAMPLE = Path(run.__file__).parent


@pytest.fixture(scope="module")
def promtool():
    """Installs Debian's package where it is missing."""
    return tools.find("promtool", "prometheus")


def alerts():
    return [rule for group in tools.rules()["groups"] for rule in group["rules"] if "alert" in rule]


def test_the_committed_dashboard_is_what_the_code_generates():
    assert grafana.FILE.read_text() == grafana.build()


def test_nothing_asks_for_a_metric_that_there_is_not():
    suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
    defined = {
        f"kafkasafe_{d.name}{suffix}"
        for d in [*PRODUCER.values(), *CONSUMER.values()]
        for suffix in suffixes[d.kind]
    }
    of_spark = {f"{family.name}": suffixes[family.type] for family in _Collector().collect()}
    defined |= {f"{name}{suffix}" for name, kinds in of_spark.items() for suffix in kinds}
    recorded = {
        rule["record"] for group in tools.rules()["groups"] for rule in group["rules"] if "record" in rule
    }
    asked = [
        *run.expressions(),
        *run.expressions(spark=True),
        *(rule["expr"] for g in tools.rules()["groups"] for rule in g["rules"]),
    ]
    names = {name for expression in asked for name in re.findall(r"\bkafkasafe[_:]\w+(?::\w+)*", expression)}
    # The page counts clients by a pattern of names.
    names -= {"kafkasafe_"}
    assert len(names) > 40
    assert names <= defined | recorded
    # What is recorded is used, and every count has a place where an operator sees it.
    assert recorded <= names
    unseen = {
        name
        for name, d in {**PRODUCER, **CONSUMER}.items()
        if not any(f"kafkasafe_{name}{suffix}" in names for suffix in suffixes[d.kind])
    }
    unseen |= {
        name for name, kinds in of_spark.items() if not any(f"{name}{kind}" in names for kind in kinds)
    }
    assert unseen == set()


def test_what_producers_and_consumers_both_count_is_one_family():
    """Prometheus refuses two of one name."""
    both = PRODUCER.keys() & CONSUMER.keys()
    assert both
    assert all(PRODUCER[name] == CONSUMER[name] for name in both)


def test_the_rules_are_right_by_prometheus_own_tests(promtool):
    for arguments in (["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]):
        done = subprocess.run(
            [promtool, *arguments], cwd=EXAMPLE, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not():
    tests = yaml.safe_load((EXAMPLE / "rules_test.yml").read_text())["tests"]
    seen = {(t["alertname"], bool(t["exp_alerts"])) for test in tests for t in test["alert_rule_test"]}
    names = {rule["alert"] for rule in alerts()}
    assert seen == {(name, fires) for name in names for fires in (True, False)}
    assert names == workload.ALERTS.keys() | workload.SPARK_ALERTS | workload.UNSEEN_ALERTS
    assert all(rule["labels"]["severity"] in {"critical", "warning"} for rule in alerts())


def test_a_rule_that_does_not_see_the_first_loss_is_found_by_its_test(promtool, tmp_path):
    """The tests can fail: `increase` alone is blind to a counter that begins with the loss."""
    text = (EXAMPLE / "rules.yml").read_text()
    naive = text.replace(
        "or kafkasafe_data_loss_records_total unless kafkasafe_data_loss_records_total offset 15m", ""
    )
    assert naive != text
    (tmp_path / "rules.yml").write_text(naive)
    (tmp_path / "rules_test.yml").write_text((EXAMPLE / "rules_test.yml").read_text())
    done = subprocess.run(
        [promtool, "test", "rules", "rules_test.yml"],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1


@pytest.mark.kafka
@pytest.mark.timeout(900)  # a fresh machine installs Prometheus and Chromium first
def test_each_alert_fires_in_its_fault_and_every_expression_has_data(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error::ResourceWarning",
            str(EXAMPLE / "run.py"),
            "--once",
            "--screenshot",
            str(tmp_path / "page.png"),
        ],
        capture_output=True,
        text=True,
        timeout=890,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    for said in (
        "no alert without a fault",
        f"each of {len(workload.ALERTS)} alerts fires in its fault, and for no other client",
        f"each of {len(run.expressions())} expressions of the dashboard and the page has data",
        "promtool has nothing to say about the metrics",
        "those of faults that are over have ended",
    ):
        assert said in done.stdout, done.stdout
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    # It cleans up; which ports are taken is known to all clusters of a machine, and stays.
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith("kafkasafe-ports")}
    assert left == {"page.png"}


PROMETHEUS = """
import sys, time
sys.path.insert(0, sys.argv[1])
from tools import Prometheus
with Prometheus("127.0.0.1:9") as prometheus:
    print(prometheus.url, flush=True)
    time.sleep(300)
"""


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("promtool")
def test_prometheus_dies_with_whoever_started_it(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PROMETHEUS, str(EXAMPLE)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    try:
        assert parent.stdout.readline().startswith("http://127.0.0.1:")
        children = psutil.Process(parent.pid).children(recursive=True)
        assert "prometheus" in [child.name() for child in children]
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


def test_what_is_missing_is_named_where_it_cannot_be_installed(mocker):
    mocker.patch("os.geteuid", return_value=1000)
    ran = mocker.spy(subprocess, "run")
    with pytest.raises(
        tools.MissingPackageError, match="apt-get install --no-install-recommends some-package"
    ):
        tools.find("kafkasafe-has-no-such-program", "some-package")
    ran.assert_not_called()


def test_packages_are_told_to_start_no_service_and_somebodys_own_policy_stays(monkeypatch, tmp_path):
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(tools, "_POLICY", policy)
    with tools._no_service():
        # What invoke-rc.d asks; 101 is "forbidden".
        assert subprocess.run([policy, "prometheus", "start"], check=False).returncode == 101
    assert not policy.exists()
    policy.write_text("own")
    with tools._no_service():
        assert policy.read_text() == "own"
    assert policy.read_text() == "own"
