"""The events that kafkasafe logs: what each means, and what to do. `tests/pages` makes docs/log-events.md of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["LOG_EVENTS", "LogEvent"]


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One value of a log record's attribute `event`.

    Attributes:
        levels: At which it is logged.
        meaning: What happened.
        action: What to do.
    """

    levels: tuple[str, ...]
    meaning: str
    action: str


LOG_EVENTS: Final[dict[str, LogEvent]] = {
    "data_lost": LogEvent(
        ("ERROR",),
        "The cluster lost records that it had acknowledged. The message says which, and whether"
        " the spool sends them again.",
        "Look for an unclean election or a lost disk in the cluster. Produce again what is not sent again.",
    ),
    "data_loss_unknown": LogEvent(
        ("WARNING",),
        "The producer was closed before it was known whether a partition still has all acknowledged records.",
        "Nothing, if a producer opens this spool directory again: it looks. Otherwise compare"
        " the topic with your source.",
    ),
    "batch_damaged": LogEvent(
        ("ERROR",),
        "Bytes of a batch are damaged on disk. Its partition waits; other partitions go on.",
        'Restore the file from a copy, or open the producer with `on_corrupt="quarantine"`.',
    ),
    "batch_divided": LogEvent(
        ("INFO",),
        "A batch was larger than the topic's `max.message.bytes`, or the broker rejected part"
        " of it. Its records are sent in smaller batches.",
        "Nothing. For a producer or sink that logs it often: lower `batch_size` (Spark: `kafka.batch.size`).",
    ),
    "records_rejected": LogEvent(
        ("ERROR",),
        "The cluster rejected records permanently. The message says where they are kept.",
        "Remove the cause, then run `kafkasafe spool resend`.",
    ),
    "records_undecidable": LogEvent(
        ("WARNING", "ERROR"),
        "It cannot be known whether a batch is in the log. ERROR: the partition waits for a"
        " decision. WARNING: `on_undecidable` decided.",
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
        "Let callbacks do less, or give `close()` more time.",
    ),
    "clock_behind": LogEvent(
        ("WARNING",),
        "The clock of this machine differs from the brokers' by hours, or records carry"
        " timestamps far in the future. Delivery is slower, and stays exact.",
        "Correct the clock (NTP).",
    ),
    "close_failed": LogEvent(
        ("ERROR",),
        "`close()` failed at the end of a `with` block that an exception had left. The"
        " exception of the block is raised, this one is not.",
        "Read the message; see [Errors of kafkasafe](kafkasafe-errors.md).",
    ),
    "cluster_changed": LogEvent(
        ("WARNING",),
        "Another cluster answers, and no record waited for the earlier one.",
        "Check `bootstrap_servers` if you did not expect it.",
    ),
    "cluster_not_bound": LogEvent(
        ("WARNING",),
        "The file that notes the cluster of a spool directory cannot be written or read."
        " Nothing is sent yet.",
        "Check the disk and the rights of the spool directory.",
    ),
    "cluster_reachable": LogEvent(
        ("WARNING",),
        "The cluster answers again. `outage_s` says how long it did not.",
        "Nothing.",
    ),
    "cluster_unreachable": LogEvent(
        ("WARNING",),
        "No broker can be used. The message has the reason, such as a wrong password or a"
        " refused connection. Records wait.",
        "Nothing in an outage. Otherwise correct the address, the certificates or the password.",
    ),
    "position_rewound": LogEvent(
        ("WARNING",),
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
        "Waiting records were copied to a newer file, so that a file of delivered records could be deleted.",
        "Nothing.",
    ),
    "damage_quarantined": LogEvent(
        ("ERROR",),
        'Damaged bytes of the spool were copied to `quarantine/` (`on_corrupt="quarantine"`).'
        " Their records are lost to the producer.",
        "Keep the copy. Check the disk. Produce these records again if you have their source.",
    ),
    "on_rejected_failed": LogEvent(
        ("ERROR",),
        "The `on_rejected` hook raised an exception, or could not be called. The records are still kept.",
        "Correct the hook. The message says where the records are.",
    ),
    "delivered_again": LogEvent(
        ("WARNING",),
        "An outage is over: records are delivered again. `outage_s`, `records` and `batches` say how long it lasted and"
        " how much waited.",
        "Nothing.",
    ),
    "delivery_retried": LogEvent(
        ("DEBUG", "INFO", "WARNING"),
        "A request with records failed and is sent again. WARNING: more than three failures in a row. DEBUG: no broker"
        " can be used, which `cluster_unreachable` says.",
        "Nothing in an outage. If it lasts, the message names the cause.",
    ),
    "flush_waits": LogEvent(
        ("WARNING",),
        "`flush()` has waited for a while. The message says for what.",
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
        "After an election, retention had removed everything that could prove that no record was lost.",
        "Nothing, if retention did it. A longer retention than an outage avoids it.",
    ),
    "hook_failed": LogEvent(
        ("ERROR",),
        "`on_event` or `on_retry` raised an exception.",
        "Correct the hook. Delivery is not affected.",
    ),
    "lane_returned": LogEvent(
        ("INFO",),
        "A producer that starts takes its own lane back from the producer that had adopted it.",
        "Nothing.",
    ),
    "lane_not_adopted": LogEvent(
        ("WARNING",),
        "A lane that a process left behind cannot be adopted. The message says why. It is tried again.",
        "Check the rights and the files of that lane: `kafkasafe spool ls DIR`.",
    ),
    "lane_not_closed": LogEvent(
        ("WARNING",),
        "A lane could not be closed in order. Nothing is lost.",
        "Check the disk.",
    ),
    "lanes_unreadable": LogEvent(
        ("WARNING",),
        "The spool directory cannot be listed, so lanes that were left behind are not found.",
        "Check the rights of the spool directory.",
    ),
    "lineage_not_kept": LogEvent(
        ("WARNING",),
        "The brokers' `offset.metadata.max.bytes` is so small that committed offsets cannot"
        " carry what the consumer read.",
        "Raise it to 2048 or more, or set `lineage_path`.",
    ),
    "lineage_not_written": LogEvent(
        ("ERROR",),
        "The file of `lineage_path` could not be written.",
        "Check the disk and the rights.",
    ),
    "log_diverged": LogEvent(
        ("ERROR",),
        "Records that this consumer had read are no longer in the log.",
        "Decide where to go on; see `LogDivergedError`. Look for an unclean election in the cluster.",
    ),
    "log_dropped": LogEvent(
        ("WARNING",),
        "Log records were dropped, because a log handler is slower than they come.",
        "Make the handler faster, or raise the level.",
    ),
    "machine_slept": LogEvent(
        ("INFO",),
        "The machine was suspended.",
        "Nothing.",
    ),
    "marker_gone": LogEvent(
        ("WARNING",),
        "The log shows that an atomic batch is committed, although the broker's record of its"
        " transaction has expired.",
        "Nothing.",
    ),
    "network_step_failed": LogEvent(
        ("ERROR",),
        "An unexpected exception on the network thread. It goes on.",
        "Report it, with the traceback.",
    ),
    "network_thread_ended": LogEvent(
        ("ERROR",),
        "The network thread ended by an unexpected exception, and another one replaced it.",
        "Report it, with the traceback.",
    ),
    "no_coordinator": LogEvent(
        ("INFO",),
        "The group's coordinator is not available yet. It is asked again.",
        "Nothing.",
    ),
    "no_producer_id": LogEvent(
        ("INFO",),
        "The cluster has not given a producer id yet. It is asked again.",
        "Nothing. If it lasts, check the right IDEMPOTENT_WRITE (brokers before 2.8) and the message.",
    ),
    "not_comparable": LogEvent(
        ("WARNING",),
        "The brokers cannot say whether what was read is still in the log (before Kafka 2.3, or"
        " a missing right).",
        "Grant DESCRIBE on the topic, or upgrade the brokers.",
    ),
    "not_copied_forward": LogEvent(
        ("WARNING",),
        "Waiting records could not be copied to make room in the spool.",
        "Check the disk.",
    ),
    "not_durable": LogEvent(
        ("ERROR",),
        "`close()` ended before everything was on disk.",
        "Check the disk. Records that were not confirmed by `durable()` or `get()` may be lost.",
    ),
    "not_encoded": LogEvent(
        ("WARNING", "ERROR"),
        "There is no memory to encode accepted records. WARNING: they wait in memory. ERROR:"
        " they are lost with the producer.",
        "Free memory.",
    ),
    "end_offset_held": LogEvent(
        ("INFO",),
        "A look-up of offsets was answered with less than before, without a proof. The earlier value stands.",
        "Nothing.",
    ),
    "end_offset_regressed": LogEvent(
        ("ERROR",),
        "An end offset, or the start of a log, went back, with a proof.",
        "Look for an unclean election, or for a topic that was deleted and created again.",
    ),
    "offsets_not_written": LogEvent(
        ("ERROR",),
        "The file of `offsets_path` could not be written.",
        "Check the disk and the rights.",
    ),
    "option_ignored": LogEvent(
        ("WARNING",),
        "An option of kafka-python has no effect here. The message says what replaces it.",
        "Leave the option out.",
    ),
    "option_weak": LogEvent(
        ("WARNING",),
        "`acks=1`: a record that only the leader has is lost with the leader.",
        'Use `acks="all"`.',
    ),
    "older_records_delivered": LogEvent(
        ("INFO",),
        "The records for which others were held back are delivered.",
        "Nothing.",
    ),
    "order_not_guaranteed": LogEvent(
        ("WARNING",),
        "It cannot be determined what an earlier producer left in a lane. Records that are sent"
        " now may come before it.",
        "Restore the lane, if you have a copy.",
    ),
    "other_worker_python": LogEvent(
        ("WARNING",),
        "Spark's workers run another Python, without the modules that are needed.",
        "Set `PYSPARK_PYTHON` before the SparkSession is made.",
    ),
    "partition_not_ready": LogEvent(
        ("INFO",),
        "A partition cannot be fetched from at the moment. Its position stays.",
        "Nothing. If it lasts, look at the partition's leader or at remote storage.",
    ),
    "partition_ready": LogEvent(
        ("INFO",),
        "The partition can be fetched from again.",
        "Nothing.",
    ),
    "partitioner_failed": LogEvent(
        ("ERROR",),
        "The program's partitioner raised an exception. The record goes where kafka-python's"
        " default partitioner puts it.",
        "Correct the partitioner.",
    ),
    "position_reset": LogEvent(
        ("INFO", "WARNING"),
        "`auto_offset_reset` set a position. WARNING: records are skipped.",
        "WARNING: check whether retention is shorter than the consumer's lag.",
    ),
    "producer_ended": LogEvent(
        ("ERROR",),
        "The producer ended by an error, which every later call raises.",
        "Read the message. Open a new producer: it delivers what is in the spool.",
    ),
    "records_left": LogEvent(
        ("WARNING", "ERROR"),
        "The producer was closed with undelivered records on disk. WARNING: the next producer"
        " on the directory delivers them. ERROR: it does not find them, because files were"
        " moved.",
        "Start a producer on the directory, or run the command that the message names.",
    ),
    "records_lost": LogEvent(
        ("ERROR",),
        'With `spool="never"`: records that the cluster had not acknowledged are lost with the producer.',
        "Produce them again from their source.",
    ),
    "spool_records_missing": LogEvent(
        ("ERROR",),
        "Records that were durable are neither in the cluster nor in the spool. Files of the"
        " spool were deleted, or an older copy was restored.",
        "Find out what deletes files of the spool directory.",
    ),
    "rejected_kept": LogEvent(
        ("WARNING",),
        "The spool directory holds rejected records.",
        "Remove the cause, then run `kafkasafe spool resend`; or give them up with `kafkasafe"
        " spool discard`.",
    ),
    "rejected_not_kept": LogEvent(
        ("ERROR",),
        "Rejected records cannot be copied to `rejected/`, mostly because `rejected_max_bytes`"
        " is used up. Their partition waits.",
        "Run `kafkasafe spool resend` or `discard`, or raise `rejected_max_bytes`.",
    ),
    "rejected_unreadable": LogEvent(
        ("WARNING",),
        "Files in `rejected/` cannot be read.",
        "Check the disk and the rights.",
    ),
    "request_failed": LogEvent(
        ("ERROR",),
        "An unexpected exception when a request was passed to the network thread.",
        "Report it, with the traceback.",
    ),
    "resent_not_deleted": LogEvent(
        ("WARNING",),
        "A rejected batch was resent, and its file cannot be deleted.",
        "Check the rights of the spool directory.",
    ),
    "reserve_given_up": LogEvent(
        ("WARNING",),
        "The disk is full to the last byte. The space that was reserved for decisions is used.",
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
        "Check the rights of the spool directory.",
    ),
    "spool_directory": LogEvent(
        ("INFO",),
        "Where records wait, if neither `spool_dir` nor `KAFKASAFE_SPOOL_DIR` says it.",
        "Set `spool_dir` in production.",
    ),
    "spool_displaced": LogEvent(
        ("ERROR",),
        "Files of the spool were moved, deleted or cut while their producer works. The message"
        " says whether they are restored.",
        "Find out what touches the spool directory. Move the files back if they are not restored.",
    ),
    "orphaned_spool_found": LogEvent(
        ("WARNING",),
        "Records wait in another spool directory that no process owns.",
        "Run the command that the message names.",
    ),
    "spool_link_switched": LogEvent(
        ("WARNING",),
        "`spool_dir` is a link that leads elsewhere now. This producer stays in the old directory.",
        "Keep the spool outside of what deployments replace.",
    ),
    "spool_never": LogEvent(
        ("INFO",),
        '`spool="never"`: records that the cluster has not acknowledged are lost when the process ends.',
        "Nothing.",
    ),
    "spool_read_failed": LogEvent(
        ("WARNING",),
        "A read from the spool failed. It is tried again.",
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
        "A write to the spool failed. It is tried again. Confirmed records are not affected.",
        "Make room on the disk, or check it.",
    ),
    "topic_unblocked": LogEvent(
        ("WARNING",),
        "The cluster takes a topic again that it had refused.",
        "Nothing.",
    ),
    "topic_forgotten": LogEvent(
        ("INFO",),
        "A topic was deleted. What was delivered to it is no longer watched for losses.",
        "Nothing.",
    ),
    "topic_blocked": LogEvent(
        ("ERROR",),
        "The cluster refuses a topic, a partition or a batch: a right is missing, or the topic"
        " is. Records wait.",
        "Grant the right, or create the topic.",
    ),
    "torn_tail_cut": LogEvent(
        ("INFO",),
        "Bytes of a write that a crash interrupted were removed from the end of a file, and"
        " copied aside. Nothing in them had been confirmed.",
        "Nothing.",
    ),
    "torn_tail_gone": LogEvent(
        ("WARNING",),
        "The same, and there was no room for the copy.",
        "Make room on the disk.",
    ),
    "transaction_aborted": LogEvent(
        ("WARNING",),
        "The producer was closed in an open transaction. Nothing of it was sent.",
        "Call `commit_transaction()` or `abort_transaction()` before `close()`.",
    ),
    "transaction_recovered": LogEvent(
        ("INFO", "WARNING"),
        "A transaction that an earlier producer had decided to commit has ended. INFO:"
        " committed. WARNING: not committed.",
        "WARNING: read the reason in the message.",
    ),
    "transactions_unblocked": LogEvent(
        ("WARNING",),
        "The cluster takes a transactional id or group again that it had refused.",
        "Nothing.",
    ),
    "transactions_blocked": LogEvent(
        ("ERROR",),
        "The cluster refuses a transactional id or a group. Atomic batches wait.",
        "Grant the right that the message names, or lower `transaction_timeout_ms`.",
    ),
    "undecided": LogEvent(
        ("DEBUG",),
        "Partitions wait for the application to choose a position.",
        "See `LogDivergedError`.",
    ),
    "atomic_batch_dropped": LogEvent(
        ("ERROR",),
        "An atomic batch was given up.",
        "See `BatchDroppedError`.",
    ),
    "atomic_batch_retried": LogEvent(
        ("INFO", "WARNING"),
        "A step of an atomic batch's transaction failed and is tried again. WARNING: more than"
        " three failures in a row.",
        "Nothing in an outage. If it lasts, the message names the cause.",
    ),
    "unknown_lineage": LogEvent(
        ("INFO",),
        "Nothing is known of what was read before this position, so it cannot be compared with the log.",
        "Nothing. For positions that you keep yourself, set `lineage_path`.",
    ),
    "wrong_cluster": LogEvent(
        ("ERROR",),
        "The brokers belong to another cluster than the records in the spool. Nothing is sent to them.",
        "Correct `bootstrap_servers`, or give each cluster a `spool_dir` of its own.",
    ),
}
