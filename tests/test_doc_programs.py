"""The Python of the pages in docs/ runs, in order, each page as one program: what it says of the outcome is so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import certifi
import pytest
import reader
import yaml

from kafkasafe import config
from kafkasafe.testing.fake import FakeCluster

DOCS = reader.ROOT / "docs"


@dataclass(frozen=True)
class Page:
    """What a page's program needs, and what is true after it."""

    topics: tuple[str, ...] = ()
    before: str = ""
    """What the text says that the reader has."""
    after: str = ""
    coroutine: bool = False


PAGES = {
    "aio.md": Page(
        topics=("orders", "invoices", "audit"),
        after="assert (metadata.topic, metadata.offset) == ('orders', 0), metadata\n"
        "assert batch.outcome.result().records == 2, batch.outcome\n",
        coroutine=True,
    ),
    "consumer.md": Page(
        topics=("orders",),
        before="from kafkasafe import SafeProducer\n"
        "with SafeProducer(bootstrap_servers='localhost:9092', spool_dir='spool') as producer:\n"
        "    producer.send('orders', b'order 1').get(timeout=30)\n",
        after="assert record.value == b'order 1', record\n",
    ),
    "errors.md": Page(
        after="assert not verdict.data_at_risk\nassert verdict.action.name == 'RESET_SEQUENCE'\n"
    ),
    "events.md": Page(
        topics=("orders",),
        after="assert producer.send('orders', b'one').get(timeout=30).offset == 0\nproducer.close()\n",
    ),
    "index.md": Page(topics=("orders",), after="assert metadata.offset == 0, metadata\n"),
    "logging-handler.md": Page(
        topics=("logs",), after="logging.getLogger('shop').warning('closed')\nlogging.shutdown()\n"
    ),
    "migrating-from-aiokafka.md": Page(
        topics=("orders",), after="assert metadata.offset == 0, metadata\n", coroutine=True
    ),
    "migrating-from-confluent-kafka.md": Page(topics=("orders",), after="assert future.get().offset == 1\n"),
    "migrating-from-kafka-python.md": Page(topics=("orders",), after="assert future.get().offset == 0\n"),
    "operations.md": Page(
        after="from types import SimpleNamespace\n"
        "import asyncio\n"
        "producer.close(timeout=5)\n"
        "async def probe():\n"
        "    async with lifespan(app):\n"
        "        response = Response()\n"
        "        answer = await readyz(SimpleNamespace(app=app), response)\n"
        "        assert (answer['ready'], response.status_code) == (True, 200), answer\n"
        "asyncio.run(probe())\n"
    ),
    "options.md": Page(
        topics=("orders", "orders.rejected"),
        after="to_topic(topic='orders', partition=0, key=None, value=b'large', headers=[], timestamp_ms=0, error='10')\n"
        "producer.close()\nletters.close()\n",
    ),
    "outbox.md": Page(
        topics=("orders",),
        before="from types import SimpleNamespace\n"
        "from kafkasafe import SafeProducer\n"
        "producer = SafeProducer(bootstrap_servers='localhost:9092', spool_dir='spool')\n"
        "rows, order, event = [], 'order 1', b'order 1'\n"
        "orders = SimpleNamespace(insert=rows.append)\n"
        "table = [SimpleNamespace(id=7, topic='orders', key=b'k', payload=b'order 2')]\n"
        "outbox = SimpleNamespace(unsent=lambda: list(table), delete=table.remove)\n",
        after="producer.close()\nassert rows == ['order 1'] and table == [], (rows, table)\n",
    ),
    "processes.md": Page(
        topics=("orders",),
        after="assert producer() is producer()\nassert producer().send('orders', b'one').get(timeout=30).offset == 0\n",
    ),
}
ARRIVED = {
    ("aio.md", "invoices"): [b"invoice: ..."],
    ("aio.md", "audit"): [b"billed"],
    ("events.md", "orders"): [b"one"],
    ("index.md", "orders"): [b'{"order": 1}'],
    ("migrating-from-aiokafka.md", "orders"): [b"one"],
    ("migrating-from-confluent-kafka.md", "orders"): [b"one", b"one"],
    ("migrating-from-kafka-python.md", "orders"): [b"one"],
    ("options.md", "orders.rejected"): [b"large"],
    ("outbox.md", "orders"): [b"order 1", b"order 2"],
    ("processes.md", "orders"): [b"one"],
}
REAL = {"testing.md", "testing-faults.md"}
"""On real brokers: below."""
ELSEWHERE = re.compile(r"spark.*\.md|staged\.md|epochs\.md")
"""spark/test_docs.py, test_guides.py"""

