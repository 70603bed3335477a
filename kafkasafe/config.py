"""Validate the options of SafeProducer and SafeConsumer. Errors for an unknown option name the nearest known one."""

from __future__ import annotations

import difflib
import enum
import hashlib
import importlib.metadata
import ipaddress
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, TypeAlias

from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl import SASL_MECHANISMS
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.partitioner import DefaultPartitioner, StickyPartitioner

from kafkasafe.errors import ConfigError
from kafkasafe.limits.run_ahead import RUN_AHEAD_BYTES
from kafkasafe.logs import EventLog
from kafkasafe.option_names import hint_for, size_of, snake
from kafkasafe.options import OnRejected
from kafkasafe.record.batch import Compression

__all__ = [
    "DEFAULTS",
    "DEPRECATED",
    "ConsumerConfig",
    "Decide",
    "OnRejected",
    "ProducerConfig",
    "validate",
    "validate_consumer",
]

log = EventLog("config")

_COMPRESSION: Final = {
    None: Compression.NONE,
    "none": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}

MIB: Final = 1024 * 1024
MAX_LANES: Final = 1000
DEFAULT_CLIENT_ID: Final = "kafkasafe"
_ENDLESS: Final = 2**62
_INT32: Final = 0x7FFF_FFFF
_TEXT_BYTES: Final = 0x7FFF
"""Largest size of a string in Kafka's protocol."""
MIN_SPOOL_BYTES: Final = 16 * MIB
_SPOOL_BYTES: Final = 1024 * MIB
_REJECTED_BYTES: Final = 256 * MIB
_MEMORY_BYTES: Final = 32 * MIB
"""The default of `buffer.memory` in Kafka's own producer."""
_SEGMENT_OVERHEAD: Final = 64 * 1024
_SIZES: Final = frozenset({"batch_size", "max_request_size"})
"""Options that are sizes although their names do not end in `_bytes`."""

# KafkaProducer's defaults, then the defaults that differ, with the reasons.
_KAFKA: Final[dict[str, Any]] = dict(KafkaProducer.DEFAULT_CONFIG)
_OURS: Final[dict[str, Any]] = {
    # A pending record is safe on disk, so there is no reason to give it up.
    "delivery_timeout_ms": None,
    # The default of Kafka 4's own producer (KIP-1030). `get()`, `durable()` and `flush()` end this wait early.
    "linger_ms": 5,
    # Each batch costs one fsync, one checksum and one request, so large batches cost least per record.
    "batch_size": 1_000_000,
    "reconnect_backoff_max_ms": 1000,
    "acks": -1,
}


_Check: TypeAlias = Callable[[Mapping[str, Any], str], Any]
"""Returns the value of a field, of all options and the name of one."""


class _Default(enum.Enum):
    """A default that is not a value."""

    KAFKAS = enum.auto()
    """KafkaProducer's default, or the one in `_OURS`."""
    GIVEN = enum.auto()
    """The value that was given."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: everything about it but its type and its text, which editors read in `kafkasafe.options`.

    The name says the unit: `_ms` milliseconds, `_bytes` bytes.

    Attributes:
        name: Name of the option.
        default: Its default.
        check: Makes the value of the field from all options and the name. None: the option has no field of its own,
            because its value depends on others.
        field: Name of the field of the configuration; by default that of the option.
        files_only: Whether the option is about files, so that it cannot be combined with `spool="never"`.
        in_memory: The value with `spool="never"`.
    """

    name: str
    default: Any
    check: _Check | None = None
    field: str = ""
    files_only: bool = False
    in_memory: Any = _Default.GIVEN

    def value(self, options: Mapping[str, Any]) -> Any:
        """Return the value of the field.

        Raises:
            ConfigError: The option has a value that cannot work.
        """
        if options.get("spool") == "never" and self.in_memory is not _Default.GIVEN:
            return self.in_memory
        return options[self.name] if self.check is None else self.check(options, self.name)


