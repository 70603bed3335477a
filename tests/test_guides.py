"""The Python of the guides runs as it stands, from top to bottom, on a cluster in memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition

from kafkasafe import SafeConsumer
from kafkasafe.testing.fake import FakeCluster

DOCS = Path(__file__).parents[1] / "docs"


def programs(page: str) -> list[str]:
    return re.findall(
        r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which has the spool too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKASAFE_SPOOL_DIR", str(tmp_path / "spool"))
    return tmp_path


def run(page: str, kafka: FakeCluster, **names: Any) -> dict[str, Any]:
    """All blocks of the page, one after the other in one namespace, which it returns."""
    blocks = programs(page)
    assert blocks
    for block in blocks:
        text = block.replace('"localhost:9092"', repr(kafka.bootstrap_servers))
        exec(compile(text, str(DOCS / page), "exec"), names)
    return names


def test_the_guide_of_atomic_batches(
    directory: Path, fake_kafka: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for topic in ("orders", "audit", "invoices"):
        fake_kafka.create_topic(topic, partitions=1)
    names = run("staged.md", fake_kafka)
    try:
        assert fake_kafka.values("orders") == [b"order 1", b"order 2"]
        assert fake_kafka.values("audit") == [b"ann ordered"]
        assert fake_kafka.values("invoices") == [b"invoice 1", b"invoice 3"]
        assert "committed: BatchMetadata(" in capsys.readouterr().out
        (at,) = names["consumer"].assignment()
        assert names["consumer"].committed(at) == names["consumer"].position(at) > 0
        assert names["last"] is None
    finally:
        names["consumer"].close()
        names["producer"].close()


def test_end_offsets_of_any_client(directory: Path, fake_kafka: FakeCluster) -> None:
    fake_kafka.create_topic("orders", partitions=1)
    consumer = SafeConsumer("orders", bootstrap_servers=fake_kafka.bootstrap_servers)
    try:
        partitions = [TopicPartition("orders", 0)]
        names = run("epochs.md", fake_kafka, consumer=consumer, partitions=partitions)
        assert names["ends"] == dict.fromkeys(partitions, 0)
        assert (directory / "ends.json").is_file()
    finally:
        consumer.close()
