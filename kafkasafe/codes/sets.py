"""Sets of error codes. Modules handle all codes of a set alike. Each set's description says what its codes have in
common.

The first sets apply to every kind of request. Their codes are marked in the table (`rows`). The other sets apply only
to the requests that their descriptions name. A code may be in several sets.
"""

from __future__ import annotations

from typing import Final

from kafkasafe.codes.rows import TABLE, Kind, Scope


def _of(kind: Kind) -> frozenset[int]:
    return frozenset(row.code for row in TABLE.values() if row.kind is kind)


# -- columns of the table ----------------------------------------------------------------------------------------------

MISSING_CODES: Final = _of(Kind.MISSING)
FENCED_CODES: Final = _of(Kind.FENCED)
SPOILT_CODES: Final = _of(Kind.SPOILT)
NOT_A_MEMBER_CODES: Final = _of(Kind.NOT_A_MEMBER)

DESTINATION_CODES: Final = frozenset(
    row.code for row in TABLE.values() if row.produce is not None and row.produce.scope is Scope.DESTINATION
)
"""The codes of the rows with `Scope.DESTINATION`. Any request about a topic may get one of these errors, which may be
temporary.
"""
TOPIC_CODES: Final = DESTINATION_CODES - {100}
"""The codes that a Metadata answer may have for a topic that was requested by name. Error 100 is left out, because it
is about a topic's id.
"""

# -- leaders, topics and logs ------------------------------------------------------------------------------------------

STALE_METADATA_CODES: Final = frozenset({3, 5, 6, 9, 13, 56, 74, 75, 100, 103})
"""UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, REPLICA_NOT_AVAILABLE, NETWORK_EXCEPTION,
KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID: the client's
metadata may be out of date.
"""
OTHER_LEADER_CODES: Final = frozenset({6, 74, 75})
"""NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH: another broker leads, or the leader has another
epoch.
"""
NOT_CAUGHT_UP_CODES: Final = frozenset({5, 78})
"""LEADER_NOT_AVAILABLE, OFFSET_NOT_AVAILABLE in ListOffsets: a new leader does not know the end of its log yet
(KIP-207).
"""
OTHER_TOPIC_CODES: Final = MISSING_CODES | {103}
"""MISSING_CODES, and INCONSISTENT_TOPIC_ID in Fetch: brokers return these codes for a deleted topic, and briefly after
a broker's own start.
"""
GONE_CODES: Final = MISSING_CODES | {1}
"""MISSING_CODES, and OFFSET_OUT_OF_RANGE in Fetch: an offset or its topic does not exist any more."""
REMOTE_CODES: Final = frozenset({-1, 7, 9})
"""Error codes of a leader whose remote storage is not ready (KIP-1007): UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT,
REPLICA_NOT_AVAILABLE. OFFSET_OUT_OF_RANGE is not in this set, although such a leader may answer with it for an offset
that the log has. Each code also has other causes. To find out whether remote storage is the cause, compare the offset
with the first offset that the leader stores on its own disk.
"""

# -- Produce -----------------------------------------------------------------------------------------------------------

TOO_LARGE_CODES: Final = frozenset({10, 18})
"""MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE: the batch is larger than the topic allows."""
REFUSED_SEQUENCE_CODES: Final = frozenset({45, 59})
"""OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID: the batch's sequence does not follow the last sequence that the
leader knows.
"""

# -- coordinators and transactions -------------------------------------------------------------------------------------

COORDINATOR_MOVED_CODES: Final = frozenset({15, 16})
"""COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: another broker may be the coordinator now."""
COORDINATOR_BUSY_CODES: Final = COORDINATOR_MOVED_CODES | {14, 51}
"""COORDINATOR_MOVED_CODES, COORDINATOR_LOAD_IN_PROGRESS, CONCURRENT_TRANSACTIONS: the coordinator is moving, or is busy
with the transaction.
"""
TRANSACTION_ENDING_CODES: Final = frozenset({19, 51, 88})
"""NOT_ENOUGH_REPLICAS, CONCURRENT_TRANSACTIONS, UNSTABLE_OFFSET_COMMIT: the coordinator or a leader may still be
completing the previous transaction, which takes milliseconds. The leader of a partition may answer Produce with
NOT_ENOUGH_REPLICAS if the coordinator has not confirmed the transaction.
"""
LOST_TRANSACTION_CODES: Final = FENCED_CODES | {48, 49}
"""FENCED_CODES, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING: the transaction timed out, a newer epoch took over, or
the transaction never existed.
"""
UNACCEPTABLE_OFFSETS_CODES: Final = frozenset({12, 24, 28})
"""OFFSET_METADATA_TOO_LARGE, INVALID_GROUP_ID, INVALID_COMMIT_OFFSET_SIZE in TxnOffsetCommit: the coordinator will
never accept the offsets, because the group has no name, or the metadata of an offset are too long.
"""

# -- permissions and settings ------------------------------------------------------------------------------------------

AUTHENTICATION_CODES: Final = frozenset({33, 34, 58})
"""UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED: the broker does not let this user in."""
REFUSED_NAME_CODES: Final = frozenset({30, 50, 53})
"""GROUP_AUTHORIZATION_FAILED, INVALID_TRANSACTION_TIMEOUT, TRANSACTIONAL_ID_AUTHORIZATION_FAILED: the cluster refuses a
transactional id or a group until somebody changes a permission or a setting.
"""
REFUSED_ID_CODES: Final = frozenset({31, 50, 53})
"""CLUSTER_AUTHORIZATION_FAILED, INVALID_TRANSACTION_TIMEOUT, TRANSACTIONAL_ID_AUTHORIZATION_FAILED in InitProducerId:
the cluster refuses a transactional id until somebody changes a permission or a setting.
"""
BLOCKING_CODES: Final = DESTINATION_CODES | {30, 53}
"""DESTINATION_CODES, GROUP_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED: the cluster blocks a topic, a
group or a transactional id, perhaps for a long time.
"""