def _number(*, least: int, most: int | None = None) -> Callable[[Mapping[str, Any], str], int]:
    """Return the check of a whole number."""

    def check(options: Mapping[str, Any], name: str) -> int:
        value = options[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < _ENDLESS:
            raise ConfigError(f"{name} must be a number of at least {least}, not {value!r}")
        if most is not None and value > most:
            raise ConfigError(f"{name} must be a number of at most {most}, not {value!r}")
        return int(value)

    return check


def _seconds(*, least: int, per: int = 1000) -> Callable[[Mapping[str, Any], str], float]:
    """Return the check of a whole number of milliseconds that becomes seconds: `per` of them are one."""
    number = _number(least=least)
    return lambda options, name: number(options, name) / per


def _duration(options: Mapping[str, Any], name: str) -> float:
    """Return the seconds of any number of milliseconds, infinity included."""
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ConfigError(f"{name} must be a number of milliseconds, 0 or more, not {value!r}")
    return float(value) / 1000


def _optional(check: _Check, *absent: Any) -> _Check:
    """Return a check that makes None of None, and of the values `absent`."""
    return lambda options, name: None if options[name] in (None, *absent) else check(options, name)


def _choice(*choices: str) -> _Check:
    """Return the check of a word."""

    def check(options: Mapping[str, Any], name: str) -> Any:
        value = options[name]
        if value not in choices:
            near = difflib.get_close_matches(str(value), choices, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}{hint}")
        return value

    return check


def _flag(options: Mapping[str, Any], name: str) -> bool:
    return bool(options[name])


def _any(options: Mapping[str, Any], name: str) -> Any:
    return options[name]


def _lane(options: Mapping[str, Any], name: str) -> int | None:
    value = options[name]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_LANES:
        raise ConfigError(f"{name} must be the number of a lane, 0 to {MAX_LANES - 1}, not {value!r}")
    return value


def _hook(options: Mapping[str, Any], name: str) -> Any:
    value = options[name]
    if value is not None and not callable(value):
        topic = name == "on_rejected" and isinstance(value, str)
        instead = (
            ": it cannot name a dead-letter topic; pass a function that produces to that topic"
            if topic
            else ""
        )
        raise ConfigError(f"{name} must be a function or None, not {value!r}{instead}")
    return value


def _path(options: Mapping[str, Any], name: str) -> Path | None:
    value = options[name]
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ConfigError(f"{name} must be the path of a file, not {value!r}")
    return _nameable(name, Path(value).expanduser().absolute())


def _nameable(option: str, path: Path) -> Path:
    """Return the path if this process can encode it as a file name.

    Raises:
        ConfigError: The path cannot be encoded: the process has the locale C, or another locale without UTF-8.
    """
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{option}: {str(path)!a} cannot be a file name in this process, which encodes file names as"
            f" {error.encoding}: start the process with PYTHONUTF8=1, or in a locale with UTF-8 (LC_ALL=C.UTF-8)"
        ) from None
    return path


_PRODUCER: Final = (
    Option("spool_dir", None, files_only=True),
    Option("spool", "always", _choice("always", "on_error", "never")),
    Option("delivery", "idempotent", _choice("idempotent", "transactional")),
    Option("spool_lane", None, _lane, files_only=True),
    Option("spool_max_bytes", None),
    Option("spool_segment_bytes", None, files_only=True),
    Option("spool_sync", "group", _choice("group", "each", "os"), files_only=True, in_memory="os"),
    Option("spool_after_ms", 1000, _seconds(least=0), "spool_after_s", files_only=True),
    Option(
        "run_ahead_bytes", RUN_AHEAD_BYTES, _optional(_number(least=MIB)), files_only=True, in_memory=None
    ),
    Option("rejected_max_bytes", None, _number(least=0), files_only=True, in_memory=0),
    Option("retain_acked_bytes", 0, _number(least=0), files_only=True),
    Option("retain_acked_ms", 0, _duration, "retain_acked_s", files_only=True),
    Option("on_data_loss", "restore", _choice("restore", "raise", "event")),
    Option("restore_recreated_topics", False, _flag, files_only=True),
    Option("data_loss_check_ms", 30_000, _seconds(least=100), "data_loss_check_s"),
    Option("on_corrupt", "raise", _choice("raise", "quarantine"), files_only=True),
    Option("on_undecidable", "raise", _choice("raise", "resend", "skip")),
    Option("on_rejected", None, _hook),
    Option("on_event", None, _hook),
    Option("prometheus", False, _flag),
    Option("blocked_timeout_ms", 7 * 86_400_000, _optional(_seconds(least=0)), "blocked_timeout_s"),
    Option("on_blocked_topic", "raise", _choice("raise", "accept")),
    Option("producer_id_expiration_ms", 86_400_000, _seconds(least=1, per=4000), "state_age_s"),
)
"""Options of a SafeProducer that KafkaProducer does not have."""

