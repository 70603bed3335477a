"""The example of docs/testing.md, as it stands there, and how long it takes."""

import re
import textwrap
import time
from pathlib import Path

import pytest

from kafkasafe import SafeConsumer, SafeProducer
from kafkasafe.testing.broker import ClusterError

DOCS = Path(__file__).parent.parent.parent / "docs"


def example():
    text = (DOCS / "testing.md").read_text()
    found = re.search(
        r"```python\n(from kafkasafe import SafeProducer\n\ndef test_an_order_survives_a_dead_leader.*?)```",
        text,
        re.DOTALL,
    )
    space = {"SafeProducer": SafeProducer}
    exec(textwrap.dedent(found[1]), space)
    return space["test_an_order_survives_a_dead_leader"]


def test_the_example_of_the_documentation_runs(fake_kafka, tmp_path, record_property):
    run = example()
    began = time.perf_counter()
    run(fake_kafka, tmp_path)
    record_property("seconds", time.perf_counter() - began)


def test_a_users_test_of_an_answer_and_its_order(fake_kafka, tmp_path):
    """What most unit tests are: send, look at what arrived."""
    fake_kafka.create_topic("orders", partitions=2)
    with SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        futures = [producer.send("orders", b"%d" % number, key=b"k") for number in range(100)]
        offsets = [future.get(timeout=60).offset for future in futures]
    assert offsets == list(range(100))
    assert fake_kafka.values("orders") == [b"%d" % number for number in range(100)]


def test_committed_records_are_visible_once_the_markers_are_there(fake_kafka, tmp_path):
    fake_kafka._handler.transactions.markers_take_ms = 600_000
    with SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        with producer.batch() as batch:
            batch.send("orders", b"1")
        batch.outcome.get(60)
        with pytest.raises(ClusterError, match="transactions without their markers"):
            fake_kafka.wait_for_markers(0.1)
        fake_kafka.advance(601)
        fake_kafka.wait_for_markers()
    with SafeConsumer(
        "orders",
        bootstrap_servers=fake_kafka.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        assert next(consumer).value == b"1"
