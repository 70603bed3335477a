"""The table of Kafka's error codes, as data. The module `verdicts` says how to find a verdict in the table.

The table has one row for each code of Apache Kafka 4.x (−1 … 133). Later versions of Kafka may add codes, which have no
row. A row may have a separate cell for Produce requests (class `Produce`), with facts that only the journal needs. The
most important fact is whether the answer *proves* that the broker did not append the batch. Without such a proof, the
journal asks the broker before it sends the batch again. If the journal did not ask, a broker that has lost the
producer's state could append the batch a second time. `BY_API` has the cells of other request kinds.

Kafka's `org.apache.kafka.common.protocol.Errors` assigns an exception class to each code. The flags of a code's row
follow from its exception class. A subclass of `RetriableException` is retriable. A subclass of
`RefreshRetriableException`, such as `InvalidMetadataException`, is retriable after a refresh of the metadata. A test
compares the flags with the exception class. A row whose flags deliberately differ says why in its `note`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


class ErrorAction(enum.Enum):
    """What to do about an error. The flags `retriable` and `refresh_metadata` of a verdict follow from its action."""

    SUCCESS = "success"
    """Nothing: the request succeeded."""
    RETRY = "retry"
    """Send the same request again, to the same broker, after a pause."""
    RETRY_AFTER_REFRESH = "retry_after_refresh"
    """Fetch metadata (or find the coordinator or the controller) before the retry: another broker may be responsible
    now.
    """
    ASK_BROKER = "ask_broker"
    """The answer decides nothing. Ask the broker for the actual state, then decide. Never send again blindly."""
    RESET_SEQUENCE = "reset_sequence"
    """Send the batch again under a new producer epoch (or id), from sequence 0: nothing was lost."""
    FENCE = "fence"
    """A newer owner, epoch or generation has taken over: stop writing under this identity for good."""
    REJECT_RECORD = "reject_record"
    """The broker will never accept these records: set them aside, inform their owner, continue with the next."""
    FATAL = "fatal"
    """No retry helps: an operator has to change something, or has to be informed."""


class AnswerAction(enum.Enum):
    """What the journal does with a batch after an answer to Produce."""

    ACK = "ack"
    RETRY = "retry"
    ASK_BROKER = "ask_broker"
    REJECT_BATCH = "reject_batch"


class Scope(enum.Enum):
    """What the journal rejects if the broker gives the same answer for longer than `blocked_timeout_ms`. Until then,
    the journal waits.
    """

    NONE = "none"
    """Nothing: the cluster is merely not ready."""
    DESTINATION = "destination"
    """All batches for a topic or partition that is missing, forbidden or invalid. An operator can perhaps repair this.
    """
    BATCH = "batch"
    """Only this batch: the broker fails on this batch each time."""


class Kind(enum.Enum):
    """Sets of codes. Several modules handle all codes of a set alike, for every kind of request."""

    MISSING = "missing"
    """The topic or partition does not exist, or this broker does not know it yet."""
    FENCED = "fenced"
    """The broker refuses the producer's epoch: a newer epoch exists, or the coordinator raised the epoch after a
    timeout.
    """
    SPOILT = "spoilt"
    """The current transaction must be aborted, but the next one can succeed."""
    NOT_A_MEMBER = "not a member"
    """The consumer is no longer in the group, or not in the group's current generation."""


@dataclass(frozen=True, slots=True)
class Produce:
    """What a row says about answers to Produce (see `codes.ProduceVerdict`). `meaning` is the cause in a few words."""

    action: AnswerAction
    meaning: str
    absent: bool
    refresh: bool
    split: bool
    scope: Scope


@dataclass(frozen=True, slots=True)
class Row:
    """What a code means for any request.

    Attributes:
        code: Kafka's error code.
        name: Kafka's name of the code.
        action: What to do.
        fix: The action in one sentence.
        at_risk: See `codes.Verdict.data_at_risk`.
        note: See `codes.Verdict.note`.
        produce: What the code means in an answer to Produce; None if brokers never answer Produce with the code.
        kind: The set of codes that are handled like this one; None if no such set has this code.
    """

    code: int
    name: str
    action: ErrorAction
    fix: str
    at_risk: bool
    note: str
    produce: Produce | None
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class Cell:
    """What a code means for one request kind, or in one context. The attributes are like those of `Row`."""

    action: ErrorAction
    fix: str
    at_risk: bool = False
    note: str = ""


