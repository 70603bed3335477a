"""The private fields that this package uses of a KafkaConsumer and its parts."""

from __future__ import annotations

from typing import Any, Final

FIELDS: Final = {
    "KafkaConsumer": (
        "_client",
        "_closed",
        "_cluster",
        "_consumer_timeout",
        "_coordinator",
        "_fetcher",
        "_iterator",
        "_manager",
        "_net",
        "_subscription",
    ),
    "Fetcher": (
        "_completed_fetches",
        "_enable_incremental_fetch_sessions",
        "_fetch_futures",
        "_isolation_level",
        "_manager",
        "_maybe_update_current_leader",
        "_next_partition_records",
        "_nodes_with_pending_fetch_requests",
        "_paused_completed_fetches",
        "_paused_partition_records",
        "_reset_task",
        "_send_fetches_async",
        "_sensors",
        "_session_handlers",
        "_subscriptions",
    ),
    "ConsumerCoordinator": (
        "_cluster",
        "_enable_heartbeat",
        "_generation",
        "_isolation_level",
        "_join_task",
        "_lock",
        "_manager",
        "_metadata_snapshot",
        "_net",
        "_offset_fetch_futures",
        "_rebalance_protocol",
        "_subscription",
    ),
    "SubscriptionState": ("_default_offset_reset_strategy", "_lock"),
}


def missing_fields(consumer: Any) -> list[str]:
    """Returns the fields that this consumer or its parts lack, each with its class, for example `Fetcher._sensors`."""
    parts = {
        "KafkaConsumer": consumer,
        "Fetcher": getattr(consumer, "_fetcher", None),
        "ConsumerCoordinator": getattr(consumer, "_coordinator", None),
        "SubscriptionState": getattr(consumer, "_subscription", None),
    }
    return [
        f"{kind}.{name}"
        for kind, part in parts.items()
        if part is not None
        for name in FIELDS[kind]
        if not hasattr(part, name)
    ]


def is_closed(consumer: Any) -> bool:
    """Returns whether a consumer is closed. Another class's consumer without the field counts as open.

    `close` sets the field at its beginning, and then calls the rebalance listener (`on_partitions_revoked`). Until the
    listener has returned, the consumer is a member of its group and has its partitions, so it is not closed yet.
    """
    if getattr(consumer, "_closed", False) is not True:
        return False
    return not (consumer.subscription() and consumer.assignment())
