"""Facts for hooks: what a SafeProducer or SafeConsumer noticed. Frozen.

`on_event` gets each one: of a producer on the producer's own thread, of a consumer on the thread that called it.
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
    """A batch is in the cluster's log and its commit mark is durable.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        first_offset: Offset of the first record.
        records: How many; their offsets follow each other.
    """

    topic: str
    partition: int
    first_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class AtomicBatchCommitted:
    """An atomic batch (`SafeProducer.batch`, `delivery="transactional"`) is committed, and that is durable.

    Attributes:
        batch_id: Of the batch as a whole, 32 hexadecimal digits.
        transactional_id: Given by the user; empty: one of the producer's own.
        records: In all partitions.
        partitions: How many.
    """

    batch_id: str
    transactional_id: str
    records: int
    partitions: int


@dataclass(frozen=True, slots=True)
class AtomicBatchDropped:
    """An atomic batch was given up; nothing of it can be seen by readers of committed records.

    Attributes:
        batch_id: Of the batch as a whole, 32 hexadecimal digits.
        transactional_id: Given by the user; empty: one of the producer's own.
        records: In all partitions.
        code: Kafka's error code, 0 where there is none.
        reason: What the cluster said, or why the batch was given up.
    """

    batch_id: str
    transactional_id: str
    records: int
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class AtomicBatchRetried:
    """The transaction of an atomic batch was aborted; it is prepared again, in another one.

    Attributes:
        batch_id: Of the batch as a whole, 32 hexadecimal digits.
        attempt: How many tries failed in a row.
        reason: Why the last one was aborted.
    """

    batch_id: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordsRejected:
    """The cluster rejected records; they are kept aside in the spool directory.

    With `spool="never"` they are kept nowhere, and `kept_in` is empty.

    Attributes:
        topic: Topic name.
        partition: Partition number, -1 where none was chosen.
        records: How many.
        code: Kafka's error code.
        reason: Kafka's name of the error and what the broker said.
        kept_in: The directory that has the records now; empty where none has.
    """

    topic: str
    partition: int
    records: int
    code: int
    reason: str
    kept_in: str


@dataclass(frozen=True, slots=True)
class TopicBlocked:
    """The cluster blocks a topic, a partition or a batch for a reason that may pass; pending records are kept.

    Emitted when the answer is confirmed: after a second, after a minute where the topic is missing (it may be new).

    Attributes:
        topic: Topic name.
        partition: Partition, -1 while none is chosen.
        code: 29: no right to write. 3, 100: missing. 17: takes no writes. 32: timestamps too far ahead. 2, -1: the
            broker fails on this batch.
        reason: What the cluster said.
        batches: How many wait.
        records: In them.
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
        partition: Partition, -1 while none is chosen.
        code: The last error code.
        after_s: Seconds since the first such answer.
    """

    topic: str
    partition: int
    code: int
    after_s: float


@dataclass(frozen=True, slots=True)
class TransactionsBlocked:
    """The cluster blocks a transactional id or a group; the atomic batches that need it are kept.

    Emitted when the answer was the same for a second; of a topic that is missing, for ten.

    Attributes:
        name: `transactional id NAME` or `group NAME`; NAME ends with `-*` for those of a lane of the spool.
        code: 53, 30: a right is missing. 50: `transaction_timeout_ms` is more than the brokers allow. 3, 29: a topic is
            missing, or may not be read, whose offset is sent; `blocked_timeout_ms` ends that.
        reason: What the cluster said.
        records: How many wait.
    """

    name: str
    code: int
    reason: str
    records: int


@dataclass(frozen=True, slots=True)
class TransactionsUnblocked:
    """The condition reported by `TransactionsBlocked` has cleared.

    Attributes:
        name: As there.
        code: The error code.
        after_s: Seconds since the first such answer.
    """

    name: str
    code: int
    after_s: float


@dataclass(frozen=True, slots=True)
class RecordsUndecidable:
    """Whether the batch is in the log cannot be determined; `on_undecidable` decides.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        records: How many.
        position: Number of the batch in its lane, as `spool ls` shows it.
        evidence: What was asked and what the cluster answered.
    """

    topic: str
    partition: int
    records: int
    position: int
    evidence: str


@dataclass(frozen=True, slots=True)
class DataLost:
    """Records that the cluster had acknowledged are gone from its log.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        first_offset: First lost offset.
        last_offset: Last lost offset (inclusive).
        records: How many of the records between them were this spool's.
        reason: What noticed it: "ack", "sequence", "unknown producer", "log end" or "topic id".
        evidence: What was seen.
        restoring_records: How many of them the spool still has and sends again. They come behind whatever was appended
            since the loss, in their own order.
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
    """Lost acknowledged records are in the log again, once, in order.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        records: How many.
        first_offset: Where the first of them is now.
        last_offset: Where the last of them is now (inclusive).
    """

    topic: str
    partition: int
    records: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class DeliveryRetried:
    """A partition failed and is tried again after a pause.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        attempt: How many tries failed in a row.
        pause_s: Seconds until the next try.
        reason: Why the last one failed.
    """

    topic: str
    partition: int
    attempt: int
    pause_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class SpoolRecovered:
    """A lane with records of an earlier life was opened.

    Attributes:
        lane: Name of the lane.
        batches: How many batches are not delivered yet.
        records: How many records are in them.
        in_doubt_batches: How many of the batches may have been appended already.
    """

    lane: str
    batches: int
    records: int
    in_doubt_batches: int