def _row(
    code: int,
    name: str,
    action: ErrorAction,
    fix: str,
    *,
    at_risk: bool = False,
    note: str = "",
    produce: Produce | None = None,
    kind: Kind | None = None,
) -> Row:
    return Row(code, name, action, fix, at_risk, note, produce, kind)


def _produce(
    action: AnswerAction,
    meaning: str,
    *,
    absent: bool = False,
    refresh: bool = False,
    split: bool = False,
    scope: Scope = Scope.NONE,
) -> Produce:
    return Produce(action, meaning, absent, refresh, split, scope)


_OK: Final = ErrorAction.SUCCESS
_RETRY: Final = ErrorAction.RETRY
_REFRESH: Final = ErrorAction.RETRY_AFTER_REFRESH
_ASK: Final = ErrorAction.ASK_BROKER
_FENCE: Final = ErrorAction.FENCE
_REJECT: Final = ErrorAction.REJECT_RECORD
_FATAL: Final = ErrorAction.FATAL

# For codes that brokers and controllers send only to each other. A client that gets one is connected to the wrong
# listener.
_INTERNAL: Final = (
    "Sent between brokers only: check that bootstrap.servers names the brokers' client listener, then read the"
    " brokers' logs."
)

_ROWS: Final = (
    _row(
        -1,
        "UNKNOWN_SERVER_ERROR",
        _RETRY,
        "Retry with back-off within a deadline; if the error persists, its cause is in the answering broker's log.",
        note=(
            "In Kafka, this error is not retriable. Brokers answer with this code while they start and while remote"
            " storage is not ready (KIP-1007); repeating the same request for a limited time loses nothing."
        ),
        produce=_produce(
            AnswerAction.RETRY, "the broker failed for a reason it does not name", scope=Scope.BATCH
        ),
    ),
    _row(0, "NONE", _OK, "Nothing to do.", produce=_produce(AnswerAction.ACK, "appended and acknowledged")),
    _row(
        1,
        "OFFSET_OUT_OF_RANGE",
        _ASK,
        "Before any reset, compare the position with the log's start and end, and compare the position's leader epoch"
        " with the leader epochs of the log: a reset may skip records that were not read.",
        at_risk=True,
    ),
    _row(
        2,
        "CORRUPT_MESSAGE",
        _RETRY,
        "Send it again: the bytes were damaged on the way; if the error persists, look for a record without a key in a"
        " compacted topic, or for a faulty network.",
        produce=_produce(
            AnswerAction.RETRY, "the bytes were damaged on the way", absent=True, scope=Scope.BATCH
        ),
    ),
    _row(
        3,
        "UNKNOWN_TOPIC_OR_PARTITION",
        _REFRESH,
        "Refresh metadata and retry for a while: new topics take time to spread; if the error persists, create"
        " the topic or correct its name.",
        produce=_produce(
            AnswerAction.RETRY,
            "the broker does not host it",
            absent=True,
            refresh=True,
            scope=Scope.DESTINATION,
        ),
        kind=Kind.MISSING,
    ),
    _row(4, "INVALID_FETCH_SIZE", _FATAL, "Set the fetch sizes to at least 0 bytes."),
    _row(
        5,
        "LEADER_NOT_AVAILABLE",
        _REFRESH,
        "Retry after a metadata refresh: a leader is being elected.",
        produce=_produce(AnswerAction.RETRY, "an election is in progress", refresh=True),
    ),
    _row(
        6,
        "NOT_LEADER_OR_FOLLOWER",
        _REFRESH,
        "Refresh metadata and send it to the new leader.",
        produce=_produce(AnswerAction.RETRY, "the leader moved", refresh=True),
    ),
    _row(
        7,
        "REQUEST_TIMED_OUT",
        _RETRY,
        "Retry: replicas or a remote look-up were slow; if the error persists, look at the brokers' load.",
        produce=_produce(AnswerAction.RETRY, "replicas did not confirm in time"),
    ),
    _row(
        8,
        "BROKER_NOT_AVAILABLE",
        _REFRESH,
        "Refresh metadata and retry: the broker is down or restarts.",
        note=(
            "In Kafka, this error is not retriable. A broker that is away comes back, or another one takes its"
            " partitions."
        ),
    ),
    _row(
        9,
        "REPLICA_NOT_AVAILABLE",
        _REFRESH,
        "Refresh metadata and retry with back-off: the replica is moving, or remote storage is not"
        " ready yet (KIP-1007).",
    ),
    _row(
        10,
        "MESSAGE_TOO_LARGE",
        _REJECT,
        "Divide the batch; if a single record is too large, raise the topic's max.message.bytes, or make the record"
        " smaller.",
        produce=_produce(
            AnswerAction.REJECT_BATCH, "larger than max.message.bytes of the topic", absent=True, split=True
        ),
    ),
    _row(11, "STALE_CONTROLLER_EPOCH", _FATAL, _INTERNAL),
    _row(
        12,
        "OFFSET_METADATA_TOO_LARGE",
        _FATAL,
        "Commit with shorter metadata, or raise offset.metadata.max.bytes on the brokers.",
    ),
    _row(
        13,
        "NETWORK_EXCEPTION",
        _REFRESH,
        "Refresh metadata and retry: the connection broke before an answer came.",
        produce=_produce(AnswerAction.RETRY, "the connection broke", refresh=True),
    ),
    _row(14, "COORDINATOR_LOAD_IN_PROGRESS", _RETRY, "Retry: the coordinator is loading its state."),
    _row(
        15,
        "COORDINATOR_NOT_AVAILABLE",
        _REFRESH,
        "Find the coordinator again and retry.",
        note="Refresh means FindCoordinator here, not topic metadata.",
    ),
    _row(
        16,
        "NOT_COORDINATOR",
        _REFRESH,
        "Find the coordinator again and retry.",
        note="Refresh means FindCoordinator here, not topic metadata.",
    ),
    _row(
        17,
        "INVALID_TOPIC_EXCEPTION",
        _FATAL,
        "Correct the topic's name: it is illegal, or the topic takes no writes from clients.",
        produce=_produce(
            AnswerAction.RETRY,
            "a topic of this name cannot exist or takes no writes from clients",
            absent=True,
            scope=Scope.DESTINATION,
        ),
    ),
    _row(
        18,
        "RECORD_LIST_TOO_LARGE",
        _REJECT,
        "Divide the batch: it is larger than a segment of the topic.",
        produce=_produce(
            AnswerAction.REJECT_BATCH, "larger than the broker's segments", absent=True, split=True
        ),
    ),
    _row(
        19,
        "NOT_ENOUGH_REPLICAS",
        _RETRY,
        "Retry: fewer replicas are in sync than min.insync.replicas; bring brokers back.",
        produce=_produce(AnswerAction.RETRY, "fewer in-sync replicas than min.insync.replicas", absent=True),
    ),
    _row(
        20,
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        _RETRY,
        "Retry the same bytes under the same sequence: the leader appended the batch, but too few replicas have it"
        " yet.",
        produce=_produce(AnswerAction.RETRY, "appended, but too few replicas have it"),
    ),
    _row(
        21,
        "INVALID_REQUIRED_ACKS",
        _FATAL,
        'Set acks to "all" or 1.',
        produce=_produce(AnswerAction.REJECT_BATCH, "acks is neither 0, 1 nor all", absent=True),
    ),
    _row(
        22,
        "ILLEGAL_GENERATION",
        _FENCE,
        "Do not commit under this generation: the group has rebalanced and others may own the"
        " partitions; rejoin, and commit only what is assigned then.",
        kind=Kind.NOT_A_MEMBER,
    ),
    _row(
        23,
        "INCONSISTENT_GROUP_PROTOCOL",
        _FATAL,
        "Give all members of the group a partition assignor in common.",
    ),
    _row(24, "INVALID_GROUP_ID", _FATAL, "Set a group id that is not empty."),
    _row(
        25,
        "UNKNOWN_MEMBER_ID",
        _FENCE,
        "Rejoin the group as a new member: the coordinator has removed this one and given its partitions away.",
        kind=Kind.NOT_A_MEMBER,
    ),
    _row(
        26,
        "INVALID_SESSION_TIMEOUT",
        _FATAL,
        "Set session.timeout.ms between the brokers' group.min.session.timeout.ms and group.max.session.timeout.ms.",
    ),
    _row(
        27,
        "REBALANCE_IN_PROGRESS",
        _FENCE,
        "Rejoin (poll) before committing again: this generation is ending.",
    ),
    _row(28, "INVALID_COMMIT_OFFSET_SIZE", _FATAL, "Commit fewer partitions or shorter metadata at a time."),
    _row(
        29,
        "TOPIC_AUTHORIZATION_FAILED",
        _FATAL,
        "Grant this user the permission (ACL) on the topic.",
        produce=_produce(
            AnswerAction.RETRY,
            "this user may not write to the topic",
            absent=True,
            scope=Scope.DESTINATION,
        ),
    ),
    _row(30, "GROUP_AUTHORIZATION_FAILED", _FATAL, "Grant this user READ on the group."),
    _row(
        31,
        "CLUSTER_AUTHORIZATION_FAILED",
        _FATAL,
        "Grant this user the permission on the cluster (for idempotent writes to brokers before 2.8:"
        " IDEMPOTENT_WRITE).",
        produce=_produce(AnswerAction.RETRY, "this user may not write idempotently", absent=True),
    ),
    _row(
        32,
        "INVALID_TIMESTAMP",
        _REJECT,
        "Give the record a timestamp within message.timestamp.before.max.ms and .after.max.ms of the topic.",
        produce=_produce(
            AnswerAction.REJECT_BATCH, "timestamp outside what the topic allows", absent=True, split=True
        ),
    ),
    _row(33, "UNSUPPORTED_SASL_MECHANISM", _FATAL, "Set sasl_mechanism to one that the listener offers."),
    _row(
        34,
        "ILLEGAL_SASL_STATE",
        _FATAL,
        "Set security_protocol to what the listener speaks: SASL messages came when none were expected.",
    ),
    _row(
        35,
        "UNSUPPORTED_VERSION",
        _FATAL,
        "Use a request version that the broker knows, or a newer broker.",
        produce=_produce(AnswerAction.RETRY, "the broker does not know this version", absent=True),
    ),
    _row(36, "TOPIC_ALREADY_EXISTS", _FATAL, "The topic exists already: use it, or choose another name."),
    _row(37, "INVALID_PARTITIONS", _FATAL, "Ask for at least one partition, and for more than there are."),
    _row(38, "INVALID_REPLICATION_FACTOR", _FATAL, "Ask for at most as many replicas as there are brokers."),
    _row(39, "INVALID_REPLICA_ASSIGNMENT", _FATAL, "Assign every replica to a different existing broker."),
    _row(40, "INVALID_CONFIG", _FATAL, "Correct the configuration that the message names."),
    _row(
        41,
        "NOT_CONTROLLER",
        _REFRESH,
        "Look up the controller and retry there.",
        note=(
            "In Kafka, this error is retriable without a refresh; Kafka's admin client has separate code that looks up"
            " the controller. Without a look-up, a retry asks the same broker for ever."
        ),
    ),
    _row(
        42,
        "INVALID_REQUEST",
        _FATAL,
        "The broker finds the request malformed: report this as a bug, with the broker's log line and the versions of"
        " the client and the broker.",
        produce=_produce(AnswerAction.REJECT_BATCH, "the broker finds the request malformed", absent=True),
    ),
    _row(
        43,
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        _FATAL,
        "Raise the topic's message format version: it is too old for idempotence or headers.",
        produce=_produce(AnswerAction.REJECT_BATCH, "the topic has an old message format", absent=True),
    ),
    _row(
        44,
        "POLICY_VIOLATION",
        _FATAL,
        "Change the request to what the cluster's policy allows; the message names the rule.",
        produce=_produce(
            AnswerAction.REJECT_BATCH, "a policy of the cluster forbids it", absent=True, split=True
        ),
    ),
    _row(
        45,
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        _ASK,
        "Ask DescribeProducers (or read the log): either the batch is already committed, or earlier records are"
        " missing; records that stay missing are lost.",
        at_risk=True,
        produce=_produce(
            AnswerAction.ASK_BROKER, "already committed, or a gap: only the broker's state tells"
        ),
        kind=Kind.SPOILT,
    ),
    # None of the seven broker versions that were tried sends error 46, but its meaning is clear. The journal still asks
    # the broker, because the batch may not have passed the high watermark yet.
    _row(
        46,
        "DUPLICATE_SEQUENCE_NUMBER",
        _OK,
        "Treat it as acknowledged: the broker has this batch already (its offset is not known).",
        produce=_produce(AnswerAction.ASK_BROKER, "the broker has this batch already"),
        kind=Kind.SPOILT,
    ),
    _row(
        47,
        "INVALID_PRODUCER_EPOCH",
        _FENCE,
        "Stop this producer: another producer has written with a newer epoch of the same producer id, so it has taken"
        " over.",
        produce=_produce(AnswerAction.ASK_BROKER, "a newer epoch of this producer id wrote to the partition"),
        kind=Kind.FENCED,
    ),
    _row(
        48,
        "INVALID_TXN_STATE",
        _FATAL,
        "Restart the transaction from InitProducerId: the coordinator is in a different state than the"
        " client believes.",
        kind=Kind.SPOILT,
    ),
    _row(
        49,
        "INVALID_PRODUCER_ID_MAPPING",
        _FENCE,
        "Stop: this transactional id belongs to another producer id now, or has expired; a new"
        " InitProducerId starts over.",
        kind=Kind.SPOILT,
    ),
    _row(
        50,
        "INVALID_TRANSACTION_TIMEOUT",
        _FATAL,
        "Set transaction.timeout.ms to at most the brokers' transaction.max.timeout.ms.",
    ),
    _row(
        51,
        "CONCURRENT_TRANSACTIONS",
        _RETRY,
        "Retry: the previous transaction of this id is still being completed.",
    ),
    _row(52, "TRANSACTION_COORDINATOR_FENCED", _FATAL, _INTERNAL),
    _row(
        53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", _FATAL, "Grant this user WRITE on the transactional id."
    ),
    _row(54, "SECURITY_DISABLED", _FATAL, "Configure an authorizer on the brokers before managing ACLs."),
    _row(
        55,
        "OPERATION_NOT_ATTEMPTED",
        _FATAL,
        "Another part of the request failed, so this part was not tried: correct that other part, then send the whole"
        " request again.",
    ),
    _row(
        56,
        "KAFKA_STORAGE_ERROR",
        _REFRESH,
        "Refresh metadata and retry at the new leader: the former leader's disk failed and has to be replaced.",
        produce=_produce(AnswerAction.RETRY, "the broker's disk failed", refresh=True),
    ),
    _row(57, "LOG_DIR_NOT_FOUND", _FATAL, "Name a log directory that the broker has in log.dirs."),
    _row(58, "SASL_AUTHENTICATION_FAILED", _FATAL, "Correct the user name, the password or the token."),
    _row(
        59,
        "UNKNOWN_PRODUCER_ID",
        _ASK,
        "Compare the log start offset with the last acknowledged offset: if the log start offset is higher, retention"
        " removed the producer's records, and a new sequence is safe; otherwise acknowledged records are lost.",
        at_risk=True,
        produce=_produce(AnswerAction.ASK_BROKER, "the broker forgot this producer (brokers before 2.5)"),
        kind=Kind.SPOILT,
    ),
    _row(
        60,
        "REASSIGNMENT_IN_PROGRESS",
        _FATAL,
        "Wait for the running reassignment to end, or cancel it, then ask again.",
    ),
    _row(
        61,
        "DELEGATION_TOKEN_AUTH_DISABLED",
        _FATAL,
        "Enable delegation tokens on the brokers (delegation.token.secret.key).",
    ),
    _row(62, "DELEGATION_TOKEN_NOT_FOUND", _FATAL, "Get a new delegation token."),
    _row(63, "DELEGATION_TOKEN_OWNER_MISMATCH", _FATAL, "Ask as the owner of the delegation token."),
    _row(
        64,
        "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
        _FATAL,
        "Ask for tokens over a SASL or mutual TLS connection that is not itself authenticated by a token.",
    ),
    _row(
        65,
        "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
        _FATAL,
        "Grant this user the permission on the delegation token.",
    ),
    _row(
        66,
        "DELEGATION_TOKEN_EXPIRED",
        _FATAL,
        "Get a new delegation token; from then on, renew the token before it expires.",
    ),
    _row(67, "INVALID_PRINCIPAL_TYPE", _FATAL, 'Use principals of the type "User".'),
    _row(68, "NON_EMPTY_GROUP", _FATAL, "Stop all members of the group first."),
    _row(69, "GROUP_ID_NOT_FOUND", _FATAL, "Check the group's name: no such group exists."),
    _row(70, "FETCH_SESSION_ID_NOT_FOUND", _RETRY, "Fetch again with a new fetch session."),
    _row(71, "INVALID_FETCH_SESSION_EPOCH", _RETRY, "Fetch again with a new fetch session."),
    _row(
        72,
        "LISTENER_NOT_FOUND",
        _REFRESH,
        "Refresh metadata and retry: the leader has no such listener yet; if the error persists, give all"
        " brokers the listener.",
        produce=_produce(AnswerAction.RETRY, "the leader has no such listener yet", refresh=True),
    ),
    _row(73, "TOPIC_DELETION_DISABLED", _FATAL, "Set delete.topic.enable=true on the brokers."),
    _row(
        74,
        "FENCED_LEADER_EPOCH",
        _REFRESH,
        "Refresh metadata and retry with the newer leader epoch; a consumer validates its position first (KIP-320).",
        produce=_produce(AnswerAction.RETRY, "the leader moved", refresh=True),
    ),
    _row(
        75,
        "UNKNOWN_LEADER_EPOCH",
        _RETRY,
        "Retry: the broker has not heard of this leader epoch yet.",
        produce=_produce(AnswerAction.RETRY, "the broker is behind the metadata", refresh=True),
    ),
    _row(
        76,
        "UNSUPPORTED_COMPRESSION_TYPE",
        _FATAL,
        "Choose a compression that the broker and this request version know.",
        produce=_produce(AnswerAction.REJECT_BATCH, "the broker cannot read this compression", absent=True),
    ),
    _row(77, "STALE_BROKER_EPOCH", _FATAL, _INTERNAL),
    _row(
        78,
        "OFFSET_NOT_AVAILABLE",
        _RETRY,
        "Retry at the same leader: its high watermark has not caught up after the election (KIP-207).",
    ),
    _row(79, "MEMBER_ID_REQUIRED", _ASK, "Send JoinGroup again with the member id that this answer carries."),
    _row(
        80, "PREFERRED_LEADER_NOT_AVAILABLE", _REFRESH, "Retry when the preferred leader is back and in sync."
    ),
    _row(81, "GROUP_MAX_SIZE_REACHED", _FATAL, "Run fewer members, or raise group.max.size on the brokers."),
    _row(
        82,
        "FENCED_INSTANCE_ID",
        _FENCE,
        "Stop this member: another one uses its group.instance.id; give each a different one.",
        kind=Kind.NOT_A_MEMBER,
    ),
    _row(
        83,
        "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        _REFRESH,
        "Retry when an in-sync replica is back; an unclean election would need no such replica, but loses data.",
    ),
    _row(
        84,
        "ELECTION_NOT_NEEDED",
        _OK,
        "Nothing to do: the requested leader is the leader already.",
        note=(
            "In Kafka, this error is retriable, because its class inherits from a retriable class. But a retry changes"
            " nothing: the requested leader is the leader already."
        ),
    ),
    _row(85, "NO_REASSIGNMENT_IN_PROGRESS", _FATAL, "Nothing to cancel: no reassignment is running."),
    _row(86, "GROUP_SUBSCRIBED_TO_TOPIC", _FATAL, "Stop the members that subscribe to the topic first."),
    _row(
        87,
        "INVALID_RECORD",
        _REJECT,
        "Correct the record: it breaks a rule of the topic (a compacted topic needs keys).",
        produce=_produce(
            AnswerAction.REJECT_BATCH, "a record breaks a rule of the topic", absent=True, split=True
        ),
    ),
    _row(
        88,
        "UNSTABLE_OFFSET_COMMIT",
        _RETRY,
        "Retry: a transaction that commits these offsets is not finished.",
    ),
    _row(
        89,
        "THROTTLING_QUOTA_EXCEEDED",
        _RETRY,
        "Retry after throttle_time_ms: a quota is exceeded.",
        produce=_produce(AnswerAction.RETRY, "quota exceeded", absent=True),
    ),
    _row(
        90,
        "PRODUCER_FENCED",
        _FENCE,
        "Stop this producer: a newer one has taken its id over.",
        produce=_produce(AnswerAction.ASK_BROKER, "a newer epoch of this producer id wrote to the partition"),
        kind=Kind.FENCED,
    ),
    _row(91, "RESOURCE_NOT_FOUND", _FATAL, "Check the name: no such resource exists."),
    _row(92, "DUPLICATE_RESOURCE", _FATAL, "Name each resource once."),
    _row(
        93,
        "UNACCEPTABLE_CREDENTIAL",
        _FATAL,
        "Choose credentials that meet the requirements (SCRAM: iterations, no empty password).",
    ),
    _row(94, "INCONSISTENT_VOTER_SET", _FATAL, _INTERNAL),
    _row(95, "INVALID_UPDATE_VERSION", _FATAL, "Ask for a feature version that all brokers support."),
    _row(
        96,
        "FEATURE_UPDATE_FAILED",
        _FATAL,
        "See the controller's log: the finalized features could not be updated.",
    ),
    _row(
        97,
        "PRINCIPAL_DESERIALIZATION_FAILURE",
        _FATAL,
        "Give brokers and controllers the same principal builder: the controller could not read the principal of a"
        " request that a broker forwarded.",
    ),
    _row(98, "SNAPSHOT_NOT_FOUND", _FATAL, _INTERNAL),
    _row(99, "POSITION_OUT_OF_RANGE", _FATAL, _INTERNAL),
    _row(
        100,
        "UNKNOWN_TOPIC_ID",
        _REFRESH,
        "Refresh metadata and retry for a while: the broker does not know this topic id yet, or the"
        " topic was deleted or re-created.",
        produce=_produce(
            AnswerAction.RETRY,
            "the broker does not know this topic id",
            absent=True,
            refresh=True,
            scope=Scope.DESTINATION,
        ),
        kind=Kind.MISSING,
    ),
    _row(101, "DUPLICATE_BROKER_REGISTRATION", _FATAL, _INTERNAL),
    _row(102, "BROKER_ID_NOT_REGISTERED", _FATAL, _INTERNAL),
    _row(
        103,
        "INCONSISTENT_TOPIC_ID",
        _REFRESH,
        "Refresh metadata and compare topic ids before you write or read more: the topic was"
        " re-created, and its old records no longer exist.",
        at_risk=True,
    ),
    _row(
        104,
        "INCONSISTENT_CLUSTER_ID",
        _FATAL,
        "Check bootstrap.servers: these brokers belong to another cluster.",
    ),
    _row(
        105,
        "TRANSACTIONAL_ID_NOT_FOUND",
        _FATAL,
        "Check the transactional id: the coordinator does not know it, or it has expired.",
    ),
    _row(106, "FETCH_SESSION_TOPIC_ID_ERROR", _RETRY, "Fetch again with a new fetch session."),
    _row(107, "INELIGIBLE_REPLICA", _FATAL, _INTERNAL),
    _row(108, "NEW_LEADER_ELECTED", _FATAL, _INTERNAL),
    _row(109, "OFFSET_MOVED_TO_TIERED_STORAGE", _FATAL, _INTERNAL),
    _row(
        110,
        "FENCED_MEMBER_EPOCH",
        _FENCE,
        "Give up the partitions and rejoin: the coordinator has fenced this member epoch.",
    ),
    _row(
        111,
        "UNRELEASED_INSTANCE_ID",
        _FATAL,
        "Stop the other member with this group.instance.id, or give this one another.",
    ),
    _row(
        112,
        "UNSUPPORTED_ASSIGNOR",
        _FATAL,
        "Choose an assignor that the coordinator lists in group.consumer.assignors.",
    ),
    _row(
        113,
        "STALE_MEMBER_EPOCH",
        _FENCE,
        "Do not commit under this member epoch: take the new one from the next heartbeat, then commit"
        " what is still assigned.",
    ),
    _row(
        114,
        "MISMATCHED_ENDPOINT_TYPE",
        _FATAL,
        "Give brokers as bootstrap.servers and controllers as bootstrap.controllers, not the other way round.",
    ),
    _row(
        115,
        "UNSUPPORTED_ENDPOINT_TYPE",
        _FATAL,
        "Send the request to a broker: this kind of endpoint does not serve it.",
    ),
    _row(116, "UNKNOWN_CONTROLLER_ID", _FATAL, _INTERNAL),
    _row(
        117,
        "UNKNOWN_SUBSCRIPTION_ID",
        _ASK,
        "Send GetTelemetrySubscriptions again: the subscription has changed.",
    ),
    _row(
        118,
        "TELEMETRY_TOO_LARGE",
        _FATAL,
        "Push less telemetry at a time: the broker limits it by telemetry.max.bytes.",
    ),
    _row(119, "INVALID_REGISTRATION", _FATAL, _INTERNAL),
    _row(
        120,
        "TRANSACTION_ABORTABLE",
        _FATAL,
        "Abort this transaction and repeat it as a new one: the producer itself can continue.",
        kind=Kind.SPOILT,
    ),
    _row(
        121,
        "INVALID_RECORD_STATE",
        _FATAL,
        "Do not acknowledge these records again: their acquisition lock has timed out, and they are"
        " delivered to others.",
    ),
    _row(122, "SHARE_SESSION_NOT_FOUND", _RETRY, "Fetch again with a new share session."),
    _row(123, "INVALID_SHARE_SESSION_EPOCH", _RETRY, "Fetch again with a new share session."),
    _row(124, "FENCED_STATE_EPOCH", _FATAL, _INTERNAL),
    _row(125, "INVALID_VOTER_KEY", _FATAL, "Name the voter with the directory id that it has now."),
    _row(126, "DUPLICATE_VOTER", _FATAL, "Nothing to add: the voter is in the set already."),
    _row(127, "VOTER_NOT_FOUND", _FATAL, "Check the voter's id: it is not in the set."),
    _row(
        128,
        "INVALID_REGULAR_EXPRESSION",
        _FATAL,
        "Correct the subscription pattern: the brokers read RE2 syntax.",
    ),
    _row(
        129,
        "REBOOTSTRAP_REQUIRED",
        _REFRESH,
        "Start again from bootstrap.servers (KIP-1102), then retry.",
        note=(
            "In Kafka, the class of this error is not retriable. But Kafka's clients ignore the class of"
            " REBOOTSTRAP_REQUIRED: they bootstrap again, and continue."
        ),
    ),
    _row(130, "STREAMS_INVALID_TOPOLOGY", _FATAL, "Correct the Streams topology that was sent."),
    _row(
        131, "STREAMS_INVALID_TOPOLOGY_EPOCH", _FATAL, "Send a topology epoch that is not behind the group's."
    ),
    _row(
        132,
        "STREAMS_TOPOLOGY_FENCED",
        _FENCE,
        "Stop this Streams member: the group runs a newer topology; deploy that one here.",
    ),
    _row(
        133,
        "SHARE_SESSION_LIMIT_REACHED",
        _RETRY,
        "Retry later: the broker has as many share sessions as it allows.",
    ),
)


