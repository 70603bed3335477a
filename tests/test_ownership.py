"""An object owns its fields: they are written by methods of their class, and by nothing else.

`EXCEPTIONS` counts the fields that are written elsewhere, once for each function that does. The numbers may only fall.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkasafe

PACKAGE = Path(kafkasafe.__file__).parent
EXCEPTIONS = {
    "_core/journal": 0,
    "_core/units": 124,
    "_io/engine": 96,
    "_producing": 3,
}


def foreign_writes(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(function, field) of writes to fields of other objects, and of base classes."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            inherits = any(isinstance(base, ast.Name) for base in node.bases)
            own = declared(node)
            for function in functions(node):
                for field, of_self in written(function):
                    if not of_self or (inherits and field not in own):
                        yield f"{node.name}.{function.name}", field
        elif isinstance(node, ast.FunctionDef):
            for field, _ in written(node):
                yield node.name, field


def functions(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]


def declared(node: ast.ClassDef) -> set[str]:
    """Names in the body of a class, and fields that its own `__init__` makes."""
    own = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    begin = next((each for each in functions(node) if each.name == "__init__"), None)
    return own if begin is None else own | {field for field, of_self in written(begin) if of_self}


def written(function: ast.AST) -> Iterator[tuple[str, bool]]:
    """(field, whether it is one of `self`) of all that a function assigns or deletes."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node.attr, isinstance(node.value, ast.Name) and node.value.id == "self"


@pytest.mark.parametrize("folder", EXCEPTIONS)
def test_a_field_is_written_by_its_own_class(folder):
    found = {
        (path.name, *each)
        for path in sorted((PACKAGE / folder).glob("*.py"))
        for each in foreign_writes(ast.parse(path.read_text(encoding="utf-8")))
    }
    listed = "\n".join(" ".join(each) for each in sorted(found))
    assert len(found) <= EXCEPTIONS[folder], f"more fields are written from outside than before:\n{listed}"
    assert len(found) == EXCEPTIONS[folder], (
        f"fewer are: write {len(found)} into EXCEPTIONS, so that it stays so"
    )


def test_what_counts_as_a_write_from_outside():
    tree = ast.parse(
        """
class Counter:
    total: int
    def __init__(self):
        self.count = 0
    def add(self, other):
        self.count += 1
        other.count = 0
class Part(Counter):
    def reset(self):
        self.count = 0
        self.more.less, self.total = 1, 2
def clear(counter):
    del counter.count
"""
    )
    assert sorted(foreign_writes(tree)) == [
        ("Counter.add", "count"),
        ("Part.reset", "count"),
        ("Part.reset", "less"),
        ("Part.reset", "total"),
        ("clear", "count"),
    ]
