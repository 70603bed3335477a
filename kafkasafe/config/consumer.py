"""The validation of a consumer's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer

from kafkasafe.config.connection import check_connection, check_types, unprotected
from kafkasafe.config.kafka_consumer import check_kafka_consumer
from kafkasafe.config.names import (
    CONSUMER_WITHOUT_EFFECT,
    check_names,
    ignored,
    ignored_together,
    with_own_types,
)
from kafkasafe.config.option import fields_of
from kafkasafe.config.table import CONSUMER, CONSUMER_DEFAULTS, DEFAULTS, ConsumerConfig
from kafkasafe.config.values import as_text, choice
from kafkasafe.errors import ConfigError

__all__ = [
    "ConsumerConfig",
    "validate_consumer",
]


def check_topics(topics: Sequence[Any]) -> None:
    """Checks the positional arguments of a consumer.

    Raises:
        TypeError: An argument is no name of a topic.
    """
    for topic in topics:
        if isinstance(topic, Mapping):
            raise TypeError(
                "Pass options by keyword: SafeConsumer('orders', bootstrap_servers='localhost:9092', group_id='shop'),"
                " not in a dict as confluent-kafka takes them"
            )
        if not isinstance(topic, str):
            raise TypeError(
                f"Pass topics as names: SafeConsumer('orders', 'audit'), not {type(topic).__name__}: {topic!r}"
            )


def validate_consumer(options: Mapping[str, Any]) -> ConsumerConfig:
    """Validate the options of a SafeConsumer. Connection options are checked in the same way as for a producer.

    Raises:
        ConfigError: An option is unknown (the message names the nearest one) or has an unusable value.
    """
    check_names(
        options, {**KafkaConsumer.DEFAULT_CONFIG, **CONSUMER_DEFAULTS}, DEFAULTS, "SafeProducer", "consumer"
    )
    options = with_own_types(options)
    merged = {**CONSUMER_DEFAULTS, **options}
    check_types(options, KafkaConsumer.DEFAULT_CONFIG)
    every = {**KafkaConsumer.DEFAULT_CONFIG, **options}
    check_connection(every)
    check_kafka_consumer(options, KafkaConsumer.DEFAULT_CONFIG)
    for name, reason in CONSUMER_WITHOUT_EFFECT.items():
        if options.get(name) is not None:
            ignored(name, options[name], reason)
    for names, reason in unprotected(every):
        ignored_together(names, reason)
    # kafka-python treats an unknown `auto_offset_reset` as "none", and only logs a warning.
    reset = as_text(options.get("auto_offset_reset", "latest"))
    if reset not in {"smallest", "largest"}:
        choice("earliest", "latest", "none")({"auto_offset_reset": reset.lower()}, "auto_offset_reset")
    values = fields_of(CONSUMER.items(), merged)
    _check_memories(values)
    return ConsumerConfig(
        kafka={name: value for name, value in options.items() if not _is_default(name, value)}, **values
    )


def _is_default(name: str, value: Any) -> bool:
    """Return whether an option must not be passed to kafka-python. kafka-python gets neither kafkasafe's own options
    nor values that only mean "the default".
    """
    return (
        name in CONSUMER_DEFAULTS
        or (name == "api_version" and value == "auto")
        or (name == "max_poll_records" and value is None)
    )


def _check_memories(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if the files `offsets_path` and `lineage_path` cannot be written."""
    paths: dict[str, Path | None] = {name: values[name] for name in ("offsets_path", "lineage_path")}
    for name, path in paths.items():
        try:
            if path is not None and path.is_dir():
                raise ConfigError(f"{name}: {path} is a directory; give the name of a file")
            if path is not None and not path.parent.is_dir():
                raise ConfigError(f"{name}: {path.parent} is not a directory; create it, or correct {name}")
        except OSError as error:
            raise ConfigError(f"{name}: {error.strerror}: {str(path)!r}; correct {name}") from None
    offsets, lineage = paths.values()
    if offsets is not None and lineage is not None and offsets.absolute() == lineage.absolute():
        raise ConfigError(f"offsets_path and lineage_path are both {offsets}; each needs a file of its own")
