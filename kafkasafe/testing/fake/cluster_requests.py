"""Requests about the cluster itself: versions, metadata, topics and their settings. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from kafkasafe.kafkapython import frames
from kafkasafe.testing.fake.asking import Ask, Fields, Handler, NotModelledError, refusal
from kafkasafe.testing.fake.centre import INTERNAL, UNKNOWN_TOPIC_OR_PARTITION, Topic
from kafkasafe.testing.fake.checks import RefusedError
from kafkasafe.testing.fake.partition import LEADER_NOT_AVAILABLE, Partition
from kafkasafe.testing.fake.settings import TOPIC_SETTINGS

COORDINATOR_NOT_AVAILABLE: Final = 15
INVALID_REQUEST: Final = 42

_NO_ID: Final = uuid.UUID(int=0)
_TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4
_DEFAULT: Final = 5
_SET: Final = 0
_DELETE: Final = 1


def api_versions(ask: Ask) -> Fields:
    """ApiVersions. If the client's version of ApiVersions is too new, `RequestHandler` answers in version 0
    (KIP-511).
    """
    keys = [
        {"api_key": frames.api(name).key, "min_version": oldest, "max_version": newest}
        for name, (oldest, newest) in ask.centre.profile.apis.items()
    ]
    features = ask.centre.profile.features
    return {
        "error_code": 0,
        "api_keys": sorted(keys, key=lambda key: key["api_key"]),
        "supported_features": [
            {"name": name, "min_version": 0, "max_version": level} for name, level in features.items()
        ],
        "finalized_features_epoch": 1 if features else -1,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in features.items()
        ],
    }


# -- Metadata ----------------------------------------------------------------------------------------------------------


def _metadata(ask: Ask) -> Fields:
    centre, message = ask.centre, ask.message
    wanted = message.topics
    rows: list[Fields] = []
    if wanted is None or (ask.version == 0 and not wanted):
        rows.extend(
            _topic_row(ask, topic)
            for topic in centre.topics.values()
            if not refusal(centre.check_allowed, "describe", "topic", topic.name)
        )
    else:
        create = ask.version < 4 or message.allow_auto_topic_creation
        rows.extend(_wanted_row(ask, one, create=create) for one in wanted)
    alive = [node for node, broker in centre.brokers.items() if not broker.fenced]
    return {
        "brokers": [ask.endpoint(node) for node in alive],
        "cluster_id": centre.cluster_id,
        "controller_id": centre.controller,
        "topics": rows,
        "error_code": 0,
    }


def _wanted_row(ask: Ask, one: Any, *, create: bool) -> Fields:
    centre, name = ask.centre, one.name
    try:
        if name is None:
            return _topic_row(ask, centre.topic_by_id(one.topic_id))
        centre.check_allowed("describe", "topic", name)
        if name not in centre.topics:
            centre.check_name(name)
            if create and centre.settings["auto.create.topics.enable"] == "true":
                centre.check_allowed("create", "topic", name)
                centre.create_topic(name)
                # Like a broker, answer the request that created the topic with an error. Only the next request gets the
                # topic.
                raise RefusedError(centre.profile.creating_code)
            raise RefusedError(UNKNOWN_TOPIC_OR_PARTITION)
        return _topic_row(ask, centre.topics[name])
    except RefusedError as refused:
        topic_id = one.topic_id if name is None else _NO_ID
        return {
            "error_code": refused.code,
            "name": name if name is not None or ask.version >= 12 else "",
            "topic_id": topic_id,
            "partitions": [],
        }


def _topic_row(ask: Ask, topic: Topic) -> Fields:
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL,
        "partitions": [_partition_row(ask, partition) for partition in topic.partitions.values()],
    }


def _partition_row(ask: Ask, partition: Partition) -> Fields:
    down = [node for node in partition.replicas if ask.centre.brokers[node].fenced]
    return {
        "error_code": 0 if partition.leader >= 0 else LEADER_NOT_AVAILABLE,
        "partition_index": partition.number,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": list(partition.replicas),
        "isr_nodes": sorted(partition.in_sync),
        "offline_replicas": down,
    }


def _describe_cluster(ask: Ask) -> Fields:
    centre = ask.centre
    alive = [node for node, broker in centre.brokers.items() if not broker.fenced]
    return {
        "error_code": 0,
        "endpoint_type": 1,
        "cluster_id": centre.cluster_id,
        "controller_id": centre.controller,
        "brokers": [ask.endpoint(node, "broker_id") for node in alive],
    }


def _find_coordinator(ask: Ask) -> Fields:
    message = ask.message
    transaction = bool(message.key_type)

    def row(key: str) -> Fields:
        kind = "transactional_id" if transaction else "group"
        if code := refusal(ask.centre.check_allowed, "describe", kind, key):
            return {"error_code": code, "node_id": -1, "host": "", "port": -1}
        node = (ask.transactions if transaction else ask.groups).coordinator(key)
        if node < 0:
            error = {"error_code": COORDINATOR_NOT_AVAILABLE, "error_message": "No broker is available"}
            return error | {"node_id": -1, "host": "", "port": -1}
        host, port = ask.addresses[node]
        return {"error_code": 0, "node_id": node, "host": host, "port": port}

    if ask.version < 4:
        return row(message.key)
    return {"coordinators": [{"key": key} | row(key) for key in message.coordinator_keys]}


# -- Topics ------------------------------------------------------------------------------------------------------------


def _outcome(work: Callable[[], Fields | None]) -> Fields:
    try:
        return {"error_code": 0, "error_message": None} | (work() or {})
    except RefusedError as refused:
        return {"error_code": refused.code, "error_message": refused.message}


def _create_topics(ask: Ask) -> Fields:
    named = [wanted.name for wanted in ask.message.topics]

    def create(wanted: Any) -> Fields:
        if named.count(wanted.name) > 1:
            raise RefusedError(INVALID_REQUEST, "Duplicate topic name.")
        ask.centre.check_allowed("create", "topic", wanted.name)
        placed = {one.partition_index: one.broker_ids for one in wanted.assignments or ()}
        topic = ask.centre.create_topic(
            wanted.name,
            wanted.num_partitions,
            wanted.replication_factor,
            {one.name: one.value for one in wanted.configs or ()},
            placed or None,
            validate_only=ask.version > 0 and ask.message.validate_only,
        )
        return {
            "topic_id": topic.topic_id,
            "num_partitions": len(topic.partitions),
            "replication_factor": len(topic.partitions[0].replicas) if topic.partitions else -1,
            "configs": _rows(_known(ask, topic), topic.settings, 1),
        }

    return {
        "topics": [
            {"name": wanted.name} | _outcome(lambda wanted=wanted: create(wanted))  # type: ignore[misc]
            for wanted in ask.message.topics
        ]
    }


def _delete_topics(ask: Ask) -> Fields:
    def delete(name: str | None, topic_id: uuid.UUID) -> Fields:
        found = name if name is not None else ask.centre.topic_by_id(topic_id).name
        ask.centre.check_allowed("delete", "topic", found)
        deleted = ask.centre.delete_topic(found)
        ask.groups.topic_deleted(found)
        named: Fields = {"name": found}
        return named if ask.centre.profile.brokers_control else named | {"topic_id": deleted.topic_id}

    names = (
        [(one.name, one.topic_id) for one in ask.message.topics]
        if ask.version >= 6
        else [(name, _NO_ID) for name in ask.message.topic_names]
    )
    return {
        "responses": [
            {"name": name, "topic_id": topic_id} | _outcome(lambda n=name, i=topic_id: delete(n, i))  # type: ignore[misc]
            for name, topic_id in names
        ]
    }


def _create_partitions(ask: Ask) -> Fields:
    def grow(wanted: Any) -> None:
        if ask.message.validate_only:
            raise NotModelledError("CreatePartitions with validate_only")
        ask.centre.check_allowed("alter", "topic", wanted.name)
        placed = None if wanted.assignments is None else [one.broker_ids for one in wanted.assignments]
        ask.centre.grow_topic(wanted.name, wanted.count, placed or None)

    return {
        "results": [
            {"name": wanted.name} | _outcome(lambda wanted=wanted: grow(wanted))  # type: ignore[misc]
            for wanted in ask.message.topics
        ]
    }


# -- Settings ----------------------------------------------------------------------------------------------------------


def _rows(known: Mapping[str, str], own: Mapping[str, str], source: int) -> list[Fields]:
    return [
        {
            "name": name,
            "value": known[name],
            "read_only": False,
            "config_source": source if name in own else _DEFAULT,
            "is_sensitive": False,
        }
        for name in sorted(known)
    ]


def _known(ask: Ask, topic: Topic) -> Mapping[str, str]:
    """A topic's settings, without settings that this version of Kafka does not have."""
    found = ask.centre.settings_of(topic) | topic.settings
    return {name: value for name, value in found.items() if name not in ask.centre.profile.lacking}


