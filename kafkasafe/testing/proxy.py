"""A proxy that understands Kafka's protocol: per request, it changes, drops, delays, repeats or truncates the answer.

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

Frames are decoded with kafka-python's protocol classes, so fields have their names there. Frames that match no rule
pass byte for byte, and so do APIs and versions that kafka-python does not know. `TcpProxy` is for network faults that
do not depend on Kafka's protocol.
"""

from __future__ import annotations

import bisect
import collections
import logging
import selectors
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from kafkasafe.errors import UsageError
from kafkasafe.kafkapython import frames
from kafkasafe.kafkapython.frames import Api, Level
from kafkasafe.testing.relay import Relay, connect

if TYPE_CHECKING:
    from kafkasafe.testing.broker import KafkaCluster

__all__ = ["Call", "Exchange", "FaultProxy", "Rule"]

log = logging.getLogger(__name__)

BOOTSTRAP: Final = -1
"""Number of the listener for bootstrap connections. The proxy learns the brokers from the answers on it."""

_CHUNK_BYTES: Final = 256 * 1024
_MAX_BUFFERED_BYTES: Final = (
    4 * 1024 * 1024
)  # for each direction of a connection; beyond it the sender has to wait
_MAX_PENDING: Final = 1000  # unanswered requests of a connection; beyond it the client has to wait
_MAX_FRAME_BYTES: Final = 128 * 1024 * 1024
_LOG_CALLS: Final = 100_000

# APIs whose answers name brokers.
_NAMES_BROKERS: Final = frozenset({"Metadata", "FindCoordinator", "DescribeCluster", "Produce", "Fetch"})
# APIs whose answers map topic ids to names. Newer requests contain ids instead of names.
_NAMES_TOPICS: Final = frozenset({"Metadata", "CreateTopics"})


@dataclass(frozen=True, slots=True)
class Call:
    """A request that the proxy received.

    Attributes:
        time: When it arrived, `time.monotonic()` in seconds.
        api: Name of the API; its number as text if kafka-python does not know it.
        version: API version.
        node: Node id of the broker to which it was addressed.
        client_id: The client's id.
        connection: Number of the connection.
        partitions: All (topic, partition) that it names; partition -1 if it names only the topic. A Fetch within a
            session names only the partitions that changed.
        forwarded: Whether a broker got the request, or a part of it.
    """

    time: float
    api: str
    version: int
    node: int
    client_id: str
    connection: int
    partitions: tuple[tuple[str, int], ...]
    forwarded: bool = True


@dataclass(slots=True, eq=False)
class Exchange:
    """A request and its response, as passed to predicates and edits.

    Attributes:
        call: The request in brief.
        request: kafka-python's object.
        response: kafka-python's object; None for rules that act before forwarding.
    """

    call: Call
    request: Any
    response: Any = None


Edit = Callable[[Exchange], None]


@dataclass(slots=True)
class _Effects:
    """The effects on one response as a whole."""

    delay_s: float = 0.0
    copies: int = 1
    truncate_to: int | None = None
    drop: bool = False
    mute: bool = False
    hang_up: bool = False


