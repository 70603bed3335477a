"""The options of SafeProducer and SafeConsumer as types (PEP 692), for editors and type checkers.

Editors show the text below each name, and docs/options-reference.md is generated from it. At run time
`kafkasafe.config` checks the values more strictly than the types do.
"""

from __future__ import annotations

import os
import selectors
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

from kafkasafe.events import ConsumerEvent, Event, LogDiverged

__all__ = [
    "AsyncConsumerOptions",
    "AsyncProducerOptions",
    "ConnectionOptions",
    "ConsumerOptions",
    "OnRejected",
    "ProducerOptions",
    "SupportsDeserialize",
    "SupportsPartition",
    "SupportsSerialize",
    "SupportsToken",
]

_Path: TypeAlias = str | os.PathLike[str]
_Size: TypeAlias = int | str
"""A number of bytes, or a string such as "64MiB" or "1GiB"."""
_Protocol: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
_Mechanism: TypeAlias = Literal[
    "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"
]
_Buffer: TypeAlias = bytes | bytearray | memoryview


class SupportsSerialize(Protocol):
    """A serializer object, such as a `kafka.serializer.Serializer`."""

    def serialize(self, topic: str, headers: list[Any], data: Any, /) -> _Buffer | None:
        """Return the bytes of a key or a value."""
        ...


class SupportsDeserialize(Protocol):
    """A deserializer object, such as a `kafka.serializer.Deserializer`."""

    def deserialize(self, topic: str, headers: list[Any], data: Any, /) -> Any:
        """Return the object that is encoded in the bytes of a key or a value."""
        ...


class SupportsPartition(Protocol):
    """A partitioner: an object with the method of `kafka.partitioner.Partitioner`."""

    def partition(
        self,
        topic: str,
        key: Any,
        serialized_key: bytes | None,
        value: Any,
        serialized_value: bytes | None,
        cluster: Any,
        /,
    ) -> int:
        """Return the number of the partition that a record goes to."""
        ...


class SupportsToken(Protocol):
    """A token provider: at run time an object of a class derived from `kafka.net.sasl.oauth.AbstractTokenProvider`."""

    def token(self) -> str:
        """Return a token."""
        ...


class OnRejected(Protocol):
    """A function for `on_rejected`, which gets keyword arguments."""

    def __call__(
        self,
        *,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        timestamp_ms: int,
        error: BaseException,
    ) -> object:
        """Handle one rejected record."""
        ...


