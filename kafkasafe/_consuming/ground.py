"""What the parts of a consumer stand on: the state that they share, our own connections, who leads.

`SafeConsumer.__init__` makes the state. All decisions are made on the thread that polls.
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
    """Part of `SafeConsumer`: what the other parts stand on."""

    # kafka-python's.
    config: dict[str, Any]
    _client: Any
    _cluster: Any
    _closed: bool
    _coordinator: Any
    _fetcher: Any
    _manager: Any
    _subscription: Any

    # Ours.
    counters: collections.Counter[str]
    _desk: Desk
    _followers: Followers[TopicPartition]
    _keeps_lineage: bool
    """False: the brokers do not take it with committed offsets."""
    _lock: threading.Lock
    """Of the lineages' text, which is also made on kafka-python's I/O thread, and of `_transport`."""
    _log: EventLog
    _lookups: LookUps
    _memory: LineageMemory
    _parts: dict[TopicPartition, Part]
    _polls: Polls
    _rereading: Rereading
    _resting: dict[TopicPartition, float]
    """Partitions that are not fetched from, and until when."""
    _safe: ConsumerConfig
    _save_due: float
    _save_ends_due: float
    _stats: ConsumerStats
    _tracker: EndOffsetTracker
    _transport: Cluster | None

    if TYPE_CHECKING:  # users call it: it is where `SafeConsumer` is

        @property
        def client_id(self) -> str: ...

    @property
    def _isolation(self) -> IsolationLevel:
        return "read_committed" if int(self._fetcher._isolation_level) else "read_uncommitted"

    def _network(self) -> Cluster:
        """Our own connections, made when they are needed first."""
        transport = self._transport
        if transport is not None and not self._closed:
            return transport  # without the lock: each question of a look-up comes here several times
        with self._lock:
            if self._closed:
                raise kafka_errors.IllegalStateError("The consumer is closed")
            if self._transport is None:
                # The version that was found is no option: brokers may be upgraded while this runs.
                options = {**self.config, "api_version": self._safe.kafka.get("api_version")}
                transport = connect(options)
                transport.start()
                self._transport = transport
            return self._transport

    def _assigned(self) -> dict[TopicPartition, Any]:
        """kafka-python's I/O thread assigns."""
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
    """For procedures whose failures need no note."""


def code_error(code: int, message: str) -> Exception:
    error: Exception = kafka_errors.for_code(code)(message)
    return error
