"""Events: frozen dataclasses that SafeProducer and SafeConsumer pass to the hook `on_event`.

A producer calls its hook on its own thread. A consumer calls its hook on the thread that called the consumer.

Some fields name a lane. A lane is one producer's subdirectory of the spool directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "AtomicBatchCommitted",
    "AtomicBatchDropped",
    "AtomicBatchRetried",
    "ConsumerEvent",
    "DataLost",
    "DeliveryRetried",
    "EndOffsetHeld",
    "EndOffsetRegressed",
    "Event",
    "LaneAdopted",
    "LaneReturned",
    "LogDiverged",
    "LossCheckInconclusive",
    "LostRecordsRestored",
    "OrderNotGuaranteed",
    "OrphanedSpoolFound",
    "PartitionNotReady",
    "PartitionReady",
    "PositionReset",
    "PositionRewound",
    "RecordsCommitted",
    "RecordsRejected",
    "RecordsUndecidable",
    "RetainedRecordsDeleted",
    "SourceDataLost",
    "SpoolDisplaced",
    "SpoolRecordsMissing",
    "SpoolRecovered",
    "SpoolWriteFailed",
    "TopicBlocked",
    "TopicUnblocked",
    "TransactionsBlocked",
    "TransactionsUnblocked",
    "WaitingForOlderRecords",
]


@dataclass(frozen=True, slots=True)
class RecordsCommitted:
    """A batch is in the cluster's log, and the spool has durably recorded this.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        first_offset: Offset of the first record.
        records: Number of records. Their offsets are consecutive.
    """

    topic: str
    partition: int
    first_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class AtomicBatchCommitted:
    """An atomic batch is committed, and the spool has durably recorded this.

    Atomic batches come from `SafeProducer.batch` and from `delivery="transactional"`.

    Attributes:
        batch_id: Id of the whole batch, 32 hexadecimal digits.
        transactional_id: The application's `transactional_id`; empty if the producer used one of its own.
        records: Number of records in all partitions.
        partitions: Number of partitions.
    """

    batch_id: str
    transactional_id: str
    records: int
    partitions: int


@dataclass(frozen=True, slots=True)
class AtomicBatchDropped:
    """An atomic batch was dropped; `read_committed` consumers see none of its records.

    Attributes:
        batch_id: Id of the whole batch, 32 hexadecimal digits.
        transactional_id: The application's `transactional_id`; empty if the producer used one of its own.
        records: Number of records in all partitions.
        code: Kafka's error code; 0 without one.
        reason: The cluster's answer, or the reason why the producer itself dropped the batch.
    """

    batch_id: str
    transactional_id: str
    records: int
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class AtomicBatchRetried:
    """The transaction of an atomic batch was aborted; the producer sends the batch again in a new transaction.

    Attributes:
        batch_id: Id of the whole batch, 32 hexadecimal digits.
        attempt: Number of consecutive failed attempts.
        reason: Why the last attempt was aborted.
    """

    batch_id: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordsRejected:
    """The cluster rejected records permanently; the producer keeps them in `rejected/` of the spool directory.

    With `spool="never"` the records are not kept, and `kept_in` is empty.

    Attributes:
        topic: Topic name.
        partition: Partition number; -1 if no partition has been chosen yet.
        records: Number of records.
        code: Kafka's error code.
        reason: Kafka's name of the error and the broker's message.
        kept_in: The directory that holds the records now; empty if they are not kept.
    """

    topic: str
    partition: int
    records: int
    code: int
    reason: str
    kept_in: str


@dataclass(frozen=True, slots=True)
class TopicBlocked:
    """The cluster blocks a topic, a partition or a batch for a reason that may be temporary; pending records are kept.

    The event is emitted when the same error has lasted for a second; for a missing topic only after a minute, because
    brokers do not know a new topic at first.

    Attributes:
        topic: Topic name.
        partition: Partition number; -1 if no partition is chosen yet.
        code: Kafka's error code. 29: no permission to write. 3 and 100: the topic is missing. 17: the topic does not
            accept writes. 32: timestamps too far in the future. 2 and -1: the broker fails on this batch.
        reason: The cluster's answer.
        batches: Number of pending batches.
        records: Number of records in them.
    """

    topic: str
    partition: int
    code: int
    reason: str
    batches: int
    records: int


@dataclass(frozen=True, slots=True)
class TopicUnblocked:
    """The condition reported by `TopicBlocked` has cleared; delivery resumes.

    Attributes:
        topic: Topic name.
        partition: Partition number; -1 if no partition is chosen yet.
        code: The last error code.
        after_s: Seconds since the cluster first answered with this error.
    """

    topic: str
    partition: int
    code: int
    after_s: float


@dataclass(frozen=True, slots=True)
class TransactionsBlocked:
    """The cluster blocks a transactional id or a consumer group; the atomic batches that need it are kept.

    The event is emitted when the same error has lasted for a second; for a missing topic after ten seconds.

    Attributes:
        name: `transactional id NAME`, `group NAME`, or `READ on TOPIC`. A NAME that ends with `-*` means all
            transactional ids of a lane.
        code: Kafka's error code. 53 and 30: a permission is missing. 50: `transaction_timeout_ms` is more than the
            brokers allow. 3: the batch commits an offset for a topic that is missing. 29: this client has no
            permission to read a topic for which the batch commits an offset, or a topic of the batch's records. With 3
            and 29, the producer drops the batch after `blocked_timeout_ms`.
        reason: The cluster's answer.
        records: Number of pending records.
    """

    name: str
    code: int
    reason: str
    records: int


@dataclass(frozen=True, slots=True)
class TransactionsUnblocked:
    """The condition reported by `TransactionsBlocked` has cleared.

    Attributes:
        name: The same `name` as in `TransactionsBlocked`.
        code: Kafka's error code.
        after_s: Seconds since the cluster first answered with this error.
    """

    name: str
    code: int
    after_s: float


@dataclass(frozen=True, slots=True)
class RecordsUndecidable:
    """The producer cannot determine whether a batch is in the log; `on_undecidable` decides what happens to the batch.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        records: Number of records.
        position: Number of the batch in its lane, as `kafkasafe spool ls` shows it.
        evidence: The producer's requests and the cluster's answers.
    """

    topic: str
    partition: int
    records: int
    position: int
    evidence: str


@dataclass(frozen=True, slots=True)
class DataLost:
    """The cluster lost records from its log that it had acknowledged.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        first_offset: First lost offset.
        last_offset: Last lost offset (inclusive).
        records: Number of records in this range that came from this spool.
        reason: What revealed the loss: "ack", "sequence", "unknown producer", "log end" or "topic id".
        evidence: The observations that prove the loss.
        restoring_records: Number of lost records that the spool still has and that the producer sends again. The resent
            records keep their own order, but come after all records that were appended since the loss.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int
    reason: str
    evidence: str
    restoring_records: int


