"""An object owns its fields: they are written by methods of their class, and by nothing else.

`EXCEPTIONS` names all fields of the package that are written elsewhere, each with its reason. `OF_KAFKA_PYTHON` counts
the fields of kafka-python's objects that `kafkapython/` writes. Both may only become fewer.
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
from kafkasafe.kafkapython.connect import over_sockets
from kafkasafe.process.one_process import OfOneProcess

PACKAGE = Path(kafkasafe.__file__).parent
EXCEPTIONS = {
    # The fast paths of `send` call as few functions as possible.
    "producer.py SafeProducer.send left": "room in the open batch",
    "atomic.py AtomicBatch.send left": "room in the open batch",
    "aio/producer.py SafeProducer.send left": "room in the open batch, and the gate's quota",
    # Of a thread. Ctrl-C may raise when a function begins, so in `finally` there is no call.
    "cluster/at_once.py at_once wakes": "of an object of `threading.local`",
    "logs.py apart is_apart": "of an object of `threading.local`",
    # Objects of other libraries, which have no method for it.
    "cli/__init__.py _OnUse.__getitem__ name": "of a command that typer has just made",
    "cluster/inquiry.py coded errno": "of an error that kafka-python has just made",
    "logs.py _Apart.filter args": "of a record of `logging`, whose filters may change it",
    "logs.py _Apart.filter msg": "of a record of `logging`, whose filters may change it",
    "retry.py _Call._note __notes__": "of a user's exception: Python can add a note, but not remove one",
    "spool/files.py _load_fallocate argtypes": "of a function that ctypes has just made",
    "spool/files.py _load_fallocate restype": "of a function that ctypes has just made",
    # Of a class, when it is made public.
    "testing/_real/values.py module __module__": "pickles and the documentation name the public module",
    # Programs may set it as well.
    "metrics.py install partitions": "a documented attribute of `Collector`",
}
OF_KAFKA_PYTHON = 39


def foreign_writes(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(function, field) of writes to fields of other objects, and of base classes."""
    for node in tree.body:
        yield from foreign_writes_of(node)


