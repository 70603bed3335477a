"""The answers of a `Cluster`, and the arguments of its requests, as plain data. `api.py` has the rules for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import kafka.errors as kafka_errors

from kafkasafe.record.batch import BatchHeader

Buffer: TypeAlias = bytes | bytearray | memoryview

Token = TypeVar("Token")

LATEST: Final = -1
"""For `Cluster.list_offset`: the high watermark (read_committed: the last stable offset)."""
EARLIEST: Final = -2
"""The start of the log."""
MAX_TIMESTAMP: Final = -3
"""The record with the largest timestamp (Kafka 3.0 and later)."""
EARLIEST_LOCAL: Final = -4
"""The start of the part of the log that the leader has on its own disk (Kafka 3.4 and later)."""
LATEST_TIERED: Final = -5
"""The last offset in remote storage (Kafka 3.9 and later)."""
LIST_OFFSETS_VERSIONS: Final = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""Special timestamp -> the first version of ListOffsets that supports it (KIP-734, 405, 1005). Older versions take the
constant for an ordinary timestamp.
"""

NO_TOPIC_ID: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class TransactionIdentity:
    """The identity of a transaction's writer. Batches are stamped with the producer id and the epoch.

    Attributes:
        producer_id: Granted by the coordinator.
        epoch: Granted by the coordinator; a newer epoch fences older epochs. With protocol 2, each transaction has its
            own epoch.
        protocol: Version of the transaction protocol, 1 or 2; see `cluster.transactions`.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    protocol: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A request without an answer.

    Attributes:
        error: The cause; a `KafkaError` if Kafka or kafka-python defines an error for this cause.
        sent: False only if the request provably never reached the socket. If True, the broker may or may not have
            received the request.
        fence: For a Produce request, the same as `ProduceReply.fence`; 0 for other requests.
    """

    error: BaseException
    sent: bool
    fence: int = 0

    @property
    def code(self) -> int | None:
        """Kafka's error code; None if `error` is not one of Kafka's errors."""
        code = getattr(self.error, "errno", None)
        return code if isinstance(self.error, kafka_errors.KafkaError) and isinstance(code, int) else None

    @property
    def unsupported(self) -> bool:
        """Whether the brokers are too old for the request."""
        return isinstance(self.error, kafka_errors.UnsupportedVersionError)


T = TypeVar("T")

Reply: TypeAlias = Callable[[T | Failure], None]
"""Called once, with the answer or with a `Failure`."""


class Answer(Protocol):
    """The common part of all answers about one partition."""

    @property
    def error_code(self) -> int:
        """Kafka's error code, 0 for success."""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The leader of a partition.

    Attributes:
        leader: Node id; -1 if the partition has no leader.
        leader_epoch: The leader's epoch; -1 if the broker is too old (< 2.4) to report it reliably.
    """

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic in the latest metadata.

    Attributes:
        topic_id: The topic's id, 16 bytes; `NO_TOPIC_ID` if unknown (brokers < 2.8).
        partitions: The partitions by number. While `error_code` is not 0, the partitions that were known before the
            error.
        error_code: Kafka's error code for the topic as a whole; 0 for success. A broker that has just started may
            briefly answer with code 3 for a topic that exists.
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
        cluster_id: Id of the cluster that answered; None if the broker does not report it.
        brokers: Node ids of the brokers that the answer contains.
        topics: All watched topics that the answer contains.
    """

    cluster_id: str | None
    brokers: tuple[int, ...]
    topics: Mapping[str, TopicInfo]


