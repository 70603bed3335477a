"""The configuration of a SafeProducer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from kafka import KafkaConsumer, KafkaProducer
from kafka.partitioner import DefaultPartitioner, StickyPartitioner

from kafkasafe.config.connection import check_connection, check_types
from kafkasafe.config.names import WITHOUT_EFFECT, check_names, ignored, with_sizes
from kafkasafe.config.spool_dir import resolved, spool_dir
from kafkasafe.config.table import (
    CONSUMER_DEFAULTS,
    DEFAULTS,
    FILES_ONLY,
    KAFKA_DEFAULTS,
    KAFKA_PRODUCER,
    MIB,
    PRODUCER,
    PRODUCER_DEFAULTS,
    fields,
)
from kafkasafe.config.values import choice, number, sendable
from kafkasafe.errors import ConfigError
from kafkasafe.logs import EventLog
from kafkasafe.options import OnRejected
from kafkasafe.record.batch import Compression

log = EventLog("config")


__all__ = [
    "DEFAULT_CLIENT_ID",
    "MIN_SPOOL_BYTES",
    "MOST_IN_FLIGHT",
    "Decide",
    "ProducerConfig",
    "validate",
]

_COMPRESSION: Final = {
    None: Compression.NONE,
    "none": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}

DEFAULT_CLIENT_ID: Final = "kafkasafe"
MIN_SPOOL_BYTES: Final = 16 * MIB
_SPOOL_BYTES: Final = 1024 * MIB
_REJECTED_BYTES: Final = 256 * MIB
_MEMORY_BYTES: Final = 32 * MIB
"""The default of `buffer.memory` in Kafka's own producer."""
_SEGMENT_OVERHEAD: Final = 64 * 1024
_NOWHERE: Final = Path("memory")
"""With spool="never": the path that messages show in place of a spool directory."""
MOST_IN_FLIGHT: Final = 5
"""A broker remembers a producer's last five batches. With more in flight, it could not recognise a repeated batch."""


