"""The lists of `tiers.py` name what there is."""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import outside
import pytest
import tiers
from purity import is_pure_module
from waiting import until

HERE = Path(__file__).parent


@pytest.mark.parametrize("module", tiers.WORTH_IT)
def test_what_is_named_fast_is_there(module):
    source = (HERE / module).read_text()
    assert [name for name in tiers.WORTH_IT[module] if f"def {name}(" not in source] == []


@pytest.mark.parametrize("name", tiers.FULL_VARIANTS)
def test_a_test_with_full_variants_is_there(name):
    module, _, function = name.partition("::")
    assert f"def {function}(" in (HERE / module).read_text()


def test_other_variants_of_a_test_are_fast():
    module, function = "spool/test_crash.py", "test_every_crash_recovers_to_what_was_promised"
    fast = [tiers.is_fast(module, function, set(), variant) for variant in ("0", "1")]
    assert fast == [False, True]


@pytest.mark.parametrize(
    ("module", "function", "marks", "fast"),
    [
        ("record/test_batch.py", "test_x", set(), True),
        ("producer/test_lanes.py", "test_x", {"kafka", "crash"}, False),
        ("consumer/test_drop_in.py", "test_x", {"kafka"}, True),
        ("producer/test_kill.py", "test_nothing_is_lost_by_killing_the_process_a_few_times", {"kafka"}, True),
        ("producer/test_kill.py", "test_x", {"kafka", "crash"}, False),
        ("dashboard/test_dashboard.py", "test_x", set(), False),
        ("record/test_batch.py", "test_x", {"full"}, False),
    ],
)
def test_a_test_is_fast_by_rule(module, function, marks, fast):
    assert tiers.is_fast(module, function, marks) is fast


# -- quick tests -------------------------------------------------------------------------------------------------------

FOLDERS = [folder for folder in HERE.iterdir() if folder.is_dir()]
IMPURE = re.compile(
    r"(kafkasafe|kafka|aiokafka|confluent_kafka|pyspark|socket|subprocess|threading|asyncio)(\..+)?"
)


