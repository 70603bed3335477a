"""kafka-python's fetcher, which asks a consumer for its decisions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kafka.future import Future
from kafka.structs import TopicPartition

from kafkasafe._consuming.applying import Applying
from kafkasafe._io.batches import BatchFetcher

__all__ = ["Fetcher"]


class Fetcher(BatchFetcher):
    """kafka-python's fetcher, with the consumer's decisions."""

    owner: Applying

    def reset_offsets_if_needed(self, timeout_ms: float | None = None) -> None:  # noqa: ARG002  # kafka-python's signature
        self.owner._begin_resets()

    def maybe_validate_positions(self) -> None:
        self.owner._begin_checks()

    def validate_offsets_if_needed(self, timeout_ms: float | None = None) -> None:  # noqa: ARG002
        self.owner._carry_on()

    def _handle_fetch_error(self, node_id: int, exception: BaseException) -> None:
        """On kafka-python's I/O thread."""
        parent: Any = super()
        parent._handle_fetch_error(node_id, exception)
        for part in list(self.owner._parts.values()):
            if part.checked is not None and part.checked[2] < 0 and part.checked[1] == node_id:
                part.doubted = True

    def fetch_records(
        self, max_records: int | None = None, update_offsets: bool = True, timeout_ms: float | None = None
    ) -> Any:
        due_s = self.owner._due_s()
        if due_s is not None:
            timeout_ms = due_s * 1000 if timeout_ms is None else min(due_s * 1000, timeout_ms)
        # It is one of the futures that kafka-python waits for.
        if self.owner._is_busy():
            if self._reset_task is None or self._reset_task.is_done:
                self._reset_task = Future()
                if self.owner._desk.has_work:
                    self._reset_task.success(None)
        else:
            self._reset_task = None
        parent: Any = super()
        return parent.fetch_records(max_records, update_offsets=update_offsets, timeout_ms=timeout_ms)

    def _fetchable_partitions(self) -> Sequence[TopicPartition]:
        parent: Any = super()
        now, resting = time.monotonic(), self.owner._resting
        return [tp for tp in parent._fetchable_partitions() if resting.get(tp, 0.0) <= now]

    def _create_fetch_requests(self) -> Any:
        """Without our rack while a follower is avoided, or the leader would send us there again and again."""
        parent: Any = super()
        config: dict[str, Any] = self.config
        rack = config["client_rack"]
        if rack and self.owner._avoids_followers():
            config["client_rack"] = ""
        try:
            return parent._create_fetch_requests()
        finally:
            config["client_rack"] = rack

    def _parse_fetched_data(self, completed_fetch: Any) -> Any:
        if self.owner._on_fetched(completed_fetch):
            parent: Any = super()
            return parent._parse_fetched_data(completed_fetch)
        tp = completed_fetch.topic_partition
        if completed_fetch.metric_aggregator:
            completed_fetch.metric_aggregator.record(tp, 0, 0)
        self._subscriptions.move_partition_to_end(tp)
        return None