class ConnectionOptions(TypedDict, total=False):
    """Options that kafka-python's producer and consumer share."""

    bootstrap_servers: str | Collection[str]
    """Addresses of some brokers: "host:port", several separated by commas, or a list. The client learns the
    addresses of the other brokers from these.
    """
    client_id: str | None
    """A name for this client. The brokers' logs, the brokers' quotas and the metrics use this name. A producer's
    default is "kafkasafe".
    """
    connections_max_idle_ms: float
    """Close a connection that had no request for this many milliseconds."""
    allow_auto_create_topics: bool
    """Let the brokers create a topic that does not exist, if their own settings allow that."""
    metadata_max_age_ms: float
    """Longest time in milliseconds between two requests for metadata (topics, partitions, leaders)."""
    client_dns_lookup: str
    """How the client resolves broker names: "use_all_dns_ips", or "resolve_canonical_bootstrap_servers_only"."""
    retry_backoff_ms: float
    """The first pause, in milliseconds, before a failed request is sent again. Later pauses are longer."""
    request_timeout_ms: float
    """If a request is not answered within this many milliseconds, it is sent again."""
    receive_message_max_bytes: _Size
    """Largest response of a broker that the client accepts, in bytes."""
    receive_buffer_bytes: _Size | None
    """Size of the socket's receive buffer (SO_RCVBUF), in bytes. None: the system's default."""
    send_buffer_bytes: _Size | None
    """Size of the socket's send buffer (SO_SNDBUF), in bytes. None: the system's default."""
    socket_options: Sequence[tuple[int, int, int]]
    """Arguments of `socket.setsockopt` for each connection."""
    reconnect_backoff_ms: float
    """The first pause, in milliseconds, before the client connects to a broker again. Later pauses are longer."""
    reconnect_backoff_max_ms: float
    """The longest pause, in milliseconds, before the client connects to a broker again."""
    max_in_flight_requests_per_connection: int
    """Producer: largest number of unacknowledged batches of one partition. At most 5, because a broker recognises a
    repeated batch only if it is one of the producer's last five. Records stay in order whatever the number is.
    Consumer: largest number of unanswered requests to one broker.
    """
    security_protocol: _Protocol
    """"PLAINTEXT", "SSL" (TLS), "SASL_PLAINTEXT" or "SASL_SSL". The two with SASL need `sasl_mechanism`."""
    ssl_context: ssl.SSLContext | None
    """A prepared `ssl.SSLContext`. It replaces the other `ssl_` options."""
    ssl_check_hostname: bool
    """Whether a broker's certificate must name its host."""
    ssl_cafile: _Path | None
    """PEM file with the certificates of the authorities to trust. None: the system's."""
    ssl_certfile: _Path | None
    """PEM file with the client's certificate and its chain."""
    ssl_keyfile: _Path | None
    """PEM file with the client's private key. None: the key is in `ssl_certfile`."""
    ssl_crlfile: _Path | None
    """PEM file with a list of revoked certificates. The client looks up the broker's own certificate in this list."""
    ssl_password: str | None
    """Password of the private key."""
    api_version: tuple[int, ...] | None
    """Version of the brokers, such as (2, 8). None: the client asks the brokers."""
    selector: Callable[[], selectors.BaseSelector]
    """Class of the selector (module `selectors`) that waits for sockets. Default: the platform's best."""
    sasl_mechanism: _Mechanism | None
    """"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI" (Kerberos; needs the package gssapi) or
    "AWS_MSK_IAM" (with `security_protocol="SASL_SSL"`; needs the package botocore, and uses the credentials that
    botocore finds).
    """
    sasl_plain_username: str | None
    """User name for PLAIN and SCRAM."""
    sasl_plain_password: str | None
    """Password for PLAIN and SCRAM. It is never logged."""
    sasl_kerberos_name: Any
    """A `gssapi.Name` for GSSAPI. Replaces `sasl_kerberos_service_name` and `sasl_kerberos_domain_name`."""
    sasl_kerberos_service_name: str
    """Kerberos service name of the brokers."""
    sasl_kerberos_domain_name: str | None
    """Kerberos domain name. None: the broker's host name."""
    sasl_oauth_token_provider: SupportsToken | None
    """An object of a class derived from `kafka.net.sasl.oauth.AbstractTokenProvider`, for OAUTHBEARER."""
    proxy_url: str | None
    """Connect through this proxy, such as "socks5://proxy:1080" or "http://proxy:3128"."""
    socks5_proxy: str | None
    """Deprecated by kafka-python: use `proxy_url`."""
    prometheus: bool
    """Register this client's metrics in prometheus-client's default registry. For another registry, call
    `kafkasafe.metrics.install`.
    """


