"""The supported versions of Kafka: their API versions and the defaults of their settings. Pure.

For the APIs that the fake has, the ranges of versions are the same as in a real broker's answer to ApiVersions. The
contract suite compares these ranges with real brokers.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kafkasafe.errors import ConfigError
from kafkasafe.testing.fake.checks import NotModelledError, RefusedError

INVALID_CONFIG: Final = 40
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_NO_LIMIT: Final = str(2**63 - 1)


@dataclass(frozen=True, slots=True)
class Profile:
    """One version of Kafka.

    Attributes:
        apis: API name -> (oldest, newest) version.
        settings: The brokers' settings by Kafka's names.
        features: Finalized features and their levels.
        creating_code: Error code in the Metadata answer for a topic that this request has created.
        brokers_control: Whether one of the brokers is the controller. Then nothing notices the death of the last
            broker.
        verifies_transactions: Whether brokers accept a transaction's batches only for partitions that were added to it.
        caps_in_sync: True for Kafka 4 and later: `min.insync.replicas` is capped at the number of replicas, and the
            high watermark advances only while at least the capped number of replicas is in sync.
        least: Minimum values of topic settings, which replace smaller minimums in `_LEAST`.
        lacking: Topic settings that exist in other versions, but not in this one.
        unmodelled: Topic settings that exist in this version, but that the fake does not model.
    """

    version: str
    apis: Mapping[str, tuple[int, int]]
    settings: Mapping[str, str]
    features: Mapping[str, int] = field(default_factory=dict)
    verifies_transactions: bool = True
    creating_code: int = 3
    brokers_control: bool = False
    caps_in_sync: bool = True
    least: Mapping[str, int] = field(default_factory=dict)
    lacking: frozenset[str] = frozenset()
    unmodelled: frozenset[str] = frozenset()


_SETTINGS: Final = {
    "auto.create.topics.enable": "true",
    "broker.session.timeout.ms": "100",
    "delete.topic.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "group.max.session.timeout.ms": "1800000",
    "group.min.session.timeout.ms": "6000",
    "log.cleanup.policy": "delete",
    "log.retention.bytes": "-1",
    "log.retention.check.interval.ms": "300000",
    "log.retention.ms": "604800000",
    "log.segment.bytes": "1073741824",
    "message.max.bytes": "1048588",
    "min.insync.replicas": "1",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "3",
    "producer.id.expiration.check.interval.ms": "1000",
    "replica.selector.class": "",
    "transaction.max.timeout.ms": "900000",
    "transaction.state.log.num.partitions": "3",
    "unclean.leader.election.enable": "false",
}

_CURRENT: Final = Profile(
    version="4.3.0",
    apis=MappingProxyType(
        {
            "Produce": (0, 13),
            "Fetch": (4, 18),
            "ListOffsets": (1, 11),
            "Metadata": (0, 13),
            "OffsetCommit": (2, 10),
            "OffsetFetch": (1, 10),
            "FindCoordinator": (0, 6),
            "JoinGroup": (0, 9),
            "Heartbeat": (0, 4),
            "LeaveGroup": (0, 5),
            "SyncGroup": (0, 5),
            "DescribeGroups": (0, 6),
            "ListGroups": (0, 5),
            "ApiVersions": (0, 4),
            "CreateTopics": (2, 7),
            "DeleteTopics": (1, 6),
            "DeleteRecords": (0, 2),
            "InitProducerId": (0, 5),
            "OffsetForLeaderEpoch": (2, 4),
            "AddPartitionsToTxn": (0, 5),
            "AddOffsetsToTxn": (0, 4),
            "EndTxn": (0, 5),
            "TxnOffsetCommit": (0, 5),
            "DescribeConfigs": (1, 4),
            "AlterConfigs": (0, 2),
            "CreatePartitions": (0, 3),
            "DeleteGroups": (0, 2),
            "IncrementalAlterConfigs": (0, 1),
            "DescribeCluster": (0, 2),
            "DescribeProducers": (0, 0),
            "DescribeTransactions": (0, 0),
        }
    ),
    settings=MappingProxyType(
        _SETTINGS
        | {
            "log.message.timestamp.type": "CreateTime",
            "log.message.timestamp.after.max.ms": "3600000",
            "log.message.timestamp.before.max.ms": _NO_LIMIT,
            "producer.id.expiration.ms": "86400000",
        }
    ),
    features=MappingProxyType(
        {
            "eligible.leader.replicas.version": 1,
            "group.version": 1,
            "metadata.version": 30,
            "share.version": 1,
            "streams.version": 1,
            "transaction.version": 2,
        }
    ),
    least=MappingProxyType({"segment.bytes": 1 << 20}),
    lacking=frozenset({"message.downconversion.enable"}),
)

_OLD: Final = Profile(
    version="2.8.2",
    apis=MappingProxyType(
        {
            "Produce": (0, 9),
            "Fetch": (0, 12),
            "ListOffsets": (0, 6),
            "Metadata": (0, 11),
            "OffsetCommit": (0, 8),
            "OffsetFetch": (0, 7),
            "FindCoordinator": (0, 3),
            "JoinGroup": (0, 7),
            "Heartbeat": (0, 4),
            "LeaveGroup": (0, 4),
            "SyncGroup": (0, 5),
            "DescribeGroups": (0, 5),
            "ListGroups": (0, 4),
            "ApiVersions": (0, 3),
            "CreateTopics": (0, 7),
            "DeleteTopics": (0, 6),
            "DeleteRecords": (0, 2),
            "InitProducerId": (0, 4),
            "OffsetForLeaderEpoch": (0, 4),
            "AddPartitionsToTxn": (0, 3),
            "AddOffsetsToTxn": (0, 3),
            "EndTxn": (0, 3),
            "TxnOffsetCommit": (0, 3),
            "DescribeConfigs": (0, 4),
            "AlterConfigs": (0, 2),
            "CreatePartitions": (0, 3),
            "DeleteGroups": (0, 2),
            "IncrementalAlterConfigs": (0, 1),
            "DescribeCluster": (0, 0),
            "DescribeProducers": (0, 0),
        }
    ),
    settings=MappingProxyType(
        _SETTINGS
        | {
            "log.message.timestamp.type": "CreateTime",
            # Kafka 2.8 limits both directions with one setting, which the fake does not model.
            "log.message.timestamp.after.max.ms": _NO_LIMIT,
            "log.message.timestamp.before.max.ms": _NO_LIMIT,
            "producer.id.expiration.ms": "604800000",  # 2.8 uses transactional.id.expiration.ms instead
        }
    ),
    verifies_transactions=False,
    creating_code=5,
    brokers_control=True,
    caps_in_sync=False,
    lacking=frozenset({"message.timestamp.after.max.ms", "message.timestamp.before.max.ms"}),
    unmodelled=frozenset({"message.format.version", "message.timestamp.difference.max.ms"}),
)

_PROFILES: Final = {profile.version: profile for profile in (_CURRENT, _OLD)}

TOPIC_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cleanup.policy": "log.cleanup.policy",
        "max.message.bytes": "message.max.bytes",
        "message.timestamp.type": "log.message.timestamp.type",
        "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
        "min.insync.replicas": "min.insync.replicas",
        "retention.bytes": "log.retention.bytes",
        "retention.ms": "log.retention.ms",
        "segment.bytes": "log.segment.bytes",
        "unclean.leader.election.enable": "unclean.leader.election.enable",
    }
)
"""Maps each topic setting to the broker setting that applies to topics without a value for the topic setting."""

_WITHOUT_EFFECT: Final = frozenset(
    {
        "compression.type",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "message.downconversion.enable",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "preallocate",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
    }
)
_ONLY: Final = {"compression.type": "producer"}
"""Settings with only one possible value. (Brokers of the fake cannot compress, so they keep the producer's batches.)"""

_WORDS: Final = {
    "message.timestamp.type": {"CreateTime", "LogAppendTime"},
    "cleanup.policy": {"delete", "compact", "compact,delete", "delete,compact"},
}
_SELECTORS: Final = {"", RACK_AWARE}
_SWITCHES: Final = frozenset(
    {"message.downconversion.enable", "preallocate", "unclean.leader.election.enable"}
)
_SHORT: Final = frozenset(
    {
        "index.interval.bytes",
        "max.message.bytes",
        "min.insync.replicas",
        "segment.bytes",
        "segment.index.bytes",
    }
)
_LEAST: Final = {
    "delete.retention.ms": 0,
    "file.delete.delay.ms": 0,
    "flush.messages": 0,
    "flush.ms": 0,
    "index.interval.bytes": 0,
    "max.compaction.lag.ms": 1,
    "max.message.bytes": 0,
    "message.timestamp.after.max.ms": 0,
    "message.timestamp.before.max.ms": 0,
    "min.compaction.lag.ms": 0,
    "min.insync.replicas": 1,
    "retention.bytes": -(2**63),
    "retention.ms": -1,
    "segment.bytes": 14,
    "segment.index.bytes": 0,
    "segment.jitter.ms": 0,
    "segment.ms": 1,
}
"""Minimum values of topics' settings, as brokers check them."""


def profile_of(version: str) -> Profile:
    """Returns the profile of a version.

    Raises:
        ConfigError: The version is not supported.
    """
    try:
        return _PROFILES[version]
    except KeyError:
        raise ConfigError(
            f"The fake can be Kafka {' or '.join(_PROFILES)}, not {version!r}; for other versions take a KafkaCluster"
        ) from None


def broker_settings(profile: Profile, given: Mapping[str, object]) -> dict[str, str]:
    """Returns all settings of the brokers.

    Raises:
        ConfigError: A setting is unknown to the fake, or has an invalid value.
    """
    settings = dict(profile.settings)
    for name, value in given.items():
        if name not in settings:
            near = difflib.get_close_matches(name, settings, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"The fake has no setting {name}{hint} It has {', '.join(sorted(settings))}")
        settings[name] = _written(name, value)
        if not _broker_may_have(profile, name, settings[name]):
            raise ConfigError(f"{name} cannot be {value!r}")
    return settings


def racks_of(given: Mapping[int, Mapping[str, object]]) -> dict[int, str]:
    """Reads `broker.rack` from the settings of single brokers. Returns the racks by node id.

    Raises:
        ConfigError: A setting other than `broker.rack` is set.
    """
    for settings in given.values():
        if others := sorted(set(settings) - {"broker.rack"}):
            raise ConfigError(f"Of single brokers' settings, the fake has only broker.rack, not {others[0]}")
    return {node: str(settings["broker.rack"]) for node, settings in given.items() if settings}


def _broker_may_have(profile: Profile, name: str, value: str) -> bool:
    own = next((own for own, broker in TOPIC_SETTINGS.items() if broker == name), None)
    if own is not None:
        return _may_be(profile, own, value)
    if name.endswith(".enable"):
        return value.lower() in {"true", "false"}
    if name == "replica.selector.class":
        return value in _SELECTORS
    return value.isdecimal() and int(value) > (0 if name.endswith(".partitions") else -1)


def topic_settings(profile: Profile, given: Mapping[str, object]) -> dict[str, str]:
    """Checks and returns a topic's own settings.

    Raises:
        RefusedError: With code 40: Kafka does not know the setting, or the fake does not support its value.
        NotModelledError: This version knows the setting, but the fake does not model it.
    """
    own = {name: _written(name, value) for name, value in given.items()}
    for name, value in own.items():
        if name in profile.unmodelled:
            raise NotModelledError(f"The setting {name} of Kafka {profile.version}")
        if name in profile.lacking or (name not in TOPIC_SETTINGS and name not in _WITHOUT_EFFECT):
            raise RefusedError(INVALID_CONFIG, f"Unknown topic config name: {name}")
        if name in _ONLY and value != _ONLY[name]:
            raise RefusedError(INVALID_CONFIG, f"The fake cannot do {name}={value}, only {_ONLY[name]}")
        if not _may_be(profile, name, value):
            raise RefusedError(INVALID_CONFIG, f"Invalid value {value} for configuration {name}")
    return own


def _may_be(profile: Profile, name: str, value: str) -> bool:
    if name in _WORDS:
        return value in _WORDS[name]
    if name in _SWITCHES:
        return value.lower() in {"true", "false"}
    if name not in _LEAST:
        return True
    try:
        number = int(value)
    except ValueError:
        return False
    most = 2**31 - 1 if name in _SHORT else 2**63 - 1
    return max(_LEAST[name], profile.least.get(name, number)) <= number <= most


def effective(broker: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """All settings of a topic: its own settings, and the brokers' settings for all others."""
    return {name: own.get(name, broker[default]) for name, default in TOPIC_SETTINGS.items()}


def _written(name: str, value: object) -> str:
    return str(value).lower() if isinstance(value, bool) or name.endswith(".enable") else str(value)
