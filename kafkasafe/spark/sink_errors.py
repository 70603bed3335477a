"""Errors of the sink's driver: what codes mean for a transaction, and the messages that several steps share."""

from __future__ import annotations

from typing import Any

from kafka.errors import KafkaError, for_code

from kafkasafe.codes.verdicts import FENCED_CODES, SPOILT_CODES
from kafkasafe.errors import ConfigError
from kafkasafe.spark.appender import FencedError
from kafkasafe.spark.option_values import error
from kafkasafe.spark.sink_options import SinkOptions

__all__ = ["coded", "is_fenced", "is_spoilt", "no_broker", "unknown_topic"]


def unknown_topic(topic: str) -> ConfigError:
    """Creates the error for a topic that does not exist."""
    return error(
        "UNKNOWN_TOPIC", f"Topic {topic!r} does not exist and the brokers do not create it: create it."
    )


def no_broker(options: SinkOptions, who: str, failed: BaseException) -> ConfigError:
    """Creates the error for a cluster that does not answer. `who` is "the driver" or "executors"."""
    return error(
        "NO_BROKER",
        f"No broker of kafka.bootstrap.servers={options.servers} answered within {options.api_timeout_s:g} s"
        f" ({failed}): check host and port, kafka.security.protocol, and that {who} can reach the brokers.",
    )


def is_fenced(failure: BaseException) -> bool:
    """Returns whether the coordinator or a leader refused the epoch, because a newer one exists."""
    return isinstance(failure, FencedError) or getattr(failure, "errno", None) in FENCED_CODES


def is_spoilt(failure: BaseException) -> bool:
    """Returns whether the transaction cannot be committed any more, but a new one can."""
    return getattr(failure, "errno", None) in SPOILT_CODES


def coded(code: int, message: str) -> KafkaError:
    """Creates the error of an answer."""
    made: Any = for_code(code)(message)
    made.errno = code
    coded: KafkaError = made
    return coded
