"""docs/options-reference.md, from the texts of kafkasafe/options.py and the defaults and notes of kafkasafe/config."""

from __future__ import annotations

import ast
import functools
from typing import Any, Final

from kafka import KafkaConsumer

from kafkasafe import config
from kafkasafe.config.names import CONSUMER_WITHOUT_EFFECT, WITHOUT_EFFECT
from kafkasafe.config.table import CONSUMER_DEFAULTS
from kafkasafe.config.values import MOST_IN_FLIGHT
from kafkasafe.kafkapython.client import OURS
from tests.pages import DOCS, PACKAGE, class_bases, class_body, code, table

PATH: Final = DOCS / "options-reference.md"
SOURCE: Final = PACKAGE / "options.py"

CONSUMER: Final[dict[str, Any]] = {**KafkaConsumer.DEFAULT_CONFIG, **OURS, **CONSUMER_DEFAULTS}
"""A consumer's defaults."""

LIMITED: Final = {
    "retries": "without effect: the producer retries a pending record without a limit",
    "max_in_flight_requests_per_connection": f"used up to {MOST_IN_FLIGHT}",
    "enable_idempotence": "only True",
}
"""Options of a producer that accept only some values, or have no effect, according to `kafkasafe.config`."""

SHOWN: Final = {
    "client_id": {
        config.DEFAULTS["client_id"]: '"kafkasafe"',
        CONSUMER["client_id"]: '"kafka-python-VERSION"',
    },
}
"""Defaults that the page shows in another form."""

HEAD: Final = """# All options

<!-- Written by `python -m tests.pages` from kafkasafe/options.py and kafkasafe/config. -->

This page lists every option of `SafeProducer` and `SafeConsumer`, with its type and default. [Options](options.md) is the guide to the
producer's options, [SafeConsumer](consumer.md#options) to the consumer's. Options of kafka-python have the same name and meaning here.
Editors show the same texts for a keyword argument.

An unknown option is a [`ConfigError`](kafkasafe-errors.md#configerror), and so is a value that cannot work. "Used" means that the
option does what the text says. An option that is "without effect" is accepted, so that programs written for kafka-python run
unchanged; a value other than the default is logged as a WARNING ([`option_ignored`](log-events.md)).

"""

AIO: Final = """
## asyncio

`kafkasafe.aio.SafeProducer` and `kafkasafe.aio.SafeConsumer` take the same options with the same defaults. The types of these options are
`AsyncProducerOptions` and `AsyncConsumerOptions`. The differences:

| option | |
|---|---|
| `loop` | accepted for programs written for aiokafka, without effect: the loop is the one that runs `start()` |
| `partitioner` | may also be a function `(key_bytes, all_partitions, available_partitions)`, as aiokafka's |
| `transactional_id` | a `ConfigError`: use `async with producer.batch(transactional_id=...)` ([atomic batches](staged.md)) |
| `on_rejected`, `on_event` of a producer | called on the producer's own thread, not on the loop |
| `on_event`, `on_divergence`, `key_deserializer`, `value_deserializer` | called on the consumer's own thread, not on the loop |
| `consumer_timeout_ms` | without effect: `async for` waits until there is a record |
"""


@functools.cache
def texts(name: str) -> dict[str, tuple[str, str]]:
    """Type and text of each key of one of the classes of options; "" where a key has no text.

    The keys of its private base classes come first.
    """
    found: dict[str, tuple[str, str]] = {}
    for base in class_bases(SOURCE, name):
        if base.startswith("_"):
            found |= texts(base)
    last = ""
    for node in class_body(SOURCE, name):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
            found[last] = _type(ast.unparse(node.annotation)), ""
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and last:
            found[last] = found[last][0], str(node.value.value).strip()
    return found


def _type(written: str) -> str:
    for node in ast.parse(SOURCE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            alias = node.target.id
            if alias.startswith("_"):
                written = written.replace(alias, ast.unparse(node.value))
    return written.replace("'", '"')


def _default(name: str, value: Any) -> str:
    if name in SHOWN and value in SHOWN[name]:
        return code(SHOWN[name][value])
    if isinstance(value, str):
        return code(f'"{value}"')
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], type):
        return ", ".join(code(each.__name__) for each in value)
    if callable(value) or not isinstance(value, (int, float, bool, type(None), list, tuple)):
        return "its own"
    return code(value)


def of_producer(name: str) -> str:
    """What an option does in a producer."""
    if name in WITHOUT_EFFECT:
        return f"without effect: {WITHOUT_EFFECT[name]}"
    return LIMITED.get(name, "used")


def of_consumer(name: str) -> str:
    """What an option does in a consumer."""
    reason = CONSUMER_WITHOUT_EFFECT.get(name)
    return "used" if reason is None else f"without effect: {reason}"


def _shared() -> str:
    rows = []
    for name, (kind, said) in texts("ConnectionOptions").items():
        defaults = [_default(name, config.DEFAULTS[name]), _default(name, CONSUMER[name])]
        effects = [of_producer(name), of_consumer(name)]
        default = defaults[0] if len(set(defaults)) == 1 else f"{defaults[0]}; consumer: {defaults[1]}"
        effect = effects[0] if len(set(effects)) == 1 else f"producer: {effects[0]}; consumer: {effects[1]}"
        rows.append((code(name), code(kind), default, effect, said))
    return table(("option", "type", "default", "effect", ""), rows)


def _own(kind: str, defaults: dict[str, Any], effect: Any) -> str:
    rows = [
        (code(name), code(written), _default(name, defaults[name]), effect(name), said)
        for name, (written, said) in texts(kind).items()
    ]
    return table(("option", "type", "default", "effect", ""), rows)


def text() -> str:
    return (
        f"{HEAD}## Producer\n\n{_own('ProducerOptions', dict(config.DEFAULTS), of_producer)}\n"
        f"## Consumer\n\n{_own('ConsumerOptions', CONSUMER, of_consumer)}\n"
        f"## Connections, of both\n\n{_shared()}{AIO}"
    )
