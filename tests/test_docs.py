"""The pages name what there is: options, events, metrics, alerts, commands; and their links lead somewhere."""

import ast
import functools
import re
import typing
from pathlib import Path

import pytest
import tiers
import typer.main
import yaml

from kafkasafe import cli, events, metric_definitions
from kafkasafe.config.table import CONSUMER_DEFAULTS, PRODUCER_DEFAULTS
from kafkasafe.history.epochs import Strategy
from tests.pages import PACKAGE
from tests.pages import events as event_pages

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
    assert [name for name in PRODUCER_DEFAULTS if f"`{name}`" not in text("options.md")] == []


def test_every_option_of_the_consumer_is_explained():
    assert [name for name in CONSUMER_DEFAULTS if f"`{name}`" not in text("consumer.md")] == []


def test_every_event_is_exported_and_has_a_row_of_the_table():
    kinds = event_pages.classes().keys()
    assert set(events.__all__) == {*kinds, "Event", "ConsumerEvent"}
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| [^|]*\w[^|]* \|$", text("events.md"), re.MULTILINE)
    assert kinds - {name for row in rows for name in re.findall(r"\w+", row)} == set()


def test_code_makes_every_event_and_a_union_has_it():
    kinds = event_pages.classes()
    unions = {*typing.get_args(events.Event), *typing.get_args(events.ConsumerEvent)}
    assert set(kinds.values()) - unions == {events.SourceDataLost}  # of the Spark source
    made = {
        ast.unparse(node.func).rpartition(".")[2]
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    }
    assert kinds.keys() - made == set(), "no code makes these events"


def test_every_metric_is_in_the_table():
    page = text("metrics.md")
    names = [
        f"kafkasafe_{d.name}" + ("_total" if d.kind == "counter" else "")
        for d in (metric_definitions.PRODUCER | metric_definitions.CONSUMER).values()
    ]
    assert [name for name in ["kafkasafe_build_info", *names] if f"| `{name}` |" not in page] == []


def test_every_alert_is_explained_and_has_its_place_in_the_runbook():
    rules = yaml.safe_load((ROOT / "examples/dashboard/rules.yml").read_text(encoding="utf-8"))
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    assert len(alerts) > 5
    for page, place in (("metrics.md", "\n| [{}]("), ("runbook.md", "\n## {}\n")):
        assert [alert for alert in alerts if place.format(alert) not in text(page)] == []


def test_every_command_is_in_the_table():
    app = typer.main.get_command(cli.app)
    names = []
    for name, command in app.commands.items():
        inner = getattr(command, "commands", None)
        names += [f"{name} {sub}" for sub in inner] if inner else [name]
    page = text("cli.md")
    assert len(names) > 8
    assert [name for name in names if f"kafkasafe {name}" not in page and f"`{name}`" not in page] == []


# -- the map of the code -----------------------------------------------------------------------------------------------


@functools.cache
def members():
    """By class name, what a class and its bases define or assign; and the names of all modules and functions."""
    found, bases, others = {}, {}, set()
    for path in (ROOT / "kafkasafe").rglob("*.py"):
        others.add(path.stem)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(b.id for b in node.bases if isinstance(b, ast.Name))
                names = found.setdefault(node.name, set())
                for inner in ast.walk(node):
                    if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        names.add(inner.name)
                    elif isinstance(inner, ast.Attribute):
                        names.add(inner.attr)
                    elif isinstance(inner, ast.Name):
                        names.add(inner.id)
                    elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                        names.add(inner.value)  # __slots__
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                others.add(node.name)
            elif isinstance(node, ast.Attribute):
                others.add(node.attr)
            elif isinstance(node, ast.Name):
                others.add(node.id)
    for _ in range(10):  # deeper than any chain of bases
        for name, above in bases.items():
            for base in above & found.keys():
                found[name] |= found[base]
    return found, others


def test_the_map_of_the_code_is_read_in_an_hour():
    assert len(text("design.md").splitlines()) <= 500