class _OfProducers(ConnectionOptions, total=False):
    """Options of both producers: kafkasafe.SafeProducer and kafkasafe.aio.SafeProducer."""

    key_serializer: Callable[[Any], _Buffer | None] | SupportsSerialize | None
    """A function, or an object with `serialize(topic, headers, data)`, that converts a key to bytes. None: keys are
    bytes.
    """
    value_serializer: Callable[[Any], _Buffer | None] | SupportsSerialize | None
    """A function, or an object with `serialize(topic, headers, data)`, that converts a value to bytes. None: values
    are bytes.
    """
    enable_idempotence: bool
    """Always on. False raises ConfigError, because each retry could then create a duplicate."""
    transaction_timeout_ms: float
    """If a crash leaves a transaction open, the cluster aborts it after this many milliseconds. At most the brokers'
    `transaction.max.timeout.ms`.
    """
    delivery_timeout_ms: float | None
    """If a record is not acknowledged within this many milliseconds, its future fails. The record stays in the spool
    and is still delivered. None: never.
    """
    acks: Literal["all", "-1", "1", -1, 1]
    """"all" (the same as -1): a record is acknowledged when all in-sync replicas have it. 1: a record is
    acknowledged when the leader has it. With 1, a record can be lost if the leader fails, so the producer logs a
    WARNING. 0 raises ConfigError.
    """
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    """Compression of batches. snappy, lz4 and zstd need pyarrow (`pip install 'kafkasafe[arrow]'`)."""
    retries: float
    """Accepted for compatibility. The producer retries a pending record without a limit."""
    batch_size: _Size
    """Largest size of a batch, in bytes. If a topic has many partitions, the producer first collects more bytes than
    this and then forms the batches of all partitions.
    """
    linger_ms: float
    """How many milliseconds a batch waits for more records. `get`, `durable` and `flush` end this wait early."""
    max_block_ms: float
    """If the spool has no room within this many milliseconds, `send` raises SpoolFullError."""
    max_request_size: _Size
    """Largest size of a record, in bytes."""
    spool_dir: _Path | None
    """The directory that holds pending records. Use one directory for each cluster; any number of processes can share a
    directory. None: the environment variable `KAFKASAFE_SPOOL_DIR`, or else the user's state directory.
    """
    spool: Literal["always", "on_error", "never"]
    """"always": a record is on disk before it is sent. "on_error": a record is written to disk only if the cluster
    does not acknowledge it within `spool_after_ms`, if memory is full, or at `close`. "never": the producer writes no
    files; `close` or a crash loses records that are not acknowledged.
    """
    delivery: Literal["idempotent", "transactional"]
    """"idempotent": each batch is sent to its partition independently. "transactional": batches are sent in
    transactions, for `read_committed` consumers.
    """
    spool_lane: int | None
    """Number of the lane (the producer's subdirectory) in the spool directory. None: the lane that this
    `client_id` used before, or the lowest free one.
    """
    spool_max_bytes: _Size | None
    """Largest size of the spool, in bytes. None: 1 GiB; with `spool="never"` 32 MiB of memory."""
    spool_segment_bytes: _Size | None
    """Largest size of one file of the spool, in bytes. None: an eighth of `spool_max_bytes`, at most 64 MiB."""
    spool_sync: Literal["group", "each", "os"]
    """"group": one fsync for all waiting batches. "each": one fsync for each batch. "os": no fsync; a crash of the
    machine may lose records that are not acknowledged.
    """
    spool_after_ms: float
    """With `spool="on_error"`: write a record to disk if it is not acknowledged within this many milliseconds."""
    run_ahead_bytes: _Size | None
    """How many accepted bytes may be unacknowledged while the cluster answers. Above this limit, `send` waits for
    deliveries, at most `max_block_ms`. Because of this wait, later batches are still in memory when they are sent.
    During an outage the limit does not apply: records are buffered on disk. None: no limit. Default: 14 MiB.
    """
    rejected_max_bytes: _Size | None
    """How many bytes of rejected records each lane keeps. None: `spool_max_bytes`, but at most 256 MiB."""
    retain_acked_bytes: _Size
    """Keep this many bytes of delivered records on disk, to send them again if the cluster loses them."""
    retain_acked_ms: float
    """Keep delivered records on disk for this many milliseconds, to send them again if the cluster loses them."""
    on_data_loss: Literal["restore", "raise", "event"]
    """What to do when the cluster lost acknowledged records. "restore": resend the records that are still in the spool,
    and raise DataLossError for the others. "raise": raise DataLossError for all. "event": raise nothing. With each
    value, the producer emits an event, logs an error and counts the loss in the metrics.
    """
    restore_recreated_topics: bool
    """Send lost records again even if their topic was deleted and created again."""
    data_loss_check_ms: float
    """Time in milliseconds between two checks of an idle partition for lost records."""
    on_corrupt: Literal["raise", "quarantine"]
    """What to do about damage in the spool. "raise": raise SpoolCorruptError. "quarantine": copy the damaged bytes
    to `quarantine/`, and deliver the rest.
    """
    on_undecidable: Literal["raise", "resend", "skip"]
    """What to do with a batch if it cannot be determined whether it is in the log. "raise": `send` and `flush` raise
    UndecidableError until `resolve_undecidable` is called. "resend": send the batch again; it may then be in the log
    twice. "skip": treat the batch as delivered; it may be missing.
    """
    on_rejected: OnRejected | None
    """A function that gets each record that the cluster rejected permanently: topic, partition, key, value,
    headers, timestamp_ms, error.
    """
    on_event: Callable[[Event], object] | None
    """A function that gets each event of `kafkasafe.events`. A producer calls the function on its own
    thread, a consumer on the thread that polls.
    """
    blocked_timeout_ms: float | None
    """If the cluster blocks a topic for this many milliseconds, the producer treats the topic's pending records as
    rejected. None: no limit.
    """
    on_blocked_topic: Literal["raise", "accept"]
    """What `send` does for a topic that the cluster blocks. "raise": raise kafka-python's exception for the error
    code. "accept": accept the record and keep it until the topic is available.
    """
    producer_id_expiration_ms: float
    """The brokers' setting `producer.id.expiration.ms`, in milliseconds."""