_KAFKA_PRODUCER: Final = (
    Option("max_request_size", _Default.KAFKAS, _number(least=1024), "max_record_bytes"),
    Option("linger_ms", _Default.KAFKAS, _seconds(least=0), "linger_s"),
    Option("max_block_ms", _Default.KAFKAS, _seconds(least=0), "max_block_s"),
    Option(
        "delivery_timeout_ms",
        _Default.KAFKAS,
        _optional(_seconds(least=1), float("inf")),
        "delivery_timeout_s",
    ),
    Option("request_timeout_ms", _Default.KAFKAS, _seconds(least=1), "request_timeout_s"),
    Option("retry_backoff_ms", _Default.KAFKAS, _seconds(least=1), "retry_backoff_s"),
    Option("transaction_timeout_ms", _Default.KAFKAS, _number(least=1000, most=_INT32)),
    Option("key_serializer", _Default.KAFKAS, _any),
    Option("value_serializer", _Default.KAFKAS, _any),
)
"""KafkaProducer's options that become fields without regard to others."""

_SPOOL: Final[dict[str, Any]] = {option.name: option.default for option in _PRODUCER}
_FILES_ONLY: Final = tuple(option.name for option in _PRODUCER if option.files_only)
_NOWHERE: Final = Path("memory")
"""With spool="never": the path that messages show in place of a spool directory."""
DEFAULTS: Final[dict[str, Any]] = {**_KAFKA, **_OURS, **_SPOOL}
DEPRECATED: Final = frozenset(getattr(KafkaProducer, "DEPRECATED_CONFIGS", ()))
_GONE: Final = "kafka-python had it before version 3; leave it out"
_NO_848: Final = (
    "kafka-python lacks the group protocol of KIP-848; groups use the classic protocol, which Kafka 4 still"
    " supports"
)
# Advice for options of kafka-python 1.4 to 2.3 and of other clients. A spelling suggestion would mislead here: the
# present option with the most similar name has an unrelated meaning.
_REMOVED: Final[dict[str, str]] = {
    "group_protocol": f"{_NO_848}. Leave it out",
    "group_remote_assignor": f"{_NO_848}. To choose assignors, set partition_assignment_strategy",
    "buffer_memory": f"{_GONE}. spool_max_bytes limits pending records, on disk or (spool='never') in memory",
    "api_version_auto_timeout_ms": f"{_GONE}. No call waits for a broker's version",
    "sock_chunk_bytes": _GONE,
    "sock_chunk_buffer_count": _GONE,
    "bootstrap_topics_filter": _GONE,
    "legacy_iterator": _GONE,
    "rebalance_timeout_ms": "it is aiokafka's name; use max_poll_interval_ms",
}
_NO_CIPHERS: Final = "kafka-python 3.0 does not use it; call set_ciphers() of an ssl_context"
# Options of KafkaProducer that have no effect here, and what replaces each.
_WITHOUT_EFFECT: Final[dict[str, str]] = {
    "metric_reporters": "for Prometheus, call kafkasafe.metrics.install(producer) or set prometheus=True",
    "metrics_enabled": "metrics are always on",
    "metrics_num_samples": "metrics are counters and histograms, which need no samples",
    "metrics_sample_window_ms": "metrics are counters and histograms, which need no samples",
    "kafka_client": "kafkasafe makes its own connections",
    "bootstrap_timeout_ms": "a producer starts without a broker, and records wait on disk",
    "ssl_ciphers": _NO_CIPHERS,
}
# Options that KafkaConsumer accepts but kafka-python 3.0 does not use.
_CONSUMER_WITHOUT_EFFECT: Final[dict[str, str]] = {
    "ssl_ciphers": _NO_CIPHERS,
    "receive_buffer_bytes": "kafka-python 3.0 does not use it for a consumer; set SO_RCVBUF in socket_options",
    "send_buffer_bytes": "kafka-python 3.0 does not use it for a consumer; set SO_SNDBUF in socket_options",
}
_MOST_IN_FLIGHT: Final = 5
"""A broker remembers a producer's last five batches. With more in flight, it could not recognise a repeated batch."""

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_TLS_FILES: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")
_SECRET_TEXTS: Final = ("sasl_plain_username", "sasl_plain_password", "ssl_password")

