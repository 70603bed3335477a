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
from launching import run_example

from kafkasafe import metrics
from kafkasafe.metric_definitions import CONSUMER, PRODUCER
from kafkasafe.spark.listener import _Collector

EXAMPLE = Path(run.__file__).parent


@pytest.fixture(scope="module")
def promtool():
    """Installs Debian's package where it is missing."""
    return tools.find("promtool", "prometheus")


def alerts():
    return [rule for group in tools.rules()["groups"] for rule in group["rules"] if "alert" in rule]


@pytest.mark.parametrize("name", grafana.FILES)
def test_the_committed_boards_are_what_the_code_generates(name):
    assert grafana.FILES[name].read_text() == grafana.build(name)


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
            [promtool, *arguments], cwd=EXAMPLE, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not():
    tests = yaml.safe_load((EXAMPLE / "rules_test.yml").read_text())["tests"]
    seen = {(t["alertname"], bool(t["exp_alerts"])) for test in tests for t in test["alert_rule_test"]}
    names = {rule["alert"] for rule in alerts()}
    assert seen == {(name, fires) for name in names for fires in (True, False)}
    assert names == workload.ALERTS.keys() | workload.SPARK_ALERTS | workload.UNSEEN_ALERTS


def sections():
    """Text of the runbook's sections, by heading."""
    page = (EXAMPLE.parent.parent / "docs" / "runbook.md").read_text()
    return {part.split("\n", 1)[0]: part.split("\n", 1)[1] for part in page.split("\n## ")[1:]}


def test_each_alert_leads_to_its_section_in_the_runbook():
    """The section says the severity, what the alert means, where to look and what to do."""
    runbook = sections()
    assert list(runbook) == [rule["alert"] for rule in alerts()]
    headings = (EXAMPLE.parent.parent / "docs" / "runbook.md").read_text().lower().splitlines()
    for rule in alerts():
        name, severity = rule["alert"], rule["labels"]["severity"]
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == "docs/runbook.md", name
        # GitHub numbers an anchor that comes twice.
        assert headings.count(f"## {anchor}") == 1, name
        assert anchor == name.lower()
        assert re.match(rf"\n`{severity}`\. [\w`]", runbook[name]), name
        assert runbook[name].count("\n- Look: ") == runbook[name].count("\n- Do: ") == 1, name


def test_each_alert_says_what_it_means_and_whether_it_can_wait():
    for rule in alerts():
        assert rule["labels"].keys() == {"severity"}, rule["alert"]
        assert rule["labels"]["severity"] in {"page", "ticket"}, rule["alert"]
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}, rule["alert"]
        assert all(rule["annotations"].values()), rule["alert"]


def test_the_page_of_metrics_lists_all_alerts_with_their_severity():
    listed = (EXAMPLE.parent.parent / "docs" / "metrics.md").read_text().partition("\n## Alerts\n")[2]
    rows = re.findall(r"^\| \[(\w+)\]\(runbook\.md#(\w+)\) \| `(\w+)` \|", listed, re.MULTILINE)
    assert rows == [(r["alert"], r["alert"].lower(), r["labels"]["severity"]) for r in alerts()]


def test_what_can_wait_pages_no_operator():
    """Records in a spool that fills, and records that are kept, are safe."""
    severity = {rule["alert"]: rule["labels"]["severity"] for rule in alerts()}
    for name in ("SpoolNearFull", "RecordsRejected", "BlockedByCluster", "ConsumerLagGrows"):
        assert severity[name] == "ticket"
    for name in ("DataLost", "SendsNotAccepted", "MetricsAbsent", "RecordsUndecidable"):
        assert severity[name] == "page"


def board(name):
    return json.loads(grafana.FILES[name].read_text())


def panels():
    return [panel for name in grafana.FILES for panel in tools.panels(board(name))]


def test_the_overview_is_one_screen():
    """24 columns and 20 rows of 38 pixels, without gaps, and nothing is hidden."""
    places = [panel["gridPos"] for panel in board("overview")["panels"]]
    covered = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert sorted(covered) == [(x, y) for x in range(24) for y in range(20)]
    assert not any(panel["type"] == "row" for panel in board("overview")["panels"])


