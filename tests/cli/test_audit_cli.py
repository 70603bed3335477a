"""`kafkasafe audit` on a real broker, whose log has a hole and repeats."""

from __future__ import annotations

import contextlib
import io
import json
import queue
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kafkasafe import cli
from kafkasafe.cluster.api import Failure, ProduceRequest
from kafkasafe.kafkapython.connect import over_sockets
from kafkasafe.record import batch
from kafkasafe.testing.broker import KafkaCluster

pytestmark = pytest.mark.kafka

TWO_DAYS_MS = 2 * 24 * 3600 * 1000


def ask(call: Any, *args: Any) -> Any:
    deadline = time.monotonic() + 60
    while True:
        replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        call(*args, replies.put)
        result = replies.get(timeout=60)
        if not isinstance(result, Failure) and not getattr(result, "error_code", 0):
            return result
        assert time.monotonic() < deadline, result
        time.sleep(0.1)


class Raw:
    """Appends batches under ids of its own choice, as a client that went wrong would."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._transport = over_sockets({"bootstrap_servers": cluster.bootstrap_servers})
        self._transport.start()
        self.producer_id = ask(self._transport.init_producer_id).producer_id

    def append(self, topic: str, sequence: int, values: list[bytes], *, forgotten: bool = False) -> None:
        """`forgotten`: the broker has no memory of it afterwards, as of one that was silent for a day."""
        age = TWO_DAYS_MS if forgotten else 0
        data = batch.encode(None, values, timestamps=int(time.time() * 1000) - age)
        batch.stamp_identity(data, self.producer_id, 0, sequence)
        deadline = time.monotonic() + 60
        while True:
            replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
            requests = [ProduceRequest(0, topic, 0, data)]
            self._transport.produce(requests, -1, 30_000, lambda _, reply, put=replies.put: put(reply))
            reply = replies.get(timeout=60)
            if not isinstance(reply, Failure) and not reply.error_code:
                break
            assert time.monotonic() < deadline, reply
            time.sleep(0.1)
        while forgotten and self.producer_id in ask(self._transport.describe_producers, topic, 0).producers:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def close(self) -> None:
        self._transport.close(10)


@pytest.fixture(scope="module")
def damaged(kafka: KafkaCluster) -> tuple[str, int]:
    """A topic, and the id of the producer whose sequences 5 to 7 are missing, and 8 to 9 there twice."""
    topic = "audited"
    kafka.create_topic(topic, 2)
    raw = Raw(kafka)
    raw.append(topic, 0, [b'{"id": %d}' % n for n in range(5)], forgotten=True)
    raw.append(topic, 8, [b'{"id": %d}' % n for n in (8, 9)], forgotten=True)
    raw.append(topic, 8, [b'{"id": %d}' % n for n in (8, 9, 10)])
    raw.close()
    producer = Producer(
        {"bootstrap.servers": ",".join(kafka.bootstrap_servers), "enable.idempotence": True, "linger.ms": 0}
    )
    for number in range(11, 21):
        producer.produce(topic, b'{"id": %d}' % number, partition=1, headers=[("n", b"x%d" % number)])
    producer.produce(topic, b"no json", partition=1)
    assert producer.flush(60) == 0
    return topic, raw.producer_id


@dataclass
class Result:
    """How the command ended."""

    exit_code: object
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def run(kafka: KafkaCluster, *arguments: str) -> Result:
    """In this process, from the entry point on."""
    told, complained = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(told),
        contextlib.redirect_stderr(complained),
        pytest.raises(SystemExit) as ended,
    ):
        cli.main(["audit", "-b", ",".join(kafka.bootstrap_servers), *arguments])
    return Result(ended.value.code, told.getvalue(), complained.getvalue())


def test_gaps_and_repeats_of_sequences(kafka: KafkaCluster, damaged: tuple[str, int]) -> None:
    topic, producer_id = damaged
    result = run(kafka, topic, "--json")
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    assert (found["whole"], found["records"]) == (False, 21)
    assert (found["missing_sequences"], found["repeated_sequences"]) == (3, 2)
    zero, one = found["partitions"]
    (mine,) = zero["producers"]
    assert (mine["producer_id"], mine["records"], mine["batches"]) == (producer_id, 10, 3)
    assert mine["gaps"] == [{"epoch": 0, "first": 5, "last": 7, "before_offset": 5, "records": 3}]
    assert mine["repeats"] == [{"epoch": 0, "first": 8, "last": 9, "at_offset": 7, "records": 2}]
    (theirs,) = one["producers"]
    assert (theirs["records"], theirs["gaps"], theirs["repeats"]) == (11, [], [])
    assert found["ids"] is None


def test_an_id_of_the_records(kafka: KafkaCluster, damaged: tuple[str, int]) -> None:
    result = run(kafka, damaged[0], "--json", "--id", "json:id")
    assert json.loads(result.stdout)["ids"] == {
        "source": "json:id",
        "records": 20,
        "without_id": 1,
        "distinct": 18,
        "missing": 3,
        "repeated": 2,
        "examples": [["8", 2], ["9", 2]],
    }
    result = run(kafka, damaged[0], "--json", "--id", "header:n")
    ids = json.loads(result.stdout)["ids"]
    assert (ids["records"], ids["distinct"], ids["without_id"], ids["missing"]) == (10, 10, 11, None)


def test_in_words_and_drawn(kafka: KafkaCluster, damaged: tuple[str, int], tmp_path: Path) -> None:
    result = run(kafka, damaged[0], "--plot", str(tmp_path / "a.png"), "--id", "value")
    assert result.exit_code == 1, result.output
    assert f"producer {damaged[1]} epoch 0: sequences 5-7 are missing before offset 5" in result.output
    assert "sequences 8-9 again at offset 7" in result.output
    assert result.output.rstrip().endswith("not whole")
    # Where it is piped nothing is cut off.
    assert "partition" in result.output
    assert "…" not in result.output
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    run(kafka, damaged[0], "--plot", str(tmp_path / "a.html"))
    page = (tmp_path / "a.html").read_text()
    assert "<svg" in page
    assert "3 sequences missing" in page


def test_a_whole_topic_and_one_that_retention_cut(kafka: KafkaCluster) -> None:
    from kafka import TopicPartition

    topic = "audited-whole"
    kafka.create_topic(topic)
    producer = Producer(
        {
            "bootstrap.servers": ",".join(kafka.bootstrap_servers),
            "transactional.id": topic,
            "batch.size": 1000,
        }
    )
    producer.init_transactions(60)
    for turn in range(4):
        producer.begin_transaction()
        for number in range(50):
            producer.produce(topic, b"%d" % number, key=b"%d" % (50 * turn + number))
        producer.flush(60)
        producer.commit_transaction(60) if turn != 2 else producer.abort_transaction(60)
    kafka.wait_for_markers()
    result = run(kafka, topic, "--json", "--id", "key", "--committed")
    found = json.loads(result.stdout)
    assert (found["records"], found["missing_sequences"], found["repeated_sequences"]) == (200, 0, 0)
    assert (found["ids"]["records"], found["ids"]["missing"], found["ids"]["repeated"]) == (150, 50, 0)
    plain = Producer({"bootstrap.servers": ",".join(kafka.bootstrap_servers), "enable.idempotence": True})
    topic = "audited-trimmed"
    kafka.create_topic(topic)
    for number in range(40):
        plain.produce(topic, b"%d" % number)
        assert plain.flush(60) == 0
    with kafka.admin() as admin:
        admin.delete_records({TopicPartition(topic, 0): 30})
    result = run(kafka, topic, "--json")
    assert result.exit_code == 0, result.output
    (part,) = json.loads(result.stdout)["partitions"]
    (mine,) = part["producers"]
    assert (part["log_start"], part["log_end"], mine["records"], mine["trimmed"]) == (30, 40, 10, True)


@pytest.mark.parametrize(
    ("given", "told", "code"),
    [
        (["not-there"], "kafkasafe: The cluster does not have the topic not-there", 3),
        (["x", "--id", "field"], "header:NAME", 2),
        (["x", "--plot", "/no/such/place.png"], "not a directory", 2),
        (["x", "--plot", "/"], "is a directory", 2),
        (["x", "--plot", "place.foo"], "must end in .png, .svg, .pdf, .html", 2),
    ],
)
def test_what_is_wrong_is_told(
    kafka: KafkaCluster, given: list[str], told: str, code: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr("kafkasafe.spark.query_topics.MISSING_TOPIC_S", 0.5)
    result = run(kafka, *given)
    assert result.exit_code == code
    assert told in result.output
