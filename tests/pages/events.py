"""The fields of docs/events.md, from the classes of kafkasafe/events.py."""

from __future__ import annotations

import ast
import dataclasses
from typing import Any, Final

from kafkasafe import events
from tests.pages import DOCS, PACKAGE, class_body, code, docstring, filled, table

PATH: Final = DOCS / "events.md"


def classes() -> dict[str, Any]:
    """Every event, in the order of the file."""
    found = [
        each for each in vars(events).values() if isinstance(each, type) and dataclasses.is_dataclass(each)
    ]
    return {each.__name__: each for each in found if each.__module__ == events.__name__}


def fields(name: str) -> dict[str, tuple[str, str]]:
    """Type and meaning of each field of an event, and of its properties."""
    said = docstring(classes()[name])[1]
    aliases = {
        node.target.id: ast.unparse(node.value)
        for node in ast.parse((PACKAGE / "events.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }
    found = {}
    for node in class_body(PACKAGE / "events.py", name):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kind = ast.unparse(node.annotation)
            found[node.target.id] = aliases.get(kind, kind), said.get(node.target.id, "")
        elif isinstance(node, ast.FunctionDef):
            returned = "" if node.returns is None else ast.unparse(node.returns)
            found[node.name] = returned, (ast.get_docstring(node) or "").split("\n\n")[0]
    return found


def text() -> str:
    parts = []
    for name, event in classes().items():
        rows = [
            (code(field), code(kind.replace('"', "'").replace("'", '"')), meaning)
            for field, (kind, meaning) in fields(name).items()
        ]
        parts.append(f"### {name}\n\n{docstring(event)[0]}\n\n{table(('field', 'type', 'meaning'), rows)}")
    return filled(PATH, {"fields": "\n".join(parts)})