def test_the_rows_of_the_internals_are_collapsed():
    rows = [panel for panel in board("internals")["panels"] if panel["type"] == "row"]
    assert [row["title"] for row in rows] == ["Produce", "Spool", "Consume", "Spark"]
    for number, row in enumerate(rows):
        assert row["collapsed"]
        assert row["panels"]
        assert row["gridPos"] == {"x": 0, "y": rows[0]["gridPos"]["y"] + number, "w": 24, "h": 1}
        assert min(panel["gridPos"]["y"] for panel in row["panels"]) == row["gridPos"]["y"] + 1


@pytest.mark.parametrize("name", grafana.FILES)
def test_a_board_can_be_imported(name):
    shown = board(name)
    assert shown["uid"] == f"kafkasafe-{name}"
    assert 8 <= len(shown["uid"]) <= 40
    everything = [p for panel in shown["panels"] for p in (panel, *panel.get("panels", ()))]
    assert len({panel["id"] for panel in everything}) == len(everything)
    needed = {need["id"] for need in shown["__requires"] if need["type"] == "panel"}
    assert needed == {panel["type"] for panel in everything} - {"row"}
    assert [variable["name"] for variable in shown["templating"]["list"]] == [
        "datasource",
        "job",
        "client_id",
    ]
    source = {"type": "prometheus", "uid": "${datasource}"}
    asked = [target for panel in tools.panels(shown) for target in (panel, *panel["targets"])]
    assert all(one["datasource"] == source for one in (*asked, *shown["annotations"]["list"]))
    # Each leads to the other.
    assert [link["tags"] for link in shown["links"]] == [["kafkasafe"]]
    assert "kafkasafe" in shown["tags"]


UNITS = {
    "bytes": {"bytes": "bytes", "rate": "Bps"},
    "seconds": {"seconds": "s", "rate": "short"},
    "ratio": {"ratio": "percentunit"},
}
"""Grafana's unit of what a metric measures; of everything else that is a count: `short`, and `cps` as a rate."""

KINDS = {
    "records": "records",
    "blocked_destinations": "destinations",
    "connected": "clients",
    "last_acked_offset": "offsets",
    "position": "offsets",
    "end_offset": "offsets",
    "spool_displaced_lanes": "lanes",
    "spool_segments": "files",
    "spark_active_queries": "queries",
    "spark_offsets_behind_latest": "records",
    "spark_rows": "rows",
    "in_doubt_resolved": "batches",
    "start_time_seconds": "time",
}
"""What is counted, of metrics whose names do not end with it."""


def measured(name):
    """What a metric measures: bytes, seconds, a ratio, or what it counts."""
    if name.startswith("kafkasafe:"):
        _, level, of = name.split(":")
        kind = of.partition("_")[0]
        return kind if kind in UNITS else level.rpartition("_")[2]
    name = name.removeprefix("kafkasafe_")
    for suffix in ("_total", "_bucket", "_sum", "_count"):
        name = name.removesuffix(suffix)
    if name in KINDS:
        return KINDS[name]
    last = name.rpartition("_")[2]
    return last if last in {"records", "bytes", "seconds", "batches", "partitions"} else "times"


def test_each_panel_has_one_unit_and_it_is_that_of_what_it_shows():
    for panel in panels():
        expressions = [target["expr"] for target in panel["targets"]]
        names = {name for e in expressions for name in re.findall(r"\bkafkasafe[_:]\w+(?::\w+)*", e)}
        if not names:
            assert "ALERTS{" in expressions[0]
            assert panel["fieldConfig"]["defaults"]["unit"] == "short"
            continue
        title, unit = panel["title"], panel["fieldConfig"]["defaults"]["unit"]
        assert "overrides" not in panel["fieldConfig"] or panel["fieldConfig"]["overrides"] == [], title
        if title == "All delivered":
            # It counts clients.
            assert unit == "short"
            continue
        what = {measured(name) for name in names}
        assert len(what) == 1, (title, what)
        of_rates = {"rate(" in e and "histogram_quantile" not in e for e in expressions}
        assert len(of_rates) == 1, title
        (kind,), (is_rate,) = what, of_rates
        units = UNITS.get(kind, {kind: "short", "rate": "cps"})
        assert unit == units["rate" if is_rate else kind], (title, kind, unit)


