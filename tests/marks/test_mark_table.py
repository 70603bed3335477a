"""The table of marks is complete, and says truly which readers use a mark."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any, Final, get_args

import pytest

from kafkasafe import marks
from kafkasafe.journal import order
from kafkasafe.journal.recovery import Recovery
from kafkasafe.marks import Mark, kinds
from kafkasafe.marks.table import ROWS, Reader
from kafkasafe.spool import examine, steps

READERS: Final[dict[Reader, Callable[..., Any]]] = {
    Reader.JOURNAL: Recovery.recover_marks,
    Reader.ORDER: order.Owed.group,
    Reader.FATES: examine.fates,
    Reader.STEPS: steps._Steps.read,
    Reader.UNDECIDABLE: steps.undecidable_in,
}


def test_each_mark_has_one_row() -> None:
    assert sorted(row.name for row in ROWS) == sorted(kind.__name__.upper() for kind in get_args(Mark))
    assert len({row.key for row in ROWS}) == len(ROWS)
    assert [row.number for row in ROWS] == sorted(row.number for row in ROWS)
    assert all(0x4B00 < row.number < 0x4C00 for row in ROWS)


def test_a_layout_has_the_attributes_of_its_class_in_their_order() -> None:
    for row in ROWS:
        names = [
            name
            for part in row.layout.parts
            for name in ([each.name for each in part.entries] if hasattr(part, "entries") else [part.name])
        ]
        assert names == list(inspect.signature(row.mark).parameters), row.name


def test_all_classes_of_marks_are_public() -> None:
    own = {
        name
        for name, each in vars(kinds).items()
        if isinstance(each, type) and each.__module__ == kinds.__name__
    }
    assert {"Mark", *(name for name in own if not name.startswith("_"))} <= set(marks.__all__)


def named(pattern: ast.pattern) -> set[str]:
    """The classes of a pattern."""
    found = (node.cls for node in ast.walk(pattern) if isinstance(node, ast.MatchClass))
    return {each.attr for each in found if isinstance(each, ast.Attribute)}


def used(reader: Callable[..., Any]) -> tuple[set[str], set[str]]:
    """The marks that a reader uses, and those that it names."""
    source = inspect.getsource(reader)
    tree = ast.parse(source if source.startswith("def") else f"class Reader:\n{source}")
    (match,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Match) and isinstance(node.subject, ast.Name) and node.subject.id == "mark"
    )
    uses = [case for case in match.cases if not all(isinstance(each, ast.Pass) for each in case.body)]
    return (
        {name for case in uses for name in named(case.pattern)},
        {name for case in match.cases for name in named(case.pattern)},
    )


@pytest.mark.parametrize("reader", Reader)
def test_a_reader_names_every_mark_and_uses_those_of_the_table(reader: Reader) -> None:
    uses, names = used(READERS[reader])
    marked = {kind.__name__ for kind in get_args(Mark)}
    assert {name for name in uses if name in marked} == {
        row.mark.__name__ for row in ROWS if reader in row.readers
    }
    assert marked <= names
