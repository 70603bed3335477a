"""`make dashboard`: runs a real Kafka, clients with and without faults, and a real Prometheus with the console page.

python examples/dashboard/run.py                            # until Ctrl-C; the faults begin after 20 seconds
python examples/dashboard/run.py --once                     # checks that each alert fires in its fault, and ends
python examples/dashboard/run.py --once --screenshot x.png  # and takes a picture of the page with headless Chromium
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path

from tools import BOARDS, HERE, Prometheus, exit_code, find, panels, rules
from workload import ALERTS, LASTING, PRODUCERS, Workload

_PATIENCE_S = 120.0


def wait_for(
    condition: Callable[[], bool], what: Callable[[], object], timeout_s: float = _PATIENCE_S
) -> None:
    """Waits until the condition is true.

    Raises:
        TimeoutError: The condition did not become true in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what()}")
        time.sleep(0.2)


def quiet(workload: Workload, prometheus: Prometheus, seconds: float = 5.0) -> None:
    """Waits until every client was scraped for this number of seconds, and checks that no alert fires or is pending.

    Raises:
        AssertionError: An alert fires or is pending.
    """
    settled = (
        f"count(count_over_time(kafkasafe_spool_records[10m]) >= {int(seconds)}) == {len(PRODUCERS)}"
        " and on () up == 1"
    )
    wait_for(
        lambda: bool(prometheus.query(settled)),
        lambda: f"scrapes of {workload.target}",
    )
    for state in ("firing", "pending"):
        assert not (found := prometheus.alerts(state)), f"without a fault: {state} {sorted(found)}"


def alarmed(prometheus: Prometheus) -> None:
    """Waits until each alert fires for the clients with the fault that it reports, and for no other client.

    On a slow machine, other clients may wait for the killed broker for longer than a minute, so that more alerts fire
    until the broker is back.
    """
    expected = {(alert, client) for alert, clients in ALERTS.items() for client in clients}
    wait_for(
        lambda: prometheus.alerts() == expected,
        lambda: (
            f"{sorted(expected - prometheus.alerts())} to fire, {sorted(prometheus.alerts() - expected)} not to"
        ),
    )


def over(prometheus: Prometheus) -> None:
    """Waits until the alerts for repaired faults have ended. Alerts for past events must still fire."""
    left = {
        (alert, client) for alert, clients in ALERTS.items() if alert not in LASTING for client in clients
    }
    wait_for(lambda: prometheus.alerts() == left, lambda: f"{sorted(prometheus.alerts() - left)} to end")


def expressions(*, spark: bool = False) -> list[str]:
    """Returns all PromQL expressions of Grafana's boards and of the console page, with values for their variables.

    Args:
        spark: Whether to return the expressions about Spark queries, or all other expressions.
    """
    boards = [json.loads(file.read_text()) for file in BOARDS]
    found = [target["expr"] for board in boards for panel in panels(board) for target in panel["targets"]]
    # An annotation marks one moment, so search for it in the whole time range.
    marks = [annotation["expr"] for board in boards for annotation in board["annotations"]["list"]]
    found += [f"max_over_time(({mark})[$__range:1s])" for mark in marks]
    page = (HERE / "console.html").read_text()
    found += re.findall(r'data-expr="([^"]+)"', page) + re.findall(r'query "([^"]+)"', page)
    assert len(found) > 50, found
    # Some expressions are on both boards.
    found = list(dict.fromkeys(found))
    for variable, value in (
        ("$job", ".*"),
        ("$client_id", ".*"),
        ("$__rate_interval", "15s"),
        ("$__range", "15m"),
        ("$window", "15s"),
    ):
        found = [expression.replace(variable, value) for expression in found]
    return [expression for expression in found if ("kafkasafe_spark_" in expression) is spark]


def answered(prometheus: Prometheus, what: list[str], *, data: bool = True) -> None:
    """Checks that Prometheus accepts every expression and, if `data`, waits until each has data.

    Raises:
        ValueError: Prometheus rejects an expression.
        TimeoutError: An expression has no data.
    """
    missing = what
    for expression in what:
        prometheus.query(expression)
    if data:

        def all_there() -> bool:
            nonlocal missing
            missing = [expression for expression in missing if not has_data(prometheus, expression)]
            return not missing

        wait_for(all_there, lambda: "data for " + "\n".join(missing))


def has_data(prometheus: Prometheus, expression: str) -> bool:
    """Returns whether any sample is a number. Quotients of rates without events are NaN."""
    return any(sample["value"][1] != "NaN" for sample in prometheus.query(expression))


def idle(prometheus: Prometheus) -> None:
    """Checks that Prometheus accepts the expressions of all alerts, and that none of them returns data.

    Raises:
        AssertionError: An expression returns data.
    """
    for group in rules()["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                assert not (found := prometheus.query(rule["expr"])), (
                    f"{rule['alert']} without a fault: {found}"
                )