@dataclass(frozen=True, slots=True)
class LostRecordsRestored:
    """Acknowledged records that were lost are in the log again, once and in order.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        records: Number of records.
        first_offset: New offset of the first record.
        last_offset: New offset of the last record (inclusive).
    """

    topic: str
    partition: int
    records: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class DeliveryRetried:
    """Sending to a partition failed; the producer tries again after a pause.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        attempt: Number of consecutive failed attempts.
        pause_s: Seconds until the next attempt.
        reason: Why the last attempt failed.
    """

    topic: str
    partition: int
    attempt: int
    pause_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class SpoolRecovered:
    """The producer opened a lane that holds records of an earlier run.

    Attributes:
        lane: Name of the lane.
        batches: Number of batches that are not delivered yet.
        records: Number of records in them.
        in_doubt_batches: Number of these batches that the cluster may already have appended.
    """

    lane: str
    batches: int
    records: int
    in_doubt_batches: int


@dataclass(frozen=True, slots=True)
class SpoolRecordsMissing:
    """Durable records of an earlier run are neither in the cluster's log nor in the spool, and no damage explains why.

    Attributes:
        lane: Name of the lane that held the records.
        topic: Topic name.
        partition: Partition number.
        records: Number of records.
        evidence: The producer state that the partition's leader reported.
    """

    lane: str
    topic: str
    partition: int
    records: int
    evidence: str