def test_what_the_map_of_the_code_names_exists():
    pages = "".join(text(path.name) for path in PAGES if path.name.startswith("design"))
    page = re.sub(r"^```.*?^```", "", pages, flags=re.DOTALL | re.MULTILINE)
    known, others = members()
    classes, privates, files, missing = 0, 0, 0, []
    paths = [
        path.as_posix() for root in ("kafkasafe", "tests", "examples") for path in (ROOT / root).rglob("*.py")
    ]
    for code in set(re.findall(r"`([^`\n]+)`", page)):
        for name, member in re.findall(r"\b([A-Z]\w+)\.(\w+)", code):
            if (name, member) not in {("Condition", "__enter__"), ("Event", "set")}:  # Python's
                classes += 1
                missing += [code] if member not in known.get(name, ()) else []
        for name in re.findall(r"(?<![\w./])(_[a-z]\w+)$", code):
            privates += 1
            missing += [code] if name not in others and not (ROOT / "kafkasafe" / name).is_dir() else []
        if re.fullmatch(r"[\w/]+\.py", code):
            files += 1
            missing += [code] if not any(path.endswith(f"/{code}") for path in paths) else []
    assert classes > 200
    assert privates > 15
    assert files > 50
    assert missing == []


# -- the table of tests ------------------------------------------------------------------------------------------------


def guards():
    """(parts of the package, make's target, paths of tests) of each row of the table of docs/changing.md."""
    table = text("changing.md").partition("## What to run")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| `make ([\w-]+) ARGS='(.+?)'` \|", table, re.MULTILINE)
    return [(re.findall(r"`([\w./]+)`", parts), target, paths.split()) for parts, target, paths in rows]


def test_the_table_of_tests_names_each_part_of_the_package_once():
    package = ROOT / "kafkasafe"
    modules = {path.name for path in package.glob("*.py")}
    folders = {path.parent.relative_to(package).as_posix() + "/" for path in package.glob("*/**/*.py")}
    assert sorted(part for parts, _, _ in guards() for part in parts) == sorted(modules | folders)


def test_the_commands_of_the_table_of_tests_run_tests():
    for _, target, paths in guards():
        assert target in {"test", "test-all"}
        for path in paths:
            assert (ROOT / path).exists(), path
            if (
                target == "test"
                and path.endswith(".py")
                and path.removeprefix("tests/") not in tiers.WORTH_IT
            ):
                # A module with such a mark has no fast test: `make test` would run nothing of it.
                marks = re.search(
                    r"^pytestmark = (.*)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE
                )
                assert marks is None or not tiers.REAL & set(re.findall(r"\w+", marks[1])), path


# -- the five documents ------------------------------------------------------------------------------------------------

CLAUSES = {"207": 16, "279": 19, "1007": 13, "5793": 12, "156": 20}


def clauses():
    """(id, feature, code, test) of each row of the tables."""
    rows = re.findall(
        r"^\| (\d+\.\d+) \| [^|]+ \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text("documents.md"), re.MULTILINE
    )
    return {number: rest for number, *rest in rows}


@functools.cache
def defined(path):
    """What a file defines: `name` and `Class.name`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()
    for node in tree.body:
        names.update(t.id for t in getattr(node, "targets", ()) if isinstance(t, ast.Name))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
            names.update(f"{node.name}.{inner.name}" for inner in node.body if hasattr(inner, "name"))
    return names


def test_every_clause_of_the_five_documents_has_its_row():
    assert list(clauses()) == [
        f"{document}.{n + 1}" for document, count in CLAUSES.items() for n in range(count)
    ]


def test_what_the_rows_name_exists():
    missing = []
    for number, (feature, code, tests) in clauses().items():
        if feature.startswith("Not applicable, because "):
            assert (code, tests) == ("–", "–"), number
            continue
        for names, root, divider in ((code, "kafkasafe", ":"), (tests, "tests", "::")):
            named = re.findall(r"`([^`]+)`", names)
            assert named, number
            assert re.sub(r"`[^`]+`", "", names).strip(" ,") == "", number
            for name in named:
                path, _, function = name.partition(divider)
                file = ROOT / root / path
                if not file.is_file() or function not in defined(file):
                    missing.append((number, name))
    assert missing == []


def test_strategies_that_the_documents_name_exist():
    named = set(re.findall(r"--strategy (\w+)", "".join(page.read_text(encoding="utf-8") for page in PAGES)))
    assert len(named) > 2
    assert named <= {strategy.value for strategy in Strategy}