# Volatile file systems: their files do not survive a restart of the machine, or vanish with the container.
_VOLATILE: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_LAYERS: Final = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})


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


def _divergence(options: Mapping[str, Any], name: str) -> Any:
    return options[name] if callable(options[name]) else _choice("raise", "seek")(options, name)


def _consumers_hook(options: Mapping[str, Any], name: str) -> Any:
    if options[name] is not None and not callable(options[name]):
        raise ConfigError(f"{name} must be callable, not {options[name]!r}")
    return options[name]


_OF_CONSUMER: Final = (
    Option("on_divergence", "raise", _divergence),
    Option("on_event", None, _consumers_hook),
    Option("offsets_path", None, _path),
    Option("offsets_hold_timeout_ms", 30_000, _duration, "offsets_hold_timeout_s"),
    Option("lineage_path", None, _path),
    Option("prometheus", False, _flag),
    Option("remote_storage_timeout_ms", None, _optional(_seconds(least=1)), "remote_storage_timeout_s"),
)
"""Options of a SafeConsumer that KafkaConsumer does not have."""

_CONSUMER: Final[dict[str, Any]] = {option.name: option.default for option in _OF_CONSUMER}


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Validated options of a SafeConsumer.

    Attributes:
        kafka: The options of KafkaConsumer that the user gave.
        on_divergence: "raise", "seek", or a callable that gets the event and returns the offset at which to continue.
        on_event: Gets each `kafkasafe.events.ConsumerEvent`.
        offsets_path: File that keeps the highest end offsets across restarts; None: no file.
        offsets_hold_timeout_s: How long the consumer keeps the old value if an end offset is lower and nothing explains
            it. After that it reports the case as unproven.
        lineage_path: File that keeps, across restarts, the history of the records that were read; None: only committed
            offsets carry this history.
        prometheus: Whether prometheus-client's default registry collects the metrics.
        remote_storage_timeout_s: `poll` raises an error if remote storage could not be read for this long; None: never.
    """

    kafka: Mapping[str, Any] = field(repr=False)  # there are passwords in it
    on_divergence: Literal["raise", "seek"] | Callable[[Any], int | None]
    on_event: Callable[[Any], object] | None
    offsets_path: Path | None
    offsets_hold_timeout_s: float
    lineage_path: Path | None
    prometheus: bool
    remote_storage_timeout_s: float | None


def validate_consumer(options: Mapping[str, Any]) -> ConsumerConfig:
    """Validate the options of a SafeConsumer. Connection options get the same checks as a producer's.

    Raises:
        ConfigError: An option is unknown (the message names the nearest) or has a value that cannot work.
    """
    _check_names(options, {**KafkaConsumer.DEFAULT_CONFIG, **_CONSUMER}, DEFAULTS, "SafeProducer", "consumer")
    options = _with_sizes(options)
    merged = {**_CONSUMER, **options}
    _check_types(options, KafkaConsumer.DEFAULT_CONFIG)
    _check_connection({**KafkaConsumer.DEFAULT_CONFIG, **options})
    for name, reason in _CONSUMER_WITHOUT_EFFECT.items():
        if options.get(name) is not None:
            _ignored(name, options[name], reason)
    # kafka-python treats any other word as "none" and logs a warning.
    reset = options.get("auto_offset_reset", "latest")
    if reset not in {"smallest", "largest"}:
        _choice("earliest", "latest", "none")({"auto_offset_reset": str(reset).lower()}, "auto_offset_reset")
    values = _fields(_OF_CONSUMER, merged)
    _check_memories(values)
    return ConsumerConfig(
        kafka={name: value for name, value in options.items() if not _is_default(name, value)}, **values
    )


def _fields(rows: Iterable[Option], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration that these options determine, each by itself."""
    return {option.field or option.name: option.value(options) for option in rows if option.check}