@dataclass(frozen=True, slots=True)
class ProducerIdGranted:
    """A producer id for the caller alone."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ProduceRequest(Generic[Token]):
    """One batch to be appended to one partition.

    Attributes:
        token: Passed back with the reply.
        data: The bytes of exactly one RecordBatch with base offset 0. The bytes are not copied, so they must not change
            before the reply.
        fence: The newest `fence` that the caller has received for this partition; 0 before the first reply; None for no
            check. If the caller does not know yet that another batch of the partition has failed, `Cluster` refuses
            this batch and does not send it (`Failure` with `StaleFenceError`). Without the check, this batch could
            overtake the failed batch.
        patience_s: Seconds to add to the request's time-out. On a slow connection, a batch may stay in the system's
            buffers long after it was written to the socket.
        transaction: The identity whose producer id and epoch are in `data`; None if the batch belongs to no
            transaction.
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
        error_code: Kafka's error code; 0 for success.
        base_offset: Offset of the batch's first record; -1 if unknown.
        log_append_time: Ms since the epoch; -1 unless the topic uses LogAppendTime.
        log_start_offset: First offset of the log; -1 if the broker does not report it (< 1.0).
        record_errors: (index in the batch, message) of each record for which the broker refused the batch.
        error_message: The broker's description of the error, if it sent one.
        leader_hint: (node id, leader epoch) of the leader that the broker names (KIP-951); None without a hint.
            `Cluster` has already updated its metadata from the hint.
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
    """The answer to `Cluster.reach`: at this moment, the client can write a request to the partition's leader without a
    wait. `node` is the leader's node id.
    """

    node: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state that a partition's leader keeps for one producer.

    Attributes:
        epoch: Newest epoch that the leader has seen.
        last_sequence: Sequence of the last appended record (inclusive); -1 if none.
        last_timestamp: Timestamp of the last appended record, ms since the epoch; -1 if none.
    """

    epoch: int
    last_sequence: int
    last_timestamp: int


@dataclass(frozen=True, slots=True)
class ProducersDescribed:
    """The answer to DescribeProducers for one partition; `producers` maps producer ids to states."""

    error_code: int
    producers: Mapping[int, ProducerState] = field(default_factory=dict)
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class HeadersFetched:
    """The batch headers of one Fetch answer.

    Attributes:
        error_code: Kafka's error code; 0 for success.
        high_watermark: First offset that is not replicated yet; -1 if unknown.
        last_stable_offset: Offset where the earliest open transaction begins; the high watermark if no transaction is
            open; -1 if unknown.
        log_start_offset: First offset of the log; -1 if the broker does not report it (< 1.0).
        headers: Headers of the complete batches, in order. The first batch may begin before the requested offset.
        next_offset: Offset for the next request: the offset after the last complete batch, or the requested offset if
            no batch is complete.
        markers: The transaction markers among the batches, by offset. True: the marker commits its transaction. False:
            the marker aborts its transaction.
    """

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    headers: Sequence[BatchHeader]
    next_offset: int
    markers: Mapping[int, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordsFetched:
    """The batches of one Fetch answer, as the broker sent them.

    Attributes:
        error_code: Kafka's error code; 0 for success.
        high_watermark: First offset that is not replicated yet; -1 if unknown.
        last_stable_offset: Offset where the earliest open transaction begins; the high watermark if no transaction is
            open; -1 if unknown.
        log_start_offset: First offset of the log; -1 if the broker does not report it (< 1.0).
        records: Complete batches, possibly followed by the beginning of another batch. The first batch may begin before
            the requested offset. The contents of the batches are not checked.
        aborted: Pairs (producer id, first offset), one for each aborted transaction that has records in `records`.
            Always empty with read_uncommitted.
        next_offset: Offset for the next request: the offset after the last complete batch, or the requested offset if
            no batch is complete.
        diverging: Pair (leader epoch, end offset of this epoch). From the end offset on, the leader's log differs from
            the records that the client has read. None if `last_fetched_epoch` was not given, or if the broker found no
            difference or is older than 2.7. With a divergence, `records` is empty.
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
    """All topics that the client may see, except internal topics, with their partition numbers."""

    topics: Mapping[str, tuple[int, ...]]
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """The answer to CreateTopics.

    Attributes:
        error_code: Kafka's error code; 0 for success. 36: the topic exists.
        error_message: The broker's description of the error, if it sent one.
    """

    error_code: int
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetListed:
    """The answer to ListOffsets. `offset` is -1 if no offset matches; `leader_epoch` is -1 if unknown.

    `timestamp` is the timestamp of the record at `offset`, in ms; -1 unless the request was for a timestamp.
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
        leader_epoch: The largest epoch in the leader's log that is not larger than the requested epoch; -1 if unknown
            (which is not a sign of data loss).
        end_offset: End of `leader_epoch` (exclusive); -1 if unknown.
    """

    error_code: int
    leader_epoch: int
    end_offset: int