def _describe_configs(ask: Ask) -> Fields:
    def describe(wanted: Any) -> Fields:
        own: Mapping[str, str]
        if wanted.resource_type == _TOPIC_RESOURCE:
            ask.centre.check_allowed("describe_configs", "topic", wanted.resource_name)
            topic = ask.centre.topic(wanted.resource_name)
            own, known = topic.settings, _known(ask, topic)
            mine = 1
        elif wanted.resource_type == _BROKER_RESOURCE:
            ask.centre.check_allowed("describe_configs", "cluster", "kafka-cluster")
            own, known = {}, ask.centre.settings
            mine = 4
        else:
            raise RefusedError(INVALID_REQUEST, "The fake has settings of topics and brokers only")
        keys = wanted.configuration_keys
        return {
            "configs": [
                row | {"is_default": row["name"] not in own, "synonyms": [], "config_type": 2}
                for row in _rows(known, own, mine)
                if keys is None or row["name"] in keys
            ]
        }

    return {
        "results": [
            {"resource_type": one.resource_type, "resource_name": one.resource_name, "configs": []}
            | _outcome(lambda one=one: describe(one))  # type: ignore[misc]
            for one in ask.message.resources
        ]
    }


def _alter(ask: Ask, changes_of: Callable[[Any], dict[str, str | None]]) -> Fields:
    def alter(one: Any) -> None:
        if one.resource_type != _TOPIC_RESOURCE or ask.message.validate_only:
            raise NotModelledError(
                "Settings of brokers are given to FakeCluster(config=…); validate_only is not supported"
            )
        ask.centre.check_allowed("alter", "topic", one.resource_name)
        ask.centre.alter_topic(one.resource_name, changes_of(one))

    return {
        "responses": [
            {"resource_type": one.resource_type, "resource_name": one.resource_name}
            | _outcome(lambda one=one: alter(one))  # type: ignore[misc]
            for one in ask.message.resources
        ]
    }


def _alter_configs(ask: Ask) -> Fields:
    return _alter(
        ask,
        lambda one: dict.fromkeys(TOPIC_SETTINGS) | {entry.name: entry.value for entry in one.configs},
    )


def _incremental_alter_configs(ask: Ask) -> Fields:
    def changes(one: Any) -> dict[str, str | None]:
        if any(entry.config_operation not in {_SET, _DELETE} for entry in one.configs):
            raise NotModelledError("Appending to settings and subtracting from them")
        return {entry.name: entry.value if entry.config_operation == _SET else None for entry in one.configs}

    return _alter(ask, changes)


HANDLERS: Final[dict[str, Handler]] = {
    "ApiVersions": api_versions,
    "Metadata": _metadata,
    "DescribeCluster": _describe_cluster,
    "FindCoordinator": _find_coordinator,
    "CreateTopics": _create_topics,
    "DeleteTopics": _delete_topics,
    "CreatePartitions": _create_partitions,
    "DescribeConfigs": _describe_configs,
    "AlterConfigs": _alter_configs,
    "IncrementalAlterConfigs": _incremental_alter_configs,
}
