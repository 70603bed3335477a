"""The generated pages of docs/, each from the code that it describes. `python -m tests.pages` writes them.

A module of this package makes one page: `PATH` is its file, `text()` its content. Where a page has a guide around its
tables, only the part between `<!-- generated: NAME -->` and `<!-- end -->` is written.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "kafkasafe"

_BLOCK = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def cell(text: str) -> str:
    """For a table of Markdown."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def code(text: object) -> str:
    return f"`{text}`"


def filled(page: Path, blocks: dict[str, str]) -> str:
    """The page with its generated parts made again."""
    content = page.read_text(encoding="utf-8")
    found = [match[2] for match in _BLOCK.finditer(content)]
    if sorted(found) != sorted(blocks):
        raise ValueError(f"{page.name} has the parts {found}, generated are {sorted(blocks)}")
    return _BLOCK.sub(lambda match: f"{match[1]}\n{blocks[match[2]]}\n{match[3]}", content)


def docstring(thing: Any) -> tuple[str, dict[str, str]]:
    """What a docstring says, and what it says of each attribute."""
    said, _, listed = (inspect.getdoc(thing) or "").partition("\nAttributes:\n")
    attributes: dict[str, str] = {}
    name = ""
    for line in listed.splitlines():
        begun = re.match(r"    (\w+): (.*)", line)
        if begun:
            name = begun[1]
            attributes[name] = begun[2]
        elif line.startswith("     ") and name:
            attributes[name] += " " + line.strip()
        elif line and not line.startswith(" "):
            break
    return said.strip(), attributes


def class_body(path: Path, name: str) -> list[ast.stmt]:
    """The statements of a class, in the order of the file."""
    return _class(path, name).body


def class_bases(path: Path, name: str) -> list[str]:
    """The names of a class's base classes."""
    return [base.id for base in _class(path, name).bases if isinstance(base, ast.Name)]


def _class(path: Path, name: str) -> ast.ClassDef:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
