"""A virtual client's links to its brokers: connections, back-off, waiting requests and requests in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace as Message
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import (
    Broker,
    Failure,
    MetadataRefreshed,
    Reply,
)
from kafkasafe.cluster.leaders import Leaders
from kafkasafe.cluster.pin import ClusterPin
from kafkasafe.cluster.preference import preference
from kafkasafe.cluster.terms import SILENCE_S, TopicPartition, closed_error, log, safely
from kafkasafe.cluster.versions import newest
from kafkasafe.testing.fake.asking import Fields
from kafkasafe.testing.fake.virtual_time import Timer

if TYPE_CHECKING:
    from kafkasafe.testing.fake.virtual import Pipe, VirtualCluster

__all__ = ["Call", "Link", "Links", "namespace", "parsing"]


@dataclass(slots=True, eq=False)
class Call:
    """One request to one broker, which gets exactly one outcome."""

    name: str
    version: int
    message: Callable[[], Any | None]
    """Returns the request when it is written; None if nothing is left to send."""
    succeed: Callable[[Fields], None]
    fail: Callable[[BaseException, bool], None]
    deadline_s: float
    timeout_s: float
    targets: tuple[TopicPartition, ...] = ()
    done: bool = False
    timer: Timer | None = None
    sent_s: float = 0.0

    def answer(self, fields: Fields) -> None:
        """Reports the answer."""
        if not self.done:
            self._close()
            self.succeed(fields)

    def give_up(self, error: BaseException, *, sent: bool) -> None:
        """Reports that there will be no answer."""
        if not self.done:
            self._close()
            self.fail(error, sent)

    def _close(self) -> None:
        self.done = True
        if self.timer is not None:
            self.timer.cancel()


@dataclass(slots=True, eq=False)
class Link:
    """A client's connection to one broker, with its requests."""

    node: int
    pipe: Pipe | None = None
    dialing: object | None = None
    attempt: object | None = None
    ready: bool = False
    waiting: deque[Call] = field(default_factory=deque)
    in_flight: list[Call] = field(default_factory=list)
    failures: int = 0
    not_before_s: float = 0.0
    heard_s: float = 0.0
    suspect_until_s: float = 0.0