def linted(workload: Workload) -> None:
    """Checks names, types and texts of the metrics with Prometheus's own tool, promtool.

    Raises:
        AssertionError: promtool reports a problem.
    """
    with urllib.request.urlopen(f"http://{workload.target}/metrics", timeout=30) as answer:
        text = answer.read()
    names = {line.split(b" ")[2] for line in text.splitlines() if line.startswith(b"# TYPE")}
    assert len(names) > 40, names
    done = subprocess.run(
        [find("promtool", "prometheus"), "check", "metrics"],
        input=text,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def screenshot(prometheus: Prometheus, file: Path) -> None:
    """Takes a picture of the console page in headless Chromium, and checks that the page is complete.

    Raises:
        AssertionError: An alert or a graph is missing on the page.
        RuntimeError: Chromium failed.
    """
    page = f"{prometheus.console}&still"
    html = chromium("--dump-dom", page)
    rows = html.count('<tr class="alert">')
    assert rows == len(prometheus.alerts()), html
    graphs = html.split('<section class="graph')[1:]
    assert len(graphs) == 8, html
    for graph in graphs:
        assert not graph.startswith(" bad"), graph
        assert "<polyline" in graph, graph
    chromium("--hide-scrollbars", "--window-size=1280,1000", f"--screenshot={file.resolve()}", page)
    assert file.stat().st_size > 10_000, file


def chromium(*arguments: str) -> str:
    """Returns what headless Chromium prints. A page has five seconds of virtual time to draw.

    Raises:
        RuntimeError: Chromium failed.
    """
    command = [
        find("chromium", "chromium"),
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--virtual-time-budget=5000",
    ]
    if os.geteuid() == 0:
        # Chromium's sandbox cannot be set up by root. Chromium opens only our own page here.
        command.append("--no-sandbox")
    # The path of Chromium's socket may have at most 107 bytes, so do not use TMPDIR, which may be long.
    with tempfile.TemporaryDirectory(prefix="kafkasafe-chromium-", dir="/tmp") as profile:
        done = subprocess.run(
            [*command, f"--user-data-dir={profile}", *arguments],
            env=os.environ | {"TMPDIR": profile, "TZ": "UTC"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"chromium {arguments}:\n{done.stderr[-3000:]}")
    return done.stdout


def once(workload: Workload, prometheus: Prometheus, picture: Path | None) -> None:
    """Runs all checks, one after the other."""
    quiet(workload, prometheus)
    idle(prometheus)
    asked = expressions()
    answered(prometheus, asked, data=False)
    print("no alert without a fault", flush=True)
    workload.break_everything()
    alarmed(prometheus)
    print(f"each of {len(ALERTS)} alerts fires in its fault, and for no other client", flush=True)
    answered(prometheus, asked)
    print(f"each of {len(asked)} expressions of the boards and the page has data", flush=True)
    linted(workload)
    print("promtool has nothing to say about the metrics", flush=True)
    if picture is not None:
        screenshot(prometheus, picture)
        print(f"the page is in {picture}", flush=True)
    workload.repair()
    over(prometheus)
    print("those of faults that are over have ended", flush=True)


def show(workload: Workload, prometheus: Prometheus) -> None:
    """Shows the console page until Ctrl-C: without faults for 20 seconds, with faults for a minute, then repaired."""
    print(
        "Ctrl-C ends this program. In 20 seconds a disk is lost, a topic has too few replicas, and more",
        flush=True,
    )
    webbrowser.open(prometheus.console)
    time.sleep(20)
    workload.break_everything()
    print("everything is broken; repaired in a minute", flush=True)
    time.sleep(60)
    workload.repair()
    print(
        "repaired: spooled records are delivered; alerts about past losses, skips and regressions last 15 minutes"
    )
    while True:
        time.sleep(3600)


def main() -> int:
    """Returns 0 on success, 1 if a check failed, 3 if a program is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--once", action="store_true", help="check that each alert fires in its fault, and end"
    )
    parser.add_argument("--screenshot", type=Path, metavar="PNG", help="with --once: a picture of the page")
    options = parser.parse_args()
    if options.screenshot and not options.once:
        parser.error("--screenshot needs --once")
    # Do not log warnings: the temporary spool directories and the faults are intended.
    logging.getLogger("kafkasafe").setLevel(logging.CRITICAL)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)

    def work() -> None:
        find("prometheus", "prometheus")
        with Workload() as workload, Prometheus(workload.target) as prometheus:
            print(f"metrics     http://{workload.target}/metrics", flush=True)
            print(f"Prometheus  {prometheus.url}", flush=True)
            print(f"console     {prometheus.console}", flush=True)
            if options.once:
                once(workload, prometheus, options.screenshot)
            else:
                show(workload, prometheus)

    try:
        return exit_code(work)
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
