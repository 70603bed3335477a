"""Private names of kafka-python are used in `kafkasafe/kafkapython` only. Here they are all attributes with an underscore.

The releases of kafka-python that have these names are the only ones that `import kafkasafe` accepts.
"""

from __future__ import annotations

import ast
import functools
import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import kafka
import pytest

import kafkasafe
from kafkasafe import _kafka_version
from kafkasafe.kafkapython.consumer import ExtendedConsumer
from kafkasafe.kafkapython.private_fields import FIELDS

PACKAGE = Path(kafkasafe.__file__).parent
ADAPTERS = PACKAGE / "kafkapython"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if ADAPTERS not in path.parents)

FRIENDS = {
    "logging_handler.py": {"_lock"},  # of the module logging
}
"""Private names of other objects which kafka-python's objects have, too."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def declared(tree: ast.AST) -> set[str]:
    """Private names that classes give their instances: fields, methods, slots."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name("self"), attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(name)):
                names.add(name)
            case ast.Assign(targets=[ast.Name("__slots__")], value=ast.Tuple(elts=slots)):
                names.update(slot.value for slot in slots if isinstance(slot, ast.Constant))
    return {name for name in names if is_private(name)}


def used(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(object, name) of each private attribute, and of each one that `getattr` and its like name."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if is_private(name):
                yield ast.unparse(value), name
            case ast.Call(
                func=ast.Name("getattr" | "hasattr" | "setattr" | "delattr"),
                args=[value, ast.Constant(str(name)), *_],
            ) if is_private(name):
                yield ast.unparse(value), name


@functools.cache
def of_kafka_python() -> set[str]:
    """kafka-python's private names."""
    paths = Path(kafka.__file__).parent.rglob("*.py")
    return set().union(*(declared(parsed(path)) for path in paths if "vendor" not in path.parts))


@functools.cache
def of_kafkasafe() -> set[str]:
    """Private names of all modules but the adapters."""
    return set().union(*(declared(parsed(path)) for path in MODULES))


def heirs(tree: ast.Module) -> list[ast.ClassDef]:
    """Classes that extend one of kafka-python's or of `kafkapython`'s, and so have private fields of kafka-python."""
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith(("kafkasafe.kafkapython", "kafka."))
        )
        or (isinstance(node, ast.ImportFrom) and node.module == "kafka")
        for alias in node.names
    }
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id in imported for base in node.bases)
    ]


def foreign(tree: ast.Module, ours: set[str]) -> set[str]:
    """Uses of kafka-python's private names. A name is ours if the module declares it; of `self`, if any of ours does."""
    here = declared(tree)
    found = {
        f"{of}.{name}"
        for of, name in used(tree)
        if name in of_kafka_python() and name not in (ours if of == "self" else here)
    }
    for node in heirs(tree):
        methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        found |= {
            f"{of}.{name}"
            for of, name in used(node)
            if of == "self" and name in of_kafka_python() and name not in methods
        }
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_private_names_of_kafka_python_are_used_by_its_adapters_only(path):
    friends = FRIENDS.get(path.relative_to(PACKAGE).as_posix(), set())
    found = foreign(parsed(path), of_kafkasafe())
    assert {each for each in found if each.rpartition(".")[2] not in friends} == set()
    assert {each.rpartition(".")[2] for each in found} >= friends, "FRIENDS names more than the module uses"


def test_the_adapters_use_private_names_of_kafka_python():
    found = set().union(*({name for _, name in used(parsed(path))} for path in ADAPTERS.glob("*.py")))
    assert found & of_kafka_python() >= {
        "_awaiting_validation",
        "_coordinator",
        "_generation",
        "_io_thread",
        "_manager",
    }


def test_what_counts_as_a_private_name_of_kafka_python():
    tree = ast.parse(
        """
from kafka import KafkaConsumer
class Reader(KafkaConsumer):
    def read(self):
        self._iterator = None
        return self._own(), self.poll()
    def _own(self):
        return getattr(self, "_fetcher", None)
class Other:
    def __init__(self, consumer):
        self._closed = consumer._subscription
        self._of_a_base_class, self._manager
def look(other):
    return other._closed, other._generation
"""
    )
    assert foreign(tree, declared(tree)) == {
        "consumer._subscription",
        "other._generation",
        "self._fetcher",
        "self._iterator",
        "self._manager",
    }
    assert "self._manager" not in foreign(tree, {"_manager"})


def installed(folder: Path, version: str) -> str:
    """A folder for PYTHONPATH, with a kafka-python that has a version and nothing else."""
    package = folder / "kafka"
    package.mkdir()
    (package / "__init__.py").write_text(
        "raise RuntimeError('kafka-python was imported')\n", encoding="utf-8"
    )
    (package / "version.py").write_text(f"__version__ = '{version}'\n", encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize(
    "version", ["1.4.7", "2.0.2", "2.3.3", "3.0.8", "3.1.0.dev", "3.1.0rc1", "3.1", "4.0.0"]
)
@pytest.mark.parametrize("module", ["kafkasafe", "kafkasafe.aio", "kafkasafe.cli"])
def test_a_release_that_does_not_work_is_refused_at_import(tmp_path, monkeypatch, version, module):
    monkeypatch.syspath_prepend(installed(tmp_path, version))
    for name in [name for name in sys.modules if name.partition(".")[0] in {"kafka", "kafkasafe"}]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError) as raised:
        importlib.import_module(module)
    assert f"{tmp_path / 'kafka'} has version {version}." in str(raised.value)
    assert f"pip install '{requirement()}'" in str(raised.value)
    assert raised.value.name == "kafka"