def test_losses_and_restarts_are_marked_on_both_boards():
    defined = {f"kafkasafe_{name}" for name in PRODUCER.keys() | CONSUMER.keys()}
    for name in grafana.FILES:
        losses, restarts = board(name)["annotations"]["list"]
        assert losses["enable"]
        assert restarts["enable"]
        assert {n.removesuffix("_total") for n in re.findall(r"kafkasafe_\w+", losses["expr"])} <= defined
        # Grafana puts a mark at the time that is the value, in milliseconds.
        assert restarts["useValueForTime"]
        assert restarts["expr"].endswith(" * 1000")


def test_no_panel_shows_a_counter_as_it_is_and_none_beside_a_gauge():
    counters = {name for name, d in {**PRODUCER, **CONSUMER}.items() if d.kind == "counter"}
    gauges = {name for name, d in {**PRODUCER, **CONSUMER}.items() if d.kind == "gauge"}
    shown = [*run.expressions(), *run.expressions(spark=True)]
    raw = re.compile(r"_total\b(?:\{[^}]*\})?(?!\{|\||\[| offset )")
    born = re.compile(r"(kafkasafe_\w+_total\{[^}]*\}) unless \1 offset \w+")
    assert [e for e in shown if raw.search(born.sub("", e))] == []
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
    of_alerts = [panel["title"] for panel in panels() if "ALERTS{" in panel["targets"][0]["expr"]]
    assert of_alerts == ["Alerts", "Alerts over time"]
    for name in grafana.FILES:
        for annotation in board(name)["annotations"]["list"]:
            for matchers in re.findall(r"(?<!\{)\{([^{}]*)\}", annotation["expr"]):
                assert matchers == 'job=~"$job", client_id=~"$client_id"'


