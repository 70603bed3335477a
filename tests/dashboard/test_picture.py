"""examples/dashboard/picture.py: docs/dashboard.png is the board's own JSON, with numbers of a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import grafana
import picture
import pytest
import run
import tools
from launching import run_example

EXAMPLE = Path(picture.__file__).parent

needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm fetches the chart library")


def overview():
    return json.loads(grafana.FILES["overview"].read_text())


def drawn(board):
    """The page of a board, by a Prometheus that scrapes nothing."""
    with tools.Prometheus("127.0.0.1:9") as prometheus:
        now = time.time()
        with picture.page(board, prometheus, now - 60, now) as address:
            return run.chromium("--dump-dom", address)


@needs_npm
@pytest.mark.real
@pytest.mark.timeout(900)  # a fresh machine installs Prometheus and Chromium first
def test_a_panel_is_drawn_as_the_board_says():
    board = overview()
    panels = {panel["title"]: panel for panel in reversed(board["panels"])}

    def show(title, expression, **defaults):
        panels[title]["targets"][0]["expr"] = expression
        panels[title]["fieldConfig"]["defaults"] |= defaults

    # Units, words and thresholds are the board's.
    show("Undelivered", "vector(3 * 1024 * 1024)", unit="bytes")
    show("All delivered", "vector(2)")
    show("Oldest record", "vector(90)")
    show("Consumer lag", "absent(vector(1))")
    # Legends and words are, too; and its variables are filled in.
    show("Room left for records", 'label_replace(vector(1024), "client_id", "gates", "", "")')
    show("Alerts over time", 'label_replace(vector(3), "alertname", "Flood $job", "", "")')
    show("Records lost", "no PromQL(")
    page = drawn(board)

    assert f'data-drawn="{len(board["panels"])}"' in page
    shown = {section["title"]: section for section in reversed(picture.sections(page))}
    assert shown.keys() == panels.keys()
    assert {title for title, section in shown.items() if "error" in section} == {"Records lost"}
    assert "parse error" in shown["Records lost"]["error"]
    tiles = dict(re.findall(r"<h2>([^<]+)</h2><div(?: style=\"[^\"]*\")?>([^<]+)</div>", page))
    expected = {
        "Undelivered": "3 MiB",
        "All delivered": "no",
        "Oldest record": "1.5 min",
        "Consumer lag": "no consumer",
    }
    assert {title: tiles[title] for title in expected} == expected
    tags = re.findall(r"<section [^>]*>", page)
    colours = {
        found[1]: re.search(r"background: (rgb\([^)]*\))", tag)[1]
        for tag in tags
        if (found := re.search(r'data-title="([^"]+)".* class="stat"', tag))
    }
    assert colours["All delivered"] == "rgb(255, 120, 10)"
    assert colours["Oldest record"] == "rgb(224, 180, 0)"
    drawing = page.partition('data-title="Room left for records"')[2].partition("</section>")[0]
    assert ">gates<" in drawing
    assert ">1 KiB<" in drawing
    drawing = page.partition('data-title="Alerts over time"')[2].partition("</section>")[0]
    assert ">Flood .*<" in drawing
    assert ">page<" in drawing
    assert 'data-annotation="Losses" data-times="0"' in page


def test_a_missing_npm_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tools.MissingPackageError, match="Install Node"):
        picture.fetch_echarts(tmp_path)


def test_the_chart_library_is_pinned_and_its_content_too():
    lock = json.loads((EXAMPLE / "drawing" / "package-lock.json").read_text())
    wanted = json.loads((EXAMPLE / "drawing" / "package.json").read_text())["dependencies"]
    packages = {name.removeprefix("node_modules/"): one for name, one in lock["packages"].items() if name}
    assert {name: packages[name]["version"] for name in wanted} == wanted
    # No machine's own registry is written down.
    assert all("resolved" not in one and one["integrity"].startswith("sha512-") for one in packages.values())


@needs_npm
@pytest.mark.kafka
@pytest.mark.timeout(900)
def test_the_picture_of_an_outage_can_be_taken_again(tmp_path):
    file = tmp_path / "board.png"
    output = run_example(
        "picture.py", "--outage=9", "--quiet=3", "--scrape=1", f"--output={file}", temporary=tmp_path
    )
    said = re.search(
        r"(\d+) records are in the spools; .*the spools are drained\n(\d+) records were accepted, as many are in the",
        output,
        re.DOTALL,
    )
    assert said, output
    assert 0 < int(said[1]) <= int(said[2])
    assert file.read_bytes().startswith(b"\x89PNG")
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith("kafkasafe-ports")}
    assert left == {file.name}
