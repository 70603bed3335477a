"""The names of Kafka's error codes, present and former, and of its request kinds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kafkasafe.codes.rows import TABLE


def all_codes() -> list[int]:
    """The codes of the table, −1 first."""
    return sorted(TABLE)


def names() -> list[str]:
    return [TABLE[code].name for code in all_codes()]


# Names that codes had in older versions of Kafka.
_FORMER_NAMES: Final = {
    "UNKNOWN": -1,
    "INVALID_MESSAGE": 2,
    "NOT_LEADER_FOR_PARTITION": 6,
    "INVALID_TOPIC": 17,
    "GROUP_LOAD_IN_PROGRESS": 14,
    "GROUP_COORDINATOR_NOT_AVAILABLE": 15,
    "NOT_COORDINATOR_FOR_GROUP": 16,
}


# The classes of org.apache.kafka.common.errors whose names differ from those of their codes.
_JAVA_NAMES: Final = {
    "UnknownServerException": -1,
    "CorruptRecordException": 2,
    "NotLeaderForPartitionException": 6,
    "TimeoutException": 7,
    "RecordTooLargeException": 10,
    "ControllerMovedException": 11,
    "NetworkException": 13,
    "RecordBatchTooLargeException": 18,
    "TopicAuthorizationException": 29,
    "GroupAuthorizationException": 30,
    "ClusterAuthorizationException": 31,
    "TopicExistsException": 36,
    "InvalidConfigurationException": 40,
    "OutOfOrderSequenceException": 45,
    "DuplicateSequenceException": 46,
    "InvalidPidMappingException": 49,
    "InvalidTxnTimeoutException": 50,
    "TransactionalIdAuthorizationException": 53,
    "KafkaStorageException": 56,
    "SaslAuthenticationException": 58,
    "DelegationTokenDisabledException": 61,
    "UnsupportedByAuthenticationException": 64,
    "DelegationTokenAuthorizationException": 65,
    "GroupNotEmptyException": 68,
    "PrincipalDeserializationException": 97,
    "FetchSessionTopicIdException": 106,
    "InvalidRegularExpression": 128,
}


def _squeezed(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


_CODES: Final[Mapping[str, int]] = MappingProxyType(
    {
        _squeezed(name): code
        for name, code in (
            *((row.name, row.code) for row in TABLE.values()),
            *_FORMER_NAMES.items(),
            *_JAVA_NAMES.items(),
        )
    }
)


def code_of_name(name: str) -> int | None:
    """The code with this name; None if no code matches. The name is Kafka's present or former name of the error, or the
    name of its Java exception class.

    Case and punctuation do not matter. The name of a Java class may contain the package. The name of a nested class may
    contain the enclosing class (`Outer$Inner`), as Java writes it in logs.
    """
    name = class_name(name)
    found = _CODES.get(_squeezed(name))
    return found if found is not None else _CODES.get(_squeezed(name).removesuffix("exception"))


def class_name(name: str) -> str:
    """The class in a name with its package: `org.apache.kafka.common.errors.TimeoutException` → `TimeoutException`."""
    return re.split(r"[.$]", name.strip())[-1]


APIS: Final = (
    "produce",
    "fetch",
    "list_offsets",
    "metadata",
    "leader_and_isr",
    "stop_replica",
    "update_metadata",
    "controlled_shutdown",
    "offset_commit",
    "offset_fetch",
    "find_coordinator",
    "join_group",
    "heartbeat",
    "leave_group",
    "sync_group",
    "describe_groups",
    "list_groups",
    "sasl_handshake",
    "api_versions",
    "create_topics",
    "delete_topics",
    "delete_records",
    "init_producer_id",
    "offset_for_leader_epoch",
    "add_partitions_to_txn",
    "add_offsets_to_txn",
    "end_txn",
    "write_txn_markers",
    "txn_offset_commit",
    "describe_acls",
    "create_acls",
    "delete_acls",
    "describe_configs",
    "alter_configs",
    "alter_replica_log_dirs",
    "describe_log_dirs",
    "sasl_authenticate",
    "create_partitions",
    "create_delegation_token",
    "renew_delegation_token",
    "expire_delegation_token",
    "describe_delegation_token",
    "delete_groups",
    "elect_leaders",
    "incremental_alter_configs",
    "alter_partition_reassignments",
    "list_partition_reassignments",
    "offset_delete",
    "describe_client_quotas",
    "alter_client_quotas",
    "describe_user_scram_credentials",
    "alter_user_scram_credentials",
    "vote",
    "begin_quorum_epoch",
    "end_quorum_epoch",
    "describe_quorum",
    "alter_partition",
    "update_features",
    "envelope",
    "fetch_snapshot",
    "describe_cluster",
    "describe_producers",
    "broker_registration",
    "broker_heartbeat",
    "unregister_broker",
    "describe_transactions",
    "list_transactions",
    "allocate_producer_ids",
    "consumer_group_heartbeat",
    "consumer_group_describe",
    "controller_registration",
    "get_telemetry_subscriptions",
    "push_telemetry",
    "assign_replicas_to_dirs",
    "list_config_resources",
    "describe_topic_partitions",
    "share_group_heartbeat",
    "share_group_describe",
    "share_fetch",
    "share_acknowledge",
    "add_raft_voter",
    "remove_raft_voter",
    "update_raft_voter",
    "initialize_share_group_state",
    "read_share_group_state",
    "write_share_group_state",
    "delete_share_group_state",
    "read_share_group_state_summary",
    "streams_group_heartbeat",
    "streams_group_describe",
    "describe_share_group_offsets",
    "alter_share_group_offsets",
    "delete_share_group_offsets",
)
"""Kafka's request kinds, as parameters named `api` spell them."""

_APIS: Final[Mapping[str, str]] = MappingProxyType({_squeezed(name): name for name in APIS})


def api_name(name: str) -> str | None:
    """The name in `APIS` for `ListOffsets`, `LIST_OFFSETS`, `list-offsets` or the like; None if unknown."""
    return _APIS.get(_squeezed(name))
