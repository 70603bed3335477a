"""What a `Cluster` answers, as plain data, and what it is asked with. See api.py for what is true of all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import kafka.errors as kafka_errors

from kafkasafe._core.batch import BatchHeader
from kafkasafe.cluster.transactions import TransactionIdentity

__all__ = [
    "EARLIEST",
    "EARLIEST_LOCAL",
    "LATEST",
    "LATEST_TIERED",
    "LIST_OFFSETS_VERSIONS",
    "MAX_TIMESTAMP",
    "NO_TOPIC_ID",
    "Answer",
    "Broker",
    "Buffer",
    "EpochEnd",
    "Failure",
    "HeadersFetched",
    "MetadataRefreshed",
    "OffsetListed",
    "PartitionInfo",
    "ProduceReply",
    "ProduceRequest",
    "ProducerIdGranted",
    "ProducerState",
    "ProducersDescribed",
    "Reached",
    "RecordsFetched",
    "TopicInfo",
    "TopicsListed",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

Token = TypeVar("Token")

LATEST: Final = -1
"""For `Cluster.list_offset`: the high watermark (read_committed: the last stable offset)."""
EARLIEST: Final = -2
"""The start of the log."""
MAX_TIMESTAMP: Final = -3
"""The record with the largest timestamp (Kafka 3.0 and later)."""
EARLIEST_LOCAL: Final = -4
"""The start of what the leader has on its own disk (Kafka 3.4 and later)."""
LATEST_TIERED: Final = -5
"""The last offset in remote storage (Kafka 3.9 and later)."""
LIST_OFFSETS_VERSIONS: Final = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""Versions of ListOffsets from which on a broker knows these (KIP-734, 405, 1005); older ones take them for a time."""

NO_TOPIC_ID: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that has no answer.

    Attributes:
        error: What happened; a `KafkaError` where Kafka or its client has one for it.
        sent: False only if the request provably never reached the socket. True leaves open whether the broker has
            seen it.
        fence: As `ProduceReply.fence`; 0 for other requests.
    """

    error: BaseException
    sent: bool
    fence: int = 0

    @property
    def code(self) -> int | None:
        """Kafka's error code, None if the failure is none of Kafka's errors."""
        code = getattr(self.error, "errno", None)
        return code if isinstance(self.error, kafka_errors.KafkaError) and isinstance(code, int) else None

    @property
    def unsupported(self) -> bool:
        """Whether the brokers are too old for the request."""
        return isinstance(self.error, kafka_errors.UnsupportedVersionError)


class Answer(Protocol):
    """What every answer about one partition has."""

    @property
    def error_code(self) -> int:
        """Kafka's error code, 0 for success."""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Who leads a partition.

    Attributes:
        leader: Node id, -1 if there is none.
        leader_epoch: Its epoch, -1 where the broker is too old (< 2.4) to say it reliably.
    """

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic in the latest metadata.

    Attributes:
        name: Topic name.
        topic_id: Its id, 16 bytes; `NO_TOPIC_ID` when unknown (brokers < 2.8).
        partitions: By number. While `error_code` is not 0: what was known before, if anything.
        error_code: Kafka's error code for the topic as a whole, 0 for none. 3 is also answered for a moment by a
            broker that has just started.
    """

    name: str
    topic_id: bytes
    partitions: Mapping[int, PartitionInfo]
    error_code: int


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker in the latest metadata."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class MetadataRefreshed:
    """An answer to a metadata request.

    Attributes:
        cluster_id: Id of the cluster that answered, None from old brokers.
        brokers: Node ids.
        topics: All watched topics the answer spoke of.
    """

    cluster_id: str | None
    brokers: tuple[int, ...]
    topics: Mapping[str, TopicInfo]


