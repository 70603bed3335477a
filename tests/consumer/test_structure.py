"""How the decisions of a consumer are put together: objects that are given to each other, and one port to kafka-python."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kafkasafe import _consuming
from kafkasafe.kafkapython import adapter

FOLDER = Path(_consuming.__file__).parent
MODULES = sorted(FOLDER.glob("*.py"))
KAFKA_PYTHONS = {"_subscription", "_fetcher", "_coordinator", "_manager", "_awaiting_validation"}


def names(path):
    """Attributes that a module reads or writes, of any object."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_the_adapter_alone_names_kafka_pythons_parts():
    assert names(Path(adapter.__file__)) >= KAFKA_PYTHONS
    assert {(path.name, name) for path in MODULES for name in names(path) & KAFKA_PYTHONS} == set()


def classes():
    return [
        (path.name, node)
        for path in MODULES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]


@pytest.mark.parametrize(("module", "node"), [pytest.param(*each, id=each[1].name) for each in classes()])
def test_no_class_is_a_part_of_another_one(module, node):
    ours = {each.name for _, each in classes()}
    assert [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in ours] == []


def imported(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.module.rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kafkasafe._consuming.")
    }


def test_modules_know_each_other_in_one_direction():
    """Imports of types count, too."""
    left = {path.stem: imported(path) for path in MODULES}
    assert left["objects"] > {"parts", "positions", "results"}
    while free := {name for name, known in left.items() if not known & left.keys()}:
        for name in free:
            del left[name]
    assert left == {}, "these import each other in a circle"
