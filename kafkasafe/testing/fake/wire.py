"""Serves Kafka's protocol on 127.0.0.1 for the fake. One thread serves all brokers.

The thread handles everything in the order of arrival. Other threads may act only while they hold `lock`. So a fake
cluster has no races. After each change of the cluster's state, the thread opens and closes sockets to match the new
state. A suspended broker neither reads nor answers. A broker that is down has no listener and no connections, but its
port stays bound to a socket that does not listen. So no other program gets the port, and clients that connect to it are
refused, as on a real machine.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Final

from kafkasafe.testing.fake.asking import NotModelledError
from kafkasafe.testing.fake.request_handler import PendingRequest, Reply, RequestHandler
from kafkasafe.testing.fake.weather import Weather
from kafkasafe.testing.sockets import Outbox, SocketLoop, bound, frames_in

log = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"
_READ_BYTES: Final = 256 * 1024
_MAX_FRAME: Final = 1 << 28


@dataclass(slots=True, eq=False)
class _Connection:
    node: int
    sock: socket.socket
    outgoing: Outbox
    incoming: bytearray = field(default_factory=bytearray)
    requests: deque[bytes] = field(default_factory=deque)
    held: PendingRequest | None = None
    muted_until_ms: int = 0

    def read(self) -> bool:
        """Reads what has arrived. Returns whether the connection is still usable."""
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.incoming += data
        try:
            self.requests.extend(frames_in(self.incoming, _MAX_FRAME))
        except ValueError:
            return False
        return bool(data)

    def hold(self, pending: PendingRequest | None) -> None:
        """Keeps a request whose answer is not available yet. None: the request has been answered."""
        self.held = pending

    def put(self, reply: Reply, weather: Weather, now: int) -> None:
        """Adds an answer to the bytes to write, unless the network drops it. Sets the end of the throttling."""
        self.muted_until_ms = now + reply.throttle_ms
        if reply.frame is not None and not weather.drop_responses:
            self.outgoing.put(reply.frame, now + weather.response_delay_ms)


class Wire(SocketLoop[_Connection]):
    """Listeners and connections of a fake cluster.

    Args:
        lock: Held whenever `handler` is used.

    Attributes:
        weather: Network faults, by node.
    """

    def __init__(
        self, handler: RequestHandler, nodes: list[int], lock: threading.RLock, now_ms: Callable[[], int]
    ) -> None:
        super().__init__(_HOST)
        self._handler = handler
        self._lock = lock
        self._now_ms = now_ms
        self.weather = {node: Weather() for node in nodes}
        self._holders = [self._own(bound(_HOST, 0)) for _ in nodes]
        for node, holder in zip(nodes, self._holders, strict=True):
            handler.listen(node, *holder.getsockname())
        self._agree()
        self.start()

    def close(self) -> None:
        """Ends the thread and closes all sockets. Idempotent."""
        super().close()
        for holder in self._holders:
            holder.close()

    def settle(self) -> None:
        """Returns when the sockets match the cluster's state, and all waiting requests have been checked again."""
        if threading.current_thread() is not self._thread and not self._closed:
            self._do(self._plan)

    def cut(self, nodes: list[int]) -> int:
        """Ends all connections to some brokers. Returns the number of connections that ended."""
        return 0 if self._closed else self._do(lambda: self._end(nodes))

    # -- The thread --------------------------------------------------------------------------------------------------

    def _plan(self) -> float | None:
        with self._lock:
            now = self._now_ms()
            self._handler.advance(now)
            self._agree()
            self._work_all(now)
            due = self._next_due_ms()
        return None if due is None else max(0.0, (due - self._now_ms()) / 1000)

    def _work_all(self, now: int) -> None:
        # A request on one connection may complete a waiting request on another connection.
        while any(self._work(connection, now) for connection in list(self._connections)):
            pass

    def _next_due_ms(self) -> float | None:
        due: list[float | None] = [self._handler.next_due_ms()]
        for connection in self._connections:
            if self._hangs(connection):  # the connection is checked again when its broker resumes
                continue
            if connection.held is not None:
                due.append(connection.held.later.due_ms)
            if connection.outgoing and not self._masks.get(connection.sock, 0) & selectors.EVENT_WRITE:
                due.append(connection.outgoing.due)
            if connection.muted_until_ms > self._now_ms():
                due.append(connection.muted_until_ms)
        return min((at for at in due if at is not None), default=None)

    # -- Sockets -----------------------------------------------------------------------------------------------------

    def _agree(self) -> None:
        """Adapts listeners and connections to the brokers' state."""
        for node, broker in self._handler.centre.brokers.items():
            weather = self.weather[node]
            listens = broker.up and not weather.refuse
            if listens and node not in self._listeners.values():
                self._listen(self._handler.addresses[node][1], node)
            elif not listens:
                self._stop_listening(node)
            if not broker.up:
                self._end([node])

    def _welcome(self, client: socket.socket, number: int) -> None:
        connection = _Connection(number, client, Outbox(client))
        self._begin(connection, client)
        self._register(client, selectors.EVENT_READ, connection)

    def _end(self, nodes: Container[int]) -> int:
        """Ends the connections to these brokers. Returns the number of connections that ended."""
        ended = [connection for connection in self._connections if connection.node in nodes]
        for connection in ended:
            self._close(connection)
        return len(ended)

    def _close(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)
        self._register(connection.sock, 0, connection)
        connection.sock.close()

    def _hangs(self, connection: _Connection) -> bool:
        return self._handler.centre.brokers[connection.node].paused or self.weather[connection.node].stall

    def _serve(self, connection: _Connection, fileobj: object, events: int) -> None:  # noqa: ARG002
        if events & selectors.EVENT_READ and not self._hangs(connection) and not connection.read():
            self._close(connection)

    def _work(self, connection: _Connection, now: int) -> bool:
        """Handles a connection's requests and sends its answers, as far as this is possible now. Returns whether there
        was a new request.
        """
        handled = False
        hangs = self._hangs(connection)
        weather = self.weather[connection.node]
        if not hangs:
            try:
                handled = self._answer(connection, weather, now)
                connection.outgoing.send(now)
            except NotModelledError as error:
                log.exception("The connection ends", exc_info=error.__cause__ or error)
                self._close(connection)
                return True
            except OSError:
                self._close(connection)
                return handled
        wanted = 0
        if not hangs and now >= connection.muted_until_ms:
            wanted = selectors.EVENT_READ
            if connection.outgoing and connection.outgoing.due <= now:
                wanted |= selectors.EVENT_WRITE
        self._register(connection.sock, wanted, connection)
        return handled

    def _answer(self, connection: _Connection, weather: Weather, now: int) -> bool:
        handled = False
        if connection.held is not None:
            reply = self._handler.look(connection.held, now)
            if reply is None:
                return False
            connection.hold(None)
            connection.put(reply, weather, now)
        while connection.requests and now >= connection.muted_until_ms:
            frame = connection.requests.popleft()
            handled = True
            if weather.drop_requests:
                continue
            answer = self._handler.handle(connection.node, frame, now)
            if isinstance(answer, PendingRequest):
                connection.hold(answer)
                break
            connection.put(answer, weather, now)
        return handled