def foreign_writes_of(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """The same for one statement of a module or of a class."""
    match node:
        case ast.ClassDef():
            inherits = any(isinstance(base, ast.Name) for base in node.bases)
            own = {*declared(node), "__class__"}
            for each in node.body:
                if not isinstance(each, FUNCTIONS):
                    yield from ((f"{node.name}.{name}", field) for name, field in foreign_writes_of(each))
                    continue
                for field, of in written(each):
                    if of not in {"self", node.name} or (inherits and field not in own):
                        yield f"{node.name}.{each.name}", field
        case ast.If() | ast.Try() | ast.With():  # a class or a function may be defined inside
            handlers = node.handlers if isinstance(node, ast.Try) else []
            for inner in ast.iter_child_nodes(node):
                if isinstance(inner, ast.stmt):
                    yield from foreign_writes_of(inner)
            for handler in handlers:
                for inner in handler.body:
                    yield from foreign_writes_of(inner)
        case _:
            yield from ((getattr(node, "name", "module"), field) for field, _ in written(node))


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def declared(node: ast.ClassDef) -> set[str]:
    """Names in the body of a class, and fields that its own `__init__` makes."""
    own = set()
    for each in node.body:
        match each:
            case ast.AnnAssign(target=ast.Name(name)):
                own.add(name)
            case ast.Assign():
                own |= {target.id for target in each.targets if isinstance(target, ast.Name)}
            case ast.FunctionDef(name="__init__"):
                own |= {field for field, of in written(each) if of == "self"}
    return own


def written(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(field, expression of its object) of all that a function or a statement assigns or deletes.

    It may begin an object that it has just made, as a constructor does, and give an error its cause.
    """
    new = made(node)
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, (ast.Store, ast.Del)):
            of = ast.unparse(each.value)
            if of not in new and each.attr != "__cause__":
                yield each.attr, of


def made(node: ast.AST) -> set[str]:
    """Variables of a function that have nothing but objects that it makes: of a class that it calls, of its own class
    (`cls`, `super().__new__`), or functions inside it.
    """
    new, other = set(), set()
    for each in ast.walk(node):
        match each:
            case ast.Assign(targets=targets, value=value):
                (new if is_new(value) else other).update(*map(names_in, targets))
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                (new if is_new(value) else other).update(names_in(target))
            case ast.NamedExpr(target=target) | ast.For(target=target) | ast.comprehension(target=target):
                other |= names_in(target)
            case ast.arg(arg=name):
                other.add(name)
            case ast.FunctionDef(name=name) if each is not node:
                new.add(name)
    return new - other


def is_new(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and bool(
        re.fullmatch(r"(\w+\.)*_?[A-Z]\w*|cls|super\(\)\.__new__", ast.unparse(value.func))
    )


def names_in(target: ast.expr) -> set[str]:
    return {
        each.id for each in ast.walk(target) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }


@pytest.fixture(scope="module")
def found() -> set[str]:
    return {
        " ".join((path.relative_to(PACKAGE).as_posix(), *each))
        for path in sorted(PACKAGE.rglob("*.py"))
        for each in foreign_writes(ast.parse(path.read_text(encoding="utf-8")))
    }


def test_a_field_is_written_by_its_own_class(found):
    elsewhere = {each for each in found if not each.startswith("kafkapython/")}
    assert elsewhere - {*EXCEPTIONS} == set(), "more fields are written from outside than before"
    assert {*EXCEPTIONS} - elsewhere == set(), (
        "these are not: remove them from EXCEPTIONS, so that it stays so"
    )


def test_few_fields_of_kafka_pythons_objects_are_written(found):
    elsewhere = sorted(each for each in found if each.startswith("kafkapython/"))
    assert len(elsewhere) == OF_KAFKA_PYTHON, "\n".join(elsewhere)


FRIENDS = {
    "_producing/accumulator.py": {"lock._is_owned"},  # CPython's RLock
    "aio/consumer.py": {"consumer._calls"},
    # asyncio's loop: `get_running_loop` makes a system call for each record.
    "aio/producer.py": {"gate.place._thread_id"},
    "aio/record_queue.py": {"self._place._thread_id"},
    "consumer.py": {"consumer._objects"},
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
    assert Transport.__mro__[1:] == (object,)
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
        Counter.total = 1
        other.count = 0
    @classmethod
    def of(cls, count):
        counter = cls()
        counter.count = count
    class Inner:
        def add(self, other):
            self.count, other.inner = 0, 0
class Part(Counter):
    more = None
    def __new__(cls):
        part = super().__new__(cls)
        part.count = 1
    def reset(self):
        self.count = 0
        self.more.less, self.total, self.more, self.__class__ = 1, 2, 3, Counter
def clear(counter):
    del counter.count
def zero(other):
    counter: Counter = Counter()
    counter.count = 0
    other.__cause__ = None
    other.last, other = counter, Counter
def find(counters):
    for first in counters:
        first.found = True
    counter = counters.get(1)
    if counter is None:
        counter = Counter()
    counter.kept = 0
    def inside():
        counter.deep = 0
    inside.called = True
if True:
    async def later(counter):
        counter.late = 0
try:
    pass
except ImportError:
    class Other(Counter):
        def reset(self):
            self.count = 0
re.maximum = 1
"""
    )
    assert sorted(foreign_writes(tree)) == [
        ("Counter.Inner.add", "inner"),
        ("Counter.add", "count"),
        ("Other.reset", "count"),
        ("Part.reset", "count"),
        ("Part.reset", "less"),
        ("Part.reset", "total"),
        ("clear", "count"),
        ("find", "deep"),
        ("find", "found"),
        ("find", "kept"),
        ("later", "late"),
        ("module", "maximum"),
        ("zero", "last"),
    ]
