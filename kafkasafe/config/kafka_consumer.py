"""Checks of KafkaConsumer's own options. kafka-python checks some of these options only after connecting, and the
others never.

Without these checks, a consumer with an unusable value would fail only at its first `poll()` or in a rebalance, with an
error that does not name the option.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kafkasafe.config.values import choice, converter, is_topic_name, number, sendable
from kafkasafe.errors import ConfigError

_LEAST: Final = {
    "session_timeout_ms": 1,
    "heartbeat_interval_ms": 1,
    "max_poll_interval_ms": 1,
    "max_poll_records": 1,
    "auto_commit_interval_ms": 0,
    "fetch_max_wait_ms": 0,
    "fetch_min_bytes": 0,
    "fetch_max_bytes": 1,
    "max_partition_fetch_bytes": 1,
}
"""The lowest permitted number for each numeric option. None is permitted too, and means kafka-python's default."""
_ISOLATION: Final = ("read_uncommitted", "read_committed")
_deserializer: Final = converter("deserialize")


def check_kafka_consumer(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse values of KafkaConsumer's options that would prevent a consumer from reading, either alone or in a group.

    Raises:
        ConfigError: A value cannot work.
    """
    for name, least in _LEAST.items():
        if options.get(name) is not None:
            number(least=least)(options, name)
    for name in ("key_deserializer", "value_deserializer"):
        if name in options:
            _deserializer(options, name)
    if "isolation_level" in options:
        _check_isolation_level(options["isolation_level"])
    _check_group(options, {**defaults, **options})


def _check_isolation_level(level: Any) -> None:
    """Raise ConfigError unless kafka-python accepts this as an isolation level: a word, in upper or lower case, or the
    protocol's number 0 or 1.
    """
    word = str(level).strip().lower().replace("-", "_")
    if level not in (0, 1) and word not in _ISOLATION:
        choice(*_ISOLATION)({"isolation_level": level}, "isolation_level")


def _check_group(given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    group_id, instance_id = options["group_id"], options["group_instance_id"]
    if instance_id is not None:
        if group_id is None:
            raise ConfigError("group_instance_id needs a group: set group_id, too")
        if not isinstance(instance_id, str) or not is_topic_name(instance_id):
            raise ConfigError(
                f"group_instance_id must have 1 to 249 ASCII letters, digits, '.', '_' and '-', not {instance_id!r}"
            )
    if group_id is None:
        return
    if not isinstance(group_id, str) or not group_id:
        raise ConfigError(f"group_id must be a non-empty string, or None for no group, not {group_id!r}")
    sendable("group_id", group_id)
    # If session_timeout_ms is not given, kafka-python chooses a value that depends on the version of the brokers.
    heartbeat, session = options["heartbeat_interval_ms"], given.get("session_timeout_ms")
    if None not in (heartbeat, session) and heartbeat >= session:
        raise ConfigError(
            f"heartbeat_interval_ms ({heartbeat}) must be lower than session_timeout_ms ({session});"
            " Kafka recommends a third of it"
        )
    _check_assignors(options["partition_assignment_strategy"])


def _check_assignors(assignors: Any) -> None:
    """Raise ConfigError unless this is a list of assignors, which may be classes or objects."""
    wanted = (
        "partition_assignment_strategy must be a list of classes such as"
        " kafka.coordinator.assignors.range.RangePartitionAssignor"
    )
    if not isinstance(assignors, (list, tuple)) or not assignors:
        raise ConfigError(f"{wanted}, not {assignors!r}")
    for each in assignors:
        if not (hasattr(each, "name") and callable(getattr(each, "assign", None))):
            raise ConfigError(f"{wanted}; {each!r} is not one")