class Links:
    """The part of a client that needs no metadata: see the module."""

    def _want_metadata(self, *, urgent: bool = False) -> None:
        """Asks for metadata soon."""
        raise NotImplementedError

    def __init__(self, cluster: VirtualCluster, options: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._time = cluster.time
        self._timeout_s: float = options.get("request_timeout_ms", 30_000) / 1000
        self._retry_s: float = options.get("retry_backoff_ms", 100) / 1000
        self._backoff_s: float = options.get("reconnect_backoff_ms", 50) / 1000
        self._backoff_max_s: float = options.get("reconnect_backoff_max_ms", 1000) / 1000
        self._max_age_s: float = options.get("metadata_max_age_ms", 300_000) / 1000
        self._max_request_bytes: int = options.get("max_request_size", 1048576)
        self._auto_create: bool = options.get("allow_auto_create_topics", True)
        self._started = self._closed = False
        self._links: dict[int, Link] = {}
        self._fences: dict[TopicPartition, int] = {}
        self._pending: dict[TopicPartition, tuple[int, int]] = {}
        self._leaders = Leaders()
        self._brokers: list[Broker] = []
        self._watched: set[str] = set()
        self._asked: set[str] = set()
        self._pin = ClusterPin(log)
        self._connected = False
        self._known = False
        self._last_error: BaseException | None = None
        self._may_create: Callable[[str], bool] = lambda _: True
        self._listeners: list[Callable[[MetadataRefreshed], None]] = []
        self._waiters: list[Reply[MetadataRefreshed]] = []
        self._parked: list[tuple[Callable[[bool], None], Callable[[BaseException], None]]] = []
        self._attempt: object | None = None
        self._attempted_s = -1e9
        self._refresh_timer: Timer | None = None
        self._refresh_s = 0.0
        self._wanted = False
        self._bad_refreshes = 0
        self._before_start: list[Callable[[], None]] = []

    # -- start and close ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """See `Cluster`."""
        if self._started or self._closed:
            return
        self._started = True
        work, self._before_start = self._before_start, []
        for one in work:
            one()
        self._want_metadata(urgent=True)

    def close(self, timeout_s: float) -> bool:  # noqa: ARG002 - it takes no time
        """See `Cluster`."""
        if self._closed:
            return True
        self._closed = True
        if self._refresh_timer is not None:
            self._refresh_timer.cancel()
        error = closed_error()
        for link in self._links.values():
            self._drop_pipe(link)
            for call in [*link.in_flight, *link.waiting]:
                call.give_up(error, sent=call in link.in_flight)
            link.in_flight, link.waiting = [], deque()
        for _, fail in self._parked:
            fail(error)
        for reply in self._waiters:
            safely(reply, Failure(error, sent=False))
        for one in self._before_start:
            one()
        self._parked, self._waiters, self._before_start = [], [], []
        return True

    @property
    def connected(self) -> bool:
        """See `Cluster`."""
        return self._connected

    @property
    def closed(self) -> bool:
        """See `Cluster`."""
        return self._closed

    @property
    def last_error(self) -> BaseException | None:
        """See `Cluster`."""
        return self._last_error

    @property
    def cluster_id(self) -> str | None:
        """See `Cluster`."""
        return self._pin.cluster_id

    def _do(self, work: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Calls `work`, now or after `start`; calls `fail` if the client is closed."""
        if self._closed:
            fail(closed_error())
        elif self._started:
            work()
        else:
            self._before_start.append(lambda: fail(closed_error()) if self._closed else work())

    # -- which cluster -----------------------------------------------------------------------------------------------

    def guard(self, *, on_stranger: Callable[[str], None], on_home: Callable[[], None]) -> None:
        """See `Cluster`."""
        self._pin.guard(on_stranger=on_stranger, on_home=on_home)

    def move(self, cluster_id: str) -> None:
        """See `Cluster`."""

        def run() -> None:
            self._pin.move(cluster_id)
            for link in self._links.values():
                link.not_before_s = 0.0
            self._want_metadata(urgent=True)

        self._do(run, lambda _: None)

    @property
    def at_home(self) -> bool:
        """See `Cluster`."""
        return any(link.ready for link in self._links.values())

    # -- links -------------------------------------------------------------------------------------------------------

    def _link(self, node: int) -> Link:
        return self._links.setdefault(node, Link(node))

    def _preference(self, link: Link) -> tuple[object, ...]:
        """Sort key of links: the lowest is best to send to. Ties have a fixed order, so that runs can be repeated."""
        order = preference(
            suspect=link.suspect_until_s > self._time.monotonic(),
            ready=link.ready,
            failures=link.failures,
            bootstrap=False,
            in_flight=len(link.in_flight),
        )
        return (*order, link.node)

    def _submit(self, link: Link, call: Call) -> None:
        link.waiting.append(call)
        call.timer = self._time.call_at(call.deadline_s, lambda: self._waited(link, call))
        self._pump(link)

    def _waited(self, link: Link, call: Call) -> None:
        if call in link.waiting:
            link.waiting.remove(call)
            call.give_up(
                kafka_errors.KafkaTimeoutError(f"Node {link.node} was not ready in time"), sent=False
            )

    def _pump(self, link: Link) -> None:
        if not link.waiting or self._closed:
            return
        if link.pipe is None:
            if link.dialing is None:
                self._dial(link)
            return
        while link.waiting and link.ready and link.pipe is not None:
            self._write(link, link.waiting.popleft())

    def _dial(self, link: Link) -> None:
        token = link.dialing = link.attempt = object()

        def dial() -> None:
            if link.dialing is token and not self._closed:
                self._time.call_later(self._timeout_s, give_up)
                self._cluster.dial(link.node, made, ended)

        def give_up() -> None:
            # The broker did not answer the handshake in time. If the connection opens later, it is closed.
            if link.attempt is token and not link.ready and not self._closed:
                self._lost(link, kafka_errors.KafkaConnectionError(f"Node {link.node}: no answer"))

        def made(pipe: Pipe) -> None:
            if link.dialing is not token or self._closed:
                self._cluster.hang_up(pipe)
                return
            link.dialing = None
            link.pipe = pipe
            link.heard_s = self._time.monotonic()
            if self._pin.guarded:
                self._identify(link, pipe)
            else:
                self._admit(link)

        def ended(why: str) -> None:
            if link.dialing is token or (link.pipe is not None and not link.pipe.open):
                self._lost(link, kafka_errors.KafkaConnectionError(f"Node {link.node}: {why}"))

        self._time.call_at(max(link.not_before_s, self._time.monotonic()), dial)

    def _identify(self, link: Link, pipe: Pipe) -> None:
        def answered(fields: Fields) -> None:
            if link.pipe is not pipe:
                return
            stranger = self._pin.stranger(fields["cluster_id"])
            if stranger is not None:
                self._lost(link, stranger)
            else:
                self._admit(link)

        message = Message(topics=[], allow_auto_topic_creation=False)
        self._cluster.ask(pipe, "Metadata", self._version("Metadata"), message, answered)

    def _admit(self, link: Link) -> None:
        link.ready = True
        link.failures = 0
        link.suspect_until_s = 0.0
        self._pin.admitted()
        self._pump(link)

    def _write(self, link: Link, call: Call) -> None:
        pipe = link.pipe
        message = call.message()
        if message is None or pipe is None:
            return
        if call.timer is not None:
            call.timer.cancel()
        call.sent_s = self._time.monotonic()
        call.timer = self._time.call_later(call.timeout_s, lambda: self._overdue(link, call))
        link.in_flight.append(call)
        self._time.call_later(SILENCE_S, lambda: self._listen(link, call))

        def answered(fields: Fields) -> None:
            if link.pipe is pipe:
                link.heard_s = self._time.monotonic()
                if call in link.in_flight:
                    link.in_flight.remove(call)
                call.answer(fields)

        taken_s = self._cluster.ask(pipe, call.name, call.version, message, answered)
        if taken_s and not call.done and call.timer is not None:
            call.timer.cancel()
            call.timer = self._time.call_later(taken_s + call.timeout_s, lambda: self._overdue(link, call))

    def _overdue(self, link: Link, call: Call) -> None:
        if call in link.in_flight:
            self._lost(link, kafka_errors.RequestTimedOutError(f"Node {link.node} did not answer in time"))

    def _listen(self, link: Link, call: Call) -> None:
        """Asks for metadata while a broker is silent: it may hang with an open connection, and not lead any more."""
        if call.done or call not in link.in_flight:
            return
        now = self._time.monotonic()
        if now - max(link.heard_s, call.sent_s) >= SILENCE_S:
            link.suspect_until_s = now + 2 * SILENCE_S
            self._want_metadata()
        self._time.call_later(SILENCE_S / 4, lambda: self._listen(link, call))

    def _drop_pipe(self, link: Link) -> None:
        if link.pipe is not None:
            self._cluster.hang_up(link.pipe)
        link.pipe = link.dialing = None
        link.ready = False

    def _lost(self, link: Link, error: BaseException) -> None:
        """Ends a connection: the requests sent on it, and those that waited for it, fail in order."""
        now = self._time.monotonic()
        if link.ready:
            link.not_before_s = now + self._backoff_s
        else:
            link.failures += 1
            pause_s = self._backoff_s * 2.0 ** min(link.failures - 1, 30)
            link.not_before_s = now + min(pause_s, self._backoff_max_s)
        self._drop_pipe(link)
        sent, link.in_flight = link.in_flight, []
        waiting, link.waiting = link.waiting, deque()
        for call in sent:
            call.give_up(error, sent=True)
        for call in waiting:
            call.give_up(error, sent=False)
        self._want_metadata()

    def _version(self, name: str, least: int = 0, most: int = 32767) -> int:
        oldest, latest = self._cluster.speaks(name)
        if latest < max(least, oldest):
            raise kafka_errors.UnsupportedVersionError(f"The broker speaks {name} up to v{latest}")
        return min(latest, newest(name, most))

    def _call(
        self,
        link: Link,
        name: str,
        message: Any,
        succeed: Callable[[Fields], None],
        fail: Callable[[BaseException, bool], None],
        *,
        least: int = 0,
        most: int = 32767,
        targets: tuple[TopicPartition, ...] = (),
    ) -> None:
        try:
            version = self._version(name, least, most)
        except kafka_errors.UnsupportedVersionError as error:
            fail(error, False)
            return
        deadline_s = self._time.monotonic() + self._timeout_s
        self._submit(
            link,
            Call(name, version, lambda: message, succeed, fail, deadline_s, self._timeout_s, targets),
        )


def namespace(value: Any) -> Any:
    """Plain data with attributes: dicts become namespaces, at any depth."""
    if isinstance(value, int | str | bytes):
        return value
    if isinstance(value, dict):
        return Message(**{name: namespace(one) for name, one in value.items()})
    return [namespace(one) for one in value] if isinstance(value, list | tuple) else value


def parsing(parse: Callable[[Any], Any], reply: Reply[Any]) -> Callable[[Fields], None]:
    """Returns a function that calls `reply` with the parsed answer, or with a `Failure` if `parse` raises."""

    def succeed(fields: Fields) -> None:
        try:
            result = parse(namespace(fields))
        except Exception as error:
            safely(reply, Failure(error, sent=True))
            return
        safely(reply, result)

    return succeed
