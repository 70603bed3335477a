"""The options of SafeProducer and SafeConsumer as types: for completion in editors, and for type checkers (PEP 692).

What they mean is in docs/options.md and docs/consumer.md. At run time `kafkasafe.config` checks them, and more closely.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from kafkasafe.events import ConsumerEvent, Event, LogDiverged

__all__ = ["ConnectionOptions", "ConsumerOptions", "ProducerOptions"]

_Path: TypeAlias = str | os.PathLike[str]
_Size: TypeAlias = int | str
"""Bytes, or a text: "64MiB", "1GiB"."""
_Protocol: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]


class ConnectionOptions(TypedDict, total=False):
    """kafka-python's options that its producer and its consumer share."""

    bootstrap_servers: str | Collection[str]
    client_id: str | None
    connections_max_idle_ms: float
    allow_auto_create_topics: bool
    metadata_max_age_ms: float
    client_dns_lookup: str
    retry_backoff_ms: float
    request_timeout_ms: float
    receive_message_max_bytes: _Size
    receive_buffer_bytes: _Size | None
    send_buffer_bytes: _Size | None
    socket_options: Sequence[tuple[int, int, int]]
    reconnect_backoff_ms: float
    reconnect_backoff_max_ms: float
    max_in_flight_requests_per_connection: int
    security_protocol: _Protocol
    ssl_context: ssl.SSLContext | None
    ssl_check_hostname: bool
    ssl_cafile: _Path | None
    ssl_certfile: _Path | None
    ssl_keyfile: _Path | None
    ssl_crlfile: _Path | None
    ssl_password: str | None
    ssl_ciphers: str | None
    api_version: tuple[int, ...] | None
    selector: Any
    sasl_mechanism: str | None
    sasl_plain_username: str | None
    sasl_plain_password: str | None
    sasl_kerberos_name: Any
    sasl_kerberos_service_name: str
    sasl_kerberos_domain_name: str | None
    sasl_oauth_token_provider: Any
    proxy_url: str | None
    socks5_proxy: str | None
    metrics: bool


class ProducerOptions(ConnectionOptions, total=False):
    """What SafeProducer takes.

    Not here: options of KafkaProducer that have no effect on it (docs/differences.md). They are accepted all the same.
    """

    key_serializer: Any
    value_serializer: Any
    enable_idempotence: bool
    transactional_id: str | None
    transaction_timeout_ms: float
    delivery_timeout_ms: float | None
    acks: Literal["all", "-1", "1", -1, 1]
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    retries: float
    batch_size: int
    linger_ms: float
    partitioner: Any
    max_block_ms: float
    max_request_size: int
    spool_dir: _Path | None
    spool: Literal["always", "on_error", "never"]
    delivery: Literal["idempotent", "staged"]
    spool_lane: int | None
    spool_max_bytes: _Size | None
    spool_segment_bytes: _Size | None
    spool_sync: Literal["group", "each", "os"]
    spool_after_ms: float
    rejected_max_bytes: _Size | None
    retain_acked_bytes: _Size
    retain_acked_s: float
    on_acked_loss: Literal["heal", "raise", "event"]
    heal_recreated_topics: bool
    acked_loss_check_ms: float
    on_corrupt: Literal["raise", "quarantine"]
    on_undecidable: Literal["raise", "resend", "skip"]
    dead_letter: Callable[..., object] | None
    on_event: Callable[[Event], object] | None
    refused_timeout_ms: float | None
    on_refused_topic: Literal["raise", "accept"]
    producer_id_expiration_ms: float


class ConsumerOptions(ConnectionOptions, total=False):
    """What SafeConsumer takes."""

    bootstrap_timeout_ms: float
    kafka_client: Any
    metric_reporters: Sequence[Any]
    metrics_enabled: bool
    metrics_num_samples: int
    metrics_sample_window_ms: float
    client_rack: str
    group_id: str | None
    group_instance_id: str | None
    key_deserializer: Any
    value_deserializer: Any
    enable_incremental_fetch_sessions: bool
    fetch_max_wait_ms: int
    fetch_min_bytes: _Size
    fetch_max_bytes: _Size
    max_partition_fetch_bytes: _Size
    auto_offset_reset: Literal["earliest", "latest", "none", "smallest", "largest"]
    enable_auto_commit: bool
    auto_commit_interval_ms: float
    default_offset_commit_callback: Callable[[Mapping[Any, Any], Any], object]
    check_crcs: bool
    isolation_level: Literal["read_uncommitted", "read_committed"]
    partition_assignment_strategy: Sequence[Any]
    max_poll_records: int
    max_poll_interval_ms: float
    session_timeout_ms: float
    heartbeat_interval_ms: float
    consumer_timeout_ms: float
    metric_group_prefix: str
    exclude_internal_topics: bool
    on_divergence: Literal["raise", "seek"] | Callable[[LogDiverged], int | None]
    on_event: Callable[[ConsumerEvent], object] | None
    offsets_path: _Path | None
    offsets_hold_timeout_s: float
    lineage_path: _Path | None
    remote_storage_timeout_ms: float | None
