"""A proxy that understands Kafka's protocol. For chosen requests, the proxy changes, drops, delays, repeats or
truncates the answer.

```python
with FaultProxy() as proxy, KafkaCluster(brokers=1, proxy_ports=proxy.ports) as cluster:
    proxy.connect(cluster)
    proxy.on("Produce", topic="orders", partition=0).answer(code=46, times=1)
    proxy.on("Fetch", topic="orders").delay(0.5)
    rule = proxy.on("InitProducerId").answer_without_forwarding(code=14, times=3)
    ...
    assert rule.hits == 3
    assert proxy.peak("Produce", topic="orders", partition=0) <= 10   # requests in the busiest second
```

kafka-python's protocol classes decode the frames, so fields have kafka-python's names. Without a matching rule, a frame
passes byte for byte. Exception: with `bootstrap`, the proxy replaces the brokers' addresses. Frames of APIs and
versions that kafka-python does not know also pass byte for byte. `TcpProxy` is for network faults that do not depend on
Kafka's protocol.
"""

from __future__ import annotations

import bisect
import collections
import logging
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from kafkasafe.errors import UsageError
from kafkasafe.kafkapython import frames
from kafkasafe.testing.proxy_rules import Call, Exchange, Pending, Rule, Rules
from kafkasafe.testing.relay import MAX_BUFFERED_BYTES, Relay, RelayedConnection, RelayedPipe, connect
from kafkasafe.testing.sockets import frames_in

if TYPE_CHECKING:
    from kafkasafe.testing.broker import KafkaCluster

__all__ = ["Call", "Exchange", "FaultProxy", "Rule"]

log = logging.getLogger(__name__)

BOOTSTRAP: Final = -1
"""Number of the listener for bootstrap connections. From answers on these connections, the proxy learns the brokers'
addresses.
"""

_CHUNK_BYTES: Final = 256 * 1024
_MAX_PENDING: Final = 1000  # at this number of unanswered requests on a connection, the proxy stops reading
_MAX_FRAME_BYTES: Final = 128 * 1024 * 1024
_LOG_CALLS: Final = 100_000

# APIs whose answers name brokers.
_NAMES_BROKERS: Final = frozenset({"Metadata", "FindCoordinator", "DescribeCluster", "Produce", "Fetch"})
# APIs whose answers map topic ids to names. Newer versions of some requests contain ids instead of names.
_NAMES_TOPICS: Final = frozenset({"Metadata", "CreateTopics"})


class _Connection(RelayedConnection):
    def __init__(self, client: socket.socket, target: socket.socket, node: int, number: int) -> None:
        super().__init__(client, target)
        self.node = node
        self.number = number
        self.from_client = bytearray()
        self.from_target = bytearray()
        self.pending: collections.deque[Pending] = collections.deque()
        self.muted = False
        self.ending = False  # close the client's connection after the queued bytes

    @property
    def ready_bytes(self) -> int:
        """Number of response bytes that are not due yet, or that wait for the delivery of earlier responses."""
        return sum(pending.size_bytes for pending in self.pending)

    @property
    def is_over(self) -> bool:
        """Whether the client gets nothing more."""
        if self.responses.outbox:
            return False
        delivered = not any(pending.parts is not None for pending in self.pending)
        return self.ending or (self.responses.ended and (delivered or self.muted))

    def mute(self) -> None:
        """Delivers nothing more to the client. Requests that the client has already sent still go to the broker."""
        self.muted = True
        self.responses.outbox.take()

    def deliver(self, now: float) -> None:
        """Delivers the finished responses in the order of the requests. Clients rely on this order."""
        outbox = self.responses.outbox
        while self.pending and not self.ending:
            head = self.pending[0]
            if head.parts is None or (head.due > now and not self.muted):
                return
            self.pending.popleft()
            if self.muted:
                continue
            for part in head.parts:
                outbox.put(part)
            self.muted = head.effects.drop and head.effects.mute
            self.ending = head.effects.hang_up
            try:
                outbox.send()
            except OSError:
                self.ending = True
                outbox.take()


