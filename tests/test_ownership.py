"""An object owns its fields: they are written by methods of their class, and by nothing else.

`EXCEPTIONS` counts the fields that are written elsewhere, once for each function that does. The numbers may only fall.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkasafe
from kafkasafe import SafeProducer, _producing, aio
from kafkasafe.cluster.client import Transport
from kafkasafe.cluster.coordinators import Coordinated
from kafkasafe.kafkapython.connect import over_sockets
from kafkasafe.process.one_process import OfOneProcess

PACKAGE = Path(kafkasafe.__file__).parent
EXCEPTIONS = {
    "_consuming": 0,
    "history": 0,
    "journal": 0,
    "maintenance": 0,
    "spool": 2,  # of a function of ctypes
    "spool/lanes": 0,
    "units": 0,
    "delivery": 0,
    "delivery/engine": 0,
    "cluster/client": 0,
    "_producing": 0,
    "aio": 1,  # `left`: the open batch's room and the gate's quota, in the fast path of `send`
    "kafkapython": 39,  # on objects of kafka-python
    "testing": 0,
    "testing/_real": 0,
    "testing/disk": 0,
    "testing/fake": 0,
}


def foreign_writes(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(function, field) of writes to fields of other objects, and of base classes."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            inherits = any(isinstance(base, ast.Name) for base in node.bases)
            own = declared(node)
            for function in functions(node):
                for field, of in written(function):
                    if of != "self" or (inherits and field not in own):
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
    return own if begin is None else own | {field for field, of in written(begin) if of == "self"}


def written(function: ast.AST) -> Iterator[tuple[str, str]]:
    """(field, expression of its object) of all that a function assigns or deletes.

    It may begin an object that it has just made, as a constructor does, and give an error its cause.
    """
    new = {*made(function)}
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            of = ast.unparse(node.value)
            if of not in new and node.attr != "__cause__":
                yield node.attr, of


def made(function: ast.AST) -> Iterator[str]:
    """Variables of a function that have an object of a class that the function calls, or of its own (`cls`)."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if isinstance(node.value, ast.Call) and re.fullmatch(
            r"(\w+\.)*_?[A-Z]\w*|cls", ast.unparse(node.value.func)
        ):
            yield from (each.id for each in targets if isinstance(each, ast.Name))


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


FRIENDS = {
    "_producing/accumulator.py": {"lock._is_owned"},  # CPython's RLock
    "aio/consumer.py": {"consumer._calls"},
    # asyncio's loop: `get_running_loop` makes a system call for each record.
    "aio/producer.py": {"gate.place._thread_id"},
    "aio/record_queue.py": {"self._place._thread_id"},
    "consumer.py": {"consumer._reading"},
    "logging_handler.py": {"each._configs", "handler._begin"},
}
"""By file, the private attributes that its lines with `noqa: SLF001` name.

They are of classes in the same file, or of a library that has no public name for them. kafka-python's privates are in
`kafkapython/`, and those of PySpark in `spark/java.py`: there ruff does not look.
"""
_PRIVATE = re.compile(r"\b[\w.]+\._[a-z]\w*")


def test_few_places_name_a_private_attribute_of_another_object():
    """Ruff forbids the others."""
    found = {
        path.relative_to(PACKAGE).as_posix(): {
            name
            for line in lines
            for name in _PRIVATE.findall(line.partition("#")[0])
            if not re.fullmatch(r"self\.\w+", name)
        }
        for path in sorted(PACKAGE.rglob("*.py"))
        if (
            lines := [
                each for each in path.read_text(encoding="utf-8").splitlines() if "noqa: SLF001" in each
            ]
        )
    }
    assert found == FRIENDS


def private_of_producers(tree: ast.Module) -> Iterator[str]:
    """Expressions that name a private attribute of something called a producer."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr[:1] == "_" and node.attr[:2] != "__":
            _, _, of = f".{ast.unparse(node.value)}".rpartition(".")
            if of.lstrip("_") == "producer":
                yield ast.unparse(node)


@pytest.mark.parametrize(
    "path",
    [
        *(PACKAGE / name for name in ("atomic.py", "transactional.py", "logging_handler.py")),
        *sorted((PACKAGE / "aio").glob("*.py")),
        *sorted((PACKAGE / "_producing").glob("*.py")),
    ],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_what_is_built_on_a_producers_objects_looks_into_no_private_of_the_producer(path):
    """It gets the objects (`SafeProducer.parts`)."""
    assert [*private_of_producers(ast.parse(path.read_text(encoding="utf-8")))] == []


def test_what_counts_as_a_private_of_a_producer():
    tree = ast.parse(
        "producer._pump, self._producer._seal(1), producer.__class__, self._producer, p._producer.send"
    )
    assert [*private_of_producers(tree)] == ["producer._pump", "self._producer._seal"]


def test_a_producer_and_its_objects_have_no_chain_of_base_classes():
    assert SafeProducer.__mro__[1:] == (OfOneProcess, object)
    for each in pkgutil.iter_modules(_producing.__path__):
        module = importlib.import_module(f"kafkasafe._producing.{each.name}")
        for kind in vars(module).values():
            if inspect.isclass(kind) and kind.__module__ == module.__name__:
                assert [base for base in kind.__bases__ if base.__module__.startswith("kafkasafe")] == [], (
                    kind
                )


@pytest.mark.parametrize("kind", [aio.SafeProducer, aio.SafeConsumer])
def test_a_client_for_asyncio_and_its_objects_have_no_chain_of_base_classes(kind):
    assert kind.__mro__[1:] == (OfOneProcess, object)
    for each in pkgutil.iter_modules(aio.__path__):
        module = importlib.import_module(f"kafkasafe.aio.{each.name}")
        for own in vars(module).values():
            if inspect.isclass(own) and own.__module__ == module.__name__:
                assert sum(base.__module__.startswith("kafkasafe") for base in own.__bases__) <= 1, own


def test_a_transport_and_its_objects_have_no_chain_of_base_classes():
    transport = over_sockets({"bootstrap_servers": "127.0.0.1:1"})
    transport.close(60.0)
    assert Transport.__mro__[1:] == (Coordinated, object)
    kinds = {type(each) for each in vars(transport).values() if type(each).__module__.startswith("kafkasafe")}
    assert len(kinds) > 10
    assert {kind.__bases__ for kind in kinds} == {(object,)}


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
    @classmethod
    def of(cls, count):
        counter = cls()
        counter.count = count
class Part(Counter):
    def reset(self):
        self.count = 0
        self.more.less, self.total = 1, 2
def clear(counter):
    del counter.count
def zero(other):
    counter: Counter = Counter()
    counter.count = 0
    other.__cause__ = None
    other.last, other = counter, Counter
"""
    )
    assert sorted(foreign_writes(tree)) == [
        ("Counter.add", "count"),
        ("Part.reset", "count"),
        ("Part.reset", "less"),
        ("Part.reset", "total"),
        ("clear", "count"),
        ("zero", "last"),
    ]