class Rule:
    """What the proxy does with the requests and responses that match. Made by `FaultProxy.on`; thread-safe.

    Calls of its methods accumulate, and return the rule. Each call takes effect at once. So configure related effects
    in one call, or begin with `when`. Rules act in the order in which they were made. If two set the same field, the
    later one wins.

    Attributes:
        hits: How often the rule has acted.
    """

    def __init__(self, proxy: FaultProxy, api: Api | None, topic: str | None, partition: int | None) -> None:
        self.hits = 0
        self._proxy = proxy
        self._api = api
        self._topic = topic
        self._partition = partition
        self._predicates: list[Callable[[Exchange], bool]] = []
        self._skip = 0
        self._times: int | None = None
        # (level, fields) to be set, in order.
        self._fields: list[tuple[Level, dict[str, Any]]] = []
        self._edits: list[Edit] = []
        self._leave_out = False
        self._additions: list[tuple[str, int, dict[str, Any]]] = []
        self._effects = _Effects()
        self._unforwarded: str = ""  # "answer", "drop" or "hang up" before a broker gets the request

    def __repr__(self) -> str:
        name = "any request" if self._api is None else self._api.name
        where = "" if self._topic is None else f" of {self._topic}"
        where += "" if self._partition is None else f"-{self._partition}"
        return f"<Rule for {name}{where}, {self.hits} hits>"

    # -- Conditions ----------------------------------------------------------------------------------------------

    def when(self, predicate: Callable[[Exchange], bool]) -> Self:
        """Acts only if the predicate returns True. The proxy's thread calls it, so it must not block."""
        self._predicates.append(predicate)
        return self

    def after(self, count: int) -> Self:
        """Ignores the first `count` matching requests."""
        self._skip = count
        return self

    # -- Changes of the answer -----------------------------------------------------------------------------------

    def answer(
        self, code: int, *, times: int | None = None, level: Level | None = None, **fields: Any
    ) -> Self:
        """Puts an error into the answer, although the broker carries out the request.

        The answer's other fields get the values that a broker sends with an error (a base offset of -1 …), unless
        `fields` overrides them.

        Args:
            code: Kafka's error code; 0 for success.
            times: How often the rule acts; by default always.
            level: "partition", "topic" or "top": which error code to set. Default: the partitions' if the answer has
                partitions. Default for Metadata: the topics', unless the rule names a partition.
            fields: Other fields to set, at any level.

        Raises:
            UsageError: The API's answers have no such field.
        """
        self._answer(code, level, fields)
        return self._limit(times)

    def answer_without_forwarding(
        self, code: int = 0, *, times: int | None = None, level: Level | None = None, **fields: Any
    ) -> Self:
        """Like `answer`, but no broker gets the request. Of a request for several partitions it gets only the others.

        A Metadata request is forwarded nevertheless, because its answer needs the brokers; if it names the topic, then
        without it.
        """
        self._answer(code, level, fields)
        self._unforwarded = "answer"
        return self._limit(times)

    def set(self, *, times: int | None = None, **fields: Any) -> Self:
        """Changes fields of the answer. Structs can be dicts. Ignores fields that the answer's version does not have.

        Raises:
            UsageError: The API's answers have no such field.
        """
        for name, value in fields.items():
            self._fields.append((self._known().level_of(name), {name: value}))
        return self._limit(times)

    def edit(self, change: Edit, *, times: int | None = None) -> Self:
        """Calls `change` with the exchange on the proxy's thread. It may modify the exchange's `response`."""
        self._edits.append(change)
        return self._limit(times)

    def leave_out(self, *, times: int | None = None) -> Self:
        """Removes the rule's topic or partition from the answer."""
        self._leave_out = True
        return self._limit(times)

    def add(self, topic: str, partition: int, *, times: int | None = None, **fields: Any) -> Self:
        """Adds a partition to the answer that the request did not name."""
        self._additions.append((topic, partition, fields))
        return self._limit(times)

    # -- Delivery ------------------------------------------------------------------------------------------------

    def drop(self, *, times: int | None = None, forward: bool = True, mute: bool = True) -> Self:
        """Never delivers the answer.

        Args:
            times: How often the rule acts; by default always.
            forward: False: the broker does not get the request either.
            mute: True: nothing more arrives on this connection, as after a network failure. False: later answers
                arrive, which no real broker would do.
        """
        self._effects.drop = True
        self._effects.mute = mute
        if not forward:
            self._unforwarded = "drop"
        return self._limit(times)

    def delay(self, seconds: float, *, times: int | None = None) -> Self:
        """Delays the answer, and all later ones on the connection, by that much."""
        self._effects.delay_s = seconds
        return self._limit(times)

    def duplicate(self, copies: int = 2, *, times: int | None = None) -> Self:
        """Delivers the answer this many times."""
        self._effects.copies = copies
        return self._limit(times)

    def truncate(self, size_bytes: int, *, times: int | None = None, hang_up: bool = False) -> Self:
        """Delivers only the first bytes of the answer.

        Args:
            size_bytes: How many, without the frame's size field.
            times: How often the rule acts; by default always.
            hang_up: True: the size field has the full size, and the connection closes in the middle. False: the frame
                is complete, but its content is too short.
        """
        self._effects.truncate_to = size_bytes
        self._effects.hang_up = hang_up
        return self._limit(times)

    def hang_up(self, *, times: int | None = None, forward: bool = True) -> Self:
        """Closes the connection instead of answering; with `forward=False` before the broker gets the request."""
        self._effects.drop = True
        self._effects.hang_up = True
        if not forward:
            self._unforwarded = "hang up"
        return self._limit(times)

    # -- Lifecycle -----------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Ends the rule. `hits` keeps its value."""
        self._proxy._remove(self)

    def wait(self, hits: int = 1, timeout_s: float = 10.0) -> None:
        """Waits until the rule has acted this often.

        Raises:
            TimeoutError: It has not, within that time.
        """
        with self._proxy._changed:
            if not self._proxy._changed.wait_for(lambda: self.hits >= hits, timeout_s):
                raise TimeoutError(f"{self!r}: fewer than {hits} hits within {timeout_s} s")

    # -- On the proxy's thread -----------------------------------------------------------------------------------

    def _known(self) -> Api:
        if self._api is None:
            raise UsageError("Only the answers of one API can be changed: name it in on()")
        return self._api

    def _limit(self, times: int | None) -> Self:
        if times is not None:
            self._times = times
        return self

    def _answer(self, code: int, level: Level | None, fields: Mapping[str, Any]) -> None:
        api = self._known()
        if level is None:
            level = self._default_level(api)
        name = api.error_field(level)
        if name is None:
            raise UsageError(f"{api.name} has no error code at level {level!r}")
        beside = api.beside_error(level) if code else {}
        others = [(api.level_of(key), {key: value}) for key, value in fields.items()]
        self._fields += [(level, {**beside, name: code}), *others]

    def _default_level(self, api: Api) -> Level:
        levels: tuple[Level, ...] = ("partition", "topic", "top")
        if api.name == "Metadata":
            levels = ("partition",) if self._partition is not None else ("topic",)
        for level in levels:
            if api.error_field(level) is not None:
                return level
        raise UsageError(f"{api.name} has no error code")

    @property
    def _spent(self) -> bool:
        return self._times is not None and self.hits >= self._times

    def _fits(self, name: str, partitions: Iterable[tuple[str, int]]) -> bool:
        if self._api is not None and self._api.name != name:
            return False
        return self._topic is None or any(self._names(*which) for which in partitions)

    def _names(self, topic: str, partition: int) -> bool:
        return self._topic in {None, topic} and self._partition in {None, partition}

    def _acts(self, exchange: Exchange) -> bool:
        """Returns whether the rule acts on this matching exchange, and counts it."""
        if self._spent or not all(predicate(exchange) for predicate in self._predicates):
            return False
        if self._skip:
            self._skip -= 1
            return False
        with self._proxy._changed:
            self.hits += 1
            self._proxy._changed.notify_all()
        return True

    def _set_fields(self, level: Level, target: Any) -> None:
        for at, fields in self._fields:
            if at == level:
                if level == "top":
                    frames.assign_outside(target, fields)
                else:
                    frames.assign(target, fields)

    def _change(self, exchange: Exchange, response: frames.Response, names: Mapping[uuid.UUID, str]) -> None:
        self._set_fields("top", response.message)
        for spot in frames.spots(response.message, names):
            partitions = spot.partitions or []
            if self._topic not in {None, spot.name}:
                continue
            if self._leave_out and (self._partition is None or not partitions):
                spot.container.remove(spot.topic)
                continue
            if self._partition is None or self._partition in spot.numbers():
                self._set_fields("topic", spot.topic)
            for entry in [e for e in partitions if self._names(spot.name, spot.number_of(e))]:
                if self._leave_out:
                    partitions.remove(entry)
                elif spot.number is not None:
                    self._set_fields("partition", entry)
        for topic, partition, fields in self._additions:
            frames.assign(frames.put(response, names, topic, partition), fields)
        for change in self._edits:
            change(exchange)


