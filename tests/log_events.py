"""The events that docs/log-events.md lists, and where the package logs what."""

from __future__ import annotations

import ast
import dataclasses
import logging
import re
import typing
from collections.abc import Iterator
from typing import Final

from kafkasafe import events
from kafkasafe._consuming.event_table import ROWS
from tests.pages import DOCS, PACKAGE

_LEVELS: Final = {"exception": "ERROR"}
_METHODS: Final = ("debug", "info", "warning", "error", "exception")


def listed() -> dict[str, set[str]]:
    """The levels of every event of the page's table, by name, in the order of the table. Each cell has a text."""
    page = (DOCS / "log-events.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([A-Z, ]+) \| .+ \| .+ \|$", page, re.MULTILINE)
    return {name: set(levels.split(", ")) for name, levels in rows}


def _sites() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[tuple[str, str]]:
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    if method == "limited":
        yield from _names(node.args[1], ast.unparse(node.args[0]))
    elif method in _METHODS and "event" in given:
        yield from _names(given["event"], f"logging.{_LEVELS.get(method, method.upper())}")
    elif method in _METHODS and isinstance(extra := given.get("extra"), ast.Dict):
        for key, value in zip(extra.keys, extra.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "event":
                yield from _names(value, f"logging.{_LEVELS.get(method, method.upper())}")


def _names(name: ast.expr, levels: str) -> Iterator[tuple[str, str]]:
    found = name.value if isinstance(name, ast.Constant) else f"<{ast.unparse(name)}>"
    for level in re.findall(r"logging\.([A-Z]+)", levels) or ["?"]:
        yield str(found), level


def logged() -> dict[str, set[str]]:
    """The levels of every event that is logged anywhere, by name; `<...>` where the name is not written there."""
    found: dict[str, set[str]] = {}
    for name, level in _sites():
        found.setdefault(name, set()).add(level)
    return found


def of_consumer_events() -> dict[str, set[str]]:
    """The levels of every event of a consumer, by the name under which the consumer logs it: its class in snake case.

    The level of some events depends on whether an attribute is None.
    """
    found = {}
    for each in typing.get_args(events.ConsumerEvent):
        fields = [field.name for field in dataclasses.fields(each)]
        samples = [each(**dict.fromkeys(fields, value)) for value in (None, (0, 0))]
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", each.__name__).lower()
        found[name] = {logging.getLevelName(ROWS[each].level_of(sample)) for sample in samples}
    return found
