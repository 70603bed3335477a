"""The options of SafeProducer and SafeConsumer as types: for completion in editors, and for type checkers (PEP 692).

The texts below the names are what editors show, and what docs/options-reference.md is made of. At run time
`kafkasafe.config` checks the values, more closely than the types do.
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
    """Addresses of some brokers: "host:port", several with commas, or a list. The others are found by asking
    these.
    """
    client_id: str | None
    """A name for this client, which the brokers' logs, quotas and the metrics show. A producer without one is
    "kafkasafe".
    """
    connections_max_idle_ms: float
    """Close a connection after so long without a request, milliseconds."""
    allow_auto_create_topics: bool
    """Let the brokers create a topic that does not exist, if their own settings allow that."""
    metadata_max_age_ms: float
    """Ask for metadata (topics, partitions, leaders) at least as often as this, milliseconds."""
    client_dns_lookup: str
    """How names of brokers are looked up: "use_all_dns_ips", or "resolve_canonical_bootstrap_servers_only"."""
    retry_backoff_ms: float
    """The first pause before a failed request is sent again, milliseconds. Later pauses grow."""
    request_timeout_ms: float
    """How long to wait for the answer to a request before it is sent again, milliseconds."""
    receive_message_max_bytes: _Size
    """Largest answer of a broker that is accepted, bytes."""
    receive_buffer_bytes: _Size | None
    """Size of the socket's receive buffer (SO_RCVBUF), bytes. None: the system's default."""
    send_buffer_bytes: _Size | None
    """Size of the socket's send buffer (SO_SNDBUF), bytes. None: the system's default."""
    socket_options: Sequence[tuple[int, int, int]]
    """Arguments of `socket.setsockopt` for each connection."""
    reconnect_backoff_ms: float
    """The first pause before a broker is connected to again, milliseconds. Later pauses grow."""
    reconnect_backoff_max_ms: float
    """The longest pause before a broker is connected to again, milliseconds."""
    max_in_flight_requests_per_connection: int
    """Producer: how many batches of one partition may be sent and not yet acknowledged, at most 5: brokers
    recognise repetitions of a producer's last five batches. Order is kept with any number. Consumer: how many
    requests to one broker may be without an answer.
    """
    security_protocol: _Protocol
    """"PLAINTEXT", "SSL" (TLS), "SASL_PLAINTEXT" or "SASL_SSL". The two with SASL need `sasl_mechanism`."""
    ssl_context: ssl.SSLContext | None
    """A prepared `ssl.SSLContext`. The other `ssl_` options are not used then."""
    ssl_check_hostname: bool
    """Whether a broker's certificate must name its host."""
    ssl_cafile: _Path | None
    """File with the certificates of the authorities to trust, PEM. None: the system's."""
    ssl_certfile: _Path | None
    """File with the client's certificate and its chain, PEM."""
    ssl_keyfile: _Path | None
    """File with the client's private key, PEM. None: it is in `ssl_certfile`."""
    ssl_crlfile: _Path | None
    """File with a list of revoked certificates, against which the broker's own certificate is checked, PEM."""
    ssl_password: str | None
    """Password of the private key."""
    api_version: tuple[int, ...] | None
    """Version of the brokers, such as (2, 8). None: ask them."""
    selector: Any
    """Class of the selector that waits for sockets. Default: the best of the platform."""
    sasl_mechanism: str | None
    """"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER" or "GSSAPI" (Kerberos)."""
    sasl_plain_username: str | None
    """User name for PLAIN and SCRAM."""
    sasl_plain_password: str | None
    """Password for PLAIN and SCRAM. It is never logged."""
    sasl_kerberos_name: Any
    """A `gssapi.Name` for GSSAPI. The other two `sasl_kerberos_` options are not used then."""
    sasl_kerberos_service_name: str
    """Kerberos service name of the brokers."""
    sasl_kerberos_domain_name: str | None
    """Kerberos domain name. None: the broker's host name."""
    sasl_oauth_token_provider: Any
    """An object of a class derived from `kafka.net.sasl.oauth.AbstractTokenProvider`, for OAUTHBEARER."""
    proxy_url: str | None
    """Connect through this proxy, such as "socks5://proxy:1080" or "http://proxy:3128"."""
    socks5_proxy: str | None
    """Deprecated by kafka-python: use `proxy_url`."""
    prometheus: bool
    """Let prometheus-client's default registry collect this client's metrics. `kafkasafe.metrics.install` does
    it for another registry.
    """


