"""examples/dashboard: a real Prometheus, real clients, real faults."""

from __future__ import annotations

import json
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

from kafkasafe import metrics
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
    defined.add(metrics._INFO)
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


def test_each_alert_leads_to_its_row_in_the_runbook():
    docs = EXAMPLE.parent.parent / "docs"
    runbook = (docs / "operations.md").read_text().partition("\n## Runbook of the alerts\n")[2]
    runbook = runbook.partition("\n## ")[0]
    listed = (docs / "metrics.md").read_text().partition("\n## Alerts\n")[2]
    named = {rule["alert"] for rule in alerts()}
    for text in (runbook, listed):
        assert set(re.findall(r"^\| (\w+) \|", text, re.MULTILINE)) - {"alert"} == named
    for rule in alerts():
        assert rule["annotations"]["runbook_url"] == "docs/operations.md#runbook-of-the-alerts"


def test_what_can_wait_wakes_nobody():
    """Records of a spool that fills, and those that are kept, are safe."""
    severity = {rule["alert"]: rule["labels"]["severity"] for rule in alerts()}
    assert severity["SpoolNearFull"] == severity["RecordsRejected"] == "warning"
    assert severity["DataLost"] == severity["SendsRefused"] == "critical"


def panels():
    return [panel for panel in json.loads(grafana.FILE.read_text())["panels"] if "targets" in panel]


def test_no_panel_shows_a_counter_as_it_is_and_none_beside_a_gauge():
    counters = {name for name, d in {**PRODUCER, **CONSUMER}.items() if d.kind == "counter"}
    gauges = {name for name, d in {**PRODUCER, **CONSUMER}.items() if d.kind == "gauge"}
    shown = [*(target["expr"] for panel in panels() for target in panel["targets"]), *run.expressions()]
    raw = re.compile(r"_total\b(?:\{[^}]*\})?(?!\{|\||\[| offset )")
    assert [expression for expression in shown if raw.search(expression)] == []
    assert raw.search('sum(kafkasafe_spool_full_total{job=~"$job"})')
    for panel in panels():
        asked = " ".join(target["expr"] for target in panel["targets"])
        names = re.findall(r"kafkasafe_(\w+)", asked)
        kinds = {
            kind
            for name in names
            for kind, of_kind in (("counter", counters), ("gauge", gauges))
            if name.removesuffix("_total") in of_kind
        }
        assert len(kinds) <= 1, panel["title"]


def test_all_panels_are_of_the_jobs_and_clients_that_were_chosen():
    for panel in panels():
        for target in panel["targets"]:
            for matchers in re.findall(r"\{([^}]*)\}", target["expr"]):
                assert 'job=~"$job"' in matchers, (panel["title"], target["expr"])
                if "kafkasafe_spark_" not in target["expr"]:
                    assert 'client_id=~"$client_id"' in matchers, (panel["title"], target["expr"])
    (tile,) = [panel for panel in panels() if panel["title"] == "Alerts"]
    assert "ALERTS{" in tile["targets"][0]["expr"]


def test_a_panel_shows_the_first_value_of_a_counter_that_begins_with_it(promtool, tmp_path):
    series = {"born": "_x9 10+0x90", "grows": "10+0x9 16+0x90", "both": "_x9 10 16+0x90", "idle": "7+0x100"}
    test = {
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": "30s",
                "input_series": [
                    {"series": f'x_total{{c="{name}"}}', "values": values} for name, values in series.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": f"round({grafana._new('x_total', '', '10m')})",
                        "eval_time": "10m",
                        "exp_samples": [
                            {"labels": f'{{c="{name}"}}', "value": value}
                            for name, value in {"born": 10, "grows": 6, "both": 16, "idle": 0}.items()
                        ],
                    }
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [promtool, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


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