@dataclass(frozen=True, slots=True)
class ProducerIdGranted:
    """A producer id of the caller's own."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ProduceRequest(Generic[Token]):
    """One batch to be appended to one partition.

    Attributes:
        token: Given back with the reply.
        topic: Topic name.
        partition: Partition number.
        data: Exactly one RecordBatch, base offset 0. Not copied: it must not change before the reply.
        fence: The newest `fence` that was received for this partition, 0 before the first reply; None for no
            check. The batch is refused (`Failure` with `StaleFenceError`, not sent) if another batch of the partition
            has failed since then and the caller, who does not know it yet, would let this one overtake it.
        patience_s: How much longer than the time-out its answer may take, in seconds: it may lie in buffers on a slow
            way long after it was written.
        transaction: That the batch belongs to, None for none. The batch is stamped with its id and epoch.
    """

    token: Token
    topic: str
    partition: int
    data: Buffer
    fence: int | None = None
    patience_s: float = 0.0
    transaction: TransactionIdentity | None = None


@dataclass(frozen=True, slots=True)
class ProduceReply:
    """A broker's answer for one batch.

    Attributes:
        error_code: Kafka's error code, 0 for success.
        base_offset: Offset of the batch's first record, -1 if unknown.
        log_append_time: Ms since the epoch, -1 unless the topic uses LogAppendTime.
        log_start_offset: First offset of the log, -1 if the broker (< 1.0) does not say.
        record_errors: (index in the batch, message) of the records that made the broker refuse it.
        error_message: What the broker says about the error, if anything.
        leader_hint: (node id, leader epoch) of the leader the broker points to (KIP-951), else None. Already
            taken over into the metadata.
        fence: Number of batches of this partition that have failed so far (see `ProduceRequest.fence`).
    """

    error_code: int
    base_offset: int
    log_append_time: int
    log_start_offset: int
    record_errors: tuple[tuple[int, str], ...] = ()
    error_message: str | None = None
    leader_hint: tuple[int, int] | None = None
    fence: int = 0


@dataclass(frozen=True, slots=True)
class Reached:
    """A partition's leader can be written to at once; `node` is its id."""

    node: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What the leader of a partition remembers of one producer.

    Attributes:
        epoch: Newest epoch seen.
        last_sequence: Sequence of the last record appended (inclusive), -1 if none.
        last_timestamp: Its timestamp in ms since the epoch, -1 if none.
    """

    epoch: int
    last_sequence: int
    last_timestamp: int


@dataclass(frozen=True, slots=True)
class ProducersDescribed:
    """The answer to DescribeProducers for one partition; `producers` is by producer id."""

    error_code: int
    producers: Mapping[int, ProducerState] = field(default_factory=dict)
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class HeadersFetched:
    """The batch headers of one Fetch answer.

    Attributes:
        error_code: Kafka's error code, 0 for success.
        high_watermark: First offset that is not replicated yet, -1 if unknown.
        last_stable_offset: First offset of an open transaction, -1 if unknown.
        log_start_offset: First offset of the log, -1 if the broker (< 1.0) does not say.
        headers: Headers of the complete batches, in order. The first may begin before the offset asked for.
        next_offset: Where to go on: after the last complete batch; the offset asked for if there was none.
    """

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    headers: Sequence[BatchHeader]
    next_offset: int


@dataclass(frozen=True, slots=True)
class RecordsFetched:
    """The batches of one Fetch answer, as the broker sent them.

    Attributes:
        error_code: Kafka's error code, 0 for success.
        high_watermark: First offset that is not replicated yet, -1 if unknown.
        last_stable_offset: First offset of an open transaction, -1 if unknown.
        log_start_offset: First offset of the log, -1 if the broker (< 1.0) does not say.
        records: Whole batches, and possibly a part of one more. The first may begin before the offset asked for. Not
            checked.
        aborted: (producer id, first offset) of the aborted transactions that they hold records of; always empty with
            read_uncommitted.
        next_offset: Where to go on: after the last whole batch; the offset asked for if there was none.
        diverging: (leader epoch, end offset) where the log differs from what was read, if `last_fetched_epoch` was
            given and the broker (2.7 and later) noticed; then there are no records.
    """

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: Buffer
    aborted: tuple[tuple[int, int], ...]
    next_offset: int
    diverging: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class TopicsListed:
    """All topics that the client may see, with the numbers of their partitions; internal ones apart."""

    topics: Mapping[str, tuple[int, ...]]
    internal: Mapping[str, tuple[int, ...]]
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class OffsetListed:
    """The answer to ListOffsets; `offset` is -1 if there is none, `leader_epoch` -1 if unknown.

    `timestamp` is that of the record, in ms; -1 unless the question was one by time.
    """

    error_code: int
    offset: int
    leader_epoch: int
    timestamp: int = -1


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The answer to OffsetForLeaderEpoch.

    Attributes:
        error_code: Kafka's error code, 0 for success.
        leader_epoch: The largest epoch up to the one asked for, -1 for unknown (which is not data loss).
        end_offset: Where it ends (exclusive), -1 for unknown.
    """

    error_code: int
    leader_epoch: int
    end_offset: int