class ProducerOptions(ConnectionOptions, total=False):
    """What SafeProducer takes.

    Not here: options of KafkaProducer that have no effect on it (docs/differences.md). They are accepted all the same.
    """

    key_serializer: Any
    """Makes bytes of a key: a function, or an object with `serialize(topic, headers, data)`. None: keys are
    bytes.
    """
    value_serializer: Any
    """Makes bytes of a value: a function, or an object with `serialize(topic, headers, data)`. None: values
    are bytes.
    """
    enable_idempotence: bool
    """Always on. False is a ConfigError: every retry could then be a duplicate."""
    transactional_id: str | None
    """Send only in transactions, with KafkaProducer's methods (`init_transactions` and so on)."""
    transaction_timeout_ms: float
    """After how long the cluster aborts a transaction that a crash left open, milliseconds. At most the
    brokers' `transaction.max.timeout.ms`.
    """
    delivery_timeout_ms: float | None
    """After so long without an acknowledgement a record's future fails, milliseconds. The record stays in the
    spool and is still delivered. None: never.
    """
    acks: Literal["all", "-1", "1", -1, 1]
    """"all" (the same as -1): a record is acknowledged when all in-sync replicas have it. 1: when the leader
    has it; it can then be lost with the leader, and a WARNING says so. 0 is a ConfigError.
    """
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    """Compression of batches. All codecs work without further packages."""
    retries: float
    """A record that waits is never given up."""
    batch_size: int
    """Largest batch, bytes."""
    linger_ms: float
    """How long a batch waits for more records, milliseconds. `get`, `durable` and `flush` do not wait for it."""
    partitioner: Any
    """Chooses the partition of a record that names none. Default: as Kafka's own, by the hash of the key."""
    max_block_ms: float
    """How long `send` waits for room before it raises SpoolFullError, milliseconds."""
    max_request_size: int
    """Largest record, bytes."""
    spool_dir: _Path | None
    """The directory where records wait: one for each cluster, shared by any number of processes. None: the
    environment variable `KAFKASAFE_SPOOL_DIR`, or else the user's state directory.
    """
    spool: Literal["always", "on_error", "never"]
    """"always": a record is on disk before it is sent. "on_error": it goes to disk only when the cluster does
    not acknowledge it in `spool_after_ms`, when memory is full, and at `close`. "never": there are no files;
    `close` or a crash loses what is not acknowledged.
    """
    delivery: Literal["idempotent", "transactional"]
    """"idempotent": each batch goes to its partition by itself. "transactional": in transactions, for readers of
    committed records.
    """
    spool_lane: int | None
    """Number of the lane to use in the spool directory. None: the one that this `client_id` used before, or
    the lowest that is free.
    """
    spool_max_bytes: _Size | None
    """Largest size of the spool, bytes. None: 1 GiB; with `spool="never"` 32 MiB of memory."""
    spool_segment_bytes: _Size | None
    """Largest size of one file of the spool, bytes. None: an eighth of `spool_max_bytes`, at most 64 MiB."""
    spool_sync: Literal["group", "each", "os"]
    """"group": one fsync for all batches that wait. "each": one for each batch. "os": none; a crash of the
    machine may lose what is not acknowledged.
    """
    spool_after_ms: float
    """How long `spool="on_error"` waits for an acknowledgement before it writes to disk, milliseconds."""
    rejected_max_bytes: _Size | None
    """How many bytes of rejected records each lane keeps. None: as `spool_max_bytes`, at most 256 MiB."""
    retain_acked_bytes: _Size
    """Keep so many bytes of delivered records on disk, to send them again if the cluster loses them."""
    retain_acked_ms: float
    """Keep delivered records on disk for so many milliseconds, to send them again if the cluster loses them."""
    on_data_loss: Literal["restore", "raise", "event"]
    """What to do when the cluster lost acknowledged records. "restore": send again what the spool has,
    DataLossError for the rest. "raise": DataLossError for all. "event": only the event, the log and the
    metrics.
    """
    restore_recreated_topics: bool
    """Send lost records again also into a topic that was deleted and created again."""
    data_loss_check_ms: float
    """How often idle partitions are checked for lost records, milliseconds."""
    on_corrupt: Literal["raise", "quarantine"]
    """What to do about damage in the spool. "raise": SpoolCorruptError. "quarantine": copy the damaged bytes
    aside, and deliver the rest.
    """
    on_undecidable: Literal["raise", "resend", "skip"]
    """What to do with a batch of which it cannot be known whether it is in the log. "raise": UndecidableError
    from `send` and `flush` until `resolve_undecidable`. "resend": send it; it may be there twice. "skip": take it as
    delivered; it may be missing.
    """
    on_rejected: Callable[..., object] | None
    """A function that gets each record that the cluster rejected permanently: topic, partition, key, value,
    headers, timestamp_ms, error.
    """
    on_event: Callable[[Event], object] | None
    """A function that gets each event of `kafkasafe.events`. A producer calls it on its own thread, a consumer
    on the thread that polls.
    """
    blocked_timeout_ms: float | None
    """How long the cluster may block a topic before its pending records are rejected, milliseconds. None: for
    ever.
    """
    on_blocked_topic: Literal["raise", "accept"]
    """What `send` does for a topic that the cluster blocks. "raise": kafka-python's exception for the error code.
    "accept": take the record and keep it until the topic is available.
    """
    producer_id_expiration_ms: float
    """The brokers' `producer.id.expiration.ms`, milliseconds."""