def _is_default(name: str, value: Any) -> bool:
    """Return whether to withhold a consumer's option from kafka-python: it is our own, or merely the default."""
    return (
        name in _CONSUMER
        or (name == "api_version" and value == "auto")
        or (name == "max_poll_records" and value is None)
    )


def _check_memories(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if the files `offsets_path` and `lineage_path` cannot be written."""
    paths: dict[str, Path | None] = {name: values[name] for name in ("offsets_path", "lineage_path")}
    for name, path in paths.items():
        if path is not None and path.is_dir():
            raise ConfigError(f"{name}: {path} is a directory; give the name of a file")
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{name}: {path.parent} is not a directory; create it, or correct {name}")
    offsets, lineage = paths.values()
    if offsets is not None and lineage is not None and offsets.absolute() == lineage.absolute():
        raise ConfigError(f"offsets_path and lineage_path are both {offsets}; each needs a file of its own")


def _check_names(
    options: Mapping[str, Any], known: Mapping[str, Any], others: Mapping[str, Any], other: str, page: str
) -> None:
    for name in options:
        if name in DEPRECATED:
            continue
        if name not in known:
            removed = _REMOVED.get(snake(name))
            hint = removed or hint_for(name, known, others=others, other=other, page=_page(page))
            raise ConfigError(f"Unknown option {name!r}: {hint}")


def _page(name: str) -> str:
    """Return the URL of a documentation page, if the installed package's metadata has one, or else the page's path."""
    try:
        urls = importlib.metadata.metadata("kafkasafe").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        urls = []
    for label, _, url in (each.partition(", ") for each in urls):
        if label.lower() == "documentation":
            return f"{url.rstrip('/')}/{name}/"
    return f"docs/{name}.md"


def _with_sizes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with every size that is a string converted to a number."""
    found = dict(options)
    for name, value in options.items():
        if (name in _SIZES or name.endswith("_bytes")) and isinstance(value, str):
            try:
                found[name] = size_of(value)
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from None
    return found


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
    consumers = {**KafkaConsumer.DEFAULT_CONFIG, **_CONSUMER}
    _check_names(options, DEFAULTS, consumers, "SafeConsumer", "options")
    options = _with_sizes(options)
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
        _sendable("transactional_id", transactional_id)
    if not merged["enable_idempotence"]:
        raise ConfigError(
            "enable_idempotence=False would let every retry create a duplicate; leave enable_idempotence on"
        )
    kind = merged["compression_type"]
    compression = _COMPRESSION.get(kind) if kind is None or isinstance(kind, str) else None
    if compression is None:
        known = ", ".join(str(name) for name in _COMPRESSION)
        raise ConfigError(f"compression_type must be one of {known}, not {merged['compression_type']!r}")
    window = _number(least=1)(merged, "max_in_flight_requests_per_connection")
    _check_idempotence(options, acks, window)
    if merged["retries"] not in {float("inf"), 2147483647}:
        _ignored("retries", merged["retries"], "the producer retries pending records without a limit")
    if window > _MOST_IN_FLIGHT:
        _ignored("max_in_flight_requests_per_connection", window, f"the maximum is {_MOST_IN_FLIGHT}")
    for name, reason in _WITHOUT_EFFECT.items():
        if merged[name] != _KAFKA[name]:
            _ignored(name, merged[name], reason)
    _check_types(
        {name: value for name, value in options.items() if name != "acks"}, KafkaProducer.DEFAULT_CONFIG
    )
    _check_connection(merged)
    max_request = _number(least=1024)(merged, "max_request_size")
    spool = _choice("always", "on_error", "never")(merged, "spool")
    if merged["spool_max_bytes"] is None:
        merged["spool_max_bytes"] = _MEMORY_BYTES if spool == "never" else _SPOOL_BYTES
    spool_max = _number(least=MIN_SPOOL_BYTES)(merged, "spool_max_bytes")
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
        segment = _number(least=MIB)(merged, "spool_segment_bytes")
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
        given, is_default = _spool_dir(merged["spool_dir"], client_id, merged["bootstrap_servers"])
    partitioner = merged["partitioner"]
    if not hasattr(partitioner, "partition"):
        raise ConfigError(
            f"partitioner must have a method partition(), like kafka.partitioner.Partitioner, not {partitioner!r}"
        )
    return ProducerConfig(
        kafka={**{name: merged[name] for name in _KAFKA}, "client_id": client_id, "acks": acks},
        client_id=client_id,
        acks=acks,
        compression=compression,
        batch_bytes=min(max(_number(least=0)(merged, "batch_size"), 1), max_request),
        window=min(_MOST_IN_FLIGHT, window),
        partitioner=partitioner,
        # Both partitioners choose the same partition for a key. They differ for records without a key, but kafkasafe
        # itself puts all such records of one batch into one partition.
        custom_partitioner=type(partitioner) not in {DefaultPartitioner, StickyPartitioner},
        spool_dir=given if spool == "never" else _resolved(given),
        spool_dir_given=given,
        spool_dir_is_default=is_default,
        spool_max_bytes=spool_max,
        spool_segment_bytes=segment,
        transactional_id=transactional_id,
        **_fields((*_KAFKA_PRODUCER, *_PRODUCER), merged),
    )


def _ignored(name: str, value: Any, reason: str) -> None:
    # Never log the value itself, which may be a secret, unless it is a number.
    shown = value if isinstance(value, (int, float)) else "…"
    log.warning("%s=%s has no effect: %s", name, shown, reason, event="option_ignored")


def _check_memory(options: Mapping[str, Any], max_request: int, limit: int) -> None:
    """Refuse `spool="never"` with an option about files, or with a limit too small for the largest record."""
    needless = [name for name in _FILES_ONLY if options[name] != _SPOOL[name]]
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
            ("max_in_flight_requests_per_connection", window > _MOST_IN_FLIGHT),
        )
        if conflicts
    ]
    if conflicts:
        raise ConfigError(f"enable_idempotence=True cannot be combined with {', '.join(conflicts)}")