RUN = """\
import ast, asyncio, sys
names = {{"__name__": "__main__"}}
code = compile({program!r}, {page!r}, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
asyncio.run(eval(code, names))
"""


def with_code() -> list[Path]:
    return [page for page in sorted(DOCS.glob("*.md")) if reader.blocks(page)]


def test_every_block_is_run_or_says_why_not() -> None:
    pages = [page for page in with_code() if not ELSEWHERE.fullmatch(page.name)]
    assert len(pages) > 8
    for page in (*pages, reader.ROOT / "README.md"):
        for language, text, reason in reader.blocks(page):
            assert language in {"python", "console", "toml", "yaml", ""}, (page, text)
            if language == "console":
                assert reason, (page, text)
        if reader.programs(page):
            assert page.name in PAGES.keys() | REAL | {"README.md"}, page
    assert all(reader.programs(DOCS / name) for name in PAGES.keys() | REAL)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return reader.give(tmp_path)


@pytest.mark.real
@pytest.mark.parametrize("name", PAGES)
def test_the_programs_of_a_page_run_one_after_the_other(
    name: str, directory: Path, fake_kafka: FakeCluster
) -> None:
    page = PAGES[name]
    for topic in page.topics:
        fake_kafka.create_topic(topic, partitions=1)
    program = "\n".join([page.before, *reader.programs(DOCS / name), page.after])
    for old, new in (
        ("localhost:9092", fake_kafka.bootstrap_servers[0]),
        ("broker.example:9093", "127.0.0.1:9"),
        ("/etc/kafka/ca.pem", certifi.where()),
        ("/var/lib/shop", f"{directory}/shop"),
    ):
        program = program.replace(old, new)
    (directory / "shop").mkdir()
    reader.give(directory / "shop")
    if page.coroutine:
        program = RUN.format(program=program, page=name)
    done = reader.run(program, directory)
    assert done.returncode == 0, done.stderr
    for topic in page.topics:
        if (name, topic) in ARRIVED:
            assert fake_kafka.values(topic) == ARRIVED[name, topic]
    if name == "logging-handler.md":
        assert [value.rpartition(b" ")[2] for value in fake_kafka.values("logs")] == [b"closed"]


def block(name: str, language: str) -> Any:
    (text,) = [text for found, text, _ in reader.blocks(DOCS / name) if found == language]
    return text


def test_the_file_for_the_command_line_has_options_that_there_are() -> None:
    options = tomllib.loads(block("operations.md", "toml"))
    assert len(options) == 5
    config.validate(options | {"ssl_cafile": certifi.where(), "spool": "never"})


def test_the_probes_ask_paths_that_the_example_has() -> None:
    probes = yaml.safe_load(block("operations.md", "yaml"))
    example = (reader.ROOT / "examples/fastapi_app.py").read_text(encoding="utf-8")
    assert probes.keys() == {"startupProbe", "readinessProbe", "livenessProbe"}
    for probe in probes.values():
        assert f'@app.get("{probe["httpGet"]["path"]}")' in example


def run_here(arguments: list[str], directory: Path) -> str:
    """With this user's cache of jars."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(reader.ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.kafka
@pytest.mark.timeout(420)
def test_the_tests_of_the_page_about_tests_pass(tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text(
        "\n\n".join(reader.programs(DOCS / "testing.md")), encoding="utf-8"
    )
    said = run_here(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"], tmp_path)
    assert re.search(r"^5 passed", said, re.MULTILINE), said


@pytest.mark.kafka
@pytest.mark.timeout(420)
def test_the_program_of_the_page_about_faults_runs(tmp_path: Path) -> None:
    run_here(["-c", "".join(reader.programs(DOCS / "testing-faults.md"))], tmp_path)
