"""Validates the options of SafeProducer and SafeConsumer. The error message for an unknown option suggests a similar
known option.

`table` has one row for each option. Each row is a field of `ProducerConfig` or `ConsumerConfig`. `values` checks one
value, `sizes` checks the spool's sizes, `names` checks the names of options, and `connection` checks the options that
both clients have. `producer` and `consumer` validate all options of a client.
"""

from kafkasafe.config.consumer import check_topics, validate_consumer
from kafkasafe.config.names import DEPRECATED
from kafkasafe.config.producer import check_no_positional, validate
from kafkasafe.config.spool_dir import take_locks_early, volatile_reason
from kafkasafe.config.table import DEFAULTS, ConsumerConfig, Decide, ProducerConfig
from kafkasafe.config.values import DEFAULT_CLIENT_ID

__all__ = [
    "DEFAULTS",
    "DEFAULT_CLIENT_ID",
    "DEPRECATED",
    "ConsumerConfig",
    "Decide",
    "ProducerConfig",
    "check_no_positional",
    "check_topics",
    "take_locks_early",
    "validate",
    "validate_consumer",
    "volatile_reason",
]