def _check_connection(options: Mapping[str, Any]) -> None:
    """Refuse values that kafka-python accepts silently, or refuses without saying what to do."""
    protocol = options["security_protocol"]
    if protocol not in _PROTOCOLS:
        # kafka-python accepts any name and connects without encryption.
        hint = f"; did you mean {_near_protocol(protocol)!r}?" if isinstance(protocol, str) else ""
        raise ConfigError(f"security_protocol must be one of {', '.join(_PROTOCOLS)}, not {protocol!r}{hint}")
    _check_servers(options["bootstrap_servers"])
    if not callable(options["selector"]):
        raise ConfigError(
            f"selector must be a class such as selectors.DefaultSelector, not {options['selector']!r}"
        )
    if not isinstance(options["client_id"], (str, NoneType)):
        raise ConfigError(f"client_id must be a str, not {options['client_id']!r}")
    for name in _SECRET_TEXTS:
        if not isinstance(options[name], (str, NoneType)):
            # The message must not contain the value, which may be a password.
            raise ConfigError(f"{name} must be a str, not {type(options[name]).__name__}")
    _check_tls(options)
    _check_sasl(options)


def _near_protocol(given: str) -> str:
    """Guess the intended protocol. The guess never drops SASL, and never replaces TLS by plain text."""
    words = set(re.split(r"[^A-Z]+", given.upper()))
    if any("SAS" in word for word in words):
        return "SASL_PLAINTEXT" if any(word.startswith("PLAIN") for word in words) else "SASL_SSL"
    return "PLAINTEXT" if any(word.startswith("PLAIN") for word in words) else "SSL"


