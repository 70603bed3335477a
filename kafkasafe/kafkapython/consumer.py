"""Give a KafkaConsumer the parts that this package extends."""

from __future__ import annotations

from typing import Any

from kafkasafe.kafkapython.adapter import KafkaPython
from kafkasafe.kafkapython.coordinator import Coordinator
from kafkasafe.kafkapython.fetcher import Fetcher
from kafkasafe.kafkapython.owner import Owner
from kafkasafe.kafkapython.subscription import Subscription

__all__ = ["abandon", "extend", "port_of", "take_subscription_at_once"]


def port_of(consumer: Any) -> KafkaPython:
    """Return what the decisions about a KafkaConsumer need of it."""
    return KafkaPython(consumer._subscription, consumer._fetcher, consumer._coordinator, consumer._manager)


def extend(consumer: Any, owner: Owner, *, chooses_sizes: bool) -> None:
    """Extend the parts of a KafkaConsumer, which then ask for decisions.

    KafkaConsumer of kafka-python 3.0.12 creates its parts itself and offers no hook, so their classes are replaced.

    Args:
        consumer: A KafkaConsumer that has not polled yet.
        owner: The objects that decide.
        chooses_sizes: Choose `max_partition_fetch_bytes` as long as the consumer reads only batches.
    """
    consumer._fetcher.__class__ = Fetcher
    consumer._fetcher.serve(owner)
    consumer._coordinator.__class__ = Coordinator
    consumer._coordinator.serve(owner)
    if chooses_sizes:
        consumer._fetcher.choose_sizes()
    # Ask for stable offsets only (KIP-447). An atomic batch in another process's spool will be committed even if that
    # process dies. If this consumer began at the group's offset from before that batch, it would read the batch's input
    # again.
    isolation_level = consumer._coordinator._isolation_level
    consumer._coordinator._isolation_level = type(isolation_level).READ_COMMITTED
    consumer._subscription.__class__ = Subscription
    consumer._subscription.commit_from(owner.commits.committable)


def abandon(consumer: Any) -> BaseException | None:
    """Close what a failed constructor of KafkaConsumer leaves open. Return why the last attempt to connect failed.

    kafka-python 3.0.12 would leak a thread and sockets with each failed attempt.
    """
    if hasattr(consumer, "_client"):
        consumer._client.close()
    failure: BaseException | None = getattr(getattr(consumer, "_manager", None), "last_failure", None)
    return failure


def take_subscription_at_once(consumer: Any) -> None:
    """Make a new subscription of a consumer without a group effective once brokers have answered.

    In kafka-python 3.0.12, if the client knows the topics already, the subscription has no effect until partitions
    change in the cluster.
    """
    consumer._coordinator._metadata_snapshot = {}
    consumer._cluster.request_update()