def evaluate(promtool, tmp_path, series, expected):
    """promtool finds these samples: (expression, time, value by labels)."""
    test = {
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": "30s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": expression.replace("$job", ".*").replace("$client_id", ".*"),
                        "eval_time": at,
                        "exp_samples": [{"labels": labels, "value": v} for labels, v in samples.items()],
                    }
                    for expression, at, samples in expected
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [promtool, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_panel_shows_the_first_value_of_a_counter_that_begins_with_it(promtool, tmp_path):
    series = {"born": "_x9 10+0x90", "grows": "10+0x9 16+0x90", "both": "_x9 10 16+0x90", "idle": "7+0x100"}
    grown = {'{c="born"}': 10, '{c="grows"}': 6, '{c="both"}': 16, '{c="idle"}': 0}
    evaluate(
        promtool,
        tmp_path,
        {f'x_total{{c="{name}"}}': values for name, values in series.items()},
        [(f"round({grafana._new('x_total', '', '10m')})", "10m", grown)],
    )


def asked(title):
    """The expression of a panel of the overview; of a tile, where a graph has the same title."""
    return next(p for p in board("overview")["panels"] if p["title"] == title)["targets"][0]["expr"]


def test_everything_is_delivered_where_no_client_has_an_old_record(promtool, tmp_path):
    """What is under way does not count; what was rejected, or is in a directory of nobody, does."""
    series = {
        'kafkasafe_spool_oldest_record_age_seconds{client_id="busy"}': "2+0x40",
        'kafkasafe_spool_oldest_record_age_seconds{client_id="out"}': "0+0x9 60+30x9 0+0x20",
        'kafkasafe_rejected_kept_records{client_id="out"}': "0+0x9 5+0x9 0+0x20",
        'kafkasafe_rejected_kept_records{client_id="kept"}': "0+0x9 5+0x9 0+0x20",
        'kafkasafe_orphaned_spool_records{client_id="orphans"}': "0+0x9 5+0x9 0+0x20",
    }
    clients = asked("All delivered")
    evaluate(
        promtool, tmp_path, series, [(clients, at, {"{}": n}) for at, n in (("4m", 0), ("8m", 3), ("12m", 0))]
    )


def test_no_ack_latency_is_shown_where_nothing_is_acknowledged(promtool, tmp_path):
    """The tile would say something of the time before the outage."""
    bucket = 'kafkasafe_ack_latency_seconds_bucket{client_id="c", le="%s"}'
    series = {bucket % "1.0": "0+10x9 90+0x20", bucket % "+Inf": "0+10x9 90+0x20"}
    latency = f"round({asked('Ack latency, p99')}, 0.01)".replace("$__rate_interval", "2m")
    evaluate(promtool, tmp_path, series, [(latency, "4m", {"{}": 0.99}), (latency, "12m", {})])


def test_a_loss_is_marked_when_it_happens_and_not_later(promtool, tmp_path):
    series = {
        'kafkasafe_data_loss_records_total{client_id="born", topic="t"}': "_x9 10+0x40",
        'kafkasafe_data_loss_records_total{client_id="never", topic="t"}': "_x9 0+0x40",
        'kafkasafe_skipped_records_total{client_id="grows", topic="t"}': "3+0x9 6+0x40",
        # A restart, and a loss after it.
        'kafkasafe_diverged_records_total{client_id="again", topic="t"}': "9+0x8 0 4+0x40",
    }
    losses = f"clamp_max({board('overview')['annotations']['list'][0]['expr']}, 1)"
    marked = {f'{{client_id="{client}", topic="t"}}': 1 for client in ("again", "born", "grows")}
    evaluate(promtool, tmp_path, series, [(losses, "4m", {}), (losses, "6m", marked), (losses, "12m", {})])


def test_a_restart_is_marked_at_its_time(promtool, tmp_path):
    series = {'kafkasafe_start_time_seconds{client_id="c", instance="i", job="j"}': "1000+0x9 1300+0x9"}
    starts = board("overview")["annotations"]["list"][1]["expr"]
    mark = '{client_id="c", instance="i", job="j"}'
    evaluate(promtool, tmp_path, series, [(starts, "4m", {mark: 1000e3}), (starts, "6m", {mark: 1300e3})])


def test_alerts_of_the_time_shown_are_told_apart_by_severity(promtool, tmp_path):
    labels = 'alertname="DataLost", client_id="%s", alertstate="%s", severity="%s"'
    series = {
        f"ALERTS{{{labels % one}}}": "1+0x20"
        for one in (("a", "firing", "page"), ("b", "firing", "ticket"), ("c", "pending", "page"))
    }
    # Not of kafkasafe.
    series['ALERTS{alertname="Other", client_id="a", alertstate="firing", severity="page"}'] = "1+0x20"
    shown = {
        f'{{alertname="DataLost", client_id="{client}"}}': n for client, n in (("a", 3), ("b", 2), ("c", 1))
    }
    count = {"{}": 2}
    evaluate(
        promtool,
        tmp_path,
        series,
        [(asked("Alerts over time"), "4m", shown), (asked("Alerts"), "4m", count)],
    )


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
        timeout=180,
        check=False,
    )
    assert done.returncode == 1


@pytest.mark.kafka
@pytest.mark.timeout(900)  # a fresh machine installs Prometheus and Chromium first
def test_each_alert_fires_in_its_fault_and_every_expression_has_data(tmp_path):
    output = run_example("run.py", "--once", "--screenshot", str(tmp_path / "page.png"), temporary=tmp_path)
    for said in (
        "no alert without a fault",
        f"each of {len(workload.ALERTS)} alerts fires in its fault, and for no other client",
        f"each of {len(run.expressions())} expressions of the boards and the page has data",
        "promtool has nothing to say about the metrics",
        "those of faults that are over have ended",
    ):
        assert said in output, output
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