@functools.cache
def imports(path):
    """Names of modules, and of what is imported from them, in one file; and the helpers among them."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            # Not classes, whose module is named: a module begins with a small letter.
            members = [alias.name for alias in node.names if not alias.name[:1].isupper()]
            names |= {module, *(f"{module}.{member}".lstrip(".") for member in members)}
    helpers = set()
    for name in names - {""}:
        parts = name.removeprefix("tests.").split(".")
        places = (folder.joinpath(*parts).with_suffix(".py") for folder in (path.parent, HERE, *FOLDERS))
        helpers.update(itertools.islice(filter(Path.is_file, places), 1))
    return names, helpers


def imported(path):
    """The names that a test module imports, directly or by way of helpers of the tests."""
    names, seen, queue = set(), set(), [path]
    while queue:
        path = queue.pop()
        if path not in seen:
            seen.add(path)
            found, helpers = imports(path)
            names |= found
            queue += helpers
    return names


def is_only_a_folder(name):
    """`kafkasafe`, or a package of it that imports nothing itself: `from kafkasafe.spool import steps` names both."""
    init = HERE.parent / name.replace(".", "/") / "__init__.py"
    return name == "kafkasafe" or (
        init.exists() and len(ast.parse(init.read_text(encoding="utf-8")).body) == 1
    )


def is_pure(path):
    """Whether a test module reaches nothing of the product but pure modules, and nothing of the operating system."""
    names = {name for name in imported(path) if IMPURE.fullmatch(name) and not is_pure_module(name)}
    return not [name for name in names if not is_only_a_folder(name)]


def test_each_pure_module_is_quick():
    """A new folder of pure tests belongs in `QUICK`; a slow module in `NOT_QUICK`."""
    modules = {path.relative_to(HERE).as_posix(): path for path in HERE.rglob("test_*.py")}
    pure = {name for name, path in modules.items() if is_pure(path)}
    assert len(pure) > 25
    assert sorted(pure - {*tiers.quick_modules(), *tiers.NOT_QUICK}) == []


def test_what_counts_as_pure():
    assert is_pure(HERE / "units" / "test_units_groups.py")  # by way of test_units.py
    assert not is_pure(HERE / "simulation" / "test_found.py")  # storm.py runs the engine
    assert not is_pure(HERE / "producer" / "test_send.py")


@pytest.mark.parametrize("table", [tiers.QUICK, tiers.NOT_QUICK], ids=["QUICK", "NOT_QUICK"])
def test_what_is_named_quick_exists(table):
    for name, functions in table.items():
        if name.endswith("/"):
            assert list((HERE / name).glob("test_*.py"))
            continue
        source = (HERE / name).read_text(encoding="utf-8")
        assert [each for each in functions if f"def {each}(" not in source] == []


@pytest.mark.parametrize(
    ("module", "function", "marks", "quick"),
    [
        ("record/test_batch.py", "test_x", set(), True),
        ("record/test_batch.py", "test_x", {"real"}, False),
        ("codes/test_classify.py", "test_x", set(), False),
        ("tapes/test_tapes.py", "test_a_whole_tape_is_decided_as_before", set(), True),
        ("tapes/test_tapes.py", "test_x", set(), False),
        ("producer/test_send.py", "test_x", set(), False),
    ],
)
def test_a_test_is_quick_by_the_lists(module, function, marks, quick):
    assert tiers.is_quick(module, function, marks) is quick


def test_a_quick_test_connects_to_nothing():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with pytest.raises(AssertionError, match="NOT_QUICK"), outside.nothing_outside(connections=False):
            socket.create_connection(address, 60)


# -- fast tests --------------------------------------------------------------------------------------------------------


def test_a_fast_test_does_not_sleep():
    with pytest.raises(AssertionError, match="wait for a condition"):
        time.sleep(0)


def product_sleeps(seconds):
    """As a function of the package does."""
    code = compile("time.sleep(seconds)", str(HERE.parent / "kafkasafe" / "some.py"), "exec")
    exec(code, {"time": time, "seconds": seconds})


def test_the_product_may_sleep_for_a_moment():
    """Whether flush() comes when a record is on its way between two places, or a lock is held, is luck."""
    for seconds in (0, 0.02):
        product_sleeps(seconds)
    with pytest.raises(AssertionError, match="wait for a condition"):
        product_sleeps(0.2)


def test_a_fast_test_talks_to_its_own_process():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 60):
        pass


@pytest.mark.parametrize("apart", [False, True], ids=["its thread", "a thread it starts"])
@pytest.mark.parametrize("method", ["connect", "connect_ex"])
def test_a_fast_test_talks_to_no_other_process(method, apart):
    serve = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", serve], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as stranger:
        address = ("127.0.0.1", int(stranger.stdout.readline()))
        outside._servers.discard(address[1])  # an earlier test's server may have had that port

        def knock_there():
            # A client takes what is raised here for a connection that failed, and says nothing.
            with socket.socket() as sock, contextlib.suppress(AssertionError):
                getattr(sock, method)(address)

        def knock():
            if not apart:
                return knock_there()
            thread = threading.Thread(target=knock_there)
            thread.start()
            return thread.join(60)

        with pytest.raises(AssertionError, match="not of this process"), outside.nothing_outside():
            knock()
        stranger.communicate("")


@pytest.mark.real
def test_a_real_test_may_sleep():
    time.sleep(0)


def test_waiting_gives_up_and_says_for_what():
    with pytest.raises(AssertionError, match="rain"):
        until(lambda: False, 0.05, "rain")


@pytest.mark.parametrize(
    ("marks", "real"), [({"kafka"}, True), ({"real"}, True), ({"full"}, True), ({"timeout"}, False)]
)
def test_what_may_leave_the_process(marks, real):
    assert tiers.is_real(marks) is real
