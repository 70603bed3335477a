"""The options that kafkasafe itself reads. Each option has a row: a field of `ProducerConfig` or `ConsumerConfig`.

A row has the type of the field, and an `Option`: the name, the default, the check, and the value with `spool="never"`.
`kafkasafe.options` has the types that users may pass, and the text for users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from kafka import KafkaProducer
from kafka.partitioner import DefaultPartitioner, StickyPartitioner

from kafkasafe.config import sizes
from kafkasafe.config.option import KAFKAS, Option, option, rows
from kafkasafe.config.values import (
    acks_of,
    choice,
    client_id_of,
    compression_of,
    consumers_hook,
    converter,
    divergence,
    duration,
    flag,
    hook,
    idempotence_of,
    lane,
    number,
    optional,
    partitioner_of,
    path_of_file,
    seconds,
    transactional_id_of,
    window_of,
)
from kafkasafe.limits.run_ahead import RUN_AHEAD_BYTES
from kafkasafe.options import OnRejected
from kafkasafe.record.batch import Compression

_INT32: Final = 0x7FFF_FFFF

# `KAFKA_DEFAULTS` has KafkaProducer's own defaults. `OTHER_DEFAULTS` has the defaults that kafkasafe changes, and why.
KAFKA_DEFAULTS: Final[dict[str, Any]] = dict(KafkaProducer.DEFAULT_CONFIG)
OTHER_DEFAULTS: Final[dict[str, Any]] = {
    # A pending record is safe on disk, so no delivery timeout is needed.
    "delivery_timeout_ms": None,
    # The default of Kafka 4's own producer (KIP-1030). `get()`, `durable()` and `flush()` end the linger time early.
    "linger_ms": 5,
    # Each batch needs one fsync, one checksum and one request, so the cost per record is lowest with large batches.
    "batch_size": 1_000_000,
    "reconnect_backoff_max_ms": 1000,
    "acks": -1,
}


@dataclass(frozen=True, slots=True)
class Decide:
    """An instruction to deliver no records, but only to commit or drop the named atomic batches.

    Attributes:
        commit: Ids of the atomic batches to commit if they are staged (wholly in Kafka, but not committed); None: all.
        abort: Ids of the atomic batches to drop, unless they are committed already.
    """

    commit: frozenset[bytes] | None = frozenset()
    abort: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """The validated options of a SafeProducer. A field made with `option` is a row of the table.

    The rows are checked from top to bottom. A row whose check or `unset` function reads another option must come after
    that option's row.

    Attributes:
        kafka: All of KafkaProducer's options, for the connections.
        client_id: Client id, never empty.
        spool_dir: Path of the spool directory, with symbolic links resolved at the start.
        spool_dir_given: The absolute path as the user gave it, before symbolic links are resolved.
        spool: "always": a record is on disk before it is sent. "on_error": a record is written to disk if the cluster
            does not acknowledge it within `spool_after_s`, if the buffer is full, or if the producer closes. "never":
            the producer writes no files.
        idempotent: Always True: `enable_idempotence=False` is refused.
        batch_bytes: Largest batch, headers included.
        linger_s: How long a batch waits for more records.
        max_block_s: How long `send` waits for room.
        run_ahead_bytes: Limit for bytes that are accepted but not acknowledged yet. Applies while the cluster answers;
            None: no limit.
        state_age_s: After the timestamp of a batch, a broker keeps the state of the batch's producer for at least this
            many seconds.
        decide: Set only by commands that commit or drop atomic batches; None: deliver everything.
    """

    kafka: Mapping[str, Any] = field(repr=False)  # it may contain passwords
    spool_dir: Path
    spool_dir_given: Path
    spool_dir_is_default: bool
    decide: Decide | None = None

    # KafkaProducer's options.
    acks: int = option("acks", KAFKAS, acks_of)
    transactional_id: str | None = option("transactional_id", KAFKAS, transactional_id_of)
    idempotent: bool = option("enable_idempotence", KAFKAS, idempotence_of)
    compression: Compression = option("compression_type", KAFKAS, compression_of)
    window: int = option("max_in_flight_requests_per_connection", KAFKAS, window_of)
    max_record_bytes: int = option("max_request_size", KAFKAS, number(least=sizes.LEAST_RECORD_BYTES))
    batch_bytes: int = option("batch_size", KAFKAS, sizes.batch_bytes)
    client_id: str = option("client_id", KAFKAS, client_id_of)
    partitioner: Any = option("partitioner", KAFKAS, partitioner_of)
    linger_s: float = option("linger_ms", KAFKAS, seconds(least=0))
    max_block_s: float = option("max_block_ms", KAFKAS, seconds(least=0))
    delivery_timeout_s: float | None = option(
        "delivery_timeout_ms", KAFKAS, optional(seconds(least=1), float("inf"))
    )
    request_timeout_s: float = option("request_timeout_ms", KAFKAS, seconds(least=1))
    retry_backoff_s: float = option("retry_backoff_ms", KAFKAS, seconds(least=1))
    transaction_timeout_ms: int = option("transaction_timeout_ms", KAFKAS, number(least=1000, most=_INT32))
    key_serializer: Any = option("key_serializer", KAFKAS, converter("serialize"))
    value_serializer: Any = option("value_serializer", KAFKAS, converter("serialize"))

    # Options that KafkaProducer does not have. (One function sets `spool_dir` and the two fields after it, which have
    # no rows.)
    spool: Literal["always", "on_error", "never"] = option(
        "spool", "always", choice("always", "on_error", "never")
    )
    delivery: Literal["idempotent", "transactional"] = option(
        "delivery", "idempotent", choice("idempotent", "transactional")
    )
    spool_lane: int | None = option("spool_lane", None, lane, files_only=True)
    spool_max_bytes: int = option(
        "spool_max_bytes", None, number(least=sizes.MIN_SPOOL_BYTES), unset=sizes.default_spool_bytes
    )
    spool_segment_bytes: int = option(
        "spool_segment_bytes",
        None,
        number(least=sizes.MIB),
        files_only=True,
        in_memory=sizes.MEMORY_SEGMENT_BYTES,
        unset=sizes.default_segment_bytes,
    )
    spool_sync: Literal["group", "each", "os"] = option(
        "spool_sync", "group", choice("group", "each", "os"), files_only=True, in_memory="os"
    )
    spool_after_s: float = option("spool_after_ms", 1000, seconds(least=0), files_only=True)
    run_ahead_bytes: int | None = option(
        "run_ahead_bytes",
        RUN_AHEAD_BYTES,
        optional(number(least=sizes.MIB)),
        files_only=True,
        in_memory=None,
    )
    rejected_max_bytes: int = option(
        "rejected_max_bytes",
        None,
        number(least=0),
        files_only=True,
        in_memory=0,
        unset=sizes.default_rejected_bytes,
    )
    retain_acked_bytes: int = option("retain_acked_bytes", 0, number(least=0), files_only=True)
    retain_acked_s: float = option("retain_acked_ms", 0, duration, files_only=True)
    on_data_loss: Literal["restore", "raise", "event"] = option(
        "on_data_loss", "restore", choice("restore", "raise", "event")
    )
    restore_recreated_topics: bool = option("restore_recreated_topics", False, flag, files_only=True)
    data_loss_check_s: float = option("data_loss_check_ms", 30_000, seconds(least=100))
    on_corrupt: Literal["raise", "quarantine"] = option(
        "on_corrupt", "raise", choice("raise", "quarantine"), files_only=True
    )
    on_undecidable: Literal["raise", "resend", "skip"] = option(
        "on_undecidable", "raise", choice("raise", "resend", "skip")
    )
    on_rejected: OnRejected | None = option("on_rejected", None, hook)
    on_event: Callable[[Any], object] | None = option("on_event", None, hook)
    prometheus: bool = option("prometheus", False, flag)
    blocked_timeout_s: float | None = option("blocked_timeout_ms", 7 * 86_400_000, optional(seconds(least=0)))
    on_blocked_topic: Literal["raise", "accept"] = option(
        "on_blocked_topic", "raise", choice("raise", "accept")
    )
    state_age_s: float = option("producer_id_expiration_ms", 86_400_000, seconds(least=1, per=4000))

    @property
    def in_memory(self) -> bool:
        """Whether `spool` is "never". If so, unacknowledged records exist only in memory."""
        return self.spool == "never"

    @property
    def custom_partitioner(self) -> bool:
        """Whether the partitioner that the user gave has to be called.

        kafkasafe does not call kafka-python's own two partitioners, but chooses the same partition for a key. All
        keyless records of a batch go to one partition.
        """
        return type(self.partitioner) not in {DefaultPartitioner, StickyPartitioner}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """The validated options of a SafeConsumer. A field made with `option` is a row of the table.

    Attributes:
        kafka: The options of KafkaConsumer that the user gave.
        on_divergence: "raise", "seek", or a callable that gets the event and returns the offset at which to continue.
        on_event: Gets each `kafkasafe.events.ConsumerEvent`.
        offsets_path: File that keeps the highest end offsets across restarts; None: no file.
        offsets_hold_timeout_s: How long the consumer ignores an end offset that is lower without a known reason, before
            it reports the lower offset as unproven.
        lineage_path: File for the history of the records that were read, so that the history survives a restart; None:
            commits alone store the history.
        prometheus: Whether prometheus-client's default registry collects the metrics.
        remote_storage_timeout_s: If remote storage could not be read for this long, `poll` raises an error; None: it
            never raises this error.
    """

    kafka: Mapping[str, Any] = field(repr=False)  # it may contain passwords
    on_divergence: Literal["raise", "seek"] | Callable[[Any], int | None] = option(
        "on_divergence", "raise", divergence
    )
    on_event: Callable[[Any], object] | None = option("on_event", None, consumers_hook)
    offsets_path: Path | None = option("offsets_path", None, path_of_file)
    offsets_hold_timeout_s: float = option("offsets_hold_timeout_ms", 30_000, duration)
    lineage_path: Path | None = option("lineage_path", None, path_of_file)
    prometheus: bool = option("prometheus", False, flag)
    remote_storage_timeout_s: float | None = option(
        "remote_storage_timeout_ms", None, optional(seconds(least=1))
    )


PRODUCER: Final[dict[str, Option]] = rows(ProducerConfig)
"""The options of a producer, by the name of the field in `ProducerConfig`."""
CONSUMER: Final[dict[str, Option]] = rows(ConsumerConfig)
"""The options of a consumer, by the name of the field in `ConsumerConfig`."""
PRODUCER_DEFAULTS: Final[dict[str, Any]] = {
    "spool_dir": None,
    **{row.name: row.default for row in PRODUCER.values() if row.default is not KAFKAS},
}
"""Options of a SafeProducer that KafkaProducer does not have, with their defaults."""
CONSUMER_DEFAULTS: Final[dict[str, Any]] = {row.name: row.default for row in CONSUMER.values()}
"""Options of a SafeConsumer that KafkaConsumer does not have, with their defaults."""
FILES_ONLY: Final = ("spool_dir", *(row.name for row in PRODUCER.values() if row.files_only))
"""Options about files, which cannot be combined with `spool="never"`."""
DEFAULTS: Final[dict[str, Any]] = {**KAFKA_DEFAULTS, **OTHER_DEFAULTS, **PRODUCER_DEFAULTS}
"""All options of a SafeProducer, with their defaults."""
