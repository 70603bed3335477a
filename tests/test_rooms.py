"""What is true of every room of the house: its size, what travels between rooms, and what no lock is held over."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from pathlib import Path

import pytest

from kafkasafe import SafeProducer, journal
from kafkasafe.delivery.engine import messages
from kafkasafe.spool.files import OsFiles

PACKAGE = Path(journal.__file__).parents[1]
MOST_LINES = 600
LARGER = {
    "codes/rows.py": "one table: a row for each error code of Kafka",
    "consumer.py": "the public methods of SafeConsumer with their docstrings; the objects that decide are in _consuming",
    "events.py": "the public events, one class after another; no event uses another one",
    "testing/broker.py": "the public methods of KafkaCluster with their docstrings; the objects that act are in _real",
}


def test_no_file_is_too_large_to_know_ones_way_in():
    lines = {
        path.relative_to(PACKAGE).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in PACKAGE.rglob("*.py")
    }
    assert len({name.rpartition("/")[0] for name in lines}) > 20
    large = {name for name, count in lines.items() if count > MOST_LINES}
    assert large - {*LARGER} == set(), f"more than {MOST_LINES} lines: split it by subject"
    assert {*LARGER} - large == set(), "no longer so large: remove it from LARGER, so that it stays so"


def classes_of(module):
    return [
        each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__
    ]


@pytest.mark.parametrize(
    "message", [*messages.Message.__args__, *journal.Consequence.__args__], ids=lambda each: each.__name__
)
def test_what_travels_between_rooms_can_be_printed_and_compared(message):
    assert dataclasses.is_dataclass(message)
    assert message.__dataclass_params__.frozen
    assert not [field for field in dataclasses.fields(message) if "Callable" in str(field.type)]


def test_no_lock_is_held_over_disk_or_user_code(fake_kafka, tmp_path, monkeypatch):
    """Under the producer's stand the partitioner and encoding only, under the ledger's bookkeeping (docs/design-threads.md)."""
    producers: list[SafeProducer] = []
    held: list[str] = []
    seen: set[str] = set()

    def look(what: str) -> None:
        seen.add(what)
        for producer in producers:
            for name, lock in (
                ("Accumulator.lock", producer.parts.accumulator.lock),
                ("Ledger.lock", producer._pump.ledger.lock),
            ):
                if lock._is_owned():
                    held.append(f"{name} over {what} on {threading.current_thread().name}")

    def looking(name, real):
        def called(*args, **options):
            look(name)
            return real(*args, **options)

        return called

    for name, method in inspect.getmembers(OsFiles, inspect.isfunction):
        if not name.startswith("_"):
            monkeypatch.setattr(OsFiles, name, looking(f"OsFiles.{name}", method))
    fake_kafka.create_topic("orders", 3)
    fake_kafka.create_topic("small", 1, config={"max.message.bytes": 2000})
    options = {
        "bootstrap_servers": fake_kafka.bootstrap_servers,
        "spool_dir": tmp_path,
        "on_event": lambda _: look("on_event"),
        "on_rejected": lambda **_: look("on_rejected"),
        "request_timeout_ms": 1000,
    }
    for life in range(2):
        producer = SafeProducer(**options)
        producers.append(producer)
        for number in range(200):
            producer.send("orders", b"%d" % number, b"%d" % number).add_both(lambda _: look("callback"))
        producer.send("small", b"x" * 5000).add_errback(lambda _: look("errback"))
        if life == 0:
            producer.flush(60)
            fake_kafka.refuse()
            fake_kafka.cut()
            producer.send("orders", b"later").durable(60)
            producer.metrics()
            producer.close(timeout=0)
            fake_kafka.restore()
    producer.flush(60)
    producer.close()
    assert held == []
    assert {"on_event", "on_rejected", "callback", "errback", "OsFiles.free_bytes"} <= seen
