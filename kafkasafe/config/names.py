"""Checks the names of options: unknown, removed and ignored ones. Also converts values to Python's own types."""

from __future__ import annotations

import enum
import importlib.metadata
import operator
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Final

from kafka import KafkaProducer

from kafkasafe.config.values import as_text
from kafkasafe.errors import ConfigError
from kafkasafe.logs import EventLog
from kafkasafe.option_names import hint_for, size_of, snake

log = EventLog("config")


_SIZES: Final = frozenset({"batch_size", "max_request_size"})
"""Options that are sizes although their names do not end in `_bytes`."""


DEPRECATED: Final = frozenset(getattr(KafkaProducer, "DEPRECATED_CONFIGS", ()))
_GONE: Final = "kafka-python had it before version 3; leave it out"
_NO_848: Final = (
    "kafka-python lacks the group protocol of KIP-848; groups use the classic protocol, which Kafka 4 still"
    " supports"
)
# Advice for options of kafka-python 1.4 to 2.3 and of other clients. Error messages give this advice instead of
# suggesting the option with the most similar name, which has an unrelated meaning.
REMOVED: Final[dict[str, str]] = {
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
# Options of KafkaProducer that have no effect in a SafeProducer, with the reason or the replacement for each.
WITHOUT_EFFECT: Final[dict[str, str]] = {
    "metric_reporters": "for Prometheus, call kafkasafe.metrics.install(producer) or set prometheus=True",
    "metrics_enabled": "metrics are always on",
    "metrics_num_samples": "metrics are counters and histograms, which need no samples",
    "metrics_sample_window_ms": "metrics are counters and histograms, which need no samples",
    "kafka_client": "kafkasafe makes its own connections",
    "bootstrap_timeout_ms": "a producer starts without a broker, and records wait on disk",
    "ssl_ciphers": _NO_CIPHERS,
}
# Options that KafkaConsumer accepts but kafka-python 3.0 does not use.
CONSUMER_WITHOUT_EFFECT: Final[dict[str, str]] = {
    "ssl_ciphers": _NO_CIPHERS,
    "receive_buffer_bytes": "kafka-python 3.0 does not use it for a consumer; set SO_RCVBUF in socket_options",
    "send_buffer_bytes": "kafka-python 3.0 does not use it for a consumer; set SO_SNDBUF in socket_options",
}


def check_names(
    options: Mapping[str, Any], known: Mapping[str, Any], others: Mapping[str, Any], other: str, page: str
) -> None:
    """Refuse unknown options. The error message suggests the option that the user probably meant."""
    for name in options:
        if name in DEPRECATED:
            continue
        if name not in known:
            removed = REMOVED.get(snake(name))
            hint = removed or hint_for(name, known, others=others, other=other, page=_page(page))
            raise ConfigError(f"Unknown option {name!r}: {hint}")


def _page(name: str) -> str:
    """Return the address of a documentation page: a URL if the package's metadata names one, otherwise a path."""
    try:
        urls = importlib.metadata.metadata("kafkasafe").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        urls = []
    for label, _, url in (each.partition(", ") for each in urls):
        if label.lower() == "documentation":
            return f"{url.rstrip('/')}/{name}/"
    return f"docs/{name}.md"


def with_own_types(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with values of other types converted to Python's own types:

    - sizes that are strings, to numbers
    - numbers of other packages, such as numpy's: kafka-python refuses some of them only in `poll`
    - members of enums of strings (`class Setting(str, Enum)`), to their texts: `str` and f-strings would give the
      members' names
    """
    found: dict[str, Any] = {}
    for name, given in options.items():
        value = [_own_text(each) for each in given] if isinstance(given, list) else _own_text(given)
        if (name in _SIZES or name.endswith("_bytes")) and isinstance(value, str):
            try:
                value = size_of(value)
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from None
        elif isinstance(value, Real) and not isinstance(value, (int, float)):
            value = _own_number(value)
        found[name] = value
    return found


def _own_text(value: Any) -> Any:
    return as_text(value) if isinstance(value, str) and isinstance(value, enum.Enum) else value


def _own_number(value: Real) -> Any:
    """The number as an int or float. The value itself if that is not possible: numpy registers its time spans as
    integers, and a fraction may be larger than any float. The checks of the options then refuse it.
    """
    try:
        return operator.index(value) if isinstance(value, Integral) else float(value)
    except (TypeError, OverflowError):
        return value


def ignored(name: str, value: Any, reason: str) -> None:
    """Log that an option has no effect."""
    # Log the value only if it is a number. Another value may be a secret.
    shown = value if isinstance(value, (int, float)) else "…"
    log.warning("%s=%s has no effect: %s", name, shown, reason, event="option_ignored")


def ignored_together(names: Sequence[str], reason: str) -> None:
    """Log that several options have no effect, all for the same reason."""
    verb = "has" if len(names) == 1 else "have"
    log.warning("%s %s no effect: %s", ", ".join(names), verb, reason, event="option_ignored")