TABLE: Final[Mapping[int, Row]] = MappingProxyType({row.code: row for row in _ROWS})

NOT_READY: Final = (
    "remote storage is not ready yet (KIP-1007); other partitions and local offsets are not affected"
)

# Verdicts that apply to one request kind only.
BY_API: Final[Mapping[tuple[str, int], Cell]] = MappingProxyType(
    {
        ("fetch", -1): Cell(
            _RETRY, f"Retry only this partition, with back-off, and keep the position: usually {NOT_READY}."
        ),
        ("fetch", 2): Cell(
            _RETRY,
            "Retry; if the error persists, the leader's copy is damaged: let another replica lead before you skip"
            " anything.",
            at_risk=True,
        ),
        ("fetch", 9): Cell(
            _REFRESH,
            f"Retry only this partition, with back-off, and keep the position: the replica is moving, or {NOT_READY}.",
        ),
        ("fetch", 78): Cell(
            _RETRY, "Retry: this replica does not know its high watermark after the election yet."
        ),
        ("list_offsets", -1): Cell(
            _RETRY,
            f"Retry only this partition, with back-off, and draw no conclusion from the answer: usually {NOT_READY}.",
        ),
        ("list_offsets", 5): Cell(
            _REFRESH,
            "Refresh metadata and retry, but do not fall back on an older answer: either an election is in progress, or"
            " the high watermark has not caught up since the election (KIP-207; brokers send this code only up to"
            " ListOffsets v4).",
        ),
        ("list_offsets", 7): Cell(_RETRY, "Retry with back-off: a look-up in remote storage was too slow."),
        ("list_offsets", 9): Cell(
            _REFRESH,
            f"Retry only this partition, with back-off, and draw no conclusion from the answer: the replica is moving,"
            f" or {NOT_READY}.",
        ),
        ("list_offsets", 43): Cell(
            _FATAL, "Raise the topic's message format version: look-ups by time need timestamps (0.10)."
        ),
        ("list_offsets", 78): Cell(
            _RETRY,
            "Retry at the same leader, without a metadata refresh, and keep the highest end offset seen: the leader's"
            " high watermark has not caught up after the election (KIP-207).",
        ),
        ("describe_producers", 35): Cell(
            _ASK, "Read the batch headers in the log instead: brokers before 2.8 have no DescribeProducers."
        ),
    }
)

UNKNOWN: Final = Cell(
    _REFRESH,
    "Refresh metadata, retry within a deadline and draw no conclusion from the answer: this version of kafkasafe does"
    " not know the code.",
    note="Not in the table: Kafka's clients take an unknown code for UNKNOWN_SERVER_ERROR, which they do not retry.",
)
