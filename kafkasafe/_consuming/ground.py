"""The base of the parts of a consumer: the state that they share, our own connections, and partition leadership.

`SafeConsumer.__init__` creates the state. All decisions are made on the thread that polls.
"""

from __future__ import annotations

import collections
import threading
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe._consuming.partition import Leadership, Part
from kafkasafe._consuming.polls import Polls
from kafkasafe._consuming.rereading import Rereading
from kafkasafe._core.epochs import UNDEFINED
from kafkasafe._core.followers import Followers
from kafkasafe._io.connect import connect
from kafkasafe._io.inquiry import Desk
from kafkasafe._io.lineage_file import LineageMemory
from kafkasafe._io.lookups import LookUps
from kafkasafe._io.stats import ConsumerStats
from kafkasafe.cluster.api import Cluster
from kafkasafe.config import ConsumerConfig
from kafkasafe.logs import EventLog
from kafkasafe.offsets import EndOffsetTracker, IsolationLevel

__all__ = ["Ground", "code_error", "ignore", "log"]

log = EventLog("consumer")


class Ground:
    """Part of `SafeConsumer`: the shared state."""

    # Attributes of kafka-python.
    config: dict[str, Any]
    _client: Any
    _cluster: Any
    _closed: bool
    _coordinator: Any
    _fetcher: Any
    _manager: Any
    _subscription: Any

    # Our own attributes.
    counters: collections.Counter[str]
    _desk: Desk
    _followers: Followers[TopicPartition]
    _keeps_lineage: bool
    """False: the brokers refuse lineages as metadata of committed offsets."""
    _lock: threading.Lock
    """Protects the lineages, which kafka-python's I/O thread also reads, and `_transport`."""
    _log: EventLog
    _lookups: LookUps
    _memory: LineageMemory
    _parts: dict[TopicPartition, Part]
    _polls: Polls
    _rereading: Rereading
    _resting: dict[TopicPartition, float]
    """Partitions that are not fetched until a time, monotonic seconds."""
    _safe: ConsumerConfig
    _save_due: float
    _save_ends_due: float
    _stats: ConsumerStats
    _tracker: EndOffsetTracker
    _transport: Cluster | None

    if TYPE_CHECKING:  # `SafeConsumer` defines it

        @property
        def client_id(self) -> str: ...

    @property
    def _isolation(self) -> IsolationLevel:
        return "read_committed" if int(self._fetcher._isolation_level) else "read_uncommitted"

    def _network(self) -> Cluster:
        """Return our own connections, which are made on first use."""
        transport = self._transport
        if transport is not None and not self._closed:
            return transport  # without the lock, because each look-up calls this several times
        with self._lock:
            if self._closed:
                raise kafka_errors.IllegalStateError("The consumer is closed")
            if self._transport is None:
                # Do not pass the detected broker version on: brokers may be upgraded while this runs.
                options = {**self.config, "api_version": self._safe.kafka.get("api_version")}
                transport = connect(options)
                transport.start()
                self._transport = transport
            return self._transport

    def _assigned(self) -> dict[TopicPartition, Any]:
        """Copy the assignment under its lock, because kafka-python's I/O thread changes it."""
        with self._subscription._lock:
            return dict(self._subscription.assignment)

    def _leadership(self, tp: TopicPartition) -> Leadership | None:
        cluster = self._manager.cluster
        leader = cluster.leader_for_partition(tp)
        if leader is None or leader < 0:
            return None
        epoch = cluster.leader_epoch_for_partition(tp)
        topic_id = cluster.topic_id(tp.topic)
        number = None if topic_id is None else topic_id.bytes
        return number, leader, UNDEFINED if epoch is None else epoch


def ignore(_: object) -> None:
    """Ignore failed attempts of a procedure."""


def code_error(code: int, message: str) -> Exception:
    error: Exception = kafka_errors.for_code(code)(message)
    return error
