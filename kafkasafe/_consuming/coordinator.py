"""kafka-python's coordinator of groups: joins that come to an end, and lineages that go with commits."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Any

import kafka.errors as kafka_errors
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.structs import MemberState, OffsetAndMetadata, TopicPartition

from kafkasafe._consuming.keeping import Keeping

__all__ = ["Coordinator"]


class Coordinator(ConsumerCoordinator):
    """kafka-python's coordinator; lineages go with committed offsets."""

    owner: Keeping
    config: dict[str, Any]

    def need_rejoin(self) -> bool:
        """Whether to join, or to go on with it (as `AbstractCoordinator.rejoinNeededOrPending` of Kafka's own client).

        A leader whose topics got partitions needs to join until it has assigned them; kafka-python then no longer
        asks for the outcome, and the member stays without partitions and heartbeats for ever.
        """
        parent: Any = super()
        me: Any = self
        return bool(parent.need_rejoin() or (me.rejoining and me._subscription.partitions_auto_assigned()))

    async def join_group_async(self, timeout_ms: float | None = None) -> bool:
        """Joins the group, also where the answer came between two polls.

        kafka-python throws such an answer away and asks to join anew, which sends the whole group into another
        rebalance; members that are polled in turns, or seldom and briefly, never came to an end.
        """
        parent: Any = super()
        # kafka-python says nothing of its types.
        me: Any = self
        task = me._join_task
        if task is not None and task.succeeded() and me.state is MemberState.REBALANCING:
            me._join_task = None
            with me._lock:
                me.rejoining = me.rejoin_needed = False
                me.state = MemberState.STABLE
                me._enable_heartbeat()
            made = me._generation
            await me._on_join_complete_async(made.generation_id, made.member_id, made.protocol, task.value)
        return bool(await parent.join_group_async(timeout_ms=timeout_ms))

    async def ensure_coordinator_ready_async(self, timeout_ms: float | None = None) -> bool:
        """kafka-python's lets an error of the metadata request that follows a failed look-up out of `poll`."""
        parent: Any = super()
        deadline = math.inf if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                return bool(
                    await parent.ensure_coordinator_ready_async(
                        timeout_ms=None if timeout_ms is None else left_s * 1000
                    )
                )
            except kafka_errors.InvalidMetadataError as error:
                self.owner._log.seldom(
                    logging.INFO,
                    "no_coordinator",
                    "",
                    "No group coordinator yet: %r",
                    error,
                    error=type(error).__name__,
                )
            if time.monotonic() >= deadline:
                return False
            await self._manager._net.sleep(self.config["retry_backoff_ms"] / 1000)

    async def _send_offset_commit_request(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Any:
        parent: Any = super()
        described = self.owner._with_lineage(offsets)
        try:
            return await parent._send_offset_commit_request(described)
        except kafka_errors.OffsetMetadataTooLargeError:
            if described == dict(offsets):
                raise
            self.owner._log.warning(
                "offset.metadata.max.bytes of the brokers is below 2048: what was read before cannot be kept with"
                " committed offsets",
                event="lineage_not_kept",
            )
            self.owner._keeps_lineage = False
            return await parent._send_offset_commit_request(offsets)
