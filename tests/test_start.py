"""What a program imports that uses a part of kafkasafe: no more than that part needs.

Each case runs in a process of its own, because tests import everything. docs/benchmarks.md has the times.
"""

from __future__ import annotations

import json

import pytest
import typer
from programs import python

import kafkasafe
from kafkasafe import cli

RARE = {
    "asyncio",
    "concurrent.futures",
    "http.server",
    "kafkasafe._consuming",
    "kafkasafe.aio",
    "kafkasafe.classification",
    "kafkasafe.consumer",
    "kafkasafe.metrics",
    "kafkasafe.spark",
    "kafkasafe.testing",
    "kafkasafe.transactional",
    "platformdirs",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "rich",
    "subprocess",
    "tenacity",
    "typer",
    "urllib.request",
}
"""What a producer imports only when it is used."""
ALL = RARE | {"dataclasses", "kafka", "kafkasafe.errors", "kafkasafe.producer", "logging", "numpy"}


def run(program):
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported(program):
    """The modules that a program has imported."""
    return set(
        json.loads(run(f"{program}\nimport json, sys\nprint(json.dumps(list(sys.modules)))").splitlines()[-1])
    )


def test_the_package_alone_imports_nothing():
    assert imported("import kafkasafe; dir(kafkasafe)") & ALL == set()


def test_the_producer_imports_what_it_needs():
    assert imported("from kafkasafe import SafeProducer") & RARE == set()


def test_a_producer_that_was_used_has_imported_no_more(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders")
    found = imported(f"""
from kafkasafe import SafeProducer
with SafeProducer(bootstrap_servers={fake_kafka.bootstrap_servers!r}, spool_dir={str(tmp_path)!r}) as producer:
    assert producer.send("orders", b"one", key=b"key").get(timeout=60).offset == 0
    producer.metrics(), producer.health()
""")
    assert found & RARE == set()


@pytest.mark.parametrize("kind", [None, "gzip", "snappy", "lz4", "zstd"])
def test_a_codec_is_there_before_the_threads_start(fake_kafka, tmp_path, kind):
    fake_kafka.create_topic("orders")
    found = json.loads(
        run(f"""
import json, sys, threading
from kafkasafe import SafeProducer
def start(self, start=threading.Thread.start):
    seen.append("pyarrow" in sys.modules)
    start(self)
seen = []
threading.Thread.start = start
options = dict(bootstrap_servers={fake_kafka.bootstrap_servers!r}, spool_dir={str(tmp_path)!r})
with SafeProducer(**options, compression_type={kind!r}) as producer:
    producer.send("orders", b"one" * 100).get(timeout=60)
print(json.dumps(seen))
""")
    )
    assert found
    assert set(found) == {kind in {"snappy", "lz4", "zstd"}}


def test_errors_are_imported_with_the_client_library_only():
    found = imported("import kafkasafe; kafkasafe.errors.SpoolFullError, kafkasafe.SpoolFullError")
    assert found & (RARE | {"kafkasafe.producer", "numpy"}) == set()


def test_each_name_is_that_of_its_module():
    found = json.loads(
        run("""
import json, kafkasafe
print(json.dumps({name: getattr(kafkasafe, name).__module__ for name in kafkasafe.__all__ if name != "__version__"}))
""")
    )
    assert found.keys() | {"__version__"} == set(kafkasafe.__all__)
    assert all(home.startswith("kafkasafe.") for home in found.values())


def test_a_star_import_and_a_pickle_have_all_names():
    assert (
        run("""
import pickle
from kafkasafe import *
assert SafeProducer.__name__ == "SafeProducer" and SafeConsumer and RetryPolicy
assert pickle.loads(pickle.dumps(SafeProducer)) is SafeProducer
assert pickle.loads(pickle.dumps(SpoolFullError("full"))).args == ("full",)
import kafkasafe
from kafkasafe import cli
assert kafkasafe.SafeProducer is SafeProducer is kafkasafe.producer.SafeProducer
print("ended")
""")
        == "ended\n"
    )


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match="module 'kafkasafe' has no attribute 'SaferProducer'"):
        _ = kafkasafe.SaferProducer
    with pytest.raises(ImportError, match="SaferProducer"):
        from kafkasafe import SaferProducer  # noqa: F401


HELP = {"kafka", "kafkasafe.cli.common", "kafkasafe.errors", "numpy", "rich"} | RARE - {"subprocess", "typer"}


def test_the_help_of_the_command_imports_no_command():
    found = imported("""
import contextlib
from kafkasafe.cli import main
with contextlib.suppress(SystemExit):
    main(["--help"])
""")
    assert found & HELP == set()
    assert {name for name in found if name.startswith("kafkasafe.cli.")} == {
        "kafkasafe.cli.groups",
        "kafkasafe.cli.report",
    }


def test_a_command_imports_no_other():
    found = imported("""
import contextlib
from kafkasafe.cli import main
with contextlib.suppress(SystemExit):
    main(["classify", "59"])
""")
    assert {name for name in found if name.startswith("kafkasafe.cli.")} <= {
        "kafkasafe.cli.classify",
        "kafkasafe.cli.common",
        "kafkasafe.cli.groups",
        "kafkasafe.cli.report",
    }
    assert found & {"prometheus_client", "pyarrow", "pyspark"} == set()


def test_the_help_has_the_words_of_the_commands():
    group = typer.main.get_command(cli.app)
    assert [*group.commands] == [*cli._COMMANDS]
    for name, command in group.commands.items():
        assert command.name == name
        assert " ".join((command.help or "").split("\n\n")[0].split()) == cli._COMMANDS[name]
    assert group.commands.get("doc") is None
