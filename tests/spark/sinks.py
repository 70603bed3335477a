"""What the tests of the Spark sink share: a small Spark, a reader that is not ours."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from kafkasafe.spark.marker_store import MarkerStore
from kafkasafe.spark.sink_transaction import SinkTransaction

STEPS: dict[str, tuple[type[Any], str]] = {
    "fence": (SinkTransaction, "fence"),
    "judge": (MarkerStore, "read"),
    "open": (SinkTransaction, "open"),
    "verify": (SinkTransaction, "verify"),
    "mark": (MarkerStore, "write"),
    "commit": (SinkTransaction, "commit"),
}
"""The method of each step of the protocol, but WRITE."""


class CrashError(BaseException):
    """The driver, or its commit, is gone: nothing is tidied up."""


@contextlib.contextmanager
def crash(monkeypatch: pytest.MonkeyPatch, step: str, *, after: bool) -> Iterator[None]:
    """What is done in here dies before or after a step of the protocol."""
    of, name = STEPS[step]
    real = getattr(of, name)

    def dies(self: Any, *args: Any, **kwargs: Any) -> None:
        if after:
            real(self, *args, **kwargs)
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(of, name, dies)
        patched.setattr(SinkTransaction, "abort", lambda *_: None)
        with pytest.raises(CrashError):
            yield


def new_name(what: str = "sink") -> str:
    return f"{what}-{uuid.uuid4().hex[:10]}"


def options(cluster: Any, **more: Any) -> dict[str, Any]:
    return {"kafka.bootstrap.servers": ",".join(cluster.bootstrap_servers), **more}


def read(cluster: Any, topic: str, *, committed: bool = True) -> list[Any]:
    """All messages of a topic, by librdkafka."""
    if committed:
        cluster.wait_for_markers()
    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(cluster.bootstrap_servers),
            "group.id": new_name("reader"),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    try:
        numbers = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        found, open_ends = [], set(numbers)
        while open_ends:
            message = consumer.poll(60)
            assert message is not None, f"nothing more of {topic}, open: {open_ends}"
            if message.error() is None:
                found.append(message)
            elif message.error().code() == -191:  # end of the partition
                open_ends.discard(message.partition())
            else:
                assert message.error().retriable(), message.error()
        return found
    finally:
        consumer.close()


def values(cluster: Any, topic: str, *, committed: bool = True) -> collections.Counter[bytes | None]:
    """How often each value is there."""
    return collections.Counter(message.value() for message in read(cluster, topic, committed=committed))


def numbers(*ranges: range) -> collections.Counter[bytes | None]:
    """What `values` gives of rows with these numbers."""
    return collections.Counter(b"%d" % number for one in ranges for number in one)


def killing_driver(settings: Sequence[Any], kills: str, directory: Path) -> tuple[int, str]:
    """Run killing.py to its end. Return its exit code, and what it wrote to standard error."""
    said = directory / "stderr"
    with said.open("w") as errors:
        driver = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("killing.py")), json.dumps(settings)],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={
                **os.environ,
                "KILLING": kills,
                "KILLING_DIR": str(directory),
                "SPARK_LOCAL_DIRS": str(directory),
            },
        )
        return driver.wait(240), said.read_text()