@dataclass(frozen=True, slots=True)
class Decide:
    """An instruction: deliver no records, and only end the named atomic batches.

    Attributes:
        commit: Ids of the atomic batches to commit if they are staged (wholly in Kafka, but not committed); None: all.
        abort: Ids of the atomic batches to drop if they are not committed yet.
    """

    commit: frozenset[bytes] | None = frozenset()
    abort: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Validated options of a SafeProducer.

    Attributes:
        kafka: All of KafkaProducer's options, for the connections.
        client_id: Client id, never empty.
        spool_dir: The directory's real path, without symbolic links, resolved once.
        spool_dir_given: The absolute path as the user gave it. A producer that starts later resolves this path again.
        spool: "always": a record is on disk before it is sent. "on_error": a record is written to disk if the cluster
            does not acknowledge it within `spool_after_s`, if the buffer fills, or at close. "never": there are no
            files.
        batch_bytes: Largest batch, headers included.
        linger_s: How long a batch waits for more records.
        max_block_s: How long `send` waits for room.
        run_ahead_bytes: How many bytes may be accepted but not acknowledged while the cluster answers; None: no limit.
        state_age_s: How long after a batch's timestamp a broker certainly remembers the producer.
        decide: Instruction of a command that ends staged batches; None: deliver everything.
    """

    kafka: Mapping[str, Any] = field(repr=False)  # there are passwords in it
    client_id: str
    acks: int
    compression: Compression
    batch_bytes: int
    max_record_bytes: int
    linger_s: float
    max_block_s: float
    delivery_timeout_s: float | None
    request_timeout_s: float
    retry_backoff_s: float
    window: int
    partitioner: Any
    custom_partitioner: bool
    key_serializer: Any
    value_serializer: Any
    spool_dir: Path
    spool_dir_given: Path
    spool_dir_is_default: bool
    spool: Literal["always", "on_error", "never"]
    delivery: Literal["idempotent", "transactional"]
    transactional_id: str | None
    transaction_timeout_ms: int
    spool_lane: int | None
    spool_max_bytes: int
    spool_segment_bytes: int
    spool_sync: Literal["group", "each", "os"]
    spool_after_s: float
    run_ahead_bytes: int | None
    rejected_max_bytes: int
    retain_acked_bytes: int
    retain_acked_s: float
    on_data_loss: Literal["restore", "raise", "event"]
    restore_recreated_topics: bool
    data_loss_check_s: float
    on_corrupt: Literal["raise", "quarantine"]
    on_undecidable: Literal["raise", "resend", "skip"]
    on_rejected: OnRejected | None
    on_event: Callable[[Any], object] | None
    prometheus: bool
    blocked_timeout_s: float | None
    on_blocked_topic: Literal["raise", "accept"]
    state_age_s: float
    decide: Decide | None = None

    @property
    def in_memory(self) -> bool:
        """Whether `spool="never"`: unacknowledged records are in memory only."""
        return self.spool == "never"


def validate(options: Mapping[str, Any]) -> ProducerConfig:
    """Validate the options of a SafeProducer.

    Raises:
        ConfigError: An option is unknown (the message names the nearest) or has a value that cannot work.
    """
    if "missing_topic_timeout_ms" in options:
        raise ConfigError(
            "missing_topic_timeout_ms is now blocked_timeout_ms, which also covers forbidden and invalid topics; its"
            " default is a week, and None means no limit"
        )
    consumers = {**KafkaConsumer.DEFAULT_CONFIG, **CONSUMER_DEFAULTS}
    check_names(options, DEFAULTS, consumers, "SafeConsumer", "options")
    options = with_sizes(options)
    merged = {**DEFAULTS, **options}
    acks = {"all": -1, "-1": -1, "1": 1}.get(str(merged["acks"]), merged["acks"])
    if acks == 0:
        raise ConfigError(
            "acks=0 requests no acknowledgement, so the producer could never know that a record is safe; use 'all'"
        )
    if not (acks == -1 or acks == 1):  # noqa: PLR1714 - the value may be unhashable
        raise ConfigError(f"acks must be 'all', -1 or 1, not {merged['acks']!r}")
    if acks == 1:
        log.warning(
            "acks=1: if the leader fails, records that only the leader has are lost; use acks='all' for lossless"
            " delivery",
            event="option_weak",
        )
    transactional_id = merged["transactional_id"]
    if transactional_id is not None and not (isinstance(transactional_id, str) and transactional_id):
        raise ConfigError(f"transactional_id must be a non-empty string, not {transactional_id!r}")
    if transactional_id is not None:
        sendable("transactional_id", transactional_id)
    if not merged["enable_idempotence"]:
        raise ConfigError(
            "enable_idempotence=False would let every retry create a duplicate; leave enable_idempotence on"
        )
    kind = merged["compression_type"]
    compression = _COMPRESSION.get(kind) if kind is None or isinstance(kind, str) else None
    if compression is None:
        known = ", ".join(str(name) for name in _COMPRESSION)
        raise ConfigError(f"compression_type must be one of {known}, not {merged['compression_type']!r}")
    window = number(least=1)(merged, "max_in_flight_requests_per_connection")
    _check_idempotence(options, acks, window)
    if merged["retries"] not in {float("inf"), 2147483647}:
        ignored("retries", merged["retries"], "the producer retries pending records without a limit")
    if window > MOST_IN_FLIGHT:
        ignored("max_in_flight_requests_per_connection", window, f"the maximum is {MOST_IN_FLIGHT}")
    for name, reason in WITHOUT_EFFECT.items():
        if merged[name] != KAFKA_DEFAULTS[name]:
            ignored(name, merged[name], reason)
    check_types(
        {name: value for name, value in options.items() if name != "acks"}, KafkaProducer.DEFAULT_CONFIG
    )
    check_connection(merged)
    max_request = number(least=1024)(merged, "max_request_size")
    spool = choice("always", "on_error", "never")(merged, "spool")
    if merged["spool_max_bytes"] is None:
        merged["spool_max_bytes"] = _MEMORY_BYTES if spool == "never" else _SPOOL_BYTES
    spool_max = number(least=MIN_SPOOL_BYTES)(merged, "spool_max_bytes")
    segment = merged["spool_segment_bytes"]
    if spool == "never":
        _check_memory(merged, max_request, spool_max)
        # In memory, segments hold mostly marks (small entries). Keep segments small, because the memory of delivered
        # records is freed one segment at a time.
        segment = MIB
    elif segment is None:
        segment = max(min(64 * MIB, spool_max // 8), 2 * MIB)
        if max_request > segment - _SEGMENT_OVERHEAD:
            # One record of the largest size must fit into a segment.
            segment = -(-(max_request + _SEGMENT_OVERHEAD) // MIB) * MIB
            if segment * 4 > spool_max:
                raise ConfigError(
                    f"max_request_size={max_request} needs a spool with room for at least four such records: set"
                    f" spool_max_bytes={segment * 4} or more (it is {spool_max}), or lower max_request_size"
                )
    else:
        segment = number(least=MIB)(merged, "spool_segment_bytes")
    if spool != "never" and segment * 4 > spool_max:
        raise ConfigError(
            f"spool_segment_bytes={segment} must be at most a quarter of spool_max_bytes={spool_max}"
        )
    if spool != "never" and max_request > segment - _SEGMENT_OVERHEAD:
        raise ConfigError(
            f"max_request_size={max_request} must fit into one segment ({segment} bytes) of the spool: set"
            f" spool_segment_bytes={max_request + _SEGMENT_OVERHEAD} or more, and spool_max_bytes to at least four"
            " times that"
        )
    if merged["rejected_max_bytes"] is None:
        merged["rejected_max_bytes"] = min(_REJECTED_BYTES, spool_max)
    client_id = merged["client_id"] or DEFAULT_CLIENT_ID
    if spool == "never":
        given, is_default = _NOWHERE, False
    else:
        given, is_default = spool_dir(merged["spool_dir"], client_id, merged["bootstrap_servers"])
    partitioner = merged["partitioner"]
    if not hasattr(partitioner, "partition"):
        raise ConfigError(
            f"partitioner must have a method partition(), like kafka.partitioner.Partitioner, not {partitioner!r}"
        )
    return ProducerConfig(
        kafka={**{name: merged[name] for name in KAFKA_DEFAULTS}, "client_id": client_id, "acks": acks},
        client_id=client_id,
        acks=acks,
        compression=compression,
        batch_bytes=min(max(number(least=0)(merged, "batch_size"), 1), max_request),
        window=min(MOST_IN_FLIGHT, window),
        partitioner=partitioner,
        # Both partitioners choose the same partition for a key. They differ for records without a key, but kafkasafe
        # itself puts all such records of one batch into one partition.
        custom_partitioner=type(partitioner) not in {DefaultPartitioner, StickyPartitioner},
        spool_dir=given if spool == "never" else resolved(given),
        spool_dir_given=given,
        spool_dir_is_default=is_default,
        spool_max_bytes=spool_max,
        spool_segment_bytes=segment,
        transactional_id=transactional_id,
        **fields((*KAFKA_PRODUCER, *PRODUCER), merged),
    )


def _check_memory(options: Mapping[str, Any], max_request: int, limit: int) -> None:
    """Refuse `spool="never"` with an option about files, or with a limit too small for the largest record."""
    needless = [name for name in FILES_ONLY if options[name] != PRODUCER_DEFAULTS[name]]
    if needless:
        names = ", ".join(f"{name}={options[name]!r}" for name in needless)
        raise ConfigError(
            f"spool='never' writes no file, so {names} has no effect: leave it out, or choose spool='on_error' or"
            " 'always'"
        )
    if max_request * 4 > limit:
        raise ConfigError(
            f"max_request_size={max_request} needs room for at least four such records: set"
            f" spool_max_bytes={max_request * 4} or more (it is {limit} bytes of memory), or lower max_request_size"
        )


def _check_idempotence(options: Mapping[str, Any], acks: int, window: int) -> None:
    """Refuse the options that KafkaProducer refuses together with an explicit enable_idempotence=True."""
    if not options.get("enable_idempotence"):
        return
    conflicts = [
        f"{name}={options[name]!r}"
        for name, conflicts in (
            ("acks", acks != -1),
            ("retries", options.get("retries") == 0),
            ("max_in_flight_requests_per_connection", window > MOST_IN_FLIGHT),
        )
        if conflicts
    ]
    if conflicts:
        raise ConfigError(f"enable_idempotence=True cannot be combined with {', '.join(conflicts)}")