class ConsumerOptions(ConnectionOptions, total=False):
    """What SafeConsumer takes."""

    ssl_ciphers: str | None
    """Ciphers in OpenSSL's notation."""
    bootstrap_timeout_ms: float
    """How long a consumer's constructor waits for the first broker, milliseconds."""
    metric_reporters: Sequence[Any]
    """Classes that are told of kafka-python's metrics."""
    metrics_enabled: bool
    """Whether kafka-python's metrics are kept."""
    metrics_num_samples: int
    """Samples that each of kafka-python's metrics is computed from."""
    metrics_sample_window_ms: float
    """Length of a sample of kafka-python's metrics, milliseconds."""
    kafka_client: Any
    """A factory for kafka-python's network client. A consumer with its own one does not get kafkasafe's
    connections.
    """
    client_rack: str
    """Name of this client's rack. Records are then read from a replica in the same rack (KIP-392)."""
    group_id: str | None
    """Name of the consumer group. None: no group and no commits."""
    group_instance_id: str | None
    """Makes this consumer a static member of its group under this name (KIP-345)."""
    key_deserializer: Any
    """Makes an object of a key's bytes: a function, or an object with `deserialize(topic, headers, data)`.
    None: bytes.
    """
    value_deserializer: Any
    """Makes an object of a value's bytes: a function, or an object with `deserialize(topic, headers, data)`.
    None: bytes.
    """
    enable_incremental_fetch_sessions: bool
    """Name only changed partitions in fetch requests (KIP-227)."""
    fetch_max_wait_ms: int
    """How long a broker waits for `fetch_min_bytes` before it answers, milliseconds."""
    fetch_min_bytes: _Size
    """A broker answers a fetch request at once when it has so many bytes."""
    fetch_max_bytes: _Size
    """Largest answer to a fetch request, bytes. One larger batch is still returned."""
    max_partition_fetch_bytes: _Size
    """Largest part of an answer that belongs to one partition, bytes. One larger batch is still returned."""
    auto_offset_reset: Literal["earliest", "latest", "none", "smallest", "largest"]
    """Where to begin without a committed position, or when the position is out of range: "earliest", "latest",
    or "none" (raise). Each use is a `PositionReset` event.
    """
    enable_auto_commit: bool
    """Commit positions by itself, every `auto_commit_interval_ms` and at `close`."""
    auto_commit_interval_ms: float
    """How often positions are committed, milliseconds."""
    default_offset_commit_callback: Callable[[Mapping[Any, Any], Any], object]
    """A function that gets the offsets and the answer, or the exception, of each commit that has no callback
    of its own.
    """
    check_crcs: bool
    """Check the checksum of each batch."""
    isolation_level: Literal["read_uncommitted", "read_committed"]
    """"read_committed" leaves out records of open and aborted transactions. "read_uncommitted" does not."""
    partition_assignment_strategy: Sequence[Any]
    """Classes that divide partitions among the members of a group, in the order of preference."""
    max_poll_records: int
    """The most records that one `poll` returns. None: as many as there are."""
    max_poll_interval_ms: float
    """The longest time between two calls of `poll`, milliseconds. After it the group gives the partitions to
    other members.
    """
    session_timeout_ms: float
    """The group removes a member that sends no heartbeat for so long, milliseconds."""
    heartbeat_interval_ms: float
    """How often a member sends a heartbeat, milliseconds. At most a third of `session_timeout_ms`."""
    consumer_timeout_ms: float
    """Iteration ends after so long without a record, milliseconds. Default: never."""
    metric_group_prefix: str
    """First part of the names in `metrics()`."""
    exclude_internal_topics: bool
    """Leave internal topics, such as `__consumer_offsets`, out of subscriptions by pattern."""
    on_divergence: Literal["raise", "seek"] | Callable[[LogDiverged], int | None]
    """What to do when records that were read are no longer in the log. "raise": LogDivergedError. "seek": go
    on at the first offset that differs. A function: it gets the event and returns the offset, or None to
    raise.
    """
    on_event: Callable[[ConsumerEvent], object] | None
    """A function that gets each event of `kafkasafe.events`. A producer calls it on its own thread, a consumer
    on the thread that polls.
    """
    offsets_path: _Path | None
    """A file that remembers end offsets and starts over restarts. One consumer for each file. None: nothing is
    remembered.
    """
    offsets_hold_timeout_ms: float
    """How long a lower end offset without a proof is held before it is called undecidable, milliseconds. A lower
    start is believed then.
    """
    lineage_path: _Path | None
    """A file that remembers what was read, for positions that are not committed to a group. One consumer for
    each file. None: only committed offsets remember it.
    """
    remote_storage_timeout_ms: float | None
    """After so long without a partition's remote segments `poll` raises RemoteStorageNotReadyError,
    milliseconds. None: never.
    """