class ProducerOptions(_OfProducers, total=False):
    """Options of SafeProducer.

    SafeProducer also accepts KafkaProducer's other options, but ignores them (docs/differences.md).
    """

    partitioner: SupportsPartition
    """Chooses the partition of a record that is sent without one. Default: as in Kafka, by the hash of the key."""
    transactional_id: str | None
    """Send only in transactions, with KafkaProducer's methods (`init_transactions` and so on)."""


class AsyncProducerOptions(_OfProducers, total=False):
    """Options of `kafkasafe.aio.SafeProducer`: those of SafeProducer, without `transactional_id`."""

    partitioner: SupportsPartition | Callable[[bytes | None, list[int], list[int]], int]
    """Chooses the partition of a record that is sent without one: a partitioner, or a function as in aiokafka,
    `function(key_bytes, all_partitions, available_partitions)`. Default: as in Kafka, by the hash of the key.
    """


class _OfConsumers(ConnectionOptions, total=False):
    """Options of both consumers: kafkasafe.SafeConsumer and kafkasafe.aio.SafeConsumer."""

    ssl_ciphers: str | None
    """Ciphers in OpenSSL's notation."""
    bootstrap_timeout_ms: float
    """How many milliseconds a consumer's constructor waits for the first broker."""
    metric_reporters: Sequence[Any]
    """Classes that receive kafka-python's metrics."""
    metrics_enabled: bool
    """Whether kafka-python's metrics are collected."""
    metrics_num_samples: int
    """Number of samples from which kafka-python computes each of its metrics."""
    metrics_sample_window_ms: float
    """Length, in milliseconds, of a sample of kafka-python's metrics."""
    kafka_client: Any
    """A factory for kafka-python's network client. With this option, the consumer does not use kafkasafe's connections.
    """
    client_rack: str
    """Name of this client's rack. The consumer then reads from a replica in the same rack (KIP-392)."""
    group_id: str | None
    """Name of the consumer group. None: no group and no commits."""
    group_instance_id: str | None
    """Makes this consumer a static member of its group under this name (KIP-345)."""
    key_deserializer: Callable[[Any], Any] | SupportsDeserialize | None
    """A function, or an object with `deserialize(topic, headers, data)`, that converts the bytes of a key to an object.
    None: keys are bytes.
    """
    value_deserializer: Callable[[Any], Any] | SupportsDeserialize | None
    """A function, or an object with `deserialize(topic, headers, data)`, that converts the bytes of a value to an
    object. None: values are bytes.
    """
    enable_incremental_fetch_sessions: bool
    """Use fetch sessions, in which a fetch request names only the partitions that changed (KIP-227)."""
    fetch_max_wait_ms: int
    """How many milliseconds a broker waits for `fetch_min_bytes` before it answers with less."""
    fetch_min_bytes: _Size
    """A broker answers a fetch request as soon as the broker has this many bytes of records for it."""
    fetch_max_bytes: _Size
    """Largest response to a fetch request, in bytes. A larger first batch is returned nevertheless."""
    max_partition_fetch_bytes: _Size
    """How many bytes of a fetch response may belong to one partition. A larger first batch is returned nevertheless. If
    you do not set this option, a consumer increases the value while full responses arrive quickly. The limit is 4 MiB
    (all partitions share 32 MiB), or 8 MiB if the consumer reads only with `poll_arrow` or `poll_batches`.
    """
    auto_offset_reset: Literal["earliest", "latest", "none", "smallest", "largest"]
    """Where to begin if no position is committed, or if the position is out of range: "earliest", "latest", or "none"
    (raise). Each reset emits a `PositionReset` event.
    """
    enable_auto_commit: bool
    """Commit positions automatically, every `auto_commit_interval_ms` and at `close`."""
    auto_commit_interval_ms: float
    """Time in milliseconds between two automatic commits of positions."""
    default_offset_commit_callback: Callable[[Mapping[Any, Any], Any], object]
    """The callback for automatic commits, and for asynchronous commits without a callback. The function gets the
    offsets, and either the response or the exception.
    """
    check_crcs: bool
    """Check the checksum of each batch."""
    isolation_level: Literal["read_uncommitted", "read_committed"]
    """"read_committed" leaves out records of open and aborted transactions. "read_uncommitted" does not."""
    partition_assignment_strategy: Sequence[Any]
    """Classes that assign partitions to the members of a group, in order of preference."""
    max_poll_records: int | None
    """Largest number of records that one `poll` returns. None: as many as there are."""
    max_poll_interval_ms: float
    """If the program does not call `poll` for this many milliseconds, the group gives the partitions to other members.
    """
    session_timeout_ms: float
    """The group removes a member that sends no heartbeat for this many milliseconds."""
    heartbeat_interval_ms: float
    """Time in milliseconds between two heartbeats of a member. At most a third of `session_timeout_ms`."""
    metric_group_prefix: str
    """First part of the names in `metrics()`."""
    exclude_internal_topics: bool
    """Leave internal topics, such as `__consumer_offsets`, out of subscriptions by pattern."""
    on_divergence: Literal["raise", "seek"] | Callable[[LogDiverged], int | None]
    """What to do when the log has lost records that were read. "raise": raise LogDivergedError. "seek": continue at the
    first offset that differs. A function gets the event and returns the offset at which to continue, or None to raise
    the error.
    """
    on_event: Callable[[ConsumerEvent], object] | None
    """A function that gets each event of `kafkasafe.events`. A producer calls the function on its own
    thread, a consumer on the thread that polls.
    """
    offsets_path: _Path | None
    """A file that keeps the end and the start offset of each log across restarts. Each consumer needs a file of its
    own. None: the offsets are not kept.
    """
    offsets_hold_timeout_ms: float
    """If a broker's answer is lower than before and nothing proves a loss, the consumer keeps the old value for this
    many milliseconds. After this time, a lower start offset is accepted. Look-ups never accept a lower end offset
    without proof: they report it as unproven, and return the old value.
    """
    lineage_path: _Path | None
    """A file for positions that are not committed to a group: it keeps the leader epochs of the records that the
    consumer has read. Each consumer needs a file of its own. None: only committed offsets carry leader epochs.
    """
    remote_storage_timeout_ms: float | None
    """If a broker could not read a partition's remote segments for this many milliseconds, `poll` raises
    RemoteStorageNotReadyError. None: never.
    """


class ConsumerOptions(_OfConsumers, total=False):
    """Options of SafeConsumer."""

    consumer_timeout_ms: float
    """Iteration ends if no record comes for this many milliseconds. Default: never."""


class AsyncConsumerOptions(_OfConsumers, total=False):
    """Options of `kafkasafe.aio.SafeConsumer`: those of SafeConsumer, without `consumer_timeout_ms`."""