def _check_servers(servers: Any) -> None:
    names = servers.split(",") if isinstance(servers, str) else servers
    if not isinstance(names, (list, tuple, set, frozenset)) or not names:
        raise ConfigError(f"bootstrap_servers must be 'host:port' or a list of them, not {servers!r}")
    for name in names:
        if not isinstance(name, str) or not _is_address(re.sub("^.*://", "", name.strip())):
            raise ConfigError(
                f"bootstrap_servers must be 'host:port' or a list of them; {name!r} is not host:port"
            )


def _is_address(text: str) -> bool:
    """Return whether the text is host, host:port, [v6], [v6]:port or a bare IPv6 address, as kafka-python parses it."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        return bool(host and bracket) and (not rest or (rest[0] == ":" and _is_port(rest[1:])))
    if text.count(":") > 1:
        try:
            return ipaddress.ip_address(text).version == 6
        except ValueError:
            return False
    host, colon, port = text.partition(":")
    return bool(host.strip()) and (not colon or _is_port(port))


def _is_port(text: str) -> bool:
    return text.strip().isdecimal() and 0 < int(text) < 65_536


def _check_tls(options: Mapping[str, Any]) -> None:
    context = options["ssl_context"]
    if context is not None and not isinstance(context, ssl.SSLContext):
        raise ConfigError(f"ssl_context must be an ssl.SSLContext, not {type(context).__name__}")
    files = [name for name in _TLS_FILES if options[name] is not None]
    for name in files:
        path = options[name]
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise ConfigError(f"{name} must be the path of a file, not {path!r}")
        try:
            with Path(path).open("rb"):
                pass
        except OSError as error:
            raise ConfigError(f"{name}: {error.strerror}: {os.fspath(path)!r}") from None
    if context is not None or not files or options["security_protocol"] not in {"SSL", "SASL_SSL"}:
        return
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name in files:
        if name == "ssl_keyfile":
            continue  # it is loaded together with the certificate
        try:
            if name == "ssl_certfile":
                # If no password is passed, OpenSSL asks for one on the terminal.
                trial.load_cert_chain(
                    options[name], options["ssl_keyfile"], password=options["ssl_password"] or str
                )
            else:
                trial.load_verify_locations(options[name])
        except (OSError, ValueError) as error:
            also = " (with ssl_keyfile and ssl_password)" if name == "ssl_certfile" else ""
            why = getattr(error, "reason", None) or error
            raise ConfigError(
                f"{name}={os.fspath(options[name])!r} cannot be used{also}: {why}. Give a PEM file"
            ) from None


def _check_sasl(options: Mapping[str, Any]) -> None:
    mechanism = options["sasl_mechanism"]
    known = sorted(SASL_MECHANISMS)
    if mechanism is not None and mechanism not in known:
        near = difflib.get_close_matches(str(mechanism).upper(), known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"sasl_mechanism must be one of {', '.join(known)}, not {mechanism!r}{hint}")
    provider = options["sasl_oauth_token_provider"]
    if provider is not None and not isinstance(provider, AbstractTokenProvider):
        # The message must not contain the value, which may be a token.
        raise ConfigError(
            "sasl_oauth_token_provider must be an object of a subclass of"
            f" kafka.net.sasl.oauth.AbstractTokenProvider, not {type(provider).__name__}"
        )
    if not options["security_protocol"].startswith("SASL"):
        return
    if mechanism is None:
        raise ConfigError(
            f"security_protocol={options['security_protocol']} needs sasl_mechanism, one of {', '.join(known)}"
        )
    if mechanism == "AWS_MSK_IAM" and options["security_protocol"] != "SASL_SSL":
        raise ConfigError("sasl_mechanism=AWS_MSK_IAM needs security_protocol=SASL_SSL")
    if mechanism == "PLAIN" or mechanism.startswith("SCRAM-"):
        for name in ("sasl_plain_username", "sasl_plain_password"):
            if not options[name]:
                raise ConfigError(f"sasl_mechanism={mechanism} needs {name}")
    if mechanism == "OAUTHBEARER" and provider is None:
        raise ConfigError(
            "sasl_mechanism=OAUTHBEARER needs sasl_oauth_token_provider, a subclass of"
            " kafka.net.sasl.oauth.AbstractTokenProvider"
        )


def _check_types(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse a string for a number or a boolean: kafka-python would fail much later, or treat the string as True."""
    for name, value in options.items():
        default = defaults.get(name)
        if isinstance(default, bool) and isinstance(value, (str, bytes)):
            raise ConfigError(f"{name} must be True or False, not {value!r}")
        if isinstance(default, (int, float)) and not isinstance(value, (int, float, type(None))):
            raise ConfigError(f"{name} must be a number, not {value!r}")


