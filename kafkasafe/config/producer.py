"""Validates a producer's options: first each option on its own, then options that depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer

from kafkasafe.config.connection import check_connection, check_types, unprotected
from kafkasafe.config.names import WITHOUT_EFFECT, check_names, ignored, ignored_together, with_own_types
from kafkasafe.config.option import fields_of
from kafkasafe.config.sizes import check_memory, check_segments
from kafkasafe.config.spool_dir import resolved, spool_dir
from kafkasafe.config.table import (
    CONSUMER_DEFAULTS,
    DEFAULTS,
    FILES_ONLY,
    KAFKA_DEFAULTS,
    PRODUCER,
    PRODUCER_DEFAULTS,
    ProducerConfig,
)
from kafkasafe.config.values import MOST_IN_FLIGHT, acks_of
from kafkasafe.errors import ConfigError
from kafkasafe.logs import EventLog

log = EventLog("config")

_NOWHERE: Final = Path("memory")
"""With spool="never", messages show this path in place of a spool directory."""
_OLDEST_BROKERS: Final = (0, 11)
"""The oldest version of brokers that support batch ids."""
_TYPED_BY_ROW: Final = frozenset({"acks", "max_in_flight_requests_per_connection"})
"""Options of kafka-python that `check_types` leaves out, because `ProducerConfig` has a row with a better check for
each.
"""


def check_no_positional(arguments: Sequence[object]) -> None:
    """Refuse positional arguments of a producer.

    Raises:
        TypeError: There is a positional argument. The message does not show it, because it may contain a password.
    """
    if arguments:
        raise TypeError(
            "Pass options by keyword: SafeProducer(bootstrap_servers='localhost:9092'). There are no positional"
            " arguments, and no dict of options as in confluent-kafka"
        )


def validate(options: Mapping[str, Any]) -> ProducerConfig:
    """Validate the options of a SafeProducer.

    Raises:
        ConfigError: An option is unknown (the message names the nearest one) or has an unusable value.
    """
    _check_renamed(options)
    consumers = {**KafkaConsumer.DEFAULT_CONFIG, **CONSUMER_DEFAULTS}
    check_names(options, DEFAULTS, consumers, "SafeConsumer", "options")
    given = with_own_types(options)
    every = {**DEFAULTS, **given}
    check_types(
        {name: value for name, value in given.items() if name not in _TYPED_BY_ROW},
        KafkaProducer.DEFAULT_CONFIG,
    )
    check_connection(every)
    _check_version(every)
    _check_files_only(every)
    fields = fields_of(PRODUCER.items(), every)
    for check in _TOGETHER:
        check(fields)
    _check_idempotence(given)
    fields |= _place(fields, every)
    _warn(every)
    kafka = {name: every[name] for name in KAFKA_DEFAULTS}
    return ProducerConfig(kafka={**kafka, "client_id": fields["client_id"], "acks": fields["acks"]}, **fields)


_TOGETHER: Final[tuple[Callable[[Mapping[str, Any]], None], ...]] = (check_memory, check_segments)
"""Checks of several fields together, in this order."""


def _check_renamed(options: Mapping[str, Any]) -> None:
    """Refuse the old name of an option."""
    if "missing_topic_timeout_ms" in options:
        raise ConfigError(
            "missing_topic_timeout_ms is now blocked_timeout_ms, which also covers forbidden and invalid topics; its"
            " default is a week, and None means no limit"
        )


def _check_version(options: Mapping[str, Any]) -> None:
    """Refuse an `api_version` below 0.11, because such brokers do not support batch ids."""
    version = options["api_version"]
    if isinstance(version, str) and version != "auto":
        version = tuple(map(int, version.split(".")))
    if isinstance(version, tuple) and version < _OLDEST_BROKERS:
        raise ConfigError(
            f"api_version={options['api_version']!r}: producing needs brokers 0.11 or later. Leave it out: the client"
            " asks the brokers"
        )


def _check_files_only(options: Mapping[str, Any]) -> None:
    """Refuse `spool="never"` together with an option that concerns files."""
    needless = [name for name in FILES_ONLY if options[name] != PRODUCER_DEFAULTS[name]]
    if needless and options["spool"] == "never":
        names = ", ".join(f"{name}={options[name]!r}" for name in needless)
        raise ConfigError(
            f"spool='never' writes no file, so {names} has no effect: leave it out, or choose spool='on_error' or"
            " 'always'"
        )


def _check_idempotence(given: Mapping[str, Any]) -> None:
    """Refuse options that contradict an explicit enable_idempotence=True. KafkaProducer refuses them, too."""
    if not given.get("enable_idempotence"):
        return
    window = "max_in_flight_requests_per_connection"
    conflicts = [
        f"{name}={given[name]!r}"
        for name, conflicts in (
            ("acks", "acks" in given and acks_of(given, "acks") != -1),
            ("retries", given.get("retries") == 0),
            (window, given.get(window, 0) > MOST_IN_FLIGHT),
        )
        if conflicts
    ]
    if conflicts:
        raise ConfigError(f"enable_idempotence=True cannot be combined with {', '.join(conflicts)}")


def _place(fields: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the configuration that describe the spool directory."""
    if fields["spool"] == "never":
        real, given, is_default = _NOWHERE, _NOWHERE, False
    else:
        given, is_default = spool_dir(options["spool_dir"], fields["client_id"], options["bootstrap_servers"])
        real = resolved(given)
        if ".." in given.parts and not given.exists():
            # Use the resolved path from the start: a path with `..` after a missing directory cannot be opened.
            given = real
    return {"spool_dir": real, "spool_dir_given": given, "spool_dir_is_default": is_default}


def _warn(options: Mapping[str, Any]) -> None:
    """Log which options weaken the guarantees, and which have no effect."""
    if acks_of(options, "acks") == 1:
        log.warning(
            "acks=1: if the leader fails, records that only the leader has are lost; use acks='all' for lossless"
            " delivery",
            event="option_weak",
        )
    if options["retries"] not in {float("inf"), 2147483647}:
        ignored("retries", options["retries"], "the producer retries pending records without a limit")
    window = options["max_in_flight_requests_per_connection"]
    if window > MOST_IN_FLIGHT:
        ignored("max_in_flight_requests_per_connection", int(window), f"the maximum is {MOST_IN_FLIGHT}")
    for name, reason in WITHOUT_EFFECT.items():
        if options[name] != KAFKA_DEFAULTS[name]:
            ignored(name, options[name], reason)
    for names, reason in unprotected(options):
        ignored_together(names, reason)
