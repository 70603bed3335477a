"""The options of kafkasafe, one row each, and the defaults of all options."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafka import KafkaProducer

from kafkasafe.config.values import (
    Check,
    anything,
    choice,
    consumers_hook,
    divergence,
    duration,
    flag,
    hook,
    lane,
    number,
    optional,
    path_of_file,
    seconds,
)
from kafkasafe.limits.run_ahead import RUN_AHEAD_BYTES

__all__ = [
    "CONSUMER",
    "CONSUMER_DEFAULTS",
    "DEFAULTS",
    "FILES_ONLY",
    "KAFKA_DEFAULTS",
    "KAFKA_PRODUCER",
    "MIB",
    "PRODUCER",
    "PRODUCER_DEFAULTS",
    "Option",
    "fields",
]

MIB: Final = 1024 * 1024
_INT32: Final = 0x7FFF_FFFF

# KafkaProducer's defaults, then the defaults that differ, with the reasons.
KAFKA_DEFAULTS: Final[dict[str, Any]] = dict(KafkaProducer.DEFAULT_CONFIG)
_OTHER_DEFAULTS: Final[dict[str, Any]] = {
    # A pending record is safe on disk, so there is no reason to give it up.
    "delivery_timeout_ms": None,
    # The default of Kafka 4's own producer (KIP-1030). `get()`, `durable()` and `flush()` end this wait early.
    "linger_ms": 5,
    # Each batch costs one fsync, one checksum and one request, so large batches cost least per record.
    "batch_size": 1_000_000,
    "reconnect_backoff_max_ms": 1000,
    "acks": -1,
}


class Default(enum.Enum):
    """A default that is not a value."""

    KAFKAS = enum.auto()
    """KafkaProducer's default, or the one in `_OTHER_DEFAULTS`."""
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
    check: Check | None = None
    field: str = ""
    files_only: bool = False
    in_memory: Any = Default.GIVEN

    def value(self, options: Mapping[str, Any]) -> Any:
        """Return the value of the field.

        Raises:
            ConfigError: The option has a value that cannot work.
        """
        if options.get("spool") == "never" and self.in_memory is not Default.GIVEN:
            return self.in_memory
        return options[self.name] if self.check is None else self.check(options, self.name)


PRODUCER: Final = (
    Option("spool_dir", None, files_only=True),
    Option("spool", "always", choice("always", "on_error", "never")),
    Option("delivery", "idempotent", choice("idempotent", "transactional")),
    Option("spool_lane", None, lane, files_only=True),
    Option("spool_max_bytes", None),
    Option("spool_segment_bytes", None, files_only=True),
    Option("spool_sync", "group", choice("group", "each", "os"), files_only=True, in_memory="os"),
    Option("spool_after_ms", 1000, seconds(least=0), "spool_after_s", files_only=True),
    Option("run_ahead_bytes", RUN_AHEAD_BYTES, optional(number(least=MIB)), files_only=True, in_memory=None),
    Option("rejected_max_bytes", None, number(least=0), files_only=True, in_memory=0),
    Option("retain_acked_bytes", 0, number(least=0), files_only=True),
    Option("retain_acked_ms", 0, duration, "retain_acked_s", files_only=True),
    Option("on_data_loss", "restore", choice("restore", "raise", "event")),
    Option("restore_recreated_topics", False, flag, files_only=True),
    Option("data_loss_check_ms", 30_000, seconds(least=100), "data_loss_check_s"),
    Option("on_corrupt", "raise", choice("raise", "quarantine"), files_only=True),
    Option("on_undecidable", "raise", choice("raise", "resend", "skip")),
    Option("on_rejected", None, hook),
    Option("on_event", None, hook),
    Option("prometheus", False, flag),
    Option("blocked_timeout_ms", 7 * 86_400_000, optional(seconds(least=0)), "blocked_timeout_s"),
    Option("on_blocked_topic", "raise", choice("raise", "accept")),
    Option("producer_id_expiration_ms", 86_400_000, seconds(least=1, per=4000), "state_age_s"),
)
"""Options of a SafeProducer that KafkaProducer does not have."""

KAFKA_PRODUCER: Final = (
    Option("max_request_size", Default.KAFKAS, number(least=1024), "max_record_bytes"),
    Option("linger_ms", Default.KAFKAS, seconds(least=0), "linger_s"),
    Option("max_block_ms", Default.KAFKAS, seconds(least=0), "max_block_s"),
    Option(
        "delivery_timeout_ms",
        Default.KAFKAS,
        optional(seconds(least=1), float("inf")),
        "delivery_timeout_s",
    ),
    Option("request_timeout_ms", Default.KAFKAS, seconds(least=1), "request_timeout_s"),
    Option("retry_backoff_ms", Default.KAFKAS, seconds(least=1), "retry_backoff_s"),
    Option("transaction_timeout_ms", Default.KAFKAS, number(least=1000, most=_INT32)),
    Option("key_serializer", Default.KAFKAS, anything),
    Option("value_serializer", Default.KAFKAS, anything),
)
"""KafkaProducer's options that become fields without regard to others."""

PRODUCER_DEFAULTS: Final[dict[str, Any]] = {option.name: option.default for option in PRODUCER}
FILES_ONLY: Final = tuple(option.name for option in PRODUCER if option.files_only)


DEFAULTS: Final[dict[str, Any]] = {**KAFKA_DEFAULTS, **_OTHER_DEFAULTS, **PRODUCER_DEFAULTS}


CONSUMER: Final = (
    Option("on_divergence", "raise", divergence),
    Option("on_event", None, consumers_hook),
    Option("offsets_path", None, path_of_file),
    Option("offsets_hold_timeout_ms", 30_000, duration, "offsets_hold_timeout_s"),
    Option("lineage_path", None, path_of_file),
    Option("prometheus", False, flag),
    Option("remote_storage_timeout_ms", None, optional(seconds(least=1)), "remote_storage_timeout_s"),
)
"""Options of a SafeConsumer that KafkaConsumer does not have."""

CONSUMER_DEFAULTS: Final[dict[str, Any]] = {option.name: option.default for option in CONSUMER}


def fields(rows: Iterable[Option], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration that these options determine, each by itself."""
    return {option.field or option.name: option.value(options) for option in rows if option.check}