def _sendable(name: str, value: str) -> None:
    """Refuse a string that Kafka's protocol cannot carry: otherwise each request with it would fail."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name}: {value!r} cannot be written as UTF-8") from error
    if size > _TEXT_BYTES:
        raise ConfigError(f"{name}: {size} bytes are too long; the maximum is {_TEXT_BYTES}")


def _spool_dir(given: str | os.PathLike[str] | None, client_id: str, servers: Any) -> tuple[Path, bool]:
    """Return the spool directory (absolute) and whether it is the default one.

    The option comes first, then the environment variable, then a directory in the user's state directory. This default
    depends on client id and cluster address, because records left for one cluster must never be delivered to another.
    If the same address was spelled differently before, `siblings.py` finds the former directory by the cluster id.
    """
    chosen = given if given is not None else os.environ.get("KAFKASAFE_SPOOL_DIR") or None
    if chosen is not None:
        if not isinstance(chosen, (str, os.PathLike)):
            raise ConfigError(f"spool_dir must be a path, not {chosen!r}")
        return _nameable("spool_dir", Path(chosen).expanduser().absolute()), False
    names = [servers] if isinstance(servers, str) else list(servers)
    address = ",".join(sorted(part.strip() for name in names for part in str(name).split(",")))
    digest = hashlib.sha256(address.encode()).hexdigest()[:8]
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in client_id)
    unknown: object = "no home directory"
    try:
        import platformdirs

        state = platformdirs.user_state_path("kafkasafe")
    except (RuntimeError, OSError) as error:
        state, unknown = Path(), error
    if not state.is_absolute():
        raise ConfigError(
            f"There is no default spool directory: {unknown}. Set spool_dir= or KAFKASAFE_SPOOL_DIR"
        )
    return _nameable("client_id", state / f"{safe}-{digest}"), True


def _resolved(path: Path) -> Path:
    """Resolve symbolic links once. A deployment may switch a link later, and that must not split the spool."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise ConfigError(f"spool_dir={path} cannot be resolved: {error}") from None


def take_locks_early() -> None:
    """Do now what takes one of Python's locks only the first time that a producer is opened.

    1. Another thread opens a producer, and holds the lock. 2. The program forks. 3. The child opens a producer too, and
    waits for the lock for ever, because the thread that holds it does not exist there.
    """
    import platformdirs  # noqa: F401 - the default of spool_dir

    tempfile.gettempdir()


def volatile_reason(path: Path) -> str | None:
    """Return why files in `path` may not survive a restart of the machine or container; None if they should."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        mounts = []
    best = ("", "")
    for line in mounts:
        fields = line.split(" ")
        if len(fields) > 2:
            point = fields[1].replace("\\040", " ")
            if path.is_relative_to(point) and len(point) >= len(best[0]):
                best = (point, fields[2])
    if best[1] in _VOLATILE:
        return f"{best[0]} is a {best[1]}: its files are in memory"
    if best[1] in _LAYERS:
        return f"{best[0]} is a container's own layer ({best[1]}): its files vanish with the container; mount a volume"
    if path.is_relative_to(tempfile.gettempdir()):
        return f"{tempfile.gettempdir()} is cleared at a restart on many systems"
    return None
