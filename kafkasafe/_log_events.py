"""The meaning of each event that kafkasafe logs, and what to do. `tests/pages` generates docs/log-events.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["LOG_EVENTS", "LogEvent"]


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One value of a log record's attribute `event`.

    Attributes:
        levels: Levels at which the event is logged.
        meaning: What happened.
        action: What to do.
    """

    levels: tuple[str, ...]
    meaning: str
    action: str


LOG_EVENTS: Final[dict[str, LogEvent]] = {
    "data_lost": LogEvent(
        ("ERROR",),
        "The cluster lost records that it had acknowledged. The message names the records, and says whether"
        " the producer sends them again.",
        "Look for an unclean election or a lost disk in the cluster. If the producer does not send the records again,"
        " produce them again from their source.",
    ),
    "data_loss_unknown": LogEvent(
        ("WARNING",),
        "The producer was closed before it could check whether a partition still has all acknowledged records.",
        "Nothing, if another producer will open this spool directory, because that producer repeats the check."
        " Otherwise compare the topic with your source.",
    ),
    "batch_damaged": LogEvent(
        ("ERROR",),
        "Bytes of a batch are damaged on disk. The batch's partition waits; delivery to other partitions continues.",
        'Restore the file from a copy, or open the producer with `on_corrupt="quarantine"`.',
    ),
    "batch_divided": LogEvent(
        ("INFO",),
        "A batch was larger than the topic's `max.message.bytes`, or the broker rejected part"
        " of it. Its records are sent in smaller batches.",
        "Nothing. If a producer or sink logs this event often, lower `batch_size` (Spark: `kafka.batch.size`).",
    ),
    "records_rejected": LogEvent(
        ("ERROR",),
        "The cluster rejected records permanently. The message says where a copy is kept. With"
        ' `spool="never"`, none is kept.',
        "Remove the cause, then run `kafkasafe spool resend`.",
    ),
    "records_undecidable": LogEvent(
        ("WARNING", "ERROR"),
        "The producer cannot determine whether a batch is in the log. ERROR: the partition waits for a"
        " decision. WARNING: the producer sends the batch again or skips it, as the option `on_undecidable` says.",
        "ERROR: look at the topic, then call `resolve_undecidable()`.",
    ),
    "callback_failed": LogEvent(
        ("ERROR",),
        "A callback of the program raised an exception.",
        "Correct the callback. Delivery is not affected.",
    ),
    "callbacks_left": LogEvent(
        ("WARNING",),
        "`close()` returned before all callbacks had run.",
        "Make callbacks shorter, or give `close()` a longer timeout.",
    ),
    "clock_behind": LogEvent(
        ("WARNING",),
        "The clock of this machine is hours behind the brokers' clocks, or records of other producers have timestamps"
        " hours ahead of it. Delivery is slower, but still correct.",
        "Correct the clock that is wrong (NTP).",
    ),
    "close_failed": LogEvent(
        ("ERROR",),
        "An exception ended a `with` block, and then `close()` failed as well. The caller gets the exception of the"
        " block; only this event reports the exception of `close()`.",
        "Read the message; see [Errors of kafkasafe](kafkasafe-errors.md).",
    ),
    "cluster_changed": LogEvent(
        ("WARNING",),
        "The brokers belong to a different cluster than before. No record was pending for the earlier cluster.",
        "If you did not expect this, check `bootstrap_servers`.",
    ),
    "cluster_not_bound": LogEvent(
        ("WARNING",),
        "The file that stores the cluster id of a spool directory cannot be written or read."
        " Nothing is sent yet.",
        "Check the disk and the permissions of the spool directory.",
    ),
    "cluster_reachable": LogEvent(
        ("WARNING",),
        "The cluster answers again. `outage_s` is the length of the outage in seconds.",
        "Nothing.",
    ),
    "cluster_unreachable": LogEvent(
        ("WARNING",),
        "No broker can be used. The message has the reason, such as a wrong password or a"
        " refused connection. Records wait.",
        "Nothing in an outage. Otherwise correct the address, the certificates or the password.",
    ),
    "position_rewound": LogEvent(
        ("INFO",),
        "A consumer reads records again from the group's offset, because an atomic batch with its offsets was dropped"
        " or the group was rebalanced.",
        "Nothing.",
    ),
    "spool_volume_small": LogEvent(
        ("WARNING",),
        "The volume of the spool has less free space than the spool may need.",
        "Make room, use a larger volume, or lower `spool_max_bytes` and `rejected_max_bytes`.",
    ),
    "copied_forward": LogEvent(
        ("INFO",),
        "A file held delivered records and some pending ones. The pending ones were copied to a newer file, so that"
        " the old file could be deleted.",
        "Nothing.",
    ),
    "damage_quarantined": LogEvent(
        ("ERROR",),
        'Damaged bytes of the spool were copied to `quarantine/` (`on_corrupt="quarantine"`).'
        " The producer does not deliver the records in these bytes.",
        "Keep the copy. Check the disk. Produce these records again if you have their source.",
    ),
    "on_rejected_failed": LogEvent(
        ("ERROR",),
        "The `on_rejected` hook raised an exception, or could not be called. The message says whether a copy of the"
        " records is kept.",
        "Correct the hook. If no copy is kept, produce the records again from their source.",
    ),
    "delivered_again": LogEvent(
        ("WARNING",),
        "An outage has ended, and pending records are being delivered. `outage_s` is the length of the outage in"
        " seconds; `records` and `batches` say how much was pending.",
        "Nothing.",
    ),
    "delivery_retried": LogEvent(
        ("DEBUG", "INFO", "WARNING"),
        "A request with records failed and is sent again. WARNING: more than three failures in a row. DEBUG: no broker"
        " can be used, which `cluster_unreachable` reports.",
        "Nothing in an outage. If the failures persist, read the cause in the message.",
    ),
    "division_waits_for_room": LogEvent(
        ("WARNING",),
        "A batch has to be divided, because its records were accepted before the partitions of their topic were known,"
        " or because the brokers refuse the batch. The disk has no room for the parts. Delivery of all other records"
        " continues.",
        "Make room on the volume of the spool: the message says how much.",
    ),
    "flush_waits": LogEvent(
        ("WARNING",),
        "`flush()` has been waiting for a while. The message names the reason.",
        "Nothing in an outage. Otherwise follow the message.",
    ),
    "lost_records_restored": LogEvent(
        ("WARNING",),
        "Records that the cluster had lost are in the log again.",
        "Nothing. Find out why the cluster lost them.",
    ),
    "waiting_for_older_records": LogEvent(
        ("INFO",),
        "Records wait until an earlier producer's records for the same partitions are"
        " delivered, so that the order is kept.",
        "Nothing.",
    ),
    "loss_check_inconclusive": LogEvent(
        ("INFO",),
        "After a leader election, the log begins after the last acknowledged record. Retention or DeleteRecords removed"
        " the acknowledged records, but nothing proves that the election had not lost some of them before.",
        "Nothing, if retention removed the records. A retention time longer than any outage avoids this event.",
    ),
    "hook_failed": LogEvent(
        ("ERROR",),
        "`on_event` or `on_retry` raised an exception.",
        "Correct the hook. Delivery is not affected.",
    ),
    "lane_returned": LogEvent(
        ("INFO",),
        "A restarted producer got its own lane back from the producer that had adopted it.",
        "Nothing.",
    ),
    "lane_not_adopted": LogEvent(
        ("WARNING",),
        "A process ended and left a lane that this producer cannot adopt. The message says why. The producer tries"
        " again.",
        "Check the permissions and the files of that lane with `kafkasafe spool ls DIR`.",
    ),
    "lane_not_closed": LogEvent(
        ("WARNING",),
        "A lane could not be closed properly. Nothing is lost.",
        "Check the disk.",
    ),
    "lanes_unreadable": LogEvent(
        ("WARNING",),
        "The spool directory cannot be listed, so the producer does not find lanes of ended processes.",
        "Check the permissions of the spool directory.",
    ),
    "lineage_not_kept": LogEvent(
        ("WARNING",),
        "The brokers' `offset.metadata.max.bytes` is too small for the history of leader epochs that the consumer"
        " commits with its offsets.",
        "Raise `offset.metadata.max.bytes` to 2048 or more, or set `lineage_path`.",
    ),
    "lineage_not_written": LogEvent(
        ("ERROR",),
        "The file of `lineage_path` could not be written.",
        "Check the disk and the permissions.",
    ),
    "log_diverged": LogEvent(
        ("ERROR",),
        "The log has lost records that this consumer had read.",
        "Decide where to continue reading; see `LogDivergedError`. Look for an unclean election in the cluster.",
    ),
    "log_dropped": LogEvent(
        ("WARNING",),
        "Log records were dropped, because a log handler cannot keep up with them.",
        "Make the handler faster, or raise the log level.",
    ),
    "machine_slept": LogEvent(
        ("INFO",),
        "The machine was suspended.",
        "Nothing.",
    ),
    "marker_gone": LogEvent(
        ("WARNING",),
        "The log shows that an atomic batch is committed, although the offset that kafkasafe committed in the same"
        " transaction, as a marker, has expired.",
        "Nothing.",
    ),
    "network_step_failed": LogEvent(
        ("ERROR",),
        "An unexpected exception occurred on the network thread. The thread continues.",
        "Report it, with the traceback.",
    ),
    "network_thread_ended": LogEvent(
        ("ERROR",),
        "An unexpected exception ended the network thread, and a new thread replaced it.",
        "Report it, with the traceback.",
    ),
    "no_coordinator": LogEvent(
        ("INFO",),
        "The group's coordinator is not available yet. The client asks again.",
        "Nothing.",
    ),
    "no_producer_id": LogEvent(
        ("INFO", "WARNING"),
        "The cluster has not assigned a producer id yet, so nothing can be sent. The producer asks again. After the"
        " third refusal it is a WARNING.",
        "INFO: nothing. WARNING: read the message. With brokers before 2.8, also check the permission"
        " IDEMPOTENT_WRITE.",
    ),
    "not_comparable": LogEvent(
        ("WARNING",),
        "The brokers cannot say whether the records that were read are still in the log: they are older than Kafka 2.3,"
        " or this user lacks a permission.",
        "Grant DESCRIBE on the topic, or upgrade the brokers.",
    ),
    "not_copied_forward": LogEvent(
        ("WARNING",),
        "To make room in the spool, pending records must be copied to a newer file, and the copy failed.",
        "Check the disk.",
    ),
    "not_durable": LogEvent(
        ("ERROR",),
        "`close()` ended before everything was on disk.",
        "Check the disk. Records that were not confirmed by `durable()` or `get()` may be lost.",
    ),
    "not_encoded": LogEvent(
        ("WARNING", "ERROR"),
        "There is not enough memory to encode accepted records. WARNING: the records wait in memory. ERROR:"
        " the producer ended, and the records are lost.",
        "Free memory.",
    ),
    "end_offset_held": LogEvent(
        ("INFO",),
        "A broker answered a look-up with a lower offset than before, and nothing proves that records were lost. The"
        " consumer keeps the earlier value.",
        "Nothing.",
    ),
    "end_offset_regressed": LogEvent(
        ("ERROR",),
        "The end offset or the start offset of a log decreased, and the brokers' answers prove it.",
        "Look for an unclean election, or for a topic that was deleted and created again.",
    ),
    "offsets_not_written": LogEvent(
        ("ERROR",),
        "The file of `offsets_path` could not be written.",
        "Check the disk and the permissions.",
    ),
    "option_ignored": LogEvent(
        ("WARNING",),
        "An option of kafka-python has no effect here. The message says what replaces it.",
        "Leave the option out.",
    ),
    "option_weak": LogEvent(
        ("WARNING",),
        "`acks=1`: if the leader fails, records that only the leader has are lost.",
        'Use `acks="all"`.',
    ),
    "older_records_delivered": LogEvent(
        ("INFO",),
        "An earlier producer's records have been delivered, so the records that waited for them are sent now.",
        "Nothing.",
    ),
    "order_not_guaranteed": LogEvent(
        ("WARNING",),
        "The producer cannot read which records an earlier producer left in a lane. Records that are sent"
        " now may be appended before them.",
        "Restore the lane, if you have a copy.",
    ),
    "other_worker_python": LogEvent(
        ("WARNING",),
        "Spark's workers run another Python interpreter, which lacks the required modules.",
        "Set `PYSPARK_PYTHON` before you create the SparkSession.",
    ),
    "partition_not_ready": LogEvent(
        ("INFO",),
        "The consumer cannot fetch from a partition at the moment. It keeps its position there.",
        "Nothing. If the problem persists, look at the partition's leader or at remote storage.",
    ),
    "partition_ready": LogEvent(
        ("INFO",),
        "The consumer can fetch from the partition again.",
        "Nothing.",
    ),
    "partitioner_failed": LogEvent(
        ("ERROR",),
        "The program's partitioner raised an exception. kafka-python's default partitioner chose the partition.",
        "Correct the partitioner.",
    ),
    "position_reset": LogEvent(
        ("INFO", "WARNING"),
        "The consumer set a position as `auto_offset_reset` says. WARNING: it skips records.",
        "WARNING: check whether retention is shorter than the consumer's lag.",
    ),
    "producer_ended": LogEvent(
        ("ERROR",),
        "An error ended the producer. Every later call raises this error.",
        "Read the message. Open a new producer: it delivers the records in the spool.",
    ),
    "records_left": LogEvent(
        ("WARNING", "ERROR"),
        "The producer was closed with undelivered records on disk. WARNING: the next producer that opens the"
        " directory delivers them. ERROR: the next producer will not find them, because the"
        " producer's lane was moved or deleted.",
        "Start a producer on the directory, or run the command that the message names.",
    ),
    "records_lost": LogEvent(
        ("ERROR",),
        'A producer with `spool="never"` closed, and the records that the cluster had not acknowledged are lost.',
        "Produce them again from their source.",
    ),
    "spool_records_missing": LogEvent(
        ("ERROR",),
        "Records that were durable are neither in the cluster nor in the spool. Either files of the"
        " spool were deleted, or an older copy of it was restored.",
        "Find out what deletes files of the spool directory.",
    ),
    "rejected_kept": LogEvent(
        ("WARNING",),
        "The spool directory holds rejected records.",
        "Remove the cause, then run `kafkasafe spool resend`. Or delete the records with `kafkasafe"
        " spool discard`.",
    ),
    "rejected_not_kept": LogEvent(
        ("ERROR",),
        "Rejected records cannot be copied to `rejected/`, usually because `rejected_max_bytes`"
        " is exhausted. Their partition waits.",
        "Run `kafkasafe spool resend` or `discard`, or raise `rejected_max_bytes`.",
    ),
    "rejected_unreadable": LogEvent(
        ("WARNING",),
        "Files in `rejected/` cannot be read.",
        "Check the disk and the permissions.",
    ),
    "request_failed": LogEvent(
        ("ERROR",),
        "An unexpected exception occurred while a request was passed to the network thread.",
        "Report it, with the traceback.",
    ),
    "resent_not_deleted": LogEvent(
        ("WARNING",),
        "A rejected batch was sent again, but its file cannot be deleted.",
        "Check the permissions of the spool directory.",
    ),
    "reserve_given_up": LogEvent(
        ("WARNING",),
        "The disk is completely full. The producer now uses the space that it had reserved for its own entries in the"
        " spool.",
        "Make room on the disk.",
    ),
    "retained_records_deleted": LogEvent(
        ("WARNING",),
        "The spool is more than half full, so delivered records that `retain_acked_*` kept were"
        " deleted. They cannot be sent again after a loss.",
        "Raise `spool_max_bytes`, or lower `retain_acked_*`.",
    ),
    "retry": LogEvent(
        ("INFO",),
        "A call under a `RetryPolicy` failed and is repeated.",
        "Nothing.",
    ),
    "retry_given_up": LogEvent(
        ("INFO",),
        "A call under a `RetryPolicy` failed, and is not repeated. Its exception is raised.",
        "Handle the exception.",
    ),
    "right_cluster": LogEvent(
        ("INFO",),
        "The cluster of this spool directory answers again.",
        "Nothing.",
    ),
    "segments_not_deleted": LogEvent(
        ("WARNING",),
        "Old files of the spool cannot be deleted.",
        "Check the permissions of the spool directory.",
    ),
    "spool_directory": LogEvent(
        ("INFO",),
        "Neither `spool_dir` nor `KAFKASAFE_SPOOL_DIR` is set. The message names the spool directory that is used.",
        "Set `spool_dir` in production.",
    ),
    "spool_displaced": LogEvent(
        ("ERROR",),
        "Files of an open producer's spool were moved, deleted or truncated. The message"
        " says whether they are restored.",
        "Find out what changes the spool directory. Move the files back if they are not restored.",
    ),
    "orphaned_spool_found": LogEvent(
        ("WARNING",),
        "Another spool directory, which no process owns, holds undelivered records.",
        "Run the command that the message names.",
    ),
    "spool_link_switched": LogEvent(
        ("WARNING",),
        "`spool_dir` is a symbolic link that now points to another directory. This producer keeps using the old"
        " directory.",
        "Keep the spool outside the directories that deployments replace.",
    ),
    "spool_never": LogEvent(
        ("INFO",),
        '`spool="never"`: records that the cluster has not acknowledged are lost when the process ends.',
        "Nothing.",
    ),
    "spool_read_failed": LogEvent(
        ("WARNING",),
        "A read from the spool failed. The producer tries it again.",
        "Check the disk.",
    ),
    "spool_recovered": LogEvent(
        ("INFO",),
        "A lane with undelivered records of an earlier process was opened.",
        "Nothing.",
    ),
    "spool_volatile": LogEvent(
        ("WARNING",),
        "The spool is on a file system that may not survive a restart, such as tmpfs or a"
        " container's own layer.",
        "Move `spool_dir` to a volume.",
    ),
    "spool_write_failed": LogEvent(
        ("WARNING",),
        "A write to the spool failed. The producer tries it again. Confirmed records are not affected.",
        "Make room on the disk, or check it.",
    ),
    "topic_unblocked": LogEvent(
        ("WARNING",),
        "The cluster accepts records for a blocked topic again.",
        "Nothing.",
    ),
    "topic_forgotten": LogEvent(
        ("INFO",),
        "A topic was deleted. The producer no longer checks whether records that it delivered to this topic were"
        " lost.",
        "Nothing.",
    ),
    "topic_blocked": LogEvent(
        ("ERROR",),
        "The cluster blocks a topic, a partition or a batch, usually because a permission or the topic is missing."
        " Records wait.",
        "Grant the permission, or create the topic.",
    ),
    "torn_tail_cut": LogEvent(
        ("INFO",),
        "A crash interrupted a write. Its bytes were removed from the end of a file and copied to another file."
        " None of them had been confirmed as durable.",
        "Nothing.",
    ),
    "torn_tail_gone": LogEvent(
        ("WARNING",),
        "A crash interrupted a write. Its bytes were removed from the end of a file, without a copy, because there was"
        " no room for one.",
        "Make room on the disk.",
    ),
    "transaction_aborted": LogEvent(
        ("WARNING",),
        "The producer was closed while a transaction was open. No record of the transaction was sent.",
        "Call `commit_transaction()` or `abort_transaction()` before `close()`.",
    ),
    "transaction_recovered": LogEvent(
        ("INFO", "WARNING"),
        "A transaction that an earlier producer had decided to commit has ended. INFO: it was committed. WARNING: it"
        " was not.",
        "WARNING: read the reason in the message.",
    ),
    "transactions_unblocked": LogEvent(
        ("WARNING",),
        "The cluster accepts a blocked transactional id or group again.",
        "Nothing.",
    ),
    "transactions_blocked": LogEvent(
        ("ERROR",),
        "The cluster blocks a transactional id or a group. Atomic batches wait.",
        "Grant the permission that the message names, or lower `transaction_timeout_ms`.",
    ),
    "undecided": LogEvent(
        ("DEBUG",),
        "Partitions wait for the application to choose a position.",
        "See `LogDivergedError`.",
    ),
    "atomic_batch_dropped": LogEvent(
        ("ERROR",),
        "An atomic batch was dropped: `read_committed` consumers see none of its records.",
        "See `BatchDroppedError`.",
    ),
    "atomic_batch_retried": LogEvent(
        ("INFO", "WARNING"),
        "A step of an atomic batch's transaction failed. The producer tries the step again. WARNING: more than three"
        " failures in a row.",
        "Nothing in an outage. If the failures persist, read the cause in the message.",
    ),
    "unknown_lineage": LogEvent(
        ("INFO",),
        "The consumer does not know which records were read before this position, so it cannot check whether they are"
        " still in the log.",
        "Nothing. If your program stores positions itself, set `lineage_path`.",
    ),
    "wrong_cluster": LogEvent(
        ("ERROR",),
        "The brokers belong to a different cluster than the records in the spool. Nothing is sent to these brokers.",
        "Correct `bootstrap_servers`, or give each cluster a `spool_dir` of its own.",
    ),
}