@dataclass(frozen=True, slots=True)
class LaneAdopted:
    """The process that owned a lane has died; this process now delivers the lane's records.

    Attributes:
        lane: Name of the lane.
        batches: Number of batches that are not delivered yet.
        records: Number of records in them.
    """

    lane: str
    batches: int
    records: int


@dataclass(frozen=True, slots=True)
class RetainedRecordsDeleted:
    """The producer deleted delivered records that `retain_acked_*` had kept, to make room in the spool.

    If the cluster loses these records, the producer cannot send them again.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        first_offset: Offset of the first deleted record.
        last_offset: Offset of the last deleted record (inclusive).
        records: Number of records.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class LaneReturned:
    """This process returned an adopted lane to its restarted owner, which delivers the remaining batches.

    Attributes:
        lane: Name of the lane.
        batches: Number of batches that are not delivered yet.
    """

    lane: str
    batches: int


@dataclass(frozen=True, slots=True)
class WaitingForOlderRecords:
    """Records wait because other lanes of the directory hold older undelivered records for the same partitions.

    Attributes:
        lane: Name of the lane that holds the waiting records.
        held_by: Names of the lanes that hold the older records.
        partitions: (topic, partition) of the waiting records. The partition is -1 if none is chosen yet.
    """

    lane: str
    held_by: tuple[str, ...]
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class OrderNotGuaranteed:
    """The producer cannot read the records that earlier producers left in a lane, so new records may overtake them.

    Attributes:
        lane: Name of the lane.
        reason: Why the lane cannot be read.
    """

    lane: str
    reason: str


@dataclass(frozen=True, slots=True)
class OrphanedSpoolFound:
    """Another spool directory next to the default one holds undelivered records, and no process delivers them.

    Attributes:
        directory: The spool directory.
        cluster_id: Id of the cluster that the records are meant for; None if no producer of that directory ever reached
            a cluster.
        batches: Number of batches.
        records: Number of records in them.
        command: A shell command that delivers the records to this producer's cluster.
    """

    directory: str
    cluster_id: str | None
    batches: int
    records: int
    command: str


@dataclass(frozen=True, slots=True)
class SpoolWriteFailed:
    """A write to the spool failed and is tried again; records that were reported durable are not affected.

    Attributes:
        lane: Name of the lane.
        error: The operating system's error.
        attempt: Number of consecutive failed writes.
    """

    lane: str
    error: str
    attempt: int


@dataclass(frozen=True, slots=True)
class SpoolDisplaced:
    """Files of an open producer's spool were moved or deleted, or the path of the spool now leads elsewhere.

    Attributes:
        lane: Name of the lane. The producer may use another lane after the repair.
        path: The path at which the lane should be.
        reason: "moved"; "deleted"; "unlocked": the lane's lock file was deleted; "files": files of the lane are
            missing; "directory": files of the spool directory are missing; "unseen": the path cannot be examined; or
            "link": `spool_dir` now leads to another directory. With "link", the producer continues to use `path`, and
            records there still count as durable.
        restored: True: everything is in its place again. False: until another event has `restored=True`, the producer
            reports no record as durable.
        lost_records: Number of records of this lane that can no longer be read: pending records and kept rejected
            records.
    """

    lane: str
    path: str
    reason: str
    restored: bool
    lost_records: int


@dataclass(frozen=True, slots=True)
class LossCheckInconclusive:
    """After an election, nothing proves that the new leader ever had the records that were acknowledged or read.

    The log now begins after these records. Retention or DeleteRecords has removed these records, which is not a loss.
    But some of these records may have been lost earlier, in the election: the brokers' answers do not rule out such a
    loss.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        position: From a producer: the offset after the last acknowledged record. From a consumer: its position.
        log_start_offset: First offset of the log now.
        evidence: The requests and answers that led to this conclusion.
    """

    topic: str
    partition: int
    position: int
    log_start_offset: int
    evidence: str


Event = (
    RecordsCommitted
    | RecordsRejected
    | RecordsUndecidable
    | DataLost
    | LostRecordsRestored
    | LossCheckInconclusive
    | DeliveryRetried
    | SpoolRecordsMissing
    | SpoolRecovered
    | LaneAdopted
    | RetainedRecordsDeleted
    | LaneReturned
    | WaitingForOlderRecords
    | OrderNotGuaranteed
    | OrphanedSpoolFound
    | SpoolWriteFailed
    | SpoolDisplaced
    | TopicBlocked
    | TopicUnblocked
    | TransactionsBlocked
    | TransactionsUnblocked
    | AtomicBatchCommitted
    | AtomicBatchDropped
    | AtomicBatchRetried
)


# --- from a SafeConsumer ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogDiverged:
    """The log has lost records that this consumer had read; the option `on_divergence` decides what to do.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        position: The consumer's position: the next offset it would have read.
        divergent_offset: First offset at which the log differs from the records that the consumer read.
        rolled_back: First and last offset (inclusive) of the lost records: the consumer had read them, and the log no
            longer contains them.
        replaced: First and last offset (inclusive) of the new records that the log contains in the range `rolled_back`.
            None if the log contains no record in this range (yet).
        epochs: Leader epochs of the lost records, oldest first.
        exact: Whether `divergent_offset` is exact. False: the consumer has no history of what it read before this
            offset, so the log may also differ before this offset.
        reason: "truncated": the log was truncated, for example after an unclean leader election. "recreated": the topic
            was deleted, and another topic has its name now; or the position belongs to another topic or cluster.
        round_trips: Number of requests that were needed to find `divergent_offset`.
    """

    topic: str
    partition: int
    position: int
    divergent_offset: int
    rolled_back: tuple[int, int]
    replaced: tuple[int, int] | None
    epochs: tuple[int, ...]
    exact: bool
    reason: Literal["truncated", "recreated"]
    round_trips: int

    @property
    def resume_offset(self) -> int:
        """A `seek` to this offset skips the records that replaced the lost ones.

        This offset is never past the end of the log. `position` may be past the end, because an unclean election often
        leaves the log shorter than before.
        """
        return self.divergent_offset if self.replaced is None else self.replaced[1] + 1


@dataclass(frozen=True, slots=True)
class PositionReset:
    """The consumer set its position in a partition according to the option `auto_offset_reset`.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        reason: "no_position": no offset was committed (or the consumer has no group). "retention": the log begins after
            the position. "beyond_end": the log ends before the position, and nothing shows that the log has lost
            records that the consumer read. "recreated": the topic was deleted and created again, and the consumer had
            read nothing before the position.
        strategy: The value of `auto_offset_reset`: "earliest" or "latest". Always "earliest" if `reason` is
            "recreated", because all records of the new topic are newer than the old position.
        previous: The position before; None if the partition had no position. With "no_position", this is the consumer's
            position before the rebalance; None if the consumer had none, or if that position may belong to a deleted
            topic of this name.
        position: The position now.
        skipped: First and last offset (inclusive) that the reset makes this consumer skip; None if it skips none.
    """

    topic: str
    partition: int
    reason: Literal["no_position", "retention", "beyond_end", "recreated"]
    strategy: Literal["earliest", "latest"]
    previous: int | None
    position: int
    skipped: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class PositionRewound:
    """The consumer's position went back to the group's committed offset, from which the consumer reads again.

    If the consumer has not committed its latest records, the group's offset after a rebalance is lower than the
    consumer's earlier position. With "rebalanced", the event is emitted only if the same consumer read the partition
    before: not at the first assignment of a new consumer, and not when the program calls `assign`.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        reason: "dropped": an atomic batch with the consumer's offset was dropped. "rebalanced": the group rebalanced,
            and the group's offset is lower than the previous position, or differs from the offset that this consumer's
            batches had committed.
        previous: The position before; None if the partition had no position.
    """

    topic: str
    partition: int
    reason: Literal["dropped", "rebalanced"]
    previous: int | None


@dataclass(frozen=True, slots=True)
class PartitionNotReady:
    """The consumer cannot fetch from a partition at the moment; it keeps its position and reads other partitions.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        position: The next offset to read.
        code: Kafka's error code, such as 9, -1 or 7. Code 1 (offset out of range) appears here only if the offset
            is in the part of the log that is in remote storage (KIP-1007).
        reason: The meaning of the code.
        remote: True if the position is before the first offset on the leader's own disk: the records are in remote
            storage.
    """

    topic: str
    partition: int
    position: int
    code: int
    reason: str
    remote: bool


@dataclass(frozen=True, slots=True)
class PartitionReady:
    """The consumer can fetch from the partition again.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        after_s: How long fetches failed, seconds.
        failures: Number of failed fetches.
    """

    topic: str
    partition: int
    after_s: float
    failures: int


LookUp: TypeAlias = Literal["latest", "earliest", "timestamp"]
"""Kind of look-up: the end of a log, its start, or the first record at or after a timestamp."""


@dataclass(frozen=True, slots=True)
class EndOffsetHeld:
    """A broker answered a look-up with a lower offset than before, and nothing proves that records were lost.

    The consumer keeps the old value.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        offset: The old value, which the consumer keeps.
        answered: The broker's answer; -1 if a look-up by timestamp found no record.
        reason: "catching_up": the leader does have the records. "lower": the answer is lower, and no broker could give
            a proof. "not_deleted": the log begins lower, because this leader has not yet deleted the records that the
            former leader had deleted. "not_found": a look-up by timestamp no longer finds a record, though nothing
            shows that the record was lost. "former_leader" and "former_topic": the answer was outdated. "unproven": the
            answer stayed lower for a long time, on brokers without leader epochs.
        look_up: "latest" (the end of the log), "earliest" (its start) or "timestamp".
    """

    topic: str
    partition: int
    offset: int
    answered: int
    reason: str
    look_up: LookUp = "latest"


@dataclass(frozen=True, slots=True)
class EndOffsetRegressed:
    """The end offset or the start offset of a log decreased. The decrease is proven, unless `reason` is "accepted".

    Attributes:
        topic: Topic name.
        partition: Partition number.
        offset: The new value.
        previous: The value before. End offset: the records from `offset` to `previous` - 1 are lost. Start offset: the
            log that began at `previous` was replaced by a new log that begins at a lower offset.
        reason: "truncated", "unclean_election" or "recreated": this reason is proven. "accepted": no reason is proven,
            but the brokers' answers were lower than `previous` for `offsets_hold_timeout_ms`. A lower end offset is
            accepted without proof in one case only: a position is reset to the log's end, which is now before
            `previous`.
        look_up: "latest" (an end) or "earliest" (a start).
    """

    topic: str
    partition: int
    offset: int
    previous: int
    reason: str
    look_up: LookUp = "latest"


# --- from the Spark source -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceDataLost:
    """A Spark query continues, although it can no longer read some records (`failOnDataLoss=false`).

    Attributes:
        topic: Topic name.
        partition: Partition number.
        reason: "retention": the log begins after the position. "diverged": the log has lost records that the query had
            read, and the query reads the records that replaced them. "truncated": the log is shorter than before.
            "recreated": the topic was deleted, and another topic has its name now. "new_partition": the first records
            of the partition were already deleted when the query first saw it. "missing": the topic or the partition no
            longer exists.
        position: The next offset that the query would have read.
        resumed_at: The offset at which the query continues; equal to `position` if nothing can be read.
        lost: First and last offset (inclusive) of the lost records; None if they are unknown.
    """

    topic: str
    partition: int
    reason: Literal["retention", "diverged", "truncated", "recreated", "new_partition", "missing"]
    position: int
    resumed_at: int
    lost: tuple[int, int] | None


ConsumerEvent = (
    LogDiverged
    | LossCheckInconclusive
    | PositionReset
    | PositionRewound
    | PartitionNotReady
    | PartitionReady
    | EndOffsetHeld
    | EndOffsetRegressed
)
