"""Code reads each option: a row of the table whose field no code names would change nothing."""

from __future__ import annotations

import ast
import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest

import kafkasafe
from kafkasafe.config import table
from kafkasafe.config.names import WITHOUT_EFFECT
from kafkasafe.kafkapython.loop import Loop
from kafkasafe.kafkapython.manager import DirectManager
from kafkasafe.spark.options import ReadOptions
from kafkasafe.spark.sink_options import SinkOptions

PACKAGE = Path(kafkasafe.__file__).parent
MAKERS: dict[type[Any], str] = {
    table.ProducerConfig: "validate",
    table.ConsumerConfig: "validate_consumer",
    ReadOptions: "read_options",
    SinkOptions: "sink_options",
}
UNREAD = {table.ProducerConfig: {"idempotent"}}  # its check refuses everything except True


class Names:
    """Which names a module annotates, assigns and reads. Of an expression like `a.b`, only `b` counts.

    Attributes:
        annotated: (name, annotation) of parameters, variables and fields.
        assigned: (name, what is assigned to it).
        read: (attribute, what it is read from).
        keys: Texts, which may be the keys of a dict.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.annotated: set[tuple[str, str]] = set()
        self.assigned: set[tuple[str, str]] = set()
        self.read: set[tuple[str, str]] = set()
        self.keys: set[str] = set()
        for node in ast.walk(tree):
            match node:
                case ast.arg(arg=name, annotation=ast.Name(id=kind)):
                    self.annotated.add((name, kind))
                case ast.AnnAssign(target=target, annotation=ast.Name(id=kind)):
                    self.annotated.add((last_name(target), kind))
                case ast.Assign(targets=targets, value=value):
                    self.assigned |= {(last_name(target), last_name(value)) for target in targets}
                case ast.Attribute(attr=name, value=value, ctx=ast.Load()):
                    self.read.add((name, last_name(value)))
                case ast.Constant(value=str(text)):
                    self.keys.add(text)


def last_name(node: ast.AST) -> str:
    """`b` of `b` and of `a.b`, and `b()` of its call."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Call(func=function):
            return f"{last_name(function)}()"
    return ""


@functools.cache
def modules_of_package() -> dict[str, Names]:
    return {
        path.relative_to(PACKAGE).as_posix(): Names(ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name != "config"
    }


def holders(modules: list[Names], kind: str, maker: str) -> set[str]:
    """Names that hold a configuration of this class."""
    annotated = {name for module in modules for name, of in module.annotated if of == kind}
    found, more = {f"{maker}()"}, annotated
    while more - found:
        found |= more
        more = {name for module in modules for name, value in module.assigned if value in found and name}
    return found


def reads(modules: list[Names], kind: str, maker: str) -> set[str]:
    """The fields of a configuration that code reads."""
    known = holders(modules, kind, maker)
    return {name for module in modules for name, value in module.read if value in known}


@pytest.mark.parametrize("kind", MAKERS)
def test_code_reads_each_option(kind):
    found = reads([*modules_of_package().values()], kind.__name__, MAKERS[kind])
    unread = {each.name for each in dataclasses.fields(kind)} - found
    assert unread == UNREAD.get(kind, set()), "no code reads these options: they have no effect"


def test_no_name_holds_the_configurations_of_both_clients():
    """Otherwise a producer's option would count as read where a consumer's is."""
    producer, consumer = (
        holders([*modules_of_package().values()], kind.__name__, MAKERS[kind])
        for kind in (table.ProducerConfig, table.ConsumerConfig)
    )
    assert "_config" in producer
    assert "_safe" in consumer
    assert not producer & consumer


def test_code_reads_each_option_of_kafka_producer():
    """It is a row, it is documented as without effect, or the code of the connections reads it."""
    rows = {row.name for row in table.PRODUCER.values()}
    ours = (
        names.keys
        for path, names in modules_of_package().items()
        if path.startswith(("kafkapython/", "cluster/"))
    )
    of_connections = {*DirectManager.DEFAULT_CONFIG, *Loop.DEFAULT_CONFIG}.union(*ours)
    unread = table.KAFKA_DEFAULTS.keys() - rows - WITHOUT_EFFECT.keys() - of_connections
    assert unread == {"retries"}  # `SafeProducer` logs that it has no effect


def test_what_counts_as_a_read():
    names = Names(
        ast.parse(
            """
class Pump:
    config: ProducerConfig
    def __init__(self, given: ProducerConfig, other):
        self._given = given
        self._given.written = other.foreign
    def run(self, parts):
        safe = self._given
        return safe.one, parts._given.two, validate({}).three, self.config.four
"""
        )
    )
    assert reads([names], "ProducerConfig", "validate") == {"one", "two", "three", "four"}