@dataclass(frozen=True, slots=True)
class SpoolRecordsMissing:
    """Durable records of an earlier life are neither in the cluster's log nor in the spool, and no damage explains it.

    Attributes:
        lane: The lane they were in.
        topic: Topic name.
        partition: Partition number.
        records: How many.
        evidence: What the partition's leader remembers.
    """

    lane: str
    topic: str
    partition: int
    records: int
    evidence: str


@dataclass(frozen=True, slots=True)
class LaneAdopted:
    """A lane whose owner died is drained by this process.

    Attributes:
        lane: Name of the lane.
        batches: How many batches are not delivered yet.
        records: How many records are in them.
    """

    lane: str
    batches: int
    records: int


@dataclass(frozen=True, slots=True)
class RetainedRecordsDeleted:
    """Delivered records kept by `retain_acked_*` were deleted to make room.

    If the cluster loses them, they cannot be restored.

    Attributes:
        topic: Topic name.
        partition: Partition.
        first_offset: Of the first of them.
        last_offset: Of the last of them (inclusive).
        records: How many.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class LaneReturned:
    """An adopted lane is returned to its restarted owner, which delivers the rest.

    Attributes:
        lane: Name of the lane.
        batches: How many batches are not delivered yet.
    """

    lane: str
    batches: int


@dataclass(frozen=True, slots=True)
class WaitingForOlderRecords:
    """Records wait until what earlier producers of the directory left for the same partitions is delivered.

    Attributes:
        lane: Where they wait.
        held_by: The lanes in which older records stand.
        partitions: (topic, partition) of what waits now; partition -1 while it is not chosen.
    """

    lane: str
    held_by: tuple[str, ...]
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class OrderNotGuaranteed:
    """What earlier producers left in a lane cannot be told: records that are sent from now on may come before it.

    Attributes:
        lane: Its name.
        reason: Why.
    """

    lane: str
    reason: str


@dataclass(frozen=True, slots=True)
class OrphanedSpoolFound:
    """Records wait in another directory beside the default one, and no process delivers them.

    Attributes:
        directory: The spool directory.
        cluster_id: Of the cluster they are for; None: no producer there ever reached one.
        batches: How many batches wait.
        records: How many records are in them.
        command: Delivers them to this producer's cluster.
    """

    directory: str
    cluster_id: str | None
    batches: int
    records: int
    command: str


@dataclass(frozen=True, slots=True)
class SpoolWriteFailed:
    """A write to the spool failed and is tried again; nothing that was promised is affected.

    Attributes:
        lane: Name of the lane.
        error: What the operating system said.
        attempt: How many writes failed in a row.
    """

    lane: str
    error: str
    attempt: int


@dataclass(frozen=True, slots=True)
class SpoolDisplaced:
    """Files of the spool are not where their path leads: somebody moved or deleted them while their producer works.

    Attributes:
        lane: Name of the lane, which may be another one after it was restored.
        path: Where the lane belongs.
        problem: "moved", "deleted", "unlocked" (its lock was deleted), "files" (of the lane), "directory" (files of the
            spool directory), "unseen" (it cannot be seen), or "link" (spool_dir leads elsewhere: the producer stays in
            `path`, and what is durable there is called durable).
        restored: All is where it belongs again. If not, nothing is called durable until another event says so.
        lost_records: What could not be read any more of what waited there; with rejected records that were kept there.
    """

    lane: str
    path: str
    problem: str
    restored: bool
    lost_records: int


@dataclass(frozen=True, slots=True)
class LossCheckInconclusive:
    """Another leader was elected, and nothing proves that its log ever had what was acknowledged, or read.

    Retention or DeleteRecords removed all of it: the log begins after it. That is no loss; but that some of it was lost
    before it was removed cannot be excluded either.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        position: Of a producer, the offset after the last acknowledged record; of a consumer, its position.
        log_start_offset: Where the log begins now.
        evidence: What was seen.
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