@dataclass(slots=True, eq=False)
class _Pending:
    """A request whose response was not delivered to the client yet."""

    call: Call
    request: frames.Request
    applied: list[Rule] = field(default_factory=list)
    """Rules that acted before the request was forwarded."""
    synthetic: list[tuple[Rule, str, int]] = field(default_factory=list)
    """(rule, topic, partition) of the parts that the broker did not get; partition -1 for the topic as a whole."""
    forwarded: bool = True
    silent: bool = False
    """No response will come, because the request was dropped before a broker got it."""
    parts: list[bytes] | None = None
    """The response to deliver to the client."""
    due: float = 0.0
    effects: _Effects = field(default_factory=_Effects)


class _Connection:
    def __init__(self, client: socket.socket, target: socket.socket, node: int, number: int) -> None:
        self.client = client
        self.target = target
        self.node = node
        self.number = number
        self.from_client = bytearray()
        self.from_target = bytearray()
        self.to_client: collections.deque[memoryview] = collections.deque()
        self.to_target: collections.deque[memoryview] = collections.deque()
        self.to_client_bytes = 0
        self.to_target_bytes = 0
        self.pending: collections.deque[_Pending] = collections.deque()
        self.ready_bytes = 0
        self.muted = False
        self.ending = False  # close the client's connection after the queued bytes
        self.target_ended = False
        self.client_ended = False  # what the client sent before still goes to the broker, as without a proxy


