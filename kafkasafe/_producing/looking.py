"""Read-only methods of a producer: the partitions of a topic, its counters, its health."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from kafkasafe._core.health import ProducerHealth, producer_health
from kafkasafe._io.metric_readings import producer_readings
from kafkasafe._io.stats import Reading
from kafkasafe._producing.transacting import Transacting
from kafkasafe.errors import WaitTimeoutError

__all__ = ["Looking"]


class Looking(Transacting):
    """Part of `SafeProducer`."""

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic.

        Raises:
            ProducerClosedError: `close` was called before.
            KafkaTimeoutError: The partitions were not known within `max_block_ms`.
        """
        self._lifecycle.raise_closed()
        known = self._transport.topic(topic)
        if known is None or not known.partitions:
            self._pump.refresh_topic(topic)

            def answered() -> bool:
                info = self._transport.topic(topic)
                return info is not None and bool(info.partitions)

            if not self._pump.wait(answered, self._config.max_block_s):
                raise WaitTimeoutError(
                    f"Failed to update metadata after {self._config.max_block_s:.1f} secs."
                    f"{self._delivery.network_cause()}"
                )
            known = self._transport.topic(topic)
        return set(known.partitions) if known is not None else set()

    def metrics(self, raw: bool = False) -> dict[str, Any]:
        """Return counters since the start, {"kafkasafe": {name: value}}, and a few values with KafkaProducer's names.

        The latter are in "producer-metrics". They are rates and averages since the start; KafkaProducer's cover the
        last minute only.
        """
        pump = self._pump
        values: dict[str, Any] = dict(pump.counters)
        values["spool_bytes"] = pump.ledger.kept_bytes
        values["unfinished_batches"] = pump.ledger.unfinished
        values["batches_not_durable"] = len(pump.ledger.undurable)
        if raw:
            return values
        seconds = max(time.monotonic() - self._started, 1e-3)
        sent = values.get("records_committed", 0)
        theirs = {
            "record-send-rate": sent / seconds,
            "record-error-rate": values.get("records_rejected", 0) / seconds,
            "records-per-request-avg": sent / max(values.get("batches_sent", 0), 1),
        }
        return {"kafkasafe": values, "producer-metrics": theirs}

    def health(self) -> ProducerHealth:
        """Return whether the producer can accept records, and why not; separately, whether the cluster answers.

        It is meant for probes (docs/operations.md): it never waits for a disk, a lock or a broker. Any thread may call
        it at any time, even after `close`.
        """
        behind = self._lifecycle.closed is None and self._delivery.callbacks.full()
        return producer_health(
            self._pump.seen(
                self._lifecycle.closed, needed_bytes=self._accumulator.needed_bytes(), callbacks_behind=behind
            )
        )

    def _readings(self) -> Iterable[Reading]:
        """Return the readings that `kafkasafe.metrics` collects."""
        return producer_readings(self._pump, closed=self._lifecycle.closed is not None)
