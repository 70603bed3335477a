"""aiokafka's names are the convention: each of them is here, with its parameters, or docs/migrating-from-aiokafka.md says why not."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import get_type_hints

import aiokafka
import pytest

from kafkasafe import options
from kafkasafe.aio import SafeConsumer, SafeProducer

DOCS = re.sub(
    r"^```.*?^```",
    "",
    (Path(__file__).parent.parent.parent / "docs" / "migrating-from-aiokafka.md").read_text(),
    flags=re.DOTALL | re.MULTILINE,
)
NAMED = set(re.findall(r"\b\w+\b", " ".join(re.findall(r"`([^`]+)`", DOCS))))
PAIRS = {
    "producer": (aiokafka.AIOKafkaProducer, SafeProducer, options.ProducerOptions),
    "consumer": (aiokafka.AIOKafkaConsumer, SafeConsumer, options.ConsumerOptions),
}


def parameters(function):
    return [
        (each.name, each.kind)
        for each in inspect.signature(function).parameters.values()
        if each.name != "self"
    ]


@pytest.mark.parametrize("kind", PAIRS)
def test_every_method_is_here_or_in_the_table(kind):
    theirs, ours, _ = PAIRS[kind]
    for name, method in inspect.getmembers(theirs, callable):
        if name.startswith("_"):
            continue
        own = getattr(ours, name, None)
        if own is None:
            assert name in NAMED, f"{name} is not there, and docs/migrating-from-aiokafka.md does not say so"
            continue
        given, taken = parameters(method), parameters(own)
        if taken[: len(given)] != given:
            said = ", ".join(parameter for parameter, _ in given)
            assert f"`{name}({said})` by partition" in DOCS.replace("tp", "partition"), (
                f"{name}{given}: {taken}"
            )
        if inspect.iscoroutinefunction(method):
            assert inspect.iscoroutinefunction(own), name


@pytest.mark.parametrize("kind", PAIRS)
def test_every_option_is_here_or_in_the_table(kind):
    theirs, _, ours = PAIRS[kind]
    known = {*get_type_hints(ours), "topics", "loop", "self"}
    missing = set(inspect.signature(theirs.__init__).parameters) - known - NAMED
    assert not missing


def test_what_is_not_there_says_what_to_use_instead():
    producer, consumer = SafeProducer(bootstrap_servers="127.0.0.1:9"), SafeConsumer()
    for owner in (producer, consumer):
        hints = {name: there.hint for name, there in vars(type(owner)).items() if hasattr(there, "hint")}
        assert hints
        for name, hint in hints.items():
            assert not hasattr(owner, name)
            with pytest.raises(AttributeError, match=re.escape(hint)):
                getattr(owner, name)
        with pytest.raises(AttributeError, match="no_such_thing"):
            owner.no_such_thing  # noqa: B018
        assert not hasattr(type(owner), "__getattr__"), "all attributes would be slow"


async def test_a_function_as_partitioner(fake_kafka, tmp_path):
    """aiokafka's documentation: the example of a custom partitioner."""
    fake_kafka.create_topic("foobar", partitions=10)
    asked = []

    def partitioner(key, all_partitions, available_partitions):
        asked.append((key, all_partitions, available_partitions))
        return all_partitions[0] if key == b"first" else all_partitions[-1]

    async with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path, partitioner=partitioner
    ) as producer:
        for key, partition in ((b"last", 9), (b"first", 0), (None, 9)):
            assert (await producer.send_and_wait("foobar", b"", key=key)).partition == partition
    assert asked[-1] == (None, list(range(10)), list(range(10)))