class FaultProxy(Relay[_Connection]):
    """A proxy between Kafka clients and brokers. Its rules (`Rule`) cause faults. Thread-safe.

    The proxy's ports are open as soon as the proxy is constructed, so that brokers can advertise them. (Clients connect
    to the addresses that brokers advertise.) Pass `ports` to `KafkaCluster(proxy_ports=...)`, then call `connect`. For
    any other cluster pass `bootstrap`. With `bootstrap`, the proxy replaces the brokers' addresses in answers with its
    own, and opens a port for each broker that an answer names.

    The proxy reads plain text only, not TLS. SASL works if its tokens travel in Kafka's own frames, as after
    SaslHandshake version 1, which all recent clients use.

    Args:
        nodes: Node ids of the brokers. Not used with `bootstrap`.
        bootstrap: `host:port` of any broker.
        host: Address to listen on.
        verify: Also decode and encode every frame, and count changed frames in `unfaithful`.

    Attributes:
        ports: Port for each node id.
        unfaithful: With `verify`, the number of frames that are different after decoding and encoding, by (API,
            version, "request" or "response"). If a rule changes an unfaithful frame, fields that the rule does not name
            may change too.
        seen: Number of requests by (API, version).
        errors: Exceptions from predicates and edits, and errors about values that do not fit a field. The proxy
            forwarded the affected frames unchanged. The end of the `with` block raises the first of the `errors`.

    Raises:
        UsageError: `bootstrap` is not `host:port`.
        OSError: A port cannot be opened.
    """

    def __init__(
        self,
        nodes: Iterable[int] = (1,),
        *,
        bootstrap: str | None = None,
        host: str = "127.0.0.1",
        verify: bool = False,
    ) -> None:
        if bootstrap is not None and not bootstrap.rpartition(":")[2].isdigit():
            raise UsageError(f"bootstrap must be host:port, not {bootstrap!r}")
        super().__init__(host)
        self.ports: dict[int, int] = {}
        self.unfaithful: collections.Counter[tuple[str, int, str]] = collections.Counter()
        self.seen: collections.Counter[tuple[str, int]] = collections.Counter()
        self.errors: list[BaseException] = []
        self._verify = verify
        self._rewrite = bootstrap is not None
        self._targets: dict[int, tuple[str, int]] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._calls: collections.deque[Call] = collections.deque(maxlen=_LOG_CALLS)
        self._rules = Rules()
        self._lock = threading.Lock()
        self._numbers = 0
        try:
            if bootstrap is not None:
                name, _, port = bootstrap.rpartition(":")
                self._targets[BOOTSTRAP] = (name, int(port))
                nodes = (BOOTSTRAP,)
            for node in nodes:
                self.ports[node] = self._listen(0, node)
        except BaseException:
            self.close()
            raise

    def __exit__(self, *raised: object) -> None:
        self.close()
        if self.errors and not any(raised):
            raise self.errors[0]

    def __repr__(self) -> str:
        routes = ", ".join(
            f"{node}: {port} -> {self._targets.get(node)}" for node, port in self.ports.items()
        )
        return f"<FaultProxy {routes}; {len(self._rules)} rules>"

    @property
    def bootstrap_servers(self) -> list[str]:
        """The addresses to give to clients."""
        ports = [self.ports[BOOTSTRAP]] if self._rewrite else list(self.ports.values())
        return [f"{self._host}:{port}" for port in ports]

    def connect(self, cluster: KafkaCluster) -> None:
        """Forwards new connections to this cluster's brokers."""
        for node in self.ports:
            self.target(node, *cluster.client_address(node))

    def target(self, node: int, host: str, port: int) -> None:
        """Sets the real address of a broker. Until this call, the proxy resets connections to the broker."""
        self._targets[node] = (host, port)

    # -- Rules ---------------------------------------------------------------------------------------------------

    def on(self, api: object = None, *, topic: str | None = None, partition: int | None = None) -> Rule:
        """Makes a rule. Until one of the rule's methods is called, the rule only counts matching requests.

        Args:
            api: The API's name (`"Produce"`), its number, or kafka-python's class. None: any API. A rule for any API
                can delay, drop and cut answers, but not change them.
            topic: Matches only requests that name this topic. For a Fetch request in a session, which may leave the
                topic out, the rule also matches if the answer names the topic.
            partition: Matches only requests that name this partition of the topic. The rule changes only this
                partition's entry in the answer.

        Raises:
            UsageError: kafka-python does not know the API.
        """
        if partition is not None and topic is None:
            raise UsageError("A partition needs its topic")
        return self._rules.add(None if api is None else frames.api(api), topic, partition)

    def clear(self) -> None:
        """Ends all rules. Muted connections stay muted until their clients close them."""
        self._rules.clear()

    def cut(self) -> int:
        """Resets all connections, and accepts new ones. Returns the number of connections that were reset."""
        return self._do(self._cut)

    # -- Observations --------------------------------------------------------------------------------------------

    def requests(
        self, api: object = None, *, topic: str | None = None, partition: int | None = None
    ) -> list[Call]:
        """Returns the matching requests among the last 100,000, oldest first.

        Args:
            api: As in `on`.
            topic: Only requests that name this topic.
            partition: Only requests that name this partition of the topic.
        """
        name = None if api is None else frames.api(api).name
        with self._lock:
            calls = list(self._calls)
        return [
            call
            for call in calls
            if name in {None, call.api}
            and (
                topic is None
                or any(
                    topic == known and (partition is None or partition == number)
                    for known, number in call.partitions
                )
            )
        ]

    def peak(
        self,
        api: object = None,
        *,
        topic: str | None = None,
        partition: int | None = None,
        window_s: float = 1.0,
    ) -> int:
        """Returns how many matching requests (see `requests`) came in the busiest `window_s` seconds."""
        times = [call.time for call in self.requests(api, topic=topic, partition=partition)]
        return max((bisect.bisect_left(times, at + window_s) - i for i, at in enumerate(times)), default=0)

    def forget(self) -> None:
        """Empties the list of requests."""
        with self._lock:
            self._calls.clear()

    # -- The proxy's thread: connections -------------------------------------------------------------------------

    def _open(self, client: socket.socket, number: int) -> _Connection | None:
        where = self._targets.get(number)
        target = None if where is None else connect(*where)
        if target is None:
            return None
        self._numbers += 1
        return _Connection(client, target, number, self._numbers)

    def _prepare(self, connection: _Connection, now: float) -> float | None:
        due = None
        if connection.pending:
            connection.deliver(now)
            if connection.pending and connection.pending[0].parts is not None:
                due = connection.pending[0].due
        if connection.is_over:
            self._close(connection, reset_only=(connection.target,))
        return due

    def _read_limit(self, connection: _Connection, pipe: RelayedPipe) -> int:
        if pipe is connection.responses:
            waiting = pipe.outbox.size + connection.ready_bytes
            return _CHUNK_BYTES if waiting < MAX_BUFFERED_BYTES else 0
        if connection.ending or len(connection.pending) >= _MAX_PENDING:
            return 0
        return _CHUNK_BYTES if pipe.outbox.size < MAX_BUFFERED_BYTES else 0

    def _settle(self, connection: _Connection) -> None:
        connection.requests.end_sink()

    def _receive(self, connection: _Connection, pipe: RelayedPipe, data: bytes) -> None:
        of_client = pipe is connection.requests
        if not data:
            if of_client:
                connection.mute()
            else:
                connection.requests.give_up_sink()
            return
        try:
            self._split(connection, data, of_client=of_client)
        except ValueError as error:  # the bytes do not follow Kafka's protocol
            log.warning("%r: a connection is given up: %s", self, error)
            self._close(connection)

    def _split(self, connection: _Connection, data: bytes, *, of_client: bool) -> None:
        """Divides bytes into frames, and handles the complete frames."""
        buffer = connection.from_client if of_client else connection.from_target
        buffer += data
        for frame in frames_in(buffer, _MAX_FRAME_BYTES, 0):
            if of_client:
                self._on_request(connection, frame)
            else:
                self._on_response(connection, frame)
            if connection not in self._connections:
                break

    # -- The proxy's thread: frames ------------------------------------------------------------------------------

    def _on_request(self, connection: _Connection, frame: bytes) -> None:
        request = frames.parse_request(frame)
        api = request.api
        name = str(request.key) if api is None else api.name
        partitions: list[tuple[str, int]] = []
        if api is not None:
            for spot in frames.spots(request.message, self._names):
                partitions += [(spot.name, number) for number in spot.numbers()] or [(spot.name, -1)]
            self._compare(request, frame, name, request.version, "request")
        call = Call(
            time.monotonic(),
            name,
            request.version,
            connection.node,
            request.client_id,
            connection.number,
            tuple(partitions),
        )
        pending = Pending(call, request)
        if api is not None:
            try:
                frame = self._rules.hold_back(pending, frame, self._names)
            except Exception as error:  # a predicate raised, or a value does not fit a field
                self._complain(error)
        with self._lock:
            self._calls.append(pending.call)
            self.seen[name, request.version] += 1
        if pending.forwarded:
            connection.requests.outbox.put(struct.pack(">i", len(frame)) + frame)
            # With acks=0 the broker does not answer.
            if name == "Produce" and api is not None and request.message.acks == 0:
                return
        connection.pending.append(pending)
        if not pending.forwarded and pending.parts is None:
            self._finish(pending, frames.empty_response(request), None)

    def _on_response(self, connection: _Connection, frame: bytes) -> None:
        if len(frame) < frames.SIZE_BYTES:
            raise ValueError("a response without a header")
        number = frames.correlation_id(frame)
        pending = next((p for p in connection.pending if p.forwarded and p.parts is None), None)
        if pending is None or pending.request.correlation_id != number:
            raise ValueError(f"a response to request {number}, which was never sent")
        request = pending.request
        api = request.api
        response: frames.Response | None = None
        name = pending.call.api
        if api is not None and (
            self._verify
            or pending.synthetic
            or name in _NAMES_TOPICS
            or (self._rewrite and name in _NAMES_BROKERS)
            or self._rules.concern(api)
        ):
            try:
                response = frames.parse_response(api, request.version, frame)
            except Exception as error:  # the client may be able to read a frame that kafka-python cannot
                log.warning("%s v%d: an answer cannot be decoded: %s", name, request.version, error)
                self.unfaithful[name, request.version, "response"] += 1
            else:
                self._compare(response, frame, name, request.version, "response")
        self._finish(pending, response, frame)

    def _finish(self, pending: Pending, response: frames.Response | None, frame: bytes | None) -> None:
        """Applies rules to the response, and makes it ready for delivery. `frame` is None if no broker answered."""
        payload = frame
        try:
            if response is None:
                self._rules.apply_blind(pending)
            elif self._apply(pending, response) or frame is None:
                payload = response.encode()[frames.SIZE_BYTES :]
        except Exception as error:  # a predicate or edit raised, or a value does not fit a field
            self._complain(error)
            if payload is None:
                payload = frames.empty_response(pending.request).encode()[frames.SIZE_BYTES :]
        if payload is None:
            raise AssertionError("A response without a frame must have been decoded")
        effects = pending.effects
        size = len(payload)
        if effects.truncate_to is not None:
            payload = payload[: effects.truncate_to]
            if not effects.hang_up:
                size = len(payload)
        parts = [] if effects.drop else [struct.pack(">i", size) + payload] * effects.copies
        pending.answer(parts, time.monotonic() + effects.delay_s)

    def _apply(self, pending: Pending, response: frames.Response) -> bool:
        """Learns brokers and topics from a decoded answer, and applies rules to it. Returns whether it was changed."""
        message = response.message
        if pending.call.api in _NAMES_TOPICS:
            self._names.update(frames.topic_ids(message))
        redirected = self._rewrite and self._redirect(message)
        return self._rules.apply(pending, response, self._names) or redirected

    def _redirect(self, message: Any) -> bool:
        """Replaces the brokers' addresses with the proxy's."""
        changed = False
        for node, broker in frames.endpoints(message):
            if node < 0:
                continue
            where = (broker.host, broker.port)
            if node not in self.ports:
                self.ports[node] = self._listen(0, node)
            self._targets[node] = where
            frames.assign(broker, {"host": self._host, "port": self.ports[node]})
            changed = True
        return changed

    def _compare(
        self, decoded: frames.RequestFrame | frames.Response, frame: bytes, name: str, version: int, what: str
    ) -> None:
        if not self._verify:
            return
        try:
            same = decoded.encode()[frames.SIZE_BYTES :] == frame
        except Exception:  # kafka-python cannot encode what it has decoded
            same = False
        if not same:
            self.unfaithful[name, version, what] += 1

    def _complain(self, error: BaseException) -> None:
        log.error("A rule of the proxy failed: %r", error)
        if len(self.errors) < 100:
            self.errors.append(error)
