"""The network between a client and a `VirtualCluster`: requests and answers as plain data, in virtual time.

The network makes no decisions. The real client (`kafkasafe.cluster.client`) handles leaders, metadata, back-off, fences
and waiting requests.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, Protocol

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import Broker
from kafkasafe.cluster.network import ManyOffsets, OffsetRow, ProduceBatches, Sendable, Service, Written
from kafkasafe.cluster.terms import NodeId, closed_error
from kafkasafe.testing.fake.asking import Fields
from kafkasafe.testing.fake.pipes import Pipe
from kafkasafe.testing.fake.virtual_time import Timer, VirtualTime

_FIRST_WITH_HINTS: Final = 10
"""Version of Produce (KIP-951)."""
_HINTS: Final = frozenset({"node_endpoints", "current_leader"})


class VirtualBrokers(Protocol):
    """The brokers of a cluster in virtual time, as their clients see them."""

    time: VirtualTime

    @property
    def bootstrap_servers(self) -> list[str]:
        """`host:port` of every broker."""

    def speaks(self, name: str) -> tuple[int, int]:
        """(oldest, newest) version of an API that the brokers support; (0, -1) if they do not support it."""

    def dial(self, node: int, on_made: Callable[[Pipe], None], on_end: Callable[[str], None]) -> None:
        """Opens a connection. Calls `on_made` with the connection when it is usable, or `on_end` with the reason if it
        fails.
        """

    def hang_up(self, pipe: Pipe) -> None:
        """Ends a connection for its client. Does not call `on_end`."""

    def ask(
        self, pipe: Pipe, name: str, version: int, message: Any, on_answer: Callable[[Fields], None]
    ) -> float:
        """Writes a request to a connection. Calls `on_answer` if the answer to the request arrives.

        Returns:
            Seconds until the connection has accepted all bytes of the request.
        """

    def throttled_ms(self, pipe: Pipe) -> int:
        """Remaining throttle time of this connection, in ms."""


class VirtualNetwork:
    """See `kafkasafe.cluster.network.Network`.

    This network runs each posted job before the posting thread continues, like an infinitely fast network thread. A
    slower network would hide a request that the client sends too early, if the test kills the client right afterwards.

    Args:
        cluster: Has the brokers and the time.
        options: Options of KafkaProducer that concern connections.
    """

    def __init__(self, cluster: VirtualBrokers, options: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._time = cluster.time
        self.client_id: str = options.get("client_id") or "kafkasafe"
        self.request_timeout_s: float = options.get("request_timeout_ms", 30_000) / 1000
        self.metadata_max_age_s: float = options.get("metadata_max_age_ms", 300_000) / 1000
        self.reconnect_backoff_s: float = options.get("reconnect_backoff_ms", 50) / 1000
        self.reconnect_backoff_max_s: float = options.get("reconnect_backoff_max_ms", 1000) / 1000
        self._setup_timeout_s: float = options.get("socket_connection_setup_timeout_ms", 10_000) / 1000
        self._brokers: dict[int, Broker] = {}
        self._service: Service | None = None
        self._started = self._stopped = self._ended = False
        self._busy = False
        """Whether code of the client is running. If so, `wake` calls the client later."""

    # -- Start and end -------------------------------------------------------------------------------------------

    def serve(self, service: Service) -> None:
        self._service = service

    def start(self) -> None:
        if not self._started and not self._stopped and self._service is not None:
            self._started = True
            self._service.begin()
            self.wake()

    def close(self, timeout_s: float) -> bool:  # noqa: ARG002 - it takes no time
        service = self._service
        if service is not None and not self._ended:
            self._ended = True
            error = closed_error()
            self.enter(service.shut_down)
            self.enter(service.interrupted, error)
            service.end(error)
        return True

    def stop(self) -> None:
        self._stopped = True

    # -- Time ----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self._time.monotonic()

    def random_fraction(self) -> float:
        """See `Network`. Always returns the same number, so that runs can be repeated exactly."""
        return 0.5

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        def due() -> None:
            if not self._stopped:
                self.enter(call)

        return Timer(due) if when == math.inf else self._time.call_at(when, due)

    def cancel(self, timer: Timer) -> None:
        timer.cancel()

    def wake(self) -> None:
        if self._started and self._service is not None:
            if self._busy:
                self.call_at(self.now(), self._service.look)
            else:
                self.enter(self._service.look)

    def enter(self, call: Callable[..., object], *arguments: object) -> None:
        """Calls a function of the client."""
        before, self._busy = self._busy, True
        try:
            call(*arguments)
        finally:
            self._busy = before

    # -- Connections ---------------------------------------------------------------------------------------------

    def connect(self, node_id: NodeId) -> VirtualConnection:
        if isinstance(node_id, str):
            node = self._cluster.bootstrap_servers.index(node_id) + 1
        elif node_id in self._brokers:
            node = node_id
        else:
            raise kafka_errors.UnknownBrokerIdError(node_id)
        return VirtualConnection(self._cluster, node, self.now() + self._setup_timeout_s, self.enter)

    # -- The address book ----------------------------------------------------------------------------------------

    def brokers(self) -> list[Broker]:
        return list(self._brokers.values())

    def nodes(self) -> list[NodeId]:
        return list(self._brokers)

    def bootstrap_nodes(self) -> list[NodeId]:
        """See `Network`. Returns all brokers, regardless of the options."""
        return list(self._cluster.bootstrap_servers)

    def addresses(self) -> Collection[int]:
        return self._brokers.keys()

    def learn_broker(self, endpoint: Any) -> None:
        if endpoint.node_id not in self._brokers:
            self._brokers[endpoint.node_id] = _broker(endpoint)

    def learn_brokers(self, brokers: Iterable[Any]) -> tuple[int, ...]:
        self._brokers = {each.node_id: _broker(each) for each in brokers}
        return tuple(self._brokers)


class VirtualConnection:
    """See `kafkasafe.cluster.network.Connection`."""

    def __init__(
        self, cluster: VirtualBrokers, node: int, made_until_s: float, enter: Callable[..., None]
    ) -> None:
        self._enter = enter
        self._cluster = cluster
        self._time = cluster.time
        self._node = node
        self._pipe: Pipe | None = None
        self._closed = False
        self._on_ready: Callable[[], None] = lambda: None
        self._on_closed: Callable[[BaseException | None], None] = lambda _: None
        self._in_flight: dict[object, Callable[[BaseException, bool], None]] = {}
        self._writing_until_s = self._written_s = self._read_s = self._time.monotonic()
        self._throttled_until_s = 0.0
        cluster.dial(node, self._made, self._lost)
        self._setup = self._time.call_at(made_until_s, lambda: self._lost("no answer"))

    def watch(self, on_ready: Callable[[], None], on_closed: Callable[[BaseException | None], None]) -> None:
        self._on_ready, self._on_closed = on_ready, on_closed

    def _made(self, pipe: Pipe) -> None:
        if self._closed:
            self._cluster.hang_up(pipe)
            return
        self._setup.cancel()
        self._pipe = pipe
        self._read_s = self._time.monotonic()
        self._enter(self._on_ready)

    def _lost(self, why: str) -> None:
        self._enter(self.close, kafka_errors.KafkaConnectionError(f"Node {self._node}: {why}"))

    @property
    def connected(self) -> bool:
        return self._pipe is not None and not self._closed

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def resumes_at(self) -> float | None:
        return self._throttled_until_s if self._throttled_until_s > self._time.monotonic() else None

    @property
    def last_read(self) -> float:
        return self._read_s

    @property
    def last_write(self) -> float:
        return max(self._written_s, min(self._time.monotonic(), self._writing_until_s))

    def version(self, name: str, minimum: int, maximum: int) -> int:
        oldest, latest = self._cluster.speaks(name)
        version = min(latest, maximum)
        if version < max(minimum, oldest):
            raise kafka_errors.UnsupportedVersionError(f"The broker speaks {name} up to v{latest}")
        return version

    def send(
        self,
        request: Sendable,
        written: Written,
        answered: Callable[[Any], None],
        failed: Callable[[BaseException, bool], None],
    ) -> None:
        pipe = self._pipe
        if pipe is None or self._closed:
            failed(kafka_errors.KafkaConnectionError("Node not connected"), False)
            return
        token = object()

        def arrived(fields: Fields) -> None:
            if self._in_flight.pop(token, None) is not None:
                self._read_s = self._time.monotonic()
                throttled_ms = self._cluster.throttled_ms(pipe)
                self._throttled_until_s = max(self._throttled_until_s, self._read_s + throttled_ms / 1000)
                self._enter(answered, _answer(request, fields))

        def taken() -> None:
            self._written_s = self._time.monotonic()
            written.written(self._written_s)

        self._in_flight[token] = failed
        taken_s = self._cluster.ask(pipe, request.name, request.version, _message(request), arrived)
        if taken_s:
            self._writing_until_s = self._time.monotonic() + taken_s
            self._time.call_later(taken_s, taken)
        else:
            taken()

    def close(self, error: BaseException | None = None) -> None:
        if self._closed:
            return
        self._setup.cancel()
        if self._pipe is None and error is None:
            error = kafka_errors.KafkaConnectionError(f"Node {self._node}: the connection was closed")
        self._closed = True
        if self._pipe is not None:
            self._cluster.hang_up(self._pipe)
        in_flight, self._in_flight = self._in_flight, {}
        for failed in in_flight.values():
            failed(error or kafka_errors.KafkaConnectionError("The connection was closed"), True)
        self._on_closed(error)


class _Answer(SimpleNamespace):
    """The fields of an answer, as attributes. A missing field is None."""

    def __getattr__(self, name: str) -> None:
        return None


def _broker(endpoint: Any) -> Broker:
    return Broker(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)


def _plain(
    value: Any, kind: type[SimpleNamespace] = SimpleNamespace, without: Collection[str] = frozenset()
) -> Any:
    """Converts dicts to objects with attributes, at any depth. Leaves out the fields in `without`."""
    if isinstance(value, dict):
        return kind(
            **{name: _plain(one, kind, without) for name, one in value.items() if name not in without}
        )
    if isinstance(value, list | tuple):
        return [_plain(one, kind, without) for one in value]
    return value


def _message(request: Sendable) -> Any:
    """Converts a request to the form that a broker's handler reads."""
    if isinstance(request, ProduceBatches):
        topics: dict[str, list[Any]] = {}
        for topic, partition, data in request.batches:
            topics.setdefault(topic, []).append(SimpleNamespace(index=partition, records=bytes(data)))
        request.batches.clear()
        return SimpleNamespace(
            transactional_id=request.transactional_id,
            acks=request.acks,
            timeout_ms=request.timeout_ms,
            topic_data=[
                SimpleNamespace(
                    name=topic, topic_id=uuid.UUID(bytes=request.topic_ids[topic]), partition_data=parts
                )
                for topic, parts in topics.items()
            ],
        )
    if isinstance(request, ManyOffsets):
        row = {"current_leader_epoch": -1, "timestamp": request.timestamp}
        return _plain(
            {
                "replica_id": -1,
                "isolation_level": request.isolation_level,
                "topics": [
                    {
                        "name": topic,
                        "partitions": [row | {"partition_index": number} for number in numbers],
                    }
                    for topic, numbers in request.numbers.items()
                ],
                "timeout_ms": request.timeout_ms,
            }
        )
    return _plain(request.fields)


def _answer(request: Sendable, fields: Fields) -> Any:
    """Converts an answer to the form that the client reads."""
    if isinstance(request, ManyOffsets):
        return _Answer(rows=[(topic["name"], _rows(topic["partitions"])) for topic in fields["topics"]])
    old = request.name == "Produce" and request.version < _FIRST_WITH_HINTS
    return _plain(fields | {"API_VERSION": request.version}, _Answer, _HINTS if old else frozenset())


def _rows(partitions: Sequence[Fields]) -> Sequence[OffsetRow]:
    return [
        (one["partition_index"], one["error_code"], one["timestamp"], one["offset"], one["leader_epoch"])
        for one in partitions
    ]
