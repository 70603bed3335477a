"""aiokafka's names are the convention: each of them is here, with its parameters, or docs/aio.md says why not."""

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
    (Path(__file__).parent.parent.parent / "docs" / "aio.md").read_text(),
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
            assert name in NAMED, f"{name} is not there, and docs/aio.md does not say so"
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
