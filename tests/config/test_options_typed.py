"""Options are typed: an editor completes them, a type checker finds the misspelt one; and none is forgotten."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.net.sasl import SASL_MECHANISMS
from programs import python

from kafkasafe import SafeProducer, config, options
from kafkasafe.config.names import WITHOUT_EFFECT
from kafkasafe.config.table import CONSUMER_DEFAULTS
from kafkasafe.errors import ConfigError
from kafkasafe.options import AsyncConsumerOptions, AsyncProducerOptions, ConsumerOptions, ProducerOptions

HEAD = """
import json
import selectors
from typing import Any

from kafka import TopicPartition  # type: ignore[import-untyped, unused-ignore]
from kafka.net.sasl.oauth import AbstractTokenProvider  # type: ignore[import-untyped, unused-ignore]
from kafka.partitioner import DefaultPartitioner  # type: ignore[import-untyped, unused-ignore]
from kafka.serializer import DefaultSerializer  # type: ignore[import-untyped, unused-ignore]
from kafkasafe import SafeConsumer, SafeProducer, aio
from kafkasafe.logging_handler import KafkaHandler

class Wrong: ...

class Upper:
    def serialize(self, topic: str, headers: list[tuple[str, bytes]], data: str) -> bytes:
        return data.upper().encode()

    def deserialize(self, topic: str, headers: list[tuple[str, bytes]], data: bytes) -> str:
        return data.decode().upper()

class First:
    def partition(
        self, topic: str, key: Any, key_bytes: bytes | None, value: Any, value_bytes: bytes | None, cluster: Any
    ) -> int:
        return 0

class Tokens(AbstractTokenProvider):  # type: ignore[misc, unused-ignore]
    def token(self) -> str:
        return "token"

def keep(
    *,
    topic: str,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    timestamp_ms: int,
    error: BaseException,
) -> None: ...

