"""The pages name what there is: options, events, metrics, alerts, commands; and their links lead somewhere."""

import re
from pathlib import Path

import pytest
import typer.main
import yaml

from kafkasafe import cli, config, events
from kafkasafe._io import stats

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def text(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def anchors(page):
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_a_page_and_no_book():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert re.sub(r"-\d+$", "", anchor) in anchors(found) or anchor in anchors(found), target


def test_every_option_of_the_producer_is_explained():
    assert [name for name in config._SPOOL if f"`{name}`" not in text("options.md")] == []


def test_every_option_of_the_consumer_is_explained():
    assert [name for name in config._CONSUMER if f"`{name}`" not in text("consumer.md")] == []


def test_every_event_is_in_the_table():
    kinds = [name for name in events.__all__ if name not in {"Event", "ConsumerEvent"}]
    assert [name for name in kinds if f"`{name}`" not in text("events.md")] == []


def test_every_metric_is_in_the_table():
    page = text("metrics.md")
    names = [
        d.name + ("_total" if d.kind == "counter" else "") for d in (stats.PRODUCER | stats.CONSUMER).values()
    ]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_every_alert_is_explained_and_has_its_place_in_the_runbook():
    rules = yaml.safe_load((ROOT / "examples/dashboard/rules.yml").read_text(encoding="utf-8"))
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    assert len(alerts) > 5
    for page in ("metrics.md", "operations.md"):
        assert [alert for alert in alerts if f"| {alert} |" not in text(page)] == []


def test_every_command_is_in_the_table():
    app = typer.main.get_command(cli.app)
    names = []
    for name, command in app.commands.items():
        inner = getattr(command, "commands", None)
        names += [f"{name} {sub}" for sub in inner] if inner else [name]
    page = text("cli.md")
    assert len(names) > 8
    assert [name for name in names if f"kafkasafe {name}" not in page and f"`{name}`" not in page] == []