class FaultProxy(Relay[_Connection]):
    """A proxy between Kafka clients and brokers that causes the faults of its rules (`Rule`). Thread-safe.

    Its ports are open from construction on, so that brokers can advertise them. (Clients connect to the addresses that
    brokers advertise.) Pass `ports` to `KafkaCluster(proxy_ports=...)`, then call `connect`. For any other cluster pass
    `bootstrap`. The proxy then replaces the brokers' addresses in answers by its own, and opens a port for each broker
    that an answer names.

    The proxy reads plain text only, not TLS. SASL works if its tokens are in Kafka's own frames (version 1 of
    SaslHandshake, which all clients of recent years use).

    Args:
        nodes: Node ids of the brokers. Not used with `bootstrap`.
        bootstrap: `host:port` of any broker.
        host: Address to listen on.
        verify: Also decode and encode every frame, and count the frames that change in `unfaithful`.

    Attributes:
        ports: Port for each node id.
        unfaithful: With `verify`, the number of frames that change when they are decoded and encoded, by (API, version,
            "request" or "response"). If a rule changed such a frame, something else in it would be lost.
        seen: Number of requests by (API, version).
        errors: Exceptions that predicates and edits raised, and values that do not fit a field. The frame then passed
            unchanged. The end of the `with` block raises the first one.

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
        self._rules: tuple[Rule, ...] = ()
        self._changed = threading.Condition()
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
        """Sets the real address of a broker. Until then, connections to it are reset."""
        self._targets[node] = (host, port)

    # -- Rules ---------------------------------------------------------------------------------------------------

    def on(self, api: object = None, *, topic: str | None = None, partition: int | None = None) -> Rule:
        """Makes a rule. Until one of its methods is called, it only counts.

        Args:
            api: `"Produce"`, its number, or kafka-python's class. None: any API; then answers can be delayed, dropped
                and cut, but not changed.
            topic: Only requests (or, in a Fetch session, answers) that name this topic.
            partition: Only those that name this partition of the topic. The rule then changes only its entry.

        Raises:
            UsageError: kafka-python does not know the API.
        """
        if partition is not None and topic is None:
            raise UsageError("A partition needs its topic")
        rule = Rule(self, None if api is None else frames.api(api), topic, partition)
        with self._changed:
            self._rules = (*self._rules, rule)
        return rule

    def clear(self) -> None:
        """Ends all rules. Muted connections stay muted until their clients close them."""
        with self._changed:
            self._rules = ()

    def _remove(self, rule: Rule) -> None:
        with self._changed:
            self._rules = tuple(other for other in self._rules if other is not rule)

    def cut(self) -> int:
        """Resets all connections, and accepts new ones. Returns how many there were."""
        return self._do(self._cut)

    # -- Observations --------------------------------------------------------------------------------------------

    def requests(
        self, api: object = None, *, topic: str | None = None, partition: int | None = None
    ) -> list[Call]:
        """Returns the last 100,000 requests, oldest first.

        Args:
            api: As in `on`.
            topic: Only those that name this topic.
            partition: Only those that name this partition of the topic.
        """
        name = None if api is None else frames.api(api).name
        with self._changed:
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
        """Returns the largest number of such requests in any `window_s` seconds."""
        times = [call.time for call in self.requests(api, topic=topic, partition=partition)]
        return max((bisect.bisect_left(times, at + window_s) - i for i, at in enumerate(times)), default=0)

    def forget(self) -> None:
        """Empties the list of requests."""
        with self._changed:
            self._calls.clear()

    # -- The proxy's thread: connections -------------------------------------------------------------------------

    def _open(self, client: socket.socket, number: int) -> _Connection | None:
        where = self._targets.get(number)
        target = None if where is None else connect(*where)
        if target is None:
            return None
        self._numbers += 1
        return _Connection(client, target, number, self._numbers)

    def _plan(self) -> float | None:
        now = time.monotonic()
        soonest: float | None = None
        for connection in list(self._connections):
            if connection.pending:
                self._deliver(connection, now)
                if connection.pending and connection.pending[0].parts is not None:
                    due = connection.pending[0].due
                    soonest = due if soonest is None else min(soonest, due)
            if self._is_over(connection):
                self._close(connection, reset_only=(connection.target,))
                continue
            client = target = 0
            if (
                not connection.ending
                and not connection.client_ended
                and connection.to_target_bytes < _MAX_BUFFERED_BYTES
                and len(connection.pending) < _MAX_PENDING
            ):
                client |= selectors.EVENT_READ
            if connection.to_client:
                client |= selectors.EVENT_WRITE
            waiting = connection.to_client_bytes + connection.ready_bytes
            if not connection.target_ended and waiting < _MAX_BUFFERED_BYTES:
                target |= selectors.EVENT_READ
            if connection.to_target and not connection.target_ended:
                target |= selectors.EVENT_WRITE
            self._register(connection.client, client, connection)
            self._register(connection.target, target, connection)
        return None if soonest is None else max(0.0, soonest - now)

    @staticmethod
    def _is_over(connection: _Connection) -> bool:
        if connection.to_client:
            return False
        delivered = not any(pending.parts is not None for pending in connection.pending)
        return connection.ending or (connection.target_ended and (delivered or connection.muted))

    def _serve(self, connection: _Connection, fileobj: object, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._write(connection, to_client=fileobj is connection.client)
            if events & selectors.EVENT_READ:
                self._read(connection, of_client=fileobj is connection.client)
        except OSError:
            self._close(connection)
        except ValueError as error:  # the bytes do not follow Kafka's protocol
            log.warning("%r: a connection is given up: %s", self, error)
            self._close(connection)

    def _read(self, connection: _Connection, *, of_client: bool) -> None:
        try:
            data = (connection.client if of_client else connection.target).recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            if of_client:
                connection.client_ended = connection.muted = True
                connection.to_client.clear()
                connection.to_client_bytes = 0
                self._end_target(connection)
            else:
                connection.target_ended = True
            return
        buffer = connection.from_client if of_client else connection.from_target
        buffer += data
        at = 0
        while len(buffer) - at >= frames.SIZE_BYTES and connection in self._connections:
            size = struct.unpack_from(">i", buffer, at)[0]
            if not 0 <= size <= _MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {size} bytes")
            end = at + frames.SIZE_BYTES + size
            if len(buffer) < end:
                break
            frame = bytes(buffer[at + frames.SIZE_BYTES : end])
            at = end
            if of_client:
                self._on_request(connection, frame)
            else:
                self._on_response(connection, frame)
        del buffer[:at]

    @staticmethod
    def _end_target(connection: _Connection) -> None:
        """Shuts down the broker's side once the client has ended and everything was written."""
        if connection.client_ended and not connection.to_target:
            connection.target.shutdown(socket.SHUT_WR)

    @classmethod
    def _write(cls, connection: _Connection, *, to_client: bool) -> None:
        queue = connection.to_client if to_client else connection.to_target
        sock = connection.client if to_client else connection.target
        while queue:
            try:
                sent = sock.send(queue[0])
            except BlockingIOError:
                return
            if to_client:
                connection.to_client_bytes -= sent
            else:
                connection.to_target_bytes -= sent
            if sent == len(queue[0]):
                queue.popleft()
            else:
                queue[0] = queue[0][sent:]
        if not to_client:
            cls._end_target(connection)

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
        pending = _Pending(call, request)
        if api is not None:
            try:
                frame = self._hold_back(pending, frame)
            except Exception as error:  # a predicate raised, or a value does not fit a field
                self._complain(error)
        if not pending.forwarded:
            call = pending.call = replace(call, forwarded=False)
        with self._changed:
            self._calls.append(call)
            self.seen[name, request.version] += 1
        if pending.forwarded:
            self._to_target(connection, struct.pack(">i", len(frame)) + frame)
            # With acks=0 the broker does not answer.
            if name == "Produce" and api is not None and request.message.acks == 0:
                return
        connection.pending.append(pending)
        if pending.silent:
            pending.parts = []
        elif not pending.forwarded:
            self._finish(connection, pending, frames.empty_response(request), None)

    def _hold_back(self, pending: _Pending, frame: bytes) -> bytes:
        """Applies rules before the broker gets the request. Returns the frame that it gets, without its size."""
        request = pending.request
        changed = False
        for rule in self._rules:
            if not rule._unforwarded or not rule._fits(pending.call.api, pending.call.partitions):
                continue
            if not rule._acts(Exchange(pending.call, request.message)):
                continue
            pending.applied.append(rule)
            if rule._unforwarded != "answer":
                self._add_effects(pending, rule)
                pending.forwarded = False
                pending.silent = True
                return frame
            before = len(pending.synthetic)
            for spot in frames.spots(request.message, self._names):
                if spot.partitions:
                    for entry in [e for e in spot.partitions if rule._names(spot.name, spot.number_of(e))]:
                        spot.partitions.remove(entry)
                        pending.synthetic.append((rule, spot.name, spot.number_of(entry)))
                    empty = not spot.partitions
                else:
                    empty = rule._topic in {None, spot.name}
                    if empty:
                        pending.synthetic.append((rule, spot.name, -1))
                if empty:
                    spot.container.remove(spot.topic)
            changed = changed or len(pending.synthetic) > before
        if not pending.applied:
            return frame
        # Without brokers, a Metadata answer would be useless. So the broker gets the request in any case.
        rest = frames.spots(request.message, self._names) or pending.call.api == "Metadata"
        pending.forwarded = bool(changed and rest)
        return request.encode()[frames.SIZE_BYTES :] if changed else frame

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
            or any(rule._api in {None, api} and not rule._spent for rule in self._rules)
        ):
            try:
                response = frames.parse_response(api, request.version, frame)
            except Exception as error:  # the client may be able to read a frame that kafka-python cannot
                log.warning("%s v%d: an answer cannot be decoded: %s", name, request.version, error)
                self.unfaithful[name, request.version, "response"] += 1
            else:
                self._compare(response, frame, name, request.version, "response")
        self._finish(connection, pending, response, frame)

    def _finish(
        self,
        connection: _Connection,
        pending: _Pending,
        response: frames.Response | None,
        frame: bytes | None,
    ) -> None:
        """Applies rules to the response, which has arrived."""
        payload = frame
        try:
            if response is None:
                self._apply_blind(pending)
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
        pending.parts = [] if effects.drop else [struct.pack(">i", size) + payload] * effects.copies
        pending.due = time.monotonic() + effects.delay_s
        connection.ready_bytes += sum(map(len, pending.parts))

    def _apply_blind(self, pending: _Pending) -> None:
        """Applies rules to an answer that is not decoded."""
        for rule in self._rules:
            known = rule._api is None or rule._api is pending.request.api
            if known and not rule._unforwarded and rule._fits(pending.call.api, pending.call.partitions):
                exchange = Exchange(pending.call, pending.request.message)
                if rule._acts(exchange):
                    self._add_effects(pending, rule)

    def _apply(self, pending: _Pending, response: frames.Response) -> bool:
        """Applies rules to a decoded answer. Returns whether they changed it."""
        changed = False
        message = response.message
        if pending.call.api in _NAMES_TOPICS:
            self._names.update(frames.topic_ids(message))
        if self._rewrite:
            changed = self._redirect(message)
        exchange = Exchange(pending.call, pending.request.message, message)
        for rule in pending.applied:
            self._add_effects(pending, rule)
            if any(rule is other for other, _, _ in pending.synthetic):
                rule._set_fields("top", message)
            else:
                rule._change(exchange, response, self._names)
            changed = True
        for rule, topic, partition in pending.synthetic:
            api = pending.request.api
            lone = partition < 0 or (api is not None and api.error_field("partition") is None)
            entry = frames.put(response, self._names, topic, None if lone else partition)
            rule._set_fields("topic" if lone else "partition", entry)
        named = [
            (spot.name, number)
            for spot in frames.spots(message, self._names)
            for number in spot.numbers() or [-1]
        ] or list(pending.call.partitions)
        for rule in self._rules:
            if rule._unforwarded and not (
                # A request cannot ask for all topics except one.
                rule._unforwarded == "answer" and pending.call.api == "Metadata" and not pending.applied
            ):
                continue
            if not rule._fits(pending.call.api, named) or not rule._acts(exchange):
                continue
            self._add_effects(pending, rule)
            if rule._fields or rule._edits or rule._leave_out or rule._additions:
                rule._change(exchange, response, self._names)
                changed = True
        return changed

    @staticmethod
    def _add_effects(pending: _Pending, rule: Rule) -> None:
        mine, more = pending.effects, rule._effects
        mine.delay_s += more.delay_s
        mine.copies = max(mine.copies, more.copies)
        if more.truncate_to is not None:
            mine.truncate_to = more.truncate_to
        mine.drop |= more.drop
        mine.mute |= more.mute
        mine.hang_up |= more.hang_up

    def _redirect(self, message: Any) -> bool:
        """Replaces the brokers' addresses by the proxy's."""
        changed = False
        for node, broker in frames.endpoints(message):
            if node < 0:
                continue
            where = (broker.host, broker.port)
            if node not in self.ports:
                self.ports[node] = self._listen(0, node)
            self._targets[node] = where
            broker.host, broker.port = self._host, self.ports[node]
            changed = True
        return changed

    def _deliver(self, connection: _Connection, now: float) -> None:
        """Delivers the finished responses in the order of the requests, on which clients rely."""
        while connection.pending and not connection.ending:
            head = connection.pending[0]
            if head.parts is None or (head.due > now and not connection.muted):
                return
            connection.pending.popleft()
            connection.ready_bytes -= sum(map(len, head.parts))
            if connection.muted:
                continue
            for part in head.parts:
                connection.to_client.append(memoryview(part))
                connection.to_client_bytes += len(part)
            connection.muted = head.effects.drop and head.effects.mute
            connection.ending = head.effects.hang_up
            if connection.to_client:
                try:
                    self._write(connection, to_client=True)
                except OSError:
                    connection.ending = True
                    connection.to_client.clear()

    @staticmethod
    def _to_target(connection: _Connection, frame: bytes) -> None:
        connection.to_target.append(memoryview(frame))
        connection.to_target_bytes += len(frame)

    def _compare(
        self, decoded: frames.Request | frames.Response, frame: bytes, name: str, version: int, what: str
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