"""

PROGRAM = """
SafeProducer(bootstrap_servers=["a:1"], spool_dir="spool", acks="all", linger_ms=5.0, compression_type="zstd")
SafeConsumer("orders", bootstrap_servers="a:1", group_id="g", on_divergence=lambda event: event.divergent_offset)
SafeProducer(bootstrap_server="a:1")  # wrong
SafeProducer(spool_max_bytes=1.5)  # wrong
SafeProducer(acks=[])  # wrong
SafeConsumer("orders", security_protocol="ssl")  # wrong
SafeConsumer("orders", linger_ms=5)  # wrong
SafeProducer(key_serializer=5)  # wrong
SafeProducer(value_serializer=lambda order: 5)  # wrong
SafeProducer(partitioner=lambda key, partitions, available: 0)  # wrong
SafeProducer(on_rejected=lambda: 1)  # wrong
SafeProducer(on_rejected=lambda record: print(record))  # wrong
SafeProducer(sasl_mechanism="MAGIC")  # wrong
SafeProducer(sasl_oauth_token_provider=5)  # wrong
SafeProducer(selector=5)  # wrong
SafeProducer(selector=selectors.DefaultSelector())  # wrong
SafeConsumer("orders", value_deserializer=5)  # wrong
SafeConsumer("orders", max_poll_records="5")  # wrong
SafeConsumer("orders").topics(5)  # wrong
SafeConsumer("orders").partitions_for_topic(5)  # wrong
aio.SafeProducer(transactional_id="x")  # wrong
aio.SafeConsumer("orders", consumer_timeout_ms=5)  # wrong
KafkaHandler("logs", bootstrap_server="a:1")  # wrong
SafeProducer(spool_max_bytes="1GiB", retain_acked_bytes="64MiB", receive_buffer_bytes="32KiB")
SafeConsumer("orders", fetch_max_bytes="50MiB", bootstrap_timeout_ms=5000, max_poll_records=None)
SafeProducer(batch_size="64KiB", max_request_size="2MiB", sasl_mechanism="AWS_MSK_IAM")
SafeProducer(selector=selectors.DefaultSelector, partitioner=DefaultPartitioner())
SafeProducer(key_serializer=str.encode, value_serializer=lambda order: json.dumps(order).encode())
SafeProducer(key_serializer=DefaultSerializer(), value_serializer=Upper(), partitioner=First())
SafeConsumer("orders", key_deserializer=DefaultSerializer(), value_deserializer=json.loads)
SafeConsumer("orders", key_deserializer=bytes.decode, value_deserializer=Upper())
SafeProducer(on_rejected=keep, sasl_oauth_token_provider=Tokens())
SafeProducer(on_rejected=lambda **record: print(record["topic"], record["error"]))
aio.SafeProducer(loop=None, partitioner=lambda key, partitions, available: partitions[0])
aio.SafeProducer(partitioner=First(), key_serializer=Upper(), on_rejected=keep)
aio.SafeConsumer("orders", loop=None, value_deserializer=json.loads, max_poll_records=None)
KafkaHandler("logs", bootstrap_servers="a:1", spool_dir="spool")
consumer = SafeConsumer("orders")
consumer.pause(TopicPartition("orders", 0))
print(consumer.committed(TopicPartition("orders", 0)), consumer.topics() | consumer.partitions_for_topic("o"))
"""

WRONG = {
    # What a user may write: (client, option, value). The type checker is to find each, at its place.
    "SafeProducer": {
        "spool_path": "'spool'",
        "spool_size": "1024",
        "dlq_topic": "'dead'",
        "durable": "True",
        "exactly_once": "True",
        "retention": "60",
        "message_timeout_ms": "1000",
        "group_id": "'g'",
        "bootstrap_timeout_ms": "1000",
        "metric_reporters": "[]",
        "metrics_enabled": "False",
        "metrics_num_samples": "2",
        "metrics_sample_window_ms": "30000",
        "kafka_client": "object",
    },
    "SafeConsumer": {
        "spool_dir": "'spool'",
        "acks": "'all'",
        "offset_file": "'ends'",
        "enable_auto_comit": "True",
    },
}
"""Names that are none, or that the other client has, or that have no effect."""


CLIENTS = {
    "SafeProducer": ProducerOptions,
    "SafeConsumer": ConsumerOptions,
    "aio.SafeProducer": AsyncProducerOptions,
    "aio.SafeConsumer": AsyncConsumerOptions,
}


def program_of_options() -> tuple[str, set[int]]:
    """A program with right options, and with wrong ones, each on a line of its own; and the numbers of those lines."""
    calls = [f"{client}({name}={value})" for client, names in WRONG.items() for name, value in names.items()]
    for client, kinds in CLIENTS.items():
        hints = typing.get_type_hints(kinds)
        calls += [f"{client}({name}=Wrong())" for name, kind in hints.items() if kind is not Any]
    program = HEAD + PROGRAM + "".join(f"{call}  # wrong\n" for call in calls)
    lines = program.splitlines()
    return program, {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def test_every_option_has_a_type():
    heeded = config.DEFAULTS.keys() - WITHOUT_EFFECT.keys()
    assert typing.get_type_hints(ProducerOptions).keys() == heeded  # completion offers what has an effect
    ours = {**KafkaConsumer.DEFAULT_CONFIG, **CONSUMER_DEFAULTS}
    assert typing.get_type_hints(ConsumerOptions).keys() == ours.keys()
    # The asyncio clients have the others' options, without those that they refuse or that have no effect.
    assert typing.get_type_hints(AsyncProducerOptions).keys() == heeded - {"transactional_id"}
    assert typing.get_type_hints(AsyncConsumerOptions).keys() == ours.keys() - {"consumer_timeout_ms"}


def lines_with_errors(program: str, tmp_path: Path) -> tuple[set[int], str]:
    (tmp_path / "program.py").write_text(program)
    done = python("-m", "mypy", "--strict", "--no-error-summary", "program.py", cwd=tmp_path, timeout=300)
    said = done.stdout + done.stderr
    return {int(line.split(":")[1]) for line in said.splitlines() if line.startswith("program.py:")}, said


def test_a_type_checker_finds_each_wrong_option_and_takes_the_others(tmp_path):
    program, wrong = program_of_options()
    assert len(wrong) > 200
    lines, said = lines_with_errors(program, tmp_path)
    assert lines == wrong, said


def test_the_mechanisms_of_the_type_are_those_of_kafka_python():
    assert set(typing.get_args(options._Mechanism)) == set(SASL_MECHANISMS)


def test_run_time_refuses_the_same_names():
    for name in WRONG["SafeProducer"].keys() - WITHOUT_EFFECT.keys():
        with pytest.raises(ConfigError, match=f"Unknown option '{name}'"):
            config.validate({name: 1})
    for name in WRONG["SafeConsumer"]:
        with pytest.raises(ConfigError, match=f"Unknown option '{name}'"):
            config.validate_consumer({name: 1})


def test_types_of_kafka_python_can_be_resolved():
    """As `typing.get_type_hints` and tools that build on it do."""
    hints = typing.get_type_hints(SafeProducer.send_offsets_to_transaction)
    assert TopicPartition in typing.get_args(hints["offsets"])