# --- of a SafeConsumer ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogDiverged:
    """Records that this consumer had read are not in the log any more; the policy `on_divergence` decides.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        position: Next offset that was to be read.
        at: First offset at which the log differs from what was read.
        rolled_back: First and last offset (inclusive) of what was read and is gone.
        replaced: First and last offset (inclusive), within `rolled_back`, where other records stand now; None when
            there are none (yet).
        epochs: Leader epochs of the records that are gone, oldest first.
        exact: False: the logs may differ before `at` already, where nothing is known of what was read.
        reason: "truncated": the log was cut, as by an unclean election. "recreated": it is another topic of the name.
        round_trips: How many questions it took to find `at`.
    """

    topic: str
    partition: int
    position: int
    at: int
    rolled_back: tuple[int, int]
    replaced: tuple[int, int] | None
    epochs: tuple[int, ...]
    exact: bool
    reason: Literal["truncated", "recreated"]
    round_trips: int

    @property
    def resume_offset(self) -> int:
        """Where to go on without what stands in the place of the lost records: an offset that the log reaches.

        `position` need not be one: after an unclean election the log is often shorter than it was.
        """
        return self.at if self.replaced is None else self.replaced[1] + 1


@dataclass(frozen=True, slots=True)
class PositionReset:
    """A position was set by `auto_offset_reset`, not by the application.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        reason: "no_position": nothing was committed (or there is no group). "retention": the log begins behind the
            position. "beyond_end": the log ends before it, and nothing that was read is known to be gone. "recreated":
            the topic was deleted and created again, and nothing before the position was read.
        strategy: What `auto_offset_reset` says: "earliest" or "latest". Always "earliest" for "recreated": all records
            of the new topic are later than the position was.
        previous: Position before; None when there was none.
        position: Position now.
        skipped: First and last offset (inclusive) that this consumer will not read because of it; None: none.
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
    """Records that were read are read again, from the group's offset: they are in no committed atomic batch.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        reason: "dropped": an atomic batch with the consumer's offset was dropped. "rebalanced": the group was
            rebalanced, and its offset is not where this consumer's batches had moved it.
        previous: Position before; None when there was none.
    """

    topic: str
    partition: int
    reason: Literal["dropped", "rebalanced"]
    previous: int | None


@dataclass(frozen=True, slots=True)
class PartitionNotReady:
    """A partition cannot be fetched from for the moment; its position stays, the others go on.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        position: What was to be read.
        code: Kafka's error code: 9, -1, 7, or 1 for an offset that the log does have (remote storage, KIP-1007) ...
        reason: What it means.
        remote: The position lies before what the leader has on its own disk: remote storage it is.
    """

    topic: str
    partition: int
    position: int
    code: int
    reason: str
    remote: bool


@dataclass(frozen=True, slots=True)
class PartitionReady:
    """It can be fetched from again.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        after_s: For how long it could not, seconds.
        failures: How many fetches failed.
    """

    topic: str
    partition: int
    after_s: float
    failures: int


LookUp: TypeAlias = Literal["latest", "earliest", "timestamp"]
"""What was looked up: where a log ends, where it begins, or the first record at or after a time."""


@dataclass(frozen=True, slots=True)
class EndOffsetHeld:
    """A look-up was answered with less than before, and nothing proves that records are gone.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        offset: The old value, which stands.
        answered: What was answered; -1: a look-up by time found no record.
        reason: "catching_up": the leader has the records. "lower": no broker could be asked. "not_deleted": the log
            begins lower, since this leader has not deleted yet what the former one had deleted. "not_found": a look-up
            by time finds no record any more, though nothing shows that it is gone. "former_leader", "former_topic": the
            answer was old. "undecidable": lower for long, on brokers without leader epochs.
        look_up: "latest" (where the log ends), "earliest" (where it begins) or "timestamp".
    """

    topic: str
    partition: int
    offset: int
    answered: int
    reason: str
    look_up: LookUp = "latest"


@dataclass(frozen=True, slots=True)
class EndOffsetRegressed:
    """An end offset, or the start of a log, went back; with a proof but for "accepted".

    Attributes:
        topic: Topic name.
        partition: Partition number.
        offset: The new value.
        previous: The value before. Of an end: records from `offset` to `previous` - 1 are gone. Of a start: the log
            that began at `previous` is gone; the one that is there now begins lower.
        reason: "truncated", "unclean_election" or "recreated". "accepted": not proven, and lower for
            `offsets_hold_timeout_ms`; an end only where a position was to be reset to it and the log was shorter.
        look_up: "latest" (an end) or "earliest" (a start).
    """

    topic: str
    partition: int
    offset: int
    previous: int
    reason: str
    look_up: LookUp = "latest"


# --- of the Spark source --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceDataLost:
    """A Spark query goes on behind records that it cannot read any more (`failOnDataLoss=false`).

    Attributes:
        topic: Topic name.
        partition: Partition number.
        reason: "retention": the log begins behind the position. "diverged": what was read is not in the log any more;
            what stands there now is read. "truncated": the log is shorter than it was. "recreated": it is another topic
            of the name. "new_partition": it was first seen when its first records were gone. "missing": the topic or
            partition is not there any more.
        position: Next offset that was to be read.
        resumed_at: Where it goes on; the position itself where nothing can be read.
        lost: First and last offset (inclusive) of what is gone, as far as that is known.
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
