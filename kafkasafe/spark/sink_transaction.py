"""Carries out the steps of a micro-batch's transaction, on the sink's driver.

`kafkasafe.spark.txn` decides and explains the order of the steps. Each step that asks the cluster has a method here,
except the steps for the marker (`marker_store`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from kafka.errors import KafkaError

from kafkasafe.cluster.api import Cluster
from kafkasafe.codes.numbers import INVALID_TRANSACTION_TIMEOUT, UNKNOWN_TOPIC_OR_PARTITION
from kafkasafe.spark.appender import Appender, RestartError
from kafkasafe.spark.marker_store import MarkerStore
from kafkasafe.spark.option_values import error
from kafkasafe.spark.sink_options import SinkOptions, unknown_topic
from kafkasafe.spark.transactions import TransactionRequests
from kafkasafe.spark.txn import AppendState, Report, WriterIdentity, judge_partitions

log = logging.getLogger(__name__)

_BRIEF_S: Final = 5.0


class SinkTransaction:
    """Begins, fills, checks and ends the transactions of one application id. Only one transaction is open at a time.

    Args:
        transport: The driver's connections.
        requests: Sends requests about the application id's transactional id.
        markers: The store of the markers. The store connects to the cluster, and finds the markers' partition.
        options: Options of the sink.
        app_id: The application id, for messages.

    Attributes:
        partitions: Number of the topic's partitions in the open transaction; 0 if the option `topic` is not set.
    """

    def __init__(
        self,
        transport: Cluster,
        requests: TransactionRequests,
        markers: MarkerStore,
        options: SinkOptions,
        app_id: str,
    ) -> None:
        self._transport = transport
        self._requests = requests
        self._markers = markers
        self._options = options
        self._app_id = app_id
        self._opened_at = 0.0
        self.partitions = 0
        self._kept: WriterIdentity | None = None  # the latest grant that was not passed to tasks

    @property
    def has_timed_out(self) -> bool:
        """Whether the cluster may have aborted the transaction because the transaction took too long."""
        return time.monotonic() - self._opened_at > 0.9 * self._options.transaction_timeout_ms / 1000

    def fence(self) -> WriterIdentity:
        """The step FENCE: fences older drivers and their tasks, and ends the transaction that an older driver left
        open.
        """
        self._markers.start()
        try:
            return self._requests.fence(self._options.transaction_timeout_ms)
        except KafkaError as failed:
            if getattr(failed, "errno", None) == INVALID_TRANSACTION_TIMEOUT:
                raise error(
                    "INVALID_OPTION",
                    f"kafka.transaction.timeout.ms is {self._options.transaction_timeout_ms}, more than the brokers'"
                    " transaction.max.timeout.ms: lower the option, or raise the brokers' limit.",
                ) from failed
            raise

    def open(self, grant: WriterIdentity, *, remember: bool = True) -> None:
        """OPEN: begins the transaction."""
        self._opened_at = time.monotonic()
        places = {self._markers.place} if remember else set()
        topic = self._options.topic
        if topic is not None:
            self.partitions = self.partition_count(topic)
            places |= {(topic, number) for number in range(self.partitions)}
        self._requests.add_partitions(grant, places)

    def appender(self, grant: WriterIdentity, places: Collection[tuple[str, int]]) -> Appender:
        """Returns an appender for the step WRITE in this process. The appender need not reserve partitions with a first
        small batch (a claim), because no other process has the grant (producer id and epoch).

        Args:
            grant: Grant of the transaction. No other process may get it.
            places: The partitions to which the appender will append. If the option `topic` is set, the transaction
                already contains all partitions that the topic had when the transaction began. The method adds the
                missing partitions.
        """
        known = {(self._options.topic, number) for number in range(self.partitions)}
        if new := set(places) - known:
            self._requests.add_partitions(grant, new)
        self._kept = grant
        return Appender(self._transport, grant, self._options, claims=False)

    def append(
        self,
        grant: WriterIdentity,
        places: Collection[tuple[str, int]],
        batches: Iterable[tuple[str, int, bytearray]],
        totals: Counter[str],
    ) -> list[Report]:
        """The step WRITE in this process: appends batches, each with its topic and partition, through an `appender`.

        Adds the bytes and the retries to `totals`, even if the call fails.
        """
        appender = self.appender(grant, places)
        try:
            for topic, partition, data in batches:
                appender.append(topic, partition, data)
            return appender.finish()
        finally:
            totals["bytes"] += appender.bytes
            totals["retries"] += appender.retries

    def partition_count(self, topic: str) -> int:
        """Asks the brokers how many partitions a topic has.

        Raises:
            ConfigError: The topic does not exist.
            KafkaError: No broker answers.
        """
        try:
            return self._requests.partition_count(topic)
        except KafkaError as failed:
            if getattr(failed, "errno", None) == UNKNOWN_TOPIC_OR_PARTITION:
                raise unknown_topic(topic) from failed
            raise

    def verify(self, grant: WriterIdentity, reports: Sequence[Report]) -> None:
        """The step VERIFY: checks that the leaders have exactly the rows that the tasks reported.

        If the driver passed the grant to tasks, any task may have appended to any partition of the transaction, even a
        task that Spark abandoned. So the driver checks all partitions of the transaction. If the driver itself appended
        all rows (see `appender`), it checks only the partitions of these rows: their leaders may have lost acknowledged
        records.

        Raises:
            RestartError: The leaders have other rows. No row of the transaction is visible.
        """
        places = {(report.topic, report.partition) for report in reports}
        known = None if grant == self._kept else self._requests.partitions(grant)
        if known is not None:
            if missing := places - known:
                raise RestartError(f"{sorted(missing)} are not in the transaction")
            places |= {place for place in known if place[0] != "__consumer_offsets"}
        places.discard(self._markers.place)
        answers = self._requests.producers(places)
        appended: dict[tuple[str, int], AppendState | None] = {}
        for place, answer in answers.items():
            state = answer.producers.get(grant.producer_id)
            appended[place] = None if state is None else AppendState(state.epoch, state.last_sequence)
        if wrong := judge_partitions(grant, reports, appended):
            raise RestartError(wrong)

    def commit(self, grant: WriterIdentity) -> WriterIdentity | None:
        """The step COMMIT: commits the transaction. If the call fails, the outcome is unknown until FENCE and
        READ_MARKER have run again.

        Returns:
            The producer id and epoch for the next transaction; None if the driver has to get them in the step FENCE.
        """
        return self._requests.end(grant, commit=True)

    def abort(self, grant: WriterIdentity) -> None:
        """Aborts a failed transaction, so that it does not block readers. Tries for only a few seconds."""
        try:
            self._requests.abort(grant, self._options.transaction_timeout_ms, timeout_s=_BRIEF_S)
        except Exception as failed:
            log.warning(
                "Could not abort the transaction of %s, which times out later: %r", self._app_id, failed
            )
