"""The fake's backend for engines: `kafkasafe.cluster.api.Cluster` in virtual time, without a thread or a socket.

Requests are plain data, answered by the handlers of `FakeCluster`. A broker answers the requests of one connection one
after another. The network delays each request and each answer by `latency_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from kafkasafe.cluster.api import Cluster
from kafkasafe.cluster.client import Transport
from kafkasafe.testing.broker import ClusterError
from kafkasafe.testing.fake import request_handler as request_handlers
from kafkasafe.testing.fake.asking import Ask, Fields, Later
from kafkasafe.testing.fake.control import Control
from kafkasafe.testing.fake.pipes import InTransit, Pipe, Way
from kafkasafe.testing.fake.virtual_network import VirtualNetwork
from kafkasafe.testing.fake.virtual_time import Timer, VirtualTime
from kafkasafe.testing.fake.weather import Weather


class VirtualCluster(Control):
    """A fake cluster that shares its virtual time with its clients.

    ```python
    cluster = VirtualCluster(brokers=3)
    client = cluster.connect({"bootstrap_servers": cluster.bootstrap_servers})
    client.start()
    cluster.time.run_for(1.0)
    ```

    The cluster behaves like `FakeCluster`, and has the same methods, but nothing happens unless the test advances
    `time`. Two runs with the same calls are identical.

    Use the cluster and its clients on one thread only. A `SafeProducer` cannot use this cluster, because its threads
    wait for the machine's clock, not for virtual time.

    Args:
        brokers: Number of brokers.
        version: "4.3.0" or "2.8.2".
        config: Broker settings by Kafka's names.
        cluster_id: The cluster's id, as brokers report it.
        latency_s: Network latency of each request and of each answer, in seconds.

    Attributes:
        time: The clock and its timers.
    """

    def __init__(
        self,
        brokers: int = 1,
        version: str = "4.3.0",
        config: Mapping[str, object] | None = None,
        *,
        cluster_id: str = "fake-cluster",
        latency_s: float = 0.001,
    ) -> None:
        self.time = VirtualTime()
        self.latency_s = latency_s
        super().__init__(brokers, version, config, cluster_id)
        self._skies = {node: Weather() for node in self.brokers}
        for node in self.brokers:
            self._handler.listen(node, f"fake-{node}", 9092)
        self._pipes: list[Pipe] = []
        self._timer: Timer | None = None
        self._timer_ms = -1
        self._ways = {node: Way() for node in self.brokers}

    # -- its clients -------------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> list[str]:
        """`host:port` of every broker; see `kafkasafe.kafkapython.connect.announced`."""
        return [f"fake-{node}:9092" for node in self.brokers]

    def connect(self, options: Mapping[str, Any]) -> Cluster:
        """Creates a client that is not started yet. The client uses the options of KafkaProducer that concern
        connections.
        """
        return Transport(VirtualNetwork(self, options), options)

    def now_ms(self) -> int:
        """The cluster's time, ms since the epoch."""
        return self.time.wall_ms()

    def speaks(self, name: str) -> tuple[int, int]:
        """See `VirtualBrokers`."""
        return self._handler.centre.profile.apis.get(name, (0, -1))

    # -- the network -------------------------------------------------------------------------------------------------

    def slow_down(self, bytes_per_s: float = 0.0, *, buffer_bytes: int = 0, node: int | None = None) -> None:
        """Limits the bandwidth from clients to brokers.

        Args:
            bytes_per_s: Limit for the batches sent to each broker, in bytes per second over all connections together;
                0: no limit.
            buffer_bytes: Number of bytes that the network buffers, as sockets and routers do. The writer does not wait
                for buffered bytes.
            node: The broker, None for all.
        """
        for one in self._nodes(node):
            self._ways[one] = Way(bytes_per_s, buffer_bytes)

    @property
    def weather(self) -> dict[int, Weather]:
        """The network faults of each broker."""
        return self._skies

    def restore(self) -> None:
        """Makes the network work again. Dropped requests and answers stay lost."""
        self.slow_down()
        super().restore()

    def cut(self, *, node: int | None = None) -> int:
        """Ends the connections to a broker, or to all brokers. Returns the number of connections that ended."""
        wanted = self._nodes(node)
        ended = [pipe for pipe in self._pipes if pipe.node in wanted]
        for pipe in ended:
            self._end(pipe, "The connection was cut")
        return len(ended)

    def _hangs(self, node: int) -> bool:
        return self._handler.centre.brokers[node].paused or self.weather[node].stall

    def _end(self, pipe: Pipe, why: str) -> None:
        if pipe.open:
            self.hang_up(pipe)
            pipe.on_end(why)

    # -- what clients call -------------------------------------------------------------------------------------------

    def dial(self, node: int, on_made: Callable[[Pipe], None], on_end: Callable[[str], None]) -> None:
        """See `VirtualBrokers`."""

        def arrive() -> None:
            if not self._handler.centre.brokers[node].up or self.weather[node].refuse:
                self.time.call_later(self.latency_s, lambda: on_end("The connection was refused"))
                return
            pipe = Pipe(node, on_end)
            self._pipes.append(pipe)
            # Like a real connection, the pipe is usable only after the broker has answered ApiVersions.
            pipe.requests.append(("ApiVersions", 0, SimpleNamespace(), lambda _: on_made(pipe)))
            self._settle()

        self.time.call_later(self.latency_s, arrive)

    def hang_up(self, pipe: Pipe) -> None:
        """See `VirtualBrokers`."""
        if pipe.open:
            pipe.end(self.time.monotonic())
            self._pipes.remove(pipe)

    def ask(
        self, pipe: Pipe, name: str, version: int, message: Any, on_answer: Callable[[Fields], None]
    ) -> float:
        """See `VirtualBrokers`."""
        taken_s, through_s = self.way(pipe, name, message)
        written_s = self.time.monotonic() + taken_s
        request = InTransit(pipe, self._handler.centre, name, version, message, on_answer, written_s)
        self.time.call_later(self.latency_s + through_s, lambda: self._arrive(request))
        return taken_s

    def _arrive(self, request: InTransit) -> None:
        pipe = request.pipe
        if not pipe.open:
            self._arrive_late(request)
        elif not self.weather[pipe.node].drop_requests:
            pipe.requests.append((request.name, request.version, request.message, request.on_answer))
            self._settle()

    def _arrive_late(self, request: InTransit) -> None:
        """Drops a request that arrives after the end of its connection."""

    def throttled_ms(self, pipe: Pipe) -> int:
        """See `VirtualBrokers`."""
        return max(0, pipe.muted_until_ms - self.now_ms())

    def way(self, pipe: Pipe, name: str, message: Any) -> tuple[float, float]:
        """(seconds until a connection has accepted all bytes of a request, seconds until the request has arrived)."""
        way = self._ways[pipe.node]
        size = 0
        if name == "Produce":
            size = sum(len(part.records) for topic in message.topic_data for part in topic.partition_data)
        return way.pass_through(self.time.monotonic(), size)

    # -- the brokers -------------------------------------------------------------------------------------------------

    @contextmanager
    def _held(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._settle()

    def _settle(self) -> None:
        """Answers requests that can be answered now, and ends connections to dead brokers."""
        centre = self._handler.centre
        for pipe in list(self._pipes):
            if not centre.brokers[pipe.node].up:
                self._end(pipe, "The broker is down")
        moved = True
        while moved:
            moved = any(self._work(pipe) for pipe in list(self._pipes))
        self._plan()

    def _work(self, pipe: Pipe) -> bool:
        """Processes the next request of a connection. Returns whether it processed a request."""
        if not pipe.open or self._hangs(pipe.node):
            return False
        if pipe.held is not None:
            later, name, on_answer = pipe.held
            answer = later.look(self.now_ms())
            if answer is None:
                return False
            pipe.hold(None)
            self._deliver(pipe, name, answer, on_answer)
        if not pipe.requests or self.now_ms() < pipe.muted_until_ms:
            return False
        name, version, message, on_answer = pipe.requests.popleft()
        self._handler.counts[name] += 1
        found = request_handlers.handler(name)(self._ask(pipe.node, version, message))
        if isinstance(found, Later):
            pipe.hold((found, name, on_answer))
        elif found is not None:
            self._deliver(pipe, name, found, on_answer)
        return True

    def _ask(self, node: int, version: int, message: Any) -> Ask:
        return self._handler.ask(node, version, message, self.now_ms(), "virtual")

    def _deliver(self, pipe: Pipe, name: str, answer: Fields, on_answer: Callable[[Fields], None]) -> None:
        weather = self.weather[pipe.node]
        pipe.mute(self.now_ms() + self._handler.throttled(name))
        if weather.drop_responses:
            return

        def arrive() -> None:
            if pipe.open:
                on_answer(answer)

        self.time.call_later(self.latency_s + weather.response_delay_ms / 1000, arrive)

    def _plan(self) -> None:
        """Sets a timer for the next time at which the brokers' state changes without a request."""
        due = [self._handler.next_due_ms()]
        # The requests of a suspended broker are checked when it resumes.
        due += [
            pipe.held[0].due_ms
            for pipe in self._pipes
            if pipe.held is not None and not self._hangs(pipe.node)
        ]
        due += [pipe.muted_until_ms for pipe in self._pipes if pipe.muted_until_ms > self.now_ms()]
        wanted = min((at for at in due if at is not None), default=-1)
        if wanted == self._timer_ms and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = wanted
        if wanted >= 0:
            self._timer = self.time.call_later((wanted - self.now_ms()) / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        self._handler.advance(self.now_ms())
        self._settle()

    def _until(self, condition: Callable[[], bool], timeout_s: float, message: str) -> None:
        if not condition() and not self.time.run_while(lambda: not condition(), timeout_s):
            raise ClusterError(f"{message} after {timeout_s:g} s")