@pytest.mark.parametrize("version", ["3.0.9", "3.0.12", "3.0.13rc1", "3.0.99"])
def test_a_release_that_works_is_not_imported_to_find_its_version(tmp_path, monkeypatch, version):
    monkeypatch.syspath_prepend(installed(tmp_path, version))
    monkeypatch.delitem(sys.modules, "kafka")
    _kafka_version.check()


def test_a_kafka_python_without_a_version_is_accepted(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(installed(tmp_path, ""))
    monkeypatch.delitem(sys.modules, "kafka")
    _kafka_version.check()
    (tmp_path / "kafka" / "version.py").unlink()
    _kafka_version.check()
    monkeypatch.setitem(sys.modules, "kafka", ModuleType("kafka"))
    _kafka_version.check()


@pytest.mark.parametrize("level", ["-O", "-OO"])
def test_python_without_asserts_is_refused_because_kafka_python_needs_them(level):
    """The first half fails once kafka-python works with -O. Then kafkasafe need not refuse it."""
    decode = (
        "import io; from kafka.protocol.schemas.fields.codecs.tagged_fields import TaggedFields as T;"
        "data = io.BytesIO(b'\\0'); T.decode_empty(data); print(data.tell())"
    )
    for options, read in ((["-c"], "1"), ([level, "-c"], "0")):
        done = subprocess.run([sys.executable, *options, decode], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == read
    done = subprocess.run(
        [sys.executable, level, "-c", "import kafkasafe"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ImportError: kafkasafe does not work under python -O" in done.stderr


def consumer_without(kind: str, name: str) -> ExtendedConsumer:
    """A consumer whose objects have all fields but this one."""
    consumer = object.__new__(ExtendedConsumer)
    parts = {
        "KafkaConsumer": consumer,
        "Fetcher": SimpleNamespace(),
        "ConsumerCoordinator": SimpleNamespace(),
        "SubscriptionState": SimpleNamespace(),
    }
    for each, part in parts.items():
        for field in FIELDS[each]:
            setattr(part, field, None)
    consumer._fetcher, consumer._coordinator = parts["Fetcher"], parts["ConsumerCoordinator"]
    consumer._subscription = parts["SubscriptionState"]
    delattr(parts[kind], name)
    return consumer


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in FIELDS.items() for name in names])
def test_a_field_of_a_consumer_that_a_release_has_renamed_is_named(kind, name):
    consumer = consumer_without(kind, name)
    with pytest.raises(
        ImportError, match=rf"it has no {kind}\.{name}\. Install .* 'kafka-python==3"
    ) as raised:
        consumer._port()
    assert kafka.__version__ in str(raised.value)
    assert raised.value.name == "kafka"


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("consumer", "KafkaConsumer"),
        ("fetcher", "Fetcher"),
        ("coordinator", "ConsumerCoordinator"),
        ("subscription", "SubscriptionState"),
    ],
)
def test_the_fields_that_are_looked_for_are_those_that_are_used(module, kind):
    """The module extends the class of this name, and calls its object `self` or `me`."""
    tree = parsed(ADAPTERS / f"{module}.py")
    ours = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for name in (
            *(each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)),
            *(
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign) and each.value is not None
            ),
        )
    }
    names = {name for of, name in used(tree) if of in {"self", "me"} and name in of_kafka_python()} - ours
    assert names <= {*FIELDS[kind]}
    text = "".join(path.read_text() for path in ADAPTERS.glob("*.py") if path.stem != "private_fields")
    assert [name for name in FIELDS[kind] if f".{name}" not in text and f"    {name}: " not in text] == []


def requirement() -> str:
    oldest, without = (
        ".".join(map(str, each)) for each in (_kafka_version.OLDEST, _kafka_version.FIRST_WITHOUT)
    )
    return f"kafka-python>={oldest},<{without}"


def test_the_requirement_is_the_range_that_works():
    root = PACKAGE.parent
    with (root / "pyproject.toml").open("rb") as file:
        assert requirement() in tomllib.load(file)["project"]["dependencies"]
    oldest = ".".join(map(str, _kafka_version.OLDEST))
    assert f"kafka-python=={oldest}" in (root / "Makefile").read_text(encoding="utf-8")
    bounds = requirement().removeprefix("kafka-python")
    for page in ("README.md", "docs/migrating-from-kafka-python.md", "docs/public-api.md"):
        assert bounds in (root / page).read_text(encoding="utf-8"), page
